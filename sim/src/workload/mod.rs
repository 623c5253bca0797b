//! Workloads: which flows begin when, from settings and a seed. What the simulated network does decides only when a flow that
//! waits for another begins.
//!
//! A [`Workload`] is a [`FlowSource`]: the network takes flows that are due, and tells the end of each, after which the next may
//! be due earlier than before.
//!
//! * [`settings`]: the `[[workload]]` tables of a scenario.
//! * [`sizes`]: distributions of sizes.

mod arrivals;
mod checks;
mod ring;
mod rounds;
pub mod settings;
pub mod sizes;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use engine::Time;

use crate::agenda::Agenda;
use crate::flow::{Flow, FlowOp, FlowSource};
use arrivals::{ClosedLoop, Poisson};
use ring::RingAllReduce;
use rounds::Rounds;
pub use settings::WorkloadSettings;
pub use sizes::{SizeDistribution, Sizes, SizesError};

/// Most `[[workload]]` tables of a scenario.
pub const MAX_WORKLOADS: usize = 64;
/// Most flows that one workload may begin.
pub const MAX_FLOWS: u64 = 10_000_000;

/// What of the scenario a workload has to know.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// Hosts are 0 up to this.
    pub host_count: u16,
    /// Rate of a host's link: what a load is a part of.
    pub host_bits_per_s: u64,
    /// Folder of the scenario: relative files are there.
    pub directory: &'a Path,
}

/// Why a workload cannot be run. `workload` is its number in the scenario, from 0.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("workload {workload} ({kind}): {what}")]
pub struct WorkloadError {
    /// Its number.
    pub workload: usize,
    /// Its kind.
    pub kind: &'static str,
    /// What is wrong.
    pub what: Refusal,
}

/// What is wrong with a workload's settings.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Refusal {
    /// A number out of its range.
    #[error("`{key}` is {value}; it must be {min} to {max}")]
    Range {
        /// Which key.
        key: &'static str,
        /// Its value.
        value: u64,
        /// The smallest allowed.
        min: u64,
        /// The largest allowed.
        max: u64,
    },
    /// A load out of its range.
    #[error("`load_percent` is {0}; it must be above 0, up to 200")]
    Load(f64),
    /// A flow from a host to itself.
    #[error("host {0} would send to itself")]
    ToItself(u16),
    /// A host that is named twice.
    #[error("host {0} is named twice in `{1}`")]
    Twice(u16, &'static str),
    /// Nothing says when it ends.
    #[error("one of `count` and `duration_us` must say when it ends")]
    NoEnd,
    /// Two keys that exclude each other.
    #[error("`{0}` and `{1}` exclude each other")]
    Both(&'static str, &'static str),
    /// A key without a meaning for this kind.
    #[error("`{0}` has no meaning here")]
    Meaningless(&'static str),
    /// More flows than can be told apart.
    #[error("{0} flows; there may be {MAX_FLOWS} at most")]
    TooMany(u64),
    /// No such distribution.
    #[error("`sizes`: {0}")]
    Sizes(#[from] SizesError),
}

/// A flow that will begin: its pattern decided all but its number.
#[derive(Clone, Copy, Debug)]
struct Draft {
    workload: usize,
    source: u16,
    destination: u16,
    bytes: u64,
    /// What its pattern wants to know again when it has ended.
    tag: u32,
}

/// Where a pattern puts down the flows that will begin.
struct Out<'a> {
    agenda: &'a mut Agenda<Draft>,
    workload: usize,
}

impl Out<'_> {
    fn push(&mut self, at: Time, (source, destination): (u16, u16), bytes: u64, tag: u32) {
        self.agenda.push(at, Draft { workload: self.workload, source, destination, bytes, tag });
    }
}

/// Decides what follows on the begin and the end of flows.
#[derive(Debug)]
enum Pattern {
    Rounds(Rounds),
    Ring(RingAllReduce),
    Poisson(Poisson),
    ClosedLoop(ClosedLoop),
}

impl Pattern {
    fn begin(&mut self, out: &mut Out<'_>) {
        match self {
            Self::Rounds(it) => it.begin(out),
            Self::Ring(it) => it.begin(out),
            Self::Poisson(it) => it.begin(out),
            Self::ClosedLoop(it) => it.begin(out),
        }
    }

    /// A flow of `tag`, which was put down for `at`, begins.
    fn started(&mut self, tag: u32, at: Time, out: &mut Out<'_>) {
        match self {
            Self::Rounds(it) => it.started(tag, at, out),
            Self::Poisson(it) => it.started(at, out),
            Self::Ring(_) | Self::ClosedLoop(_) => {}
        }
    }

    fn finished(&mut self, tag: u32, now: Time, out: &mut Out<'_>) {
        match self {
            Self::Rounds(it) => it.finished(now, out),
            Self::Ring(it) => it.finished(tag, now, out),
            Self::ClosedLoop(it) => it.finished(tag, now, out),
            Self::Poisson(_) => {}
        }
    }
}

/// All flows of a scenario, as they become due.
#[derive(Debug)]
pub struct Workload {
    patterns: Vec<Pattern>,
    ops: Vec<FlowOp>,
    agenda: Agenda<Draft>,
    /// Workload and tag of the flows that have begun and not ended.
    running: BTreeMap<u32, (usize, u32)>,
    next_id: u32,
}

impl Workload {
    /// The workload of a scenario's `[[workload]]` tables.
    ///
    /// # Errors
    /// Settings that make no sense in these surroundings, with the key, the value and the legal range.
    pub fn new(all: &[WorkloadSettings], surroundings: &Surroundings<'_>, seed: u64) -> Result<Self, WorkloadError> {
        let mut workload = Self {
            patterns: Vec::new(),
            ops: all.iter().map(WorkloadSettings::op).collect(),
            agenda: Agenda::default(),
            running: BTreeMap::new(),
            next_id: 0,
        };
        for (number, settings) in all.iter().enumerate() {
            let mut pattern = checks::pattern(number, settings, surroundings, seed).map_err(|what| WorkloadError {
                workload: number,
                kind: settings.kind(),
                what,
            })?;
            pattern.begin(&mut Out { agenda: &mut workload.agenda, workload: number });
            workload.patterns.push(pattern);
        }
        Ok(workload)
    }

    /// Flows that have begun and not ended.
    pub fn running_count(&self) -> usize {
        self.running.len()
    }
}

impl FlowSource for Workload {
    fn next_start(&self) -> Option<Time> {
        self.agenda.next_at()
    }

    fn take(&mut self, now: Time) -> Option<Flow> {
        let start = self.agenda.next_at().filter(|&at| at <= now)?;
        let Draft { workload, source, destination, bytes, tag } = self.agenda.pop()?;
        self.patterns[workload].started(tag, start, &mut Out { agenda: &mut self.agenda, workload });
        let id = self.next_id;
        self.next_id += 1;
        self.running.insert(id, (workload, tag));
        Some(Flow { id, src: source, dst: destination, bytes, op: self.ops[workload], start })
    }

    /// What waited for this flow becomes due, whether it ended well or not. Does nothing for one that is not running.
    fn finished(&mut self, id: u32, now: Time) {
        let Some((workload, tag)) = self.running.remove(&id) else { return };
        // Drafts may only be put down from the agenda's present on.
        let now = now.max(self.agenda.now());
        self.patterns[workload].finished(tag, now, &mut Out { agenda: &mut self.agenda, workload });
    }

    fn is_exhausted(&self) -> bool {
        self.running.is_empty() && self.agenda.next_at().is_none()
    }
}
