//! The scoreboard of selective repeat: what became of each packet in flight, and when a missing one counts as lost.
//!
//! A packet is missing when one that was sent later has come, and lost when it stays missing for the reorder window: a time that
//! adapts to how late packets come on this path, as in RACK (RFC 8985). What was sent again is lost again when something
//! sent after it has come and a round trip time has passed, or when the short timer has.
//!
//! The PSNs on it are those from the oldest that is not acknowledged, [`WINDOW`] of them.

use wire::Psn;

use super::psn_set::{PsnSet, WINDOW, place};
use super::rtt::RttMeter;
use crate::config::RecoveryConfig;
use crate::time::Time;

/// The least reorder window, ns: what a round trip time of nothing would make of it.
const REORDER_MIN_NS: u64 = 1_000;

/// So many times the short timer runs twice as long as before when nothing comes.
const PROBE_DOUBLINGS: u8 = 9;

/// Whether a packet that has not come is taken for lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Nothing speaks for it.
    Waiting,
    /// It is, unless it comes until then.
    LostAt(Time),
}

/// The scoreboard of one requester.
#[derive(Debug)]
pub(crate) struct Board {
    /// Request packets that the peer says it has, beyond those that are acknowledged.
    pub(super) sacked: PsnSet,
    /// To be sent again, at the next chance.
    pub(super) lost: PsnSet,
    /// Sent more than once.
    pub(super) repeated: PsnSet,
    /// Everything before it was executed by the peer: more than `una` if a READ before it is not answered in full.
    pub(super) acked_end: Psn,
    /// After the last request packet that the peer says it has.
    pub(super) request_end: Psn,
    /// After the last response that came.
    pub(super) response_end: Psn,
    /// When the packet was last sent that, of those known to have come, was sent last.
    newest: Time,
    /// What was asked for before then was sent by the peer, if it got that.
    asked_before: Time,
    /// When something last came that was missing, or sending began after a pause.
    heard: Time,
    /// When a missing packet becomes a lost one, at the earliest.
    pub(super) reorder_at: Time,
    /// When the short timer fires.
    pub(super) probe_at: Time,
    /// Times the short timer fired without progress.
    pub(super) probes: u8,
    /// Times the long timer fired without progress.
    pub(super) backoff: u8,
    /// How many times its least size the reorder window is.
    reorder_factor: u32,
    /// When each packet was last sent, or asked for.
    sent: Box<[Time; WINDOW as usize]>,
    /// Since when each packet is missing; [`Time::NEVER`] if it is not.
    missed: Box<[Time; WINDOW as usize]>,
}

impl Board {
    /// A board on which nothing is in flight.
    pub(super) fn new(una: Psn) -> Box<Self> {
        Box::new(Self {
            sacked: PsnSet::EMPTY,
            lost: PsnSet::EMPTY,
            repeated: PsnSet::EMPTY,
            acked_end: una,
            request_end: una,
            response_end: una,
            newest: Time::ZERO,
            asked_before: Time::ZERO,
            heard: Time::NEVER,
            reorder_at: Time::NEVER,
            probe_at: Time::NEVER,
            probes: 0,
            backoff: 0,
            reorder_factor: 1,
            sent: Box::new([Time::ZERO; WINDOW as usize]),
            missed: Box::new([Time::NEVER; WINDOW as usize]),
        })
    }

    /// When the board has something to do by itself.
    #[inline]
    pub(super) fn next_timer(&self) -> Time {
        self.reorder_at.min(self.probe_at)
    }

    /// A request packet went out that takes `count` PSNs. `is_repeat`: not for the first time.
    #[inline]
    pub(super) fn note_sent(&mut self, first: Psn, count: u32, is_repeat: bool, now: Time) {
        for psn in (0..count).map(|offset| first.add(offset)) {
            self.sent[place(psn)] = now;
            self.missed[place(psn)] = Time::NEVER;
        }
        if is_repeat {
            self.repeated.insert(first);
            self.lost.remove(first);
        }
    }

