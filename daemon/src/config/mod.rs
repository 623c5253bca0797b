//! Configuration: a TOML file and flags (flags win), checked into typed values. `docs/config.md` is the operator's page.
//!
//! An error is a sentence that names the key, the value and what would be legal.

mod args;
mod qos;
mod raw;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Read;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use engine::config::{Limits, PortAddress, ProcessMemoryPolicy, RecoveryConfig, TransportConfig};
use nix::fcntl::OFlag;
use pmd::{FaultRates, MemoryMode};
use shm::qos::QosSettings;
use thiserror::Error;

use crate::IdlePolicy;
use crate::middleware::FaultSetup;
use crate::port::{ADDRESS_COUNT_MAX, Device, MTU_BYTES_DEFAULT, PortSetup};
use crate::threads::LcoreSetup;
pub use args::Args;
use qos::RawQos;
use raw::{RawConfig, RawCongestion, RawFault, RawLimits, RawPort, RawRecovery, RawTransport};
use shm::attr::RecoveryPolicy;

/// Read where it exists and no other is named.
pub const CONFIG_FILE: &str = "/etc/ferroce/ferroced.toml";
/// Largest configuration file.
const CONFIG_FILE_BYTES_MAX: u64 = 1 << 20;
/// Where clients look for a daemon first.
pub const SOCKET_PATH: &str = "/run/ferroce/ferroced.sock";
/// A UNIX socket's address holds no longer path.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Free hugepages, in MiB, from which the default is to use them.
const HUGEPAGES_MIB_MIN: u32 = 256;

/// Why a configuration is refused.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("configuration file {}: {source}", .path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// The file is not TOML, or has a key that does not exist or a value of another type.
    #[error("configuration file {}: {source}", .path.display())]
    Syntax {
        /// The path.
        path: PathBuf,
        /// Where and what.
        source: Box<toml::de::Error>,
    },
    /// A value that is not legal.
    #[error("{key} = {value}: {legal}")]
    Value {
        /// The key, with its table.
        key: String,
        /// What was set.
        value: String,
        /// What would be legal, as the rest of a sentence.
        legal: String,
    },
    /// Settings that contradict each other, or are missing.
    #[error("{0}")]
    Combination(String),
}

/// A checked configuration: what counts, defaults filled in.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Device name that clients see.
    pub device: String,
    /// Path of the control socket.
    pub socket: PathBuf,
    /// Permissions of its file: who may write it may connect.
    pub socket_mode: u32,
    /// What is logged: directives of tracing's `EnvFilter`.
    pub log: String,
    /// Lcores.
    pub lcores: LcoreSetup,
    /// Where packet buffers lie.
    pub memory: MemoryMode,
    /// Whose processes may register any memory they have.
    pub process_memory: ProcessMemoryPolicy,
    /// Limits.
    pub limits: Limits,
    /// Transport settings.
    pub transport: TransportConfig,
    /// Quality of service that every port starts with.
    pub qos: QosSettings,
    /// Congestion control.
    pub congestion: engine::cc::Settings,
    /// Loss recovery.
    pub recovery: RecoveryConfig,
    /// Ports, in the order of their numbers. Their queue pairs are as many as the lcores.
    pub ports: Vec<PortSetup>,
}

/// What the defaults depend on, and what a configuration is checked against.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Cores that the process may use.
    pub available_cores: Vec<usize>,
    /// Cores that the kernel's scheduler leaves alone (`isolcpus`).
    pub isolated_cores: Vec<usize>,
    /// Memory without `memory` being set.
    pub best_memory: MemoryMode,
}

impl Machine {
    /// This one.
    pub fn this() -> Self {
        let isolated = fs::read_to_string("/sys/devices/system/cpu/isolated").unwrap_or_default();
        Self {
            available_cores: pmd::available_cores().unwrap_or_default(),
            isolated_cores: parse_core_list(&isolated),
            best_memory: MemoryMode::best_available(HUGEPAGES_MIB_MIN),
        }
    }
}

/// The kernel's list form: `1-3,7`. What does not parse is left out.
fn parse_core_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

