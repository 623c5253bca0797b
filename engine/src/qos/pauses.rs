//! Pauses that the peer asks for: which priorities may not send, and until when. IEEE 802.1Qbb.
//!
//! A watchdog looks at pauses that do not end. Pauses belong together if no frame of the priority was sent between them and no more
//! time passed than the longest pause can last; longer than the limit, they are a storm.

use shm::qos::{PRIORITY_COUNT, QosNumbers, QosSettings};

use super::Duty;
use crate::counters::PriorityCounters;
use crate::time::Time;

/// Bit times in a quantum (IEEE 802.3 31B.2).
const QUANTUM_BITS: u64 = 512;

/// Link speed, Mbit/s, where the port does not know its own.
const SPEED_MBPS_DEFAULT: u32 = 10_000;

/// How long a pause of so many quanta lasts at a link speed in Mbit/s (0 = unknown), ns; rounded up.
pub(super) fn pause_ns(quanta: u16, speed_mbps: u32) -> u64 {
    let speed = if speed_mbps == 0 { SPEED_MBPS_DEFAULT } else { speed_mbps };
    (u64::from(quanta) * QUANTUM_BITS * 1_000).div_ceil(u64::from(speed))
}

/// What is known of one priority.
#[derive(Clone, Copy, Debug)]
struct Pause {
    /// When it ends, unless it is renewed; of meaning while it is paused.
    until: Time,
    /// When this pause began.
    began: Time,
    /// When the first of those began that belong together.
    row_began: Time,
    /// When the last one ended.
    ended: Time,
    /// Frames of the priority sent until then.
    sent_then: u64,
    /// A storm of this row was reported.
    is_reported: bool,
    /// Pauses are ignored until then.
    ignored_until: Time,
}

impl Pause {
    const NONE: Self = Self {
        until: Time::ZERO,
        began: Time::ZERO,
        row_began: Time::ZERO,
        ended: Time::ZERO,
        sent_then: u64::MAX,
        is_reported: false,
        ignored_until: Time::ZERO,
    };
}

/// The pauses of a port's priorities.
#[derive(Clone, Debug)]
pub(crate) struct Pauses {
    /// Priorities that are paused now, as bits.
    paused: u8,
    /// Priorities that obey pauses, as bits.
    obeying: u8,
    priorities: [Pause; PRIORITY_COUNT],
    watchdog_ns: u64,
    ignore_ns: u64,
}

impl Pauses {
    pub(super) fn new(settings: &QosSettings) -> Self {
        let mut new =
            Self { paused: 0, obeying: 0, priorities: [Pause::NONE; PRIORITY_COUNT], watchdog_ns: 0, ignore_ns: 0 };
        new.set_limits(settings);
        new
    }

    fn set_limits(&mut self, settings: &QosSettings) {
        let QosNumbers { pfc_watchdog_ms, pfc_watchdog_ignore_ms, .. } = settings.numbers;
        self.obeying = settings.pfc_mask();
        self.watchdog_ns = u64::from(pfc_watchdog_ms) * 1_000_000;
        self.ignore_ns = u64::from(pfc_watchdog_ignore_ms) * 1_000_000;
    }

    /// Other settings: priorities without flow control go on at once.
    pub(super) fn set(
        &mut self,
        now: Time,
        settings: &QosSettings,
        counters: &mut [PriorityCounters; PRIORITY_COUNT],
        duty: Duty,
    ) {
        self.set_limits(settings);
        for priority in bits(self.paused & !self.obeying) {
            self.end(priority, now, &mut counters[priority], duty);
        }
    }

    /// Priorities that are paused, as bits.
    #[inline]
    pub(super) fn paused(&self) -> u8 {
        self.paused
    }

    /// Priorities whose pauses are ignored now, as bits.
    pub(super) fn ignored(&self, now: Time) -> u8 {
        let ignored = (0..PRIORITY_COUNT).filter(|&priority| now < self.priorities[priority].ignored_until);
        ignored.fold(0, |mask, priority| mask | 1 << priority)
    }

