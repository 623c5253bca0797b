//! The control side of a QP: state changes, attributes, its path.

use std::net::IpAddr;

use shm::attr::{AccessFlags, QpAttr, QpAttrMask, QpState};
use shm::control::AsyncEvent;
use shm::ring::set_qp_error;
use wire::buf::Dest;
use wire::{AckTimeout, MacAddr, PathFields, PathMtu, PathTemplate, Pkey, Psn, Qpn};

use super::state::{AttrLimits, ModifyError, check_transition};
use super::{Cold, NONE, Qp, Requester, Responder};
use crate::cause::ErrorCause;
use crate::counters::QpCounters;
use crate::shard::Env;
use crate::shard_of;

/// Time to live where the address vector leaves it at 0.
const DEFAULT_HOP_LIMIT: u8 = 64;

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
        self.set_requester(attr, mask);
        self.set_responder(attr, mask);
        self.set_common(attr, mask);
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

    fn set_requester(&mut self, attr: &QpAttr, mask: QpAttrMask) {
        let (req, kept) = (&mut self.req, &mut self.body.cold.attr);
        if mask.contains(QpAttrMask::SQ_PSN) {
            // Nothing was sent yet: this is the way from RTR to RTS.
            *req = Requester { unresolved: req.unresolved, ..Requester::new(Psn::new(attr.sq_psn)) };
            kept.sq_psn = attr.sq_psn;
        }
        if mask.contains(QpAttrMask::TIMEOUT) {
            req.timeout_ns = AckTimeout::new(attr.timeout).and_then(AckTimeout::duration_ns).unwrap_or(0);
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
    }

    fn set_responder(&mut self, attr: &QpAttr, mask: QpAttrMask) {
        if mask.contains(QpAttrMask::RQ_PSN) {
            self.resp = Responder::new(Psn::new(attr.rq_psn));
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
        if self.state == QpState::Sqd && self.req.una_psn == self.req.max_psn {
            let attr = &mut self.body.cold.attr;
            if std::mem::take(&mut attr.sq_draining) == 1 && attr.en_sqd_async_notify == 1 {
                env.push_event(self.session, AsyncEvent::SqDrained { qpn: self.qpn.value() });
            }
        }
    }

    /// Back to RESET: rings empty, no path, no attributes.
    pub(crate) fn reset(&mut self, env: &mut Env) {
        self.release_neighbour(env);
        self.state = QpState::Reset;
        self.req = Requester::new(Psn::new(0));
        self.resp = Responder::new(Psn::new(0));
        self.dest_qpn = Qpn::new(0);
        self.access = AccessFlags::NONE;
        env.timers.cancel(self.index);
        let body = &mut *self.body;
        body.template = None;
        body.sq.reset();
        if let Some(rq) = &mut body.rq {
            rq.reset();
        }
        body.recv.taken = false;
        let Cold { block, cap, attr, error, last_nak, last_wqe_reported, counters, neighbour: _ } = &mut body.cold;
        *attr = QpAttr { cap: *cap, ..QpAttr::default() };
        (*error, *last_nak, *last_wqe_reported) = (None, None, false);
        *counters = QpCounters::default();
        set_qp_error(block, false);
    }

    /// The CQ has overrun: nobody would learn of what this QP does.
    pub(crate) fn break_for_cq(&mut self, env: &mut Env) {
        if self.state != QpState::Reset && self.state != QpState::Err {
            env.push_event(self.session, AsyncEvent::QpFatal { qpn: self.qpn.value() });
            self.enter_error(env, ErrorCause::CqOverrun);
        }
    }

    /// Takes over the address vector: addresses, neighbour, header template.
    fn set_path(&mut self, env: &mut Env, attr: &QpAttr, mask: QpAttrMask) -> Result<(), ModifyError> {
        let port_index = usize::from(attr.ah_attr.port_num.max(1) - 1);
        let port = env.ports.get_mut(port_index).ok_or(ModifyError::NoSuchPort { port_num: attr.ah_attr.port_num })?;
        let gid_index = attr.ah_attr.sgid_index;
        let ours = port.config.addresses.get(usize::from(gid_index)).copied();
        let ours = ours.ok_or(ModifyError::NoSuchGid { index: gid_index })?;
        let peer = attr.ah_attr.dgid.ip();
        if ours.is_ipv4() != peer.is_ipv4() {
            return Err(ModifyError::AddressFamily { index: gid_index });
        }
        let dest_qpn = if mask.contains(QpAttrMask::DEST_QPN) { Qpn::new(attr.dest_qp_num) } else { self.dest_qpn };
        let local = port.config.addresses.contains(&peer);
        let neighbour =
            if local { NONE } else { port.neighbours.acquire(peer).ok_or(ModifyError::NeighbourTableFull)? };
        self.release_neighbour(env);
        self.dest_qpn = dest_qpn;
        self.port = port_index as u8;
        let body = &mut *self.body;
        body.dest = if local { Dest::Local { shard: shard_of(dest_qpn) } } else { Dest::Wire };
        (body.our_ip, body.peer_ip) = (ours, peer);
        body.cold.neighbour = neighbour;
        body.cold.attr.ah_attr = attr.ah_attr;
        body.cold.attr.dest_qp_num = dest_qpn.value();
        self.refresh_path(env);
        Ok(())
    }

    fn release_neighbour(&mut self, env: &mut Env) {
        let neighbour = std::mem::replace(&mut self.body.cold.neighbour, NONE);
        if neighbour != NONE
            && let Some(port) = env.ports.get_mut(usize::from(self.port))
        {
            port.neighbours.release(neighbour);
        }
    }

    /// True if the QP sends to this neighbour of its port.
    pub(crate) fn uses_neighbour(&self, neighbour: u32) -> bool {
        self.body.cold.neighbour == neighbour
    }

    /// Builds the header template anew and lets the requester go if the neighbour is known.
    pub(crate) fn refresh_path(&mut self, env: &mut Env) {
        let Some(port) = env.ports.get(usize::from(self.port)) else { return };
        let body = &mut *self.body;
        let mac =
            if body.cold.neighbour == NONE { Some(port.config.mac) } else { port.neighbours.mac(body.cold.neighbour) };
        let ah = &body.cold.attr.ah_attr;
        let label =
            if ah.flow_label != 0 { ah.flow_label } else { wire::flow_label_from_qpns(self.qpn, self.dest_qpn) };
        let fields = PathFields {
            src_mac: port.config.mac,
            dst_mac: mac.unwrap_or(MacAddr::ZERO),
            vlan: None,
            src_ip: body.our_ip,
            dst_ip: body.peer_ip,
            traffic_class: ah.traffic_class,
            hop_limit: if ah.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { ah.hop_limit },
            udp_src_port: wire::source_port_for_flow_label(label),
            ipv4_ident: 0,
            flow_label: ah.flow_label,
            roce_v1: false,
        };
        body.template = PathTemplate::new(&fields);
        self.req.unresolved = mac.is_none() || body.template.is_none();
        if !self.req.unresolved && matches!(self.state, QpState::Rts | QpState::Sqd) {
            self.schedule_requests(env);
        }
        self.schedule_answers(env);
    }

    /// Our address and the peer's.
    #[inline]
    pub(crate) fn addresses(&self) -> (IpAddr, IpAddr) {
        (self.body.our_ip, self.body.peer_ip)
    }

    /// The P_Key that its packets carry.
    #[inline]
    pub(crate) fn pkey(&self) -> Pkey {
        self.pkey
    }
}
