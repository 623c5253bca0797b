//! Both sides and both engines on one thread, taking turns: the cost of a message, with no scheduler in it.

use ferroce::Context;

use crate::actor::Actor;
use crate::error::Result;
use crate::params::{Params, Verb};
use crate::side::{Role, Side};
use crate::stats::Round;

/// Runs one round between two polled engines; the path MTU in bytes comes with it.
///
/// # Errors
/// Whatever goes wrong, wrong data at the destination included.
pub(crate) fn run(client: &Context, server: &Context, params: &Params, gid_index: u8) -> Result<(Round, u32)> {
    let mut server = Side::new(server, params, gid_index, Role::Server)?;
    let mut client = Side::new(client, params, gid_index, Role::Client)?;
    server.connect(&client.infos())?;
    client.connect(&server.infos())?;
    let server_is_passive = Actor::is_passive(&server);
    let mut actors = [Actor::new(&server)?, Actor::new(&client)?];
    let [server_actor, client_actor] = &mut actors;
    if server_is_passive {
        while !client_actor.step()? {}
    } else {
        // The client's end is not the server's: each goes on until both have sent all they have to send.
        while !(client_actor.has_sent() && server_actor.has_sent()) {
            client_actor.step()?;
            server_actor.step()?;
        }
        let (client_sent, server_sent) = (client_actor.sent(), server_actor.sent());
        server_actor.expect(&client_sent);
        client_actor.expect(&server_sent);
        while !client_actor.step()? | !server_actor.step()? {}
    }
    let [server_sent, client_sent] = [server_actor.sent(), client_actor.sent()];
    verify(&client, &server, &client_sent, &server_sent)?;
    let mtu_bytes = client.mtu_bytes();
    let [_, client_actor] = actors;
    Ok((client_actor.round(), mtu_bytes))
}

/// Looks at the memory of whoever got the data.
fn verify(client: &Side, server: &Side, client_sent: &[u64], server_sent: &[u64]) -> Result<()> {
    let reads = client.params.test.verb == Verb::Read;
    let (of_client, of_server) = if reads { (client, server) } else { (server, client) };
    of_client.verify(client_sent)?;
    of_server.verify(server_sent)
}
