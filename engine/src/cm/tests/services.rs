//! Datagram services: SIDR.

use super::*;

fn ask(net: &mut Net) -> CmId {
    let id = net.hosts[0].routed(ip(1), PortSpace::Udp);
    let now = net.now;
    net.hosts[0].connect(now, id, ConnParam { private_data: vec![3; 180], ..ConnParam::default() });
    net.run(10 * DELAY_NS);
    id
}

#[test]
fn a_service_tells_its_qp() {
    let mut net = Net::new();
    let listener = net.hosts[1].listener(PortSpace::Udp, 0);
    let id = ask(&mut net);
    assert_eq!(net.sent(), ["SIDR_REQ", "SIDR_REP"]);
    let (_, request) = net.hosts[1].last();
    assert_eq!((request.event, request.listen_id), (CmEventType::ConnectRequest, Some(listener.0)));
    assert_eq!(request.param.private_data, vec![3; 180]);
    let (_, event) = net.hosts[0].last();
    assert_eq!(event.event, CmEventType::Established);
    assert_eq!((event.param.qp_num, event.param.qkey), (0x101, 0x0123_4567));
    assert_eq!(event.param.private_data[..6], [7, 7, 7, 7, 7, 0]);
    assert_eq!(event.ah.unwrap().dgid.ip(), ip(1));
    let (attr, mask) = net.hosts[0].cm.init_qp_attr(id, shm::attr::QpState::Init).unwrap();
    assert!(mask.contains(shm::attr::QpAttrMask::QKEY) && attr.qkey == 0x0123_4567);
    let (now, request) = (net.now, net.request());
    net.hosts[1].cm.destroy_id(now, request);
    net.hosts[1].cm.destroy_id(now, listener);
    net.hosts[0].cm.destroy_id(now, id);
    net.hosts[0].cm.assert_empty();
    net.run(20 * SECOND_NS);
    net.hosts[1].cm.assert_empty();
}

#[test]
fn a_lost_reply_is_sent_again_without_asking_the_application() {
    let mut net = Net::new();
    let mut lost = false;
    net.fate = Box::new(
        move |from, _| if from == 1 && !std::mem::replace(&mut lost, true) { Fate::Lost } else { Fate::Arrives },
    );
    net.hosts[1].listener(PortSpace::Udp, 0);
    ask(&mut net);
    net.run(6 * SECOND_NS);
    assert_eq!(net.sent(), ["SIDR_REQ", "SIDR_REP", "SIDR_REQ", "SIDR_REP"]);
    assert_eq!(net.hosts[1].names(), ["CONNECT_REQUEST"]);
    assert_eq!(net.hosts[0].last().1.event, CmEventType::Established);
}

#[test]
fn refusals_say_why() {
    let mut net = Net::new();
    ask(&mut net);
    let (_, event) = net.hosts[0].last();
    assert_eq!((event.event, event.status), (CmEventType::Unreachable, 1));
    assert_eq!(event.message, "nobody serves 10.0.0.2:7174 in the UDP port space");
    // The same port of another space is another service.
    net.hosts[1].listener(PortSpace::Tcp, 0);
    ask(&mut net);
    assert_eq!(net.hosts[0].last().1.status, 1);

    net.hosts[1].accepts = false;
    net.hosts[1].listener(PortSpace::Udp, 1);
    ask(&mut net);
    ask(&mut net);
    assert_eq!((net.hosts[0].last().1.event, net.hosts[0].last().1.status), (CmEventType::Unreachable, 3));
    let (now, request) = (net.now, net.request());
    net.hosts[1].cm.reject(now, request, wire::cm::RejReason::CONSUMER, b"no").unwrap();
    net.run(10 * DELAY_NS);
    let (_, event) = net.hosts[0].last();
    assert_eq!((event.event, event.status), (CmEventType::Unreachable, 2));
    assert_eq!(event.param.private_data[..3], *b"no\0");
}
