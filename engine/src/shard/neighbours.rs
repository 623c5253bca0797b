//! Finding neighbours: what comes in about them, what is asked, and whose paths change by it.

use shm::attr::QpType;
use wire::MacAddr;
use wire::buf::{Dest, TxBatch};

use super::{PortState, Shard};
use crate::command::Answer;
use crate::neigh::{NeighKey, NeighMessage, NeighPacket, Neighbour};

impl Shard {
    /// A neighbour's packet: learned from, and answered if it asks for one of our addresses.
    #[cold]
    pub(super) fn handle_neighbour(&mut self, port: u8, packet: &NeighPacket) {
        let Some(state) = self.env.ports.get_mut(usize::from(port)) else { return };
        let PortState { config, neighbours, counters, neigh_replies, .. } = state;
        let outcome = neighbours.handle_packet(self.env.now, packet, config);
        match packet.message {
            NeighMessage::Arp(_) => {
                counters.rx_arp_packets += 1;
                counters.arp_address_conflict += u64::from(outcome.conflict);
            }
            NeighMessage::Ndp(_) => {
                counters.rx_ndp_packets += 1;
                counters.ndp_address_conflict += u64::from(outcome.conflict);
            }
        }
        // Every shard keeps its own table and sees every such packet; one answer is enough.
        if self.id == 0
            && let Some(reply) = outcome.reply
            && neigh_replies.len() < neigh_replies.capacity()
        {
            neigh_replies.push_back(reply);
        }
        if let Some(neighbour) = outcome.changed {
            self.refresh_paths(port, neighbour);
        }
    }

    /// A neighbour's MAC is known now, or another: QPs that send to it get new templates.
    fn refresh_paths(&mut self, port: u8, neighbour: u32) {
        for qp in self.qps.iter_mut().flatten() {
            if qp.kind == QpType::Ud && qp.port == port {
                qp.resume_datagrams(&mut self.env);
            } else if qp.uses_neighbour(port, neighbour) {
                qp.refresh_path(&mut self.env);
            }
        }
    }

    /// What is known of a neighbour; our own addresses are known.
    pub(super) fn query_neighbour(&mut self, port: u8, key: NeighKey) -> Answer {
        let now = self.env.now;
        let Some(state) = self.env.ports.get_mut(usize::from(port)) else { return Answer::Missing };
        if state.config.has_address(key.ip, key.vlan) {
            return Answer::Neighbour(Neighbour::Known(state.config.mac));
        }
        state.neighbours.query(now, key).map_or(Answer::Missing, Answer::Neighbour)
    }

    /// Fixes a neighbour's MAC; paths that wait for it are ready then.
    pub(super) fn fix_neighbour(&mut self, port: u8, key: NeighKey, mac: MacAddr) -> Answer {
        let Some(state) = self.env.ports.get_mut(usize::from(port)) else { return Answer::Missing };
        let Some(neighbour) = state.neighbours.insert_static(key, mac) else { return Answer::Missing };
        self.refresh_paths(port, neighbour);
        Answer::Done
    }

    #[inline]
    pub(super) fn transmit_neighbour_packets<T: TxBatch>(&mut self, port: u8, tx: &mut T) {
        let now = self.env.now;
        let Some(state) = self.env.ports.get_mut(usize::from(port)) else { return };
        if !state.may_send_untagged() {
            return;
        }
        while tx.room() > 0
            && let Some(reply) = state.neigh_replies.pop_front()
        {
            state.push_neighbour_packet(&reply, tx);
        }
        while tx.room() > 0 && state.neighbours.next_deadline() <= now {
            let Some(request) = state.neighbours.poll_request(now) else { break };
            if let Some(packet) = NeighPacket::request(&state.config, &request) {
                state.push_neighbour_packet(&packet, tx);
            }
        }
    }
}

impl PortState {
    #[cold]
    fn push_neighbour_packet<T: TxBatch>(&mut self, packet: &NeighPacket, tx: &mut T) {
        let mac: MacAddr = self.config.mac;
        if tx.push(Dest::Wire, packet.frame_len(), |buf| packet.emit(mac, buf)) {
            match packet.message {
                NeighMessage::Arp(_) => self.counters.tx_arp_packets += 1,
                NeighMessage::Ndp(_) => self.counters.tx_ndp_packets += 1,
            }
        }
    }
}
