//! XRC domains: whose they are, and how long they and their QPs live.

use std::fs::File;
use std::os::fd::OwnedFd;

use shm::attr::{QpType, WcStatus, WrOpcode};
use shm::control::{Reply, Request};
use shm::layout::Sge;

use crate::peer::pattern;
use crate::support::{BASE, CAP, Client, Connect, Host, HostOptions, Pair, connect};

const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;
const EBUSY: i32 = 16;

/// A file that nobody else has.
fn file() -> File {
    let memory = shm::mapping::Mapping::create(c"xrcd", 4096, shm::mapping::PageSize::Base).unwrap();
    memory.fd().try_clone_to_owned().unwrap().into()
}

fn open(host: &mut Host, session: u32, file: Option<&File>, create: bool, exclusive: bool) -> Result<(u32, u8), i32> {
    let fds = file.map(|file| OwnedFd::from(file.try_clone().unwrap())).into_iter().collect();
    match host.request(session, Request::OpenXrcd { create, exclusive }, fds).0 {
        Reply::Xrcd { xrcd, shard } => Ok((xrcd, shard)),
        Reply::Refused { errno, .. } => Err(errno),
        other => panic!("{other:?}"),
    }
}

fn ask(host: &mut Host, session: u32, request: Request) -> Result<Reply, i32> {
    match host.request(session, request, vec![]).0 {
        Reply::Refused { errno, .. } => Err(errno),
        reply => Ok(reply),
    }
}

fn receiver(host: &mut Host, session: u32, xrcd: u32) -> u32 {
    match ask(host, session, Request::CreateXrcQp { xrcd }) {
        Ok(Reply::XrcQp { qpn, .. }) => qpn,
        other => panic!("{other:?}"),
    }
}

/// The flags of `open(2)` mean what they mean there.
#[test]
fn a_files_domain_is_one_for_the_user_and_flags_say_if_it_may_be_new() {
    let mut host = Host::new(HostOptions::new(1));
    let [a, b] = [(); 2].map(|()| Client::of_user(&mut host, 7, 4096).session);
    let other = Client::of_user(&mut host, 8, 4096).session;
    let (file, another) = (file(), file());
    assert_eq!(open(&mut host, a, Some(&file), false, false), Err(EAGAIN));
    let (xrcd, _) = open(&mut host, a, Some(&file), true, true).unwrap();
    assert_eq!(open(&mut host, b, Some(&file), true, true), Err(EINVAL));
    let (shared, _) = open(&mut host, b, Some(&file), false, false).unwrap();
    assert_eq!(open(&mut host, b, Some(&another), false, false), Err(EAGAIN));
    assert_eq!(open(&mut host, other, Some(&file), false, false), Err(EAGAIN), "another user's is another domain");
    // A QP of the one is a QP of the other, and of no third.
    let qpn = receiver(&mut host, a, xrcd);
    assert!(matches!(ask(&mut host, b, Request::OpenXrcQp { xrcd: shared, qpn }), Ok(Reply::XrcQp { .. })));
    let (private, _) = open(&mut host, b, None, false, false).unwrap();
    let (own, _) = open(&mut host, other, Some(&file), true, false).unwrap();
    let qpn = receiver(&mut host, a, xrcd);
    assert_eq!(ask(&mut host, b, Request::OpenXrcQp { xrcd: private, qpn }), Err(EINVAL));
    assert_eq!(ask(&mut host, other, Request::OpenXrcQp { xrcd: own, qpn }), Err(EINVAL));
}

#[test]
fn a_domain_goes_with_its_last_handle() {
    let mut host = Host::new(HostOptions::new(1));
    let [a, b] = [(); 2].map(|()| Client::of_user(&mut host, 7, 4096).session);
    let file = file();
    let (xrcd, _) = open(&mut host, a, Some(&file), true, false).unwrap();
    let (shared, _) = open(&mut host, b, Some(&file), false, false).unwrap();
    assert_eq!(ask(&mut host, a, Request::CloseXrcd { xrcd }), Ok(Reply::Done));
    assert_eq!(ask(&mut host, a, Request::CloseXrcd { xrcd }), Err(EINVAL));
    let (again, _) = open(&mut host, a, Some(&file), false, false).unwrap();
    host.control.close_session(&mut host.shards, b);
    assert_eq!(ask(&mut host, a, Request::CloseXrcd { xrcd: again }), Ok(Reply::Done));
    assert_eq!(open(&mut host, a, Some(&file), false, false), Err(EAGAIN));
    assert_eq!(ask(&mut host, a, Request::CreateXrcQp { xrcd: shared }), Err(EINVAL));
}

