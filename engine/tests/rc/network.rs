//! Below the transport: neighbours, and packets that are none of a QP's business. Each is counted once, by its own counter,
//! and nothing else happens.

use engine::counters::PortCounters;
use shm::attr::{QpAttr, QpAttrMask, QpState, WrOpcode};
use wire::{ArpOperation, ArpRepr, Bth, EtherType, EthernetRepr, MacAddr, Opcode, Pkey, Psn, Qpn};

use crate::peer::{Packet, done};
use crate::support::{BASE, CAP, Connect, Pair, connect};

const SECOND_NS: u64 = 1_000_000_000;

/// What is wrong, the counter that says so, and how it is done.
type Damage<T> = (&'static str, &'static str, fn(&mut T));

/// The counters that differ, with by how much.
fn difference(before: &PortCounters, after: &PortCounters) -> Vec<(&'static str, u64)> {
    let pairs = before.entries().zip(after.entries());
    pairs.filter(|(b, a)| a.1 != b.1).map(|(b, a)| (b.0, a.1 - b.1)).collect()
}

fn write(pair: &Pair) -> Packet {
    pair.packet(0, Opcode::RC_WRITE_ONLY, 0).reth(BASE + 4096, pair.clients[1].key, 8).bytes(8).ack_req()
}

/// Gives side 1 a frame that must change nothing but `counter` (and the count of RoCE packets, if it is one of these).
#[track_caller]
fn dropped(what: &str, counter: &str, frame: impl FnOnce(&mut Pair) -> Vec<u8>) {
    let mut pair = Pair::new(Connect::default());
    let frame = frame(&mut pair);
    let (before, transport) = (pair.port_counters(1), pair.counters(1));
    pair.hosts[1].receive(pair.now, &frame);
    let said = pair.listen(1);
    assert_eq!(said, [""; 0], "{what}");
    let mut found = difference(&before, &pair.port_counters(1));
    found.retain(|(name, _)| !["rx_roce_packets", "rx_roce_bytes"].contains(name));
    assert_eq!(found, [(counter, 1)], "{what}");
    assert_eq!(pair.counters(1), transport, "{what}: the transport saw nothing");
    assert_eq!(pair.read(1, 4096, 8), [0; 8], "{what}");
    // The QP is well.
    let packet = write(&pair);
    assert_eq!(pair.tell(1, &packet), ["ACK +0 msn 1"], "{what}");
}

#[test]
fn a_packet_that_is_not_the_qp_s_is_counted_and_dropped() {
    let cases: [Damage<Packet>; 15] = [
        ("TVer 1", "rx_bad_tver", |p| p.bth.tver = 1),
        ("P_Key of another partition", "rx_bad_pkey", |p| p.bth.pkey = Pkey(0x1234)),
        ("P_Key 0", "rx_bad_pkey", |p| p.bth.pkey = Pkey(0)),
        ("QPN that does not exist", "rx_unknown_qpn", |p| p.bth.dest_qpn = Qpn::new(4000)),
        ("QPN 0", "rx_unknown_qpn", |p| p.bth.dest_qpn = Qpn::new(0)),
        ("QPN 1, which is the engine's own", "rx_bad_mad_packets", |p| p.bth.dest_qpn = Qpn::new(1)),
        ("multicast QPN", "rx_unknown_qpn", |p| p.bth.dest_qpn = Qpn::new(0xff_ffff)),
        ("the same QP of another shard", "rx_unknown_qpn", |p| {
            p.bth.dest_qpn = Qpn::new(p.bth.dest_qpn.value() | 1 << 20);
        }),
        ("source of another host", "rx_wrong_path", |p| p.fields.src_ip = [10, 0, 0, 9].into()),
        ("destination of another host", "rx_wrong_path", |p| p.fields.dst_ip = [10, 0, 0, 9].into()),
        ("UC", "rx_wrong_service", |p| p.bth.opcode = Opcode::UC_WRITE_ONLY),
        ("XRC", "rx_wrong_service", |p| {
            p.bth.opcode = Opcode::XRC_WRITE_ONLY;
            p.ext.splice(0..0, [0; 4]);
        }),
        ("UD", "rx_wrong_service", |p| {
            p.bth.opcode = Opcode::UD_SEND_ONLY;
            p.ext = vec![0; 8];
        }),
        ("reserved opcode", "rx_unknown_opcode", |p| p.bth.opcode = Opcode(0x15)),
        ("manufacturer's opcode", "rx_unknown_opcode", |p| p.bth.opcode = Opcode(0xc1)),
    ];
    for (what, counter, change) in cases {
        dropped(what, counter, |pair| {
            let mut packet = write(pair);
            change(&mut packet);
            packet.frame()
        });
    }
}

