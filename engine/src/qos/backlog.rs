//! Pauses that we ask for: when what has come in waits too long to be taken.
//!
//! The engine handles a frame as soon as it takes it, so what waits lies in front of it: in the device's receive queue, and in what
//! other lcores have put down. Whoever owns these says how many frames they are; of which priorities they are nobody knows before
//! they are taken. They are taken to be of the same mix as the frames that came since the owner last spoke.
//!
//! Frames that came before their turn are taken and wait all the same, until what is missing comes. They count for as long as
//! others wait in front of the engine. When none do any more, what is missing is not among them: it must be let come.

use shm::qos::{PRIORITY_COUNT, QosNumbers, QosSettings};

use super::pauses::{bits, pause_ns};
use crate::counters::PriorityCounters;
use crate::time::Time;

/// Frames that wait for a shard to take them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backlog {
    /// How many there are.
    pub frames: u32,
    /// How many there can be.
    pub capacity: u32,
}

/// Frames that came before their turn, and are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Early {
    /// How many there are of each priority.
    pub(crate) held: [u32; PRIORITY_COUNT],
    /// How many more there can be.
    pub(crate) room: usize,
    /// How many there can be in all.
    pub(crate) capacity: usize,
}

/// The pauses that we ask the peer for.
#[derive(Clone, Debug)]
pub(crate) struct Pausing {
    /// Priorities with flow control of ours, as bits.
    governed: u8,
    /// Priorities that the peer is to pause, as bits.
    wanted: u8,
    /// Priorities of which the peer is to be told now, as bits.
    due: u8,
    /// When it is to be told again.
    renew_at: Time,
    /// Frames received when the owner last spoke.
    seen: [u64; PRIORITY_COUNT],
    numbers: QosNumbers,
    /// Other shards may still want a pause that this one does not need any more.
    is_alone: bool,
}

impl Pausing {
    pub(super) fn new(settings: &QosSettings, is_alone: bool) -> Self {
        let numbers = settings.numbers;
        let governed = settings.pfc_mask();
        Self { governed, wanted: 0, due: 0, renew_at: Time::NEVER, seen: [0; PRIORITY_COUNT], numbers, is_alone }
    }

    /// Other settings. `by_device`: the device asks for pauses, not we.
    pub(super) fn set(&mut self, settings: &QosSettings, by_device: bool) {
        self.numbers = settings.numbers;
        self.governed = if by_device { 0 } else { settings.pfc_mask() };
        let released = self.wanted & !self.governed;
        self.wanted &= self.governed;
        self.due |= released;
    }

    /// Whether the owner's word on its backlog is of use.
    #[inline]
    pub(super) fn is_governed(&self) -> bool {
        self.governed != 0
    }

    /// Priorities that the peer is to pause, as bits.
    #[inline]
    pub(super) fn wanted(&self) -> u8 {
        self.wanted
    }

    /// True if nothing is to be said, now or later.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.wanted | self.due == 0
    }

    /// The owner's word.
    pub(super) fn handle(
        &mut self,
        backlog: Backlog,
        early: &Early,
        counters: &mut [PriorityCounters; PRIORITY_COUNT],
    ) {
        let mut mix = [0; PRIORITY_COUNT];
        for ((new, seen), counted) in mix.iter_mut().zip(&mut self.seen).zip(counters.iter()) {
            *new = counted.rx_packets - std::mem::replace(seen, counted.rx_packets);
        }
        let total = mix.iter().sum::<u64>().max(1);
        let headroom = self.numbers.pfc_headroom_frames;
        // A queue that is no longer than the headroom never has it.
        let is_tight = headroom < backlog.capacity && backlog.frames.saturating_add(headroom) > backlog.capacity;
        // Without room the next that are early are dropped, and the peer sends them again.
        let is_pool_tight = early.room < headroom as usize && (headroom as usize) < early.capacity;
        for priority in bits(self.governed) {
            let held = if backlog.frames > 0 { early.held[priority] } else { 0 };
            let waiting = u64::from(backlog.frames) * mix[priority] / total + u64::from(held);
            let is_tight = is_tight || (is_pool_tight && held > 0);
            let bit = 1 << priority;
            if self.wanted & bit == 0 {
                let is_full = waiting >= u64::from(self.numbers.pfc_xoff_frames);
                if is_full || (is_tight && waiting > 0) {
                    self.wanted |= bit;
                    self.due |= bit;
                    counters[priority].tx_pause_transition += 1;
                }
            } else if waiting <= u64::from(self.numbers.pfc_xon_frames) && !is_tight {
                self.wanted &= !bit;
                // With other shards the pause runs out by itself: only they know whether they need it.
                self.due = if self.is_alone { self.due | bit } else { self.due & !bit };
            }
        }
    }

    /// The quanta of the frame that is to be sent now, if one is.
    pub(super) fn frame(&self, now: Time) -> Option<[Option<u16>; PRIORITY_COUNT]> {
        if self.due == 0 && self.renew_at > now {
            return None;
        }
        // In range: it was checked.
        let longest = u16::try_from(self.numbers.pfc_pause_quanta).unwrap_or(u16::MAX);
        let mut quanta = [None; PRIORITY_COUNT];
        // All that are to pause are named: they are renewed together.
        for priority in bits(self.due | self.wanted) {
            quanta[priority] = Some(if self.wanted & 1 << priority == 0 { 0 } else { longest });
        }
        Some(quanta)
    }

    /// That frame was sent.
    pub(super) fn sent(
        &mut self,
        now: Time,
        quanta: &[Option<u16>; PRIORITY_COUNT],
        speed_mbps: u32,
        counters: &mut [PriorityCounters; PRIORITY_COUNT],
    ) {
        for (counted, _) in counters.iter_mut().zip(quanta).filter(|(_, quanta)| quanta.is_some()) {
            counted.tx_pause += 1;
        }
        self.due = 0;
        self.renew_at = if self.wanted == 0 {
            Time::NEVER
        } else {
            let longest = u16::try_from(self.numbers.pfc_pause_quanta).unwrap_or(u16::MAX);
            now.add_ns(pause_ns(longest, speed_mbps) / 2)
        };
    }

    /// When the peer is to be told again.
    pub(super) fn next_deadline(&self) -> Time {
        match (self.due, self.wanted) {
            (0, 0) => Time::NEVER,
            (0, _) => self.renew_at,
            _ => Time::ZERO,
        }
    }
}
