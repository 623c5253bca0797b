//! The table by the clock: what it asks, what it believes, and what it ignores.

use proptest::prelude::*;

use super::*;

mod discovery;

impl NeighState {
    /// Whether frames can be sent to the neighbour.
    const fn is_usable(self) -> bool {
        matches!(self, Self::Reachable | Self::Probe { .. } | Self::Static)
    }
}

impl NeighTable {
    /// The neighbour's state.
    fn state(&self, index: u32) -> NeighState {
        self.entry(index).state
    }

    /// Address, MAC and state of every neighbour, by rising address.
    fn iter(&self) -> impl Iterator<Item = (IpAddr, Option<MacAddr>, NeighState)> + '_ {
        let entries = self.by_key.iter().filter_map(|&(_, slot)| self.entries[slot as usize].as_ref());
        entries.map(|entry| (entry.key.ip, entry.mac, entry.state))
    }
}

const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const OUR_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const PEER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OTHER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);

fn at_ms(ms: u64) -> Time {
    Time::from_ns(ms * 1_000_000)
}

fn arp(operation: ArpOperation, sender_mac: MacAddr, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> ArpRepr {
    ArpRepr { operation, sender_mac, sender_ip, target_mac: OUR_MAC, target_ip }
}

fn port() -> PortConfig {
    PortConfig {
        active: true,
        mac: OUR_MAC,
        addresses: vec![IpAddr::from(OUR_IP).into()],
        interface_mtu: 1_500,
        answers_arp: true,
        speed_mbps: 0,
        driver: "test".into(),
        kernel_interface: None,
    }
}

fn packet(arp: ArpRepr) -> NeighPacket {
    NeighPacket { mac: arp.sender_mac, vlan: None, message: NeighMessage::Arp(arp) }
}

fn handle(table: &mut NeighTable, ms: u64, arp: &ArpRepr) -> NeighOutcome {
    table.handle_packet(at_ms(ms), &packet(*arp), &port())
}

fn changed(index: u32) -> NeighOutcome {
    NeighOutcome { changed: Some(index), ..NeighOutcome::default() }
}

const PEER: NeighKey = NeighKey { ip: IpAddr::V4(PEER_IP), vlan: None };

fn key(ip: impl Into<IpAddr>) -> NeighKey {
    NeighKey { ip: ip.into(), vlan: None }
}

const UNCHANGED: NeighOutcome = NeighOutcome { reply: None, conflict: false, changed: None };

fn requests(table: &mut NeighTable, ms: u64) -> Vec<NeighRequest> {
    core::iter::from_fn(|| table.poll_request(at_ms(ms))).collect()
}

const BROADCAST: NeighRequest = NeighRequest { target: PEER, unicast: None };
const UNICAST: NeighRequest = NeighRequest { target: PEER, unicast: Some(PEER_MAC) };

/// A table that was asked for the peer at 0 ms.
fn incomplete() -> (NeighTable, u32) {
    let mut table = NeighTable::new(4);
    let index = table.acquire(key(PEER_IP)).unwrap();
    assert_eq!(requests(&mut table, 0), [BROADCAST]);
    (table, index)
}

/// A table that the peer answered at 0 ms.
fn reachable() -> (NeighTable, u32) {
    let (mut table, index) = incomplete();
    assert_eq!(handle(&mut table, 0, &arp(ArpOperation::Reply, PEER_MAC, PEER_IP, OUR_IP)), changed(index));
    assert_eq!(table.mac(index), Some(PEER_MAC));
    (table, index)
}

/// Runs the clock to `until_ms` by the table's own deadlines, and returns when it asked for what.
fn run(table: &mut NeighTable, from_ms: u64, until_ms: u64) -> Vec<(u64, NeighRequest)> {
    let mut asked = Vec::new();
    let mut now = at_ms(from_ms);
    for _ in 0..1_000 {
        while let Some(request) = table.poll_request(now) {
            asked.push((now.as_ns() / 1_000_000, request));
        }
        let next = table.next_deadline();
        assert!(next > now, "no progress at {now:?}");
        if next > at_ms(until_ms) {
            return asked;
        }
        now = next;
    }
    panic!("the table never rests");
}

#[test]
fn incomplete_asks_three_times_then_fails_for_five_seconds() {
    let (mut table, index) = incomplete();
    assert_eq!(run(&mut table, 0, 3_000), [(1_000, BROADCAST), (2_000, BROADCAST)]);
    assert_eq!((table.state(index), table.mac(index)), (NeighState::Failed, None));
    assert_eq!(run(&mut table, 3_000, 11_000), [(8_000, BROADCAST), (9_000, BROADCAST), (10_000, BROADCAST)]);
    assert_eq!(table.state(index), NeighState::Failed);
    // It can still speak up itself.
    handle(&mut table, 12_000, &arp(ArpOperation::Request, PEER_MAC, PEER_IP, PEER_IP));
    assert_eq!(table.mac(index), Some(PEER_MAC));
}

#[test]
fn incomplete_reply_makes_reachable() {
    let (mut table, index) = incomplete();
    assert_eq!(handle(&mut table, 500, &arp(ArpOperation::Reply, PEER_MAC, PEER_IP, OUR_IP)), changed(index));
    assert_eq!((table.mac(index), table.state(index)), (Some(PEER_MAC), NeighState::Reachable));
    assert_eq!(run(&mut table, 500, 30_499), []);
}

#[test]
fn reachable_in_use_is_verified_by_unicast_while_usable() {
    let (mut table, index) = reachable();
    assert_eq!(requests(&mut table, 29_999), []);
    assert_eq!(requests(&mut table, 30_000), [UNICAST]);
    assert_eq!(table.mac(index), Some(PEER_MAC));
    let outcome = handle(&mut table, 30_001, &arp(ArpOperation::Reply, PEER_MAC, PEER_IP, OUR_IP));
    assert_eq!((outcome, table.state(index)), (UNCHANGED, NeighState::Reachable));
    assert_eq!(run(&mut table, 30_001, 60_001), [(60_001, UNICAST)]);
}

#[test]
fn probe_unanswered_falls_back_to_broadcast_without_mac() {
    let (mut table, index) = reachable();
    assert_eq!(run(&mut table, 0, 32_999), [(30_000, UNICAST), (31_000, UNICAST), (32_000, UNICAST)]);
    assert_eq!(table.mac(index), Some(PEER_MAC));
    assert_eq!(requests(&mut table, 33_000), [BROADCAST]);
    assert_eq!(table.mac(index), None);
    assert_eq!(run(&mut table, 33_000, 36_000), [(34_000, BROADCAST), (35_000, BROADCAST)]);
    assert_eq!(table.state(index), NeighState::Failed);
}

#[test]
fn reachable_gratuitous_arp_changes_the_mac() {
    let (mut table, index) = reachable();
    assert_eq!(handle(&mut table, 10, &arp(ArpOperation::Request, OTHER_MAC, PEER_IP, PEER_IP)), changed(index));
    assert_eq!(table.mac(index), Some(OTHER_MAC));
}

#[test]
fn unknown_neighbours_are_added_by_requests_to_us_only() {
    let mut table = NeighTable::new(4);
    handle(&mut table, 0, &arp(ArpOperation::Request, PEER_MAC, PEER_IP, PEER_IP));
    handle(&mut table, 0, &arp(ArpOperation::Reply, PEER_MAC, PEER_IP, OUR_IP));
    handle(&mut table, 0, &arp(ArpOperation::Request, PEER_MAC, PEER_IP, Ipv4Addr::new(10, 0, 0, 9)));
    assert_eq!(table.iter().count(), 0);
    handle(&mut table, 0, &arp(ArpOperation::Request, PEER_MAC, PEER_IP, OUR_IP));
    let known: Vec<_> = table.iter().collect();
    assert_eq!(known, [(PEER_IP.into(), Some(PEER_MAC), NeighState::Reachable)]);
    let index = table.acquire(key(PEER_IP)).unwrap();
    assert_eq!(table.mac(index), Some(PEER_MAC));
}

#[test]
fn request_for_us_is_answered_where_we_answer() {
    let mut table = NeighTable::new(4);
    let request = arp(ArpOperation::Request, PEER_MAC, PEER_IP, OUR_IP);
    let reply = ArpRepr {
        operation: ArpOperation::Reply,
        sender_mac: OUR_MAC,
        sender_ip: OUR_IP,
        target_mac: PEER_MAC,
        target_ip: PEER_IP,
    };
    assert_eq!(handle(&mut table, 0, &request).reply, Some(NeighPacket { mac: PEER_MAC, ..packet(reply) }));
    let elsewhere = [PortConfig { answers_arp: false, ..port() }, PortConfig { addresses: Vec::new(), ..port() }];
    for port in &elsewhere {
        assert_eq!(table.handle_packet(Time::ZERO, &packet(request), port), UNCHANGED);
    }
    let probe = arp(ArpOperation::Request, PEER_MAC, Ipv4Addr::UNSPECIFIED, OUR_IP);
    let answer = handle(&mut table, 0, &probe).reply;
    assert_eq!(answer.map(|reply| reply.mac), Some(PEER_MAC));
    assert_eq!(table.iter().count(), 1, "a probe's sender has no address to learn");
}

#[test]
fn claim_to_our_address_is_reported_and_ignored() {
    let (mut table, _) = reachable();
    let conflict = NeighOutcome { conflict: true, ..UNCHANGED };
    assert_eq!(handle(&mut table, 0, &arp(ArpOperation::Request, OTHER_MAC, OUR_IP, OUR_IP)), conflict);
    assert_eq!(handle(&mut table, 0, &arp(ArpOperation::Reply, OTHER_MAC, OUR_IP, PEER_IP)), conflict);
    let own = handle(&mut table, 0, &arp(ArpOperation::Request, OUR_MAC, OUR_IP, OUR_IP));
    assert_eq!(own, UNCHANGED, "our own packet is no conflict");
    assert_eq!(table.iter().count(), 1);
}

#[test]
fn impossible_hosts_are_not_learned() {
    let mut table = NeighTable::new(4);
    for (mac, ip) in [
        (MacAddr::BROADCAST, PEER_IP),
        (MacAddr::ZERO, PEER_IP),
        (PEER_MAC, Ipv4Addr::BROADCAST),
        (PEER_MAC, Ipv4Addr::new(224, 0, 0, 1)),
        (PEER_MAC, Ipv4Addr::UNSPECIFIED),
    ] {
        assert_eq!(table.learn(Time::ZERO, key(ip), mac), None);
        assert_eq!(table.iter().count(), 0, "{mac} {ip}");
    }
    let (mut table, index) = reachable();
    handle(&mut table, 0, &arp(ArpOperation::Reply, MacAddr::BROADCAST, PEER_IP, OUR_IP));
    assert_eq!(table.mac(index), Some(PEER_MAC));
}

#[test]
fn static_neighbour_is_neither_asked_for_nor_changed() {
    let (mut table, index) = incomplete();
    assert_eq!(table.insert_static(key(PEER_IP), PEER_MAC), Some(index));
    assert_eq!(table.learn(Time::ZERO, key(PEER_IP), OTHER_MAC), None);
    assert_eq!(table.mac(index), Some(PEER_MAC));
    assert_eq!(run(&mut table, 0, 1_000_000), []);
    table.release(index);
    assert_eq!(table.iter().count(), 1);
}

#[test]
fn unused_neighbours_go_when_they_expire_or_room_is_needed() {
    let (mut table, index) = reachable();
    table.release(index);
    assert_eq!(table.iter().count(), 1);
    assert_eq!(run(&mut table, 0, 100_000), [], "nobody needs it verified");
    assert_eq!(table.iter().count(), 0);

    let (mut table, index) = incomplete();
    run(&mut table, 0, 3_000);
    assert_eq!((table.state(index), table.next_deadline()), (NeighState::Failed, at_ms(8_000)));
    table.release(index);
    assert_eq!(run(&mut table, 3_000, 100_000), []);
    assert_eq!(table.iter().count(), 0);
}

#[test]
fn incomplete_acquired_again_and_again_asks_once_a_second() {
    let (mut table, mut index) = incomplete();
    for ms in 1..1_000 {
        table.release(index);
        index = table.acquire(key(PEER_IP)).unwrap();
        assert_eq!(requests(&mut table, ms), []);
    }
    assert_eq!(requests(&mut table, 1_000), [BROADCAST]);
}

#[test]
fn full_table_keeps_what_is_in_use() {
    let host = |n| IpAddr::V4(Ipv4Addr::new(10, 0, 1, n));
    let mut table = NeighTable::new(3);
    assert!(table.insert_static(key(host(0)), OTHER_MAC).is_some());
    let used = table.acquire(key(host(1))).unwrap();
    // Strangers that ask fill the room that is left, no more.
    table.learn(at_ms(1), key(host(2)), PEER_MAC);
    table.learn(at_ms(2), key(host(3)), PEER_MAC);
    assert_eq!(table.iter().map(|(ip, ..)| ip).collect::<Vec<_>>(), [host(0), host(1), host(2)]);
    // A neighbour that is needed takes a stranger's place.
    let needed = table.acquire(key(host(4))).unwrap();
    assert_ne!(used, needed);
    assert_eq!(table.acquire(key(host(5))), None);
    assert_eq!(table.insert_static(key(host(5)), PEER_MAC), None);
    table.release(needed);
    assert!(table.acquire(key(host(5))).is_some());
}

#[test]
#[should_panic(expected = "released once too often")]
fn release_without_use_is_our_own_fault() {
    let (mut table, index) = reachable();
    table.release(index);
    table.release(index);
}

#[derive(Clone, Debug)]
enum Step {
    Acquire(u8),
    Release(usize),
    Arp { is_request: bool, mac: u8, sender: u8, target: u8 },
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (2..8_u8).prop_map(Step::Acquire),
        1 => any::<usize>().prop_map(Step::Release),
        3 => (any::<bool>(), 0..5_u8, 0..8_u8, 0..8_u8)
            .prop_map(|(is_request, mac, sender, target)| Step::Arp { is_request, mac, sender, target }),
        2 => prop_oneof![0..2_000_u64, 0..40_000_u64].prop_map(Step::Pass),
    ]
}

