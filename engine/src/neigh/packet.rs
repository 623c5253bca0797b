//! The packets by which neighbours find each other, as frames: ARP, and the two messages of Neighbour Discovery.

use core::net::{IpAddr, Ipv6Addr};

use wire::multicast::{group_mac, solicited_node};
use wire::ndp::NEXT_HEADER_ICMPV6;
use wire::{ArpOperation, ArpRepr, EtherType, EthernetRepr, Ipv6Repr, MacAddr, NdpMessage, NdpRepr, VlanRepr, VlanTag};

use super::NeighRequest;
use crate::config::{PortAddress, PortConfig};

/// What a neighbour says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NeighMessage {
    /// About IPv4.
    Arp(ArpRepr),
    /// About IPv6.
    Ndp(NdpRepr),
}

/// A packet between neighbours, without its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NeighPacket {
    /// The Ethernet address at its other end: the receiver's of a packet to send, the sender's of one that came.
    pub(crate) mac: MacAddr,
    /// The VLAN it is in.
    pub(crate) vlan: Option<u16>,
    /// What it says.
    pub(crate) message: NeighMessage,
}

/// Whether a frame may be one of a neighbour's, by the types in its headers only: which every shard must see.
#[inline]
pub fn is_neighbour_packet(frame: &[u8]) -> bool {
    split_link_layer(frame).is_some_and(|(_, _, ether_type, body)| match ether_type {
        EtherType::ARP => true,
        EtherType::IPV6 => {
            body.first_chunk().is_some_and(|ip| Ipv6Repr::from_bytes(ip).next_header == NEXT_HEADER_ICMPV6)
        }
        _ => false,
    })
}

/// Sender, VLAN and type of a frame, and what follows.
#[inline]
fn split_link_layer(frame: &[u8]) -> Option<(MacAddr, Option<u16>, EtherType, &[u8])> {
    let (head, body) = frame.split_first_chunk::<{ EthernetRepr::LEN }>()?;
    let EthernetRepr { src, ether_type, .. } = EthernetRepr::from_bytes(head);
    if ether_type != EtherType::VLAN {
        return Some((src, None, ether_type, body));
    }
    let VlanRepr { tag, ether_type } = VlanRepr::parse(body)?;
    Some((src, PortAddress::vlan_of(Some(tag)), ether_type, body.get(VlanRepr::LEN..)?))
}

impl NeighPacket {
    /// Length of the longest frame that [`emit`](Self::emit) writes.
    #[cfg(test)]
    pub(crate) const FRAME_BYTES_MAX: usize = EthernetRepr::LEN + VlanRepr::LEN + NdpRepr::LEN_MAX;

    /// Decodes a frame; `None` if it is no valid packet of a neighbour.
    pub(crate) fn parse(frame: &[u8]) -> Option<Self> {
        let (mac, vlan, ether_type, body) = split_link_layer(frame)?;
        let message = match ether_type {
            EtherType::ARP => NeighMessage::Arp(ArpRepr::parse(body)?),
            EtherType::IPV6 => NeighMessage::Ndp(NdpRepr::parse(body)?),
            _ => return None,
        };
        Some(Self { mac, vlan, message })
    }

    /// The packet that asks for a neighbour's MAC; `None` if the port has no address to ask from.
    pub(crate) fn request(port: &PortConfig, request: &NeighRequest) -> Option<Self> {
        let NeighRequest { target, unicast } = *request;
        let ours = port.source_for(target.ip, target.vlan)?;
        let (mac, message) = match (ours, target.ip) {
            (IpAddr::V4(sender_ip), IpAddr::V4(target_ip)) => {
                let arp = ArpRepr {
                    operation: ArpOperation::Request,
                    sender_mac: port.mac,
                    sender_ip,
                    target_mac: MacAddr::ZERO,
                    target_ip,
                };
                (unicast.unwrap_or(MacAddr::BROADCAST), NeighMessage::Arp(arp))
            }
            (IpAddr::V6(src), IpAddr::V6(target)) => {
                let dst = if unicast.is_some() { target } else { solicited_node(target) };
                let ndp = NdpRepr {
                    src,
                    dst,
                    message: NdpMessage::Solicitation,
                    target,
                    // Whoever answers need not ask for us first (RFC 4861 4.3).
                    link_layer: Some(port.mac),
                };
                (unicast.or_else(|| group_mac(dst.into()))?, NeighMessage::Ndp(ndp))
            }
            _ => return None,
        };
        Some(Self { mac, vlan: target.vlan, message })
    }

    /// The answer to a solicitation for an address of ours that came from `to`. One who tries whether the address is free
    /// has none yet: all nodes are told. RFC 4861 7.2.4.
    pub(super) fn advertisement(
        port: &PortConfig,
        target: Ipv6Addr,
        vlan: Option<u16>,
        to: (Ipv6Addr, MacAddr),
    ) -> Self {
        let all_nodes = (Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), MacAddr([0x33, 0x33, 0, 0, 0, 1]));
        let solicited = !to.0.is_unspecified();
        let (dst, mac) = if solicited { to } else { all_nodes };
        let message = NdpMessage::Advertisement { router: false, solicited, override_known: true };
        let ndp = NdpRepr { src: target, dst, message, target, link_layer: Some(port.mac) };
        Self { mac, vlan, message: NeighMessage::Ndp(ndp) }
    }

    /// Bytes of its frame.
    pub(crate) fn frame_len(&self) -> usize {
        let tag_len = if self.vlan.is_some() { VlanRepr::LEN } else { 0 };
        let body_len = match &self.message {
            NeighMessage::Arp(_) => ArpRepr::LEN,
            NeighMessage::Ndp(ndp) => ndp.packet_len(),
        };
        EthernetRepr::LEN + tag_len + body_len
    }

    /// Writes the frame at the start of `buf`. False if it is too short.
    pub(crate) fn emit(&self, src: MacAddr, buf: &mut [u8]) -> bool {
        self.try_emit(src, buf).is_some()
    }

    fn try_emit(&self, src: MacAddr, buf: &mut [u8]) -> Option<()> {
        let ether_type = match self.message {
            NeighMessage::Arp(_) => EtherType::ARP,
            NeighMessage::Ndp(_) => EtherType::IPV6,
        };
        let first_type = if self.vlan.is_some() { EtherType::VLAN } else { ether_type };
        let (head, mut body) = buf.split_first_chunk_mut::<{ EthernetRepr::LEN }>()?;
        *head = EthernetRepr { dst: self.mac, src, ether_type: first_type }.to_bytes();
        if let Some(vid) = self.vlan {
            let (tag, rest) = body.split_first_chunk_mut::<{ VlanRepr::LEN }>()?;
            *tag = VlanRepr { tag: VlanTag { pcp: 0, dei: false, vid }, ether_type }.to_bytes();
            body = rest;
        }
        match self.message {
            NeighMessage::Arp(arp) => *body.first_chunk_mut()? = arp.to_bytes(),
            NeighMessage::Ndp(ndp) => drop(ndp.emit(body)?),
        }
        Some(())
    }
}
