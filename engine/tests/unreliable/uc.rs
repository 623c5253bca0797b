//! Unreliable connections.

use engine::ErrorCause;
use shm::attr::{QpAttr, QpAttrMask, QpState, QpType, SrqAttr, WcFlags, WcOpcode, WcStatus, WrOpcode};
use shm::control::{AsyncEvent, Request};
use shm::layout::Cqe;
use wire::Opcode;

use crate::peer::{Packet, done, failed, flushed, pattern};
use crate::support::{BASE, CAP, Connect, Pair, connect};

const MTU: usize = 256;

/// Makes a packet of side 0, given the key of side 1's region.
type Make = fn(&Pair, u32) -> Packet;

fn pair() -> Pair {
    Pair::new(Connect { kind: QpType::Uc, path_mtu: 1, ..Connect::default() })
}

/// SEND packets of side 0: the PSN and what each is.
fn send(pair: &Pair, opcode: Opcode, psn: u32, length: usize) -> Packet {
    pair.packet(0, opcode, psn).bytes(length)
}

#[test]
fn a_message_completes_when_its_last_packet_is_sent_and_draws_no_answer() {
    let mut pair = pair();
    for (wr_id, opcode, length) in [
        (1, WrOpcode::Send, 0),
        (2, WrOpcode::Send, 700),
        (3, WrOpcode::SendWithImm, 256),
        (4, WrOpcode::RdmaWrite, 513),
        (5, WrOpcode::RdmaWriteWithImm, 600),
    ] {
        pair.write(0, 0, &pattern(length));
        pair.receive(10 + wr_id, 1024);
        let wqe = pair.wqe(wr_id, opcode);
        pair.post(wqe, length as u32);
        pair.exchange();
        assert_eq!(pair.completions(0), [(wr_id, WcStatus::Success)], "{opcode}");
        let at = if matches!(opcode, WrOpcode::Send | WrOpcode::SendWithImm) { 65_536 } else { 4096 };
        assert!(pair.read(1, at, length) == pattern(length), "{opcode}");
        let said = pair.opcodes();
        assert!(said.iter().all(|(from, name)| *from == 0 && name.starts_with("UC_")), "{said:?}");
        assert_eq!(said.len(), length.div_ceil(MTU).max(1), "{said:?}");
    }
    let imm = 0x1122_3344u32.to_be();
    let received: Vec<_> =
        pair.clients[1].poll().iter().map(|c: &Cqe| (c.wr_id, c.opcode, c.byte_len, c.flags, c.imm)).collect();
    let (recv, write) = (WcOpcode::Recv as u8, WcOpcode::RecvRdmaWithImm as u8);
    let with_imm = WcFlags::WITH_IMM.0;
    // The WRITE without immediate takes no receive.
    let expected =
        [(11, recv, 0, 0, 0), (12, recv, 700, 0, 0), (13, recv, 256, with_imm, imm), (14, write, 600, with_imm, imm)];
    assert_eq!(received, expected);
}

#[test]
fn packets_ask_for_no_acknowledgement_and_the_window_does_not_bind() {
    let mut pair = pair();
    let packets = pair.hosts[0].shard().counters().retransmitted_packets as usize + 400;
    let wqe = pair.wqe(1, WrOpcode::RdmaWrite);
    pair.post(wqe, (packets * MTU) as u32);
    // Nobody listens: all of it is sent all the same, in one go.
    let said = pair.listen(0);
    assert_eq!(said.len(), packets);
    assert!(said.iter().all(|words| !words.ends_with(" A")));
    assert_eq!(pair.completions(0), [(1, WcStatus::Success)]);
    assert_eq!(pair.wait(0, 10_000_000_000), [""; 0], "no timer repeats it");
}

