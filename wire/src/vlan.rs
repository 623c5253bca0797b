//! 802.1Q tag: lies where the EtherType would, after [`EtherType::VLAN`].

use core::fmt;

use crate::EtherType;
use crate::field::{Fields, fixed_length_header};

mod field {
    pub(super) const TCI: usize = 0;
    pub(super) const ETHER_TYPE: usize = 2;
}

/// Tag control information: priority, drop eligible, VLAN identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// Priority code point, 0..=7.
    pub pcp: u8,
    /// Drop eligible indicator.
    pub dei: bool,
    /// VLAN identifier, 0..=4095; 0 is a priority tag without a VLAN.
    pub vid: u16,
}

impl VlanTag {
    /// Decodes the 16-bit field.
    #[inline]
    #[must_use]
    pub const fn from_tci(tci: u16) -> Self {
        let [high, _] = tci.to_be_bytes();
        Self { pcp: high >> 5, dei: high & 0x10 != 0, vid: tci & 0x0fff }
    }

    /// Encodes the 16-bit field; bits out of range are cut.
    #[inline]
    #[must_use]
    pub const fn to_tci(self) -> u16 {
        u16::from_be_bytes([(self.pcp & 7) << 5 | if self.dei { 0x10 } else { 0 }, 0]) | self.vid & 0x0fff
    }
}

impl fmt::Display for VlanTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pcp {}", self.vid, self.pcp)
    }
}

/// The tag, and the EtherType behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanRepr {
    /// Tag control information.
    pub tag: VlanTag,
    /// What follows.
    pub ether_type: EtherType,
}

impl VlanRepr {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Decodes the tag.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            tag: VlanTag::from_tci(bytes.be16::<{ field::TCI }>()),
            ether_type: EtherType(bytes.be16::<{ field::ETHER_TYPE }>()),
        }
    }

    /// Encodes the tag.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes.put_be16::<{ field::TCI }>(self.tag.to_tci());
        bytes.put_be16::<{ field::ETHER_TYPE }>(self.ether_type.0);
        bytes
    }
}

fixed_length_header!(VlanRepr);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlan_every_tci_round_trips() {
        for tci in 0..=u16::MAX {
            assert_eq!(VlanTag::from_tci(tci).to_tci(), tci);
        }
        assert_eq!(VlanTag::from_tci(0x704d), VlanTag { pcp: 3, dei: true, vid: 77 });
    }
}
