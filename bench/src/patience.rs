//! Waiting in a loop: noticing that nothing happens, and giving the core away where others need it.

use std::time::{Duration, Instant};

use crate::error::{PerfError, Result};

/// A run in which nothing arrives for so long has stalled.
const SILENCE: Duration = Duration::from_secs(20);
/// Empty turns between two looks at the clock.
const TURNS_PER_LOOK: u32 = 4096;
/// Empty turns before each further one offers the core to others.
const TURNS_BEFORE_YIELD: u32 = 2048;

/// Counts the empty turns of a loop.
#[derive(Debug)]
pub(crate) struct Patience {
    empty_turns: u32,
    silent_since: Option<Instant>,
}

impl Patience {
    /// Nothing has been waited for yet.
    pub(crate) const fn new() -> Self {
        Self { empty_turns: 0, silent_since: None }
    }

    /// Something happened.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.empty_turns = 0;
        self.silent_since = None;
    }

    /// Nothing happened in this turn.
    ///
    /// # Errors
    /// [`PerfError::Silent`] after many seconds of it.
    #[inline]
    pub(crate) fn empty_turn(&mut self) -> Result<()> {
        self.empty_turns = self.empty_turns.wrapping_add(1);
        if self.empty_turns < TURNS_BEFORE_YIELD { Ok(()) } else { self.long_wait() }
    }

    #[cold]
    fn long_wait(&mut self) -> Result<()> {
        std::thread::yield_now();
        if self.empty_turns.is_multiple_of(TURNS_PER_LOOK) {
            let since = *self.silent_since.get_or_insert_with(Instant::now);
            if since.elapsed() > SILENCE {
                return Err(PerfError::Silent(SILENCE.as_secs()));
            }
        }
        Ok(())
    }
}
