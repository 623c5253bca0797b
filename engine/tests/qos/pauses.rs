//! Pauses that the peer asks for.

use engine::{Time, is_for_all_shards};
use shm::attr::{AhAttr, QpType, SendFlags, WrOpcode};
use shm::control::congestion::{CongestionChange, CongestionTarget};
use shm::control::{Reply, Request};
use shm::layout::SendWqe;
use shm::qos::{QosChange, QosSettings};
use wire::{Frame, Gid, MacAddr, Opcode, PfcRepr};

use crate::support::{CAP, Connect, HostOptions, connect, mark};
use crate::world::{DSCP_3, LONGEST_PAUSE_NS, World, opcodes, pause, pause_all, with_pfc};

#[test]
fn a_paused_priority_waits_and_another_goes_on() {
    let mut world = World::new(with_pfc(&[3]), &[DSCP_3, 0]);
    world.receive(&pause(3, 0xffff));
    world.post(0, 0, WrOpcode::RdmaWrite, 1, 8_000);
    world.post(0, 1, WrOpcode::RdmaWrite, 2, 8_000);
    assert_eq!(world.exchange(), [0; 8]);
    assert_eq!(world.completed(0), [2]);
    world.wait(LONGEST_PAUSE_NS - 1);
    assert_eq!(world.exchange(), []);
    world.wait(1);
    assert_eq!(world.exchange(), [3; 8]);
    assert_eq!(world.completed(0), [1]);
    let counted = world.state().counters[3];
    assert_eq!((counted.rx_pause, counted.rx_pause_transition, counted.rx_pause_duration_ns), (1, 1, LONGEST_PAUSE_NS));
    assert_eq!(world.state().counters[0].rx_pause, 0);
}

#[test]
fn zero_quanta_end_a_pause_at_once_and_more_quanta_renew_it() {
    let mut world = World::new(with_pfc(&[3]), &[DSCP_3]);
    world.receive(&pause(3, 0xffff));
    world.post(0, 0, WrOpcode::RdmaWrite, 1, 1_000);
    world.wait(LONGEST_PAUSE_NS - 100);
    world.receive(&pause(3, 0xffff));
    world.wait(LONGEST_PAUSE_NS - 1);
    assert_eq!(world.exchange(), []);
    world.receive(&pause(3, 0));
    assert_eq!(world.exchange(), [3]);
    let counted = world.state().counters[3];
    let lasted = 2 * LONGEST_PAUSE_NS - 101;
    assert_eq!((counted.rx_pause, counted.rx_pause_transition, counted.rx_pause_duration_ns), (3, 1, lasted));
}

#[test]
fn a_pause_may_be_shortened() {
    let mut world = World::new(with_pfc(&[3]), &[DSCP_3]);
    world.receive(&pause(3, 0xffff));
    world.receive(&pause(3, 100));
    world.post(0, 0, WrOpcode::RdmaWrite, 1, 1_000);
    world.wait(511);
    assert_eq!(world.exchange(), []);
    world.wait(1);
    assert_eq!(world.exchange(), [3]);
}

#[test]
fn answers_are_paused_as_requests_are() {
    let mut world = World::new(with_pfc(&[3]), &[DSCP_3, 0]);
    world.receive(&pause(3, 0xffff));
    for (flow, opcode) in [(0, WrOpcode::RdmaWrite), (0, WrOpcode::RdmaRead), (1, WrOpcode::RdmaWrite)] {
        world.post(1, flow, opcode, flow as u64, 2_000);
    }
    assert_eq!(world.exchange(), [0]);
    assert_eq!(world.completed(1), [1]);
    world.receive(&pause(3, 0));
    assert_eq!(world.exchange(), [3, 3, 3]);
    assert_eq!(world.completed(1), [0, 0]);
}

/// Host 0 gets a marked WRITE of its peer's.
fn receive_marked(world: &mut World) {
    world.post(1, 0, WrOpcode::RdmaWrite, 1, 1_000);
    let now = world.pair.now;
    for mut frame in world.pair.hosts[1].turn(now) {
        mark(&mut frame);
        world.receive(&frame);
    }
}

