//! What a QP that broke by itself leaves behind: each cause in its sentence, and who may read it.

use engine::ErrorCause;
use engine::control::Peer;
use shm::attr::{AccessFlags, QpState, RecoveryPolicy, WcStatus, WrOpcode};
use shm::control::post_mortem::{PostMortem, Retries};
use shm::control::{Reply, Request};
use shm::layout::SendWqe;
use wire::Opcode;

use crate::peer::{Case, failed};
use crate::support::{BASE, CAP, Connect, Host, INIT, Pair, RTR, RTS, attributes, connect, modify};

/// Timeout code 14.
const TIMEOUT_NS: u64 = 4096 << 14;

fn pair() -> Pair {
    Pair::new(Connect { path_mtu: 3, rnr_retry: 2, ..Connect::default() })
}

fn why(pair: &mut Pair, side: usize) -> PostMortem {
    let qpn = pair.qps[side].qpn;
    match pair.ask(side, Request::WhyQp { qpn }) {
        Reply::PostMortem(found) => *found,
        other => panic!("{other:?}"),
    }
}

fn sentence(pair: &mut Pair, side: usize) -> String {
    why(pair, side).summary.sentence
}

fn write_to(pair: &Pair, wr_id: u64) -> SendWqe {
    SendWqe { remote_addr: BASE + 4096, rkey: pair.clients[1].key, ..pair.wqe(wr_id, WrOpcode::RdmaWrite) }
}

/// Side 0 sends into the void until it gives up.
fn starve(pair: &mut Pair) {
    for _ in 0..20 {
        pair.now = pair.now.add_ns(TIMEOUT_NS);
        pair.exchange_with(|_, _| vec![]);
    }
}

#[test]
fn a_peer_that_never_answered_leaves_path_retries_and_attributes() {
    let mut pair = pair();
    pair.post(write_to(&pair, 1), 64);
    pair.exchange_with(|_, _| vec![]);
    starve(&mut pair);
    assert_eq!(pair.failures(0), [failed(1, WcStatus::RetryExcErr, ErrorCause::RetryExceeded)]);
    let found = why(&mut pair, 0);
    assert_eq!(
        found.summary.sentence,
        "no answer to 8 transmissions in 536 ms: the peer's QPN may be gone, or UDP port 4791 is filtered between \
         10.0.0.1 and 10.0.0.2"
    );
    assert_eq!((found.state, found.summary.vendor_err), (QpState::Rts, ErrorCause::RetryExceeded.code()));
    assert_eq!(found.retries, Retries { timeouts: 8, waited_ns: 8 * TIMEOUT_NS, ..Retries::default() });
    assert_eq!((found.rtt, found.heard_ago_ns, found.last_nak, found.peer), (None, None, None, None));
    let psns = (found.psns.unacknowledged, found.psns.sent_end, found.psns.expected);
    assert_eq!(psns, (pair.connect.psn[0], pair.connect.psn[0] + 1, pair.connect.psn[1]));
    let path = found.path.unwrap();
    assert_eq!((path.src_mac.0[5], path.dst_mac.0[5], path.path_mtu, path.interface_mtu), (1, 2, 1024, 9000));
    let sent = wire::Frame::parse(&pair.sent[0].1).unwrap().udp_src_port();
    assert_eq!(Some(path.udp_src_port), sent);
    assert_eq!((found.attr.retry_cnt, found.attr.timeout, found.attr.path_mtu), (7, 14, 3));
    let request = found.request.unwrap();
    assert_eq!((request.wr_id, request.length, request.remote_addr), (1, 64, BASE + 4096));
}

#[test]
fn a_peer_that_fell_silent_was_heard_before_and_has_a_round_trip_time() {
    let mut pair = pair();
    pair.post(write_to(&pair, 1), 64);
    // Half a round trip there, half back.
    let frames = pair.hosts[0].turn(pair.now);
    pair.now = pair.now.add_ns(3000);
    frames.iter().for_each(|frame| pair.hosts[1].receive(pair.now, frame));
    let frames = pair.hosts[1].turn(pair.now);
    pair.now = pair.now.add_ns(4000);
    frames.iter().for_each(|frame| pair.hosts[0].receive(pair.now, frame));
    pair.post(write_to(&pair, 2), 64);
    starve(&mut pair);
    let found = why(&mut pair, 0);
    let rtt = found.rtt.unwrap();
    assert_eq!((rtt.smoothed_ns, rtt.min_ns, rtt.last_ns), (7000, 7000, 7000));
    assert!(found.summary.sentence.contains(
        "the peer was last heard 603 ms before: it may be gone, or UDP port 4791 is filtered between 10.0.0.1 and 10.0.0.2 now"
    ), "{}", found.summary.sentence);
}

