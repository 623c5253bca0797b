//! `ferroce cc`.

use shm::attr::DeviceAttr;
use shm::control::congestion::{CongestionChange, CongestionParam, CongestionReport, CongestionTarget};
use shm::control::{Reply, Request};

use crate::fake_daemon::{FakeDaemon, hello};
use crate::questions::{ask, json, text};

/// What a daemon says of a port or a QP whose settings were changed so.
fn report(target: CongestionTarget, change: &CongestionChange) -> Reply {
    let param = |name: &str, default: &str, range: &str, meaning: &str| {
        let changed = change.values.iter().rfind(|(changed, _)| changed == name);
        CongestionParam {
            name: name.to_owned(),
            value: changed.map_or(default, |(_, value)| value).to_owned(),
            default: default.to_owned(),
            range: range.to_owned(),
            meaning: meaning.to_owned(),
        }
    };
    let (port_num, qpn) = match target {
        CongestionTarget::Port(port_num) => (port_num, None),
        CongestionTarget::Qp(qpn) => (2, Some(qpn)),
    };
    let figures = [("cc_rate_bps", 40_000_000), ("cc_alpha_thousandths", 312)];
    Reply::Congestion(Box::new(CongestionReport {
        port_num,
        qpn,
        is_own: qpn.is_some() && *change != CongestionChange::default(),
        algorithm: change.algorithm.clone().unwrap_or_else(|| "dcqcn-nvidia".to_owned()),
        params: vec![
            param("rate_limit", "0", "1Mbps to 400Gbps, or 0 = the port's speed", "fastest that a QP may send"),
            param("cnp_dscp", "48", "0 to 63", "DSCP of CNPs"),
            param("rai", "5Mbps", "1Mbps to 100Gbps", "additive increase of the target rate"),
        ],
        figures: if qpn.is_some() { figures.map(|(name, value)| (name.to_owned(), value)).to_vec() } else { vec![] },
    }))
}

/// A daemon with two ports and a QP 0x27 with settings of its own, which anybody may change; the ports nobody.
fn daemon() -> FakeDaemon {
    let mut own = CongestionChange { algorithm: Some("swift".to_owned()), values: vec![] };
    FakeDaemon::start(move |request| {
        let target = match &request {
            Request::Hello { .. } => return Some(hello()),
            Request::QueryDevice => {
                return Some(Reply::Device(DeviceAttr { phys_port_cnt: 2, ..DeviceAttr::default() }));
            }
            Request::ShowCongestion { target }
            | Request::SetCongestion { target, .. }
            | Request::ResetCongestion { target } => *target,
            other => panic!("the tool must not ask for {other:?}"),
        };
        Some(match (target, request) {
            (CongestionTarget::Qp(qpn), _) if qpn != 0x27 => {
                Reply::Refused { errno: 2, message: format!("QP {qpn:#08x} does not exist") }
            }
            (CongestionTarget::Port(_), Request::ShowCongestion { .. }) => report(target, &CongestionChange::default()),
            (CongestionTarget::Port(_), _) => {
                Reply::Refused { errno: 1, message: "user 7 may not: root and the daemon's user, 0, may".to_owned() }
            }
            (_, Request::SetCongestion { change, .. }) => {
                own = change;
                report(target, &own)
            }
            (_, Request::ResetCongestion { .. }) => {
                own = CongestionChange::default();
                report(target, &own)
            }
            _ => report(target, &own),
        })
    })
}

#[test]
fn all_ports_are_shown_or_what_is_named() {
    let daemon = daemon();
    insta::assert_snapshot!("cc_show", text(&daemon, &["cc", "show"]));
    insta::assert_snapshot!("cc_show_qp", text(&daemon, &["cc", "show", "--qp", "0x27"]));
    let ports = &json(&daemon, &["--json", "cc", "show"])["congestion"];
    assert_eq!(ports.as_array().map(Vec::len), Some(2));
    assert_eq!((&ports[1]["port_num"], &ports[1]["qpn"]), (&2.into(), &serde_json::Value::Null));
    assert_eq!(ports[0]["params"]["rai"]["value"], "5Mbps");
    assert_eq!(text(&daemon, &["cc", "--qp", "0x27"]), text(&daemon, &["cc", "show", "--qp", "0x27"]));
    assert_eq!(json(&daemon, &["--json", "cc", "show", "--port", "2"])["congestion"][0]["port_num"], 2);
}

#[test]
fn a_qp_is_given_settings_of_its_own_and_its_ports_again() {
    let daemon = daemon();
    let set = ["cc", "set", "rai=40Mbps", "dcqcn-paper", "cnp_dscp=46", "--qp", "39"];
    let shown = text(&daemon, &set);
    assert!(shown.starts_with("QP 0x000027 on port 2: dcqcn-paper, its own settings\n"), "{shown}");
    let has = |shown: &str, start: [&str; 3]| shown.lines().any(|line| line.split_whitespace().take(3).eq(start));
    assert!(has(&shown, ["rai", "40Mbps", "5Mbps"]) && has(&shown, ["cnp_dscp", "46", "48"]), "{shown}");
    let object = &json(&daemon, &[&["--json"], &set[..]].concat())["congestion"][0];
    assert_eq!((&object["qpn"], &object["is_own"]), (&0x27.into(), &true.into()));
    assert_eq!(object["figures"]["cc_rate_bps"], 40_000_000);
    let shown = text(&daemon, &["cc", "reset", "--qp", "39"]);
    assert!(shown.starts_with("QP 0x000027 on port 2: dcqcn-nvidia, its port's settings\n"), "{shown}");
    assert!(has(&shown, ["rai", "5Mbps", "5Mbps"]), "{shown}");
    let object = &json(&daemon, &["--json", "cc", "reset", "--qp", "39"])["congestion"][0];
    assert_eq!(object["is_own"], false);
}

#[test]
fn what_the_daemon_refuses_is_said_in_its_words() {
    let daemon = daemon();
    for (args, status, sentence) in [
        (&["cc", "set", "dcqcn-paper", "--port", "1"][..], 1, "user 7 may not"),
        (&["cc", "set", "rai=40Mbps"], 1, "user 7 may not"),
        (&["cc", "reset"], 1, "user 7 may not"),
        (&["cc", "show", "--qp", "0x28"], 2, "QP 0x000028 does not exist"),
        (&["cc", "reset", "--qp", "0x28"], 2, "QP 0x000028 does not exist"),
    ] {
        let run = ask(&daemon, args);
        assert_eq!((run.status, run.stdout.as_str()), (status, ""), "{args:?}: {}", run.stderr);
        assert!(run.stderr.contains(sentence), "{args:?}: {}", run.stderr);
    }
}

#[test]
fn what_cannot_be_meant_is_not_asked_for() {
    let daemon = FakeDaemon::start(|request| match request {
        Request::Hello { .. } => Some(hello()),
        other => panic!("the tool must not ask for {other:?}"),
    });
    for (args, named) in [
        (&["cc", "set"][..], "ALGORITHM"),
        (&["cc", "set", "dcqcn", "swift", "--port", "1"], "\"swift\" is no NAME=VALUE"),
        (&["cc", "show", "--port", "0"], "1..=255"),
        (&["cc", "show", "--port", "1", "--qp", "2"], "cannot be used with"),
        (&["cc", "reset", "--qp", "0x1000000"], "0 to 0xffffff"),
    ] {
        let run = ask(&daemon, args);
        assert_eq!((run.status, run.stdout.as_str()), (2, ""), "{args:?}: {}", run.stderr);
        assert!(run.stderr.contains(named), "{args:?}: {}", run.stderr);
    }
}
