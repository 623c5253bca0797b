//! The switch and its links on a clock that is handed in: frames and time go in, frames come out.
//!
//! It is the simulator's switch ([`sim::network::switch`]) and the simulator's links ([`sim::link`](mod@sim::link)), and the events between them have
//! their exact times. The owner's turns may come late and unevenly: what was due before a turn happens at its own time, in its own order, so that
//! rates and delays are right on average, whatever the machine does.
//!
//! A turn: give in what [`Fabric::wants`], call [`Fabric::turn`], take out what [`Fabric::take`] has. Each frame goes
//!
//! ```text
//! receive ──> link of the port it came in by ──> switch ──> link of the port it leaves by ──> take
//! ```

use std::collections::VecDeque;

use sim::Time;
use sim::agenda::Agenda;
use sim::frame::FrameStorage;
use sim::link::{Direction, LinkCounters, LinkSettings};
use sim::network::headers::Headers;
use sim::network::serializer::Serializer;
use sim::network::switch::{BadSettings, Forwarding, Switch, SwitchCounters, SwitchPort, Touched, Transmit};
use sim::random::{StreamOf, stream};
use wire::{MacAddr, VlanRepr};

use crate::carried::Carried;
use crate::config::{PortSettings, Settings};
use crate::flaps::Flaps;
use crate::stations::{StationCounters, Stations};

/// So many frames that a device has left untaken since the turn before have its port's transmitter stop.
const UNTAKEN_FRAMES: usize = 64;

/// What a port has moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounters {
    /// Frames taken from the device.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames given to the device, pauses included.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Times that the transmitter waited because the device was slower than the port's rate.
    pub held: u64,
    /// Times that the link went down.
    pub flaps: u64,
    /// Frames lost on the link because it was down, or went down while they were on it.
    pub lost_in_flaps: u64,
}

/// What is known of a port's device when it is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attached {
    /// The address that pauses come from.
    pub mac: MacAddr,
    /// The largest packet that it carries.
    pub mtu: u16,
    /// What the station takes its link's speed for, Mbit/s: pauses last so many bit times of it. `None`: the link's rate.
    pub speed_mbps: Option<u32>,
}

/// Where all frames are: what came in or was made here has left, was dropped, was meant for the switch, or is inside.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Balance {
    /// Came in.
    pub received: u64,
    /// Made here: copies for several ports, duplicates, pauses.
    pub made: u64,
    /// Left.
    pub sent: u64,
    /// Dropped by links.
    pub lost: u64,
    /// Dropped by the switch.
    pub dropped: u64,
    /// Pauses of stations, which end here.
    pub obeyed: u64,
    /// On links, in queues, or waiting for a device.
    pub inside: u64,
}

impl Balance {
    /// True if no frame has vanished, and none has come from nowhere.
    pub fn is_even(&self) -> bool {
        self.received + self.made == self.sent + self.lost + self.dropped + self.obeyed + self.inside
    }
}

#[derive(Debug)]
enum Event<F> {
    /// A frame has come to the switch, if the link has not gone down since: so often had it when the frame was put on it.
    AtSwitch(u16, u64, Carried<F>),
    /// A frame has come to the far end of a port's link, as above.
    AtStation(u16, u64, Carried<F>),
    /// A port's link goes down or up, for the so manieth time of its plan.
    Link(u16, u64),
    /// A port's transmitter is free, or may go on, if it is still planned for now.
    Free(u16),
}

/// One direction of a port's link.
#[derive(Debug)]
struct Line {
    serializer: Serializer,
    direction: Direction,
}

#[derive(Debug)]
struct PortState<F> {
    /// From the station to the switch.
    inward: Line,
    /// From the switch to the station.
    outward: Line,
    /// When the outward transmitter is looked at next.
    wake_at: Time,
    /// What has arrived at the station's end.
    outbox: VecDeque<Carried<F>>,
    /// When the link goes down and up by itself.
    plan: Flaps,
    /// That plan, or somebody's command, has it up.
    is_wanted: bool,
    /// Its device carries frames.
    is_attached: bool,
    /// Both.
    is_up: bool,
    /// The device takes less than the link carries.
    is_full: bool,
    /// The outward transmitter waits for the device.
    is_held: bool,
    counters: PortCounters,
}

