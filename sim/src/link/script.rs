//! Faults that a scenario asks for by name: "the third READ response is lost".

use std::fmt;

use wire::Frame;

/// What happens to a frame that a rule names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// It arrives so much later, and others pass it.
    HoldBack {
        /// Delay, ns.
        ns: u64,
    },
}

/// Names frames: those that `matches` accepts, from the `skip`ped ones on, `count` of them.
#[derive(Clone)]
pub struct Rule {
    /// Which frames are meant.
    pub matches: fn(&Frame<'_>) -> bool,
    /// So many of them pass first.
    pub skip: u32,
    /// So many of them are concerned.
    pub count: u32,
    /// What happens to them.
    pub action: Action,
}

impl Rule {
    /// Drops the frame number `nth` (from 0) of those that `matches` accepts.
    pub fn drop_nth(matches: fn(&Frame<'_>) -> bool, nth: u32) -> Self {
        Self { matches, skip: nth, count: 1, action: Action::Drop }
    }

    /// The action, if the frame is one of those.
    pub(super) fn apply(&mut self, frame: &[u8]) -> Option<Action> {
        if self.count == 0 || !Frame::parse(frame).is_ok_and(|frame| (self.matches)(&frame)) {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.count -= 1;
        Some(self.action)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { skip, count, action, .. } = self;
        f.debug_struct("Rule").field("skip", skip).field("count", count).field("action", action).finish_non_exhaustive()
    }
}
