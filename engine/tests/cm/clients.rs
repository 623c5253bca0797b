//! What clients see.

use shm::attr::{QpState, RecoveryPolicy, WcStatus, WrOpcode};
use shm::control::cm::{CmEventType, CmReply, CmRequest, ConnParam, PortSpace};
use shm::control::{Reply, Request};
use shm::layout::SendWqe;

use crate::support::HostOptions;
use crate::world::{PORT, SECOND_NS, World};

/// Sends 100 bytes from side 0.
fn send(world: &mut World) -> Vec<(u64, WcStatus)> {
    let receive = [world.pair.clients[1].sge(0, 4_096)];
    world.pair.qps[1].post_recv(5, &receive);
    let wqe = SendWqe { opcode: WrOpcode::Send as u8, flags: 2, wr_id: 9, ..SendWqe::default() };
    let sge = [world.pair.clients[0].sge(0, 100)];
    world.pair.qps[0].post(wqe, &sge);
    world.pair.exchange();
    world.pair.completions(0)
}

#[test]
fn data_crosses_a_connection_that_ids_have_made() {
    let mut world = World::new();
    let (active, passive, _) = world.connect();
    assert_eq!(send(&mut world), [(9, WcStatus::Success)]);
    assert_eq!(world.pair.completions(1), [(5, WcStatus::Success)]);

    world.done(0, CmRequest::Disconnect { id: active });
    world.pair.exchange();
    for (side, id) in [(0, active), (1, passive)] {
        assert_eq!(world.expect(side, CmEventType::Disconnected).id, id);
        world.done(side, CmRequest::Disconnect { id });
    }
    world.pair.advance(2 * SECOND_NS);
    for side in 0..2 {
        world.expect(side, CmEventType::TimewaitExit);
        assert!(world.event(side).is_none());
    }

    // A QP that was reset connects again by the same calls, on the same id.
    let reset = shm::attr::QpAttr { qp_state: QpState::Reset, ..Default::default() };
    for side in 0..2 {
        let (qpn, session) = (world.pair.qps[side].qpn, world.pair.clients[side].session);
        crate::support::modify(&mut world.pair.hosts[side], session, qpn, reset, shm::attr::QpAttrMask::STATE).unwrap();
    }
    world.ready(0, active, &[QpState::Init]);
    let param = world.param(0);
    world.done(0, CmRequest::Connect { id: active, param });
    world.pair.exchange();
    let again = world.expect(1, CmEventType::ConnectRequest).id;
    assert_ne!(again, passive);
}

#[test]
fn selective_repeat_is_done_where_both_sides_offer_it() {
    use RecoveryPolicy::{GoBackN, Hybrid, SelectiveRepeat};
    for (policies, unasked, agreed) in [
        ([Hybrid, Hybrid], GoBackN, [Hybrid, Hybrid]),
        ([SelectiveRepeat, Hybrid], GoBackN, [SelectiveRepeat, Hybrid]),
        ([GoBackN, Hybrid], GoBackN, [GoBackN, GoBackN]),
        ([Hybrid, GoBackN], GoBackN, [GoBackN, GoBackN]),
        // Whatever a QP would do without being asked: this peer was asked.
        ([GoBackN, Hybrid], SelectiveRepeat, [GoBackN, GoBackN]),
        ([Hybrid, GoBackN], Hybrid, [GoBackN, GoBackN]),
    ] {
        let [a, b] = [1, 2].map(|n| {
            let mut options = HostOptions::new(n);
            options.recovery.policy = policies[usize::from(n) - 1];
            options.recovery.unasked = unasked;
            options
        });
        let mut world = World::with(a, b);
        world.connect();
        let found = [0, 1].map(|side| {
            let (qpn, session) = (world.pair.qps[side].qpn, world.pair.clients[side].session);
            let reply = world.pair.hosts[side].request(session, Request::QpDetail { qpn }, vec![]).0;
            let Reply::QpDetail(detail) = reply else { panic!("{reply:?}") };
            detail.recovery
        });
        assert_eq!(found, agreed, "{policies:?}");
        assert_eq!(send(&mut world), [(9, WcStatus::Success)]);
    }
}

