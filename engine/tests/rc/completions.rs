//! Completion queues: who is told of what, when, and what happens if nobody listens.

use engine::ErrorCause;
use shm::attr::{QpState, QpType, SendFlags, WcOpcode, WcStatus, WrOpcode};
use shm::control::{AsyncEvent, Reply, Request};
use shm::layout::{Arm, SendWqe};
use shm::ring::Body;

use crate::peer::{done, wr_ids};
use crate::support::{CAP, Connect, Pair, connect};

impl Pair {
    /// Completion queues of both kinds for side 0's QP: one of `cqe` entries for sends, with a channel.
    fn with_send_cq(cqe: u32, sq_sig_all: bool) -> (Self, shm::ring::CqPoller, u32) {
        let mut pair = Self::new(Connect::default());
        let Reply::Handle(channel) = pair.ask(0, Request::CreateChannel) else { panic!() };
        let (client, host) = (&mut pair.clients[0], &mut pair.hosts[0]);
        let (send_cq, poller) = client.another_cq(host, cqe, Some(channel));
        let request = Request::CreateQp {
            pd: client.pd,
            qp_type: QpType::Rc,
            send_cq,
            recv_cq: client.cq,
            srq: None,
            cap: CAP,
            sq_sig_all,
        };
        let qp = client.qp_from(host, request);
        let peer = pair.clients[1].qp(&mut pair.hosts[1], CAP);
        let ips = [pair.hosts[0].ip, pair.hosts[1].ip];
        connect(&mut pair.hosts[0], pair.clients[0].session, qp.qpn, ips[1], peer.qpn, pair.connect, 0);
        connect(&mut pair.hosts[1], pair.clients[1].session, peer.qpn, ips[0], qp.qpn, pair.connect, 1);
        pair.qps = [qp, peer];
        (pair, poller, send_cq)
    }

    fn unsignalled(&self, wr_id: u64, opcode: WrOpcode) -> SendWqe {
        SendWqe { flags: 0, ..self.wqe(wr_id, opcode) }
    }
}

#[test]
fn completions_say_what_was_done() {
    let mut pair = Pair::new(Connect::default());
    let table = [
        (WrOpcode::RdmaWrite, WcOpcode::RdmaWrite, None),
        (WrOpcode::RdmaWriteWithImm, WcOpcode::RdmaWrite, Some(WcOpcode::RecvRdmaWithImm)),
        (WrOpcode::Send, WcOpcode::Send, Some(WcOpcode::Recv)),
        (WrOpcode::SendWithImm, WcOpcode::Send, Some(WcOpcode::Recv)),
        (WrOpcode::RdmaRead, WcOpcode::RdmaRead, None),
        (WrOpcode::AtomicCmpAndSwp, WcOpcode::CompSwap, None),
        (WrOpcode::AtomicFetchAndAdd, WcOpcode::FetchAdd, None),
    ];
    for (opcode, sent, received) in table {
        pair.receive(50, 64);
        let wqe = pair.wqe(1, opcode);
        pair.post(wqe, 8);
        pair.advance(1000);
        let [cqe] = pair.clients[0].poll()[..] else { panic!("{opcode}") };
        assert_eq!((cqe.wr_id, cqe.opcode, cqe.qpn, cqe.byte_len), (1, sent.code(), pair.qps[0].qpn, 8), "{opcode}");
        assert_eq!(cqe.timestamp_ns, pair.now.as_ns());
        let found: Vec<_> = pair.clients[1].poll().iter().map(|c| (c.opcode, c.qpn, c.src_qpn, c.byte_len)).collect();
        let expected = received.map(|r| (r.code(), pair.qps[1].qpn, pair.qps[0].qpn, 8));
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{opcode}");
    }
}

