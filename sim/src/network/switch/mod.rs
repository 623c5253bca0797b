//! A switch with a shared buffer, as a state machine: frames and time go in, frames come out, and nothing else happens.
//!
//! The owner moves the frames. It gives each one that came in to [`Switch::receive`]; whenever a port's transmitter is free, it
//! sends what [`Switch::transmit`] says; and where that says nothing, it asks again when a frame has come in for the port, or at
//! [`Switch::deadline`]. The simulator does so on a virtual clock, a software switch on real ports may do so in real time.
//!
//! ```text
//! receive ──> priority ──> port ──> room? ──> mark? ──> queue (port, priority) ──> strict, or by weight ──> transmit
//!    └─ pause frames hold queues back ─────────────────────────┘
//! ```
//!
//! Frames are stored as the owner likes ([`crate::frame`]): bytes of its own, or buffers of a network device.

mod buffer;
pub(super) mod egress;
mod forward;
mod marking;
mod settings;
#[cfg(test)]
mod tests;

use engine::Time;
use rand::SeedableRng;
use wire::{EthernetRepr, MacAddr, PfcRepr, VlanRepr};

pub use buffer::NoRoom;
pub use forward::{Forwarding, Hop, PortGroup};
pub use settings::{
    BadSettings, Dequeue, Marking, PORT_COUNT_MAX, PauseSettings, RATE_MBPS, SwitchSettings, Threshold,
};

use super::headers::Headers;
use super::pause::{PRIORITY_COUNT, PauseState, pause_ns};
use crate::frame::FrameStorage;
use crate::random::Stream;
use buffer::Buffer;
use egress::{Egress, Queued};

/// What a port is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwitchPort {
    /// Mbit/s.
    pub rate_mbps: u32,
    /// Layer 3 bytes of the largest frame.
    pub mtu: u16,
    /// The address that its pause frames come from.
    pub mac: MacAddr,
}

/// What became of a switch's frames. `received` = `sent` + `paused` + all kinds of drops + what is queued, less the `copies`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwitchCounters {
    /// Frames that came in.
    pub received: u64,
    /// Copies that were made of them, to send them out of several ports.
    pub copies: u64,
    /// Frames that went out.
    pub sent: u64,
    /// Of these, frames that were marked here.
    pub marked: u64,
    /// Pause frames that came in.
    pub pauses_received: u64,
    /// Frames dropped because their queue had its share of the buffer, or the buffer was full.
    pub dropped_queue: u64,
    /// Frames of a lossless priority that were dropped: the headroom was too small.
    pub dropped_headroom: u64,
    /// Frames dropped because nobody knew where to.
    pub dropped_unknown: u64,
    /// Frames dropped because whom they are for is on the side that they came from.
    pub dropped_local: u64,
    /// Frames dropped because they were larger than the MTU of the port they were to leave by.
    pub dropped_oversize: u64,
    /// Frames dropped because they waited for a port when its link went down.
    pub dropped_down: u64,
    /// Frames dropped because they were no Ethernet frames, or there was no storage for a copy.
    pub dropped_malformed: u64,
    /// Pause frames sent that stop somebody, refreshes included.
    pub pauses_sent: u64,
    /// Pause frames sent that let somebody go on.
    pub resumes_sent: u64,
}

impl SwitchCounters {
    /// Adds another switch's.
    pub fn add(&mut self, other: &Self) {
        self.received += other.received;
        self.copies += other.copies;
        self.sent += other.sent;
        self.marked += other.marked;
        self.pauses_received += other.pauses_received;
        self.dropped_queue += other.dropped_queue;
        self.dropped_headroom += other.dropped_headroom;
        self.dropped_unknown += other.dropped_unknown;
        self.dropped_local += other.dropped_local;
        self.dropped_oversize += other.dropped_oversize;
        self.dropped_down += other.dropped_down;
        self.dropped_malformed += other.dropped_malformed;
        self.pauses_sent += other.pauses_sent;
        self.resumes_sent += other.resumes_sent;
    }

