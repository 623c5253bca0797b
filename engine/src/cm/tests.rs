//! Two connection managers and a wire between them, in virtual time.

mod faults;
mod handshake;
mod hostile;
mod limits;
mod refusals;
mod services;

use std::net::{IpAddr, SocketAddr};

use shm::control::cm::{CmEvent, CmEventType, ConnParam};
use wire::cm::{CmMessage, PortSpace};
use wire::{Gid, MacAddr, Qpn};

use super::*;

/// One way, ns.
const DELAY_NS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// What the second host listens on.
const PORT: u16 = 7_174;

fn ip(host: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, 1 + u8::try_from(host).unwrap()])
}

fn port_config(host: usize, interface_mtu: u16) -> PortConfig {
    PortConfig {
        active: true,
        mac: MacAddr([2, 0, 0, 0, 0, u8::try_from(host).unwrap()]),
        addresses: vec![ip(host).into(), IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, 1 + host as u16]).into()],
        interface_mtu,
        answers_arp: true,
        speed_mbps: 0,
        driver: String::new(),
        kernel_interface: None,
    }
}

fn param(qpn: u32) -> ConnParam {
    ConnParam {
        private_data: vec![7; 5],
        responder_resources: 4,
        initiator_depth: 3,
        retry_count: 7,
        rnr_retry_count: 6,
        qp_num: qpn,
        ..ConnParam::default()
    }
}

/// One host and its application.
struct Host {
    cm: Cm,
    seed: u64,
    events: Vec<(CmId, CmEvent)>,
    /// Accepts what comes.
    accepts: bool,
    next_qpn: u32,
}

impl Host {
    fn new(number: usize, config: CmConfig, interface_mtu: u16) -> Self {
        let guid = CaGuid(0x0200_00ff_fe00_0000 + number as u64);
        let cm = Cm::new(config, guid, &[port_config(number, interface_mtu)]);
        Self { cm, seed: 1 + number as u64, events: Vec::new(), accepts: true, next_qpn: 0x100 }
    }

    fn entropy(seed: &mut u64) -> impl FnMut() -> u64 {
        move || {
            // SplitMix64.
            *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }
    }

    /// An id with a route to a port of the other host.
    fn routed(&mut self, to: IpAddr, space: PortSpace) -> CmId {
        let id = self.cm.create_id(space).unwrap();
        self.cm.resolve_addr(id, None, SocketAddr::new(to, PORT)).unwrap();
        self.cm.addr_resolved(id);
        self.cm.resolve_route(id).unwrap();
        id
    }

    fn listener(&mut self, space: PortSpace, backlog: u32) -> CmId {
        let id = self.cm.create_id(space).unwrap();
        self.cm.bind_addr(id, "0.0.0.0:7174".parse().unwrap()).unwrap();
        self.cm.listen(id, backlog).unwrap();
        id
    }

    fn connect(&mut self, now: Time, id: CmId, param: ConnParam) {
        self.cm.connect(now, &mut Self::entropy(&mut self.seed), id, param).unwrap();
    }

    /// Takes events, and does what an application does at each.
    fn run_application(&mut self, now: Time) {
        while let Some((id, event)) = self.cm.poll_event() {
            let asks = matches!(event.event, CmEventType::ConnectRequest | CmEventType::ConnectResponse);
            if asks && self.accepts {
                self.next_qpn += 1;
                let is_request = event.event == CmEventType::ConnectRequest;
                let answer = if is_request { param(self.next_qpn) } else { ConnParam::default() };
                let answer =
                    ConnParam { initiator_depth: answer.initiator_depth.min(event.param.initiator_depth), ..answer };
                self.cm.accept(now, id, &answer).unwrap();
            }
            if event.event == CmEventType::Disconnected {
                self.cm.disconnect(now, id).unwrap();
            }
            self.events.push((id, event));
        }
        self.cm.assert_consistent();
    }

    fn names(&self) -> Vec<&'static str> {
        self.events.iter().map(|(_, event)| event.event.name()).collect()
    }

    fn last(&self) -> &(CmId, CmEvent) {
        self.events.last().expect("an event")
    }
}

/// What becomes of a MAD on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Arrives,
    Lost,
    Doubled,
    Late,
}

/// Decides about each MAD, by who sent it and what it is.
type Faults = Box<dyn FnMut(usize, &CmMessage) -> Fate>;

/// The two hosts.
struct Net {
    hosts: [Host; 2],
    now: Time,
    /// When, to whom, what.
    wire: Vec<(Time, usize, IncomingMad)>,
    /// Everything that was sent: by whom, and its name.
    log: Vec<(usize, &'static str)>,
    fate: Faults,
}

impl Net {
    fn new() -> Self {
        Self::with(CmConfig::default(), [1_500, 1_500])
    }

    fn with(config: CmConfig, mtus: [u16; 2]) -> Self {
        let hosts = [Host::new(0, config, mtus[0]), Host::new(1, config, mtus[1])];
        Self { hosts, now: Time::ZERO, wire: Vec::new(), log: Vec::new(), fate: Box::new(|_, _| Fate::Arrives) }
    }

