//! Selective repeat, one side at a time: what a selective acknowledgement, a timer or a stale NAK makes a requester send, what a
//! responder keeps and says, and what a peer can't achieve that means harm by it.

use engine::ErrorCause;
use engine::config::RecoveryConfig;
use shm::attr::{QpState, QpType, RecoveryPolicy, WcStatus, WrOpcode};
use shm::control::{Reply, Request};
use wire::{Opcode, Psn};

use crate::peer::{Packet, done, failed, flushed, pattern};
use crate::support::{BASE, Client, Connect, HostOptions, Pair, STEPS, attributes, modify};

/// Syndrome of an acknowledgement.
const ACK: u8 = 0x1f;
/// Syndrome of a NAK for a PSN that is missing.
const NAK_SEQUENCE: u8 = 0x60;
/// The reorder window, without a round trip time to go by, and a little more.
const REORDER_NS: u64 = 110_000;

const SELECTIVE: [RecoveryPolicy; 2] = [RecoveryPolicy::SelectiveRepeat, RecoveryPolicy::Hybrid];

/// 256 bytes in a packet.
fn small() -> Connect {
    Connect { path_mtu: 1, ..Connect::default() }
}

fn pair(policy: RecoveryPolicy) -> Pair {
    let mut pair = Pair::new(small());
    pair.set_recovery(policy);
    pair
}

/// Hosts that keep so many packets.
fn keeping(kept_packets: u32, policy: RecoveryPolicy) -> Pair {
    let recovery = RecoveryConfig { kept_packets, ..RecoveryConfig::default() };
    let host = |n| HostOptions { recovery, ..HostOptions::new(n) };
    let mut pair = Pair::with(small(), host(1), host(2), 1 << 20);
    pair.set_recovery(policy);
    pair
}

fn post(pair: &mut Pair, wr_id: u64, opcode: WrOpcode, packets: u32) {
    let wqe = pair.wqe(wr_id, opcode);
    pair.post(wqe, packets * 256);
}

/// A READ response of 256 bytes.
fn response(pair: &Pair, psn: u32, opcode: Opcode) -> Packet {
    let packet = pair.packet(1, opcode, psn);
    let packet = if opcode == Opcode::RC_READ_RESP_MIDDLE { packet } else { packet.aeth(ACK, 0) };
    packet.bytes(256)
}

/// WRITEs of one packet to the start of side 1's memory.
fn write(pair: &Pair, psn: u32, offset: u64) -> Packet {
    pair.packet(0, Opcode::RC_WRITE_ONLY, psn).reth(BASE + offset, pair.clients[1].key, 256).bytes(256)
}

/// The PSNs, of words such as `WRITE_MIDDLE +5 len 256 A`.
fn psns(words: &[String]) -> Vec<i32> {
    words.iter().map(|said| said.split_whitespace().nth(1).unwrap().parse().unwrap()).collect()
}

/// A requester whose SACK-ing peer got some of `packets` packets of one WRITE.
fn sacked(policy: RecoveryPolicy, packets: u32, missing: u32, come: impl IntoIterator<Item = u32>) -> Pair {
    let mut pair = pair(policy);
    post(&mut pair, 1, WrOpcode::RdmaWrite, packets);
    assert_eq!(pair.listen(0).len(), packets as usize);
    let sack = pair.sack(1, missing, come);
    assert_eq!(pair.tell(0, &sack), [""; 0], "late is not lost");
    pair
}

