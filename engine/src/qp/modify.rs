//! The control side of a QP: state changes, attributes, its path.

use shm::attr::{AccessFlags, QpAttr, QpAttrMask, QpState, RecoveryPolicy};
use shm::control::AsyncEvent;
use shm::ring::set_qp_error;
use wire::{AckTimeout, Frame, PathMtu, Pkey, Psn, Qpn};

use super::lateness::Lateness;
use super::rtt::RttMeter;
use super::state::{AttrLimits, ModifyError, check_transition};
use super::{Cold, Qp, Requester, Responder, Rewound};
use crate::cause::ErrorCause;
use crate::counters::QpCounters;
use crate::path::Path;
use crate::post_mortem::RetryMeter;
use crate::ready::Output;
use crate::shard::Env;
use crate::time::Time;

impl Qp {
    /// Changes state and attributes: all that the mask names, or nothing.
    pub(crate) fn modify(
        &mut self,
        env: &mut Env,
        attr: &QpAttr,
        mask: QpAttrMask,
        limits: &AttrLimits,
    ) -> Result<QpState, ModifyError> {
        let next = check_transition(self.kind, self.state, attr, mask, limits)?;
        if next == QpState::Reset && mask.contains(QpAttrMask::STATE) {
            self.reset(env);
            return Ok(QpState::Reset);
        }
        // The only change that can fail after the checks: it comes first.
        if mask.contains(QpAttrMask::AV) {
            self.set_path(env, attr, mask)?;
        }
        self.set_requester(env, attr, mask);
        self.set_responder(env, attr, mask);
        self.set_common(attr, mask);
        if mask.contains(QpAttrMask::AV) {
            // It counts in packets, so the path MTU comes first.
            self.start_congestion_control(env);
        }
        if mask.contains(QpAttrMask::STATE) {
            self.enter_state(env, next);
        }
        Ok(self.state)
    }

    fn set_common(&mut self, attr: &QpAttr, mask: QpAttrMask) {
        let kept = &mut self.body.cold.attr;
        if mask.contains(QpAttrMask::ACCESS_FLAGS) {
            self.access = attr.qp_access_flags;
            kept.qp_access_flags = attr.qp_access_flags;
        }
        if mask.contains(QpAttrMask::PKEY_INDEX) {
            kept.pkey_index = attr.pkey_index;
        }
        if mask.contains(QpAttrMask::PORT) {
            self.port = attr.port_num - 1;
            kept.port_num = attr.port_num;
        }
        if mask.contains(QpAttrMask::QKEY) {
            kept.qkey = attr.qkey;
        }
        if mask.contains(QpAttrMask::PATH_MTU) {
            self.mtu = PathMtu::from_code(attr.path_mtu).unwrap_or(PathMtu::M256);
            kept.path_mtu = attr.path_mtu;
        }
        if mask.contains(QpAttrMask::EN_SQD_ASYNC_NOTIFY) {
            kept.en_sqd_async_notify = attr.en_sqd_async_notify;
        }
    }

    fn set_requester(&mut self, env: &mut Env, attr: &QpAttr, mask: QpAttrMask) {
        let (req, kept) = (&mut self.req, &mut self.body.cold.attr);
        if mask.contains(QpAttrMask::SQ_PSN) {
            // Nothing was sent yet: this is the way from RTR to RTS.
            *req = Requester { unresolved: req.unresolved, ..Requester::new(Psn::new(attr.sq_psn)) };
            kept.sq_psn = attr.sq_psn;
            self.reset_board(env);
        }
        let (req, kept) = (&mut self.req, &mut self.body.cold.attr);
        if mask.contains(QpAttrMask::TIMEOUT) {
            let timeout_ns = AckTimeout::new(attr.timeout).and_then(AckTimeout::duration_ns).unwrap_or(0);
            self.body.cold.timeout_ns = timeout_ns;
            kept.timeout = attr.timeout;
        }
        if mask.contains(QpAttrMask::RETRY_CNT) {
            (req.retry_cnt, req.retry_left) = (attr.retry_cnt, attr.retry_cnt);
            kept.retry_cnt = attr.retry_cnt;
        }
        if mask.contains(QpAttrMask::RNR_RETRY) {
            (req.rnr_retry, req.rnr_left) = (attr.rnr_retry, attr.rnr_retry);
            kept.rnr_retry = attr.rnr_retry;
        }
        if mask.contains(QpAttrMask::MAX_QP_RD_ATOMIC) {
            req.max_rd_atomic = attr.max_rd_atomic;
            kept.max_rd_atomic = attr.max_rd_atomic;
        }
        self.refresh_timeout(env);
    }

    fn set_responder(&mut self, env: &mut Env, attr: &QpAttr, mask: QpAttrMask) {
        if mask.contains(QpAttrMask::RQ_PSN) {
            self.resp = Responder::new(Psn::new(attr.rq_psn));
            self.drop_kept_requests(env);
            self.body.late_requests = Lateness::NEW;
            self.body.cold.attr.rq_psn = attr.rq_psn;
        }
        if mask.contains(QpAttrMask::MAX_DEST_RD_ATOMIC) {
            self.resize_resources(attr.max_dest_rd_atomic);
            self.body.cold.attr.max_dest_rd_atomic = attr.max_dest_rd_atomic;
        }
        if mask.contains(QpAttrMask::MIN_RNR_TIMER) {
            self.resp.min_rnr_timer = attr.min_rnr_timer;
            self.body.cold.attr.min_rnr_timer = attr.min_rnr_timer;
        }
    }

