//! What never leaves the engine: binding memory windows and invalidating keys. IBTA 10.6.7, 11.4.1.1.
//!
//! A local work request takes no PSN. It is executed once, when the cursor comes to it (and, with a fence, after all READs and
//! atomics before it are answered), and completes when everything before it has.

use shm::attr::{AccessFlags, WcStatus, WrOpcode};

use super::slot::{SendSlot, WqeError};
use super::{Qp, Step};
use crate::cause::ErrorCause;
use crate::mr::window::Bind;
use crate::shard::Env;

impl Qp {
    /// Executes the local work request at the cursor, unless that went back over one that is executed already.
    #[cold]
    pub(super) fn execute_local(&mut self, env: &mut Env, slot: SendSlot) -> Step {
        let index = self.slot_index(self.req.nxt_slot);
        if self.req.nxt_slot == self.req.started {
            self.body.slots[index].first_psn = self.req.nxt_psn;
            if let Err(cause) = self.do_local(env, &slot) {
                let error = WqeError { status: WcStatus::MwBindErr, cause };
                self.body.slots[index].error = Some(error);
                env.counters.req_local_errors += 1;
                if self.req.una_slot == self.req.nxt_slot {
                    self.fail_oldest(env, error.status, error.cause);
                }
                return Step::Idle;
            }
            self.req.started = self.req.started.wrapping_add(1);
            self.req.locals += 1;
        }
        self.req.nxt_slot = self.req.nxt_slot.wrapping_add(1);
        self.finish_locals(env);
        Step::Sent
    }

    fn do_local(&mut self, env: &mut Env, slot: &SendSlot) -> Result<(), ErrorCause> {
        if slot.opcode == WrOpcode::LocalInv {
            let done = env.mrs.invalidate(slot.imm, self.pd, self.qpn);
            return if done { Ok(()) } else { Err(ErrorCause::InvalidateFailed) };
        }
        let bind = Bind {
            window: slot.rkey,
            key: slot.imm,
            region: (slot.swap >> 32) as u32,
            addr: slot.remote_addr,
            length: slot.compare_add,
            access: AccessFlags(slot.swap as u32),
        };
        self.body.cold.has_windows = true;
        env.mrs.bind(bind, self.pd, self.qpn)
    }

    /// Completes local work requests that have become the oldest.
    #[cold]
    pub(super) fn finish_locals(&mut self, env: &mut Env) {
        while self.req.locals > 0 && self.req.una_slot != self.req.started {
            let slot = self.body.slots[self.slot_index(self.req.una_slot)];
            if slot.packets > 0 {
                break;
            }
            self.finish_oldest(env, &slot);
            self.body.sq.retire(1);
        }
    }

    /// A local work request is complete. `ahead`: the cursor is beyond it already; one that went back to it has nothing to do
    /// there.
    #[cold]
    pub(super) fn pass_local(&mut self, ahead: bool) {
        self.req.locals -= 1;
        if !ahead {
            self.req.nxt_slot = self.req.una_slot;
        }
    }
}
