//! RTU, which ends the handshake (IBTA 12.6.9), and MRA, which asks for time (IBTA 12.6.6).

use super::{AnsweredMessage, CmTimeout, CommId, MESSAGE_BYTES};
use crate::field::Fields;

mod field {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const REMOTE_COMM_ID: usize = 4;
    pub(super) const RTU_PRIVATE_DATA: usize = 8;
    /// Message MRAed 2 bits.
    pub(super) const ANSWERED: usize = 8;
    /// Service timeout 5 bits.
    pub(super) const SERVICE_TIMEOUT: usize = 9;
    pub(super) const MRA_PRIVATE_DATA: usize = 10;
}

/// Ready to use: the answer to a REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtuRepr {
    /// What the sender calls the connection.
    pub local_comm_id: CommId,
    /// What the receiver calls it.
    pub remote_comm_id: CommId,
    /// The application's.
    pub private_data: [u8; Self::PRIVATE_BYTES],
}

impl RtuRepr {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 224;

    /// Decodes the message.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        Self {
            local_comm_id: CommId(bytes.be32::<{ field::LOCAL_COMM_ID }>()),
            remote_comm_id: CommId(bytes.be32::<{ field::REMOTE_COMM_ID }>()),
            private_data: bytes.array::<{ field::RTU_PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(),
        }
    }

    /// Encodes the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes.put_be32::<{ field::LOCAL_COMM_ID }>(self.local_comm_id.0);
        bytes.put_be32::<{ field::REMOTE_COMM_ID }>(self.remote_comm_id.0);
        bytes.put::<{ field::RTU_PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(self.private_data);
        bytes
    }
}

/// Message receipt acknowledgement: the answer will take a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MraRepr {
    /// What the sender calls the connection.
    pub local_comm_id: CommId,
    /// What the receiver calls it.
    pub remote_comm_id: CommId,
    /// Which message is meant: `Other` is a LAP here.
    pub answered: AnsweredMessage,
    /// How long the answer may take from now on.
    pub service_timeout: CmTimeout,
    /// The application's.
    pub private_data: [u8; Self::PRIVATE_BYTES],
}

impl MraRepr {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 222;

    /// Decodes the message.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        Self {
            local_comm_id: CommId(bytes.be32::<{ field::LOCAL_COMM_ID }>()),
            remote_comm_id: CommId(bytes.be32::<{ field::REMOTE_COMM_ID }>()),
            answered: AnsweredMessage::from_bits(bytes.be8::<{ field::ANSWERED }>() >> 6),
            service_timeout: CmTimeout::new(bytes.be8::<{ field::SERVICE_TIMEOUT }>() >> 3),
            private_data: bytes.array::<{ field::MRA_PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(),
        }
    }

    /// Encodes the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes.put_be32::<{ field::LOCAL_COMM_ID }>(self.local_comm_id.0);
        bytes.put_be32::<{ field::REMOTE_COMM_ID }>(self.remote_comm_id.0);
        let timeout = self.service_timeout.exponent() << 3;
        bytes.put::<{ field::ANSWERED }, 2>([(self.answered as u8) << 6, timeout]);
        bytes.put::<{ field::MRA_PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(self.private_data);
        bytes
    }
}
