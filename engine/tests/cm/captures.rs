//! The connection manager in the place of either host of a capture of Linux's: given what the other host sent, it sends what the
//! captured host sent, in the same order and bit by bit.
//!
//! Transaction ids of our own are numbers of our own choice: they are compared for being the same where they were the same. What
//! the application did (connect, accept, disconnect) is read off the captured host's messages. A DREP is ours as soon as the DREQ
//! has come, and not when the application disconnects; its place in the order is the same.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use engine::Time;
use engine::cm::{Cm, CmConfig, CmId};
use engine::config::PortConfig;
use engine::gsi::IncomingMad;
use pcap_file::pcap::PcapReader;
use shm::control::cm::{CmEventType, ConnParam};
use wire::cm::{CaGuid, CmMessage, IpCmHeader, ReqRepr, ServiceId, TransactionId};
use wire::{Frame, Gid, MacAddr, Qpn};

/// What Linux 6.1's rdma_cm is set to.
const LINUX: CmConfig = CmConfig {
    max_id: 64,
    max_backlog: 64,
    packet_lifetime: 18,
    ack_delay: 15,
    response_timeout: 20,
    max_retries: 15,
    service_timeout: 24,
    max_rd_atomic: 128,
    selective: false,
};

struct Captured {
    number: usize,
    at: Duration,
    from: IpAddr,
    to: IpAddr,
    transaction: TransactionId,
    message: CmMessage,
}

fn load(name: &str) -> Vec<Captured> {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors");
    let mut reader = PcapReader::new(File::open(vectors.join(name).with_extension("pcap")).unwrap()).unwrap();
    let mut mads = Vec::new();
    let mut number = 0;
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        number += 1;
        let frame = Frame::parse(&packet.data).unwrap();
        if frame.bth().dest_qpn == Qpn::GSI {
            let (header, message) = frame.cm_message().unwrap();
            let (from, to, at) = (frame.src_ip(), frame.dst_ip(), packet.timestamp);
            mads.push(Captured { number, at, from, to, transaction: header.transaction_id, message });
        }
    }
    mads
}

/// One of the two hosts, played by us.
struct Replay {
    name: String,
    cm: Cm,
    us: IpAddr,
    now: Time,
    id: Option<CmId>,
    /// Captured transaction ids that were the host's own, and ours.
    transactions: BTreeMap<TransactionId, TransactionId>,
    /// When each message that the host sent was sent last.
    sent_at: BTreeMap<&'static str, Duration>,
    events: Vec<CmEventType>,
}

impl Replay {
    fn new(name: &str, us: IpAddr) -> Self {
        let last = Gid::from_ip(us).0[15] & 0xf;
        // Hosts a and b: 52:54:00:00:00:0a and :0b.
        let mac = MacAddr([0x52, 0x54, 0, 0, 0, if last & 1 == 1 { 0x0b } else { 0x0a }]);
        let port = PortConfig {
            active: true,
            mac,
            addresses: vec![us.into()],
            interface_mtu: 1_500,
            answers_arp: true,
            speed_mbps: 0,
            driver: String::new(),
            kernel_interface: None,
        };
        let guid = CaGuid(0x5054_00ff_fe00_0000 | u64::from(mac.0[5]));
        let cm = Cm::new(LINUX, guid, &[port]);
        Self {
            name: format!("{name} as {us}"),
            cm,
            us,
            now: Time::ZERO,
            id: None,
            transactions: BTreeMap::new(),
            sent_at: BTreeMap::new(),
            events: Vec::new(),
        }
    }

    /// A listener where the capture has one.
    fn listen(&mut self, service: ServiceId) {
        let (space, port) = service.port().unwrap();
        let id = self.cm.create_id(space).unwrap();
        self.cm.bind_addr(id, SocketAddr::new(self.us, port)).unwrap();
        self.cm.listen(id, 0).unwrap();
    }

