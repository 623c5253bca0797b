//! Events of ids, and what they say went wrong.

use std::fmt;

use nix::errno::Errno;
use shm::control::cm::{CmEvent as RawEvent, CmEventType, CmIdInfo, ConnParam, PortSpace};

use super::CmId;
use crate::{AhAttr, QpType};

/// What happened to an id (`rdma_cm_event`). Dropping it acknowledges it; until then its id can't be destroyed.
#[derive(Debug)]
pub struct CmEvent {
    raw: Box<RawEvent>,
    id: CmId,
    listener: Option<CmId>,
    /// Why this library could not do its part, in the place of `raw.message`.
    failure: Option<CmError>,
}

impl CmEvent {
    pub(super) fn new(raw: Box<RawEvent>, id: CmId, listener: Option<CmId>) -> Self {
        Self { raw, id, listener, failure: None }
    }

    /// What happened.
    pub fn event_type(&self) -> CmEventType {
        self.raw.event
    }

    /// The id it happened to; with `CONNECT_REQUEST` a new one, which lives as long as the event and the handles cloned from it.
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// With `CONNECT_REQUEST`: the id that listens.
    pub fn listener(&self) -> Option<&CmId> {
        self.listener.as_ref()
    }

    /// 0, or a negative errno; with `REJECTED` the REJ reason (28: the application's own), with `UNREACHABLE` of a datagram
    /// service the status of its SIDR_REP (2: the application's own).
    pub fn status(&self) -> i32 {
        self.raw.status
    }

    /// What the peer says of the connection, or of its UD QP. Resources and depth are as seen from here: what suits
    /// [`CmId::accept`].
    pub fn param(&self) -> &ConnParam {
        &self.raw.param
    }

    /// The peer's application's own bytes. A message has a place of fixed size for them and does not say how many are meant:
    /// zeros may follow.
    pub fn private_data(&self) -> &[u8] {
        &self.raw.param.private_data
    }

    /// What to accept a request with if one has nothing of one's own to say (`rdma_accept` without parameters).
    pub fn answer(&self) -> ConnParam {
        let param = self.param();
        ConnParam {
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnParam::default()
        }
    }

    /// With UD and multicast: where to send.
    pub fn ah_attr(&self) -> Option<&AhAttr> {
        self.raw.ah.as_ref()
    }

    /// Addresses and path of the id.
    pub fn info(&self) -> &CmIdInfo {
        &self.raw.info
    }

    /// The event as the daemon sent it (its ids are numbers of the session), for those who build other APIs on this one.
    pub fn raw(&self) -> &RawEvent {
        &self.raw
    }

    /// The failure that this event tells, if it is one.
    pub fn error(&self) -> Option<CmError> {
        use CmEventType::{AddrError, ConnectError, DeviceRemoval, MulticastError, Rejected, RouteError, Unreachable};
        let failed = matches!(
            self.raw.event,
            AddrError | RouteError | ConnectError | Unreachable | Rejected | MulticastError | DeviceRemoval
        );
        if !failed && self.raw.status == 0 {
            return None;
        }
        Some(self.failure.clone().unwrap_or_else(|| self.to_error()))
    }

    /// This event as an error, for one that is no failure but not what was waited for either.
    pub(super) fn to_error(&self) -> CmError {
        CmError::Event { event: self.raw.event, status: self.raw.status, message: self.raw.message.clone() }
    }

    /// Turns the event to another, for what this library did or could not do.
    pub(super) fn becomes(mut self, event: CmEventType, failure: Option<(i32, String)>) -> Self {
        self.raw.event = event;
        if let Some((errno, message)) = failure {
            self.raw.status = -errno;
            self.raw.message.clone_from(&message);
            self.failure = Some(CmError::Event { event, status: -errno, message });
        }
        self
    }
}

impl fmt::Display for CmEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.raw.event.name())?;
        match (self.raw.status, self.raw.message.as_str()) {
            (0, "") => Ok(()),
            (0, message) => write!(f, ": {message}"),
            (status, "") => write!(f, ", status {status}"),
            (status, message) => write!(f, ", status {status}: {message}"),
        }
    }
}

/// Why a connection is not made, or an id can't be used so.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CmError {
    /// An event that ends what was asked for.
    #[error("{}", describe(*event, *status, message))]
    Event {
        /// What happened.
        event: CmEventType,
        /// As [`CmEvent::status`].
        status: i32,
        /// Why, in a sentence; may be empty.
        message: String,
    },
    /// UD is for port space UDP, connections for the others.
    #[error("an id of port space {} can't have a {qp_type} QP", port_space.name())]
    QpType {
        /// The id's.
        port_space: PortSpace,
        /// The QP's.
        qp_type: QpType,
    },
    /// The id has a QP already.
    #[error("the id has QP {qpn} already: destroy that first")]
    HasQp {
        /// The QP.
        qpn: crate::Qpn,
    },
    /// Objects of different contexts don't go together.
    #[error("the {object} belongs to another context")]
    OtherContext {
        /// What it is.
        object: &'static str,
    },
}

impl CmError {
    /// The errno that a synchronous call of librdmacm would give.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Event { event: CmEventType::Rejected, .. } => Errno::ECONNREFUSED as i32,
            Self::Event { event: CmEventType::Disconnected, .. } => Errno::ECONNRESET as i32,
            Self::Event { event: CmEventType::Unreachable, status: 1.., .. } => Errno::ECONNREFUSED as i32,
            Self::Event { status: 0.., .. } => Errno::EIO as i32,
            Self::Event { status, .. } => status.saturating_neg(),
            Self::QpType { .. } | Self::HasQp { .. } | Self::OtherContext { .. } => Errno::EINVAL as i32,
        }
    }
}

fn describe(event: CmEventType, status: i32, message: &str) -> String {
    let name = event.name();
    match (event, status) {
        _ if !message.is_empty() => message.to_owned(),
        (CmEventType::Rejected, reason) => format!("the peer rejected the connection, reason {reason}"),
        (CmEventType::Disconnected, _) => "the peer disconnected".to_owned(),
        (_, 0) => name.to_owned(),
        (_, 1..) => format!("{name}, status {status}"),
        (_, status) => format!("{name}: {}", Errno::from_raw(status.saturating_neg()).desc()),
    }
}
