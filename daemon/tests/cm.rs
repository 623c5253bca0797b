//! Connections made by the connection manager, between embedded engines: by events on one thread, by calls that wait on two.

mod support;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use daemon::embedded::{PAIR_ADDRESSES, PolledNode, engine_config, polled_pair, threaded_pair};
use daemon::{IdlePolicy, LcoreSetup};
use ferroce::cm::CmEventType::{
    self, AddrError, AddrResolved, ConnectRequest, Disconnected, Established, MulticastJoin, Rejected, RouteResolved,
    TimewaitExit, Unreachable,
};
use ferroce::cm::{CmEvent, CmId, ConnParam, EventChannel, PortSpace, SyncId};
use ferroce::control::{Reply, Request};
use ferroce::{Context, QpInit, QpState, QpType, Qpn, QueuePair, RecvWr, SendWr, WcStatus, WorkCompletion};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use support::{PATIENCE, Peer};

const PORT: u16 = 7471;
const TIMEOUT: Duration = Duration::from_secs(2);

fn server_address(port: u16) -> SocketAddr {
    SocketAddr::new(PAIR_ADDRESSES[1], port)
}

fn context(node: &PolledNode) -> Context {
    Context::from_endpoint(node.connect().unwrap()).unwrap()
}

fn saying(words: &str) -> ConnParam {
    ConnParam {
        private_data: words.as_bytes().to_vec(),
        responder_resources: 4,
        initiator_depth: 3,
        retry_count: 7,
        rnr_retry_count: 7,
        ..ConnParam::default()
    }
}

/// The text of private data: it ends with the first zero.
fn words(event: &CmEvent) -> String {
    let text = event.private_data().split(|&byte| byte == 0).next().unwrap();
    String::from_utf8(text.to_vec()).unwrap()
}

#[track_caller]
fn expect(channel: &EventChannel, wanted: CmEventType) -> CmEvent {
    let event = channel.get_event(Some(PATIENCE)).unwrap();
    let event = event.unwrap_or_else(|| panic!("no {} within {PATIENCE:?}", wanted.name()));
    assert_eq!(event.event_type(), wanted, "{event}");
    event
}

