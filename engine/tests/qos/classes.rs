//! How traffic classes share a port.

use shm::attr::WrOpcode;
use shm::qos::{QosSettings, Tsa};
use wire::Frame;

use crate::world::World;

/// Frames of each priority among the first `count` that host 0 sends, with room for so many at a time, all flows backlogged.
fn shares(world: &mut World, count: usize, room: usize) -> [usize; 8] {
    let mut by_priority = [0; 8];
    let mut left = count;
    while left > 0 {
        world.pair.completions(0);
        for flow in 0..world.flows.len() {
            while world.flows[flow][0].send.free() > 0 {
                world.post(0, flow, WrOpcode::RdmaWrite, 1, 40_000);
            }
        }
        let frames = world.transmit(room);
        assert!(!frames.is_empty(), "{left} are missing");
        for frame in frames.iter().take(left) {
            by_priority[usize::from(Frame::parse(frame).unwrap().traffic_class() >> 5)] += 1;
        }
        left = left.saturating_sub(frames.len());
        world.answer(&frames);
        world.wait(1_000);
    }
    by_priority
}

#[test]
fn weighted_classes_share_10000_packets_by_weight() {
    let weights = [50, 30, 15, 5, 1, 1, 1, 1];
    for room in [7, 32, 64] {
        let mut world = World::new(QosSettings { weights, ..QosSettings::default() }, &[0, 8, 16, 24]);
        let sent = shares(&mut world, 10_000, room);
        for (priority, percent) in [50_usize, 30, 15, 5].into_iter().enumerate() {
            let expected = percent * 100;
            // A QP's quantum is 16 packets: the last one may be unfinished.
            assert!(sent[priority].abs_diff(expected) <= 100, "room {room}, priority {priority}: {sent:?}");
        }
    }
}

#[test]
fn a_strict_class_takes_all_while_it_has_anything_to_send() {
    let mut tsa = [Tsa::Ets; 8];
    tsa[5] = Tsa::Strict;
    let mut world = World::new(QosSettings { tsa, ..QosSettings::default() }, &[0, 40]);
    let sent = shares(&mut world, 1_000, 8);
    assert_eq!(sent[5], 1_000, "{sent:?}");
}

#[test]
fn two_priorities_of_one_class_share_its_weight() {
    let priority_to_class = [0, 1, 1, 0, 0, 0, 0, 0];
    let weights = [50, 50, 1, 1, 1, 1, 1, 1];
    let settings = QosSettings { priority_to_class, weights, ..QosSettings::default() };
    let mut world = World::new(settings, &[0, 8, 16]);
    let sent = shares(&mut world, 10_000, 32);
    for (priority, expected) in [5_000_usize, 2_500, 2_500].into_iter().enumerate() {
        assert!(sent[priority].abs_diff(expected) <= 100, "{sent:?}");
    }
}

#[test]
fn qps_of_one_priority_take_turns_as_they_always_did() {
    let mut world = World::new(QosSettings::default(), &[0, 0, 0, 0]);
    for flow in 0..4 {
        world.post(0, flow, WrOpcode::RdmaWrite, 1, 40_000);
    }
    let frames = world.transmit(64);
    let order: Vec<u32> = frames.iter().map(|frame| Frame::parse(frame).unwrap().bth().dest_qpn.value()).collect();
    let expected: Vec<u32> = (0..4).flat_map(|flow| [world.flows[flow][1].qpn; 16]).collect();
    assert_eq!(order, expected);
}

#[test]
fn room_for_less_than_a_quantum_at_a_time_goes_to_everybody() {
    // What a device has free that is busy sending.
    for room in [1, 3, 8, 16, 40] {
        let mut world = World::new(QosSettings::default(), &[0, 0, 0]);
        let mut of_flow = [0_usize; 3];
        while of_flow.iter().sum::<usize>() < 1_200 {
            world.pair.completions(0);
            for flow in 0..3 {
                while world.flows[flow][0].send.free() > 0 {
                    world.post(0, flow, WrOpcode::RdmaWrite, 1, 40_000);
                }
            }
            let frames = world.transmit(room);
            for frame in &frames {
                let dest = Frame::parse(frame).unwrap().bth().dest_qpn.value();
                let flow = world.flows.iter().position(|qps| qps[1].qpn == dest).unwrap();
                of_flow[flow] += 1;
            }
            world.answer(&frames);
            world.wait(1_000);
        }
        let (least, most) = (of_flow.iter().min().unwrap(), of_flow.iter().max().unwrap());
        assert!(most - least <= 40, "room {room}: {of_flow:?}");
    }
}
