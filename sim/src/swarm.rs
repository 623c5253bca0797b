//! Settings drawn from a seed. Each seed has a mix of its own: many faults are off, queues are short or long, some kinds of
//! operation are missing. So a run explores a corner, and many runs the room.

use engine::Time;
use engine::config::{RecoveryConfig, TransportConfig};
use ferroce::{ConnectAttr, PathMtu, QpCap, QpType};
use rand::Rng;
use rand::seq::IndexedRandom;
use shm::attr::RecoveryPolicy;

use crate::app::{
    ConnectionEnd, ConversationSettings, Incident, IncidentKind, Op, OpKind, RendezvousSettings, UnreliableSettings,
};
use crate::host::{GID_COUNT, HostSettings};
use crate::link::{Faults, Flaps, LinkSettings, Worst, maybe};
use crate::random::{Stream, StreamOf, chance, log_uniform, stream};
use crate::run::RunSettings;
use crate::world::{GuestSettings, Hold, HoldKind, WorldSettings};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// Bytes that one direction of a connection moves, about, before a seed is too long.
const DIRECTION_BYTES: u32 = 4 << 20;
/// Bytes of headers of a packet, generously.
const HEADER_BYTES: u64 = 100;
/// Margin between the longest round trip and the acknowledgement timeout.
const TIMEOUT_FACTOR: u64 = 4;

/// All settings of the run of a seed.
pub fn draw(seed: u64) -> RunSettings {
    let mut s = stream(seed, StreamOf::Settings);
    let s = &mut s;
    let link = draw_link(s);
    let mut hosts = [draw_host(s), draw_host(s)];
    draw_recovery(&mut stream(seed, StreamOf::Recovery), &mut hosts);
    // A direction that is worse than the other hides what the other one's mildness would show.
    let is_mild = s.random();
    let faults = [draw_faults(s, &link, is_mild), draw_faults(s, &link, is_mild)];
    let holds = draw_holds(&mut stream(seed, StreamOf::Holds), &mut hosts);
    let count = s.random_range(1..=3);
    let incident_at = s.random_ratio(2, 5).then(|| s.random_range(0..count));
    let mut conversations: Vec<ConversationSettings> =
        (0..count).map(|number| draw_conversation(s, link.mtu, incident_at == Some(number))).collect();
    let round_trip_ns = longest_round_trip_ns(&link, &hosts, &conversations);
    let most_delayed_ns = faults.iter().map(|f| f.spike_ns + f.reorder_ns).max().unwrap_or(0);
    for conversation in &mut conversations {
        let more = s.random_range(0..3);
        conversation.attr.timeout = timeout_code(round_trip_ns * TIMEOUT_FACTOR) + more;
    }
    let timeout_ns = conversations.iter().map(|c| 4_096u64 << c.attr.timeout).max().unwrap_or(0);
    let guests = draw_guests(&mut stream(seed, StreamOf::GuestSettings), link.mtu);
    RunSettings {
        world: WorldSettings {
            hosts,
            link,
            faults,
            rules: [Vec::new(), Vec::new()],
            holds,
            conversations,
            guests,
            linger_ns: round_trip_ns + 2 * most_delayed_ns + MS,
        },
        safety_ns: s.random_range(MS..=2_000 * MS),
        // All retries, and a neighbour that has to be asked for anew after it was given up.
        settling_ns: 10 * timeout_ns + 20_000 * MS,
    }
}

fn draw_link(s: &mut Stream) -> LinkSettings {
    LinkSettings {
        rate_mbps: *[10_000, 25_000, 100_000].choose(s).unwrap_or(&10_000),
        delay_ns: *[500, 2 * US, 10 * US, 100 * US].choose(s).unwrap_or(&US),
        jitter_ns: if s.random() { 0 } else { s.random_range(0..20 * US) },
        mtu: *[1_500, 4_200, 9_000].choose(s).unwrap_or(&1_500),
    }
}

fn draw_host(s: &mut Stream) -> HostSettings {
    HostSettings {
        shard_count: if s.random_ratio(1, 4) { 2 } else { 1 },
        transport: TransportConfig {
            window_packets: 1 << s.random_range(3..=8),
            quantum_packets: s.random_range(1..=16),
            ack_request_packets: s.random_range(1..=32),
            flush_wqes: s.random_range(1..=256),
            doorbell_words: s.random_range(1..=64),
        },
        recovery: RecoveryConfig::default(),
        rx_burst: s.random_range(1..=32),
        tx_burst: s.random_range(1..=32),
        tx_queue_frames: s.random_range(1..=256),
        turn_ns: s.random_range(200..=2 * US),
        is_polled: s.random(),
        ..HostSettings::default()
    }
}

