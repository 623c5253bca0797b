//! Keys: memory (L_Key, R_Key), partition (P_Key), datagram queue (Q_Key).

use core::fmt;

/// Local key: names a memory region to the queue pairs of its own protection domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lkey(pub u32);

/// Remote key: names a memory region or window to a peer (RETH, AtomicETH, IETH).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rkey(pub u32);

/// Queue key of datagram queue pairs (DETH).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Qkey(pub u32);

impl Qkey {
    /// The Q_Key of QP1, the general services interface (IBTA 9.3.4).
    pub const GSI: Self = Self(0x8001_0000);

    /// Whether the top bit is set: in a work request it means "use the queue pair's own" (IBTA 10.2.5).
    #[inline]
    #[must_use]
    pub const fn is_controlled(self) -> bool {
        self.0 >> 31 == 1
    }
}

/// Partition key (BTH): a 15-bit partition number, and a top bit that is 1 for full members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pkey(pub u16);

impl Pkey {
    /// Full member of the default partition; the only entry of a RoCE port's table.
    pub const DEFAULT: Self = Self(0xffff);

    /// The partition number: the low 15 bits.
    #[inline]
    #[must_use]
    pub const fn index15(self) -> u16 {
        self.0 & 0x7fff
    }

    /// Whether this is a full member's key.
    #[inline]
    #[must_use]
    pub const fn is_full(self) -> bool {
        self.0 >> 15 == 1
    }

    /// Whether a packet with the key `other` may reach a queue pair with this one: same partition, and at least one of
    /// the two a full member (IBTA 10.9.3).
    #[inline]
    #[must_use]
    pub const fn matches(self, other: Self) -> bool {
        self.index15() == other.index15() && (self.is_full() || other.is_full())
    }
}

impl Default for Pkey {
    fn default() -> Self {
        Self::DEFAULT
    }
}

macro_rules! display_hex {
    ($($name:ident $format:literal),*) => {
        $(impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        })*
    };
}
display_hex!(Lkey "{:#010x}", Rkey "{:#010x}", Qkey "{:#010x}", Pkey "{:#06x}");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pkey_matches_same_partition_with_a_full_member() {
        let (full, limited) = (Pkey(0x8123), Pkey(0x0123));
        assert!(full.matches(full) && full.matches(limited) && limited.matches(full));
        assert!(!limited.matches(limited));
        assert!(!full.matches(Pkey::DEFAULT));
        assert!(Pkey::DEFAULT.matches(Pkey(0x7fff)));
    }

    #[test]
    fn qkey_top_bit_selects_the_queue_pairs_own() {
        assert!(Qkey::GSI.is_controlled());
        assert!(!Qkey(0x7fff_ffff).is_controlled());
    }
}
