//! Hierarchical hashed timer wheel: schedule, move and cancel in O(1), no allocation, cheap jumps over empty time.
//!
//! Time is cut into ticks of 2^13 ns. A deadline lies in the level of the highest base-64 digit in which its tick differs
//! from the wheel's, in the slot that this digit names: level 0 holds what is due within this round of 64 ticks, level 1
//! what is due within this round of 64 * 64, and so on. So all timers of a level are due before any of the next level, all
//! slots in use lie ahead of the wheel's own digit, and the next slot to look at is found by two `trailing_zeros`. When the
//! wheel reaches a slot above level 0, its timers are sorted again into the levels below. Nine levels cover all of
//! [`Time`], so no deadline is too far away.

use crate::time::Time;

/// log2 of a tick in ns: 8.192 us.
const TICK_SHIFT: u32 = 13;
/// log2 of the slots in a level.
const SLOT_SHIFT: u32 = 6;
/// Slots in a level: the bits of one occupancy word.
const SLOTS: usize = 1 << SLOT_SHIFT;
/// 9 * 6 bits hold the 51 bits of the last tick.
const LEVELS: usize = 9;
const _: () = assert!(LEVELS as u32 * SLOT_SHIFT >= u64::BITS - TICK_SHIFT);

/// The list of timers that are due but not popped yet.
const DUE: u16 = (LEVELS * SLOTS) as u16;
/// In [`Node::list`]: not scheduled.
const UNSCHEDULED: u16 = u16::MAX;
/// No node: the head of an empty list.
const NIL: u32 = u32::MAX;

/// One timer. The nodes of a list form a ring, so that the head's `previous` is the tail.
#[derive(Clone, Copy, Debug)]
struct Node {
    at: Time,
    next: u32,
    previous: u32,
    list: u16,
}

/// Timers by number, each with at most one deadline.
///
/// A timer fires when [`pop_expired`](Self::pop_expired) is called with its deadline or later, never before. Timers come
/// out by rising tick; those of one tick come out in no particular, but always the same, order.
#[derive(Clone, Debug)]
pub(crate) struct TimerWheel {
    now: Time,
    /// Which levels have a timer.
    levels: u16,
    /// Which slots of each level have a timer.
    occupied: [u64; LEVELS],
    /// First node of each list: slots by level, then the due list.
    heads: [u32; LEVELS * SLOTS + 1],
    nodes: Vec<Node>,
}

/// A list is named by level and slot.
const fn list_of(level: usize, slot: usize) -> u16 {
    (level * SLOTS + slot) as u16
}

const fn tick_of(at: Time) -> u64 {
    at.as_ns() >> TICK_SHIFT
}

impl TimerWheel {
    /// A wheel without timers whose clock stands at `now`.
    pub(crate) fn new(now: Time) -> Self {
        Self { now, levels: 0, occupied: [0; LEVELS], heads: [NIL; LEVELS * SLOTS + 1], nodes: Vec::new() }
    }

    /// Makes the timers `0..count` valid; never fewer than before. The only method that allocates.
    ///
    /// # Panics
    /// If `count` is beyond the numbers that a `u32` tells apart.
    pub(crate) fn grow(&mut self, count: usize) {
        assert!(count <= NIL as usize, "{count} timers are more than a u32 can number");
        if count > self.nodes.len() {
            self.nodes.resize(count, Node { at: Time::NEVER, next: NIL, previous: NIL, list: UNSCHEDULED });
        }
    }

    /// Sets the deadline of a timer, in place of the one it has, if any. A deadline in the past is due at once;
    /// [`Time::NEVER`] cancels.
    ///
    /// # Panics
    /// If the wheel was not grown to hold `id`.
    pub(crate) fn schedule(&mut self, id: u32, at: Time) {
        self.cancel(id);
        if at != Time::NEVER {
            self.nodes[id as usize].at = at;
            self.insert(id);
        }
    }

    /// Sets the deadline of a timer unless it has an earlier one.
    ///
    /// # Panics
    /// If the wheel was not grown to hold `id`.
    #[inline]
    pub(crate) fn schedule_no_later(&mut self, id: u32, at: Time) {
        let node = &self.nodes[id as usize];
        if node.list == UNSCHEDULED || at < node.at {
            self.schedule(id, at);
        }
    }

    /// Takes a timer's deadline away, if it has one.
    ///
    /// # Panics
    /// If the wheel was not grown to hold `id`.
    pub(crate) fn cancel(&mut self, id: u32) {
        if self.is_scheduled(id) {
            self.unlink(id);
        }
    }

    /// Whether a timer has a deadline that it was not popped for.
    ///
    /// # Panics
    /// If the wheel was not grown to hold `id`.
    #[inline]
    pub(crate) fn is_scheduled(&self, id: u32) -> bool {
        self.nodes[id as usize].list != UNSCHEDULED
    }

    /// Timers that have a deadline. Looks at every one.
    pub(crate) fn scheduled_count(&self) -> usize {
        self.nodes.iter().filter(|node| node.list != UNSCHEDULED).count()
    }

