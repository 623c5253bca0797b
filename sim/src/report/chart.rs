//! Charts of lines and points, as SVG: no picture, no font file, nothing that a reader has to fetch.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::ReportError;
use super::axis::{Axis, Ruler};

const WIDTH: u32 = 860;
const HEIGHT: u32 = 380;
/// At the right of the picture: lines never run under the names.
const LEGEND_WIDTH: u32 = 190;
const LEGEND_LINE: i32 = 20;
/// Names of series are cut there.
const MAX_NAME_CHARS: usize = 24;
/// Series of a chart, at most: more cannot be told apart.
pub const MAX_SERIES: usize = 14;

/// Colours that the colour-blind can tell apart (Okabe and Ito, 2008), without the yellow, which paper swallows.
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
];
const GREY: RGBColor = RGBColor(225, 225, 225);
const INK: RGBColor = RGBColor(40, 40, 40);

/// How a series is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// A line: many points, such as values over time.
    Line,
    /// A line with a marker at each point: few points, each a run.
    Measured,
    /// Hollow markers without a line: what others have published.
    Published,
}

/// Points of one kind.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// How it is drawn.
    pub look: Look,
    /// x and y, in the units of the axes, by rising x.
    pub points: Vec<(f64, f64)>,
}

/// A picture of several series: over time, or of runs side by side.
///
/// A comparison of runs is one with series of [`Look::Measured`] and, beside them, [`Look::Published`].
#[derive(Clone, PartialEq, Debug)]
pub struct Chart<'a> {
    /// What it shows.
    pub title: &'a str,
    /// To the right.
    pub x: Axis<'a>,
    /// Upwards.
    pub y: Axis<'a>,
    /// What is drawn, the most important last: it is on top. At most [`MAX_SERIES`].
    pub series: Vec<Series>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Ruler, Ruler>>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

impl Chart<'_> {
    /// The chart as an SVG element.
    ///
    /// # Errors
    /// Nothing to draw, or too many series.
    pub fn svg(&self) -> Result<String, ReportError> {
        let shown: Vec<Vec<(f64, f64)>> = self.series.iter().map(|series| self.shown(series)).collect();
        if self.series.len() > MAX_SERIES || shown.iter().all(Vec::is_empty) {
            let points = shown.iter().map(Vec::len).sum();
            return Err(ReportError::Chart { title: self.title.to_owned(), series: self.series.len(), points });
        }
        let mut svg = String::new();
        let drawn = self.draw(&SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area(), &shown);
        drawn.map_err(|error| ReportError::Drawing { title: self.title.to_owned(), what: error.to_string() })?;
        Ok(svg)
    }

    /// Writes the chart into an SVG file.
    ///
    /// # Errors
    /// As [`Self::svg`], or the file cannot be written.
    pub fn write_svg(&self, path: &Path) -> Result<(), ReportError> {
        super::write_file(path, self.svg()?.as_bytes())
    }

    fn shown(&self, series: &Series) -> Vec<(f64, f64)> {
        series.points.iter().copied().filter(|point| self.x.shows(point.0) && self.y.shows(point.1)).collect()
    }

    fn draw(&self, root: &Area<'_>, shown: &[Vec<(f64, f64)>]) -> Drawn {
        root.fill(&WHITE)?;
        // One series needs no name beside the title.
        let legend_width = if self.series.len() > 1 { LEGEND_WIDTH } else { 0 };
        let (picture, legend) = root.split_horizontally(WIDTH - legend_width);
        let x = Ruler::new(&self.x, shown.iter().flatten().map(|point| point.0));
        let y = Ruler::new(&self.y, shown.iter().flatten().map(|point| point.1));
        let (x_title, y_title) = (x.title(&self.x), y.title(&self.y));
        let (x_labels, y_labels) = (x.clone(), y.clone());
        let mut plot = ChartBuilder::on(&picture)
            .caption(self.title, ("sans-serif", 17).into_font().style(FontStyle::Bold).color(&INK))
            .margin(12)
            .margin_right(32)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d(x, y)?;
        plot.configure_mesh()
            .x_desc(x_title)
            .y_desc(y_title)
            .x_label_formatter(&|tick| x_labels.label(*tick))
            .y_label_formatter(&|tick| y_labels.label(*tick))
            .bold_line_style(GREY)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .label_style(("sans-serif", 13).into_font().color(&INK))
            .axis_desc_style(("sans-serif", 14).into_font().color(&INK))
            .draw()?;
        for (index, (series, points)) in self.series.iter().zip(shown).enumerate() {
            draw_series(&mut plot, series.look, index, points)?;
        }
        if legend_width > 0 { self.draw_legend(&legend) } else { Ok(()) }
    }

    fn draw_legend(&self, area: &Area<'_>) -> Drawn {
        for (index, series) in self.series.iter().enumerate() {
            // At most MAX_SERIES of them.
            let y = 52 + LEGEND_LINE * index as i32;
            if series.look != Look::Published {
                for (from, to) in if is_dashed(index) { vec![(0, 9), (15, 24)] } else { vec![(0, 24)] } {
                    area.draw(&PathElement::new(vec![(from, y), (to, y)], line_style(index)))?;
                }
            }
            if series.look != Look::Line {
                area.draw(&marker((12, y), index, series.look))?;
            }
            let cut = series.name.chars().count() > MAX_NAME_CHARS;
            let name: String = series.name.chars().take(MAX_NAME_CHARS).chain(cut.then_some('…')).collect();
            area.draw(&Text::new(name, (32, y - 7), ("sans-serif", 13).into_font().color(&INK)))?;
        }
        Ok(())
    }
}

fn color(index: usize) -> RGBColor {
    COLORS[index % COLORS.len()]
}

/// The second round of colours is dashed.
fn is_dashed(index: usize) -> bool {
    index >= COLORS.len()
}

fn line_style(index: usize) -> ShapeStyle {
    color(index).stroke_width(2)
}

/// Lines of more points are thin: they go up and down within their own width.
const THIN_POINTS: usize = 200;

fn draw_series(plot: &mut Plot<'_, '_>, look: Look, index: usize, points: &[(f64, f64)]) -> Drawn {
    if look != Look::Published {
        let style = if points.len() > THIN_POINTS { line_style(index).stroke_width(1) } else { line_style(index) };
        if is_dashed(index) {
            plot.draw_series(DashedLineSeries::new(points.iter().copied(), 9, 6, style))?;
        } else {
            plot.draw_series(LineSeries::new(points.iter().copied(), style))?;
        }
    }
    if look != Look::Line {
        plot.draw_series(points.iter().map(|&point| marker(point, index, look)))?;
    }
    Ok(())
}

/// Shapes tell the series apart where colours do not. What is published is hollow.
fn marker<'b, C: Clone + 'static>(at: C, index: usize, look: Look) -> DynElement<'static, SVGBackend<'b>, C> {
    match (look, index % 3) {
        (Look::Published, _) => Circle::new(at, 6, line_style(index)).into_dyn(),
        (_, 0) => Circle::new(at, 4, color(index).filled()).into_dyn(),
        (_, 1) => TriangleMarker::new(at, 6, color(index).filled()).into_dyn(),
        (_, _) => Cross::new(at, 4, line_style(index)).into_dyn(),
    }
}
