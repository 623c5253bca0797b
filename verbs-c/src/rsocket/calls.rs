//! The calls, by the C ABI of `rdma/rsocket.h`. All set `errno` as the calls of sockets do that they are named after.

use std::ffi::{c_int, c_long, c_void};
use std::net::SocketAddr;
use std::slice;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::{
    self, fd_set, iovec, linger, msghdr, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval,
};

use super::options::{self, Asked, Options};
use super::socket::{self, Inner, Patience, Phase, Socket};
use super::vectors::{self, Vectors};
use super::{close, connect, datagram, iomap, poll, transfer};
use crate::cm::{address, devices};
use crate::entry::{self, Failure};

/// What a socket's type may carry.
const SOCKET_FLAGS: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

/// For calls that return a count of bytes.
fn bytes(body: impl FnOnce() -> Result<usize, Failure>) -> ssize_t {
    // No buffer is longer.
    entry::long(|| body().map(usize::cast_signed))
}

/// Gives a program an address, cut to the room that it has.
///
/// # Safety
/// `length` may be read and written, and as many bytes of `to` written; or they are NULL.
unsafe fn give(addr: SocketAddr, to: *mut sockaddr, length: *mut socklen_t) -> Result<(), Failure> {
    let (whole, storage) = (address::length(addr), address::storage(addr));
    // SAFETY: the caller's promise.
    let length = unsafe { length.as_mut() }.ok_or(Failure(libc::EFAULT))?;
    let bytes = whole.min(*length) as usize;
    if to.is_null() && bytes > 0 {
        return Err(Errno::EFAULT.into());
    }
    // SAFETY: as many bytes as both have.
    unsafe { (&raw const storage).cast::<u8>().copy_to_nonoverlapping(to.cast(), bytes) };
    *length = whole;
    Ok(())
}

/// An address that a program gives.
///
/// # Safety
/// `addr` are `length` bytes, or NULL.
unsafe fn take(addr: *const sockaddr, length: socklen_t) -> Result<SocketAddr, Failure> {
    if addr.is_null() {
        return Err(Errno::EFAULT.into());
    }
    let length = length as usize;
    if length < size_of::<libc::sa_family_t>() {
        return Err(entry::INVALID);
    }
    // SAFETY: the caller's promise; the family comes first.
    let family = c_int::from(unsafe { addr.cast::<libc::sa_family_t>().read_unaligned() });
    let needed =
        if family == libc::AF_INET6 { size_of::<libc::sockaddr_in6>() } else { size_of::<libc::sockaddr_in>() };
    if length < needed {
        return Err(entry::INVALID);
    }
    // SAFETY: as long as its family has it.
    unsafe { address::read_some(addr) }
}

/// A new socket: `AF_INET` or `AF_INET6`; `SOCK_STREAM` or `SOCK_DGRAM`, which may carry `SOCK_NONBLOCK`.
///
/// # Errors
/// `EAFNOSUPPORT`; `EPROTONOSUPPORT` for other protocols than TCP and UDP; `ENODEV` if no daemon answers.
#[unsafe(export_name = "ferroce_rsocket")]
pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    entry::number(|| {
        if ![libc::AF_INET, libc::AF_INET6].contains(&domain) {
            return Err(Errno::EAFNOSUPPORT.into());
        }
        let (kind, flags) = (kind & !SOCKET_FLAGS, kind & SOCKET_FLAGS);
        let known = [(libc::SOCK_STREAM, libc::IPPROTO_TCP), (libc::SOCK_DGRAM, libc::IPPROTO_UDP)];
        if !known.iter().any(|&(known, own)| known == kind && [0, own].contains(&protocol)) {
            return Err(Errno::EPROTONOSUPPORT.into());
        }
        // Programs that would do without RDMA (librspreload) ask for another kind of socket then.
        devices::all()?;
        let socket = if kind == libc::SOCK_DGRAM {
            datagram::open(domain)?
        } else {
            Socket::new(domain, Options::default(), Phase::Idle)?
        };
        socket.nonblocking.store(flags & libc::SOCK_NONBLOCK != 0, Ordering::Relaxed);
        Ok(socket.publish())
    })
}

