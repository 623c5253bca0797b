//! `ferroced` as a process: start, refusals, bad clients, stop.

mod process;
mod support;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ferroce::control::{Reply, Request};
use ferroce::{Context, SendWr, VerbsError, WcStatus, WorkCompletion};
use nix::sys::signal::Signal;
use process::{Ferroced, is_closed, run};
use shm::control::CallError;
use support::{PATIENCE, Peer, connect, every_operation};

#[test]
fn it_answers_soon_serves_and_stops_on_a_signal() {
    let start = Instant::now();
    let mut daemon = Ferroced::start("");
    let up = start.elapsed();
    println!("up and answering after {up:?}");
    // A second is the aim on an idle machine; tests share theirs.
    assert!(up < Duration::from_secs(5), "{up:?}");

    let (a, b) = (Peer::new(daemon.connect(), 1 << 20, 0), Peer::new(daemon.connect(), 1 << 20, 0));
    connect(&a, &b);
    every_operation(&a, &b);

    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0));
    assert!(!daemon.socket().exists(), "the socket is removed");
    wait_until("the client notices", || !a.context.is_alive());
    assert!(matches!(a.context.query_device(), Err(VerbsError::Call(CallError::Disconnected))));
}

#[test]
fn sigint_stops_it_too() {
    let mut daemon = Ferroced::start("");
    daemon.signal(Signal::SIGINT);
    assert_eq!(daemon.wait().code(), Some(0));
    assert!(!daemon.socket().exists());
}

#[test]
fn a_second_daemon_on_the_same_socket_is_refused() {
    let daemon = Ferroced::start("");
    let path = daemon.socket().to_str().unwrap();
    let (success, _, err) = run(&["--vdev", "net_ring0", "--address", "10.0.0.1", "--no-huge", "--socket", path]);
    assert!(!success && err.contains(&format!("another daemon answers at {path}")), "{err}");
    daemon.connect();
}

#[test]
fn a_killed_daemon_leaves_a_socket_that_the_next_one_replaces_and_its_clients_get_flushes() {
    let mut daemon = Ferroced::start("");
    let peer = Peer::new(daemon.connect(), 1 << 20, 0);
    let partner = Peer::new(daemon.connect(), 1 << 20, 0);
    connect(&peer, &partner);
    daemon.stop_all_threads();
    let here = [peer.region.sge(0, 64).unwrap()];
    peer.qp.post_send(&SendWr::write(5, &here, partner.region.addr(), partner.region.rkey())).unwrap();
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let mut completions = [WorkCompletion::default()];
    wait_until("the flush", || peer.cq.poll(&mut completions) == 1);
    assert_eq!((completions[0].wr_id, completions[0].status), (5, WcStatus::WrFlushErr));

    assert!(daemon.socket().exists(), "nobody removed it");
    let path = daemon.socket().to_str().unwrap().to_owned();
    let words = ["--vdev", "net_ring0", "--address", "10.0.0.1", "--no-huge", "--log", "warn", "--socket", &path];
    let mut next = process::command(&words).spawn().unwrap();
    wait_until("the next daemon", || Context::connect(&path).is_ok());
    next.kill().unwrap();
    next.wait().unwrap();
}

#[test]
fn what_counts_is_printed_and_mistakes_are_sentences() {
    let (success, out, _) = run(&["--vdev", "net_ring0", "--address", "10.0.0.1", "--check-config"]);
    assert!(success && out.contains("device = \"ferroce0\"") && out.contains("max_qp = 16384"), "{out}");
    let directory = tempfile::tempdir().unwrap();
    let unused = directory.path().join("unused.sock");
    for (words, sentence) in [
        (&["--check-config"][..], "a daemon has 1 to 8 ports"),
        (&["--config", "/dev/zero", "--check-config"], "/dev/zero: it must be a regular file of at most 1048576 bytes"),
        (
            &["--vdev", "net_af_packet0", "--check-config"],
            "net_af_packet0 does not name its interface: it needs iface=NAME",
        ),
        (&["--vdev", "net_ring0", "--check-config"], "port 1: needs `addresses`"),
        (&["--vdev", "net_ring0", "--address", "10.0.0.1", "--log", "a=b=c", "--check-config"], "log = \"a=b=c\""),
        (
            &[
                "--vdev",
                "net_af_packet0,iface=nonesuch",
                "--no-huge",
                "--log",
                "error",
                "--socket",
                unused.to_str().unwrap(),
            ],
            "there is no interface `nonesuch`",
        ),
    ] {
        let (success, _, err) = run(words);
        assert!(!success && err.starts_with("ferroced: ") && err.contains(sentence), "{err}");
    }
}