    /// Frames dropped, for whatever reason.
    pub fn dropped(&self) -> u64 {
        self.dropped_queue
            + self.dropped_headroom
            + self.dropped_unknown
            + self.dropped_local
            + self.dropped_oversize
            + self.dropped_down
            + self.dropped_malformed
    }
}

/// What a port sends next.
#[derive(Debug)]
pub enum Transmit<F> {
    /// A pause frame of the switch's own.
    Pause([u8; PfcRepr::LEN]),
    /// A frame that came in before.
    Frame(F),
}

/// Ports that a received frame was queued for: their transmitters may have something to send now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touched {
    /// None.
    None,
    /// This one.
    One(u16),
    /// Several: look at all.
    Many,
}

#[derive(Debug)]
struct Port<F> {
    attr: SwitchPort,
    egress: Egress<F>,
    /// The peer's pauses.
    pause: PauseState,
    /// Bit of each priority whose sender is to be told something.
    to_tell: u8,
    /// When the pauses that we asked for must be asked for again.
    refresh_at: Time,
}

/// A switch.
#[derive(Debug)]
pub struct Switch<F> {
    settings: SwitchSettings,
    forwarding: Forwarding,
    ports: Vec<Port<F>>,
    buffer: Buffer,
    stream: Stream,
    counters: SwitchCounters,
    /// Ports with something new to tell their senders.
    tellers: Vec<u16>,
}

impl<F: FrameStorage> Switch<F> {
    /// A switch with empty queues. `seed` decides which packets are marked.
    ///
    /// # Errors
    /// A setting that cannot be.
    pub fn new(
        settings: SwitchSettings,
        ports: &[SwitchPort],
        forwarding: Forwarding,
        seed: u64,
    ) -> Result<Self, BadSettings> {
        let rates: Vec<u32> = ports.iter().map(|port| port.rate_mbps).collect();
        settings.check(&rates)?;
        let buffer = Buffer::new(&settings, ports.len());
        let port = |&attr: &SwitchPort| Port {
            attr,
            egress: Egress::new(settings.dequeue),
            pause: PauseState::new(attr.rate_mbps),
            to_tell: 0,
            refresh_at: Time::NEVER,
        };
        Ok(Self {
            ports: ports.iter().map(port).collect(),
            buffer,
            stream: Stream::seed_from_u64(seed),
            settings,
            forwarding,
            counters: SwitchCounters::default(),
            tellers: Vec::new(),
        })
    }

