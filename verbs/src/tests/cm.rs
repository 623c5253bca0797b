//! Connection management, against the mock's table of ids.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use nix::libc;
use shm::control::cm::CmEventType::{
    self, AddrError, AddrResolved, ConnectError, ConnectRequest, ConnectResponse, Disconnected, Established,
    MulticastError, MulticastJoin, Rejected, RouteResolved, TimewaitExit,
};

use super::mock::cm::UNROUTED_PORT;
use super::*;
use crate::cm::{CmError, CmEvent, CmId, ConnParam, EventChannel, PortSpace, SyncId};

const PORT: u16 = 7471;

struct CmBed {
    bed: Bed,
    channel: EventChannel,
    listener: CmId,
}

fn addr(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn cm_bed() -> CmBed {
    let bed = bed(false);
    let channel = EventChannel::new(&bed.context).unwrap();
    let listener = channel.create_id(PortSpace::Tcp).unwrap();
    assert_eq!(listener.bind_addr(addr(PORT)).unwrap().local, Some(addr(PORT)));
    listener.listen(8).unwrap();
    CmBed { bed, channel, listener }
}

fn saying(words: &[u8]) -> ConnParam {
    ConnParam { private_data: words.to_vec(), responder_resources: 3, initiator_depth: 2, ..ConnParam::default() }
}

/// The next event, which must be of this kind.
#[track_caller]
fn expect(channel: &EventChannel, wanted: CmEventType) -> CmEvent {
    let event = channel.get_event(SECOND).unwrap().unwrap_or_else(|| panic!("no event, not even {}", wanted.name()));
    assert_eq!(event.event_type(), wanted, "{event}");
    event
}

#[track_caller]
fn expect_nothing(channel: &EventChannel) {
    assert!(!is_readable(channel.as_fd()), "readable, with nothing to get");
    let event = channel.try_get_event().unwrap();
    assert!(event.is_none(), "{event:?}");
}

impl CmBed {
    /// An id whose route to `port` is resolved, with a QP.
    fn client(&self, channel: &EventChannel, port: u16) -> CmId {
        let id = self.resolved(channel, port);
        id.create_qp(&self.bed.pd, &QpInit::rc(&self.bed.cq)).unwrap();
        id
    }

    fn resolved(&self, channel: &EventChannel, port: u16) -> CmId {
        let id = channel.create_id(PortSpace::Tcp).unwrap();
        id.resolve_addr(None, addr(port), Duration::from_secs(1)).unwrap();
        assert_eq!(expect(channel, AddrResolved).id(), &id);
        id.resolve_route(Duration::from_secs(1)).unwrap();
        expect(channel, RouteResolved);
        id
    }

    /// Two ends of a connection; the client's events come to a channel of its own.
    fn connected(&self) -> (CmId, CmId, EventChannel) {
        let channel = EventChannel::new(&self.bed.context).unwrap();
        let client = self.client(&channel, PORT);
        client.connect(&saying(b"hello")).unwrap();
        let request = expect(&self.channel, ConnectRequest);
        let server = request.id().clone();
        server.create_qp(&self.bed.pd, &QpInit::rc(&self.bed.cq)).unwrap();
        server.accept(&request.answer()).unwrap();
        expect(&channel, Established);
        expect(&self.channel, Established);
        (client, server, channel)
    }
}

#[test]
fn a_connection_takes_both_qps_to_rts_and_then_to_error() {
    let cm = cm_bed();
    let client = cm.client(&cm.channel, PORT);
    let qp = client.qp().unwrap();
    assert_eq!(qp.state(), QpState::Init);
    client.connect(&saying(b"hello")).unwrap();

    let request = expect(&cm.channel, ConnectRequest);
    assert_eq!((request.private_data(), request.listener()), (&b"hello"[..], Some(&cm.listener)));
    assert_eq!(request.param().qp_num, qp.qpn().value(), "the id's QP is told");
    let server = request.id().clone();
    let server_qp = server.create_qp(&cm.bed.pd, &QpInit::rc(&cm.bed.cq)).unwrap();
    cm.bed.mock.take_log();
    let answer = ConnParam { private_data: b"welcome".to_vec(), ..request.answer() };
    assert_eq!((answer.responder_resources, answer.initiator_depth), (3, 2));
    server.accept(&answer).unwrap();
    let steps = ["InitQpAttr", "ModifyQp", "InitQpAttr", "ModifyQp", "InitQpAttr", "ModifyQp", "Accept"];
    assert_eq!(cm.bed.mock.take_log(), steps, "the QP can receive before the peer is told");
    assert_eq!(server_qp.state(), QpState::Rts);

    let event = expect(&cm.channel, Established);
    assert_eq!((event.id(), event.private_data()), (&client, &b"welcome"[..]));
    assert_eq!(qp.state(), QpState::Rts);
    assert_eq!(expect(&cm.channel, Established).id(), &server);

    client.disconnect().unwrap();
    assert_eq!((qp.state(), server_qp.state()), (QpState::Err, QpState::Rts));
    assert_eq!(expect(&cm.channel, Disconnected).id(), &client);
    assert_eq!(expect(&cm.channel, Disconnected).id(), &server);
    server.disconnect().unwrap();
    assert_eq!(server_qp.state(), QpState::Err);
    assert_eq!(expect(&cm.channel, TimewaitExit).id(), &client);
    expect_nothing(&cm.channel);
}

#[test]
fn the_depths_that_are_accepted_become_the_qps() {
    let cm = cm_bed();
    let (_, server, _channel) = cm.connected();
    let state = cm.bed.mock.state();
    let modified = &state.modified[&server.qp().unwrap().qpn().value()];
    assert_eq!((modified.max_dest_rd_atomic, modified.max_rd_atomic), (3, 2));
}

#[test]
fn a_rejection_is_told_with_its_reason_and_breaks_the_qp() {
    let cm = cm_bed();
    let client = cm.client(&cm.channel, PORT);
    client.connect(&saying(b"please")).unwrap();
    expect(&cm.channel, ConnectRequest).id().reject(b"no").unwrap();
    let event = expect(&cm.channel, Rejected);
    assert_eq!((event.status(), event.private_data()), (28, &b"no"[..]));
    let error = event.error().unwrap();
    assert_eq!((error.errno(), error.to_string().as_str()), (libc::ECONNREFUSED, "REJECTED, says the mock"));
    assert_eq!(client.qp().unwrap().state(), QpState::Err);
    expect_nothing(&cm.channel);
}

#[test]
fn a_request_that_nobody_takes_is_rejected() {
    let cm = cm_bed();
    let channel = EventChannel::new(&cm.bed.context).unwrap();
    let client = cm.client(&channel, PORT);
    client.connect(&saying(b"")).unwrap();
    drop(expect(&cm.channel, ConnectRequest));
    assert_eq!(expect(&channel, Rejected).id(), &client);

    // Nor does one stay that waits for a listener's channel when both are dropped.
    let client = cm.client(&channel, PORT);
    client.connect(&saying(b"")).unwrap();
    let CmBed { bed, channel: theirs, listener } = cm;
    drop((listener, theirs));
    expect(&channel, Rejected);
    assert_eq!(bed.mock.state().cm.ids.len(), 2, "the clients' own");
}

#[test]
fn a_request_whose_listener_is_gone_is_rejected() {
    let cm = cm_bed();
    let channel = EventChannel::new(&cm.bed.context).unwrap();
    let (first, second) = (cm.client(&channel, PORT), cm.client(&channel, PORT));
    first.connect(&saying(b"1")).unwrap();
    second.connect(&saying(b"2")).unwrap();
    // The second is taken from the daemon along with the first.
    let request = expect(&cm.channel, ConnectRequest);
    cm.listener.clone().destroy().unwrap_err();
    let server = request.id().clone();
    drop(request);
    cm.listener.destroy().unwrap();
    assert_eq!(expect(&channel, Rejected).id(), &second);
    server.create_qp(&cm.bed.pd, &QpInit::rc(&cm.bed.cq)).unwrap();
    server.accept(&saying(b"")).unwrap();
    assert_eq!(expect(&channel, Established).id(), &first);
    assert_eq!(expect(&cm.channel, Established).id(), &server);
    expect_nothing(&cm.channel);
}

#[test]
fn an_id_can_not_be_destroyed_while_an_event_of_it_is_held() {
    let cm = cm_bed();
    let id = cm.channel.create_id(PortSpace::Tcp).unwrap();
    id.resolve_addr(None, addr(PORT), Duration::from_secs(1)).unwrap();
    let event = expect(&cm.channel, AddrResolved);
    assert_eq!(id.clone().destroy().unwrap_err().errno(), libc::EBUSY);
    drop(event);
    id.resolve_route(Duration::from_secs(1)).unwrap();
    id.destroy().unwrap();
    assert!(cm.channel.get_event(NOW).unwrap().is_none(), "its events vanish with it");
    assert_eq!(cm.channel.clone().destroy().unwrap_err().errno(), libc::EBUSY);
}

#[test]
fn the_descriptor_is_readable_while_there_are_events() {
    let cm = cm_bed();
    expect_nothing(&cm.channel);
    let ids: Vec<CmId> = (0..200).map(|_| cm.channel.create_id(PortSpace::Tcp).unwrap()).collect();
    for id in &ids {
        id.resolve_addr(None, addr(PORT), Duration::from_secs(1)).unwrap();
    }
    for id in &ids {
        assert!(is_readable(cm.channel.as_fd()));
        assert_eq!(cm.channel.try_get_event().unwrap().unwrap().id(), id, "in order");
    }
    expect_nothing(&cm.channel);
    ids[0].resolve_route(Duration::from_secs(1)).unwrap();
    assert!(is_readable(cm.channel.as_fd()));
    expect(&cm.channel, RouteResolved);
    expect_nothing(&cm.channel);
}

#[test]
fn events_move_with_their_id() {
    let cm = cm_bed();
    let (stays, moves) = (cm.channel.create_id(PortSpace::Tcp).unwrap(), cm.channel.create_id(PortSpace::Tcp).unwrap());
    let other = EventChannel::new(&cm.bed.context).unwrap();
    for id in [&stays, &moves] {
        id.resolve_addr(None, addr(PORT), Duration::from_secs(1)).unwrap();
    }
    // Takes both from the daemon; the one of `moves` waits here.
    assert_eq!(expect(&cm.channel, AddrResolved).id(), &stays);
    moves.resolve_route(Duration::from_secs(1)).unwrap();
    moves.migrate(&other).unwrap();
    expect_nothing_but_spurious(&cm.channel);
    assert_eq!(expect(&other, AddrResolved).id(), &moves);
    assert_eq!(expect(&other, RouteResolved).id(), &moves);
    expect_nothing(&other);
    let foreign = Context::from_endpoint(Mock::new(false) as _).unwrap();
    let foreign = EventChannel::new(&foreign).unwrap();
    let error = moves.migrate(&foreign).unwrap_err();
    assert!(matches!(error, VerbsError::Cm(CmError::OtherContext { .. })), "{error}");
    assert_eq!(moves.channel().try_get_event().unwrap().map(|event| event.event_type()), None);
}

/// A descriptor may be readable for an event that has moved away since.
fn expect_nothing_but_spurious(channel: &EventChannel) {
    assert!(channel.try_get_event().unwrap().is_none());
    expect_nothing(channel);
}

#[test]
fn a_listener_moves_with_the_requests_that_wait() {
    let cm = cm_bed();
    let channel = EventChannel::new(&cm.bed.context).unwrap();
    let clients: Vec<CmId> = (0..3).map(|_| cm.client(&channel, PORT)).collect();
    clients[..2].iter().for_each(|id| id.connect(&saying(b"")).unwrap());
    // The second is taken from the daemon with the first, and waits here; the third waits there.
    let request = expect(&cm.channel, ConnectRequest);
    clients[2].connect(&saying(b"")).unwrap();
    let other = EventChannel::new(&cm.bed.context).unwrap();
    cm.listener.migrate(&other).unwrap();
    for moved in &[expect(&other, ConnectRequest), expect(&other, ConnectRequest)] {
        assert_eq!((moved.listener(), moved.id().channel().handle()), (Some(&cm.listener), other.handle()));
        moved.id().create_qp(&cm.bed.pd, &QpInit::rc(&cm.bed.cq)).unwrap();
        moved.id().accept(&moved.answer()).unwrap();
        expect(&channel, Established);
        assert_eq!(expect(&other, Established).id(), moved.id());
    }
    assert_eq!(request.id().channel().handle(), cm.channel.handle(), "a request that was taken stays");
    expect_nothing_but_spurious(&cm.channel);
}

#[test]
fn a_qp_that_can_not_be_readied_is_a_connect_error() {
    let cm = cm_bed();
    let channel = EventChannel::new(&cm.bed.context).unwrap();
    let client = cm.client(&channel, PORT);
    client.connect(&saying(b"")).unwrap();
    let request = expect(&cm.channel, ConnectRequest);
    let server = request.id().clone();
    server.create_qp(&cm.bed.pd, &QpInit::rc(&cm.bed.cq)).unwrap();
    server.accept(&saying(b"")).unwrap();
    {
        let mut state = cm.bed.mock.state();
        state.refuse = Some((libc::EINVAL, "path_mtu is 9, it must be 1 to 5"));
        state.refuse_only = Some("ModifyQp");
    }
    let event = expect(&channel, ConnectError);
    assert_eq!(event.status(), -libc::EINVAL);
    assert_eq!(event.error().unwrap().to_string(), "path_mtu is 9, it must be 1 to 5");
    assert_eq!(client.qp().unwrap().state(), QpState::Err);
    assert_eq!(expect(&cm.channel, Rejected).id(), &server, "the peer is told");
    assert_eq!(server.qp().unwrap().state(), QpState::Err);
    expect_nothing(&channel);
}

#[test]
fn an_accept_that_fails_leaves_the_qp_in_error() {
    let cm = cm_bed();
    let client = cm.client(&cm.channel, PORT);
    client.connect(&saying(b"")).unwrap();
    let request = expect(&cm.channel, ConnectRequest);
    let qp = request.id().create_qp(&cm.bed.pd, &QpInit::rc(&cm.bed.cq)).unwrap();
    {
        let mut state = cm.bed.mock.state();
        state.refuse = Some((libc::EINVAL, "197 bytes of private data, an acceptance takes 196"));
        state.refuse_only = Some("Accept");
    }
    let error = request.id().accept(&saying(&[0; 197])).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
    assert_eq!(qp.state(), QpState::Err);
}

#[test]
fn an_id_without_a_qp_confirms_by_itself() {
    let cm = cm_bed();
    let channel = EventChannel::new(&cm.bed.context).unwrap();
    let client = cm.resolved(&channel, PORT);
    let qp = cm.bed.pd.create_qp(&QpInit::rc(&cm.bed.cq)).unwrap();
    client.connect(&ConnParam { qp_num: qp.qpn().value(), ..saying(b"") }).unwrap();
    let request = expect(&cm.channel, ConnectRequest);
    assert_eq!(request.param().qp_num, qp.qpn().value());
    request.id().accept(&ConnParam { qp_num: 99, ..request.answer() }).unwrap();
    let event = expect(&channel, ConnectResponse);
    assert_eq!(event.param().qp_num, 99);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let (attr, mask) = client.init_qp_attr(state).unwrap();
        assert_eq!(qp.modify(&attr, mask).unwrap(), state);
    }
    client.establish().unwrap();
    assert_eq!(expect(&cm.channel, Established).id(), request.id());
}

