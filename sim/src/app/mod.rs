//! Model applications. Two of them hold a [`Conversation`] over some connections, with the client library that ships, and
//! check everything that comes back: every completion, every byte.
//!
//! A conversation knows both sides at once, as no real application can: so it knows what must arrive before it is sent.

mod client;
mod complete;
mod connection;
mod guest;
mod incident;
mod memory;
mod plan;
mod post;
mod rendezvous;
mod rest;
mod unreliable;

use std::collections::BTreeMap;
use std::ops::Range;

use engine::Time;
use ferroce::QueuePair;
use rand::Rng;

use crate::host::Host;
use crate::inspect::Bounds;
use crate::random::Stream;
use crate::trace::TraceHash;
use crate::violation::Checked;
use client::Client;
use complete::Addition;
use connection::{Connection, End, Phase};
pub(crate) use guest::Guest;
pub use guest::GuestCounts;
pub use plan::{ConversationSettings, Incident, IncidentKind, Op, OpKind};
pub(crate) use rendezvous::Rendezvous;
pub use rendezvous::{End as ConnectionEnd, RendezvousSettings};
pub(crate) use unreliable::Unreliable;
pub use unreliable::UnreliableSettings;

/// One in so many steps has a look at the engine's own figures.
const INSPECT_ONE_IN: u32 = 32;

/// Two applications and what is between them.
pub struct Conversation {
    settings: ConversationSettings,
    clients: [Client; 2],
    connections: Vec<Connection>,
    stream: Stream,
    trace: TraceHash,
    completion_count: u64,
    /// Failures that were explained, by status.
    failures: BTreeMap<&'static str, u64>,
    reconnect_count: u32,
    /// The network is so bad that a QP may use its retries up.
    may_break: bool,
    /// How long old packets may live, ns.
    linger_ns: u64,
    /// Additions to each side's shared word.
    additions: [Vec<Addition>; 2],
    /// What each side's shared word was at first.
    counter_starts: [u64; 2],
    is_counter_unknown: [bool; 2],
    /// The conversation is being brought to its end.
    is_closing: bool,
    incident_met: bool,
    is_dead: [bool; 2],
    garbage_left: u32,
    /// Memory that must not change: side, range, bytes.
    frozen: Option<(usize, Range<usize>, Vec<u8>)>,
    /// QPs of a dead client.
    graveyard: Vec<QueuePair>,
}

impl Conversation {
    /// Makes everything and connects it. `number` tells it from others. `linger_ns`: how long a packet may live at most.
    pub(crate) fn new(
        settings: ConversationSettings,
        hosts: [&Host; 2],
        number: u8,
        linger_ns: u64,
        mut stream: Stream,
    ) -> Checked<Self> {
        let tag = |side: u64| (u64::from(number) << 1 | side) + 1;
        let (first, first_lanes) = Client::new(hosts[0], &settings, tag(0), &mut stream)?;
        let (second, second_lanes) = Client::new(hosts[1], &settings, tag(1), &mut stream)?;
        let clients = [first, second];
        let mut connections = Vec::new();
        for (index, (lanes, ops)) in first_lanes.into_iter().zip(second_lanes).zip(&settings.ops).enumerate() {
            let end = |lane, side: usize| -> Checked<End> {
                let mut end = End::new(&settings, lane, &ops[side], tag(side as u64) << 8 | index as u64);
                end.qp = Some(clients[side].create_qp(&settings)?);
                Ok(end)
            };
            let ends = [end(lanes.0, 0)?, end(lanes.1, 1)?];
            let mut connection = Connection::new(ends);
            connection.connect(&clients, &settings, &mut stream)?;
            connections.push(connection);
        }
        let start = |client: &Client| word(&client.memory.model(&[client.counter.0]));
        let counter_starts = [start(&clients[0]), start(&clients[1])];
        Ok(Self {
            settings,
            clients,
            connections,
            stream,
            trace: TraceHash::default(),
            completion_count: 0,
            failures: BTreeMap::new(),
            reconnect_count: 0,
            may_break: false,
            linger_ns,
            additions: [Vec::new(), Vec::new()],
            counter_starts,
            is_counter_unknown: [false; 2],
            is_closing: false,
            incident_met: false,
            is_dead: [false; 2],
            garbage_left: 0,
            frozen: None,
            graveyard: Vec::new(),
        })
    }

