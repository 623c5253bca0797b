//! One lcore's loop: frames in, doorbells, timers, frames out.

use std::sync::Arc;

use engine::config::EngineConfig;
use engine::{Backlog, MCAST_QPN, Shard, Time, is_for_all_shards, shard_of};
use pmd::{Burst, Clock, Mbuf, QueuePair, RxQueue, TxBurst, TxQueue};
use wire::dest_qpn;

use crate::handover::Handover;
use crate::idle::{Advice, Bed, Idle, IdlePolicy};
use crate::mailbox::{LcoreCounters, Mailbox};
use crate::middleware::{LcoreQueues, Middleware};

/// How many frames ahead of the one in hand the processor is told to load.
const PREFETCH_FRAMES: usize = 4;

/// One lcore's queue pair of a port.
#[derive(Debug)]
struct LcorePort {
    rx: RxQueue,
    tx: TxQueue,
    batch: TxBurst,
    /// Frames for other lcores whose inboxes were full. Until they are gone, nothing more is built for this port.
    waiting: Burst,
    waiting_for: [u8; Burst::CAPACITY],
    /// Receive bursts in a row that were full.
    full_bursts: u32,
    middleware: Option<Box<Middleware>>,
}

/// One lcore: its shard and its queues.
#[derive(Debug)]
pub(crate) struct Lcore {
    shard: Shard,
    clock: Clock,
    ports: Vec<LcorePort>,
    /// The frames in hand; empty between turns.
    burst: Burst,
    /// Where an engine has several lcores.
    handover: Option<Handover>,
}

impl Lcore {
    /// Lcore `id` of an engine, with its queue pair of each port.
    pub(crate) fn new(
        id: u8,
        config: &Arc<EngineConfig>,
        clock: Clock,
        queues: Vec<LcoreQueues>,
        handover: Option<Handover>,
    ) -> Self {
        let shard = Shard::new(id, Arc::clone(config), Time::from_ns(clock.now_ns()));
        let port = |(QueuePair { rx, tx }, middleware)| LcorePort {
            batch: TxBurst::new(&tx),
            rx,
            tx,
            waiting: Burst::new(),
            waiting_for: [0; Burst::CAPACITY],
            full_bursts: 0,
            middleware,
        };
        let ports = queues.into_iter().map(port).collect();
        Self { shard, clock, ports, burst: Burst::new(), handover }
    }

    pub(crate) fn shard(&mut self) -> &mut Shard {
        &mut self.shard
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_ns(self.clock.now_ns())
    }

    /// One turn. True if there was anything to do.
    ///
    /// *Cost*: no allocation and no lock; no system call but a driver's own, and a write for each application or lcore that
    /// sleeps and has something to do now.
    pub(crate) fn turn(&mut self, counters: &LcoreCounters) -> bool {
        let now = self.now();
        let mut busy = false;
        for port in 0..self.ports.len() {
            busy |= self.receive(now, port, counters);
        }
        busy |= self.take_handed_over(now);
        busy |= self.shard.handle_doorbells(now);
        busy |= self.shard.handle_timers(now);
        for port in 0..self.ports.len() {
            busy |= self.transmit(now, port, counters);
        }
        if let Some(handover) = &mut self.handover {
            handover.wake_receivers();
        }
        while let Some(application) = self.shard.poll_wake() {
            application.notify();
        }
        self.shard.count_turn(!busy);
        busy
    }

    #[inline]
    fn receive(&mut self, now: Time, port: usize, counters: &LcoreCounters) -> bool {
        let Self { shard, ports, burst, handover, .. } = self;
        let io = &mut ports[port];
        io.rx.burst(burst);
        let is_governed = shard.wants_backlog(port as u8);
        if is_governed {
            io.full_bursts = if burst.room() == 0 { io.full_bursts.saturating_add(1) } else { 0 };
        }
        if let Some(middleware) = &mut io.middleware {
            middleware.received(burst);
        }
        let is_busy = !burst.is_empty();
        let inbox = handover.as_ref().filter(|_| is_governed).map_or(0, Handover::waiting);
        match handover {
            None => handle_burst(shard, now, port as u8, burst),
            Some(handover) => sort_burst(shard, now, port as u8, burst, handover, counters, &io.tx),
        }
        if is_governed {
            shard.handle_backlog(now, port as u8, io.backlog(inbox));
        }
        is_busy
    }

