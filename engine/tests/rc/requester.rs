//! The requester with a hand-played responder: every answer that may come, and none. IBTA 9.7.5.

use engine::ErrorCause;
use shm::attr::{QpCap, QpState, SendFlags, WcStatus, WrOpcode};
use shm::layout::SendWqe;
use wire::Opcode;

use crate::peer::{done, failed, flushed, pattern};
use crate::support::{BASE, CAP, Client, Connect, HostOptions, Pair};

/// ACK without credits.
const ACK: u8 = 0x1f;
const SEQUENCE_NAK: u8 = 0x60;
/// RNR NAK with code 14: 1.28 ms.
const RNR: u8 = 0x20 | 14;
const RNR_NS: u64 = 1_280_000;
/// Timeout code 14.
const TIMEOUT_NS: u64 = 4096 << 14;

/// A path MTU of 256 keeps the packets short.
fn pair() -> Pair {
    Pair::new(Connect { path_mtu: 1, ..Connect::default() })
}

impl Pair {
    /// Posts a WRITE and listens.
    fn start_write(&mut self, wr_id: u64, length: u32) -> Vec<String> {
        let wqe = self.wqe(wr_id, WrOpcode::RdmaWrite);
        self.post(wqe, length);
        self.listen(0)
    }

    fn start_read(&mut self, wr_id: u64, length: u32) -> Vec<String> {
        let wqe = self.wqe(wr_id, WrOpcode::RdmaRead);
        self.post(wqe, length);
        self.listen(0)
    }

    fn start_add(&mut self, wr_id: u64) -> Vec<String> {
        let wqe = SendWqe { compare_add: 1, ..self.wqe(wr_id, WrOpcode::AtomicFetchAndAdd) };
        self.post(wqe, 8);
        self.listen(0)
    }

    /// The hand-played responder acknowledges.
    fn acknowledge(&mut self, psn: u32) -> Vec<String> {
        let ack = self.ack(1, ACK, psn);
        self.tell(0, &ack)
    }

    fn read_response(&mut self, opcode: Opcode, psn: u32, data: &[u8]) -> Vec<String> {
        let mut packet = self.packet(1, opcode, psn);
        if opcode != Opcode::RC_READ_RESP_MIDDLE {
            packet = packet.aeth(ACK, 0);
        }
        packet.payload = data.to_vec();
        self.tell(0, &packet)
    }

    fn nothing_outstanding(&mut self) {
        let before = self.counters(0).local_ack_timeout_err;
        assert_eq!(self.wait(0, 20 * TIMEOUT_NS), [""; 0]);
        assert_eq!(self.counters(0).local_ack_timeout_err, before, "no timer without work");
    }
}

const SAID_600: [&str; 3] =
    ["WRITE_FIRST +0 va +4096 of 600 len 256", "WRITE_MIDDLE +1 len 256", "WRITE_LAST +2 len 88 A"];

#[test]
fn an_acknowledgement_completes_everything_before_it() {
    let mut pair = pair();
    assert_eq!(pair.start_write(1, 600), SAID_600);
    assert_eq!(pair.start_write(2, 8), ["WRITE_ONLY +3 va +4096 of 8 len 8 A"]);
    assert_eq!(pair.start_write(3, 8), ["WRITE_ONLY +4 va +4096 of 8 len 8 A"]);
    assert_eq!(pair.acknowledge(1), [""; 0]);
    assert_eq!(pair.failures(0), [], "a message is done when its last packet is");
    assert_eq!(pair.figure(0, "una_psn"), u64::from(pair.connect.psn[0]) + 2);
    assert_eq!(pair.acknowledge(3), [""; 0]);
    assert_eq!(pair.failures(0), [done(1), done(2)]);
    assert_eq!(pair.acknowledge(3), [""; 0]);
    assert_eq!(pair.acknowledge(1), [""; 0]);
    assert_eq!(pair.counters(0).duplicate_ack, 2);
    assert_eq!(pair.acknowledge(4), [""; 0]);
    assert_eq!(pair.failures(0), [done(3)]);
    pair.nothing_outstanding();
}

#[test]
fn credits_and_msn_of_an_acknowledgement_are_not_looked_at() {
    for credits in 0..32 {
        let mut pair = pair();
        let _ = pair.start_write(1, 8);
        let ack = pair.packet(1, Opcode::RC_ACK, 0).aeth(credits, 99);
        assert_eq!(pair.tell(0, &ack), [""; 0]);
        assert_eq!(pair.failures(0), [done(1)]);
        assert_eq!(pair.start_write(2, 8).len(), 1, "credits 0 hold nothing back");
    }
}

