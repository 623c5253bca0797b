//! A socket: what it is at the moment, and waiting for it to become something else.
//!
//! Its number is the descriptor of an epoll instance, which is readable while one of its channels has news. A thread that waits looks
//! at that, and at an eventfd of its own: whoever takes news from a channel takes the reason to wake up from the others, and so has
//! to wake them.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::connect::{Connecting, Connection, End, Listener};
use super::datagram::Datagrams;
use super::options::{Defaults, Options};
use crate::entry::Failure;
use crate::events::lock;

/// What a descriptor in a socket's epoll instance is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// A channel of the connection manager.
    Events = 0,
    /// The channel of a completion queue.
    Completions = 1,
    /// The kernel's UDP, of a datagram socket.
    Messages = 2,
}

/// See the module.
pub(super) struct Socket {
    epoll: Epoll,
    pub(super) domain: c_int,
    pub(super) nonblocking: AtomicBool,
    inner: Mutex<Inner>,
    waiters: Mutex<Vec<Arc<EventFd>>>,
}

/// What is behind the lock.
pub(super) struct Inner {
    pub(super) options: Options,
    pub(super) phase: Phase,
    /// Its number is another's soon.
    pub(super) closed: bool,
}

/// What a socket is at the moment.
pub(super) enum Phase {
    /// New.
    Idle,
    Bound(Vec<End>),
    Listening(Listener),
    Connecting(Box<Connecting>),
    Connected(Box<Connection>),
    /// It could not be connected: why, until somebody was told.
    Failed(Option<c_int>),
    /// It is for datagrams, and always will be.
    Datagrams(Box<Datagrams>),
}

/// How long a call waits.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    /// Not at all.
    None,
    Until(Instant),
    Forever,
}

impl Patience {
    pub(super) fn left(self) -> Option<Duration> {
        match self {
            Self::None => Some(Duration::ZERO),
            Self::Until(end) => Some(end.saturating_duration_since(Instant::now())),
            Self::Forever => None,
        }
    }
}

/// A wait, for `poll`: in whole milliseconds, and never too short.
pub(super) fn poll_timeout(left: Option<Duration>) -> PollTimeout {
    left.map_or(PollTimeout::NONE, |left| {
        PollTimeout::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(PollTimeout::MAX)
    })
}

static SOCKETS: RwLock<Option<HashMap<RawFd, Arc<Socket>>>> = RwLock::new(None);

/// The socket of a number.
///
/// # Errors
/// `EBADF` if it is none of ours.
pub(super) fn find(number: c_int) -> Result<Arc<Socket>, Failure> {
    let sockets = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    sockets.as_ref().and_then(|sockets| sockets.get(&number)).cloned().ok_or(Errno::EBADF.into())
}

/// Takes a socket from its number.
///
/// # Errors
/// As [`find`].
pub(super) fn remove(number: c_int) -> Result<Arc<Socket>, Failure> {
    let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    sockets.as_mut().and_then(|sockets| sockets.remove(&number)).ok_or(Errno::EBADF.into())
}

