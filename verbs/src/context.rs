//! The connection to a device.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shm::control::{AsyncEvent, CallError, Endpoint, Reply, Request};
use shm::fork::Process;
use shm::socket::SocketEndpoint;

use crate::events::{Deadline, EventSource, Events};
use crate::process_memory::OwnProcess;
use crate::rings::Rings;
use crate::{DeviceAttr, GidEntry, PortAttr, Qpn, VerbsError, cm};

/// Where a daemon listens if nobody says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/ferroce/ferroced.sock";

/// An open device (`ibv_context`): a session with a daemon, or with an engine in this process. A cheap handle; the session
/// ends with the last handle to it and to whatever was made from it.
#[derive(Clone)]
pub struct Context(pub(crate) Arc<ContextInner>);

pub(crate) struct ContextInner {
    pub(crate) endpoint: Arc<dyn Endpoint>,
    /// [`Endpoint::is_polled`], asked once: the data path looks at it.
    pub(crate) polled: bool,
    /// [`Endpoint::wants_core`], likewise.
    pub(crate) wants_core: bool,
    /// Who opened it.
    pub(crate) process: Process,
    device: DeviceAttr,
    session: u32,
    pub(crate) rings: Mutex<Rings>,
    /// For [`crate::ProcessRegion`].
    pub(crate) own_process: OwnProcess,
    pub(crate) events: Arc<Events>,
    source: EventSource,
    pub(crate) cm: Mutex<cm::Registry>,
}

impl Context {
    /// Connects to the daemon that listens at `path`, usually [`DEFAULT_SOCKET`]. Starts a thread that waits for the
    /// daemon's events and for its end.
    ///
    /// # Errors
    /// [`VerbsError::Connect`] if nobody listens there; [`VerbsError::Version`] or [`VerbsError::Refused`] if the daemon
    /// won't have us.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, VerbsError> {
        let path = path.as_ref();
        let endpoint =
            SocketEndpoint::connect(path).map_err(|error| VerbsError::Connect { path: path.to_owned(), error })?;
        Self::open(Arc::new(endpoint), true)
    }

    /// As [`Context::connect`], on a socket that is connected to a daemon already (SOCK_SEQPACKET).
    ///
    /// # Errors
    /// As [`Context::connect`].
    pub fn from_fd(socket: OwnedFd) -> Result<Self, VerbsError> {
        Self::open(Arc::new(SocketEndpoint::new(socket)), true)
    }

    /// A session over any other way to an engine: one in this process, or in a simulator. Starts no thread.
    ///
    /// # Errors
    /// As [`Context::connect`].
    pub fn from_endpoint(endpoint: Arc<dyn Endpoint>) -> Result<Self, VerbsError> {
        Self::open(endpoint, false)
    }

    fn open(endpoint: Arc<dyn Endpoint>, watched: bool) -> Result<Self, VerbsError> {
        let (process, ours) = (Process::current(), shm::ABI_VERSION);
        let hello = Request::Hello { abi_version: ours, client_name: process_name() };
        let (reply, fds) = endpoint.call(&hello, &[])?;
        let unexpected = VerbsError::UnexpectedReply { request: "Hello" };
        let (session, device) = match reply {
            Reply::Hello { abi_version, session, device } if abi_version == ours => (session, device),
            Reply::Hello { abi_version, .. } => return Err(VerbsError::Version { ours, theirs: abi_version }),
            Reply::Refused { errno, message } => return Err(VerbsError::Refused { errno, message }),
            _ => return Err(unexpected),
        };
        let events = Arc::new(Events::new()?);
        let socket = fds.into_iter().next().ok_or(unexpected)?;
        let source = EventSource::new(socket, watched, &events)?;
        let (polled, wants_core) = (endpoint.is_polled(), endpoint.wants_core());
        let (rings, own_process, cm) = (Mutex::default(), OwnProcess::default(), Mutex::default());
        let inner = ContextInner {
            endpoint,
            polled,
            wants_core,
            process,
            device,
            session,
            rings,
            own_process,
            events,
            source,
            cm,
        };
        Ok(Self(Arc::new(inner)))
    }

    /// What the device can do, as it said when the session began.
    pub fn device(&self) -> &DeviceAttr {
        &self.0.device
    }

    /// The session's number in the daemon's listings.
    pub fn session(&self) -> u32 {
        self.0.session
    }

    /// What the device can do, asked anew.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn query_device(&self) -> Result<DeviceAttr, VerbsError> {
        match self.call(&Request::QueryDevice)? {
            Reply::Device(device) => Ok(device),
            _ => Err(VerbsError::UnexpectedReply { request: "QueryDevice" }),
        }
    }

    /// The engine's clock now, which [`crate::WorkCompletion::timestamp_ns`] counts: nanoseconds. `None` if only the engine can read it.
    ///
    /// Cost: some ten nanoseconds; no system call.
    #[inline]
    pub fn clock_ns(&self) -> Option<u64> {
        self.0.device.clock.now_ns()
    }

    /// State of a port. Ports count from 1.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] (`EINVAL`) if there is no such port.
    pub fn query_port(&self, port_num: u8) -> Result<PortAttr, VerbsError> {
        match self.call(&Request::QueryPort { port_num })? {
            Reply::Port(port) => Ok(port),
            _ => Err(VerbsError::UnexpectedReply { request: "QueryPort" }),
        }
    }

    /// The GID table of a port: its entries in use.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] (`EINVAL`) if there is no such port.
    pub fn query_gids(&self, port_num: u8) -> Result<Vec<GidEntry>, VerbsError> {
        match self.call(&Request::QueryGids { port_num })? {
            Reply::Gids(gids) => Ok(gids),
            _ => Err(VerbsError::UnexpectedReply { request: "QueryGids" }),
        }
    }

    /// Sends any request, for tools that list and count. Objects made this way are known to nobody here; use the typed
    /// calls for those. File descriptors of the answer are closed.
    ///
    /// # Errors
    /// [`VerbsError::Refused`]; [`VerbsError::Call`], for ever once the daemon is gone.
    pub fn call(&self, request: &Request) -> Result<Reply, VerbsError> {
        self.0.call(request)
    }

    /// False once the daemon is gone. Polling goes on to hand out completions; everything else fails.
    pub fn is_alive(&self) -> bool {
        !self.0.events.is_dead()
    }

    /// True in a process that was forked from the one that opened the device. There every call fails with
    /// [`VerbsError::Inherited`], work requests are not taken and completions not found; what was made in the session is forgotten
    /// without a word to the daemon when it is destroyed or dropped. A context opened in the child is its own.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.0.is_inherited()
    }

    /// Drives an engine that lives on this thread by one turn; nothing where engines have threads of their own. Waiting
    /// and polling calls do it by themselves.
    pub fn make_progress(&self) {
        if self.0.polled {
            self.0.endpoint.make_progress();
        }
    }

    /// Waits for an asynchronous event: `None` when `timeout` is over first (`None` = no timeout; zero = just look).
    /// The last one of all is [`AsyncEvent::DeviceFatal`]. [`AsyncEvent::CommEst`] of a connection manager's QP is also passed on
    /// to its id ([`crate::cm::CmId::notify`]).
    ///
    /// # Errors
    /// [`CallError::Disconnected`] after the last one.
    pub fn get_async_event(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>, VerbsError> {
        let inner = &*self.0;
        if inner.is_inherited() {
            return Err(VerbsError::Inherited);
        }
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(event) = inner.next_async_event() {
                return Ok(Some(event));
            }
            if inner.events.is_dead() {
                return Err(CallError::Disconnected.into());
            }
            if inner.polled {
                inner.endpoint.make_progress();
                if deadline.is_over() {
                    return Ok(inner.next_async_event());
                }
            } else if !deadline.wait_readable(self.async_event_fd())? {
                return Ok(None);
            }
        }
    }

    /// Readable when [`Context::get_async_event`] has something: for `poll`, `epoll` and their like. Do not read it.
    pub fn async_event_fd(&self) -> BorrowedFd<'_> {
        self.0.source.fd(&self.0.events)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.0.device.name)
            .field("session", &self.0.session)
            .finish_non_exhaustive()
    }
}

