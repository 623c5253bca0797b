//! Where frames go: stations by MAC address, networks by IP prefix, and among several ports by the flow's hash.

use std::collections::BTreeMap;
use std::net::IpAddr;

use wire::MacAddr;

use crate::network::headers::{Headers, IpHeaders};

/// Ports that are as good as each other.
pub type PortGroup = Box<[u16]>;

/// A destination network.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Route {
    prefix: IpAddr,
    length: u8,
    ports: PortGroup,
}

impl Route {
    fn matches(&self, ip: IpAddr) -> bool {
        let differing = match (self.prefix, ip) {
            (IpAddr::V4(prefix), IpAddr::V4(ip)) => (prefix.to_bits() ^ ip.to_bits()).leading_zeros(),
            (IpAddr::V6(prefix), IpAddr::V6(ip)) => (prefix.to_bits() ^ ip.to_bits()).leading_zeros(),
            _ => return false,
        };
        differing >= u32::from(self.length)
    }
}

/// The tables of a switch.
#[derive(Clone, Debug, Default)]
pub struct Forwarding {
    stations: BTreeMap<MacAddr, PortGroup>,
    /// Longest prefix first.
    routes: Vec<Route>,
    /// Ports that a frame for everybody goes out of, but for the one it came in by: they make a tree.
    flood: Box<[u16]>,
    /// Ports that lead to the same neighbours.
    sides: Vec<PortGroup>,
    /// Ports whose link is down: few, if any.
    down: Vec<u16>,
    seed: u64,
}

/// What the tables say of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hop<'a> {
    /// Out of this port.
    Port(u16),
    /// Out of all of these but the one it came in by.
    Flood(&'a [u16]),
    /// Nobody knows, or all ways are down.
    Unknown,
}

impl Forwarding {
    /// Empty tables. `seed` has every switch spread flows in a way of its own.
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// A station is behind any of `ports`.
    ///
    /// # Panics
    /// If there are none.
    pub fn add_station(&mut self, mac: MacAddr, ports: &[u16]) {
        assert!(!ports.is_empty(), "a station behind no port");
        self.stations.insert(mac, ports.into());
    }

    /// Nothing is known of a station any more.
    pub fn remove_station(&mut self, mac: MacAddr) {
        self.stations.remove(&mac);
    }

    /// These ports lead to the same neighbours: what came in by one of them does not leave by another.
    pub fn add_side(&mut self, ports: &[u16]) {
        self.sides.push(ports.into());
    }

    /// True if two ports lead to the same neighbours, or are one.
    pub fn is_same_side(&self, one: u16, other: u16) -> bool {
        one == other || self.sides.iter().any(|side| side.contains(&one) && side.contains(&other))
    }

    /// A network is behind any of `ports`: what no station is known for goes by its IP address.
    ///
    /// # Panics
    /// If there are none, or the prefix is longer than an address.
    pub fn add_route(&mut self, prefix: IpAddr, length: u8, ports: &[u16]) {
        assert!(!ports.is_empty(), "a network behind no port");
        assert!(u32::from(length) <= if prefix.is_ipv4() { 32 } else { 128 }, "a prefix of {length} bits");
        self.routes.push(Route { prefix, length, ports: ports.into() });
        self.routes.sort_by_key(|route| std::cmp::Reverse(route.length));
    }

    /// Frames for groups, and for stations that nothing is known of, go out of these ports.
    pub fn set_flood(&mut self, ports: &[u16]) {
        self.flood = ports.into();
    }

    /// A port's link is up or down: flows go by those of the same group that are up.
    pub fn set_link(&mut self, port: u16, is_up: bool) {
        self.down.retain(|&other| other != port);
        if !is_up {
            self.down.push(port);
        }
    }

    /// Where a frame goes.
    pub fn hop(&self, headers: &Headers) -> Hop<'_> {
        if !headers.dst.is_multicast() {
            let ip = headers.ip.as_ref();
            let by_route = || self.routes.iter().find(|route| ip.is_some_and(|ip| route.matches(ip.dst)));
            let ports = self.stations.get(&headers.dst).or_else(|| by_route().map(|route| &route.ports));
            if let Some(ports) = ports {
                return self.choose(ports, ip).map_or(Hop::Unknown, Hop::Port);
            }
        }
        if self.flood.is_empty() { Hop::Unknown } else { Hop::Flood(&self.flood) }
    }

    fn choose(&self, ports: &[u16], ip: Option<&IpHeaders>) -> Option<u16> {
        let hash = match ip {
            Some(ip) if ports.len() > 1 => ip.flow_hash(self.seed),
            _ => 0,
        };
        if self.down.is_empty() {
            return Some(ports[(hash % ports.len() as u64) as usize]);
        }
        let is_up = |port: &u16| !self.down.contains(port);
        let ways = ports.iter().copied().filter(is_up).count() as u64;
        let nth = hash.checked_rem(ways)?;
        ports.iter().copied().filter(is_up).nth(nth as usize)
    }
}
