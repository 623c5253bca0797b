//! The engine as a library: in the application's own process, on threads of its own or on the application's thread.
//!
//! A [`PolledNode`] has no thread: it runs when somebody waits for a completion on one of its connections, or calls
//! [`PolledNode::poll`]. A [`ThreadedNode`] is a whole daemon without a socket file. Both speak to the client library as a daemon
//! does:
//!
//! ```no_run
//! use daemon::embedded;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Two engines, 10.0.0.1 and 10.0.0.2, joined in memory.
//! let [a, b] = embedded::polled_pair(&embedded::engine_config("ferroce0"))?;
//! let here = a.connect()?;   // for ferroce::Context::from_endpoint
//! let there = b.connect()?;
//! # Ok(())
//! # }
//! ```

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::{self, JoinHandle};

use engine::command::{Answer as ShardAnswer, Command, Shards};
use engine::config::{EngineConfig, Limits, ProcessMemoryPolicy, RecoveryConfig, TransportConfig};
use engine::control::{Control, Peer};
use engine::{Shard, Time};
use pmd::{
    Clock, Eal, EalConfig, EalError, MemoryMode, PortError, RegisteredThread, RingPairConfig, RingPairError, ring_pair,
};
use shm::clock::DeviceClock;
use shm::control::{CallError, Endpoint, Reply, Request, Stats};
use shm::qos::QosSettings;
use shm::socket;
use shm::wake::WakeFd;
use thiserror::Error;

use crate::lcore::Lcore;
use crate::mailbox::LcoreCounters;
use crate::port::{MTU_BYTES_DEFAULT, OpenError, OpenPort, PortIo, follow_ports};
use crate::server::{Incoming, Server};
use crate::session::{EventSocket, add_device_stats, answer, entropy};
use crate::threads::{Assembly, EngineError, LcoreSetup, Lcores};

/// Addresses of the two nodes of a pair.
pub const PAIR_ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];

/// Memory that an embedded engine's DPDK may use at most; touched when used.
const MEMORY_MIB: u32 = 1024;