impl Config {
    /// Reads the file that `args` name (or [`CONFIG_FILE`], if it exists), lets the flags win, and checks the outcome.
    ///
    /// # Errors
    /// [`ConfigError`]: sentences for the operator.
    pub fn load(args: &Args, machine: &Machine) -> Result<Self, ConfigError> {
        let mut raw = match (&args.config, Path::new(CONFIG_FILE)) {
            (Some(path), _) => read(path)?,
            (None, usual) if usual.exists() => read(usual)?,
            (None, _) => RawConfig::default(),
        };
        args.override_file(&mut raw)?;
        validate(&raw, machine)
    }

    /// The configuration that counts, as a file with every key.
    pub fn to_toml(&self) -> String {
        let (memory, memory_mib) = match self.memory {
            MemoryMode::Hugepages => ("hugepages", None),
            MemoryMode::InMemory => ("in-memory", None),
            MemoryMode::NoHuge { mib } => ("no-huge", Some(i64::from(mib))),
        };
        let bound = self.lcores.cores.iter().flatten();
        let raw = RawConfig {
            device: Some(self.device.clone()),
            socket: Some(self.socket.clone()),
            socket_mode: Some(format!("{:04o}", self.socket_mode)),
            log: Some(self.log.clone()),
            lcores: Some(bound.filter_map(|&core| i64::try_from(core).ok()).collect()),
            lcore_count: i64::try_from(self.lcores.cores.len()).ok(),
            idle: Some(idle_word(self.lcores.idle).to_owned()),
            memory: Some(memory.to_owned()),
            memory_mib,
            process_memory: Some(process_memory_word(self.process_memory).to_owned()),
            limits: RawLimits::resolved(&self.limits),
            transport: RawTransport::resolved(&self.transport),
            qos: RawQos::resolved(&self.qos),
            congestion: RawCongestion::resolved(&self.congestion),
            recovery: RawRecovery::resolved(&self.recovery),
            port: self.ports.iter().map(raw_port).collect(),
        };
        toml::to_string(&raw).expect("tables of numbers, words and lists are TOML")
    }
}

fn read(path: &Path) -> Result<RawConfig, ConfigError> {
    let failed = |source| ConfigError::File { path: path.to_owned(), source };
    // A device or a pipe may go on for ever, and so may the opening of one: non-blocking it is.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() || metadata.len() > CONFIG_FILE_BYTES_MAX {
        let message = format!("it must be a regular file of at most {CONFIG_FILE_BYTES_MAX} bytes");
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, message)));
    }
    let mut text = String::new();
    file.take(CONFIG_FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    toml::from_str(&text).map_err(|source| ConfigError::Syntax { path: path.to_owned(), source: Box::new(source) })
}

fn illegal(key: &str, value: impl Display, legal: impl Into<String>) -> ConfigError {
    ConfigError::Value { key: key.to_owned(), value: value.to_string(), legal: legal.into() }
}

/// A number in its range, in its type.
fn in_range<T: TryFrom<i64>>(
    key: &str,
    value: Option<i64>,
    range: RangeInclusive<i64>,
) -> Result<Option<T>, ConfigError> {
    let Some(value) = value else { return Ok(None) };
    let legal = || format!("{} to {} are possible", range.start(), range.end());
    let typed = T::try_from(value).ok().filter(|_| range.contains(&value));
    typed.map(Some).ok_or_else(|| illegal(key, value, legal()))
}

fn validate(raw: &RawConfig, machine: &Machine) -> Result<Config, ConfigError> {
    let lcores = lcores(raw, machine)?;
    let queue_pairs = u16::try_from(lcores.cores.len()).unwrap_or(u16::MAX);
    let ports = raw.port.iter().zip(1..).map(|(port, number)| validate_port(port, number, queue_pairs));
    let ports = ports.collect::<Result<Vec<_>, _>>()?;
    if ports.is_empty() || ports.len() > 8 {
        let message = "a daemon has 1 to 8 ports, and is configured with";
        let hint = "name one by a [[port]] table or by --vdev or --pci";
        return Err(ConfigError::Combination(format!("{message} {}: {hint}", ports.len())));
    }
    let transport = raw.transport.validate()?;
    let window = transport.window_packets;
    if !window.is_power_of_two() {
        return Err(illegal("transport.window_packets", window, "1 to 65536 are possible, powers of two only"));
    }
    Ok(Config {
        device: device(raw)?,
        socket: socket(raw)?,
        socket_mode: socket_mode(raw)?,
        log: raw.log.clone().unwrap_or_else(|| "info".to_owned()),
        memory: memory(raw, machine)?,
        process_memory: process_memory(raw)?,
        limits: raw.limits.validate()?,
        qos: raw.qos.validate()?,
        lcores,
        transport,
        congestion: raw.congestion.validate()?,
        recovery: recovery(raw)?,
        ports,
    })
}

