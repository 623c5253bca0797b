//! Values over time in bins of one width, which doubles when there get to be too many: memory has a bound however long a run is.

use engine::Time;

/// Most bins of a series; a multiple of two.
pub(super) const MAX_BINS: usize = 1024;

/// The width of all bins of a run. The first bin begins at time 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Grid {
    width_ns: u64,
}

impl Grid {
    pub(super) fn new(width_ns: u64) -> Self {
        Self { width_ns: width_ns.max(1) }
    }

    pub(super) fn width_ns(self) -> u64 {
        self.width_ns
    }

    /// The bin that `at` is in.
    pub(super) fn index(self, at: Time) -> u64 {
        at.as_ns() / self.width_ns
    }

    /// Whether all bins up to `at` fit; if not, every series must be merged once and this be asked again.
    pub(super) fn fits(self, at: Time) -> bool {
        self.index(at) < MAX_BINS as u64
    }

    pub(super) fn double(&mut self) {
        self.width_ns *= 2;
    }
}

/// A value that two neighbouring bins have in common when they become one.
pub(super) trait Merge: Copy + Default {
    fn merge(self, later: Self) -> Self;
}

/// Amounts: their sum counts.
impl Merge for f64 {
    fn merge(self, later: Self) -> Self {
        self + later
    }
}

/// Amounts: their sum counts.
impl Merge for u64 {
    fn merge(self, later: Self) -> Self {
        self + later
    }
}

/// Depths of a queue in one bin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Depths {
    pub(super) max_bytes: u64,
    pub(super) sum_bytes: u64,
}

impl Merge for Depths {
    fn merge(self, later: Self) -> Self {
        Self { max_bytes: self.max_bytes.max(later.max_bytes), sum_bytes: self.sum_bytes + later.sum_bytes }
    }
}

/// One value a bin. Bins at the end that nothing came into are not kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Bins<V> {
    values: Vec<V>,
}

impl<V: Merge> Bins<V> {
    /// Adds to the bin that `at` is in. The grid must fit it.
    pub(super) fn add(&mut self, grid: Grid, at: Time, value: V) {
        self.add_to(grid.index(at), value);
    }

    fn add_to(&mut self, index: u64, value: V) {
        // At most MAX_BINS, or the assertion says who forgot to merge.
        assert!(index < MAX_BINS as u64, "bin {index} of a series that ends at {MAX_BINS}");
        let index = index as usize;
        if self.values.len() <= index {
            self.values.resize(index + 1, V::default());
        }
        self.values[index] = self.values[index].merge(value);
    }

    /// Merges neighbours, as the grid's width doubles.
    pub(super) fn merge_pairs(&mut self) {
        let merged = self.values.chunks(2).map(|pair| pair.iter().skip(1).fold(pair[0], |sum, &v| sum.merge(v)));
        self.values = merged.collect();
    }

    /// The value of a bin.
    pub(super) fn at(&self, index: usize) -> V {
        self.values.get(index).copied().unwrap_or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }
}

impl Bins<f64> {
    /// Adds an amount that came evenly from `from` to `to`.
    pub(super) fn spread(&mut self, grid: Grid, from: Time, to: Time, amount: f64) {
        let span = to.ns_since(from);
        if span == 0 {
            self.add(grid, to, amount);
            return;
        }
        let mut at = from;
        while at < to {
            let bin_end = (grid.index(at) + 1).saturating_mul(grid.width_ns());
            let next = to.min(Time::from_ns(bin_end));
            self.add(grid, at, amount * next.ns_since(at) as f64 / span as f64);
            at = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn merging_keeps_sums_and_maxima(values in prop::collection::vec((0u64..512, 0u64..1_000), 1..100)) {
            let grid = Grid::new(10);
            let (mut amounts, mut depths) = (Bins::default(), Bins::default());
            for &(bin, value) in &values {
                amounts.add(grid, Time::from_ns(bin * 10 + 3), value);
                depths.add(grid, Time::from_ns(bin * 10), Depths { max_bytes: value, sum_bytes: value });
            }
            for _ in 0..9 {
                amounts.merge_pairs();
                depths.merge_pairs();
            }
            let sum = values.iter().map(|(_, value)| value).sum::<u64>();
            let max = values.iter().map(|(_, value)| *value).max().unwrap_or(0);
            prop_assert_eq!((amounts.len(), amounts.at(0)), (1, sum));
            prop_assert_eq!(depths.at(0), Depths { max_bytes: max, sum_bytes: sum });
        }

        #[test]
        fn spreading_keeps_the_amount_and_its_rate(from in 0u64..5_000, span in 0u64..5_000) {
            let grid = Grid::new(100);
            let mut bins = Bins::default();
            bins.spread(grid, Time::from_ns(from), Time::from_ns(from + span), 1_000.0);
            let sum: f64 = (0..bins.len()).map(|index| bins.at(index)).sum();
            prop_assert!((sum - 1_000.0).abs() < 1e-6);
            if span > 0 {
                let rate = 1_000.0 / span as f64;
                prop_assert!((0..bins.len()).all(|index| bins.at(index) <= rate * 100.0 + 1e-9));
            }
        }
    }

    #[test]
    fn merged_bins_are_those_of_the_doubled_grid() {
        let mut grid = Grid::new(10);
        let mut bins = Bins::default();
        for bin in 0..5u64 {
            bins.add(grid, Time::from_ns(bin * 10), 1 << bin);
        }
        bins.merge_pairs();
        grid.double();
        assert_eq!([0, 1, 2, 3].map(|index| bins.at(index)), [3, 12, 16, 0]);
        assert_eq!((grid.index(Time::from_ns(40)), grid.fits(Time::from_ns(20 * 1_024))), (2, false));
    }
}
