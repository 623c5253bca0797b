//! Connections by address: made, used, and ended from either side; what a bad link does to the messages of the handshake costs time
//! and nothing else.

use sim::app::{ConnectionEnd, RendezvousSettings};
use sim::link::Faults;
use sim::world::GuestSettings;

use super::scenario::Scenario;

const MS: u64 = 1_000_000;

fn settings(end: ConnectionEnd) -> RendezvousSettings {
    RendezvousSettings {
        hosts: [0, 1],
        connections: 12,
        outstanding: 3,
        refuse_ppm: 0,
        answer_delay_ns: MS,
        ends: vec![end],
        step_delay_ns: 1_000,
    }
}

fn scenario(settings: RendezvousSettings) -> Scenario {
    let mut scenario = Scenario::new(Vec::new());
    scenario.settings.world.guests.push(GuestSettings::Rendezvous(settings));
    scenario
}

#[test]
fn clean_link_connects_at_the_first_attempt_however_it_ends() {
    use ConnectionEnd::{Abrupt, Both, Client, Server};
    for end in [Client, Server, Both, Abrupt] {
        let report = scenario(settings(end)).run(1);
        let guests = report.guests;
        assert_eq!((guests.connected, guests.refused, guests.failed_attempts), (12, 0, 0), "{end:?}");
    }
}

#[test]
fn refusals_come_to_the_one_who_asked() {
    let guests =
        scenario(RendezvousSettings { refuse_ppm: 1_000_000, ..settings(ConnectionEnd::Client) }).run(1).guests;
    assert_eq!((guests.connected, guests.refused, guests.failed_attempts), (0, 12, 0));
}

#[test]
fn both_sides_on_one_host_meet_as_well() {
    let guests = scenario(RendezvousSettings { hosts: [1, 1], ..settings(ConnectionEnd::Both) }).run(1).guests;
    assert_eq!((guests.connected, guests.failed_attempts), (12, 0));
}

#[test]
fn lost_and_repeated_messages_cost_time_only() {
    let faults =
        Faults { loss_ppm: 150_000, duplicate_ppm: 150_000, reorder_ppm: 100_000, reorder_ns: 2 * MS, ..Faults::NONE };
    for seed in 1..=6 {
        for end in [ConnectionEnd::Client, ConnectionEnd::Both] {
            let scenario = scenario(RendezvousSettings { refuse_ppm: 200_000, ..settings(end) });
            let guests = scenario.faults(faults).safety_ms(300_000).run(seed).guests;
            assert!(guests.connected + guests.refused >= 12, "seed {seed}, {end:?}: {guests:?}");
        }
    }
}
