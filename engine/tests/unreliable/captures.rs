//! The engine in the place of both hosts of captures of Linux's rxe: as sender it sends the captured frames, bit by bit; as
//! receiver it takes them.
//!
//! Left out of the comparison: the IPv4 identification with its checksum, MigReq and the IPv6 flow label (rxe sends 0: see
//! `docs/deviations.md`), and the ICRC, which differs with MigReq and is checked by itself.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::IpAddr;
use std::path::Path;

use engine::Time;
use pcap_file::pcap::PcapReader;
use shm::attr::{AhAttr, QpAttr, QpCap, QpType, SendFlags, WcStatus, WrOpcode};
use shm::control::{Reply, Request};
use shm::layout::SendWqe;
use wire::{
    ArpOperation, ArpRepr, EtherType, EthernetRepr, Frame, Gid, NdpMessage, NdpRepr, OpKind, PathMtu, Qpn, ServiceType,
};

use crate::support::{CAP, Client, Connect, Host, HostOptions, TestQp, attributes, modify, steps};

const CAPTURES: [&str; 7] =
    ["uc_send", "uc_write", "ibv_uc_pingpong", "ud_send", "ibv_ud_pingpong", "ib_send_bw_ud", "ud_ipv6"];

const MEMORY_BYTES: u64 = 1 << 20;
/// Where the regions that requests name are put in the receiver's memory.
const TARGET: u64 = 256 << 10;

/// One direction of one connection, or all datagrams of one QP to another.
struct Flow {
    /// Sender's and receiver's address.
    ips: [IpAddr; 2],
    kind: QpType,
    /// Sender's and receiver's QP.
    qpns: [u32; 2],
    qkey: u32,
    mtu: PathMtu,
    frames: Vec<Vec<u8>>,
}

fn parse(frame: &[u8]) -> Frame<'_> {
    Frame::parse(frame).unwrap()
}

/// The flows of a capture, by sender and source port.
fn flows(name: &str) -> Vec<Flow> {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors");
    let mut reader = PcapReader::new(File::open(vectors.join(name).with_extension("pcap")).unwrap()).unwrap();
    let mut frames: BTreeMap<(IpAddr, u16), Vec<Vec<u8>>> = BTreeMap::new();
    while let Some(packet) = reader.next_packet() {
        let bytes = packet.unwrap().data.into_owned();
        let frame = parse(&bytes);
        frames.entry((frame.src_ip(), frame.udp_src_port().unwrap())).or_default().push(bytes);
    }
    frames.into_iter().map(|((_, port), frames)| flow(port, frames)).collect()
}

fn flow(port: u16, frames: Vec<Vec<u8>>) -> Flow {
    let first = parse(&frames[0]);
    let dest = first.bth().dest_qpn;
    let (kind, own, qkey) = match (first.info().service, first.deth()) {
        (ServiceType::Ud, Some(deth)) => (QpType::Ud, deth.src_qpn.value(), deth.qkey.0),
        _ => {
            // Nothing names the sender of a connection: the one QPN that gives this source port.
            let derived = |qpn: &u32| {
                let label = wire::flow_label_from_qpns(Qpn::new(*qpn), dest);
                wire::source_port_for_flow_label(label) == port
            };
            (QpType::Uc, (17..256).find(derived).unwrap(), 0)
        }
    };
    let full = frames.iter().find(|f| !parse(f).info().position.ends()).map_or(1024, |f| parse(f).payload().len());
    let mtu = PathMtu::from_bytes(full as u32).unwrap();
    let ips = [first.src_ip(), first.dst_ip()];
    Flow { ips, kind, qpns: [own, dest.value()], qkey, mtu, frames }
}

impl Flow {
    /// The frames of each message.
    fn messages(&self) -> impl Iterator<Item = &[Vec<u8>]> {
        self.frames.split_inclusive(|frame| parse(frame).info().position.ends())
    }

    fn connect(&self) -> Connect {
        let psn = parse(&self.frames[0]).bth().psn.value();
        Connect { kind: self.kind, path_mtu: self.mtu.code(), psn: [psn; 2], qkey: self.qkey, ..Connect::default() }
    }
}

/// One host with a QP of the captured number.
struct End {
    host: Host,
    client: Client,
    qp: TestQp,
}

