//! Memory windows: what they open, for whom, and until when. IBTA 10.6.7.

use engine::ErrorCause;
use shm::attr::{AccessFlags, MwType, SendFlags, WcOpcode, WcStatus, WrOpcode};
use shm::control::{Reply, Request};
use shm::layout::SendWqe;
use wire::Opcode;

use crate::peer::{Case, done, failed, pattern};
use crate::support::{BASE, CAP, Client, Connect, HostOptions, Pair, TestQp, connect};

const LOCAL: AccessFlags = AccessFlags::LOCAL_WRITE;
const READ: AccessFlags = AccessFlags::REMOTE_READ;
const WRITE: AccessFlags = AccessFlags::REMOTE_WRITE;
const BINDABLE: AccessFlags = AccessFlags(AccessFlags::LOCAL_WRITE.0 | AccessFlags::MW_BIND.0);
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

/// Side 1 has windows, side 0 is its peer.
struct Windows {
    pair: Pair,
    /// A region at [`BASE`] of 8192 bytes that no peer reaches but through windows.
    region: u32,
}

fn next(key: u32) -> u32 {
    key & !0xff | (key + 1) & 0xff
}

fn bind(wr_id: u64, window: u32, key: u32, region: u32, (at, length): (u64, u64), access: AccessFlags) -> SendWqe {
    SendWqe {
        wr_id,
        opcode: WrOpcode::BindMw.code(),
        flags: SendFlags::SIGNALED.0,
        rkey: window,
        imm: key,
        remote_addr: BASE + at,
        compare_add: length,
        swap: u64::from(region) << 32 | u64::from(access.0),
        ..SendWqe::default()
    }
}

fn local_inv(wr_id: u64, key: u32) -> SendWqe {
    let flags = SendFlags::SIGNALED.0;
    SendWqe { wr_id, opcode: WrOpcode::LocalInv.code(), flags, imm: key, ..SendWqe::default() }
}

impl Windows {
    fn new() -> Self {
        let mut pair = Pair::new(Connect { path_mtu: 3, ..Connect::default() });
        let pd = pair.clients[1].pd;
        let region = pair.region(1, pd, 0, 8192, BINDABLE);
        Self { pair, region }
    }

    fn alloc(&mut self, pd: u32, mw_type: MwType) -> (u32, u32) {
        match self.pair.ask(1, Request::AllocMw { pd, mw_type }) {
            Reply::Mw { mw, rkey } => (mw, rkey),
            other => panic!("{other:?}"),
        }
    }

    fn window(&mut self, mw_type: MwType) -> u32 {
        let pd = self.pair.clients[1].pd;
        self.alloc(pd, mw_type).1
    }

    fn post(&mut self, wqe: SendWqe) {
        self.pair.qps[1].post(wqe, &[]);
        self.pair.exchange();
    }

    /// Posts on side 1 and returns how it completed.
    fn run(&mut self, wqe: SendWqe) -> (u64, WcStatus, u32) {
        self.post(wqe);
        let [completion] = self.pair.failures(1)[..] else { panic!("one completion") };
        completion
    }

    /// A window of bytes 1000..1100, bound.
    fn bound(&mut self, mw_type: MwType, access: AccessFlags) -> u32 {
        let window = self.window(mw_type);
        let key = next(window);
        assert_eq!(self.run(bind(1, window, key, self.region, (1000, 100), access)), done(1));
        key
    }

    /// Side 0's WRITE or READ of bytes at `at` by this key succeeds.
    fn reaches(&mut self, opcode: WrOpcode, key: u32, addr: u64, length: u32) -> bool {
        let wqe = SendWqe { rkey: key, remote_addr: addr, ..self.pair.wqe(77, opcode) };
        self.pair.post(wqe, length);
        self.pair.exchange();
        let [(77, status, _)] = self.pair.failures(0)[..] else { panic!("one completion") };
        assert!(matches!(status, WcStatus::Success | WcStatus::RemAccessErr), "{status}");
        if status != WcStatus::Success {
            // Both QPs are broken: new ones, and what was bound for the old one is not any more.
            self.pair.clients[1].poll();
            self.pair.reconnect();
        }
        status == WcStatus::Success
    }
}

