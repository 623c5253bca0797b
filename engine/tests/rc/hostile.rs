//! Clients that mean harm, in their rings and on their control socket: nobody but themselves may notice.

use engine::ErrorCause;
use proptest::prelude::*;
use shm::attr::{AccessFlags, AhAttr, QpAttr, QpAttrMask, QpCap, QpState, QpType, SrqAttr, WrOpcode};
use shm::control::{AsyncEvent, Reply, Request};
use shm::layout::{PRODUCER, RQ_PRODUCER, SendWqe};
use shm::mapping::{Mapping, PageSize};
use wire::Opcode;

use crate::peer::{done, flushed};
use crate::support::{BASE, CAP, Client, Connect, Host, HostOptions, Pair, TestQp, connect};

/// A second application on both hosts, whose traffic must not notice.
struct Bystander {
    clients: [Client; 2],
    qps: [TestQp; 2],
}

impl Bystander {
    fn new(pair: &mut Pair) -> Self {
        let [a, b] = &mut pair.hosts;
        let mut clients = [Client::new(a, 8192), Client::new(b, 8192)];
        let qps = [clients[0].qp(a, CAP), clients[1].qp(b, CAP)];
        let ips = [a.ip, b.ip];
        connect(a, clients[0].session, qps[0].qpn, ips[1], qps[1].qpn, pair.connect, 0);
        connect(b, clients[1].session, qps[1].qpn, ips[0], qps[0].qpn, pair.connect, 1);
        Self { clients, qps }
    }

    #[track_caller]
    fn is_well(&mut self, pair: &mut Pair) {
        let wqe = SendWqe { remote_addr: BASE, rkey: self.clients[1].key, ..pair.wqe(77, WrOpcode::RdmaWrite) };
        self.qps[0].post(wqe, &[self.clients[0].sge(0, 4000)]);
        pair.exchange();
        let found: Vec<_> = self.clients[0].poll().iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(found, [(77, 0)]);
    }
}

fn poke(qp: &TestQp, offset: u64, value: u32) {
    qp.block.mapping.write(qp.block.offset + offset, &value.to_ne_bytes()).unwrap();
}

#[test]
fn a_producer_index_out_of_range_breaks_its_qp_only() {
    // 64 slots; two requests are done.
    for index in [2 + 65, 1, 0, u32::MAX, 0x8000_0000] {
        let mut pair = Pair::new(Connect::default());
        let mut bystander = Bystander::new(&mut pair);
        for wr_id in 1..=2 {
            let wqe = pair.wqe(wr_id, WrOpcode::RdmaWrite);
            pair.post(wqe, 8);
        }
        pair.exchange();
        let _ = pair.failures(0);
        poke(&pair.qps[0], PRODUCER, index);
        pair.qps[0].page.ring(pair.qps[0].doorbell_index);
        pair.exchange();
        assert_eq!(pair.state(0), QpState::Err, "index {index}");
        let qpn = pair.qps[0].qpn;
        assert_eq!(pair.events(0), [AsyncEvent::QpFatal { qpn }]);
        assert_eq!(pair.detail(0).error.as_deref(), Some(ErrorCause::BadRingIndex.sentence()));
        assert_eq!((pair.failures(0), pair.counters(0).bad_ring_index), (vec![], 1));
        bystander.is_well(&mut pair);
    }
}

#[test]
fn an_index_that_lies_within_the_ring_runs_what_is_there() {
    let mut pair = Pair::new(Connect::default());
    // Slots that were never written: opcode 0 is a WRITE of nothing, to address 0 with key 0.
    poke(&pair.qps[0], PRODUCER, 64);
    pair.qps[0].page.ring(pair.qps[0].doorbell_index);
    pair.exchange();
    assert_eq!((pair.state(0), pair.state(1)), (QpState::Rts, QpState::Rts));
    assert_eq!(pair.figure(1, "msn"), 64);
}