impl End {
    /// The sender (0) or receiver (1) of a flow. A WRITE's key is the first key that the receiver gives out.
    fn new(flow: &Flow, role: usize) -> Self {
        let sample = parse(&flow.frames[0]);
        let mut options = HostOptions::new(1);
        options.addresses = vec![flow.ips[role].into()];
        options.mac = if role == 0 { sample.src_mac().0 } else { sample.dst_mac().0 };
        let key = flow.frames.iter().find_map(|f| parse(f).reth()).map_or(0x1_0001, |reth| reth.rkey.0);
        options.entropy = Box::new(move || u64::from(key) << 32);
        let mut host = Host::new(options);
        let mut client = Client::with_region(&mut host, MEMORY_BYTES, MEMORY_BYTES);
        let qpn = flow.qpns[role];
        let filler = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let mut qp = client.qp_of(&mut host, flow.kind, CAP);
        while qp.qpn != qpn {
            assert!(qp.qpn < qpn, "QPN {qpn:#x} is taken");
            let request = Request::DestroyQp { qpn: qp.qpn };
            assert_eq!(host.request(client.session, request, vec![]).0, Reply::Done);
            let near = qp.qpn + 1 == qpn;
            qp = client.qp_of(&mut host, flow.kind, if near { CAP } else { filler });
        }
        let attr = attributes(flow.ips[1 - role], flow.qpns[1 - role], flow.connect(), role);
        let ah_attr = AhAttr { traffic_class: sample.traffic_class(), ..attr.ah_attr };
        for (qp_state, mask) in steps(flow.kind) {
            modify(&mut host, client.session, qpn, QpAttr { qp_state, ah_attr, ..attr }, mask).unwrap();
        }
        Self { host, client, qp }
    }

    /// The MAC of the captured receiver becomes known to the sender.
    fn meet(&mut self, flow: &Flow) {
        let sample = parse(&flow.frames[0]);
        let (body, ether_type) = match (sample.src_ip(), sample.dst_ip()) {
            (IpAddr::V4(ours), IpAddr::V4(peer)) => {
                let arp = ArpRepr {
                    operation: ArpOperation::Reply,
                    sender_mac: sample.dst_mac(),
                    sender_ip: peer,
                    target_mac: sample.src_mac(),
                    target_ip: ours,
                };
                (arp.to_bytes().to_vec(), EtherType::ARP)
            }
            (IpAddr::V6(ours), IpAddr::V6(peer)) => {
                let message = NdpMessage::Advertisement { router: false, solicited: true, override_known: true };
                let ndp = NdpRepr { src: peer, dst: ours, message, target: peer, link_layer: Some(sample.dst_mac()) };
                let mut packet = vec![0; ndp.packet_len()];
                assert!(ndp.emit(&mut packet).is_some_and(|rest| rest.is_empty()));
                (packet, EtherType::IPV6)
            }
            other => panic!("{other:?}"),
        };
        let head = EthernetRepr { dst: sample.src_mac(), src: sample.dst_mac(), ether_type };
        // It has been asked for by now.
        assert_eq!(self.host.turn(Time::ZERO).len(), 1);
        self.host.receive(Time::ZERO, &[&head.to_bytes()[..], &body].concat());
    }
}

/// A frame without what is left out of the comparison.
fn normalized(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let bth = if frame[12..14] == EtherType::IPV4.0.to_be_bytes() {
        frame[18..20].fill(0);
        frame[24..26].fill(0);
        42
    } else {
        // The flow label; its upper bits share a byte with the traffic class.
        frame[15] &= 0xf0;
        frame[16..18].fill(0);
        62
    };
    frame[bth + 1] &= !0x40;
    let end = frame.len();
    frame[end - 4..].fill(0);
    frame
}

