//! Congestion control of a QP: marks make CNPs, CNPs make it slower, a rate spaces its packets out.

use engine::Time;
use engine::cc::{Algorithm, Settings};
use engine::command::{Answer, Command, Shards};
use shm::attr::{AhAttr, QpAttr, QpState, QpType, WcStatus, WrOpcode};
use shm::control::congestion::{CongestionChange, CongestionReport, CongestionTarget};
use shm::control::{Reply, Request};
use wire::{Bth, Frame, Opcode, Psn};

use crate::peer::Packet;
use crate::support::{Client, Connect, HostOptions, Pair, STEPS, attributes, connect, mark, modify};

/// Parameters and what they are set to.
pub(crate) type Values<'a> = &'a [(&'a str, &'a str)];

/// A pair whose first host has these settings; the second never limits itself.
pub(crate) fn pair_with(c: Connect, algorithm: &str, values: &[(&str, &str)]) -> Pair {
    let settings = Settings::new(Algorithm::None).change(Some(algorithm), values.iter().copied()).unwrap();
    let a = HostOptions { congestion: settings, ..HostOptions::new(1) };
    Pair::with(c, a, HostOptions::new(2), 2 << 20)
}

fn pair(algorithm: &str, values: &[(&str, &str)]) -> Pair {
    pair_with(Connect::default(), algorithm, values)
}

/// The CNP by which the second host's QP tells of marks.
fn cnp(pair: &Pair) -> Packet {
    let mut cnp = pair.packet(1, Opcode::CNP, 0);
    cnp.bth = Bth { becn: true, psn: Psn::new(0), ..cnp.bth };
    cnp.payload = vec![0; 16];
    cnp
}

/// Runs both hosts until `until`, from one deadline to the next, and returns when the first host sent how many bytes with an
/// opcode that `counts`.
fn run(pair: &mut Pair, until: u64, counts: fn(Opcode) -> bool) -> Vec<(u64, usize)> {
    run_from(pair, 0, until, counts)
}

/// The same for what either host sent.
fn run_from(pair: &mut Pair, side: usize, until: u64, counts: fn(Opcode) -> bool) -> Vec<(u64, usize)> {
    let mut sent = Vec::new();
    let mut turns = 0;
    loop {
        pair.sent.clear();
        pair.exchange();
        for (from, frame) in &pair.sent {
            if let (true, Ok(frame_words)) = (*from == side, Frame::parse(frame))
                && counts(frame_words.bth().opcode)
            {
                sent.push((pair.now.as_ns(), frame.len()));
            }
        }
        let next = pair.hosts.iter().map(|host| host.shards.shards[0].next_deadline()).min().unwrap_or(Time::NEVER);
        if next > Time::from_ns(until) {
            pair.now = Time::from_ns(until);
            return sent;
        }
        turns += 1;
        assert!(turns < 200_000, "the hosts never come to rest before {until} ns");
        pair.now = pair.now.max(next);
    }
}

fn is_write(opcode: Opcode) -> bool {
    (0x06..=0x0b).contains(&opcode.0)
}

fn is_read_response(opcode: Opcode) -> bool {
    (0x0d..=0x10).contains(&opcode.0)
}

/// Bits a second from the first frame to the last.
fn rate(sent: &[(u64, usize)]) -> f64 {
    let bytes: usize = sent.iter().skip(1).map(|(_, bytes)| bytes).sum();
    bytes as f64 * 8e9 / (sent.last().unwrap().0 - sent[0].0) as f64
}

#[track_caller]
fn near(found: f64, expected: f64, tolerance: f64) {
    assert!((found / expected - 1.0).abs() < tolerance, "{found} is not {expected} within {tolerance}");
}

/// No window of time carries more than its rate, the burst and one frame.
fn check_pacing(sent: &[(u64, usize)], rate_bps: u64, burst: u64) {
    for first in 0..sent.len() {
        let mut bytes = 0;
        for &(at, length) in &sent[first..] {
            bytes += length as u64;
            let allowed = u128::from(rate_bps) * u128::from(at - sent[first].0 + 1) / 8_000_000_000
                + u128::from(burst + length as u64);
            assert!(u128::from(bytes) <= allowed, "{bytes} bytes in {} ns", at - sent[first].0);
        }
    }
}

