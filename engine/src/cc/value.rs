//! Values of parameters as people write them: `40Mbps`, `4us`, `32KiB`, `0.8`.

/// What a parameter's value counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Bits a second.
    Rate,
    /// Nanoseconds.
    Time,
    /// Bytes.
    Bytes,
    /// Just a number.
    Count,
    /// Hundredths.
    Percent,
    /// Parts of 1024.
    Per1024,
    /// A ratio, in thousandths.
    Ratio,
    /// Packets, in thousandths.
    Packets,
    /// 0 or 1.
    Switch,
}

/// Suffixes, the largest first, and the one to write before others of the same size; the last is what a bare number means.
const RATES: &[(&str, u64)] = &[
    ("Gbps", 1_000_000_000),
    ("Gbit", 1_000_000_000),
    ("Mbps", 1_000_000),
    ("Mbit", 1_000_000),
    ("kbps", 1_000),
    ("kbit", 1_000),
    ("bps", 1),
];
const TIMES: &[(&str, u64)] = &[("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];
const BYTES: &[(&str, u64)] =
    &[("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("MB", 1_000_000), ("kB", 1_000), ("B", 1)];

impl Unit {
    /// How tables name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rate => "bits/s",
            Self::Time => "time",
            Self::Bytes => "bytes",
            Self::Count => "count",
            Self::Percent => "percent",
            Self::Per1024 => "1/1024",
            Self::Ratio => "ratio",
            Self::Packets => "packets",
            Self::Switch => "switch",
        }
    }

    const fn suffixes(self) -> &'static [(&'static str, u64)] {
        match self {
            Self::Rate => RATES,
            Self::Time => TIMES,
            Self::Bytes => BYTES,
            Self::Percent => &[("%", 1)],
            Self::Per1024 => &[("/1024", 1)],
            Self::Ratio | Self::Packets => &[("", 1_000)],
            Self::Count | Self::Switch => &[("", 1)],
        }
    }

    /// A value as this unit is written: the shortest form that says it in full.
    pub fn format(self, value: u64) -> String {
        match self {
            Self::Switch => if value == 0 { "off" } else { "on" }.to_owned(),
            Self::Ratio | Self::Packets => {
                let text = format!("{}.{:03}", value / 1_000, value % 1_000);
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            }
            _ if value == 0 => "0".to_owned(),
            _ => {
                let whole = self.suffixes().iter().find(|(_, scale)| value.is_multiple_of(*scale));
                whole.map_or(value.to_string(), |(suffix, scale)| format!("{}{suffix}", value / scale))
            }
        }
    }

    /// The value that a text means. `None` if it is none, is no whole number of the smallest part, or does not fit.
    pub fn parse(self, text: &str) -> Option<u64> {
        let text = text.trim();
        if self == Self::Switch {
            return match text {
                "on" | "true" | "1" => Some(1),
                "off" | "false" | "0" => Some(0),
                _ => None,
            };
        }
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = (text.get(..end)?, text.get(end..)?.trim_start());
        let suffixes = self.suffixes();
        let scale = match suffix {
            "" => suffixes.last()?.1,
            _ => suffixes.iter().find(|(name, _)| name.eq_ignore_ascii_case(suffix))?.1,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || number.ends_with('.') || fraction.len() > 9 {
            return None;
        }
        let parts = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
        let fraction: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
        let scaled = whole.parse::<u64>().ok().map(u128::from)?.checked_mul(parts)? + fraction;
        let scaled = scaled.checked_mul(u128::from(scale))?;
        if scaled.is_multiple_of(parts) { u64::try_from(scaled / parts).ok() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Unit; 9] = [
        Unit::Rate,
        Unit::Time,
        Unit::Bytes,
        Unit::Count,
        Unit::Percent,
        Unit::Per1024,
        Unit::Ratio,
        Unit::Packets,
        Unit::Switch,
    ];

    #[test]
    fn values_are_read_as_people_write_them() {
        let cases = [
            (Unit::Rate, "40Mbps", Some(40_000_000)),
            (Unit::Rate, "2.5 gbps", Some(2_500_000_000)),
            (Unit::Rate, "1000000", Some(1_000_000)),
            (Unit::Rate, "5gbit", Some(5_000_000_000)),
            (Unit::Rate, "40MB", None),
            (Unit::Rate, "0.3bps", None),
            (Unit::Rate, "-1Mbps", None),
            (Unit::Time, "4us", Some(4_000)),
            (Unit::Time, "0.5us", Some(500)),
            (Unit::Time, "300000", Some(300_000)),
            (Unit::Time, "1.0000000001s", None),
            (Unit::Bytes, "32KiB", Some(32_768)),
            (Unit::Bytes, "10MB", Some(10_000_000)),
            (Unit::Ratio, "0.875", Some(875)),
            (Unit::Ratio, "1", Some(1_000)),
            (Unit::Ratio, "0.8751", None),
            (Unit::Packets, "16", Some(16_000)),
            (Unit::Percent, "50%", Some(50)),
            (Unit::Per1024, "1023/1024", Some(1_023)),
            (Unit::Count, "48", Some(48)),
            (Unit::Count, "", None),
            (Unit::Count, ".5", None),
            (Unit::Count, "5.", None),
            (Unit::Count, "1.2.3", None),
            (Unit::Count, "18446744073709551616", None),
            (Unit::Rate, "99999999999Gbps", None),
            (Unit::Switch, "on", Some(1)),
            (Unit::Switch, "2", None),
        ];
        for (unit, text, expected) in cases {
            assert_eq!(unit.parse(text), expected, "{unit:?} {text:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let values = [0, 1, 999, 1_000, 1_024, 1_500, 40_000_000, 2_500_000_000, 2_097_088, u64::MAX];
        for unit in ALL {
            for value in values.into_iter().filter(|&value| unit != Unit::Switch || value < 2) {
                assert_eq!(unit.parse(&unit.format(value)), Some(value), "{unit:?} {}", unit.format(value));
            }
        }
        assert_eq!(Unit::Rate.format(2_500_000_000), "2500Mbps");
        assert_eq!(Unit::Bytes.format(2_097_088), "2097088B");
        assert_eq!(Unit::Ratio.format(8), "0.008");
    }
}
