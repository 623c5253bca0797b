//! The path of a QP or of an address handle: from the words of an address vector to headers that are ready to send.
//!
//! Who has a path keeps the neighbour that it goes by in use, so it gives the path back by [`Path::release`].

use std::net::IpAddr;

use shm::attr::{AhAttr, GidType, static_rate_mbps};
use wire::buf::Dest;
use wire::multicast::group_mac;
use wire::{Frame, MacAddr, PathFields, PathTemplate, Qpn, VlanTag, source_port_for_qpn};

use crate::config::PortAddress;
use crate::neigh::{NeighKey, NextHop};
use crate::post_mortem::PathFacts;
use crate::qos::{Lane, PriorityMap};
use crate::qp::state::ModifyError;
use crate::shard::PortState;
use crate::shard_of;

/// Time to live where the address vector leaves it at 0.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// Where its frames go first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hop {
    /// To a QP of this engine: by memory.
    Local,
    /// To all members of a multicast group.
    Group(MacAddr),
    /// To the neighbour with this index in the port's table.
    Neighbour(u32),
}

/// What the ECN bits of a path's packets say (RFC 3168).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EcnMarking {
    /// What the address vector's traffic class says.
    AsGiven,
    /// ECT(0): switches mark rather than drop.
    Ect,
}

/// ECT(0).
const ECT_0: u8 = 2;

/// A resolved address vector.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    /// Headers before the BTH. Without a MAC as long as the neighbour is not known.
    template: PathTemplate,
    ours: PortAddress,
    peer: IpAddr,
    hop: Hop,
    /// Port, from 0.
    port: u8,
    is_resolved: bool,
    lane: Lane,
    ecn: EcnMarking,
    /// Of its own, or picked by the address vector's flow label.
    udp_src_port: u16,
    ah: AhAttr,
}

impl Path {
    /// The path that an address vector describes. `udp_src_port` is used where it has no flow label that picks one.
    ///
    /// Puts the neighbour to use; if its MAC is not known yet, it is asked for and the path is not resolved before
    /// [`refresh`](Self::refresh) says so. Multicast groups are taken too: it is for the caller to refuse them.
    ///
    /// # Errors
    /// The address vector names no port or GID of ours, our GID and the peer's are of different families, or the
    /// neighbour table is full: nothing is held then.
    pub(crate) fn resolve(ports: &mut [PortState], ah: &AhAttr, udp_src_port: u16) -> Result<Self, ModifyError> {
        let index = ah.port_num.max(1) - 1;
        let port = ports.get_mut(usize::from(index)).ok_or(ModifyError::NoSuchPort { port_num: ah.port_num })?;
        let ours = port.config.address(ah.sgid_index).ok_or(ModifyError::NoSuchGid { index: ah.sgid_index })?;
        let peer = ah.dgid.ip();
        if ours.ip.is_ipv4() != peer.is_ipv4() {
            return Err(ModifyError::AddressFamily { index: ah.sgid_index });
        }
        let udp_src_port = match ah.flow_label {
            0 => udp_src_port,
            label => wire::source_port_for_flow_label(label),
        };
        let fields = path_fields(ah, &ours, peer, port.config.mac, udp_src_port);
        let template = PathTemplate::new(&fields).ok_or(ModifyError::AddressFamily { index: ah.sgid_index })?;
        // The only step that takes anything: it comes last.
        let hop = match group_mac(peer) {
            Some(mac) => Hop::Group(mac),
            None if port.config.has_address(peer, ours.vlan) => Hop::Local,
            None => {
                let key = NeighKey { ip: peer, vlan: ours.vlan };
                Hop::Neighbour(port.neighbours.acquire(key).ok_or(ModifyError::NeighbourTableFull)?)
            }
        };
        let mut path = Self {
            template,
            ours,
            peer,
            hop,
            port: index,
            is_resolved: false,
            lane: Lane::INSIDE,
            ecn: EcnMarking::AsGiven,
            udp_src_port,
            ah: *ah,
        };
        path.refresh(ports);
        Ok(path)
    }

    /// Gives the neighbour back.
    pub(crate) fn release(self, ports: &mut [PortState]) {
        if let (Hop::Neighbour(index), Some(port)) = (self.hop, ports.get_mut(usize::from(self.port))) {
            port.neighbours.release(index);
        }
    }

    /// Builds the headers anew, and finds the lane, from what is known of the port and the neighbour now.
    pub(crate) fn refresh(&mut self, ports: &[PortState]) {
        let Some(port) = ports.get(usize::from(self.port)) else { return };
        let mac = match self.hop {
            Hop::Local => Some(port.config.mac),
            Hop::Group(mac) => Some(mac),
            Hop::Neighbour(index) => port.neighbours.mac(index),
        };
        let mut fields = path_fields(&self.ah, &self.ours, self.peer, port.config.mac, self.udp_src_port);
        fields.dst_mac = mac.unwrap_or(MacAddr::ZERO);
        self.lane = self.lane_of_class(port.qos.map(), self.ah.traffic_class, self.ah.sl);
        if self.marks_ecn() {
            fields.traffic_class = fields.traffic_class & !3 | ECT_0;
        }
        let template = PathTemplate::new(&fields);
        self.is_resolved = mac.is_some() && template.is_some();
        if let Some(template) = template {
            self.template = template;
        }
    }

    /// Sets what the ECN bits of its packets say.
    pub(crate) fn set_ecn(&mut self, ports: &[PortState], ecn: EcnMarking) {
        if self.ecn != ecn {
            self.ecn = ecn;
            self.refresh(ports);
        }
    }

