//! A host: the engine that ships, with its control side, behind a network device of its own.
//!
//! [`Host::turn`] is one turn of an lcore's loop for every shard, at the virtual time given. Between turns frames wait in the
//! device's queues: [`Host::receive`] puts one in, [`Host::take_frame`] takes one out to the wire.

mod endpoint;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::command::{Answer, Command, Shards};
use engine::config::{
    EngineConfig, Limits, PortAddress, PortConfig, ProcessMemoryPolicy, RecoveryConfig, TransportConfig,
};
use engine::control::{Control, Peer};
use engine::counters::{PortCounters, ShardCounters};
use engine::{Backlog, Shard, Time};
use rand::Rng;
use shm::attr::GidType;
use shm::clock::DeviceClock;
use shm::control::Endpoint;
use shm::mapping::Mapping;
use shm::qos::QosSettings;
use shm::segment::BlockAddress;
use shm::wake::WakeFd;
use wire::MacAddr;
use wire::buf::{Dest, VecBatch};

use crate::random::Stream;
use endpoint::SessionEndpoint;

/// The only port of a host.
const PORT: u8 = 0;

/// What a host is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostSettings {
    /// Shards of its engine.
    pub shard_count: u8,
    /// The engine's transport settings.
    pub transport: TransportConfig,
    /// Quality of service.
    pub qos: QosSettings,
    /// Its loss recovery.
    pub recovery: RecoveryConfig,
    /// Congestion control of its engine's ports.
    pub congestion: engine::cc::Settings,
    /// Frames that a shard takes from its receive queue in one turn.
    pub rx_burst: usize,
    /// Frames that a shard builds in one turn.
    pub tx_burst: usize,
    /// Frames that the device takes before it has sent one.
    pub tx_queue_frames: usize,
    /// Frames that may wait for each shard; more are lost.
    pub rx_queue_frames: usize,
    /// Link speed, Mbit/s; 0 = unknown.
    pub speed_mbps: u32,
    /// Room for objects.
    pub size: EngineSize,
    /// From one turn to the next while there is work, ns.
    pub turn_ns: u64,
    /// Clients drive the engine, as an embedded one; else it sleeps until a doorbell wakes it, as a daemon's.
    pub is_polled: bool,
}

impl Default for HostSettings {
    fn default() -> Self {
        Self {
            shard_count: 1,
            transport: TransportConfig::default(),
            qos: QosSettings::default(),
            recovery: RecoveryConfig::default(),
            congestion: engine::cc::Settings::default(),
            rx_burst: 32,
            tx_burst: 32,
            tx_queue_frames: 256,
            rx_queue_frames: 1 << 16,
            speed_mbps: 0,
            size: EngineSize::default(),
            turn_ns: 1_000,
            is_polled: false,
        }
    }
}

/// How much a host's engine has room for. Tables are made at the start, so that a network of many hosts has small ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineSize {
    /// QPs of a shard, and as many CQs.
    pub qps: u32,
    /// Memory regions.
    pub regions: u32,
    /// Neighbours.
    pub neighbours: u32,
}

impl Default for EngineSize {
    /// More than any run of two hosts asks for, and quick to set up.
    fn default() -> Self {
        Self { qps: 256, regions: 4_096, neighbours: 16 }
    }
}

impl EngineSize {
    fn limits(self) -> Limits {
        Limits {
            max_qp: self.qps,
            max_cq: self.qps,
            max_srq: 64,
            max_mr: self.regions,
            max_neighbour: self.neighbours,
            // A host has one user.
            user_share_percent: 100,
            ..Limits::default()
        }
    }
}

/// A host of the simulation. A clone is another handle to it.
#[derive(Clone)]
pub struct Host(Arc<Mutex<Inner>>);

struct Inner {
    settings: HostSettings,
    control: Control,
    engine: Engine,
    /// Frames for each shard that it has not looked at yet.
    rx: Vec<VecDeque<Vec<u8>>>,
    /// Frames that the device has to send.
    tx: VecDeque<Vec<u8>>,
    /// Frames that were lost because the engine did not come for them.
    rx_dropped: u64,
    /// Frames that it has taken, and not sent yet.
    waiting_frames: usize,
    sessions: BTreeMap<u32, Session>,
    /// All shards are asleep: a doorbell writes to their eventfds.
    is_asleep: bool,
    /// A client has called since the last look: a daemon's mailbox wakes its lcores.
    is_called: bool,
    /// A turn that a client drove did something, and the world has not been told.
    is_busy_unseen: bool,
}

/// Shards on the caller's own thread.
struct Engine {
    shards: Vec<Shard>,
    wakes: Vec<Arc<WakeFd>>,
    now: Time,
}

