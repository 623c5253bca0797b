//! Applications that do wrong. What hits them, and nobody else, is what their conversation says; that the others get all they
//! asked for is what every run checks.

use sim::app::{ConversationSettings, IncidentKind, Op, OpKind};
use sim::link::Faults;

use crate::scenario::{Scenario, op};

fn mixed(count: usize) -> Vec<Op> {
    OpKind::ALL.into_iter().cycle().take(count).map(|kind| op(kind, 2_000)).collect()
}

/// A conversation with an incident, and one beside it on the same hosts that knows nothing of it.
fn scenario(kind: IncidentKind) -> Scenario {
    let mut scenario = Scenario::both([mixed(60), mixed(60)]).incident(kind, 30);
    scenario.settings.world.conversations.push(ConversationSettings::new([mixed(60), mixed(60)]));
    scenario
}

#[test]
fn every_mistake_has_its_status_and_no_other() {
    for (kind, expected) in [
        (IncidentKind::BadRkey, &["REM_ACCESS_ERR"][..]),
        (IncidentKind::OutOfRange, &["REM_ACCESS_ERR"]),
        (IncidentKind::TooLong, &["LOC_LEN_ERR", "REM_INV_REQ_ERR"]),
        (IncidentKind::BadLkey, &["LOC_PROT_ERR"]),
    ] {
        let report = scenario(kind).run(1);
        // A side that is left without a peer may have to find out by its retries.
        let failures: Vec<_> = report.failures.keys().copied().filter(|&status| status != "RETRY_EXC_ERR").collect();
        assert_eq!(failures, expected, "{kind:?}");
        assert!(report.failures.values().all(|&count| count == 1), "{kind:?}: {:?}", report.failures);
        assert_eq!(report.reconnect_count, 1, "{kind:?}: the connection comes back");
    }
}

#[test]
fn deregistered_region_is_never_touched_again() {
    for seed in 0..20 {
        let report = scenario(IncidentKind::Dereg).run(seed);
        assert_eq!(report.reconnect_count, 1, "seed {seed}");
    }
}

#[test]
fn lost_peer_is_noticed_by_retries() {
    for kind in [IncidentKind::DestroyQp, IncidentKind::Kill] {
        let reports: Vec<_> = (0..10).map(|seed| scenario(kind).run(seed)).collect();
        // Whether the survivor had anything outstanding depends on the moment.
        let noticed = reports.iter().filter(|report| report.failures.contains_key("RETRY_EXC_ERR")).count();
        assert!(noticed > 0, "{kind:?}");
        assert!(reports.iter().all(|report| report.reconnect_count == 0), "{kind:?}");
    }
}

#[test]
fn garbage_in_the_rings_harms_its_writer_only() {
    for seed in 0..20 {
        let report = scenario(IncidentKind::Garbage).run(seed);
        assert_eq!(report.reconnect_count, 0, "seed {seed}");
    }
}

#[test]
fn every_incident_on_a_bad_link() {
    let faults = Faults { loss_ppm: 30_000, duplicate_ppm: 30_000, corrupt_ppm: 10_000, ..Faults::NONE };
    for kind in IncidentKind::ALL {
        for seed in 0..5 {
            scenario(kind).faults(faults).safety_ms(2_000).run(seed);
        }
    }
}
