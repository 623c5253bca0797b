//! A daemon whose port loops to itself, and the calls of rsockets as a program's own.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ferroce::Context;
use ferroce::control::{Reply, Request};
use ferroce_verbs_c::rsocket::calls;
use nix::errno::Errno;
use nix::libc::{self, iovec, pollfd, sockaddr, sockaddr_in, socklen_t};
use tempfile::TempDir;

/// After so long without what must come a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// The daemon's address.
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// A daemon of its own for a test, which this process finds.
pub(crate) struct Ferroced {
    child: Child,
    socket: PathBuf,
    _folder: TempDir,
}

/// The daemon's binary: in `FERROCE_BIN_DIR`, as scripts look for it, or built if need be. `None`, with a word on standard error, where it
/// can't be: it needs DPDK.
fn binary() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("FERROCE_BIN_DIR") {
        return Some(Path::new(&folder).join("ferroced"));
    }
    let test = std::env::current_exe().expect("a test has a file");
    let target = test.ancestors().nth(3).expect("a test lies in target/PROFILE/deps");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "-p", "ferroce-daemon", "--bin", "ferroced", "--target-dir"])
        .arg(target)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("skipped: ferroced can't be built here; scripts/setup installs what it needs");
        return None;
    }
    Some(target.join("debug/ferroced"))
}

impl Ferroced {
    /// Starts one, and waits until it answers. Once in a process: sockets look for it in the environment.
    pub(crate) fn start() -> Option<Self> {
        Self::start_at(&ADDRESS.to_string())
    }

    /// The same, with another address.
    pub(crate) fn start_at(address: &str) -> Option<Self> {
        let binary = binary()?;
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("d.sock");
        let child = Command::new(binary)
            .args(["--vdev", "net_ring0", "--address", address, "--no-huge", "--log", "warn", "--socket"])
            .arg(&socket)
            .stdin(Stdio::null())
            .spawn()
            .expect("it starts");
        // SAFETY: no other thread of this process runs yet: each test has a process, and this is its first step.
        unsafe { std::env::set_var("FERROCE_SOCKETS", &socket) };
        let daemon = Self { child, socket, _folder: folder };
        let end = Instant::now() + PATIENCE;
        while Context::connect(&daemon.socket).is_err() {
            assert!(Instant::now() < end, "the daemon does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(daemon)
    }

    /// Another session, for a peer that is none of an rsocket.
    pub(crate) fn connect(&self) -> Context {
        Context::connect(&self.socket).expect("it answers")
    }

    /// A counter of the engine.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let Ok(Reply::Stats(stats)) = self.connect().call(&Request::Stats) else { panic!("no counters") };
        let all = stats.groups.iter().flat_map(|(_, counters)| counters);
        all.filter(|(known, _)| known == name).map(|(_, value)| value).sum()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it has ended");
    }
}

impl Drop for Ferroced {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A datagram socket.
#[derive(Debug)]
pub(crate) struct Dgram(Rsocket);

fn v4(addr: SocketAddr) -> sockaddr_in {
    let SocketAddr::V4(v4) = addr else { panic!("{addr} is no IPv4 address") };
    let sin_addr = libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() };
    sockaddr_in { sin_addr, ..address(v4.port()) }
}

fn from_v4(addr: sockaddr_in) -> SocketAddr {
    let ip = Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr));
    SocketAddr::new(ip.into(), u16::from_be(addr.sin_port))
}

