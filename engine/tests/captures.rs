//! The engine in the place of either host of a capture of Linux's rxe: given what the other host sent, it sends what the
//! captured host sent, frame by frame and bit by bit.
//!
//! Left out of the comparison: the IPv4 identification with its checksum, MigReq and the IPv6 flow label (rxe sends 0: see
//! `docs/deviations.md`), and the ICRC, which differs with MigReq and is checked by itself. What else differs is listed with
//! each capture. Those of UC and UD are in
//! `unreliable/captures.rs`.

mod support;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use engine::config::PortAddress;
use pcap_file::pcap::PcapReader;
use shm::attr::{AccessFlags, AhAttr, QpAttr, QpCap, QpState, SendFlags, WcStatus, WrOpcode};
use shm::control::{Reply, Request};
use shm::layout::SendWqe;
use support::{BASE, CAP, Client, Connect, Host, HostOptions, STEPS, TestQp, attributes, modify};
use wire::{
    ArpOperation, ArpRepr, EtherType, Frame, Gid, NakCode, NdpMessage, NdpRepr, OpKind, Opcode, PathMtu, Psn, Qpn,
    Syndrome,
};

/// A capture, and where the engine rightly does something else.
#[derive(Clone, Copy, Default)]
struct Case {
    name: &'static str,
    /// Packets that the receiving host's own filter dropped: they were on the wire, but not received.
    lost: &'static [usize],
    /// Packets that rxe sends and the specification forbids.
    not_sent: &'static [usize],
    /// NAKs that the specification wants with another syndrome.
    syndromes: &'static [(usize, u8)],
    /// A switch (here: the sender's own filter) changed the ECN bits.
    ecn_changed: bool,
    /// `retry_cnt`, if it is used up.
    retry_cnt: Option<u8>,
}

const fn plain(name: &'static str) -> Case {
    Case { name, lost: &[], not_sent: &[], syndromes: &[], ecn_changed: false, retry_cnt: None }
}

const fn lossy(name: &'static str, lost: &'static [usize]) -> Case {
    Case { lost, ..plain(name) }
}

const CASES: [Case; 40] = [
    plain("rc_send_small"),
    plain("rc_send_multi"),
    plain("rc_send_imm"),
    plain("rc_send_solicited"),
    plain("rc_write_small"),
    plain("rc_write_multi"),
    plain("rc_write_imm"),
    plain("rc_write_long"),
    plain("rc_read_small"),
    plain("rc_read_multi"),
    plain("rc_atomic"),
    plain("rc_mtu_256_512"),
    // After an RNR NAK the rest of the burst is dropped silently (IBTA 9.7.5.1.1); rxe answers it with a sequence NAK.
    Case { not_sent: &[5, 10, 15, 20], ..plain("rc_rnr") },
    plain("rc_nak_access"),
    // A SEND longer than its receive is an invalid request (IBTA 9.7.4.1.6); rxe calls it an operational error.
    Case { syndromes: &[(12, 0x61), (17, 0x61)], ..plain("rc_nak_invalid") },
    Case { retry_cnt: Some(3), ..plain("rc_retry_exhaust") },
    lossy("rc_loss_middle", &[2]),
    lossy("rc_loss_last", &[4]),
    lossy("rc_loss_ack_covered", &[4]),
    lossy("rc_loss_readreq", &[1]),
    lossy("rc_loss_readresp_middle", &[3]),
    Case { ecn_changed: true, ..plain("rc_ecn_ce") },
    plain("ibv_rc_pingpong"),
    plain("ibv_rc_pingpong_4k"),
    plain("ibv_srq_pingpong"),
    plain("ibv_rc_pingpong_ipv6"),
    plain("rc_ipv6_global"),
    plain("rc_ipv6_linklocal"),
    plain("rc_vlan"),
    plain("ib_write_lat"),
    plain("ib_write_bw"),
    plain("ib_read_lat"),
    plain("ib_read_bw"),
    plain("ib_send_lat"),
    plain("ib_atomic_lat_faa"),
    plain("ib_atomic_lat_cas"),
    plain("cm_rping"),
    plain("cm_rping_ipv6"),
    plain("cm_ucmatose"),
    plain("cm_private_data"),
];

