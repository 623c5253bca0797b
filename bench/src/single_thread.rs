//! Both sides and both engines on one thread, taking turns: the cost of a message, with no scheduler in it.

use ferroce::Context;

use crate::actor::Actor;
use crate::error::Result;
use crate::params::{Metric, Params, Verb};
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
    let sent = [server_actor.sent(), client_actor.sent()];
    let received = [server_actor.received(), client_actor.received()];
    // Of SENDs the receiver knows how many came.
    let came = |side: usize| if received[side].is_empty() { &sent[1 - side] } else { &received[side] };
    verify(&client, &server, came(0), came(1))?;
    let mtu_bytes = client.mtu_bytes();
    let is_counted = params.test.metric == Metric::Bandwidth && !received[0].is_empty();
    let [_, client_actor] = actors;
    let mut round = client_actor.round();
    if is_counted {
        round.arrived(received[0].iter().sum());
    }
    Ok((round, mtu_bytes))
}

/// Looks at the memory of whoever got the data. `to_server`: of what the client sent, what came.
fn verify(client: &Side, server: &Side, to_server: &[u64], to_client: &[u64]) -> Result<()> {
    let reads = client.params.test.verb == Verb::Read;
    let (of_client, of_server) = if reads { (client, server) } else { (server, client) };
    of_client.verify(to_server)?;
    of_server.verify(to_client)
}
