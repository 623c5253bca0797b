//! Two ports joined by rings in one process, and what needs nothing else: batches, faults, pools, refusals.

mod support;

use std::time::Instant;

use pmd::{
    Burst, Eal, EalConfig, EalError, FaultInjector, FaultRates, Mempool, MempoolConfig, MempoolError, Port, PortConfig,
    PortError, RingPairConfig, RingPairError, Vdev, port_names, ring_pair,
};
use support::{Side, Traits};
use wire::buf::{Dest, TxBatch};

fn sides(slots: u32, config: &PortConfig) -> (Side, Side) {
    let (a, b) = ring_pair(support::eal(), RingPairConfig { slots, ..RingPairConfig::default() }).unwrap();
    (Side::start(a, config), Side::start(b, config))
}

#[test]
fn ring_pair_conforms() {
    let (mut a, mut b) = sides(1024, &PortConfig { max_frame_bytes: 9216, ..PortConfig::default() });
    let traits = Traits { window: 512, size_step: 1 };
    support::conformance(&mut a, &mut b, &traits);
    support::a_full_path_pushes_back_and_loses_nothing(&mut a, &mut b);
    support::no_buffer_leaks(&mut a, &mut b, 100_000, &traits);
    assert!(a.port.link().up);
    assert_eq!((a.port.max_frame_bytes(), a.port.mtu_bytes(), a.port.kernel_interface()), (9216, 9202, None));
}

#[test]
fn queues_of_one_port_are_apart_and_move_to_threads() {
    let (a, b) = ring_pair(support::eal(), RingPairConfig { queue_pairs: 2, slots: 64 }).unwrap();
    let config = PortConfig { queue_pairs: 2, ..PortConfig::default() };
    let (mut a, mut b) = (a.configure(&config).unwrap(), b.configure(&config).unwrap());
    let workers: Vec<_> = a
        .take_queue_pairs()
        .into_iter()
        .zip(b.take_queue_pairs())
        .enumerate()
        .map(|(number, (mut from, mut to))| {
            std::thread::spawn(move || {
                let _lcore = support::eal().register_thread().unwrap();
                let (mut tx, mut received) = (pmd::TxBurst::new(&from.tx), Burst::new());
                for turn in 0..1000_usize {
                    assert!(tx.push(Dest::Wire, 64, |frame| {
                        frame.fill(number as u8);
                        true
                    }));
                    assert_eq!(tx.flush(&mut from.tx), 1);
                    assert_eq!(to.rx.burst(&mut received), 1, "turn {turn}");
                    assert!(received[0].data().iter().all(|byte| usize::from(*byte) == number));
                    received.clear();
                }
            })
        })
        .collect();
    // The port outlives its handle: the queues keep it running.
    drop(a);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}

#[test]
fn ports_disappear_with_their_handles_and_names_are_told() {
    let eal = support::eal();
    let (a, b) = ring_pair(eal, RingPairConfig::default()).unwrap();
    let name = a.name().to_owned();
    assert!(port_names(eal).contains(&name));
    assert_eq!(Port::by_name(eal, &name).unwrap_err(), PortError::Busy(name.clone()));
    let started = a.configure(&PortConfig::default()).unwrap();
    assert_eq!(Port::by_name(eal, &name).unwrap_err(), PortError::Busy(name.clone()));
    drop((started, b));
    let error = Port::by_name(eal, &name).unwrap_err();
    assert!(matches!(&error, PortError::NoSuchPort { name: asked, known } if *asked == name && !known.contains(&name)));
    assert!(error.to_string().contains(&name));
}

#[test]
fn ring_pairs_come_and_go_without_eating_memory() {
    // 200 times some 20 MiB would not fit into what DPDK has here.
    for _ in 0..200 {
        let (mut a, mut b) = sides(1024, &PortConfig::default());
        // Frames under way when both ends go are freed.
        assert!(a.push(b.port.mac().0, 1, 64) && b.push(a.port.mac().0, 2, 64));
        assert_eq!((a.flush(), b.flush()), (1, 1));
    }
}

#[test]
fn buffers_outlive_port_and_pool() {
    let (mut a, mut b) = sides(64, &PortConfig::default());
    assert!(a.push(b.port.mac().0, 7, 200));
    a.flush();
    let mut burst = Burst::new();
    assert_eq!(b.queues.rx.burst(&mut burst), 1);
    let mbuf = burst.pop().unwrap();
    drop((a, b, burst));
    assert_eq!(mbuf.len(), 200);
    std::thread::spawn(move || drop(mbuf)).join().unwrap();
}

