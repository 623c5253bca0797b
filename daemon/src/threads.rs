//! Lcores as threads: started together, stopped together.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use engine::config::EngineConfig;
use nix::sys::prctl;
use pmd::{Clock, Eal, LcoreError};
use shm::clock::DeviceClock;
use shm::wake::WakeFd;
use thiserror::Error;

use crate::handover::Handover;
use crate::idle::{Bed, IdlePolicy};
use crate::kernel_interface::PacketTap;
use crate::lcore::{self, Lcore};
use crate::mailbox::{Mailbox, Mailboxes};
use crate::port::{OpenPort, PortIo};

/// Slack of an lcore's short sleeps: the kernel's default of 50 us is as long as what they are to save.
const TIMER_SLACK_NS: u64 = 1_000;

/// The threads of an engine: one for each lcore.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LcoreSetup {
    /// For each lcore the core that it is bound to; `None` leaves it to the kernel's scheduler. 1 to 16 of them.
    pub cores: Vec<Option<usize>>,
    /// What an lcore does when there is nothing to do.
    pub idle: IdlePolicy,
}

impl Default for LcoreSetup {
    fn default() -> Self {
        Self { cores: vec![None], idle: IdlePolicy::Adaptive }
    }
}

/// Why an engine could not be started.
#[derive(Debug, Error)]
pub enum EngineError {
    /// A port does not have a queue pair for each lcore.
    #[error("port {number} has {queue_pairs} queue pairs for {lcores} lcores: it must have one for each")]
    QueuePairs {
        /// The port, from 1.
        number: usize,
        /// What it has.
        queue_pairs: usize,
        /// What it must have.
        lcores: usize,
    },
    /// The number of lcores is out of range.
    #[error("{0} lcores: 1 to {max} are possible", max = engine::SHARD_COUNT_MAX)]
    LcoreCount(usize),
    /// The number of ports is out of range.
    #[error("{0} ports: 1 to 8 are possible")]
    PortCount(usize),
    /// A thread could not be bound to its core.
    #[error("lcore {lcore}: {source}")]
    Lcore {
        /// Which.
        lcore: usize,
        /// Why.
        source: LcoreError,
    },
    /// The operating system refused a thread or a file descriptor.
    #[error("no resources for an lcore: {0}")]
    Os(#[from] std::io::Error),
}

/// An engine's parts: what all share, the queues of each lcore, and what is kept of the ports.
pub(crate) struct Assembly {
    pub(crate) config: Arc<EngineConfig>,
    pub(crate) lcores: Vec<Lcore>,
    pub(crate) ports: Vec<OpenPort>,
}

impl Assembly {
    /// Deals the ports' queue pairs out. `config.ports` and `config.shard_count` are replaced by what there is.
    pub(crate) fn new(
        mut config: EngineConfig,
        ports: Vec<PortIo>,
        lcore_count: usize,
        clock: Clock,
        handovers: Vec<Handover>,
    ) -> Result<Self, EngineError> {
        let out_of_range = EngineError::LcoreCount(lcore_count);
        config.shard_count = match u8::try_from(lcore_count) {
            Ok(count @ 1..=engine::SHARD_COUNT_MAX) => count,
            _ => return Err(out_of_range),
        };
        if ports.is_empty() || ports.len() > 8 {
            return Err(EngineError::PortCount(ports.len()));
        }
        let mut queues: Vec<Vec<_>> = (0..lcore_count).map(|_| Vec::new()).collect();
        let mut open_ports = Vec::new();
        config.ports.clear();
        for (port, number) in ports.into_iter().zip(1..) {
            let queue_pairs = port.queue_pairs();
            if queue_pairs != lcore_count {
                return Err(EngineError::QueuePairs { number, queue_pairs, lcores: lcore_count });
            }
            let (port_config, pairs, open) = port.into_parts();
            config.ports.push(port_config);
            open_ports.push(open);
            queues.iter_mut().zip(pairs).for_each(|(lcore, pair)| lcore.push(pair));
        }
        config.clock = device_clock(clock);
        let config = Arc::new(config);
        let mut handovers = handovers.into_iter();
        let lcores = (0..config.shard_count).zip(queues);
        let lcores = lcores.map(|(id, queues)| Lcore::new(id, &config, clock, queues, handovers.next())).collect();
        Ok(Self { config, lcores, ports: open_ports })
    }
}

/// How clients read the lcores' clock.
fn device_clock(clock: Clock) -> DeviceClock {
    clock.tsc().map_or(DeviceClock::Private, |(origin, ns_per_tick)| DeviceClock::Tsc { origin, ns_per_tick })
}

/// The running lcores of an engine. Dropping it stops them.
#[derive(Debug)]
pub(crate) struct Lcores {
    pub(crate) mailboxes: Mailboxes,
    threads: Vec<JoinHandle<()>>,
}

impl Lcores {
    /// Starts a thread for each lcore; returns when each is in place. `control` wakes the control thread.
    pub(crate) fn start(
        eal: Eal,
        config: EngineConfig,
        ports: Vec<PortIo>,
        setup: &LcoreSetup,
        clock: Clock,
        control: &Arc<WakeFd>,
    ) -> Result<(Self, Arc<EngineConfig>, Vec<OpenPort>), EngineError> {
        let count = setup.cores.len();
        let mailboxes = (0..count).map(|_| Mailbox::new(Arc::clone(control)));
        let mailboxes: Arc<[Mailbox]> = mailboxes.collect::<std::io::Result<_>>()?;
        let handovers = if count > 1 { Handover::all(&mailboxes) } else { Vec::new() };
        let Assembly { config, lcores, ports } = Assembly::new(config, ports, count, clock, handovers)?;
        let mut running = Self { mailboxes: Mailboxes(mailboxes), threads: Vec::new() };
        for (index, (lcore, &core)) in lcores.into_iter().zip(&setup.cores).enumerate() {
            let mailboxes = Arc::clone(&running.mailboxes.0);
            let bed = Bed::new(Arc::clone(mailboxes[index].alarm()), taps(setup.idle, &ports))?;
            let (ready, is_ready) = mpsc::channel();
            let thread = LcoreThread { eal, core, idle: setup.idle, index, mailboxes, bed };
            let thread =
                thread::Builder::new().name(format!("lcore-{index}")).spawn(move || thread.run(lcore, &ready))?;
            running.threads.push(thread);
            let placed = is_ready.recv().map_err(std::io::Error::other)?;
            placed.map_err(|source| EngineError::Lcore { lcore: index, source })?;
        }
        Ok((running, config, ports))
    }
}

/// What tells a sleeping lcore of frames, for each interface that the kernel has as well. Without it, it sleeps a little longer.
fn taps(idle: IdlePolicy, ports: &[OpenPort]) -> Vec<PacketTap> {
    if idle == IdlePolicy::Spin {
        return Vec::new();
    }
    let open = |interface: &str| {
        PacketTap::open_all(interface)
            .inspect_err(|error| tracing::warn!(interface, "no packet socket to be woken by: {error}"))
            .unwrap_or_default()
    };
    ports.iter().filter_map(OpenPort::kernel_interface).flat_map(open).collect()
}

impl Drop for Lcores {
    fn drop(&mut self) {
        self.mailboxes.0.iter().for_each(Mailbox::stop);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

/// What a thread needs besides its lcore.
struct LcoreThread {
    eal: Eal,
    core: Option<usize>,
    idle: IdlePolicy,
    index: usize,
    mailboxes: Arc<[Mailbox]>,
    bed: Bed,
}

impl LcoreThread {
    fn run(mut self, mut lcore: Lcore, ready: &Sender<Result<(), LcoreError>>) {
        let mailboxes = Arc::clone(&self.mailboxes);
        let mailbox = &mailboxes[self.index];
        let _end = AnnounceEnd(mailbox);
        let placed = self.core.map_or(Ok(()), pmd::pin_current_thread).and_then(|()| self.eal.register_thread());
        let _registered = match placed {
            Ok(registered) => registered,
            Err(error) => {
                let _starter_waits = ready.send(Err(error));
                return;
            }
        };
        // Where the kernel refuses, sleeps are longer than need be.
        let _ = prctl::set_timerslack(TIMER_SLACK_NS);
        let _starter_waits = ready.send(Ok(()));
        lcore::run(&mut lcore, mailbox, self.idle, &mut self.bed);
    }
}

/// Tells the control thread that an lcore has ended, by a panic, too.
struct AnnounceEnd<'a>(&'a Mailbox);

impl Drop for AnnounceEnd<'_> {
    fn drop(&mut self) {
        self.0.announce_end();
    }
}
