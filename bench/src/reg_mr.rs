//! How long registering memory takes.

use std::time::{Duration, Instant};

use daemon::embedded::{engine_config, polled_pair};
use ferroce::{AccessFlags, Context, MemoryPool, PageSize};
use serde::Serialize;

use crate::args::RegMrArgs;
use crate::error::{PerfError, Result};
use crate::machine::Machine;
use crate::stats::median;

/// What a run has shown; the JSON.
#[derive(Debug, Serialize)]
struct RegMrReport {
    test: &'static str,
    bytes: u64,
    iterations: u32,
    /// Sharing the memory with the engine: once for a pool.
    attach_ms: f64,
    /// Registering all of it, median.
    reg_mr_us: f64,
    /// The longest of the registrations.
    reg_mr_max_us: f64,
    /// Deregistering it, median.
    dereg_mr_us: f64,
    machine: Machine,
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
    let start = Instant::now();
    let pool = MemoryPool::new(&context, args.size, PageSize::Base)?;
    let attach = start.elapsed();
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let (mut registrations, mut deregistrations) = (Vec::new(), Vec::new());
    for _ in 0..args.iters {
        let start = Instant::now();
        let region = pool.register(&pd, 0..args.size, rights)?;
        let registered = Instant::now();
        region.dereg()?;
        registrations.push(micros(registered - start));
        deregistrations.push(micros(registered.elapsed()));
    }
    print(
        &RegMrReport {
            test: "reg_mr",
            bytes: args.size,
            iterations: args.iters,
            attach_ms: attach.as_secs_f64() * 1e3,
            reg_mr_us: median(registrations.iter().copied()),
            reg_mr_max_us: registrations.iter().copied().fold(0.0, f64::max),
            dereg_mr_us: median(deregistrations),
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
        "reg_mr: {} bytes, {} times: {:.1} us (at most {:.1}); deregistering {:.1} us; making the memory and sharing it \
         with the engine before, once: {:.1} ms",
        report.bytes, report.iterations, report.reg_mr_us, report.reg_mr_max_us, report.dereg_mr_us, report.attach_ms
    );
    Ok(())
}
