//! Immediate data (IBTA 9.3.7).

use crate::field::fixed_length_header;

/// ImmDt: on packets that end a message with immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmDtRepr {
    /// The number that the four big-endian bytes are; the verbs' `imm_data` is those bytes themselves (`__be32`).
    pub data: u32,
}

impl ImmDtRepr {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Decodes the header.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self { data: u32::from_be_bytes(*bytes) }
    }

    /// Encodes the header.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        self.data.to_be_bytes()
    }
}

fixed_length_header!(ImmDtRepr);
