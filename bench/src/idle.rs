//! Many connected QPs that do nothing: what they cost the one that does.

use std::time::Instant;

use ferroce::Context;

use crate::error::Result;
use crate::link::Link;
use crate::machine::memory_bytes;
use crate::memory::MemoryKind;
use crate::pair::Engine;
use crate::params::{Connection, Params, Stop, Test, Verb};
use crate::report::{IdleQps, Rounds};
use crate::side::{Role, Side};

/// Sends and receives that an idle QP has room for: what an application gets that asks for nothing special.
const DEPTH: u32 = 128;

/// Idle QPs, until dropped.
pub(crate) struct IdleSides {
    _sides: Vec<Side>,
    count: u32,
    seconds: f64,
}

fn params(count: u32) -> Params {
    Params {
        test: Test::bandwidth(Verb::Write),
        connection: Connection::Rc,
        size: 1,
        stop: Stop::Iterations(1),
        qps: count,
        tx_depth: DEPTH,
        rx_depth: DEPTH,
        cq_mod: 1,
        post_list: 1,
        inline: 0,
        bidirectional: false,
        mtu: None,
        recovery: None,
        outstanding: 16,
        cc: None,
        rate: None,
        memory: MemoryKind::Pool,
    }
}

impl IdleSides {
    /// Connects `count` QPs of two engines of this process.
    ///
    /// # Errors
    /// What the engines refuse.
    pub(crate) fn between(server: &Context, client: &Context, count: u32, gid_index: u8) -> Result<Self> {
        let start = Instant::now();
        let mut server = Side::new(server, &params(count), gid_index, Role::Server)?;
        let mut client = Side::new(client, &params(count), gid_index, Role::Client)?;
        server.connect(&client.infos())?;
        client.connect(&server.infos())?;
        Ok(Self { _sides: vec![server, client], count, seconds: start.elapsed().as_secs_f64() })
    }

    /// Connects `count` QPs with the peer's.
    ///
    /// # Errors
    /// What the engine refuses, or the peer.
    pub(crate) fn over(link: &Link, engine: Engine<'_>, count: u32, role: Role) -> Result<Self> {
        let start = Instant::now();
        let mut side = Side::new(engine.context, &params(count), engine.gid_index, role)?;
        let remotes = link.trade(&side.infos())?;
        side.connect(&remotes)?;
        link.sync()?;
        Ok(Self { _sides: vec![side], count, seconds: start.elapsed().as_secs_f64() })
    }
}

/// Compares rounds among idle QPs with those before; `before`: memory of this process before they were made.
pub(crate) fn compare(alone: &Rounds, among: &Rounds, idle: &IdleSides, before: Option<u64>) -> IdleQps {
    let alone_msg_per_s = alone.per_s();
    IdleQps {
        count: idle.count,
        seconds: idle.seconds,
        alone_msg_per_s,
        ratio_to_alone: among.per_s() / alone_msg_per_s.max(1e-9),
        memory_bytes: before.zip(memory_bytes()).map(|(before, after)| [before, after]),
    }
}
