//! Sockets over RDMA through a real daemon, whose port loops to itself: both ends are in this process. Skipped where the daemon can't
//! be built, with a word.

mod sockets;

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ferroce::cm::{CmEventType, CmId, ConnParam, EventChannel, PortSpace, SyncId};
use ferroce::{
    AccessFlags, CompletionQueue, Context, CqInit, MemoryPool, MemoryRegion, PageSize, QpInit, QueuePair, RecvWr,
    SendWr,
};
use ferroce_verbs_c::rsocket::calls;
use nix::errno::Errno;
use nix::libc::{self, pollfd};
use sockets::{ADDRESS, Ferroced, PATIENCE, Rsocket, pattern, poll, select_readable};

const SOL_RDMA: c_int = 0x10000;
const RDMA_IOMAPSIZE: c_int = 3;
const RDMA_RQSIZE: c_int = 1;
const MEGABYTE: usize = 1 << 20;

macro_rules! daemon_or_skip {
    () => {
        match Ferroced::start() {
            Some(daemon) => daemon,
            None => return,
        }
    };
}

#[test]
fn bytes_are_whole_both_ways_in_odd_pieces() {
    let _daemon = daemon_or_skip!();
    // Small buffers and few credits, so that both run out all the time.
    let small = [
        (libc::SOL_SOCKET, libc::SO_RCVBUF, 6000),
        (libc::SOL_SOCKET, libc::SO_SNDBUF, 5000),
        (SOL_RDMA, RDMA_RQSIZE, 16),
    ];
    for options in [small.as_slice(), &[]] {
        let (a, b) = Rsocket::pair_with(options);
        thread::scope(|scope| {
            for socket in [&a, &b] {
                scope.spawn(move || {
                    let (data, mut sent) = (pattern(0, 2 * MEGABYTE), 0);
                    while sent < data.len() {
                        let first = (sent % 977 + 1).min(data.len() - sent);
                        let second = (sent % 30_011).min(data.len() - sent - first);
                        let (head, tail) = data[sent..sent + first + second].split_at(first);
                        sent += socket.writev(&[head, &[], tail]).unwrap();
                    }
                    socket.shutdown(libc::SHUT_WR).unwrap();
                });
                scope.spawn(move || {
                    let mut received = Vec::new();
                    loop {
                        let lengths = [received.len() % 1013, 0, received.len() % 7919 + 1];
                        let data = socket.readv(&lengths).unwrap();
                        if data.is_empty() {
                            break;
                        }
                        received.extend(data);
                    }
                    assert_eq!(received.len(), 2 * MEGABYTE);
                    assert!(received == pattern(0, 2 * MEGABYTE), "bytes are wrong");
                });
            }
        });
    }
}

#[test]
fn a_look_leaves_the_bytes_and_waiting_for_all_waits() {
    let _daemon = daemon_or_skip!();
    let (a, b) = Rsocket::pair();
    assert_eq!(a.peer(), b.local());
    assert_eq!(a.local(), b.peer());
    assert_eq!(b.receive(10, libc::MSG_DONTWAIT), Err(Errno::EAGAIN));
    a.send_all(b"abc");
    assert_eq!(b.receive(10, libc::MSG_PEEK), Ok(b"abc".to_vec()));
    assert_eq!(b.receive(2, libc::MSG_PEEK), Ok(b"ab".to_vec()));
    assert_eq!(b.receive(2, 0), Ok(b"ab".to_vec()));
    thread::scope(|scope| {
        let all = scope.spawn(|| b.receive(6, libc::MSG_WAITALL));
        thread::sleep(Duration::from_millis(20));
        assert!(!all.is_finished());
        a.send_all(b"def");
        a.send_all(b"ghi");
        assert_eq!(all.join().unwrap(), Ok(b"cdefgh".to_vec()));
    });
    assert_eq!(b.receive(9, 0), Ok(b"i".to_vec()));
    assert_eq!(b.receive(9, libc::MSG_OOB), Err(Errno::EOPNOTSUPP));
    assert_eq!(a.send(b"x", libc::MSG_OOB), Err(Errno::EOPNOTSUPP));
    assert_eq!((a.send(&[], 0), b.receive(0, 0)), (Ok(0), Ok(Vec::new())));
}

