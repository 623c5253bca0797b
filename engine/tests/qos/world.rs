//! Two hosts, and a pair of QPs for each DSCP that a test asks for.

use engine::QosState;
use engine::command::{Answer, Command, Shards};
use shm::attr::{AhAttr, QpAttr, SendFlags, WcStatus, WrOpcode};
use shm::control::{Reply, Request};
use shm::layout::SendWqe;
use shm::qos::{QosChange, QosSettings};
use wire::buf::{Dest, VecBatch};
use wire::{Frame, MacAddr, Opcode, PfcRepr};

use crate::support::{BASE, CAP, Connect, HostOptions, Pair, TestQp, attributes, modify, steps};

/// A DSCP of priority 3, as the settings are from the start.
pub(crate) const DSCP_3: u8 = 26;
/// What every test's ports have: 100 Gbit/s, so that a quantum is 5.12 ns.
pub(crate) const LONGEST_PAUSE_NS: u64 = 335_540;

/// No PFC frames.
pub(crate) const NOTHING: [[Option<u16>; 8]; 0] = [];

/// Settings with flow control for these priorities.
pub(crate) fn with_pfc(priorities: &[usize]) -> QosSettings {
    let mut settings = QosSettings::default();
    priorities.iter().for_each(|&priority| settings.pfc[priority] = true);
    settings
}

/// A PFC frame of the peer's that names one priority.
pub(crate) fn pause(priority: usize, quanta: u16) -> Vec<u8> {
    let mut all = [None; 8];
    all[priority] = Some(quanta);
    pause_all(all)
}

pub(crate) fn pause_all(quanta: [Option<u16>; 8]) -> Vec<u8> {
    PfcRepr::Priority(quanta).to_bytes(MacAddr([2, 0, 0, 0, 0, 2])).to_vec()
}

/// Two hosts; flow `n` is QP `n` of each.
pub(crate) struct World {
    pub(crate) pair: Pair,
    pub(crate) flows: Vec<[TestQp; 2]>,
}

impl World {
    /// Host 0 has `settings`; a pair of QPs for each DSCP.
    pub(crate) fn new(settings: QosSettings, dscps: &[u8]) -> Self {
        let options = HostOptions { qos: settings, ..HostOptions::new(1) };
        Self::with(options, dscps)
    }

    pub(crate) fn with(options: HostOptions, dscps: &[u8]) -> Self {
        let pair = Pair::with(Connect::default(), options, HostOptions::new(2), 1 << 20);
        let mut world = Self { pair, flows: Vec::new() };
        dscps.iter().for_each(|&dscp| world.add(AhAttr { traffic_class: dscp << 2, ..AhAttr::default() }));
        world.pair.exchange();
        world.pair.sent.clear();
        world
    }

    /// One more pair of QPs, with the traffic class and service level of `ah`.
    pub(crate) fn add(&mut self, ah: AhAttr) {
        let Pair { hosts, clients, connect, .. } = &mut self.pair;
        let mut qps = [0, 1].map(|side: usize| clients[side].qp(&mut hosts[side], CAP));
        let (ips, qpns) = (hosts.each_ref().map(|host| host.ip), qps.each_ref().map(|qp| qp.qpn));
        for side in 0..2 {
            let attr = attributes(ips[1 - side], qpns[1 - side], *connect, side);
            let AhAttr { traffic_class, sl, .. } = ah;
            let attr = QpAttr { ah_attr: AhAttr { traffic_class, sl, ..attr.ah_attr }, ..attr };
            for (state, mask) in steps(connect.kind) {
                modify(&mut hosts[side], clients[side].session, qpns[side], QpAttr { qp_state: state, ..attr }, mask)
                    .unwrap();
            }
        }
        for side in 0..2 {
            let sges = [clients[side].sge(0, 4096)];
            (0..8).for_each(|wr_id| qps[side].post_recv(wr_id, &sges));
        }
        self.flows.push(qps);
    }

    /// A side posts a signalled request of `length` bytes on a flow.
    pub(crate) fn post(&mut self, side: usize, flow: usize, opcode: WrOpcode, wr_id: u64, length: u32) {
        let (sge, rkey) = (self.pair.clients[side].sge(0, length), self.pair.clients[1 - side].key);
        let flags = SendFlags::SIGNALED.0;
        let wqe = SendWqe { wr_id, opcode: opcode as u8, flags, remote_addr: BASE, rkey, ..SendWqe::default() };
        self.flows[flow][side].post(wqe, &[sge]);
    }

