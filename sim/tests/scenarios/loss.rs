//! A frame is lost, comes twice or late: what that costs.

use ferroce::{PathMtu, RecoveryPolicy};
use sim::app::OpKind;
use sim::link::{Action, Faults, Rule};
use sim::run::Report;
use wire::{Frame, OpKind as Packet, Opcode};

use crate::scenario::{Scenario, op, ops};

fn is_write(frame: &Frame<'_>) -> bool {
    frame.info().kind == Packet::Write
}

fn is_ack(frame: &Frame<'_>) -> bool {
    frame.info().kind == Packet::Acknowledge
}

fn is_read_request(frame: &Frame<'_>) -> bool {
    frame.info().kind == Packet::ReadRequest
}

fn is_read_response(frame: &Frame<'_>) -> bool {
    frame.info().kind == Packet::ReadResponse
}

fn is_fetch_add(frame: &Frame<'_>) -> bool {
    frame.info().kind == Packet::FetchAdd
}

fn is_atomic_ack(frame: &Frame<'_>) -> bool {
    frame.bth().opcode == Opcode::RC_ATOMIC_ACK
}

#[test]
fn write_lost_middle_packet_is_asked_for_at_once() {
    let report = Scenario::new(ops(OpKind::Write, 10_240, 1)).rule(0, Rule::drop_nth(is_write, 4)).run(1);
    let [requester, responder] = report.shards;
    assert_eq!((requester.local_ack_timeout_err, requester.rcvd_seq_err), (0, 1));
    // One NAK for the gap, whatever follows it; everything from the gap on is sent again, nothing before it.
    // What came behind the gap was kept, so its repeats are duplicates.
    assert_eq!((responder.out_of_sequence, responder.kept_requests, responder.duplicate_request), (1, 5, 5));
    assert_eq!(requester.retransmitted_packets, 6);
}

#[test]
fn write_lost_last_packet_costs_a_timeout() {
    let report = Scenario::new(ops(OpKind::Write, 3_072, 1)).rule(0, Rule::drop_nth(is_write, 2)).run(1);
    let [requester, responder] = report.shards;
    assert_eq!((requester.local_ack_timeout_err, requester.rcvd_seq_err), (1, 0));
    // Nothing was acknowledged: all of it is sent again, and what was there is not executed again.
    assert_eq!((requester.retransmitted_packets, responder.duplicate_request), (3, 2));
    assert!(report.done_ns > 67_000_000, "the timeout of 67.1 ms is waited for: {} ns", report.done_ns);
}

#[test]
fn send_lost_ack_is_not_received_twice() {
    let report = Scenario::new(ops(OpKind::Send, 100, 1)).rule(1, Rule::drop_nth(is_ack, 0)).run(1);
    let [requester, responder] = report.shards;
    assert_eq!((requester.local_ack_timeout_err, requester.retransmitted_packets), (1, 1));
    assert_eq!((responder.duplicate_request, responder.rx_requests), (1, 1));
}

#[test]
fn lost_ack_is_covered_by_the_next_one() {
    let report = Scenario::new(ops(OpKind::Write, 100, 10))
        .conversation(|c| c.step_delay_ns = 10_000)
        .rule(1, Rule::drop_nth(is_ack, 0))
        .run(2);
    let acks = report.links[1].sent_roce;
    assert!(acks > 1, "{acks} acknowledgements: there is a next one");
    assert_eq!(report.shards[0].local_ack_timeout_err, 0);
}

#[test]
fn read_lost_request_is_sent_again_after_a_timeout() {
    let report = Scenario::new(ops(OpKind::Read, 4_096, 1)).rule(0, Rule::drop_nth(is_read_request, 0)).run(1);
    let [requester, responder] = report.shards;
    assert_eq!((requester.local_ack_timeout_err, requester.retransmitted_packets), (1, 1));
    assert_eq!((responder.duplicate_request, requester.rx_responses), (0, 4));
}