    /// The next timer whose deadline is `now` or earlier, and that deadline; the timer is no longer scheduled. Call it until
    /// there is none.
    ///
    /// `now` must not go back. Cost: a few instructions if nothing is due; every timer is touched once for each level that
    /// it comes down, however far `now` jumps.
    #[inline]
    pub(crate) fn pop_expired(&mut self, now: Time) -> Option<(u32, Time)> {
        // What is due already comes first, so that one pass over a slot serves any number of pops.
        if self.heads[DUE as usize] == NIL && now > self.now && self.levels != 0 {
            self.advance(now);
        }
        let id = self.heads[DUE as usize];
        if id == NIL {
            self.now = self.now.max(now);
            return None;
        }
        self.unlink(id);
        Some((id, self.nodes[id as usize].at))
    }

    /// When to call [`pop_expired`](Self::pop_expired) next; `None` without timers.
    ///
    /// Never later than the next deadline. It is that deadline itself if that lies in level 0, else the start of its slot,
    /// where the call sorts the slot into the levels below: a caller that goes from one answer to the next gets there in at
    /// most one step a level. Cost: the length of one slot's list.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        if self.heads[DUE as usize] != NIL {
            return self.earliest_in(DUE);
        }
        let (level, slot, start) = self.first_occupied()?;
        if level == 0 { self.earliest_in(list_of(level, slot)) } else { Some(Time::from_ns(start << TICK_SHIFT)) }
    }

    /// Level, slot and first tick of the next slot with a timer.
    #[inline]
    fn first_occupied(&self) -> Option<(usize, usize, u64)> {
        if self.levels == 0 {
            return None;
        }
        let level = self.levels.trailing_zeros();
        let slot = self.occupied[level as usize].trailing_zeros();
        let below = level * SLOT_SHIFT;
        // The digits above this level's are the wheel's own, those below are zero.
        let above = tick_of(self.now) >> below >> SLOT_SHIFT << SLOT_SHIFT << below;
        Some((level as usize, slot as usize, above | u64::from(slot) << below))
    }

    /// Moves the clock to `now` and puts on the due list what is due then.
    fn advance(&mut self, now: Time) {
        let target = tick_of(now);
        while let Some((level, slot, start)) = self.first_occupied()
            && start <= target
        {
            // The clock stops at each slot in between, so that the timers find their new place relative to it; the last
            // ns of a tick makes all of a level 0 slot due.
            let first_ns = start << TICK_SHIFT;
            let stop = if level == 0 { first_ns | ((1 << TICK_SHIFT) - 1) } else { first_ns };
            self.now = self.now.max(now.min(Time::from_ns(stop)));
            self.sort_again(list_of(level, slot));
            if level == 0 && start == target {
                break;
            }
        }
        self.now = now;
    }

    /// Takes every timer of a slot and inserts it where it belongs by now, which may be the same slot.
    fn sort_again(&mut self, list: u16) {
        let first = self.heads[list as usize];
        let last = self.nodes[first as usize].previous;
        let mut id = first;
        loop {
            let next = self.nodes[id as usize].next;
            self.unlink(id);
            self.insert(id);
            if id == last {
                break;
            }
            id = next;
        }
    }

    /// Puts a node, whose deadline is set, at the end of the list where it belongs.
    fn insert(&mut self, id: u32) {
        let at = self.nodes[id as usize].at;
        let list = if at <= self.now {
            DUE
        } else {
            let tick = tick_of(at);
            // The lowest bit stands for "no digit differs", which is level 0 as well.
            let level = ((tick ^ tick_of(self.now)) | 1).ilog2() / SLOT_SHIFT;
            let slot = (tick >> (level * SLOT_SHIFT)) as usize % SLOTS;
            self.levels |= 1 << level;
            self.occupied[level as usize] |= 1 << slot;
            list_of(level as usize, slot)
        };
        let head = self.heads[list as usize];
        let (next, previous) = if head == NIL { (id, id) } else { (head, self.nodes[head as usize].previous) };
        self.nodes[id as usize] = Node { at, next, previous, list };
        self.nodes[previous as usize].next = id;
        self.nodes[next as usize].previous = id;
        if head == NIL {
            self.heads[list as usize] = id;
        }
    }

    /// Takes a scheduled node out of its list.
    fn unlink(&mut self, id: u32) {
        let Node { next, previous, list, .. } = self.nodes[id as usize];
        self.nodes[id as usize].list = UNSCHEDULED;
        if next == id {
            self.heads[list as usize] = NIL;
            self.mark_empty(list);
            return;
        }
        self.nodes[previous as usize].next = next;
        self.nodes[next as usize].previous = previous;
        if self.heads[list as usize] == id {
            self.heads[list as usize] = next;
        }
    }

    fn mark_empty(&mut self, list: u16) {
        if list == DUE {
            return;
        }
        let (level, slot) = (list as usize / SLOTS, list as usize % SLOTS);
        self.occupied[level] &= !(1 << slot);
        if self.occupied[level] == 0 {
            self.levels &= !(1 << level);
        }
    }

    /// The earliest deadline of a list; `None` if it is empty.
    fn earliest_in(&self, list: u16) -> Option<Time> {
        let first = self.heads[list as usize];
        let mut ids = (first != NIL).then_some(first);
        let nodes = core::iter::from_fn(|| {
            let node = &self.nodes[ids? as usize];
            ids = (node.next != first).then_some(node.next);
            Some(node)
        });
        nodes.map(|node| node.at).min()
    }
}

#[cfg(test)]
mod tests;
