//! The swarm of networks: each seed is a run of its own, looked at from outside.
//!
//! 1. *Safety*: links have their faults, hosts their mishaps. Connections may break and come back; what arrives must be right.
//! 2. *Settling*: links are healed. A connection whose last retry was lost before may still break.
//! 3. *Liveness*: in a network that loses nothing by itself no connection may break any more; in every network all flows of hosts
//!    that are there must be done within a bounded time.
//! 4. *Rest*: what is in the air comes down; queues are empty, every frame is accounted for, no byte lies where none was sent,
//!    and nobody sends anything.
//! 5. *End*: the clients leave, and nothing may be left that would ever happen.

mod draw;

use std::fmt;

use engine::Time;

use super::fabric::Fabric;
use super::run::{MishapKind, NetworkSettings, Run};
use super::topology::End;
use super::traffic::FlowCounts;
use crate::capture::Capture;
use crate::counters::{self, Excuses};
use crate::flow::{Flow, NetworkTotals, Observer, QueueSample};
use crate::link::{Faults, LinkCounters};
use crate::run::Failure;
use crate::shrink::{FaultKind, Faulty};
use crate::trace::TraceHash;
use crate::violation::{Checked, Violation, require};
use crate::workload::{Surroundings, Workload, WorkloadSettings};
pub use draw::draw;

const SECOND_NS: u64 = 1_000_000_000;
/// Time for everything to be done once nothing is wrong any more.
const LIVENESS_NS: u64 = 600 * SECOND_NS;
/// How long nothing may be sent at rest.
const REST_NS: u64 = 10 * SECOND_NS;
/// Time for what is left of engines whose clients have gone.
const END_NS: u64 = 120 * SECOND_NS;

/// A run and the times of its phases.
#[derive(Clone, Debug)]
pub struct SwarmSettings {
    /// The network and what is on it.
    pub network: NetworkSettings,
    /// Its flows.
    pub workload: Vec<WorkloadSettings>,
    /// Length of the safety phase at most, ns.
    pub safety_ns: u64,
    /// After that, so long a connection may still break, ns.
    pub settling_ns: u64,
    /// Switches pause instead of dropping.
    pub is_lossless: bool,
}

impl Faulty for SwarmSettings {
    fn has(&self, kind: FaultKind) -> bool {
        let NetworkSettings { fabric, mishaps, .. } = &self.network;
        let links = [fabric.access_faults, fabric.trunk_faults];
        links.iter().any(|faults| faults.has(kind))
            || (kind == FaultKind::Jitter && fabric.access.jitter_ns + fabric.trunk.jitter_ns > 0)
            || mishaps.iter().any(|mishap| mishap.kind.fault() == kind)
    }

    fn remove(&mut self, kind: FaultKind) {
        let NetworkSettings { fabric, mishaps, .. } = &mut self.network;
        fabric.access_faults.remove(kind);
        fabric.trunk_faults.remove(kind);
        mishaps.retain(|mishap| mishap.kind.fault() != kind);
        if kind == FaultKind::Jitter {
            (fabric.access.jitter_ns, fabric.trunk.jitter_ns) = (0, 0);
        }
    }
}

/// What a run that went well leaves behind.
#[derive(Clone, Debug)]
pub struct SwarmReport {
    /// Hash of all that happened.
    pub trace: u64,
    /// Things that happened.
    pub event_count: u64,
    /// Virtual time until everything was done, ns.
    pub done_ns: u64,
    /// Hosts.
    pub hosts: u16,
    /// Switches.
    pub switches: usize,
    /// Counts of flows.
    pub flows: FlowCounts,
    /// Counts of everything.
    pub totals: NetworkTotals,
}

/// Takes what flows do into the trace.
#[derive(Default)]
struct Witness(TraceHash);

impl Observer for Witness {
    fn flow_started(&mut self, now: Time, flow: &Flow) {
        self.0.add(now.as_ns() ^ u64::from(flow.id) << 48);
    }

    fn flow_progressed(&mut self, now: Time, _: u32, bytes: u64) {
        self.0.add(now.as_ns() ^ bytes << 32);
    }

