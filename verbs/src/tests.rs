//! The library against a mock daemon.

mod cm;
mod mock;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::*;
use mock::{Daemon, Mock};

const SECOND: Option<Duration> = Some(Duration::from_secs(1));
const NOW: Option<Duration> = Some(Duration::ZERO);

/// A context on an engine in this process, and a QP in RTS with one CQ.
struct Bed {
    mock: Arc<Mock>,
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
}

fn cap(send: u32, recv: u32) -> QpCap {
    QpCap { max_send_wr: send, max_recv_wr: recv, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 }
}

fn ready_qp(pd: &ProtectionDomain, cq: &CompletionQueue, cap: QpCap) -> QueuePair {
    let qp = pd.create_qp(&QpInit { cap, ..QpInit::rc(cq) }).unwrap();
    to_rts(&qp);
    qp
}

fn to_rts(qp: &QueuePair) {
    let attr = ConnectAttr::default();
    let info = exchange::ConnectionInfo::new(qp, Psn::new(7), &attr).unwrap();
    connect_rc(qp, &info, &info, &attr).unwrap();
    assert_eq!(qp.state(), QpState::Rts);
}

fn bed_on(context: Context, mock: Arc<Mock>) -> Bed {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInit { cqe: 64, ..CqInit::default() }).unwrap();
    let qp = ready_qp(&pd, &cq, cap(8, 4));
    Bed { mock, context, pd, cq, qp }
}

fn bed(polled: bool) -> Bed {
    let mock = Mock::new(polled);
    bed_on(Context::from_endpoint(Arc::clone(&mock) as _).unwrap(), mock)
}

/// Polls once: wr_id, status and opcode of each.
fn poll_all(cq: &CompletionQueue) -> Vec<(u64, WcStatus, WcOpcode)> {
    let mut out = [WorkCompletion::default(); 64];
    let count = cq.poll(&mut out);
    out[..count].iter().map(|wc| (wc.wr_id, wc.status, wc.opcode)).collect()
}

fn ids(cq: &CompletionQueue) -> Vec<u64> {
    poll_all(cq).into_iter().map(|(wr_id, ..)| wr_id).collect()
}

fn is_readable(fd: std::os::fd::BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
}

#[test]
fn polling_drives_an_engine_on_the_same_thread() {
    let bed = bed(true);
    for wr_id in 0..3 {
        bed.qp.post_send(&SendWr::send(wr_id, &[]).inline(b"x").signaled()).unwrap();
    }
    let mut out = [WorkCompletion::default(); 2];
    assert_eq!(bed.cq.poll(&mut out), 2);
    assert_eq!((out[0].wr_id, out[1].wr_id), (0, 1));
    assert_eq!(out[0].qpn, bed.qp.qpn());
    assert_eq!(ids(&bed.cq), [2]);
    assert_eq!(ids(&bed.cq), [0; 0]);
}

#[test]
fn a_window_s_key_counts_its_tag_and_its_bind_reaches_the_engine_as_built() {
    let bed = bed(false);
    let window = bed.pd.alloc_mw(MwType::Type2).unwrap();
    let first = window.rkey();
    let keys = [window.next_rkey(), window.next_rkey()];
    assert_eq!(keys, [first + 1, first & !0xff], "the tag wraps and leaves the rest alone");
    assert_eq!((window.rkey(), inc_rkey(0xffff_ffff)), (keys[1], 0xffff_ff00));
    let bind = MwBind { lkey: 5, addr: 0x1000, length: 1 << 33, access: AccessFlags::REMOTE_READ };
    let wrs = [SendWr::bind_mw(1, &window, keys[1], &bind).signaled(), SendWr::local_inv(2, keys[1]).fence()];
    bed.qp.post_send_batch(&wrs).unwrap();
    assert!(matches!(bed.qp.post_send(&wrs[1].inline(b"x")), Err(PostError::InlineNotAllowed { .. })));
    let mut state = bed.mock.state();
    let fetcher = &mut state.qps.get_mut(&bed.qp.qpn().value()).unwrap().send;
    let mut fetch = || fetcher.fetch(&mut [], &mut []).unwrap();
    let wqe = fetch();
    assert_eq!((wqe.opcode, wqe.imm, wqe.rkey >> 8), (WrOpcode::BindMw.code(), keys[1], first >> 8));
    assert_eq!((wqe.remote_addr, wqe.compare_add, wqe.swap), (0x1000, 1 << 33, 5 << 32 | 4));
    let wqe = fetch();
    assert_eq!((wqe.opcode, wqe.imm, wqe.flags), (WrOpcode::LocalInv.code(), keys[1], SendFlags::FENCE.0));
}

#[test]
fn a_qp_that_did_not_break_has_no_post_mortem() {
    assert_eq!(bed(false).qp.post_mortem().unwrap(), None);
}

