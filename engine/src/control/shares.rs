//! What one user may have of what all users share, so that nobody uses it up for the others.

use std::collections::BTreeSet;
use std::net::IpAddr;

use shm::attr::QpAttr;
use shm::segment::SegmentBudget;

use super::session::Session;
use super::{Control, Peer, Refusal, errno, refuse};

/// A neighbour as the tables of shards and ports have them: shard, port from 1, VLAN, address.
pub(super) type NeighbourKey = (u8, u8, Option<u16>, IpAddr);

impl Control {
    /// Refuses one more of a kind to a user whose sessions have its share of the `total`. The books of `session` are outside
    /// `self` at this time.
    pub(super) fn check_share(
        &self,
        session: &Session,
        what: &str,
        total: u32,
        count: impl Fn(&Session) -> usize,
    ) -> Result<(), Refusal> {
        let in_use: usize = self.sessions_of(session).map(count).sum();
        self.refuse_over_share(session.peer, what, total, in_use)
    }

    /// Refuses a QP another neighbour if its user's QPs have the share of them. Those that they have already cost nothing.
    pub(super) fn check_neighbour(&self, session: &Session, neighbour: &NeighbourKey) -> Result<(), Refusal> {
        let known = self.sessions_of(session).any(|s| s.neighbours.contains_key(neighbour));
        if known {
            return Ok(());
        }
        let &(shard, port, ..) = neighbour;
        let same_table = |key: &&NeighbourKey| (key.0, key.1) == (shard, port);
        let all: BTreeSet<&NeighbourKey> =
            self.sessions_of(session).flat_map(|s| s.neighbours.keys().filter(same_table)).collect();
        self.refuse_over_share(session.peer, "neighbours of a port", self.config.limits.max_neighbour, all.len())
    }

    /// Refuses a user a session beyond its share.
    pub(super) fn check_session_share(&self, peer: Peer) -> Result<(), Refusal> {
        let in_use = self.sessions.values().filter(|s| s.peer.uid == peer.uid).count();
        self.refuse_over_share(peer, "clients", self.config.limits.max_session, in_use)
    }

    /// Refuses a user who has `in_use` of the `total`, and so its share, one more.
    pub(super) fn refuse_over_share(&self, peer: Peer, what: &str, total: u32, in_use: usize) -> Result<(), Refusal> {
        let limits = &self.config.limits;
        let share = limits.user_share(total.into());
        // Where the share is everything, the limit of all says so itself.
        if (in_use as u64) < share || share >= u64::from(total) {
            return Ok(());
        }
        let (uid, percent) = (peer.uid, limits.user_share_percent);
        let message = format!(
            "user {uid} has {in_use} {what}: the limit user_share_percent = {percent} grants {share} of {total}"
        );
        refuse(errno::ENOMEM, message)
    }

    /// The sessions of a session's user, itself included.
    fn sessions_of<'a>(&'a self, session: &'a Session) -> impl Iterator<Item = &'a Session> {
        let others = self.sessions.values().filter(|s| s.peer.uid == session.peer.uid);
        others.chain(std::iter::once(session))
    }

    /// What the rings of a user's sessions may take together.
    pub(super) fn rings_of(&mut self, uid: u32) -> SegmentBudget {
        let limits = &self.config.limits;
        let share = limits.user_share(limits.ring_bytes_total);
        self.user_rings.entry(uid).or_insert_with(|| self.rings.part(share)).clone()
    }

    /// Forgets users without sessions.
    pub(super) fn forget_user(&mut self, uid: u32) {
        if !self.sessions.values().any(|s| s.peer.uid == uid) {
            self.user_rings.remove(&uid);
        }
    }

    /// The neighbour that a path takes up, if it leads to the wire.
    pub(super) fn neighbour_of(&self, shard: u8, attr: &QpAttr) -> Option<NeighbourKey> {
        let (port_num, ip) = (attr.ah_attr.port_num, attr.ah_attr.dgid.ip());
        let port = self.port(port_num).ok()?;
        let vlan = port.address(attr.ah_attr.sgid_index)?.vlan;
        (!port.has_address(ip, vlan)).then_some((shard, port_num, vlan, ip))
    }
}

impl Session {
    /// Books the neighbour of a QP, in place of the one that it had.
    pub(super) fn set_neighbour(&mut self, qpn: u32, neighbour: Option<NeighbourKey>) {
        let Some(book) = self.qps.get_mut(&qpn) else { return };
        if let Some(key) = std::mem::replace(&mut book.neighbour, neighbour)
            && let Some(users) = self.neighbours.get_mut(&key)
        {
            *users -= 1;
            if *users == 0 {
                self.neighbours.remove(&key);
            }
        }
        if let Some(key) = neighbour {
            *self.neighbours.entry(key).or_insert(0) += 1;
        }
    }

    /// QPs on a shard.
    pub(super) fn qp_count_on(&self, shard: u8) -> usize {
        let page = self.doorbells.get(usize::from(shard)).and_then(Option::as_ref);
        page.map_or(0, |page| page.indices.in_use() as usize) + self.xrc_qp_count_on(shard)
    }
}
