//! What happens to a QP's packets, as loss recovery and congestion control are told of it: each is reported from one place.

use super::Qp;
use crate::post_mortem::RetryKind;
use crate::shard::Env;

impl Qp {
    /// A request packet, first sent or repeated, was built.
    #[inline]
    pub(super) fn note_sent(&mut self) {
        self.body.cold.counters.tx_requests += 1;
    }

    /// An answer came: `packets` PSNs are newly acknowledged (0 if it says nothing new), and `rtt` is the round trip time in ns
    /// of a packet that was sent once, if one was timed.
    #[inline]
    pub(super) fn note_acknowledged(&mut self, env: &mut Env, packets: u32, rtt: Option<u64>) {
        let cold = &mut self.body.cold;
        cold.counters.acked_packets += u64::from(packets);
        if let Some(ns) = rtt {
            cold.rtt.sample(ns);
        }
        self.tell_acknowledged(env, packets, rtt);
    }

    /// Something was lost, or the peer was not ready: what follows is sent again.
    #[cold]
    pub(super) fn note_loss(&mut self, env: &mut Env, kind: RetryKind) {
        self.body.cold.retries.note(kind, self.req.una_psn, env.now);
        if kind != RetryKind::RnrNak {
            self.tell_loss(env);
        }
    }
}