#[test]
fn a_cnp_leaves_while_the_data_that_it_is_about_is_paused() {
    let mut world = World::new(with_pfc(&[3]), &[DSCP_3]);
    world.receive(&pause(3, 0xffff));
    receive_marked(&mut world);
    let sent = world.turn();
    assert_eq!(opcodes(&sent), [Opcode::CNP]);
    assert_eq!(Frame::parse(&sent[0]).unwrap().traffic_class(), 48 << 2);
    world.receive(&pause(3, 0));
    assert_eq!(opcodes(&world.turn()), [Opcode::RC_ACK]);
}

#[test]
fn a_cnp_waits_in_its_own_priority_and_follows_it() {
    type Act = fn(&mut World);
    let ends: [Act; 3] = [
        |world| world.receive(&pause(6, 0)),
        |world| {
            let change = QosChange { dscp_to_priority: vec![(48, 5)], ..QosChange::default() };
            assert!(matches!(world.set(change), Reply::Qos(_)));
        },
        |world| {
            let change = CongestionChange { algorithm: None, values: vec![("cnp_dscp".to_owned(), "0".to_owned())] };
            let request = Request::SetCongestion { target: CongestionTarget::Port(1), change };
            assert!(matches!(world.pair.ask_operator(request), Reply::Congestion(_)));
        },
    ];
    for end in ends {
        let mut world = World::new(with_pfc(&[6]), &[DSCP_3]);
        world.receive(&pause(6, 0xffff));
        receive_marked(&mut world);
        assert_eq!(opcodes(&world.turn()), [Opcode::RC_ACK]);
        end(&mut world);
        assert_eq!(opcodes(&world.turn()), [Opcode::CNP]);
        assert_eq!(world.turn(), Vec::<Vec<u8>>::new());
    }
}

#[test]
fn a_lcore_with_nothing_but_paused_work_may_sleep_until_the_pause_ends() {
    let mut world = World::new(with_pfc(&[3]), &[DSCP_3]);
    world.receive(&pause(3, 1_000));
    world.post(0, 0, WrOpcode::RdmaWrite, 1, 1_000);
    assert_eq!(world.turn(), Vec::<Vec<u8>>::new());
    let end = world.pair.now.add_ns(5_120);
    let shard = world.pair.hosts[0].shard();
    assert!(!shard.wants_transmit());
    assert_eq!(shard.next_deadline(), end);
}

#[test]
fn priorities_without_flow_control_are_not_paused() {
    let mut world = World::new(QosSettings::default(), &[DSCP_3, 0]);
    world.receive(&pause_all([Some(0xffff); 8]));
    world.post(0, 0, WrOpcode::RdmaWrite, 1, 1_000);
    assert_eq!(world.exchange(), [3]);
    let state = world.state();
    assert!(state.counters.iter().all(|counted| (counted.rx_pause, counted.rx_pause_ignored) == (1, 1)));
    assert_eq!(state.paused, 0);
}

#[test]
fn frames_that_are_no_pause_of_a_priority_pause_nothing() {
    let mut world = World::new(with_pfc(&[0, 1, 2, 3, 4, 5, 6, 7]), &[DSCP_3]);
    let good = pause_all([Some(0xffff); 8]);
    let changed = |at: usize, byte: u8| {
        let mut frame = good.clone();
        frame[at] = byte;
        frame
    };
    let counters = |world: &mut World| *world.pair.hosts[0].shard().port_counters(0).unwrap();
    let before = counters(&mut world);
    let link = PfcRepr::Link(0xffff).to_bytes(MacAddr([2, 0, 0, 0, 0, 2])).to_vec();
    let cases = [pause_all([None; 8]), changed(5, 2), changed(15, 9), good[..33].to_vec(), good[..14].to_vec(), link];
    for frame in &cases {
        assert!(is_for_all_shards(frame));
        world.receive(frame);
    }
    // Reserved bits and reserved classes say nothing.
    let mut reserved = pause_all([None; 8]);
    reserved[16] = 0xff;
    world.receive(&reserved);
    let after = counters(&mut world);
    assert_eq!(after.rx_pfc_frames - before.rx_pfc_frames, 2);
    assert_eq!(after.rx_malformed_packets - before.rx_malformed_packets, 4);
    assert_eq!(after.rx_link_pause_frames - before.rx_link_pause_frames, 1);
    assert_eq!(world.state().paused, 0);
    world.post(0, 0, WrOpcode::RdmaWrite, 1, 1_000);
    assert_eq!(world.exchange(), [3]);
}

