use proptest::prelude::*;

use super::*;
use crate::random::{StreamOf, stream};

fn direction(settings: LinkSettings, faults: Faults) -> Direction {
    Direction::new(settings, faults, Vec::new(), stream(1, StreamOf::Direction(0)))
}

/// A RoCE acknowledgement, by hand.
fn acknowledgement() -> Vec<u8> {
    let aeth = wire::AethRepr { syndrome: wire::Syndrome::Ack { credits: 31 }, msn: wire::Msn::new(1) };
    packet(wire::Opcode::RC_ACK, &aeth.to_bytes())
}

fn packet(opcode: wire::Opcode, ext: &[u8]) -> Vec<u8> {
    let fields = wire::PathFields {
        src_mac: wire::MacAddr([2, 0, 0, 0, 0, 1]),
        dst_mac: wire::MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        src_ip: [10, 0, 0, 1].into(),
        dst_ip: [10, 0, 0, 2].into(),
        traffic_class: 0,
        hop_limit: 64,
        udp_src_port: 0xc000,
        ipv4_ident: 0,
        flow_label: 0,
        roce_v1: false,
    };
    let template = wire::PathTemplate::new(&fields).unwrap();
    let bth = wire::Bth::new(opcode, wire::Qpn::new(17), wire::Psn::new(5));
    let mut frame = vec![0; template.frame_len(ext.len(), 0)];
    assert!(template.write_packet(&mut frame, &bth, ext, 0, |_, crc| crc) > 0);
    frame
}

fn times(outcome: &Outcome) -> Vec<u64> {
    outcome.deliveries.iter().flatten().map(|delivery| delivery.at.as_ns()).collect()
}

#[test]
fn clean_link_delays_and_keeps_order() {
    let settings = LinkSettings { delay_ns: 1_000, jitter_ns: 900, ..LinkSettings::default() };
    let mut link = direction(settings, Faults::NONE);
    let mut last = 0;
    for now in (0..10_000).step_by(100) {
        let arrived = times(&link.carry(Time::from_ns(now), vec![0; 100]));
        let [at] = arrived[..] else { panic!("{arrived:?}") };
        assert!(at >= last && (now + 1_000..=now + 1_900).contains(&at), "sent at {now}, there at {at}");
        last = at;
    }
    assert_eq!((link.counters().sent, link.counters().delivered), (100, 100));
}

#[test]
fn serialization_takes_the_overhead_into_account() {
    let settings = LinkSettings { rate_mbps: 1_000, ..LinkSettings::default() };
    assert_eq!(settings.serialization_ns(1_226), 10_000);
}

#[test]
fn short_frame_is_padded_and_long_one_dropped() {
    let mut link = direction(LinkSettings { mtu: 1_500, ..LinkSettings::default() }, Faults::NONE);
    assert_eq!(link.carry(Time::ZERO, vec![1; 42]).deliveries[0].as_ref().unwrap().frame.len(), 60);
    assert_eq!(link.carry(Time::ZERO, vec![1; 1_514]).deliveries.iter().flatten().count(), 1);
    assert_eq!(link.carry(Time::ZERO, vec![1; 1_515]).deliveries, [None, None]);
    assert_eq!(link.counters().oversize, 1);
}

#[test]
fn every_covered_flip_and_every_cut_is_noticed_by_the_receiver() {
    let faults = Faults { corrupt_ppm: 500_000, truncate_ppm: 1_000_000, ..Faults::NONE };
    let mut link = direction(LinkSettings::default(), faults);
    // One of them is so short that it is padded: damage to the padding would be none.
    let frames = [acknowledgement(), packet(wire::Opcode::RC_SEND_ONLY, &[])];
    assert!(frames[1].len() < FRAME_BYTES_MIN);
    let mut good = 0;
    for n in 0..4_000 {
        let outcome = link.carry(Time::ZERO, frames[n % 2].clone());
        let arrived = &outcome.deliveries[0].as_ref().unwrap().frame;
        good += u64::from(wire::Frame::parse(arrived).is_ok_and(|frame| frame.icrc_ok()));
    }
    let counters = link.counters();
    assert_eq!(good, counters.corrupted_harmlessly);
    assert!(counters.corrupted > 500 && counters.truncated > 500 && good > 0, "{counters:?}");
}

#[test]
fn loss_and_duplication_come_as_often_as_asked() {
    let faults = Faults { loss_ppm: 100_000, duplicate_ppm: 100_000, ..Faults::NONE };
    let mut link = direction(LinkSettings::default(), faults);
    for now in 0..10_000 {
        link.carry(Time::from_ns(now), vec![0; 60]);
    }
    let LinkCounters { lost, duplicated, delivered, .. } = *link.counters();
    assert!((800..1_200).contains(&lost) && (700..1_100).contains(&duplicated), "{lost} {duplicated}");
    assert_eq!(delivered, 10_000 - lost + duplicated);
}

#[test]
fn flapping_link_is_down_at_times_and_up_at_others() {
    let faults = Faults { flaps: Some(Flaps { up_ns: 1_000, down_ns: 1_000 }), ..Faults::NONE };
    let mut link = direction(LinkSettings::default(), faults);
    for now in (0..1_000_000).step_by(100) {
        link.carry(Time::from_ns(now), vec![0; 60]);
    }
    let lost = link.counters().lost_in_flaps;
    assert!((3_000..7_000).contains(&lost), "{lost} of 10000");
    link.heal();
    assert_eq!(link.carry(Time::from_ns(2_000_000), vec![0; 60]).deliveries.iter().flatten().count(), 1);
}

#[test]
fn rule_takes_the_frames_it_names_and_no_other() {
    let is_ack = |frame: &wire::Frame<'_>| frame.bth().opcode == wire::Opcode::RC_ACK;
    let rule = Rule::drop_nth(is_ack, 1);
    let stream = stream(1, StreamOf::Direction(0));
    let mut link = Direction::new(LinkSettings::default(), Faults::NONE, vec![rule], stream);
    let frames = [vec![0; 60], acknowledgement(), vec![0; 60], acknowledgement(), acknowledgement()];
    let arrived = frames.map(|frame| link.carry(Time::ZERO, frame).deliveries.iter().flatten().count());
    assert_eq!(arrived, [1, 1, 1, 0, 1]);
}

proptest! {
    /// A link of a real switch carries whatever is sent to it: headers that lie about lengths and options are damaged like any other.
    #[test]
    fn no_frame_is_too_strange_to_be_damaged(
        changes in prop::collection::vec((12..60usize, any::<u8>()), 0..6),
        length in 0..120usize,
    ) {
        let faults = Faults { corrupt_ppm: 500_000, truncate_ppm: 900_000, ..Faults::NONE };
        let mut link = direction(LinkSettings::default(), faults);
        let mut frame = acknowledgement();
        frame.resize(100, 0);
        for (at, value) in changes {
            frame[at] = value;
        }
        frame.resize(length, 0);
        for _ in 0..20 {
            prop_assert_eq!(link.carry(Time::ZERO, frame.clone()).deliveries.iter().flatten().count(), 1);
        }
    }
}
