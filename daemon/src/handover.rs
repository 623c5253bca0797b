//! Frames from one lcore to another: those that came in on the wrong queue, and those between two QPs of the engine.

use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use pmd::{Burst, Mbuf};

use crate::mailbox::Mailbox;

/// Frames that may lie in one inbox.
const INBOX_FRAMES: usize = 1024;

/// A queue from one lcore to another: port and frame.
type Inbox = Arc<ArrayQueue<(u8, Mbuf)>>;

/// One lcore's ends of the queues between all pairs of lcores.
#[derive(Debug)]
pub(crate) struct Handover {
    /// From each lcore to this one; the own place stays empty.
    from: Vec<Inbox>,
    /// A frame of another port than the burst that [`Handover::take`] gave last, for each of `from`.
    left_over: Vec<Option<(u8, Mbuf)>>,
    /// From this one to each lcore.
    to: Vec<Inbox>,
    mailboxes: Arc<[Mailbox]>,
    /// Lcores that got something and may have to be woken.
    touched: u64,
}

impl Handover {
    /// The ends of as many lcores as there are mailboxes.
    pub(crate) fn all(mailboxes: &Arc<[Mailbox]>) -> Vec<Self> {
        let count = mailboxes.len();
        let row = |_| (0..count).map(|_| Inbox::new(ArrayQueue::new(INBOX_FRAMES))).collect();
        let queues: Vec<Vec<Inbox>> = (0..count).map(row).collect();
        let end = |own: usize| Self {
            from: queues.iter().map(|to| Arc::clone(&to[own])).collect(),
            left_over: (0..count).map(|_| None).collect(),
            to: queues[own].clone(),
            mailboxes: Arc::clone(mailboxes),
            touched: 0,
        };
        (0..count).map(end).collect()
    }

    /// Lcores that there are.
    #[inline]
    pub(crate) fn lcore_count(&self) -> usize {
        self.to.len()
    }

    /// Puts a frame into another lcore's inbox.
    ///
    /// # Errors
    /// The frame itself, if the inbox is full.
    #[inline]
    pub(crate) fn send(&mut self, lcore: usize, port: u8, mbuf: Mbuf) -> Result<(), Mbuf> {
        self.touched |= 1 << lcore;
        self.to[lcore].push((port, mbuf)).map_err(|(_, mbuf)| mbuf)
    }

    /// Wakes the lcores that got frames, where they sleep. Once a turn.
    #[inline]
    pub(crate) fn wake_receivers(&mut self) {
        while self.touched != 0 {
            let lcore = self.touched.trailing_zeros() as usize;
            self.touched &= self.touched - 1;
            self.mailboxes[lcore].wake_if_asleep();
        }
    }

    /// Takes frames from the inbox that `lcore` fills, one burst at most, all of one port; returns the port.
    #[inline]
    pub(crate) fn take(&mut self, lcore: usize, burst: &mut Burst) -> Option<u8> {
        let (inbox, left_over) = (&self.from[lcore], &mut self.left_over[lcore]);
        let (port, first) = left_over.take().or_else(|| inbox.pop())?;
        burst.push(first).expect("the caller's burst is empty");
        while burst.room() > 0 {
            match inbox.pop() {
                Some((same, mbuf)) if same == port => burst.push(mbuf).expect("there is room"),
                other => {
                    *left_over = other;
                    break;
                }
            }
        }
        Some(port)
    }

    /// How many frames wait for this lcore, but for one from each other.
    pub(crate) fn waiting(&self) -> u32 {
        let frames = self.from.iter().map(|inbox| inbox.len()).sum::<usize>();
        u32::try_from(frames).unwrap_or(u32::MAX)
    }

    /// True if a frame waits for this lcore.
    pub(crate) fn has_frames(&self) -> bool {
        self.left_over.iter().any(Option::is_some) || self.from.iter().any(|inbox| !inbox.is_empty())
    }
}