    /// READ responses are asked for again.
    pub(super) fn note_asked_again(&mut self, first: Psn, count: u32, now: Time) {
        for psn in (0..count).map(|offset| first.add(offset)) {
            self.note_sent(psn, 1, true, now);
        }
    }

    /// The oldest PSN without acknowledgement moves on.
    #[inline]
    pub(super) fn slide(&mut self, from: Psn, to: Psn) {
        let count = to.distance_from(from).cast_unsigned().min(WINDOW);
        for psn in (0..count).map(|offset| from.add(offset)) {
            self.sacked.remove(psn);
            self.lost.remove(psn);
            self.repeated.remove(psn);
            self.missed[place(psn)] = Time::NEVER;
        }
        for end in [&mut self.acked_end, &mut self.request_end, &mut self.response_end] {
            if end.is_before(to) {
                *end = to;
            }
        }
    }

    /// Everything from the oldest PSN on will be sent again: what the peer said of it is void. Responses that are kept stay.
    pub(super) fn forget_claims(&mut self) {
        self.sacked.clear();
        self.lost.clear();
        self.missed.fill(Time::NEVER);
        self.request_end = self.acked_end;
        self.reorder_at = Time::NEVER;
    }

    /// What was missing has come: timers begin anew.
    #[inline]
    pub(super) fn note_progress(&mut self, now: Time) {
        self.heard = now;
        self.probes = 0;
        self.backoff = 0;
    }

    /// Something has come: a request packet, as the peer says, or a response. A repeat that is answered sooner than any packet ever
    /// was says that the first transmission was late and not lost.
    pub(super) fn note_arrival(&mut self, psn: Psn, rtt: &RttMeter, now: Time, config: &RecoveryConfig) {
        let sent = self.sent[place(psn)];
        if self.repeated.contains(psn) && rtt.estimate().is_some_and(|rtt| now.ns_since(sent) < rtt.min_ns) {
            self.reorder_factor = (self.reorder_factor + 1).min(config.reorder_factor);
        } else {
            self.newest = self.newest.max(sent);
        }
    }

    /// A response has come, however long ago it was asked for. If that was once: what the peer was asked for again a round trip ago
    /// it has sent before this one.
    pub(super) fn note_response(&mut self, psn: Psn, rtt: &RttMeter, now: Time, config: &RecoveryConfig) {
        self.note_arrival(psn, rtt, now, config);
        if !self.repeated.contains(psn)
            && let Some(rtt) = rtt.estimate()
        {
            self.asked_before = Time::from_ns(now.as_ns().saturating_sub(rtt.smoothed_ns));
        }
    }

    /// The peer waits for `psn`. True if it said before that it has that: it has dropped what it had, and all claims are void.
    /// `una` is the oldest without acknowledgement.
    pub(super) fn is_taken_back(&mut self, una: Psn, psn: Psn) -> bool {
        let ahead = psn.distance_from(una);
        let is_claimed = ahead >= 0 && ahead.cast_unsigned() < WINDOW && self.sacked.contains(psn);
        if is_claimed {
            self.forget_claims();
            self.lost.insert(psn);
        }
        is_claimed
    }

    /// The peer has executed everything before `end`.
    pub(super) fn note_executed(&mut self, end: Psn) {
        let count = end.distance_from(self.acked_end);
        if count <= 0 {
            return;
        }
        // What the peer had got of a READ was its request: from here on its bits stand for the responses.
        self.sacked = self.sacked.without(&PsnSet::range(self.acked_end, count.cast_unsigned()));
        self.acked_end = end;
        if self.request_end.is_before(end) {
            self.request_end = end;
        }
    }

    /// How much later than its successors a packet may come, ns.
    fn reorder_ns(&self, rtt: &RttMeter, config: &RecoveryConfig) -> u64 {
        let Some(rtt) = rtt.estimate() else { return u64::from(config.rto_low_us) * 1_000 };
        let least = (rtt.min_ns * u64::from(config.reorder_percent) / 100).max(REORDER_MIN_NS);
        (least * u64::from(self.reorder_factor)).min(rtt.smoothed_ns.max(least))
    }

