//! Datagrams to multicast groups.

use shm::attr::{AhAttr, QpType, SendFlags, WrOpcode};
use shm::control::{Reply, Request};
use shm::layout::SendWqe;
use wire::{Gid, Opcode, Qpn};

use crate::peer::pattern;
use crate::support::{CAP, Client, Connect, Host, HostOptions, Pair, TestQp, connect};

const QKEY: u32 = 0x1111_1111;
const GROUP: [u8; 4] = [239, 77, 0, 1];

fn mgid(group: [u8; 4]) -> [u8; 16] {
    Gid::from_ip(group.into()).0
}

fn attach(qpn: u32, group: [u8; 4]) -> Request {
    Request::AttachMcast { qpn, mgid: mgid(group), mlid: 0 }
}

fn detach(qpn: u32, group: [u8; 4]) -> Request {
    Request::DetachMcast { qpn, mgid: mgid(group), mlid: 0 }
}

fn pair() -> Pair {
    Pair::new(Connect { kind: QpType::Ud, ..Connect::default() })
}

/// A datagram of side 0 to the group.
fn to_group(pair: &Pair, group: [u8; 4]) -> crate::peer::Packet {
    let mut packet = pair.packet(0, Opcode::UD_SEND_ONLY, 0).deth(QKEY, pair.qps[0].qpn).bytes(9);
    packet.bth.dest_qpn = Qpn::new(0xff_ffff);
    packet.fields.dst_ip = group.into();
    packet.fields.dst_mac = wire::multicast::group_mac(group.into()).unwrap();
    packet
}

#[test]
fn members_get_the_datagrams_of_their_group_only() {
    let mut pair = pair();
    let qpn = pair.qps[1].qpn;
    for wr_id in 0..4 {
        pair.receive(wr_id, 4096);
    }
    let (ours, other) = (to_group(&pair, GROUP), to_group(&pair, [239, 77, 0, 2]));
    let tell = |pair: &mut Pair, packet| {
        assert_eq!(pair.tell(1, packet), [""; 0]);
        pair.clients[1].poll().iter().map(|c| (c.wr_id, c.byte_len, c.src_qpn)).collect::<Vec<_>>()
    };
    assert_eq!(tell(&mut pair, &ours), [], "not attached yet");
    assert_eq!(pair.ask(1, attach(qpn, GROUP)), Reply::Done);
    assert_eq!(pair.ask(1, attach(qpn, GROUP)), Reply::Done, "once more changes nothing");
    let sender = pair.qps[0].qpn;
    assert_eq!(tell(&mut pair, &ours), [(0, 49, sender)]);
    assert_eq!(tell(&mut pair, &other), []);
    let mut wrong_key = ours.clone();
    wrong_key.ext[0] ^= 1;
    assert_eq!(tell(&mut pair, &wrong_key), []);
    assert_eq!(pair.port_counters(1).rx_bad_qkey, 1);
    assert_eq!(pair.ask(1, attach(qpn, [239, 77, 0, 2])), Reply::Done);
    assert_eq!(tell(&mut pair, &other), [(1, 49, sender)]);
    assert_eq!(pair.ask(1, detach(qpn, GROUP)), Reply::Done);
    assert_eq!(tell(&mut pair, &ours), []);
    // One that comes back from the network with the number of a QP of ours, but from another host, is not our own.
    let mut namesake = other.clone();
    namesake.ext[4..8].copy_from_slice(&qpn.to_be_bytes());
    assert_eq!(tell(&mut pair, &namesake), [(2, 49, qpn)]);
    // A QP that is gone is no member any more, and neither is its successor.
    assert_eq!(pair.ask(1, Request::DestroyQp { qpn }), Reply::Done);
    assert_eq!(pair.tell(1, &other), [""; 0]);
    assert_eq!(pair.counters(1).rx_requests, 3);
}