#[test]
fn a_cq_that_grows_loses_nothing_and_stays_armed() {
    let (mut pair, mut small, cq) = Pair::with_send_cq(2, false);
    small.arm(Arm::Any);
    let complete = |pair: &mut Pair, wr_ids: std::ops::Range<u64>| {
        for wr_id in wr_ids {
            let wqe = pair.wqe(wr_id, WrOpcode::RdmaWrite);
            pair.post(wqe, 8);
            pair.advance(1000);
        }
    };
    let ids = |poller: &mut shm::ring::CqPoller| -> Vec<u64> {
        std::iter::from_fn(|| poller.next()).map(|cqe| cqe.wr_id).collect()
    };
    complete(&mut pair, 0..2);
    assert_eq!(small.take_notified(), 1);
    small.arm(Arm::Any);
    let (client, host) = (&mut pair.clients[0], &mut pair.hosts[0]);
    let mut large = client.resized(host, cq, 5, &small);
    complete(&mut pair, 2..10);
    assert_eq!((ids(&mut small), ids(&mut large)), (vec![0, 1], (2..10).collect()));
    assert_eq!(large.take_notified(), 1);
    // It overruns at its own depth; a larger ring does not bring back what was lost.
    large.publish();
    complete(&mut pair, 10..19);
    assert!(large.overrun());
    let (client, host) = (&mut pair.clients[0], &mut pair.hosts[0]);
    let mut larger = client.resized(host, cq, 64, &large);
    complete(&mut pair, 19..20);
    assert_eq!((ids(&mut large), ids(&mut larger)), ((10..18).collect(), vec![]));
    let refused = |pair: &mut Pair, cq, cqe| {
        matches!(pair.ask(0, Request::ResizeCq { cq, cqe }), Reply::Refused { errno: 22, .. })
    };
    assert!(refused(&mut pair, cq, 0) && refused(&mut pair, cq, u32::MAX) && refused(&mut pair, 12_345, 4));
}

#[test]
fn unsignalled_requests_complete_in_silence_and_give_their_slots_back() {
    let mut pair = Pair::new(Connect::default());
    for round in 0..5 {
        // All 64 slots, of which the last is signalled.
        for wr_id in 0..64 {
            let quiet = pair.unsignalled(wr_id, WrOpcode::RdmaWrite);
            let wqe = if wr_id == 63 { pair.wqe(63, WrOpcode::RdmaWrite) } else { quiet };
            let sge = pair.clients[0].sge(0, 16);
            pair.qps[0].send.post(wqe, Body::Sges(&[sge])).unwrap_or_else(|e| panic!("round {round}, {wr_id}: {e}"));
        }
        let extra = pair.unsignalled(64, WrOpcode::RdmaWrite);
        assert_eq!(pair.qps[0].send.post(extra, Body::Sges(&[])), Err(shm::ring::PostError::Full));
        pair.qps[0].ring();
        pair.exchange();
        assert_eq!(pair.failures(0), [done(63)]);
    }
    assert_eq!(pair.counters(0).completed_wqes, 320);
}

#[test]
fn slots_of_unsignalled_requests_come_back_without_any_signalled_one() {
    let mut pair = Pair::new(Connect::default());
    for _ in 0..3 {
        for wr_id in 0..64 {
            let quiet = pair.unsignalled(wr_id, WrOpcode::RdmaWrite);
            pair.qps[0].send.post(quiet, Body::Sges(&[])).unwrap();
        }
        pair.qps[0].ring();
        pair.exchange();
        assert_eq!((pair.failures(0), pair.qps[0].send.free()), (vec![], 64));
    }
}

#[test]
fn sq_sig_all_signals_everything() {
    let (mut pair, mut poller, _) = Pair::with_send_cq(16, true);
    let quiet = pair.unsignalled(5, WrOpcode::RdmaWrite);
    pair.post(quiet, 8);
    pair.exchange();
    assert_eq!(poller.next().map(|c| c.wr_id), Some(5));
}

#[test]
fn an_armed_cq_notifies_once() {
    let (mut pair, mut poller, _) = Pair::with_send_cq(16, false);
    let write = pair.wqe(1, WrOpcode::RdmaWrite);
    pair.post(write, 8);
    pair.exchange();
    assert_eq!(poller.take_notified(), 0, "nobody asked");
    poller.arm(Arm::Any);
    pair.exchange();
    assert_eq!(poller.take_notified(), 0, "what came before is no news");
    for expected in [1, 0] {
        pair.post(write, 8);
        pair.exchange();
        assert_eq!(poller.take_notified(), expected);
    }
    // A signalled success is nothing solicited; a failure is.
    poller.arm(Arm::Solicited);
    pair.post(write, 8);
    pair.exchange();
    assert_eq!(poller.take_notified(), 0);
    pair.go_to(0, QpState::Err);
    pair.post(write, 8);
    pair.exchange();
    assert_eq!(poller.take_notified(), 1);
}

#[test]
fn the_solicited_event_bit_is_on_the_last_packet_of_what_may_solicit() {
    use WrOpcode::{RdmaRead, RdmaWrite, RdmaWriteWithImm, Send, SendWithImm};
    for (opcode, may) in
        [(Send, true), (SendWithImm, true), (RdmaWriteWithImm, true), (RdmaWrite, false), (RdmaRead, false)]
    {
        for (length, flag) in [(8, true), (3000, true), (3000, false)] {
            let mut pair = Pair::new(Connect::default());
            pair.receive(50, 4096);
            let wqe = pair.wqe(1, opcode);
            let flags = if flag { wqe.flags | SendFlags::SOLICITED.0 } else { wqe.flags };
            pair.post(SendWqe { flags, ..wqe }, length);
            let said = pair.listen(0);
            let (last, before) = said.split_last().unwrap();
            assert_eq!(last.ends_with(" SE"), may && flag, "{opcode}: {last}");
            assert!(before.iter().all(|s| !s.ends_with(" SE")), "{opcode}");
        }
    }
}

