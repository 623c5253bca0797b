//! What an lcore does when there is nothing to do.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::{TimeSpec, TimeValLike};
use shm::wake::WakeFd;

use crate::kernel_interface::PacketTap;

/// How an lcore waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IdlePolicy {
    /// It polls without a pause: for cores that nobody else uses.
    Spin,
    /// It yields the core for 50 us, then sleeps until a doorbell rings or a short time is over; and goes to sleep sooner
    /// where yielding shows that others want the core.
    #[default]
    Adaptive,
}

/// How long an lcore yields before it sleeps.
const YIELD_NS: u64 = 50_000;
/// A yield that takes longer gave the core to somebody who computes.
const CROWDED_YIELD_NS: u64 = 60_000;
/// How long it then goes to sleep without yielding.
const CROWDED_NS: u64 = 50_000_000;
/// What it does instead before it sleeps: spin this long.
const CROWDED_SPIN_NS: u64 = 2_000;
/// The first sleep. Not every port can wake an lcore when a frame comes, so that sleeps are short, but ...
const SLEEP_NS: u64 = 200_000;
/// ... longer and longer up to this if nothing comes.
const SLEEP_NS_MAX: u64 = 1_000_000;
/// Rings and frames that one look takes: what is left ends the next sleep, no more.
const EVENTS_MAX: usize = 64;

/// What [`Idle::advise`] tells an lcore to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Advice {
    /// Pause for some cycles.
    Spin,
    /// Give the core to whoever waits for it.
    Yield,
    /// Sleep this many nanoseconds at most.
    Sleep(u64),
}

/// The state of one lcore's waiting.
#[derive(Debug)]
pub(crate) struct Idle {
    policy: IdlePolicy,
    /// Since when there has been nothing to do.
    since_ns: Option<u64>,
    crowded_until_ns: u64,
    sleep_ns: u64,
}

impl Idle {
    pub(crate) const fn new(policy: IdlePolicy) -> Self {
        Self { policy, since_ns: None, crowded_until_ns: 0, sleep_ns: SLEEP_NS }
    }

    /// There was work.
    #[inline]
    pub(crate) fn busy(&mut self) {
        self.since_ns = None;
        self.sleep_ns = SLEEP_NS;
    }

    /// There was none: what now.
    pub(crate) fn advise(&mut self, now_ns: u64) -> Advice {
        if self.policy == IdlePolicy::Spin {
            return Advice::Spin;
        }
        let idle_ns = now_ns.saturating_sub(*self.since_ns.get_or_insert(now_ns));
        if now_ns < self.crowded_until_ns {
            return if idle_ns < CROWDED_SPIN_NS { Advice::Spin } else { self.sleep() };
        }
        if idle_ns < YIELD_NS { Advice::Yield } else { self.sleep() }
    }

    fn sleep(&mut self) -> Advice {
        let sleep_ns = self.sleep_ns;
        self.sleep_ns = (sleep_ns * 2).min(SLEEP_NS_MAX);
        Advice::Sleep(sleep_ns)
    }

    /// Yields; true if that took so long that the core must be wanted by others.
    pub(crate) fn yield_core(&mut self, now_ns: u64, clock_ns: impl Fn() -> u64) -> bool {
        thread::yield_now();
        self.yielded(now_ns, clock_ns())
    }

    fn yielded(&mut self, before_ns: u64, after_ns: u64) -> bool {
        let crowded = after_ns.saturating_sub(before_ns) > CROWDED_YIELD_NS;
        if crowded {
            self.crowded_until_ns = after_ns + CROWDED_NS;
        }
        crowded
    }
}

/// What ends an lcore's sleep: an eventfd that this process alone has, and one for each client.
///
/// No eventfd is read: an edge-triggered epoll tells of each write once, and costs the same two system calls.
#[derive(Debug)]
pub(crate) struct Alarm {
    epoll: Epoll,
    own: WakeFd,
}

impl Alarm {
    pub(crate) fn new() -> std::io::Result<Self> {
        let alarm = Self { epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?, own: WakeFd::new()? };
        alarm.watch(&alarm.own)?;
        Ok(alarm)
    }

    /// Ends the sleep.
    pub(crate) fn ring(&self) {
        self.own.wake();
    }

    /// An eventfd for one client. The client can make it useless or block on it, and harms nobody but itself: nobody else has it.
    /// The epoll forgets it when its last copy is closed.
    pub(crate) fn client_wake(&self) -> std::io::Result<OwnedFd> {
        let wake = WakeFd::new()?;
        self.watch(&wake)?;
        Ok(wake.into())
    }