#[test]
fn local_frames_go_to_the_caller_and_not_to_the_wire() {
    let (mut a, mut b) = sides(64, &PortConfig::default());
    for shard in [3, 1, 3] {
        assert!(a.tx.push(Dest::Local { shard }, 100, |frame| {
            frame.fill(shard);
            true
        }));
    }
    assert_eq!(a.flush(), 0);
    assert_eq!(a.tx.local_count(), 3);
    let local: Vec<(u8, u8)> = a.tx.take_local().map(|(shard, mbuf)| (shard, mbuf.data()[99])).collect();
    assert_eq!(local, [(3, 3), (1, 1), (3, 3)]);
    assert!(a.tx.local_count() == 0 && b.receive().is_empty());
    // A full array for other shards takes the room of all frames, and gives it back.
    while a.tx.push(Dest::Local { shard: 0 }, 60, |_| true) {}
    assert_eq!((a.tx.local_count(), a.tx.room()), (Burst::CAPACITY, 0));
    drop(a.tx.take_local());
    a.flush();
    assert_eq!(a.tx.room(), Burst::CAPACITY);
}

#[test]
fn short_frames_are_padded_only_where_asked() {
    for (pad_short_frames, len) in [(None, 30), (Some(false), 30), (Some(true), 60)] {
        let (mut a, mut b) = sides(64, &PortConfig { pad_short_frames, ..PortConfig::default() });
        assert!(a.push(b.port.mac().0, 5, 30));
        assert_eq!(a.tx.unflushed()[0].len(), len);
        a.flush();
        // `receive` checks that padding is zeros, though the buffer was used before.
        assert_eq!(b.receive(), [(5, 30)]);
        assert_eq!(a.queues.tx.frame(&[1; 40]).unwrap().len(), len.max(40));
    }
}

#[test]
fn an_empty_pool_takes_the_room_and_gives_it_back() {
    let (mut a, b) = sides(1024, &PortConfig { spare_mbufs: 0, ..PortConfig::default() });
    let pool = a.queues.tx.pool().clone();
    let mut hoard: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
    while a.push(b.port.mac().0, 0, 60) {}
    a.flush();
    assert_eq!((a.tx.room(), pool.avail_count()), (0, 0));
    hoard.pop();
    a.flush();
    assert_eq!(a.tx.room(), 1, "the last buffer is used");
    drop(hoard);
    a.flush();
    assert_eq!(a.tx.room(), Burst::CAPACITY);
}

/// Sends `count` numbered frames through `faults`; returns each arrival's number, and whether its bytes were spoilt.
fn through_faults(rates: FaultRates, seed: u64, count: u32) -> (Vec<(u32, bool)>, pmd::FaultCounts) {
    let (mut a, mut b) = sides(1024, &PortConfig::default());
    let mut faults = FaultInjector::new(rates, seed, b.queues.rx.pool().clone()).unwrap();
    let (mut burst, mut arrived, mut sent, mut quiet) = (Burst::new(), Vec::new(), 0, 0);
    while quiet < 10 {
        for _ in 0..32.min(count - sent) {
            let number = sent.to_be_bytes();
            assert!(a.tx.push(Dest::Wire, 100, |frame| {
                frame.chunks_mut(4).for_each(|chunk| chunk.copy_from_slice(&number));
                true
            }));
            sent += 1;
        }
        a.flush();
        b.queues.rx.burst(&mut burst);
        faults.apply(&mut burst);
        quiet = if sent == count && burst.is_empty() { quiet + 1 } else { 0 };
        arrived.extend(burst.drain().map(|mbuf| majority(mbuf.data())));
    }
    (arrived, faults.counts())
}

/// The number that most words of a frame hold, and whether exactly one bit of it differs.
fn majority(frame: &[u8]) -> (u32, bool) {
    let words: Vec<u32> = frame.chunks(4).map(|chunk| u32::from_be_bytes(chunk.try_into().unwrap())).collect();
    let number = if words[0] == words[1] { words[0] } else { words[2] };
    let flipped: u32 = words.iter().map(|word| (word ^ number).count_ones()).sum();
    assert!(flipped <= 1, "{flipped} bits flipped in one frame");
    (number, flipped == 1)
}

#[test]
fn faults_at_rate_zero_change_nothing_and_at_rate_one_hit_every_frame() {
    let numbers = |arrived: &[(u32, bool)]| arrived.iter().map(|(number, _)| *number).collect::<Vec<_>>();
    let none = FaultRates::default();
    let clean: Vec<u32> = (0..500).collect();

    let (arrived, counts) = through_faults(none, 1, 500);
    assert_eq!((numbers(&arrived), counts), (clean.clone(), pmd::FaultCounts::default()));
    let (arrived, counts) = through_faults(FaultRates { drop: 1.0, ..none }, 1, 500);
    assert_eq!((arrived.len(), counts.dropped), (0, 500));
    let (arrived, counts) = through_faults(FaultRates { corrupt: 1.0, ..none }, 1, 500);
    assert!(arrived.iter().all(|(_, spoilt)| *spoilt) && numbers(&arrived) == clean && counts.corrupted == 500);
    let (arrived, counts) = through_faults(FaultRates { duplicate: 1.0, ..none }, 1, 500);
    let twice: Vec<u32> = clean.iter().flat_map(|number| [*number; 2]).collect();
    assert_eq!((numbers(&arrived), counts.duplicated), (twice, 500));
    let (arrived, counts) = through_faults(FaultRates { reorder: 0.2, ..none }, 1, 500);
    let mut sorted = numbers(&arrived);
    assert!(sorted != clean && counts.reordered > 50);
    sorted.sort_unstable();
    assert_eq!(sorted, clean, "reordering neither loses nor copies");
}

