//! Scenario files: a network, its traffic and its faults in TOML, and the run that comes of it.
//!
//! `docs/simulator.md` has every key. What a file says is looked at as a whole before anything is built; what cannot be is refused
//! with a sentence that has the key, the value and what it may be.

mod execute;
mod settings;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use engine::Time;
use engine::cc::{Algorithm, Settings};
use engine::config::{RecoveryConfig, TransportConfig};
use ferroce::{ConnectAttr, PathMtu};
use shm::attr::RecoveryPolicy;
use shm::qos::QosSettings;

use crate::host::{EngineSize, HostSettings};
use crate::link::{Faults, Flaps, LinkSettings};
use crate::network::fabric::FabricSettings;
use crate::network::pause::PRIORITY_COUNT;
use crate::network::run::{Mishap, MishapKind, NetworkSettings};
use crate::network::serializer::OVERHEAD_BYTES;
use crate::network::switch::{Dequeue, Marking, PauseSettings, SwitchSettings, Threshold};
use crate::network::topology::{BadTopology, Topology};
use crate::network::traffic::{Sharing, TrafficSettings};
use crate::stats::ideal;
use crate::workload::{Surroundings, Workload, WorkloadError};
pub use execute::{Outcome, execute};
pub use settings::*;

/// What a packet in the middle of a message adds to its payload: Ethernet, IPv4, UDP, BTH, ICRC, and what a frame costs.
const HEADER_BYTES: u32 = 14 + 20 + 8 + 12 + 4 + OVERHEAD_BYTES as u32;
/// Longest run, us: an hour.
const DURATION_US_MAX: u64 = 3_600_000_000;
/// Largest work request, bytes.
const MESSAGE_BYTES_MAX: u32 = 64 << 20;