/// Binds to a local address and port; the unspecified address is all of them, port 0 a free one.
///
/// # Safety
/// `addr` are `length` bytes, or NULL.
#[unsafe(export_name = "ferroce_rbind")]
pub unsafe extern "C" fn rbind(socket: c_int, addr: *const sockaddr, length: socklen_t) -> c_int {
    entry::number(|| {
        let socket = socket::find(socket)?;
        // SAFETY: the caller's promise.
        connect::bind(&socket, unsafe { take(addr, length) }?)?;
        Ok(0)
    })
}

/// Listens.
#[unsafe(export_name = "ferroce_rlisten")]
pub extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    entry::number(|| {
        connect::listen(&*socket::find(socket)?, backlog)?;
        Ok(0)
    })
}

/// Accepts a connection: a socket of its own, with the listener's options. It waits by itself for its peer to confirm.
///
/// # Safety
/// `addr` has room for as many bytes as `length` says, or both are NULL.
#[unsafe(export_name = "ferroce_raccept")]
pub unsafe extern "C" fn raccept(socket: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int {
    entry::number(|| {
        let socket = socket::find(socket)?;
        let (accepted, peer) = connect::accept(&socket)?;
        if let Some(peer) = peer.filter(|_| !addr.is_null()) {
            // SAFETY: the caller's promise.
            unsafe { give(peer, addr, length) }?;
        }
        Ok(accepted)
    })
}

/// Connects to a peer that listens.
///
/// # Errors
/// `EINPROGRESS` of a non-blocking socket: `rpoll` says when it is writable, `SO_ERROR` what became of it. `ECONNREFUSED`, `ETIMEDOUT`,
/// `ENETUNREACH`.
///
/// # Safety
/// `addr` are `length` bytes, or NULL.
#[unsafe(export_name = "ferroce_rconnect")]
pub unsafe extern "C" fn rconnect(socket: c_int, addr: *const sockaddr, length: socklen_t) -> c_int {
    entry::number(|| {
        let socket = socket::find(socket)?;
        // SAFETY: the caller's promise.
        connect::connect(&socket, unsafe { take(addr, length) }?)?;
        Ok(0)
    })
}

/// Ends one direction or both, once the peer has everything.
#[unsafe(export_name = "ferroce_rshutdown")]
pub extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    entry::number(|| {
        close::shutdown(&*socket::find(socket)?, how)?;
        Ok(0)
    })
}

/// Closes a socket, once the peer has everything that was sent.
#[unsafe(export_name = "ferroce_rclose")]
pub extern "C" fn rclose(socket: c_int) -> c_int {
    entry::number(|| {
        close::close(&*socket::remove(socket)?);
        Ok(0)
    })
}

/// As `recv`.
///
/// # Safety
/// `buffer` has room for `length` bytes.
#[unsafe(export_name = "ferroce_rrecv")]
pub unsafe extern "C" fn rrecv(socket: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    bytes(|| {
        let vector = vectors::vector(buffer, length);
        // SAFETY: the caller's promise.
        let mut into = unsafe { Vectors::one(&vector) };
        Ok(transfer::receive(&*socket::find(socket)?, &mut into, flags)?.bytes)
    })
}

/// As `recvfrom`: the address is that of the message, or of a stream's peer.
///
/// # Safety
/// As [`rrecv`] and [`raccept`].
#[unsafe(export_name = "ferroce_rrecvfrom")]
pub unsafe extern "C" fn rrecvfrom(
    socket: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_length: *mut socklen_t,
) -> ssize_t {
    bytes(|| {
        let object = socket::find(socket)?;
        let vector = vectors::vector(buffer, length);
        // SAFETY: the caller's promise.
        let mut into = unsafe { Vectors::one(&vector) };
        let received = transfer::receive(&object, &mut into, flags)?;
        let peer = || object.with(|inner| inner.addresses().1).filter(|_| received.bytes > 0);
        if let Some(from) = received.from.or_else(peer).filter(|_| !addr.is_null()) {
            // SAFETY: the caller's promise.
            unsafe { give(from, addr, addr_length) }?;
        }
        Ok(received.bytes)
    })
}

