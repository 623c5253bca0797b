//! What the C ABI costs on top of the Rust client, measured both ways in one run over one daemon: 8-byte RDMA WRITEs from this process to
//! itself, posted and polled in turns by `ferroce` and by the functions that C programs call.
//!
//! ```text
//! cargo run --release -p ferroce-verbs-c --example overhead -- /run/ferroce/ferroced.sock
//! ```
//!
//! Counted is the time inside the calls only: posting to an engine that is awake, and the polls that find something. Both use the same kind
//! of memory.
#![expect(clippy::multiple_unsafe_ops_per_block, reason = "written as a C program is")]

use std::ffi::c_int;
use std::ptr;
use std::time::{Duration, Instant};

use ferroce::{
    AccessFlags, CompletionQueue, ConnectAttr, Context, CqInit, OwnRange, ProcessRegion, QpAttrMask, QpInit, QpState,
    QueuePair, SendWr, Sge, WorkCompletion,
};
use ferroce_verbs_c::abi::*;
use ferroce_verbs_c::{cq, device, memory, qp, query};

/// Work requests that are posted together, then polled.
const BURST: usize = 32;
/// Polled at a time.
const POLL: usize = 16;
/// Bursts of one kind before the other has its turn.
const BURSTS: usize = 10;
/// Turns of each.
const TURNS: usize = 500;
/// So long the engine is left alone with a burst.
const ENGINE: Duration = Duration::from_micros(40);
/// The C ABI may take so much more than the Rust client, percent.
const ALLOWED_PERCENT: f64 = 30.0;

/// Attributes of the steps to RTS.
const TO_INIT: QpAttrMask = QpAttrMask::PKEY_INDEX.union(QpAttrMask::PORT).union(QpAttrMask::ACCESS_FLAGS);
const TO_RTR: QpAttrMask = QpAttrMask::AV
    .union(QpAttrMask::PATH_MTU)
    .union(QpAttrMask::DEST_QPN)
    .union(QpAttrMask::RQ_PSN)
    .union(QpAttrMask::MAX_DEST_RD_ATOMIC)
    .union(QpAttrMask::MIN_RNR_TIMER);
const TO_RTS: QpAttrMask = QpAttrMask::TIMEOUT
    .union(QpAttrMask::RETRY_CNT)
    .union(QpAttrMask::RNR_RETRY)
    .union(QpAttrMask::SQ_PSN)
    .union(QpAttrMask::MAX_QP_RD_ATOMIC);

/// A way to post a burst of WRITEs and to take completions.
trait Way {
    /// Posts [`BURST`] work requests one by one if `single`, else in one go.
    fn post(&mut self, single: bool);
    /// Takes completions; how many.
    fn poll(&mut self) -> usize;
}

struct Rust {
    qp: QueuePair,
    cq: CompletionQueue,
    sge: Sge,
    rkey: u32,
    _peer: QueuePair,
    _region: ProcessRegion,
}

impl Rust {
    fn new(context: &Context) -> Result<Self, Box<dyn std::error::Error>> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(&CqInit { cqe: 256, ..CqInit::default() })?;
        let (qp, peer) = (pd.create_qp(&QpInit::rc(&cq))?, pd.create_qp(&QpInit::rc(&cq))?);
        let attr = ConnectAttr::default();
        let info = |qp| ferroce::exchange::ConnectionInfo::new(qp, ferroce::exchange::random_psn(), &attr);
        let (here, there) = (info(&qp)?, info(&peer)?);
        ferroce::connect(&qp, &here, &there, &attr)?;
        ferroce::connect(&peer, &there, &here, &attr)?;
        let memory = Box::leak(vec![0u64; 512].into_boxed_slice());
        // SAFETY: it lives for ever, and nothing else uses it.
        let range = unsafe { OwnRange::new(memory.as_mut_ptr().cast(), 4096) };
        let iova = memory.as_ptr().addr() as u64;
        let region = pd.register_process_memory(range, iova, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
        Ok(Self { qp, cq, sge: region.sge(0, 8)?, rkey: region.rkey(), _peer: peer, _region: region })
    }
}

impl Way for Rust {
    fn post(&mut self, single: bool) {
        let sges = [self.sge];
        let wr = |id| SendWr::write(id, &sges, self.sge.addr, self.rkey).signaled();
        if single {
            (0..BURST as u64).for_each(|id| self.qp.post_send(&wr(id)).expect("there is room"));
            return;
        }
        let mut batch = self.qp.send_batch();
        (0..BURST as u64).for_each(|id| batch.post(&wr(id)).expect("there is room"));
        batch.commit();
    }

