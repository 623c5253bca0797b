//! Work queues and completion queues in shared memory: [`crate::layout`] draws them.
//!
//! A work queue has one producer (the client) and one consumer (the engine), a CQ the other way round. Whoever produces
//! keeps its index private and publishes a copy. The engine's side holds the queue's depth and its own index privately,
//! masks every slot number and checks the client's index against both on every read.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use crate::attr::SendFlags;
use crate::layout::{self, Arm, Cqe, QueueShape, SendWqe, Sge};
use crate::mapping::{Mapping, OutOfBounds};
use crate::segment::Block;

/// A block that is too small for the ring it should hold, or misaligned: the two sides disagree about its shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a ring of {bytes} bytes does not fit its block")]
pub struct BadBlock {
    /// Bytes that the ring needs.
    pub bytes: u64,
}

/// The client wrote an index that no correct client can write. The QP (or CQ, or SRQ) it belongs to must fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("index {index} claims more entries than the queue has")]
pub struct BadIndex {
    /// The value found in shared memory.
    pub index: u32,
}

/// Why a work request was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The queue is full (`ENOMEM` in verbs).
    #[error("the queue is full: poll completions first")]
    Full,
    /// Too many SGEs (`EINVAL`).
    #[error("{count} SGEs, the queue takes {max}")]
    TooManySges {
        /// Given.
        count: usize,
        /// Allowed.
        max: u32,
    },
    /// Too many inline bytes (`EINVAL`).
    #[error("{bytes} inline bytes, the queue takes {max}")]
    InlineTooLong {
        /// Given.
        bytes: usize,
        /// Allowed.
        max: u32,
    },
}

/// One queue in its block: where its words and slots are. Both sides hold one.
#[derive(Clone, Debug)]
struct Queue {
    mapping: Arc<Mapping>,
    producer: u64,
    consumer: u64,
    slots: u64,
    depth: u32,
    stride: u32,
}

impl Queue {
    fn new(block: &Block, words: (u64, u64), slots: u64, depth: u32, stride: u32) -> Result<Self, BadBlock> {
        let bytes = u64::from(depth) * u64::from(stride) + slots;
        let bad = BadBlock { bytes };
        let at = |offset: u64| block.offset.checked_add(offset).ok_or(bad);
        let queue = Self {
            mapping: Arc::clone(&block.mapping),
            producer: at(words.0)?,
            consumer: at(words.1)?,
            slots: at(slots)?,
            depth,
            stride,
        };
        let fits = at(bytes)? <= block.mapping.bytes() && queue.slots.is_multiple_of(8) && stride.is_multiple_of(8);
        let words =
            queue.mapping.atomic_u32(queue.producer).is_some() && queue.mapping.atomic_u32(queue.consumer).is_some();
        if fits && words && depth.is_power_of_two() { Ok(queue) } else { Err(bad) }
    }

    #[inline]
    fn slot(&self, index: u32) -> u64 {
        self.slots + u64::from(index & (self.depth - 1)) * u64::from(self.stride)
    }

    #[inline]
    fn word(&self, offset: u64) -> &AtomicU32 {
        let word = self.mapping.atomic_u32(offset);
        word.unwrap_or_else(|| unreachable!("the words were checked when the queue was made"))
    }

    #[inline]
    fn store_sge(&self, at: u64, sge: Sge) {
        self.put(self.mapping.store_words(at, sge.to_words()));
    }

    #[inline]
    fn load_sge(&self, at: u64) -> Sge {
        let [addr, rest] = self.get(self.mapping.load_words(at));
        Sge::from_words(addr, rest)
    }

    #[inline]
    fn get<T>(&self, found: Option<T>) -> T {
        found.unwrap_or_else(|| unreachable!("slots were checked when the queue was made"))
    }

    #[inline]
    fn put(&self, done: Result<(), OutOfBounds>) {
        done.unwrap_or_else(|OutOfBounds| unreachable!("slots were checked when the queue was made"));
    }
}

/// Words of a QP's send queue, its receive queue, an SRQ.
const SEND_WORDS: (u64, u64) = (layout::PRODUCER, layout::CONSUMER);
const RECV_WORDS: (u64, u64) = (layout::RQ_PRODUCER, layout::RQ_CONSUMER);
const SRQ_WORDS: (u64, u64) = (layout::PRODUCER, layout::CONSUMER);