    /// Host 0 receives a frame now.
    pub(crate) fn receive(&mut self, frame: &[u8]) {
        let now = self.pair.now;
        self.pair.hosts[0].receive(now, frame);
    }

    /// Lets time pass; nothing is exchanged.
    pub(crate) fn wait(&mut self, ns: u64) {
        self.pair.now = self.pair.now.add_ns(ns);
    }

    /// What host 0 says now.
    pub(crate) fn turn(&mut self) -> Vec<Vec<u8>> {
        let now = self.pair.now;
        self.pair.hosts[0].turn(now)
    }

    /// Priorities, by the settings' usual map, of the packets that host 0 sends until both sides fall silent.
    pub(crate) fn exchange(&mut self) -> Vec<u8> {
        self.pair.exchange();
        let sent = std::mem::take(&mut self.pair.sent);
        let own = sent.iter().filter(|(from, _)| *from == 0);
        own.filter_map(|(_, frame)| Frame::parse(frame).ok().map(|frame| frame.traffic_class() >> 5)).collect()
    }

    /// Completions of a side that are good; any other is a failure.
    pub(crate) fn completed(&mut self, side: usize) -> Vec<u64> {
        let completions = self.pair.completions(side);
        assert!(completions.iter().all(|(_, status)| *status == WcStatus::Success), "{completions:?}");
        completions.into_iter().map(|(wr_id, _)| wr_id).collect()
    }

    /// What shard 0 of host 0 knows of the port's priorities.
    pub(crate) fn state(&mut self) -> QosState {
        self.state_of(0)
    }

    pub(crate) fn state_of(&mut self, shard: u8) -> QosState {
        self.pair.hosts[0].shards.now = self.pair.now;
        match self.pair.hosts[0].shards.command(shard, Command::QueryQos { port: 0 }) {
            Answer::Qos(state) => *state,
            other => panic!("{other:?}"),
        }
    }

    /// The operator of host 0 changes a setting.
    pub(crate) fn set(&mut self, change: QosChange) -> Reply {
        self.pair.hosts[0].shards.now = self.pair.now;
        self.pair.ask_operator(Request::SetQos { port_num: Some(1), change: Box::new(change) })
    }

    /// What host 0 builds with room for so few frames: opcodes are of no matter here.
    pub(crate) fn transmit(&mut self, room: usize) -> Vec<Vec<u8>> {
        let now = self.pair.now;
        let shard = self.pair.hosts[0].shard();
        shard.handle_doorbells(now);
        let mut batch = VecBatch::new(room);
        shard.poll_transmit(now, 0, &mut batch);
        batch.take().into_iter().filter(|(dest, _)| *dest == Dest::Wire).map(|(_, frame)| frame).collect()
    }

    /// Host 1 takes frames, and host 0 its answers.
    pub(crate) fn answer(&mut self, frames: &[Vec<u8>]) {
        let now = self.pair.now;
        let [own, peer] = &mut self.pair.hosts;
        frames.iter().for_each(|frame| peer.receive(now, frame));
        peer.turn(now).iter().for_each(|frame| own.receive(now, frame));
    }
}

/// Opcodes of frames.
pub(crate) fn opcodes(frames: &[Vec<u8>]) -> Vec<Opcode> {
    frames.iter().filter_map(|frame| Frame::parse(frame).ok().map(|frame| frame.bth().opcode)).collect()
}

/// The PFC frames among some.
pub(crate) fn pauses(frames: &[Vec<u8>]) -> Vec<[Option<u16>; 8]> {
    let parsed = frames.iter().filter_map(|frame| PfcRepr::parse(frame));
    parsed.map(|pfc| if let PfcRepr::Priority(quanta) = pfc { quanta } else { panic!("{pfc:?}") }).collect()
}

impl Pair {
    /// A request of host 0's client, whose user is the operator.
    pub(crate) fn ask_operator(&mut self, request: Request) -> Reply {
        let session = self.clients[0].session;
        self.hosts[0].request(session, request, vec![]).0
    }
}
