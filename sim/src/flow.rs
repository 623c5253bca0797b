//! Flows: what a workload asks for, and what the network tells of them. The seam between `network`, which carries flows, the
//! workloads, which make them up, and the statistics, which look on.

use engine::Time;
use serde::{Deserialize, Serialize};

/// The operation that moves a flow's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowOp {
    /// RDMA WRITE, posted by the source.
    #[default]
    Write,
    /// RDMA READ, posted by the destination.
    Read,
    /// SEND, posted by the source.
    Send,
}

impl FlowOp {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Write, Self::Read, Self::Send];

    /// Its name in scenario files and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
        }
    }
}

/// Bytes that are to go from one host's memory to another's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// Its number: no two flows of a run have the same.
    pub id: u32,
    /// The host that has the bytes.
    pub src: u16,
    /// The host that gets them. Never `src`.
    pub dst: u16,
    /// How many; 1 at least.
    pub bytes: u64,
    /// By which operation.
    pub op: FlowOp,
    /// When it is to start, on the clock of the run. Its completion time counts from here.
    pub start: Time,
}

/// Where flows come from: open loops know all of their starts, closed ones start a flow when another has finished.
pub trait FlowSource {
    /// When the next flow starts, as far as it is known now; `None` if none does before some flow has finished, or ever.
    fn next_start(&self) -> Option<Time>;

    /// Takes out the next flow that starts at `now` or before.
    fn take(&mut self, now: Time) -> Option<Flow>;

    /// A flow that was taken is over.
    fn finished(&mut self, id: u32, now: Time);

    /// True if no flow will ever come any more, whatever finishes.
    fn is_exhausted(&self) -> bool;
}

/// The fill of one egress queue of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueSample {
    /// Number of the switch.
    pub switch: u16,
    /// Its port.
    pub port: u16,
    /// The priority.
    pub priority: u8,
    /// Bytes that wait.
    pub bytes: u64,
    /// The priority is held back by a pause of the peer's.
    pub is_paused: bool,
}

/// What all hosts, links and switches have counted since the start of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct NetworkTotals {
    /// Frames put on links, by hosts and switches.
    pub frames: u64,
    /// RoCE packets that hosts sent.
    pub packets: u64,
    /// Those of them that were sent again.
    pub retransmitted: u64,
    /// Packets that switches marked (ECN CE).
    pub marked: u64,
    /// Congestion notifications that hosts sent.
    pub cnps: u64,
    /// Pause frames (XOFF) that switches and hosts sent.
    pub pauses: u64,
    /// Time that transmitters were paused, all of them together, ns.
    pub paused_ns: u64,
    /// Frames that switches and hosts dropped, for want of room above all.
    pub dropped: u64,
    /// Frames that links lost.
    pub lost: u64,
}

/// Somebody who looks on while a network runs.
pub trait Observer {
    /// A flow's first work request is posted.
    fn flow_started(&mut self, now: Time, flow: &Flow);

    /// So many more bytes of a flow have been completed.
    fn flow_progressed(&mut self, now: Time, id: u32, bytes: u64);

    /// All bytes of a flow have been completed (true), or its connection broke.
    fn flow_finished(&mut self, now: Time, flow: &Flow, is_complete: bool);

    /// The state at a sampling instant: queues that are not empty or are paused, and the totals so far.
    fn sampled(&mut self, now: Time, queues: &[QueueSample], totals: &NetworkTotals);
}
