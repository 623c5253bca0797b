//! Sizes of flows: cumulative distributions, linear between their points, as data-centre traces are published.

use std::path::{Path, PathBuf};

use rand::Rng;
use serde::Deserialize;

use crate::random::Stream;

/// Bytes and cumulative percent. Web search: the DCTCP paper (SIGCOMM 2010), as the public HPCC simulator uses it.
const WEB_SEARCH: &str = "0:0 10000:15 20000:20 30000:30 50000:40 80000:53 200000:60 1000000:70 2000000:80 5000000:90 \
                          10000000:97 30000000:100";
/// Hadoop: Facebook's traces (SIGCOMM 2015), as the public HPCC simulator uses them.
const HADOOP: &str = "0:0 100:1 200:2 300:5 350:15 400:20 500:30 600:40 700:50 1000:60 2000:67 7000:70 30000:72 50000:82 \
                      80000:87 120000:90 300000:95 1000000:97.5 2000000:99 10000000:100";
/// Storage: Alibaba's traces (HPCC, SIGCOMM 2019).
const STORAGE: &str =
    "0:0 4000:22.93 8000:69.21 16000:80.61 32000:90.47 64000:93.53 128000:96.77 256000:97.53 2000000:100";

/// Largest size of one flow, bytes.
pub const MAX_FLOW_BYTES: u64 = 1 << 40;
const MAX_FILE_BYTES: u64 = 64 * 1024;
const MAX_POINTS: usize = 1024;

/// How large the flows of a workload are, as a scenario writes it: `sizes = "web-search"`, `sizes = { bytes = 65536 }`,
/// `sizes = { file = "mine.txt" }`, `sizes = { points = "0:0 1000:50 90000:100" }`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sizes {
    /// Queries and updates of a search cluster: many short flows, most bytes in few long ones.
    WebSearch,
    /// A Hadoop cluster: half of the flows under 700 bytes.
    Hadoop,
    /// Block storage: most flows of 4 to 8 KB.
    Storage,
    /// All of one size.
    Bytes(u64),
    /// Points `size:percent` in a file, with blanks or line ends between them, `#` before a comment. A relative path starts
    /// from the scenario's folder.
    File(PathBuf),
    /// The same points in the scenario itself.
    Points(String),
}

impl Sizes {
    /// The distribution that is meant. Reads the file, if it is one, from `directory`.
    ///
    /// # Errors
    /// A file that cannot be read, points that are no distribution.
    pub fn distribution(&self, directory: &Path) -> Result<SizeDistribution, SizesError> {
        match self {
            Self::WebSearch => SizeDistribution::parse(WEB_SEARCH),
            Self::Hadoop => SizeDistribution::parse(HADOOP),
            Self::Storage => SizeDistribution::parse(STORAGE),
            Self::Bytes(bytes) => SizeDistribution::parse(&format!("{bytes}:0 {bytes}:100")),
            Self::File(path) => SizeDistribution::parse(&read(&directory.join(path))?),
            Self::Points(points) => SizeDistribution::parse(points),
        }
    }
}

fn read(path: &Path) -> Result<String, SizesError> {
    let failed = |error: std::io::Error| SizesError::Unreadable { path: path.to_owned(), what: error.to_string() };
    let bytes = std::fs::metadata(path).map_err(failed)?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(SizesError::TooLong { path: path.to_owned(), bytes });
    }
    std::fs::read_to_string(path).map_err(failed)
}

