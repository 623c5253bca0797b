//! Unreliable datagrams, and the address handles that say where they go.

use std::net::IpAddr;

use engine::ErrorCause;
use shm::attr::{AhAttr, QpAttr, QpAttrMask, QpState, QpType, SendFlags, SrqAttr, WcFlags, WcStatus, WrOpcode};
use shm::control::{Reply, Request};
use shm::layout::SendWqe;
use wire::{Frame, Gid, MacAddr, Opcode, Pkey};

use crate::peer::{Change, Packet, done, failed, flushed, pattern};
use crate::support::{CAP, Client, Connect, Host, HostOptions, Pair, TestQp, connect};

const QKEY: u32 = 0x1111_1111;
/// The path MTU of an interface of 9000 bytes.
const MTU: u32 = 4096;

fn pair() -> Pair {
    Pair::new(Connect { kind: QpType::Ud, ..Connect::default() })
}

fn vector(ip: impl Into<IpAddr>) -> AhAttr {
    AhAttr { dgid: Gid::from_ip(ip.into()), port_num: 1, ..AhAttr::default() }
}

fn create_ah(pair: &mut Pair, side: usize, attr: AhAttr) -> u32 {
    let pd = pair.clients[side].pd;
    match pair.ask(side, Request::CreateAh { pd, attr }) {
        Reply::Handle(ah) => ah,
        other => panic!("{other:?}"),
    }
}

/// An address handle of side 0 for side 1, which has answered.
fn handle(pair: &mut Pair) -> u32 {
    let ip = pair.hosts[1].ip;
    let ah = create_ah(pair, 0, vector(ip));
    pair.exchange();
    pair.sent.clear();
    ah
}

/// A signalled datagram of side 0 to side 1's QP.
fn datagram(pair: &Pair, wr_id: u64, ah: u32) -> SendWqe {
    SendWqe {
        wr_id,
        opcode: WrOpcode::Send as u8,
        flags: SendFlags::SIGNALED.0,
        rkey: pair.qps[1].qpn,
        remote_addr: QKEY.into(),
        compare_add: ah.into(),
        ..SendWqe::default()
    }
}

/// A datagram that side 0 could send.
fn packet(pair: &Pair, length: usize) -> Packet {
    pair.packet(0, Opcode::UD_SEND_ONLY, 0).deth(QKEY, pair.qps[0].qpn).bytes(length)
}

#[test]
fn a_datagram_arrives_behind_40_bytes_of_network_header() {
    let mut pair = pair();
    let ah = create_ah(&mut pair, 0, AhAttr { traffic_class: 0x62, hop_limit: 9, ..vector([10, 0, 0, 2]) });
    for length in [0, 1, 255, MTU] {
        pair.write(0, 0, &pattern(length as usize));
        pair.receive(1, MTU + 40);
        let wqe = datagram(&pair, 2, ah);
        pair.post(wqe, length);
        pair.exchange();
        assert_eq!(pair.failures(0), [done(2)]);
        let found = pair.clients[1].poll();
        let [cqe] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((cqe.wr_id, cqe.byte_len, cqe.flags), (1, length + 40, WcFlags::GRH.0), "{length}");
        assert_eq!((cqe.src_qpn, cqe.qpn, cqe.pkey_index, cqe.sl), (pair.qps[0].qpn, pair.qps[1].qpn, 0, 0));
        let grh = pair.read(1, 65_536, 40);
        assert_eq!(grh[..20], [0; 20]);
        assert_eq!((grh[20], grh[21], grh[28]), (0x45, 0x62, 9), "the IPv4 header as it came");
        assert_eq!((&grh[32..36], &grh[36..40]), (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..]));
        assert!(pair.read(1, 65_536 + 40, length as usize) == pattern(length as usize));
        let sent = std::mem::take(&mut pair.sent);
        let frames: Vec<_> =
            sent.iter().filter_map(|(from, bytes)| Frame::parse(bytes).ok().map(|f| (from, f))).collect();
        let [(0, frame)] = frames.as_slice() else { panic!() };
        assert!(!frame.bth().ack_req && frame.icrc_ok());
    }
    assert_eq!(pair.figure(0, "next_psn"), u64::from(pair.connect.psn[0]) + 4, "each takes a PSN");
}

