//! The switch and its links on a clock of the tests' own, without a device.

use clap::Parser;
use proptest::prelude::*;
use wire::{EtherType, EthernetRepr, Ipv4Repr, PfcRepr, UdpRepr, ipv4};

use super::*;
use crate::config::Args;

/// Station `number`'s address.
fn mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

/// A RoCE packet as far as switches and links look: from a station to a station, on a flow, ECN-capable and of priority 3.
fn roce(src: u8, dst: u8, src_port: u16, bytes: usize) -> Vec<u8> {
    let total_length = (bytes - EthernetRepr::LEN) as u16;
    let ethernet = EthernetRepr { dst: mac(dst), src: mac(src), ether_type: EtherType::IPV4 };
    let ip = Ipv4Repr {
        src: [10, 0, 0, src].into(),
        dst: [10, 0, 0, dst].into(),
        traffic_class: 26 << 2 | 2,
        total_length,
        ident: 0,
        dont_fragment: true,
        hop_limit: 64,
        protocol: ipv4::PROTOCOL_UDP,
    };
    let udp = UdpRepr { src_port, dst_port: wire::ROCE_PORT, length: total_length - 20, checksum: 0 };
    let mut frame = [&ethernet.to_bytes()[..], &ip.to_bytes(), &udp.to_bytes()].concat();
    // RC SEND only, with a P_Key.
    frame.extend([4, 0, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 1]);
    frame.resize(bytes, 0xcc);
    frame
}

/// A fabric whose port `n` is the device `net_ringN` with these keys.
fn fabric(ports: &[&str], switch: &str) -> Fabric<Vec<u8>> {
    let mut words = vec!["fabric".to_owned()];
    for (keys, number) in ports.iter().zip(0..) {
        words.extend(["--port".to_owned(), format!("net_ring{number},{keys}")]);
    }
    if !switch.is_empty() {
        words.extend(["--switch".to_owned(), switch.to_owned()]);
    }
    let settings = Settings::load(&Args::try_parse_from(words).unwrap()).unwrap();
    let attached = |port| Attached { mac: MacAddr([2, 1, 0, 0, 0, port]), mtu: 9_000, speed_mbps: None };
    Fabric::new(&settings, &(0..ports.len() as u8).map(attached).collect::<Vec<_>>()).unwrap()
}

/// All that arrived at a port's station.
fn taken(fabric: &mut Fabric<Vec<u8>>, port: u16) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| fabric.take(port)).map(|carried| carried.bytes().to_vec()).collect()
}

/// Has the fabric know the station behind each port.
fn introduce(fabric: &mut Fabric<Vec<u8>>, stations: u8) {
    for station in 0..stations {
        fabric.receive(u16::from(station), roce(station, 99, 1, 100));
    }
    let later = fabric.now.add_ns(1_000_000_000);
    fabric.turn(later);
    (0..u16::from(stations)).for_each(|port| drop(taken(fabric, port)));
}

const GIGABIT: &str = "rate=1000Mbps";

#[test]
fn a_frame_takes_its_time_on_both_links_and_a_late_turn_changes_no_time() {
    let mut fabric = fabric(&["rate=1000Mbps,delay=10us", "rate=100Mbps,delay=5us"], "");
    introduce(&mut fabric, 2);
    let start = fabric.now;
    fabric.receive(0, roce(0, 1, 7, 1_226));
    // 1,250 bytes with preamble, FCS and gap: 10 us at 1 Gbit/s, 100 us at 100 Mbit/s.
    let due = start.add_ns(10_000 + 10_000 + 100_000 + 5_000);
    fabric.turn(Time::from_ns(due.as_ns() - 1));
    assert_eq!(taken(&mut fabric, 1).len(), 0);
    fabric.turn(due);
    assert_eq!(taken(&mut fabric, 1), [roce(0, 1, 7, 1_226)]);
}

