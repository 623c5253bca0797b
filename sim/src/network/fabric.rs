//! Hosts, links and switches on one clock: frames go from engine to engine.
//!
//! What is on the hosts is somebody else's ([`super::traffic`]): [`Fabric::next`] goes to the next thing that concerns them.

use engine::Time;
use engine::counters::{PortCounters, ShardCounters};
use wire::PfcRepr;

use super::classify::Classes;
use super::nic::Nic;
use super::serializer::Serializer;
use super::switch::{BadSettings, Switch, SwitchCounters, SwitchPort, SwitchSettings, Touched, Transmit};
use super::topology::{End, LinkRole, Topology};
use crate::agenda::Agenda;
use crate::capture::Capture;
use crate::flow::{NetworkTotals, QueueSample};
use crate::frame::{FrameStorage, MarkedFrame};
use crate::host::{self, Host, HostSettings};
use crate::link::{Direction, Faults, LinkCounters, LinkSettings};
use crate::network::pause::PRIORITY_COUNT;
use crate::random::{StreamOf, stream};
use crate::trace::TraceHash;
use crate::violation::{Checked, OrSay};

/// Bytes at a frame's start that enter the trace: all of the headers. The end, with the ICRC, stands for the payload.
const TRACE_BYTES: usize = 64;
/// Frames that one host's device holds for paused priorities, in its queue's lengths.
const PAUSED_QUEUES_MAX: usize = 4;

/// What a network is made of.
#[derive(Clone, Debug)]
pub struct FabricSettings {
    /// What there is, and what connects it.
    pub topology: Topology,
    /// Every host.
    pub host: HostSettings,
    /// Links of hosts.
    pub access: LinkSettings,
    /// Links between switches.
    pub trunk: LinkSettings,
    /// Every switch.
    pub switch: SwitchSettings,
    /// Faults of hosts' links, both ways.
    pub access_faults: Faults,
    /// Faults of links between switches, both ways.
    pub trunk_faults: Faults,
}

/// What somebody wants to be told of at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alarm {
    /// Flows may be due.
    Flows,
    /// The state is to be looked at.
    Sample,
    /// A connection may be brought up again.
    Reconnect(u32),
    /// Something goes wrong on purpose.
    Mishap(u32),
}

/// What has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Happened {
    /// A host's engine did something: who lives there should look.
    Busy(u16),
    /// An alarm went off.
    Alarm(Alarm),
}

#[derive(Debug)]
enum Event {
    /// A host's turn, if it is still planned for now.
    Turn(u16),
    /// A frame has come to the end of a line.
    Arrived(u32, MarkedFrame),
    /// A line's transmitter is free, or may go on, if it is still planned for now.
    Free(u32),
    /// Somebody is to be told.
    Alarm(Alarm),
}

/// One direction of a link.
#[derive(Debug)]
struct Line {
    from: End,
    to: End,
    serializer: Serializer,
    direction: Direction,
    /// When it is looked at next.
    wake_at: Time,
}

struct Node {
    host: Host,
    nic: Nic,
    /// The line that it sends to.
    line: u32,
    turn_at: Time,
    /// The earliest time of its next turn.
    ready_at: Time,
    turn_ns: u64,
    /// Damaged frames that its engine got.
    damaged_frames: u64,
}

/// A running network.
pub struct Fabric {
    agenda: Agenda<Event>,
    nodes: Vec<Node>,
    switches: Vec<Switch<MarkedFrame>>,
    /// The line that each port of each switch sends to.
    switch_lines: Vec<Vec<u32>>,
    lines: Vec<Line>,
    trace: TraceHash,
    capture: Option<Capture>,
    event_count: u64,
    packet_events: u64,
}

