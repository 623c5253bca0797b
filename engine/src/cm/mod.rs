//! The connection manager: ids, the messages that connect them, and every timer (IBTA ch. 12), with the semantics of `librdmacm`.
//!
//! Sans-IO, and on the control side: [`control::Control`](crate::control::Control) owns one [`Cm`] for all sessions, so it may
//! allocate, and a storm of requests does not touch a lcore. Shards hand over the MADs that arrive on QP1, and send the ones
//! given to them.
//!
//! * Inputs: [`Cm::handle_mad`], [`Cm::handle_timers`] at [`Cm::next_deadline`], [`Cm::comm_established`], and the calls.
//! * Outputs, to be polled after every input: [`Cm::poll_transmit`], then [`Cm::poll_event`], then [`Cm::poll_notice`].
//!
//! # Differences from Linux
//!
//! * A DREQ is answered at once, and not when the application disconnects too: no peer has to repeat it.
//! * A DREQ, REJ or MRA counts only from the address that the connection is with.
//! * Times that a peer names are cut to minutes: its word must not keep our memory for hours.
//! * Two ids that connect to each other's port at the same time get one connection (IBTA 12.10.4).

mod call;
mod connect;
mod disconnect;
mod explain;
mod handle;
mod id;
mod mads;
mod multicast;
mod ports;
mod refusal;
mod request;
mod sidr;
mod state;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shm::attr::AhAttr;
use shm::attr::GidEntry;
use shm::control::cm::{CmEvent, CmEventType, CmIdInfo, ConnParam};
use wire::cm::{CaGuid, CmMessage, CommId, TransactionId};
use wire::{Gid, PathMtu, Qpn};

use crate::config::PortConfig;
use crate::counters::CmCounters;
use crate::gsi::{IncomingMad, OutgoingMad};
use crate::time::Time;
use id::{Id, Path};
use ports::PortTable;

pub use call::NextHop;
pub use refusal::CmRefusal;
pub use state::CmState;

/// MADs that may wait to be sent; more are dropped: what matters is sent again.
const TRANSMIT_QUEUE: usize = 4_096;
/// Sentences that may wait for the log.
const NOTICE_QUEUE: usize = 64;

/// Where random numbers come from: communication ids and first PSNs must not be guessed by strangers.
pub type Entropy<'a> = &'a mut dyn FnMut() -> u64;

/// An id (`rdma_cm_id`), for as long as the engine runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CmId(pub u32);

/// Settings of the connection manager. Times are exponents t of 4.096 us * 2^t.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmConfig {
    /// Ids of all sessions together, those in time wait included.
    pub max_id: u32,
    /// Requests that may wait for an answer on one listener, whatever it asks for.
    pub max_backlog: u32,
    /// How long a packet may be on its way. 16 (268 ms), as in Linux; 6.1 still had 18.
    pub packet_lifetime: u8,
    /// How long our QPs take to acknowledge at most.
    pub ack_delay: u8,
    /// How long either side may take to answer a message.
    pub response_timeout: u8,
    /// How often a message is sent again, 0 to 15.
    pub max_retries: u8,
    /// What we ask for by an MRA.
    pub service_timeout: u8,
    /// READs and atomics outstanding, either way.
    pub max_rd_atomic: u8,
    /// Our QPs can do selective repeat, and it is offered to peers.
    pub selective: bool,
}

impl Default for CmConfig {
    fn default() -> Self {
        Self {
            max_id: 65_536,
            max_backlog: 1_024,
            packet_lifetime: 16,
            ack_delay: 15,
            response_timeout: 20,
            max_retries: 15,
            service_timeout: 24,
            max_rd_atomic: 16,
            selective: false,
        }
    }
}

/// What the connection manager knows of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Port {
    gids: Vec<GidEntry>,
    mtu: PathMtu,
}

/// The connection manager of an engine.
#[derive(Debug)]
pub struct Cm {
    config: CmConfig,
    guid: CaGuid,
    ports: Vec<Port>,
    ids: BTreeMap<CmId, Box<Id>>,
    next_id: u32,
    next_transaction: u32,
    /// Ids by what we call their connection.
    by_comm: BTreeMap<CommId, CmId>,
    /// Ids by who called them what.
    by_remote_comm: BTreeMap<(CaGuid, CommId), CmId>,
    /// Ids by the QP of the peer, while it is connected or about to be.
    by_remote_qp: BTreeMap<(CaGuid, Qpn), CmId>,
    /// Ids by our QP, likewise.
    by_local_qp: BTreeMap<Qpn, CmId>,
    /// SIDR ids by who asks.
    by_sidr: BTreeMap<(Gid, CommId), CmId>,
    bound: PortTable,
    timers: BTreeSet<(Time, CmId)>,
    transmit: VecDeque<OutgoingMad>,
    events: VecDeque<(CmId, CmEvent)>,
    notices: VecDeque<String>,
    counters: CmCounters,
}

impl Cm {
    /// A connection manager without ids. `guid` names the device in the world.
    pub fn new(config: CmConfig, guid: CaGuid, ports: &[PortConfig]) -> Self {
        let mut cm = Self {
            config,
            guid,
            ports: Vec::new(),
            ids: BTreeMap::new(),
            next_id: 1,
            next_transaction: 1,
            by_comm: BTreeMap::new(),
            by_remote_comm: BTreeMap::new(),
            by_remote_qp: BTreeMap::new(),
            by_local_qp: BTreeMap::new(),
            by_sidr: BTreeMap::new(),
            bound: PortTable::default(),
            timers: BTreeSet::new(),
            transmit: VecDeque::new(),
            events: VecDeque::new(),
            notices: VecDeque::new(),
            counters: CmCounters::default(),
        };
        cm.set_ports(ports);
        cm
    }

