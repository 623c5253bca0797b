//! Values over time, as reports show them: a bin is at the time of its middle.

use super::bins::{Bins, Grid};
use super::{QueueKey, Recorder, jain};

/// A rate over time.
#[derive(Clone, PartialEq, Debug)]
pub struct RateSeries {
    /// Number of the flow.
    pub flow: u32,
    /// Middle of a bin, us; bits a second in it. Bins before its start and after its end are not there.
    pub points: Vec<(f64, f64)>,
}

/// Depth of an egress queue over time.
#[derive(Clone, PartialEq, Debug)]
pub struct QueueSeries {
    /// Number of the switch.
    pub switch: u16,
    /// Its port.
    pub port: u16,
    /// The priority.
    pub priority: u8,
    /// Middle of a bin, us; mean and largest depth of its samples, bytes.
    pub points: Vec<(f64, f64, u64)>,
}

impl QueueSeries {
    /// The largest depth of all.
    pub fn max_bytes(&self) -> u64 {
        self.points.iter().map(|point| point.2).max().unwrap_or(0)
    }
}

/// What was counted over time.
#[derive(Clone, PartialEq, Debug)]
pub struct CounterSeries {
    /// What: a field of [`crate::flow::NetworkTotals`].
    pub name: &'static str,
    /// Middle of a bin, us; how often in it.
    pub points: Vec<(f64, u64)>,
}

impl Grid {
    fn middle_us(self, index: usize) -> f64 {
        (index as f64 + 0.5) * self.width_ns() as f64 / 1_000.0
    }

    fn bits_per_s(self, bytes: f64) -> f64 {
        bytes * 8e9 / self.width_ns() as f64
    }
}

impl Recorder {
    /// Width of a bin, us.
    pub fn bin_us(&self) -> f64 {
        self.grid.width_ns() as f64 / 1_000.0
    }

    /// Bytes completed by all flows over time: us, bits a second.
    pub fn goodput(&self) -> Vec<(f64, f64)> {
        self.rate(&self.goodput, 0)
    }

    fn rate(&self, bytes: &Bins<f64>, first: usize) -> Vec<(f64, f64)> {
        let point = |index| (self.grid.middle_us(index), self.grid.bits_per_s(bytes.at(index)));
        (first..bytes.len()).map(point).collect()
    }

    /// Bytes completed by each of the first flows over time.
    pub fn rates(&self) -> Vec<RateSeries> {
        let series = self.rates.iter().map(|(&flow, rate)| {
            // The index of a start that was recorded is within the bins.
            let first = self.grid.index(rate.start) as usize;
            RateSeries { flow, points: self.rate(&rate.bytes, first) }
        });
        series.filter(|series| !series.points.is_empty()).collect()
    }

    /// Depths of all queues that were not always empty.
    pub fn queues(&self) -> Vec<QueueSeries> {
        let series = |(&(switch, port, priority), bins): (&QueueKey, &Bins<super::Depths>)| {
            let point = |index| {
                let depths = bins.at(index);
                let mean = depths.sum_bytes as f64 / self.samples.at(index).max(1) as f64;
                (self.grid.middle_us(index), mean, depths.max_bytes)
            };
            QueueSeries { switch, port, priority, points: (0..self.samples.len()).map(point).collect() }
        };
        self.queues.iter().map(series).collect()
    }

    /// Everything that was counted at all over time.
    pub fn counters(&self) -> Vec<CounterSeries> {
        let counters = &self.counters;
        let named = [
            ("packets", &counters.packets),
            ("retransmitted", &counters.retransmitted),
            ("marked", &counters.marked),
            ("cnps", &counters.cnps),
            ("pauses", &counters.pauses),
            ("dropped", &counters.dropped),
            ("lost", &counters.lost),
        ];
        let series = |(name, bins): (&'static str, &Bins<u64>)| {
            let points = (0..self.samples.len()).map(|index| (self.grid.middle_us(index), bins.at(index))).collect();
            CounterSeries { name, points }
        };
        named.into_iter().filter(|(_, bins)| bins.len() > 0).map(series).collect()
    }

    /// Jain's index over time of the first flows: us, index. Only bins in which at least two of them ran from end to end.
    pub fn fairness(&self) -> Vec<(f64, f64)> {
        let width = self.grid.width_ns();
        let at = |index: usize| {
            let (begin, end) = (index as u64 * width, (index as u64 + 1) * width);
            let running = self.rates.values().filter(|rate| rate.start.as_ns() <= begin && rate.end.as_ns() >= end);
            let shares: Vec<f64> = running.map(|rate| rate.bytes.at(index)).collect();
            let index_of_jain = if shares.len() >= 2 { jain(&shares) } else { None };
            index_of_jain.map(|fairness| (self.grid.middle_us(index), fairness))
        };
        (0..self.goodput.len()).filter_map(at).collect()
    }
}
