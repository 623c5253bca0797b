//! Turns in real time: what came in goes to the model, what is due happens, what comes out goes to the devices.

use std::os::fd::AsFd;
use std::thread;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::sys::time::{TimeSpec, TimeValLike};
use pmd::Clock;
use sim::Time;

use crate::config::IdlePolicy;
use crate::control::{Asked, ControlSocket};
use crate::device::{Attachment, Device, Packet};
use crate::model::Fabric;

/// It yields for so long before it sleeps.
const YIELD_NS: u64 = 50_000;
/// Devices over the kernel wake nobody, so that sleeps are short while there is traffic ...
const SLEEP_NS: u64 = 50_000;
/// ... and longer after a time without any.
const SLEEP_NS_MAX: u64 = 500_000;
/// That time.
const QUIET_NS: u64 = 5_000_000;
/// Signals and commands are looked for every so many turns even if there is always something to do.
const TURNS_PER_LOOK: u64 = 256;
/// The system is asked about interfaces so often.
const INTERFACES_NS: u64 = 20_000_000;

/// What somebody outside wants, or has to know.
#[derive(Debug)]
pub enum Wish {
    /// The statistics.
    Statistics,
    /// The end.
    End,
    /// A command, which waits for its answer.
    Command(Asked),
    /// A port's interface has gone down, come up or vanished.
    Interface(u16, Attachment),
}

/// How the machine kept up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pace {
    /// Turns.
    pub turns: u64,
    /// Of these, turns that came more than a millisecond after the one before, sleeping not counted.
    pub late_turns: u64,
    /// How much later than that they came, all together, ns.
    pub late_ns: u64,
    /// The longest time between two turns, ns.
    pub longest_ns: u64,
}

/// A turn that comes so much later than the one before is late.
const LATE_NS: u64 = 1_000_000;

/// The fabric on its devices.
#[derive(Debug)]
pub struct Runner {
    clock: Clock,
    fabric: Fabric<Packet>,
    devices: Vec<Device>,
    idle: IdlePolicy,
    stats_interval_ns: Option<u64>,
    stats_at_ns: u64,
    interfaces_at_ns: u64,
    /// When there was something to do for the last time, ns.
    busy_at_ns: u64,
    turned_at_ns: u64,
    pace: Pace,
}

impl Runner {
    /// A fabric whose clock starts now.
    pub fn new(
        clock: Clock,
        fabric: Fabric<Packet>,
        devices: Vec<Device>,
        idle: IdlePolicy,
        stats_interval_ns: Option<u64>,
    ) -> Self {
        let now_ns = clock.now_ns();
        Self {
            clock,
            fabric,
            devices,
            idle,
            stats_interval_ns,
            stats_at_ns: stats_interval_ns.map_or(u64::MAX, |ns| now_ns + ns),
            interfaces_at_ns: now_ns,
            busy_at_ns: now_ns,
            turned_at_ns: now_ns,
            pace: Pace::default(),
        }
    }

    /// Goes on until somebody wants something.
    ///
    /// # Errors
    /// Signals cannot be read.
    pub fn run(&mut self, signals: &SignalFd, mut commands: Option<&mut ControlSocket>) -> Result<Wish, Errno> {
        loop {
            let now_ns = self.clock.now_ns();
            let is_busy = self.turn(now_ns);
            let waits = !is_busy && self.wait(now_ns, signals, commands.as_deref())?;
            if waits || self.pace.turns.is_multiple_of(TURNS_PER_LOOK) {
                if let Some(wish) = wish(signals)? {
                    return Ok(wish);
                }
                if let Some(asked) = commands.as_mut().and_then(|commands| commands.take_command()) {
                    return Ok(Wish::Command(asked));
                }
            }
            if now_ns >= self.interfaces_at_ns {
                if let Some((port, found)) = self.look_at_interfaces() {
                    return Ok(Wish::Interface(port, found));
                }
                self.interfaces_at_ns = now_ns + INTERFACES_NS;
            }
            if now_ns >= self.stats_at_ns {
                // From the time that it was due, so that intervals do not drift.
                self.stats_at_ns += self.stats_interval_ns.unwrap_or(u64::MAX);
                return Ok(Wish::Statistics);
            }
        }
    }

