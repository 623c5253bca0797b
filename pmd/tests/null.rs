//! The null port: takes every frame, gives frames without end.

mod support;

use pmd::{Burst, Port, PortConfig, TxBurst, Vdev};
use wire::buf::{Dest, TxBatch};

#[test]
fn null_gives_full_bursts_of_its_size_and_takes_all() {
    let eal = support::eal();
    for (index, copy) in [(0, false), (1, true)] {
        let vdev = Vdev::null(index, 1500, copy);
        eal.add_vdev(&vdev).unwrap();
        let mut port = Port::by_name(eal, vdev.name()).unwrap().configure(&PortConfig::default()).unwrap();
        let mut queues = port.take_queue_pairs().pop().unwrap();
        let (mut tx, mut burst) = (TxBurst::new(&queues.tx), Burst::new());
        for _ in 0..1000 {
            assert_eq!(queues.rx.burst(&mut burst), Burst::CAPACITY);
            assert!(burst.iter().all(|mbuf| mbuf.len() == 1500));
            assert_eq!(queues.rx.burst(&mut burst), 0, "a full burst takes no more");
            while tx.push(Dest::Wire, 1500, |frame| {
                frame.fill(1);
                true
            }) {}
            assert_eq!(tx.flush(&mut queues.tx), Burst::CAPACITY);
            burst.clear();
        }
        assert_eq!(port.stats().opackets, 64_000);
    }
}
