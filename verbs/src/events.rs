//! Asynchronous events, and noticing that the daemon is gone.
//!
//! Events come on a socket of their own. Where a daemon is at the other end, a thread per context reads it: so the end of
//! the daemon, which the socket's end tells, is seen at once whatever the application does meanwhile. Embedded engines get
//! no thread: there the socket is read when the application asks.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::time::TimeSpec;
use shm::control::{self, AsyncEvent, CallError};
use shm::fork::Process;
use shm::socket;
use shm::wake::Notifier;

use crate::VerbsError;
use crate::error::lock;

/// Events kept for an application that does not ask for them; later ones are lost.
const QUEUE_MAX: usize = 4096;
/// An encoded event is a few bytes.
const EVENT_BYTES_MAX: usize = 256;

/// Counts an eventfd up, which wakes whoever waits for it. Fails only if its count is at its limit: then it is readable.
pub(crate) fn ring(eventfd: BorrowedFd<'_>) {
    let _ = nix::unistd::write(eventfd, &1u64.to_ne_bytes());
}

/// Takes an eventfd's count, so that it is not readable until it is rung again. The caller keeps others from doing the same, so
/// that the read does not wait even if the descriptor is a blocking one.
pub(crate) fn drain(eventfd: BorrowedFd<'_>) {
    if ppoll(&mut [PollFd::new(eventfd, PollFlags::POLLIN)], Some(TimeSpec::new(0, 0)), None)
        .is_ok_and(|count| count > 0)
    {
        let _ = nix::unistd::read(eventfd, &mut [0; 8]);
    }
}

/// Makes reads of a descriptor return at once.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), VerbsError> {
    let flags = fcntl(fd, FcntlArg::F_GETFL).map_err(VerbsError::os("fcntl(F_GETFL)"))?;
    let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
    fcntl(fd, FcntlArg::F_SETFL(flags)).map_err(VerbsError::os("fcntl(F_SETFL)"))?;
    Ok(())
}

/// When a wait ends: `None` = never.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// The moment `timeout` from now; so far away that it can't be told counts as never.
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    fn left(self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// True once it has come.
    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }

    /// Waits until a descriptor is readable (true), or the deadline comes.
    pub(crate) fn wait_readable(self, fd: BorrowedFd<'_>) -> Result<bool, VerbsError> {
        loop {
            let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
            match ppoll(&mut fds, self.left().map(TimeSpec::from_duration), None) {
                Ok(count) => return Ok(count > 0),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(VerbsError::os("ppoll")(errno)),
            }
        }
    }
}

/// What a context and its watcher thread share.
pub(crate) struct Events {
    dead: AtomicBool,
    queue: Mutex<VecDeque<AsyncEvent>>,
    /// Readable while the queue holds something. Blocking or not is the application's to say: it may have the descriptor.
    ready: EventFd,
    /// Completion channels, to be notified when the daemon is gone.
    channels: Mutex<Vec<Weak<Notifier>>>,
}

