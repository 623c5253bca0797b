//! Rounds with a peer on another thread, in another process, or on another host. Both sides go through the same steps.

use daemon::embedded::{PolledNode, engine_config};
use daemon::{PortIo, PortSetup};
use ferroce::Context;
use pmd::{Eal, QueuePair};

use crate::error::{PerfError, Result};
use crate::floor::{self, FramePlan};
use crate::idle::{IdleSides, compare};
use crate::link::{Link, Proposal};
use crate::machine::memory_bytes;
use crate::pair::{self, Engine};
use crate::params::Params;
use crate::report::{IdleQps, Rounds};
use crate::side::Role;

/// This side of all rounds of one run, and of those among idle QPs if they are asked for. `after_round` measures the floor.
///
/// # Errors
/// Whatever goes wrong on either side.
pub(crate) fn measure(
    link: &Link,
    engine: Engine<'_>,
    proposal: &Proposal,
    params: &Params,
    role: Role,
    mut after_round: impl FnMut(&mut Rounds) -> Result<()>,
) -> Result<(Rounds, Option<IdleQps>)> {
    let mut all_rounds = || -> Result<Rounds> {
        let mut rounds = Rounds::default();
        for _ in 0..proposal.rounds {
            let (round, mtu_bytes) = pair::run(link, engine, params, role)?;
            rounds.add(round, mtu_bytes);
            after_round(&mut rounds)?;
        }
        Ok(rounds)
    };
    let alone = all_rounds()?;
    if proposal.idle_qps == 0 {
        return Ok((alone, None));
    }
    let before = memory_bytes();
    let idle = IdleSides::over(link, engine, proposal.idle_qps, role)?;
    let among = all_rounds()?;
    let idle_qps = compare(&alone, &among, &idle, before);
    Ok((among, Some(idle_qps)))
}

/// The server's side of everything that the client has proposed.
///
/// # Errors
/// As [`measure`].
pub(crate) fn serve(link: &Link, engine: Engine<'_>, proposal: &Proposal) -> Result<()> {
    proposal
        .runs
        .iter()
        .try_for_each(|params| measure(link, engine, proposal, params, Role::Server, |_| Ok(())).map(drop))
}

/// A device that joins this process with its peer. It belongs to the engine and to the floor by turns.
#[derive(Debug)]
pub(crate) struct SharedDevice {
    /// DPDK.
    pub(crate) eal: Eal,
    /// How to open it.
    pub(crate) setup: PortSetup,
    /// Index of our GID.
    pub(crate) gid_index: u8,
}

impl SharedDevice {
    /// This side of all rounds of one run, each followed by the floor.
    ///
    /// # Errors
    /// As [`measure`].
    pub(crate) fn measure(&self, link: &Link, proposal: &Proposal, params: &Params, role: Role) -> Result<Rounds> {
        let mut rounds = Rounds::default();
        for _ in 0..proposal.rounds {
            let node = PolledNode::new(self.eal, engine_config("ferroce0"), vec![self.open(link, role)?])?;
            let context = Context::from_endpoint(node.connect()?)?;
            let engine = Engine { context: &context, polled: true, gid_index: self.gid_index };
            let (round, mtu_bytes) = pair::run(link, engine, params, role)?;
            rounds.add(round, mtu_bytes);
            drop((context, node));
            if proposal.floor {
                self.measure_floor(link, params, role, &mut rounds)?;
            }
        }
        Ok(rounds)
    }

    fn measure_floor(&self, link: &Link, params: &Params, role: Role, rounds: &mut Rounds) -> Result<()> {
        let plan = FramePlan::new(params, rounds.mtu_bytes);
        let mut queues = self.open(link, role)?.into_queue_pairs();
        let pair: &mut QueuePair = queues.first_mut().ok_or(PerfError::Thread("floor"))?;
        match role {
            Role::Client => rounds.floors_per_s.push(floor::send_to_peer(self.eal, pair, &plan, link)?),
            Role::Server => floor::receive_from_peer(self.eal, pair, &plan, link)?,
        }
        Ok(())
    }

    /// Opens it, the server first: a memif client connects to its server when it starts, or not at all.
    fn open(&self, link: &Link, role: Role) -> Result<PortIo> {
        if role == Role::Client {
            link.sync()?;
        }
        let port = PortIo::open(self.eal, &self.setup)?;
        if role == Role::Server {
            link.sync()?;
        }
        Ok(port)
    }
}
