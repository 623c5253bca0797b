//! Datagram extended transport header (IBTA 9.3.2): who sent a datagram.

use crate::field::{Fields, fixed_length_header};
use crate::{Qkey, Qpn};

mod field {
    pub(super) const QKEY: usize = 0;
    // One reserved byte.
    pub(super) const SRC_QPN: usize = 5;
}

/// DETH: on every UD packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DethRepr {
    /// Must be the receiver's Q_Key.
    pub qkey: Qkey,
    /// The sender's queue pair.
    pub src_qpn: Qpn,
}

impl DethRepr {
    /// Length in bytes.
    pub const LEN: usize = 8;

    /// Decodes the header.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self { qkey: Qkey(bytes.be32::<{ field::QKEY }>()), src_qpn: Qpn::new(bytes.be24::<{ field::SRC_QPN }>()) }
    }

    /// Encodes the header.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes.put_be32::<{ field::QKEY }>(self.qkey.0);
        bytes.put_be24::<{ field::SRC_QPN }>(self.src_qpn.value());
        bytes
    }
}

fixed_length_header!(DethRepr);
