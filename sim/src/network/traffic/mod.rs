//! What is on the hosts of a network: an application each, connections between them, and flows on these, all over the real
//! client library and its rings.

mod arena;
mod connection;
mod garbage;
mod station;

use std::collections::{BTreeMap, VecDeque};

use engine::Time;
use ferroce::{ConnectAttr, PathMtu, WcOpcode, WcStatus, WorkCompletion};
use rand::Rng;
use rand::seq::IndexedMutRandom;

use super::fabric::{Alarm, Fabric};
use crate::flow::{Flow, FlowOp, FlowSource, Observer};
use crate::inspect::{Progress, Requests};
use crate::random::{Stream, StreamOf, stream};
use crate::violation::{Checked, OrSay, require};
use connection::{ActiveFlow, Connection, Phase, RECEIVE, connection_of};
use garbage::write_garbage;
use station::Station;

/// Completions that are taken at a time.
const POLL_BATCH: usize = 32;
/// One in so many looks of a host's application has one at the engine's own figures.
const INSPECT_ONE_IN: u32 = 32;

/// Which flows share a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// None: each has a connection that is as new.
    PerFlow,
    /// All of a source, a destination and an operation, one after the other.
    PerPair,
}

/// How flows are carried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrafficSettings {
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Bytes of a work request at most.
    pub message_bytes: u32,
    /// Work requests that a connection has outstanding at most.
    pub outstanding: u16,
    /// Which flows share a connection.
    pub sharing: Sharing,
    /// Attributes of every QP.
    pub attr: ConnectAttr,
    /// Every byte of every flow is checked.
    pub verifies: bool,
    /// Bytes that the flows of a host may have at a time, if they are checked.
    pub arena_bytes: u64,
    /// Time until a broken connection is brought up again: longer than a packet lives, ns.
    pub linger_ns: u64,
}

impl Default for TrafficSettings {
    fn default() -> Self {
        Self {
            path_mtu: PathMtu::M4096,
            message_bytes: 64 << 10,
            outstanding: 16,
            sharing: Sharing::PerFlow,
            attr: ConnectAttr::default(),
            verifies: false,
            arena_bytes: 4 << 20,
            linger_ns: 1_000_000,
        }
    }
}

impl TrafficSettings {
    /// Receives that a connection has posted at most: a destination may look later than a source whose sends it has acknowledged.
    fn receives(&self) -> usize {
        2 * usize::from(self.outstanding)
    }
}

/// Counts of a run's flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowCounts {
    /// Flows that began.
    pub started: u64,
    /// Flows of which every byte has arrived.
    pub completed: u64,
    /// Flows given up because a client at one of their ends is gone.
    pub abandoned: u64,
    /// Times that a connection was brought up again.
    pub reconnects: u64,
}

/// Applications and their flows.
pub struct Traffic {
    settings: TrafficSettings,
    stations: Vec<Station>,
    connections: Vec<Connection>,
    /// Connections that a flow may have, by source, destination and operation.
    idle: BTreeMap<(u16, u16, FlowOp), VecDeque<u32>>,
    /// Flows for which there was no room yet.
    waiting: VecDeque<Flow>,
    counts: FlowCounts,
    /// No connection may break any more.
    must_hold: bool,
    stream: Stream,
    flow_alarm: Time,
}

/// Where flows come from, and who looks on.
pub(super) struct Outside<'a> {
    pub(super) source: &'a mut dyn FlowSource,
    pub(super) observer: &'a mut dyn Observer,
}

impl Traffic {
    /// An application on every host.
    ///
    /// # Errors
    /// What did not work.
    pub fn new(seed: u64, settings: TrafficSettings, fabric: &Fabric) -> Checked<Self> {
        let station = |host| Station::new(fabric.host(host), &settings).map_err(|what| format!("host {host}: {what}"));
        let stations = (0..fabric.host_count()).map(station).collect::<Checked<Vec<_>>>()?;
        Ok(Self {
            settings,
            stations,
            connections: Vec::new(),
            idle: BTreeMap::new(),
            waiting: VecDeque::new(),
            counts: FlowCounts::default(),
            must_hold: false,
            stream: stream(seed, StreamOf::Traffic),
            flow_alarm: Time::NEVER,
        })
    }

