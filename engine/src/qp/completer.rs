//! The completer: matches acknowledgements and responses to work requests. IBTA 9.7.5.

use shm::attr::{QpState, SendFlags, WcOpcode, WcStatus, WrOpcode};
use shm::layout::Cqe;
use wire::{Frame, NakCode, OpKind, Psn, RnrTimer, Syndrome};

use super::slot::SendSlot;
use super::{Qp, transfer};
use crate::cause::ErrorCause;
use crate::post_mortem::RetryKind;
use crate::shard::Env;
use crate::time::Time;

/// Where a response's PSN lies among those that were sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ResponsePsn {
    /// Acknowledged already.
    Old,
    /// Outstanding.
    Outstanding,
    /// Never sent.
    Ghost,
}

/// How far an acknowledgement reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Advance {
    /// All the way.
    Done,
    /// A READ or atomic before the PSN has not been answered: an implied NAK. IBTA 9.7.5.1.2.
    Gap,
}

impl Qp {
    /// An Acknowledge, READ response or ATOMIC Acknowledge for this QP. Its ICRC is right.
    #[inline]
    pub(crate) fn handle_response(&mut self, env: &mut Env, frame: &Frame<'_>) {
        let psn = frame.bth().psn;
        self.body.cold.heard = env.now;
        let una = self.req.una_psn;
        let said = if let Some(sack) = frame.sacketh() {
            self.take_sack(env, psn, &sack)
        } else {
            self.is_outstanding(env, psn)
                && if self.recovery.is_selective() {
                    self.take_selectively(env, frame)
                } else {
                    self.take_in_order(env, frame)
                }
        };
        if !said {
            return;
        }
        let packets = self.req.una_psn.distance_from(una).cast_unsigned();
        let rtt = self.body.cold.rtt.answered(self.req.una_psn, env.now);
        self.note_acknowledged(env, packets, rtt);
        if self.recovery.is_selective() && packets > 0 {
            self.refresh_timeout(env);
        }
        self.after_progress(env);
    }

    /// False, and counted, if the PSN is acknowledged already or was never sent.
    #[inline]
    fn is_outstanding(&mut self, env: &mut Env, psn: Psn) -> bool {
        match self.classify_response(psn) {
            ResponsePsn::Outstanding => return true,
            ResponsePsn::Old => {
                env.counters.duplicate_ack += 1;
                self.note_repeated_response(psn);
            }
            ResponsePsn::Ghost => env.counters.ghost_ack += 1,
        }
        false
    }

    /// A response for a QP that goes back N.
    #[inline]
    fn take_in_order(&mut self, env: &mut Env, frame: &Frame<'_>) -> bool {
        let psn = frame.bth().psn;
        match frame.info().kind {
            OpKind::Acknowledge => {
                env.counters.rx_acks += 1;
                if let Some(aeth) = frame.aeth() {
                    self.handle_ack(env, psn, aeth.syndrome);
                }
            }
            OpKind::ReadResponse | OpKind::AtomicAcknowledge => {
                if self.advance_to(env, psn) == Advance::Gap {
                    self.take_early_response(env, frame);
                    return true;
                }
                self.handle_in_turn(env, frame);
            }
            _ => {}
        }
        if self.req.has_early {
            self.take_early_responses(env, psn);
        }
        true
    }

    #[inline]
    fn classify_response(&self, psn: Psn) -> ResponsePsn {
        if psn.is_before(self.req.una_psn) {
            ResponsePsn::Old
        } else if psn.is_before(self.req.max_psn) {
            ResponsePsn::Outstanding
        } else {
            ResponsePsn::Ghost
        }
    }