#[test]
fn a_broken_qp_is_reset_and_connected_again() {
    let cm = cm_bed();
    let (client, _server, channel) = cm.connected();
    let qp = client.qp().unwrap();
    qp.to_error().unwrap();
    client.disconnect().unwrap();
    expect(&channel, Disconnected);
    expect(&channel, TimewaitExit);
    assert_eq!(client.take_qp().map(|qp| qp.qpn()), Some(qp.qpn()));
    client.destroy().unwrap();

    let again = cm.resolved(&channel, PORT);
    again.use_qp(&qp).unwrap();
    assert_eq!(qp.state(), QpState::Init);
    let error = again.create_qp(&cm.bed.pd, &QpInit::rc(&cm.bed.cq)).unwrap_err();
    assert!(matches!(error, VerbsError::Cm(CmError::HasQp { .. })), "{error}");
    expect(&cm.channel, Disconnected);
    again.connect(&saying(b"again")).unwrap();
    let request = expect(&cm.channel, ConnectRequest);
    request.id().create_qp(&cm.bed.pd, &QpInit::rc(&cm.bed.cq)).unwrap();
    request.id().accept(&request.answer()).unwrap();
    expect(&channel, Established);
    assert_eq!(qp.state(), QpState::Rts);
}

#[test]
fn a_ud_qp_is_ready_at_once_and_only_for_its_port_space() {
    let cm = cm_bed();
    let ud = QpInit { qp_type: QpType::Ud, ..QpInit::rc(&cm.bed.cq) };
    let id = cm.channel.create_id(PortSpace::Udp).unwrap();
    id.bind_addr(addr(0)).unwrap();
    assert_eq!(id.create_qp(&cm.bed.pd, &ud).unwrap().state(), QpState::Rts);
    id.destroy_qp().unwrap();
    assert!(id.qp().is_none());
    for (id, init) in [(&id, QpInit::rc(&cm.bed.cq)), (&cm.listener, ud)] {
        let error = id.create_qp(&cm.bed.pd, &init).unwrap_err();
        assert!(matches!(error, VerbsError::Cm(CmError::QpType { .. })), "{error}");
        assert_eq!(error.errno(), libc::EINVAL);
    }
}