#[test]
fn a_solicited_message_notifies_a_cq_armed_for_it() {
    let (mut pair, mut poller, cq) = Pair::with_send_cq(16, false);
    // Side 0 receives on the CQ with the channel.
    let (client, host) = (&mut pair.clients[0], &mut pair.hosts[0]);
    let request = Request::CreateQp {
        pd: client.pd,
        qp_type: QpType::Rc,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        cap: CAP,
        sq_sig_all: false,
    };
    pair.qps[0] = client.qp_from(host, request);
    let (ip, peer, qpn) = (pair.hosts[1].ip, pair.qps[1].qpn, pair.qps[0].qpn);
    connect(&mut pair.hosts[0], pair.clients[0].session, qpn, ip, peer, pair.connect, 0);
    for wr_id in 50..53 {
        let sge = pair.clients[0].sge(0, 64);
        pair.qps[0].post_recv(wr_id, &[sge]);
    }
    poller.arm(Arm::Solicited);
    let plain = pair.packet(1, wire::Opcode::RC_SEND_ONLY, 0).bytes(8);
    let solicited = pair.packet(1, wire::Opcode::RC_SEND_ONLY, 1).bytes(8).solicited();
    let once_more = pair.packet(1, wire::Opcode::RC_SEND_ONLY, 2).bytes(8).solicited();
    for (packet, notified) in [(plain, 0), (solicited, 1), (once_more, 0)] {
        assert_eq!(pair.tell(0, &packet), [""; 0]);
        assert_eq!(poller.take_notified(), notified);
    }
}

#[test]
fn a_cq_that_nobody_polls_breaks_its_qps_only() {
    let (mut pair, mut poller, cq) = Pair::with_send_cq(4, false);
    let other = pair.clients[0].qp(&mut pair.hosts[0], CAP);
    for wr_id in 0..6 {
        let write = pair.wqe(wr_id, WrOpcode::RdmaWrite);
        pair.post(write, 8);
    }
    pair.exchange();
    let qpn = pair.qps[0].qpn;
    assert_eq!(pair.events(0), [AsyncEvent::CqErr { cq }, AsyncEvent::QpFatal { qpn }]);
    assert_eq!(pair.state(0), QpState::Err);
    assert_eq!(pair.detail(0).error.as_deref(), Some(ErrorCause::CqOverrun.sentence()));
    assert!(poller.overrun());
    let found: Vec<_> = std::iter::from_fn(|| poller.next()).map(|c| c.wr_id).collect();
    assert_eq!(found, [0, 1, 2, 3], "what was there before stays");
    poller.publish();
    pair.exchange();
    assert!(poller.next().is_none(), "and nothing comes after it");
    assert_eq!(pair.counters(0).cq_overrun, 2);
    // The session's other QP, on another CQ, goes on.
    let ip = pair.hosts[1].ip;
    let peer = pair.clients[1].qp(&mut pair.hosts[1], CAP);
    connect(&mut pair.hosts[0], pair.clients[0].session, other.qpn, ip, peer.qpn, pair.connect, 0);
    let ip = pair.hosts[0].ip;
    connect(&mut pair.hosts[1], pair.clients[1].session, peer.qpn, ip, other.qpn, pair.connect, 1);
    pair.qps = [other, peer];
    let write = pair.wqe(9, WrOpcode::RdmaWrite);
    pair.post(write, 8);
    pair.exchange();
    assert_eq!(wr_ids(&mut pair.clients[0]), [9]);
}

#[test]
fn a_full_cq_that_is_polled_in_time_loses_nothing() {
    let (mut pair, mut poller, _) = Pair::with_send_cq(4, false);
    let mut found = Vec::new();
    for round in 0..8 {
        for i in 0..4 {
            let write = pair.wqe(round * 4 + i, WrOpcode::RdmaWrite);
            pair.post(write, 8);
        }
        pair.exchange();
        found.extend(std::iter::from_fn(|| poller.next()).map(|c| (c.wr_id, WcStatus::from_code(c.status).unwrap())));
        poller.publish();
    }
    assert_eq!(found, (0..32).map(|i| (i, WcStatus::Success)).collect::<Vec<_>>());
    assert_eq!(pair.events(0), []);
}
