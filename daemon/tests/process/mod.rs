//! A `ferroced` of its own for a test.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ferroce::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::{Domain, SockAddr, Socket, Type};
use tempfile::TempDir;

use crate::support::PATIENCE;

/// A daemon over a port that loops to itself: no privilege, no interface.
pub(crate) struct Ferroced {
    child: Child,
    socket: PathBuf,
    _directory: TempDir,
}

pub(crate) fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroced"));
    command.args(words).stdin(Stdio::null());
    command
}

impl Ferroced {
    /// Starts one, with `more` in its configuration file, and waits until it answers.
    pub(crate) fn start(more: &str) -> Self {
        Self::start_on("[[port]]\nvdev = \"net_ring0\"\naddresses = [\"10.0.0.1\"]\n", more)
    }

    /// The same with another port.
    pub(crate) fn start_on(port: &str, more: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("ferroced.sock");
        let config = directory.path().join("ferroced.toml");
        let head = format!("socket = {socket:?}\nmemory = \"no-huge\"\nlog = \"warn\"\n");
        std::fs::write(&config, format!("{head}{more}\n{port}")).unwrap();
        let child = command(&["--config", config.to_str().unwrap()]).spawn().unwrap();
        let mut daemon = Self { child, socket, _directory: directory };
        daemon.wait_until_it_answers();
        daemon
    }

    fn wait_until_it_answers(&mut self) {
        let end = Instant::now() + PATIENCE;
        while Context::connect(&self.socket).is_err() {
            assert_eq!(self.child.try_wait().unwrap(), None, "the daemon has ended");
            assert!(Instant::now() < end, "the daemon does not answer");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn connect(&self) -> Context {
        Context::connect(&self.socket).unwrap()
    }

    /// A bare connection, on which anything may be sent. Neither sending nor receiving on it blocks for ever.
    pub(crate) fn connect_raw(&self) -> OwnedFd {
        let raw = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        raw.connect(&SockAddr::unix(&self.socket).unwrap()).unwrap();
        raw.set_read_timeout(Some(PATIENCE)).unwrap();
        raw.set_write_timeout(Some(PATIENCE)).unwrap();
        raw.into()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Stops it; returns once no thread of it runs any more.
    pub(crate) fn stop_all_threads(&self) {
        self.signal(Signal::SIGSTOP);
        let end = Instant::now() + PATIENCE;
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            // `comm` is in brackets and has no blank in our threads; the state follows.
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        };
        while !std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().all(is_stopped) {
            assert!(Instant::now() < end, "the daemon does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_bounded(&mut self.child)
    }

    /// Open file descriptors.
    pub(crate) fn fd_count(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Memory in KiB: a field of its status.
    pub(crate) fn memory_kib(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Ferroced {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn wait_bounded(child: &mut Child) -> ExitStatus {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < end, "the process does not end");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs `ferroced` to its end: whether it succeeded, standard output, standard error.
pub(crate) fn run(words: &[&str]) -> (bool, String, String) {
    let mut child = command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let status = wait_bounded(&mut child);
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    (status.success(), out, err)
}

/// True once the other side has closed the connection.
pub(crate) fn is_closed(socket: &OwnedFd) -> bool {
    let mut buffer = vec![0; 64 << 10];
    let end = Instant::now() + PATIENCE;
    loop {
        match shm::socket::receive(socket.as_fd(), &mut buffer) {
            Err(shm::control::CallError::Disconnected) => return true,
            Ok(_) if Instant::now() < end => {}
            other => panic!("still open: {other:?}"),
        }
    }
}
