//! Scenario files as they are written: one struct for each table. Unknown keys are refused.

use std::collections::BTreeMap;

use serde::Deserialize;
use shm::attr::RecoveryPolicy;

use crate::workload::WorkloadSettings;

/// A whole file.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioSettings {
    /// `[topology]`
    pub topology: TopologySettings,
    /// `[link]`
    #[serde(default)]
    pub link: LinkTable,
    /// `[switch]`
    #[serde(default)]
    pub switch: SwitchTable,
    /// `[host]`
    #[serde(default)]
    pub host: HostTable,
    /// `[recovery]`
    #[serde(default)]
    pub recovery: RecoveryTable,
    /// `[congestion]`
    #[serde(default)]
    pub congestion: CongestionTable,
    /// `[qos]`
    #[serde(default)]
    pub qos: QosTable,
    /// `[[workload]]`
    #[serde(default)]
    pub workload: Vec<WorkloadSettings>,
    /// `[faults]`
    #[serde(default)]
    pub faults: FaultsTable,
    /// `[run]`
    #[serde(default)]
    pub run: RunTable,
}

/// `[topology]`; `kind` says which.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum TopologySettings {
    /// Two hosts on one link.
    Pair,
    /// Hosts on one switch: `senders` of them, and the last one, which they are to send to.
    Incast {
        /// Hosts but one.
        senders: u16,
    },
    /// Two switches with a trunk between them.
    Dumbbell {
        /// Hosts on one switch.
        left: u16,
        /// Hosts on the other.
        right: u16,
    },
    /// Every leaf with every spine.
    LeafSpine {
        /// Leaf switches.
        leaves: u16,
        /// Spine switches.
        spines: u16,
        /// Hosts on each leaf.
        hosts: u16,
    },
    /// A fat tree of switches with `k` ports.
    FatTree {
        /// Ports of a switch: even.
        k: u16,
    },
}

/// `[link]`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkTable {
    /// Mbit/s of hosts' links.
    pub rate_mbps: u32,
    /// From the end of sending to arrival, ns.
    pub delay_ns: u64,
    /// Added to it by chance, at most, ns.
    pub jitter_ns: u64,
    /// Layer 3 bytes of the largest frame.
    pub mtu: u16,
    /// Mbit/s of links between switches; as hosts' links if it is not there.
    pub trunk_rate_mbps: Option<u32>,
    /// The delay of links between switches, ns, likewise.
    pub trunk_delay_ns: Option<u64>,
}

impl Default for LinkTable {
    fn default() -> Self {
        Self {
            rate_mbps: 100_000,
            delay_ns: 1_000,
            jitter_ns: 0,
            mtu: 4_200,
            trunk_rate_mbps: None,
            trunk_delay_ns: None,
        }
    }
}

/// `[switch]`
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwitchTable {
    /// All of a switch's buffer, bytes.
    pub buffer_bytes: u64,
    /// What a queue may have of it, in multiples of what is free.
    pub alpha: f64,
    /// What a queue may have of it, bytes; instead of `alpha`.
    pub static_threshold_bytes: Option<u64>,
    /// Marks begin here, bytes; with none of the three keys nothing is marked.
    pub kmin_bytes: Option<u64>,
    /// Every packet is marked above this, bytes.
    pub kmax_bytes: Option<u64>,
    /// Share of packets that are marked at `kmax_bytes`.
    pub pmax: Option<f64>,
    /// Headroom of each lossless priority of each port, bytes; what the link needs if it is not there.
    pub headroom_bytes: Option<u64>,
    /// How far below its threshold a paused priority must be before it goes on, bytes.
    pub xon_offset_bytes: u64,
}

impl Default for SwitchTable {
    fn default() -> Self {
        Self {
            buffer_bytes: 16 << 20,
            alpha: 1.0,
            static_threshold_bytes: None,
            kmin_bytes: None,
            kmax_bytes: None,
            pmax: None,
            headroom_bytes: None,
            xon_offset_bytes: 20_000,
        }
    }
}

/// `[host]`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostTable {
    /// From one turn of a busy engine to the next, ns.
    pub turn_ns: u64,
    /// Frames that an engine takes in one turn.
    pub rx_burst: usize,
    /// Frames that a device's queue holds.
    pub tx_queue_frames: usize,
    /// Frames that may wait for an engine.
    pub rx_queue_frames: usize,
    /// Packets that a QP may have unacknowledged; a power of two.
    pub window_packets: u32,
    /// An acknowledgement is asked for every so many packets.
    pub ack_request_packets: u32,
}

impl Default for HostTable {
    fn default() -> Self {
        Self {
            turn_ns: 1_000,
            rx_burst: 32,
            tx_queue_frames: 8,
            rx_queue_frames: 4_096,
            window_packets: 256,
            ack_request_packets: 32,
        }
    }
}

