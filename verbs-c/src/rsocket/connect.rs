//! From a new socket to a connected one: binding, listening, accepting, connecting.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use ferroce::VerbsError;
use ferroce::cm::{CmEvent, CmEventType, CmId, ConnParam, EventChannel, PortSpace};
use nix::errno::Errno;
use nix::libc;

use super::datagram;
use super::options::Options;
use super::socket::{Inner, Patience, Phase, Socket, Source};
use super::stream::Stream;
use super::wire::Hello;
use crate::cm::devices::{self, Device};
use crate::entry::{self, Failure};

/// Each step of finding a peer takes so long at most.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Events taken from a channel in one go: one that is never empty must not keep its thread for ever.
const EVENTS_MAX: usize = 256;

/// An id on one device, with a channel of its own.
pub(super) struct End {
    // First: an id goes before its channel.
    id: CmId,
    channel: EventChannel,
    device: Arc<Device>,
}

impl End {
    fn new(device: &Arc<Device>) -> Result<Self, Failure> {
        let channel = EventChannel::new(device.context())?;
        let id = channel.create_id(PortSpace::Tcp)?;
        Ok(Self { id, channel, device: Arc::clone(device) })
    }
}

/// A socket that listens: an end on each device, and the requests that nobody has accepted yet.
pub(super) struct Listener {
    requests: VecDeque<CmEvent>,
    ends: Vec<End>,
}

impl Listener {
    pub(super) fn has_request(&self) -> bool {
        !self.requests.is_empty()
    }
}

/// A socket that is being connected.
pub(super) struct Connecting {
    /// Once the way to the peer is known.
    stream: Option<Stream>,
    end: End,
}

/// A connected socket.
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) id: CmId,
    channel: EventChannel,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Takes the QP to ERR, and tells a peer that has not gone; a second time is no matter.
        let _ = self.id.disconnect();
        self.id.take_qp();
    }
}

