//! A QP for the eyes of an operator, and of `query_qp`.

use shm::attr::QpAttr;
use shm::control::{QpDetail, QpSummary};

use super::Qp;
use crate::time::Time;

impl Qp {
    /// Its attributes, as they are now.
    pub(crate) fn query(&self) -> QpAttr {
        let kept = self.body.cold.attr;
        QpAttr {
            qp_state: self.state,
            cur_qp_state: self.state,
            // What the next new packet will carry, and what is expected next.
            sq_psn: self.req.max_psn.value(),
            rq_psn: self.resp.epsn.value(),
            ..kept
        }
    }

    /// All about it. Session, process and user are the control side's to fill in.
    pub(crate) fn detail(&self, shard: u8, now: Time) -> QpDetail {
        let (req, resp) = (&self.req, &self.resp);
        let outstanding = req.fetched.wrapping_sub(req.una_slot).saturating_add(self.body.sq.available().unwrap_or(0));
        let summary = QpSummary {
            qpn: self.qpn.value(),
            qp_type: self.kind,
            state: self.state,
            session: self.session,
            pid: 0,
            shard,
            dest_qpn: self.dest_qpn.value(),
            peer: self.body.path.as_ref().map_or_else(String::new, |path| path.peer().to_string()),
            path_mtu: self.body.cold.attr.path_mtu,
            sq_outstanding: outstanding,
        };
        let mut figures: Vec<(String, u64)> = Vec::new();
        let mut figure = |name: &str, value: u64| figures.push((name.to_owned(), value));
        figure("una_psn", u64::from(req.una_psn.value()));
        figure("next_psn", u64::from(req.nxt_psn.value()));
        figure("max_psn", u64::from(req.max_psn.value()));
        figure("expected_psn", u64::from(resp.epsn.value()));
        figure("msn", u64::from(resp.msn.value()));
        figure("rd_atomic_outstanding", u64::from(req.rd_outstanding));
        figure("responses_pending", u64::from(resp.pending_responses));
        figure("retry_left", u64::from(req.retry_left));
        figure("rnr_retry_left", u64::from(req.rnr_left));
        figure("neighbour_unresolved", u64::from(req.unresolved));
        figure("waits_after_rnr_nak", u64::from(req.rnr_until != Time::NEVER));
        if let Some(rtt) = self.body.cold.rtt.estimate() {
            figure("rtt_smoothed_ns", rtt.smoothed_ns);
            figure("rtt_variation_ns", self.body.cold.rtt.variation_ns());
            figure("rtt_min_ns", rtt.min_ns);
            figure("rtt_last_ns", rtt.last_ns);
        }
        if let Some((syndrome, psn)) = self.body.cold.last_nak {
            figure("last_nak_syndrome", u64::from(syndrome));
            figure("last_nak_psn", u64::from(psn.value()));
        }
        for (name, value) in self.congestion_figures(now) {
            figure(name, value);
        }
        for (name, value) in self.body.cold.counters.entries() {
            figure(name, value);
        }
        let error = self.body.cold.error.map(|cause| cause.sentence().to_owned());
        QpDetail { summary, attr: self.query(), recovery: self.recovery, figures, error }
    }
}