#[test]
fn a_gap_drops_the_rest_of_the_message_and_the_next_first_or_only_starts_afresh() {
    let mut pair = pair();
    for wr_id in 0..3 {
        pair.receive(wr_id, 1024);
    }
    let packets = [
        send(&pair, Opcode::UC_SEND_FIRST, 0, MTU),
        // 1 is lost.
        send(&pair, Opcode::UC_SEND_MIDDLE, 2, MTU),
        send(&pair, Opcode::UC_SEND_LAST, 3, 5),
        send(&pair, Opcode::UC_SEND_FIRST, 4, MTU),
        send(&pair, Opcode::UC_SEND_LAST, 5, 7),
        // 6 to 8 are lost.
        send(&pair, Opcode::UC_SEND_ONLY, 9, 9),
    ];
    assert_eq!(pair.tell_all(1, &packets), [""; 0]);
    let found: Vec<_> = pair.clients[1].poll().iter().map(|c| (c.wr_id, c.byte_len)).collect();
    assert_eq!(found, [(0, 263), (1, 9)], "the receive of the first message serves the second");
    let counters = pair.counters(1);
    assert_eq!((counters.uc_dropped_packets, counters.out_of_seq_request, counters.out_of_sequence), (2, 2, 0));
    assert_eq!(pair.state(1), QpState::Rts);
}

#[test]
fn a_message_whose_end_is_lost_gives_way_to_the_next() {
    let mut pair = pair();
    pair.receive(0, 1024);
    let mut first = pair.packet(0, Opcode::UC_WRITE_FIRST, 0).reth(BASE + 4096, pair.clients[1].key, 600).bytes(MTU);
    let next = send(&pair, Opcode::UC_SEND_ONLY, 1, 9);
    let repeated = send(&pair, Opcode::UC_SEND_ONLY, 1, 9);
    assert_eq!(pair.tell_all(1, &[first.clone(), next]), [""; 0]);
    assert_eq!(pair.failures(1), [done(0)]);
    // One that comes twice is executed twice: UC promises nothing else.
    pair.receive(1, 1024);
    assert_eq!(pair.tell_all(1, &[repeated]), [""; 0]);
    assert_eq!(pair.failures(1), [done(1)]);
    // A Middle or Last without its First is nothing.
    first.bth.opcode = Opcode::UC_WRITE_LAST;
    first.bth.psn = first.bth.psn.add(2);
    first.ext.clear();
    assert_eq!(pair.tell_all(1, &[first]), [""; 0]);
    assert_eq!(pair.counters(1).uc_dropped_packets, 1);
}

#[test]
fn what_can_not_be_executed_is_dropped_without_a_word_and_the_qp_goes_on() {
    let key = |pair: &Pair| pair.clients[1].key;
    let cases: [(&str, Make); 7] = [
        ("no receive", |pair, _| send(pair, Opcode::UC_SEND_ONLY, 0, 8)),
        ("wrong key", |pair, key| pair.packet(0, Opcode::UC_WRITE_ONLY, 0).reth(BASE, key ^ 0x100, 8).bytes(8)),
        ("outside", |pair, key| pair.packet(0, Opcode::UC_WRITE_ONLY, 0).reth(BASE - 1, key, 8).bytes(8)),
        ("length differs", |pair, key| pair.packet(0, Opcode::UC_WRITE_ONLY, 0).reth(BASE, key, 9).bytes(8)),
        ("short first", |pair, key| pair.packet(0, Opcode::UC_WRITE_FIRST, 0).reth(BASE, key, 512).bytes(8)),
        ("empty last", |pair, _| send(pair, Opcode::UC_SEND_LAST, 0, 0)),
        ("long only", |pair, _| send(pair, Opcode::UC_SEND_ONLY, 0, MTU + 1)),
    ];
    for (name, packet) in cases {
        let mut pair = pair();
        let packet = packet(&pair, key(&pair));
        assert_eq!(pair.tell(1, &packet), [""; 0], "{name}");
        assert_eq!((pair.state(1), pair.events(1).len()), (QpState::Rts, 0), "{name}");
        assert_eq!(pair.counters(1).uc_dropped_packets, 1, "{name}");
        pair.receive(7, 64);
        let next = send(&pair, Opcode::UC_SEND_ONLY, 1, 8);
        assert_eq!(pair.tell(1, &next), [""; 0], "{name}");
        assert_eq!(pair.failures(1), [done(7)], "{name}");
    }
}