/// Bytes of the block of a QP with these queues.
pub const fn qp_block_bytes(sq: QueueShape, rq: QueueShape) -> u64 {
    layout::SLOTS + sq.bytes() + rq.bytes()
}

/// Bytes of the block of an SRQ.
pub const fn srq_block_bytes(shape: QueueShape) -> u64 {
    layout::SLOTS + shape.bytes()
}

/// Bytes of the block of a CQ with `depth` entries.
pub const fn cq_block_bytes(depth: u32) -> u64 {
    layout::SLOTS + depth as u64 * layout::CQE_BYTES
}

fn send_queue(block: &Block, sq: QueueShape) -> Result<Queue, BadBlock> {
    Queue::new(block, SEND_WORDS, layout::SLOTS, sq.depth, sq.stride)
}

fn recv_queue(block: &Block, sq: QueueShape, rq: QueueShape) -> Result<Queue, BadBlock> {
    Queue::new(block, RECV_WORDS, layout::SLOTS + sq.bytes(), rq.depth, rq.stride)
}

fn srq_queue(block: &Block, shape: QueueShape) -> Result<Queue, BadBlock> {
    Queue::new(block, SRQ_WORDS, layout::SLOTS, shape.depth, shape.stride)
}

/// What a send work request carries besides its header.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// Elements to gather from (or, for READs and atomics, to scatter to).
    Sges(&'a [Sge]),
    /// Pieces of inline data, taken over at once.
    Inline(&'a [&'a [u8]]),
}

/// Client: producer of a QP's send queue.
#[derive(Debug)]
pub struct SendPoster {
    queue: Queue,
    shape: QueueShape,
    capacity: u32,
    producer: u32,
    consumer: u32,
}

impl SendPoster {
    /// The producer of a fresh queue that takes `capacity` (at most its depth) work requests.
    ///
    /// # Errors
    /// [`BadBlock`] if the daemon's block can't hold it.
    pub fn new(block: &Block, sq: QueueShape, capacity: u32) -> Result<Self, BadBlock> {
        let queue = send_queue(block, sq)?;
        Ok(Self { queue, shape: sq, capacity: capacity.min(sq.depth), producer: 0, consumer: 0 })
    }

    /// Work requests that can be posted now.
    #[inline]
    pub fn free(&mut self) -> u32 {
        let used = self.producer.wrapping_sub(self.consumer);
        if used < self.capacity {
            return self.capacity - used;
        }
        // PAIRS WITH: the release store in `SendFetcher::retire`: the engine has copied what it needs of the slot.
        self.consumer = self.queue.word(self.queue.consumer).load(Acquire);
        self.capacity.saturating_sub(self.producer.wrapping_sub(self.consumer))
    }

    /// Writes a work request into the next slot; the engine sees it after [`SendPoster::publish`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline]
    pub fn post(&mut self, mut wqe: SendWqe, body: Body<'_>) -> Result<(), PostError> {
        if self.free() == 0 {
            return Err(PostError::Full);
        }
        let slot = self.queue.slot(self.producer);
        let mut at = slot + layout::SEND_HEADER_BYTES;
        match body {
            Body::Sges(sges) => {
                if sges.len() > self.shape.max_sge as usize {
                    return Err(PostError::TooManySges { count: sges.len(), max: self.shape.max_sge });
                }
                wqe.sge_count = sges.len() as u16;
                wqe.flags &= !SendFlags::INLINE.0;
                for &sge in sges {
                    self.queue.store_sge(at, sge);
                    at += layout::SGE_BYTES;
                }
            }
            Body::Inline(pieces) => {
                let bytes = pieces.iter().map(|p| p.len()).sum::<usize>();
                if bytes > self.shape.max_inline as usize {
                    return Err(PostError::InlineTooLong { bytes, max: self.shape.max_inline });
                }
                wqe.sge_count = 0;
                wqe.inline_bytes = bytes as u32;
                wqe.flags |= SendFlags::INLINE.0;
                for piece in pieces {
                    self.queue.put(self.queue.mapping.write(at, piece));
                    at += piece.len() as u64;
                }
            }
        }
        self.queue.put(self.queue.mapping.store_words(slot, wqe.to_words()));
        self.producer = self.producer.wrapping_add(1);
        Ok(())
    }