#[test]
fn a_qp_receives_from_the_groups_that_its_id_joins() {
    let cm = cm_bed();
    let id = cm.channel.create_id(PortSpace::Udp).unwrap();
    id.bind_addr(addr(0)).unwrap();
    let qp = id.create_qp(&cm.bed.pd, &QpInit { qp_type: QpType::Ud, ..QpInit::rc(&cm.bed.cq) }).unwrap();
    let [sends, receives] = ["239.1.1.1", "239.1.1.2"].map(|group| group.parse().unwrap());
    cm.bed.mock.take_log();
    id.join_multicast(sends, false).unwrap();
    let event = expect(&cm.channel, MulticastJoin);
    assert_eq!((event.param().qp_num, event.ah_attr().unwrap().dgid), (0xff_ffff, Gid::from_ip(sends)));
    drop(event);
    id.join_multicast(receives, true).unwrap();
    let log = cm.bed.mock.take_log();
    assert_eq!(log, ["JoinMulticast", "GetEvent", "GetEvent", "JoinMulticast"], "and an event costs two calls");
    expect(&cm.channel, MulticastJoin);
    assert_eq!(cm.bed.mock.take_log().last().map(String::as_str), Some("AttachMcast"));
    id.leave_multicast(sends).unwrap();
    id.leave_multicast(receives).unwrap();
    assert_eq!(cm.bed.mock.take_log(), ["LeaveMulticast", "DetachMcast", "LeaveMulticast"]);

    // The QP can't be attached: the membership ends.
    id.join_multicast(receives, true).unwrap();
    {
        let mut state = cm.bed.mock.state();
        state.refuse = Some((libc::ENOMEM, "the limit of 1 attachments is reached"));
        state.refuse_only = Some("AttachMcast");
    }
    let event = expect(&cm.channel, MulticastError);
    assert_eq!(event.error().unwrap().errno(), libc::ENOMEM);
    assert_eq!(cm.bed.mock.take_log().last().map(String::as_str), Some("LeaveMulticast"));
    drop(event);

    // It may outlive the id, its memberships may not.
    id.join_multicast(receives, true).unwrap();
    expect(&cm.channel, MulticastJoin);
    cm.bed.mock.take_log();
    id.destroy().unwrap();
    assert_eq!(cm.bed.mock.take_log(), ["DetachMcast", "DestroyId"]);
    assert_eq!(qp.state(), QpState::Rts);
}

