//! Eventfds: how a completion channel wakes an application, and an application a sleeping shard.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// An eventfd, non-blocking. Writing it is the only system call that the data path may make.
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

    /// Takes over an eventfd that another process sent.
    pub fn from_fd(fd: OwnedFd) -> Self {
        // SAFETY: not a matter of memory: on a descriptor of another kind, reads and writes fail or do something else to a
        // file that the sender gave us on purpose.
        Self(unsafe { EventFd::from_owned_fd(fd) })
    }

    /// Wakes whoever waits. A counter that is full already wakes all the same.
    pub fn wake(&self) {
        let _ = self.0.write(1);
    }

    /// Takes back all wakes so far; true if there were any.
    pub fn drain(&self) -> bool {
        self.0.read().is_ok()
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
