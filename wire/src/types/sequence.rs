//! Sequence numbers modulo 2^24.

use core::fmt;

const MASK: u32 = 0x00ff_ffff;

/// The signed 24-bit difference `later - earlier`, sign-extended.
#[inline]
const fn signed_difference(later: u32, earlier: u32) -> i32 {
    // The shift drops what lies above bit 23 and puts bit 23 where the sign belongs.
    (later.wrapping_sub(earlier) << 8).cast_signed() >> 8
}

macro_rules! sequence_number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// Circular, so it has no total order: compare by [`Self::distance_from`] or [`Self::is_before`], which hold as
        /// long as the two numbers are less than 2^23 apart.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(u32);

        impl $name {
            /// All 24 bits of a sequence number.
            pub const MASK: u32 = MASK;

            /// The low 24 bits of `value`.
            #[inline]
            #[must_use]
            pub const fn new(value: u32) -> Self {
                Self(value & MASK)
            }

            /// The number, 0..2^24.
            #[inline]
            #[must_use]
            pub const fn value(self) -> u32 {
                self.0
            }

            /// The number `count` steps later.
            #[inline]
            #[must_use]
            pub const fn add(self, count: u32) -> Self {
                Self::new(self.0.wrapping_add(count))
            }

            /// The number `count` steps earlier.
            #[inline]
            #[must_use]
            pub const fn sub(self, count: u32) -> Self {
                Self::new(self.0.wrapping_sub(count))
            }

            /// How many steps `self` is after `earlier`: -2^23..2^23, negative if it is before.
            #[inline]
            #[must_use]
            pub const fn distance_from(self, earlier: Self) -> i32 {
                signed_difference(self.0, earlier.0)
            }

            /// Whether `self` comes before `other` on the circle.
            #[inline]
            #[must_use]
            pub const fn is_before(self, other: Self) -> bool {
                self.distance_from(other) < 0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#08x}", self.0)
            }
        }
    };
}

sequence_number! {
    /// Packet sequence number, 24 bits (BTH; IBTA 9.7.1).
    Psn
}

sequence_number! {
    /// Message sequence number, 24 bits: how many requests the responder has completed (AETH; IBTA 9.7.7.1).
    Msn
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2^23: the first distance that cannot be told from one in the other direction.
    const HALF: i64 = 1 << 23;

    /// The sequence number at `position` of the unrolled line.
    fn at(position: i64) -> Psn {
        Psn::new(u32::try_from(position.rem_euclid(1 << 24)).unwrap())
    }

    proptest! {
        #[test]
        fn psn_agrees_with_unrolled_line(start in -(1_i64 << 40)..(1_i64 << 40), step in -HALF..HALF) {
            let (from, to) = (at(start), at(start + step));
            prop_assert_eq!(i64::from(to.distance_from(from)), step);
            prop_assert_eq!(to.is_before(from), step < 0);
            let count = u32::try_from(step.unsigned_abs()).unwrap();
            prop_assert_eq!(if step < 0 { from.sub(count) } else { from.add(count) }, to);
        }

        #[test]
        fn psn_add_any_count_agrees_with_unrolled_line(start in 0_i64..(1 << 24), count: u32) {
            prop_assert_eq!(at(start).add(count), at(start + i64::from(count)));
            prop_assert_eq!(at(start).sub(count), at(start - i64::from(count)));
        }
    }

    #[test]
    fn psn_at_the_wrap() {
        let last = Psn::new(Psn::MASK);
        assert_eq!(last.add(1), Psn::new(0));
        assert_eq!(Psn::new(0).sub(1), last);
        assert_eq!(Psn::new(1).distance_from(last), 2);
        assert_eq!(last.distance_from(Psn::new(1)), -2);
        assert!(last.is_before(Psn::new(0)));
        assert_eq!(Psn::new(0x0100_0007), Psn::new(7), "bits above 23 are cut");
        assert_eq!(std::format!("{}", Psn::new(0xa0000)), "0x0a0000");
    }
}
