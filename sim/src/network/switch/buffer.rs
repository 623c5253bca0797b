//! The shared buffer: who may have how much of it, and when a sender is to be stopped.
//!
//! Frames of a lossless priority are charged to the port and priority they came in by: to the shared part up to the threshold,
//! then to a headroom of their own, which is what still arrives while the sender is being stopped. Others are charged to the
//! queue they leave by, and dropped above the threshold.

use super::settings::{SwitchSettings, Threshold};
use crate::network::pause::PRIORITY_COUNT;

/// Why there was no room for a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRoom {
    /// Its queue has what the threshold grants it, or the buffer is full.
    Queue,
    /// A lossless priority's headroom is full: it is too small for the delay and rate of the link.
    Headroom,
}

/// What one port and priority holds of the buffer by what came in.
#[derive(Clone, Copy, Debug, Default)]
struct Ingress {
    shared: u64,
    headroom: u64,
    /// Its sender has been told to stop.
    is_stopped: bool,
}

/// All of a switch's buffer, in bytes.
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    threshold: Threshold,
    lossless: [bool; PRIORITY_COUNT],
    headroom_bytes: u64,
    xon_offset_bytes: u64,
    shared_bytes: u64,
    shared_used: u64,
    headroom_used: u64,
    /// Most that was ever used.
    peak: u64,
    ingress: Vec<[Ingress; PRIORITY_COUNT]>,
}

impl Buffer {
    pub(super) fn new(settings: &SwitchSettings, ports: usize) -> Self {
        Self {
            threshold: settings.threshold,
            lossless: settings.pause.priorities,
            headroom_bytes: settings.pause.headroom_bytes,
            xon_offset_bytes: settings.pause.xon_offset_bytes,
            shared_bytes: settings.buffer_bytes - settings.headroom_bytes(ports),
            shared_used: 0,
            headroom_used: 0,
            peak: 0,
            ingress: vec![[Ingress::default(); PRIORITY_COUNT]; ports],
        }
    }

    /// What a queue may have at present.
    pub(super) fn limit(&self) -> u64 {
        match self.threshold {
            Threshold::Static(bytes) => bytes,
            Threshold::Dynamic(alpha) => (alpha * (self.shared_bytes - self.shared_used) as f64) as u64,
        }
    }

    /// Takes in a frame of `bytes` bytes for a queue that has `queued` already.
    pub(super) fn admit(&mut self, port: usize, priority: usize, bytes: u64, queued: u64) -> Result<(), NoRoom> {
        let limit = self.limit();
        let has_room = self.shared_used + bytes <= self.shared_bytes;
        if self.lossless[priority] {
            let ingress = &mut self.ingress[port][priority];
            if has_room && ingress.headroom == 0 && ingress.shared + bytes <= limit {
                ingress.shared += bytes;
                self.shared_used += bytes;
            } else if ingress.headroom + bytes <= self.headroom_bytes {
                ingress.headroom += bytes;
                self.headroom_used += bytes;
            } else {
                return Err(NoRoom::Headroom);
            }
        } else if has_room && queued + bytes <= limit {
            self.shared_used += bytes;
        } else {
            return Err(NoRoom::Queue);
        }
        self.peak = self.peak.max(self.used());
        Ok(())
    }

    /// A frame that came in by `port` has left.
    pub(super) fn release(&mut self, port: usize, priority: usize, bytes: u64) {
        let mut shared = bytes;
        if self.lossless[priority] {
            // What came last is in the headroom, so that is what is free first.
            let ingress = &mut self.ingress[port][priority];
            let from_headroom = ingress.headroom.min(bytes);
            ingress.headroom -= from_headroom;
            self.headroom_used -= from_headroom;
            shared = bytes - from_headroom;
            ingress.shared -= shared;
        }
        self.shared_used -= shared;
    }

    /// Whether the sender behind a port must be told to stop (true) or to go on (false) for a priority.
    pub(super) fn turn(&mut self, port: usize, priority: usize) -> Option<bool> {
        if !self.lossless[priority] {
            return None;
        }
        let limit = self.limit();
        let ingress = &mut self.ingress[port][priority];
        let is_over = ingress.headroom > 0 || ingress.shared >= limit.max(1);
        let is_under =
            ingress.headroom == 0 && (ingress.shared == 0 || ingress.shared + self.xon_offset_bytes <= limit);
        let turns = if ingress.is_stopped { is_under } else { is_over };
        turns.then(|| {
            ingress.is_stopped = !ingress.is_stopped;
            ingress.is_stopped
        })
    }

    pub(super) fn is_stopped(&self, port: usize, priority: usize) -> bool {
        self.ingress[port][priority].is_stopped
    }

    /// Bytes in the buffer.
    pub(super) fn used(&self) -> u64 {
        self.shared_used + self.headroom_used
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak
    }
}
