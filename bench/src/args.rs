//! The command line, in perftest's words.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use ferroce::{DEFAULT_SOCKET, RecoveryPolicy};

use crate::cm_rate;
use crate::error::{PerfError, Result};
use crate::memory::MemoryKind;
use crate::params::{Connection, DATAGRAM_BYTES_MAX, LATENCY_CQ_MOD, Metric, Params, Stop, Test, Verb};

/// Largest size of `-a`: 8 MiB.
const ALL_SIZES_LOG2_MAX: u32 = 23;
/// Default of `--rounds` where the time is given, not the count of messages.
const ROUNDS_BY_TIME: u32 = 5;
/// Default of `-D`, s, for all rounds together.
const SECONDS: f64 = 1.0;
const BANDWIDTH_BYTES: u32 = 65_536;
/// The same with UD: fits every port but the smallest ones.
const DATAGRAM_BYTES: u32 = 1024;
const LATENCY_BYTES: u32 = 2;
const LATENCY_INLINE: u32 = 220;
const TX_DEPTH: u32 = 128;
const CQ_MOD: u32 = 64;
const POST_LIST: u32 = 32;

/// RDMA benchmarks in perftest's words.
///
/// Against daemons: start `ferroce-perf write_bw` on the server and `ferroce-perf write_bw SERVER` on the client. In one process, with two
/// engines: `ferroce-perf write_bw --embedded`, on one thread with `--single-thread`. In two processes that have an engine each: both with
/// `--embedded --vdev ...`.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Throughput of RDMA WRITE
    #[command(name = "write_bw")]
    WriteBw(RunArgs),
    /// Latency of RDMA WRITE: one way, half of a round trip
    #[command(name = "write_lat")]
    WriteLat(RunArgs),
    /// Throughput of RDMA READ
    #[command(name = "read_bw")]
    ReadBw(RunArgs),
    /// Latency of RDMA READ
    #[command(name = "read_lat")]
    ReadLat(RunArgs),
    /// Throughput of SEND
    #[command(name = "send_bw")]
    SendBw(RunArgs),
    /// Latency of SEND: one way, half of a round trip
    #[command(name = "send_lat")]
    SendLat(RunArgs),
    /// Rate of fetch and add
    #[command(name = "atomic_bw")]
    AtomicBw(RunArgs),
    /// Latency of fetch and add
    #[command(name = "atomic_lat")]
    AtomicLat(RunArgs),
    /// Time to register memory
    #[command(name = "reg_mr")]
    RegMr(RegMrArgs),
    /// Connections opened and closed per second, by the connection manager
    #[command(name = "cm_rate")]
    CmRate(CmRateArgs),
    /// Moves a file between two engines in this process, and measures every operation
    Demo(DemoArgs),
    /// A single loop over one part, for instruction counts
    Micro(MicroArgs),
}

/// Where the engine is.
#[derive(Clone, Debug, Args)]
pub(crate) struct EngineArgs {
    /// Socket of the daemon
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, conflicts_with = "embedded")]
    pub(crate) socket: PathBuf,
    /// Engines in this process: two of them, or with --vdev one
    #[arg(long)]
    pub(crate) embedded: bool,
}

