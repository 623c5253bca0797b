//! The program as its users run it: every test between two engines in one process, and both roles against each other.

use std::io::Read as _;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

const TESTS: [&str; 8] =
    ["write_bw", "write_lat", "read_bw", "read_lat", "send_bw", "send_lat", "atomic_bw", "atomic_lat"];

fn perf(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroce-perf"));
    command.args(arguments.split_ascii_whitespace());
    command
}

fn output(arguments: &str) -> Output {
    perf(arguments).output().unwrap()
}

/// The JSON objects that a run prints; it must succeed.
fn json(arguments: &str) -> Vec<Value> {
    let output = output(arguments);
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no {key} in {value}"))
}

#[test]
fn every_test_runs_on_one_thread_and_has_its_numbers() {
    for test in TESTS {
        let reports = json(&format!("{test} --embedded --single-thread -n 1000 --json"));
        let [report] = &reports[..] else { panic!("{reports:?}") };
        assert_eq!(report["test"], test);
        assert_eq!(report["verified"], true);
        assert_eq!(report["iterations"], 1000);
        assert!(number(report, "msg_per_s") > 0.0 && number(report, "gbit_per_s") > 0.0);
        let [p50, p99, p999] = ["p50_ns", "p99_ns", "p999_ns"].map(|key| number(report, key));
        assert!(0.0 < p50 && p50 <= p99 && p99 <= p999, "{report}");
        if test.ends_with("_bw") {
            let ratio = number(report, "msg_per_s") / number(report, "floor_msg_per_s");
            assert!((number(report, "ratio") - ratio).abs() < 1e-9 && number(report, "floor_gbit_per_s") > 0.0);
        } else {
            assert!(report["ratio"].is_null() && report["floor_msg_per_s"].is_null());
        }
        assert_eq!(report["settings"]["mode"], "single_thread");
        assert!(report["machine"]["cores"].as_u64().unwrap() >= 1);
    }
}

#[test]
fn unreliable_services_run_in_every_test_that_they_have() {
    for arguments in [
        "write_bw -c UC -q 2 -s 9000",
        "write_bw -c UC -b",
        "write_lat -c UC",
        "send_bw -c UC -s 5000",
        "send_bw -c uc -b -I 64 -s 64",
        "send_lat -c UC -s 6000",
        "send_bw -c UD",
        "send_bw -c UD -q 3 -s 1 -I 64 -b",
        "send_bw -c UD -s 4096 -m 4096",
        "send_lat -c UD",
        "send_lat -c UD -s 700",
    ] {
        let reports = json(&format!("{arguments} --embedded --single-thread -n 1000 --json"));
        let report = &reports[0];
        assert_eq!(report["verified"], true, "{arguments}");
        assert!(number(report, "msg_per_s") > 0.0 && number(report, "p50_ns") > 0.0, "{arguments}: {report}");
        // One thread gives both sides their turns in time: nothing is lost.
        assert_eq!(report["lost"], 0, "{arguments}");
        assert!(["UC", "UD"].contains(&report["settings"]["connection"].as_str().unwrap()));
        assert_eq!(report["ratio"].is_null(), arguments.contains("_lat"), "{arguments}");
    }
    let sizes = json("send_bw -c UD -a -n 40 --embedded --single-thread --json --no-floor");
    assert_eq!(sizes.last().unwrap()["bytes"], 4096);
}

#[test]
fn unreliable_messages_between_threads_arrive_right_or_are_counted_as_lost() {
    for arguments in
        ["write_bw -c UC -s 3000", "send_bw -c UC -s 3000", "send_bw -c UD", "send_lat -c UD", "write_lat -c UC"]
    {
        let reports = json(&format!("{arguments} -n 500 --embedded --json --no-floor"));
        let arrived = number(&reports[0], "iterations") + number(&reports[0], "lost");
        assert_eq!((arrived, &reports[0]["verified"]), (500.0, &true.into()), "{arguments}");
    }
}

