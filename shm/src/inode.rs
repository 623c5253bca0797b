//! Which file a descriptor is of, so that processes that can open the same file can share what belongs to it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};

/// A file's inode. It is held without keeping the file open: as long as this lives, no other file gets its number.
#[derive(Debug)]
pub struct Inode {
    dev: u64,
    ino: u64,
    _held: OwnedFd,
}

impl Inode {
    /// The inode of the file that a descriptor is of, which may be any: a directory, a device, a file that is deleted.
    ///
    /// # Errors
    /// What the operating system says: too many open files, or `/proc` is not mounted.
    pub fn of(fd: &OwnedFd) -> std::io::Result<Self> {
        // O_PATH opens nothing: no device wakes up, and locks and pipes of the client's end with the client.
        let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        let held = open(path.as_str(), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
        let stat = fstat(&held)?;
        Ok(Self { dev: stat.st_dev, ino: stat.st_ino, _held: held })
    }

    /// True if it is the same file, by whatever names they were opened.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.dev, self.ino) == (other.dev, other.ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{Mapping, PageSize};

    fn memfd() -> OwnedFd {
        Mapping::create(c"inode", 4096, PageSize::Base).unwrap().fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn a_file_is_the_same_by_any_descriptor_and_no_other_file_is() {
        let (a, b) = (memfd(), memfd());
        let inode = Inode::of(&a).unwrap();
        assert!(inode.is_same(&Inode::of(&a.try_clone().unwrap()).unwrap()));
        assert!(!inode.is_same(&Inode::of(&b).unwrap()));
    }
}
