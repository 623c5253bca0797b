//! Events for the control side: a bounded queue that a lcore fills and nobody waits for.

use std::collections::VecDeque;

use shm::control::AsyncEvent;

/// An asynchronous event of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Whose.
    pub session: u32,
    /// What.
    pub event: AsyncEvent,
}

/// The queue; what does not fit is counted.
#[derive(Debug)]
pub(crate) struct EventQueue {
    events: VecDeque<Event>,
    capacity: usize,
}

impl EventQueue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { events: VecDeque::with_capacity(capacity), capacity }
    }

    /// False if the queue is full.
    pub(crate) fn push(&mut self, session: u32, event: AsyncEvent) -> bool {
        let fits = self.events.len() < self.capacity;
        if fits {
            self.events.push_back(Event { session, event });
        }
        fits
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}
