//! Neighbour Discovery, VLANs and questions: what differs from ARP.

use core::net::Ipv6Addr;

use super::*;
use crate::config::PortAddress;

const OUR_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const PEER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const OUR_LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const PEER_LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
const UNSPECIFIED: Ipv6Addr = Ipv6Addr::UNSPECIFIED;

fn port_v6() -> PortConfig {
    let addresses = [IpAddr::from(OUR_IP), OUR_V6.into(), OUR_LINK_LOCAL.into()].map(PortAddress::from);
    PortConfig { addresses: addresses.to_vec(), ..port() }
}

fn ndp(mac: MacAddr, ndp: NdpRepr) -> NeighPacket {
    NeighPacket { mac, vlan: None, message: NeighMessage::Ndp(ndp) }
}

fn solicitation(src: Ipv6Addr, target: Ipv6Addr, link_layer: Option<MacAddr>) -> NeighPacket {
    let dst = wire::multicast::solicited_node(target);
    ndp(link_layer.unwrap_or(PEER_MAC), NdpRepr { src, dst, message: NdpMessage::Solicitation, target, link_layer })
}

fn advertisement(target: Ipv6Addr, mac: MacAddr, solicited: bool, override_known: bool) -> NeighPacket {
    let message = NdpMessage::Advertisement { router: false, solicited, override_known };
    ndp(mac, NdpRepr { src: target, dst: OUR_V6, message, target, link_layer: Some(mac) })
}

fn hear(table: &mut NeighTable, ms: u64, packet: &NeighPacket) -> NeighOutcome {
    table.handle_packet(at_ms(ms), packet, &port_v6())
}

/// The frame of a packet, read again.
fn through_the_wire(packet: &NeighPacket, src: MacAddr) -> NeighPacket {
    let mut frame = [0; NeighPacket::FRAME_BYTES_MAX];
    assert!(packet.emit(src, &mut frame));
    assert!(!packet.emit(src, &mut { frame }[..packet.frame_len() - 1]), "too short a buffer is refused");
    let frame = &frame[..packet.frame_len()];
    assert!(is_neighbour_packet(frame));
    assert_eq!(frame[..6], packet.mac.0);
    NeighPacket::parse(frame).expect("it is valid")
}

#[test]
fn incomplete_is_asked_for_in_its_group_and_verified_by_unicast() {
    let mut table = NeighTable::new(4);
    let index = table.acquire(key(PEER_V6)).unwrap();
    let [request] = requests(&mut table, 0)[..] else { panic!("one request") };
    let asked = NeighPacket::request(&port_v6(), &request).unwrap();
    assert_eq!(asked.mac, MacAddr([0x33, 0x33, 0xff, 0, 0, 2]));
    assert_eq!(through_the_wire(&asked, OUR_MAC), NeighPacket { mac: OUR_MAC, ..asked });
    let NeighMessage::Ndp(message) = asked.message else { panic!("{asked:?}") };
    assert_eq!((message.src, message.dst), (OUR_V6, "ff02::1:ff00:2".parse().unwrap()));
    assert_eq!((message.target, message.link_layer), (PEER_V6, Some(OUR_MAC)));

    assert_eq!(hear(&mut table, 10, &advertisement(PEER_V6, PEER_MAC, true, true)), changed(index));
    assert_eq!((table.mac(index), table.state(index)), (Some(PEER_MAC), NeighState::Reachable));
    let [request] = requests(&mut table, 30_010)[..] else { panic!("one request") };
    let probe = NeighPacket::request(&port_v6(), &request).unwrap();
    let NeighMessage::Ndp(message) = probe.message else { panic!("{probe:?}") };
    assert_eq!((probe.mac, message.dst), (PEER_MAC, PEER_V6));
}

#[test]
fn the_source_of_a_request_is_most_like_the_neighbour() {
    for (peer, ours) in [
        (IpAddr::V6(PEER_LINK_LOCAL), Some(IpAddr::V6(OUR_LINK_LOCAL))),
        (PEER_V6.into(), Some(OUR_V6.into())),
        (PEER_IP.into(), Some(OUR_IP.into())),
    ] {
        assert_eq!(port_v6().source_for(peer, None), ours);
    }
    assert_eq!(port_v6().source_for(PEER_V6.into(), Some(77)), None);
    assert_eq!(port().source_for(PEER_V6.into(), None), None);
    let request = NeighRequest { target: key(PEER_V6), unicast: None };
    assert_eq!(NeighPacket::request(&port(), &request), None, "nobody asks for IPv6 without an IPv6 address");
}