/// `[recovery]`. What is not there is as the engine has it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecoveryTable {
    /// What is done about losses: `gbn`, `sr` or `hybrid`.
    pub policy: String,
    /// The short timer with few packets in flight, us.
    pub rto_low_us: Option<u32>,
    /// The short timer with more packets in flight, us.
    pub rto_high_us: Option<u32>,
    /// So many packets in flight are few.
    pub few_packets: Option<u32>,
    /// The long timer at first, us.
    pub rto_min_us: Option<u32>,
    /// The long timer at most, us.
    pub rto_max_us: Option<u32>,
    /// For so long a packet may be late before it is lost, percent of the least round trip time.
    pub reorder_percent: Option<u32>,
    /// That time grows up to so many times itself.
    pub reorder_factor: Option<u32>,
    /// A hybrid QP goes back N when more packets than this are missing.
    pub holes: Option<u32>,
    /// Packets that a host keeps until what is missing before them has come.
    pub kept_packets: Option<u32>,
    /// The timeout attribute of QPs: 4.096 us * 2^n.
    pub timeout: u8,
    /// Retries after that, 0 to 7.
    pub retry_cnt: u8,
}

impl Default for RecoveryTable {
    fn default() -> Self {
        Self {
            policy: RecoveryPolicy::GoBackN.name().to_owned(),
            rto_low_us: None,
            rto_high_us: None,
            few_packets: None,
            rto_min_us: None,
            rto_max_us: None,
            reorder_percent: None,
            reorder_factor: None,
            holes: None,
            kept_packets: None,
            timeout: 10,
            retry_cnt: 7,
        }
    }
}

/// `[congestion]`: an algorithm, and parameters of the engine's own table, which says what is legal.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
pub struct CongestionTable {
    /// Who decides about rates; nobody if it is not there.
    pub algorithm: Option<String>,
    /// Values by parameter: with a unit as text, or bare.
    #[serde(flatten)]
    pub values: BTreeMap<String, toml::Value>,
}

/// `[qos]`
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QosTable {
    /// DSCP of the flows' packets.
    pub dscp: u8,
    /// Priorities that switches do not lose frames of: they pause who sends them.
    pub pfc: Vec<u8>,
    /// Weights of the eight priorities; 0 = strict. All are strict if it is not there.
    pub weights: Option<[u16; 8]>,
}

impl Default for QosTable {
    /// DSCP 26 is priority 3.
    fn default() -> Self {
        Self { dscp: 26, pfc: Vec::new(), weights: None }
    }
}

/// `[faults]`: of all links of one kind, both ways. Chances are in frames of a million.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultsTable {
    /// Which links.
    pub links: FaultyLinks,
    /// A frame is lost.
    pub loss_ppm: u32,
    /// A burst of losses begins (Gilbert's model).
    pub burst_start_ppm: u32,
    /// Frames in such a burst, on average.
    pub burst_frames: u32,
    /// A frame arrives twice.
    pub duplicate_ppm: u32,
    /// A frame is held back while others pass.
    pub reorder_ppm: u32,
    /// For at most so long, ns.
    pub reorder_ns: u64,
    /// Bits are flipped.
    pub corrupt_ppm: u32,
    /// A frame is cut short.
    pub truncate_ppm: u32,
    /// A frame and all behind it are delayed.
    pub spike_ppm: u32,
    /// By so much, ns.
    pub spike_ns: u64,
    /// An ECN-capable packet is marked though no queue is full.
    pub mark_ppm: u32,
    /// The link goes down after at most so long, ns; never if it is not there.
    pub flap_up_ns: Option<u64>,
    /// And up again after at most so long, ns.
    pub flap_down_ns: Option<u64>,
    /// Hosts that something befalls.
    pub mishaps: Vec<MishapTable>,
}

/// Which links have faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultyLinks {
    /// All.
    #[default]
    All,
    /// Those of hosts.
    Hosts,
    /// Those between switches.
    Trunks,
}

/// One of `[[faults.mishaps]]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MishapTable {
    /// What happens.
    pub kind: MishapName,
    /// To whom.
    pub host: u16,
    /// When, us.
    pub at_us: u64,
    /// For how long, us: of a stall.
    pub for_us: Option<u64>,
}

/// Kinds of mishaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MishapName {
    /// The host does nothing for a time.
    Stall,
    /// Its client dies.
    Death,
    /// Its client writes random bytes over its rings.
    Garbage,
}

/// `[run]`
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunTable {
    /// What it is called in reports.
    pub title: String,
    /// It ends at the latest after so long, us.
    pub duration_us: u64,
    /// Queues and counters are looked at every so often, ns.
    pub sample_ns: u64,
    /// Path MTU of connections, bytes.
    pub path_mtu: u32,
    /// Bytes of a work request at most.
    pub message_bytes: u32,
    /// Work requests that a connection has outstanding at most.
    pub outstanding: u16,
    /// Which flows share a connection.
    pub sharing: SharingName,
    /// Every byte is checked.
    pub verify: bool,
}

impl Default for RunTable {
    fn default() -> Self {
        Self {
            title: String::new(),
            duration_us: 10_000_000,
            sample_ns: 10_000,
            path_mtu: 4_096,
            message_bytes: 64 << 10,
            outstanding: 16,
            sharing: SharingName::Flow,
            verify: false,
        }
    }
}

/// Which flows share a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SharingName {
    /// None.
    Flow,
    /// Those between the same hosts with the same operation.
    Pair,
}
