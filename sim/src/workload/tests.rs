use std::path::Path;

use proptest::prelude::*;

use super::*;

const GBIT: u64 = 1_000_000_000;

fn surroundings(host_count: u16) -> Surroundings<'static> {
    Surroundings { host_count, host_bits_per_s: 100 * GBIT, directory: Path::new(".") }
}

/// The `[[workload]]` tables of a scenario.
fn settings(text: &str) -> Result<Vec<WorkloadSettings>, toml::de::Error> {
    #[derive(serde::Deserialize)]
    struct File {
        workload: Vec<WorkloadSettings>,
    }
    toml::from_str::<File>(text).map(|file| file.workload)
}

fn workload(text: &str, host_count: u16, seed: u64) -> Workload {
    Workload::new(&settings(text).unwrap(), &surroundings(host_count), seed).unwrap()
}

/// All flows with the times of their ends, if each takes `cost_ns` after it was taken.
fn play(workload: &mut Workload, cost_ns: impl Fn(&Flow) -> u64) -> Vec<(Flow, Time)> {
    let mut ends: Agenda<Flow> = Agenda::default();
    let mut played = Vec::new();
    loop {
        match (workload.next_start(), ends.next_at()) {
            (Some(start), end) if end.is_none_or(|end| start <= end) => {
                let flow = workload.take(start).unwrap();
                ends.push(start.max(ends.now()).add_ns(cost_ns(&flow)), flow);
            }
            (_, Some(end)) => {
                let flow = ends.pop().unwrap();
                workload.finished(flow.id, end);
                played.push((flow, end));
            }
            (_, None) => break,
        }
    }
    assert!(workload.is_exhausted());
    played
}