#[test]
fn what_is_missing_is_sent_again_after_the_reorder_window_and_nothing_else() {
    // Packets, the missing one, those behind it that came, and what goes again.
    let cases: [(u32, u32, &[u32], &[i32]); 7] = [
        (8, 0, &[1], &[0]),
        (8, 0, &[7], &[0, 1, 2, 3, 4, 5, 6]),
        (8, 3, &[4, 6], &[3, 5]),
        (8, 3, &[7], &[3, 4, 5, 6]),
        (8, 7, &[], &[]),
        (200, 0, &[63, 64, 65], &[0]),
        (200, 197, &[199], &[197, 198]),
    ];
    for policy in SELECTIVE {
        for (packets, missing, come, again) in cases {
            let mut pair = sacked(policy, packets, missing, come.iter().copied());
            let said = pair.wait(0, REORDER_NS);
            let again = if packets == 200 && missing == 0 { &(0..63).collect::<Vec<_>>()[..] } else { again };
            if again.is_empty() {
                // Nothing came behind it: it may be on its way, and only the probe asks.
                assert_eq!(psns(&said), [7], "{policy}: the probe");
                continue;
            }
            assert_eq!(psns(&said), again, "{policy} {packets} {missing} {come:?}");
            assert!(said.iter().all(|words| words.ends_with(" A")), "each repeat asks for an answer: {said:?}");
            assert_eq!(pair.counters(0).selective_repeats, again.len() as u64);
            assert_eq!(pair.counters(0).rewinds, 0);
        }
    }
}

#[test]
fn a_late_packet_is_not_sent_again() {
    let mut pair = sacked(RecoveryPolicy::SelectiveRepeat, 8, 3, [4, 5, 6, 7]);
    assert_eq!(pair.wait(0, 900), [""; 0]);
    let ack = pair.ack(1, ACK, 7);
    assert_eq!(pair.tell(0, &ack), [""; 0]);
    assert_eq!(pair.failures(0), [done(1)]);
    assert_eq!(pair.wait(0, 1_000_000_000), [""; 0], "no timer runs for what is answered");
    assert_eq!(pair.counters(0).retransmitted_packets, 0);
}

#[test]
fn a_hybrid_goes_back_when_more_than_its_holes_are_missing() {
    for (policy, rewinds) in [(RecoveryPolicy::SelectiveRepeat, 0), (RecoveryPolicy::Hybrid, 1)] {
        let mut pair = sacked(policy, 200, 0, [150]);
        let said = pair.wait(0, REORDER_NS);
        assert_eq!(pair.counters(0).rewinds, rewinds, "{policy}");
        assert_eq!(said.len(), if rewinds == 1 { 200 } else { 150 }, "{policy}");
    }
}

#[test]
fn a_lost_tail_is_probed_for_by_its_last_packet() {
    for policy in SELECTIVE {
        let mut pair = pair(policy);
        post(&mut pair, 1, WrOpcode::RdmaWrite, 3);
        pair.listen(0);
        assert_eq!(psns(&pair.wait(0, 100_000)), [2], "{policy}");
        assert_eq!((pair.counters(0).tail_probes, pair.counters(0).local_ack_timeout_err), (1, 0));
        // The answer says what is missing: it goes again at once after the reorder window.
        let sack = pair.sack(1, 0, [2]);
        let mut said = pair.tell(0, &sack);
        said.extend(pair.wait(0, REORDER_NS));
        assert_eq!(psns(&said), [0, 1], "{policy}");
    }
}

#[test]
fn a_selective_acknowledgement_says_nothing_of_what_was_not_sent() {
    let everything = |missing: u32| missing + 1..missing + 257;
    for policy in SELECTIVE {
        // What the peer claims lies behind what was sent: the rest of it counts.
        let mut pair = sacked(policy, 8, 2, everything(2));
        assert_eq!(psns(&pair.wait(0, REORDER_NS)), [2], "{policy}");
        let ack = pair.ack(1, ACK, 7);
        pair.tell(0, &ack);
        assert_eq!(pair.failures(0), [done(1)], "{policy}");
        // What goes out later is not taken for what was claimed of its PSN before.
        post(&mut pair, 2, WrOpcode::RdmaWrite, 8);
        assert_eq!(psns(&pair.listen(0)), (8..16).collect::<Vec<_>>());
        let ghosts = [16, 17, 500, 1 << 20].map(|missing| pair.sack(1, missing, everything(missing)));
        let old = [0, 3, 7].map(|missing| pair.sack(1, missing, everything(missing)));
        for packet in ghosts.iter().chain(&old) {
            assert_eq!(pair.tell(0, packet), [""; 0], "{policy}");
        }
        assert_eq!((pair.counters(0).ghost_ack, pair.counters(0).duplicate_ack), (4, 3), "{policy}");
        assert_eq!(pair.failures(0), [], "{policy}: nothing is acknowledged by it");
        let sack = pair.sack(1, 8, [15]);
        pair.tell(0, &sack);
        assert_eq!(psns(&pair.wait(0, REORDER_NS)), (8..15).collect::<Vec<_>>(), "{policy}");
    }
}