#[test]
fn an_acknowledgement_for_what_was_never_sent_is_a_ghost() {
    let mut pair = pair();
    assert_eq!(pair.acknowledge(0), [""; 0]);
    let _ = pair.start_write(1, 600);
    for psn in [3, 4, 1000, 0x7f_ffff] {
        for syndrome in [ACK, RNR, SEQUENCE_NAK, 0x61, 0x5f] {
            let ack = pair.ack(1, syndrome, psn);
            assert_eq!(pair.tell(0, &ack), [""; 0]);
        }
    }
    assert_eq!(pair.counters(0).ghost_ack, 21);
    assert_eq!((pair.failures(0), pair.state(0)), (vec![], QpState::Rts));
}

#[test]
fn fatal_answers_complete_the_request_that_they_name() {
    let table = [
        (0x61, WcStatus::RemInvReqErr, ErrorCause::NakInvalidRequest),
        (0x62, WcStatus::RemAccessErr, ErrorCause::NakRemoteAccess),
        (0x63, WcStatus::RemOpErr, ErrorCause::NakRemoteOperation),
        (0x64, WcStatus::RemInvReqErr, ErrorCause::NakInvalidRequest),
        (0x65, WcStatus::BadRespErr, ErrorCause::ReservedSyndrome),
        (0x7f, WcStatus::BadRespErr, ErrorCause::ReservedSyndrome),
        (0x40, WcStatus::BadRespErr, ErrorCause::ReservedSyndrome),
        (0x5f, WcStatus::BadRespErr, ErrorCause::ReservedSyndrome),
        (0x80, WcStatus::BadRespErr, ErrorCause::ReservedSyndrome),
        (0xff, WcStatus::BadRespErr, ErrorCause::ReservedSyndrome),
    ];
    for (syndrome, status, cause) in table {
        let mut pair = pair();
        let _ = pair.start_write(1, 8);
        // Unsignalled: its failure is reported all the same.
        let quiet = SendWqe { flags: 0, ..pair.wqe(2, WrOpcode::RdmaWrite) };
        pair.post(quiet, 600);
        let _ = pair.listen(0);
        let _ = pair.start_write(3, 8);
        // A reserved syndrome says nothing of what it acknowledges.
        let is_nak = cause != ErrorCause::ReservedSyndrome;
        if !is_nak {
            let _ = pair.acknowledge(0);
        }
        let nak = pair.ack(1, syndrome, 2);
        assert_eq!(pair.tell(0, &nak), [""; 0]);
        let expected = [done(1), failed(2, status, cause), flushed(3)];
        assert_eq!(pair.failures(0), expected, "syndrome {syndrome:#x}");
        assert_eq!(pair.state(0), QpState::Err);
        assert_eq!(pair.detail(0).error.as_deref(), Some(cause.sentence()));
        assert_eq!(pair.figure(0, "last_nak_syndrome"), u64::from(syndrome));
        assert_eq!(pair.events(0), [], "the completion says it");
        assert_eq!(pair.counters(0).req_remote_errors, 1);
        pair.nothing_outstanding();
    }
}

#[test]
fn a_sequence_nak_rewinds_to_its_psn() {
    let mut pair = pair();
    let _ = pair.start_write(1, 600);
    let _ = pair.start_write(2, 8);
    let nak = pair.ack(1, SEQUENCE_NAK, 1);
    let again = ["WRITE_MIDDLE +1 len 256", "WRITE_LAST +2 len 88 A", "WRITE_ONLY +3 va +4096 of 8 len 8 A"];
    assert_eq!(pair.tell(0, &nak), again);
    let nak = pair.ack(1, SEQUENCE_NAK, 3);
    assert_eq!(pair.tell(0, &nak), again[2..]);
    assert_eq!(pair.failures(0), [done(1)], "a NAK acknowledges what is before it");
    assert_eq!(pair.acknowledge(3), [""; 0]);
    assert_eq!(pair.failures(0), [done(2)]);
    let counters = pair.counters(0);
    assert_eq!((counters.rcvd_seq_err, counters.retransmitted_packets), (2, 4));
}

#[test]
fn sequence_naks_use_retry_cnt_up_unless_there_is_progress() {
    for retry_cnt in [0, 1, 3, 7] {
        let mut pair = Pair::new(Connect { path_mtu: 1, retry_cnt, ..Connect::default() });
        let _ = pair.start_write(1, 600);
        let nak = pair.ack(1, SEQUENCE_NAK, 0);
        for _ in 0..retry_cnt {
            assert_eq!(pair.tell(0, &nak), SAID_600);
        }
        if retry_cnt > 0 {
            // Progress of one packet: all retries are back.
            let progress = pair.ack(1, SEQUENCE_NAK, 1);
            for _ in 0..retry_cnt {
                assert_eq!(pair.tell(0, &progress), SAID_600[1..]);
            }
            assert_eq!(pair.failures(0), []);
            assert_eq!(pair.tell(0, &progress), [""; 0]);
        } else {
            assert_eq!(pair.tell(0, &nak), [""; 0]);
        }
        assert_eq!(pair.failures(0), [failed(1, WcStatus::RetryExcErr, ErrorCause::RetryExceeded)]);
        assert_eq!((pair.state(0), pair.counters(0).retry_exceeded_err), (QpState::Err, 1));
    }
}

