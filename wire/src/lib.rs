//! The RoCEv2 wire: newtypes, headers, opcodes, the ICRC, and the two data-path forms of a packet.
//!
//! * A received frame is a [`Frame`]: one structural check, then accessors.
//! * A frame to send is a [`PathTemplate`] and a [`Bth`]: see [`PathTemplate::write_packet`].
//! * Each header has a module of its own with a `Repr`: the decoded value, which parses and emits itself.
//! * [`TxBatch`] is how the engine hands frames to a device.
//!
//! # Panic contract
//!
//! Nothing here panics on any input. A parse returns `None` or an error, an emit into a buffer that is too short returns
//! `None`, and accessors of a [`Frame`] cannot fail, because the parse has checked every length they rely on.
//!
//! # Features
//!
//! `std` (default) lets the ICRC find the processor's carry-less multiplication at run time; `alloc` (implied) has
//! [`VecBatch`]. Without either the crate needs only `core`.

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[cfg(any(test, feature = "alloc"))]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod aeth;
pub mod arp;
pub mod atomicacketh;
pub mod atomiceth;
pub mod bth;
pub mod buf;
pub mod cm;
pub mod deth;
pub mod ethernet;
mod field;
pub mod frame;
mod frame_error;
pub mod grh;
pub mod icrc;
pub mod ieth;
pub mod immdt;
pub mod ipv4;
pub mod ipv6;
pub mod multicast;
pub mod ndp;
pub mod opcode;
pub mod pfc;
pub mod reth;
pub mod sacketh;
mod summary;
pub mod template;
pub mod types;
pub mod udp;
pub mod vlan;
pub mod xrceth;

pub use aeth::AethRepr;
pub use arp::{ArpOperation, ArpRepr};
pub use atomicacketh::AtomicAckEthRepr;
pub use atomiceth::AtomicEthRepr;
pub use bth::Bth;
#[cfg(any(test, feature = "alloc"))]
pub use buf::VecBatch;
pub use buf::{Dest, TxBatch};
pub use deth::DethRepr;
pub use ethernet::{EtherType, EthernetRepr};
pub use frame::{Frame, Network, dest_qpn};
pub use frame_error::FrameError;
pub use grh::GrhRepr;
pub use ieth::IethRepr;
pub use immdt::ImmDtRepr;
pub use ipv4::Ipv4Repr;
pub use ipv6::Ipv6Repr;
pub use ndp::{NdpMessage, NdpRepr};
pub use opcode::{ExtHeaders, OpKind, Opcode, OpcodeInfo, Position, ServiceType};
pub use pfc::PfcRepr;
pub use reth::RethRepr;
pub use sacketh::SackEthRepr;
pub use template::{PathFields, PathTemplate};
pub use types::{
    AckTimeout, CREDITS_NOT_IN_USE, Gid, Lkey, MacAddr, Msn, NakCode, ParseMacAddrError, PathMtu, Pkey, Psn, Qkey, Qpn,
    Rkey, RnrTimer, Syndrome, credit_code, credit_count,
};
pub use udp::{ROCE_PORT, UdpRepr, flow_label_from_qpns, source_port_for_flow_label, source_port_for_qpn};
pub use vlan::{VlanRepr, VlanTag};
pub use xrceth::XrcEthRepr;