impl Fabric {
    /// A network at time 0. `captures`: frames that hosts send and get are kept.
    ///
    /// # Errors
    /// What cannot be, or did not work.
    pub fn new(seed: u64, settings: &FabricSettings, captures: bool) -> Checked<Self> {
        let topology = &settings.topology;
        let lines = lines(seed, settings);
        let switch_lines = lines_from_switches(topology, &lines);
        let switches = switches(seed, settings, &lines, &switch_lines)
            .map_err(|error| format!("the switches cannot be as they are set: {error}"))?;
        let nodes = nodes(seed, settings, &lines)?;
        let capture = captures.then(|| Capture::new(topology.host_count)).transpose().or_say("making a capture")?;
        let mut fabric = Self {
            agenda: Agenda::default(),
            nodes,
            switches,
            switch_lines,
            lines,
            trace: TraceHash::default(),
            capture,
            event_count: 0,
            packet_events: 0,
        };
        (0..topology.host_count).for_each(|host| fabric.plan_turn(host, Time::ZERO));
        Ok(fabric)
    }

    /// Virtual time.
    pub fn now(&self) -> Time {
        self.agenda.now()
    }

    /// Things that happened.
    pub fn event_count(&self) -> u64 {
        self.event_count
    }

    /// Of these, frames that were put on a line, or came to its end.
    pub fn packet_events(&self) -> u64 {
        self.packet_events
    }

    /// Hash of all frames and times so far.
    pub fn trace(&self) -> u64 {
        self.trace.value()
    }

    /// What was captured, if it was asked for.
    pub fn capture(&self) -> Option<&Capture> {
        self.capture.as_ref()
    }

    /// A host.
    pub fn host(&self, number: u16) -> &Host {
        &self.nodes[usize::from(number)].host
    }

    /// Damaged frames that a host's engine got, each of which it must refuse.
    pub fn damaged_frames(&self, host: u16) -> u64 {
        self.nodes[usize::from(host)].damaged_frames
    }

    /// Hosts.
    pub fn host_count(&self) -> u16 {
        self.nodes.len() as u16
    }

    /// The switches.
    pub fn switches(&self) -> &[Switch<MarkedFrame>] {
        &self.switches
    }

    /// Has an alarm go off at a time.
    pub fn set_alarm(&mut self, at: Time, alarm: Alarm) {
        self.agenda.push(at, Event::Alarm(alarm));
    }

    /// Ends all faults of all links.
    pub fn heal(&mut self) {
        self.lines.iter_mut().for_each(|line| line.direction.heal());
    }

    /// A host does nothing until then: its frames wait, or are lost.
    pub fn stall(&mut self, host: u16, until: Time) {
        let node = &mut self.nodes[usize::from(host)];
        node.ready_at = node.ready_at.max(until);
        node.turn_at = Time::NEVER;
        self.plan_turn(host, until);
    }

    /// Somebody has been at the rings of a host.
    pub fn look_after(&mut self, host: u16) {
        if self.nodes[usize::from(host)].host.take_woken() {
            let at = self.now().add_ns(self.nodes[usize::from(host)].turn_ns);
            self.plan_turn(host, at);
        }
    }

    /// Has the calls and turns of a host happen now.
    pub fn bring_up_to_date(&self, host: u16) {
        self.nodes[usize::from(host)].host.set_now(self.now());
    }

    /// Goes on until something has happened that concerns those on the hosts; `None` if nothing has before `end`.
    pub fn next(&mut self, end: Time) -> Option<Happened> {
        while self.agenda.next_at().is_some_and(|at| at < end) {
            let event = self.agenda.pop()?;
            if let Some(happened) = self.happen(event) {
                return Some(happened);
            }
        }
        None
    }

    /// True if nothing is planned any more.
    pub fn is_silent(&self) -> bool {
        self.agenda.next_at().is_none()
    }

    fn happen(&mut self, event: Event) -> Option<Happened> {
        let now = self.now();
        match event {
            Event::Turn(host) => {
                if self.nodes[usize::from(host)].turn_at != now {
                    return None;
                }
                self.event_count += 1;
                self.turn(host).then_some(Happened::Busy(host))
            }
            Event::Arrived(line, frame) => {
                self.event_count += 1;
                self.packet_events += 1;
                self.arrived(line, frame);
                None
            }
            Event::Free(line) => {
                if self.lines[line as usize].wake_at == now {
                    self.event_count += 1;
                    self.lines[line as usize].wake_at = Time::NEVER;
                    self.send(line);
                }
                None
            }
            Event::Alarm(alarm) => {
                self.event_count += 1;
                Some(Happened::Alarm(alarm))
            }
        }
    }