#[test]
fn timeouts_use_retry_cnt_up_exactly() {
    for retry_cnt in [0, 1, 7] {
        let mut pair = Pair::new(Connect { path_mtu: 1, retry_cnt, ..Connect::default() });
        assert_eq!(pair.start_write(1, 600), SAID_600);
        let _ = pair.start_write(2, 8);
        for _ in 0..retry_cnt {
            assert_eq!(pair.wait(0, TIMEOUT_NS - 1), [""; 0], "not before 4.096 us * 2^14");
            assert_eq!(pair.wait(0, 1)[..3], SAID_600);
        }
        assert_eq!(pair.wait(0, TIMEOUT_NS - 1), [""; 0]);
        assert_eq!((pair.failures(0), pair.state(0)), (vec![], QpState::Rts));
        assert_eq!(pair.wait(0, 1), [""; 0]);
        let error = failed(1, WcStatus::RetryExcErr, ErrorCause::RetryExceeded);
        assert_eq!(pair.failures(0), [error, flushed(2)]);
        assert_eq!(pair.counters(0).local_ack_timeout_err, u64::from(retry_cnt) + 1);
        assert_eq!(pair.figure(0, "timeouts"), u64::from(retry_cnt) + 1);
    }
}

#[test]
fn an_answer_in_the_last_moment_saves_the_qp() {
    let mut pair = Pair::new(Connect { path_mtu: 1, retry_cnt: 2, ..Connect::default() });
    let _ = pair.start_write(1, 600);
    for _ in 0..2 {
        assert_eq!(pair.wait(0, TIMEOUT_NS).len(), 3);
    }
    assert_eq!(pair.wait(0, TIMEOUT_NS - 1), [""; 0]);
    assert_eq!(pair.acknowledge(0), [""; 0]);
    // The timer runs anew for the rest, and so do the retries.
    for _ in 0..2 {
        assert_eq!(pair.wait(0, TIMEOUT_NS - 1), [""; 0]);
        assert_eq!(pair.wait(0, 1), SAID_600[1..]);
    }
    assert_eq!(pair.acknowledge(2), [""; 0]);
    assert_eq!(pair.failures(0), [done(1)]);
    assert_eq!(pair.wait(0, 20 * TIMEOUT_NS), [""; 0], "no timer without work");
    assert_eq!(pair.counters(0).local_ack_timeout_err, 4);
}

#[test]
fn timeout_0_waits_for_ever() {
    let mut pair = Pair::new(Connect { path_mtu: 1, timeout: 0, ..Connect::default() });
    let _ = pair.start_write(1, 8);
    assert_eq!(pair.wait(0, 1 << 34), [""; 0]);
    assert_eq!(pair.acknowledge(0), [""; 0]);
    assert_eq!(pair.failures(0), [done(1)]);
}

#[test]
fn each_timeout_code_is_its_own_time() {
    for code in [1, 5, 12, 18] {
        let mut pair = Pair::new(Connect { timeout: code, ..Connect::default() });
        let _ = pair.start_write(1, 8);
        assert_eq!(pair.wait(0, (4096 << code) - 1), [""; 0]);
        assert_eq!(pair.wait(0, 1).len(), 1, "code {code}");
    }
}

#[test]
fn an_rnr_nak_is_waited_out() {
    let mut pair = pair();
    let _ = pair.start_write(1, 8);
    let send = pair.wqe(2, WrOpcode::Send);
    pair.post(send, 300);
    assert_eq!(pair.listen(0), ["SEND_FIRST +1 len 256", "SEND_LAST +2 len 44 A"]);
    let rnr = pair.ack(1, RNR, 1);
    assert_eq!(pair.tell(0, &rnr), [""; 0]);
    assert_eq!(pair.failures(0), [done(1)], "what is before it is acknowledged");
    assert_eq!(pair.start_write(3, 8), [""; 0], "nothing new goes out meanwhile");
    // A repeat of the NAK, or a sequence NAK for what followed, changes nothing.
    for syndrome in [RNR, SEQUENCE_NAK] {
        let nak = pair.ack(1, syndrome, 1);
        assert_eq!(pair.tell(0, &nak), [""; 0]);
    }
    assert_eq!(pair.wait(0, RNR_NS - 1), [""; 0]);
    assert_eq!(
        pair.wait(0, 1),
        ["SEND_FIRST +1 len 256", "SEND_LAST +2 len 44 A", "WRITE_ONLY +3 va +4096 of 8 len 8 A"]
    );
    assert_eq!(pair.acknowledge(3), [""; 0]);
    assert_eq!(pair.failures(0), [done(2), done(3)]);
    assert_eq!(pair.counters(0).rcvd_rnr_err, 2);
}

