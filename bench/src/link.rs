//! The two programs' way to each other beside the test: settings, steps and results over TCP.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use ferroce::Context;
use ferroce::exchange::{self, ConnectionInfo};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{PerfError, Result, io_error};
use crate::params::{Params, Test};

/// Most bytes of a message.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// A server may be started a little after its client.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Turns of an engine between two looks at the socket.
const TURNS_PER_LOOK: u32 = 256;

/// What the client asks of the server first.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Proposal {
    /// The program that sends it.
    pub(crate) version: String,
    /// The settings of each run, in order.
    pub(crate) runs: Vec<Params>,
    /// Rounds of each run.
    pub(crate) rounds: u32,
    /// Measure the floor beside each round, through the device that joins the two programs.
    pub(crate) floor: bool,
    /// QPs to make and connect that then stay idle.
    pub(crate) idle_qps: u32,
}

impl Proposal {
    /// Most runs: one for each size.
    const RUNS_MAX: usize = 64;
    const ROUNDS_MAX: u32 = 1000;

    /// What speaks against it, seen from a server that was started for `test`.
    fn objection(&self, test: Test, has_device: bool) -> Option<String> {
        let version = env!("CARGO_PKG_VERSION");
        if self.version != version {
            return Some(format!("the client is version {}, this server {version}", self.version));
        }
        if let Some(params) = self.runs.iter().find(|params| params.test != test) {
            return Some(format!("the client runs {}, this server {test}", params.test));
        }
        if self.runs.is_empty() || self.runs.len() > Self::RUNS_MAX {
            return Some(format!("{} runs: 1 to {} are possible", self.runs.len(), Self::RUNS_MAX));
        }
        if !(1..=Self::ROUNDS_MAX).contains(&self.rounds) {
            return Some(format!("{} rounds: 1 to {} are possible", self.rounds, Self::ROUNDS_MAX));
        }
        if self.floor && !has_device {
            return Some("the client has a device of its own (--embedded --vdev), this server does not".to_owned());
        }
        self.runs.iter().find_map(|params| params.check().err()).map(|error| error.to_string())
    }
}

/// A connected TCP stream between the two programs.
#[derive(Debug)]
pub(crate) struct Link(TcpStream);

