//! Selective repeat, the requester's side: what the peer says it has, what counts as lost, and what is sent again.

use shm::attr::{QpState, RecoveryPolicy, WrOpcode};
use wire::buf::TxBatch;
use wire::{Frame, OpKind, Psn, SackEthRepr, Syndrome};

use super::board::{Board, Verdict};
use super::keep::Keeping;
use super::lateness::Lateness;
use super::psn_set::{PsnSet, WINDOW};
use super::slot::SendSlot;
use super::{Qp, Step, earlier};
use crate::post_mortem::RetryKind;
use crate::ready::Output;
use crate::shard::Env;
use crate::time::Time;

impl Qp {
    /// Changes how lost packets are made up for, at any time. What is in flight is sent again if that is needed.
    pub(crate) fn set_recovery(&mut self, env: &mut Env, policy: RecoveryPolicy) {
        self.recovery = policy;
        if policy.is_selective() != self.body.board.is_some() {
            self.drop_early_responses(env);
            if self.body.board.take().is_some() {
                // READs in parts stay so until they are answered.
                self.req.has_parts = !self.body.asked.is_empty();
            } else {
                self.body.board = Some(Board::new(self.req.una_psn));
                self.req.has_parts = true;
            }
            // What the peer has said is forgotten, and more may be in flight than there may be: only from the oldest PSN on is
            // everything known to arrive.
            if self.req.nxt_psn != self.req.una_psn {
                self.rewind();
                if matches!(self.state, QpState::Rts | QpState::Sqd) {
                    self.schedule_requests(env);
                }
            }
        }
        self.refresh_timeout(env);
        self.restart_timers(env);
    }

    /// Timers are those of the policy that was set just now, whatever is in flight already.
    fn restart_timers(&mut self, env: &mut Env) {
        if self.req.unresolved {
            // Nothing was sent yet that could be lost: the timer waits for the neighbour.
            return;
        }
        self.req.deadline = Time::NEVER;
        let is_waiting = self.req.una_psn != self.req.max_psn && self.req.rnr_until == Time::NEVER;
        if !is_waiting || !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        if self.req.timeout_ns > 0 {
            self.req.deadline = env.now.add_ns(self.req.timeout_ns);
        }
        self.start_probe(env);
        self.arm_timer(env);
    }

    /// The board of a QP whose first PSN was set, or that starts anew.
    pub(super) fn reset_board(&mut self, env: &mut Env) {
        self.drop_early_responses(env);
        self.body.late_responses = Lateness::NEW;
        self.body.board = None;
        self.body.asked.clear();
        self.req.has_parts = self.recovery.is_selective();
        if self.recovery.is_selective() {
            self.body.board = Some(Board::new(self.req.una_psn));
        }
    }

    /// The QP is over: what is kept for it goes.
    pub(super) fn drop_board(&mut self, env: &mut Env) {
        self.drop_early_responses(env);
        if let Some(board) = &mut self.body.board {
            board.rest();
            board.lost.clear();
        }
    }

    /// Sets the long timer's length: of go-back-N the verbs attribute, else what the board says, which that bounds.
    pub(super) fn refresh_timeout(&mut self, env: &Env) {
        let attribute_ns = self.body.cold.timeout_ns;
        let board = self.body.board.as_deref();
        self.req.timeout_ns =
            board.map_or(attribute_ns, |board| board.long_ns(&self.body.cold.rtt, &env.recovery, attribute_ns));
    }

    /// Request packets that may be unacknowledged.
    #[inline]
    pub(super) fn window_packets(&self) -> u32 {
        let limit = self.window_packets;
        // What a selective acknowledgement can't name would be sent in vain.
        if self.recovery.is_selective() { limit.min(WINDOW) } else { limit }
    }

    /// The slot that a PSN in flight belongs to: its number, not its index.
    pub(super) fn slot_at(&self, psn: Psn) -> Option<u32> {
        let (mut low, mut count) = (self.req.una_slot, self.req.started.wrapping_sub(self.req.una_slot));
        // The first whose end is after the PSN; local work requests have no PSN of their own.
        while count > 0 {
            let middle = low.wrapping_add(count / 2);
            if psn.is_before(self.body.slots[self.slot_index(middle)].end_psn()) {
                count /= 2;
            } else {
                low = middle.wrapping_add(1);
                count -= count / 2 + 1;
            }
        }
        let slot = &self.body.slots[self.slot_index(low)];
        (low != self.req.started && !psn.is_before(slot.first_psn)).then_some(low)
    }

