//! `Clock`: monotonic nanoseconds from the processor's time-stamp counter.

use crate::eal::Eal;

/// A monotonic clock that all threads of a process may read, counting nanoseconds from when it was made.
///
/// *Cost* of a reading: some ten nanoseconds; no call into DPDK or the kernel. Its rate is the one that DPDK measured at its start.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Origin,
    /// Nanoseconds in a tick, times 2^32.
    ns_per_tick: u64,
}

/// What a processor's counter said when the clock was made.
#[cfg(target_arch = "x86_64")]
type Origin = u64;
#[cfg(not(target_arch = "x86_64"))]
type Origin = std::time::Instant;

impl Clock {
    /// A clock that starts at 0 now.
    #[must_use]
    pub fn new(_: Eal) -> Self {
        // SAFETY: EAL is up, as the argument shows, and has measured the rate.
        let ticks_per_s = unsafe { ffi::rte_get_tsc_hz() }.max(1);
        let ns_per_tick = (1_000_000_000_u128 << 32) / u128::from(ticks_per_s);
        Self { origin: now(), ns_per_tick: u64::try_from(ns_per_tick).unwrap_or(u64::MAX) }
    }

    /// What the time-stamp counter said when the clock was made, and the nanoseconds in a tick, times 2^32: what another process needs
    /// to read the clock. `None` on processors whose counter this does not read.
    #[must_use]
    pub fn tsc(&self) -> Option<(u64, u64)> {
        #[cfg(target_arch = "x86_64")]
        let found = Some((self.origin, self.ns_per_tick));
        #[cfg(not(target_arch = "x86_64"))]
        let found = None;
        found
    }

    /// Nanoseconds since the clock was made.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        // Another core's counter may be behind by a few ticks: that is no time, not 500 years.
        let ticks = now().saturating_sub(self.origin);
        let ns = (u128::from(ticks) * u128::from(self.ns_per_tick)) >> 32;
        // 2^64 ns are 584 years: the upper half is empty.
        ns as u64
    }

    /// Nanoseconds since the clock was made.
    #[cfg(not(target_arch = "x86_64"))]
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn now() -> u64 {
    // SAFETY: reads a register; every x86-64 processor has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}
