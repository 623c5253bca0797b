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
    /// Ours: the median of the seeds, and the least and the largest if there is more than one.
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
    seeds: Vec<u64>,
    runs: BTreeMap<String, Vec<Ran>>,
    packet_events: u64,
}

impl<'a> Study<'a> {
    /// Nothing has been run yet. `is_full`: at the larger scale, if the file has one. `seed_count`: with so many seeds, from 1 on,
    /// instead of those of the file.
    pub fn new(paper: &'a Paper, is_full: bool, seed_count: Option<u64>) -> Self {
        let seeds = seed_count.map_or_else(|| paper.seeds.clone(), |count| (1..=count).collect());
        Self { paper, is_full, seeds, runs: BTreeMap::new(), packet_events: 0 }
    }

    /// Seeds that every case is run with.
    pub fn seeds(&self) -> &[u64] {
        &self.seeds
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
            for &seed in &self.seeds {
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

    /// A number of a case: the median of its seeds.
    pub(super) fn measure(&mut self, metric: Metric, case: &str, at: &Table) -> Result<f64, PaperError> {
        self.numbers(metric, case, at).map(|numbers| Spread::of(numbers).median)
    }

    /// A number of a case, for each seed.
    fn numbers(&mut self, metric: Metric, case: &str, at: &Table) -> Result<Vec<f64>, PaperError> {
        let missing = || PaperError::Metric { case: case.to_owned(), metric: metric.name() };
        let numbers = self.runs(case, at)?.iter().map(|ran| metric.of(&ran.outcome, ran.host_count));
        let numbers = numbers.collect::<Option<Vec<f64>>>().filter(|numbers| !numbers.is_empty());
        numbers.ok_or_else(missing)
    }

    /// Runs what the checks need, and looks at it.
    ///
    /// # Errors
    /// A scenario that cannot be, or went wrong.
    pub fn check(&mut self) -> Result<Vec<CheckOutcome>, PaperError> {
        self.paper.check.iter().map(|check| self.check_one(check)).collect()
    }

    fn check_one(&mut self, check: &Check) -> Result<CheckOutcome, PaperError> {
        let own = self.numbers(check.metric, &check.case, &check.at)?;
        let (values, shown) = match &check.against {
            None => (own, check.metric.shown()),
            Some(against) => {
                let case = against.case.as_ref().unwrap_or(&check.case);
                let others = self.numbers(check.metric, case, against.at.as_ref().unwrap_or(&check.at))?;
                // Of the same seed, so that both have met the same flows.
                let values = own.into_iter().zip(others).map(|(own, other)| against.as_a.of(own, other));
                (values.collect(), against.as_a.shown())
            }
        };
        let is_one = values.len() == 1;
        let Spread { least, median: value, largest } = Spread::of(values);
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
            ours: if is_one {
                shown.text(value)
            } else {
                format!("{} ({} to {})", shown.text(value), shown.text(least), shown.text(largest))
            },
            tolerance,
            passes,
            why: check.why.clone().filter(|_| !passes),
        })
    }
}

/// Numbers of several seeds.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Spread {
    least: f64,
    median: f64,
    largest: f64,
}

impl Spread {
    /// Of at least one number. Between two in the middle the median is their mean.
    fn of(mut numbers: Vec<f64>) -> Self {
        numbers.sort_by(f64::total_cmp);
        let at = |index: usize| numbers.get(index).copied().unwrap_or(f64::NAN);
        let count = numbers.len();
        let median = (at(count.saturating_sub(1) / 2) + at(count / 2)) / 2.0;
        Self { least: at(0), median, largest: at(count.saturating_sub(1)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle() {
        let spread = |numbers: &[f64]| {
            let Spread { least, median, largest } = Spread::of(numbers.to_vec());
            [least, median, largest]
        };
        assert_eq!(spread(&[3.0]), [3.0; 3]);
        assert_eq!(spread(&[9.0, 1.0, 2.0]), [1.0, 2.0, 9.0]);
        assert_eq!(spread(&[4.0, 9.0, 1.0, 2.0]), [1.0, 3.0, 9.0]);
    }
}
