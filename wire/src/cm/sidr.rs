//! SIDR_REQ and SIDR_REP: which QP serves a service id, for UD (IBTA 12.11).

use core::fmt;

use super::{Ari, CommId, MESSAGE_BYTES, ServiceId};
use crate::field::Fields;
use crate::{Pkey, Qkey, Qpn};

mod field {
    pub(super) const REQUEST_ID: usize = 0;
    pub(super) const PKEY: usize = 4;
    // Two reserved bytes.
    pub(super) const REQ_SERVICE_ID: usize = 8;
    pub(super) const REQ_PRIVATE_DATA: usize = 16;

    pub(super) const STATUS: usize = 4;
    pub(super) const INFO_LENGTH: usize = 5;
    // Two reserved bytes.
    pub(super) const QPN: usize = 8;
    // One reserved byte.
    pub(super) const REP_SERVICE_ID: usize = 12;
    pub(super) const QKEY: usize = 20;
    pub(super) const INFO: usize = 24;
    pub(super) const REP_PRIVATE_DATA: usize = 96;
}

/// Service id resolution request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrReqRepr {
    /// What the sender calls the request.
    pub request_id: CommId,
    /// Partition.
    pub pkey: Pkey,
    /// The service.
    pub service_id: ServiceId,
    /// The application's, behind an [`IpCmHeader`](super::IpCmHeader) if the service id has a port.
    pub private_data: [u8; Self::PRIVATE_BYTES],
}

impl SidrReqRepr {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 216;

    /// Decodes the message.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        Self {
            request_id: CommId(bytes.be32::<{ field::REQUEST_ID }>()),
            pkey: Pkey(bytes.be16::<{ field::PKEY }>()),
            service_id: ServiceId(bytes.be64::<{ field::REQ_SERVICE_ID }>()),
            private_data: bytes.array::<{ field::REQ_PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(),
        }
    }

    /// Encodes the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes.put_be32::<{ field::REQUEST_ID }>(self.request_id.0);
        bytes.put_be16::<{ field::PKEY }>(self.pkey.0);
        bytes.put_be64::<{ field::REQ_SERVICE_ID }>(self.service_id.0);
        bytes.put::<{ field::REQ_PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(self.private_data);
        bytes
    }
}

/// Outcome of a service id resolution (IBTA 12.11.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// QPN and Q_Key are those of the service.
    pub const VALID: Self = Self(0);
    /// Nobody serves that id.
    pub const NO_SERVICE: Self = Self(1);
    /// The application refuses.
    pub const REJECTED: Self = Self(2);
    /// No QP available.
    pub const NO_QP: Self = Self(3);
    /// Ask elsewhere.
    pub const REDIRECT: Self = Self(4);
    /// The version of connection management is not supported.
    pub const VERSION: Self = Self(5);

    /// In words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::VALID => "valid",
            Self::NO_SERVICE => "service id not supported",
            Self::REJECTED => "rejected by the application",
            Self::NO_QP => "no QP available",
            Self::REDIRECT => "redirected",
            Self::VERSION => "version not supported",
            Self(_) => "unknown status",
        }
    }
}

impl fmt::Display for SidrStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.text())
    }
}

/// Service id resolution reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRepRepr {
    /// The request's.
    pub request_id: CommId,
    /// The outcome.
    pub status: SidrStatus,
    /// The QP that serves.
    pub qpn: Qpn,
    /// The service.
    pub service_id: ServiceId,
    /// Of that QP.
    pub qkey: Qkey,
    /// With [`SidrStatus::REDIRECT`]: where to ask.
    pub info: Ari,
    /// The application's.
    pub private_data: [u8; Self::PRIVATE_BYTES],
}

impl SidrRepRepr {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 136;

    /// Decodes the message.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        Self {
            request_id: CommId(bytes.be32::<{ field::REQUEST_ID }>()),
            status: SidrStatus(bytes.be8::<{ field::STATUS }>()),
            qpn: Qpn::new(bytes.be24::<{ field::QPN }>()),
            service_id: ServiceId(bytes.be64::<{ field::REP_SERVICE_ID }>()),
            qkey: Qkey(bytes.be32::<{ field::QKEY }>()),
            info: Ari {
                length: bytes.be8::<{ field::INFO_LENGTH }>(),
                bytes: bytes.array::<{ field::INFO }, { Ari::BYTES }>(),
            },
            private_data: bytes.array::<{ field::REP_PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(),
        }
    }

    /// Encodes the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes.put_be32::<{ field::REQUEST_ID }>(self.request_id.0);
        bytes.put::<{ field::STATUS }, 2>([self.status.0, self.info.length]);
        bytes.put_be24::<{ field::QPN }>(self.qpn.value());
        bytes.put_be64::<{ field::REP_SERVICE_ID }>(self.service_id.0);
        bytes.put_be32::<{ field::QKEY }>(self.qkey.0);
        bytes.put::<{ field::INFO }, { Ari::BYTES }>(self.info.bytes);
        bytes.put::<{ field::REP_PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(self.private_data);
        bytes
    }
}
