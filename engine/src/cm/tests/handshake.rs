//! Connections made and ended without faults.

use shm::attr::{QpAttrMask, QpState};
use wire::PathMtu;

use super::*;

#[test]
fn connect_accept_disconnect() {
    let mut net = Net::new();
    let (id, listener) = net.connect();
    net.run(SECOND_NS);
    assert_eq!(net.sent(), ["REQ", "REP", "RTU"]);
    assert_eq!(net.hosts[0].names(), ["ADDR_RESOLVED", "ROUTE_RESOLVED", "CONNECT_RESPONSE"]);
    assert_eq!(net.hosts[1].names(), ["CONNECT_REQUEST", "ESTABLISHED"]);
    let request = &net.hosts[1].events[0].1;
    assert_eq!(request.listen_id, Some(listener.0));
    assert_eq!(request.param.private_data[..6], [7, 7, 7, 7, 7, 0]);
    assert_eq!(request.param.private_data.len(), 56);
    // What the peer answers is what this side may have outstanding, and the other way round.
    assert_eq!((request.param.responder_resources, request.param.initiator_depth), (3, 4));
    assert_eq!((request.param.qp_num, request.info.peer.unwrap().ip()), (0x77, ip(0)));
    assert_eq!(request.info.local, Some(SocketAddr::new(ip(1), PORT)));
    let passive = net.request();
    for (host, id) in [(0, id), (1, passive)] {
        assert_eq!(net.hosts[host].cm.state(id), Some(CmState::Established));
    }

    let now = net.now;
    net.hosts[1].cm.disconnect(now, passive).unwrap();
    net.run(DELAY_NS * 10);
    assert_eq!(net.sent()[3..], ["DREQ", "DREP"]);
    assert_eq!(net.hosts[0].last().1.event, CmEventType::Disconnected);
    assert_eq!(net.hosts[1].last().1.event, CmEventType::Disconnected);
    net.run(SECOND_NS);
    assert_eq!(net.hosts[0].last().1.event, CmEventType::TimewaitExit);

    // The same id connects again.
    assert_eq!(net.hosts[0].cm.state(id), Some(CmState::RouteResolved));
    let now = net.now;
    net.hosts[0].connect(now, id, param(0x77));
    net.run(SECOND_NS);
    assert_eq!(net.hosts[0].cm.state(id), Some(CmState::Established));

    let (now, second) = (net.now, net.request());
    net.hosts[0].cm.destroy_id(now, id);
    for id in [listener, passive, second] {
        net.hosts[1].cm.destroy_id(now, id);
    }
    net.run(60 * SECOND_NS);
    net.hosts.iter().for_each(|host| host.cm.assert_empty());
}

#[test]
fn both_sides_get_attributes_that_fit_each_other() {
    let mut net = Net::with(CmConfig::default(), [4_200, 9_000]);
    let (id, _) = net.connect();
    net.run(SECOND_NS);
    let passive = net.request();
    let attr = |host: usize, id, state| net.hosts[host].cm.init_qp_attr(id, state).unwrap();
    let (init, mask) = attr(0, id, QpState::Init);
    assert_eq!(mask, QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS);
    assert_eq!(init.port_num, 1);
    let ((rtr0, _), (rtr1, _)) = (attr(0, id, QpState::Rtr), attr(1, passive, QpState::Rtr));
    let ((rts0, _), (rts1, _)) = (attr(0, id, QpState::Rts), attr(1, passive, QpState::Rts));
    assert_eq!((rtr0.rq_psn, rtr1.rq_psn), (rts1.sq_psn, rts0.sq_psn));
    assert_eq!((rtr0.dest_qp_num, rtr1.dest_qp_num), (0x101, 0x77));
    assert_eq!((rtr0.max_dest_rd_atomic, rts1.max_rd_atomic), (3, 3));
    assert_eq!((rtr1.max_dest_rd_atomic, rts0.max_rd_atomic), (4, 3));
    assert_eq!((rtr0.path_mtu, rtr1.path_mtu), (PathMtu::M4096.code(), PathMtu::M4096.code()));
    assert_eq!((rts0.retry_cnt, rts0.rnr_retry, rts0.timeout), (7, 6, 17));
    assert_eq!((rts1.retry_cnt, rts1.rnr_retry, rts1.timeout), (7, 6, 17));
    assert_eq!((rtr0.ah_attr.dgid.ip(), rtr1.ah_attr.dgid.ip()), (ip(1), ip(0)));
    assert_eq!(rtr0.ah_attr.flow_label, rtr1.ah_attr.flow_label);
    assert_ne!(rtr0.ah_attr.flow_label, 0);
    let refused = net.hosts[0].cm.init_qp_attr(id, QpState::Sqd).unwrap_err();
    assert!(refused.message.contains("SQD"), "{refused:?}");
}

#[test]
fn ipv6_finds_its_own_addresses() {
    let mut net = Net::new();
    let listener = net.hosts[1].cm.create_id(PortSpace::Tcp).unwrap();
    net.hosts[1].cm.bind_addr(listener, "[::]:7174".parse().unwrap()).unwrap();
    net.hosts[1].cm.listen(listener, 0).unwrap();
    for to in [ip(1), "fd77::2".parse().unwrap()] {
        let id = net.hosts[0].routed(to, PortSpace::Tcp);
        let (now, qpn) = (net.now, 0x20 + id.0);
        net.hosts[0].connect(now, id, param(qpn));
        net.run(SECOND_NS);
        assert_eq!(net.hosts[0].cm.state(id), Some(CmState::Established), "{to}");
        let info = &net.hosts[1].last().1.info;
        assert_eq!(info.local.unwrap().ip(), to);
        assert_eq!(info.path.unwrap().sgid_index, u8::from(to.is_ipv6()));
    }
}

