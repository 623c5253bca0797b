//! Work requests: all the shapes that are legal, and each way to get one wrong.

use engine::ErrorCause;
use shm::attr::{AccessFlags, QpCap, QpState, SendFlags, WcStatus, WrOpcode};
use shm::control::{Reply, Request};
use shm::layout::{SLOTS, SendWqe, Sge};
use shm::ring::Body;

use crate::peer::{done, failed, flushed, pattern};
use crate::support::{BASE, CAP, Connect, Pair};

type Fault = (WcStatus, ErrorCause);
type Case = (&'static str, (WrOpcode, ErrorCause, fn(&mut Pair) -> Sge));
const OPCODE: Fault = (WcStatus::LocQpOpErr, ErrorCause::BadOpcode);
const WQE: Fault = (WcStatus::LocQpOpErr, ErrorCause::BadWqe);
const LENGTH: Fault = (WcStatus::LocLenErr, ErrorCause::BadLength);

/// Posts a good request, the bad one that `post` makes with wr_id 2, and one more; expects that only the first is done.
#[track_caller]
fn fails(what: &str, (status, cause): Fault, post: impl FnOnce(&mut Pair)) {
    let mut pair = Pair::new(Connect::default());
    let good = pair.wqe(1, WrOpcode::RdmaWrite);
    pair.post(good, 3000);
    post(&mut pair);
    pair.post(SendWqe { wr_id: 3, ..good }, 8);
    pair.sent.clear();
    pair.exchange();
    assert_eq!(pair.failures(0), [done(1), failed(2, status, cause), flushed(3)], "{what}");
    assert_eq!(pair.state(0), QpState::Err, "{what}");
    assert_eq!(pair.detail(0).error.as_deref(), Some(cause.sentence()), "{what}");
    assert_eq!(pair.counters(0).req_local_errors, 1, "{what}");
    assert_eq!((pair.state(1), pair.events(0), pair.events(1)), (QpState::Rts, vec![], vec![]), "{what}");
    let packets = pair.opcodes().iter().filter(|(from, _)| *from == 0).count();
    assert_eq!(packets, 3, "{what}: nothing of it is sent");
}

impl Pair {
    /// Posts a WQE whose header the ring's own checks would not let through.
    fn post_raw(&mut self, wqe: SendWqe) {
        let wr_id = wqe.wr_id;
        self.qps[0].send.post(SendWqe { wr_id, ..SendWqe::default() }, Body::Sges(&[])).unwrap();
        let qp = &self.qps[0];
        // The second request since RESET: slot 1.
        let slot = qp.block.offset + SLOTS + u64::from(qp.sq.stride);
        qp.block.mapping.store_words(slot, wqe.to_words()).unwrap();
        self.qps[0].ring();
    }
}

#[test]
fn opcodes_that_rc_does_not_have() {
    for opcode in [10, 11, 255] {
        fails(&format!("opcode {opcode}"), OPCODE, |pair| {
            let wqe = SendWqe { opcode, ..pair.wqe(2, WrOpcode::Send) };
            pair.post(wqe, 8);
        });
    }
    for opcode in [WrOpcode::RdmaRead, WrOpcode::AtomicFetchAndAdd] {
        fails(&format!("inline {opcode}"), OPCODE, |pair| {
            let wqe = pair.wqe(2, opcode);
            pair.qps[0].post_inline(wqe, &[0; 8]);
        });
    }
}

#[test]
fn counts_beyond_the_queue_s_own() {
    let shape = Pair::new(Connect::default()).qps[0].sq;
    fails("SGEs", WQE, |pair| {
        let wqe = SendWqe { sge_count: shape.max_sge as u16 + 1, ..pair.wqe(2, WrOpcode::RdmaWrite) };
        pair.post_raw(wqe);
    });
    fails("all SGEs there are", WQE, |pair| {
        let wqe = SendWqe { sge_count: u16::MAX, ..pair.wqe(2, WrOpcode::RdmaWrite) };
        pair.post_raw(wqe);
    });
    for inline_bytes in [shape.max_inline + 1, u32::MAX] {
        fails("inline bytes", WQE, |pair| {
            let wqe = pair.wqe(2, WrOpcode::RdmaWrite);
            pair.post_raw(SendWqe { inline_bytes, flags: wqe.flags | SendFlags::INLINE.0, ..wqe });
        });
    }
}

#[test]
fn lengths_that_the_operation_can_not_have() {
    for (opcode, lengths) in [
        (WrOpcode::AtomicFetchAndAdd, &[7u32][..]),
        (WrOpcode::AtomicFetchAndAdd, &[]),
        (WrOpcode::AtomicCmpAndSwp, &[8, 8]),
        (WrOpcode::AtomicCmpAndSwp, &[16]),
        (WrOpcode::RdmaWrite, &[1 << 31, 1]),
        (WrOpcode::RdmaRead, &[u32::MAX, 1]),
        (WrOpcode::Send, &[u32::MAX, u32::MAX]),
    ] {
        fails(&format!("{opcode} of {lengths:?}"), LENGTH, |pair| {
            let wqe = pair.wqe(2, opcode);
            let sges: Vec<_> = lengths.iter().map(|&length| pair.clients[0].sge(0, length)).collect();
            pair.qps[0].post(wqe, &sges);
        });
    }
}

#[test]
fn memory_that_the_request_may_not_use() {
    let cases: [Case; 7] = [
        ("unknown key", (WrOpcode::RdmaWrite, ErrorCause::UnknownKey, |p| Sge { lkey: 5, ..p.clients[0].sge(0, 8) })),
        (
            "unknown key, READ",
            (WrOpcode::RdmaRead, ErrorCause::UnknownKey, |p| Sge { lkey: 5, ..p.clients[0].sge(0, 8) }),
        ),
        ("a byte too far", (WrOpcode::Send, ErrorCause::OutOfRange, |p| p.clients[0].sge((1 << 20) - 7, 8))),
        (
            "far away",
            (WrOpcode::RdmaWrite, ErrorCause::OutOfRange, |p| Sge { addr: u64::MAX, ..p.clients[0].sge(0, 8) }),
        ),
        (
            "other domain",
            (WrOpcode::RdmaWrite, ErrorCause::WrongPd, |p| {
                let pd = p.pd(0);
                let lkey = p.region(0, pd, 0, 4096, AccessFlags::LOCAL_WRITE);
                Sge { lkey, ..p.clients[0].sge(0, 8) }
            }),
        ),
        ("READ into what may not be written", (WrOpcode::RdmaRead, ErrorCause::NoRight, read_only)),
        ("atomic into what may not be written", (WrOpcode::AtomicCmpAndSwp, ErrorCause::NoRight, read_only)),
    ];
    for (what, (opcode, cause, sge)) in cases {
        fails(what, (WcStatus::LocProtErr, cause), |pair| {
            let (wqe, sge) = (pair.wqe(2, opcode), sge(pair));
            pair.qps[0].post(wqe, &[sge]);
        });
    }
}

fn read_only(pair: &mut Pair) -> Sge {
    let pd = pair.clients[0].pd;
    let lkey = pair.region(0, pd, 0, 4096, AccessFlags::NONE);
    Sge { lkey, ..pair.clients[0].sge(0, 8) }
}

#[test]
fn a_region_without_rights_can_be_sent_from() {
    let mut pair = Pair::new(Connect::default());
    let (wqe, sge) = (pair.wqe(1, WrOpcode::RdmaWrite), read_only(&mut pair));
    pair.qps[0].post(wqe, &[sge]);
    pair.exchange();
    assert_eq!(pair.failures(0), [done(1)]);
}

#[test]
fn no_read_or_atomic_with_max_rd_atomic_0() {
    let mut pair = Pair::new(Connect { rd_atomic: 0, ..Connect::default() });
    let wqe = pair.wqe(1, WrOpcode::RdmaRead);
    pair.post(wqe, 8);
    pair.exchange();
    assert_eq!(pair.failures(0), [failed(1, WcStatus::LocQpOpErr, ErrorCause::NoRdAtomic)]);
}

#[test]
fn a_region_that_goes_away_in_the_middle_of_a_message() {
    // The WRITE is held up by its window after 256 packets; the READ by nothing but its answer.
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::RdmaRead] {
        let mut pair = Pair::new(Connect { path_mtu: 1, ..Connect::default() });
        let wqe = pair.wqe(1, opcode);
        pair.post(wqe, 100_000);
        assert!(!pair.listen(0).is_empty());
        let lkey = pair.clients[0].key;
        assert_eq!(pair.ask(0, Request::DeregMr { lkey }), Reply::Done);
        let answer = match opcode {
            WrOpcode::RdmaWrite => pair.ack(1, 0x1f, 100),
            _ => pair.packet(1, wire::Opcode::RC_READ_RESP_FIRST, 0).aeth(0x1f, 1).bytes(256),
        };
        assert_eq!(pair.tell(0, &answer), [""; 0]);
        assert_eq!(pair.failures(0), [failed(1, WcStatus::LocProtErr, ErrorCause::UnknownKey)], "{opcode}");
    }
}