impl Inner {
    /// The addresses of both ends, as far as there are any.
    pub(super) fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let id = match &self.phase {
            Phase::Datagrams(datagrams) => return datagrams.addresses(),
            Phase::Idle | Phase::Failed(_) => None,
            Phase::Bound(ends) => ends.first().map(|end| &end.id),
            Phase::Listening(listener) => listener.ends.first().map(|end| &end.id),
            Phase::Connecting(connecting) => Some(&connecting.end.id),
            Phase::Connected(connection) => Some(&connection.id),
        };
        id.and_then(|id| id.query().ok()).map_or((None, None), |info| (info.local, info.peer))
    }

    /// Bytes of a packet's data at most (`TCP_MAXSEG`): the path's MTU.
    pub(super) fn segment_bytes(&self) -> c_int {
        const UNKNOWN: c_int = 1024;
        let Phase::Connected(connection) = &self.phase else { return UNKNOWN };
        let code = connection.id.query().map_or(0, |info| info.path_mtu);
        // IBTA 9.5: code 1 is 256 bytes, 5 is 4096.
        if (1..=5).contains(&code) { 128 << code } else { UNKNOWN }
    }

    /// Binds to an address on the device that has it, or on all of them.
    ///
    /// # Errors
    /// `EINVAL` if it is bound already; `EADDRNOTAVAIL`, `EADDRINUSE`.
    fn bind(&mut self, mut addr: SocketAddr) -> Result<(), Failure> {
        if !matches!(self.phase, Phase::Idle) {
            return Err(entry::INVALID);
        }
        let mut ends: Vec<End> = Vec::new();
        for device in devices::all()? {
            let end = End::new(&device)?;
            match end.id.bind_addr(addr) {
                Ok(info) => {
                    // The same port on every device.
                    addr.set_port(info.local.map_or(0, |local| local.port()));
                    ends.push(end);
                    if !addr.ip().is_unspecified() {
                        break;
                    }
                }
                Err(error) if error.errno() == libc::EADDRNOTAVAIL => {}
                Err(error) => return Err(error.into()),
            }
        }
        if ends.is_empty() {
            return Err(Errno::EADDRNOTAVAIL.into());
        }
        self.phase = Phase::Bound(ends);
        Ok(())
    }

    fn listen(&mut self, socket: &Socket, backlog: u32) -> Result<(), Failure> {
        if matches!(self.phase, Phase::Idle) {
            let any: IpAddr = if socket.domain == libc::AF_INET6 {
                Ipv6Addr::UNSPECIFIED.into()
            } else {
                Ipv4Addr::UNSPECIFIED.into()
            };
            self.bind((any, 0).into())?;
        }
        match &mut self.phase {
            Phase::Bound(ends) => {
                for end in ends.iter() {
                    socket.watch(end.channel.as_fd(), Source::Events)?;
                    end.id.listen(backlog)?;
                }
                let ends = std::mem::take(ends);
                self.phase = Phase::Listening(Listener { requests: VecDeque::new(), ends });
                Ok(())
            }
            // Another backlog for the same listener: there is no call for it, and no harm in the old one.
            Phase::Listening(_) => Ok(()),
            Phase::Datagrams(_) => Err(entry::NOT_OFFERED),
            _ => Err(entry::INVALID),
        }
    }

    /// Sets out for a peer.
    ///
    /// # Errors
    /// `EISCONN`, `EALREADY`, `EOPNOTSUPP` for a listener; `ENETUNREACH` and the like.
    fn connect(&mut self, socket: &Socket, addr: SocketAddr) -> Result<(), Failure> {
        let bound = match &mut self.phase {
            Phase::Idle | Phase::Failed(_) => Vec::new(),
            Phase::Bound(ends) => std::mem::take(ends),
            Phase::Listening(_) | Phase::Datagrams(_) => return Err(entry::NOT_OFFERED),
            Phase::Connecting(_) => return Err(Errno::EALREADY.into()),
            Phase::Connected(_) => return Err(Errno::EISCONN.into()),
        };
        self.phase = Phase::Failed(None);
        let local = bound.first().and_then(|end| end.id.query().ok()?.local);
        let device = devices::towards(local, addr)?;
        let end = match bound.into_iter().find(|end| Arc::ptr_eq(&end.device, &device)) {
            Some(end) => end,
            None => End::new(&device)?,
        };
        socket.watch(end.channel.as_fd(), Source::Events)?;
        end.id.resolve_addr(local, addr, RESOLVE_TIMEOUT)?;
        self.phase = Phase::Connecting(Box::new(Connecting { stream: None, end }));
        Ok(())
    }

    /// Takes the news of the connection manager.
    pub(super) fn take_events(&mut self, socket: &Socket) {
        for _ in 0..EVENTS_MAX {
            let taken = match &self.phase {
                Phase::Idle | Phase::Bound(_) | Phase::Failed(_) | Phase::Datagrams(_) => return,
                Phase::Listening(listener) => next_of(&listener.ends),
                Phase::Connecting(connecting) => connecting.end.channel.try_get_event(),
                Phase::Connected(connection) => connection.channel.try_get_event(),
            };
            match taken {
                Ok(None) => return,
                Ok(Some(event)) => self.take_event(socket, event),
                Err(error) => return self.break_off(Failure::from(error)),
            }
        }
    }

    fn take_event(&mut self, socket: &Socket, event: CmEvent) {
        match &mut self.phase {
            Phase::Listening(listener) => {
                if event.event_type() == CmEventType::ConnectRequest {
                    listener.requests.push_back(event);
                }
            }
            Phase::Connecting(connecting) => {
                let is_there = connecting.step(socket, &self.options, &event);
                drop(event);
                match is_there {
                    Ok(false) => {}
                    Ok(true) => self.arrive(),
                    Err(failure) => self.break_off(failure),
                }
            }
            Phase::Connected(connection) => connection.note(&event),
            Phase::Idle | Phase::Bound(_) | Phase::Failed(_) | Phase::Datagrams(_) => {}
        }
    }

    /// The peer is connected, too.
    fn arrive(&mut self) {
        let Phase::Connecting(connecting) = std::mem::replace(&mut self.phase, Phase::Failed(None)) else { return };
        let Connecting { stream, end } = *connecting;
        if let Some(mut stream) = stream {
            // The second buffer is the peer's at once.
            stream.confirmed = true;
            stream.process();
            let End { id, channel, .. } = end;
            self.phase = Phase::Connected(Box::new(Connection { stream, id, channel }));
        }
    }

    /// It can't go on.
    fn break_off(&mut self, Failure(errno): Failure) {
        match &mut self.phase {
            Phase::Connected(connection) => connection.stream.fail(Errno::from_raw(errno)),
            Phase::Connecting(_) | Phase::Listening(_) => self.phase = Phase::Failed(Some(errno)),
            Phase::Idle | Phase::Bound(_) | Phase::Failed(_) | Phase::Datagrams(_) => {}
        }
    }
}

fn next_of(ends: &[End]) -> Result<Option<CmEvent>, VerbsError> {
    ends.iter().find_map(|end| end.channel.try_get_event().transpose()).transpose()
}

impl Connecting {
    /// Goes on as an event allows. True once the peer is connected.
    fn step(&mut self, socket: &Socket, options: &Options, event: &CmEvent) -> Result<bool, Failure> {
        if let Some(error) = event.error() {
            return Err(VerbsError::from(error).into());
        }
        let id = &self.end.id;
        match event.event_type() {
            CmEventType::AddrResolved => id.resolve_route(RESOLVE_TIMEOUT)?,
            CmEventType::RouteResolved => {
                let stream = Stream::new(self.end.device.context(), id, options)?;
                socket.watch(stream.channel.as_fd(), Source::Completions)?;
                id.connect(&ConnParam { private_data: stream.hello().to_bytes().to_vec(), ..param() })?;
                self.stream = Some(stream);
            }
            CmEventType::Established => {
                let (Some(stream), Ok(hello)) = (&mut self.stream, Hello::parse(event.private_data())) else {
                    // Whoever it is, it speaks another protocol.
                    let _ = id.disconnect();
                    return Err(Errno::ECONNREFUSED.into());
                };
                stream.meet(&hello);
                return Ok(true);
            }
            CmEventType::Disconnected => return Err(Errno::ECONNRESET.into()),
            _ => {}
        }
        Ok(false)
    }
}

