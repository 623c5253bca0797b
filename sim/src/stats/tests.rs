use super::ideal::Hop;
use super::*;
use crate::flow::FlowOp;

const US: u64 = 1_000;

/// 8 bits a ns, so that a byte takes a ns; no overhead.
fn path(_: u16, _: u16) -> Path {
    Path { hops: vec![Hop { bits_per_s: 8_000_000_000, delay_ns: 500 }], mtu_bytes: 1_000, overhead_bytes: 0 }
}

fn at(us: u64) -> Time {
    Time::from_ns(us * US)
}

fn flow(id: u32, bytes: u64, start_us: u64) -> Flow {
    Flow { id, src: 0, dst: 1, bytes, op: FlowOp::Write, start: at(start_us) }
}

fn queue(port: u16, bytes: u64) -> QueueSample {
    QueueSample { switch: 2, port, priority: 3, bytes, is_paused: false }
}

#[test]
fn complete_flow_has_its_time_slowdown_and_goodput() {
    let mut recorder = Recorder::new(US, path);
    // 9 us of bytes and 1 us of round trip on an empty network; it takes 20, and was begun 5 late.
    let flow = flow(7, 9_000, 10);
    recorder.flow_started(at(15), &flow);
    recorder.flow_progressed(at(20), 7, 4_000);
    recorder.flow_progressed(at(30), 7, 5_000);
    recorder.flow_finished(at(30), &flow, true);
    let record = recorder.flows()[0];
    assert_eq!((record.end, record.completion_ns(), record.ideal_ns), (FlowEnd::Complete, 20 * US, 10_000.0));
    assert_eq!((record.slowdown(), record.goodput_bits_per_s()), (2.0, 3.6e9));
    let summary = recorder.summary(at(40));
    assert_eq!((summary.duration_us, summary.bytes, summary.fairness), (40.0, 9_000, None));
    // From the begin at 15 us to the end at 30.
    assert_eq!(summary.goodput_bits_per_s, 4.8e9);
    assert!((summary.completions[0].slowdown.p50 - 2.0).abs() < 0.002);
}

#[test]
fn flow_that_breaks_or_is_not_done_counts_in_no_percentile() {
    let mut recorder = Recorder::new(US, path);
    let flows = [flow(0, 500, 0), flow(1, 500, 0), flow(2, 500, 0)];
    for flow in &flows {
        recorder.flow_started(at(0), flow);
    }
    recorder.flow_progressed(at(3), 2, 200);
    recorder.flow_finished(at(2), &flows[0], true);
    recorder.flow_finished(at(3), &flows[1], false);
    // A flow that is not running tells nothing.
    recorder.flow_finished(at(4), &flows[1], true);
    recorder.flow_progressed(at(4), 1, 300);
    recorder.close(at(9));
    let ends: Vec<(u32, FlowEnd, u64)> = recorder.flows().iter().map(|r| (r.flow.id, r.end, r.bytes_done)).collect();
    assert_eq!(ends, [(0, FlowEnd::Complete, 0), (1, FlowEnd::Broken, 0), (2, FlowEnd::Unfinished, 200)]);
    let summary = recorder.summary(at(9));
    assert_eq!(summary.flows, FlowCounts { started: 3, complete: 1, broken: 1, unfinished: 1 });
    assert_eq!((summary.completions.last().unwrap().count, summary.bytes), (1, 200));
}

#[test]
fn rates_are_spread_over_the_time_since_the_last_progress() {
    let mut recorder = Recorder::new(10 * US, path);
    let flow = flow(0, 3_000, 5);
    recorder.flow_started(at(5), &flow);
    // 100 bytes a us from 5 to 35 us.
    recorder.flow_progressed(at(35), 0, 3_000);
    let expected = [(5.0, 0.4e9), (15.0, 0.8e9), (25.0, 0.8e9), (35.0, 0.4e9)];
    let near = |points: &[(f64, f64)]| {
        points.iter().zip(expected).all(|(is, should)| is.0 == should.0 && (is.1 / should.1 - 1.0).abs() < 1e-9)
    };
    assert!(near(&recorder.goodput()), "{:?}", recorder.goodput());
    assert!(near(&recorder.rates()[0].points), "{:?}", recorder.rates());
}