    /// What to think of a packet that has not come. `is_oldest`: nothing in flight was sent before it. `is_passed`: one that was
    /// sent later, or a later response, has come.
    pub(super) fn judge(
        &mut self,
        psn: Psn,
        is_oldest: bool,
        is_passed: bool,
        rtt: &RttMeter,
        config: &RecoveryConfig,
        now: Time,
    ) -> Verdict {
        let reorder_ns = self.reorder_ns(rtt, config);
        if self.repeated.contains(psn) {
            let sent = self.sent[place(psn)];
            let low_ns = u64::from(config.rto_low_us) * 1_000;
            let smoothed = rtt.estimate().map_or(low_ns, |rtt| rtt.smoothed_ns);
            let is_response = psn.is_before(self.acked_end);
            let patience = if self.newest > sent || (is_response && self.asked_before > sent) {
                smoothed + reorder_ns
            } else if self.probes == 0 || is_oldest {
                (smoothed + 4 * rtt.variation_ns()).max(low_ns) << self.probes.min(PROBE_DOUBLINGS)
            } else {
                // Nothing comes at all: the oldest is enough to ask with.
                return Verdict::Waiting;
            };
            return Verdict::LostAt(sent.add_ns(patience));
        }
        if !is_passed {
            return Verdict::Waiting;
        }
        let missed = &mut self.missed[place(psn)];
        *missed = (*missed).min(now);
        Verdict::LostAt(missed.add_ns(reorder_ns))
    }

    /// How long the short timer runs, ns. SIGCOMM 2018 (IRN): short when few packets are in flight, whose loss nothing else
    /// would show.
    fn short_ns(&self, in_flight: u32, rtt: &RttMeter, config: &RecoveryConfig) -> u64 {
        let floor = if in_flight <= config.few_packets { config.rto_low_us } else { config.rto_high_us };
        let adaptive = rtt.estimate().map_or(0, |found| found.smoothed_ns + 4 * rtt.variation_ns());
        adaptive.max(u64::from(floor) * 1_000) << self.probes.min(PROBE_DOUBLINGS)
    }

    /// Starts the short timer if it does not run.
    #[inline]
    pub(super) fn start_probe(&mut self, in_flight: u32, rtt: &RttMeter, config: &RecoveryConfig, now: Time) {
        if self.probe_at == Time::NEVER {
            self.heard = now;
            self.probe_at = now.add_ns(self.short_ns(in_flight, rtt, config));
        }
    }

    /// The short timer fired: true if nothing came for so long, else it goes on.
    pub(super) fn is_silent(&mut self, in_flight: u32, rtt: &RttMeter, config: &RecoveryConfig, now: Time) -> bool {
        let due = self.heard.add_ns(self.short_ns(in_flight, rtt, config));
        if due > now {
            self.probe_at = due;
            return false;
        }
        self.probes = self.probes.saturating_add(1);
        self.heard = now;
        self.probe_at = now.add_ns(self.short_ns(in_flight, rtt, config));
        true
    }

    /// How long the long timer runs, ns: twice what the short one would adapt to at least. `bound_ns`: of the verbs attribute, 0
    /// if it is not set.
    pub(super) fn long_ns(&self, rtt: &RttMeter, config: &RecoveryConfig, bound_ns: u64) -> u64 {
        let adaptive = rtt.estimate().map_or(0, |found| 2 * found.smoothed_ns + 8 * rtt.variation_ns());
        let most = u64::from(config.rto_max_us) * 1_000;
        let least = adaptive.max(u64::from(config.rto_min_us) * 1_000).min(most);
        let ns = (least << self.backoff.min(20)).min(most);
        if bound_ns > 0 { ns.min(bound_ns) } else { ns }
    }

    /// Nothing is in flight.
    pub(super) fn rest(&mut self) {
        (self.reorder_at, self.probe_at, self.heard) = (Time::NEVER, Time::NEVER, Time::NEVER);
    }
}
