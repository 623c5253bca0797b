//! Workloads as a scenario file writes them: `[[workload]]` tables. Unknown keys are refused.

use serde::Deserialize;

use super::sizes::Sizes;
use crate::flow::FlowOp;

/// One `[[workload]]`; `kind` says which.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum WorkloadSettings {
    /// Flows that are written down one by one.
    Flows(FlowsSettings),
    /// Many hosts send to one at the same time, again and again.
    Incast(IncastSettings),
    /// Every host sends to every other at the same time, again and again.
    AllToAll(AllToAllSettings),
    /// A ring all-reduce: each step of a host waits for the step before of its neighbour.
    RingAllReduce(RingAllReduceSettings),
    /// Flows between random hosts arrive by chance at a mean load, whether or not others are done (open loop).
    Poisson(PoissonSettings),
    /// Each host keeps a number of flows to random hosts going (closed loop).
    ClosedLoop(ClosedLoopSettings),
}

/// `kind = "flows"`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowsSettings {
    /// The flows, in any order.
    pub flows: Vec<FlowSettings>,
    /// Which operation moves the bytes.
    #[serde(default)]
    pub op: FlowOp,
}

/// One written-down flow.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowSettings {
    /// Host that has the bytes.
    pub from: u16,
    /// Host that gets them.
    pub to: u16,
    /// How many.
    pub bytes: u64,
    /// When it begins, us.
    #[serde(default)]
    pub start_us: u64,
}

/// When rounds of flows begin: the key `rounds`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoundsSettings {
    /// How many, 1 to 1,000,000.
    pub count: u32,
    /// When the first begins, us.
    pub start_us: u64,
    /// From the end of a round to the begin of the next, us: rounds never overlap. 0 if neither this nor `period_us` is there.
    pub gap_us: Option<u64>,
    /// From the begin of a round to the begin of the next, us, whether or not it is done.
    pub period_us: Option<u64>,
}

impl Default for RoundsSettings {
    fn default() -> Self {
        Self { count: 1, start_us: 0, gap_us: None, period_us: None }
    }
}

/// `kind = "incast"`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IncastSettings {
    /// Host that gets the bytes.
    pub to: u16,
    /// Hosts that send; absent: all others.
    pub from: Option<Vec<u16>>,
    /// Size of each flow.
    pub bytes: u64,
    /// When and how often.
    #[serde(default)]
    pub rounds: RoundsSettings,
    /// Which operation moves the bytes.
    #[serde(default)]
    pub op: FlowOp,
}

/// `kind = "all-to-all"`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllToAllSettings {
    /// Hosts that take part; absent: all.
    pub hosts: Option<Vec<u16>>,
    /// Size of each flow.
    pub bytes: u64,
    /// When and how often.
    #[serde(default)]
    pub rounds: RoundsSettings,
    /// Which operation moves the bytes.
    #[serde(default)]
    pub op: FlowOp,
}

/// `kind = "ring-all-reduce"`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RingAllReduceSettings {
    /// Hosts in the order of the ring; absent: all.
    pub hosts: Option<Vec<u16>>,
    /// Size of the vector that is reduced: each of N hosts sends a part of 1/N in each of 2(N-1) steps.
    pub bytes: u64,
    /// When and how often. A `period_us` has no meaning here: every reduction needs the one before it.
    #[serde(default)]
    pub rounds: RoundsSettings,
    /// Which operation moves the bytes.
    #[serde(default)]
    pub op: FlowOp,
}

/// `kind = "poisson"`. At least one of `count` and `duration_us` says when it ends.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoissonSettings {
    /// Hosts that take part; absent: all.
    pub hosts: Option<Vec<u16>>,
    /// Bytes of flows that arrive, percent of what the links of the hosts carry: above 0, up to 200. Headers come on top.
    pub load_percent: f64,
    /// Sizes of the flows.
    pub sizes: Sizes,
    /// When the first may arrive, us.
    #[serde(default)]
    pub start_us: u64,
    /// How many arrive.
    pub count: Option<u32>,
    /// How long they arrive, us.
    pub duration_us: Option<u64>,
    /// Which operation moves the bytes.
    #[serde(default)]
    pub op: FlowOp,
}

/// `kind = "closed-loop"`. At least one of `count` and `duration_us` says when it ends.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClosedLoopSettings {
    /// Hosts that take part; absent: all.
    pub hosts: Option<Vec<u16>>,
    /// Sizes of the flows.
    pub sizes: Sizes,
    /// Flows that each host keeps going, 1 to 1024.
    pub outstanding: u16,
    /// From the end of a flow to the begin of the next, us.
    #[serde(default)]
    pub think_us: u64,
    /// When the first begin, us.
    #[serde(default)]
    pub start_us: u64,
    /// How many begin in all.
    pub count: Option<u32>,
    /// How long new ones begin, us.
    pub duration_us: Option<u64>,
    /// Which operation moves the bytes.
    #[serde(default)]
    pub op: FlowOp,
}

impl WorkloadSettings {
    /// Which operation moves the bytes of its flows.
    pub fn op(&self) -> FlowOp {
        match self {
            Self::Flows(it) => it.op,
            Self::Incast(it) => it.op,
            Self::AllToAll(it) => it.op,
            Self::RingAllReduce(it) => it.op,
            Self::Poisson(it) => it.op,
            Self::ClosedLoop(it) => it.op,
        }
    }

    /// The `kind`, as a scenario writes it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Flows(_) => "flows",
            Self::Incast(_) => "incast",
            Self::AllToAll(_) => "all-to-all",
            Self::RingAllReduce(_) => "ring-all-reduce",
            Self::Poisson(_) => "poisson",
            Self::ClosedLoop(_) => "closed-loop",
        }
    }
}