#[test]
fn a_receive_index_out_of_range_breaks_the_qp_when_a_message_comes() {
    let mut pair = Pair::new(Connect::default());
    let mut bystander = Bystander::new(&mut pair);
    pair.receive(50, 64);
    poke(&pair.qps[1], RQ_PRODUCER, 1000);
    let send = pair.packet(0, Opcode::RC_SEND_ONLY, 0).bytes(8);
    assert_eq!(pair.tell(1, &send), ["NAK remote operational error +0 msn 0"]);
    let qpn = pair.qps[1].qpn;
    assert_eq!(pair.events(1), [AsyncEvent::QpFatal { qpn }]);
    assert_eq!(pair.detail(1).error.as_deref(), Some(ErrorCause::BadRingIndex.sentence()));
    pair.reconnect();
    bystander.is_well(&mut pair);
}

#[test]
fn a_receive_with_too_many_sges_breaks_its_qp() {
    let mut pair = Pair::new(Connect::default());
    pair.receive(50, 64);
    pair.receive(51, 64);
    let qp = &pair.qps[1];
    let slot = shm::layout::SLOTS + qp.sq.bytes();
    qp.block.mapping.store_words(qp.block.offset + slot, [50u64, 10_000]).unwrap();
    let send = pair.packet(0, Opcode::RC_SEND_ONLY, 0).bytes(8);
    assert_eq!(pair.tell(1, &send), ["NAK remote operational error +0 msn 0"]);
    let [(50, shm::attr::WcStatus::LocProtErr, vendor), flush] = pair.failures(1)[..] else { panic!() };
    assert_eq!((vendor, flush), (ErrorCause::BadReceive.code(), flushed(51)));
}

#[test]
fn doorbells_of_nobody_are_ignored() {
    let mut pair = Pair::new(Connect::default());
    let mut bystander = Bystander::new(&mut pair);
    for index in 0..shm::doorbell::DOORBELL_COUNT {
        pair.qps[0].page.ring(index);
    }
    pair.exchange();
    for _ in 0..5 {
        pair.advance(1000);
    }
    assert_eq!(pair.counters(0).doorbells, u64::from(shm::doorbell::DOORBELL_COUNT), "all served, a few in each turn");
    bystander.is_well(&mut pair);
}

