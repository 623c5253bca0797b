//! Connection management for clients: ids and event channels of sessions, and the MADs that go to and from shards.
//!
//! Events wait here until the client takes them. What one id can have waiting is bounded by the calls that it took, and those are
//! refused while too many wait; a request of a peer that finds no room is refused in its turn.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use shm::control::AsyncEvent;
use shm::control::Reply;
use shm::control::cm::{CmEvent, CmEventType, CmReply, CmRequest, ConnParam, PortSpace};
use shm::wake::Notifier;
use wire::Qpn;
use wire::cm::{CaGuid, RejReason};

use super::session::Session;
use super::{Answered, Control, Refusal, errno, refuse};
use crate::cm::{Cm, CmConfig, CmId, CmRefusal, NextHop};
use crate::command::{Answer, Command, Shards};
use crate::config::{EngineConfig, PortConfig, eui64};
use crate::counters::CmCounters;
use crate::events::Event;
use crate::gsi::{IncomingMad, OutgoingMad};
use crate::neigh::Neighbour;
use crate::time::Time;

/// Events of one id that may wait: more than a connection from its address to its time wait brings about.
const EVENTS_PER_ID: u32 = 16;
/// Requests of peers that may wait in a channel, beside what listeners' backlogs allow.
const REQUESTS_PER_CHANNEL: usize = 4_096;
/// How often a neighbour is asked after.
const NEIGHBOUR_POLL_NS: u64 = 5_000_000;
/// How long a neighbour may be asked for at most, whatever the client says.
const RESOLVE_MS_MAX: u32 = 60_000;

impl From<CmRefusal> for Refusal {
    fn from(refusal: CmRefusal) -> Self {
        Self { errno: refusal.errno, message: refusal.message }
    }
}

/// What a session has of connection management.
#[derive(Default)]
pub(super) struct CmBook {
    channels: BTreeMap<u32, EventChannel>,
    ids: BTreeMap<u32, IdBook>,
}

/// An event channel.
struct EventChannel {
    notifier: Notifier,
    users: u32,
    events: VecDeque<CmEvent>,
}

/// An id, by its handle.
struct IdBook {
    id: CmId,
    channel: u32,
    /// Events of its that wait.
    waiting: u32,
}

impl CmBook {
    pub(super) fn has_handle(&self, handle: u32) -> bool {
        self.channels.contains_key(&handle) || self.ids.contains_key(&handle)
    }

    pub(super) fn id_count(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn channel_count(&self) -> usize {
        self.channels.len()
    }

    fn id(&self, handle: u32) -> Result<&IdBook, Refusal> {
        match self.ids.get(&handle) {
            Some(book) => Ok(book),
            None => refuse(errno::EINVAL, format!("CM id {handle} does not exist in this session")),
        }
    }

    fn channel(&mut self, handle: u32) -> Result<&mut EventChannel, Refusal> {
        match self.channels.get_mut(&handle) {
            Some(channel) => Ok(channel),
            None => refuse(errno::EINVAL, format!("event channel {handle} does not exist")),
        }
    }

    /// Puts an event of an id into the id's channel.
    fn push(&mut self, handle: u32, event: CmEvent) {
        let Some(book) = self.ids.get_mut(&handle) else { return };
        if let Some(channel) = self.channels.get_mut(&book.channel) {
            book.waiting += 1;
            channel.events.push_back(event);
            channel.notifier.notify();
        }
    }

    /// Takes the events of an id out of its channel, where they wait by its handle.
    fn take_events(&mut self, handle: u32) -> VecDeque<CmEvent> {
        let Some(book) = self.ids.get_mut(&handle) else { return VecDeque::new() };
        book.waiting = 0;
        let Some(channel) = self.channels.get_mut(&book.channel) else { return VecDeque::new() };
        let (taken, left) = channel.events.drain(..).partition(|event| event.id == handle);
        channel.events = left;
        taken
    }

    fn migrate(&mut self, handle: u32, channel: u32) {
        let events = self.take_events(handle);
        let Some(book) = self.ids.get_mut(&handle) else { return };
        let before = std::mem::replace(&mut book.channel, channel);
        if let Some(before) = self.channels.get_mut(&before) {
            before.users = before.users.saturating_sub(1);
        }
        if let Some(channel) = self.channels.get_mut(&channel) {
            channel.users += 1;
        }
        for event in events {
            self.push(handle, event);
        }
    }

    /// Requests to a listener that the client has not seen: their ids go where the listener goes.
    fn unseen_requests(&self, listener: u32) -> Vec<u32> {
        let events = self.channels.values().flat_map(|channel| &channel.events);
        events.filter(|event| event.listen_id == Some(listener)).map(|event| event.id).collect()
    }
}

/// A neighbour that an id waits for.
struct Resolving {
    hop: NextHop,
    next_poll: Time,
    until: Time,
}

/// The connection manager, and whose its ids are.
pub(super) struct CmDesk {
    cm: Cm,
    /// Session and handle of every id that has an owner.
    owners: BTreeMap<CmId, (u32, u32)>,
    resolving: BTreeMap<CmId, Resolving>,
    /// The latest time that was told.
    now: Time,
}

impl CmDesk {
    pub(super) fn new(config: &EngineConfig) -> Self {
        let limits = &config.limits;
        let cm_config = CmConfig {
            max_id: limits.max_cm_id,
            max_rd_atomic: limits.max_rd_atomic,
            selective: config.recovery.policy.is_selective(),
            ..CmConfig::default()
        };
        let guid = CaGuid(config.ports.first().map_or(0, |port| eui64(port.mac)));
        Self {
            cm: Cm::new(cm_config, guid, &config.ports),
            owners: BTreeMap::new(),
            resolving: BTreeMap::new(),
            now: Time::ZERO,
        }
    }