/// What the host keeps of a client.
struct Session {
    /// Our end of its event socket.
    events: OwnedFd,
    event_count: u64,
    /// Files of its ring memory, in the order of their numbers, and the blocks in them.
    segments: Vec<OwnedFd>,
    blocks: Vec<BlockAddress>,
}

/// What a turn came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turned {
    /// Something was done: applications should look.
    pub is_busy: bool,
    /// When the next turn is due if nothing happens before; [`Time::NEVER`] if none is.
    pub next_at: Time,
}

impl Shards for Engine {
    fn command(&mut self, shard: u8, command: Command) -> Answer {
        // The number of a shard may come from a client's QPN.
        match self.shards.get_mut(usize::from(shard)) {
            Some(shard) => shard.command(self.now, command),
            None => Answer::Missing,
        }
    }

    fn client_wake(&self, shard: u8) -> io::Result<OwnedFd> {
        self.wakes[usize::from(shard)].as_fd().try_clone_to_owned()
    }
}

/// MAC address of a host.
pub fn mac(number: u16) -> MacAddr {
    let [high, low] = (number + 1).to_be_bytes();
    MacAddr([2, 0, 0, 0, high, low])
}

/// IPv4 address of a host.
pub fn ipv4(number: u16) -> IpAddr {
    let [high, low] = (number + 1).to_be_bytes();
    IpAddr::from([10, 0, high, low])
}

/// GIDs of a host.
pub const GID_COUNT: u8 = 6;

/// IPv4, IPv6 and link-local; IPv4 and IPv6 in a VLAN; IPv6 with RoCEv1.
fn addresses(number: u16) -> [PortAddress; GID_COUNT as usize] {
    let v4 = PortAddress::from(ipv4(number));
    let v6 = PortAddress::from(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, number + 1]));
    let vlan = Some(77);
    let v1 = PortAddress { gid_type: GidType::RoceV1, ..v6 };
    [v4, v6, PortAddress::link_local(mac(number)), PortAddress { vlan, ..v4 }, PortAddress { vlan, ..v6 }, v1]
}

impl Host {
    /// Its IPv4 address.
    pub fn ipv4(&self) -> IpAddr {
        self.lock().control.ports()[usize::from(PORT)].addresses[0].ip
    }

    /// Its global IPv6 address.
    pub fn ipv6(&self) -> IpAddr {
        self.lock().control.ports()[usize::from(PORT)].addresses[1].ip
    }

