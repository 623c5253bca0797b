//! Who has something to send. Acknowledgements, responses and requests each hold their own place, so that none can keep
//! the others from the wire; and so does each lane, so that one that is paused costs the others nothing.

use std::collections::VecDeque;

use crate::qos::{Lane, LaneSet};

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
    /// A CNP, in the lane of its own priority.
    Cnp = 16,
}

impl Output {
    /// What waits in the QP's own lane.
    pub(crate) const IN_OWN_LANE: [Self; 4] = [Self::Ack, Self::Response, Self::Request, Self::Flush];
    const ALL: [Self; 5] = [Self::Ack, Self::Response, Self::Request, Self::Flush, Self::Cnp];
}

/// The queues of one kind of output.
#[derive(Debug, Default)]
struct LaneQueues {
    lanes: [VecDeque<u32>; Lane::COUNT],
    /// What the QP at the front of each lane has left of its quantum, packets; 0 = all of it.
    left: [u32; Lane::COUNT],
    /// Lanes in which somebody waits.
    occupied: LaneSet,
}

impl LaneQueues {
    fn remove(&mut self, index: u32) {
        for lane in self.occupied.iter() {
            let queue = &mut self.lanes[lane.index()];
            if queue.front() == Some(&index) {
                self.left[lane.index()] = 0;
            }
            queue.retain(|&i| i != index);
            if queue.is_empty() {
                self.occupied = self.occupied.without(lane.set());
            }
        }
    }
}

/// A queue of QP indices for each kind of output and each lane. A QP is in one queue of each kind at most: its `scheduled` bits
/// say whether, its lane says which; a CNP has a lane of its own, so that a pause of the data that it is about does not hold it.
#[derive(Debug, Default)]
pub(crate) struct ReadyQueues {
    acks: LaneQueues,
    responses: LaneQueues,
    requests: LaneQueues,
    flushes: LaneQueues,
    cnps: LaneQueues,
    /// Whose turn it is in a lane that has both.
    is_requests_turn: bool,
}

impl ReadyQueues {
    #[inline]
    fn queues(&mut self, output: Output) -> &mut LaneQueues {
        match output {
            Output::Ack => &mut self.acks,
            Output::Response => &mut self.responses,
            Output::Request => &mut self.requests,
            Output::Flush => &mut self.flushes,
            Output::Cnp => &mut self.cnps,
        }
    }

    /// Makes room for `count` QPs; the only allocation.
    pub(crate) fn grow(&mut self, count: usize) {
        for output in Output::ALL {
            for queue in &mut self.queues(output).lanes {
                queue.reserve(count.saturating_sub(queue.len()));
            }
        }
    }

    /// Puts a QP at the end of a queue unless its bit says that it is there.
    #[inline]
    pub(crate) fn schedule(&mut self, output: Output, lane: Lane, index: u32, scheduled: &mut u8) {
        if *scheduled & output as u8 == 0 {
            *scheduled |= output as u8;
            let queues = self.queues(output);
            queues.occupied = queues.occupied.or(lane.set());
            queues.lanes[lane.index()].push_back(index);
        }
    }

    /// The QP whose turn it is, and what it has left of its quantum if it was put back (else 0). The caller clears its bit.
    #[inline]
    pub(crate) fn pop(&mut self, output: Output, lane: Lane) -> Option<(u32, u32)> {
        let queues = self.queues(output);
        let queue = &mut queues.lanes[lane.index()];
        let index = queue.pop_front();
        if queue.is_empty() {
            queues.occupied = queues.occupied.without(lane.set());
        }
        Some((index?, std::mem::take(&mut queues.left[lane.index()])))
    }

    /// Puts a QP back at the front: there was no room for its packet. The caller sets its bit. It goes on with what it has left of its
    /// quantum: with a new one it would get all the room that a device has which is always nearly full.
    #[inline]
    pub(crate) fn put_back(&mut self, output: Output, lane: Lane, index: u32, left: u32) {
        let queues = self.queues(output);
        queues.occupied = queues.occupied.or(lane.set());
        queues.lanes[lane.index()].push_front(index);
        queues.left[lane.index()] = left;
    }

    /// Lanes in which acknowledgements or CNPs wait.
    #[inline]
    pub(crate) fn answers(&self) -> LaneSet {
        self.acks.occupied.or(self.cnps.occupied)
    }

    /// CNPs of a lane go before its acknowledgements: there are few of them, and they are about now.
    #[inline]
    pub(crate) fn pick_answer(&self, lane: Lane) -> Output {
        if self.cnps.occupied.contains(lane) { Output::Cnp } else { Output::Ack }
    }

    /// Lanes in which responses or requests wait.
    #[inline]
    pub(crate) fn data(&self) -> LaneSet {
        self.responses.occupied.or(self.requests.occupied)
    }

    /// Responses and requests of a lane take turns.
    #[inline]
    pub(crate) fn pick_data(&mut self, lane: Lane) -> Output {
        let has_responses = self.responses.occupied.contains(lane);
        let has_both = has_responses && self.requests.occupied.contains(lane);
        let is_request = if has_both { self.is_requests_turn } else { !has_responses };
        self.is_requests_turn = !is_request;
        if is_request { Output::Request } else { Output::Response }
    }

    /// A lane in which a QP waits that has something to flush.
    #[inline]
    pub(crate) fn flush_lane(&self) -> Option<Lane> {
        self.flushes.occupied.first()
    }

