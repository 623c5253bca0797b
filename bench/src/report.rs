//! What a run says at its end: perftest's table, or a JSON object a line.

use std::fmt::Write as _;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::machine::Machine;
use crate::params::{Metric, Params};
use crate::stats::{Latencies, LatencySummary, Round, gbit_per_s, median};

/// Rounds of a run, and the floors measured around them.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// What each round was.
    pub(crate) rounds: Vec<Round>,
    /// Messages per second of the floor.
    pub(crate) floors_per_s: Vec<f64>,
    /// Path MTU of the last round.
    pub(crate) mtu_bytes: u32,
}

impl Rounds {
    /// Adds a round.
    pub(crate) fn add(&mut self, round: Round, mtu_bytes: u32) {
        self.rounds.push(round);
        self.mtu_bytes = mtu_bytes;
    }

    /// Messages per second, median of the rounds.
    pub(crate) fn per_s(&self) -> f64 {
        median(self.rounds.iter().map(Round::per_s))
    }
}

/// A run's settings, as its JSON has them.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Settings {
    /// `daemon`, `embedded` (threads), `single_thread` or `vdev`.
    pub(crate) mode: &'static str,
    /// The device's arguments, if one was named.
    pub(crate) vdev: Option<String>,
    /// Path MTU in use, bytes.
    pub(crate) mtu_bytes: u32,
    /// Rounds, of which the medians are given.
    pub(crate) rounds: usize,
    /// The rest.
    #[serde(flatten)]
    pub(crate) params: Params,
}

/// The effect of idle QPs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct IdleQps {
    /// How many were made and connected, on each side.
    pub(crate) count: u32,
    /// Time that took, s.
    pub(crate) seconds: f64,
    /// Messages per second without them; medians, as with them.
    pub(crate) alone_msg_per_s: f64,
    /// Messages per second with them, as a part of that.
    pub(crate) ratio_to_alone: f64,
    /// Memory of the process before and after, bytes: both engines and both applications.
    pub(crate) memory_bytes: Option<[u64; 2]>,
}

/// The result of one run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Its name, such as `write_bw`.
    pub(crate) test: String,
    /// Bytes of a message.
    pub(crate) bytes: u32,
    /// Messages of all rounds; of an unreliable SEND those that arrived.
    pub(crate) iterations: u64,
    /// Messages that did not arrive: of UC and UD SENDs. Those from the client only, if both sides send.
    pub(crate) lost: u64,
    /// Messages per second, median of the rounds.
    pub(crate) msg_per_s: f64,
    /// The same in Gbit/s of payload.
    pub(crate) gbit_per_s: f64,
    /// Of each round, in their order.
    pub(crate) round_gbit_per_s: Vec<f64>,
    /// Best rate over 5 ms.
    pub(crate) peak_gbit_per_s: f64,
    /// The floor of the same frames, median; `null` where there is none.
    pub(crate) floor_msg_per_s: Option<f64>,
    /// The same in Gbit/s.
    pub(crate) floor_gbit_per_s: Option<f64>,
    /// Rate as a part of the floor's.
    pub(crate) ratio: Option<f64>,
    /// Latency, ns: of each message in a latency test, else from posting to completion of the signalled ones.
    #[serde(flatten)]
    pub(crate) latency: Option<LatencySummary>,
    /// The bytes at the destination were compared.
    pub(crate) verified: bool,
    /// With `--qps-idle`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idle_qps: Option<IdleQps>,
    /// How it was run.
    pub(crate) settings: Settings,
    /// Where it was run.
    pub(crate) machine: Machine,
}

impl Report {
    /// Sums the rounds up. All of them had their data verified: a round with wrong data has no result.
    pub(crate) fn new(rounds: &Rounds, settings: Settings, machine: Machine) -> Self {
        let size = settings.params.size;
        let msg_per_s = rounds.per_s();
        let Rounds { rounds, floors_per_s, .. } = rounds;
        let mut latencies = Latencies::new();
        rounds.iter().for_each(|round| latencies.add(&round.latencies));
        let floor_msg_per_s = (!floors_per_s.is_empty()).then(|| median(floors_per_s.iter().copied()));
        Self {
            test: settings.params.test.to_string(),
            bytes: size,
            iterations: rounds.iter().map(|round| round.messages).sum(),
            lost: rounds.iter().map(|round| round.lost).sum(),
            msg_per_s,
            gbit_per_s: gbit_per_s(msg_per_s, size),
            round_gbit_per_s: rounds.iter().map(|round| gbit_per_s(round.per_s(), size)).collect(),
            peak_gbit_per_s: gbit_per_s(rounds.iter().map(|round| round.peak_per_s).fold(0.0, f64::max), size),
            floor_msg_per_s,
            floor_gbit_per_s: floor_msg_per_s.map(|per_s| gbit_per_s(per_s, size)),
            ratio: floor_msg_per_s.map(|per_s| msg_per_s / per_s),
            latency: latencies.summary(),
            verified: true,
            idle_qps: None,
            settings,
            machine,
        }
    }
}

