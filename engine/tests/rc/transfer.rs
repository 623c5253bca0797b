//! Data crosses between two engines, or two applications of one: every operation, size and path MTU.

use shm::attr::{WcOpcode, WcStatus, WrOpcode};
use shm::layout::SendWqe;

use crate::peer::{done, pattern};
use crate::support::{BASE, CAP, Client, Connect, HostOptions, Pair, TestQp, connect};

/// Sizes around those of a packet.
fn sizes(mtu: u8) -> [u32; 9] {
    let bytes = 128u32 << mtu;
    [0, 1, 3, bytes - 1, bytes, bytes + 1, 2 * bytes, 5 * bytes + 2, 70_001]
}

/// A pair whose PSNs wrap in the middle of what the tests send.
fn pair(mtu: u8) -> Pair {
    Pair::new(Connect { path_mtu: mtu, psn: [(1 << 24) - 11, (1 << 24) - 1], ..Connect::default() })
}

/// Has side 0 do one operation of `length` bytes and checks where they went.
pub(crate) fn transfer(pair: &mut Pair, opcode: WrOpcode, length: u32) {
    let what = format!("{opcode} of {length} bytes");
    let data = pattern(length as usize);
    let takes_receive = matches!(opcode, WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm);
    if takes_receive {
        let sges = [pair.clients[1].sge(300_000, 1000), pair.clients[1].sge(400_000, 100_000)];
        pair.qps[1].post_recv(99, &sges);
    }
    let is_read = opcode == WrOpcode::RdmaRead;
    pair.write(usize::from(is_read), if is_read { 4096 } else { 0 }, &data);
    let wqe = pair.wqe(7, opcode);
    pair.post(wqe, length);
    pair.exchange();
    assert_eq!(pair.failures(0), [done(7)], "{what}");
    let found = match opcode {
        WrOpcode::RdmaRead => pair.read(0, 0, length as usize),
        WrOpcode::Send | WrOpcode::SendWithImm => {
            let (first, second) = (length.min(1000), length.saturating_sub(1000));
            [pair.read(1, 300_000, first as usize), pair.read(1, 400_000, second as usize)].concat()
        }
        _ => pair.read(1, 4096, length as usize),
    };
    assert!(found == data, "{what}");
    let received = pair.clients[1].poll();
    assert_eq!(received.len(), usize::from(takes_receive), "{what}");
    for cqe in received {
        assert_eq!((cqe.wr_id, cqe.byte_len, cqe.status), (99, length, 0), "{what}");
        if opcode != WrOpcode::Send {
            assert_eq!(u32::from_be(cqe.imm), 0x1122_3344, "{what}");
        }
    }
}

#[test]
fn every_operation_moves_every_size_over_every_path_mtu() {
    for mtu in 1..=5 {
        let operations = [
            WrOpcode::RdmaWrite,
            WrOpcode::RdmaWriteWithImm,
            WrOpcode::Send,
            WrOpcode::SendWithImm,
            WrOpcode::RdmaRead,
        ];
        for opcode in operations {
            // The PSNs wrap in the first of them.
            let mut pair = pair(mtu);
            for length in sizes(mtu).into_iter().rev() {
                transfer(&mut pair, opcode, length);
            }
            let counters = [pair.counters(0), pair.counters(1)];
            assert!(counters.iter().all(|c| c.retransmitted_packets + c.duplicate_request + c.ghost_ack == 0));
        }
    }
}

#[test]
fn packets_are_as_large_as_the_path_mtu() {
    for mtu in 1..=5 {
        let mut pair = pair(mtu);
        transfer(&mut pair, WrOpcode::RdmaWrite, 70_001);
        let payloads: Vec<_> = pair
            .sent
            .iter()
            .filter(|(from, _)| *from == 0)
            .map(|(_, frame)| wire::Frame::parse(frame).unwrap().payload().len())
            .collect();
        let (last, full) = payloads.split_last().unwrap();
        assert!(full.iter().all(|&l| l == 128 << mtu));
        assert_eq!(full.len() * (128 << mtu) + last, 70_001);
    }
}

#[test]
fn atomics_return_the_value_before() {
    let mut pair = pair(3);
    pair.write(1, 4096, &5u64.to_ne_bytes());
    let add = SendWqe { compare_add: 10, ..pair.wqe(7, WrOpcode::AtomicFetchAndAdd) };
    let back = SendWqe { compare_add: u64::MAX - 9, ..add };
    let swap = SendWqe { compare_add: 15, swap: 77, ..pair.wqe(7, WrOpcode::AtomicCmpAndSwp) };
    for (wqe, before, after) in [(add, 5u64, 15u64), (back, 15, 5), (swap, 5, 5), (add, 5, 15), (swap, 15, 77)] {
        pair.post(wqe, 8);
        pair.exchange();
        assert_eq!(pair.failures(0), [done(7)]);
        assert_eq!((pair.word(0, 0), pair.word(1, 4096)), (before, after));
    }
}