    /// Host `number` with the address [`ipv4`] says and its counterparts of every kind: [`GID_COUNT`] GIDs. Its memory keys come from `stream`.
    ///
    /// # Errors
    /// What the operating system says: too many open files.
    pub fn new(number: u16, settings: HostSettings, mtu: u16, mut stream: Stream) -> io::Result<Self> {
        let port = PortConfig {
            active: true,
            mac: mac(number),
            addresses: addresses(number).to_vec(),
            interface_mtu: mtu,
            answers_arp: true,
            speed_mbps: settings.speed_mbps,
            driver: "sim".to_owned(),
            kernel_interface: None,
        };
        let config = Arc::new(EngineConfig {
            device_name: format!("ferroce{number}"),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            shard_count: settings.shard_count,
            ports: vec![port],
            limits: settings.size.limits(),
            transport: settings.transport,
            recovery: settings.recovery,
            congestion: settings.congestion,
            process_memory: ProcessMemoryPolicy::Everybody,
            clock: DeviceClock::Private,
            qos: settings.qos,
            operator_uid: 0,
        });
        let shards = (0..settings.shard_count).map(|id| Shard::new(id, Arc::clone(&config), Time::ZERO)).collect();
        let wakes = (0..settings.shard_count).map(|_| WakeFd::new().map(Arc::new)).collect::<io::Result<_>>()?;
        let rx = (0..settings.shard_count).map(|_| VecDeque::new()).collect();
        let control = Control::new(config, Box::new(move || stream.random()), Time::ZERO);
        Ok(Self(Arc::new(Mutex::new(Inner {
            settings,
            control,
            engine: Engine { shards, wakes, now: Time::ZERO },
            rx,
            tx: VecDeque::new(),
            rx_dropped: 0,
            waiting_frames: 0,
            sessions: BTreeMap::new(),
            is_asleep: false,
            is_called: false,
            is_busy_unseen: false,
        }))))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // One thread runs the simulation: a poisoned lock means that it panics already.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it was made with.
    pub fn settings(&self) -> HostSettings {
        self.lock().settings
    }

    /// Sets the time at which clients' calls and turns happen from now on.
    pub fn set_now(&self, now: Time) {
        self.lock().engine.now = now;
    }

    /// One turn of every shard, for the world. It answers for the turns that clients have driven since the last one, too.
    pub fn turn(&self) -> Turned {
        let mut inner = self.lock();
        let turned = inner.turn();
        Turned { is_busy: turned.is_busy | std::mem::take(&mut inner.is_busy_unseen), ..turned }
    }

    /// One turn of every shard, driven by a client.
    fn make_progress(&self) {
        let mut inner = self.lock();
        let turned = inner.turn();
        inner.is_busy_unseen |= turned.is_busy;
    }

    /// A frame has arrived. False if there was no room for it.
    pub fn receive(&self, frame: Vec<u8>) -> bool {
        self.lock().receive(frame)
    }

    /// The next frame for the wire.
    pub fn take_frame(&self) -> Option<Vec<u8>> {
        self.lock().tx.pop_front()
    }

    /// True if a turn is due out of its order: a client has called, or rung a sleeping shard's doorbell, or drives the engine
    /// by itself.
    pub fn take_woken(&self) -> bool {
        let mut inner = self.lock();
        // Every one of them is to be taken back, so no short cut.
        let rung = inner.engine.wakes.iter().filter(|wake| wake.drain()).count();
        std::mem::take(&mut inner.is_called) || inner.settings.is_polled || rung > 0
    }

    /// Has a turn come though no doorbell says so: shared memory was changed in other ways.
    pub fn poke(&self) {
        self.lock().is_called = true;
    }

    /// Tells every shard a neighbour's MAC.
    ///
    /// # Errors
    /// The neighbour that there is no room for.
    pub fn fix_neighbour(&self, ip: IpAddr, mac: MacAddr) -> Result<(), String> {
        let Inner { engine, settings, .. } = &mut *self.lock();
        for shard in 0..settings.shard_count {
            match engine.command(shard, Command::FixNeighbour { port: PORT, ip, vlan: None, mac }) {
                Answer::Done => {}
                _ => return Err(format!("no room for the neighbour {ip}: there may be {}", settings.size.neighbours)),
            }
        }
        Ok(())
    }

    /// Says how many frames wait in a device's queues behind the host's own: the engine fills both up to its limit.
    pub fn set_waiting(&self, frames: usize) {
        self.lock().waiting_frames = frames;
    }

    /// True if some QP waits for room in the device's queue.
    pub fn wants_transmit(&self) -> bool {
        self.lock().engine.shards.iter().any(Shard::wants_transmit)
    }

    /// A client's way to the engine, for `ferroce::Context::from_endpoint`. Its session ends when it is dropped.
    ///
    /// # Errors
    /// The sentence that refuses another session.
    pub fn connect(&self) -> Result<Arc<dyn Endpoint>, String> {
        let session = self.lock().control.open_session(Peer { pid: 1, uid: 0 })?;
        Ok(Arc::new(SessionEndpoint::new(self.clone(), session)))
    }

    /// Ends a session as the death of its process does: nothing is taken down by the client itself.
    pub fn kill(&self, session: u32) {
        self.lock().close(session);
    }

    /// Asynchronous events that were sent to a session.
    pub fn event_count(&self, session: u32) -> u64 {
        self.lock().sessions.get(&session).map_or(0, |session| session.event_count)
    }

    /// The ring memory of a session, as its process could write it: mapped anew, with the place of each block.
    pub fn rings(&self, session: u32) -> Vec<(Mapping, BlockAddress)> {
        let inner = self.lock();
        let Some(session) = inner.sessions.get(&session) else { return Vec::new() };
        let map = |block: &BlockAddress| {
            let fd = session.segments.get(block.segment as usize)?.try_clone().ok()?;
            Some((Mapping::attach(fd, block.segment_bytes).ok()?, *block))
        };
        session.blocks.iter().filter_map(map).collect()
    }

    /// Frames that were lost because the engine did not come for them.
    pub fn rx_dropped(&self) -> u64 {
        self.lock().rx_dropped
    }

    /// Counters of the port, all shards together.
    pub fn port_counters(&self) -> PortCounters {
        let mut sum = PortCounters::default();
        for shard in &self.lock().engine.shards {
            if let Some(counters) = shard.port_counters(PORT) {
                sum.add(counters);
            }
        }
        sum
    }

    /// Counters of the transport, all shards together.
    pub fn shard_counters(&self) -> ShardCounters {
        let mut sum = ShardCounters::default();
        for shard in &self.lock().engine.shards {
            sum.add(&shard.counters());
        }
        sum
    }

    /// Timers that its engine's QPs have set.
    pub fn timer_count(&self) -> usize {
        self.lock().engine.shards.iter().map(Shard::timer_count).sum()
    }

    /// Clients that are connected.
    pub fn session_count(&self) -> usize {
        self.lock().sessions.len()
    }
}

impl Inner {
    fn receive(&mut self, frame: Vec<u8>) -> bool {
        let dest = wire::dest_qpn(&frame);
        if dest == Some(engine::MCAST_QPN) || engine::is_for_all_shards(&frame) {
            // Every shard has a neighbour table of its own, obeys pauses by itself, and perhaps has members of the group.
            let (first, others) = self.rx.split_at_mut(1);
            others.iter_mut().for_each(|queue| queue.push_back(frame.clone()));
            first[0].push_back(frame);
            return true;
        }
        let owner = dest.map_or(0, engine::shard_of);
        let owner = if owner < self.settings.shard_count { owner } else { 0 };
        let queue = &mut self.rx[usize::from(owner)];
        let has_room = queue.len() < self.settings.rx_queue_frames;
        if has_room {
            queue.push_back(frame);
        } else {
            self.rx_dropped += 1;
        }
        has_room
    }