#[test]
fn the_acknowledgement_timer_stands_still_after_an_rnr_nak() {
    // 1 ms, and no retry to spare; the NAK says 10.24 ms.
    let mut pair = Pair::new(Connect { path_mtu: 1, timeout: 8, retry_cnt: 0, ..Connect::default() });
    let _ = pair.start_write(1, 600);
    let rnr = pair.ack(1, 0x20 | 20, 1);
    assert_eq!(pair.tell(0, &rnr), [""; 0]);
    assert_eq!(pair.wait(0, 10_239_999), [""; 0]);
    assert_eq!(pair.wait(0, 1), SAID_600[1..]);
    assert_eq!((pair.state(0), pair.counters(0).local_ack_timeout_err), (QpState::Rts, 0));
}

#[test]
fn every_rnr_timer_code_is_waited_for() {
    for code in 0..32u8 {
        let mut pair = pair();
        let _ = pair.start_write(1, 8);
        let rnr = pair.ack(1, 0x20 | code, 0);
        assert_eq!(pair.tell(0, &rnr), [""; 0]);
        let ns = wire::RnrTimer::new(code).unwrap().duration_ns();
        assert_eq!(pair.wait(0, ns - 1), [""; 0], "code {code}");
        assert_eq!(pair.wait(0, 1).len(), 1, "code {code}");
    }
}

#[test]
fn rnr_naks_use_rnr_retry_up_exactly() {
    for rnr_retry in [0, 1, 6] {
        let mut pair = Pair::new(Connect { rnr_retry, ..Connect::default() });
        let send = pair.wqe(1, WrOpcode::Send);
        pair.post(send, 8);
        assert_eq!(pair.listen(0).len(), 1);
        let rnr = pair.ack(1, RNR, 0);
        for _ in 0..rnr_retry {
            assert_eq!(pair.tell(0, &rnr), [""; 0]);
            assert_eq!(pair.wait(0, RNR_NS).len(), 1);
        }
        assert_eq!((pair.failures(0), pair.state(0)), (vec![], QpState::Rts));
        assert_eq!(pair.tell(0, &rnr), [""; 0]);
        assert_eq!(pair.failures(0), [failed(1, WcStatus::RnrRetryExcErr, ErrorCause::RnrRetryExceeded)]);
        assert_eq!((pair.state(0), pair.counters(0).retry_rnr_exceeded_err), (QpState::Err, 1));
    }
}

#[test]
fn a_repeated_rnr_nak_counts_once_and_progress_gives_the_retries_back() {
    let mut pair = Pair::new(Connect { rnr_retry: 1, ..Connect::default() });
    for psn in 0..3 {
        let send = pair.wqe(u64::from(psn), WrOpcode::Send);
        pair.post(send, 8);
        assert_eq!(pair.listen(0).len(), 1);
        let rnr = pair.ack(1, RNR, psn);
        for _ in 0..3 {
            assert_eq!(pair.tell(0, &rnr), [""; 0]);
        }
        assert_eq!(pair.wait(0, RNR_NS).len(), 1);
        assert_eq!(pair.acknowledge(psn), [""; 0]);
        assert_eq!(pair.failures(0), [done(u64::from(psn))]);
    }
}

#[test]
fn an_acknowledgement_may_pass_a_cursor_that_went_back() {
    let mut pair = pair();
    let _ = pair.start_write(1, 600);
    let rnr = pair.ack(1, RNR, 1);
    assert_eq!(pair.tell(0, &rnr), [""; 0]);
    // An answer that took the longer way says that all has arrived.
    assert_eq!(pair.acknowledge(2), [""; 0]);
    assert_eq!(pair.failures(0), [done(1)]);
    let _ = pair.start_write(2, 8);
    assert_eq!(pair.wait(0, RNR_NS), ["WRITE_ONLY +3 va +4096 of 8 len 8 A"]);
}

#[test]
fn rnr_retry_7_is_for_ever() {
    let mut pair = pair();
    let send = pair.wqe(1, WrOpcode::Send);
    pair.post(send, 8);
    let _ = pair.listen(0);
    let rnr = pair.ack(1, RNR, 0);
    for _ in 0..200 {
        assert_eq!(pair.tell(0, &rnr), [""; 0]);
        assert_eq!(pair.wait(0, RNR_NS).len(), 1);
    }
    assert_eq!(pair.acknowledge(0), [""; 0]);
    assert_eq!(pair.failures(0), [done(1)]);
}

