//! Commands that ask a daemon.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use shm::attr::{
    AccessFlags, AhAttr, DeviceAttr, GidEntry, GidType, PortAttr, QpAttr, QpCap, QpState, QpType, RecoveryPolicy,
    WrOpcode,
};
use shm::clock::DeviceClock;
use shm::control::post_mortem::{
    FailedRequest, LastNak, PathSeen, PeerAttr, PostMortem, PostMortemSummary, Psns, RefusedAccess, Retries, Rtt,
};
use shm::control::{MrSummary, MrTier, QpDetail, QpSummary, Reply, Request, SessionSummary, Stats};
use shm::qos::{PfcBy, PortQos, PriorityState, QosChange, QosSettings};
use wire::{Gid, MacAddr};

use crate::fake_daemon::{FakeDaemon, hello};
use crate::{Run, ferroce};

pub(crate) fn ask(daemon: &FakeDaemon, args: &[&str]) -> Run {
    ask_at(&daemon.socket(), args)
}

fn ask_at(socket: &Path, args: &[&str]) -> Run {
    ferroce(args.iter().map(Path::new).chain([Path::new("--socket"), socket]))
}

/// The text of a run that went well.
pub(crate) fn text(daemon: &FakeDaemon, args: &[&str]) -> String {
    let run = ask(daemon, args);
    assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{args:?}");
    run.stdout
}

/// The one JSON object of a run that went well.
pub(crate) fn json(daemon: &FakeDaemon, args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&text(daemon, args)).expect("one JSON object")
}

fn device() -> DeviceAttr {
    DeviceAttr {
        name: "ferroce0".to_owned(),
        node_guid: 0x5054_00ff_feab_000a,
        fw_ver: "0.1.0".to_owned(),
        max_mr_size: 1 << 40,
        max_qp: 65_536,
        max_qp_wr: 16_384,
        max_sge: 16,
        max_inline_data: 256,
        max_cq: 16_384,
        max_cqe: 1 << 20,
        max_mr: 65_536,
        max_pd: 4_096,
        max_qp_rd_atom: 16,
        max_qp_init_rd_atom: 15,
        max_srq: 1_024,
        max_srq_wr: 16_383,
        max_srq_sge: 8,
        max_memory_bytes: 1 << 38,
        phys_port_cnt: 2,
        num_comp_vectors: 2,
        max_ah: 65_536,
        max_mcast_attach: 4_096,
        clock: DeviceClock::Private,
    }
}

fn port(number: u8) -> PortAttr {
    PortAttr {
        active: number == 1,
        max_mtu: 5,
        active_mtu: if number == 1 { 3 } else { 0 },
        gid_tbl_len: 16,
        pkey_tbl_len: 1,
        max_msg_sz: 1 << 31,
        speed_mbps: if number == 1 { 100_000 } else { 0 },
        mac: MacAddr([0x52, 0x54, 0, 0xab, 0, 9 + number]),
        interface_mtu: 1_500,
        driver: "net_af_packet".to_owned(),
        kernel_interface: (number == 1).then(|| "eth0".to_owned()),
    }
}

fn gids() -> Vec<GidEntry> {
    let gid = |index, gid_type, ip: &str, vlan| GidEntry {
        gid: Gid::from_ip(ip.parse().expect("an address")),
        index,
        gid_type,
        vlan,
    };
    vec![gid(0, GidType::RoceV2, "10.77.0.10", None), gid(1, GidType::RoceV1, "fe80::5054:ff:feab:a", Some(77))]
}

fn summary(qpn: u32) -> QpSummary {
    QpSummary {
        qpn,
        qp_type: QpType::Rc,
        state: QpState::Rts,
        session: 3,
        pid: 4_711,
        shard: 1,
        dest_qpn: 0x1e,
        peer: "10.77.0.11".to_owned(),
        path_mtu: 3,
        sq_outstanding: 12,
    }
}

