//! Pauses that we ask the peer for.

use engine::Backlog;
use engine::config::RecoveryConfig;
use shm::attr::WrOpcode;
use shm::qos::QosChange;

use crate::support::HostOptions;
use crate::world::{DSCP_3, LONGEST_PAUSE_NS, NOTHING, World, pauses, with_pfc};

/// The peer sends so many packets on a flow, and host 0 takes them.
fn take(world: &mut World, flow: usize, packets: u32) {
    world.post(1, flow, WrOpcode::RdmaWrite, 1, packets * 1_024);
    world.exchange();
}

fn say(world: &mut World, frames: u32) -> Vec<[Option<u16>; 8]> {
    say_of(world, frames, u32::MAX)
}

fn say_of(world: &mut World, frames: u32, capacity: u32) -> Vec<[Option<u16>; 8]> {
    let now = world.pair.now;
    world.pair.hosts[0].shard().handle_backlog(now, 0, Backlog { frames, capacity });
    pauses(&world.turn())
}

fn named(priorities: &[usize], quanta: u16) -> [Option<u16>; 8] {
    let mut all = [None; 8];
    priorities.iter().for_each(|&priority| all[priority] = Some(quanta));
    all
}

#[test]
fn the_peer_is_paused_at_the_threshold_again_at_half_time_and_released_below_the_other() {
    let mut world = World::new(with_pfc(&[3]), &[DSCP_3]);
    assert!(world.pair.hosts[0].shard().wants_backlog(0));
    take(&mut world, 0, 16);
    assert_eq!(say(&mut world, 255), NOTHING);
    take(&mut world, 0, 16);
    assert_eq!(say(&mut world, 256), [named(&[3], 0xffff)]);
    assert_eq!(world.state().pausing, 0b1000);
    let due = world.pair.now.add_ns(LONGEST_PAUSE_NS / 2);
    assert_eq!(world.pair.hosts[0].shard().next_deadline(), due);
    world.wait(LONGEST_PAUSE_NS / 2 - 1);
    assert_eq!(pauses(&world.turn()), NOTHING);
    world.wait(1);
    assert_eq!(pauses(&world.turn()), [named(&[3], 0xffff)]);
    take(&mut world, 0, 16);
    assert_eq!(say(&mut world, 65), NOTHING, "between the thresholds it stays paused");
    take(&mut world, 0, 16);
    assert_eq!(say(&mut world, 64), [named(&[3], 0)]);
    world.wait(10 * LONGEST_PAUSE_NS);
    assert_eq!(pauses(&world.turn()), NOTHING);
    let counted = world.state().counters[3];
    assert_eq!((counted.tx_pause, counted.tx_pause_transition), (3, 1));
}

#[test]
fn what_waits_is_taken_to_be_of_the_mix_that_came() {
    let mut world = World::new(with_pfc(&[0, 3]), &[DSCP_3, 0]);
    take(&mut world, 0, 12);
    take(&mut world, 1, 4);
    // Three quarters of 340 are 255, of 342 are 256.
    assert_eq!(say(&mut world, 340), NOTHING);
    take(&mut world, 0, 12);
    take(&mut world, 1, 4);
    assert_eq!(say(&mut world, 342), [named(&[3], 0xffff)]);
}

#[test]
fn without_headroom_all_priorities_that_come_are_paused() {
    let mut world = World::new(with_pfc(&[0, 3, 5]), &[DSCP_3, 0]);
    take(&mut world, 0, 8);
    take(&mut world, 1, 8);
    assert_eq!(say_of(&mut world, 72, 200), NOTHING);
    take(&mut world, 0, 8);
    take(&mut world, 1, 8);
    assert_eq!(say_of(&mut world, 73, 200), [named(&[0, 3], 0xffff)]);
    assert_eq!(say_of(&mut world, 0, 200), [named(&[0, 3], 0)]);
    // A queue shorter than the headroom can't have it.
    take(&mut world, 0, 8);
    assert_eq!(say_of(&mut world, 100, 128), NOTHING);
}

#[test]
fn an_idle_port_releases_whom_it_paused() {
    let mut world = World::new(with_pfc(&[3]), &[DSCP_3]);
    take(&mut world, 0, 1);
    assert_eq!(say(&mut world, 300), [named(&[3], 0xffff)]);
    assert_eq!(say(&mut world, 0), [named(&[3], 0)]);
}

