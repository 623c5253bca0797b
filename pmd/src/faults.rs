//! `FaultInjector`: a bad network, from a seed.

use std::collections::VecDeque;
use std::mem;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use thiserror::Error;

use crate::burst::Burst;
use crate::mbuf::Mbuf;
use crate::mempool::Mempool;

/// How often a frame meets each fault: probabilities from 0 to 1, drawn independently for each frame.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultRates {
    /// The frame is lost.
    pub drop: f64,
    /// The frame comes twice.
    pub duplicate: f64,
    /// The frame comes later than up to [`FaultInjector::REORDER_FRAMES_MAX`] frames behind it.
    pub reorder: f64,
    /// One bit of the frame is flipped.
    pub corrupt: f64,
}

/// A rate is no probability.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("fault rate {name} = {value}: 0 to 1 are possible")]
pub struct FaultRateError {
    /// Which rate.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
}

/// What a [`FaultInjector`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Frames lost.
    pub dropped: u64,
    /// Copies added.
    pub duplicated: u64,
    /// Frames held back.
    pub reordered: u64,
    /// Frames with a bit flipped.
    pub corrupted: u64,
}

/// Middleware that spoils a stream of frames: put it behind [`crate::RxQueue::burst`]. The same seed and the same frames in
/// the same bursts give the same faults.
///
/// For tests and for a daemon that is told to behave badly. *Cost*: a few random numbers for each frame; allocates.
#[derive(Debug)]
pub struct FaultInjector {
    rates: FaultRates,
    random: SmallRng,
    /// Where copies are allocated.
    pool: Mempool,
    /// Frames that are ready but did not fit into the last burst.
    ready: VecDeque<Mbuf>,
    /// Frames held back, each with the number of frames (or empty bursts) that still pass it.
    held: Vec<(u32, Mbuf)>,
    counts: FaultCounts,
}

impl FaultInjector {
    /// Most frames that overtake one that is reordered.
    pub const REORDER_FRAMES_MAX: u32 = 8;
    /// Frames that wait inside; above, none is copied or held back.
    const WAITING_MAX: usize = 512;

    /// Faults at `rates` from `seed`; copies come from `pool`.
    ///
    /// # Errors
    /// [`FaultRateError`] for a rate below 0, above 1, or not a number.
    pub fn new(rates: FaultRates, seed: u64, pool: Mempool) -> Result<Self, FaultRateError> {
        let FaultRates { drop, duplicate, reorder, corrupt } = rates;
        for (name, value) in [("drop", drop), ("duplicate", duplicate), ("reorder", reorder), ("corrupt", corrupt)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(FaultRateError { name, value });
            }
        }
        Ok(Self {
            rates,
            random: SmallRng::seed_from_u64(seed),
            pool,
            ready: VecDeque::new(),
            held: Vec::new(),
            counts: FaultCounts::default(),
        })
    }

    /// Replaces the frames of `burst` by what a bad network makes of them. Call it for empty bursts, too: they move held frames on.
    pub fn apply(&mut self, burst: &mut Burst) {
        if burst.is_empty() {
            self.pass_held();
        }
        for mbuf in burst.drain() {
            self.spoil(mbuf);
        }
        while burst.room() > 0 {
            let Some(mbuf) = self.ready.pop_front() else { break };
            burst.push(mbuf).expect("there is room");
        }
    }

    /// What has been done so far.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        self.counts
    }

    fn spoil(&mut self, mut mbuf: Mbuf) {
        if self.random.random_bool(self.rates.drop) {
            self.counts.dropped += 1;
            return;
        }
        if self.random.random_bool(self.rates.corrupt) && !mbuf.is_empty() {
            let bit = self.random.random_range(0..mbuf.len() * 8);
            mbuf.data_mut()[bit / 8] ^= 1 << (bit % 8);
            self.counts.corrupted += 1;
        }
        let (duplicate, reorder) =
            (self.random.random_bool(self.rates.duplicate), self.random.random_bool(self.rates.reorder));
        let waits = self.ready.len() + self.held.len();
        if duplicate
            && waits < Self::WAITING_MAX
            && let Some(copy) = self.copy(&mbuf)
        {
            self.counts.duplicated += 1;
            self.ready.push_back(copy);
        }
        if reorder && waits < Self::WAITING_MAX {
            self.counts.reordered += 1;
            let passes = self.random.random_range(1..=Self::REORDER_FRAMES_MAX);
            self.held.push((passes, mbuf));
            return;
        }
        self.ready.push_back(mbuf);
        self.pass_held();
    }

    fn copy(&self, original: &Mbuf) -> Option<Mbuf> {
        let mut copy = self.pool.alloc()?;
        copy.resize(original.len())?.copy_from_slice(original.data());
        Some(copy)
    }

    /// One frame has passed those held back: release the ones whose time has come.
    fn pass_held(&mut self) {
        for (passes, mbuf) in mem::take(&mut self.held) {
            match passes - 1 {
                0 => self.ready.push_back(mbuf),
                left => self.held.push((left, mbuf)),
            }
        }
    }
}