#[test]
fn sockets_that_do_not_wait_say_when_they_are_ready() {
    let _daemon = daemon_or_skip!();
    let (listener, port) = Rsocket::listening(4);
    listener.nonblocking(true);
    assert_eq!(listener.accept().unwrap_err(), Errno::EAGAIN);
    assert_eq!(listener.poll(libc::POLLIN, Duration::ZERO), 0);
    let a = Rsocket::new();
    a.nonblocking(true);
    assert_eq!(a.send(b"x", 0), Err(Errno::ENOTCONN));
    assert_eq!(a.connect(port), Err(Errno::EINPROGRESS));
    assert_eq!(a.connect(port), Err(Errno::EALREADY));
    // The request comes as the client's steps are done, which this drives.
    let end = Instant::now() + PATIENCE;
    while listener.poll(libc::POLLIN, Duration::from_millis(1)) == 0 {
        assert_eq!(a.poll(libc::POLLOUT, Duration::ZERO), 0, "nobody has accepted yet");
        assert!(Instant::now() < end);
    }
    let b = listener.accept().unwrap();
    b.nonblocking(true);
    assert_eq!(a.poll(libc::POLLIN | libc::POLLOUT, PATIENCE), libc::POLLOUT);
    assert_eq!((a.error(), a.connect(port)), (0, Err(Errno::EISCONN)));
    // Until nothing more goes in, then all of it out.
    let data = pattern(0, 100_000);
    let mut sent = 0;
    while let Ok(bytes) = a.send(&data, 0) {
        sent += bytes;
        a.poll(libc::POLLOUT, Duration::from_millis(50));
    }
    assert_eq!(a.poll(libc::POLLOUT, Duration::ZERO), 0);
    assert!(sent >= 1 << 16, "{sent} bytes fit");
    let mut received = 0;
    while received < sent {
        assert_eq!(b.poll(libc::POLLIN, PATIENCE), libc::POLLIN);
        received += b.receive(7777, 0).unwrap().len();
    }
    assert_eq!((received, b.receive(1, 0)), (sent, Err(Errno::EAGAIN)));
    assert_eq!(a.poll(libc::POLLOUT, PATIENCE), libc::POLLOUT);
}

#[test]
fn closing_leaves_nothing_behind_on_the_way() {
    let _daemon = daemon_or_skip!();
    let (a, b) = Rsocket::pair();
    // As much as one of its buffers takes, and then the end, before the peer does anything.
    let data = pattern(5, 60_000);
    a.send_all(&data);
    drop(a);
    assert!(b.receive_to_end().unwrap() == data);
    assert_eq!(b.receive(1, 0), Ok(Vec::new()));
    assert_eq!(b.send(b"x", 0), Err(Errno::EPIPE));
    assert_eq!(b.poll(libc::POLLIN, Duration::ZERO), libc::POLLIN | libc::POLLHUP);
    assert_eq!(b.error(), 0);
}

#[test]
fn half_a_connection_can_end() {
    let _daemon = daemon_or_skip!();
    let (a, b) = Rsocket::pair();
    a.send_all(b"question");
    a.shutdown(libc::SHUT_WR).unwrap();
    assert_eq!(a.send(b"more", 0), Err(Errno::EPIPE));
    assert_eq!(b.receive_to_end(), Ok(b"question".to_vec()));
    let answer = pattern(1, 300_000);
    thread::scope(|scope| {
        scope.spawn(|| {
            b.send_all(&answer);
            b.shutdown(libc::SHUT_WR).unwrap();
        });
        assert!(a.receive_to_end().unwrap() == answer);
    });
    assert_eq!(a.poll(libc::POLLIN, PATIENCE) & libc::POLLHUP, libc::POLLHUP);
    assert_eq!(a.shutdown(9), Err(Errno::EINVAL));
    assert_eq!(Rsocket::new().shutdown(libc::SHUT_WR), Err(Errno::ENOTCONN));
}

#[test]
fn a_peer_that_closes_with_bytes_unread_ends_the_writer() {
    let _daemon = daemon_or_skip!();
    let (a, b) = Rsocket::pair();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let data = pattern(0, MEGABYTE);
            loop {
                if let Err(errno) = a.send(&data, 0) {
                    return errno;
                }
            }
        });
        assert!(!b.receive(1000, 0).unwrap().is_empty());
        drop(b);
        let errno = writer.join().unwrap();
        assert!([Errno::EPIPE, Errno::ECONNRESET].contains(&errno), "{errno}");
    });
    assert_eq!(a.receive(1, 0).unwrap_or_default(), Vec::<u8>::new());
}

