//! Paths as the connection manager describes them, and LAP and APR, which change the alternate one (IBTA 12.8).

use core::fmt;

use super::{CmTimeout, CommId, MESSAGE_BYTES};
use crate::field::Fields;
use crate::{Gid, Qpn};

mod field {
    pub(super) const LOCAL_LID: usize = 0;
    pub(super) const REMOTE_LID: usize = 2;
    pub(super) const LOCAL_GID: usize = 4;
    pub(super) const REMOTE_GID: usize = 20;
    /// Flow label 20 bits, reserved 6, packet rate 6.
    pub(super) const FLOW: usize = 36;
    pub(super) const TRAFFIC_CLASS: usize = 40;
    pub(super) const HOP_LIMIT: usize = 41;
    /// Service level 4 bits, subnet local 1.
    pub(super) const SL: usize = 42;
    /// 5 bits.
    pub(super) const ACK_TIMEOUT: usize = 43;
}

/// A path in a REQ or LAP, from the sender of the message to its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmPath {
    /// The sender's LID; RoCE has none and sends 0xffff.
    pub local_lid: u16,
    /// The receiver's.
    pub remote_lid: u16,
    /// The sender's GID.
    pub local_gid: Gid,
    /// The receiver's.
    pub remote_gid: Gid,
    /// 20 bits.
    pub flow_label: u32,
    /// Code of the static rate, 6 bits; 0 is "as the port".
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits; on RoCE the priority.
    pub sl: u8,
    /// The path stays in the subnet.
    pub subnet_local: bool,
    /// Of the sender's QP, 4.096 us * 2^t, 5 bits; 0 is "never".
    pub ack_timeout: u8,
}

impl CmPath {
    /// Length in bytes.
    pub const LEN: usize = 44;
    /// No path.
    pub const NONE: Self = Self {
        local_lid: 0,
        remote_lid: 0,
        local_gid: Gid::ZERO,
        remote_gid: Gid::ZERO,
        flow_label: 0,
        packet_rate: 0,
        traffic_class: 0,
        hop_limit: 0,
        sl: 0,
        subnet_local: false,
        ack_timeout: 0,
    };

    /// Decodes a path of a REQ.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let flow = bytes.be32::<{ field::FLOW }>();
        let sl = bytes.be8::<{ field::SL }>();
        Self {
            local_lid: bytes.be16::<{ field::LOCAL_LID }>(),
            remote_lid: bytes.be16::<{ field::REMOTE_LID }>(),
            local_gid: Gid(bytes.array::<{ field::LOCAL_GID }, 16>()),
            remote_gid: Gid(bytes.array::<{ field::REMOTE_GID }, 16>()),
            flow_label: flow >> 12,
            packet_rate: flow.to_be_bytes()[3] & 0x3f,
            traffic_class: bytes.be8::<{ field::TRAFFIC_CLASS }>(),
            hop_limit: bytes.be8::<{ field::HOP_LIMIT }>(),
            sl: sl >> 4,
            subnet_local: sl >> 3 & 1 == 1,
            ack_timeout: bytes.be8::<{ field::ACK_TIMEOUT }>() >> 3,
        }
    }

    /// Encodes a path of a REQ.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes.put_be16::<{ field::LOCAL_LID }>(self.local_lid);
        bytes.put_be16::<{ field::REMOTE_LID }>(self.remote_lid);
        bytes.put::<{ field::LOCAL_GID }, 16>(self.local_gid.0);
        bytes.put::<{ field::REMOTE_GID }, 16>(self.remote_gid.0);
        bytes.put_be32::<{ field::FLOW }>(self.flow_label << 12 | u32::from(self.packet_rate & 0x3f));
        bytes.put::<{ field::TRAFFIC_CLASS }, 2>([self.traffic_class, self.hop_limit]);
        bytes.put::<{ field::SL }, 2>([self.sl_byte(), self.ack_timeout << 3]);
        bytes
    }

    const fn sl_byte(self) -> u8 {
        self.sl << 4 | (self.subnet_local as u8) << 3
    }
}

/// Where a LAP has the fields; its path is laid out otherwise than a REQ's.
mod lap {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const REMOTE_COMM_ID: usize = 4;
    // Four reserved bytes.
    pub(super) const REMOTE_QPN: usize = 12;
    /// 5 bits.
    pub(super) const REMOTE_TIMEOUT: usize = 15;
    // Four reserved bytes.
    pub(super) const LOCAL_LID: usize = 20;
    pub(super) const REMOTE_LID: usize = 22;
    pub(super) const LOCAL_GID: usize = 24;
    pub(super) const REMOTE_GID: usize = 40;
    /// Flow label 20 bits, reserved 4, traffic class 8.
    pub(super) const FLOW: usize = 56;
    pub(super) const HOP_LIMIT: usize = 60;
    /// Reserved 2 bits, packet rate 6.
    pub(super) const PACKET_RATE: usize = 61;
    /// Service level 4 bits, subnet local 1.
    pub(super) const SL: usize = 62;
    /// 5 bits.
    pub(super) const ACK_TIMEOUT: usize = 63;
    pub(super) const PRIVATE_DATA: usize = 64;
}

/// Load alternate path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LapRepr {
    /// What the sender calls the connection.
    pub local_comm_id: CommId,
    /// What the receiver calls it.
    pub remote_comm_id: CommId,
    /// The receiver's QP.
    pub remote_qpn: Qpn,
    /// How long the receiver may take to answer.
    pub remote_timeout: CmTimeout,
    /// The new alternate path.
    pub alternate: CmPath,
    /// The application's.
    pub private_data: [u8; Self::PRIVATE_BYTES],
}

