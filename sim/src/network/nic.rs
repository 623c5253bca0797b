//! A host's network device: queues by priority between the engine and the wire. It obeys pauses itself, as hardware does.

use engine::Time;
use wire::PfcRepr;

use super::classify::Classes;
use super::headers::Headers;
use super::pause::{PRIORITY_COUNT, PauseState};
use super::switch::Dequeue;
use super::switch::egress::{Egress, Queued};

/// The device of one host.
#[derive(Debug)]
pub(super) struct Nic {
    classes: Classes,
    egress: Egress<Vec<u8>>,
    pause: PauseState,
    waiting: usize,
}

impl Nic {
    pub(super) fn new(classes: Classes, rate_mbps: u32) -> Self {
        // Equal shares: which priority matters more is for the engine to say.
        let egress = Egress::new([Dequeue::Weighted(1); PRIORITY_COUNT]);
        Self { classes, egress, pause: PauseState::new(rate_mbps), waiting: 0 }
    }

    /// Takes a frame of the engine's.
    pub(super) fn push(&mut self, frame: Vec<u8>) {
        let priority = Headers::parse(&frame).map_or(0, |headers| self.classes.priority(&headers));
        let bytes = frame.len() as u32;
        self.waiting += 1;
        self.egress.push(priority, Queued { frame, ingress: 0, bytes });
    }

    /// The frame to be sent now.
    pub(super) fn pop(&mut self, now: Time) -> Option<Vec<u8>> {
        let pause = &self.pause;
        let (_, queued) = self.egress.pop(|priority| !pause.is_paused(now, priority))?;
        self.waiting -= 1;
        Some(queued.frame)
    }

    /// A pause frame has come.
    pub(super) fn obey(&mut self, now: Time, pfc: PfcRepr) {
        self.pause.apply(now, pfc);
    }

    /// Frames that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Frames that wait for the wire and not for the end of a pause.
    pub(super) fn waiting_unpaused(&self, now: Time) -> usize {
        let unpaused = (0..PRIORITY_COUNT).filter(|&priority| !self.pause.is_paused(now, priority));
        unpaused.map(|priority| self.egress.frames(priority)).sum()
    }

    /// When a priority with frames may send again, if none may now.
    pub(super) fn deadline(&self) -> Time {
        let waiting = (0..PRIORITY_COUNT).filter(|priority| self.egress.backlog() >> priority & 1 == 1);
        waiting.map(|priority| self.pause.until(priority)).min().unwrap_or(Time::NEVER)
    }

    /// How long priorities have been paused, all of them together, ns.
    pub(super) fn paused_ns(&self, now: Time) -> u64 {
        self.pause.paused_ns(now)
    }
}