    /// Its packets are marked ECT(0), except for those that no switch shall mark. RoCEv1 has no ECN.
    #[inline]
    pub(crate) fn marks_ecn(&self) -> bool {
        self.ecn == EcnMarking::Ect && self.ours.gid_type == GidType::RoceV2
    }

    /// Headers before the BTH; of use if the path [is resolved](Self::is_resolved).
    #[inline]
    pub(crate) fn template(&self) -> &PathTemplate {
        &self.template
    }

    /// Where its packets go now, whether or not it was [refreshed](Self::refresh).
    #[inline]
    pub(crate) fn next_hop(&self, ports: &[PortState]) -> NextHop {
        let Some(port) = ports.get(usize::from(self.port)) else { return NextHop::Failed };
        match self.hop {
            Hop::Local => NextHop::Known(port.config.mac),
            Hop::Group(mac) => NextHop::Known(mac),
            Hop::Neighbour(index) => port.neighbours.next_hop(index),
        }
    }

    /// Headers of a datagram of a QP by way of this station.
    #[inline]
    pub(crate) fn datagram_template(&self, src_qpn: Qpn, station: MacAddr) -> PathTemplate {
        let udp_src_port = if self.ah.flow_label == 0 { source_port_for_qpn(src_qpn) } else { self.udp_src_port };
        self.template.to_station(station, udp_src_port)
    }

    /// Where a frame to a QP at the path's end goes.
    #[inline]
    pub(crate) fn dest(&self, dest_qpn: Qpn) -> Dest {
        if self.hop == Hop::Local { Dest::Local { shard: shard_of(dest_qpn) } } else { Dest::Wire }
    }

    /// The next hop's MAC is known: it can be used.
    #[inline]
    pub(crate) fn is_resolved(&self) -> bool {
        self.is_resolved
    }

    /// The address vector's static rate, bits a second; `None` if it sets none that is slower than the port. IBTA 9.11.
    pub(crate) fn static_rate_bps(&self, ports: &[PortState]) -> Option<u64> {
        let port_mbps = ports.get(usize::from(self.port))?.config.speed_mbps;
        let mbps = static_rate_mbps(self.ah.static_rate).filter(|&mbps| port_mbps == 0 || mbps < port_mbps)?;
        Some(u64::from(mbps) * 1_000_000)
    }

    /// The lane of its packets.
    #[inline]
    pub(crate) fn lane(&self) -> Lane {
        self.lane
    }

    /// The lane of a packet that goes this way with a traffic class, and in a VLAN a priority, of its own.
    pub(crate) fn lane_of_class(&self, map: &PriorityMap, traffic_class: u8, pcp: u8) -> Lane {
        match self.hop {
            Hop::Local => Lane::INSIDE,
            Hop::Group(_) | Hop::Neighbour(_) => {
                let pcp = self.ours.vlan.map(|_| pcp);
                Lane::of_priority(map.priority(traffic_class, pcp))
            }
        }
    }

    /// It goes by this neighbour of this port.
    pub(crate) fn uses_neighbour(&self, port: u8, neighbour: u32) -> bool {
        self.port == port && self.hop == Hop::Neighbour(neighbour)
    }

    /// Its neighbour was asked for in vain, and is left alone for a while.
    pub(crate) fn has_failed(&self, ports: &[PortState]) -> bool {
        match (self.hop, ports.get(usize::from(self.port))) {
            (Hop::Neighbour(index), Some(port)) => port.neighbours.has_failed(index),
            _ => false,
        }
    }

    /// Its headers, for a post-mortem. The path MTU is its owner's to fill in.
    pub(crate) fn facts(&self, ports: &[PortState]) -> Option<PathFacts> {
        let port = ports.get(usize::from(self.port))?;
        let dst_mac = match self.next_hop(ports) {
            NextHop::Known(mac) => Some(mac),
            NextHop::Asked { .. } | NextHop::Failed => None,
        };
        Some(PathFacts {
            port: self.port,
            src_mac: port.config.mac,
            dst_mac,
            src_ip: self.ours.ip,
            dst_ip: self.peer,
            local: self.hop == Hop::Local,
            udp_src_port: self.udp_src_port,
            vlan: self.ours.vlan,
            path_mtu: 0,
            interface_mtu: port.config.interface_mtu,
        })
    }

    /// Port, from 0.
    pub(crate) fn port(&self) -> u8 {
        self.port
    }

    /// The peer's address.
    pub(crate) fn peer(&self) -> IpAddr {
        self.peer
    }

    /// A frame came this way: between these two addresses, in this VLAN and this version of RoCE.
    #[inline]
    pub(crate) fn matches(&self, frame: &Frame<'_>) -> bool {
        frame.src_ip() == self.peer
            && frame.dst_ip() == self.ours.ip
            && frame.is_roce_v1() == (self.ours.gid_type == GidType::RoceV1)
            && PortAddress::vlan_of(frame.vlan()) == self.ours.vlan
    }
}

/// The headers of a path, with no destination MAC yet.
fn path_fields(ah: &AhAttr, ours: &PortAddress, peer: IpAddr, src_mac: MacAddr, udp_src_port: u16) -> PathFields {
    PathFields {
        src_mac,
        dst_mac: MacAddr::ZERO,
        vlan: ours.vlan.map(|vid| VlanTag { pcp: ah.sl, dei: false, vid }),
        src_ip: ours.ip,
        dst_ip: peer,
        traffic_class: ah.traffic_class,
        hop_limit: if ah.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { ah.hop_limit },
        udp_src_port,
        ipv4_ident: 0,
        flow_label: ah.flow_label,
        roce_v1: ours.gid_type == GidType::RoceV1,
    }
}
