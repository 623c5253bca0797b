//! Spaces a QP's frames out: no more than its rate over any time, and a burst.
//!
//! Each frame adds its bits to a debt, which time pays off at the rate; a frame may go when there is no debt. A QP that pays more
//! than it owes has credit, up to the burst: that makes up for a loop that comes late, and bounds what an idle QP sends at
//! once. Debt is counted in billionths of a bit, so that bits a second times nanoseconds come out exactly: no rate drifts.
//!
//! So what is sent in any time `t` is at most `rate (t + 1 ns) + burst` and one frame.

use crate::time::Time;

/// Billionths of a bit in a byte.
const NANOBITS_PER_BYTE: i128 = 8_000_000_000;

/// What one QP owes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pacer {
    /// Billionths of a bit; negative = credit.
    debt: i128,
    /// When it was that much.
    at: Time,
}

impl Pacer {
    /// No debt and no credit.
    pub(crate) const fn new(now: Time) -> Self {
        Self { debt: 0, at: now }
    }

    /// Pays off what the time since the last call is worth. A change of the rate is exact if this is called before it.
    #[inline]
    pub(crate) fn advance(&mut self, now: Time, rate_bps: u64, burst_bytes: u64) {
        let paid = i128::from(rate_bps) * i128::from(now.ns_since(self.at));
        // What the last ns paid too much is kept as well: it is the remainder that must not get lost.
        let credit_max = i128::from(burst_bytes) * NANOBITS_PER_BYTE + i128::from(rate_bps);
        self.debt = (self.debt - paid).max(-credit_max);
        self.at = self.at.max(now);
    }

    /// Whether a frame may go now, if the pacer was advanced to now.
    #[inline]
    pub(crate) const fn may_send(&self) -> bool {
        self.debt <= 0
    }

    /// A frame, or what stands for it, goes.
    #[inline]
    pub(crate) fn charge(&mut self, bytes: u64) {
        self.debt = self.debt.saturating_add(i128::from(bytes) * NANOBITS_PER_BYTE);
    }

