//! What a shard keeps of a QP that broke by itself: numbers only, of fixed size, in a queue whose memory is there from the
//! start. The control side fetches them and puts them into words ([`crate::control`]).

use std::collections::VecDeque;
use std::net::IpAddr;

use shm::attr::{QpAttr, QpState, QpType};
use shm::control::post_mortem::{FailedRequest, Psns, Retries, Rtt};
use wire::{MacAddr, OpKind, Psn};

use crate::cause::ErrorCause;
use crate::counters::QpCounters;
use crate::mr::MrFault;
use crate::time::Time;

/// The facts about the end of one QP.
#[derive(Clone, Copy, Debug)]
pub struct BreakRecord {
    pub(crate) at: Time,
    pub(crate) qpn: u32,
    pub(crate) dest_qpn: u32,
    pub(crate) session: u32,
    pub(crate) kind: QpType,
    /// The state that it broke in.
    pub(crate) state: QpState,
    pub(crate) cause: ErrorCause,
    pub(crate) attr: QpAttr,
    pub(crate) psns: Psns,
    pub(crate) last_nak: Option<(u8, Psn)>,
    pub(crate) retries: Retries,
    pub(crate) rtt: Option<Rtt>,
    /// When the peer's last packet came to it; [`Time::NEVER`] if none did.
    pub(crate) heard: Time,
    /// When a packet of the same peer last came to another QP of the shard; [`Time::NEVER`] if none did.
    pub(crate) others_heard: Time,
    pub(crate) path: Option<PathFacts>,
    pub(crate) request: Option<FailedRequest>,
    pub(crate) refused: Option<RefusedFacts>,
    pub(crate) counters: QpCounters,
}

/// Headers of a QP's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PathFacts {
    /// Port, from 0.
    pub(crate) port: u8,
    pub(crate) src_mac: MacAddr,
    /// `None` while the neighbour is not known.
    pub(crate) dst_mac: Option<MacAddr>,
    pub(crate) src_ip: IpAddr,
    pub(crate) dst_ip: IpAddr,
    pub(crate) local: bool,
    pub(crate) udp_src_port: u16,
    pub(crate) vlan: Option<u16>,
    pub(crate) path_mtu: u32,
    pub(crate) interface_mtu: u16,
}

/// An access of the peer that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RefusedFacts {
    pub(crate) operation: OpKind,
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) rkey: u32,
    /// What the table of regions says; `None` if key and range were right and the QP or the request was not.
    pub(crate) fault: Option<MrFault>,
}

/// Repeats since the last progress, and when the first transmission was that they repeat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryMeter {
    /// The oldest PSN without acknowledgement when they began.
    psn: Psn,
    since: Time,
    counts: Retries,
}

/// Why something is sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RetryKind {
    /// The acknowledgement timer, which ran for so many ns, fired.
    Timeout(u64),
    /// A sequence NAK came.
    SequenceNak,
    /// A READ or atomic was answered past its turn.
    Gap,
    /// An RNR NAK came.
    RnrNak,
    /// Packets were found lost one by one, and are sent again by themselves.
    Selective,
}

impl RetryMeter {
    pub(crate) const NEW: Self = Self {
        psn: Psn::new(0),
        since: Time::NEVER,
        counts: Retries { timeouts: 0, sequence_naks: 0, gaps: 0, rnr_naks: 0, selective: 0, waited_ns: 0 },
    };

    /// Counts one. `una` is the oldest PSN without acknowledgement: where it has moved on, counting starts anew.
    #[cold]
    pub(crate) fn note(&mut self, kind: RetryKind, una: Psn, now: Time) {
        if self.since == Time::NEVER || self.psn != una {
            let since = match kind {
                RetryKind::Timeout(ns) => Time::from_ns(now.as_ns().saturating_sub(ns)),
                _ => now,
            };
            *self = Self { psn: una, since, ..Self::NEW };
        }
        let count = match kind {
            RetryKind::Timeout(_) => &mut self.counts.timeouts,
            RetryKind::SequenceNak => &mut self.counts.sequence_naks,
            RetryKind::Gap => &mut self.counts.gaps,
            RetryKind::RnrNak => &mut self.counts.rnr_naks,
            RetryKind::Selective => &mut self.counts.selective,
        };
        *count = count.saturating_add(1);
    }

    /// The counts, if they are about the PSN that is the oldest now.
    pub(crate) fn counts(&self, una: Psn, now: Time) -> Retries {
        if self.since == Time::NEVER || self.psn != una {
            return Retries::default();
        }
        Retries { waited_ns: now.ns_since(self.since), ..self.counts }
    }
}

/// Records that wait to be fetched; when there is no room, the oldest goes.
#[derive(Debug)]
pub(crate) struct BreakQueue {
    records: VecDeque<BreakRecord>,
    capacity: usize,
    /// So many of the newest lack what only the shard can tell.
    incomplete: usize,
}

impl BreakQueue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { records: VecDeque::with_capacity(capacity), capacity, incomplete: 0 }
    }

    /// False if an older one was lost by it.
    pub(crate) fn push(&mut self, record: &BreakRecord) -> bool {
        let fits = self.records.len() < self.capacity;
        if !fits {
            self.records.pop_front();
        }
        if self.capacity > 0 {
            self.records.push_back(*record);
            self.incomplete = (self.incomplete + 1).min(self.capacity);
        }
        fits
    }

    /// True if [`BreakQueue::complete`] has something to do.
    #[inline]
    pub(crate) fn is_incomplete(&self) -> bool {
        self.incomplete > 0
    }

    /// Shows each record that was pushed since the last call.
    #[cold]
    pub(crate) fn complete(&mut self, fill: impl FnMut(&mut BreakRecord)) {
        let known = self.records.len().saturating_sub(self.incomplete);
        self.records.iter_mut().skip(known).for_each(fill);
        self.incomplete = 0;
    }

    /// All of them, oldest first.
    pub(crate) fn take(&mut self) -> Vec<BreakRecord> {
        self.incomplete = 0;
        self.records.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_count_from_the_first_transmission_without_progress() {
        let at = Time::from_ns;
        let (una, mut meter) = (Psn::new(7), RetryMeter::NEW);
        assert_eq!(meter.counts(una, at(5)), Retries::default());
        meter.note(RetryKind::Timeout(100), una, at(400));
        meter.note(RetryKind::SequenceNak, una, at(450));
        meter.note(RetryKind::Timeout(100), una, at(600));
        let counts = Retries { timeouts: 2, sequence_naks: 1, waited_ns: 400, ..Retries::default() };
        assert_eq!(meter.counts(una, at(700)), counts);
        meter.note(RetryKind::RnrNak, Psn::new(8), at(800));
        assert_eq!(meter.counts(una, at(900)), Retries::default());
        assert_eq!(meter.counts(Psn::new(8), at(900)), Retries { rnr_naks: 1, waited_ns: 100, ..Retries::default() });
    }
}
