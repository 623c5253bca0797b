//! The tool as its users meet it: arguments in; text, JSON and an exit status out.

mod congestion;
mod fake_daemon;
mod pcap;
mod questions;
mod run;

use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// What one run of the tool gave.
struct Run {
    status: i32,
    stdout: String,
    stderr: String,
}

/// Runs `ferroce` with nothing of the caller's environment that it looks at.
fn ferroce<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Run {
    let output = Command::new(env!("CARGO_BIN_EXE_ferroce"))
        .args(args)
        .env_remove("FERROCE_SOCKET")
        .env_remove("FERROCE_SOCKETS")
        .stdin(Stdio::null())
        .output()
        .expect("the tool starts");
    Run {
        status: output.status.code().expect("the tool is not killed by a signal"),
        stdout: String::from_utf8(output.stdout).expect("the output is UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("the messages are UTF-8"),
    }
}

impl Run {
    /// Each line of the output as JSON.
    fn json_lines(&self) -> Vec<serde_json::Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }
}

#[test]
fn usage_errors_exit_2_and_name_the_argument() {
    for (args, named) in [
        (vec![], "Usage"),
        (vec!["nosuch"], "nosuch"),
        (vec!["qp", "0x1000000"], "0 to 0xffffff"),
        (vec!["stat", "--watch", "0"], "0.1 to 3600"),
        (vec!["pcap"], "<FILE>"),
        (vec!["pcap", "f", "--limit", "-1"], "-1"),
        (vec!["rping"], "--server"),
        (vec!["rping", "-c"], "--addr"),
        (vec!["rping", "-s", "-c", "-a", "::1"], "cannot be used with"),
        (vec!["rping", "-c", "-a", "::1", "-S", "25"], "26..=65535"),
        (vec!["rping", "-c", "-a", "no such host"], "no such host"),
        (vec!["rping", "-c", "-P", "-a", "::1"], "cannot be used with"),
    ] {
        let run = ferroce(&args);
        assert_eq!(run.status, 2, "{args:?}");
        assert!(run.stderr.contains(named), "{args:?}: {}", run.stderr);
        assert_eq!(run.stdout, "", "{args:?}");
    }
}

#[test]
fn every_command_has_an_example_in_its_help() {
    for command in ["devinfo", "stat", "qp", "res", "pcap", "rping"] {
        let run = ferroce([command, "--help"]);
        assert_eq!(run.status, 0, "{command}");
        assert!(run.stdout.contains(&format!("ferroce {command}")), "{}", run.stdout);
        assert!(run.stdout.contains("Example: "), "{}", run.stdout);
    }
}
