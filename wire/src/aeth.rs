//! ACK extended transport header (IBTA 9.3.5): what became of a request.

use crate::field::{Fields, fixed_length_header};
use crate::{Msn, Syndrome};

mod field {
    pub(super) const SYNDROME: usize = 0;
    pub(super) const MSN: usize = 1;
}

/// AETH: on acknowledgements, and on READ responses except Middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AethRepr {
    /// ACK, RNR NAK or NAK.
    pub syndrome: Syndrome,
    /// Requests that the responder has completed.
    pub msn: Msn,
}

impl AethRepr {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Decodes the header.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            syndrome: Syndrome::from_byte(bytes.be8::<{ field::SYNDROME }>()),
            msn: Msn::new(bytes.be24::<{ field::MSN }>()),
        }
    }

    /// Encodes the header.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes.put::<{ field::SYNDROME }, 1>([self.syndrome.to_byte()]);
        bytes.put_be24::<{ field::MSN }>(self.msn.value());
        bytes
    }
}

fixed_length_header!(AethRepr);
