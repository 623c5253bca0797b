//! Atomic ACK extended transport header (IBTA 9.5.3): the result of an atomic.

use crate::field::fixed_length_header;

/// AtomicAckETH: follows the AETH of an ATOMIC Acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEthRepr {
    /// What the eight bytes held before.
    pub original: u64,
}

impl AtomicAckEthRepr {
    /// Length in bytes.
    pub const LEN: usize = 8;

    /// Decodes the header.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self { original: u64::from_be_bytes(*bytes) }
    }

    /// Encodes the header.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        self.original.to_be_bytes()
    }
}

fixed_length_header!(AtomicAckEthRepr);
