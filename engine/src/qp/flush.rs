//! The way into ERR and SQE, and the completions of everything that was posted. IBTA 10.3.1.

use shm::attr::{QpState, QpType, WcOpcode, WcStatus, WrOpcode};
use shm::control::AsyncEvent;
use shm::layout::Cqe;
use shm::ring::set_qp_error;

use super::{NONE, Qp};
use crate::cause::ErrorCause;
use crate::ready::Output;
use crate::shard::Env;
use crate::time::Time;

impl Qp {
    /// Puts the QP in ERR and starts the flush. A NAK that waits to be sent is still sent.
    pub(super) fn enter_error(&mut self, env: &mut Env, cause: ErrorCause) {
        if self.state == QpState::Err {
            return;
        }
        if cause != ErrorCause::ByApplication {
            self.capture_break(env, cause);
        }
        self.state = QpState::Err;
        self.body.cold.error = Some(cause);
        self.req.deadline = Time::NEVER;
        self.req.rnr_until = Time::NEVER;
        self.drop_kept_requests(env);
        self.drop_board(env);
        self.drop_answers();
        // The client's next post sees the error word, or the flush below sees what it posted.
        set_qp_error(&self.body.cold.block, true);
        self.schedule(env, Output::Flush);
    }

    /// A send of a UC or UD QP has failed: its send queue stops and is flushed, its receive queue goes on. IBTA 10.3.1.6.
    pub(super) fn enter_send_error(&mut self, env: &mut Env, cause: ErrorCause) {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        self.capture_break(env, cause);
        self.state = QpState::Sqe;
        self.body.cold.error = Some(cause);
        self.req.rnr_until = Time::NEVER;
        self.schedule(env, Output::Flush);
    }

    /// The way from SQE back to RTS: what was posted before is flushed, what comes next starts a message of its own.
    pub(super) fn leave_send_error(&mut self, env: &mut Env) {
        // As many as the queue has, so that a client that keeps posting can't keep the shard here.
        let mut left = self.body.slots.len();
        while left > 0 && self.flush_one_send(env) {
            left -= 1;
        }
        let req = &mut self.req;
        (req.una_psn, req.max_psn) = (req.nxt_psn, req.nxt_psn);
        (req.nxt_slot, req.started, req.nxt_packet) = (req.una_slot, req.una_slot, 0);
        self.body.cold.error = None;
    }

    /// Flushes up to `limit` work requests. True if there may be more.
    pub(crate) fn flush(&mut self, env: &mut Env, limit: u32) -> bool {
        if !matches!(self.state, QpState::Err | QpState::Sqe) {
            return false;
        }
        let mut left = limit;
        while left > 0 && self.flush_one_send(env) {
            left -= 1;
        }
        if self.state == QpState::Sqe {
            return left == 0;
        }
        while left > 0 && self.flush_one_recv(env) {
            left -= 1;
        }
        if self.srq != NONE && self.kind != QpType::XrcRecv && !self.body.cold.last_wqe_reported {
            // IBTA 11.6.3.4: no receive of the SRQ is in this QP's hands any more.
            self.body.cold.last_wqe_reported = true;
            env.push_event(self.session, AsyncEvent::QpLastWqeReached { qpn: self.qpn.value() });
        }
        left == 0
    }

    fn flush_one_send(&mut self, env: &mut Env) -> bool {
        let (wr_id, opcode) = if self.req.una_slot != self.req.fetched {
            let slot = &self.body.slots[self.slot_index(self.req.una_slot)];
            let found = (slot.wr_id, WcOpcode::from(slot.opcode));
            self.req.una_slot = self.req.una_slot.wrapping_add(1);
            found
        } else {
            // A ring that the client corrupted has nothing trustworthy in it.
            if !matches!(self.body.sq.available(), Ok(1..)) {
                return false;
            }
            self.req.fetched = self.req.fetched.wrapping_add(1);
            self.req.una_slot = self.req.fetched;
            let wqe = self.body.sq.fetch(&mut [], &mut []).unwrap_or_else(|(wqe, _)| wqe);
            (wqe.wr_id, WrOpcode::from_code(wqe.opcode).map_or(WcOpcode::Send, WcOpcode::from))
        };
        self.push_flushed(env, self.send_cq, wr_id, opcode);
        self.body.sq.retire(1);
        true
    }

    fn flush_one_recv(&mut self, env: &mut Env) -> bool {
        if std::mem::take(&mut self.body.recv.taken) {
            self.push_flushed(env, self.recv_cq, self.body.recv.wr_id, WcOpcode::Recv);
            return true;
        }
        let Some(rq) = &mut self.body.rq else { return false };
        if !matches!(rq.available(), Ok(1..)) {
            return false;
        }
        let wr_id = match rq.fetch(&mut self.body.recv.sges) {
            Ok((wr_id, _)) | Err(wr_id) => wr_id,
        };
        self.push_flushed(env, self.recv_cq, wr_id, WcOpcode::Recv);
        true
    }

    fn push_flushed(&mut self, env: &mut Env, cq: u32, wr_id: u64, opcode: WcOpcode) {
        env.counters.flushed_wqes += 1;
        let cqe = Cqe {
            wr_id,
            status: WcStatus::WrFlushErr.code(),
            opcode: opcode as u8,
            vendor_err: ErrorCause::Flushed.code(),
            ..Cqe::default()
        };
        self.complete(env, cq, cqe, true);
    }
}
