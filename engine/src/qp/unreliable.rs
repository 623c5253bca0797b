//! The unreliable connection: a message completes when its last packet is sent, and one of which a packet is missing is
//! dropped. IBTA 9.8.2.

use shm::attr::{QpType, WcStatus};
use shm::control::AsyncEvent;
use wire::{Frame, NakCode};

use super::responder::Refusal;
use super::slot::SendSlot;
use super::{Message, Qp};
use crate::cause::ErrorCause;
use crate::counters::ShardCounters;
use crate::shard::Env;

impl Qp {
    /// A packet has been sent, and nobody will acknowledge it.
    #[inline]
    pub(super) fn complete_on_transmit(&mut self, env: &mut Env, slot: &SendSlot, last: bool) {
        self.req.since_ack_request = 0;
        if last {
            self.finish_oldest(env, slot);
            self.body.sq.retire(1);
            self.report_drained(env);
        } else {
            self.req.una_psn = self.req.nxt_psn;
        }
    }

    /// A request packet for this QP, which is UC or UD. Its ICRC is right.
    #[inline]
    pub(crate) fn handle_unreliable(&mut self, env: &mut Env, frame: &Frame<'_>) {
        self.body.cold.heard = env.now;
        match self.kind {
            QpType::Ud => self.handle_datagram(env, frame),
            _ => self.handle_uc_request(env, frame),
        }
    }

    /// IBTA 9.8.2.2: the rest of a message with a gap is dropped, and the next First or Only is taken whatever its PSN.
    #[inline]
    fn handle_uc_request(&mut self, env: &mut Env, frame: &Frame<'_>) {
        let (psn, starts) = (frame.bth().psn, frame.info().position.starts());
        let has_gap = psn != self.resp.epsn;
        if has_gap {
            env.counters.out_of_seq_request += 1;
            self.body.cold.counters.out_of_sequence += 1;
        }
        if has_gap || starts {
            // The message before, if there is one, lacks its end. The receive that it has taken serves the next one.
            self.resp.message = Message::None;
        }
        self.resp.epsn = psn;
        match self.execute(env, frame) {
            Ok(()) => {
                env.counters.rx_requests += 1;
                self.body.cold.counters.rx_requests += 1;
                if !self.resp.established {
                    self.report_established(env);
                }
            }
            Err(refusal) => {
                self.resp.message = Message::None;
                self.resp.epsn = psn.add(1);
                self.drop_unreliable(env, refusal, |counters| counters.uc_dropped_packets += 1);
            }
        }
    }

    /// Nobody is told of a request that can't be executed, and the QP goes on (IBTA 9.9.3, classes D and E); but a receive that
    /// is no good, or a ring that is garbage, breaks the QP (class A).
    #[cold]
    pub(super) fn drop_unreliable(&mut self, env: &mut Env, refusal: Refusal, count: fn(&mut ShardCounters)) {
        count(&mut env.counters);
        let Refusal::Fatal(NakCode::RemoteOperation, cause) = refusal else { return };
        env.counters.resp_local_operation_err += 1;
        if self.body.recv.taken && cause == ErrorCause::BadReceive {
            self.fail_receive(env, WcStatus::LocProtErr, cause);
        } else {
            env.push_event(self.session, AsyncEvent::QpFatal { qpn: self.qpn.value() });
        }
        self.enter_error(env, cause);
    }
}
