//! `ferroce qos`: priorities, traffic classes and priority flow control of the daemon's ports, with the words of `mlnx_qos`.

mod change;

use std::io::{self, Write};

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use shm::qos::{PRIORITY_COUNT, PortQos, QosNumber, QosSettings};

use crate::client::Client;
use crate::outcome::{CommandError, Outcome};
use crate::report::{Pairs, table, write_json, write_table};

/// Arguments of `ferroce qos`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct Args {
    /// This port only.
    #[arg(long, value_name = "PORT", value_parser = parse_port())]
    port: Option<u8>,
    /// Nothing said is `show`.
    #[command(subcommand)]
    action: Option<Action>,
}

/// A port as a user writes it.
fn parse_port() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(1..)
}

#[derive(clap::Subcommand)]
enum Action {
    /// What is set, and what is paused now.
    #[command(after_help = "Example: ferroce qos show --port 1")]
    Show {
        /// This port only.
        #[arg(long, value_name = "PORT", value_parser = parse_port())]
        port: Option<u8>,
    },
    /// Changes settings at once; for root and the daemon's own user. What is not named stays as it is.
    #[command(after_help = "\
Example: ferroce qos set --trust dscp --dscp2prio set,26,3 --pfc 0,0,0,1,0,0,0,0 pfc_watchdog_ignore_ms=200
Numbers: see docs/qos.md, or `ferroce qos show`.")]
    Set {
        /// This port only.
        #[arg(long, value_name = "PORT", value_parser = parse_port())]
        port: Option<u8>,
        #[command(flatten)]
        change: change::Args,
    },
}

/// Shows, or sets and shows what it is then.
pub(crate) fn run(client: &Client, args: &Args, json: bool, out: &mut impl Write) -> Result<Outcome, CommandError> {
    let ports = match &args.action {
        None => client.qos(args.port)?,
        Some(Action::Show { port }) => client.qos(*port)?,
        Some(Action::Set { port, change }) => client.set_qos(*port, change.to_change())?,
    };
    let ports: Vec<Report<'_>> = ports.iter().map(Report).collect();
    for port in ports {
        if json {
            write_json(out, &port)?;
        } else {
            port.write_text(out)?;
        }
    }
    Ok(Outcome::Good)
}

/// A port.
struct Report<'a>(&'a PortQos);

const HEADER: [&str; 12] = [
    "PRIO",
    "TC",
    "TSA",
    "WEIGHT",
    "PFC",
    "PAUSED",
    "PAUSING",
    "RX_PACKETS",
    "TX_PACKETS",
    "RX_PAUSE",
    "TX_PAUSE",
    "DSCP",
];
const NUMERIC: [usize; 7] = [0, 1, 3, 7, 8, 9, 10];

impl Report<'_> {
    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let PortQos { port_num, settings, pfc_by, .. } = self.0;
        writeln!(out, "port {port_num}: trust {}, flow control by {}", settings.trust.word(), pfc_by.word())?;
        write_table(out, &table(&HEADER, &NUMERIC, (0..PRIORITY_COUNT).map(|priority| self.row(priority))), "  ")?;
        let numbers = QosNumber::ALL.iter();
        let rows = numbers.map(|&number| vec![number.key().to_owned(), settings.numbers.get(number).to_string()]);
        write_table(out, &table(&[], &[1], rows), "  ")
    }

    fn row(&self, priority: usize) -> Vec<String> {
        let PortQos { settings, priorities, .. } = self.0;
        let state = priorities.get(priority);
        let yes = |on: Option<bool>| on.map_or("-", |on| if on { "yes" } else { "no" }).to_owned();
        let counter = |name: &str| {
            let found = state.and_then(|state| state.counters.iter().find(|(counter, _)| counter == name));
            found.map_or_else(|| "-".to_owned(), |(_, value)| value.to_string())
        };
        let class = usize::from(settings.priority_to_class[priority]);
        let tsa = settings.tsa.get(class).map_or("-", |tsa| tsa.word());
        let paused = state.map(|state| if state.ignoring { "ignored".to_owned() } else { yes(Some(state.paused)) });
        vec![
            priority.to_string(),
            class.to_string(),
            tsa.to_owned(),
            settings.weights.get(class).map_or_else(|| "-".to_owned(), ToString::to_string),
            if settings.pfc[priority] { "on" } else { "off" }.to_owned(),
            paused.unwrap_or_else(|| "-".to_owned()),
            yes(state.map(|state| state.pausing)),
            counter("rx_packets"),
            counter("tx_packets"),
            counter("rx_pause"),
            counter("tx_pause"),
            dscps(settings, priority),
        ]
    }
}

/// DSCPs of a priority as ranges: `0-7,26`.
fn dscps(settings: &QosSettings, priority: usize) -> String {
    let mut ranges: Vec<(u8, u8)> = Vec::new();
    for (dscp, _) in (0..).zip(settings.dscp_to_priority.iter()).filter(|&(_, of)| usize::from(of) == priority) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == dscp => *last = dscp,
            _ => ranges.push((dscp, dscp)),
        }
    }
    let text = |(first, last): (u8, u8)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    if ranges.is_empty() { "-".to_owned() } else { ranges.into_iter().map(text).collect::<Vec<_>>().join(",") }
}

impl Serialize for Report<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Port<'a> {
            port: u8,
            trust: &'static str,
            pfc_by: &'static str,
            dscp_to_priority: Vec<u8>,
            priority_to_class: [u8; PRIORITY_COUNT],
            tsa: [&'static str; PRIORITY_COUNT],
            weights: [u8; PRIORITY_COUNT],
            pfc: [bool; PRIORITY_COUNT],
            #[serde(flatten)]
            numbers: Map<String, Value>,
            priorities: Vec<Priority<'a>>,
        }
        #[derive(Serialize)]
        struct Priority<'a> {
            priority: usize,
            paused: bool,
            pausing: bool,
            ignoring: bool,
            counters: Pairs<'a, u64>,
        }
        let PortQos { port_num, settings, pfc_by, priorities } = self.0;
        let number = |&number: &QosNumber| (number.key().to_owned(), settings.numbers.get(number).into());
        let priorities = priorities.iter().enumerate().map(|(priority, state)| Priority {
            priority,
            paused: state.paused,
            pausing: state.pausing,
            ignoring: state.ignoring,
            counters: Pairs(&state.counters),
        });
        Port {
            port: *port_num,
            trust: settings.trust.word(),
            pfc_by: pfc_by.word(),
            dscp_to_priority: settings.dscp_to_priority.iter().collect(),
            priority_to_class: settings.priority_to_class,
            tsa: settings.tsa.map(|tsa| tsa.word()),
            weights: settings.weights,
            pfc: settings.pfc,
            numbers: QosNumber::ALL.iter().map(number).collect(),
            priorities: priorities.collect(),
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::qos::QosChange;

    #[test]
    fn dscps_are_shown_as_ranges() {
        let change = QosChange { dscp_to_priority: vec![(3, 1), (26, 0), (63, 0)], ..QosChange::default() };
        let settings = QosSettings::default().changed(&change).unwrap();
        assert_eq!([0, 1, 3].map(|priority| dscps(&settings, priority)), ["0-2,4-7,26,63", "3,8-15", "24-25,27-31"]);
        let all_in_one =
            QosChange { dscp_to_priority: (0..64).map(|dscp| (dscp, 2)).collect(), ..QosChange::default() };
        let settings = settings.changed(&all_in_one).unwrap();
        assert_eq!([1, 2].map(|priority| dscps(&settings, priority)), ["-", "0-63"]);
    }
}
