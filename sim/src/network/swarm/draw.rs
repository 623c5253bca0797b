//! Settings of a network's run, drawn from its seed: each seed has a topology, a workload, policies and a fault mix of its own.

use engine::Time;
use engine::cc::{Algorithm, Settings};
use engine::config::{RecoveryConfig, TransportConfig};
use ferroce::{ConnectAttr, PathMtu};
use rand::Rng;
use rand::seq::IndexedRandom;
use shm::attr::RecoveryPolicy;
use shm::qos::QosSettings;

use super::SwarmSettings;
use crate::flow::FlowOp;
use crate::host::{EngineSize, HostSettings};
use crate::link::{Faults, Flaps, LinkSettings, Worst, maybe};
use crate::network::fabric::FabricSettings;
use crate::network::pause::PRIORITY_COUNT;
use crate::network::run::{Mishap, MishapKind, NetworkSettings};
use crate::network::switch::{Dequeue, Marking, PauseSettings, SwitchSettings, Threshold};
use crate::network::topology::Topology;
use crate::network::traffic::{Sharing, TrafficSettings};
use crate::random::{Stream, StreamOf, log_uniform, stream};
use crate::workload::settings::{AllToAllSettings, RingAllReduceSettings, WorkloadSettings};
use crate::workload::settings::{FlowSettings, FlowsSettings, IncastSettings, RoundsSettings};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// Bytes of all flows of a run, about, before a seed is too long.
const RUN_BYTES: u64 = 3 << 20;
/// Bytes of a host's checked flows.
const ARENA_BYTES: u64 = 4 << 20;
/// Margin between the longest round trip and the acknowledgement timeout.
const TIMEOUT_FACTOR: u64 = 2;
/// The priority of the flows, and the DSCP that is mapped to it.
const PRIORITY: usize = 3;
const DSCP: u8 = 26;
/// ECN-capable.
const ECT_0: u8 = 2;

/// All settings of the run of a seed.
pub fn draw(seed: u64) -> SwarmSettings {
    let mut s = stream(seed, StreamOf::NetworkSettings);
    let s = &mut s;
    let topology = draw_topology(s);
    let (access, trunk) = draw_links(s);
    let is_lossless = s.random();
    let switch = draw_switch(s, &access, &trunk, is_lossless, &topology);
    let host = draw_host(s, is_lossless);
    let faults = draw_faults(s, &access);
    // Links of one kind may be the bad ones.
    let [access_faults, trunk_faults] = match s.random_range(0..3) {
        0 => [faults, Faults::NONE],
        1 => [Faults::NONE, faults],
        _ => [faults, faults],
    };
    let workload = draw_workload(s, topology.host_count);
    let mishaps = draw_mishaps(s, topology.host_count);
    let fabric = FabricSettings { topology, host, access, trunk, switch, access_faults, trunk_faults };
    let round_trip_ns = longest_round_trip_ns(&fabric);
    let traffic = draw_traffic(s, &fabric, round_trip_ns);
    let timeout_ns = 4_096u64 << traffic.attr.timeout;
    SwarmSettings {
        network: NetworkSettings { fabric, traffic, sample_ns: 0, mishaps },
        workload,
        safety_ns: s.random_range(MS..=200 * MS),
        // All retries of a connection, and the time it rests before it comes back.
        settling_ns: 10 * timeout_ns + 2 * traffic.linger_ns + 100 * MS,
        is_lossless,
    }
}

fn draw_topology(s: &mut Stream) -> Topology {
    let drawn = match s.random_range(0..10) {
        0..3 => Topology::star(s.random_range(2..=6)),
        3..5 => Topology::dumbbell(s.random_range(1..=3), s.random_range(1..=3)),
        5..8 => Topology::leaf_spine(s.random_range(1..=3), s.random_range(1..=3), s.random_range(2..=3)),
        8 => Topology::fat_tree(if s.random_ratio(1, 4) { 4 } else { 2 }),
        _ => Ok(Topology::pair()),
    };
    // Every number above is in its range.
    drawn.unwrap_or_else(|_| Topology::pair())
}

fn draw_links(s: &mut Stream) -> (LinkSettings, LinkSettings) {
    let rates = [10_000, 25_000, 40_000, 100_000];
    let delays = [100, 500, 2 * US, 10 * US];
    let access = LinkSettings {
        rate_mbps: *rates.choose(s).unwrap_or(&10_000),
        delay_ns: *delays.choose(s).unwrap_or(&US),
        jitter_ns: if s.random_ratio(3, 4) { 0 } else { s.random_range(0..5 * US) },
        mtu: *[1_500, 4_200, 9_000].choose(s).unwrap_or(&1_500),
    };
    let trunk = LinkSettings {
        rate_mbps: *rates.choose(s).unwrap_or(&10_000),
        delay_ns: *delays.choose(s).unwrap_or(&US),
        ..access
    };
    (access, trunk)
}

