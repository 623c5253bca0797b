//! Two connected peers over any two engines, and what they do with each other.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ferroce::control::Request;
use ferroce::exchange::{ConnectionInfo, random_psn};
use ferroce::{
    AccessFlags, AhAttr, CompletionQueue, ConnectAttr, Context, CqInit, Gid, MemoryPool, MemoryRegion, MwType,
    PageSize, ProtectionDomain, QpCap, QpInit, QpState, Qpn, QueuePair, RecvWr, SendWr, SharedReceiveQueue, SrqAttr,
    VerbsError, WcFlags, WcOpcode, WcStatus, WorkCompletion, XrcdInit, connect_rc, start_datagrams,
};

/// Time without a completion after which a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// One end of a connection.
pub(crate) struct Peer {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) region: MemoryRegion,
    pub(crate) pd: ProtectionDomain,
    pub(crate) context: Context,
}

impl Peer {
    /// A QP and a region of `bytes`, on lcore `vector`.
    pub(crate) fn new(context: Context, bytes: u64, vector: u32) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(&CqInit { cqe: 1024, comp_vector: Some(vector), ..CqInit::default() }).unwrap();
        let cap = QpCap { max_send_sge: 4, max_inline_data: 64, ..QpInit::rc(&cq).cap };
        let qp = pd.create_qp(&QpInit { cap, ..QpInit::rc(&cq) }).unwrap();
        let rights = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let region = MemoryPool::new(&context, bytes, PageSize::Base).unwrap().register_all(&pd, rights).unwrap();
        Self { qp, cq, region, pd, context }
    }

    fn info(&self) -> ConnectionInfo {
        ConnectionInfo::new(&self.qp, random_psn(), &ConnectAttr::default()).unwrap().with_region(&self.region)
    }

    /// The next completion, which must be a success.
    pub(crate) fn complete(&self) -> WorkCompletion {
        let completion = self.any_completion();
        assert!(completion.is_ok(), "{}", completion.status);
        completion
    }

    /// The next completion.
    pub(crate) fn any_completion(&self) -> WorkCompletion {
        let end = Instant::now() + PATIENCE;
        let mut completions = [WorkCompletion::default()];
        while self.cq.poll(&mut completions) == 0 {
            assert!(Instant::now() < end, "no completion within {PATIENCE:?}");
            std::thread::yield_now();
        }
        let [completion] = completions;
        completion
    }

    fn post(&self, wr: SendWr<'_>) {
        self.qp.post_send(&wr.signaled()).unwrap();
    }
}

/// Takes both to RTS with each other.
pub(crate) fn connect(a: &Peer, b: &Peer) {
    connect_with(a, b, &ConnectAttr::default());
}

/// The same with attributes that both have.
pub(crate) fn connect_with(a: &Peer, b: &Peer, attr: &ConnectAttr) {
    let (here, there) = (a.info(), b.info());
    connect_rc(&a.qp, &here, &there, attr).unwrap();
    connect_rc(&b.qp, &there, &here, attr).unwrap();
}