/// Options of a test.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// Host of the server; without it this is the server, unless both sides are in this process
    #[arg(conflicts_with = "single_thread")]
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Application and both engines take turns on one thread
    #[arg(long, requires = "embedded")]
    pub(crate) single_thread: bool,
    /// A device for the embedded engine of this process, as DPDK's --vdev takes it; the peer is another process.
    /// Of memif the server has the role `server`
    #[arg(long, value_name = "DEVICE", requires = "embedded", conflicts_with = "single_thread")]
    pub(crate) vdev: Option<String>,
    /// Our address on --vdev [default: 10.0.0.1 (server) or 10.0.0.2, or the kernel interface's]
    #[arg(long, requires = "vdev")]
    pub(crate) address: Option<IpAddr>,
    /// Cores to be bound to: of the two engines' lcores, or of the only thread
    #[arg(long, value_name = "CORE,..", value_delimiter = ',', requires = "embedded")]
    pub(crate) cores: Vec<usize>,

    /// Service of the QPs: write tests have RC and UC, send tests RC, UC and UD, the others RC. What UC and UD lose is told of
    /// SENDs; of a WRITE nobody knows
    #[arg(short, long, value_name = "TYPE", value_enum, ignore_case = true, default_value_t)]
    pub(crate) connection: Connection,
    /// Bytes of a message, with K, M or G [default: 64K for _bw, 1K with UD, 2 for _lat]
    #[arg(short, long, value_parser = parse_bytes, conflicts_with = "all")]
    pub(crate) size: Option<u32>,
    /// All sizes: powers of two from 2 bytes to 8 MiB, with UD to --mtu or 4096
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Messages of each QP in each round
    #[arg(short = 'n', long, conflicts_with = "duration")]
    pub(crate) iters: Option<u64>,
    /// Seconds to run, all rounds together [default: 1]
    #[arg(short = 'D', long)]
    pub(crate) duration: Option<f64>,
    /// Rounds, of which the medians count [default: 5, or 1 with -n]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// QPs on each side
    #[arg(short, long, visible_alias = "qp", default_value_t = 1)]
    pub(crate) qps: u32,
    /// Sends of a QP under way at most [default: 128]
    #[arg(short, long)]
    pub(crate) tx_depth: Option<u32>,
    /// Receives posted ahead
    #[arg(short, long, default_value_t = 512)]
    pub(crate) rx_depth: u32,
    /// Signal one send in so many [default: 64, at most --tx-depth]
    #[arg(short = 'Q', long)]
    pub(crate) cq_mod: Option<u32>,
    /// Post so many sends with one doorbell [default: 32, at most half of --tx-depth]
    #[arg(short = 'l', long, visible_alias = "post_list")]
    pub(crate) post_list: Option<u32>,
    /// Post messages of up to so many bytes inline [default: 0 for _bw, 220 for _lat]
    #[arg(short = 'I', long, visible_alias = "inline_size", value_name = "BYTES")]
    pub(crate) inline: Option<u32>,
    /// How lost packets are made up for: gbn, sr or hybrid; RC only [default: as the daemon has it]
    #[arg(long, value_name = "POLICY", value_parser = parse_recovery)]
    pub(crate) recovery: Option<RecoveryPolicy>,
    /// Both sides send
    #[arg(short, long)]
    pub(crate) bidirectional: bool,
    /// Path MTU, bytes; with UD the longest message [default: the ports']
    #[arg(short, long)]
    pub(crate) mtu: Option<u32>,
    /// READs and atomics of a QP under way at most
    #[arg(short, long, default_value_t = 16)]
    pub(crate) outs: u8,
    /// Congestion control of the QPs: none, dcqcn-nvidia, dcqcn-paper, timely, timely-original or swift [default: the ports']
    #[arg(long, value_name = "ALGORITHM")]
    pub(crate) cc: Option<String>,
    /// Fastest that each QP sends, such as 5Gbps
    #[arg(long, value_name = "RATE")]
    pub(crate) rate: Option<String>,
    /// Memory that messages are sent from and received to, on both sides
    #[arg(long, value_enum, default_value_t)]
    pub(crate) memory: MemoryKind,
    /// Index of our GID
    #[arg(short = 'x', long, default_value_t = 0)]
    pub(crate) gid_index: u8,
    /// TCP port on which the two programs find each other
    #[arg(short, long, default_value_t = 18_515)]
    pub(crate) port: u16,
    /// Make and connect so many idle QPs on each side, and compare the rate with and without them
    #[arg(long, value_name = "COUNT", default_value_t = 0, conflicts_with = "vdev",
          value_parser = clap::value_parser!(u32).range(0..=16_000))]
    pub(crate) qps_idle: u32,
    /// Don't measure the floor
    #[arg(long)]
    pub(crate) no_floor: bool,
    /// Print a JSON object a line in place of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `reg_mr`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RegMrArgs {
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Bytes of the region, with K, M or G
    #[arg(short, long, value_parser = parse_memory, default_value = "1G")]
    pub(crate) size: u64,
    /// Which memory
    #[arg(long, value_enum, default_value_t)]
    pub(crate) memory: MemoryKind,
    /// Times to register it
    #[arg(short = 'n', long, default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) iters: u32,
    /// Print a JSON object in place of a sentence
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `cm_rate`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CmRateArgs {
    /// Address of the server on its RDMA port; without it this is the server, unless both sides are in this process
    #[arg(conflicts_with = "embedded")]
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Where the server listens
    #[arg(long, value_name = "ADDRESS", default_value_t = cm_rate::LISTEN_DEFAULT)]
    pub(crate) listen: IpAddr,
    /// Port of the connection manager (port space TCP)
    #[arg(short, long, default_value_t = 18_515)]
    pub(crate) port: u16,
    /// Connections
    #[arg(short = 'n', long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) iters: u32,
    /// Connections at a time
    #[arg(short, long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) outstanding: u32,
    /// Print a JSON object in place of a sentence
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `demo`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DemoArgs {
    /// The file to move
    #[arg(default_value = "README.md")]
    pub(crate) file: PathBuf,
}

/// Options of `micro`.
#[derive(Clone, Debug, Args)]
pub(crate) struct MicroArgs {
    /// Which part
    pub(crate) part: crate::micro::Part,
    /// Turns of the loop
    #[arg(short = 'n', long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iters: u64,
}

fn parse_memory(text: &str) -> std::result::Result<u64, String> {
    let (digits, shift) = match text.trim().to_ascii_uppercase() {
        text if text.ends_with('K') => (text.trim_end_matches('K').to_owned(), 10),
        text if text.ends_with('M') => (text.trim_end_matches('M').to_owned(), 20),
        text if text.ends_with('G') => (text.trim_end_matches('G').to_owned(), 30),
        text => (text, 0),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(1 << shift));
    bytes
        .filter(|bytes| (1..=1 << 40).contains(bytes))
        .ok_or_else(|| "1 to 1024G bytes, such as 64, 4K or 1M".to_owned())
}

fn parse_bytes(text: &str) -> std::result::Result<u32, String> {
    let bytes = parse_memory(text)?;
    u32::try_from(bytes).map_err(|_| "a message has at most 2G bytes".to_owned())
}

impl RunArgs {
    /// Rounds of each run.
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.iters.is_some() { 1 } else { ROUNDS_BY_TIME })
    }

    /// The runs that are asked for, checked.
    ///
    /// # Errors
    /// [`PerfError::Setting`], [`PerfError::Conflict`].
    pub(crate) fn runs(&self, test: Test) -> Result<Vec<Params>> {
        if self.all && test.verb == Verb::Atomic {
            return Err(PerfError::Conflict("-a: an atomic has 8 bytes"));
        }
        let is_datagram = self.connection == Connection::Ud;
        let default_size = match test {
            Test { verb: Verb::Atomic, .. } => 8,
            Test { metric: Metric::Bandwidth, .. } if is_datagram => {
                DATAGRAM_BYTES.min(self.mtu.unwrap_or(DATAGRAM_BYTES))
            }
            Test { metric: Metric::Bandwidth, .. } => BANDWIDTH_BYTES,
            Test { metric: Metric::Latency, .. } => LATENCY_BYTES,
        };
        let sizes = if self.all {
            let most = if is_datagram { self.mtu.unwrap_or(DATAGRAM_BYTES_MAX) } else { u32::MAX };
            (1..=ALL_SIZES_LOG2_MAX).map(|log2| 1 << log2).filter(|&size| size <= most).collect()
        } else {
            vec![self.size.unwrap_or(default_size)]
        };
        sizes.into_iter().map(|size| self.params(test, size)).collect()
    }

    fn params(&self, test: Test, size: u32) -> Result<Params> {
        let is_latency = test.metric == Metric::Latency;
        let tx_depth = self.tx_depth.unwrap_or(TX_DEPTH);
        let default_inline = match test {
            Test { verb: Verb::Write | Verb::Send, metric: Metric::Latency } => LATENCY_INLINE,
            _ => 0,
        };
        let (cq_mod, post_list) = if is_latency { (LATENCY_CQ_MOD, 1) } else { (CQ_MOD, POST_LIST) };
        let stop = match (self.iters, self.duration) {
            (Some(count), _) => Stop::Iterations(count),
            (None, seconds) => Stop::Seconds(seconds.unwrap_or(SECONDS) / f64::from(self.rounds())),
        };
        let params = Params {
            test,
            connection: self.connection,
            size,
            stop,
            qps: self.qps,
            tx_depth,
            rx_depth: self.rx_depth,
            cq_mod: self.cq_mod.unwrap_or(cq_mod.min(tx_depth)),
            post_list: self.post_list.unwrap_or(post_list.min(tx_depth.div_ceil(2))),
            inline: self.inline.unwrap_or(default_inline),
            bidirectional: self.bidirectional,
            mtu: self.mtu,
            recovery: self.recovery,
            outstanding: self.outs,
            cc: self.cc.clone(),
            rate: self.rate.clone(),
            memory: self.memory,
        };
        params.check()?;
        Ok(params)
    }
}

