//! The control thread: clients, their requests, events for them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::queue::SegQueue;
use engine::Time;
use engine::control::{Control, Peer};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pmd::Clock;
use shm::control::{CallError, MESSAGE_BYTES_MAX, Request, Stats};
use shm::socket;
use shm::wake::WakeFd;

use crate::control_socket::ControlSocket;
use crate::port::{OpenPort, follow_ports, follow_qos};
use crate::session::{Answer, EventSocket, add_device_stats, answer, entropy, set_nonblocking};
use crate::threads::Lcores;

/// Clients over the limit that may wait for the sentence that says so; the oldest of more are disconnected without one.
const TURNED_AWAY_MAX: usize = 32;
/// How long nobody is accepted after the operating system refused (too many open files).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Clients that are accepted in a row.
const ACCEPTS_MAX: usize = 64;
/// From one warning about a client to the next.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(1);

/// How often ports are looked at that nobody tells changes of.
const LINK_POLL: Duration = Duration::from_secs(1);

/// Errnos of refusals.
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EPROTO: i32 = 71;

/// Warnings about what clients do: one in [`COMPLAINT_PAUSE`], so that no client fills the log.
#[derive(Debug, Default)]
struct Complaints {
    next: Option<Instant>,
    unsaid: u64,
}

impl Complaints {
    /// If it is time for the next one, how many were left out before it.
    fn take(&mut self) -> Option<u64> {
        let now = Instant::now();
        if self.next.is_some_and(|next| now < next) {
            self.unsaid += 1;
            return None;
        }
        self.next = Some(now + COMPLAINT_PAUSE);
        Some(std::mem::take(&mut self.unsaid))
    }
}

/// A connected client.
#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    events: Option<EventSocket>,
}

/// Sockets of clients in this process, on their way to the control thread.
pub(crate) type Incoming = Arc<SegQueue<OwnedFd>>;

/// The control thread's state.
pub(crate) struct Server {
    control: Control,
    /// Clients by session.
    clients: BTreeMap<u32, Client>,
    /// Clients that find no room, and why: told when they say hello.
    turned_away: Vec<(OwnedFd, String)>,
    listener: Option<ControlSocket>,
    accept_again: Option<Instant>,
    incoming: Incoming,
    /// Rung by lcores with events, and for `incoming`.
    wake: Arc<WakeFd>,
    lcores: Lcores,
    ports: Vec<OpenPort>,
    /// When to look at their links next; `None` if the kernel tells.
    next_link_poll: Option<Instant>,
    clock: Clock,
    complaints: Complaints,
    /// A message.
    buffer: Vec<u8>,
}

/// What [`Server::wait`] found.
#[derive(Default)]
struct Ready {
    stop: bool,
    wake: bool,
    ports: bool,
    listener: bool,
    clients: Vec<u32>,
    turned_away: Vec<usize>,
}

impl Server {
    /// A server without clients. `wake` is the eventfd that the lcores ring.
    pub(crate) fn new(
        config: Arc<engine::config::EngineConfig>,
        mut lcores: Lcores,
        mut ports: Vec<OpenPort>,
        clock: Clock,
        wake: Arc<WakeFd>,
        listener: Option<ControlSocket>,
    ) -> Self {
        let mut control = Control::new(config, entropy(), Time::from_ns(clock.now_ns()));
        for (port, index) in ports.iter_mut().zip(0..) {
            port.follow_qos(&mut control, &mut lcores.mailboxes, index);
        }
        let all_told = ports.iter().all(|port| port.change_fd().is_some());
        Self {
            next_link_poll: (!all_told).then(Instant::now),
            control,
            clients: BTreeMap::new(),
            turned_away: Vec::new(),
            listener,
            accept_again: None,
            incoming: Incoming::default(),
            wake,
            lcores,
            ports,
            clock,
            complaints: Complaints::default(),
            buffer: vec![0; MESSAGE_BYTES_MAX],
        }
    }

    /// Where sockets of clients in this process are put; ring the wake eventfd afterwards.
    pub(crate) fn incoming(&self) -> Incoming {
        Arc::clone(&self.incoming)
    }

    /// Serves until `stop` is readable; then ends all sessions.
    pub(crate) fn run(mut self, stop: BorrowedFd<'_>) -> std::io::Result<()> {
        loop {
            let ready = self.wait(stop)?;
            if ready.stop {
                break;
            }
            for place in ready.turned_away.into_iter().rev() {
                let (socket, sentence) = self.turned_away.remove(place);
                // A socket that is closed with something unread resets the connection, and the sentence would be lost.
                let _hello = socket::receive(socket.as_fd(), &mut self.buffer);
                Self::send(&mut self.complaints, &socket, &Answer::refused(EAGAIN, sentence));
            }
            if ready.wake {
                self.wake.drain();
                self.deliver_events();
                self.deliver_mads();
                while let Some(socket) = self.incoming.pop() {
                    self.admit(socket);
                }
            }
            if ready.ports {
                self.follow_ports();
            }
            for session in ready.clients {
                if !self.serve(session) {
                    self.end(session);
                }
            }
            if ready.listener {
                self.accept();
            }
            let now = self.now();
            self.control.turn(&mut self.lcores.mailboxes, now);
        }
        self.control.close_all(&mut self.lcores.mailboxes);
        self.clients.clear();
        Ok(())
    }

