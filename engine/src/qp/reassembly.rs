//! The responder's side of what comes out of order: requests that came early are kept and executed when their turn comes, a peer
//! that repeats selectively is told what has come, and READ responses that it misses are sent again by themselves.

use shm::attr::QpState;
use wire::buf::TxBatch;
use wire::{AethRepr, CREDITS_NOT_IN_USE, ExtHeaders, Frame, NakCode, Opcode, Psn, RethRepr, Syndrome};

use super::keep::Keeping;
use super::responder::Resource;
use super::{Qp, Step};
use crate::ready::Output;
use crate::shard::Env;

/// Requests for missing READ responses that wait at a time; more are dropped, and asked for again.
const REPEATS_MAX: usize = 32;

/// READ responses to send again: packets `next..end` of the READ whose first PSN this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Repeat {
    first_psn: Psn,
    next: u32,
    end: u32,
    /// Where the answer ends, bytes from the READ's start.
    end_bytes: u32,
}

/// Repeats that wait, the oldest first.
#[derive(Debug)]
pub(crate) struct RepeatQueue {
    ring: [Repeat; REPEATS_MAX],
    head: usize,
    len: usize,
}

impl RepeatQueue {
    pub(super) fn new() -> Self {
        Self { ring: [Repeat::default(); REPEATS_MAX], head: 0, len: 0 }
    }

    fn iter(&self) -> impl Iterator<Item = &Repeat> {
        (0..self.len).map(|i| &self.ring[(self.head + i) % REPEATS_MAX])
    }

    /// False if there is no room.
    fn push(&mut self, repeat: Repeat) -> bool {
        let fits = self.len < REPEATS_MAX;
        if fits {
            self.ring[(self.head + self.len) % REPEATS_MAX] = repeat;
            self.len += 1;
        }
        fits
    }

    fn front(&mut self) -> Option<&mut Repeat> {
        if self.len == 0 { None } else { Some(&mut self.ring[self.head]) }
    }

    fn pop(&mut self) {
        self.head = (self.head + 1) % REPEATS_MAX;
        self.len -= 1;
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn clear(&mut self) {
        (self.head, self.len) = (0, 0);
    }
}

impl Qp {
    /// A request ahead of the expected PSN. It is kept if there is room, whatever the peer does about what is missing.
    #[cold]
    pub(super) fn handle_out_of_sequence(&mut self, env: &mut Env, frame: &Frame<'_>) {
        env.counters.out_of_seq_request += 1;
        self.body.cold.counters.out_of_sequence += 1;
        if self.resp.not_ready {
            // IBTA 9.7.5.1.3: after an RNR NAK the peer sends all of it again.
            return;
        }
        let origin = env.origin(self.port, frame);
        let keeping = self.body.kept.as_mut().map_or(Keeping::NoRoom, |kept| {
            kept.keep(&mut env.keep, self.resp.epsn, frame.bth().psn, frame.bytes(), origin)
        });
        match keeping {
            Keeping::Kept => env.counters.kept_requests += 1,
            Keeping::Twice => env.counters.duplicate_request += 1,
            Keeping::NoRoom => env.counters.kept_no_room += 1,
        }
        let keeps = self.body.kept.as_ref().is_some_and(|kept| !kept.set().is_empty());
        if self.recovery.is_selective() && keeps {
            self.ack(env);
        } else if !self.resp.silent {
            // To a selective peer too, if nothing can be kept: then only going back helps.
            self.note_missing_request(env, keeping != Keeping::NoRoom);
        }
    }

    /// Asks for what is missing. IBTA 9.7.5.1.1: one NAK for a gap, then silence until the expected PSN comes.
    pub(super) fn nak_missing(&mut self, env: &mut Env) {
        self.resp.silent = true;
        env.counters.out_of_sequence += 1;
        self.send_nak(env, Syndrome::Nak(NakCode::PsnSequence), self.resp.epsn);
    }

    /// Executes what was kept, as far as its turn has come. `waited` is the PSN that was waited for until now.
    #[inline]
    pub(super) fn execute_kept(&mut self, env: &mut Env, waited: Psn) {
        if self.body.kept.as_ref().is_some_and(|kept| !kept.set().is_empty()) {
            self.execute_kept_from(env, waited);
        }
    }