fn is_readable(channel: &EventChannel) -> bool {
    poll(&mut [PollFd::new(channel.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
}

/// One host: a session, what QPs need, and a channel.
struct Host {
    peer: Peer,
    channel: EventChannel,
}

impl Host {
    fn new(context: Context) -> Self {
        let channel = EventChannel::new(&context).unwrap();
        Self { peer: Peer::new(context, 1 << 16, 0), channel }
    }

    fn listen(&self, port: u16) -> CmId {
        let listener = self.channel.create_id(PortSpace::Tcp).unwrap();
        listener.bind_addr(server_address(port)).unwrap();
        listener.listen(16).unwrap();
        listener
    }

    fn create_qp(&self, id: &CmId) -> QueuePair {
        id.create_qp(&self.peer.pd, &QpInit::rc(&self.peer.cq)).unwrap()
    }

    fn resolved(&self, port: u16) -> CmId {
        let id = self.channel.create_id(PortSpace::Tcp).unwrap();
        id.resolve_addr(None, server_address(port), TIMEOUT).unwrap();
        expect(&self.channel, AddrResolved);
        id.resolve_route(TIMEOUT).unwrap();
        expect(&self.channel, RouteResolved);
        id
    }
}

/// Connects an id whose route is resolved and that has its QP.
fn connect(client: (&Host, &CmId), server: &Host) -> (CmId, QueuePair) {
    client.1.connect(&saying("hello")).unwrap();
    let request = expect(&server.channel, ConnectRequest);
    assert_eq!(words(&request), "hello");
    assert_eq!((request.param().responder_resources, request.param().initiator_depth), (3, 4));
    let qp = server.create_qp(request.id());
    request.id().accept(&ConnParam { private_data: b"welcome".to_vec(), ..request.answer() }).unwrap();
    let event = expect(&client.0.channel, Established);
    assert_eq!((words(&event).as_str(), event.id()), ("welcome", client.1));
    assert_eq!(expect(&server.channel, Established).id(), request.id());
    (request.id().clone(), qp)
}

/// A SEND from one QP to the other.
fn send(from: (&Peer, &QueuePair), to: (&Peer, &QueuePair)) {
    from.0.region.write(0, b"over there").unwrap();
    to.0.region.write(1024, &[0; 10]).unwrap();
    to.1.post_recv(&RecvWr::new(1, &[to.0.region.sge(1024, 64).unwrap()])).unwrap();
    from.1.post_send(&SendWr::send(2, &[from.0.region.sge(0, 10).unwrap()]).signaled()).unwrap();
    assert_eq!((from.0.complete().wr_id, to.0.complete().wr_id), (2, 1));
    let mut bytes = [0; 10];
    to.0.region.read(1024, &mut bytes).unwrap();
    assert_eq!(&bytes, b"over there");
}

fn disconnect(client: (&Host, &CmId), server: (&Host, &CmId)) {
    client.1.disconnect().unwrap();
    assert_eq!(expect(&server.0.channel, Disconnected).id(), server.1);
    server.1.disconnect().unwrap();
    assert_eq!(expect(&client.0.channel, Disconnected).id(), client.1);
}

#[test]
fn two_engines_connect_talk_and_part() {
    let nodes = polled_pair(&engine_config("ferroce0")).unwrap();
    let [client, server] = nodes.each_ref().map(|node| Host::new(context(node)));
    let _listener = server.listen(PORT);
    let id = client.resolved(PORT);
    let qp = client.create_qp(&id);
    assert_eq!(id.query().unwrap().peer, Some(server_address(PORT)));
    let (server_id, server_qp) = connect((&client, &id), &server);
    for (qp, depths) in [(&qp, (4, 3)), (&server_qp, (3, 4))] {
        let attr = qp.query().unwrap();
        assert_eq!((attr.qp_state, attr.max_dest_rd_atomic, attr.max_rd_atomic), (QpState::Rts, depths.0, depths.1));
    }
    send((&client.peer, &qp), (&server.peer, &server_qp));
    send((&server.peer, &server_qp), (&client.peer, &qp));

    server_qp.post_recv(&RecvWr::new(3, &[])).unwrap();
    disconnect((&client, &id), (&server, &server_id));
    assert_eq!((qp.state(), server_qp.state()), (QpState::Err, QpState::Err));
    expect(&client.channel, TimewaitExit);
    expect(&server.channel, TimewaitExit);
}

#[test]
fn two_clients_of_one_engine_connect_too() {
    let [_, node] = polled_pair(&engine_config("ferroce0")).unwrap();
    let [client, server] = [Host::new(context(&node)), Host::new(context(&node))];
    let _listener = server.listen(PORT);
    let id = client.resolved(PORT);
    let qp = client.create_qp(&id);
    let (server_id, server_qp) = connect((&client, &id), &server);
    send((&client.peer, &qp), (&server.peer, &server_qp));
    disconnect((&server, &server_id), (&client, &id));
}

#[test]
fn what_can_not_be_is_told_with_its_reason() {
    let nodes = polled_pair(&engine_config("ferroce0")).unwrap();
    let [client, server] = nodes.each_ref().map(|node| Host::new(context(node)));
    let listener = server.listen(PORT);

    // Nobody listens there: reason 8, invalid service id.
    let id = client.resolved(PORT + 1);
    let qp = client.create_qp(&id);
    id.connect(&saying("")).unwrap();
    let event = expect(&client.channel, Rejected);
    assert_eq!(event.status(), 8);
    assert!(!event.error().unwrap().to_string().is_empty());
    assert_eq!(qp.state(), QpState::Err);

    // The application does not want it: reason 28.
    let id = client.resolved(PORT);
    client.create_qp(&id);
    id.connect(&saying("please")).unwrap();
    expect(&server.channel, ConnectRequest).id().reject(b"not today").unwrap();
    let event = expect(&client.channel, Rejected);
    assert_eq!((event.status(), words(&event).as_str()), (28, "not today"));

    // The application drops it.
    let id = client.resolved(PORT);
    client.create_qp(&id);
    id.connect(&saying("please")).unwrap();
    drop(expect(&server.channel, ConnectRequest));
    assert_eq!(expect(&client.channel, Rejected).id(), &id);

    // There is no neighbour of this address, nor a second listener on this port.
    let id = client.channel.create_id(PortSpace::Tcp).unwrap();
    id.resolve_addr(None, "10.0.0.77:7471".parse().unwrap(), Duration::from_millis(50)).unwrap();
    assert!(expect(&client.channel, AddrError).status() < 0);
    let second = server.channel.create_id(PortSpace::Tcp).unwrap();
    let error = second.bind_addr(server_address(PORT)).and_then(|_| second.listen(1)).unwrap_err();
    assert_eq!(error.errno(), nix::libc::EADDRINUSE, "{error}");
    drop(listener);
    second.bind_addr(server_address(PORT)).unwrap();
    second.listen(1).unwrap();
}

#[test]
fn a_broken_qp_is_reset_and_connected_again() {
    let nodes = polled_pair(&engine_config("ferroce0")).unwrap();
    let [client, server] = nodes.each_ref().map(|node| Host::new(context(node)));
    let _listener = server.listen(PORT);
    let id = client.resolved(PORT);
    let qp = client.create_qp(&id);
    let (server_id, server_qp) = connect((&client, &id), &server);

    // A WRITE that the peer does not allow breaks both QPs.
    let here = [client.peer.region.sge(0, 8).unwrap()];
    qp.post_send(&SendWr::write(7, &here, 0xdead_0000, 0x1234_5678).signaled()).unwrap();
    let mut completions = [WorkCompletion::default()];
    let end = Instant::now() + PATIENCE;
    while client.peer.cq.poll(&mut completions) == 0 {
        assert!(Instant::now() < end, "the WRITE does not fail");
    }
    assert_eq!((completions[0].wr_id, completions[0].status), (7, WcStatus::RemAccessErr));
    disconnect((&client, &id), (&server, &server_id));
    expect(&client.channel, TimewaitExit);
    expect(&server.channel, TimewaitExit);
    assert_eq!(id.take_qp().map(|qp| qp.qpn()), Some(qp.qpn()));
    drop((id, server_id, server_qp));

    let again = client.resolved(PORT);
    again.use_qp(&qp).unwrap();
    let (_server_id, server_qp) = connect((&client, &again), &server);
    send((&client.peer, &qp), (&server.peer, &server_qp));
}

#[test]
fn events_move_with_their_id_to_another_channel() {
    let nodes = polled_pair(&engine_config("ferroce0")).unwrap();
    let [client, server] = nodes.each_ref().map(|node| Host::new(context(node)));
    let listener = server.listen(PORT);
    let (first, second) = (client.resolved(PORT), client.resolved(PORT));
    let ask = |id: &CmId| {
        client.create_qp(id);
        id.connect(&saying("")).unwrap();
    };
    ask(&first);
    let taken = expect(&server.channel, ConnectRequest);
    ask(&second);
    let end = Instant::now() + PATIENCE;
    // Nobody has asked for this one when the listener moves.
    while !is_readable(&server.channel) {
        assert!(Instant::now() < end, "the second request does not come");
        server.peer.context.make_progress();
        client.peer.context.make_progress();
    }
    let other = EventChannel::new(&server.peer.context).unwrap();
    listener.migrate(&other).unwrap();
    let moved = expect(&other, ConnectRequest);
    assert!(server.channel.try_get_event().unwrap().is_none());
    for (request, channel) in [(&taken, &server.channel), (&moved, &other)] {
        server.create_qp(request.id());
        request.id().accept(&request.answer()).unwrap();
        expect(&client.channel, Established);
        assert_eq!(expect(channel, Established).id(), request.id());
    }
    taken.id().migrate(&other).unwrap();
    first.disconnect().unwrap();
    assert_eq!(expect(&other, Disconnected).id(), taken.id());
}

#[test]
fn the_qp_of_a_datagram_service_is_found_by_its_port() {
    let nodes = polled_pair(&engine_config("ferroce0")).unwrap();
    let [client, server] = nodes.each_ref().map(|node| Host::new(context(node)));
    let create_qp = |host: &Host, id: &CmId| {
        let init = QpInit { qp_type: QpType::Ud, ..QpInit::rc(&host.peer.cq) };
        id.create_qp(&host.peer.pd, &init).unwrap()
    };
    let listener = server.channel.create_id(PortSpace::Udp).unwrap();
    listener.bind_addr(server_address(PORT)).unwrap();
    listener.listen(1).unwrap();

    let resolved = || {
        let id = client.channel.create_id(PortSpace::Udp).unwrap();
        id.resolve_addr(None, server_address(PORT), TIMEOUT).unwrap();
        expect(&client.channel, AddrResolved);
        id.resolve_route(TIMEOUT).unwrap();
        expect(&client.channel, RouteResolved);
        id
    };
    let id = resolved();
    assert_eq!(create_qp(&client, &id).state(), QpState::Rts);
    id.connect(&saying("where?")).unwrap();
    let request = expect(&server.channel, ConnectRequest);
    assert_eq!(words(&request), "where?");
    let qp = create_qp(&server, request.id());
    request.id().accept(&ConnParam { private_data: b"here".to_vec(), ..request.answer() }).unwrap();
    let found = expect(&client.channel, Established);
    assert_eq!((words(&found).as_str(), found.param().qp_num), ("here", qp.qpn().value()));
    assert_eq!(found.param().qkey, qp.query().unwrap().qkey);
    assert_eq!(found.ah_attr().unwrap().dgid.ip(), PAIR_ADDRESSES[1]);

    let id = resolved();
    create_qp(&client, &id);
    id.connect(&saying("and again?")).unwrap();
    expect(&server.channel, ConnectRequest).id().reject(b"").unwrap();
    // As Linux tells it: the status is the SIDR_REP's.
    let refused = expect(&client.channel, Unreachable);
    assert_eq!((refused.id(), refused.status()), (&id, 2));
    assert_eq!(refused.error().unwrap().errno(), nix::libc::ECONNREFUSED);
}

#[test]
fn a_datagram_reaches_the_members_of_a_group() {
    let nodes = polled_pair(&engine_config("ferroce0")).unwrap();
    let hosts = nodes.each_ref().map(|node| Host::new(context(node)));
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    let members = hosts.each_ref().map(|host| {
        let id = host.channel.create_id(PortSpace::Udp).unwrap();
        id.resolve_addr(None, SocketAddr::new(group, 0), TIMEOUT).unwrap();
        expect(&host.channel, AddrResolved);
        let init = QpInit { qp_type: QpType::Ud, ..QpInit::rc(&host.peer.cq) };
        let qp = id.create_qp(&host.peer.pd, &init).unwrap();
        id.join_multicast(group, true).unwrap();
        let joined = expect(&host.channel, MulticastJoin);
        let ah = host.peer.pd.create_ah(joined.ah_attr().unwrap()).unwrap();
        let to = (ah, Qpn::new(joined.param().qp_num), joined.param().qkey);
        drop(joined);
        (id, qp, to)
    });
    let (sender, receiver) = (&hosts[0].peer, &hosts[1].peer);
    let (_, qp, (ah, qpn, qkey)) = &members[0];
    let multicast = |wr_id| {
        let here = [sender.region.sge(0, 10).unwrap()];
        qp.post_send(&SendWr::send(wr_id, &here).to(ah, *qpn, *qkey).signaled()).unwrap();
        assert_eq!(sender.complete().wr_id, wr_id);
    };
    sender.region.write(0, b"everybody!").unwrap();
    // 40 bytes of a datagram's receive are for its GRH.
    let post = |wr_id| members[1].1.post_recv(&RecvWr::new(wr_id, &[receiver.region.sge(0, 64).unwrap()])).unwrap();
    post(1);
    multicast(10);
    let received = receiver.complete();
    assert_eq!((received.wr_id, received.byte_len, received.src_qpn), (1, 50, qp.qpn()));
    let mut bytes = [0; 10];
    receiver.region.read(40, &mut bytes).unwrap();
    assert_eq!(&bytes, b"everybody!");

    // Who has left hears no more: what comes next is from after it joined again.
    let (id, ..) = &members[1];
    id.leave_multicast(group).unwrap();
    post(2);
    multicast(11);
    id.join_multicast(group, true).unwrap();
    expect(&hosts[1].channel, MulticastJoin);
    sender.region.write(0, b"once more.").unwrap();
    multicast(12);
    assert_eq!(receiver.complete().wr_id, 2);
    receiver.region.read(40, &mut bytes).unwrap();
    assert_eq!(&bytes, b"once more.");
}

#[test]
fn connections_in_a_loop_leave_nothing_behind() {
    const ROUNDS: u32 = 50;
    let nodes = polled_pair(&engine_config("ferroce0")).unwrap();
    let [client, server] = nodes.each_ref().map(|node| Host::new(context(node)));
    let _listener = server.listen(PORT);
    for _ in 0..ROUNDS {
        let id = client.resolved(PORT);
        let qp = client.create_qp(&id);
        let (server_id, server_qp) = connect((&client, &id), &server);
        send((&client.peer, &qp), (&server.peer, &server_qp));
        disconnect((&client, &id), (&server, &server_id));
    }
    let sessions = client.peer.context.call(&Request::ListSessions).unwrap();
    let Reply::Sessions(sessions) = sessions else { panic!("no sessions") };
    assert_eq!(sessions.iter().map(|session| session.qp_count).max(), Some(1), "only the host's own QP is left");
}

#[test]
fn calls_that_wait_wait_for_each_other() {
    let setup = LcoreSetup { cores: vec![None], idle: IdlePolicy::Adaptive };
    let nodes = threaded_pair(&engine_config("ferroce0"), [&setup, &setup]).unwrap();
    let [a, b] = nodes.each_ref().map(|node| Context::from_fd(node.connect().unwrap()).unwrap());
    let mut listener = SyncId::new(&b, PortSpace::Tcp).unwrap();
    listener.bind_addr(server_address(PORT)).unwrap();
    listener.listen(4).unwrap();
    assert!(listener.get_request(Some(Duration::ZERO)).unwrap().is_none());

    let client = thread::spawn(move || {
        let peer = Peer::new(a, 1 << 16, 0);
        let mut id = SyncId::new(&peer.context, PortSpace::Tcp).unwrap();
        id.resolve_addr(None, server_address(PORT), TIMEOUT).unwrap();
        id.resolve_route(TIMEOUT).unwrap();
        let qp = id.create_qp(&peer.pd, &QpInit::rc(&peer.cq)).unwrap();
        qp.post_recv(&RecvWr::new(1, &[peer.region.sge(0, 64).unwrap()])).unwrap();
        id.connect(&saying("anyone?")).unwrap();
        assert_eq!(words(id.event().unwrap()), "yes");
        assert_eq!(peer.complete().byte_len, 3);
        id.disconnect().unwrap();
        id.destroy().unwrap();
    });
    let peer = Peer::new(b, 1 << 16, 0);
    let mut server = listener.get_request(Some(PATIENCE)).unwrap().unwrap();
    assert_eq!(words(server.event().unwrap()), "anyone?");
    let qp = server.create_qp(&peer.pd, &QpInit::rc(&peer.cq)).unwrap();
    server.accept(&saying("yes")).unwrap();
    qp.post_send(&SendWr::send(1, &[peer.region.sge(0, 3).unwrap()]).signaled()).unwrap();
    assert!(server.wait_disconnected(Some(PATIENCE)).unwrap());
    server.disconnect().unwrap();
    client.join().unwrap();
}
