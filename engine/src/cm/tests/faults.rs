//! Messages that are lost, doubled or late; sides that are slow or die.

use proptest::prelude::*;

use super::*;

/// Loses the `count`-th to come of messages with this name.
fn lose(name: &'static str, mut count: usize) -> Faults {
    Box::new(move |_, message| {
        if message.attribute_id().name() == name && count > 0 {
            count -= 1;
            return Fate::Lost;
        }
        Fate::Arrives
    })
}

#[test]
fn each_lost_message_is_made_up_for() {
    // What is sent after it, and how long that takes at least, ms.
    for (name, sent, at_least_ms) in [
        ("REQ", &["REQ", "REQ", "REP", "RTU", "DREQ", "DREP"][..], 4_800),
        ("REP", &["REQ", "REP", "REP", "RTU", "DREQ", "DREP"], 4_200),
        ("RTU", &["REQ", "REP", "RTU", "REP", "RTU", "DREQ", "DREP"], 4_200),
        ("DREQ", &["REQ", "REP", "RTU", "DREQ", "DREQ", "DREP"], 4_800),
    ] {
        let mut net = Net::new();
        net.fate = lose(name, 1);
        let (id, _) = net.connect();
        net.run(10 * SECOND_NS);
        assert_eq!(net.hosts[0].cm.state(id), Some(CmState::Established), "{name}");
        assert_eq!(net.hosts[1].last().1.event, CmEventType::Established, "{name}");
        let (now, lost) = (net.now, net.hosts.iter().map(|host| host.cm.counters().cm_retries).sum::<u64>());
        assert_eq!(lost, u64::from(name != "DREQ"), "{name}");
        net.hosts[0].cm.disconnect(now, id).unwrap();
        net.run(20 * SECOND_NS);
        assert_eq!(net.sent(), sent, "{name}");
        assert_eq!(net.hosts[0].last().1.event, CmEventType::TimewaitExit, "{name}");
        let waited = net.hosts[0].cm.config.response_timeout;
        assert!(id::exponent_ns(waited) / 1_000_000 + 600 > at_least_ms);
    }
}

/// Time wait is shorter than the repetition here: the DREP comes from one who does not know the connection any more.
#[test]
fn a_lost_drep_is_made_up_for_even_after_time_wait() {
    let mut net = Net::new();
    net.fate = lose("DREP", 1);
    let (id, _) = net.connect();
    net.run(SECOND_NS);
    let (now, passive) = (net.now, net.request());
    net.hosts[0].cm.disconnect(now, id).unwrap();
    net.run(SECOND_NS);
    net.hosts[1].cm.destroy_id(net.now, passive);
    assert_eq!(net.hosts[0].cm.state(id), Some(CmState::DreqSent));
    net.run(10 * SECOND_NS);
    assert_eq!(net.sent(), ["REQ", "REP", "RTU", "DREQ", "DREP", "DREQ", "DREP"]);
    assert_eq!(net.hosts[1].cm.counters().rx_cm_unknown_connection, 1);
    assert_eq!(net.hosts[0].last().1.event, CmEventType::TimewaitExit);
}

#[test]
fn nobody_there_is_told_after_all_repetitions() {
    let mut net = Net::new();
    net.fate = Box::new(|_, _| Fate::Lost);
    let (id, _) = net.connect();
    net.run(200 * SECOND_NS);
    assert_eq!(net.sent(), ["REQ"; 16]);
    let (_, event) = net.hosts[0].last();
    assert_eq!((event.event, event.status), (CmEventType::Unreachable, -110));
    assert_eq!(
        event.message,
        "no answer from 10.0.0.2:7174 to 16 messages, 4831 ms apart: is UDP port 4791 open on the way?"
    );
    assert_eq!(net.hosts[0].cm.state(id), Some(CmState::RouteResolved));
    assert_eq!(net.hosts[0].cm.counters().cm_retries, 15);
}