#[test]
fn a_work_request_reaches_the_engine_as_built() {
    let bed = bed(false);
    let sges = [Sge { addr: 0x1000, length: 16, lkey: 5 }];
    let wrs = [
        SendWr::write(1, &sges, 0x2000, 9).with_imm(0x0102_0304).signaled().fence(),
        SendWr::send(2, &sges).with_invalidate(0x55).solicited(),
        SendWr::atomic_cas(3, &sges, 0x3000, 9, 10, 20),
        SendWr::send(4, &[]).inline_pieces(&[b"ab", b"cd"]).with_imm(1),
        SendWr::read(5, &sges, 0x4000, 9).with_imm(1),
    ];
    bed.qp.post_send_batch(&wrs).unwrap();
    let mut state = bed.mock.state();
    let fetcher = &mut state.qps.get_mut(&bed.qp.qpn().value()).unwrap().send;
    assert_eq!(fetcher.available(), Ok(5));
    let (mut got_sges, mut inline) = ([Sge::default(); 8], [0; 128]);
    let mut fetch = || (fetcher.fetch(&mut got_sges, &mut inline).unwrap(), got_sges[0], inline);
    let (wqe, sge, _) = fetch();
    assert_eq!((wqe.wr_id, wqe.opcode, wqe.remote_addr, wqe.rkey), (1, WrOpcode::RdmaWriteWithImm.code(), 0x2000, 9));
    assert_eq!((SendFlags(wqe.flags), wqe.imm), (SendFlags::SIGNALED | SendFlags::FENCE, 0x0102_0304_u32.to_be()));
    assert_eq!((wqe.sge_count, sge), (1, sges[0]));
    let (wqe, ..) = fetch();
    assert_eq!((wqe.opcode, wqe.imm, wqe.flags), (WrOpcode::SendWithInv.code(), 0x55, SendFlags::SOLICITED.0));
    let (wqe, ..) = fetch();
    assert_eq!((wqe.opcode, wqe.compare_add, wqe.swap), (WrOpcode::AtomicCmpAndSwp.code(), 10, 20));
    let (wqe, _, inline) = fetch();
    assert_eq!((wqe.opcode, wqe.inline_bytes, &inline[..4]), (WrOpcode::SendWithImm.code(), 4, &b"abcd"[..]));
    let (wqe, ..) = fetch();
    assert_eq!((wqe.opcode, wqe.imm), (WrOpcode::RdmaRead.code(), 0), "a READ has no immediate");
}

#[test]
fn a_batch_is_seen_as_a_whole_after_commit_only() {
    let bed = bed(false);
    let mut batch = bed.qp.send_batch();
    for wr_id in 0..8 {
        batch.post(&SendWr::send(wr_id, &[])).unwrap();
    }
    assert_eq!(batch.post(&SendWr::send(8, &[])), Err(PostError::Full));
    assert_eq!(bed.mock.take_doorbells(), [0; 0]);
    assert_eq!(bed.mock.fetch_sends(bed.qp.qpn()), [0; 0]);
    assert_eq!(batch.commit(), 8);
    assert_eq!(bed.mock.take_doorbells(), [0]);
    assert_eq!(bed.mock.fetch_sends(bed.qp.qpn()), [0, 1, 2, 3, 4, 5, 6, 7]);
    bed.mock.retire_sends(bed.qp.qpn(), 8);

    let mut batch = bed.qp.send_batch();
    batch.post(&SendWr::send(100, &[])).unwrap();
    drop(batch);
    bed.qp.post_send(&SendWr::send(101, &[])).unwrap();
    assert_eq!(bed.mock.fetch_sends(bed.qp.qpn()), [101], "a dropped batch is forgotten");
    assert_eq!(bed.qp.send_batch().commit(), 0);
}

#[test]
fn a_failed_batch_says_how_far_it_came() {
    let bed = bed(false);
    let too_many = [Sge::default(); 40];
    let wrs = [SendWr::send(1, &[]), SendWr::send(2, &too_many), SendWr::send(3, &[])];
    let error = bed.qp.post_send_batch(&wrs).unwrap_err();
    assert_eq!((error.posted, error.error.errno()), (1, nix::libc::EINVAL));
    assert!(matches!(error.error, PostError::TooManySges { count: 40, .. }), "{error}");
    assert_eq!(bed.mock.fetch_sends(bed.qp.qpn()), [1]);
    let long = [0; 2000];
    let error = bed.qp.post_send(&SendWr::send(4, &[]).inline(&long)).unwrap_err();
    assert!(matches!(error, PostError::InlineTooLong { bytes: 2000, .. }));
    let error = bed.qp.post_send(&SendWr::read(5, &[], 0, 0).inline(b"x")).unwrap_err();
    assert_eq!(error, PostError::InlineNotAllowed { opcode: WrOpcode::RdmaRead });
}