#[test]
fn a_cq_consumer_out_of_range_overruns() {
    for index in [100, u32::MAX - 5000] {
        let mut pair = Pair::new(Connect::default());
        let mut bystander = Bystander::new(&mut pair);
        let cq = pair.clients[0].cq;
        for wr_id in 0..1024u64 {
            let wqe = pair.wqe(wr_id, WrOpcode::RdmaWrite);
            pair.post(wqe, 0);
            if wr_id % 32 == 31 {
                pair.exchange();
            }
        }
        assert_eq!(pair.events(0), []);
        // The CQ is full; the client claims a place that can't be.
        let block = pair.clients[0].cq_block.clone();
        let claim = if index == 100 { 1024 + index } else { index };
        block.mapping.write(block.offset + shm::layout::CQ_CONSUMER, &u32::to_ne_bytes(claim)).unwrap();
        let wqe = pair.wqe(2000, WrOpcode::RdmaWrite);
        pair.post(wqe, 0);
        pair.exchange();
        let qpn = pair.qps[0].qpn;
        assert_eq!(pair.events(0), [AsyncEvent::CqErr { cq }, AsyncEvent::QpFatal { qpn }]);
        bystander.is_well(&mut pair);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Anything at all in a client's own ring block, doorbells and turns in between.
    #[test]
    fn garbage_in_a_ring_hurts_nobody_else(writes in prop::collection::vec((0..2048u64, any::<u64>(), any::<bool>()), 1..60)) {
        let mut pair = Pair::new(Connect::default());
        let mut bystander = Bystander::new(&mut pair);
        let block = pair.qps[0].block.clone();
        for (word, value, small) in writes {
            let value = if small { value % 80 } else { value };
            // Never beyond the block: that would be the client's own other rings.
            let offset = (word * 8) % (shm::layout::SLOTS + pair.qps[0].sq.bytes());
            block.mapping.write(block.offset + offset, &value.to_ne_bytes()).unwrap();
            pair.qps[0].page.ring(pair.qps[0].doorbell_index);
            pair.advance(10_000);
            let _ = pair.clients[0].poll();
        }
        bystander.is_well(&mut pair);
    }
}

/// Asks side 0 for something that it must refuse.
#[track_caller]
fn refused(pair: &mut Pair, request: Request, errno: i32, sentence: &str) {
    let before = pair.ask(0, Request::ListSessions);
    let what = format!("{request:?}");
    match pair.ask(0, request) {
        Reply::Refused { errno: found, message } => assert_eq!((found, message.as_str()), (errno, sentence), "{what}"),
        other => panic!("{what}: {other:?}"),
    }
    assert_eq!(pair.ask(0, Request::ListSessions), before, "{what} changed something");
}

const ENOENT: i32 = 2;
const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EPROTO: i32 = 71;

#[test]
fn handles_that_do_not_exist_are_refused_by_name() {
    let mut pair = Pair::new(Connect::default());
    let Client { pd, cq, attached: memory, .. } = pair.clients[0];
    let cap = CAP;
    let qp = |pd, send_cq, recv_cq, srq| Request::CreateQp {
        pd,
        qp_type: QpType::Rc,
        send_cq,
        recv_cq,
        srq,
        cap,
        sq_sig_all: false,
    };
    let mr = |pd, memory| Request::RegMr { pd, memory, offset: 0, addr: 0, length: 1, access: AccessFlags::NONE };
    let srq = SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    let attr = QpAttr::default();
    let table = [
        (Request::DeallocPd { pd: 999 }, "protection domain 999 does not exist"),
        (Request::DetachMemory { memory: 999 }, "memory 999 does not exist"),
        (mr(999, memory), "protection domain 999 does not exist"),
        (mr(pd, 999), "memory 999 does not exist"),
        (Request::DeregMr { lkey: 0xdead }, "region 0xdead does not exist"),
        (Request::DestroyChannel { channel: 999 }, "completion channel 999 does not exist"),
        (Request::CreateCq { cqe: 4, channel: Some(999), comp_vector: None }, "completion channel 999 does not exist"),
        (Request::DestroyCq { cq: 999 }, "CQ 999 does not exist"),
        (Request::CreateSrq { pd: 999, cq: None, attr: srq }, "protection domain 999 does not exist"),
        (Request::CreateSrq { pd, cq: Some(999), attr: srq }, "CQ 999 does not exist"),
        (Request::ModifySrq { srq: 999, srq_limit: 1 }, "SRQ 999 does not exist"),
        (Request::QuerySrq { srq: 999 }, "SRQ 999 does not exist"),
        (Request::DestroySrq { srq: 999 }, "SRQ 999 does not exist"),
        (qp(999, cq, cq, None), "protection domain 999 does not exist"),
        (qp(pd, 999, cq, None), "CQ 999 does not exist"),
        (qp(pd, cq, pd, None), "CQ 1 does not exist"),
        (qp(pd, cq, cq, Some(999)), "SRQ 999 does not exist"),
        (
            Request::ModifyQp { qpn: 0xff_ffff, attr, mask: QpAttrMask::STATE },
            "QP 0xffffff does not exist in this session",
        ),
        (Request::QueryQp { qpn: 0 }, "QP 0x000000 does not exist in this session"),
        (Request::QueryQp { qpn: u32::MAX }, "QP 0xffffffff does not exist in this session"),
        (Request::DestroyQp { qpn: 1 << 20 }, "QP 0x100000 does not exist in this session"),
        (Request::CreateAh { pd: 999, attr: AhAttr::default() }, "protection domain 999 does not exist"),
        (Request::DestroyAh { ah: 5 }, "address handle 5 does not exist"),
        (Request::QueryPort { port_num: 0 }, "port 0 does not exist: ports are 1 to 1"),
        (Request::QueryGids { port_num: 2 }, "port 2 does not exist: ports are 1 to 1"),
    ];
    for (request, sentence) in table {
        refused(&mut pair, request, EINVAL, sentence);
    }
    assert!(matches!(pair.ask(0, Request::QpDetail { qpn: 3 }), Reply::Refused { errno: 2, .. }));
}

#[test]
fn another_session_s_objects_do_not_exist() {
    let mut pair = Pair::new(Connect::default());
    let own = pair.clients[0].session;
    let other = Client::new(&mut pair.hosts[0], 4096);
    let (pd, cq, qpn, lkey) = (pair.clients[0].pd, pair.clients[0].cq, pair.qps[0].qpn, pair.clients[0].key);
    // Handles are numbers of each session: the same number is the other's own object, and QPNs and keys are not shared.
    assert_eq!((other.pd, other.cq), (pd, cq));
    pair.clients[0] = other;
    let table = [
        (Request::DestroyQp { qpn }, format!("QP {qpn:#08x} does not exist in this session")),
        (
            Request::ModifyQp { qpn, attr: QpAttr::default(), mask: QpAttrMask::STATE },
            format!("QP {qpn:#08x} does not exist in this session"),
        ),
        (Request::QueryQp { qpn }, format!("QP {qpn:#08x} does not exist in this session")),
        (Request::DeregMr { lkey }, format!("region {lkey:#x} does not exist")),
    ];
    for (request, sentence) in table {
        refused(&mut pair, request, EINVAL, &sentence);
    }
    // Its memory can't be used through another session's QP either.
    let mut bystander = Bystander::new(&mut pair);
    let wqe = SendWqe { remote_addr: BASE, ..pair.wqe(1, WrOpcode::RdmaWrite) };
    let sge = shm::layout::Sge { addr: BASE, length: 8, lkey };
    bystander.qps[0].post(wqe, &[sge]);
    pair.exchange();
    let [cqe] = bystander.clients[0].poll()[..] else { panic!() };
    assert_eq!(cqe.vendor_err, ErrorCause::WrongPd.code());
    // Anybody may look, though.
    assert!(matches!(pair.ask(0, Request::QpDetail { qpn }), Reply::QpDetail(d) if d.summary.session == own));
}

#[test]
fn sizes_beyond_the_limits_are_refused_with_the_limit() {
    let mut pair = Pair::new(Connect::default());
    let Client { pd, cq, attached: memory, .. } = pair.clients[0];
    let qp = |cap| Request::CreateQp {
        pd,
        qp_type: QpType::Rc,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        cap,
        sq_sig_all: false,
    };
    let mr = |offset, addr, length| Request::RegMr { pd, memory, offset, addr, length, access: AccessFlags::NONE };
    let srq = |max_wr, max_sge| Request::CreateSrq { pd, cq: None, attr: SrqAttr { max_wr, max_sge, srq_limit: 0 } };
    let cqe = |cqe| Request::CreateCq { cqe, channel: None, comp_vector: None };
    let bytes = 1u64 << 20;
    let region = |length: u64, offset: u64| {
        format!("a region of {length} bytes at offset {offset} does not lie in memory of {bytes} bytes")
    };
    let table = [
        (qp(QpCap { max_send_wr: 16_385, ..CAP }), "max_send_wr of 16385: at most 16384 are allowed".to_owned()),
        (qp(QpCap { max_recv_wr: u32::MAX, ..CAP }), "max_recv_wr of 4294967295: at most 16384 are allowed".to_owned()),
        (qp(QpCap { max_send_sge: 17, ..CAP }), "max_send_sge of 17: at most 16 are allowed".to_owned()),
        (qp(QpCap { max_recv_sge: 17, ..CAP }), "max_recv_sge of 17: at most 16 are allowed".to_owned()),
        (qp(QpCap { max_inline_data: 513, ..CAP }), "max_inline_data of 513: at most 512 are allowed".to_owned()),
        (cqe(0), "a CQ of 0 entries: 1 to 1048576 are allowed".to_owned()),
        (cqe(u32::MAX), "a CQ of 4294967295 entries: 1 to 1048576 are allowed".to_owned()),
        (srq(0, 1), "an SRQ of 0 work requests: 1 to 16384 are allowed".to_owned()),
        (srq(16_385, 1), "an SRQ of 16385 work requests: 1 to 16384 are allowed".to_owned()),
        (srq(4, 17), "17 SGEs: at most 16 are allowed".to_owned()),
        (mr(0, 0, 0), region(0, 0)),
        (mr(0, 0, bytes + 1), region(bytes + 1, 0)),
        (mr(bytes, 0, 1), region(1, bytes)),
        (mr(u64::MAX, 0, 2), region(2, u64::MAX)),
        (mr(0, u64::MAX, 2), region(2, 0)),
    ];
    for (request, sentence) in table {
        refused(&mut pair, request, EINVAL, &sentence);
    }
    let access = |flags| Request::RegMr { pd, memory, offset: 0, addr: 0, length: 1, access: AccessFlags(flags) };
    refused(&mut pair, access(2), EINVAL, "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well");
    refused(&mut pair, access(8), EINVAL, "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well");
    refused(&mut pair, access(1 << 30), EINVAL, "access flags 0x40000000 have bits without a meaning");
}

#[test]
fn what_is_in_use_stays() {
    let mut pair = Pair::new(Connect::default());
    let Client { pd, cq, attached: memory, .. } = pair.clients[0];
    let table = [
        (Request::DeallocPd { pd }, format!("protection domain {pd} is used by 2 objects: destroy them first")),
        (Request::DestroyCq { cq }, format!("CQ {cq} is used by 2 queues: destroy their QPs first")),
        (Request::DetachMemory { memory }, format!("memory {memory} holds 1 regions: deregister them first")),
    ];
    for (request, sentence) in table {
        refused(&mut pair, request, EBUSY, &sentence);
    }
    // In the right order it all goes away.
    let (qpn, lkey) = (pair.qps[0].qpn, pair.clients[0].key);
    for request in [
        Request::DestroyQp { qpn },
        Request::DestroyCq { cq },
        Request::DeregMr { lkey },
        Request::DetachMemory { memory },
        Request::DeallocPd { pd },
    ] {
        assert_eq!(pair.ask(0, request.clone()), Reply::Done, "{request:?}");
        assert!(matches!(pair.ask(0, request.clone()), Reply::Refused { errno: EINVAL, .. }), "{request:?} twice");
    }
}

#[test]
fn limits_of_a_session_and_of_the_engine_hold() {
    let mut options = HostOptions::new(1);
    options.limits.max_mr = 3;
    options.limits.max_pd = 2;
    options.limits.max_qp = 2;
    options.limits.max_cq = 2;
    options.limits.max_srq = 1;
    options.limits.max_session = 2;
    options.limits.memory_bytes = 1 << 20;
    let mut pair = Pair::with(Connect::default(), options, HostOptions::new(2), 1 << 20);
    let Client { pd, cq, attached: memory, .. } = pair.clients[0];
    let mr = Request::RegMr { pd, memory, offset: 0, addr: 0, length: 1, access: AccessFlags::NONE };
    for _ in 0..2 {
        assert!(matches!(pair.ask(0, mr.clone()), Reply::Mr { .. }));
    }
    refused(&mut pair, mr, ENOMEM, "the limit of 3 regions and windows is reached");
    assert!(matches!(pair.ask(0, Request::AllocPd), Reply::Handle(_)));
    refused(&mut pair, Request::AllocPd, ENOMEM, "the limit of 2 protection domains is reached");
    let qp =
        Request::CreateQp { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, cap: CAP, sq_sig_all: false };
    assert!(matches!(pair.ask(0, qp.clone()), Reply::Qp { .. }));
    refused(&mut pair, qp, ENOMEM, "the limit of 2 QPs is reached");
    let another = Request::CreateCq { cqe: 4, channel: None, comp_vector: Some(7) };
    assert!(matches!(pair.ask(0, another.clone()), Reply::Cq { .. }));
    refused(&mut pair, another, ENOMEM, "the limit of 2 CQs is reached");
    let srq = Request::CreateSrq { pd, cq: None, attr: SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 } };
    assert!(matches!(pair.ask(0, srq.clone()), Reply::Srq { .. }));
    refused(&mut pair, srq, ENOMEM, "the limit of 1 SRQs is reached");
    let sentence = "1 bytes are more than the 0 that are left of the session's limit of 1048576";
    let session = pair.clients[0].session;
    let fd = pair.clients[0].memory.fd().try_clone_to_owned().unwrap();
    let (reply, _) = pair.hosts[0].request(session, Request::AttachMemory { bytes: 1 }, vec![fd]);
    assert_eq!(reply, Reply::Refused { errno: ENOMEM, message: sentence.to_owned() });
    let peer = engine::control::Peer { pid: 1, uid: 1 };
    assert!(pair.hosts[0].control.open_session(peer).is_ok());
    let full = pair.hosts[0].control.open_session(peer).unwrap_err();
    assert_eq!(full, "2 clients are connected, as many as the limit max_session allows");
}

