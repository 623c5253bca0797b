//! Quality of service of a port, as one shard knows it: priorities, turns, and priority flow control.
//!
//! * `lane`: where a QP waits for its turn; which priority a packet has.
//! * `shares`: whose turn it is.
//! * `pauses`: what the peer asks for: priorities that may not send, and the watchdog over them.
//! * `backlog`: what we ask the peer for, by how many frames wait for us.
//!
//! Every shard obeys pauses by itself: each sees all PFC frames of the port. The first one counts and reports them.

mod backlog;
mod lane;
mod pauses;
mod shares;

use std::collections::VecDeque;
use std::fmt;

use shm::qos::{PRIORITY_COUNT, QosSettings};

pub use backlog::Backlog;
pub(crate) use backlog::Early;
use backlog::Pausing;
pub(crate) use lane::{Lane, LaneSet, PriorityMap};
use pauses::{Pauses, bits};
use shares::Shares;

use crate::counters::PriorityCounters;
use crate::time::Time;

/// Reports that wait to be taken; more are lost, and only counted.
const NOTICES_MAX: usize = 64;

/// Whether a shard counts and reports pauses, or only obeys them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Duty(bool);

impl Duty {
    /// What an occurrence counts.
    fn one(self) -> u64 {
        u64::from(self.0)
    }
}

/// What the watchdog found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PauseTrouble {
    /// Pauses that do not end.
    Storm {
        /// How long they have lasted.
        paused_ns: u64,
        /// How long they are ignored now; 0 = they are obeyed.
        ignored_ns: u64,
    },
    /// Both sides pause each other, and nothing moves.
    Deadlock {
        /// For how long.
        stuck_ns: u64,
    },
}

/// A report of the watchdog: a sentence for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PauseNotice {
    /// Port, from 1.
    pub port_num: u8,
    /// Priority.
    pub priority: u8,
    /// What is wrong.
    pub trouble: PauseTrouble,
}

impl fmt::Display for PauseNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NS_PER_MS: u64 = 1_000_000;
        let Self { port_num, priority, trouble } = *self;
        match trouble {
            PauseTrouble::Storm { paused_ns, ignored_ns } => {
                let ms = paused_ns / NS_PER_MS;
                write!(f, "port {port_num}: the peer has paused priority {priority} for {ms} ms without an end")?;
                match ignored_ns / NS_PER_MS {
                    0 => Ok(()),
                    ms => write!(f, "; its pauses are ignored for {ms} ms"),
                }
            }
            PauseTrouble::Deadlock { stuck_ns } => {
                let ms = stuck_ns / NS_PER_MS;
                write!(
                    f,
                    "port {port_num}: priority {priority} is paused both ways, and nothing has come or gone for {ms} ms: a deadlock is suspected"
                )
            }
        }
    }
}

/// A priority that is paused both ways.
#[derive(Clone, Copy, Debug)]
struct Standstill {
    since: Time,
    /// Frames received then.
    received: u64,
    is_reported: bool,
}

/// Quality of service of a port, as one shard knows it.
#[derive(Debug)]
pub(crate) struct PortQos {
    map: PriorityMap,
    shares: Shares,
    pauses: Pauses,
    pausing: Pausing,
    standstills: [Option<Standstill>; PRIORITY_COUNT],
    counters: [PriorityCounters; PRIORITY_COUNT],
    settings: Box<QosSettings>,
    duty: Duty,
    notices: VecDeque<(u8, PauseTrouble)>,
}

impl PortQos {
    /// Quality of service of a port of shard `shard` of so many.
    pub(crate) fn new(settings: &QosSettings, shard: u8, shard_count: u8) -> Self {
        Self {
            map: PriorityMap::new(settings),
            shares: Shares::new(settings),
            pauses: Pauses::new(settings),
            pausing: Pausing::new(settings, shard_count == 1),
            standstills: [None; PRIORITY_COUNT],
            counters: [PriorityCounters::default(); PRIORITY_COUNT],
            settings: Box::new(*settings),
            duty: Duty(shard == 0),
            notices: VecDeque::with_capacity(if shard == 0 { NOTICES_MAX } else { 0 }),
        }
    }

