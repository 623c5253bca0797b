//! Event channels, and which handle an event belongs to.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use shm::control::cm::{CmEvent as RawEvent, CmEventType, CmReply, CmRequest, PortSpace};
use shm::control::{Reply, Request};
use shm::wake::{Notifications, Notifier};
use wire::Qpn;

use super::id::IdInner;
use super::{CmEvent, CmId};
use crate::context::{ContextInner, RemoteObject};
use crate::error::lock;
use crate::events::Deadline;
use crate::{Context, VerbsError};

/// Events taken from the daemon ahead of the application, a channel at a time.
const AHEAD_MAX: usize = 64;

/// What a context knows of its ids. Its lock covers every request that makes an id's number known or unknown, and the taking of
/// events: so a number means the same id in the daemon and here. A handle is never dropped under it.
#[derive(Default)]
pub(crate) struct Registry {
    ids: BTreeMap<u32, Weak<IdInner>>,
    /// By channel: events taken from the daemon that nobody asked for yet.
    ahead: BTreeMap<u32, VecDeque<Pending>>,
}

/// An event on its way.
pub(super) struct Pending {
    event: Box<RawEvent>,
    /// The id that comes with a request to connect; destroyed, and so rejected, if nobody takes it.
    incoming: Option<RemoteObject>,
}

impl Registry {
    pub(super) fn register(&mut self, id: u32, inner: &Arc<IdInner>) {
        self.ids.insert(id, Arc::downgrade(inner));
    }

    /// Forgets an id and the events that wait for it.
    pub(super) fn forget(&mut self, id: u32) {
        self.ids.remove(&id);
        for ahead in self.ahead.values_mut() {
            ahead.retain(|pending| !pending.concerns(id));
        }
    }

    /// Moves the events that wait for an id. Returns how many there were, and the ids that came with requests among them.
    pub(super) fn migrate(&mut self, id: u32, from: u32, to: u32) -> (usize, Vec<u32>) {
        let waiting = std::mem::take(self.ahead_of(from));
        let (moving, staying): (VecDeque<_>, VecDeque<_>) = waiting.into_iter().partition(|event| event.concerns(id));
        *self.ahead_of(from) = staying;
        let incoming = moving.iter().filter(|pending| pending.incoming.is_some()).map(|pending| pending.event.id);
        let moved = (moving.len(), incoming.collect());
        self.ahead_of(to).extend(moving);
        moved
    }

    fn ahead_of(&mut self, channel: u32) -> &mut VecDeque<Pending> {
        self.ahead.entry(channel).or_default()
    }

    fn find(&self, id: u32) -> Option<CmId> {
        self.ids.get(&id).and_then(Weak::upgrade).map(CmId)
    }

    /// Every id there is, to look among them with no lock held.
    fn handles(&self) -> Vec<CmId> {
        self.ids.values().filter_map(Weak::upgrade).map(CmId).collect()
    }
}

impl Pending {
    fn new(context: &Arc<ContextInner>, event: Box<RawEvent>) -> Self {
        let destroy = || Request::Cm(CmRequest::DestroyId { id: event.id });
        let incoming = event.event == CmEventType::ConnectRequest;
        let incoming = incoming.then(|| RemoteObject::new(context, destroy()));
        Self { event, incoming }
    }

    fn concerns(&self, id: u32) -> bool {
        // Before a request was taken, only its listener is known here.
        if self.incoming.is_some() { self.event.listen_id == Some(id) } else { self.event.id == id }
    }
}

/// Where the events of ids come (`rdma_event_channel`). A cheap handle; several threads may wait on it, each event goes to one
/// of them. Its descriptor ([`AsFd`]) is readable while [`EventChannel::try_get_event`] has something: for `poll`, `epoll` and
/// their like. Do not read it.
///
/// ```no_run
/// use std::os::fd::AsFd;
/// use ferroce::cm::{EventChannel, PortSpace};
/// use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let context = ferroce::Context::connect(ferroce::DEFAULT_SOCKET)?;
/// let channel = EventChannel::new(&context)?;
/// let id = channel.create_id(PortSpace::Tcp)?;
/// id.resolve_addr(None, "10.0.0.2:7471".parse()?, std::time::Duration::from_secs(2))?;
/// let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
/// poll(&mut fds, PollTimeout::NONE)?;
/// while let Some(event) = channel.try_get_event()? {
///     println!("{event}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct EventChannel(pub(super) Arc<ChannelInner>);

