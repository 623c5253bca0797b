//! Frames that came in: to the QP they are for, or to a counter that says why not.

use shm::attr::{QpState, QpType};
use wire::{Frame, FrameError, OpKind, Pkey, Qpn, ServiceType};

use super::pauses::is_mac_control;
use super::{Env, Shard};
use crate::config::{PortAddress, PortConfig};
use crate::mcast::MCAST_QPN;
use crate::neigh::NeighPacket;
use crate::qp::{ECN_CE, Qp};
use crate::time::Time;
use crate::{QPN_INDEX_MASK, shard_of};

impl Shard {
    /// A frame came in on a port, or from a QP of this engine. Whatever its bytes are, it is handled or counted.
    #[inline]
    pub fn handle_frame(&mut self, now: Time, port: u8, bytes: &[u8]) {
        self.env.now = now;
        match Frame::parse(bytes) {
            Ok(frame) => self.handle_roce(port, bytes.len(), &frame),
            Err(error) => self.handle_other(port, bytes, error),
        }
    }

    #[inline]
    fn handle_roce(&mut self, port: u8, bytes: usize, frame: &Frame<'_>) {
        let Some(state) = self.env.ports.get_mut(usize::from(port)) else { return };
        let counters = &mut state.counters;
        counters.rx_roce_packets += 1;
        counters.rx_roce_bytes += bytes as u64;
        state.qos.count_received(state.qos.map().of_frame(frame), bytes);
        if !frame.icrc_ok() {
            counters.rx_icrc_encapsulated += 1;
            return;
        }
        if let Some(tag) = frame.vlan()
            && !state.config.has_vlan(PortAddress::vlan_of(Some(tag)))
        {
            counters.rx_unknown_vlan += 1;
            return;
        }
        let bth = frame.bth();
        let qpn = bth.dest_qpn.value();
        let index = qpn & QPN_INDEX_MASK;
        let qp = self.qps.get_mut(index as usize).and_then(Option::as_deref_mut);
        let Some(qp) = qp.filter(|qp| qp.qpn() == bth.dest_qpn) else {
            self.handle_unknown_qpn(port, frame);
            return;
        };
        if let Err(count) = check_path(qp, port, &state.config, bth.pkey, frame) {
            count(counters);
            return;
        }
        dispatch(qp, &mut self.env, frame);
    }

    /// QP1 is the engine's own, on shard 0; nobody has the others.
    #[cold]
    fn handle_unknown_qpn(&mut self, port: u8, frame: &Frame<'_>) {
        if frame.bth().dest_qpn == Qpn::GSI && self.id == 0 {
            self.handle_mad_frame(port, frame);
        } else if frame.bth().dest_qpn == MCAST_QPN && frame.dst_ip().is_multicast() {
            self.handle_multicast(port, frame);
        } else if let Some(state) = self.env.ports.get_mut(usize::from(port)) {
            state.counters.rx_unknown_qpn += 1;
        }
    }

    /// A datagram for a group, from the wire or from a QP of this engine: to all members on this shard but the sender.
    fn handle_multicast(&mut self, port: u8, frame: &Frame<'_>) {
        let Self { env, qps, id, .. } = self;
        let sender = frame.deth().map(|deth| deth.src_qpn);
        let is_own = env.ports.get(usize::from(port)).is_some_and(|p| p.config.mac == frame.src_mac());
        let group = frame.dst_ip();
        // By index: a member that breaks takes nothing from the table.
        let count = env.mcast.members(group).len();
        for place in 0..count {
            let Some(qpn) = env.mcast.members(group).nth(place) else { break };
            // IBTA 10.5.2.1: a QP does not hear itself.
            if shard_of(qpn) != *id || (is_own && sender == Some(qpn)) {
                continue;
            }
            let index = (qpn.value() & QPN_INDEX_MASK) as usize;
            let Some(qp) = qps.get_mut(index).and_then(Option::as_deref_mut) else { continue };
            let Some(state) = env.ports.get_mut(usize::from(port)) else { return };
            match check_path(qp, port, &state.config, frame.bth().pkey, frame) {
                Ok(()) => dispatch(qp, env, frame),
                Err(count) => count(&mut state.counters),
            }
        }
    }