    /// Makes everything posted so far visible to the engine. Ring the doorbell after it.
    #[inline]
    pub fn publish(&mut self) {
        // PAIRS WITH: the acquire load in `SendFetcher::available`: the slots before it are complete.
        self.queue.word(self.queue.producer).store(self.producer, Release);
    }

    /// Forgets what was posted since the last [`SendPoster::publish`] (`ibv_wr_abort`).
    pub fn abort(&mut self) {
        self.producer = self.queue.word(self.queue.producer).load(Relaxed);
    }

    /// True once the engine has put the QP in ERR.
    pub fn in_error(&self, block: &Block) -> bool {
        self.queue.word(block.offset + layout::QP_ERROR).load(Relaxed) != 0
    }

    /// The wr_ids of posted work requests that the engine has not retired, oldest first: what a client flushes by itself when
    /// the daemon is gone.
    pub fn outstanding(&self) -> impl Iterator<Item = (u64, u8, bool)> + '_ {
        // PAIRS WITH: `SendFetcher::retire`.
        let consumer = self.queue.word(self.queue.consumer).load(Acquire);
        let count = self.producer.wrapping_sub(consumer).min(self.queue.depth);
        (0..count).map(move |i| {
            let slot = self.queue.slot(consumer.wrapping_add(i));
            let wqe = SendWqe::from_words(self.queue.get(self.queue.mapping.load_words(slot)));
            (wqe.wr_id, wqe.opcode, SendFlags(wqe.flags).contains(SendFlags::SIGNALED))
        })
    }

    /// Forgets the queue's contents, as a QP does on its way to RESET.
    pub fn reset(&mut self) {
        self.producer = 0;
        self.consumer = 0;
    }
}

/// Client: producer of a QP's receive queue or of an SRQ.
#[derive(Debug)]
pub struct RecvPoster {
    queue: Queue,
    shape: QueueShape,
    capacity: u32,
    producer: u32,
    consumer: u32,
    error: Option<u64>,
}

impl RecvPoster {
    /// The producer of a QP's receive queue.
    ///
    /// # Errors
    /// [`BadBlock`] if the daemon's block can't hold it.
    pub fn new(block: &Block, sq: QueueShape, rq: QueueShape, capacity: u32) -> Result<Self, BadBlock> {
        let queue = recv_queue(block, sq, rq)?;
        let error = Some(block.offset + layout::QP_ERROR);
        Ok(Self { queue, shape: rq, capacity: capacity.min(rq.depth), producer: 0, consumer: 0, error })
    }

    /// The producer of an SRQ.
    ///
    /// # Errors
    /// [`BadBlock`] if the daemon's block can't hold it.
    pub fn new_srq(block: &Block, shape: QueueShape, capacity: u32) -> Result<Self, BadBlock> {
        let queue = srq_queue(block, shape)?;
        Ok(Self { queue, shape, capacity: capacity.min(shape.depth), producer: 0, consumer: 0, error: None })
    }

    /// Work requests that can be posted now.
    #[inline]
    pub fn free(&mut self) -> u32 {
        let used = self.producer.wrapping_sub(self.consumer);
        if used < self.capacity {
            return self.capacity - used;
        }
        // PAIRS WITH: the release store in `RecvFetcher::fetch`: the engine has copied the slot.
        self.consumer = self.queue.word(self.queue.consumer).load(Acquire);
        self.capacity.saturating_sub(self.producer.wrapping_sub(self.consumer))
    }