#[test]
fn immediates_solicited_events_inline_data_and_several_sges_go_along() {
    let mut pair = pair();
    let ah = handle(&mut pair);
    pair.receive(1, 4096);
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED | SendFlags::INLINE;
    let wqe = datagram(&pair, 1, ah);
    let wqe = SendWqe { opcode: WrOpcode::SendWithImm as u8, flags: flags.0, imm: 0x0102_0304u32.to_be(), ..wqe };
    pair.qps[0].post_inline(wqe, b"hello");
    pair.write(0, 0, &pattern(300));
    let sges = [pair.clients[0].sge(0, 100), pair.clients[0].sge(100, 0), pair.clients[0].sge(100, 200)];
    let wqe = datagram(&pair, 2, ah);
    pair.qps[0].post(wqe, &sges);
    let split = [pair.clients[1].sge(8192, 50), pair.clients[1].sge(10_000, 290)];
    pair.qps[1].post_recv(2, &split);
    pair.exchange();
    let solicited: Vec<bool> =
        pair.sent.iter().filter_map(|(_, f)| Frame::parse(f).ok()).map(|f| f.bth().solicited).collect();
    assert_eq!(solicited, [true, false]);
    let found: Vec<_> = pair.clients[1].poll().iter().map(|c| (c.wr_id, c.byte_len, c.flags, c.imm)).collect();
    let with_imm = WcFlags::GRH.0 | WcFlags::WITH_IMM.0;
    assert_eq!(found, [(1, 45, with_imm, 0x0102_0304u32.to_be()), (2, 340, WcFlags::GRH.0, 0)]);
    assert_eq!(pair.read(1, 65_576, 5), b"hello");
    let data = [pair.read(1, 8192 + 40, 10), pair.read(1, 10_000, 290)].concat();
    assert!(data == pattern(300), "10 bytes behind the header, the rest in the second piece");
    assert_eq!(pair.failures(0), [done(1), done(2)]);
}

#[test]
fn the_source_port_is_the_qps_own_unless_the_address_vector_has_a_flow_label() {
    let mut pair = pair();
    let labelled = create_ah(&mut pair, 0, AhAttr { flow_label: 0x12345, ..vector([10, 0, 0, 2]) });
    let plain = handle(&mut pair);
    for (ah, port) in [(plain, wire::source_port_for_qpn(wire::Qpn::new(pair.qps[0].qpn))), (labelled, 58_177)] {
        let wqe = datagram(&pair, 1, ah);
        pair.post(wqe, 8);
        let frames = pair.hosts[0].turn(pair.now);
        assert_eq!(Frame::parse(&frames[0]).unwrap().udp_src_port(), Some(port));
    }
}

#[test]
fn a_qkey_with_the_top_bit_stands_for_the_qps_own() {
    let mut pair = pair();
    let ah = handle(&mut pair);
    for (wanted, found) in [(0x8000_0000, QKEY), (u32::MAX, QKEY), (0x7fff_ffff, 0x7fff_ffff), (0, 0)] {
        let wqe = SendWqe { remote_addr: wanted.into(), ..datagram(&pair, 1, ah) };
        pair.post(wqe, 8);
        let frames = pair.hosts[0].turn(pair.now);
        assert_eq!(Frame::parse(&frames[0]).unwrap().deth().unwrap().qkey.0, found, "{wanted:#x}");
    }
}

#[test]
fn only_user_0_sets_a_qkey_with_the_top_bit() {
    let mut pair = pair();
    let (session, qpn) = (pair.clients[0].session, pair.qps[0].qpn);
    let attr = QpAttr { qkey: 0x8001_0000, ..QpAttr::default() };
    let request = Request::ModifyQp { qpn, attr, mask: QpAttrMask::QKEY };
    let (reply, _) = pair.hosts[0].request(session, request.clone(), vec![]);
    let message = "Q_Key 0x80010000 has its top bit set: only user 0 may set such a one".to_owned();
    assert_eq!(reply, Reply::Refused { errno: 1, message });
    let mut root = Host::new(HostOptions::new(3));
    let session = root.control.open_session(engine::control::Peer { pid: 1, uid: 0 }).unwrap();
    let hello = Request::Hello { abi_version: shm::ABI_VERSION, client_name: String::new() };
    assert!(matches!(root.request(session, hello, vec![]).0, Reply::Hello { .. }));
    let Reply::Refused { errno, .. } = root.request(session, request, vec![]).0 else { panic!() };
    assert_eq!(errno, 22, "not for that, but since the QP is another session's");
}