fn detail() -> QpDetail {
    let attr = QpAttr {
        qp_state: QpState::Err,
        path_mtu: 3,
        qkey: 0x1111_1111,
        rq_psn: 0x0b_0000,
        sq_psn: 0x0a_0007,
        dest_qp_num: 0x1e,
        qp_access_flags: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
        cap: QpCap { max_send_wr: 128, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 2, max_inline_data: 220 },
        ah_attr: AhAttr { dgid: gids()[0].gid, hop_limit: 64, traffic_class: 106, port_num: 1, ..AhAttr::default() },
        max_rd_atomic: 4,
        max_dest_rd_atomic: 16,
        min_rnr_timer: 12,
        port_num: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    QpDetail {
        summary: QpSummary { state: QpState::Err, ..summary(0x27) },
        attr,
        recovery: RecoveryPolicy::Hybrid,
        figures: vec![("next_psn".to_owned(), 0x0a_0009), ("retransmitted_packets".to_owned(), 123_456)],
        error: Some("no answer to PSN 0x0a0007 after 7 retries".to_owned()),
    }
}

fn post_mortem_summary(qpn: u32) -> PostMortemSummary {
    PostMortemSummary {
        qpn,
        qp_type: QpType::Rc,
        dest_qpn: 0x1e,
        peer: "10.77.0.11".to_owned(),
        session: 3,
        pid: 4_711,
        uid: 1_000,
        client_name: "evil\u{1b}[2J".to_owned(),
        age_ms: 65_400,
        destroyed: qpn != 0x27,
        vendor_err: 2,
        sentence: "no answer to 8 transmissions in 536 ms: the peer's QPN may be gone".to_owned(),
    }
}

fn post_mortem() -> PostMortem {
    PostMortem {
        summary: post_mortem_summary(0x27),
        state: QpState::Rts,
        attr: detail().attr,
        peer: Some(PeerAttr {
            qpn: 0x1e,
            starting_psn: 0x0b_0000,
            path_mtu: 3,
            responder_resources: 4,
            initiator_depth: 16,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
        }),
        psns: Psns { unacknowledged: 0x0a_0007, next: 0x0a_0007, sent_end: 0x0a_0009, expected: 0x0b_0000, msn: 3 },
        last_nak: Some(LastNak { syndrome: 0x60, text: "NAK PSN sequence error".to_owned(), psn: 0x0a_0004 }),
        retries: Retries { timeouts: 8, waited_ns: 536_870_912, ..Retries::default() },
        rtt: Some(Rtt { smoothed_ns: 14_321, min_ns: 9_876, last_ns: 15_000 }),
        heard_ago_ns: Some(600_000_000),
        others_heard_ago_ns: None,
        path: Some(PathSeen {
            src_mac: port(1).mac,
            dst_mac: MacAddr::ZERO,
            src_ip: "10.77.0.10".parse().unwrap(),
            dst_ip: "10.77.0.11".parse().unwrap(),
            local: false,
            udp_src_port: 49_700,
            traffic_class: 106,
            vlan: None,
            path_mtu: 1024,
            interface_mtu: 1500,
        }),
        request: Some(FailedRequest {
            wr_id: 9,
            opcode: WrOpcode::RdmaWrite,
            length: 4096,
            remote_addr: 0x7f00_0000,
            rkey: 0x1234,
        }),
        refused: Some(RefusedAccess {
            operation: "RDMA READ".to_owned(),
            addr: 0x1000,
            length: 8,
            rkey: 0x55,
            reason: "no region has this R_Key".to_owned(),
        }),
        counters: vec![("tx_requests".to_owned(), 17)],
    }
}

fn session(number: u32, name: &str) -> SessionSummary {
    SessionSummary {
        session: number,
        client_name: name.to_owned(),
        pid: 4_711,
        uid: 1_000,
        qp_count: 2,
        cq_count: 1,
        mr_count: 3,
        memory_bytes: 1 << 30,
        ring_bytes: 98_304,
    }
}

/// Counters `ticks` tenths of a second after a start an hour ago.
fn stats(ticks: u64) -> Stats {
    let group = |name: &str, counters: &[(&str, u64)]| {
        (name.to_owned(), counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect())
    };
    Stats {
        device: "ferroce0".to_owned(),
        uptime_ms: 3_600_000 + ticks * 100,
        groups: vec![
            group(
                "shard 0",
                &[("tx_roce_packets", 500 + ticks * 1_000), ("tx_roce_bytes", ticks * 125_000_000), ("timeouts", 3)],
            ),
            group("port 1", &[("rx_malformed_packets", 0)]),
        ],
    }
}

/// A daemon with one device of two ports, three QPs and two sessions.
fn daemon() -> FakeDaemon {
    FakeDaemon::start(|request| {
        Some(match request {
            Request::Hello { .. } => hello(),
            Request::QueryDevice => Reply::Device(device()),
            Request::QueryPort { port_num } => Reply::Port(port(port_num)),
            Request::QueryGids { port_num } => Reply::Gids(if port_num == 1 { gids() } else { Vec::new() }),
            Request::Stats => Reply::Stats(stats(0)),
            Request::ListQps { after: None } => Reply::Qps { qps: vec![summary(0x27), summary(0x28)], more: true },
            Request::ListQps { after: Some(0x28) } => {
                let unconnected = QpSummary {
                    state: QpState::Init,
                    peer: String::new(),
                    path_mtu: 0,
                    dest_qpn: 0,
                    ..summary(0x10_0001)
                };
                Reply::Qps { qps: vec![unconnected], more: false }
            }
            Request::QpDetail { qpn: 0x27 } => Reply::QpDetail(Box::new(detail())),
            Request::QpDetail { qpn } => Reply::Refused { errno: 2, message: format!("there is no QP {qpn:#08x}") },
            Request::SetRecovery { qpn: 0x27, policy: RecoveryPolicy::SelectiveRepeat } => Reply::Done,
            Request::WhyQp { qpn: 0x27 } => Reply::PostMortem(Box::new(post_mortem())),
            Request::WhyQp { qpn } => Reply::Refused { errno: 2, message: format!("no QP {qpn:#08x} has broken") },
            Request::ListPostMortems => Reply::PostMortems(vec![post_mortem_summary(0x27), post_mortem_summary(0x31)]),
            Request::ListSessions => Reply::Sessions(vec![session(3, "pingpong"), session(12, "evil\u{1b}[2J\n")]),
            other => panic!("the tool must not ask for {other:?}"),
        })
    })
}

#[test]
fn a_policy_of_loss_recovery_is_set_and_what_became_of_it_is_shown() {
    let daemon = daemon();
    let shown = text(&daemon, &["qp", "set", "0x27", "--recovery", "sr"]);
    assert!(shown.lines().any(|line| line.split_whitespace().eq(["recovery", "hybrid"])), "{shown}");
    let refused = ask(&daemon, &["qp", "set", "0x27", "--recovery", "fast"]);
    assert!(refused.stderr.contains("gbn, sr and hybrid are possible"), "{}", refused.stderr);
}

#[test]
fn devinfo_text() {
    let daemon = daemon();
    insta::assert_snapshot!("devinfo", text(&daemon, &["devinfo"]));
    insta::assert_snapshot!("devinfo_verbose", text(&daemon, &["devinfo", "-v"]));
}

#[test]
fn devinfo_json_has_ports_gids_and_limits() {
    let info = json(&daemon(), &["devinfo", "--json"]);
    assert_eq!(info["hca_id"], "ferroce0");
    assert_eq!(info["limits"]["max_mr_size"], 1_u64 << 40);
    assert_eq!(info["ports"][0]["active_mtu"], 1024);
    assert_eq!(info["ports"][0]["gids"][0]["ip"], "10.77.0.10");
    assert_eq!(info["ports"][1]["state"], "PORT_DOWN");
    assert_eq!(info["ports"][1]["interface"], serde_json::Value::Null);
    assert_eq!(info["ports"].as_array().map(Vec::len), Some(2));
}

#[test]
fn qp_list_goes_through_all_pages() {
    let daemon = daemon();
    insta::assert_snapshot!("qp_list", text(&daemon, &["qp"]));
    let list = json(&daemon, &["--json", "qp"]);
    let qpns: Vec<_> = list["qps"].as_array().expect("a list").iter().map(|qp| qp["qpn"].as_u64()).collect();
    assert_eq!(qpns, [Some(0x27), Some(0x28), Some(0x10_0001)]);
}

#[test]
fn qp_list_that_does_not_advance_is_refused() {
    let daemon = FakeDaemon::start(|request| {
        Some(match request {
            Request::Hello { .. } => hello(),
            _ => Reply::Qps { qps: vec![summary(0x27)], more: true },
        })
    });
    let run = ask(&daemon, &["qp"]);
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("list QPs"), "{}", run.stderr);
}

