//! `ferroce cc`: congestion control of ports and queue pairs.

use std::io::Write;

use serde::Serialize;
use serde_json::{Map, Value, json};
use shm::control::congestion::{CongestionChange, CongestionParam, CongestionReport, CongestionTarget};

use crate::client::Client;
use crate::outcome::{CommandError, Outcome};
use crate::qp::parse_qpn;
use crate::report::{Pairs, printable, qpn, table, write_json, write_table};

const HEADER: [&str; 5] = ["PARAMETER", "VALUE", "DEFAULT", "RANGE", "MEANING"];

/// Arguments of `ferroce cc`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Nothing said is `show`.
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Algorithm and parameters; of a queue pair also rate and window.
    #[command(after_help = "Example: ferroce cc show --qp 0x000027")]
    Show {
        #[command(flatten)]
        target: Target,
    },
    /// Changes algorithm or parameters, at once: all that is said, or nothing.
    #[command(after_help = "Example: ferroce cc set dcqcn rai=40Mbps --port 1")]
    Set {
        /// An algorithm, and parameters with their values: none, dcqcn-nvidia, dcqcn-paper, timely, timely-original or swift;
        /// NAME=VALUE with a unit, such as rai=40Mbps, increase_timer=55us, burst=32KiB.
        #[arg(value_name = "ALGORITHM | NAME=VALUE", required = true)]
        words: Vec<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Gives a queue pair its port's settings again, or a port the daemon's.
    #[command(after_help = "Example: ferroce cc reset --qp 0x000027")]
    Reset {
        #[command(flatten)]
        target: Target,
    },
}

#[derive(clap::Args)]
struct Target {
    /// This port, from 1; without it and --qp, all ports.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u8).range(1..))]
    port: Option<u8>,
    /// This queue pair: a number such as 39 or 0x27.
    #[arg(long, value_name = "QPN", value_parser = parse_qpn, conflicts_with = "port")]
    qp: Option<u32>,
}

impl Target {
    /// What it names, or every port.
    fn resolve(&self, client: &Client) -> Result<Vec<CongestionTarget>, CommandError> {
        Ok(match (self.port, self.qp) {
            (_, Some(qpn)) => vec![CongestionTarget::Qp(qpn)],
            (Some(port), None) => vec![CongestionTarget::Port(port)],
            (None, None) => (1..=client.device()?.phys_port_cnt).map(CongestionTarget::Port).collect(),
        })
    }
}

/// Does what is asked, and prints what holds then.
pub(crate) fn run(client: &Client, args: &Args, json: bool, out: &mut impl Write) -> Result<Outcome, CommandError> {
    let target = match &args.action {
        None => &args.target,
        Some(Action::Show { target } | Action::Set { target, .. } | Action::Reset { target }) => target,
    };
    let mut reports = Vec::new();
    for target in target.resolve(client)? {
        reports.push(match &args.action {
            None | Some(Action::Show { .. }) => client.congestion(target)?,
            Some(Action::Set { words, .. }) => client.set_congestion(target, parse_change(words)?)?,
            Some(Action::Reset { .. }) => client.reset_congestion(target)?,
        });
    }
    if json {
        write_json(out, &Reports { congestion: reports.iter().map(Report::new).collect() })?;
    } else {
        reports.iter().try_for_each(|report| write_text(report, out))?;
    }
    Ok(Outcome::Good)
}

#[derive(Serialize)]
struct Reports<'a> {
    congestion: Vec<Report<'a>>,
}

/// A port or a QP, for programs.
#[derive(Serialize)]
struct Report<'a> {
    port_num: u8,
    qpn: Option<u32>,
    is_own: bool,
    algorithm: &'a str,
    params: Map<String, Value>,
    figures: Pairs<'a, u64>,
}

impl<'a> Report<'a> {
    fn new(report: &'a CongestionReport) -> Self {
        let CongestionReport { port_num, qpn, is_own, ref algorithm, ref params, ref figures } = *report;
        let param = |CongestionParam { name, value, default, range, meaning }: &CongestionParam| {
            (name.clone(), json!({ "value": value, "default": default, "range": range, "meaning": meaning }))
        };
        Self { port_num, qpn, is_own, algorithm, params: params.iter().map(param).collect(), figures: Pairs(figures) }
    }
}

/// One word may be an algorithm, the others are assignments.
fn parse_change(words: &[String]) -> Result<CongestionChange, CommandError> {
    let mut change = CongestionChange::default();
    for word in words {
        match word.split_once('=') {
            Some((name, value)) => change.values.push((name.to_owned(), value.to_owned())),
            None if change.algorithm.is_none() => change.algorithm = Some(word.clone()),
            None => {
                return Err(CommandError::Usage(format!(
                    "{word:?} is no NAME=VALUE, and an algorithm is named already"
                )));
            }
        }
    }
    Ok(change)
}

fn write_text(report: &CongestionReport, out: &mut impl Write) -> Result<(), CommandError> {
    let algorithm = printable(&report.algorithm);
    match report.qpn {
        None => writeln!(out, "port {}: {algorithm}", report.port_num)?,
        Some(number) => {
            let whose = if report.is_own { "its own settings" } else { "its port's settings" };
            writeln!(out, "QP {} on port {}: {algorithm}, {whose}", qpn(number), report.port_num)?;
        }
    }
    let rows = report.params.iter().map(|param| {
        [&param.name, &param.value, &param.default, &param.range, &param.meaning].map(|text| printable(text)).to_vec()
    });
    write_table(out, &table(&HEADER, &[], rows), "  ")?;
    if !report.figures.is_empty() {
        writeln!(out, "  now")?;
    }
    let rows = report.figures.iter().map(|(name, value)| vec![printable(name), value.to_string()]);
    Ok(write_table(out, &table(&[], &[1], rows), "    ")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_an_algorithm_and_assignments_in_any_order() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let change = parse_change(&words("rai=40Mbps dcqcn g=4/1024")).unwrap();
        assert_eq!(change.algorithm.as_deref(), Some("dcqcn"));
        let values = [("rai", "40Mbps"), ("g", "4/1024")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(change.values, values);
        assert!(parse_change(&words("dcqcn swift")).is_err());
    }
}