#[test]
fn data_on_a_qp_establishes_its_connection() {
    let cm = cm_bed();
    let client = cm.client(&cm.channel, PORT);
    client.connect(&saying(b"")).unwrap();
    let server = expect(&cm.channel, ConnectRequest).id().clone();
    let qp = server.create_qp(&cm.bed.pd, &QpInit::rc(&cm.bed.cq)).unwrap();
    server.accept(&saying(b"")).unwrap();
    let event = AsyncEvent::CommEst { qpn: qp.qpn().value() };
    cm.bed.mock.send_event(event);
    assert_eq!(cm.bed.context.get_async_event(SECOND).unwrap(), Some(event));
    let notified: Vec<u32> =
        cm.bed.mock.state().cm.ids.iter().filter(|(_, id)| id.notified).map(|(&id, _)| id).collect();
    assert_eq!(notified, [server.handle()]);
}

#[test]
fn a_slow_server_is_waited_for() {
    let (daemon, socket) = Daemon::start();
    let context = Context::from_fd(socket).unwrap();
    let bed = bed_on(context.clone(), Arc::clone(&daemon.mock));
    let mut listener = SyncId::new(&context, PortSpace::Tcp).unwrap();
    listener.bind_addr(addr(PORT)).unwrap();
    listener.listen(1).unwrap();
    assert!(listener.get_request(NOW).unwrap().is_none());

    let (pd, cq) = (bed.pd.clone(), bed.cq.clone());
    let client = std::thread::spawn(move || {
        let mut id = SyncId::new(&context, PortSpace::Tcp).unwrap();
        id.resolve_addr(None, addr(PORT), Duration::from_secs(1)).unwrap();
        id.resolve_route(Duration::from_secs(1)).unwrap();
        let qp = id.create_qp(&pd, &QpInit::rc(&cq)).unwrap();
        id.connect(&saying(b"slow?")).unwrap();
        assert_eq!((qp.state(), id.event().unwrap().private_data()), (QpState::Rts, &b"yes"[..]));
        id.disconnect().unwrap();
        assert_eq!(id.event().unwrap().event_type(), Disconnected);
        id.destroy().unwrap();
    });
    let mut server = listener.get_request(SECOND).unwrap().unwrap();
    assert_eq!(server.event().unwrap().private_data(), b"slow?");
    assert!(!client.is_finished(), "it waits for us");
    server.create_qp(&bed.pd, &QpInit::rc(&bed.cq)).unwrap();
    server.accept(&saying(b"yes")).unwrap();
    assert!(server.wait_disconnected(SECOND).unwrap());
    server.disconnect().unwrap();
    client.join().unwrap();
    server.destroy().unwrap();
}

