//! The responder with a hand-played requester: what it answers to gaps, duplicates and bursts, and when it waits.

use shm::attr::{QpAttr, QpState};
use shm::control::AsyncEvent;
use wire::Opcode;

use crate::peer::{done, pattern};
use crate::responder::{MTU, pair};
use crate::support::{BASE, CAP, Connect, Pair, STEPS, attributes};

#[test]
fn without_a_receive_the_answer_is_an_rnr_nak_and_then_silence() {
    for (imm, psn) in [(false, 0), (true, 1)] {
        let mut pair = Pair::new(Connect { path_mtu: 1, min_rnr_timer: 13, ..Connect::default() });
        // What waits for a receive: the first packet of a SEND, but the last one of a WRITE.
        let burst = if imm {
            vec![
                pair.rdma(Opcode::RC_WRITE_FIRST, 0, 300, MTU),
                pair.packet(0, Opcode::RC_WRITE_LAST_IMM, 1).imm(9).bytes(44).ack_req(),
                pair.send(Opcode::RC_SEND_ONLY, 2, 8).ack_req(),
            ]
        } else {
            vec![
                pair.send(Opcode::RC_SEND_FIRST, 0, MTU),
                pair.send(Opcode::RC_SEND_LAST, 1, 44).ack_req(),
                pair.send(Opcode::RC_SEND_ONLY, 2, 8).ack_req(),
            ]
        };
        let mut said = Vec::new();
        for packet in &burst {
            said.extend(pair.tell(1, packet));
        }
        assert_eq!(said, [format!("RNR NAK 0.96 ms +{psn} msn 0")]);
        assert_eq!(pair.state(1), QpState::Rts);
        assert_eq!(pair.read(1, 4096 + 256, 44), [0; 44], "the packet that was refused wrote nothing");
        // The same packet again, still without a receive: one more NAK.
        assert_eq!(pair.tell(1, &burst[psn]).len(), 1);
        assert_eq!(pair.counters(1).send_rnr_err, 2);
        pair.receive(50, 4096);
        pair.receive(51, 4096);
        let said: Vec<_> = burst[psn..].iter().flat_map(|packet| pair.tell(1, packet)).collect();
        assert_eq!(said, ["ACK +1 msn 1", "ACK +2 msn 2"]);
        assert_eq!(pair.failures(1), [done(50), done(51)]);
    }
}

#[test]
fn every_rnr_timer_code_goes_out_as_it_was_set() {
    for code in 0..32 {
        let mut pair = Pair::new(Connect { min_rnr_timer: code, ..Connect::default() });
        let send = pair.send(Opcode::RC_SEND_ONLY, 0, 8);
        let ms = wire::RnrTimer::new(code).unwrap().duration_ns() / 10_000;
        assert_eq!(pair.tell(1, &send), [format!("RNR NAK {}.{:02} ms +0 msn 0", ms / 100, ms % 100)]);
    }
}

#[test]
fn a_gap_draws_one_nak_with_the_expected_psn() {
    let mut pair = pair();
    pair.receive(50, 4096);
    pair.receive(51, 4096);
    let packets = [0, 1, 2, 3, 4, 5].map(|psn| pair.rdma(Opcode::RC_WRITE_ONLY, psn, 8, 8).ack_req());
    assert_eq!(pair.tell(1, &packets[0]), ["ACK +0 msn 1"]);
    assert_eq!(pair.tell(1, &packets[2]), ["NAK PSN sequence error +1 msn 1"]);
    assert_eq!(pair.tell(1, &packets[3]), [""; 0], "one NAK for a gap");
    // The farthest that counts as ahead, and the nearest that counts as behind.
    let far = pair.rdma(Opcode::RC_WRITE_ONLY, 1 + 0x7f_ffff, 8, 8);
    assert_eq!(pair.tell(1, &far), [""; 0]);
    let behind = pair.rdma(Opcode::RC_WRITE_ONLY, 1 + 0x80_0000, 8, 8);
    assert_eq!(pair.tell(1, &behind), ["ACK +0 msn 1"]);
    assert_eq!(pair.tell(1, &packets[1]), ["ACK +3 msn 4"], "what came early was kept");
    assert_eq!(pair.tell(1, &packets[5]), ["NAK PSN sequence error +4 msn 4"], "a new gap, a new NAK");
    assert_eq!(pair.tell(1, &packets[3]), ["ACK +3 msn 4"], "sent again, and executed already");
    let counters = pair.counters(1);
    assert_eq!((counters.out_of_seq_request, counters.out_of_sequence, counters.duplicate_request), (4, 2, 2));
    assert_eq!((counters.kept_requests, counters.kept_no_room), (3, 1));
}