const MIB: u64 = 1 << 20;
/// Where receives, data to send and answers to READs lie in the memory; regions for the peer follow.
const RECEIVES: u64 = 0;
const SOURCES: u64 = MIB;
const TARGETS: u64 = 2 * MIB;
const REGIONS: u64 = 3 * MIB;
const MEMORY_BYTES: u64 = 8 * MIB;

struct Captured {
    /// As in the decoding: from 1.
    number: usize,
    from: usize,
    bytes: Vec<u8>,
}

impl Captured {
    fn frame(&self) -> Frame<'_> {
        Frame::parse(&self.bytes).unwrap()
    }

    fn psn(&self) -> Psn {
        self.frame().bth().psn
    }

    fn kind(&self) -> OpKind {
        self.frame().info().kind
    }

    fn is_request(&self) -> bool {
        !self.kind().is_response()
    }

    /// Both directions of a connection use the same source port.
    fn port(&self) -> u16 {
        self.frame().udp_src_port().unwrap()
    }

    /// The NAK code that broke the QP, if this is such a NAK.
    fn fatal_nak(&self) -> Option<NakCode> {
        match self.frame().aeth()?.syndrome {
            Syndrome::Nak(code) if code != NakCode::PsnSequence => Some(code),
            _ => None,
        }
    }
}

/// RC packets of a capture; the flow label that a connection manager agreed on, if one did.
fn load(name: &str) -> (Vec<Captured>, u32) {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors");
    let mut reader = PcapReader::new(File::open(vectors.join(name).with_extension("pcap")).unwrap()).unwrap();
    let (mut packets, mut flow_label) = (Vec::new(), 0);
    let mut number = 0;
    while let Some(packet) = reader.next_packet() {
        number += 1;
        let bytes = packet.unwrap().data.into_owned();
        let frame = Frame::parse(&bytes).unwrap();
        if frame.bth().dest_qpn == Qpn::GSI {
            // A REQ's flow label: 20 bits at 88 of the message, behind a header of 24 (IBTA 12.6.5).
            if frame.payload()[16..18] == [0, 0x10] {
                let word = frame.payload()[24 + 88..].first_chunk().unwrap();
                flow_label = u32::from_be_bytes(*word) >> 12;
            }
            continue;
        }
        let from = usize::from(is_b(frame.src_ip()));
        packets.push(Captured { number, from, bytes });
    }
    (packets, flow_label)
}

/// Host a's addresses end with 10, host b's with 11 (0x11 where they are fd77::11).
fn is_b(ip: IpAddr) -> bool {
    let last = Gid::from_ip(ip).0[15];
    assert!([10, 11, 0x10, 0x11].contains(&last), "{ip}");
    last & 1 == 1
}

/// A message that one host sent.
struct Message {
    psn: Psn,
    psn_count: u32,
    opcode: WrOpcode,
    wqe: SendWqe,
    data: Vec<u8>,
    /// Bytes that a READ or atomic brings back.
    wanted: u32,
}

/// One connection of the capture.
struct Link {
    qpns: [u32; 2],
    psns: [u32; 2],
    mtu: PathMtu,
    /// Messages by each host, by rising PSN.
    messages: [Vec<Message>; 2],
    /// Who broke the other's QP, and at which PSN.
    fatal: Option<(usize, Psn)>,
}

impl Link {
    fn new(packets: &[Captured], port: u16) -> Self {
        let own = || packets.iter().filter(|p| p.port() == port);
        let mut qpns = [0; 2];
        let mut psns = [0x5_0000; 2];
        for side in 0..2 {
            qpns[1 - side] = own().find(|p| p.from == side).map_or(0, |p| p.frame().bth().dest_qpn.value());
            if let Some(first) = own().find(|p| p.from == side && p.is_request()) {
                psns[side] = first.psn().value();
            }
        }
        for side in 0..2 {
            if qpns[side] == 0 {
                // A host that nobody answered: the one QPN that gives this source port.
                let derived = |qpn: &u32| {
                    let label = wire::flow_label_from_qpns(Qpn::new(*qpn), Qpn::new(qpns[1 - side]));
                    wire::source_port_for_flow_label(label) == port
                };
                qpns[side] = (17..256).find(derived).unwrap();
            }
        }
        let full = own().find(|p| !p.frame().info().position.ends()).map_or(1024, |p| p.frame().payload().len());
        let mtu = PathMtu::from_bytes(full as u32).unwrap();
        let fatal = own().find(|p| p.fatal_nak().is_some()).map(|p| (p.from, p.psn()));
        let messages = [0, 1].map(|side| {
            let requests: Vec<_> = own().filter(|p| p.from == side && p.is_request()).collect();
            messages(&requests, mtu)
        });
        Self { qpns, psns, mtu, messages, fatal }
    }