#[test]
fn read_lost_middle_response_is_asked_for_from_the_gap() {
    let report = Scenario::new(ops(OpKind::Read, 10_240, 1)).rule(1, Rule::drop_nth(is_read_response, 3)).run(1);
    let [requester, responder] = report.shards;
    assert_eq!((requester.local_ack_timeout_err, requester.implied_nak_seq_err), (0, 1));
    assert_eq!(responder.duplicate_request, 1);
    // Ten responses; of the second answer only those from the gap on.
    assert_eq!(report.links[1].sent_roce, 10 + 7);
}

#[test]
fn read_lost_last_response_costs_a_timeout() {
    let report = Scenario::new(ops(OpKind::Read, 10_240, 1)).rule(1, Rule::drop_nth(is_read_response, 9)).run(1);
    assert_eq!((report.shards[0].local_ack_timeout_err, report.shards[0].implied_nak_seq_err), (1, 0));
    assert_eq!(report.links[1].sent_roce, 11, "only the last response is sent again");
}

#[test]
fn duplicated_atomics_are_executed_once() {
    let twice = Rule { matches: is_fetch_add, skip: 0, count: u32::MAX, action: Action::Duplicate };
    let mixed: Vec<_> =
        [OpKind::Faa, OpKind::SharedFaa].into_iter().cycle().take(100).map(|kind| op(kind, 8)).collect();
    let report = Scenario::new(mixed).rule(0, twice).run(1);
    assert_eq!(report.shards[1].duplicate_request, 100);
    assert_eq!(report.shards[1].rx_requests, 100);
}

#[test]
fn atomic_whose_answers_are_lost_is_executed_once() {
    let mixed: Vec<_> = [OpKind::SharedFaa, OpKind::Cas].into_iter().cycle().take(20).map(|kind| op(kind, 8)).collect();
    // Every answer but each fourth is lost, for a while.
    let lossy = Faults { loss_ppm: 500_000, ..Faults::NONE };
    let report = Scenario::new(mixed).rule(1, Rule::drop_nth(is_atomic_ack, 0)).faults(lossy).safety_ms(1_000).run(3);
    assert!(report.shards[1].duplicate_request > 0);
}

#[test]
fn late_packet_of_an_earlier_try_does_no_harm() {
    let late = Rule { matches: is_write, skip: 3, count: 1, action: Action::HoldBack { ns: 200_000 } };
    let report = Scenario::new(ops(OpKind::Write, 10_240, 20)).rule(0, late).run(1);
    assert_eq!((report.links[0].reordered, report.reconnect_count), (1, 0));
    assert!(report.shards[1].duplicate_request > 0, "it came after its repeat");
}

#[test]
fn write_1m_drop_1_in_100_all_path_mtus() {
    for path_mtu in PathMtu::ALL {
        let faults = Faults { loss_ppm: 10_000, ..Faults::NONE };
        let report =
            Scenario::new(ops(OpKind::Write, 1 << 20, 2)).conversation(|c| c.path_mtu = path_mtu).faults(faults).run(7);
        assert!(report.shards[0].retransmitted_packets > 0, "{path_mtu}");
        assert_eq!(report.reconnect_count, 0, "{path_mtu}");
    }
}

#[test]
fn every_operation_over_the_psn_wrap_with_loss() {
    let faults = Faults { loss_ppm: 20_000, reorder_ppm: 20_000, reorder_ns: 20_000, ..Faults::NONE };
    for seed in 0..5 {
        let mixed = || OpKind::ALL.into_iter().cycle().take(90).map(|kind| op(kind, 30_000)).collect();
        let scenario = Scenario::both([mixed(), mixed()]).conversation(|c| c.starts_near_wrap = true);
        let report = scenario.faults(faults).run(seed);
        assert!(report.links.iter().all(|link| link.sent_roce > 512), "the PSNs have wrapped");
    }
}