#[test]
fn both_sides_may_ask_at_once() {
    let mut pair = pair(1);
    let keys = [pair.clients[0].key, pair.clients[1].key];
    for round in 0..20 {
        for side in 0..2 {
            let opcode = if round % 3 == 0 { WrOpcode::RdmaRead } else { WrOpcode::RdmaWrite };
            let wqe = SendWqe { rkey: keys[1 - side], ..pair.wqe(round, opcode) };
            let sge = pair.clients[side].sge(0, 3000);
            pair.qps[side].post(wqe, &[sge]);
        }
    }
    pair.exchange();
    for side in 0..2 {
        assert_eq!(pair.failures(side), (0..20).map(done).collect::<Vec<_>>());
    }
}

#[test]
fn a_queue_longer_than_a_turn_is_sent_in_order() {
    let mut pair = pair(1);
    for value in 0..64u64 {
        pair.write(0, value * 8, &value.to_ne_bytes());
        let wqe = pair.wqe(value, WrOpcode::RdmaWrite);
        let sge = pair.clients[0].sge(value * 8, 8);
        pair.qps[0].post(wqe, &[sge]);
    }
    pair.exchange();
    assert_eq!(pair.failures(0), (0..64).map(done).collect::<Vec<_>>());
    assert_eq!(pair.word(1, 4096), 63, "the last one wins");
}

/// Two QPs that share a host with others: the first of `clients` writes to the second.
struct Local {
    clients: [Client; 2],
    qps: [TestQp; 2],
}

impl Local {
    fn new(pair: &mut Pair, sides: [usize; 2]) -> Self {
        // One after the other: a new session goes to the shard with the fewest QPs.
        let made = sides.map(|side| {
            let mut client = Client::new(&mut pair.hosts[side], 1 << 16);
            let qp = client.qp(&mut pair.hosts[side], CAP);
            (client, qp)
        });
        let [(client_a, a), (client_b, b)] = made;
        let (clients, qps) = ([client_a, client_b], [a, b]);
        for i in 0..2 {
            let ip = pair.hosts[sides[1 - i]].ip;
            let peer = qps[1 - i].qpn;
            connect(&mut pair.hosts[sides[i]], clients[i].session, qps[i].qpn, ip, peer, pair.connect, i);
        }
        Self { clients, qps }
    }

    /// Each operation once, from the first to the second.
    fn work(&mut self, pair: &mut Pair) {
        let data = pattern(10_000);
        self.clients[0].memory.write(0, &data).unwrap();
        let sge = self.clients[1].sge(30_000, 10_000);
        self.qps[1].post_recv(50, &[sge]);
        let base = SendWqe { remote_addr: BASE + 16, rkey: self.clients[1].key, ..pair.wqe(0, WrOpcode::Send) };
        let opcodes = [WrOpcode::RdmaWrite, WrOpcode::RdmaRead, WrOpcode::Send, WrOpcode::AtomicFetchAndAdd];
        for (wr_id, opcode) in (1..).zip(opcodes) {
            let is_atomic = opcode == WrOpcode::AtomicFetchAndAdd;
            let length = if is_atomic { 8 } else { 10_000 };
            let at = if opcode == WrOpcode::RdmaWrite || opcode == WrOpcode::Send { 0 } else { 20_000 };
            let wqe = SendWqe { wr_id, opcode: opcode as u8, ..base };
            self.qps[0].post(wqe, &[self.clients[0].sge(at, length)]);
        }
        pair.exchange();
        let found: Vec<_> = self.clients[0].poll().iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(found, [(1, 0), (2, 0), (3, 0), (4, 0)]);
        let [recv] = self.clients[1].poll()[..] else { panic!() };
        assert_eq!(
            (recv.wr_id, recv.opcode, WcStatus::from_code(recv.status)),
            (50, WcOpcode::Recv as u8, Some(WcStatus::Success))
        );
        for (memory, offset) in [(&self.clients[1].memory, 30_000), (&self.clients[0].memory, 20_008)] {
            let skip = if offset == 20_008 { 8 } else { 0 };
            let mut out = vec![0; 10_000 - skip];
            memory.read(offset, &mut out).unwrap();
            assert!(out == data[skip..], "at {offset}");
        }
    }
}

#[test]
fn two_applications_on_one_engine_need_no_wire() {
    let mut pair = pair(3);
    let mut local = Local::new(&mut pair, [0, 0]);
    assert_ne!(local.clients[0].session, local.clients[1].session);
    local.work(&mut pair);
    assert_eq!(pair.sent.len(), 0);
    let counters = pair.port_counters(0);
    assert!(counters.local_packets >= 33, "{}", counters.local_packets);
    assert_eq!(counters.tx_roce_packets, 0);
}

