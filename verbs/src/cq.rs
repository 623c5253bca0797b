//! Completion queues.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use shm::control::{Reply, Request};
use shm::fork::Process;
use shm::layout::{Arm, Cqe};
use shm::ring::CqPoller;

use crate::channel::ChannelInner;
use crate::context::RemoteObject;
use crate::error::lock;
use crate::qp::queues::QpQueues;
use crate::srq::SrqQueue;
use crate::{CompletionChannel, Context, VerbsError, WorkCompletion};

/// A completion queue (`ibv_cq`). A cheap handle; several threads may poll it, each completion goes to one of them.
#[derive(Clone)]
pub struct CompletionQueue(pub(crate) Arc<CqInner>);

pub(crate) struct CqInner {
    remote: RemoteObject,
    pub(crate) cq: u32,
    shard: u8,
    depth: AtomicU32,
    pub(crate) ring: Arc<CqRing>,
    channel: Option<Arc<ChannelInner>>,
    /// Who made it: [`crate::Context::is_inherited`].
    process: Process,
    /// Polls in a row that found nothing.
    empty_polls: AtomicU32,
}

/// After so many empty polls in a row (some microseconds) each further one offers the core to others: where applications
/// and daemons are more than cores, the one that has the answer may be waiting for this very core.
const EMPTY_POLLS_BEFORE_YIELD: u32 = 1_000;

/// What a CQ is made for ([`Context::create_cq`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct CqInit<'a> {
    /// Completions that it must hold, at least. All that can come before they are polled: else it overruns.
    pub cqe: u32,
    /// Where to tell of completions, if anywhere.
    pub channel: Option<&'a CompletionChannel>,
    /// Which lcore of the daemon shall serve it, modulo their number; `None` = the least loaded. QPs go where their CQ is.
    pub comp_vector: Option<u32>,
}

impl Context {
    /// Makes a completion queue.
    ///
    /// # Errors
    /// [`VerbsError::Refused`]: `EINVAL` for more entries than the device takes, `ENOMEM` at the client's limit.
    pub fn create_cq(&self, init: &CqInit<'_>) -> Result<CompletionQueue, VerbsError> {
        const REQUEST: &str = "CreateCq";
        let channel = init.channel.map(|channel| Arc::clone(&channel.0));
        let request = Request::CreateCq {
            cqe: init.cqe,
            channel: channel.as_ref().map(|channel| channel.channel),
            comp_vector: init.comp_vector,
        };
        let mut rings = lock(&self.0.rings);
        let (reply, fds) = self.0.call_with(&request, &[])?;
        let Reply::Cq { cq, shard, depth, block } = reply else {
            return Err(VerbsError::UnexpectedReply { request: REQUEST });
        };
        let remote = RemoteObject::new(&self.0, Request::DestroyCq { cq });
        rings.attach(&mut [block], &mut fds.into_iter(), REQUEST)?;
        let poller = CqPoller::new(&rings.block(block, REQUEST)?, depth);
        let poller = poller.map_err(|_| VerbsError::UnexpectedReply { request: REQUEST })?;
        let ring = Arc::new(CqRing::new(poller));
        Ok(CompletionQueue(Arc::new_cyclic(|owner| {
            if let Some(channel) = &channel {
                channel.join(cq, &ring, owner);
            }
            let (process, empty_polls) = (self.0.process, AtomicU32::new(0));
            CqInner { remote, cq, shard, depth: AtomicU32::new(depth), ring, channel, process, empty_polls }
        })))
    }
}

impl CqInner {
    /// Counts an empty poll, and yields once there were many.
    fn wait_politely(&self) {
        // A hint: threads that poll one CQ may lose a count to each other.
        let empty_polls = self.empty_polls.load(Ordering::Relaxed);
        if empty_polls < EMPTY_POLLS_BEFORE_YIELD {
            self.empty_polls.store(empty_polls + 1, Ordering::Relaxed);
        } else if self.remote.context.wants_core {
            std::thread::yield_now();
        }
    }
}

impl CompletionQueue {
    /// Takes completions, oldest first, as many as there are and `out` has room for; returns how many.
    ///
    /// If there is none, an engine on this very thread is driven by one turn first. When the daemon is gone, what it did not
    /// complete is handed out with `WR_FLUSH_ERR`, after everything it did.
    ///
    /// Cost: a lock, a copy and a table look-up per completion; no allocation. No system call but after a long time without
    /// completions, when each poll yields the core.
    #[inline]
    pub fn poll(&self, out: &mut [WorkCompletion]) -> usize {
        let mut room = out.iter_mut();
        self.poll_each(room.len(), |completion| {
            if let Some(slot) = room.next() {
                *slot = completion;
            }
        })
    }

