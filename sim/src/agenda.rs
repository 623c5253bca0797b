//! The virtual clock: events in the order of their time, and of their making where times are equal.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use engine::Time;

#[derive(Debug)]
struct Entry<E> {
    at: Time,
    sequence: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// What is going to happen. Time stands still but for [`Agenda::pop`].
#[derive(Debug)]
pub struct Agenda<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    sequence: u64,
    now: Time,
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), sequence: 0, now: Time::ZERO }
    }
}

impl<E> Agenda<E> {
    /// The time of the event that was popped last.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Puts an event down for `at`, behind all others of that time.
    ///
    /// # Panics
    /// If `at` is in the past.
    pub fn push(&mut self, at: Time, event: E) {
        assert!(at >= self.now, "an event for {} ns at {} ns", at.as_ns(), self.now.as_ns());
        self.sequence += 1;
        self.heap.push(Reverse(Entry { at, sequence: self.sequence, event }));
    }

    /// When the next event is due.
    pub fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes the next event out, and goes to its time.
    pub fn pop(&mut self) -> Option<E> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agenda_pops_by_time_then_by_making() {
        let mut agenda = Agenda::default();
        for (at, event) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            agenda.push(Time::from_ns(at), event);
        }
        let popped: String = std::iter::from_fn(|| agenda.pop()).collect();
        assert_eq!((popped.as_str(), agenda.now(), agenda.next_at()), ("abcd", Time::from_ns(5), None));
    }

    #[test]
    #[should_panic(expected = "an event for 1 ns at 2 ns")]
    fn agenda_refuses_the_past() {
        let mut agenda = Agenda::default();
        agenda.push(Time::from_ns(2), ());
        agenda.pop();
        agenda.push(Time::from_ns(1), ());
    }
}