impl Events {
    pub(crate) fn new() -> Result<Self, VerbsError> {
        let ready = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC);
        let ready = ready.map_err(VerbsError::os("eventfd"))?;
        Ok(Self { dead: AtomicBool::new(false), queue: Mutex::default(), ready, channels: Mutex::default() })
    }

    /// True once the daemon is gone.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        // PAIRS WITH: the swap in `fail`: who sees the flag also sees every completion the daemon ever wrote.
        self.dead.load(Acquire)
    }

    /// Notes that the daemon is gone: queues the event, wakes every waiting thread.
    pub(crate) fn fail(&self) {
        // PAIRS WITH: the load in `is_dead`.
        if self.dead.swap(true, AcqRel) {
            return;
        }
        self.push(AsyncEvent::DeviceFatal);
        for channel in lock(&self.channels).iter().filter_map(Weak::upgrade) {
            channel.notify();
        }
    }

    /// A channel made just before the daemon died may miss its ring; but then its owner sees [`Events::is_dead`].
    pub(crate) fn register_channel(&self, notifier: &Arc<Notifier>) {
        let mut channels = lock(&self.channels);
        channels.retain(|channel| channel.strong_count() > 0);
        channels.push(Arc::downgrade(notifier));
    }

    fn push(&self, event: AsyncEvent) {
        let mut queue = lock(&self.queue);
        // The last event of all must not be lost to those before it.
        if queue.len() < QUEUE_MAX || event == AsyncEvent::DeviceFatal {
            queue.push_back(event);
            ring(self.ready.as_fd());
        }
    }

    fn take(&self) -> Option<AsyncEvent> {
        let mut queue = lock(&self.queue);
        let event = queue.pop_front();
        if queue.is_empty() {
            drain(self.ready.as_fd());
        }
        event
    }

    /// Moves what the socket holds to the queue; notices its end.
    fn read_socket(&self, socket: BorrowedFd<'_>) {
        let mut buffer = [0; EVENT_BYTES_MAX];
        loop {
            match socket::receive(socket, &mut buffer) {
                // An event this library can't read is none it could act upon.
                Ok((length, _)) => {
                    if let Ok(event) = control::decode(&buffer[..length]) {
                        self.push(event);
                    }
                }
                Err(CallError::Malformed) => {}
                Err(CallError::Io(error)) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => return self.fail(),
            }
        }
    }
}

/// Where a context's events come from.
pub(crate) enum EventSource {
    /// A thread reads the socket, as long as this lives.
    Watched {
        /// Never looked at.
        _watcher: Watcher,
    },
    /// The application's own calls read it.
    Direct(OwnedFd),
}

impl EventSource {
    /// Takes over an event socket; `watched`: by a thread.
    pub(crate) fn new(socket: OwnedFd, watched: bool, events: &Arc<Events>) -> Result<Self, VerbsError> {
        set_nonblocking(socket.as_fd())?;
        if watched {
            Ok(Self::Watched { _watcher: Watcher::start(socket, Arc::clone(events))? })
        } else {
            Ok(Self::Direct(socket))
        }
    }

    /// Readable when [`EventSource::next`] would have something.
    pub(crate) fn fd<'a>(&'a self, events: &'a Events) -> BorrowedFd<'a> {
        match self {
            Self::Watched { .. } => events.ready.as_fd(),
            Self::Direct(socket) => socket.as_fd(),
        }
    }

    /// The next event, if one is there.
    pub(crate) fn next(&self, events: &Events) -> Option<AsyncEvent> {
        if let (Self::Direct(socket), false) = (self, events.is_dead()) {
            events.read_socket(socket.as_fd());
        }
        events.take()
    }
}

/// The thread that reads the event socket of a daemon. Ends when dropped.
pub(crate) struct Watcher {
    process: Process,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    fn start(socket: OwnedFd, events: Arc<Events>) -> Result<Self, VerbsError> {
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(VerbsError::os("eventfd"))?;
        let stop = Arc::new(stop);
        let theirs = Arc::clone(&stop);
        // The application's signal handlers must not run on a thread that it does not know of.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).map_err(VerbsError::os("sigmask"))?;
        let run = move || watch(socket.as_fd(), &events, &theirs);
        let thread = std::thread::Builder::new().name("ferroce-events".to_owned()).spawn(run);
        before.thread_set_mask().map_err(VerbsError::os("sigmask"))?;
        let thread = thread.map_err(|error| VerbsError::Os { call: "starting a thread", error })?;
        Ok(Self { process: Process::current(), stop, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // A forked child has no such thread, and the descriptor is the parent's too.
            std::mem::forget(self.thread.take());
            return;
        }
        ring(self.stop.as_fd());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(socket: BorrowedFd<'_>, events: &Events, stop: &EventFd) {
    while !events.is_dead() {
        let mut fds = [PollFd::new(socket, PollFlags::POLLIN), PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut fds, None, None) {
            Ok(_) | Err(Errno::EINTR) => {}
            // Unable to watch is unable to promise: better a false alarm than a hang.
            Err(_) => return events.fail(),
        }
        if fds[1].any() == Some(true) {
            return;
        }
        events.read_socket(socket);
    }
}
