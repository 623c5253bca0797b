//! How long a gap is left alone by those who go back N and so can't tell late from lost: a responder before it sends a NAK, and a
//! requester that misses READ responses before it asks for them again.
//!
//! At first not at all, so that a loss is told at once. Who has asked in vain, since both the packet and its repeat came, leaves the next
//! gap alone for as long as that one was late, and a little more. Each time that it was right to ask makes that an eighth less.

use wire::{Frame, Psn};

use super::completer::Advance;
use super::keep::Keeping;
use super::{Qp, Requester};
use crate::shard::Env;
use crate::time::Time;

/// The longest that a gap is left alone, ns: a peer is to hear of a loss long before its timer, whatever came late.
const PATIENCE_MAX_NS: u64 = 100_000;

/// What is known of late packets of one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lateness {
    /// How long a gap is left alone, ns.
    patience_ns: u64,
    /// Since when there is a gap; [`Time::NEVER`] if there is none.
    since: Time,
    /// The packet that is missing was asked for.
    is_asked: bool,
    /// The packet that was asked for last and has come since, and how long it was missing, ns.
    came: Option<(Psn, u64)>,
}

impl Lateness {
    pub(super) const NEW: Self = Self { patience_ns: 0, since: Time::NEVER, is_asked: false, came: None };

    /// When to ask for what is missing: a packet behind it has come.
    fn open(&mut self, now: Time) -> Time {
        self.since = self.since.min(now);
        self.due()
    }

    /// When to ask for what is missing.
    fn due(&self) -> Time {
        self.since.add_ns(self.patience_ns)
    }

    /// What was missing has come.
    fn close(&mut self, psn: Psn, now: Time) {
        if self.since != Time::NEVER && self.is_asked {
            let was_right = self.came.replace((psn, now.ns_since(self.since))).is_some();
            self.patience_ns -= if was_right { self.patience_ns.div_ceil(8) } else { 0 };
        }
        self.forget_gap();
    }

    /// There is no gap any more that could close.
    fn forget_gap(&mut self) {
        (self.since, self.is_asked) = (Time::NEVER, false);
    }

    /// A packet has come once more: if it is the one that was asked for, that was in vain.
    fn came_again(&mut self, psn: Psn) {
        if let Some((_, missing_ns)) = self.came.take_if(|(asked, _)| *asked == psn) {
            self.patience_ns = self.patience_ns.max(missing_ns + missing_ns / 4).min(PATIENCE_MAX_NS);
        }
    }
}

impl Qp {
    /// When a gap that is left alone has been for long enough.
    pub(super) fn lateness_timer(&self) -> Time {
        let of = |waits: bool, late: &Lateness| if waits { late.due() } else { Time::NEVER };
        of(self.resp.waits, &self.body.late_requests).min(of(self.req.waits, &self.body.late_responses))
    }

    /// That time has come, or may have.
    #[cold]
    pub(super) fn handle_lateness_timer(&mut self, env: &mut Env) {
        if self.resp.waits && self.body.late_requests.due() <= env.now {
            self.ask_for_request(env);
        }
        if self.req.waits && self.body.late_responses.due() <= env.now {
            self.ask_for_response(env);
        }
    }

    /// Requests are missing, and what came behind them is kept (or not): asks for them, at once or soon.
    pub(super) fn note_missing_request(&mut self, env: &mut Env, is_kept: bool) {
        let due = self.body.late_requests.open(env.now);
        if is_kept && due > env.now {
            self.resp.waits = true;
            self.arm_timer(env);
        } else {
            self.ask_for_request(env);
        }
    }

    fn ask_for_request(&mut self, env: &mut Env) {
        self.resp.waits = false;
        self.body.late_requests.is_asked = true;
        self.nak_missing(env);
    }

    /// The request that was missing has come.
    pub(super) fn end_missing_request(&mut self, env: &Env, psn: Psn) {
        self.resp.waits = false;
        self.body.late_requests.close(psn, env.now);
    }

    /// What was kept up to the next gap is executed. One that waited for the last gap has not asked for this one.
    pub(super) fn look_for_next_gap(&mut self, env: &mut Env) {
        let is_waiting = self.resp.silent || self.resp.waits || self.recovery.is_selective();
        let has_kept = self.body.kept.as_ref().is_some_and(|kept| !kept.set().is_empty());
        if has_kept && !is_waiting && self.body.late_requests.patience_ns > 0 {
            self.note_missing_request(env, true);
        }
    }

    /// Nothing is waited for: requests that were kept are dropped.
    pub(super) fn forget_missing_request(&mut self) {
        self.resp.waits = false;
        self.body.late_requests.forget_gap();
    }

