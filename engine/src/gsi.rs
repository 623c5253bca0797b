//! Management datagrams of the general services interface (QP1): what shards and the control side hand to each other.
//!
//! A shard takes a MAD off the wire and puts one on it; what it says is the control side's matter (`engine::cm`), which may
//! allocate and take its time without holding a lcore up. IBTA 13.5.

use shm::attr::AhAttr;
use wire::{Gid, Qpn};

/// Bytes of a MAD.
pub const MAD_BYTES: usize = 256;

/// Q_Key of QP1 (IBTA 10.2.5).
pub const GSI_QKEY: u32 = 0x8001_0000;

/// MADs that a shard holds for the control side, and takes from it; more are dropped and counted: their senders repeat.
pub const MAD_QUEUE: usize = 256;

/// A MAD from the wire: its ICRC, Q_Key and P_Key were right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IncomingMad {
    /// Port it came in on, from 0.
    pub port: u8,
    /// Index of the GID that it was sent to.
    pub sgid_index: u8,
    /// The sender's GID.
    pub src_gid: Gid,
    /// The sender's QP: 1.
    pub src_qpn: Qpn,
    /// Its traffic class.
    pub traffic_class: u8,
    /// Its 802.1p priority.
    pub sl: u8,
    /// The MAD.
    pub bytes: [u8; MAD_BYTES],
}

/// A MAD to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutgoingMad {
    /// Where to, and on which port.
    pub ah: AhAttr,
    /// The MAD.
    pub bytes: [u8; MAD_BYTES],
}
