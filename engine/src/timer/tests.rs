//! The wheel against a sorted set.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const TICK_NS: u64 = 1 << TICK_SHIFT;

fn wheel_with(now: u64, timers: &[(u32, u64)]) -> TimerWheel {
    let mut wheel = TimerWheel::new(Time::from_ns(now));
    wheel.grow(timers.iter().map(|&(id, _)| id as usize + 1).max().unwrap_or(0));
    for &(id, at) in timers {
        wheel.schedule(id, Time::from_ns(at));
    }
    wheel
}

fn expired(wheel: &mut TimerWheel, now: u64) -> Vec<u32> {
    core::iter::from_fn(|| wheel.pop_expired(Time::from_ns(now))).map(|(id, _)| id).collect()
}

#[test]
fn deadline_is_kept_to_the_ns() {
    for at in [1, TICK_NS - 1, TICK_NS, TICK_NS + 1, 64 * TICK_NS, 64 * TICK_NS + 5, 1 << 40, u64::MAX - 1] {
        let mut wheel = wheel_with(0, &[(0, at)]);
        assert_eq!(expired(&mut wheel, at - 1), [], "{at}");
        assert_eq!(expired(&mut wheel, at), [0], "{at}");
        assert_eq!(wheel.next_deadline(), None);
    }
}

#[test]
fn deadline_in_the_past_is_due_at_once() {
    let mut wheel = wheel_with(1_000_000, &[(0, 5), (1, 1_000_000)]);
    assert_eq!(wheel.next_deadline(), Some(Time::from_ns(5)));
    assert_eq!(wheel.pop_expired(Time::from_ns(1_000_000)), Some((0, Time::from_ns(5))));
    assert_eq!(expired(&mut wheel, 1_000_000), [1]);
}

#[test]
fn scheduled_again_moves() {
    let mut wheel = wheel_with(0, &[(0, 100), (0, 1 << 30), (0, 50_000)]);
    assert_eq!(expired(&mut wheel, 49_999), []);
    assert!(wheel.is_scheduled(0));
    assert_eq!(expired(&mut wheel, 1 << 31), [0]);
    assert!(!wheel.is_scheduled(0));
}

#[test]
fn scheduled_no_later_moves_forward_only() {
    let mut wheel = wheel_with(0, &[(0, 50_000)]);
    wheel.schedule_no_later(0, Time::from_ns(60_000));
    assert_eq!(wheel.next_deadline(), Some(Time::from_ns(50_000)));
    wheel.schedule_no_later(0, Time::from_ns(40_000));
    assert_eq!(expired(&mut wheel, 40_000), [0]);
    wheel.schedule_no_later(0, Time::from_ns(60_000));
    assert_eq!(wheel.next_deadline(), Some(Time::from_ns(60_000)));
}

#[test]
fn never_cancels() {
    let mut wheel = wheel_with(0, &[(0, 100), (0, u64::MAX)]);
    assert!(!wheel.is_scheduled(0));
    assert_eq!(expired(&mut wheel, u64::MAX), []);
}

/// A due timer that was not popped yet can still be taken back.
#[test]
fn due_timer_is_cancelled_and_moved() {
    let mut wheel = wheel_with(0, &[(0, 10), (1, 11), (2, 12)]);
    assert_eq!(wheel.pop_expired(Time::from_ns(20)), Some((0, Time::from_ns(10))));
    wheel.cancel(1);
    wheel.schedule(2, Time::from_ns(30));
    assert_eq!(expired(&mut wheel, 20), []);
    assert_eq!(expired(&mut wheel, 30), [2]);
}

/// Five hours are fourteen digits of ns; a step for each of them would be no wheel.
#[test]
fn idle_clock_reaches_a_far_deadline_in_a_step_a_level() {
    let at = Time::from_ns(5 * 3_600 * 1_000_000_000 + 12_345);
    let mut wheel = wheel_with(777, &[(0, at.as_ns())]);
    for _ in 0..LEVELS {
        let next = wheel.next_deadline().expect("still scheduled");
        assert!(next <= at);
        if let Some(popped) = wheel.pop_expired(next) {
            assert_eq!(popped, (0, at));
            return;
        }
    }
    panic!("still not there after {LEVELS} steps");
}

#[test]
fn grow_keeps_what_is_scheduled() {
    let mut wheel = wheel_with(0, &[(0, 10)]);
    wheel.grow(1_000);
    wheel.grow(1);
    wheel.schedule(999, Time::from_ns(5));
    assert_eq!(expired(&mut wheel, 9), [999]);
    assert_eq!(expired(&mut wheel, 10), [0]);
}

