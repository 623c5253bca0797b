//! Reports: a run as tables for programs, and as a page for people.
//!
//! * [`Report::write`]: `summary.json`, `flows.csv`, `queues.csv`, `rates.csv`, `counters.csv` and `report.html`, which has its
//!   pictures inside.
//! * [`Chart`]: a picture of its own, such as a comparison of runs.

mod axis;
mod chart;
mod figures;
mod tables;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use minijinja::value::Serde;
use minijinja::{Environment, Value, context};
use serde::Serialize;

pub use axis::{Axis, Scale, Unit};
pub use chart::{Chart, Look, MAX_SERIES, Series};

use crate::stats::{Recorder, Summary};

const PAGE: &str = include_str!("report.html");

/// Why a report could not be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReportError {
    /// A file or folder that cannot be written.
    #[error("writing {}: {what}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the operating system says.
        what: String,
    },
    /// A chart without points, or with too many series.
    #[error("the chart `{title}` has {series} series with {points} points; it takes 1 to {MAX_SERIES}, and a point")]
    Chart {
        /// Its title.
        title: String,
        /// Series.
        series: usize,
        /// Points that its axes can show.
        points: usize,
    },
    /// A chart that could not be drawn.
    #[error("drawing the chart `{title}`: {what}")]
    Drawing {
        /// Its title.
        title: String,
        /// What the drawing code says.
        what: String,
    },
    /// The page could not be filled in.
    #[error("making the page: {0}")]
    Page(String),
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), ReportError> {
    std::fs::write(path, bytes).map_err(|error| ReportError::File { path: path.to_owned(), what: error.to_string() })
}

/// A run that is over, with what is needed to run it again.
#[derive(Debug)]
pub struct Report<'a> {
    /// Name of the scenario.
    pub name: &'a str,
    /// The scenario file's text.
    pub scenario: &'a str,
    /// Seed of the run.
    pub seed: u64,
    /// The command that runs it again.
    pub replay: &'a str,
    /// Hash of all that happened.
    pub trace: u64,
    /// The run in numbers.
    pub summary: &'a Summary,
    /// What was written down.
    pub recorder: &'a Recorder,
}

/// `summary.json`.
#[derive(Serialize)]
struct SummaryFile<'a> {
    scenario: &'a str,
    seed: u64,
    replay: &'a str,
    /// Hexadecimal: JSON's numbers do not hold 64 bits.
    trace: String,
    #[serde(flatten)]
    summary: &'a Summary,
}

impl Report<'_> {
    /// Writes all files into `directory`, which is made if it is not there. Files of those names are overwritten.
    ///
    /// # Errors
    /// What cannot be written or drawn.
    pub fn write(&self, directory: &Path) -> Result<(), ReportError> {
        let failed = |error: std::io::Error| ReportError::File { path: directory.to_owned(), what: error.to_string() };
        std::fs::create_dir_all(directory).map_err(failed)?;
        write_file(&directory.join("summary.json"), self.json()?.as_bytes())?;
        tables::write_all(self.recorder, directory)?;
        write_file(&directory.join("report.html"), self.html()?.as_bytes())
    }

    /// The text of `summary.json`.
    ///
    /// # Errors
    /// A number that JSON cannot hold.
    pub fn json(&self) -> Result<String, ReportError> {
        let file = SummaryFile {
            scenario: self.name,
            seed: self.seed,
            replay: self.replay,
            trace: format!("{:016x}", self.trace),
            summary: self.summary,
        };
        let json = serde_json::to_string_pretty(&file).map_err(|error| ReportError::Page(error.to_string()))?;
        Ok(json + "\n")
    }

    /// The text of `report.html`.
    ///
    /// # Errors
    /// A chart that cannot be drawn.
    pub fn html(&self) -> Result<String, ReportError> {
        let charts = figures::charts(self.recorder);
        let figures = charts.iter().map(|chart| Ok(context! { title => chart.title, svg => chart.svg()? }));
        let figures = figures.collect::<Result<Vec<Value>, ReportError>>()?;
        let failed = |error: minijinja::Error| ReportError::Page(format!("{error:#}"));
        let mut environment = Environment::new();
        environment.add_filter("time", |us: f64| Unit::Us.show(us));
        environment.add_filter("size", |bytes: f64| Unit::Bytes.show(bytes));
        environment.add_filter("rate", |bits_per_s: f64| Unit::BitsPerS.show(bits_per_s));
        environment.add_filter("number", |value: f64| Unit::Number.show(value));
        // The name's ending turns escaping on: the scenario is somebody's text.
        environment.add_template("report.html", PAGE).map_err(failed)?;
        let page = environment.get_template("report.html").map_err(failed)?;
        let filled = page.render(context! {
            name => self.name,
            scenario => self.scenario,
            seed => self.seed,
            replay => self.replay,
            trace => format!("{:016x}", self.trace),
            bin_us => self.recorder.bin_us(),
            run => Value::from(Serde(self.summary)),
            figures => figures,
        });
        filled.map_err(failed)
    }
}
