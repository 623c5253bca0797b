//! What an lcore and the control thread share: commands and answers, events, counters, and the way to wake the lcore.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::queue::ArrayQueue;
use engine::command::{Answer, Command, Shards};
use engine::gsi::{IncomingMad, MAD_QUEUE};
use engine::{Event, PauseNotice, Shard, Time};
use shm::wake::WakeFd;

use crate::idle::Alarm;

/// Events that an lcore may have under way to the control thread. What does not fit stays with the shard, which counts what it loses.
const EVENTS_MAX: usize = 1024;

/// Reports for the log that an lcore may have under way.
const NOTICES_MAX: usize = 64;

/// How long the control thread polls for an answer before it sleeps between looks.
const ANSWER_POLL: Duration = Duration::from_micros(100);
/// How long it sleeps then: an lcore that sleeps itself answers within one wake.
const ANSWER_SLEEP: Duration = Duration::from_micros(50);

/// Declares the counters of an lcore, written by it alone, and their names.
macro_rules! lcore_counters {
    ($($(#[$doc:meta])* $counter:ident,)*) => {
        /// What an lcore did beside its shard's work. One writer, any reader.
        #[derive(Debug, Default)]
        pub(crate) struct LcoreCounters {
            $($(#[$doc])* pub(crate) $counter: Count,)*
        }

        impl LcoreCounters {
            /// Name and value of each.
            pub(crate) fn entries(&self) -> Vec<(String, u64)> {
                vec![$((stringify!($counter).to_owned(), self.$counter.get())),*]
            }
        }
    };
}

lcore_counters! {
    /// Frames that came in on this lcore's queue for a QP of another one.
    handed_over_packets,
    /// Of those, the ones dropped because the other lcore's inbox was full.
    handover_lost_packets,
    /// Times that frames between QPs of this engine waited for room in another lcore's inbox.
    local_waits,
    /// Frames between QPs of this engine for an lcore that does not exist.
    local_unknown_shard,
    /// Times that the lcore slept.
    sleeps,
    /// Sleeps that ended because somebody had work.
    wakes,
    /// Times that yielding the core took so long that the core must be shared with others.
    crowded,
}

/// A number that one thread counts up and others read.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds; a load and a store, since there is one writer.
    #[inline]
    pub(crate) fn add(&self, more: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(more), Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// One lcore's mailbox.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// There is a command, or an order to stop. A line of its own: the lcore looks at it in every turn.
    attention: crossbeam::utils::CachePadded<AtomicBool>,
    /// The lcore sleeps, or is about to.
    sleeping: crossbeam::utils::CachePadded<AtomicBool>,
    stop: AtomicBool,
    /// The lcore's thread has ended.
    ended: AtomicBool,
    /// One at a time: the control thread waits for each answer.
    commands: ArrayQueue<Command>,
    answers: ArrayQueue<Answer>,
    events: ArrayQueue<Event>,
    notices: ArrayQueue<PauseNotice>,
    mads: ArrayQueue<IncomingMad>,
    /// Wakes the lcore.
    alarm: Arc<Alarm>,
    /// Wakes the control thread.
    control: Arc<WakeFd>,
    pub(crate) counters: crossbeam::utils::CachePadded<LcoreCounters>,
}

impl Mailbox {
    /// An empty mailbox. `control` is the control thread's eventfd.
    pub(crate) fn new(control: Arc<WakeFd>) -> std::io::Result<Self> {
        Ok(Self {
            attention: AtomicBool::new(false).into(),
            sleeping: AtomicBool::new(false).into(),
            stop: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            commands: ArrayQueue::new(1),
            answers: ArrayQueue::new(1),
            events: ArrayQueue::new(EVENTS_MAX),
            notices: ArrayQueue::new(NOTICES_MAX),
            mads: ArrayQueue::new(MAD_QUEUE),
            alarm: Arc::new(Alarm::new()?),
            control,
            counters: LcoreCounters::default().into(),
        })
    }

    /// What wakes the lcore.
    pub(crate) fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// Lcore: true if [`Mailbox::serve`] has something to do.
    #[inline]
    pub(crate) fn has_attention(&self) -> bool {
        self.attention.load(Relaxed)
    }

    /// Lcore: executes what is in the mailbox. False if the lcore is to stop.
    #[cold]
    pub(crate) fn serve(&self, shard: &mut Shard, now: Time) -> bool {
        // PAIRS WITH: the store in `summon`: what was put in before it is seen.
        self.attention.swap(false, Acquire);
        while let Some(command) = self.commands.pop() {
            let answer = shard.command(now, command);
            assert!(self.answers.push(answer).is_ok(), "the control side takes each answer before it asks again");
        }
        !self.stop.load(Relaxed)
    }

    /// Lcore: hands the shard's events to the control thread, as many as fit.
    #[cold]
    pub(crate) fn publish_events(&self, shard: &mut Shard) {
        while !self.events.is_full()
            && let Some(event) = shard.poll_event()
        {
            // This thread is the only producer, and there was room.
            let _taken = self.events.push(event);
        }
        self.control.wake();
    }

    /// Lcore: hands the shard's reports to the control thread, as many as fit.
    #[cold]
    pub(crate) fn publish_notices(&self, shard: &mut Shard) {
        while !self.notices.is_full()
            && let Some(notice) = shard.poll_notice()
        {
            // This thread is the only producer, and there was room.
            let _taken = self.notices.push(notice);
        }
        self.control.wake();
    }

    /// Lcore: hands the management datagrams of the shard's ports to the control thread, as many as fit.
    #[cold]
    pub(crate) fn publish_mads(&self, shard: &mut Shard) {
        while !self.mads.is_full()
            && let Some(mad) = shard.poll_mad()
        {
            // This thread is the only producer, and there was room.
            let _taken = self.mads.push(mad);
        }
        self.control.wake();
    }

    /// Lcore: says that it is about to sleep, before its last look at what others may have put down for it.
    pub(crate) fn announce_sleep(&self) {
        self.sleeping.store(true, SeqCst);
        // PAIRS WITH: the fence in `wake_if_asleep`: either the other side sees the flag, or the lcore's look that follows
        // sees what the other side put down before.
        fence(SeqCst);
    }

    /// Lcore: it is awake again.
    pub(crate) fn announce_awake(&self) {
        self.sleeping.store(false, Relaxed);
    }

    /// Lcore, as its last act.
    pub(crate) fn announce_end(&self) {
        // PAIRS WITH: the load in `command`.
        self.ended.store(true, Release);
        self.control.wake();
    }

    /// Others: wakes the lcore if it sleeps, after something was put down for it.
    #[inline]
    pub(crate) fn wake_if_asleep(&self) {
        // PAIRS WITH: the fence in `announce_sleep`.
        fence(SeqCst);
        if self.sleeping.load(Relaxed) {
            self.alarm.ring();
        }
    }

    fn summon(&self) {
        // PAIRS WITH: the swap in `serve`.
        self.attention.store(true, Release);
        self.wake_if_asleep();
    }

    /// Control: tells the lcore to stop. It does so at the end of its turn.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Relaxed);
        self.summon();
    }

    /// Control: an event for a client.
    pub(crate) fn take_event(&self) -> Option<Event> {
        self.events.pop()
    }

    /// Control: a report for the log.
    pub(crate) fn take_notice(&self) -> Option<PauseNotice> {
        self.notices.pop()
    }

    /// Control: a management datagram from the wire.
    pub(crate) fn take_mad(&self) -> Option<IncomingMad> {
        self.mads.pop()
    }

    /// Control: has the lcore execute a command and waits for the answer.
    fn command(&self, command: Command) -> Answer {
        assert!(self.commands.push(command).is_ok(), "one command is under way at a time");
        self.summon();
        let asked = Instant::now();
        loop {
            if let Some(answer) = self.answers.pop() {
                return answer;
            }
            // PAIRS WITH: the store in `announce_end`.
            assert!(!self.ended.load(Acquire), "an lcore's thread has ended, and the engine with it");
            if asked.elapsed() < ANSWER_POLL {
                thread::yield_now();
            } else {
                thread::sleep(ANSWER_SLEEP);
            }
        }
    }
}

/// The shards of an engine whose lcores are threads.
#[derive(Debug, Clone)]
pub(crate) struct Mailboxes(pub(crate) Arc<[Mailbox]>);

impl Shards for Mailboxes {
    fn command(&mut self, shard: u8, command: Command) -> Answer {
        // The number of a shard may come from a client's QPN.
        self.0.get(usize::from(shard)).map_or(Answer::Missing, |mailbox| mailbox.command(command))
    }

    fn client_wake(&self, shard: u8) -> std::io::Result<OwnedFd> {
        self.0[usize::from(shard)].alarm.client_wake()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idle::Bed;

    fn mailbox() -> Mailbox {
        Mailbox::new(Arc::new(WakeFd::new().unwrap())).unwrap()
    }

    #[test]
    fn a_sleeping_lcore_is_woken_and_a_busy_one_is_not() {
        let mailbox = mailbox();
        let bed = Bed::new(Arc::clone(mailbox.alarm()), Vec::new()).unwrap();
        mailbox.wake_if_asleep();
        assert!(!bed.sleep(1_000));
        mailbox.announce_sleep();
        mailbox.wake_if_asleep();
        assert!(bed.sleep(1_000));
        mailbox.announce_awake();
        mailbox.wake_if_asleep();
        assert!(!bed.sleep(1_000));
    }

    #[test]
    fn a_command_to_a_shard_that_does_not_exist_is_answered_missing() {
        let mut shards = Mailboxes(Arc::from([mailbox()]));
        assert!(matches!(shards.command(1, Command::Counters), Answer::Missing));
    }

    #[test]
    #[should_panic(expected = "has ended")]
    fn a_command_to_an_lcore_that_has_ended_is_a_panic_and_no_hang() {
        let mut shards = Mailboxes(Arc::from([mailbox()]));
        shards.0[0].announce_end();
        shards.command(0, Command::Counters);
    }
}
