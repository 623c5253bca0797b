//! The responder with a hand-played requester: every check of IBTA 9.7.4.1, by operation and position.

use engine::ErrorCause;
use shm::attr::{AccessFlags, QpState, WcFlags, WcOpcode, WcStatus};
use shm::control::{AsyncEvent, Reply, Request};
use shm::layout::Sge;
use wire::Opcode;

use crate::peer::{Case, Packet, failed, pattern};
use crate::support::{BASE, Connect, Pair};

/// A path MTU of 256 keeps the packets short.
pub(crate) const MTU: usize = 256;

pub(crate) fn pair() -> Pair {
    Pair::new(Connect { path_mtu: 1, ..Connect::default() })
}

fn pair_without_rights() -> Pair {
    Pair::new(Connect { path_mtu: 1, access: AccessFlags::NONE, ..Connect::default() })
}

impl Pair {
    pub(crate) fn send(&self, opcode: Opcode, psn: u32, length: usize) -> Packet {
        self.packet(0, opcode, psn).bytes(length)
    }

    /// A packet with a RETH for offset 4096 of side 1's region.
    pub(crate) fn rdma(&self, opcode: Opcode, psn: u32, dma_len: u32, length: usize) -> Packet {
        self.packet(0, opcode, psn).reth(BASE + 4096, self.clients[1].key, dma_len).bytes(length)
    }

    pub(crate) fn read_request(&self, psn: u32, dma_len: u32) -> Packet {
        self.rdma(Opcode::RC_READ_REQUEST, psn, dma_len, 0).ack_req()
    }

    pub(crate) fn fetch_add(&self, psn: u32, add: u64) -> Packet {
        self.packet(0, Opcode::RC_FETCH_ADD, psn).atomic(BASE + 4096, self.clients[1].key, add, 0)
    }
}

/// How the responder's own application learns of a request that broke its QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    /// An event, while posted receives are flushed.
    ReqErr,
    /// The same.
    AccessErr,
    /// The completion of the receive.
    Recv(WcStatus, ErrorCause),
}

/// Sends packets of which the last must break the QP: NAK `code` with that packet's PSN and an MSN of `msn`.
#[track_caller]
fn refused(pair: &mut Pair, what: &str, packets: &[Packet], code: u8, msn: u32, told: Told) {
    let (last, before) = packets.split_last().unwrap();
    for packet in before {
        let said = pair.tell(1, packet);
        assert_eq!(said, [""; 0], "{what}: too early");
    }
    let names = ["invalid request", "remote access error", "remote operational error"];
    let psn = last.bth.psn.value() - pair.connect.psn[0];
    let nak = format!("NAK {} +{psn} msn {msn}", names[usize::from(code) - 1]);
    assert_eq!(pair.tell(1, last), [nak], "{what}");
    assert_eq!(pair.state(1), QpState::Err, "{what}");
    let (events, failures) = (pair.events(1), pair.failures(1));
    let qpn = pair.qps[1].qpn;
    match told {
        Told::ReqErr => assert_eq!(events, [AsyncEvent::QpReqErr { qpn }], "{what}"),
        Told::AccessErr => assert_eq!(events, [AsyncEvent::QpAccessErr { qpn }], "{what}"),
        Told::Recv(status, cause) => {
            assert_eq!(events, [], "{what}: the completion says it");
            assert_eq!(failures.first(), Some(&failed(50, status, cause)), "{what}");
        }
    }
    if !matches!(told, Told::Recv(..)) {
        assert!(failures.iter().all(|f| f.1 == WcStatus::WrFlushErr), "{what}: {failures:?}");
    }
    // A QP in ERR takes no packet.
    let dropped = pair.port_counters(1).rx_wrong_state;
    assert_eq!(pair.tell(1, last), [""; 0], "{what}");
    assert_eq!(pair.port_counters(1).rx_wrong_state, dropped + 1, "{what}");
}