#[test]
fn unknown_stations_are_flooded_and_known_ones_are_not() {
    let mut fabric = fabric(&[GIGABIT; 3], "");
    fabric.receive(0, roce(0, 1, 7, 100));
    fabric.turn(Time::from_ns(1_000_000));
    assert_eq!([0, 1, 2].map(|port| taken(&mut fabric, port).len()), [0, 1, 1], "nobody knows where 1 is");
    fabric.receive(1, roce(1, 0, 7, 100));
    fabric.turn(Time::from_ns(2_000_000));
    assert_eq!([0, 1, 2].map(|port| taken(&mut fabric, port).len()), [1, 0, 0], "0 was heard before");
    fabric.receive(1, roce(0, 5, 7, 100));
    fabric.receive(2, roce(2, 0, 7, 100));
    fabric.turn(Time::from_ns(3_000_000));
    assert_eq!([0, 1].map(|port| taken(&mut fabric, port).len()), [1, 1], "0 has moved to port 1");
    assert_eq!((fabric.stations().0, fabric.stations().1.learned, fabric.stations().1.moved), (3, 3, 1));
    assert!(fabric.balance().is_even());
}

#[test]
fn stations_are_forgotten_after_their_age_and_no_more_are_known_than_may_be() {
    let mut fabric = fabric(&[GIGABIT; 2], "stations=2,station_age=1s");
    for station in 0..5 {
        fabric.receive(0, roce(station, 200, 7, 100));
    }
    fabric.receive(0, roce(0x51, 200, 7, 100));
    fabric.turn(Time::from_ns(1_000_000));
    assert_eq!((fabric.stations().0, fabric.stations().1.unlearned), (2, 4));
    fabric.turn(Time::from_ns(1_500_000_000));
    assert_eq!((fabric.stations().0, fabric.stations().1.aged), (0, 2));
    let mut group = roce(1, 200, 7, 100);
    group[6] |= 1;
    fabric.receive(0, group);
    fabric.turn(Time::from_ns(1_600_000_000));
    assert_eq!(fabric.stations().0, 0, "no station has a group's address");
}

#[test]
fn a_group_is_one_neighbour_with_several_ways() {
    let mut fabric = fabric(&[GIGABIT, "rate=1000Mbps,group=up", "rate=1000Mbps,group=up"], "");
    // A station behind the group is heard by its first port.
    fabric.receive(1, roce(9, 0, 7, 100));
    fabric.receive(0, roce(0, 200, 7, 100));
    fabric.turn(Time::from_ns(1_000_000));
    assert_eq!([1, 2].map(|port| taken(&mut fabric, port).len()), [1, 0], "a flood goes to a neighbour once");
    for flow in 0..1_000 {
        fabric.receive(0, roce(0, 9, flow, 100));
        fabric.turn(fabric.now.add_ns(100_000));
        [1, 2].into_iter().for_each(|port| drop(taken(&mut fabric, port)));
    }
    let counts = [1, 2].map(|port| fabric.port_counters(port).tx_frames);
    assert!(counts.iter().all(|&count| (420..=580).contains(&count)), "half of the flows each: {counts:?}");
    // What comes back from the neighbours, for a neighbour or for nobody known, does not go there again.
    fabric.receive(2, roce(8, 9, 7, 100));
    fabric.receive(2, roce(8, 77, 7, 100));
    fabric.turn(fabric.now.add_ns(1_000_000));
    assert_eq!([1, 2].map(|port| taken(&mut fabric, port).len()), [0, 0]);
    assert_eq!(fabric.switch_counters().dropped_local, 1);
}