impl Dgram {
    pub(crate) fn new() -> Self {
        Self(Rsocket(Errno::result(calls::rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0)).expect("a socket")))
    }

    pub(crate) fn bound(addr: &str) -> Self {
        let socket = Self::new();
        socket.bind(addr.parse().expect("an address")).expect("bound");
        socket
    }

    pub(crate) fn pair() -> (Self, Self) {
        (Self::bound("127.0.0.1:0"), Self::bound("127.0.0.1:0"))
    }

    pub(crate) fn bind(&self, addr: SocketAddr) -> Outcome<()> {
        let addr = v4(addr);
        // SAFETY: an address.
        Errno::result(unsafe { calls::rbind(self.0.0, (&raw const addr).cast(), ADDRESS_BYTES) }).map(drop)
    }

    pub(crate) fn connect(&self, addr: SocketAddr) -> Outcome<()> {
        let addr = v4(addr);
        // SAFETY: an address.
        Errno::result(unsafe { calls::rconnect(self.0.0, (&raw const addr).cast(), ADDRESS_BYTES) }).map(drop)
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.0.local().expect("it has an address").into()
    }

    pub(crate) fn peer(&self) -> Outcome<SocketAddr> {
        self.0.peer().map(SocketAddr::from)
    }

    pub(crate) fn send(&self, data: &[u8], flags: c_int) -> Outcome<usize> {
        self.0.send(data, flags)
    }

    pub(crate) fn send_to(&self, data: &[u8], to: SocketAddr) -> Outcome<usize> {
        self.send_to_with(data, to, 0)
    }

    pub(crate) fn send_to_with(&self, data: &[u8], to: SocketAddr, flags: c_int) -> Outcome<usize> {
        let to = v4(to);
        let (data, length) = (data.as_ptr().cast(), data.len());
        // SAFETY: a slice and an address.
        bytes(unsafe { calls::rsendto(self.0.0, data, length, flags, (&raw const to).cast(), ADDRESS_BYTES) })
    }

    /// A message, and who sent it.
    pub(crate) fn receive(&self, max: usize, flags: c_int) -> Outcome<(Vec<u8>, SocketAddr)> {
        let (mut data, mut from, mut length) = (vec![0_u8; max], address(0), ADDRESS_BYTES);
        let (to, name) = (data.as_mut_ptr().cast(), (&raw mut from).cast());
        // SAFETY: a slice, and room for an address.
        let received = bytes(unsafe { calls::rrecvfrom(self.0.0, to, max, flags, name, &raw mut length) })?;
        data.truncate(received);
        Ok((data, from_v4(from)))
    }

    /// What the call says.
    pub(crate) fn receive_count(&self, max: usize, flags: c_int) -> Outcome<usize> {
        let mut data = vec![0_u8; max];
        // SAFETY: a slice.
        bytes(unsafe { calls::rrecv(self.0.0, data.as_mut_ptr().cast(), max, flags) })
    }

    pub(crate) fn poll(&self, events: i16, within: Duration) -> i16 {
        self.0.poll(events, within)
    }

    pub(crate) fn get(&self, level: c_int, name: c_int) -> Outcome<c_int> {
        self.0.get(level, name)
    }

    pub(crate) fn set(&self, level: c_int, name: c_int, value: c_int) -> Outcome<()> {
        self.0.set(level, name, value)
    }

    pub(crate) fn listen(&self) -> Outcome<()> {
        Errno::result(calls::rlisten(self.0.0, 1)).map(drop)
    }

    pub(crate) fn accept(&self) -> Outcome<()> {
        self.0.accept().map(drop)
    }

    pub(crate) fn shutdown(&self) -> Outcome<()> {
        self.0.shutdown(libc::SHUT_RDWR)
    }
}

/// A socket; closed when it is dropped.
#[derive(Debug)]
pub(crate) struct Rsocket(pub(crate) RawFd);

/// What a call returned, or its errno.
pub(crate) type Outcome<T> = Result<T, Errno>;

fn bytes(result: isize) -> Outcome<usize> {
    Ok(Errno::result(result)?.cast_unsigned())
}

fn address(port: u16) -> sockaddr_in {
    sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(ADDRESS).to_be() },
        sin_zero: [0; 8],
    }
}

const ADDRESS_BYTES: socklen_t = size_of::<sockaddr_in>() as socklen_t;

type Named = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

fn name_of(socket: c_int, call: Named) -> Outcome<(c_int, SocketAddrV4)> {
    let (mut addr, mut length) = (address(0), ADDRESS_BYTES);
    // SAFETY: an address and its length.
    let result = unsafe { call(socket, (&raw mut addr).cast(), &raw mut length) };
    let result = Errno::result(result)?;
    let ip = Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr));
    Ok((result, SocketAddrV4::new(ip, u16::from_be(addr.sin_port))))
}

impl Rsocket {
    pub(crate) fn new() -> Self {
        Self(Errno::result(calls::rsocket(libc::AF_INET, libc::SOCK_STREAM, 0)).expect("a socket"))
    }

