//! `ferroce-fabric`: see `ferroce-fabric --help` and `docs/fabric.md`.
#![forbid(unsafe_code)]

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use fabric::config::{Args, ConfigError, IdlePolicy, Settings};
use fabric::device::Device;
use fabric::model::Fabric;
use fabric::report::Report;
use fabric::run::{Runner, Wish};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use pmd::{Clock, Eal, EalConfig};

fn main() -> ExitCode {
    let args = Args::parse();
    let settings = match Settings::load(&args) {
        Ok(settings) => settings,
        Err(error) => return refuse(&error),
    };
    if args.check_config {
        return finish(print(&settings.to_toml()));
    }
    finish(run(&settings, args.json))
}

fn refuse(error: &ConfigError) -> ExitCode {
    eprintln!("ferroce-fabric: {error}");
    ExitCode::from(2)
}

fn finish(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferroce-fabric: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings, json: bool) -> anyhow::Result<()> {
    // Before DPDK starts threads: all inherit the mask.
    let mut signals = SigSet::empty();
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1].into_iter().for_each(|signal| signals.add(signal));
    signals.thread_block().context("signals can't be blocked")?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .context("signals can't be waited for")?;

    let eal = Eal::init(&EalConfig { memory: settings.memory_mode(), ..EalConfig::default() })?;
    let _cached_buffers = eal.register_thread()?;
    let devices = Device::open_all(eal, settings)?;
    let attached: Vec<_> = devices.iter().map(Device::attached).collect();
    let fabric = Fabric::new(settings, &attached)?;
    if settings.idle == IdlePolicy::Adaptive {
        // The kernel otherwise adds up to 50 us to each sleep.
        prctl::set_timerslack(1).context("the timer slack can't be set")?;
    }
    let mut runner = Runner::new(Clock::new(eal), fabric, devices, settings.idle, settings.stats_interval_ns);
    eprintln!("ferroce-fabric: {} ports are up", settings.ports.len());
    loop {
        let wish = runner.run(&signals).context("signals can't be read")?;
        let report = Report::of(&runner);
        print(&if json { report.to_json() + "\n" } else { report.to_text() })?;
        if wish == Wish::End {
            return Ok(());
        }
    }
}

/// Prints; that nobody reads is no reason to stop.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("can't write the output"),
        _ => Ok(()),
    }
}