#[test]
fn a_group_goes_by_what_is_left_of_it_and_all_comes_back() {
    let mut fabric = fabric(&[GIGABIT, "rate=1000Mbps,group=up", "rate=1000Mbps,group=up"], "");
    fabric.receive(1, roce(9, 0, 7, 100));
    fabric.turn(Time::from_ns(1_000_000));
    assert_eq!(taken(&mut fabric, 0).len(), 1);
    // Which ports 200 flows and a flood leave by.
    let spread = |fabric: &mut Fabric<Vec<u8>>| {
        for flow in 0..200 {
            fabric.receive(0, roce(0, 9, flow, 100));
        }
        fabric.receive(0, roce(0, 77, 7, 100));
        let later = fabric.now.add_ns(10_000_000);
        fabric.turn(later);
        assert!(fabric.balance().is_even(), "{:?}", fabric.balance());
        [1, 2].map(|port| taken(fabric, port).len())
    };
    let both = spread(&mut fabric);
    assert!(both[0] + both[1] == 201 && both.iter().all(|&count| count > 60), "{both:?}");
    fabric.set_link(1, false);
    assert_eq!(spread(&mut fabric), [0, 201], "flows and floods go by the other");
    fabric.set_link(2, false);
    assert_eq!((spread(&mut fabric), fabric.stations().0), ([0, 0], 1), "the station behind them is forgotten");
    fabric.set_link(1, true);
    assert_eq!(spread(&mut fabric), [201, 0], "unknown as it is, it gets everything by the first that is up");
    fabric.receive(1, roce(9, 0, 7, 100));
    fabric.turn(fabric.now.add_ns(1_000_000));
    fabric.set_link(2, true);
    assert_eq!(spread(&mut fabric), both, "as before");
    assert_eq!(
        [0, 1, 2].map(|port| (fabric.is_up(port), fabric.port_counters(port).flaps)),
        [(true, 0), (true, 1), (true, 1)]
    );
}

#[test]
fn a_link_that_goes_down_loses_what_is_on_it_and_what_waits_for_it() {
    let mut fabric = fabric(&[GIGABIT, "rate=10Mbps,delay=5ms,down=2s-2.1s"], "");
    introduce(&mut fabric, 2);
    let soon = Time::from_ns(1_999_000_000);
    fabric.turn(soon);
    // A frame of 1,250 bytes on the wire takes 1 ms at 10 Mbit/s: one is on the link when it goes down, nine wait for it.
    for _ in 0..10 {
        fabric.receive(0, roce(0, 1, 7, 1_226));
    }
    fabric.turn(Time::from_ns(2_000_000_000));
    let waiting = fabric.switch().waiting(1).0 as u64;
    assert_eq!((fabric.is_up(1), waiting, fabric.switch_counters().dropped_down), (false, 0, 9));
    // What comes meanwhile, either way, is lost; its sender's link does not go faster for it.
    assert!(fabric.wants(1, fabric.now));
    fabric.receive(1, roce(1, 0, 7, 1_226));
    assert!(!fabric.wants(1, fabric.now));
    fabric.receive(0, roce(0, 1, 7, 100));
    fabric.turn(Time::from_ns(2_050_000_000));
    assert_eq!((fabric.port_counters(1).lost_in_flaps, fabric.switch_counters().dropped_unknown), (2, 1));
    assert_eq!([0, 1].map(|port| taken(&mut fabric, port).len()), [0, 0]);
    fabric.turn(Time::from_ns(2_100_000_000));
    assert!(fabric.is_up(1));
    fabric.receive(0, roce(0, 1, 7, 100));
    fabric.turn(Time::from_ns(2_200_000_000));
    assert_eq!((taken(&mut fabric, 1).len(), fabric.balance().inside, fabric.balance().is_even()), (1, 0, true));
}

#[test]
fn a_link_flaps_as_often_as_it_is_told_and_a_device_that_is_gone_keeps_it_down() {
    let mut fabric = fabric(&[GIGABIT, "rate=1000Mbps,flap_every=100ms,flap_for=10ms"], "");
    introduce(&mut fabric, 2);
    assert_eq!(fabric.port_counters(1).flaps, 10, "once every 100 ms of the second that has passed");
    let start = fabric.now;
    let mut arrived = 0;
    for ms in 0..1_000 {
        // 0.5 ms between the two: never at the moment when the link changes.
        fabric.turn(start.add_ns(ms * 1_000_000 + 500_000));
        fabric.receive(1, roce(1, 0, 7, 100));
        fabric.receive(0, roce(0, 1, 7, 100));
        arrived += taken(&mut fabric, 1).len();
        drop(taken(&mut fabric, 0));
    }
    assert_eq!(arrived, 899, "900 of 1,000, and the last is on its way");
    fabric.set_device(1, false);
    fabric.turn(fabric.now.add_ns(500_000_000));
    assert!(!fabric.is_up(1), "its plan does not bring it up");
    fabric.set_device(1, true);
    assert!(fabric.is_up(1) && fabric.balance().is_even());
}

