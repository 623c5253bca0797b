//! A QP's part in congestion control: it tells its [`Controller`] what happens, sends no more than that allows, and asks the peer
//! to slow down where packets come marked. IBTA A17.9.3.
//!
//! Requests and READ responses leave by one pacer: what is controlled is what this QP sends. A QP that may not send now is in none
//! of the shard's queues; a wheel of timers wakes it. One without limit costs a look at [`CcFlags`].

use std::sync::Arc;

use shm::attr::WrOpcode;
use wire::buf::TxBatch;
use wire::{Bth, Frame, Opcode, Psn, RethRepr};

use super::{Qp, Step};
use crate::cc::{Controller, Limit, ParamId, Profile, Settings};
use crate::command::CongestionReport;
use crate::pacer::Pacer;
use crate::path::EcnMarking;
use crate::qos::{Lane, PriorityMap};
use crate::ready::Output;
use crate::shard::Env;
use crate::time::Time;

/// Congestion experienced (RFC 3168).
pub(crate) const ECN_CE: u8 = 3;

/// Payload of a CNP: 16 reserved bytes (IBTA A17.9.3).
const CNP_BYTES: usize = 16;

/// A limited QP asks for an acknowledgement at least so often: between packets that are far apart, the peer's silence must not
/// be taken for a loss.
const ACK_REQUEST_NS: u64 = 50_000;

/// What of congestion control concerns the packets of a QP now, in its hot part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct CcFlags(u8);

impl CcFlags {
    /// It has a rate, which all that it sends keeps to.
    const PACED: u8 = 1;
    /// The controller wants to know of acknowledgements.
    const WANTS_ACKS: u8 = 2;
    /// Some output waits for the pacer.
    const WAITS: u8 = 4;
    /// A CNP is to be sent.
    const CNP_DUE: u8 = 8;
    /// It limits the responses to its READs by when it asks for them.
    const METERS_READS: u8 = 16;
    /// READ responses keep to the rate as well.
    const PACES_RESPONSES: u8 = 32;

    #[inline]
    fn set(&mut self, bit: u8, on: bool) {
        self.0 = if on { self.0 | bit } else { self.0 & !bit };
    }

    #[inline]
    pub(super) const fn is_paced(self) -> bool {
        self.0 & Self::PACED != 0
    }

    #[inline]
    const fn wants_acks(self) -> bool {
        self.0 & Self::WANTS_ACKS != 0
    }

    #[inline]
    const fn waits(self) -> bool {
        self.0 & Self::WAITS != 0
    }

    /// Whether a request has to wait for the pacer.
    #[inline]
    pub(super) fn paces(self, opcode: WrOpcode) -> bool {
        self.0 & (Self::PACED | Self::METERS_READS) != 0 && (self.is_paced() || opcode == WrOpcode::RdmaRead)
    }

    /// Whether a READ response has to wait for the pacer.
    #[inline]
    pub(super) const fn paces_responses(self) -> bool {
        self.0 & Self::PACES_RESPONSES != 0
    }

    #[inline]
    pub(super) const fn meters_reads(self) -> bool {
        self.0 & Self::METERS_READS != 0
    }

    #[inline]
    const fn cnp_due(self) -> bool {
        self.0 & Self::CNP_DUE != 0
    }
}

/// What a QP with a path keeps of congestion control.
#[derive(Debug)]
pub(super) struct Congestion {
    profile: Arc<Profile>,
    controller: Controller,
    pacer: Pacer,
    /// The pacer's rate; 0 = it has none.
    rate_bps: u64,
    /// [`Output`] bits of what waits for the pacer.
    waiting: u8,
    /// Which kind of output the pacer let through last: the other one is next, if both wait.
    last: Output,
    /// No CNP before then.
    cnp_after: Time,
}

impl Congestion {
    fn new(profile: Arc<Profile>, now: Time) -> Self {
        Self {
            controller: Controller::new(&profile),
            profile,
            pacer: Pacer::new(now),
            rate_bps: 0,
            waiting: 0,
            last: Output::Request,
            cnp_after: Time::ZERO,
        }
    }

    /// Brings controller and pacer to `now`. What was not sent before counts at the rate that held then, which was no higher.
    fn advance(&mut self, now: Time) {
        self.pacer.advance(now, self.rate_bps, self.profile.get(ParamId::Burst));
        self.controller.advance(now, &self.profile);
    }