fn draw_switch(
    s: &mut Stream,
    access: &LinkSettings,
    trunk: &LinkSettings,
    is_lossless: bool,
    topology: &Topology,
) -> SwitchSettings {
    let mut priorities = [false; PRIORITY_COUNT];
    priorities[PRIORITY] = is_lossless;
    let headroom_bytes = access.headroom_bytes().max(trunk.headroom_bytes());
    let ports = topology.switch_ports.iter().copied().max().unwrap_or(0);
    let headroom_of_all = if is_lossless { headroom_bytes * u64::from(ports) } else { 0 };
    let bits = s.random_range(16..=22);
    let shared_bytes = s.random_range(30_000u64..=1 << bits);
    let threshold = if s.random() {
        Threshold::Static(s.random_range(10_000..=shared_bytes))
    } else {
        Threshold::Dynamic(*[0.125, 0.5, 1.0, 8.0].choose(s).unwrap_or(&1.0))
    };
    let kmin_bytes = s.random_range(0..200_000);
    let marking = Marking { kmin_bytes, kmax_bytes: kmin_bytes + s.random_range(0..400_000), pmax: s.random() };
    let dequeue = if s.random() { Dequeue::Strict } else { Dequeue::Weighted(s.random_range(1..=100)) };
    SwitchSettings {
        buffer_bytes: headroom_of_all + shared_bytes,
        threshold,
        marking: if s.random() { [Some(marking); PRIORITY_COUNT] } else { [None; PRIORITY_COUNT] },
        pause: PauseSettings {
            priorities,
            headroom_bytes,
            xon_offset_bytes: s.random_range(0..20_000),
            // A short pause runs out if its refresh comes late.
            quanta: if access.jitter_ns == 0 && s.random() { 1_000 } else { u16::MAX },
        },
        dequeue: [dequeue; PRIORITY_COUNT],
        ..SwitchSettings::default()
    }
}

fn draw_host(s: &mut Stream, is_lossless: bool) -> HostSettings {
    let mut qos = QosSettings::default();
    qos.pfc[PRIORITY] = is_lossless;
    let policy = *RecoveryPolicy::ALL.choose(s).unwrap_or(&RecoveryPolicy::GoBackN);
    HostSettings {
        shard_count: 1,
        transport: TransportConfig {
            window_packets: 1 << s.random_range(3..=8),
            quantum_packets: s.random_range(1..=16),
            ack_request_packets: s.random_range(1..=32),
            ..TransportConfig::default()
        },
        rx_burst: s.random_range(4..=32),
        tx_burst: s.random_range(4..=32),
        tx_queue_frames: s.random_range(2..=32),
        turn_ns: s.random_range(200..=2 * US),
        qos,
        congestion: Settings::new(*Algorithm::ALL.choose(s).unwrap_or(&Algorithm::None)),
        recovery: RecoveryConfig {
            policy,
            unasked: policy,
            holes: s.random_range(1..=128),
            kept_packets: s.random_range(1..=512),
            ..RecoveryConfig::default()
        },
        size: EngineSize { qps: 512, regions: 16, neighbours: 0 },
        ..HostSettings::default()
    }
}

/// What links do at worst.
const WORST: Worst = Worst {
    loss_ppm: 50_000,
    burst_start_ppm: 5_000,
    burst_frames: 32,
    duplicate_ppm: 50_000,
    reorder_ppm: 50_000,
    corrupt_ppm: 20_000,
    truncate_ppm: 10_000,
    spike_ppm: 1_000,
    spike_ns: 2 * MS,
    flaps: Flaps { up_ns: 50 * MS, down_ns: 20 * MS },
    flap_one_in: 6,
};

fn draw_faults(s: &mut Stream, link: &LinkSettings) -> Faults {
    if s.random_ratio(1, 4) {
        return Faults::NONE;
    }
    Faults { mark_ppm: maybe(s, 100_000), ..WORST.draw(s, link) }
}

fn draw_op(s: &mut Stream) -> FlowOp {
    *FlowOp::ALL.choose(s).unwrap_or(&FlowOp::Write)
}

fn draw_rounds(s: &mut Stream, flow_bytes: u64, flows: u64) -> RoundsSettings {
    let most = (RUN_BYTES / (flow_bytes * flows).max(1)).clamp(1, 8) as u32;
    let gap = s.random_range(0..100);
    let (gap_us, period_us) = if s.random() { (Some(gap), None) } else { (None, Some(gap + 1)) };
    RoundsSettings { count: s.random_range(1..=most), start_us: s.random_range(0..50), gap_us, period_us }
}

fn draw_workload(s: &mut Stream, hosts: u16) -> Vec<WorkloadSettings> {
    let count = s.random_range(1..=3);
    (0..count).map(|_| draw_one_workload(s, hosts)).collect()
}

