//! `ferroce`: looks into a running daemon through its control socket, into captures of RoCE traffic, and tries whether a peer answers;
//! starts programs of others over it.
//!
//! One file a command. Exit status: 0 done, 1 the answer is negative, 2 there is no answer ([`outcome::Outcome`]).
#![forbid(unsafe_code)]

mod cc;
mod client;
mod devinfo;
mod fabric;
mod outcome;
mod pcap;
mod pingpong;
mod qos;
mod qp;
mod report;
mod res;
mod rping;
mod run;
mod stat;

use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::client::Client;
use crate::outcome::{CommandError, Outcome};

/// Where a daemon's control socket is if nobody says otherwise.
const DEFAULT_SOCKET: &str = "/run/ferroce/ferroced.sock";

/// Shows what a Ferroce daemon and its queue pairs are doing, decodes captures of RoCE traffic, and plays pingpong with a peer.
#[derive(Parser)]
#[command(name = "ferroce", version, after_help = AFTER_HELP)]
struct Cli {
    /// Control socket of the daemon.
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "FERROCE_SOCKET",
        default_value = DEFAULT_SOCKET
    )]
    socket: PathBuf,
    /// Print JSON; where there is more than one answer, one object a line.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Exit status: 0 done; 1 a negative answer (a wrong ICRC, a malformed packet, a refused request, a message lost or wrong); \
2 wrong usage, a value out of range, something that there is not, no daemon, unreadable file.";

#[derive(Subcommand)]
enum Command {
    /// Device, ports and GIDs.
    #[command(after_help = "Example: ferroce devinfo -v")]
    Devinfo(devinfo::Args),
    /// Counters, or with --watch what changes, as rates.
    #[command(after_help = "Example: ferroce stat --watch 1")]
    Stat(stat::Args),
    /// Queue pairs of all clients, or one in full.
    #[command(after_help = "Example: ferroce qp 0x000027")]
    Qp(qp::Args),
    /// Priorities, traffic classes and priority flow control of ports.
    #[command(after_help = "Example: ferroce qos show")]
    Qos(qos::Args),
    /// Congestion control of ports and queue pairs.
    #[command(after_help = "Example: ferroce cc set dcqcn rai=40Mbps --port 1")]
    Cc(cc::Args),
    /// Clients and what they hold, or the regions of all of them.
    #[command(after_help = "Example: ferroce res mr")]
    Res(res::Args),
    /// Starts a program that was built for rdma-core (libibverbs) over the daemons of this host.
    #[command(after_help = "Example: ferroce run -- ibv_devinfo -v")]
    Run(run::Args),
    /// A software switch between DPDK ports, with rate, delay, loss, marks and pauses as set: runs ferroce-fabric.
    #[command(disable_help_flag = true)]
    Fabric(fabric::Args),
    /// Decodes a capture (pcap or pcapng, Ethernet) and checks every ICRC.
    #[command(after_help = "Example: tcpdump -i eth0 -w - udp port 4791 | ferroce pcap -")]
    Pcap(pcap::Args),
    /// Connects by address and moves pings by READ and WRITE; works with librdmacm's rping on the other side.
    #[command(after_help = "Example: ferroce rping -s -v on one host, then ferroce rping -c -a 10.0.0.1 -C 10 -v -V")]
    Rping(rping::Args),
    /// Messages to a peer and back, as ibv_rc_pingpong and its kin do it; the peer may be one of them.
    #[command(after_help = pingpong::AFTER_HELP)]
    Pingpong(pingpong::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut out = BufWriter::new(io::stdout().lock());
    let result = run(&cli, &mut out).and_then(|outcome| {
        out.flush()?;
        Ok(outcome)
    });
    match result {
        Ok(outcome) => outcome.into(),
        // The reader of our output has seen enough.
        Err(CommandError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            // What was printed before the error is worth having; that it can't be is not worth a second message.
            drop(out.flush());
            eprintln!("ferroce: {error}");
            error.exit_code()
        }
    }
}

fn run(cli: &Cli, out: &mut impl Write) -> Result<Outcome, CommandError> {
    let connect = || Client::connect(&cli.socket);
    match &cli.command {
        Command::Devinfo(args) => devinfo::run(&connect()?, args, cli.json, out),
        Command::Stat(args) => stat::run(&connect()?, args, cli.json, out),
        Command::Qp(args) => qp::run(&connect()?, args, cli.json, out),
        Command::Qos(args) => qos::run(&connect()?, args, cli.json, out),
        Command::Cc(args) => cc::run(&connect()?, args, cli.json, out),
        Command::Res(args) => res::run(&connect()?, args, cli.json, out),
        Command::Run(args) => run::run(args, (cli.socket != Path::new(DEFAULT_SOCKET)).then_some(&*cli.socket), out),
        Command::Fabric(args) => fabric::run(args, cli.json, out),
        Command::Pcap(args) => pcap::run(args, cli.json, out),
        Command::Rping(args) => rping::run(&cli.socket, args, out),
        Command::Pingpong(args) => pingpong::run(&cli.socket, args, cli.json, out),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn command_line_definition_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