    /// A response for a QP that repeats selectively. False if it says nothing.
    pub(super) fn take_selectively(&mut self, env: &mut Env, frame: &Frame<'_>) -> bool {
        let psn = frame.bth().psn;
        match frame.info().kind {
            OpKind::Acknowledge => {
                env.counters.rx_acks += 1;
                match frame.aeth().map(|aeth| aeth.syndrome) {
                    Some(Syndrome::Ack { .. }) => self.take_ack(env, psn.add(1)),
                    Some(syndrome) => self.handle_ack(env, psn, syndrome),
                    None => {}
                }
            }
            OpKind::ReadResponse | OpKind::AtomicAcknowledge => self.take_response(env, frame),
            _ => return false,
        }
        self.detect_losses(env);
        true
    }

    /// A plain acknowledgement of everything before `end`: it left the peer after all the responses to it.
    fn take_ack(&mut self, env: &mut Env, end: Psn) {
        self.note_executed(env, end);
        if let Some(board) = &mut self.body.board
            && board.response_end.is_before(end)
        {
            board.response_end = end;
        }
        self.advance_executed(env);
    }

    /// The peer has executed everything before `end`.
    fn note_executed(&mut self, env: &mut Env, end: Psn) {
        let last = end.sub(1);
        let is_in_flight = self.slot_at(last).is_some();
        let Some(board) = &mut self.body.board else { return };
        if !board.acked_end.is_before(end) {
            return;
        }
        if board.is_taken_back(self.req.una_psn, end) {
            self.schedule_requests(env);
        }
        let Some(board) = &mut self.body.board else { return };
        if is_in_flight {
            board.note_arrival(last, &self.body.cold.rtt, env.now, &env.recovery);
        }
        board.note_executed(end);
        board.note_progress(env.now);
    }

    /// Moves on as far as the peer has executed and answered.
    fn advance_executed(&mut self, env: &mut Env) {
        if self.state == QpState::Err {
            // A response has just broken it: what is behind that is flushed.
            return;
        }
        if let Some(end) = self.body.board.as_ref().map(|board| board.acked_end) {
            // A READ that is not answered in full is no gap here: what is missing of it is asked for by itself.
            let _ = self.advance_to(env, end);
        }
    }

    /// A selective acknowledgement. One for a QP that goes back N is a NAK for the PSN that is missing.
    pub(super) fn take_sack(&mut self, env: &mut Env, psn: Psn, sack: &SackEthRepr) -> bool {
        let missing = psn.add(1);
        if missing.is_before(self.req.una_psn) {
            env.counters.duplicate_ack += 1;
            return false;
        }
        if !missing.is_before(self.req.max_psn) {
            env.counters.ghost_ack += 1;
            return false;
        }
        env.counters.rx_sacks += 1;
        self.body.cold.counters.sacks += 1;
        if self.body.board.is_none() {
            // More of them follow for the same gap, where a NAK comes once.
            let _ = self.advance_to(env, missing);
            if self.req.rnr_until == Time::NEVER {
                self.handle_gap(env);
            }
            return true;
        }
        self.note_executed(env, missing);
        self.advance_executed(env);
        if self.req.rnr_until != Time::NEVER {
            // The wait after an RNR NAK ends with going back anyway, and the peer has dropped what it had.
            return true;
        }
        self.note_sacked(env, PsnSet::from_sack(sack, missing), missing);
        self.detect_losses(env);
        true
    }

    fn note_sacked(&mut self, env: &Env, named: PsnSet, missing: Psn) {
        let (una, nxt) = (self.req.una_psn, self.req.nxt_psn);
        let cold = &mut self.body.cold;
        let Some(board) = &mut self.body.board else { return };
        let mut new = named.without(&board.sacked);
        while let Some(psn) = new.first_from(missing.add(1)) {
            new.remove(psn);
            // The peer may say what it likes: it counts for what is in flight only.
            if !psn.is_before(nxt) || psn.distance_from(una) >= WINDOW.cast_signed() {
                break;
            }
            if psn.is_before(board.acked_end) {
                // What is executed meanwhile is known better: of a READ this bit would stand for a response.
                continue;
            }
            board.sacked.insert(psn);
            board.lost.remove(psn);
            board.note_arrival(psn, &cold.rtt, env.now, &env.recovery);
            board.note_progress(env.now);
            if board.request_end.is_before(psn.add(1)) {
                board.request_end = psn.add(1);
            }
            if let Some(ns) = cold.rtt.arrived(psn, env.now) {
                cold.rtt.sample(ns);
            }
        }
    }