#[test]
fn one_that_goes_back_n_takes_it_for_one_nak_however_many_come() {
    let mut pair = sacked_gbn();
    assert_eq!(psns(&pair.listen(0)), [3, 4, 5, 6, 7]);
    let again = pair.sack(1, 3, [5, 6, 7]);
    for _ in 0..100 {
        assert_eq!(pair.tell(0, &again), [""; 0], "the gap is answered already");
    }
    assert_eq!(pair.counters(0).rewinds, 1);
    assert_eq!(pair.state(0), QpState::Rts);
}

fn sacked_gbn() -> Pair {
    let mut pair = pair(RecoveryPolicy::GoBackN);
    post(&mut pair, 1, WrOpcode::RdmaWrite, 8);
    assert_eq!(pair.listen(0).len(), 8);
    let sack = pair.sack(1, 3, [5, 7]).frame();
    pair.hosts[0].receive(pair.now, &sack);
    pair
}

#[test]
fn other_services_have_no_selective_acknowledgement() {
    for kind in [QpType::Uc, QpType::Ud] {
        let mut pair = Pair::new(Connect { kind, ..small() });
        let sack = pair.sack(1, 0, [1, 2]);
        assert_eq!(pair.tell(0, &sack), [""; 0], "{kind}");
        assert_eq!(pair.port_counters(0).rx_wrong_service, 1, "{kind}");
        assert_eq!(pair.counters(0).rx_sacks, 0, "{kind}");
    }
}

#[test]
fn a_nak_that_was_sent_before_the_repeat_came_is_stale() {
    for policy in RecoveryPolicy::ALL.iter().copied() {
        let mut pair = pair(policy);
        // A round trip takes 50 us.
        post(&mut pair, 1, WrOpcode::RdmaWrite, 1);
        pair.listen(0);
        pair.now = pair.now.add_ns(50_000);
        let ack = pair.ack(1, ACK, 0);
        pair.tell(0, &ack);
        post(&mut pair, 2, WrOpcode::RdmaWrite, 10);
        pair.listen(0);
        let nak = pair.ack(1, NAK_SEQUENCE, 3);
        assert_eq!(psns(&pair.tell(0, &nak)), (3..11).collect::<Vec<_>>(), "{policy}");
        for _ in 0..20 {
            assert_eq!(pair.tell(0, &nak), [""; 0], "{policy}");
        }
        assert_eq!((pair.counters(0).stale_naks, pair.counters(0).rewinds), (20, 1), "{policy}");
        // A round trip later it says something.
        pair.now = pair.now.add_ns(50_000);
        assert_eq!(psns(&pair.tell(0, &nak)), (3..11).collect::<Vec<_>>(), "{policy}");
    }
}

#[test]
fn a_responder_says_what_has_come_once_for_each_burst() {
    for policy in SELECTIVE {
        let mut pair = pair(policy);
        let burst = [2, 3, 5].map(|psn| write(&pair, psn, 0));
        assert_eq!(pair.tell_all(1, &burst), ["SELECTIVE_ACK +-1 names 3 msn 0"], "{policy}");
        let next = write(&pair, 0, 0);
        assert_eq!(pair.tell(1, &next), [""; 0], "{policy}: not asked for");
        let next = write(&pair, 4, 0);
        assert_eq!(pair.tell(1, &next), ["SELECTIVE_ACK +0 names 4 msn 1"], "{policy}");
        let missing = write(&pair, 1, 0).ack_req();
        assert_eq!(pair.tell(1, &missing), ["ACK +5 msn 6"], "{policy}: all of it is executed");
    }
}

#[test]
fn to_one_that_goes_back_n_goes_a_nak_and_what_came_is_used() {
    let mut pair = pair(RecoveryPolicy::GoBackN);
    let burst = [1, 2, 3].map(|psn| write(&pair, psn, 0));
    assert_eq!(pair.tell_all(1, &burst), ["NAK PSN sequence error +0 msn 0"]);
    let missing = write(&pair, 0, 0).ack_req();
    assert_eq!(pair.tell(1, &missing), ["ACK +3 msn 4"]);
    assert_eq!(pair.counters(1).kept_requests, 3);
}