#[test]
fn opcode_out_of_sequence_is_an_invalid_request() {
    use Opcode as O;
    // The message in progress, and what must not come next.
    let table: &[(Option<Opcode>, &[Opcode])] = &[
        (None, &[O::RC_SEND_MIDDLE, O::RC_SEND_LAST, O::RC_SEND_LAST_IMM, O::RC_SEND_LAST_INV]),
        (None, &[O::RC_WRITE_MIDDLE, O::RC_WRITE_LAST, O::RC_WRITE_LAST_IMM]),
        (
            Some(O::RC_SEND_FIRST),
            &[O::RC_SEND_FIRST, O::RC_SEND_ONLY, O::RC_SEND_ONLY_IMM, O::RC_WRITE_FIRST, O::RC_WRITE_MIDDLE],
        ),
        (Some(O::RC_SEND_FIRST), &[O::RC_WRITE_LAST, O::RC_WRITE_ONLY, O::RC_READ_REQUEST, O::RC_FETCH_ADD]),
        (
            Some(O::RC_WRITE_FIRST),
            &[O::RC_WRITE_FIRST, O::RC_WRITE_ONLY, O::RC_SEND_FIRST, O::RC_SEND_MIDDLE, O::RC_SEND_LAST],
        ),
        (Some(O::RC_WRITE_FIRST), &[O::RC_SEND_ONLY, O::RC_READ_REQUEST, O::RC_CMP_SWAP]),
        // Requests that this responder does not know.
        (None, &[O::RC_FLUSH, O::RC_ATOMIC_WRITE]),
    ];
    for &(first, wrong) in table {
        for &opcode in wrong {
            let mut pair = pair();
            pair.receive(50, 4096);
            let mut packets = Vec::new();
            match first {
                Some(O::RC_SEND_FIRST) => packets.push(pair.send(O::RC_SEND_FIRST, 0, MTU)),
                Some(_) => packets.push(pair.rdma(O::RC_WRITE_FIRST, 0, 600, MTU)),
                None => {}
            }
            let mut packet = pair.packet(0, opcode, packets.len() as u32);
            let info = opcode.info().unwrap();
            packet.ext = vec![0; usize::from(info.ext_bytes)];
            packet.payload = pattern(if info.has_payload { MTU } else { 0 });
            packets.push(packet);
            refused(&mut pair, &format!("{first:?} {opcode}"), &packets, 1, 0, Told::ReqErr);
        }
    }
}

#[test]
fn a_packet_of_the_wrong_length_is_an_invalid_request() {
    use Opcode as O;
    let cases: [Case<Vec<Packet>>; 19] = [
        ("SEND First short", |p| vec![p.send(O::RC_SEND_FIRST, 0, MTU - 4)]),
        ("SEND First long", |p| vec![p.send(O::RC_SEND_FIRST, 0, MTU + 1)]),
        ("SEND Middle short", |p| vec![p.send(O::RC_SEND_FIRST, 0, MTU), p.send(O::RC_SEND_MIDDLE, 1, MTU - 1)]),
        ("SEND Last empty", |p| vec![p.send(O::RC_SEND_FIRST, 0, MTU), p.send(O::RC_SEND_LAST, 1, 0)]),
        ("SEND Last long", |p| vec![p.send(O::RC_SEND_FIRST, 0, MTU), p.send(O::RC_SEND_LAST, 1, MTU + 1)]),
        ("SEND Only long", |p| vec![p.send(O::RC_SEND_ONLY, 0, MTU + 1)]),
        ("WRITE First short", |p| vec![p.rdma(O::RC_WRITE_FIRST, 0, 600, MTU - 1)]),
        ("WRITE First that is all", |p| vec![p.rdma(O::RC_WRITE_FIRST, 0, MTU as u32, MTU)]),
        ("WRITE First beyond its RETH", |p| vec![p.rdma(O::RC_WRITE_FIRST, 0, 100, MTU)]),
        ("WRITE Only long", |p| vec![p.rdma(O::RC_WRITE_ONLY, 0, MTU as u32 + 1, MTU + 1)]),
        ("WRITE Only less than its RETH", |p| vec![p.rdma(O::RC_WRITE_ONLY, 0, 65, 64)]),
        ("WRITE Only more than its RETH", |p| vec![p.rdma(O::RC_WRITE_ONLY, 0, 63, 64)]),
        ("WRITE Only of nothing", |p| vec![p.rdma(O::RC_WRITE_ONLY, 0, 64, 0)]),
        ("WRITE Middle that is the last", |p| {
            vec![p.rdma(O::RC_WRITE_FIRST, 0, 512, MTU), p.send(O::RC_WRITE_MIDDLE, 1, MTU)]
        }),
        ("WRITE Last too short", |p| vec![p.rdma(O::RC_WRITE_FIRST, 0, 300, MTU), p.send(O::RC_WRITE_LAST, 1, 43)]),
        ("WRITE Last too long", |p| vec![p.rdma(O::RC_WRITE_FIRST, 0, 300, MTU), p.send(O::RC_WRITE_LAST, 1, 45)]),
        ("WRITE Last empty", |p| vec![p.rdma(O::RC_WRITE_FIRST, 0, 300, MTU), p.send(O::RC_WRITE_LAST, 1, 0)]),
        ("WRITE of more than 2^31", |p| vec![p.rdma(O::RC_WRITE_FIRST, 0, (1 << 31) + 1, MTU)]),
        ("READ of more than 2^31", |p| vec![p.read_request(0, (1 << 31) + 1)]),
    ];
    for (what, packets) in cases {
        let mut pair = pair();
        pair.receive(50, 4096);
        let packets = packets(&mut pair);
        refused(&mut pair, what, &packets, 1, 0, Told::ReqErr);
    }
}

