//! Throughput: as many messages under way as the queues hold.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ferroce::{AddressHandle, Qpn, RecvWr, SendWr, Sge, WorkCompletion};

use crate::error::{PerfError, Result};
use crate::params::Verb;
use crate::patience::Patience;
use crate::side::{QKEY, Side};
use crate::stats::{Latencies, Peak, Round};

/// Completions taken, and receives posted, at a time.
const BATCH: usize = 64;
/// Batches of completions taken before sends are posted again.
const BATCHES: usize = 4;
/// An unreliable peer that has sent its last message, and of which nothing came for so long: what is missing is lost.
const GRACE: Duration = Duration::from_millis(100);

/// A wr_id is the QP's place and, in the bits below, the message's number on it.
const NUMBER_BITS: u32 = 40;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

/// One QP's sends.
struct Sends {
    sges: Vec<[Sge; 1]>,
    /// The payload of each slot, where it goes inline.
    inline: Vec<Vec<u8>>,
    remote_addr: u64,
    rkey: u32,
    /// Of a datagram: where it goes.
    to: Option<(AddressHandle, Qpn)>,
    slot: usize,
    posted: u64,
    completed: u64,
    /// Messages to post in all; without end until the time is over.
    target: u64,
    /// When each signalled message under way was posted.
    stamps: VecDeque<Instant>,
}

/// One QP's receives.
struct Receives {
    sges: Vec<[Sge; 1]>,
    slot: usize,
    posted: u64,
    completed: u64,
    target: u64,
}

/// One side of a throughput test, advanced by [`Bandwidth::step`].
pub(crate) struct Bandwidth<'a> {
    side: &'a Side,
    /// Empty if this side does not send.
    sends: Vec<Sends>,
    /// Empty if this side does not receive.
    receives: Vec<Receives>,
    completions: [WorkCompletion; BATCH],
    started: Option<Instant>,
    ended: Instant,
    done: u64,
    peak: Peak,
    latencies: Latencies,
    patience: Patience,
    /// The peer has said how much it sent.
    is_told: bool,
    /// Since when nothing has come after that.
    quiet_since: Option<Instant>,
    /// What has not come by now is lost.
    gave_up: bool,
}

impl<'a> Bandwidth<'a> {
    /// `sends`: this side sends; `receives`: it takes what the peer SENDs. Receives are posted at once.
    ///
    /// # Errors
    /// What posting says.
    pub(crate) fn new(side: &'a Side, sends: bool, receives: bool) -> Result<Self> {
        let lanes = 0..side.lanes.len();
        let receives = receives && side.params.test.verb == Verb::Send;
        let now = Instant::now();
        let mut bandwidth = Self {
            side,
            sends: if sends {
                lanes.clone().map(|lane| Sends::new(side, lane)).collect::<Result<_>>()?
            } else {
                vec![]
            },
            receives: if receives {
                lanes.map(|lane| Receives::new(side, lane)).collect::<Result<_>>()?
            } else {
                vec![]
            },
            completions: [WorkCompletion::default(); BATCH],
            started: None,
            ended: now,
            done: 0,
            peak: Peak::new(now),
            latencies: Latencies::new(),
            patience: Patience::new(),
            is_told: false,
            quiet_since: None,
            gave_up: false,
        };
        for (number, receives) in bandwidth.receives.iter_mut().enumerate() {
            receives.fill(side, number)?;
        }
        Ok(bandwidth)
    }

