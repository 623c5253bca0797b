//! Retries are used up, or just not: each with its neighbour.

use sim::app::OpKind;
use sim::link::{Action, Faults, Rule};
use wire::{Frame, OpKind as Packet};

use crate::scenario::{Scenario, ops};

fn is_write(frame: &Frame<'_>) -> bool {
    frame.info().kind == Packet::Write
}

/// The first `count` transmissions of a WRITE are lost.
fn scenario(retry_cnt: u8, count: u32) -> Scenario {
    let rule = Rule { matches: is_write, skip: 0, count, action: Action::Drop };
    Scenario::new(ops(OpKind::Write, 100, 1)).conversation(|c| c.attr.retry_cnt = retry_cnt).rule(0, rule)
}

#[test]
fn write_survives_as_many_losses_as_there_are_retries() {
    for retry_cnt in 0..=7 {
        let report = scenario(retry_cnt, retry_cnt.into()).run(1);
        assert!(report.failures.is_empty(), "retry_cnt {retry_cnt}: {:?}", report.failures);
        let [requester, _] = report.shards;
        assert_eq!(requester.local_ack_timeout_err, u64::from(retry_cnt));
        assert_eq!(requester.retransmitted_packets, u64::from(retry_cnt));
    }
}

#[test]
fn write_one_more_loss_breaks_the_qp() {
    for retry_cnt in 0..=7 {
        let report = scenario(retry_cnt, u32::from(retry_cnt) + 1).run(1);
        let failures: Vec<_> = report.failures.into_iter().collect();
        assert_eq!(failures, [("RETRY_EXC_ERR", 1)], "retry_cnt {retry_cnt}");
        let [requester, _] = report.shards;
        assert_eq!((requester.retry_exceeded_err, requester.retransmitted_packets), (1, retry_cnt.into()));
        assert_eq!(report.reconnect_count, 1, "it comes back after that");
    }
}

#[test]
fn progress_gives_all_retries_back() {
    // Each of many WRITEs loses as many transmissions as there are retries; all of them together lose far more.
    let mut scenario = Scenario::new(ops(OpKind::Write, 100, 10)).conversation(|c| {
        c.attr.retry_cnt = 2;
        c.cap.max_send_wr = 1;
    });
    for n in 0..10 {
        scenario = scenario.rule(0, Rule { matches: is_write, skip: 1 + n, count: 2, action: Action::Drop });
    }
    let report = scenario.run(1);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert!(report.shards[0].local_ack_timeout_err > 10);
}

#[test]
fn dead_link_breaks_every_qp_and_a_healed_one_brings_them_back() {
    let dead = Faults { loss_ppm: 1_000_000, ..Faults::NONE };
    // A neighbour that did not answer is left alone for 5 s, in which every QP breaks at once: few WQEs at a time, so that some
    // are left after that.
    let report = Scenario::both([ops(OpKind::Write, 5_000, 400), ops(OpKind::Read, 5_000, 400)])
        .conversation(|c| c.cap.max_send_wr = 2)
        .faults(dead)
        .safety_ms(5_000)
        .run(1);
    assert_eq!(
        report.links[0].lost + report.links[1].lost,
        report.links.iter().map(|l| l.sent - l.delivered).sum::<u64>()
    );
    assert!(report.shards.iter().all(|shard| shard.completed_wqes > 0));
}

#[test]
fn rnr_retry_0_breaks_where_7_waits() {
    let late = |rnr_retry| {
        Scenario::new(ops(OpKind::Send, 100, 20)).conversation(move |c| {
            c.attr.rnr_retry = rnr_retry;
            c.cap.max_recv_wr = 1;
            c.recv_delay_ns = 5_000_000;
        })
    };
    let patient = late(7).run(1);
    assert!(patient.failures.is_empty() && patient.shards[0].rcvd_rnr_err > 0);
    let impatient = late(0).run(1);
    assert!(impatient.failures.contains_key("RNR_RETRY_EXC_ERR"), "{:?}", impatient.failures);
    assert_eq!(impatient.shards[0].retry_rnr_exceeded_err, impatient.failures["RNR_RETRY_EXC_ERR"]);
}

#[test]
fn retries_used_up_on_a_link_without_faults_are_a_violation() {
    // Rules and faults explain a broken QP. A timeout that is shorter than the round trip does not.
    let mut scenario = Scenario::new(ops(OpKind::Write, 100, 1)).conversation(|c| c.attr.timeout = 1);
    scenario.settings.world.link.delay_ns = 1_000_000;
    let what = scenario.run_badly(1);
    assert!(what.contains("RETRY_EXC_ERR, and nothing explains it"), "{what}");
}