/// Why something is no distribution of sizes.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum SizesError {
    /// The file cannot be read.
    #[error("{}: {what}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the operating system says.
        what: String,
    },
    /// The file is too long.
    #[error("{} has {bytes} bytes; a distribution has {MAX_FILE_BYTES} at most", path.display())]
    TooLong {
        /// Which file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// Not `size:percent`.
    #[error("`{0}` is no point of a distribution: that is `size:percent`, such as `10000:15`")]
    Point(String),
    /// Too few or too many points.
    #[error("{0} points; a distribution has 2 to {MAX_POINTS}")]
    Count(usize),
    /// A size that no flow can have.
    #[error("a flow of {0} bytes; the largest is 0 to {MAX_FLOW_BYTES}, and one that is always 0 is none")]
    Size(u64),
    /// It does not begin at 0 percent or end at 100.
    #[error("the percents go from {first} to {last}; they must go from 0 to 100")]
    Ends {
        /// The first percent.
        first: f64,
        /// The last percent.
        last: f64,
    },
    /// A point that is below the one before it.
    #[error("the point {size}:{percent} is below the one before it; sizes and percents must rise")]
    Falls {
        /// Size of the point.
        size: u64,
        /// Its percent.
        percent: f64,
    },
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Point {
    bytes: u64,
    /// Part of the flows that are no larger, 0 to 1.
    part: f64,
}

/// A cumulative distribution of sizes in bytes, linear between its points.
#[derive(Clone, PartialEq, Debug)]
pub struct SizeDistribution {
    points: Vec<Point>,
}

impl SizeDistribution {
    /// From points `size:percent` with white space between them.
    ///
    /// # Errors
    /// Text that is no rising list of points from 0 to 100 percent.
    pub fn parse(text: &str) -> Result<Self, SizesError> {
        let words = text.lines().map(|line| line.split('#').next().unwrap_or_default()).flat_map(str::split_whitespace);
        let points = words.map(point).collect::<Result<Vec<Point>, SizesError>>()?;
        let ([first, .., last], true) = (points.as_slice(), points.len() <= MAX_POINTS) else {
            return Err(SizesError::Count(points.len()));
        };
        if first.part != 0.0 || last.part != 1.0 {
            return Err(SizesError::Ends { first: first.part * 100.0, last: last.part * 100.0 });
        }
        if last.bytes == 0 || last.bytes > MAX_FLOW_BYTES {
            return Err(SizesError::Size(last.bytes));
        }
        for pair in points.windows(2) {
            if pair[1].bytes < pair[0].bytes || pair[1].part < pair[0].part {
                return Err(SizesError::Falls { size: pair[1].bytes, percent: pair[1].part * 100.0 });
            }
        }
        Ok(Self { points })
    }

    /// The mean in bytes, of the distribution as it is drawn.
    pub fn mean_bytes(&self) -> f64 {
        let pairs = self.points.windows(2);
        pairs.map(|p| (p[1].part - p[0].part) * (p[0].bytes as f64 + p[1].bytes as f64) / 2.0).sum()
    }

    /// The largest size, bytes.
    pub fn max_bytes(&self) -> u64 {
        self.points.last().map_or(0, |point| point.bytes)
    }

    /// Draws a size: at least 1 byte.
    pub fn draw(&self, stream: &mut Stream) -> u64 {
        self.at(stream.random::<f64>()).max(1)
    }

    /// The size that `part` (0 to 1) of the flows do not exceed.
    fn at(&self, part: f64) -> u64 {
        let above = self.points.partition_point(|point| point.part <= part).clamp(1, self.points.len() - 1);
        let (low, high) = (self.points[above - 1], self.points[above]);
        let width = high.part - low.part;
        // A step: two points of one percent.
        let within = if width > 0.0 { ((part - low.part) / width).clamp(0.0, 1.0) } else { 1.0 };
        // Not above `high`, which is at most 2^40: the conversion is exact.
        low.bytes + ((high.bytes - low.bytes) as f64 * within).round() as u64
    }
}

fn point(word: &str) -> Result<Point, SizesError> {
    let parts =
        word.split_once(':').and_then(|(size, percent)| Some((size.parse().ok()?, percent.parse::<f64>().ok()?)));
    match parts {
        Some((bytes, percent)) if percent.is_finite() => Ok(Point { bytes, part: percent / 100.0 }),
        _ => Err(SizesError::Point(word.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::random::{StreamOf, stream};

    fn published(sizes: &Sizes) -> SizeDistribution {
        sizes.distribution(Path::new(".")).unwrap()
    }

    #[test]
    fn published_distributions_are_drawn_with_their_mean() {
        // Means by hand from the points: the sum of (percent of the piece) x (middle of the piece).
        for (sizes, mean) in [(Sizes::WebSearch, 1_711_250.0), (Sizes::Hadoop, 120_420.75), (Sizes::Storage, 40_869.8)]
        {
            let distribution = published(&sizes);
            assert!((distribution.mean_bytes() / mean - 1.0).abs() < 1e-9, "{sizes:?}: {}", distribution.mean_bytes());
            let mut stream = stream(11, StreamOf::Workload(0));
            let drawn: f64 = (0..200_000).map(|_| distribution.draw(&mut stream) as f64).sum::<f64>() / 200_000.0;
            let error = drawn / distribution.mean_bytes() - 1.0;
            assert!(error.abs() < 0.02, "{sizes:?}: {drawn} is {error} off {}", distribution.mean_bytes());
        }
    }

    #[test]
    fn every_point_is_met_by_its_percent_of_the_draws() {
        for sizes in [Sizes::WebSearch, Sizes::Hadoop, Sizes::Storage] {
            let distribution = published(&sizes);
            let mut stream = stream(5, StreamOf::Workload(1));
            let drawn: Vec<u64> = (0..100_000).map(|_| distribution.draw(&mut stream)).collect();
            for point in &distribution.points {
                let below = drawn.iter().filter(|&&bytes| bytes <= point.bytes).count() as f64 / drawn.len() as f64;
                assert!((below - point.part).abs() < 0.006, "{sizes:?}: {below} of the draws are within {point:?}");
            }
        }
    }

    #[test]
    fn one_size_is_always_that_size() {
        let distribution = published(&Sizes::Bytes(4_097));
        let mut stream = stream(1, StreamOf::Workload(0));
        assert!((0..100).all(|_| distribution.draw(&mut stream) == 4_097));
        assert_eq!((distribution.mean_bytes(), distribution.max_bytes()), (4_097.0, 4_097));
    }

    #[test]
    fn what_is_no_distribution_is_refused_in_a_sentence() {
        let said: Vec<String> = [
            "",
            "5:0",
            "1:0 x:100",
            "1:0 5:nan",
            "1:1 5:100",
            "0:0 0:100",
            "0:0 9:50 8:70 9:100",
            "0:0 1:60 2:50 3:100",
        ]
        .iter()
        .map(|text| SizeDistribution::parse(text).unwrap_err().to_string())
        .collect();
        insta::assert_snapshot!(said.join("\n"), @r"
        0 points; a distribution has 2 to 1024
        1 points; a distribution has 2 to 1024
        `x:100` is no point of a distribution: that is `size:percent`, such as `10000:15`
        `5:nan` is no point of a distribution: that is `size:percent`, such as `10000:15`
        the percents go from 1 to 100; they must go from 0 to 100
        a flow of 0 bytes; the largest is 0 to 1099511627776, and one that is always 0 is none
        the point 8:70 is below the one before it; sizes and percents must rise
        the point 2:50 is below the one before it; sizes and percents must rise
        ");
    }

    #[test]
    fn file_is_read_from_the_scenarios_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("mine.txt"), "# mine\n100:0 # smallest\n200:50\n400:100\n").unwrap();
        let distribution = Sizes::File("mine.txt".into()).distribution(folder.path()).unwrap();
        assert_eq!((distribution.mean_bytes(), distribution.at(0.25), distribution.at(0.75)), (225.0, 150, 300));
        let missing = Sizes::File("none.txt".into()).distribution(folder.path());
        assert!(matches!(missing, Err(SizesError::Unreadable { .. })));
    }

    proptest! {
        #[test]
        fn any_rising_list_draws_within_its_ends(steps in prop::collection::vec((0u64..1_000_000, 1u32..100), 1..20), seed: u64) {
            let total: u32 = steps.iter().map(|(_, weight)| weight).sum();
            let (mut text, mut bytes, mut weight) = ("7:0".to_owned(), 7, 0);
            for (index, (more, part)) in steps.iter().enumerate() {
                bytes += more;
                weight += part;
                let percent = if index + 1 == steps.len() { 100.0 } else { f64::from(weight) * 100.0 / f64::from(total) };
                text += &format!(" {bytes}:{percent}");
            }
            let distribution = SizeDistribution::parse(&text).unwrap();
            let mut stream = stream(seed, StreamOf::Workload(0));
            for _ in 0..50 {
                prop_assert!((7..=bytes).contains(&distribution.draw(&mut stream)));
            }
            let mean = distribution.mean_bytes();
            prop_assert!((7.0..=bytes as f64).contains(&mean), "{mean}");
        }
    }
}
