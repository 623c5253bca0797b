//! Header of a management datagram (IBTA 13.4.3).

use core::fmt;

use super::{MAD_BYTES, MESSAGE_BYTES};
use crate::field::{Fields, fixed_length_header};

mod field {
    pub(super) const BASE_VERSION: usize = 0;
    pub(super) const CLASS: usize = 1;
    pub(super) const CLASS_VERSION: usize = 2;
    pub(super) const METHOD: usize = 3;
    pub(super) const STATUS: usize = 4;
    pub(super) const CLASS_SPECIFIC: usize = 6;
    pub(super) const TRANSACTION_ID: usize = 8;
    pub(super) const ATTRIBUTE_ID: usize = 16;
    // Two reserved bytes.
    pub(super) const ATTRIBUTE_MODIFIER: usize = 20;
}

/// Number that a message and its repetitions and answers share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransactionId(pub u64);

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// What a MAD of the connection-management class is (IBTA 12.6.1, table of attributes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttributeId(pub u16);

impl AttributeId {
    /// Request for communication.
    pub const REQ: Self = Self(0x10);
    /// Message receipt acknowledgement.
    pub const MRA: Self = Self(0x11);
    /// Reject.
    pub const REJ: Self = Self(0x12);
    /// Reply to a request.
    pub const REP: Self = Self(0x13);
    /// Ready to use.
    pub const RTU: Self = Self(0x14);
    /// Request for disconnection.
    pub const DREQ: Self = Self(0x15);
    /// Reply to it.
    pub const DREP: Self = Self(0x16);
    /// Service id resolution request.
    pub const SIDR_REQ: Self = Self(0x17);
    /// Its reply.
    pub const SIDR_REP: Self = Self(0x18);
    /// Load alternate path.
    pub const LAP: Self = Self(0x19);
    /// Alternate path response.
    pub const APR: Self = Self(0x1a);

    /// The specification's name, or `UNKNOWN`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::REQ => "REQ",
            Self::MRA => "MRA",
            Self::REJ => "REJ",
            Self::REP => "REP",
            Self::RTU => "RTU",
            Self::DREQ => "DREQ",
            Self::DREP => "DREP",
            Self::SIDR_REQ => "SIDR_REQ",
            Self::SIDR_REP => "SIDR_REP",
            Self::LAP => "LAP",
            Self::APR => "APR",
            Self(_) => "UNKNOWN",
        }
    }
}

/// Header of a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadHeader {
    /// Version of the MAD format: 1.
    pub base_version: u8,
    /// Management class: 7 is connection management.
    pub class: u8,
    /// Version of the class: 2.
    pub class_version: u8,
    /// 3 (Send): the only one of connection management.
    pub method: u8,
    /// 0.
    pub status: u16,
    /// 0.
    pub class_specific: u16,
    /// The exchange it belongs to.
    pub transaction_id: TransactionId,
    /// What it is.
    pub attribute_id: AttributeId,
    /// Options of enhanced connection establishment, in a REQ and a REP; 0.
    pub attribute_modifier: u32,
}

impl MadHeader {
    /// Length in bytes.
    pub const LEN: usize = 24;
    /// The MAD format's version.
    pub const BASE_VERSION: u8 = 1;
    /// Connection management (`CommMgt`).
    pub const CLASS_CM: u8 = 7;
    /// Connection management's version.
    pub const CLASS_VERSION_CM: u8 = 2;
    /// Send.
    pub const METHOD_SEND: u8 = 3;

    /// The header of a message of connection management.
    #[must_use]
    pub const fn cm(attribute_id: AttributeId, transaction_id: TransactionId) -> Self {
        Self {
            base_version: Self::BASE_VERSION,
            class: Self::CLASS_CM,
            class_version: Self::CLASS_VERSION_CM,
            method: Self::METHOD_SEND,
            status: 0,
            class_specific: 0,
            transaction_id,
            attribute_id,
            attribute_modifier: 0,
        }
    }