    #[cold]
    fn handle_other(&mut self, port: u8, bytes: &[u8], error: FrameError) {
        let Some(state) = self.env.ports.get_mut(usize::from(port)) else { return };
        let counters = &mut state.counters;
        match error {
            FrameError::NotRoce if is_mac_control(bytes) => self.handle_mac_control(port, bytes),
            FrameError::NotRoce => match NeighPacket::parse(bytes) {
                Some(packet) if state.config.has_vlan(packet.vlan) => self.handle_neighbour(port, &packet),
                Some(_) => counters.rx_unknown_vlan += 1,
                None => counters.rx_other_packets += 1,
            },
            FrameError::BadIpChecksum | FrameError::BadUdpChecksum => counters.rx_checksum_err += 1,
            FrameError::UnknownOpcode(_) => counters.rx_unknown_opcode += 1,
            FrameError::BadTver(_) => counters.rx_bad_tver += 1,
            _ => counters.rx_malformed_packets += 1,
        }
    }
}

/// Counts a packet that is dropped.
type Count = fn(&mut crate::counters::PortCounters);

/// IBTA 9.6.1: a packet is the QP's only if P_Key, service and addresses (or Q_Key) are.
#[inline]
fn check_path(qp: &Qp, port: u8, config: &PortConfig, pkey: Pkey, frame: &Frame<'_>) -> Result<(), Count> {
    let info = frame.info();
    let is_of_service = match qp.kind {
        QpType::Rc => info.service == ServiceType::Rc || info.kind == OpKind::SelectiveAck,
        QpType::Uc => info.service == ServiceType::Uc,
        QpType::Ud => info.service == ServiceType::Ud,
        // IBTA A14: one end has no responder, the other no requester.
        QpType::XrcSend => {
            info.service == ServiceType::Xrc && info.kind.is_response() || info.kind == OpKind::SelectiveAck
        }
        QpType::XrcRecv => info.service == ServiceType::Xrc && !info.kind.is_response(),
    };
    if !is_of_service && info.kind != OpKind::Cnp {
        return Err(|c| c.rx_wrong_service += 1);
    }
    if !pkey.matches(qp.pkey()) {
        return Err(|c| c.rx_bad_pkey += 1);
    }
    let takes = match qp.state {
        QpState::Rts | QpState::Sqd | QpState::Sqe => true,
        // It has sent nothing that could be answered.
        QpState::Rtr => !info.kind.is_response(),
        QpState::Reset | QpState::Init | QpState::Err => false,
    };
    if !takes {
        return Err(|c| c.rx_wrong_state += 1);
    }
    if qp.kind == QpType::Ud {
        return check_datagram(qp, port, config, frame);
    }
    if qp.port != port || !qp.path_matches(frame) {
        return Err(|c| c.rx_wrong_path += 1);
    }
    Ok(())
}

/// A datagram may come from anyone, to any of the port's addresses or to a group.
#[inline]
fn check_datagram(qp: &Qp, port: u8, config: &PortConfig, frame: &Frame<'_>) -> Result<(), Count> {
    if frame.info().kind == OpKind::Cnp {
        return Err(|c| c.rp_cnp_ignored += 1);
    }
    // One for a group comes here only if the QP is attached to it.
    let is_group = frame.bth().dest_qpn == MCAST_QPN;
    if qp.port != port || !(is_group || config.gid_index_of(frame).is_some()) {
        return Err(|c| c.rx_wrong_path += 1);
    }
    if !qp.qkey_matches(frame) {
        return Err(|c| c.rx_bad_qkey += 1);
    }
    Ok(())
}

#[inline]
fn dispatch(qp: &mut Qp, env: &mut Env, frame: &Frame<'_>) {
    let kind = frame.info().kind;
    if frame.ecn() == ECN_CE {
        qp.handle_marked(env, frame);
    }
    if kind.is_response() {
        qp.handle_response(env, frame);
    } else if kind == OpKind::Cnp {
        qp.handle_cnp(env);
    } else if qp.kind.is_reliable() {
        qp.handle_request(env, frame);
    } else {
        qp.handle_unreliable(env, frame);
    }
}