#[test]
fn the_engine_sends_what_rxe_sent() {
    for name in CAPTURES {
        for flow in flows(name) {
            let mut sender = End::new(&flow, 0);
            let mut ah = 0;
            if flow.kind == QpType::Ud {
                let traffic_class = parse(&flow.frames[0]).traffic_class();
                let dgid = Gid::from_ip(flow.ips[1]);
                let attr = AhAttr { dgid, traffic_class, hop_limit: 64, port_num: 1, ..AhAttr::default() };
                let request = Request::CreateAh { pd: sender.client.pd, attr };
                let (reply, _) = sender.host.request(sender.client.session, request, vec![]);
                let Reply::Handle(handle) = reply else { panic!("{reply:?}") };
                ah = handle;
            }
            sender.meet(&flow);
            for message in flow.messages() {
                let (first, last) = (parse(&message[0]), parse(&message[message.len() - 1]));
                let data: Vec<u8> = message.iter().flat_map(|frame| parse(frame).payload().to_vec()).collect();
                sender.client.memory.write(0, &data).unwrap();
                let opcode = match (first.info().kind, last.info().has_imm()) {
                    (OpKind::Send, false) => WrOpcode::Send,
                    (OpKind::Send, true) => WrOpcode::SendWithImm,
                    (_, false) => WrOpcode::RdmaWrite,
                    (_, true) => WrOpcode::RdmaWriteWithImm,
                };
                let solicited = if last.bth().solicited { SendFlags::SOLICITED } else { SendFlags::NONE };
                let mut wqe = SendWqe {
                    opcode: opcode as u8,
                    flags: (SendFlags::SIGNALED | solicited).0,
                    imm: last.immdt().map_or(0, |imm| imm.data.to_be()),
                    ..SendWqe::default()
                };
                if flow.kind == QpType::Ud {
                    (wqe.rkey, wqe.remote_addr, wqe.compare_add) = (flow.qpns[1], flow.qkey.into(), ah.into());
                } else if let Some(reth) = first.reth() {
                    (wqe.rkey, wqe.remote_addr) = (reth.rkey.0, reth.va);
                }
                let sge = sender.client.sge(0, data.len() as u32);
                sender.qp.post(wqe, &[sge]);
                let sent = sender.host.turn(Time::ZERO);
                assert_eq!(sent.len(), message.len(), "{name}");
                for (sent, captured) in sent.iter().zip(message) {
                    assert!(parse(sent).icrc_ok(), "{name}");
                    assert!(normalized(sent) == normalized(captured), "{name}:\n{captured:02x?}\n{sent:02x?}");
                }
                let statuses: Vec<u8> = sender.client.poll().iter().map(|c| c.status).collect();
                assert_eq!(statuses, [WcStatus::Success.code()], "{name}");
            }
        }
    }
}

#[test]
fn the_engine_takes_what_rxe_sent() {
    let mut receives = 0;
    for name in CAPTURES {
        for flow in flows(name) {
            let mut receiver = End::new(&flow, 1);
            let grh_bytes = if flow.kind == QpType::Ud { 40 } else { 0 };
            let start = map_region(&mut receiver, &flow);
            for message in flow.messages() {
                let (first, last) = (parse(&message[0]), parse(&message[message.len() - 1]));
                let data: Vec<u8> = message.iter().flat_map(|frame| parse(frame).payload().to_vec()).collect();
                let is_send = first.info().kind == OpKind::Send;
                let takes_receive = is_send || last.info().has_imm();
                if takes_receive {
                    let sge = receiver.client.sge(0, 8192);
                    receiver.qp.post_recv(1, &[sge]);
                    receives += 1;
                }
                for frame in message {
                    receiver.host.receive(Time::ZERO, frame);
                }
                // Nothing is answered; what may be said is an ARP request.
                let said = receiver.host.turn(Time::ZERO);
                assert!(said.iter().all(|frame| Frame::parse(frame).is_err()), "{name}");
                let found = receiver.client.poll();
                assert_eq!(found.len(), usize::from(takes_receive), "{name}");
                for cqe in &found {
                    assert_eq!((cqe.status, cqe.byte_len), (0, data.len() as u32 + grh_bytes), "{name}");
                    assert_eq!(cqe.src_qpn, flow.qpns[0], "{name}");
                    let imm = last.immdt().map_or(0, |imm| u32::from_ne_bytes(imm.data.to_be_bytes()));
                    assert_eq!(cqe.imm, imm, "{name}");
                }
                let at = match first.reth() {
                    Some(reth) => TARGET + (reth.va - start),
                    None => u64::from(grh_bytes),
                };
                let mut bytes = vec![0; data.len()];
                receiver.client.memory.read(at, &mut bytes).unwrap();
                assert!(bytes == data, "{name}");
            }
        }
    }
    assert!(receives > 20, "{receives} receives in all the captures");
}

/// A region at the addresses that the flow's WRITEs name, in place of the one that has the key. Returns its first address.
fn map_region(receiver: &mut End, flow: &Flow) -> u64 {
    let addresses: Vec<u64> = flow.frames.iter().filter_map(|f| parse(f).reth()).map(|reth| reth.va).collect();
    let Some(&start) = addresses.iter().min() else { return 0 };
    let Client { session, pd, attached: memory, key: lkey, .. } = receiver.client;
    assert_eq!(receiver.host.request(session, Request::DeregMr { lkey }, vec![]).0, Reply::Done);
    let access = Connect::default().access | shm::attr::AccessFlags::LOCAL_WRITE;
    let request = Request::RegMr { pd, memory, offset: TARGET, addr: start, length: 256 << 10, access };
    let (reply, _) = receiver.host.request(session, request, vec![]);
    let Reply::Mr { rkey, .. } = reply else { panic!("{reply:?}") };
    let wanted = flow.frames.iter().find_map(|f| parse(f).reth()).unwrap().rkey.0;
    assert_eq!(rkey, wanted);
    start
}
