//! What an operator sees and sets.

use shm::attr::{AhAttr, GidType, WrOpcode};
use shm::control::{Reply, Request};
use shm::qos::{PfcBy, QosChange, QosSettings, Trust};

use engine::config::PortAddress;
use engine::control::Peer;

use crate::support::{Connect, HostOptions, Pair};
use crate::world::{DSCP_3, World, pause, with_pfc};

#[test]
fn packets_are_counted_by_priority_on_both_sides() {
    let mut world = World::new(QosSettings::default(), &[DSCP_3, 0, 63]);
    for flow in 0..3 {
        world.post(0, flow, WrOpcode::RdmaWrite, 1, 2_048);
    }
    world.exchange();
    let counters = world.state().counters;
    for (priority, counted) in counters.iter().enumerate() {
        let is_used = [0, 3, 7].contains(&priority);
        assert_eq!((counted.tx_packets, counted.rx_packets), if is_used { (2, 1) } else { (0, 0) }, "{priority}");
    }
    // Ethernet, IPv4, UDP, BTH, RETH in the first, payload, ICRC.
    assert_eq!(counters[3].tx_bytes, 2 * (14 + 20 + 8 + 12 + 1_024 + 4) + 16);
}

#[test]
fn a_change_takes_effect_at_once_for_what_waits_already() {
    let mut world = World::new(with_pfc(&[3]), &[DSCP_3, DSCP_3]);
    world.receive(&pause(3, 0xffff));
    world.post(0, 0, WrOpcode::RdmaWrite, 1, 1_000);
    world.post(0, 1, WrOpcode::RdmaWrite, 2, 1_000);
    assert_eq!(world.exchange(), []);
    let change = QosChange { dscp_to_priority: vec![(DSCP_3, 5)], ..QosChange::default() };
    let Reply::Qos(ports) = world.set(change) else { panic!() };
    assert_eq!(ports[0].settings.dscp_to_priority.priority(DSCP_3), 5);
    assert_eq!(world.exchange().len(), 2);
    assert_eq!(world.completed(0), [1, 2]);
    assert_eq!(world.state().counters[5].tx_packets, 2);
}

#[test]
fn flow_control_that_is_switched_off_ends_the_pause() {
    let mut world = World::new(with_pfc(&[3]), &[DSCP_3]);
    world.receive(&pause(3, 0xffff));
    world.post(0, 0, WrOpcode::RdmaWrite, 1, 1_000);
    assert_eq!(world.exchange(), []);
    world.set(QosChange { pfc: Some([false; 8]), ..QosChange::default() });
    assert_eq!(world.exchange(), [3]);
}

#[test]
fn with_trust_in_pcp_the_service_level_is_the_priority_and_untagged_frames_have_0() {
    let vlan = |n: u8| PortAddress { ip: [10, 0, 7, n].into(), vlan: Some(77), gid_type: GidType::RoceV2 };
    let settings = QosSettings { trust: Trust::Pcp, ..with_pfc(&[5]) };
    let options = |n: u8| HostOptions { addresses: vec![vlan(n)], ..HostOptions::new(n) };
    let pair = Pair::with(Connect::default(), HostOptions { qos: settings, ..options(1) }, options(2), 1 << 20);
    let mut world = World { pair, flows: Vec::new() };
    world.add(AhAttr { traffic_class: DSCP_3 << 2, sl: 5, ..AhAttr::default() });
    world.add(AhAttr { traffic_class: DSCP_3 << 2, ..AhAttr::default() });
    world.pair.exchange();
    world.receive(&pause(5, 0xffff));
    world.post(0, 0, WrOpcode::RdmaWrite, 1, 1_000);
    world.post(0, 1, WrOpcode::RdmaWrite, 2, 1_000);
    world.pair.exchange();
    assert_eq!(world.completed(0), [2]);
    let counters = world.state().counters;
    assert_eq!([0, 3, 5].map(|priority| counters[priority].tx_packets), [1, 0, 0]);
    let mut untagged = World::new(QosSettings { trust: Trust::Pcp, ..QosSettings::default() }, &[DSCP_3]);
    untagged.post(0, 0, WrOpcode::RdmaWrite, 1, 1_000);
    untagged.exchange();
    assert_eq!([0, 3].map(|priority| untagged.state().counters[priority].tx_packets), [1, 0]);
}

#[test]
fn who_is_not_the_operator_sees_but_does_not_set() {
    let mut world = World::new(with_pfc(&[3]), &[]);
    let host = &mut world.pair.hosts[0];
    let session = host.control.open_session(Peer { pid: 1, uid: 2 }).unwrap();
    let hello = Request::Hello { abi_version: shm::ABI_VERSION, client_name: "other".to_owned() };
    host.request(session, hello, vec![]);
    let Reply::Qos(ports) = host.request(session, Request::ShowQos { port_num: None }, vec![]).0 else { panic!() };
    assert_eq!((ports.len(), ports[0].port_num, ports[0].pfc_by), (1, 1, PfcBy::Engine));
    assert_eq!(ports[0].settings, with_pfc(&[3]));
    let change = Box::new(QosChange { pfc: Some([false; 8]), ..QosChange::default() });
    let reply = host.request(session, Request::SetQos { port_num: None, change }, vec![]).0;
    let message = "user 2 may not change settings: root and the daemon's user, 1, may".to_owned();
    assert_eq!(reply, Reply::Refused { errno: 1, message });
    assert_eq!(host.control.qos_settings(0), Some(&with_pfc(&[3])));
}

#[test]
fn a_change_that_is_not_legal_changes_nothing() {
    let mut world = World::new(QosSettings::default(), &[]);
    let change = QosChange { trust: Some(Trust::Pcp), dscp_to_priority: vec![(64, 1)], ..QosChange::default() };
    let Reply::Refused { errno: 22, message } = world.set(change) else { panic!() };
    assert_eq!(message, "DSCP 64 does not exist: 0 to 63 do");
    let reply = world.pair.ask_operator(Request::ShowQos { port_num: Some(2) });
    let Reply::Refused { errno: 22, message } = reply else { panic!() };
    assert_eq!(message, "port 2 does not exist: ports are 1 to 1");
    assert_eq!(world.pair.hosts[0].control.qos_settings(0), Some(&QosSettings::default()));
}

#[test]
fn the_counters_of_priorities_that_were_used_are_among_all_others() {
    let mut world = World::new(QosSettings::default(), &[DSCP_3]);
    world.post(0, 0, WrOpcode::RdmaWrite, 1, 1_000);
    world.exchange();
    let Reply::Stats(stats) = world.pair.ask_operator(Request::Stats) else { panic!() };
    let groups: Vec<&str> = stats.groups.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(groups, ["shard 0", "port 1", "port 1 priority 3", "cm"]);
}
