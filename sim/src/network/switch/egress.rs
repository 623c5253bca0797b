//! The queues of one port, and whose turn it is.

use std::collections::VecDeque;

use super::settings::Dequeue;
use crate::network::pause::PRIORITY_COUNT;

/// Bytes that weight 1 gives a queue in each round: small, so that nobody waits long.
const ROUND_BYTES: i64 = 512;

/// A frame that waits.
#[derive(Debug)]
pub(in crate::network) struct Queued<F> {
    pub(in crate::network) frame: F,
    /// Port it came in by.
    pub(in crate::network) ingress: u16,
    pub(in crate::network) bytes: u32,
}

#[derive(Debug)]
struct Queue<F> {
    frames: VecDeque<Queued<F>>,
    bytes: u64,
    peak: u64,
    /// What a weighted queue may still send in this round; below 0 what it has sent too much.
    deficit: i64,
}

/// Egress queues, one for each priority.
#[derive(Debug)]
pub(in crate::network) struct Egress<F> {
    queues: [Queue<F>; PRIORITY_COUNT],
    dequeue: [Dequeue; PRIORITY_COUNT],
    /// The weighted queue whose turn it is.
    turn: usize,
    /// Bit of each priority with frames.
    backlog: u8,
}

impl<F> Egress<F> {
    pub(in crate::network) fn new(dequeue: [Dequeue; PRIORITY_COUNT]) -> Self {
        let queue = |_| Queue { frames: VecDeque::new(), bytes: 0, peak: 0, deficit: 0 };
        Self { queues: std::array::from_fn(queue), dequeue, turn: 0, backlog: 0 }
    }

    pub(in crate::network) fn push(&mut self, priority: usize, queued: Queued<F>) {
        let queue = &mut self.queues[priority];
        queue.bytes += u64::from(queued.bytes);
        queue.peak = queue.peak.max(queue.bytes);
        queue.frames.push_back(queued);
        self.backlog |= 1 << priority;
    }

    /// Takes out the next frame, of a priority that `may_send`.
    pub(in crate::network) fn pop(&mut self, may_send: impl Fn(usize) -> bool) -> Option<(usize, Queued<F>)> {
        if self.backlog == 0 {
            return None;
        }
        let is_ready = |priority: usize| self.backlog >> priority & 1 == 1 && may_send(priority);
        let strict = (0..PRIORITY_COUNT).rev().find(|&p| self.dequeue[p] == Dequeue::Strict && is_ready(p));
        let priority = match strict {
            Some(priority) => priority,
            None => self.next_weighted(may_send)?,
        };
        self.take(priority).map(|queued| (priority, queued))
    }

    /// Deficit round robin: a queue sends until its share of the round is spent.
    fn next_weighted(&mut self, may_send: impl Fn(usize) -> bool) -> Option<usize> {
        let weight = |priority: usize| match self.dequeue[priority] {
            Dequeue::Weighted(weight) => Some(i64::from(weight)),
            Dequeue::Strict => None,
        };
        let is_ready = |priority: usize| self.backlog >> priority & 1 == 1 && may_send(priority);
        if !(0..PRIORITY_COUNT).any(|priority| weight(priority).is_some() && is_ready(priority)) {
            return None;
        }
        loop {
            let turn = self.turn;
            match weight(turn) {
                Some(weight) if is_ready(turn) => {
                    if self.queues[turn].deficit > 0 {
                        return Some(turn);
                    }
                    self.queues[turn].deficit += weight * ROUND_BYTES;
                }
                // Who does not use its turn saves nothing up.
                _ => self.queues[turn].deficit = self.queues[turn].deficit.min(0),
            }
            if self.queues[turn].deficit <= 0 || !is_ready(turn) {
                self.turn = (turn + 1) % PRIORITY_COUNT;
            }
        }
    }

    fn take(&mut self, priority: usize) -> Option<Queued<F>> {
        let queue = &mut self.queues[priority];
        let queued = queue.frames.pop_front()?;
        queue.bytes -= u64::from(queued.bytes);
        if let Dequeue::Weighted(_) = self.dequeue[priority] {
            queue.deficit -= i64::from(queued.bytes);
            if queue.deficit <= 0 {
                self.turn = (priority + 1) % PRIORITY_COUNT;
            }
        }
        if queue.frames.is_empty() {
            self.backlog &= !(1 << priority);
        }
        Some(queued)
    }

    pub(in crate::network) fn bytes(&self, priority: usize) -> u64 {
        self.queues[priority].bytes
    }

    pub(in crate::network) fn peak(&self, priority: usize) -> u64 {
        self.queues[priority].peak
    }

    pub(in crate::network) fn frames(&self, priority: usize) -> usize {
        self.queues[priority].frames.len()
    }

    /// Bit of each priority with frames.
    pub(in crate::network) fn backlog(&self) -> u8 {
        self.backlog
    }
}
