//! Statistics: what a network's observer makes of a run. Memory is bounded, however many flows there are and however long a
//! run takes.
//!
//! * [`ideal`]: the time of a flow on an empty network.
//! * Jain's index of fairness: [`jain`].
//! * [`Summary`]: a run in numbers.

mod bins;
mod fairness;
pub mod ideal;
mod series;
mod summary;
#[cfg(test)]
mod tests;
mod times;

use std::collections::BTreeMap;

use engine::Time;

use crate::flow::{Flow, NetworkTotals, Observer, QueueSample};
use bins::{Bins, Depths, Grid};
pub use fairness::jain;
use ideal::Path;
pub use series::{CounterSeries, QueueSeries, RateSeries};
pub use summary::{FlowCounts, QueueSummary, Summary};
use times::Completions;
pub use times::{Percentiles, SizeClass};

/// Flows that are kept one by one, at most: the first of a run.
pub const MAX_FLOW_RECORDS: usize = 1_000_000;
/// Flows whose rates over time are kept, at most: the first of a run.
pub const MAX_RATE_FLOWS: usize = 64;
/// Queues whose depths over time are kept, at most: the first that are not empty.
pub const MAX_QUEUES: usize = 4096;

/// How a flow ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowEnd {
    /// All bytes were completed.
    Complete,
    /// Its connection broke.
    Broken,
    /// It was not done when the run was over.
    Unfinished,
}

/// A flow, and what became of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlowRecord {
    /// The flow.
    pub flow: Flow,
    /// Time it would have taken on an empty network, ns.
    pub ideal_ns: f64,
    /// How it ended.
    pub end: FlowEnd,
    /// When; the end of the run if it did not.
    pub ended_at: Time,
    /// Bytes that were completed.
    pub bytes_done: u64,
}

impl FlowRecord {
    /// From its start to its end, ns.
    pub fn completion_ns(&self) -> u64 {
        self.ended_at.ns_since(self.flow.start)
    }

    /// Its time as a multiple of that on an empty network.
    pub fn slowdown(&self) -> f64 {
        self.completion_ns() as f64 / self.ideal_ns
    }

    /// Bytes completed by the time it took, bits a second; 0 if it took none.
    pub fn goodput_bits_per_s(&self) -> f64 {
        match self.completion_ns() {
            0 => 0.0,
            ns => self.bytes_done as f64 * 8e9 / ns as f64,
        }
    }
}

/// A flow that runs.
#[derive(Clone, Copy, Debug)]
struct Running {
    flow: Flow,
    ideal_ns: f64,
    bytes_done: u64,
    /// When it last progressed.
    since: Time,
}

/// Which egress queue: switch, port, priority.
type QueueKey = (u16, u16, u8);

/// Counts of one bin: what [`NetworkTotals`] grew by.
#[derive(Clone, Debug, Default)]
struct CounterBins {
    packets: Bins<u64>,
    retransmitted: Bins<u64>,
    marked: Bins<u64>,
    cnps: Bins<u64>,
    pauses: Bins<u64>,
    dropped: Bins<u64>,
    lost: Bins<u64>,
}

impl CounterBins {
    fn each(&mut self) -> [&mut Bins<u64>; 7] {
        let Self { packets, retransmitted, marked, cnps, pauses, dropped, lost } = self;
        [packets, retransmitted, marked, cnps, pauses, dropped, lost]
    }

    fn values(totals: &NetworkTotals) -> [u64; 7] {
        let NetworkTotals { packets, retransmitted, marked, cnps, pauses, dropped, lost, .. } = *totals;
        [packets, retransmitted, marked, cnps, pauses, dropped, lost]
    }
}

/// Writes down what a network tells.
pub struct Recorder {
    path: Box<dyn Fn(u16, u16) -> Path>,
    grid: Grid,
    running: BTreeMap<u32, Running>,
    records: Vec<FlowRecord>,
    counts: FlowCounts,
    completions: Completions,
    bytes_done: u64,
    /// From the first start to the last progress or end of a flow.
    active: Option<(Time, Time)>,
    goodput: Bins<f64>,
    /// The first flows, and when each ran.
    rates: BTreeMap<u32, FlowRate>,
    queues: BTreeMap<QueueKey, Bins<Depths>>,
    /// Queues beyond the limit.
    queues_left_out: bool,
    samples: Bins<u64>,
    counters: CounterBins,
    totals: NetworkTotals,
    sampled_at: Time,
}