#[test]
fn what_is_not_for_the_qp_is_counted() {
    let mut pair = pair();
    pair.receive(1, 4096);
    let cases: [(&str, Change); 6] = [
        ("Q_Key", |p| p.ext[0] ^= 1),
        ("P_Key", |p| p.bth.pkey = Pkey(0x8001)),
        ("address", |p| p.fields.dst_ip = [10, 0, 0, 9].into()),
        ("group", |p| p.fields.dst_ip = [239, 1, 1, 1].into()),
        ("RC", |p| {
            p.bth.opcode = Opcode::RC_SEND_ONLY;
            p.ext.clear();
        }),
        ("UC", |p| {
            p.bth.opcode = Opcode::UC_SEND_ONLY;
            p.ext.clear();
        }),
    ];
    for (name, change) in cases {
        let mut wrong = packet(&pair, 8);
        change(&mut wrong);
        assert_eq!(pair.tell(1, &wrong), [""; 0], "{name}");
        assert_eq!(pair.failures(1), [], "{name}");
    }
    let c = pair.port_counters(1);
    assert_eq!((c.rx_bad_qkey, c.rx_bad_pkey, c.rx_wrong_path, c.rx_wrong_service), (1, 1, 2, 2));
    // From any host, any QP, with any PSN: it is taken.
    let mut stranger = packet(&pair, 8);
    stranger.fields.src_ip = [192, 168, 7, 7].into();
    stranger.bth.psn = stranger.bth.psn.add(0x7f_0000);
    assert_eq!(pair.tell(1, &stranger), [""; 0]);
    assert_eq!(pair.failures(1), [done(1)]);
}

#[test]
fn without_a_receive_or_with_one_that_is_too_short_a_datagram_is_lost() {
    let mut pair = pair();
    let eight = packet(&pair, 8);
    assert_eq!(pair.tell(1, &eight), [""; 0]);
    assert_eq!(pair.counters(1).ud_no_receive, 1);
    pair.receive(1, 47);
    assert_eq!(pair.tell(1, &eight), [""; 0]);
    assert_eq!((pair.counters(1).ud_dropped_packets, pair.failures(1)), (1, vec![]));
    // The receive is still there, for one that fits.
    let seven = packet(&pair, 7);
    assert_eq!(pair.tell(1, &seven), [""; 0]);
    assert_eq!((pair.failures(1), pair.state(1)), (vec![done(1)], QpState::Rts));
}

#[test]
fn a_receive_that_is_no_good_breaks_the_qp() {
    let mut pair = pair();
    let mut sge = pair.clients[1].sge(0, 64);
    sge.lkey ^= 0x100;
    pair.qps[1].post_recv(1, &[sge]);
    pair.receive(2, 64);
    let eight = packet(&pair, 8);
    assert_eq!(pair.tell(1, &eight), [""; 0]);
    assert_eq!(pair.failures(1), [failed(1, WcStatus::LocProtErr, ErrorCause::BadReceive), flushed(2)]);
    assert_eq!(pair.state(1), QpState::Err);
}

#[test]
fn receives_may_come_from_an_srq() {
    let mut pair = pair();
    let attr = SrqAttr { max_wr: 8, max_sge: 1, srq_limit: 0 };
    let (srq, mut poster, _) = pair.clients[1].srq(&mut pair.hosts[1], attr);
    for wr_id in 0..2 {
        poster.post(wr_id, &[pair.clients[1].sge(65_536, 1024)]).unwrap();
    }
    poster.publish();
    let client = &mut pair.clients[1];
    let (pd, send_cq, recv_cq, qp_type) = (client.pd, client.cq, client.cq, QpType::Ud);
    let request = Request::CreateQp { pd, qp_type, send_cq, recv_cq, srq: Some(srq), cap: CAP, sq_sig_all: false };
    pair.qps[1] = client.qp_from(&mut pair.hosts[1], request);
    let c = pair.connect;
    connect(&mut pair.hosts[1], pair.clients[1].session, pair.qps[1].qpn, IpAddr::from([0; 4]), 0, c, 1);
    let ah = handle(&mut pair);
    for wr_id in 0..3 {
        let wqe = datagram(&pair, wr_id, ah);
        pair.post(wqe, 8);
    }
    pair.exchange();
    assert_eq!(pair.failures(1), [done(0), done(1)]);
    assert_eq!(pair.counters(1).ud_no_receive, 1);
}