pub(super) struct ChannelInner {
    remote: RemoteObject,
    pub(super) channel: u32,
    notifications: Notifications,
    /// The engine has it too; with this copy we notify ourselves.
    notifier: Arc<Notifier>,
}

impl EventChannel {
    /// Makes a channel (`rdma_create_event_channel`).
    ///
    /// # Errors
    /// [`VerbsError::Refused`] at the client's limit.
    pub fn new(context: &Context) -> Result<Self, VerbsError> {
        const REQUEST: &str = "Cm(CreateChannel)";
        let context = &context.0;
        let (reply, fds) = context.call_with(&Request::Cm(CmRequest::CreateChannel), &[])?;
        let unexpected = VerbsError::UnexpectedReply { request: REQUEST };
        let Reply::Handle(channel) = reply else { return Err(unexpected) };
        let remote = RemoteObject::new(context, Request::Cm(CmRequest::DestroyChannel { channel }));
        let mut fds = fds.into_iter();
        let (Some(reader), Some(writer)) = (fds.next(), fds.next()) else { return Err(unexpected) };
        let (notifications, notifier) = (Notifications::from_fd(reader), Arc::new(Notifier::from_fd(writer)));
        context.events.register_channel(&notifier);
        Ok(Self(Arc::new(ChannelInner { remote, channel, notifications, notifier })))
    }

    /// Makes an id whose events come here (`rdma_create_id`).
    ///
    /// # Errors
    /// [`VerbsError::Refused`] at the client's limit.
    pub fn create_id(&self, port_space: PortSpace) -> Result<CmId, VerbsError> {
        let context = self.context();
        let channel = self.0.channel;
        let mut registry = lock(&context.cm);
        let request = Request::Cm(CmRequest::CreateId { channel, port_space });
        let id = context.call_for_handle(&request, "Cm(CreateId)")?;
        let remote = RemoteObject::new(context, Request::Cm(CmRequest::DestroyId { id }));
        let inner = IdInner::new(remote, id, port_space, self.clone());
        registry.register(id, &inner);
        Ok(CmId(inner))
    }