    /// Waits until there is something to do.
    fn wait(&mut self, stop: BorrowedFd<'_>) -> std::io::Result<Ready> {
        let now = Instant::now();
        self.accept_again = self.accept_again.filter(|&again| again > now);
        let wake_at = self.accept_again.into_iter().chain(self.next_link_poll).min();
        let pause = wake_at.map(|at| at.saturating_duration_since(now));
        let watch = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let listener = self.listener.as_ref().filter(|_| self.accept_again.is_none());
        let mut fds = vec![watch(stop), watch(self.wake.as_fd())];
        fds.extend(self.ports.iter().filter_map(OpenPort::change_fd).map(watch));
        let told_ports = fds.len() - 2;
        fds.extend(listener.map(|listener| watch(listener.as_fd())));
        fds.extend(self.turned_away.iter().map(|(socket, _)| watch(socket.as_fd())));
        fds.extend(self.clients.values().map(|client| watch(client.socket.as_fd())));
        let timeout = self.timeout(pause);
        match poll(&mut fds, timeout) {
            Ok(_) => {}
            Err(nix::Error::EINTR) => return Ok(Ready::default()),
            Err(errno) => return Err(errno.into()),
        }
        let mut found = fds.iter().map(|fd| fd.any().unwrap_or(true));
        let mut next = || found.next().unwrap_or(false);
        let (stop, wake) = (next(), next());
        let told = (0..told_ports).filter(|_| next()).count() > 0;
        let ports = told || self.next_link_poll.is_some_and(|at| at <= Instant::now());
        let listener = listener.is_some() && next();
        let turned_away = (0..self.turned_away.len()).filter(|_| next()).collect();
        let clients = self.clients.keys().copied().filter(|_| next()).collect();
        Ok(Ready { stop, wake, ports, listener, clients, turned_away })
    }

    /// How long to wait: for `pause`, or until the engine's control side has something to do.
    fn timeout(&self, pause: Option<Duration>) -> PollTimeout {
        let due = match self.control.next_deadline() {
            Time::NEVER => None,
            due => Some(Duration::from_nanos(due.ns_since(self.now()))),
        };
        let earliest = [pause, due].into_iter().flatten().min();
        // Waits are whole milliseconds: one more, so that it is time afterwards.
        let wait = earliest.map(|wait| PollTimeout::try_from(wait + Duration::from_millis(1)));
        wait.map_or(PollTimeout::NONE, |wait| wait.unwrap_or(PollTimeout::MAX))
    }

    fn now(&self) -> Time {
        Time::from_ns(self.clock.now_ns())
    }