    /// Traffic class and 802.1p priority of CNPs.
    fn cnp_class(&self) -> (u8, u8) {
        let of = |id| self.profile.get(id) as u8;
        (of(ParamId::CnpDscp) << 2, of(ParamId::CnpPcp))
    }

    /// When the pacer is to be looked at again.
    fn wake_at(&self) -> Time {
        self.pacer.ready_at(self.rate_bps).min(self.controller.next_event())
    }
}

impl Qp {
    /// The QP has a path: its controller starts anew, with settings of its own or its port's.
    pub(super) fn start_congestion_control(&mut self, env: &mut Env) {
        let Some(profile) = self.congestion_profile(env) else { return };
        env.pacing.cancel(self.index);
        self.cc = CcFlags::default();
        self.body.congestion = Some(Box::new(Congestion::new(profile, env.now)));
        self.apply_ecn(env);
        self.apply_limit(env);
    }

    /// The QP is in RESET again.
    pub(super) fn end_congestion_control(&mut self, env: &mut Env) {
        env.pacing.cancel(self.index);
        self.cc = CcFlags::default();
        self.body.congestion = None;
        self.body.own_congestion = None;
    }

    /// Gives it settings of its own, or its port's again (`None`). They hold at once.
    pub(crate) fn set_congestion(&mut self, env: &mut Env, own: Option<Box<Settings>>) {
        self.body.own_congestion = own;
        self.refresh_congestion(env);
    }

    /// Its own settings or its port's may have changed.
    pub(crate) fn refresh_congestion(&mut self, env: &mut Env) {
        let Some(profile) = self.congestion_profile(env) else { return };
        let Some(congestion) = &mut self.body.congestion else { return };
        congestion.advance(env.now);
        congestion.controller = congestion.controller.adapt(&profile);
        congestion.profile = profile;
        self.refresh_cnp_lane(env);
        self.apply_ecn(env);
        self.apply_limit(env);
        self.refresh_parts();
    }

    /// A CNP that waits may have another priority now.
    fn refresh_cnp_lane(&mut self, env: &mut Env) {
        if let Some(port) = env.ports.get_mut(usize::from(self.port)) {
            let lane = self.cnp_lane(port.qos.map());
            port.ready.change_lane(&[Output::Cnp], lane, self.index, self.scheduled);
        }
    }

    fn congestion_profile(&self, env: &Env) -> Option<Arc<Profile>> {
        let port = env.ports.get(usize::from(self.port))?;
        let own = self.body.own_congestion.as_deref();
        let static_rate_bps = self.body.path.as_ref().and_then(|path| path.static_rate_bps(&env.ports));
        if own.is_none() && static_rate_bps.is_none() {
            return Some(Arc::clone(&port.congestion));
        }
        let settings = *own.unwrap_or(port.congestion.settings());
        Some(Arc::new(Profile::for_path(settings, port.config.speed_mbps, static_rate_bps)))
    }

    /// The settings that hold for it, and what it makes of them.
    pub(crate) fn congestion_report(&self, env: &Env) -> Option<CongestionReport> {
        let settings = match &self.body.own_congestion {
            Some(own) => **own,
            None => *env.ports.get(usize::from(self.port))?.congestion.settings(),
        };
        Some(CongestionReport {
            settings,
            is_own: self.body.own_congestion.is_some(),
            port: self.port,
            figures: self
                .congestion_figures(env.now)
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        })
    }

    /// What an operator sees of it.
    pub(super) fn congestion_figures(&self, now: Time) -> Vec<(&'static str, u64)> {
        let Some(congestion) = &self.body.congestion else { return Vec::new() };
        let mut controller = congestion.controller;
        controller.advance(now, &congestion.profile);
        let limit = controller.limit(self.mtu.bytes(), &congestion.profile);
        let mut figures = vec![
            ("cc_rate_bps", limit.rate_bps.unwrap_or(congestion.profile.line_bps())),
            ("cc_rate_limited", u64::from(limit.rate_bps.is_some())),
            ("cc_window_packets", u64::from(self.window_packets)),
        ];
        figures.extend(controller.alpha_thousandths().map(|alpha| ("cc_alpha_thousandths", alpha)));
        figures.extend(controller.cwnd_thousandths().map(|cwnd| ("cc_cwnd_thousandths", cwnd)));
        figures
    }