#[derive(Clone, Debug)]
struct FlowRate {
    bytes: Bins<f64>,
    start: Time,
    /// [`Time::NEVER`] while it runs.
    end: Time,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder with values over time every `bin_ns`, or as many times that as makes a long run fit. `path` is the way between
    /// two hosts, which slowdowns are measured against.
    pub fn new(bin_ns: u64, path: impl Fn(u16, u16) -> Path + 'static) -> Self {
        Self {
            path: Box::new(path),
            grid: Grid::new(bin_ns),
            running: BTreeMap::new(),
            records: Vec::new(),
            counts: FlowCounts::default(),
            completions: Completions::new(),
            bytes_done: 0,
            active: None,
            goodput: Bins::default(),
            rates: BTreeMap::new(),
            queues: BTreeMap::new(),
            queues_left_out: false,
            samples: Bins::default(),
            counters: CounterBins::default(),
            totals: NetworkTotals::default(),
            sampled_at: Time::ZERO,
        }
    }

    /// Makes the bins wide enough for `now`.
    fn reach(&mut self, now: Time) {
        while !self.grid.fits(now) {
            self.goodput.merge_pairs();
            self.samples.merge_pairs();
            self.counters.each().into_iter().for_each(Bins::merge_pairs);
            self.rates.values_mut().for_each(|rate| rate.bytes.merge_pairs());
            self.queues.values_mut().for_each(Bins::merge_pairs);
            self.grid.double();
        }
    }

    fn note_activity(&mut self, now: Time) {
        let (_, last) = self.active.get_or_insert((now, now));
        *last = now;
    }

    fn keep(&mut self, record: FlowRecord) {
        if self.records.len() < MAX_FLOW_RECORDS {
            self.records.push(record);
        }
    }

    /// The run is over: flows that are not done are written down as such.
    pub fn close(&mut self, now: Time) {
        self.reach(now);
        for (_, running) in std::mem::take(&mut self.running) {
            self.counts.unfinished += 1;
            let Running { flow, ideal_ns, bytes_done, .. } = running;
            self.keep(FlowRecord { flow, ideal_ns, end: FlowEnd::Unfinished, ended_at: now, bytes_done });
        }
    }

    /// The first flows of the run, in the order of their ends.
    pub fn flows(&self) -> &[FlowRecord] {
        &self.records
    }

    /// Completion times: us, and the part of the completed flows that took no longer.
    pub fn completion_distribution(&self) -> Vec<(f64, f64)> {
        self.completions.distribution()
    }
}

impl Observer for Recorder {
    fn flow_started(&mut self, now: Time, flow: &Flow) {
        self.reach(now);
        self.note_activity(now);
        self.counts.started += 1;
        let ideal_ns = (self.path)(flow.src, flow.dst).completion_ns(flow.bytes);
        self.running.insert(flow.id, Running { flow: *flow, ideal_ns, bytes_done: 0, since: now });
        if self.rates.len() < MAX_RATE_FLOWS {
            self.rates.insert(flow.id, FlowRate { bytes: Bins::default(), start: now, end: Time::NEVER });
        }
    }

    /// Bytes count as if they had come evenly since the flow's last progress.
    fn flow_progressed(&mut self, now: Time, id: u32, bytes: u64) {
        self.reach(now);
        let Some(running) = self.running.get_mut(&id) else { return };
        let since = std::mem::replace(&mut running.since, now);
        running.bytes_done += bytes;
        self.note_activity(now);
        self.bytes_done += bytes;
        self.goodput.spread(self.grid, since, now, bytes as f64);
        if let Some(rate) = self.rates.get_mut(&id) {
            rate.bytes.spread(self.grid, since, now, bytes as f64);
        }
    }

    fn flow_finished(&mut self, now: Time, flow: &Flow, is_complete: bool) {
        self.reach(now);
        let Some(running) = self.running.remove(&flow.id) else { return };
        self.note_activity(now);
        let Running { flow, ideal_ns, bytes_done, .. } = running;
        let end = if is_complete { FlowEnd::Complete } else { FlowEnd::Broken };
        let record = FlowRecord { flow, ideal_ns, end, ended_at: now, bytes_done };
        if is_complete {
            self.counts.complete += 1;
            self.completions.add(flow.bytes, record.completion_ns(), record.slowdown());
        } else {
            self.counts.broken += 1;
        }
        self.keep(record);
        if let Some(rate) = self.rates.get_mut(&flow.id) {
            rate.end = now;
        }
    }

    fn sampled(&mut self, now: Time, queues: &[QueueSample], totals: &NetworkTotals) {
        self.reach(now);
        self.samples.add(self.grid, now, 1);
        for queue in queues {
            let key = (queue.switch, queue.port, queue.priority);
            if self.queues.len() >= MAX_QUEUES && !self.queues.contains_key(&key) {
                self.queues_left_out = true;
                continue;
            }
            let depths = Depths { max_bytes: queue.bytes, sum_bytes: queue.bytes };
            self.queues.entry(key).or_default().add(self.grid, now, depths);
        }
        // What was counted since the last sample came before this one.
        let before = CounterBins::values(&self.totals);
        for ((bins, value), before) in self.counters.each().into_iter().zip(CounterBins::values(totals)).zip(before) {
            if value > before {
                bins.add(self.grid, self.sampled_at, value - before);
            }
        }
        self.totals = *totals;
        self.sampled_at = now;
    }
}
