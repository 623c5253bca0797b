//! A queue pair: its state, split by how often a packet touches it.
//!
//! * [`Qp`] itself is the hot part, four cache lines: identity, the requester's and the responder's PSNs and cursors.
//! * [`QpBody`] is what a packet touches once it is accepted: path, rings, private copies of work requests.
//! * [`QpBody::cold`] is for control verbs and post-mortems only.
//!
//! What a QP does is in its siblings, named as in the field: `requester` sends requests, `responder` executes the peer's and
//! `answers` it, `reassembly` keeps what comes early, `completer` matches answers to work requests, `unreliable` is what UC does instead, `datagram` what UD does, `local`
//! binds windows and invalidates keys, `xrc` finds the SRQ that a request of XRC is for, `flush` empties the queues of a QP in ERR, `modify` is the control side, `state` the table
//! of legal transitions, `selective` the requester's side of selective repeat, with its scoreboard `board`, `keep` and `psn_set` what
//! both sides keep packets in, `parts` READs that are asked for in parts, `lateness` how late packets come to one that goes back N, `rtt` the round trip times, `signals` what
//! loss recovery and congestion control are told, `congestion` what the latter does, `detail` what an operator sees, `capture` what a QP leaves that breaks.

mod answers;
mod board;
mod capture;
mod completer;
mod congestion;
mod datagram;
mod detail;
mod flush;
pub(crate) mod keep;
mod lateness;
mod local;
mod modify;
mod parts;
mod psn_set;
mod reassembly;
mod requester;
mod responder;
mod rtt;
mod selective;
mod signals;
mod slot;
pub(crate) mod state;
mod transfer;
mod unreliable;
mod xrc;

use shm::attr::{AccessFlags, QpAttr, QpCap, QpState, QpType, RecoveryPolicy};
use shm::control::post_mortem::FailedRequest;
use shm::layout::{Cqe, QueueShape, Sge};
use shm::ring::{BadBlock, RecvFetcher, SendFetcher};
use shm::segment::Block;
use wire::{Msn, PathMtu, Pkey, Psn, Qpn};

use crate::cause::ErrorCause;
use crate::cc::Settings;
use crate::counters::QpCounters;
use crate::path::Path;
use crate::post_mortem::{RefusedFacts, RetryMeter};
use crate::qos::Lane;
use crate::shard::Env;
use crate::time::Time;
use board::Board;
pub(crate) use congestion::ECN_CE;
use congestion::{CcFlags, Congestion};
use keep::KeptRing;
use lateness::Lateness;
use psn_set::PsnSet;
use reassembly::RepeatQueue;
pub(crate) use requester::Step;
use responder::{Nak, Resource, WriteCursor};
use rtt::RttMeter;
use slot::SendSlot;

/// No SRQ.
const NONE: u32 = u32::MAX;

/// A queue pair. The hot part: four cache lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Qp {
    pub(crate) qpn: Qpn,
    pub(crate) dest_qpn: Qpn,
    pub(crate) index: u32,
    pub(crate) pd: u32,
    pub(crate) session: u32,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    srq: u32,
    /// XRC domain of a QP that receives; 0 = none.
    xrcd: u32,
    access: AccessFlags,
    pkey: Pkey,
    pub(crate) kind: QpType,
    pub(crate) state: QpState,
    /// Bits of [`crate::ready::Output`]: the queues it is in.
    pub(crate) scheduled: u8,
    /// Which of each kind of queue. Datagrams choose anew: each has a path of its own.
    pub(crate) lane: Lane,
    mtu: PathMtu,
    /// Port, from 0.
    pub(crate) port: u8,
    sq_sig_all: bool,
    /// How lost packets are made up for.
    pub(crate) recovery: RecoveryPolicy,
    /// What congestion control has to do with its packets now.
    cc: CcFlags,
    /// PSNs that may be unacknowledged.
    window_packets: u32,
    /// An acknowledgement is asked for at least every so many request packets.
    ack_request_packets: u32,
    req: Requester,
    resp: Responder,
    body: Box<QpBody>,
}

const _: () = assert!(size_of::<Qp>() <= 4 * 64, "a QP's hot state fits four cache lines");