#[test]
fn a_pause_ends_with_the_link_and_its_frames_with_it() {
    let mut fabric = fabric(&[GIGABIT; 2], "");
    introduce(&mut fabric, 2);
    let mut quanta = [None; 8];
    quanta[3] = Some(60_000);
    fabric.receive(1, PfcRepr::Priority(quanta).to_bytes(mac(1)).to_vec());
    fabric.turn(fabric.now.add_ns(10_000));
    fabric.receive(0, roce(0, 1, 7, 100));
    fabric.turn(fabric.now.add_ns(1_000_000));
    assert_eq!((fabric.switch().waiting(1).0, fabric.paused_ns(1) >= 1_000_000), (1, true));
    fabric.set_link(1, false);
    fabric.set_link(1, true);
    let paused_ns = fabric.paused_ns(1);
    fabric.receive(0, roce(0, 1, 8, 100));
    fabric.turn(fabric.now.add_ns(1_000_000));
    assert_eq!(taken(&mut fabric, 1), [roce(0, 1, 8, 100)]);
    assert_eq!((fabric.paused_ns(1), fabric.switch_counters().dropped_down), (paused_ns, 1));
}

#[test]
fn dscps_have_the_priority_of_the_table_and_marks_are_for_those_that_are_named() {
    let queue = |switch: &str| {
        let mut fabric = fabric(&[GIGABIT, "rate=1Mbps"], switch);
        introduce(&mut fabric, 2);
        for _ in 0..20 {
            fabric.receive(0, roce(0, 1, 7, 1_226));
        }
        fabric.turn(fabric.now.add_ns(1_000_000));
        let busy = (0..8).filter(|&priority| fabric.switch().queue_bytes(1, priority) > 0).collect::<Vec<_>>();
        (busy, fabric.switch_counters().marked > 10)
    };
    // The packets have DSCP 26.
    assert_eq!(queue("kmin=0,kmax=0,pmax=1"), (vec![3], true));
    assert_eq!(queue("kmin=0,kmax=0,pmax=1,dscp_to_priority=26:6+0:3"), (vec![6], true));
    assert_eq!(queue("kmin=0,kmax=0,pmax=1,mark=3,dscp_to_priority=26:6"), (vec![6], false));
    assert_eq!(queue("kmin=0,kmax=0,pmax=1,mark=3+6,dscp_to_priority=26:6"), (vec![6], true));
}

/// Two stations send to a third as fast as their links let them, for 100 ms, with turns every `turn_ns`. Bytes that arrived, and marks.
fn incast(fabric: &mut Fabric<Vec<u8>>, turn_ns: u64) -> [u64; 2] {
    introduce(fabric, 3);
    let (mut bytes, end) = ([0; 2], fabric.now.add_ns(100_000_000));
    while fabric.now < end {
        let now = fabric.now.add_ns(turn_ns);
        for station in [0, 1] {
            while fabric.wants(u16::from(station), now) {
                fabric.receive(u16::from(station), roce(station, 2, 7, 1_226));
            }
        }
        fabric.turn(now);
        for frame in taken(fabric, 2) {
            bytes[usize::from(frame[11])] += frame.len() as u64;
        }
        [0, 1].into_iter().for_each(|port| drop(taken(fabric, port)));
    }
    bytes
}

