//! The neighbours of one port: which MAC an IP address has, found and kept right by ARP
//! (RFC 826) or Neighbour Discovery (RFC 4861).
//!
//! Sans-IO, one table a port and shard. A path acquires its peer once ([`NeighTable::acquire`]), keeps the index, and reads the
//! MAC by it again when [`NeighOutcome::changed`] names it. States and terms are those of RFC 4861 7.3.2, the unicast poll is
//! RFC 1122 2.3.2.1's:
//!
//! ```text
//!              an answer                30 s, if in use              3 tries unanswered
//! Incomplete ------------> Reachable -------------------> Probe -------------------------> Incomplete
//!    |   ^                     ^                            |   (asks by unicast,             (asks all)
//!    |   | 5 s, if in use      +----------------------------+    the MAC stays in use)
//!    v   |                               an answer
//!   Failed   (3 tries unanswered)
//! ```

mod packet;

use core::net::{IpAddr, Ipv4Addr};

use wire::{ArpOperation, ArpRepr, MacAddr, NdpMessage, NdpRepr};

use crate::config::PortConfig;
use crate::time::Time;
pub use packet::is_neighbour_packet;
pub(crate) use packet::{NeighMessage, NeighPacket};

const SECOND_NS: u64 = 1_000_000_000;
/// How long a neighbour stays in use after somebody only wanted to know its MAC: longer than all tries take, and long enough
/// for a path to follow.
const QUERY_NS: u64 = 10 * SECOND_NS;
/// How long an answer is trusted (RFC 4861's REACHABLE_TIME).
const REACHABLE_NS: u64 = 30 * SECOND_NS;
/// How long a request waits for its answer: RFC 1122 2.3.2.1 allows one a second to each address, and RFC 4861's RETRANS_TIMER is as long.
const RETRANSMIT_NS: u64 = SECOND_NS;
/// How long a neighbour that does not answer is left alone.
const HOLD_OFF_NS: u64 = 5 * SECOND_NS;
/// Requests in a row that may stay unanswered.
const TRIES: u8 = 3;

/// What is known of a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NeighState {
    /// All are asked for it; no MAC.
    Incomplete {
        /// Requests sent.
        tries: u8,
    },
    /// Confirmed less than 30 s ago.
    Reachable,
    /// Longer ago; asked for by unicast, usable meanwhile.
    Probe {
        /// Requests sent.
        tries: u8,
    },
    /// Does not answer; no MAC.
    Failed,
    /// Set by the operator: never asked for, never changed by what comes in.
    Static,
}

/// Which neighbour: the same address in two VLANs is two of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct NeighKey {
    /// Its address.
    pub(crate) ip: IpAddr,
    /// Its VLAN.
    pub(crate) vlan: Option<u16>,
}

/// A request to be sent for an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NeighRequest {
    /// The neighbour asked for.
    pub(crate) target: NeighKey,
    /// Where the request goes: to the MAC that is to be confirmed, or to all if `None`.
    pub(crate) unicast: Option<MacAddr>,
}

/// What somebody who only wants to know a MAC is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Neighbour {
    /// It answered: its MAC.
    Known(MacAddr),
    /// It is being asked for: ask again.
    Asked,
    /// It did not answer.
    Failed,
}

/// What a packet of a neighbour led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct NeighOutcome {
    /// The reply to send.
    pub(crate) reply: Option<NeighPacket>,
    /// The packet claimed one of our addresses for another MAC, and was ignored.
    pub(crate) conflict: bool,
    /// The neighbour whose MAC is known since, or is another.
    pub(crate) changed: Option<u32>,
}

impl NeighOutcome {
    const CONFLICT: Self = Self { reply: None, conflict: true, changed: None };
}

/// Where a packet to a neighbour goes now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextHop {
    /// To this MAC.
    Known(MacAddr),
    /// Nowhere yet: it is being asked for.
    Asked {
        /// It did not answer the last time.
        again: bool,
    },
    /// Nowhere: it does not answer.
    Failed,
}