/// Datagrams between QPs of their own, each with its data and its sender checked.
pub(crate) fn datagrams(a: &Peer, b: &Peer) {
    const QKEY: u32 = 0x2233_4455;
    const GRH_BYTES: u64 = 40;
    let make = |peer: &Peer| {
        let qp = peer.pd.create_qp(&QpInit { cap: peer.qp.cap(), ..QpInit::ud(&peer.cq) }).unwrap();
        start_datagrams(&qp, 1, QKEY, random_psn()).unwrap();
        qp
    };
    let (here, there) = (make(a), make(b));
    let dgid = b.context.query_gids(1).unwrap()[0].gid;
    let ah = a.pd.create_ah(&AhAttr { dgid, port_num: 1, ..AhAttr::default() }).unwrap();
    assert_eq!((ah.attr().dgid, ah.context().is_alive()), (dgid, true));
    for length in [0_usize, 1, 1000, 4096] {
        let sent = pattern(length, length as u8);
        a.region.write(0, &sent).unwrap();
        there.post_recv(&RecvWr::new(5, &[b.region.sge(0, 8192).unwrap()])).unwrap();
        let sges = [a.region.sge(0, length as u32).unwrap()];
        let wr = SendWr::send(4, &sges).with_imm(7).to(&ah, there.qpn(), QKEY).signaled();
        here.post_send(&wr).unwrap();
        assert_eq!(a.complete().wr_id, 4);
        let received = b.complete();
        assert_eq!((received.wr_id, received.src_qpn, received.imm()), (5, here.qpn(), Some(7)));
        assert_eq!(received.byte_len as usize, length + GRH_BYTES as usize);
        assert!(received.flags.contains(WcFlags::GRH));
        assert_eq!(bytes_of(&b.region, GRH_BYTES, length), sent);
    }
    // To a group: every member but the sender.
    let group = Gid::from_ip([239, 1, 2, 3].into());
    for qp in [&here, &there] {
        qp.attach_mcast(group).unwrap();
    }
    let all = a.pd.create_ah(&AhAttr { dgid: group, port_num: 1, ..AhAttr::default() }).unwrap();
    there.post_recv(&RecvWr::new(9, &[b.region.sge(0, 64).unwrap()])).unwrap();
    here.post_send(&SendWr::send(9, &[]).inline(b"you all").to(&all, Qpn::new(0xff_ffff), QKEY).signaled()).unwrap();
    assert_eq!((a.complete().opcode, b.complete().byte_len), (WcOpcode::Send, 47));
    here.detach_mcast(group).unwrap();
    assert!(here.detach_mcast(group).is_err(), "twice");
    // A handle that is gone stops the queue, and the queue goes on when it is told to.
    let (number, wr) = (ah.handle(), SendWr::send(6, &[]).to(&ah, there.qpn(), QKEY));
    ah.destroy().unwrap();
    here.post_send(&wr).unwrap();
    assert_eq!(a.any_completion().status, WcStatus::LocQpOpErr, "address handle {number}");
    assert_eq!(here.query().unwrap().qp_state, QpState::Sqe);
    here.resume().unwrap();
    let ah = a.pd.create_ah(&AhAttr { dgid, port_num: 1, ..AhAttr::default() }).unwrap();
    there.post_recv(&RecvWr::new(8, &[b.region.sge(0, 64).unwrap()])).unwrap();
    here.post_send(&SendWr::send(7, &[]).inline(b"again").to(&ah, there.qpn(), 1 << 31).signaled()).unwrap();
    assert_eq!((a.complete().wr_id, b.complete().byte_len), (7, 45));
}

/// SENDs and WRITEs of an unreliable connection between QPs of their own.
pub(crate) fn unreliable_connection(a: &Peer, b: &Peer) {
    let make = |peer: &Peer| peer.pd.create_qp(&QpInit { cap: peer.qp.cap(), ..QpInit::uc(&peer.cq) }).unwrap();
    let (here, there) = (make(a), make(b));
    let attr = ConnectAttr::default();
    let info = |qp, peer: &Peer| ConnectionInfo::new(qp, random_psn(), &attr).unwrap().with_region(&peer.region);
    let (ours, theirs) = (info(&here, a), info(&there, b));
    ferroce::connect(&here, &ours, &theirs, &attr).unwrap();
    ferroce::connect(&there, &theirs, &ours, &attr).unwrap();
    for length in [0_usize, 64, 10_000] {
        let sent = pattern(length, length as u8);
        a.region.write(0, &sent).unwrap();
        let sges = [a.region.sge(0, length as u32).unwrap()];
        there.post_recv(&RecvWr::new(1, &[b.region.sge(0, 65_536).unwrap()])).unwrap();
        there.post_recv(&RecvWr::new(2, &[])).unwrap();
        here.post_send(&SendWr::send(3, &sges).signaled()).unwrap();
        let to = b.region.addr() + 65_536;
        here.post_send(&SendWr::write(4, &sges, to, b.region.rkey()).with_imm(9).signaled()).unwrap();
        assert_eq!((a.complete().wr_id, a.complete().wr_id), (3, 4));
        assert_eq!((b.complete().wr_id, b.complete().imm()), (1, Some(9)));
        assert_eq!((bytes_of(&b.region, 0, length), bytes_of(&b.region, 65_536, length)), (sent.clone(), sent));
    }
}

