//! Frames that came in: to the QP they are for, or to a counter that says why not.

use shm::attr::{QpState, QpType};
use wire::{ArpRepr, EtherType, EthernetRepr, Frame, FrameError, OpKind, Pkey, ServiceType};

use super::{Env, Shard};
use crate::QPN_INDEX_MASK;
use crate::qp::Qp;
use crate::time::Time;

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
        if !frame.icrc_ok() {
            counters.rx_icrc_encapsulated += 1;
            return;
        }
        let bth = frame.bth();
        let qpn = bth.dest_qpn.value();
        let index = qpn & QPN_INDEX_MASK;
        let qp = self.qps.get_mut(index as usize).and_then(Option::as_deref_mut);
        let Some(qp) = qp.filter(|qp| qp.qpn() == bth.dest_qpn) else {
            counters.rx_unknown_qpn += 1;
            return;
        };
        if let Err(count) = check_path(qp, port, bth.pkey, frame) {
            count(counters);
            return;
        }
        dispatch(qp, &mut self.env, frame);
    }

    #[cold]
    fn handle_other(&mut self, port: u8, bytes: &[u8], error: FrameError) {
        let Some(state) = self.env.ports.get_mut(usize::from(port)) else { return };
        let counters = &mut state.counters;
        match error {
            FrameError::NotRoce => {
                let Some((head, body)) = bytes.split_first_chunk::<{ EthernetRepr::LEN }>() else { return };
                let ethernet = EthernetRepr::from_bytes(head);
                match ArpRepr::parse(body) {
                    Some(arp) if ethernet.ether_type == EtherType::ARP => self.handle_arp(port, arp),
                    _ => counters.rx_other_packets += 1,
                }
            }
            FrameError::BadIpChecksum | FrameError::BadUdpChecksum => counters.rx_checksum_err += 1,
            FrameError::UnknownOpcode(_) => counters.rx_unknown_opcode += 1,
            FrameError::BadTver(_) => counters.rx_bad_tver += 1,
            _ => counters.rx_malformed_packets += 1,
        }
    }

    /// An ARP packet: learned from, and answered if it asks for one of our addresses.
    pub(super) fn handle_arp(&mut self, port: u8, arp: ArpRepr) {
        let Some(state) = self.env.ports.get_mut(usize::from(port)) else { return };
        state.counters.rx_arp_packets += 1;
        let outcome = state.neighbours.handle_arp(self.env.now, &arp, &state.config);
        // Every shard keeps its own table and sees every ARP packet; one answer is enough.
        if self.id == 0
            && let Some(reply) = outcome.reply
            && state.arp_replies.len() < state.arp_replies.capacity()
        {
            state.arp_replies.push_back(reply);
        }
        state.counters.arp_address_conflict += u64::from(outcome.conflict);
        if let Some(neighbour) = outcome.changed {
            self.refresh_paths(port, neighbour);
        }
    }

    /// A neighbour's MAC is known now, or another: QPs that send to it get new templates.
    fn refresh_paths(&mut self, port: u8, neighbour: u32) {
        for qp in self.qps.iter_mut().flatten() {
            if qp.uses_neighbour(port, neighbour) {
                qp.refresh_path(&mut self.env);
            }
        }
    }
}

/// Counts a packet that is dropped.
type Count = fn(&mut crate::counters::PortCounters);

/// IBTA 9.6.1: a packet is the QP's only if P_Key, service and addresses are.
#[inline]
fn check_path(qp: &Qp, port: u8, pkey: Pkey, frame: &Frame<'_>) -> Result<(), Count> {
    let service = match qp.kind {
        QpType::Rc => ServiceType::Rc,
        QpType::Uc => ServiceType::Uc,
        QpType::Ud => ServiceType::Ud,
    };
    let info = frame.info();
    if info.service != service && info.kind != OpKind::Cnp {
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
    if qp.port != port || !qp.path_matches(frame) {
        return Err(|c| c.rx_wrong_path += 1);
    }
    if info.kind == OpKind::Cnp {
        return Err(|c| c.rp_cnp_received += 1);
    }
    Ok(())
}

#[inline]
fn dispatch(qp: &mut Qp, env: &mut Env, frame: &Frame<'_>) {
    if frame.info().kind.is_response() {
        qp.handle_response(env, frame);
    } else if qp.kind == QpType::Rc {
        qp.handle_request(env, frame);
    } else {
        qp.handle_unreliable(env, frame);
    }
}
