//! `RxQueue` and `TxQueue`: the two ends of a port that one thread owns.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::burst::Burst;
use crate::mbuf::Mbuf;
use crate::mempool::Mempool;
use crate::port::Running;

/// One RX and one TX queue of a port: what a shard owns of it.
#[derive(Debug)]
pub struct QueuePair {
    /// Frames that the port receives.
    pub rx: RxQueue,
    /// Frames for the port to send.
    pub tx: TxQueue,
}

/// A receive queue. It moves between threads but is never shared.
#[derive(Debug)]
pub struct RxQueue {
    port: u16,
    queue: u16,
    pool: Mempool,
    slots: u16,
    unjoinable_count: u64,
    /// Keeps the port running.
    _running: Arc<Running>,
    not_sync: PhantomData<Cell<()>>,
}

impl RxQueue {
    pub(crate) fn new(running: Arc<Running>, port: u16, queue: u16, pool: Mempool, slots: u16) -> Self {
        Self { port, queue, pool, slots, unjoinable_count: 0, _running: running, not_sync: PhantomData }
    }

    /// Appends received frames to `burst`, as many as there are and fit; returns how many.
    /// A frame that comes in several segments is joined into one, or dropped and counted when its first buffer is too small.
    ///
    /// *Cost*: one call into DPDK, and a look at each frame's mbuf header.
    #[inline]
    pub fn burst(&mut self, burst: &mut Burst) -> usize {
        let start = burst.len();
        let (slots, room) = burst.free_slots();
        let room = u16::try_from(room).unwrap_or(u16::MAX);
        // SAFETY: the port runs while `_running` lives; `&mut self` of the only handle makes this thread the queue's only
        // user; `slots` has room for that many pointers.
        let count = usize::from(unsafe { ffi::ferroce_rx_burst(self.port, self.queue, slots, room) });
        // SAFETY: DPDK filled `count` slots with mbufs of pools of ours (this queue's, or on a ring the sender's) and gave
        // them up. That each has one segment holds after the check below, before anyone sees them.
        unsafe { burst.assume_filled(count) };
        if burst[start..].iter().any(|mbuf| mbuf.segment_count() != 1) {
            self.join_segments(burst);
        }
        burst.len() - start
    }

    /// Frames that have come and wait to be taken; `None` if the driver does not tell.
    ///
    /// *Cost*: one call into DPDK.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> Option<u32> {
        // SAFETY: the port runs while `_running` lives, and has this queue; the callee only reads what the owner may read.
        u32::try_from(unsafe { ffi::ferroce_rx_queue_count(self.port, self.queue) }).ok()
    }

    /// How many frames can wait, where the driver goes by what it was configured with.
    #[must_use]
    pub fn slots(&self) -> u16 {
        self.slots
    }

    /// Makes every frame of the burst one segment, without those that cannot be.
    #[cold]
    fn join_segments(&mut self, burst: &mut Burst) {
        let mut joined = Burst::new();
        for mbuf in burst.drain() {
            // SAFETY: a live mbuf owned by this value.
            let whole = mbuf.segment_count() == 1 || unsafe { ffi::ferroce_mbuf_linearize(mbuf.as_ptr()) } == 0;
            if whole {
                joined.push(mbuf).expect("as many as came out of a burst fit into one");
            } else {
                self.unjoinable_count += 1;
            }
        }
        *burst = joined;
    }

    /// Frames dropped because they came in several segments that did not fit into one buffer.
    #[must_use]
    pub fn unjoinable_count(&self) -> u64 {
        self.unjoinable_count
    }

    /// The pool that received frames lie in (on a ring: the sender's).
    #[must_use]
    pub fn pool(&self) -> &Mempool {
        &self.pool
    }
}

/// A transmit queue. It moves between threads but is never shared.
#[derive(Debug)]
pub struct TxQueue {
    port: u16,
    queue: u16,
    pool: Mempool,
    min_frame_bytes: usize,
    max_frame_bytes: usize,
    /// Keeps the port running.
    _running: Arc<Running>,
    not_sync: PhantomData<Cell<()>>,
}

impl TxQueue {
    pub(crate) fn new(
        running: Arc<Running>,
        port: u16,
        queue: u16,
        pool: Mempool,
        min_frame_bytes: usize,
        max_frame_bytes: u32,
    ) -> Self {
        let max_frame_bytes = usize::try_from(max_frame_bytes).unwrap_or(usize::MAX);
        Self { port, queue, pool, min_frame_bytes, max_frame_bytes, _running: running, not_sync: PhantomData }
    }