    /// A turn of a host's engine. True if it did anything.
    fn turn(&mut self, number: u16) -> bool {
        let now = self.now();
        let node = &mut self.nodes[usize::from(number)];
        node.turn_at = Time::NEVER;
        node.ready_at = now.add_ns(node.turn_ns);
        node.host.set_now(now);
        node.host.set_waiting(node.occupancy(now));
        let turned = node.host.turn();
        while let Some(frame) = node.host.take_frame() {
            node.nic.push(frame);
        }
        let line = node.line;
        if turned.next_at != Time::NEVER {
            self.plan_turn(number, turned.next_at);
        }
        self.send(line);
        turned.is_busy
    }

    fn arrived(&mut self, line: u32, frame: MarkedFrame) {
        match self.lines[line as usize].to {
            End::Host(host) => self.arrived_at_host(host, frame),
            End::Switch(switch, port) => {
                let now = self.now();
                let touched = self.switches[usize::from(switch)].receive(now, port, frame);
                match touched {
                    Touched::None => {}
                    Touched::One(port) => self.send(self.switch_lines[usize::from(switch)][usize::from(port)]),
                    Touched::Many => {
                        for port in 0..self.switch_lines[usize::from(switch)].len() {
                            self.send(self.switch_lines[usize::from(switch)][port]);
                        }
                    }
                }
                self.tell_senders(switch);
            }
        }
    }

    fn arrived_at_host(&mut self, number: u16, frame: MarkedFrame) {
        let now = self.now();
        let node = &mut self.nodes[usize::from(number)];
        if let Some(pfc) = PfcRepr::parse(frame.bytes()) {
            // The engine hears of it as well, and builds nothing for a priority that must wait.
            node.nic.obey(now, pfc);
            let line = node.line;
            self.send(line);
        }
        let node = &mut self.nodes[usize::from(number)];
        // A device takes what is for it, and for groups. A flood brings other frames, too.
        let is_ours = frame.bytes().first_chunk().is_some_and(|mac| *mac == host::mac(number).0 || mac[0] & 1 == 1);
        if is_ours {
            let is_damaged = frame.is_damaged();
            let is_taken = node.host.receive(frame.into_bytes());
            node.damaged_frames += u64::from(is_taken && is_damaged);
            self.plan_turn(number, now);
        }
    }

    /// Ports of a switch that have a pause to send.
    fn tell_senders(&mut self, switch: u16) {
        while let Some(port) = self.switches[usize::from(switch)].take_teller() {
            self.send(self.switch_lines[usize::from(switch)][usize::from(port)]);
        }
    }

    /// Sends the next frame of a line, if its transmitter is free, and sees to it that it goes on.
    fn send(&mut self, number: u32) {
        let now = self.now();
        let line = &self.lines[number as usize];
        let from = line.from;
        if line.serializer.is_free(now) {
            let frame = match from {
                End::Host(host) => self.nodes[usize::from(host)].nic.pop(now).map(MarkedFrame::from),
                End::Switch(switch, port) => match self.switches[usize::from(switch)].transmit(now, port) {
                    Some(Transmit::Frame(frame)) => Some(frame),
                    Some(Transmit::Pause(bytes)) => Some(bytes.to_vec().into()),
                    None => None,
                },
            };
            if let Some(frame) = frame {
                self.put(number, frame);
                match from {
                    End::Host(host) => self.sent_by_host(host),
                    End::Switch(switch, _) => self.tell_senders(switch),
                }
            }
        }
        self.plan_sending(number);
    }

    /// A host's device has room again.
    fn sent_by_host(&mut self, host: u16) {
        let node = &mut self.nodes[usize::from(host)];
        if node.host.wants_transmit() {
            self.plan_turn(host, self.now());
        }
    }

    /// Plans when a line's transmitter is looked at again.
    fn plan_sending(&mut self, number: u32) {
        let now = self.now();
        let line = &mut self.lines[number as usize];
        let due = match line.from {
            End::Host(host) => self.nodes[usize::from(host)].nic.deadline(),
            End::Switch(switch, port) => self.switches[usize::from(switch)].deadline(port),
        };
        if due == Time::NEVER {
            return;
        }
        let at = due.max(line.serializer.free_at()).max(now);
        if at < line.wake_at {
            line.wake_at = at;
            self.agenda.push(at, Event::Free(number));
        }
    }