#[test]
fn a_post_mortem_has_what_was_agreed_on_with_the_peer() {
    let mut world = World::new();
    world.connect();
    // A key that nobody has breaks both QPs.
    let wqe = SendWqe { opcode: WrOpcode::RdmaRead as u8, rkey: 0x77, wr_id: 9, ..SendWqe::default() };
    let sge = [world.pair.clients[0].sge(0, 8)];
    world.pair.qps[0].post(wqe, &sge);
    world.pair.exchange();
    assert_eq!(world.pair.completions(0), [(9, WcStatus::RemAccessErr)]);
    let found = [0, 1].map(|side| {
        let (qpn, session) = (world.pair.qps[side].qpn, world.pair.clients[side].session);
        let reply = world.pair.hosts[side].request(session, Request::WhyQp { qpn }, vec![]).0;
        let Reply::PostMortem(found) = reply else { panic!("{reply:?}") };
        (found.peer.expect("the connection manager knows the peer"), found.attr)
    });
    for (side, (peer, ours)) in found.iter().enumerate() {
        let theirs = &found[1 - side].1;
        assert_eq!(peer.qpn, world.pair.qps[1 - side].qpn);
        assert_eq!((peer.starting_psn, peer.path_mtu), (theirs.sq_psn, theirs.path_mtu));
        assert_eq!((peer.initiator_depth, peer.responder_resources), (4, 4));
        assert_eq!((peer.retry_cnt, peer.rnr_retry, peer.timeout), (ours.retry_cnt, ours.rnr_retry, ours.timeout));
    }
}

#[test]
fn data_before_the_rtu_establishes_by_itself() {
    let mut world = World::new();
    let (listener, active) = (world.listener(1), world.routed(0));
    for side in 0..2 {
        let (qpn, session) = (world.pair.qps[side].qpn, world.pair.clients[side].session);
        let attr = shm::attr::QpAttr { qp_state: QpState::Reset, ..Default::default() };
        crate::support::modify(&mut world.pair.hosts[side], session, qpn, attr, shm::attr::QpAttrMask::STATE).unwrap();
    }
    world.ready(0, active, &[QpState::Init]);
    let param = world.param(0);
    world.done(0, CmRequest::Connect { id: active, param });
    world.pair.exchange();
    let passive = world.expect(1, CmEventType::ConnectRequest).id;
    // Not RTS before the RTU: the first packet in RTR is then worth an event.
    world.ready(1, passive, &[QpState::Init, QpState::Rtr]);
    let param = world.param(1);
    world.done(1, CmRequest::Accept { id: passive, param });
    world.pair.exchange();
    world.expect(0, CmEventType::ConnectResponse);
    world.ready(0, active, &[QpState::Rtr, QpState::Rts]);
    // The active side's application sends before it accepts: no RTU was sent yet.
    assert_eq!(send(&mut world), [(9, WcStatus::Success)]);
    let now = world.pair.now;
    let host = &mut world.pair.hosts[1];
    let mut seen = 0;
    while let Some(event) = host.shard().poll_event() {
        seen += 1;
        host.control.observe_event(now, &event);
    }
    assert_eq!(seen, 1);
    world.expect(1, CmEventType::Established);
    let _ = listener;
}

#[test]
fn a_client_that_goes_is_a_disconnect_for_its_peer() {
    let mut world = World::new();
    let (_, passive, listener) = world.connect();
    let (now, session) = (world.pair.now, world.pair.clients[0].session);
    let host = &mut world.pair.hosts[0];
    host.control.close_session(&mut host.shards, session);
    host.control.turn(&mut host.shards, now);
    world.pair.exchange();
    assert_eq!(world.expect(1, CmEventType::Disconnected).id, passive);

    // And a listener that goes is one that nobody finds.
    let session = world.pair.clients[1].session;
    let host = &mut world.pair.hosts[1];
    host.control.close_session(&mut host.shards, session);
    let other = world.stranger(1);
    let Reply::Handle(channel) = world.call_as(1, other, CmRequest::CreateChannel) else { panic!() };
    let create = CmRequest::CreateId { channel, port_space: PortSpace::Tcp };
    let Reply::Handle(id) = world.call_as(1, other, create) else { panic!() };
    let bind = CmRequest::BindAddr { id, addr: world.address(1) };
    assert!(matches!(world.call_as(1, other, bind), Reply::Cm(CmReply::Id(_))), "the port is free again");
    let _ = listener;
}

