//! What `ferroce stat`, `ferroce qp` and `ferroce res` list.

use serde::{Deserialize, Serialize};

use crate::attr::{AccessFlags, QpAttr, QpState, QpType, RecoveryPolicy};

/// Counters of a daemon: names as in the kernel where one exists there (`docs/counters.md`).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Device name.
    pub device: String,
    /// Milliseconds since the daemon started.
    pub uptime_ms: u64,
    /// Groups in the order of display: ("shard 0", "port 1", ...) with (counter, value) in each.
    pub groups: Vec<(String, Vec<(String, u64)>)>,
}

/// A line of `ferroce qp`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QpSummary {
    /// QPN.
    pub qpn: u32,
    /// Service.
    pub qp_type: QpType,
    /// State.
    pub state: QpState,
    /// Owner's session.
    pub session: u32,
    /// Owner's process.
    pub pid: u32,
    /// lcore.
    pub shard: u8,
    /// The peer's QPN.
    pub dest_qpn: u32,
    /// The peer's address, empty before RTR.
    pub peer: String,
    /// IB code of the path MTU.
    pub path_mtu: u8,
    /// Send work requests not yet completed.
    pub sq_outstanding: u32,
}

/// Everything about one QP.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct QpDetail {
    /// The line.
    pub summary: QpSummary,
    /// Its attributes.
    pub attr: QpAttr,
    /// How it makes up for lost packets.
    pub recovery: RecoveryPolicy,
    /// Name and value of each internal figure: PSNs, MSN, retries, windows, counters.
    pub figures: Vec<(String, u64)>,
    /// Why it broke, if it did.
    pub error: Option<String>,
}

/// A client of the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionSummary {
    /// Session number.
    pub session: u32,
    /// What the client calls itself.
    pub client_name: String,
    /// Process.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// QPs.
    pub qp_count: u32,
    /// CQs.
    pub cq_count: u32,
    /// Regions.
    pub mr_count: u32,
    /// Attached memory, bytes.
    pub memory_bytes: u64,
    /// Memory of rings, bytes.
    pub ring_bytes: u64,
}

/// How the daemon reaches a region's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MrTier {
    /// The daemon maps it too: attached memory.
    Mapped,
    /// By system calls into the client's process.
    Process,
    /// The daemon maps what the client shares with others.
    Shared,
    /// It was private to the client, and has moved into a file that both map.
    Moved,
}

impl MrTier {
    /// Its name in listings and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mapped => "mapped",
            Self::Process => "process",
            Self::Shared => "shared",
            Self::Moved => "moved",
        }
    }
}

/// A line of `ferroce res mr`. Keys are secrets between peers: they are not in it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MrSummary {
    /// Owner's session.
    pub session: u32,
    /// Its number in the session.
    pub number: u32,
    /// Owner's process.
    pub pid: u32,
    /// Protection domain: its handle in the session.
    pub pd: u32,
    /// First address that its users know.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Rights.
    pub access: AccessFlags,
    /// How the daemon reaches it, or the best reached part of it.
    pub tier: MrTier,
    /// Bytes of it that the daemon maps.
    pub mapped_bytes: u64,
}