#[test]
fn connections_are_counted_and_timed() {
    let reports = json("cm_rate --embedded -n 300 -o 5 --json");
    let [report] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!(
        (&report["test"], &report["connections"], &report["outstanding"]),
        (&"cm_rate".into(), &300.into(), &5.into())
    );
    let per_s = 300.0 / number(report, "seconds");
    assert!((number(report, "connections_per_s") - per_s).abs() < 1e-6 * per_s);
    let [p50, p99] = ["connect_p50_us", "connect_p99_us"].map(|key| number(report, key));
    assert!(0.0 < p50 && p50 <= p99 && p99 < 1e6 * number(report, "seconds"), "{report}");
}

#[test]
fn several_qps_both_directions_and_inline_move_the_right_bytes() {
    for arguments in [
        "write_bw -q 3 -b -s 5000 -m 1024",
        "send_bw -q 3 -b -s 5000 -m 256",
        "read_bw -q 3 -b -s 5000 -o 2",
        "write_bw -I 64 -s 64 -t 16 -Q 16 -l 1",
        "send_bw -I 64 -s 1 -r 8",
        "write_lat -s 1",
        "send_lat -s 300 -r 1 -t 16",
        "write_bw -t 1 -s 8M",
    ] {
        let reports = json(&format!("{arguments} --embedded --single-thread -n 40 --json --no-floor"));
        assert_eq!(reports[0]["verified"], true, "{arguments}");
    }
}

/// That the rate is reached too is a test of the engine in virtual time: here other work may keep the program from its core.
#[test]
fn a_rate_is_never_passed_whatever_the_algorithm() {
    for cc in ["", "none", "dcqcn-nvidia", "dcqcn-paper", "timely", "timely-original", "swift"] {
        for test in ["write_bw", "read_bw", "send_bw"] {
            let algorithm = if cc.is_empty() { String::new() } else { format!("--cc {cc}") };
            let run = format!("{test} --embedded --single-thread -s 32K -n 64 --rate 200Mbps {algorithm}");
            let report = &json(&format!("{run} --json --no-floor"))[0];
            assert_eq!(report["verified"], true, "{run}");
            // 64 messages, of which a burst and one message more (a READ is asked for whole) may have gone at once.
            let most = 0.2 * 64.0 / 62.0;
            let found = number(report, "gbit_per_s");
            assert!(0.0 < found && found < most, "{run}: {found} Gbit/s");
        }
    }
    let unlimited =
        number(&json("write_bw --embedded --single-thread -s 32K -n 640 --json --no-floor")[0], "gbit_per_s");
    assert!(unlimited > 0.2, "{unlimited} Gbit/s without a rate: the test shows nothing");
}

#[test]
fn all_sizes_give_a_line_each_and_time_is_kept() {
    let reports = json("write_bw -a -D 0.05 --rounds 1 --embedded --single-thread --json --no-floor");
    let sizes: Vec<u64> = reports.iter().map(|report| report["bytes"].as_u64().unwrap()).collect();
    assert_eq!(sizes, (1..=23).map(|log2| 1 << log2).collect::<Vec<u64>>());
    assert!(reports.iter().all(|report| report["floor_msg_per_s"].is_null()));
}

#[test]
fn two_threads_of_engines_move_the_right_bytes() {
    for test in ["write_bw", "read_lat", "send_bw -b", "write_lat", "send_lat"] {
        let reports = json(&format!("{test} -s 3000 -n 200 --embedded --json"));
        assert_eq!((&reports[0]["settings"]["mode"], &reports[0]["verified"]), (&"embedded".into(), &true.into()));
    }
}

#[test]
fn idle_qps_are_counted_and_compared() {
    let reports = json("write_bw -s 64 -D 0.05 --rounds 1 --qps-idle 200 --embedded --single-thread --json --no-floor");
    let idle = &reports[0]["idle_qps"];
    assert_eq!(idle["count"], 200);
    assert!(
        number(idle, "ratio_to_alone") > 0.0 && idle["memory_bytes"][1].as_u64() > idle["memory_bytes"][0].as_u64()
    );
}