#[test]
fn a_first_qp_that_is_refused_leaves_no_trace() {
    let mut options = HostOptions::new(1);
    options.limits.ring_bytes = 1 << 20;
    options.limits.max_qp = 1;
    let mut host = Host::new(options);
    let Client { session, pd, cq, .. } = Client::new(&mut host, 4096);
    let mut create = |max_send_wr| {
        let cap = QpCap { max_send_wr, ..CAP };
        let (qp_type, srq, sq_sig_all) = (QpType::Rc, None, false);
        let qp = Request::CreateQp { pd, qp_type, send_cq: cq, recv_cq: cq, srq, cap, sq_sig_all };
        host.request(session, qp, vec![])
    };
    let (reply, fds) = create(16384);
    assert!(matches!(reply, Reply::Refused { errno: ENOMEM, .. }) && fds.is_empty(), "{reply:?}");
    // Takes the only number there is, and needs the eventfd: without it the client could not wake the shard.
    let (reply, fds) = create(16);
    assert!(matches!(reply, Reply::Qp { wake_fd: true, .. }) && !fds.is_empty(), "{reply:?}");
}

#[test]
fn the_rings_of_all_clients_have_a_limit_together() {
    let mut options = HostOptions::new(1);
    options.limits.ring_bytes_total = 12 << 20;
    let mut host = Host::new(options);
    let clients = [Client::new(&mut host, 4096), Client::new(&mut host, 4096)];
    let cq = |host: &mut Host, client: &Client| {
        let cq = Request::CreateCq { cqe: 1 << 16, channel: None, comp_vector: None };
        host.request(client.session, cq, vec![]).0
    };
    // Each has a segment of 4 MiB. The CQ is of 4 MiB and its words: 4 MiB that are left are not enough.
    let sentence = "rings of all clients would need more than the daemon's limit of 12582912 bytes";
    assert_eq!(cq(&mut host, &clients[0]), Reply::Refused { errno: ENOMEM, message: sentence.to_owned() });
    host.control.close_session(&mut host.shards, clients[0].session);
    assert!(matches!(cq(&mut host, &clients[1]), Reply::Cq { .. }), "what a client had is free again");
}