#[test]
fn a_wrong_work_request_stops_the_send_queue() {
    let mut pair = pair();
    let ah = handle(&mut pair);
    let stale = create_ah(&mut pair, 0, vector([10, 0, 0, 2]));
    assert_eq!(pair.ask(0, Request::DestroyAh { ah: stale }), Reply::Done);
    let pd = pair.pd(0);
    let Reply::Handle(foreign) = pair.ask(0, Request::CreateAh { pd, attr: vector([10, 0, 0, 2]) }) else { panic!() };
    let bad_ah = |ah: u64| (ah, 8, WrOpcode::Send, WcStatus::LocQpOpErr, ErrorCause::BadAddressHandle);
    let table = [
        (ah.into(), MTU + 1, WrOpcode::Send, WcStatus::LocLenErr, ErrorCause::DatagramTooLong),
        (ah.into(), 8, WrOpcode::RdmaWrite, WcStatus::LocQpOpErr, ErrorCause::BadOpcode),
        (ah.into(), 8, WrOpcode::RdmaWriteWithImm, WcStatus::LocQpOpErr, ErrorCause::BadOpcode),
        (ah.into(), 8, WrOpcode::SendWithInv, WcStatus::LocQpOpErr, ErrorCause::BadOpcode),
        (ah.into(), 8, WrOpcode::RdmaRead, WcStatus::LocQpOpErr, ErrorCause::BadOpcode),
        bad_ah(stale.into()),
        bad_ah(foreign.into()),
        bad_ah(u64::from(ah) ^ 1),
        bad_ah(u64::from(ah) | 1 << 32),
        bad_ah(u64::MAX),
        bad_ah(0xffff_ff00),
    ];
    for (handle, length, opcode, status, cause) in table {
        let wqe = SendWqe { compare_add: handle, opcode: opcode as u8, ..datagram(&pair, 1, ah) };
        pair.post(wqe, length);
        let next = datagram(&pair, 2, ah);
        pair.post(next, 8);
        pair.exchange();
        assert_eq!(pair.failures(0), [failed(1, status, cause), flushed(2)], "{opcode} by {handle:#x}");
        assert_eq!(pair.state(0), QpState::Sqe);
        pair.go_to(0, QpState::Rts);
    }
    let mut sge = pair.clients[0].sge(0, 8);
    sge.lkey ^= 0x100;
    let wqe = datagram(&pair, 1, ah);
    pair.qps[0].post(wqe, &[sge]);
    pair.exchange();
    assert_eq!(pair.failures(0), [failed(1, WcStatus::LocProtErr, ErrorCause::UnknownKey)]);
    pair.go_to(0, QpState::Rts);
    pair.receive(1, 4096);
    let wqe = datagram(&pair, 3, ah);
    pair.post(wqe, 8);
    pair.exchange();
    assert_eq!((pair.failures(0), pair.failures(1)), (vec![done(3)], vec![done(1)]));
}

