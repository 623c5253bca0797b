//! The ring all-reduce: reduce-scatter and all-gather in 2(N-1) steps, each of which waits for the neighbour's step before.

use engine::Time;

use super::Out;

/// The pattern. Hosts are told by their position in the ring.
#[derive(Debug)]
pub(super) struct RingAllReduce {
    hosts: Vec<u16>,
    bytes: u64,
    first: Time,
    /// Reductions that have not begun.
    left: u32,
    gap_ns: u64,
    /// Steps of this reduction that each position has begun, and ended.
    begun: Vec<u32>,
    ended: Vec<u32>,
}

impl RingAllReduce {
    /// `hosts`: at least two, `bytes`: at least one for each.
    pub(super) fn new(hosts: Vec<u16>, bytes: u64, first: Time, count: u32, gap_ns: u64) -> Self {
        let (begun, ended) = (vec![0; hosts.len()], vec![0; hosts.len()]);
        Self { hosts, bytes, first, left: count, gap_ns, begun, ended }
    }

    fn step_count(&self) -> u32 {
        // Hosts are limited to far less than 2^31.
        2 * (self.hosts.len() as u32 - 1)
    }

    pub(super) fn begin(&mut self, out: &mut Out<'_>) {
        self.reduction(self.first, out);
    }

    fn reduction(&mut self, at: Time, out: &mut Out<'_>) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        self.begun.fill(0);
        self.ended.fill(0);
        for position in 0..self.hosts.len() {
            self.step(position, at, out);
        }
    }

    /// Begins the next step of a position if all that it needs is there.
    fn step(&mut self, position: usize, at: Time, out: &mut Out<'_>) {
        let count = self.hosts.len();
        let step = self.begun[position];
        let before = (position + count - 1) % count;
        if step == self.step_count() || self.ended[position] < step || self.ended[before] < step {
            return;
        }
        self.begun[position] += 1;
        let part = (position + 2 * count - step as usize) % count;
        let hosts = (self.hosts[position], self.hosts[(position + 1) % count]);
        out.push(at, hosts, self.part_bytes(part), position as u32);
    }

    /// Parts differ by one byte at most.
    fn part_bytes(&self, part: usize) -> u64 {
        let (count, part) = (self.hosts.len() as u64, part as u64);
        self.bytes / count + u64::from(part < self.bytes % count)
    }

    /// The step of the position `tag` has ended: it and the next one may go on.
    pub(super) fn finished(&mut self, tag: u32, now: Time, out: &mut Out<'_>) {
        let position = tag as usize;
        self.ended[position] += 1;
        self.step(position, now, out);
        self.step((position + 1) % self.hosts.len(), now, out);
        if self.ended.iter().all(|&ended| ended == self.step_count()) {
            self.reduction(now.add_ns(self.gap_ns), out);
        }
    }
}