#[test]
fn qp_in_full() {
    let daemon = daemon();
    let by_hex = text(&daemon, &["qp", "0x27"]);
    insta::assert_snapshot!("qp_detail", by_hex);
    assert_eq!(text(&daemon, &["qp", "39"]), by_hex);
    assert_eq!(text(&daemon, &["qp", "show", "39"]), by_hex);
    assert_eq!(text(&daemon, &["qp", "show"]), text(&daemon, &["qp"]));
    let qp = json(&daemon, &["qp", "39", "--json"]);
    assert_eq!(qp["figures"]["retransmitted_packets"], 123_456);
    assert_eq!(qp["attr"]["access"], serde_json::json!(["REMOTE_WRITE", "REMOTE_READ"]));
    assert_eq!(qp["error"], "no answer to PSN 0x0a0007 after 7 retries");
}

#[test]
fn qp_unknown_exits_2_with_the_daemons_sentence() {
    let run = ask(&daemon(), &["qp", "0x99"]);
    assert_eq!(run.status, 2);
    assert_eq!(run.stderr, "ferroce: there is no QP 0x000099\n");
}

#[test]
fn qp_why_tells_the_newest_and_one_in_full() {
    let daemon = daemon();
    insta::assert_snapshot!("qp_why_list", text(&daemon, &["qp", "why"]));
    insta::assert_snapshot!("qp_why", text(&daemon, &["qp", "why", "0x27"]));
    let list = json(&daemon, &["qp", "why", "--json"]);
    assert_eq!(list["post_mortems"][1]["destroyed"], true);
    let one = json(&daemon, &["--json", "qp", "why", "39"]);
    assert_eq!((&one["retries"]["timeouts"], &one["path"]["udp_src_port"]), (&8.into(), &49_700.into()));
    assert_eq!((&one["path"]["dst_mac"], &one["peer_attr"]["timeout"]), (&serde_json::Value::Null, &14.into()));
    let run = ask(&daemon, &["qp", "why", "0x99"]);
    assert_eq!((run.status, run.stderr.as_str()), (2, "ferroce: no QP 0x000099 has broken\n"));
}