impl Socket {
    /// A new socket.
    pub(super) fn new(domain: c_int, options: Options, phase: Phase) -> Result<Self, Failure> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let inner = Mutex::new(Inner { options, phase, closed: false });
        Ok(Self { epoll, domain, nonblocking: AtomicBool::new(false), inner, waiters: Mutex::default() })
    }

    /// Gives it its number.
    pub(super) fn publish(self) -> c_int {
        let number = self.epoll.0.as_raw_fd();
        let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
        sockets.get_or_insert_default().insert(number, Arc::new(self));
        number
    }

    pub(super) fn epoll(&self) -> &Epoll {
        &self.epoll
    }

    /// Has news of a channel come to this socket.
    pub(super) fn watch(&self, channel: BorrowedFd<'_>, source: Source) -> Result<(), Failure> {
        Ok(self.epoll.add(channel, EpollEvent::new(EpollFlags::EPOLLIN, source as u64))?)
    }

    /// How long a call waits that has these flags (`MSG_DONTWAIT`).
    pub(super) fn patience(&self, flags: c_int) -> Patience {
        let dont = flags & nix::libc::MSG_DONTWAIT != 0 || self.nonblocking.load(Ordering::Relaxed);
        if dont { Patience::None } else { Patience::Forever }
    }

    /// Does something to it, and wakes who waits for it.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let done = change(&mut lock(&self.inner));
        self.wake_others(None);
        done
    }

    /// Looks at it, with what has completed.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = lock(&self.inner);
        inner.process();
        look(&mut inner)
    }

    /// As [`Socket::with`], with the news of its channels; if `waker` is going to wait, completions make news from here on.
    pub(super) fn with_news<T>(&self, waker: Option<&EventFd>, look: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = lock(&self.inner);
        let has_news = self.take_news(&mut inner);
        if waker.is_some() {
            inner.arm();
        }
        inner.process();
        let seen = look(&mut inner);
        drop(inner);
        if has_news {
            self.wake_others(waker);
        }
        seen
    }

    fn take_news(&self, inner: &mut Inner) -> bool {
        let mut events = [EpollEvent::empty(); 4];
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        let is_of = |source: Source| events[..count].iter().any(|event| event.data() == source as u64);
        if is_of(Source::Completions) {
            inner.take_notifications();
        }
        if is_of(Source::Events) {
            inner.take_events(self);
        }
        if is_of(Source::Messages) {
            inner.take_messages(self);
        }
        count > 0
    }

    /// Waits until `test` has an answer.
    ///
    /// # Errors
    /// `EAGAIN` if there is none in time, `EINTR` for a signal, `EBADF` if it is closed meanwhile.
    pub(super) fn wait<T>(
        &self,
        patience: Patience,
        mut test: impl FnMut(&mut Inner) -> Option<Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let mut test = |inner: &mut Inner| if inner.closed { Some(Err(Errno::EBADF.into())) } else { test(inner) };
        if let Some(answer) = self.with(&mut test) {
            return answer;
        }
        if let Patience::None = patience {
            return self.with_news(None, &mut test).unwrap_or(Err(Errno::EAGAIN.into()));
        }
        // Answers of a fast network come before a thread is asleep.
        let end = Instant::now() + Defaults::get().polling;
        while Instant::now() < end {
            if let Some(answer) = self.with(&mut test) {
                return answer;
            }
        }
        let waiting = Waiting::new()?;
        waiting.add(self);
        loop {
            if let Some(answer) = self.with_news(Some(&waiting.waker), &mut test) {
                return answer;
            }
            let left = patience.left();
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Errno::EAGAIN.into());
            }
            let mut fds = [waiting.fd(), PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, poll_timeout(left))?;
            waiting.drain();
        }
    }

    fn wake_others(&self, own: Option<&EventFd>) {
        for waiter in
            lock(&self.waiters).iter().filter(|waiter| own.is_none_or(|own| !std::ptr::eq(&raw const ***waiter, own)))
        {
            // Fails only if it is awake many times over.
            let _ = waiter.write(1);
        }
    }
}

/// A thread that waits for sockets: they wake it as long as this lives.
pub(super) struct Waiting<'a> {
    pub(super) waker: Arc<EventFd>,
    sockets: std::cell::RefCell<Vec<&'a Socket>>,
}

thread_local! {
    static WAKER: OnceCell<Arc<EventFd>> = const { OnceCell::new() };
}

impl<'a> Waiting<'a> {
    pub(super) fn new() -> Result<Self, Failure> {
        let known = WAKER.with(|waker| waker.get().cloned());
        let waker = match known {
            Some(waker) => waker,
            None => {
                let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
                let made = Arc::new(EventFd::from_value_and_flags(0, flags)?);
                WAKER.with(|waker| Arc::clone(waker.get_or_init(|| made)))
            }
        };
        let waiting = Self { waker, sockets: std::cell::RefCell::default() };
        waiting.drain();
        Ok(waiting)
    }

    /// From now on this socket's changes wake us.
    pub(super) fn add(&self, socket: &'a Socket) {
        lock(&socket.waiters).push(Arc::clone(&self.waker));
        self.sockets.borrow_mut().push(socket);
    }

    pub(super) fn fd(&self) -> PollFd<'_> {
        PollFd::new(self.waker.as_fd(), PollFlags::POLLIN)
    }

    /// Forgets that it was woken.
    pub(super) fn drain(&self) {
        // Empty already, mostly.
        let _ = self.waker.read();
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        for socket in self.sockets.borrow().iter() {
            let mut waiters = lock(&socket.waiters);
            if let Some(at) = waiters.iter().position(|waiter| Arc::ptr_eq(waiter, &self.waker)) {
                waiters.swap_remove(at);
            }
        }
    }
}