#[test]
fn clients_over_the_limit_are_told_so() {
    let daemon = Ferroced::start("limits.max_session = 1");
    // The session of the first answer must have ended.
    wait_until("room", || Context::connect(daemon.socket()).is_ok());
    let mut first = None;
    wait_until("a session", || {
        first = Context::connect(daemon.socket()).ok();
        first.is_some()
    });
    let Err(second) = Context::connect(daemon.socket()) else { panic!("a second client is refused") };
    assert!(second.to_string().contains("max_session"), "{second}");
    // Clients that connect and say nothing keep nobody from being told.
    let _silent: Vec<_> = (0..40).map(|_| daemon.connect_raw()).collect();
    let Err(second) = Context::connect(daemon.socket()) else { panic!("a second client is refused") };
    assert!(second.to_string().contains("max_session"), "{second}");
    drop(first);
    wait_until("room again", || Context::connect(daemon.socket()).is_ok());
}

#[test]
fn garbage_and_deaf_clients_lose_their_session_and_nobody_else_does() {
    let daemon = Ferroced::start("");
    let good = daemon.connect();
    for bytes in [&[0xff][..], &[0x7f; 3], &[7; 5000], b"GET / HTTP/1.1\r\n"] {
        let bad = daemon.connect_raw();
        nix::unistd::write(&bad, bytes).unwrap();
        assert!(is_closed(&bad));
    }
    // A client that asks and asks and reads no answer.
    let deaf = daemon.connect_raw();
    let hello = Request::Hello { abi_version: shm::ABI_VERSION, client_name: "deaf".to_owned() };
    shm::socket::send(deaf.as_fd(), &hello, &[]).unwrap();
    let end = Instant::now() + PATIENCE;
    let sent = loop {
        match shm::socket::send(deaf.as_fd(), &Request::Stats, &[]) {
            Ok(()) => assert!(Instant::now() < end, "the daemon goes on answering"),
            Err(error) => break error,
        }
    };
    assert!(matches!(sent, CallError::Disconnected), "{sent}");
    wait_until("the deaf client's end", || session_count(&good) == 1);
    assert!(good.query_device().is_ok());
}

#[test]
fn file_descriptors_that_nobody_asked_for_are_closed() {
    let daemon = Ferroced::start("");
    let good = daemon.connect();
    wait_until("a quiet daemon", || session_count(&good) == 1);
    let before = daemon.fd_count();
    let file = std::fs::File::open("/dev/null").unwrap();
    let raw = daemon.connect_raw();
    let mut buffer = vec![0; 64 << 10];
    let hello = Request::Hello { abi_version: shm::ABI_VERSION, client_name: "generous".to_owned() };
    for _ in 0..100 {
        shm::socket::send(raw.as_fd(), &hello, &[file.as_fd(), file.as_fd()]).unwrap();
        shm::socket::receive(raw.as_fd(), &mut buffer).unwrap();
    }
    drop(raw);
    wait_until("its end", || session_count(&good) == 1 && daemon.fd_count() == before);
}

#[test]
fn a_qp_whose_peer_is_gone_tells_why_it_broke_even_when_its_client_is_gone_too() {
    let daemon = Ferroced::start("");
    let (a, b) = (Peer::new(daemon.connect(), 1 << 20, 0), Peer::new(daemon.connect(), 1 << 20, 0));
    connect(&a, &b);
    every_operation(&a, &b);
    assert_eq!(a.qp.post_mortem().unwrap(), None);
    let (address, rkey, peer_qpn) = (b.region.addr(), b.region.rkey(), b.qp.qpn().value());
    b.qp.destroy().unwrap();
    let here = [a.region.sge(0, 64).unwrap()];
    a.qp.post_send(&SendWr::write(77, &here, address, rkey).signaled()).unwrap();
    let mut completions = [WorkCompletion::default()];
    wait_until("the retries are used up", || a.cq.poll(&mut completions) == 1);
    assert_eq!((completions[0].status, completions[0].vendor_err), (WcStatus::RetryExcErr, 2));
    let found = a.qp.post_mortem().unwrap().unwrap();
    let said = &found.summary.sentence;
    assert!(said.starts_with("no answer to 8 transmissions in 5") && said.contains("was last heard"), "{said}");
    assert_eq!((found.summary.dest_qpn, found.retries.timeouts), (peer_qpn, 8));
    assert_eq!((found.request.unwrap().wr_id, found.request.unwrap().remote_addr), (77, address));
    assert!(found.path.unwrap().local && found.rtt.is_some());
    let qpn = a.qp.qpn().value();
    drop(a);
    let operator = daemon.connect();
    wait_until("the client is gone", || session_count(&operator) == 2);
    let Reply::PostMortem(kept) = operator.call(&Request::WhyQp { qpn }).unwrap() else { panic!() };
    assert!(kept.summary.destroyed);
    assert_eq!(kept.summary.sentence, *said);
}

fn session_count(context: &Context) -> usize {
    let Reply::Sessions(sessions) = context.call(&Request::ListSessions).unwrap() else { panic!("no list") };
    sessions.len()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "{what} does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}
