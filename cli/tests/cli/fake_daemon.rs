//! A control socket with canned answers behind it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use shm::ABI_VERSION;
use shm::attr::DeviceAttr;
use shm::control::{self, MESSAGE_BYTES_MAX, Reply, Request};
use tempfile::TempDir;

/// A daemon that answers one client after the other, each until it leaves.
pub(crate) struct FakeDaemon {
    directory: TempDir,
}

impl FakeDaemon {
    /// Starts one. `answer` says what comes back, [`hello`] included; `None` hangs up.
    pub(crate) fn start(answer: impl FnMut(Request) -> Option<Reply> + Send + 'static) -> Self {
        let daemon = Self { directory: tempfile::tempdir().expect("a directory for the socket") };
        let listener = listen_at(&daemon.socket());
        thread::spawn(move || serve(&listener, answer));
        daemon
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("ferroced.sock")
    }
}

/// The answer of a daemon of our own version.
pub(crate) fn hello() -> Reply {
    Reply::Hello { abi_version: ABI_VERSION, session: 7, device: DeviceAttr::default() }
}

fn listen_at(path: &Path) -> UnixListener {
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    bind(fd.as_raw_fd(), &UnixAddr::new(path).expect("a short path")).expect("bind");
    listen(&fd, Backlog::new(4).expect("a legal backlog")).expect("listen");
    // Only `accept` is used of it, which is the same for every type of socket.
    UnixListener::from(fd)
}

fn serve(listener: &UnixListener, mut answer: impl FnMut(Request) -> Option<Reply>) {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    while let Ok((stream, _)) = listener.accept() {
        let client = OwnedFd::from(stream);
        while let Ok((length, _)) = shm::socket::receive(client.as_fd(), &mut buffer) {
            let request = control::decode(&buffer[..length]).expect("a request");
            let Some(reply) = answer(request) else { break };
            shm::socket::send(client.as_fd(), &reply, &[]).expect("the client reads");
        }
    }
}
