//! What the fabric is told: a file, and flags over it.
//!
//! Both have the same keys. A port or the switch in a flag is its keys with commas between; `docs/fabric.md` has them all.

mod keys;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Parser;
use pmd::{MemoryMode, Vdev};
use serde::Deserialize;
use sim::link::{Faults, LinkSettings};
use sim::network::switch::SwitchSettings;

use crate::flaps::Flaps;
use value::{TIME, Value, quantity};

/// Most ports: DPDK is built for so many (`RTE_MAX_ETHPORTS`).
pub const PORT_COUNT_MAX: usize = 32;

/// A software switch between DPDK ports: the simulator's switch and links in real time.
///
/// Rate, delay, loss and the like are those of a port's link, both ways; buffer, marks and pauses are the switch's.
///
///   ferroce-fabric --port net_af_packet0,iface=veth0,rate=1Gbps,delay=10us,loss=1e-3 --port net_af_packet1,iface=veth1
///
///   ferroce-fabric --config fabric.toml --switch buffer=1MiB,kmin=20kB,kmax=100kB,pmax=0.1 --stats-interval 1s
///
///   ferroce-fabric --port net_af_packet0,iface=veth0 --port net_af_packet1,iface=veth1 --control /run/fabric.sock &
///   ferroce-fabric --control /run/fabric.sock down veth1
///
/// It learns which station is behind which port. SIGUSR1 prints the statistics, SIGTERM or SIGINT ends it and prints them once more.
#[derive(Clone, PartialEq, Debug, Default, Parser)]
#[command(name = "ferroce-fabric", version, verbatim_doc_comment, after_help = AFTER_HELP)]
pub struct Args {
    /// Configuration file (TOML). Flags win over it.
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print the configuration that counts, with every default, and exit.
    #[arg(long)]
    pub check_config: bool,

    /// A port: a device in DPDK's form, with the keys of its link among the device's own; may be repeated. Ports named by flags
    /// replace the file's.
    #[arg(long, value_name = "DEVICE[,KEY=VALUE]")]
    pub port: Vec<String>,

    /// Keys of the switch; may be repeated.
    #[arg(long, value_name = "KEY=VALUE[,KEY=VALUE]")]
    pub switch: Vec<String>,

    /// What luck is drawn from: marks, losses. [default: 1]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,

    /// What it does when nothing is due: spin (a core of its own) or adaptive (yields, then sleeps). [default: adaptive]
    #[arg(long, value_name = "POLICY")]
    pub idle: Option<String>,

    /// Memory of packet buffers: in-memory (hugepages) or no-huge. [default: in-memory if there are enough hugepages]
    #[arg(long, value_name = "MODE")]
    pub memory: Option<String>,

    /// Print the statistics every so often, such as 1s.
    #[arg(long, value_name = "TIME")]
    pub stats_interval: Option<String>,

    /// Print statistics as JSON, one object a line.
    #[arg(long)]
    pub json: bool,

    /// Take commands at this socket; with a command, give it to the fabric that does.
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,

    /// To the fabric that runs with --control SOCKET: down PORT, up PORT (a device, its interface or a number from 0) or stats.
    #[arg(value_name = "COMMAND", requires = "control", conflicts_with_all = ["config", "check_config", "port", "switch"])]
    pub command: Vec<String>,
}

const AFTER_HELP: &str = "\
Keys of a port: rate, delay, jitter, mtu, loss, burst_loss, burst_frames, duplicate, reorder, reorder_delay, corrupt, truncate, spike, spike_delay (chances: 1e-3 or
0.1%), faults (both, in, out), spare (roce: only RoCE packets meet faults, or none), flap_every, flap_for or down (2s-2.5s+7s-8s: the link is down then),
group (ports with the same lead to the same neighbours: flows spread over them).

Keys of the switch: buffer, alpha or queue_limit; kmin, kmax, pmax, mark (ECN marks); pfc (3, or 3+4), headroom, xon_offset, quanta; trust (dscp, pcp),
dscp_to_priority (26:3+48:6), weights (eight, 0 = strict, with + between); frames, stations, station_age.

Exit status: 0 ended by a signal, 1 something went wrong, 2 wrong usage or configuration.";

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {error}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system says; the sentence has it.
        error: std::io::Error,
    },
    /// It is not TOML, or has a key that there is not.
    #[error("{}: {error}", .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where, and what.
        error: Box<toml::de::Error>,
    },
    /// A key that there is not.
    #[error("{place} has no key `{key}`; its keys are {known}")]
    Key {
        /// Which part.
        place: String,
        /// The key.
        key: String,
        /// Those that there are.
        known: String,
    },
    /// A value out of its range, or of no sense.
    #[error("{place}: {key} = {value:?}, but it must be {legal}")]
    Value {
        /// Which part.
        place: String,
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// What is possible.
        legal: String,
    },
    /// Keys that do not go together, or that lack each other.
    #[error("{0}")]
    Combination(String),
    /// What the switch says.
    #[error("the switch: {0}")]
    Switch(#[from] sim::network::switch::BadSettings),
}