#[test]
fn calls_that_wait_fail_with_the_errno_of_their_event() {
    let cm = cm_bed();
    let mut id = SyncId::new(&cm.bed.context, PortSpace::Tcp).unwrap();
    let error = id.resolve_addr(None, addr(UNROUTED_PORT), Duration::from_secs(1)).unwrap_err();
    assert_eq!((error.errno(), error.to_string().as_str()), (libc::ENETUNREACH, "ADDR_ERROR, says the mock"));
    assert_eq!(id.event().unwrap().event_type(), AddrError);
    id.resolve_addr(None, addr(9), Duration::from_secs(1)).unwrap();
    id.create_qp(&cm.bed.pd, &QpInit::rc(&cm.bed.cq)).unwrap();
    let error = id.connect(&saying(b"")).unwrap_err();
    assert_eq!(error.errno(), libc::ECONNREFUSED, "{error}");
    let id = id.into_id(&cm.channel).unwrap();
    assert_eq!(id.channel().handle(), cm.channel.handle());
}

#[test]
fn who_waits_for_events_is_woken_when_the_daemon_dies() {
    let (mut daemon, socket) = Daemon::start();
    let context = Context::from_fd(socket).unwrap();
    let channel = EventChannel::new(&context).unwrap();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    let waiting = channel.clone();
    let waiter = std::thread::spawn(move || waiting.get_event(Some(Duration::from_secs(20))));
    let start = Instant::now();
    daemon.kill();
    let error = waiter.join().unwrap().unwrap_err();
    assert!(error.is_disconnected(), "{error}");
    assert!(start.elapsed() < Duration::from_secs(1));
    assert!(id.listen(1).unwrap_err().is_disconnected());
}
