//! QP1: management datagrams between the wire and the control side.

use engine::command::{Answer, Command};
use engine::gsi::{GSI_QKEY, MAD_BYTES, MAD_QUEUE, OutgoingMad};
use shm::attr::AhAttr;
use wire::{Frame, Gid, Opcode, Pkey, Qpn, VlanTag};

use crate::peer::{Change, Packet, pattern};
use crate::support::{Connect, Pair};

/// A MAD that side 0's QP1 could send.
fn mad(pair: &Pair) -> Packet {
    let mut packet = pair.packet(0, Opcode::UD_SEND_ONLY, 0).deth(GSI_QKEY, 1).bytes(MAD_BYTES);
    packet.bth.dest_qpn = Qpn::GSI;
    packet
}

fn outgoing(ip: [u8; 4], port_num: u8, bytes: [u8; MAD_BYTES]) -> OutgoingMad {
    OutgoingMad { ah: AhAttr { dgid: Gid::from_ip(ip.into()), port_num, ..AhAttr::default() }, bytes }
}

fn send(pair: &mut Pair, side: usize, mad: OutgoingMad) -> Answer {
    let now = pair.now;
    pair.hosts[side].shard().command(now, Command::SendMad(Box::new(mad)))
}

fn bytes() -> [u8; MAD_BYTES] {
    pattern(MAD_BYTES).try_into().unwrap()
}

#[test]
fn a_mad_comes_to_the_control_side_with_where_it_came_from() {
    let mut pair = Pair::new(Connect::default());
    let mut packet = mad(&pair);
    packet.fields.traffic_class = 0x68;
    packet.fields.vlan = Some(VlanTag { pcp: 5, dei: false, vid: 0 });
    pair.hosts[1].receive(pair.now, &packet.frame());
    let shard = pair.hosts[1].shard();
    assert!(shard.has_mad());
    let found = shard.poll_mad().unwrap();
    assert!(shard.poll_mad().is_none() && !shard.has_mad());
    assert_eq!((found.port, found.sgid_index, found.src_qpn), (0, 0, Qpn::GSI));
    assert_eq!((found.src_gid, found.traffic_class, found.sl), (Gid::from_ip([10, 0, 0, 1].into()), 0x68, 5));
    assert_eq!(found.bytes, bytes());
    assert_eq!(pair.port_counters(1).rx_mad_packets, 1);
}

#[test]
fn what_is_no_mad_is_counted() {
    let cases: [(&str, Change); 8] = [
        ("255 bytes", |p| p.payload.truncate(255)),
        ("260 bytes", |p| p.payload.extend([0; 4])),
        ("with an immediate", |p| {
            p.bth.opcode = Opcode::UD_SEND_ONLY_IMM;
            p.ext.extend([0; 4]);
        }),
        ("a request of RC", |p| {
            p.bth.opcode = Opcode::RC_SEND_ONLY;
            p.ext.clear();
        }),
        ("Q_Key", |p| p.ext[3] ^= 1),
        ("from a user's QP", |p| p.ext[7] = 17),
        ("P_Key", |p| p.bth.pkey = Pkey(0x8001)),
        ("another host's address", |p| p.fields.dst_ip = [10, 0, 0, 9].into()),
    ];
    let mut pair = Pair::new(Connect::default());
    for (name, change) in cases {
        let mut packet = mad(&pair);
        change(&mut packet);
        pair.hosts[1].receive(pair.now, &packet.frame());
        assert!(!pair.hosts[1].shard().has_mad(), "{name}");
    }
    let counters = pair.port_counters(1);
    assert_eq!((counters.rx_bad_mad_packets, counters.rx_bad_pkey, counters.rx_wrong_path), (6, 1, 1));
    assert_eq!((counters.rx_mad_packets, counters.rx_unknown_qpn), (0, 0));
}

#[test]
fn a_control_side_that_is_behind_loses_the_newest() {
    let mut pair = Pair::new(Connect::default());
    for number in 0..MAD_QUEUE + 3 {
        let mut packet = mad(&pair);
        packet.payload[0] = number as u8;
        pair.hosts[1].receive(pair.now, &packet.frame());
    }
    let counters = pair.port_counters(1);
    assert_eq!((counters.rx_mad_packets, counters.rx_lost_mad_packets), (MAD_QUEUE as u64, 3));
    let shard = pair.hosts[1].shard();
    let found: Vec<u8> = std::iter::from_fn(|| shard.poll_mad()).map(|mad| mad.bytes[0]).collect();
    assert!(found.iter().copied().eq((0..MAD_QUEUE).map(|number| number as u8)));
}

