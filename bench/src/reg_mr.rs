//! How long registering memory takes.

use std::time::{Duration, Instant};

use daemon::embedded::{engine_config, polled_pair};
use ferroce::{AccessFlags, Context, MemoryPool, OwnMemory, PageSize, VerbsError};
use serde::Serialize;

use crate::args::RegMrArgs;
use crate::error::{PerfError, Result};
use crate::machine::Machine;
use crate::memory::MemoryKind;
use crate::stats::median;

/// What a run has shown; the JSON.
#[derive(Debug, Serialize)]
struct RegMrReport {
    test: &'static str,
    memory: MemoryKind,
    bytes: u64,
    iterations: u32,
    /// Making the memory and, of a pool, sharing it with the engine: once.
    attach_ms: f64,
    /// Registering all of it, median. Not of a pool: each time as something that was not registered before.
    reg_mr_us: f64,
    /// The longest of the registrations.
    reg_mr_max_us: f64,
    /// Registering what was registered the same way before, and deregistered; median.
    repeated_us: f64,
    /// Deregistering it, median.
    dereg_mr_us: f64,
    machine: Machine,
}

/// Times of one kind of registration, microseconds.
#[derive(Default)]
struct Times {
    registrations: Vec<f64>,
    deregistrations: Vec<f64>,
}

impl Times {
    /// Registers and deregisters something.
    fn take<R>(
        &mut self,
        register: impl FnOnce() -> std::result::Result<R, VerbsError>,
        dereg: impl FnOnce(R) -> std::result::Result<(), VerbsError>,
    ) -> Result<()> {
        let start = Instant::now();
        let region = register()?;
        let registered = Instant::now();
        dereg(region)?;
        self.registrations.push(micros(registered - start));
        self.deregistrations.push(micros(registered.elapsed()));
        Ok(())
    }
}

/// Registers the region as often as asked for, and prints the times.
///
/// # Errors
/// No memory, or what the engine refuses.
pub(crate) fn run(args: &RegMrArgs) -> Result<()> {
    // An embedded engine lives as long as its node.
    let (_nodes, context) = if args.engine.embedded {
        let nodes = polled_pair(&engine_config("ferroce0"))?;
        let context = Context::from_endpoint(nodes[0].connect()?)?;
        (Some(nodes), context)
    } else {
        (None, Context::connect(&args.engine.socket)?)
    };
    let pd = context.alloc_pd()?;
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let (mut fresh, mut repeated) = (Times::default(), Times::default());
    let start = Instant::now();
    let attach = if args.memory == MemoryKind::Pool {
        let pool = MemoryPool::new(&context, args.size, PageSize::Base)?;
        let attach = start.elapsed();
        for _ in 0..args.iters {
            fresh.take(|| pool.register(&pd, 0..args.size, rights), ferroce::MemoryRegion::dereg)?;
            repeated.take(|| pool.register(&pd, 0..args.size, rights), ferroce::MemoryRegion::dereg)?;
        }
        attach
    } else {
        context.set_memory_tiers(args.memory.tiers());
        let own = OwnMemory::new(args.size, args.memory == MemoryKind::Shared)?;
        // What nobody has touched has no page, of which the daemon would have to tell.
        for offset in [0, args.size - 1] {
            let outside = |_| VerbsError::OutOfRange { offset, length: 1, limit: args.size };
            own.write(offset, &[1]).map_err(outside)?;
        }
        let attach = start.elapsed();
        let range = own.range();
        // The first hands over the process.
        pd.register_process_memory(range, range.addr(), rights)?.dereg()?;
        for number in 0..u64::from(args.iters) {
            // Known by another address it is another region.
            let register = |iova| pd.register_process_memory(range, iova, rights);
            let iova = range.addr() + (number + 1) * 4096;
            fresh.take(|| register(iova), ferroce::ProcessRegion::dereg)?;
            repeated.take(|| register(iova), ferroce::ProcessRegion::dereg)?;
        }
        attach
    };
    print(
        &RegMrReport {
            test: "reg_mr",
            memory: args.memory,
            bytes: args.size,
            iterations: args.iters,
            attach_ms: attach.as_secs_f64() * 1e3,
            reg_mr_us: median(fresh.registrations.iter().copied()),
            reg_mr_max_us: fresh.registrations.iter().copied().fold(0.0, f64::max),
            repeated_us: median(repeated.registrations),
            dereg_mr_us: median(fresh.deregistrations),
            machine: Machine::new(false)?,
        },
        args.json,
    )
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn print(report: &RegMrReport, json: bool) -> Result<()> {
    if json {
        let text = serde_json::to_string(report).map_err(|error| PerfError::Protocol(error.to_string()))?;
        println!("{text}");
        return Ok(());
    }
    println!(
        "reg_mr: {} bytes, {} times: {:.1} us (at most {:.1}), again {:.1} us; deregistering {:.1} us; making the memory before \
         (a pool: and sharing it with the engine), once: {:.1} ms",
        report.bytes,
        report.iterations,
        report.reg_mr_us,
        report.reg_mr_max_us,
        report.repeated_us,
        report.dereg_mr_us,
        report.attach_ms
    );
    Ok(())
}
