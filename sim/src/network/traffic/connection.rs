//! A connection between two stations, and the flows on it.

use std::collections::VecDeque;
use std::ops::Range;

use ferroce::{AccessFlags, Psn, QueuePair, RecvWr, RemoteQp, SendWr};
use rand::Rng;

use super::TrafficSettings;
use super::station::Station;
use crate::flow::{Flow, FlowOp};
use crate::inspect::{Bounds, Figures, Progress, Requests, check_pair_at_rest};
use crate::random::Stream;
use crate::violation::{Checked, OrSay};

/// Bit of a work request's number that says it is a receive.
pub(super) const RECEIVE: u64 = 1 << 63;
/// Where in a work request's number its place among those of its connection begins; below is the connection's number.
const PLACE_SHIFT: u32 = 32;

/// The connection that a work request is of.
pub(super) const fn connection_of(wr_id: u64) -> u32 {
    wr_id as u32
}

/// A work request that has not completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Posted {
    pub(super) wr_id: u64,
    pub(super) bytes: u32,
}

/// Where a connection is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Up,
    /// Broken; what was posted is being flushed.
    Failing,
    /// Flushed; old packets die out.
    Lingering,
    /// One of its stations is lost.
    Dead,
}

/// A flow that has begun.
#[derive(Clone, Debug)]
pub(super) struct ActiveFlow {
    pub(super) flow: Flow,
    pub(super) posted: u64,
    pub(super) completed: u64,
    /// Where its bytes are, in the source's and the destination's region.
    pub(super) ranges: [Range<u64>; 2],
}

pub(super) struct Connection {
    /// Source and destination.
    pub(super) hosts: [u16; 2],
    pub(super) op: FlowOp,
    pub(super) qps: [QueuePair; 2],
    pub(super) phase: Phase,
    /// The oldest first; they go one after the other.
    pub(super) flows: VecDeque<ActiveFlow>,
    /// Messages that were posted and have not completed.
    pub(super) outstanding: VecDeque<Posted>,
    /// Receives, likewise.
    pub(super) receives: VecDeque<Posted>,
    /// Messages posted so far.
    pub(super) messages: u32,
    /// What was posted since the QPs were last connected.
    pub(super) sent: Requests,
    /// How far each QP was when it was last looked at.
    pub(super) progress: [Progress; 2],
}

impl Connection {
    /// Which of the two hosts posts the work requests.
    pub(super) fn requester(&self) -> usize {
        usize::from(self.op == FlowOp::Read)
    }

    pub(super) fn requester_host(&self) -> u16 {
        self.hosts[self.requester()]
    }

    /// Takes both QPs from RESET to RTS.
    pub(super) fn connect(&mut self, stations: &[Station], settings: &TrafficSettings, stream: &mut Stream) -> Checked {
        let psns: [Psn; 2] = std::array::from_fn(|_| Psn::new(stream.random_range(0..=Psn::MASK)));
        for side in [0, 1] {
            let peer = &stations[usize::from(self.hosts[1 - side])];
            let remote = RemoteQp {
                qpn: self.qps[1 - side].qpn(),
                psn: psns[1 - side],
                gid: peer.gid,
                path_mtu: settings.path_mtu,
            };
            let qp = &self.qps[side];
            qp.to_init(1, AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ).or_say("to INIT")?;
            qp.to_rtr(&remote, &settings.attr).or_say("to RTR")?;
            qp.to_rts(psns[side], &settings.attr).or_say("to RTS")?;
        }
        self.progress = [Progress::default(); 2];
        self.sent = Requests::default();
        self.phase = Phase::Up;
        Ok(())
    }

    /// The same from any state. What was posted is posted anew.
    pub(super) fn reconnect(
        &mut self,
        stations: &[Station],
        settings: &TrafficSettings,
        stream: &mut Stream,
    ) -> Checked {
        for qp in &self.qps {
            qp.reset().or_say("to RESET")?;
        }
        for active in &mut self.flows {
            active.posted = active.completed;
        }
        self.connect(stations, settings, stream)
    }

