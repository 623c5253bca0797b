//! How many frames a second one thread passes through a ring pair: written in place, sent, received, looked at, freed.
//!
//! `cargo run --release -p ferroce-pmd --example loop_rate [FRAME_BYTES] [BURST]`

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use pmd::{Burst, Eal, EalConfig, PortConfig, RingPairConfig, TxBurst, ring_pair};
use wire::buf::{Dest, TxBatch};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse::<usize>());
    let frame_bytes = arguments.next().transpose()?.unwrap_or(64);
    let burst_len = arguments.next().transpose()?.unwrap_or(32).clamp(1, Burst::CAPACITY);

    let config = EalConfig::default();
    let eal = Eal::init(&config)?;
    let _lcore = eal.register_thread()?;
    let (a, b) = ring_pair(eal, RingPairConfig::default())?;
    let (mut a, mut b) = (a.configure(&PortConfig::default())?, b.configure(&PortConfig::default())?);
    let (Some(mut from), Some(mut to)) = (a.take_queue_pairs().pop(), b.take_queue_pairs().pop()) else {
        return Err("a port without queues".into());
    };
    let (mut tx, mut burst) = (TxBurst::new(&from.tx), Burst::new());
    println!("memory {:?}, frames of {frame_bytes} bytes, bursts of {burst_len}", config.memory);
    for _ in 0..5 {
        let (start, mut count) = (Instant::now(), 0_u64);
        while start.elapsed() < Duration::from_millis(500) {
            for _ in 0..256 {
                for number in 0..burst_len {
                    tx.push(Dest::Wire, frame_bytes, |frame| {
                        frame.fill(number as u8);
                        true
                    });
                }
                tx.flush(&mut from.tx);
                count += to.rx.burst(&mut burst) as u64;
                burst.iter().for_each(|mbuf| {
                    black_box(mbuf.data().first());
                });
                burst.clear();
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        println!("{:7.2} Mpps, {:6.1} ns a frame", count as f64 / seconds / 1e6, seconds * 1e9 / count as f64);
    }
    Ok(())
}
