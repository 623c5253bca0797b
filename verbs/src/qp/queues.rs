//! The data path of a QP: its send and receive queues.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use shm::fork::Process;
use shm::layout::Cqe;
use shm::ring::{RecvPoster, SendPoster};
use shm::segment::Block;
use wire::Qpn;

use crate::error::lock;
use crate::rings::Shard;
use crate::srq::SrqQueue;
use crate::{BatchError, PostError, QpState, RecvWr, SendWr, WcOpcode, WcStatus, WorkCompletion, WrOpcode};

/// An engine that has made a completion gives its slot back after a few instructions; a lcore may lose its core between them.
const RETIRE_WAIT: Duration = Duration::from_secs(1);

/// The part of a QP that its CQs see too.
pub(crate) struct QpQueues {
    pub(crate) qpn: u32,
    /// Who made it: [`crate::Context::is_inherited`].
    pub(crate) process: Process,
    pub(crate) doorbell: Doorbell,
    /// Every send makes a completion, asked for or not.
    pub(crate) signal_all: bool,
    pub(crate) send: Mutex<SendSide>,
    pub(crate) recv: Option<Mutex<RecvSide>>,
    pub(crate) srq: Option<Arc<SrqQueue>>,
    pub(crate) tally: Tally,
}

/// Where a QP rings.
pub(crate) struct Doorbell {
    pub(crate) shard: Arc<Shard>,
    pub(crate) index: u32,
}

impl Doorbell {
    #[inline]
    fn ring(&self) {
        self.shard.ring(self.index);
    }
}

pub(crate) struct SendSide {
    pub(crate) poster: SendPoster,
    pub(crate) state: QpState,
    /// Signalled work requests ever posted, modulo 2^32.
    signaled_count: u32,
    closed: bool,
}

pub(crate) struct RecvSide {
    poster: RecvPoster,
    state: QpState,
    /// Receives that may be posted and not completed: as many as the slots whose wr_ids a flush can still find.
    capacity: u32,
    /// Receives ever posted, modulo 2^32.
    posted_count: u32,
    closed: bool,
}

/// Completions polled so far, modulo 2^32. Written under the lock of the CQ they come from, so by one thread at a time.
#[derive(Default)]
pub(crate) struct Tally {
    sends: AtomicU32,
    recvs: AtomicU32,
    /// From the first failure on, unsignalled sends make completions too.
    send_failed: AtomicBool,
}

impl SendSide {
    pub(crate) fn new(poster: SendPoster) -> Self {
        Self { poster, state: QpState::Reset, signaled_count: 0, closed: false }
    }
}

impl RecvSide {
    pub(crate) fn new(poster: RecvPoster, capacity: u32) -> Self {
        Self { poster, state: QpState::Reset, capacity, posted_count: 0, closed: false }
    }

    fn check(&self, completed_count: u32, qpn: u32) -> Result<(), PostError> {
        if self.closed {
            return Err(PostError::Disconnected);
        }
        if self.state == QpState::Reset {
            return Err(PostError::State { qpn: Qpn::new(qpn), state: self.state });
        }
        let used = self.posted_count.wrapping_sub(completed_count);
        if used >= self.capacity { Err(PostError::Full) } else { Ok(()) }
    }
}

impl QpQueues {
    /// Counts one of the QP's completions. Called under the lock of the CQ.
    #[inline]
    pub(crate) fn count_completion(&self, cqe: &Cqe) {
        let tally = &self.tally;
        let count = if cqe.opcode >= WcOpcode::Recv.code() {
            &tally.recvs
        } else {
            if cqe.status != WcStatus::Success.code() {
                tally.send_failed.store(true, Relaxed);
            }
            &tally.sends
        };
        count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
    }