    /// Puts a frame on a line.
    fn put(&mut self, number: u32, frame: MarkedFrame) {
        let now = self.now();
        let line = &mut self.lines[number as usize];
        let sent = line.serializer.send(now, frame.bytes().len());
        self.packet_events += 1;
        self.trace.add(now.as_ns());
        self.trace.add(u64::from(number) << 32 | u64::from(digest(frame.bytes())));
        let witness = match (line.from, line.to) {
            (End::Host(host), _) | (_, End::Host(host)) => Some(host),
            _ => None,
        };
        let kept = self.capture.is_some().then(|| frame.bytes().to_vec());
        let outcome = line.direction.carry(sent, frame);
        if let (Some(capture), Some(frame), Some(host)) = (&mut self.capture, kept, witness) {
            // It writes to memory, which does not fail.
            let _ = capture.add(sent, host, &frame, outcome.note);
        }
        for delivery in outcome.deliveries.into_iter().flatten() {
            self.agenda.push(delivery.at, Event::Arrived(number, delivery.frame));
        }
    }

    /// Has a host's turn come no later than `at`, or as soon as it can.
    fn plan_turn(&mut self, host: u16, at: Time) {
        let node = &mut self.nodes[usize::from(host)];
        let at = at.max(node.ready_at);
        if at < node.turn_at {
            node.turn_at = at;
            self.agenda.push(at, Event::Turn(host));
        }
    }

    /// What became of the frames of each line, with both ends.
    pub fn lines(&self) -> impl Iterator<Item = (End, End, &LinkCounters)> {
        self.lines.iter().map(|line| (line.from, line.to, line.direction.counters()))
    }

    /// Counters of all switches together.
    pub fn switch_counters(&self) -> SwitchCounters {
        let mut sum = SwitchCounters::default();
        self.switches.iter().for_each(|switch| sum.add(&switch.counters()));
        sum
    }

    /// Counters of all hosts together.
    pub fn host_counters(&self) -> (PortCounters, ShardCounters) {
        let (mut ports, mut shards) = (PortCounters::default(), ShardCounters::default());
        for node in &self.nodes {
            ports.add(&node.host.port_counters());
            shards.add(&node.host.shard_counters());
        }
        (ports, shards)
    }

    /// What everybody has counted since the start.
    pub fn totals(&self) -> NetworkTotals {
        let now = self.now();
        let switches = self.switch_counters();
        let (ports, shards) = self.host_counters();
        let lost = |l: &LinkCounters| l.lost + l.lost_in_bursts + l.lost_in_flaps + l.lost_by_rule;
        NetworkTotals {
            frames: self.lines.iter().map(|line| line.direction.counters().sent).sum(),
            packets: ports.tx_roce_packets,
            retransmitted: shards.retransmitted_packets,
            marked: switches.marked,
            cnps: ports.np_cnp_sent,
            pauses: switches.pauses_sent,
            paused_ns: self.nodes.iter().map(|node| node.nic.paused_ns(now)).sum::<u64>()
                + self.switches.iter().map(|switch| switch.paused_ns(now)).sum::<u64>(),
            dropped: switches.dropped() + self.nodes.iter().map(|node| node.host.rx_dropped()).sum::<u64>(),
            lost: self.lines.iter().map(|line| lost(line.direction.counters())).sum(),
        }
    }

    /// Every queue of a switch that has something, or has to wait.
    pub fn queues(&self) -> Vec<QueueSample> {
        let now = self.now();
        let mut samples = Vec::new();
        for (switch, number) in self.switches.iter().zip(0..) {
            for port in 0..switch.port_count() as u16 {
                for priority in 0..PRIORITY_COUNT {
                    let bytes = switch.queue_bytes(port, priority);
                    let is_paused = switch.is_paused(now, port, priority);
                    if bytes > 0 || is_paused {
                        samples.push(QueueSample { switch: number, port, priority: priority as u8, bytes, is_paused });
                    }
                }
            }
        }
        samples
    }
}