#[test]
fn a_nak_that_has_become_stale_is_not_sent() {
    let mut pair = pair();
    let burst = [0, 2, 1].map(|psn| pair.rdma(Opcode::RC_WRITE_ONLY, psn, 8, 8).ack_req());
    assert_eq!(pair.tell_all(1, &burst), ["ACK +2 msn 3"]);
}

#[test]
fn duplicates_of_sends_and_writes_are_acknowledged_but_not_executed() {
    let mut pair = pair();
    // A fresh QP says that it has nothing yet.
    let old = pair.send(Opcode::RC_SEND_ONLY, (1 << 24) - 1, 8);
    assert_eq!(pair.tell(1, &old), ["ACK +-1 msn 0"]);
    pair.receive(50, 4096);
    pair.receive(51, 4096);
    let send = pair.send(Opcode::RC_SEND_ONLY, 0, 8);
    let write = pair.rdma(Opcode::RC_WRITE_ONLY, 1, 8, 8);
    let first = pair.send(Opcode::RC_SEND_FIRST, 2, MTU);
    for packet in [&send, &write, &first] {
        assert_eq!(pair.tell(1, packet), [""; 0], "nobody asked for an acknowledgement");
    }
    assert_eq!(pair.failures(1), [done(50)]);
    pair.write(1, 4096, &[0; 8]);
    for packet in [&send, &write, &first] {
        assert_eq!(pair.tell(1, packet), ["ACK +2 msn 2"], "the newest that was executed");
    }
    assert_eq!(pair.read(1, 4096, 8), [0; 8], "the WRITE is not done again");
    let last = pair.send(Opcode::RC_SEND_LAST, 3, 7).ack_req();
    assert_eq!(pair.tell(1, &last), ["ACK +3 msn 3"]);
    let [cqe] = pair.clients[1].poll()[..] else { panic!("the second receive was not used up by a duplicate") };
    assert_eq!((cqe.wr_id, cqe.byte_len), (51, MTU as u32 + 7));
    assert_eq!(pair.counters(1).duplicate_request, 4);
}