    fn poll(&mut self) -> usize {
        let mut found = [WorkCompletion::default(); POLL];
        let count = self.cq.poll(&mut found);
        assert!(found[..count].iter().all(WorkCompletion::is_ok), "{:?}", found[0]);
        count
    }
}

/// The C ABI's functions, through the pointers that the header's inline functions call.
struct C {
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    post_send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    sge: Box<ibv_sge>,
    wrs: Vec<ibv_send_wr>,
}

impl C {
    /// # Safety
    /// `context` is open, for as long as this is used.
    unsafe fn new(context: *mut ibv_context) -> Self {
        let pool = Box::leak(vec![0u64; 512].into_boxed_slice());
        let all = 7;
        // SAFETY: as a C program does it; every result is looked at where it is used.
        unsafe {
            let pd = memory::ibv_alloc_pd(context);
            let cq = cq::ibv_create_cq(context, 256, ptr::null_mut(), ptr::null_mut(), 0);
            let mr = memory::ibv_reg_mr(pd, pool.as_mut_ptr().cast(), 4096, all);
            assert!(!pd.is_null() && !cq.is_null() && !mr.is_null(), "a domain, a CQ, a region");
            let cap =
                ibv_qp_cap { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
            let made = [(); 2].map(|()| {
                let srq = ptr::null_mut();
                let qp_context = ptr::null_mut();
                let mut init =
                    ibv_qp_init_attr { qp_context, send_cq: cq, recv_cq: cq, srq, cap, qp_type: 2, sq_sig_all: 0 };
                qp::ibv_create_qp(pd, &raw mut init)
            });
            assert!(made.iter().all(|qp| !qp.is_null()), "two QPs");
            let mut gid = ibv_gid::default();
            assert_eq!(query::ibv_query_gid(context, 1, 0, &raw mut gid), 0, "GID 0");
            let grh = ibv_global_route { dgid: gid, hop_limit: 64, ..ibv_global_route::default() };
            let ah_attr = ibv_ah_attr { grh, is_global: 1, port_num: 1, ..ibv_ah_attr::default() };
            for (qp, peer) in [(made[0], made[1]), (made[1], made[0])] {
                let base =
                    ibv_qp_attr { port_num: 1, qp_access_flags: 6, path_mtu: 3, ah_attr, ..ibv_qp_attr::default() };
                let base = ibv_qp_attr { dest_qp_num: (*peer).qp_num, timeout: 14, retry_cnt: 7, rnr_retry: 7, ..base };
                for (state, mask) in [(QpState::Init, TO_INIT), (QpState::Rtr, TO_RTR), (QpState::Rts, TO_RTS)] {
                    let mut attr = ibv_qp_attr { qp_state: state.code().into(), ..base };
                    let mask = mask.union(QpAttrMask::STATE).0.cast_signed();
                    assert_eq!(qp::ibv_modify_qp(qp, &raw mut attr, mask), 0, "to {state}");
                }
            }
            let mut sge = Box::new(ibv_sge { addr: (*mr).addr as u64, length: 8, lkey: (*mr).lkey });
            let bind_mw = ibv_send_wr_bind {
                mw: ptr::null_mut(),
                rkey: 0,
                mr: ptr::null_mut(),
                addr: 0,
                length: 0,
                mw_access_flags: 0,
            };
            let wr = ibv_send_wr {
                wr_id: 0,
                next: ptr::null_mut(),
                sg_list: &raw mut *sge,
                num_sge: 1,
                opcode: 0,
                send_flags: 2,
                imm_data: 0,
                wr: ibv_send_wr_detail {
                    remote_addr: (*mr).addr as u64,
                    second: u64::from((*mr).rkey),
                    swap: 0,
                    rkey: 0,
                },
                remote_srqn: 0,
                bind_mw,
            };
            let ops = &(*context).ops;
            let (post_send, poll_cq) = (ops.post_send.expect("a verb"), ops.poll_cq.expect("a verb"));
            Self { qp: made[0], cq, post_send, poll_cq, sge, wrs: vec![wr; BURST] }
        }
    }

    fn link(&mut self, single: bool) {
        let mut next = ptr::null_mut();
        for wr in self.wrs.iter_mut().rev() {
            wr.sg_list = &raw mut *self.sge;
            wr.next = if single { ptr::null_mut() } else { next };
            next = &raw mut *wr;
        }
    }
}

impl Way for C {
    fn post(&mut self, single: bool) {
        let mut bad = ptr::null_mut();
        let count = if single { BURST } else { 1 };
        for wr in &mut self.wrs[..count] {
            // SAFETY: the QP lives, and the list ends with NULL.
            let status = unsafe { (self.post_send)(self.qp, &raw mut *wr, &raw mut bad) };
            assert_eq!(status, 0, "post_send");
        }
    }