    /// A READ response or atomic result: taken if it is its turn, kept if it is early.
    fn take_response(&mut self, env: &mut Env, frame: &Frame<'_>) {
        let psn = frame.bth().psn;
        let Some(number) = self.slot_at(psn) else { return };
        let slot = self.body.slots[self.slot_index(number)];
        if !slot.opcode.is_read_or_atomic() {
            // Refused as ever, with everything before it acknowledged.
            self.handle_in_turn(env, frame);
            return;
        }
        let executed_end = self.asked_with(psn, &slot).end;
        let (rtt, Some(board)) = (&mut self.body.cold.rtt, &mut self.body.board) else { return };
        board.note_response(psn, rtt, env.now, &env.recovery);
        board.note_executed(executed_end);
        board.note_progress(env.now);
        if board.response_end.is_before(psn.add(1)) {
            board.response_end = psn.add(1);
        }
        if let Some(ns) = rtt.arrived(psn, env.now) {
            rtt.sample(ns);
        }
        self.advance_executed(env);
        if self.req.una_psn == psn {
            self.handle_in_turn(env, frame);
            self.take_kept(env);
            return;
        }
        let (una, origin) = (self.req.una_psn, env.origin(self.port, frame));
        let (Some(board), Some(early)) = (&mut self.body.board, &mut self.body.early) else { return };
        let keeping = early.keep(&mut env.keep, una, psn, frame.bytes(), origin);
        if keeping == Keeping::Kept {
            board.lost.remove(psn);
        }
        keeping.count_response(&mut env.counters);
    }

    /// A response whose PSN is the oldest without acknowledgement.
    #[inline]
    pub(super) fn handle_in_turn(&mut self, env: &mut Env, frame: &Frame<'_>) {
        if frame.info().kind == OpKind::ReadResponse {
            self.handle_read_response(env, frame);
        } else {
            self.handle_atomic_ack(env, frame);
        }
    }

    /// Takes the responses that were kept, as far as their turn has come.
    fn take_kept(&mut self, env: &mut Env) {
        loop {
            self.advance_executed(env);
            let una = self.req.una_psn;
            let Some(kept) = self.body.early.as_mut().and_then(|early| early.take(&env.keep, una, una)) else { return };
            let lent = env.keep.lend();
            if let Some(frame) = lent.frame(kept) {
                self.handle_in_turn(env, &frame);
            }
            env.keep.take_back(lent, kept);
        }
    }

    /// Looks at what has not come of what is in flight, and marks what is lost.
    pub(super) fn detect_losses(&mut self, env: &mut Env) {
        let before = self.body.board.as_ref().map_or(0, |board| board.lost.count());
        self.judge_missing(env);
        let Some(board) = &self.body.board else { return };
        let lost = board.lost.count();
        if lost <= before || !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        // Responses that are missing are asked for in one piece: going back would ask for more, and for what is here already.
        let executed = board.acked_end.distance_from(self.req.una_psn).cast_unsigned();
        let holes = board.lost.without(&PsnSet::range(self.req.una_psn, executed)).count();
        self.note_loss(env, RetryKind::Selective);
        if self.recovery == RecoveryPolicy::Hybrid && holes > env.recovery.holes {
            self.go_back(env);
        }
        self.schedule_requests(env);
    }

