//! What the states of a QP mean for its traffic. The table of transitions is `engine::qp::state`'s own test.

use engine::ErrorCause;
use shm::attr::{AccessFlags, QpAttr, QpAttrMask, QpState, SendFlags, WcStatus, WrOpcode};
use shm::control::{AsyncEvent, Reply, Request};
use shm::layout::SendWqe;
use wire::Opcode;

use crate::peer::{done, failed, flushed};
use crate::support::{BASE, CAP, Client, Connect, Pair, STEPS, attributes};

const ACK: u8 = 0x1f;
const TIMEOUT_NS: u64 = 4096 << 14;

fn pair() -> Pair {
    Pair::new(Connect { path_mtu: 1, ..Connect::default() })
}

impl Pair {
    fn drain(&mut self, notify: bool) {
        let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: u8::from(notify), ..QpAttr::default() };
        self.modify(0, attr, QpAttrMask(QpAttrMask::STATE.0 | QpAttrMask::EN_SQD_ASYNC_NOTIFY.0)).unwrap();
    }

    fn query(&mut self, side: usize) -> QpAttr {
        let qpn = self.qps[side].qpn;
        match self.ask(side, Request::QueryQp { qpn }) {
            Reply::QpAttr(attr) => attr,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn sqd_finishes_what_it_began_and_starts_nothing() {
    for notify in [true, false] {
        let mut pair = pair();
        let write = |pair: &Pair, wr_id| pair.wqe(wr_id, WrOpcode::RdmaWrite);
        let wqe = write(&pair, 1);
        pair.post(wqe, 600);
        assert_eq!(pair.listen(0).len(), 3);
        pair.drain(notify);
        let wqe = write(&pair, 2);
        pair.post(wqe, 8);
        assert_eq!(pair.listen(0), [""; 0]);
        assert_eq!(pair.query(0).sq_draining, 1);
        // What is lost is still repeated.
        assert_eq!(pair.wait(0, TIMEOUT_NS).len(), 3);
        assert_eq!(pair.events(0), []);
        let ack = pair.ack(1, ACK, 2);
        assert_eq!(pair.tell(0, &ack), [""; 0]);
        let qpn = pair.qps[0].qpn;
        let expected = if notify { vec![AsyncEvent::SqDrained { qpn }] } else { vec![] };
        assert_eq!(pair.events(0), expected);
        assert_eq!((pair.failures(0), pair.query(0).sq_draining), (vec![done(1)], 0));
        // The peer's requests are served all the while.
        let theirs = pair.packet(1, Opcode::RC_WRITE_ONLY, 0).reth(BASE, pair.clients[0].key, 4).bytes(4).ack_req();
        assert_eq!(pair.tell(0, &theirs), ["ACK +0 msn 1"]);
        pair.go_to(0, QpState::Rts);
        assert_eq!(pair.listen(0), ["WRITE_ONLY +3 va +4096 of 8 len 8 A"]);
    }
}

#[test]
fn an_idle_queue_is_drained_at_once() {
    let mut pair = pair();
    pair.drain(true);
    let qpn = pair.qps[0].qpn;
    assert_eq!(pair.events(0), [AsyncEvent::SqDrained { qpn }]);
    pair.go_to(0, QpState::Rts);
    pair.drain(true);
    assert_eq!(pair.events(0), [AsyncEvent::SqDrained { qpn }], "each time anew");
}

#[test]
fn a_draining_queue_asks_for_the_acknowledgements_that_nobody_asked_for() {
    for timeout in [0, 14] {
        let mut pair = Pair::new(Connect { path_mtu: 1, timeout, rd_atomic: 1, ..Connect::default() });
        let quiet = SendWqe { flags: 0, ..pair.wqe(1, WrOpcode::RdmaWrite) };
        let sge = pair.clients[0].sge(0, 8);
        // Of a long row of them the first few go out in this turn, and see no reason to ask.
        for _ in 0..40 {
            pair.qps[0].send.post(quiet, shm::ring::Body::Sges(&[sge])).unwrap();
        }
        pair.qps[0].ring();
        let mut batch = wire::VecBatch::new(5);
        pair.hosts[0].shard().handle_doorbells(pair.now);
        pair.hosts[0].shard().poll_transmit(pair.now, 0, &mut batch);
        assert_eq!(batch.frames().len(), 5);
        assert!(batch.frames().iter().all(|(_, frame)| !wire::Frame::parse(frame).unwrap().bth().ack_req));
        pair.drain(true);
        let said = pair.listen(0);
        assert!(said.last().unwrap().ends_with(" A"), "{said:?}");
        let ack = pair.ack(1, ACK, 4);
        assert_eq!(pair.tell(0, &ack), [""; 0]);
        let qpn = pair.qps[0].qpn;
        assert_eq!(pair.events(0), [AsyncEvent::SqDrained { qpn }]);
    }
}

#[test]
fn err_flushes_everything_in_order() {
    let mut pair = pair();
    for wr_id in 50..53 {
        pair.receive(wr_id, 8);
    }
    // Sent and unanswered, sent in part, held back, and not even fetched: unsignalled ones too.
    for wr_id in 1..=6 {
        let opcode = if wr_id == 4 { WrOpcode::RdmaRead } else { WrOpcode::RdmaWrite };
        let wqe = SendWqe { flags: if wr_id % 2 == 0 { 0 } else { SendFlags::FENCE.0 | 2 }, ..pair.wqe(wr_id, opcode) };
        pair.post(wqe, 8);
    }
    assert_eq!(pair.listen(0).len(), 4, "the fifth waits for the READ");
    pair.go_to(0, QpState::Err);
    let expected: Vec<_> = (1..=6).map(flushed).collect();
    assert_eq!(pair.listen(0), [""; 0]);
    assert_eq!(pair.failures(0), expected);
    assert_eq!(pair.query(0).qp_state, QpState::Err);
    assert!(pair.qps[0].send.in_error(&pair.qps[0].block));
    // Later posts are flushed as they come.
    let wqe = pair.wqe(7, WrOpcode::Send);
    pair.post(wqe, 8);
    assert_eq!(pair.listen(0), [""; 0]);
    assert_eq!(pair.failures(0), [flushed(7)]);
    // The receiving side's queue likewise.
    pair.go_to(1, QpState::Err);
    let _ = pair.listen(1);
    assert_eq!(pair.failures(1), [flushed(50), flushed(51), flushed(52)]);
    pair.receive(53, 8);
    let _ = pair.listen(1);
    assert_eq!(pair.failures(1), [flushed(53)]);
    assert_eq!(pair.detail(1).error.as_deref(), Some(ErrorCause::ByApplication.sentence()));
    assert_eq!(pair.counters(0).flushed_wqes, 7);
    assert_eq!((pair.events(0), pair.events(1)), (vec![], vec![]));
}

#[test]
fn a_long_flush_is_spread_over_turns_and_loses_nothing() {
    let mut pair = pair();
    pair.fresh_qp(0, shm::attr::QpCap { max_send_wr: 1000, ..CAP });
    for wr_id in 0..1000 {
        let wqe = pair.wqe(wr_id, WrOpcode::RdmaWrite);
        pair.post(wqe, 8);
    }
    pair.go_to(0, QpState::Err);
    let _ = pair.hosts[0].turn(pair.now);
    assert_eq!(pair.clients[0].poll().len(), 256);
    pair.exchange();
    assert_eq!(pair.clients[0].poll().len(), 744);
}

#[test]
fn an_answer_that_is_due_dies_with_a_qp_that_its_owner_breaks() {
    let mut pair = pair();
    let read = pair.packet(0, Opcode::RC_READ_REQUEST, 0).reth(BASE, pair.clients[1].key, 600);
    let write = pair.packet(0, Opcode::RC_WRITE_ONLY, 3).reth(BASE, pair.clients[1].key, 4).bytes(4).ack_req();
    for packet in [read, write] {
        pair.hosts[1].receive(pair.now, &packet.frame());
    }
    pair.go_to(1, QpState::Err);
    assert_eq!(pair.listen(1), [""; 0]);
    // As does one of a QP that breaks as requester, even in the same turn.
    let mut pair = Pair::new(Connect { path_mtu: 1, retry_cnt: 0, ..Connect::default() });
    let wqe = pair.wqe(1, WrOpcode::RdmaWrite);
    pair.post(wqe, 8);
    assert_eq!(pair.listen(0).len(), 1);
    let theirs = pair.packet(1, Opcode::RC_READ_REQUEST, 0).reth(BASE, pair.clients[0].key, 600);
    pair.now = pair.now.add_ns(TIMEOUT_NS);
    assert_eq!(pair.tell(0, &theirs), [""; 0]);
    assert_eq!(pair.failures(0), [failed(1, WcStatus::RetryExcErr, ErrorCause::RetryExceeded)]);
}

#[test]
fn reset_forgets_and_the_qp_can_be_used_again() {
    let mut pair = pair();
    // A life with a bit of everything, cut short.
    pair.receive(50, 64);
    for wr_id in 1..=3 {
        let wqe = pair.wqe(wr_id, if wr_id == 2 { WrOpcode::AtomicFetchAndAdd } else { WrOpcode::RdmaWrite });
        pair.post(wqe, 8);
    }
    pair.exchange();
    let wqe = pair.wqe(4, WrOpcode::RdmaWrite);
    pair.post(wqe, 600);
    let _ = pair.listen(0);
    let _ = (pair.clients[0].poll(), pair.clients[1].poll());
    let ips = [pair.hosts[0].ip, pair.hosts[1].ip];
    for side in 0..2 {
        pair.go_to(side, QpState::Reset);
        pair.qps[side].send.reset();
        pair.qps[side].recv.as_mut().unwrap().reset();
    }
    assert_eq!(pair.wait(0, 20 * TIMEOUT_NS), [""; 0], "no timer of the old life");
    assert_eq!((pair.failures(0), pair.failures(1)), (vec![], vec![]), "nothing completes");
    let reset = pair.query(0);
    assert_eq!(reset, QpAttr { cap: reset.cap, ..QpAttr::default() });
    pair.connect.psn = [0x0b_0000, 99];
    let peers = [pair.qps[1].qpn, pair.qps[0].qpn];
    for side in 0..2 {
        let attr = attributes(ips[1 - side], peers[side], pair.connect, side);
        for (qp_state, mask) in STEPS {
            pair.modify(side, QpAttr { qp_state, ..attr }, mask).unwrap();
        }
    }
    // An atomic of the old life is not answered, should its PSN come up again.
    let old = pair.packet(0, Opcode::RC_FETCH_ADD, (1 << 24) - 0xffff).atomic(BASE + 4096, pair.clients[1].key, 1, 0);
    assert_eq!(old.bth.psn.value(), 0x0a_0001);
    assert_eq!(pair.tell(1, &old), [""; 0]);
    pair.receive(60, 64);
    for (wr_id, opcode) in [(11, WrOpcode::Send), (12, WrOpcode::RdmaRead), (13, WrOpcode::AtomicCmpAndSwp)] {
        let wqe = pair.wqe(wr_id, opcode);
        pair.post(wqe, 8);
    }
    pair.exchange();
    assert_eq!(pair.failures(0), [done(11), done(12), done(13)]);
    assert_eq!(pair.failures(1), [done(60)]);
    assert_eq!(pair.figure(1, "msn"), 3);
}

#[test]
fn a_qp_destroyed_in_the_middle_leaves_its_peer_to_its_retries() {
    for side in 0..2 {
        let mut pair = Pair::new(Connect { path_mtu: 1, retry_cnt: 2, ..Connect::default() });
        let wqe = pair.wqe(1, WrOpcode::RdmaRead);
        pair.post(wqe, 20_000);
        let mut budget = 10;
        pair.exchange_with(|_, frame| {
            budget -= 1;
            if budget > 0 { vec![frame] } else { vec![] }
        });
        let qpn = pair.qps[side].qpn;
        assert_eq!(pair.ask(side, Request::DestroyQp { qpn }), Reply::Done);
        pair.advance(10 * TIMEOUT_NS);
        pair.advance(10 * TIMEOUT_NS);
        pair.advance(10 * TIMEOUT_NS);
        let expected =
            if side == 0 { vec![] } else { vec![failed(1, WcStatus::RetryExcErr, ErrorCause::RetryExceeded)] };
        assert_eq!(pair.failures(0), expected);
        let Reply::Refused { errno, message } = pair.ask(side, Request::QueryQp { qpn }) else { panic!() };
        assert_eq!((errno, message), (22, format!("QP {qpn:#08x} does not exist in this session")));
        if side == 1 {
            assert!(pair.port_counters(1).rx_unknown_qpn > 0);
        }
    }
}

#[test]
fn a_client_that_is_gone_takes_its_objects_along_and_nothing_else() {
    let mut pair = pair();
    let wqe = pair.wqe(1, WrOpcode::RdmaRead);
    pair.post(wqe, 100_000);
    let mut budget = 40;
    pair.exchange_with(|_, frame| {
        budget -= 1;
        if budget > 0 { vec![frame] } else { vec![] }
    });
    let (session, now) = (pair.clients[1].session, pair.now);
    let host = &mut pair.hosts[1];
    host.control.close_session(&mut host.shards, session);
    host.control.close_session(&mut host.shards, session);
    let (reply, _) = host.request(session, Request::AllocPd, vec![]);
    assert!(matches!(reply, Reply::Refused { errno: 71, .. }), "{reply:?}");
    assert!(!host.shard().wants_transmit());
    assert!(host.turn(now.add_ns(TIMEOUT_NS)).is_empty());
    // The next client gets everything anew, and works.
    pair.clients[1] = Client::new(&mut pair.hosts[1], 1 << 20);
    let Reply::Sessions(sessions) = pair.ask(1, Request::ListSessions) else { panic!() };
    assert_eq!(sessions.len(), 1);
    pair.reconnect();
    let wqe = pair.wqe(2, WrOpcode::RdmaWrite);
    pair.post(wqe, 8);
    pair.exchange();
    assert_eq!(pair.failures(0), [done(2)]);
}

#[test]
fn before_rts_requests_wait_and_before_rtr_packets_are_dropped() {
    let mut pair = pair();
    let attr = attributes(pair.hosts[1].ip, pair.qps[1].qpn, pair.connect, 0);
    pair.qps[0] = pair.clients[0].qp(&mut pair.hosts[0], CAP);
    let theirs = pair.packet(1, Opcode::RC_WRITE_ONLY, 0).reth(BASE, pair.clients[0].key, 4).bytes(4).ack_req();
    let wqe = pair.wqe(1, WrOpcode::RdmaWrite);
    for (step, &(qp_state, mask)) in STEPS.iter().enumerate() {
        let answers = pair.tell(0, &theirs).len();
        assert_eq!(answers, usize::from(step == 2), "{qp_state}");
        if step == 1 {
            pair.post(wqe, 8);
        }
        pair.modify(0, QpAttr { qp_state, ..attr }, mask).unwrap();
    }
    assert_eq!(pair.listen(0), ["WRITE_ONLY +0 va +4096 of 8 len 8 A"]);
    assert_eq!(pair.port_counters(0).rx_wrong_state, 2);
}

#[test]
fn attributes_that_are_refused_change_nothing() {
    let mut pair = pair();
    let before = pair.query(0);
    let attr = QpAttr { qp_state: QpState::Rts, min_rnr_timer: 32, qp_access_flags: AccessFlags::NONE, ..before };
    let mask = QpAttrMask(QpAttrMask::STATE.0 | QpAttrMask::MIN_RNR_TIMER.0 | QpAttrMask::ACCESS_FLAGS.0);
    assert_eq!(pair.modify(0, attr, mask), Err("min_rnr_timer is 32, which is not in 0..=31".to_owned()));
    assert_eq!(pair.query(0), before);
    // A path whose own address is of another kind: found only after all other checks.
    pair.drain(false);
    let before = pair.query(0);
    let path = shm::attr::AhAttr { dgid: wire::Gid([0x20; 16]), ..before.ah_attr };
    let attr = QpAttr { ah_attr: path, timeout: 20, qp_state: QpState::Sqd, ..before };
    let mask = QpAttrMask(QpAttrMask::STATE.0 | QpAttrMask::AV.0 | QpAttrMask::TIMEOUT.0);
    assert!(pair.modify(0, attr, mask).is_err());
    assert_eq!(pair.query(0), before);
}

#[test]
fn query_tells_what_was_set() {
    let mut pair = pair();
    let attr = attributes(pair.hosts[1].ip, pair.qps[1].qpn, pair.connect, 0);
    let found = pair.query(0);
    let expected = QpAttr { qp_state: QpState::Rts, cur_qp_state: QpState::Rts, cap: found.cap, ..attr };
    assert_eq!(found, expected);
    let cap = found.cap;
    assert!(cap.max_send_wr >= CAP.max_send_wr && cap.max_send_sge >= CAP.max_send_sge);
    let wqe = pair.wqe(1, WrOpcode::RdmaWrite);
    pair.post(wqe, 600);
    pair.exchange();
    assert_eq!(pair.query(0).sq_psn, attr.sq_psn + 3);
    assert_eq!(pair.query(1).rq_psn, attr.sq_psn + 3);
}

#[test]
fn max_dest_rd_atomic_may_change_while_requests_are_answered() {
    let mut pair = pair();
    let add = |pair: &Pair, psn| pair.packet(0, Opcode::RC_FETCH_ADD, psn).atomic(BASE, pair.clients[1].key, 1, 0);
    let answer = |i: u32| format!("ATOMIC_ACK +{i} msn {} original {i}", i + 1);
    for psn in 0..6 {
        let packet = add(&pair, psn);
        assert_eq!(pair.tell(1, &packet), [answer(psn)]);
    }
    let resize = |pair: &mut Pair, max_dest_rd_atomic| {
        pair.go_to(1, QpState::Sqd);
        let attr = QpAttr { max_dest_rd_atomic, ..QpAttr::default() };
        pair.modify(1, attr, QpAttrMask::MAX_DEST_RD_ATOMIC).unwrap();
        pair.go_to(1, QpState::Rts);
    };
    let kept = |pair: &mut Pair, psns: std::ops::Range<u32>| -> Vec<u32> {
        psns.filter(|&psn| {
            let packet = add(pair, psn);
            !pair.tell(1, &packet).is_empty()
        })
        .collect()
    };
    assert_eq!(kept(&mut pair, 0..6), [2, 3, 4, 5], "four");
    resize(&mut pair, 3);
    assert_eq!(kept(&mut pair, 0..6), [3, 4, 5]);
    resize(&mut pair, 5);
    for psn in 6..8 {
        let packet = add(&pair, psn);
        assert_eq!(pair.tell(1, &packet), [answer(psn)]);
    }
    assert_eq!(kept(&mut pair, 0..8), [3, 4, 5, 6, 7]);
    // In the middle of answering: what still waits is answered, in order, and the count stays right.
    let burst: Vec<_> = (8..12).map(|psn| add(&pair, psn)).collect();
    for packet in &burst {
        pair.hosts[1].receive(pair.now, &packet.frame());
    }
    pair.go_to(1, QpState::Sqd);
    let attr = QpAttr { max_dest_rd_atomic: 2, ..QpAttr::default() };
    pair.modify(1, attr, QpAttrMask::MAX_DEST_RD_ATOMIC).unwrap();
    assert_eq!(pair.listen(1), [answer(10), answer(11)]);
    assert_eq!(pair.figure(1, "responses_pending"), 0);
    resize(&mut pair, 0);
    let packet = add(&pair, 12);
    assert_eq!(pair.tell(1, &packet), ["NAK invalid request +12 msn 12"]);
}