#[test]
fn a_window_opens_its_range_with_its_rights_under_its_key() {
    for mw_type in [MwType::Type1, MwType::Type2] {
        let mut w = Windows::new();
        w.pair.write(1, 0, &pattern(8192));
        let key = w.bound(mw_type, READ);
        assert!(!w.reaches(WrOpcode::RdmaRead, w.region, BASE + 1000, 4), "the region itself stays closed");
        let key = if mw_type == MwType::Type2 { w.bound(mw_type, READ) } else { key };
        assert!(w.reaches(WrOpcode::RdmaRead, key, BASE + 1000, 100));
        assert_eq!(w.pair.read(0, 0, 100), pattern(8192)[1000..1100]);
        for (opcode, at, length, what) in [
            (WrOpcode::RdmaRead, 999, 2, "before"),
            (WrOpcode::RdmaRead, 1000, 101, "beyond"),
            (WrOpcode::RdmaWrite, 1000, 4, "right"),
        ] {
            let mut w = Windows::new();
            let key = w.bound(mw_type, READ);
            assert!(!w.reaches(opcode, key, BASE + at, length), "{what} {mw_type}");
        }
    }
}

#[test]
fn the_key_before_a_bind_opens_nothing() {
    let mut w = Windows::new();
    let old = w.window(MwType::Type2);
    assert!(!w.reaches(WrOpcode::RdmaRead, old, BASE, 4), "not bound at all");
    let key = next(old);
    assert_eq!(w.run(bind(1, old, key, w.region, (0, 64), READ)), done(1));
    assert!(w.reaches(WrOpcode::RdmaRead, key, BASE, 64));
    assert!(!w.reaches(WrOpcode::RdmaRead, old, BASE, 4), "the tag changed");
}

#[test]
fn a_zero_based_window_of_type_2_counts_from_its_own_start() {
    let mut w = Windows::new();
    w.pair.write(1, 1000, b"here it is");
    let key = w.bound(MwType::Type2, READ | AccessFlags::ZERO_BASED);
    assert!(w.reaches(WrOpcode::RdmaRead, key, 0, 10));
    assert_eq!(w.pair.read(0, 0, 10), b"here it is");
    let window = w.window(MwType::Type1);
    let wqe = bind(2, window, next(window), w.region, (0, 8), READ | AccessFlags::ZERO_BASED);
    assert_eq!(w.run(wqe), failed(2, WcStatus::MwBindErr, ErrorCause::WindowRange));
}

#[test]
fn type_1_is_rebound_and_unbound_by_length_0() {
    let mut w = Windows::new();
    let first = w.bound(MwType::Type1, WRITE);
    let second = next(first);
    assert_eq!(w.run(bind(2, first, second, w.region, (4000, 50), WRITE)), done(2));
    assert!(w.reaches(WrOpcode::RdmaWrite, second, BASE + 4000, 50));
    assert!(!w.reaches(WrOpcode::RdmaWrite, first, BASE + 1000, 4));
    assert!(w.reaches(WrOpcode::RdmaWrite, second, BASE + 4000, 50), "bound for the domain, not for a QP");
    let third = next(second);
    assert_eq!(w.run(bind(3, second, third, 0, (0, 0), AccessFlags::NONE)), done(3));
    assert!(!w.reaches(WrOpcode::RdmaWrite, third, BASE + 4000, 4));
    assert_eq!(w.pair.ask(1, Request::DeregMr { lkey: w.region }), Reply::Done);
}