#[test]
fn marked_packets_make_one_cnp_in_an_interval() {
    let mut pair = pair("none", &[]);
    let mut write = pair.rdma(Opcode::RC_WRITE_ONLY, 0, 8, 8);
    for (psn, at, said) in [(0, 0, 1), (1, 0, 0), (2, 3_999, 0), (3, 4_000, 1), (4, 4_001, 0)] {
        pair.now = Time::from_ns(1_000_000 + at);
        write.bth.psn = Psn::new(pair.connect.psn[0]).add(psn);
        write.fields.traffic_class = 3;
        pair.hosts[1].receive(pair.now, &write.frame());
        pair.sent.clear();
        let cnps: Vec<_> = pair.hosts[1].turn(pair.now).into_iter().filter(|frame| is_cnp(frame)).collect();
        assert_eq!(cnps.len(), said, "packet {psn}");
        for frame in cnps {
            let frame = Frame::parse(&frame).unwrap();
            assert!(frame.icrc_ok());
            let expected = Bth { becn: true, ..Bth::new(Opcode::CNP, wire::Qpn::new(pair.qps[0].qpn), Psn::new(0)) };
            assert_eq!(frame.bth(), expected);
            assert_eq!((frame.traffic_class(), frame.payload()), (48 << 2, &[0; 16][..]));
        }
    }
    let counters = pair.port_counters(1);
    assert_eq!((counters.np_ecn_marked_roce_packets, counters.np_cnp_sent), (5, 2));
    assert_eq!((pair.figure(1, "ecn_marked_packets"), pair.figure(1, "cnps_sent")), (5, 2));
}

fn is_cnp(frame: &[u8]) -> bool {
    Frame::parse(frame).is_ok_and(|frame| frame.bth().opcode == Opcode::CNP)
}

#[test]
fn marked_responses_make_cnps_too_and_unmarked_packets_none() {
    let mut pair = pair("none", &[]);
    pair.post(pair.wqe(1, WrOpcode::RdmaRead), 4096);
    let mut marked = 0;
    pair.exchange_with(|from, mut frame| {
        if from == 1 && Frame::parse(&frame).is_ok_and(|frame| is_read_response(frame.bth().opcode)) {
            mark(&mut frame);
            marked += 1;
        }
        vec![frame]
    });
    assert_eq!(marked, 4);
    assert_eq!(pair.completions(0), [(1, WcStatus::Success)]);
    let [requester, responder] = [pair.port_counters(0), pair.port_counters(1)];
    assert_eq!((requester.np_ecn_marked_roce_packets, requester.np_cnp_sent), (4, 1));
    assert_eq!((responder.np_cnp_sent, responder.rp_cnp_ignored), (0, 1));
}

#[test]
fn data_is_ect_and_acknowledgements_are_not() {
    for (algorithm, ect, expected) in [("dcqcn", "on", 2), ("dcqcn", "off", 0), ("none", "off", 0), ("none", "on", 2)] {
        let settings = Settings::new(Algorithm::None).change(Some(algorithm), [("ect", ect)]).unwrap();
        let options = |n| HostOptions { congestion: settings, ..HostOptions::new(n) };
        let mut pair = Pair::with(Connect::default(), options(1), options(2), 1 << 20);
        pair.post(pair.wqe(1, WrOpcode::RdmaWrite), 3_000);
        pair.post(pair.wqe(2, WrOpcode::RdmaRead), 3_000);
        pair.exchange();
        assert_eq!(pair.clients[0].poll().len(), 2);
        for (_, frame) in &pair.sent {
            let frame = Frame::parse(frame).unwrap();
            assert!(frame.icrc_ok(), "and a right checksum, or it would not parse");
            let is_ack = frame.bth().opcode == Opcode::RC_ACK;
            assert_eq!(frame.ecn(), if is_ack { 0 } else { expected }, "{algorithm} {ect}: {}", frame.info().name);
        }
    }
}