fn recovery(raw: &RawConfig) -> Result<RecoveryConfig, ConfigError> {
    let numbers = raw.recovery.validate()?;
    if numbers.rto_min_us > numbers.rto_max_us {
        let legal = format!("at most rto_max_us, which is {}", numbers.rto_max_us);
        return Err(illegal("recovery.rto_min_us", numbers.rto_min_us, legal));
    }
    let policy = |key: &str, word: Option<&str>, default| match word {
        None => Ok(default),
        Some(word) => RecoveryPolicy::from_name(word)
            .ok_or_else(|| illegal(key, format!("{word:?}"), "\"gbn\", \"sr\" and \"hybrid\" are possible")),
    };
    Ok(RecoveryConfig {
        policy: policy("recovery.policy", raw.recovery.policy.as_deref(), numbers.policy)?,
        unasked: policy("recovery.unasked", raw.recovery.unasked.as_deref(), numbers.unasked)?,
        ..numbers
    })
}

fn device(raw: &RawConfig) -> Result<String, ConfigError> {
    let name = raw.device.as_deref().unwrap_or("ferroce0");
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > 63 || !name.chars().all(legal) {
        return Err(illegal("device", format!("{name:?}"), "1 to 63 letters, digits, `_`, `-` and `.` are possible"));
    }
    Ok(name.to_owned())
}

fn socket(raw: &RawConfig) -> Result<PathBuf, ConfigError> {
    let path = raw.socket.clone().unwrap_or_else(|| SOCKET_PATH.into());
    let bytes = path.as_os_str().len();
    if bytes == 0 || bytes > SOCKET_PATH_BYTES_MAX {
        let legal = format!("a path of 1 to {SOCKET_PATH_BYTES_MAX} bytes is possible, this one has {bytes}");
        return Err(illegal("socket", path.display(), legal));
    }
    Ok(path)
}

fn socket_mode(raw: &RawConfig) -> Result<u32, ConfigError> {
    let text = raw.socket_mode.as_deref().unwrap_or("0666");
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| {
        illegal("socket_mode", format!("{text:?}"), "octal digits from \"0000\" to \"0777\" are possible")
    })
}

fn lcores(raw: &RawConfig, machine: &Machine) -> Result<LcoreSetup, ConfigError> {
    let most = usize::from(engine::SHARD_COUNT_MAX);
    let wanted = raw.lcores.clone().unwrap_or_default();
    if wanted.len() > most {
        return Err(illegal("lcores", format!("{wanted:?}"), format!("at most {most} cores are possible")));
    }
    let mut bound = Vec::new();
    for core in wanted {
        let available = &machine.available_cores;
        match usize::try_from(core).ok().filter(|core| available.contains(core)) {
            Some(core) if bound.contains(&core) => {
                return Err(illegal("lcores", core, "each core can be named once"));
            }
            Some(core) => bound.push(core),
            None => return Err(illegal("lcores", core, format!("the cores of this process are {available:?}"))),
        }
    }
    let count: Option<usize> = in_range("lcore_count", raw.lcore_count, 1..=i64::from(engine::SHARD_COUNT_MAX))?;
    if let Some(count) = count
        && !bound.is_empty()
        && bound.len() != count
    {
        let message = format!("lcore_count = {count}, but lcores names {} cores: leave one of them out", bound.len());
        return Err(ConfigError::Combination(message));
    }
    let alone = !bound.is_empty() && bound.iter().all(|core| machine.isolated_cores.contains(core));
    let idle = match raw.idle.as_deref() {
        Some("spin") => IdlePolicy::Spin,
        Some("adaptive") => IdlePolicy::Adaptive,
        Some(other) => return Err(illegal("idle", format!("{other:?}"), "\"spin\" and \"adaptive\" are possible")),
        None if alone => IdlePolicy::Spin,
        None => IdlePolicy::Adaptive,
    };
    let cores = if bound.is_empty() { vec![None; count.unwrap_or(1)] } else { bound.into_iter().map(Some).collect() };
    Ok(LcoreSetup { cores, idle })
}

