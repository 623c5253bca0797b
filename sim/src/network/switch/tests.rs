//! The switch as a whole: buffer, pauses, marks, paths, order, and that no frame vanishes.

use engine::Time;
use proptest::prelude::*;
use wire::{EtherType, EthernetRepr, MacAddr, PfcRepr};

use super::*;
use crate::network::testing::{ECT_0, mac, udp_frame};

const RATE_MBPS: u32 = 100_000;
/// DSCP of priority 3, and ECN-capable.
const LOSSLESS: u8 = 26 << 2 | ECT_0;

fn ports(count: usize) -> Vec<SwitchPort> {
    vec![SwitchPort { rate_mbps: RATE_MBPS, mtu: 9_000, mac: MacAddr([2, 0, 0, 1, 0, 0]) }; count]
}

/// Station `n` is behind port `n`.
fn switch(settings: SwitchSettings, count: u8) -> Switch<Vec<u8>> {
    let mut forwarding = Forwarding::new(7);
    (0..count).for_each(|number| forwarding.add_station(mac(number), &[u16::from(number)]));
    Switch::new(settings, &ports(usize::from(count)), forwarding, 1).unwrap()
}

fn lossless() -> SwitchSettings {
    let mut settings = SwitchSettings { buffer_bytes: 1 << 20, ..SwitchSettings::default() };
    settings.pause.priorities[3] = true;
    settings.pause.headroom_bytes = 50_000;
    settings.threshold = Threshold::Static(20_000);
    settings.pause.xon_offset_bytes = 5_000;
    settings
}

fn frame_of<F>(transmit: Option<Transmit<F>>) -> F {
    match transmit {
        Some(Transmit::Frame(frame)) => frame,
        Some(Transmit::Pause(_)) => panic!("a pause frame where a frame was to be"),
        None => panic!("nothing to send"),
    }
}

fn pause_of<F>(transmit: Option<Transmit<F>>) -> Option<u16> {
    match transmit {
        Some(Transmit::Pause(frame)) => match PfcRepr::parse(&frame) {
            Some(PfcRepr::Priority(quanta)) => {
                assert!((0..8).all(|priority| priority == 3 || quanta[priority].is_none()));
                quanta[3]
            }
            other => panic!("{other:?}"),
        },
        _ => None,
    }
}

