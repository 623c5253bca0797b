//! Paths other than IPv4 without a tag: which headers packets get, and which are taken.

use std::net::IpAddr;

use engine::Neighbour;
use engine::command::{Answer, Command, Shards};
use engine::config::PortAddress;
use shm::attr::{AhAttr, GidType, QpAttr, QpAttrMask, QpState, QpType, WrOpcode};
use shm::control::{Reply, Request};
use wire::{Frame, Gid, MacAddr, Opcode, PathMtu, VlanTag};

use crate::peer::{Packet, pattern};
use crate::support::{BASE, CAP, Client, Connect, Host, HostOptions, Pair, attributes, connect, modify, steps};
use crate::transfer::transfer;

fn v4(n: u8) -> IpAddr {
    [10, 0, 0, n].into()
}

fn global(n: u8) -> IpAddr {
    [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)].into()
}

fn link_local(n: u8) -> IpAddr {
    PortAddress::link_local(MacAddr([2, 0, 0, 0, 0, n])).ip
}

/// An entry of host `n`'s GID table.
type Kind = (fn(u8) -> IpAddr, Option<u16>, GidType);

const KINDS: [Kind; 9] = [
    (v4, None, GidType::RoceV2),
    (v4, Some(77), GidType::RoceV2),
    (global, None, GidType::RoceV2),
    (link_local, None, GidType::RoceV2),
    (global, Some(77), GidType::RoceV2),
    (link_local, Some(4094), GidType::RoceV2),
    (v4, None, GidType::RoceV1),
    (global, None, GidType::RoceV1),
    (link_local, Some(77), GidType::RoceV1),
];

/// Host `n` with all of them.
fn options(n: u8) -> HostOptions {
    let addresses = KINDS.map(|(ip, vlan, gid_type)| PortAddress { ip: ip(n), vlan, gid_type });
    HostOptions { addresses: addresses.to_vec(), ..HostOptions::new(n) }
}

/// Connects both QPs of a pair anew by a GID; `change` has the last word on the address vectors.
fn reconnect(pair: &mut Pair, index: usize, change: impl Fn(&mut AhAttr)) {
    for side in 0..2 {
        let (session, qpn) = (pair.clients[side].session, pair.qps[side].qpn);
        let host = &mut pair.hosts[side];
        let reset = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
        modify(host, session, qpn, reset, QpAttrMask::STATE).unwrap();
        let peer = (KINDS[index].0)(2 - side as u8);
        let mut attr = attributes(peer, pair.qps[1 - side].qpn, pair.connect, side);
        attr.ah_attr.sgid_index = index as u8;
        change(&mut attr.ah_attr);
        for (qp_state, mask) in steps(QpType::Rc) {
            modify(host, session, qpn, QpAttr { qp_state, ..attr }, mask).unwrap();
        }
    }
    pair.exchange();
    pair.sent.clear();
}

fn pair_by(index: usize, change: impl Fn(&mut AhAttr)) -> Pair {
    let mut pair = Pair::with(Connect::default(), options(1), options(2), 1 << 20);
    reconnect(&mut pair, index, change);
    pair
}

#[test]
fn every_kind_of_gid_carries_every_kind_of_message() {
    for (index, (ip, vlan, gid_type)) in KINDS.into_iter().enumerate() {
        let ah = |ah: &mut AhAttr| {
            (ah.sl, ah.traffic_class, ah.hop_limit, ah.flow_label) = (5, 0x6a, 9, 0x1_2345);
        };
        let mut pair = pair_by(index, ah);
        for opcode in [WrOpcode::Send, WrOpcode::RdmaWrite, WrOpcode::RdmaRead] {
            transfer(&mut pair, opcode, 5_000);
        }
        assert!(pair.sent.len() > 10);
        for (from, bytes) in &pair.sent {
            let frame = Frame::parse(bytes).unwrap();
            assert!(frame.icrc_ok());
            let from = *from as u8;
            assert_eq!((frame.src_ip(), frame.dst_ip()), (ip(1 + from), ip(2 - from)));
            assert_eq!(frame.vlan(), vlan.map(|vid| VlanTag { pcp: 5, dei: false, vid }));
            assert_eq!(frame.is_roce_v1(), gid_type == GidType::RoceV1);
            assert_eq!((frame.traffic_class(), frame.hop_limit()), (0x6a, 9));
            let port = wire::source_port_for_flow_label(0x1_2345);
            assert_eq!(frame.udp_src_port(), (gid_type == GidType::RoceV2).then_some(port));
            assert_eq!(frame.ipv6().map(|ip| ip.flow_label), frame.ipv4().is_none().then_some(0x1_2345));
        }
    }
}