    /// Whether the other host executed this message of `side`.
    fn was_executed(&self, side: usize, message: &Message) -> bool {
        self.fatal.is_none_or(|(by, psn)| by == side || !psn.is_before(message.psn.add(message.psn_count)))
    }
}

/// Puts the requests of one host on one connection together again.
fn messages(requests: &[&Captured], mtu: PathMtu) -> Vec<Message> {
    let mut found: Vec<Message> = Vec::new();
    for first in requests.iter().filter(|p| p.frame().info().position.starts()) {
        let psn = first.psn();
        if found.iter().any(|m| psn.distance_from(m.psn) < m.psn_count.cast_signed()) {
            // A repeat, from the start or (a READ) from the middle.
            continue;
        }
        let frame = first.frame();
        let mut data = Vec::new();
        let mut last = *first;
        for at in 0.. {
            last = requests.iter().find(|p| p.psn() == psn.add(at)).unwrap();
            data.extend(last.frame().payload());
            if last.frame().info().position.ends() {
                break;
            }
        }
        let end = last.frame();
        let opcode = match (frame.info().kind, end.info().has_imm()) {
            (OpKind::Send, false) => WrOpcode::Send,
            (OpKind::Send, true) => WrOpcode::SendWithImm,
            (OpKind::Write, false) => WrOpcode::RdmaWrite,
            (OpKind::Write, true) => WrOpcode::RdmaWriteWithImm,
            (OpKind::ReadRequest, _) => WrOpcode::RdmaRead,
            (OpKind::CompareSwap, _) => WrOpcode::AtomicCmpAndSwp,
            _ => WrOpcode::AtomicFetchAndAdd,
        };
        let solicited = if end.bth().solicited { SendFlags::SOLICITED.0 } else { 0 };
        let mut wqe = SendWqe {
            opcode: opcode as u8,
            flags: SendFlags::SIGNALED.0 | solicited,
            imm: end.immdt().map_or(0, |imm| imm.data.to_be()),
            ..SendWqe::default()
        };
        let mut wanted = 0;
        if let Some(reth) = frame.reth() {
            (wqe.remote_addr, wqe.rkey) = (reth.va, reth.rkey.0);
            wanted = if opcode == WrOpcode::RdmaRead { reth.dma_len } else { 0 };
        }
        if let Some(atomic) = frame.atomiceth() {
            (wqe.remote_addr, wqe.rkey, wanted) = (atomic.va, atomic.rkey.0, 8);
            let add = opcode == WrOpcode::AtomicFetchAndAdd;
            wqe.compare_add = if add { atomic.swap_or_add } else { atomic.compare };
            wqe.swap = if add { 0 } else { atomic.swap_or_add };
        }
        let bytes = if opcode == WrOpcode::RdmaRead { wanted } else { data.len() as u32 };
        let psn_count = bytes.div_ceil(mtu.bytes()).max(1);
        found.push(Message { psn, psn_count, opcode, wqe, data, wanted });
    }
    found
}

/// A region as the capture's requests use it.
struct Region {
    va: u64,
    end: u64,
    offset: u64,
}

/// The engine in the place of one host.
struct Replay<'a> {
    case: Case,
    side: usize,
    packets: &'a [Captured],
    links: BTreeMap<u16, Link>,
    host: Host,
    client: Client,
    qps: BTreeMap<u16, TestQp>,
    regions: BTreeMap<u32, Region>,
    now: engine::Time,
    /// What the engine sent on each connection and the capture has not come to. Between connections there is no order.
    said: BTreeMap<u16, VecDeque<Vec<u8>>>,
    /// Messages posted on each connection.
    posted: BTreeMap<u16, usize>,
    /// Words that an atomic has touched: from then on their value is the engine's.
    words: Vec<u64>,
    received: u64,
}