    /// The first port whose interface has changed. Its link follows.
    fn look_at_interfaces(&mut self) -> Option<(u16, Attachment)> {
        let mut changed = (0..).zip(&mut self.devices).filter_map(|(port, device)| Some((port, device.look()?)));
        let (port, found) = changed.next()?;
        self.fabric.set_device(port, found == Attachment::Up);
        Some((port, found))
    }

    /// The port of a device, of an interface, or of a number from 0.
    pub fn port_named(&self, name: &str) -> Option<u16> {
        let is_it = |device: &Device| device.name() == name || device.interface() == Some(name);
        let number = || name.parse().ok().filter(|&number: &usize| number < self.devices.len());
        self.devices.iter().position(is_it).or_else(number).and_then(|port| u16::try_from(port).ok())
    }

    /// A turn. True if any frame moved.
    fn turn(&mut self, now_ns: u64) -> bool {
        let now = Time::from_ns(now_ns);
        let gap_ns = now_ns.saturating_sub(self.turned_at_ns);
        self.pace.turns += 1;
        self.pace.late_turns += u64::from(gap_ns > LATE_NS);
        self.pace.late_ns += gap_ns.saturating_sub(LATE_NS);
        self.pace.longest_ns = self.pace.longest_ns.max(gap_ns);
        let mut is_busy = false;
        for (device, port) in self.devices.iter_mut().zip(0..) {
            // As many as the link could carry since the last turn, no more.
            while self.fabric.wants(port, now)
                && let Some(packet) = device.receive()
            {
                self.fabric.receive(port, packet);
                is_busy = true;
            }
        }
        self.fabric.turn(now);
        for (device, port) in self.devices.iter_mut().zip(0..) {
            // A burst at a time, until the device takes no more or there is none.
            loop {
                while device.has_room()
                    && let Some(carried) = self.fabric.take(port)
                {
                    device.send(carried);
                }
                if !device.flush() {
                    break;
                }
                is_busy = true;
            }
        }
        if is_busy {
            self.busy_at_ns = now_ns;
        }
        self.turned_at_ns = now_ns;
        is_busy
    }

    /// Lets time go by until something may be due. True if it slept.
    fn wait(&mut self, now_ns: u64, signals: &SignalFd, commands: Option<&ControlSocket>) -> Result<bool, Errno> {
        let quiet_ns = now_ns.saturating_sub(self.busy_at_ns);
        if self.idle == IdlePolicy::Spin {
            std::hint::spin_loop();
            return Ok(false);
        }
        let longest = if quiet_ns < QUIET_NS { SLEEP_NS } else { SLEEP_NS_MAX };
        let free = (0..).zip(&self.devices).filter(|(_, device)| device.is_waiting());
        let free = free.map(|(port, _)| self.fabric.wants_at(port)).min().unwrap_or(Time::NEVER);
        let due_ns = self.fabric.next_at().min(free).as_ns().min(self.stats_at_ns).min(self.interfaces_at_ns);
        let sleep_ns = due_ns.saturating_sub(now_ns).min(longest);
        let is_unsent = self.devices.iter().any(|device| device.unsent() > 0);
        if quiet_ns < YIELD_NS || sleep_ns < YIELD_NS / 2 || is_unsent {
            thread::yield_now();
            return Ok(false);
        }
        // Twice the same where there are no commands.
        let [signals, commands] = [signals.as_fd(), commands.map_or(signals.as_fd(), ControlSocket::fd)];
        let mut fds = [signals, commands].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match ppoll(&mut fds, Some(TimeSpec::nanoseconds(sleep_ns as i64)), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        // What was slept on purpose is not late.
        self.turned_at_ns += self.clock.now_ns().saturating_sub(now_ns).min(sleep_ns);
        Ok(true)
    }

    /// Time since the start, ns.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Has a port's link go down or up.
    pub fn set_link(&mut self, port: u16, is_up: bool) {
        self.fabric.set_link(port, is_up);
    }

    /// The switch and its links.
    pub fn fabric(&self) -> &Fabric<Packet> {
        &self.fabric
    }

    /// The devices of the ports.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// How the machine kept up.
    pub fn pace(&self) -> Pace {
        self.pace
    }
}

fn wish(signals: &SignalFd) -> Result<Option<Wish>, Errno> {
    let Some(info) = signals.read_signal()? else { return Ok(None) };
    let is_usr1 = i32::try_from(info.ssi_signo) == Ok(Signal::SIGUSR1 as i32);
    Ok(Some(if is_usr1 { Wish::Statistics } else { Wish::End }))
}
