//! What a QP that broke by itself leaves behind: facts first, and the sentence that an operator reads.

use serde::{Deserialize, Serialize};
use wire::MacAddr;

use crate::attr::{QpAttr, QpState, QpType, WrOpcode};

/// Lines of [`super::Reply::PostMortems`] at most: they fit a message.
pub const PAGE: usize = 64;

/// Everything known about the end of a QP. Kept by the daemon after the QP, and its client, are gone.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PostMortem {
    /// The line in a list.
    pub summary: PostMortemSummary,
    /// State that it broke in.
    pub state: QpState,
    /// Its attributes at that time.
    pub attr: QpAttr,
    /// The peer's, if a connection manager negotiated them.
    pub peer: Option<PeerAttr>,
    /// Sequence numbers.
    pub psns: Psns,
    /// The last NAK that came.
    pub last_nak: Option<LastNak>,
    /// What was repeated since the last progress.
    pub retries: Retries,
    /// Round trip time, if any was measured.
    pub rtt: Option<Rtt>,
    /// When the last packet of the peer came to this QP, ns before it broke.
    pub heard_ago_ns: Option<u64>,
    /// When the last packet of the peer came to another QP of this lcore, ns before this one broke.
    pub others_heard_ago_ns: Option<u64>,
    /// Where its packets went; `None` if it never had a path.
    pub path: Option<PathSeen>,
    /// The work request that failed.
    pub request: Option<FailedRequest>,
    /// The peer's access that was refused.
    pub refused: Option<RefusedAccess>,
    /// Name and value of its counters.
    pub counters: Vec<(String, u64)>,
}

/// A line of `ferroce qp why`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PostMortemSummary {
    /// QPN.
    pub qpn: u32,
    /// Service.
    pub qp_type: QpType,
    /// The peer's QPN.
    pub dest_qpn: u32,
    /// The peer's address, empty before RTR.
    pub peer: String,
    /// Owner's session.
    pub session: u32,
    /// Owner's process.
    pub pid: u32,
    /// Owner's user.
    pub uid: u32,
    /// What the owner called itself.
    pub client_name: String,
    /// How long ago it broke, ms.
    pub age_ms: u64,
    /// The QP was destroyed since.
    pub destroyed: bool,
    /// Number of the cause, as in the completion's `vendor_err` (`docs/errors.md`).
    pub vendor_err: u32,
    /// The cause, with the facts.
    pub sentence: String,
}

/// Sequence numbers of a QP, 24 bits each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Psns {
    /// Oldest that was not acknowledged.
    pub unacknowledged: u32,
    /// Next to send.
    pub next: u32,
    /// After the highest that was ever sent.
    pub sent_end: u32,
    /// Expected from the peer.
    pub expected: u32,
    /// Requests of the peer that were completed.
    pub msn: u32,
}

/// A NAK.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LastNak {
    /// AETH syndrome as on the wire.
    pub syndrome: u8,
    /// What it says.
    pub text: String,
    /// The PSN that it refuses.
    pub psn: u32,
}

/// Repeats since the last progress, by what caused them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Retries {
    /// Acknowledgement timeouts.
    pub timeouts: u8,
    /// Sequence NAKs.
    pub sequence_naks: u8,
    /// Gaps in the answers.
    pub gaps: u8,
    /// RNR NAKs; counts on where `rnr_retry` has no end, up to 255.
    pub rnr_naks: u8,
    /// Times packets were found lost one by one; up to 255.
    pub selective: u8,
    /// From the first transmission that got no answer to the end, ns; 0 if nothing was repeated.
    pub waited_ns: u64,
}

/// Round trip time of request and acknowledgement, on packets that were sent once only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Rtt {
    /// Smoothed as RFC 6298 does, ns.
    pub smoothed_ns: u64,
    /// The least, ns.
    pub min_ns: u64,
    /// The last, ns.
    pub last_ns: u64,
}

/// Headers of a QP's packets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PathSeen {
    /// Our MAC address.
    #[serde(with = "crate::attr::mac_bytes")]
    pub src_mac: MacAddr,
    /// The next hop's; all zeros while it is not known.
    #[serde(with = "crate::attr::mac_bytes")]
    pub dst_mac: MacAddr,
    /// Our address.
    pub src_ip: std::net::IpAddr,
    /// The peer's.
    pub dst_ip: std::net::IpAddr,
    /// The peer is a QP of the same engine: no packet leaves it.
    pub local: bool,
    /// UDP source port.
    pub udp_src_port: u16,
    /// IP ToS / traffic class.
    pub traffic_class: u8,
    /// VLAN id, on a tagged network.
    pub vlan: Option<u16>,
    /// Path MTU, bytes.
    pub path_mtu: u32,
    /// Layer 3 bytes of the interface's largest frame.
    pub interface_mtu: u16,
}

/// A work request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FailedRequest {
    /// Its owner's number.
    pub wr_id: u64,
    /// Operation.
    pub opcode: WrOpcode,
    /// Bytes.
    pub length: u32,
    /// Remote address (WRITE, READ, atomics).
    pub remote_addr: u64,
    /// Remote key, or the key to invalidate.
    pub rkey: u32,
}

/// An access of the peer that was refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RefusedAccess {
    /// What it wanted, such as "WRITE".
    pub operation: String,
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Key.
    pub rkey: u32,
    /// Why, in words.
    pub reason: String,
}

/// What a connection manager learned of the peer's QP from its REQ or REP. IBTA 12.6.5, 12.6.8.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PeerAttr {
    /// QPN.
    pub qpn: u32,
    /// PSN that it starts at.
    pub starting_psn: u32,
    /// IB code of the path MTU that it named; 0 = none.
    pub path_mtu: u8,
    /// READs and atomics that it takes at a time.
    pub responder_resources: u8,
    /// READs and atomics that it sends at a time.
    pub initiator_depth: u8,
    /// Local ACK timeout code that it named.
    pub timeout: u8,
    /// `retry_cnt` that it named.
    pub retry_cnt: u8,
    /// `rnr_retry` that it named.
    pub rnr_retry: u8,
}
