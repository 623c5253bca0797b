//! A run in its phases.
//!
//! 1. *Safety*: the link has its faults. Nothing wrong may happen, but nothing needs to get done. A QP may use its retries up:
//!    it is reset and connected again.
//! 2. *Settling*: the link is healed. A QP whose last retry was lost before may still break.
//! 3. *Liveness*: no QP may break any more, and everything must be done within a bounded time.
//! 4. *Rest*: all bytes are compared with the model, all counters with what the link did; no RoCE frame may be sent any more.
//! 5. *End*: connections are flushed or just dropped, clients leave, and the agenda must run empty.

use std::collections::BTreeMap;
use std::fmt;

use engine::Time;
use engine::counters::{PortCounters, ShardCounters};

use crate::app::{Conversation, GuestCounts, IncidentKind};
use crate::capture::Capture;
use crate::counters::{self, Excuses};
use crate::link::LinkCounters;
use crate::shrink::{FaultKind, Faulty};
use crate::swarm;
use crate::violation::{Checked, Violation, require};
use crate::world::{HOST_COUNT, World, WorldSettings};

const SECOND_NS: u64 = 1_000_000_000;
/// Time for everything to be done once nothing is wrong any more.
const LIVENESS_NS: u64 = 600 * SECOND_NS;
/// How long nothing may be sent at rest; less than neighbours stay fresh.
const REST_NS: u64 = 10 * SECOND_NS;
/// Time for a flush.
const CLOSING_NS: u64 = SECOND_NS;
/// Time for neighbours that nobody uses to be forgotten.
const END_NS: u64 = 120 * SECOND_NS;

/// A world and the times of its phases.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// The world.
    pub world: WorldSettings,
    /// Length of the safety phase at most, ns.
    pub safety_ns: u64,
    /// After that, so long a QP may still break, ns.
    pub settling_ns: u64,
}

impl Faulty for RunSettings {
    fn has(&self, kind: FaultKind) -> bool {
        let world = &self.world;
        world.faults.iter().any(|faults| faults.has(kind))
            || world.holds.iter().any(|hold| hold.kind.fault() == kind)
            || world.conversations.iter().any(|c| c.incident.is_some_and(|incident| incident.kind.fault() == kind))
            || (kind == FaultKind::Jitter && world.link.jitter_ns > 0)
            || (kind == FaultKind::Guests && !world.guests.is_empty())
    }

    fn remove(&mut self, kind: FaultKind) {
        let world = &mut self.world;
        world.faults.iter_mut().for_each(|faults| faults.remove(kind));
        world.holds.retain(|hold| hold.kind.fault() != kind);
        for conversation in &mut world.conversations {
            conversation.incident.take_if(|incident| incident.kind.fault() == kind);
        }
        match kind {
            FaultKind::Jitter => world.link.jitter_ns = 0,
            FaultKind::Guests => world.guests.clear(),
            _ => {}
        }
    }
}

/// What a run that went well leaves behind.
#[derive(Clone, Debug)]
pub struct Report {
    /// Hash of all that happened: the same for the same seed.
    pub trace: u64,
    /// Virtual time until everything was done, ns.
    pub done_ns: u64,
    /// Things that happened in all.
    pub event_count: u64,
    /// Completions that applications got.
    pub completion_count: u64,
    /// Broken connections that were brought up again.
    pub reconnect_count: u32,
    /// Failures that something explained, by the name of their status.
    pub failures: BTreeMap<&'static str, u64>,
    /// What guests have seen.
    pub guests: GuestCounts,
    /// What became of each host's frames, at rest.
    pub links: [LinkCounters; HOST_COUNT],
    /// Each host's counters, at rest.
    pub ports: [PortCounters; HOST_COUNT],
    /// Each host's transport counters, at rest.
    pub shards: [ShardCounters; HOST_COUNT],
}

/// A run that went wrong.
#[derive(Debug, thiserror::Error)]
#[error("{violation}")]
pub struct Failure {
    /// What.
    #[source]
    pub violation: Violation,
    /// The frames, as a pcapng file, if they were captured.
    pub capture: Option<Vec<u8>>,
}

/// Runs the swarm's settings for a seed. `captures`: keeps the frames.
///
/// # Errors
/// The first violation.
pub fn run_seed(seed: u64, captures: bool) -> Result<Report, Failure> {
    run(seed, &swarm::draw(seed), captures, |_| {})
}

/// Runs a world through all phases. `at_rest` sees it before it is taken down.
///
/// # Errors
/// The first violation.
pub fn run(seed: u64, settings: &RunSettings, captures: bool, at_rest: impl FnOnce(&World)) -> Result<Report, Failure> {
    let mut world =
        World::new(seed, &settings.world, captures).map_err(|violation| Failure { violation, capture: None })?;
    phases(&mut world, settings, at_rest)
        .map_err(|violation| Failure { violation, capture: world.capture().map(Capture::bytes).map(<[u8]>::to_vec) })
}

fn phases(world: &mut World, settings: &RunSettings, at_rest: impl FnOnce(&World)) -> Result<Report, Violation> {
    let safety_end = Time::from_ns(settings.safety_ns);
    let done = world.run_until_done(safety_end)?;
    world.heal();
    if !done {
        let settled = world.run_until_done(safety_end.add_ns(settings.settling_ns))?;
        world.forbid_breaking();
        if !settled && !world.run_until_done(world.now().add_ns(LIVENESS_NS))? {
            return violation(world, format!("not done in time; {}", world.unfinished()));
        }
    }
    let done_ns = world.now().as_ns();
    rest(world)?;
    at_rest(world);
    let mut report = report(world, done_ns);
    end(world)?;
    report.trace = world.trace();
    report.event_count = world.event_count();
    Ok(report)
}