    /// Whether requests and READ responses are marked as capable of ECN.
    fn apply_ecn(&mut self, env: &Env) {
        let Some(congestion) = &self.body.congestion else { return };
        let marking = if congestion.profile.get(ParamId::Ect) == 0 { EcnMarking::AsGiven } else { EcnMarking::Ect };
        if let Some(path) = &mut self.body.path {
            path.set_ecn(&env.ports, marking);
        }
    }

    /// Takes over what the controller allows now.
    fn apply_limit(&mut self, env: &mut Env) {
        let Some(congestion) = &mut self.body.congestion else { return };
        let mtu_bytes = self.mtu.bytes();
        let limit = congestion.controller.limit(mtu_bytes, &congestion.profile);
        let rtt_ns = self.body.cold.rtt.estimate().map_or(0, |rtt| rtt.min_ns);
        let window = limit.window_packets.min(congestion.profile.window_cap(rtt_ns, mtu_bytes));
        let rate_bps = pacer_rate(limit, &congestion.profile);
        if congestion.rate_bps == 0 {
            // Whatever was sent without a rate is no debt, and earns no credit.
            congestion.pacer = Pacer::new(env.now);
        }
        let is_raised = rate_bps == 0 || rate_bps > congestion.rate_bps || window > self.window_packets;
        congestion.rate_bps = rate_bps;
        self.window_packets = window.min(env.transport.window_packets);
        let (usual, limit_bps) = (env.transport.ack_request_packets, limit.rate_bps.unwrap_or(0));
        self.ack_request_packets = ack_request_packets(usual, window, limit_bps, mtu_bytes);
        self.cc.set(CcFlags::PACED, limit.rate_bps.is_some());
        self.cc.set(CcFlags::METERS_READS, congestion.profile.meters_reads());
        // Who asks limits them where nobody tells who answers: only what was set for the QP holds for them then.
        let is_told = !congestion.profile.meters_reads() || congestion.profile.has_rate_limit();
        self.cc.set(CcFlags::PACES_RESPONSES, limit.rate_bps.is_some() && is_told);
        let measures = congestion.profile.get(ParamId::WindowBdp) != 0 && congestion.profile.get(ParamId::BaseRtt) == 0;
        self.cc.set(CcFlags::WANTS_ACKS, congestion.controller.wants_acknowledgements() || measures);
        if self.cc.waits() && is_raised {
            self.wake_or_wait(env);
        }
    }

    /// Whether the pacer lets a packet out now. If not, the QP is woken when it does.
    #[inline(never)]
    pub(super) fn may_send_paced(&mut self, env: &mut Env, output: Output) -> bool {
        let Some(congestion) = &mut self.body.congestion else { return true };
        congestion.advance(env.now);
        if self.rate_is_stale() {
            self.apply_limit(env);
        }
        let Some(congestion) = &mut self.body.congestion else { return true };
        if congestion.rate_bps == 0 || congestion.pacer.may_send() {
            congestion.last = output;
            return true;
        }
        congestion.waiting |= output as u8;
        env.pacing.schedule_no_later(self.index, congestion.wake_at());
        self.cc.set(CcFlags::WAITS, true);
        false
    }

    /// Time alone has changed what the controller allows.
    fn rate_is_stale(&self) -> bool {
        let Some(congestion) = &self.body.congestion else { return false };
        let limit = congestion.controller.limit(self.mtu.bytes(), &congestion.profile);
        pacer_rate(limit, &congestion.profile) != congestion.rate_bps
    }

    /// A frame of a limited QP went, and with it what it stands for: of a READ whose responses the requester limits, those.
    #[inline(never)]
    pub(super) fn charge_pacer(&mut self, env: &mut Env, frame_bytes: usize, read_bytes: u32) {
        let Some(congestion) = &mut self.body.congestion else { return };
        let bytes = frame_bytes as u64;
        if self.cc.meters_reads() && read_bytes > 0 {
            // Each response has the headers of its request, but for the RETH.
            let headers = bytes.saturating_sub(RethRepr::LEN as u64) * u64::from(read_bytes.div_ceil(self.mtu.bytes()));
            congestion.pacer.charge(u64::from(read_bytes) + headers);
        }
        congestion.pacer.charge(bytes);
        congestion.controller.sent(env.now, bytes, &congestion.profile);
        if self.rate_is_stale() {
            self.apply_limit(env);
        }
    }