#[test]
fn where_nothing_can_be_kept_a_nak_asks_for_all_of_it() {
    for policy in SELECTIVE {
        let mut pair = keeping(0, policy);
        let burst = [1, 2, 3].map(|psn| write(&pair, psn, 0));
        assert_eq!(pair.tell_all(1, &burst), ["NAK PSN sequence error +0 msn 0"], "{policy}");
        assert_eq!(pair.tell_all(1, &burst), [""; 0], "{policy}: once for a gap");
        // Both sides together make up for a loss without any timer.
        let mut pair = keeping(0, policy);
        post(&mut pair, 1, WrOpcode::RdmaWrite, 20);
        let mut n = 0;
        pair.exchange_with(|_, frame| {
            n += 1;
            if n == 5 { vec![] } else { vec![frame] }
        });
        assert_eq!(pair.failures(0), [done(1)], "{policy}");
    }
}

#[test]
fn far_ahead_is_not_kept() {
    for policy in SELECTIVE {
        let mut pair = pair(policy);
        for psn in [256, 257, 1000, 1 << 22] {
            let far = write(&pair, psn, 0);
            let _ = pair.tell(1, &far);
        }
        assert_eq!((pair.counters(1).kept_no_room, pair.counters(1).kept_requests), (4, 0), "{policy}");
        let last = write(&pair, 255, 0);
        assert_eq!(pair.tell(1, &last), ["SELECTIVE_ACK +-1 names 1 msn 0"], "{policy}");
    }
}

#[test]
fn of_two_packets_with_one_psn_the_first_counts() {
    let mut pair = pair(RecoveryPolicy::SelectiveRepeat);
    let first = write(&pair, 1, 0);
    let mut second = write(&pair, 1, 4096);
    second.payload.fill(0xee);
    pair.tell_all(1, &[first, second]);
    let missing = write(&pair, 0, 1024).ack_req();
    assert_eq!(pair.tell(1, &missing), ["ACK +1 msn 2"]);
    assert_eq!(pair.read(1, 0, 256), pattern(256));
    assert_eq!(pair.read(1, 4096, 256), [0; 256]);
}

#[test]
fn a_key_that_is_withdrawn_opens_nothing_to_what_was_kept() {
    for &policy in RecoveryPolicy::ALL {
        let mut pair = pair(policy);
        let early = write(&pair, 1, 0);
        pair.tell(1, &early);
        let lkey = pair.clients[1].key;
        assert_eq!(pair.ask(1, Request::DeregMr { lkey }), Reply::Done);
        let missing = pair.packet(0, Opcode::RC_WRITE_ONLY, 0).reth(BASE, 0, 0);
        assert_eq!(pair.tell(1, &missing), ["NAK remote access error +1 msn 1"], "{policy}");
        assert_eq!(pair.state(1), QpState::Err);
        assert_eq!(pair.read(1, 0, 256), [0; 256], "{policy}");
    }
}

#[test]
fn what_was_kept_goes_with_a_reset() {
    for &policy in RecoveryPolicy::ALL {
        let mut pair = pair(policy);
        let early = [1, 2, 3].map(|psn| write(&pair, psn, 0));
        pair.tell_all(1, &early);
        pair.go_to(1, QpState::Err);
        pair.go_to(1, QpState::Reset);
        // The same PSNs again.
        let (peer, qpn, c) = (pair.hosts[0].ip, pair.qps[0].qpn, pair.connect);
        let attr = attributes(peer, qpn, c, 1);
        for (state, mask) in STEPS {
            let attr = shm::attr::QpAttr { qp_state: state, ..attr };
            modify(&mut pair.hosts[1], pair.clients[1].session, pair.qps[1].qpn, attr, mask).unwrap();
        }
        let first = pair.packet(0, Opcode::RC_WRITE_ONLY, 0).reth(BASE, 0, 0).ack_req();
        assert_eq!(pair.tell(1, &first), ["ACK +0 msn 1"], "{policy}");
        assert_eq!(pair.read(1, 0, 256), [0; 256], "{policy}");
    }
}