impl Inner {
    /// Takes what has completed.
    fn process(&mut self) {
        match &mut self.phase {
            Phase::Connected(connection) => connection.stream.process(),
            Phase::Datagrams(datagrams) => datagrams.process(),
            _ => {}
        }
    }

    /// Completions make news from here on.
    fn arm(&mut self) {
        match &mut self.phase {
            Phase::Connected(connection) => connection.stream.arm(),
            Phase::Datagrams(datagrams) => datagrams.arm(),
            _ => {}
        }
    }

    /// What it is for datagrams, if it is for those.
    pub(super) fn datagrams(&mut self) -> Option<&mut Datagrams> {
        match &mut self.phase {
            Phase::Datagrams(datagrams) => Some(datagrams),
            _ => None,
        }
    }

    fn take_messages(&mut self, socket: &Socket) {
        if let Phase::Datagrams(datagrams) = &mut self.phase {
            datagrams.take_messages(socket, &self.options);
        }
    }

    fn take_notifications(&mut self) {
        if let Phase::Datagrams(datagrams) = &mut self.phase {
            datagrams.take_notifications();
        }
        if let Phase::Connected(connection) = &mut self.phase
            && !connection.stream.take_notifications()
        {
            connection.stream.process();
            connection.stream.fail(Errno::ENETDOWN);
        }
    }

    /// Its connection, if it has one that both sides know of.
    ///
    /// # Errors
    /// `None` while it is being made. `ENOTCONN` if nobody makes one; what went wrong, once; `EPIPE` after that.
    pub(super) fn connection(&mut self) -> Option<Result<&mut Connection, Failure>> {
        match &mut self.phase {
            Phase::Idle | Phase::Bound(_) | Phase::Listening(_) => Some(Err(Errno::ENOTCONN.into())),
            Phase::Datagrams(_) => Some(Err(crate::entry::NOT_OFFERED)),
            Phase::Connecting(_) => None,
            Phase::Failed(error) => Some(Err(Failure(error.take().unwrap_or(Errno::ENOTCONN as c_int)))),
            Phase::Connected(connection) if !connection.stream.confirmed && !connection.stream.is_ended() => None,
            Phase::Connected(connection) => Some(Ok(connection)),
        }
    }

    /// What went wrong; nobody is told again.
    pub(super) fn take_error(&mut self) -> Option<c_int> {
        match &mut self.phase {
            Phase::Connected(connection) => connection.stream.error.take(),
            Phase::Failed(error) => error.take(),
            Phase::Datagrams(datagrams) => datagrams.udp().take_error().ok()??.raw_os_error(),
            _ => None,
        }
    }

    /// What `poll` says of it.
    pub(super) fn readiness(&self) -> PollFlags {
        let (input, output) = (PollFlags::POLLIN | PollFlags::POLLRDNORM, PollFlags::POLLOUT | PollFlags::POLLWRNORM);
        let mut ready = PollFlags::empty();
        match &self.phase {
            _ if self.closed => ready = PollFlags::POLLNVAL,
            Phase::Idle | Phase::Bound(_) => ready = output | PollFlags::POLLHUP,
            Phase::Connecting(_) => {}
            Phase::Listening(listener) => ready.set(input, listener.has_request()),
            Phase::Datagrams(datagrams) => {
                ready.set(input, datagrams.has_message());
                ready.set(output, datagrams.can_send());
            }
            Phase::Failed(error) => {
                ready = input | output | PollFlags::POLLHUP;
                ready.set(PollFlags::POLLERR, error.is_some());
            }
            Phase::Connected(connection) => {
                let stream = &connection.stream;
                ready.set(input, stream.unread() > 0 || stream.is_read_closed());
                // Writing would say at once that it can't be.
                ready.set(output, (stream.confirmed && stream.can_send()) || stream.is_write_closed());
                ready.set(PollFlags::from_bits_retain(nix::libc::POLLRDHUP), stream.is_read_closed());
                // What has come before the end is to be read before it.
                let is_over = stream.is_ended() || (stream.is_read_closed() && stream.write_shut);
                ready.set(PollFlags::POLLHUP, is_over && stream.unread() == 0);
                ready.set(PollFlags::POLLERR, stream.error.is_some());
            }
        }
        ready
    }
}
