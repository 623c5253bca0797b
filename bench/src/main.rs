//! RDMA benchmarks in perftest's words: against daemons, or with engines of its own.
//!
//! ```text
//!   args ──> run ──┬─ single_thread ─────────┐
//!                  ├─ pair (threads, daemons)├──> actor ──> bandwidth, latency ──> side: QPs and memory
//!                  ├─ pair over --vdev ──────┘
//!                  └─ floor: the same frames without a transport
//!   report: perftest's table or JSON       demo, reg_mr, cm_rate, micro: on their own
//! ```
#![forbid(unsafe_code)]

mod actor;
mod args;
mod bandwidth;
mod cm_rate;
mod demo;
mod error;
mod floor;
mod idle;
mod latency;
mod link;
mod machine;
mod memory;
mod micro;
mod pair;
mod params;
mod patience;
mod reg_mr;
mod remote;
mod report;
mod run;
mod side;
mod single_thread;
mod stats;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferroce-perf: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> anyhow::Result<()> {
    if let Some((test, args)) = command.test() {
        return run::run(test, args).with_context(|| test.to_string());
    }
    match command {
        Command::RegMr(args) => reg_mr::run(args).context("reg_mr"),
        Command::CmRate(args) => cm_rate::run(args).context("cm_rate"),
        Command::Demo(args) => demo::run(&args.file).context("demo"),
        Command::Micro(args) => micro::run(args).context("micro"),
        _ => unreachable!("the others are tests"),
    }
}