    /// Writes a receive into the next slot; the engine sees it after [`RecvPoster::publish`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline]
    pub fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if self.free() == 0 {
            return Err(PostError::Full);
        }
        if sges.len() > self.shape.max_sge as usize {
            return Err(PostError::TooManySges { count: sges.len(), max: self.shape.max_sge });
        }
        let slot = self.queue.slot(self.producer);
        for (i, &sge) in sges.iter().enumerate() {
            self.queue.store_sge(slot + layout::RECV_HEADER_BYTES + i as u64 * layout::SGE_BYTES, sge);
        }
        self.queue.put(self.queue.mapping.store_words(slot, [wr_id, sges.len() as u64]));
        self.producer = self.producer.wrapping_add(1);
        Ok(())
    }

    /// Makes everything posted so far visible to the engine. Returns true if the doorbell must be rung, which is only so
    /// while the QP is in ERR: there receives are flushed as they come.
    #[inline]
    pub fn publish(&mut self) -> bool {
        // PAIRS WITH: the acquire load in `RecvFetcher::available`.
        self.queue.word(self.queue.producer).store(self.producer, Release);
        let Some(error) = self.error else { return false };
        // PAIRS WITH: the fence in `set_qp_error`: either the engine sees this index, or we see its error word.
        fence(SeqCst);
        self.queue.word(error).load(Relaxed) != 0
    }

    /// The wr_ids of receives that the engine has not taken, oldest first.
    pub fn outstanding(&self) -> impl Iterator<Item = u64> + '_ {
        // PAIRS WITH: `RecvFetcher::fetch`.
        let consumer = self.queue.word(self.queue.consumer).load(Acquire);
        let count = self.producer.wrapping_sub(consumer).min(self.queue.depth);
        (0..count).map(move |i| {
            let [wr_id] = self.queue.get(self.queue.mapping.load_words(self.queue.slot(consumer.wrapping_add(i))));
            wr_id
        })
    }

    /// The wr_ids of the last `count` receives posted, oldest first, taken by the engine or not. What a client that knows how
    /// many were completed flushes by itself: it finds the receives of messages that were still coming in as well.
    pub fn latest(&self, count: u32) -> impl Iterator<Item = u64> + '_ {
        let count = count.min(self.queue.depth);
        let first = self.producer.wrapping_sub(count);
        (0..count).map(move |i| {
            let [wr_id] = self.queue.get(self.queue.mapping.load_words(self.queue.slot(first.wrapping_add(i))));
            wr_id
        })
    }

    /// Forgets the queue's contents, as a QP does on its way to RESET.
    pub fn reset(&mut self) {
        self.producer = 0;
        self.consumer = 0;
    }
}

/// Engine: why a send WQE can't be executed. Its work request completes with `LOC_QP_OP_ERR`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WqeFault {
    /// More SGEs than the queue was made for.
    SgeCount(u16),
    /// More inline bytes than the queue was made for.
    InlineBytes(u32),
}

/// Engine: consumer of a QP's send queue.
#[derive(Debug)]
pub struct SendFetcher {
    queue: Queue,
    shape: QueueShape,
    fetched: u32,
    retired: u32,
}

impl SendFetcher {
    /// The consumer of a fresh queue.
    ///
    /// # Errors
    /// [`BadBlock`] if the block can't hold it.
    pub fn new(block: &Block, sq: QueueShape) -> Result<Self, BadBlock> {
        Ok(Self { queue: send_queue(block, sq)?, shape: sq, fetched: 0, retired: 0 })
    }

    /// Work requests that wait to be fetched.
    ///
    /// # Errors
    /// [`BadIndex`] if the client's index claims more than the queue's depth.
    #[inline]
    pub fn available(&self) -> Result<u32, BadIndex> {
        // PAIRS WITH: the release store in `SendPoster::publish`.
        let index = self.queue.word(self.queue.producer).load(Acquire);
        if index.wrapping_sub(self.retired) > self.queue.depth {
            return Err(BadIndex { index });
        }
        let waiting = index.wrapping_sub(self.fetched);
        // A client that moves its index backwards is as wrong as one that claims too much.
        if waiting > self.queue.depth { Err(BadIndex { index }) } else { Ok(waiting) }
    }

