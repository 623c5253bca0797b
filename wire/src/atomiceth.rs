//! Atomic extended transport header (IBTA 9.3.6): the operands of an atomic.

use crate::Rkey;
use crate::field::{Fields, fixed_length_header};

mod field {
    pub(super) const VA: usize = 0;
    pub(super) const RKEY: usize = 8;
    pub(super) const SWAP_OR_ADD: usize = 12;
    pub(super) const COMPARE: usize = 20;
}

/// AtomicETH: on compare-and-swap and fetch-and-add requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEthRepr {
    /// Virtual address of the eight bytes, which must be a multiple of eight.
    pub va: u64,
    /// Key of the region or window.
    pub rkey: Rkey,
    /// The value to swap in, or to add.
    pub swap_or_add: u64,
    /// The value to compare with; not used by fetch-and-add.
    pub compare: u64,
}

impl AtomicEthRepr {
    /// Length in bytes.
    pub const LEN: usize = 28;

    /// Decodes the header.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            va: bytes.be64::<{ field::VA }>(),
            rkey: Rkey(bytes.be32::<{ field::RKEY }>()),
            swap_or_add: bytes.be64::<{ field::SWAP_OR_ADD }>(),
            compare: bytes.be64::<{ field::COMPARE }>(),
        }
    }

    /// Encodes the header.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes.put_be64::<{ field::VA }>(self.va);
        bytes.put_be32::<{ field::RKEY }>(self.rkey.0);
        bytes.put_be64::<{ field::SWAP_OR_ADD }>(self.swap_or_add);
        bytes.put_be64::<{ field::COMPARE }>(self.compare);
        bytes
    }
}

fixed_length_header!(AtomicEthRepr);