    /// A timer of the pacer fired.
    pub(crate) fn handle_pacing(&mut self, env: &mut Env) {
        let Some(congestion) = &mut self.body.congestion else { return };
        congestion.advance(env.now);
        // This looks at what waits as well, if there is more to send now.
        self.apply_limit(env);
        self.wake_or_wait(env);
    }

    /// What was in its turn has nothing to send: if the other kind of output waits for the pacer, it is its turn.
    #[inline]
    pub(crate) fn pass_turn(&mut self, env: &mut Env) {
        if self.cc.waits() {
            self.wake_or_wait(env);
        }
    }

    /// Lets out what waits for the pacer, if it may go; else the timer does later. Where both requests and responses wait, those
    /// have their turn that had not the last one.
    #[cold]
    fn wake_or_wait(&mut self, env: &mut Env) {
        let Some(congestion) = &mut self.body.congestion else { return };
        if congestion.waiting == 0 {
            self.cc.set(CcFlags::WAITS, false);
            return;
        }
        if congestion.rate_bps != 0 && !congestion.pacer.may_send() {
            env.pacing.schedule_no_later(self.index, congestion.wake_at());
            return;
        }
        let both = Output::Request as u8 | Output::Response as u8;
        let last_was_request = congestion.last == Output::Request;
        let turn = match congestion.waiting {
            all if all == both && self.cc.is_paced() => {
                if last_was_request {
                    Output::Response as u8
                } else {
                    Output::Request as u8
                }
            }
            all => all,
        };
        congestion.waiting &= !turn;
        self.cc.set(CcFlags::WAITS, congestion.waiting != 0);
        for output in [Output::Response, Output::Request] {
            if turn & output as u8 != 0 {
                self.schedule(env, output);
            }
        }
    }

    /// See [`Qp::note_acknowledged`].
    #[inline]
    pub(super) fn tell_acknowledged(&mut self, env: &mut Env, packets: u32, rtt_ns: Option<u64>) {
        if self.cc.wants_acks() {
            self.control_by_acknowledgement(env, packets, rtt_ns);
        }
    }

    #[inline(never)]
    fn control_by_acknowledgement(&mut self, env: &mut Env, packets: u32, rtt_ns: Option<u64>) {
        let Some(congestion) = &mut self.body.congestion else { return };
        congestion.advance(env.now);
        congestion.controller.acknowledged(env.now, packets, rtt_ns, &congestion.profile);
        self.apply_limit(env);
    }

    /// Something was lost.
    pub(super) fn tell_loss(&mut self, env: &mut Env) {
        if !self.cc.wants_acks() {
            return;
        }
        let Some(congestion) = &mut self.body.congestion else { return };
        congestion.controller.lost(env.now, &congestion.profile);
        self.apply_limit(env);
    }

    /// The peer has got marked packets of this QP.
    #[cold]
    pub(crate) fn handle_cnp(&mut self, env: &mut Env) {
        self.body.cold.heard = env.now;
        self.body.cold.counters.cnps_received += 1;
        let handled = self.body.congestion.as_mut().is_some_and(|congestion| {
            congestion.advance(env.now);
            congestion.controller.cnp(env.now, &congestion.profile)
        });
        if let Some(port) = env.ports.get_mut(usize::from(self.port)) {
            let count = if handled { &mut port.counters.rp_cnp_handled } else { &mut port.counters.rp_cnp_ignored };
            *count += 1;
        }
        if handled {
            self.apply_limit(env);
        }
    }

    /// A packet of this QP came marked: its sender is told, unless it was a moment ago. Datagrams have no one sender.
    #[cold]
    pub(crate) fn handle_marked(&mut self, env: &mut Env, frame: &Frame<'_>) {
        if frame.is_roce_v1() {
            return;
        }
        if let Some(port) = env.ports.get_mut(usize::from(self.port)) {
            port.counters.np_ecn_marked_roce_packets += 1;
        }
        self.body.cold.counters.ecn_marked_packets += 1;
        let Some(congestion) = &mut self.body.congestion else { return };
        if env.now >= congestion.cnp_after {
            congestion.cnp_after = env.now.add_ns(congestion.profile.get(ParamId::CnpInterval));
            self.cc.set(CcFlags::CNP_DUE, true);
            self.schedule(env, Output::Cnp);
        }
    }