#[test]
fn an_acceptance_that_nobody_answers_is_withdrawn() {
    let mut net = Net::new();
    net.fate = Box::new(
        |from, message| if from == 0 && !matches!(message, CmMessage::Req(_)) { Fate::Lost } else { Fate::Arrives },
    );
    net.connect();
    net.run(200 * SECOND_NS);
    let (_, event) = net.hosts[1].last();
    assert_eq!((event.event, event.status), (CmEventType::Unreachable, -110));
    // The other side takes itself to be connected until it hears of it.
    assert_eq!(net.log.iter().filter(|sent| **sent == (1, "REP")).count(), 16);
    assert_eq!(net.log.last(), Some(&(1, "REJ")));
    let (_, event) = &net.hosts[0].events[3];
    assert_eq!((event.event, event.status), (CmEventType::Disconnected, 4));
}

#[test]
fn a_slow_application_has_its_peer_wait() {
    let mut net = Net::new();
    net.hosts[1].accepts = false;
    let (id, _) = net.connect();
    net.run(100 * SECOND_NS);
    // One REQ more draws an MRA; after it the peer waits for more than a minute.
    assert_eq!(net.sent()[..3], ["REQ", "REQ", "MRA"]);
    assert!(net.log.len() <= 5, "{:?}", net.log);
    assert_eq!(net.hosts[0].cm.state(id), Some(CmState::MraReqRcvd));
    let (now, request) = (net.now, net.request());
    assert_eq!(net.hosts[1].cm.state(request), Some(CmState::MraReqSent));
    net.hosts[1].cm.accept(now, request, &param(0x99)).unwrap();
    net.run(SECOND_NS);
    assert_eq!(net.hosts[1].cm.state(request), Some(CmState::Established));
}

#[test]
fn a_slow_active_side_has_its_peer_wait_too() {
    let mut net = Net::new();
    net.hosts[0].accepts = false;
    let (id, _) = net.connect();
    net.run(60 * SECOND_NS);
    assert_eq!(net.sent(), ["REQ", "REP", "REP", "MRA"]);
    let (now, request) = (net.now, net.request());
    assert_eq!(net.hosts[0].cm.state(id), Some(CmState::MraRepSent));
    assert_eq!(net.hosts[1].cm.state(request), Some(CmState::MraRepRcvd));
    net.hosts[0].cm.accept(now, id, &ConnParam::default()).unwrap();
    net.run(SECOND_NS);
    assert_eq!(net.hosts[1].cm.state(request), Some(CmState::Established));
}

/// Ids destroyed at any moment: the other side hears of it, and nothing is left.
#[test]
fn an_id_destroyed_in_any_state_leaves_nothing() {
    for side in 0..2 {
        for after_ns in (0..8).map(|step| step * DELAY_NS + DELAY_NS / 2) {
            for slow in 0..3 {
                let mut net = Net::new();
                if let Some(host) = net.hosts.get_mut(slow) {
                    host.accepts = false;
                }
                let (id, listener) = net.connect();
                net.run(after_ns);
                let (now, victims) = (net.now, if side == 0 { vec![id] } else { net.hosts[1].ids_but(listener) });
                if victims.is_empty() {
                    continue;
                }
                for victim in victims {
                    net.hosts[side].cm.destroy_id(now, victim);
                }
                net.run(300 * SECOND_NS);
                let now = net.now;
                for host in &mut net.hosts {
                    for id in host.cm.ids.keys().copied().collect::<Vec<_>>() {
                        let state = host.cm.state(id);
                        let settled = [CmState::Idle, CmState::RouteResolved, CmState::Listen, CmState::ReqRcvd];
                        // What an application never answers stays, as long as the application does.
                        let is_slow = slow < 2;
                        assert!(
                            is_slow || state.is_some_and(|state| settled.contains(&state)),
                            "{side} {after_ns} {slow} {state:?} {:?}",
                            net.log
                        );
                        host.cm.destroy_id(now, id);
                    }
                }
                net.run(300 * SECOND_NS);
                net.hosts.iter().for_each(|host| host.cm.assert_empty());
            }
        }
    }
}

impl Host {
    fn ids_but(&self, listener: CmId) -> Vec<CmId> {
        self.cm.ids.keys().copied().filter(|id| *id != listener).collect()
    }
}