    #[cold]
    fn execute_kept_from(&mut self, env: &mut Env, waited: Psn) {
        while !self.resp.not_ready && self.state != QpState::Err {
            let Some(ring) = &mut self.body.kept else { return };
            let Some(kept) = ring.take(&env.keep, waited, self.resp.epsn) else {
                self.look_for_next_gap(env);
                return;
            };
            let lent = env.keep.lend();
            if let Some(frame) = lent.frame(kept) {
                if frame.bth().psn == self.resp.epsn {
                    self.handle_expected(env, &frame);
                } else {
                    // A READ before it takes its PSN: it was a repeat of that, and came before it.
                    self.handle_duplicate(env, &frame);
                }
            }
            env.keep.take_back(lent, kept);
        }
    }

    /// What was kept will not be executed.
    pub(super) fn drop_kept_requests(&mut self, env: &mut Env) {
        self.forget_missing_request();
        if let Some(kept) = &mut self.body.kept {
            kept.clear(&mut env.keep);
        }
    }

    /// True if the peer is to be told of what came beyond a gap.
    #[inline]
    pub(super) fn owes_sack(&self) -> bool {
        self.recovery.is_selective() && self.body.kept.as_ref().is_some_and(|kept| !kept.set().is_empty())
    }

    /// Tells the peer what has come and what not. It does not wait for responses that are due, as an acknowledgement does: the
    /// peer takes it for what it says and for nothing else.
    #[cold]
    pub(super) fn send_sack<T: TxBatch>(&mut self, env: &mut Env, tx: &mut T) -> Step {
        if tx.room() == 0 {
            return Step::NoRoom;
        }
        let Some(kept) = &self.body.kept else { return Step::Idle };
        let mut ext = [0; ExtHeaders::MAX_BYTES];
        let (aeth, map) = ext.split_at_mut(AethRepr::LEN);
        let syndrome = Syndrome::Ack { credits: CREDITS_NOT_IN_USE };
        aeth.copy_from_slice(&AethRepr { syndrome, msn: self.resp.msn }.to_bytes());
        map.copy_from_slice(&kept.set().to_sack(self.resp.epsn).to_bytes());
        let mut bth = self.response_bth(Opcode::RC_ACK, self.resp.epsn.sub(1));
        bth.opcode = Opcode::SELECTIVE_ACK;
        if self.push_plain(env, tx, &bth, &ext).is_some() {
            self.resp.ack_due = false;
            env.counters.tx_sacks += 1;
        }
        Step::Sent
    }

    /// Notes which packets of a READ are to be sent again: those that were sent, since the others will be sent anyway.
    pub(super) fn queue_repeat(&mut self, env: &mut Env, index: usize, skipped: u32, packets: u32, reth: &RethRepr) {
        let Some(resource) = self.body.resources.get(index) else { return };
        let offset = skipped << self.mtu.shift();
        let repeat = Repeat {
            first_psn: resource.first_psn,
            next: skipped,
            end: (skipped + packets).min(resource.next),
            end_bytes: offset + reth.dma_len,
        };
        if repeat.next >= repeat.end || self.body.repeats.iter().any(|waiting| *waiting == repeat) {
            return;
        }
        if self.body.repeats.push(repeat) {
            self.resp.pending_responses += 1;
            self.schedule(env, Output::Response);
        } else {
            env.counters.repeats_dropped += 1;
        }
    }

    /// The next packet that is to be sent again: of which READ, whose cursor is set to it. `None` if there is none.
    pub(super) fn next_repeat(&mut self) -> Option<Resource> {
        while let Some(&mut repeat) = self.body.repeats.front() {
            let found = self.body.resources.iter().find(|r| r.is_read_from(repeat.first_psn));
            match found {
                Some(resource) if repeat.next < repeat.end => {
                    return Some(resource.part(repeat.next, repeat.end, repeat.end_bytes));
                }
                // Newer READs have taken its place: the peer has all of it.
                _ => self.end_repeat(),
            }
        }
        None
    }

    fn end_repeat(&mut self) {
        self.body.repeats.pop();
        self.resp.pending_responses = self.resp.pending_responses.saturating_sub(1);
    }

    /// A packet of the oldest repeat was sent.
    pub(super) fn after_repeated_response(&mut self) {
        let Some(repeat) = self.body.repeats.front() else { return };
        repeat.next += 1;
        if repeat.next >= repeat.end {
            self.end_repeat();
        }
    }
}