#[test]
fn a_listener_destroyed_takes_the_requests_that_nobody_saw_with_it() {
    let mut world = World::new();
    let (listener, active) = (world.listener(1), world.routed(0));
    let param = world.param(0);
    world.done(0, CmRequest::Connect { id: active, param });
    world.pair.exchange();
    assert!(world.ends[1].drain(), "an event waits");
    world.done(1, CmRequest::DestroyId { id: listener });
    world.pair.exchange();
    assert_eq!(world.expect(0, CmEventType::Rejected).status, 28);
    assert!(world.event(1).is_none());
    let channel = world.channels[1];
    world.done(1, CmRequest::DestroyChannel { channel });
}

#[test]
fn an_id_moves_to_another_channel_with_its_events() {
    let mut world = World::new();
    let Reply::Handle(second) = world.call(1, CmRequest::CreateChannel) else { panic!() };
    let (listener, active) = (world.listener(1), world.routed(0));
    let param = world.param(0);
    world.done(0, CmRequest::Connect { id: active, param });
    world.pair.exchange();
    let request = world.expect(1, CmEventType::ConnectRequest).id;
    world.done(0, CmRequest::DestroyId { id: active });
    world.pair.exchange();
    // The peer's REJ waits in the first channel.
    world.done(1, CmRequest::MigrateId { id: request, channel: second });
    assert!(world.event(1).is_none());
    let Reply::Cm(CmReply::Event(Some(event))) = world.call(1, CmRequest::GetEvent { channel: second }) else {
        panic!()
    };
    assert_eq!((event.event, event.id, event.status), (CmEventType::Rejected, request, 4));
    let (errno, message) = world.refused(1, CmRequest::DestroyChannel { channel: second });
    assert_eq!((errno, message.contains("1 ids")), (16, true), "{message}");
    world.done(1, CmRequest::DestroyId { id: request });
    world.done(1, CmRequest::DestroyChannel { channel: second });
    world.done(1, CmRequest::DestroyId { id: listener });
}

#[test]
fn handles_of_another_session_do_not_exist() {
    let mut world = World::new();
    let id = world.routed(0);
    let (channel, stranger) = (world.channels[0], world.stranger(0));
    let calls = [
        CmRequest::DestroyChannel { channel },
        CmRequest::GetEvent { channel },
        CmRequest::CreateId { channel, port_space: PortSpace::Tcp },
        CmRequest::DestroyId { id },
        CmRequest::MigrateId { id, channel },
        CmRequest::BindAddr { id, addr: world.address(0) },
        CmRequest::ResolveAddr { id, src: None, dst: world.address(1), timeout_ms: 1 },
        CmRequest::ResolveRoute { id, timeout_ms: 1 },
        CmRequest::QueryId { id },
        CmRequest::Listen { id, backlog: 1 },
        CmRequest::Connect { id, param: ConnParam::default() },
        CmRequest::Accept { id, param: ConnParam::default() },
        CmRequest::Reject { id, private_data: vec![], reason: 28 },
        CmRequest::Notify { id },
        CmRequest::Disconnect { id },
        CmRequest::InitQpAttr { id, qp_state: QpState::Init },
    ];
    for call in calls {
        let what = format!("{call:?}");
        let reply = world.call_as(0, stranger, call);
        assert!(matches!(reply, Reply::Refused { errno: 22, .. }), "{what}: {reply:?}");
    }
    // Nor can the QP of another be connected.
    let Reply::Handle(channel) = world.call_as(0, stranger, CmRequest::CreateChannel) else { panic!() };
    let create = CmRequest::CreateId { channel, port_space: PortSpace::Tcp };
    let Reply::Handle(id) = world.call_as(0, stranger, create) else { panic!() };
    let param = world.param(0);
    let reply = world.call_as(0, stranger, CmRequest::Connect { id, param });
    let Reply::Refused { message, .. } = reply else { panic!("{reply:?}") };
    assert!(message.contains("does not exist in a session of user"), "{message}");
}