impl<'a> Replay<'a> {
    fn new(case: Case, side: usize, packets: &'a [Captured], flow_label: u32) -> Self {
        let links: BTreeMap<u16, Link> =
            packets.iter().map(Captured::port).map(|port| (port, Link::new(packets, port))).collect();
        // Keys are drawn from here: first that of the application's own memory, then the peer's.
        let keys = Arc::new(Mutex::new(VecDeque::from([0x1_0001u64])));
        let drawn = Arc::clone(&keys);
        let mut options = HostOptions::new(1);
        // As rxe does: what comes early is dropped, and comes again.
        options.recovery.kept_packets = 0;
        let sent = packets.iter().find(|p| p.from == side).unwrap();
        let vlan = PortAddress::vlan_of(sent.frame().vlan());
        options.addresses = vec![PortAddress { vlan, ..sent.frame().src_ip().into() }];
        options.mac = sent.frame().src_mac().0;
        options.transport.ack_request_packets = 66;
        options.entropy = Box::new(move || drawn.lock().unwrap().pop_front().unwrap() << 32);
        let mut host = Host::new(options);
        let client = Client::with_region(&mut host, MEMORY_BYTES, REGIONS);
        let regions = regions(side, &links);
        for (&key, region) in &regions {
            keys.lock().unwrap().push_back(u64::from(key));
            let access = AccessFlags::LOCAL_WRITE
                | AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_ATOMIC;
            let request = Request::RegMr {
                pd: client.pd,
                memory: client.attached,
                offset: region.offset,
                addr: region.va,
                length: region.end - region.va,
                access,
            };
            let (Reply::Mr { rkey, .. }, _) = host.request(client.session, request, vec![]) else { panic!() };
            assert_eq!(rkey, key);
        }
        let mut replay = Self {
            case,
            side,
            packets,
            links,
            host,
            client,
            qps: BTreeMap::new(),
            regions,
            now: engine::Time::ZERO,
            said: BTreeMap::new(),
            posted: BTreeMap::new(),
            words: Vec::new(),
            received: 0,
        };
        replay.connect(flow_label);
        replay.meet_the_neighbour();
        replay
    }

    /// QPs with the numbers of the capture. Numbers are handed out in order: those between are used up.
    fn connect(&mut self, flow_label: u32) {
        let mut links: Vec<_> = self.links.iter().map(|(&port, link)| (link.qpns[self.side], port)).collect();
        links.sort_unstable();
        let filler = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        for (qpn, port) in links {
            let cap = QpCap { max_send_wr: 64, ..CAP };
            let mut qp = self.client.qp(&mut self.host, cap);
            while qp.qpn != qpn {
                assert!(qp.qpn < qpn, "QPN {qpn:#x} is taken");
                let request = Request::DestroyQp { qpn: qp.qpn };
                assert_eq!(self.host.request(self.client.session, request, vec![]).0, Reply::Done);
                let near = qp.qpn + 1 == qpn;
                qp = self.client.qp(&mut self.host, if near { cap } else { filler });
            }
            let attr = self.attributes(port, flow_label);
            for (qp_state, mask) in STEPS {
                modify(&mut self.host, self.client.session, qpn, QpAttr { qp_state, ..attr }, mask).unwrap();
            }
            self.qps.insert(port, qp);
        }
    }