#[test]
fn cnp_cuts_the_rate_packets_are_spaced_by_it_and_it_recovers() {
    let mut pair = pair("dcqcn-paper", &[("burst", "0")]);
    assert_eq!((pair.figure(0, "cc_rate_limited"), pair.figure(0, "cc_rate_bps")), (0, 100_000_000_000));
    for _ in 0..12 {
        let cnp = cnp(&pair);
        assert_eq!(pair.tell(0, &cnp), [""; 0]);
    }
    let cut = pair.figure(0, "cc_rate_bps");
    // A full cut each, for alpha stays at 1.
    near(cut as f64, 100e9 / 4096.0, 0.000_1);
    assert_eq!((pair.port_counters(0).rp_cnp_handled, pair.figure(0, "cnps_received")), (12, 12));
    pair.post(pair.wqe(1, WrOpcode::RdmaWrite), 200 << 10);
    let begin = pair.now.as_ns();
    // Not a step up yet.
    let sent = run(&mut pair, begin + 54_000, is_write);
    assert_eq!(sent.len(), 1, "a packet of a KiB takes more than 300 us at {cut} bits/s");
    let sent = run(&mut pair, begin + 10_000_000_000, is_write);
    assert_eq!((sent.len(), pair.completions(0)), (199, vec![(1, WcStatus::Success)]));
    assert_eq!(pair.counters(0).local_ack_timeout_err, 0);
    let halves = sent.split_at(100);
    assert!(rate(halves.1) > 1.2 * rate(halves.0), "{} {}", rate(halves.0), rate(halves.1));
    // Some time later nothing is left of it.
    pair.now = pair.now.add_ns(100_000_000_000);
    pair.listen(0);
    assert_eq!((pair.figure(0, "cc_rate_limited"), pair.figure(0, "cc_rate_bps")), (0, 100_000_000_000));
}

#[test]
fn rate_limit_holds_exactly_for_writes_and_for_the_responses_of_reads() {
    for (mbps, length) in [(1_u32, 8 << 10), (100, 256 << 10), (10_000, 1 << 20), (90_000, 1 << 20)] {
        let limit = format!("{mbps}Mbps");
        let mut pair = pair("none", &[("rate_limit", limit.as_str()), ("burst", "4096")]);
        pair.post(pair.wqe(1, WrOpcode::RdmaWrite), length);
        let sent = run(&mut pair, 1_000_000_000, is_write);
        assert_eq!(pair.completions(0), [(1, WcStatus::Success)], "{mbps}");
        assert_eq!(sent.len(), length as usize / 1024);
        near(rate(&sent[5..]), f64::from(mbps) * 1e6, 0.001);
        check_pacing(&sent, u64::from(mbps) * 1_000_000, 4_096);
        assert_eq!(pair.figure(0, "retransmitted_packets"), 0);

        // The second host reads from the first, which has the limit.
        let mut read = pair.wqe(2, WrOpcode::RdmaRead);
        read.rkey = pair.clients[0].key;
        let sge = pair.clients[1].sge(0, length);
        pair.qps[1].post(read, &[sge]);
        let until = pair.now.as_ns() + 1_000_000_000;
        let sent = run(&mut pair, until, is_read_response);
        assert_eq!(pair.completions(1), [(2, WcStatus::Success)], "{mbps}");
        // The last response has a header more.
        near(rate(&sent[5..]), f64::from(mbps) * 1e6, 0.003);
        check_pacing(&sent, u64::from(mbps) * 1_000_000, 4_096);
    }
}

#[test]
fn a_rate_limit_holds_whatever_the_algorithm() {
    for algorithm in ["none", "dcqcn-nvidia", "dcqcn-paper", "timely", "timely-original", "swift"] {
        for limit in [1_000_000_000_u64, 40_000_000_000] {
            let text = format!("{limit}bps");
            let mut pair = pair(algorithm, &[("rate_limit", text.as_str())]);
            let begin = pair.now.as_ns();
            for wr_id in 0..4 {
                pair.post(pair.wqe(wr_id, WrOpcode::RdmaWrite), 512 << 10);
            }
            let sent = run(&mut pair, begin + 100_000_000, is_write);
            assert_eq!((sent.len(), pair.completions(0).len()), (2_048, 4), "{algorithm}");
            check_pacing(&sent[..256], limit, 32 << 10);
            near(rate(&sent), limit as f64, 0.02);
            assert_eq!(pair.figure(0, "retransmitted_packets"), 0, "{algorithm}");
        }
    }
}