#[test]
fn what_can_not_be_bound_is_a_bind_error() {
    type Spoilt = fn(&mut Windows) -> SendWqe;
    let cases: [(&str, ErrorCause, Spoilt); 13] = [
        ("no such window", ErrorCause::WindowUnusable, |w| bind(9, 0x77_0001, 0x77_0002, w.region, (0, 8), READ)),
        ("a region's key", ErrorCause::WindowUnusable, |w| bind(9, w.region, next(w.region), w.region, (0, 8), READ)),
        ("the same key", ErrorCause::WindowUnusable, |w| {
            let key = w.window(MwType::Type2);
            bind(9, key, key, w.region, (0, 8), READ)
        }),
        ("another window's key", ErrorCause::WindowUnusable, |w| {
            let [key, other] = [w.window(MwType::Type2), w.window(MwType::Type2)];
            bind(9, key, next(other), w.region, (0, 8), READ)
        }),
        ("bound, type 2", ErrorCause::WindowUnusable, |w| {
            let key = w.bound(MwType::Type2, READ);
            bind(9, key, next(key), w.region, (0, 8), READ)
        }),
        ("other domain", ErrorCause::WindowUnusable, |w| {
            let pd = w.pair.pd(1);
            let key = w.alloc(pd, MwType::Type1).1;
            bind(9, key, next(key), w.region, (0, 8), READ)
        }),
        ("no such region", ErrorCause::WindowRegion, |w| {
            let key = w.window(MwType::Type2);
            bind(9, key, next(key), w.region ^ 1, (0, 8), READ)
        }),
        ("a region without MW_BIND", ErrorCause::WindowRegion, |w| {
            let key = w.window(MwType::Type2);
            let region = w.pair.clients[1].key;
            bind(9, key, next(key), region, (0, 8), READ)
        }),
        ("writable, of a region that is not", ErrorCause::WindowRegion, |w| {
            let (key, pd) = (w.window(MwType::Type2), w.pair.clients[1].pd);
            let region = w.pair.region(1, pd, 0, 64, AccessFlags::MW_BIND);
            bind(9, key, next(key), region, (0, 8), WRITE)
        }),
        ("a window as region", ErrorCause::WindowRegion, |w| {
            let (key, inner) = (w.window(MwType::Type2), w.bound(MwType::Type2, READ));
            bind(9, key, next(key), inner, (1000, 8), READ)
        }),
        ("beyond", ErrorCause::WindowRange, |w| {
            let key = w.window(MwType::Type2);
            bind(9, key, next(key), w.region, (8190, 3), READ)
        }),
        ("empty, type 2", ErrorCause::WindowRange, |w| {
            let key = w.window(MwType::Type2);
            bind(9, key, next(key), w.region, (0, 0), READ)
        }),
        ("a local right", ErrorCause::WindowRange, |w| {
            let key = w.window(MwType::Type2);
            bind(9, key, next(key), w.region, (0, 8), READ | LOCAL)
        }),
    ];
    for (what, cause, spoilt) in cases {
        let mut w = Windows::new();
        let wqe = spoilt(&mut w);
        assert_eq!(w.run(wqe), failed(9, WcStatus::MwBindErr, cause), "{what}");
    }
}

#[test]
fn a_bind_with_sges_or_inline_data_is_no_work_request() {
    let mut w = Windows::new();
    let key = w.window(MwType::Type2);
    let wqe = bind(9, key, next(key), w.region, (0, 8), READ);
    w.pair.qps[1].post_inline(wqe, b"x");
    w.pair.exchange();
    assert_eq!(w.pair.failures(1), [failed(9, WcStatus::LocQpOpErr, ErrorCause::BadWqe)]);
}

#[test]
fn a_window_is_no_local_key() {
    let mut w = Windows::new();
    let key = w.bound(MwType::Type1, READ | WRITE);
    let sge = shm::layout::Sge { addr: BASE + 1000, length: 8, lkey: key };
    let send = SendWqe { opcode: WrOpcode::Send.code(), ..local_inv(5, 0) };
    w.pair.qps[1].post(send, &[sge]);
    w.pair.exchange();
    assert_eq!(w.pair.failures(1), [failed(5, WcStatus::LocProtErr, ErrorCause::NoRight)]);
}

