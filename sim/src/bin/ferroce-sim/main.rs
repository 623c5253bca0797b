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
use sim::network::swarm::{SwarmReport, SwarmSettings};
use sim::run::{Failure, Report, RunSettings};
use sim::shrink::{FaultKind, Faulty, shrink};
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
    /// Of the faults that a seed draws only these happen: `loss,stalls`, or `none`. A run that fails says which it takes.
    #[arg(long, value_name = "LIST", requires = "seed", value_parser = parse_faults)]
    only: Option<Only>,
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

/// What a seed drew.
#[derive(Clone)]
enum Drawn {
    Pair(Box<RunSettings>),
    Network(Box<SwarmSettings>),
}

impl Swarm {
    /// What a seed draws, with `only` these faults.
    fn draw(self, seed: u64, only: Option<&Only>) -> Drawn {
        let mut drawn = match self {
            Self::Pair => Drawn::Pair(Box::new(sim::swarm::draw(seed))),
            Self::Network => Drawn::Network(Box::new(network::swarm::draw(seed))),
        };
        if let Some(Only(kinds)) = only {
            drawn.keep_only(kinds);
        }
        drawn
    }

    /// The command line that runs a seed again.
    fn replay(self, seed: u64, only: Option<&[FaultKind]>) -> String {
        let swarm = match self {
            Self::Pair => "",
            Self::Network => " --swarm network",
        };
        let only = match only {
            None => String::new(),
            Some([]) => " --only none".to_owned(),
            Some(kinds) => format!(" --only {}", names(kinds, ",")),
        };
        format!("ferroce-sim{swarm} --seed {seed}{only}")
    }
}

fn names(kinds: &[FaultKind], between: &str) -> String {
    kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(between)
}

impl Drawn {
    /// Runs it. `captures`: the frames are kept, whatever comes of it.
    fn run(&self, seed: u64, captures: bool) -> (Result<Told, Failure>, Option<Vec<u8>>) {
        let mut frames = None;
        let outcome = catch(|| match self {
            Self::Pair(settings) => {
                let at_rest = |world: &World| frames = world.capture().map(|capture| capture.bytes().to_vec());
                sim::run::run(seed, settings, captures, at_rest).map(|report| Told::Pair(Box::new(report)))
            }
            Self::Network(settings) => {
                let at_rest = |fabric: &Fabric| frames = fabric.capture().map(|capture| capture.bytes().to_vec());
                network::swarm::run(seed, settings, captures, at_rest).map(|report| Told::Network(Box::new(report)))
            }
        });
        let frames = outcome.as_ref().err().and_then(|failure| failure.capture.clone()).or(frames);
        (outcome, frames)
    }
}

impl Faulty for Drawn {
    fn has(&self, kind: FaultKind) -> bool {
        match self {
            Self::Pair(settings) => settings.has(kind),
            Self::Network(settings) => settings.has(kind),
        }
    }

    fn remove(&mut self, kind: FaultKind) {
        match self {
            Self::Pair(settings) => settings.remove(kind),
            Self::Network(settings) => settings.remove(kind),
        }
    }
}

impl fmt::Display for Drawn {
    /// The settings in full.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pair(settings) => write!(f, "{settings:#?}"),
            Self::Network(settings) => write!(f, "{settings:#?}"),
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

/// The faults of `--only`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Only(Vec<FaultKind>);

fn parse_faults(list: &str) -> Result<Only, String> {
    if list == "none" {
        return Ok(Only(Vec::new()));
    }
    list.split(',').map(str::parse).collect::<Result<_, _>>().map(Only)
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
    let drawn = args.swarm.draw(seed, args.only.as_ref());
    if args.verbose {
        writeln!(std::io::stdout(), "{drawn}")?;
    }
    let (outcome, frames) = drawn.run(seed, args.pcap.is_some() || args.frames);
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
            tell(args.swarm, seed, &drawn, failure, args.pcap.as_deref())?;
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
        let drawn = args.swarm.draw(seed, None);
        match drawn.run(seed, false).0 {
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
                tell(args.swarm, seed, &drawn, failure, None)?;
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

/// Says what went wrong, how to see it again and what it takes, and leaves the frames in a file.
fn tell(swarm: Swarm, seed: u64, drawn: &Drawn, failure: Failure, path: Option<&Path>) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "seed {seed}: FAILED: {failure}")?;
    let all: Vec<FaultKind> = FaultKind::ALL.into_iter().filter(|&kind| drawn.has(kind)).collect();
    writeln!(out, "  replay: {}  (version {})", swarm.replay(seed, None), env!("CARGO_PKG_VERSION"))?;
    // The run is the same with a capture as without.
    if let Some(frames) = failure.capture.or_else(|| drawn.run(seed, true).1) {
        let path = path.map_or_else(|| PathBuf::from(format!("ferroce-sim-{seed}.pcapng")), Path::to_path_buf);
        write_capture(&path, &frames)?;
        writeln!(out, "  frames: {}", path.display())?;
    }
    writeln!(out, "  faults: {}", if all.is_empty() { "none".to_owned() } else { names(&all, ", ") })?;
    let least = shrink(drawn, |fewer| fewer.run(seed, false).0.is_err());
    if least.len() < all.len() {
        writeln!(out, "  fewest: {}", swarm.replay(seed, Some(&least)))?;
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
