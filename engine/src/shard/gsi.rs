//! QP1 of each port: management datagrams between the wire and the control side. IBTA 13.5.

use std::collections::VecDeque;

use wire::buf::TxBatch;
use wire::{Bth, DethRepr, Frame, Gid, MacAddr, Opcode, Pkey, Psn, Qkey, Qpn, icrc};

use super::{PortState, Shard};
use crate::command::Answer;
use crate::gsi::{GSI_QKEY, IncomingMad, MAD_BYTES, MAD_QUEUE, OutgoingMad};
use crate::neigh::NextHop;
use crate::path::Path;

/// A management datagram that waits for its neighbour or for room.
#[derive(Debug)]
struct Waiting {
    path: Path,
    bytes: [u8; MAD_BYTES],
}

/// The engine's own QP1s.
#[derive(Debug)]
pub(super) struct Gsi {
    incoming: VecDeque<IncomingMad>,
    /// By port.
    outgoing: Vec<VecDeque<Waiting>>,
    psn: Psn,
}

impl Gsi {
    /// QP1 of `port_count` ports; on a shard other than 0 there is nothing to be done.
    pub(super) fn new(shard: u8, port_count: usize) -> Self {
        let room = if shard == 0 { MAD_QUEUE } else { 0 };
        let outgoing = (0..port_count).map(|_| VecDeque::new()).collect();
        Self { incoming: VecDeque::with_capacity(room), outgoing, psn: Psn::new(0) }
    }

    /// True if one could be sent now.
    #[inline]
    pub(super) fn wants_transmit(&self, ports: &[PortState]) -> bool {
        let is_open = |mad: &Waiting| {
            ports.get(usize::from(mad.path.port())).is_some_and(|p| p.qos.open_lanes().contains(mad.path.lane()))
        };
        let is_ready = |mad: &Waiting| matches!(mad.path.next_hop(ports), NextHop::Known(_)) && is_open(mad);
        self.outgoing.iter().flatten().any(is_ready)
    }
}

impl Shard {
    /// A management datagram from the wire. Call until `None`.
    #[inline]
    pub fn poll_mad(&mut self) -> Option<IncomingMad> {
        self.gsi.incoming.pop_front()
    }

    /// True if [`Shard::poll_mad`] has something.
    #[inline]
    pub fn has_mad(&self) -> bool {
        !self.gsi.incoming.is_empty()
    }

    /// A packet for QP1. Its ICRC is right.
    pub(super) fn handle_mad_frame(&mut self, port: u8, frame: &Frame<'_>) {
        let Some(state) = self.env.ports.get_mut(usize::from(port)) else { return };
        let counters = &mut state.counters;
        // Whoever may send from QP1 may be trusted to speak for its host.
        let is_mad = frame.bth().opcode == Opcode::UD_SEND_ONLY
            && frame.deth().is_some_and(|deth| deth.qkey.0 == GSI_QKEY && deth.src_qpn == Qpn::GSI);
        let bytes: Option<&[u8; MAD_BYTES]> = frame.payload().try_into().ok();
        let Some(&bytes) = bytes.filter(|_| is_mad) else {
            counters.rx_bad_mad_packets += 1;
            return;
        };
        if !frame.bth().pkey.matches(Pkey::DEFAULT) {
            counters.rx_bad_pkey += 1;
            return;
        }
        let Some(sgid_index) = state.config.gid_index_of(frame) else {
            counters.rx_wrong_path += 1;
            return;
        };
        if self.gsi.incoming.len() >= MAD_QUEUE {
            counters.rx_lost_mad_packets += 1;
            return;
        }
        counters.rx_mad_packets += 1;
        self.gsi.incoming.push_back(IncomingMad {
            port,
            sgid_index,
            src_gid: Gid::from_ip(frame.src_ip()),
            src_qpn: Qpn::GSI,
            traffic_class: frame.traffic_class(),
            sl: frame.vlan().map_or(0, |tag| tag.pcp),
            bytes,
        });
    }

