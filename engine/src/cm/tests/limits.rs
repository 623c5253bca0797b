//! Limits, and connections by the thousand.

use super::*;

#[test]
fn a_full_backlog_refuses_until_one_is_answered() {
    let mut net = Net::new();
    net.hosts[1].accepts = false;
    net.hosts[1].listener(PortSpace::Tcp, 2);
    let ids: Vec<CmId> = (0..3)
        .map(|number| {
            let id = net.hosts[0].routed(ip(1), PortSpace::Tcp);
            let now = net.now;
            net.hosts[0].connect(now, id, param(0x70 + number));
            net.run(10 * DELAY_NS);
            id
        })
        .collect();
    let (last, event) = net.hosts[0].last();
    assert_eq!((*last, event.event, event.status), (ids[2], CmEventType::Rejected, 3));
    assert!(net.hosts[1].cm.poll_notice().unwrap().contains("2 requests wait"));
    let (now, request) = (net.now, net.request());
    net.hosts[1].cm.reject(now, request, wire::cm::RejReason::CONSUMER, b"busy").unwrap();
    net.hosts[0].connect(now, ids[2], param(0x72));
    net.run(10 * DELAY_NS);
    assert_eq!(net.hosts[1].names(), ["CONNECT_REQUEST"; 3]);
    let rejected = &net.hosts[0].events.iter().rfind(|(id, _)| *id == ids[1]).unwrap().1;
    assert_eq!((rejected.event, rejected.status), (CmEventType::Rejected, 28));
    assert_eq!(rejected.param.private_data[..5], *b"busy\0");
}

#[test]
fn ids_have_a_limit_that_requests_count_against() {
    let mut net = Net::with(CmConfig { max_id: 2, ..CmConfig::default() }, [1_500, 1_500]);
    net.hosts[1].listener(PortSpace::Tcp, 0);
    for (number, expected) in [(0, CmEventType::ConnectResponse), (1, CmEventType::Rejected)] {
        let id = net.hosts[0].routed(ip(1), PortSpace::Tcp);
        let now = net.now;
        net.hosts[0].connect(now, id, param(0x70 + number));
        net.run(10 * DELAY_NS);
        assert_eq!(net.hosts[0].last().1.event, expected);
    }
    let refused = net.hosts[0].cm.create_id(PortSpace::Tcp).unwrap_err();
    assert_eq!((refused.errno, refused.message.contains("max_cm_id")), (12, true));
}

#[test]
fn a_storm_of_connections_leaves_nothing() {
    const CONNECTIONS: u32 = 10_000;
    let mut net = Net::new();
    let listener = net.hosts[1].listener(PortSpace::Tcp, 0);
    let mut most = 0;
    for number in 0..CONNECTIONS {
        let id = net.hosts[0].routed(ip(1), PortSpace::Tcp);
        let now = net.now;
        net.hosts[0].connect(now, id, param(0x1000 + number));
        net.run(4 * DELAY_NS);
        let request = net.request();
        assert_eq!(net.hosts[0].cm.state(id), Some(CmState::Established), "connection {number}");
        let now = net.now;
        net.hosts[0].cm.destroy_id(now, id);
        net.hosts[1].cm.destroy_id(now, request);
        net.run(4 * DELAY_NS);
        for host in &mut net.hosts {
            host.events.clear();
        }
        net.log.clear();
        most = most.max(net.hosts[0].cm.id_count());
    }
    // Time wait is 537 ms, a connection takes 8 ms here.
    assert!(most <= 80, "{most} ids at a time");
    net.hosts[1].cm.destroy_id(net.now, listener);
    net.run(SECOND_NS);
    net.hosts.iter().for_each(|host| host.cm.assert_empty());
    assert_eq!(net.hosts[0].cm.counters().cm_retries, 0);
}

/// REQs without end, of ever other QPs, and never an RTU: what that costs is bounded, and ends.
#[test]
fn half_open_requests_end_by_themselves() {
    let mut net = Net::with(CmConfig { max_id: 500, ..CmConfig::default() }, [1_500, 1_500]);
    net.fate = Box::new(|from, _| if from == 1 { Fate::Lost } else { Fate::Arrives });
    let listener = net.hosts[1].listener(PortSpace::Tcp, 0);
    let before = net.hosts[0].routed(ip(1), PortSpace::Tcp);
    for number in 0..1_000 {
        let now = net.now;
        net.hosts[0].cm.destroy_id(now, before);
        let mut stranger = Host::new(0, CmConfig::default(), 1_500);
        stranger.seed = 1_000 + u64::from(number);
        let id = stranger.routed(ip(1), PortSpace::Tcp);
        stranger.connect(now, id, param(0x1000 + number));
        let mad = stranger.cm.poll_transmit().unwrap();
        let (_, incoming) = Net::incoming(0, &mad);
        let host = &mut net.hosts[1];
        host.cm.handle_mad(now, &mut Host::entropy(&mut host.seed), &incoming);
        host.run_application(now);
    }
    assert_eq!(net.hosts[1].cm.id_count(), 500);
    assert_eq!(net.hosts[1].cm.counters().rx_cm_refused, 501);
    net.run(300 * SECOND_NS);
    let events = std::mem::take(&mut net.hosts[1].events);
    let gone = events.iter().filter(|(_, event)| event.event == CmEventType::Unreachable);
    let now = net.now;
    for (id, _) in gone {
        net.hosts[1].cm.destroy_id(now, *id);
    }
    net.hosts[1].cm.destroy_id(now, listener);
    net.hosts[1].cm.assert_empty();
}

#[test]
fn mads_that_nobody_takes_are_dropped_not_kept() {
    let mut net = Net::new();
    let (id, _) = net.connect();
    net.run(SECOND_NS);
    let path = net.hosts[0].cm.ids[&id].path.unwrap();
    let cm = &mut net.hosts[0].cm;
    for _ in 0..5_000 {
        cm.send(&path, [0; 256]);
        cm.notice(String::new());
    }
    assert_eq!((cm.transmit.len(), cm.counters().tx_cm_lost), (TRANSMIT_QUEUE, 904));
    assert_eq!((cm.notices.len(), cm.counters().cm_notices_lost), (NOTICE_QUEUE, 4_936));
}