    /// Replaces the settings; returns the old ones. `by_device`: the device asks for pauses, not we.
    pub(crate) fn set(&mut self, now: Time, settings: Box<QosSettings>, by_device: bool) -> Box<QosSettings> {
        self.map = PriorityMap::new(&settings);
        self.shares = Shares::new(&settings);
        self.pauses.set(now, &settings, &mut self.counters, self.duty);
        self.pausing.set(&settings, by_device);
        std::mem::replace(&mut self.settings, settings)
    }

    /// Where priorities are looked up.
    #[inline]
    pub(crate) fn map(&self) -> &PriorityMap {
        &self.map
    }

    /// Counts a frame that came in.
    #[inline]
    pub(crate) fn count_received(&mut self, priority: usize, bytes: usize) {
        if let Some(counted) = self.counters.get_mut(priority) {
            counted.rx_packets += 1;
            counted.rx_bytes += bytes as u64;
        }
    }

    /// Counts what a lane has sent, and has it wait for its next turn accordingly.
    #[inline]
    pub(crate) fn count_sent(&mut self, lane: Lane, packets: u64, bytes: u64) {
        if let Some(counted) = lane.priority().and_then(|priority| self.counters.get_mut(priority)) {
            counted.tx_packets += packets;
            counted.tx_bytes += bytes;
        }
        self.shares.charge(lane, bytes);
    }

    /// Which of the lanes that wait is next.
    #[inline]
    pub(crate) fn pick(&mut self, waiting: LaneSet) -> Option<Lane> {
        self.shares.pick(waiting)
    }

    /// Lanes that are not paused.
    #[inline]
    pub(crate) fn open_lanes(&self) -> LaneSet {
        LaneSet::ALL.without(LaneSet::of_priorities(self.pauses.paused()))
    }

