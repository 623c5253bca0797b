//! `ferroce-sim`: runs scenarios, and seeds of the simulator's swarm.
#![forbid(unsafe_code)]

mod papers;
mod scenario;

use std::fmt;
use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{ArgGroup, Parser, Subcommand, ValueEnum};
use engine::Time;
use sim::network::fabric::Fabric;
use sim::network::swarm::SwarmReport;
use sim::run::{Failure, Report};
use sim::world::World;
use sim::{Violation, network};

/// Runs the engine in a simulated world. Each seed draws a world of its own: link, faults, hosts, applications, mishaps. The same
/// seed is always the same run.
///
/// Exits with 1 if a run went wrong, 2 if the command line is.
#[derive(Parser, Debug)]
#[command(
    version,
    group(ArgGroup::new("which").required(true)),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// One seed.
    #[arg(long, group = "which", value_name = "N")]
    seed: Option<u64>,
    /// Seeds from A up to, and without, B.
    #[arg(long, group = "which", value_name = "A..B", value_parser = parse_range)]
    seeds: Option<Range<u64>>,
    /// What the seeds draw.
    #[arg(long, value_enum, default_value_t = Swarm::Pair)]
    swarm: Swarm,
    /// Goes on after a seed that went wrong.
    #[arg(long)]
    keep_going: bool,
    /// Says what was drawn, and what came of it.
    #[arg(short, long)]
    verbose: bool,
    /// Prints a line for each frame: time in ns, sender, what it is, what the link did to it.
    #[arg(long, requires = "seed")]
    frames: bool,
    /// Writes the frames of the run to this file (pcapng), whatever comes of it.
    #[arg(long, value_name = "FILE", requires = "seed")]
    pcap: Option<PathBuf>,
}

/// Kinds of worlds that a seed draws.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Swarm {
    /// Two hosts on a faulty link, and applications that do everything that can be done.
    Pair,
    /// Many hosts, switches between them, and flows.
    Network,
}

/// A run that went well.
enum Told {
    Pair(Box<Report>),
    Network(Box<SwarmReport>),
}

impl Told {
    fn trace(&self) -> u64 {
        match self {
            Self::Pair(report) => report.trace,
            Self::Network(report) => report.trace,
        }
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pair(report) => report.fmt(f),
            Self::Network(report) => report.fmt(f),
        }
    }
}

impl Swarm {
    /// Runs a seed. `captures`: the frames are kept, whatever comes of it.
    fn run(self, seed: u64, captures: bool) -> (Result<Told, Failure>, Option<Vec<u8>>) {
        let mut frames = None;
        let outcome = catch(|| match self {
            Self::Pair => {
                let at_rest = |world: &World| frames = world.capture().map(|capture| capture.bytes().to_vec());
                sim::run::run(seed, &sim::swarm::draw(seed), captures, at_rest)
                    .map(|report| Told::Pair(Box::new(report)))
            }
            Self::Network => {
                let at_rest = |fabric: &Fabric| frames = fabric.capture().map(|capture| capture.bytes().to_vec());
                let settings = network::swarm::draw(seed);
                network::swarm::run(seed, &settings, captures, at_rest).map(|report| Told::Network(Box::new(report)))
            }
        });
        let frames = outcome.as_ref().err().and_then(|failure| failure.capture.clone()).or(frames);
        (outcome, frames)
    }

    /// The settings that a seed draws, in full.
    fn settings(self, seed: u64) -> String {
        match self {
            Self::Pair => format!("{:#?}", sim::swarm::draw(seed)),
            Self::Network => format!("{:#?}", network::swarm::draw(seed)),
        }
    }

    /// The command line that runs a seed again.
    fn replay(self, seed: u64) -> String {
        match self {
            Self::Pair => format!("ferroce-sim --seed {seed}"),
            Self::Network => format!("ferroce-sim --swarm network --seed {seed}"),
        }
    }
}

/// What else there is to run.
#[derive(Subcommand, Debug)]
enum Command {
    /// Runs a scenario file: a network, its traffic and its faults.
    Run(scenario::RunArgs),
    /// Runs set-ups whose results others have published, and prints theirs beside ours.
    Papers(papers::PapersArgs),
}

/// Between two progress lines where there is no terminal to overwrite them on.
const SEEDS_PER_LINE: u64 = 50;

fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let parts = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    match parts {
        Some(range) if range.start < range.end => Ok(range),
        _ => Err("a range of seeds is A..B with A less than B, such as 0..300".to_owned()),
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    if let Some(command) = &args.command {
        let is_good = match command {
            Command::Run(run) => scenario::run(run)?,
            Command::Papers(papers) => papers::run(papers)?,
        };
        return Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let failed_count = match (args.seed, args.seeds.clone()) {
        (Some(seed), _) => u64::from(!run_one(seed, &args)?),
        (None, Some(seeds)) => run_many(seeds, &args)?,
        (None, None) => 0,
    };
    Ok(if failed_count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs one seed and tells of it. False if it went wrong.
fn run_one(seed: u64, args: &Args) -> anyhow::Result<bool> {
    if args.verbose {
        writeln!(std::io::stdout(), "{}", args.swarm.settings(seed))?;
    }
    let (outcome, frames) = args.swarm.run(seed, args.pcap.is_some() || args.frames);
    if let (true, Some(frames)) = (args.frames, &frames) {
        print_frames(frames)?;
    }
    match outcome {
        Ok(told) => {
            if let (Some(path), Some(frames)) = (&args.pcap, frames) {
                write_capture(path, &frames)?;
            }
            writeln!(std::io::stdout(), "seed {seed}: ok: {told}")?;
            if let (true, Told::Pair(report)) = (args.verbose, &told) {
                print_details(report)?;
            }
            Ok(true)
        }
        Err(failure) => {
            tell(args.swarm, seed, failure, args.pcap.as_deref())?;
            Ok(false)
        }
    }
}

/// Runs seeds one after the other; returns how many went wrong.
fn run_many(seeds: Range<u64>, args: &Args) -> anyhow::Result<u64> {
    let overwrites = std::io::stderr().is_terminal();
    let mut failed_count = 0;
    let mut trace = sim::trace::TraceHash::default();
    for seed in seeds.clone() {
        let done = seed - seeds.start;
        if overwrites {
            eprint!("\rseed {seed} ({done} of {} done, {failed_count} failed)   ", seeds.end - seeds.start);
            std::io::stderr().flush()?;
        } else if done > 0 && done.is_multiple_of(SEEDS_PER_LINE) {
            eprintln!("{done} of {} seeds done, {failed_count} failed", seeds.end - seeds.start);
        }
        match args.swarm.run(seed, false).0 {
            Ok(report) => {
                trace.add(report.trace());
                if args.verbose {
                    writeln!(std::io::stdout(), "seed {seed}: ok: {report}")?;
                }
            }
            Err(failure) => {
                failed_count += 1;
                if overwrites {
                    eprintln!();
                }
                tell(args.swarm, seed, failure, None)?;
                if !args.keep_going {
                    return Ok(failed_count);
                }
            }
        }
    }
    if overwrites {
        eprintln!();
    }
    let trace = trace.value();
    writeln!(std::io::stdout(), "seeds {}..{}: {failed_count} failed, trace {trace:016x}", seeds.start, seeds.end)?;
    Ok(failed_count)
}

/// Takes a panic, which has told of itself already, for a failure like any other: the seed is what matters.
fn catch<T>(run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    std::panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        let violation = Violation { at: Time::ZERO, what: "something panicked".to_owned() };
        Err(Failure { violation, capture: None })
    })
}

/// Says what went wrong and how to see it again, and leaves the frames in a file.
fn tell(swarm: Swarm, seed: u64, failure: Failure, path: Option<&Path>) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "seed {seed}: FAILED: {failure}")?;
    writeln!(out, "  replay: {}", swarm.replay(seed))?;
    // The run is the same with a capture as without.
    let frames = failure.capture.or_else(|| swarm.run(seed, true).1);
    if let Some(frames) = frames {
        let path = path.map_or_else(|| PathBuf::from(format!("ferroce-sim-{seed}.pcapng")), Path::to_path_buf);
        write_capture(&path, &frames)?;
        writeln!(out, "  frames: {}", path.display())?;
    }
    Ok(())
}

fn write_capture(path: &Path, frames: &[u8]) -> anyhow::Result<()> {
    std::fs::write(path, frames).with_context(|| format!("writing {}", path.display()))
}

fn print_frames(capture: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for packet in sim::capture::packets(capture)? {
        let what = match wire::Frame::parse(&packet.frame) {
            Ok(frame) => frame.to_string(),
            Err(error) => format!("{} bytes: {error}", packet.frame.len()),
        };
        let at_ns = packet.at.as_ns();
        writeln!(out, "{at_ns:>12} host{} {what} {}", packet.sender, packet.comment.unwrap_or_default())?;
    }
    Ok(())
}

fn print_details(report: &Report) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "  events: {}", report.event_count)?;
    for (status, count) in &report.failures {
        writeln!(out, "  {status}: {count}")?;
    }
    for (host, link) in report.links.iter().enumerate() {
        writeln!(out, "  link from host {host}: {link:?}")?;
    }
    for (host, (port, shard)) in report.ports.iter().zip(&report.shards).enumerate() {
        let counters = port.entries().chain(shard.entries()).filter(|(_, value)| *value > 0);
        for (name, value) in counters {
            writeln!(out, "  host {host} {name}: {value}")?;
        }
    }
    Ok(())
}