    /// Frames that other lcores have put down for this one.
    #[inline]
    fn take_handed_over(&mut self, now: Time) -> bool {
        let Self { shard, burst, handover: Some(handover), .. } = self else { return false };
        let mut found = false;
        for lcore in 0..handover.lcore_count() {
            if let Some(port) = handover.take(lcore, burst) {
                found = true;
                handle_burst(shard, now, port, burst);
            }
        }
        found
    }

    #[inline]
    fn transmit(&mut self, now: Time, port: usize, counters: &LcoreCounters) -> bool {
        let Self { shard, ports, handover, .. } = self;
        let io = &mut ports[port];
        if !io.waiting.is_empty() && !io.retry_waiting(port as u8, handover.as_mut()) {
            counters.local_waits.add(1);
            io.batch.flush(&mut io.tx);
            return true;
        }
        let built = shard.poll_transmit(now, port as u8, &mut io.batch);
        let pending = io.batch.pending_count();
        if built == 0 && pending == 0 {
            return false;
        }
        if let Some(middleware) = &mut io.middleware {
            middleware.record(io.batch.unflushed());
        }
        if io.batch.local_count() > 0 {
            io.deliver_local(shard, now, port as u8, handover.as_mut(), counters);
        }
        io.batch.flush(&mut io.tx);
        true
    }

    /// True if the lcore must not sleep: something waits that no doorbell tells of.
    fn has_work(&self) -> bool {
        let waits = |io: &LcorePort| io.batch.pending_count() > 0 || !io.waiting.is_empty();
        self.shard.wants_transmit()
            || self.handover.as_ref().is_some_and(Handover::has_frames)
            || self.ports.iter().any(waits)
    }
}

impl LcorePort {
    /// What waits for this lcore: frames in its receive queue and in its inbox. Where the driver does not tell, the frames that came
    /// since the queue was last found empty stand for those in it: nobody knows how many follow.
    #[cold]
    fn backlog(&self, inbox: u32) -> Backlog {
        match self.rx.waiting() {
            Some(frames) => Backlog { frames: frames.saturating_add(inbox), capacity: self.rx.slots().into() },
            None => {
                let taken = self.full_bursts.saturating_mul(Burst::CAPACITY as u32);
                Backlog { frames: taken.saturating_add(inbox), capacity: u32::MAX }
            }
        }
    }

    /// Frames between two QPs of this engine: to this shard at once, to another by its inbox.
    fn deliver_local(
        &mut self,
        shard: &mut Shard,
        now: Time,
        port: u8,
        mut handover: Option<&mut Handover>,
        counters: &LcoreCounters,
    ) {
        for (to, mbuf) in self.batch.take_local() {
            if to == shard.id() {
                shard.handle_frame(now, port, mbuf.data());
                continue;
            }
            // The number comes from a client: its peer's QPN may be of no shard.
            let Some(handover) = handover.as_mut().filter(|handover| usize::from(to) < handover.lcore_count()) else {
                counters.local_unknown_shard.add(1);
                continue;
            };
            // Once one waits, all behind it do: a QP's frames stay in order.
            let refused = match self.waiting.is_empty() {
                true => handover.send(usize::from(to), port, mbuf).err(),
                false => Some(mbuf),
            };
            if let Some(mbuf) = refused {
                self.waiting_for[self.waiting.len()] = to;
                self.waiting.push(mbuf).expect("it holds as many as a batch does, and was empty when that was built");
            }
        }
    }

    /// Tries the frames that wait again, in order. True if all are gone.
    #[cold]
    fn retry_waiting(&mut self, port: u8, handover: Option<&mut Handover>) -> bool {
        let Some(handover) = handover else {
            self.waiting.clear();
            return true;
        };
        let mut rest = Burst::new();
        for (place, mbuf) in self.waiting.drain().enumerate() {
            let to = self.waiting_for[place];
            let refused = match rest.is_empty() {
                true => handover.send(usize::from(to), port, mbuf).err(),
                false => Some(mbuf),
            };
            if let Some(mbuf) = refused {
                self.waiting_for[rest.len()] = to;
                rest.push(mbuf).expect("no more than there were");
            }
        }
        self.waiting = rest;
        self.waiting.is_empty()
    }
}

