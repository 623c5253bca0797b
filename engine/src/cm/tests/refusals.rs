//! What can't be had: refused with the right reason, and in words that name both values.

use std::fmt::Write as _;

use wire::cm::{CmTransport, RejRepr, ReqRepr};
use wire::{PathMtu, Pkey};

use super::*;

/// Changes a REQ; an address of nobody's is at hand.
type Change = fn(&mut ReqRepr, IpAddr);

/// A REQ of host 0 to host 1, changed; what host 1 answers, and says.
fn answer_to(change: impl FnOnce(&mut ReqRepr, &mut [u8; 256])) -> (Option<RejRepr>, Option<String>) {
    let mut net = Net::new();
    net.hosts[1].listener(PortSpace::Tcp, 0);
    let id = net.hosts[0].routed(ip(1), PortSpace::Tcp);
    net.hosts[0].connect(Time::ZERO, id, param(0x77));
    let mut mad = net.hosts[0].cm.poll_transmit().unwrap();
    let (header, message) = CmMessage::parse(&mad.bytes).unwrap();
    let CmMessage::Req(mut req) = message else { panic!("{message}") };
    let mut header_bytes = [0; 256];
    change(&mut req, &mut header_bytes);
    mad.bytes = CmMessage::Req(req).to_mad(header.transaction_id);
    for (to, from) in mad.bytes.iter_mut().zip(header_bytes) {
        *to ^= from;
    }
    let (_, incoming) = Net::incoming(0, &mad);
    let host = &mut net.hosts[1];
    host.cm.handle_mad(Time::ZERO, &mut Host::entropy(&mut host.seed), &incoming);
    let rej = host.cm.poll_transmit().map(|mad| CmMessage::parse(&mad.bytes).unwrap());
    let rej = rej.map(|(answer, message)| {
        assert_eq!(answer.transaction_id, header.transaction_id);
        let CmMessage::Rej(rej) = message else { panic!("{message}") };
        assert_eq!((rej.local_comm_id, rej.remote_comm_id), (CommId(0), req.local_comm_id));
        rej
    });
    (rej, host.cm.poll_notice())
}

#[test]
fn requests_are_refused_with_reason_and_both_values() {
    let other: IpAddr = "10.0.0.9".parse().unwrap();
    let cases: [(&str, Change); 15] = [
        ("port without listener", |req, _| req.service_id = wire::cm::ServiceId(0x0106_0001)),
        ("UDP port space", |req, _| req.service_id = wire::cm::ServiceId(0x0111_1c06)),
        ("no port", |req, _| req.service_id = wire::cm::ServiceId(0x1000_0000_0000_0001)),
        ("MTU", |req, _| req.mtu_code = PathMtu::M4096.code()),
        ("MTU code", |req, _| req.mtu_code = 9),
        ("UC", |req, _| req.transport = CmTransport::Uc),
        ("XRC", |req, _| req.transport = CmTransport::Xrc),
        ("P_Key", |req, _| req.pkey = Pkey(0x8123)),
        ("GSI", |req, _| req.qpn = Qpn::GSI),
        ("our GID", |req, other| req.primary.remote_gid = Gid::from_ip(other)),
        ("their GID", |req, other| req.primary.local_gid = Gid::from_ip(other)),
        ("our address", |req, _| req.private_data[35] = 9),
        ("their address", |req, _| req.private_data[19] = 9),
        ("header version", |req, _| req.private_data[0] = 0x20),
        ("IP version", |req, _| req.private_data[1] = 0x50),
    ];
    let mut table = String::new();
    for (name, change) in cases {
        let (rej, notice) = answer_to(|req, _| change(req, other));
        let rej = rej.unwrap();
        writeln!(table, "{name}: {:?} ARI {:02x?}\n    {}", rej.reason.0, rej.ari.value(), notice.unwrap()).unwrap();
    }
    insta::assert_snapshot!(table);
    assert!(answer_to(|_, _| {}).0.is_none(), "unchanged it is taken");
}

#[test]
fn another_version_is_refused_with_ours() {
    let (rej, notice) = answer_to(|_, header| header[2] = 2 ^ 3);
    let rej = rej.unwrap();
    assert_eq!((rej.reason.0, rej.ari.value()), (31, &[2][..]));
    assert_eq!(notice.unwrap(), "refused a request of 10.0.0.1 in version 3 of connection management: this is 2");
    // Another management class is not for us to answer.
    assert_eq!(answer_to(|_, header| header[1] = 7 ^ 3).0, None);
}

#[test]
fn the_one_who_asked_is_told_both_values() {
    for (mtus, port, expected) in [
        ([9_000, 1_500], PORT, "10.0.0.2:7174 refused a path MTU of 4096 bytes: it takes 1024 at most"),
        ([1_500, 1_500], 9, "nobody listens at 10.0.0.2:9 in the TCP port space"),
    ] {
        let mut net = Net::with(CmConfig::default(), mtus);
        net.hosts[1].listener(PortSpace::Tcp, 0);
        let cm = &mut net.hosts[0].cm;
        let id = cm.create_id(PortSpace::Tcp).unwrap();
        cm.resolve_addr(id, None, SocketAddr::new(ip(1), port)).unwrap();
        cm.addr_resolved(id);
        cm.resolve_route(id).unwrap();
        net.hosts[0].connect(Time::ZERO, id, param(0x77));
        net.run(SECOND_NS);
        let (_, event) = net.hosts[0].last();
        assert_eq!((event.event, event.message.as_str()), (CmEventType::Rejected, expected));
        // The id may try again.
        assert_eq!(net.hosts[0].cm.state(id), Some(CmState::RouteResolved));
    }
}