#[test]
fn memory_that_can_not_be_trusted_is_not_attached() {
    let mut pair = Pair::new(Connect::default());
    let session = pair.clients[0].session;
    let mut attach = |bytes, fds| match pair.hosts[0].request(session, Request::AttachMemory { bytes }, fds).0 {
        Reply::Refused { errno, message } => (errno, message),
        other => panic!("{other:?}"),
    };
    assert_eq!(attach(4096, vec![]), (EINVAL, "AttachMemory needs a file descriptor with it".to_owned()));
    // An ordinary file could be cut short under us.
    let file = std::fs::File::open(file!().strip_prefix("engine/").unwrap_or(file!())).unwrap();
    let (errno, message) = attach(64, vec![file.into()]);
    assert_eq!(errno, EINVAL);
    assert!(message.contains("seal"), "{message}");
    let memory = Mapping::create(c"short", 4096, PageSize::Base).unwrap();
    let fd = || memory.fd().try_clone_to_owned().unwrap();
    // A page that is not there would be the daemon's to pay for.
    let (errno, message) = attach(4096, vec![fd()]);
    assert!(
        errno == EINVAL && message.starts_with("of the file's first 4096 bytes not all are in memory"),
        "{message}"
    );
    let (errno, message) = attach(8192, vec![fd()]);
    assert!(errno == EINVAL && message.contains("8192") && message.contains("4096"), "{message}");
    assert_eq!(attach(0, vec![fd()]).0, EINVAL);
    assert_eq!(attach(u64::MAX, vec![fd()]).0, ENOMEM);
}