    /// As [`CompletionQueue::poll`], for those who keep completions in a form of their own: hands out at most `max`, one by one, while
    /// it holds the CQ's lock.
    #[inline]
    pub fn poll_each(&self, max: usize, mut each: impl FnMut(WorkCompletion)) -> usize {
        let inner = &*self.0;
        if !inner.process.is_current() {
            return 0;
        }
        let count = lock(&inner.ring.state).take(max, &mut each);
        if count > 0 {
            inner.empty_polls.store(0, Ordering::Relaxed);
            return count;
        }
        self.poll_anew(max, &mut each)
    }

    /// Nothing was there: has something been made since, or will anything be?
    #[inline(never)]
    fn poll_anew(&self, max: usize, each: &mut impl FnMut(WorkCompletion)) -> usize {
        let inner = &*self.0;
        let context = &inner.remote.context;
        if context.make_progress() {
            let count = lock(&inner.ring.state).take(max, each);
            if count > 0 {
                return count;
            }
        }
        if context.events.is_dead() {
            return lock(&inner.ring.state).take_flushed(max, each);
        }
        inner.wait_politely();
        0
    }

    /// Asks for one notification on the CQ's channel at the next completion; `solicited_only`: at the next solicited or
    /// failed one. Completions that are there already raise none: poll after it.
    pub fn req_notify(&self, solicited_only: bool) {
        if !self.0.process.is_current() {
            return;
        }
        let arm = if solicited_only { Arm::Solicited } else { Arm::Any };
        lock(&self.0.ring.state).poller.arm(arm);
    }

    /// True once a completion was lost because the queue was full. There is no way back: destroy its QPs and it.
    pub fn is_overrun(&self) -> bool {
        let state = lock(&self.0.ring.state);
        state.overrun || state.poller.overrun()
    }

    /// Completions that it holds at most.
    pub fn depth(&self) -> u32 {
        self.0.depth.load(Ordering::Relaxed)
    }

    /// Makes it hold at least `cqe` completions (`ibv_resize_cq`); one that holds as many already stays as it is. Nothing is lost and
    /// no order is changed, while QPs go on to complete and other threads to poll: those wait for the answer.
    ///
    /// # Errors
    /// [`VerbsError::Refused`]: `EINVAL` for 0 or more entries than the device takes, `ENOMEM` at the client's limit.
    pub fn resize(&self, cqe: u32) -> Result<(), VerbsError> {
        const REQUEST: &str = "ResizeCq";
        let inner = &*self.0;
        let context = &inner.remote.context;
        if !inner.process.is_current() {
            return Err(VerbsError::Inherited);
        }
        let mut rings = lock(&context.rings);
        if (1..=self.depth()).contains(&cqe) {
            return Ok(());
        }
        let mut state = lock(&inner.ring.state);
        let (reply, fds) = context.call_with(&Request::ResizeCq { cq: inner.cq, cqe }, &[])?;
        let Reply::CqRing { depth, block } = reply else {
            return Err(VerbsError::UnexpectedReply { request: REQUEST });
        };
        // From here on the engine writes to the new ring, whether we can see it or not.
        let attached =
            rings.attach(&mut [block], &mut fds.into_iter(), REQUEST).and_then(|()| rings.block(block, REQUEST));
        let successor = attached.and_then(|block| {
            let made = state.poller.successor(&block, depth);
            made.map_err(|_| VerbsError::UnexpectedReply { request: REQUEST })
        });
        let successor = successor.inspect_err(|_| state.overrun = true)?;
        state.replace(successor);
        inner.depth.store(depth, Ordering::Relaxed);
        Ok(())
    }

    /// Number of the lcore that serves it and its QPs.
    pub fn shard(&self) -> u8 {
        self.0.shard
    }

    /// Its number in the session: what [`crate::AsyncEvent::CqErr`] names.
    pub fn handle(&self) -> u32 {
        self.0.cq
    }

    /// Destroys it. Dropping the last handle does so too, without telling of a failure.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while QPs or other handles refer to it.
    pub fn destroy(self) -> Result<(), VerbsError> {
        let mut inner = Arc::into_inner(self.0).ok_or(VerbsError::Busy { object: "completion queue" })?;
        inner.release()
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("cq", &self.0.cq)
            .field("shard", &self.0.shard)
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}

impl CqInner {
    fn release(&mut self) -> Result<(), VerbsError> {
        if !self.process.is_current() {
            return self.remote.release();
        }
        // Before the daemon may give the number to another CQ.
        if let (Some(channel), false) = (&self.channel, self.remote.is_released()) {
            channel.leave(self.cq);
        }
        self.remote.release()
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        let _ = self.release();
    }
}

/// The part of a CQ that its channel and its QPs see too.
pub(crate) struct CqRing {
    state: Mutex<CqState>,
}

struct CqState {
    poller: CqPoller,
    /// Completions that were taken from the ring, or made, for a later poll.
    held: VecDeque<WorkCompletion>,
    qps: HashMap<u32, Member, BuildHasherDefault<QpnHasher>>,
    /// SRQs of XRC domains whose receives complete here, by handle: no QP of ours speaks for them.
    srqs: Vec<(u32, Arc<SrqQueue>)>,
    /// Of a ring of before.
    overrun: bool,
    flushed: bool,
}

/// Of a receive that no QP has taken.
const NO_QPN: u32 = 0;

/// A QP whose completions come here.
struct Member {
    queues: Arc<QpQueues>,
    sends: bool,
    recvs: bool,
}

/// Multiplicative hashing: QPNs are the daemon's own numbers, nobody crafts them to collide.
#[derive(Default)]
struct QpnHasher(u64);

impl Hasher for QpnHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        let mixed = (self.0 ^ u64::from(value)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The table takes its index from the low bits, its tags from the high ones.
        self.0 = mixed ^ mixed >> 32;
    }
}