#[test]
fn what_can_not_be_attached_is_refused() {
    let mut pair = pair();
    let qpn = pair.qps[0].qpn;
    let rc = pair.clients[0].qp(&mut pair.hosts[0], CAP).qpn;
    let foreign = Client::new(&mut pair.hosts[0], 1 << 16).qp_of(&mut pair.hosts[0], QpType::Ud, CAP).qpn;
    let not_ours = format!("QP {foreign:#08x} does not exist in this session");
    let table = [
        (attach(foreign, GROUP), not_ours.clone()),
        (detach(foreign, GROUP), not_ours),
        (attach(rc, GROUP), format!("QP {rc:#08x} is RC: only a UD QP takes part in multicast groups")),
        (attach(qpn, [10, 0, 0, 1]), "0000:0000:0000:0000:0000:ffff:0a00:0001 is no multicast group".to_owned()),
        (detach(qpn, GROUP), format!("QP {qpn:#08x} is not attached to 239.77.0.1")),
    ];
    for (request, message) in table {
        assert_eq!(pair.ask(0, request), Reply::Refused { errno: 22, message });
    }
}

/// A QP with a receive posted, and its application.
struct Member {
    client: Client,
    qp: TestQp,
}

impl Member {
    fn new(host: &mut Host, vector: u32) -> Self {
        let mut client = Client::new(host, 1 << 16);
        let (cq, poller) = client.cq_on(host, vector);
        (client.cq, client.poller) = (cq, poller);
        let mut qp = client.qp_of(host, QpType::Ud, CAP);
        let c = Connect { kind: QpType::Ud, ..Connect::default() };
        connect(host, client.session, qp.qpn, [0; 4].into(), 0, c, 0);
        let sge = client.sge(8192, 1024);
        qp.post_recv(7, &[sge]);
        Self { client, qp }
    }
}

#[test]
fn a_senders_own_engine_hears_it_on_every_shard_but_not_the_sender() {
    let mut host = Host::new(HostOptions { shard_count: 3, ..HostOptions::new(1) });
    let mut members: Vec<Member> = [0, 0, 1, 2].into_iter().map(|vector| Member::new(&mut host, vector)).collect();
    // The last is of the group in name only: it is detached again.
    for (place, member) in members.iter().enumerate() {
        let (session, qpn) = (member.client.session, member.qp.qpn);
        assert_eq!(host.request(session, attach(qpn, GROUP), vec![]).0, Reply::Done);
        if place == 3 {
            assert_eq!(host.request(session, detach(qpn, GROUP), vec![]).0, Reply::Done);
        }
    }
    let sender = &mut members[0];
    let attr = AhAttr { dgid: Gid(mgid(GROUP)), port_num: 1, ..AhAttr::default() };
    let request = Request::CreateAh { pd: sender.client.pd, attr };
    let Reply::Handle(ah) = host.request(sender.client.session, request, vec![]).0 else { panic!() };
    sender.client.memory.write(0, &pattern(100)).unwrap();
    let wqe = SendWqe {
        opcode: WrOpcode::Send as u8,
        flags: SendFlags::SIGNALED.0,
        rkey: 0xff_ffff,
        remote_addr: QKEY.into(),
        compare_add: ah.into(),
        ..SendWqe::default()
    };
    let sge = sender.client.sge(0, 100);
    sender.qp.post(wqe, &[sge]);
    assert_eq!(host.turn(engine::Time::ZERO).len(), 1, "and on the wire once");
    let qpn = members[0].qp.qpn;
    for (place, member) in members.iter_mut().enumerate() {
        let received: Vec<_> =
            member.client.poll().iter().filter(|c| c.opcode >= 128).map(|c| (c.byte_len, c.src_qpn)).collect();
        let expected = if matches!(place, 1 | 2) { vec![(140, qpn)] } else { vec![] };
        assert_eq!(received, expected, "member {place}");
        if place == 2 {
            let mut data = vec![0; 100];
            member.client.memory.read(8192 + 40, &mut data).unwrap();
            assert_eq!(data, pattern(100));
        }
    }
    // A session that ends takes its members along.
    let session = members[1].client.session;
    host.control.close_session(&mut host.shards, session);
    let sender = &mut members[0];
    sender.qp.post(wqe, &[sge]);
    assert_eq!(host.turn(engine::Time::ZERO).len(), 1);
    let total: u64 = host.shards.shards.iter().map(|s| s.counters().rx_requests + s.counters().ud_no_receive).sum();
    assert_eq!(total, 3, "two the first time, one the second");
}
