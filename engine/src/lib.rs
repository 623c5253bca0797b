//! The RoCEv2 transport, sans-IO.
//!
//! A [`Shard`] is one lcore's part: QPs, CQs, timers. It sees frames as bytes, time as numbers and applications as rings in
//! shared memory; no device, thread, clock, socket or random source. A [`control::Control`] is the control side: sessions and
//! their objects, one for all shards. The daemon and the simulator run this same code.
//!
//! `qp` holds the transport proper: [`Shard`] finds the QP of a packet, `qp::responder` and `qp::completer` handle it,
//! `qp::requester` makes the packets that go out.
#![forbid(unsafe_code)]

mod ah;
mod cause;
pub mod cc;
pub mod cm;
pub mod command;
pub mod config;
pub mod control;
pub mod counters;
mod cq;
mod events;
pub mod gsi;
mod mcast;
mod mr;
mod neigh;
mod pacer;
mod path;
pub mod post_mortem;
mod qos;
mod qp;
mod ready;
mod shard;
mod slab;
mod srq;
mod time;
mod timer;

pub use cause::ErrorCause;
pub use events::Event;
pub use mcast::MCAST_QPN;
pub use neigh::{Neighbour, is_neighbour_packet};
pub use qos::{Backlog, PauseNotice, PauseTrouble, QosState};
pub use shard::{Shard, is_for_all_shards};
pub use time::Time;

use wire::Qpn;

/// Bits of a QPN that number QPs inside a shard; the bits above name the shard.
const QPN_INDEX_BITS: u32 = 20;
/// Mask of those bits.
pub(crate) const QPN_INDEX_MASK: u32 = (1 << QPN_INDEX_BITS) - 1;
/// QPs that a shard can number.
pub const QPN_INDEX_COUNT: u32 = 1 << QPN_INDEX_BITS;
/// QPNs from 0 that are not handed out: SMI, GSI and room for other well-known ones.
pub const QPN_RESERVED_COUNT: u32 = 16;
/// Shards of an engine at most.
pub const SHARD_COUNT_MAX: u8 = 1 << (24 - QPN_INDEX_BITS);

/// The shard that a QP of this engine lives on.
#[inline]
pub const fn shard_of(qpn: Qpn) -> u8 {
    (qpn.value() >> QPN_INDEX_BITS) as u8
}
