//! Rounds: the same flows again and again. Written-down flows, incast and all-to-all are of this kind.

use engine::Time;

use super::Out;

/// A flow of each round.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundFlow {
    pub(super) hosts: (u16, u16),
    pub(super) bytes: u64,
    /// After the begin of the round.
    pub(super) offset_ns: u64,
}

/// When the next round begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spacing {
    /// So long after the end of the last flow of the one before.
    GapNs(u64),
    /// So long after the begin of the one before.
    PeriodNs(u64),
}

/// The pattern.
#[derive(Debug)]
pub(super) struct Rounds {
    pub(super) flows: Vec<RoundFlow>,
    pub(super) first: Time,
    /// Rounds that have not begun.
    pub(super) left: u32,
    pub(super) spacing: Spacing,
    /// Flows of this round that have not ended.
    pub(super) unfinished: usize,
}

/// The tag of the flow that brings the next round: the first, by position, of those that start with it.
const LEADER: u32 = 0;
const OTHER: u32 = 1;

impl Rounds {
    pub(super) fn begin(&mut self, out: &mut Out<'_>) {
        self.round(self.first, out);
    }

    fn round(&mut self, at: Time, out: &mut Out<'_>) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        self.unfinished += self.flows.len();
        for (position, flow) in self.flows.iter().enumerate() {
            let tag = if position == 0 { LEADER } else { OTHER };
            out.push(at.add_ns(flow.offset_ns), flow.hosts, flow.bytes, tag);
        }
    }

    pub(super) fn started(&mut self, tag: u32, at: Time, out: &mut Out<'_>) {
        if let (LEADER, Spacing::PeriodNs(period_ns)) = (tag, self.spacing) {
            self.round(at.add_ns(period_ns), out);
        }
    }

    pub(super) fn finished(&mut self, now: Time, out: &mut Out<'_>) {
        self.unfinished -= 1;
        if let (0, Spacing::GapNs(gap_ns)) = (self.unfinished, self.spacing) {
            self.round(now.add_ns(gap_ns), out);
        }
    }
}
