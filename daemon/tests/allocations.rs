//! The loop allocates nothing once everything is made: application, rings, engine, packets, of two engines on one thread.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use daemon::embedded::{PolledNode, engine_config, polled_pair};
use ferroce::{AhAttr, Context, Psn, QpInit, RecvWr, SendWr, Sge, WorkCompletion, start_datagrams};
use support::{Peer, connect};

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

const TURNS: u64 = 10_000;
const LENGTH: u32 = 10_000;

/// Keeps both directions busy: WRITEs, READs and SENDs of several packets, a bounded number under way.
struct Load<'a> {
    from: &'a Peer,
    to: &'a Peer,
    here: [Sge; 1],
    there: [Sge; 1],
    posted: u64,
    completed: u64,
    completions: [WorkCompletion; 16],
}

impl<'a> Load<'a> {
    fn new(from: &'a Peer, to: &'a Peer) -> Self {
        let here = [from.region.sge(0, LENGTH).unwrap()];
        let there = [to.region.sge(LENGTH.into(), LENGTH).unwrap()];
        Self { from, to, here, there, posted: 0, completed: 0, completions: [WorkCompletion::default(); 16] }
    }

    fn post(&mut self) {
        let (addr, rkey) = (self.to.region.addr() + u64::from(LENGTH) * 2, self.to.region.rkey());
        while self.posted - self.completed < 16 {
            let wr = match self.posted % 3 {
                0 => SendWr::write(1, &self.here, addr, rkey),
                1 => SendWr::read(2, &self.here, addr, rkey),
                _ => {
                    self.to.qp.post_recv(&RecvWr::new(3, &self.there)).unwrap();
                    SendWr::send(3, &self.here)
                }
            };
            self.from.qp.post_send(&wr.signaled()).unwrap();
            self.posted += 1;
        }
    }

    /// Takes completions of the sending side; the other side's are its own load's.
    fn complete(&mut self, received: &mut u64) {
        let count = self.from.cq.poll(&mut self.completions);
        for completion in &self.completions[..count] {
            assert!(completion.is_ok(), "{}", completion.status);
            if completion.is_recv() { *received += 1 } else { self.completed += 1 }
        }
    }
}

fn context(node: &PolledNode) -> Context {
    Context::from_endpoint(node.connect().unwrap()).unwrap()
}

#[test]
fn ten_thousand_turns_under_load_allocate_nothing() {
    let [a_node, b_node] = polled_pair(&engine_config("ferroce0")).unwrap();
    let (a, b) = (Peer::new(context(&a_node), 1 << 20, 0), Peer::new(context(&b_node), 1 << 20, 0));
    connect(&a, &b);
    let (mut forth, mut back) = (Load::new(&a, &b), Load::new(&b, &a));
    let mut received = 0;
    let mut turns = |count: u64| {
        for _ in 0..count {
            forth.post();
            back.post();
            a_node.poll();
            b_node.poll();
            forth.complete(&mut received);
            back.complete(&mut received);
        }
        forth.completed + back.completed
    };
    // Neighbours are found and tables have their size after the first ones.
    let warm = turns(100);
    let before = ALLOCATION_COUNT.get();
    assert!(before > 0, "the counter counts");
    let completed = turns(TURNS) - warm;
    assert_eq!(ALLOCATION_COUNT.get(), before, "{completed} work requests completed meanwhile");
    assert!(completed > TURNS / 4, "{completed} work requests in {TURNS} turns are no load");
    assert!(received > completed / 4);
}

#[test]
fn ten_thousand_datagrams_allocate_nothing() {
    const QKEY: u32 = 0x1111_1111;
    let [a_node, b_node] = polled_pair(&engine_config("ferroce0")).unwrap();
    let (a, b) = (Peer::new(context(&a_node), 1 << 20, 0), Peer::new(context(&b_node), 1 << 20, 0));
    let [here, there] = [&a, &b].map(|peer| {
        let qp = peer.pd.create_qp(&QpInit::ud(&peer.cq)).unwrap();
        start_datagrams(&qp, 1, QKEY, Psn::new(0)).unwrap();
        qp
    });
    let dgid = b.context.query_gids(1).unwrap()[0].gid;
    let ah = a.pd.create_ah(&AhAttr { dgid, port_num: 1, ..AhAttr::default() }).unwrap();
    let (sges, room) = ([a.region.sge(0, 512).unwrap()], [b.region.sge(0, 1024).unwrap()]);
    let exchange = |count: u64| {
        for wr_id in 0..count {
            there.post_recv(&RecvWr::new(wr_id, &room)).unwrap();
            here.post_send(&SendWr::send(wr_id, &sges).to(&ah, there.qpn(), QKEY).signaled()).unwrap();
            assert_eq!((a.complete().wr_id, b.complete().wr_id), (wr_id, wr_id));
        }
    };
    // The neighbour is found with the first.
    exchange(10);
    let before = ALLOCATION_COUNT.get();
    exchange(TURNS);
    assert_eq!(ALLOCATION_COUNT.get(), before);
}