#[test]
fn the_state_decides_what_may_be_posted() {
    let bed = bed(false);
    let qp = bed.pd.create_qp(&QpInit::rc(&bed.cq)).unwrap();
    let state = |state| Err(PostError::State { qpn: qp.qpn(), state });
    assert_eq!(qp.post_recv(&RecvWr::new(1, &[])), state(QpState::Reset));
    qp.to_init(1, AccessFlags::NONE).unwrap();
    qp.post_recv(&RecvWr::new(1, &[])).unwrap();
    assert_eq!(qp.post_send(&SendWr::send(1, &[])), state(QpState::Init));
    to_rts(&qp);
    qp.post_send(&SendWr::send(1, &[])).unwrap();
    bed.mock.state().refuse = Some((nix::libc::EINVAL, "timeout is 32, it must be 0 to 31"));
    let error = qp.to_rts(Psn::new(0), &ConnectAttr::default()).unwrap_err();
    assert_eq!((error.errno(), error.to_string().as_str()), (nix::libc::EINVAL, "timeout is 32, it must be 0 to 31"));
    assert_eq!(qp.state(), QpState::Rts, "a refused modify changes nothing");
    qp.post_send(&SendWr::send(2, &[])).unwrap();
}

#[test]
fn a_receive_holds_its_place_until_its_completion_is_polled() {
    let bed = bed(false);
    let qpn = bed.qp.qpn();
    for wr_id in 0..4 {
        bed.qp.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
    }
    assert_eq!(bed.mock.take_recv(qpn), Some(0));
    assert_eq!(bed.qp.post_recv(&RecvWr::new(4, &[])), Err(PostError::Full));
    bed.mock.complete(qpn, 0, WcOpcode::Recv, WcStatus::Success);
    assert_eq!(bed.qp.post_recv(&RecvWr::new(4, &[])), Err(PostError::Full));
    assert_eq!(ids(&bed.cq), [0]);
    bed.qp.post_recv(&RecvWr::new(4, &[])).unwrap();
    let error = bed.qp.post_recv_batch(&[RecvWr::new(5, &[])]).unwrap_err();
    assert_eq!((error.posted, error.error), (0, PostError::Full));
}

#[test]
fn receives_ring_only_in_error() {
    let bed = bed(false);
    bed.qp.post_recv(&RecvWr::new(0, &[])).unwrap();
    assert_eq!(bed.mock.take_doorbells(), [0; 0]);
    assert!(!bed.qp.is_in_error());
    bed.qp.to_error().unwrap();
    assert!(bed.qp.is_in_error());
    bed.qp.post_recv(&RecvWr::new(1, &[])).unwrap();
    assert_eq!(bed.mock.take_doorbells(), [0]);
}

#[test]
fn a_sleeping_shard_is_woken() {
    let bed = bed(false);
    bed.qp.post_send(&SendWr::send(1, &[])).unwrap();
    bed.mock.take_doorbells();
    assert!(bed.mock.state().wake.as_ref().unwrap().read().is_err(), "nobody slept");
    assert!(!bed.mock.state().doorbell.as_ref().unwrap().0.announce_sleep());
    bed.qp.post_send(&SendWr::send(2, &[])).unwrap();
    assert_eq!(bed.mock.state().wake.as_ref().unwrap().read(), Ok(1));
}

#[test]
fn a_reset_empties_queues_and_forgets_completions() {
    let bed = bed(false);
    let other = ready_qp(&bed.pd, &bed.cq, cap(8, 4));
    let (qpn, other_qpn) = (bed.qp.qpn(), other.qpn());
    for wr_id in 0..4 {
        bed.qp.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
        bed.qp.post_send(&SendWr::send(wr_id + 10, &[]).signaled()).unwrap();
    }
    bed.mock.complete(qpn, 10, WcOpcode::Send, WcStatus::Success);
    bed.mock.complete(other_qpn, 77, WcOpcode::Send, WcStatus::Success);
    bed.mock.complete(qpn, 0, WcOpcode::Recv, WcStatus::Success);
    bed.qp.reset().unwrap();
    assert_eq!(ids(&bed.cq), [77], "another QP's completion stays");
    to_rts(&bed.qp);
    for wr_id in 20..24 {
        bed.qp.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
        bed.qp.post_send(&SendWr::send(wr_id + 10, &[])).unwrap();
    }
    assert_eq!(bed.mock.fetch_sends(qpn), [30, 31, 32, 33]);
    assert_eq!(bed.mock.take_recv(qpn), Some(20));
}

#[test]
fn a_new_qp_does_not_inherit_completions_of_its_number() {
    let bed = bed(false);
    let qpn = bed.qp.qpn();
    bed.mock.complete(qpn, 1, WcOpcode::Send, WcStatus::Success);
    bed.qp.destroy().unwrap();
    let qp = ready_qp(&bed.pd, &bed.cq, cap(8, 4));
    assert_eq!(qp.qpn(), qpn, "the number is used again");
    assert_eq!(ids(&bed.cq), [0; 0]);
    qp.post_recv(&RecvWr::new(2, &[])).unwrap();
    bed.mock.complete(qpn, 2, WcOpcode::Recv, WcStatus::Success);
    assert_eq!(ids(&bed.cq), [2]);
}