    /// A frame has come in by a port. Says which port may have something to send now; [`Switch::take_teller`] says who else.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn receive(&mut self, now: Time, port: u16, frame: F) -> Touched {
        self.counters.received += 1;
        let Some(headers) = Headers::parse(frame.bytes()) else {
            self.counters.dropped_malformed += 1;
            return Touched::None;
        };
        if headers.dst == wire::pfc::PFC_DESTINATION {
            return self.obey(now, port, frame.bytes());
        }
        match self.forwarding.hop(&headers) {
            // Its station has it already, or gets it by another way on that side. To send it back may send it round for ever.
            Hop::Port(egress) if self.forwarding.is_same_side(egress, port) => {
                self.counters.dropped_local += 1;
                Touched::None
            }
            Hop::Port(egress) => {
                if self.enqueue(port, egress, frame, &headers) {
                    Touched::One(egress)
                } else {
                    Touched::None
                }
            }
            Hop::Unknown => {
                self.counters.dropped_unknown += 1;
                Touched::None
            }
            Hop::Flood(ports) => {
                let ports: PortGroup =
                    ports.iter().copied().filter(|&other| !self.forwarding.is_same_side(other, port)).collect();
                self.flood(port, &ports, frame, &headers)
            }
        }
    }

    /// A pause frame, or another that bridges keep for themselves.
    fn obey(&mut self, now: Time, port: u16, frame: &[u8]) -> Touched {
        let Some(pfc) = PfcRepr::parse(frame) else {
            self.counters.dropped_malformed += 1;
            return Touched::None;
        };
        self.counters.pauses_received += 1;
        self.ports[usize::from(port)].pause.apply(now, pfc);
        // It may be allowed to go on.
        Touched::One(port)
    }

    fn flood(&mut self, port: u16, ports: &[u16], frame: F, headers: &Headers) -> Touched {
        let Some((&last, others)) = ports.split_last() else {
            self.counters.dropped_unknown += 1;
            return Touched::None;
        };
        for &egress in others {
            self.counters.copies += 1;
            match frame.duplicate() {
                Some(copy) => {
                    self.enqueue(port, egress, copy, headers);
                }
                None => self.counters.dropped_malformed += 1,
            }
        }
        self.enqueue(port, last, frame, headers);
        Touched::Many
    }

    fn enqueue(&mut self, ingress: u16, egress: u16, mut frame: F, headers: &Headers) -> bool {
        let priority = self.settings.classes.priority(headers);
        let bytes = frame.bytes().len();
        let port = &mut self.ports[usize::from(egress)];
        let header_bytes = EthernetRepr::LEN + headers.pcp.map_or(0, |_| VlanRepr::LEN);
        if bytes > usize::from(port.attr.mtu) + header_bytes {
            self.counters.dropped_oversize += 1;
            return false;
        }
        let queued = port.egress.bytes(priority);
        match self.buffer.admit(usize::from(ingress), priority, bytes as u64, queued) {
            Ok(()) => {}
            Err(NoRoom::Queue) => {
                self.counters.dropped_queue += 1;
                return false;
            }
            Err(NoRoom::Headroom) => {
                self.counters.dropped_headroom += 1;
                return false;
            }
        }
        if let (Some(marking), Some(ip)) = (&self.settings.marking[priority], &headers.ip)
            && ip.may_be_marked()
            && marking.hits(queued, &mut self.stream)
        {
            ip.mark(frame.bytes_mut());
            self.counters.marked += 1;
        }
        port.egress.push(priority, Queued { frame, ingress, bytes: bytes as u32 });
        self.note_turn(ingress, priority);
        true
    }

    /// What came in by a port, or left, may have its sender stop or go on.
    fn note_turn(&mut self, ingress: u16, priority: usize) {
        if self.buffer.turn(usize::from(ingress), priority).is_some() {
            let port = &mut self.ports[usize::from(ingress)];
            port.to_tell |= 1 << priority;
            self.tellers.push(ingress);
        }
    }

    /// A port that has something to tell its sender, as a result of what was received and sent elsewhere. Each is told of once.
    pub fn take_teller(&mut self) -> Option<u16> {
        self.tellers.pop()
    }

    /// What a port sends now, if its transmitter is free.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn transmit(&mut self, now: Time, port: u16) -> Option<Transmit<F>> {
        if let Some(pause) = self.next_pause(now, port) {
            return Some(Transmit::Pause(pause));
        }
        let Port { egress, pause, .. } = &mut self.ports[usize::from(port)];
        let (priority, Queued { frame, ingress, bytes }) = egress.pop(|priority| !pause.is_paused(now, priority))?;
        self.counters.sent += 1;
        self.buffer.release(usize::from(ingress), priority, u64::from(bytes));
        self.note_turn(ingress, priority);
        Some(Transmit::Frame(frame))
    }

    /// The pause frame that is due.
    fn next_pause(&mut self, now: Time, number: u16) -> Option<[u8; PfcRepr::LEN]> {
        let port = &mut self.ports[usize::from(number)];
        let is_refresh = port.refresh_at <= now;
        if port.to_tell == 0 && !is_refresh {
            return None;
        }
        let full = self.settings.pause.quanta;
        let mut quanta = [None; PRIORITY_COUNT];
        let mut stops = false;
        for (priority, quanta) in quanta.iter_mut().enumerate() {
            let is_stopped = self.buffer.is_stopped(usize::from(number), priority);
            stops |= is_stopped;
            if is_stopped {
                *quanta = Some(full);
            } else if port.to_tell >> priority & 1 == 1 {
                *quanta = Some(0);
            }
        }
        port.to_tell = 0;
        port.refresh_at = if stops { now.add_ns(pause_ns(full, port.attr.rate_mbps) / 2) } else { Time::NEVER };
        if stops {
            self.counters.pauses_sent += 1;
        } else {
            self.counters.resumes_sent += 1;
        }
        Some(PfcRepr::Priority(quanta).to_bytes(port.attr.mac))
    }

    /// When a port may have something to send if nothing more comes in: now ([`Time::ZERO`]), when a pause of the peer's ends, or
    /// when one that we asked for must be asked for again; [`Time::NEVER`] if it has nothing.
    pub fn deadline(&self, port: u16) -> Time {
        let port = &self.ports[usize::from(port)];
        if port.to_tell != 0 {
            return Time::ZERO;
        }
        let waiting = (0..PRIORITY_COUNT).filter(|priority| port.egress.backlog() >> priority & 1 == 1);
        waiting.map(|priority| port.pause.until(priority)).fold(port.refresh_at, Time::min)
    }

    /// A port's link has gone down, or come up. What waits for it is dropped, and its peer's pauses are over; frames that come in
    /// afterwards go another way, or nowhere.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn set_link(&mut self, now: Time, port: u16, is_up: bool) {
        self.forwarding.set_link(port, is_up);
        if is_up {
            return;
        }
        let number = usize::from(port);
        self.ports[number].pause.apply(now, PfcRepr::Link(0));
        while let Some((priority, Queued { ingress, bytes, .. })) = self.ports[number].egress.pop(|_| true) {
            self.counters.dropped_down += 1;
            self.buffer.release(usize::from(ingress), priority, u64::from(bytes));
            self.note_turn(ingress, priority);
        }
    }

    /// Its tables, to change them: a switch that learns does so between frames.
    pub fn forwarding_mut(&mut self) -> &mut Forwarding {
        &mut self.forwarding
    }

    /// Frames and bytes that wait in a port's queues.
    pub fn waiting(&self, port: u16) -> (usize, u64) {
        let egress = &self.ports[usize::from(port)].egress;
        (0..PRIORITY_COUNT).map(|p| (egress.frames(p), egress.bytes(p))).fold((0, 0), |(n, b), (m, c)| (n + m, b + c))
    }

    /// Ports.
    pub fn port_count(&self) -> usize {
        self.ports.len()
    }

    /// What a port is like.
    pub fn port(&self, port: u16) -> SwitchPort {
        self.ports[usize::from(port)].attr
    }

    /// Its settings.
    pub fn settings(&self) -> &SwitchSettings {
        &self.settings
    }

    /// What became of its frames.
    pub fn counters(&self) -> SwitchCounters {
        self.counters
    }

    /// Bytes that wait in a queue.
    pub fn queue_bytes(&self, port: u16, priority: usize) -> u64 {
        self.ports[usize::from(port)].egress.bytes(priority)
    }

    /// Most bytes that ever waited in a queue.
    pub fn queue_peak_bytes(&self, port: u16, priority: usize) -> u64 {
        self.ports[usize::from(port)].egress.peak(priority)
    }

    /// True if the peer has a queue wait.
    pub fn is_paused(&self, now: Time, port: u16, priority: usize) -> bool {
        self.ports[usize::from(port)].pause.is_paused(now, priority)
    }

    /// How long a port's peer has had its queues wait, all priorities together, ns.
    pub fn port_paused_ns(&self, now: Time, port: u16) -> u64 {
        self.ports[usize::from(port)].pause.paused_ns(now)
    }

    /// How long peers have had queues wait, all of them together, ns.
    pub fn paused_ns(&self, now: Time) -> u64 {
        self.ports.iter().map(|port| port.pause.paused_ns(now)).sum()
    }

    /// Frames that wait.
    pub fn queued_frames(&self) -> usize {
        let frames = |port: &Port<F>| (0..PRIORITY_COUNT).map(|p| port.egress.frames(p)).sum::<usize>();
        self.ports.iter().map(frames).sum()
    }

    /// Bytes of the buffer in use now.
    pub fn buffer_used_bytes(&self) -> u64 {
        self.buffer.used()
    }

    /// Most bytes of the buffer that were ever in use.
    pub fn buffer_peak_bytes(&self) -> u64 {
        self.buffer.peak()
    }
}