#[test]
fn a_send_longer_than_its_receive_is_an_invalid_request() {
    use Opcode as O;
    let told = Told::Recv(WcStatus::LocLenErr, ErrorCause::ReceiveTooShort);
    for (capacity, lengths) in
        [(99, &[100][..]), (0, &[1]), (255, &[MTU, 1]), (511, &[MTU, MTU, 1]), (600, &[MTU, MTU, 89])]
    {
        let mut pair = pair();
        pair.receive(50, capacity);
        pair.receive(51, 4096);
        let opcode = |i: usize| match (i, lengths.len() - i) {
            (0, 1) => O::RC_SEND_ONLY,
            (0, _) => O::RC_SEND_FIRST,
            (_, 1) => O::RC_SEND_LAST,
            _ => O::RC_SEND_MIDDLE,
        };
        let mut packets: Vec<_> =
            lengths.iter().enumerate().map(|(i, &length)| pair.send(opcode(i), i as u32, length)).collect();
        let fits = lengths
            .iter()
            .scan(0, |sum, &l| {
                Some({
                    *sum += l;
                    *sum
                })
            })
            .position(|sum| sum > capacity as usize);
        packets.truncate(fits.unwrap() + 1);
        refused(&mut pair, &format!("{lengths:?} into {capacity}"), &packets, 1, 0, told);
    }
}

#[test]
fn a_qp_without_the_right_takes_no_rdma() {
    for what in [Opcode::RC_WRITE_ONLY, Opcode::RC_WRITE_FIRST, Opcode::RC_READ_REQUEST] {
        let mut pair = pair_without_rights();
        let length = if what == Opcode::RC_READ_REQUEST { 0 } else { MTU };
        let packet = pair.rdma(what, 0, if what == Opcode::RC_WRITE_FIRST { 600 } else { MTU as u32 }, length);
        refused(&mut pair, &what.to_string(), &[packet], 1, 0, Told::ReqErr);
    }
    for what in [Opcode::RC_FETCH_ADD, Opcode::RC_CMP_SWAP] {
        let mut pair = pair_without_rights();
        let packet = pair.packet(0, what, 0).atomic(BASE, pair.clients[1].key, 1, 1);
        refused(&mut pair, &what.to_string(), &[packet], 1, 0, Told::ReqErr);
    }
}

