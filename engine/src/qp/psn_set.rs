//! A set of PSNs that lie within a window of each other.

use wire::{Psn, SackEthRepr};

/// PSNs that a window of loss recovery spans: what one selective acknowledgement can name.
pub(crate) const WINDOW: u32 = SackEthRepr::BITS;

const WORDS: usize = (WINDOW / u64::BITS) as usize;

/// Where a PSN has its place in anything that is kept for the PSNs of a window.
#[inline]
pub(super) const fn place(psn: Psn) -> usize {
    (psn.value() % WINDOW) as usize
}

/// PSNs, all of which lie in one window of [`WINDOW`]: which one, its user knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PsnSet {
    words: [u64; WORDS],
}

impl PsnSet {
    pub(super) const EMPTY: Self = Self { words: [0; WORDS] };

    #[inline]
    pub(super) fn insert(&mut self, psn: Psn) {
        self.words[place(psn) / 64] |= 1 << (place(psn) % 64);
    }

    #[inline]
    pub(super) fn remove(&mut self, psn: Psn) {
        self.words[place(psn) / 64] &= !(1 << (place(psn) % 64));
    }

    #[inline]
    pub(super) fn contains(&self, psn: Psn) -> bool {
        self.words[place(psn) / 64] >> (place(psn) % 64) & 1 == 1
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.words == [0; WORDS]
    }

    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        *self = Self::EMPTY;
    }

    /// The `count` PSNs from `base` on; all that have room if they are more.
    pub(super) fn range(base: Psn, count: u32) -> Self {
        let below = |bits: u32| if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
        let words = core::array::from_fn(|i| below(count.saturating_sub(i as u32 * 64)));
        // As if it came on the wire: from the window's own places to the PSNs'.
        Self { words: Self { words }.seen_from(Psn::new(WINDOW - place(base) as u32)) }
    }

    /// What is in the set and not in the other.
    #[inline]
    pub(super) fn without(&self, other: &Self) -> Self {
        Self { words: core::array::from_fn(|i| self.words[i] & !other.words[i]) }
    }

    /// What of the set lies among the `count` PSNs from `base` on.
    #[inline]
    pub(super) fn within(&self, base: Psn, count: u32) -> Self {
        let range = Self::range(base, count);
        Self { words: core::array::from_fn(|i| self.words[i] & range.words[i]) }
    }

    /// The set as a map whose bit 0 stands for `base`.
    #[inline]
    fn seen_from(&self, base: Psn) -> [u64; WORDS] {
        let (skip, shift) = (place(base) / 64, place(base) % 64);
        core::array::from_fn(|i| {
            let low = self.words[(skip + i) % WORDS] >> shift;
            let high = self.words[(skip + i + 1) % WORDS];
            if shift == 0 { low } else { low | high << (64 - shift) }
        })
    }

    /// The first PSN of the set in the window that begins with `base`.
    #[inline]
    pub(super) fn first_from(&self, base: Psn) -> Option<Psn> {
        let words = self.seen_from(base);
        let at = words.iter().position(|&word| word != 0)?;
        Some(base.add(at as u32 * 64 + words[at].trailing_zeros()))
    }

    /// The last PSN of the set in the window that begins with `base`.
    #[inline]
    pub(super) fn last_from(&self, base: Psn) -> Option<Psn> {
        let words = self.seen_from(base);
        let at = words.iter().rposition(|&word| word != 0)?;
        Some(base.add(at as u32 * 64 + 63 - words[at].leading_zeros()))
    }

    /// The set as a selective acknowledgement names it whose missing PSN is `missing`, which is not in the set.
    pub(super) fn to_sack(self, missing: Psn) -> SackEthRepr {
        SackEthRepr { words: self.seen_from(missing.add(1)) }
    }

    /// What a selective acknowledgement names whose missing PSN is `missing`.
    pub(super) fn from_sack(sack: &SackEthRepr, missing: Psn) -> Self {
        let first = missing.add(1);
        // Turned the other way: the place of `first` in the map is 0, and here it is its own.
        let back = Psn::new(WINDOW - place(first) as u32);
        Self { words: Self { words: sack.words }.seen_from(back) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(psns: &[u32]) -> PsnSet {
        let mut set = PsnSet::EMPTY;
        psns.iter().for_each(|&psn| set.insert(Psn::new(psn)));
        set
    }

    #[test]
    fn a_window_may_begin_anywhere() {
        for base in [0, 1, 63, 64, 200, 255, 256, 1000, Psn::MASK - 100, Psn::MASK] {
            let at = |offset: u32| Psn::new(base).add(offset);
            let set = set(&[at(3).value(), at(70).value(), at(255).value()]);
            assert_eq!(set.count(), 3);
            assert_eq!(set.first_from(at(0)), Some(at(3)), "{base}");
            assert_eq!(set.first_from(at(4)), Some(at(70)), "{base}");
            assert_eq!(set.last_from(at(0)), Some(at(255)), "{base}");
            assert!(set.contains(at(70)) && !set.contains(at(71)));
        }
    }

    #[test]
    fn a_map_on_the_wire_is_the_set_again() {
        for missing in [0, 5, 62, 63, 64, 254, 255, 256, 4711, Psn::MASK - 3, Psn::MASK] {
            let at = |offset: u32| Psn::new(missing).add(offset);
            let set = set(&[1, 2, 64, 65, 129, 200, 255].map(|offset| at(offset).value()));
            let sack = set.to_sack(at(0));
            assert_eq!(sack.words[0] & 0b11, 0b11, "the map begins behind the missing PSN");
            assert_eq!(PsnSet::from_sack(&sack, at(0)), set, "{missing}");
        }
    }

    #[test]
    fn a_range_has_what_lies_in_it() {
        for (base, count) in [(0, 0), (0, 1), (60, 10), (250, 20), (255, 256), (Psn::MASK, 130), (3, 300)] {
            let base = Psn::new(base);
            let range = PsnSet::range(base, count);
            let expected = (0..WINDOW).map(|offset| offset < count);
            assert!((0..WINDOW).map(|offset| range.contains(base.add(offset))).eq(expected), "{base} {count}");
            assert!(range.without(&range).is_empty());
            assert_eq!(PsnSet::range(base, WINDOW).within(base, count), range);
        }
    }

    #[test]
    fn what_is_taken_out_is_gone() {
        let mut set = set(&[7, 9]);
        set.remove(Psn::new(7));
        assert_eq!(set.first_from(Psn::new(0)), Some(Psn::new(9)));
        set.clear();
        assert!(set.is_empty() && set.first_from(Psn::new(0)).is_none() && set.last_from(Psn::new(0)).is_none());
    }
}