#[test]
fn the_first_word_must_be_hello() {
    let mut pair = Pair::new(Connect::default());
    let peer = engine::control::Peer { pid: 1, uid: 1 };
    let session = pair.hosts[0].control.open_session(peer).unwrap();
    let mut say = |request| match pair.hosts[0].request(session, request, vec![]).0 {
        Reply::Refused { errno, message } => format!("{errno}: {message}"),
        other => format!("{other:?}"),
    };
    assert_eq!(say(Request::AllocPd), format!("{EPROTO}: the first message of a client must be Hello"));
    let hello = |abi_version| Request::Hello { abi_version, client_name: "x\u{7}\n".repeat(100) };
    let (ours, theirs) = (shm::ABI_VERSION, shm::ABI_VERSION + 1);
    assert_eq!(
        say(hello(theirs)),
        format!("{EPROTO}: the client speaks version {theirs} of the shared-memory ABI, the daemon version {ours}")
    );
    assert!(say(hello(shm::ABI_VERSION)).starts_with("Hello"));
    let Reply::Sessions(sessions) = pair.ask(0, Request::ListSessions) else { panic!() };
    let name = &sessions.iter().find(|s| s.session == session).unwrap().client_name;
    assert_eq!(*name, "x".repeat(64), "no control characters, and not too long");
}