/// One connection that reaches SRQs of two processes, which share a domain by a file.
pub(crate) fn extended_connection(a: &Peer, receivers: [&Peer; 2]) {
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    let init = XrcdInit { file: Some(file.as_fd()), create: true, exclusive: false };
    let domains = receivers.map(|peer| peer.context.open_xrcd(&init).unwrap());
    let error = receivers[1].context.open_xrcd(&XrcdInit { exclusive: true, ..init }).unwrap_err();
    assert!(matches!(error, VerbsError::Refused { errno: 22, .. }), "{error}");
    let attr = SrqAttr { max_wr: 8, max_sge: 1, srq_limit: 0 };
    let srqs = [0, 1].map(|i| receivers[i].pd.create_xrc_srq(&domains[i], &receivers[i].cq, attr).unwrap());
    let receiver = domains[0].create_receiver().unwrap();
    let also = domains[1].open_receiver(receiver.qpn()).unwrap();
    let init = QpInit { cap: QpCap { max_inline_data: 64, ..QpInit::xrc_send(&a.cq).cap }, ..QpInit::xrc_send(&a.cq) };
    let sender = a.pd.create_qp(&init).unwrap();
    let attr = ConnectAttr::default();
    let ours = ConnectionInfo::new(&sender, random_psn(), &attr).unwrap();
    let theirs = receiver.connection_info(&attr).unwrap();
    receiver.connect(&theirs, &ours, &attr).unwrap();
    ferroce::connect(&sender, &ours, &theirs, &attr).unwrap();
    assert_eq!(also.query().unwrap().qp_state, QpState::Rtr);
    let (receiver_qpn, mut to_maker) = (receiver.qpn(), Some(receiver));
    for (peer, srq) in receivers.into_iter().zip(&srqs).cycle().take(4) {
        let srqn = srq.srqn().unwrap();
        let sent = pattern(10_000, srqn as u8);
        a.region.write(0, &sent).unwrap();
        let sges = [a.region.sge(0, 10_000).unwrap()];
        srq.post_recv(&RecvWr::new(5, &[peer.region.sge(0, 65_536).unwrap()])).unwrap();
        sender.post_send(&SendWr::send(3, &sges).with_imm(7).to_srq(srqn).signaled()).unwrap();
        let to = peer.region.addr() + 65_536;
        sender.post_send(&SendWr::write(4, &sges, to, peer.region.rkey()).to_srq(srqn).signaled()).unwrap();
        let got = peer.complete();
        assert_eq!((got.wr_id, got.imm(), got.qpn, got.byte_len), (5, Some(7), receiver_qpn, 10_000));
        assert_eq!((a.complete().wr_id, a.complete().wr_id), (3, 4));
        assert_eq!((bytes_of(&peer.region, 0, 10_000), bytes_of(&peer.region, 65_536, 10_000)), (sent.clone(), sent));
        // It goes on for the other process when the one that made it has no use for it any more.
        drop(to_maker.take());
    }
    let nobody = srqs.iter().filter_map(SharedReceiveQueue::srqn).max().unwrap() + 1;
    sender.post_send(&SendWr::send(6, &[]).to_srq(nobody)).unwrap();
    assert_eq!(a.any_completion().status, WcStatus::RemAccessErr);
    assert_eq!(also.query().unwrap().qp_state, QpState::Err);
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed).collect()
}

fn bytes_of(region: &MemoryRegion, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    region.read(offset, &mut bytes).unwrap();
    bytes
}

