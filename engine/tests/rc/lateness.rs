//! Packets that are late and not lost, where both sides go back N: who has asked for one in vain waits before it asks again, and what
//! came early is used.

use shm::attr::WrOpcode;
use wire::Opcode;

use crate::peer::{Packet, done, pattern};
use crate::support::{BASE, Connect, Pair};

const ACK: u8 = 0x1f;
/// The limit of patience.
const LONGEST_NS: u64 = 100_000;

fn pair() -> Pair {
    Pair::new(Connect { path_mtu: 1, ..Connect::default() })
}

/// A WRITE of one packet to the start of side 1's memory.
fn write(pair: &Pair, psn: u32) -> Packet {
    pair.packet(0, Opcode::RC_WRITE_ONLY, psn).reth(BASE, pair.clients[1].key, 256).bytes(256).ack_req()
}

fn tell_writes(pair: &mut Pair, psns: &[u32]) -> Vec<String> {
    let packets: Vec<_> = psns.iter().map(|&psn| write(pair, psn)).collect();
    pair.tell_all(1, &packets)
}

/// A responder that was told that 0 was late by 4 us: it waits for 5 us now, and expects 2.
fn patient_responder() -> Pair {
    let mut pair = pair();
    assert_eq!(tell_writes(&mut pair, &[1]), ["NAK PSN sequence error +0 msn 0"], "at first it does not wait");
    assert_eq!(pair.wait(1, 4_000), [""; 0]);
    assert_eq!(tell_writes(&mut pair, &[0]), ["ACK +1 msn 2"]);
    assert_eq!(tell_writes(&mut pair, &[0, 1]), ["ACK +1 msn 2"], "going back was in vain");
    pair
}

#[test]
fn a_responder_that_asked_in_vain_waits_as_long_as_that_was_late() {
    let mut pair = patient_responder();
    assert_eq!(tell_writes(&mut pair, &[3, 4]), [""; 0]);
    assert_eq!(pair.wait(1, 4_999), [""; 0]);
    assert_eq!(tell_writes(&mut pair, &[2]), ["ACK +4 msn 5"]);
    assert_eq!(pair.wait(1, 1_000_000), [""; 0], "nothing is left to ask for");
    assert_eq!(pair.counters(1).out_of_sequence, 1);
}

#[test]
fn what_is_lost_is_asked_for_when_the_wait_is_over() {
    let mut pair = patient_responder();
    assert_eq!(tell_writes(&mut pair, &[3, 4]), [""; 0]);
    assert_eq!(pair.wait(1, 5_000), ["NAK PSN sequence error +2 msn 2"]);
    assert_eq!(pair.wait(1, 1_000_000), [""; 0], "once");
    assert_eq!(tell_writes(&mut pair, &[2, 3, 4]), ["ACK +4 msn 5"]);
}

#[test]
fn behind_a_late_packet_another_may_be_lost() {
    let mut pair = patient_responder();
    assert_eq!(tell_writes(&mut pair, &[3, 5]), [""; 0]);
    pair.wait(1, 2_000);
    assert_eq!(tell_writes(&mut pair, &[2]), ["ACK +3 msn 4"]);
    // Nobody sends anything any more that would show the second gap.
    assert_eq!(pair.wait(1, 4_999), [""; 0]);
    assert_eq!(pair.wait(1, 1), ["NAK PSN sequence error +4 msn 4"]);
}

#[test]
fn being_right_makes_it_impatient_again() {
    let mut pair = patient_responder();
    let asks_at_once = (2..200).step_by(2).find(|&psn| {
        let said = tell_writes(&mut pair, &[psn + 1]);
        if said.is_empty() {
            assert_eq!(pair.wait(1, 5_000), [format!("NAK PSN sequence error +{psn} msn {psn}")]);
        }
        // It was lost: it comes once.
        tell_writes(&mut pair, &[psn, psn + 1]);
        !said.is_empty()
    });
    assert!(asks_at_once.is_some_and(|psn| psn > 40), "not after one loss: {asks_at_once:?}");
}

#[test]
fn no_peer_makes_it_wait_for_longer_than_the_limit() {
    let mut pair = pair();
    tell_writes(&mut pair, &[1]);
    pair.wait(1, 1_000_000_000);
    tell_writes(&mut pair, &[0, 0, 1]);
    assert_eq!(tell_writes(&mut pair, &[3]), [""; 0]);
    assert_eq!(pair.wait(1, LONGEST_NS - 1), [""; 0]);
    assert_eq!(pair.wait(1, 1), ["NAK PSN sequence error +2 msn 2"]);
}