#[test]
fn damaged_frames_die_at_the_checks() {
    let faults = Faults { corrupt_ppm: 100_000, truncate_ppm: 50_000, ..Faults::NONE };
    let mixed = || OpKind::ALL.into_iter().cycle().take(90).map(|kind| op(kind, 3_000)).collect();
    let report = Scenario::both([mixed(), mixed()]).faults(faults).run(1);
    // That none was executed, and each counted, is what every run checks.
    assert!(report.links.iter().all(|link| link.corrupted > 10 && link.truncated > 10));
    assert!(report.ports.iter().all(|port| port.rx_icrc_encapsulated > 10 && port.rx_malformed_packets > 5));
}

#[test]
fn receives_that_are_late_are_waited_for() {
    let report = Scenario::new(ops(OpKind::Send, 100, 50))
        .conversation(|c| {
            c.cap.max_recv_wr = 2;
            c.recv_delay_ns = 2_000_000;
        })
        .run(1);
    let [requester, responder] = report.shards;
    assert!(responder.send_rnr_err > 10, "{} RNR NAKs", responder.send_rnr_err);
    assert_eq!((requester.rcvd_rnr_err, requester.local_ack_timeout_err), (responder.send_rnr_err, 0));
}

/// 10,240 packets of data one way, with or without faults, and how many frames that took.
fn bulk(kind: OpKind, policy: RecoveryPolicy, faults: Faults) -> Report {
    Scenario::new(ops(kind, 1 << 18, 40))
        .hosts(|host| host.recovery.unasked = policy)
        .conversation(|c| c.path_mtu = PathMtu::M1024)
        .faults(faults)
        .run(11)
}

/// Frames of a direction that carry the data of an operation.
fn data_frames(kind: OpKind, report: &Report) -> u64 {
    report.links[usize::from(kind == OpKind::Read)].sent_roce
}

#[test]
fn what_is_lost_is_sent_again_and_little_else() {
    use RecoveryPolicy::{GoBackN, Hybrid, SelectiveRepeat};
    for kind in [OpKind::Write, OpKind::Read, OpKind::Send] {
        for policy in [GoBackN, SelectiveRepeat, Hybrid] {
            let needed = data_frames(kind, &bulk(kind, policy, Faults::NONE));
            assert!(needed >= 10_240, "{kind:?} {policy}: {needed}");
            for loss_ppm in [1_000, 10_000] {
                let report = bulk(kind, policy, Faults { loss_ppm, ..Faults::NONE });
                let what = format!("{kind:?} {policy} at {loss_ppm} ppm: {report}");
                let lost: u64 = report.links.iter().map(|link| link.lost).sum();
                assert!(lost > u64::from(loss_ppm) / 200, "{what}");
                // Going back costs what is in flight, 256 packets at most.
                let most = lost * if policy == GoBackN { 256 } else { 2 };
                let again = data_frames(kind, &report).saturating_sub(needed);
                assert!(again < most, "{again} frames for {lost} lost, {most} are too many: {what}");
                let rewinds: u64 = report.shards.iter().map(|shard| shard.rewinds).sum();
                assert!(policy == GoBackN || rewinds == 0, "{rewinds} times back: {what}");
                assert_eq!(report.reconnect_count, 0, "{what}");
            }
        }
    }
}

#[test]
fn what_is_only_late_is_hardly_sent_again() {
    use RecoveryPolicy::{GoBackN, Hybrid, SelectiveRepeat};
    for kind in [OpKind::Write, OpKind::Read, OpKind::Send] {
        // Who asks in vain waits longer the next time, whichever way it repeats; going back costs more until then.
        for (policy, most_percent) in [(GoBackN, 140), (SelectiveRepeat, 120), (Hybrid, 120)] {
            let all = |report: &Report| report.links.iter().map(|link| link.sent_roce).sum::<u64>();
            let needed = all(&bulk(kind, policy, Faults::NONE));
            let report = bulk(kind, policy, Faults { reorder_ppm: 10_000, reorder_ns: 5_000, ..Faults::NONE });
            let late: u64 = report.links.iter().map(|link| link.reordered).sum();
            assert!(late > 50, "{kind:?} {policy}: {report}");
            let sent = all(&report);
            assert!(
                sent * 100 < needed * most_percent,
                "{kind:?} {policy}: {sent} frames where {needed} would do: {report}"
            );
        }
    }
}
