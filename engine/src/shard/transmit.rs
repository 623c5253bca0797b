//! What goes out: whose turn it is, and what it sends.

use wire::buf::TxBatch;

use super::{Env, PortState, Shard};
use crate::qos::Lane;
use crate::qp::Step;
use crate::ready::Output;
use crate::time::Time;

/// What a packet that stays inside counts as where lanes share a port by bytes: those are not counted.
const INSIDE_PACKET_BYTES: u64 = 2_048;

/// How much a port has sent in all, before a turn.
#[derive(Clone, Copy, Debug)]
struct Meter {
    packets: u64,
    bytes: u64,
    inside_packets: u64,
}

impl Shard {
    /// True if some QP waits for room to send.
    pub fn wants_transmit(&self) -> bool {
        self.env.ports.iter().any(|port| port.ready.has_work(port.qos.open_lanes()))
            || self.gsi.wants_transmit(&self.env.ports)
    }

    /// Builds frames for a port until the batch is full or nobody has anything to send. Returns how many were built.
    ///
    /// Acknowledgements and CNPs go first: they are small and hold the peer up. Responses and requests take turns, one QP's quantum
    /// each. Between lanes, traffic classes decide; lanes that the peer has paused wait.
    #[inline]
    pub fn poll_transmit<T: TxBatch>(&mut self, now: Time, port: u8, tx: &mut T) -> usize {
        self.env.now = now;
        let before = tx.room();
        self.transmit_pauses(port, tx);
        self.transmit_neighbour_packets(port, tx);
        self.transmit_mads(port, tx);
        self.flush_some(port);
        while tx.room() > 0
            && let Some((output, lane)) = self.env.ports.get_mut(usize::from(port)).and_then(PortState::next_turn)
        {
            self.transmit_one_qp(port, tx, output, lane);
        }
        self.break_overrun_cqs();
        if self.env.breaks.is_incomplete() {
            self.complete_breaks();
        }
        before - tx.room()
    }

    /// Lets the next QP of a queue send its quantum.
    #[inline]
    fn transmit_one_qp<T: TxBatch>(&mut self, port: u8, tx: &mut T, output: Output, mut lane: Lane) {
        let Self { env, qps, .. } = self;
        let Some(state) = env.ports.get_mut(usize::from(port)) else { return };
        let Some((index, left)) = state.ready.pop(output, lane) else { return };
        let mut meter = state.meter();
        let Some(Some(qp)) = qps.get_mut(index as usize) else { return };
        qp.scheduled &= !(output as u8);
        let mut has_more = true;
        let quantum = if left == 0 { env.transport.quantum_packets } else { left };
        for sent in 0..quantum {
            let step = match output {
                Output::Ack => qp.transmit_ack(env, tx),
                Output::Cnp => qp.transmit_cnp(env, tx),
                Output::Response => qp.transmit_response(env, tx),
                _ => qp.transmit_request(env, tx),
            };
            match step {
                Step::Sent => {}
                Step::Idle => {
                    qp.pass_turn(env);
                    qp.leave_lane();
                    has_more = false;
                    break;
                }
                Step::NoRoom => {
                    if qp.scheduled & output as u8 == 0
                        && let Some(state) = env.ports.get_mut(usize::from(port))
                    {
                        qp.scheduled |= output as u8;
                        let lane = qp.lane_of(output, state.qos.map());
                        state.ready.put_back(output, lane, index, quantum - sent);
                    }
                    has_more = false;
                    break;
                }
                Step::OtherLane => {
                    env.count_turn(port, lane, &mut meter);
                    lane = qp.lane;
                    if !env.ports.get(usize::from(port)).is_some_and(|state| state.is_free(lane)) {
                        break;
                    }
                }
            }
        }
        if has_more {
            qp.schedule(env, output);
        }
        env.count_turn(port, lane, &mut meter);
    }
}

impl PortState {
    /// Whose turn it is, if anybody waits who may send.
    #[inline]
    fn next_turn(&mut self) -> Option<(Output, Lane)> {
        let open = self.qos.open_lanes();
        let answers = self.ready.answers().and(open);
        if !answers.is_empty() {
            let lane = self.qos.pick(answers)?;
            return Some((self.ready.pick_answer(lane), lane));
        }
        let lane = self.qos.pick(self.ready.data().and(open))?;
        Some((self.ready.pick_data(lane), lane))
    }

    /// Whether a lane is open and nobody else waits: a turn in it can begin at once.
    #[inline]
    fn is_free(&self, lane: Lane) -> bool {
        let open = self.qos.open_lanes();
        open.contains(lane) && self.ready.data().and(open).is_empty()
    }

    #[inline]
    fn meter(&self) -> Meter {
        let counters = &self.counters;
        Meter {
            packets: counters.tx_roce_packets,
            bytes: counters.tx_roce_bytes,
            inside_packets: counters.local_packets,
        }
    }
}

impl Env {
    /// Counts what a lane has sent since the meter was read.
    #[inline]
    fn count_turn(&mut self, port: u8, lane: Lane, meter: &mut Meter) {
        let Some(state) = self.ports.get_mut(usize::from(port)) else { return };
        let now = state.meter();
        let inside = (now.inside_packets - meter.inside_packets) * INSIDE_PACKET_BYTES;
        let (packets, bytes) = (now.packets - meter.packets, now.bytes - meter.bytes);
        // Packets for the link go in lanes of priorities, all others inside.
        state.qos.count_sent(lane, packets, bytes + inside);
        *meter = now;
    }
}