    /// The peer's frame: how many quanta for each priority that it names.
    pub(super) fn handle(
        &mut self,
        now: Time,
        quanta: &[Option<u16>; PRIORITY_COUNT],
        speed_mbps: u32,
        counters: &mut [PriorityCounters; PRIORITY_COUNT],
        duty: Duty,
    ) {
        for (priority, quanta) in quanta.iter().enumerate() {
            let Some(quanta) = *quanta else { continue };
            let counted = &mut counters[priority];
            counted.rx_pause += duty.one();
            let pause = &mut self.priorities[priority];
            if self.obeying & 1 << priority == 0 || now < pause.ignored_until {
                counted.rx_pause_ignored += duty.one();
            } else if quanta == 0 {
                self.end(priority, now, counted, duty);
            } else {
                pause.until = now.add_ns(pause_ns(quanta, speed_mbps));
                if self.paused & 1 << priority == 0 {
                    self.paused |= 1 << priority;
                    counted.rx_pause_transition += duty.one();
                    pause.began = now;
                    let goes_on = pause.sent_then == counted.tx_packets
                        && now.ns_since(pause.ended) <= pause_ns(u16::MAX, speed_mbps);
                    if !goes_on {
                        (pause.row_began, pause.is_reported) = (now, false);
                    }
                }
            }
        }
    }

    /// The priority may send again, from `at` on.
    fn end(&mut self, priority: usize, at: Time, counted: &mut PriorityCounters, duty: Duty) {
        if self.paused & 1 << priority != 0 {
            self.paused &= !(1 << priority);
            let pause = &mut self.priorities[priority];
            counted.rx_pause_duration_ns += duty.one() * at.ns_since(pause.began);
            (pause.ended, pause.sent_then) = (at, counted.tx_packets);
        }
    }

    /// Ends the pauses whose time has run out.
    pub(super) fn expire(&mut self, now: Time, counters: &mut [PriorityCounters; PRIORITY_COUNT], duty: Duty) {
        for priority in bits(self.paused) {
            let until = self.priorities[priority].until;
            if until <= now {
                self.end(priority, until, &mut counters[priority], duty);
            }
        }
    }

    /// A priority whose pauses have become a storm, and since when it is paused; by setting it goes on now. Call until `None`.
    pub(super) fn poll_storm(
        &mut self,
        now: Time,
        counters: &mut [PriorityCounters; PRIORITY_COUNT],
        duty: Duty,
    ) -> Option<(usize, Time)> {
        let priority = bits(self.paused).find(|&priority| self.storm_at(priority) <= now)?;
        self.priorities[priority].is_reported = true;
        let since = self.priorities[priority].row_began;
        counters[priority].pause_storm += duty.one();
        if self.ignore_ns > 0 {
            self.priorities[priority].ignored_until = now.add_ns(self.ignore_ns);
            self.end(priority, now, &mut counters[priority], duty);
        }
        Some((priority, since))
    }

    /// When the pauses of a priority would be a storm.
    fn storm_at(&self, priority: usize) -> Time {
        let pause = &self.priorities[priority];
        if self.watchdog_ns == 0 || pause.is_reported { Time::NEVER } else { pause.row_began.add_ns(self.watchdog_ns) }
    }

    /// When a pause ends, or has lasted too long.
    pub(super) fn next_deadline(&self) -> Time {
        let deadline = |priority: usize| self.priorities[priority].until.min(self.storm_at(priority));
        bits(self.paused).map(deadline).min().unwrap_or(Time::NEVER)
    }
}

/// The numbers of the bits that are set.
pub(super) fn bits(mask: u8) -> impl Iterator<Item = usize> {
    (0..PRIORITY_COUNT).filter(move |bit| mask >> bit & 1 == 1)
}
