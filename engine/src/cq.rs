//! A completion queue's engine side.

use std::sync::Arc;

use shm::layout::Cqe;
use shm::ring::CqWriter;
use shm::wake::Notifier;

/// A CQ. One shard owns it and is its only producer.
#[derive(Debug)]
pub struct Cq {
    pub(crate) writer: CqWriter,
    pub(crate) session: u32,
    pub(crate) handle: u32,
    pub(crate) channel: Option<Arc<Notifier>>,
    /// Completions were written in this turn: the notification is due.
    pub(crate) touched: bool,
    /// One of them was solicited or failed.
    pub(crate) solicited: bool,
    /// A completion was lost. Nothing more is written.
    pub(crate) overrun: bool,
}

impl Cq {
    /// A CQ of a session, known there by `handle`, that rings `channel`.
    pub fn new(writer: CqWriter, session: u32, handle: u32, channel: Option<Arc<Notifier>>) -> Self {
        Self { writer, session, handle, channel, touched: false, solicited: false, overrun: false }
    }
}

/// The CQs of a shard, by index.
#[derive(Debug, Default)]
pub(crate) struct CqTable {
    slots: Vec<Option<Box<Cq>>>,
    /// Indices of CQs with `touched` set.
    touched: Vec<u32>,
}

/// What became of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pushed {
    /// Written.
    Done,
    /// The CQ has just overrun: say so to its owner.
    Overrun { session: u32, handle: u32 },
    /// It had overrun before (or is gone).
    Lost,
}

impl CqTable {
    pub(crate) fn insert(&mut self, index: u32, cq: Box<Cq>) -> bool {
        let index = index as usize;
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
            self.touched.reserve(self.slots.len());
        }
        match self.slots.get_mut(index) {
            Some(slot @ None) => {
                *slot = Some(cq);
                true
            }
            _ => false,
        }
    }

    /// Gives a CQ another ring, for the one that it had. An overrun stays one: completions are lost.
    pub(crate) fn replace_ring(&mut self, index: u32, mut writer: Box<CqWriter>) -> Option<Box<CqWriter>> {
        let cq = self.slots.get_mut(index as usize)?.as_mut()?;
        writer.succeed(&cq.writer);
        std::mem::swap(&mut cq.writer, &mut writer);
        Some(writer)
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<Box<Cq>> {
        self.touched.retain(|&touched| touched != index);
        self.slots.get_mut(index as usize)?.take()
    }

    /// Writes a completion. `solicited` also stands for a failure.
    #[inline]
    pub(crate) fn push(&mut self, index: u32, cqe: &Cqe, solicited: bool) -> Pushed {
        let Some(Some(cq)) = self.slots.get_mut(index as usize) else { return Pushed::Lost };
        if cq.overrun {
            return Pushed::Lost;
        }
        if cq.writer.push(cqe).is_err() {
            cq.overrun = true;
            return Pushed::Overrun { session: cq.session, handle: cq.handle };
        }
        cq.solicited |= solicited;
        if !cq.touched {
            cq.touched = true;
            self.touched.push(index);
        }
        Pushed::Done
    }

    /// The channel of a touched CQ whose client asked to be told; `None` when there is no more in this turn.
    pub(crate) fn poll_wake(&mut self) -> Option<Arc<Notifier>> {
        while let Some(index) = self.touched.pop() {
            let Some(Some(cq)) = self.slots.get_mut(index as usize) else { continue };
            cq.touched = false;
            let solicited = std::mem::take(&mut cq.solicited);
            let Some(channel) = &cq.channel else { continue };
            if cq.writer.take_notification(solicited) {
                return Some(Arc::clone(channel));
            }
        }
        None
    }
}
