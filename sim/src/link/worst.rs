//! The faults that a swarm draws for a link.

use rand::Rng;

use super::{Faults, Flaps, LinkSettings};
use crate::random::Stream;
use crate::shrink::FaultKind;

/// What a swarm draws at worst: chances in frames of a million, times in ns. Each kind of fault is off in half of the runs, and
/// else as likely to be rare as to be frequent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Worst {
    pub(crate) loss_ppm: u32,
    pub(crate) burst_start_ppm: u32,
    pub(crate) burst_frames: u32,
    pub(crate) duplicate_ppm: u32,
    pub(crate) reorder_ppm: u32,
    pub(crate) corrupt_ppm: u32,
    pub(crate) truncate_ppm: u32,
    pub(crate) spike_ppm: u32,
    pub(crate) spike_ns: u64,
    /// At most so long up and down, in one run of `flap_one_in`.
    pub(crate) flaps: Flaps,
    pub(crate) flap_one_in: u32,
}

/// A chance of at most `most_ppm` and not too little to be met, and of nothing in every other case.
pub(crate) fn maybe(s: &mut Stream, most_ppm: u32) -> u32 {
    if s.random() { 0 } else { (most_ppm >> s.random_range(0..8)).max(1) }
}

impl Worst {
    /// Faults of a link.
    pub(crate) fn draw(&self, s: &mut Stream, link: &LinkSettings) -> Faults {
        let flaps = Flaps {
            up_ns: s.random_range(1_000_000..=self.flaps.up_ns),
            down_ns: s.random_range(10_000..=self.flaps.down_ns),
        };
        Faults {
            loss_ppm: maybe(s, self.loss_ppm),
            burst_start_ppm: maybe(s, self.burst_start_ppm),
            burst_frames: s.random_range(2..=self.burst_frames),
            duplicate_ppm: maybe(s, self.duplicate_ppm),
            reorder_ppm: maybe(s, self.reorder_ppm),
            reorder_ns: s.random_range(1..=20 * link.delay_ns),
            corrupt_ppm: maybe(s, self.corrupt_ppm),
            truncate_ppm: maybe(s, self.truncate_ppm),
            spike_ppm: maybe(s, self.spike_ppm),
            spike_ns: s.random_range(100_000..=self.spike_ns),
            flaps: s.random_ratio(1, self.flap_one_in).then_some(flaps),
            ..Faults::NONE
        }
    }
}

impl Faults {
    /// How likely faults of a kind are, in frames of a million; `None` of kinds that are no link's, or not by chance.
    fn chance_of(&mut self, kind: FaultKind) -> Option<&mut u32> {
        Some(match kind {
            FaultKind::Loss => &mut self.loss_ppm,
            FaultKind::BurstLoss => &mut self.burst_start_ppm,
            FaultKind::Duplication => &mut self.duplicate_ppm,
            FaultKind::Reordering => &mut self.reorder_ppm,
            FaultKind::Corruption => &mut self.corrupt_ppm,
            FaultKind::Truncation => &mut self.truncate_ppm,
            FaultKind::Spikes => &mut self.spike_ppm,
            FaultKind::Marks => &mut self.mark_ppm,
            _ => return None,
        })
    }

    /// True if faults of a kind may happen.
    pub(crate) fn has(mut self, kind: FaultKind) -> bool {
        (kind == FaultKind::Flaps && self.flaps.is_some()) || self.chance_of(kind).is_some_and(|chance| *chance > 0)
    }

    /// Takes a kind out.
    pub(crate) fn remove(&mut self, kind: FaultKind) {
        if kind == FaultKind::Flaps {
            self.flaps = None;
        }
        if let Some(chance) = self.chance_of(kind) {
            *chance = 0;
        }
    }
}