    /// Addresses or MTU of ports have changed.
    pub(super) fn set_ports(&mut self, ports: &[PortConfig]) {
        self.cm.set_ports(ports);
    }

    pub(super) fn counters(&self) -> &CmCounters {
        self.cm.counters()
    }

    /// An id of a session goes: its connection ends, and nobody hears of it any more.
    fn destroy(&mut self, id: CmId) {
        self.owners.remove(&id);
        self.resolving.remove(&id);
        self.cm.destroy_id(self.now, id);
    }
}

impl Control {
    /// Takes a MAD for QP1.
    pub(super) fn handle_cm_mad(&mut self, now: Time, mad: &IncomingMad) {
        self.cm.now = now;
        self.cm.cm.handle_mad(now, &mut *self.entropy, mad);
        self.deliver_cm_events(now);
    }

    /// The next MAD to send.
    pub(super) fn poll_cm_mad(&mut self) -> Option<OutgoingMad> {
        self.cm.cm.poll_transmit()
    }

    /// A sentence for the log, about a request of a peer that was refused without anybody else hearing of it. Call until `None`
    /// after [`Control::handle_mad`].
    pub fn poll_notice(&mut self) -> Option<String> {
        self.cm.cm.poll_notice()
    }

    /// When timers or neighbours are next to be looked at.
    pub(super) fn next_cm_deadline(&self) -> Time {
        let polls = self.cm.resolving.values().map(|resolving| resolving.next_poll).min();
        self.cm.cm.next_deadline().min(polls.unwrap_or(Time::NEVER))
    }

    /// Runs timers, and looks at neighbours.
    pub(super) fn handle_cm_timers<S: Shards>(&mut self, shards: &mut S, now: Time) {
        self.cm.now = now;
        self.cm.cm.handle_timers(now);
        let is_due = |(id, resolving): (&CmId, &Resolving)| (resolving.next_poll <= now).then_some(*id);
        let due: Vec<CmId> = self.cm.resolving.iter().filter_map(is_due).collect();
        for id in due {
            self.poll_neighbour(shards, now, id);
        }
        self.deliver_cm_events(now);
    }

    /// Looks at an event of a shard on its way to the client: data on a connection's QP says that the peer is ready.
    pub fn observe_event(&mut self, now: Time, event: &Event) {
        if let AsyncEvent::CommEst { qpn } = event.event {
            self.cm.now = now;
            self.cm.cm.comm_established(now, Qpn::new(qpn));
            self.deliver_cm_events(now);
        }
    }

