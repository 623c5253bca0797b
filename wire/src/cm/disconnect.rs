//! DREQ and DREP, which end a connection (IBTA 12.6.10, 12.6.11).

use super::{CommId, MESSAGE_BYTES};
use crate::Qpn;
use crate::field::Fields;

mod field {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const REMOTE_COMM_ID: usize = 4;
    pub(super) const REMOTE_QPN: usize = 8;
    // One reserved byte.
    pub(super) const DREQ_PRIVATE_DATA: usize = 12;
    pub(super) const DREP_PRIVATE_DATA: usize = 8;
}

/// Request for disconnection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DreqRepr {
    /// What the sender calls the connection.
    pub local_comm_id: CommId,
    /// What the receiver calls it.
    pub remote_comm_id: CommId,
    /// The receiver's QP.
    pub remote_qpn: Qpn,
    /// The application's.
    pub private_data: [u8; Self::PRIVATE_BYTES],
}

impl DreqRepr {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 220;

    /// Decodes the message.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        Self {
            local_comm_id: CommId(bytes.be32::<{ field::LOCAL_COMM_ID }>()),
            remote_comm_id: CommId(bytes.be32::<{ field::REMOTE_COMM_ID }>()),
            remote_qpn: Qpn::new(bytes.be24::<{ field::REMOTE_QPN }>()),
            private_data: bytes.array::<{ field::DREQ_PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(),
        }
    }

    /// Encodes the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes.put_be32::<{ field::LOCAL_COMM_ID }>(self.local_comm_id.0);
        bytes.put_be32::<{ field::REMOTE_COMM_ID }>(self.remote_comm_id.0);
        bytes.put_be24::<{ field::REMOTE_QPN }>(self.remote_qpn.value());
        bytes.put::<{ field::DREQ_PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(self.private_data);
        bytes
    }
}

/// Reply to a request for disconnection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrepRepr {
    /// What the sender calls the connection.
    pub local_comm_id: CommId,
    /// What the receiver calls it.
    pub remote_comm_id: CommId,
    /// The application's.
    pub private_data: [u8; Self::PRIVATE_BYTES],
}

impl DrepRepr {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 224;

    /// Decodes the message.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        Self {
            local_comm_id: CommId(bytes.be32::<{ field::LOCAL_COMM_ID }>()),
            remote_comm_id: CommId(bytes.be32::<{ field::REMOTE_COMM_ID }>()),
            private_data: bytes.array::<{ field::DREP_PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(),
        }
    }

    /// Encodes the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes.put_be32::<{ field::LOCAL_COMM_ID }>(self.local_comm_id.0);
        bytes.put_be32::<{ field::REMOTE_COMM_ID }>(self.remote_comm_id.0);
        bytes.put::<{ field::DREP_PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(self.private_data);
        bytes
    }
}