    /// Does what can be done now. True once all sends of this side have completed and all receives have come.
    ///
    /// # Errors
    /// [`PerfError::Completion`] when a message fails, [`PerfError::Silent`] when nothing arrives any more.
    #[inline]
    pub(crate) fn step(&mut self) -> Result<bool> {
        if self.started.is_none() && !self.sends.is_empty() {
            let now = Instant::now();
            (self.started, self.peak) = (Some(now), Peak::new(now));
        }
        for (number, sends) in self.sends.iter_mut().enumerate() {
            sends.post(self.side, number)?;
        }
        if self.is_done() {
            return Ok(true);
        }
        for batch in 0..BATCHES {
            let count = self.side.cq.poll(&mut self.completions);
            if count == 0 && batch == 0 {
                self.patience.empty_turn()?;
                self.look_for_the_end();
                return Ok(self.gave_up);
            }
            if count > 0 {
                self.patience.reset();
                self.quiet_since = None;
                self.take(count)?;
            }
            // Who receives must keep up: an unreliable peer does not wait for it.
            if count < BATCH || self.receives.is_empty() {
                break;
            }
        }
        Ok(self.is_done())
    }

    /// Gives up what an unreliable peer has sent in vain.
    fn look_for_the_end(&mut self) {
        if self.is_told && !self.side.params.is_reliable() && self.has_sent() {
            let since = *self.quiet_since.get_or_insert_with(Instant::now);
            self.gave_up = since.elapsed() >= GRACE;
        }
    }

    fn take(&mut self, count: usize) -> Result<()> {
        let now = Instant::now();
        for completion in &self.completions[..count] {
            if !completion.is_ok() {
                return Err(PerfError::Completion(*completion));
            }
            let lane = (completion.wr_id >> NUMBER_BITS) as usize;
            if completion.is_recv() {
                self.receives[lane].completed += 1;
                continue;
            }
            let sends = &mut self.sends[lane];
            let upto = completion.wr_id & NUMBER_MASK;
            self.done += upto - sends.completed;
            sends.completed = upto;
            if let Some(posted) = sends.stamps.pop_front() {
                self.latencies.record(now - posted);
            }
            self.ended = now;
        }
        self.peak.note(now, self.done);
        let time_is_over = match (self.side.params.duration(), self.started) {
            (Some(duration), Some(started)) => now - started >= duration,
            _ => false,
        };
        if time_is_over {
            self.stop();
        }
        for (number, receives) in self.receives.iter_mut().enumerate() {
            receives.fill(self.side, number)?;
        }
        Ok(())
    }

    /// One more message each, signalled, so that the end of those before it is known.
    fn stop(&mut self) {
        for sends in &mut self.sends {
            if sends.target == u64::MAX {
                sends.target = sends.posted + 1;
            }
        }
    }

    fn is_done(&self) -> bool {
        self.gave_up
            || self.sends.iter().all(|sends| sends.completed == sends.target)
                && self.receives.iter().all(|receives| receives.completed == receives.target)
    }

    /// True once all sends have completed.
    pub(crate) fn has_sent(&self) -> bool {
        self.sends.iter().all(|sends| sends.completed == sends.target)
    }

    /// Messages sent, of each QP.
    pub(crate) fn sent(&self) -> Vec<u64> {
        self.sends.iter().map(|sends| sends.completed).collect()
    }

    /// Messages received, of each QP; of none if this side does not receive any.
    pub(crate) fn received(&self) -> Vec<u64> {
        self.receives.iter().map(|receives| receives.completed).collect()
    }

    /// The peer has sent so many messages on each QP, and sends no more.
    pub(crate) fn expect(&mut self, messages: &[u64]) {
        self.is_told = true;
        for (receives, &messages) in self.receives.iter_mut().zip(messages) {
            receives.target = messages;
        }
    }

    /// What this side has measured.
    pub(crate) fn round(self) -> Round {
        let started = self.started.unwrap_or(self.ended);
        let seconds = (self.ended - started).as_secs_f64();
        let average = self.done as f64 / seconds.max(1e-9);
        let peak_per_s = if self.peak.per_s() > 0.0 { self.peak.per_s() } else { average };
        Round { messages: self.done, lost: 0, seconds, peak_per_s, latencies: self.latencies }
    }
}