    fn attributes(&self, port: u16, flow_label: u32) -> QpAttr {
        let (link, side) = (&self.links[&port], self.side);
        let own = || self.packets.iter().filter(move |p| p.from == side && p.port() == port);
        let rnr = own().find_map(|p| match p.frame().aeth()?.syndrome {
            Syndrome::RnrNak { timer } => Some(timer.code()),
            _ => None,
        });
        // Who answers with NAK 1 gave its peer no right (or, to a SEND, too short a receive).
        let without_rights = own().any(|p| p.fatal_nak() == Some(NakCode::InvalidRequest));
        let connect = Connect {
            path_mtu: link.mtu.code(),
            psn: link.psns,
            retry_cnt: self.case.retry_cnt.unwrap_or(7),
            min_rnr_timer: rnr.unwrap_or(0),
            rd_atomic: 16,
            access: if without_rights { AccessFlags::NONE } else { Connect::default().access },
            ..Connect::default()
        };
        let sent = own().next().map(Captured::frame).unwrap();
        let attr = attributes(sent.dst_ip(), link.qpns[1 - side], connect, side);
        let (traffic_class, sl) = (sent.traffic_class(), sent.vlan().map_or(0, |tag| tag.pcp));
        QpAttr { ah_attr: AhAttr { flow_label, traffic_class, sl, ..attr.ah_attr }, ..attr }
    }

    fn meet_the_neighbour(&mut self) {
        let sent = self.packets.iter().find(|p| p.from == self.side).unwrap().frame();
        let [asked] = self.host.turn(self.now).try_into().unwrap();
        // The request's own link layer, addresses turned around.
        let link_len = if sent.vlan().is_some() { 18 } else { 14 };
        let mut reply = [&sent.src_mac().0, &sent.dst_mac().0, &asked[12..link_len]].concat();
        match (sent.src_ip(), sent.dst_ip()) {
            (IpAddr::V4(ours), IpAddr::V4(peer)) => {
                let arp = ArpRepr {
                    operation: ArpOperation::Reply,
                    sender_mac: sent.dst_mac(),
                    sender_ip: peer,
                    target_mac: sent.src_mac(),
                    target_ip: ours,
                };
                reply.extend(arp.to_bytes());
            }
            (IpAddr::V6(ours), IpAddr::V6(peer)) => {
                let message = NdpMessage::Advertisement { router: false, solicited: true, override_known: true };
                let ndp = NdpRepr { src: peer, dst: ours, message, target: peer, link_layer: Some(sent.dst_mac()) };
                let mut packet = vec![0; ndp.packet_len()];
                assert!(ndp.emit(&mut packet).is_some_and(|rest| rest.is_empty()));
                reply.extend(packet);
            }
            other => panic!("{other:?}"),
        }
        self.host.receive(self.now, &reply);
        assert!(self.host.turn(self.now).is_empty());
    }

    fn run(&mut self) {
        let mut deferred: Vec<&Captured> = Vec::new();
        for packet in self.packets {
            if packet.from == self.side {
                self.expect(packet);
            } else if packet.fatal_nak().is_some() {
                // rxe had more requests in its queues when this came; here it comes when they have been sent.
                deferred.push(packet);
            } else if !self.case.lost.contains(&packet.number) {
                self.give(packet);
            }
        }
        for packet in deferred {
            self.give(packet);
        }
        let rest: Vec<_> = self.said.values().flatten().map(|frame| words(frame)).collect();
        assert!(rest.is_empty(), "{}: more than the capture has: {rest:?}", self.case.name);
    }

    fn turn(&mut self) {
        loop {
            let frames = self.host.turn(self.now);
            let done = frames.is_empty() && !self.host.shard().wants_transmit();
            for frame in frames {
                let port = Frame::parse(&frame).unwrap().udp_src_port().unwrap();
                self.said.entry(port).or_default().push_back(frame);
            }
            if done {
                return;
            }
        }
    }

    /// The captured host sends this.
    fn expect(&mut self, packet: &Captured) {
        if self.case.not_sent.contains(&packet.number) {
            return;
        }
        if packet.is_request() {
            self.post_if_new(packet);
        }
        // Nothing to say yet: it must be a timer that makes it speak.
        let port = packet.port();
        for _ in 0..3 {
            if self.said.get(&port).is_none_or(VecDeque::is_empty) {
                self.now = self.now.max(self.host.shard().next_deadline());
                self.turn();
            }
        }
        let what = format!("{} packet {}", self.case.name, packet.number);
        let said = self.said.get_mut(&port).and_then(|said| {
            // rxe takes no notice of marks; the engine tells of them.
            if self.case.ecn_changed && said.front().is_some_and(|frame| is_cnp(frame)) {
                said.pop_front();
            }
            said.pop_front()
        });
        let said = said.unwrap_or_else(|| panic!("{what}: {} was not sent", words(&packet.bytes)));
        assert!(Frame::parse(&said).unwrap().icrc_ok(), "{what}");
        let syndrome = self.case.syndromes.iter().find(|s| s.0 == packet.number).map(|s| s.1);
        let expected = normalized(&packet.bytes, syndrome, self.case.ecn_changed);
        let found = normalized(&said, None, self.case.ecn_changed);
        assert!(
            found == expected,
            "{what}:\n{}\n{}\n{expected:02x?}\n{found:02x?}",
            words(&packet.bytes),
            words(&said)
        );
    }

