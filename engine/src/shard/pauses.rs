//! Priority flow control: frames of the peer, frames to the peer.

use wire::buf::{Dest, TxBatch};
use wire::{EtherType, EthernetRepr, PfcRepr};

use super::{PortState, Shard};
use crate::neigh::is_neighbour_packet;
use crate::qos::{Backlog, Early, Lane, PauseNotice};
use crate::time::Time;

/// The lane of frames that have no IP header: priority 0, as they have no tag either.
const UNTAGGED: Lane = Lane::of_priority(0);

/// Whether every shard must see a frame, by the types in its headers only: it tells of a neighbour, or of a pause.
#[inline]
pub fn is_for_all_shards(frame: &[u8]) -> bool {
    is_mac_control(frame) || is_neighbour_packet(frame)
}

#[inline]
pub(super) fn is_mac_control(frame: &[u8]) -> bool {
    EthernetRepr::parse(frame).is_some_and(|ethernet| ethernet.ether_type == EtherType::MAC_CONTROL)
}

impl Shard {
    /// A MAC control frame.
    #[cold]
    pub(super) fn handle_mac_control(&mut self, port: u8, bytes: &[u8]) {
        let is_first = self.id == 0;
        let Some(PortState { config, qos, counters, .. }) = self.env.ports.get_mut(usize::from(port)) else { return };
        match PfcRepr::parse(bytes) {
            Some(PfcRepr::Priority(quanta)) => {
                // Every shard sees it; one of them counts.
                counters.rx_pfc_frames += u64::from(is_first);
                qos.handle_pause(self.env.now, &quanta, config.speed_mbps);
            }
            Some(PfcRepr::Link(_)) => counters.rx_link_pause_frames += u64::from(is_first),
            None => counters.rx_malformed_packets += u64::from(is_first),
        }
    }

    /// Whether [`Shard::handle_backlog`] is of use: some priority of the port has flow control, and the device does not see to it.
    #[inline]
    pub fn wants_backlog(&self, port: u8) -> bool {
        self.env.ports.get(usize::from(port)).is_some_and(|state| state.qos.is_governed())
    }

    /// How many frames wait for this shard on a port, after those in hand are handled: the peer is told to pause if they are too many.
    /// Frames that came early, and are kept for their turn, count as well. To be said once a turn where [`Shard::wants_backlog`] says so,
    /// frames or not.
    pub fn handle_backlog(&mut self, now: Time, port: u8, backlog: Backlog) {
        self.env.now = now;
        let pool = &self.env.keep;
        let early = Early { held: pool.held(port), room: pool.room(), capacity: pool.capacity() };
        if let Some(state) = self.env.ports.get_mut(usize::from(port)) {
            state.qos.handle_backlog(now, backlog, &early);
        }
    }

    /// A report of the watchdog over pauses, for the log. Call until `None`.
    pub fn poll_notice(&mut self) -> Option<PauseNotice> {
        let ports = self.env.ports.iter_mut().zip(1..);
        ports
            .filter_map(|(state, port_num)| state.qos.poll_notice().map(|notice| (port_num, notice)))
            .next()
            .map(|(port_num, (priority, trouble))| PauseNotice { port_num, priority, trouble })
    }

    /// True if [`Shard::poll_notice`] has something.
    #[inline]
    pub fn has_notice(&self) -> bool {
        self.env.ports.iter().any(|state| state.qos.has_notice())
    }

    /// Ends pauses, and asks the peer for some: before all else, since it is soon that counts.
    #[inline]
    pub(super) fn transmit_pauses<T: TxBatch>(&mut self, port: u8, tx: &mut T) {
        if let Some(state) = self.env.ports.get_mut(usize::from(port))
            && !state.qos.is_quiet()
        {
            state.transmit_pauses(self.env.now, tx);
        }
    }
}

impl PortState {
    #[cold]
    fn transmit_pauses<T: TxBatch>(&mut self, now: Time, tx: &mut T) {
        self.qos.watch(now);
        let Some(quanta) = self.qos.pause_frame(now) else { return };
        let frame = PfcRepr::Priority(quanta).to_bytes(self.config.mac);
        let sent = tx.push(Dest::Wire, frame.len(), |buf| {
            buf.copy_from_slice(&frame);
            true
        });
        if sent {
            self.counters.tx_pfc_frames += 1;
            self.qos.pause_frame_sent(now, &quanta, self.config.speed_mbps);
        }
    }

    /// Whether frames without an IP header may be sent.
    #[inline]
    pub(super) fn may_send_untagged(&self) -> bool {
        self.qos.open_lanes().contains(UNTAGGED)
    }

    /// When there is something to do next without anything coming in.
    pub(super) fn next_deadline(&self) -> Time {
        // Who may not ask for a neighbour now need not wake up for it: the end of the pause is a deadline too.
        let neighbours = if self.may_send_untagged() { self.neighbours.next_deadline() } else { Time::NEVER };
        neighbours.min(self.qos.next_deadline())
    }
}