#[test]
fn an_incast_gets_the_rate_of_its_port_and_the_rest_is_dropped_however_coarse_the_turns_are() {
    for turn_ns in [5_000, 40_000, 700_000] {
        let mut fabric = fabric(&[GIGABIT; 3], "buffer=64KiB");
        let bytes = incast(&mut fabric, turn_ns);
        // 100 ms of 1 Gbit/s are 10,000 frames of 1,226 bytes, 24 more on the wire. The last turn may end later.
        let frames = bytes.iter().sum::<u64>() / 1_226;
        assert!((9_900..=10_080).contains(&frames), "{frames} frames with turns of {turn_ns} ns");
        let dropped = fabric.switch_counters().dropped_queue;
        assert!((9_700..=10_150).contains(&dropped), "{dropped} dropped with turns of {turn_ns} ns");
        assert!(fabric.balance().is_even(), "{:?}", fabric.balance());
    }
}

#[test]
fn marks_come_above_kmin_only() {
    let mut busy = fabric(&[GIGABIT; 3], "kmin=10kB,kmax=10kB,pmax=1");
    incast(&mut busy, 5_000);
    assert!(busy.switch_counters().marked > 9_000);
    let mut idle = fabric(&["rate=400Mbps", "rate=400Mbps", GIGABIT], "kmin=10kB,kmax=10kB,pmax=1");
    incast(&mut idle, 5_000);
    assert_eq!(idle.switch_counters().marked, 0, "two slow links fill no fast one's queue");
}

#[test]
fn pauses_go_to_senders_instead_of_drops_and_end() {
    let mut fabric = fabric(&[GIGABIT; 3], "buffer=1MiB,queue_limit=20kB,pfc=3,headroom=100kB,xon_offset=5kB");
    introduce(&mut fabric, 3);
    // What they may send until they obey fits into the headroom; they obey when they hear of it.
    let mut pauses = [0; 2];
    let mut stopped = [false; 2];
    for _ in 0..20_000 {
        let now = fabric.now.add_ns(5_000);
        for station in [0u8, 1] {
            let port = u16::from(station);
            if !stopped[usize::from(station)] && fabric.wants(port, now) {
                fabric.receive(port, roce(station, 2, 7, 1_226));
            }
        }
        fabric.turn(now);
        drop(taken(&mut fabric, 2));
        for station in [0, 1] {
            for frame in taken(&mut fabric, station) {
                let Some(PfcRepr::Priority(quanta)) = PfcRepr::parse(&frame) else { continue };
                stopped[usize::from(station)] = quanta[3].is_some_and(|quanta| quanta > 0);
                pauses[usize::from(station)] += 1;
            }
        }
    }
    let counters = fabric.switch_counters();
    assert_eq!((counters.dropped(), pauses[0] > 10, pauses[1] > 10), (0, true, true), "{pauses:?}");
    assert!(counters.resumes_sent > 10 && fabric.balance().is_even());
    // The receiver's port never idled: 100 ms of it.
    assert!(fabric.port_counters(2).tx_frames > 9_800, "{}", fabric.port_counters(2).tx_frames);
}

#[test]
fn a_pause_from_a_station_holds_its_port() {
    let mut fabric = fabric(&[GIGABIT; 2], "");
    introduce(&mut fabric, 2);
    let mut quanta = [None; 8];
    quanta[3] = Some(1_000);
    fabric.receive(1, PfcRepr::Priority(quanta).to_bytes(mac(1)).to_vec());
    fabric.turn(fabric.now.add_ns(10_000));
    fabric.receive(0, roce(0, 1, 7, 100));
    // 1,000 quanta of 512 bits are 512 us.
    fabric.turn(fabric.now.add_ns(400_000));
    assert_eq!(taken(&mut fabric, 1).len(), 0);
    fabric.turn(fabric.now.add_ns(200_000));
    assert_eq!(taken(&mut fabric, 1).len(), 1);
    assert_eq!((fabric.switch_counters().pauses_received, fabric.balance().is_even()), (1, true));
}