#[test]
fn two_qps_of_one_engine_exchange_datagrams_by_memory() {
    for shard_count in [1, 3] {
        let mut host = Host::new(HostOptions { shard_count, ..HostOptions::new(1) });
        let mut clients = [Client::new(&mut host, 1 << 16), Client::new(&mut host, 1 << 16)];
        let c = Connect { kind: QpType::Ud, ..Connect::default() };
        let mut qps: [TestQp; 2] = clients.each_mut().map(|client| client.qp_of(&mut host, QpType::Ud, CAP));
        for (client, qp) in clients.iter().zip(&qps) {
            connect(&mut host, client.session, qp.qpn, IpAddr::from([0; 4]), 0, c, 0);
        }
        let attr = vector([10, 0, 0, 1]);
        let request = Request::CreateAh { pd: clients[0].pd, attr };
        let Reply::Handle(ah) = host.request(clients[0].session, request, vec![]).0 else { panic!() };
        let sge = clients[1].sge(0, 1024);
        qps[1].post_recv(5, &[sge]);
        clients[0].memory.write(0, &pattern(100)).unwrap();
        // The last names a QP of a shard that does not exist.
        for dest in [qps[1].qpn, qps[1].qpn + 1, 0xff_0000 | qps[1].qpn] {
            let wqe = SendWqe { rkey: dest, remote_addr: QKEY.into(), compare_add: ah.into(), ..SendWqe::default() };
            let (opcode, flags) = (WrOpcode::Send as u8, SendFlags::SIGNALED.0);
            let sge = clients[0].sge(0, 100);
            qps[0].post(SendWqe { opcode, flags, ..wqe }, &[sge]);
        }
        assert_eq!(host.turn(engine::Time::ZERO).len(), 0);
        assert_eq!(clients[0].poll().len(), 3);
        let found: Vec<_> = clients[1].poll().iter().map(|c| (c.wr_id, c.byte_len, c.src_qpn)).collect();
        assert_eq!(found, [(5, 140, qps[0].qpn)], "{shard_count} shards");
    }
}

#[test]
fn datagrams_wait_for_their_neighbour_once_and_are_lost_if_it_does_not_answer() {
    let mut pair = pair();
    let (silent, ah) =
        (create_ah(&mut pair, 0, vector([10, 0, 0, 99])), create_ah(&mut pair, 0, vector([10, 0, 0, 2])));
    for (wr_id, ah) in [(1, silent), (2, ah), (3, silent)] {
        let wqe = datagram(&pair, wr_id, ah);
        pair.post(wqe, 8);
    }
    pair.receive(1, 4096);
    pair.exchange();
    assert_eq!((pair.failures(0), pair.failures(1)), (vec![], vec![]), "the first waits, and all behind it");
    let mut waited_ms = 0;
    while pair.failures(1).is_empty() {
        pair.advance(50_000_000);
        waited_ms += 50;
        assert!(waited_ms <= 3_200, "for ever");
    }
    assert!(waited_ms >= 3_000, "three requests a second apart: {waited_ms} ms");
    let done_all: Vec<_> = (1..4).map(done).collect();
    assert_eq!(pair.failures(0), done_all, "a datagram may be lost");
    assert_eq!(pair.counters(0).ud_unreachable, 2);
    // While it is silent nobody waits for it again, also when it is asked again.
    for round in 0..20 {
        pair.advance(500_000_000);
        pair.receive(9, 4096);
        for (wr_id, ah) in [(1, silent), (2, ah)] {
            let wqe = datagram(&pair, wr_id, ah);
            pair.post(wqe, 8);
        }
        pair.exchange();
        assert_eq!((pair.failures(0), pair.failures(1)), (vec![done(1), done(2)], vec![done(9)]), "round {round}");
    }
}

#[test]
fn an_answer_of_the_neighbour_lets_a_datagram_go_at_once() {
    let mut pair = pair();
    let ah = create_ah(&mut pair, 0, vector([10, 0, 0, 2]));
    let wqe = datagram(&pair, 1, ah);
    pair.post(wqe, 8);
    let asked = pair.hosts[0].turn(pair.now);
    assert_eq!(pair.failures(0), []);
    for frame in asked {
        pair.hosts[1].receive(pair.now, &frame);
    }
    let answer = pair.hosts[1].turn(pair.now);
    pair.hosts[0].receive(pair.now, &answer[0]);
    assert_eq!(pair.listen(0).len(), 1);
    assert_eq!(pair.failures(0), [done(1)]);
}

#[test]
fn a_handle_that_goes_while_its_datagram_waits_fails_it() {
    let mut pair = pair();
    let ah = create_ah(&mut pair, 0, vector([10, 0, 0, 99]));
    let wqe = datagram(&pair, 1, ah);
    pair.post(wqe, 8);
    pair.exchange();
    assert_eq!(pair.ask(0, Request::DestroyAh { ah }), Reply::Done);
    pair.advance(200_000_000);
    assert_eq!(pair.failures(0), [failed(1, WcStatus::LocQpOpErr, ErrorCause::BadAddressHandle)]);
}