    /// Counts so far.
    pub fn counts(&self) -> FlowCounts {
        self.counts
    }

    /// From now on it is a violation if a connection breaks.
    pub fn forbid_breaking(&mut self) {
        self.must_hold = true;
    }

    /// True if no flow is under way.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.connections.iter().all(|connection| connection.flows.is_empty())
    }

    /// What is under way, in words.
    pub fn unfinished(&self) -> String {
        let busy = self.connections.iter().filter(|connection| !connection.flows.is_empty());
        let lines = busy.flat_map(|connection| {
            connection.flows.iter().map(move |active| {
                let Flow { id, src, dst, bytes, .. } = active.flow;
                format!("flow {id} from {src} to {dst}: {} of {bytes} bytes ({:?})", active.completed, connection.phase)
            })
        });
        let mut lines: Vec<String> = lines.take(8).collect();
        if !self.waiting.is_empty() {
            lines.push(format!("{} flows wait for room", self.waiting.len()));
        }
        lines.join("; ")
    }

    /// Has an alarm set for the next flow.
    pub(super) fn plan_flows(&mut self, fabric: &mut Fabric, source: &dyn FlowSource) {
        if let Some(at) = source.next_start() {
            let at = at.max(fabric.now());
            if at < self.flow_alarm {
                self.flow_alarm = at;
                fabric.set_alarm(at, Alarm::Flows);
            }
        }
    }

    /// Starts what is due.
    pub(super) fn start_flows(&mut self, fabric: &mut Fabric, outside: &mut Outside<'_>) -> Checked {
        let now = fabric.now();
        if self.flow_alarm <= now {
            self.flow_alarm = Time::NEVER;
        }
        while let Some(flow) = outside.source.take(now) {
            self.waiting.push_back(flow);
        }
        self.start_waiting(fabric, outside)?;
        self.plan_flows(fabric, outside.source);
        Ok(())
    }

    fn start_waiting(&mut self, fabric: &mut Fabric, outside: &mut Outside<'_>) -> Checked {
        for _ in 0..self.waiting.len() {
            let Some(flow) = self.waiting.pop_front() else { break };
            if !self.start(fabric, flow, outside)? {
                self.waiting.push_back(flow);
            }
        }
        Ok(())
    }

    /// Starts a flow. False if there is no room for it yet.
    fn start(&mut self, fabric: &mut Fabric, flow: Flow, outside: &mut Outside<'_>) -> Checked<bool> {
        let hosts = [flow.src, flow.dst];
        let count = self.stations.len();
        let are_there = flow.src != flow.dst && hosts.iter().all(|&host| usize::from(host) < count);
        require!(are_there, "flow {} goes from host {} to host {}, of {count}", flow.id, flow.src, flow.dst);
        if hosts.iter().any(|&host| self.stations[usize::from(host)].is_lost) {
            self.counts.started += 1;
            outside.observer.flow_started(fabric.now(), &flow);
            self.end_flow(fabric, &flow, false, outside);
            return Ok(true);
        }
        let Some(ranges) = self.take_ranges(&flow)? else { return Ok(false) };
        hosts.iter().for_each(|&host| fabric.bring_up_to_date(host));
        let number = self.connection_for(&flow)?;
        self.counts.started += 1;
        outside.observer.flow_started(fabric.now(), &flow);
        self.connections[number as usize].flows.push_back(ActiveFlow { flow, posted: 0, completed: 0, ranges });
        self.post(fabric, number)?;
        Ok(true)
    }

    fn take_ranges(&mut self, flow: &Flow) -> Checked<Option<[std::ops::Range<u64>; 2]>> {
        if !self.settings.verifies {
            return Ok(Some([0..0, 0..0]));
        }
        let [src, dst] = [usize::from(flow.src), usize::from(flow.dst)];
        let Some(source) = self.stations[src].take(flow.bytes) else { return Ok(None) };
        let Some(target) = self.stations[dst].take(flow.bytes) else {
            self.stations[src].give_back(&source)?;
            return Ok(None);
        };
        self.stations[src].put(&source, flow.id)?;
        Ok(Some([source, target]))
    }

    /// The connection that a flow gets.
    fn connection_for(&mut self, flow: &Flow) -> Checked<u32> {
        let key = (flow.src, flow.dst, flow.op);
        let idle = self.idle.entry(key).or_default();
        match self.settings.sharing {
            Sharing::PerPair => {
                if let Some(&number) = idle.front() {
                    return Ok(number);
                }
            }
            Sharing::PerFlow => {
                if let Some(number) = idle.pop_front() {
                    let connection = &mut self.connections[number as usize];
                    connection.reconnect(&self.stations, &self.settings, &mut self.stream)?;
                    return Ok(number);
                }
            }
        }
        let number = self.connections.len() as u32;
        let qp = |host: u16| self.stations[usize::from(host)].create_qp(&self.settings);
        let mut connection = Connection {
            hosts: [flow.src, flow.dst],
            op: flow.op,
            qps: [qp(flow.src)?, qp(flow.dst)?],
            phase: Phase::Up,
            flows: VecDeque::new(),
            outstanding: VecDeque::new(),
            receives: VecDeque::new(),
            messages: 0,
            sent: Requests::default(),
            progress: [Progress::default(); 2],
        };
        connection.connect(&self.stations, &self.settings, &mut self.stream)?;
        self.connections.push(connection);
        if self.settings.sharing == Sharing::PerPair {
            self.idle.entry(key).or_default().push_back(number);
        }
        Ok(number)
    }

    fn post(&mut self, fabric: &mut Fabric, number: u32) -> Checked {
        let connection = &mut self.connections[number as usize];
        if connection.post(number, &self.stations, &self.settings)? {
            fabric.look_after(connection.requester_host());
        }
        Ok(())
    }

    /// A host's engine has done something: takes the completions.
    pub(super) fn visit(&mut self, fabric: &mut Fabric, host: u16, outside: &mut Outside<'_>) -> Checked {
        if self.stations.get(usize::from(host)).is_none_or(|station| station.is_lost) {
            return Ok(());
        }
        if self.settings.verifies && self.stream.random_ratio(1, INSPECT_ONE_IN) {
            self.inspect(host)?;
        }
        let mut batch = [WorkCompletion::default(); POLL_BATCH];
        loop {
            let count = self.stations[usize::from(host)].poll(&mut batch);
            for completion in &batch[..count] {
                self.complete(fabric, completion, outside)?;
            }
            if count < POLL_BATCH {
                return Ok(());
            }
        }
    }

    /// Looks at one of a host's connections that are up.
    fn inspect(&mut self, host: u16) -> Checked {
        let station = &self.stations[usize::from(host)];
        let is_meant = |c: &Connection| c.hosts.contains(&host) && c.phase == Phase::Up && !c.flows.is_empty();
        let mut there: Vec<&mut Connection> = self.connections.iter_mut().filter(|c| is_meant(c)).collect();
        match there.choose_mut(&mut self.stream) {
            Some(connection) => connection.inspect(host, station, &self.settings),
            None => Ok(()),
        }
    }

    fn complete(&mut self, fabric: &mut Fabric, wc: &WorkCompletion, outside: &mut Outside<'_>) -> Checked {
        let number = connection_of(wc.wr_id);
        let connection = self.connections.get_mut(number as usize);
        let connection = connection.ok_or_else(|| format!("a completion with the number {:#x}", wc.wr_id))?;
        if connection.phase == Phase::Dead {
            return Ok(());
        }
        let is_receive = wc.wr_id & RECEIVE != 0;
        let queue = if is_receive { &mut connection.receives } else { &mut connection.outstanding };
        // Each once, and in the order in which they were posted.
        let posted = queue.pop_front().filter(|posted| posted.wr_id == wc.wr_id);
        let bytes = posted.ok_or_else(|| format!("connection {number}: {wc:?} is not the next to complete"))?.bytes;
        let side = if is_receive { 1 } else { connection.requester() };
        require!(wc.qpn == connection.qps[side].qpn(), "connection {number}: {wc:?} is another QP's");
        if !wc.is_ok() {
            return self.failed(fabric, number, wc, outside);
        }
        require!(connection.phase == Phase::Up, "connection {number}: {wc:?} after it broke");
        if is_receive {
            let is_whole = wc.byte_len == bytes && wc.opcode == WcOpcode::Recv;
            require!(is_whole, "connection {number}: {bytes} bytes were sent, and {wc:?} came");
            return self.post(fabric, number);
        }
        self.progress(fabric, number, bytes, outside)
    }

    fn progress(&mut self, fabric: &mut Fabric, number: u32, bytes: u32, outside: &mut Outside<'_>) -> Checked {
        let connection = &mut self.connections[number as usize];
        let active = connection.flows.front_mut().ok_or("a message of no flow has completed")?;
        active.completed += u64::from(bytes);
        outside.observer.flow_progressed(fabric.now(), active.flow.id, u64::from(bytes));
        if active.completed == active.flow.bytes
            && let Some(active) = connection.flows.pop_front()
        {
            if connection.flows.is_empty() && self.settings.sharing == Sharing::PerFlow {
                let Flow { src, dst, op, .. } = active.flow;
                self.idle.entry((src, dst, op)).or_default().push_back(number);
            }
            self.give_back(&active, true)?;
            self.end_flow(fabric, &active.flow, true, outside);
        }
        self.post(fabric, number)?;
        if !self.waiting.is_empty() { self.start_waiting(fabric, outside) } else { Ok(()) }
    }

    /// Checks a flow's bytes and clears them away.
    fn give_back(&mut self, active: &ActiveFlow, is_complete: bool) -> Checked {
        if !self.settings.verifies {
            return Ok(());
        }
        let hosts = [active.flow.src, active.flow.dst];
        if is_complete {
            self.stations[usize::from(active.flow.dst)].check(&active.ranges[1], active.flow.id)?;
        }
        for (host, range) in hosts.into_iter().zip(&active.ranges) {
            self.stations[usize::from(host)].give_back(range)?;
        }
        Ok(())
    }

    fn end_flow(&mut self, fabric: &mut Fabric, flow: &Flow, is_complete: bool, outside: &mut Outside<'_>) {
        let now = fabric.now();
        if is_complete {
            self.counts.completed += 1;
        } else {
            self.counts.abandoned += 1;
        }
        outside.observer.flow_finished(now, flow, is_complete);
        outside.source.finished(flow.id, now);
        self.plan_flows(fabric, outside.source);
    }

    /// A work request has failed, or was flushed.
    fn failed(&mut self, fabric: &mut Fabric, number: u32, wc: &WorkCompletion, outside: &mut Outside<'_>) -> Checked {
        let connection = &mut self.connections[number as usize];
        if connection.phase == Phase::Up {
            let is_lost = connection.hosts.iter().any(|&host| self.stations[usize::from(host)].is_lost);
            require!(is_lost || !self.must_hold, "connection {number} broke: {:?}", wc.status);
            let may_be = matches!(wc.status, WcStatus::RetryExcErr | WcStatus::WrFlushErr);
            require!(is_lost || may_be, "connection {number} broke in a way that loss cannot explain: {:?}", wc.status);
            if is_lost {
                return self.bury(fabric, number, outside);
            }
            connection.phase = Phase::Failing;
            for (qp, host) in connection.qps.iter().zip(connection.hosts) {
                fabric.bring_up_to_date(host);
                qp.to_error().or_say("moving a QP to ERR")?;
                fabric.look_after(host);
            }
        }
        if connection.phase == Phase::Failing && connection.is_drained() {
            connection.phase = Phase::Lingering;
            fabric.set_alarm(fabric.now().add_ns(self.settings.linger_ns), Alarm::Reconnect(number));
        }
        Ok(())
    }

    /// Brings a connection up again, and goes on with its flows.
    pub(super) fn reconnect(&mut self, fabric: &mut Fabric, number: u32) -> Checked {
        let Some(connection) = self.connections.get_mut(number as usize) else { return Ok(()) };
        if connection.phase != Phase::Lingering {
            return Ok(());
        }
        connection.hosts.iter().for_each(|&host| fabric.bring_up_to_date(host));
        connection.reconnect(&self.stations, &self.settings, &mut self.stream)?;
        self.counts.reconnects += 1;
        self.post(fabric, number)
    }

    /// A connection whose one end is lost ends, and its flows with it.
    fn bury(&mut self, fabric: &mut Fabric, number: u32, outside: &mut Outside<'_>) -> Checked {
        let connection = &mut self.connections[number as usize];
        connection.phase = Phase::Dead;
        for (qp, &host) in connection.qps.iter().zip(&connection.hosts) {
            if !self.stations[usize::from(host)].is_lost {
                fabric.bring_up_to_date(host);
                qp.to_error().or_say("moving a QP to ERR")?;
                fabric.look_after(host);
            }
        }
        for active in std::mem::take(&mut self.connections[number as usize].flows) {
            self.give_back(&active, false)?;
            self.end_flow(fabric, &active.flow, false, outside);
        }
        Ok(())
    }

    /// A host's client dies, or (`writes_garbage`) ruins its own rings. Who asks it for something finds out by itself.
    pub(super) fn lose(
        &mut self,
        fabric: &mut Fabric,
        host: u16,
        writes_garbage: bool,
        outside: &mut Outside<'_>,
    ) -> Checked {
        let Some(station) = self.stations.get_mut(usize::from(host)) else { return Ok(()) };
        if std::mem::replace(&mut station.is_lost, true) {
            return Ok(());
        }
        fabric.bring_up_to_date(host);
        let session = station.context.session();
        if writes_garbage {
            write_garbage(&station.host.rings(session), &mut self.stream)?;
            station.host.poke();
        } else {
            station.host.kill(session);
        }
        fabric.look_after(host);
        for number in 0..self.connections.len() as u32 {
            let connection = &self.connections[number as usize];
            // Nobody is there any more to post receives, or to take completions.
            let needs_both = connection.op == FlowOp::Send || connection.phase == Phase::Lingering;
            let is_over = connection.requester_host() == host || (needs_both && connection.hosts.contains(&host));
            if connection.phase != Phase::Dead && is_over {
                self.bury(fabric, number, outside)?;
            }
        }
        Ok(())
    }

    /// Every client leaves.
    pub(super) fn leave(&mut self) {
        self.idle.clear();
        self.waiting.clear();
        self.connections.clear();
        self.stations.clear();
    }

    /// With no flow under way, nothing may be left in any memory.
    ///
    /// # Errors
    /// What is.
    pub fn check_at_rest(&self) -> Checked {
        let there = self.stations.iter().enumerate().filter(|(_, station)| self.settings.verifies && !station.is_lost);
        for (host, station) in there {
            station.check_at_rest().map_err(|what| format!("host {host}: {what}"))?;
        }
        let is_there = |host: &u16| !self.stations[usize::from(*host)].is_lost;
        for (connection, number) in self.connections.iter().zip(0..) {
            if connection.phase == Phase::Up && connection.hosts.iter().all(is_there) {
                connection.check_at_rest(&self.stations).map_err(|what| format!("connection {number}: {what}"))?;
            }
        }
        Ok(())
    }
}