/// Prints results as they come.
#[derive(Debug)]
pub(crate) struct Printer {
    json: bool,
    rows: Vec<[String; COLUMNS_MAX]>,
    titles: &'static [&'static str],
    /// Of each size of which some did not arrive: bytes, how many, and the part in percent.
    losses: Vec<(u32, u64, f64)>,
}

const COLUMNS_MAX: usize = 9;
const BANDWIDTH_TITLES: [&str; 7] =
    ["#bytes", "#iterations", "BW peak[Gb/sec]", "BW average[Gb/sec]", "MsgRate[Mpps]", "floor[Mpps]", "ratio"];
const LATENCY_TITLES: [&str; 9] = [
    "#bytes",
    "#iterations",
    "t_min[usec]",
    "t_max[usec]",
    "t_typical[usec]",
    "t_avg[usec]",
    "t_stdev[usec]",
    "99% percentile[usec]",
    "99.9% percentile[usec]",
];

impl Printer {
    /// `json`: an object a line in place of a table.
    pub(crate) const fn new(json: bool, metric: Metric) -> Self {
        let titles: &[&str] = match metric {
            Metric::Bandwidth => &BANDWIDTH_TITLES,
            Metric::Latency => &LATENCY_TITLES,
        };
        Self { json, rows: Vec::new(), titles, losses: Vec::new() }
    }

    /// Adds a result. JSON appears at once, a table's row at the end.
    pub(crate) fn add(&mut self, report: &Report) {
        if report.lost > 0 {
            let percent = 100.0 * report.lost as f64 / (report.iterations + report.lost) as f64;
            self.losses.push((report.bytes, report.lost, percent));
        }
        if self.json {
            println!("{}", serde_json::to_string(report).expect("plain numbers and strings"));
        } else if self.titles.len() == LATENCY_TITLES.len() {
            self.rows.push(latency_row(report));
        } else {
            self.rows.push(bandwidth_row(report));
        }
    }

    /// Ends the output.
    pub(crate) fn finish(&self, report: &Report) {
        if self.json {
            return;
        }
        println!("{}", heading(report));
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(self.titles);
        for row in &self.rows {
            table.add_row(&row[..self.titles.len()]);
        }
        table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        println!("{table}");
        for (bytes, lost, percent) in self.losses.iter() {
            println!("{lost} messages of {bytes} bytes ({percent:.2} %) did not arrive");
        }
        if let Some(idle) = &report.idle_qps {
            println!("{}", idle_line(idle));
        }
    }
}

fn bandwidth_row(report: &Report) -> [String; COLUMNS_MAX] {
    let mega = |per_s: f64| format!("{:.6}", per_s / 1e6);
    let mut row: [String; COLUMNS_MAX] = Default::default();
    row[0] = report.bytes.to_string();
    row[1] = report.iterations.to_string();
    row[2] = format!("{:.2}", report.peak_gbit_per_s);
    row[3] = format!("{:.2}", report.gbit_per_s);
    row[4] = mega(report.msg_per_s);
    row[5] = report.floor_msg_per_s.map_or_else(|| "-".to_owned(), mega);
    row[6] = report.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
    row
}

fn latency_row(report: &Report) -> [String; COLUMNS_MAX] {
    let mut row: [String; COLUMNS_MAX] = Default::default();
    row[0] = report.bytes.to_string();
    row[1] = report.iterations.to_string();
    let Some(latency) = &report.latency else { return row };
    let times = [
        latency.min_ns as f64,
        latency.max_ns as f64,
        latency.p50_ns as f64,
        latency.mean_ns,
        latency.stdev_ns,
        latency.p99_ns as f64,
        latency.p999_ns as f64,
    ];
    for (cell, ns) in row[2..].iter_mut().zip(times) {
        *cell = format!("{:.2}", ns / 1e3);
    }
    row
}