    pub(crate) fn post_recvs(&self, wrs: &[RecvWr<'_>]) -> Result<(), BatchError> {
        let no_queue = PostError::NoReceiveQueue { qpn: Qpn::new(self.qpn) };
        let recv = self.recv.as_ref().ok_or(BatchError { posted: 0, error: no_queue })?;
        if !self.process.is_current() {
            return Err(BatchError { posted: 0, error: PostError::Inherited });
        }
        let mut side = lock(recv);
        let completed_count = self.tally.recvs.load(Relaxed);
        let mut failed = None;
        for (posted, wr) in wrs.iter().enumerate() {
            let done = side.check(completed_count, self.qpn);
            let done = done.and_then(|()| Ok(side.poster.post(wr.wr_id, wr.sges)?));
            if let Err(error) = done {
                failed = Some(BatchError { posted, error });
                break;
            }
            side.posted_count = side.posted_count.wrapping_add(1);
        }
        let must_ring = side.poster.publish();
        drop(side);
        if must_ring {
            self.doorbell.ring();
        }
        failed.map_or(Ok(()), Err)
    }

    /// What the QP's state allows to be posted changes with it.
    pub(crate) fn set_state(&self, state: QpState) {
        lock(&self.send).state = state;
        if let Some(recv) = &self.recv {
            lock(recv).state = state;
        }
    }

    /// Empties both queues, as the engine has just done on the way to RESET. No completion of before is left in a CQ.
    pub(crate) fn reset(&self) {
        let mut send = lock(&self.send);
        send.poster.reset();
        send.signaled_count = 0;
        self.tally.sends.store(0, Relaxed);
        self.tally.send_failed.store(false, Relaxed);
        drop(send);
        if let Some(recv) = &self.recv {
            let mut recv = lock(recv);
            recv.poster.reset();
            recv.posted_count = 0;
            self.tally.recvs.store(0, Relaxed);
        }
    }

    pub(crate) fn in_error(&self, block: &Block) -> bool {
        lock(&self.send).poster.in_error(block)
    }

    pub(crate) fn send_free(&self) -> u32 {
        lock(&self.send).poster.free()
    }

    /// Completes what the daemon left in the send queue. Every completion that it made was counted before.
    pub(crate) fn flush_sends(&self, out: &mut VecDeque<WorkCompletion>) {
        let mut side = lock(&self.send);
        side.closed = true;
        // The engine may have completed work requests and died before it retired them.
        let mut done_count = self.completed_not_retired(&side);
        for (wr_id, opcode, signaled) in side.poster.outstanding() {
            if done_count > 0 {
                done_count -= i32::from(signaled);
                continue;
            }
            let opcode = WrOpcode::from_code(opcode).map_or(WcOpcode::Send, WcOpcode::from);
            out.push_back(WorkCompletion::flushed(wr_id, opcode, self.qpn));
        }
    }

    /// Signalled work requests whose completions were polled although the engine has not given their slots back yet.
    fn completed_not_retired(&self, side: &SendSide) -> i32 {
        if self.tally.send_failed.load(Relaxed) {
            // Not to be told from counts any more: rather flush one twice than never.
            return 0;
        }
        let left_count = side.poster.outstanding().filter(|&(_, _, signaled)| signaled).count() as u32;
        let retired_count = side.signaled_count.wrapping_sub(left_count);
        self.tally.sends.load(Relaxed).wrapping_sub(retired_count).cast_signed()
    }

    /// The send queue is full. If a completion was polled that stands for one of its slots, the engine is between making the
    /// completion and giving the slot back, a few instructions: waits for it. True if there is room, as there is when the engine gave
    /// slots back since the queue was found full.
    #[cold]
    pub(crate) fn wait_for_slot(&self, side: &mut SendSide) -> bool {
        let since = Instant::now();
        loop {
            // Asked before the room is: what is given back in between is room that is found.
            let is_owed = self.completed_not_retired(side) > 0;
            if side.poster.free() > 0 {
                return true;
            }
            if !is_owed || since.elapsed() > RETIRE_WAIT {
                return false;
            }
            std::thread::yield_now();
        }
    }

    /// As [`QpQueues::flush_sends`], for receives.
    pub(crate) fn flush_recvs(&self, out: &mut VecDeque<WorkCompletion>) {
        if let Some(srq) = &self.srq {
            srq.flush(self.qpn, out);
        }
        let Some(recv) = &self.recv else { return };
        let mut side = lock(recv);
        side.closed = true;
        let left_count = side.posted_count.wrapping_sub(self.tally.recvs.load(Relaxed));
        let left = side.poster.latest(left_count);
        out.extend(left.map(|wr_id| WorkCompletion::flushed(wr_id, WcOpcode::Recv, self.qpn)));
    }
}

/// Send work requests that become visible to the engine together: one lock, one publication, one doorbell for all of them.
///
/// Nothing is sent before [`SendBatch::commit`]; dropping the batch forgets what was posted to it. Other threads that post to
/// the same QP wait as long as it lives.
#[must_use = "a batch sends nothing until it is committed"]
pub struct SendBatch<'a> {
    queues: &'a QpQueues,
    /// `None` once committed, and in a child of the queue's process.
    side: Option<MutexGuard<'a, SendSide>>,
    signaled_before: u32,
    count: u32,
}

impl<'a> SendBatch<'a> {
    #[inline]
    pub(crate) fn new(queues: &'a QpQueues) -> Self {
        let side = queues.process.is_current().then(|| lock(&queues.send));
        let signaled_before = side.as_ref().map_or(0, |side| side.signaled_count);
        Self { queues, side, signaled_before, count: 0 }
    }

    /// Adds a work request.
    ///
    /// # Errors
    /// [`PostError`]; it was not added, and what was added before stays.
    #[inline]
    pub fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let Some(side) = &mut self.side else { return Err(PostError::Inherited) };
        if side.closed {
            return Err(PostError::Disconnected);
        }
        if !matches!(side.state, QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err) {
            return Err(PostError::State { qpn: Qpn::new(self.queues.qpn), state: side.state });
        }
        let signal_all = self.queues.signal_all;
        let mut posted = wr.put(signal_all, |wqe, body| side.poster.post(wqe, body));
        if posted == Err(PostError::Full) && self.queues.wait_for_slot(side) {
            posted = wr.put(signal_all, |wqe, body| side.poster.post(wqe, body));
        }
        posted?;
        side.signaled_count = side.signaled_count.wrapping_add(u32::from(signal_all || wr.is_signaled()));
        self.count += 1;
        Ok(())
    }

    /// Work requests that can be added now.
    #[inline]
    pub fn free(&mut self) -> u32 {
        self.side.as_mut().map_or(0, |side| side.poster.free())
    }

    /// Work requests added so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Sends them, in order; returns how many they are.
    #[inline]
    pub fn commit(mut self) -> u32 {
        if let Some(mut side) = self.side.take()
            && self.count > 0
        {
            side.poster.publish();
            // The doorbell may be a system call: don't make others wait for it.
            drop(side);
            self.queues.doorbell.ring();
        }
        self.count
    }
}

impl fmt::Debug for SendBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBatch").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Drop for SendBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(side) = &mut self.side
            && self.count > 0
        {
            side.poster.abort();
            side.signaled_count = self.signaled_before;
        }
    }
}
