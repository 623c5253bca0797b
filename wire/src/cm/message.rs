//! Any message of connection management.

use core::fmt;

use super::{
    AprRepr, AttributeId, CommId, DrepRepr, DreqRepr, LapRepr, MAD_BYTES, MESSAGE_BYTES, MadError, MadHeader, MraRepr,
    RejRepr, RepRepr, ReqRepr, RtuRepr, SidrRepRepr, SidrReqRepr, TransactionId,
};

/// A message of connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmMessage {
    /// Request for communication.
    Req(ReqRepr),
    /// Message receipt acknowledgement.
    Mra(MraRepr),
    /// Reject.
    Rej(RejRepr),
    /// Reply to a request.
    Rep(RepRepr),
    /// Ready to use.
    Rtu(RtuRepr),
    /// Request for disconnection.
    Dreq(DreqRepr),
    /// Reply to it.
    Drep(DrepRepr),
    /// Service id resolution request.
    SidrReq(SidrReqRepr),
    /// Its reply.
    SidrRep(SidrRepRepr),
    /// Load alternate path.
    Lap(LapRepr),
    /// Alternate path response.
    Apr(AprRepr),
}

impl CmMessage {
    /// Decodes the message that a header announces.
    ///
    /// # Errors
    /// The first thing that makes the MAD no message of connection management.
    pub fn from_bytes(header: &MadHeader, message: &[u8; MESSAGE_BYTES]) -> Result<Self, MadError> {
        header.check_cm()?;
        let options = header.attribute_modifier;
        Ok(match header.attribute_id {
            AttributeId::REQ => Self::Req(ReqRepr::from_bytes(message).with_options(options)),
            AttributeId::MRA => Self::Mra(MraRepr::from_bytes(message)),
            AttributeId::REJ => Self::Rej(RejRepr::from_bytes(message)),
            AttributeId::REP => Self::Rep(RepRepr::from_bytes(message).with_options(options)),
            AttributeId::RTU => Self::Rtu(RtuRepr::from_bytes(message)),
            AttributeId::DREQ => Self::Dreq(DreqRepr::from_bytes(message)),
            AttributeId::DREP => Self::Drep(DrepRepr::from_bytes(message)),
            AttributeId::SIDR_REQ => Self::SidrReq(SidrReqRepr::from_bytes(message)),
            AttributeId::SIDR_REP => Self::SidrRep(SidrRepRepr::from_bytes(message)),
            AttributeId::LAP => Self::Lap(LapRepr::from_bytes(message)),
            AttributeId::APR => Self::Apr(AprRepr::from_bytes(message)),
            AttributeId(other) => return Err(MadError::Attribute(other)),
        })
    }

    /// Decodes a whole MAD.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes), and [`MadError::Length`] if `mad` is not 256 bytes long.
    pub fn parse(mad: &[u8]) -> Result<(MadHeader, Self), MadError> {
        let mad: &[u8; MAD_BYTES] = mad.try_into().map_err(|_| MadError::Length(mad.len()))?;
        let (header, message) = MadHeader::split(mad);
        Ok((header, Self::from_bytes(&header, message)?))
    }

    /// What it is.
    #[must_use]
    pub const fn attribute_id(&self) -> AttributeId {
        match self {
            Self::Req(_) => AttributeId::REQ,
            Self::Mra(_) => AttributeId::MRA,
            Self::Rej(_) => AttributeId::REJ,
            Self::Rep(_) => AttributeId::REP,
            Self::Rtu(_) => AttributeId::RTU,
            Self::Dreq(_) => AttributeId::DREQ,
            Self::Drep(_) => AttributeId::DREP,
            Self::SidrReq(_) => AttributeId::SIDR_REQ,
            Self::SidrRep(_) => AttributeId::SIDR_REP,
            Self::Lap(_) => AttributeId::LAP,
            Self::Apr(_) => AttributeId::APR,
        }
    }

    /// What the sender calls the connection or request; of a SIDR_REP, what the receiver does.
    #[must_use]
    pub const fn local_comm_id(&self) -> CommId {
        match self {
            Self::Req(m) => m.local_comm_id,
            Self::Mra(m) => m.local_comm_id,
            Self::Rej(m) => m.local_comm_id,
            Self::Rep(m) => m.local_comm_id,
            Self::Rtu(m) => m.local_comm_id,
            Self::Dreq(m) => m.local_comm_id,
            Self::Drep(m) => m.local_comm_id,
            Self::SidrReq(m) => m.request_id,
            Self::SidrRep(m) => m.request_id,
            Self::Lap(m) => m.local_comm_id,
            Self::Apr(m) => m.local_comm_id,
        }
    }