#[test]
fn a_window_of_type_2_is_for_its_qp_only() {
    let mut w = Windows::new();
    let key = w.bound(MwType::Type2, WRITE);
    let c = w.pair.connect;
    let other = w.pair.clients[1].qp(&mut w.pair.hosts[1], CAP);
    let peer = w.pair.clients[0].qp(&mut w.pair.hosts[0], CAP);
    let ends: [(&TestQp, u32); 2] = [(&peer, other.qpn), (&other, peer.qpn)];
    for (side, (qp, peer_qpn)) in ends.into_iter().enumerate() {
        let (session, ip) = (w.pair.clients[side].session, w.pair.hosts[1 - side].ip);
        connect(&mut w.pair.hosts[side], session, qp.qpn, ip, peer_qpn, c, side);
    }
    assert!(w.reaches(WrOpcode::RdmaWrite, key, BASE + 1000, 8), "by the QP that it was bound on");
    let mine = std::mem::replace(&mut w.pair.qps[0], peer);
    let wqe = SendWqe { rkey: key, remote_addr: BASE + 1000, ..w.pair.wqe(78, WrOpcode::RdmaWrite) };
    w.pair.post(wqe, 8);
    w.pair.exchange();
    assert_eq!(w.pair.failures(0), [failed(78, WcStatus::RemAccessErr, ErrorCause::NakRemoteAccess)]);
    w.pair.qps[0] = mine;
    assert!(w.reaches(WrOpcode::RdmaWrite, key, BASE + 1000, 8));
}

#[test]
fn a_qp_that_goes_takes_its_bindings_along() {
    let mut w = Windows::new();
    let key = w.bound(MwType::Type2, WRITE);
    let busy = w.pair.ask(1, Request::DeregMr { lkey: w.region });
    let Reply::Refused { errno: EBUSY, message } = busy else { panic!("{busy:?}") };
    assert_eq!(
        message,
        format!("region {:#x} has 1 memory windows bound to it: invalidate or free them first", w.region)
    );
    assert!(w.reaches(WrOpcode::RdmaWrite, key, BASE + 1000, 8), "a refusal changes nothing");
    let qpn = w.pair.qps[1].qpn;
    assert_eq!(w.pair.ask(1, Request::DestroyQp { qpn }), Reply::Done);
    assert_eq!(w.pair.ask(1, Request::DeregMr { lkey: w.region }), Reply::Done);
}

#[test]
fn a_window_is_freed_bound_or_not() {
    let mut w = Windows::new();
    let pd = w.pair.clients[1].pd;
    let (mw, window) = w.alloc(pd, MwType::Type2);
    assert_eq!(w.run(bind(1, window, next(window), w.region, (0, 64), READ)), done(1));
    assert_eq!(w.pair.ask(1, Request::DeallocMw { mw }), Reply::Done);
    assert!(matches!(w.pair.ask(1, Request::DeallocMw { mw }), Reply::Refused { errno: EINVAL, .. }));
    assert!(!w.reaches(WrOpcode::RdmaRead, next(window), BASE, 4));
    assert_eq!(w.pair.ask(1, Request::DeregMr { lkey: w.region }), Reply::Done);
    let pd = w.pair.pd(1);
    let (mw, _) = w.alloc(pd, MwType::Type1);
    assert!(matches!(w.pair.ask(1, Request::DeallocPd { pd }), Reply::Refused { errno: EBUSY, .. }));
    assert_eq!(w.pair.ask(1, Request::DeallocMw { mw }), Reply::Done);
    assert_eq!(w.pair.ask(1, Request::DeallocPd { pd }), Reply::Done);
}

#[test]
fn local_invalidate_closes_a_window_and_it_can_be_bound_again() {
    let mut w = Windows::new();
    let key = w.bound(MwType::Type2, WRITE);
    w.post(local_inv(2, key));
    let [cqe] = w.pair.clients[1].poll()[..] else { panic!() };
    assert_eq!((cqe.wr_id, cqe.status, cqe.opcode), (2, 0, WcOpcode::LocalInv as u8));
    let again = next(key);
    assert_eq!(w.run(bind(3, key, again, w.region, (0, 8), WRITE)), done(3));
    assert!(w.reaches(WrOpcode::RdmaWrite, again, BASE, 8));
    assert!(!w.reaches(WrOpcode::RdmaWrite, key, BASE + 1000, 8));
}