#[test]
fn a_packet_must_come_with_the_vlan_and_the_version_of_the_path() {
    type Damage = (&'static str, &'static str, fn(&mut Packet));
    let cases: [(usize, &[Damage]); 3] = [
        (
            0,
            &[
                ("another VLAN of the port", "rx_wrong_path", |p| p.fields.vlan = Some(VlanTag::from_tci(77))),
                ("a VLAN of nobody", "rx_unknown_vlan", |p| p.fields.vlan = Some(VlanTag::from_tci(78))),
                ("RoCEv1", "rx_wrong_path", |p| p.fields.roce_v1 = true),
            ],
        ),
        (
            1,
            &[
                ("no VLAN", "rx_wrong_path", |p| p.fields.vlan = None),
                ("a priority without a VLAN", "rx_wrong_path", |p| p.fields.vlan = Some(VlanTag::from_tci(0xe000))),
                ("another VLAN of the port", "rx_wrong_path", |p| p.fields.vlan = Some(VlanTag::from_tci(4094))),
            ],
        ),
        (
            7,
            &[
                ("RoCEv2", "rx_wrong_path", |p| p.fields.roce_v1 = false),
                ("another family", "rx_wrong_path", |p| (p.fields.src_ip, p.fields.dst_ip) = (v4(1), v4(2))),
            ],
        ),
    ];
    for (index, damages) in cases {
        let (ip, vlan, gid_type) = KINDS[index];
        let mut pair = pair_by(index, |_| {});
        let mut packet = pair.packet(0, Opcode::RC_WRITE_ONLY, 0).reth(BASE + 4096, pair.clients[1].key, 8);
        packet = packet.bytes(8).ack_req();
        packet.fields.vlan = vlan.map(VlanTag::from_tci);
        packet.fields.roce_v1 = gid_type == GidType::RoceV1;
        (packet.fields.src_ip, packet.fields.dst_ip) = (ip(1), ip(2));
        for (what, counter, damage) in damages {
            let mut wrong = packet.clone();
            damage(&mut wrong);
            let count = |pair: &mut Pair| pair.port_counters(1).entries().find(|(name, _)| name == counter).unwrap().1;
            let before = count(&mut pair);
            assert_eq!(pair.tell(1, &wrong), [""; 0], "{what}");
            assert_eq!(count(&mut pair), before + 1, "{what}");
        }
        // The priority may be any.
        if let Some(tag) = &mut packet.fields.vlan {
            tag.pcp = 6;
        } else {
            packet.fields.vlan = Some(VlanTag { pcp: 3, dei: false, vid: 0 });
        }
        assert_eq!(pair.tell(1, &packet), ["ACK +0 msn 1"], "{index}");
    }
}

#[test]
fn two_queue_pairs_of_one_engine_meet_by_every_kind_of_gid() {
    for (index, (ip, ..)) in KINDS.into_iter().enumerate() {
        let mut host = Host::new(options(1));
        let mut clients = [Client::new(&mut host, 1 << 16), Client::new(&mut host, 1 << 16)];
        let mut qps = clients.each_mut().map(|client| client.qp(&mut host, CAP));
        for side in 0..2 {
            let c = Connect::default();
            let mut attr = attributes(ip(1), qps[1 - side].qpn, c, side);
            attr.ah_attr.sgid_index = index as u8;
            for (qp_state, mask) in steps(QpType::Rc) {
                let session = clients[side].session;
                modify(&mut host, session, qps[side].qpn, QpAttr { qp_state, ..attr }, mask).unwrap();
            }
        }
        let data = pattern(3_000);
        clients[0].memory.write(0, &data).unwrap();
        let mut wqe = shm::layout::SendWqe { wr_id: 7, opcode: WrOpcode::RdmaWrite as u8, ..Default::default() };
        wqe.flags = shm::attr::SendFlags::SIGNALED.0;
        (wqe.remote_addr, wqe.rkey) = (BASE, clients[1].key);
        qps[0].post(wqe, &[clients[0].sge(0, 3_000)]);
        qps[0].ring();
        for _ in 0..20 {
            assert!(host.turn(engine::Time::ZERO).is_empty(), "nothing leaves the engine");
        }
        assert_eq!(clients[0].poll().iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(), [(7, 0)], "{index}");
        let mut found = vec![0; 3_000];
        clients[1].memory.read(0, &mut found).unwrap();
        assert_eq!(found, data);
    }
}

#[test]
fn the_gid_table_names_kind_and_vlan_of_each_entry() {
    let mut host = Host::new(options(1));
    let client = Client::new(&mut host, 1 << 16);
    let (Reply::Gids(gids), _) = host.request(client.session, Request::QueryGids { port_num: 1 }, vec![]) else {
        panic!()
    };
    let expected =
        KINDS.iter().zip(0..).map(|(&(ip, vlan, gid_type), index)| (Gid::from_ip(ip(1)), index, gid_type, vlan));
    assert_eq!(
        gids.iter().map(|g| (g.gid, g.index, g.gid_type, g.vlan)).collect::<Vec<_>>(),
        expected.collect::<Vec<_>>()
    );
}