/// As `recvmsg`, without control data.
///
/// # Safety
/// `message` is one, and its buffers may be written.
#[unsafe(export_name = "ferroce_rrecvmsg")]
pub unsafe extern "C" fn rrecvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    bytes(|| {
        // SAFETY: the caller's promise.
        let message = unsafe { message.as_mut() }.ok_or(Failure(libc::EFAULT))?;
        // SAFETY: the caller's promise.
        let mut into = unsafe { Vectors::list(message.msg_iov, message.msg_iovlen) }?;
        let received = transfer::receive(&*socket::find(socket)?, &mut into, flags)?;
        message.msg_controllen = 0;
        message.msg_flags = received.flags;
        match received.from.filter(|_| !message.msg_name.is_null()) {
            // SAFETY: the caller's promise.
            Some(from) => unsafe { give(from, message.msg_name.cast(), &raw mut message.msg_namelen) }?,
            None => message.msg_namelen = 0,
        }
        Ok(received.bytes)
    })
}

/// As `send`. Nothing here raises `SIGPIPE`.
///
/// # Safety
/// `buffer` are `length` bytes.
#[unsafe(export_name = "ferroce_rsend")]
pub unsafe extern "C" fn rsend(socket: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t {
    bytes(|| {
        let vector = vectors::vector(buffer, length);
        // SAFETY: the caller's promise.
        let mut from = unsafe { Vectors::one(&vector) };
        transfer::send(&*socket::find(socket)?, &mut from, None, flags)
    })
}

/// As `sendto`; a stream takes no destination.
///
/// # Safety
/// As [`rsend`]; `addr` are `addr_length` bytes, or NULL.
#[unsafe(export_name = "ferroce_rsendto")]
pub unsafe extern "C" fn rsendto(
    socket: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addr_length: socklen_t,
) -> ssize_t {
    bytes(|| {
        let socket = socket::find(socket)?;
        // SAFETY: the caller's promise.
        let to = if addr.is_null() { None } else { Some(unsafe { take(addr, addr_length) }?) };
        let vector = vectors::vector(buffer, length);
        // SAFETY: the caller's promise.
        let mut from = unsafe { Vectors::one(&vector) };
        transfer::send(&socket, &mut from, to, flags)
    })
}

/// As `sendmsg`, without control data.
///
/// # Errors
/// `EOPNOTSUPP` if there is some.
///
/// # Safety
/// `message` is one, and its buffers may be read.
#[unsafe(export_name = "ferroce_rsendmsg")]
pub unsafe extern "C" fn rsendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    bytes(|| {
        // SAFETY: the caller's promise.
        let message = unsafe { message.as_ref() }.ok_or(Failure(libc::EFAULT))?;
        if !message.msg_control.is_null() && message.msg_controllen > 0 {
            return Err(entry::NOT_OFFERED);
        }
        let name = message.msg_name.cast_const().cast::<sockaddr>();
        // SAFETY: the caller's promise.
        let to = if name.is_null() { None } else { Some(unsafe { take(name, message.msg_namelen) }?) };
        // SAFETY: the caller's promise.
        let mut from = unsafe { Vectors::list(message.msg_iov, message.msg_iovlen) }?;
        transfer::send(&*socket::find(socket)?, &mut from, to, flags)
    })
}

/// As `read`.
///
/// # Safety
/// As [`rrecv`].
#[unsafe(export_name = "ferroce_rread")]
pub unsafe extern "C" fn rread(socket: c_int, buffer: *mut c_void, length: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { rrecv(socket, buffer, length, 0) }
}

/// As `readv`.
///
/// # Safety
/// `vectors` are `count` buffers that may be written.
#[unsafe(export_name = "ferroce_rreadv")]
pub unsafe extern "C" fn rreadv(socket: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
    bytes(|| {
        // SAFETY: the caller's promise.
        let mut into = unsafe { Vectors::list(vectors, vectors::count(count)?) }?;
        Ok(transfer::receive(&*socket::find(socket)?, &mut into, 0)?.bytes)
    })
}

/// As `write`.
///
/// # Safety
/// As [`rsend`].
#[unsafe(export_name = "ferroce_rwrite")]
pub unsafe extern "C" fn rwrite(socket: c_int, buffer: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { rsend(socket, buffer, length, 0) }
}

/// As `writev`.
///
/// # Safety
/// `vectors` are `count` buffers that may be read.
#[unsafe(export_name = "ferroce_rwritev")]
pub unsafe extern "C" fn rwritev(socket: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
    bytes(|| {
        // SAFETY: the caller's promise.
        let mut from = unsafe { Vectors::list(vectors, vectors::count(count)?) }?;
        transfer::send(&*socket::find(socket)?, &mut from, None, 0)
    })
}