#[test]
fn a_key_that_can_not_be_invalidated_breaks_the_qp_that_asks() {
    type KeyOf = fn(&mut Windows) -> u32;
    let cases: [(&str, KeyOf); 5] = [
        ("unknown", |w| w.region ^ 0x55),
        ("unbound", |w| w.window(MwType::Type2)),
        ("type 1", |w| w.bound(MwType::Type1, READ)),
        ("a region that no peer reaches", |w| w.region),
        ("a region with a window", |w| {
            let pd = w.pair.clients[1].pd;
            let region = w.pair.region(1, pd, 0, 64, BINDABLE | READ);
            let window = w.window(MwType::Type2);
            assert_eq!(w.run(bind(1, window, next(window), region, (0, 8), READ)), done(1));
            region
        }),
    ];
    for (what, key) in cases {
        let mut w = Windows::new();
        let key = key(&mut w);
        assert_eq!(w.run(local_inv(9, key)), failed(9, WcStatus::MwBindErr, ErrorCause::InvalidateFailed), "{what}");
        let qpn = w.pair.qps[1].qpn;
        let Reply::PostMortem(why) = w.pair.ask(1, Request::WhyQp { qpn }) else { panic!() };
        assert!(why.summary.sentence.ends_with(&format!("in the LOCAL_INV of key {key:#x} (wr_id 9)")), "{what}");
    }
}

#[test]
fn a_send_with_invalidate_closes_a_window_of_this_qp_only() {
    let mut w = Windows::new();
    let key = w.bound(MwType::Type2, WRITE);
    w.pair.receive(50, 64);
    let send = SendWqe { imm: key, ..w.pair.wqe(2, WrOpcode::SendWithInv) };
    w.pair.post(send, 8);
    w.pair.exchange();
    assert_eq!(w.pair.failures(0), [done(2)]);
    let [cqe] = w.pair.clients[1].poll()[..] else { panic!() };
    assert_eq!((cqe.wr_id, cqe.imm, cqe.status), (50, key, 0));
    assert!(!w.reaches(WrOpcode::RdmaWrite, key, BASE + 1000, 8));

    let kinds: [Case<u32>; 1] = [("unbound", |p| p.clients[1].key ^ 0x4000)];
    for (what, unknown) in kinds {
        let mut w = Windows::new();
        let type_1 = w.bound(MwType::Type1, WRITE);
        for key in [type_1, unknown(&mut w.pair)] {
            w.pair.receive(50, 64);
            let send = w.pair.packet(0, Opcode::RC_SEND_ONLY_INV, 0).ieth(key).bytes(8);
            assert_eq!(w.pair.tell(1, &send), ["NAK remote access error +0 msn 0"], "{what}");
            w.pair.clients[1].poll();
            w.pair.reconnect();
        }
    }
}

/// An answer of side 0's peer is lost: what side 1 posted waits.
#[test]
fn local_work_is_done_in_its_turn_once_and_completes_in_order() {
    let mut w = Windows::new();
    let window = w.window(MwType::Type2);
    let key = next(window);
    w.pair.write(1, 4000, b"sent");
    for wr_id in [60, 61] {
        let place = w.pair.clients[0].sge(8192, 64);
        w.pair.qps[0].post_recv(wr_id, &[place]);
    }
    let peer_key = w.pair.clients[0].key;
    let to_peer = |wr_id, opcode: WrOpcode| SendWqe {
        wr_id,
        opcode: opcode.code(),
        flags: SendFlags::SIGNALED.0,
        remote_addr: BASE + 2048,
        rkey: peer_key,
        ..SendWqe::default()
    };
    let sge = |w: &Windows| w.pair.clients[1].sge(4000, 4);
    let (bind_it, region) = (bind(2, window, key, w.region, (0, 64), READ), w.region);
    let sges = [sge(&w)];
    w.pair.qps[1].post(to_peer(1, WrOpcode::RdmaRead), &sges);
    w.pair.qps[1].post(bind_it, &[]);
    w.pair.qps[1].post(to_peer(3, WrOpcode::Send), &sges);
    // A fence waits for the READ.
    w.pair.qps[1].post(SendWqe { flags: SendFlags::SIGNALED.0 | SendFlags::FENCE.0, ..local_inv(4, key) }, &[]);
    w.pair.qps[1].post(to_peer(5, WrOpcode::Send), &sges);
    // Everything of the peer's is lost for a while, so all is sent again.
    w.pair.exchange_with(|from, frame| if from == 0 { vec![] } else { vec![frame] });
    assert_eq!(w.pair.failures(1), [], "nothing is answered yet");
    let busy = w.pair.ask(1, Request::DeregMr { lkey: region });
    assert!(matches!(busy, Reply::Refused { errno: EBUSY, .. }), "the bind is done already");
    w.pair.now = w.pair.now.add_ns(4096 << 14);
    w.pair.exchange();
    w.pair.advance(4096 << 14);
    let completed: Vec<_> = w.pair.failures(1);
    assert_eq!(completed, [done(1), done(2), done(3), done(4), done(5)]);
    assert_eq!(w.pair.ask(1, Request::DeregMr { lkey: region }), Reply::Done, "and undone");
}

