//! Rates and latencies, and what a run's rounds have in common.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest latency that a histogram tells apart, ns.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Significant digits of a latency.
const DIGITS: u8 = 3;
/// A peak is the best rate over at least this time.
const PEAK_WINDOW: Duration = Duration::from_millis(5);

/// Latencies in nanoseconds, each exact to three digits.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    /// Without a value.
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS);
        Self(histogram.expect("the bounds are legal"))
    }

    /// Adds one; longer ones than can be told count as the longest.
    #[inline]
    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Makes half of each: one way of round trips.
    pub(crate) fn halve(&mut self) {
        let mut halves = Self::new();
        for step in self.0.iter_recorded() {
            let half = (step.value_iterated_to() / 2).max(1);
            halves.0.saturating_record_n(half, step.count_at_value());
        }
        *self = halves;
    }

    /// Adds all of another round's.
    pub(crate) fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// What there is to say of them; `None` without a value.
    pub(crate) fn summary(&self) -> Option<LatencySummary> {
        let histogram = &self.0;
        (!histogram.is_empty()).then(|| LatencySummary {
            min_ns: histogram.min(),
            max_ns: histogram.max(),
            mean_ns: histogram.mean(),
            stdev_ns: histogram.stdev(),
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
        })
    }
}

/// Latencies, summed up; ns.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct LatencySummary {
    /// The shortest.
    pub(crate) min_ns: u64,
    /// The longest.
    pub(crate) max_ns: u64,
    /// Their mean.
    pub(crate) mean_ns: f64,
    /// Their standard deviation.
    pub(crate) stdev_ns: f64,
    /// Half are at most this.
    pub(crate) p50_ns: u64,
    /// 99 % are at most this.
    pub(crate) p99_ns: u64,
    /// 99.9 % are at most this.
    pub(crate) p999_ns: u64,
}

/// The best rate over a short window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peak {
    since: Instant,
    count: u64,
    best_per_s: f64,
}

impl Peak {
    /// Starts the first window.
    pub(crate) const fn new(now: Instant) -> Self {
        Self { since: now, count: 0, best_per_s: 0.0 }
    }

    /// `count` messages are done since the start of the run.
    #[inline]
    pub(crate) fn note(&mut self, now: Instant, count: u64) {
        let elapsed = now - self.since;
        if elapsed >= PEAK_WINDOW {
            self.best_per_s = self.best_per_s.max((count - self.count) as f64 / elapsed.as_secs_f64());
            (self.since, self.count) = (now, count);
        }
    }

    /// Messages per second; 0 if no window was ever full.
    pub(crate) const fn per_s(&self) -> f64 {
        self.best_per_s
    }
}

/// One round: what a side did.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    /// Messages, of all QPs, that have arrived; where nobody knows (UC WRITE), that were sent.
    pub(crate) messages: u64,
    /// Messages that were sent and did not arrive.
    pub(crate) lost: u64,
    /// From the first post to the last completion, s.
    pub(crate) seconds: f64,
    /// Best rate over a short window, or the average if there was none.
    pub(crate) peak_per_s: f64,
    /// Of each message, or of those that made a completion.
    pub(crate) latencies: Latencies,
}

impl Round {
    /// Only so many messages have arrived.
    pub(crate) fn arrived(&mut self, messages: u64) {
        let sent = self.messages;
        self.messages = messages.min(sent);
        self.lost = sent - self.messages;
        self.peak_per_s *= self.messages as f64 / sent.max(1) as f64;
    }

    /// Messages per second.
    pub(crate) fn per_s(&self) -> f64 {
        self.messages as f64 / self.seconds.max(1e-9)
    }
}

/// The middle value; of two middle ones their mean; 0 of none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match (values.len(), values.len() / 2) {
        (0, _) => 0.0,
        (count, middle) if count % 2 == 1 => values[middle],
        (_, middle) => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// Messages per second as Gbit/s of payload.
pub(crate) fn gbit_per_s(per_s: f64, bytes: u32) -> f64 {
    per_s * f64::from(bytes) * 8.0 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_does_not_count() {
        let mut round =
            Round { messages: 1000, lost: 0, seconds: 0.5, peak_per_s: 4000.0, latencies: Latencies::new() };
        round.arrived(750);
        assert_eq!((round.messages, round.lost, round.per_s(), round.peak_per_s), (750, 250, 1500.0, 3000.0));
    }

    #[test]
    fn medians_are_of_the_middle() {
        assert_eq!(median([]), 0.0);
        assert_eq!(median([3.0]), 3.0);
        assert_eq!(median([9.0, 1.0]), 5.0);
        assert_eq!(median([9.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn latencies_are_summed_up_to_three_digits_and_rounds_add() {
        let mut first = Latencies::new();
        assert_eq!(first.summary(), None);
        let mut second = Latencies::new();
        for ns in 1..=1000 {
            let latencies = if ns % 2 == 0 { &mut first } else { &mut second };
            latencies.record(Duration::from_nanos(ns));
        }
        second.record(Duration::from_secs(3600));
        first.add(&second);
        let summary = first.summary().unwrap();
        assert_eq!((summary.min_ns, summary.p50_ns, summary.p99_ns), (1, 501, 991));
        assert!(summary.max_ns >= LATENCY_NS_MAX && summary.mean_ns > 500.0 && summary.stdev_ns > 0.0);
    }

    #[test]
    fn one_way_is_half_of_a_round_trip() {
        let mut latencies = Latencies::new();
        (0..10).for_each(|_| latencies.record(Duration::from_nanos(900)));
        latencies.halve();
        let summary = latencies.summary().unwrap();
        assert_eq!((summary.p50_ns, summary.max_ns), (450, 450));
    }

    #[test]
    fn a_peak_is_of_the_best_window_and_short_ones_wait() {
        let start = Instant::now();
        let mut peak = Peak::new(start);
        peak.note(start + Duration::from_millis(1), 1_000_000);
        assert_eq!(peak.per_s(), 0.0);
        peak.note(start + Duration::from_millis(10), 1_000_000);
        peak.note(start + Duration::from_millis(20), 1_000_010);
        assert!((peak.per_s() - 1e8).abs() < 1.0);
    }

    #[test]
    fn rates_count_payload_bits() {
        let round = Round { messages: 500, lost: 0, seconds: 0.5, peak_per_s: 0.0, latencies: Latencies::new() };
        assert_eq!(round.per_s(), 1000.0);
        assert_eq!(gbit_per_s(1e9, 1), 8.0);
    }
}