#[test]
fn retries_of_one_kind_do_not_use_up_the_other() {
    let mut pair = Pair::new(Connect { path_mtu: 1, retry_cnt: 1, rnr_retry: 1, ..Connect::default() });
    let send = pair.wqe(1, WrOpcode::Send);
    pair.post(send, 8);
    let _ = pair.listen(0);
    assert_eq!(pair.wait(0, TIMEOUT_NS).len(), 1);
    let rnr = pair.ack(1, RNR, 0);
    assert_eq!(pair.tell(0, &rnr), [""; 0]);
    assert_eq!(pair.wait(0, RNR_NS).len(), 1);
    assert_eq!(pair.acknowledge(0), [""; 0]);
    assert_eq!(pair.failures(0), [done(1)]);
}

#[test]
fn read_responses_bring_the_bytes_and_acknowledge_what_is_before() {
    let mut pair = pair();
    let _ = pair.start_write(1, 8);
    assert_eq!(pair.start_read(2, 600), ["READ_REQUEST +1 va +4096 of 600 A"]);
    assert_eq!(pair.start_write(3, 8), ["WRITE_ONLY +4 va +4096 of 8 len 8 A"], "its responses have the PSNs between");
    let data = pattern(600);
    assert_eq!(pair.read_response(Opcode::RC_READ_RESP_FIRST, 1, &data[..256]), [""; 0]);
    assert_eq!(pair.failures(0), [done(1)]);
    assert_eq!(pair.read_response(Opcode::RC_READ_RESP_MIDDLE, 2, &data[256..512]), [""; 0]);
    assert_eq!(pair.read_response(Opcode::RC_READ_RESP_LAST, 3, &data[512..]), [""; 0]);
    assert_eq!(pair.failures(0), [done(2)]);
    assert!(pair.read(0, 0, 600) == data);
    assert_eq!(pair.acknowledge(4), [""; 0]);
    assert_eq!(pair.failures(0), [done(3)]);
}

#[test]
fn a_gap_in_read_responses_is_asked_for_at_once() {
    let mut pair = pair();
    let _ = pair.start_read(1, 1000);
    let _ = pair.start_read(2, 8);
    let data = pattern(1000);
    assert_eq!(pair.read_response(Opcode::RC_READ_RESP_FIRST, 0, &data[..256]), [""; 0]);
    // Response 1 is lost. IBTA 9.7.5.1.2: an implied NAK.
    let again = ["READ_REQUEST +1 va +4352 of 744 A", "READ_REQUEST +4 va +4096 of 8 A"];
    assert_eq!(pair.read_response(Opcode::RC_READ_RESP_MIDDLE, 2, &data[512..768]), again);
    assert_eq!(pair.read_response(Opcode::RC_READ_RESP_LAST, 3, &data[768..]), [""; 0], "once for a gap");
    // Some responders start a repeat with First.
    assert_eq!(pair.read_response(Opcode::RC_READ_RESP_FIRST, 1, &data[256..512]), [""; 0]);
    assert_eq!(pair.read_response(Opcode::RC_READ_RESP_MIDDLE, 2, &data[512..768]), [""; 0]);
    assert_eq!(pair.read_response(Opcode::RC_READ_RESP_LAST, 3, &data[768..]), [""; 0]);
    assert_eq!(pair.failures(0), [done(1)]);
    assert!(pair.read(0, 0, 1000) == data);
    assert_eq!(pair.counters(0).implied_nak_seq_err, 1);
}

#[test]
fn each_gap_of_a_read_is_asked_for_once() {
    let mut pair = pair();
    let _ = pair.start_read(1, 1280);
    for gap in [0, 2] {
        let again = format!("READ_REQUEST +{gap} va +{} of {} A", 4096 + gap * 256, 1280 - gap * 256);
        assert_eq!(pair.read_response(Opcode::RC_READ_RESP_MIDDLE, gap + 1, &[0; 256]), [again]);
        for psn in [gap, gap + 1] {
            assert_eq!(pair.read_response(Opcode::RC_READ_RESP_MIDDLE, psn, &[0; 256]), [""; 0]);
        }
    }
    assert_eq!(pair.counters(0).implied_nak_seq_err, 2);
}

#[test]
fn an_answer_past_a_read_or_atomic_is_an_implied_nak() {
    for atomic in [false, true] {
        for by_response in [false, true] {
            let mut pair = pair();
            let first = if atomic { pair.start_add(1) } else { pair.start_read(1, 8) };
            let second = if by_response { pair.start_read(2, 4) } else { pair.start_write(2, 4) };
            let again = [first, second].concat();
            let said = if by_response {
                pair.read_response(Opcode::RC_READ_RESP_ONLY, 1, &[1; 4])
            } else {
                pair.acknowledge(1)
            };
            assert_eq!(said, again, "atomic {atomic}, by response {by_response}");
            assert_eq!(pair.failures(0), []);
            // Lost once more: only the timer helps now, and it does.
            assert_eq!(pair.acknowledge(1), [""; 0]);
            assert_eq!(pair.wait(0, TIMEOUT_NS), again);
            // What was sent after the timeout has its own gaps.
            assert_eq!(pair.acknowledge(1), again);
        }
    }
}