    /// Listens on a port of its own.
    pub(crate) fn listening(backlog: c_int) -> (Self, u16) {
        let socket = Self::new();
        let addr = address(0);
        // SAFETY: an address.
        Errno::result(unsafe { calls::rbind(socket.0, (&raw const addr).cast(), ADDRESS_BYTES) }).expect("bound");
        Errno::result(calls::rlisten(socket.0, backlog)).expect("it listens");
        let port = socket.local().expect("bound").port();
        (socket, port)
    }

    pub(crate) fn connect(&self, port: u16) -> Outcome<()> {
        let addr = address(port);
        // SAFETY: an address.
        Errno::result(unsafe { calls::rconnect(self.0, (&raw const addr).cast(), ADDRESS_BYTES) }).map(drop)
    }

    pub(crate) fn connected(port: u16) -> Self {
        let socket = Self::new();
        socket.connect(port).expect("somebody listens");
        socket
    }

    pub(crate) fn accept(&self) -> Outcome<Self> {
        Ok(Self(name_of(self.0, calls::raccept)?.0))
    }

    /// Two that are connected.
    pub(crate) fn pair() -> (Self, Self) {
        Self::pair_with(&[])
    }

    /// The same, with options of level, name and value.
    pub(crate) fn pair_with(options: &[(c_int, c_int, c_int)]) -> (Self, Self) {
        let (listener, port) = Self::listening(1);
        let client = Self::new();
        for &(level, name, value) in options {
            listener.set(level, name, value).expect("an option");
            client.set(level, name, value).expect("an option");
        }
        client.nonblocking(true);
        assert_eq!(client.connect(port), Err(Errno::EINPROGRESS));
        client.nonblocking(false);
        std::thread::scope(|scope| {
            let accepted = scope.spawn(|| listener.accept().expect("accepted"));
            assert_eq!(client.poll(libc::POLLOUT, PATIENCE), libc::POLLOUT);
            (client, accepted.join().expect("no panic"))
        })
    }

    pub(crate) fn local(&self) -> Outcome<SocketAddrV4> {
        Ok(name_of(self.0, calls::rgetsockname)?.1)
    }

    pub(crate) fn peer(&self) -> Outcome<SocketAddrV4> {
        Ok(name_of(self.0, calls::rgetpeername)?.1)
    }

    pub(crate) fn nonblocking(&self, on: bool) {
        let flags = if on { libc::O_NONBLOCK } else { 0 };
        assert_eq!(calls::rfcntl(self.0, libc::F_SETFL, flags.into()), 0);
        assert_eq!(calls::rfcntl(self.0, libc::F_GETFL, 0) & libc::O_NONBLOCK, flags);
    }

    pub(crate) fn set(&self, level: c_int, name: c_int, value: c_int) -> Outcome<()> {
        let (value, length) = ((&raw const value).cast(), size_of::<c_int>() as socklen_t);
        // SAFETY: a whole number.
        Errno::result(unsafe { calls::rsetsockopt(self.0, level, name, value, length) }).map(drop)
    }

    pub(crate) fn get(&self, level: c_int, name: c_int) -> Outcome<c_int> {
        let (mut value, mut length) = (0, size_of::<c_int>() as socklen_t);
        // SAFETY: room for a whole number.
        let result = unsafe { calls::rgetsockopt(self.0, level, name, (&raw mut value).cast(), &raw mut length) };
        Errno::result(result).map(|_| value)
    }

    pub(crate) fn error(&self) -> c_int {
        self.get(libc::SOL_SOCKET, libc::SO_ERROR).expect("an option")
    }

    pub(crate) fn send(&self, data: &[u8], flags: c_int) -> Outcome<usize> {
        // SAFETY: a slice.
        bytes(unsafe { calls::rsend(self.0, data.as_ptr().cast(), data.len(), flags) })
    }

    pub(crate) fn send_all(&self, data: &[u8]) {
        assert_eq!(self.send(data, 0), Ok(data.len()));
    }

    pub(crate) fn writev(&self, pieces: &[&[u8]]) -> Outcome<usize> {
        let vector = |piece: &&[u8]| iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
        let vectors: Vec<iovec> = pieces.iter().map(vector).collect();
        // SAFETY: slices, which are only read.
        bytes(unsafe { calls::rwritev(self.0, vectors.as_ptr(), vectors.len() as c_int) })
    }