#[test]
fn a_frame_that_was_damaged_is_counted_and_dropped() {
    let cases: [Damage<Vec<u8>>; 11] = [
        ("ICRC", "rx_icrc_encapsulated", |f| *f.last_mut().unwrap() ^= 1),
        ("payload", "rx_icrc_encapsulated", |f| {
            let at = f.len() - 6;
            f[at] ^= 0x80;
        }),
        ("PSN", "rx_icrc_encapsulated", |f| f[53] ^= 1),
        ("AckReq", "rx_icrc_encapsulated", |f| f[50] ^= 0x80),
        ("UDP source port", "rx_icrc_encapsulated", |f| f[34] ^= 1),
        ("IP header", "rx_checksum_err", |f| f[22] ^= 1),
        ("UDP checksum", "rx_checksum_err", |f| f[41] = 1),
        ("UDP length", "rx_malformed_packets", |f| f[39] ^= 1),
        ("cut short", "rx_malformed_packets", |f| f.truncate(f.len() - 1)),
        ("nothing behind the IP header", "rx_malformed_packets", |f| f.truncate(34)),
        ("another protocol", "rx_other_packets", |f| f[13] = 0x42),
    ];
    for (what, counter, damage) in cases {
        dropped(what, counter, |pair| {
            let mut frame = write(pair).frame();
            damage(&mut frame);
            frame
        });
    }
}

#[test]
fn bytes_behind_the_packet_do_not_matter() {
    let mut pair = Pair::new(Connect::default());
    let mut frame = write(&pair).frame();
    frame.extend([0xee; 30]);
    pair.hosts[1].receive(pair.now, &frame);
    assert_eq!(pair.listen(1), ["ACK +0 msn 1"]);
}

#[test]
fn a_cnp_for_a_qp_without_congestion_control_is_ignored() {
    dropped("CNP", "rp_cnp_ignored", |pair| {
        let mut cnp = pair.packet(0, Opcode::CNP, 0);
        cnp.bth = Bth { becn: true, psn: Psn::new(0), ..cnp.bth };
        cnp.payload = vec![0; 16];
        cnp.frame()
    });
}

/// An ARP frame from host `from` of the network, as if it were at `mac`.
fn arp(operation: ArpOperation, from: u8, mac: MacAddr, target: u8) -> Vec<u8> {
    let repr = ArpRepr {
        operation,
        sender_mac: mac,
        sender_ip: [10, 0, 0, from].into(),
        target_mac: MacAddr::ZERO,
        target_ip: [10, 0, 0, target].into(),
    };
    let ethernet = EthernetRepr { dst: MacAddr::BROADCAST, src: mac, ether_type: EtherType::ARP };
    [&ethernet.to_bytes()[..], &repr.to_bytes()].concat()
}

fn parse_arp(frame: &[u8]) -> Option<(EthernetRepr, ArpRepr)> {
    let (head, body) = frame.split_first_chunk()?;
    let ethernet = EthernetRepr::from_bytes(head);
    (ethernet.ether_type == EtherType::ARP).then(|| Some((ethernet, ArpRepr::parse(body)?)))?
}

const STRANGER: MacAddr = MacAddr([2, 9, 9, 9, 9, 9]);

/// Side 0's QP connected to a host that nobody knows yet: 10.0.0.7.
fn pair_towards_a_stranger() -> Pair {
    let mut pair = Pair::new(Connect::default());
    let qp = pair.clients[0].qp(&mut pair.hosts[0], CAP);
    let (session, peer, c) = (pair.clients[0].session, pair.qps[1].qpn, pair.connect);
    connect(&mut pair.hosts[0], session, qp.qpn, [10, 0, 0, 7].into(), peer, c, 0);
    pair.qps[0] = qp;
    pair
}

#[test]
fn traffic_starts_when_the_neighbour_answers() {
    let mut pair = pair_towards_a_stranger();
    let wqe = pair.wqe(1, WrOpcode::RdmaWrite);
    pair.post(wqe, 8);
    let frames = pair.hosts[0].turn(pair.now);
    let [(ethernet, request)] = frames.iter().filter_map(|f| parse_arp(f)).collect::<Vec<_>>()[..] else { panic!() };
    assert_eq!((frames.len(), ethernet.dst, request.operation), (1, MacAddr::BROADCAST, ArpOperation::Request));
    assert_eq!((request.sender_ip, request.target_ip), ([10, 0, 0, 1].into(), [10, 0, 0, 7].into()));
    assert_eq!(pair.figure(0, "neighbour_unresolved"), 1);
    // Somebody else's answer does not help; the timer does not run, since nothing was sent.
    pair.hosts[0].receive(pair.now, &arp(ArpOperation::Reply, 8, STRANGER, 1));
    assert_eq!(pair.listen(0), [""; 0]);
    pair.hosts[0].receive(pair.now, &arp(ArpOperation::Reply, 7, STRANGER, 1));
    let frames = pair.hosts[0].turn(pair.now);
    assert_eq!(frames.len(), 1);
    let frame = wire::Frame::parse(&frames[0]).unwrap();
    assert_eq!((frame.dst_mac(), frame.bth().opcode), (STRANGER, Opcode::RC_WRITE_ONLY));
    assert_eq!(pair.counters(0).local_ack_timeout_err, 0);
}