impl LapRepr {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 168;

    /// Decodes the message.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        let flow = bytes.be32::<{ lap::FLOW }>();
        let sl = bytes.be8::<{ lap::SL }>();
        Self {
            local_comm_id: CommId(bytes.be32::<{ lap::LOCAL_COMM_ID }>()),
            remote_comm_id: CommId(bytes.be32::<{ lap::REMOTE_COMM_ID }>()),
            remote_qpn: Qpn::new(bytes.be24::<{ lap::REMOTE_QPN }>()),
            remote_timeout: CmTimeout::new(bytes.be8::<{ lap::REMOTE_TIMEOUT }>() >> 3),
            alternate: CmPath {
                local_lid: bytes.be16::<{ lap::LOCAL_LID }>(),
                remote_lid: bytes.be16::<{ lap::REMOTE_LID }>(),
                local_gid: Gid(bytes.array::<{ lap::LOCAL_GID }, 16>()),
                remote_gid: Gid(bytes.array::<{ lap::REMOTE_GID }, 16>()),
                flow_label: flow >> 12,
                packet_rate: bytes.be8::<{ lap::PACKET_RATE }>() & 0x3f,
                traffic_class: flow.to_be_bytes()[3],
                hop_limit: bytes.be8::<{ lap::HOP_LIMIT }>(),
                sl: sl >> 4,
                subnet_local: sl >> 3 & 1 == 1,
                ack_timeout: bytes.be8::<{ lap::ACK_TIMEOUT }>() >> 3,
            },
            private_data: bytes.array::<{ lap::PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(),
        }
    }

    /// Encodes the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        let path = self.alternate;
        bytes.put_be32::<{ lap::LOCAL_COMM_ID }>(self.local_comm_id.0);
        bytes.put_be32::<{ lap::REMOTE_COMM_ID }>(self.remote_comm_id.0);
        bytes.put_be24::<{ lap::REMOTE_QPN }>(self.remote_qpn.value());
        bytes.put::<{ lap::REMOTE_TIMEOUT }, 1>([self.remote_timeout.exponent() << 3]);
        bytes.put_be16::<{ lap::LOCAL_LID }>(path.local_lid);
        bytes.put_be16::<{ lap::REMOTE_LID }>(path.remote_lid);
        bytes.put::<{ lap::LOCAL_GID }, 16>(path.local_gid.0);
        bytes.put::<{ lap::REMOTE_GID }, 16>(path.remote_gid.0);
        bytes.put_be32::<{ lap::FLOW }>(path.flow_label << 12 | u32::from(path.traffic_class));
        let tail = [path.hop_limit, path.packet_rate & 0x3f, path.sl_byte(), path.ack_timeout << 3];
        bytes.put::<{ lap::HOP_LIMIT }, 4>(tail);
        bytes.put::<{ lap::PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(self.private_data);
        bytes
    }
}

mod apr {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const REMOTE_COMM_ID: usize = 4;
    pub(super) const INFO_LENGTH: usize = 8;
    pub(super) const STATUS: usize = 9;
    // Two reserved bytes.
    pub(super) const INFO: usize = 12;
    pub(super) const PRIVATE_DATA: usize = 84;
}

/// What became of a LAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ApStatus(pub u8);

impl ApStatus {
    /// The path is loaded.
    pub const LOADED: Self = Self(0);
    /// No such connection.
    pub const INVALID_COMM_ID: Self = Self(1);
    /// The receiver has no path migration.
    pub const NOT_SUPPORTED: Self = Self(2);
    /// It does not want this path.
    pub const REJECTED: Self = Self(3);
}

/// Alternate path response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AprRepr {
    /// What the sender calls the connection.
    pub local_comm_id: CommId,
    /// What the receiver calls it.
    pub remote_comm_id: CommId,
    /// Bytes of `info` that mean something.
    pub info_length: u8,
    /// The outcome.
    pub status: ApStatus,
    /// More about it.
    pub info: [u8; 72],
    /// The application's.
    pub private_data: [u8; Self::PRIVATE_BYTES],
}

impl AprRepr {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 148;

    /// Decodes the message.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        Self {
            local_comm_id: CommId(bytes.be32::<{ apr::LOCAL_COMM_ID }>()),
            remote_comm_id: CommId(bytes.be32::<{ apr::REMOTE_COMM_ID }>()),
            info_length: bytes.be8::<{ apr::INFO_LENGTH }>(),
            status: ApStatus(bytes.be8::<{ apr::STATUS }>()),
            info: bytes.array::<{ apr::INFO }, 72>(),
            private_data: bytes.array::<{ apr::PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(),
        }
    }

    /// Encodes the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes.put_be32::<{ apr::LOCAL_COMM_ID }>(self.local_comm_id.0);
        bytes.put_be32::<{ apr::REMOTE_COMM_ID }>(self.remote_comm_id.0);
        bytes.put::<{ apr::INFO_LENGTH }, 2>([self.info_length, self.status.0]);
        bytes.put::<{ apr::INFO }, 72>(self.info);
        bytes.put::<{ apr::PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(self.private_data);
        bytes
    }
}

impl fmt::Display for ApStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::LOADED => "loaded",
            Self::INVALID_COMM_ID => "invalid communication id",
            Self::NOT_SUPPORTED => "not supported",
            Self::REJECTED => "rejected",
            Self(_) => "refused",
        };
        write!(f, "{} ({name})", self.0)
    }
}
