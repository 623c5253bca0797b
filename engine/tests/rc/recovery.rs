//! A wire that loses, repeats, swaps and garbles: whatever happens to any one or two packets, every operation is done once.

use shm::attr::{RecoveryPolicy, WcStatus, WrOpcode};
use shm::layout::SendWqe;

use crate::peer::pattern;
use crate::support::{BASE, Connect, Pair};

/// Timeout code 14.
const TIMEOUT_NS: u64 = 4096 << 14;
const OPERATIONS: u64 = 8;

/// Two QPs whose PSNs are about to wrap, with work of every kind posted on side 0.
fn busy_pair(policy: RecoveryPolicy) -> Pair {
    let mut pair = Pair::new(Connect { path_mtu: 1, psn: [(1 << 24) - 6, 9], ..Connect::default() });
    pair.set_recovery(policy);
    pair.write(0, 0, &pattern(4096));
    pair.write(1, 16_384, &pattern(900));
    pair.write(1, 32_768, &100u64.to_ne_bytes());
    for (wr_id, length) in [(50, 400), (51, 0), (52, 0)] {
        pair.receive(wr_id, length);
    }
    let at = |pair: &Pair, offset: u64, wqe: SendWqe| SendWqe {
        remote_addr: BASE + offset,
        rkey: pair.clients[1].key,
        ..wqe
    };
    let work = [
        (WrOpcode::RdmaWrite, 4096, 0, 700),
        (WrOpcode::SendWithImm, 0, 1000, 300),
        (WrOpcode::RdmaRead, 16_384, 8192, 900),
        (WrOpcode::AtomicFetchAndAdd, 32_768, 12_288, 8),
        (WrOpcode::RdmaWriteWithImm, 8192, 2000, 260),
        (WrOpcode::AtomicCmpAndSwp, 32_768, 12_296, 8),
        (WrOpcode::Send, 0, 0, 0),
        (WrOpcode::RdmaRead, 4096, 20_000, 10),
    ];
    for (wr_id, (opcode, remote, local, length)) in (1..).zip(work) {
        let wqe = SendWqe { compare_add: 107, swap: 5, ..pair.wqe(wr_id, opcode) };
        let wqe = if opcode == WrOpcode::AtomicFetchAndAdd { SendWqe { compare_add: 7, ..wqe } } else { wqe };
        let (wqe, sge) = (at(&pair, remote, wqe), pair.clients[0].sge(local, length));
        pair.qps[0].post(wqe, &[sge]);
    }
    pair
}

/// How long losses take to be noticed, and how often they may have to.
fn patience(policy: RecoveryPolicy) -> (u64, usize) {
    if policy.is_selective() { (25_000, 200) } else { (TIMEOUT_NS, 12) }
}

/// Lets the pair finish, and checks that everything was done, once and in order.
fn check_done(pair: &mut Pair, policy: RecoveryPolicy, what: &str) {
    let mut completions = pair.completions(0);
    let (step_ns, steps) = patience(policy);
    for _ in 0..steps {
        if completions.len() as u64 == OPERATIONS {
            break;
        }
        pair.advance(step_ns);
        completions.extend(pair.completions(0));
    }
    let expected: Vec<_> = (1..=OPERATIONS).map(|wr_id| (wr_id, WcStatus::Success)).collect();
    assert_eq!(completions, expected, "{what}");
    let received: Vec<_> = pair.clients[1].poll().iter().map(|c| (c.wr_id, c.status, c.byte_len)).collect();
    assert_eq!(received, [(50, 0, 300), (51, 0, 260), (52, 0, 0)], "{what}");
    let source = pattern(4096);
    assert!(pair.read(1, 4096, 700) == source[..700], "{what}: WRITE");
    assert!(pair.read(1, 8192, 260) == source[2000..2260], "{what}: WRITE with immediate");
    assert!(pair.read(1, 65_536, 300) == source[1000..1300], "{what}: SEND");
    assert!(pair.read(0, 8192, 900) == pattern(900), "{what}: READ");
    assert!(pair.read(0, 20_000, 10) == source[..10], "{what}: READ of what was written");
    assert_eq!((pair.word(0, 12_288), pair.word(0, 12_296), pair.word(1, 32_768)), (100, 107, 5), "{what}: atomics");
    pair.advance(20 * TIMEOUT_NS);
    assert_eq!((pair.completions(0), pair.completions(1)), (vec![], vec![]), "{what}: nothing twice");
}

/// Frames of a run without faults.
fn frame_count(policy: RecoveryPolicy) -> usize {
    let mut pair = busy_pair(policy);
    pair.exchange();
    check_done(&mut pair, policy, "no fault");
    let counters = [pair.counters(0), pair.counters(1)];
    assert!(counters.iter().all(|c| c.retransmitted_packets + c.duplicate_request + c.out_of_sequence == 0));
    let count = pair.sent.len();
    assert!((16..64).contains(&count), "{count} frames");
    count
}