#[test]
fn res_escapes_what_clients_call_themselves() {
    let daemon = daemon();
    insta::assert_snapshot!("res", text(&daemon, &["res"]));
    assert_eq!(json(&daemon, &["res", "--json"])["sessions"][1]["session"], 12);
}

#[test]
fn res_mr_lists_regions_page_by_page() {
    let daemon = FakeDaemon::start(|request| {
        let mr = |number, tier| MrSummary {
            session: 12,
            number,
            pid: 4_711,
            pd: 2,
            addr: 0x7f00_0000_1000,
            length: 4096,
            access: AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ,
            tier,
            mapped_bytes: if tier == MrTier::Process { 0 } else { 4096 },
        };
        Some(match request {
            Request::ListMrs { after: None } => Reply::Mrs { mrs: vec![mr(1, MrTier::Process)], more: true },
            Request::ListMrs { after: Some((12, 1)) } => Reply::Mrs { mrs: vec![mr(9, MrTier::Mapped)], more: false },
            _ => hello(),
        })
    });
    insta::assert_snapshot!("res_mr", text(&daemon, &["res", "mr"]));
    assert_eq!(json(&daemon, &["res", "mr", "--json"])["mrs"][1]["tier"], "Mapped");
}

#[test]
fn stat_once() {
    let daemon = daemon();
    insta::assert_snapshot!("stat", text(&daemon, &["stat"]));
    let stat = json(&daemon, &["stat", "--json"]);
    assert_eq!(stat["groups"]["shard 0"]["tx_roce_packets"], 500);
    assert_eq!(stat["uptime_ms"], 3_600_000);
    assert!(stat.get("per_s").is_none());
}

/// Answers three times with rising counters, then dies.
fn dying_daemon() -> FakeDaemon {
    let mut ticks = 0;
    FakeDaemon::start(move |request| match request {
        Request::Stats if ticks == 3 => None,
        Request::Stats => {
            ticks += 1;
            Some(Reply::Stats(stats(ticks - 1)))
        }
        _ => Some(hello()),
    })
}

#[test]
fn stat_watch_prints_rates_until_the_daemon_dies() {
    let run = ask(&dying_daemon(), &["stat", "--watch", "0.1"]);
    assert_eq!((run.status, run.stderr.as_str()), (2, "ferroce: the daemon has gone\n"));
    insta::assert_snapshot!("stat_watch", run.stdout);
}

#[test]
fn stat_watch_json_is_an_object_a_line() {
    let run = ask(&dying_daemon(), &["stat", "--watch", "0.1", "--json"]);
    assert_eq!(run.status, 2);
    let lines = run.json_lines();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].get("per_s").is_none(), "there is nothing to compare the first sample with");
    assert_eq!(lines[2]["interval_ms"], 100);
    assert_eq!(lines[2]["per_s"]["shard 0"]["tx_roce_packets"], 10_000.0);
    assert_eq!(lines[2]["groups"]["shard 0"]["tx_roce_packets"], 2_500);
}

#[test]
fn no_daemon_exits_2_and_says_how_to_start_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("none.sock");
    let run = ask_at(&socket, &["devinfo"]);
    assert_eq!((run.status, run.stdout.as_str()), (2, ""));
    let start = format!("`ferroced --socket {}`", socket.display());
    assert!(run.stderr.contains(&start.replace('`', "")) && run.stderr.contains("FERROCE_SOCKET"), "{}", run.stderr);
}

