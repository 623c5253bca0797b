//! Shared receive queues.

use engine::ErrorCause;
use shm::attr::{QpState, QpType, SrqAttr, WcStatus};
use shm::control::{AsyncEvent, Reply, Request};
use shm::layout::PRODUCER;
use shm::ring::RecvPoster;
use shm::segment::Block;
use wire::{Opcode, Qpn};

use crate::peer::{done, failed};
use crate::support::{CAP, Connect, Pair, TestQp, connect};

/// Side 1's QP takes its receives from an SRQ of 8.
struct SrqPair {
    pair: Pair,
    srq: u32,
    poster: RecvPoster,
    block: Block,
}

impl SrqPair {
    fn new() -> Self {
        let mut pair = Pair::new(Connect { path_mtu: 1, ..Connect::default() });
        let attr = SrqAttr { max_wr: 8, max_sge: 1, srq_limit: 0 };
        let (srq, poster, block) = pair.clients[1].srq(&mut pair.hosts[1], attr);
        let mut this = Self { pair, srq, poster, block };
        this.pair.qps[1] = this.qp();
        this
    }

    /// A QP of side 1 on the SRQ, connected to side 0's.
    fn qp(&mut self) -> TestQp {
        let pair = &mut self.pair;
        let client = &mut pair.clients[1];
        let request = Request::CreateQp {
            pd: client.pd,
            qp_type: QpType::Rc,
            send_cq: client.cq,
            recv_cq: client.cq,
            srq: Some(self.srq),
            cap: CAP,
            sq_sig_all: false,
        };
        let qp = client.qp_from(&mut pair.hosts[1], request);
        let (ip, peer) = (pair.hosts[0].ip, pair.qps[0].qpn);
        connect(&mut pair.hosts[1], pair.clients[1].session, qp.qpn, ip, peer, pair.connect, 1);
        qp
    }

    fn post(&mut self, wr_ids: std::ops::Range<u64>) {
        for wr_id in wr_ids {
            let sge = self.pair.clients[1].sge(65_536 + wr_id * 256, 256);
            self.poster.post(wr_id, &[sge]).unwrap();
        }
        self.poster.publish();
    }

    fn send(&mut self, psn: u32) -> Vec<String> {
        self.send_to(self.pair.qps[1].qpn, psn)
    }

    /// A SEND to any QP of side 1, and its answer.
    fn send_to(&mut self, qpn: u32, psn: u32) -> Vec<String> {
        let mut send = self.pair.packet(0, Opcode::RC_SEND_ONLY, psn).bytes(8).ack_req();
        send.bth.dest_qpn = Qpn::new(qpn);
        self.pair.tell(1, &send)
    }
}

#[test]
fn qps_of_an_srq_take_its_receives_in_turn() {
    let mut it = SrqPair::new();
    it.post(0..4);
    let [a, b] = [it.pair.qps[1].qpn, it.qp().qpn];
    for psn in 0..2 {
        for qpn in [a, b] {
            assert_eq!(it.send_to(qpn, psn), [format!("ACK +{psn} msn {}", psn + 1)]);
        }
    }
    let found: Vec<_> = it.pair.clients[1].poll().iter().map(|c| (c.wr_id, c.qpn)).collect();
    assert_eq!(found, [(0, a), (1, b), (2, a), (3, b)]);
}

#[test]
fn an_empty_srq_draws_an_rnr_nak() {
    let mut it = SrqPair::new();
    assert_eq!(it.send(0), ["RNR NAK 0.64 ms +0 msn 0"]);
    it.post(0..1);
    assert_eq!(it.send(0), ["ACK +0 msn 1"]);
    assert_eq!(it.pair.failures(1), [done(0)]);
}

#[test]
fn the_limit_event_comes_once_when_fewer_are_left() {
    let mut it = SrqPair::new();
    it.post(0..8);
    let srq = it.srq;
    assert_eq!(it.pair.ask(1, Request::ModifySrq { srq, srq_limit: 6 }), Reply::Done);
    for psn in 0..2 {
        let _ = it.send(psn);
        assert_eq!(it.pair.events(1), [], "{} are left, not fewer than 6", 7 - psn);
    }
    let limit = |it: &mut SrqPair| match it.pair.ask(1, Request::QuerySrq { srq }) {
        Reply::SrqAttr(attr) => (attr.max_wr, attr.srq_limit),
        other => panic!("{other:?}"),
    };
    assert_eq!(limit(&mut it), (8, 6));
    let _ = it.send(2);
    assert_eq!(it.pair.events(1), [AsyncEvent::SrqLimitReached { srq }]);
    assert_eq!(limit(&mut it), (8, 0), "used up");
    let _ = it.send(3);
    assert_eq!(it.pair.events(1), []);
    // Armed above what is there: at once.
    assert_eq!(it.pair.ask(1, Request::ModifySrq { srq, srq_limit: 5 }), Reply::Done);
    assert_eq!(it.pair.events(1), [AsyncEvent::SrqLimitReached { srq }]);
    let Reply::Refused { errno, message } = it.pair.ask(1, Request::ModifySrq { srq, srq_limit: 9 }) else { panic!() };
    assert_eq!((errno, message.as_str()), (22, "a limit of 9: the SRQ holds at most 8 receives"));
}

#[test]
fn a_qp_in_err_reports_its_last_receive_and_leaves_the_others() {
    let mut it = SrqPair::new();
    it.post(0..3);
    let first = it.pair.packet(0, Opcode::RC_SEND_FIRST, 0).bytes(256);
    assert_eq!(it.pair.tell(1, &first), [""; 0]);
    it.pair.go_to(1, QpState::Err);
    it.pair.exchange();
    let qpn = it.pair.qps[1].qpn;
    // The receive that it had taken is flushed, then comes the event; the SRQ keeps the rest.
    assert_eq!(it.pair.failures(1), [failed(0, WcStatus::WrFlushErr, ErrorCause::Flushed)]);
    assert_eq!(it.pair.events(1), [AsyncEvent::QpLastWqeReached { qpn }]);
    it.pair.qps[1] = it.qp();
    let _ = it.send(0);
    assert_eq!(it.pair.failures(1), [done(1)]);
}

#[test]
fn an_srq_whose_ring_is_garbage_fails_for_good() {
    let mut it = SrqPair::new();
    it.post(0..1);
    // An index far ahead of what the ring holds.
    it.block.mapping.write(it.block.offset + PRODUCER, &1000u32.to_ne_bytes()).unwrap();
    let (srq, qpn) = (it.srq, it.pair.qps[1].qpn);
    assert_eq!(it.send(0), ["NAK remote operational error +0 msn 0"]);
    let events = it.pair.events(1);
    let expected = [AsyncEvent::SrqErr { srq }, AsyncEvent::QpFatal { qpn }, AsyncEvent::QpLastWqeReached { qpn }];
    assert_eq!(events, expected);
    assert_eq!(it.pair.detail(1).error.as_deref(), Some(ErrorCause::BadRingIndex.sentence()));
    assert_eq!(it.pair.counters(1).bad_ring_index, 1);
    // Another QP on it finds no receive; the engine is well.
    it.pair.qps[1] = it.qp();
    assert_eq!(it.send(0), ["RNR NAK 0.64 ms +0 msn 0"]);
}
