//! Ethernet II header.

use crate::MacAddr;
use crate::field::{Fields, fixed_length_header};

mod field {
    pub(super) const DST: usize = 0;
    pub(super) const SRC: usize = 6;
    pub(super) const ETHER_TYPE: usize = 12;
}

/// EtherType, in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// ARP.
    pub const ARP: Self = Self(0x0806);
    /// An 802.1Q tag follows.
    pub const VLAN: Self = Self(0x8100);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);
    /// MAC control: PAUSE and priority flow control.
    pub const MAC_CONTROL: Self = Self(0x8808);
    /// RoCEv1: a GRH follows.
    pub const ROCE_V1: Self = Self(0x8915);
}

/// Shortest frame that Ethernet sends, without its check sequence; shorter ones are padded.
pub const MIN_FRAME_BYTES: usize = 60;

/// Ethernet II header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetRepr {
    /// Receiver.
    pub dst: MacAddr,
    /// Sender.
    pub src: MacAddr,
    /// What follows.
    pub ether_type: EtherType,
}

impl EthernetRepr {
    /// Length in bytes.
    pub const LEN: usize = 14;

    /// Decodes the header.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            dst: MacAddr(bytes.array::<{ field::DST }, 6>()),
            src: MacAddr(bytes.array::<{ field::SRC }, 6>()),
            ether_type: EtherType(bytes.be16::<{ field::ETHER_TYPE }>()),
        }
    }

    /// Encodes the header.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes.put::<{ field::DST }, 6>(self.dst.0);
        bytes.put::<{ field::SRC }, 6>(self.src.0);
        bytes.put_be16::<{ field::ETHER_TYPE }>(self.ether_type.0);
        bytes
    }
}

fixed_length_header!(EthernetRepr);