    fn poll(&mut self) -> usize {
        let mut found = [const { std::mem::MaybeUninit::<ibv_wc>::uninit() }; POLL];
        // SAFETY: the CQ lives, and there is room for so many.
        let count = unsafe { (self.poll_cq)(self.cq, POLL as c_int, found.as_mut_ptr().cast()) };
        let count = usize::try_from(count).expect("poll_cq");
        // SAFETY: the first `count` were written.
        assert!(found[..count].iter().all(|wc| unsafe { wc.assume_init_ref() }.status == 0), "a completion failed");
        count
    }
}

/// What bursts took, ns: posting, and polling.
#[derive(Default)]
struct Times {
    post: Vec<u64>,
    poll: Vec<u64>,
}

impl Times {
    /// Nanoseconds of a work request: posting, and polling. Of each the burst that a fiftieth of all were faster than: in others
    /// the engine slept, or another process had the core.
    fn each(&mut self) -> [f64; 2] {
        [(&mut self.post, BURST), (&mut self.poll, 2 * BURST)].map(|(bursts, count)| {
            bursts.sort_unstable();
            bursts[bursts.len() / 50] as f64 / count as f64
        })
    }
}

fn measure(way: &mut impl Way, single: bool, times: &mut Times) {
    let ns = |start: Instant| u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    for _ in 0..BURSTS {
        // Wakes the engine if it sleeps, which is no part of what is compared.
        way.post(single);
        let start = Instant::now();
        way.post(single);
        times.post.push(ns(start));
        let left_alone = Instant::now();
        while left_alone.elapsed() < ENGINE {
            std::hint::spin_loop();
        }
        let (mut found, mut polling_ns) = (0, 0);
        while found < 2 * BURST {
            let start = Instant::now();
            let count = way.poll();
            if count > 0 {
                polling_ns += ns(start);
            }
            found += count;
        }
        times.poll.push(polling_ns);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::env::args_os().nth(1).ok_or("usage: overhead SOCKET")?;
    let mut rust = Rust::new(&Context::connect(&socket)?)?;
    // SAFETY: nothing else runs in this process that could read the environment meanwhile.
    unsafe { std::env::set_var("FERROCE_SOCKETS", &socket) };
    // SAFETY: NULL asks for no number.
    let list = unsafe { device::ibv_get_device_list(ptr::null_mut()) };
    // SAFETY: the daemon answered just now, so the list has an entry.
    let context = unsafe { device::ibv_open_device(*list) };
    assert!(!context.is_null(), "the device opens");
    // SAFETY: it is open, and never closed.
    let mut c = unsafe { C::new(context) };
    let mut worst: f64 = 0.0;
    for (single, name) in [(true, "post_send, one at a time"), (false, "post_send, lists of 32")] {
        c.link(single);
        let (mut of_rust, mut of_c) = (Times::default(), Times::default());
        for turn in 0..=TURNS {
            if turn == 1 {
                // The first warms up.
                (of_rust, of_c) = (Times::default(), Times::default());
            }
            measure(&mut rust, single, &mut of_rust);
            measure(&mut c, single, &mut of_c);
        }
        let ([post, poll], [c_post, c_poll]) = (of_rust.each(), of_c.each());
        for (name, rust, c) in [(name, post, c_post), ("poll_cq", poll, c_poll), ("both", post + poll, c_post + c_poll)]
        {
            println!("{name:26} Rust {rust:6.1} ns, C {c:6.1} ns: {:+.0} %", (c / rust - 1.0) * 100.0);
        }
        worst = worst.max(((c_post + c_poll) / (post + poll) - 1.0) * 100.0);
    }
    if worst > ALLOWED_PERCENT {
        return Err(format!("the C ABI takes {worst:.0} % more; {ALLOWED_PERCENT} % are allowed").into());
    }
    Ok(())
}
