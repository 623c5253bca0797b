//! RDMA extended transport header (IBTA 9.3.3): where a WRITE or READ goes.

use crate::Rkey;
use crate::field::{Fields, fixed_length_header};

mod field {
    pub(super) const VA: usize = 0;
    pub(super) const RKEY: usize = 8;
    pub(super) const DMA_LEN: usize = 12;
}

/// RETH: on WRITE First and Only, and on READ requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RethRepr {
    /// Virtual address of the first byte.
    pub va: u64,
    /// Key of the region or window.
    pub rkey: Rkey,
    /// Length of the whole message in bytes, not of this packet.
    pub dma_len: u32,
}

impl RethRepr {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// Decodes the header.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            va: bytes.be64::<{ field::VA }>(),
            rkey: Rkey(bytes.be32::<{ field::RKEY }>()),
            dma_len: bytes.be32::<{ field::DMA_LEN }>(),
        }
    }

    /// Encodes the header.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes.put_be64::<{ field::VA }>(self.va);
        bytes.put_be32::<{ field::RKEY }>(self.rkey.0);
        bytes.put_be32::<{ field::DMA_LEN }>(self.dma_len);
        bytes
    }
}

fixed_length_header!(RethRepr);