impl Node {
    /// How full the device is for its engine. Frames of paused priorities count little, so that others pass them.
    fn occupancy(&self, now: Time) -> usize {
        let unpaused = self.nic.waiting_unpaused(now);
        unpaused + (self.nic.waiting() - unpaused) / PAUSED_QUEUES_MAX
    }
}

/// A few bits of a frame that differ if any of it does.
fn digest(frame: &[u8]) -> u32 {
    let (head, rest) = frame.split_at(frame.len().min(TRACE_BYTES));
    let tail = rest.last_chunk::<4>().map_or(0, |icrc| u32::from_le_bytes(*icrc));
    crc32fast::hash(head) ^ tail ^ (frame.len() as u32).rotate_left(16)
}

fn lines(seed: u64, settings: &FabricSettings) -> Vec<Line> {
    let topology = &settings.topology;
    let mut lines = Vec::new();
    for (link, &[one, other]) in topology.links.iter().enumerate() {
        let (kind, faults) = match topology.role(link) {
            LinkRole::Access => (settings.access, settings.access_faults),
            LinkRole::Trunk => (settings.trunk, settings.trunk_faults),
        };
        for (from, to) in [(one, other), (other, one)] {
            let stream = stream(seed, StreamOf::Line(lines.len() as u16));
            let direction = Direction::new(kind, faults, Vec::new(), stream);
            let serializer = Serializer::new(kind.rate_mbps);
            lines.push(Line { from, to, serializer, direction, wake_at: Time::NEVER });
        }
    }
    lines
}

fn lines_from_switches(topology: &Topology, lines: &[Line]) -> Vec<Vec<u32>> {
    let mut found: Vec<Vec<u32>> = topology.switch_ports.iter().map(|&ports| vec![0; usize::from(ports)]).collect();
    for (line, number) in lines.iter().zip(0..) {
        if let End::Switch(switch, port) = line.from {
            found[usize::from(switch)][usize::from(port)] = number;
        }
    }
    found
}

fn switches(
    seed: u64,
    settings: &FabricSettings,
    lines: &[Line],
    switch_lines: &[Vec<u32>],
) -> Result<Vec<Switch<MarkedFrame>>, BadSettings> {
    let tables = settings.topology.forwarding(seed);
    let made = tables.into_iter().zip(switch_lines).zip(0u16..).map(|((table, ports), number)| {
        let port = |&line: &u32| {
            let link = lines[line as usize].direction.settings();
            SwitchPort { rate_mbps: link.rate_mbps, mtu: link.mtu, mac: switch_mac(number) }
        };
        let ports: Vec<SwitchPort> = ports.iter().map(port).collect();
        let luck = rand::RngCore::next_u64(&mut stream(seed, StreamOf::Switch(number)));
        Switch::new(settings.switch.clone(), &ports, table, luck)
    });
    made.collect()
}

/// The address that a switch's own frames come from.
fn switch_mac(number: u16) -> wire::MacAddr {
    let [high, low] = number.to_be_bytes();
    wire::MacAddr([2, 0, 1, 0, high, low])
}

fn nodes(seed: u64, settings: &FabricSettings, lines: &[Line]) -> Checked<Vec<Node>> {
    let count = settings.topology.host_count;
    let mut nodes = Vec::with_capacity(usize::from(count));
    let classes: Classes = settings.switch.classes;
    for number in 0..count {
        let line = lines.iter().position(|line| line.from == End::Host(number)).ok_or("a host without a link")?;
        let mut attr = settings.host;
        attr.speed_mbps = settings.access.rate_mbps;
        attr.size.neighbours = u32::from(count);
        let host = Host::new(number, attr, settings.access.mtu, stream(seed, StreamOf::Node(number)))
            .or_say("making a host")?;
        for peer in (0..count).filter(|&peer| peer != number) {
            host.fix_neighbour(host::ipv4(peer), host::mac(peer))?;
        }
        nodes.push(Node {
            host,
            nic: Nic::new(classes, settings.access.rate_mbps),
            line: line as u32,
            turn_at: Time::NEVER,
            ready_at: Time::ZERO,
            turn_ns: settings.host.turn_ns,
            damaged_frames: 0,
        });
    }
    Ok(nodes)
}