#[test]
fn what_is_not_read_any_more_does_not_stop_the_writer() {
    let _daemon = daemon_or_skip!();
    let (a, b) = Rsocket::pair();
    a.send_all(b"unread");
    b.shutdown(libc::SHUT_RD).unwrap();
    assert_eq!(b.receive(10, 0), Ok(Vec::new()));
    thread::scope(|scope| {
        // Its own end reads nothing, but somebody must look after the connection.
        let looks = scope.spawn(|| while b.poll(libc::POLLOUT, Duration::from_millis(1)) & libc::POLLHUP == 0 {});
        a.send_all(&pattern(0, MEGABYTE));
        a.shutdown(libc::SHUT_RDWR).unwrap();
        looks.join().unwrap();
    });
}

#[test]
fn many_connections_at_once() {
    const CLIENTS: usize = 24;
    let _daemon = daemon_or_skip!();
    let (listener, port) = Rsocket::listening(CLIENTS as c_int);
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let socket = Rsocket::connected(port);
                let data = pattern(client, 20_000 + client);
                socket.send_all(&data);
                socket.shutdown(libc::SHUT_WR).unwrap();
                assert!(socket.receive_to_end().unwrap() == data);
            });
        }
        // One thread for all of them, as servers are made.
        let mut open: Vec<Rsocket> = Vec::new();
        let mut served = 0;
        while served < CLIENTS {
            let ask = |socket: &Rsocket| pollfd { fd: socket.0, events: libc::POLLIN, revents: 0 };
            let mut fds: Vec<pollfd> = std::iter::once(&listener).chain(&open).map(ask).collect();
            assert!(poll(&mut fds, PATIENCE) > 0, "{served} served, {} open", open.len());
            for fd in fds[1..].iter().filter(|fd| fd.revents != 0) {
                let at = open.iter().position(|socket| socket.0 == fd.fd).unwrap();
                let data = open[at].receive(5000, 0).unwrap();
                if data.is_empty() {
                    served += 1;
                    open.swap_remove(at);
                } else {
                    open[at].send_all(&data);
                }
            }
            if fds[0].revents != 0 {
                open.push(listener.accept().unwrap());
            }
        }
    });
}

#[test]
fn a_port_where_nobody_listens_refuses() {
    let _daemon = daemon_or_skip!();
    let free = Rsocket::listening(1).1;
    let socket = Rsocket::new();
    assert_eq!(socket.connect(free), Err(Errno::ECONNREFUSED));
    socket.nonblocking(true);
    assert_eq!(socket.connect(free), Err(Errno::EINPROGRESS));
    let told = socket.poll(libc::POLLOUT, PATIENCE);
    assert_eq!(told & (libc::POLLERR | libc::POLLHUP), libc::POLLERR | libc::POLLHUP);
    assert_eq!((socket.error(), socket.error()), (Errno::ECONNREFUSED as c_int, 0));
    // What is there can be connected to by the same socket.
    let (listener, port) = Rsocket::listening(1);
    assert_eq!(socket.connect(port), Err(Errno::EINPROGRESS));
    thread::scope(|scope| {
        scope.spawn(|| listener.accept().unwrap());
        assert_ne!(socket.poll(libc::POLLOUT, PATIENCE) & libc::POLLOUT, 0);
    });
    assert_eq!(calls::rsocket(libc::AF_INET, libc::SOCK_SEQPACKET, 0), -1);
    assert_eq!(Errno::last(), Errno::EPROTONOSUPPORT);
    assert_eq!(calls::rsocket(libc::AF_UNIX, libc::SOCK_STREAM, 0), -1);
    assert_eq!(Errno::last(), Errno::EAFNOSUPPORT);
    assert_eq!(calls::rclose(1 << 20), -1);
    assert_eq!(Errno::last(), Errno::EBADF);
}

#[test]
fn polling_takes_descriptors_of_the_kernel_along() {
    let _daemon = daemon_or_skip!();
    let (a, b) = Rsocket::pair();
    let (reader, writer) = nix::unistd::pipe().unwrap();
    let pipe = std::os::fd::AsRawFd::as_raw_fd(&reader);
    let ask = |fd: c_int| pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [ask(pipe), ask(b.0), ask(-1)];
    assert_eq!(poll(&mut fds, Duration::from_millis(10)), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            a.send_all(b"1");
        });
        assert_eq!((poll(&mut fds, PATIENCE), fds[0].revents, fds[1].revents), (1, 0, libc::POLLIN));
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            nix::unistd::write(&writer, b"2").unwrap();
        });
        b.receive(1, 0).unwrap();
        assert_eq!((poll(&mut fds, PATIENCE), fds[0].revents, fds[1].revents), (1, libc::POLLIN, 0));
    });
    assert_eq!(select_readable(&[pipe, b.0], 0), Ok(vec![pipe]));
    a.send_all(b"3");
    assert_eq!(poll(&mut fds[1..2], PATIENCE), 1);
    assert_eq!(select_readable(&[pipe, b.0], 1000), Ok(vec![pipe, b.0]));
    assert_eq!(select_readable(&[b.0], -1), Err(Errno::EINVAL));
    assert_eq!(select_readable(&[1000], 0), Err(Errno::EBADF));
}