    /// When a frame may go at this rate, if the pacer was advanced to now.
    #[inline]
    pub(crate) fn ready_at(&self, rate_bps: u64) -> Time {
        let Ok(debt) = u128::try_from(self.debt) else { return self.at };
        let wait_ns = debt.div_ceil(u128::from(rate_bps.max(1)));
        self.at.add_ns(u64::try_from(wait_ns).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATES: [u64; 7] =
        [1_000_000, 7_654_321, 1_000_000_000, 10_000_000_000, 40_000_000_001, 100_000_000_000, 400_000_000_000];

    /// A sender that always has a frame, and whose loop comes `late` ns after each time that the pacer names.
    fn send(pacer: &mut Pacer, rate: u64, burst: u64, frames: usize, bytes: u64, late: u64) -> Vec<Time> {
        let mut now = pacer.at;
        let mut sent = Vec::new();
        while sent.len() < frames {
            pacer.advance(now, rate, burst);
            if pacer.may_send() {
                pacer.charge(bytes);
                sent.push(now);
            } else {
                now = pacer.ready_at(rate).add_ns(late);
            }
        }
        sent
    }

    #[test]
    fn frames_are_spaced_as_the_rate_says_and_nothing_drifts() {
        for rate in RATES {
            let mut pacer = Pacer::new(Time::from_ns(77));
            let sent = send(&mut pacer, rate, 0, 10_001, 1_086, 0);
            // The 10,000th gap ends when 10,000 frames are paid off, rounded up to a whole ns once.
            let exact = (10_000 * 1_086 * 8_000_000_000_u128).div_ceil(u128::from(rate));
            assert_eq!(u128::from(sent[10_000].ns_since(sent[0])), exact, "{rate}");
        }
    }

    #[test]
    fn a_second_at_either_end_of_the_range_is_exact() {
        const SECOND_NS: u128 = 1_000_000_000;
        for (rate, bytes) in [(1_000_000_u64, 86_u64), (1_000_000, 4_178), (400_000_000_000, 4_178)] {
            let mut pacer = Pacer::new(Time::ZERO);
            let bits = u128::from(bytes) * 8;
            let in_a_second = u128::from(rate) / bits;
            let frames = usize::try_from(in_a_second).unwrap() + 2;
            let sent = send(&mut pacer, rate, 0, frames, bytes, 0);
            for (number, at) in sent.iter().enumerate() {
                // Each frame goes in the first ns in which all before it are paid off: none earlier, and no error adds up.
                assert_eq!(u128::from(at.as_ns()), (number as u128 * bits * SECOND_NS).div_ceil(u128::from(rate)));
            }
            // The first frame is not paid for in advance.
            let by_then = sent.iter().filter(|at| u128::from(at.as_ns()) <= SECOND_NS).count();
            assert_eq!(by_then as u128, in_a_second + 1, "{rate}");
        }
    }

    #[test]
    fn a_loop_that_comes_every_us_loses_nothing_at_the_fastest_rate() {
        const RATE: u64 = 400_000_000_000;
        let mut pacer = Pacer::new(Time::ZERO);
        // 50,000 bytes a us: more than one turn's worth of credit must fit the burst.
        let mut sent_bytes = 0_u64;
        for turn in 0..1_000_000 {
            pacer.advance(Time::from_ns(turn * 1_000), RATE, 64 << 10);
            while pacer.may_send() {
                pacer.charge(4_178);
                sent_bytes += 4_178;
            }
            assert!(sent_bytes <= turn * 50_000 + 4_178, "turn {turn}");
        }
        assert!(sent_bytes > 999_999 * 50_000, "{sent_bytes}");
    }

    #[test]
    fn a_late_loop_keeps_the_rate_as_far_as_the_burst_goes() {
        let mut pacer = Pacer::new(Time::ZERO);
        // 10 Gb/s: a frame of 1250 bytes a us, and a loop 5 us late, which 8 KB make up for.
        let sent = send(&mut pacer, 10_000_000_000, 8_192, 100_001, 1_250, 5_000);
        let took = sent[100_000].as_ns();
        assert!((99_900_000..=100_100_000).contains(&took), "{took}");
        let mut strict = Pacer::new(Time::ZERO);
        let sent = send(&mut strict, 10_000_000_000, 0, 1_001, 1_250, 5_000);
        assert!(sent[1_000].as_ns() >= 5_900_000, "without a burst every frame is late");
    }

    #[test]
    fn an_idle_qp_may_send_a_burst_and_no_more() {
        let mut pacer = Pacer::new(Time::ZERO);
        pacer.advance(Time::from_ns(u64::MAX - 1), 400_000_000_000, 10_000);
        let mut frames = 0;
        while pacer.may_send() {
            pacer.charge(1_000);
            frames += 1;
        }
        assert_eq!(frames, 11);
    }

    #[test]
    fn a_new_rate_holds_from_when_it_is_set() {
        let mut pacer = Pacer::new(Time::ZERO);
        pacer.charge(125_000);
        // A million bits: half of them at 1 Mb/s, the rest at 1 Gb/s.
        pacer.advance(Time::from_ns(500_000_000), 1_000_000, 0);
        assert_eq!(pacer.ready_at(1_000_000), Time::from_ns(1_000_000_000));
        assert_eq!(pacer.ready_at(1_000_000_000), Time::from_ns(500_500_000));
    }

    proptest! {
        /// Whatever the frames, the rate and the times at which the loop comes: no window of time carries more than its rate,
        /// the burst and one frame.
        #[test]
        fn a_paced_qp_never_exceeds_its_rate_over_any_window(
            rate in prop::sample::select(&RATES[..]),
            burst in prop::sample::select(&[0_u64, 1_500, 32_768, 1 << 20][..]),
            turns in prop::collection::vec((0_u64..200_000, 64_u64..4_200), 1..400),
        ) {
            let mut pacer = Pacer::new(Time::ZERO);
            let mut now = Time::ZERO;
            let mut sent: Vec<(u64, u64)> = Vec::new();
            for (gap, bytes) in turns {
                now = now.add_ns(gap);
                pacer.advance(now, rate, burst);
                while pacer.may_send() && sent.len() < 4_000 {
                    pacer.charge(bytes);
                    sent.push((now.as_ns(), bytes));
                }
            }
            for first in 0..sent.len() {
                let mut bytes = 0;
                for &(at, length) in &sent[first..] {
                    bytes += length;
                    let allowed = u128::from(rate) * u128::from(at - sent[first].0 + 1)
                        + u128::from(burst + length) * 8_000_000_000;
                    prop_assert!(u128::from(bytes) * 8_000_000_000 <= allowed);
                }
            }
        }
    }
}
