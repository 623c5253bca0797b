//! READs of two flows through a port that both want: who asks for them keeps its queue short, and each gets its share.

use std::path::Path;

use sim::scenario::{Outcome, Scenario, execute};

const NONE: &str = "algorithm = \"none\"";
/// From less than either share, so that what is seen is where it settles and not how it begins.
const TIMELY: &str = "algorithm = \"timely\"\nstart_rate = \"4Gbps\"";
const SWIFT: &str = "algorithm = \"swift\"";
/// The responders limit themselves, as marks of the port tell them to.
const DCQCN: &str = "algorithm = \"dcqcn-paper\"";

/// Two flows of READs of 4 MiB, four at a time: much more than any window.
fn run(topology: &str, pairs: [(u16, u16); 2], bytes: u64, congestion: &str) -> Outcome {
    let flow = |(from, to)| format!("{{ from = {from}, to = {to}, bytes = {bytes} }}");
    let [first, second] = pairs.map(flow);
    let text = format!(
        "[topology]\n{topology}\n[link]\nrate_mbps = 40_000\ntrunk_rate_mbps = 10_000\n\
         [switch]\nbuffer_bytes = 4_000_000\nkmin_bytes = 5_000\nkmax_bytes = 200_000\npmax = 0.01\n\
         [congestion]\n{congestion}\n[run]\nmessage_bytes = 4_194_304\noutstanding = 4\n\
         [[workload]]\nkind = \"flows\"\nop = \"read\"\nflows = [{first}, {second}]\n"
    );
    let scenario = Scenario::parse(text, Path::new(".")).unwrap();
    let outcome = execute(&scenario, 1, false, |_| {}).unwrap();
    assert_eq!(outcome.flows.completed, 2, "{congestion}");
    outcome
}

/// Two hosts read from a third one, whose switch has a link of 10 Gbit/s to theirs.
fn from_one(congestion: &str) -> Outcome {
    run("kind = \"dumbbell\"\nleft = 1\nright = 2", [(0, 1), (0, 2)], 20_000_000, congestion)
}

/// One host reads from two, over its own link of 40 Gbit/s.
fn from_two(congestion: &str) -> Outcome {
    run("kind = \"incast\"\nsenders = 2", [(0, 2), (1, 2)], 60_000_000, congestion)
}

/// Nothing is dropped, no sampled queue is longer, flows have equal shares, and the port is as busy as this.
#[track_caller]
fn check(outcome: &Outcome, queue_bytes: u64, goodput_gbps: f64) {
    let summary = &outcome.summary;
    assert_eq!((summary.totals.dropped, summary.totals.retransmitted), (0, 0));
    let deepest = summary.deepest_queue.map_or(0, |queue| queue.max_bytes);
    assert!(deepest <= queue_bytes, "{deepest} bytes");
    assert!(summary.fairness.unwrap() > 0.98, "{:?}", summary.fairness);
    assert!(summary.goodput_bits_per_s > goodput_gbps * 1e9, "{}", summary.goodput_bits_per_s);
}

#[test]
fn without_control_reads_fill_the_buffer_and_are_dropped() {
    for outcome in [from_one(NONE), from_two(NONE)] {
        assert!(outcome.summary.totals.dropped > 1_000, "{}", outcome.summary.totals.dropped);
        assert!(outcome.summary.deepest_queue.unwrap().max_bytes > 1_900_000);
    }
}

#[test]
fn two_that_read_from_one_share_the_port_and_keep_its_queue_short() {
    check(&from_one(SWIFT), 200_000, 9.5);
    check(&from_one(TIMELY), 300_000, 9.0);
}

#[test]
fn one_that_reads_from_two_gives_each_its_share_and_keeps_the_queue_short() {
    check(&from_two(SWIFT), 300_000, 38.0);
    check(&from_two(TIMELY), 700_000, 25.0);
}

#[test]
fn responders_with_dcqcn_limit_what_they_send() {
    let outcome = from_two(DCQCN);
    assert!(outcome.summary.totals.cnps > 10 && outcome.summary.totals.dropped == 0);
    assert!(outcome.summary.fairness.unwrap() > 0.95, "{:?}", outcome.summary.fairness);
    assert!(outcome.summary.deepest_queue.unwrap().mean_bytes < 200_000.0);
}