#[test]
fn two_qps_of_one_application_may_talk_to_each_other() {
    let mut pair = pair(3);
    let (ip, c) = (pair.hosts[0].ip, pair.connect);
    let qps = [0, 1].map(|_| pair.clients[0].qp(&mut pair.hosts[0], CAP));
    let session = pair.clients[0].session;
    connect(&mut pair.hosts[0], session, qps[0].qpn, ip, qps[1].qpn, c, 0);
    connect(&mut pair.hosts[0], session, qps[1].qpn, ip, qps[0].qpn, c, 1);
    let [qp, _other] = qps;
    pair.qps[0] = qp;
    pair.write(0, 0, b"to myself");
    let wqe = SendWqe { rkey: pair.clients[0].key, ..pair.wqe(1, WrOpcode::RdmaWrite) };
    pair.post(wqe, 9);
    pair.exchange();
    assert_eq!((pair.failures(0), pair.read(0, 4096, 9)), (vec![done(1)], b"to myself".to_vec()));
    // And a QP to itself.
    let mut pair = self::pair(3);
    let qp = pair.clients[0].qp(&mut pair.hosts[0], CAP);
    let (session, c) = (pair.clients[0].session, Connect { psn: [5, 5], ..pair.connect });
    connect(&mut pair.hosts[0], session, qp.qpn, ip, qp.qpn, c, 0);
    pair.qps[0] = qp;
    pair.write(0, 0, b"to myself");
    pair.post(SendWqe { rkey: pair.clients[0].key, ..wqe }, 9);
    pair.exchange();
    assert_eq!((pair.failures(0), pair.read(0, 4096, 9)), (vec![done(1)], b"to myself".to_vec()));
}

#[test]
fn sessions_spread_over_shards_and_reach_each_other() {
    let options = |n| HostOptions { shard_count: 2, ..HostOptions::new(n) };
    let mut pair = Pair::with(Connect::default(), options(1), options(2), 1 << 20);
    assert_eq!(pair.qps[0].qpn >> 20, 0);
    // The second session of each host lives on the other shard.
    let mut remote = Local::new(&mut pair, [0, 1]);
    assert_eq!([remote.qps[0].qpn >> 20, remote.qps[1].qpn >> 20], [1, 1]);
    remote.work(&mut pair);
    // From shard to shard of one host.
    let mut local = Local::new(&mut pair, [0, 0]);
    let shards = [local.qps[0].qpn >> 20, local.qps[1].qpn >> 20];
    assert!(shards == [0, 1] || shards == [1, 0], "{shards:?}");
    local.work(&mut pair);
    // And between the shards of two hosts, with the pair's own QP on shard 0.
    let (ip, c) = (pair.hosts[1].ip, pair.connect);
    let qp = remote.clients[0].qp(&mut pair.hosts[0], CAP);
    connect(&mut pair.hosts[0], remote.clients[0].session, qp.qpn, ip, pair.qps[1].qpn, c, 0);
    let (session, own, ip) = (pair.clients[1].session, pair.qps[1].qpn, pair.hosts[0].ip);
    pair.go_to(1, shm::attr::QpState::Reset);
    connect(&mut pair.hosts[1], session, own, ip, qp.qpn, c, 1);
    let mut qp = qp;
    let wqe = pair.wqe(9, WrOpcode::RdmaWrite);
    qp.post(wqe, &[remote.clients[0].sge(0, 100)]);
    pair.exchange();
    assert_eq!(remote.clients[0].poll().iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(), [(9, 0)]);
    for host in &pair.hosts {
        for shard in &host.shards.shards {
            assert_eq!(shard.port_counters(0).unwrap().rx_unknown_qpn, 0);
        }
    }
    assert_eq!(pair.failures(0), []);
}

#[test]
fn queues_on_different_shards_can_not_share_a_qp() {
    use shm::attr::QpType;
    use shm::control::{Reply, Request};
    let options = |n| HostOptions { shard_count: 2, ..HostOptions::new(n) };
    let mut pair = Pair::with(Connect::default(), options(1), options(2), 1 << 20);
    let cq = |pair: &mut Pair, vector| match pair
        .ask(0, Request::CreateCq { cqe: 4, channel: None, comp_vector: Some(vector) })
    {
        Reply::Cq { cq, shard, .. } => (cq, shard),
        other => panic!("{other:?}"),
    };
    let ((near, 0), (far, 1)) = (cq(&mut pair, 4), cq(&mut pair, 7)) else { panic!("vectors count modulo the shards") };
    let pd = pair.clients[0].pd;
    let request = Request::CreateQp {
        pd,
        qp_type: QpType::Rc,
        send_cq: near,
        recv_cq: far,
        srq: None,
        cap: CAP,
        sq_sig_all: false,
    };
    let sentence = "the send CQ is on lcore 0, the receive CQ on 1: give both one comp_vector";
    assert_eq!(pair.ask(0, request), Reply::Refused { errno: 22, message: sentence.to_owned() });
}
