//! The clock that completions carry the time of, for the processes of the machine.

use serde::{Deserialize, Serialize};

/// How an engine's clock is read by its clients, without a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum DeviceClock {
    /// Only the engine can: a simulated one, or a processor without a counter that all read.
    #[default]
    Private,
    /// Nanoseconds by the time-stamp counter that all processors of the machine share (x86-64).
    Tsc {
        /// What it said when the clock was 0.
        origin: u64,
        /// Nanoseconds in a tick, times 2^32.
        ns_per_tick: u64,
    },
}

impl DeviceClock {
    /// The clock now, ns. `None` if it can't be read here.
    ///
    /// *Cost*: some ten nanoseconds; no system call.
    #[inline]
    pub fn now_ns(self) -> Option<u64> {
        match self {
            Self::Private => None,
            Self::Tsc { origin, ns_per_tick } => Some(ns_since(origin, ns_per_tick, ticks()?)),
        }
    }
}

/// The counter, where there is one.
#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> Option<u64> {
    // SAFETY: reads a register; every x86-64 processor has it.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> Option<u64> {
    None
}

/// Another core's counter may be behind by a few ticks: that is no time, not 500 years.
#[inline]
fn ns_since(origin: u64, ns_per_tick: u64, ticks: u64) -> u64 {
    let ns = (u128::from(ticks.saturating_sub(origin)) * u128::from(ns_per_tick)) >> 32;
    // 2^64 ns are 584 years: the upper half is empty.
    ns as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_nanoseconds_and_never_run_backwards() {
        // 2 GHz.
        let half = 1 << 31;
        assert_eq!(ns_since(1_000, half, 3_000), 1_000);
        assert_eq!(ns_since(1_000, half, 999), 0);
        // Ten years.
        assert_eq!(ns_since(0, half, 630_720_000_000_000_000), 315_360_000_000_000_000);
    }

    #[test]
    fn a_clock_of_the_engine_alone_can_not_be_read() {
        assert_eq!(DeviceClock::Private.now_ns(), None);
    }
}
