//! Management datagrams of a peer that keeps to no rule, at a connection manager that listens, connects and is connected: nothing
//! may panic, and everything ends once the owner has no more use for it.
//!
//! Input: records of a kind byte and, for a MAD, 256 bytes. A MAD whose first byte is 0xff gets the communication ids that are
//! really in use put in their places, so that it is about a connection that exists.
#![no_main]

use std::net::{IpAddr, SocketAddr};

use engine::Time;
use engine::cm::{Cm, CmConfig, CmId};
use engine::config::PortConfig;
use engine::gsi::{IncomingMad, MAD_BYTES};
use libfuzzer_sys::fuzz_target;
use shm::control::cm::{CmEventType, ConnParam};
use wire::cm::{CaGuid, CmMessage, PortSpace};
use wire::{Gid, MacAddr, Qpn};

const US: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
const PORT: u16 = 7_174;
const STEP_NS: u64 = 500_000_000;

fn port() -> PortConfig {
    PortConfig {
        active: true,
        mac: MacAddr([2, 0, 0, 0, 0, 1]),
        addresses: vec![US.into()],
        interface_mtu: 4_200,
        answers_arp: true,
        speed_mbps: 0,
        driver: String::new(),
        kernel_interface: None,
    }
}

fn param(qp_num: u32) -> ConnParam {
    ConnParam { qp_num, responder_resources: 0xff, initiator_depth: 0xff, ..ConnParam::default() }
}

/// An application that accepts every second time.
fn run_application(cm: &mut Cm, now: Time, ids: &mut Vec<CmId>, comms: &mut [[u8; 4]; 2]) {
    while let Some((id, event)) = cm.poll_event() {
        match event.event {
            CmEventType::ConnectRequest => {
                ids.push(id);
                if id.0 % 2 == 0 {
                    let _ = cm.accept(now, id, &param(0x100 + id.0));
                }
            }
            CmEventType::ConnectResponse => {
                let _ = cm.accept(now, id, &ConnParam::default());
            }
            _ => {}
        }
    }
    while let Some(mad) = cm.poll_transmit() {
        let (_, message) = CmMessage::parse(&mad.bytes).expect("what we send is well-formed");
        comms[0] = message.local_comm_id().0.to_be_bytes();
        comms[1] = message.remote_comm_id().map_or(comms[1], |comm| comm.0.to_be_bytes());
    }
    while cm.poll_notice().is_some() {}
}

fuzz_target!(|data: &[u8]| {
    let mut cm = Cm::new(CmConfig { max_id: 32, ..CmConfig::default() }, CaGuid(1), &[port()]);
    let mut now = Time::ZERO;
    let mut seed = 1_u64;
    let mut entropy = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed
    };
    let mut ids = Vec::new();
    for space in [PortSpace::Tcp, PortSpace::Udp] {
        let id = cm.create_id(space).unwrap();
        cm.bind_addr(id, SocketAddr::new(US, PORT)).unwrap();
        cm.listen(id, 0).unwrap();
        ids.push(id);
        let id = cm.create_id(space).unwrap();
        cm.resolve_addr(id, None, SocketAddr::new(PEER, PORT)).unwrap();
        cm.addr_resolved(id);
        cm.resolve_route(id).unwrap();
        cm.connect(now, &mut entropy, id, param(7)).unwrap();
        ids.push(id);
    }
    let mut comms = [[0; 4]; 2];
    run_application(&mut cm, now, &mut ids, &mut comms);

    let mut rest = data;
    while let Some((&kind, after)) = rest.split_first() {
        now = now.add_ns(u64::from(kind >> 2) * STEP_NS / 64);
        let Some((bytes, after)) = after.split_first_chunk::<MAD_BYTES>().filter(|_| kind & 3 != 3) else {
            cm.handle_timers(now);
            run_application(&mut cm, now, &mut ids, &mut comms);
            rest = after;
            continue;
        };
        let mut bytes = *bytes;
        if bytes[0] == 0xff {
            bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
            bytes[24..28].copy_from_slice(&comms[1]);
            bytes[28..32].copy_from_slice(&comms[0]);
        }
        let src_gid = Gid::from_ip(if kind & 3 == 2 { US } else { PEER });
        let (sgid_index, src_qpn) = (0, Qpn::GSI);
        let mad = IncomingMad { port: 0, sgid_index, src_gid, src_qpn, traffic_class: 0, sl: 0, bytes };
        cm.handle_mad(now, &mut entropy, &mad);
        cm.handle_timers(now);
        run_application(&mut cm, now, &mut ids, &mut comms);
        rest = after;
    }

    for id in ids {
        cm.destroy_id(now, id);
    }
    while cm.next_deadline() != Time::NEVER {
        now = cm.next_deadline();
        cm.handle_timers(now);
        run_application(&mut cm, now, &mut Vec::new(), &mut comms);
    }
    assert_eq!(cm.id_count(), 0, "an id is left");
});
