//! READs in parts: of a QP that repeats selectively, no more responses are asked for than can be kept; of one that limits its READs
//! itself, they are asked for at its rate. Parts are asked for again within their own bounds.

use engine::cc::{Algorithm, Settings};
use shm::attr::{RecoveryPolicy, WrOpcode};
use shm::layout::SendWqe;
use wire::Opcode;

use crate::congestion::{pair_with, set_port};
use crate::peer::{Packet, done, pattern};
use crate::support::{Connect, Pair};

const ACK: u8 = 0x1f;
/// The reorder window, without a round trip time to go by, and a little more.
const REORDER_NS: u64 = 110_000;

/// A QP that repeats selectively, with packets of 256 bytes and so many READs at a time.
fn pair(rd_atomic: u8) -> Pair {
    let mut pair = Pair::new(Connect { path_mtu: 1, rd_atomic, ..Connect::default() });
    pair.set_recovery(RecoveryPolicy::SelectiveRepeat);
    pair
}

fn post(pair: &mut Pair, wr_id: u64, opcode: WrOpcode, packets: u32) {
    let wqe = pair.wqe(wr_id, opcode);
    pair.post(wqe, packets * 256);
}

/// READs in words: first PSN, and how many packets are asked for. They begin at byte 4096 of the peer's memory with PSN `first`.
fn reads(said: &[String], first: u32) -> Vec<(u32, u32)> {
    let read = |words: &String| {
        let words: Vec<&str> = words.split_whitespace().collect();
        assert_eq!(words[0], "READ_REQUEST", "{said:?}");
        let [psn, va, bytes] = [1, 3, 5].map(|at| words[at].trim_start_matches('+').parse::<u32>().unwrap());
        assert_eq!(va, 4096 + (psn - first) * 256, "the address follows the PSN: {said:?}");
        (psn, bytes.div_ceil(256))
    };
    said.iter().map(read).collect()
}

/// Responses in the middle of a READ.
fn responses(pair: &Pair, psns: impl IntoIterator<Item = u32>) -> Vec<Packet> {
    psns.into_iter().map(|psn| pair.packet(1, Opcode::RC_READ_RESP_MIDDLE, psn).bytes(256)).collect()
}

/// Answers packet for packet, as a peer does that is asked in the meantime.
fn answer(pair: &mut Pair, psns: impl IntoIterator<Item = u32>) {
    for packet in responses(pair, psns) {
        pair.tell(0, &packet);
    }
}

#[test]
fn no_more_is_asked_for_than_can_be_kept() {
    // READs at a time, and what is asked for at first of 600 packets.
    let cases: [(u8, &[(u32, u32)]); 4] = [
        (1, &[(0, 256)]),
        (2, &[(0, 128), (128, 128)]),
        (4, &[(0, 64), (64, 64), (128, 64), (192, 64)]),
        (16, &[(0, 64), (64, 64), (128, 64), (192, 64)]),
    ];
    for (rd_atomic, first) in cases {
        let mut pair = pair(rd_atomic);
        post(&mut pair, 1, WrOpcode::RdmaRead, 600);
        assert_eq!(reads(&pair.listen(0), 0), first, "{rd_atomic}");
        let length = first[0].1;
        let almost = responses(&pair, 0..length - 1);
        assert_eq!(pair.tell_all(0, &almost), [""; 0], "{rd_atomic}: the first part is not here yet");
        let last = responses(&pair, [length - 1]);
        assert_eq!(reads(&pair.tell_all(0, &last), 0), [(256, length)], "{rd_atomic}");
        answer(&mut pair, length..600);
        assert_eq!(pair.failures(0), [done(1)], "{rd_atomic}");
        assert_eq!(pair.figure(0, "rd_atomic_outstanding"), 0, "{rd_atomic}");
    }
}

#[test]
fn one_that_goes_back_n_asks_for_all_of_it() {
    let mut pair = Pair::new(Connect { path_mtu: 1, rd_atomic: 4, ..Connect::default() });
    post(&mut pair, 1, WrOpcode::RdmaRead, 600);
    assert_eq!(reads(&pair.listen(0), 0), [(0, 600)]);
}

