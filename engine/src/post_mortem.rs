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
}

impl RetryMeter {
    pub(crate) const NEW: Self = Self {
        psn: Psn::new(0),
        since: Time::NEVER,
        counts: Retries { timeouts: 0, sequence_naks: 0, gaps: 0, rnr_naks: 0, waited_ns: 0 },
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

/// Round trip times of one QP: one packet is timed at a time, and none that was sent twice (Karn's rule).
#[derive(Clone, Copy, Debug)]
pub(crate) struct RttMeter {
    /// When the timed packet was sent; [`Time::NEVER`] if none is.
    sent: Time,
    /// The PSN after it.
    end: Psn,
    found: Rtt,
}

impl RttMeter {
    pub(crate) const NEW: Self =
        Self { sent: Time::NEVER, end: Psn::new(0), found: Rtt { smoothed_ns: 0, min_ns: u64::MAX, last_ns: 0 } };

    /// A packet was sent for the first time, which asks for an answer.
    #[inline]
    pub(crate) fn sent(&mut self, psn: Psn, now: Time) {
        if self.sent == Time::NEVER {
            (self.sent, self.end) = (now, psn.add(1));
        }
    }

    /// Everything before `una` is answered.
    #[inline]
    pub(crate) fn answered(&mut self, una: Psn, now: Time) {
        if self.sent != Time::NEVER && !una.is_before(self.end) {
            self.sample(now.ns_since(self.sent));
            self.sent = Time::NEVER;
        }
    }

    /// What is timed is about to be sent again: its answer would say nothing.
    #[inline]
    pub(crate) fn forget(&mut self) {
        self.sent = Time::NEVER;
    }

    /// RFC 6298 2.3, with alpha 1/8.
    fn sample(&mut self, ns: u64) {
        let found = &mut self.found;
        found.smoothed_ns =
            if found.min_ns == u64::MAX { ns } else { found.smoothed_ns - found.smoothed_ns / 8 + ns / 8 };
        found.min_ns = found.min_ns.min(ns);
        found.last_ns = ns;
    }

    /// The estimate, if there is any.
    pub(crate) fn estimate(&self) -> Option<Rtt> {
        (self.found.min_ns != u64::MAX).then_some(self.found)
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
    fn a_round_trip_is_timed_once_at_a_time_and_never_over_a_repeat() {
        let at = Time::from_ns;
        let mut meter = RttMeter::NEW;
        assert_eq!(meter.estimate(), None);
        meter.sent(Psn::new(Psn::MASK), at(1000));
        meter.sent(Psn::new(0), at(1500));
        meter.answered(Psn::new(Psn::MASK), at(1600));
        assert_eq!(meter.estimate(), None, "its own PSN is not answered yet");
        meter.answered(Psn::new(1), at(1800));
        assert_eq!(meter.estimate(), Some(Rtt { smoothed_ns: 800, min_ns: 800, last_ns: 800 }));
        meter.sent(Psn::new(5), at(2000));
        meter.forget();
        meter.answered(Psn::new(6), at(9000));
        meter.sent(Psn::new(6), at(10_000));
        meter.answered(Psn::new(7), at(11_600));
        assert_eq!(meter.estimate(), Some(Rtt { smoothed_ns: 900, min_ns: 800, last_ns: 1600 }));
    }

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