#[test]
fn a_neighbour_that_moves_takes_the_traffic_along() {
    let mut pair = pair_towards_a_stranger();
    pair.hosts[0].receive(pair.now, &arp(ArpOperation::Reply, 7, STRANGER, 1));
    let moved = MacAddr([2, 7, 7, 7, 7, 7]);
    for mac in [STRANGER, moved] {
        pair.hosts[0].receive(pair.now, &arp(ArpOperation::Reply, 7, mac, 1));
        let wqe = pair.wqe(1, WrOpcode::RdmaWrite);
        pair.post(wqe, 8);
        let frames = pair.hosts[0].turn(pair.now);
        assert_eq!(wire::Frame::parse(&frames[0]).unwrap().dst_mac(), mac);
    }
}

#[test]
fn a_neighbour_that_never_answers_is_asked_again_and_again() {
    let mut pair = pair_towards_a_stranger();
    // Without an acknowledgement timer; with one the QP breaks (`post_mortem`).
    let attr = QpAttr { timeout: 0, qp_state: QpState::Rts, ..QpAttr::default() };
    pair.go_to(0, QpState::Sqd);
    pair.modify(0, QpAttr { qp_state: QpState::Sqd, ..attr }, QpAttrMask::STATE | QpAttrMask::TIMEOUT).unwrap();
    pair.go_to(0, QpState::Rts);
    let wqe = pair.wqe(1, WrOpcode::RdmaWrite);
    pair.post(wqe, 8);
    let mut asked = 0;
    for _ in 0..30 {
        asked += pair.hosts[0].turn(pair.now).len();
        pair.now = pair.now.add_ns(SECOND_NS);
    }
    assert!((6..30).contains(&asked), "{asked} requests in 30 s");
    assert_eq!(pair.failures(0), [], "it waits: its timeout is 0, never");
}

#[test]
fn a_neighbour_is_confirmed_while_traffic_goes_on() {
    let mut pair = Pair::new(Connect::default());
    for i in 0..90 {
        let wqe = pair.wqe(i, WrOpcode::RdmaWrite);
        pair.post(wqe, 8);
        pair.advance(SECOND_NS);
        assert_eq!(pair.failures(0), [done(i)]);
    }
    assert!(pair.port_counters(0).tx_arp_packets >= 4);
    assert_eq!(pair.counters(0).retransmitted_packets, 0);
}

#[test]
fn requests_for_our_address_are_answered_once() {
    let mut pair = Pair::new(Connect::default());
    pair.hosts[1].receive(pair.now, &arp(ArpOperation::Request, 7, STRANGER, 2));
    let frames = pair.hosts[1].turn(pair.now);
    let [(ethernet, reply)] = frames.iter().filter_map(|f| parse_arp(f)).collect::<Vec<_>>()[..] else { panic!() };
    assert_eq!((ethernet.dst, ethernet.src), (STRANGER, MacAddr([2, 0, 0, 0, 0, 2])));
    assert_eq!(
        (reply.operation, reply.sender_ip, reply.target_ip),
        (ArpOperation::Reply, [10, 0, 0, 2].into(), [10, 0, 0, 7].into())
    );
    pair.hosts[1].receive(pair.now, &arp(ArpOperation::Request, 7, STRANGER, 3));
    assert!(pair.hosts[1].turn(pair.now).is_empty(), "not ours");
    // Somebody has our address.
    pair.hosts[1].receive(pair.now, &arp(ArpOperation::Reply, 2, STRANGER, 3));
    assert!(pair.hosts[1].turn(pair.now).is_empty());
    assert_eq!(pair.port_counters(1).arp_address_conflict, 1);
}

#[test]
fn an_answer_waits_for_the_neighbour_too() {
    let mut pair = pair_towards_a_stranger();
    let _ = pair.hosts[0].turn(pair.now);
    // The stranger writes to us before we know where it is.
    let mut packet = pair.packet(1, Opcode::RC_WRITE_ONLY, 0).reth(BASE, pair.clients[0].key, 4).bytes(4).ack_req();
    packet.fields.src_ip = [10, 0, 0, 7].into();
    assert_eq!(pair.tell(0, &packet), [""; 0]);
    pair.hosts[0].receive(pair.now, &arp(ArpOperation::Reply, 7, STRANGER, 1));
    assert_eq!(pair.listen(0), ["ACK +0 msn 1"]);
}