    /// A request came once more.
    pub(super) fn note_repeated_request(&mut self, psn: Psn) {
        self.body.late_requests.came_again(psn);
    }

    /// A response came once more, to one that goes back N.
    #[cold]
    pub(super) fn note_repeated_response(&mut self, psn: Psn) {
        self.body.late_responses.came_again(psn);
    }

    /// A READ response or atomic result behind one that is missing, for one that goes back N: kept until that has come.
    #[cold]
    pub(super) fn take_early_response(&mut self, env: &mut Env, frame: &Frame<'_>) {
        let psn = frame.bth().psn;
        let slot = self.slot_at(psn).map(|number| self.body.slots[self.slot_index(number)]);
        let (una, origin) = (self.req.una_psn, env.origin(self.port, frame));
        let keeping = match &mut self.body.early {
            Some(early) if slot.is_some_and(|slot| slot.opcode.is_read_or_atomic()) => {
                early.keep(&mut env.keep, una, psn, frame.bytes(), origin)
            }
            _ => Keeping::NoRoom,
        };
        keeping.count_response(&mut env.counters);
        self.req.has_early = true;
        if !self.req.gap_seen {
            self.note_missing_response(env, keeping != Keeping::NoRoom);
        }
    }

    fn note_missing_response(&mut self, env: &mut Env, is_kept: bool) {
        let due = self.body.late_responses.open(env.now);
        if is_kept && due > env.now {
            self.req.waits = true;
            self.arm_timer(env);
        } else {
            self.ask_for_response(env);
        }
    }

    fn ask_for_response(&mut self, env: &mut Env) {
        self.req.waits = false;
        if self.req.rnr_until == Time::NEVER {
            self.body.late_responses.is_asked = true;
            self.handle_gap(env);
        }
    }

    /// The response `psn` came in its turn, or an acknowledgement: takes what was kept as far as its turn has come.
    #[cold]
    pub(super) fn take_early_responses(&mut self, env: &mut Env, psn: Psn) {
        let was_missing = self.req.una_psn;
        if psn.is_before(was_missing) {
            self.req.waits = false;
            self.body.late_responses.close(psn, env.now);
        }
        while let Some(next) = self.body.early.as_ref().and_then(|early| early.set().first_from(self.req.una_psn)) {
            if self.advance_to(env, next) == Advance::Gap {
                if !self.req.gap_seen && !self.req.waits && self.body.late_responses.patience_ns > 0 {
                    self.note_missing_response(env, true);
                }
                return;
            }
            let Some(kept) = self.body.early.as_mut().and_then(|early| early.take(&env.keep, next, next)) else {
                return;
            };
            let lent = env.keep.lend();
            if let Some(frame) = lent.frame(kept) {
                self.handle_in_turn(env, &frame);
            }
            env.keep.take_back(lent, kept);
        }
        self.req.has_early = false;
    }

    /// Responses that were kept are dropped, and none is waited for.
    pub(super) fn drop_early_responses(&mut self, env: &mut Env) {
        if let Some(early) = &mut self.body.early {
            early.clear(&mut env.keep);
        }
        let Requester { waits, has_early, .. } = &mut self.req;
        (*waits, *has_early) = (false, false);
        self.body.late_responses.forget_gap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_learned_from_asking_in_vain_and_lost_by_being_right() {
        let (at, psn) = (Time::from_ns, Psn::new);
        let mut late = Lateness::NEW;
        let mut gap = |opened: u64, closed: u64, is_asked: bool, comes_again: bool| {
            let due = late.open(at(opened));
            late.open(at(opened + 1));
            late.is_asked = is_asked;
            late.close(psn(7), at(closed));
            late.came_again(psn(6));
            if comes_again {
                late.came_again(psn(7));
            }
            due.ns_since(at(opened))
        };
        assert_eq!(gap(1_000, 5_000, true, false), 0, "at once");
        assert_eq!(gap(10_000, 14_000, true, true), 0, "it was right to ask");
        assert_eq!(gap(20_000, 24_000, false, false), 5_000, "it was not: a quarter more than it was late");
        assert_eq!(gap(30_000, 38_000, true, true), 5_000, "that it came in time says nothing new");
        assert_eq!(gap(40_000, 48_000, true, false), 10_000);
        assert_eq!(gap(50_000, 58_000, true, false), 10_000, "whether it was right is not known yet");
        assert_eq!(gap(60_000, 61_000, true, true), 8_750);
        assert_eq!(gap(100_000, 200_000, true, true), 7_656, "the one before was right");
        assert_eq!(gap(300_000, 300_000, false, false), PATIENCE_MAX_NS, "no longer than the limit");
    }
}