/// The peer has no limit: responses come as they are asked for.
#[test]
fn timely_and_swift_limit_the_responses_to_their_own_reads() {
    for algorithm in ["timely", "timely-original", "swift"] {
        for limit in [1_000_000_000_u64, 10_000_000_000] {
            let text = format!("{limit}bps");
            let mut values = vec![("rate_limit", text.as_str())];
            if algorithm == "swift" {
                values.push(("start_cwnd", "256"));
            }
            let mut pair = pair(algorithm, &values);
            for wr_id in 0..4 {
                pair.post(pair.wqe(wr_id, WrOpcode::RdmaRead), 512 << 10);
            }
            let until = pair.now.as_ns() + 100_000_000;
            let sent = run_from(&mut pair, 1, until, is_read_response);
            assert_eq!((sent.len(), pair.completions(0).len()), (2_048, 4), "{algorithm}");
            // At most 32 packets are asked for at a time.
            check_pacing(&sent[..512], limit, (32 << 10) + 32 * 1_100);
            near(rate(&sent), limit as f64, 0.02);
            assert_eq!(pair.figure(0, "retransmitted_packets"), 0, "{algorithm}");
        }
    }
}

/// The first host answers: it measures nothing then, and its peer sees to the rate.
#[test]
fn responses_of_timely_and_swift_keep_to_a_limit_that_was_set_and_to_nothing_else() {
    let all: [(&str, Values<'_>, Option<f64>); 4] = [
        ("timely", &[("start_rate", "1Gbps"), ("burst", "0")], None),
        ("swift", &[("start_cwnd", "0.01"), ("burst", "0")], None),
        ("timely", &[("rate_limit", "1Gbps"), ("burst", "0")], Some(1e9)),
        ("swift", &[("rate_limit", "1Gbps"), ("burst", "0")], Some(1e9)),
    ];
    for (algorithm, values, limit) in all {
        let mut pair = pair(algorithm, values);
        let mut read = pair.wqe(2, WrOpcode::RdmaRead);
        read.rkey = pair.clients[0].key;
        let sge = pair.clients[1].sge(0, 256 << 10);
        pair.qps[1].post(read, &[sge]);
        let until = pair.now.as_ns() + 100_000_000;
        let sent = run(&mut pair, until, is_read_response);
        assert_eq!((sent.len(), pair.completions(1).len()), (256, 1), "{algorithm}");
        match limit {
            Some(limit) => near(rate(&sent), limit, 0.003),
            None => assert_eq!(sent.last().map(|last| last.0), Some(sent[0].0), "{algorithm}: all at once"),
        }
    }
}

/// Connects both QPs anew with a static rate in the address vector of the first.
fn set_static_rate(pair: &mut Pair, static_rate: u8) {
    for side in 0..2 {
        pair.go_to(side, QpState::Reset);
        let attr = attributes(pair.hosts[1 - side].ip, pair.qps[1 - side].qpn, pair.connect, side);
        let ah_attr = AhAttr { static_rate: if side == 0 { static_rate } else { 0 }, ..attr.ah_attr };
        for (qp_state, mask) in STEPS {
            let attr = QpAttr { qp_state, ah_attr, ..attr };
            modify(&mut pair.hosts[side], pair.clients[side].session, pair.qps[side].qpn, attr, mask).unwrap();
        }
    }
}

#[test]
fn a_static_rate_of_the_address_vector_holds_beside_any_other_limit() {
    // 5 and 200 Gb/s, on a port of 100 Gb/s; and 0, which is none.
    for (algorithm, limit, code, expected) in [
        ("none", "0", 5, 5e9),
        ("none", "2Gbps", 5, 2e9),
        ("none", "9Gbps", 5, 5e9),
        ("none", "9Gbps", 17, 9e9),
        ("none", "9Gbps", 0, 9e9),
        ("dcqcn", "0", 5, 5e9),
        ("timely", "0", 5, 5e9),
        ("swift", "0", 5, 5e9),
    ] {
        let mut pair = pair(algorithm, &[("rate_limit", limit), ("burst", "4096")]);
        set_static_rate(&mut pair, code);
        assert_eq!(pair.figure(0, "cc_rate_bps") as f64, expected, "{algorithm} {limit} {code}");
        pair.post(pair.wqe(1, WrOpcode::RdmaWrite), 1 << 20);
        let until = pair.now.as_ns() + 100_000_000;
        let sent = run(&mut pair, until, is_write);
        assert_eq!(pair.completions(0), [(1, WcStatus::Success)]);
        near(rate(&sent[5..]), expected, 0.001);
        // A change of the port's settings leaves it as it is.
        set_port(&mut pair, Settings::new(Algorithm::None));
        let left = if code == 5 { 5_000_000_000 } else { 100_000_000_000 };
        assert_eq!(pair.figure(0, "cc_rate_bps"), left);
    }
    let mut pair = pair("none", &[]);
    set_static_rate(&mut pair, 17);
    assert_eq!(pair.figure(0, "cc_rate_limited"), 0, "a path faster than the port is no limit");
}

#[test]
fn requests_and_responses_share_the_rate_and_neither_starves() {
    let mut pair = pair("none", &[("rate_limit", "100Mbps"), ("burst", "0")]);
    pair.post(pair.wqe(1, WrOpcode::RdmaWrite), 128 << 10);
    let mut read = pair.wqe(2, WrOpcode::RdmaRead);
    read.rkey = pair.clients[0].key;
    let sge = pair.clients[1].sge(512 << 10, 128 << 10);
    pair.qps[1].post(read, &[sge]);
    let begin = pair.now.as_ns();
    // Half of all that there is to send takes 10.9 ms and more.
    let mut of_each = [0, 0];
    let sent = run(&mut pair, begin + 10_000_000, |opcode| is_write(opcode) || is_read_response(opcode));
    check_pacing(&sent, 100_000_000, 0);
    for until in [20_000_000, 30_000_000] {
        let writes = run(&mut pair, begin + until, is_write);
        of_each[0] += writes.len();
    }
    of_each[1] = pair.figure(0, "msn") as usize;
    assert_eq!(pair.completions(0), [(1, WcStatus::Success)]);
    assert_eq!(pair.completions(1), [(2, WcStatus::Success)]);
    assert!(of_each[0] > 50, "writes went on beside the responses: {of_each:?}");
}

#[test]
fn what_waits_for_the_pacer_is_in_no_queue_and_an_idle_qp_has_no_timer() {
    let mut pair = pair("none", &[("rate_limit", "1Mbps"), ("burst", "0")]);
    pair.post(pair.wqe(1, WrOpcode::RdmaWrite), 2_048);
    pair.exchange();
    let shard = pair.hosts[0].shard();
    assert!(!shard.wants_transmit());
    // The second packet: the first one's 1,102 bytes take 8.8 ms.
    let deadline = shard.next_deadline().as_ns();
    assert!((8_000_000..9_000_000).contains(&deadline), "{deadline}");
    pair.now = Time::from_ns(20_000_000);
    pair.exchange();
    assert_eq!(pair.completions(0), [(1, WcStatus::Success)]);
    let deadline = pair.hosts[0].shard().next_deadline();
    pair.now = deadline.min(Time::from_ns(100_000_000));
    pair.exchange();
    let deadline = pair.hosts[0].shard().next_deadline();
    assert!(deadline > pair.now.add_ns(500_000_000), "nothing to wake for before neighbours grow old: {deadline:?}");
}

#[test]
fn a_change_of_settings_holds_at_once() {
    let mut pair = pair("none", &[("rate_limit", "1Mbps"), ("burst", "0")]);
    pair.post(pair.wqe(1, WrOpcode::RdmaWrite), 64 << 10);
    let begin = pair.now.as_ns();
    assert_eq!(run(&mut pair, begin + 8_000_000, is_write).len(), 1);
    // The second packet would come at 8.9 ms.
    let settings = Settings::new(Algorithm::None).change(None, [("rate_limit", "10Gbps"), ("burst", "0")]).unwrap();
    set_port(&mut pair, settings);
    let sent = run(&mut pair, begin + 8_100_000, is_write);
    assert_eq!((sent.len(), pair.completions(0).len()), (63, 1));
    near(rate(&sent), 10e9, 0.001);
    set_port(&mut pair, Settings::new(Algorithm::None));
    pair.post(pair.wqe(2, WrOpcode::RdmaWrite), 64 << 10);
    pair.exchange();
    assert_eq!(pair.completions(0), [(2, WcStatus::Success)]);
}

pub(crate) fn set_port(pair: &mut Pair, settings: Settings) {
    let host = &mut pair.hosts[0];
    host.shards.now = pair.now;
    let answer = host.shards.command(0, Command::SetPortCongestion { port: 0, settings: Box::new(settings) });
    assert!(matches!(answer, Answer::Done));
}

#[test]
fn swift_holds_back_what_its_window_does_not_take() {
    let mut pair = pair("swift", &[("start_cwnd", "4")]);
    pair.post(pair.wqe(1, WrOpcode::RdmaWrite), 64 << 10);
    let first: Vec<_> = pair.hosts[0].turn(pair.now);
    assert_eq!(first.iter().filter(|frame| Frame::parse(frame).is_ok()).count(), 4);
    // Half a round trip each way, 20 us: below the target, the window grows by one a round trip.
    let mut in_flight = first;
    let mut burst_sizes = Vec::new();
    while !in_flight.is_empty() {
        burst_sizes.push(in_flight.len());
        pair.now = pair.now.add_ns(20_000);
        for frame in in_flight.drain(..) {
            pair.hosts[1].receive(pair.now, &frame);
        }
        for frame in pair.hosts[1].turn(pair.now) {
            pair.hosts[0].receive(pair.now, &frame);
        }
        in_flight = pair.hosts[0].turn(pair.now);
    }
    assert_eq!(pair.completions(0), [(1, WcStatus::Success)]);
    assert!(burst_sizes.is_sorted() || burst_sizes[..burst_sizes.len() - 1].is_sorted(), "{burst_sizes:?}");
    assert!(pair.figure(0, "cc_cwnd_thousandths") > 6_000);
}

#[test]
fn swift_below_one_packet_spaces_packets_by_round_trips() {
    let mut pair = pair("swift", &[("start_cwnd", "0.01"), ("min_cwnd", "0.01"), ("ai", "0.001"), ("burst", "0")]);
    let mut gaps = Vec::new();
    let mut sent_at: Option<Time> = None;
    pair.post(pair.wqe(1, WrOpcode::RdmaWrite), 8 << 10);
    while gaps.len() < 7 {
        let sent = pair.hosts[0].turn(pair.now);
        if sent.is_empty() {
            pair.now = pair.now.max(pair.hosts[0].shard().next_deadline());
        } else {
            assert_eq!(sent.len(), 1);
            gaps.extend(sent_at.map(|at| pair.now.ns_since(at)));
            sent_at = Some(pair.now);
            pair.now = pair.now.add_ns(100_000);
            pair.hosts[1].receive(pair.now, &sent[0]);
            let answers = pair.hosts[1].turn(pair.now);
            answers.iter().for_each(|frame| pair.hosts[0].receive(pair.now, frame));
        }
    }
    assert_eq!(pair.completions(0), [(1, WcStatus::Success)]);
    // 100 us / 0.01, a little more for the frame's headers, a little less as the window grows.
    assert!(gaps.iter().skip(1).all(|gap| (5_000_000..11_000_000).contains(gap)), "{gaps:?}");
}

#[test]
fn timely_follows_round_trip_times() {
    let mut pair = pair("timely-original", &[("t_low", "10us"), ("t_high", "50us"), ("min_rate", "1Gbps")]);
    pair.post(pair.wqe(1, WrOpcode::RdmaWrite), 512 << 10);
    let mut rates = Vec::new();
    for _ in 0..4_000 {
        let sent = pair.hosts[0].turn(pair.now);
        pair.now = pair.now.add_ns(if sent.is_empty() { 10_000 } else { 100_000 });
        for frame in sent {
            pair.hosts[1].receive(pair.now, &frame);
        }
        for frame in pair.hosts[1].turn(pair.now) {
            pair.hosts[0].receive(pair.now, &frame);
        }
        rates.push(pair.figure(0, "cc_rate_bps"));
        if !pair.completions(0).is_empty() {
            break;
        }
    }
    assert!(rates.is_sorted_by(|a, b| a >= b), "no round trip is short");
    assert!(*rates.last().unwrap() < 50_000_000_000, "{:?}", rates.last());
}

#[test]
fn window_cap_is_one_bandwidth_delay_product() {
    // 1 Gb/s for 32.768 us: four packets of a KiB.
    let values = [("rate_limit", "1Gbps"), ("window_bdp", "100%"), ("base_rtt", "32768ns"), ("burst", "1MiB")];
    let mut pair = pair("none", &values);
    pair.now = Time::from_ns(1_000_000_000);
    pair.post(pair.wqe(1, WrOpcode::RdmaWrite), 64 << 10);
    assert_eq!(pair.figure(0, "cc_window_packets"), 4);
    let sent = pair.hosts[0].turn(pair.now);
    assert_eq!(sent.len(), 4);
    let words: Vec<_> = sent.iter().filter_map(|frame| pair.words(0, frame)).collect();
    assert!(words.last().unwrap().ends_with(" A"), "the last one that may go asks for an answer: {words:?}");
    for frame in sent {
        pair.hosts[1].receive(pair.now, &frame);
    }
    let until = pair.now.as_ns() + 10_000_000;
    run(&mut pair, until, is_write);
    assert_eq!(pair.completions(0), [(1, WcStatus::Success)]);
}

#[test]
fn measured_round_trips_make_the_cap_where_none_is_set() {
    let mut pair = pair("none", &[("window_bdp", "100%")]);
    pair.post(pair.wqe(1, WrOpcode::RdmaWrite), 1_024);
    let sent = pair.hosts[0].turn(pair.now);
    pair.now = pair.now.add_ns(1_000);
    sent.iter().for_each(|frame| pair.hosts[1].receive(pair.now, frame));
    let answers = pair.hosts[1].turn(pair.now);
    answers.iter().for_each(|frame| pair.hosts[0].receive(pair.now, frame));
    // 100 Gb/s for 1 us: 12.2 packets of a KiB.
    assert_eq!(pair.figure(0, "cc_window_packets"), 13);
}

#[test]
fn unreliable_connections_are_controlled_and_datagrams_only_counted() {
    let mut pair = pair_with(Connect { kind: QpType::Uc, ..Connect::default() }, "dcqcn", &[("burst", "0")]);
    for _ in 0..2 {
        let cnp = cnp(&pair);
        pair.tell(0, &cnp);
        pair.now = pair.now.add_ns(4_000);
    }
    assert!(pair.figure(0, "cc_rate_bps") < 26_000_000_000);
    pair.post(pair.wqe(1, WrOpcode::RdmaWrite), 64 << 10);
    let begin = pair.now.as_ns();
    let sent = run(&mut pair, begin + 100_000, |opcode| (0x26..=0x2b).contains(&opcode.0));
    assert_eq!(sent.len(), 64);
    near(rate(&sent), 25e9, 0.05);
    assert_eq!(pair.completions(0), [(1, WcStatus::Success)]);
}

#[test]
fn reset_forgets_what_the_network_was_like() {
    let mut pair = pair("dcqcn", &[]);
    let packet = cnp(&pair);
    pair.tell(0, &packet);
    assert_eq!(pair.figure(0, "cc_rate_limited"), 1);
    pair.go_to(0, QpState::Reset);
    let figures = pair.detail(0).figures;
    assert!(figures.iter().all(|(name, _)| !name.starts_with("cc_")), "{figures:?}");
    let (peer_ip, peer_qpn) = (pair.hosts[1].ip, pair.qps[1].qpn);
    connect(&mut pair.hosts[0], pair.clients[0].session, pair.qps[0].qpn, peer_ip, peer_qpn, pair.connect, 0);
    assert_eq!(pair.figure(0, "cc_rate_limited"), 0);
}

/// What a client of side 0's host is told.
fn ask(pair: &mut Pair, session: u32, request: Request) -> Result<CongestionReport, (i32, String)> {
    match pair.hosts[0].request(session, request, vec![]).0 {
        Reply::Congestion(report) => Ok(*report),
        Reply::Refused { errno, message } => Err((errno, message)),
        other => panic!("{other:?}"),
    }
}

fn set(target: CongestionTarget, algorithm: Option<&str>, values: &[(&str, &str)]) -> Request {
    let values = values.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    let change = CongestionChange { algorithm: algorithm.map(str::to_owned), values };
    Request::SetCongestion { target, change }
}

fn value<'a>(report: &'a CongestionReport, name: &str) -> Option<&'a str> {
    report.params.iter().find(|param| param.name == name).map(|param| param.value.as_str())
}