/// As `poll`, of these sockets and of any descriptor of the kernel's.
///
/// # Safety
/// `fds` are `count` of them.
#[unsafe(export_name = "ferroce_rpoll")]
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    entry::number(|| {
        let count = usize::try_from(count).map_err(|_| entry::INVALID)?;
        if fds.is_null() && count > 0 {
            return Err(Errno::EFAULT.into());
        }
        // SAFETY: the caller's promise.
        let fds = if count == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(fds, count) } };
        poll::poll(fds, poll::patience(timeout_ms))
    })
}

/// As `select`, of these sockets and of any descriptor of the kernel's. The timeout is not changed.
///
/// # Safety
/// The sets and the timeout are such, or NULL.
#[unsafe(export_name = "ferroce_rselect")]
pub unsafe extern "C" fn rselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let patience = match unsafe { timeout.as_ref() } {
            None => Patience::Forever,
            Some(timeout) => {
                let seconds = u64::try_from(timeout.tv_sec).map_err(|_| entry::INVALID)?;
                let micros = u64::try_from(timeout.tv_usec).map_err(|_| entry::INVALID)?;
                match Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)) {
                    Duration::ZERO => Patience::None,
                    wait => Instant::now().checked_add(wait).map_or(Patience::Forever, Patience::Until),
                }
            }
        };
        // SAFETY: the caller's promise, for each of the three.
        let mut sets = [read, write, except].map(|set| unsafe { set.as_mut() });
        poll::select(count, &mut sets, patience)
    })
}

/// The peer's address.
///
/// # Safety
/// As [`raccept`].
#[unsafe(export_name = "ferroce_rgetpeername")]
pub unsafe extern "C" fn rgetpeername(socket: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int {
    entry::number(|| {
        let peer = socket::find(socket)?.with(|inner| match inner.phase {
            Phase::Connected(_) | Phase::Datagrams(_) => inner.addresses().1,
            _ => None,
        });
        let peer = peer.ok_or(Failure::from(Errno::ENOTCONN))?;
        // SAFETY: the caller's promise.
        unsafe { give(peer, addr, length) }?;
        Ok(0)
    })
}

/// The local address: unspecified, and port 0, before there is one.
///
/// # Safety
/// As [`raccept`].
#[unsafe(export_name = "ferroce_rgetsockname")]
pub unsafe extern "C" fn rgetsockname(socket: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int {
    entry::number(|| {
        let socket = socket::find(socket)?;
        let none = || -> SocketAddr {
            if socket.domain == libc::AF_INET6 { ([0_u16; 8], 0).into() } else { ([0_u8; 4], 0).into() }
        };
        let local = socket.with(|inner| inner.addresses().0).unwrap_or_else(none);
        // SAFETY: the caller's promise.
        unsafe { give(local, addr, length) }?;
        Ok(0)
    })
}

/// Sets an option: those of sockets, and `SOL_RDMA`'s sizes.
///
/// # Safety
/// `value` are `length` bytes.
#[unsafe(export_name = "ferroce_rsetsockopt")]
pub unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    entry::number(|| {
        socket::find(socket)?.with(|inner| {
            let is_open = match &inner.phase {
                Phase::Connecting(_) | Phase::Connected(_) => true,
                Phase::Datagrams(datagrams) => datagrams.is_open(),
                _ => false,
            };
            // SAFETY: the caller's promise.
            unsafe { inner.options.set((level, name), value, length, is_open) }?;
            match &inner.phase {
                // SAFETY: the caller's promise.
                Phase::Datagrams(datagrams) => unsafe { datagrams.set((level, name), value, length) },
                _ => Ok(()),
            }
        })?;
        Ok(0)
    })
}

/// What an option is.
///
/// # Safety
/// `value` has room for as many bytes as `length` says.
#[unsafe(export_name = "ferroce_rgetsockopt")]
pub unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    entry::number(|| {
        let socket = socket::find(socket)?;
        let asked = socket.with(|inner| inner.options.get(level, name))?;
        let number = match asked {
            Asked::Number(number) => number,
            Asked::Domain => socket.domain,
            Asked::Kind | Asked::Protocol => {
                let is_datagram = socket.with(|inner| inner.datagrams().is_some());
                match (asked, is_datagram) {
                    (Asked::Kind, true) => libc::SOCK_DGRAM,
                    (Asked::Kind, false) => libc::SOCK_STREAM,
                    (_, true) => libc::IPPROTO_UDP,
                    (_, false) => libc::IPPROTO_TCP,
                }
            }
            // What became of it may still be among the news.
            Asked::Error => socket.with_news(None, Inner::take_error).unwrap_or(0),
            Asked::IsListening => socket.with(|inner| matches!(inner.phase, Phase::Listening(_))).into(),
            Asked::SegmentBytes => socket.with(|inner| inner.segment_bytes()),
            Asked::Linger(wait) => {
                let seconds = wait.map_or(0, |wait| c_int::try_from(wait.as_secs()).unwrap_or(c_int::MAX));
                let answer = linger { l_onoff: wait.is_some().into(), l_linger: seconds };
                // SAFETY: the caller's promise.
                unsafe { options::write(answer, value, length) }?;
                return Ok(0);
            }
        };
        // SAFETY: the caller's promise.
        unsafe { options::write(number, value, length) }?;
        Ok(0)
    })
}