impl ContextInner {
    pub(crate) fn call(&self, request: &Request) -> Result<Reply, VerbsError> {
        self.call_with(request, &[]).map(|(reply, _)| reply)
    }

    /// Sends a request with file descriptors; a refusal is an error here.
    pub(crate) fn call_with(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), VerbsError> {
        // The parent speaks on the socket, and one of its threads may have held a lock of it.
        if self.is_inherited() {
            return Err(VerbsError::Inherited);
        }
        if self.events.is_dead() {
            return Err(CallError::Disconnected.into());
        }
        match self.endpoint.call(request, fds) {
            Ok((Reply::Refused { errno, message }, _)) => Err(VerbsError::Refused { errno, message }),
            Ok(answer) => Ok(answer),
            Err(error) => {
                if matches!(error, CallError::Disconnected) {
                    self.events.fail();
                }
                Err(error.into())
            }
        }
    }

    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        !self.process.is_current()
    }

    fn next_async_event(&self) -> Option<AsyncEvent> {
        let event = self.source.next(&self.events);
        if let Some(AsyncEvent::CommEst { qpn }) = event {
            self.notify_communication(Qpn::new(qpn));
        }
        event
    }

    /// For requests that make an object known by a handle.
    pub(crate) fn call_for_handle(&self, request: &Request, name: &'static str) -> Result<u32, VerbsError> {
        match self.call(request)? {
            Reply::Handle(handle) => Ok(handle),
            _ => Err(VerbsError::UnexpectedReply { request: name }),
        }
    }

    /// Drives an engine on this thread; true if there is one.
    #[inline]
    pub(crate) fn make_progress(&self) -> bool {
        if self.polled && !self.is_inherited() {
            self.endpoint.make_progress();
        }
        self.polled
    }
}

/// The daemon's side of a handle: destroyed there when the handle is, here.
pub(crate) struct RemoteObject {
    pub(crate) context: Arc<ContextInner>,
    destroy: Option<Request>,
}

impl RemoteObject {
    pub(crate) fn new(context: &Arc<ContextInner>, destroy: Request) -> Self {
        Self { context: Arc::clone(context), destroy: Some(destroy) }
    }

    /// True once it was destroyed.
    pub(crate) fn is_released(&self) -> bool {
        self.destroy.is_none()
    }

    /// There is nothing to be destroyed any more.
    pub(crate) fn forget(&mut self) {
        self.destroy = None;
    }

    /// Destroys it, once. A child of its process only forgets it.
    pub(crate) fn release(&mut self) -> Result<(), VerbsError> {
        match self.destroy.take() {
            Some(_) if self.context.is_inherited() => Ok(()),
            Some(request) => self.context.call(&request).map(drop),
            None => Ok(()),
        }
    }
}

impl Drop for RemoteObject {
    fn drop(&mut self) {
        // Nobody is left to be told of a failure, and the end of the session frees everything.
        let _ = self.release();
    }
}

/// What the kernel calls this process: enough for a listing.
fn process_name() -> String {
    std::fs::read_to_string("/proc/self/comm").map_or_else(|_| "unnamed".to_owned(), |name| name.trim_end().to_owned())
}
