//! Published results: what others have measured, and what comes of the same set-up here.
//!
//! A paper file has one scenario, cases that change some of its keys, charts of them, and checks: a number out of one run, or of two,
//! beside the published one and the range that it should be in. `docs/papers.md` has what came of them.

mod file;
mod measure;
mod plot;
mod study;
#[cfg(test)]
mod tests;

pub use file::{Paper, PaperError};
pub use measure::Metric;
pub use study::{CheckOutcome, Drawing, Study};

/// Identifier and text of each paper file.
pub const ALL: [(&str, &str); 6] = [
    ("R1", include_str!("../../scenarios/papers/r1.toml")),
    ("R2", include_str!("../../scenarios/papers/r2.toml")),
    ("R3", include_str!("../../scenarios/papers/r3.toml")),
    ("R5", include_str!("../../scenarios/papers/r5.toml")),
    ("R7", include_str!("../../scenarios/papers/r7.toml")),
    ("R13", include_str!("../../scenarios/papers/r13.toml")),
];
