//! REQ: a request for communication (IBTA 12.6.5).

use super::path::CmPath;
use super::{CaGuid, CmTimeout, CommId, Ece, MESSAGE_BYTES, ServiceId};
use crate::field::Fields;
use crate::{PathMtu, Pkey, Psn, Qkey, Qpn};

mod field {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    // One reserved byte.
    pub(super) const VENDOR_ID: usize = 5;
    pub(super) const SERVICE_ID: usize = 8;
    pub(super) const CA_GUID: usize = 16;
    // Four reserved bytes.
    pub(super) const QKEY: usize = 28;
    pub(super) const QPN: usize = 32;
    pub(super) const RESPONDER_RESOURCES: usize = 35;
    pub(super) const EECN: usize = 36;
    pub(super) const INITIATOR_DEPTH: usize = 39;
    pub(super) const REMOTE_EECN: usize = 40;
    /// Remote CM response timeout 5 bits, transport service type 2, end-to-end flow control 1.
    pub(super) const REMOTE_TIMEOUT: usize = 43;
    pub(super) const STARTING_PSN: usize = 44;
    /// Local CM response timeout 5 bits, retry count 3.
    pub(super) const LOCAL_TIMEOUT: usize = 47;
    pub(super) const PKEY: usize = 48;
    /// Path MTU 4 bits, RDC exists 1, RNR retry count 3.
    pub(super) const MTU: usize = 50;
    /// Max CM retries 4 bits, SRQ 1, extended transport type 3.
    pub(super) const RETRIES: usize = 51;
    pub(super) const PRIMARY: usize = 52;
    pub(super) const ALTERNATE: usize = 96;
    pub(super) const PRIVATE_DATA: usize = 140;
}

/// The transport service that a REQ asks for, as two fields say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmTransport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// Extended reliable connection.
    Xrc,
    /// A value of the extended type that has no meaning, 3 bits.
    Reserved(u8),
}

impl CmTransport {
    const fn from_bits(service: u8, extended: u8) -> Self {
        match (service & 3, extended & 7) {
            (0, _) => Self::Rc,
            (1, _) => Self::Uc,
            (2, _) => Self::Rd,
            (_, 1) => Self::Xrc,
            (_, other) => Self::Reserved(other),
        }
    }

    /// The transport service type, 2 bits, and the extended one, 3.
    const fn bits(self) -> (u8, u8) {
        match self {
            Self::Rc => (0, 0),
            Self::Uc => (1, 0),
            Self::Rd => (2, 0),
            Self::Xrc => (3, 1),
            Self::Reserved(extended) => (3, extended & 7),
        }
    }

    /// Short name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Rd => "RD",
            Self::Xrc => "XRC",
            Self::Reserved(_) => "reserved",
        }
    }
}

/// A request for communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReqRepr {
    /// What the sender calls the connection.
    pub local_comm_id: CommId,
    /// What it can do beyond the specification.
    pub ece: Ece,
    /// What it wants to connect to.
    pub service_id: ServiceId,
    /// The sender's channel adapter; with its QPN it names a QP in the world.
    pub ca_guid: CaGuid,
    /// Of RD only.
    pub qkey: Qkey,
    /// The sender's QP.
    pub qpn: Qpn,
    /// READs and atomics that it answers at a time.
    pub responder_resources: u8,
    /// Of RD only, 24 bits.
    pub eecn: u32,
    /// READs and atomics that it wants to have outstanding.
    pub initiator_depth: u8,
    /// Of RD only, 24 bits.
    pub remote_eecn: u32,
    /// How long the receiver may take to answer.
    pub remote_timeout: CmTimeout,
    /// Kind of QP.
    pub transport: CmTransport,
    /// The sender's receive queue sends credits.
    pub flow_control: bool,
    /// PSN of the first packet that the receiver will send.
    pub starting_psn: Psn,
    /// How long the sender may take to answer.
    pub local_timeout: CmTimeout,
    /// For the receiver's QP, 3 bits.
    pub retry_count: u8,
    /// Partition.
    pub pkey: Pkey,
    /// IB code of the path MTU, 4 bits: see [`path_mtu`](Self::path_mtu).
    pub mtu_code: u8,
    /// Of RD only.
    pub rdc_exists: bool,
    /// For the receiver's QP, 3 bits.
    pub rnr_retry_count: u8,
    /// How often a message is sent again, 4 bits.
    pub max_cm_retries: u8,
    /// The sender's QP takes its receives from an SRQ.
    pub srq: bool,
    /// The path, as the sender sees it.
    pub primary: CmPath,
    /// Another one; all zeros if there is none.
    pub alternate: CmPath,
    /// The application's, behind an [`IpCmHeader`](super::IpCmHeader) if the service id has a port.
    pub private_data: [u8; Self::PRIVATE_BYTES],
}

