//! The watchdog over pauses.

use engine::{Backlog, PauseNotice, PauseTrouble};
use shm::attr::WrOpcode;
use shm::qos::QosSettings;

use crate::world::{DSCP_3, LONGEST_PAUSE_NS, World, pause, with_pfc};

const MS: u64 = 1_000_000;

fn settings(ignore_ms: u32) -> QosSettings {
    let mut settings = with_pfc(&[3]);
    settings.numbers.pfc_watchdog_ms = 2;
    settings.numbers.pfc_watchdog_ignore_ms = ignore_ms;
    settings
}

/// The peer renews its pause again and again, so many nanoseconds in all.
fn storm(world: &mut World, ns: u64) {
    for _ in 0..ns / 100_000 {
        world.receive(&pause(3, 0xffff));
        world.wait(100_000);
        world.turn();
    }
}

fn notices(world: &mut World) -> Vec<PauseNotice> {
    let shard = world.pair.hosts[0].shard();
    let notices: Vec<_> = std::iter::from_fn(|| shard.poll_notice()).collect();
    assert!(!shard.has_notice());
    notices
}

#[test]
fn a_storm_is_reported_once_and_obeyed_where_nothing_else_is_set() {
    let mut world = World::new(settings(0), &[DSCP_3]);
    world.post(0, 0, WrOpcode::RdmaWrite, 1, 1_000);
    storm(&mut world, 2 * MS - 100_000);
    assert_eq!(notices(&mut world), []);
    storm(&mut world, 10 * MS);
    let found = notices(&mut world);
    let sentence = "port 1: the peer has paused priority 3 for 2 ms without an end";
    assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), [sentence]);
    assert_eq!((world.state().counters[3].pause_storm, world.state().paused), (1, 0b1000));
    assert_eq!(world.exchange(), []);
}

#[test]
fn a_storm_is_ignored_for_the_time_that_is_set_and_then_obeyed_again() {
    let mut world = World::new(settings(5), &[DSCP_3]);
    world.post(0, 0, WrOpcode::RdmaWrite, 1, 1_000);
    storm(&mut world, 2 * MS);
    let trouble = PauseTrouble::Storm { paused_ns: 2 * MS, ignored_ns: 5 * MS };
    assert_eq!(notices(&mut world), [PauseNotice { port_num: 1, priority: 3, trouble }]);
    world.receive(&pause(3, 0xffff));
    assert_eq!((world.state().paused, world.state().ignored), (0, 0b1000));
    assert_eq!(world.completed(0), [], "the packet is on its way, or went in the turn that found the storm");
    world.pair.now = world.pair.now.add_ns(5 * MS);
    world.receive(&pause(3, 0xffff));
    assert_eq!((world.state().paused, world.state().ignored), (0b1000, 0));
    assert_eq!(world.state().counters[3].rx_pause_ignored, 1);
    assert_eq!(world.state().counters[3].tx_packets, 1);
}

#[test]
fn pauses_between_which_packets_pass_are_no_storm() {
    let mut world = World::new(settings(0), &[DSCP_3]);
    for wr_id in 0..60 {
        world.post(0, 0, WrOpcode::RdmaWrite, wr_id, 1_000);
        world.receive(&pause(3, 0xffff));
        world.wait(100_000);
        assert_eq!(world.exchange(), []);
        world.receive(&pause(3, 0));
        assert_eq!(world.exchange(), [3]);
        world.completed(0);
    }
    assert_eq!(notices(&mut world), []);
}

#[test]
fn pauses_with_gaps_in_which_nothing_passes_are_a_storm_all_the_same() {
    let mut world = World::new(settings(0), &[DSCP_3]);
    for _ in 0..40 {
        world.receive(&pause(3, 0xffff));
        world.wait(100_000);
        world.turn();
        world.receive(&pause(3, 0));
        world.wait(50);
    }
    assert_eq!(world.state().counters[3].pause_storm, 1);
    // Long apart, they have nothing to do with each other.
    let mut world = World::new(settings(0), &[DSCP_3]);
    for _ in 0..40 {
        world.receive(&pause(3, 0xffff));
        world.wait(2 * LONGEST_PAUSE_NS + 1);
        world.turn();
    }
    assert_eq!(world.state().counters[3].pause_storm, 0);
}

#[test]
fn the_lcore_wakes_up_for_the_watchdog() {
    let mut world = World::new(settings(0), &[DSCP_3]);
    world.receive(&pause(3, 0xffff));
    let limit = world.pair.now.add_ns(2 * MS);
    while world.pair.now < limit {
        assert!(world.pair.hosts[0].shard().next_deadline() <= limit);
        world.wait(100_000);
        world.receive(&pause(3, 0xffff));
    }
    world.turn();
    assert_eq!(notices(&mut world).len(), 1);
}

#[test]
fn a_priority_paused_both_ways_with_nothing_moving_is_a_suspected_deadlock() {
    let mut world = World::new(settings(0), &[DSCP_3]);
    world.post(1, 0, WrOpcode::RdmaWrite, 1, 1_000);
    world.exchange();
    let backlog = Backlog { frames: 300, capacity: u32::MAX };
    let now = world.pair.now;
    world.pair.hosts[0].shard().handle_backlog(now, 0, backlog);
    storm(&mut world, 3 * MS);
    let found = notices(&mut world);
    assert!(matches!(found[0].trouble, PauseTrouble::Storm { .. }), "{found:?}");
    assert_eq!(found[1].trouble, PauseTrouble::Deadlock { stuck_ns: 2 * MS });
    assert_eq!(found.len(), 2);
    let sentence =
        "port 1: priority 3 is paused both ways, and nothing has come or gone for 2 ms: a deadlock is suspected";
    assert_eq!(found[1].to_string(), sentence);
    assert_eq!(world.state().counters[3].pause_deadlock, 1);
}

#[test]
fn paused_both_ways_while_packets_come_is_no_deadlock() {
    let mut world = World::new(settings(0), &[DSCP_3]);
    for wr_id in 0..60 {
        // Short requests that ask for no answer of the paused priority: the peer's window is wide.
        world.post(1, 0, WrOpcode::RdmaWrite, wr_id, 100);
        let now = world.pair.now;
        let frames = world.pair.hosts[1].turn(now);
        frames.iter().for_each(|frame| world.receive(frame));
        world.pair.hosts[0].shard().handle_backlog(now, 0, Backlog { frames: 300, capacity: u32::MAX });
        storm(&mut world, 100_000);
    }
    assert_eq!(world.state().counters[3].pause_deadlock, 0);
    assert_eq!(world.state().pausing, 0b1000);
}