fn draw_one_workload(s: &mut Stream, hosts: u16) -> WorkloadSettings {
    let host = |s: &mut Stream| s.random_range(0..hosts);
    let bytes =
        |s: &mut Stream, flows: u64| u64::from(log_uniform(s, (RUN_BYTES / 4 / flows).min(256 << 10) as u32)).max(1);
    match s.random_range(0..4) {
        0 => {
            let flows = u64::from(hosts) - 1;
            let bytes = bytes(s, flows);
            let rounds = draw_rounds(s, bytes, flows);
            WorkloadSettings::Incast(IncastSettings { to: host(s), from: None, bytes, rounds, op: draw_op(s) })
        }
        1 => {
            let flows = u64::from(hosts) * (u64::from(hosts) - 1);
            let bytes = bytes(s, flows);
            let rounds = draw_rounds(s, bytes, flows);
            WorkloadSettings::AllToAll(AllToAllSettings { hosts: None, bytes, rounds, op: draw_op(s) })
        }
        2 => {
            let vector = bytes(s, u64::from(hosts)) + u64::from(hosts);
            let rounds = RoundsSettings { period_us: None, ..draw_rounds(s, vector, 2 * u64::from(hosts)) };
            WorkloadSettings::RingAllReduce(RingAllReduceSettings {
                hosts: None,
                bytes: vector,
                rounds,
                op: draw_op(s),
            })
        }
        _ => {
            let count = s.random_range(1..=12);
            let flow = |s: &mut Stream| {
                let from = host(s);
                let to = (from + s.random_range(1..hosts)) % hosts;
                FlowSettings { from, to, bytes: bytes(s, 4), start_us: s.random_range(0..500) }
            };
            let flows = (0..count).map(|_| flow(s)).collect();
            WorkloadSettings::Flows(FlowsSettings { flows, op: draw_op(s) })
        }
    }
}

/// Stalls, and at most one host that is lost.
fn draw_mishaps(s: &mut Stream, hosts: u16) -> Vec<Mishap> {
    let mut mishaps = Vec::new();
    for _ in 0..s.random_range(0..3) {
        if s.random_ratio(1, 3) {
            let kind = MishapKind::Stall { ns: s.random_range(US..=5 * MS) };
            let at = Time::from_ns(s.random_range(0..2 * MS));
            mishaps.push(Mishap { kind, host: s.random_range(0..hosts), at });
        }
    }
    if s.random_ratio(1, 5) {
        let kind = if s.random() { MishapKind::Death } else { MishapKind::Garbage };
        let at = Time::from_ns(s.random_range(0..MS));
        mishaps.push(Mishap { kind, host: s.random_range(0..hosts), at });
    }
    mishaps
}

fn draw_traffic(s: &mut Stream, fabric: &FabricSettings, round_trip_ns: u64) -> TrafficSettings {
    let fitting: Vec<PathMtu> =
        PathMtu::ALL.into_iter().filter(|path| path.bytes() + 80 <= u32::from(fabric.access.mtu)).collect();
    let most_delayed_ns = [fabric.access_faults, fabric.trunk_faults].map(|faults| faults.spike_ns + faults.reorder_ns);
    let code = (8..28).find(|&code| 4_096u64 << code >= round_trip_ns * TIMEOUT_FACTOR).unwrap_or(28);
    let ecn = if s.random() { 0 } else { ECT_0 };
    TrafficSettings {
        path_mtu: *fitting.choose(s).unwrap_or(&PathMtu::M256),
        message_bytes: s.random_range(1..=64 << 10).max(256),
        outstanding: s.random_range(1..=16),
        sharing: if s.random() { Sharing::PerFlow } else { Sharing::PerPair },
        attr: ConnectAttr { timeout: code, traffic_class: DSCP << 2 | ecn, ..ConnectAttr::default() },
        verifies: true,
        arena_bytes: ARENA_BYTES,
        linger_ns: round_trip_ns + 4 * most_delayed_ns.into_iter().max().unwrap_or(0) + MS,
    }
}

/// From the sending of a request to its answer, when nothing goes wrong: every buffer on the way full, both ways, and everybody
/// busy with all connections of a host.
fn longest_round_trip_ns(fabric: &FabricSettings) -> u64 {
    let slowest = u64::from(fabric.access.rate_mbps.min(fabric.trunk.rate_mbps));
    let hops = (0..fabric.topology.host_count).filter_map(|host| fabric.topology.distance(0, host)).max().unwrap_or(1);
    let buffers_ns = u64::from(hops) * fabric.switch.buffer_bytes * 8_000 / slowest;
    let hosts = u64::from(fabric.topology.host_count);
    let windows_ns = hosts * u64::from(fabric.host.transport.window_packets) * 9_000 * 8_000 / slowest;
    let delays_ns = u64::from(hops) * (fabric.access.delay_ns + fabric.trunk.delay_ns + fabric.access.jitter_ns);
    let turns_ns = hosts * u64::from(fabric.host.transport.window_packets) * fabric.host.turn_ns;
    2 * (buffers_ns + windows_ns + delays_ns + turns_ns)
}