#[test]
fn any_bytes_after_the_type_are_handled() {
    let mut world = World::new(with_pfc(&[0, 3, 7]), &[DSCP_3]);
    let mut state = 1_u64;
    for round in 0..20_000 {
        let mut frame = pause(3, 1);
        for byte in &mut frame[14..34] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
        if round % 2 == 0 {
            frame[14..16].copy_from_slice(&[1, 1]);
        }
        world.receive(&frame);
        world.wait(round);
        assert!(world.state().paused & !0b1000_1001 == 0);
        world.turn();
    }
    world.wait(LONGEST_PAUSE_NS);
    world.turn();
    assert_eq!(world.state().paused, 0);
}

#[test]
fn what_stays_inside_meets_no_pause() {
    let mut world = World::new(with_pfc(&[0, 1, 2, 3, 4, 5, 6, 7]), &[]);
    let [host, _] = &mut world.pair.hosts;
    let client = &mut world.pair.clients[0];
    let [mut a, b] = [client.qp(host, CAP), client.qp(host, CAP)];
    let (ip, c) = (host.ip, Connect::default());
    connect(host, client.session, a.qpn, ip, b.qpn, c, 0);
    connect(host, client.session, b.qpn, ip, a.qpn, c, 1);
    world.receive(&pause_all([Some(0xffff); 8]));
    let (sge, rkey) = (world.pair.clients[0].sge(0, 4_000), world.pair.clients[0].key);
    let wqe = SendWqe {
        wr_id: 5,
        opcode: WrOpcode::RdmaWrite as u8,
        flags: SendFlags::SIGNALED.0,
        remote_addr: crate::support::BASE,
        rkey,
        ..SendWqe::default()
    };
    a.post(wqe, &[sge]);
    world.pair.exchange();
    assert_eq!(world.completed(0), [5]);
}

#[test]
fn each_datagram_waits_in_the_lane_of_its_own_address_handle() {
    let options = HostOptions { qos: with_pfc(&[3]), ..HostOptions::new(1) };
    let mut world = World::with(options, &[]);
    let [host, peer] = &mut world.pair.hosts;
    let client = &mut world.pair.clients[0];
    let c = Connect { kind: QpType::Ud, ..Connect::default() };
    let mut qps = [client.qp_of(host, QpType::Ud, CAP), client.qp_of(host, QpType::Ud, CAP)];
    for qp in &qps {
        connect(host, client.session, qp.qpn, peer.ip, 0, c, 0);
    }
    let mut handle = |traffic_class| {
        let attr = AhAttr { dgid: Gid::from_ip(peer.ip), port_num: 1, traffic_class, ..AhAttr::default() };
        match host.request(client.session, Request::CreateAh { pd: client.pd, attr }, vec![]).0 {
            Reply::Handle(ah) => ah,
            other => panic!("{other:?}"),
        }
    };
    let (paused, open) = (handle(DSCP_3 << 2), handle(0));
    let post = |world: &mut World, qp: &mut crate::support::TestQp, ah: u32, wr_id| {
        let (opcode, flags) = (WrOpcode::Send as u8, SendFlags::SIGNALED.0);
        let wqe = SendWqe { wr_id, opcode, flags, rkey: 0x55, compare_add: ah.into(), ..SendWqe::default() };
        qp.post(wqe, &[world.pair.clients[0].sge(0, 64)]);
    };
    // A QP whose last datagram was of the priority that is paused then sends others all the same.
    post(&mut world, &mut qps[0], paused, 1);
    world.pair.exchange();
    assert_eq!(world.completed(0), [1]);
    world.receive(&pause(3, 0xffff));
    post(&mut world, &mut qps[0], open, 2);
    post(&mut world, &mut qps[0], paused, 3);
    post(&mut world, &mut qps[0], open, 4);
    post(&mut world, &mut qps[1], open, 5);
    world.pair.exchange();
    assert_eq!(world.completed(0), [2, 5]);
    assert!(!world.pair.hosts[0].shard().wants_transmit());
    world.receive(&pause(3, 0));
    world.pair.exchange();
    assert_eq!(world.completed(0), [3, 4]);
}