#[test]
fn faults_replay_from_their_seed() {
    let rates = FaultRates { drop: 0.1, duplicate: 0.1, reorder: 0.1, corrupt: 0.1 };
    let (first, counts) = through_faults(rates, 42, 2000);
    assert_eq!(through_faults(rates, 42, 2000), (first.clone(), counts));
    assert_ne!(through_faults(rates, 43, 2000).0, first);
    for dropped in [counts.dropped, counts.duplicated, counts.reordered, counts.corrupted] {
        assert!((100..300).contains(&dropped), "a tenth of 2000, not {dropped}");
    }
}

#[test]
fn fault_rates_outside_zero_to_one_are_refused() {
    let config = MempoolConfig { mbuf_count: 64, frame_bytes: 64, socket: None };
    let pool = Mempool::new(support::eal(), config).unwrap();
    for value in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        let error =
            FaultInjector::new(FaultRates { reorder: value, ..FaultRates::default() }, 0, pool.clone()).unwrap_err();
        assert_eq!(error.name, "reorder");
    }
}

#[test]
fn bad_settings_are_refused_with_the_legal_range() {
    let eal = support::eal();
    let pair = |queue_pairs, slots| ring_pair(eal, RingPairConfig { queue_pairs, slots }).unwrap_err();
    assert_eq!(pair(0, 64), RingPairError::QueuePairs(0));
    assert_eq!(pair(17, 64), RingPairError::QueuePairs(17));
    for slots in [0, 32, 100, 1 << 17] {
        assert_eq!(pair(1, slots), RingPairError::Slots(slots));
    }
    let configure = |config: PortConfig| {
        let (a, _b) = ring_pair(eal, RingPairConfig::default()).unwrap();
        a.configure(&config).unwrap_err()
    };
    let queues = configure(PortConfig { queue_pairs: 2, ..PortConfig::default() });
    assert!(matches!(queues, PortError::QueuePairs { asked: 2, max: 1, .. }));
    for asked in [0, 63, 65_281] {
        let error = configure(PortConfig { max_frame_bytes: asked, ..PortConfig::default() });
        assert!(matches!(&error, PortError::FrameBytes { asked: told, .. } if *told == asked), "{error}");
    }
    let pool = |mbuf_count, frame_bytes| {
        Mempool::new(eal, MempoolConfig { mbuf_count, frame_bytes, socket: None }).unwrap_err()
    };
    assert_eq!(pool(63, 64), MempoolError::Count(63));
    assert_eq!(pool(64, 63), MempoolError::FrameBytes(63));
    assert_eq!(pool(64, 65_281), MempoolError::FrameBytes(65_281));
}

#[test]
fn dpdk_starts_once_and_refused_devices_are_named() {
    let eal = support::eal();
    assert_eq!(Eal::init(&EalConfig::default()).unwrap_err(), EalError::AlreadyStarted);
    assert!(eal.version().starts_with("DPDK"));

    let absent = Vdev::af_packet(9, "no-such-if", 1, 1514);
    let error = eal.add_vdev(&absent).unwrap_err();
    assert!(matches!(error, EalError::NoInterface { .. }) && error.to_string().contains("no-such-if"));
    let bad: Vdev = "net_memif9,role=emperor".parse().unwrap();
    let error = eal.add_vdev(&bad).unwrap_err();
    assert!(matches!(error, EalError::VdevRefused { .. }) && error.to_string().contains("net_memif9,role=emperor"));
    let null = Vdev::null(9, 64, false);
    eal.add_vdev(&null).unwrap();
    assert_eq!(eal.add_vdev(&null), Err(EalError::VdevExists(null.clone())));
    // Used, dropped, and made again under its name.
    drop(Port::by_name(eal, null.name()).unwrap().configure(&PortConfig::default()).unwrap());
    eal.add_vdev(&null).unwrap();
}

#[test]
fn starting_dpdk_leaves_the_thread_s_cores_alone() {
    let before = pmd::available_cores().unwrap();
    let start = Instant::now();
    support::eal();
    assert_eq!(pmd::available_cores().unwrap(), before);
    assert!(start.elapsed().as_secs() < 5);
}

#[test]
fn a_registered_thread_has_an_lcore_until_it_gives_it_up() {
    std::thread::spawn(|| {
        let first = support::eal().register_thread().unwrap();
        assert!(first.lcore_id() < 128);
        drop(first);
        let again = support::eal().register_thread().unwrap();
        assert!(again.lcore_id() < 128);
    })
    .join()
    .unwrap();
}