#[test]
fn solicitation_for_us_is_answered_where_we_answer_and_learned_from() {
    let mut table = NeighTable::new(4);
    let asked = solicitation(PEER_V6, OUR_V6, Some(PEER_MAC));
    let outcome = hear(&mut table, 0, &asked);
    let answer = outcome.reply.expect("an answer");
    assert_eq!((answer.mac, outcome.conflict), (PEER_MAC, false));
    let NeighMessage::Ndp(message) = through_the_wire(&answer, OUR_MAC).message else { panic!("{answer:?}") };
    let expected = NdpMessage::Advertisement { router: false, solicited: true, override_known: true };
    assert_eq!((message.message, message.src, message.dst), (expected, OUR_V6, PEER_V6));
    assert_eq!((message.target, message.link_layer), (OUR_V6, Some(OUR_MAC)));
    assert_eq!(table.iter().collect::<Vec<_>>(), [(PEER_V6.into(), Some(PEER_MAC), NeighState::Reachable)]);

    let silent = PortConfig { answers_arp: false, ..port_v6() };
    assert_eq!(table.handle_packet(Time::ZERO, &asked, &silent).reply, None);
    assert_eq!(hear(&mut table, 0, &solicitation(PEER_LINK_LOCAL, PEER_V6, Some(OTHER_MAC))), UNCHANGED);
    assert_eq!(table.iter().count(), 1, "what is asked of others fills no room");
    // A unicast solicitation may leave the MAC out: the frame has one.
    let answer = hear(&mut table, 0, &solicitation(PEER_LINK_LOCAL, OUR_V6, None)).reply;
    assert_eq!((answer.map(|answer| answer.mac), table.iter().count()), (Some(PEER_MAC), 1));
}

#[test]
fn one_who_tries_our_address_is_a_conflict_and_all_nodes_are_told() {
    let mut table = NeighTable::new(4);
    let outcome = hear(&mut table, 0, &solicitation(UNSPECIFIED, OUR_V6, None));
    let answer = outcome.reply.expect("an answer");
    assert!(outcome.conflict && outcome.changed.is_none() && table.iter().count() == 0);
    let NeighMessage::Ndp(message) = through_the_wire(&answer, OUR_MAC).message else { panic!("{answer:?}") };
    assert_eq!((answer.mac, message.dst), (MacAddr([0x33, 0x33, 0, 0, 0, 1]), "ff02::1".parse().unwrap()));
    assert_eq!(message.message, NdpMessage::Advertisement { router: false, solicited: false, override_known: true });
}

#[test]
fn claims_to_our_address_are_reported_and_ignored() {
    let mut table = NeighTable::new(4);
    let conflict = NeighOutcome { conflict: true, ..UNCHANGED };
    assert_eq!(hear(&mut table, 0, &advertisement(OUR_V6, OTHER_MAC, false, true)), conflict);
    assert_eq!(hear(&mut table, 0, &solicitation(OUR_V6, OUR_LINK_LOCAL, Some(OTHER_MAC))), conflict);
    assert_eq!(hear(&mut table, 0, &advertisement(OUR_V6, OUR_MAC, false, true)), UNCHANGED, "our own, come back");
    assert_eq!(hear(&mut table, 0, &solicitation(OUR_V6, OUR_V6, Some(OUR_MAC))), UNCHANGED);
    assert_eq!(table.iter().count(), 0);
}

#[test]
fn advertisements_override_only_if_they_say_so_and_add_nobody() {
    let mut table = NeighTable::new(4);
    assert_eq!(hear(&mut table, 0, &advertisement(PEER_V6, PEER_MAC, true, true)), UNCHANGED);
    assert_eq!(table.iter().count(), 0);
    let index = table.acquire(key(PEER_V6)).unwrap();
    assert_eq!(hear(&mut table, 0, &advertisement(PEER_V6, PEER_MAC, false, false)), changed(index));
    assert_eq!(hear(&mut table, 1, &advertisement(PEER_V6, OTHER_MAC, true, false)), UNCHANGED);
    assert_eq!(table.mac(index), Some(PEER_MAC));
    assert_eq!(hear(&mut table, 2, &advertisement(PEER_V6, OTHER_MAC, false, true)), changed(index));
    assert_eq!(table.mac(index), Some(OTHER_MAC));
    // Without its MAC an answer still confirms the one that is known.
    run(&mut table, 2, 30_002);
    assert!(matches!(table.state(index), NeighState::Probe { .. }));
    let mut confirmation = advertisement(PEER_V6, OTHER_MAC, true, true);
    let NeighMessage::Ndp(message) = &mut confirmation.message else { unreachable!() };
    message.link_layer = None;
    assert_eq!(hear(&mut table, 30_003, &confirmation), UNCHANGED);
    assert_eq!((table.state(index), table.mac(index)), (NeighState::Reachable, Some(OTHER_MAC)));
    let group = advertisement(PEER_V6, MacAddr([0x33, 0x33, 0, 0, 0, 1]), true, true);
    assert_eq!(hear(&mut table, 30_004, &group), UNCHANGED, "no host has a group's MAC");
    assert_eq!(table.mac(index), Some(OTHER_MAC));
}

