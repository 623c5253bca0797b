//! How a scenario is told.

use engine::counters::ShardCounters;
use sim::app::{ConversationSettings, Incident, IncidentKind, Op, OpKind};
use sim::host::HostSettings;
use sim::link::{Faults, LinkSettings, Rule};
use sim::run::{Report, RunSettings, run};
use sim::world::WorldSettings;

const MS: u64 = 1_000_000;

/// A run to be told: one conversation from host 0 to host 1 unless said otherwise.
pub(crate) struct Scenario {
    pub(crate) settings: RunSettings,
}

impl Scenario {
    /// Side 0 does `ops`; side 1 answers.
    pub(crate) fn new(ops: Vec<Op>) -> Self {
        Self::both([ops, Vec::new()])
    }

    /// Both sides do something.
    pub(crate) fn both(ops: [Vec<Op>; 2]) -> Self {
        let world = WorldSettings {
            hosts: [HostSettings::default(); 2],
            link: LinkSettings::default(),
            faults: [Faults::NONE; 2],
            rules: [Vec::new(), Vec::new()],
            holds: Vec::new(),
            conversations: vec![ConversationSettings::new(ops)],
            guests: Vec::new(),
            linger_ns: MS,
        };
        Self { settings: RunSettings { world, safety_ns: 60_000 * MS, settling_ns: 0 } }
    }

    /// Changes the conversation.
    pub(crate) fn conversation(mut self, change: impl FnOnce(&mut ConversationSettings)) -> Self {
        change(&mut self.settings.world.conversations[0]);
        self
    }

    /// Changes both hosts.
    pub(crate) fn hosts(mut self, change: impl Fn(&mut HostSettings)) -> Self {
        self.settings.world.hosts.iter_mut().for_each(change);
        self
    }

    /// Something befalls frames that a host sends.
    pub(crate) fn rule(mut self, host: usize, rule: Rule) -> Self {
        self.settings.world.rules[host].push(rule);
        self
    }

    /// Faults of both directions.
    pub(crate) fn faults(mut self, faults: Faults) -> Self {
        self.settings.world.faults = [faults; 2];
        self
    }

    /// The faults end after so long, and a while later no QP may break any more.
    pub(crate) fn safety_ms(mut self, ms: u64) -> Self {
        self.settings.safety_ns = ms * MS;
        self.settings.settling_ns = 60_000 * MS;
        self
    }

    /// Side 0 has an incident after `after_ops` operations.
    pub(crate) fn incident(self, kind: IncidentKind, after_ops: usize) -> Self {
        self.conversation(|c| c.incident = Some(Incident { kind, side: 0, after_ops }))
    }

    /// Runs it; it must go well.
    #[track_caller]
    pub(crate) fn run(&self, seed: u64) -> Report {
        match run(seed, &self.settings, false, |_| {}) {
            Ok(report) => report,
            Err(failure) => panic!("seed {seed}: {failure}"),
        }
    }

    /// Runs it; a checker must find something. What it says.
    #[track_caller]
    pub(crate) fn run_badly(&self, seed: u64) -> String {
        match run(seed, &self.settings, false, |_| {}) {
            Ok(report) => panic!("seed {seed} went well: {report}"),
            Err(failure) => failure.violation.what,
        }
    }
}

/// A signalled operation.
pub(crate) fn op(kind: OpKind, length: u32) -> Op {
    Op::new(kind, length)
}

/// `count` of them.
pub(crate) fn ops(kind: OpKind, length: u32, count: usize) -> Vec<Op> {
    vec![Op::new(kind, length); count]
}

/// Counters of both hosts that count what only happens when something goes wrong, if they are not 0.
pub(crate) fn troubles(report: &Report) -> Vec<(&'static str, u64)> {
    let mut sum = ShardCounters::default();
    report.shards.iter().for_each(|shard| sum.add(shard));
    let ordinary = [
        "rx_requests",
        "rx_responses",
        "rx_acks",
        // A READ's answer acknowledges what came before it, and may pass the acknowledgement.
        "duplicate_ack",
        "completed_wqes",
        "flushed_wqes",
        "doorbells",
        "turns",
        "idle_turns",
    ];
    sum.entries().filter(|&(name, value)| value > 0 && !ordinary.contains(&name)).collect()
}