    /// What the other host sent.
    fn receive(&mut self, captured: &Captured, numbers: u64) {
        // Where it answered with a transaction id of the captured host's, that is now one of ours.
        let transaction = self.transactions.get(&captured.transaction).copied().unwrap_or(captured.transaction);
        let mad = IncomingMad {
            port: 0,
            sgid_index: 0,
            src_gid: Gid::from_ip(captured.from),
            src_qpn: Qpn::GSI,
            traffic_class: 0,
            sl: 0,
            bytes: captured.message.to_mad(transaction),
        };
        self.cm.handle_mad(self.now, &mut || numbers, &mad);
        self.take_events();
    }

    fn take_events(&mut self) {
        while let Some((id, event)) = self.cm.poll_event() {
            if event.event == ConnectRequest {
                self.id = Some(id);
            }
            self.events.push(event.event);
        }
    }

    /// Does what makes the captured host send this.
    fn act(&mut self, captured: &Captured) {
        let name = captured.message.attribute_id().name();
        if let Some(before) = self.sent_at.insert(name, captured.at) {
            // Once more: because of what came, or because it was time to, here and there.
            if matches!(captured.message, CmMessage::Req(_) | CmMessage::Rep(_) | CmMessage::Dreq(_)) {
                let waited_ns = self.cm.next_deadline().ns_since(self.now);
                let theirs_ns = (captured.at - before).as_nanos() as u64;
                assert!(
                    waited_ns.abs_diff(theirs_ns) < theirs_ns / 10,
                    "{}: {waited_ns} and {theirs_ns} ns",
                    self.name
                );
                self.now = self.cm.next_deadline();
                self.cm.handle_timers(self.now);
            }
            return;
        }
        let id = || self.id.expect("an id");
        let param = ConnParam { private_data: Vec::new(), ..ConnParam::default() };
        match &captured.message {
            CmMessage::Req(req) => {
                let param = req_param(req);
                self.connect(captured, req.service_id, &req.private_data, numbers(captured), param);
            }
            CmMessage::SidrReq(req) => {
                let private_data = req.private_data[IpCmHeader::LEN..].to_vec();
                let param = ConnParam { private_data, ..param };
                self.connect(captured, req.service_id, &req.private_data, numbers(captured), param);
            }
            CmMessage::Rep(rep) => {
                let param = ConnParam {
                    private_data: rep.private_data.to_vec(),
                    responder_resources: rep.responder_resources,
                    initiator_depth: rep.initiator_depth,
                    flow_control: rep.flow_control,
                    rnr_retry_count: rep.rnr_retry_count,
                    srq: rep.srq,
                    qp_num: rep.qpn.value(),
                    ..param
                };
                self.cm.accept(self.now, id(), &param).unwrap();
            }
            CmMessage::SidrRep(rep) => {
                let (qp_num, qkey) = (rep.qpn.value(), rep.qkey.0);
                let param = ConnParam { private_data: rep.private_data.to_vec(), qp_num, qkey, ..param };
                self.cm.accept(self.now, id(), &param).unwrap();
            }
            CmMessage::Rtu(_) => self.cm.accept(self.now, id(), &param).unwrap(),
            CmMessage::Dreq(_) => self.cm.disconnect(self.now, id()).unwrap(),
            // Those are sent without the application.
            CmMessage::Drep(_) | CmMessage::Rej(_) => {}
            other => panic!("{}: {other}", self.name),
        }
    }

    fn connect(&mut self, captured: &Captured, service: ServiceId, data: &[u8], numbers: u64, param: ConnParam) {
        let (space, port) = service.port().unwrap();
        let addresses = IpCmHeader::parse(data).unwrap();
        let id = self.cm.create_id(space).unwrap();
        let (src, dst) = (SocketAddr::new(self.us, addresses.src_port), SocketAddr::new(captured.to, port));
        self.cm.resolve_addr(id, Some(src), dst).unwrap();
        self.cm.addr_resolved(id);
        self.cm.resolve_route(id).unwrap();
        self.cm.connect(self.now, &mut || numbers, id, param).unwrap();
        self.id = Some(id);
        self.take_events();
    }