    /// What the receiver calls the connection, where the message says it.
    #[must_use]
    pub const fn remote_comm_id(&self) -> Option<CommId> {
        match self {
            Self::Req(_) | Self::SidrReq(_) | Self::SidrRep(_) => None,
            Self::Mra(m) => Some(m.remote_comm_id),
            Self::Rej(m) => Some(m.remote_comm_id),
            Self::Rep(m) => Some(m.remote_comm_id),
            Self::Rtu(m) => Some(m.remote_comm_id),
            Self::Dreq(m) => Some(m.remote_comm_id),
            Self::Drep(m) => Some(m.remote_comm_id),
            Self::Lap(m) => Some(m.remote_comm_id),
            Self::Apr(m) => Some(m.remote_comm_id),
        }
    }

    /// Encodes the message in a MAD of the given transaction.
    #[must_use]
    pub fn to_mad(&self, transaction_id: TransactionId) -> [u8; MAD_BYTES] {
        let message = match self {
            Self::Req(m) => m.to_bytes(),
            Self::Mra(m) => m.to_bytes(),
            Self::Rej(m) => m.to_bytes(),
            Self::Rep(m) => m.to_bytes(),
            Self::Rtu(m) => m.to_bytes(),
            Self::Dreq(m) => m.to_bytes(),
            Self::Drep(m) => m.to_bytes(),
            Self::SidrReq(m) => m.to_bytes(),
            Self::SidrRep(m) => m.to_bytes(),
            Self::Lap(m) => m.to_bytes(),
            Self::Apr(m) => m.to_bytes(),
        };
        let mut mad = [0; MAD_BYTES];
        let attribute_modifier = match self {
            Self::Req(m) => m.ece.options,
            Self::Rep(m) => m.ece.options,
            _ => 0,
        };
        let header = MadHeader { attribute_modifier, ..MadHeader::cm(self.attribute_id(), transaction_id) }.to_bytes();
        for (to, from) in mad.iter_mut().zip(header.into_iter().chain(message)) {
            *to = from;
        }
        mad
    }
}

/// For instance `REQ id 0x91f746c2 TCP port 7174 RC qpn 0x00007c psn 0x895ba4 mtu 1024`.
impl fmt::Display for CmMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} id {}", self.attribute_id().name(), self.local_comm_id())?;
        if let Some(remote) = self.remote_comm_id() {
            write!(f, " peer id {remote}")?;
        }
        match self {
            Self::Req(m) => {
                write!(f, " {} {} qpn {} psn {}", m.service_id, m.transport.name(), m.qpn, m.starting_psn)?;
                match m.path_mtu() {
                    Some(mtu) => write!(f, " mtu {}", mtu.bytes())?,
                    None => write!(f, " mtu code {}", m.mtu_code)?,
                }
                write!(f, " resources {} depth {}", m.responder_resources, m.initiator_depth)
            }
            Self::Rep(m) => {
                write!(f, " qpn {} psn {}", m.qpn, m.starting_psn)?;
                write!(f, " resources {} depth {}", m.responder_resources, m.initiator_depth)
            }
            Self::Mra(m) => write!(f, " for {} timeout {} ms", m.answered, m.service_timeout.duration_ns() / 1_000_000),
            Self::Rej(m) => write!(f, " of {} reason {}", m.answered, m.reason),
            Self::Dreq(m) => write!(f, " peer qpn {}", m.remote_qpn),
            Self::Lap(m) => write!(f, " peer qpn {} to {}", m.remote_qpn, m.alternate.remote_gid),
            Self::Apr(m) => write!(f, " status {}", m.status),
            Self::SidrReq(m) => write!(f, " {}", m.service_id),
            Self::SidrRep(m) => {
                write!(f, " {} status {} qpn {} qkey {}", m.service_id, m.status, m.qpn, m.qkey)
            }
            Self::Rtu(_) | Self::Drep(_) => Ok(()),
        }
    }
}