/// How both hosts make up for losses: as a rule alike, and now and then not, which must do as well.
fn draw_recovery(s: &mut Stream, hosts: &mut [HostSettings; 2]) {
    let policy = |s: &mut Stream| *RecoveryPolicy::ALL.choose(s).unwrap_or(&RecoveryPolicy::Hybrid);
    let (common, differ) = (policy(s), s.random_ratio(1, 8));
    for host in hosts {
        host.recovery = RecoveryConfig {
            unasked: if differ { policy(s) } else { common },
            policy: policy(s),
            kept_packets: *[0, 3, 16, 256, 4096].choose(s).unwrap_or(&4096),
            holes: s.random_range(1..=256),
            reorder_percent: s.random_range(0..=100),
            ..RecoveryConfig::default()
        };
    }
}

/// What the link does at worst.
const WORST: Worst = Worst {
    loss_ppm: 100_000,
    burst_start_ppm: 10_000,
    burst_frames: 64,
    duplicate_ppm: 100_000,
    reorder_ppm: 100_000,
    corrupt_ppm: 50_000,
    truncate_ppm: 20_000,
    spike_ppm: 2_000,
    spike_ns: 20 * MS,
    flaps: Flaps { up_ns: 200 * MS, down_ns: 100 * MS },
    flap_one_in: 5,
};

fn draw_faults(s: &mut Stream, link: &LinkSettings, is_mild: bool) -> Faults {
    if s.random_ratio(1, 6) {
        return Faults::NONE;
    }
    if !is_mild {
        return WORST.draw(s, link);
    }
    let mild = |s: &mut Stream| maybe(s, 5_000);
    Faults {
        loss_ppm: mild(s),
        duplicate_ppm: mild(s),
        reorder_ppm: mild(s),
        reorder_ns: s.random_range(1..=20 * link.delay_ns),
        corrupt_ppm: mild(s),
        truncate_ppm: mild(s),
        spares_arp: true,
        ..Faults::NONE
    }
}

/// What holds hosts up, and which priorities they let be paused.
fn draw_holds(s: &mut Stream, hosts: &mut [HostSettings; 2]) -> Vec<Hold> {
    for host in hosts {
        host.qos.pfc.fill_with(|| s.random());
    }
    let mut holds = Vec::new();
    if s.random_ratio(1, 3) {
        for _ in 0..s.random_range(1..=6) {
            let kind = if s.random() {
                HoldKind::Stall { ns: s.random_range(US..=5 * MS) }
            } else {
                HoldKind::Pause { priorities: s.random(), quanta: log_uniform(s, u32::from(u16::MAX)) as u16 }
            };
            let at = Time::from_ns(u64::from(log_uniform(s, 50_000_000)));
            holds.push(Hold { kind, host: s.random_range(0..2), at });
        }
    }
    holds
}

/// Applications over UC and UD, and such as connect by address.
fn draw_guests(s: &mut Stream, mtu: u16) -> Vec<GuestSettings> {
    let mut guests = Vec::new();
    for service in [QpType::Uc, QpType::Ud] {
        if s.random() {
            guests.push(GuestSettings::Unreliable(draw_unreliable(s, service, mtu)));
        }
    }
    if s.random_ratio(1, 3) {
        guests.push(GuestSettings::Rendezvous(draw_rendezvous(s)));
    }
    guests
}

fn draw_hosts(s: &mut Stream) -> [u8; 2] {
    *[[0, 1], [0, 1], [1, 0], [1, 0], [0, 0]].choose(s).unwrap_or(&[0, 1])
}

fn fitting(mtu: u16) -> Vec<PathMtu> {
    PathMtu::ALL.into_iter().filter(|path| path.bytes() + HEADER_BYTES as u32 <= u32::from(mtu)).collect()
}