    /// Its settings.
    pub fn settings(&self) -> &ConversationSettings {
        &self.settings
    }

    /// Hash of its completions.
    pub fn trace(&self) -> TraceHash {
        self.trace
    }

    /// Completions so far, flushed ones included.
    pub fn completion_count(&self) -> u64 {
        self.completion_count
    }

    /// Failures that something explained, by the name of their status.
    pub fn failures(&self) -> &BTreeMap<&'static str, u64> {
        &self.failures
    }

    /// Times that a broken connection was brought up again.
    pub fn reconnect_count(&self) -> u32 {
        self.reconnect_count
    }

    /// True if the conversation has done something that its engines and peers must put up with.
    pub fn is_disturbed(&self) -> bool {
        self.connections.iter().any(|connection| connection.is_disturbed)
    }

    /// Says whether the network is so bad that QPs may use their retries up.
    pub(crate) fn set_may_break(&mut self, may_break: bool) {
        self.may_break = may_break;
    }

    /// The host of a side.
    pub(crate) fn host(&self, side: usize) -> usize {
        usize::from(self.settings.hosts[side])
    }

    /// How long a side takes to notice something, ns.
    pub(crate) fn draw_delay(&mut self) -> u64 {
        self.stream.random_range(0..=self.settings.step_delay_ns)
    }

    /// True if a side wants to be stepped after its host has had a turn.
    pub(crate) fn wants_step(&mut self, side: usize) -> Checked<bool> {
        if self.is_dead[side] {
            return Ok(false);
        }
        if self.clients[side].sleeps { self.clients[side].take_wake() } else { Ok(true) }
    }

    /// True if a side waits for its channel.
    pub(crate) fn is_asleep(&self, side: usize) -> bool {
        self.clients[side].sleeps
    }

    /// True if nothing more will happen by itself.
    pub(crate) fn is_done(&self) -> bool {
        self.garbage_left == 0
            && self.connections.iter().all(|connection| match connection.phase {
                Phase::Up => connection.ends.iter().all(End::is_idle) && !connection.is_final,
                Phase::Failing | Phase::Lingering { .. } => false,
                Phase::Closed => true,
            })
    }

    /// What is not done, for the report of a run that came to no end.
    pub(crate) fn unfinished(&self) -> String {
        let mut lines = Vec::new();
        for (index, connection) in self.connections.iter().enumerate() {
            for (side, end) in connection.ends.iter().enumerate() {
                let (ops, outstanding) = (end.ops.len(), end.outstanding.len());
                let incoming = end.incoming.len();
                let receives = end.receives.as_ref().map_or(0, |receives| receives.posted.len());
                if ops + outstanding + incoming > 0 || !matches!(connection.phase, Phase::Up | Phase::Closed) {
                    let phase = connection.phase;
                    lines.push(format!(
                        "connection {index} side {side} ({phase:?}): {ops} operations to post, {outstanding} outstanding, {incoming} to receive, {receives} receives posted"
                    ));
                }
            }
        }
        lines.join("; ")
    }

    /// A side looks: takes completions, posts.
    pub(crate) fn step(&mut self, side: usize, now: Time) -> Checked<Stepped> {
        let mut stepped = Stepped::default();
        if self.is_dead[side] {
            return Ok(stepped);
        }
        if self.is_abandoned() {
            return self.step_abandoned(side, now);
        }
        let mut is_armed = false;
        loop {
            self.take_events(side)?;
            let completions = self.clients[side].poll();
            for wc in &completions {
                self.complete(side, wc, now)?;
            }
            stepped.peer_too |= self.meet_incident(side)?;
            if self.is_dead[side] || self.is_abandoned() {
                stepped.again = Some(now.add_ns(1));
                return Ok(stepped);
            }
            let mut has_more = false;
            for index in 0..self.connections.len() {
                stepped.peer_too |= self.advance(index, now).map_err(|what| format!("connection {index}: {what}"))?;
                has_more |= self.serve(side, index, now)?;
            }
            self.clients[side].post_shared(now, &mut self.stream)?;
            stepped.again = earliest(stepped.again, self.due(side)).map(|at| at.max(now.add_ns(1)));
            if has_more {
                let soon = now.add_ns(self.draw_delay().max(1));
                stepped.again = earliest(stepped.again, Some(soon));
            }
            if self.clients[side].channel.is_none() || (is_armed && completions.is_empty()) {
                break;
            }
            // Asked first, and looked once more after: what came in between would ring nobody.
            self.clients[side].arm();
            self.clients[side].sleeps = true;
            is_armed = true;
        }
        if self.stream.random_ratio(1, INSPECT_ONE_IN) {
            self.inspect(side)?;
        }
        Ok(stepped)
    }

    /// A conversation of which nothing is known any more: one side writes garbage for a while, the other looks on.
    fn step_abandoned(&mut self, side: usize, now: Time) -> Checked<Stepped> {
        let garbles = self.settings.incident.is_some_and(|incident| incident.side == side);
        if !garbles {
            let _unknown = self.clients[side].poll();
            return Ok(Stepped::default());
        }
        if self.garbage_left == 0 {
            return Ok(Stepped::default());
        }
        self.write_garbage(side)?;
        self.clients[side].host.poke();
        Ok(Stepped { again: Some(now.add_ns(self.draw_delay().max(1))), peer_too: false })
    }

    /// True once nothing is known of it any more: garbage was written to its rings.
    pub fn is_abandoned(&self) -> bool {
        let kind = self.settings.incident.map(|incident| incident.kind);
        self.incident_met && kind == Some(IncidentKind::Garbage)
    }

    /// When a side has to look without being told.
    fn due(&self, side: usize) -> Option<Time> {
        let shared = self.clients[side].shared.as_ref().and_then(|shared| shared.receives.next_at());
        let own = self.connections.iter().filter_map(|connection| match connection.phase {
            Phase::Up if connection.is_broken() => None,
            Phase::Up => connection.ends[side].receives.as_ref().and_then(|receives| receives.next_at()),
            Phase::Lingering { until } => Some(until),
            Phase::Failing | Phase::Closed => None,
        });
        own.chain(shared).min()
    }

    /// Posts receives and sends of one connection. True if there is more to post and nothing in the way.
    fn serve(&mut self, side: usize, index: usize, now: Time) -> Checked<bool> {
        let Self { clients, connections, stream, .. } = self;
        let connection = &mut connections[index];
        if connection.is_broken() {
            return Ok(false);
        }
        let end = &mut connection.ends[side];
        let (Phase::Up, Some(qp)) = (connection.phase, &end.qp) else { return Ok(false) };
        let key = end.lane.key();
        if let Some(receives) = &mut end.receives {
            clients[side].post_receives(qp, key, receives, now, stream)?;
        }
        self.post_sends(side, index)
    }

    /// Looks at the engine's own figures of a side's QPs.
    fn inspect(&mut self, side: usize) -> Checked {
        let bounds = self.bounds(side);
        let context = &self.clients[side].context;
        for connection in self.connections.iter_mut().filter(|connection| connection.phase == Phase::Up) {
            let end = &mut connection.ends[side];
            if let Some(qp) = &end.qp {
                end.progress.look(context, qp, bounds)?;
            }
        }
        Ok(())
    }

    /// What a side's QPs may have outstanding.
    fn bounds(&self, side: usize) -> Bounds {
        let window = self.clients[side].host.settings().transport.window_packets;
        let reads = self.settings.ops.iter().flatten().flatten().filter(|op| op.kind == OpKind::Read);
        let longest = reads.map(|op| op.length.div_ceil(self.settings.path_mtu.bytes())).max().unwrap_or(0);
        Bounds::new(window, self.settings.attr.max_rd_atomic, longest)
    }
}

/// What a step asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stepped {
    /// When the side wants to look again though nothing happens.
    pub(crate) again: Option<Time>,
    /// The other side has something to do as well.
    pub(crate) peer_too: bool,
}

/// The earlier of two times, if there are any.
fn earliest(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    [one, other].into_iter().flatten().min()
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests;