#[test]
fn several_sges_of_any_length_make_one_message() {
    // Empty ones may point anywhere.
    let shapes: [&[u32]; 8] =
        [&[], &[0], &[0, 0, 5], &[1, 0, 1], &[256, 256], &[255, 1, 257, 3], &[700, 0, 0, 1], &[1, 1, 1, 1]];
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::RdmaRead, WrOpcode::Send] {
        for shape in shapes {
            let mut pair = Pair::new(Connect { path_mtu: 1, ..Connect::default() });
            let mut at = 0;
            let sges: Vec<_> = shape
                .iter()
                .map(|&length| {
                    at += 1000;
                    let sge = pair.clients[0].sge(at, length);
                    if length == 0 { Sge { addr: 1, lkey: 2, ..sge } } else { sge }
                })
                .collect();
            let total = shape.iter().sum::<u32>() as usize;
            let data = pattern(total);
            let local = |pair: &mut Pair, write: bool| {
                let (mut found, mut from) = (Vec::new(), 0);
                for (i, &length) in shape.iter().enumerate() {
                    let offset = (i as u64 + 1) * 1000;
                    if write {
                        pair.write(0, offset, &data[from..from + length as usize]);
                    }
                    from += length as usize;
                    found.extend(pair.read(0, offset, length as usize));
                }
                found
            };
            if opcode == WrOpcode::RdmaRead {
                pair.write(1, 4096, &data);
            } else {
                local(&mut pair, true);
            }
            if opcode == WrOpcode::Send {
                // Scattered as it was gathered.
                let sges: Vec<_> =
                    [100, 0, 300, 600].iter().zip(0..).map(|(&l, i)| pair.clients[1].sge(i * 8192, l)).collect();
                pair.qps[1].post_recv(50, &sges);
            }
            let wqe = pair.wqe(1, opcode);
            pair.qps[0].post(wqe, &sges);
            pair.exchange();
            assert_eq!(pair.failures(0), [done(1)], "{opcode} of {shape:?}");
            let found = match opcode {
                WrOpcode::RdmaRead => local(&mut pair, false),
                WrOpcode::Send => [pair.read(1, 0, 100), pair.read(1, 16_384, 300), pair.read(1, 24_576, 600)].concat()
                    [..total]
                    .to_vec(),
                _ => pair.read(1, 4096, total),
            };
            assert!(found == data, "{opcode} of {shape:?}");
        }
    }
}

