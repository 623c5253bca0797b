//! Ids: the ends of connections.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use shm::control::cm::{CmIdInfo, CmReply, CmRequest, ConnParam, PortSpace};
use shm::control::{Reply, Request};

use super::{CmError, EventChannel};
use crate::context::{ContextInner, RemoteObject};
use crate::error::lock;
use crate::{Context, EceAttr, Gid, QpAttr, QpAttrMask, QpState, QueuePair, VerbsError};

/// REJ reason 28: the application refuses (IBTA 12.6.7.2).
pub(super) const REJECT_CONSUMER_DEFINED: u16 = 28;

/// One end of a connection, or a listener (`rdma_cm_id`). A cheap handle, equal to another if both mean the same id. With the
/// last handle the id is destroyed, whatever its state: a peer that is connected or waits for an answer hears of it.
///
/// A request is answered once; the handle of a destroyed id is gone:
///
/// ```compile_fail,E0382
/// # fn example(id: ferroce::cm::CmId) -> Result<(), ferroce::VerbsError> {
/// id.destroy()?;
/// id.listen(1)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CmId(pub(super) Arc<IdInner>);

pub(super) struct IdInner {
    remote: RemoteObject,
    id: u32,
    port_space: PortSpace,
    state: Mutex<IdState>,
}

/// Never locked while a request is on its way.
pub(super) struct IdState {
    channel: EventChannel,
    pub(super) qp: Option<QueuePair>,
    /// Our own failure was told as `CONNECT_ERROR`: what the peer makes of it is no news.
    pub(super) connect_failed: bool,
    /// The application's own, in the place of the path's.
    traffic_class: Option<u8>,
    ack_timeout: Option<u8>,
    /// What to say of enhanced connection establishment, in the place of what the daemon would.
    pub(super) ece: Option<EceAttr>,
    /// Multicast groups that it is to receive from.
    pub(super) groups: Vec<(IpAddr, Membership)>,
}

/// How far the QP of an id is with a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Membership {
    /// The event is still to come.
    Joining,
    /// It is attached.
    Attached,
}

impl IdInner {
    pub(super) fn new(remote: RemoteObject, id: u32, port_space: PortSpace, channel: EventChannel) -> Arc<Self> {
        let state = IdState {
            channel,
            qp: None,
            connect_failed: false,
            traffic_class: None,
            ack_timeout: None,
            ece: None,
            groups: Vec::new(),
        };
        Arc::new(Self { remote, id, port_space, state: Mutex::new(state) })
    }

    /// Destroys it in the daemon and forgets it here, in one step for those who take events meanwhile.
    fn release(&mut self) -> Result<(), VerbsError> {
        if self.remote.is_released() {
            return Ok(());
        }
        let state = lock(&self.state);
        if let Some(qp) = &state.qp {
            // The QP may live on without the id, but not the id's memberships.
            for (group, _) in state.groups.iter().filter(|(_, membership)| *membership == Membership::Attached) {
                let _ = qp.detach_mcast(Gid::from_ip(*group));
            }
        }
        drop(state);
        let context = Arc::clone(&self.remote.context);
        let mut registry = lock(&context.cm);
        registry.forget(self.id);
        self.remote.release()
    }
}

impl Drop for IdInner {
    fn drop(&mut self) {
        let _ = self.release();
    }
}

impl CmId {
    /// Binds to a local address and port (`rdma_bind_addr`); unspecified address: all of them; port 0: a free one. Returns
    /// what it is bound to.
    ///
    /// # Errors
    /// [`VerbsError::Refused`]: `EADDRNOTAVAIL`, `EADDRINUSE`, `EINVAL` if it is bound already.
    pub fn bind_addr(&self, addr: SocketAddr) -> Result<CmIdInfo, VerbsError> {
        self.call_for_info(CmRequest::BindAddr { id: self.0.id, addr }, "Cm(BindAddr)")
    }

    /// Finds the local address for a destination, and asks for its neighbour (`rdma_resolve_addr`). Answered by
    /// `ADDR_RESOLVED` or `ADDR_ERROR`.
    ///
    /// # Errors
    /// [`VerbsError::Refused`]: as [`CmId::bind_addr`].
    pub fn resolve_addr(&self, src: Option<SocketAddr>, dst: SocketAddr, timeout: Duration) -> Result<(), VerbsError> {
        self.call(CmRequest::ResolveAddr { id: self.0.id, src, dst, timeout_ms: milliseconds(timeout) })
    }