    #[inline]
    pub(super) fn handle_ack(&mut self, env: &mut Env, psn: Psn, syndrome: Syndrome) {
        match syndrome {
            Syndrome::Ack { .. } => {
                if self.advance_to(env, psn.add(1)) == Advance::Gap {
                    self.handle_gap(env);
                }
            }
            Syndrome::RnrNak { timer } => self.handle_rnr_nak(env, psn, timer),
            Syndrome::Nak(NakCode::PsnSequence) => self.handle_sequence_nak(env, psn),
            Syndrome::Nak(code) => self.handle_fatal_nak(env, psn, code),
            Syndrome::Reserved(byte) => {
                self.body.cold.last_nak = Some((byte, psn));
                env.counters.req_remote_errors += 1;
                self.fail_oldest(env, WcStatus::BadRespErr, ErrorCause::ReservedSyndrome);
            }
        }
    }

    /// Takes everything before `end` as acknowledged.
    #[inline]
    pub(super) fn advance_to(&mut self, env: &mut Env, end: Psn) -> Advance {
        let mut retired = 0;
        let mut reached = Advance::Done;
        while self.req.una_slot != self.req.started && self.req.una_psn.is_before(end) {
            let slot = self.body.slots[self.slot_index(self.req.una_slot)];
            if slot.opcode.is_read_or_atomic() {
                reached = Advance::Gap;
                break;
            }
            if end.is_before(slot.end_psn()) {
                self.move_una(end);
                break;
            }
            self.finish_oldest(env, &slot);
            retired += 1;
        }
        if retired > 0 {
            self.body.sq.retire(retired);
        }
        if self.req.locals > 0 {
            self.finish_locals(env);
        }
        reached
    }

    /// The oldest PSN is acknowledged up to `psn`: retries count anew.
    #[inline]
    fn move_una(&mut self, psn: Psn) {
        if let Some(board) = &mut self.body.board {
            board.slide(self.req.una_psn, psn);
        }
        if self.req.has_parts {
            self.slide_parts(self.req.una_psn, psn);
        }
        self.req.una_psn = psn;
        self.req.retry_left = self.req.retry_cnt;
        self.req.rnr_left = self.req.rnr_retry;
        self.req.gap_seen = false;
        self.req.deadline = Time::NEVER;
        // An acknowledgement may pass a cursor that went back.
        if self.req.nxt_psn.is_before(psn) {
            self.rewind();
        }
    }

    /// Completes the oldest work request with success and moves on to the next. The caller retires its slot.
    #[inline]
    pub(super) fn finish_oldest(&mut self, env: &mut Env, slot: &SendSlot) {
        let ahead = self.req.nxt_slot != self.req.una_slot;
        self.req.una_slot = self.req.una_slot.wrapping_add(1);
        if slot.packets == 0 {
            self.pass_local(ahead);
        }
        if slot.opcode.is_read_or_atomic() && ahead && !self.req.has_parts {
            self.req.rd_outstanding = self.req.rd_outstanding.saturating_sub(1);
        }
        self.move_una(slot.end_psn());
        env.counters.completed_wqes += 1;
        self.body.cold.counters.completed_wqes += 1;
        if slot.flags.contains(SendFlags::SIGNALED) {
            let cqe = Cqe {
                wr_id: slot.wr_id,
                status: WcStatus::Success.code(),
                opcode: WcOpcode::from(slot.opcode) as u8,
                byte_len: slot.length,
                ..Cqe::default()
            };
            self.complete(env, self.send_cq, cqe, false);
        }
    }

    /// After a response: the timer runs while something is outstanding, and what was held back may go.
    #[inline]
    fn after_progress(&mut self, env: &mut Env) {
        if self.state == QpState::Err {
            return;
        }
        let req = &mut self.req;
        if req.una_psn == req.max_psn {
            req.deadline = Time::NEVER;
            if let Some(board) = &mut self.body.board {
                board.rest();
            }
        } else if req.deadline == Time::NEVER && req.timeout_ns > 0 && req.rnr_until == Time::NEVER {
            req.deadline = env.now.add_ns(req.timeout_ns);
            self.arm_timer(env);
        }
        if self.recovery.is_selective() {
            self.arm_timer(env);
        }
        if self.req.locals > 0 {
            self.finish_locals(env);
        }
        // Work that was held back is fetched already; what comes later rings its doorbell.
        if self.req.nxt_slot != self.req.fetched {
            self.schedule_requests(env);
        }
        self.report_drained(env);
    }