    pub(crate) fn receive(&self, max: usize, flags: c_int) -> Outcome<Vec<u8>> {
        let mut data = vec![0; max];
        // SAFETY: a slice.
        let received = bytes(unsafe { calls::rrecv(self.0, data.as_mut_ptr().cast(), max, flags) })?;
        data.truncate(received);
        Ok(data)
    }

    pub(crate) fn readv(&self, lengths: &[usize]) -> Outcome<Vec<u8>> {
        let mut data = vec![0; lengths.iter().sum()];
        let mut vectors = Vec::new();
        let mut rest = data.as_mut_slice();
        for &length in lengths {
            let (piece, behind) = rest.split_at_mut(length);
            vectors.push(iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: length });
            rest = behind;
        }
        // SAFETY: pieces of a vector that is left alone meanwhile.
        let received = bytes(unsafe { calls::rreadv(self.0, vectors.as_ptr(), vectors.len() as c_int) })?;
        data.truncate(received);
        Ok(data)
    }

    /// Everything until the peer's end.
    pub(crate) fn receive_to_end(&self) -> Outcome<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let data = self.receive(10_000, 0)?;
            if data.is_empty() {
                return Ok(all);
            }
            all.extend(data);
        }
    }

    pub(crate) fn shutdown(&self, how: c_int) -> Outcome<()> {
        Errno::result(calls::rshutdown(self.0, how)).map(drop)
    }

    pub(crate) fn map(&self, buffer: &mut [u8], offset: i64) -> Outcome<i64> {
        let (addr, length) = (buffer.as_mut_ptr().cast::<c_void>(), buffer.len());
        // SAFETY: tests read it by volatile reads until it is unmapped.
        Errno::result(unsafe { calls::riomap(self.0, addr, length, libc::PROT_WRITE, 0, offset) })
    }

    pub(crate) fn unmap(&self, buffer: &mut [u8]) -> Outcome<()> {
        Errno::result(calls::riounmap(self.0, buffer.as_mut_ptr().cast(), buffer.len())).map(drop)
    }

    pub(crate) fn write_mapped(&self, data: &[u8], offset: i64) -> Outcome<usize> {
        // SAFETY: a slice.
        bytes(unsafe { calls::riowrite(self.0, data.as_ptr().cast(), data.len(), offset, 0) }.cast_signed())
    }

    /// What has happened of `events`, and what nobody asks for, within a time; 0 if nothing.
    pub(crate) fn poll(&self, events: i16, within: Duration) -> i16 {
        let mut fds = [pollfd { fd: self.0, events, revents: 0 }];
        poll(&mut fds, within);
        fds[0].revents
    }
}

impl Drop for Rsocket {
    fn drop(&mut self) {
        // A test may have closed it.
        let _ = calls::rclose(self.0);
    }
}

pub(crate) fn poll(fds: &mut [pollfd], within: Duration) -> c_int {
    let timeout = c_int::try_from(within.as_millis()).expect("a short time");
    // SAFETY: a slice.
    Errno::result(unsafe { calls::rpoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) }).expect("no error")
}

/// Which of these `rselect` says can be read, within a time.
pub(crate) fn select_readable(fds: &[RawFd], within_us: i64) -> Outcome<Vec<RawFd>> {
    // SAFETY: all zeros are an empty set.
    let mut set: libc::fd_set = unsafe { std::mem::zeroed() };
    for &fd in fds {
        // SAFETY: tests have few descriptors.
        unsafe { libc::FD_SET(fd, &raw mut set) };
    }
    let mut timeout = libc::timeval { tv_sec: 0, tv_usec: within_us };
    let (count, none) = (fds.iter().max().map_or(0, |fd| fd + 1), std::ptr::null_mut());
    // SAFETY: a set and a timeout.
    let found = Errno::result(unsafe { calls::rselect(count, &raw mut set, none, none, &raw mut timeout) })?;
    // SAFETY: as above.
    let readable: Vec<RawFd> =
        fds.iter().copied().filter(|&fd| unsafe { libc::FD_ISSET(fd, &raw const set) }).collect();
    assert_eq!(found.cast_unsigned() as usize, readable.len());
    Ok(readable)
}

/// Bytes that tell their place.
pub(crate) fn pattern(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}