#[test]
fn limits_hold_and_what_is_given_back_can_be_had_again() {
    let mut options = HostOptions::new(1);
    options.limits.max_xrcd = 2;
    options.limits.max_qp = 3;
    let mut host = Host::new(options);
    let session = Client::new(&mut host, 4096).session;
    for _ in 0..3 {
        let [a, b] = [(); 2].map(|()| open(&mut host, session, None, true, false).unwrap().0);
        assert_eq!(open(&mut host, session, None, true, false), Err(ENOMEM));
        let qps = [a, b, b].map(|xrcd| receiver(&mut host, session, xrcd));
        assert_eq!(ask(&mut host, session, Request::CreateXrcQp { xrcd: a }), Err(ENOMEM));
        assert_eq!(ask(&mut host, session, Request::CloseXrcd { xrcd: b }), Err(EBUSY));
        for qpn in qps {
            assert_eq!(ask(&mut host, session, Request::DestroyQp { qpn }), Ok(Reply::Done));
        }
        for xrcd in [a, b] {
            assert_eq!(ask(&mut host, session, Request::CloseXrcd { xrcd }), Ok(Reply::Done));
        }
    }
}

/// Two processes of a user receive by one connection, each by its own SRQ; the one that made the QP goes first.
#[test]
fn a_qp_serves_the_sessions_of_its_domain_until_the_last_is_gone() {
    let mut pair = Pair::new(Connect::default());
    let file = file();
    let maker = pair.clients[1].session;
    let mut other = Client::new(&mut pair.hosts[1], 1 << 16);
    let host = &mut pair.hosts[1];
    let (xrcd, _) = open(host, maker, Some(&file), true, false).unwrap();
    let (shared, _) = open(host, other.session, Some(&file), false, false).unwrap();
    let qpn = receiver(host, maker, xrcd);
    assert!(ask(host, other.session, Request::OpenXrcQp { xrcd: shared, qpn }).is_ok());
    let (pd, cq) = (other.pd, other.cq);
    let (_, srqn, mut poster) = other.xrc_srq(host, pd, shared, cq);
    let mut sender = pair.clients[0].qp_of(&mut pair.hosts[0], QpType::XrcSend, CAP);
    let ips = [pair.hosts[0].ip, pair.hosts[1].ip];
    let (send, recv) = (QpType::XrcSend, QpType::XrcRecv);
    let session = pair.clients[0].session;
    connect(&mut pair.hosts[0], session, sender.qpn, ips[1], qpn, Connect { kind: send, ..pair.connect }, 0);
    // Either of them may connect it.
    let host = &mut pair.hosts[1];
    connect(host, other.session, qpn, ips[0], sender.qpn, Connect { kind: recv, ..pair.connect }, 1);
    pair.write(0, 0, &pattern(100));
    let mut send_once = |pair: &mut Pair, other: &mut Client| {
        poster.post(5, &[Sge { addr: BASE, length: 100, lkey: other.key }]).unwrap();
        poster.publish();
        let wqe = pair.wqe(1, WrOpcode::Send).to_srq(srqn);
        let sge = pair.clients[0].sge(0, 100);
        sender.post(wqe, &[sge]);
        pair.exchange();
        let found: Vec<_> = other.poll().iter().map(|cqe| (cqe.wr_id, cqe.qpn, cqe.byte_len)).collect();
        assert_eq!(found, [(5, qpn, 100)]);
        assert_eq!(pair.completions(0), [(1, WcStatus::Success)]);
    };
    send_once(&mut pair, &mut other);
    let host = &mut pair.hosts[1];
    host.control.close_session(&mut host.shards, maker);
    send_once(&mut pair, &mut other);
    let host = &mut pair.hosts[1];
    assert!(ask(host, other.session, Request::QueryQp { qpn }).is_ok());
    assert_eq!(ask(host, other.session, Request::DestroyQp { qpn }), Ok(Reply::Done));
    assert_eq!(ask(host, other.session, Request::QpDetail { qpn }), Err(2));
    assert_eq!(ask(host, other.session, Request::OpenXrcQp { xrcd: shared, qpn }), Err(EINVAL));
}

#[test]
fn all_of_a_domain_lives_on_one_lcore() {
    let mut options = HostOptions::new(1);
    options.shard_count = 2;
    let mut host = Host::new(options);
    let mut client = Client::new(&mut host, 4096);
    let (xrcd, shard) = open(&mut host, client.session, None, true, false).unwrap();
    let (near, _) = client.cq_on(&mut host, shard.into());
    let (far, _) = client.cq_on(&mut host, 1 - u32::from(shard));
    let attr = shm::attr::SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    let srq = |cq| Request::CreateXrcSrq { pd: client.pd, xrcd, cq, attr };
    let (Reply::XrcSrq { srqn, .. }, _) = host.request(client.session, srq(near), vec![]) else { panic!() };
    assert_eq!(engine::shard_of(wire::Qpn::new(srqn)), shard);
    assert_eq!(engine::shard_of(wire::Qpn::new(receiver(&mut host, client.session, xrcd))), shard);
    let (Reply::Refused { errno, message }, _) = host.request(client.session, srq(far), vec![]) else { panic!() };
    let sentence =
        format!("CQ {far} is on lcore {}, the XRC domain on {shard}: make it with comp_vector {shard}", 1 - shard);
    assert_eq!((errno, message), (EINVAL, sentence));
}