fn heading(report: &Report) -> String {
    let Settings { mode, vdev, mtu_bytes, rounds, params } = &report.settings;
    let mut text = format!("{}: {mode}", report.test);
    if let Some(vdev) = vdev {
        let _ = write!(text, " ({vdev})");
    }
    let _ = write!(
        text,
        ", {}, MTU {mtu_bytes}, QPs {}, TX depth {}, CQ moderation {}, post list {}, inline {}, {rounds} rounds",
        params.connection, params.qps, params.tx_depth, params.cq_mod, params.post_list, params.inline
    );
    let Machine { cpu, cores, build_profile, cache_line_round_trip_ns } = &report.machine;
    let _ = write!(text, "\n{cpu}, {cores} cores, {build_profile} build");
    if let Some(ns) = cache_line_round_trip_ns {
        let _ = write!(text, ", {ns:.0} ns a cache-line round trip between two cores");
    }
    text
}

fn idle_line(idle: &IdleQps) -> String {
    let mut text = format!(
        "{} idle QPs on each side, connected in {:.2} s: {:.3} of the rate without them ({:.6} Mpps)",
        idle.count,
        idle.seconds,
        idle.ratio_to_alone,
        idle.alone_msg_per_s / 1e6
    );
    if let Some([before, after]) = idle.memory_bytes {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let _ = write!(text, "; memory {:.0} MiB before, {:.0} MiB with them", mib(before), mib(after));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::*;
    use crate::params::tests::params;
    use crate::params::{Test, Verb};

    fn report(test: Test, floors: &[f64]) -> Report {
        let rounds = [1_000, 3_000, 2_000].map(|messages| {
            let mut latencies = Latencies::new();
            latencies.record(Duration::from_nanos(messages));
            Round { messages, lost: 1, seconds: 1e-3, peak_per_s: 4e6, latencies }
        });
        let settings = Settings { mode: "single_thread", vdev: None, mtu_bytes: 4096, rounds: 3, params: params(test) };
        let machine =
            Machine { cpu: "a cpu".to_owned(), cores: 2, build_profile: "release", cache_line_round_trip_ns: None };
        let rounds = Rounds { rounds: rounds.to_vec(), floors_per_s: floors.to_vec(), mtu_bytes: 4096 };
        Report::new(&rounds, settings, machine)
    }

    #[test]
    fn json_has_the_numbers_and_the_settings() {
        let report = report(Test::bandwidth(Verb::Write), &[8e6, 1e7, 9e7]);
        let value: Value = serde_json::to_value(&report).unwrap();
        let number = |key: &str| value[key].as_f64().unwrap_or_else(|| panic!("{key} in {value}"));
        assert_eq!(number("msg_per_s"), 2e6);
        assert_eq!(number("gbit_per_s"), 2e6 * 64.0 / 1e9);
        assert_eq!(value["round_gbit_per_s"], serde_json::json!([1e6, 3e6, 2e6].map(|per_s| per_s * 64.0 / 1e9)));
        assert_eq!(number("floor_msg_per_s"), 1e7);
        assert_eq!(number("floor_gbit_per_s"), 1e7 * 64.0 / 1e9);
        assert_eq!(number("ratio"), 0.2);
        assert_eq!(number("p50_ns"), 2_000.0);
        assert!(number("p99_ns") >= 2_999.0 && number("p999_ns") >= 2_999.0);
        assert_eq!(value["settings"]["qps"], 1);
        assert_eq!((&value["settings"]["connection"], &value["lost"]), (&"RC".into(), &3.into()));
        assert_eq!(value["settings"]["mode"], "single_thread");
        assert_eq!(value["machine"]["cores"], 2);
        assert_eq!(value["verified"], true);
    }

    #[test]
    fn without_a_floor_there_is_no_ratio() {
        let value = serde_json::to_value(report(Test::latency(Verb::Send), &[])).unwrap();
        assert!(value["floor_msg_per_s"].is_null() && value["ratio"].is_null());
    }

    #[test]
    fn rows_have_perftests_columns() {
        let row = bandwidth_row(&report(Test::bandwidth(Verb::Write), &[1e7]));
        assert_eq!(row[..7], ["8", "6000", "0.26", "0.13", "2.000000", "10.000000", "0.200"]);
        let row = latency_row(&report(Test::latency(Verb::Write), &[]));
        assert_eq!((row[2].as_str(), row[4].as_str()), ("1.00", "2.00"));
    }
}