#[test]
fn duplicate_reads_are_executed_again_from_where_they_ask() {
    let mut pair = pair();
    pair.write(1, 4096, &pattern(1000));
    let all = ["READ_RESP_FIRST +0 len 256 msn 1", "READ_RESP_MIDDLE +1 len 256", "READ_RESP_MIDDLE +2 len 256"];
    let last = "READ_RESP_LAST +3 len 232 msn 1";
    let whole = pair.read_request(0, 1000);
    assert_eq!(pair.tell(1, &whole), [&all[..], &[last]].concat());
    assert_eq!(pair.tell(1, &whole), [&all[..], &[last]].concat());
    let from = |pair: &Pair, packet: u32, dma_len: u32| {
        let va = BASE + 4096 + u64::from(packet) * MTU as u64;
        pair.packet(0, Opcode::RC_READ_REQUEST, packet).reth(va, pair.clients[1].key, dma_len)
    };
    let tail = from(&pair, 1, 744);
    assert_eq!(pair.tell(1, &tail), [all[1], all[2], last], "a repeat goes on as the first answer did");
    let end = from(&pair, 3, 232);
    assert_eq!(pair.tell(1, &end), [last]);
    // Less than all of it.
    let part = from(&pair, 1, 300);
    assert_eq!(pair.tell(1, &part), [all[1], "READ_RESP_LAST +2 len 44 msn 1"]);
    let head = from(&pair, 0, 100);
    assert_eq!(pair.tell(1, &head), ["READ_RESP_ONLY +0 len 100 msn 1"]);
    // It sees the memory as it is now, and nothing but what was granted.
    let other_va = pair.packet(0, Opcode::RC_READ_REQUEST, 1).reth(BASE, pair.clients[1].key, 744);
    let other_key = pair.packet(0, Opcode::RC_READ_REQUEST, 0).reth(BASE + 4096, pair.clients[1].key ^ 1, 1000);
    let beyond = from(&pair, 1, 745);
    let unknown = pair.read_request((1 << 24) - 7, 1000);
    for stranger in [other_va, other_key, beyond, unknown] {
        assert_eq!(pair.tell(1, &stranger), [""; 0]);
    }
    assert_eq!(pair.state(1), QpState::Rts);
    // It did not move the expected PSN.
    let next = pair.rdma(Opcode::RC_WRITE_ONLY, 4, 8, 8).ack_req();
    assert_eq!(pair.tell(1, &next), ["ACK +4 msn 2"]);
}

#[test]
fn duplicate_atomics_are_answered_from_memory_of_the_last_few() {
    let mut pair = pair();
    let adds: Vec<_> = (0..5).map(|i| pair.fetch_add(i, 10)).collect();
    let answer = |i: u32| format!("ATOMIC_ACK +{i} msn {} original {}", i + 1, i * 10);
    for (i, add) in (0..).zip(&adds) {
        assert_eq!(pair.tell(1, add), [answer(i)]);
    }
    for (i, add) in (1..).zip(&adds[1..]) {
        assert_eq!(pair.tell(1, add), [answer(i)], "the saved result");
    }
    assert_eq!(pair.tell(1, &adds[0]), [""; 0], "max_dest_rd_atomic is 4");
    assert_eq!(pair.word(1, 4096), 50, "each was executed once");
    // An atomic is not a READ: a READ with its PSN finds nothing.
    let read = pair.read_request(4, 8);
    assert_eq!(pair.tell(1, &read), [""; 0]);
}

#[test]
fn a_repeat_that_still_waits_does_not_count_against_the_limit() {
    let mut pair = Pair::new(Connect { path_mtu: 1, rd_atomic: 1, ..Connect::default() });
    let first = pair.read_request(0, 8);
    assert_eq!(pair.tell(1, &first).len(), 1);
    // The repeat and the next READ come in one burst: the requester has the first answer after all.
    let next = pair.read_request(1, 8);
    let said = pair.tell_all(1, &[first, next]);
    assert_eq!(said, ["READ_RESP_ONLY +1 len 8 msn 2"]);
    assert_eq!(pair.state(1), QpState::Rts);
}

#[test]
fn acknowledgements_wait_for_the_responses_before_them() {
    let mut pair = pair();
    pair.receive(50, 64);
    let burst = [
        pair.read_request(0, 300),
        pair.send(Opcode::RC_SEND_ONLY, 2, 8).ack_req(),
        pair.fetch_add(3, 1),
        pair.rdma(Opcode::RC_WRITE_ONLY, 4, 8, 8).ack_req(),
    ];
    let said = pair.tell_all(1, &burst);
    let expected = [
        "READ_RESP_FIRST +0 len 256 msn 1",
        "READ_RESP_LAST +1 len 44 msn 1",
        "ATOMIC_ACK +3 msn 3 original 0",
        "ACK +4 msn 4",
    ];
    assert_eq!(said, expected);
}

#[test]
fn one_acknowledgement_stands_for_a_burst() {
    let mut pair = pair();
    let burst = [0, 1, 2].map(|psn| pair.rdma(Opcode::RC_WRITE_ONLY, psn, 8, 8).ack_req());
    assert_eq!(pair.tell_all(1, &burst), ["ACK +2 msn 3"]);
}

