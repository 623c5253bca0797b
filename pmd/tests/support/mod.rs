//! The conformance suite: what every pair of joined ports must do, whatever driver is behind them.

#![allow(dead_code, reason = "each test binary uses its part of the suite")]

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use pmd::{Burst, Eal, EalConfig, MemoryMode, Port, PortConfig, QueuePair, StartedPort, TxBurst};
use wire::buf::{Dest, TxBatch};

/// Ethertype of local experiments (IEEE 802): told apart from what the kernel sends on an interface.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// Ethernet header, sequence number, length.
const HEAD_BYTES: usize = 14 + 4 + 4;
/// Time without any progress after which a suite gives up.
const PATIENCE: Duration = Duration::from_secs(5);

/// DPDK as every test starts it: no hugepages, no privilege.
pub(crate) fn eal() -> Eal {
    let memory = MemoryMode::NoHuge { mib: 512 };
    Eal::get_or_init(&EalConfig { memory, ..EalConfig::default() }).unwrap()
}

/// One side of a pair of joined ports.
pub(crate) struct Side {
    pub(crate) port: StartedPort,
    pub(crate) queues: QueuePair,
    pub(crate) tx: TxBurst,
}

impl Side {
    pub(crate) fn start(port: Port, config: &PortConfig) -> Self {
        let mut port = port.configure(config).unwrap();
        let queues = port.take_queue_pairs().pop().unwrap();
        assert!(port.take_queue_pairs().is_empty());
        let tx = TxBurst::new(&queues.tx);
        Self { port, queues, tx }
    }

    /// Queues a frame of `len` bytes that only this `sequence` has.
    pub(crate) fn push(&mut self, to: [u8; 6], sequence: u32, len: usize) -> bool {
        let from = self.port.mac().0;
        self.tx.push(Dest::Wire, len, |frame| {
            write_frame(frame, to, from, sequence);
            true
        })
    }

    pub(crate) fn flush(&mut self) -> usize {
        self.tx.flush(&mut self.queues.tx)
    }

    /// Checks and frees what has come in; returns the sequence numbers of our frames.
    pub(crate) fn receive(&mut self) -> Vec<(u32, usize)> {
        let mut burst = Burst::new();
        self.queues.rx.burst(&mut burst);
        burst.iter().for_each(pmd::Mbuf::prefetch);
        burst.iter().filter_map(|mbuf| check_frame(mbuf.data())).collect()
    }
}

fn payload_byte(sequence: u32, offset: usize) -> u8 {
    (sequence.wrapping_mul(0x9e37_79b1) >> 13) as u8 ^ (offset as u8).wrapping_mul(167) ^ (offset >> 8) as u8
}

fn write_frame(frame: &mut [u8], to: [u8; 6], from: [u8; 6], sequence: u32) {
    let len = u32::try_from(frame.len()).unwrap();
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame[12..14].copy_from_slice(&ETHERTYPE);
    frame[14..18].copy_from_slice(&sequence.to_be_bytes());
    frame[18..22].copy_from_slice(&len.to_be_bytes());
    for (offset, byte) in frame.iter_mut().enumerate().skip(HEAD_BYTES) {
        *byte = payload_byte(sequence, offset);
    }
}

/// Sequence number and length of one of our frames, whose every byte is checked; `None` for anybody else's.
fn check_frame(frame: &[u8]) -> Option<(u32, usize)> {
    if frame.get(12..14)? != ETHERTYPE {
        return None;
    }
    let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    let (sequence, len) = (word(14), word(18) as usize);
    assert!(frame.len() >= len, "frame {sequence} of {len} bytes came cut to {}", frame.len());
    for (offset, byte) in frame[..len].iter().enumerate().skip(HEAD_BYTES) {
        assert_eq!(
            *byte,
            payload_byte(sequence, offset),
            "frame {sequence} of {len} bytes is wrong at offset {offset}"
        );
    }
    assert!(frame[len..].iter().all(|byte| *byte == 0), "padding is zeros");
    Some((sequence, len))
}

/// What the pair may do.
pub(crate) struct Traits {
    /// Frames in flight at once, below what the path can queue: no driver over the kernel says when it drops.
    pub(crate) window: usize,
    /// Step of the frame sizes tried, from 60 bytes to the largest.
    pub(crate) size_step: usize,
}

/// Waits until frames pass: a kernel interface or a memif peer takes a moment to come up.
pub(crate) fn wait_for_path(a: &mut Side, b: &mut Side) {
    let (to, end) = (b.port.mac().0, Instant::now() + PATIENCE);
    while Instant::now() < end {
        a.push(to, u32::MAX, 60);
        a.flush();
        std::thread::sleep(Duration::from_millis(5));
        if !b.receive().is_empty() {
            // Let what the tries left in flight arrive and go.
            std::thread::sleep(Duration::from_millis(20));
            while !b.receive().is_empty() {}
            return;
        }
    }
    panic!("no frame passed from {} to {} within {PATIENCE:?}", a.port.name(), b.port.name());
}