    fn judge_missing(&mut self, env: &Env) {
        let una = self.req.una_psn;
        let in_flight = self.in_flight().min(WINDOW);
        let early = self.body.early.as_ref().map_or(PsnSet::EMPTY, |early| *early.set());
        let Some(board) = &mut self.body.board else { return };
        board.reorder_at = Time::NEVER;
        // Nothing beyond what has come is missing, unless it was sent again.
        let ends = [board.request_end, board.response_end];
        let come = ends.map(|end| end.distance_from(una)).into_iter().max().unwrap_or(0).cast_unsigned();
        let repeated = board.repeated.last_from(una).map_or(0, |psn| psn.distance_from(una).cast_unsigned() + 1);
        let span = come.max(repeated).min(in_flight);
        let mut open = PsnSet::range(una, span).without(&board.lost).without(&board.sacked).without(&early);
        while let Some(psn) = open.first_from(una) {
            let Some(number) = self.slot_at(psn) else { return };
            let slot = self.body.slots[self.slot_index(number)];
            let asked = self.asked_with(psn, &slot);
            let Some(board) = &mut self.body.board else { return };
            let (is_read, is_executed) = (slot.opcode.is_read_or_atomic(), psn.is_before(board.acked_end));
            let next = psn.add(1);
            let (looked_at, is_passed) = match (is_read, is_executed) {
                // Its request is on its way, whatever PSN of it this is, and has its own place in the map.
                (true, false) if psn != asked.start => (asked.end, None),
                (false, true) => (earlier(slot.end_psn(), board.acked_end), None),
                (true, true) => (next, Some(psn.is_before(board.response_end))),
                (_, false) => (next, Some(psn.is_before(board.request_end))),
            };
            // Of a READ that waits at the peer for what is before it, nothing is missing.
            let is_waiting = is_read && !is_executed && board.sacked.contains(asked.start);
            if let (Some(is_passed), false) = (is_passed, is_waiting)
                && let Verdict::LostAt(at) =
                    board.judge(psn, psn == una, is_passed, &self.body.cold.rtt, &env.recovery, env.now)
            {
                if at <= env.now {
                    board.lost.insert(psn);
                } else {
                    board.reorder_at = board.reorder_at.min(at);
                }
            }
            let count = looked_at.distance_from(psn).cast_unsigned();
            open = open.without(&PsnSet::range(psn, count.min(WINDOW)));
        }
    }

    /// Sends what is lost again, one packet a call. `None` if nothing is.
    pub(super) fn transmit_lost<T: TxBatch>(&mut self, env: &mut Env, tx: &mut T) -> Option<Step> {
        let una = self.req.una_psn;
        let board = self.body.board.as_deref_mut()?;
        let psn = board.lost.first_from(una)?;
        let acked_end = board.acked_end;
        let Some(number) = self.slot_at(psn).filter(|_| psn.is_before(self.req.nxt_psn)) else {
            // Nothing that is in flight: the cursor will come to it.
            self.body.board.as_deref_mut()?.lost.remove(psn);
            return Some(Step::Sent);
        };
        if self.cc.is_paced() && !self.may_send_paced(env, Output::Request) {
            return Some(Step::Idle);
        }
        if tx.room() == 0 {
            return Some(Step::NoRoom);
        }
        let index = self.slot_index(number);
        let slot = self.body.slots[index];
        let packet = psn.distance_from(slot.first_psn).cast_unsigned();
        let is_response = slot.opcode.is_read_or_atomic() && psn.is_before(acked_end);
        let psns = self.psns_to_repeat(psn, &slot, is_response);
        let asked = psns << self.mtu.shift();
        match self.push_packet(env, tx, &slot, index, packet, psn, asked, true) {
            Ok(frame_len) => {
                if self.cc.paces(slot.opcode) {
                    let read_bytes = if slot.opcode == WrOpcode::RdmaRead { asked } else { 0 };
                    self.charge_pacer(env, frame_len, read_bytes);
                }
                self.after_repeat(env, psn, psns, is_response);
                Some(Step::Sent)
            }
            Err(cause) => {
                // It fails when its turn comes, as one that can't be sent for the first time does.
                self.body.slots[index].error = Some(super::slot::WqeError::of_packet(cause));
                env.counters.req_local_errors += 1;
                self.rewind();
                self.schedule_requests(env);
                Some(Step::Idle)
            }
        }
    }

    /// How many PSNs the repeat of a packet stands for: of a READ that was executed, what is missing in one piece and was asked
    /// for by one request.
    fn psns_to_repeat(&self, psn: Psn, slot: &SendSlot, is_response: bool) -> u32 {
        if slot.sends_payload() {
            return 1;
        }
        let left = self.asked_with(psn, slot).end.distance_from(psn).cast_unsigned().min(WINDOW);
        let Some(board) = self.body.board.as_deref().filter(|_| is_response) else { return left };
        (1..left).find(|&offset| !board.lost.contains(psn.add(offset))).unwrap_or(left)
    }

