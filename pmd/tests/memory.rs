//! DPDK's memory runs out, in a process of its own: the attempt takes what there is for a moment.

mod support;

use pmd::{Mempool, MempoolConfig, MempoolError};

#[test]
fn a_pool_too_large_is_refused_and_takes_nothing_with_it() {
    let eal = support::eal();
    let small = MempoolConfig { mbuf_count: 4096, frame_bytes: 9216, socket: None };
    for _ in 0..3 {
        let error = Mempool::new(eal, MempoolConfig { mbuf_count: 100_000, ..small }).unwrap_err();
        assert_eq!(error, MempoolError::OutOfMemory { count: 100_000, frame_bytes: 9216, mib: 909 });
    }
    let pool = Mempool::new(eal, small).unwrap();
    assert_eq!(pool.avail_count(), 4096);
    // Given up and asked for again, it is the same pool: 20 of them would not fit.
    for _ in 0..20 {
        let pool = Mempool::new(eal, small).unwrap();
        let mbuf = pool.alloc().unwrap();
        assert_eq!((mbuf.len(), pool.avail_count()), (0, 4095));
    }
}