#[test]
fn local_work_alone_completes_at_once_and_unsignalled_by_the_next() {
    let mut w = Windows::new();
    let window = w.window(MwType::Type2);
    let key = next(window);
    let quiet = SendWqe { flags: 0, ..bind(1, window, key, w.region, (0, 64), READ) };
    w.post(quiet);
    assert_eq!(w.pair.failures(1), []);
    assert_eq!(w.run(local_inv(2, key)), done(2));
    // The queue does not fill up.
    for wr_id in 10..200 {
        let key = (0..wr_id as u32 - 8).fold(key, |key, _| next(key));
        assert_eq!(w.run(bind(wr_id, key, next(key), w.region, (0, 64), READ)), done(wr_id));
        assert_eq!(w.run(local_inv(wr_id, next(key))), done(wr_id));
    }
}

#[test]
fn a_session_on_two_lcores_has_no_windows_of_type_1() {
    let mut options = HostOptions::new(1);
    options.shard_count = 2;
    let mut pair = Pair::with(Connect::default(), options, HostOptions::new(2), 1 << 16);
    let pd = pair.clients[0].pd;
    let mw = match pair.ask(0, Request::AllocMw { pd, mw_type: MwType::Type1 }) {
        Reply::Mw { mw, .. } => mw,
        other => panic!("{other:?}"),
    };
    let second = |pair: &mut Pair| {
        let cq = pair.ask(0, Request::CreateCq { cqe: 8, channel: None, comp_vector: Some(1) });
        let Reply::Cq { cq, .. } = cq else { panic!("{cq:?}") };
        let (qp_type, srq) = (shm::attr::QpType::Rc, None);
        pair.ask(0, Request::CreateQp { pd, qp_type, send_cq: cq, recv_cq: cq, srq, cap: CAP, sq_sig_all: false })
    };
    let Reply::Refused { errno: EOPNOTSUPP, message } = second(&mut pair) else { panic!() };
    assert!(message.contains("type 1"), "{message}");
    assert_eq!(pair.ask(0, Request::DeallocMw { mw }), Reply::Done);
    assert!(matches!(second(&mut pair), Reply::Qp { .. }));
    let Reply::Refused { errno: EOPNOTSUPP, .. } = pair.ask(0, Request::AllocMw { pd, mw_type: MwType::Type1 }) else {
        panic!()
    };
    assert!(matches!(pair.ask(0, Request::AllocMw { pd, mw_type: MwType::Type2 }), Reply::Mw { .. }));
}

#[test]
fn a_client_that_dies_with_windows_leaves_nothing() {
    let mut w = Windows::new();
    for _ in 0..3 {
        w.bound(MwType::Type2, READ);
        w.bound(MwType::Type1, READ);
    }
    let host = &mut w.pair.hosts[1];
    host.control.close_session(&mut host.shards, w.pair.clients[1].session);
    let mut client = Client::new(host, 4096);
    assert_eq!(client.poll(), []);
}
