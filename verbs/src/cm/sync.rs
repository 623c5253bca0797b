//! Ids whose calls wait.

use std::net::SocketAddr;
use std::time::Duration;

use shm::control::cm::{CmEventType, CmIdInfo, ConnParam, PortSpace};

use super::{CmEvent, CmId, EventChannel};
use crate::{Context, ProtectionDomain, QpInit, QueuePair, VerbsError};

/// An id with a channel of its own, whose calls return when their event has come (`rdma_cm_id` without a channel). It keeps
/// the event of the last call: see [`SyncId::event`].
///
/// A client in a few lines:
///
/// ```no_run
/// use std::time::Duration;
/// use ferroce::cm::{ConnParam, PortSpace, SyncId};
/// use ferroce::{Context, CqInit, DEFAULT_SOCKET, QpInit};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = Context::connect(DEFAULT_SOCKET)?;
/// let pd = context.alloc_pd()?;
/// let cq = context.create_cq(&CqInit { cqe: 16, ..CqInit::default() })?;
/// let mut id = SyncId::new(&context, PortSpace::Tcp)?;
/// id.resolve_addr(None, "10.0.0.2:7471".parse()?, Duration::from_secs(2))?;
/// id.resolve_route(Duration::from_secs(2))?;
/// let qp = id.create_qp(&pd, &QpInit::rc(&cq))?;
/// id.connect(&ConnParam { retry_count: 7, rnr_retry_count: 7, ..ConnParam::default() })?;
/// println!("{qp:?} is connected");
/// id.disconnect()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SyncId {
    // Before the id: it holds a handle to that.
    event: Option<CmEvent>,
    id: CmId,
    channel: EventChannel,
    /// The peer's end of it was seen: there will be no other.
    disconnected: bool,
}

impl SyncId {
    /// Makes one (`rdma_create_id` without a channel).
    ///
    /// # Errors
    /// [`VerbsError::Refused`] at the client's limit.
    pub fn new(context: &Context, port_space: PortSpace) -> Result<Self, VerbsError> {
        let channel = EventChannel::new(context)?;
        let id = channel.create_id(port_space)?;
        Ok(Self { event: None, id, channel, disconnected: false })
    }

    /// Makes an id wait, by moving it to a channel of its own.
    ///
    /// # Errors
    /// As [`SyncId::new`].
    pub fn from_id(id: CmId) -> Result<Self, VerbsError> {
        let channel = EventChannel::new(&id.context())?;
        id.migrate(&channel)?;
        Ok(Self { event: None, id, channel, disconnected: false })
    }

    /// Turns it to an id whose events come to a channel (`rdma_migrate_id`).
    ///
    /// # Errors
    /// As [`CmId::migrate`].
    pub fn into_id(self, channel: &EventChannel) -> Result<CmId, VerbsError> {
        self.id.migrate(channel)?;
        Ok(self.id)
    }

    /// The id, for what needs no waiting. The answers to calls on it confuse those made here.
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// The event of the last call (`id->event`), such as the peer's private data after [`SyncId::connect`] and in a request.
    pub fn event(&self) -> Option<&CmEvent> {
        self.event.as_ref()
    }

    /// As [`CmId::bind_addr`].
    ///
    /// # Errors
    /// As there.
    pub fn bind_addr(&mut self, addr: SocketAddr) -> Result<CmIdInfo, VerbsError> {
        self.id.bind_addr(addr)
    }

    /// As [`CmId::resolve_addr`], until the address is resolved.
    ///
    /// # Errors
    /// As there, or [`super::CmError::Event`]: `ENETUNREACH`, `EHOSTUNREACH`, `ETIMEDOUT`.
    pub fn resolve_addr(
        &mut self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout: Duration,
    ) -> Result<(), VerbsError> {
        self.id.resolve_addr(src, dst, timeout)?;
        self.wait(CmEventType::AddrResolved)
    }

    /// As [`CmId::resolve_route`], until the route is resolved.
    ///
    /// # Errors
    /// As there, or [`super::CmError::Event`].
    pub fn resolve_route(&mut self, timeout: Duration) -> Result<(), VerbsError> {
        self.id.resolve_route(timeout)?;
        self.wait(CmEventType::RouteResolved)
    }

    /// As [`CmId::create_qp`].
    ///
    /// # Errors
    /// As there.
    pub fn create_qp(&mut self, pd: &ProtectionDomain, init: &QpInit<'_>) -> Result<QueuePair, VerbsError> {
        self.id.create_qp(pd, init)
    }

