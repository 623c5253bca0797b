//! Clients that are killed in the middle of a transfer, again and again: nothing of them stays, nobody else is held up.

mod process;
mod support;

use std::env;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ferroce::control::{Reply, Request};
use ferroce::{Context, SendWr};
use process::{Ferroced, wait_bounded};
use support::{PATIENCE, Peer, connect, every_operation};

/// Tells the child, which is this test binary again, where the daemon is.
const SOCKET_VARIABLE: &str = "FERROCE_TEST_SOCKET";
const DEATHS: usize = 1000;
/// Clients that are alive at a time.
const AT_A_TIME: usize = 4;

/// Not a test of its own: the client that is to be killed. Two sessions that WRITE to each other without end.
#[test]
#[ignore = "run by the test below as a process of its own"]
fn client_that_will_be_killed() {
    let Some(socket) = env::var_os(SOCKET_VARIABLE) else { return };
    let session = || Peer::new(Context::connect(&socket).unwrap(), 1 << 20, 0);
    let (a, b) = (session(), session());
    connect(&a, &b);
    // The test process may be killed, too.
    let end = Instant::now() + PATIENCE;
    let mut told = false;
    while Instant::now() < end {
        for (from, to) in [(&a, &b), (&b, &a)] {
            let here = [from.region.sge(0, 512 << 10).unwrap()];
            for _ in 0..4 {
                from.qp
                    .post_send(&SendWr::write(1, &here, to.region.addr() + (512 << 10), to.region.rkey()).signaled())
                    .unwrap();
            }
        }
        if !std::mem::replace(&mut told, true) {
            println!("under way");
        }
        for _ in 0..4 {
            let _successes = (a.complete(), b.complete());
        }
    }
}

fn start_client(daemon: &Ferroced) -> Child {
    let words = ["--exact", "client_that_will_be_killed", "--ignored", "--nocapture"];
    Command::new(env::current_exe().unwrap())
        .args(words)
        .env(SOCKET_VARIABLE, daemon.socket())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until its transfer is under way, and a little, different each time; then kills it.
fn kill_in_mid_transfer(mut client: Child, number: usize) {
    let mut out = client.stdout.take().unwrap();
    let mut said = String::new();
    let mut buffer = [0; 256];
    while !said.contains("under way") {
        let count = out.read(&mut buffer).unwrap();
        assert!(count > 0, "the client ended by itself: {said}");
        said.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    std::thread::sleep(Duration::from_micros(number as u64 * 7919 % 2000));
    client.kill().unwrap();
    wait_bounded(&mut client);
}

fn kill_many(daemon: &Ferroced, deaths: usize) {
    for first in (0..deaths).step_by(AT_A_TIME) {
        let clients: Vec<Child> = (0..AT_A_TIME).map(|_| start_client(daemon)).collect();
        clients.into_iter().zip(first..).for_each(|(client, number)| kill_in_mid_transfer(client, number));
    }
}

fn session_count(context: &Context) -> usize {
    let Reply::Sessions(sessions) = context.call(&Request::ListSessions).unwrap() else { panic!("no list") };
    sessions.len()
}

fn wait_for_sessions(context: &Context, count: usize) {
    let end = Instant::now() + PATIENCE;
    while session_count(context) != count {
        assert!(Instant::now() < end, "{} sessions stay", session_count(context));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_thousand_clients_killed_in_mid_transfer_leak_nothing() {
    let daemon = Ferroced::start("");
    let (a, b) = (Peer::new(daemon.connect(), 1 << 20, 0), Peer::new(daemon.connect(), 1 << 20, 0));
    connect(&a, &b);
    every_operation(&a, &b);
    // Tables and the allocator have their size after the first hundred.
    kill_many(&daemon, DEATHS / 10);
    wait_for_sessions(&a.context, 2);
    let (fds, kib) = (daemon.fd_count(), daemon.memory_kib("VmRSS:"));
    kill_many(&daemon, DEATHS - DEATHS / 10);
    wait_for_sessions(&a.context, 2);
    let grown_kib = daemon.memory_kib("VmRSS:").saturating_sub(kib);
    assert_eq!(daemon.fd_count(), fds, "file descriptors before and after");
    // A leak of one page by a death would be 3,600 KiB; of a region or a ring, gigabytes.
    assert!(grown_kib < 3_000, "{grown_kib} KiB more after {DEATHS} deaths");
    println!("{DEATHS} deaths: {fds} descriptors before and after, {grown_kib} KiB more than {kib}");
    // Those who stayed have not noticed.
    every_operation(&a, &b);
}