impl Sends {
    fn new(side: &Side, lane: usize) -> Result<Self> {
        let params = &side.params;
        let (remote_addr, rkey) = side.remote_base(lane)?;
        let inline = if params.is_inline() {
            let bytes = side.pattern(side.role(), lane);
            let slots = bytes.chunks(params.stride() as usize);
            slots.map(|slot| slot[..params.size as usize].to_vec()).collect()
        } else {
            Vec::new()
        };
        let stamps = VecDeque::with_capacity((params.tx_depth / params.cq_mod) as usize + 2);
        let sges = side.local_sges(lane)?;
        let target = params.iterations();
        let to = side.datagrams_to(lane)?;
        Ok(Self { sges, inline, remote_addr, rkey, to, slot: 0, posted: 0, completed: 0, target, stamps })
    }

    /// Posts as many messages as the queue has room for, in whole batches.
    #[inline]
    fn post(&mut self, side: &Side, lane: usize) -> Result<()> {
        let params = &side.params;
        let (depth, list) = (u64::from(params.tx_depth), u64::from(params.post_list));
        let cq_mod = u64::from(params.cq_mod);
        let stride = u64::from(params.stride());
        loop {
            let batch_count = list.min(self.target - self.posted);
            if batch_count == 0 || self.posted + batch_count - self.completed > depth {
                return Ok(());
            }
            let mut batch = side.lanes[lane].qp.send_batch();
            for _ in 0..batch_count {
                let number = self.posted + 1;
                let signaled = number.is_multiple_of(cq_mod) || number == self.target;
                let wr = self.work_request(params.test.verb, (lane as u64) << NUMBER_BITS | number, stride);
                if signaled {
                    batch.post(&wr.signaled())?;
                    self.stamps.push_back(Instant::now());
                } else {
                    batch.post(&wr)?;
                }
                self.posted = number;
                self.slot = if self.slot + 1 == self.sges.len() { 0 } else { self.slot + 1 };
            }
            batch.commit();
        }
    }

    #[inline]
    fn work_request(&self, verb: Verb, wr_id: u64, stride: u64) -> SendWr<'_> {
        let sges = &self.sges[self.slot];
        let remote_addr = self.remote_addr + self.slot as u64 * stride;
        let wr = match verb {
            Verb::Write => SendWr::write(wr_id, sges, remote_addr, self.rkey),
            Verb::Read => SendWr::read(wr_id, sges, remote_addr, self.rkey),
            Verb::Send => SendWr::send(wr_id, sges),
            Verb::Atomic => SendWr::atomic_faa(wr_id, sges, self.remote_addr, self.rkey, 1),
        };
        let wr = match &self.to {
            Some((ah, qpn)) => wr.to(ah, *qpn, QKEY),
            None => wr,
        };
        match self.inline.get(self.slot) {
            Some(bytes) => wr.inline(bytes),
            None => wr,
        }
    }
}

impl Receives {
    fn new(side: &Side, lane: usize) -> Result<Self> {
        let (sges, target) = (side.receive_sges(lane)?, side.params.iterations());
        Ok(Self { sges, slot: 0, posted: 0, completed: 0, target })
    }

    /// Posts receives for messages to come, in batches, until the queue is full.
    #[inline]
    fn fill(&mut self, side: &Side, lane: usize) -> Result<()> {
        let depth = u64::from(side.params.rx_depth);
        loop {
            let free = depth - (self.posted - self.completed);
            let count = free.min(self.target.saturating_sub(self.posted));
            // A few at a time are not worth a doorbell, unless they are the last ones.
            if count == 0 || (count < (BATCH as u64).min(depth / 2) && self.posted + count < self.target) {
                return Ok(());
            }
            let count = count.min(BATCH as u64) as usize;
            let mut requests = [RecvWr::new(0, &[]); BATCH];
            for request in &mut requests[..count] {
                *request = RecvWr::new((lane as u64) << NUMBER_BITS | self.posted, &self.sges[self.slot]);
                self.posted += 1;
                self.slot = if self.slot + 1 == self.sges.len() { 0 } else { self.slot + 1 };
            }
            side.lanes[lane].qp.post_recv_batch(&requests[..count])?;
        }
    }
}