    /// Copies the next WQE out of shared memory: its header is returned, its SGEs or inline data go to the caller's private
    /// storage (as much as `sge_count` or `inline_bytes` of the result say). Call only after [`SendFetcher::available`]
    /// said that there is one. Opcode and flags are still raw.
    ///
    /// # Errors
    /// The header and the fault, if its counts exceed the queue's shape or the storage; the WQE is consumed.
    #[inline]
    pub fn fetch(&mut self, sges: &mut [Sge], inline: &mut [u8]) -> Result<SendWqe, (SendWqe, WqeFault)> {
        let slot = self.queue.slot(self.fetched);
        self.fetched = self.fetched.wrapping_add(1);
        let wqe = SendWqe::from_words(self.queue.get(self.queue.mapping.load_words(slot)));
        let body = slot + layout::SEND_HEADER_BYTES;
        if SendFlags(wqe.flags).contains(SendFlags::INLINE) {
            let target = inline.get_mut(..wqe.inline_bytes as usize);
            let (Some(target), true) = (target, wqe.inline_bytes <= self.shape.max_inline) else {
                return Err((wqe, WqeFault::InlineBytes(wqe.inline_bytes)));
            };
            self.queue.put(self.queue.mapping.read(body, target));
            return Ok(SendWqe { sge_count: 0, ..wqe });
        }
        let target = sges.get_mut(..usize::from(wqe.sge_count));
        let (Some(target), true) = (target, u32::from(wqe.sge_count) <= self.shape.max_sge) else {
            return Err((wqe, WqeFault::SgeCount(wqe.sge_count)));
        };
        for (i, sge) in target.iter_mut().enumerate() {
            *sge = self.queue.load_sge(body + i as u64 * layout::SGE_BYTES);
        }
        Ok(SendWqe { inline_bytes: 0, ..wqe })
    }

    /// Gives `count` of the oldest fetched slots back to the client.
    #[inline]
    pub fn retire(&mut self, count: u32) {
        self.retired = self.retired.wrapping_add(count);
        // PAIRS WITH: the acquire load in `SendPoster::free`.
        self.queue.word(self.queue.consumer).store(self.retired, Release);
    }

    /// Forgets the queue's contents, as a QP does on its way to RESET.
    pub fn reset(&mut self) {
        self.fetched = 0;
        self.retired = 0;
        self.queue.word(self.queue.producer).store(0, Relaxed);
        self.queue.word(self.queue.consumer).store(0, Relaxed);
    }

    /// Depth and sizes.
    pub fn shape(&self) -> QueueShape {
        self.shape
    }
}

/// Engine: consumer of a QP's receive queue or of an SRQ.
#[derive(Debug)]
pub struct RecvFetcher {
    queue: Queue,
    shape: QueueShape,
    consumer: u32,
}

impl RecvFetcher {
    /// The consumer of a QP's receive queue.
    ///
    /// # Errors
    /// [`BadBlock`] if the block can't hold it.
    pub fn new(block: &Block, sq: QueueShape, rq: QueueShape) -> Result<Self, BadBlock> {
        Ok(Self { queue: recv_queue(block, sq, rq)?, shape: rq, consumer: 0 })
    }

    /// The consumer of an SRQ.
    ///
    /// # Errors
    /// [`BadBlock`] if the block can't hold it.
    pub fn new_srq(block: &Block, shape: QueueShape) -> Result<Self, BadBlock> {
        Ok(Self { queue: srq_queue(block, shape)?, shape, consumer: 0 })
    }

    /// Receives that are posted and not yet taken.
    ///
    /// # Errors
    /// [`BadIndex`] if the client's index claims more than the queue's depth.
    #[inline]
    pub fn available(&self) -> Result<u32, BadIndex> {
        // PAIRS WITH: the release store in `RecvPoster::publish`.
        let index = self.queue.word(self.queue.producer).load(Acquire);
        let waiting = index.wrapping_sub(self.consumer);
        if waiting > self.queue.depth { Err(BadIndex { index }) } else { Ok(waiting) }
    }