/// The peer sends 32 KiB of which the first packet is lost: host 0 keeps 31 packets. A frame that fills the hole comes back.
fn keep_31(world: &mut World) -> Vec<u8> {
    world.post(1, 0, WrOpcode::RdmaWrite, 1, 32 * 1_024);
    let mut lost = None;
    world.pair.exchange_with(|from, frame| {
        if from == 1 && lost.is_none() {
            lost = Some(frame);
            return vec![];
        }
        // Its repeats come later, and its peer hears of nothing.
        if lost.is_some() && from == 0 { vec![] } else { vec![frame] }
    });
    assert_eq!(world.pair.hosts[0].shard().counters().kept_requests, 31);
    lost.unwrap()
}

#[test]
fn what_is_kept_for_its_turn_counts_as_long_as_something_waits() {
    let mut settings = with_pfc(&[3, 4]);
    (settings.numbers.pfc_xoff_frames, settings.numbers.pfc_xon_frames) = (40, 10);
    let mut world = World::new(settings, &[DSCP_3]);
    let missing = keep_31(&mut world);
    assert_eq!(say(&mut world, 8), NOTHING);
    take(&mut world, 0, 0);
    assert_eq!(say(&mut world, 8), [named(&[3], 0xffff)], "32 are kept, all of priority 3");
    // The one that is missing must be let come.
    assert_eq!(say(&mut world, 0), [named(&[3], 0)]);
    world.receive(&missing);
    assert_eq!(say(&mut world, 39), NOTHING, "none is kept any more");
}

#[test]
fn a_pool_that_is_nearly_full_is_no_headroom() {
    let recovery = RecoveryConfig { kept_packets: 100, ..RecoveryConfig::default() };
    for (headroom, expected) in [(68, NOTHING.to_vec()), (70, vec![named(&[3], 0xffff)])] {
        let mut qos = with_pfc(&[3, 4]);
        qos.numbers.pfc_headroom_frames = headroom;
        let mut world = World::with(HostOptions { qos, recovery, ..HostOptions::new(1) }, &[DSCP_3]);
        keep_31(&mut world);
        assert_eq!(say(&mut world, 1), expected, "there is room for 69 more");
    }
}

#[test]
fn a_pause_without_room_is_sent_with_the_next_frames() {
    let mut world = World::new(with_pfc(&[3]), &[DSCP_3]);
    take(&mut world, 0, 1);
    let now = world.pair.now;
    world.pair.hosts[0].shard().handle_backlog(now, 0, Backlog { frames: 300, capacity: u32::MAX });
    assert_eq!(world.transmit(0).len(), 0);
    assert!(world.pair.hosts[0].shard().next_deadline() <= now);
    assert_eq!(pauses(&world.transmit(1)), [named(&[3], 0xffff)]);
}

#[test]
fn of_several_shards_each_lets_its_pause_run_out() {
    let options = HostOptions { qos: with_pfc(&[3]), shard_count: 2, ..HostOptions::new(1) };
    let mut world = World::with(options, &[DSCP_3]);
    take(&mut world, 0, 1);
    let now = world.pair.now;
    for shard in &mut world.pair.hosts[0].shards.shards {
        shard.handle_backlog(now, 0, Backlog { frames: 300, capacity: u32::MAX });
    }
    let sender = (0..2).find(|&shard| world.state_of(shard).pausing != 0);
    let Some(sender) = sender else { panic!("the flow's shard pauses it") };
    assert_eq!(pauses(&world.turn()), [named(&[3], 0xffff)]);
    let now = world.pair.now;
    let shard = &mut world.pair.hosts[0].shards.shards[usize::from(sender)];
    shard.handle_backlog(now, 0, Backlog { frames: 0, capacity: u32::MAX });
    world.wait(LONGEST_PAUSE_NS);
    assert_eq!(pauses(&world.turn()), NOTHING);
    assert_eq!(world.state_of(sender).pausing, 0);
}

#[test]
fn flow_control_that_is_switched_off_releases_the_peer() {
    let mut world = World::new(with_pfc(&[3]), &[DSCP_3]);
    take(&mut world, 0, 1);
    assert_eq!(say(&mut world, 300), [named(&[3], 0xffff)]);
    world.set(QosChange { pfc: Some([false; 8]), ..QosChange::default() });
    assert_eq!(pauses(&world.turn()), [named(&[3], 0)]);
    assert!(!world.pair.hosts[0].shard().wants_backlog(0));
}

#[test]
fn where_the_device_asks_for_pauses_the_shard_does_not() {
    let mut world = World::new(with_pfc(&[3]), &[DSCP_3]);
    let host = &mut world.pair.hosts[0];
    host.control.set_pfc_device(&mut host.shards, 0, true);
    assert!(!host.shard().wants_backlog(0));
    assert_eq!(host.control.pfc_by(0), shm::qos::PfcBy::Device);
    take(&mut world, 0, 1);
    assert_eq!(say(&mut world, 300), NOTHING);
}