#[test]
fn work_behind_a_request_that_fails_is_flushed() {
    let mut pair = pair(RecoveryPolicy::SelectiveRepeat);
    post(&mut pair, 1, WrOpcode::RdmaRead, 2);
    post(&mut pair, 2, WrOpcode::RdmaWrite, 1);
    pair.listen(0);
    // The peer has executed both, but what it answers to the READ is too short.
    let ack = pair.ack(1, ACK, 2);
    pair.tell(0, &ack);
    let short = response(&pair, 0, Opcode::RC_READ_RESP_FIRST).bytes(100);
    pair.tell(0, &short);
    pair.listen(0);
    let length = failed(1, WcStatus::LocLenErr, ErrorCause::ResponseLength);
    assert_eq!(pair.failures(0), [length, flushed(2)]);
}

#[test]
fn a_peer_that_falls_silent_is_not_flooded() {
    for (policy, most) in [(RecoveryPolicy::SelectiveRepeat, 2), (RecoveryPolicy::Hybrid, 16)] {
        // Every other packet is missing, is sent again, and then nothing comes any more.
        let mut pair = sacked(policy, 200, 0, (1..200).step_by(2));
        let mut sent = pair.wait(0, REORDER_NS).len();
        assert_eq!(sent, 100);
        let mut failures = Vec::new();
        for _ in 0..50_000 {
            sent += pair.wait(0, 20_000).len();
            failures.extend(pair.failures(0));
            if !failures.is_empty() {
                break;
            }
        }
        assert_eq!(failures, [failed(1, WcStatus::RetryExcErr, ErrorCause::RetryExceeded)], "{policy}");
        assert!(sent < most * 200, "{policy}: {sent} packets to a peer that is gone");
    }
}

#[test]
fn a_packet_that_stays_missing_breaks_the_qp_whatever_else_comes() {
    for &policy in RecoveryPolicy::ALL {
        let mut pair = pair(policy);
        post(&mut pair, 1, WrOpcode::RdmaWrite, 8);
        pair.listen(0);
        let mut failures = Vec::new();
        // The peer goes on saying that it has all but the first.
        for _ in 0..100_000 {
            let sack = pair.sack(1, 0, 1..8);
            pair.tell(0, &sack);
            pair.wait(0, 20_000);
            failures.extend(pair.failures(0));
            if !failures.is_empty() {
                break;
            }
        }
        assert_eq!(failures, [failed(1, WcStatus::RetryExcErr, ErrorCause::RetryExceeded)], "{policy}");
    }
}

#[test]
fn what_the_peer_has_dropped_after_all_is_sent_again() {
    for policy in SELECTIVE {
        let mut pair = pair(policy);
        pair.receive(50, 256);
        for wr_id in 0..40 {
            post(&mut pair, wr_id, WrOpcode::Send, 1);
        }
        // The first is lost; when it comes, the second finds no receive, the rest is dropped, and nobody hears of it.
        let mut n = 0;
        pair.exchange_with(|_, frame| {
            n += 1;
            if n == 1 { vec![] } else { vec![frame] }
        });
        pair.now = pair.now.add_ns(REORDER_NS);
        pair.exchange_with(|from, frame| if from == 1 { vec![] } else { vec![frame] });
        assert_eq!(pair.counters(1).send_rnr_err, 1, "{policy}");
        (51..90).for_each(|wr_id| pair.receive(wr_id, 256));
        let mut steps = 0;
        let mut completions = Vec::new();
        while completions.len() < 40 {
            pair.advance(25_000);
            completions.extend(pair.completions(0));
            steps += 1;
            assert!(steps < 60, "{policy}: {} after 1.5 ms, a packet a timer", completions.len());
        }
        assert!(completions.iter().all(|c| c.1 == WcStatus::Success), "{policy}");
    }
}