/// The requester's and completer's cursors. Slots count work requests since RESET, modulo 2^32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    /// Oldest PSN that is not acknowledged.
    una_psn: Psn,
    /// PSN of the next packet.
    nxt_psn: Psn,
    /// PSN after the highest that was ever sent.
    max_psn: Psn,
    /// Slot of `una_psn`.
    una_slot: u32,
    /// Slot of the next packet.
    nxt_slot: u32,
    /// Slots of which a packet was ever sent (exclusive end).
    started: u32,
    /// Slots that were fetched from shared memory (exclusive end).
    fetched: u32,
    /// Which packet of its message the next one is.
    nxt_packet: u32,
    /// Packets since the last that asked for an acknowledgement.
    since_ack_request: u32,
    /// READs and atomics in the slots from `una_slot` to the next packet; of READs in parts, the parts.
    rd_outstanding: u8,
    max_rd_atomic: u8,
    retry_cnt: u8,
    retry_left: u8,
    rnr_retry: u8,
    rnr_left: u8,
    /// Local operations that are executed and wait for what is before them to complete.
    locals: u32,
    /// The gap at `una_psn` was answered by going back already.
    gap_seen: bool,
    /// The path's neighbour is not known yet.
    unresolved: bool,
    /// A response that is missing is not asked for yet: it may be late.
    waits: bool,
    /// Responses came early to one that goes back N, and what was missing before them has not come yet.
    has_early: bool,
    /// READs are asked for in parts, or were, and some are in flight.
    has_parts: bool,
    /// 0 = no acknowledgement timer.
    timeout_ns: u64,
    /// When the acknowledgement timer fires.
    deadline: Time,
    /// Silent until then after an RNR NAK.
    rnr_until: Time,
}

/// The responder's cursors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Responder {
    /// Expected PSN.
    epsn: Psn,
    /// Requests completed.
    msn: Msn,
    write: WriteCursor,
    /// Bytes of the current SEND (or of a WRITE with immediate) so far.
    received_bytes: u32,
    /// Where the next resource goes: the place of the oldest.
    resource_next: usize,
    /// READs and atomics whose answers are not all sent.
    pending_responses: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    message: Message,
    /// Everything is dropped silently until the expected PSN comes.
    silent: bool,
    /// That is because of an RNR NAK: what comes meanwhile is not kept.
    not_ready: bool,
    /// A request that is missing is not asked for yet: it may be late.
    waits: bool,
    ack_due: bool,
    /// A NAK to send, after the answers to what came before.
    nak: Option<Nak>,
    /// The QP got a packet while in RTR.
    established: bool,
}

/// Which message the responder is in the middle of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    /// None: a First or Only comes next.
    None,
    /// A SEND.
    Send,
    /// An RDMA WRITE.
    Write,
}

/// What a packet touches once it is accepted.
#[derive(Debug)]
pub(crate) struct QpBody {
    /// `None` before RTR.
    path: Option<Path>,
    sq: SendFetcher,
    slots: Box<[SendSlot]>,
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    rq: Option<RecvFetcher>,
    recv: CurrentRecv,
    resources: Box<[Resource]>,
    /// READ responses that are asked for again, of a QP that repeats selectively.
    repeats: RepeatQueue,
    /// Requests that came early; RC and XRC only.
    kept: Option<Box<KeptRing>>,
    /// READ responses and atomic results that came early; RC and XRC only.
    early: Option<Box<KeptRing>>,
    late_requests: Lateness,
    late_responses: Lateness,
    /// The scoreboard of a QP that repeats selectively.
    board: Option<Box<Board>>,
    /// Of READs in flight that are asked for in parts, and of atomics beside them: the last PSN of each request.
    asked: PsnSet,
    /// `None` without a path.
    congestion: Option<Box<Congestion>>,
    /// Settings of congestion control of its own, in place of its port's.
    own_congestion: Option<Box<Settings>>,
    cold: Cold,
}

/// The receive that the current message fills.
#[derive(Debug)]
pub(crate) struct CurrentRecv {
    taken: bool,
    wr_id: u64,
    sge_count: usize,
    /// Domain of its SGEs: the QP's, or the SRQ's.
    pd: u32,
    capacity_bytes: u32,
    sges: Box<[Sge]>,
}

