//! The two coded times of the reliable transport.

use core::fmt;

/// Local ACK timeout code, 0..=31: 4.096 us * 2^code, and 0 for never (IBTA 9.9.2.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// The largest code.
    pub const MAX_CODE: u8 = 31;

    /// The timeout of a code; `None` above 31.
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code <= Self::MAX_CODE { Some(Self(code)) } else { None }
    }

    /// The code, 0..=31.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time in nanoseconds; `None` if the timer is off (code 0).
    #[inline]
    #[must_use]
    pub const fn duration_ns(self) -> Option<u64> {
        if self.0 == 0 { None } else { Some(4096 << self.0) }
    }
}

impl fmt::Display for AckTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// RNR NAK timer code, 0..=31: how long a requester waits before it tries again (IBTA 9.7.5.2.8).
///
/// Code 0 is the longest time, 655.36 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

/// The table's times, code by code, in units of 10 us.
const RNR_TEN_US: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048, 3_072,
    4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

impl RnrTimer {
    /// The largest code.
    pub const MAX_CODE: u8 = 31;

    /// The timer of a code; `None` above 31.
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code <= Self::MAX_CODE { Some(Self(code)) } else { None }
    }

    /// The timer in the low five bits of an AETH syndrome.
    #[inline]
    #[must_use]
    pub const fn from_syndrome_bits(syndrome: u8) -> Self {
        Self(syndrome & Self::MAX_CODE)
    }

    /// The code, 0..=31.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time in nanoseconds.
    #[inline]
    #[must_use]
    pub fn duration_ns(self) -> u64 {
        RNR_TEN_US.get(usize::from(self.0)).map_or(0, |&ten_us| u64::from(ten_us) * 10_000)
    }
}

impl fmt::Display for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The specification's table in its own unit, milliseconds.
    const RNR_MS: [f64; 32] = [
        655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92, 2.56, 3.84,
        5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
    ];

    #[test]
    fn rnr_timer_table_is_the_specifications() {
        for (code, ms) in (0..).zip(RNR_MS) {
            let timer = RnrTimer::new(code).unwrap();
            assert_eq!(timer.duration_ns() as f64, (ms * 1e6).round(), "code {code}");
            assert_eq!(timer.code(), code);
        }
        assert_eq!(RnrTimer::new(32), None);
    }

    #[test]
    fn ack_timeout_formula() {
        assert_eq!(AckTimeout::new(0).unwrap().duration_ns(), None);
        for code in 1..=31 {
            let ns = AckTimeout::new(code).unwrap().duration_ns().unwrap();
            assert_eq!(ns as f64, 4096.0 * 2f64.powi(code.into()), "code {code}");
        }
        assert_eq!(AckTimeout::new(14).unwrap().duration_ns(), Some(67_108_864));
        assert_eq!(AckTimeout::new(12).unwrap().duration_ns(), Some(16_777_216));
        assert_eq!(AckTimeout::new(32), None);
    }
}