#[test]
fn a_response_and_a_request_behind_it_are_missed_at_the_same_time() {
    for policy in SELECTIVE {
        let mut pair = pair(policy);
        post(&mut pair, 1, WrOpcode::RdmaRead, 3);
        post(&mut pair, 2, WrOpcode::RdmaWrite, 6);
        pair.listen(0);
        let (first, last) = (Opcode::RC_READ_RESP_FIRST, Opcode::RC_READ_RESP_LAST);
        let heard = [response(&pair, 0, first), response(&pair, 2, last), pair.sack(1, 5, [6, 7, 8])];
        let mut said = pair.tell_all(0, &heard);
        said.extend(pair.wait(0, REORDER_NS));
        assert_eq!(psns(&said), [1, 5], "{policy}: {said:?}");
        assert!(said[0].starts_with("READ_REQUEST +1 va +4352 of 256"), "{policy}: {said:?}");
    }
}

#[test]
fn an_acknowledgement_that_is_late_hides_no_lost_response() {
    for policy in SELECTIVE {
        let mut pair = pair(policy);
        post(&mut pair, 1, WrOpcode::RdmaRead, 2);
        post(&mut pair, 2, WrOpcode::RdmaWrite, 1);
        post(&mut pair, 3, WrOpcode::RdmaRead, 3);
        pair.listen(0);
        // When it was sent, the second READ was kept and the WRITE missing; now the READ is answered, but for its first packet.
        let late = pair.sack(1, 2, [3]);
        let (middle, last) = (Opcode::RC_READ_RESP_MIDDLE, Opcode::RC_READ_RESP_LAST);
        let heard = [response(&pair, 4, middle), response(&pair, 5, last), late];
        let mut said = pair.tell_all(0, &heard);
        said.extend(pair.wait(0, REORDER_NS));
        assert_eq!(psns(&said), [0, 3], "{policy}: {said:?}");
    }
}

#[test]
fn one_that_begins_to_repeat_selectively_makes_up_for_what_is_lost_already() {
    let mut pair = Pair::new(Connect { timeout: 0, ..small() });
    post(&mut pair, 1, WrOpcode::RdmaWrite, 3);
    assert_eq!(pair.listen(0).len(), 3);
    pair.set_recovery(RecoveryPolicy::SelectiveRepeat);
    pair.advance(100_000);
    pair.advance(100_000);
    pair.advance(300_000);
    assert_eq!(pair.failures(0), [done(1)]);
}

#[test]
fn one_that_begins_to_go_back_n_without_a_timeout_waits_for_ever() {
    let mut pair = Pair::new(Connect { timeout: 0, retry_cnt: 0, ..small() });
    pair.set_recovery(RecoveryPolicy::SelectiveRepeat);
    post(&mut pair, 1, WrOpcode::RdmaWrite, 3);
    assert_eq!(pair.listen(0).len(), 3);
    pair.set_recovery(RecoveryPolicy::GoBackN);
    assert_eq!(psns(&pair.listen(0)), [0, 1, 2]);
    assert_eq!(pair.wait(0, 10_000_000_000), [""; 0]);
    assert_eq!((pair.failures(0), pair.state(0)), (vec![], QpState::Rts));
}

#[test]
fn only_its_user_and_root_set_it_and_only_of_rc() {
    let mut pair = pair(RecoveryPolicy::GoBackN);
    let policy = RecoveryPolicy::SelectiveRepeat;
    let refusal = |reply: Reply| match reply {
        Reply::Refused { message, .. } => message,
        other => panic!("{other:?}"),
    };
    let qpn = pair.qps[0].qpn;
    let stranger = Client::of_user(&mut pair.hosts[0], 7, 1 << 16).session;
    let root = Client::of_user(&mut pair.hosts[0], 0, 1 << 16).session;
    let ask =
        |pair: &mut Pair, session, qpn| pair.hosts[0].request(session, Request::SetRecovery { qpn, policy }, vec![]).0;
    assert_eq!(
        refusal(ask(&mut pair, stranger, qpn)),
        format!("QP {qpn:#08x} is another user's: its user and root may change it")
    );
    assert_eq!(pair.detail(0).recovery, RecoveryPolicy::GoBackN);
    assert_eq!(ask(&mut pair, root, qpn), Reply::Done);
    assert_eq!(pair.detail(0).recovery, policy);
    assert_eq!(refusal(ask(&mut pair, root, 0x00ff_0001)), "QP 0xff0001 does not exist");
    for kind in [QpType::Uc, QpType::Ud] {
        let other = pair.clients[0].qp_of(&mut pair.hosts[0], kind, crate::support::CAP).qpn;
        let session = pair.clients[0].session;
        let message = refusal(ask(&mut pair, session, other));
        assert_eq!(
            message,
            format!("QP {other:#08x} is of {kind}: recovery `sr` is for RC and XRC, others lose what is lost")
        );
    }
}

