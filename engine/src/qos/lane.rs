//! Lanes: where a QP waits for its turn to send, and which one a packet belongs to.

use shm::qos::{DSCP_COUNT, PRIORITY_COUNT, QosSettings, Trust};
use wire::Frame;

/// The lane of a priority, or the one inside the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lane(u8);

impl Lane {
    /// How many there are.
    pub(crate) const COUNT: usize = PRIORITY_COUNT + 1;

    /// Of packets between two QPs of this engine, which never meet the link, and of datagrams that nobody has looked at yet.
    pub(crate) const INSIDE: Self = Self(PRIORITY_COUNT as u8);

    /// The lane of a priority, 0 to 7.
    pub(crate) const fn of_priority(priority: u8) -> Self {
        Self(priority & 7)
    }

    /// Its priority, if it is not the one inside.
    #[inline]
    pub(crate) fn priority(self) -> Option<usize> {
        Some(self.index()).filter(|&index| index < PRIORITY_COUNT)
    }

    /// Its place in tables.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// A set of it alone.
    #[inline]
    pub(crate) const fn set(self) -> LaneSet {
        LaneSet(1 << self.0)
    }
}

/// A set of lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LaneSet(u16);

impl LaneSet {
    /// None.
    pub(crate) const NONE: Self = Self(0);
    /// All.
    pub(crate) const ALL: Self = Self((1 << Lane::COUNT) - 1);

    /// The lanes of priorities, given as bits.
    #[inline]
    pub(crate) const fn of_priorities(mask: u8) -> Self {
        Self(mask as u16)
    }

    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) const fn contains(self, lane: Lane) -> bool {
        self.0 & 1 << lane.0 != 0
    }

    /// In both.
    #[inline]
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// In either.
    #[inline]
    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// In this one, but not in the other.
    #[inline]
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The lowest one of a set.
    #[inline]
    pub(crate) const fn first(self) -> Option<Lane> {
        if self.0 == 0 { None } else { Some(Lane(self.0.trailing_zeros() as u8)) }
    }

    /// The only one of a set.
    #[inline]
    pub(crate) const fn only(self) -> Option<Lane> {
        if self.0.is_power_of_two() { self.first() } else { None }
    }

    /// Those above a lane.
    #[inline]
    pub(crate) const fn above(self, lane: Lane) -> Self {
        // A lane's number is 8 at most.
        Self(self.0 & (u16::MAX << lane.0 << 1))
    }

    /// All of them, the lowest first.
    pub(crate) fn iter(self) -> impl Iterator<Item = Lane> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let lane = rest.first()?;
            rest = rest.without(lane.set());
            Some(lane)
        })
    }
}

/// Finds priorities: what the settings say, ready for use.
#[derive(Clone, Debug)]
pub(crate) struct PriorityMap {
    trust: Trust,
    by_dscp: [u8; DSCP_COUNT],
}

impl PriorityMap {
    pub(crate) fn new(settings: &QosSettings) -> Self {
        let mut by_dscp = [0; DSCP_COUNT];
        by_dscp.iter_mut().zip(settings.dscp_to_priority.iter()).for_each(|(place, priority)| *place = priority & 7);
        Self { trust: settings.trust, by_dscp }
    }

    /// The priority of packets with this traffic class and this VLAN priority; `None` = untagged.
    #[inline]
    pub(crate) fn priority(&self, traffic_class: u8, pcp: Option<u8>) -> u8 {
        match self.trust {
            // Six bits: the table has as many places.
            Trust::Dscp => self.by_dscp.get(usize::from(traffic_class >> 2)).copied().unwrap_or(0),
            Trust::Pcp => pcp.unwrap_or(0) & 7,
        }
    }

    /// The priority that a frame came with.
    #[inline]
    pub(crate) fn of_frame(&self, frame: &Frame<'_>) -> usize {
        usize::from(self.priority(frame.traffic_class(), frame.vlan().map(|tag| tag.pcp)))
    }
}
