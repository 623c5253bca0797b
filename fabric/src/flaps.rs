//! When a link goes down and up by itself.

/// A plan of a port's link, from the start of the fabric on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Flaps {
    /// It stays up.
    #[default]
    Never,
    /// Down for a time, again and again.
    Periodic {
        /// From one time that it goes down to the next, ns; the first is so long after the start.
        every_ns: u64,
        /// How long it is down, ns; shorter than `every_ns`.
        for_ns: u64,
    },
    /// Down from the first to the second of each pair, ns, in rising order.
    Times(Vec<(u64, u64)>),
}

impl Flaps {
    /// When the link changes for the `nth` time: down if that is even, up if odd.
    pub(crate) fn change_ns(&self, nth: u64) -> Option<u64> {
        let is_up = nth % 2 == 1;
        match self {
            Self::Never => None,
            Self::Periodic { every_ns, for_ns } => {
                let down_ns = (nth / 2 + 1).checked_mul(*every_ns)?;
                down_ns.checked_add(if is_up { *for_ns } else { 0 })
            }
            Self::Times(times) => {
                let &(down_ns, up_ns) = times.get(usize::try_from(nth / 2).ok()?)?;
                Some(if is_up { up_ns } else { down_ns })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_in_turns_and_end_with_the_plan() {
        let changes = |flaps: Flaps| (0..4).map(|nth| flaps.change_ns(nth)).collect::<Vec<_>>();
        assert_eq!(changes(Flaps::Never), [None; 4]);
        let periodic = Flaps::Periodic { every_ns: 1_000, for_ns: 10 };
        assert_eq!(changes(periodic), [1_000, 1_010, 2_000, 2_010].map(Some));
        assert_eq!(changes(Flaps::Times(vec![(5, 7)])), [Some(5), Some(7), None, None]);
        assert_eq!(Flaps::Periodic { every_ns: u64::MAX, for_ns: 1 }.change_ns(1), None);
    }
}