fn parse_recovery(text: &str) -> std::result::Result<RecoveryPolicy, String> {
    RecoveryPolicy::from_name(text).ok_or_else(|| "gbn, sr and hybrid are possible".to_owned())
}

impl Command {
    /// The test that is asked for, if it is one.
    pub(crate) fn test(&self) -> Option<(Test, &RunArgs)> {
        Some(match self {
            Self::WriteBw(args) => (Test::bandwidth(Verb::Write), args),
            Self::WriteLat(args) => (Test::latency(Verb::Write), args),
            Self::ReadBw(args) => (Test::bandwidth(Verb::Read), args),
            Self::ReadLat(args) => (Test::latency(Verb::Read), args),
            Self::SendBw(args) => (Test::bandwidth(Verb::Send), args),
            Self::SendLat(args) => (Test::latency(Verb::Send), args),
            Self::AtomicBw(args) => (Test::bandwidth(Verb::Atomic), args),
            Self::AtomicLat(args) => (Test::latency(Verb::Atomic), args),
            Self::RegMr(_) | Self::CmRate(_) | Self::Demo(_) | Self::Micro(_) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn runs(line: &str) -> Result<Vec<Params>> {
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        let (test, args) = cli.command.test().unwrap();
        args.runs(test)
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_are_perftests_where_they_exist() {
        let bandwidth = &runs("ferroce-perf write_bw").unwrap()[0];
        assert_eq!((bandwidth.size, bandwidth.tx_depth, bandwidth.cq_mod, bandwidth.inline), (65_536, 128, 64, 0));
        assert_eq!(bandwidth.stop, Stop::Seconds(0.2));
        let latency = &runs("ferroce-perf send_lat -n 1000").unwrap()[0];
        assert_eq!((latency.size, latency.inline, latency.stop), (2, 220, Stop::Iterations(1000)));
        assert_eq!(runs("ferroce-perf atomic_lat").unwrap()[0].size, 8);
        let shallow = &runs("ferroce-perf write_bw -t 1").unwrap()[0];
        assert_eq!((shallow.cq_mod, shallow.post_list), (1, 1));
    }

    #[test]
    fn all_sizes_are_powers_of_two() {
        let sizes: Vec<u32> = runs("ferroce-perf read_bw -a").unwrap().iter().map(|params| params.size).collect();
        assert_eq!((sizes.len(), sizes[0], sizes[22]), (23, 2, 8 << 20));
        assert!(runs("ferroce-perf atomic_bw -a").is_err());
        let datagrams = runs("ferroce-perf send_bw -a -c ud -m 2048").unwrap();
        assert_eq!((datagrams.len(), datagrams[10].size, datagrams[10].connection), (11, 2048, Connection::Ud));
        assert_eq!(runs("ferroce-perf send_bw -c UD").unwrap()[0].size, 1024);
    }

    #[test]
    fn sizes_have_suffixes_and_limits() {
        assert_eq!(parse_bytes("64"), Ok(64));
        assert_eq!(parse_bytes("4k"), Ok(4096));
        assert_eq!(parse_bytes("1M"), Ok(1 << 20));
        assert_eq!(parse_memory("2G"), Ok(2 << 30));
        for bad in ["", "0", "-1", "1T", "K", "64KK8", "1.5M", "2000G"] {
            assert!(parse_memory(bad).is_err(), "{bad}");
        }
        assert!(parse_bytes("5G").is_err());
    }

    #[test]
    fn options_that_exclude_each_other_are_refused() {
        for line in [
            "write_bw -s 64 -a",
            "write_bw -n 5 -D 1",
            "write_bw --single-thread",
            "write_bw --embedded --socket /tmp/s",
            "write_bw --vdev net_null0",
            "write_bw --embedded --single-thread --vdev net_null0",
            "write_bw --embedded --single-thread server",
            "write_bw --qps-idle 16001",
            "write_bw --rounds 0",
            "write_bw -c XRC",
        ] {
            assert!(Cli::try_parse_from(format!("ferroce-perf {line}").split(' ')).is_err(), "{line}");
        }
    }
}