    pub(super) fn cm_request<S: Shards>(
        &mut self,
        shards: &mut S,
        number: u32,
        session: &mut Session,
        now: Time,
        request: CmRequest,
    ) -> Result<Answered, Refusal> {
        self.cm.now = now;
        let reply = match request {
            CmRequest::CreateChannel => return create_event_channel(session),
            CmRequest::DestroyChannel { channel } => destroy_event_channel(session, channel)?,
            CmRequest::GetEvent { channel } => get_event(session, channel)?,
            CmRequest::CreateId { channel, port_space } => self.create_cm_id(number, session, channel, port_space)?,
            CmRequest::DestroyId { id } => self.destroy_cm_id(session, id)?,
            CmRequest::MigrateId { id, channel } => migrate(session, id, channel)?,
            CmRequest::ResolveAddr { id, src, dst, timeout_ms } => {
                self.resolve_cm_addr(shards, session, id, src, dst, timeout_ms)?
            }
            call => {
                let settles = match &call {
                    CmRequest::Accept { id, .. } | CmRequest::InitQpAttr { id, .. } => Some(*id),
                    _ => None,
                };
                let reply = self.cm_call(session, now, call)?;
                if let Some(id) = settles {
                    self.settle_ece(shards, session, id);
                }
                reply
            }
        };
        Ok((reply, Vec::new()))
    }

    /// The QP of an id whose connection has two ends, and whether they agreed to repeat selectively.
    pub(super) fn settled_qp(&self, session: &Session, handle: u32) -> Option<(Qpn, bool)> {
        self.cm.cm.settled_qp(session.cm.ids.get(&handle)?.id)
    }

    /// Only a QP of the user's own can be connected; it may be one of another session than the id's.
    fn require_own_qp(&self, session: &Session, param: &ConnParam) -> Result<(), Refusal> {
        let (qpn, uid) = (param.qp_num, session.peer.uid);
        // Without a QP: an accept that only says "ready", or a request for a datagram service.
        if qpn == 0 || session.qps.contains_key(&qpn) {
            return Ok(());
        }
        if self.sessions.values().any(|other| other.peer.uid == uid && other.qps.contains_key(&qpn)) {
            return Ok(());
        }
        refuse(errno::EINVAL, format!("QP {qpn:#08x} does not exist in a session of user {uid}"))
    }

    /// The calls that the connection manager answers by itself.
    fn cm_call(&mut self, session: &mut Session, now: Time, call: CmRequest) -> Result<Reply, Refusal> {
        if let CmRequest::Connect { param, .. } | CmRequest::Accept { param, .. } = &call {
            self.require_own_qp(session, param)?;
        }
        let cm = &mut self.cm.cm;
        let entropy = &mut *self.entropy;
        let id_of = |handle| session.cm.id(handle).map(|book| book.id);
        match call {
            CmRequest::BindAddr { id, addr } => {
                let id = id_of(id)?;
                cm.bind_addr(id, addr)?;
                return Ok(Reply::Cm(CmReply::Id(Box::new(cm.query_id(id)?))));
            }
            CmRequest::QueryId { id } => return Ok(Reply::Cm(CmReply::Id(Box::new(cm.query_id(id_of(id)?)?)))),
            CmRequest::InitQpAttr { id, qp_state } => {
                let id = id_of(id)?;
                let (attr, mask) = cm.init_qp_attr(id, qp_state)?;
                // The active side has named its QP by now, the passive side does when it accepts.
                self.post_mortems.set_peer(cm.peer_of(id));
                return Ok(Reply::Cm(CmReply::QpAttr { attr: Box::new(attr), mask }));
            }
            CmRequest::ResolveRoute { id, .. } => {
                require_room(session, id)?;
                cm.resolve_route(id_of(id)?)?;
            }
            CmRequest::Listen { id, backlog } => cm.listen(id_of(id)?, backlog)?,
            CmRequest::Connect { id, param } => {
                require_room(session, id)?;
                cm.connect(now, entropy, id_of(id)?, param)?;
            }
            CmRequest::Accept { id, param } => {
                let id = id_of(id)?;
                cm.accept(now, id, &param)?;
                self.post_mortems.set_peer(cm.peer_of(id));
            }
            CmRequest::Reject { id, private_data, reason } => {
                cm.reject(now, id_of(id)?, RejReason(reason), &private_data)?;
            }
            CmRequest::JoinMulticast { id, group } => {
                require_room(session, id)?;
                cm.join_multicast(id_of(id)?, group)?;
            }
            CmRequest::LeaveMulticast { id, group } => cm.leave_multicast(id_of(id)?, group)?,
            CmRequest::Notify { id } => cm.notify(now, id_of(id)?)?,
            CmRequest::Disconnect { id } => cm.disconnect(now, id_of(id)?)?,
            other => return refuse(errno::EINVAL, format!("{other:?} is no call of an id")),
        }
        Ok(Reply::Done)
    }