/// A switch with its links.
#[derive(Debug)]
pub struct Fabric<F> {
    agenda: Agenda<Event<F>>,
    /// The time of what happens now.
    now: Time,
    /// The last turn: whatever has come since may have come right after it.
    turned_at: Time,
    switch: Switch<Carried<F>>,
    ports: Vec<PortState<F>>,
    stations: Stations,
    /// For each port, all that lead to the same neighbours, itself included.
    sides: Vec<Box<[u16]>>,
    frames_max: usize,
    /// Frames on links.
    on_links: usize,
}

impl<F: FrameStorage> Fabric<F> {
    /// A fabric at time 0; `attached` has each port's device.
    ///
    /// # Errors
    /// A setting that no switch can have.
    pub fn new(settings: &Settings, attached: &[Attached]) -> Result<Self, BadSettings> {
        let sides = settings.sides();
        let mut forwarding = Forwarding::new(settings.seed);
        sides.iter().filter(|side| side.len() > 1).for_each(|side| forwarding.add_side(side));
        let switch_port = |(port, attached): (&PortSettings, &Attached)| SwitchPort {
            rate_mbps: attached.speed_mbps.unwrap_or(port.link.rate_mbps),
            mtu: port.link.mtu.min(attached.mtu),
            mac: attached.mac,
        };
        let switch_ports: Vec<SwitchPort> = settings.ports.iter().zip(attached).map(switch_port).collect();
        let ports = settings.ports.iter().zip(0..).map(|(port, number)| port_state(settings.seed, port, number));
        let mut fabric = Self {
            agenda: Agenda::default(),
            now: Time::ZERO,
            turned_at: Time::ZERO,
            switch: Switch::new(settings.switch.clone(), &switch_ports, forwarding, settings.seed)?,
            ports: ports.collect(),
            stations: Stations::new(sides.clone(), settings.stations, settings.station_age_ns),
            sides,
            frames_max: settings.frames,
            on_links: 0,
        };
        fabric.plan_floods();
        (0..settings.ports.len() as u16).for_each(|port| fabric.plan_link(port, 0));
        Ok(fabric)
    }

    /// True if a port's link may carry a frame from its station now. If it may not, the frame waits where it is, in the device: what a
    /// station sends too fast waits in its own transmit queue, so to speak.
    pub fn wants(&self, port: u16, now: Time) -> bool {
        self.ports[usize::from(port)].inward.serializer.is_free(now) && self.inside() < self.frames_max
    }

    /// When a port's link may carry the next frame of its station.
    pub fn wants_at(&self, port: u16) -> Time {
        self.ports[usize::from(port)].inward.serializer.free_at()
    }

    /// A station has sent a frame.
    pub fn receive(&mut self, port: u16, frame: F) {
        let state = &mut self.ports[usize::from(port)];
        let bytes = frame.bytes().len();
        state.counters.rx_frames += 1;
        state.counters.rx_bytes += bytes as u64;
        let sent = state.inward.serializer.send(self.turned_at, bytes);
        if !state.is_up {
            state.counters.lost_in_flaps += 1;
            return;
        }
        let deliveries = state.inward.direction.carry(sent, Carried::Frame(frame)).deliveries;
        for delivery in deliveries.into_iter().flatten() {
            self.on_links += 1;
            self.agenda.push(delivery.at, Event::AtSwitch(port, state.counters.flaps, delivery.frame));
        }
    }

    /// Everything happens that is due.
    pub fn turn(&mut self, now: Time) {
        self.now = self.turned_at;
        self.look_at_devices();
        while self.agenda.next_at().is_some_and(|at| at <= now) {
            let Some(event) = self.agenda.pop() else { break };
            self.now = self.agenda.now();
            self.happen(event);
        }
        self.now = now;
        self.turned_at = now;
        self.stations.sweep(now, self.switch.forwarding_mut());
    }

    /// Which devices have fallen behind, and which take frames again. Only what they have left counts: a turn that comes late has many frames
    /// arrive at once, and that is not their fault.
    fn look_at_devices(&mut self) {
        for port in 0..self.ports.len() as u16 {
            let state = &mut self.ports[usize::from(port)];
            state.is_full = state.outbox.len() >= UNTAKEN_FRAMES;
            if state.is_held && !state.is_full {
                state.is_held = false;
                self.send(port);
            }
        }
    }

    /// What has arrived at a station, and is its device's to send.
    pub fn take(&mut self, port: u16) -> Option<Carried<F>> {
        let state = &mut self.ports[usize::from(port)];
        let carried = state.outbox.pop_front()?;
        state.counters.tx_frames += 1;
        state.counters.tx_bytes += carried.bytes().len() as u64;
        Some(carried)
    }