#[test]
fn what_is_missing_is_asked_for_within_the_bounds_of_its_part() {
    let mut pair = pair(4);
    post(&mut pair, 1, WrOpcode::RdmaRead, 600);
    pair.listen(0);
    let heard = responses(&pair, (0..60).chain(70..256).filter(|psn| psn % 100 != 0));
    let mut said = pair.tell_all(0, &heard);
    said.extend(pair.wait(0, REORDER_NS));
    assert_eq!(reads(&said, 0), [(0, 1), (60, 4), (64, 6), (100, 1), (200, 1)]);
    assert_eq!(pair.counters(0).selective_repeats, 5);
}

#[test]
fn a_part_that_the_peer_did_not_get_is_asked_for_as_a_whole() {
    let mut pair = pair(4);
    post(&mut pair, 1, WrOpcode::RdmaRead, 600);
    pair.listen(0);
    // The second part was lost; the third and the fourth wait for it at the peer.
    let mut heard = responses(&pair, 0..64);
    heard.push(pair.sack(1, 64, [128, 192]));
    let mut said = pair.tell_all(0, &heard);
    assert_eq!(reads(&said, 0), [(256, 64)], "the first is here");
    said = pair.wait(0, REORDER_NS);
    assert_eq!(reads(&said, 0), [(64, 64)]);
    answer(&mut pair, 64..600);
    assert_eq!(pair.failures(0), [done(1)]);
}

#[test]
fn going_back_asks_for_the_same_parts() {
    let mut pair = Pair::new(Connect { path_mtu: 1, rd_atomic: 4, ..Connect::default() });
    pair.set_recovery(RecoveryPolicy::Hybrid);
    post(&mut pair, 1, WrOpcode::RdmaRead, 600);
    pair.listen(0);
    let heard = responses(&pair, 0..10);
    pair.tell_all(0, &heard);
    // The long timer fires.
    let said = (0..200).map(|_| pair.wait(0, 10_000)).find(|said| said.len() > 1).unwrap();
    assert_eq!(reads(&said, 0), [(10, 54), (64, 64), (128, 64), (192, 64)]);
    assert_eq!(pair.counters(0).rewinds, 1);
}

#[test]
fn a_change_of_policy_keeps_to_the_bounds_of_what_is_in_flight() {
    let mut pair = pair(4);
    post(&mut pair, 1, WrOpcode::RdmaRead, 500);
    post(&mut pair, 2, WrOpcode::RdmaRead, 8);
    pair.listen(0);
    let heard = responses(&pair, 0..100);
    assert_eq!(reads(&pair.tell_all(0, &heard), 0), [(256, 64)]);
    pair.set_recovery(RecoveryPolicy::GoBackN);
    assert_eq!(reads(&pair.listen(0), 0), [(100, 28), (128, 64), (192, 64), (256, 64)]);
    assert_eq!(pair.figure(0, "rd_atomic_outstanding"), 4);
    // What was never asked for is asked for at once when nothing in parts is in flight any more.
    let almost = responses(&pair, 100..319);
    assert_eq!(pair.tell_all(0, &almost), [""; 0]);
    let last = responses(&pair, [319]);
    let said = pair.tell_all(0, &last);
    assert_eq!(reads(&said[..1], 0), [(320, 180)]);
    assert_eq!(reads(&said[1..], 500), [(500, 8)]);
    answer(&mut pair, 320..508);
    assert_eq!(pair.failures(0), [done(1), done(2)]);
    assert_eq!(pair.figure(0, "rd_atomic_outstanding"), 0);
}

#[test]
fn one_that_begins_to_repeat_selectively_asks_for_a_window_of_what_is_in_flight() {
    let mut pair = Pair::new(Connect { path_mtu: 1, rd_atomic: 4, ..Connect::default() });
    post(&mut pair, 1, WrOpcode::RdmaRead, 600);
    assert_eq!(reads(&pair.listen(0), 0), [(0, 600)]);
    let heard = responses(&pair, 0..100);
    pair.tell_all(0, &heard);
    pair.set_recovery(RecoveryPolicy::SelectiveRepeat);
    assert_eq!(reads(&pair.listen(0), 0), [(100, 64), (164, 64), (228, 64), (292, 64)]);
    answer(&mut pair, 100..600);
    assert_eq!(pair.failures(0), [done(1)]);
}

