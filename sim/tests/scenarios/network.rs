//! Networks of many hosts: seeds of the swarm, that they repeat, and scenarios with the boundary beside them.

use std::path::Path;

use sim::link::{Faults, LinkCounters};
use sim::network::swarm::{draw, run as run_swarm, run_seed};
use sim::network::topology::{End, Topology};
use sim::scenario::{Outcome, Scenario, execute};

fn run(text: &str) -> Outcome {
    let scenario = Scenario::parse(text.to_owned(), Path::new(".")).unwrap();
    execute(&scenario, 1, false, |_| {}).unwrap()
}

/// Eight hosts send 256 KiB each to a ninth, every byte checked.
fn incast(more: &str) -> String {
    format!(
        "[topology]\nkind = \"incast\"\nsenders = 8\n[[workload]]\nkind = \"incast\"\nto = 8\nbytes = 262144\n\
         [run]\nverify = true\n{more}"
    )
}

#[test]
fn seeds_0_to_30_go_well() {
    for seed in 0..30 {
        if let Err(failure) = run_seed(seed, false) {
            panic!("ferroce-sim --swarm network --seed {seed}: {failure}");
        }
    }
}

#[test]
fn same_seed_same_trace() {
    for seed in [5, 6] {
        let (first, again) = (run_seed(seed, false).unwrap(), run_seed(seed, true).unwrap());
        assert_eq!((first.trace, first.event_count), (again.trace, again.event_count), "seed {seed}");
        assert_ne!(draw(seed).safety_ns, draw(seed + 1).safety_ns);
    }
}

#[test]
fn an_incast_fills_the_link_of_its_victim() {
    let outcome = run(&incast(""));
    assert_eq!((outcome.flows.completed, outcome.summary.totals.dropped), (8, 0));
    // 2 MiB in 4,096-byte packets of 4,178 bytes on the wire at 100 Gbit/s: 98.0 at most.
    let gbps = outcome.summary.goodput_bits_per_s / 1e9;
    assert!((90.0..98.1).contains(&gbps), "{gbps}");
}

#[test]
fn a_small_buffer_drops_and_pauses_keep_it_from_dropping() {
    let buffer = "[switch]\nbuffer_bytes = 1200000\nstatic_threshold_bytes = 60000\n";
    let lossy = run(&incast(buffer));
    assert!(lossy.summary.totals.dropped > 0 && lossy.summary.totals.retransmitted > 0);
    let lossless = run(&incast(&format!("{buffer}[qos]\npfc = [3]\n")));
    assert_eq!((lossless.summary.totals.dropped, lossless.summary.totals.retransmitted), (0, 0));
    assert!(lossless.summary.totals.pauses > 0);
    assert_eq!((lossy.flows.completed, lossless.flows.completed), (8, 8));
}

#[test]
fn a_host_whose_client_dies_takes_only_its_own_flows_along() {
    let mishap = "[[faults.mishaps]]\nkind = \"death\"\nhost = 3\nat_us = 20\n";
    let outcome = run(&incast(mishap));
    assert_eq!((outcome.flows.completed, outcome.flows.abandoned), (7, 1));
}

#[test]
fn copies_of_damaged_frames_are_refused_one_by_one() {
    let mut settings = draw(0);
    // Hosts' links damage frames, and those between the switches make copies of what they get.
    let fabric = &mut settings.network.fabric;
    fabric.topology = Topology::dumbbell(2, 2).unwrap();
    fabric.access_faults = Faults { truncate_ppm: 20_000, corrupt_ppm: 20_000, ..Faults::NONE };
    fabric.trunk_faults = Faults { duplicate_ppm: 500_000, ..Faults::NONE };
    settings.network.mishaps.clear();
    settings.workload = toml::from_str::<Workloads>("[[of]]\nkind = \"all-to-all\"\nbytes = 30_000\n").unwrap().of;
    let mut counts = None;
    let report = run_swarm(0, &settings, false, |fabric| {
        let damaged_on = |(_, _, c): (End, End, &LinkCounters)| c.corrupted + c.truncated;
        let at_hosts: u64 = (0..fabric.host_count()).map(|host| fabric.damaged_frames(host)).sum();
        counts = Some((fabric.lines().map(damaged_on).sum::<u64>(), at_hosts));
    });
    report.unwrap();
    let (on_links, at_hosts) = counts.unwrap();
    assert!(on_links > 0 && at_hosts > on_links, "links damaged {on_links} frames, {at_hosts} came to hosts");
}

#[derive(serde::Deserialize)]
struct Workloads {
    of: Vec<sim::workload::WorkloadSettings>,
}