#[test]
fn inline_data_needs_no_region_and_is_taken_at_once() {
    let cap = QpCap { max_inline_data: 512, ..CAP };
    for length in [0, 1, 255, 256, 257, 512] {
        for opcode in [WrOpcode::RdmaWrite, WrOpcode::SendWithImm] {
            let mut pair = Pair::new(Connect { path_mtu: 1, ..Connect::default() });
            pair.fresh_qp(0, cap);
            let peer = pair.qps[0].qpn;
            let (session, qpn, ip, c) = (pair.clients[1].session, pair.qps[1].qpn, pair.hosts[0].ip, pair.connect);
            pair.go_to(1, QpState::Reset);
            crate::support::connect(&mut pair.hosts[1], session, qpn, ip, peer, c, 1);
            pair.receive(50, 1000);
            let data = pattern(length);
            let wqe = pair.wqe(1, opcode);
            pair.qps[0].post_inline(wqe, &data);
            // Lost once, so that it is read from the private copy again.
            pair.exchange_with(|_, _| vec![]);
            pair.advance(4096 << 14);
            assert_eq!(pair.failures(0), [done(1)], "{opcode} of {length}");
            let at = if opcode == WrOpcode::RdmaWrite { 4096 } else { 65_536 };
            assert!(pair.read(1, at, length) == data, "{opcode} of {length}");
        }
    }
}

#[test]
fn flags_without_a_meaning_are_ignored() {
    let mut pair = Pair::new(Connect::default());
    let wqe = pair.wqe(1, WrOpcode::RdmaWrite);
    pair.post(SendWqe { flags: wqe.flags | 0xf0, ..wqe }, 8);
    pair.exchange();
    assert_eq!(pair.failures(0), [done(1)]);
}

#[test]
fn a_send_with_invalidate_reaches_the_other_application() {
    let mut pair = Pair::new(Connect::default());
    let pd = pair.clients[1].pd;
    let key = pair.region(1, pd, 0, 8192, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE);
    pair.receive(50, 64);
    let write = SendWqe { rkey: key, remote_addr: BASE, ..pair.wqe(1, WrOpcode::RdmaWrite) };
    let send = SendWqe { imm: key, ..pair.wqe(2, WrOpcode::SendWithInv) };
    for wqe in [write, send, SendWqe { wr_id: 3, ..write }] {
        pair.post(wqe, 8);
    }
    pair.exchange();
    assert_eq!(pair.failures(0), [done(1), done(2), failed(3, WcStatus::RemAccessErr, ErrorCause::NakRemoteAccess)]);
    let [cqe] = pair.clients[1].poll()[..] else { panic!() };
    assert_eq!((cqe.wr_id, cqe.imm), (50, key));
    // The region is still there for its owner.
    assert_eq!(pair.ask(1, Request::DeregMr { lkey: key }), Reply::Done);
}
