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

    /// A management datagram came in. Classes other than connection management have nobody here: they are counted.
    pub fn handle_mad<S: Shards>(&mut self, _shards: &mut S, now: Time, mad: &IncomingMad) {
        self.handle_cm_mad(now, mad);
    }

    /// Does what is due.
    pub fn handle_timers<S: Shards>(&mut self, shards: &mut S, now: Time) {
        self.handle_cm_timers(shards, now);
        if self.next_look <= now {
            self.let_go_of_unmapped(now);
        }
    }

    /// When [`Control::turn`] has something to do next; [`Time::NEVER`] if nothing is due.
    pub fn next_deadline(&self) -> Time {
        self.next_cm_deadline().min(self.next_look)
    }

    /// A management datagram to send. Call until `None`.
    pub fn poll_mad(&mut self) -> Option<OutgoingMad> {
        self.poll_cm_mad()
    }
}