#[test]
fn a_packet_that_cannot_be_kept_is_asked_for_at_once() {
    let mut pair = patient_responder();
    assert_eq!(tell_writes(&mut pair, &[2 + 256]), ["NAK PSN sequence error +2 msn 2"]);
}

fn post_read(pair: &mut Pair, wr_id: u64, packets: u32) {
    let wqe = pair.wqe(wr_id, WrOpcode::RdmaRead);
    pair.post(wqe, packets * 256);
}

fn tell_responses(pair: &mut Pair, psns: &[u32]) -> Vec<String> {
    let packets: Vec<_> = psns.iter().map(|&psn| pair.packet(1, Opcode::RC_READ_RESP_MIDDLE, psn).bytes(256)).collect();
    pair.tell_all(0, &packets)
}

/// A requester whose READ of four packets is done, and the first response was late by 4 us.
fn patient_requester() -> Pair {
    let mut pair = pair();
    post_read(&mut pair, 1, 4);
    pair.listen(0);
    assert_eq!(tell_responses(&mut pair, &[1, 2]), ["READ_REQUEST +0 va +4096 of 1024 A"], "at first it does not wait");
    pair.wait(0, 4_000);
    assert_eq!(tell_responses(&mut pair, &[0, 3]), [""; 0]);
    assert_eq!(pair.failures(0), [done(1)], "what came early was kept");
    assert_eq!(pair.read(0, 256, 256), pattern(256));
    assert_eq!(tell_responses(&mut pair, &[0, 1, 2, 3]), [""; 0], "asking was in vain");
    pair
}

#[test]
fn a_requester_that_asked_in_vain_waits_as_long_as_that_was_late() {
    let mut pair = patient_requester();
    post_read(&mut pair, 2, 4);
    pair.listen(0);
    assert_eq!(tell_responses(&mut pair, &[5, 6, 7]), [""; 0]);
    assert_eq!(pair.wait(0, 4_999), [""; 0]);
    assert_eq!(tell_responses(&mut pair, &[4]), [""; 0]);
    assert_eq!(pair.failures(0), [done(2)]);
    assert_eq!(pair.wait(0, 1_000_000), [""; 0]);
    assert_eq!((pair.counters(0).rewinds, pair.counters(0).kept_responses), (1, 5));
}

#[test]
fn lost_responses_are_asked_for_when_the_wait_is_over() {
    let mut pair = patient_requester();
    post_read(&mut pair, 2, 4);
    pair.listen(0);
    assert_eq!(tell_responses(&mut pair, &[5, 7]), [""; 0]);
    pair.wait(0, 2_000);
    // The first is late, the third is lost.
    assert_eq!(tell_responses(&mut pair, &[4]), [""; 0]);
    assert_eq!(pair.wait(0, 4_999), [""; 0]);
    assert_eq!(pair.wait(0, 1), ["READ_REQUEST +6 va +4608 of 512 A"]);
    assert_eq!(tell_responses(&mut pair, &[6]), [""; 0]);
    assert_eq!(pair.failures(0), [done(2)], "the last one was kept");
}

#[test]
fn work_of_every_kind_behind_a_late_response_completes_in_order() {
    let mut pair = patient_requester();
    post_read(&mut pair, 2, 2);
    let wqe = pair.wqe(3, WrOpcode::RdmaWrite);
    pair.post(wqe, 256);
    let wqe = pair.wqe(4, WrOpcode::AtomicFetchAndAdd);
    pair.post(wqe, 8);
    pair.listen(0);
    let atomic = pair.packet(1, Opcode::RC_ATOMIC_ACK, 7).aeth(ACK, 0).original(7);
    assert_eq!(pair.tell(0, &atomic), [""; 0]);
    assert_eq!(tell_responses(&mut pair, &[5]), [""; 0]);
    assert_eq!(pair.failures(0), []);
    assert_eq!(tell_responses(&mut pair, &[4]), [""; 0]);
    assert_eq!(pair.failures(0), [done(2), done(3), done(4)]);
    assert_eq!(pair.word(0, 0), 7);
    assert_eq!(pair.wait(0, 1_000_000_000), [""; 0], "no timer is left");
}

#[test]
fn what_no_request_asks_for_is_not_kept() {
    let mut pair = pair();
    post_read(&mut pair, 1, 2);
    let wqe = pair.wqe(2, WrOpcode::RdmaWrite);
    pair.post(wqe, 256);
    pair.listen(0);
    // A response to a WRITE, while a READ before it is not answered.
    tell_responses(&mut pair, &[2]);
    assert_eq!(pair.counters(0).kept_responses, 0);
    tell_responses(&mut pair, &[0, 1]);
    let ack = pair.ack(1, ACK, 2);
    pair.tell(0, &ack);
    assert_eq!(pair.failures(0), [done(1), done(2)]);
}
