//! `ferroce pingpong`: the part of `ibv_rc_pingpong` and its kin, for a peer that runs one of them or this.

mod address;
mod side;

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use ferroce::{PathMtu, VerbsError, WcStatus};
use serde::Serialize;

use crate::outcome::{CommandError, Outcome};
use crate::report::write_json;
use address::{Address, Meeting};
use side::{Role, Side};

/// After the options in `--help`.
pub(crate) const AFTER_HELP: &str = "\
The server waits for a client, the client sends, the server sends every message back. A peer with rdma-core runs the ibv program of
the same type, and needs its -g; IPv4 talks to IPv4, IPv6 to IPv6. Give both sides the same sizes and counts.

  here                                     on the other host
  ferroce pingpong                         ibv_rc_pingpong -g 1 THIS_HOST
  ferroce pingpong --type srq OTHER_HOST   ibv_srq_pingpong -g 1
  ferroce pingpong -c -s 1048576           ferroce pingpong -c -s 1048576 THIS_HOST

With --chk a client's messages differ, and every byte that comes back is compared; a server compares with what a client of this
program sends, or, if the first message is another, with that one, for an ibv program sends the same every time.";

/// Bytes of a message if none are named; a datagram is shorter. (The help of ibv_ud_pingpong says 2048, but it plays with 1024.)
const SIZE: u32 = 4096;
const DATAGRAM_SIZE: u32 = 1024;

/// Arguments of `ferroce pingpong`; letters, names and defaults are those of the ibv programs.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Host of the server; without it, this is the server and waits for a client.
    #[arg(value_name = "HOST")]
    server: Option<String>,
    /// What is tried, and the program that a peer with rdma-core runs: ibv_TYPE_pingpong.
    #[arg(long = "type", value_name = "TYPE", default_value = "rc")]
    kind: Kind,
    /// TCP port on which server and client trade their QPs.
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
    /// Name of the device; the daemon behind --socket must have this one.
    #[arg(short = 'd', long, value_name = "DEV")]
    ib_dev: Option<String>,
    /// Port of the device.
    #[arg(short = 'i', long, value_name = "PORT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,
    /// Bytes of a message; both sides must name the same [default: 4096; ud: 1024, and at most the port's MTU].
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(..=1 << 30))]
    size: Option<u32>,
    /// Path MTU; both sides must name the same: 256, 512, 1024, 2048 or 4096. Not for ud.
    #[arg(short, long, default_value = "1024", value_parser = parse_mtu)]
    mtu: PathMtu,
    /// Receives to post at a time; fewer if their buffers would pass 64 MiB.
    #[arg(short, long, value_name = "DEPTH", default_value_t = 500, value_parser = clap::value_parser!(u32).range(2..))]
    rx_depth: u32,
    /// Exchanges; those of all QPs together.
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// QPs on the shared receive queue (srq); both sides must name the same.
    #[arg(short = 'q', long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=address::SRQ_ADDRESSES as i64))]
    num_qp: u32,
    /// Service level: the 802.1p priority on a tagged network.
    #[arg(short = 'l', long, value_name = "SL", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=15))]
    sl: u8,
    /// Sleep until a completion comes; else poll for it.
    #[arg(short, long)]
    events: bool,
    /// Index of our GID.
    #[arg(short, long, value_name = "INDEX", default_value_t = 0)]
    gid_idx: u8,
    /// Tell how far apart the receives completed, by the engine's time stamps.
    #[arg(short, long)]
    ts: bool,
    /// Check every byte that comes.
    #[arg(short, long)]
    chk: bool,
}

impl Args {
    /// Bytes of a message.
    fn size(&self) -> u32 {
        self.size.unwrap_or(if self.kind == Kind::Ud { DATAGRAM_SIZE } else { SIZE })
    }
}

/// Kinds of pingpong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagrams.
    Ud,
    /// Reliable connections that share a receive queue.
    Srq,
}