#[test]
fn a_plain_acknowledgement_does_not_complete_a_read() {
    let mut pair = Pair::new(Connect { path_mtu: 1, retry_cnt: 1, ..Connect::default() });
    let _ = pair.start_read(1, 8);
    assert_eq!(pair.acknowledge(0), ["READ_REQUEST +0 va +4096 of 8 A"]);
    assert_eq!(pair.acknowledge(0), [""; 0]);
    assert_eq!(pair.wait(0, TIMEOUT_NS), [""; 0]);
    assert_eq!(pair.failures(0), [failed(1, WcStatus::RetryExcErr, ErrorCause::RetryExceeded)]);
}

#[test]
fn responses_of_the_wrong_length_or_kind_break_the_qp() {
    use Opcode as O;
    let length = (WcStatus::LocLenErr, ErrorCause::ResponseLength);
    let opcode = (WcStatus::BadRespErr, ErrorCause::ResponseOpcode);
    // What was asked, the opcode that answers, bytes, and what comes of it.
    let table = [
        (WrOpcode::RdmaRead, 600, O::RC_READ_RESP_FIRST, 255, length),
        (WrOpcode::RdmaRead, 600, O::RC_READ_RESP_ONLY, 0, length),
        (WrOpcode::RdmaRead, 8, O::RC_READ_RESP_ONLY, 7, length),
        (WrOpcode::RdmaRead, 8, O::RC_READ_RESP_ONLY, 9, length),
        (WrOpcode::RdmaRead, 8, O::RC_ATOMIC_ACK, 0, opcode),
        (WrOpcode::AtomicFetchAndAdd, 8, O::RC_READ_RESP_ONLY, 8, opcode),
        (WrOpcode::RdmaWrite, 8, O::RC_READ_RESP_ONLY, 8, opcode),
        (WrOpcode::RdmaWrite, 8, O::RC_ATOMIC_ACK, 0, opcode),
        (WrOpcode::Send, 8, O::RC_READ_RESP_ONLY, 8, opcode),
    ];
    for (asked, asked_bytes, answer, bytes, (status, cause)) in table {
        let mut pair = pair();
        let wqe = pair.wqe(1, asked);
        pair.post(wqe, asked_bytes);
        let _ = pair.listen(0);
        let _ = pair.start_write(2, 8);
        let before = pair.read(0, 0, 1024);
        let mut packet = pair.packet(1, answer, 0).aeth(ACK, 1).bytes(bytes);
        if answer == O::RC_ATOMIC_ACK {
            packet = packet.original(77);
        }
        assert_eq!(pair.tell(0, &packet), [""; 0]);
        assert_eq!(pair.failures(0), [failed(1, status, cause), flushed(2)], "{asked} answered by {answer}");
        assert!(pair.read(0, 0, 1024) == before);
    }
}

#[test]
fn an_atomic_result_lands_as_a_number() {
    let mut pair = pair();
    let _ = pair.start_add(1);
    let answer = pair.packet(1, Opcode::RC_ATOMIC_ACK, 0).aeth(ACK, 1).original(0x0102_0304_0506_0708);
    assert_eq!(pair.tell(0, &answer), [""; 0]);
    assert_eq!(pair.word(0, 0), 0x0102_0304_0506_0708);
    assert_eq!(pair.failures(0), [done(1)]);
}

#[test]
fn late_responses_to_a_repeated_read_are_old_news() {
    let mut pair = pair();
    let _ = pair.start_read(1, 300);
    let data = pattern(300);
    assert_eq!(pair.wait(0, TIMEOUT_NS).len(), 1, "asked again");
    for _ in 0..2 {
        assert_eq!(pair.read_response(Opcode::RC_READ_RESP_FIRST, 0, &data[..256]), [""; 0]);
        assert_eq!(pair.read_response(Opcode::RC_READ_RESP_LAST, 1, &data[256..]), [""; 0]);
    }
    assert_eq!(pair.failures(0), [done(1)]);
    assert_eq!(pair.counters(0).duplicate_ack, 2);
}