#[test]
fn memory_of_a_region_is_held_until_it_is_deregistered() {
    let mut pair = Pair::new(Connect::default());
    // A client that closes its file does not take the pages from under the engine.
    pair.write(1, 4096, b"still here");
    let lkey = pair.clients[1].key;
    let wqe = pair.wqe(1, WrOpcode::RdmaRead);
    pair.clients[1].memory = Mapping::create(c"other", 4096, PageSize::Base).unwrap();
    pair.post(wqe, 10);
    pair.exchange();
    assert_eq!((pair.failures(0), pair.read(0, 0, 10)), (vec![done(1)], b"still here".to_vec()));
    assert_eq!(pair.ask(1, Request::DeregMr { lkey }), Reply::Done);
}

#[test]
fn a_region_lies_only_in_memory_that_is_faulted_in() {
    let mut pair = Pair::new(Connect::default());
    let (session, pd) = (pair.clients[0].session, pair.clients[0].pd);
    let bytes = shm::control::POPULATE_BYTES_MAX + 4096;
    let memory = Mapping::create(c"large", bytes, PageSize::Base).unwrap();
    memory.populate(0, bytes).unwrap();
    let fd = memory.fd().try_clone_to_owned().unwrap();
    let (reply, _) = pair.hosts[0].request(session, Request::AttachMemory { bytes }, vec![fd]);
    let Reply::Handle(memory) = reply else { panic!("{reply:?}") };
    let access = AccessFlags::LOCAL_WRITE;
    let all = Request::RegMr { pd, memory, offset: 0, addr: 0, length: bytes, access };
    let sentence = format!("only the first 67108864 bytes of memory {memory} are faulted in: PopulateMemory does more");
    refused(&mut pair, all.clone(), EINVAL, &sentence);
    assert_eq!(pair.ask(0, Request::PopulateMemory { memory }), Reply::Populated { bytes });
    assert!(matches!(pair.ask(0, all), Reply::Mr { .. }));
    refused(&mut pair, Request::PopulateMemory { memory: 99 }, EINVAL, "memory 99 does not exist");
}

#[test]
fn a_qp_number_of_a_shard_that_is_not_there_is_refused() {
    let mut pair = Pair::new(Connect::default());
    refused(&mut pair, Request::QpDetail { qpn: 0xff_ffff }, ENOENT, "QP 0xffffff does not exist");
}