fn draw_unreliable(s: &mut Stream, service: QpType, mtu: u16) -> UnreliableSettings {
    let path_mtu = *fitting(mtu).choose(s).unwrap_or(&PathMtu::M256);
    let most = if service == QpType::Ud { path_mtu.bytes() } else { 20_000 };
    let message_bytes_max = *[16, 1_000, most].choose(s).unwrap_or(&16);
    let messages = [s.random_range(0..=100), s.random_range(1..=100)];
    // With a receive for each nothing needs to be lost.
    let max_recv_wr = if s.random_ratio(1, 3) { 100 } else { s.random_range(1..=16) };
    let mut sometimes = |ppm: u32| if s.random() { 0 } else { s.random_range(1..=ppm) };
    UnreliableSettings {
        write_ppm: sometimes(1_000_000),
        stray_ppm: sometimes(100_000),
        bad_lkey_ppm: sometimes(50_000),
        recv_delay_ns: u64::from(sometimes(3_000_000)),
        service,
        hosts: draw_hosts(s),
        messages,
        message_bytes_max: message_bytes_max.min(most),
        path_mtu,
        max_send_wr: s.random_range(1..=32),
        max_recv_wr,
        step_delay_ns: s.random_range(100..=20 * US),
        signal_ppm: s.random_range(0..=1_000_000),
        inline: s.random(),
        attr: ConnectAttr {
            flow_label: if s.random() { 0 } else { s.random_range(0..1 << 20) },
            traffic_class: s.random::<u8>() & !3,
            sgid_index: if s.random() { 0 } else { s.random_range(0..GID_COUNT) },
            sl: s.random_range(0..8),
            ..ConnectAttr::default()
        },
    }
}

fn draw_rendezvous(s: &mut Stream) -> RendezvousSettings {
    let ends = [ConnectionEnd::Client, ConnectionEnd::Server, ConnectionEnd::Both, ConnectionEnd::Abrupt];
    RendezvousSettings {
        hosts: draw_hosts(s),
        connections: s.random_range(1..=20),
        outstanding: s.random_range(1..=6),
        refuse_ppm: if s.random() { 0 } else { s.random_range(1..=500_000) },
        answer_delay_ns: s.random_range(0..=50 * MS),
        ends: (0..s.random_range(1..=4)).filter_map(|_| ends.choose(s).copied()).collect(),
        step_delay_ns: s.random_range(100..=20 * US),
    }
}

fn draw_conversation(s: &mut Stream, mtu: u16, has_incident: bool) -> ConversationSettings {
    // Every path MTU that fits the link.
    let fitting = fitting(mtu);
    let message_bytes_max = *[64, 1_500, 9_000, 70_000, 400_000].choose(s).unwrap_or(&64);
    let send_bytes_max = message_bytes_max.min(*[64, 5_000, 70_000].choose(s).unwrap_or(&64));
    let cap = QpCap {
        max_send_wr: s.random_range(1..=64),
        max_recv_wr: s.random_range(1..=if send_bytes_max > 10_000 { 8 } else { 32 }),
        max_send_sge: s.random_range(1..=8),
        max_recv_sge: s.random_range(1..=8),
        max_inline_data: *[0, 16, 220].choose(s).unwrap_or(&0),
    };
    let connection_count = s.random_range(1..=4);
    let mix = draw_mix(s);
    let solicit = if s.random() { 1_000_000 } else { s.random_range(0..1_000_000) };
    let mut likely = || s.random_range(0..=1_000_000);
    let flags = Flags { signal: likely(), fence: likely(), inline: likely(), solicit };
    let longest = [message_bytes_max, send_bytes_max];
    let mut ops = || -> [Vec<Op>; 2] { [draw_ops(s, &mix, &flags, longest), draw_ops(s, &mix, &flags, longest)] };
    let ops: Vec<[Vec<Op>; 2]> = (0..connection_count).map(|_| ops()).collect();
    let incident = has_incident.then(|| {
        let side = s.random_range(0..2);
        let kind = *IncidentKind::ALL.choose(s).unwrap_or(&IncidentKind::BadRkey);
        Incident { kind, side, after_ops: s.random_range(0..=ops[0][side].len()) }
    });
    let rd_atomic = s.random_range(1..=16);
    ConversationSettings {
        hosts: *[[0, 1], [0, 1], [0, 1], [1, 0], [1, 0], [0, 0]].choose(s).unwrap_or(&[0, 1]),
        ops,
        path_mtu: *fitting.choose(s).unwrap_or(&PathMtu::M256),
        cap,
        sq_sig_all: s.random_ratio(1, 5),
        uses_srq: s.random_ratio(1, 3),
        uses_one_cq: s.random(),
        uses_channel: s.random_ratio(1, 3),
        attr: ConnectAttr {
            max_rd_atomic: rd_atomic,
            max_dest_rd_atomic: rd_atomic,
            retry_cnt: if s.random_ratio(1, 4) { s.random_range(0..7) } else { 7 },
            rnr_retry: if s.random_ratio(1, 8) { s.random_range(0..7) } else { 7 },
            min_rnr_timer: s.random_range(1..=14),
            flow_label: if s.random() { 0 } else { s.random_range(0..1 << 20) },
            traffic_class: s.random::<u8>() & !3,
            sgid_index: if s.random() { 0 } else { s.random_range(0..GID_COUNT) },
            sl: s.random_range(0..8),
            ..ConnectAttr::default()
        },
        starts_near_wrap: s.random(),
        message_bytes_max,
        send_bytes_max,
        recv_delay_ns: if s.random() { 0 } else { s.random_range(0..=3 * MS) },
        step_delay_ns: s.random_range(100..=20 * US),
        incident,
        ends_by_flush: s.random_ratio(3, 4),
    }
}

