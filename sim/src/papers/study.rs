//! The runs of a paper file, and what came of them.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Table;

use super::file::{Check, Paper, PaperError};
use super::measure::Metric;
use crate::scenario::{Outcome, Scenario, execute};

/// A scenario that was run.
pub(super) struct Ran {
    pub(super) outcome: Outcome,
    host_count: u16,
}

/// What came of a check.
#[derive(Clone, PartialEq, Debug)]
pub struct CheckOutcome {
    /// What was looked at.
    pub what: String,
    /// The published number.
    pub published: String,
    /// Ours.
    pub ours: String,
    /// What passes.
    pub tolerance: String,
    /// Whether ours does.
    pub passes: bool,
    /// Why ours differs, if it does and that is known.
    pub why: Option<String>,
}

impl CheckOutcome {
    /// It differs, and nobody knows why.
    pub fn is_surprise(&self) -> bool {
        !self.passes && self.why.is_none()
    }
}

/// A picture, ready to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drawing {
    /// Name of its file, without the ending.
    pub file: String,
    /// What it shows.
    pub title: String,
    /// The picture.
    pub svg: String,
}

/// A paper file and the runs that were needed so far: no scenario is run twice.
pub struct Study<'a> {
    pub(super) paper: &'a Paper,
    is_full: bool,
    runs: BTreeMap<String, Vec<Ran>>,
    packet_events: u64,
}

impl<'a> Study<'a> {
    /// Nothing has been run yet. `is_full`: at the larger scale, if the file has one.
    pub fn new(paper: &'a Paper, is_full: bool) -> Self {
        Self { paper, is_full, runs: BTreeMap::new(), packet_events: 0 }
    }

    /// How its set-up differs from the published one.
    pub fn scale(&self) -> &str {
        self.paper.full.as_ref().filter(|_| self.is_full).map_or(&self.paper.scale, |full| &full.scale)
    }

    /// Runs so far, and frames put on a link or come to its end in them.
    pub fn cost(&self) -> (usize, u64) {
        (self.runs.values().map(Vec::len).sum(), self.packet_events)
    }

    /// The runs of a case, one for each seed, with more keys on top.
    ///
    /// # Errors
    /// A scenario that cannot be, or went wrong.
    pub(super) fn runs(&mut self, case: &str, at: &Table) -> Result<&[Ran], PaperError> {
        let table = self.paper.scenario_of(case, self.is_full, at)?;
        let text = table.to_string();
        if !self.runs.contains_key(&text) {
            let refused = |error| PaperError::Scenario { case: case.to_owned(), error: Box::new(error) };
            let scenario = Scenario::parse(text.clone(), Path::new(".")).map_err(refused)?;
            let mut runs = Vec::new();
            for &seed in &self.paper.seeds {
                let failed = |what: String| PaperError::Run { case: case.to_owned(), what };
                let outcome =
                    execute(&scenario, seed, false, |_| {}).map_err(|violation| failed(violation.to_string()))?;
                self.packet_events += outcome.packet_events;
                runs.push(Ran { outcome, host_count: scenario.network.fabric.topology.host_count });
            }
            self.runs.insert(text.clone(), runs);
        }
        Ok(&self.runs[&text])
    }

    /// A number of a case: the mean over its seeds.
    pub(super) fn measure(&mut self, metric: Metric, case: &str, at: &Table) -> Result<f64, PaperError> {
        let missing = || PaperError::Metric { case: case.to_owned(), metric: metric.name() };
        let numbers = self.runs(case, at)?.iter().map(|ran| metric.of(&ran.outcome, ran.host_count));
        let numbers = numbers.collect::<Option<Vec<f64>>>().filter(|numbers| !numbers.is_empty());
        let numbers = numbers.ok_or_else(missing)?;
        Ok(numbers.iter().sum::<f64>() / numbers.len() as f64)
    }

    /// Runs what the checks need, and looks at it.
    ///
    /// # Errors
    /// A scenario that cannot be, or went wrong.
    pub fn check(&mut self) -> Result<Vec<CheckOutcome>, PaperError> {
        self.paper.check.iter().map(|check| self.check_one(check)).collect()
    }

    fn check_one(&mut self, check: &Check) -> Result<CheckOutcome, PaperError> {
        let own = self.measure(check.metric, &check.case, &check.at)?;
        let (value, shown) = match &check.against {
            None => (own, check.metric.shown()),
            Some(against) => {
                let case = against.case.as_ref().unwrap_or(&check.case);
                let other = self.measure(check.metric, case, against.at.as_ref().unwrap_or(&check.at))?;
                (against.as_a.of(own, other), against.as_a.shown())
            }
        };
        let tolerance = match (check.low, check.high) {
            (Some(low), Some(high)) => format!("{} to {}", shown.text(low), shown.text(high)),
            (Some(low), None) => format!("at least {}", shown.text(low)),
            (None, Some(high)) => format!("at most {}", shown.text(high)),
            (None, None) => String::new(),
        };
        // A number that is none is in no range.
        let passes =
            !value.is_nan() && check.low.is_none_or(|low| value >= low) && check.high.is_none_or(|high| value <= high);
        Ok(CheckOutcome {
            what: check.what.clone(),
            published: check.published.clone(),
            ours: shown.text(value),
            tolerance,
            passes,
            why: check.why.clone().filter(|_| !passes),
        })
    }
}
