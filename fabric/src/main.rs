//! `ferroce-fabric`: see `ferroce-fabric --help` and `docs/fabric.md`.
#![forbid(unsafe_code)]

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use fabric::config::{Args, IdlePolicy, Settings};
use fabric::control::{self, Asked, Command, ControlSocket};
use fabric::device::{Attachment, Device};
use fabric::model::Fabric;
use fabric::report::Report;
use fabric::run::{Runner, Wish};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use pmd::{Clock, Eal, EalConfig};

fn main() -> ExitCode {
    let args = Args::parse();
    if let (Some(path), false) = (&args.control, args.command.is_empty()) {
        return give_command(path, &args);
    }
    let settings = match Settings::load(&args) {
        Ok(settings) => settings,
        Err(error) => return refuse(&error.to_string()),
    };
    if args.check_config {
        return finish(print(&settings.to_toml()));
    }
    finish(run(&settings, &args))
}

fn refuse(sentence: &str) -> ExitCode {
    eprintln!("ferroce-fabric: {sentence}");
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

/// Gives a command to the fabric that takes them at `path`.
fn give_command(path: &Path, args: &Args) -> ExitCode {
    let command = match Command::parse(args.command.iter().map(String::as_str), args.json) {
        Ok(command) => command,
        Err(sentence) => return refuse(&sentence),
    };
    match control::tell(path, &command) {
        Ok(Ok(text)) => finish(print(&text)),
        Ok(Err(sentence)) => refuse(&sentence),
        Err(error) => refuse(&format!("no fabric answers at {}: {error}", path.display())),
    }
}

fn run(settings: &Settings, args: &Args) -> anyhow::Result<()> {
    // Before DPDK starts threads: all inherit the mask.
    let mut signals = SigSet::empty();
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1].into_iter().for_each(|signal| signals.add(signal));
    signals.thread_block().context("signals can't be blocked")?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .context("signals can't be waited for")?;
    let listen =
        |path: &Path| ControlSocket::bind(path).with_context(|| format!("can't take commands at {}", path.display()));
    let mut commands = args.control.as_deref().map(listen).transpose()?;

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
        let wish = runner.run(&signals, commands.as_mut()).context("signals can't be read")?;
        match wish {
            Wish::Statistics => print(&shown(&runner, args.json))?,
            Wish::End => return print(&shown(&runner, args.json)),
            Wish::Command(asked) => obey(&mut runner, asked),
            Wish::Interface(port, found) => tell_of_interface(&runner, port, found),
        }
    }
}

fn shown(runner: &Runner, json: bool) -> String {
    let report = Report::of(runner);
    if json { report.to_json() + "\n" } else { report.to_text() }
}

fn obey(runner: &mut Runner, asked: Asked) {
    let answer = match &asked.command {
        Ok(Command::Statistics { json }) => Ok(shown(runner, *json)),
        Ok(Command::Link { port, is_up }) => match runner.port_named(port) {
            Some(number) => {
                runner.set_link(number, *is_up);
                let what = if *is_up { "up" } else { "down" };
                eprintln!(
                    "ferroce-fabric: the link of {} is {what}, by command",
                    runner.devices()[usize::from(number)].name()
                );
                Ok(String::new())
            }
            None => {
                let names: Vec<&str> = runner.devices().iter().map(Device::name).collect();
                Err(format!("no port is {port:?}: ports are {}", names.join(", ")))
            }
        },
        Err(sentence) => Err(sentence.clone()),
    };
    asked.answer(&answer);
}

fn tell_of_interface(runner: &Runner, port: u16, found: Attachment) {
    let device = &runner.devices()[usize::from(port)];
    let (name, interface) = (device.name(), device.interface().unwrap_or("its interface"));
    match found {
        Attachment::Up => eprintln!("ferroce-fabric: {interface} of {name} is up again"),
        Attachment::Down => eprintln!("ferroce-fabric: {interface} of {name} is down, and so is its link"),
        Attachment::Gone => {
            eprintln!(
                "ferroce-fabric: {interface} of {name} is gone: its link stays down until the fabric is started anew"
            );
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