#[test]
fn objects_go_before_what_they_were_made_from() {
    let bed = bed(false);
    let channel = bed.context.create_channel().unwrap();
    let cq = bed.context.create_cq(&CqInit { cqe: 4, channel: Some(&channel), comp_vector: None }).unwrap();
    let srq = bed.pd.create_srq(Some(&cq), SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 }).unwrap();
    let qp = bed.pd.create_qp(&QpInit { srq: Some(&srq), ..QpInit::rc(&cq) }).unwrap();
    let pool = MemoryPool::new(&bed.context, 4096, PageSize::Base).unwrap();
    let region = pool.register_all(&bed.pd, AccessFlags::NONE).unwrap();
    let Bed { mock, context, pd, cq: first_cq, qp: first_qp } = bed;
    drop((first_qp, first_cq));
    mock.take_log();
    drop(context);
    for busy in [pd.clone().dealloc(), cq.clone().destroy(), channel.clone().destroy(), pool.clone().destroy()] {
        assert_eq!(busy.unwrap_err().errno(), nix::libc::EBUSY);
    }
    drop((pd, channel, cq, srq, pool));
    assert_eq!(mock.take_log(), [""; 0], "everything is still referred to");
    drop(region);
    assert_eq!(mock.take_log(), ["DeregMr", "DetachMemory"]);
    qp.destroy().unwrap();
    assert_eq!(mock.take_log(), ["DestroyQp", "DestroyCq", "DestroyChannel", "DestroySrq", "DeallocPd"]);
}

#[test]
fn a_refused_destroy_is_told() {
    let bed = bed(false);
    bed.mock.state().refuse = Some((nix::libc::EBUSY, "no"));
    assert!(matches!(bed.qp.destroy(), Err(VerbsError::Refused { errno: nix::libc::EBUSY, .. })));
    bed.mock.take_log();
    bed.cq.destroy().unwrap();
    assert_eq!(bed.mock.take_log(), ["DestroyCq"], "nothing is destroyed twice");
}

#[test]
fn another_version_is_refused_by_name() {
    let mock = Mock::new(false);
    mock.state().abi_version = Some(99);
    let error = Context::from_endpoint(mock as _).unwrap_err();
    assert!(matches!(error, VerbsError::Version { theirs: 99, .. }), "{error}");
    let error = Context::connect("/nonexistent/socket").unwrap_err();
    assert_eq!(error.errno(), nix::libc::ENOENT);
    assert!(error.to_string().contains("/nonexistent/socket"), "{error}");
}

#[test]
fn memory_is_bounded_by_pool_and_region() {
    let bed = bed(false);
    let pool = MemoryPool::new(&bed.context, 8192, PageSize::Base).unwrap();
    let region = pool.register_at(&bed.pd, 4096..4160, 0x1_0000, AccessFlags::LOCAL_WRITE).unwrap();
    region.write(56, b"12345678").unwrap();
    let mut out = [0; 8];
    pool.read(4096 + 56, &mut out).unwrap();
    assert_eq!(&out, b"12345678");
    assert_eq!(region.sge(56, 8).unwrap(), Sge { addr: 0x1_0038, length: 8, lkey: region.lkey() });
    region.atomic_u64(8).unwrap().store(3, Relaxed);
    assert_eq!(pool.atomic_u64(4104).unwrap().load(Relaxed), 3);
    assert!(matches!(region.sge(57, 8), Err(VerbsError::OutOfRange { offset: 57, length: 8, limit: 64 })));
    assert!(region.sge(u64::MAX, 8).is_err());
    assert!(region.write(57, &[0; 8]).is_err());
    assert!(region.read(64, &mut out).is_err());
    assert!(matches!(region.atomic_u64(4), Err(VerbsError::Misaligned { .. })));
    assert!(matches!(pool.atomic_u64(8192), Err(VerbsError::OutOfRange { .. })));
    assert!(pool.register(&bed.pd, 4096..8193, AccessFlags::NONE).is_err());
    #[expect(clippy::reversed_empty_ranges, reason = "what a careless caller may pass")]
    let empty = pool.register(&bed.pd, 5..4, AccessFlags::NONE).unwrap();
    assert_eq!(empty.length(), 0);
    pool.zero(4096..4160).unwrap();
    assert_eq!(pool.atomic_u64(4104).unwrap().load(Relaxed), 0);
}

#[test]
fn a_cq_grows_between_two_polls_and_its_channel_still_tells() {
    let bed = bed(false);
    let channel = bed.context.create_channel().unwrap();
    let cq = bed.context.create_cq(&CqInit { cqe: 2, channel: Some(&channel), comp_vector: None }).unwrap();
    let qp = ready_qp(&bed.pd, &cq, cap(8, 4));
    let complete = |wr_id| bed.mock.complete(qp.qpn(), wr_id, WcOpcode::Send, WcStatus::Success);
    complete(1);
    complete(2);
    cq.req_notify(false);
    cq.resize(5).unwrap();
    assert_eq!(cq.depth(), 8);
    (3..11).for_each(complete);
    assert_eq!(channel.try_get().unwrap().map(|told| told.handle()), Some(cq.handle()));
    assert_eq!(ids(&cq), (1..11).collect::<Vec<_>>());
    assert!(!cq.is_overrun());
    bed.mock.take_log();
    cq.resize(8).unwrap();
    assert!(bed.mock.take_log().is_empty(), "it is as large");
    bed.mock.state().refuse = Some((22, "too many"));
    assert_eq!(cq.resize(1 << 30).unwrap_err().errno(), 22);
    complete(11);
    assert_eq!((ids(&cq), cq.depth()), (vec![11], 8));
}