    /// A gap in the answers: a READ or atomic was answered past its turn. Asks again from there at once, but only once for
    /// each gap: the rest of that burst is on its way and says nothing new.
    #[inline]
    pub(super) fn handle_gap(&mut self, env: &mut Env) {
        if !self.req.gap_seen {
            env.counters.implied_nak_seq_err += 1;
            self.retry(env, RetryKind::Gap);
            self.req.gap_seen = true;
        }
    }

    fn handle_rnr_nak(&mut self, env: &mut Env, psn: Psn, timer: RnrTimer) {
        env.counters.rcvd_rnr_err += 1;
        self.body.cold.counters.rnr_naks += 1;
        self.body.cold.last_nak = Some((Syndrome::RnrNak { timer }.to_byte(), psn));
        if self.req.rnr_until != Time::NEVER {
            // The same once more: it is being waited for.
            return;
        }
        if self.advance_to(env, psn) == Advance::Gap {
            self.handle_gap(env);
            return;
        }
        self.note_loss(env, RetryKind::RnrNak);
        // IBTA 9.7.5.2.8: 7 retries for ever.
        if self.req.rnr_retry != 7 {
            if self.req.rnr_left == 0 {
                env.counters.retry_rnr_exceeded_err += 1;
                self.fail_oldest(env, WcStatus::RnrRetryExcErr, ErrorCause::RnrRetryExceeded);
                return;
            }
            self.req.rnr_left -= 1;
        }
        self.rewind();
        self.req.deadline = Time::NEVER;
        self.req.rnr_until = env.now.add_ns(timer.duration_ns());
        self.arm_timer(env);
    }

    pub(super) fn handle_sequence_nak(&mut self, env: &mut Env, psn: Psn) {
        env.counters.rcvd_seq_err += 1;
        self.body.cold.counters.sequence_naks += 1;
        self.body.cold.last_nak = Some((Syndrome::Nak(NakCode::PsnSequence).to_byte(), psn));
        if self.req.rnr_until != Time::NEVER {
            // The wait after an RNR NAK ends with going back anyway.
            return;
        }
        if self.advance_to(env, psn) == Advance::Gap {
            self.handle_gap(env);
        } else if self.is_repeated_already(env.now) {
            env.counters.stale_naks += 1;
        } else {
            self.retry(env, RetryKind::SequenceNak);
        }
    }

    fn handle_fatal_nak(&mut self, env: &mut Env, psn: Psn, code: NakCode) {
        env.counters.req_remote_errors += 1;
        self.body.cold.last_nak = Some((Syndrome::Nak(code).to_byte(), psn));
        if self.advance_to(env, psn) == Advance::Gap {
            self.handle_gap(env);
            return;
        }
        let (status, cause) = match code {
            NakCode::RemoteAccess => (WcStatus::RemAccessErr, ErrorCause::NakRemoteAccess),
            NakCode::RemoteOperation => (WcStatus::RemOpErr, ErrorCause::NakRemoteOperation),
            _ => (WcStatus::RemInvReqErr, ErrorCause::NakInvalidRequest),
        };
        self.fail_oldest(env, status, cause);
    }

