//! Applications beside the conversations: what the world needs of them.

use engine::Time;

use crate::trace::TraceHash;
use crate::violation::Checked;

/// What guests have seen in all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GuestCounts {
    /// Completions.
    pub completions: u64,
    /// Messages of unreliable services that arrived.
    pub arrived: u64,
    /// Connections that were made, and refused.
    pub connected: u64,
    /// Likewise.
    pub refused: u64,
    /// Attempts to connect that came to nothing.
    pub failed_attempts: u64,
}

impl GuestCounts {
    /// Adds another's.
    pub(crate) fn add(&mut self, other: &Self) {
        self.completions += other.completions;
        self.arrived += other.arrived;
        self.connected += other.connected;
        self.refused += other.refused;
        self.failed_attempts += other.failed_attempts;
    }
}

/// Two sides, on a host each.
pub(crate) trait Guest {
    /// The host of a side.
    fn host(&self, side: usize) -> usize;
    /// How long a side takes to notice something, ns.
    fn draw_delay(&mut self) -> u64;
    /// A side looks and goes on. When it wants to look again though nothing happens.
    fn step(&mut self, side: usize, now: Time) -> Checked<Option<Time>>;
    /// True if nothing more will happen by itself.
    fn is_done(&self) -> bool;
    /// What is not done.
    fn unfinished(&self) -> String;
    /// What must hold when nothing moves any more.
    fn check_at_rest(&mut self) -> Checked;
    /// Hash of what it saw.
    fn trace(&self) -> TraceHash;
    /// What it has seen.
    fn counts(&self) -> GuestCounts;
}