fn lines(played: &[(Flow, Time)]) -> String {
    let line = |(flow, end): &(Flow, Time)| {
        let Flow { id, src, dst, bytes, op, start } = *flow;
        format!("{id}: {src}>{dst} {bytes} {} {}..{}", op.name(), start.as_ns(), end.as_ns())
    };
    played.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn written_flows_begin_when_they_say() {
    let text = r#"
        [[workload]]
        kind = "flows"
        op = "read"
        flows = [{ from = 1, to = 0, bytes = 500, start_us = 3 }, { from = 0, to = 2, bytes = 70_000 }]
    "#;
    let played = play(&mut workload(text, 3, 1), |_| 10_000);
    insta::assert_snapshot!(lines(&played), @r"
    0: 0>2 70000 read 0..10000
    1: 1>0 500 read 3000..13000
    ");
}

#[test]
fn incast_waits_for_all_of_a_round_and_the_gap() {
    let text = r#"
        [[workload]]
        kind = "incast"
        to = 1
        bytes = 100
        rounds = { count = 2, start_us = 5, gap_us = 2 }
    "#;
    // The flow from host 2 takes longest: the second round begins 2 us after it.
    let played = play(&mut workload(text, 4, 1), |flow| if flow.src == 2 { 9_000 } else { 1_000 });
    insta::assert_snapshot!(lines(&played), @r"
    0: 0>1 100 write 5000..6000
    2: 3>1 100 write 5000..6000
    1: 2>1 100 write 5000..14000
    3: 0>1 100 write 16000..17000
    5: 3>1 100 write 16000..17000
    4: 2>1 100 write 16000..25000
    ");
}

#[test]
fn incast_with_a_period_does_not_wait() {
    let text = r#"
        [[workload]]
        kind = "incast"
        to = 0
        from = [1, 2]
        bytes = 100
        rounds = { count = 3, period_us = 4 }
    "#;
    let played = play(&mut workload(text, 3, 1), |_| 100_000);
    let starts: Vec<u64> = played.iter().map(|(flow, _)| flow.start.as_ns()).collect();
    assert_eq!(starts, [0, 0, 4_000, 4_000, 8_000, 8_000]);
}

#[test]
fn all_to_all_has_every_ordered_pair_once() {
    let text = r#"
        [[workload]]
        kind = "all-to-all"
        bytes = 4096
    "#;
    let played = play(&mut workload(text, 5, 1), |_| 1);
    let mut pairs: Vec<(u16, u16)> = played.iter().map(|(flow, _)| (flow.src, flow.dst)).collect();
    assert!(pairs[..5].iter().enumerate().all(|(host, &(src, _))| usize::from(src) == host), "{pairs:?}");
    pairs.sort_unstable();
    pairs.dedup();
    assert_eq!(pairs.len(), 20);
}

#[test]
fn all_reduce_steps_wait_for_the_neighbour() {
    let text = r#"
        [[workload]]
        kind = "ring-all-reduce"
        bytes = 302
        rounds = { count = 2, gap_us = 1 }
    "#;
    // Host 1 is slow: from the second step on everybody waits for it.
    let played = play(&mut workload(text, 3, 1), |flow| if flow.src == 1 { 1_000 } else { 100 });
    assert_eq!(played.len(), 2 * 3 * 4);
    insta::assert_snapshot!(lines(&played[..12]), @r"
    0: 0>1 101 write 0..100
    2: 2>0 100 write 0..100
    3: 0>1 100 write 100..200
    1: 1>2 101 write 0..1000
    5: 2>0 101 write 1000..1100
    6: 0>1 101 write 1100..1200
    4: 1>2 101 write 1000..2000
    8: 2>0 101 write 2000..2100
    9: 0>1 101 write 2100..2200
    7: 1>2 100 write 2000..3000
    11: 2>0 100 write 3000..3100
    10: 1>2 101 write 3000..4000
    ");
    let (first, second) = (played[11].1, played[12].0.start);
    assert_eq!(second.ns_since(first), 1_000);
}

/// What every all-reduce has in common: each host sends all but two of its parts twice over, as the algorithm says.
fn check_all_reduce(hosts: u16, bytes: u64, costs: &[u64]) -> Result<(), TestCaseError> {
    let text = format!("[[workload]]\nkind = \"ring-all-reduce\"\nbytes = {bytes}");
    let played = play(&mut workload(&text, hosts, 1), |flow| costs[flow.id as usize % costs.len()]);
    let steps = 2 * (usize::from(hosts) - 1);
    prop_assert_eq!(played.len(), usize::from(hosts) * steps);
    let sent: u64 = played.iter().map(|(flow, _)| flow.bytes).sum();
    prop_assert_eq!(sent, bytes * steps as u64);
    for host in 0..hosts {
        let before = (host + hosts - 1) % hosts;
        let of = |src: u16| {
            let mut flows: Vec<&(Flow, Time)> = played.iter().filter(|(flow, _)| flow.src == src).collect();
            flows.sort_by_key(|(flow, _)| flow.id);
            flows
        };
        let (mine, theirs) = (of(host), of(before));
        for step in 1..steps {
            prop_assert_eq!(mine[step].0.start, mine[step - 1].1.max(theirs[step - 1].1));
            prop_assert_eq!(mine[step].0.bytes, theirs[step - 1].0.bytes, "what came in is passed on");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn all_reduce_step_begins_with_the_later_of_both_before(
        hosts in 2u16..9,
        more in 0u64..1_000_000,
        costs in prop::collection::vec(1u64..100_000, 1..16),
    ) {
        check_all_reduce(hosts, u64::from(hosts) + more, &costs)?;
    }

    #[test]
    fn poisson_load_is_within_its_tolerance(load in 5.0f64..150.0, seed: u64) {
        let text = format!("[[workload]]\nkind = \"poisson\"\nload_percent = {load}\nsizes = \"storage\"\ncount = 20_000");
        let played = play(&mut workload(&text, 8, seed), |_| 1);
        let bytes: u64 = played.iter().map(|(flow, _)| flow.bytes).sum();
        let end = played.iter().map(|(flow, _)| flow.start).max().unwrap_or(Time::ZERO);
        let offered = bytes as f64 * 8.0 / (8.0 * 100e9) / (end.as_ns() as f64 / 1e9) * 100.0;
        // 20,000 arrivals: one standard deviation of their time is 0.7 %, of their bytes' mean about 3 %.
        prop_assert!((offered / load - 1.0).abs() < 0.15, "{} instead of {}", offered, load);
        prop_assert!(played.iter().all(|(flow, _)| flow.src != flow.dst && flow.src < 8 && flow.dst < 8));
    }
}

#[test]
fn poisson_arrivals_are_spread_as_chance_spreads_them() {
    let text =
        "[[workload]]\nkind = \"poisson\"\nload_percent = 50.0\nsizes = { bytes = 1000 }\ncount = 50_000\nstart_us = 7";
    let played = play(&mut workload(text, 4, 3), |_| 1);
    let starts: Vec<u64> = played.iter().map(|(flow, _)| flow.start.as_ns()).collect();
    assert!(starts[0] >= 7_000);
    let gaps: Vec<f64> = starts.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    // 50 % of 4 x 12.5 bytes a ns: one of 1000 bytes every 40 ns. An exponential's deviation is its mean.
    assert!((mean / 40.0 - 1.0).abs() < 0.02, "mean {mean}");
    assert!((variance.sqrt() / mean - 1.0).abs() < 0.03, "deviation {}", variance.sqrt());
    let from_each = (0..4).map(|host| played.iter().filter(|(flow, _)| flow.src == host).count());
    assert!(from_each.clone().all(|count| (12_000..13_000).contains(&count)), "{:?}", from_each.collect::<Vec<_>>());
}

#[test]
fn poisson_ends_with_its_duration() {
    let text =
        "[[workload]]\nkind = \"poisson\"\nload_percent = 50.0\nsizes = \"hadoop\"\nduration_us = 1000\nstart_us = 500";
    let played = play(&mut workload(text, 16, 9), |_| 1);
    let last = played.iter().map(|(flow, _)| flow.start.as_ns()).max().unwrap();
    // 100 bytes a ns in 122 KB flows: one in 1.2 us.
    assert!((1_450_000..1_500_000).contains(&last), "{last}");
    assert!((700..950).contains(&played.len()), "{}", played.len());
}

#[test]
fn closed_loop_keeps_its_flows_going() {
    let text = r#"
        [[workload]]
        kind = "closed-loop"
        sizes = "storage"
        outstanding = 3
        think_us = 2
        count = 400
    "#;
    let mut source = workload(text, 4, 5);
    let begun: Vec<Flow> = std::iter::from_fn(|| source.take(Time::ZERO)).collect();
    assert_eq!((begun.len(), source.next_start(), source.running_count()), (12, None, 12));
    source.finished(begun[5].id, Time::from_ns(700));
    source.finished(begun[5].id, Time::from_ns(800));
    assert_eq!(source.next_start(), Some(Time::from_ns(2_700)));
    assert_eq!(source.take(Time::from_ns(2_699)), None);
    let next = source.take(Time::from_ns(2_700)).unwrap();
    assert_eq!((next.id, next.src), (12, begun[5].src));
    assert_eq!(play(&mut workload(text, 4, 5), |flow| flow.bytes).len(), 400);
}

#[test]
fn same_seed_gives_the_same_flows_and_another_does_not() {
    let text = r#"
        [[workload]]
        kind = "poisson"
        load_percent = 30
        sizes = "web-search"
        count = 100
        [[workload]]
        kind = "closed-loop"
        sizes = "hadoop"
        outstanding = 1
        count = 50
    "#;
    let run = |seed| lines(&play(&mut workload(text, 6, seed), |flow| flow.bytes));
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    // A second workload does not change the luck of the first.
    let starts = |played: Vec<(Flow, Time)>| {
        let mut starts: Vec<u64> =
            played.iter().filter(|(flow, _)| flow.start.as_ns() > 0).map(|(flow, _)| flow.bytes).collect();
        starts.sort_unstable();
        starts
    };
    let alone = text.split("[[workload]]").nth(1).unwrap();
    let alone = starts(play(&mut workload(&format!("[[workload]]{alone}"), 6, 1), |_| 1));
    let both = starts(play(&mut workload(text, 6, 1), |_| 1));
    assert!(alone.iter().all(|bytes| both.contains(bytes)));
}

#[test]
fn settings_that_make_no_sense_are_refused_in_a_sentence() {
    let poisson = "kind = \"poisson\"\nsizes = \"hadoop\"\n";
    let cases = [
        "kind = \"flows\"\nflows = []",
        "kind = \"flows\"\nflows = [{ from = 0, to = 0, bytes = 1 }]",
        "kind = \"flows\"\nflows = [{ from = 0, to = 4, bytes = 1 }]",
        "kind = \"flows\"\nflows = [{ from = 0, to = 1, bytes = 0 }]",
        "kind = \"incast\"\nto = 0\nfrom = [1, 0]\nbytes = 1",
        "kind = \"incast\"\nto = 0\nfrom = [1, 2, 1]\nbytes = 1",
        "kind = \"incast\"\nto = 0\nbytes = 1\nrounds = { gap_us = 1, period_us = 1 }",
        "kind = \"incast\"\nto = 0\nbytes = 1\nrounds = { count = 0 }",
        "kind = \"all-to-all\"\nhosts = [1]\nbytes = 1",
        "kind = \"all-to-all\"\nbytes = 1\nrounds = { count = 1_000_000 }",
        "kind = \"ring-all-reduce\"\nbytes = 3",
        "kind = \"ring-all-reduce\"\nbytes = 4\nrounds = { period_us = 1 }",
        &format!("{poisson}load_percent = 50"),
        &format!("{poisson}load_percent = 0\ncount = 1"),
        &format!("{poisson}load_percent = nan\ncount = 1"),
        &format!("{poisson}load_percent = 50\ncount = 20_000_000"),
        "kind = \"poisson\"\nload_percent = 50\ncount = 1\nsizes = { bytes = 0 }",
        "kind = \"closed-loop\"\nsizes = \"storage\"\ncount = 1\noutstanding = 0",
    ];
    let said = cases.map(|case| {
        let settings = settings(&format!("[[workload]]\n{case}")).unwrap();
        Workload::new(&settings, &surroundings(4), 1).unwrap_err().to_string()
    });
    insta::assert_snapshot!(said.join("\n"), @r"
    workload 0 (flows): `number of flows` is 0; it must be 1 to 10000000
    workload 0 (flows): host 0 would send to itself
    workload 0 (flows): `to` is 4; it must be 0 to 3
    workload 0 (flows): `bytes` is 0; it must be 1 to 1099511627776
    workload 0 (incast): host 0 would send to itself
    workload 0 (incast): host 1 is named twice in `from`
    workload 0 (incast): `rounds.gap_us` and `rounds.period_us` exclude each other
    workload 0 (incast): `rounds.count` is 0; it must be 1 to 1000000
    workload 0 (all-to-all): `number of hosts` is 1; it must be 2 to 4
    workload 0 (all-to-all): 12000000 flows; there may be 10000000 at most
    workload 0 (ring-all-reduce): `bytes` is 3; it must be 4 to 1099511627776
    workload 0 (ring-all-reduce): `rounds.period_us` has no meaning here
    workload 0 (poisson): one of `count` and `duration_us` must say when it ends
    workload 0 (poisson): `load_percent` is 0; it must be above 0, up to 200
    workload 0 (poisson): `load_percent` is NaN; it must be above 0, up to 200
    workload 0 (poisson): `count` is 20000000; it must be 1 to 10000000
    workload 0 (poisson): `sizes`: a flow of 0 bytes; the largest is 0 to 1099511627776, and one that is always 0 is none
    workload 0 (closed-loop): `outstanding` is 0; it must be 1 to 1024
    ");
}

#[test]
fn unknown_keys_and_kinds_are_refused() {
    let cases = [
        "kind = \"incats\"",
        "kind = \"incast\"\nto = 0\nbytes = 1\ncuont = 1",
        "kind = \"incast\"\nto = 0\nbytes = 1\nrounds = { cuont = 1 }",
        "kind = \"flows\"\nflows = [{ from = 0, to = 1, byte = 1 }]",
        "kind = \"poisson\"\nload_percent = 1\nsizes = \"websearch\"\ncount = 1",
        "kind = \"incast\"\nto = 0\nbytes = 1\nop = \"atomic\"",
        "kind = \"incast\"\nto = -1\nbytes = 1",
    ];
    let said = cases.map(|case| settings(&format!("[[workload]]\n{case}")).unwrap_err().message().to_owned());
    insta::assert_snapshot!(said.join("\n"), @r"
    unknown variant `incats`, expected one of `flows`, `incast`, `all-to-all`, `ring-all-reduce`, `poisson`, `closed-loop`
    unknown field `cuont`, expected one of `to`, `from`, `bytes`, `rounds`, `op`
    unknown field `cuont`, expected one of `count`, `start_us`, `gap_us`, `period_us`
    unknown field `byte`, expected one of `from`, `to`, `bytes`, `start_us`
    unknown variant `websearch`, expected one of `web-search`, `hadoop`, `storage`, `bytes`, `file`, `points`
    unknown variant `atomic`, expected one of `write`, `read`, `send`
    invalid value: integer `-1`, expected u16
    ");
}
