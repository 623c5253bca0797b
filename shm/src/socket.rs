//! The control socket: one message a SOCK_SEQPACKET datagram, with file descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Mutex;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, connect, recvmsg,
    sendmsg, socket, socketpair,
};

use crate::control::{self, CallError, Endpoint, FDS_MAX, MESSAGE_BYTES_MAX, Reply, Request};
use crate::relocate;

/// Two connected sockets of the kind that carries control messages.
///
/// # Errors
/// What the operating system says.
pub fn pair() -> std::io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
}

/// Sends one message.
///
/// # Errors
/// [`CallError::Disconnected`] if the other side is gone, [`CallError::TooLarge`], [`CallError::Io`] (`WouldBlock` on a
/// non-blocking socket whose reader is slow).
pub fn send<T: serde::Serialize>(fd: BorrowedFd<'_>, message: &T, fds: &[BorrowedFd<'_>]) -> Result<(), CallError> {
    let bytes = control::encode(message)?;
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let ancillary: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    loop {
        match sendmsg::<()>(fd.as_raw_fd(), &[IoSlice::new(&bytes)], ancillary, MsgFlags::MSG_NOSIGNAL, None) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN) => return Err(CallError::Disconnected),
            Err(errno) => return Err(CallError::Io(errno.into())),
        }
    }
}

/// Receives one datagram and the file descriptors with it into `buffer` (of [`MESSAGE_BYTES_MAX`] bytes).
///
/// # Errors
/// [`CallError::Disconnected`] at the end of the connection; [`CallError::Malformed`] if the datagram or its descriptors did
/// not fit (the descriptors are closed); [`CallError::NoDescriptors`] if the process may have no more of them;
/// [`CallError::Io`].
pub fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), CallError> {
    let mut space = nix::cmsg_space!([RawFd; FDS_MAX]);
    loop {
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = match recvmsg::<()>(fd.as_raw_fd(), &mut parts, Some(&mut space), flags) {
            Ok(message) => message,
            Err(Errno::EINTR) => continue,
            Err(Errno::ECONNRESET | Errno::ENOTCONN) => return Err(CallError::Disconnected),
            Err(errno) => return Err(CallError::Io(errno.into())),
        };
        let mut fds = Vec::new();
        if let Ok(ancillary) = message.cmsgs() {
            for part in ancillary {
                if let ControlMessageOwned::ScmRights(raw) = part {
                    // SAFETY: the kernel has just made these descriptors for us; nobody else owns them.
                    fds.extend(raw.into_iter().map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }));
                }
            }
        }
        let lost_descriptors = message.flags.contains(MsgFlags::MSG_CTRUNC) && fds.len() < FDS_MAX;
        if lost_descriptors && !message.flags.contains(MsgFlags::MSG_TRUNC) {
            // There was room for them in the message.
            return Err(CallError::NoDescriptors);
        }
        if message.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC) {
            return Err(CallError::Malformed);
        }
        return if message.bytes == 0 && fds.is_empty() {
            Err(CallError::Disconnected)
        } else {
            Ok((message.bytes, fds))
        };
    }
}

/// A client's connection to a daemon.
pub struct SocketEndpoint {
    fd: OwnedFd,
    /// One call at a time; the buffer for its answer.
    answer: Mutex<Vec<u8>>,
}

impl SocketEndpoint {
    /// Connects to a daemon's socket.
    ///
    /// # Errors
    /// What the operating system says: `NotFound` or `ConnectionRefused` if no daemon listens there.
    pub fn connect(path: &Path) -> std::io::Result<Self> {
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        Ok(Self::new(fd))
    }

    /// Takes over a connected socket.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd, answer: Mutex::new(vec![0; MESSAGE_BYTES_MAX]) }
    }
}

impl Endpoint for SocketEndpoint {
    fn call(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>), CallError> {
        use std::os::fd::AsFd;
        let mut answer = self.answer.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        send(self.fd.as_fd(), request, fds)?;
        let (length, fds) = receive(self.fd.as_fd(), &mut answer)?;
        let bytes = answer.get(..length).ok_or(CallError::Malformed)?;
        Ok((control::decode(bytes)?, fds))
    }

    fn exclusively(&self, _moving: &Range<u64>, run: &mut dyn FnMut(&mut dyn FnMut() -> bool)) -> bool {
        let (mut request, mut reply) = ([0; 16], [0; 16]);
        let messages =
            (relocate::message(&Request::MoveCopy, &mut request), relocate::message(&Reply::Done, &mut reply));
        let (Some(request), Some(done)) = messages else { return false };
        let _alone = self.answer.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let socket = self.fd.as_raw_fd();
        run(&mut || relocate::ask(socket, request, done));
        true
    }
}

/// Process and user of the other side of a connected UNIX socket, as the kernel knows them.
///
/// # Errors
/// What the operating system says.
pub fn peer_credentials(fd: &impl std::os::fd::AsFd) -> std::io::Result<(u32, u32)> {
    let credentials = nix::sys::socket::getsockopt(fd, nix::sys::socket::sockopt::PeerCredentials)?;
    Ok((credentials.pid().cast_unsigned(), credentials.uid()))
}
