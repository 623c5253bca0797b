//! REJ: a refusal, with its reason (IBTA 12.6.7).

use core::fmt;

use super::{CommId, MESSAGE_BYTES};
use crate::field::Fields;

mod field {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const REMOTE_COMM_ID: usize = 4;
    /// Message rejected 2 bits.
    pub(super) const ANSWERED: usize = 8;
    /// Reject info length 7 bits.
    pub(super) const INFO_LENGTH: usize = 9;
    pub(super) const REASON: usize = 10;
    pub(super) const ARI: usize = 12;
    pub(super) const PRIVATE_DATA: usize = 84;
}

/// The message that a REJ or MRA answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AnsweredMessage {
    /// A REQ.
    Req = 0,
    /// A REP.
    Rep = 1,
    /// REJ: none, such as a timeout. MRA: a LAP.
    Other = 2,
    /// A value without a meaning.
    Reserved = 3,
}

impl AnsweredMessage {
    pub(super) const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::Other,
            _ => Self::Reserved,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Req => "REQ",
            Self::Rep => "REP",
            Self::Other => "other",
            Self::Reserved => "reserved",
        }
    }
}

impl fmt::Display for AnsweredMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a connection is refused (IBTA 12.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RejReason(pub u16);

macro_rules! rej_reasons {
    ($($name:ident $code:literal $text:literal $doc:literal)*) => {
        impl RejReason {
            $(#[doc = $doc] pub const $name: Self = Self($code);)*

            /// All reasons that the specification has.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// In words, such as `invalid service id`.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    Self(_) => "unknown reason",
                }
            }
        }
    };
}

rej_reasons! {
    NO_QP 1 "no QP available" "No QP available."
    NO_EEC 2 "no EE context available" "No end-to-end context available (RD)."
    NO_RESOURCES 3 "no resources available" "No resources available."
    TIMEOUT 4 "timeout" "The sender waited for an answer too long."
    UNSUPPORTED_REQUEST 5 "unsupported request" "The request is not one that the receiver supports."
    INVALID_COMM_ID 6 "invalid communication id" "No connection with that communication id."
    INVALID_COMM_INSTANCE 7 "invalid communication instance" "Communication id, service id, QP do not belong together."
    INVALID_SERVICE_ID 8 "invalid service id" "Nobody listens."
    INVALID_TRANSPORT 9 "invalid transport service type" "The listener's QPs are of another type."
    STALE_CONNECTION 10 "stale connection" "The QP is connected already, as far as the receiver knows."
    NO_RDC 11 "RDC does not exist" "The reliable datagram channel does not exist (RD)."
    PRIMARY_GID 12 "primary remote port GID rejected" "ARI: the GID to use."
    PRIMARY_LID 13 "primary remote port LID rejected" "ARI: the LID to use."
    PRIMARY_SL 14 "invalid primary SL" "ARI: the service level to use."
    PRIMARY_TRAFFIC_CLASS 15 "invalid primary traffic class" "ARI: the traffic class to use."
    PRIMARY_HOP_LIMIT 16 "invalid primary hop limit" "ARI: the hop limit to use."
    PRIMARY_PACKET_RATE 17 "invalid primary packet rate" "ARI: the packet rate to use."
    ALTERNATE_GID 18 "alternate remote port GID rejected" "ARI: the GID to use."
    ALTERNATE_LID 19 "alternate remote port LID rejected" "ARI: the LID to use."
    ALTERNATE_SL 20 "invalid alternate SL" "ARI: the service level to use."
    ALTERNATE_TRAFFIC_CLASS 21 "invalid alternate traffic class" "ARI: the traffic class to use."
    ALTERNATE_HOP_LIMIT 22 "invalid alternate hop limit" "ARI: the hop limit to use."
    ALTERNATE_PACKET_RATE 23 "invalid alternate packet rate" "ARI: the packet rate to use."
    PORT_CM_REDIRECT 24 "port and CM redirection" "ARI: a ClassPortInfo that says where to ask."
    PORT_REDIRECT 25 "port redirection" "ARI: the GID of the port to ask."
    INVALID_MTU 26 "invalid path MTU" "ARI: IB code of the largest path MTU that will do."
    INSUFFICIENT_RESPONDER_RESOURCES 27 "insufficient responder resources" "The REP's sender answers too few READs at a time."
    CONSUMER 28 "rejected by the application" "The application's own reason, in the private data."
    RNR_RETRY_COUNT 29 "RNR retry count rejected" "The RNR retry count will not do."
    DUPLICATE_COMM_ID 30 "duplicate local communication id" "Another connection of the sender's has that communication id."
    CLASS_VERSION 31 "unsupported class version" "ARI: the highest version of connection management that will do."
    PRIMARY_FLOW_LABEL 32 "invalid primary flow label" "ARI: the flow label to use."
    ALTERNATE_FLOW_LABEL 33 "invalid alternate flow label" "ARI: the flow label to use."
    VENDOR_OPTION 35 "vendor option not supported" "A vendor's option is not supported."
}