/// Runs the work; `fault` says what becomes of frame `n`.
fn run(policy: RecoveryPolicy, what: &str, mut fault: impl FnMut(usize, Vec<u8>) -> Vec<Vec<u8>>) -> Pair {
    let what = &format!("{policy}: {what}");
    let mut pair = busy_pair(policy);
    let mut n = 0;
    pair.exchange_with(|_, frame| {
        n += 1;
        fault(n - 1, frame)
    });
    check_done(&mut pair, policy, what);
    pair
}

#[test]
fn any_lost_packet_is_made_up_for() {
    for &policy in RecoveryPolicy::ALL {
        for lost in 0..frame_count(policy) {
            run(policy, &format!("{lost} lost"), |n, frame| if n == lost { vec![] } else { vec![frame] });
        }
    }
}

#[test]
fn any_two_lost_packets_are_made_up_for() {
    for &policy in RecoveryPolicy::ALL {
        // The second loss may hit what repairs the first.
        let count = frame_count(policy) + 6;
        for first in 0..count {
            for second in (first + 1..count).step_by(if policy.is_selective() { 3 } else { 1 + first % 2 }) {
                run(policy, &format!("{first} and {second} lost"), |n, frame| {
                    if n == first || n == second { vec![] } else { vec![frame] }
                });
            }
        }
    }
}

#[test]
fn any_repeated_packet_is_executed_once() {
    for &policy in RecoveryPolicy::ALL {
        for twice in 0..frame_count(policy) {
            run(
                policy,
                &format!("{twice} twice"),
                |n, frame| if n == twice { vec![frame.clone(), frame] } else { vec![frame] },
            );
        }
        let pair = run(policy, "all twice", |_, frame| vec![frame.clone(), frame]);
        drop(pair);
    }
}

#[test]
fn any_late_packet_is_put_up_with() {
    for &policy in RecoveryPolicy::ALL {
        for late in 0..frame_count(policy) {
            for distance in [1, 2, 5] {
                let mut held = None;
                run(policy, &format!("{late} late by {distance}"), |n, frame| {
                    if n == late {
                        held = Some(frame);
                        return vec![];
                    }
                    let mut frames = vec![frame];
                    if n == late + distance {
                        frames.extend(held.take());
                    }
                    frames
                });
            }
        }
    }
}

#[test]
fn a_garbled_packet_is_counted_and_lost() {
    for &policy in RecoveryPolicy::ALL {
        for garbled in 0..frame_count(policy) {
            let mut pair = run(policy, &format!("{garbled} garbled"), |n, mut frame| {
                if n == garbled {
                    // In what the ICRC covers, and no other checksum does.
                    let at = frame.len() - 6;
                    frame[at] ^= 0x10;
                }
                vec![frame]
            });
            let wrong = pair.port_counters(0).rx_icrc_encapsulated + pair.port_counters(1).rx_icrc_encapsulated;
            assert_eq!(wrong, 1, "{garbled}");
        }
    }
}

#[test]
fn a_long_message_survives_one_loss_in_ten() {
    let kinds = [(WrOpcode::RdmaWrite, 1), (WrOpcode::RdmaRead, 0), (WrOpcode::Send, 1)];
    for (&policy, (opcode, side)) in RecoveryPolicy::ALL.iter().flat_map(|policy| kinds.map(|kind| (policy, kind))) {
        let mut pair = Pair::new(Connect { path_mtu: 1, timeout: 8, ..Connect::default() });
        pair.set_recovery(policy);
        let length = 200_000u32;
        pair.write(1 - side, if side == 0 { 4096 } else { 0 }, &pattern(length as usize));
        if opcode == WrOpcode::Send {
            let sge = pair.clients[1].sge(4096, length);
            pair.qps[1].post_recv(50, &[sge]);
        }
        let wqe = pair.wqe(1, opcode);
        pair.post(wqe, length);
        let mut n = 0;
        let mut completions = Vec::new();
        for _ in 0..2000 {
            pair.exchange_with(|_, frame| {
                n += 1;
                if n % 10 == 3 { vec![] } else { vec![frame] }
            });
            pair.now = pair.now.add_ns(if policy.is_selective() { 20_000 } else { 4096 << 8 });
            completions.extend(pair.completions(0));
            if !completions.is_empty() {
                break;
            }
        }
        assert_eq!(completions, [(1, WcStatus::Success)], "{policy} {opcode}");
        assert!(pair.read(side, if side == 1 { 4096 } else { 0 }, length as usize) == pattern(length as usize));
        assert!(pair.counters(0).retransmitted_packets > 2, "{policy} {opcode}: the fault is real");
    }
}

#[test]
fn a_dead_peer_ends_in_retry_exceeded() {
    let mut pair = busy_pair(RecoveryPolicy::GoBackN);
    pair.exchange_with(|from, frame| if from == 1 { vec![] } else { vec![frame] });
    let mut statuses = Vec::new();
    for _ in 0..8 {
        pair.now = pair.now.add_ns(TIMEOUT_NS);
        pair.exchange_with(|from, frame| if from == 1 { vec![] } else { vec![frame] });
        statuses.extend(pair.completions(0).into_iter().map(|c| c.1));
    }
    assert_eq!(statuses[0], WcStatus::RetryExcErr);
    assert!(statuses[1..].iter().all(|&s| s == WcStatus::WrFlushErr));
    assert_eq!(statuses.len() as u64, OPERATIONS);
}
