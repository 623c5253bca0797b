//! Datagram sockets over RDMA through a real daemon, whose port loops to itself: all ends are in this process. The kernel's own UDP goes by
//! the loopback address, which the daemon has too. Skipped where the daemon can't be built, with a word.

mod sockets;

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use sockets::{Dgram, Ferroced, PATIENCE, pattern};

macro_rules! daemon_or_skip {
    () => {
        match Ferroced::start_at("127.0.0.1") {
            Some(daemon) => daemon,
            None => return,
        }
    };
}

#[test]
fn messages_go_both_ways_by_udp_at_first_and_by_queue_pairs_then() {
    let daemon = daemon_or_skip!();
    let (a, b) = (Dgram::bound("127.0.0.1:0"), Dgram::bound("127.0.0.1:0"));
    assert_eq!(b.receive(10, libc::MSG_DONTWAIT), Err(Errno::EAGAIN));
    for round in 0..50_usize {
        let said = pattern(round, round * 40);
        assert_eq!(a.send_to(&said, b.local()), Ok(said.len()));
        assert_eq!(b.receive(2048, 0), Ok((said, a.local())), "round {round}");
        let answer = pattern(round + 7, 2000 - round * 40);
        assert_eq!(b.send_to(&answer, a.local()), Ok(answer.len()));
        assert_eq!(a.receive(2048, 0), Ok((answer, b.local())), "round {round}");
    }
    // All but the first of each side were sent by its QP.
    let completed = daemon.counter("completed_wqes");
    assert!(completed >= 96, "{completed}");
}

#[test]
fn a_message_is_read_whole_or_its_rest_is_lost() {
    let _daemon = daemon_or_skip!();
    let (a, b) = Dgram::pair();
    // Once by UDP, once by the QPs.
    for _ in 0..2 {
        a.send_to(b"first", b.local()).unwrap();
        a.send_to(b"", b.local()).unwrap();
        a.send_to(b"third", b.local()).unwrap();
        assert_eq!(b.receive(3, libc::MSG_PEEK), Ok((b"fir".to_vec(), a.local())));
        assert_eq!(b.receive_count(3, libc::MSG_PEEK | libc::MSG_TRUNC), Ok(5));
        assert_eq!(b.receive(3, 0), Ok((b"fir".to_vec(), a.local())));
        assert_eq!(b.receive(3, 0), Ok((Vec::new(), a.local())));
        assert_eq!(b.receive(9, 0), Ok((b"third".to_vec(), a.local())));
        meet(&a, &b);
    }
    assert_eq!(a.send_to(&pattern(0, 2033), b.local()), Err(Errno::EMSGSIZE));
    assert_eq!(a.send(b"x", 0), Err(Errno::EDESTADDRREQ));
    assert_eq!(a.send_to_with(b"x", b.local(), libc::MSG_OOB), Err(Errno::EOPNOTSUPP));
    assert_eq!(b.receive(9, libc::MSG_OOB), Err(Errno::EOPNOTSUPP));
}

/// Both know each other's QP after this.
fn meet(a: &Dgram, b: &Dgram) {
    for (from, to) in [(a, b), (b, a)] {
        from.send_to(b"hello", to.local()).unwrap();
        assert_eq!(to.receive(9, 0), Ok((b"hello".to_vec(), from.local())));
    }
}

#[test]
fn one_that_is_connected_hears_its_peer_and_nobody_else() {
    let _daemon = daemon_or_skip!();
    let (a, b) = Dgram::pair();
    let stranger = Dgram::bound("127.0.0.1:0");
    meet(&a, &b);
    meet(&stranger, &b);
    b.connect(a.local()).unwrap();
    assert_eq!(b.peer(), Ok(a.local()));
    assert_eq!(a.peer(), Err(Errno::ENOTCONN));
    stranger.send_to(b"who?", b.local()).unwrap();
    a.send_to(b"me", b.local()).unwrap();
    assert_eq!(b.receive(9, 0), Ok((b"me".to_vec(), a.local())));
    assert_eq!(b.receive(9, libc::MSG_DONTWAIT), Err(Errno::EAGAIN));
    assert_eq!(b.send(b"you", 0), Ok(3));
    assert_eq!(a.receive(9, 0), Ok((b"you".to_vec(), b.local())));
}

#[test]
fn who_is_bound_to_nothing_gets_a_port_and_the_address_that_leads_to_the_peer() {
    let _daemon = daemon_or_skip!();
    let server = Dgram::bound("0.0.0.0:0");
    let to = SocketAddr::new([127, 0, 0, 1].into(), server.local().port());
    let client = Dgram::new();
    client.send_to(b"anybody?", to).unwrap();
    let (said, from) = server.receive(99, 0).unwrap();
    assert_eq!((said.as_slice(), from.ip()), (b"anybody?".as_slice(), to.ip()));
    assert_eq!(from.port(), client.local().port());
    for word in [b"one".as_slice(), b"two"] {
        server.send_to(word, from).unwrap();
        assert_eq!(client.receive(99, 0), Ok((word.to_vec(), to)));
        client.send_to(word, to).unwrap();
        assert_eq!(server.receive(99, 0), Ok((word.to_vec(), from)));
    }
    // Nobody of ours has this address.
    assert_eq!(Dgram::bound("127.0.0.2:0").send_to(b"x", to), Err(Errno::EADDRNOTAVAIL));
}

