//! Seeds of the swarm: a few of them, and that each is a run that can be had again.

use sim::run::{run, run_seed};
use sim::swarm::draw;

#[test]
fn same_seed_same_trace() {
    for seed in [3, 17, 21] {
        let first = run_seed(seed, false).unwrap();
        let again = run_seed(seed, true).unwrap();
        assert_eq!((first.trace, first.event_count), (again.trace, again.event_count), "seed {seed}");
        assert_ne!(first.trace, run_seed(seed + 1, false).unwrap().trace);
    }
}

#[test]
fn seeds_0_to_40_go_well() {
    for seed in 0..40 {
        if let Err(failure) = run_seed(seed, false) {
            panic!("ferroce-sim --seed {seed}: {failure}");
        }
    }
}

#[test]
fn capture_of_a_run_has_every_frame_that_was_sent() {
    let mut frames = 0;
    let report = run(5, &draw(5), true, |world| {
        let capture = world.capture().expect("a capture was asked for");
        frames = sim::capture::packets(capture.bytes()).unwrap().len() as u64;
    });
    assert_eq!(report.unwrap().links.iter().map(|link| link.sent).sum::<u64>(), frames);
}