fn parse_mtu(text: &str) -> Result<PathMtu, String> {
    let mtu = text.parse().ok().and_then(PathMtu::from_bytes);
    mtu.ok_or_else(|| "it is 256, 512, 1024, 2048 or 4096".to_owned())
}

/// Why there was no pingpong, or not to the end.
#[derive(thiserror::Error, Debug)]
pub(crate) enum PingpongError {
    /// The daemon, or the device it has.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// Another device is wanted.
    #[error("the daemon's device is {found}, not {wanted}: name the daemon of {wanted} by --socket")]
    OtherDevice {
        /// Asked for.
        wanted: String,
        /// There.
        found: String,
    },
    /// The port has no such GID.
    #[error("port {port} has no GID {index}: `ferroce devinfo` shows those it has")]
    NoGid {
        /// Port, from 1.
        port: u8,
        /// Index asked for.
        index: u8,
    },
    /// The path MTU is more than the port has.
    #[error("path MTU {wanted} is more than the port's {most}: its interface needs a larger MTU")]
    Mtu {
        /// Asked for, bytes.
        wanted: PathMtu,
        /// The port's, bytes.
        most: PathMtu,
    },
    /// A datagram is one packet.
    #[error("a datagram of {size} bytes is more than the port's MTU, {most}")]
    DatagramSize {
        /// Asked for, bytes.
        size: u32,
        /// The port's, bytes.
        most: PathMtu,
    },
    /// Fewer receives than QPs.
    #[error("{rx_depth} receives are too few for {num_qp} QPs: each needs two, so --rx-depth {} at least", 2 * num_qp)]
    FewReceives {
        /// Receives.
        rx_depth: u32,
        /// QPs.
        num_qp: u32,
    },
    /// Server and client did not find each other.
    #[error("{what}: {error}")]
    Tcp {
        /// What was tried.
        what: String,
        /// What the operating system says.
        error: std::io::Error,
    },
    /// What the peer says of itself can't be used.
    #[error(transparent)]
    Address(#[from] address::BadAddress),
    /// A work request failed.
    #[error("a {what} of QP {qpn:#08x} ended with {status}{}", .status.advice())]
    Completion {
        /// SEND or receive.
        what: &'static str,
        /// Our QP.
        qpn: u32,
        /// How it ended.
        status: Status,
    },
    /// Nothing came for too long.
    #[error(
        "nothing came for {} s, after {received} of {iters} messages: is the peer there, with the same --iters and --size?",
        side::PATIENCE.as_secs()
    )]
    Silence {
        /// Messages that came.
        received: u32,
        /// Messages wanted.
        iters: u32,
    },
    /// The peer's messages have another length.
    #[error("a message of {got} bytes came, {wanted} were expected: give both sides the same --size")]
    Length {
        /// Bytes that came.
        got: u32,
        /// Bytes wanted.
        wanted: u32,
    },
    /// The data are wrong.
    #[error("message {number}: byte {offset} of {size} is {got:#04x} in place of {wanted:#04x}")]
    Data {
        /// Which, from 0.
        number: u32,
        /// Where.
        offset: usize,
        /// Bytes of a message.
        size: u32,
        /// What came.
        got: u8,
        /// What must come.
        wanted: u8,
    },
}

/// A status, with what usually is behind it.
#[derive(Debug)]
pub(crate) struct Status(WcStatus);

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Status {
    fn advice(&self) -> &'static str {
        match self.0 {
            WcStatus::RetryExcErr => ": the peer does not answer; is it gone, or UDP port 4791 filtered?",
            WcStatus::RemInvReqErr | WcStatus::RemOpErr | WcStatus::LocLenErr => {
                ": have both sides the same --size and --mtu?"
            }
            _ => "",
        }
    }
}

impl PingpongError {
    /// True if messages went, and wrong: a negative answer. Else there is no answer.
    pub(crate) fn is_negative(&self) -> bool {
        matches!(self, Self::Completion { .. } | Self::Silence { .. } | Self::Length { .. } | Self::Data { .. })
    }
}