#[test]
fn a_channel_hands_out_each_cq_once_a_notification() {
    let bed = bed(false);
    let channel = bed.context.create_channel().unwrap();
    let init = CqInit { cqe: 8, channel: Some(&channel), comp_vector: None };
    let (cq_a, cq_b) = (bed.context.create_cq(&init).unwrap(), bed.context.create_cq(&init).unwrap());
    let (qp_a, qp_b) = (ready_qp(&bed.pd, &cq_a, cap(4, 4)), ready_qp(&bed.pd, &cq_b, cap(4, 4)));
    let complete = |qp: &QueuePair| bed.mock.complete(qp.qpn(), 1, WcOpcode::Send, WcStatus::Success);
    complete(&qp_a);
    assert!(channel.try_get().unwrap().is_none(), "not asked for");
    cq_a.req_notify(false);
    cq_b.req_notify(false);
    assert!(!is_readable(channel.as_fd()));
    complete(&qp_a);
    complete(&qp_a);
    complete(&qp_b);
    assert!(is_readable(channel.as_fd()));
    let first = channel.wait(SECOND).unwrap().unwrap();
    assert!(is_readable(channel.as_fd()), "the other one is left");
    let second = channel.wait(SECOND).unwrap().unwrap();
    assert_eq!((first.handle(), second.handle()), (cq_a.handle(), cq_b.handle()));
    assert!(!is_readable(channel.as_fd()));
    assert!(channel.wait(Some(Duration::from_millis(5))).unwrap().is_none());
    cq_b.req_notify(true);
    complete(&qp_b);
    assert!(channel.try_get().unwrap().is_none(), "not solicited");
}

#[test]
fn waiting_threads_each_get_an_event() {
    let bed = bed(false);
    let channel = bed.context.create_channel().unwrap();
    let init = CqInit { cqe: 8, channel: Some(&channel), comp_vector: None };
    let cqs = [(); 3].map(|()| bed.context.create_cq(&init).unwrap());
    let qps = cqs.each_ref().map(|cq| ready_qp(&bed.pd, cq, cap(4, 4)));
    cqs.iter().for_each(|cq| cq.req_notify(false));
    std::thread::scope(|scope| {
        let wait = || channel.wait(SECOND).unwrap().expect("an event within a second").handle();
        let waiters: Vec<_> = (0..3).map(|_| scope.spawn(wait)).collect();
        for qp in &qps {
            bed.mock.complete(qp.qpn(), 1, WcOpcode::Send, WcStatus::Success);
        }
        let mut got: Vec<u32> = waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect();
        got.sort_unstable();
        assert_eq!(got, cqs.each_ref().map(CompletionQueue::handle));
    });
}

#[test]
fn waiting_drives_an_engine_on_the_same_thread() {
    let bed = bed(true);
    let channel = bed.context.create_channel().unwrap();
    let cq = bed.context.create_cq(&CqInit { cqe: 8, channel: Some(&channel), comp_vector: None }).unwrap();
    let qp = ready_qp(&bed.pd, &cq, cap(4, 4));
    cq.req_notify(false);
    qp.post_send(&SendWr::send(5, &[]).signaled()).unwrap();
    assert!(channel.wait(SECOND).unwrap().is_some());
    assert_eq!(ids(&cq), [5]);
    assert!(channel.wait(Some(Duration::from_millis(2))).unwrap().is_none());
    assert_eq!(bed.context.get_async_event(Some(Duration::from_millis(2))).unwrap(), None);
}

#[test]
fn asynchronous_events_come_with_and_without_a_thread() {
    let direct = bed(false);
    let (daemon, socket) = Daemon::start();
    let watched = bed_on(Context::from_fd(socket).unwrap(), Arc::clone(&daemon.mock));
    for bed in [&direct, &watched] {
        assert_eq!(bed.context.get_async_event(NOW).unwrap(), None);
        assert!(!is_readable(bed.context.async_event_fd()));
        let events = [AsyncEvent::CommEst { qpn: 17 }, AsyncEvent::PortErr { port_num: 1 }];
        for event in events {
            bed.mock.send_event(event);
        }
        for event in events {
            assert_eq!(bed.context.get_async_event(SECOND).unwrap(), Some(event));
        }
        assert!(!is_readable(bed.context.async_event_fd()));
        assert!(bed.context.is_alive());
        bed.mock.state().events = None;
        assert_eq!(bed.context.get_async_event(SECOND).unwrap(), Some(AsyncEvent::DeviceFatal));
        assert!(bed.context.get_async_event(SECOND).unwrap_err().is_disconnected());
        assert!(!bed.context.is_alive());
    }
}

