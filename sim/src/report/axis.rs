//! Axes of charts: scale, unit, ticks at round values.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// How values lie on an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Evenly, from 0 on.
    Linear,
    /// Each decade is as long as any other. Values of 0 and below are not shown.
    Log,
}

/// What values of an axis are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// A number.
    Number,
    /// A part of a whole, 0 to 1; shown as percent.
    Part,
    /// Microseconds.
    Us,
    /// Bytes.
    Bytes,
    /// Bits a second.
    BitsPerS,
}

impl Unit {
    /// Its steps from the smallest on: what one of them is in the unit, and its sign.
    const fn steps(self) -> &'static [(f64, &'static str)] {
        match self {
            Self::Number => &[(1.0, "")],
            Self::Part => &[(0.01, "%")],
            Self::Us => &[(1e-3, "ns"), (1.0, "µs"), (1e3, "ms"), (1e6, "s")],
            Self::Bytes => &[(1.0, "B"), (1e3, "KB"), (1e6, "MB"), (1e9, "GB")],
            Self::BitsPerS => &[(1.0, "b/s"), (1e3, "Kb/s"), (1e6, "Mb/s"), (1e9, "Gb/s"), (1e12, "Tb/s")],
        }
    }

    /// The largest step that is not above a value.
    fn step(self, value: f64) -> (f64, &'static str) {
        let steps = self.steps();
        // A rounding error below a step is that step.
        let reached = steps.iter().rev().find(|(size, _)| *size <= value.abs() * (1.0 + 1e-9));
        *reached.unwrap_or(&steps[0])
    }

    /// A value with its sign, in three digits or so: `1.25 ms`.
    pub fn show(self, value: f64) -> String {
        let (size, sign) = self.step(value);
        let digits = number(value / size);
        if sign.is_empty() { digits } else { format!("{digits} {sign}") }
    }
}

/// A number in three digits; very small and very large ones with an exponent.
fn number(value: f64) -> String {
    let size = value.abs();
    let text = match size {
        0.0 => return "0".to_owned(),
        _ if !(1e-3..1e5).contains(&size) => return exponent(value),
        _ if size < 0.1 => format!("{value:.4}"),
        _ if size < 1.0 => format!("{value:.3}"),
        _ if size < 10.0 => format!("{value:.2}"),
        _ if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn exponent(value: f64) -> String {
    let text = format!("{value:.2e}");
    match text.split_once('e') {
        Some((digits, exponent)) => format!("{}e{exponent}", digits.trim_end_matches('0').trim_end_matches('.')),
        None => text,
    }
}

/// What an axis shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Axis<'a> {
    /// What the values are of: `Flow size`.
    pub name: &'a str,
    /// Their unit.
    pub unit: Unit,
    /// How they lie.
    pub scale: Scale,
}

impl<'a> Axis<'a> {
    /// A linear axis.
    pub const fn linear(name: &'a str, unit: Unit) -> Self {
        Self { name, unit, scale: Scale::Linear }
    }

    /// A logarithmic axis.
    pub const fn log(name: &'a str, unit: Unit) -> Self {
        Self { name, unit, scale: Scale::Log }
    }

    /// Whether a value can be shown on it.
    pub(super) fn shows(&self, value: f64) -> bool {
        value.is_finite() && (self.scale == Scale::Linear || value > 0.0)
    }
}

/// An axis with its ends, as plotters wants it.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Ruler {
    unit: Unit,
    scale: Scale,
    ends: Range<f64>,
    ticks: Vec<f64>,
    /// One step of the unit, in which ticks of a linear axis are given.
    step: (f64, &'static str),
}

impl Ruler {
    /// A ruler for all of `values`, which the axis shows.
    pub(super) fn new(axis: &Axis<'_>, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values.fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
        let (ends, ticks) = match axis.scale {
            Scale::Linear if axis.unit == Unit::Part => (0.0..1.0, vec![0.0, 0.25, 0.5, 0.75, 1.0]),
            Scale::Linear => linear(high, axis.unit),
            Scale::Log => log(low.min(high), high),
        };
        Self { unit: axis.unit, scale: axis.scale, step: axis.unit.step(ends.end), ends, ticks }
    }

    /// The axis' name with the unit of its ticks.
    pub(super) fn title(&self, axis: &Axis<'_>) -> String {
        match (self.scale, self.step.1) {
            (Scale::Log, _) | (Scale::Linear, "") => axis.name.to_owned(),
            (Scale::Linear, sign) => format!("{} ({sign})", axis.name),
        }
    }

    pub(super) fn label(&self, tick: f64) -> String {
        match self.scale {
            // Decades look alike.
            Scale::Log if self.unit == Unit::Number && tick < 0.1 => exponent(tick),
            Scale::Log => self.unit.show(tick),
            Scale::Linear => number(tick / self.step.0),
        }
    }

    /// Where a value is between the ends: 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let value = value.clamp(self.ends.start, self.ends.end);
        match self.scale {
            Scale::Linear => (value - self.ends.start) / (self.ends.end - self.ends.start),
            Scale::Log => (value / self.ends.start).ln() / (self.ends.end / self.ends.start).ln(),
        }
    }
}

/// From 0 to a little above the largest value, with four to eight ticks that are 1, 2 or 5 of a decade.
fn linear(high: f64, unit: Unit) -> (Range<f64>, Vec<f64>) {
    let high = if high > 0.0 { high * 1.05 } else { unit.steps()[0].0 };
    let decade = 10.0_f64.powf((high / 4.0).log10().floor());
    let step = [5.0, 2.0, 1.0].map(|digit| digit * decade).into_iter().find(|step| high / step >= 4.0);
    let step = step.unwrap_or(decade);
    let ticks = (0..).map(|index| f64::from(index) * step).take_while(|tick| *tick <= high).collect();
    (0.0..high, ticks)
}

