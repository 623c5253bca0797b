//! Every operation of XRC, to the SRQ that its request names.

use shm::attr::{RecoveryPolicy, SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode};
use shm::control::{AsyncEvent, Request};
use shm::layout::SendWqe;
use wire::Frame;

use crate::peer::pattern;
use crate::support::Connect;
use crate::{UNSIGNALED, Xrc};

const OK: WcStatus = WcStatus::Success;
const POLICIES: [RecoveryPolicy; 3] =
    [RecoveryPolicy::GoBackN, RecoveryPolicy::SelectiveRepeat, RecoveryPolicy::Hybrid];

#[test]
fn each_send_takes_a_receive_of_the_srq_that_it_names() {
    let mut x = Xrc::new();
    x.pair.write(0, 0, &pattern(700));
    for srq in [1, 0, 1] {
        x.receive(srq, 10 + srq as u64, 1000);
        x.post(x.wqe(srq, 1, WrOpcode::Send), 700);
        x.pair.exchange();
        assert_eq!(x.sent(), [(1, OK)]);
        let [cqe] = x.received(srq)[..] else { panic!("one completion") };
        assert_eq!((cqe.wr_id, cqe.status, cqe.byte_len), (10 + srq as u64, OK.code(), 700));
        assert_eq!((cqe.opcode, cqe.flags), (WcOpcode::Recv as u8, 0));
        assert!(x.received(1 - srq).is_empty());
        let at = x.srqs[srq].at;
        assert_eq!(x.pair.read(1, at, 700), pattern(700));
        x.pair.write(1, at, &[0; 700]);
        let sent = x.pair.opcodes();
        let expected = [(0, "XRC_SEND_FIRST"), (0, "XRC_SEND_MIDDLE"), (0, "XRC_SEND_LAST"), (1, "XRC_ACK")];
        assert_eq!(sent, expected);
    }
}

#[test]
fn every_packet_of_a_request_names_the_srq_and_no_answer_does() {
    let mut x = Xrc::new();
    for (opcode, length) in [(WrOpcode::RdmaWrite, 600), (WrOpcode::RdmaRead, 600), (WrOpcode::AtomicCmpAndSwp, 8)] {
        x.post(x.wqe(1, 1, opcode), length);
    }
    x.pair.exchange();
    assert_eq!(x.sent(), [(1, OK); 3]);
    let (srqn, sent) = (x.srqs[1].srqn, std::mem::take(&mut x.pair.sent));
    assert!(sent.len() >= 10, "{}", sent.len());
    for (from, frame) in sent {
        let frame = Frame::parse(&frame).unwrap();
        assert!(frame.icrc_ok());
        assert_eq!(frame.xrceth().map(|xrceth| xrceth.srqn), (from == 0).then_some(srqn), "{}", frame.info().name);
        assert!(frame.info().name.starts_with("XRC_"), "{}", frame.info().name);
    }
}

#[test]
fn writes_reads_and_atomics_reach_regions_of_the_srqs_protection_domain() {
    let mut x = Xrc::new();
    x.pair.write(0, 0, &pattern(600));
    for srq in 0..2 {
        x.post(x.wqe(srq, 1, WrOpcode::RdmaWrite), 600);
        x.pair.exchange();
        assert_eq!(x.pair.read(1, 4096, 600), pattern(600));
        x.pair.write(1, 4096, &pattern(900)[300..]);
        x.post(x.wqe(srq, 2, WrOpcode::RdmaRead), 600);
        x.pair.exchange();
        assert_eq!(x.pair.read(0, 0, 600), pattern(900)[300..]);
        x.pair.write(0, 0, &pattern(600));
        x.pair.write(1, 4096, &7u64.to_ne_bytes());
        x.post(SendWqe { compare_add: 5, ..x.wqe(srq, 3, WrOpcode::AtomicFetchAndAdd) }, 8);
        x.post(SendWqe { compare_add: 12, swap: 99, ..x.wqe(srq, 4, WrOpcode::AtomicCmpAndSwp) }, 8);
        x.pair.exchange();
        assert_eq!((x.pair.word(0, 0), x.pair.word(1, 4096)), (12, 99));
        assert_eq!(x.sent(), [(1, OK), (2, OK), (3, OK), (4, OK)]);
        x.pair.write(0, 0, &pattern(600));
    }
    assert!(x.received(0).is_empty() && x.received(1).is_empty());
}

