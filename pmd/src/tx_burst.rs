//! `TxBurst`: the frames of one transmit burst, written in place.

use wire::buf::{Dest, TxBatch};

use crate::burst::Burst;
use crate::mbuf::Mbuf;
use crate::mempool::Mempool;
use crate::queue::TxQueue;

/// Frames on their way to one TX queue, and to other shards of this process.
///
/// Buffers are allocated ahead, a burst at a time, so that [`TxBatch::push`] costs no call into DPDK; [`TxBurst::flush`] costs two: one
/// to send, one to allocate. What the port does not take stays for the next flush and leaves less room: back-pressure, never loss.
#[derive(Debug)]
pub struct TxBurst {
    pool: Mempool,
    min_frame_bytes: usize,
    max_frame_bytes: usize,
    /// Empty buffers for the frames to come.
    spare: Burst,
    /// Frames for the port, in order.
    wire: Burst,
    /// How many of `wire` were there at a flush before, and were left over.
    left_over: usize,
    /// Frames for other shards, in order; `local_shards` has the shard of each.
    local: Burst,
    local_shards: [u8; Burst::CAPACITY],
}

impl TxBurst {
    /// An empty batch for frames of `queue`'s port.
    #[must_use]
    pub fn new(queue: &TxQueue) -> Self {
        let mut batch = Self {
            pool: queue.pool().clone(),
            min_frame_bytes: queue.min_frame_bytes(),
            max_frame_bytes: queue.max_frame_bytes(),
            spare: Burst::new(),
            wire: Burst::new(),
            left_over: 0,
            local: Burst::new(),
            local_shards: [0; Burst::CAPACITY],
        };
        batch.refill();
        batch
    }

    /// Sends what the port takes, keeps the rest, and gets buffers for the next burst. Returns how many frames were sent.
    pub fn flush(&mut self, queue: &mut TxQueue) -> usize {
        let sent = queue.transmit(&mut self.wire);
        self.left_over = self.wire.len();
        self.refill();
        sent
    }

    /// Frames pushed for the port and not flushed yet: what a capture has not seen. Those left over by a flush are not among them.
    #[must_use]
    pub fn unflushed(&self) -> &[Mbuf] {
        &self.wire[self.left_over..]
    }

    /// Frames for the port that wait, those left over included.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.wire.len()
    }

    /// Takes the frames for other shards of this process, in order, each with its shard.
    pub fn take_local(&mut self) -> impl Iterator<Item = (u8, Mbuf)> + use<'_> {
        self.local_shards.iter().copied().zip(self.local.drain())
    }

    /// Frames for other shards that wait.
    #[must_use]
    pub fn local_count(&self) -> usize {
        self.local.len()
    }

    fn refill(&mut self) {
        let missing = self.spare.room();
        if missing > 0 && self.pool.alloc_bulk(&mut self.spare, missing) == 0 && self.spare.is_empty() {
            // The pool is nearly empty: a single buffer still lets the shard answer.
            self.pool.alloc_bulk(&mut self.spare, 1);
        }
    }
}

impl TxBatch for TxBurst {
    #[inline]
    fn room(&self) -> usize {
        self.spare.len().min(self.wire.room()).min(self.local.room())
    }

    #[inline]
    fn push(&mut self, dest: Dest, len: usize, fill: impl FnOnce(&mut [u8]) -> bool) -> bool {
        if len > self.max_frame_bytes || self.room() == 0 {
            return false;
        }
        let Some(mut mbuf) = self.spare.pop() else { return false };
        let padded = match dest {
            Dest::Wire => len.max(self.min_frame_bytes),
            Dest::Local { .. } => len,
        };
        let Some(buffer) = mbuf.resize(padded) else {
            self.give_back(mbuf);
            return false;
        };
        let (frame, padding) = buffer.split_at_mut(len);
        if !fill(frame) {
            self.give_back(mbuf);
            return false;
        }
        padding.fill(0);
        let target = match dest {
            Dest::Wire => &mut self.wire,
            Dest::Local { shard } => {
                self.local_shards[self.local.len()] = shard;
                &mut self.local
            }
        };
        target.push(mbuf).expect("room was checked");
        true
    }
}

impl TxBurst {
    /// Returns a buffer that was lent and not used.
    fn give_back(&mut self, mbuf: Mbuf) {
        self.spare.push(mbuf).expect("it came from there");
    }
}
