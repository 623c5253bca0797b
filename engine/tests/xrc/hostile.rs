//! Requests for SRQs that are not the QP's to serve, and packets that one of its ends has no use for.

use engine::ErrorCause;
use shm::attr::{QpAttr, QpAttrMask, QpState, SrqAttr, WcStatus, WrOpcode};
use shm::control::{AsyncEvent, Reply, Request};
use wire::Opcode;

use crate::support::{CAP, Connect, HostOptions, modify};
use crate::{Xrc, make_srq};

impl Xrc {
    fn receiver_state(&mut self) -> (QpState, Option<String>) {
        match self.pair.ask(1, Request::QpDetail { qpn: self.receiver }) {
            Reply::QpDetail(detail) => (detail.summary.state, detail.error),
            other => panic!("{other:?}"),
        }
    }

    /// What a host says to a packet, in words without PSN and MSN.
    fn tell(&mut self, packet: &crate::peer::Packet) -> Vec<String> {
        self.pair.tell(1, packet)
    }
}

/// Numbers of SRQs that the receiver must not serve, by why.
fn wrong_numbers(x: &mut Xrc) -> Vec<(&'static str, u32)> {
    let ordinary = x.pair.clients[1].srq(&mut x.pair.hosts[1], SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 });
    drop(ordinary);
    let ordinary = x.srqs[1].srqn + 1;
    let Reply::Xrcd { xrcd, .. } = x.pair.ask(1, Request::OpenXrcd { create: true, exclusive: false }) else {
        panic!("no domain")
    };
    let foreign = make_srq(&mut x.pair, xrcd, 0);
    assert_eq!(foreign.srqn, ordinary + 1, "SRQs are numbered in the order that they are made");
    vec![
        ("none", 0),
        ("nobody's", 0xff_ffff),
        ("of another shard", x.srqs[0].srqn | 1 << 20),
        ("not of XRC", ordinary),
        ("of another domain", foreign.srqn),
    ]
}

#[test]
fn a_number_that_is_not_of_the_domain_breaks_the_connection_and_nothing_else() {
    let numbers = wrong_numbers(&mut Xrc::new());
    for (what, srqn) in numbers {
        for opcode in [WrOpcode::Send, WrOpcode::RdmaWrite, WrOpcode::RdmaRead, WrOpcode::AtomicCmpAndSwp] {
            let mut x = Xrc::new();
            wrong_numbers(&mut x);
            x.receive(0, 1, 100);
            x.pair.events(1);
            let before = x.pair.read(1, 4096, 8);
            x.post(x.wqe(0, 1, opcode).to_srq(srqn), 8);
            x.pair.exchange();
            assert_eq!(x.sent(), [(1, WcStatus::RemAccessErr)], "{what} {opcode}");
            let sentence = ErrorCause::WrongSrq.sentence().to_owned();
            assert_eq!(x.receiver_state(), (QpState::Err, Some(sentence)), "{what} {opcode}");
            assert_eq!(x.pair.events(1), [AsyncEvent::QpAccessErr { qpn: x.receiver }], "{what} {opcode}");
            assert_eq!(x.pair.read(1, 4096, 8), before);
            assert!(x.received(0).is_empty());
            assert_eq!(x.srqs[0].poster.free(), 7, "the receive is still there");
        }
    }
}

#[test]
fn a_message_stays_with_its_srq() {
    let mut x = Xrc::new();
    x.receive(0, 1, 1000);
    x.receive(1, 2, 1000);
    let [a, b] = [x.srqs[0].srqn, x.srqs[1].srqn];
    assert_eq!(x.tell(&x.request(Opcode::XRC_SEND_FIRST, 0, a).bytes(256)), [""; 0]);
    assert_eq!(x.tell(&x.request(Opcode::XRC_SEND_LAST, 1, b).bytes(10)).len(), 1);
    let (state, error) = x.receiver_state();
    assert_eq!((state, error.as_deref()), (QpState::Err, Some(ErrorCause::InvalidRequestReceived.sentence())));
    // What the message had taken is flushed where it came from.
    let [cqe] = x.received(0)[..] else { panic!("one completion") };
    assert_eq!((cqe.wr_id, cqe.status), (1, WcStatus::WrFlushErr.code()));
    assert!(x.received(1).is_empty());
}

#[test]
fn an_srq_may_go_in_the_middle_of_a_message() {
    // As many CQs as there are: the next has the place of the one that goes.
    let mut options = HostOptions::new(2);
    options.limits.max_cq = 3;
    let mut x = Xrc::on(Connect { path_mtu: 1, ..Connect::default() }, options);
    x.receive(0, 1, 1000);
    let (srqn, srq, cq) = (x.srqs[0].srqn, x.srqs[0].handle, x.srqs[0].cq);
    x.tell(&x.request(Opcode::XRC_SEND_FIRST, 0, srqn).bytes(256));
    assert_eq!(x.pair.ask(1, Request::DestroySrq { srq }), Reply::Done);
    assert_eq!(x.pair.ask(1, Request::DestroyCq { cq }), Reply::Done);
    // The CQ's place is another's now, which must hear nothing of it.
    let (_, mut poller) = x.pair.clients[1].another_cq(&mut x.pair.hosts[1], 4, None);
    let said = x.tell(&x.request(Opcode::XRC_SEND_LAST, 1, srqn).bytes(10));
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(x.receiver_state().0, QpState::Err);
    assert!(poller.next().is_none());
    // Reset and connected again it serves the other one.
    let reset = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
    let sessions = [x.pair.clients[0].session, x.pair.clients[1].session];
    modify(&mut x.pair.hosts[1], sessions[1], x.receiver, reset, QpAttrMask::STATE).unwrap();
    modify(&mut x.pair.hosts[0], sessions[0], x.sender.qpn, reset, QpAttrMask::STATE).unwrap();
    x.join();
    x.receive(1, 2, 100);
    x.post(x.wqe(1, 3, WrOpcode::Send), 10);
    x.pair.exchange();
    assert_eq!(x.sent(), [(3, WcStatus::Success)]);
    assert_eq!(x.received(1).len(), 1);
}