#[test]
fn a_packet_that_is_lost_each_time_is_named_with_its_selective_repeats() {
    for policy in [RecoveryPolicy::SelectiveRepeat, RecoveryPolicy::Hybrid] {
        let mut pair = Pair::new(Connect { path_mtu: 1, ..Connect::default() });
        pair.set_recovery(policy);
        let first = wire::Psn::new(pair.connect.psn[0]);
        pair.post(write_to(&pair, 1), 2048);
        let mut failures = Vec::new();
        for _ in 0..20_000 {
            pair.exchange_with(|from, frame| {
                let is_first = from == 0 && wire::Frame::parse(&frame).unwrap().bth().psn == first;
                if is_first { vec![] } else { vec![frame] }
            });
            failures.extend(pair.failures(0));
            if !failures.is_empty() {
                break;
            }
            pair.now = pair.now.add_ns(50_000);
        }
        assert_eq!(failures, [failed(1, WcStatus::RetryExcErr, ErrorCause::RetryExceeded)], "{policy}");
        let found = why(&mut pair, 0);
        let Retries { timeouts, selective, waited_ns, .. } = found.retries;
        assert!(timeouts >= 8, "{policy}: {timeouts}");
        assert!(
            waited_ns >= 8 * TIMEOUT_NS,
            "{policy}: as long as `timeout` and `retry_cnt` allow, not {waited_ns} ns"
        );
        assert!(selective > 1, "{policy}");
        let said = found.summary.sentence;
        let begin = format!("no answer to {} transmissions in ", u64::from(timeouts) + u64::from(selective));
        let end = format!(
            " before, and say that PSN 0x0a0000 is missing after {selective} selective repeats: that packet is lost each \
             time; the path between 10.0.0.1 and 10.0.0.2 may not pass it"
        );
        assert!(said.starts_with(&begin) && said.ends_with(&end), "{policy}: {said}");
    }
}

/// One more QP of each side's client, connected with each other.
fn second_connection(pair: &mut Pair) -> [crate::support::TestQp; 2] {
    let c = pair.connect;
    let qps = [0, 1].map(|side| pair.clients[side].qp(&mut pair.hosts[side], CAP));
    let numbers = [qps[0].qpn, qps[1].qpn];
    for side in [0, 1] {
        let (session, peer_ip) = (pair.clients[side].session, pair.hosts[1 - side].ip);
        connect(&mut pair.hosts[side], session, numbers[side], peer_ip, numbers[1 - side], c, side);
    }
    pair.exchange();
    qps
}

#[test]
fn a_peer_that_answers_others_has_lost_this_qp() {
    let mut pair = pair();
    let [mut other, _there] = second_connection(&mut pair);
    let gone = pair.qps[1].qpn;
    assert_eq!(pair.ask(1, Request::DestroyQp { qpn: gone }), Reply::Done);
    pair.post(write_to(&pair, 1), 64);
    for wr_id in 10..30 {
        let sge = pair.clients[0].sge(0, 8);
        other.post(write_to(&pair, wr_id), &[sge]);
        pair.advance(TIMEOUT_NS);
    }
    let found = why(&mut pair, 0);
    assert_eq!(found.heard_ago_ns, None);
    assert_eq!(
        found.summary.sentence,
        format!(
            "no answer to 8 transmissions in 536 ms: 10.0.0.2 still talks to other QPs here (the last packet came 0 ns \
             before), so its QP {gone:#08x} is gone, in ERR or connected to another"
        )
        .replace("0 ns", &format!("{} ms", TIMEOUT_NS / 1_000_000))
    );
}

#[test]
fn a_neighbour_that_nobody_answers_for_breaks_the_qp_and_says_so() {
    let mut pair = pair();
    let qp = pair.clients[0].qp(&mut pair.hosts[0], CAP);
    connect(&mut pair.hosts[0], pair.clients[0].session, qp.qpn, [10, 0, 0, 99].into(), 0x77, pair.connect, 0);
    pair.qps[0] = qp;
    pair.post(write_to(&pair, 1), 64);
    pair.exchange();
    pair.advance(2_900_000_000);
    assert_eq!(pair.failures(0), [], "it is still being asked for");
    // What has nothing to do with the neighbour leaves its timer alone.
    for policy in [RecoveryPolicy::SelectiveRepeat, RecoveryPolicy::GoBackN] {
        let qpn = pair.qps[0].qpn;
        assert_eq!(pair.ask(0, Request::SetRecovery { qpn, policy }), Reply::Done);
    }
    for _ in 0..60 {
        pair.advance(TIMEOUT_NS);
    }
    assert_eq!(pair.failures(0), [failed(1, WcStatus::RetryExcErr, ErrorCause::NeighbourUnresolved)]);
    let found = why(&mut pair, 0);
    assert_eq!(
        found.summary.sentence,
        "nobody on the network of port 1 answers for 10.0.0.99: its MAC address is not known and nothing was sent from \
         10.0.0.1; the host may be down, or on another network"
    );
    assert_eq!(found.path.unwrap().dst_mac, wire::MacAddr::ZERO);
}