fn process_memory(raw: &RawConfig) -> Result<ProcessMemoryPolicy, ConfigError> {
    match raw.process_memory.as_deref() {
        None | Some("same-user") => Ok(ProcessMemoryPolicy::UserAndRoot(nix::unistd::geteuid().as_raw())),
        Some("all") => Ok(ProcessMemoryPolicy::Everybody),
        Some("none") => Ok(ProcessMemoryPolicy::Nobody),
        Some(other) => {
            let legal = "\"same-user\", \"all\" and \"none\" are possible";
            Err(illegal("process_memory", format!("{other:?}"), legal))
        }
    }
}

const fn process_memory_word(policy: ProcessMemoryPolicy) -> &'static str {
    match policy {
        ProcessMemoryPolicy::UserAndRoot(_) => "same-user",
        ProcessMemoryPolicy::Everybody => "all",
        ProcessMemoryPolicy::Nobody => "none",
    }
}

const fn idle_word(idle: IdlePolicy) -> &'static str {
    match idle {
        IdlePolicy::Spin => "spin",
        IdlePolicy::Adaptive => "adaptive",
    }
}

fn memory(raw: &RawConfig, machine: &Machine) -> Result<MemoryMode, ConfigError> {
    let mib: Option<u32> = in_range("memory_mib", raw.memory_mib, 64..=1_048_576)?;
    let without_hugepages = MemoryMode::NoHuge { mib: mib.unwrap_or(MemoryMode::DEFAULT_NO_HUGE_MIB) };
    let mode = match (raw.memory.as_deref(), mib) {
        (Some("no-huge"), _) | (None, Some(_)) => without_hugepages,
        (Some("hugepages"), _) => MemoryMode::Hugepages,
        (Some("in-memory"), _) => MemoryMode::InMemory,
        (None, None) => machine.best_memory,
        (Some(other), _) => {
            let legal = "\"hugepages\", \"in-memory\" and \"no-huge\" are possible";
            return Err(illegal("memory", format!("{other:?}"), legal));
        }
    };
    if let (Some(mib), MemoryMode::Hugepages | MemoryMode::InMemory) = (mib, mode) {
        let legal = "it limits memory without hugepages only: leave it out, or set memory = \"no-huge\"";
        return Err(illegal("memory_mib", mib, legal));
    }
    Ok(mode)
}

fn validate_port(raw: &RawPort, number: usize, queue_pairs: u16) -> Result<PortSetup, ConfigError> {
    let key = |key: &str| format!("port {number}: {key}");
    let device = match (&raw.vdev, &raw.pci) {
        (Some(vdev), None) => Device::Vdev(
            vdev.parse().map_err(|error: pmd::VdevParseError| illegal(&key("vdev"), vdev, error.to_string()))?,
        ),
        (None, Some(pci)) => Device::Pci(pci.clone()),
        _ => return Err(ConfigError::Combination(key("needs either `vdev` or `pci`"))),
    };
    let addresses = raw.addresses.iter().flatten().map(|text| address(&key("addresses"), text));
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    if addresses.len() > ADDRESS_COUNT_MAX {
        let legal = format!("at most {ADDRESS_COUNT_MAX} are possible");
        return Err(illegal(&key("addresses"), format!("{} addresses", addresses.len()), legal));
    }
    let shares_interface = matches!(&device, Device::Vdev(vdev) if vdev.kernel_interface().is_some());
    if addresses.is_empty() && !shares_interface {
        let hint = "such as [\"10.0.0.1\"]: the device has no interface of the kernel's to take one from";
        return Err(ConfigError::Combination(key(&format!("needs `addresses`, {hint}"))));
    }
    let mac = raw.mac.as_deref().map(|text| {
        let legal = "a unicast address such as 02:00:00:00:00:01 is possible";
        text.parse()
            .ok()
            .filter(|mac: &wire::MacAddr| mac.0[0] & 1 == 0)
            .ok_or_else(|| illegal(&key("mac"), text, legal))
    });
    let usual = PortSetup { addresses, ..PortSetup::new(device, Vec::new()) };
    let descriptors = |name: &str, value| in_range(&key(name), value, 64..=32_768);
    Ok(PortSetup {
        mac: mac.transpose()?,
        mtu_bytes: in_range(&key("mtu_bytes"), raw.mtu_bytes, 576..=9_216)?.unwrap_or(MTU_BYTES_DEFAULT),
        queue_pairs,
        rx_descriptors: descriptors("rx_descriptors", raw.rx_descriptors)?.unwrap_or(usual.rx_descriptors),
        tx_descriptors: descriptors("tx_descriptors", raw.tx_descriptors)?.unwrap_or(usual.tx_descriptors),
        spare_mbufs: in_range(&key("spare_mbufs"), raw.spare_mbufs, 64..=1_048_576)?.unwrap_or(usual.spare_mbufs),
        faults: raw.fault.as_ref().map(|fault| validate_fault(fault, number)).transpose()?,
        capture_file: raw.capture_file.clone(),
        roce_v1: raw.roce_v1.unwrap_or(usual.roce_v1),
        ..usual
    })
}