#[test]
fn a_qp_that_was_reset_is_stale_once() {
    let mut net = Net::new();
    let (id, _) = net.connect();
    net.run(SECOND_NS);
    let first = net.request();
    // The client dies without a word: its host forgets everything, and connects with the same QP.
    let fresh = Host::new(0, CmConfig::default(), 1_500);
    net.hosts[0] = Host { seed: 4_711, ..fresh };
    for expected in [CmEventType::Rejected, CmEventType::ConnectResponse] {
        let id = net.hosts[0].routed(ip(1), PortSpace::Tcp);
        let now = net.now;
        net.hosts[0].connect(now, id, param(0x77));
        net.run(30 * SECOND_NS);
        assert_eq!(net.hosts[0].last().1.event, expected);
    }
    let rejected = net.hosts[0].events.iter().find(|(_, event)| event.event == CmEventType::Rejected).unwrap();
    assert_eq!(rejected.1.status, 10);
    assert!(rejected.1.message.contains("QP 0x000077"), "{}", rejected.1.message);
    let first_events: Vec<_> =
        net.hosts[1].events.iter().filter(|(id, _)| *id == first).map(|(_, e)| e.event).collect();
    assert_eq!(first_events[1..3], [CmEventType::Established, CmEventType::Disconnected]);
    assert_eq!(net.hosts[1].cm.counters().rx_cm_stale, 1);
    let _ = id;
}

/// Decides for each MAD by a list of dice, then lets all of them arrive.
fn dice(rolls: Vec<u8>) -> Faults {
    let mut rolls = rolls.into_iter();
    Box::new(move |_, _| match rolls.next() {
        Some(0..=1) => Fate::Lost,
        Some(2) => Fate::Doubled,
        Some(3) => Fate::Late,
        _ => Fate::Arrives,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever the wire does to 24 messages, both sides agree in the end, and nothing is left when they are done.
    #[test]
    fn both_sides_agree_in_the_end(
        rolls in prop::collection::vec(0..8_u8, 24),
        ends_first in 0..2_usize,
        ends_after_ms in 1..12_000_u64,
        is_peer in any::<bool>(),
    ) {
        let mut net = Net::new();
        net.fate = dice(rolls);
        if is_peer {
            let cm = &mut net.hosts[1].cm;
            let id = cm.create_id(PortSpace::Tcp).unwrap();
            cm.bind_addr(id, SocketAddr::new(ip(1), PORT)).unwrap();
            cm.resolve_addr(id, None, SocketAddr::new(ip(0), PORT)).unwrap();
            cm.addr_resolved(id);
            cm.resolve_route(id).unwrap();
            let cm = &mut net.hosts[0].cm;
            let other = cm.create_id(PortSpace::Tcp).unwrap();
            cm.bind_addr(other, SocketAddr::new(ip(0), PORT)).unwrap();
            cm.resolve_addr(other, None, SocketAddr::new(ip(1), PORT)).unwrap();
            cm.addr_resolved(other);
            cm.resolve_route(other).unwrap();
            net.hosts[0].connect(Time::ZERO, other, param(0x77));
            net.hosts[1].connect(Time::ZERO, id, param(0x78));
        } else {
            net.connect();
        }
        net.run(ends_after_ms * 1_000_000);
        let ended: Vec<CmId> = net.hosts[ends_first].cm.ids.keys().copied().collect();
        for id in ended {
            let _ = net.hosts[ends_first].cm.disconnect(net.now, id);
        }
        net.run(400 * SECOND_NS);
        let established = |host: &Host| host.cm.ids.values().filter(|e| e.state == CmState::Established).count();
        prop_assert_eq!(established(&net.hosts[0]), established(&net.hosts[1]), "{:?}", net.log);
        for host in &mut net.hosts {
            for id in host.cm.ids.keys().copied().collect::<Vec<_>>() {
                host.cm.destroy_id(net.now, id);
            }
        }
        net.run(400 * SECOND_NS);
        net.hosts.iter().for_each(|host| host.cm.assert_empty());
    }
}
