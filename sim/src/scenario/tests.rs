//! Scenario files: what is refused and how, and that runs come out as they must.

use std::path::Path;

use super::*;

fn parse(text: &str) -> Checked<Scenario> {
    Scenario::parse(text.to_owned(), Path::new("."))
}

fn refusal(text: &str) -> String {
    parse(text).expect_err("it must be refused").to_string()
}

/// A file with one flow, and more tables.
fn with(more: &str) -> String {
    format!(
        "[topology]\nkind = \"incast\"\nsenders = 2\n{more}\n[[workload]]\nkind = \"incast\"\nto = 2\nbytes = 200000\n"
    )
}

fn run(text: &str, seed: u64) -> Outcome {
    execute(&parse(text).unwrap(), seed, false, |_| {}).unwrap()
}

#[test]
fn what_cannot_be_is_refused_with_the_key_the_value_and_what_it_may_be() {
    assert!(refusal(&with("[link]\nspeed = 3")).contains("unknown field `speed`"));
    assert!(refusal(&with("[recovery]\npolicy = \"hope\"")).contains("`recovery.policy` is \"hope\"; it may be"));
    assert!(refusal(&with("[congestion]\nalgorithm = \"hope\"")).contains("it is one of none, dcqcn-nvidia"));
    assert!(refusal(&with("[congestion]\nspeed = 3")).contains("no parameter \"speed\""));
    assert_eq!(refusal(&with("[link]\nrate_mbps = 0")), "`link.rate_mbps` is 0; it must be 1 to 1600000");
    assert_eq!(refusal(&with("[qos]\npfc = [8]")), "`qos.pfc` is 8; it must be 0 to 7");
    assert!(refusal(&with("[switch]\nkmin_bytes = 5")).contains("needs `switch.kmax_bytes`"));
    assert!(refusal(&with("[qos]\npfc = [3]\n[switch]\nbuffer_bytes = 100000")).contains("headroom of 3 ports"));
    assert!(refusal("[topology]\nkind = \"fat-tree\"\nk = 3\n").contains("[topology]: a fat tree's k must be even"));
    assert!(refusal(&with("[run]\npath_mtu = 1000")).contains("256, 512, 1024, 2048 or 4096"));
    assert!(refusal(&with("[run]\npath_mtu = 4096\n[link]\nmtu = 1500")).contains("it must be 256 to 1420"));
    let mishap = "[[faults.mishaps]]\nkind = \"stall\"\nhost = 9\nat_us = 1\nfor_us = 1";
    assert_eq!(refusal(&with(mishap)), "`faults.mishaps.host` is 9; it must be 0 to 2");
}

#[test]
fn a_clean_run_completes_every_flow_without_a_single_repeat_and_is_repeatable() {
    let text = with("[run]\nverify = true");
    let first = run(&text, 1);
    assert_eq!((first.flows.completed, first.unfinished.as_str()), (2, ""));
    assert_eq!((first.summary.totals.retransmitted, first.summary.totals.dropped), (0, 0));
    let again = run(&text, 1);
    assert_eq!((first.trace, first.event_count), (again.trace, again.event_count));
    assert_ne!(first.trace, run(&text, 2).trace, "another seed is another run");
}