/// Every operation of RC, each with its data checked at both ends. Regions have at least 1 MiB.
pub(crate) fn every_operation(a: &Peer, b: &Peer) {
    let half = 512 << 10;
    for length in [1_usize, 64, 4096, 4097, 300_000] {
        let sent = pattern(length, length as u8);
        a.region.write(0, &sent).unwrap();
        let here = [a.region.sge(0, length as u32).unwrap()];
        a.post(SendWr::write(1, &here, b.region.addr() + half, b.region.rkey()));
        assert_eq!((a.complete().wr_id, bytes_of(&b.region, half, length)), (1, sent.clone()));

        let back = [a.region.sge(half, length as u32).unwrap()];
        a.region.write(half, &vec![0; length]).unwrap();
        a.post(SendWr::read(2, &back, b.region.addr() + half, b.region.rkey()));
        assert_eq!((a.complete().wr_id, bytes_of(&a.region, half, length)), (2, sent.clone()));

        b.qp.post_recv(&RecvWr::new(7, &[b.region.sge(0, length as u32).unwrap()])).unwrap();
        a.post(SendWr::send(3, &here).with_imm(0xcafe));
        let received = b.complete();
        assert_eq!((received.wr_id, received.imm(), received.byte_len), (7, Some(0xcafe), length as u32));
        assert_eq!((a.complete().wr_id, bytes_of(&b.region, 0, length)), (3, sent));
    }
    atomics(a, b);
    windows(a, b);
}

/// A part of a region that is closed otherwise, opened to the peer by a window and closed by its SEND.
fn windows(a: &Peer, b: &Peer) {
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
    let closed = b.region.pool().register_all(&b.pd, rights).unwrap();
    let window = b.pd.alloc_mw(MwType::Type2).unwrap();
    let rkey = window.next_rkey();
    let bind = window.bind_info(&closed, 8192, 64, AccessFlags::REMOTE_READ).unwrap();
    b.region.write(8192, b"through the window").unwrap();
    b.post(SendWr::bind_mw(10, &window, rkey, &bind));
    assert_eq!((b.complete().opcode, window.rkey()), (WcOpcode::BindMw, rkey));
    a.post(SendWr::read(11, &[a.region.sge(0, 18).unwrap()], closed.addr() + 8192, rkey));
    assert_eq!((a.complete().wr_id, bytes_of(&a.region, 0, 18)), (11, b"through the window".to_vec()));
    let busy = b.context.call(&Request::DeregMr { lkey: closed.lkey() });
    assert!(matches!(busy, Err(VerbsError::Refused { errno: 16, .. })), "{busy:?}");
    b.qp.post_recv(&RecvWr::new(12, &[])).unwrap();
    a.post(SendWr::send(13, &[]).with_invalidate(rkey));
    assert_eq!((a.complete().wr_id, b.complete().invalidated_rkey()), (13, Some(rkey)));
    let again = window.next_rkey();
    b.post(SendWr::bind_mw(14, &window, again, &bind));
    assert_eq!(b.complete().opcode, WcOpcode::BindMw);
    b.post(SendWr::local_inv(15, again));
    assert_eq!(b.complete().opcode, WcOpcode::LocalInv);
    window.dealloc().unwrap();
    closed.dereg().unwrap();
}

fn atomics(a: &Peer, b: &Peer) {
    let target = b.region.addr() + 64;
    b.region.write(64, &40_u64.to_ne_bytes()).unwrap();
    let result = [a.region.sge(0, 8).unwrap()];
    let old = |peer: &Peer| u64::from_ne_bytes(bytes_of(&peer.region, 0, 8).try_into().unwrap());
    a.post(SendWr::atomic_faa(4, &result, target, b.region.rkey(), 2));
    assert_eq!((a.complete().opcode, old(a)), (WcOpcode::FetchAdd, 40));
    a.post(SendWr::atomic_cas(5, &result, target, b.region.rkey(), 42, 7));
    assert_eq!((a.complete().opcode, old(a)), (WcOpcode::CompSwap, 42));
    assert_eq!(bytes_of(&b.region, 64, 8), 7_u64.to_ne_bytes());
}