impl fmt::Display for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.text())
    }
}

/// Additional reject information: the value that would have done, as [`RejReason`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ari {
    /// Bytes of `bytes` that mean something, 7 bits; more than there are is a peer's mistake: see [`value`](Self::value).
    pub length: u8,
    /// The value, from the first byte on.
    pub bytes: [u8; Self::BYTES],
}

impl Ari {
    /// Bytes of the field.
    pub const BYTES: usize = 72;
    /// None.
    pub const NONE: Self = Self { length: 0, bytes: [0; Self::BYTES] };

    /// With the bytes of `value`, of which [`BYTES`](Self::BYTES) count.
    #[must_use]
    pub fn new(value: &[u8]) -> Self {
        let mut ari = Self::NONE;
        let mut length = 0;
        for (to, from) in ari.bytes.iter_mut().zip(value) {
            *to = *from;
            length += 1;
        }
        Self { length, ..ari }
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or(&self.bytes)
    }
}

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejRepr {
    /// What the sender calls the connection; 0 if it has none.
    pub local_comm_id: CommId,
    /// What the receiver calls it.
    pub remote_comm_id: CommId,
    /// The message that is refused.
    pub answered: AnsweredMessage,
    /// Why.
    pub reason: RejReason,
    /// What would have done.
    pub ari: Ari,
    /// The application's.
    pub private_data: [u8; Self::PRIVATE_BYTES],
}

impl RejRepr {
    /// Bytes of private data.
    pub const PRIVATE_BYTES: usize = 148;

    /// Decodes the message.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        Self {
            local_comm_id: CommId(bytes.be32::<{ field::LOCAL_COMM_ID }>()),
            remote_comm_id: CommId(bytes.be32::<{ field::REMOTE_COMM_ID }>()),
            answered: AnsweredMessage::from_bits(bytes.be8::<{ field::ANSWERED }>() >> 6),
            reason: RejReason(bytes.be16::<{ field::REASON }>()),
            ari: Ari {
                length: bytes.be8::<{ field::INFO_LENGTH }>() >> 1,
                bytes: bytes.array::<{ field::ARI }, { Ari::BYTES }>(),
            },
            private_data: bytes.array::<{ field::PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(),
        }
    }

    /// Encodes the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes.put_be32::<{ field::LOCAL_COMM_ID }>(self.local_comm_id.0);
        bytes.put_be32::<{ field::REMOTE_COMM_ID }>(self.remote_comm_id.0);
        bytes.put::<{ field::ANSWERED }, 2>([(self.answered as u8) << 6, self.ari.length << 1]);
        bytes.put_be16::<{ field::REASON }>(self.reason.0);
        bytes.put::<{ field::ARI }, { Ari::BYTES }>(self.ari.bytes);
        bytes.put::<{ field::PRIVATE_DATA }, { Self::PRIVATE_BYTES }>(self.private_data);
        bytes
    }
}
