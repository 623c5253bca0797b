//! Which station is behind which port, as frames tell (IEEE 802.1Q 8.7).

use std::collections::BTreeMap;

use sim::Time;
use sim::network::switch::Forwarding;
use wire::MacAddr;

/// A station is forgotten this many times in its age at the most precise.
const SWEEPS_PER_AGE: u64 = 8;

/// What was learned, and what was not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StationCounters {
    /// Stations that were new.
    pub learned: u64,
    /// Stations that came in by another side than before.
    pub moved: u64,
    /// Stations that were forgotten because nothing came from them.
    pub aged: u64,
    /// Frames whose station was not learned because there are too many.
    pub unlearned: u64,
}

#[derive(Debug)]
struct Station {
    port: u16,
    seen_at: Time,
}

/// The stations that are known.
#[derive(Debug)]
pub(crate) struct Stations {
    known: BTreeMap<MacAddr, Station>,
    /// The ports that lead where a port leads, itself included.
    sides: Vec<Box<[u16]>>,
    count_max: usize,
    age_ns: u64,
    sweep_at: Time,
    counters: StationCounters,
}

impl Stations {
    /// Nobody is known. `sides` has, for each port, all that lead to the same neighbours.
    pub(crate) fn new(sides: Vec<Box<[u16]>>, count_max: usize, age_ns: u64) -> Self {
        let counters = StationCounters::default();
        Self { known: BTreeMap::new(), sides, count_max, age_ns, sweep_at: Time::ZERO, counters }
    }

    /// A frame of the station has come in by a port. Allocates for a station that is new or has moved.
    pub(crate) fn learn(&mut self, now: Time, mac: MacAddr, port: u16, forwarding: &mut Forwarding) {
        if mac.is_multicast() || mac == MacAddr::ZERO {
            return;
        }
        let side = &self.sides[usize::from(port)];
        if let Some(station) = self.known.get_mut(&mac) {
            station.seen_at = now;
            if !side.contains(&station.port) {
                station.port = port;
                self.counters.moved += 1;
                forwarding.add_station(mac, side);
            }
        } else if self.known.len() < self.count_max {
            self.known.insert(mac, Station { port, seen_at: now });
            self.counters.learned += 1;
            forwarding.add_station(mac, side);
        } else {
            self.counters.unlearned += 1;
        }
    }

    /// Forgets those behind a port and behind all that lead where it leads.
    pub(crate) fn forget_side(&mut self, port: u16, forwarding: &mut Forwarding) {
        let side = &self.sides[usize::from(port)];
        self.known.retain(|&mac, station| {
            let is_elsewhere = !side.contains(&station.port);
            if !is_elsewhere {
                forwarding.remove_station(mac);
            }
            is_elsewhere
        });
    }

    /// Forgets those who have been silent too long, now and then.
    pub(crate) fn sweep(&mut self, now: Time, forwarding: &mut Forwarding) {
        if now < self.sweep_at {
            return;
        }
        self.sweep_at = now.add_ns(self.age_ns / SWEEPS_PER_AGE);
        let (age_ns, counters) = (self.age_ns, &mut self.counters);
        self.known.retain(|&mac, station| {
            let is_fresh = now.ns_since(station.seen_at) < age_ns;
            if !is_fresh {
                counters.aged += 1;
                forwarding.remove_station(mac);
            }
            is_fresh
        });
    }

    /// Stations that are known.
    pub(crate) fn count(&self) -> usize {
        self.known.len()
    }

    /// What was learned.
    pub(crate) fn counters(&self) -> StationCounters {
        self.counters
    }
}