    fn create_cm_id(
        &mut self,
        number: u32,
        session: &mut Session,
        channel: u32,
        port_space: PortSpace,
    ) -> Result<Reply, Refusal> {
        self.check_share(session, "CM ids", self.config.limits.max_cm_id, |session| session.cm.id_count())?;
        session.cm.channel(channel)?;
        let id = self.cm.cm.create_id(wire_space(port_space))?;
        let handle = session.handle();
        session.cm.channel(channel)?.users += 1;
        session.cm.ids.insert(handle, IdBook { id, channel, waiting: 0 });
        self.cm.owners.insert(id, (number, handle));
        Ok(Reply::Handle(handle))
    }

    fn destroy_cm_id(&mut self, session: &mut Session, handle: u32) -> Result<Reply, Refusal> {
        session.cm.id(handle)?;
        let mut gone = session.cm.unseen_requests(handle);
        gone.push(handle);
        for handle in gone {
            session.cm.take_events(handle);
            let Some(book) = session.cm.ids.remove(&handle) else { continue };
            if let Some(channel) = session.cm.channels.get_mut(&book.channel) {
                channel.users = channel.users.saturating_sub(1);
            }
            self.cm.destroy(book.id);
        }
        Ok(Reply::Done)
    }

    /// The session goes: peers hear of it.
    pub(super) fn close_cm(&mut self, session: &mut Session) {
        for (_, book) in std::mem::take(&mut session.cm.ids) {
            self.cm.destroy(book.id);
        }
    }

    fn resolve_cm_addr<S: Shards>(
        &mut self,
        shards: &mut S,
        session: &mut Session,
        handle: u32,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout_ms: u32,
    ) -> Result<Reply, Refusal> {
        require_room(session, handle)?;
        let id = session.cm.id(handle)?.id;
        self.cm.resolving.remove(&id);
        match self.cm.cm.resolve_addr(id, src, dst)? {
            // A group's members answer to nobody.
            Some(_) if dst.ip().is_multicast() => self.cm.cm.addr_resolved(id),
            Some(hop) => {
                let now = self.cm.now;
                let until = now.add_ns(u64::from(timeout_ms.min(RESOLVE_MS_MAX)) * 1_000_000);
                self.cm.resolving.insert(id, Resolving { hop, next_poll: now, until });
                self.poll_neighbour(shards, now, id);
            }
            None => {}
        }
        Ok(Reply::Done)
    }

    /// Asks a shard whether the neighbour that an id waits for has answered.
    fn poll_neighbour<S: Shards>(&mut self, shards: &mut S, now: Time, id: CmId) {
        let Some(resolving) = self.cm.resolving.get_mut(&id) else { return };
        let NextHop { port, ip, vlan } = resolving.hop;
        // Shard 0 of all: each has a table of its own, and one is enough to know that somebody is there.
        let failure = match shards.command(0, Command::QueryNeighbour { port, ip, vlan }) {
            Answer::Neighbour(Neighbour::Known(_)) => None,
            Answer::Neighbour(Neighbour::Asked) if now < resolving.until => {
                resolving.next_poll = now.add_ns(NEIGHBOUR_POLL_NS);
                return;
            }
            Answer::Neighbour(Neighbour::Asked) => Some((errno::ETIMEDOUT, format!("{ip} has not answered in time"))),
            Answer::Neighbour(Neighbour::Failed) => {
                Some((errno::EHOSTUNREACH, format!("{ip} does not answer: is it in this network?")))
            }
            _ => Some((errno::ENOBUFS, format!("no room for {ip} in the neighbour table of port {}", port + 1))),
        };
        self.cm.resolving.remove(&id);
        match failure {
            None => self.cm.cm.addr_resolved(id),
            Some((errno, message)) => self.cm.cm.addr_error(id, -errno, message),
        }
    }

