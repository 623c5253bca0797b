//! What a QP that breaks by itself leaves for its post-mortem.

use shm::attr::QpAttr;
use shm::control::post_mortem::{FailedRequest, Psns};
use wire::{Frame, OpKind};

use super::Qp;
use super::slot::SendSlot;
use crate::cause::ErrorCause;
use crate::mr::MrFault;
use crate::post_mortem::{BreakRecord, PathFacts, RefusedFacts};
use crate::shard::Env;
use crate::time::Time;

impl Qp {
    /// Copies the facts into the shard's queue. Called while the QP is still in the state that it breaks in.
    #[cold]
    pub(super) fn capture_break(&mut self, env: &mut Env, cause: ErrorCause) {
        self.body.cold.has_broken = true;
        let (req, resp, cold) = (&self.req, &self.resp, &self.body.cold);
        let psns = Psns {
            unacknowledged: req.una_psn.value(),
            next: req.nxt_psn.value(),
            sent_end: req.max_psn.value(),
            expected: resp.epsn.value(),
            msn: resp.msn.value(),
        };
        let record = BreakRecord {
            at: env.now,
            qpn: self.qpn.value(),
            dest_qpn: self.dest_qpn.value(),
            session: self.session,
            kind: self.kind,
            state: self.state,
            cause,
            attr: QpAttr { qp_state: self.state, cur_qp_state: self.state, ..cold.attr },
            psns,
            last_nak: cold.last_nak,
            retries: cold.retries.counts(req.una_psn, env.now),
            rtt: cold.rtt.estimate(),
            heard: cold.heard,
            others_heard: Time::NEVER,
            path: self.path_facts(env),
            request: cold.failed_request,
            refused: cold.refused,
            counters: cold.counters,
        };
        env.counters.post_mortems_lost += u64::from(!env.breaks.push(&record));
    }

    /// True if it broke by itself at any time since it was made.
    pub(crate) fn has_broken(&self) -> bool {
        self.body.cold.has_broken
    }

    /// Headers of its packets; `None` before RTR.
    fn path_facts(&self, env: &Env) -> Option<PathFacts> {
        let facts = self.body.path.as_ref()?.facts(&env.ports)?;
        Some(PathFacts { path_mtu: self.mtu.bytes(), ..facts })
    }

    /// Remembers the work request that is about to complete with an error.
    #[cold]
    pub(super) fn note_failed_request(&mut self, slot: &SendSlot) {
        self.body.cold.failed_request = Some(FailedRequest {
            wr_id: slot.wr_id,
            opcode: slot.opcode,
            length: slot.length,
            remote_addr: slot.remote_addr,
            rkey: if slot.rkey != 0 { slot.rkey } else { slot.imm },
        });
    }

    /// Remembers what the peer wanted to reach, and asks the table once more why it may not.
    #[cold]
    pub(super) fn note_refused(&mut self, env: &Env, frame: &Frame<'_>) {
        let operation = frame.info().kind;
        let asked = match (frame.reth(), frame.atomiceth(), frame.ieth()) {
            (Some(reth), ..) => Some((reth.va, reth.rkey.0, reth.dma_len)),
            (None, Some(atomic), _) => Some((atomic.va, atomic.rkey.0, 8)),
            (None, None, Some(ieth)) => Some((0, ieth.rkey.0, 0)),
            _ if operation == OpKind::Write => {
                let cursor = self.resp.write;
                Some((cursor.va, cursor.rkey, cursor.left))
            }
            _ => None,
        };
        let Some((addr, rkey, length)) = asked else { return };
        let needed = super::responder::rights_for(operation);
        let fault = if length == 0 && env.mrs.get(rkey).is_none() {
            Some(MrFault::UnknownKey)
        } else {
            env.mrs.resolve_remote(rkey, (self.pd, self.qpn), addr, length, needed).err()
        };
        self.body.cold.refused = Some(RefusedFacts { operation, addr, length, rkey, fault });
    }

    /// When the peer at this address last sent it something; `None` if it is another peer's QP, or it never did.
    pub(crate) fn heard_from(&self, peer: std::net::IpAddr) -> Option<Time> {
        let heard = self.body.cold.heard;
        let same = self.body.path.as_ref().is_some_and(|path| path.peer() == peer);
        (same && heard != Time::NEVER).then_some(heard)
    }
}