#[test]
fn an_acceptance_that_asks_for_too_much_is_refused() {
    let mut net = Net::new();
    net.hosts[1].cm.config.max_rd_atomic = 128;
    net.hosts[1].accepts = false;
    let listener = net.hosts[1].listener(PortSpace::Tcp, 0);
    let id = net.hosts[0].routed(ip(1), PortSpace::Tcp);
    net.hosts[0].connect(Time::ZERO, id, ConnParam { responder_resources: 16, ..param(0x77) });
    net.run(10 * DELAY_NS);
    let (now, request) = (net.now, net.request());
    let cm = &mut net.hosts[1].cm;
    let refused = cm.accept(now, request, &ConnParam { initiator_depth: 17, ..param(0x99) }).unwrap_err();
    assert_eq!(refused.message, "initiator_depth 17: the peer answers 16 READs and atomics at a time");
    // A peer that does not keep to it.
    cm.ids.get_mut(&request).unwrap().link.as_mut().unwrap().initiator_depth = 60;
    cm.accept(now, request, &ConnParam { initiator_depth: 60, ..param(0x99) }).unwrap();
    net.run(SECOND_NS);
    let (_, event) = net.hosts[0].last();
    assert_eq!(event.event, CmEventType::ConnectError);
    assert_eq!(event.message, "the peer wants 60 READs and atomics at a time, this device answers 16");
    let (_, event) = net.hosts[1].last();
    assert_eq!((event.event, event.status), (CmEventType::Rejected, 27));
    assert!(event.message.ends_with("refused responder resources 4, initiator depth 60"), "{}", event.message);
    net.hosts[1].cm.destroy_id(net.now, listener);
}

#[test]
fn calls_are_refused_with_errno_and_values() {
    let mut net = Net::new();
    let mut lines = String::new();
    let mut say =
        |what: &str, refusal: CmRefusal| writeln!(lines, "{what}: {} {}", refusal.errno, refusal.message).unwrap();
    let now = Time::ZERO;
    let mut entropy = || 0x1234_5678_9abc_def0;
    let cm = &mut net.hosts[0].cm;
    let id = cm.create_id(PortSpace::Tcp).unwrap();
    say("connect without route", cm.connect(now, &mut entropy, id, param(1)).unwrap_err());
    say("resolve_route", cm.resolve_route(id).unwrap_err());
    say("accept", cm.accept(now, id, &param(1)).unwrap_err());
    say("reject", cm.reject(now, id, wire::cm::RejReason::CONSUMER, &[]).unwrap_err());
    say("disconnect", cm.disconnect(now, id).unwrap_err());
    say("attributes", cm.init_qp_attr(id, shm::attr::QpState::Rtr).unwrap_err());
    say("foreign address", cm.bind_addr(id, "10.9.9.9:1".parse().unwrap()).unwrap_err());
    cm.bind_addr(id, "10.0.0.1:99".parse().unwrap()).unwrap();
    say("bound twice", cm.bind_addr(id, "10.0.0.1:98".parse().unwrap()).unwrap_err());
    let other = cm.create_id(PortSpace::Tcp).unwrap();
    say("port in use", cm.bind_addr(other, "0.0.0.0:99".parse().unwrap()).unwrap_err());
    cm.resolve_addr(id, None, SocketAddr::new(ip(1), 0)).unwrap();
    cm.addr_resolved(id);
    cm.resolve_route(id).unwrap();
    say("port 0", cm.connect(now, &mut entropy, id, param(1)).unwrap_err());
    cm.resolve_addr(id, None, SocketAddr::new(ip(1), 5)).unwrap();
    cm.addr_resolved(id);
    cm.resolve_route(id).unwrap();
    for (what, param) in [
        ("private data", ConnParam { private_data: vec![0; 57], ..param(1) }),
        ("QP 0", param(0)),
        ("QP beyond", param(1 << 24)),
        ("retries", ConnParam { retry_count: 8, ..param(1) }),
        ("RNR retries", ConnParam { rnr_retry_count: 9, ..param(1) }),
        ("resources", ConnParam { responder_resources: 17, ..param(1) }),
        ("depth", ConnParam { initiator_depth: 254, ..param(1) }),
    ] {
        say(what, cm.connect(now, &mut entropy, id, param).unwrap_err());
    }
    cm.connect(now, &mut entropy, id, ConnParam { responder_resources: 0xff, ..param(1) }).unwrap();
    cm.resolve_addr(other, None, SocketAddr::new(ip(1), 5)).unwrap();
    cm.addr_resolved(other);
    cm.resolve_route(other).unwrap();
    say("QP in use", cm.connect(now, &mut || 7 << 32, other, param(1)).unwrap_err());
    say("listen while connecting", cm.listen(id, 0).unwrap_err());
    cm.destroy_id(now, other);
    say("gone", cm.listen(other, 0).unwrap_err());
    insta::assert_snapshot!(lines);
    // An address that no route leads from is an event, as in librdmacm.
    let last = cm.create_id(PortSpace::Tcp).unwrap();
    cm.resolve_addr(last, Some("10.0.0.1:0".parse().unwrap()), "[fd00::9]:1".parse().unwrap()).unwrap();
    cm.addr_resolved(last);
    net.run(0);
    let (_, event) = net.hosts[0].last();
    assert_eq!((event.event, event.status), (CmEventType::AddrError, -101));
}