#[test]
fn fairness_counts_where_two_run_all_the_time() {
    let mut recorder = Recorder::new(10 * US, path);
    let flows = [flow(0, 90_000, 0), flow(1, 10_000, 10)];
    recorder.flow_started(at(0), &flows[0]);
    recorder.flow_started(at(10), &flows[1]);
    for us in (10..=40).step_by(10) {
        recorder.flow_progressed(at(us), 0, 3_000);
        if us > 10 {
            recorder.flow_progressed(at(us), 1, 1_000);
        }
    }
    recorder.flow_finished(at(40), &flows[1], true);
    recorder.flow_progressed(at(60), 0, 9_000);
    // Shares of 3 and 1, in the bins from 10 to 40 us.
    let fairness = recorder.fairness();
    assert_eq!(fairness.iter().map(|point| point.0).collect::<Vec<_>>(), [15.0, 25.0, 35.0]);
    assert!(fairness.iter().all(|point| (point.1 - 0.8).abs() < 1e-9), "{fairness:?}");
    assert!((recorder.summary(at(60)).fairness.unwrap() - 0.8).abs() < 1e-9);
}

#[test]
fn queue_depths_have_their_mean_over_all_samples() {
    let mut recorder = Recorder::new(10 * US, path);
    let totals = NetworkTotals::default();
    recorder.sampled(at(1), &[queue(0, 300), queue(1, 9_000)], &totals);
    recorder.sampled(at(4), &[queue(0, 500)], &totals);
    recorder.sampled(at(7), &[], &totals);
    recorder.sampled(at(8), &[], &totals);
    recorder.sampled(at(15), &[queue(0, 100)], &totals);
    let queues = recorder.queues();
    assert_eq!(queues[0].points, [(5.0, 200.0, 500), (15.0, 100.0, 100)]);
    assert_eq!(queues[1].points, [(5.0, 2_250.0, 9_000), (15.0, 0.0, 0)]);
    let deepest = recorder.summary(at(20)).deepest_queue.unwrap();
    assert_eq!((deepest.switch, deepest.port, deepest.priority, deepest.max_bytes), (2, 1, 3, 9_000));
    assert_eq!(deepest.mean_bytes, 1_800.0);
}

#[test]
fn counters_are_what_they_grew_by() {
    let mut recorder = Recorder::new(10 * US, path);
    for (us, packets, marked) in [(10, 100, 0), (20, 250, 7), (30, 250, 7), (40, 400, 9)] {
        recorder.sampled(at(us), &[], &NetworkTotals { packets, marked, retransmitted: 4, ..Default::default() });
    }
    let counters = recorder.counters();
    let named = |name| counters.iter().find(|series| series.name == name).map(|series| series.points.clone());
    let packets = vec![(5.0, 100), (15.0, 150), (25.0, 0), (35.0, 150), (45.0, 0)];
    assert_eq!(named("packets"), Some(packets));
    assert_eq!(named("marked").map(|points| points.iter().map(|point| point.1).sum()), Some(9));
    assert_eq!(named("dropped"), None);
    assert_eq!(recorder.summary(at(40)).retransmitted_percent, 1.0);
}

#[test]
fn long_run_keeps_its_sums_in_few_bins() {
    let mut recorder = Recorder::new(US, path);
    let flow = flow(0, u64::MAX, 0);
    recorder.flow_started(at(0), &flow);
    for us in 1..=5_000 {
        recorder.flow_progressed(at(us), 0, 1_000);
        recorder.sampled(at(us), &[queue(0, us)], &NetworkTotals { packets: us, ..Default::default() });
    }
    assert_eq!(recorder.bin_us(), 8.0);
    let bits = |points: &[(f64, f64)]| points.iter().map(|point| point.1).sum::<f64>() * 8e-6;
    assert!((bits(&recorder.goodput()) / (5_000_000.0 * 8.0) - 1.0).abs() < 1e-9);
    let queue = &recorder.queues()[0];
    assert_eq!((queue.points.len(), queue.max_bytes()), (626, 5_000));
    assert_eq!(recorder.counters()[0].points.iter().map(|point| point.1).sum::<u64>(), 5_000);
}

#[test]
fn rates_are_kept_of_the_first_flows_only() {
    let mut recorder = Recorder::new(US, path);
    let count = u32::try_from(MAX_RATE_FLOWS).unwrap() + 5;
    for id in 0..count {
        recorder.flow_started(at(0), &flow(id, 100, 0));
        recorder.flow_progressed(at(1), id, 100);
    }
    assert_eq!(recorder.rates().len(), MAX_RATE_FLOWS);
    assert_eq!(recorder.summary(at(1)).bytes, 100 * u64::from(count));
}