#[derive(Clone, Debug)]
enum Step {
    /// A timer gets a deadline this many ns away from now, or in the past.
    Schedule(u32, i64),
    Cancel(u32),
    /// So many ns pass, and then at most so many timers are popped.
    Advance(u64, usize),
    /// The clock goes where the wheel says.
    Sleep,
}

const TIMERS: u32 = 24;

/// Spans of all magnitudes: uniform numbers would nearly all be centuries.
fn span() -> impl Strategy<Value = u64> {
    (0..46_u32, any::<u64>()).prop_map(|(bits, random)| random & ((1 << bits) - 1))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..TIMERS, span(), prop::bool::weighted(0.9)).prop_map(|(id, ns, ahead)| {
            let ns = ns.cast_signed();
            Step::Schedule(id, if ahead { ns } else { -ns })
        }),
        1 => (0..TIMERS).prop_map(Step::Cancel),
        3 => (span(), prop_oneof![Just(usize::MAX), 0..4_usize]).prop_map(|(ns, pops)| Step::Advance(ns, pops)),
        2 => Just(Step::Sleep),
    ]
}

/// What the wheel should do, by the simplest means.
struct Model {
    now: u64,
    deadlines: BTreeMap<u32, u64>,
}

impl Model {
    /// Pops from the wheel, and checks what comes out and whether enough does.
    fn pop(&mut self, wheel: &mut TimerWheel, limit: usize) {
        for _ in 0..limit {
            let Some((id, at)) = wheel.pop_expired(Time::from_ns(self.now)) else {
                let left: BTreeSet<_> = self.deadlines.iter().filter(|&(_, &at)| at <= self.now).collect();
                assert!(left.is_empty(), "late at {}: {left:?}", self.now);
                return;
            };
            assert_eq!(self.deadlines.remove(&id), Some(at.as_ns()), "timer {id}");
            assert!(at.as_ns() <= self.now, "timer {id} at {} fired early at {}", at.as_ns(), self.now);
            assert!(!wheel.is_scheduled(id));
        }
    }

    fn check(&self, wheel: &TimerWheel) {
        for id in 0..TIMERS {
            assert_eq!(wheel.is_scheduled(id), self.deadlines.contains_key(&id), "timer {id}");
        }
        let first = self.deadlines.values().min().copied();
        let next = wheel.next_deadline().map(Time::as_ns);
        assert_eq!(next.is_some(), first.is_some());
        if let (Some(next), Some(first)) = (next, first) {
            assert!(next <= first, "sleeping until {next} misses {first}");
            // Exact for what is due and within the round of level 0, as the wheel knows the time.
            let round = |ns: u64| ns >> TICK_SHIFT >> SLOT_SHIFT;
            if first <= wheel.now.as_ns() || round(first) == round(wheel.now.as_ns()) {
                assert_eq!(next, first);
            }
        }
    }

    fn apply(&mut self, wheel: &mut TimerWheel, step: &Step) {
        match *step {
            Step::Schedule(id, ns) => {
                let at = self.now.saturating_add_signed(ns);
                wheel.schedule(id, Time::from_ns(at));
                self.deadlines.insert(id, at);
            }
            Step::Cancel(id) => {
                wheel.cancel(id);
                self.deadlines.remove(&id);
            }
            Step::Advance(ns, pops) => {
                self.now += ns;
                self.pop(wheel, pops);
            }
            Step::Sleep => {
                let first = self.deadlines.values().min().copied();
                let mut steps = 0;
                while self.deadlines.values().min().copied() == first
                    && let Some(next) = wheel.next_deadline()
                {
                    steps += 1;
                    assert!(steps <= LEVELS + 1, "no progress at {}", self.now);
                    self.now = self.now.max(next.as_ns());
                    self.pop(wheel, usize::MAX);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn wheel_agrees_with_a_sorted_set(start in span(), steps in prop::collection::vec(step(), 1..120)) {
        let mut wheel = TimerWheel::new(Time::from_ns(start));
        wheel.grow(TIMERS as usize);
        let mut model = Model { now: start, deadlines: BTreeMap::new() };
        for step in &steps {
            model.apply(&mut wheel, step);
            model.check(&wheel);
        }
        model.now = 1 << 50;
        model.pop(&mut wheel, usize::MAX);
        prop_assert!(model.deadlines.is_empty());
        prop_assert_eq!(wheel.next_deadline(), None);
        prop_assert_eq!((wheel.levels, wheel.occupied), (0, [0; LEVELS]));
    }
}
