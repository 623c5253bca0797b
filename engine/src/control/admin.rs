//! What an operator asks: counters, lists, one QP in full.

use std::collections::BTreeMap;

use shm::attr::{AccessFlags, RecoveryPolicy};
use shm::control::{MrSummary, QpSummary, Reply, SessionSummary, Stats};
use wire::Qpn;

use super::session::{MrBook, Session};
use super::{Control, Peer, Refusal, errno, refuse};
use crate::command::{Answer, Command, Shards};
use crate::counters::{PortCounters, PriorityCounters, ShardCounters};
use crate::mr::MrEntry;
use crate::time::Time;
use crate::{QPN_INDEX_MASK, shard_of};

/// QPs on a page of a list: well within a message.
const QPS_PER_PAGE: usize = 256;
/// Regions on a page of a list.
const MRS_PER_PAGE: usize = 512;

impl Control {
    pub(super) fn stats<S: Shards>(&self, shards: &mut S, now: Time) -> Reply {
        let mut groups = Vec::new();
        let mut ports = vec![PortCounters::default(); self.config.ports.len()];
        for shard in 0..self.config.shard_count {
            let Answer::Counters(counters) = shards.command(shard, Command::Counters) else { continue };
            let (own, seen): (ShardCounters, Vec<PortCounters>) = *counters;
            for (sum, seen) in ports.iter_mut().zip(&seen) {
                sum.add(seen);
            }
            groups.push((format!("shard {shard}"), named(own.entries())));
        }
        for (port, number) in ports.iter().zip(1..) {
            groups.push((format!("port {number}"), named(port.entries())));
        }
        for (port, number) in (0..).zip(1..=ports.len()) {
            let counters = self.qos_state(shards, port).counters;
            // Most links use one or two of the eight.
            let used = (0..).zip(counters).filter(|(_, counters)| *counters != PriorityCounters::default());
            groups.extend(used.map(|(priority, counters): (u8, PriorityCounters)| {
                (format!("port {number} priority {priority}"), named(counters.entries()))
            }));
        }
        groups.push(("cm".to_owned(), named(self.cm.counters().entries())));
        let uptime_ms = now.ns_since(self.started) / 1_000_000;
        Reply::Stats(Stats { device: self.config.device_name.clone(), uptime_ms, groups })
    }

    /// QPNs of all sessions with their owners. The asking session's books are outside `self` at this time.
    fn all_qps(&self, number: u32, session: &Session) -> BTreeMap<u32, Peer> {
        debug_assert!(!self.sessions.contains_key(&number));
        let others = self.sessions.values().flat_map(|s| s.qps.keys().map(|&qpn| (qpn, s.peer)));
        others.chain(session.qps.keys().map(|&qpn| (qpn, session.peer))).collect()
    }

    pub(super) fn list_qps<S: Shards>(
        &self,
        shards: &mut S,
        number: u32,
        session: &Session,
        after: Option<u32>,
    ) -> Reply {
        let all = self.all_qps(number, session);
        let mut rest = all.into_iter().filter(|&(qpn, _)| after.is_none_or(|after| qpn > after)).peekable();
        let mut qps: Vec<QpSummary> = Vec::new();
        while qps.len() < QPS_PER_PAGE {
            let Some((qpn, peer)) = rest.next() else { break };
            if let Some(mut detail) = detail(shards, qpn) {
                detail.summary.pid = peer.pid;
                qps.push(detail.summary);
            }
        }
        Reply::Qps { qps, more: rest.peek().is_some() }
    }

    pub(super) fn qp_detail<S: Shards>(
        &self,
        shards: &mut S,
        number: u32,
        session: &Session,
        qpn: u32,
    ) -> Result<Reply, Refusal> {
        let owner = self.all_qps(number, session).get(&qpn).copied();
        // A number that nobody has may even name a shard that there is not.
        match owner.and_then(|peer| Some((peer, detail(shards, qpn)?))) {
            Some((peer, mut detail)) => {
                detail.summary.pid = peer.pid;
                Ok(Reply::QpDetail(detail))
            }
            None => refuse(errno::ENOENT, format!("QP {qpn:#08x} does not exist")),
        }
    }

