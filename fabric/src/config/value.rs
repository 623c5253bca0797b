//! Values with units, as files and flags have them.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A value as it is written: text with a unit, or a bare number.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Value {
    Text(String),
    Whole(i64),
    Real(f64),
    Bool(bool),
    List(Vec<Value>),
    Table(BTreeMap<String, Value>),
}

impl Value {
    /// As a flag has it; a list is joined by `+`, and so is a table of `KEY:VALUE`.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Whole(number) => number.to_string(),
            Self::Real(number) => number.to_string(),
            Self::Bool(is) => is.to_string(),
            Self::List(values) => values.iter().map(Self::text).collect::<Vec<_>>().join("+"),
            Self::Table(table) => {
                let entry = |(key, value): (&String, &Self)| format!("{key}:{}", value.text());
                table.iter().map(entry).collect::<Vec<_>>().join("+")
            }
        }
    }
}

/// Units of one quantity, the largest first, with how many of the smallest each is.
type Units = &'static [(&'static str, u64)];

/// Bits a second.
pub(super) const RATE: Units = &[("Gbps", 1_000_000_000), ("Mbps", 1_000_000), ("kbps", 1_000), ("bps", 1)];
/// Nanoseconds.
pub(super) const TIME: Units = &[("ms", 1_000_000), ("us", 1_000), ("ns", 1), ("s", 1_000_000_000)];
/// Bytes.
pub(super) const SIZE: Units =
    &[("MiB", 1 << 20), ("KiB", 1 << 10), ("MB", 1_000_000), ("KB", 1_000), ("kB", 1_000), ("B", 1)];

/// A quantity in its smallest unit; a bare number is in that unit. `None` if it is none, below 0, or not whole in it.
pub(super) fn quantity(text: &str, units: Units) -> Option<u64> {
    let (number, scale) = units
        .iter()
        .find_map(|&(unit, scale)| text.strip_suffix(unit).map(|number| (number.trim_end(), scale)))
        .unwrap_or((text, 1));
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale);
    }
    let value = number.parse::<f64>().ok()? * scale as f64;
    // Up to 2^53 every whole number has a value of its own.
    (value >= 0.0 && value.fract() == 0.0 && value <= (1u64 << 53) as f64).then_some(value as u64)
}

/// Frames of a million, from a probability (`1e-3`) or a percentage (`0.1%`). `None` if it is none.
pub(super) fn parts_per_million(text: &str) -> Option<u32> {
    let probability = match text.strip_suffix('%') {
        Some(percent) => percent.trim_end().parse::<f64>().ok()? / 100.0,
        None => text.parse::<f64>().ok()?,
    };
    let ppm = (probability * 1e6).round();
    // What is less than one in a million would silently be none.
    ((0.0..=1.0).contains(&probability) && (ppm > 0.0 || probability == 0.0)).then_some(ppm as u32)
}

/// In the largest unit that leaves no fraction.
pub(super) fn shown(value: u64, units: Units) -> String {
    let fitting = units.iter().filter(|&&(_, scale)| value >= scale && value.is_multiple_of(scale));
    let (unit, scale) = fitting.max_by_key(|&&(_, scale)| scale).copied().unwrap_or((units[units.len() - 1].0, 1));
    if value == 0 { "0".to_owned() } else { format!("{}{unit}", value / scale) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units_and_are_shown_as_they_are_read() {
        let rate = |text| quantity(text, RATE);
        assert_eq!(
            [rate("1Gbps"), rate("2.5Gbps"), rate("300 Mbps"), rate("7")],
            [1_000_000_000, 2_500_000_000, 300_000_000, 7].map(Some)
        );
        assert_eq!(
            [quantity("10us", TIME), quantity("1.5ms", TIME), quantity("2s", TIME)],
            [10_000, 1_500_000, 2_000_000_000].map(Some)
        );
        assert_eq!([quantity("64KiB", SIZE), quantity("1MB", SIZE)], [65_536, 1_000_000].map(Some));
        for text in ["", "fast", "-1us", "1.5ns", "NaN", "inf", "1e30s", "99999999999999999999"] {
            assert_eq!(quantity(text, TIME), None, "{text}");
        }
        for (value, units) in
            [(1_500_000, TIME), (1, TIME), (0, TIME), (3 << 20, SIZE), (1_000, SIZE), (40_000_000, RATE)]
        {
            assert_eq!(quantity(&shown(value, units), units), Some(value));
        }
        assert_eq!(shown(2_000_000_000, TIME), "2s");
    }

    #[test]
    fn probabilities_are_whole_parts_of_a_million() {
        assert_eq!(
            ["1e-3", "0.1%", "0.01", "1", "0", "1e-6"].map(parts_per_million),
            [1_000, 1_000, 10_000, 1_000_000, 0, 1].map(Some)
        );
        assert_eq!(["1e-8", "-0.1", "1.1", "101%", "often", "NaN"].map(parts_per_million), [None; 6]);
    }
}