    /// Posts as many messages as may be outstanding. True if there were any.
    pub(super) fn post(&mut self, number: u32, stations: &[Station], settings: &TrafficSettings) -> Checked<bool> {
        if self.phase != Phase::Up {
            return Ok(false);
        }
        let mut posted = false;
        while self.outstanding.len() < usize::from(settings.outstanding) && self.receives.len() < settings.receives() {
            let Some(index) = self.flows.iter().position(|active| active.posted < active.flow.bytes) else { break };
            self.post_message(number, index, stations, settings)?;
            posted = true;
        }
        Ok(posted)
    }

    fn post_message(&mut self, number: u32, index: usize, stations: &[Station], settings: &TrafficSettings) -> Checked {
        let active = &mut self.flows[index];
        let length = (active.flow.bytes - active.posted).min(u64::from(settings.message_bytes)) as u32;
        // Flows that nobody checks all use the same bytes, again and again.
        let offset = if settings.verifies { active.posted } else { 0 };
        active.posted += u64::from(length);
        let [source, target] = [0, 1].map(|side| active.ranges[side].start + offset);
        let [from, to] = self.hosts.map(|host| &stations[usize::from(host)].region);
        // 31 bits are more places than a run has messages.
        let wr_id = u64::from(self.messages & i32::MAX as u32) << PLACE_SHIFT | u64::from(number);
        self.messages = self.messages.wrapping_add(1);
        self.sent.add(if self.op == FlowOp::Read { length.div_ceil(settings.path_mtu.bytes()) } else { 0 });
        match self.op {
            FlowOp::Write => {
                let sge = from.sge(source, length).or_say("an SGE")?;
                self.qps[0].post_send(&SendWr::write(wr_id, &[sge], to.addr() + target, to.rkey()).signaled())
            }
            FlowOp::Read => {
                let sge = to.sge(target, length).or_say("an SGE")?;
                self.qps[1].post_send(&SendWr::read(wr_id, &[sge], from.addr() + source, from.rkey()).signaled())
            }
            FlowOp::Send => {
                // The destination knows what is coming.
                let landing = to.sge(target, length).or_say("an SGE")?;
                self.qps[1].post_recv(&RecvWr::new(wr_id | RECEIVE, &[landing])).or_say("posting a receive")?;
                self.receives.push_back(Posted { wr_id: wr_id | RECEIVE, bytes: length });
                let sge = from.sge(source, length).or_say("an SGE")?;
                self.qps[0].post_send(&SendWr::send(wr_id, &[sge]).signaled())
            }
        }
        .or_say("posting")?;
        self.outstanding.push_back(Posted { wr_id, bytes: length });
        Ok(())
    }

    /// Looks at the engine's own figures of the QP on a host.
    pub(super) fn inspect(&mut self, host: u16, station: &Station, settings: &TrafficSettings) -> Checked {
        let window = station.host.settings().transport.window_packets;
        let read_packets =
            if self.op == FlowOp::Read { settings.message_bytes.div_ceil(settings.path_mtu.bytes()) } else { 0 };
        let bounds = Bounds::new(window, settings.attr.max_rd_atomic, read_packets);
        let side = usize::from(self.hosts[1] == host);
        self.progress[side].look(&station.context, &self.qps[side], bounds)
    }

    /// At rest all messages since the QPs were connected were executed once, and none goes the other way.
    pub(super) fn check_at_rest(&self, stations: &[Station]) -> Checked {
        let figures = |side: usize| Figures::of(&stations[usize::from(self.hosts[side])].context, &self.qps[side]);
        let (requester, responder) = (figures(self.requester())?, figures(1 - self.requester())?);
        check_pair_at_rest(&requester, &responder, self.sent)?;
        check_pair_at_rest(&responder, &requester, Requests::default())
    }

    /// True if nothing of it waits for a completion.
    pub(super) fn is_drained(&self) -> bool {
        self.outstanding.is_empty() && self.receives.is_empty()
    }
}
