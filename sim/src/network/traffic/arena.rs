//! The bytes of flows that are checked: where they lie, what they are, and what is left when nothing is there.

use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes between two ranges that nobody may write.
const GUARD_BYTES: u64 = 64;

/// Hands out ranges of a region, with guards between them.
#[derive(Clone, Debug)]
pub(super) struct Arena {
    bytes: u64,
    /// End of each range that is taken, guard included, by its start.
    taken: BTreeMap<u64, u64>,
}

impl Arena {
    pub(super) fn new(bytes: u64) -> Self {
        Self { bytes, taken: BTreeMap::new() }
    }

    /// A range of `length` bytes; `None` if there is no such gap.
    pub(super) fn take(&mut self, length: u64) -> Option<Range<u64>> {
        let mut start = GUARD_BYTES;
        for (&taken, &end) in &self.taken {
            if start + length + GUARD_BYTES <= taken {
                break;
            }
            start = end;
        }
        let end = start.checked_add(length)?.checked_add(GUARD_BYTES)?;
        if end > self.bytes {
            return None;
        }
        self.taken.insert(start, end);
        Some(start..start + length)
    }

    pub(super) fn give_back(&mut self, range: &Range<u64>) {
        self.taken.remove(&range.start);
    }

    /// Ranges that are taken, with their guards.
    pub(super) fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }
}

/// The bytes of a flow from `offset` on: different for every flow and every place.
pub(super) fn fill(flow: u32, offset: u64, bytes: &mut [u8]) {
    for (place, byte) in (offset..).zip(bytes) {
        let word = (place >> 3 ^ u64::from(flow) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // Never 0: a byte that was not written shows.
        *byte = (word >> (8 * (place & 7))) as u8 | 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_never_touch_and_gaps_are_used_again() {
        let mut arena = Arena::new(1_000);
        let [first, second] = [arena.take(100).unwrap(), arena.take(300).unwrap()];
        assert_eq!((first.clone(), second.clone()), (64..164, 228..528));
        assert_eq!((arena.take(410), arena.take(345).is_none()), (None, true), "no room before the end");
        arena.give_back(&first);
        assert_eq!(arena.take(101), Some(592..693), "the gap is a byte too small");
        assert_eq!(arena.take(100), Some(64..164));
        arena.give_back(&second);
        assert!(!arena.is_empty());
    }

    #[test]
    fn a_flows_bytes_can_be_had_in_pieces_and_differ_from_another_flows() {
        let mut whole = [0; 64];
        fill(7, 100, &mut whole);
        let mut pieces = [0; 64];
        let (left, right) = pieces.split_at_mut(23);
        fill(7, 100, left);
        fill(7, 123, right);
        assert_eq!(whole, pieces);
        let mut other = [0; 64];
        fill(8, 100, &mut other);
        assert!(whole != other && whole.iter().all(|&byte| byte != 0));
    }
}