    /// The application posts a message as it first appears.
    fn post_if_new(&mut self, packet: &Captured) {
        let port = packet.port();
        let posted = self.posted.entry(port).or_default();
        let Some(message) = self.links[&port].messages[self.side].get(*posted) else { return };
        if message.psn != packet.psn() {
            return;
        }
        let index = *posted as u64;
        *posted += 1;
        self.client.memory.write(SOURCES, &message.data).unwrap();
        let is_answered = message.wanted > 0;
        let (at, length) =
            if is_answered { (TARGETS + index * 65_536, message.wanted) } else { (SOURCES, message.data.len() as u32) };
        let sge = self.client.sge(at, length);
        let wqe = SendWqe { wr_id: u64::from(port) << 16 | index, ..message.wqe };
        self.qps.get_mut(&port).unwrap().post(wqe, &[sge]);
        self.turn();
    }

    /// The other host sends this.
    fn give(&mut self, packet: &Captured) {
        if packet.is_request() {
            self.prepare(packet);
        }
        self.host.receive(self.now, &packet.bytes);
        self.turn();
    }

    /// What the captured host's application had done before it executed a request: receives, and values in its memory.
    fn prepare(&mut self, packet: &Captured) {
        let (port, frame) = (packet.port(), packet.frame());
        let takes_receive = frame.info().has_imm() || frame.info().kind == OpKind::Send;
        let first = if frame.info().kind == OpKind::Send { frame.info().position.starts() } else { true };
        if takes_receive && first && self.is_expected(packet) && !self.draws_rnr(packet) {
            self.received += 1;
            let sge = self.client.sge(RECEIVES, self.receive_bytes(packet));
            self.qps.get_mut(&port).unwrap().post_recv(self.received, &[sge]);
        }
        let answers =
            self.packets.iter().filter(|p| p.from == self.side && p.port() == port && p.number > packet.number);
        if let Some(reth) = frame.reth().filter(|_| frame.info().kind == OpKind::ReadRequest) {
            let mtu = u64::from(self.links[&port].mtu.bytes());
            for answer in answers.filter(|p| p.kind() == OpKind::ReadResponse) {
                let at = u64::from(answer.psn().distance_from(packet.psn()).cast_unsigned()) * mtu;
                if at < u64::from(reth.dma_len) {
                    self.set(reth.rkey.0, reth.va + at, answer.frame().payload());
                }
            }
        } else if let Some(atomic) = frame.atomiceth() {
            let answer = answers.filter(|p| p.psn() == packet.psn()).find_map(|p| p.frame().atomicacketh());
            if let Some(result) = answer
                && !self.words.contains(&atomic.va)
            {
                self.words.push(atomic.va);
                self.set(atomic.rkey.0, atomic.va, &result.original.to_ne_bytes());
            }
        }
    }

    fn is_expected(&mut self, packet: &Captured) -> bool {
        let qpn = self.qps[&packet.port()].qpn;
        match self.host.request(self.client.session, Request::QueryQp { qpn }, vec![]).0 {
            Reply::QpAttr(attr) => attr.rq_psn == packet.psn().value(),
            other => panic!("{other:?}"),
        }
    }

    /// Whether the next thing that the captured host says on this connection is an RNR NAK for this packet.
    fn draws_rnr(&self, packet: &Captured) -> bool {
        let own = |p: &&Captured| p.from == self.side && p.port() == packet.port() && p.number > packet.number;
        self.packets.iter().find(own).is_some_and(|p| {
            p.psn() == packet.psn()
                && matches!(p.frame().aeth(), Some(aeth) if matches!(aeth.syndrome, Syndrome::RnrNak { .. }))
        })
    }