impl CqRing {
    fn new(poller: CqPoller) -> Self {
        let qps = HashMap::default();
        let (held, srqs) = (VecDeque::new(), Vec::new());
        Self { state: Mutex::new(CqState { poller, held, qps, srqs, overrun: false, flushed: false }) }
    }

    /// True if a notification was raised since the last call.
    pub(crate) fn take_notified(&self) -> bool {
        lock(&self.state).poller.take_notified() > 0
    }

    /// Notes that a QP's completions come here.
    pub(crate) fn join(&self, queues: &Arc<QpQueues>, sends: bool, recvs: bool) {
        let mut state = lock(&self.state);
        let member = state.qps.entry(queues.qpn);
        let member = member.or_insert_with(|| Member { queues: Arc::clone(queues), sends: false, recvs: false });
        member.sends |= sends;
        member.recvs |= recvs;
    }

    /// Notes that an XRC SRQ's receives complete here.
    pub(crate) fn join_srq(&self, srq: u32, queue: &Arc<SrqQueue>) {
        lock(&self.state).srqs.push((srq, Arc::clone(queue)));
    }

    /// Forgets a destroyed XRC SRQ. Its completions stay.
    pub(crate) fn leave_srq(&self, srq: u32) {
        lock(&self.state).srqs.retain(|&(member, _)| member != srq);
    }

    /// Forgets a destroyed QP, and its completions with it: its number may be another QP's soon.
    pub(crate) fn leave(&self, qpn: u32) {
        let mut state = lock(&self.state);
        state.purge(qpn);
        state.qps.remove(&qpn);
    }

    /// Forgets the completions of a QP that was reset. The engine must have made its last one.
    pub(crate) fn purge(&self, qpn: u32) {
        lock(&self.state).purge(qpn);
    }
}

impl CqState {
    #[inline(always)]
    fn take(&mut self, max: usize, each: &mut impl FnMut(WorkCompletion)) -> usize {
        let mut count = 0;
        while count < max
            && let Some(completion) = self.held.pop_front()
        {
            each(completion);
            count += 1;
        }
        let held = count;
        while count < max
            && let Some(cqe) = self.next()
        {
            each(cqe.into());
            count += 1;
        }
        if count > held {
            self.poller.publish();
        }
        count
    }

    /// Takes from the ring, and keeps the QP's tally.
    #[inline(always)]
    fn next(&mut self) -> Option<Cqe> {
        let cqe = self.poller.next()?;
        if let Some(member) = self.qps.get(&cqe.qpn) {
            member.queues.count_completion(&cqe);
        }
        Some(cqe)
    }

    /// Goes on with another ring, after what is left in this one.
    fn replace(&mut self, poller: CqPoller) {
        while let Some(cqe) = self.next() {
            self.held.push_back(cqe.into());
        }
        self.overrun |= self.poller.overrun();
        self.poller = poller;
    }

    fn purge(&mut self, qpn: u32) {
        self.held.retain(|completion| completion.qpn.value() != qpn);
        while let Some(cqe) = self.poller.next() {
            if cqe.qpn != qpn {
                if let Some(member) = self.qps.get(&cqe.qpn) {
                    member.queues.count_completion(&cqe);
                }
                self.held.push_back(cqe.into());
            }
        }
        self.poller.publish();
    }

    /// When the daemon is gone: the rest of its completions first, then our own for what is left.
    fn take_flushed(&mut self, max: usize, each: &mut impl FnMut(WorkCompletion)) -> usize {
        let count = self.take(max, each);
        if count > 0 || self.flushed {
            return count;
        }
        self.flushed = true;
        let mut members: Vec<&Member> = self.qps.values().collect();
        members.sort_unstable_by_key(|member| member.queues.qpn);
        for member in members {
            if member.sends {
                member.queues.flush_sends(&mut self.held);
            }
            if member.recvs {
                member.queues.flush_recvs(&mut self.held);
            }
        }
        for (_, srq) in &self.srqs {
            srq.flush(NO_QPN, &mut self.held);
        }
        self.take(max, each)
    }
}