#[test]
fn memory_is_registered_and_the_time_is_told() {
    let reports = json("reg_mr -s 16M -n 5 --embedded --json");
    assert_eq!(reports[0]["bytes"], 16 << 20);
    assert!(number(&reports[0], "reg_mr_us") > 0.0 && number(&reports[0], "attach_ms") > 0.0);
}

#[test]
fn a_table_has_perftests_titles() {
    let text = String::from_utf8(output("write_lat --embedded --single-thread -n 100").stdout).unwrap();
    for title in ["#bytes", "#iterations", "t_min[usec]", "t_typical[usec]", "99.9% percentile[usec]"] {
        assert!(text.contains(title), "{text}");
    }
}

#[test]
fn the_demonstration_moves_a_file_and_measures() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![7; 3 << 20 | 5]).unwrap();
    let output = perf("demo").arg(file.path()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
    let sums: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("SHA-256 ")).collect();
    assert_eq!(sums.len(), 3, "{text}");
    assert!(sums.iter().all(|sum| sum[..64] == sums[0][..64]));
    for operation in ["WRITE", "READ", "SEND", "fetch and add"] {
        assert!(text.lines().any(|line| line.contains(&format!("│ {operation}"))), "{text}");
    }
}

#[test]
fn what_cannot_be_is_refused_in_a_sentence() {
    for (arguments, sentence) in [
        ("write_bw -Q 200 --embedded --single-thread", "-Q (--cq-mod) is 200: 1 to 128"),
        ("atomic_bw -s 64 --embedded --single-thread", "an atomic has 8 bytes"),
        ("read_bw -I 64 --embedded --single-thread", "READs and atomics bring data in"),
        ("read_bw -c UC --embedded --single-thread", "no READ and no atomics"),
        ("write_lat -c UD --embedded --single-thread", "it has SEND only"),
        ("send_bw -c UD -s 8192 --embedded --single-thread", "1 to 4096"),
        ("write_bw --socket /nonexistent/socket", "/nonexistent/socket"),
        ("write_bw --embedded --vdev tun0", "names no known driver"),
        ("write_bw -x 9 -n 1 --embedded --single-thread", "no GID with index 9"),
        ("demo /nonexistent/file", "/nonexistent/file"),
    ] {
        let output = output(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments}: {text}");
        assert!(text.starts_with("ferroce-perf: ") && text.contains(sentence), "{arguments}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

/// A process that does not outlive its test.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Whether it succeeded, and what it has said.
    fn end(mut self) -> (bool, String) {
        let status = self.0.wait().unwrap();
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (status.success(), text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has usually ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A TCP port that was free a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn two_processes_meet_over_memif() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("memif.sock");
    for test in ["write_bw -s 64", "send_lat", "send_bw -c UD -s 64", "write_lat -c UC"] {
        let port = free_port();
        let arguments = |role: &str, host: &str| {
            let vdev = format!("net_memif0,role={role},id=0,socket={},socket-abstract=no", socket.display());
            format!("{test} -n 500 --rounds 2 -p {port} --embedded --vdev {vdev} --json {host}")
        };
        let server = Running::start(perf(&arguments("server", "")));
        let (succeeded, text) = Running::start(perf(&arguments("client", "127.0.0.1"))).end();
        assert!(succeeded, "{test}: {text}");
        let (succeeded, server_text) = server.end();
        assert!(succeeded, "{test}: {server_text}");
        let json = text.lines().find(|line| line.starts_with('{')).expect(&text);
        let report: Value = serde_json::from_str(json).unwrap();
        let sent = number(&report, "iterations") + number(&report, "lost");
        assert_eq!((sent, &report["verified"]), (1000.0, &true.into()));
        assert_eq!(report["ratio"].is_null(), test.contains("_lat"));
    }
}