/// Why an embedded engine could not be started.
#[derive(Debug, Error)]
pub enum EmbeddedError {
    /// DPDK did not start.
    #[error(transparent)]
    Eal(#[from] EalError),
    /// The ports could not be joined.
    #[error(transparent)]
    Pair(#[from] RingPairError),
    /// A port did not start.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A port does not suit.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The engine could not be put together.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// No file descriptor, or no thread.
    #[error("no resources for an engine: {0}")]
    Os(#[from] std::io::Error),
    /// The engine has as many clients as it may.
    #[error("{0}")]
    Refused(String),
}

/// An engine's configuration with the usual limits. Its ports and its number of shards are filled in when it starts.
pub fn engine_config(device_name: &str) -> EngineConfig {
    EngineConfig {
        device_name: device_name.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        shard_count: 1,
        ports: Vec::new(),
        // All clients are this process.
        limits: Limits { user_share_percent: 100, ..Limits::default() },
        transport: TransportConfig::default(),
        recovery: RecoveryConfig::default(),
        congestion: engine::cc::Settings::default(),
        process_memory: ProcessMemoryPolicy::Everybody,
        clock: DeviceClock::Private,
        qos: QosSettings::default(),
        operator_uid: nix::unistd::geteuid().as_raw(),
    }
}

/// DPDK without hugepages and without privilege, started now or earlier in this process.
///
/// # Errors
/// See [`EalError`].
pub fn start_dpdk() -> Result<Eal, EalError> {
    let memory = MemoryMode::NoHuge { mib: MEMORY_MIB };
    Eal::get_or_init(&EalConfig { memory, ..EalConfig::default() })
}

/// Two ports with [`PAIR_ADDRESSES`], each of which receives what the other sends, for path MTU 4096; `queue_pairs` of each, one for
/// each lcore. What goes in on queue `n` comes out on queue `n`: give both engines as many lcores.
///
/// # Errors
/// See [`EmbeddedError`].
pub fn ring_pair_ports(eal: Eal, queue_pairs: u16) -> Result<[PortIo; 2], EmbeddedError> {
    let (first, second) = ring_pair(eal, RingPairConfig { queue_pairs, ..RingPairConfig::default() })?;
    // Ethernet's header on top of an IP packet.
    let max_frame_bytes = u32::from(MTU_BYTES_DEFAULT) + 14;
    let config = pmd::PortConfig { queue_pairs, max_frame_bytes, ..pmd::PortConfig::default() };
    let [here, there] = PAIR_ADDRESSES;
    Ok([
        PortIo::from_started(first.configure(&config)?, vec![here])?,
        PortIo::from_started(second.configure(&config)?, vec![there])?,
    ])
}

/// Two engines joined by [`ring_pair_ports`], both driven by whoever waits on one of them: see [`PolledNode::join`].
///
/// # Errors
/// See [`EmbeddedError`].
pub fn polled_pair(config: &EngineConfig) -> Result<[PolledNode; 2], EmbeddedError> {
    let eal = start_dpdk()?;
    let [here, there] = ring_pair_ports(eal, 1)?;
    let pair = [PolledNode::new(eal, config.clone(), vec![here])?, PolledNode::new(eal, config.clone(), vec![there])?];
    PolledNode::join(&pair[0], &pair[1]);
    Ok(pair)
}

/// Two engines joined by [`ring_pair_ports`], on threads of their own. Both must have as many lcores.
///
/// # Errors
/// See [`EmbeddedError`].
pub fn threaded_pair(config: &EngineConfig, setups: [&LcoreSetup; 2]) -> Result<[ThreadedNode; 2], EmbeddedError> {
    let eal = start_dpdk()?;
    let count = setups[0].cores.len();
    let [here, there] = ring_pair_ports(eal, u16::try_from(count).map_err(|_| EngineError::LcoreCount(count))?)?;
    Ok([
        ThreadedNode::start(eal, config.clone(), vec![here], setups[0])?,
        ThreadedNode::start(eal, config.clone(), vec![there], setups[1])?,
    ])
}

/// An engine that runs on its users' threads. A clone is another handle to the same engine.
#[derive(Clone)]
pub struct PolledNode(Arc<Shared>);

struct Shared {
    eal: Eal,
    inner: Mutex<Inner>,
    /// Another node that is driven along with this one.
    companion: OnceLock<Weak<Self>>,
}

struct Inner {
    lcore: Lcore,
    control: Control,
    events: BTreeMap<u32, EventSocket>,
    counters: LcoreCounters,
    ports: Vec<OpenPort>,
}

thread_local! {
    /// Gives each thread that drives a node a cache in the packet buffer pools, if DPDK has an id left for it.
    static REGISTERED: OnceCell<Option<RegisteredThread>> = const { OnceCell::new() };
}

impl PolledNode {
    /// An engine of one shard over `ports`, with one queue pair each. `config.ports`, `config.shard_count` and `config.clock` are replaced.
    ///
    /// # Errors
    /// [`EmbeddedError::Engine`], [`EmbeddedError::Os`].
    pub fn new(eal: Eal, config: EngineConfig, ports: Vec<PortIo>) -> Result<Self, EmbeddedError> {
        let clock = Clock::new(eal);
        let Assembly { config, mut lcores, ports } = Assembly::new(config, ports, 1, clock, Vec::new())?;
        let lcore = lcores.pop().ok_or(EngineError::LcoreCount(0))?;
        let control = Control::new(config, entropy(), lcore.now());
        let inner = Inner { lcore, control, events: BTreeMap::new(), counters: LcoreCounters::default(), ports };
        Ok(Self(Arc::new(Shared { eal, inner: Mutex::new(inner), companion: OnceLock::new() })))
    }

    /// From now on, waiting on a connection to one of the two drives the other as well: so that one thread can be both peers.
    /// Each node has one companion; a second call for the same node changes nothing.
    pub fn join(one: &Self, other: &Self) {
        one.0.companion.get_or_init(|| Arc::downgrade(&other.0));
        other.0.companion.get_or_init(|| Arc::downgrade(&one.0));
    }

    /// One turn of this engine alone. True if there was anything to do.
    pub fn poll(&self) -> bool {
        self.0.turn()
    }

    /// A client's way to this engine, for `ferroce::Context::from_endpoint`. Its session ends when it is dropped.
    ///
    /// # Errors
    /// [`EmbeddedError::Refused`] when the engine has as many clients as `max_session` allows.
    pub fn connect(&self) -> Result<Arc<dyn Endpoint>, EmbeddedError> {
        let peer = Peer { pid: std::process::id(), uid: nix::unistd::getuid().as_raw() };
        let session = self.0.lock().control.open_session(peer).map_err(EmbeddedError::Refused)?;
        Ok(Arc::new(PolledEndpoint { node: Arc::clone(&self.0), session }))
    }
}

impl fmt::Debug for PolledNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolledNode").finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // After a panic in the engine nothing about its state is known.
        self.inner.lock().expect("the engine has panicked on another thread")
    }

    fn turn(&self) -> bool {
        REGISTERED.with(|registered| {
            registered.get_or_init(|| self.eal.register_thread().ok());
        });
        let mut inner = self.lock();
        let busy = inner.turn();
        if inner.lcore.shard().has_event() {
            inner.deliver_events();
        }
        while let Some(notice) = inner.lcore.shard().poll_notice() {
            tracing::warn!("{notice}");
        }
        if inner.lcore.shard().has_mad() {
            inner.deliver_mads();
        }
        let now = inner.lcore.now();
        if inner.control.next_deadline() <= now {
            let Inner { lcore, control, .. } = &mut *inner;
            control.turn(&mut Direct { shard: lcore.shard(), now }, now);
        }
        busy
    }

    fn drive(&self) {
        self.turn();
        if let Some(companion) = self.companion.get().and_then(Weak::upgrade) {
            companion.turn();
        }
    }
}

impl Inner {
    #[inline]
    fn turn(&mut self) -> bool {
        self.lcore.turn(&self.counters)
    }