#[test]
fn a_device_that_takes_nothing_has_frames_wait_in_the_switch_and_nothing_grows_without_end() {
    let mut fabric = fabric(&[GIGABIT; 2], "frames=256");
    introduce(&mut fabric, 2);
    for _ in 0..2_000 {
        let now = fabric.now.add_ns(20_000);
        if fabric.wants(0, now) {
            fabric.receive(0, roce(0, 1, 7, 100));
        }
        fabric.turn(now);
    }
    let inside = fabric.balance().inside;
    assert!((250..=256).contains(&inside), "{inside}");
    assert_eq!(fabric.port_counters(1).held, 1);
    let mut count = 0;
    while fabric.balance().inside > 0 {
        count += taken(&mut fabric, 1).len() as u64;
        fabric.turn(fabric.now.add_ns(100_000));
    }
    assert_eq!(count, inside, "and all of it comes out when it does");
}

#[test]
fn faults_come_as_often_as_they_are_set_and_the_same_seed_has_the_same() {
    let run = || {
        let keys = "rate=1000Mbps,loss=1%,duplicate=1%,reorder=1%,corrupt=1%,faults=out";
        let mut fabric = fabric(&[GIGABIT, keys], "");
        introduce(&mut fabric, 2);
        let mut arrived = Vec::new();
        for number in 0..20_000u32 {
            let mut frame = roce(0, 1, 7, 100);
            frame[96..].copy_from_slice(&number.to_be_bytes());
            fabric.receive(0, frame);
            fabric.turn(fabric.now.add_ns(2_000));
            arrived.extend(taken(&mut fabric, 1));
        }
        fabric.turn(fabric.now.add_ns(10_000_000));
        arrived.extend(taken(&mut fabric, 1));
        assert!(fabric.balance().is_even(), "{:?}", fabric.balance());
        assert_eq!(fabric.link_counters(1)[0].lost, 0, "the other way is good");
        (*fabric.link_counters(1)[1], arrived)
    };
    let (counters, arrived) = run();
    // 200 each, five standard deviations (14 each) either way.
    let corrupted = counters.corrupted + counters.corrupted_harmlessly;
    for count in [counters.lost, counters.duplicated, counters.reordered, corrupted] {
        assert!((130..=270).contains(&count), "{counters:?}");
    }
    assert_eq!(arrived.len() as u64, 20_000 - counters.lost + counters.duplicated);
    assert_eq!(run(), (counters, arrived));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever stations send, whenever the turns come: nothing panics, and no frame vanishes.
    #[test]
    fn no_frame_vanishes(steps in prop::collection::vec(
        (0..3u16, prop_oneof![
            (0..6u8, 0..6u8, any::<u16>(), 60..3_000usize).prop_map(|(src, dst, flow, bytes)| roce(src, dst, flow, bytes)),
            prop::collection::vec(any::<u8>(), 0..200),
            (any::<[Option<u16>; 8]>()).prop_map(|quanta| PfcRepr::Priority(quanta).to_bytes(mac(1)).to_vec()),
        ], 0..200_000u64, any::<bool>(), prop::option::weighted(0.1, any::<bool>())),
        1..200,
    )) {
        let keys = "rate=1000Mbps,delay=3us,jitter=2us,loss=10%,duplicate=10%,reorder=10%,corrupt=10%,truncate=10%,spike=5%,spike_delay=50us,\
                    spare=none,flap_every=3ms,flap_for=1ms";
        let mut fabric = fabric(&[keys; 3], "buffer=128KiB,pfc=3,headroom=20kB,queue_limit=10kB,kmin=1kB,kmax=2kB,pmax=0.5");
        for (port, frame, gap_ns, takes, link) in steps {
            let now = fabric.now.add_ns(gap_ns);
            fabric.receive(port, frame);
            fabric.turn(now);
            if let Some(is_up) = link {
                fabric.set_link(port, is_up);
            }
            if takes {
                drop(taken(&mut fabric, port));
            }
            prop_assert!(fabric.balance().is_even(), "{:?}", fabric.balance());
        }
        // Two seconds, longer than any pause.
        for _ in 0..400 {
            (0..3).for_each(|port| drop(taken(&mut fabric, port)));
            fabric.turn(fabric.now.add_ns(5_000_000));
        }
        prop_assert_eq!(fabric.balance().inside, 0);
    }
}