#[test]
fn a_multicast_group_needs_no_neighbour() {
    let mut pair = pair();
    let ah = create_ah(&mut pair, 0, vector([239, 77, 0, 1]));
    let wqe = SendWqe { rkey: 0xff_ffff, ..datagram(&pair, 1, ah) };
    pair.post(wqe, 8);
    let frames = pair.hosts[0].turn(pair.now);
    let frame = Frame::parse(&frames[0]).unwrap();
    assert_eq!(frame.dst_mac(), MacAddr([0x01, 0x00, 0x5e, 0x4d, 0x00, 0x01]));
    assert_eq!((frame.dst_ip(), frame.bth().dest_qpn.value()), ([239, 77, 0, 1].into(), 0xff_ffff));
    assert_eq!(pair.failures(0), [done(1)]);
}

/// Runs side 0 from one deadline to the next until `until`: when it sent how many bytes.
fn run(pair: &mut Pair, until: u64) -> Vec<(u64, usize)> {
    let mut sent = Vec::new();
    while pair.now.as_ns() <= until {
        for frame in pair.hosts[0].turn(pair.now) {
            sent.push((pair.now.as_ns(), frame.len()));
        }
        if !pair.hosts[0].shard().wants_transmit() {
            pair.now = pair.hosts[0].shard().next_deadline().max(pair.now.add_ns(1));
        }
    }
    pair.now = engine::Time::from_ns(until);
    sent
}

#[test]
fn a_static_rate_holds_for_all_that_goes_by_its_handle_and_for_nothing_else() {
    // 2.5 Gb/s, on a port of 100 Gb/s.
    const CODE: u8 = 2;
    let mut pair = pair();
    let plain = handle(&mut pair);
    let ip = pair.hosts[1].ip;
    let slow = create_ah(&mut pair, 0, AhAttr { static_rate: CODE, ..vector(ip) });
    let faster_than_the_port = create_ah(&mut pair, 0, AhAttr { static_rate: 17, ..vector(ip) });
    let other = pair.clients[0].qp_of(&mut pair.hosts[0], QpType::Ud, CAP);
    let c = pair.connect;
    connect(&mut pair.hosts[0], pair.clients[0].session, other.qpn, ip, 0, c, 0);
    let mut qps = [other];
    let begin = pair.now.as_ns();
    for wr_id in 0..30 {
        let (wqe, sge) = (datagram(&pair, wr_id, slow), pair.clients[0].sge(0, MTU));
        pair.qps[0].post(wqe, &[sge]);
        qps[0].post(wqe, &[sge]);
    }
    let sent = run(&mut pair, begin + 10_000_000);
    assert_eq!((sent.len(), pair.clients[0].poll().len()), (60, 60));
    for (number, (at, bytes)) in sent.iter().enumerate() {
        // Both queue pairs share the rate, from the first frame on.
        let due = number as u64 * *bytes as u64 * 8 * 10 / 25;
        assert!((due..=due + 1).contains(&(at - sent[0].0)), "frame {number}: {} ns", at - sent[0].0);
    }
    for ah in [plain, faster_than_the_port] {
        for wr_id in 0..30 {
            let (wqe, sge) = (datagram(&pair, wr_id, ah), pair.clients[0].sge(0, MTU));
            pair.qps[0].post(wqe, &[sge]);
        }
        let begin = pair.now.as_ns();
        let sent = run(&mut pair, begin);
        assert_eq!((sent.len(), sent.last().map(|last| last.0)), (30, Some(begin)), "at once");
    }
}

