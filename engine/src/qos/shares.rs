//! Whose turn it is: strict traffic classes first, the others by weight.
//!
//! Weights are kept by start-time fair queueing: each class has a *pass*, the bytes that it has sent over its weight, and the
//! class with the lowest is next. A class that comes anew starts where the others are, so that nobody saves up turns. Turns
//! without contest are not counted.

use shm::qos::{PRIORITY_COUNT, QosSettings, Tsa};

use super::lane::{Lane, LaneSet};

/// The class of [`Lane::INSIDE`], after those of the link.
const INSIDE_CLASS: usize = PRIORITY_COUNT;

/// Passes rise by bytes times this over weight.
const SCALE: u64 = 1 << 20;

/// A traffic class.
#[derive(Clone, Copy, Debug)]
struct Class {
    lanes: LaneSet,
    is_strict: bool,
    /// What a byte adds to `pass`.
    stride: u64,
    /// Compared by difference: it may wrap.
    pass: u64,
    /// Who had the last turn of the class.
    last: Lane,
}

impl Class {
    fn is_behind(&self, pass: u64) -> bool {
        self.pass.wrapping_sub(pass).cast_signed() < 0
    }
}

/// The traffic classes of a port.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    classes: [Class; Lane::COUNT],
    class_of: [u8; Lane::COUNT],
    /// Lanes that waited when the last contested turn was given.
    contenders: LaneSet,
    /// The pass of whoever had that turn.
    virtual_time: u64,
}

impl Shares {
    pub(crate) fn new(settings: &QosSettings) -> Self {
        let none = Class { lanes: LaneSet::NONE, is_strict: false, stride: SCALE, pass: 0, last: Lane::INSIDE };
        let mut classes = [none; Lane::COUNT];
        for (class, (&tsa, &weight)) in classes.iter_mut().zip(settings.tsa.iter().zip(&settings.weights)) {
            class.is_strict = tsa == Tsa::Strict;
            class.stride = SCALE / u64::from(weight.max(1));
        }
        // What stays inside has the share of one class of eight.
        classes[INSIDE_CLASS] = Class { lanes: Lane::INSIDE.set(), stride: SCALE * 8 / 100, ..none };
        let mut class_of = [INSIDE_CLASS as u8; Lane::COUNT];
        for (priority, &class) in (0..).zip(&settings.priority_to_class) {
            let lane = Lane::of_priority(priority);
            class_of[lane.index()] = class & 7;
            let class = &mut classes[usize::from(class & 7)];
            class.lanes = class.lanes.or(lane.set());
        }
        Self { classes, class_of, contenders: LaneSet::NONE, virtual_time: 0 }
    }

    /// Which of the lanes that wait is next.
    #[inline]
    pub(crate) fn pick(&mut self, waiting: LaneSet) -> Option<Lane> {
        if let Some(lane) = waiting.only() {
            self.contenders = LaneSet::NONE;
            return Some(lane);
        }
        self.pick_contested(waiting)
    }

    fn pick_contested(&mut self, waiting: LaneSet) -> Option<Lane> {
        let mut next: Option<usize> = None;
        for index in 0..self.classes.len() {
            let class = &mut self.classes[index];
            if class.lanes.and(waiting).is_empty() {
                continue;
            }
            if class.lanes.and(self.contenders).is_empty() && class.is_behind(self.virtual_time) {
                class.pass = self.virtual_time;
            }
            // Classes come by rising number: a strict one displaces all before it.
            let (class, best) = (self.classes[index], next.map(|best| self.classes[best]));
            if best.is_none_or(|best| class.is_strict || (!best.is_strict && class.is_behind(best.pass))) {
                next = Some(index);
            }
        }
        self.contenders = waiting;
        let class = self.classes.get_mut(next?)?;
        if !class.is_strict {
            self.virtual_time = class.pass;
        }
        let lanes = class.lanes.and(waiting);
        let lane = lanes.above(class.last).first().or(lanes.first())?;
        class.last = lane;
        Some(lane)
    }