/// How likely each flag is, of a million.
struct Flags {
    signal: u32,
    fence: u32,
    inline: u32,
    solicit: u32,
}

/// Kinds of operation, each as often as it is likely; never none.
fn draw_mix(s: &mut Stream) -> Vec<OpKind> {
    let mut mix = Vec::new();
    for kind in OpKind::ALL {
        let weight = if s.random() { 0 } else { s.random_range(1..=8) };
        mix.extend(std::iter::repeat_n(kind, weight));
    }
    if mix.is_empty() {
        mix.push(OpKind::Write);
    }
    mix
}

fn draw_ops(s: &mut Stream, mix: &[OpKind], flags: &Flags, [longest, longest_send]: [u32; 2]) -> Vec<Op> {
    let bits = s.random_range(2..=10);
    let most = s.random_range(1..=1u32 << bits);
    let mut left = DIRECTION_BYTES;
    let mut ops = Vec::new();
    for _ in 0..most {
        let kind = *mix.choose(s).unwrap_or(&OpKind::Write);
        let longest = if kind.is_send() { longest_send } else { longest };
        let length = log_uniform(s, longest);
        if length > left {
            break;
        }
        left -= length;
        ops.push(Op {
            signaled: chance(s, flags.signal),
            fence: chance(s, flags.fence),
            inline: chance(s, flags.inline),
            solicited: chance(s, flags.solicit),
            ..Op::new(kind, length)
        });
    }
    ops
}

/// From the sending of a request to its answer, at worst: every queue full of everything that may be on its way.
fn longest_round_trip_ns(
    link: &LinkSettings,
    hosts: &[HostSettings; 2],
    conversations: &[ConversationSettings],
) -> u64 {
    let mut bytes = 0;
    let mut packets = 0;
    for conversation in conversations {
        let window = hosts.iter().map(|host| u64::from(host.transport.window_packets)).max().unwrap_or(0);
        let answers = u64::from(conversation.attr.max_rd_atomic)
            * u64::from(conversation.message_bytes_max.div_ceil(conversation.path_mtu.bytes()).max(1));
        let flying = (window + answers) * conversation.ops.len() as u64 * 2;
        packets += flying;
        bytes += flying * (u64::from(conversation.path_mtu.bytes()) + HEADER_BYTES);
    }
    let turn_ns = hosts.iter().map(|host| host.turn_ns).max().unwrap_or(0);
    // At worst each turn moves one packet in, and another one out.
    let burst = hosts.iter().map(|host| host.rx_burst.min(host.tx_burst)).min().unwrap_or(1) as u64;
    2 * (link.delay_ns + link.jitter_ns)
        + 2 * link.serialization_ns(bytes)
        + 4 * turn_ns * packets / burst
        + 8 * turn_ns
}

/// The shortest acknowledgement timeout that is at least `ns`.
fn timeout_code(ns: u64) -> u8 {
    (8..28).find(|&code| 4_096u64 << code >= ns).unwrap_or(28)
}