    fn enter_state(&mut self, env: &mut Env, next: QpState) {
        match next {
            QpState::Err => self.enter_error(env, ErrorCause::ByApplication),
            QpState::Rts => {
                if self.state == QpState::Sqe {
                    self.leave_send_error(env);
                }
                self.state = QpState::Rts;
                self.body.cold.attr.sq_draining = 0;
                self.schedule_requests(env);
            }
            QpState::Sqd => {
                self.state = QpState::Sqd;
                self.body.cold.attr.sq_draining = 1;
                self.demand_ack(env);
                self.report_drained(env);
            }
            _ => self.state = next,
        }
    }

    /// Tells the owner once that a draining send queue has drained. IBTA 10.3.1.5.
    #[inline]
    pub(super) fn report_drained(&mut self, env: &mut Env) {
        if self.state == QpState::Sqd && self.req.una_psn == self.req.max_psn && self.req.nxt_packet == 0 {
            let attr = &mut self.body.cold.attr;
            if std::mem::take(&mut attr.sq_draining) == 1 && attr.en_sqd_async_notify == 1 {
                env.push_event(self.session, AsyncEvent::SqDrained { qpn: self.qpn.value() });
            }
        }
    }

    /// Back to RESET: rings empty, no path, no attributes.
    pub(crate) fn reset(&mut self, env: &mut Env) {
        self.release_path(env);
        self.state = QpState::Reset;
        if std::mem::take(&mut self.body.cold.has_windows) {
            env.mrs.unbind_all_of(self.qpn);
        }
        self.req = Requester::new(Psn::new(0));
        self.resp = Responder::new(Psn::new(0));
        self.drop_kept_requests(env);
        self.body.late_requests = Lateness::NEW;
        self.body.repeats.clear();
        self.recovery = if self.kind.is_reliable() { env.recovery.unasked } else { RecoveryPolicy::GoBackN };
        self.reset_board(env);
        self.dest_qpn = Qpn::new(0);
        self.access = AccessFlags::NONE;
        env.timers.cancel(self.index);
        self.end_congestion_control(env);
        let body = &mut *self.body;
        body.sq.reset();
        if let Some(rq) = &mut body.rq {
            rq.reset();
        }
        body.recv.taken = false;
        let Cold { block, cap, attr, error, last_nak, last_wqe_reported, counters, .. } = &mut body.cold;
        *attr = QpAttr { cap: *cap, ..QpAttr::default() };
        (*error, *last_nak, *last_wqe_reported) = (None, None, false);
        *counters = QpCounters::default();
        set_qp_error(block, false);
        let cold = &mut body.cold;
        (cold.heard, cold.rtt, cold.retries) = (Time::NEVER, RttMeter::NEW, RetryMeter::NEW);
        (cold.rewound, cold.timeout_ns) = (Rewound::NEVER, 0);
        (cold.failed_request, cold.refused) = (None, None);
    }

    /// The CQ has overrun: nobody would learn of what this QP does.
    pub(crate) fn break_for_cq(&mut self, env: &mut Env) {
        if self.state != QpState::Reset && self.state != QpState::Err {
            env.push_event(self.session, AsyncEvent::QpFatal { qpn: self.qpn.value() });
            self.enter_error(env, ErrorCause::CqOverrun);
        }
    }

    /// Takes over the address vector and the peer's QPN.
    fn set_path(&mut self, env: &mut Env, attr: &QpAttr, mask: QpAttrMask) -> Result<(), ModifyError> {
        let dest_qpn = if mask.contains(QpAttrMask::DEST_QPN) { Qpn::new(attr.dest_qp_num) } else { self.dest_qpn };
        let label = wire::flow_label_from_qpns(self.qpn, dest_qpn);
        let path = Path::resolve(&mut env.ports, &attr.ah_attr, wire::source_port_for_flow_label(label))?;
        self.release_path(env);
        self.dest_qpn = dest_qpn;
        self.port = path.port();
        let body = &mut *self.body;
        body.path = Some(path);
        body.cold.attr.ah_attr = attr.ah_attr;
        body.cold.attr.dest_qp_num = dest_qpn.value();
        self.refresh_path(env);
        Ok(())
    }

    fn release_path(&mut self, env: &mut Env) {
        if let Some(path) = self.body.path.take() {
            path.release(&mut env.ports);
        }
    }

    /// True if the QP sends to this neighbour of a port.
    pub(crate) fn uses_neighbour(&self, port: u8, neighbour: u32) -> bool {
        self.body.path.as_ref().is_some_and(|path| path.uses_neighbour(port, neighbour))
    }

    /// Priorities are others now: the path's lane is found anew. The caller sees to the queues.
    pub(crate) fn refresh_lane(&mut self, env: &Env) {
        if let Some(path) = &mut self.body.path {
            path.refresh(&env.ports);
            self.lane = path.lane();
        }
    }

    /// Takes over what has become known of the path's neighbour, and lets the requester go if that is its MAC.
    pub(crate) fn refresh_path(&mut self, env: &mut Env) {
        let Some(path) = &mut self.body.path else { return };
        path.refresh(&env.ports);
        let lane = path.lane();
        if lane != self.lane {
            self.lane = lane;
            if let Some(port) = env.ports.get_mut(usize::from(self.port)) {
                port.ready.change_lane(&Output::IN_OWN_LANE, lane, self.index, self.scheduled);
            }
        }
        self.req.unresolved = !path.is_resolved();
        if !self.req.unresolved && matches!(self.state, QpState::Rts | QpState::Sqd) {
            self.schedule_requests(env);
        }
        self.schedule_answers(env);
    }

    /// A frame came by the QP's path.
    #[inline]
    pub(crate) fn path_matches(&self, frame: &Frame<'_>) -> bool {
        self.body.path.as_ref().is_some_and(|path| path.matches(frame))
    }

    /// The P_Key that its packets carry.
    #[inline]
    pub(crate) fn pkey(&self) -> Pkey {
        self.pkey
    }
}
