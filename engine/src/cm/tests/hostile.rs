//! Strangers who lie, and bytes that mean nothing.

use proptest::prelude::*;
use wire::cm::{AnsweredMessage, Ari, DreqRepr, RejReason};

use super::*;

fn send(host: &mut Host, now: Time, src: IpAddr, bytes: [u8; 256]) {
    let mad = IncomingMad {
        port: 0,
        sgid_index: u8::from(src.is_ipv6()),
        src_gid: Gid::from_ip(src),
        src_qpn: Qpn::GSI,
        traffic_class: 0,
        sl: 0,
        bytes,
    };
    host.cm.handle_mad(now, &mut Host::entropy(&mut host.seed), &mad);
    host.run_application(now);
}

#[test]
fn nobody_else_ends_a_connection() {
    let mut net = Net::new();
    let (id, _) = net.connect();
    net.run(SECOND_NS);
    let passive = net.request();
    let link = net.hosts[0].cm.ids[&id].link.clone().unwrap();
    let dreq = |remote_qpn, local_comm_id| {
        CmMessage::Dreq(DreqRepr {
            local_comm_id,
            remote_comm_id: link.remote_comm,
            remote_qpn,
            private_data: [0; DreqRepr::PRIVATE_BYTES],
        })
    };
    let rej = mads::rej(&link, AnsweredMessage::Other, RejReason::TIMEOUT, Ari::NONE, &[]);
    let (now, third) = (net.now, "10.0.0.3".parse().unwrap());
    for (src, message) in [
        (third, dreq(link.remote_qpn, link.local_comm)),
        (ip(0), dreq(Qpn::new(0x55), link.local_comm)),
        (ip(0), dreq(link.remote_qpn, CommId(1))),
        (third, rej),
    ] {
        send(&mut net.hosts[1], now, src, message.to_mad(TransactionId(1)));
        assert_eq!(net.hosts[1].cm.state(passive), Some(CmState::Established), "{message}");
        assert_eq!(net.hosts[1].cm.poll_transmit(), None);
    }
    assert_eq!(net.hosts[1].cm.counters().rx_cm_foreign, 4);
}

/// Naming a QP is not owning it: a REQ with another's GUID and QPN is refused, and the connection stays.
#[test]
fn a_forged_request_does_not_end_the_connection_of_the_qp_that_it_names() {
    let mut net = Net::new();
    net.connect();
    net.run(SECOND_NS);
    let passive = net.request();
    let third: IpAddr = "10.0.0.3".parse().unwrap();
    let config = PortConfig { addresses: vec![third.into()], ..port_config(0, 1_500) };
    let mut forger = Host::new(0, CmConfig::default(), 1_500);
    forger.seed = 99;
    forger.cm.set_ports(&[config]);
    let id = forger.routed(ip(1), PortSpace::Tcp);
    forger.connect(net.now, id, param(0x77));
    let mad = forger.cm.poll_transmit().unwrap();
    let now = net.now;
    send(&mut net.hosts[1], now, third, mad.bytes);
    assert_eq!(net.hosts[1].cm.state(passive), Some(CmState::Established));
    let answer = net.hosts[1].cm.poll_transmit().unwrap();
    let (_, CmMessage::Rej(rej)) = CmMessage::parse(&answer.bytes).unwrap() else { panic!("no REJ") };
    assert_eq!((rej.reason, answer.ah.dgid.ip()), (RejReason::STALE_CONNECTION, third));
}

#[test]
fn times_of_a_peer_do_not_keep_memory_for_hours() {
    let mut net = Net::new();
    net.hosts[0].cm.config.response_timeout = 31;
    let (_, listener) = net.connect();
    net.fate = Box::new(
        |from, message| if from == 0 && !matches!(message, CmMessage::Req(_)) { Fate::Lost } else { Fate::Arrives },
    );
    net.run(SECOND_NS);
    let request = net.request();
    assert_eq!(net.hosts[1].cm.state(request), Some(CmState::RepSent));
    // 16 times 8.6 s.
    net.run(140 * SECOND_NS);
    assert_eq!(net.hosts[1].last().1.event, CmEventType::Unreachable);
    net.hosts[1].cm.destroy_id(net.now, listener);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Messages of every kind with ids of connections that exist, from the right address and others, at any time.
    #[test]
    fn hostile_messages_break_nothing(
        steps in prop::collection::vec((0x0f..0x1c_u16, any::<u64>(), 0..4_u8, 0..3_u8, 0..5_000_u64), 1..60),
        accepts in any::<bool>(),
    ) {
        let mut net = Net::new();
        net.hosts[1].accepts = accepts;
        let (id, listener) = net.connect();
        net.run(2 * DELAY_NS);
        for (attribute, noise, src, which, wait_ms) in steps {
            let mut bytes = [0; 256];
            let mut state = noise;
            let mut entropy = Host::entropy(&mut state);
            for chunk in bytes.chunks_mut(8) {
                // Much is zero in real messages.
                let word = entropy();
                let word = if word & 3 == 0 { word } else { 0 };
                chunk.copy_from_slice(&word.to_be_bytes()[..chunk.len()]);
            }
            let header = wire::cm::MadHeader::cm(wire::cm::AttributeId(attribute), TransactionId(noise));
            bytes[..24].copy_from_slice(&header.to_bytes());
            let comms: Vec<u32> = net.hosts[1].cm.by_comm.keys().map(|comm| comm.0).collect();
            let remote: Vec<u32> = net.hosts[0].cm.by_comm.keys().map(|comm| comm.0).collect();
            if let (Some(ours), Some(theirs)) = (comms.first(), remote.first()) {
                let (first, second) = if which == 0 { (ours, theirs) } else { (theirs, ours) };
                bytes[24..28].copy_from_slice(&first.to_be_bytes());
                bytes[28..32].copy_from_slice(&second.to_be_bytes());
            }
            let src = if src == 3 { "fd77::1".parse().unwrap() } else { IpAddr::from([10, 0, 0, 1 + src]) };
            let now = net.now;
            send(&mut net.hosts[1], now, src, bytes);
            net.run(wait_ms * 1_000_000);
        }
        let now = net.now;
        for (host, ids) in [(0, vec![id]), (1, net.hosts[1].cm.ids.keys().copied().collect())] {
            for id in ids {
                net.hosts[host].cm.destroy_id(now, id);
            }
        }
        let _ = listener;
        net.run(600 * SECOND_NS);
        net.hosts.iter().for_each(|host| host.cm.assert_empty());
    }
}
