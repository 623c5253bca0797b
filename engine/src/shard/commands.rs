//! Commands of the control side: objects come and go here, between two turns of the loop.

use std::sync::Arc;

use shm::control::AsyncEvent;
use shm::qos::QosSettings;

use super::{PortState, SessionDoorbells, Shard};
use crate::cc::{Profile, Settings};
use crate::command::{Answer, Command};
use crate::config::PortConfig;
use crate::mr::MrEntry;
use crate::neigh::NeighKey;
use crate::qos::Lane;
use crate::qp::Qp;
use crate::qp::state::AttrLimits;
use crate::srq::Srq;
use crate::time::Time;

/// Marks a doorbell that belongs to no QP.
const NO_QP: u32 = u32::MAX;

impl Shard {
    /// Executes a command of the control side.
    pub fn command(&mut self, now: Time, command: Command) -> Answer {
        self.env.now = now;
        match command {
            Command::AddSession { session, doorbells } => {
                self.sessions.push(SessionDoorbells { session, page: doorbells, qps: Vec::new() });
                Answer::Done
            }
            Command::RemoveSession { session } => {
                self.sessions.retain(|s| s.session != session);
                Answer::Done
            }
            Command::AddCq { index, cq } => {
                self.env.overrun_cqs.reserve(64);
                done_or_missing(self.env.cqs.insert(index, cq))
            }
            Command::ReplaceCqRing { index, writer } => {
                self.env.cqs.replace_ring(index, writer).map_or(Answer::Missing, Answer::CqRing)
            }
            Command::RemoveCq { index } => self.env.cqs.remove(index).map_or(Answer::Missing, Answer::Cq),
            Command::AddSrq { index, srq } => self.add_srq(index, srq),
            Command::SetSrqLimit { index, limit } => self.set_srq_limit(index, limit),
            Command::QuerySrq { index } => {
                self.srq(index).map_or(Answer::Missing, |srq| Answer::SrqLimit { limit: srq.limit })
            }
            Command::RemoveSrq { index } => self.remove_srq(index),
            Command::AddQp { qp, doorbell_index } => self.add_qp(qp, doorbell_index),
            Command::ModifyQp { index, attr, mask } => {
                let limits = self.attr_limits();
                let Some(Some(qp)) = self.qps.get_mut(index as usize) else { return Answer::Missing };
                match qp.modify(&mut self.env, &attr, mask, &limits) {
                    Ok(state) => Answer::Modified(state),
                    Err(error) => Answer::Refused(error),
                }
            }
            Command::SetRecovery { index, policy } => {
                let Some(Some(qp)) = self.qps.get_mut(index as usize) else { return Answer::Missing };
                qp.set_recovery(&mut self.env, policy);
                Answer::Done
            }
            Command::QueryQp { index } => {
                self.qp(index).map_or(Answer::Missing, |qp| Answer::QpAttr(Box::new(qp.query())))
            }
            Command::QpDetail { index } => {
                self.qp(index).map_or(Answer::Missing, |qp| Answer::QpDetail(Box::new(qp.detail(self.id, now))))
            }
            Command::RemoveQp { index } => self.remove_qp(index),
            Command::AddMr(entry) => done_or_missing(self.env.mrs.insert(*entry)),
            Command::RemoveMr { key } => {
                let removed: Option<MrEntry> = self.env.mrs.remove(key);
                removed.map_or(Answer::Missing, |entry| Answer::Mr(Box::new(entry)))
            }
            Command::QueryNeighbour { port, ip, vlan } => self.query_neighbour(port, NeighKey { ip, vlan }),
            Command::FixNeighbour { port, ip, vlan, mac } => self.fix_neighbour(port, NeighKey { ip, vlan }, mac),
            Command::AddAh { key, pd, attr } => match self.env.add_ah(key, pd, &attr, &self.attr_limits()) {
                Ok(()) => Answer::Done,
                Err(error) => Answer::Refused(error),
            },
            Command::RemoveAh { key } => done_or_missing(self.env.remove_ah(key)),
            Command::AttachMcast { group, qpn } => done_or_missing(self.env.mcast.attach(group, qpn)),
            Command::DetachMcast { group: Some(group), qpn } => done_or_missing(self.env.mcast.detach(group, qpn)),
            Command::DetachMcast { group: None, qpn } => {
                self.env.mcast.detach_all(qpn);
                Answer::Done
            }
            Command::SendMad(mad) => self.send_mad(&mad),
            Command::HoldMr { key, held } => self.env.mrs.hold(key, held).map_or(Answer::Missing, Answer::Windows),
            Command::AddMw(window) => done_or_missing(self.env.mrs.insert_window(window)),
            Command::RemoveMw { key } => done_or_missing(self.env.mrs.remove_window(key)),
            Command::TakeBreaks => Answer::Breaks(self.env.breaks.take()),
            Command::ChangePort { port, config } => self.change_port(port, config),
            Command::SetPortCongestion { port, settings } => self.set_port_congestion(port, *settings),
            Command::SetQpCongestion { index, settings } => {
                let Some(Some(qp)) = self.qps.get_mut(index as usize) else { return Answer::Missing };
                qp.set_congestion(&mut self.env, settings);
                Answer::Done
            }
            Command::QpCongestion { index } => {
                let report = self.qp(index).and_then(|qp| qp.congestion_report(&self.env));
                report.map_or(Answer::Missing, |report| Answer::QpCongestion(Box::new(report)))
            }
            Command::Counters => {
                let ports = self.env.ports.iter().map(|p| p.counters).collect();
                Answer::Counters(Box::new((self.counters(), ports)))
            }
            Command::SetQos { port, settings, pauses_by_device } => self.set_qos(port, settings, pauses_by_device),
            Command::QueryQos { port } => {
                let state = self.env.ports.get(usize::from(port)).map(|port| port.qos.state(now));
                state.map_or(Answer::Missing, |state| Answer::Qos(Box::new(state)))
            }
        }
    }