#[test]
fn a_handle_that_was_idle_may_send_a_burst_and_a_limited_one_holds_its_queue_up() {
    let mut pair = pair();
    let plain = handle(&mut pair);
    let ip = pair.hosts[1].ip;
    let slow = create_ah(&mut pair, 0, AhAttr { static_rate: 2, ..vector(ip) });
    pair.now = pair.now.add_ns(1_000_000);
    for wr_id in 0..20 {
        let wqe = datagram(&pair, wr_id, if wr_id < 19 { slow } else { plain });
        pair.post(wqe, MTU);
    }
    let begin = pair.now.as_ns();
    // 32 KiB and a frame: then one each 13.3 us, and the last right behind the one before it.
    assert_eq!(run(&mut pair, begin).len(), 8);
    let sent = run(&mut pair, begin + 1_000_000);
    assert_eq!(sent.len(), 12);
    assert_eq!(sent[11].0, sent[10].0);
    // Ten frames of 4,164 bytes less what of the burst was left.
    assert!((130_000..150_000).contains(&(sent[10].0 - begin)), "{} ns", sent[10].0 - begin);
}

#[test]
fn handles_have_limits_and_their_domain_outlives_them() {
    let mut a = HostOptions::new(1);
    a.limits.max_ah = 3;
    let c = Connect { kind: QpType::Ud, ..Connect::default() };
    let mut pair = Pair::with(c, a, HostOptions::new(2), 1 << 20);
    let pd = pair.pd(0);
    let mut create = |attr| match pair.ask(0, Request::CreateAh { pd, attr }) {
        Reply::Handle(ah) => Ok(ah),
        Reply::Refused { errno, message } => Err(format!("{errno}: {message}")),
        other => panic!("{other:?}"),
    };
    let good = vector([10, 0, 0, 2]);
    let refusals = [
        (AhAttr { port_num: 2, ..good }, "22: ah_attr.port_num is 2, which is not in 1..=1"),
        (AhAttr { sgid_index: 1, ..good }, "22: ah_attr.grh.sgid_index is 1, which is not in 0..=0"),
        (AhAttr { sl: 8, ..good }, "22: ah_attr.sl is 8, which is not in 0..=7"),
        (AhAttr { static_rate: 25, ..good }, "22: ah_attr.static_rate is 25, which is not in 0..=24"),
        (AhAttr { flow_label: 1 << 20, ..good }, "22: ah_attr.grh.flow_label is 1048576, which is not in 0..=1048575"),
        (
            vector([0; 4]),
            "22: ah_attr.grh.dgid is 0000:0000:0000:0000:0000:ffff:0000:0000, but a datagram needs a host's address or a \
             multicast group",
        ),
    ];
    for (attr, sentence) in refusals {
        assert_eq!(create(attr), Err(sentence.to_owned()));
    }
    let handles: Vec<u32> = (0..3).map(|_| create(good).unwrap()).collect();
    assert_eq!(create(good), Err("12: the limit of 3 address handles is reached".to_owned()));
    let message = format!("protection domain {pd} is used by 3 objects: destroy them first");
    assert_eq!(pair.ask(0, Request::DeallocPd { pd }), Reply::Refused { errno: 16, message });
    for ah in handles {
        assert_eq!(pair.ask(0, Request::DestroyAh { ah }), Reply::Done);
        let Reply::Refused { errno, .. } = pair.ask(0, Request::DestroyAh { ah }) else { panic!("twice") };
        assert_eq!(errno, 22);
    }
    assert_eq!(pair.ask(0, Request::DeallocPd { pd }), Reply::Done);
    // A session that ends leaves none behind, and no neighbour in use.
    for _ in 0..3 {
        create_ah(&mut pair, 0, good);
    }
    let session = pair.clients[0].session;
    let host = &mut pair.hosts[0];
    host.control.close_session(&mut host.shards, session);
    let client = Client::new(host, 1 << 16);
    let (reply, _) = host.request(client.session, Request::CreateAh { pd: client.pd, attr: good }, vec![]);
    assert!(matches!(reply, Reply::Handle(_)), "{reply:?}");
}

#[test]
fn nobody_destroys_the_handles_of_another_session() {
    let mut pair = pair();
    let ah = handle(&mut pair);
    let other = Client::new(&mut pair.hosts[0], 1 << 16);
    let (reply, _) = pair.hosts[0].request(other.session, Request::DestroyAh { ah }, vec![]);
    let message = format!("address handle {ah} does not exist");
    assert_eq!(reply, Reply::Refused { errno: 22, message });
}