#[test]
fn a_bad_key_or_range_is_an_access_error() {
    // Name, and where the access goes: key and address.
    let cases: [Case<(u32, u64)>; 8] = [
        ("unknown key", |p| (p.clients[1].key ^ 1, BASE)),
        ("key of the other side", |p| (p.clients[0].key, BASE)),
        ("no key", |_| (0, BASE)),
        ("other protection domain", |p| {
            let pd = p.pd(1);
            (p.region(1, pd, 0, 4096, AccessFlags::ALL.without(AccessFlags::ZERO_BASED)), BASE)
        }),
        ("no remote right", |p| {
            let pd = p.clients[1].pd;
            (p.region(1, pd, 0, 4096, AccessFlags::LOCAL_WRITE), BASE)
        }),
        ("a byte before", |p| (p.clients[1].key, BASE - 8)),
        ("a byte too far", |p| (p.clients[1].key, BASE + (1 << 20) - 7 * 8)),
        ("around the end of the address space", |p| (p.clients[1].key, u64::MAX - 7)),
    ];
    for (what, place) in cases {
        for opcode in [Opcode::RC_WRITE_ONLY, Opcode::RC_WRITE_FIRST, Opcode::RC_READ_REQUEST, Opcode::RC_FETCH_ADD] {
            let mut pair = pair();
            let before = pair.read(1, 0, 1 << 20);
            let (key, va) = place(&mut pair);
            let packet = pair.packet(0, opcode, 0);
            let packet = match opcode {
                Opcode::RC_WRITE_ONLY => packet.reth(va, key, 64).bytes(64),
                Opcode::RC_WRITE_FIRST => packet.reth(va, key, 300).bytes(MTU),
                Opcode::RC_READ_REQUEST => packet.reth(va, key, 64),
                // The word that ends behind the region.
                _ => packet.atomic(if what == "a byte too far" { BASE + (1 << 20) } else { va }, key, 1, 0),
            };
            refused(&mut pair, &format!("{opcode}: {what}"), &[packet], 2, 0, Told::AccessErr);
            assert!(pair.read(1, 0, 1 << 20) == before, "{opcode}: {what}: nothing is written");
            let cause = pair.detail(1).error;
            assert_eq!(cause.as_deref(), Some(ErrorCause::AccessViolationReceived.sentence()));
        }
    }
}

#[test]
fn each_remote_right_opens_its_own_operation_only() {
    let base = AccessFlags::LOCAL_WRITE;
    let rights = [
        (AccessFlags::REMOTE_WRITE, Opcode::RC_WRITE_ONLY),
        (AccessFlags::REMOTE_READ, Opcode::RC_READ_REQUEST),
        (AccessFlags::REMOTE_ATOMIC, Opcode::RC_CMP_SWAP),
    ];
    for (right, allowed) in rights {
        for (_, opcode) in rights {
            let mut pair = pair();
            let pd = pair.clients[1].pd;
            let key = pair.region(1, pd, 0, 4096, base | right);
            let packet = match opcode {
                Opcode::RC_WRITE_ONLY => pair.packet(0, opcode, 0).reth(BASE, key, 8).bytes(8).ack_req(),
                Opcode::RC_READ_REQUEST => pair.packet(0, opcode, 0).reth(BASE, key, 8),
                _ => pair.packet(0, opcode, 0).atomic(BASE, key, 1, 0),
            };
            if opcode == allowed {
                let said = pair.tell(1, &packet);
                assert!(!said[0].contains("NAK"), "{said:?}");
            } else {
                refused(&mut pair, &format!("{opcode} with {right:?}"), &[packet], 2, 0, Told::AccessErr);
            }
        }
    }
}

#[test]
fn zero_length_rdma_looks_at_neither_key_nor_address() {
    let mut pair = pair();
    let write = pair.packet(0, Opcode::RC_WRITE_ONLY, 0).reth(0, 0, 0).ack_req();
    assert_eq!(pair.tell(1, &write), ["ACK +0 msn 1"]);
    let read = pair.packet(0, Opcode::RC_READ_REQUEST, 1).reth(u64::MAX, 0xdead_beef, 0);
    assert_eq!(pair.tell(1, &read), ["READ_RESP_ONLY +1 msn 2"]);
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    for opcode in [Opcode::RC_FETCH_ADD, Opcode::RC_CMP_SWAP] {
        for off in [1, 4, 7] {
            let mut pair = pair();
            let packet = pair.packet(0, opcode, 0).atomic(BASE + off, pair.clients[1].key, 1, 0);
            refused(&mut pair, &format!("{opcode} at +{off}"), &[packet], 1, 0, Told::ReqErr);
        }
    }
}

