//! Connection management: the datagrams on QP1 that make and end connections (IBTA 12.6, 12.11).
//!
//! A MAD is 256 bytes: a [`MadHeader`] of 24 and a [`CmMessage`] of 232. What a message carries for the application is its
//! private data, always of full length and filled up with zeros. Reserved bits are ignored when read and 0 when written.

mod disconnect;
mod ece;
mod establish;
mod mad;
mod message;
mod path;
mod reject;
mod rep;
mod req;
mod service;
mod sidr;

pub use disconnect::{DrepRepr, DreqRepr};
pub use ece::Ece;
pub use establish::{MraRepr, RtuRepr};
pub use mad::{AttributeId, MadError, MadHeader, TransactionId};
pub use message::CmMessage;
pub use path::{ApStatus, AprRepr, CmPath, LapRepr};
pub use reject::{AnsweredMessage, Ari, RejReason, RejRepr};
pub use rep::{FailoverStatus, RepRepr};
pub use req::{CmTransport, ReqRepr};
pub use service::{IpCmHeader, IpCmHeaderError, PortSpace, ServiceId};
pub use sidr::{SidrRepRepr, SidrReqRepr, SidrStatus};

use core::fmt;

/// Bytes of a MAD.
pub const MAD_BYTES: usize = 256;
/// Bytes of a message: a MAD without its header.
pub const MESSAGE_BYTES: usize = MAD_BYTES - MadHeader::LEN;

/// Communication id: what one side calls a connection. 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommId(pub u32);

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// GUID of a channel adapter, an EUI-64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CaGuid(pub u64);

impl fmt::Display for CaGuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// Exponent of a time of 4.096 us * 2^t, 5 bits: what the connection manager counts its own timeouts in (IBTA 12.6.5).
/// Unlike [`AckTimeout`](crate::AckTimeout), 0 is 4.096 us and not "never".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CmTimeout(u8);

impl CmTimeout {
    /// The time with this exponent, of which 5 bits count.
    #[must_use]
    pub const fn new(exponent: u8) -> Self {
        Self(exponent & 0x1f)
    }

    /// The exponent, 0 to 31.
    #[must_use]
    pub const fn exponent(self) -> u8 {
        self.0
    }

    /// In nanoseconds.
    #[must_use]
    pub const fn duration_ns(self) -> u64 {
        4096 << self.0
    }
}

#[cfg(test)]
mod tests;