/// What all connections have in common: no READs and no atomics; who does not post a receive in time is waited for.
fn param() -> ConnParam {
    ConnParam { flow_control: true, retry_count: 7, rnr_retry_count: 7, ..ConnParam::default() }
}

impl Connection {
    fn note(&mut self, event: &CmEvent) {
        match event.event_type() {
            CmEventType::Established => self.stream.confirmed = true,
            CmEventType::Disconnected => {
                // Who goes in peace has said so on the connection: it is among what has completed by now.
                self.stream.process();
                self.stream.fail(Errno::ECONNRESET);
                let _ = self.id.disconnect();
            }
            _ if event.error().is_some() => self.stream.fail(Errno::ECONNRESET),
            _ => {}
        }
    }

    /// Accepts a request: the new socket, which waits for the peer to confirm.
    ///
    /// # Errors
    /// `ECONNABORTED` if the peer is none of us, or gone; else what there is not enough of.
    fn accept(event: CmEvent, domain: c_int, options: &Options) -> Result<(Socket, Option<SocketAddr>), Failure> {
        let Ok(hello) = Hello::parse(event.private_data()) else {
            // Why not, it can't be told: who asks has another protocol.
            let _ = event.id().reject(&[]);
            return Err(Errno::ECONNABORTED.into());
        };
        let (id, answer, peer) = (event.id().clone(), event.answer(), event.info().peer);
        drop(event);
        let context = id.context();
        let channel = EventChannel::new(&context)?;
        id.migrate(&channel)?;
        let socket = Socket::new(domain, options.clone(), Phase::Idle)?;
        socket.watch(channel.as_fd(), Source::Events)?;
        let mut stream = Stream::new(&context, &id, options)?;
        socket.watch(stream.channel.as_fd(), Source::Completions)?;
        stream.meet(&hello);
        let param = ConnParam {
            private_data: stream.hello().to_bytes().to_vec(),
            responder_resources: answer.responder_resources,
            initiator_depth: answer.initiator_depth,
            ..param()
        };
        id.accept(&param).map_err(|_| Failure::from(Errno::ECONNABORTED))?;
        let connection = Self { stream, id, channel };
        socket.change(|inner| inner.phase = Phase::Connected(Box::new(connection)));
        Ok((socket, peer))
    }
}

/// `rbind`.
pub(super) fn bind(socket: &Socket, addr: SocketAddr) -> Result<(), Failure> {
    datagram::bind(socket, addr).unwrap_or_else(|| socket.change(|inner| inner.bind(addr)))
}

/// `rlisten`: a backlog of 0 or less still lets one in.
pub(super) fn listen(socket: &Socket, backlog: c_int) -> Result<(), Failure> {
    let backlog = u32::try_from(backlog).unwrap_or(0).max(1);
    socket.change(|inner| inner.listen(socket, backlog))
}

/// `raccept`: the number of the new socket, and its peer.
pub(super) fn accept(socket: &Socket) -> Result<(c_int, Option<SocketAddr>), Failure> {
    loop {
        let (request, options) = socket.wait(socket.patience(0), |inner| match &mut inner.phase {
            Phase::Listening(listener) => {
                listener.requests.pop_front().map(|request| Ok((request, inner.options.clone())))
            }
            Phase::Failed(error) => Some(Err(Failure(error.take().unwrap_or(libc::EINVAL)))),
            Phase::Datagrams(_) => Some(Err(entry::NOT_OFFERED)),
            _ => Some(Err(entry::INVALID)),
        })?;
        match Connection::accept(request, socket.domain, &options) {
            Ok((accepted, peer)) => return Ok((accepted.publish(), peer)),
            // Others may be waiting.
            Err(Failure(libc::ECONNABORTED)) => {}
            Err(failure) => return Err(failure),
        }
    }
}

/// `rconnect`.
///
/// # Errors
/// `EINPROGRESS` if the socket does not wait; else what went wrong.
pub(super) fn connect(socket: &Socket, addr: SocketAddr) -> Result<(), Failure> {
    if let Some(done) = datagram::connect(socket, addr) {
        return done;
    }
    socket.change(|inner| inner.connect(socket, addr))?;
    let patience = socket.patience(0);
    if let Patience::None = patience {
        return Err(Errno::EINPROGRESS.into());
    }
    socket.wait(patience, |inner| match &mut inner.phase {
        Phase::Connecting(_) => None,
        Phase::Failed(error) => Some(Err(Failure(error.take().unwrap_or(libc::ECONNREFUSED)))),
        _ => Some(Ok(())),
    })
}