#[test]
fn rnr_naks_are_told_from_silence() {
    let mut pair = pair();
    let send = pair.wqe(1, WrOpcode::Send);
    pair.post(send, 8);
    pair.exchange();
    for _ in 0..4 {
        pair.advance(1_000_000);
    }
    assert_eq!(pair.failures(0), [failed(1, WcStatus::RnrRetryExcErr, ErrorCause::RnrRetryExceeded)]);
    let found = why(&mut pair, 0);
    assert_eq!(
        found.summary.sentence,
        "the peer had no receive posted: 3 RNR NAKs for the SEND of 8 bytes (wr_id 1) in 2000 us, and rnr_retry is 2"
    );
    assert_eq!(found.last_nak.map(|nak| (nak.syndrome, nak.psn)), Some((0x2c, pair.connect.psn[0])));
}

#[test]
fn a_packet_that_is_lost_each_time_points_at_the_mtu() {
    let mut pair = Pair::new(Connect { path_mtu: 5, retry_cnt: 2, ..Connect::default() });
    pair.post(write_to(&pair, 1), 8192);
    // The full packets of the first message are lost, the short ones of the next are not.
    pair.post(write_to(&pair, 2), 8);
    pair.exchange_with(|_, frame| if frame.len() > 4000 { vec![] } else { vec![frame] });
    for _ in 0..4 {
        pair.now = pair.now.add_ns(TIMEOUT_NS);
        pair.exchange_with(|_, frame| if frame.len() > 4000 { vec![] } else { vec![frame] });
    }
    let found = why(&mut pair, 0);
    assert_eq!((found.retries.sequence_naks, found.retries.timeouts), (1, 2));
    assert!(
        found.summary.sentence.starts_with(
            "3 transmissions of PSN 0x0a0000 in 134 ms without progress (2 timeouts, 1 \
                                            sequence NAK, 0 gaps)"
        ),
        "{}",
        found.summary.sentence
    );

    let mut pair = Pair::new(Connect { path_mtu: 5, retry_cnt: 1, ..Connect::default() });
    pair.post(write_to(&pair, 1), 8);
    for _ in 0..2 {
        let nak = pair.ack(1, 0x60, 0);
        pair.hosts[0].turn(pair.now);
        pair.tell(0, &nak);
    }
    assert_eq!(
        sentence(&mut pair, 0),
        "the peer asked 2 times for PSN 0x0a0000 in 0 ns: that packet is lost each time; can packets of path MTU 4096 \
         pass between 10.0.0.1 and 10.0.0.2?"
    );
}

#[test]
fn a_refused_access_is_named_on_both_sides() {
    let mut pair = pair();
    let pd = pair.clients[1].pd;
    let key = pair.region(1, pd, 0, 4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE);
    pair.post(SendWqe { remote_addr: BASE + 4000, rkey: key, ..pair.wqe(7, WrOpcode::RdmaWrite) }, 100);
    pair.exchange();
    assert_eq!(
        sentence(&mut pair, 0),
        format!(
            "the peer refused the RDMA_WRITE of 100 bytes at {:#x} with R_Key {key:#x} (wr_id 7): wrong R_Key, range, right \
             or protection domain there",
            BASE + 4000
        )
    );
    let there = why(&mut pair, 1);
    assert_eq!(
        there.summary.sentence,
        format!(
            "the peer tried a forbidden access: RDMA WRITE of 100 bytes at {:#x} with R_Key {key:#x}: it reaches outside \
             the region",
            BASE + 4000
        )
    );
    assert_eq!(there.refused.map(|refused| refused.rkey), Some(key));
}

#[test]
fn each_fault_of_a_key_has_its_reason() {
    let reasons: [Case<u32>; 3] = [
        ("no region has this R_Key", |pair| pair.clients[1].key ^ 0x55),
        ("the region belongs to another protection domain than the QP", |pair| {
            let pd = pair.pd(1);
            pair.region(1, pd, 0, 4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)
        }),
        ("the region does not grant the right", |pair| {
            let pd = pair.clients[1].pd;
            pair.region(1, pd, 0, 4096, AccessFlags::LOCAL_WRITE)
        }),
    ];
    for (reason, key) in reasons {
        let mut pair = pair();
        let key = key(&mut pair);
        let write = pair.packet(0, Opcode::RC_WRITE_ONLY, 0).reth(BASE, key, 4).bytes(4);
        pair.tell(1, &write);
        assert_eq!(why(&mut pair, 1).refused.unwrap().reason, reason);
    }
}

