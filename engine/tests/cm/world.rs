//! Two engines with a client and an event channel on each.

use std::net::SocketAddr;

use engine::control::Peer;
use shm::attr::QpState;
use shm::control::cm::{CmEvent, CmEventType, CmReply, CmRequest, ConnParam, PortSpace};
use shm::control::{Reply, Request};
use shm::wake::Notifications;

use crate::support::{Connect, HostOptions, Pair, modify};

pub(crate) const PORT: u16 = 7_174;
pub(crate) const SECOND_NS: u64 = 1_000_000_000;

pub(crate) struct World {
    pub(crate) pair: Pair,
    pub(crate) channels: [u32; 2],
    pub(crate) ends: [Notifications; 2],
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(HostOptions::new(1), HostOptions::new(2))
    }

    pub(crate) fn with(a: HostOptions, b: HostOptions) -> Self {
        let mut pair = Pair::with(Connect::default(), a, b, 1 << 20);
        let made = [0, 1].map(|side| {
            let session = pair.clients[side].session;
            let (reply, fds) = pair.hosts[side].request(session, Request::Cm(CmRequest::CreateChannel), vec![]);
            let Reply::Handle(channel) = reply else { panic!("{reply:?}") };
            let [readable, _writable] = <[_; 2]>::try_from(fds).unwrap();
            (channel, Notifications::from_fd(readable))
        });
        let [(a, a_end), (b, b_end)] = made;
        Self { pair, channels: [a, b], ends: [a_end, b_end] }
    }

    pub(crate) fn call_as(&mut self, side: usize, session: u32, request: CmRequest) -> Reply {
        let reply = self.pair.hosts[side].request(session, Request::Cm(request), vec![]).0;
        let now = self.pair.now;
        let host = &mut self.pair.hosts[side];
        host.control.turn(&mut host.shards, now);
        reply
    }

    pub(crate) fn call(&mut self, side: usize, request: CmRequest) -> Reply {
        self.call_as(side, self.pair.clients[side].session, request)
    }

    pub(crate) fn done(&mut self, side: usize, request: CmRequest) {
        let what = format!("{request:?}");
        assert_eq!(self.call(side, request), Reply::Done, "{what}");
    }

    /// Errno and sentence.
    pub(crate) fn refused(&mut self, side: usize, request: CmRequest) -> (i32, String) {
        match self.call(side, request) {
            Reply::Refused { errno, message } => (errno, message),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn id(&mut self, side: usize, port_space: PortSpace) -> u32 {
        let channel = self.channels[side];
        match self.call(side, CmRequest::CreateId { channel, port_space }) {
            Reply::Handle(id) => id,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn address(&self, side: usize) -> SocketAddr {
        SocketAddr::new(self.pair.hosts[side].ip, PORT)
    }

    pub(crate) fn listener(&mut self, side: usize) -> u32 {
        let id = self.id(side, PortSpace::Tcp);
        let addr = self.address(side);
        let reply = self.call(side, CmRequest::BindAddr { id, addr });
        assert!(matches!(reply, Reply::Cm(CmReply::Id(info)) if info.local == Some(addr)));
        self.done(side, CmRequest::Listen { id, backlog: 8 });
        id
    }

    /// An id with a route to the other side.
    pub(crate) fn routed(&mut self, side: usize) -> u32 {
        let id = self.id(side, PortSpace::Tcp);
        let dst = self.address(1 - side);
        self.done(side, CmRequest::ResolveAddr { id, src: None, dst, timeout_ms: 2_000 });
        self.pair.exchange();
        self.pair.advance(10_000_000);
        self.expect(side, CmEventType::AddrResolved);
        self.done(side, CmRequest::ResolveRoute { id, timeout_ms: 2_000 });
        self.expect(side, CmEventType::RouteResolved);
        id
    }

    pub(crate) fn param(&self, side: usize) -> ConnParam {
        ConnParam {
            private_data: b"hello".to_vec(),
            responder_resources: 4,
            initiator_depth: 4,
            retry_count: 7,
            rnr_retry_count: 7,
            qp_num: self.pair.qps[side].qpn,
            ..ConnParam::default()
        }
    }

    pub(crate) fn event(&mut self, side: usize) -> Option<Box<CmEvent>> {
        let channel = self.channels[side];
        match self.call(side, CmRequest::GetEvent { channel }) {
            Reply::Cm(CmReply::Event(event)) => event,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn expect(&mut self, side: usize, event: CmEventType) -> Box<CmEvent> {
        let found = self.event(side).unwrap_or_else(|| panic!("no event, {event:?} was to come"));
        assert_eq!(found.event, event, "{found:?}");
        found
    }

    /// Takes an id's QP to a state, as `librdmacm` does.
    pub(crate) fn ready(&mut self, side: usize, id: u32, states: &[QpState]) {
        let qpn = self.pair.qps[side].qpn;
        let session = self.pair.clients[side].session;
        for &qp_state in states {
            let Reply::Cm(CmReply::QpAttr { attr, mask }) = self.call(side, CmRequest::InitQpAttr { id, qp_state })
            else {
                panic!("no attributes for {qp_state}")
            };
            modify(&mut self.pair.hosts[side], session, qpn, *attr, mask).unwrap();
        }
    }

    /// Both QPs fresh, and the two sides connected: their ids, and the listener.
    pub(crate) fn connect(&mut self) -> (u32, u32, u32) {
        for side in 0..2 {
            let (qpn, session) = (self.pair.qps[side].qpn, self.pair.clients[side].session);
            let attr = shm::attr::QpAttr { qp_state: QpState::Reset, ..Default::default() };
            modify(&mut self.pair.hosts[side], session, qpn, attr, shm::attr::QpAttrMask::STATE).unwrap();
        }
        let (listener, active) = (self.listener(1), self.routed(0));
        self.ready(0, active, &[QpState::Init]);
        let param = self.param(0);
        self.done(0, CmRequest::Connect { id: active, param });
        self.pair.exchange();
        let request = self.expect(1, CmEventType::ConnectRequest);
        assert_eq!((request.listen_id, &request.param.private_data[..6]), (Some(listener), &b"hello\0"[..]));
        let passive = request.id;
        self.ready(1, passive, &[QpState::Init, QpState::Rtr, QpState::Rts]);
        let param = self.param(1);
        self.done(1, CmRequest::Accept { id: passive, param });
        self.pair.exchange();
        self.expect(0, CmEventType::ConnectResponse);
        self.ready(0, active, &[QpState::Rtr, QpState::Rts]);
        self.done(0, CmRequest::Accept { id: active, param: ConnParam::default() });
        self.pair.exchange();
        self.expect(1, CmEventType::Established);
        (active, passive, listener)
    }

    /// One more client of a side, of another user.
    pub(crate) fn stranger(&mut self, side: usize) -> u32 {
        self.session_of(side, 2)
    }

    /// One more client of a side.
    pub(crate) fn session_of(&mut self, side: usize, uid: u32) -> u32 {
        let host = &mut self.pair.hosts[side];
        let session = host.control.open_session(Peer { pid: 2, uid }).unwrap();
        let hello = Request::Hello { abi_version: shm::ABI_VERSION, client_name: "stranger".to_owned() };
        assert!(matches!(host.request(session, hello, vec![]).0, Reply::Hello { .. }));
        session
    }
}