    /// Takes the next receive: its wr_id and how many SGEs were copied to `sges`. Call only after
    /// [`RecvFetcher::available`] said that there is one. The slot is the client's again at once.
    ///
    /// # Errors
    /// The wr_id, if the SGE count exceeds the queue's shape or the storage; the WQE is consumed.
    #[inline]
    pub fn fetch(&mut self, sges: &mut [Sge]) -> Result<(u64, usize), u64> {
        let slot = self.queue.slot(self.consumer);
        let [wr_id, count] = self.queue.get(self.queue.mapping.load_words(slot));
        let count = count as u32;
        let taken = match sges.get_mut(..count as usize) {
            Some(target) if count <= self.shape.max_sge => {
                for (i, sge) in target.iter_mut().enumerate() {
                    *sge = self.queue.load_sge(slot + layout::RECV_HEADER_BYTES + i as u64 * layout::SGE_BYTES);
                }
                Ok((wr_id, count as usize))
            }
            _ => Err(wr_id),
        };
        self.consumer = self.consumer.wrapping_add(1);
        // PAIRS WITH: the acquire load in `RecvPoster::free`.
        self.queue.word(self.queue.consumer).store(self.consumer, Release);
        taken
    }

    /// Forgets the queue's contents, as a QP does on its way to RESET.
    pub fn reset(&mut self) {
        self.consumer = 0;
        self.queue.word(self.queue.producer).store(0, Relaxed);
        self.queue.word(self.queue.consumer).store(0, Relaxed);
    }

    /// Depth and sizes.
    pub fn shape(&self) -> QueueShape {
        self.shape
    }
}

/// Engine: tells the client through a QP's block that it is in ERR (or, after a reset, that it is not any more).
pub fn set_qp_error(block: &Block, error: bool) {
    if let Some(word) = block.mapping.atomic_u32(block.offset + layout::QP_ERROR) {
        word.store(u32::from(error), Relaxed);
        // PAIRS WITH: the fence in `RecvPoster::publish`: read the producer index only after this call.
        fence(SeqCst);
    }
}

/// The CQ is full: a completion was lost, and the CQ is in error (`IBV_EVENT_CQ_ERR`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqOverrun;

/// Engine: producer of a CQ.
#[derive(Debug)]
pub struct CqWriter {
    queue: Queue,
    producer: u32,
    consumer: u32,
    arm: u64,
    notify_count: u64,
    overrun: u64,
}

impl CqWriter {
    /// The producer of a fresh CQ with `depth` entries, a power of two.
    ///
    /// # Errors
    /// [`BadBlock`] if the block can't hold it.
    pub fn new(block: &Block, depth: u32) -> Result<Self, BadBlock> {
        let words = (layout::CQ_NOTIFY_COUNT, layout::CQ_CONSUMER);
        let queue = Queue::new(block, words, layout::SLOTS, depth, layout::CQE_BYTES as u32)?;
        let at = |offset| block.offset + offset;
        Ok(Self {
            queue,
            producer: 0,
            consumer: 0,
            arm: at(layout::CQ_ARM),
            notify_count: at(layout::CQ_NOTIFY_COUNT),
            overrun: at(layout::CQ_OVERRUN),
        })
    }

    /// Takes another ring's place, which the client does not touch meanwhile: what it was armed for and how often it has notified.
    pub fn succeed(&mut self, other: &Self) {
        for (ours, theirs) in [(self.arm, other.arm), (self.notify_count, other.notify_count)] {
            self.queue.word(ours).store(other.queue.word(theirs).load(Relaxed), Relaxed);
        }
    }

    /// Writes a completion and makes it visible.
    ///
    /// # Errors
    /// [`CqOverrun`] if the client has not polled, or claims to have polled what it can't have.
    #[inline]
    pub fn push(&mut self, cqe: &Cqe) -> Result<(), CqOverrun> {
        if self.producer.wrapping_sub(self.consumer) >= self.queue.depth {
            // PAIRS WITH: the release store in `CqPoller::poll`: the client has copied the entries before it.
            let consumer = self.queue.word(self.queue.consumer).load(Acquire);
            let used = self.producer.wrapping_sub(consumer);
            if used >= self.queue.depth {
                self.queue.word(self.overrun).store(1, Relaxed);
                return Err(CqOverrun);
            }
            self.consumer = consumer;
        }
        let sequence = self.producer.wrapping_add(1);
        // The last word carries the sequence and is stored with release: see `store_words`.
        self.queue.put(self.queue.mapping.store_words(self.queue.slot(self.producer), cqe.to_words(sequence)));
        self.producer = sequence;
        Ok(())
    }

