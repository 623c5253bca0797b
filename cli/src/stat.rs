//! `ferroce stat`: the daemon's counters, once or as rates.

use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};
use shm::control::Stats;

use crate::client::Client;
use crate::outcome::{CommandError, Outcome};
use crate::report::{Pairs, printable, table, write_json, write_table};

/// Bounds of `--watch`, seconds.
const INTERVAL_S: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

/// Arguments of `ferroce stat`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Every so many seconds (0.1 to 3600), print the counters that changed, as rates; until Ctrl-C.
    #[arg(short, long, value_name = "SECONDS", value_parser = parse_interval)]
    watch: Option<Duration>,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if INTERVAL_S.contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("not a number from {} to {}", INTERVAL_S.start(), INTERVAL_S.end())),
    }
}

/// Prints the counters; with `--watch`, goes on until the daemon or the reader of the output is gone.
pub(crate) fn run(client: &Client, args: &Args, json: bool, out: &mut impl Write) -> Result<Outcome, CommandError> {
    let first = client.stats()?;
    match args.watch {
        Some(interval) => watch(client, first, interval, json, out),
        None => {
            if json {
                write_json(out, &Sample::first(&first))?;
            } else {
                write_totals(out, &first)?;
            }
            Ok(Outcome::Good)
        }
    }
}

fn watch(
    client: &Client,
    mut before: Stats,
    interval: Duration,
    json: bool,
    out: &mut impl Write,
) -> Result<Outcome, CommandError> {
    if json {
        write_json(out, &Sample::first(&before))?;
        out.flush()?;
    }
    let mut next = Instant::now();
    loop {
        // Kept from the start and not from now, so that the time of asking does not add up.
        next += interval;
        thread::sleep(next.saturating_duration_since(Instant::now()));
        let after = client.stats()?;
        let change = Change::between(&before, &after);
        if json {
            write_json(out, &Sample { stats: &after, change: Some(&change) })?;
        } else {
            change.write_text(out, after.uptime_ms)?;
        }
        out.flush()?;
        before = after;
    }
}

fn write_totals(out: &mut impl Write, stats: &Stats) -> io::Result<()> {
    writeln!(out, "{}, up {}", printable(&stats.device), uptime(stats.uptime_ms))?;
    for (group, counters) in &stats.groups {
        writeln!(out, "{}", printable(group))?;
        let rows = counters.iter().map(|(name, value)| vec![printable(name), value.to_string()]);
        write_table(out, &table(&[], &[1], rows), "  ")?;
    }
    Ok(())
}

/// Days if there are any, then hours, minutes and seconds.
fn uptime(ms: u64) -> String {
    let seconds = ms / 1000;
    let clock = format!("{:02}:{:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    match seconds / 86_400 {
        0 => clock,
        days => format!("{days} d {clock}"),
    }
}

/// One line of JSON.
struct Sample<'a> {
    stats: &'a Stats,
    change: Option<&'a Change>,
}

impl<'a> Sample<'a> {
    /// A sample with nothing before it to compare with.
    fn first(stats: &'a Stats) -> Self {
        Self { stats, change: None }
    }
}

impl Serialize for Sample<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Line<'a, G: Serialize, R: Serialize> {
            device: &'a str,
            uptime_ms: u64,
            #[serde(skip_serializing_if = "Option::is_none")]
            interval_ms: Option<u64>,
            groups: G,
            #[serde(skip_serializing_if = "Option::is_none")]
            per_s: Option<R>,
        }
        let groups: Vec<_> =
            self.stats.groups.iter().map(|(group, counters)| (group.clone(), Pairs(counters))).collect();
        let per_s: Option<Vec<_>> = self.change.map(|change| {
            let rates = |rates: &[Rate]| rates.iter().map(|rate| (rate.counter.clone(), rate.per_s)).collect();
            change.groups.iter().map(|(group, list)| (group.clone(), PairList(rates(list)))).collect()
        });
        Line {
            device: &self.stats.device,
            uptime_ms: self.stats.uptime_ms,
            interval_ms: self.change.map(|change| change.interval_ms),
            groups: Pairs(&groups),
            per_s: per_s.map(PairList),
        }
        .serialize(serializer)
    }
}

/// [`Pairs`] that owns them.
struct PairList<T>(Vec<(String, T)>);

impl<T: Serialize> Serialize for PairList<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Pairs(&self.0).serialize(serializer)
    }
}

/// How fast a counter moved.
struct Rate {
    counter: String,
    /// Counts a second; negative if the value sank.
    per_s: f64,
}

/// What changed between two samples.
struct Change {
    /// By the daemon's clock, which read the counters.
    interval_ms: u64,
    /// Groups with a changed counter, and those counters.
    groups: Vec<(String, Vec<Rate>)>,
}