#[test]
fn a_destination_that_nobody_has_is_an_error_in_time() {
    let mut world = World::new();
    let id = world.id(0, PortSpace::Tcp);
    let dst = format!("10.0.0.77:{PORT}").parse().unwrap();
    for (timeout_ms, status) in [(50, -110), (20_000, -113)] {
        world.done(0, CmRequest::ResolveAddr { id, src: None, dst, timeout_ms });
        let mut waited_ms = 0;
        let event = loop {
            world.pair.advance(10_000_000);
            waited_ms += 10;
            if let Some(event) = world.event(0) {
                break event;
            }
            assert!(waited_ms < 10_000, "nothing is heard");
        };
        assert_eq!((event.event, event.status), (CmEventType::AddrError, status));
        assert!(event.message.contains("10.0.0.77"), "{}", event.message);
    }
    assert_eq!(world.pair.hosts[0].control.next_deadline(), engine::Time::NEVER);
}

#[test]
fn a_group_is_joined_from_an_address_of_ours() {
    let mut world = World::new();
    let group = "239.1.1.1".parse().unwrap();
    let join = |id| CmRequest::JoinMulticast { id, group };
    let stream = world.id(0, PortSpace::Tcp);
    let (errno, sentence) = world.refused(0, join(stream));
    assert_eq!((errno, sentence.contains("TCP")), (22, true), "{sentence}");
    let id = world.id(0, PortSpace::Udp);
    let (errno, sentence) = world.refused(0, join(id));
    assert_eq!((errno, sentence.contains("no address")), (22, true), "{sentence}");

    // Nobody is asked for a neighbour.
    let dst = format!("239.1.1.1:{PORT}").parse().unwrap();
    world.done(0, CmRequest::ResolveAddr { id, src: None, dst, timeout_ms: 1 });
    world.expect(0, CmEventType::AddrResolved);
    world.done(0, join(id));
    let event = world.expect(0, CmEventType::MulticastJoin);
    let ah = event.ah.unwrap();
    assert_eq!((event.id, ah.dgid.ip(), ah.port_num), (id, group, 1));
    assert_eq!((event.param.qp_num, event.param.qkey), (0xff_ffff, 0x0123_4567));
    assert_eq!(world.refused(0, join(id)).0, 98, "once is enough");
    for (group, errno) in [("10.0.0.2", 22), ("ff0e::1", 22)] {
        let group = group.parse().unwrap();
        assert_eq!(world.refused(0, CmRequest::JoinMulticast { id, group }).0, errno, "{group}");
    }
    world.done(0, CmRequest::LeaveMulticast { id, group });
    assert_eq!(world.refused(0, CmRequest::LeaveMulticast { id, group }).0, 99);
    world.done(0, join(id));
    world.expect(0, CmEventType::MulticastJoin);
}

#[test]
fn an_id_joins_so_many_groups_at_most() {
    let mut world = World::new();
    let id = world.id(0, PortSpace::Udp);
    let dst = format!("239.1.1.1:{PORT}").parse().unwrap();
    world.done(0, CmRequest::ResolveAddr { id, src: None, dst, timeout_ms: 1 });
    world.expect(0, CmEventType::AddrResolved);
    let group = |last| std::net::IpAddr::from([239, 1, 2, last]);
    for last in 0..64 {
        world.done(0, CmRequest::JoinMulticast { id, group: group(last) });
        world.expect(0, CmEventType::MulticastJoin);
    }
    assert_eq!(world.refused(0, CmRequest::JoinMulticast { id, group: group(64) }).0, 12);
}

#[test]
fn counters_are_shown() {
    let mut world = World::new();
    world.connect();
    let session = world.pair.clients[0].session;
    let Reply::Stats(stats) = world.pair.hosts[0].request(session, Request::Stats, vec![]).0 else { panic!() };
    let (_, cm) = stats.groups.iter().find(|(name, _)| name == "cm").unwrap();
    assert_eq!(cm[..2], [("rx_cm_messages".to_owned(), 1), ("tx_cm_messages".to_owned(), 2)]);
}
