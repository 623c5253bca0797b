//! Paper files as they are written. Unknown keys are refused.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::{Table, Value};

use super::measure::{Metric, Shown};
use crate::report::{MAX_SERIES, Scale, Unit};
use crate::scenario::ScenarioError;

/// Why a paper file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum PaperError {
    /// It is not TOML, or has a key that there is not, or a value of the wrong kind.
    #[error("{0}")]
    Syntax(Box<toml::de::Error>),
    /// A key of the scenario that nothing can be put at.
    #[error("`{0}` is no key of a scenario: it is `table.key`, or `workload.0.key` for the first of a list")]
    Key(String),
    /// A case that there is not.
    #[error("there is no case `{0}`")]
    Case(String),
    /// A check that can't fail, or that says nothing.
    #[error("check `{0}` needs `low`, `high` or both, the first not larger")]
    Bounds(String),
    /// One of its scenarios cannot be.
    #[error("case `{case}`: {error}")]
    Scenario {
        /// Which case.
        case: String,
        /// Why.
        error: Box<ScenarioError>,
    },
    /// A run that went wrong, or did not end in its time.
    #[error("case `{case}`: {what}")]
    Run {
        /// Which case.
        case: String,
        /// What happened.
        what: String,
    },
    /// A number that the run does not have.
    #[error("case `{case}` has no {metric}")]
    Metric {
        /// Which case.
        case: String,
        /// What is not there.
        metric: &'static str,
    },
    /// A chart that could not be drawn, or written.
    #[error("{0}")]
    Report(#[from] crate::report::ReportError),
}

/// One published result.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// What it is called here.
    pub id: String,
    /// What was found.
    pub claim: String,
    /// By whom.
    pub source: String,
    /// How the set-up differs from the published one, with the usual scale.
    pub scale: String,
    /// The scenario that all cases share.
    pub(super) scenario: Table,
    /// Keys that `--full` sets, and what its scale is.
    pub(super) full: Option<Full>,
    /// Seeds that each case is run with; a number of it is the median.
    #[serde(default = "one_seed")]
    pub(super) seeds: Vec<u64>,
    /// Keys that each case sets.
    pub(super) case: BTreeMap<String, Table>,
    /// Pictures.
    #[serde(default)]
    pub(super) chart: Vec<ChartTable>,
    /// What should come out.
    pub(super) check: Vec<Check>,
}

fn one_seed() -> Vec<u64> {
    vec![1]
}

/// A larger scale.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Full {
    pub(super) scale: String,
    pub(super) set: Table,
}

/// A picture.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(super) enum ChartTable {
    /// A number of each case over a key that takes several values.
    Sweep(SweepChart),
    /// The goodput of each flow of one case over time.
    Rates(RatesChart),
}

#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SweepChart {
    /// Name of its file, without the ending.
    pub(super) file: String,
    pub(super) title: String,
    pub(super) x: SweepKey,
    pub(super) metric: Metric,
    pub(super) y_title: String,
    #[serde(default)]
    pub(super) y_scale: ScaleName,
    pub(super) cases: Vec<String>,
    /// More keys than the cases'.
    #[serde(default)]
    pub(super) at: Table,
    #[serde(default)]
    pub(super) published: Vec<PublishedSeries>,
}

/// What a sweep goes over.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SweepKey {
    pub(super) key: String,
    pub(super) values: Vec<Value>,
    /// Where each value is on the axis; the values themselves if it is not there.
    pub(super) at: Option<Vec<f64>>,
    pub(super) title: String,
    pub(super) unit: UnitName,
    /// What a value of the key is in the unit of the axis.
    #[serde(default = "one")]
    pub(super) factor: f64,
    #[serde(default)]
    pub(super) scale: ScaleName,
}

fn one() -> f64 {
    1.0
}

impl SweepKey {
    /// Each value of the key, and where it is on the axis.
    pub(super) fn points(&self) -> impl Iterator<Item = (&Value, f64)> {
        self.values.iter().enumerate().map(|(index, value)| {
            let given = self.at.as_ref().and_then(|at| at.get(index).copied());
            let own = || value.as_integer().map(|value| value as f64).or_else(|| value.as_float());
            // What is nowhere on an axis is not shown.
            (value, given.or_else(own).unwrap_or(f64::NAN) * self.factor)
        })
    }
}