/// An address, or `address@vlan`.
fn address(key: &str, text: &str) -> Result<PortAddress, ConfigError> {
    let (ip, vlan) = match text.split_once('@') {
        None => (text, None),
        Some((ip, vlan)) => {
            let vid = vlan.parse().ok().filter(|vid| (1..=4094).contains(vid));
            (ip, Some(vid.ok_or_else(|| illegal(key, text, "VLANs from 1 to 4094 are possible behind the `@`"))?))
        }
    };
    let is_host = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast(),
        IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_multicast() && ip.to_ipv4_mapped().is_none(),
    };
    match ip.parse::<IpAddr>().ok().filter(is_host) {
        Some(ip) => Ok(PortAddress { vlan, ..ip.into() }),
        None => Err(illegal(
            key,
            text,
            "addresses of hosts such as 10.0.0.1, fd00::1 or, in VLAN 77, 10.0.0.1@77 are possible",
        )),
    }
}

fn validate_fault(raw: &RawFault, number: usize) -> Result<FaultSetup, ConfigError> {
    let rate = |name: &str, value: Option<f64>| {
        let value = value.unwrap_or(0.0);
        let key = format!("port {number}: fault.{name}");
        if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(illegal(&key, value, "0.0 to 1.0 are possible")) }
    };
    let rates = FaultRates {
        drop: rate("drop", raw.drop)?,
        duplicate: rate("duplicate", raw.duplicate)?,
        reorder: rate("reorder", raw.reorder)?,
        corrupt: rate("corrupt", raw.corrupt)?,
    };
    let seed = in_range(&format!("port {number}: fault.seed"), raw.seed, 0..=i64::MAX)?.unwrap_or(1);
    Ok(FaultSetup { rates, seed })
}

fn raw_port(port: &PortSetup) -> RawPort {
    let (vdev, pci) = match &port.device {
        Device::Vdev(vdev) => (Some(vdev.to_string()), None),
        Device::Pci(address) => (None, Some(address.clone())),
    };
    let fault = |FaultSetup { rates, seed }| RawFault {
        drop: Some(rates.drop),
        duplicate: Some(rates.duplicate),
        reorder: Some(rates.reorder),
        corrupt: Some(rates.corrupt),
        seed: i64::try_from(seed).ok(),
    };
    RawPort {
        vdev,
        pci,
        addresses: Some(port.addresses.iter().map(ToString::to_string).collect()),
        mac: port.mac.map(|mac| mac.to_string()),
        mtu_bytes: Some(port.mtu_bytes.into()),
        rx_descriptors: Some(port.rx_descriptors.into()),
        tx_descriptors: Some(port.tx_descriptors.into()),
        spare_mbufs: Some(port.spare_mbufs.into()),
        capture_file: port.capture_file.clone(),
        roce_v1: Some(port.roce_v1),
        fault: port.faults.map(fault),
    }
}