    fn turn(&mut self) -> Turned {
        if std::mem::take(&mut self.is_asleep) {
            self.engine.shards.iter().for_each(Shard::announce_awake);
        }
        let mut is_busy = false;
        for id in 0..self.engine.shards.len() {
            is_busy |= self.turn_shard(id);
        }
        self.turn_control();
        let waits = self.room() > 0 && self.engine.shards.iter().any(Shard::wants_transmit);
        let next_at = if is_busy || waits || self.rx.iter().any(|queue| !queue.is_empty()) {
            self.engine.now.add_ns(self.settings.turn_ns)
        } else {
            self.fall_asleep()
        };
        Turned { is_busy, next_at }
    }

    /// Nothing to do: how long for. As a daemon's lcore does, it says so first and looks once more.
    fn fall_asleep(&mut self) -> Time {
        if !self.settings.is_polled {
            let work = self.engine.shards.iter().filter(|shard| shard.announce_sleep()).count();
            if work > 0 {
                self.engine.shards.iter().for_each(Shard::announce_awake);
                return self.engine.now.add_ns(self.settings.turn_ns);
            }
        }
        self.is_asleep = true;
        let due = self.engine.shards.iter().map(Shard::next_deadline).min().unwrap_or(Time::NEVER);
        let due = due.min(self.control.next_deadline());
        // A deadline that has passed already waits for the next turn like all else.
        due.max(self.engine.now.add_ns(self.settings.turn_ns))
    }

    /// Frames that the device takes.
    fn room(&self) -> usize {
        self.settings.tx_queue_frames.saturating_sub(self.tx.len() + self.waiting_frames)
    }

    fn turn_shard(&mut self, id: usize) -> bool {
        let room = self.settings.tx_burst.min(self.room());
        let Self { engine, rx, tx, settings, sessions, .. } = self;
        let now = engine.now;
        let shard = &mut engine.shards[id];
        let received = rx[id].len().min(settings.rx_burst);
        for frame in rx[id].drain(..received) {
            shard.handle_frame(now, PORT, &frame);
        }
        if shard.wants_backlog(PORT) {
            let frames = u32::try_from(rx[id].len()).unwrap_or(u32::MAX);
            shard.handle_backlog(now, PORT, Backlog { frames, capacity: u32::MAX });
        }
        let rung = shard.handle_doorbells(now);
        let fired = shard.handle_timers(now);
        let mut batch = VecBatch::new(room);
        let flushed = shard.counters().flushed_wqes;
        let sent = shard.poll_transmit(now, PORT, &mut batch);
        let flushed = shard.counters().flushed_wqes - flushed;
        while let Some(wake) = shard.poll_wake() {
            wake.notify();
        }
        while let Some(event) = shard.poll_event() {
            if let Some(session) = sessions.get_mut(&event.session) {
                // The socket holds more events than any run makes.
                let told = shm::socket::send(session.events.as_fd(), &event.event, &[]).is_ok();
                session.event_count += u64::from(told);
            }
        }
        let is_busy = received > 0 || rung || fired || sent > 0 || flushed > 0;
        shard.count_turn(!is_busy);
        for (dest, frame) in batch.take() {
            match dest {
                Dest::Wire => tx.push_back(frame),
                // The number comes from a client: there may be no such shard.
                Dest::Local { shard } => {
                    if let Some(rx) = rx.get_mut(usize::from(shard)) {
                        rx.push_back(frame);
                    }
                }
            }
        }
        is_busy
    }

    /// What a daemon's control thread does when lcores wake it, and when something is due.
    fn turn_control(&mut self) {
        let Self { control, engine, .. } = self;
        while let Some(mad) = engine.shards.iter_mut().find_map(Shard::poll_mad) {
            let now = engine.now;
            control.handle_mad(engine, now, &mad);
        }
        let now = engine.now;
        control.turn(engine, now);
    }

    fn close(&mut self, session: u32) {
        self.is_called = true;
        self.control.close_session(&mut self.engine, session);
        self.turn_control();
        self.sessions.remove(&session);
    }
}
