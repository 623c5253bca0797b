//! UC and UD: nothing is lost where nothing goes wrong, a loss costs one message, and a send that is wrong stops the queue until
//! it is resumed.

use ferroce::QpType;
use sim::app::UnreliableSettings;
use sim::link::{Faults, Rule};
use sim::world::GuestSettings;

use super::scenario::{Scenario, troubles};

fn scenario(settings: UnreliableSettings) -> Scenario {
    let mut scenario = Scenario::new(Vec::new());
    scenario.settings.world.guests.push(GuestSettings::Unreliable(settings));
    scenario
}

#[test]
fn clean_link_brings_every_message_once_and_none_back() {
    for (service, bytes, write_ppm) in [(QpType::Uc, 10_000, 0), (QpType::Uc, 10_000, 500_000), (QpType::Ud, 1_024, 0)]
    {
        let settings =
            UnreliableSettings { write_ppm, messages: [80, 80], ..UnreliableSettings::new(service, 80, bytes) };
        let report = scenario(settings).run(3);
        assert_eq!(troubles(&report), [], "{service}");
        // WRITEs without immediate don't tell.
        let arrived = report.guests.arrived;
        assert!(if write_ppm == 0 { arrived == 160 } else { (80..160).contains(&arrived) }, "{service}: {arrived}");
        assert_eq!(report.shards.iter().map(|shard| shard.rx_acks).sum::<u64>(), 0);
    }
}

#[test]
fn lost_frame_costs_its_own_message() {
    for (service, bytes) in [(QpType::Uc, 10_000), (QpType::Ud, 1_024)] {
        let mut settings = UnreliableSettings::new(service, 50, bytes);
        settings.signal_ppm = 0;
        let report = scenario(settings).rule(0, Rule::drop_nth(|_| true, 4)).run(5);
        assert_eq!(report.guests.arrived, 49, "{service}");
    }
}

#[test]
fn messages_are_dropped_for_want_of_a_receive_and_the_sender_does_not_wait() {
    for service in [QpType::Uc, QpType::Ud] {
        let mut settings = UnreliableSettings::new(service, 100, 500);
        (settings.max_recv_wr, settings.recv_delay_ns) = (1, 50_000_000);
        let report = scenario(settings).run(9);
        assert!((1..100).contains(&report.guests.arrived), "{service}: {}", report.guests.arrived);
    }
}

#[test]
fn wrong_send_stops_the_queue_until_it_is_resumed() {
    for service in [QpType::Uc, QpType::Ud] {
        let settings = UnreliableSettings {
            bad_lkey_ppm: 200_000,
            messages: [200, 200],
            ..UnreliableSettings::new(service, 200, 900)
        };
        let report = scenario(settings).run(2);
        let failed: u64 = report.shards.iter().map(|shard| shard.req_local_errors).sum();
        assert!(failed > 10, "{service}: {failed} sends failed");
        assert!((50..400).contains(&report.guests.arrived), "{service}: {}", report.guests.arrived);
    }
}

#[test]
fn datagrams_with_another_key_do_not_arrive() {
    let settings = UnreliableSettings { stray_ppm: 1_000_000, ..UnreliableSettings::new(QpType::Ud, 40, 900) };
    assert_eq!(scenario(settings).run(2).guests.arrived, 0);
}

#[test]
fn bad_link_brings_nothing_wrong() {
    let faults = Faults {
        loss_ppm: 50_000,
        duplicate_ppm: 50_000,
        reorder_ppm: 50_000,
        reorder_ns: 20_000,
        corrupt_ppm: 20_000,
        ..Faults::NONE
    };
    for (service, bytes) in [(QpType::Uc, 10_000), (QpType::Ud, 1_024)] {
        let settings = UnreliableSettings {
            messages: [400, 400],
            write_ppm: 300_000,
            ..UnreliableSettings::new(service, 400, bytes)
        };
        let report = scenario(settings).faults(faults).safety_ms(2_000).run(11);
        assert!((100..1_000).contains(&report.guests.arrived), "{service}: {}", report.guests.arrived);
    }
}