#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RatesChart {
    pub(super) file: String,
    pub(super) title: String,
    pub(super) case: String,
    /// Only the first flows are drawn.
    #[serde(default = "all_series")]
    pub(super) flows: usize,
}

const fn all_series() -> usize {
    MAX_SERIES
}

/// What others have published: points in the units of the axes.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishedSeries {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ScaleName {
    #[default]
    Linear,
    Log,
}

impl From<ScaleName> for Scale {
    fn from(name: ScaleName) -> Self {
        match name {
            ScaleName::Linear => Self::Linear,
            ScaleName::Log => Self::Log,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum UnitName {
    Number,
    Part,
    Us,
    Bytes,
}

impl From<UnitName> for Unit {
    fn from(name: UnitName) -> Self {
        match name {
            UnitName::Number => Self::Number,
            UnitName::Part => Self::Part,
            UnitName::Us => Self::Us,
            UnitName::Bytes => Self::Bytes,
        }
    }
}

/// A number that should come out.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Check {
    pub(super) what: String,
    pub(super) metric: Metric,
    pub(super) case: String,
    /// More keys than the case's.
    #[serde(default)]
    pub(super) at: Table,
    /// Another run, whose number this one's is set against.
    pub(super) against: Option<Against>,
    /// The published number, in words where it is not one number.
    pub(super) published: String,
    /// The least that passes.
    pub(super) low: Option<f64>,
    /// The most that passes.
    pub(super) high: Option<f64>,
    /// Why ours differs, where it is known to.
    pub(super) why: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Against {
    /// The same case if it is not there.
    pub(super) case: Option<String>,
    /// Keys of that run, beside its case's; those of the check if they are not there.
    pub(super) at: Option<Table>,
    pub(super) as_a: Relation,
}

/// How two numbers are set against each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Relation {
    /// The first in parts of the second.
    Part,
    /// How many times the second the first is.
    Multiple,
    /// By how much the first is less, in parts of the second.
    Saving,
}

impl Relation {
    pub(super) fn of(self, value: f64, other: f64) -> f64 {
        match self {
            Self::Part | Self::Multiple => value / other,
            Self::Saving => 1.0 - value / other,
        }
    }

    pub(super) const fn shown(self) -> Shown {
        match self {
            Self::Part | Self::Saving => Shown::Part,
            Self::Multiple => Shown::Multiple,
        }
    }
}

impl Paper {
    /// Reads a file's text.
    ///
    /// # Errors
    /// Why it is of no use. What cannot be of its scenarios shows when they are run.
    pub fn parse(text: &str) -> Result<Self, PaperError> {
        let paper: Self = toml::from_str(text).map_err(|error| PaperError::Syntax(Box::new(error)))?;
        for check in &paper.check {
            let (low, high) = (check.low.unwrap_or(f64::NEG_INFINITY), check.high.unwrap_or(f64::INFINITY));
            if (check.low.is_none() && check.high.is_none()) || low > high {
                return Err(PaperError::Bounds(check.what.clone()));
            }
        }
        Ok(paper)
    }

    /// The scenario of a case, with more keys on top.
    pub(super) fn scenario_of(&self, case: &str, is_full: bool, at: &Table) -> Result<Table, PaperError> {
        let own = self.case.get(case).ok_or_else(|| PaperError::Case(case.to_owned()))?;
        let full = self.full.as_ref().filter(|_| is_full).map(|full| &full.set);
        let mut scenario = self.scenario.clone();
        for set in full.into_iter().chain([own, at]) {
            for (key, value) in set {
                put(&mut scenario, key, value.clone()).ok_or_else(|| PaperError::Key(key.clone()))?;
            }
        }
        Ok(scenario)
    }
}

/// Puts a value at a key of several parts, of which numbers are places in lists. `None` if there is no such place.
fn put(table: &mut Table, key: &str, value: Value) -> Option<()> {
    let (path, last) = key.rsplit_once('.')?;
    let mut parts = path.split('.');
    let mut place = table.entry(parts.next()?).or_insert_with(|| Value::Table(Table::new()));
    for part in parts {
        place = match place {
            Value::Array(list) => list.get_mut(part.parse::<usize>().ok()?)?,
            Value::Table(table) => table.entry(part).or_insert_with(|| Value::Table(Table::new())),
            _ => return None,
        };
    }
    place.as_table_mut()?.insert(last.to_owned(), value);
    Some(())
}
