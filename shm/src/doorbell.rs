//! The doorbell page: which QPs of a session have new work requests, one page for each shard a session uses.
//!
//! ```text
//! +0    u64 summary[4]      client sets, engine clears: bit w = some bit of word w is set
//! +64   u32 need_wake       engine: 1 while the shard sleeps; the client then writes the shard's eventfd
//! +128  u64 words[256]      client sets, engine clears: bit b of word w = QP with doorbell index 64 w + b
//! ```
//!
//! The client publishes its producer index, then sets the bit, then the summary bit. The engine clears in the opposite
//! order, then reads the producer index: so an index published before a bit was seen is never missed.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use crate::mapping::Mapping;
use crate::segment::Block;

const SUMMARY_WORDS: u32 = 4;
const NEED_WAKE: u64 = 64;
const WORDS: u64 = 128;
/// Doorbells in one page: the most QPs a session can have on one shard.
pub const DOORBELL_COUNT: u32 = SUMMARY_WORDS * 64 * 64;
/// Bytes of a doorbell page.
pub const DOORBELL_BYTES: u64 = WORDS + SUMMARY_WORDS as u64 * 64 * 8;

/// A doorbell page, for either side.
#[derive(Clone, Debug)]
pub struct DoorbellPage {
    mapping: Arc<Mapping>,
    offset: u64,
}

impl DoorbellPage {
    /// A page in a block of at least [`DOORBELL_BYTES`]; `None` if it does not fit the mapping.
    pub fn new(block: &Block) -> Option<Self> {
        let page = Self { mapping: Arc::clone(&block.mapping), offset: block.offset };
        page.mapping.atomic_u64(page.offset)?;
        page.mapping.atomic_u64(page.offset.checked_add(DOORBELL_BYTES - 8)?)?;
        Some(page)
    }

    #[inline]
    fn u64_at(&self, offset: u64) -> &AtomicU64 {
        let word = self.mapping.atomic_u64(self.offset + offset);
        word.unwrap_or_else(|| unreachable!("offsets inside the page were checked when it was made"))
    }

    #[inline]
    fn need_wake(&self) -> &AtomicU32 {
        let word = self.mapping.atomic_u32(self.offset + NEED_WAKE);
        word.unwrap_or_else(|| unreachable!("offsets inside the page were checked when it was made"))
    }

    /// Client: tells the shard that a QP has new work. Returns true if the shard sleeps and its eventfd must be written.
    #[inline]
    pub fn ring(&self, index: u32) -> bool {
        let index = index % DOORBELL_COUNT;
        let (word, bit) = (index / 64, index % 64);
        // PAIRS WITH: the swap of this word in `take_word`: the producer index stored before is visible to who takes the bit.
        self.u64_at(WORDS + u64::from(word) * 8).fetch_or(1 << bit, AcqRel);
        // PAIRS WITH: the swap of this word in `take_summary`. SeqCst: also ordered before the load of need_wake, as
        // `announce_sleep` orders its store before its scan; one of the two sees the other.
        self.u64_at(u64::from(word / 64) * 8).fetch_or(1 << (word % 64), SeqCst);
        self.need_wake().load(SeqCst) != 0
    }

    /// Engine: takes one summary word; each set bit `b` names word `64 i + b`.
    #[inline]
    pub fn take_summary(&self, i: u32) -> u64 {
        let word = self.u64_at(u64::from(i % SUMMARY_WORDS) * 8);
        // The common case is an idle page: look before the locked operation.
        if word.load(Relaxed) == 0 {
            return 0;
        }
        // PAIRS WITH: `ring`'s second fetch_or.
        word.swap(0, AcqRel)
    }

    /// Summary words in a page.
    pub const SUMMARY_WORDS: u32 = SUMMARY_WORDS;

    /// Engine: takes one word of doorbells; bit `b` is the doorbell `64 word + b`.
    #[inline]
    pub fn take_word(&self, word: u32) -> u64 {
        // PAIRS WITH: `ring`'s first fetch_or.
        self.u64_at(WORDS + u64::from(word % (SUMMARY_WORDS * 64)) * 8).swap(0, Acquire)
    }

    /// Engine: sets bits again that a bounded turn could not serve.
    #[inline]
    pub fn put_back(&self, word: u32, bits: u64) {
        let word = word % (SUMMARY_WORDS * 64);
        // PAIRS WITH: `take_word` and `take_summary` of a later turn, which see what `ring` published with bits merged here.
        self.u64_at(WORDS + u64::from(word) * 8).fetch_or(bits, AcqRel);
        self.u64_at(u64::from(word / 64) * 8).fetch_or(1 << (word % 64), AcqRel);
    }

    /// Engine: says that the shard is about to sleep, then tells whether a doorbell is already set (then don't sleep).
    pub fn announce_sleep(&self) -> bool {
        self.need_wake().store(1, SeqCst);
        // PAIRS WITH: the SeqCst fetch_or and load in `ring`.
        fence(SeqCst);
        (0..SUMMARY_WORDS).any(|i| self.u64_at(u64::from(i) * 8).load(SeqCst) != 0)
    }

    /// Engine: the shard is awake again.
    pub fn announce_awake(&self) {
        self.need_wake().store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::SegmentAllocator;

    #[test]
    fn rung_doorbells_are_taken_once() {
        let mut segments = SegmentAllocator::new(1 << 20);
        let (block, _) = segments.allocate(DOORBELL_BYTES).unwrap();
        let page = DoorbellPage::new(&block).unwrap();
        for index in [0, 63, 64, 4095, 4096, DOORBELL_COUNT - 1] {
            assert!(!page.ring(index));
            let mut seen = Vec::new();
            for i in 0..SUMMARY_WORDS {
                let summary = page.take_summary(i);
                for word in (0..64).filter(|w| summary >> w & 1 == 1).map(|w| i * 64 + w) {
                    let bits = page.take_word(word);
                    seen.extend((0..64).filter(|b| bits >> b & 1 == 1).map(|b| word * 64 + b));
                }
            }
            assert_eq!(seen, [index]);
            assert_eq!((0..SUMMARY_WORDS).map(|i| page.take_summary(i)).sum::<u64>(), 0);
        }
    }

    #[test]
    fn a_ring_during_sleep_asks_for_a_wake() {
        let mut segments = SegmentAllocator::new(1 << 20);
        let (block, _) = segments.allocate(DOORBELL_BYTES).unwrap();
        let page = DoorbellPage::new(&block).unwrap();
        assert!(!page.announce_sleep());
        assert!(page.ring(7));
        assert!(page.announce_sleep(), "work that came before the sleep is seen");
        page.announce_awake();
        assert!(!page.ring(8));
    }
}
