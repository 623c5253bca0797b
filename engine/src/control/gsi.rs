//! Management datagrams and the control side's own timers.

use super::Control;
use crate::command::{Command, Shards};
use crate::gsi::{IncomingMad, OutgoingMad};
use crate::time::Time;

impl Control {
    /// The control side's own work: what is due, then the management datagrams that it has to send, which go to shard 0. To be
    /// called after [`Control::handle`], [`Control::handle_mad`] and [`Control::close_session`], and when
    /// [`Control::next_deadline`] has come.
    pub fn turn<S: Shards>(&mut self, shards: &mut S, now: Time) {
        if self.next_deadline() <= now {
            self.handle_timers(shards, now);
        }
        while let Some(mad) = self.poll_mad() {
            // What can't be sent is counted there, and sent again by whoever waits for its answer.
            shards.command(0, Command::SendMad(Box::new(mad)));
        }
    }

    /// A management datagram came in. No class of them is served here: it is counted, as `unclaimed_mads` of the control side.
    pub fn handle_mad<S: Shards>(&mut self, _shards: &mut S, _now: Time, _mad: &IncomingMad) {
        self.unclaimed_mads += 1;
    }

    /// Does what is due.
    pub fn handle_timers<S: Shards>(&mut self, _shards: &mut S, _now: Time) {}

    /// When [`Control::turn`] has something to do next; [`Time::NEVER`] if nothing is due.
    pub fn next_deadline(&self) -> Time {
        Time::NEVER
    }

    /// A management datagram to send. Call until `None`.
    pub fn poll_mad(&mut self) -> Option<OutgoingMad> {
        None
    }
}