#[test]
fn a_message_longer_than_its_receive_leaves_the_receive_to_the_next() {
    let mut pair = pair();
    pair.receive(1, 300);
    let packets = [
        send(&pair, Opcode::UC_SEND_FIRST, 0, MTU),
        send(&pair, Opcode::UC_SEND_LAST, 1, 45),
        send(&pair, Opcode::UC_SEND_ONLY, 2, 8),
    ];
    assert_eq!(pair.tell_all(1, &packets), [""; 0]);
    assert_eq!(pair.failures(1), [done(1)]);
    assert_eq!(pair.events(1), [AsyncEvent::CommEst { qpn: pair.qps[1].qpn }; 0]);
}

#[test]
fn a_receive_that_is_no_good_breaks_the_qp() {
    let mut pair = pair();
    let mut sge = pair.clients[1].sge(0, 64);
    sge.lkey ^= 0x100;
    pair.qps[1].post_recv(1, &[sge]);
    pair.receive(2, 64);
    let packet = send(&pair, Opcode::UC_SEND_ONLY, 0, 8);
    assert_eq!(pair.tell(1, &packet), [""; 0]);
    assert_eq!(pair.failures(1), [failed(1, WcStatus::LocProtErr, ErrorCause::BadReceive), flushed(2)]);
    assert_eq!(pair.state(1), QpState::Err);
}

#[test]
fn an_srq_receive_that_a_dropped_message_took_stays_with_the_qp() {
    let mut pair = pair();
    let attr = SrqAttr { max_wr: 8, max_sge: 1, srq_limit: 0 };
    let (srq, mut poster, _) = pair.clients[1].srq(&mut pair.hosts[1], attr);
    for wr_id in 0..2 {
        poster.post(wr_id, &[pair.clients[1].sge(65_536, 1024)]).unwrap();
    }
    poster.publish();
    let client = &mut pair.clients[1];
    let (send_cq, recv_cq) = (client.cq, client.cq);
    let (pd, qp_type) = (client.pd, QpType::Uc);
    let request = Request::CreateQp { pd, qp_type, send_cq, recv_cq, srq: Some(srq), cap: CAP, sq_sig_all: false };
    pair.qps[1] = client.qp_from(&mut pair.hosts[1], request);
    let (ip, peer, c) = (pair.hosts[0].ip, pair.qps[0].qpn, pair.connect);
    connect(&mut pair.hosts[1], pair.clients[1].session, pair.qps[1].qpn, ip, peer, c, 1);
    let packets = [send(&pair, Opcode::UC_SEND_FIRST, 0, MTU), send(&pair, Opcode::UC_SEND_ONLY, 2, 8)];
    assert_eq!(pair.tell_all(1, &packets), [""; 0]);
    assert_eq!(pair.failures(1), [done(0)]);
}

#[test]
fn a_wrong_work_request_stops_the_send_queue_and_leaves_the_receive_queue() {
    let mut pair = pair();
    for (wr_id, opcode) in [(1, WrOpcode::RdmaRead), (2, WrOpcode::AtomicFetchAndAdd), (3, WrOpcode::SendWithInv)] {
        let wqe = pair.wqe(wr_id, opcode);
        pair.post(wqe, 8);
        let next = pair.wqe(9, WrOpcode::Send);
        pair.post(next, 8);
        pair.exchange();
        let failure = failed(wr_id, WcStatus::LocQpOpErr, ErrorCause::BadOpcode);
        assert_eq!(pair.failures(0), [failure, flushed(9)], "{opcode}");
        assert_eq!(pair.state(0), QpState::Sqe);
        assert_eq!(pair.detail(0).error.as_deref(), Some(ErrorCause::BadOpcode.sentence()));
        // What is posted in SQE is flushed as well.
        let late = pair.wqe(10, WrOpcode::Send);
        pair.post(late, 8);
        pair.exchange();
        assert_eq!(pair.failures(0), [flushed(10)]);
        let sge = pair.clients[0].sge(0, 64);
        pair.qps[0].post_recv(20, &[sge]);
        let incoming = pair.packet(1, Opcode::UC_SEND_ONLY, 0).bytes(4);
        assert_eq!(pair.tell(0, &incoming), [""; 0]);
        assert_eq!(pair.failures(0), [done(20)]);
        pair.go_to(0, QpState::Rts);
        assert_eq!(pair.detail(0).error, None);
    }
    pair.receive(1, 64);
    let wqe = pair.wqe(30, WrOpcode::Send);
    pair.post(wqe, 8);
    pair.exchange();
    assert_eq!((pair.failures(0), pair.failures(1)), (vec![done(30)], vec![done(1)]));
}

