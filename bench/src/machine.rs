//! Facts about the machine and this process that belong beside a number.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use std::{fs, thread};

use serde::Serialize;

use crate::error::{PerfError, Result};
use crate::stats::median;

/// The cache-line measurement: the median of many short stretches, so that whoever else uses the cores spoils only some.
const STRETCHES: u64 = 101;
const ROUND_TRIPS_OF_STRETCH: u64 = 500;

/// What runs the benchmark.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    /// The processor's name.
    pub(crate) cpu: String,
    /// Cores that this process may use.
    pub(crate) cores: usize,
    /// How the program was built.
    pub(crate) build_profile: &'static str,
    /// Round trip of a cache line between the two cores in use, ns: two-core figures compare only where this is alike.
    pub(crate) cache_line_round_trip_ns: Option<f64>,
}

impl Machine {
    /// Asks the kernel; measures the cache-line round trip if `two_cores`.
    ///
    /// # Errors
    /// [`PerfError::Core`] when the kernel does not tell the cores.
    pub(crate) fn new(two_cores: bool) -> Result<Self> {
        let cores = pmd::available_cores()?;
        let cache_line_round_trip_ns = match cores[..] {
            [first, second, ..] if two_cores => Some(cache_line_round_trip_ns(first, second)?),
            _ => None,
        };
        let build_profile = if cfg!(debug_assertions) { "debug" } else { "release" };
        Ok(Self { cpu: cpu_model(), cores: cores.len(), build_profile, cache_line_round_trip_ns })
    }
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name"));
    name.and_then(|rest| rest.split_once(':')).map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned())
}

/// Two threads, each bound to a core, hand a word to and fro.
fn cache_line_round_trip_ns(first: usize, second: usize) -> Result<f64> {
    let word = Arc::new(AtomicU64::new(0));
    let total = STRETCHES * ROUND_TRIPS_OF_STRETCH;
    let theirs = Arc::clone(&word);
    let echo = thread::spawn(move || -> Result<()> {
        pmd::pin_current_thread(second)?;
        for turn in 0..total {
            wait_for(&theirs, 2 * turn + 1);
            // PAIRS WITH: the load in `wait_for`. The word itself is all that is handed over.
            theirs.store(2 * turn + 2, Ordering::Release);
        }
        Ok(())
    });
    let caller = thread::spawn(move || -> Result<f64> {
        // Where the kernel refuses, the other thread would wait for ever: it is told by the word all the same.
        let pinned = pmd::pin_current_thread(first);
        let (mut start, mut stretches) = (Instant::now(), Vec::new());
        for turn in 0..total {
            // PAIRS WITH: the load in `wait_for`.
            word.store(2 * turn + 1, Ordering::Release);
            wait_for(&word, 2 * turn + 2);
            if (turn + 1).is_multiple_of(ROUND_TRIPS_OF_STRETCH) {
                let now = Instant::now();
                stretches.push((now - start).as_nanos() as f64 / ROUND_TRIPS_OF_STRETCH as f64);
                start = now;
            }
        }
        pinned?;
        Ok(median(stretches))
    });
    let round_trip = caller.join().map_err(|_| PerfError::Thread("cache-line"))?;
    echo.join().map_err(|_| PerfError::Thread("cache-line"))??;
    round_trip
}

fn wait_for(word: &AtomicU64, value: u64) {
    let mut turns = 0_u32;
    // PAIRS WITH: the stores of `cache_line_round_trip_ns`.
    while word.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
        turns += 1;
        // Both threads may have been put on one core by other work on the machine.
        if turns.is_multiple_of(1 << 16) {
            thread::yield_now();
        }
    }
}

/// Bytes of memory that this process has in use; memory that it maps twice, as an embedded engine and its application do,
/// counts once. `None` where the kernel does not tell.
pub(crate) fn memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    kib_of(&text, "Pss:").map(|kib| kib * 1024)
}

fn kib_of(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.split_ascii_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_uses_memory_and_its_lines_are_read_by_name() {
        assert!(memory_bytes().unwrap() > 100_000);
        assert_eq!(kib_of("Rss:  12 kB\nPss:   7 kB\nPss_Dirty: 3 kB\n", "Pss:"), Some(7));
        assert_eq!(kib_of("", "Pss:"), None);
    }

    #[test]
    fn the_machine_has_a_name_and_cores() {
        let machine = Machine::new(true).unwrap();
        assert!(!machine.cpu.is_empty() && machine.cores >= 1);
        assert_eq!(machine.cache_line_round_trip_ns.is_some(), machine.cores >= 2);
        assert!(machine.cache_line_round_trip_ns.is_none_or(|ns| ns > 1.0));
    }
}