    /// Large enough, unless the capture is about one that is not.
    fn receive_bytes(&self, packet: &Captured) -> u32 {
        let link = &self.links[&packet.port()];
        match link.fatal {
            Some((by, psn)) if by == self.side => {
                psn.distance_from(packet.psn()).cast_unsigned() * link.mtu.bytes() + 10
            }
            _ => 65_536,
        }
    }

    fn set(&self, rkey: u32, va: u64, data: &[u8]) {
        if let Some(region) = self.regions.get(&rkey) {
            self.client.memory.write(region.offset + (va - region.va), data).unwrap();
        }
    }

    /// What both applications have at the end.
    fn check_outcome(&mut self) {
        let mut statuses = BTreeMap::new();
        let mut received = 0;
        for cqe in self.client.poll() {
            let status = WcStatus::from_code(cqe.status).unwrap();
            if cqe.opcode >= 128 {
                received += u64::from(status == WcStatus::Success);
            } else {
                statuses.insert(cqe.wr_id, status);
            }
        }
        let (mut peer_sent, name) = (0, self.case.name);
        for (&port, link) in &self.links {
            for (index, message) in (0..).zip(&link.messages[self.side]) {
                let status = statuses.get(&(u64::from(port) << 16 | index)).copied();
                let good = link.was_executed(self.side, message) && self.case.retry_cnt.is_none();
                assert_eq!(status == Some(WcStatus::Success), good, "{name}: message {index} is {status:?}");
                if good && message.opcode == WrOpcode::RdmaRead {
                    self.check_read(port, index, message);
                }
            }
            for message in &link.messages[1 - self.side] {
                let takes_receive =
                    matches!(message.opcode, WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm);
                peer_sent += u64::from(takes_receive && link.was_executed(1 - self.side, message));
            }
        }
        assert_eq!(received, peer_sent, "{name}: messages received");
        self.check_writes();
    }

    fn check_read(&self, port: u16, index: u64, message: &Message) {
        let link = &self.links[&port];
        let mut found = vec![0; message.wanted as usize];
        self.client.memory.read(TARGETS + index * 65_536, &mut found).unwrap();
        for at in 0..message.psn_count {
            let psn = message.psn.add(at);
            let answer = self.packets.iter().rfind(|p| {
                p.from != self.side && p.port() == port && p.kind() == OpKind::ReadResponse && p.psn() == psn
            });
            let payload = answer.unwrap().bytes.as_slice();
            let payload = Frame::parse(payload).unwrap().payload();
            let start = (at * link.mtu.bytes()) as usize;
            assert!(&found[start..start + payload.len()] == payload, "{}: READ {index}", self.case.name);
        }
    }

    /// The last WRITE to each place is what lies there.
    fn check_writes(&self) {
        let mut expected = BTreeMap::new();
        for link in self.links.values() {
            for message in &link.messages[1 - self.side] {
                let is_write = matches!(message.opcode, WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm);
                if is_write && link.was_executed(1 - self.side, message) && !message.data.is_empty() {
                    expected.insert((message.wqe.rkey, message.wqe.remote_addr), &message.data);
                }
            }
        }
        for ((rkey, va), data) in expected {
            let region = &self.regions[&rkey];
            let mut found = vec![0; data.len()];
            self.client.memory.read(region.offset + (va - region.va), &mut found).unwrap();
            assert!(found == *data, "{}: WRITE to {va:#x}", self.case.name);
        }
    }
}

