//! Who has something to send. Acknowledgements, responses and requests each hold their own place, so that none can keep
//! the others from the wire.

use std::collections::VecDeque;

/// Kinds of output, as bits of a QP's `scheduled`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Output {
    /// ACKs and NAKs.
    Ack = 1,
    /// READ responses and atomic results.
    Response = 2,
    /// Requests.
    Request = 4,
    /// Completions of flushed work requests.
    Flush = 8,
}

/// A queue of QP indices for each kind of output. A QP is in a queue at most once: its `scheduled` bits say so.
#[derive(Debug, Default)]
pub(crate) struct ReadyQueues {
    acks: VecDeque<u32>,
    responses: VecDeque<u32>,
    requests: VecDeque<u32>,
    flushes: VecDeque<u32>,
}

impl ReadyQueues {
    fn queue(&mut self, output: Output) -> &mut VecDeque<u32> {
        match output {
            Output::Ack => &mut self.acks,
            Output::Response => &mut self.responses,
            Output::Request => &mut self.requests,
            Output::Flush => &mut self.flushes,
        }
    }

    /// Makes room for `count` QPs; the only allocation.
    pub(crate) fn grow(&mut self, count: usize) {
        for output in [Output::Ack, Output::Response, Output::Request, Output::Flush] {
            let queue = self.queue(output);
            queue.reserve(count.saturating_sub(queue.len()));
        }
    }

    /// Puts a QP at the end of a queue unless its bit says that it is there.
    #[inline]
    pub(crate) fn schedule(&mut self, output: Output, index: u32, scheduled: &mut u8) {
        if *scheduled & output as u8 == 0 {
            *scheduled |= output as u8;
            self.queue(output).push_back(index);
        }
    }

    /// The QP whose turn it is. The caller clears its bit.
    #[inline]
    pub(crate) fn pop(&mut self, output: Output) -> Option<u32> {
        self.queue(output).pop_front()
    }

    /// Puts a QP back at the front: there was no room for its packet. The caller sets its bit.
    #[inline]
    pub(crate) fn put_back(&mut self, output: Output, index: u32) {
        self.queue(output).push_front(index);
    }

    /// QPs in a queue.
    #[inline]
    pub(crate) fn len(&mut self, output: Output) -> usize {
        self.queue(output).len()
    }

    /// Forgets a QP.
    pub(crate) fn remove(&mut self, index: u32) {
        for output in [Output::Ack, Output::Response, Output::Request, Output::Flush] {
            self.queue(output).retain(|&i| i != index);
        }
    }

    /// True if nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.acks.is_empty() && self.responses.is_empty() && self.requests.is_empty() && self.flushes.is_empty()
    }
}