#[test]
fn closing_wakes_whoever_waits() {
    let _daemon = daemon_or_skip!();
    let (a, b) = Rsocket::pair();
    thread::scope(|scope| {
        let reads = scope.spawn(|| b.receive(1, 0));
        let also_reads = scope.spawn(|| b.receive(1, 0));
        thread::sleep(Duration::from_millis(20));
        a.send_all(b"x");
        // One of them has it; the other waits on.
        let end = Instant::now() + PATIENCE;
        while !reads.is_finished() && !also_reads.is_finished() {
            assert!(Instant::now() < end);
            thread::yield_now();
        }
        let polls = scope.spawn(|| b.poll(libc::POLLIN, PATIENCE));
        thread::sleep(Duration::from_millis(20));
        assert!(!polls.is_finished());
        assert_eq!(calls::rclose(b.0), 0);
        assert_ne!(polls.join().unwrap(), 0);
        let both = [reads.join().unwrap(), also_reads.join().unwrap()];
        assert!(both.contains(&Ok(b"x".to_vec())), "{both:?}");
        assert!(both.contains(&Err(Errno::EBADF)) || both.contains(&Ok(Vec::new())), "{both:?}");
    });
}

#[test]
fn a_mapped_buffer_is_written_before_what_is_sent_later() {
    let _daemon = daemon_or_skip!();
    let (a, b) = Rsocket::pair_with(&[(SOL_RDMA, RDMA_IOMAPSIZE, 2)]);
    let (mut one, mut two) = (vec![0; 200_000], vec![0; 100]);
    let mut three = vec![0; 100];
    assert_eq!(a.write_mapped(b"x", 0), Err(Errno::EINVAL), "nothing is mapped");
    assert_eq!(b.map(&mut one, 1000), Ok(1000));
    assert_eq!(b.map(&mut two, -1), Ok(two.as_ptr().addr() as i64));
    assert_eq!(b.map(&mut three, 0), Err(Errno::ENOMEM), "the table has 2 entries");
    // The peer hears of mappings with the next data.
    b.send_all(b"mapped");
    assert_eq!(a.receive(6, libc::MSG_WAITALL), Ok(b"mapped".to_vec()));
    let data = pattern(0, 150_000);
    assert_eq!(a.write_mapped(&data, 1010), Ok(data.len()));
    assert_eq!(a.write_mapped(b"two", two.as_ptr().addr() as i64 + 97), Ok(3));
    assert_eq!(a.write_mapped(b"x", 201_000), Err(Errno::EINVAL), "behind its end");
    a.send_all(b"done");
    assert_eq!(b.receive(4, libc::MSG_WAITALL), Ok(b"done".to_vec()));
    let byte = |buffer: &mut [u8], at: usize| {
        let byte: *mut u8 = &raw mut buffer[at];
        // SAFETY: a byte that a peer may write to.
        unsafe { AtomicU8::from_ptr(byte) }.load(Ordering::Relaxed)
    };
    let seen: Vec<u8> = (10..150_010).map(|at| byte(&mut one, at)).collect();
    assert!(seen == data);
    assert_eq!(
        (byte(&mut one, 9), byte(&mut one, 150_010), byte(&mut two, 97), byte(&mut two, 99)),
        (0, 0, b't', b'o')
    );
    b.unmap(&mut one).unwrap();
    assert_eq!(b.unmap(&mut one), Err(Errno::EINVAL));
    assert_eq!(b.map(&mut three, 5), Ok(5), "there is room again");
    b.send_all(b"changed");
    a.receive(7, libc::MSG_WAITALL).unwrap();
    assert_eq!(a.write_mapped(b"x", 1010), Err(Errno::EINVAL));
    assert_eq!(a.write_mapped(b"x", 5), Ok(1));
    // The memory is the peer's until this has come.
    a.send_all(b"done");
    assert_eq!(b.receive(4, libc::MSG_WAITALL), Ok(b"done".to_vec()));
    assert_eq!((byte(&mut three, 0), byte(&mut three, 1)), (b'x', 0));
}

