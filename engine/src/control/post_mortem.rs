//! The store of post-mortems: what broke, kept after the QP and its client are gone, bounded, for their owner's user and root.

use std::collections::{BTreeMap, VecDeque};

use shm::control::Reply;
use shm::control::post_mortem::{LastNak, PAGE, PathSeen, PeerAttr, PostMortem, PostMortemSummary, RefusedAccess};
use wire::{Qpn, Syndrome};

use super::sentence::{operation_name, refusal_reason, sentence};
use super::session::Session;
use super::{Control, Peer, Refusal, errno, refuse};
use crate::command::{Answer, Command, Shards};
use crate::post_mortem::BreakRecord;
use crate::shard_of;
use crate::time::Time;

/// One post-mortem.
struct Kept {
    record: BreakRecord,
    owner: Peer,
    client_name: String,
    peer: Option<PeerAttr>,
    destroyed: bool,
}

/// The store.
#[derive(Default)]
pub(super) struct PostMortems {
    /// Oldest first.
    kept: VecDeque<Kept>,
    /// What connection managers learned of the peers of QPs that are there.
    peers: BTreeMap<u32, PeerAttr>,
}

impl PostMortems {
    /// Keeps what was agreed on with the peer of a QP, if anything was.
    pub(super) fn set_peer(&mut self, agreed: Option<(Qpn, PeerAttr)>) {
        if let Some((qpn, peer)) = agreed {
            self.peers.insert(qpn.value(), peer);
        }
    }

    fn add(&mut self, kept: Kept, limit: usize) {
        if self.kept.len() >= limit {
            self.kept.pop_front();
        }
        if limit > 0 {
            self.kept.push_back(kept);
        }
    }
}

impl Control {
    /// Fetches what broke on a shard. `session` are the books of session `number`, which are outside `self` at this time.
    fn fetch_breaks<S: Shards>(&mut self, shards: &mut S, shard: u8, number: u32, session: &Session) {
        let Answer::Breaks(records) = shards.command(shard, Command::TakeBreaks) else { return };
        for record in records {
            let books = if record.session == number { Some(session) } else { self.sessions.get(&record.session) };
            // A session's records are fetched before it goes.
            let Some(books) = books else { continue };
            let (owner, client_name) = (books.peer, books.client_name.clone());
            let peer = self.post_mortems.peers.get(&record.qpn).copied();
            let kept = Kept { record, owner, client_name, peer, destroyed: false };
            self.post_mortems.add(kept, self.config.limits.max_post_mortem as usize);
        }
    }

    /// Fetches what broke on every shard.
    pub(super) fn fetch_all_breaks<S: Shards>(&mut self, shards: &mut S, number: u32, session: &Session) {
        for shard in 0..self.config.shard_count {
            self.fetch_breaks(shards, shard, number, session);
        }
    }

    /// A QP is gone: its number may soon be another's. `broken`: it has left a record.
    pub(super) fn bury_qp<S: Shards>(
        &mut self,
        shards: &mut S,
        number: u32,
        session: &Session,
        qpn: u32,
        broken: bool,
    ) {
        if broken {
            self.fetch_breaks(shards, shard_of(Qpn::new(qpn)), number, session);
        }
        self.post_mortems.peers.remove(&qpn);
        self.post_mortems.kept.iter_mut().filter(|k| k.record.qpn == qpn).for_each(|kept| kept.destroyed = true);
    }

    /// Answers [`shm::control::Request::WhyQp`].
    pub(super) fn why_qp<S: Shards>(
        &mut self,
        shards: &mut S,
        number: u32,
        session: &Session,
        now: Time,
        qpn: u32,
    ) -> Result<Reply, Refusal> {
        self.fetch_all_breaks(shards, number, session);
        let mut of_qp = self.post_mortems.kept.iter().rev().filter(|kept| kept.record.qpn == qpn).peekable();
        if of_qp.peek().is_none() {
            return refuse(errno::ENOENT, format!("no QP {qpn:#08x} has broken by itself, as far as is remembered"));
        }
        match of_qp.find(|kept| may_read(session, kept)) {
            Some(kept) => Ok(Reply::PostMortem(Box::new(post_mortem(kept, now)))),
            None => refuse(errno::EPERM, format!("QP {qpn:#08x} was another user's: its user and root may read why")),
        }
    }

    /// Answers [`shm::control::Request::ListPostMortems`].
    pub(super) fn list_post_mortems<S: Shards>(
        &mut self,
        shards: &mut S,
        number: u32,
        session: &Session,
        now: Time,
    ) -> Reply {
        self.fetch_all_breaks(shards, number, session);
        let newest = self.post_mortems.kept.iter().rev().filter(|kept| may_read(session, kept));
        Reply::PostMortems(newest.take(PAGE).map(|kept| summary(kept, now)).collect())
    }
}

fn may_read(session: &Session, kept: &Kept) -> bool {
    session.peer.uid == 0 || session.peer.uid == kept.owner.uid
}

fn summary(kept: &Kept, now: Time) -> PostMortemSummary {
    let record = &kept.record;
    PostMortemSummary {
        qpn: record.qpn,
        qp_type: record.kind,
        dest_qpn: record.dest_qpn,
        peer: record.path.map_or_else(String::new, |path| path.dst_ip.to_string()),
        session: record.session,
        pid: kept.owner.pid,
        uid: kept.owner.uid,
        client_name: kept.client_name.clone(),
        age_ms: now.ns_since(record.at) / 1_000_000,
        destroyed: kept.destroyed,
        vendor_err: record.cause.code(),
        sentence: sentence(record),
    }
}

fn post_mortem(kept: &Kept, now: Time) -> PostMortem {
    let record = &kept.record;
    let ago = |at: Time| (at != Time::NEVER).then(|| record.at.ns_since(at));
    let path = record.path.map(|path| PathSeen {
        src_mac: path.src_mac,
        dst_mac: path.dst_mac.unwrap_or(wire::MacAddr::ZERO),
        src_ip: path.src_ip,
        dst_ip: path.dst_ip,
        local: path.local,
        udp_src_port: path.udp_src_port,
        traffic_class: record.attr.ah_attr.traffic_class,
        vlan: path.vlan,
        path_mtu: path.path_mtu,
        interface_mtu: path.interface_mtu,
    });
    let last_nak = record.last_nak.map(|(syndrome, psn)| LastNak {
        syndrome,
        text: Syndrome::from_byte(syndrome).to_string(),
        psn: psn.value(),
    });
    let refused = record.refused.map(|refused| RefusedAccess {
        operation: operation_name(refused.operation).to_owned(),
        addr: refused.addr,
        length: refused.length,
        rkey: refused.rkey,
        reason: refusal_reason(&refused).to_owned(),
    });
    PostMortem {
        summary: summary(kept, now),
        state: record.state,
        attr: record.attr,
        peer: kept.peer,
        psns: record.psns,
        last_nak,
        retries: record.retries,
        rtt: record.rtt,
        heard_ago_ns: ago(record.heard),
        others_heard_ago_ns: ago(record.others_heard),
        path,
        request: record.request,
        refused,
        counters: record.counters.entries().map(|(name, value)| (name.to_owned(), value)).collect(),
    }
}