#[test]
fn a_read_waits_for_room_and_never_for_an_answer_that_nobody_was_asked_for() {
    // WRITEs that ask for no acknowledgement as long as something follows, and a READ that does not fit the window with them.
    for (rd_atomic, writes) in (1..5).flat_map(|rd_atomic| (0..60).step_by(7).map(move |writes| (rd_atomic, writes))) {
        let mut pair = pair(rd_atomic);
        pair.write(1, 4096, &pattern(600 * 256));
        for wr_id in 0..writes {
            let wqe = SendWqe { flags: 0, remote_addr: crate::support::BASE, ..pair.wqe(wr_id, WrOpcode::RdmaWrite) };
            pair.post(wqe, 256);
        }
        post(&mut pair, 100, WrOpcode::RdmaRead, 600);
        // No time passes: nothing may hang on a timer.
        pair.exchange();
        assert_eq!(pair.failures(0), [done(100)], "{rd_atomic} {writes}");
        assert_eq!(pair.read(0, 0, 600 * 256), pattern(600 * 256), "{rd_atomic} {writes}");
        assert_eq!(pair.counters(0).retransmitted_packets, 0, "{rd_atomic} {writes}");
    }
}

#[test]
fn a_peer_that_answers_too_far_ahead_takes_no_place_from_others() {
    let mut pair = pair(4);
    post(&mut pair, 1, WrOpcode::RdmaRead, 600);
    pair.listen(0);
    // Never asked for so far.
    let heard = responses(&pair, [256, 300, 599]);
    pair.tell_all(0, &heard);
    assert_eq!(pair.counters(0).ghost_ack, 3);
    let atomic = pair.packet(1, Opcode::RC_ATOMIC_ACK, 300).aeth(ACK, 0).original(7);
    pair.tell(0, &atomic);
    assert_eq!(pair.counters(0).ghost_ack, 4);
    answer(&mut pair, 0..600);
    assert_eq!(pair.failures(0), [done(1)]);
}

/// A QP that goes back N and limits its READs itself.
fn metered(rd_atomic: u8, algorithm: &str, values: &[(&str, &str)]) -> Pair {
    pair_with(Connect { path_mtu: 1, rd_atomic, ..Connect::default() }, algorithm, values)
}

#[test]
fn one_that_limits_its_reads_asks_for_them_at_its_rate() {
    let (fast, slow) = ([("burst", "0")], [("burst", "0"), ("rate_limit", "1Gbps")]);
    let (fast, slow) = (fast.as_slice(), slow.as_slice());
    // The algorithm, READs at a time, packets of a part, parts that go one by one while nothing is answered.
    let cases = [
        ("timely", fast, 16, 32, 8),
        ("timely", fast, 4, 32, 4),
        ("timely", fast, 2, 64, 2),
        ("timely", fast, 1, 128, 1),
        // 50 us of its rate are 24 packets.
        ("timely", slow, 16, 24, 10),
        // A quarter of its window.
        ("swift", fast, 16, 4, 4),
        ("swift", fast, 1, 16, 1),
    ];
    for (algorithm, values, rd_atomic, packets, parts) in cases {
        let mut pair = metered(rd_atomic, algorithm, values);
        post(&mut pair, 1, WrOpcode::RdmaRead, 600);
        let rate_bps = pair.figure(0, "cc_rate_bps");
        let mut said = pair.listen(0);
        for part in 0..parts {
            assert_eq!(reads(&said, 0), [(part * packets, packets)], "{algorithm} {rd_atomic}");
            // When its responses are paid for with their headers, and not before.
            let ns = u64::from(packets) * (256 + 58) * 8_000_000_000 / rate_bps;
            assert_eq!(pair.wait(0, ns), [""; 0], "{algorithm} {rd_atomic}: part {part}");
            said = pair.wait(0, 100 * 8_000_000_000 / rate_bps);
        }
        assert_eq!(said, [""; 0], "{algorithm} {rd_atomic}: the window is full, or so many READs are outstanding");
    }
}