    /// True if nobody pauses anything: there is nothing to look at.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.pauses.paused() == 0 && self.pausing.is_quiet()
    }

    /// The peer's PFC frame.
    pub(crate) fn handle_pause(&mut self, now: Time, quanta: &[Option<u16>; PRIORITY_COUNT], speed_mbps: u32) {
        self.pauses.expire(now, &mut self.counters, self.duty);
        self.pauses.handle(now, quanta, speed_mbps, &mut self.counters, self.duty);
        self.note_standstills(now);
    }

    /// Whether the owner's word on its backlog is of use.
    #[inline]
    pub(crate) fn is_governed(&self) -> bool {
        self.pausing.is_governed()
    }

    /// The owner's word on its backlog.
    pub(crate) fn handle_backlog(&mut self, now: Time, backlog: Backlog, early: &Early) {
        self.pausing.handle(backlog, early, &mut self.counters);
        self.note_standstills(now);
    }

    /// Ends pauses whose time is over, and looks for trouble.
    pub(crate) fn watch(&mut self, now: Time) {
        self.pauses.expire(now, &mut self.counters, self.duty);
        while let Some((priority, since)) = self.pauses.poll_storm(now, &mut self.counters, self.duty) {
            let ignored_ns = u64::from(self.settings.numbers.pfc_watchdog_ignore_ms) * 1_000_000;
            self.notice(priority, PauseTrouble::Storm { paused_ns: now.ns_since(since), ignored_ns });
        }
        for priority in 0..PRIORITY_COUNT {
            let received = self.counters[priority].rx_packets;
            let due = self.standstill_at(priority) <= now;
            let Some(standstill) = self.standstills[priority].as_mut().filter(|_| due) else { continue };
            let stuck_ns = now.ns_since(standstill.since);
            if standstill.received != received {
                (standstill.since, standstill.received) = (now, received);
            } else {
                standstill.is_reported = true;
                self.counters[priority].pause_deadlock += self.duty.one();
                self.notice(priority, PauseTrouble::Deadlock { stuck_ns });
            }
        }
        self.note_standstills(now);
    }

    /// Notes which priorities have begun or ended to be paused both ways.
    fn note_standstills(&mut self, now: Time) {
        let both = self.pauses.paused() & self.pausing.wanted();
        for (priority, standstill) in self.standstills.iter_mut().enumerate() {
            let is_stuck = both >> priority & 1 == 1;
            if is_stuck != standstill.is_some() {
                let received = self.counters[priority].rx_packets;
                *standstill = is_stuck.then_some(Standstill { since: now, received, is_reported: false });
            }
        }
    }

    fn standstill_at(&self, priority: usize) -> Time {
        let limit_ns = u64::from(self.settings.numbers.pfc_watchdog_ms) * 1_000_000;
        match &self.standstills[priority] {
            Some(standstill) if !standstill.is_reported && limit_ns > 0 => standstill.since.add_ns(limit_ns),
            _ => Time::NEVER,
        }
    }

    fn notice(&mut self, priority: usize, trouble: PauseTrouble) {
        if self.duty.0 && self.notices.len() < NOTICES_MAX {
            self.notices.push_back((priority as u8, trouble));
        }
    }

    /// A report of the watchdog.
    pub(crate) fn poll_notice(&mut self) -> Option<(u8, PauseTrouble)> {
        self.notices.pop_front()
    }

    /// True if [`PortQos::poll_notice`] has something.
    pub(crate) fn has_notice(&self) -> bool {
        !self.notices.is_empty()
    }

    /// The quanta of the PFC frame that is to be sent now, if one is.
    pub(crate) fn pause_frame(&self, now: Time) -> Option<[Option<u16>; PRIORITY_COUNT]> {
        self.pausing.frame(now)
    }

    /// That frame was sent.
    pub(crate) fn pause_frame_sent(&mut self, now: Time, quanta: &[Option<u16>; PRIORITY_COUNT], speed_mbps: u32) {
        self.pausing.sent(now, quanta, speed_mbps, &mut self.counters);
    }

    /// When there is something to look at next.
    pub(crate) fn next_deadline(&self) -> Time {
        let standstills = (0..PRIORITY_COUNT).map(|priority| self.standstill_at(priority));
        let pauses = self.pauses.next_deadline().min(self.pausing.next_deadline());
        standstills.fold(pauses, Time::min)
    }

    /// What an operator sees.
    pub(crate) fn state(&self, now: Time) -> QosState {
        QosState {
            counters: self.counters,
            paused: self.pauses.paused(),
            pausing: self.pausing.wanted(),
            ignored: self.pauses.ignored(now),
        }
    }
}

/// What one shard knows of a port's priorities. Priorities as bits where nothing else is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QosState {
    /// Counters of each priority.
    pub counters: [PriorityCounters; PRIORITY_COUNT],
    /// Paused by the peer.
    pub paused: u8,
    /// The peer is told to pause.
    pub pausing: u8,
    /// Pauses of them are ignored for a while.
    pub ignored: u8,
}

impl QosState {
    /// Adds another shard's.
    pub fn add(&mut self, other: &Self) {
        self.counters.iter_mut().zip(&other.counters).for_each(|(sum, more)| sum.add(more));
        self.paused |= other.paused;
        self.pausing |= other.pausing;
        self.ignored |= other.ignored;
    }

    /// The state of each priority, for a reply.
    pub(crate) fn priorities(&self) -> Vec<shm::qos::PriorityState> {
        let is_in = |mask: u8, priority: usize| bits(mask).any(|bit| bit == priority);
        let state = |(priority, counters): (usize, &PriorityCounters)| shm::qos::PriorityState {
            paused: is_in(self.paused, priority),
            pausing: is_in(self.pausing, priority),
            ignoring: is_in(self.ignored, priority),
            counters: counters.entries().map(|(name, value)| (name.to_owned(), value)).collect(),
        };
        self.counters.iter().enumerate().map(state).collect()
    }
}
