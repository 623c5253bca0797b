//! Connection management on the control socket: what `librdmacm` asks of the kernel, with its names.
//!
//! Events wait in the daemon, in a bounded queue for each event channel; the channel's descriptor ([`crate::wake`]) becomes
//! readable when one comes, and [`CmRequest::GetEvent`] takes it. So an id can move to another channel with the events that
//! wait for it, and a client that does not read costs the daemon a bounded queue.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::attr::{AhAttr, EceAttr, QpAttr, QpAttrMask, QpState};

/// Private data of one message at most, bytes (REJ apart, which has 148, the most any message of a connection has is 224).
pub const PRIVATE_DATA_MAX: usize = 224;

/// Port space (`rdma_port_space`): what service ids a port number belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[repr(u16)]
pub enum PortSpace {
    /// RDMA_PS_TCP: RC connections.
    Tcp = 0x0106,
    /// RDMA_PS_UDP: UD, by service id resolution.
    Udp = 0x0111,
    /// RDMA_PS_IB: any QP type.
    Ib = 0x013f,
}

impl PortSpace {
    /// The number, as in `rdma/rdma_cma.h`.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The conventional name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Ib => "IB",
        }
    }
}

/// What happened to an id (`rdma_cm_event_type`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[repr(u16)]
pub enum CmEventType {
    /// A source GID was found for the destination, and its neighbour answered.
    AddrResolved = 0,
    /// No route, no GID of the family, or no neighbour.
    AddrError = 1,
    /// The path's attributes are known.
    RouteResolved = 2,
    /// They could not be found.
    RouteError = 3,
    /// A peer wants to connect; the event carries a new id.
    ConnectRequest = 4,
    /// The peer accepted; for an id that has no QP of the library's.
    ConnectResponse = 5,
    /// The connection failed for a local reason.
    ConnectError = 6,
    /// The peer does not answer.
    Unreachable = 7,
    /// The peer refused: `status` is the REJ reason.
    Rejected = 8,
    /// Connected (or, for UD, resolved).
    Established = 9,
    /// The peer disconnected.
    Disconnected = 10,
    /// The local device is gone.
    DeviceRemoval = 11,
    /// The multicast group was joined.
    MulticastJoin = 12,
    /// It could not be, or the membership ended.
    MulticastError = 13,
    /// The GID that the id is bound to changed.
    AddrChange = 14,
    /// Time wait is over: the QP may be used again.
    TimewaitExit = 15,
}

impl CmEventType {
    /// The number, as in `rdma/rdma_cma.h`.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The conventional name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AddrResolved => "ADDR_RESOLVED",
            Self::AddrError => "ADDR_ERROR",
            Self::RouteResolved => "ROUTE_RESOLVED",
            Self::RouteError => "ROUTE_ERROR",
            Self::ConnectRequest => "CONNECT_REQUEST",
            Self::ConnectResponse => "CONNECT_RESPONSE",
            Self::ConnectError => "CONNECT_ERROR",
            Self::Unreachable => "UNREACHABLE",
            Self::Rejected => "REJECTED",
            Self::Established => "ESTABLISHED",
            Self::Disconnected => "DISCONNECTED",
            Self::DeviceRemoval => "DEVICE_REMOVAL",
            Self::MulticastJoin => "MULTICAST_JOIN",
            Self::MulticastError => "MULTICAST_ERROR",
            Self::AddrChange => "ADDR_CHANGE",
            Self::TimewaitExit => "TIMEWAIT_EXIT",
        }
    }
}

/// What both sides say about a connection (`rdma_conn_param`, and `rdma_ud_param` for UD).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ConnParam {
    /// The application's own bytes: at most 56 in a request by IP address, 196 in an acceptance, 148 in a rejection.
    pub private_data: Vec<u8>,
    /// READs and atomics that this side will answer at a time.
    pub responder_resources: u8,
    /// READs and atomics that this side will have outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control (said to the peer, not used).
    pub flow_control: bool,
    /// Retries after timeouts, 0..7.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 0..7.
    pub rnr_retry_count: u8,
    /// The QP takes its receives from an SRQ.
    pub srq: bool,
    /// The QP, 24 bits.
    pub qp_num: u32,
    /// Q_Key (UD).
    pub qkey: u32,
    /// Options of enhanced connection establishment, of connections: what the peer says; in a call what to say to it. `None`: what
    /// the daemon's QPs can do, or of an answer, what they do of what the peer asked for.
    pub ece: Option<EceAttr>,
}

