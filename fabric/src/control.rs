//! Commands to a fabric that runs: a socket in the file system, a line of words, a line or more for an answer.
//!
//! A connection has one command. Whoever connects and says nothing is forgotten for the next ones, and nobody waits for anybody: the fabric
//! looks for commands between its turns.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// So many connections may be open without a word.
const OPEN_MAX: usize = 8;
/// Longest command, bytes.
const COMMAND_BYTES_MAX: usize = 256;
/// How long a fabric may take to answer. Its turns take milliseconds at the worst.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a fabric can be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// To show its statistics.
    Statistics {
        /// As JSON.
        json: bool,
    },
    /// To have a port's link go down or up.
    Link {
        /// Its device, the interface behind it, or its number.
        port: String,
        /// Up.
        is_up: bool,
    },
}

impl Command {
    /// What words mean, or a sentence that says what is possible.
    ///
    /// # Errors
    /// They mean nothing.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>, json: bool) -> Result<Self, String> {
        let words: Vec<&str> = words.into_iter().collect();
        match words[..] {
            ["stats"] => Ok(Self::Statistics { json }),
            ["down" | "up", port] => Ok(Self::Link { port: port.to_owned(), is_up: words[0] == "up" }),
            _ => Err(format!("{:?} is no command: down PORT, up PORT and stats are", words.join(" "))),
        }
    }

    fn line(&self) -> String {
        match self {
            Self::Statistics { json } => format!("stats{}\n", if *json { " json" } else { "" }),
            Self::Link { port, is_up } => format!("{} {port}\n", if *is_up { "up" } else { "down" }),
        }
    }

    fn from_line(line: &str) -> Result<Self, String> {
        let words = line.split_ascii_whitespace();
        match line.trim().strip_suffix(" json") {
            Some(rest) => Self::parse(rest.split_ascii_whitespace(), true),
            None => Self::parse(words, false),
        }
    }
}

/// A command, and who waits for its answer.
#[derive(Debug)]
pub struct Asked {
    /// The command, or why it is none.
    pub command: Result<Command, String>,
    stream: UnixStream,
}

impl Asked {
    /// Answers: text to print, or why not. That nobody reads it is nobody's trouble.
    pub fn answer(mut self, answer: &Result<String, String>) {
        let text = match answer {
            Ok(text) => format!("ok\n{text}"),
            Err(sentence) => format!("no\n{sentence}"),
        };
        // Not more than a socket's buffer holds; the rest would have to wait.
        drop(self.stream.write_all(text.as_bytes()));
    }
}

/// Where commands come in. The file goes with it.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    listener: UnixListener,
    open: VecDeque<UnixStream>,
}

impl ControlSocket {
    /// Listens at a path. A socket there that nobody listens at is a dead fabric's, and is replaced.
    ///
    /// # Errors
    /// What the system says; [`ErrorKind::AddrInUse`] if somebody listens there, or if it is another kind of file.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let is_dead = || {
            let is_refused = UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
            fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) && is_refused
        };
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && is_dead() => {
                fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            bound => bound?,
        };
        listener.set_nonblocking(true)?;
        Ok(Self { path: path.to_owned(), listener, open: VecDeque::with_capacity(OPEN_MAX) })
    }

    /// To wait for somebody who connects.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// The next command, if there is one.
    pub fn take_command(&mut self) -> Option<Asked> {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.open.len() == OPEN_MAX {
                self.open.pop_front();
            }
            self.open.push_back(stream);
        }
        for _ in 0..self.open.len() {
            let mut stream = self.open.pop_front()?;
            let mut bytes = [0; COMMAND_BYTES_MAX];
            match stream.read(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.open.push_back(stream),
                Err(_) | Ok(0) => {}
                Ok(count) => {
                    let line = String::from_utf8_lossy(&bytes[..count]);
                    let line =
                        line.strip_suffix('\n').ok_or_else(|| "a command is a line of at most 256 bytes".to_owned());
                    return Some(Asked { command: line.and_then(Command::from_line), stream });
                }
            }
        }
        None
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.path));
    }
}

/// Tells the fabric that listens at a path something. What it answers is text to print, or a sentence that says why not.
///
/// # Errors
/// There is none, or it does not answer.
pub fn tell(path: &Path, command: &Command) -> io::Result<Result<String, String>> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(command.line().as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once('\n') {
        Some(("ok", text)) => Ok(Ok(text.to_owned())),
        Some(("no", sentence)) => Ok(Err(sentence.to_owned())),
        _ => Err(io::Error::new(ErrorKind::InvalidData, "the answer is not one of a fabric")),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn next(socket: &mut ControlSocket) -> Asked {
        loop {
            match socket.take_command() {
                Some(asked) => return asked,
                None => thread::yield_now(),
            }
        }
    }

    #[test]
    fn a_command_is_answered_and_silent_or_strange_ones_keep_nobody_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fabric.sock");
        let mut socket = ControlSocket::bind(&path).unwrap();
        let silent: Vec<_> = (0..2 * OPEN_MAX).map(|_| UnixStream::connect(&path).unwrap()).collect();
        assert!(socket.take_command().is_none());
        for words in [&["down", "veth0"][..], &["up", "1"], &["stats"]] {
            let command = Command::parse(words.iter().copied(), true).unwrap();
            let (path, told) = (path.clone(), command.clone());
            let teller = thread::spawn(move || tell(&path, &told).unwrap());
            let asked = next(&mut socket);
            assert_eq!(asked.command, Ok(command));
            asked.answer(&Ok("done".to_owned()));
            assert_eq!(teller.join().unwrap(), Ok("done".to_owned()));
        }
        for line in ["fly me\n", "down\n", "down a b\n", "stats", "\n", &"x".repeat(1_000)] {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(line.as_bytes()).unwrap();
            let asked = next(&mut socket);
            assert!(asked.command.is_err(), "{line:?}");
            asked.answer(&Err("no such thing".to_owned()));
        }
        drop(silent);
        drop(socket);
        assert_eq!(tell(&path, &Command::Statistics { json: false }).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_dead_fabrics_socket_is_replaced_and_a_living_ones_or_a_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fabric.sock");
        drop(UnixListener::bind(&path).unwrap());
        let living = ControlSocket::bind(&path).unwrap();
        assert_eq!(ControlSocket::bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(living);
        fs::write(&path, "precious").unwrap();
        assert_eq!(ControlSocket::bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }
}