fn violation<T>(world: &World, what: String) -> Result<T, Violation> {
    Err(Violation { at: world.now(), what })
}

fn in_world<T>(world: &World, checked: Checked<T>) -> Result<T, Violation> {
    checked.map_err(|what| Violation { at: world.now(), what })
}

/// What is on its way arrives; then there is silence, and everything is as it must be.
fn rest(world: &mut World) -> Result<(), Violation> {
    world.run_until(world.now().add_ns(SECOND_NS))?;
    let sent = |world: &World| world.directions().each_ref().map(|direction| direction.counters().sent_roce);
    let before = sent(world);
    world.run_until(world.now().add_ns(REST_NS))?;
    let after = sent(world);
    // Who has lost its peer to garbage may still be asking for it.
    if before != after && !world.conversations().iter().any(Conversation::is_abandoned) {
        return violation(world, format!("RoCE frames were sent though nothing was to do: {before:?}, then {after:?}"));
    }
    if !world.is_done() {
        return violation(world, "what was done is not done any more".to_owned());
    }
    world.check_at_rest()?;
    let checked = check_counters(world);
    in_world(world, checked)
}

/// Compares what the engines counted with what the link did and what the applications know.
fn check_counters(world: &World) -> Checked {
    let incidents: Vec<IncidentKind> =
        world.conversations().iter().filter_map(|c| c.settings().incident).map(|incident| incident.kind).collect();
    // QPs that come and go by themselves, and sends that are wrong on purpose.
    let has_guests = world.has_guests();
    let happened = |kinds: &[IncidentKind]| incidents.iter().any(|kind| kinds.contains(kind));
    for host in 0..HOST_COUNT {
        let port = world.hosts()[host].port_counters();
        let shard = world.hosts()[host].shard_counters();
        let (ours, theirs) = (world.directions()[host].counters(), world.directions()[1 - host].counters());
        require!(ours.oversize == 0, "host {host} sent {} frames larger than the MTU", ours.oversize);
        require!(
            port.tx_roce_packets == ours.sent_roce,
            "host {host} counted {} RoCE packets sent, the link {}",
            port.tx_roce_packets,
            ours.sent_roce
        );
        let refused = counters::refused(&port);
        let damaged = theirs.corrupted + theirs.truncated;
        require!(refused == damaged, "{damaged} damaged frames came to host {host}, it refused {refused}");
        let excuses = Excuses {
            garbage: happened(&[IncidentKind::Garbage]),
            gone_qps: has_guests || happened(&[IncidentKind::DestroyQp, IncidentKind::Kill]),
            wrong_requests: has_guests || !incidents.is_empty(),
            wrong_peers: !incidents.is_empty(),
        };
        counters::check(&port, &shard, excuses).map_err(|what| format!("host {host}: {what}"))?;
    }
    Ok(())
}

fn report(world: &World, done_ns: u64) -> Report {
    let mut failures = BTreeMap::new();
    for conversation in world.conversations() {
        for (&status, count) in conversation.failures() {
            *failures.entry(status).or_insert(0) += count;
        }
    }
    Report {
        trace: 0,
        done_ns,
        event_count: 0,
        completion_count: world.conversations().iter().map(|c| c.completion_count()).sum(),
        reconnect_count: world.conversations().iter().map(|c| c.reconnect_count()).sum(),
        failures,
        guests: world.guest_counts(),
        links: world.directions().each_ref().map(|direction| *direction.counters()),
        ports: world.hosts().each_ref().map(|host| host.port_counters()),
        shards: world.hosts().each_ref().map(|host| host.shard_counters()),
    }
}

/// Everything is taken down; then nothing may be left that would ever happen.
fn end(world: &mut World) -> Result<(), Violation> {
    world.begin_closing()?;
    if !world.run_until_done(world.now().add_ns(CLOSING_NS))? {
        return violation(world, format!("the flush came to no end: {}", world.unfinished()));
    }
    world.check_at_rest()?;
    world.leave();
    let sessions: usize = world.hosts().iter().map(|host| host.session_count()).sum();
    if sessions > 0 {
        return violation(world, format!("{sessions} sessions are left though every client has gone"));
    }
    let timers: usize = world.hosts().iter().map(|host| host.timer_count()).sum();
    if timers > 0 {
        return violation(world, format!("{timers} timers are set though there is no QP"));
    }
    let is_empty = world.run_out(world.now().add_ns(END_NS))?;
    if !is_empty {
        return violation(world, "something is still to happen though nobody is there".to_owned());
    }
    Ok(())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |field: fn(&LinkCounters) -> u64| self.links.iter().map(field).sum::<u64>();
        let lost = sum(|l| l.lost + l.lost_in_bursts + l.lost_in_flaps + l.lost_by_rule);
        let resent: u64 = self.shards.iter().map(|shard| shard.retransmitted_packets).sum();
        write!(
            f,
            "{} frames ({lost} lost, {} damaged, {} twice, {} held back), {resent} sent again, {} completions, {} reconnects, \
             {} unreliable messages came, {} connections by address ({} refused, {} attempts in vain), {} us, trace {:016x}",
            sum(|l| l.sent),
            sum(|l| l.corrupted + l.truncated),
            sum(|l| l.duplicated),
            sum(|l| l.reordered),
            self.completion_count + self.guests.completions,
            self.reconnect_count,
            self.guests.arrived,
            self.guests.connected,
            self.guests.refused,
            self.guests.failed_attempts,
            self.done_ns / 1_000,
            self.trace,
        )
    }
}