/// One neighbour.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: NeighKey,
    /// `Some` in the usable states, and only there.
    mac: Option<MacAddr>,
    state: NeighState,
    /// When the state ends.
    until: Time,
    use_count: u32,
    /// In use until then, whoever else uses it.
    kept_until: Time,
    /// It has not answered since it failed to.
    has_failed: bool,
}

impl Entry {
    fn is_used(&self, now: Time) -> bool {
        self.use_count > 0 || self.kept_until > now
    }

    /// Goes to `state` until `until`, and returns the request to send there.
    fn ask(&mut self, state: NeighState, until: Time) -> NeighRequest {
        self.state = state;
        self.until = until;
        NeighRequest { target: self.key, unicast: self.mac }
    }
}

/// The neighbours of one port.
#[derive(Clone, Debug)]
pub(crate) struct NeighTable {
    entries: Box<[Option<Entry>]>,
    /// Key and slot of every entry, by rising key. Its capacity is reserved.
    by_key: Vec<(NeighKey, u32)>,
    /// No entry needs a poll before this.
    next_poll: Time,
    /// The slot where the current round of polls goes on.
    cursor: usize,
}

impl NeighTable {
    /// A table for `capacity` neighbours. The only allocation.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            entries: vec![None; capacity].into_boxed_slice(),
            by_key: Vec::with_capacity(capacity),
            next_poll: Time::NEVER,
            cursor: 0,
        }
    }

    /// The index of a neighbour, which is asked for at the next poll if it is not known. Counts one use
    /// more, until [`release`](Self::release). `None` if the table is full of neighbours in use.
    ///
    /// Its address should be a unicast one on the port's own network.
    pub(crate) fn acquire(&mut self, key: NeighKey) -> Option<u32> {
        let slot = match self.find(key) {
            Some(slot) => slot,
            None => self.make_room_and_insert(key, NeighState::Incomplete { tries: 0 }, Time::ZERO)?,
        };
        self.entry_mut(slot).use_count += 1;
        Some(slot)
    }

    /// Takes one use back. A neighbour that nobody uses stays until its state ends or its room is needed, so that one that is
    /// acquired and released all the time is still asked for once a second at most.
    ///
    /// # Panics
    /// If the index has no use left: it was released more often than acquired.
    pub(crate) fn release(&mut self, index: u32) {
        let entry = self.entry_mut(index);
        assert!(entry.use_count > 0, "neighbour {} released once too often", entry.key.ip);
        entry.use_count -= 1;
    }

    /// The neighbour's MAC; `None` while it is not known, and once it has stopped to answer.
    #[inline]
    pub(crate) fn mac(&self, index: u32) -> Option<MacAddr> {
        self.entry(index).mac
    }

    /// True if it was asked for in vain, and is left alone for a while.
    pub(crate) fn has_failed(&self, index: u32) -> bool {
        self.entry(index).state == NeighState::Failed
    }

    /// Where packets to the neighbour go now.
    #[inline]
    pub(crate) fn next_hop(&self, index: u32) -> NextHop {
        let entry = self.entry(index);
        match (entry.mac, entry.state) {
            (Some(mac), _) => NextHop::Known(mac),
            (None, NeighState::Failed) => NextHop::Failed,
            (None, _) => NextHop::Asked { again: entry.has_failed },
        }
    }

    /// Fixes a neighbour's MAC: it is neither asked for nor changed. Returns its index, or `None` if the table is full of
    /// neighbours in use.
    pub(crate) fn insert_static(&mut self, key: NeighKey, mac: MacAddr) -> Option<u32> {
        let slot = match self.find(key) {
            Some(slot) => slot,
            None => self.make_room_and_insert(key, NeighState::Static, Time::NEVER)?,
        };
        let entry = self.entry_mut(slot);
        (entry.mac, entry.state, entry.until) = (Some(mac), NeighState::Static, Time::NEVER);
        Some(slot)
    }

    /// Takes what a packet to us says about its sender; a neighbour that is not in the table is added if there is room to
    /// spare. Returns the neighbour if its MAC was not known or was another. MACs and addresses that no single host can have
    /// are ignored.
    pub(crate) fn learn(&mut self, now: Time, key: NeighKey, mac: MacAddr) -> Option<u32> {
        if is_host(key.ip, mac) && self.find(key).is_none() {
            self.insert(key, NeighState::Incomplete { tries: 0 }, now)?;
        }
        self.update(now, key, mac)
    }

    /// The same for a neighbour that is in the table; others are ignored.
    fn update(&mut self, now: Time, key: NeighKey, mac: MacAddr) -> Option<u32> {
        let slot = self.find(key).filter(|_| is_host(key.ip, mac))?;
        let entry = self.entry_mut(slot);
        if entry.state == NeighState::Static {
            return None;
        }
        entry.state = NeighState::Reachable;
        entry.has_failed = false;
        entry.until = now.add_ns(REACHABLE_NS);
        let until = entry.until;
        let known = entry.mac.replace(mac);
        self.wake_at(until);
        (known != Some(mac)).then_some(slot)
    }

    /// Takes a neighbour's packet from the wire.
    ///
    /// A request to us may add a neighbour; what else comes only updates, so that what hosts say to each other fills no room.
    /// Requests are answered if the port answers at all. A packet that claims one of our addresses for another MAC is
    /// ignored (RFC 5227 2.4).
    pub(crate) fn handle_packet(&mut self, now: Time, packet: &NeighPacket, port: &PortConfig) -> NeighOutcome {
        match &packet.message {
            NeighMessage::Arp(arp) => self.handle_arp(now, packet.vlan, arp, port),
            NeighMessage::Ndp(ndp) if ndp.message == NdpMessage::Solicitation => {
                self.handle_solicitation(now, packet, ndp, port)
            }
            NeighMessage::Ndp(ndp) => self.handle_advertisement(now, packet.vlan, ndp, port),
        }
    }

    fn handle_arp(&mut self, now: Time, vlan: Option<u16>, arp: &ArpRepr, port: &PortConfig) -> NeighOutcome {
        let is_ours = |ip: Ipv4Addr| port.has_address(IpAddr::V4(ip), vlan);
        if arp.sender_mac == port.mac {
            // Our own, come back.
            return NeighOutcome::default();
        }
        if is_ours(arp.sender_ip) {
            return NeighOutcome::CONFLICT;
        }
        let asks_us = arp.operation == ArpOperation::Request && is_ours(arp.target_ip);
        let sender = NeighKey { ip: IpAddr::V4(arp.sender_ip), vlan };
        let changed =
            if asks_us { self.learn(now, sender, arp.sender_mac) } else { self.update(now, sender, arp.sender_mac) };
        // A probe has no sender address (RFC 5227 2.1.1): it is answered all the same.
        let is_answered = asks_us && port.answers_arp && !arp.sender_mac.is_multicast();
        let reply = is_answered.then_some(NeighPacket {
            mac: arp.sender_mac,
            vlan,
            message: NeighMessage::Arp(ArpRepr {
                operation: ArpOperation::Reply,
                sender_mac: port.mac,
                sender_ip: arp.target_ip,
                target_mac: arp.sender_mac,
                target_ip: arp.sender_ip,
            }),
        });
        NeighOutcome { reply, conflict: false, changed }
    }

    /// RFC 4861 7.2.3. Solicitations for others' addresses say nothing to us.
    fn handle_solicitation(
        &mut self,
        now: Time,
        packet: &NeighPacket,
        ndp: &NdpRepr,
        port: &PortConfig,
    ) -> NeighOutcome {
        let vlan = packet.vlan;
        // A host that asks by unicast may leave its MAC out.
        let sender_mac = ndp.link_layer.unwrap_or(packet.mac);
        if packet.mac == port.mac || sender_mac == port.mac || !port.has_address(IpAddr::V6(ndp.target), vlan) {
            return NeighOutcome::default();
        }
        if port.has_address(IpAddr::V6(ndp.src), vlan) {
            return NeighOutcome::CONFLICT;
        }
        let changed = ndp.link_layer.and_then(|mac| self.learn(now, NeighKey { ip: IpAddr::V6(ndp.src), vlan }, mac));
        let is_answered = port.answers_arp && !sender_mac.is_multicast();
        let reply = is_answered.then(|| NeighPacket::advertisement(port, ndp.target, vlan, (ndp.src, sender_mac)));
        // One who tries whether our address is free wants to have it (RFC 4862 5.4.3).
        NeighOutcome { reply, conflict: ndp.src.is_unspecified(), changed }
    }

    /// RFC 4861 7.2.5, without its state STALE: what does not override is not taken at all.
    fn handle_advertisement(&mut self, now: Time, vlan: Option<u16>, ndp: &NdpRepr, port: &PortConfig) -> NeighOutcome {
        let NdpMessage::Advertisement { solicited, override_known, .. } = ndp.message else {
            return NeighOutcome::default();
        };
        let target = NeighKey { ip: IpAddr::V6(ndp.target), vlan };
        if port.has_address(target.ip, vlan) {
            let is_own = ndp.link_layer == Some(port.mac);
            return if is_own { NeighOutcome::default() } else { NeighOutcome::CONFLICT };
        }
        let Some(slot) = self.find(target) else { return NeighOutcome::default() };
        let mac = match (self.entry(slot).mac, ndp.link_layer) {
            (None, told) => told,
            (Some(known), None) => solicited.then_some(known),
            (Some(known), Some(told)) => (known == told || override_known).then_some(told),
        };
        let changed = mac.and_then(|mac| self.update(now, target, mac));
        NeighOutcome { changed, ..NeighOutcome::default() }
    }

    /// What is known of a neighbour, for one who has no path yet: it is asked for if need be, and stays in use for a while.
    /// `None` if the table is full of neighbours in use.
    pub(crate) fn query(&mut self, now: Time, key: NeighKey) -> Option<Neighbour> {
        let slot = self.acquire(key)?;
        let entry = self.entry_mut(slot);
        entry.use_count -= 1;
        entry.kept_until = now.add_ns(QUERY_NS);
        Some(match (entry.mac, entry.state) {
            (Some(mac), _) => Neighbour::Known(mac),
            (None, NeighState::Failed) => Neighbour::Failed,
            (None, _) => Neighbour::Asked,
        })
    }

    /// When to call [`poll_request`](Self::poll_request) next, or a little earlier; [`Time::NEVER`] if there is nothing to
    /// wait for.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Time {
        self.next_poll
    }

    /// The next request to send. Call it until there is none.
    ///
    /// Cost: one comparison when nothing is due, else a walk over the table for each round.
    #[inline]
    pub(crate) fn poll_request(&mut self, now: Time) -> Option<NeighRequest> {
        if now < self.next_poll { None } else { self.poll_round(now) }
    }

    fn poll_round(&mut self, now: Time) -> Option<NeighRequest> {
        while self.cursor < self.entries.len() {
            let slot = self.cursor;
            self.cursor += 1;
            if self.entries[slot].is_some_and(|entry| entry.until <= now)
                && let Some(request) = self.poll_entry(now, slot as u32)
            {
                return Some(request);
            }
        }
        self.cursor = 0;
        let deadlines = self.entries.iter().flatten().map(|entry| entry.until);
        self.next_poll = deadlines.min().unwrap_or(Time::NEVER);
        None
    }

    /// What a neighbour does whose deadline has passed.
    fn poll_entry(&mut self, now: Time, slot: u32) -> Option<NeighRequest> {
        let retry_at = now.add_ns(RETRANSMIT_NS);
        let entry = self.entry_mut(slot);
        match entry.state {
            NeighState::Static => None,
            _ if !entry.is_used(now) => {
                self.remove(slot);
                None
            }
            NeighState::Reachable => Some(entry.ask(NeighState::Probe { tries: 1 }, retry_at)),
            NeighState::Probe { tries } if tries < TRIES => {
                Some(entry.ask(NeighState::Probe { tries: tries + 1 }, retry_at))
            }
            NeighState::Probe { .. } | NeighState::Failed => {
                entry.mac = None;
                Some(entry.ask(NeighState::Incomplete { tries: 1 }, retry_at))
            }
            NeighState::Incomplete { tries } if tries < TRIES => {
                Some(entry.ask(NeighState::Incomplete { tries: tries + 1 }, retry_at))
            }
            NeighState::Incomplete { .. } => {
                entry.state = NeighState::Failed;
                entry.has_failed = true;
                entry.until = now.add_ns(HOLD_OFF_NS);
                None
            }
        }
    }

    fn wake_at(&mut self, at: Time) {
        self.next_poll = self.next_poll.min(at);
    }

    fn entry(&self, slot: u32) -> &Entry {
        self.entries[slot as usize].as_ref().expect("an index is valid until it is released")
    }

    fn entry_mut(&mut self, slot: u32) -> &mut Entry {
        self.entries[slot as usize].as_mut().expect("an index is valid until it is released")
    }

    fn find(&self, key: NeighKey) -> Option<u32> {
        let at = self.by_key.binary_search_by_key(&key, |&(key, _)| key).ok()?;
        Some(self.by_key[at].1)
    }

    /// Adds a neighbour that is not in the table, in place of one that nobody uses if need be.
    fn make_room_and_insert(&mut self, key: NeighKey, state: NeighState, until: Time) -> Option<u32> {
        if self.by_key.len() == self.entries.len() {
            self.evict_idle()?;
        }
        self.insert(key, state, until)
    }

    /// Adds a neighbour that is not in the table, if there is a free slot.
    fn insert(&mut self, key: NeighKey, state: NeighState, until: Time) -> Option<u32> {
        let slot = self.entries.iter().position(Option::is_none)? as u32;
        let at = self.by_key.partition_point(|&(other, _)| other < key);
        self.by_key.insert(at, (key, slot));
        let entry = Entry { key, mac: None, state, until, use_count: 0, kept_until: Time::ZERO, has_failed: false };
        self.wake_at(until);
        self.entries[slot as usize] = Some(entry);
        Some(slot)
    }

    fn remove(&mut self, slot: u32) {
        if let Some(entry) = self.entries[slot as usize].take()
            && let Ok(at) = self.by_key.binary_search_by_key(&entry.key, |&(key, _)| key)
        {
            self.by_key.remove(at);
        }
    }

    /// Makes room by dropping a neighbour that nobody uses: the one that was confirmed the longest ago.
    fn evict_idle(&mut self) -> Option<()> {
        let idle = |entry: &Entry| entry.use_count == 0 && entry.state != NeighState::Static;
        let slots = self.entries.iter().zip(0_u32..);
        let candidates = slots.filter_map(|(entry, slot)| entry.as_ref().filter(|&e| idle(e)).map(|e| (e.until, slot)));
        let (_, slot) = candidates.min()?;
        self.remove(slot);
        Some(())
    }
}

/// Whether the pair can be a single host's: neither may be a group's or unset.
fn is_host(ip: IpAddr, mac: MacAddr) -> bool {
    let is_group = ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(ip.is_unspecified() || is_group || mac.is_multicast() || mac == MacAddr::ZERO)
}

#[cfg(test)]
mod tests;
