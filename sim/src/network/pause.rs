//! A transmitter that obeys pauses (IEEE 802.1Qbb), priority by priority.

use engine::Time;
use wire::PfcRepr;

/// Priorities of a port.
pub const PRIORITY_COUNT: usize = 8;
/// Bit times in a quantum of pause.
const QUANTUM_BITS: u64 = 512;

/// Until when each priority of a transmitter is paused.
#[derive(Clone, Debug)]
pub struct PauseState {
    rate_mbps: u32,
    until: [Time; PRIORITY_COUNT],
    /// When the pause that runs has begun, of priorities that have one.
    since: [Option<Time>; PRIORITY_COUNT],
    /// Time spent paused, pauses that have ended, ns.
    paused_ns: u64,
}

/// How long a pause lasts, ns, on a port of this rate.
pub fn pause_ns(quanta: u16, rate_mbps: u32) -> u64 {
    u64::from(quanta) * QUANTUM_BITS * 1_000 / u64::from(rate_mbps)
}

impl PauseState {
    /// Nothing is paused.
    pub fn new(rate_mbps: u32) -> Self {
        Self { rate_mbps, until: [Time::ZERO; PRIORITY_COUNT], since: [None; PRIORITY_COUNT], paused_ns: 0 }
    }

    /// A pause frame came.
    pub fn apply(&mut self, now: Time, pfc: PfcRepr) {
        let quanta = match pfc {
            PfcRepr::Priority(quanta) => quanta,
            PfcRepr::Link(quanta) => [Some(quanta); PRIORITY_COUNT],
        };
        for (priority, quanta) in quanta.into_iter().enumerate() {
            let Some(quanta) = quanta else { continue };
            self.settle(now, priority);
            self.until[priority] = now.add_ns(pause_ns(quanta, self.rate_mbps));
            if quanta > 0 {
                self.since[priority].get_or_insert(now);
            } else {
                self.end(priority, now);
            }
        }
    }

    /// True if frames of a priority must wait.
    pub fn is_paused(&self, now: Time, priority: usize) -> bool {
        self.until[priority] > now
    }

    /// When a priority may send again.
    pub fn until(&self, priority: usize) -> Time {
        self.until[priority]
    }

    /// How long priorities have been paused, all of them together, ns.
    pub fn paused_ns(&self, now: Time) -> u64 {
        let running =
            self.since.iter().zip(&self.until).filter_map(|(since, &until)| Some(until.min(now).ns_since((*since)?)));
        self.paused_ns + running.sum::<u64>()
    }

    /// Ends a pause that has run out before `now`.
    fn settle(&mut self, now: Time, priority: usize) {
        if self.until[priority] <= now {
            self.end(priority, self.until[priority]);
        }
    }

    fn end(&mut self, priority: usize, at: Time) {
        if let Some(since) = self.since[priority].take() {
            self.paused_ns += at.ns_since(since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(priority: usize, quanta: u16) -> PfcRepr {
        let mut all = [None; PRIORITY_COUNT];
        all[priority] = Some(quanta);
        PfcRepr::Priority(all)
    }

    #[test]
    fn a_pause_runs_out_after_its_quanta() {
        let mut state = PauseState::new(100_000);
        state.apply(Time::from_ns(1_000), pause(3, 1_000));
        // 1,000 quanta of 512 bits at 100 Gbit/s.
        let end = Time::from_ns(1_000 + 5_120);
        assert!(state.is_paused(Time::from_ns(6_119), 3) && !state.is_paused(end, 3));
        assert!(!state.is_paused(Time::from_ns(2_000), 2), "other priorities go on");
        assert_eq!((state.paused_ns(Time::from_ns(2_000)), state.paused_ns(Time::from_ns(9_000))), (1_000, 5_120));
    }

    #[test]
    fn zero_quanta_resume_at_once_and_a_refresh_is_no_second_pause() {
        let mut state = PauseState::new(10_000);
        state.apply(Time::from_ns(0), pause(0, u16::MAX));
        state.apply(Time::from_ns(500), pause(0, u16::MAX));
        state.apply(Time::from_ns(900), pause(0, 0));
        assert!(!state.is_paused(Time::from_ns(900), 0));
        assert_eq!(state.paused_ns(Time::from_ns(5_000)), 900);
    }

    #[test]
    fn a_link_pause_holds_every_priority() {
        let mut state = PauseState::new(40_000);
        state.apply(Time::ZERO, PfcRepr::Link(10));
        assert!((0..PRIORITY_COUNT).all(|priority| state.is_paused(Time::from_ns(127), priority)));
        assert!((0..PRIORITY_COUNT).all(|priority| !state.is_paused(Time::from_ns(128), priority)));
    }
}