/// For control verbs and post-mortems.
#[derive(Debug)]
pub(crate) struct Cold {
    block: Block,
    cap: QpCap,
    attr: QpAttr,
    error: Option<ErrorCause>,
    last_nak: Option<(u8, Psn)>,
    last_wqe_reported: bool,
    counters: QpCounters,
    /// When the peer's last packet came; [`Time::NEVER`] if none did.
    heard: Time,
    rtt: RttMeter,
    /// The verbs attribute `timeout`, ns; 0 = none.
    timeout_ns: u64,
    /// The last time that it went back N.
    rewound: Rewound,
    retries: RetryMeter,
    /// Windows of type 2 may be bound for it.
    has_windows: bool,
    /// It broke by itself at any time: a reset leaves this as it is.
    has_broken: bool,
    failed_request: Option<FailedRequest>,
    refused: Option<RefusedFacts>,
}

/// When a QP last went back, and what is sent again since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rewound {
    at: Time,
    /// The PSN it went back to.
    first: Psn,
    /// After the last PSN that was sent before.
    end: Psn,
}

impl Rewound {
    const NEVER: Self = Self { at: Time::NEVER, first: Psn::new(0), end: Psn::new(0) };
}

/// What the control side makes a QP from.
#[derive(Debug)]
pub struct QpConfig {
    /// Its number; the upper bits name the shard.
    pub qpn: Qpn,
    /// Index in the shard.
    pub index: u32,
    /// Owner.
    pub session: u32,
    /// Protection domain (unique in the engine).
    pub pd: u32,
    /// Service.
    pub kind: QpType,
    /// Index of the CQ for sends, in the same shard.
    pub send_cq: u32,
    /// Index of the CQ for receives, in the same shard.
    pub recv_cq: u32,
    /// Index of the SRQ, in the same shard.
    pub srq: Option<u32>,
    /// XRC domain of a QP that receives (unique in the engine); 0 = none.
    pub xrcd: u32,
    /// How lost packets are made up for; of reliable services only.
    pub recovery: RecoveryPolicy,
    /// Every send makes a completion.
    pub sq_sig_all: bool,
    /// Sizes granted.
    pub cap: QpCap,
    /// Shape of the send queue.
    pub sq: QueueShape,
    /// Shape of the receive queue; depth 0 with an SRQ.
    pub rq: QueueShape,
    /// SGEs in a receive of the SRQ.
    pub srq_max_sge: u32,
    /// Where its rings are.
    pub block: Block,
    /// Responder resources: the engine's limit, of which RTR may use fewer.
    pub max_rd_atomic: u8,
}