    /// Gives frames to the port, from the front of `burst`; returns how many it took. The others stay, in order: the port's ring
    /// is full, and the caller tries again later. Frames go as they are, neither padded nor checked against the port's limit.
    ///
    /// *Cost*: one call into DPDK.
    #[inline]
    pub fn transmit(&mut self, burst: &mut Burst) -> usize {
        let Ok(count) = u16::try_from(burst.len()) else { return 0 };
        if count == 0 {
            return 0;
        }
        // SAFETY: the port runs while `_running` lives; `&mut self` of the only handle makes this thread the queue's only
        // user; the first `count` slots hold mbufs that the burst owns.
        let sent = usize::from(unsafe { ffi::ferroce_tx_burst(self.port, self.queue, burst.as_raw_mut(), count) });
        // SAFETY: DPDK took the first `sent`, at most `count`, and frees them once they are sent.
        unsafe { burst.forget_front(sent) };
        sent
    }

    /// The pool for frames to send.
    #[must_use]
    pub fn pool(&self) -> &Mempool {
        &self.pool
    }

    /// Shortest frame on this port: shorter ones are padded by [`crate::TxBurst`]. 60 on Ethernet, else 0.
    #[must_use]
    pub fn min_frame_bytes(&self) -> usize {
        self.min_frame_bytes
    }

    /// Longest frame on this port.
    #[must_use]
    pub fn max_frame_bytes(&self) -> usize {
        self.max_frame_bytes
    }

    /// A frame made of `bytes`, padded as this port wants it; `None` when it is too long or the pool is empty.
    /// For control frames; the data path has [`crate::TxBurst`].
    #[must_use]
    pub fn frame(&self, bytes: &[u8]) -> Option<Mbuf> {
        if bytes.len() > self.max_frame_bytes {
            return None;
        }
        let mut mbuf = self.pool.alloc()?;
        let (frame, padding) = mbuf.resize(bytes.len().max(self.min_frame_bytes))?.split_at_mut(bytes.len());
        frame.copy_from_slice(bytes);
        padding.fill(0);
        Some(mbuf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mempool::MempoolConfig;
    use crate::{Eal, EalConfig, MemoryMode, PortConfig, RingPairConfig, ring_pair};

    /// A frame in two segments of `lens` bytes, as a peer's driver may hand it over a ring.
    fn two_segments(pool: &Mempool, lens: [usize; 2]) -> Mbuf {
        let [mut first, mut second] = lens.map(|_| pool.alloc().unwrap());
        first.resize(lens[0]).unwrap().fill(1);
        second.resize(lens[1]).unwrap().fill(2);
        let header = first.as_ptr();
        // SAFETY: a live mbuf of this test's, which nobody else refers to.
        let header = unsafe { &mut *header };
        header.nb_segs = 2;
        header.pkt_len = u32::try_from(lens[0] + lens[1]).unwrap();
        // Freed with the first.
        header.next = second.as_ptr();
        std::mem::forget(second);
        first
    }

    #[test]
    fn segments_are_joined_in_place_and_those_too_long_are_dropped_and_counted() {
        let memory = MemoryMode::NoHuge { mib: 128 };
        let eal = Eal::get_or_init(&EalConfig { memory, ..EalConfig::default() }).unwrap();
        let (a, b) = ring_pair(eal, RingPairConfig::default()).unwrap();
        let config = PortConfig { max_frame_bytes: 1024, ..PortConfig::default() };
        let (mut a, mut b) = (a.configure(&config).unwrap(), b.configure(&config).unwrap());
        let (mut from, mut to) = (a.take_queue_pairs().pop().unwrap(), b.take_queue_pairs().pop().unwrap());
        // A pool of its own: its count shows that the dropped frame's segments both returned.
        let pool = Mempool::new(eal, MempoolConfig { mbuf_count: 256, frame_bytes: 1024, socket: None }).unwrap();
        let mut burst = Burst::new();
        for lens in [[60, 40], [1000, 24], [1000, 25]] {
            burst.push(two_segments(&pool, lens)).unwrap();
        }
        burst.push(from.tx.frame(&[3; 64]).unwrap()).unwrap();
        assert_eq!((from.tx.transmit(&mut burst), burst.len()), (4, 0));

        assert_eq!((to.rx.burst(&mut burst), to.rx.unjoinable_count()), (3, 1));
        let joined = [[1; 60].as_slice(), &[2; 40]].concat();
        assert_eq!(burst[0].data(), joined);
        assert_eq!((burst[1].len(), burst[1].data()[999], burst[1].data()[1000]), (1024, 1, 2));
        assert_eq!(burst[2].data(), [3; 64]);
        burst.clear();
        assert_eq!(pool.avail_count(), 256);
    }
}
