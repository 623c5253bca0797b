//! Datagrams: messages between UDP addresses, carried by UD queue pairs.
//!
//! A socket has a UDP socket of the kernel's, which holds its port, and a QP for each address of ours that it sends from. Whoever is sent to
//! for the first time gets the message by UDP, with a header that names our QP, and answers with its own: from then on messages go from
//! QP to QP. What a packet of the network has no room for goes on by UDP. Nothing is acknowledged: what finds no room on the way, or at
//! its end, is lost, as with UDP.
//!
//! Answers are given in calls of the program, as all of the sockets' progress is made.

pub(super) mod endpoint;
mod wire;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use ferroce::{AddressHandle, Qpn};
use nix::errno::Errno;
use nix::libc;

use self::endpoint::Endpoint;
use self::wire::{Hello, MESSAGE_BYTES, Op};
use super::options::Options;
use super::socket::{Phase, Socket, Source};
use super::vectors::Vectors;
use crate::cm::address;
use crate::entry::{self, Failure};

/// Peers that a socket remembers. Who is forgotten is asked again; so that strangers' messages can't fill the memory.
const PEERS_MAX: usize = 1024;
/// Messages by UDP that wait to be read: more are lost, as in the kernel's own buffer.
const WAITING_MAX: usize = 64;
/// Messages taken from UDP in one go.
const TAKEN_MAX: usize = 64;

/// Flags that sending and receiving know.
const SEND_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_EOR;
const RECEIVE_FLAGS: c_int = libc::MSG_DONTWAIT
    | libc::MSG_NOSIGNAL
    | libc::MSG_PEEK
    | libc::MSG_TRUNC
    | libc::MSG_CMSG_CLOEXEC
    | libc::MSG_WAITALL;

/// Who is sent to.
struct Peer {
    /// Its QP, once it has told; and the way there, once something was sent to it.
    qpn: Option<Qpn>,
    path: Option<AddressHandle>,
    /// Which of our QPs it is sent to from.
    end: usize,
}

/// A message that came by UDP.
struct ByUdp {
    from: SocketAddr,
    data: Vec<u8>,
}

/// What is known of a message that was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Received {
    pub(super) from: SocketAddr,
    /// Bytes that were copied, and that it had.
    pub(super) copied: usize,
    pub(super) whole: usize,
}

/// A datagram socket.
pub(super) struct Datagrams {
    // Handles before the QPs that use them.
    peers: BTreeMap<SocketAddr, Peer>,
    ends: Vec<Endpoint>,
    udp: UdpSocket,
    by_udp: VecDeque<ByUdp>,
    connected: Option<SocketAddr>,
}

/// Who it is, whatever else an IPv6 address says.
fn name_of(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip(), addr.port())
}