#[test]
fn errors_of_a_work_request_name_it() {
    let mut pair = pair();
    let sge = shm::layout::Sge { addr: BASE, length: 8, lkey: 0x1234 };
    let wqe = write_to(&pair, 3);
    pair.qps[0].post(wqe, &[sge]);
    pair.exchange();
    let said = sentence(&mut pair, 0);
    assert!(said.starts_with("an L_Key does not exist, in the RDMA_WRITE of 0 bytes at "), "{said}");
    assert!(said.ends_with("(wr_id 3)"), "{said}");
}

#[test]
fn the_application_s_own_error_leaves_nothing() {
    let mut pair = pair();
    pair.go_to(0, QpState::Err);
    let qpn = pair.qps[0].qpn;
    let Reply::Refused { errno, message } = pair.ask(0, Request::WhyQp { qpn }) else { panic!() };
    assert_eq!((errno, message), (2, format!("no QP {qpn:#08x} has broken by itself, as far as is remembered")));
    assert_eq!(pair.ask(0, Request::ListPostMortems), Reply::PostMortems(vec![]));
}

/// A session of another process on the pair's first host.
fn session_of(host: &mut Host, uid: u32) -> u32 {
    let session = host.control.open_session(Peer { pid: 99, uid }).unwrap();
    let hello = Request::Hello { abi_version: shm::ABI_VERSION, client_name: "operator".to_owned() };
    host.request(session, hello, vec![]);
    session
}

#[test]
fn a_post_mortem_outlives_qp_and_client_and_is_for_its_user_and_root() {
    let mut pair = pair();
    let qpn = pair.qps[0].qpn;
    pair.post(write_to(&pair, 1), 64);
    starve(&mut pair);
    let [same, root, other] = [1, 0, 2].map(|uid| session_of(&mut pair.hosts[0], uid));
    // A reset and a new life leave it as it is.
    pair.go_to(0, QpState::Reset);
    assert!(!why(&mut pair, 0).summary.destroyed);
    assert_eq!(pair.ask(0, Request::DestroyQp { qpn }), Reply::Done);
    let host = &mut pair.hosts[0];
    host.control.close_session(&mut host.shards, pair.clients[0].session);
    let mut ask = |session, request| host.request(session, request, vec![]).0;
    for session in [same, root] {
        let Reply::PostMortem(found) = ask(session, Request::WhyQp { qpn }) else { panic!() };
        let summary = &found.summary;
        assert_eq!(
            (summary.uid, summary.pid, summary.client_name.as_str(), summary.destroyed),
            (1, std::process::id(), "test", true)
        );
        let Reply::PostMortems(list) = ask(session, Request::ListPostMortems) else { panic!() };
        assert_eq!(list, std::slice::from_ref(summary));
    }
    let Reply::Refused { errno, message } = ask(other, Request::WhyQp { qpn }) else { panic!() };
    assert_eq!((errno, message), (1, format!("QP {qpn:#08x} was another user's: its user and root may read why")));
    assert_eq!(ask(other, Request::ListPostMortems), Reply::PostMortems(vec![]));
}

#[test]
fn the_store_is_bounded_and_keeps_the_newest() {
    let mut options = crate::support::HostOptions::new(1);
    options.limits.max_post_mortem = 2;
    let mut pair = Pair::with(Connect::default(), options, crate::support::HostOptions::new(2), 1 << 20);
    let qpn = pair.qps[0].qpn;
    for wr_id in 1..=3 {
        pair.go_to(0, QpState::Reset);
        let attr = attributes(pair.hosts[1].ip, pair.qps[1].qpn, pair.connect, 0);
        let session = pair.clients[0].session;
        for (state, mask) in [(QpState::Init, INIT), (QpState::Rtr, RTR), (QpState::Rts, RTS)] {
            let attr = shm::attr::QpAttr { qp_state: state, ..attr };
            modify(&mut pair.hosts[0], session, qpn, attr, mask).unwrap();
        }
        pair.qps[0].send.reset();
        pair.post(write_to(&pair, wr_id), 8);
        let nak = pair.ack(1, 0x62, 0);
        pair.hosts[0].turn(pair.now);
        pair.tell(0, &nak);
        pair.clients[0].poll();
    }
    assert_eq!(pair.counters(0).post_mortems_lost, 1);
    let Reply::PostMortems(list) = pair.ask(0, Request::ListPostMortems) else { panic!() };
    let shown: Vec<bool> = [3, 2].iter().zip(&list).map(|(n, s)| s.sentence.contains(&format!("wr_id {n}"))).collect();
    assert_eq!((list.len(), shown), (2, vec![true, true]));
    let Reply::PostMortem(newest) = pair.ask(0, Request::WhyQp { qpn }) else { panic!() };
    assert_eq!(newest.request.map(|request| request.wr_id), Some(3));
}