    fn watch(&self, fd: impl AsFd) -> std::io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0))?)
    }
}

/// Where an lcore sleeps until its alarm rings, or a frame comes to an interface that it shares with the kernel.
#[derive(Debug)]
pub(crate) struct Bed {
    alarm: Arc<Alarm>,
    /// Watched by the alarm.
    taps: Vec<PacketTap>,
}

impl Bed {
    pub(crate) fn new(alarm: Arc<Alarm>, taps: Vec<PacketTap>) -> std::io::Result<Self> {
        taps.iter().try_for_each(|tap| alarm.watch(tap))?;
        Ok(Self { alarm, taps })
    }

    /// Forgets the frames that have come while the lcore was awake. Before its last look at the ports.
    pub(crate) fn make(&mut self) {
        if !self.taps.is_empty() {
            self.taps.iter_mut().for_each(PacketTap::drain);
            self.collect();
        }
    }

    /// Sleeps `timeout_ns` at most; true if the alarm rang or a frame came since the last look.
    pub(crate) fn sleep(&self, timeout_ns: u64) -> bool {
        let mut fds = [PollFd::new(self.alarm.epoll.0.as_fd(), PollFlags::POLLIN)];
        let timeout = TimeSpec::nanoseconds(i64::try_from(timeout_ns).unwrap_or(i64::MAX));
        // A signal that interrupts is as good as a timeout.
        let woken = ppoll(&mut fds, Some(timeout), None).is_ok_and(|ready| ready > 0);
        if woken {
            self.collect();
        }
        woken
    }

    fn collect(&self) {
        let _told = self.alarm.epoll.wait(&mut [EpollEvent::empty(); EVENTS_MAX], EpollTimeout::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spin_never_yields() {
        let mut idle = Idle::new(IdlePolicy::Spin);
        assert!((0..1000).all(|ms| idle.advise(ms * 1_000_000) == Advice::Spin));
    }

    #[test]
    fn adaptive_yields_then_sleeps_longer_and_longer_until_there_is_work() {
        let mut idle = Idle::new(IdlePolicy::Adaptive);
        assert_eq!(idle.advise(1_000), Advice::Yield);
        assert_eq!(idle.advise(50_999), Advice::Yield);
        let sleeps: Vec<Advice> = (0..4).map(|_| idle.advise(51_000)).collect();
        assert_eq!(sleeps, [200_000, 400_000, 800_000, 1_000_000].map(Advice::Sleep));
        idle.busy();
        assert_eq!(idle.advise(60_000), Advice::Yield);
        assert_eq!(idle.advise(110_000), Advice::Sleep(200_000));
    }

    #[test]
    fn a_long_yield_makes_it_spin_shortly_and_sleep_for_a_while() {
        let mut idle = Idle::new(IdlePolicy::Adaptive);
        assert!(!idle.yielded(0, 60_000));
        assert!(idle.yielded(0, 60_001));
        assert_eq!(idle.advise(70_000), Advice::Spin);
        assert_eq!(idle.advise(72_000), Advice::Sleep(200_000));
        idle.busy();
        let calm_again = 60_001 + 50_000_000;
        assert_eq!(idle.advise(calm_again), Advice::Yield);
    }

    #[test]
    fn a_write_ends_the_sleep_and_is_told_once() {
        let alarm = Arc::new(Alarm::new().unwrap());
        let bed = Bed::new(Arc::clone(&alarm), Vec::new()).unwrap();
        assert!(!bed.sleep(1_000));
        alarm.ring();
        alarm.ring();
        assert!(bed.sleep(10_000_000_000));
        assert!(!bed.sleep(1_000));
        alarm.ring();
        assert!(bed.sleep(10_000_000_000));
    }

    #[test]
    fn a_client_that_makes_its_eventfd_block_silences_nobody_else() {
        use nix::fcntl::{FcntlArg, OFlag, fcntl};
        use nix::unistd::write;
        let alarm = Arc::new(Alarm::new().unwrap());
        let bed = Bed::new(Arc::clone(&alarm), Vec::new()).unwrap();
        let (evil, good) = (alarm.client_wake().unwrap(), alarm.client_wake().unwrap());
        write(&evil, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        fcntl(&evil, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        assert!(bed.sleep(10_000_000_000));
        // Neither of these blocks.
        alarm.ring();
        assert!(bed.sleep(10_000_000_000));
        write(&good, &1_u64.to_ne_bytes()).unwrap();
        assert!(bed.sleep(10_000_000_000));
        drop(evil);
        assert!(!bed.sleep(1_000), "a client that goes rings no more");
    }
}