/// From the decade below the smallest value to that above the largest, or from and to digits between where those are few.
fn log(low: f64, high: f64) -> (Range<f64>, Vec<f64>) {
    let (low, high) = if low > 0.0 && high.is_finite() { (low, high) } else { (1.0, 10.0) };
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let is_few = decades.clone().count() <= 3;
    let is_many = decades.clone().count() > 9;
    let digits: &[f64] = match is_few {
        true if high < low * 3.0 => &[1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        true => &[1.0, 2.0, 5.0],
        false => &[1.0],
    };
    let all = decades.flat_map(|decade| digits.iter().map(move |digit| digit * 10.0_f64.powi(decade)));
    let all: Vec<f64> = all.collect();
    // The nearest ticks around the values are the ends.
    let first = all.iter().rposition(|tick| *tick <= low * (1.0 + 1e-9)).unwrap_or(0);
    let last = all.iter().position(|tick| *tick >= high * (1.0 - 1e-9)).unwrap_or(all.len() - 1);
    let last = last.max(first + 1).min(all.len() - 1);
    let first = first.min(last - 1);
    let every = if is_many { 2 } else { 1 };
    (all[first]..all[last], all[first..=last].iter().copied().step_by(every).collect())
}

impl Ranged for Ruler {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        // Pixels of a chart: far within an i32.
        limit.0 + (f64::from(limit.1 - limit.0) * self.place(*value)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // How many there are was decided already.
        if hint.max_num_points() == 0 { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.ends.clone()
    }
}

impl ValueFormatter<f64> for Ruler {
    fn format_ext(&self, value: &f64) -> String {
        self.label(*value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ruler(scale: Scale, unit: Unit, values: &[f64]) -> Ruler {
        Ruler::new(&Axis { name: "Size", unit, scale }, values.iter().copied())
    }

    fn labels(ruler: &Ruler) -> String {
        ruler.ticks.iter().map(|tick| ruler.label(*tick)).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn ticks_are_round_and_have_their_unit() {
        let shown = [
            (Scale::Linear, Unit::BitsPerS, &[3e9, 97.3e9][..]),
            (Scale::Linear, Unit::Us, &[0.0, 1_830.0]),
            (Scale::Linear, Unit::Bytes, &[0.0]),
            (Scale::Linear, Unit::Part, &[0.2, 0.9]),
            (Scale::Log, Unit::Us, &[3.4, 20_000.0]),
            (Scale::Log, Unit::Number, &[1e-5, 1e-2]),
            (Scale::Log, Unit::Number, &[1.1, 7.0]),
            (Scale::Log, Unit::Bytes, &[1_000.0]),
            (Scale::Log, Unit::Us, &[1_290.0, 1_380.0]),
            (Scale::Log, Unit::Number, &[90.0, 3e5]),
            (Scale::Log, Unit::Number, &[]),
        ];
        let shown = shown.map(|(scale, unit, values)| {
            let ruler = ruler(scale, unit, values);
            format!("{}: {}", ruler.title(&Axis { name: "Size", unit, scale }), labels(&ruler))
        });
        insta::assert_snapshot!(shown.join("\n"), @r"
        Size (Gb/s): 0, 20, 40, 60, 80, 100
        Size (ms): 0, 0.2, 0.4, 0.6, 0.8, 1, 1.2, 1.4, 1.6, 1.8
        Size (B): 0, 0.2, 0.4, 0.6, 0.8, 1
        Size (%): 0, 25, 50, 75, 100
        Size: 1 µs, 10 µs, 100 µs, 1 ms, 10 ms, 100 ms
        Size: 1e-5, 1e-4, 1e-3, 1e-2
        Size: 1, 2, 5, 10
        Size: 1 KB, 1.2 KB
        Size: 1.2 ms, 1.4 ms
        Size: 10, 100, 1000, 10000, 1e5, 1e6
        Size: 1, 2, 5, 10
        ");
    }

    #[test]
    fn values_are_shown_in_few_digits() {
        let shown = [
            Unit::Us.show(0.25),
            Unit::Us.show(1_249.9),
            Unit::Us.show(2e6),
            Unit::Bytes.show(65_536.0),
            Unit::BitsPerS.show(99_999_999_999.9),
            Unit::Part.show(0.128),
            Unit::Number.show(0.0),
            Unit::Number.show(1e-4),
            Unit::Number.show(123_456_789.0),
        ];
        insta::assert_snapshot!(shown.join(", "), @"250 ns, 1.25 ms, 2 s, 65.5 KB, 100 Gb/s, 12.8 %, 0, 1e-4, 1.23e8");
    }

    proptest! {
        #[test]
        fn every_value_lies_between_the_ends(values in prop::collection::vec(1e-9f64..1e12, 1..20), is_log: bool) {
            let ruler = ruler(if is_log { Scale::Log } else { Scale::Linear }, Unit::Number, &values);
            prop_assert!((2..=14).contains(&ruler.ticks.len()), "{:?}", ruler);
            for &value in &values {
                prop_assert!(ruler.ends.start <= value * (1.0 + 1e-9) && value <= ruler.ends.end * (1.0 + 1e-9), "{:?}", ruler);
                prop_assert!((0..=1_000).contains(&ruler.map(&value, (0, 1_000))));
            }
        }
    }
}