#[test]
fn at_most_max_rd_atomic_are_outstanding() {
    for limit in [1, 3] {
        let mut pair = Pair::new(Connect { path_mtu: 1, rd_atomic: limit, ..Connect::default() });
        for wr_id in 0..5 {
            let said = if wr_id % 2 == 0 { pair.start_read(wr_id, 8) } else { pair.start_add(wr_id) };
            assert_eq!(said.len(), usize::from(wr_id < u64::from(limit)));
        }
        // Nothing may pass a READ that waits.
        assert_eq!(pair.start_write(9, 8), [""; 0]);
        for psn in 0..5u32 {
            let said = if psn % 2 == 0 {
                pair.read_response(Opcode::RC_READ_RESP_ONLY, psn, &[0; 8])
            } else {
                let answer = pair.packet(1, Opcode::RC_ATOMIC_ACK, psn).aeth(ACK, 1).original(0);
                pair.tell(0, &answer)
            };
            // One more READ or atomic; the WRITE goes with the last of them.
            let expected = usize::from(psn + u32::from(limit) < 5) + usize::from(psn + u32::from(limit) == 4);
            assert_eq!(said.len(), expected, "limit {limit}, answer {psn}: {said:?}");
        }
        assert_eq!(pair.acknowledge(5), [""; 0]);
        assert_eq!(pair.failures(0), [done(0), done(1), done(2), done(3), done(4), done(9)]);
    }
}

#[test]
fn after_a_timeout_the_limit_counts_from_new() {
    let mut pair = Pair::new(Connect { path_mtu: 1, rd_atomic: 2, ..Connect::default() });
    for wr_id in 0..3 {
        let _ = pair.start_read(wr_id, 8);
    }
    let two = ["READ_REQUEST +0 va +4096 of 8 A", "READ_REQUEST +1 va +4096 of 8 A"];
    assert_eq!(pair.wait(0, TIMEOUT_NS), two);
    assert_eq!(pair.wait(0, TIMEOUT_NS), two);
    assert_eq!(pair.read_response(Opcode::RC_READ_RESP_ONLY, 0, &[0; 8]), ["READ_REQUEST +2 va +4096 of 8 A"]);
    assert_eq!(pair.figure(0, "rd_atomic_outstanding"), 2);
}

#[test]
fn a_fence_waits_for_reads_and_atomics_but_not_for_writes() {
    let mut pair = pair();
    let _ = pair.start_write(1, 8);
    let fenced = |pair: &Pair, wr_id| {
        let wqe = pair.wqe(wr_id, WrOpcode::RdmaWrite);
        SendWqe { flags: wqe.flags | SendFlags::FENCE.0, ..wqe }
    };
    let wqe = fenced(&pair, 2);
    pair.post(wqe, 8);
    assert_eq!(pair.listen(0).len(), 1, "a WRITE is no reason to wait");
    let _ = pair.start_read(3, 300);
    let wqe = fenced(&pair, 4);
    pair.post(wqe, 8);
    assert_eq!(pair.listen(0), [""; 0]);
    assert_eq!(pair.acknowledge(1), [""; 0]);
    assert_eq!(pair.read_response(Opcode::RC_READ_RESP_FIRST, 2, &[0; 256]), [""; 0]);
    assert_eq!(pair.read_response(Opcode::RC_READ_RESP_LAST, 3, &[0; 44]), ["WRITE_ONLY +4 va +4096 of 8 len 8 A"]);
}

#[test]
fn the_window_bounds_what_is_unacknowledged() {
    let mut pair = pair();
    let window = 256;
    let said = pair.start_write(1, 256 * 300);
    assert_eq!(said.len(), window);
    assert!(said.last().unwrap().ends_with('A'), "the last packet that fits asks");
    assert_eq!(said.iter().filter(|s| s.ends_with('A')).count(), 8, "every 32nd asks");
    assert_eq!(pair.acknowledge(31).len(), 32);
    assert_eq!(pair.acknowledge(287).len(), 12);
    assert_eq!(pair.acknowledge(299), [""; 0]);
    assert_eq!(pair.failures(0), [done(1)]);
}

#[test]
fn a_window_shorter_than_the_row_of_packets_asks_at_its_end() {
    let mut options = HostOptions::new(1);
    options.transport.window_packets = 64;
    options.transport.ack_request_packets = 1000;
    let connect = Connect { path_mtu: 1, ..Connect::default() };
    let mut pair = Pair::with(connect, options, HostOptions::new(2), 1 << 20);
    let said = pair.start_write(1, 256 * 100);
    assert_eq!(said.len(), 64);
    let asking: Vec<_> = said.into_iter().filter(|s| s.ends_with('A')).collect();
    assert_eq!(asking, ["WRITE_MIDDLE +63 len 256 A"]);
    assert_eq!(pair.acknowledge(63).len(), 36);
}