    /// QPs whose source address has gone keep their path until nobody answers them any more; a new MAC they take over.
    fn change_port(&mut self, port: u8, mut config: Box<PortConfig>) -> Answer {
        let Some(state) = self.env.ports.get_mut(usize::from(port)) else { return Answer::Missing };
        std::mem::swap(&mut state.config, &mut config);
        if state.config.speed_mbps != config.speed_mbps {
            let settings = *state.congestion.settings();
            self.set_port_congestion(port, settings);
        }
        let Some(state) = self.env.ports.get(usize::from(port)) else { return Answer::Missing };
        if state.config.mac != config.mac {
            for qp in self.qps.iter_mut().flatten().filter(|qp| qp.port == port) {
                qp.refresh_path(&mut self.env);
            }
        }
        Answer::Port(config)
    }

    /// Takes over what priorities are and mean: for paths that there are, and for all that wait to send.
    fn set_qos(&mut self, port: u8, settings: Box<QosSettings>, pauses_by_device: bool) -> Answer {
        let Self { env, qps, .. } = self;
        let Some(state) = env.ports.get_mut(usize::from(port)) else { return Answer::Missing };
        let before = state.qos.set(env.now, settings, pauses_by_device);
        env.refresh_ahs(port);
        for qp in qps.iter_mut().flatten().filter(|qp| qp.port == port) {
            qp.refresh_lane(env);
        }
        if let Some(state) = env.ports.get_mut(usize::from(port)) {
            let qp = |index: u32| qps.get(index as usize).and_then(Option::as_deref);
            let PortState { ready, qos, .. } = state;
            ready.sort_anew(|output, index| qp(index).map_or(Lane::INSIDE, |qp| qp.lane_of(output, qos.map())));
        }
        Answer::QosSettings(before)
    }

    /// Congestion control of a port's QPs, those with settings of their own too: these see the port's speed.
    fn set_port_congestion(&mut self, port: u8, settings: Settings) -> Answer {
        let Some(state) = self.env.ports.get_mut(usize::from(port)) else { return Answer::Missing };
        state.congestion = Arc::new(Profile::new(settings, state.config.speed_mbps));
        for qp in self.qps.iter_mut().flatten().filter(|qp| qp.port == port) {
            qp.refresh_congestion(&mut self.env);
        }
        Answer::Done
    }

