//! The burst path allocates nothing.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use pmd::{Burst, PortConfig, RingPairConfig, ring_pair};
use support::Side;
use wire::buf::{Dest, TxBatch};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATION_COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATION_COUNT.set(ALLOCATION_COUNT.get() + 1);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn ten_thousand_turns_allocate_nothing() {
    let (a, b) = ring_pair(support::eal(), RingPairConfig::default()).unwrap();
    let (mut a, mut b) = (Side::start(a, &PortConfig::default()), Side::start(b, &PortConfig::default()));
    let mut burst = Burst::new();
    let before = ALLOCATION_COUNT.get();
    assert!(before > 0, "the counter counts");
    for _ in 0..10_000 {
        for _ in 0..32 {
            assert!(a.tx.push(Dest::Wire, 200, |frame| {
                frame.fill(9);
                true
            }));
        }
        assert_eq!(a.flush(), 32);
        assert_eq!(b.queues.rx.burst(&mut burst), 32);
        burst.clear();
    }
    assert_eq!(ALLOCATION_COUNT.get(), before);
}
