//! Two sides on threads or in processes of their own: each runs its part, and they tell each other over a [`Link`].

use ferroce::Context;
use serde::{Deserialize, Serialize};

use crate::actor::Actor;
use crate::error::{PerfError, Result};
use crate::link::Link;
use crate::params::{Metric, Params, Verb};
use crate::side::{Role, Side};
use crate::stats::Round;

/// Steps between two looks at the socket, while a server does not know how many messages come.
const STEPS_PER_LOOK: u32 = 64;

/// What a side tells the other when it has sent its last message.
#[derive(Debug, Serialize, Deserialize)]
struct Sent {
    messages: Vec<u64>,
}

/// What a side says of the data that it got, and what it has measured.
#[derive(Debug, Serialize, Deserialize)]
struct Verdict {
    /// What is wrong.
    fault: Option<String>,
    /// Messages per second that it sent.
    per_s: f64,
    peak_per_s: f64,
    /// Messages that it received, all QPs together; `None` if it can't know.
    received: Option<u64>,
}

/// How one side reaches its engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Engine<'a> {
    /// The session.
    pub(crate) context: &'a Context,
    /// True if the engine runs on this very thread.
    pub(crate) polled: bool,
    /// Index of our GID.
    pub(crate) gid_index: u8,
}

/// Runs this side of one round; returns what it has measured (of a bidirectional run, both sides' rates) and the path MTU in bytes.
///
/// # Errors
/// Whatever goes wrong here; [`PerfError::Peer`] if the other side got wrong data.
pub(crate) fn run(link: &Link, engine: Engine<'_>, params: &Params, role: Role) -> Result<(Round, u32)> {
    let mut side = Side::new(engine.context, params, engine.gid_index, role)?;
    let remotes = link.trade(&side.infos())?;
    side.connect(&remotes)?;
    // Receives are posted before the peer may send.
    let mut actor = Actor::new(&side)?;
    link.sync()?;
    let peer_sent = match role {
        Role::Client => run_client(link, engine, &mut actor)?,
        Role::Server => run_server(link, engine, &side, &mut actor)?,
    };
    let (own_sent, received) = (actor.sent(), actor.received());
    let arrived = if received.is_empty() { &peer_sent } else { &received };
    let fault = verify(&side, &own_sent, arrived).err().map(|error| error.to_string());
    let mut round = actor.round();
    let own = Verdict {
        fault: fault.clone(),
        per_s: round.per_s(),
        peak_per_s: round.peak_per_s,
        received: (!received.is_empty()).then(|| received.iter().sum()),
    };
    link.send(&own)?;
    let theirs: Verdict = link.receive_driving(engine.context, engine.polled)?;
    if let Some(fault) = fault {
        return Err(PerfError::Data(fault));
    }
    if let Some(fault) = theirs.fault {
        return Err(PerfError::Peer(fault));
    }
    let is_one_way = params.test.metric == Metric::Bandwidth;
    if let Some(messages) = theirs.received.filter(|_| is_one_way) {
        round.arrived(messages);
    }
    if params.bidirectional {
        add_rate(&mut round, &theirs, own_came(&peer_sent, &received));
    }
    let mtu_bytes = side.mtu_bytes();
    // The peer's engine may still answer ours: both let go together.
    link.send(&())?;
    let () = link.receive_driving(engine.context, engine.polled)?;
    Ok((round, mtu_bytes))
}

/// The part of what the peer has sent that came here.
fn own_came(peer_sent: &[u64], received: &[u64]) -> f64 {
    if received.is_empty() {
        return 1.0;
    }
    received.iter().sum::<u64>() as f64 / peer_sent.iter().sum::<u64>().max(1) as f64
}

/// Counts the messages of the other direction in, as far as they came.
fn add_rate(round: &mut Round, theirs: &Verdict, came: f64) {
    let total = round.per_s() + theirs.per_s * came;
    round.messages = (total * round.seconds) as u64;
    round.peak_per_s += theirs.peak_per_s * came;
}

/// Sends, tells how much that was, and takes the rest of what the peer sends.
fn run_client(link: &Link, engine: Engine<'_>, actor: &mut Actor<'_>) -> Result<Vec<u64>> {
    while !actor.has_sent() {
        actor.step()?;
    }
    link.send(&Sent { messages: actor.sent() })?;
    finish(link, engine, actor)
}

/// Answers, and sends its own in a bidirectional run, until it knows how much comes and has it.
fn run_server(link: &Link, engine: Engine<'_>, side: &Side, actor: &mut Actor<'_>) -> Result<Vec<u64>> {
    if Actor::is_passive(side) {
        let Sent { messages } = link.receive_driving(engine.context, engine.polled)?;
        link.send(&Sent { messages: actor.sent() })?;
        return Ok(messages);
    }
    while !actor.has_sent() {
        actor.step()?;
    }
    let mut steps = 0_u32;
    while !actor.step()? {
        steps += 1;
        if steps.is_multiple_of(STEPS_PER_LOOK) && link.has_message()? {
            break;
        }
    }
    link.send(&Sent { messages: actor.sent() })?;
    finish(link, engine, actor)
}

/// The peer says how much it has sent: that much must come.
fn finish(link: &Link, engine: Engine<'_>, actor: &mut Actor<'_>) -> Result<Vec<u64>> {
    // Until it says so, it may wait for what our side does not do without being driven.
    while !link.has_message()? {
        for _ in 0..STEPS_PER_LOOK {
            actor.step()?;
            engine.context.make_progress();
        }
    }
    let Sent { messages } = link.receive()?;
    actor.expect(&messages);
    while !actor.step()? {}
    Ok(messages)
}

/// Looks at what came to this side's memory.
fn verify(side: &Side, own_sent: &[u64], peer_sent: &[u64]) -> Result<()> {
    side.verify(if side.params.test.verb == Verb::Read { own_sent } else { peer_sent })
}