#[test]
fn a_message_that_fails_halfway_is_not_resumed_after_sqe() {
    let mut pair = pair();
    let pd = pair.clients[0].pd;
    let key = pair.region(0, pd, 0, 65_536, shm::attr::AccessFlags::LOCAL_WRITE);
    let mut sge = pair.clients[0].sge(0, 40_000);
    sge.lkey = key;
    let wqe = pair.wqe(1, WrOpcode::RdmaWrite);
    pair.qps[0].post(wqe, &[sge]);
    // One batch of 64 packets, and the region goes.
    let first = pair.hosts[0].turn(pair.now);
    assert_eq!(first.len(), 64);
    assert_eq!(pair.ask(0, Request::DeregMr { lkey: key }), shm::control::Reply::Done);
    assert_eq!(pair.listen(0), [""; 0]);
    assert_eq!(pair.failures(0), [failed(1, WcStatus::LocProtErr, ErrorCause::UnknownKey)]);
    // Posted in SQE, and on the way out of it: flushed, never sent.
    let stale = pair.wqe(2, WrOpcode::Send);
    pair.post(stale, 8);
    pair.go_to(0, QpState::Rts);
    assert_eq!(pair.failures(0), [flushed(2)]);
    let wqe = pair.wqe(3, WrOpcode::Send);
    pair.post(wqe, 300);
    assert_eq!(pair.listen(0), ["SEND_FIRST +64 len 256", "SEND_LAST +65 len 44"]);
    assert_eq!(pair.failures(0), [done(3)]);
}

#[test]
fn a_send_queue_drains_to_the_end_of_its_message() {
    let mut pair = pair();
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    for wr_id in 1..3 {
        let wqe = pair.wqe(wr_id, WrOpcode::RdmaWrite);
        pair.post(wqe, 40_000);
    }
    let sent = pair.hosts[0].turn(pair.now);
    assert_eq!(sent.len(), 64, "less than the first message");
    let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: 1, ..QpAttr::default() };
    pair.modify(0, attr, mask).unwrap();
    assert_eq!(pair.events(0), [], "the message goes on");
    assert_eq!(pair.listen(0).len(), 40_000usize.div_ceil(MTU) - 64);
    assert_eq!(pair.events(0), [AsyncEvent::SqDrained { qpn: pair.qps[0].qpn }]);
    assert_eq!(pair.failures(0), [done(1)]);
    pair.go_to(0, QpState::Rts);
    assert_eq!(pair.listen(0).len(), 40_000usize.div_ceil(MTU));
    assert_eq!(pair.failures(0), [done(2)]);
}

#[test]
fn in_rtr_the_first_packet_is_reported() {
    let mut pair = pair();
    pair.fresh_qp(1, CAP);
    let qpn = pair.qps[1].qpn;
    pair.go_to(1, QpState::Reset);
    let attr = crate::support::attributes(pair.hosts[0].ip, pair.qps[0].qpn, pair.connect, 1);
    for (qp_state, mask) in crate::support::steps(QpType::Uc).into_iter().take(2) {
        pair.modify(1, QpAttr { qp_state, ..attr }, mask).unwrap();
    }
    pair.receive(1, 64);
    let packet = send(&pair, Opcode::UC_SEND_ONLY, 0, 8).solicited();
    assert_eq!(pair.tell(1, &packet), [""; 0]);
    assert_eq!(pair.events(1), [AsyncEvent::CommEst { qpn }]);
    assert_eq!(pair.failures(1), [done(1)]);
}

#[test]
fn packets_of_rc_are_not_a_uc_qps() {
    let mut pair = pair();
    for opcode in [Opcode::RC_SEND_ONLY, Opcode::UD_SEND_ONLY, Opcode::RC_ACK] {
        let mut packet = pair.packet(0, opcode, 0);
        packet.ext = vec![0; usize::from(opcode.info().unwrap().ext_bytes)];
        assert_eq!(pair.tell(1, &packet), [""; 0]);
    }
    assert_eq!(pair.port_counters(1).rx_wrong_service, 3);
}
