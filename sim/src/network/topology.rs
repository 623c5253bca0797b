//! Topologies: which hosts and switches there are, what connects them, and the tables that find a way.

use std::collections::VecDeque;
use std::net::IpAddr;

use wire::MacAddr;

use super::switch::Forwarding;
use crate::host;

/// Most hosts of a network.
pub const HOST_COUNT_MAX: usize = 1_024;
/// Most hops that are looked at on a path: more than any topology has.
const FAR: u32 = u32::MAX;

/// An end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The only port of a host.
    Host(u16),
    /// A port of a switch.
    Switch(u16, u16),
}

/// What a link connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkRole {
    /// A host.
    Access,
    /// Two switches.
    Trunk,
}

/// Hosts, switches and links.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Topology {
    /// How many hosts.
    pub host_count: u16,
    /// Number of ports of each switch.
    pub switch_ports: Vec<u16>,
    /// Both ends of each link.
    pub links: Vec<[End; 2]>,
}

/// Why there is no such topology.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadTopology {
    /// A number out of its range.
    #[error("a {kind} needs {what} from {least} to {most}, not {value}")]
    Count {
        /// Which topology.
        kind: &'static str,
        /// What is counted.
        what: &'static str,
        /// Smallest number.
        least: u16,
        /// Largest number.
        most: u16,
        /// The number given.
        value: u16,
    },
    /// A fat tree of an odd k.
    #[error("a fat tree's k must be even, not {0}")]
    Odd(u16),
    /// Too many hosts.
    #[error("{0} hosts; a network has {HOST_COUNT_MAX} at most")]
    TooManyHosts(usize),
}

fn check(kind: &'static str, what: &'static str, value: u16, least: u16, most: u16) -> Result<(), BadTopology> {
    if (least..=most).contains(&value) { Ok(()) } else { Err(BadTopology::Count { kind, what, least, most, value }) }
}

impl Topology {
    fn with_hosts(count: usize) -> Result<Self, BadTopology> {
        match u16::try_from(count) {
            Ok(host_count) if count <= HOST_COUNT_MAX => Ok(Self { host_count, ..Self::default() }),
            _ => Err(BadTopology::TooManyHosts(count)),
        }
    }

    fn add_switch(&mut self) -> u16 {
        self.switch_ports.push(0);
        (self.switch_ports.len() - 1) as u16
    }

    fn new_port(&mut self, switch: u16) -> End {
        let ports = &mut self.switch_ports[usize::from(switch)];
        *ports += 1;
        End::Switch(switch, *ports - 1)
    }

    fn attach(&mut self, host: u16, switch: u16) {
        let port = self.new_port(switch);
        self.links.push([End::Host(host), port]);
    }

    fn connect(&mut self, one: u16, other: u16) {
        let ends = [self.new_port(one), self.new_port(other)];
        self.links.push(ends);
    }

    /// Two hosts on one link, without a switch.
    pub fn pair() -> Self {
        Self { host_count: 2, switch_ports: Vec::new(), links: vec![[End::Host(0), End::Host(1)]] }
    }

    /// Hosts on one switch.
    ///
    /// # Errors
    /// Fewer than 2 hosts, or too many.
    pub fn star(hosts: u16) -> Result<Self, BadTopology> {
        check("star", "hosts", hosts, 2, HOST_COUNT_MAX as u16)?;
        let mut topology = Self::with_hosts(usize::from(hosts))?;
        let switch = topology.add_switch();
        (0..hosts).for_each(|host| topology.attach(host, switch));
        Ok(topology)
    }

    /// Two switches with a trunk between them: hosts 0 up to `left` on one, the others on the other.
    ///
    /// # Errors
    /// A side without hosts, or too many.
    pub fn dumbbell(left: u16, right: u16) -> Result<Self, BadTopology> {
        check("dumbbell", "left hosts", left, 1, HOST_COUNT_MAX as u16 / 2)?;
        check("dumbbell", "right hosts", right, 1, HOST_COUNT_MAX as u16 / 2)?;
        let mut topology = Self::with_hosts(usize::from(left + right))?;
        let switches = [topology.add_switch(), topology.add_switch()];
        (0..left + right).for_each(|host| topology.attach(host, switches[usize::from(host >= left)]));
        topology.connect(switches[0], switches[1]);
        Ok(topology)
    }

    /// Every leaf with every spine, hosts on the leaves: host `n` is on leaf `n / hosts`.
    ///
    /// # Errors
    /// A number out of range.
    pub fn leaf_spine(leaves: u16, spines: u16, hosts: u16) -> Result<Self, BadTopology> {
        check("leaf-spine", "leaves", leaves, 1, 128)?;
        check("leaf-spine", "spines", spines, 1, 128)?;
        check("leaf-spine", "hosts per leaf", hosts, 1, 256)?;
        let mut topology = Self::with_hosts(usize::from(leaves) * usize::from(hosts))?;
        let leaf_numbers: Vec<u16> = (0..leaves).map(|_| topology.add_switch()).collect();
        let spine_numbers: Vec<u16> = (0..spines).map(|_| topology.add_switch()).collect();
        for &leaf in &leaf_numbers {
            (0..hosts).for_each(|host| topology.attach(leaf * hosts + host, leaf));
            spine_numbers.iter().for_each(|&spine| topology.connect(leaf, spine));
        }
        Ok(topology)
    }

