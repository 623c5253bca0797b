//! Completion times and slowdowns by the size of flows.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Upper ends of the classes of sizes, bytes; the last class has none.
const CLASS_ENDS: [u64; 4] = [10_000, 100_000, 1_000_000, 10_000_000];
const CLASS_NAMES: [&str; 5] = ["up to 10 KB", "10 to 100 KB", "100 KB to 1 MB", "1 to 10 MB", "over 10 MB"];
/// Significant digits of a histogram: values are right within 0.1 %.
const DIGITS: u8 = 3;
/// Slowdowns are kept as thousandths.
const SLOWDOWN_UNITS: f64 = 1_000.0;

/// Median and tail of some times.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Percentiles {
    /// Half are no larger.
    pub p50: f64,
    /// 95 % are no larger.
    pub p95: f64,
    /// 99 % are no larger.
    pub p99: f64,
    /// 99.9 % are no larger.
    pub p999: f64,
    /// The mean.
    pub mean: f64,
    /// The largest.
    pub max: f64,
}

impl Percentiles {
    fn of(histogram: &Histogram<u64>, unit: f64) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / unit;
        Self {
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            mean: histogram.mean() / unit,
            max: histogram.max() as f64 / unit,
        }
    }
}

/// The flows of a class of sizes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SizeClass {
    /// Which sizes.
    pub sizes: &'static str,
    /// Completed flows.
    pub count: u64,
    /// From start to completion, us.
    pub completion_us: Percentiles,
    /// Completion time as a multiple of that on an empty network.
    pub slowdown: Percentiles,
}

#[derive(Clone, Debug)]
struct Class {
    completion_ns: Histogram<u64>,
    slowdown: Histogram<u64>,
}

impl Class {
    fn new() -> Self {
        let histogram = || Histogram::new(DIGITS).expect("a histogram of 3 digits can be made");
        Self { completion_ns: histogram(), slowdown: histogram() }
    }
}

/// All completions of a run.
#[derive(Clone, Debug)]
pub(super) struct Completions {
    all: Class,
    classes: Vec<Class>,
}

impl Completions {
    pub(super) fn new() -> Self {
        Self { all: Class::new(), classes: CLASS_NAMES.iter().map(|_| Class::new()).collect() }
    }

    pub(super) fn add(&mut self, bytes: u64, completion_ns: u64, slowdown: f64) {
        let index = CLASS_ENDS.iter().position(|&end| bytes <= end).unwrap_or(CLASS_ENDS.len());
        // Saturates: a slowdown is no larger than the nanoseconds of a run.
        let slowdown = (slowdown * SLOWDOWN_UNITS).round() as u64;
        for class in [&mut self.all, &mut self.classes[index]] {
            class.completion_ns += completion_ns;
            class.slowdown += slowdown;
        }
    }

    /// Classes that have flows, and then all flows together.
    pub(super) fn classes(&self) -> Vec<SizeClass> {
        let row = |sizes, class: &Class| SizeClass {
            sizes,
            count: class.completion_ns.len(),
            completion_us: Percentiles::of(&class.completion_ns, 1_000.0),
            slowdown: Percentiles::of(&class.slowdown, SLOWDOWN_UNITS),
        };
        let classes = CLASS_NAMES.iter().zip(&self.classes).map(|(name, class)| row(name, class));
        classes.filter(|class| class.count > 0).chain([row("all", &self.all)]).collect()
    }

    /// Completion times as a cumulative distribution: us, part of the flows that took no longer.
    pub(super) fn distribution(&self) -> Vec<(f64, f64)> {
        let (mut so_far, count) = (0, self.all.completion_ns.len() as f64);
        let point = |step: hdrhistogram::iterators::IterationValue<u64>| {
            so_far += step.count_since_last_iteration();
            (step.value_iterated_to() as f64 / 1_000.0, so_far as f64 / count)
        };
        self.all.completion_ns.iter_recorded().map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_list() {
        let mut completions = Completions::new();
        // 1 us to 1 ms in steps of 1 us: the p-th percentile of a thousand is the value at that place.
        for us in 1..=1_000u64 {
            completions.add(5_000, us * 1_000, us as f64 / 10.0);
        }
        let classes = completions.classes();
        assert_eq!((classes[0].sizes, classes[0].count, classes.len()), ("up to 10 KB", 1_000, 2));
        let near = |is: f64, should: f64| assert!((is / should - 1.0).abs() < 0.001, "{is} instead of {should}");
        let (times, slowdowns) = (classes[0].completion_us, classes[0].slowdown);
        for (value, should) in [(times.p50, 500.0), (times.p95, 950.0), (times.p99, 990.0), (times.p999, 999.0)] {
            near(value, should);
        }
        for (value, should) in [(slowdowns.p50, 50.0), (slowdowns.p99, 99.0), (slowdowns.max, 100.0)] {
            near(value, should);
        }
        near(times.mean, 500.5);
        assert_eq!(classes[1].completion_us, classes[0].completion_us);
    }

    #[test]
    fn size_is_in_the_class_whose_end_it_does_not_exceed() {
        let mut completions = Completions::new();
        for bytes in [1, 10_000, 10_001, 1_000_000, 10_000_001] {
            completions.add(bytes, 10, 1.0);
        }
        let counts: Vec<(&str, u64)> = completions.classes().iter().map(|class| (class.sizes, class.count)).collect();
        let expected = [("up to 10 KB", 2), ("10 to 100 KB", 1), ("100 KB to 1 MB", 1), ("over 10 MB", 1), ("all", 5)];
        assert_eq!(counts, expected);
    }

    #[test]
    fn distribution_rises_to_one() {
        let mut completions = Completions::new();
        for ns in [1_000, 2_000, 2_000, 4_000] {
            completions.add(1, ns, 1.0);
        }
        let parts: Vec<f64> = completions.distribution().iter().map(|(_, part)| *part).collect();
        assert_eq!(parts, [0.25, 0.75, 1.0]);
    }
}