/// As `fcntl`: `F_GETFL` and `F_SETFL` know `O_NONBLOCK`, `F_GETFD` and `F_SETFD` the descriptor's own flag. (In C it takes any number of
/// arguments; one that is not there is not looked at.)
///
/// # Errors
/// `EINVAL` for other commands.
#[unsafe(export_name = "ferroce_rfcntl")]
pub extern "C" fn rfcntl(socket: c_int, command: c_int, argument: c_long) -> c_int {
    entry::number(|| {
        let number = socket;
        let socket = socket::find(number)?;
        match command {
            libc::F_GETFL => {
                let nonblocking = socket.nonblocking.load(Ordering::Relaxed);
                Ok(libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 })
            }
            libc::F_SETFL => {
                socket.nonblocking.store(argument & c_long::from(libc::O_NONBLOCK) != 0, Ordering::Relaxed);
                Ok(0)
            }
            libc::F_GETFD | libc::F_SETFD => {
                // SAFETY: the descriptor is the socket's own, which we hold.
                Ok(Errno::result(unsafe { libc::fcntl(number, command, argument) })?)
            }
            _ => Err(entry::INVALID),
        }
    })
}

/// Maps a buffer for the peer to write to (`PROT_WRITE`), known by an offset: -1 has one chosen. `PROT_NONE`: for our own use.
///
/// # Errors
/// `ENOMEM` if the peer takes no more mappings (its `RDMA_IOMAPSIZE`); `EINVAL`, `ENOTCONN`.
///
/// # Safety
/// The peer writes to the buffer at any time until it is unmapped.
#[unsafe(export_name = "ferroce_riomap")]
pub unsafe extern "C" fn riomap(
    socket: c_int,
    buffer: *mut c_void,
    length: size_t,
    prot: c_int,
    flags: c_int,
    offset: off_t,
) -> off_t {
    // Where these are the same, as everywhere that the engine runs.
    entry::long(|| {
        // SAFETY: the caller's promise.
        let offset = unsafe { iomap::map(&*socket::find(socket)?, buffer, length, (prot, flags), offset) }?;
        isize::try_from(offset).map_err(|_| entry::INVALID)
    }) as off_t
}

/// Takes a mapping back, by the buffer and length that it was made with.
#[unsafe(export_name = "ferroce_riounmap")]
pub extern "C" fn riounmap(socket: c_int, buffer: *mut c_void, length: size_t) -> c_int {
    entry::number(|| {
        iomap::unmap(&*socket::find(socket)?, buffer, length)?;
        Ok(0)
    })
}

/// Writes into the buffer that the peer has mapped at an offset. The peer is not told; what is sent later comes later.
///
/// # Errors
/// `EINVAL` if nothing is mapped there; as `rsend`.
///
/// # Safety
/// As [`rsend`].
#[unsafe(export_name = "ferroce_riowrite")]
pub unsafe extern "C" fn riowrite(
    socket: c_int,
    buffer: *const c_void,
    length: size_t,
    offset: off_t,
    flags: c_int,
) -> size_t {
    let written = bytes(|| {
        let offset = u64::try_from(offset).map_err(|_| entry::INVALID)?;
        let vector = vectors::vector(buffer, length);
        // SAFETY: the caller's promise.
        let mut from = unsafe { Vectors::one(&vector) };
        transfer::write_mapped(&*socket::find(socket)?, &mut from, offset, flags)
    });
    // The header says so: -1 is a large number.
    written.cast_unsigned()
}