    /// Forgets a QP.
    pub(crate) fn remove(&mut self, index: u32) {
        Output::ALL.into_iter().for_each(|output| self.queues(output).remove(index));
    }

    /// Some of a QP's outputs have changed their lane: it goes to the end of their queues there.
    pub(crate) fn change_lane(&mut self, outputs: &[Output], lane: Lane, index: u32, scheduled: u8) {
        for &output in outputs.iter().filter(|&&output| scheduled & output as u8 != 0) {
            self.queues(output).remove(index);
            self.schedule(output, lane, index, &mut { 0 });
        }
    }

    /// Any number of QPs have changed their lanes: all go where they belong now.
    pub(crate) fn sort_anew(&mut self, lane_of: impl Fn(Output, u32) -> Lane) {
        for output in Output::ALL {
            for lane in self.queues(output).occupied.iter() {
                for _ in 0..self.queues(output).lanes[lane.index()].len() {
                    let Some((index, _)) = self.pop(output, lane) else { break };
                    self.schedule(output, lane_of(output, index), index, &mut { 0 });
                }
            }
        }
    }

    /// True if somebody waits who may go on: in a lane that is open, or to be flushed.
    pub(crate) fn has_work(&self, open: LaneSet) -> bool {
        let waiting = self.answers().or(self.data());
        !waiting.and(open).is_empty() || !self.flushes.occupied.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(priority: u8) -> Lane {
        Lane::of_priority(priority)
    }

    #[test]
    fn lanes_that_changed_are_sorted_anew_in_order() {
        let mut ready = ReadyQueues::default();
        for index in 0..6 {
            ready.schedule(Output::Request, lane(0), index, &mut 0);
        }
        ready.sort_anew(|_, index| lane((index % 2) as u8 * 3));
        let drain = |ready: &mut ReadyQueues, lane| -> Vec<u32> {
            std::iter::from_fn(|| ready.pop(Output::Request, lane)).map(|(index, _)| index).collect()
        };
        assert_eq!(drain(&mut ready, lane(0)), [0, 2, 4]);
        assert_eq!(drain(&mut ready, lane(3)), [1, 3, 5]);
        assert!(!ready.has_work(LaneSet::ALL));
    }

    #[test]
    fn responses_and_requests_take_turns_where_both_wait() {
        let mut ready = ReadyQueues::default();
        for index in 0..2 {
            ready.schedule(Output::Response, lane(1), index, &mut 0);
            ready.schedule(Output::Request, lane(1), index, &mut 0);
        }
        let turns: Vec<_> = std::iter::from_fn(|| {
            let output = (!ready.data().is_empty()).then(|| ready.pick_data(lane(1)))?;
            ready.pop(output, lane(1)).map(|_| output)
        })
        .collect();
        assert_eq!(turns, [Output::Response, Output::Request, Output::Response, Output::Request]);
    }

    #[test]
    fn a_cnp_keeps_its_lane_when_its_qp_changes_and_goes_before_acknowledgements() {
        let mut ready = ReadyQueues::default();
        let mut scheduled = 0;
        ready.schedule(Output::Ack, lane(3), 7, &mut scheduled);
        ready.schedule(Output::Cnp, lane(6), 7, &mut scheduled);
        ready.change_lane(&Output::IN_OWN_LANE, lane(6), 7, scheduled);
        assert_eq!((ready.answers(), ready.pick_answer(lane(6))), (lane(6).set(), Output::Cnp));
        ready.sort_anew(|output, _| lane(if output == Output::Cnp { 5 } else { 1 }));
        assert_eq!((ready.pop(Output::Cnp, lane(5)), ready.pop(Output::Ack, lane(1))), (Some((7, 0)), Some((7, 0))));
        assert!(!ready.has_work(LaneSet::ALL));
        ready.schedule(Output::Cnp, lane(6), 7, &mut 0);
        ready.remove(7);
        assert!(!ready.has_work(LaneSet::ALL));
    }

    #[test]
    fn a_lane_change_takes_a_qp_along_and_nobody_else() {
        let mut ready = ReadyQueues::default();
        let mut scheduled = 0;
        ready.schedule(Output::Ack, lane(2), 7, &mut scheduled);
        ready.schedule(Output::Request, lane(2), 7, &mut scheduled);
        ready.schedule(Output::Request, lane(2), 8, &mut 0);
        ready.change_lane(&Output::IN_OWN_LANE, lane(5), 7, scheduled);
        assert_eq!((ready.answers(), ready.pop(Output::Ack, lane(5))), (lane(5).set(), Some((7, 0))));
        assert_eq!(
            (ready.pop(Output::Request, lane(2)), ready.pop(Output::Request, lane(5))),
            (Some((8, 0)), Some((7, 0)))
        );
    }

    #[test]
    fn what_is_left_of_a_quantum_is_not_inherited() {
        let mut ready = ReadyQueues::default();
        for index in [7, 8] {
            ready.schedule(Output::Request, lane(2), index, &mut 0);
        }
        assert_eq!(ready.pop(Output::Request, lane(2)), Some((7, 0)));
        ready.put_back(Output::Request, lane(2), 7, 3);
        assert_eq!(ready.pop(Output::Request, lane(2)), Some((7, 3)));
        ready.put_back(Output::Request, lane(2), 7, 3);
        ready.remove(7);
        assert_eq!(ready.pop(Output::Request, lane(2)), Some((8, 0)));
    }
}
