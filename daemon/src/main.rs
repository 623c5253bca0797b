//! `ferroced`: see `ferroced --help` and `docs/config.md`.
#![forbid(unsafe_code)]

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::Parser;
use daemon::Daemon;
use daemon::config::{Args, Config, Machine};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Each error is a whole sentence, causes included.
            eprintln!("ferroced: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let config = Config::load(args, &Machine::this())?;
    let possible = "error, warn, info, debug, trace, or directives such as warn,daemon=debug are possible";
    let filter =
        EnvFilter::try_new(&config.log).map_err(|error| anyhow!("log = {:?}: {possible}, but {error}", config.log))?;
    if args.check_config {
        print!("{}", config.to_toml());
        return Ok(());
    }
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).init();

    // Before any thread is started: all inherit the mask, and the signals are left to the control thread.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block().map_err(|errno| anyhow!("signals can't be blocked: {errno}"))?;
    let stop = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(|errno| anyhow!("signals can't be waited for: {errno}"))?;

    let daemon = Daemon::start(&config)?;
    daemon.run(stop.as_fd()).map_err(|error| anyhow!("the control thread can't wait: {error}"))?;
    tracing::info!("stopped");
    Ok(())
}