    /// Decodes the header.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            base_version: bytes.be8::<{ field::BASE_VERSION }>(),
            class: bytes.be8::<{ field::CLASS }>(),
            class_version: bytes.be8::<{ field::CLASS_VERSION }>(),
            method: bytes.be8::<{ field::METHOD }>(),
            status: bytes.be16::<{ field::STATUS }>(),
            class_specific: bytes.be16::<{ field::CLASS_SPECIFIC }>(),
            transaction_id: TransactionId(bytes.be64::<{ field::TRANSACTION_ID }>()),
            attribute_id: AttributeId(bytes.be16::<{ field::ATTRIBUTE_ID }>()),
            attribute_modifier: bytes.be32::<{ field::ATTRIBUTE_MODIFIER }>(),
        }
    }

    /// Encodes the header.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let versions = [self.base_version, self.class, self.class_version, self.method];
        bytes.put::<{ field::BASE_VERSION }, 4>(versions);
        bytes.put_be16::<{ field::STATUS }>(self.status);
        bytes.put_be16::<{ field::CLASS_SPECIFIC }>(self.class_specific);
        bytes.put_be64::<{ field::TRANSACTION_ID }>(self.transaction_id.0);
        bytes.put_be16::<{ field::ATTRIBUTE_ID }>(self.attribute_id.0);
        bytes.put_be32::<{ field::ATTRIBUTE_MODIFIER }>(self.attribute_modifier);
        bytes
    }

    /// Takes a MAD apart; what its header says is not looked at, see [`check_cm`](Self::check_cm).
    #[must_use]
    pub fn split(mad: &[u8; MAD_BYTES]) -> (Self, &[u8; MESSAGE_BYTES]) {
        const ZERO: &[u8; MESSAGE_BYTES] = &[0; MESSAGE_BYTES];
        let message = mad.last_chunk().unwrap_or(ZERO);
        (Self::from_bytes(&mad.array::<0, { Self::LEN }>()), message)
    }

    /// Whether this is the header of a message of connection management, in the one version there is.
    ///
    /// # Errors
    /// The first field that says otherwise. [`MadError::ClassVersion`] comes last: such a message can be refused by a
    /// REJ, as the places of the communication ids are the same in all versions.
    pub const fn check_cm(&self) -> Result<(), MadError> {
        if self.base_version != Self::BASE_VERSION {
            return Err(MadError::BaseVersion(self.base_version));
        }
        if self.class != Self::CLASS_CM {
            return Err(MadError::Class(self.class));
        }
        if self.method != Self::METHOD_SEND {
            return Err(MadError::Method(self.method));
        }
        if self.class_version != Self::CLASS_VERSION_CM {
            return Err(MadError::ClassVersion(self.class_version));
        }
        Ok(())
    }
}

fixed_length_header!(MadHeader);

/// Why a MAD is no message of connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadError {
    /// Not 256 bytes.
    Length(usize),
    /// Another version of the MAD format.
    BaseVersion(u8),
    /// Another management class.
    Class(u8),
    /// A method other than Send.
    Method(u8),
    /// Another version of connection management.
    ClassVersion(u8),
    /// No such message.
    Attribute(u16),
}

impl fmt::Display for MadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(len) => write!(f, "a MAD has 256 bytes, this datagram {len}"),
            Self::BaseVersion(version) => write!(f, "base version {version} of a MAD, expected 1"),
            Self::Class(class) => write!(f, "management class {class:#04x}, expected 0x07, connection management"),
            Self::Method(method) => write!(f, "method {method:#04x}, expected 0x03, Send"),
            Self::ClassVersion(version) => write!(f, "version {version} of connection management, expected 2"),
            Self::Attribute(attribute) => {
                write!(f, "attribute {attribute:#06x} is no message of connection management")
            }
        }
    }
}

impl core::error::Error for MadError {}
