//! What the control side of a daemon adds to the engine's: event sockets, and counters of lcores and devices.

use std::os::fd::{AsFd, OwnedFd};

use engine::Time;
use engine::command::Shards;
use engine::control::Control;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use pmd::PortStats;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use shm::control::{AsyncEvent, CallError, Reply, Request, Stats};
use shm::socket;

use crate::port::OpenPort;

/// Errno of a request that can't be served for want of a file descriptor.
const ENOMEM: i32 = 12;

/// The daemon's end of a client's event socket.
#[derive(Debug)]
pub(crate) struct EventSocket {
    socket: OwnedFd,
    /// Events that did not fit because the client does not read them.
    lost: u64,
}

impl EventSocket {
    /// A pair: our end, and the client's.
    fn pair() -> std::io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socket::pair()?;
        set_nonblocking(&ours)?;
        Ok((Self { socket: ours, lost: 0 }, theirs))
    }

    /// Sends an event, without waiting: what a client does not read is lost to it alone.
    pub(crate) fn send(&mut self, session: u32, event: &AsyncEvent) {
        match socket::send(self.socket.as_fd(), event, &[]) {
            Ok(()) | Err(CallError::Disconnected) => {}
            Err(error) => {
                if self.lost == 0 {
                    tracing::warn!(session, "a client does not read its events, and loses them: {error}");
                }
                self.lost += 1;
            }
        }
    }
}

pub(crate) fn set_nonblocking(fd: &OwnedFd) -> std::io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// An answer, what rides along, and our end of the event socket if the request was a `Hello`.
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) fds: Vec<OwnedFd>,
    pub(crate) events: Option<EventSocket>,
}

impl Answer {
    pub(crate) fn refused(errno: i32, message: String) -> Self {
        Self { reply: Reply::Refused { errno, message }, fds: Vec::new(), events: None }
    }
}

/// Answers a request. `more_stats` adds groups to the answer to [`Request::Stats`].
pub(crate) fn answer<S: Shards>(
    control: &mut Control,
    shards: &mut S,
    session: u32,
    now: Time,
    (request, fds): (Request, Vec<OwnedFd>),
    more_stats: impl FnOnce(&mut Stats),
) -> Answer {
    let (mut reply, mut fds) = control.handle(shards, session, now, request, fds);
    let mut events = None;
    match &mut reply {
        Reply::Hello { .. } => match EventSocket::pair() {
            Ok((ours, theirs)) => {
                fds.push(theirs);
                events = Some(ours);
            }
            Err(error) => return Answer::refused(ENOMEM, format!("no socket for events: {error}")),
        },
        Reply::Stats(stats) => more_stats(stats),
        _ => {}
    }
    Answer { reply, fds, events }
}

/// What the devices count themselves, as groups behind the engine's.
pub(crate) fn add_device_stats(ports: &[OpenPort], stats: &mut Stats) {
    for (port, number) in ports.iter().zip(1..) {
        let PortStats { ipackets, opackets, ibytes, obytes, imissed, ierrors, oerrors, rx_nombuf } = port.stats();
        let entries = [
            ("ipackets", ipackets),
            ("opackets", opackets),
            ("ibytes", ibytes),
            ("obytes", obytes),
            ("imissed", imissed),
            ("ierrors", ierrors),
            ("oerrors", oerrors),
            ("rx_nombuf", rx_nombuf),
        ];
        let entries = entries.map(|(name, value)| (name.to_owned(), value)).to_vec();
        stats.groups.push((format!("device {number}"), entries));
    }
}

/// Unpredictable numbers: memory keys are made of them.
pub(crate) fn entropy() -> Box<dyn FnMut() -> u64 + Send> {
    let mut random = StdRng::from_os_rng();
    Box::new(move || random.next_u64())
}