#[test]
fn polls_and_sleepers_are_woken_by_either_way_to_come() {
    let _daemon = daemon_or_skip!();
    let (a, b) = Dgram::pair();
    assert_eq!(b.poll(libc::POLLIN | libc::POLLOUT, Duration::ZERO), libc::POLLOUT);
    for _ in 0..4 {
        thread::scope(|scope| {
            let asleep = scope.spawn(|| b.receive(9, 0));
            let polling = scope.spawn(|| a.poll(libc::POLLIN, PATIENCE));
            thread::sleep(Duration::from_millis(20));
            assert!(!asleep.is_finished() && !polling.is_finished());
            a.send_to(b"wake", b.local()).unwrap();
            assert_eq!(asleep.join().unwrap(), Ok((b"wake".to_vec(), a.local())));
            b.send_to(b"up", a.local()).unwrap();
            assert_eq!(polling.join().unwrap(), libc::POLLIN);
        });
        assert_eq!(a.receive(9, 0), Ok((b"up".to_vec(), b.local())));
    }
}

#[test]
fn a_flood_loses_messages_and_nothing_else() {
    let _daemon = daemon_or_skip!();
    let (a, b) = Dgram::pair();
    meet(&a, &b);
    for number in 0..2000_u32 {
        assert_eq!(a.send_to(&number.to_be_bytes(), b.local()), Ok(4));
    }
    let mut last = None;
    let mut count = 0;
    while let Ok((said, _)) = b.receive(9, libc::MSG_DONTWAIT) {
        let number = u32::from_be_bytes(said.try_into().expect("4 bytes"));
        assert!(last.is_none_or(|last| last < number), "{number} came after {last:?}");
        last = Some(number);
        count += 1;
    }
    assert!((1..=2000).contains(&count), "{count}");
    meet(&a, &b);
}

#[test]
fn strangers_bytes_on_the_port_are_none() {
    let _daemon = daemon_or_skip!();
    let (a, b) = Dgram::pair();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut hello = vec![0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0xff, 0xff, 0xff, 0xff, 127, 0, 0, 1];
    for cut in 0..hello.len() {
        stranger.send_to(&hello[..cut], b.local()).unwrap();
    }
    hello[5] = 7;
    stranger.send_to(&hello, b.local()).unwrap();
    hello[4] = 6;
    stranger.send_to(&hello, b.local()).unwrap();
    assert_eq!(b.receive(9, libc::MSG_DONTWAIT), Err(Errno::EAGAIN));
    // Nobody has the QP that it named: what goes there is lost.
    b.send_to(
        b"lost",
        SocketAddr::V4(match stranger.local_addr().unwrap() {
            SocketAddr::V4(v4) => v4,
            SocketAddr::V6(_) => unreachable!("bound to IPv4"),
        }),
    )
    .unwrap();
    meet(&a, &b);
}

#[test]
fn it_is_a_datagram_socket_and_no_stream() {
    let _daemon = daemon_or_skip!();
    let (a, b) = Dgram::pair();
    assert_eq!(a.get(libc::SOL_SOCKET, libc::SO_TYPE), Ok(libc::SOCK_DGRAM));
    assert_eq!(a.get(libc::SOL_SOCKET, libc::SO_PROTOCOL), Ok(libc::IPPROTO_UDP));
    assert_eq!(a.listen(), Err(Errno::EOPNOTSUPP));
    assert_eq!(a.accept(), Err(Errno::EOPNOTSUPP));
    assert_eq!(a.shutdown(), Err(Errno::ENOTCONN));
    // A port is its socket's until that is closed; and may be shared if both say so.
    let second = Dgram::new();
    assert_eq!(second.bind(b.local()), Err(Errno::EADDRINUSE));
    let (third, fourth) = (Dgram::new(), Dgram::new());
    for shared in [&third, &fourth] {
        shared.set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).unwrap();
        shared.bind(third.local()).unwrap();
    }
    assert_eq!(third.local().port(), fourth.local().port());
    let port = b.local();
    drop(b);
    second.bind(port).unwrap();
    meet(&a, &second);
    let end = Instant::now() + PATIENCE;
    drop((a, second));
    assert!(Instant::now() < end, "closing waits for nobody");
}

#[test]
fn a_daemon_that_is_gone_is_told_and_waited_for_by_nobody() {
    let mut daemon = daemon_or_skip!();
    let (a, b) = Dgram::pair();
    meet(&a, &b);
    let begun = Instant::now();
    thread::scope(|scope| {
        let asleep = scope.spawn(|| b.receive(9, 0));
        thread::sleep(Duration::from_millis(20));
        daemon.kill();
        assert_eq!(asleep.join().unwrap(), Err(Errno::ENETDOWN));
    });
    assert_eq!(a.send_to(b"x", b.local()), Err(Errno::ENETDOWN));
    drop((a, b));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}