#[test]
fn psn_and_msn_wrap_at_24_bits() {
    let first = (1 << 24) - 2;
    let mut pair = Pair::new(Connect { path_mtu: 1, psn: [first, 7], ..Connect::default() });
    pair.write(1, 4096, &pattern(1000));
    assert_eq!(
        pair.tell(1, &pair.read_request(0, 1000)),
        [
            "READ_RESP_FIRST +0 len 256 msn 1",
            "READ_RESP_MIDDLE +1 len 256",
            "READ_RESP_MIDDLE +2 len 256",
            "READ_RESP_LAST +3 len 232 msn 1"
        ]
    );
    let tail = pair.packet(0, Opcode::RC_READ_REQUEST, 2).reth(BASE + 4096 + 512, pair.clients[1].key, 488);
    assert_eq!(pair.tell(1, &tail), ["READ_RESP_MIDDLE +2 len 256", "READ_RESP_LAST +3 len 232 msn 1"]);
    let add = pair.fetch_add(4, 1);
    assert_eq!(pair.tell(1, &add).len(), 1);
    assert_eq!(pair.figure(1, "expected_psn"), 3);
}

#[test]
fn the_first_packet_in_rtr_is_reported_once() {
    let mut pair = pair();
    let c = pair.connect;
    // A second QP that stays in RTR.
    let client = &mut pair.clients[1];
    let fresh = client.qp(&mut pair.hosts[1], CAP);
    pair.qps[1] = fresh;
    let attr = attributes(pair.hosts[0].ip, pair.qps[0].qpn, c, 1);
    for (qp_state, mask) in &STEPS[..2] {
        pair.modify(1, QpAttr { qp_state: *qp_state, ..attr }, *mask).unwrap();
    }
    assert_eq!(pair.state(1), QpState::Rtr);
    let qpn = pair.qps[1].qpn;
    // What it can't execute does not count, and neither does an answer to what it never sent.
    let early = pair.rdma(Opcode::RC_WRITE_ONLY, 1, 8, 8);
    assert_eq!(pair.tell(1, &early).len(), 1);
    let ghost = pair.ack(0, 0x1f, 0);
    assert_eq!(pair.tell(1, &ghost), [""; 0]);
    assert_eq!(pair.port_counters(1).rx_wrong_state, 1);
    assert_eq!(pair.events(1), []);
    for psn in 0..3 {
        let write = pair.rdma(Opcode::RC_WRITE_ONLY, psn, 8, 8).ack_req();
        assert_eq!(pair.tell(1, &write).len(), 1);
    }
    assert_eq!(pair.events(1), [AsyncEvent::CommEst { qpn }]);
}

#[test]
fn bits_that_mean_nothing_are_ignored() {
    let mut pair = pair();
    let mut write = pair.rdma(Opcode::RC_WRITE_ONLY, 0, 5, 5).ack_req();
    write.bth.mig_req = false;
    write.bth.fecn = true;
    write.bth.becn = true;
    write.bth.pkey = wire::Pkey(0x7fff);
    write.fields.hop_limit = 1;
    write.fields.traffic_class = 1;
    write.fields.udp_src_port = 1;
    assert_eq!(pair.tell(1, &write), ["ACK +0 msn 1"]);
    // Pad bytes of any value, under a right ICRC.
    let mut frame = pair.rdma(Opcode::RC_WRITE_ONLY, 1, 5, 5).ack_req().frame();
    let end = frame.len();
    frame[end - 7..end - 4].fill(0xee);
    let icrc = wire::icrc::compute(&wire::Frame::parse(&frame).unwrap());
    frame[end - 4..].copy_from_slice(&icrc.to_le_bytes());
    pair.hosts[1].receive(pair.now, &frame);
    assert_eq!(pair.listen(1), ["ACK +1 msn 2"]);
}
