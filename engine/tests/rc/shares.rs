//! What one user may have of what all share: half of it here, and each kind is refused in its own words.

use engine::config::Limits;
use engine::control::Peer;
use shm::attr::{AccessFlags, QpAttr, QpAttrMask, QpState, QpType, SrqAttr};
use shm::control::{Reply, Request};

use crate::support::{BASE, CAP, Client, Connect, Host, HostOptions, STEPS, attributes, modify};

fn host(limits: Limits) -> Host {
    Host::new(HostOptions { limits: Limits { user_share_percent: 50, ..limits }, ..HostOptions::new(1) })
}

/// What a request is refused with; the empty string if it is not.
fn refusal(host: &mut Host, client: &Client, request: Request) -> String {
    match host.request(client.session, request, vec![]).0 {
        Reply::Refused { message, .. } => message,
        _ => String::new(),
    }
}

#[test]
fn sessions() {
    let mut host = host(Limits { max_session: 5, ..Limits::default() });
    let mut open = |uid| host.control.open_session(Peer { pid: 1, uid });
    let first: Vec<u32> = (0..3).map(|_| open(7).unwrap()).collect();
    let refused = open(7).unwrap_err();
    assert_eq!(refused, "user 7 has 3 clients: the limit user_share_percent = 50 grants 3 of 5");
    open(0).unwrap();
    open(0).unwrap();
    assert!(open(0).unwrap_err().contains("max_session"), "there are no more");
    let [session, ..] = first[..] else { panic!("three sessions") };
    host.control.close_session(&mut host.shards, session);
    host.control.open_session(Peer { pid: 1, uid: 7 }).unwrap();
}

#[test]
fn objects_of_all_sessions_of_a_user_count_and_another_user_gets_the_rest() {
    let mut host = host(Limits { max_qp: 4, max_cq: 8, max_srq: 4, max_mr: 8, ..Limits::default() });
    // Each has a CQ and a region.
    let (one, same) = (Client::of_user(&mut host, 7, 1 << 20), Client::of_user(&mut host, 7, 1 << 20));
    let other = Client::of_user(&mut host, 8, 1 << 20);
    let cq = |_: &Client| Request::CreateCq { cqe: 16, channel: None, comp_vector: None };
    let srq = |client: &Client| {
        let attr = SrqAttr { max_wr: 16, max_sge: 1, srq_limit: 0 };
        Request::CreateSrq { pd: client.pd, cq: Some(client.cq), attr }
    };
    let qp = |client: &Client| {
        let (pd, cq) = (client.pd, client.cq);
        Request::CreateQp { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, cap: CAP, sq_sig_all: false }
    };
    let mr = |client: &Client| {
        let (pd, memory, access) = (client.pd, client.attached, AccessFlags::NONE);
        Request::RegMr { pd, memory, offset: 0, addr: BASE, length: 64, access }
    };
    type Make<'a> = &'a dyn Fn(&Client) -> Request;
    let kinds: [(&str, Make<'_>); 4] = [
        ("user 7 has 4 CQs on an lcore: the limit user_share_percent = 50 grants 4 of 8", &cq),
        ("user 7 has 2 SRQs on an lcore: the limit user_share_percent = 50 grants 2 of 4", &srq),
        ("user 7 has 2 QPs on an lcore: the limit user_share_percent = 50 grants 2 of 4", &qp),
        ("user 7 has 4 regions and windows: the limit user_share_percent = 50 grants 4 of 8", &mr),
    ];
    for (sentence, make) in kinds {
        assert_eq!(refusal(&mut host, &one, make(&one)), "");
        assert_eq!(refusal(&mut host, &same, make(&same)), "");
        for client in [&one, &same] {
            assert_eq!(refusal(&mut host, client, make(client)), sentence);
        }
        assert_eq!(refusal(&mut host, &other, make(&other)), "", "{sentence}");
    }
    // What a session had is its user's again.
    host.control.close_session(&mut host.shards, same.session);
    for (sentence, make) in kinds {
        assert_eq!(refusal(&mut host, &one, make(&one)), "", "{sentence}");
    }
}

#[test]
fn neighbours_count_once_whichever_qp_has_them() {
    let mut host = host(Limits { max_neighbour: 4, ..Limits::default() });
    let mut clients = [7, 7, 8].map(|uid| Client::of_user(&mut host, uid, 1 << 20));
    let mut connect = |host: &mut Host, client: usize, peer: u8| {
        let qp = clients[client].qp(host, CAP);
        let attr = attributes([10, 0, 0, peer].into(), 17, Connect::default(), 0);
        let steps = STEPS.iter().take(2).try_for_each(|&(qp_state, mask)| {
            modify(host, clients[client].session, qp.qpn, QpAttr { qp_state, ..attr }, mask).map(drop)
        });
        (clients[client].session, qp.qpn, steps)
    };
    let sentence = "user 7 has 2 neighbours of a port: the limit user_share_percent = 50 grants 2 of 4";
    let (session, qpn, first) = connect(&mut host, 0, 11);
    first.unwrap();
    connect(&mut host, 1, 12).2.unwrap();
    assert_eq!(connect(&mut host, 0, 13).2.unwrap_err(), sentence);
    connect(&mut host, 0, 12).2.unwrap();
    connect(&mut host, 1, 1).2.expect("its own address is no neighbour");
    connect(&mut host, 2, 13).2.expect("another user");
    // A QP that goes back to RESET lets go of its neighbour, as one that is destroyed does.
    let reset = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
    modify(&mut host, session, qpn, reset, QpAttrMask::STATE).unwrap();
    let (session, qpn, third) = connect(&mut host, 1, 13);
    third.unwrap();
    assert_eq!(connect(&mut host, 0, 14).2.unwrap_err(), sentence);
    assert_eq!(host.request(session, Request::DestroyQp { qpn }, vec![]).0, Reply::Done);
    connect(&mut host, 0, 14).2.unwrap();
}