/// IBTA 12.10.4. Whichever of the two has the greater GUID, and QPN, stays active.
#[test]
fn two_that_ask_each_other_get_one_connection() {
    let mut net = Net::new();
    let ids: Vec<CmId> = (0..2)
        .map(|host| {
            let cm = &mut net.hosts[host].cm;
            let id = cm.create_id(PortSpace::Tcp).unwrap();
            cm.bind_addr(id, SocketAddr::new(ip(host), PORT)).unwrap();
            cm.resolve_addr(id, None, SocketAddr::new(ip(1 - host), PORT)).unwrap();
            cm.addr_resolved(id);
            cm.resolve_route(id).unwrap();
            id
        })
        .collect();
    for (host, id) in ids.iter().enumerate() {
        let now = net.now;
        net.hosts[host].connect(now, *id, param(0x50 + host as u32));
    }
    net.run(SECOND_NS);
    // Host 1 has the greater GUID: host 0 answers its REQ.
    assert_eq!(net.log, [(0, "REQ"), (1, "REQ"), (0, "REP"), (1, "RTU")]);
    for (host, id) in ids.iter().enumerate() {
        assert_eq!(net.hosts[host].cm.state(*id), Some(CmState::Established));
        assert_eq!(net.hosts[host].names(), ["ADDR_RESOLVED", "ROUTE_RESOLVED", "CONNECT_RESPONSE"]);
        assert_eq!(net.hosts[host].last().1.param.qp_num, 0x50 + (1 - host as u32));
    }
    let now = net.now;
    net.hosts[0].cm.disconnect(now, ids[0]).unwrap();
    net.run(SECOND_NS);
    for (host, id) in ids.iter().enumerate() {
        let now = net.now;
        net.hosts[host].cm.destroy_id(now, *id);
        net.hosts[host].cm.assert_empty();
    }
}

#[test]
fn disconnects_that_cross_end_both_sides_once() {
    let mut net = Net::new();
    let (id, _) = net.connect();
    net.run(SECOND_NS);
    let (now, passive) = (net.now, net.request());
    net.hosts[0].cm.disconnect(now, id).unwrap();
    net.hosts[1].cm.disconnect(now, passive).unwrap();
    net.run(60 * SECOND_NS);
    assert_eq!(net.sent()[3..], ["DREQ", "DREQ", "DREP", "DREP"]);
    for host in &net.hosts {
        assert_eq!(host.names().iter().filter(|&&name| name == "DISCONNECTED").count(), 1);
    }
}

#[test]
fn data_before_the_rtu_establishes() {
    let mut net = Net::new();
    net.fate = Box::new(|_, message| if matches!(message, CmMessage::Rtu(_)) { Fate::Lost } else { Fate::Arrives });
    net.connect();
    net.run(SECOND_NS);
    let passive = net.request();
    assert_eq!(net.hosts[1].cm.state(passive), Some(CmState::RepSent));
    let now = net.now;
    net.hosts[1].cm.comm_established(now, Qpn::new(0x101));
    net.run(60 * SECOND_NS);
    assert_eq!(net.hosts[1].last().1.event, CmEventType::Established);
    assert_eq!(net.sent(), ["REQ", "REP", "RTU"], "the REP is not sent again");
}

#[test]
fn load_alternate_path_is_answered_not_supported() {
    use wire::cm::{ApStatus, CmPath, CmTimeout, CommId, LapRepr};
    let mut net = Net::new();
    let (id, _) = net.connect();
    net.run(SECOND_NS);
    let link = net.hosts[0].cm.ids[&id].link.clone().unwrap();
    for (remote_comm_id, status) in
        [(link.remote_comm, ApStatus::NOT_SUPPORTED), (CommId(1), ApStatus::INVALID_COMM_ID)]
    {
        let lap = LapRepr {
            local_comm_id: link.local_comm,
            remote_comm_id,
            remote_qpn: link.remote_qpn,
            remote_timeout: CmTimeout::new(20),
            alternate: CmPath::NONE,
            private_data: [0; 168],
        };
        let path = net.hosts[0].cm.ids[&id].path.unwrap();
        let mad = OutgoingMad { ah: path.mad_ah(), bytes: CmMessage::Lap(lap).to_mad(TransactionId(9)) };
        let (to, incoming) = Net::incoming(0, &mad);
        let host = &mut net.hosts[to];
        host.cm.handle_mad(net.now, &mut Host::entropy(&mut host.seed), &incoming);
        let answer = host.cm.poll_transmit().unwrap();
        let (header, message) = CmMessage::parse(&answer.bytes).unwrap();
        let CmMessage::Apr(apr) = message else { panic!("{message}") };
        assert_eq!((header.transaction_id, apr.status), (TransactionId(9), status));
        assert_eq!((apr.local_comm_id, apr.remote_comm_id), (remote_comm_id, link.local_comm));
    }
}