#[test]
fn socket_comes_from_the_environment_unless_an_argument_says_otherwise() {
    let daemon = daemon();
    let status = |args: &[&str], variable: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferroce"));
        command.args(args).env("FERROCE_SOCKET", variable).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().expect("the tool starts").code()
    };
    let socket = daemon.socket();
    assert_eq!(status(&["res"], &socket), Some(0));
    assert_eq!(status(&["res"], Path::new("/nowhere")), Some(2));
    let argument = format!("--socket={}", socket.display());
    assert_eq!(status(&["res", &argument], Path::new("/nowhere")), Some(0));
}

#[test]
fn socket_path_too_long_is_refused() {
    let run = ask_at(Path::new(&"x".repeat(200)), &["stat"]);
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("File name too long"), "{}", run.stderr);
}

#[test]
fn other_abi_version_is_named() {
    let refusing = FakeDaemon::start(|_| Some(Reply::Refused { errno: 71, message: "speak version 9".to_owned() }));
    let run = ask(&refusing, &["res"]);
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("speak version 9"), "{}", run.stderr);

    let newer =
        FakeDaemon::start(|_| Some(Reply::Hello { abi_version: 99, session: 1, device: DeviceAttr::default() }));
    let run = ask(&newer, &["res"]);
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("version 99"), "{}", run.stderr);
}

#[test]
fn answer_to_another_question_exits_2() {
    let daemon =
        FakeDaemon::start(|request| Some(if matches!(request, Request::Hello { .. }) { hello() } else { Reply::Done }));
    for args in [
        &["devinfo"][..],
        &["stat"],
        &["qp"],
        &["qp", "1"],
        &["qp", "why"],
        &["qp", "why", "1"],
        &["res"],
        &["res", "mr"],
    ] {
        let run = ask(&daemon, args);
        assert_eq!(run.status, 2, "{args:?}");
        assert!(run.stderr.contains("another question"), "{args:?}: {}", run.stderr);
    }
}

#[test]
fn silent_daemon_is_not_waited_for_without_end() {
    let daemon = FakeDaemon::start(|_| {
        thread::sleep(Duration::from_secs(60));
        None
    });
    let run = ask(&daemon, &["stat"]);
    assert_eq!((run.status, run.stderr.as_str()), (2, "ferroce: the daemon did not answer within 5 s\n"));
}

/// Ports as the engine has them, with a change that says what was asked for.
fn port_qos(change: &QosChange) -> PortQos {
    let counters = |n: u64| [("rx_packets", 10 * n), ("tx_packets", 11 * n), ("rx_pause", n), ("tx_pause", 2 * n)];
    let counters = |n| counters(n).map(|(name, count)| (name.to_owned(), count)).to_vec();
    let state = |n: u64| PriorityState { paused: n == 3, pausing: n == 4, ignoring: n == 5, counters: counters(n) };
    let settings = QosSettings::default().changed(change).unwrap();
    PortQos { port_num: 1, settings, pfc_by: PfcBy::Engine, priorities: (0..8).map(state).collect() }
}

#[test]
fn qos_is_shown_and_set() {
    let daemon = FakeDaemon::start(|request| {
        Some(match request {
            Request::Hello { .. } => hello(),
            Request::ShowQos { port_num: None } => Reply::Qos(vec![port_qos(&QosChange::default())]),
            Request::SetQos { port_num: Some(1), change } => Reply::Qos(vec![port_qos(&change)]),
            Request::SetQos { .. } => Reply::Refused { errno: 1, message: "user 7 may not change settings".to_owned() },
            other => panic!("{other:?}"),
        })
    });
    insta::assert_snapshot!("qos_show", text(&daemon, &["qos", "show"]));
    assert_eq!(text(&daemon, &["qos"]), text(&daemon, &["qos", "show"]));
    let set =
        ["qos", "set", "--port", "1", "--dscp2prio", "set,26,5", "--pfc", "0,0,0,1,0,0,0,0", "pfc_xoff_frames=99"];
    let shown = text(&daemon, &set);
    assert!(shown.contains("pfc_xoff_frames            99"), "{shown}");
    let object = json(&daemon, &[&["--json"], &set[..]].concat());
    assert_eq!(
        (&object["pfc"][3], &object["pfc_xoff_frames"], &object["dscp_to_priority"][26]),
        (&true.into(), &99.into(), &5.into())
    );
    assert_eq!(object["priorities"][3]["counters"]["rx_packets"], 30);
    let refused = ask(&daemon, &["qos", "set", "--trust", "pcp"]);
    assert_eq!(refused.status, 1);
    assert!(refused.stderr.contains("user 7 may not change settings"), "{}", refused.stderr);
}