    fn flow_finished(&mut self, now: Time, flow: &Flow, is_complete: bool) {
        self.0.add(now.as_ns() ^ u64::from(flow.id) << 48 ^ u64::from(is_complete) << 47);
    }

    fn sampled(&mut self, _: Time, _: &[QueueSample], _: &NetworkTotals) {}
}

/// Runs the network that a seed draws. `captures`: keeps the frames that hosts send and get.
///
/// # Errors
/// The first violation.
pub fn run_seed(seed: u64, captures: bool) -> Result<SwarmReport, Failure> {
    run(seed, &draw(seed), captures, |_| {})
}

/// Runs a network through all phases. `at_rest` sees it before the clients leave.
///
/// # Errors
/// The first violation.
pub fn run(
    seed: u64,
    settings: &SwarmSettings,
    captures: bool,
    at_rest: impl FnOnce(&Fabric),
) -> Result<SwarmReport, Failure> {
    let failed = |violation| Failure { violation, capture: None };
    let mut workload = workload(seed, settings).map_err(|what| failed(Violation { at: Time::ZERO, what }))?;
    let mut run = Run::new(seed, &settings.network, captures).map_err(failed)?;
    phases(&mut run, settings, &mut workload, at_rest).map_err(|violation| Failure {
        violation,
        capture: run.fabric().capture().map(Capture::bytes).map(<[u8]>::to_vec),
    })
}

fn workload(seed: u64, settings: &SwarmSettings) -> Checked<Workload> {
    let fabric = &settings.network.fabric;
    let surroundings = Surroundings {
        host_count: fabric.topology.host_count,
        host_bits_per_s: u64::from(fabric.access.rate_mbps) * 1_000_000,
        directory: std::path::Path::new("."),
    };
    Workload::new(&settings.workload, &surroundings, seed).map_err(|error| error.to_string())
}

fn phases(
    run: &mut Run,
    settings: &SwarmSettings,
    workload: &mut Workload,
    at_rest: impl FnOnce(&Fabric),
) -> Result<SwarmReport, Violation> {
    let mut witness = Witness::default();
    let safety_end = Time::from_ns(settings.safety_ns);
    let done = run.run_until_done(safety_end, workload, &mut witness)?;
    run.heal();
    if !done {
        let settled = run.run_until_done(safety_end.add_ns(settings.settling_ns), workload, &mut witness)?;
        if settings.is_lossless {
            run.forbid_breaking();
        }
        let end = run.fabric().now().add_ns(LIVENESS_NS);
        if !settled && !run.run_until_done(end, workload, &mut witness)? {
            let what = format!("not done in time: {}", run.unfinished());
            return Err(Violation { at: run.fabric().now(), what });
        }
    }
    let done_ns = run.fabric().now().as_ns();
    rest(run, settings, workload, &mut witness)?;
    let mut report = SwarmReport {
        trace: 0,
        event_count: 0,
        done_ns,
        hosts: run.fabric().host_count(),
        switches: run.fabric().switches().len(),
        flows: run.flow_counts(),
        totals: run.fabric().totals(),
    };
    at_rest(run.fabric());
    run.leave();
    let left = check_left(run.fabric());
    left.map_err(|what| Violation { at: run.fabric().now(), what })?;
    run.run_out(run.fabric().now().add_ns(END_NS), workload, &mut witness)?;
    let checked = check_end(run.fabric());
    checked.map_err(|what| Violation { at: run.fabric().now(), what })?;
    witness.0.add(run.fabric().trace());
    report.trace = witness.0.value();
    report.event_count = run.fabric().event_count();
    Ok(report)
}

fn rest(
    run: &mut Run,
    settings: &SwarmSettings,
    workload: &mut Workload,
    witness: &mut Witness,
) -> Result<(), Violation> {
    run.run_out(run.fabric().now().add_ns(SECOND_NS), workload, witness)?;
    let before = run.fabric().event_count();
    run.run_out(run.fabric().now().add_ns(REST_NS), workload, witness)?;
    let after = run.fabric().event_count();
    run.check_at_rest()?;
    let is_lost = |kind| matches!(kind, MishapKind::Death | MishapKind::Garbage);
    let has_lost = settings.network.mishaps.iter().any(|mishap| is_lost(mishap.kind));
    let checked = || {
        // Who has lost its peer may still be asking for it.
        require!(has_lost || before == after, "{} things happened though nothing was to do", after - before);
        check_frames(run.fabric(), settings, has_lost)
    };
    checked().map_err(|what| Violation { at: run.fabric().now(), what })
}