    /// What the captured host sent is what we have sent, or just did.
    fn compare(&mut self, captured: &Captured) {
        let sent =
            self.cm.poll_transmit().unwrap_or_else(|| panic!("{} packet {}: nothing sent", self.name, captured.number));
        assert_eq!(sent.ah.dgid, Gid::from_ip(captured.to), "{} packet {}", self.name, captured.number);
        let (header, message) = CmMessage::parse(&sent.bytes).unwrap();
        assert_eq!(message, captured.message, "{} packet {}", self.name, captured.number);
        let ours = *self.transactions.entry(captured.transaction).or_insert(header.transaction_id);
        assert_eq!(header.transaction_id, ours, "{} packet {}", self.name, captured.number);
        assert_eq!(sent.bytes, captured.message.to_mad(ours));
        self.take_events();
    }
}

fn req_param(req: &ReqRepr) -> ConnParam {
    ConnParam {
        private_data: req.private_data[IpCmHeader::LEN..].to_vec(),
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        flow_control: req.flow_control,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        srq: req.srq,
        qp_num: req.qpn.value(),
        qkey: 0,
        ece: None,
    }
}

/// The random numbers of the captured host: its communication id above, its PSN below.
fn numbers(captured: &Captured) -> u64 {
    let psn = match &captured.message {
        CmMessage::Req(req) => req.starting_psn.value(),
        CmMessage::Rep(rep) => rep.starting_psn.value(),
        _ => 0,
    };
    u64::from(captured.message.local_comm_id().0) << 32 | u64::from(psn)
}

/// Plays the host at `us`; `lost` are packets that it did not get.
fn replay(name: &str, us: IpAddr, lost: &[usize]) -> Vec<CmEventType> {
    let mads = load(name);
    let mut replay = Replay::new(name, us);
    let refused = mads.iter().any(|mad| matches!(mad.message, CmMessage::Rej(_)));
    if let Some(service) = mads.iter().find(|mad| mad.to == us).and_then(|mad| match &mad.message {
        CmMessage::Req(req) if !refused => Some(req.service_id),
        CmMessage::SidrReq(req) => Some(req.service_id),
        _ => None,
    }) {
        replay.listen(service);
    }
    let own_numbers = mads.iter().find(|mad| mad.from == us).map_or(0, numbers);
    for captured in &mads {
        if captured.from == us {
            replay.act(captured);
            replay.compare(captured);
        } else if !lost.contains(&captured.number) {
            replay.receive(captured, own_numbers);
        }
    }
    assert_eq!(replay.cm.poll_transmit(), None, "{}: sent what the captured host did not", replay.name);
    replay.events
}

/// Both hosts of a capture.
fn both(name: &str, lost: &[usize]) -> [Vec<CmEventType>; 2] {
    let first = load(name).swap_remove(0);
    [first.from, first.to].map(|us| replay(name, us, lost))
}

use CmEventType::{AddrResolved, ConnectRequest, ConnectResponse, Disconnected, Established, Rejected, RouteResolved};

#[test]
fn connections_of_linux_are_made_and_ended_as_by_linux() {
    for (name, lost) in [
        ("cm_rping", &[][..]),
        ("cm_rping_ipv6", &[]),
        ("cm_ucmatose", &[]),
        ("cm_private_data", &[]),
        ("cm_loss_rtu", &[3]),
        ("cm_loss_drep", &[5]),
    ] {
        let [active, passive] = both(name, lost);
        assert_eq!(active, [AddrResolved, RouteResolved, ConnectResponse, Disconnected], "{name}");
        assert_eq!(passive, [ConnectRequest, Established, Disconnected], "{name}");
    }
}

#[test]
fn refusals_of_linux_are_the_same() {
    let [active, passive] = both("cm_rej_no_listener", &[]);
    assert_eq!(active, [AddrResolved, RouteResolved, Rejected]);
    assert_eq!(passive, []);
}

#[test]
fn services_of_linux_are_found() {
    let [active, passive] = both("cm_udaddy", &[]);
    assert_eq!(active, [AddrResolved, RouteResolved, Established]);
    assert_eq!(passive, [ConnectRequest]);
}

#[test]
fn nobody_there_is_asked_as_often_and_as_far_apart_as_by_linux() {
    let mads = load("cm_unreachable");
    assert_eq!(mads.len(), 16);
    let events = replay("cm_unreachable", mads[0].from, &[]);
    assert_eq!(events, [AddrResolved, RouteResolved]);
}
