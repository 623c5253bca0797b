//! How sleepers are woken: an eventfd for a shard, a pair of sockets for a completion channel.
//!
//! A file description that two processes share has one set of flags, and either can change them: a client could fill an eventfd's
//! counter and make the next write to it block. So the engine neither reads nor writes an eventfd that a client has, and no two
//! clients have the same; and where the engine wakes a client it sends on a socket, where each call says by itself that it must
//! not wait.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};

/// An eventfd that wakes a sleeper, who watches it. One that goes to a client is written by that client alone, and read by nobody.
#[derive(Debug)]
pub struct WakeFd(EventFd);

impl WakeFd {
    /// A fresh one, at zero.
    ///
    /// # Errors
    /// What the operating system says: too many open files.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?))
    }

    /// Wakes whoever waits. A counter that is full already wakes all the same.
    pub fn wake(&self) {
        let _ = self.0.write(1);
    }

    /// Takes back all wakes so far; true if there were any. Only for an eventfd that no client has.
    pub fn drain(&self) -> bool {
        self.0.read().is_ok()
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<WakeFd> for OwnedFd {
    fn from(wake: WakeFd) -> Self {
        wake.0.into()
    }
}

/// The end of a completion channel that notifications are sent on. The engine holds it, and the client a copy.
#[derive(Debug)]
pub struct Notifier(OwnedFd);

/// The end of a completion channel that is readable while there are notifications.
#[derive(Debug)]
pub struct Notifications(OwnedFd);

/// Makes the two ends of a completion channel.
///
/// # Errors
/// What the operating system says: too many open files.
pub fn channel() -> std::io::Result<(Notifier, Notifications)> {
    let (one, other) = socketpair(AddressFamily::Unix, SockType::Datagram, None, SockFlag::SOCK_CLOEXEC)?;
    Ok((Notifier(one), Notifications(other)))
}

impl Notifier {
    /// Takes over the end that another process sent.
    pub const fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Makes the other end readable. Never blocks: where notifications wait unread, there need not be more.
    pub fn notify(&self) {
        let _ = send(self.0.as_raw_fd(), &[1], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Notifications {
    /// Takes over the end that another process sent.
    pub const fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Takes all notifications so far; true if there were any.
    pub fn drain(&self) -> bool {
        let mut any = false;
        // A socket's queue is short: this ends.
        while recv(self.0.as_raw_fd(), &mut [0; 8], MsgFlags::MSG_DONTWAIT).is_ok_and(|bytes| bytes > 0) {
            any = true;
        }
        any
    }
}

impl AsFd for Notifications {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_are_taken_together() {
        let (notifier, notifications) = channel().unwrap();
        assert!(!notifications.drain());
        notifier.notify();
        notifier.notify();
        assert!(notifications.drain());
        assert!(!notifications.drain());
    }

    #[test]
    fn a_client_that_never_reads_does_not_block_the_engine() {
        let (notifier, notifications) = channel().unwrap();
        // Even if the client makes its copies of both ends block.
        for _ in 0..100_000 {
            notifier.notify();
        }
        assert!(notifications.drain());
        drop(notifications);
        notifier.notify();
    }
}