#[test]
fn a_pause_of_priority_0_holds_what_asks_for_neighbours_without_waking_for_it() {
    let mut world = World::new(with_pfc(&[0]), &[]);
    world.receive(&pause(0, 0xffff));
    let request = Request::CreateAh {
        pd: world.pair.clients[0].pd,
        attr: AhAttr { dgid: Gid::from_ip([10, 0, 0, 9].into()), port_num: 1, ..AhAttr::default() },
    };
    assert!(matches!(world.pair.ask_operator(request), Reply::Handle(_)));
    assert_eq!(world.turn(), Vec::<Vec<u8>>::new());
    let end = world.pair.now.add_ns(LONGEST_PAUSE_NS);
    assert_eq!(world.pair.hosts[0].shard().next_deadline(), end);
    world.wait(LONGEST_PAUSE_NS);
    assert_eq!(world.turn().len(), 1, "the question is asked");
}

#[test]
fn every_shard_obeys_and_the_first_one_counts() {
    let options = HostOptions { qos: with_pfc(&[3]), shard_count: 2, ..HostOptions::new(1) };
    let mut world = World::with(options, &[DSCP_3]);
    world.receive(&pause(3, 0xffff));
    assert_eq!([0, 1].map(|shard| world.state_of(shard).paused), [0b1000; 2]);
    assert_eq!([0, 1].map(|shard| world.state_of(shard).counters[3].rx_pause), [1, 0]);
    world.receive(&pause(3, 0));
    assert_eq!([0, 1].map(|shard| world.state_of(shard).paused), [0; 2]);
}

#[test]
fn a_packet_without_room_keeps_its_place_in_its_lane() {
    let mut world = World::new(with_pfc(&[3]), &[DSCP_3, DSCP_3]);
    world.post(0, 0, WrOpcode::RdmaWrite, 1, 4_000);
    world.post(0, 1, WrOpcode::RdmaWrite, 2, 4_000);
    let first = world.transmit(2);
    world.receive(&pause(3, 0xffff));
    assert_eq!(world.transmit(8).len(), 0);
    world.receive(&pause(3, 0));
    let rest = world.transmit(8);
    let all = [first, rest].concat();
    let [first, middle, last] = [Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_MIDDLE, Opcode::RC_WRITE_LAST];
    assert_eq!(opcodes(&all), [first, middle, middle, last, first, middle, middle, last]);
}

#[test]
fn the_length_of_a_pause_goes_by_the_ports_speed() {
    // 100 quanta of 512 bits.
    for (speed_mbps, expected_ns) in [(100_000, 512), (40_000, 1_280), (10_000, 5_120), (0, 5_120), (1, 51_200_000)] {
        let mut world = World::new(with_pfc(&[3]), &[]);
        let mut port = world.pair.hosts[0].control.ports()[0].clone();
        port.speed_mbps = speed_mbps;
        let host = &mut world.pair.hosts[0];
        host.control.port_changed(&mut host.shards, 0, port);
        world.receive(&pause(3, 100));
        let now = world.pair.now;
        let due: Time = world.pair.hosts[0].shard().next_deadline();
        assert_eq!(due.ns_since(now), expected_ns, "{speed_mbps} Mbit/s");
    }
}