/// Every frame is accounted for, and what was counted has a reason.
fn check_frames(fabric: &Fabric, settings: &SwarmSettings, has_lost: bool) -> Checked {
    for (switch, number) in fabric.switches().iter().zip(0u16..) {
        let c = switch.counters();
        let (queued, used) = (switch.queued_frames(), switch.buffer_used_bytes());
        require!(
            (queued, used) == (0, 0),
            "switch {number} holds {queued} frames, {used} bytes of its buffer, at rest"
        );
        let out = c.sent + c.pauses_received + c.dropped();
        require!(
            c.received + c.copies == out,
            "switch {number} got {} frames, and {out} left it",
            c.received + c.copies
        );
        let into = |(_, to, counters): (End, End, &LinkCounters)| match to {
            End::Switch(switch, _) if switch == number => counters.delivered,
            _ => 0,
        };
        let came: u64 = fabric.lines().map(into).sum();
        require!(came == c.received, "links brought {came} frames to switch {number}, it counted {}", c.received);
    }
    let network = &settings.network.fabric;
    if settings.is_lossless && network.access_faults == Faults::NONE && network.trunk_faults == Faults::NONE {
        check_drops(fabric)?;
    }
    let excuses = Excuses { garbage: has_lost, gone_qps: has_lost, wrong_requests: has_lost, wrong_peers: has_lost };
    for number in 0..fabric.host_count() {
        let host = fabric.host(number);
        let (port, damaged) = (host.port_counters(), fabric.damaged_frames(number));
        let refused = counters::refused(&port);
        require!(refused == damaged, "{damaged} damaged frames came to host {number}, it refused {refused}");
        counters::check(&port, &host.shard_counters(), excuses).map_err(|what| format!("host {number}: {what}"))?;
    }
    Ok(())
}

/// A network that pauses and has no faults drops nothing but congestion notifications: their priority is not paused, and has no
/// room where those that are have filled the buffer.
fn check_drops(fabric: &Fabric) -> Checked {
    let (counters, (port, _)) = (fabric.switch_counters(), fabric.host_counters());
    let others = counters.dropped() - counters.dropped_queue;
    require!(others == 0, "a network that pauses dropped {others} frames that it should not have: {counters:?}");
    let came = port.rp_cnp_handled + port.rp_cnp_ignored;
    require!(
        came + counters.dropped_queue <= port.np_cnp_sent,
        "{} congestion notifications were sent, {came} came, and {} frames were dropped",
        port.np_cnp_sent,
        counters.dropped_queue
    );
    Ok(())
}

/// Every client has just gone: whatever a QP had set has gone with it.
fn check_left(fabric: &Fabric) -> Checked {
    let sessions: usize = (0..fabric.host_count()).map(|host| fabric.host(host).session_count()).sum();
    require!(sessions == 0, "{sessions} sessions are left though every client has gone");
    let timers: usize = (0..fabric.host_count()).map(|host| fabric.host(host).timer_count()).sum();
    require!(timers == 0, "{timers} timers are set though there is no QP");
    Ok(())
}

fn check_end(fabric: &Fabric) -> Checked {
    require!(fabric.is_silent(), "something is still to happen though nobody is there");
    Ok(())
}

impl fmt::Display for SwarmReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flows, totals, .. } = self;
        write!(
            f,
            "{} hosts, {} switches: {} flows, {} given up, {} reconnects; {} packets ({} sent again, {} marked, {} dropped, {} lost), \
             {} pauses, {} us, {} events, trace {:016x}",
            self.hosts,
            self.switches,
            flows.started,
            flows.abandoned,
            flows.reconnects,
            totals.packets,
            totals.retransmitted,
            totals.marked,
            totals.dropped,
            totals.lost,
            totals.pauses,
            self.done_ns / 1_000,
            self.event_count,
            self.trace
        )
    }
}