    /// When something is due next, if nothing comes in.
    pub fn next_at(&self) -> Time {
        self.agenda.next_at().unwrap_or(Time::NEVER)
    }

    fn happen(&mut self, event: Event<F>) {
        match event {
            Event::AtSwitch(port, flaps, frame) => {
                if self.has_carried(port, flaps) {
                    self.arrive(port, frame);
                }
            }
            Event::AtStation(port, flaps, frame) => {
                if self.has_carried(port, flaps) {
                    self.ports[usize::from(port)].outbox.push_back(frame);
                }
            }
            Event::Link(port, nth) => {
                self.ports[usize::from(port)].is_wanted = nth % 2 == 1;
                self.change_link(port);
                self.plan_link(port, nth + 1);
            }
            Event::Free(port) => {
                if self.ports[usize::from(port)].wake_at == self.now {
                    self.ports[usize::from(port)].wake_at = Time::NEVER;
                    self.send(port);
                }
            }
        }
    }

    /// A frame's time on a link is over. True unless the link has gone down meanwhile.
    fn has_carried(&mut self, port: u16, flaps: u64) -> bool {
        self.on_links -= 1;
        let counters = &mut self.ports[usize::from(port)].counters;
        let is_lost = counters.flaps != flaps;
        counters.lost_in_flaps += u64::from(is_lost);
        !is_lost
    }

    /// Has a port's link go down or up now: until its plan, if it has one, changes that.
    pub fn set_link(&mut self, port: u16, is_wanted: bool) {
        self.now = self.turned_at;
        self.ports[usize::from(port)].is_wanted = is_wanted;
        self.change_link(port);
    }

    /// A port's device carries frames, or does not: then its link is down, whatever is wanted.
    pub fn set_device(&mut self, port: u16, is_attached: bool) {
        self.now = self.turned_at;
        self.ports[usize::from(port)].is_attached = is_attached;
        self.change_link(port);
    }

    /// True if a port's link is up.
    pub fn is_up(&self, port: u16) -> bool {
        self.ports[usize::from(port)].is_up
    }

    fn change_link(&mut self, port: u16) {
        let state = &mut self.ports[usize::from(port)];
        let is_up = state.is_wanted && state.is_attached;
        if state.is_up == is_up {
            return;
        }
        state.is_up = is_up;
        state.counters.flaps += u64::from(!is_up);
        self.switch.set_link(self.now, port, is_up);
        // What is known of stations that cannot be reached may be wrong when they can (IEEE 802.1Q 8.7.3): they may have moved.
        if self.sides[usize::from(port)].iter().all(|&other| !self.is_up(other)) {
            self.stations.forget_side(port, self.switch.forwarding_mut());
        }
        self.plan_floods();
        self.tell_senders();
    }

    /// Each side gets a flood once, by its first port that is up.
    fn plan_floods(&mut self) {
        let by = |side: &[u16]| side.iter().copied().find(|&port| self.is_up(port));
        let ports = (0..).zip(&self.sides).filter(|&(port, side)| by(side) == Some(port)).map(|(port, _)| port);
        let ports: Vec<u16> = ports.collect();
        self.switch.forwarding_mut().set_flood(&ports);
    }

    /// Puts down when a port's link changes for the `nth` time of its plan.
    fn plan_link(&mut self, port: u16, nth: u64) {
        if let Some(ns) = self.ports[usize::from(port)].plan.change_ns(nth) {
            self.agenda.push(Time::from_ns(ns), Event::Link(port, nth));
        }
    }

    fn arrive(&mut self, port: u16, frame: Carried<F>) {
        if let Some(headers) = Headers::parse(frame.bytes()) {
            self.stations.learn(self.now, headers.src, port, self.switch.forwarding_mut());
        }
        match self.switch.receive(self.now, port, frame) {
            Touched::None => {}
            Touched::One(port) => self.send(port),
            Touched::Many => (0..self.ports.len() as u16).for_each(|port| self.send(port)),
        }
        self.tell_senders();
    }

    /// Ports that have a pause to send.
    fn tell_senders(&mut self) {
        while let Some(port) = self.switch.take_teller() {
            self.send(port);
        }
    }