impl Link {
    /// Takes over a stream.
    pub(crate) fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true).map_err(io_error("TCP"))?;
        Ok(Self(stream))
    }

    /// Waits for a client on a port.
    ///
    /// # Errors
    /// [`PerfError::Io`] if the port is taken.
    pub(crate) fn listen(port: u16) -> Result<Self> {
        let listener = TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
        let listener = listener.map_err(io_error(format!("listening on TCP port {port}")))?;
        let (stream, _) = listener.accept().map_err(io_error("waiting for a client"))?;
        Self::new(stream)
    }

    /// Connects to a server; tries again for some seconds if it is not there yet.
    ///
    /// # Errors
    /// [`PerfError::Io`].
    pub(crate) fn connect(host: &str, port: u16) -> Result<Self> {
        let what = || format!("connecting to {host}, TCP port {port}");
        let addresses: Vec<_> = (host, port).to_socket_addrs().map_err(io_error(what()))?.collect();
        let end = Instant::now() + CONNECT_PATIENCE;
        loop {
            match TcpStream::connect(&addresses[..]) {
                Ok(stream) => return Self::new(stream),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused && Instant::now() < end => {
                    thread::sleep(CONNECT_PAUSE);
                }
                Err(error) => return Err(io_error(what())(error)),
            }
        }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`PerfError::Io`].
    pub(crate) fn send(&self, message: &impl Serialize) -> Result<()> {
        let bytes = serde_json::to_vec(message).map_err(|error| PerfError::Protocol(error.to_string()))?;
        exchange::send(&self.0, &bytes).map_err(io_error("sending to the peer"))
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// [`PerfError::Io`] when the peer ends, [`PerfError::Protocol`] for a message of another kind.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> Result<T> {
        let bytes = exchange::receive(&self.0, MESSAGE_BYTES_MAX).map_err(io_error("waiting for the peer"))?;
        serde_json::from_slice(&bytes).map_err(|error| PerfError::Protocol(error.to_string()))
    }

    /// As [`Link::receive`], with an engine on this thread kept running meanwhile.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn receive_driving<T: DeserializeOwned>(&self, context: &Context, polled: bool) -> Result<T> {
        while polled && !self.has_message()? {
            for _ in 0..TURNS_PER_LOOK {
                context.make_progress();
            }
            // The peer may want this core.
            thread::yield_now();
        }
        self.receive()
    }

    /// True if [`Link::receive`] need not wait for the peer, or would fail.
    ///
    /// # Errors
    /// [`PerfError::Io`].
    pub(crate) fn has_message(&self) -> Result<bool> {
        self.0.set_nonblocking(true).map_err(io_error("TCP"))?;
        let found = self.0.peek(&mut [0]);
        self.0.set_nonblocking(false).map_err(io_error("TCP"))?;
        match found {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(io_error("waiting for the peer")(error)),
        }
    }

    /// Trades connection parameters.
    ///
    /// # Errors
    /// [`PerfError::Io`], also for parameters that can't be.
    pub(crate) fn trade(&self, local: &[ConnectionInfo]) -> Result<Vec<ConnectionInfo>> {
        exchange::tcp(&self.0, local).map_err(io_error("trading connection parameters"))
    }

    /// Waits until the peer has come to the same point.
    ///
    /// # Errors
    /// [`PerfError::Io`].
    pub(crate) fn sync(&self) -> Result<()> {
        exchange::sync(&self.0).map_err(io_error("waiting for the peer"))
    }

    /// The client's first step.
    ///
    /// # Errors
    /// [`PerfError::Peer`] with the server's objection.
    pub(crate) fn propose(&self, proposal: &Proposal) -> Result<()> {
        self.send(proposal)?;
        self.receive::<Option<String>>()?.map_or(Ok(()), |objection| Err(PerfError::Peer(objection)))
    }

    /// The server's first step: checks what the client wants.
    ///
    /// # Errors
    /// [`PerfError::Protocol`] with the objection, which the client was told.
    pub(crate) fn accept_proposal(&self, test: Test, has_device: bool) -> Result<Proposal> {
        let proposal: Proposal = self.receive()?;
        let objection = proposal.objection(test, has_device);
        self.send(&objection)?;
        objection.map_or(Ok(proposal), |objection| Err(PerfError::Protocol(objection)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::tests::params;
    use crate::params::{Test, Verb};

    fn links() -> [Link; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [Link::new(client).unwrap(), Link::new(listener.accept().unwrap().0).unwrap()]
    }

    fn proposal() -> Proposal {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Proposal { version, runs: vec![params(Test::bandwidth(Verb::Write))], rounds: 1, floor: false, idle_qps: 0 }
    }

    /// What the client hears of a proposal.
    fn answer(proposal: &Proposal) -> Result<()> {
        let [client, server] = links();
        thread::scope(|scope| {
            let accepted = scope.spawn(move || server.accept_proposal(Test::bandwidth(Verb::Write), false));
            let answer = client.propose(proposal);
            assert_eq!(accepted.join().unwrap().is_ok(), answer.is_ok());
            answer
        })
    }

    #[test]
    fn a_server_takes_the_clients_settings_or_says_what_is_wrong_with_them() {
        answer(&proposal()).unwrap();
        let refused = |change: fn(&mut Proposal)| {
            let mut proposal = proposal();
            change(&mut proposal);
            answer(&proposal).unwrap_err().to_string()
        };
        assert_eq!(
            refused(|p| p.runs[0].test = Test::latency(Verb::Read)),
            "the peer says: the client runs read_lat, this server write_bw"
        );
        assert!(refused(|p| p.runs[0].qps = 0).contains("-q (--qps) is 0"));
        assert!(refused(|p| p.version = "0".to_owned()).contains("version 0"));
        assert!(refused(|p| p.runs.clear()).contains("0 runs"));
        assert!(refused(|p| p.rounds = 0).contains("0 rounds"));
        assert!(refused(|p| p.floor = true).contains("--vdev"));
    }

    #[test]
    fn a_message_is_seen_before_it_is_read_and_garbage_is_refused() {
        let [client, server] = links();
        assert!(!server.has_message().unwrap());
        client.send(&7_u32).unwrap();
        while !server.has_message().unwrap() {}
        assert_eq!(server.receive::<u32>().unwrap(), 7);
        client.send(&"seven").unwrap();
        assert!(matches!(server.receive::<u32>(), Err(PerfError::Protocol(_))));
        drop(client);
        assert!(matches!(server.receive::<u32>(), Err(PerfError::Io { .. })));
    }
}
