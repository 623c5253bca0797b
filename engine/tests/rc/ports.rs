//! A port that changes while it is in use: what connections keep, what new ones get, and what clients are told.

use engine::config::{PortAddress, PortConfig};
use shm::attr::{QpAttr, QpState, WrOpcode};
use shm::control::{AsyncEvent, Reply, Request};
use wire::{EthernetRepr, MacAddr};

use crate::peer::done;
use crate::support::{CAP, Connect, Pair, STEPS, attributes, modify};

/// Changes the port of a side; returns what its clients are to be told.
fn change(pair: &mut Pair, side: usize, change: impl FnOnce(&mut PortConfig)) -> Vec<AsyncEvent> {
    let host = &mut pair.hosts[side];
    let mut port = host.control.ports()[0].clone();
    change(&mut port);
    host.control.port_changed(&mut host.shards, 0, port)
}

fn ip(text: &str) -> PortAddress {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

fn write_arrives(pair: &mut Pair, wr_id: u64) {
    pair.post(pair.wqe(wr_id, WrOpcode::RdmaWrite), 8);
    pair.exchange();
    assert_eq!(pair.failures(0), [done(wr_id)]);
}

#[test]
fn clients_are_told_of_what_concerns_them() {
    let mut pair = Pair::new(Connect::default());
    assert_eq!(change(&mut pair, 0, |_| {}), []);
    assert_eq!(change(&mut pair, 0, |port| port.interface_mtu = 1_500), []);
    assert_eq!(change(&mut pair, 0, |port| port.active = false), [AsyncEvent::PortErr { port_num: 1 }]);
    let told = change(&mut pair, 0, |port| {
        port.active = true;
        port.follow_addresses(&[]);
    });
    assert_eq!(told, [AsyncEvent::PortActive { port_num: 1 }, AsyncEvent::GidChange { port_num: 1 }]);
    let Reply::Port(port) = pair.ask(0, Request::QueryPort { port_num: 1 }) else { panic!("a port") };
    assert_eq!((port.active, port.active_mtu, port.gid_tbl_len), (true, 3, 0));
    assert_eq!(pair.ask(0, Request::QueryGids { port_num: 1 }), Reply::Gids(Vec::new()));
}

#[test]
fn a_connection_outlives_its_source_address_and_a_new_one_does_not_get_it() {
    let mut pair = Pair::new(Connect::default());
    let told = change(&mut pair, 0, |port| port.follow_addresses(&[ip("fd00::1")]));
    assert_eq!(told, [AsyncEvent::GidChange { port_num: 1 }]);
    write_arrives(&mut pair, 1);

    let reconnect = |pair: &mut Pair, port: &[&str]| {
        let addresses: Vec<_> = port.iter().map(|text| ip(text)).collect();
        change(pair, 0, |port| port.follow_addresses(&addresses));
        let qp = pair.clients[0].qp(&mut pair.hosts[0], CAP);
        let attr = attributes([10, 0, 0, 2].into(), pair.qps[1].qpn, Connect::default(), 0);
        let (session, mut outcome) = (pair.clients[0].session, Ok(QpState::Reset));
        for (qp_state, mask) in STEPS {
            outcome =
                outcome.and_then(|_| modify(&mut pair.hosts[0], session, qp.qpn, QpAttr { qp_state, ..attr }, mask));
        }
        outcome
    };
    let refused = reconnect(&mut pair, &["fd00::1"]).unwrap_err();
    assert_eq!(refused, "ah_attr.grh.sgid_index is 0, and the port has no such GID");
    assert_eq!(reconnect(&mut pair, &["fd00::1", "10.0.0.1"]), Ok(QpState::Rts));
}

#[test]
fn a_new_mac_address_is_in_the_next_frame() {
    let mut pair = Pair::new(Connect::default());
    write_arrives(&mut pair, 1);
    let mac = MacAddr([2, 0, 0, 0, 9, 9]);
    assert_eq!(change(&mut pair, 0, |port| port.mac = mac), []);
    pair.post(pair.wqe(2, WrOpcode::RdmaWrite), 8);
    let now = pair.now;
    let frames = pair.hosts[0].turn(now);
    let sources: Vec<MacAddr> = frames
        .iter()
        .map(|frame| EthernetRepr::from_bytes(frame.first_chunk::<{ EthernetRepr::LEN }>().unwrap()).src)
        .collect();
    assert_eq!(sources, [mac]);
}
