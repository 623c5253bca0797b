//! `ferroce-sim run`: a scenario file.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use sim::network::fabric::Fabric;
use sim::report::Report;
use sim::run::Failure;
use sim::scenario::{Outcome, Scenario, execute};

use crate::write_capture;

/// A scenario file, and what is to come of it.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The scenario: see docs/simulator.md.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Decides about all that happens by chance.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Writes tables, numbers and a page with pictures into this folder, which is made if it is not there.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Writes the frames that hosts send and get to this file (pcapng).
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Says what every switch and link has counted.
    #[arg(short, long)]
    verbose: bool,
}

/// Runs a scenario and tells of it. False if something went wrong in it.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<bool> {
    let scenario = Scenario::read(&args.file).with_context(|| format!("the scenario {}", args.file.display()))?;
    let mut details = String::new();
    let outcome = execute(&scenario, args.seed, args.pcap.is_some(), |fabric| {
        if args.verbose {
            details = counters(fabric);
        }
    });
    let mut out = std::io::stdout().lock();
    match outcome {
        Ok(outcome) => {
            if let (Some(path), Some(frames)) = (&args.pcap, &outcome.capture) {
                write_capture(path, frames)?;
            }
            write!(out, "{}{details}", summary(&outcome))?;
            if let Some(directory) = &args.report {
                write_report(args, &scenario, &outcome, directory)?;
                writeln!(out, "report     {}", directory.join("report.html").display())?;
            }
            Ok(true)
        }
        Err(failure) => {
            // The run is the same with a capture as without.
            let again = || execute(&scenario, args.seed, true, |_| {}).err()?.capture;
            tell(args, failure, &details, again, &mut out)?;
            Ok(false)
        }
    }
}

/// Says what went wrong and how to see it again, and leaves the frames in a file. `again`: the frames of a run that kept none.
fn tell(
    args: &RunArgs,
    failure: Failure,
    details: &str,
    again: impl FnOnce() -> Option<Vec<u8>>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    writeln!(out, "FAILED: {failure}\n{details}  replay: {}", replay(args))?;
    if let Some(frames) = failure.capture.or_else(again) {
        let path = args.pcap.clone().unwrap_or_else(|| {
            let name = args.file.file_stem().unwrap_or_default().to_string_lossy();
            PathBuf::from(format!("ferroce-sim-{name}-{}.pcapng", args.seed))
        });
        write_capture(&path, &frames)?;
        writeln!(out, "  frames: {}", path.display())?;
    }
    Ok(())
}

/// The command that is this run again.
fn replay(args: &RunArgs) -> String {
    format!("ferroce-sim run {} --seed {}", args.file.display(), args.seed)
}

fn write_report(args: &RunArgs, scenario: &Scenario, outcome: &Outcome, directory: &Path) -> anyhow::Result<()> {
    let file = args.file.display().to_string();
    let title = &scenario.settings.run.title;
    let report = Report {
        name: if title.is_empty() { &file } else { title },
        scenario: &scenario.text,
        seed: args.seed,
        replay: &replay(args),
        trace: outcome.trace,
        summary: &outcome.summary,
        recorder: &outcome.recorder,
    };
    Ok(report.write(directory)?)
}

fn summary(outcome: &Outcome) -> String {
    let Outcome { flows, summary, .. } = outcome;
    let totals = &summary.totals;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "flows      {} started, {} completed, {} abandoned; {} connections were brought up again",
        flows.started, flows.completed, flows.abandoned, flows.reconnects
    );
    if !outcome.unfinished.is_empty() {
        let _ = writeln!(text, "not done   {}", outcome.unfinished);
    }
    let _ = writeln!(text, "time       {:.1} us", summary.duration_us);
    let _ = writeln!(text, "goodput    {:.3} Gbit/s", summary.goodput_bits_per_s / 1e9);
    let _ = writeln!(
        text,
        "packets    {}, {} sent again ({:.3} %); {} marked, {} dropped, {} lost on links",
        totals.packets, totals.retransmitted, summary.retransmitted_percent, totals.marked, totals.dropped, totals.lost
    );
    let _ = writeln!(text, "pauses     {}, {:.1} us in all", totals.pauses, totals.paused_ns as f64 / 1e3);
    let _ = writeln!(
        text,
        "events     {}; {} frames put on a link or come to its end; trace {:016x}",
        outcome.event_count, outcome.packet_events, outcome.trace
    );
    text
}

fn counters(fabric: &Fabric) -> String {
    let mut text = String::new();
    for (switch, number) in fabric.switches().iter().zip(0..) {
        let peak = switch.buffer_peak_bytes();
        let _ = writeln!(text, "switch {number}: buffer peak {peak} bytes, {:?}", switch.counters());
    }
    for (from, to, counters) in fabric.lines() {
        let _ = writeln!(text, "{from:?} to {to:?}: {counters:?}");
    }
    let (port, shard) = fabric.host_counters();
    let troubles = port.entries().chain(shard.entries()).filter(|&(_, value)| value > 0);
    for (name, value) in troubles {
        let _ = writeln!(text, "hosts: {name:<32} {value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_went_wrong_leaves_its_frames() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("frames.pcapng");
        let args = RunArgs {
            file: PathBuf::from("some/incast.toml"),
            seed: 9,
            report: None,
            pcap: Some(path.clone()),
            verbose: false,
        };
        let failure = |capture: Option<&[u8]>| Failure {
            violation: sim::Violation { at: engine::Time::from_ns(5), what: "a byte is wrong".to_owned() },
            capture: capture.map(<[u8]>::to_vec),
        };
        let mut out = Vec::new();
        tell(&args, failure(None), "", || Some(b"again".to_vec()), &mut out).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"again");
        let said = String::from_utf8(out).unwrap();
        let replay = "  replay: ferroce-sim run some/incast.toml --seed 9\n";
        assert!(said.contains("a byte is wrong") && said.contains(replay), "{said}");
        assert!(said.ends_with(&format!("  frames: {}\n", path.display())), "{said}");
        tell(&args, failure(Some(b"kept")), "", || panic!("there is a capture"), &mut Vec::new()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
    }
}