#[test]
fn qp_has_its_port_s_settings_until_it_gets_its_own_and_after_it_loses_them() {
    let mut pair = pair("dcqcn", &[]);
    let (session, qpn) = (pair.clients[0].session, pair.qps[0].qpn);
    let (port, qp) = (CongestionTarget::Port(1), CongestionTarget::Qp(qpn));
    let report = ask(&mut pair, session, Request::ShowCongestion { target: qp }).unwrap();
    assert_eq!((report.algorithm.as_str(), report.is_own, report.port_num), ("dcqcn-nvidia", false, 1));
    assert!(report.figures.contains(&("cc_rate_bps".to_owned(), 100_000_000_000)));
    let report = ask(&mut pair, session, set(qp, None, &[("rate_limit", "5Gbps")])).unwrap();
    assert_eq!((report.is_own, value(&report, "rate_limit")), (true, Some("5Gbps")));
    assert_eq!(pair.figure(0, "cc_rate_bps"), 5_000_000_000);
    // The port's change is not for it, but for others.
    let report = ask(&mut pair, session, set(port, Some("swift"), &[("hops", "3")])).unwrap();
    assert_eq!((report.algorithm.as_str(), value(&report, "hops"), value(&report, "rai")), ("swift", Some("3"), None));
    assert_eq!(pair.figure(0, "cc_rate_bps"), 5_000_000_000);
    let report = ask(&mut pair, session, Request::ResetCongestion { target: qp }).unwrap();
    assert_eq!((report.algorithm.as_str(), report.is_own), ("swift", false));
    assert_eq!(pair.figure(0, "cc_cwnd_thousandths"), 16_000);
    let report = ask(&mut pair, session, Request::ResetCongestion { target: port }).unwrap();
    assert_eq!(report.algorithm, "dcqcn-nvidia");
    assert_eq!(pair.figure(0, "cc_rate_limited"), 0);
}