    /// As [`CmId::listen`].
    ///
    /// # Errors
    /// As there.
    pub fn listen(&mut self, backlog: u32) -> Result<(), VerbsError> {
        self.id.listen(backlog)
    }

    /// The next request to a listening id (`rdma_get_request`), as an id that waits too, whose event is the request; `None` when
    /// `timeout` is over first (`None` = no timeout).
    ///
    /// # Errors
    /// [`super::CmError::Event`] if something else happened to the listener; as [`SyncId::new`].
    pub fn get_request(&mut self, timeout: Option<Duration>) -> Result<Option<Self>, VerbsError> {
        self.event = None;
        let Some(event) = self.channel.get_event(timeout)? else { return Ok(None) };
        if let Some(error) = event.error() {
            return Err(error.into());
        }
        if event.event_type() != CmEventType::ConnectRequest {
            return Err(event.to_error().into());
        }
        let mut request = Self::from_id(event.id().clone())?;
        request.event = Some(event);
        Ok(Some(request))
    }

    /// As [`CmId::connect`], until the connection is established; without a QP, until the peer has accepted.
    ///
    /// # Errors
    /// As there, or [`super::CmError::Event`]: `ECONNREFUSED` if the peer rejects, `ETIMEDOUT` if it does not answer.
    pub fn connect(&mut self, param: &ConnParam) -> Result<(), VerbsError> {
        self.id.connect(param)?;
        let is_ready = self.id.port_space() == PortSpace::Udp || self.id.qp().is_some();
        self.wait(if is_ready { CmEventType::Established } else { CmEventType::ConnectResponse })
    }

    /// As [`CmId::accept`], until the connection is established. A UD service has nothing to wait for.
    ///
    /// # Errors
    /// As there, or [`super::CmError::Event`]: `ETIMEDOUT` if the peer does not confirm, `ECONNRESET` if it is gone already.
    pub fn accept(&mut self, param: &ConnParam) -> Result<(), VerbsError> {
        self.id.accept(param)?;
        if self.id.port_space() == PortSpace::Udp { Ok(()) } else { self.wait(CmEventType::Established) }
    }

    /// As [`CmId::establish`].
    ///
    /// # Errors
    /// As there.
    pub fn establish(&mut self) -> Result<(), VerbsError> {
        self.id.establish()
    }

    /// As [`CmId::reject`].
    ///
    /// # Errors
    /// As there.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), VerbsError> {
        self.id.reject(private_data)
    }

    /// As [`CmId::disconnect`], until it is, on both sides.
    ///
    /// # Errors
    /// As there.
    pub fn disconnect(&mut self) -> Result<(), VerbsError> {
        self.id.disconnect()?;
        if self.disconnected { Ok(()) } else { self.wait(CmEventType::Disconnected) }
    }

    /// Waits until the peer disconnects; false when `timeout` is over first (`None` = no timeout). [`SyncId::disconnect`] is due
    /// then.
    ///
    /// # Errors
    /// [`super::CmError::Event`] if the connection ends in another way.
    pub fn wait_disconnected(&mut self, timeout: Option<Duration>) -> Result<bool, VerbsError> {
        self.wait_for(CmEventType::Disconnected, timeout)
    }

    /// Destroys it (`rdma_destroy_id`).
    ///
    /// # Errors
    /// As [`CmId::destroy`].
    pub fn destroy(self) -> Result<(), VerbsError> {
        let Self { event, id, channel, .. } = self;
        drop((event, channel));
        id.destroy()
    }

    /// Every operation of the connection manager ends in an event, so this needs no timeout.
    fn wait(&mut self, wanted: CmEventType) -> Result<(), VerbsError> {
        self.wait_for(wanted, None).map(drop)
    }

    fn wait_for(&mut self, wanted: CmEventType, timeout: Option<Duration>) -> Result<bool, VerbsError> {
        self.event = None;
        loop {
            let Some(event) = self.channel.get_event(timeout)? else { return Ok(false) };
            let happened = event.event_type();
            // News of the path, and the end of an earlier connection's time wait, answer nothing.
            if matches!(happened, CmEventType::AddrChange | CmEventType::TimewaitExit) {
                continue;
            }
            self.disconnected |= happened == CmEventType::Disconnected;
            let error = event.error().or_else(|| (happened != wanted).then(|| event.to_error()));
            self.event = Some(event);
            return error.map_or(Ok(true), |error| Err(error.into()));
        }
    }
}