#[test]
fn the_same_address_in_two_vlans_is_two_neighbours() {
    let tagged = PortAddress { vlan: Some(77), ..IpAddr::from(OUR_IP).into() };
    let port = PortConfig { addresses: vec![IpAddr::from(OUR_IP).into(), tagged], ..port() };
    let mut table = NeighTable::new(4);
    let untagged = table.acquire(PEER).unwrap();
    let in_vlan = table.acquire(NeighKey { vlan: Some(77), ..PEER }).unwrap();
    assert_ne!(untagged, in_vlan);
    let asked: Vec<_> = requests(&mut table, 0).iter().map(|r| NeighPacket::request(&port, r).unwrap()).collect();
    assert_eq!(asked.iter().map(|packet| packet.vlan).collect::<Vec<_>>(), [None, Some(77)]);
    for packet in &asked {
        assert_eq!(through_the_wire(packet, OUR_MAC), NeighPacket { mac: OUR_MAC, ..*packet });
    }
    let answer = NeighPacket { vlan: Some(77), ..packet(arp(ArpOperation::Reply, PEER_MAC, PEER_IP, OUR_IP)) };
    assert_eq!(table.handle_packet(Time::ZERO, &answer, &port), changed(in_vlan));
    assert_eq!((table.mac(untagged), table.mac(in_vlan)), (None, Some(PEER_MAC)));
}

#[test]
fn a_question_asks_and_keeps_the_answer_for_a_while() {
    let mut table = NeighTable::new(1);
    assert_eq!(table.query(at_ms(0), PEER), Some(Neighbour::Asked));
    assert_eq!(run(&mut table, 0, 999), [(0, BROADCAST)]);
    let reply = packet(arp(ArpOperation::Reply, PEER_MAC, PEER_IP, OUR_IP));
    table.handle_packet(at_ms(1_000), &reply, &port());
    assert_eq!(table.query(at_ms(25_000), PEER), Some(Neighbour::Known(PEER_MAC)));
    assert_eq!(run(&mut table, 25_000, 31_500), [(31_000, UNICAST)], "it is kept right while it is in use");
    table.handle_packet(at_ms(31_500), &reply, &port());
    assert_eq!(run(&mut table, 31_500, 100_000), []);
    assert_eq!(table.iter().count(), 0, "nobody asked again");

    assert_eq!(table.query(at_ms(100_000), PEER), Some(Neighbour::Asked));
    run(&mut table, 100_000, 103_500);
    assert_eq!(table.query(at_ms(103_500), PEER), Some(Neighbour::Failed));
    assert!(table.acquire(key(host(9))).is_some(), "whoever has a path goes first");
    assert_eq!(table.query(at_ms(103_600), PEER), None, "the table is full of neighbours in use");
}

#[test]
fn only_neighbours_packets_look_like_some() {
    for frame in [&[][..], &[0; 13], &[0; 60]] {
        assert!(!is_neighbour_packet(frame) && NeighPacket::parse(frame).is_none(), "{frame:?}");
    }
    let mut frame = [0; NeighPacket::FRAME_BYTES_MAX];
    let packet = solicitation(PEER_V6, OUR_V6, Some(PEER_MAC));
    assert!(packet.emit(PEER_MAC, &mut frame));
    // Traffic class and flow label say nothing here.
    for at in 18..packet.frame_len() {
        let mut damaged = frame;
        damaged[at] ^= 0x41;
        assert_ne!(NeighPacket::parse(&damaged[..packet.frame_len()]), Some(packet), "byte {at}");
    }
    for len in 0..packet.frame_len() {
        assert_eq!(NeighPacket::parse(&frame[..len]), None, "{len} bytes");
    }
}