#[test]
fn a_mad_goes_out_as_rxe_sends_them() {
    let mut pair = Pair::new(Connect::default());
    for _ in 0..2 {
        assert!(matches!(send(&mut pair, 0, outgoing([10, 0, 0, 2], 1, bytes())), Answer::Done));
    }
    assert!(pair.hosts[0].shard().wants_transmit());
    let frames = pair.hosts[0].turn(pair.now);
    assert!(!pair.hosts[0].shard().wants_transmit());
    assert_eq!(frames.len(), 2);
    for (psn, bytes) in (0..).zip(&frames) {
        let frame = Frame::parse(bytes).unwrap();
        assert!(frame.icrc_ok());
        let (bth, deth) = (frame.bth(), frame.deth().unwrap());
        assert_eq!((bth.opcode, bth.dest_qpn, bth.psn.value()), (Opcode::UD_SEND_ONLY, Qpn::GSI, psn));
        assert_eq!((deth.qkey.0, deth.src_qpn, bth.pkey), (GSI_QKEY, Qpn::GSI, Pkey::DEFAULT));
        // What QP1 of rxe uses: see the captures of rdma_cm.
        assert_eq!(frame.udp_src_port(), Some(0xd872));
        assert_eq!(frame.payload(), pattern(MAD_BYTES));
        pair.hosts[1].receive(pair.now, bytes);
    }
    assert_eq!(pair.hosts[1].shard().poll_mad().unwrap().bytes, bytes());
    assert_eq!((pair.port_counters(0).tx_mad_packets, pair.port_counters(1).rx_mad_packets), (2, 2));
}

#[test]
fn a_mad_to_an_address_of_our_own_comes_back() {
    let mut pair = Pair::new(Connect::default());
    assert!(matches!(send(&mut pair, 0, outgoing([10, 0, 0, 1], 1, bytes())), Answer::Done));
    assert_eq!(pair.hosts[0].turn(pair.now).len(), 0);
    let found = pair.hosts[0].shard().poll_mad().unwrap();
    assert_eq!((found.src_gid, found.bytes), (Gid::from_ip([10, 0, 0, 1].into()), bytes()));
}

#[test]
fn mads_to_a_silent_neighbour_are_dropped_and_others_pass_them() {
    let mut pair = Pair::new(Connect::default());
    assert!(matches!(send(&mut pair, 0, outgoing([10, 0, 0, 99], 1, bytes())), Answer::Done));
    assert!(matches!(send(&mut pair, 0, outgoing([10, 0, 0, 2], 1, bytes())), Answer::Done));
    let frames = pair.hosts[0].turn(pair.now);
    assert_eq!(frames.iter().filter(|frame| Frame::parse(frame).is_ok()).count(), 1);
    assert!(!pair.hosts[0].shard().wants_transmit(), "what waits for ARP needs no turn");
    for _ in 0..4 {
        pair.advance(1_000_000_000);
    }
    let counters = pair.port_counters(0);
    assert_eq!((counters.tx_mad_packets, counters.tx_lost_mad_packets), (1, 1));
}

#[test]
fn more_mads_than_may_wait_are_dropped_and_a_bad_path_is_refused() {
    let mut pair = Pair::new(Connect::default());
    for _ in 0..MAD_QUEUE + 2 {
        assert!(matches!(send(&mut pair, 0, outgoing([10, 0, 0, 99], 1, bytes())), Answer::Done));
    }
    assert_eq!(pair.port_counters(0).tx_lost_mad_packets, 2);
    let mut bad = outgoing([10, 0, 0, 2], 1, bytes());
    bad.ah.sgid_index = 9;
    assert!(matches!(send(&mut pair, 0, bad), Answer::Refused(_)));
    assert!(matches!(send(&mut pair, 0, outgoing([10, 0, 0, 2], 7, bytes())), Answer::Refused(_)));
    assert_eq!(pair.port_counters(0).tx_lost_mad_packets, 3);
    // They hold the neighbour only as long as they wait: 1024 others fit afterwards.
    for _ in 0..4 {
        pair.advance(1_000_000_000);
    }
    assert_eq!(pair.port_counters(0).tx_lost_mad_packets, 3 + MAD_QUEUE as u64);
}