    /// A lane has sent so many bytes in its turn.
    #[inline]
    pub(crate) fn charge(&mut self, lane: Lane, bytes: u64) {
        if self.contenders.contains(lane) {
            let class = &mut self.classes[usize::from(self.class_of[lane.index()])];
            class.pass = class.pass.wrapping_add(bytes.wrapping_mul(class.stride));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn priorities(mask: u8) -> LaneSet {
        LaneSet::of_priorities(mask)
    }

    /// Bytes of each lane after so many turns, in which each sends as much as `frame_bytes` says.
    fn run(shares: &mut Shares, waiting: LaneSet, turns: usize, frame_bytes: fn(Lane) -> u64) -> [u64; Lane::COUNT] {
        let mut sent = [0; Lane::COUNT];
        for _ in 0..turns {
            let lane = shares.pick(waiting).unwrap();
            let bytes = frame_bytes(lane);
            sent[lane.index()] += bytes;
            shares.charge(lane, bytes);
        }
        sent
    }

    fn weighted(weights: [u8; 8]) -> Shares {
        Shares::new(&QosSettings { weights, ..QosSettings::default() })
    }

    #[test]
    fn weighted_classes_share_bytes_whatever_their_frames_sizes() {
        let mut shares = weighted([60, 30, 10, 1, 1, 1, 1, 1]);
        let bytes = |lane: Lane| [4_178, 64, 1_100][lane.index()];
        let sent = run(&mut shares, priorities(0b111), 1_000_000, bytes);
        let total = sent.iter().sum::<u64>() as f64;
        for (lane, expected) in [0.6, 0.3, 0.1].into_iter().enumerate() {
            let share = sent[lane] as f64 / total;
            assert!((share - expected).abs() < 0.001, "lane {lane}: {share} and not {expected}");
        }
    }

    #[test]
    fn a_strict_class_goes_first_and_the_highest_of_them_before_it() {
        let mut tsa = [Tsa::Ets; 8];
        (tsa[2], tsa[5]) = (Tsa::Strict, Tsa::Strict);
        let mut shares = Shares::new(&QosSettings { tsa, ..QosSettings::default() });
        assert_eq!(shares.pick(LaneSet::ALL), Some(Lane::of_priority(5)));
        assert_eq!(shares.pick(priorities(0b1100_0111)), Some(Lane::of_priority(2)));
        assert_ne!(shares.pick(priorities(0b1100_0011)), Some(Lane::of_priority(2)));
    }

    #[test]
    fn priorities_of_one_class_take_turns() {
        let mut shares = Shares::new(&QosSettings { priority_to_class: [3; 8], ..QosSettings::default() });
        let turns: Vec<_> = (0..6).map(|_| shares.pick(priorities(0b1001_0010)).unwrap().index()).collect();
        assert_eq!(turns, [1, 4, 7, 1, 4, 7]);
    }

    #[test]
    fn who_was_away_has_saved_nothing_and_lost_nothing() {
        let mut shares = weighted([50, 50, 50, 1, 1, 1, 1, 1]);
        run(&mut shares, priorities(0b011), 1_000, |_| 1_000);
        let sent = run(&mut shares, priorities(0b111), 300, |_| 1_000);
        assert!(sent[..3].iter().all(|bytes| bytes.abs_diff(100_000) <= 1_000), "{sent:?}");
        // Alone: not counted against it.
        run(&mut shares, priorities(0b001), 1_000, |_| 1_000);
        let sent = run(&mut shares, priorities(0b011), 200, |_| 1_000);
        assert!(sent[..2].iter().all(|bytes| bytes.abs_diff(100_000) <= 1_000), "{sent:?}");
    }

    #[test]
    fn passes_may_wrap() {
        let mut shares = weighted([50, 50, 1, 1, 1, 1, 1, 1]);
        let start = 0_u64.wrapping_sub(100);
        shares.virtual_time = start;
        shares.classes.iter_mut().for_each(|class| class.pass = start);
        let sent = run(&mut shares, priorities(0b11), 200, |_| 1_000);
        assert_eq!(sent[..2], [100_000, 100_000]);
    }

    #[test]
    fn nobody_waits() {
        assert_eq!(weighted([1; 8]).pick(LaneSet::NONE), None);
    }
}