#[test]
fn psns_wrap_within_a_selective_acknowledgement() {
    for start in [Psn::MASK - 3, Psn::MASK - 250] {
        let mut pair = Pair::new(Connect { psn: [start, start], ..small() });
        pair.set_recovery(RecoveryPolicy::SelectiveRepeat);
        post(&mut pair, 1, WrOpcode::RdmaWrite, 250);
        let frames = pair.listen(0);
        assert_eq!(frames.len(), 250);
        let sack = pair.sack(1, 2, (3..250).filter(|psn| psn % 10 != 0));
        pair.tell(0, &sack);
        let again: Vec<i32> = std::iter::once(2).chain((10..250).step_by(10)).collect();
        assert_eq!(psns(&pair.wait(0, REORDER_NS)), again);
    }
}

/// Draws below a bound, from a seed.
fn drawing(seed: u64) -> impl FnMut(u32) -> u32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |bound| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as u32 % bound
    }
}

/// Something that a peer may say, whether it makes sense or not.
fn anything(pair: &Pair, draw: &mut impl FnMut(u32) -> u32) -> Packet {
    let psn = draw(24);
    match draw(6) {
        0 | 1 => pair.sack(1, psn, (psn + 1..psn + 257).filter(|_| draw(2) == 0)),
        2 => pair.ack(1, [ACK, NAK_SEQUENCE, 0x21][draw(3) as usize], psn),
        3 => response(pair, psn, Opcode::RC_READ_RESP_MIDDLE),
        4 => response(pair, psn, Opcode::RC_READ_RESP_ONLY),
        _ => pair.packet(1, Opcode::RC_ATOMIC_ACK, psn).aeth(ACK, 0).original(7),
    }
}

#[test]
fn whatever_a_peer_says_all_work_ends_and_no_timer_runs_for_ever() {
    for (&policy, seed) in RecoveryPolicy::ALL.iter().flat_map(|policy| (0..40).map(move |seed| (policy, seed))) {
        let mut pair = pair(policy);
        let mut draw = drawing(seed);
        for (wr_id, opcode, packets) in [
            (0, WrOpcode::RdmaWrite, 4),
            (1, WrOpcode::RdmaRead, 5),
            (2, WrOpcode::Send, 3),
            (3, WrOpcode::RdmaRead, 6),
        ] {
            post(&mut pair, wr_id, opcode, packets);
        }
        let wqe = pair.wqe(4, WrOpcode::AtomicFetchAndAdd);
        pair.post(wqe, 8);
        let (mut sent, mut ended) = (0, Vec::new());
        for _ in 0..200 {
            let packet = anything(&pair, &mut draw);
            sent += pair.tell(0, &packet).len();
            sent += pair.wait(0, u64::from(draw(60_000))).len();
            ended.extend(pair.failures(0));
        }
        // Now it says nothing any more: what is not done yet is given up.
        for _ in 0..1_500 {
            sent += pair.wait(0, 1_000_000).len();
            ended.extend(pair.failures(0));
        }
        let wr_ids: Vec<u64> = ended.iter().map(|end| end.0).collect();
        assert_eq!(wr_ids, [0, 1, 2, 3, 4], "{policy} {seed}: each once, in order: {ended:?}");
        let first_bad = ended.iter().position(|end| end.1 != WcStatus::Success).unwrap_or(ended.len());
        let is_flushed = |end: &(u64, WcStatus, u32)| end.1 == WcStatus::WrFlushErr;
        assert!(ended.iter().skip(first_bad + 1).all(is_flushed), "{policy} {seed}: {ended:?}");
        assert!(sent < 20_000, "{policy} {seed}: {sent} packets");
        assert_eq!(pair.wait(0, 60_000_000_000), [""; 0], "{policy} {seed}");
    }
}