    /// Brings `una` to a response's PSN: everything before it is acknowledged by it. `None` if a gap, or no such request,
    /// makes the response useless.
    #[inline]
    fn slot_for_response(&mut self, env: &mut Env, psn: Psn, read: bool) -> Option<SendSlot> {
        if self.advance_to(env, psn) == Advance::Gap {
            // Progress stops at an unanswered READ or atomic before this one.
            self.handle_gap(env);
            return None;
        }
        let slot = self.body.slots[self.slot_index(self.req.una_slot)];
        let is_read = slot.opcode == WrOpcode::RdmaRead;
        let wanted = if read { is_read } else { slot.opcode.is_read_or_atomic() && !is_read };
        if self.req.una_slot == self.req.started || self.req.una_psn != psn || !wanted {
            env.counters.req_remote_errors += 1;
            self.fail_oldest(env, WcStatus::BadRespErr, ErrorCause::ResponseOpcode);
            return None;
        }
        Some(slot)
    }

    #[inline]
    pub(super) fn handle_read_response(&mut self, env: &mut Env, frame: &Frame<'_>) {
        env.counters.rx_responses += 1;
        let psn = frame.bth().psn;
        let Some(slot) = self.slot_for_response(env, psn, true) else { return };
        let offset = psn.distance_from(slot.first_psn).cast_unsigned() << self.mtu.shift();
        let payload = frame.payload();
        let expected = (slot.length - offset).min(self.mtu.bytes());
        if payload.len() != expected as usize {
            env.counters.req_remote_errors += 1;
            self.fail_oldest(env, WcStatus::LocLenErr, ErrorCause::ResponseLength);
            return;
        }
        if !self.scatter_response(env, &slot, offset, payload) {
            return;
        }
        if psn.add(1) == slot.end_psn() {
            self.finish_oldest(env, &slot);
            self.body.sq.retire(1);
        } else {
            self.move_una(psn.add(1));
        }
    }

    #[inline]
    pub(super) fn handle_atomic_ack(&mut self, env: &mut Env, frame: &Frame<'_>) {
        env.counters.rx_responses += 1;
        let psn = frame.bth().psn;
        let Some(slot) = self.slot_for_response(env, psn, false) else { return };
        // The header is on every ATOMIC Acknowledge that parses.
        let Some(result) = frame.atomicacketh() else { return };
        // The result is a number: it lies in memory in the machine's own order.
        if self.scatter_response(env, &slot, 0, &result.original.to_ne_bytes()) {
            self.finish_oldest(env, &slot);
            self.body.sq.retire(1);
        }
    }

    #[inline]
    fn scatter_response(&mut self, env: &mut Env, slot: &SendSlot, offset: u32, payload: &[u8]) -> bool {
        let start = self.slot_index(self.req.una_slot) * self.body.sq.shape().max_sge as usize;
        let sges = self.body.sges.get(start..start + usize::from(slot.sge_count)).unwrap_or_default();
        let done = transfer::scatter(&env.mrs, self.pd, sges, offset, payload);
        if let Err(fault) = done {
            env.counters.req_local_errors += 1;
            self.fail_oldest(env, WcStatus::LocProtErr, fault.into());
        }
        done.is_ok()
    }

    /// Completes the oldest work request with an error and puts the QP in ERR, or its send queue in SQE (UC, UD). IBTA 10.7.3.3:
    /// whatever is behind it is flushed.
    pub(super) fn fail_oldest(&mut self, env: &mut Env, status: WcStatus, cause: ErrorCause) {
        if self.req.una_slot != self.req.fetched {
            let slot = self.body.slots[self.slot_index(self.req.una_slot)];
            self.note_failed_request(&slot);
            self.req.una_slot = self.req.una_slot.wrapping_add(1);
            let cqe = Cqe {
                wr_id: slot.wr_id,
                status: status.code(),
                opcode: WcOpcode::from(slot.opcode) as u8,
                vendor_err: cause.code(),
                ..Cqe::default()
            };
            // Completion first: a client that outlives us flushes by itself what is not retired.
            self.complete(env, self.send_cq, cqe, true);
            self.body.sq.retire(1);
        }
        if self.kind.is_reliable() {
            self.enter_error(env, cause);
        } else {
            self.enter_send_error(env, cause);
        }
    }
}