#[test]
fn a_dead_daemon_leaves_every_work_request_flushed_once() {
    use {WcOpcode::*, WcStatus::*};
    let (mut daemon, socket) = Daemon::start();
    let bed = bed_on(Context::from_fd(socket).unwrap(), Arc::clone(&daemon.mock));
    let (mock, qpn) = (&daemon.mock, bed.qp.qpn());
    for wr_id in 0..4 {
        bed.qp.post_recv(&RecvWr::new(100 + wr_id, &[])).unwrap();
    }
    for wr_id in 0..6 {
        let wr = SendWr::write(wr_id, &[], 0, 0);
        bed.qp.post_send(&if wr_id % 2 == 1 { wr.signaled() } else { wr }).unwrap();
    }
    // All sends are done, the last one with an error; receive 100 is done, 101 is coming in.
    assert_eq!(mock.fetch_sends(qpn).len(), 6);
    mock.complete(qpn, 1, RdmaWrite, Success);
    mock.retire_sends(qpn, 2);
    mock.complete(qpn, 3, RdmaWrite, Success);
    assert_eq!((mock.take_recv(qpn), mock.take_recv(qpn)), (Some(100), Some(101)));
    mock.complete(qpn, 100, Recv, Success);
    assert_eq!(ids(&bed.cq), [1, 3, 100]);
    bed.qp.post_recv(&RecvWr::new(104, &[])).unwrap();
    mock.retire_sends(qpn, 2);
    mock.complete(qpn, 5, RdmaWrite, RemAccessErr);
    mock.retire_sends(qpn, 2);
    daemon.kill();
    assert_eq!(bed.context.get_async_event(SECOND).unwrap(), Some(AsyncEvent::DeviceFatal));
    assert_eq!(poll_all(&bed.cq), [(5, RemAccessErr, RdmaWrite)], "what the daemon completed comes first");
    assert_eq!(poll_all(&bed.cq), [101, 102, 103, 104].map(|wr_id| (wr_id, WrFlushErr, Recv)));
    assert_eq!(poll_all(&bed.cq), []);
    assert_eq!(bed.qp.post_send(&SendWr::send(9, &[])), Err(PostError::Disconnected));
    assert_eq!(bed.qp.post_recv(&RecvWr::new(9, &[])), Err(PostError::Disconnected));
    assert!(bed.context.alloc_pd().unwrap_err().is_disconnected());
    assert!(bed.qp.destroy().unwrap_err().is_disconnected());
}

#[test]
fn a_send_completed_but_not_retired_is_not_flushed_again() {
    let (mut daemon, socket) = Daemon::start();
    let bed = bed_on(Context::from_fd(socket).unwrap(), Arc::clone(&daemon.mock));
    for wr_id in 0..6 {
        let wr = SendWr::send(wr_id, &[]);
        bed.qp.post_send(&if wr_id % 2 == 1 { wr.signaled() } else { wr }).unwrap();
    }
    daemon.mock.fetch_sends(bed.qp.qpn());
    for wr_id in [1, 3] {
        daemon.mock.complete(bed.qp.qpn(), wr_id, WcOpcode::Send, WcStatus::Success);
    }
    daemon.mock.retire_sends(bed.qp.qpn(), 2);
    daemon.kill();
    bed.context.get_async_event(SECOND).unwrap();
    assert_eq!(ids(&bed.cq), [1, 3]);
    let flushed = [4, 5].map(|wr_id| (wr_id, WcStatus::WrFlushErr, WcOpcode::Send));
    assert_eq!(poll_all(&bed.cq), flushed);
}

#[test]
fn a_polled_completion_stands_for_a_free_slot_even_before_the_engine_gives_it_back() {
    let bed = bed(false);
    for wr_id in 0..8 {
        bed.qp.post_send(&SendWr::send(wr_id, &[]).signaled()).unwrap();
    }
    bed.mock.fetch_sends(bed.qp.qpn());
    assert_eq!(bed.qp.post_send(&SendWr::send(8, &[])), Err(PostError::Full), "nothing is complete");
    bed.mock.complete(bed.qp.qpn(), 0, WcOpcode::Send, WcStatus::Success);
    assert_eq!(ids(&bed.cq), [0]);
    std::thread::scope(|scope| {
        let engine = scope.spawn(|| {
            // Long enough for a client that does not wait to give up.
            (0..100).for_each(|_| std::thread::yield_now());
            bed.mock.retire_sends(bed.qp.qpn(), 1);
        });
        bed.qp.post_send(&SendWr::send(8, &[]).signaled()).unwrap();
        engine.join().unwrap();
    });
    assert_eq!(bed.qp.post_send(&SendWr::send(9, &[])), Err(PostError::Full));
}

#[test]
fn a_slot_that_is_given_back_after_the_queue_was_found_full_is_found() {
    let bed = bed(false);
    for wr_id in 0..8 {
        bed.qp.post_send(&SendWr::send(wr_id, &[]).signaled()).unwrap();
    }
    bed.mock.fetch_sends(bed.qp.qpn());
    bed.mock.complete(bed.qp.qpn(), 0, WcOpcode::Send, WcStatus::Success);
    assert_eq!(ids(&bed.cq), [0]);
    // Between the post that found no room, and the look at what is owed.
    bed.mock.retire_sends(bed.qp.qpn(), 1);
    let queues = bed.qp.queues();
    assert!(queues.wait_for_slot(&mut queues.send.lock().unwrap()));
}