/// Both directions, every size: each frame arrives once, whole, in order.
pub(crate) fn all_sizes_arrive_in_order(a: &mut Side, b: &mut Side, traits: &Traits) {
    let largest = a.port.max_frame_bytes().min(b.port.max_frame_bytes()) as usize;
    let mut sizes: Vec<usize> = (60..largest).step_by(traits.size_step).collect();
    sizes.push(largest);
    for forth in [true, false] {
        let (from, to) = if forth { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
        transfer(from, to, &sizes, traits.window);
    }
}

fn transfer(from: &mut Side, to: &mut Side, sizes: &[usize], window: usize) {
    let mac = to.port.mac().0;
    let (mut sent, mut received) = (0, 0);
    let mut progress = Instant::now();
    while received < sizes.len() {
        while sent < sizes.len() && sent - received < window && from.tx.room() > 0 {
            assert!(from.push(mac, sent as u32, sizes[sent]), "room() promised place for frame {sent}");
            sent += 1;
        }
        from.flush();
        for (sequence, len) in to.receive() {
            assert_eq!((sequence as usize, len), (received, sizes[received]));
            received += 1;
            progress = Instant::now();
        }
        assert!(progress.elapsed() < PATIENCE, "stuck: {sent} frames sent, {received} of {} received", sizes.len());
    }
}

/// Over the limit, a frame is refused before anything is lent; at the limit it is not.
pub(crate) fn frames_over_the_limit_are_refused(side: &mut Side) {
    let limit = side.port.max_frame_bytes() as usize;
    let room = side.tx.room();
    let refused = !side.tx.push(Dest::Wire, limit + 1, |_| panic!("a frame over the limit is not lent"));
    assert!(refused && side.tx.room() == room);
    // Given back by the writer: not queued either.
    assert!(!side.tx.push(Dest::Wire, limit, |frame| frame.is_empty()));
    assert_eq!((side.tx.room(), side.tx.pending_count()), (room, 0));
}

/// A sender that never waits for its receiver fills the path; what the port refuses stays in the batch, and all of it arrives, in order.
pub(crate) fn a_full_path_pushes_back_and_loses_nothing(a: &mut Side, b: &mut Side) {
    let to = b.port.mac().0;
    let mut pushed = 0;
    loop {
        while a.push(to, pushed, 64) {
            pushed += 1;
        }
        if a.flush() == 0 {
            break;
        }
        assert!(pushed < 1 << 20, "the path never fills");
    }
    assert_eq!(a.tx.pending_count(), Burst::CAPACITY, "a full batch is left over");
    assert!(a.tx.room() == 0 && a.tx.unflushed().is_empty());
    let (mut expected, mut progress) = (0, Instant::now());
    while expected < pushed {
        for (sequence, _) in b.receive() {
            assert_eq!(sequence, expected);
            expected += 1;
            progress = Instant::now();
        }
        a.flush();
        assert!(progress.elapsed() < PATIENCE, "{expected} of {pushed} frames arrived");
    }
}

/// After `count` frames no buffer is missing.
pub(crate) fn no_buffer_leaks(a: &mut Side, b: &mut Side, count: usize, traits: &Traits) {
    let pools = |a: &Side, b: &Side| {
        [a.queues.rx.pool(), a.queues.tx.pool(), b.queues.rx.pool(), b.queues.tx.pool()].map(pmd::Mempool::avail_count)
    };
    a.flush();
    b.flush();
    let before = pools(a, b);
    let sizes: Vec<usize> = (0..count).map(|index| 60 + index % 64).collect();
    transfer(a, b, &sizes, traits.window);
    let end = Instant::now() + PATIENCE;
    while pools(a, b) != before {
        assert!(Instant::now() < end, "buffers before {before:?}, after {:?}", pools(a, b));
        // A driver frees sent buffers when it next sends.
        a.push(b.port.mac().0, u32::MAX, 60);
        a.flush();
        b.receive();
    }
}

/// Every case of the suite.
pub(crate) fn conformance(a: &mut Side, b: &mut Side, traits: &Traits) {
    wait_for_path(a, b);
    wait_for_path(b, a);
    frames_over_the_limit_are_refused(a);
    all_sizes_arrive_in_order(a, b, traits);
    no_buffer_leaks(a, b, 20_000, traits);
    let macs: BTreeSet<[u8; 6]> = [a.port.mac().0, b.port.mac().0].into();
    assert!(macs.len() == 2 && macs.iter().all(|mac| mac[0] & 1 == 0), "two unicast addresses");
    assert!(a.port.stats().opackets > 0 && b.port.stats().ipackets > 0, "the driver counts");
}

/// Moves the calling thread into a network namespace of its own, which lives as long as the thread and its children.
/// `false`, with the reason printed, where that is not allowed.
pub(crate) fn enter_network_namespace() -> bool {
    match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => true,
        Err(errno) => {
            eprintln!("skipped: a network namespace of its own needs root ({errno})");
            false
        }
    }
}

/// Runs `ip` with these words in the calling thread's namespace.
pub(crate) fn ip(words: &str) {
    let output = Command::new("ip").args(words.split(' ')).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}