    fn qp(&self, index: u32) -> Option<&Qp> {
        self.qps.get(index as usize)?.as_deref()
    }

    fn srq(&self, index: u32) -> Option<&Srq> {
        self.env.srqs.get(index as usize)?.as_deref()
    }

    fn attr_limits(&self) -> AttrLimits {
        let ports = &self.env.ports;
        AttrLimits {
            port_count: ports.len() as u8,
            pkey_count: 1,
            gid_count: ports.iter().map(|p| p.config.addresses.len() as u8).max().unwrap_or(0),
            active_mtu: ports.iter().map(|p| p.config.active_mtu()).max().unwrap_or(wire::PathMtu::M256),
            max_rd_atomic: self.config.limits.max_rd_atomic,
            max_dest_rd_atomic: self.config.limits.max_rd_atomic,
        }
    }

    fn add_srq(&mut self, index: u32, srq: Box<Srq>) -> Answer {
        let index = index as usize;
        if index >= self.env.srqs.len() {
            self.env.srqs.resize_with(index + 1, || None);
        }
        match self.env.srqs.get_mut(index) {
            Some(slot @ None) => {
                *slot = Some(srq);
                Answer::Done
            }
            _ => Answer::Missing,
        }
    }

    fn remove_srq(&mut self, index: u32) -> Answer {
        let slot = self.env.srqs.get_mut(index as usize);
        let Some(srq) = slot.and_then(Option::take) else { return Answer::Missing };
        if srq.xrc.is_some() {
            // No QP hangs on it, but some may be in the middle of a message for it.
            self.qps.iter_mut().flatten().for_each(|qp| qp.forget_srq(index));
        }
        Answer::Srq(srq)
    }

    /// Arms the limit; if fewer receives are left already, the event comes at once. IBTA 10.2.9.1.
    fn set_srq_limit(&mut self, index: u32, limit: u32) -> Answer {
        let Some(Some(srq)) = self.env.srqs.get_mut(index as usize) else { return Answer::Missing };
        srq.limit = limit;
        if srq.fetcher.available().is_ok_and(|left| left < limit) {
            srq.limit = 0;
            let (session, handle) = (srq.session, srq.handle);
            self.env.push_event(session, AsyncEvent::SrqLimitReached { srq: handle });
        }
        Answer::Done
    }

    fn add_qp(&mut self, qp: Box<Qp>, doorbell_index: Option<u32>) -> Answer {
        let index = qp.index as usize;
        if let Some(doorbell) = doorbell_index.map(|index| index as usize) {
            let session = self.sessions.iter_mut().find(|s| s.session == qp.session);
            let Some(session) = session else { return Answer::Missing };
            if doorbell >= session.qps.len() {
                session.qps.resize(doorbell + 1, NO_QP);
            }
            if let Some(slot) = session.qps.get_mut(doorbell) {
                *slot = qp.index;
            }
        }
        if index >= self.qps.len() {
            self.qps.resize_with(index + 1, || None);
            self.env.timers.grow(self.qps.len());
            self.env.pacing.grow(self.qps.len());
            for port in &mut self.env.ports {
                port.ready.grow(self.qps.len());
            }
        }
        match self.qps.get_mut(index) {
            Some(slot @ None) => {
                *slot = Some(qp);
                Answer::Done
            }
            _ => Answer::Missing,
        }
    }

    fn remove_qp(&mut self, index: u32) -> Answer {
        let Some(mut qp) = self.qps.get_mut(index as usize).and_then(Option::take) else { return Answer::Missing };
        qp.reset(&mut self.env);
        self.env.timers.cancel(index);
        self.env.pacing.cancel(index);
        if qp.scheduled != 0
            && let Some(port) = self.env.ports.get_mut(usize::from(qp.port))
        {
            port.ready.remove(index);
        }
        for session in self.sessions.iter_mut().filter(|s| s.session == qp.session) {
            for slot in session.qps.iter_mut().filter(|slot| **slot == index) {
                *slot = NO_QP;
            }
        }
        Answer::Qp(qp)
    }
}

fn done_or_missing(done: bool) -> Answer {
    if done { Answer::Done } else { Answer::Missing }
}