    /// A fat tree of switches with `k` ports: `k` pods of `k / 2` edge and `k / 2` aggregation switches, `k^2 / 4` core switches,
    /// `k^3 / 4` hosts.
    ///
    /// # Errors
    /// `k` is odd, or out of range.
    pub fn fat_tree(k: u16) -> Result<Self, BadTopology> {
        check("fat tree", "k", k, 2, 16)?;
        if !k.is_multiple_of(2) {
            return Err(BadTopology::Odd(k));
        }
        let half = k / 2;
        let mut topology = Self::with_hosts(usize::from(k * half * half))?;
        let cores: Vec<u16> = (0..half * half).map(|_| topology.add_switch()).collect();
        for pod in 0..k {
            let aggregations: Vec<u16> = (0..half).map(|_| topology.add_switch()).collect();
            for (&aggregation, number) in aggregations.iter().zip(0..half) {
                (0..half).for_each(|core| topology.connect(aggregation, cores[usize::from(number * half + core)]));
            }
            for edge in 0..half {
                let switch = topology.add_switch();
                aggregations.iter().for_each(|&aggregation| topology.connect(switch, aggregation));
                (0..half).for_each(|host| topology.attach((pod * half + edge) * half + host, switch));
            }
        }
        Ok(topology)
    }

    /// What a link is for.
    pub fn role(&self, link: usize) -> LinkRole {
        let is_host = |end: &End| matches!(end, End::Host(_));
        if self.links[link].iter().any(is_host) { LinkRole::Access } else { LinkRole::Trunk }
    }

    /// Links between a host and another, and those of them that are trunks; `None` if there is no way.
    pub fn distance(&self, from: u16, to: u16) -> Option<u32> {
        let distances = self.distances(to);
        let of = |end: &End| match *end {
            End::Host(host) if host == to => 0,
            End::Host(_) => FAR,
            End::Switch(switch, _) => distances[usize::from(switch)],
        };
        let ends = self.links.iter().find_map(|ends| match ends {
            [End::Host(host), other] | [other, End::Host(host)] if *host == from => Some(other),
            _ => None,
        })?;
        match of(ends) {
            FAR => None,
            hops => Some(hops + 1),
        }
    }

    /// Links from each switch to a host.
    fn distances(&self, host: u16) -> Vec<u32> {
        let mut distances = vec![FAR; self.switch_ports.len()];
        let mut next = VecDeque::new();
        let reach = |end: End, distance: u32, next: &mut VecDeque<u16>, distances: &mut Vec<u32>| {
            if let End::Switch(switch, _) = end
                && distances[usize::from(switch)] == FAR
            {
                distances[usize::from(switch)] = distance;
                next.push_back(switch);
            }
        };
        for &[one, other] in &self.links {
            if one == End::Host(host) {
                reach(other, 1, &mut next, &mut distances);
            }
        }
        let neighbours = self.neighbours();
        while let Some(switch) = next.pop_front() {
            let distance = distances[usize::from(switch)] + 1;
            for &(_, end) in &neighbours[usize::from(switch)] {
                reach(end, distance, &mut next, &mut distances);
            }
        }
        distances
    }

    /// What is behind each port of each switch.
    fn neighbours(&self) -> Vec<Vec<(u16, End)>> {
        let mut neighbours = vec![Vec::new(); self.switch_ports.len()];
        for &[one, other] in &self.links {
            for (near, far) in [(one, other), (other, one)] {
                if let End::Switch(switch, port) = near {
                    neighbours[usize::from(switch)].push((port, far));
                }
            }
        }
        neighbours
    }

    /// The tables of every switch: all shortest ways to every host. `seed` spreads flows differently in each switch.
    pub fn forwarding(&self, seed: u64) -> Vec<Forwarding> {
        let neighbours = self.neighbours();
        let mut groups: Vec<Vec<Vec<u16>>> = vec![Vec::new(); self.switch_ports.len()];
        for host in 0..self.host_count {
            let distances = self.distances(host);
            for (switch, groups) in groups.iter_mut().enumerate() {
                let is_nearer = |end: &End| match *end {
                    End::Host(other) => other == host,
                    End::Switch(other, _) => distances[usize::from(other)] < distances[switch],
                };
                let ports = neighbours[switch].iter().filter(|(_, end)| is_nearer(end)).map(|&(port, _)| port);
                groups.push(ports.collect());
            }
        }
        let floods = self.spanning_tree();
        let tables = groups.into_iter().zip(floods).zip(0u64..);
        tables.map(|((groups, flood), number)| table(&groups, &flood, seed ^ number << 32)).collect()
    }

