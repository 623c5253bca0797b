//! A link that does nothing wrong.

use ferroce::PathMtu;
use sim::app::OpKind;

use crate::scenario::{Scenario, op, ops, troubles};

#[test]
fn clean_link_every_operation_without_a_single_repeat() {
    for kind in OpKind::ALL {
        for length in [0, 1, 1_023, 1_024, 1_025, 65_536] {
            let scenario = Scenario::both([ops(kind, length, 20), ops(kind, length, 20)]);
            let report = scenario.conversation(|c| c.cap.max_recv_wr = 32).run(1);
            assert_eq!(troubles(&report), [], "{kind:?} of {length}");
            assert_eq!(report.reconnect_count, 0);
        }
    }
}

#[test]
fn clean_link_every_path_mtu_carries_a_megabyte_both_ways() {
    for path_mtu in PathMtu::ALL {
        let both = || vec![op(OpKind::Write, 1 << 20), op(OpKind::Read, 1 << 20), op(OpKind::Send, 70_001)];
        let report = Scenario::both([both(), both()]).conversation(|c| c.path_mtu = path_mtu).run(2);
        assert_eq!(troubles(&report), [], "{path_mtu}");
        // Requests and responses of two megabytes each way, and not much more.
        let packets = 2 * (2 * (1 << 20) + 70_001) / u64::from(path_mtu.bytes());
        let sent: u64 = report.links.iter().map(|link| link.sent_roce).sum();
        assert!((packets..packets * 11 / 10 + 100).contains(&sent), "{path_mtu}: {sent} for {packets}");
    }
}

#[test]
fn clean_link_two_shards_srq_and_channel() {
    let mixed: Vec<_> = OpKind::ALL.into_iter().cycle().take(200).map(|kind| op(kind, 3_000)).collect();
    let report = Scenario::both([mixed.clone(), mixed])
        .hosts(|host| host.shard_count = 2)
        .conversation(|c| {
            c.uses_srq = true;
            c.uses_channel = true;
            c.uses_one_cq = false;
            c.cap.max_recv_wr = 128;
        })
        .run(3);
    assert_eq!(troubles(&report), []);
}

#[test]
fn one_host_two_applications_talk_without_the_wire() {
    let mixed: Vec<_> = OpKind::ALL.into_iter().cycle().take(100).map(|kind| op(kind, 5_000)).collect();
    let report = Scenario::both([mixed.clone(), mixed]).conversation(|c| c.hosts = [0, 0]).run(4);
    assert_eq!(report.links.map(|link| link.sent), [0, 0]);
    assert!(report.ports[0].local_packets > 500);
}

#[test]
fn polled_and_sleeping_engines_end_the_same() {
    for is_polled in [false, true] {
        let scenario = Scenario::both([ops(OpKind::Send, 500, 100), ops(OpKind::Write, 500, 100)]);
        let report = scenario.hosts(|host| host.is_polled = is_polled).run(5);
        assert_eq!(report.shards.iter().map(|shard| shard.completed_wqes).sum::<u64>(), 200, "polled: {is_polled}");
    }
}