/// The regions that the requests of the other host need, those requests aside that were refused.
fn regions(side: usize, links: &BTreeMap<u16, Link>) -> BTreeMap<u32, Region> {
    let mut regions: BTreeMap<u32, Region> = BTreeMap::new();
    for link in links.values() {
        let executed = link.messages[1 - side].iter().filter(|m| link.was_executed(1 - side, m));
        for message in executed {
            let length = u64::from(message.wanted).max(message.data.len() as u64);
            if message.wqe.rkey != 0 && length > 0 {
                let (va, end) = (message.wqe.remote_addr, message.wqe.remote_addr + length);
                let region = regions.entry(message.wqe.rkey).or_insert(Region { va, end, offset: 0 });
                (region.va, region.end) = (region.va.min(va), region.end.max(end));
            }
        }
    }
    let mut offset = REGIONS;
    for region in regions.values_mut() {
        region.offset = offset + region.va % 8;
        offset = (region.offset + region.end - region.va).next_multiple_of(4096);
    }
    regions
}

fn is_cnp(frame: &[u8]) -> bool {
    Frame::parse(frame).is_ok_and(|frame| frame.bth().opcode == Opcode::CNP)
}

/// A frame without what is left out of the comparison.
fn normalized(frame: &[u8], syndrome: Option<u8>, without_ecn: bool) -> Vec<u8> {
    let ip = if frame[12..14] == EtherType::VLAN.0.to_be_bytes() { 18 } else { 14 };
    let is_ipv4 = frame[ip - 2..ip] == EtherType::IPV4.0.to_be_bytes();
    let bth = ip + if is_ipv4 { 28 } else { 48 };
    let mut frame = frame.to_vec();
    if is_ipv4 {
        frame[ip + 4..ip + 6].fill(0);
        frame[ip + 10..ip + 12].fill(0);
        if without_ecn {
            frame[ip + 1] &= !3;
        }
    } else {
        // The flow label. Its upper bits share a byte with the traffic class.
        frame[ip + 1] &= 0xf0;
        frame[ip + 2..ip + 4].fill(0);
    }
    frame[bth + 1] &= !0x40;
    if let Some(syndrome) = syndrome {
        frame[bth + 12] = syndrome;
    }
    let end = frame.len();
    frame[end - 4..].fill(0);
    frame
}

fn words(frame: &[u8]) -> String {
    let frame = Frame::parse(frame).unwrap();
    let (bth, aeth) = (frame.bth(), frame.aeth());
    let flags = if bth.ack_req { " A" } else { "" };
    format!("{} psn {:#x}{flags} len {} {aeth:?}", frame.info().name, bth.psn.value(), frame.payload().len())
}

#[test]
fn the_engine_takes_the_place_of_either_host() {
    for case in CASES {
        let (packets, flow_label) = load(case.name);
        let mut compared = 0;
        for side in 0..2 {
            if !packets.iter().any(|p| p.from == side) {
                continue;
            }
            let mut replay = Replay::new(case, side, &packets, flow_label);
            replay.run();
            if case.retry_cnt.is_some() {
                // One more timeout than there are packets.
                replay.now = replay.now.max(replay.host.shard().next_deadline());
                replay.turn();
            }
            replay.check_outcome();
            compared += packets.iter().filter(|p| p.from == side).count();
        }
        assert!(compared == packets.len(), "{}", case.name);
    }
}

#[test]
fn every_rc_capture_is_replayed() {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors");
    let names = std::fs::read_dir(vectors).unwrap().map(|entry| entry.unwrap().path());
    let missing: Vec<String> = names
        .filter(|path| path.extension().is_some_and(|e| e == "pcap"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .filter(|name| !CASES.iter().any(|case| case.name == name))
        .filter(|name| {
            let file = File::open(
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors").join(name).with_extension("pcap"),
            );
            let mut reader = PcapReader::new(file.unwrap()).unwrap();
            let mut has_rc = false;
            while let Some(packet) = reader.next_packet() {
                let packet = packet.unwrap();
                has_rc |= Frame::parse(&packet.data).unwrap().bth().opcode.service() == wire::ServiceType::Rc;
            }
            has_rc
        })
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_wrong_bit_is_found() {
    let (packets, _) = load("rc_send_small");
    let frame = &packets[0].bytes;
    for at in [0, 15, 23, 34, 43, 45, 53] {
        let mut changed = frame.clone();
        changed[at] ^= 1;
        assert!(normalized(&changed, None, false) != normalized(frame, None, false), "byte {at}");
    }
    assert_eq!((BASE % 8, QpState::Rts.code()), (0, 3));
}