/// A peer of no rsocket: it says and writes what it wants.
struct Stranger {
    qp: QueuePair,
    cq: CompletionQueue,
    region: MemoryRegion,
    id: SyncId,
    context: Context,
}

impl Stranger {
    fn new(context: Context) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(&CqInit { cqe: 256, ..CqInit::default() }).unwrap();
        let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let region = MemoryPool::new(&context, 1 << 16, PageSize::Base).unwrap().register_all(&pd, rights).unwrap();
        let mut id = SyncId::new(&context, PortSpace::Tcp).unwrap();
        id.bind_addr((ADDRESS, 0).into()).unwrap();
        let qp = pd.create_qp(&QpInit::rc(&cq)).unwrap();
        Self { qp, cq, region, id, context }
    }

    fn connect(&mut self, port: u16, private_data: &[u8]) -> Result<(), i32> {
        let within = Duration::from_secs(2);
        self.id.resolve_addr(None, (ADDRESS, port).into(), within).unwrap();
        self.id.resolve_route(within).unwrap();
        self.id.id().use_qp(&self.qp).unwrap();
        for wr_id in 0..100 {
            self.qp.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
        }
        let param = ConnParam {
            private_data: private_data.to_vec(),
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnParam::default()
        };
        self.id.connect(&param).map_err(|error| error.errno())
    }

    /// A good introduction: one entry of a table, and a receive buffer.
    fn hello(&self) -> [u8; 40] {
        let mut hello = [0; 40];
        hello[0] = 1;
        hello[2..4].copy_from_slice(&50_u16.to_be_bytes());
        for (at, addr, length) in [(8, self.region.addr(), 1_u32), (24, self.region.addr() + 4096, 100)] {
            hello[at..at + 8].copy_from_slice(&addr.to_be_bytes());
            hello[at + 8..at + 12].copy_from_slice(&self.region.rkey().to_be_bytes());
            hello[at + 12..at + 16].copy_from_slice(&length.to_be_bytes());
        }
        hello
    }

    fn say(&self, word: u32) {
        self.qp.post_send(&SendWr::write(0, &[], 0, 0).with_imm(word).signaled()).unwrap();
    }
}

#[test]
fn strangers_are_refused_and_others_are_served() {
    let daemon = daemon_or_skip!();
    let (listener, port) = Rsocket::listening(8);
    thread::scope(|scope| {
        scope.spawn(|| {
            let context = daemon.connect();
            let good = Stranger::new(context.clone()).hello();
            let with = |at: usize, value: u8| {
                let mut hello = good;
                hello[at] = value;
                hello.to_vec()
            };
            let no_credits = [&good[..2], &[0, 0], &good[4..]].concat();
            for hello in [Vec::new(), vec![0xff; 56], with(0, 0), with(0, 2), with(23, 0), no_credits] {
                assert_eq!(Stranger::new(context.clone()).connect(port, &hello), Err(Errno::ECONNREFUSED as i32));
            }
            let client = Rsocket::connected(port);
            client.send_all(b"one of us");
        });
        let served = listener.accept().unwrap();
        assert_eq!(served.receive_to_end(), Ok(b"one of us".to_vec()));
    });
}

#[test]
fn a_server_of_another_protocol_is_no_peer() {
    let daemon = daemon_or_skip!();
    let context = daemon.connect();
    let channel = EventChannel::new(&context).unwrap();
    let listener = channel.create_id(PortSpace::Tcp).unwrap();
    let port = listener.bind_addr((ADDRESS, 0).into()).unwrap().local.unwrap().port();
    listener.listen(1).unwrap();
    thread::scope(|scope| {
        let client = scope.spawn(move || Rsocket::new().connect(port));
        let event = channel.get_event(Some(PATIENCE)).unwrap().unwrap();
        assert_eq!(event.event_type(), CmEventType::ConnectRequest);
        let id: CmId = event.id().clone();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(&CqInit { cqe: 256, ..CqInit::default() }).unwrap();
        let _qp = id.create_qp(&pd, &QpInit::rc(&cq)).unwrap();
        id.accept(&ConnParam { private_data: b"welcome to another service".to_vec(), ..event.answer() }).unwrap();
        assert_eq!(client.join().unwrap(), Err(Errno::ECONNREFUSED));
    });
}