/// A connection-management request of a client. Ids and channels are handles of the session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CmRequest {
    /// An event channel: [`super::Reply::Handle`]. Its two ends ride along, as with a completion channel.
    CreateChannel,
    /// Destroys an event channel that no id uses.
    DestroyChannel {
        /// The channel.
        channel: u32,
    },
    /// Takes the oldest event: [`CmReply::Event`].
    GetEvent {
        /// The channel.
        channel: u32,
    },
    /// A new id: [`super::Reply::Handle`].
    CreateId {
        /// Where its events go.
        channel: u32,
        /// Its port space.
        port_space: PortSpace,
    },
    /// Destroys an id, whatever its state: the peer of a connection hears of it. Events that wait for it vanish; of a listener,
    /// so do the requests that nobody took, and their new ids.
    DestroyId {
        /// The id.
        id: u32,
    },
    /// Moves an id to another channel, with the events that wait for it; with a listener the requests that nobody took, and their
    /// new ids.
    MigrateId {
        /// The id.
        id: u32,
        /// The new channel.
        channel: u32,
    },
    /// Binds an id to a local address (unspecified: all of them) and port (0: a free one): [`CmReply::Id`].
    BindAddr {
        /// The id.
        id: u32,
        /// The address and port.
        addr: SocketAddr,
    },
    /// Finds the source address for a destination and asks for its neighbour; answered by an event.
    ResolveAddr {
        /// The id.
        id: u32,
        /// Source, if the caller cares.
        src: Option<SocketAddr>,
        /// Destination.
        dst: SocketAddr,
        /// How long to try, milliseconds.
        timeout_ms: u32,
    },
    /// Finds the path's attributes; answered by an event.
    ResolveRoute {
        /// The id.
        id: u32,
        /// How long to try, milliseconds.
        timeout_ms: u32,
    },
    /// Addresses, port and path of an id: [`CmReply::Id`].
    QueryId {
        /// The id.
        id: u32,
    },
    /// Listens on a bound id.
    Listen {
        /// The id.
        id: u32,
        /// Requests that may wait for an answer.
        backlog: u32,
    },
    /// Asks the peer for a connection (UD: for the QP of a service).
    Connect {
        /// The id.
        id: u32,
        /// What we offer.
        param: ConnParam,
    },
    /// Accepts a request; also, on the active side, the peer's answer (an id that got `CONNECT_RESPONSE`).
    Accept {
        /// The id of the request.
        id: u32,
        /// What we offer.
        param: ConnParam,
    },
    /// Refuses a request.
    Reject {
        /// The id of the request.
        id: u32,
        /// The application's own bytes, 148 at most.
        private_data: Vec<u8>,
        /// REJ reason; 28 (consumer defined) is the usual one.
        reason: u16,
    },
    /// Says that data has come on the id's QP although the peer's RTU did not (`rdma_notify` with `COMM_EST`).
    Notify {
        /// The id.
        id: u32,
    },
    /// Ends a connection.
    Disconnect {
        /// The id.
        id: u32,
    },
    /// Attributes that take the id's QP to a state (`rdma_init_qp_attr`): [`CmReply::QpAttr`].
    InitQpAttr {
        /// The id.
        id: u32,
        /// The state.
        qp_state: QpState,
    },
    /// Joins a multicast group; answered by an event with its address vector, Q_Key and QPN 0xffffff. A QP receives once it is
    /// attached ([`super::Request::AttachMcast`]).
    JoinMulticast {
        /// The id.
        id: u32,
        /// The group.
        group: std::net::IpAddr,
    },
    /// Leaves a group.
    LeaveMulticast {
        /// The id.
        id: u32,
        /// The group.
        group: std::net::IpAddr,
    },
}

/// What an id is bound to and connected with.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CmIdInfo {
    /// Local address and port, once bound.
    pub local: Option<SocketAddr>,
    /// The peer's, once resolved.
    pub peer: Option<SocketAddr>,
    /// Port of the device, from 1; 0 = not bound to one.
    pub port_num: u8,
    /// The path, once resolved.
    pub path: Option<AhAttr>,
    /// IB code of the path MTU; 0 = not known.
    pub path_mtu: u8,
}

/// An event of an id.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CmEvent {
    /// What happened.
    pub event: CmEventType,
    /// The id it happened to; with `CONNECT_REQUEST` the new one.
    pub id: u32,
    /// With `CONNECT_REQUEST`: the id that listens.
    pub listen_id: Option<u32>,
    /// 0, a negative errno, or with `REJECTED` the REJ reason.
    pub status: i32,
    /// What the peer says: of a connection, or of a UD QP. Resources and depth as seen from the receiver of the event: the peer's
    /// initiator depth is its responder resources.
    pub param: ConnParam,
    /// With UD and multicast: where to send.
    pub ah: Option<AhAttr>,
    /// Addresses and path of `id`.
    pub info: CmIdInfo,
    /// Why, in a sentence, where something failed.
    pub message: String,
}

/// Answers to [`CmRequest`]s that [`super::Reply::Done`] and [`super::Reply::Handle`] are not enough for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CmReply {
    /// The oldest event of a channel, if one waits.
    Event(Option<Box<CmEvent>>),
    /// What an id is bound to.
    Id(Box<CmIdInfo>),
    /// Attributes for `modify_qp`.
    QpAttr {
        /// Values.
        attr: Box<QpAttr>,
        /// Which of them are meant.
        mask: QpAttrMask,
    },
}