    /// Hands events to their owners.
    pub(super) fn deliver_cm_events(&mut self, now: Time) {
        while let Some((id, event)) = self.cm.cm.poll_event() {
            if event.event == CmEventType::ConnectRequest {
                self.deliver_request(now, id, event);
                continue;
            }
            let Some(&(number, handle)) = self.cm.owners.get(&id) else { continue };
            if let Some(session) = self.sessions.get_mut(&number) {
                session.cm.push(handle, CmEvent { id: handle, ..event });
            }
        }
    }

    /// Whether the user of a session may have one more id.
    fn has_share_left(&self, number: u32) -> bool {
        let Some(peer) = self.sessions.get(&number).map(|session| session.peer) else { return false };
        let of_user = self.sessions.values().filter(|session| session.peer.uid == peer.uid);
        let in_use = of_user.map(|session| session.cm.id_count()).sum();
        self.refuse_over_share(peer, "CM ids", self.config.limits.max_cm_id, in_use).is_ok()
    }

    /// A new id of whoever listens; if there is no room for it, the peer is refused.
    fn deliver_request(&mut self, now: Time, id: CmId, event: CmEvent) {
        let listener = event.listen_id.and_then(|listener| self.cm.owners.get(&CmId(listener))).copied();
        let taken = listener.filter(|&(number, _)| self.has_share_left(number)).and_then(|(number, listener)| {
            let session = self.sessions.get_mut(&number)?;
            let channel = session.cm.ids.get(&listener)?.channel;
            if session.cm.channels.get(&channel)?.events.len() >= REQUESTS_PER_CHANNEL {
                return None;
            }
            let handle = session.handle();
            session.cm.channels.get_mut(&channel)?.users += 1;
            session.cm.ids.insert(handle, IdBook { id, channel, waiting: 0 });
            session.cm.push(handle, CmEvent { id: handle, listen_id: Some(listener), ..event });
            Some((number, handle))
        });
        match taken {
            Some(owner) => {
                self.cm.owners.insert(id, owner);
            }
            None => {
                // Refused already if it is gone.
                let _ = self.cm.cm.reject(now, id, RejReason::NO_RESOURCES, &[]);
                self.cm.destroy(id);
            }
        }
    }
}

fn create_event_channel(session: &mut Session) -> Result<Answered, Refusal> {
    let (notifier, ends) = session.channel_ends()?;
    let handle = session.handle();
    session.cm.channels.insert(handle, EventChannel { notifier, users: 0, events: VecDeque::new() });
    Ok((Reply::Handle(handle), ends.into()))
}

fn destroy_event_channel(session: &mut Session, handle: u32) -> Result<Reply, Refusal> {
    let users = session.cm.channel(handle)?.users;
    if users > 0 {
        let message = format!("event channel {handle} is used by {users} ids: destroy or migrate them first");
        return refuse(errno::EBUSY, message);
    }
    session.cm.channels.remove(&handle);
    Ok(Reply::Done)
}

fn get_event(session: &mut Session, handle: u32) -> Result<Reply, Refusal> {
    let event = session.cm.channel(handle)?.events.pop_front();
    if let Some(book) = event.as_ref().and_then(|event| session.cm.ids.get_mut(&event.id)) {
        book.waiting = book.waiting.saturating_sub(1);
    }
    Ok(Reply::Cm(CmReply::Event(event.map(Box::new))))
}

/// Moves an id and its events, in their order; with a listener the requests that the client has not seen, and their ids.
fn migrate(session: &mut Session, handle: u32, channel: u32) -> Result<Reply, Refusal> {
    session.cm.id(handle)?;
    session.cm.channel(channel)?;
    let requests = session.cm.unseen_requests(handle);
    for handle in std::iter::once(handle).chain(requests) {
        session.cm.migrate(handle, channel);
    }
    Ok(Reply::Done)
}

/// An id whose events nobody takes gets no call that brings more of them.
fn require_room(session: &Session, handle: u32) -> Result<(), Refusal> {
    let waiting = session.cm.id(handle)?.waiting;
    if waiting < EVENTS_PER_ID {
        return Ok(());
    }
    refuse(errno::ENOBUFS, format!("{waiting} events of CM id {handle} wait: take them first"))
}

const fn wire_space(space: PortSpace) -> wire::cm::PortSpace {
    match space {
        PortSpace::Tcp => wire::cm::PortSpace::Tcp,
        PortSpace::Udp => wire::cm::PortSpace::Udp,
        PortSpace::Ib => wire::cm::PortSpace::Ib,
    }
}