/// Why a file is no scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// It cannot be read.
    #[error("{}: {error}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        error: std::io::Error,
    },
    /// It is not TOML, or has a key that there is not, or a value of the wrong kind.
    #[error("{0}")]
    Syntax(Box<toml::de::Error>),
    /// A number out of its range.
    #[error("`{key}` is {value}; it must be {least} to {most}")]
    Range {
        /// Which key.
        key: &'static str,
        /// Its value.
        value: u64,
        /// The smallest allowed.
        least: u64,
        /// The largest allowed.
        most: u64,
    },
    /// A name that there is not.
    #[error("`{key}` is \"{value}\"; it may be {names}")]
    Name {
        /// Which key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        names: &'static str,
    },
    /// Keys that only make sense together.
    #[error("`{0}` needs `{1}` beside it")]
    Needs(&'static str, &'static str),
    /// A network that cannot be.
    #[error("[topology]: {0}")]
    Topology(#[from] BadTopology),
    /// Switches that cannot be.
    #[error("[switch]: {0}")]
    Switch(#[from] crate::network::switch::BadSettings),
    /// Congestion control that cannot be.
    #[error("[congestion]: {0}")]
    Congestion(String),
    /// A workload that cannot be.
    #[error("[[workload]]: {0}")]
    Workload(#[from] WorkloadError),
}

type Checked<T> = Result<T, ScenarioError>;

fn range(key: &'static str, value: impl Into<u64>, least: u64, most: u64) -> Checked<u64> {
    let value = value.into();
    if (least..=most).contains(&value) { Ok(value) } else { Err(ScenarioError::Range { key, value, least, most }) }
}

/// A scenario that was looked at, and can be run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The file's text.
    pub text: String,
    /// Folder of the file: relative files that it names are there.
    pub directory: PathBuf,
    /// What it says.
    pub settings: ScenarioSettings,
    /// The network that comes of it.
    pub network: NetworkSettings,
    /// When the run ends at the latest.
    pub end: Time,
}

impl Scenario {
    /// Reads a file.
    ///
    /// # Errors
    /// Why it is no scenario.
    pub fn read(path: &Path) -> Checked<Self> {
        let unreadable = |error| ScenarioError::Unreadable { path: path.to_path_buf(), error };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        Self::parse(text, path.parent().unwrap_or(Path::new(".")))
    }

    /// Reads a file's text. Relative files are in `directory`.
    ///
    /// # Errors
    /// Why it is no scenario.
    pub fn parse(text: String, directory: &Path) -> Checked<Self> {
        let settings: ScenarioSettings =
            toml::from_str(&text).map_err(|error| ScenarioError::Syntax(Box::new(error)))?;
        let network = network(&settings)?;
        let end = range("run.duration_us", settings.run.duration_us, 1, DURATION_US_MAX)? * 1_000;
        let scenario = Self { text, directory: directory.to_path_buf(), settings, network, end: Time::from_ns(end) };
        scenario.workload(0)?;
        Ok(scenario)
    }

    /// Its flows, for a seed.
    ///
    /// # Errors
    /// Why there are none.
    pub fn workload(&self, seed: u64) -> Checked<Workload> {
        let surroundings = Surroundings {
            host_count: self.network.fabric.topology.host_count,
            host_bits_per_s: u64::from(self.network.fabric.access.rate_mbps) * 1_000_000,
            directory: &self.directory,
        };
        Ok(Workload::new(&self.settings.workload, &surroundings, seed)?)
    }

    /// The way between two hosts when nobody else is on it.
    pub fn path(&self, from: u16, to: u16) -> ideal::Path {
        let fabric = &self.network.fabric;
        let hop = |link: &LinkSettings| ideal::Hop {
            bits_per_s: u64::from(link.rate_mbps) * 1_000_000,
            delay_ns: link.delay_ns,
        };
        // Without a switch there is one link; else there is one at each end, and trunks between.
        let links = fabric.topology.distance(from, to).unwrap_or(1) as usize;
        let mut hops = vec![hop(&fabric.trunk); links];
        hops[0] = hop(&fabric.access);
        hops[links - 1] = hop(&fabric.access);
        ideal::Path { hops, mtu_bytes: self.network.traffic.path_mtu.bytes(), overhead_bytes: HEADER_BYTES }
    }
}

fn network(settings: &ScenarioSettings) -> Checked<NetworkSettings> {
    let topology = topology(settings.topology)?;
    let (access, trunk) = links(&settings.link)?;
    let switch = switch(settings, &access, &trunk)?;
    for &ports in &topology.switch_ports {
        switch.check(&vec![access.rate_mbps; usize::from(ports)])?;
    }
    let faults = faults(&settings.faults)?;
    let has = |links| if [FaultyLinks::All, links].contains(&settings.faults.links) { faults } else { Faults::NONE };
    let mishaps = mishaps(&settings.faults.mishaps, topology.host_count)?;
    Ok(NetworkSettings {
        fabric: FabricSettings {
            host: host(settings)?,
            access_faults: has(FaultyLinks::Hosts),
            trunk_faults: has(FaultyLinks::Trunks),
            topology,
            access,
            trunk,
            switch,
        },
        traffic: traffic(settings)?,
        sample_ns: range("run.sample_ns", settings.run.sample_ns, 100, 1_000_000_000)?,
        mishaps,
    })
}

fn topology(settings: TopologySettings) -> Checked<Topology> {
    Ok(match settings {
        TopologySettings::Pair => Topology::pair(),
        TopologySettings::Incast { senders } => Topology::star(senders.saturating_add(1))?,
        TopologySettings::Dumbbell { left, right } => Topology::dumbbell(left, right)?,
        TopologySettings::LeafSpine { leaves, spines, hosts } => Topology::leaf_spine(leaves, spines, hosts)?,
        TopologySettings::FatTree { k } => Topology::fat_tree(k)?,
    })
}

fn links(table: &LinkTable) -> Checked<(LinkSettings, LinkSettings)> {
    const DELAY_NS_MAX: u64 = 1_000_000_000;
    let rate = |key, rate: u32| range(key, rate, 1, 1_600_000).map(|_| rate);
    let access = LinkSettings {
        rate_mbps: rate("link.rate_mbps", table.rate_mbps)?,
        delay_ns: range("link.delay_ns", table.delay_ns, 0, DELAY_NS_MAX)?,
        jitter_ns: range("link.jitter_ns", table.jitter_ns, 0, DELAY_NS_MAX)?,
        mtu: range("link.mtu", table.mtu, 576, 9_000)? as u16,
    };
    let trunk = LinkSettings {
        rate_mbps: rate("link.trunk_rate_mbps", table.trunk_rate_mbps.unwrap_or(access.rate_mbps))?,
        delay_ns: range("link.trunk_delay_ns", table.trunk_delay_ns.unwrap_or(access.delay_ns), 0, DELAY_NS_MAX)?,
        ..access
    };
    Ok((access, trunk))
}

fn switch(settings: &ScenarioSettings, access: &LinkSettings, trunk: &LinkSettings) -> Checked<SwitchSettings> {
    let (table, qos) = (&settings.switch, &settings.qos);
    let priorities = pause_priorities(qos)?;
    let marking = match (table.kmin_bytes, table.kmax_bytes, table.pmax) {
        (Some(kmin_bytes), Some(kmax_bytes), Some(pmax)) => Some(Marking { kmin_bytes, kmax_bytes, pmax }),
        (None, None, None) => None,
        (None, ..) => return Err(ScenarioError::Needs("switch.kmax_bytes and pmax", "switch.kmin_bytes")),
        (_, None, _) => return Err(ScenarioError::Needs("switch.kmin_bytes", "switch.kmax_bytes")),
        (.., None) => return Err(ScenarioError::Needs("switch.kmin_bytes", "switch.pmax")),
    };
    let dequeue = |weight| if weight == 0 { Dequeue::Strict } else { Dequeue::Weighted(weight) };
    let needed = access.headroom_bytes().max(trunk.headroom_bytes());
    Ok(SwitchSettings {
        buffer_bytes: table.buffer_bytes,
        threshold: table.static_threshold_bytes.map_or(Threshold::Dynamic(table.alpha), Threshold::Static),
        marking: [marking; PRIORITY_COUNT],
        pause: PauseSettings {
            priorities,
            headroom_bytes: table.headroom_bytes.unwrap_or(needed),
            xon_offset_bytes: table.xon_offset_bytes,
            quanta: u16::MAX,
        },
        dequeue: qos.weights.map_or([Dequeue::Strict; PRIORITY_COUNT], |weights| weights.map(dequeue)),
        ..SwitchSettings::default()
    })
}

fn host(settings: &ScenarioSettings) -> Checked<HostSettings> {
    let table = &settings.host;
    const FRAMES_MAX: u64 = 1 << 20;
    let frames = |key, frames: usize| range(key, frames as u64, 1, FRAMES_MAX).map(|frames| frames as usize);
    if !table.window_packets.is_power_of_two() {
        return Err(ScenarioError::Name {
            key: "host.window_packets",
            value: table.window_packets.to_string(),
            names: "a power of two",
        });
    }
    let transport = TransportConfig {
        window_packets: range("host.window_packets", table.window_packets, 2, 1 << 15)? as u32,
        ack_request_packets: range("host.ack_request_packets", table.ack_request_packets, 1, 1 << 15)? as u32,
        ..TransportConfig::default()
    };
    Ok(HostSettings {
        transport,
        turn_ns: range("host.turn_ns", table.turn_ns, 1, 1_000_000)?,
        rx_burst: frames("host.rx_burst", table.rx_burst)?,
        tx_queue_frames: frames("host.tx_queue_frames", table.tx_queue_frames)?,
        rx_queue_frames: frames("host.rx_queue_frames", table.rx_queue_frames)?,
        size: EngineSize { qps: 16_384, regions: 64, ..EngineSize::default() },
        recovery: recovery(&settings.recovery)?,
        congestion: congestion(&settings.congestion)?,
        qos: QosSettings { pfc: pause_priorities(&settings.qos)?, ..QosSettings::default() },
        ..HostSettings::default()
    })
}

fn congestion(table: &CongestionTable) -> Checked<Settings> {
    let text = |value: &toml::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let values: Vec<(&str, String)> = table.values.iter().map(|(name, value)| (name.as_str(), text(value))).collect();
    let values = values.iter().map(|(name, value)| (*name, value.as_str()));
    let algorithm = table.algorithm.as_deref().unwrap_or(Algorithm::None.name());
    let settings = Settings::new(Algorithm::None).change(Some(algorithm), values);
    settings.map_err(|error| ScenarioError::Congestion(error.to_string()))
}

/// Which priorities have flow control.
fn pause_priorities(table: &QosTable) -> Checked<[bool; PRIORITY_COUNT]> {
    let mut priorities = [false; PRIORITY_COUNT];
    for &priority in &table.pfc {
        priorities[range("qos.pfc", priority, 0, PRIORITY_COUNT as u64 - 1)? as usize] = true;
    }
    Ok(priorities)
}

fn recovery(table: &RecoveryTable) -> Checked<RecoveryConfig> {
    const US_MAX: u64 = 60_000_000;
    const NAMES: &str = "\"gbn\", \"sr\" or \"hybrid\"";
    let policy = RecoveryPolicy::from_name(&table.policy).ok_or_else(|| ScenarioError::Name {
        key: "recovery.policy",
        value: table.policy.clone(),
        names: NAMES,
    })?;
    let or = RecoveryConfig::default();
    let number = |key, value: Option<u32>, default: u32, least, most| {
        range(key, value.unwrap_or(default), least, most).map(|value| value as u32)
    };
    Ok(RecoveryConfig {
        policy,
        // Nothing is negotiated: both ends are made ready by hand.
        unasked: policy,
        rto_low_us: number("recovery.rto_low_us", table.rto_low_us, or.rto_low_us, 1, US_MAX)?,
        rto_high_us: number("recovery.rto_high_us", table.rto_high_us, or.rto_high_us, 1, US_MAX)?,
        few_packets: number("recovery.few_packets", table.few_packets, or.few_packets, 0, 1 << 15)?,
        rto_min_us: number("recovery.rto_min_us", table.rto_min_us, or.rto_min_us, 1, US_MAX)?,
        rto_max_us: number("recovery.rto_max_us", table.rto_max_us, or.rto_max_us, 1, US_MAX)?,
        reorder_percent: number("recovery.reorder_percent", table.reorder_percent, or.reorder_percent, 0, 10_000)?,
        reorder_factor: number("recovery.reorder_factor", table.reorder_factor, or.reorder_factor, 1, 1_000)?,
        holes: number("recovery.holes", table.holes, or.holes, 1, 1 << 15)?,
        kept_packets: number("recovery.kept_packets", table.kept_packets, or.kept_packets, 1, 1 << 20)?,
    })
}

fn traffic(settings: &ScenarioSettings) -> Checked<TrafficSettings> {
    let ScenarioSettings { run, recovery, qos, link, .. } = settings;
    let path_mtu = PathMtu::from_bytes(run.path_mtu).ok_or_else(|| ScenarioError::Name {
        key: "run.path_mtu",
        value: run.path_mtu.to_string(),
        names: "256, 512, 1024, 2048 or 4096",
    })?;
    range("run.path_mtu", run.path_mtu, 256, u64::from(link.mtu).saturating_sub(80).max(256))?;
    let attr = ConnectAttr {
        timeout: range("recovery.timeout", recovery.timeout, 1, 31)? as u8,
        retry_cnt: range("recovery.retry_cnt", recovery.retry_cnt, 0, 7)? as u8,
        traffic_class: (range("qos.dscp", qos.dscp, 0, 63)? as u8) << 2,
        ..ConnectAttr::default()
    };
    Ok(TrafficSettings {
        path_mtu,
        message_bytes: range("run.message_bytes", run.message_bytes, 1, u64::from(MESSAGE_BYTES_MAX))? as u32,
        outstanding: range("run.outstanding", run.outstanding, 1, 1_024)? as u16,
        sharing: match run.sharing {
            SharingName::Flow => Sharing::PerFlow,
            SharingName::Pair => Sharing::PerPair,
        },
        attr,
        verifies: run.verify,
        ..TrafficSettings::default()
    })
}

fn faults(table: &FaultsTable) -> Checked<Faults> {
    let ppm = |key, value: u32| range(key, value, 0, 1_000_000).map(|_| value);
    let flaps = match (table.flap_up_ns, table.flap_down_ns) {
        (None, None) => None,
        (Some(up_ns), Some(down_ns)) => Some(Flaps {
            up_ns: range("faults.flap_up_ns", up_ns, 1, u64::MAX >> 1)?,
            down_ns: range("faults.flap_down_ns", down_ns, 1, u64::MAX >> 1)?,
        }),
        (Some(_), None) => return Err(ScenarioError::Needs("faults.flap_up_ns", "faults.flap_down_ns")),
        (None, Some(_)) => return Err(ScenarioError::Needs("faults.flap_down_ns", "faults.flap_up_ns")),
    };
    Ok(Faults {
        loss_ppm: ppm("faults.loss_ppm", table.loss_ppm)?,
        burst_start_ppm: ppm("faults.burst_start_ppm", table.burst_start_ppm)?,
        burst_frames: table.burst_frames,
        duplicate_ppm: ppm("faults.duplicate_ppm", table.duplicate_ppm)?,
        reorder_ppm: ppm("faults.reorder_ppm", table.reorder_ppm)?,
        reorder_ns: table.reorder_ns,
        corrupt_ppm: ppm("faults.corrupt_ppm", table.corrupt_ppm)?,
        truncate_ppm: ppm("faults.truncate_ppm", table.truncate_ppm)?,
        spike_ppm: ppm("faults.spike_ppm", table.spike_ppm)?,
        mark_ppm: ppm("faults.mark_ppm", table.mark_ppm)?,
        spike_ns: table.spike_ns,
        flaps,
        spares_arp: true,
    })
}

fn mishaps(tables: &[MishapTable], host_count: u16) -> Checked<Vec<Mishap>> {
    let mishap = |table: &MishapTable| {
        let host = range("faults.mishaps.host", table.host, 0, u64::from(host_count) - 1)? as u16;
        let at = range("faults.mishaps.at_us", table.at_us, 0, DURATION_US_MAX)? * 1_000;
        let kind = match (table.kind, table.for_us) {
            (MishapName::Stall, Some(us)) => {
                MishapKind::Stall { ns: range("faults.mishaps.for_us", us, 1, DURATION_US_MAX)? * 1_000 }
            }
            (MishapName::Stall, None) => {
                return Err(ScenarioError::Needs("faults.mishaps.kind = \"stall\"", "faults.mishaps.for_us"));
            }
            (MishapName::Death, _) => MishapKind::Death,
            (MishapName::Garbage, _) => MishapKind::Garbage,
        };
        Ok(Mishap { kind, host, at: Time::from_ns(at) })
    };
    tables.iter().map(mishap).collect()
}
