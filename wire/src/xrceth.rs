//! XRC extended transport header (IBTA A14): the SRQ that takes an XRC request.

use crate::field::{Fields, fixed_length_header};

mod field {
    // One reserved byte.
    pub(super) const SRQN: usize = 1;
}

/// XRCETH: on every XRC request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcEthRepr {
    /// Number of the shared receive queue, 24 bits.
    pub srqn: u32,
}

impl XrcEthRepr {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Decodes the header.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self { srqn: bytes.be24::<{ field::SRQN }>() }
    }

    /// Encodes the header; bits of `srqn` above 23 are cut.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes.put_be24::<{ field::SRQN }>(self.srqn);
        bytes
    }
}

fixed_length_header!(XrcEthRepr);