    /// Takes a management datagram to send.
    pub(super) fn send_mad(&mut self, mad: &OutgoingMad) -> Answer {
        let path = match Path::resolve(&mut self.env.ports, &mad.ah, 0) {
            Ok(path) => path,
            Err(error) => {
                self.count_lost_mad(mad.ah.port_num.saturating_sub(1));
                return Answer::Refused(error);
            }
        };
        let port = path.port();
        match self.gsi.outgoing.get_mut(usize::from(port)) {
            Some(queue) if queue.len() < MAD_QUEUE => queue.push_back(Waiting { path, bytes: mad.bytes }),
            _ => {
                path.release(&mut self.env.ports);
                self.count_lost_mad(port);
            }
        }
        Answer::Done
    }

    fn count_lost_mad(&mut self, port: u8) {
        if let Some(state) = self.env.ports.get_mut(usize::from(port)) {
            state.counters.tx_lost_mad_packets += 1;
        }
    }

    /// Sends the management datagrams whose neighbours are known, and drops those whose neighbours do not answer: whoever sent
    /// them will send them again.
    #[inline]
    pub(super) fn transmit_mads<T: TxBatch>(&mut self, port: u8, tx: &mut T) {
        if self.gsi.outgoing.get(usize::from(port)).is_some_and(|queue| !queue.is_empty()) {
            self.transmit_waiting_mads(port, tx);
        }
    }

    #[cold]
    fn transmit_waiting_mads<T: TxBatch>(&mut self, port: u8, tx: &mut T) {
        let Some(queue) = self.gsi.outgoing.get_mut(usize::from(port)) else { return };
        let Some(open) = self.env.ports.get(usize::from(port)).map(|state| state.qos.open_lanes()) else { return };
        for _ in 0..queue.len() {
            let Some(mad) = queue.pop_front() else { break };
            let (sent, lost) = match mad.path.next_hop(&self.env.ports) {
                NextHop::Known(mac) if tx.room() > 0 && open.contains(mad.path.lane()) => {
                    let sent = push_mad(tx, &mad, mac, self.gsi.psn);
                    self.gsi.psn = self.gsi.psn.add(1);
                    if let Some(bytes) = sent {
                        self.env.count_transmit(port, mad.path.dest(Qpn::GSI), bytes);
                    }
                    (sent, sent.is_none())
                }
                NextHop::Known(_) | NextHop::Asked { .. } => (None, false),
                NextHop::Failed => (None, true),
            };
            if sent.is_none() && !lost {
                // In the end, all that wait are in order again.
                queue.push_back(mad);
                continue;
            }
            let lane = mad.path.lane();
            mad.path.release(&mut self.env.ports);
            if let Some(state) = self.env.ports.get_mut(usize::from(port)) {
                state.counters.tx_mad_packets += u64::from(sent.is_some());
                if let Some(bytes) = sent {
                    state.qos.count_sent(lane, 1, bytes as u64);
                }
                state.counters.tx_lost_mad_packets += u64::from(lost);
            }
        }
    }
}

/// Queues a management datagram's frame; returns its bytes if it was queued.
fn push_mad<T: TxBatch>(tx: &mut T, mad: &Waiting, station: MacAddr, psn: Psn) -> Option<usize> {
    let template = mad.path.datagram_template(Qpn::GSI, station);
    let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, psn);
    let ext = DethRepr { qkey: Qkey(GSI_QKEY), src_qpn: Qpn::GSI }.to_bytes();
    let frame_len = template.frame_len(ext.len(), MAD_BYTES);
    let sent = tx.push(mad.path.dest(Qpn::GSI), frame_len, |buf| {
        let written = template.write_packet(buf, &bth, &ext, MAD_BYTES, |payload, crc| {
            payload.copy_from_slice(&mad.bytes);
            icrc::update(crc, payload)
        });
        written > 0
    });
    sent.then_some(frame_len)
}