#[test]
fn a_write_with_immediate_takes_a_receive() {
    let mut x = Xrc::new();
    x.receive(1, 5, 0);
    x.post(x.wqe(1, 1, WrOpcode::RdmaWriteWithImm), 300);
    x.pair.exchange();
    assert_eq!(x.sent(), [(1, OK)]);
    let [cqe] = x.received(1)[..] else { panic!("one completion") };
    assert_eq!((cqe.wr_id, cqe.opcode, cqe.byte_len), (5, WcOpcode::RecvRdmaWithImm as u8, 300));
    assert_eq!((cqe.flags, u32::from_be(cqe.imm)), (WcFlags::WITH_IMM.0, 0x1122_3344));
}

#[test]
fn a_key_of_another_protection_domain_than_the_srqs_is_refused() {
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::RdmaRead, WrOpcode::AtomicFetchAndAdd] {
        let mut x = Xrc::new();
        x.post(SendWqe { rkey: x.srqs[0].key, ..x.wqe(1, 1, opcode) }, 8);
        x.pair.exchange();
        assert_eq!(x.sent(), [(1, WcStatus::RemAccessErr)], "{opcode}");
    }
}

#[test]
fn an_empty_srq_asks_for_patience_and_the_other_is_left_alone() {
    let mut x = Xrc::with(Connect { path_mtu: 1, rnr_retry: 7, min_rnr_timer: 1, timeout: 0, ..Connect::default() });
    x.receive(1, 20, 1000);
    x.post(x.wqe(0, 1, WrOpcode::Send), 10);
    x.pair.exchange();
    assert_eq!((x.sent(), x.pair.counters(1).send_rnr_err), (vec![], 1));
    assert!(x.received(1).is_empty());
    x.receive(0, 21, 1000);
    x.pair.advance(20_000_000);
    assert_eq!(x.sent(), [(1, OK)]);
    assert_eq!(x.received(0).len(), 1);
    assert!(x.received(1).is_empty());
}

/// READs that are asked again are answered out of the protection domain of their own SRQ, whatever came since.
#[test]
fn lost_packets_are_made_good_once_each() {
    for policy in POLICIES {
        for period in 2..7 {
            // Eight times 8 us; selective repeat, which has shorter timers of its own, may take eight times 1 ms.
            let timeout = if policy.is_selective() { 8 } else { 1 };
            let mut x = Xrc::with(Connect { path_mtu: 1, timeout, retry_cnt: 7, ..Connect::default() });
            x.set_recovery(policy);
            x.pair.write(0, 8192, &pattern(700));
            x.pair.write(1, 4096, &pattern(900)[200..]);
            for srq in 0..2 {
                x.receive(srq, 30 + srq as u64, 1000);
            }
            for srq in [0, 1] {
                x.post(SendWqe { flags: UNSIGNALED, ..x.wqe(srq, 1, WrOpcode::RdmaRead) }, 700);
                let sge = x.pair.clients[0].sge(8192, 700);
                x.sender.post(x.wqe(srq, 2 + srq as u64, WrOpcode::Send), &[sge]);
            }
            let mut count = 0;
            let mut lose = |_: usize, frame: Vec<u8>| {
                count += 1;
                if count < 60 && count % period == 0 { vec![] } else { vec![frame] }
            };
            let mut sent = Vec::new();
            for _ in 0..1_000 {
                x.pair.exchange_with(&mut lose);
                sent.extend(x.sent());
                if sent.len() == 2 {
                    break;
                }
                x.pair.now = x.pair.now.add_ns(20_000);
            }
            assert_eq!(sent, [(2, OK), (3, OK)], "{policy}: every {period}th lost");
            assert!(x.pair.counters(0).retransmitted_packets > 0, "{policy}: every {period}th lost");
            assert_eq!(x.pair.read(0, 0, 700), pattern(900)[200..]);
            for srq in 0..2 {
                let at = x.srqs[srq].at;
                assert_eq!(x.received(srq).len(), 1);
                assert_eq!(x.pair.read(1, at, 700), pattern(700));
            }
        }
    }
}