impl Datagrams {
    /// A new one, bound to nothing.
    pub(super) fn new(domain: c_int) -> Result<Self, Failure> {
        // SAFETY: no pointers.
        let fd = Errno::result(unsafe { libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
        // SAFETY: just made, and nobody else has it.
        let udp = UdpSocket::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let (peers, ends, by_udp) = (BTreeMap::new(), Vec::new(), VecDeque::new());
        Ok(Self { peers, ends, udp, by_udp, connected: None })
    }

    /// The socket of the kernel's.
    pub(super) fn udp(&self) -> &UdpSocket {
        &self.udp
    }

    /// True once it has queue pairs.
    pub(super) fn is_open(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Sets an option of the kernel's socket as well, where it is about who has a port.
    ///
    /// # Safety
    /// `value` are `length` bytes.
    pub(super) unsafe fn set(
        &self,
        option: (c_int, c_int),
        value: *const c_void,
        length: libc::socklen_t,
    ) -> Result<(), Failure> {
        const OF_PORTS: [(c_int, c_int); 3] = [
            (libc::SOL_SOCKET, libc::SO_REUSEADDR),
            (libc::SOL_SOCKET, libc::SO_REUSEPORT),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
        ];
        if OF_PORTS.contains(&option) {
            let (level, name) = option;
            // SAFETY: the caller's promise.
            Errno::result(unsafe { libc::setsockopt(self.udp.as_raw_fd(), level, name, value, length) })?;
        }
        Ok(())
    }

    /// Our address and the peer's, if it is connected.
    pub(super) fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        (self.udp.local_addr().ok(), self.connected)
    }

    fn bind(&self, addr: SocketAddr) -> Result<(), Failure> {
        let (storage, length) = (address::storage(addr), address::length(addr));
        // SAFETY: an address and its length.
        Errno::result(unsafe { libc::bind(self.udp.as_raw_fd(), (&raw const storage).cast(), length) })?;
        Ok(())
    }

    fn connect(&mut self, addr: SocketAddr) -> Result<(), Failure> {
        let (storage, length) = (address::storage(addr), address::length(addr));
        // SAFETY: an address and its length.
        Errno::result(unsafe { libc::connect(self.udp.as_raw_fd(), (&raw const storage).cast(), length) })?;
        self.connected = Some(addr);
        Ok(())
    }

    /// Our address towards a peer: the one that the socket is bound to, or the one that the host's routes have. The port is the
    /// socket's.
    fn source_for(&self, to: SocketAddr) -> Result<SocketAddr, Failure> {
        let mut local = self.udp.local_addr().map_err(failure)?;
        let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        if local.port() == 0 {
            self.bind((any, 0).into())?;
            local = self.udp.local_addr().map_err(failure)?;
        }
        if local.ip().is_unspecified() {
            let probe = UdpSocket::bind((any, 0)).map_err(failure)?;
            probe.connect(to).map_err(failure)?;
            local.set_ip(probe.local_addr().map_err(failure)?.ip());
        }
        Ok(local)
    }

    /// What is known of a peer; a QP of ours is made if none suits.
    fn peer(&mut self, socket: &Socket, options: &Options, to: SocketAddr) -> Result<&mut Peer, Failure> {
        let name = name_of(to);
        if !self.peers.contains_key(&name) {
            let local = self.source_for(to)?;
            let end = match self.ends.iter().position(|end| name_of(end.local()) == name_of(local)) {
                Some(end) => end,
                None => {
                    let end = Endpoint::new(local, options)?;
                    socket.watch(end.fd(), Source::Completions)?;
                    self.ends.push(end);
                    self.ends.len() - 1
                }
            };
            if self.peers.len() >= PEERS_MAX {
                self.peers.clear();
            }
            self.peers.insert(name, Peer { qpn: None, path: None, end });
        }
        self.peers.get_mut(&name).ok_or(Errno::EDESTADDRREQ.into())
    }

    /// Sends a message. `None`: not now.
    fn send(
        &mut self,
        socket: &Socket,
        options: &Options,
        message: &mut Outgoing<'_, '_>,
    ) -> Option<Result<usize, Failure>> {
        let bytes = message.from.left();
        let sent = self.try_send(socket, options, message);
        match sent {
            Ok(true) => Some(Ok(bytes)),
            Ok(false) => None,
            Err(failure) => Some(Err(failure)),
        }
    }

    fn try_send(
        &mut self,
        socket: &Socket,
        options: &Options,
        message: &mut Outgoing<'_, '_>,
    ) -> Result<bool, Failure> {
        let to = message.to.or(self.connected).ok_or(Failure::from(Errno::EDESTADDRREQ))?;
        if message.from.left() > wire::payload_max(to.ip()) {
            return Err(Errno::EMSGSIZE.into());
        }
        self.check_daemons()?;
        let &mut Peer { qpn, end, ref path } = self.peer(socket, options, to)?;
        let path = path.clone();
        let Some(endpoint) = self.ends.get_mut(end) else { return Ok(false) };
        let Some(qpn) = qpn.filter(|_| endpoint.has_room_for(message.from.left())) else {
            let hello = Hello { op: Op::Data, qpn: endpoint.qpn(), ip: endpoint.local().ip() };
            return self.say(hello, to, message.from.rest(), message.flags).map(|()| true);
        };
        let path = match path {
            Some(path) => path,
            None => {
                let path = endpoint.path_to(to.ip())?;
                self.peers.entry(name_of(to)).and_modify(|peer| peer.path = Some(path.clone()));
                path
            }
        };
        endpoint.send(message.from, &path, qpn)
    }

    /// Says something by UDP.
    fn say(&self, hello: Hello, to: SocketAddr, data: &[libc::iovec], flags: c_int) -> Result<(), Failure> {
        let header = hello.to_bytes();
        let mut vectors = vec![super::vectors::vector(header.as_ptr().cast(), header.len())];
        vectors.extend(data);
        let (mut storage, length) = (address::storage(to), address::length(to));
        // SAFETY: all zeros are an empty message.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut storage).cast();
        message.msg_namelen = length;
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = vectors.len();
        // SAFETY: an address, and buffers that live and are only read.
        Errno::result(unsafe {
            libc::sendmsg(self.udp.as_raw_fd(), &raw const message, flags & libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
        })?;
        Ok(())
    }

    /// Takes what came by UDP, and answers who asks.
    pub(super) fn take_messages(&mut self, socket: &Socket, options: &Options) {
        let mut buffer = [0; MESSAGE_BYTES];
        for _ in 0..TAKEN_MAX {
            let taken = recv_from(&self.udp, &mut buffer);
            let Ok((bytes, from)) = taken else { return };
            let message = &buffer[..bytes];
            let Some((hello, at)) = Hello::parse(message).filter(|(hello, _)| hello.ip.is_ipv4() == from.is_ipv4())
            else {
                continue;
            };
            let Ok(peer) = self.peer(socket, options, from) else { continue };
            if peer.qpn != Some(hello.qpn) && hello.qpn != Qpn::new(0) {
                peer.qpn = Some(hello.qpn);
            }
            let end = peer.end;
            if hello.op != Op::Data {
                continue;
            }
            if let Some(endpoint) = self.ends.get(end) {
                let answer = Hello { op: Op::Control, qpn: endpoint.qpn(), ip: endpoint.local().ip() };
                // It asks again with its next message.
                let _ = self.say(answer, from, &[], libc::MSG_DONTWAIT);
            }
            if self.by_udp.len() < WAITING_MAX {
                self.by_udp.push_back(ByUdp { from, data: message[at..].to_vec() });
            }
        }
    }

    /// Takes what has completed.
    pub(super) fn process(&mut self) {
        let only = self.connected.map(name_of);
        for end in &mut self.ends {
            end.process(|from| only.is_none_or(|only| only == name_of(from)));
        }
    }

    pub(super) fn arm(&mut self) {
        self.ends.iter_mut().for_each(Endpoint::arm);
    }

    pub(super) fn take_notifications(&mut self) {
        self.ends.iter_mut().for_each(Endpoint::take_notifications);
    }

    /// Nothing comes or goes any more once a daemon is gone.
    fn check_daemons(&self) -> Result<(), Failure> {
        if self.ends.iter().all(Endpoint::is_alive) { Ok(()) } else { Err(Errno::ENETDOWN.into()) }
    }

    pub(super) fn can_send(&self) -> bool {
        self.ends.iter().all(Endpoint::can_send)
    }

    pub(super) fn is_all_sent(&self) -> bool {
        self.ends.iter().all(Endpoint::is_all_sent)
    }

    pub(super) fn has_message(&self) -> bool {
        !self.by_udp.is_empty() || self.ends.iter().any(|end| end.first().is_some())
    }

    /// Receives the next message, as far as there is room: the rest of it is lost.
    fn receive(&mut self, into: &mut Vectors<'_>, peek: bool) -> Option<Result<Received, Failure>> {
        let room = into.left();
        // What came by UDP is older: nobody goes back to it, but with what is too large for a packet.
        if let Some(first) = self.by_udp.front() {
            let mut rest = first.data.as_slice();
            while !rest.is_empty() && into.left() > 0 {
                let part = into.head_mut(rest.len());
                let bytes = part.len();
                part.copy_from_slice(&rest[..bytes]);
                rest = &rest[bytes..];
                into.advance(bytes);
            }
            let received = Received { from: first.from, copied: room - into.left(), whole: first.data.len() };
            if !peek {
                self.by_udp.pop_front();
            }
            return Some(Ok(received));
        }
        let Some(end) = self.ends.iter_mut().find(|end| end.first().is_some()) else {
            return self.check_daemons().err().map(Err);
        };
        let first = end.first()?;
        if let Err(failure) = end.receive(into, peek) {
            return Some(Err(failure));
        }
        Some(Ok(Received { from: first.from, copied: room - into.left(), whole: first.bytes }))
    }
}

/// A message that a program sends.
struct Outgoing<'a, 'b> {
    from: &'a mut Vectors<'b>,
    to: Option<SocketAddr>,
    flags: c_int,
}

fn failure(error: std::io::Error) -> Failure {
    Failure(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Takes a message from the kernel, without waiting.
fn recv_from(udp: &UdpSocket, buffer: &mut [u8]) -> Result<(usize, SocketAddr), Failure> {
    // SAFETY: all zeros are no address.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: a buffer, and room for any address.
    let bytes = Errno::result(unsafe {
        libc::recvfrom(
            udp.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            libc::MSG_DONTWAIT,
            (&raw mut storage).cast(),
            &raw mut length,
        )
    })?;
    // SAFETY: a whole address, or none.
    let from = unsafe { address::read_some((&raw const storage).cast()) }?;
    Ok((bytes.cast_unsigned(), from))
}

/// A new datagram socket.
pub(super) fn open(domain: c_int) -> Result<Socket, Failure> {
    let datagrams = Datagrams::new(domain)?;
    let socket = Socket::new(domain, Options::default(), Phase::Idle)?;
    socket.watch(datagrams.udp.as_fd(), Source::Messages)?;
    socket.change(|inner| inner.phase = Phase::Datagrams(Box::new(datagrams)));
    Ok(socket)
}

/// `rbind` of a datagram socket. `None` if it is none.
pub(super) fn bind(socket: &Socket, addr: SocketAddr) -> Option<Result<(), Failure>> {
    socket.change(|inner| inner.datagrams().map(|datagrams| datagrams.bind(addr)))
}

/// `rconnect` of a datagram socket: whom it sends to and hears. `None` if it is none.
pub(super) fn connect(socket: &Socket, addr: SocketAddr) -> Option<Result<(), Failure>> {
    socket.change(|inner| inner.datagrams().map(|datagrams| datagrams.connect(addr)))
}

/// Sends one message, to where the socket is connected unless it says otherwise. `None` if it is no datagram socket.
pub(super) fn send(
    socket: &Socket,
    from: &mut Vectors<'_>,
    to: Option<SocketAddr>,
    flags: c_int,
) -> Option<Result<usize, Failure>> {
    socket.with(|inner| inner.datagrams().is_some()).then(|| {
        if flags & !SEND_FLAGS != 0 {
            return Err(entry::NOT_OFFERED);
        }
        let mut message = Outgoing { from, to, flags };
        // The peer's QP may be among the news.
        let mut send = |inner: &mut super::socket::Inner| {
            let options = inner.options.clone();
            inner.datagrams()?.send(socket, &options, &mut message)
        };
        if let Some(done) = socket.with_news(None, &mut send) {
            return done;
        }
        socket.wait(socket.patience(flags), send)
    })
}

/// Receives one message. `None` if it is no datagram socket.
pub(super) fn receive(socket: &Socket, into: &mut Vectors<'_>, flags: c_int) -> Option<Result<Received, Failure>> {
    socket.with(|inner| inner.datagrams().is_some()).then(|| {
        if flags & !RECEIVE_FLAGS != 0 {
            return Err(entry::NOT_OFFERED);
        }
        let peek = flags & libc::MSG_PEEK != 0;
        socket.wait(socket.patience(flags), |inner| inner.datagrams()?.receive(into, peek))
    })
}