    /// After a batch of completions: true if the client asked to be told of them. `solicited` says whether any of them was
    /// solicited or failed. The request is used up, the notification count raised; the caller notifies the channel.
    #[inline]
    pub fn take_notification(&self, solicited: bool) -> bool {
        // PAIRS WITH: the fence in `CqPoller::arm`: either we see the request, or the client's next poll sees the entries.
        fence(SeqCst);
        let word = self.queue.word(self.arm);
        let arm = word.load(Relaxed);
        let wanted = arm == Arm::Any as u32 || (arm == Arm::Solicited as u32 && solicited);
        if wanted {
            word.store(Arm::Off as u32, Relaxed);
            // PAIRS WITH: the acquire load in `CqPoller::take_notified`.
            self.queue.word(self.notify_count).fetch_add(1, Release);
        }
        wanted
    }
}

/// Client: consumer of a CQ.
#[derive(Debug)]
pub struct CqPoller {
    queue: Queue,
    consumer: u32,
    notified: u32,
    arm: u64,
    notify_count: u64,
    overrun: u64,
}

impl CqPoller {
    /// The consumer of a fresh CQ with `depth` entries.
    ///
    /// # Errors
    /// [`BadBlock`] if the daemon's block can't hold it.
    pub fn new(block: &Block, depth: u32) -> Result<Self, BadBlock> {
        let words = (layout::CQ_NOTIFY_COUNT, layout::CQ_CONSUMER);
        let queue = Queue::new(block, words, layout::SLOTS, depth, layout::CQE_BYTES as u32)?;
        let at = |offset| block.offset + offset;
        Ok(Self {
            queue,
            consumer: 0,
            notified: 0,
            arm: at(layout::CQ_ARM),
            notify_count: at(layout::CQ_NOTIFY_COUNT),
            overrun: at(layout::CQ_OVERRUN),
        })
    }

    /// The consumer of the ring that takes this one's place ([`CqWriter::succeed`]). What is left here is still to be taken.
    ///
    /// # Errors
    /// [`BadBlock`] if the daemon's block can't hold it.
    pub fn successor(&self, block: &Block, depth: u32) -> Result<Self, BadBlock> {
        Ok(Self { notified: self.notified, ..Self::new(block, depth)? })
    }

    /// Takes the next completion, if there is one. Call [`CqPoller::publish`] after a batch.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "no iterator: an empty queue is not the end of it")]
    pub fn next(&mut self) -> Option<Cqe> {
        let slot = self.queue.slot(self.consumer);
        let sequence = self.queue.mapping.atomic_u32(slot + layout::CQE_BYTES - 4)?;
        let expected = self.consumer.wrapping_add(1);
        // PAIRS WITH: the release store of the last word in `CqWriter::push`.
        if sequence.load(Acquire) != expected {
            return None;
        }
        let cqe = Cqe::from_words(self.queue.get(self.queue.mapping.load_words(slot)));
        self.consumer = expected;
        Some(cqe)
    }

    /// Gives the slots of the completions taken so far back to the engine.
    #[inline]
    pub fn publish(&mut self) {
        // PAIRS WITH: the acquire load in `CqWriter::push`.
        self.queue.word(self.queue.consumer).store(self.consumer, Release);
    }

    /// Asks for one notification on the completion channel. Poll once more after it, as with any CQ: completions that came
    /// before the request raise none.
    pub fn arm(&mut self, arm: Arm) {
        let word = self.queue.word(self.arm);
        // "Any" outranks "solicited", as in ibv_req_notify_cq(3).
        if word.load(Relaxed) != Arm::Any as u32 {
            word.store(arm as u32, Relaxed);
        }
        // PAIRS WITH: the fence in `CqWriter::take_notification`.
        fence(SeqCst);
    }

    /// How many notifications were raised since the last call.
    pub fn take_notified(&mut self) -> u32 {
        // PAIRS WITH: `CqWriter::take_notification`.
        let count = self.queue.word(self.notify_count).load(Acquire);
        std::mem::replace(&mut self.notified, count).wrapping_sub(count).wrapping_neg()
    }

    /// True once a completion was lost because the queue was full.
    pub fn overrun(&self) -> bool {
        self.queue.word(self.overrun).load(Relaxed) != 0
    }
}

#[cfg(test)]
mod tests;