    /// Nobody watches the ports here: they are looked at before each request is answered.
    fn follow_ports(&mut self) {
        let now = self.lcore.now();
        let mut shards = Direct { shard: self.lcore.shard(), now };
        for event in follow_ports(&mut self.ports, &mut self.control, &mut shards) {
            for (&session, events) in &mut self.events {
                events.send(session, &event);
            }
        }
    }

    #[cold]
    fn deliver_mads(&mut self) {
        let Self { lcore, control, .. } = self;
        let now = lcore.now();
        while let Some(mad) = lcore.shard().poll_mad() {
            control.handle_mad(&mut Direct { shard: lcore.shard(), now }, now, &mad);
        }
        while let Some(notice) = control.poll_notice() {
            tracing::info!("{notice}");
        }
        control.turn(&mut Direct { shard: lcore.shard(), now }, now);
    }

    #[cold]
    fn deliver_events(&mut self) {
        let now = self.lcore.now();
        while let Some(event) = self.lcore.shard().poll_event() {
            self.control.observe_event(now, &event);
            if let Some(events) = self.events.get_mut(&event.session) {
                events.send(event.session, &event.event);
            }
        }
    }
}

/// A shard on the caller's own thread.
struct Direct<'a> {
    shard: &'a mut Shard,
    now: Time,
}

impl Shards for Direct<'_> {
    fn command(&mut self, shard: u8, command: Command) -> ShardAnswer {
        // The number of a shard may come from a client's QPN.
        if shard == 0 { self.shard.command(self.now, command) } else { ShardAnswer::Missing }
    }

    fn client_wake(&self, _: u8) -> std::io::Result<OwnedFd> {
        // Nobody sleeps on it, yet clients get one as with any engine.
        Ok(WakeFd::new()?.into())
    }
}

