//! The charts of a paper file.

use toml::Table;

use super::file::{ChartTable, PaperError, RatesChart, SweepChart};
use super::study::{Drawing, Study};
use crate::report::{Axis, Chart, Look, Series, Unit};

impl Study<'_> {
    /// Runs what the charts need, and draws them.
    ///
    /// # Errors
    /// A scenario that cannot be, or went wrong; a chart that cannot be drawn.
    pub fn draw(&mut self) -> Result<Vec<Drawing>, PaperError> {
        let paper = self.paper;
        paper
            .chart
            .iter()
            .map(|chart| match chart {
                ChartTable::Sweep(sweep) => self.draw_sweep(sweep),
                ChartTable::Rates(rates) => self.draw_rates(rates),
            })
            .collect()
    }

    fn draw_sweep(&mut self, sweep: &SweepChart) -> Result<Drawing, PaperError> {
        let mut series = Vec::new();
        for case in &sweep.cases {
            let mut points = Vec::new();
            for (value, x) in sweep.x.points() {
                let mut at = sweep.at.clone();
                at.insert(sweep.x.key.clone(), value.clone());
                points.push((x, self.measure(sweep.metric, case, &at)?));
            }
            series.push(Series { name: case.clone(), look: Look::Measured, points });
        }
        for published in &sweep.published {
            let points = published.points.clone();
            series.push(Series { name: published.name.clone(), look: Look::Published, points });
        }
        let chart = Chart {
            title: &sweep.title,
            x: Axis { name: &sweep.x.title, unit: sweep.x.unit.into(), scale: sweep.x.scale.into() },
            y: Axis { name: &sweep.y_title, unit: sweep.metric.unit(), scale: sweep.y_scale.into() },
            series,
        };
        Ok(Drawing { file: sweep.file.clone(), title: sweep.title.clone(), svg: chart.svg()? })
    }

    fn draw_rates(&mut self, rates: &RatesChart) -> Result<Drawing, PaperError> {
        let runs = self.runs(&rates.case, &Table::new())?;
        let flows = runs.first().map(|ran| ran.outcome.recorder.rates()).unwrap_or_default();
        let series = flows.into_iter().take(rates.flows).map(|flow| Series {
            name: format!("flow {}", flow.flow),
            look: Look::Line,
            points: flow.points,
        });
        let chart = Chart {
            title: &rates.title,
            x: Axis::linear("Time", Unit::Us),
            y: Axis::linear("Goodput", Unit::BitsPerS),
            series: series.collect(),
        };
        Ok(Drawing { file: rates.file.clone(), title: rates.title.clone(), svg: chart.svg()? })
    }
}