    /// Finds the attributes of the path (`rdma_resolve_route`). Answered by `ROUTE_RESOLVED` or `ROUTE_ERROR`.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] (`EINVAL`) unless its address is resolved.
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), VerbsError> {
        self.call(CmRequest::ResolveRoute { id: self.0.id, timeout_ms: milliseconds(timeout) })
    }

    /// Listens on what it is bound to (`rdma_listen`); at most `backlog` requests wait for an answer. Each comes as a
    /// `CONNECT_REQUEST` with an id of its own.
    ///
    /// # Errors
    /// [`VerbsError::Refused`]: `EADDRINUSE`, `EINVAL`.
    pub fn listen(&self, backlog: u32) -> Result<(), VerbsError> {
        self.call(CmRequest::Listen { id: self.0.id, backlog })
    }

    /// Asks the peer for a connection (`rdma_connect`), or for the QP of a UD service. `param.qp_num` and `param.srq` are
    /// taken from the id's QP if it has one. Answered by `ESTABLISHED`, or `CONNECT_RESPONSE` if the id has no QP, or
    /// `REJECTED`, `UNREACHABLE`, `CONNECT_ERROR`.
    ///
    /// # Errors
    /// [`VerbsError::Refused`]: `EINVAL` unless its route is resolved, or for private data that is too long.
    pub fn connect(&self, param: &ConnParam) -> Result<(), VerbsError> {
        self.call(CmRequest::Connect { id: self.0.id, param: self.complete(param) })
    }

    /// Accepts a request (`rdma_accept`): takes the id's QP to RTS and answers the peer. `param.qp_num` and `param.srq` are
    /// taken from the id's QP if it has one, and its depths become the QP's. Answered by `ESTABLISHED` once the peer has
    /// confirmed it; for UD there is nothing more to come.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] if the daemon or the QP would not; the QP is in ERR then.
    pub fn accept(&self, param: &ConnParam) -> Result<(), VerbsError> {
        self.qp_for_accept(param)?;
        let done = self.call(CmRequest::Accept { id: self.0.id, param: self.complete(param) });
        if done.is_err() {
            self.qp_to_error();
        }
        done
    }

    /// Confirms the peer's acceptance, after `CONNECT_RESPONSE`, once the application has its QP ready (`rdma_establish`).
    ///
    /// # Errors
    /// [`VerbsError::Refused`] (`EINVAL`) if nothing waits for it.
    pub fn establish(&self) -> Result<(), VerbsError> {
        self.call(CmRequest::Accept { id: self.0.id, param: ConnParam::default() })
    }

    /// Refuses a request (`rdma_reject`), with at most 148 bytes of our own.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] (`EINVAL`) if nothing waits for an answer.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), VerbsError> {
        self.reject_because(REJECT_CONSUMER_DEFINED, private_data)
    }

    /// As [`CmId::reject`], with another reason (IBTA 12.6.7.2).
    ///
    /// # Errors
    /// As there.
    pub fn reject_because(&self, reason: u16, private_data: &[u8]) -> Result<(), VerbsError> {
        self.call(CmRequest::Reject { id: self.0.id, private_data: private_data.to_vec(), reason })
    }

    /// Chooses the traffic class (`RDMA_OPTION_ID_TOS`) and the time-out (`RDMA_OPTION_ID_ACK_TIMEOUT`: an exponent,
    /// 4.096 us * 2^n) of the QP that is connected from now on; `None`: those of the path.
    pub fn set_path(&self, traffic_class: Option<u8>, ack_timeout: Option<u8>) {
        let mut state = self.state();
        state.traffic_class = traffic_class;
        state.ack_timeout = ack_timeout;
    }

    /// Chooses the options of enhanced connection establishment that the next request or acceptance says
    /// (`rdma_set_local_ece`); `None`: what the daemon's QPs can do, and of a peer's request, what they do of it. The peer's own are
    /// in [`super::CmEvent::param`].
    pub fn set_local_ece(&self, ece: Option<EceAttr>) {
        self.state().ece = ece;
    }

    /// Ends the connection (`rdma_disconnect`), or answers the peer who did: takes the id's QP to ERR, which flushes what is
    /// posted, and tells the peer. Answered by `DISCONNECTED` if the peer had not ended it before; `TIMEWAIT_EXIT` comes when no
    /// packet of this connection can arrive any more.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] (`EINVAL`) unless it is connected.
    pub fn disconnect(&self) -> Result<(), VerbsError> {
        self.qp_to_error();
        self.call(CmRequest::Disconnect { id: self.0.id })
    }

    /// Says that data has come on its QP (`rdma_notify` with `COMM_EST`), which establishes a connection whose peer's last
    /// message of the handshake was lost.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] (`EINVAL`) if it does not wait for that.
    pub fn notify(&self) -> Result<(), VerbsError> {
        self.call(CmRequest::Notify { id: self.0.id })
    }

    /// Moves it to another channel, with the events that wait for it (`rdma_migrate_id`).
    ///
    /// # Errors
    /// [`CmError::OtherContext`].
    pub fn migrate(&self, channel: &EventChannel) -> Result<(), VerbsError> {
        if !Arc::ptr_eq(channel.context(), self.context_inner()) {
            return Err(CmError::OtherContext { object: "event channel" }.into());
        }
        let mut registry = lock(&self.context_inner().cm);
        self.call(CmRequest::MigrateId { id: self.0.id, channel: channel.0.channel })?;
        let before = std::mem::replace(&mut self.state().channel, channel.clone());
        let (moved, requests) = registry.migrate(self.0.id, before.0.channel, channel.0.channel);
        if moved > 0 {
            channel.notify();
        }
        // The daemon moves those that it still has.
        let migrate = |id| self.call(CmRequest::MigrateId { id, channel: channel.0.channel });
        let done = requests.into_iter().try_for_each(migrate);
        // The last handle to a channel takes this lock too.
        drop(registry);
        drop(before);
        done
    }

    /// Joins a multicast group (`rdma_join_multicast`): if `receives`, its QP is attached to the group, else it only sends.
    /// Answered by `MULTICAST_JOIN`, which says where to send ([`super::CmEvent::ah_attr`], and QPN and Q_Key in
    /// [`super::CmEvent::param`]), or `MULTICAST_ERROR`.
    ///
    /// # Errors
    /// [`VerbsError::Refused`]: `EINVAL` for an address that is no group's, an id of port space TCP, or one that is bound to no
    /// address; `EADDRINUSE` if it has joined already.
    pub fn join_multicast(&self, group: IpAddr, receives: bool) -> Result<(), VerbsError> {
        let joining = (group, Membership::Joining);
        if receives {
            // Before the event can come.
            self.state().groups.push(joining);
        }
        let done = self.call(CmRequest::JoinMulticast { id: self.0.id, group });
        if done.is_err() {
            self.state().groups.retain(|known| *known != joining);
        }
        done
    }

    /// Leaves a group (`rdma_leave_multicast`), with its QP.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] (`EADDRNOTAVAIL`) if it did not join.
    pub fn leave_multicast(&self, group: IpAddr) -> Result<(), VerbsError> {
        self.detach_from(group);
        self.call(CmRequest::LeaveMulticast { id: self.0.id, group })
    }

    /// Addresses, port and path, as far as they are known.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn query(&self) -> Result<CmIdInfo, VerbsError> {
        self.call_for_info(CmRequest::QueryId { id: self.0.id }, "Cm(QueryId)")
    }

    /// Attributes that take its QP to a state (`rdma_init_qp_attr`), for QPs that the application modifies itself.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] (`EINVAL`) if it is not that far.
    pub fn init_qp_attr(&self, qp_state: QpState) -> Result<(QpAttr, QpAttrMask), VerbsError> {
        match self.context_inner().call(&Request::Cm(CmRequest::InitQpAttr { id: self.0.id, qp_state }))? {
            Reply::Cm(CmReply::QpAttr { mut attr, mask }) => {
                let state = self.state();
                if let (true, Some(traffic_class)) = (mask.contains(QpAttrMask::AV), state.traffic_class) {
                    attr.ah_attr.traffic_class = traffic_class;
                }
                if let (true, Some(timeout)) = (mask.contains(QpAttrMask::TIMEOUT), state.ack_timeout) {
                    attr.timeout = timeout;
                }
                Ok((*attr, mask))
            }
            _ => Err(VerbsError::UnexpectedReply { request: "Cm(InitQpAttr)" }),
        }
    }

    /// Where its events come.
    pub fn channel(&self) -> EventChannel {
        self.state().channel.clone()
    }

    /// Its port space.
    pub fn port_space(&self) -> PortSpace {
        self.0.port_space
    }

    /// Its number in the session.
    pub fn handle(&self) -> u32 {
        self.0.id
    }

    /// The session that it belongs to.
    pub fn context(&self) -> Context {
        Context(Arc::clone(self.context_inner()))
    }

    /// Destroys it (`rdma_destroy_id`), whatever its state. Events that wait for it vanish. Dropping the last handle does so
    /// too, without telling of a failure. Its QP goes with the last handle to that.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while events or other handles refer to it.
    pub fn destroy(self) -> Result<(), VerbsError> {
        let mut inner = Arc::into_inner(self.0).ok_or(VerbsError::Busy { object: "id" })?;
        inner.release()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, IdState> {
        lock(&self.0.state)
    }

    pub(super) fn context_inner(&self) -> &Arc<ContextInner> {
        &self.0.remote.context
    }

    pub(super) fn call(&self, request: CmRequest) -> Result<(), VerbsError> {
        self.context_inner().call(&Request::Cm(request)).map(drop)
    }

    fn call_for_info(&self, request: CmRequest, name: &'static str) -> Result<CmIdInfo, VerbsError> {
        match self.context_inner().call(&Request::Cm(request))? {
            Reply::Cm(CmReply::Id(info)) => Ok(*info),
            _ => Err(VerbsError::UnexpectedReply { request: name }),
        }
    }
}

impl PartialEq for CmId {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for CmId {}

impl Hash for CmId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmId").field("id", &self.0.id).field("port_space", &self.0.port_space).finish_non_exhaustive()
    }
}

/// At least one, so that a short wait is none for ever; at most what the request holds.
fn milliseconds(timeout: Duration) -> u32 {
    u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1)
}