#[test]
fn neither_end_takes_what_is_the_others() {
    let mut x = Xrc::new();
    let answer = x.pair.packet(0, Opcode::XRC_ACK, 0).aeth(0x1f, 0);
    let mut to_receiver = answer.clone();
    to_receiver.bth.dest_qpn = wire::Qpn::new(x.receiver);
    assert_eq!(x.tell(&to_receiver), [""; 0]);
    let mut to_sender = x.pair.packet(1, Opcode::XRC_WRITE_ONLY, 0);
    to_sender.bth.dest_qpn = wire::Qpn::new(x.sender.qpn);
    to_sender.ext.extend(wire::XrcEthRepr { srqn: x.srqs[0].srqn }.to_bytes());
    assert_eq!(x.pair.tell(0, &to_sender.reth(crate::support::BASE, x.pair.clients[0].key, 4).bytes(4)), [""; 0]);
    // RC is another service.
    let mut rc = x.pair.packet(0, Opcode::RC_SEND_ONLY, 0).bytes(4);
    rc.bth.dest_qpn = wire::Qpn::new(x.receiver);
    assert_eq!(x.tell(&rc), [""; 0]);
    assert_eq!((x.pair.port_counters(0).rx_wrong_service, x.pair.port_counters(1).rx_wrong_service), (1, 2));
}

#[test]
fn a_cq_that_overruns_takes_its_srq_along_and_not_the_domains_connections() {
    let mut x = Xrc::new();
    x.pair.events(1);
    // The CQ has room for 4.
    for wr_id in 0..5 {
        x.receive(0, wr_id, 100);
        x.post(x.wqe(0, wr_id, WrOpcode::Send), 10);
    }
    x.pair.exchange();
    assert_eq!(x.sent().len(), 5);
    let (cq, srq) = (x.srqs[0].cq, x.srqs[0].handle);
    assert_eq!(x.pair.events(1), [AsyncEvent::CqErr { cq }, AsyncEvent::SrqErr { srq }]);
    x.receive(1, 9, 100);
    x.post(x.wqe(1, 9, WrOpcode::Send), 10);
    x.pair.exchange();
    assert_eq!(x.sent(), [(9, WcStatus::Success)]);
    assert_eq!(x.received(1).len(), 1);
}

#[test]
fn requests_for_objects_of_others_are_refused_with_a_sentence() {
    const EINVAL: i32 = 22;
    const EBUSY: i32 = 16;
    let mut x = Xrc::new();
    let (pd, cq) = (x.pair.clients[1].pd, x.pair.clients[1].cq);
    let (xrcd, receiver, srq) = (x.xrcd, x.receiver, x.srqs[0].handle);
    let attr = SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    let (send_cq, recv_cq, cap, sq_sig_all) = (cq, cq, CAP, false);
    let qp = |qp_type, srq| Request::CreateQp { pd, qp_type, send_cq, recv_cq, srq, cap, sq_sig_all };
    let ordinary = x.pair.qps[1].qpn;
    use shm::attr::QpType::{Rc, XrcRecv, XrcSend};
    let cases = [
        (Request::CloseXrcd { xrcd: 999 }, EINVAL, "XRC domain 999 does not exist".to_owned()),
        (Request::CloseXrcd { xrcd }, EBUSY, format!("XRC domain {xrcd} is used by 3 objects: destroy them first")),
        (Request::CreateXrcQp { xrcd: 999 }, EINVAL, "XRC domain 999 does not exist".to_owned()),
        (Request::CreateXrcSrq { pd: 999, xrcd, cq, attr }, EINVAL, "protection domain 999 does not exist".to_owned()),
        (Request::CreateXrcSrq { pd, xrcd: 999, cq, attr }, EINVAL, "XRC domain 999 does not exist".to_owned()),
        (Request::CreateXrcSrq { pd, xrcd, cq: 999, attr }, EINVAL, "CQ 999 does not exist".to_owned()),
        (
            Request::OpenXrcQp { xrcd, qpn: ordinary + 77 },
            EINVAL,
            format!("QP {:#08x} does not exist in XRC domain {xrcd}", ordinary + 77),
        ),
        (Request::OpenXrcQp { xrcd, qpn: receiver }, EINVAL, format!("QP {receiver:#08x} is the session's already")),
        (qp(XrcRecv, None), EINVAL, "an XRC_RECV QP is made in an XRC domain, not in a protection domain".to_owned()),
        (qp(XrcSend, Some(srq)), EINVAL, "an XRC_SEND QP takes no receives, so it can't have an SRQ".to_owned()),
        (
            qp(Rc, Some(srq)),
            EINVAL,
            format!("SRQ {srq} is of an XRC domain: only QPs of the domain take receives from it"),
        ),
        (Request::DestroyCq { cq: x.srqs[0].cq }, EBUSY, String::new()),
    ];
    for (request, errno, sentence) in cases {
        let what = format!("{request:?}");
        let Reply::Refused { errno: got, message } = x.pair.ask(1, request) else { panic!("{what}") };
        assert_eq!(got, errno, "{what}");
        assert!(sentence.is_empty() || message == sentence, "{what}: {message}");
    }
}