/// Handles and frees the frames of a burst.
#[inline]
fn handle_burst(shard: &mut Shard, now: Time, port: u8, burst: &mut Burst) {
    burst.iter().take(PREFETCH_FRAMES).for_each(Mbuf::prefetch);
    for (place, mbuf) in burst.iter().enumerate() {
        if let Some(ahead) = burst.get(place + PREFETCH_FRAMES) {
            ahead.prefetch();
        }
        shard.handle_frame(now, port, mbuf.data());
    }
    burst.clear();
}

/// Handles the frames of a burst that are this shard's, and hands the others over.
fn sort_burst(
    shard: &mut Shard,
    now: Time,
    port: u8,
    burst: &mut Burst,
    handover: &mut Handover,
    counters: &LcoreCounters,
    tx: &TxQueue,
) {
    burst.iter().for_each(Mbuf::prefetch);
    for mbuf in burst.drain() {
        let dest = dest_qpn(mbuf.data());
        let is_multicast = dest == Some(MCAST_QPN);
        let owner = dest.filter(|_| !is_multicast).map_or(shard.id(), shard_of);
        if owner != shard.id() && usize::from(owner) < handover.lcore_count() {
            counters.handed_over_packets.add(1);
            if handover.send(usize::from(owner), port, mbuf).is_err() {
                counters.handover_lost_packets.add(1);
            }
            continue;
        }
        if is_multicast || is_for_all_shards(mbuf.data()) {
            copy_to_others(shard.id(), port, mbuf.data(), handover, tx);
        }
        shard.handle_frame(now, port, mbuf.data());
    }
}

/// Every shard has a neighbour table of its own, and all learn of each ARP or Neighbour Discovery packet. A copy that is lost is
/// asked for again. Every shard obeys pauses; a lost one is renewed by a peer that still needs it. And every shard may have members
/// of a multicast group.
#[cold]
fn copy_to_others(own: u8, port: u8, frame: &[u8], handover: &mut Handover, tx: &TxQueue) {
    for lcore in (0..handover.lcore_count()).filter(|&lcore| lcore != usize::from(own)) {
        let Some(mut copy) = tx.pool().alloc() else { return };
        let Some(bytes) = copy.resize(frame.len()) else { return };
        bytes.copy_from_slice(frame);
        let _lost = handover.send(lcore, port, copy);
    }
}

/// The loop of an lcore that has a thread of its own: until its mailbox says stop.
pub(crate) fn run(lcore: &mut Lcore, mailbox: &Mailbox, policy: IdlePolicy, bed: &mut Bed) {
    let counters = &mailbox.counters;
    let mut idle = Idle::new(policy);
    loop {
        let busy = lcore.turn(counters);
        if mailbox.has_attention() {
            let now = lcore.now();
            if !mailbox.serve(&mut lcore.shard, now) {
                return;
            }
            idle.busy();
        }
        if lcore.shard.has_event() {
            mailbox.publish_events(&mut lcore.shard);
        }
        if lcore.shard.has_notice() {
            mailbox.publish_notices(&mut lcore.shard);
        }
        if lcore.shard.has_mad() {
            mailbox.publish_mads(&mut lcore.shard);
        }
        if busy {
            idle.busy();
            continue;
        }
        let now_ns = lcore.clock.now_ns();
        match idle.advise(now_ns) {
            Advice::Spin => std::hint::spin_loop(),
            Advice::Yield => counters.crowded.add(u64::from(idle.yield_core(now_ns, || lcore.clock.now_ns()))),
            Advice::Sleep(ns) => sleep(lcore, mailbox, bed, ns),
        }
    }
}

/// Sleeps until somebody rings, a frame comes (where the port can tell), something is due, or the time is over.
#[cold]
fn sleep(lcore: &mut Lcore, mailbox: &Mailbox, bed: &mut Bed, longest_ns: u64) {
    bed.make();
    mailbox.announce_sleep();
    // First the words to the clients, then the look at what they, other lcores and the ports may have put down meanwhile.
    let rung = lcore.shard.announce_sleep() || mailbox.has_attention() || lcore.has_work();
    let work = rung || lcore.turn(&mailbox.counters);
    let due_ns = lcore.shard.next_deadline().ns_since(lcore.now());
    let timeout_ns = longest_ns.min(due_ns);
    if !work && timeout_ns > 0 {
        mailbox.counters.sleeps.add(1);
        mailbox.counters.wakes.add(u64::from(bed.sleep(timeout_ns)));
    }
    lcore.shard.announce_awake();
    mailbox.announce_awake();
}
