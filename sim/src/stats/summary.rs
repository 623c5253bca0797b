//! A run in numbers: what `summary.json` has.

use engine::Time;
use serde::Serialize;

use super::{MAX_FLOW_RECORDS, Recorder, SizeClass};
use crate::flow::NetworkTotals;

/// What became of the flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct FlowCounts {
    /// Flows that began.
    pub started: u64,
    /// All bytes came.
    pub complete: u64,
    /// The connection broke.
    pub broken: u64,
    /// Not done when the run was over.
    pub unfinished: u64,
}

/// The queue that was deepest.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct QueueSummary {
    /// Number of the switch.
    pub switch: u16,
    /// Its port.
    pub port: u16,
    /// The priority.
    pub priority: u8,
    /// Largest depth that was sampled, bytes.
    pub max_bytes: u64,
    /// Mean depth over all samples, bytes.
    pub mean_bytes: f64,
}

/// A run in numbers.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Summary {
    /// When the run was over, us of its clock.
    pub duration_us: f64,
    /// What became of the flows.
    pub flows: FlowCounts,
    /// Bytes completed by all flows.
    pub bytes: u64,
    /// Bytes completed by the time from the first start to the last end of a flow, bits a second.
    pub goodput_bits_per_s: f64,
    /// Jain's index of the first flows, its mean over the time in which at least two of them ran; `None` if there was none.
    pub fairness: Option<f64>,
    /// Packets that were sent again, percent of all that hosts sent.
    pub retransmitted_percent: f64,
    /// Completion times and slowdowns by size, and of all together.
    pub completions: Vec<SizeClass>,
    /// The deepest queue; `None` if all were empty at every sample.
    pub deepest_queue: Option<QueueSummary>,
    /// What hosts, links and switches counted.
    pub totals: NetworkTotals,
    /// Only the first flows are in `flows.csv`, or only the first queues in `queues.csv`: there were too many.
    pub is_cut: bool,
}

impl Recorder {
    /// The run in numbers. `now`: when it was over.
    pub fn summary(&self, now: Time) -> Summary {
        let fairness = self.fairness();
        let mean = fairness.iter().map(|(_, index)| index).sum::<f64>() / fairness.len() as f64;
        let percent = 100.0 * self.totals.retransmitted as f64 / self.totals.packets.max(1) as f64;
        Summary {
            duration_us: now.as_ns() as f64 / 1_000.0,
            flows: self.counts,
            bytes: self.bytes_done,
            goodput_bits_per_s: self.mean_goodput(),
            fairness: (!fairness.is_empty()).then_some(mean),
            retransmitted_percent: percent,
            completions: self.completions.classes(),
            deepest_queue: self.deepest_queue(),
            totals: self.totals,
            is_cut: self.queues_left_out || self.counts.started > MAX_FLOW_RECORDS as u64,
        }
    }

    fn mean_goodput(&self) -> f64 {
        match self.active {
            Some((first, last)) if last > first => self.bytes_done as f64 * 8e9 / last.ns_since(first) as f64,
            _ => 0.0,
        }
    }

    fn deepest_queue(&self) -> Option<QueueSummary> {
        let deepest = self.queues().into_iter().max_by_key(|queue| queue.max_bytes())?;
        let sample_count: u64 = (0..self.samples.len()).map(|index| self.samples.at(index)).sum();
        let bins = &self.queues[&(deepest.switch, deepest.port, deepest.priority)];
        let sum: u64 = (0..bins.len()).map(|index| bins.at(index).sum_bytes).sum();
        Some(QueueSummary {
            switch: deepest.switch,
            port: deepest.port,
            priority: deepest.priority,
            max_bytes: deepest.max_bytes(),
            mean_bytes: sum as f64 / sample_count.max(1) as f64,
        })
    }
}