#[test]
fn a_datagram_names_its_handle_its_receiver_and_the_qkey() {
    let mock = Mock::new(true);
    let bed = bed_on(Context::from_endpoint(Arc::clone(&mock) as Arc<dyn control::Endpoint>).unwrap(), mock);
    let qp = bed.pd.create_qp(&QpInit { cap: cap(4, 4), ..QpInit::ud(&bed.cq) }).unwrap();
    start_datagrams(&qp, 1, 5, Psn::new(9)).unwrap();
    assert_eq!((qp.qp_type(), qp.state()), (QpType::Ud, QpState::Rts));
    let ah = bed.pd.create_ah(&AhAttr { port_num: 1, ..AhAttr::default() }).unwrap();
    qp.post_send(&SendWr::send(3, &[]).with_imm(1).to(&ah, Qpn::new(0xab_cdef), 0x8000_0001)).unwrap();
    let mut state = bed.mock.state();
    let wqe = state.qps.get_mut(&qp.qpn().value()).unwrap().send.fetch(&mut [], &mut []).unwrap();
    assert_eq!((wqe.rkey, wqe.remote_addr, wqe.compare_add), (0xab_cdef, 0x8000_0001, ah.handle().into()));
    assert_eq!((wqe.opcode, wqe.imm), (WrOpcode::SendWithImm.code(), 1_u32.to_be()));
    drop(state);
    let _ = bed.mock.take_log();
    assert!(matches!(ah.clone().destroy(), Err(VerbsError::Busy { object: "address handle" })));
    assert!(matches!(bed.pd.clone().dealloc(), Err(VerbsError::Busy { .. })));
    ah.destroy().unwrap();
    assert_eq!(bed.mock.take_log(), ["DestroyAh"]);
}

#[test]
fn a_request_of_xrc_names_the_srq_wherever_its_operation_leaves_room() {
    let bed = bed(true);
    let qp = bed.pd.create_qp(&QpInit::xrc_send(&bed.cq)).unwrap();
    qp.to_init(1, AccessFlags::NONE).unwrap();
    qp.modify(&QpAttr { qp_state: QpState::Rts, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
    assert!(matches!(qp.post_recv(&RecvWr::new(1, &[])), Err(PostError::NoReceiveQueue { .. })));
    let wrs = [
        SendWr::send(1, &[]).to_srq(0xab_cdef).with_imm(9),
        SendWr::write(2, &[], 4096, 5).with_imm(9).to_srq(0xab_cdef),
        SendWr::read(3, &[], 4096, 5).to_srq(0xab_cdef),
        SendWr::atomic_faa(4, &[], 4096, 5, 77).to_srq(0xab_cdef),
        SendWr::atomic_cas(5, &[], 4096, 5, 77, u64::MAX).to_srq(0xab_cdef),
    ];
    qp.post_send_batch(&wrs).unwrap();
    let mut state = bed.mock.state();
    let send = &mut state.qps.get_mut(&qp.qpn().value()).unwrap().send;
    let wqes = [(); 5].map(|()| send.fetch(&mut [], &mut []).unwrap());
    assert!(wqes.iter().all(|wqe| wqe.srqn() == 0xab_cdef));
    assert_eq!([wqes[0].imm, wqes[1].imm], [9_u32.to_be(); 2]);
    assert_eq!((wqes[4].compare_add, wqes[4].swap, wqes[3].compare_add), (77, u64::MAX, 77));
    drop(state);
    // What stays here goes to nobody, and has its own use for the fields.
    let key = 0x1234_5678;
    qp.post_send(&SendWr::local_inv(6, key).to_srq(0xab_cdef)).unwrap();
    let mut state = bed.mock.state();
    let wqe = state.qps.get_mut(&qp.qpn().value()).unwrap().send.fetch(&mut [], &mut []).unwrap();
    assert_eq!((wqe.imm, wqe.swap), (key, 0));
}

#[test]
fn objects_of_an_xrc_domain_keep_it_open() {
    let bed = bed(true);
    let domain = bed.context.open_xrcd(&XrcdInit { create: true, ..XrcdInit::default() }).unwrap();
    assert_eq!(domain.comp_vector(), 3);
    let attr = SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    let srq = bed.pd.create_xrc_srq(&domain, &bed.cq, attr).unwrap();
    assert_eq!(srq.srqn(), Some(srq.handle() | 3 << 20));
    let receiver = domain.create_receiver().unwrap();
    assert_eq!(receiver.qpn(), Qpn::new(0x30_0077));
    assert!(matches!(domain.clone().close(), Err(VerbsError::Busy { object: "XRC domain" })));
    let _ = bed.mock.take_log();
    receiver.destroy().unwrap();
    drop(domain);
    assert_eq!(bed.mock.take_log(), ["DestroyQp"], "the SRQ still has the domain");
    srq.destroy().unwrap();
    assert_eq!(bed.mock.take_log(), ["DestroySrq", "CloseXrcd"]);
}

#[test]
fn receives_of_an_xrc_srq_are_flushed_to_its_cq() {
    let (mut daemon, socket) = Daemon::start();
    let bed = bed_on(Context::from_fd(socket).unwrap(), Arc::clone(&daemon.mock));
    let domain = bed.context.open_xrcd(&XrcdInit { create: true, ..XrcdInit::default() }).unwrap();
    let attr = SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    let [srq, gone] = [(); 2].map(|()| bed.pd.create_xrc_srq(&domain, &bed.cq, attr).unwrap());
    for wr_id in 0..3 {
        srq.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
        gone.post_recv(&RecvWr::new(10 + wr_id, &[])).unwrap();
    }
    gone.destroy().unwrap();
    daemon.kill();
    bed.context.get_async_event(SECOND).unwrap();
    let flushed = [0, 1, 2].map(|wr_id| (wr_id, WcStatus::WrFlushErr, WcOpcode::Recv));
    assert_eq!(poll_all(&bed.cq), flushed);
    assert_eq!(ids(&bed.cq), [0; 0]);
}

#[test]
fn receives_of_an_srq_are_flushed_once_for_all_its_qps() {
    let (mut daemon, socket) = Daemon::start();
    let bed = bed_on(Context::from_fd(socket).unwrap(), Arc::clone(&daemon.mock));
    let srq = bed.pd.create_srq(None, SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 }).unwrap();
    let init = QpInit { srq: Some(&srq), ..QpInit::rc(&bed.cq) };
    let qps = [bed.pd.create_qp(&init).unwrap(), bed.pd.create_qp(&init).unwrap()];
    for wr_id in 0..3 {
        srq.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
    }
    let no_queue = PostError::NoReceiveQueue { qpn: qps[0].qpn() };
    assert_eq!(qps[0].post_recv(&RecvWr::new(1, &[])), Err(no_queue));
    let taken = daemon.mock.state().srqs.get_mut(&srq.handle()).unwrap().fetch(&mut [Sge::default()]);
    assert_eq!(taken, Ok((0, 0)));
    daemon.mock.complete(qps[1].qpn(), 0, WcOpcode::Recv, WcStatus::Success);
    daemon.kill();
    bed.context.get_async_event(SECOND).unwrap();
    assert_eq!(ids(&bed.cq), [0]);
    assert_eq!(ids(&bed.cq), [1, 2]);
    assert_eq!(ids(&bed.cq), [0; 0]);
    assert_eq!(srq.post_recv(&RecvWr::new(1, &[])), Err(PostError::Disconnected));
}

#[test]
fn sleepers_and_callers_wake_when_the_daemon_dies() {
    let (mut daemon, socket) = Daemon::start();
    let bed = bed_on(Context::from_fd(socket).unwrap(), Arc::clone(&daemon.mock));
    let channel = bed.context.create_channel().unwrap();
    let cq = bed.context.create_cq(&CqInit { cqe: 8, channel: Some(&channel), comp_vector: None }).unwrap();
    let qp = ready_qp(&bed.pd, &cq, cap(4, 4));
    qp.post_send(&SendWr::send(1, &[])).unwrap();
    cq.req_notify(true);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let got = channel.wait(None).unwrap().expect("no timeout was given");
            assert_eq!(poll_all(&got), [(1, WcStatus::WrFlushErr, WcOpcode::Send)]);
            assert!(channel.wait(None).unwrap_err().is_disconnected());
        });
        let listener = scope.spawn(|| bed.context.get_async_event(None).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        daemon.kill();
        sleeper.join().unwrap();
        assert_eq!(listener.join().unwrap(), Some(AsyncEvent::DeviceFatal));
    });
    assert!(started.elapsed() < Duration::from_secs(1));
}