#[test]
fn more_reads_than_max_dest_rd_atomic_are_an_invalid_request() {
    for mixed in [false, true] {
        let mut pair = pair();
        let packets: Vec<_> =
            (0..5).map(|i| if mixed && i % 2 == 1 { pair.fetch_add(i, 1) } else { pair.read_request(i, 8) }).collect();
        // One burst, so that none is answered before the last one comes.
        let said = pair.tell_all(1, &packets);
        assert_eq!(said.len(), 5, "{said:?}");
        assert_eq!(said[4], "NAK invalid request +4 msn 4");
        assert!(said[..4].iter().all(|s| !s.contains("NAK")), "what came before is answered: {said:?}");
        assert_eq!(pair.state(1), QpState::Err);
        // At the limit all is well.
        let mut pair = self::pair();
        assert_eq!(pair.tell_all(1, &packets[..4]).len(), 4);
        assert_eq!(pair.tell(1, &packets[4]).len(), 1);
        assert_eq!(pair.state(1), QpState::Rts);
    }
}

#[test]
fn a_receive_that_can_not_be_used_is_an_operational_error() {
    let cases: [Case<Sge>; 5] = [
        ("unknown key", |p| Sge { lkey: p.clients[1].key ^ 1, ..p.clients[1].sge(0, 100) }),
        ("outside the region", |p| p.clients[1].sge((1 << 20) - 99, 100)),
        ("longer than 2^32", |p| p.clients[1].sge(0, u32::MAX)),
        ("no local write", |p| {
            let pd = p.clients[1].pd;
            let lkey = p.region(1, pd, 0, 4096, AccessFlags::REMOTE_READ);
            Sge { lkey, ..p.clients[1].sge(0, 100) }
        }),
        ("other protection domain", |p| {
            let pd = p.pd(1);
            let lkey = p.region(1, pd, 0, 4096, AccessFlags::LOCAL_WRITE);
            Sge { lkey, ..p.clients[1].sge(0, 100) }
        }),
    ];
    for (what, sge) in cases {
        let mut pair = pair();
        let good = pair.clients[1].sge(8192, 16);
        let bad = sge(&mut pair);
        pair.qps[1].post_recv(50, &[good, bad]);
        let packet = pair.send(Opcode::RC_SEND_ONLY, 0, 8);
        let told = Told::Recv(WcStatus::LocProtErr, ErrorCause::BadReceive);
        refused(&mut pair, what, &[packet], 3, 0, told);
        assert_eq!(pair.read(1, 8192, 8), [0; 8], "{what}: the good part is not written either");
    }
}

#[test]
fn a_write_with_immediate_leaves_the_memory_of_its_receive_alone() {
    let mut pair = pair();
    let bad = Sge { lkey: 1, ..pair.clients[1].sge(0, 100) };
    pair.qps[1].post_recv(50, &[bad]);
    let write = pair.rdma(Opcode::RC_WRITE_ONLY_IMM, 0, 64, 64).imm(7).ack_req();
    assert_eq!(pair.tell(1, &write), ["ACK +0 msn 1"]);
    let [cqe] = pair.clients[1].poll()[..] else { panic!() };
    assert_eq!((cqe.wr_id, cqe.status, cqe.opcode), (50, 0, WcOpcode::RecvRdmaWithImm as u8));
    assert_eq!((cqe.byte_len, u32::from_be(cqe.imm), cqe.flags), (64, 7, WcFlags::WITH_IMM.0));
}

