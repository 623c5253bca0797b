//! The newtypes of the wire: numbers that must not be mixed up, with their arithmetic and their tables.

mod gid;
mod key;
mod mac;
mod mtu;
mod qpn;
mod sequence;
mod syndrome;
mod timer;

pub use gid::Gid;
pub use key::{Lkey, Pkey, Qkey, Rkey};
pub use mac::{MacAddr, ParseMacAddrError};
pub use mtu::PathMtu;
pub use qpn::Qpn;
pub use sequence::{Msn, Psn};
pub use syndrome::{CREDITS_NOT_IN_USE, NakCode, Syndrome, credit_code, credit_count};
pub use timer::{AckTimeout, RnrTimer};