#[test]
fn one_that_limits_its_reads_asks_again_for_the_same_parts() {
    let mut pair = metered(16, "timely", &[("burst", "1MiB")]);
    pair.now = pair.now.add_ns(1_000_000);
    post(&mut pair, 1, WrOpcode::RdmaRead, 200);
    post(&mut pair, 2, WrOpcode::RdmaWrite, 2);
    let parts = [(0, 32), (32, 32), (64, 32), (96, 32), (128, 32), (160, 32), (192, 8)];
    let said = pair.listen(0);
    assert_eq!(reads(&said[..7], 0), parts);
    // The end of the second part, and the third, are lost: an answer past its turn says so.
    let heard = responses(&pair, (0..40).chain(96..97));
    let said = pair.tell_all(0, &heard);
    assert_eq!(reads(&said[..6], 0), [(40, 24), (64, 32), (96, 32), (128, 32), (160, 32), (192, 8)]);
    answer(&mut pair, 40..200);
    assert_eq!(pair.failures(0), [done(1)]);
    assert_eq!((pair.figure(0, "rd_atomic_outstanding"), pair.counters(0).rewinds), (0, 1));
}

#[test]
fn a_change_of_congestion_control_waits_for_what_is_in_flight() {
    let mut pair = metered(4, "none", &[]);
    post(&mut pair, 1, WrOpcode::RdmaRead, 300);
    assert_eq!(reads(&pair.listen(0), 0), [(0, 300)]);
    let timely = Settings::new(Algorithm::None).change(Some("timely"), [("burst", "1MiB")]).unwrap();
    set_port(&mut pair, timely);
    pair.now = pair.now.add_ns(1_000_000);
    post(&mut pair, 2, WrOpcode::RdmaRead, 300);
    assert_eq!(pair.listen(0), [""; 0], "the peer may still be busy with the one that was asked for whole");
    let heard = responses(&pair, 0..300);
    let said = pair.tell_all(0, &heard);
    assert_eq!(reads(&said, 300), [(300, 32), (332, 32), (364, 32), (396, 32)]);
    // And back: what was asked for in parts is answered first.
    set_port(&mut pair, Settings::new(Algorithm::None));
    assert_eq!(pair.listen(0), [""; 0]);
    let heard = responses(&pair, 300..428);
    assert_eq!(reads(&pair.tell_all(0, &heard), 300), [(428, 172)]);
    answer(&mut pair, 428..600);
    assert_eq!(pair.failures(0), [done(1), done(2)]);
    assert_eq!((pair.figure(0, "rd_atomic_outstanding"), pair.counters(0).retransmitted_packets), (0, 0));
    // With nothing in flight either holds at once.
    set_port(&mut pair, timely);
    set_port(&mut pair, Settings::new(Algorithm::None));
    post(&mut pair, 3, WrOpcode::RdmaRead, 100);
    assert_eq!(reads(&pair.listen(0), 600), [(600, 100)]);
}

#[test]
fn a_repeat_that_is_lost_too_is_missed_a_round_trip_later() {
    let mut pair = pair(4);
    // A round trip takes 10 us.
    post(&mut pair, 1, WrOpcode::RdmaRead, 1);
    pair.listen(0);
    pair.wait(0, 10_000);
    answer(&mut pair, [0]);
    post(&mut pair, 2, WrOpcode::RdmaRead, 200);
    pair.listen(0);
    pair.wait(0, 10_000);
    let heard = responses(&pair, (1..=20).filter(|psn| ![5, 9].contains(psn)));
    assert_eq!(pair.tell_all(0, &heard), [""; 0]);
    assert_eq!(reads(&pair.wait(0, 2_500), 1), [(5, 1), (9, 1)]);
    pair.wait(0, 5_000);
    let heard = responses(&pair, 21..=30);
    assert_eq!(pair.tell_all(0, &heard), [""; 0], "these were on their way already");
    pair.wait(0, 8_500);
    let heard = responses(&pair, [5]);
    assert_eq!(pair.tell_all(0, &heard), [""; 0], "one repeat says nothing of the next");
    let heard = responses(&pair, [31]);
    assert_eq!(reads(&pair.tell_all(0, &heard), 1), [(9, 1)]);
}