#[test]
fn a_peer_that_lies_loses_its_connection_and_no_more() {
    let daemon = daemon_or_skip!();
    let (listener, port) = Rsocket::listening(8);
    // More bytes than one buffer has; and, after words that mean nothing, bytes again and again.
    for words in [vec![0x1fff_ffff], vec![0x2000_0000, 0xe000_0001, 0xdfff_ffff, 0, 0, 40_000, 40_000, 40_000, 40_000]]
    {
        let context = daemon.connect();
        thread::scope(|scope| {
            let liar = scope.spawn(|| {
                let mut liar = Stranger::new(context);
                liar.connect(port, &liar.hello()).unwrap();
                words.iter().for_each(|&word| liar.say(word));
                liar
            });
            let socket = listener.accept().unwrap();
            let mut received = 0;
            let errno = loop {
                match socket.receive(100_000, 0) {
                    Ok(data) if data.is_empty() => panic!("an end after {received} bytes"),
                    Ok(data) => received += data.len(),
                    Err(errno) => break errno,
                }
            };
            assert_eq!(errno, Errno::EPROTO);
            assert!(received <= 1 << 17, "{received}");
            drop(liar.join().unwrap());
        });
    }
    thread::scope(|scope| {
        scope.spawn(|| Rsocket::connected(port).send_all(b"hello"));
        assert_eq!(listener.accept().unwrap().receive_to_end(), Ok(b"hello".to_vec()));
    });
}

#[test]
fn a_buffer_that_is_not_there_breaks_the_connection_of_who_names_it() {
    let daemon = daemon_or_skip!();
    let (listener, port) = Rsocket::listening(8);
    let context = daemon.connect();
    thread::scope(|scope| {
        let liar = scope.spawn(|| {
            let mut liar = Stranger::new(context);
            let mut hello = liar.hello();
            // A key of nobody.
            hello[32..36].fill(0x5a);
            liar.connect(port, &hello).unwrap();
            liar
        });
        let socket = listener.accept().unwrap();
        // What is sent is lost: then nothing can be.
        let end = Instant::now() + PATIENCE;
        let errno = loop {
            match socket.send(b"to nowhere", 0) {
                Ok(_) => assert!(Instant::now() < end),
                Err(errno) => break errno,
            }
        };
        assert_eq!(errno, Errno::ECONNRESET);
        assert_eq!(socket.send(b"again", 0), Err(Errno::EPIPE));
        drop(liar.join().unwrap());
    });
}

#[test]
fn a_peer_that_dies_is_noticed() {
    let daemon = daemon_or_skip!();
    let (listener, port) = Rsocket::listening(8);
    let context = daemon.connect();
    thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let mut peer = Stranger::new(context);
            peer.connect(port, &peer.hello()).unwrap();
            peer
        });
        let socket = listener.accept().unwrap();
        let peer = peer.join().unwrap();
        assert_eq!(socket.poll(libc::POLLIN, Duration::from_millis(5)), 0);
        // Its end comes from the daemon, as it does of a killed process.
        let Stranger { qp, cq, region, id, context } = peer;
        drop((qp, cq, region, id, context));
        assert_ne!(socket.poll(libc::POLLIN, PATIENCE) & libc::POLLERR, 0);
        assert_eq!(socket.receive(1, 0), Err(Errno::ECONNRESET));
        assert_eq!(socket.receive(1, 0), Ok(Vec::new()));
    });
}

#[test]
fn the_daemons_end_is_the_end_of_all_connections() {
    let mut daemon = daemon_or_skip!();
    let (a, b) = Rsocket::pair();
    let (listener, _) = Rsocket::listening(1);
    a.send_all(b"last words");
    assert_eq!(b.poll(libc::POLLIN, PATIENCE), libc::POLLIN);
    thread::scope(|scope| {
        let reads = scope.spawn(|| a.receive(1, 0));
        let accepts = scope.spawn(|| listener.accept().map(drop));
        thread::sleep(Duration::from_millis(20));
        daemon.kill();
        assert!(reads.join().unwrap().is_err());
        assert!(accepts.join().unwrap().is_err());
    });
    assert_eq!(b.receive(100, 0), Ok(b"last words".to_vec()));
    assert!(b.receive(100, 0).is_err());
    assert!(b.send(b"x", 0).is_err());
    drop((a, b));
    assert_eq!(calls::rsocket(libc::AF_INET, libc::SOCK_STREAM, 0), -1);
    assert_eq!(Errno::last(), Errno::ENODEV);
}