    /// Takes connections that wait, so many at a time that the clients that are in get their turn.
    fn accept(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            let Some(listener) = &self.listener else { return };
            match listener.accept() {
                Ok(Some(socket)) => self.admit(socket),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!("a client could not be accepted: {error}");
                    self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// Opens a session for a new client.
    fn admit(&mut self, socket: OwnedFd) {
        let peer = set_nonblocking(&socket).and_then(|()| socket::peer_credentials(&socket));
        let (pid, uid) = match peer {
            Ok(peer) => peer,
            Err(error) => return tracing::warn!("a client could not be admitted: {error}"),
        };
        match self.control.open_session(Peer { pid, uid }) {
            Ok(session) => {
                tracing::debug!(session, pid, uid, "session opened");
                self.clients.insert(session, Client { socket, events: None });
            }
            Err(sentence) => {
                if let Some(unsaid) = self.complaints.take() {
                    tracing::warn!(pid, uid, unsaid, "a client is turned away: {sentence}");
                }
                // Whoever says hello is answered at once: the one that has waited longest is the least likely to.
                if self.turned_away.len() >= TURNED_AWAY_MAX {
                    self.turned_away.remove(0);
                }
                self.turned_away.push((socket, sentence));
            }
        }
    }

    /// Ends a session: everything that the client had goes.
    fn end(&mut self, session: u32) {
        self.control.close_session(&mut self.lcores.mailboxes, session);
        self.clients.remove(&session);
        tracing::debug!(session, "session ended");
    }

    /// Answers one request of a client. False if the session is over.
    fn serve(&mut self, session: u32) -> bool {
        let Some(client) = self.clients.get(&session) else { return true };
        let (length, fds) = match socket::receive(client.socket.as_fd(), &mut self.buffer) {
            Ok(message) => message,
            Err(CallError::Io(error)) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
            Err(CallError::Malformed) => return self.reject(session),
            Err(CallError::NoDescriptors) => return self.refuse_for_want_of_descriptors(session),
            Err(_) => return false,
        };
        let decoded = self.buffer.get(..length).ok_or(CallError::Malformed).and_then(shm::control::decode::<Request>);
        let Ok(request) = decoded else { return self.reject(session) };
        let Self { control, lcores, clock, ports, .. } = self;
        let now = Time::from_ns(clock.now_ns());
        let mailboxes = Arc::clone(&lcores.mailboxes.0);
        let more_stats = |stats: &mut Stats| {
            for (mailbox, number) in mailboxes.iter().zip(0..) {
                stats.groups.push((format!("lcore {number}"), mailbox.counters.entries()));
            }
            add_device_stats(ports, stats);
        };
        let sets_qos = matches!(request, Request::SetQos { .. });
        let mut answer = answer(control, &mut lcores.mailboxes, session, now, (request, fds), more_stats);
        if sets_qos {
            follow_qos(ports, control, &mut lcores.mailboxes, &mut answer.reply);
        }
        let events = answer.events.take();
        let Some(client) = self.clients.get_mut(&session) else { return false };
        if events.is_some() {
            client.events = events;
        }
        let Some(client) = self.clients.get(&session) else { return false };
        Self::send(&mut self.complaints, &client.socket, &answer)
    }

    /// What came is no request: the client does not speak our language, and the session ends.
    fn reject(&mut self, session: u32) -> bool {
        if let Some(unsaid) = self.complaints.take() {
            tracing::warn!(session, unsaid, "a client sent what is no request, and is disconnected");
        }
        if let Some(client) = self.clients.get(&session) {
            let sentence = "the daemon can't understand the request: is the client of another version?";
            Self::send(&mut self.complaints, &client.socket, &Answer::refused(EPROTO, sentence.to_owned()));
        }
        false
    }

    /// What the client passes on can't be taken at this time: it may try again.
    fn refuse_for_want_of_descriptors(&mut self, session: u32) -> bool {
        let Some(client) = self.clients.get(&session) else { return false };
        let sentence = "the daemon has as many open files as it may, and can take no file descriptor";
        Self::send(&mut self.complaints, &client.socket, &Answer::refused(ENOMEM, sentence.to_owned()))
    }

    /// Sends an answer without waiting. False if the client does not take it.
    fn send(complaints: &mut Complaints, socket: &OwnedFd, answer: &Answer) -> bool {
        let fds: Vec<BorrowedFd<'_>> = answer.fds.iter().map(AsFd::as_fd).collect();
        match socket::send(socket.as_fd(), &answer.reply, &fds) {
            Ok(()) => true,
            Err(CallError::Disconnected) => false,
            Err(error) => {
                if let Some(unsaid) = complaints.take() {
                    tracing::warn!(unsaid, "a client does not take its answer, and is disconnected: {error}");
                }
                false
            }
        }
    }

    /// Gives the control side what came in for QP1.
    fn deliver_mads(&mut self) {
        let mailboxes = Arc::clone(&self.lcores.mailboxes.0);
        for mailbox in mailboxes.iter() {
            while let Some(mad) = mailbox.take_mad() {
                let now = self.now();
                self.control.handle_mad(&mut self.lcores.mailboxes, now, &mad);
            }
        }
        while let Some(notice) = self.control.poll_notice() {
            tracing::info!("{notice}");
        }
    }

    /// Looks whether ports have changed, and tells every client.
    fn follow_ports(&mut self) {
        self.next_link_poll = self.next_link_poll.map(|_| Instant::now() + LINK_POLL);
        for event in follow_ports(&mut self.ports, &mut self.control, &mut self.lcores.mailboxes) {
            for (&session, client) in &mut self.clients {
                if let Some(events) = &mut client.events {
                    events.send(session, &event);
                }
            }
        }
    }

    /// Passes the lcores' events on.
    fn deliver_events(&mut self) {
        let now = self.now();
        for mailbox in self.lcores.mailboxes.0.iter() {
            while let Some(event) = mailbox.take_event() {
                tracing::debug!(session = event.session, event = ?event.event, "event");
                self.control.observe_event(now, &event);
                let events = self.clients.get_mut(&event.session).and_then(|client| client.events.as_mut());
                if let Some(events) = events {
                    events.send(event.session, &event.event);
                }
            }
            while let Some(notice) = mailbox.take_notice() {
                tracing::warn!("{notice}");
            }
        }
    }
}
