//! READs that are asked for in parts: a QP that repeats selectively asks for no more responses than it can keep while it waits for
//! one that is lost, and one that limits its READs itself for no more at once than it sends without asking for an answer. Each part
//! is a READ of its own to the peer, and counts as one against `max_rd_atomic`.
//!
//! A part is asked for again within its own bounds: to the peer nothing else is a repeat of it.

use wire::Psn;

use super::psn_set::{PsnSet, WINDOW};
use super::slot::SendSlot;
use super::{Qp, earlier, later};

/// So many parts a window has at most: while the first comes, the others are asked for.
const PARTS_IN_WINDOW: u32 = 4;

/// The PSNs of one request: of a READ, or a part of one, those of its responses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    pub(super) start: Psn,
    pub(super) end: Psn,
}

impl Qp {
    /// How many PSNs the next packet of a message takes: of a READ, how many responses it asks for. `None` if it has to wait.
    #[inline]
    pub(super) fn psns_of_next(&mut self, slot: &SendSlot, in_flight: u32) -> Option<u32> {
        if slot.sends_payload() {
            return Some(1);
        }
        if self.cc.meters_reads() && !self.req.has_parts {
            // READs that were asked for whole, before it came to this, are answered first.
            if self.req.rd_outstanding > 0 {
                return None;
            }
            self.req.has_parts = true;
        }
        if self.req.has_parts { self.next_part(slot, in_flight) } else { Some(slot.packets - self.req.nxt_packet) }
    }

    /// Most responses that one request may ask for; `None` = a READ is asked for whole.
    fn part_packets(&self) -> Option<u32> {
        let parts = u32::from(self.req.max_rd_atomic).clamp(1, PARTS_IN_WINDOW);
        let kept = self.recovery.is_selective().then(|| (self.window_packets() / parts).max(1));
        // A READ's answer is what a requester has in place of an acknowledgement.
        let metered = self.cc.meters_reads().then(|| self.ack_request_packets * (PARTS_IN_WINDOW / parts));
        kept.into_iter().chain(metered).min()
    }

    /// How READs are asked for may have changed.
    pub(super) fn refresh_parts(&mut self) {
        self.req.has_parts &= self.part_packets().is_some() || !self.body.asked.is_empty();
    }

    fn next_part(&self, slot: &SendSlot, in_flight: u32) -> Option<u32> {
        if self.req.rd_outstanding >= self.req.max_rd_atomic {
            return None;
        }
        let psn = self.req.nxt_psn;
        let window = self.window_packets().min(WINDOW);
        let wanted = match self.body.asked.within(psn, WINDOW.saturating_sub(in_flight)).first_from(psn) {
            // Sent before: up to where it went then.
            Some(last) => last.distance_from(psn).cast_unsigned() + 1,
            // If it asks for all that is left, it does so when all parts are answered.
            None => self.part_packets()?.min(slot.packets - self.req.nxt_packet),
        };
        let count = wanted.min(window.saturating_sub(in_flight));
        // Not a few at a time.
        (count >= wanted.min((window / PARTS_IN_WINDOW).max(1))).then_some(count)
    }

    /// A part of `count` responses was asked for, beginning with the next PSN.
    #[inline]
    pub(super) fn note_part(&mut self, count: u32) {
        self.body.asked.insert(self.req.nxt_psn.add(count - 1));
        self.req.rd_outstanding += 1;
    }

    /// The oldest PSN without acknowledgement moves on.
    #[inline]
    pub(super) fn slide_parts(&mut self, from: Psn, to: Psn) {
        let count = to.distance_from(from).cast_unsigned();
        let asked = self.body.asked.without(&PsnSet::range(from, count));
        let ahead = self.req.nxt_psn.distance_from(to).max(0).cast_unsigned();
        self.body.asked = asked;
        // Of those in the set, PSNs that are to be sent again are not outstanding.
        self.req.rd_outstanding = asked.within(to, ahead).count() as u8;
        self.refresh_parts();
    }

    /// The request that a PSN in flight belongs to: `slot`, or the part of it that this is.
    pub(super) fn asked_with(&self, psn: Psn, slot: &SendSlot) -> Asked {
        let una = self.req.una_psn;
        let ahead = psn.distance_from(una).max(0).cast_unsigned().min(WINDOW);
        let last_before = self.body.asked.within(una, ahead).last_from(una);
        let last = self.body.asked.within(psn, WINDOW - ahead).first_from(psn);
        Asked {
            // One that is answered in part begins with what is not.
            start: later(slot.first_psn, last_before.map_or(una, |last| last.add(1))),
            end: last.map_or(slot.end_psn(), |last| earlier(slot.end_psn(), last.add(1))),
        }
    }
}
