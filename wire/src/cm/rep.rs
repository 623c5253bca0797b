//! REP: the answer that accepts a REQ (IBTA 12.6.8).

use super::{CaGuid, CommId, Ece, MESSAGE_BYTES};
use crate::field::Fields;
use crate::{Psn, Qkey, Qpn};

mod field {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const REMOTE_COMM_ID: usize = 4;
    pub(super) const QKEY: usize = 8;
    pub(super) const QPN: usize = 12;
    /// The three bytes of the vendor id lie apart.
    pub(super) const VENDOR_ID_HIGH: usize = 15;
    pub(super) const EECN: usize = 16;
    pub(super) const VENDOR_ID_MIDDLE: usize = 19;
    pub(super) const STARTING_PSN: usize = 20;
    pub(super) const VENDOR_ID_LOW: usize = 23;
    pub(super) const RESPONDER_RESOURCES: usize = 24;
    pub(super) const INITIATOR_DEPTH: usize = 25;
    /// Target ACK delay 5 bits, failover accepted 2, end-to-end flow control 1.
    pub(super) const ACK_DELAY: usize = 26;
    /// RNR retry count 3 bits, SRQ 1.
    pub(super) const RNR_RETRY: usize = 27;
    pub(super) const CA_GUID: usize = 28;
    pub(super) const PRIVATE_DATA: usize = 36;
}

/// What became of the REQ's alternate path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FailoverStatus {
    /// Loaded, or there was none.
    Accepted = 0,
    /// The sender has no path migration.
    NotSupported = 1,
    /// It has, but not to that path.
    Rejected = 2,
    /// A value without a meaning.
    Reserved = 3,
}

/// The answer that accepts a REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepRepr {
    /// What the sender calls the connection.
    pub local_comm_id: CommId,
    /// The REQ's [`local_comm_id`](super::ReqRepr::local_comm_id).
    pub remote_comm_id: CommId,
    /// What it can do, of what the REQ offers, beyond the specification.
    pub ece: Ece,
    /// Of RD only.
    pub qkey: Qkey,
    /// The sender's QP.
    pub qpn: Qpn,
    /// Of RD only, 24 bits.
    pub eecn: u32,
    /// PSN of the first packet that the receiver will send.
    pub starting_psn: Psn,
    /// READs and atomics that the sender answers at a time.
    pub responder_resources: u8,
    /// READs and atomics that it will have outstanding.
    pub initiator_depth: u8,
    /// How long its QP takes to acknowledge, 4.096 us * 2^t, 5 bits.
    pub target_ack_delay: u8,
    /// Of the alternate path.
    pub failover: FailoverStatus,
    /// The sender's receive queue sends credits.
    pub flow_control: bool,
    /// For the receiver's QP, 3 bits.
    pub rnr_retry_count: u8,
    /// The sender's QP takes its receives from an SRQ.
    pub srq: bool,
    /// The sender's channel adapter.
    pub ca_guid: CaGuid,
    /// The application's.
    pub private_data: [u8; Self::PRIVATE_BYTES],
}

impl RepRepr {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 196;

    /// The message with the options of its header.
    pub(super) const fn with_options(mut self, options: u32) -> Self {
        self.ece.options = options;
        self
    }

    /// Decodes the message.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        let ack_delay = bytes.be8::<{ field::ACK_DELAY }>();
        let rnr_retry = bytes.be8::<{ field::RNR_RETRY }>();
        Self {
            local_comm_id: CommId(bytes.be32::<{ field::LOCAL_COMM_ID }>()),
            remote_comm_id: CommId(bytes.be32::<{ field::REMOTE_COMM_ID }>()),
            ece: Ece {
                vendor_id: u32::from_be_bytes([
                    0,
                    bytes.be8::<{ field::VENDOR_ID_HIGH }>(),
                    bytes.be8::<{ field::VENDOR_ID_MIDDLE }>(),
                    bytes.be8::<{ field::VENDOR_ID_LOW }>(),
                ]),
                options: 0,
            },
            qkey: Qkey(bytes.be32::<{ field::QKEY }>()),
            qpn: Qpn::new(bytes.be24::<{ field::QPN }>()),
            eecn: bytes.be24::<{ field::EECN }>(),
            starting_psn: Psn::new(bytes.be24::<{ field::STARTING_PSN }>()),
            responder_resources: bytes.be8::<{ field::RESPONDER_RESOURCES }>(),
            initiator_depth: bytes.be8::<{ field::INITIATOR_DEPTH }>(),
            target_ack_delay: ack_delay >> 3,
            failover: match ack_delay >> 1 & 3 {
                0 => FailoverStatus::Accepted,
                1 => FailoverStatus::NotSupported,
                2 => FailoverStatus::Rejected,
                _ => FailoverStatus::Reserved,
            },
            flow_control: ack_delay & 1 == 1,
            rnr_retry_count: rnr_retry >> 5,
            srq: rnr_retry >> 4 & 1 == 1,
            ca_guid: CaGuid(bytes.be64::<{ field::CA_GUID }>()),
            private_data: bytes.array::<{ field::PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(),
        }
    }

    /// Encodes the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        let ack_delay = self.target_ack_delay << 3 | (self.failover as u8) << 1 | u8::from(self.flow_control);
        let rnr_retry = self.rnr_retry_count << 5 | u8::from(self.srq) << 4;
        bytes.put_be32::<{ field::LOCAL_COMM_ID }>(self.local_comm_id.0);
        bytes.put_be32::<{ field::REMOTE_COMM_ID }>(self.remote_comm_id.0);
        let [_, high, middle, low] = self.ece.vendor_id.to_be_bytes();
        bytes.put::<{ field::VENDOR_ID_HIGH }, 1>([high]);
        bytes.put::<{ field::VENDOR_ID_MIDDLE }, 1>([middle]);
        bytes.put::<{ field::VENDOR_ID_LOW }, 1>([low]);
        bytes.put_be32::<{ field::QKEY }>(self.qkey.0);
        bytes.put_be24::<{ field::QPN }>(self.qpn.value());
        bytes.put_be24::<{ field::EECN }>(self.eecn);
        bytes.put_be24::<{ field::STARTING_PSN }>(self.starting_psn.value());
        let depths = [self.responder_resources, self.initiator_depth, ack_delay, rnr_retry];
        bytes.put::<{ field::RESPONDER_RESOURCES }, 4>(depths);
        bytes.put_be64::<{ field::CA_GUID }>(self.ca_guid.0);
        bytes.put::<{ field::PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(self.private_data);
        bytes
    }
}