    /// Changes how a QP of any session makes up for lost packets.
    pub(super) fn set_recovery<S: Shards>(
        &self,
        shards: &mut S,
        number: u32,
        session: &Session,
        qpn: u32,
        policy: RecoveryPolicy,
    ) -> Result<Reply, Refusal> {
        let all = self.sessions.values().chain(std::iter::once(session));
        debug_assert!(!self.sessions.contains_key(&number));
        let Some((owner, kind)) = all.filter_map(|s| Some((s.peer, s.qps.get(&qpn)?.kind))).next() else {
            return refuse(errno::ENOENT, format!("QP {qpn:#08x} does not exist"));
        };
        let asker = session.peer.uid;
        if asker != owner.uid && asker != 0 {
            return refuse(errno::EPERM, format!("QP {qpn:#08x} is another user's: its user and root may change it"));
        }
        if !kind.is_reliable() && policy.is_selective() {
            let message =
                format!("QP {qpn:#08x} is of {kind}: recovery `{policy}` is for RC and XRC, others lose what is lost");
            return refuse(errno::EINVAL, message);
        }
        match shards.command(shard_of(Qpn::new(qpn)), Command::SetRecovery { index: qpn & QPN_INDEX_MASK, policy }) {
            Answer::Done => Ok(Reply::Done),
            _ => refuse(errno::ENOENT, format!("QP {qpn:#08x} does not exist")),
        }
    }

    /// Regions of all sessions, a page of them.
    pub(super) fn list_mrs(&self, number: u32, session: &Session, after: Option<(u32, u32)>) -> Reply {
        let all = self.sessions.iter().map(|(&n, s)| (n, s)).chain(std::iter::once((number, session)));
        let regions = all.flat_map(|(n, s)| s.mrs.iter().map(move |(&key, book)| ((n, book.number), (key, s, book))));
        let sorted: BTreeMap<_, _> = regions.filter(|(place, _)| after.is_none_or(|after| *place > after)).collect();
        let more = sorted.len() > MRS_PER_PAGE;
        let line = |((session, number), (key, s, book)): (_, (_, &Session, &MrBook))| {
            let entry = self.mrs.get(key)?;
            let MrEntry { addr, length, .. } = *entry;
            let (tier, mapped_bytes) = entry.tier();
            let access = AccessFlags(entry.access.0 & AccessFlags::ALL.0);
            let (pid, pd) = (s.peer.pid, book.pd);
            Some(MrSummary { session, number, pid, pd, addr, length, access, tier, mapped_bytes })
        };
        Reply::Mrs { mrs: sorted.into_iter().take(MRS_PER_PAGE).filter_map(line).collect(), more }
    }

    pub(super) fn list_sessions(&self, number: u32, session: &Session) -> Reply {
        let own = std::iter::once((number, session));
        let mut all: Vec<SessionSummary> =
            self.sessions.iter().map(|(&n, s)| (n, s)).chain(own).map(|(n, s)| summary(n, s)).collect();
        all.sort_by_key(|s| s.session);
        Reply::Sessions(all)
    }
}

fn named(entries: impl Iterator<Item = (&'static str, u64)>) -> Vec<(String, u64)> {
    entries.map(|(name, value)| (name.to_owned(), value)).collect()
}

fn detail<S: Shards>(shards: &mut S, qpn: u32) -> Option<Box<shm::control::QpDetail>> {
    match shards.command(shard_of(Qpn::new(qpn)), Command::QpDetail { index: qpn & QPN_INDEX_MASK }) {
        Answer::QpDetail(detail) => Some(detail),
        _ => None,
    }
}

fn summary(number: u32, session: &Session) -> SessionSummary {
    SessionSummary {
        session: number,
        client_name: session.client_name.clone(),
        pid: session.peer.pid,
        uid: session.peer.uid,
        qp_count: session.qps.len() as u32,
        cq_count: session.cqs.len() as u32,
        mr_count: session.mrs.len() as u32,
        memory_bytes: session.memory_bytes,
        ring_bytes: session.segments.allocated_bytes(),
    }
}