    /// Sends the next frame of a port, if its transmitter is free, and sees to it that it goes on.
    fn send(&mut self, port: u16) {
        let state = &mut self.ports[usize::from(port)];
        if state.is_full {
            // Back-pressure: what the device can't take waits in the switch's queues, and shows there.
            state.counters.held += u64::from(!state.is_held);
            state.is_held = true;
            return;
        }
        if state.outward.serializer.is_free(self.now) {
            let carried = match self.switch.transmit(self.now, port) {
                Some(Transmit::Frame(frame)) => Some(frame),
                Some(Transmit::Pause(bytes)) => Some(Carried::Pause(bytes)),
                None => None,
            };
            if let Some(carried) = carried {
                self.put(port, carried);
                self.plan_sending(port);
                self.tell_senders();
                return;
            }
        }
        self.plan_sending(port);
    }

    /// Puts a frame on a port's link.
    fn put(&mut self, port: u16, carried: Carried<F>) {
        let state = &mut self.ports[usize::from(port)];
        let sent = state.outward.serializer.send(self.now, carried.bytes().len());
        if !state.is_up {
            state.counters.lost_in_flaps += 1;
            return;
        }
        for delivery in state.outward.direction.carry(sent, carried).deliveries.into_iter().flatten() {
            self.on_links += 1;
            self.agenda.push(delivery.at, Event::AtStation(port, state.counters.flaps, delivery.frame));
        }
    }

    /// Plans when a port's transmitter is looked at again.
    fn plan_sending(&mut self, port: u16) {
        let due = self.switch.deadline(port);
        if due == Time::NEVER {
            return;
        }
        let state = &mut self.ports[usize::from(port)];
        let at = due.max(state.outward.serializer.free_at()).max(self.now);
        if at < state.wake_at {
            state.wake_at = at;
            self.agenda.push(at, Event::Free(port));
        }
    }

    fn inside(&self) -> usize {
        let waiting: usize = self.ports.iter().map(|port| port.outbox.len()).sum();
        self.on_links + self.switch.queued_frames() + waiting
    }

    /// Where all frames are.
    pub fn balance(&self) -> Balance {
        let switch = self.switch.counters();
        let mut balance = Balance {
            made: switch.copies + switch.pauses_sent + switch.resumes_sent,
            dropped: switch.dropped(),
            obeyed: switch.pauses_received,
            inside: self.inside() as u64,
            ..Balance::default()
        };
        for port in &self.ports {
            balance.received += port.counters.rx_frames;
            balance.sent += port.counters.tx_frames;
            balance.lost += port.counters.lost_in_flaps;
            for line in [&port.inward, &port.outward] {
                let counters = line.direction.counters();
                balance.made += counters.duplicated;
                balance.lost += counters.dropped();
            }
        }
        balance
    }

    /// How long a port's station has had its queues wait, all priorities together, ns.
    pub fn paused_ns(&self, port: u16) -> u64 {
        self.switch.port_paused_ns(self.turned_at, port)
    }

    /// What a port has moved.
    pub fn port_counters(&self, port: u16) -> PortCounters {
        self.ports[usize::from(port)].counters
    }

    /// What became of frames on a port's link: towards the switch, and away from it.
    pub fn link_counters(&self, port: u16) -> [&LinkCounters; 2] {
        let state = &self.ports[usize::from(port)];
        [state.inward.direction.counters(), state.outward.direction.counters()]
    }

    /// What became of frames in the switch.
    pub fn switch_counters(&self) -> SwitchCounters {
        self.switch.counters()
    }

    /// The switch itself, to look at queues.
    pub fn switch(&self) -> &Switch<Carried<F>> {
        &self.switch
    }

    /// Who is behind the ports: how many, and what was learned.
    pub fn stations(&self) -> (usize, StationCounters) {
        (self.stations.count(), self.stations.counters())
    }
}

fn port_state<F>(seed: u64, port: &PortSettings, number: u16) -> PortState<F> {
    // A VLAN tag is no part of the packet; the switch looks closer.
    let link = LinkSettings { mtu: port.link.mtu.saturating_add(VlanRepr::LEN as u16), ..port.link };
    let line = |faults, stream_number| Line {
        serializer: Serializer::new(link.rate_mbps),
        direction: Direction::new(link, faults, Vec::new(), stream(seed, StreamOf::Line(stream_number))),
    };
    let [inward, outward] = port.faults();
    PortState {
        inward: line(inward, 2 * number),
        outward: line(outward, 2 * number + 1),
        wake_at: Time::NEVER,
        outbox: VecDeque::with_capacity(2 * UNTAKEN_FRAMES),
        plan: port.flaps.clone(),
        is_wanted: true,
        is_attached: true,
        is_up: true,
        is_full: false,
        is_held: false,
        counters: PortCounters::default(),
    }
}

#[cfg(test)]
mod tests;
