//! The UNIX socket that a daemon listens on: claimed, so that there is one daemon to a path, and removed at the end.

use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use socket2::{Domain, SockAddr, Socket, Type};
use thiserror::Error;

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Why the socket can't be had.
#[derive(Debug, Error)]
pub enum SocketError {
    /// A daemon answers there.
    #[error("another daemon answers at {}: stop it, or choose another path with `socket` (or --socket)", .0.display())]
    InUse(PathBuf),
    /// There is a file that we would not overwrite.
    #[error("{} exists and is no socket: remove it, or choose another path with `socket` (or --socket)", .0.display())]
    NotASocket(PathBuf),
    /// The directory can't be made or opened.
    #[error("directory {} for the control socket: {source}", .directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// The operating system refused a step.
    #[error("control socket {}: {source}", .path.display())]
    Os {
        /// The path.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
}

/// A listening control socket. Its file is removed when it is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    listener: Socket,
    path: PathBuf,
    /// Device and inode of our file: another daemon's is not ours to remove.
    identity: (u64, u64),
}

impl ControlSocket {
    /// Listens at `path`, whose directory is made if need be; clients need the permission to write that `mode` gives.
    ///
    /// A socket file that nobody answers at is left from a daemon that died, and replaced.
    ///
    /// # Errors
    /// [`SocketError`]: sentences for the operator.
    pub fn claim(path: &Path, mode: u32) -> Result<Self, SocketError> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let in_directory = |source| SocketError::Directory { directory: directory.to_owned(), source };
        fs::create_dir_all(directory).map_err(in_directory)?;
        let opened = File::open(directory).map_err(in_directory)?;
        // Two daemons that start at once would each find the other's file stale. The lock ends with this function.
        let _lock = Flock::lock(opened, FlockArg::LockExclusive).map_err(|(_, errno)| in_directory(errno.into()))?;
        remove_stale(path)?;
        Self::listen(path, mode).map_err(|source| SocketError::Os { path: path.to_owned(), source })
    }

    fn listen(path: &Path, mode: u32) -> std::io::Result<Self> {
        let listener = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
        listener.bind(&SockAddr::unix(path)?)?;
        let metadata = fs::symlink_metadata(path)?;
        let claimed = Self { listener, path: path.to_owned(), identity: (metadata.dev(), metadata.ino()) };
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        claimed.listener.listen(BACKLOG)?;
        claimed.listener.set_nonblocking(true)?;
        Ok(claimed)
    }

    /// The next client that waits; `None` if there is none.
    ///
    /// # Errors
    /// What the operating system says: too many open files.
    pub(crate) fn accept(&self) -> std::io::Result<Option<OwnedFd>> {
        match self.listener.accept() {
            Ok((client, _)) => Ok(Some(client.into())),
            // The second: the client has gone again already.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Removes the socket file of a daemon that died.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let os = |source| SocketError::Os { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(os(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(SocketError::NotASocket(path.to_owned())),
        Ok(_) => {}
    }
    let probe = Socket::new(Domain::UNIX, Type::SEQPACKET, None).map_err(os)?;
    // A daemon that is too busy to accept must not make us wait.
    probe.set_nonblocking(true).map_err(os)?;
    match probe.connect(&SockAddr::unix(path).map_err(os)?) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(os),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        // Connected, or somebody else's, or full of clients that wait: somebody lives there.
        _ => Err(SocketError::InUse(path.to_owned())),
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let ours = |metadata: fs::Metadata| (metadata.dev(), metadata.ino()) == self.identity;
        if fs::symlink_metadata(&self.path).is_ok_and(ours) {
            // If it stays, the next daemon finds it stale.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_in(directory: &tempfile::TempDir) -> PathBuf {
        directory.path().join("sub/ferroced.sock")
    }

    #[test]
    fn one_daemon_to_a_path_and_the_file_goes_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(&directory);
        let first = ControlSocket::claim(&path, 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let second = ControlSocket::claim(&path, 0o600).unwrap_err();
        assert!(matches!(&second, SocketError::InUse(at) if *at == path), "{second}");
        assert!(second.to_string().contains(path.to_str().unwrap()));
        drop(first);
        assert!(!path.exists());
        ControlSocket::claim(&path, 0o600).unwrap();
    }

    #[test]
    fn a_dead_daemons_file_is_replaced_and_other_files_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(&directory);
        let dead = ControlSocket::claim(&path, 0o600).unwrap();
        let copy = directory.path().join("copy");
        fs::hard_link(&path, &copy).unwrap();
        drop(dead);
        fs::rename(&copy, &path).unwrap();
        let next = ControlSocket::claim(&path, 0o600).unwrap();
        drop(next);
        fs::write(&path, "notes").unwrap();
        assert!(matches!(ControlSocket::claim(&path, 0o600), Err(SocketError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "notes");
    }

    #[test]
    fn a_successors_file_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(&directory);
        let first = ControlSocket::claim(&path, 0o600).unwrap();
        fs::remove_file(&path).unwrap();
        let second = ControlSocket::claim(&path, 0o600).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
    }

    #[test]
    fn nobody_waits_and_then_a_client_does() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(&directory);
        let socket = ControlSocket::claim(&path, 0o600).unwrap();
        assert!(socket.accept().unwrap().is_none());
        let _client = shm::socket::SocketEndpoint::connect(&path).unwrap();
        assert!(socket.accept().unwrap().is_some());
    }
}