    /// Ports of each switch that are on a tree which reaches every host once.
    fn spanning_tree(&self) -> Vec<Vec<u16>> {
        let neighbours = self.neighbours();
        let mut ports = vec![Vec::new(); self.switch_ports.len()];
        let mut is_reached = vec![false; self.switch_ports.len()];
        let mut next = VecDeque::new();
        if let Some(first) = is_reached.first_mut() {
            *first = true;
            next.push_back(0u16);
        }
        while let Some(switch) = next.pop_front() {
            for &(port, end) in &neighbours[usize::from(switch)] {
                match end {
                    End::Host(_) => ports[usize::from(switch)].push(port),
                    End::Switch(other, other_port) if !is_reached[usize::from(other)] => {
                        is_reached[usize::from(other)] = true;
                        ports[usize::from(switch)].push(port);
                        ports[usize::from(other)].push(other_port);
                        next.push_back(other);
                    }
                    End::Switch(..) => {}
                }
            }
        }
        ports
    }
}

/// A switch's table from the ports towards each host. Those that most hosts are behind become the default route.
fn table(groups: &[Vec<u16>], flood: &[u16], seed: u64) -> Forwarding {
    let mut forwarding = Forwarding::new(seed);
    forwarding.set_flood(flood);
    let count = |group: &Vec<u16>| groups.iter().filter(|&other| other == group).count();
    let default = groups.iter().max_by_key(|group| count(group)).filter(|group| 2 * count(group) > groups.len());
    if let Some(ports) = default.filter(|ports| !ports.is_empty()) {
        forwarding.add_route(IpAddr::from([0; 4]), 0, ports);
        forwarding.add_route(IpAddr::from([0; 16]), 0, ports);
    }
    for (ports, host) in groups.iter().zip(0..) {
        if !ports.is_empty() && Some(ports) != default {
            let mac: MacAddr = host::mac(host);
            forwarding.add_station(mac, ports);
        }
    }
    forwarding
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every switch's table leads from every host to every other, over the links there are, in as few as there can be.
    fn check_paths(topology: &Topology) {
        use crate::network::headers::Headers;
        use crate::network::switch::Hop;
        let tables = topology.forwarding(1);
        let far = |near: End| {
            topology.links.iter().find_map(|&[one, other]| match near {
                _ if near == one => Some(other),
                _ if near == other => Some(one),
                _ => None,
            })
        };
        for from in 0..topology.host_count {
            for to in (0..topology.host_count).filter(|&to| to != from) {
                let frame = crate::network::testing::udp_frame_between(host::mac(from), host::mac(to), 9 + to);
                let headers = Headers::parse(&frame).unwrap();
                let mut at = far(End::Host(from)).expect("every host has a link");
                let mut links = 1;
                while let End::Switch(switch, _) = at {
                    let Hop::Port(port) = tables[usize::from(switch)].hop(&headers) else { panic!("{from} to {to}") };
                    at = far(End::Switch(switch, port)).expect("every port has a link");
                    links += 1;
                }
                assert_eq!((at, Some(links)), (End::Host(to), topology.distance(from, to)), "from {from} to {to}");
            }
        }
    }

    #[test]
    fn every_host_reaches_every_other_by_a_shortest_way() {
        check_paths(&Topology::star(5).unwrap());
        check_paths(&Topology::dumbbell(3, 4).unwrap());
        check_paths(&Topology::leaf_spine(4, 3, 5).unwrap());
        check_paths(&Topology::fat_tree(4).unwrap());
        check_paths(&Topology::fat_tree(6).unwrap());
    }

    #[test]
    fn topologies_have_the_hosts_switches_and_links_that_their_names_say() {
        let sizes = |topology: &Topology| {
            (topology.host_count, topology.switch_ports.len(), topology.links.len(), topology.switch_ports[0])
        };
        assert_eq!(sizes(&Topology::fat_tree(6).unwrap()), (54, 45, 162, 6));
        assert_eq!(sizes(&Topology::leaf_spine(8, 4, 16).unwrap()), (128, 12, 160, 20));
        let dumbbell = Topology::dumbbell(2, 3).unwrap();
        assert_eq!(sizes(&dumbbell), (5, 2, 6, 3));
        assert_eq!((dumbbell.distance(0, 1), dumbbell.distance(0, 4)), (Some(2), Some(3)));
        assert_eq!((0..6).filter(|&link| dumbbell.role(link) == LinkRole::Trunk).count(), 1);
        assert_eq!(Topology::pair().distance(0, 1), Some(1));
    }

    #[test]
    fn a_flood_reaches_every_host_once() {
        for topology in [Topology::leaf_spine(3, 2, 2).unwrap(), Topology::fat_tree(4).unwrap()] {
            let tree = topology.spanning_tree();
            let trunks: usize = tree.iter().map(Vec::len).sum::<usize>() - usize::from(topology.host_count);
            assert_eq!(trunks, 2 * (topology.switch_ports.len() - 1), "a tree has one link less than nodes");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused_with_the_range() {
        assert_eq!(Topology::fat_tree(5), Err(BadTopology::Odd(5)));
        let sentence = Topology::leaf_spine(1, 0, 4).unwrap_err().to_string();
        assert_eq!(sentence, "a leaf-spine needs spines from 1 to 128, not 0");
        assert_eq!(Topology::leaf_spine(128, 1, 256), Err(BadTopology::TooManyHosts(32_768)));
    }
}