#[test]
fn the_longest_read_takes_all_the_psns_there_may_be() {
    let mut pair = pair();
    pair.clients[0] = Client::new(&mut pair.hosts[0], 1 << 27);
    pair.fresh_qp(0, QpCap { max_send_sge: 16, ..CAP });
    let _ = pair.start_write(1, 8);
    let sges = vec![pair.clients[0].sge(0, 1 << 27); 16];
    let read = pair.wqe(2, WrOpcode::RdmaRead);
    pair.qps[0].post(read, &sges);
    assert_eq!(pair.listen(0), [""; 0], "with the WRITE it would be one PSN too many");
    assert_eq!(pair.acknowledge(0), ["READ_REQUEST +1 va +4096 of 2147483648 A"]);
    assert_eq!(pair.start_write(3, 8), [""; 0]);
    // The far end of it: the last response, and what would come after it.
    let last = pair.packet(1, Opcode::RC_READ_RESP_LAST, 1 << 23).aeth(ACK, 0).bytes(256);
    assert_eq!(pair.tell(0, &last), ["READ_REQUEST +1 va +4096 of 2147483648 A"], "a gap, as long as they come");
    let first = pair.read_response(Opcode::RC_READ_RESP_FIRST, 1, &[1; 256]);
    assert_eq!(first, [""; 0]);
    assert_eq!(pair.figure(0, "una_psn"), u64::from(pair.connect.psn[0]) + 2);
    assert_eq!((pair.failures(0), pair.counters(0).ghost_ack), (vec![done(1)], 0));
}

#[test]
fn an_unsignalled_request_asks_for_an_acknowledgement_if_nothing_good_follows() {
    // Alone, before one that can't be sent, and before one that can.
    for (next_key, said) in [(None, "A"), (Some(false), "A"), (Some(true), "8")] {
        let mut pair = pair();
        let quiet = SendWqe { flags: 0, ..pair.wqe(1, WrOpcode::RdmaWrite) };
        let sge = pair.clients[0].sge(0, 8);
        pair.qps[0].send.post(quiet, shm::ring::Body::Sges(&[sge])).unwrap();
        if let Some(good) = next_key {
            let wqe = pair.wqe(2, WrOpcode::RdmaWrite);
            let lkey = if good { sge.lkey } else { 1 };
            pair.qps[0].send.post(wqe, shm::ring::Body::Sges(&[shm::layout::Sge { lkey, ..sge }])).unwrap();
        }
        pair.qps[0].ring();
        let sent = pair.listen(0);
        assert!(sent[0].ends_with(said), "{sent:?}");
        let last = sent.len() as u32 - 1;
        assert_eq!(pair.acknowledge(last), [""; 0]);
        let expected = match next_key {
            None => vec![],
            Some(true) => vec![done(2)],
            Some(false) => vec![failed(2, WcStatus::LocProtErr, ErrorCause::UnknownKey)],
        };
        assert_eq!(pair.failures(0), expected);
    }
}

#[test]
fn psns_wrap_at_24_bits() {
    for before in 0..4 {
        let first = (1 << 24) - before;
        let mut pair = Pair::new(Connect { path_mtu: 1, psn: [first & 0xff_ffff, 5], ..Connect::default() });
        assert_eq!(pair.start_write(1, 600), SAID_600);
        let nak = pair.ack(1, SEQUENCE_NAK, 1);
        assert_eq!(pair.tell(0, &nak), SAID_600[1..]);
        assert_eq!(pair.wait(0, TIMEOUT_NS), SAID_600[1..]);
        assert_eq!(pair.start_read(2, 300), ["READ_REQUEST +3 va +4096 of 300 A"]);
        assert_eq!(pair.read_response(Opcode::RC_READ_RESP_FIRST, 3, &[1; 256]), [""; 0]);
        assert_eq!(pair.wait(0, TIMEOUT_NS), ["READ_REQUEST +4 va +4352 of 44 A"]);
        assert_eq!(pair.read_response(Opcode::RC_READ_RESP_LAST, 4, &[1; 44]), [""; 0]);
        let ghost = pair.ack(1, ACK, 5);
        assert_eq!(pair.tell(0, &ghost), [""; 0]);
        assert_eq!(pair.failures(0), [done(1), done(2)]);
        assert_eq!(pair.counters(0).ghost_ack, 1);
    }
}

#[test]
fn retransmission_reads_the_memory_as_it_is_then() {
    let mut pair = pair();
    let _ = pair.start_write(1, 8);
    pair.write(0, 0, &[9; 8]);
    pair.now = pair.now.add_ns(TIMEOUT_NS);
    pair.exchange();
    assert_eq!(pair.read(1, 4096, 8), [9; 8]);
    assert_eq!(pair.failures(0), [done(1)]);
}

#[test]
fn responses_and_requests_of_one_qp_do_not_mix() {
    let mut pair = pair();
    let _ = pair.start_read(1, 8);
    // The peer's own request, while our READ is on its way.
    let write = pair.packet(1, Opcode::RC_WRITE_ONLY, 0).reth(BASE, pair.clients[0].key, 4).bytes(4).ack_req();
    assert_eq!(pair.tell(0, &write), ["ACK +0 msn 1"]);
    assert_eq!(pair.read_response(Opcode::RC_READ_RESP_ONLY, 0, &[4; 8]), [""; 0]);
    assert_eq!(pair.failures(0), [done(1)]);
}
