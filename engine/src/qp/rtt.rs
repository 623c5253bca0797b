//! Round trip times of one QP, from the turnaround of acknowledgements and responses.

use shm::control::post_mortem::Rtt;
use wire::Psn;

use crate::time::Time;

/// Round trip times of one QP: one packet is timed at a time, and none that was sent twice (Karn's rule).
#[derive(Clone, Copy, Debug)]
pub(crate) struct RttMeter {
    /// When the timed packet was sent; [`Time::NEVER`] if none is.
    sent: Time,
    /// The PSN after it.
    end: Psn,
    /// Mean deviation from the smoothed time, ns.
    variation_ns: u64,
    found: Rtt,
}

impl RttMeter {
    pub(crate) const NEW: Self = Self {
        sent: Time::NEVER,
        end: Psn::new(0),
        variation_ns: 0,
        found: Rtt { smoothed_ns: 0, min_ns: u64::MAX, last_ns: 0 },
    };

    /// A packet was sent for the first time, which asks for an answer.
    #[inline]
    pub(crate) fn sent(&mut self, psn: Psn, now: Time) {
        if self.sent == Time::NEVER {
            (self.sent, self.end) = (now, psn.add(1));
        }
    }

    /// Everything before `una` is answered. The round trip time of the packet that was timed, if its answer is among them;
    /// the estimate does not know it yet.
    #[inline]
    pub(crate) fn answered(&mut self, una: Psn, now: Time) -> Option<u64> {
        if self.sent == Time::NEVER || una.is_before(self.end) {
            return None;
        }
        let ns = now.ns_since(self.sent);
        self.sent = Time::NEVER;
        Some(ns)
    }

    /// A packet has come, as the peer says though it lacks others before it: its round trip time, if it is the one that was
    /// timed.
    #[inline]
    pub(crate) fn arrived(&mut self, psn: Psn, now: Time) -> Option<u64> {
        if psn.add(1) == self.end { self.answered(self.end, now) } else { None }
    }

    /// Packets are about to be sent again: forgets the one that is timed if it is among them.
    #[inline]
    pub(crate) fn forget_if(&mut self, first: Psn, count: u32) {
        let timed = self.end.sub(1).distance_from(first);
        if timed >= 0 && timed.cast_unsigned() < count {
            self.forget();
        }
    }

    /// What is timed is about to be sent again: its answer would say nothing.
    #[inline]
    pub(crate) fn forget(&mut self) {
        self.sent = Time::NEVER;
    }

    /// Takes a sample into the estimate: RFC 6298 2.2 and 2.3, with alpha 1/8 and beta 1/4.
    #[inline]
    pub(crate) fn sample(&mut self, ns: u64) {
        let found = &mut self.found;
        if found.min_ns == u64::MAX {
            (found.smoothed_ns, self.variation_ns) = (ns, ns / 2);
        } else {
            let deviation = found.smoothed_ns.abs_diff(ns);
            self.variation_ns = self.variation_ns - self.variation_ns / 4 + deviation / 4;
            found.smoothed_ns = found.smoothed_ns - found.smoothed_ns / 8 + ns / 8;
        }
        found.min_ns = found.min_ns.min(ns);
        found.last_ns = ns;
    }

    /// The estimate, if there is any.
    #[inline]
    pub(crate) fn estimate(&self) -> Option<Rtt> {
        (self.found.min_ns != u64::MAX).then_some(self.found)
    }

    /// Mean deviation of the samples from the smoothed time, ns; 0 without samples.
    #[inline]
    pub(crate) fn variation_ns(&self) -> u64 {
        self.variation_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(meter: &mut RttMeter, una: u32, now: u64) {
        if let Some(ns) = meter.answered(Psn::new(una), Time::from_ns(now)) {
            meter.sample(ns);
        }
    }

    #[test]
    fn a_round_trip_is_timed_once_at_a_time_and_never_over_a_repeat() {
        let at = Time::from_ns;
        let mut meter = RttMeter::NEW;
        assert_eq!(meter.estimate(), None);
        meter.sent(Psn::new(Psn::MASK), at(1000));
        meter.sent(Psn::new(0), at(1500));
        answered(&mut meter, Psn::MASK, 1600);
        assert_eq!(meter.estimate(), None, "its own PSN is not answered yet");
        answered(&mut meter, 1, 1800);
        assert_eq!(meter.estimate(), Some(Rtt { smoothed_ns: 800, min_ns: 800, last_ns: 800 }));
        meter.sent(Psn::new(5), at(2000));
        meter.forget();
        answered(&mut meter, 6, 9000);
        meter.sent(Psn::new(6), at(10_000));
        answered(&mut meter, 7, 11_600);
        assert_eq!(meter.estimate(), Some(Rtt { smoothed_ns: 900, min_ns: 800, last_ns: 1600 }));
    }

    #[test]
    fn the_deviation_follows_rfc_6298() {
        let mut meter = RttMeter::NEW;
        assert_eq!(meter.variation_ns(), 0);
        meter.sample(800);
        assert_eq!(meter.variation_ns(), 400);
        meter.sample(1600);
        assert_eq!(meter.variation_ns(), 400 - 100 + 200, "the deviation is from the time before the sample");
        (0..100).for_each(|_| meter.sample(1000));
        assert!(meter.variation_ns() < 30, "{}", meter.variation_ns());
    }
}