impl Change {
    fn between(before: &Stats, after: &Stats) -> Self {
        let interval_ms = after.uptime_ms.saturating_sub(before.uptime_ms).max(1);
        let mut groups = Vec::new();
        for (group, counters) in &after.groups {
            let old = find(&before.groups, group);
            let rates: Vec<Rate> = counters
                .iter()
                .map(|(name, value)| (name, value, old.and_then(|old| find(old, name)).copied().unwrap_or(0)))
                .filter(|(_, value, old)| **value != *old)
                .map(|(name, value, old)| Rate { counter: name.clone(), per_s: per_s(old, *value, interval_ms) })
                .collect();
            if !rates.is_empty() {
                groups.push((group.clone(), rates));
            }
        }
        Self { interval_ms, groups }
    }

    fn write_text(&self, out: &mut impl Write, uptime_ms: u64) -> io::Result<()> {
        let nothing = if self.groups.is_empty() { ", no counter changed" } else { "" };
        writeln!(out, "up {}, {} ms{nothing}", uptime(uptime_ms), self.interval_ms)?;
        for (group, rates) in &self.groups {
            let rows = rates.iter().map(|rate| {
                let (number, unit) = rate.in_unit();
                vec![printable(group), printable(&rate.counter), number, unit.to_owned()]
            });
            write_table(out, &table(&[], &[2], rows), "  ")?;
        }
        Ok(())
    }
}

impl Rate {
    /// Number and unit for people: bytes as Gbit/s.
    fn in_unit(&self) -> (String, &'static str) {
        if self.counter.ends_with("bytes") {
            return (format!("{:.3}", self.per_s * 8.0 / 1e9), "Gbit/s");
        }
        let unit = if self.counter.ends_with("packets") { "packets/s" } else { "/s" };
        let digits = if self.per_s.abs() < 10.0 { 2 } else { 0 };
        (format!("{:.digits$}", self.per_s), unit)
    }
}

fn find<'a, T>(pairs: &'a [(String, T)], name: &str) -> Option<&'a T> {
    pairs.iter().find(|(candidate, _)| candidate == name).map(|(_, value)| value)
}

/// Rounded to the 53 bits of the result, which is exact below 9e15 counts.
fn per_s(before: u64, after: u64, interval_ms: u64) -> f64 {
    (after as f64 - before as f64) * 1000.0 / interval_ms as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(uptime_ms: u64, counters: &[(&str, u64)]) -> Stats {
        let counters = counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Stats { device: "ferroce0".to_owned(), uptime_ms, groups: vec![("shard 0".to_owned(), counters)] }
    }

    fn text(before: &Stats, after: &Stats) -> String {
        let mut out = Vec::new();
        Change::between(before, after).write_text(&mut out, after.uptime_ms).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn rates_have_the_unit_of_the_counter() {
        let before = stats(1_000, &[("tx_roce_packets", 7), ("tx_roce_bytes", 0), ("timeouts", 3), ("qps", 4)]);
        let after =
            stats(3_000, &[("tx_roce_packets", 2_007), ("tx_roce_bytes", 2_500_000_000), ("timeouts", 3), ("qps", 1)]);
        insta::assert_snapshot!(text(&before, &after), @r"
        up 00:00:03, 2000 ms
          shard 0  tx_roce_packets    1000  packets/s
          shard 0  tx_roce_bytes    10.000  Gbit/s
          shard 0  qps               -1.50  /s
        ");
    }

    #[test]
    fn rates_of_new_counters_start_from_zero_and_no_time_is_no_division_by_zero() {
        let after = stats(5, &[("tx_roce_packets", 2)]);
        insta::assert_snapshot!(text(&Stats { uptime_ms: 5, ..Stats::default() }, &after), @r"
        up 00:00:00, 1 ms
          shard 0  tx_roce_packets  2000  packets/s
        ");
        assert_eq!(text(&after, &after), "up 00:00:00, 1 ms, no counter changed\n");
    }

    #[test]
    fn uptime_shows_days_only_if_there_are_any() {
        assert_eq!([0, 3_661_999, 90_061_000].map(uptime), ["00:00:00", "01:01:01", "1 d 01:01:01"]);
    }

    #[test]
    fn interval_outside_its_range_is_refused() {
        assert_eq!(parse_interval("0.1"), Ok(Duration::from_millis(100)));
        for text in ["0", "0.05", "-1", "3601", "NaN", "inf", "1s", ""] {
            assert_eq!(parse_interval(text), Err("not a number from 0.1 to 3600".to_owned()), "{text:?}");
        }
    }
}