/// A session of a [`PolledNode`].
struct PolledEndpoint {
    node: Arc<Shared>,
    session: u32,
}

impl Endpoint for PolledEndpoint {
    fn call(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>), CallError> {
        let fds = fds.iter().map(BorrowedFd::try_clone_to_owned).collect::<Result<Vec<_>, _>>()?;
        let mut inner = self.node.lock();
        inner.follow_ports();
        let Inner { lcore, control, events, counters, ports } = &mut *inner;
        let now = lcore.now();
        let mut shards = Direct { shard: lcore.shard(), now };
        let more_stats = |stats: &mut Stats| {
            stats.groups.push(("lcore 0".to_owned(), counters.entries()));
            add_device_stats(ports, stats);
        };
        let answer = answer(control, &mut shards, self.session, now, (request.clone(), fds), more_stats);
        if let Some(socket) = answer.events {
            events.insert(self.session, socket);
        }
        control.turn(&mut shards, now);
        Ok((answer.reply, answer.fds))
    }

    fn exclusively(&self, moving: &Range<u64>, run: &mut dyn FnMut(&mut dyn FnMut() -> bool)) -> bool {
        // Nobody holds this lock while he waits for memory of the application: engines read and write it by system calls and through
        // mappings of their own.
        self.node.lock().control.while_moving(self.session, moving, run)
    }

    fn make_progress(&self) {
        self.node.drive();
    }

    fn is_polled(&self) -> bool {
        true
    }
}

impl Drop for PolledEndpoint {
    fn drop(&mut self) {
        // After a panic of the engine there is nothing to close, and no second panic to be had.
        let Ok(mut inner) = self.node.inner.lock() else { return };
        let Inner { lcore, control, events, .. } = &mut *inner;
        let now = lcore.now();
        let mut shards = Direct { shard: lcore.shard(), now };
        control.close_session(&mut shards, self.session);
        control.turn(&mut shards, now);
        events.remove(&self.session);
    }
}

/// An engine on threads of its own: lcores, and one for control. Dropping it ends its sessions and its threads.
pub struct ThreadedNode {
    incoming: Incoming,
    /// Rings the control thread.
    wake: Arc<WakeFd>,
    stop: Arc<WakeFd>,
    thread: Option<JoinHandle<()>>,
}

impl ThreadedNode {
    /// Starts an engine over `ports`, which have a queue pair for each lcore. `config.ports` and `config.shard_count` are
    /// replaced.
    ///
    /// # Errors
    /// [`EmbeddedError::Engine`], [`EmbeddedError::Os`].
    pub fn start(
        eal: Eal,
        config: EngineConfig,
        ports: Vec<PortIo>,
        setup: &LcoreSetup,
    ) -> Result<Self, EmbeddedError> {
        let clock = Clock::new(eal);
        let (wake, stop) = (Arc::new(WakeFd::new()?), Arc::new(WakeFd::new()?));
        let (lcores, config, ports) = Lcores::start(eal, config, ports, setup, clock, &wake)?;
        let server = Server::new(config, lcores, ports, clock, Arc::clone(&wake), None);
        let incoming = server.incoming();
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("control".to_owned()).spawn(move || {
            if let Err(error) = server.run(stopped.as_fd()) {
                tracing::error!("the control thread ends: {error}");
            }
        })?;
        Ok(Self { incoming, wake, stop, thread: Some(thread) })
    }

    /// A client's end of a socket to this engine, for `ferroce::Context::from_fd`.
    ///
    /// # Errors
    /// What the operating system says: too many open files.
    pub fn connect(&self) -> std::io::Result<OwnedFd> {
        let (ours, theirs) = socket::pair()?;
        self.incoming.push(ours);
        self.wake.wake();
        Ok(theirs)
    }
}

impl Drop for ThreadedNode {
    fn drop(&mut self) {
        self.stop.wake();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for ThreadedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadedNode").finish_non_exhaustive()
    }
}