/// What is done when nothing is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IdlePolicy {
    /// Polls without a pause.
    Spin,
    /// Yields, then sleeps until something is due, and for a short time at most.
    #[default]
    Adaptive,
}

/// Which direction of a link has its faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Faulty {
    /// Both.
    #[default]
    Both,
    /// From the station to the switch.
    In,
    /// From the switch to the station.
    Out,
}

/// A port.
#[derive(Clone, PartialEq, Debug)]
pub struct PortSettings {
    /// The device, with what its driver is to be told.
    pub vdev: Vdev,
    /// Its link.
    pub link: LinkSettings,
    /// What goes wrong on the link.
    pub faults: Faults,
    /// And which way.
    pub faulty: Faulty,
    /// When it goes down and up by itself.
    pub flaps: Flaps,
    /// Ports of one group lead to the same neighbours.
    pub group: Option<String>,
}

impl PortSettings {
    /// What goes wrong towards the switch, and away from it.
    pub fn faults(&self) -> [Faults; 2] {
        let of = |this| if self.faulty == Faulty::Both || self.faulty == this { self.faults } else { Faults::NONE };
        [of(Faulty::In), of(Faulty::Out)]
    }
}

/// All that counts.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// The ports.
    pub ports: Vec<PortSettings>,
    /// The switch.
    pub switch: SwitchSettings,
    /// Frames inside at most; then frames wait in the devices.
    pub frames: usize,
    /// Stations that are known at most.
    pub stations: usize,
    /// A station is forgotten when nothing has come from it for so long, ns.
    pub station_age_ns: u64,
    /// What luck is drawn from.
    pub seed: u64,
    /// When nothing is due.
    pub idle: IdlePolicy,
    /// Hugepages or not; `None` takes what there is.
    pub memory: Option<MemoryName>,
    /// Statistics are printed every so often, ns.
    pub stats_interval_ns: Option<u64>,
}

/// Kinds of memory that can be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryName {
    /// Hugepages without a file.
    InMemory,
    /// Ordinary pages.
    NoHuge,
}

/// A file as it is written.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    seed: Option<u64>,
    idle: Option<String>,
    memory: Option<String>,
    stats_interval: Option<Value>,
    #[serde(default)]
    switch: BTreeMap<String, Value>,
    #[serde(default)]
    port: Vec<BTreeMap<String, Value>>,
}

fn illegal(place: &str, key: &'static str, value: &str, legal: &str) -> ConfigError {
    ConfigError::Value { place: place.to_owned(), key, value: value.to_owned(), legal: legal.to_owned() }
}

impl Settings {
    /// Reads the file, if one is named, puts the flags over it, and looks at all of it.
    ///
    /// # Errors
    /// The first thing that cannot be, as a sentence for the operator.
    pub fn load(args: &Args) -> Result<Self, ConfigError> {
        let mut raw = args.config.as_deref().map_or_else(|| Ok(RawFile::default()), read)?;
        if !args.port.is_empty() {
            raw.port = args.port.iter().map(|text| keys::port_from_flag(text)).collect::<Result<_, _>>()?;
        }
        for text in &args.switch {
            raw.switch.extend(keys::switch_from_flag(text)?);
        }
        raw.seed = args.seed.or(raw.seed);
        raw.idle = args.idle.clone().or(raw.idle);
        raw.memory = args.memory.clone().or(raw.memory);
        raw.stats_interval = args.stats_interval.clone().map(Value::Text).or(raw.stats_interval);
        Self::checked(&raw)
    }