    fn after_repeat(&mut self, env: &mut Env, psn: Psn, psns: u32, is_response: bool) {
        self.note_sent();
        env.counters.retransmitted_packets += 1;
        env.counters.selective_repeats += 1;
        self.body.cold.counters.retransmitted_packets += 1;
        self.body.cold.rtt.forget_if(psn, if is_response { psns } else { 1 });
        let Some(board) = &mut self.body.board else { return };
        if is_response {
            board.note_asked_again(psn, psns, env.now);
        } else {
            board.note_sent(psn, psns, true, env.now);
        }
        // Whether it comes this time is looked at when the short timer of a repeat ends, if nothing says so before.
        let at = env.now.add_ns(u64::from(env.recovery.rto_low_us) * 1_000);
        board.reorder_at = board.reorder_at.min(at);
        if self.req.deadline == Time::NEVER && self.req.timeout_ns > 0 {
            self.req.deadline = env.now.add_ns(self.req.timeout_ns);
        }
        self.arm_timer(env);
    }

    /// Starts the short timer when something goes out and it does not run.
    #[inline]
    pub(super) fn start_probe(&mut self, env: &mut Env) {
        let in_flight = self.in_flight();
        let Some(board) = &mut self.body.board else { return };
        if board.probe_at == Time::NEVER {
            board.start_probe(in_flight, &self.body.cold.rtt, &env.recovery, env.now);
            self.arm_timer(env);
        }
    }

    /// The long timer fired once more without progress: it runs twice as long the next time.
    pub(super) fn back_off(&mut self, env: &Env) {
        if let Some(board) = &mut self.body.board {
            board.backoff = board.backoff.saturating_add(1);
        }
        self.refresh_timeout(env);
    }

    /// The long timer of pure selective repeat fired: only the oldest packet goes again, and the answer will say what else is
    /// missing. False if that is not how it is done.
    pub(super) fn repeat_oldest(&mut self, kind: RetryKind) -> bool {
        let una = self.req.una_psn;
        let is_sent = una.is_before(self.req.nxt_psn);
        let Some(board) = &mut self.body.board else { return false };
        if !matches!(kind, RetryKind::Timeout(_)) || !is_sent {
            return false;
        }
        board.forget_claims();
        board.lost.insert(una);
        true
    }

    /// A timer of the board fired, or may have.
    #[cold]
    pub(super) fn handle_board_timer(&mut self, env: &mut Env) {
        let in_flight = self.in_flight();
        let is_running = matches!(self.state, QpState::Rts | QpState::Sqd) && self.req.rnr_until == Time::NEVER;
        let Some(board) = &mut self.body.board else { return };
        if !is_running || self.req.una_psn == self.req.max_psn {
            board.rest();
            return;
        }
        if board.reorder_at <= env.now {
            self.detect_losses(env);
        }
        let Some(board) = &mut self.body.board else { return };
        if board.probe_at <= env.now
            && board.is_silent(in_flight, &self.body.cold.rtt, &env.recovery, env.now)
            && in_flight > 0
            && board.lost.is_empty()
        {
            self.probe(env);
        }
    }

    /// Sends the last packet in flight once more, so that the peer says what it has; every other time the oldest one.
    fn probe(&mut self, env: &mut Env) {
        let (una, nxt) = (self.req.una_psn, self.req.nxt_psn);
        let last = nxt.sub(1);
        let slot = self.slot_at(last).map(|number| self.body.slots[self.slot_index(number)]);
        let request =
            slot.filter(|slot| slot.opcode.is_read_or_atomic()).map(|slot| self.asked_with(last, &slot).start);
        let Some(board) = &mut self.body.board else { return };
        // Of what was executed, the last response; the peer answers only if all before it were sent: so nothing is asked for too
        // early.
        let last = request.filter(|_| !last.is_before(board.acked_end)).unwrap_or(last);
        let is_kept = self.body.early.as_ref().is_some_and(|early| early.set().contains(last));
        let is_there = is_kept || board.sacked.contains(last) || last.is_before(una);
        let psn = if board.probes.is_multiple_of(2) || is_there { una } else { last };
        board.lost.insert(psn);
        env.counters.tail_probes += 1;
        self.schedule_requests(env);
    }
}