    /// Addresses or MTU have changed. Connections stay as they are.
    pub fn set_ports(&mut self, ports: &[PortConfig]) {
        self.ports = ports.iter().map(|port| Port { gids: port.gids().collect(), mtu: port.active_mtu() }).collect();
    }

    /// The next MAD to send.
    pub fn poll_transmit(&mut self) -> Option<OutgoingMad> {
        self.transmit.pop_front()
    }

    /// The next event, with the id that it is for; of `CONNECT_REQUEST` that is the new one. `CmEvent::id` and `listen_id` are
    /// numbers of [`CmId`]s.
    pub fn poll_event(&mut self) -> Option<(CmId, CmEvent)> {
        self.events.pop_front()
    }

    /// A sentence for the log, about a request that was refused without anybody else hearing of it.
    pub fn poll_notice(&mut self) -> Option<String> {
        self.notices.pop_front()
    }

    /// When [`handle_timers`](Self::handle_timers) is next needed.
    pub fn next_deadline(&self) -> Time {
        self.timers.first().map_or(Time::NEVER, |&(at, _)| at)
    }

    /// What was sent, received, and not done.
    pub fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// Ids that exist, those in time wait included.
    pub fn id_count(&self) -> usize {
        self.ids.len()
    }

    /// Where an id stands.
    pub fn state(&self, id: CmId) -> Option<CmState> {
        self.ids.get(&id).map(|id| id.state)
    }

    /// A number for a new exchange of ours.
    fn transaction(&mut self) -> TransactionId {
        self.next_transaction = self.next_transaction.wrapping_add(1);
        TransactionId(u64::from(self.next_transaction))
    }

    /// A communication id that no connection has.
    fn new_comm(&self, entropy: Entropy<'_>) -> CommId {
        // There are far fewer ids than numbers: a few tries are enough.
        loop {
            let [a, b, c, d, ..] = entropy().to_be_bytes();
            let comm = CommId(u32::from_be_bytes([a, b, c, d]));
            if comm.0 != 0 && !self.by_comm.contains_key(&comm) {
                return comm;
            }
        }
    }

    /// Puts a MAD into the queue to the shards.
    fn send(&mut self, path: &Path, mad: [u8; crate::gsi::MAD_BYTES]) {
        if self.transmit.len() >= TRANSMIT_QUEUE {
            self.counters.tx_cm_lost += 1;
            return;
        }
        self.counters.tx_cm_messages += 1;
        self.transmit.push_back(OutgoingMad { ah: path.mad_ah(), bytes: mad });
    }

    /// Answers a MAD of which no id is to know.
    fn answer(&mut self, mad: &IncomingMad, transaction: TransactionId, message: &CmMessage) {
        let path = Path::back_to(mad, self.gid(mad.port, mad.sgid_index));
        self.send(&path, message.to_mad(transaction));
    }

    fn gid(&self, port: u8, index: u8) -> Gid {
        let gids = self.ports.get(usize::from(port)).map(|port| port.gids.as_slice()).unwrap_or_default();
        let entry = gids.iter().find(|entry| entry.index == u32::from(index));
        entry.map_or(Gid::ZERO, |entry| entry.gid)
    }

    /// Says something to the log.
    fn notice(&mut self, sentence: String) {
        if self.notices.len() >= NOTICE_QUEUE {
            self.counters.cm_notices_lost += 1;
        } else {
            self.notices.push_back(sentence);
        }
    }

    /// Tells the owner of an id something, unless it has none any more.
    fn event(&mut self, id: CmId, event: CmEventType, status: i32, param: ConnParam, message: String) {
        let Some(entry) = self.ids.get(&id).filter(|entry| !entry.is_orphan) else { return };
        let listen_id = (event == CmEventType::ConnectRequest).then(|| entry.listener.map(|id| id.0)).flatten();
        let ah = entry.datagram_ah(event);
        let info = entry.info();
        self.events.push_back((id, CmEvent { event, id: id.0, listen_id, status, param, ah, info, message }));
    }

    /// Tells the owner of an id where to send.
    fn event_to(&mut self, id: CmId, event: CmEventType, param: ConnParam, ah: Option<AhAttr>) {
        let Some(entry) = self.ids.get(&id) else { return };
        let (info, listen_id, message) = (entry.info(), None, String::new());
        self.events.push_back((id, CmEvent { event, id: id.0, listen_id, status: 0, param, ah, info, message }));
    }

    /// Sets or clears (`Time::NEVER`) an id's timer.
    fn set_timer(&mut self, id: CmId, at: Time) {
        let Some(entry) = self.ids.get_mut(&id) else { return };
        let before = std::mem::replace(&mut entry.deadline, at);
        if before != Time::NEVER {
            self.timers.remove(&(before, id));
        }
        if at != Time::NEVER {
            self.timers.insert((at, id));
        }
    }

    /// What an id is bound to and connected with.
    pub fn query_id(&self, id: CmId) -> Result<CmIdInfo, CmRefusal> {
        Ok(self.id(id)?.info())
    }

    fn id(&self, id: CmId) -> Result<&Id, CmRefusal> {
        match self.ids.get(&id) {
            Some(entry) if !entry.is_orphan => Ok(entry),
            _ => refusal::refuse(refusal::errno::EINVAL, format!("CM id {} does not exist", id.0)),
        }
    }
}

#[cfg(test)]
mod tests;