#[test]
fn illegal_settings_and_strangers_are_refused_and_nothing_changes() {
    let mut pair = pair("dcqcn", &[]);
    let (session, qpn) = (pair.clients[0].session, pair.qps[0].qpn);
    let (port, qp) = (CongestionTarget::Port(1), CongestionTarget::Qp(qpn));
    let refused = [
        (set(port, Some("cubic"), &[]), 22, "there is no congestion control \"cubic\""),
        (set(qp, None, &[("rai", "40Mbps"), ("g", "0")]), 22, "g = 0 is out of range: 1/1024 to 1024/1024"),
        (set(CongestionTarget::Port(2), None, &[]), 22, "port 2 does not exist: ports are 1 to 1"),
        (set(CongestionTarget::Port(0), None, &[]), 22, "port 0 does not exist"),
        (set(CongestionTarget::Qp(0xff_ffff), None, &[]), 2, "QP 0xffffff does not exist"),
        (Request::ShowCongestion { target: CongestionTarget::Qp(3) }, 2, "QP 0x000003 does not exist"),
    ];
    for (request, errno, sentence) in refused {
        let (found, message) = ask(&mut pair, session, request).unwrap_err();
        assert!(found == errno && message.contains(sentence), "{found} {message}");
    }
    let report = ask(&mut pair, session, Request::ShowCongestion { target: qp }).unwrap();
    assert_eq!((value(&report, "rai"), report.is_own), (Some("5Mbps"), false));

    let stranger = Client::of_user(&mut pair.hosts[0], 7, 4096).session;
    assert!(ask(&mut pair, stranger, Request::ShowCongestion { target: qp }).is_ok());
    for target in [port, qp] {
        for request in [set(target, Some("none"), &[]), Request::ResetCongestion { target }] {
            let (errno, message) = ask(&mut pair, stranger, request).unwrap_err();
            assert!(errno == 1 && message.contains("may"), "{errno} {message}");
        }
    }
}
