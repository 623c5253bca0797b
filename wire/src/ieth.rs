//! Invalidate extended transport header (IBTA 9.3.8).

use crate::Rkey;
use crate::field::fixed_length_header;

/// IETH: on SEND Last and Only with invalidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IethRepr {
    /// The key that the responder invalidates.
    pub rkey: Rkey,
}

impl IethRepr {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Decodes the header.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self { rkey: Rkey(u32::from_be_bytes(*bytes)) }
    }

    /// Encodes the header.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        self.rkey.0.to_be_bytes()
    }
}

fixed_length_header!(IethRepr);