/// What came out.
#[derive(Serialize)]
struct Summary {
    #[serde(rename = "type")]
    kind: Kind,
    size_bytes: u32,
    iters: u32,
    bytes: u64,
    seconds: f64,
    mbit_per_s: f64,
    usec_per_iter: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    receive_gaps_ns: Option<side::Gaps>,
}

impl Summary {
    fn new(args: &Args, elapsed: Duration, gaps: Option<side::Gaps>) -> Self {
        let seconds = elapsed.as_secs_f64();
        // There and back.
        let bytes = u64::from(args.size()) * u64::from(args.iters) * 2;
        Self {
            kind: args.kind,
            size_bytes: args.size(),
            iters: args.iters,
            bytes,
            seconds,
            mbit_per_s: bytes as f64 * 8.0 / seconds / 1e6,
            usec_per_iter: seconds * 1e6 / f64::from(args.iters),
            receive_gaps_ns: gaps,
        }
    }

    fn write_text(&self, out: &mut impl Write) -> std::io::Result<()> {
        let Self { iters, bytes, seconds, mbit_per_s, usec_per_iter, .. } = self;
        writeln!(out, "{bytes} bytes in {seconds:.2} seconds = {mbit_per_s:.2} Mbit/sec")?;
        writeln!(out, "{iters} iters in {seconds:.2} seconds = {usec_per_iter:.2} usec/iter")?;
        match &self.receive_gaps_ns {
            Some(gaps) => writeln!(
                out,
                "receives completed {} ns apart at most, {} ns at least, {:.0} ns on average",
                gaps.max, gaps.min, gaps.mean
            ),
            None => Ok(()),
        }
    }
}

/// Plays one side to the end and prints addresses and rates.
pub(crate) fn run(socket: &Path, args: &Args, json: bool, out: &mut impl Write) -> Result<Outcome, CommandError> {
    let role = if args.server.is_some() { Role::Client } else { Role::Server };
    let mut side = Side::new(socket, args, role)?;
    if !json {
        write_addresses(out, "local address: ", side.addresses())?;
        // A server waits from here on: who started it wants to see that it does.
        out.flush()?;
    }
    let meeting = match &args.server {
        Some(host) => Meeting::with_server(host, args.port),
        None => Meeting::with_client(args.port),
    }?;
    let remote = meet(&mut side, meeting, role)?;
    if !json {
        write_addresses(out, "remote address:", &remote)?;
    }
    let (elapsed, gaps) = side.play()?;
    let summary = Summary::new(args, elapsed, gaps.filter(|_| args.ts));
    if json {
        write_json(out, &summary)?;
    } else {
        summary.write_text(out)?;
    }
    Ok(Outcome::Good)
}

/// Trades addresses and connects. A client's QPs may only send once the server's are ready: so the server connects before it answers.
fn meet(side: &mut Side, meeting: Meeting, role: Role) -> Result<Vec<Address>, PingpongError> {
    let mut told = side.addresses().to_vec();
    told.resize(side.traded_count(), Address::NONE);
    match role {
        Role::Client => {
            meeting.tell(&told)?;
            let mut remote = meeting.hear(told.len())?;
            meeting.say_done()?;
            remote.truncate(side.addresses().len());
            side.connect(&remote)?;
            Ok(remote)
        }
        Role::Server => {
            let mut remote = meeting.hear(told.len())?;
            remote.truncate(side.addresses().len());
            side.connect(&remote)?;
            meeting.tell(&told)?;
            meeting.hear_done()?;
            Ok(remote)
        }
    }
}

fn write_addresses(out: &mut impl Write, title: &str, addresses: &[Address]) -> std::io::Result<()> {
    addresses.iter().try_for_each(|address| writeln!(out, "  {title} {address}"))
}