    fn checked(raw: &RawFile) -> Result<Self, ConfigError> {
        if !(2..=PORT_COUNT_MAX).contains(&raw.port.len()) {
            let count = raw.port.len();
            return Err(ConfigError::Combination(format!(
                "a fabric has 2 to {PORT_COUNT_MAX} ports, not {count}: name them by --port or in [[port]] tables"
            )));
        }
        let ports = (0..).zip(&raw.port).map(|(number, table)| keys::port(number, table));
        let ports: Vec<PortSettings> = ports.collect::<Result<_, _>>()?;
        for (number, port) in ports.iter().enumerate() {
            let (name, interface) = (port.vdev.name(), port.vdev.kernel_interface());
            if ports[..number].iter().any(|other| other.vdev.name() == name) {
                return Err(ConfigError::Combination(format!("two ports are the device {name}")));
            }
            if let Some(interface) = interface
                && ports[..number].iter().any(|other| other.vdev.kernel_interface() == Some(interface))
            {
                return Err(ConfigError::Combination(format!("two ports are the interface {interface}")));
            }
        }
        let (switch, limits) = keys::switch(&raw.switch, &ports)?;
        switch.check(&ports.iter().map(|port| port.link.rate_mbps).collect::<Vec<_>>())?;
        let named = |key, text: &Option<String>, names: &[&str]| match text {
            Some(text) if !names.contains(&text.as_str()) => {
                Err(illegal("the configuration", key, text, &names.join(" or ")))
            }
            _ => Ok(()),
        };
        named("idle", &raw.idle, &["spin", "adaptive"])?;
        named("memory", &raw.memory, &["in-memory", "no-huge"])?;
        let stats_interval_ns = raw.stats_interval.as_ref().map(|value| {
            let text = value.text();
            let legal = "a time from 10ms to 3600s";
            let range = 10_000_000..=3_600_000_000_000;
            let found = quantity(&text, TIME).filter(|ns| range.contains(ns));
            found.ok_or_else(|| illegal("the configuration", "stats_interval", &text, legal))
        });
        Ok(Self {
            ports,
            switch,
            frames: limits.frames,
            stations: limits.stations,
            station_age_ns: limits.station_age_ns,
            seed: raw.seed.unwrap_or(1),
            idle: if raw.idle.as_deref() == Some("spin") { IdlePolicy::Spin } else { IdlePolicy::Adaptive },
            memory: raw.memory.as_deref().map(|text| match text {
                "no-huge" => MemoryName::NoHuge,
                _ => MemoryName::InMemory,
            }),
            stats_interval_ns: stats_interval_ns.transpose()?,
        })
    }

    /// For each port, all that lead to the same neighbours, itself included.
    pub fn sides(&self) -> Vec<Box<[u16]>> {
        let is_alike = |one: &PortSettings, other: &PortSettings| one.group.is_some() && one.group == other.group;
        let side = |(number, port)| {
            let others = self.ports.iter().zip(0u16..);
            others.filter(|&(other, at)| at == number || is_alike(port, other)).map(|(_, at)| at).collect()
        };
        (0u16..).zip(&self.ports).map(side).collect()
    }

    /// Where packet buffers lie.
    pub fn memory_mode(&self) -> MemoryMode {
        // Twice for receiving and sending; a buffer has its frame, headers of DPDK's, and what lies between blocks.
        let frame_bytes = |port: &PortSettings| u64::from(port.link.mtu).next_multiple_of(2_048) + 2_560;
        let bytes: u64 = self.ports.iter().map(|port| 2 * (self.frames as u64 + 3_072) * frame_bytes(port)).sum();
        let mib = u32::try_from(bytes >> 20).unwrap_or(u32::MAX).saturating_add(64);
        match self.memory {
            Some(MemoryName::InMemory) => MemoryMode::InMemory,
            Some(MemoryName::NoHuge) => MemoryMode::NoHuge { mib: mib.max(MemoryMode::DEFAULT_NO_HUGE_MIB) },
            None => MemoryMode::best_available(mib),
        }
    }

    /// As a file that says all of it.
    pub fn to_toml(&self) -> String {
        let idle = if self.idle == IdlePolicy::Spin { "spin" } else { "adaptive" };
        let mut text = format!("seed = {}\nidle = \"{idle}\"\n", self.seed);
        if let Some(memory) = self.memory {
            let name = if memory == MemoryName::InMemory { "in-memory" } else { "no-huge" };
            text.push_str(&format!("memory = \"{name}\"\n"));
        }
        if let Some(ns) = self.stats_interval_ns {
            text.push_str(&format!("stats_interval = \"{}\"\n", value::shown(ns, TIME)));
        }
        text.push_str(&format!("\n[switch]\n{}", keys::switch_toml(self)));
        for port in &self.ports {
            text.push_str(&format!("\n[[port]]\n{}", keys::port_toml(port)));
        }
        text
    }
}

fn read(path: &Path) -> Result<RawFile, ConfigError> {
    let unreadable = |error| ConfigError::Unreadable { path: path.to_owned(), error };
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    toml::from_str(&text).map_err(|error| ConfigError::Syntax { path: path.to_owned(), error: Box::new(error) })
}
