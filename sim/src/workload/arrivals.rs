//! Flows between random hosts: by chance at a mean load (open loop), or one as soon as another is done (closed loop).

use engine::Time;
use rand::Rng;

use super::{Out, SizeDistribution};
use crate::random::Stream;

/// Where and how large the next flow is.
#[derive(Debug)]
pub(super) struct Chooser {
    pub(super) stream: Stream,
    /// At least two.
    pub(super) hosts: Vec<u16>,
    pub(super) sizes: SizeDistribution,
    /// Flows that may yet begin.
    pub(super) left: u64,
    /// None begins later.
    pub(super) end: Time,
}

impl Chooser {
    fn position(&mut self) -> usize {
        self.stream.random_range(0..self.hosts.len())
    }

    /// Puts down a flow from the host at `position` to another, unless it is over.
    fn put_down(&mut self, at: Time, position: usize, out: &mut Out<'_>) {
        if self.left == 0 || at >= self.end {
            self.left = 0;
            return;
        }
        self.left -= 1;
        let count = self.hosts.len();
        let other = (position + self.stream.random_range(1..count)) % count;
        let bytes = self.sizes.draw(&mut self.stream);
        // Hosts are limited to far less than 2^32.
        out.push(at, (self.hosts[position], self.hosts[other]), bytes, position as u32);
    }
}

/// The open loop: arrivals are a Poisson process.
#[derive(Debug)]
pub(super) struct Poisson {
    pub(super) chooser: Chooser,
    pub(super) first: Time,
    pub(super) mean_gap_ns: f64,
    /// What rounding to whole nanoseconds has left over: the load stays exact at any rate.
    pub(super) rest_ns: f64,
}

impl Poisson {
    pub(super) fn begin(&mut self, out: &mut Out<'_>) {
        self.arrive_after(self.first, out);
    }

    /// The arrival at `at` begins: the next is drawn. One at a time is put down, so that memory does not grow with the run.
    pub(super) fn started(&mut self, at: Time, out: &mut Out<'_>) {
        self.arrive_after(at, out);
    }

    fn arrive_after(&mut self, at: Time, out: &mut Out<'_>) {
        // `libm` gives the same bits on every machine; the logarithm of the platform need not.
        let gap_ns = -libm::log(1.0 - self.chooser.stream.random::<f64>()) * self.mean_gap_ns + self.rest_ns;
        self.rest_ns = gap_ns.fract();
        let position = self.chooser.position();
        // Saturates; an arrival so late is past any end.
        self.chooser.put_down(at.add_ns(gap_ns as u64), position, out);
    }
}

/// The closed loop: each host keeps a number of flows going.
#[derive(Debug)]
pub(super) struct ClosedLoop {
    pub(super) chooser: Chooser,
    pub(super) first: Time,
    pub(super) outstanding: u16,
    pub(super) think_ns: u64,
}

impl ClosedLoop {
    pub(super) fn begin(&mut self, out: &mut Out<'_>) {
        for _ in 0..self.outstanding {
            for position in 0..self.chooser.hosts.len() {
                self.chooser.put_down(self.first, position, out);
            }
        }
    }

    /// A flow of the host at position `tag` has ended: its next one follows.
    pub(super) fn finished(&mut self, tag: u32, now: Time, out: &mut Out<'_>) {
        self.chooser.put_down(now.add_ns(self.think_ns), tag as usize, out);
    }
}