    /// The lane of the priority that its CNPs have.
    #[cold]
    pub(super) fn cnp_lane(&self, map: &PriorityMap) -> Lane {
        let (Some(path), Some(congestion)) = (&self.body.path, &self.body.congestion) else { return self.lane };
        let (traffic_class, pcp) = congestion.cnp_class();
        path.lane_of_class(map, traffic_class, pcp)
    }

    /// Sends the CNP that is due.
    #[cold]
    pub(crate) fn transmit_cnp<T: TxBatch>(&mut self, env: &mut Env, tx: &mut T) -> Step {
        if !self.cc.cnp_due() {
            return Step::Idle;
        }
        let body = &*self.body;
        let (Some(path), Some(congestion), false) = (&body.path, &body.congestion, self.req.unresolved) else {
            // It would tell of a moment that has passed.
            self.cc.set(CcFlags::CNP_DUE, false);
            return Step::Idle;
        };
        if tx.room() == 0 {
            return Step::NoRoom;
        }
        let (traffic_class, pcp) = congestion.cnp_class();
        let template = path.template().with_class(traffic_class, pcp);
        let mut bth = Bth::new(Opcode::CNP, self.dest_qpn, Psn::new(0));
        bth.pkey = self.pkey;
        bth.becn = true;
        let (dest, frame_len) = (path.dest(self.dest_qpn), template.frame_len(0, CNP_BYTES));
        let sent = tx.push(dest, frame_len, |buf| {
            let payload = |payload: &mut [u8], crc| {
                payload.fill(0);
                wire::icrc::update(crc, payload)
            };
            template.write_packet(buf, &bth, &[], CNP_BYTES, payload) > 0
        });
        self.cc.set(CcFlags::CNP_DUE, false);
        if sent {
            env.count_transmit(self.port, dest, frame_len);
            self.body.cold.counters.cnps_sent += 1;
            if let Some(port) = env.ports.get_mut(usize::from(self.port)) {
                port.counters.np_cnp_sent += 1;
            }
        }
        Step::Sent
    }
}

/// The pacer's rate; 0 = it needs none. Requests for READs are small: without a rate many would go at once, and their responses wait
/// for each other at the peer. So who limits those never asks for more than the port could take.
fn pacer_rate(limit: Limit, profile: &Profile) -> u64 {
    let of_reads = if profile.meters_reads() { profile.line_bps() } else { 0 };
    limit.rate_bps.unwrap_or(of_reads)
}

/// How many packets a QP sends at most without asking for an acknowledgement: a quarter of its window, or what its rate makes of
/// [`ACK_REQUEST_NS`], if that is less than usual.
fn ack_request_packets(usual: u32, window_packets: u32, rate_bps: u64, mtu_bytes: u32) -> u32 {
    let by_rate = match rate_bps {
        0 => u64::MAX,
        rate => u64::try_from(u128::from(rate) * u128::from(ACK_REQUEST_NS) / 8_000_000_000).unwrap_or(u64::MAX),
    };
    let by_rate = u32::try_from(by_rate / u64::from(mtu_bytes)).unwrap_or(u32::MAX);
    usual.min(by_rate).min(window_packets / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_senders_and_small_windows_ask_more_often() {
        assert_eq!(ack_request_packets(32, u32::MAX, 0, 4096), 32);
        assert_eq!(ack_request_packets(32, u32::MAX, 100_000_000_000, 4096), 32);
        // 625 KB a ms at 5 Gb/s: 31 KB in 50 us.
        assert_eq!(ack_request_packets(32, u32::MAX, 5_000_000_000, 4096), 7);
        assert_eq!(ack_request_packets(32, u32::MAX, 1_000_000, 256), 1);
        assert_eq!(ack_request_packets(32, 16, 0, 4096), 4);
        assert_eq!(ack_request_packets(32, 1, 0, 4096), 1);
    }
}
