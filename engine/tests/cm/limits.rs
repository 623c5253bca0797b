//! What one client can cost.

use engine::config::Limits;
use shm::control::Reply;
use shm::control::cm::{CmEventType, CmRequest, PortSpace};

use crate::support::HostOptions;
use crate::world::{SECOND_NS, World};

#[test]
fn a_user_has_its_share_of_the_ids_and_no_more() {
    let limits = Limits { max_cm_id: 4, ..Limits::default() };
    let mut world = World::with(HostOptions::new(1), HostOptions { limits, ..HostOptions::new(2) });
    let listener = world.listener(1);
    world.id(1, PortSpace::Tcp);
    world.id(1, PortSpace::Tcp);
    let channel = world.channels[1];
    let (errno, message) = world.refused(1, CmRequest::CreateId { channel, port_space: PortSpace::Tcp });
    assert_eq!((errno, message.contains("3 CM ids")), (12, true), "{message}");
    // A request of a peer would be one more.
    let active = world.routed(0);
    let param = world.param(0);
    world.done(0, CmRequest::Connect { id: active, param });
    world.pair.exchange();
    assert_eq!(world.expect(0, CmEventType::Rejected).status, 3);
    assert!(world.event(1).is_none());
    let _ = listener;
}

#[test]
fn a_client_that_takes_no_events_gets_no_more_of_them() {
    let mut world = World::new();
    let id = world.routed(0);
    for _ in 0..16 {
        world.done(0, CmRequest::ResolveRoute { id, timeout_ms: 1 });
    }
    let (errno, message) = world.refused(0, CmRequest::ResolveRoute { id, timeout_ms: 1 });
    assert_eq!((errno, message.contains("16 events")), (105, true), "{message}");
    world.expect(0, CmEventType::RouteResolved);
    world.done(0, CmRequest::ResolveRoute { id, timeout_ms: 1 });
}

#[test]
fn channels_of_both_kinds_count_together() {
    let limits = Limits { max_channel: 2, ..Limits::default() };
    let mut world = World::with(HostOptions { limits, ..HostOptions::new(1) }, HostOptions::new(2));
    let Reply::Handle(second) = world.call(0, CmRequest::CreateChannel) else { panic!() };
    let (errno, _) = world.refused(0, CmRequest::CreateChannel);
    assert_eq!(errno, 12);
    world.done(0, CmRequest::DestroyChannel { channel: second });
    assert!(matches!(world.call(0, CmRequest::CreateChannel), Reply::Handle(_)));
}

/// Connected and disconnected again and again by real clients: what is left is what was there.
#[test]
fn many_connections_one_after_the_other_leave_nothing() {
    let mut world = World::new();
    let listener = world.listener(1);
    for round in 0..300 {
        let active = world.routed(0);
        let param = world.param(0);
        world.done(0, CmRequest::Connect { id: active, param });
        world.pair.exchange();
        let passive = world.expect(1, CmEventType::ConnectRequest).id;
        let param = world.param(1);
        world.done(1, CmRequest::Accept { id: passive, param });
        world.pair.exchange();
        world.expect(0, CmEventType::ConnectResponse);
        world.done(0, CmRequest::Accept { id: active, param: Default::default() });
        world.pair.exchange();
        world.expect(1, CmEventType::Established);
        let (first, then) = if round % 2 == 0 { ((0, active), (1, passive)) } else { ((1, passive), (0, active)) };
        world.done(first.0, CmRequest::DestroyId { id: first.1 });
        world.pair.exchange();
        world.expect(then.0, CmEventType::Disconnected);
        world.done(then.0, CmRequest::DestroyId { id: then.1 });
    }
    world.done(1, CmRequest::DestroyId { id: listener });
    world.pair.advance(10 * SECOND_NS);
    for side in 0..2 {
        assert!(world.event(side).is_none());
        assert_eq!(world.pair.hosts[side].control.next_deadline(), engine::Time::NEVER, "no timer is left");
        let channel = world.channels[side];
        world.done(side, CmRequest::DestroyChannel { channel });
    }
}