/// How many request packets go twice when the second of 40 is lost, and what is kept at the receiver for its turn goes to the SRQ
/// that it names.
#[test]
fn a_sender_repeats_selectively_only_what_is_lost() {
    for (policy, least, most) in [(POLICIES[0], 30, 40), (POLICIES[1], 1, 1), (POLICIES[2], 1, 1)] {
        let mut x = Xrc::with(Connect { path_mtu: 1, ..Connect::default() });
        x.set_recovery(policy);
        x.pair.write(0, 0, &pattern(20 * 256));
        x.post(x.wqe(0, 1, WrOpcode::RdmaWrite), 20 * 256);
        for srq in [1, 0] {
            x.receive(srq, 7, 10 * 256);
            x.post(x.wqe(srq, 2 + srq as u64, WrOpcode::Send), 10 * 256);
        }
        let mut count = 0;
        x.pair.exchange_with(|from, frame| {
            count += usize::from(from == 0);
            if from == 0 && count == 2 { vec![] } else { vec![frame] }
        });
        for _ in 0..50 {
            x.pair.now = x.pair.now.add_ns(20_000);
            x.pair.exchange();
        }
        assert_eq!(x.sent(), [(1, OK), (3, OK), (2, OK)], "{policy}");
        let [sender, receiver] = [x.pair.counters(0), x.pair.counters(1)];
        assert!((least..=most).contains(&sender.retransmitted_packets), "{policy}: {}", sender.retransmitted_packets);
        assert_eq!((sender.rewinds == 0, receiver.tx_sacks > 0), (policy.is_selective(), policy.is_selective()));
        assert_eq!(x.pair.read(1, 4096, 20 * 256), pattern(20 * 256));
        for srq in 0..2 {
            let at = x.srqs[srq].at;
            assert_eq!(x.received(srq).iter().map(|cqe| (cqe.wr_id, cqe.byte_len)).collect::<Vec<_>>(), [(7, 2560)]);
            assert_eq!(x.pair.read(1, at, 2560), pattern(2560));
        }
    }
}

#[test]
fn the_limit_of_an_srq_is_told_to_its_owner() {
    let mut x = Xrc::new();
    for wr_id in 0..3 {
        x.receive(0, wr_id, 100);
    }
    let srq = x.srqs[0].handle;
    x.pair.ask(1, Request::ModifySrq { srq, srq_limit: 2 });
    x.pair.events(1);
    for wr_id in 0..2 {
        x.post(x.wqe(0, wr_id, WrOpcode::Send), 10);
    }
    x.pair.exchange();
    assert_eq!(x.pair.events(1), [AsyncEvent::SrqLimitReached { srq }]);
}

#[test]
fn a_sender_does_not_bother_its_peer_without_need() {
    let mut x = Xrc::new();
    x.receive(0, 1, 100);
    x.post(SendWqe { flags: SendFlags::SIGNALED.0 | SendFlags::SOLICITED.0, ..x.wqe(0, 1, WrOpcode::Send) }, 0);
    x.pair.exchange();
    assert_eq!(x.pair.opcodes(), [(0, "XRC_SEND_ONLY"), (1, "XRC_ACK")]);
    x.pair.advance(1_000_000_000);
    assert_eq!(x.pair.opcodes(), []);
}