impl Qp {
    /// A QP in RESET. All the memory that it will ever use is allocated here.
    ///
    /// # Errors
    /// [`BadBlock`] if its block is too small for its rings.
    pub fn new(config: QpConfig) -> Result<Box<Self>, BadBlock> {
        let QpConfig { sq, rq, block, .. } = config;
        let depth = sq.depth as usize;
        let recv_sges = rq.max_sge.max(config.srq_max_sge) as usize;
        let recovery = if config.kind.is_reliable() { config.recovery } else { RecoveryPolicy::GoBackN };
        let body = QpBody {
            path: None,
            sq: SendFetcher::new(&block, sq)?,
            slots: vec![SendSlot::EMPTY; depth].into_boxed_slice(),
            sges: vec![Sge::default(); depth * sq.max_sge as usize].into_boxed_slice(),
            inline: vec![0; depth * config.cap.max_inline_data as usize].into_boxed_slice(),
            rq: if rq.depth > 0 { Some(RecvFetcher::new(&block, sq, rq)?) } else { None },
            recv: CurrentRecv {
                taken: false,
                wr_id: 0,
                sge_count: 0,
                pd: config.pd,
                capacity_bytes: 0,
                sges: vec![Sge::default(); recv_sges].into_boxed_slice(),
            },
            resources: vec![Resource::EMPTY; usize::from(config.max_rd_atomic)].into_boxed_slice(),
            repeats: RepeatQueue::new(),
            kept: matches!(config.kind, QpType::Rc | QpType::XrcRecv).then(KeptRing::new),
            early: matches!(config.kind, QpType::Rc | QpType::XrcSend).then(KeptRing::new),
            late_requests: Lateness::NEW,
            late_responses: Lateness::NEW,
            board: recovery.is_selective().then(|| Board::new(Psn::new(0))),
            asked: PsnSet::EMPTY,
            congestion: None,
            own_congestion: None,
            cold: Cold {
                block,
                cap: config.cap,
                attr: QpAttr { cap: config.cap, ..QpAttr::default() },
                error: None,
                last_nak: None,
                last_wqe_reported: false,
                counters: QpCounters::default(),
                heard: Time::NEVER,
                rtt: RttMeter::NEW,
                timeout_ns: 0,
                rewound: Rewound::NEVER,
                retries: RetryMeter::NEW,
                has_windows: false,
                has_broken: false,
                failed_request: None,
                refused: None,
            },
        };
        Ok(Box::new(Self {
            qpn: config.qpn,
            dest_qpn: Qpn::new(0),
            index: config.index,
            pd: config.pd,
            session: config.session,
            send_cq: config.send_cq,
            recv_cq: config.recv_cq,
            srq: config.srq.unwrap_or(NONE),
            xrcd: config.xrcd,
            access: AccessFlags::NONE,
            pkey: Pkey::DEFAULT,
            kind: config.kind,
            state: QpState::Reset,
            scheduled: 0,
            lane: Lane::INSIDE,
            // A datagram is one packet, whatever its port's path MTU: that is checked for each.
            mtu: if config.kind == QpType::Ud { PathMtu::M4096 } else { PathMtu::M256 },
            port: 0,
            sq_sig_all: config.sq_sig_all,
            recovery,
            cc: CcFlags::default(),
            // Both come with the path.
            window_packets: 1,
            ack_request_packets: 1,
            req: Requester { has_parts: recovery.is_selective(), ..Requester::new(Psn::new(0)) },
            resp: Responder::new(Psn::new(0)),
            body: Box::new(body),
        }))
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// The earliest time at which [`Qp::handle_timer`] has something to do.
    #[inline]
    fn next_timer(&self) -> Time {
        let at = self.req.deadline.min(self.req.rnr_until);
        let at = if self.req.waits || self.resp.waits { self.lateness_timer().min(at) } else { at };
        if self.recovery.is_selective() { self.board_timer().min(at) } else { at }
    }

    fn board_timer(&self) -> Time {
        self.body.board.as_ref().map_or(Time::NEVER, |board| board.next_timer())
    }

    /// Has the shard's wheel call [`Qp::handle_timer`] no later than the next deadline. A later deadline than the one
    /// scheduled costs nothing: the wheel fires early once, and is set again then.
    #[inline]
    fn arm_timer(&self, env: &mut Env) {
        let at = self.next_timer();
        if at != Time::NEVER {
            env.timers.schedule_no_later(self.index, at);
        }
    }

    /// Writes a completion to a CQ of this QP.
    #[inline]
    fn complete(&self, env: &mut Env, cq: u32, cqe: Cqe, solicited: bool) {
        let cqe = Cqe { qpn: self.qpn.value(), timestamp_ns: env.now.as_ns(), ..cqe };
        env.push_completion(cq, &cqe, solicited);
    }

    /// Slot number to index.
    #[inline]
    fn slot_index(&self, slot: u32) -> usize {
        // Depths are powers of two: the ring's constructor refuses others.
        slot as usize & (self.body.slots.len() - 1)
    }
}

/// The earlier of two PSNs.
#[inline]
fn earlier(a: Psn, b: Psn) -> Psn {
    if b.is_before(a) { b } else { a }
}

/// The later of two PSNs.
#[inline]
fn later(a: Psn, b: Psn) -> Psn {
    if a.is_before(b) { b } else { a }
}

impl Requester {
    /// The state after RESET, or on the way to RTS with the first PSN to send.
    fn new(psn: Psn) -> Self {
        Self {
            una_psn: psn,
            nxt_psn: psn,
            max_psn: psn,
            una_slot: 0,
            nxt_slot: 0,
            started: 0,
            fetched: 0,
            nxt_packet: 0,
            since_ack_request: 0,
            rd_outstanding: 0,
            max_rd_atomic: 0,
            retry_cnt: 0,
            retry_left: 0,
            rnr_retry: 0,
            rnr_left: 0,
            locals: 0,
            gap_seen: false,
            unresolved: false,
            waits: false,
            has_early: false,
            has_parts: false,
            timeout_ns: 0,
            deadline: Time::NEVER,
            rnr_until: Time::NEVER,
        }
    }
}

impl Responder {
    fn new(psn: Psn) -> Self {
        Self {
            epsn: psn,
            msn: Msn::new(0),
            write: WriteCursor::default(),
            received_bytes: 0,
            resource_next: 0,
            pending_responses: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            message: Message::None,
            silent: false,
            not_ready: false,
            waits: false,
            ack_due: false,
            nak: None,
            established: false,
        }
    }
}