impl ReqRepr {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 92;

    /// The path MTU, `None` if the code has no meaning.
    #[must_use]
    pub fn path_mtu(&self) -> Option<PathMtu> {
        PathMtu::from_code(self.mtu_code)
    }

    /// The message with the options of its header.
    pub(super) const fn with_options(mut self, options: u32) -> Self {
        self.ece.options = options;
        self
    }

    /// Decodes the message.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        let remote = bytes.be8::<{ field::REMOTE_TIMEOUT }>();
        let local = bytes.be8::<{ field::LOCAL_TIMEOUT }>();
        let mtu = bytes.be8::<{ field::MTU }>();
        let retries = bytes.be8::<{ field::RETRIES }>();
        Self {
            local_comm_id: CommId(bytes.be32::<{ field::LOCAL_COMM_ID }>()),
            ece: Ece { vendor_id: bytes.be24::<{ field::VENDOR_ID }>(), options: 0 },
            service_id: ServiceId(bytes.be64::<{ field::SERVICE_ID }>()),
            ca_guid: CaGuid(bytes.be64::<{ field::CA_GUID }>()),
            qkey: Qkey(bytes.be32::<{ field::QKEY }>()),
            qpn: Qpn::new(bytes.be24::<{ field::QPN }>()),
            responder_resources: bytes.be8::<{ field::RESPONDER_RESOURCES }>(),
            eecn: bytes.be24::<{ field::EECN }>(),
            initiator_depth: bytes.be8::<{ field::INITIATOR_DEPTH }>(),
            remote_eecn: bytes.be24::<{ field::REMOTE_EECN }>(),
            remote_timeout: CmTimeout::new(remote >> 3),
            transport: CmTransport::from_bits(remote >> 1, retries),
            flow_control: remote & 1 == 1,
            starting_psn: Psn::new(bytes.be24::<{ field::STARTING_PSN }>()),
            local_timeout: CmTimeout::new(local >> 3),
            retry_count: local & 7,
            pkey: Pkey(bytes.be16::<{ field::PKEY }>()),
            mtu_code: mtu >> 4,
            rdc_exists: mtu >> 3 & 1 == 1,
            rnr_retry_count: mtu & 7,
            max_cm_retries: retries >> 4,
            srq: retries >> 3 & 1 == 1,
            primary: CmPath::from_bytes(&bytes.array::<{ field::PRIMARY }, { CmPath::LEN }>()),
            alternate: CmPath::from_bytes(&bytes.array::<{ field::ALTERNATE }, { CmPath::LEN }>()),
            private_data: bytes.array::<{ field::PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(),
        }
    }

    /// Encodes the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        let (service, extended) = self.transport.bits();
        let remote = self.remote_timeout.exponent() << 3 | service << 1 | u8::from(self.flow_control);
        let local = self.local_timeout.exponent() << 3 | self.retry_count & 7;
        let mtu = self.mtu_code << 4 | u8::from(self.rdc_exists) << 3 | self.rnr_retry_count & 7;
        let retries = self.max_cm_retries << 4 | u8::from(self.srq) << 3 | extended;
        bytes.put_be32::<{ field::LOCAL_COMM_ID }>(self.local_comm_id.0);
        bytes.put_be24::<{ field::VENDOR_ID }>(self.ece.vendor_id);
        bytes.put_be64::<{ field::SERVICE_ID }>(self.service_id.0);
        bytes.put_be64::<{ field::CA_GUID }>(self.ca_guid.0);
        bytes.put_be32::<{ field::QKEY }>(self.qkey.0);
        bytes.put_be24::<{ field::QPN }>(self.qpn.value());
        bytes.put::<{ field::RESPONDER_RESOURCES }, 1>([self.responder_resources]);
        bytes.put_be24::<{ field::EECN }>(self.eecn);
        bytes.put::<{ field::INITIATOR_DEPTH }, 1>([self.initiator_depth]);
        bytes.put_be24::<{ field::REMOTE_EECN }>(self.remote_eecn);
        bytes.put::<{ field::REMOTE_TIMEOUT }, 1>([remote]);
        bytes.put_be24::<{ field::STARTING_PSN }>(self.starting_psn.value());
        bytes.put::<{ field::LOCAL_TIMEOUT }, 1>([local]);
        bytes.put_be16::<{ field::PKEY }>(self.pkey.0);
        bytes.put::<{ field::MTU }, 2>([mtu, retries]);
        bytes.put::<{ field::PRIMARY }, { CmPath::LEN }>(self.primary.to_bytes());
        bytes.put::<{ field::ALTERNATE }, { CmPath::LEN }>(self.alternate.to_bytes());
        bytes.put::<{ field::PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(self.private_data);
        bytes
    }
}
