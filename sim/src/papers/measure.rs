//! Numbers of one run.

use std::ops::Range;

use serde::Deserialize;

use crate::report::Unit;
use crate::scenario::Outcome;
use crate::stats::jain;

/// A number of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Bytes of all flows by the time from the first start to the last end.
    Goodput,
    /// Packets that were sent again, parts of all.
    Retransmitted,
    /// Mean completion time.
    CompletionMean,
    /// 99 % of the flows are complete after no longer.
    #[serde(rename = "completion-p99")]
    CompletionP99,
    /// Median completion time.
    #[serde(rename = "completion-p50")]
    CompletionP50,
    /// Mean slowdown: completion time over that on an empty network.
    SlowdownMean,
    /// The slowdown that 99 % of the flows don't exceed.
    #[serde(rename = "slowdown-p99")]
    SlowdownP99,
    /// Jain's index of the goodputs of flows in the second half of the run.
    FairnessAtEnd,
    /// The least of Jain's indices of ten pieces of the second half of the run: small if a split is fair on average alone.
    LeastFairnessAtEnd,
    /// The first flow's part of the goodput of all, in the second half of the run.
    FirstShareAtEnd,
    /// Part of the time that transmitters were paused, of all hosts.
    Paused,
    /// Frames that switches and hosts dropped.
    Dropped,
    /// Most bytes that any queue of a switch was seen to hold.
    DeepestQueue,
}

/// How a number is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shown {
    /// With a unit of charts.
    In(Unit),
    /// As percent.
    Part,
    /// As so many times.
    Multiple,
}

impl Shown {
    pub(super) fn text(self, value: f64) -> String {
        match self {
            Self::In(unit) => unit.show(value),
            Self::Part => format!("{:.1} %", value * 100.0),
            Self::Multiple => format!("{value:.2}x"),
        }
    }
}

impl Metric {
    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Goodput => "goodput",
            Self::Retransmitted => "retransmissions",
            Self::CompletionMean => "mean completion time",
            Self::CompletionP99 => "p99 of completion times",
            Self::CompletionP50 => "median completion time",
            Self::SlowdownMean => "mean slowdown",
            Self::SlowdownP99 => "p99 of slowdowns",
            Self::FairnessAtEnd => "fairness",
            Self::LeastFairnessAtEnd => "least fairness",
            Self::FirstShareAtEnd => "share of the first flow",
            Self::Paused => "time paused",
            Self::Dropped => "drops",
            Self::DeepestQueue => "deepest queue",
        }
    }

    /// The unit of its axis in charts.
    pub(super) const fn unit(self) -> Unit {
        match self {
            Self::Goodput => Unit::BitsPerS,
            Self::CompletionMean | Self::CompletionP99 | Self::CompletionP50 => Unit::Us,
            Self::Retransmitted | Self::FirstShareAtEnd | Self::Paused => Unit::Part,
            Self::SlowdownMean | Self::SlowdownP99 | Self::Dropped => Unit::Number,
            Self::FairnessAtEnd | Self::LeastFairnessAtEnd => Unit::Number,
            Self::DeepestQueue => Unit::Bytes,
        }
    }

    pub(super) const fn shown(self) -> Shown {
        match self.unit() {
            Unit::Part => Shown::Part,
            unit => Shown::In(unit),
        }
    }

    /// The number; `None` if the run does not have it.
    pub(super) fn of(self, outcome: &Outcome, host_count: u16) -> Option<f64> {
        let summary = &outcome.summary;
        let all = || summary.completions.last().filter(|class| class.count > 0);
        Some(match self {
            Self::Goodput => summary.goodput_bits_per_s,
            Self::Retransmitted => summary.retransmitted_percent / 100.0,
            Self::CompletionMean => all()?.completion_us.mean,
            Self::CompletionP99 => all()?.completion_us.p99,
            Self::CompletionP50 => all()?.completion_us.p50,
            Self::SlowdownMean => all()?.slowdown.mean,
            Self::SlowdownP99 => all()?.slowdown.p99,
            Self::FairnessAtEnd => jain(&bytes_within(outcome, 0.5..1.0))?,
            Self::LeastFairnessAtEnd => {
                let pieces = (10..20).map(|twentieth| f64::from(twentieth) / 20.0);
                let indices = pieces.map(|start| jain(&bytes_within(outcome, start..start + 0.05)));
                indices.collect::<Option<Vec<f64>>>()?.into_iter().fold(1.0, f64::min)
            }
            Self::FirstShareAtEnd => {
                let bytes = bytes_within(outcome, 0.5..1.0);
                bytes.first()? / bytes.iter().sum::<f64>()
            }
            Self::Paused => {
                let ns = summary.duration_us * 1_000.0 * f64::from(host_count);
                summary.totals.paused_ns as f64 / ns
            }
            Self::Dropped => summary.totals.dropped as f64,
            Self::DeepestQueue => summary.deepest_queue.map_or(0.0, |queue| queue.max_bytes as f64),
        })
    }
}

/// Bytes of each flow in a part of the run, about, in one unit or another.
fn bytes_within(outcome: &Outcome, part: Range<f64>) -> Vec<f64> {
    let duration_us = outcome.summary.duration_us;
    let rates = outcome.recorder.rates();
    let is_within = |us: f64| part.contains(&(us / duration_us));
    let sum = |points: &[(f64, f64)]| points.iter().filter(|(us, _)| is_within(*us)).map(|(_, rate)| rate).sum();
    rates.iter().map(|series| sum(&series.points)).collect()
}