    fn incoming(from: usize, mad: &OutgoingMad) -> (usize, IncomingMad) {
        let peer = mad.ah.dgid.ip();
        let sources = port_config(from, 1_500).addresses;
        let src = sources[usize::from(mad.ah.sgid_index)].ip;
        let to = usize::from(peer != ip(0) && peer != port_config(0, 1_500).addresses[1].ip);
        let sgid_index = u8::from(peer.is_ipv6());
        let incoming = IncomingMad {
            port: mad.ah.port_num - 1,
            sgid_index,
            src_gid: Gid::from_ip(src),
            src_qpn: Qpn::GSI,
            traffic_class: mad.ah.traffic_class,
            sl: mad.ah.sl,
            bytes: mad.bytes,
        };
        (to, incoming)
    }

    /// Lets applications run and MADs onto the wire.
    fn settle(&mut self) {
        for from in 0..2 {
            self.hosts[from].run_application(self.now);
            while let Some(mad) = self.hosts[from].cm.poll_transmit() {
                let (_, message) = CmMessage::parse(&mad.bytes).expect("we send what we understand");
                self.log.push((from, message.attribute_id().name()));
                let (to, incoming) = Self::incoming(from, &mad);
                let after = |ns| self.now.add_ns(ns);
                match (self.fate)(from, &message) {
                    Fate::Arrives => self.wire.push((after(DELAY_NS), to, incoming)),
                    Fate::Lost => {}
                    Fate::Doubled => {
                        self.wire.extend([(after(DELAY_NS), to, incoming), (after(3 * DELAY_NS), to, incoming)])
                    }
                    Fate::Late => self.wire.push((after(20 * DELAY_NS), to, incoming)),
                }
            }
        }
    }

    /// Runs for so long, or until nothing is to come.
    fn run(&mut self, ns: u64) {
        let end = self.now.add_ns(ns);
        self.settle();
        loop {
            let arrival = self.wire.iter().map(|&(at, ..)| at).min().unwrap_or(Time::NEVER);
            let timer = self.hosts.iter().map(|host| host.cm.next_deadline()).min().unwrap_or(Time::NEVER);
            let next = arrival.min(timer);
            if next > end || next == Time::NEVER {
                break;
            }
            self.now = next;
            let (due, left) = self.wire.drain(..).partition(|&(at, ..)| at <= next);
            self.wire = left;
            for (_, to, mad) in due {
                let host = &mut self.hosts[to];
                host.cm.handle_mad(next, &mut Host::entropy(&mut host.seed), &mad);
            }
            for host in &mut self.hosts {
                host.cm.handle_timers(next);
            }
            self.settle();
        }
        self.now = end;
    }

    /// A listener on host 1, a connection to it from host 0: its id there, and the listener.
    fn connect(&mut self) -> (CmId, CmId) {
        let listener = self.hosts[1].listener(PortSpace::Tcp, 0);
        let id = self.hosts[0].routed(ip(1), PortSpace::Tcp);
        let now = self.now;
        self.hosts[0].connect(now, id, param(0x77));
        (id, listener)
    }

    /// The id of the newest request on host 1.
    fn request(&self) -> CmId {
        let is_request = |event: &&(CmId, CmEvent)| event.1.event == CmEventType::ConnectRequest;
        self.hosts[1].events.iter().rev().find(is_request).expect("a request").0
    }

    fn sent(&self) -> Vec<&'static str> {
        self.log.iter().map(|&(_, name)| name).collect()
    }
}

impl Cm {
    /// The books agree with each other.
    fn assert_consistent(&self) {
        let ids = |map: Vec<CmId>| map.iter().all(|id| self.ids.get(id).is_some_and(|entry| entry.link.is_some()));
        assert!(ids(self.by_comm.values().copied().collect()), "{:?}", self.by_comm);
        assert!(ids(self.by_remote_comm.values().copied().collect()));
        assert!(ids(self.by_remote_qp.values().copied().collect()));
        assert!(ids(self.by_local_qp.values().copied().collect()));
        assert!(ids(self.by_sidr.values().copied().collect()));
        let links = self.ids.values().filter(|entry| entry.link.is_some()).count();
        assert_eq!(self.by_comm.len(), links, "every connection has a number");
        let timers: BTreeSet<_> =
            self.ids.iter().filter(|(_, e)| e.deadline != Time::NEVER).map(|(&id, e)| (e.deadline, id)).collect();
        assert_eq!(timers, self.timers);
        for (id, entry) in &self.ids {
            assert!(entry.link.is_some() || !entry.is_orphan, "an orphan without a connection");
            if entry.state == CmState::Listen {
                let waiting = self.ids.values().filter(|e| e.listener == Some(*id) && e.state.is_half_open()).count();
                assert_eq!(entry.waiting as usize, waiting, "{id:?} {entry:?}");
            }
        }
    }

    /// Nothing is left.
    fn assert_empty(&self) {
        self.assert_consistent();
        assert_eq!(self.ids.len(), 0, "{:?}", self.ids);
        assert_eq!((self.by_comm.len(), self.timers.len(), self.bound.in_use()), (0, 0, 0));
    }
}