fn drain(switch: &mut Switch<Vec<u8>>, port: u16) -> Vec<Vec<u8>> {
    let next = || match switch.transmit(Time::ZERO, port) {
        Some(Transmit::Frame(frame)) => Some(frame),
        _ => None,
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn frames_go_to_the_port_of_their_station_in_their_order() {
    let mut switch = switch(SwitchSettings::default(), 3);
    for source in [1, 0, 1] {
        let frame = udp_frame(source, 2, 5, 0, 200);
        assert_eq!(switch.receive(Time::ZERO, u16::from(source), frame), Touched::One(2));
    }
    let sources: Vec<u8> = drain(&mut switch, 2).iter().map(|frame| frame[11]).collect();
    assert_eq!((sources, switch.buffer_used_bytes()), (vec![1, 0, 1], 0));
}

#[test]
fn a_full_queue_drops_and_a_dynamic_threshold_leaves_the_share_that_alpha_says() {
    for (alpha, share) in [(1.0, 2), (0.5, 3), (3.0, 1)] {
        let settings =
            SwitchSettings { buffer_bytes: 1 << 20, threshold: Threshold::Dynamic(alpha), ..SwitchSettings::default() };
        let mut switch = switch(settings, 2);
        for _ in 0..2_000 {
            switch.receive(Time::ZERO, 0, udp_frame(0, 1, 5, 0, 1_024));
        }
        // One queue alone gets alpha / (1 + alpha) of the buffer: 1/2, 1/3, 3/4.
        let expected = if share == 1 { (1 << 20) * 3 / 4 } else { (1 << 20) / share };
        let got = switch.queue_bytes(1, 0);
        assert!((expected - 2_048..=expected + 1_024).contains(&got), "alpha {alpha}: {got}");
        let counters = switch.counters();
        assert_eq!(counters.dropped_queue, 2_000 - got / 1_024);
    }
}

#[test]
fn pauses_come_at_the_threshold_and_end_below_it() {
    let mut switch = switch(lossless(), 2);
    let receive = |switch: &mut Switch<Vec<u8>>| {
        switch.receive(Time::ZERO, 0, udp_frame(0, 1, 5, LOSSLESS, 1_000));
        switch.take_teller()
    };
    for frame in 1..20 {
        assert_eq!(receive(&mut switch), None, "frame {frame}");
    }
    assert_eq!(receive(&mut switch), Some(0), "20,000 bytes");
    assert_eq!(pause_of(switch.transmit(Time::ZERO, 0)), Some(u16::MAX));
    assert_eq!(switch.transmit(Time::ZERO, 0).map(|_| ()), None, "once");
    // XON at 15,000 bytes: after the fifth frame has gone.
    for gone in 1..=5 {
        frame_of(switch.transmit(Time::ZERO, 1));
        assert_eq!(switch.take_teller(), (gone == 5).then_some(0), "{gone} gone");
    }
    assert_eq!(pause_of(switch.transmit(Time::ZERO, 0)), Some(0));
    assert_eq!(switch.deadline(0), Time::NEVER, "nothing to refresh");
}

#[test]
fn a_pause_is_asked_for_again_before_it_runs_out() {
    let mut switch = switch(lossless(), 2);
    for _ in 0..25 {
        switch.receive(Time::ZERO, 0, udp_frame(0, 1, 5, LOSSLESS, 1_000));
    }
    assert_eq!(pause_of(switch.transmit(Time::ZERO, 0)), Some(u16::MAX));
    let refresh = switch.deadline(0);
    assert_eq!(refresh, Time::from_ns(65_535 * 512 / 100 / 2));
    assert!(switch.transmit(Time::from_ns(refresh.as_ns() - 1), 0).is_none());
    assert_eq!(pause_of(switch.transmit(refresh, 0)), Some(u16::MAX));
    assert_eq!(switch.counters().pauses_sent, 2);
}

#[test]
fn headroom_takes_what_is_still_on_its_way_and_not_a_byte_more() {
    let mut switch = switch(lossless(), 2);
    for _ in 0..70 {
        switch.receive(Time::ZERO, 0, udp_frame(0, 1, 5, LOSSLESS, 1_000));
    }
    assert_eq!((switch.counters().dropped(), switch.buffer_used_bytes()), (0, 70_000), "threshold and headroom");
    switch.receive(Time::ZERO, 0, udp_frame(0, 1, 5, LOSSLESS, 1_000));
    assert_eq!(switch.counters().dropped_headroom, 1, "the boundary");
    assert_eq!(drain(&mut switch, 1).len(), 70);
    assert_eq!(switch.buffer_used_bytes(), 0);
}

#[test]
fn a_paused_queue_waits_and_others_pass_it() {
    let mut switch = switch(SwitchSettings::default(), 2);
    let mut quanta = [None; 8];
    quanta[3] = Some(100);
    let pause = PfcRepr::Priority(quanta).to_bytes(mac(1)).to_vec();
    assert_eq!(switch.receive(Time::ZERO, 1, pause), Touched::One(1));
    switch.receive(Time::ZERO, 0, udp_frame(0, 1, 5, LOSSLESS, 500));
    switch.receive(Time::ZERO, 0, udp_frame(0, 1, 6, 0, 500));
    assert_eq!(frame_of(switch.transmit(Time::ZERO, 1))[15], 0, "best effort goes on");
    assert!(switch.transmit(Time::ZERO, 1).is_none());
    let end = Time::from_ns(512);
    assert_eq!((switch.deadline(1), switch.is_paused(Time::ZERO, 1, 3)), (end, true));
    assert_eq!(frame_of(switch.transmit(end, 1))[15], LOSSLESS);
    assert_eq!(switch.paused_ns(end), 512);
}

#[test]
fn strict_priorities_go_first_and_weights_share_the_rest() {
    let mut settings = SwitchSettings::default();
    settings.dequeue[1] = Dequeue::Weighted(3);
    settings.dequeue[2] = Dequeue::Weighted(1);
    let mut switch = switch(settings, 2);
    for _ in 0..1_000 {
        for (dscp, bytes) in [(8, 300), (16, 1_500), (48, 100)] {
            switch.receive(Time::ZERO, 0, udp_frame(0, 1, 5, dscp << 2, bytes));
        }
    }
    for _ in 0..1_000 {
        assert_eq!(frame_of(switch.transmit(Time::ZERO, 1))[15], 48 << 2, "priority 6 is strict");
    }
    let mut bytes = [0, 0];
    while bytes[0] < 280_000 {
        let frame = frame_of(switch.transmit(Time::ZERO, 1));
        bytes[usize::from(frame[15] == 16 << 2)] += frame.len();
    }
    let ratio = bytes[0] as f64 / bytes[1] as f64;
    assert!((2.9..3.1).contains(&ratio), "{bytes:?}");
}

#[test]
fn only_what_is_ecn_capable_is_marked_and_only_above_the_threshold() {
    let mut settings = SwitchSettings::default();
    settings.marking[3] = Some(Marking { kmin_bytes: 10_000, kmax_bytes: 10_000, pmax: 1.0 });
    let mut switch = switch(settings, 2);
    for frame in 0..40 {
        let traffic_class = if frame % 2 == 0 { LOSSLESS } else { LOSSLESS & !3 };
        switch.receive(Time::ZERO, 0, udp_frame(0, 1, 5, traffic_class, 1_000));
    }
    let marked: Vec<bool> = drain(&mut switch, 1).iter().map(|frame| frame[15] & 3 == 3).collect();
    let expected: Vec<bool> = (0..40).map(|frame| frame % 2 == 0 && frame > 10).collect();
    assert_eq!((marked, switch.counters().marked), (expected, 14));
}

#[test]
fn flows_spread_over_equal_paths_and_each_stays_on_its_own() {
    let mut forwarding = Forwarding::new(3);
    forwarding.add_route([10, 0, 0, 0].into(), 8, &[1, 2, 3, 4]);
    let mut switch = Switch::new(SwitchSettings::default(), &ports(5), forwarding, 1).unwrap();
    let mut counts = [0; 5];
    for flow in 0..4_000u16 {
        let path = |switch: &mut Switch<_>| switch.receive(Time::ZERO, 0, udp_frame(0, 9, 49_152 + flow, 0, 60));
        let Touched::One(first) = path(&mut switch) else { panic!("flow {flow} has no path") };
        assert_eq!(path(&mut switch), Touched::One(first), "flow {flow}");
        counts[usize::from(first)] += 1;
    }
    // A quarter each: 1,000, and four standard deviations are 110.
    assert!(counts[1..].iter().all(|count| (890..=1_110).contains(count)), "{counts:?}");
}

#[test]
fn frames_for_all_go_everywhere_but_back() {
    let mut forwarding = Forwarding::new(3);
    forwarding.set_flood(&[0, 1, 2]);
    let mut switch = Switch::new(SwitchSettings::default(), &ports(4), forwarding, 1).unwrap();
    let ethernet = EthernetRepr { dst: MacAddr::BROADCAST, src: mac(1), ether_type: EtherType::ARP };
    let mut frame = ethernet.to_bytes().to_vec();
    frame.resize(60, 0);
    assert_eq!(switch.receive(Time::ZERO, 1, frame), Touched::Many);
    assert_eq!([0, 1, 2, 3].map(|port| drain(&mut switch, port).len()), [1, 0, 1, 0]);
    assert_eq!(switch.counters().copies, 1);
}

#[test]
fn what_came_from_a_side_does_not_go_back_there() {
    let mut forwarding = Forwarding::new(3);
    forwarding.add_side(&[1, 2]);
    forwarding.add_station(mac(9), &[1, 2]);
    forwarding.set_flood(&[0, 1]);
    let mut switch = Switch::new(SwitchSettings::default(), &ports(3), forwarding, 1).unwrap();
    assert_eq!(switch.receive(Time::ZERO, 2, udp_frame(1, 9, 5, 0, 60)), Touched::None, "for a station of that side");
    assert_eq!(switch.counters().dropped_local, 1);
    assert_eq!(switch.receive(Time::ZERO, 2, udp_frame(1, 77, 5, 0, 60)), Touched::Many, "for nobody known");
    assert_eq!([0, 1, 2].map(|port| switch.waiting(port)), [(1, 60), (0, 0), (0, 0)]);
    switch.forwarding_mut().remove_station(mac(9));
    assert_eq!(switch.receive(Time::ZERO, 0, udp_frame(1, 9, 5, 0, 60)), Touched::Many, "forgotten");
    assert_eq!(switch.waiting(1), (1, 60));
}

#[test]
fn settings_that_cannot_be_are_refused_with_the_values_in_the_sentence() {
    let refusal = |change: &dyn Fn(&mut SwitchSettings)| {
        let mut settings = SwitchSettings { buffer_bytes: 2 << 20, ..lossless() };
        change(&mut settings);
        settings.check(&[RATE_MBPS; 32]).unwrap_err().to_string()
    };
    let sentence = refusal(&|settings| settings.buffer_bytes = 1_600_000);
    assert!(sentence.contains("32 ports") && sentence.contains("1600000"), "{sentence}");
    assert!(refusal(&|settings| settings.threshold = Threshold::Dynamic(0.0)).contains("dynamic threshold"));
    assert!(refusal(&|settings| settings.dequeue[1] = Dequeue::Weighted(0)).contains("weight"));
    assert!(refusal(&|settings| settings.classes.dscp_priorities[9] = 8).contains("DSCP 9"));
    assert!(refusal(&|settings| settings.pause.quanta = 1).contains("quanta"));
    let bad = Marking { kmin_bytes: 2, kmax_bytes: 1, pmax: 0.5 };
    assert!(refusal(&|settings| settings.marking[0] = Some(bad)).contains("kmin_bytes: 2"));
    let settings = SwitchSettings::default();
    assert_eq!(settings.check(&[]), Err(BadSettings::Ports(0)));
    assert_eq!(settings.check(&[0]), Err(BadSettings::Rate(0)));
}

/// Something that happens to a switch of four ports.
#[derive(Clone, Debug)]
enum Step {
    Receive { port: u16, frame: Vec<u8> },
    Transmit { port: u16 },
}

fn step() -> impl Strategy<Value = Step> {
    let good = (0..4u8, 0..6u8, any::<u8>(), 60..3_000usize)
        .prop_map(|(src, dst, class, bytes)| (u16::from(src), udp_frame(src, dst, 9, class, bytes)));
    let cut = (good.clone(), any::<prop::sample::Index>())
        .prop_map(|((port, frame), at)| (port, frame[..at.index(frame.len())].to_vec()));
    let pause = (0..4u16, any::<[Option<u16>; 8]>())
        .prop_map(|(port, quanta)| (port, PfcRepr::Priority(quanta).to_bytes(mac(1)).to_vec()));
    let noise = (0..4u16, prop::collection::vec(any::<u8>(), 0..100));
    let receive = prop_oneof![8 => good, 1 => cut, 1 => pause, 1 => noise];
    prop_oneof![
        2 => receive.prop_map(|(port, frame)| Step::Receive { port, frame }),
        1 => (0..4u16).prop_map(|port| Step::Transmit { port }),
    ]
}

proptest! {
    #[test]
    fn no_frame_vanishes_and_no_byte_stays_charged(steps in prop::collection::vec(step(), 1..400)) {
        let mut settings = lossless();
        settings.buffer_bytes = 4 * settings.pause.headroom_bytes + 60_000;
        settings.pause.headroom_bytes = 5_000;
        settings.dequeue[0] = Dequeue::Weighted(2);
        settings.dequeue[4] = Dequeue::Weighted(1);
        let mut switch = switch(settings, 4);
        for (step, number) in steps.into_iter().zip(0..) {
            let now = Time::from_ns(number * 100);
            match step {
                Step::Receive { port, frame } => { switch.receive(now, port, frame); }
                Step::Transmit { port } => { switch.transmit(now, port); }
            }
            let c = switch.counters();
            let out = c.sent + c.pauses_received + c.dropped() + switch.queued_frames() as u64;
            prop_assert_eq!(c.received + c.copies, out);
            prop_assert!(switch.buffer_used_bytes() <= switch.settings().buffer_bytes);
        }
        // Every pause has run out by then.
        let late = Time::from_ns(1 << 40);
        for port in 0..4 {
            while switch.transmit(late, port).is_some() {}
        }
        prop_assert_eq!((switch.buffer_used_bytes(), switch.queued_frames()), (0, 0));
    }
}