fn host(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

/// What must hold whatever happens.
fn check(table: &NeighTable, held: &[(u32, IpAddr)]) {
    let ips: Vec<_> = table.iter().map(|(ip, ..)| ip).collect();
    assert!(ips.is_sorted_by(|a, b| a < b) && ips.len() <= 4, "{ips:?}");
    assert!(!ips.contains(&OUR_IP.into()));
    for (ip, mac, state) in table.iter() {
        assert_eq!(mac.is_some(), state.is_usable(), "{ip} {state:?}");
        assert!(mac.is_none_or(|mac| is_host(ip, mac)));
    }
    for &(index, ip) in held {
        let known = table.iter().find(|&(other, ..)| other == ip).expect("what is in use stays");
        assert_eq!((table.mac(index), table.state(index)), (known.1, known.2));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn table_holds_what_is_used_and_asks_once_a_second(steps in prop::collection::vec(step(), 1..150)) {
        let mut table = NeighTable::new(4);
        let mut held: Vec<(u32, IpAddr)> = Vec::new();
        let mut now_ms = 0;
        for step in steps {
            match step {
                Step::Acquire(n) => {
                    if let Some(index) = table.acquire(key(host(n))) {
                        held.push((index, host(n).into()));
                    } else {
                        let mut used: Vec<_> = held.iter().map(|&(_, ip)| ip).collect();
                        used.sort();
                        used.dedup();
                        prop_assert_eq!(used.len(), 4, "refused although there was room");
                    }
                }
                Step::Release(n) if !held.is_empty() => table.release(held.swap_remove(n % held.len()).0),
                Step::Release(_) => {}
                Step::Arp { is_request, mac, sender, target } => {
                    let operation = if is_request { ArpOperation::Request } else { ArpOperation::Reply };
                    let mac = MacAddr([2, 0, 0, 0, 0, mac]);
                    let before: Vec<_> = held.iter().map(|&(index, _)| table.mac(index)).collect();
                    let outcome = handle(&mut table, now_ms, &arp(operation, mac, host(sender), host(target)));
                    for (&(index, _), before) in held.iter().zip(before) {
                        prop_assert_eq!(table.mac(index) != before, outcome.changed == Some(index));
                    }
                }
                Step::Pass(ms) => {
                    let asked = run(&mut table, now_ms, now_ms + ms);
                    for &(at, request) in &asked {
                        let soon = asked.iter().filter(|&&(t, r)| r.target == request.target && (at..at + 1_000).contains(&t));
                        prop_assert_eq!(soon.count(), 1, "more than one request a second for {:?}", request.target);
                    }
                    now_ms += ms;
                }
            }
            check(&table, &held);
        }
    }
}
