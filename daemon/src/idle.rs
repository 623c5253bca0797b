//! What an lcore does when there is nothing to do.

use std::os::fd::AsFd;
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

/// Where an lcore sleeps until its eventfd is written, or a frame comes to an interface that it shares with the kernel.
///
/// The eventfd is never read: clients share it, and one of them could make the read block. An edge-triggered epoll tells of
/// each write once, and costs the same two system calls.
#[derive(Debug)]
pub(crate) struct Bed {
    epoll: Epoll,
    /// Registered in `epoll`, as are the taps.
    _wake: Arc<WakeFd>,
    taps: Vec<PacketTap>,
}

impl Bed {
    pub(crate) fn new(wake: Arc<WakeFd>, taps: Vec<PacketTap>) -> std::io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let event = || EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
        epoll.add(wake.as_ref(), event())?;
        taps.iter().try_for_each(|tap| epoll.add(tap, event()))?;
        Ok(Self { epoll, _wake: wake, taps })
    }

    /// Forgets the frames that have come while the lcore was awake. Before its last look at the ports.
    pub(crate) fn make(&mut self) {
        if !self.taps.is_empty() {
            self.taps.iter_mut().for_each(PacketTap::drain);
            self.collect();
        }
    }

    /// Sleeps `timeout_ns` at most; true if the eventfd was written or a frame came since the last look.
    pub(crate) fn sleep(&self, timeout_ns: u64) -> bool {
        let mut fds = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
        let timeout = TimeSpec::nanoseconds(i64::try_from(timeout_ns).unwrap_or(i64::MAX));
        // A signal that interrupts is as good as a timeout.
        let woken = ppoll(&mut fds, Some(timeout), None).is_ok_and(|ready| ready > 0);
        if woken {
            self.collect();
        }
        woken
    }

    fn collect(&self) {
        let _told = self.epoll.wait(&mut [EpollEvent::empty(); 9], EpollTimeout::ZERO);
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
        let wake = Arc::new(WakeFd::new().unwrap());
        let bed = Bed::new(Arc::clone(&wake), Vec::new()).unwrap();
        assert!(!bed.sleep(1_000));
        wake.wake();
        wake.wake();
        assert!(bed.sleep(10_000_000_000));
        assert!(!bed.sleep(1_000));
        wake.wake();
        assert!(bed.sleep(10_000_000_000));
    }
}