#[test]
fn a_path_between_families_or_from_no_gid_is_refused() {
    let mut host = Host::new(options(1));
    let mut client = Client::new(&mut host, 1 << 16);
    let qp = client.qp(&mut host, CAP);
    let [(_, init), (_, rtr), _] = steps(QpType::Rc);
    let mut attr = attributes(global(2), 99, Connect::default(), 0);
    attr.qp_state = QpState::Init;
    modify(&mut host, client.session, qp.qpn, attr, init).unwrap();
    attr.qp_state = QpState::Rtr;
    let sentence = modify(&mut host, client.session, qp.qpn, attr, rtr).unwrap_err();
    assert!(sentence.contains("another address family"), "{sentence}");
    attr.ah_attr.sgid_index = KINDS.len() as u8;
    let sentence = modify(&mut host, client.session, qp.qpn, attr, rtr).unwrap_err();
    assert!(sentence.contains("sgid_index is 9"), "{sentence}");
    attr.ah_attr.sgid_index = 2;
    modify(&mut host, client.session, qp.qpn, attr, rtr).unwrap();
}

#[test]
fn a_neighbour_can_be_asked_about_without_a_path() {
    let mut pair = Pair::with(Connect::default(), options(1), options(2), 1 << 16);
    let ask = |pair: &mut Pair, ip, vlan| {
        let answer = pair.hosts[0].shards.command(0, Command::QueryNeighbour { port: 0, ip, vlan });
        let Answer::Neighbour(found) = answer else { panic!("{answer:?}") };
        found
    };
    for (ip, vlan) in [(global(2), None), (link_local(2), Some(4094)), (v4(2), Some(77))] {
        assert_eq!(ask(&mut pair, ip, vlan), Neighbour::Asked);
        pair.exchange();
        assert_eq!(ask(&mut pair, ip, vlan), Neighbour::Known(MacAddr([2, 0, 0, 0, 0, 2])));
    }
    assert_eq!(ask(&mut pair, global(1), Some(77)), Neighbour::Known(MacAddr([2, 0, 0, 0, 0, 1])), "ourselves");
    assert_eq!(ask(&mut pair, global(9), None), Neighbour::Asked);
    for _ in 0..4 {
        pair.exchange();
        pair.advance(1_000_000_000);
    }
    pair.exchange();
    assert_eq!(ask(&mut pair, global(9), None), Neighbour::Failed);
    let missing = pair.hosts[0].shards.command(0, Command::QueryNeighbour { port: 1, ip: global(9), vlan: None });
    assert!(matches!(missing, Answer::Missing));
}

#[test]
fn a_neighbour_that_is_fixed_is_never_asked_for() {
    let mut pair = Pair::with(Connect::default(), options(1), options(2), 1 << 16);
    let mac = MacAddr([2, 0, 0, 0, 9, 9]);
    let fix = Command::FixNeighbour { port: 0, ip: global(9), vlan: None, mac };
    assert!(matches!(pair.hosts[0].shards.command(0, fix), Answer::Done));
    let before = pair.hosts[0].shards.shards[0].port_counters(0).unwrap().tx_ndp_packets;
    for _ in 0..4 {
        pair.exchange();
        // Longer than an answer of a neighbour that was asked for is trusted.
        pair.advance(60_000_000_000);
    }
    let ask = Command::QueryNeighbour { port: 0, ip: global(9), vlan: None };
    let answer = pair.hosts[0].shards.command(0, ask);
    assert!(matches!(answer, Answer::Neighbour(Neighbour::Known(known)) if known == mac), "{answer:?}");
    assert_eq!(pair.hosts[0].shards.shards[0].port_counters(0).unwrap().tx_ndp_packets, before);
    let nowhere = Command::FixNeighbour { port: 1, ip: global(9), vlan: None, mac };
    assert!(matches!(pair.hosts[0].shards.command(0, nowhere), Answer::Missing));
}

#[test]
fn the_active_mtu_is_what_the_interface_has_room_for() {
    for (interface_mtu, bytes) in
        [(576, 256), (1_103, 512), (1_500, 1024), (2_128, 2048), (4_175, 2048), (4_176, 4096), (9_000, 4096)]
    {
        let mut host = Host::new(HostOptions { interface_mtu, ..options(1) });
        let mut client = Client::new(&mut host, 1 << 16);
        let (Reply::Port(port), _) = host.request(client.session, Request::QueryPort { port_num: 1 }, vec![]) else {
            panic!()
        };
        assert_eq!(PathMtu::from_code(port.active_mtu).map(PathMtu::bytes), Some(bytes), "{interface_mtu}");
        let qp = client.qp(&mut host, CAP);
        let (session, wanted) = (client.session, Connect { path_mtu: port.active_mtu + 1, ..Connect::default() });
        let [(_, init), (_, rtr), _] = steps(QpType::Rc);
        let attr = QpAttr { qp_state: QpState::Init, ..attributes(v4(2), 99, wanted, 0) };
        modify(&mut host, session, qp.qpn, attr, init).unwrap();
        let too_long = modify(&mut host, session, qp.qpn, QpAttr { qp_state: QpState::Rtr, ..attr }, rtr).unwrap_err();
        assert!(too_long.contains("path_mtu"), "{too_long}");
        let c = Connect { path_mtu: port.active_mtu, ..Connect::default() };
        let other = client.qp(&mut host, CAP);
        connect(&mut host, session, other.qpn, v4(2), 99, c, 0);
    }
}