#[test]
fn threads_share_a_qp_and_a_cq() {
    const THREADS: u64 = 4;
    const EACH: u64 = 2_000;
    let bed = bed(true);
    let seen = std::sync::Mutex::new(vec![false; (THREADS * EACH) as usize]);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (bed, seen) = (&bed, &seen);
            scope.spawn(move || {
                let poll = || {
                    let mut out = [WorkCompletion::default(); 4];
                    let count = bed.cq.poll(&mut out);
                    for completion in &out[..count] {
                        let place = completion.wr_id as usize;
                        assert!(!std::mem::replace(&mut error::lock(seen)[place], true), "{place} came twice");
                    }
                    count
                };
                for i in 0..EACH {
                    while bed.qp.post_send(&SendWr::send(thread * EACH + i, &[]).signaled()).is_err() {
                        poll();
                    }
                }
                while poll() > 0 {}
            });
        }
    });
    while !ids(&bed.cq).is_empty() {}
    assert!(error::lock(&seen).iter().all(|&seen| seen));
}

#[test]
fn a_context_ends_its_thread_and_its_session() {
    let (mut daemon, socket) = Daemon::start();
    let context = Context::from_fd(socket).unwrap();
    let pd = context.alloc_pd().unwrap();
    drop(context);
    drop(pd);
    assert_eq!(daemon.mock.take_log(), ["Hello", "AllocPd", "DeallocPd"]);
    let events = daemon.mock.state().events.take().unwrap();
    let mut buffer = [0; 64];
    let end = shm::socket::receive(std::os::fd::AsFd::as_fd(&events), &mut buffer);
    assert!(matches!(end, Err(CallError::Disconnected)), "the client's end is closed");
    daemon.kill();
}