    /// Waits for the next event (`rdma_get_cm_event`): `None` when `timeout` is over first (`None` = no timeout). Does what
    /// belongs to an event before it is handed out: the QP of an id goes to RTS with its peer's acceptance, to ERR with its
    /// rejection.
    ///
    /// # Errors
    /// [`crate::CallError::Disconnected`] once the daemon is gone.
    pub fn get_event(&self, timeout: Option<Duration>) -> Result<Option<CmEvent>, VerbsError> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(event) = self.try_get_event()? {
                return Ok(Some(event));
            }
            if self.context().make_progress() {
                if deadline.is_over() {
                    return self.try_get_event();
                }
            } else if !deadline.wait_readable(self.as_fd())? {
                return self.try_get_event();
            }
        }
    }

    /// As [`EventChannel::get_event`], without waiting.
    ///
    /// # Errors
    /// As there.
    pub fn try_get_event(&self) -> Result<Option<CmEvent>, VerbsError> {
        loop {
            let Some(event) = self.take()? else { return Ok(None) };
            if let Some(event) = event.settle() {
                return Ok(Some(event));
            }
        }
    }

    /// Its number in the session.
    pub fn handle(&self) -> u32 {
        self.0.channel
    }

    /// Destroys it. Dropping the last handle does so too, without telling of a failure.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while ids or other handles refer to it.
    pub fn destroy(self) -> Result<(), VerbsError> {
        let mut inner = Arc::into_inner(self.0).ok_or(VerbsError::Busy { object: "event channel" })?;
        inner.forget_ahead();
        inner.remote.release()
    }

    pub(super) fn context(&self) -> &Arc<ContextInner> {
        &self.0.remote.context
    }

    /// Makes the descriptor readable, for events that only this side knows of.
    pub(super) fn notify(&self) {
        self.0.notifier.notify();
    }

    /// The next event whose id still has a handle.
    fn take(&self) -> Result<Option<CmEvent>, VerbsError> {
        if self.context().is_inherited() {
            return Err(VerbsError::Inherited);
        }
        let mut registry = lock(&self.context().cm);
        loop {
            if registry.ahead_of(self.0.channel).is_empty() {
                self.fill(&mut registry)?;
            }
            let Some(pending) = registry.ahead_of(self.0.channel).pop_front() else { return Ok(None) };
            let event = self.resolve(&mut registry, pending);
            if registry.ahead_of(self.0.channel).is_empty() && self.is_readable().unwrap_or(false) {
                // What fails now fails again when the next event is asked for.
                let _ = self.fill(&mut registry);
            }
            if !registry.ahead_of(self.0.channel).is_empty() {
                self.notify();
            }
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    /// Takes what the daemon has. If that is nothing, the descriptor is not readable afterwards, unless for something newer.
    fn fill(&self, registry: &mut Registry) -> Result<(), VerbsError> {
        let ahead = registry.ahead_of(self.0.channel);
        loop {
            // First of all: what comes after the look below makes the channel readable again.
            self.0.notifications.drain();
            let looked = self.fetch(ahead);
            if !ahead.is_empty() {
                return Ok(());
            }
            looked?;
            if !self.is_readable()? {
                return Ok(());
            }
        }
    }

    fn fetch(&self, ahead: &mut VecDeque<Pending>) -> Result<(), VerbsError> {
        let request = Request::Cm(CmRequest::GetEvent { channel: self.0.channel });
        while ahead.len() < AHEAD_MAX {
            match self.context().call(&request)? {
                Reply::Cm(CmReply::Event(Some(event))) => ahead.push_back(Pending::new(self.context(), event)),
                Reply::Cm(CmReply::Event(None)) => break,
                _ => return Err(VerbsError::UnexpectedReply { request: "Cm(GetEvent)" }),
            }
        }
        Ok(())
    }

    fn is_readable(&self) -> Result<bool, VerbsError> {
        Deadline::after(Some(Duration::ZERO)).wait_readable(self.as_fd())
    }

    /// Finds the handles of an event; `None` if they are gone.
    fn resolve(&self, registry: &mut Registry, pending: Pending) -> Option<CmEvent> {
        let Pending { event, incoming } = pending;
        let Some(incoming) = incoming else {
            let id = registry.find(event.id)?;
            return Some(CmEvent::new(event, id, None));
        };
        let listener = registry.find(event.listen_id?)?;
        let inner = IdInner::new(incoming, event.id, listener.port_space(), self.clone());
        registry.register(event.id, &inner);
        Some(CmEvent::new(event, CmId(inner), Some(listener)))
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.notifications.as_fd()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel").field("channel", &self.0.channel).finish_non_exhaustive()
    }
}

impl ChannelInner {
    fn forget_ahead(&self) {
        if self.remote.context.is_inherited() {
            return;
        }
        let ahead = lock(&self.remote.context.cm).ahead.remove(&self.channel);
        // The daemon destroys no channel whose events still hold new ids.
        drop(ahead);
    }
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        self.forget_ahead();
    }
}

impl ContextInner {
    /// Tells the connection manager that data has come on a QP whose peer's last message of the handshake may be lost.
    pub(crate) fn notify_communication(&self, qpn: Qpn) {
        let handles = lock(&self.cm).handles();
        if let Some(id) = handles.iter().find(|id| id.qp().is_some_and(|qp| qp.qpn() == qpn)) {
            // Refused if the connection was established meanwhile, which is as good.
            let _ = id.notify();
        }
    }
}