#[test]
fn a_region_that_goes_away_in_the_middle_breaks_the_message() {
    let mut pair = pair();
    let lkey = pair.clients[1].key;
    let first = pair.rdma(Opcode::RC_WRITE_FIRST, 0, 600, MTU);
    assert_eq!(pair.tell(1, &first), [""; 0]);
    assert_eq!(pair.ask(1, Request::DeregMr { lkey }), Reply::Done);
    let middle = pair.send(Opcode::RC_WRITE_MIDDLE, 1, MTU);
    refused(&mut pair, "WRITE", &[middle], 2, 0, Told::AccessErr);

    let mut pair = self::pair();
    let lkey = pair.clients[1].key;
    pair.receive(50, 4096);
    let first = pair.send(Opcode::RC_SEND_FIRST, 0, MTU);
    assert_eq!(pair.tell(1, &first), [""; 0]);
    assert_eq!(pair.ask(1, Request::DeregMr { lkey }), Reply::Done);
    let last = pair.send(Opcode::RC_SEND_LAST, 1, 5);
    refused(&mut pair, "SEND", &[last], 3, 0, Told::Recv(WcStatus::LocProtErr, ErrorCause::BadReceive));

    // A READ was granted already: the gap in its responses is the NAK.
    let mut pair = self::pair();
    let lkey = pair.clients[1].key;
    let read = pair.read_request(0, 600);
    pair.hosts[1].receive(pair.now, &read.frame());
    assert_eq!(pair.ask(1, Request::DeregMr { lkey }), Reply::Done);
    assert_eq!(pair.listen(1), ["NAK remote access error +0 msn 1"]);
    assert_eq!(pair.state(1), QpState::Err);
}

#[test]
fn a_fatal_nak_follows_the_answers_to_what_came_before() {
    let mut pair = pair();
    let bad = pair.packet(0, Opcode::RC_WRITE_ONLY, 4).reth(BASE, 1, 4).bytes(4);
    let packets = [pair.read_request(0, 600), pair.fetch_add(3, 1), bad];
    let said = pair.tell_all(1, &packets);
    let expected = [
        "READ_RESP_FIRST +0 len 256 msn 1",
        "READ_RESP_MIDDLE +1 len 256",
        "READ_RESP_LAST +2 len 88 msn 1",
        "ATOMIC_ACK +3 msn 2 original 0",
        "NAK remote access error +4 msn 2",
    ];
    assert_eq!(said, expected);
}

#[test]
fn a_send_with_invalidate_takes_the_remote_rights_of_a_region() {
    for multi in [false, true] {
        let mut pair = pair();
        let pd = pair.clients[1].pd;
        let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let key = pair.region(1, pd, 0, 4096, rights);
        pair.receive(50, 4096);
        let mut psn = 0;
        if multi {
            let first = pair.send(Opcode::RC_SEND_FIRST, 0, MTU);
            assert_eq!(pair.tell(1, &first), [""; 0]);
            psn = 1;
        }
        let opcode = if multi { Opcode::RC_SEND_LAST_INV } else { Opcode::RC_SEND_ONLY_INV };
        let send = pair.packet(0, opcode, psn).ieth(key).bytes(10).ack_req();
        assert_eq!(pair.tell(1, &send), [format!("ACK +{psn} msn 1")]);
        let [cqe] = pair.clients[1].poll()[..] else { panic!() };
        assert_eq!((cqe.flags, cqe.imm, cqe.opcode), (WcFlags::WITH_INV.0, key, WcOpcode::Recv as u8));
        let write = pair.packet(0, Opcode::RC_WRITE_ONLY, psn + 1).reth(BASE, key, 4).bytes(4);
        refused(&mut pair, "a revoked key", &[write], 2, 1, Told::AccessErr);
    }
}

#[test]
fn a_key_that_can_not_be_invalidated_is_an_access_error() {
    let cases: [Case<u32>; 3] = [
        ("unknown", |p| p.clients[1].key ^ 1),
        ("no remote right", |p| {
            let pd = p.clients[1].pd;
            p.region(1, pd, 0, 4096, AccessFlags::LOCAL_WRITE)
        }),
        ("other protection domain", |p| {
            let pd = p.pd(1);
            p.region(1, pd, 0, 4096, AccessFlags::REMOTE_READ)
        }),
    ];
    for (what, key) in cases {
        let mut pair = pair();
        pair.receive(50, 4096);
        let key = key(&mut pair);
        let send = pair.packet(0, Opcode::RC_SEND_ONLY_INV, 0).ieth(key).bytes(10);
        refused(&mut pair, what, &[send], 2, 0, Told::AccessErr);
        assert_eq!(pair.read(1, 65_536, 10), [0; 10], "{what}: nothing is received");
    }
}
