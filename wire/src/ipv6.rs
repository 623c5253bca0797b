//! IPv6 header (RFC 8200). The GRH of RoCEv1 has the same layout.

use core::net::Ipv6Addr;

use crate::field::{Fields, fixed_length_header};

mod field {
    /// Version 4 bits, traffic class 8, flow label 20.
    pub(super) const FLOW: usize = 0;
    pub(super) const PAYLOAD_LENGTH: usize = 4;
    pub(super) const NEXT_HEADER: usize = 6;
    pub(super) const HOP_LIMIT: usize = 7;
    pub(super) const SRC: usize = 8;
    pub(super) const DST: usize = 24;
}

/// Next header of a fragment.
pub const NEXT_HEADER_FRAGMENT: u8 = 44;
const FLOW_LABEL_MASK: u32 = 0x000f_ffff;

/// An IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Repr {
    /// Sender.
    pub src: Ipv6Addr,
    /// Receiver.
    pub dst: Ipv6Addr,
    /// DSCP in the top six bits, ECN in the low two.
    pub traffic_class: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// What follows the header, in bytes.
    pub payload_length: u16,
    /// Kind of what follows.
    pub next_header: u8,
    /// Hops left.
    pub hop_limit: u8,
}

impl Ipv6Repr {
    /// Length in bytes.
    pub const LEN: usize = 40;

    /// Decodes the header; the version is not part of it, see [`is_version_6`].
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            src: Ipv6Addr::from(bytes.array::<{ field::SRC }, 16>()),
            dst: Ipv6Addr::from(bytes.array::<{ field::DST }, 16>()),
            traffic_class: traffic_class(bytes),
            flow_label: bytes.be32::<{ field::FLOW }>() & FLOW_LABEL_MASK,
            payload_length: bytes.be16::<{ field::PAYLOAD_LENGTH }>(),
            next_header: bytes.be8::<{ field::NEXT_HEADER }>(),
            hop_limit: bytes.be8::<{ field::HOP_LIMIT }>(),
        }
    }

    /// Encodes the header, version 6; bits of the flow label above 19 are cut.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let flow = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & FLOW_LABEL_MASK;
        bytes.put_be32::<{ field::FLOW }>(flow);
        bytes.put_be16::<{ field::PAYLOAD_LENGTH }>(self.payload_length);
        bytes.put::<{ field::NEXT_HEADER }, 2>([self.next_header, self.hop_limit]);
        bytes.put::<{ field::SRC }, 16>(self.src.octets());
        bytes.put::<{ field::DST }, 16>(self.dst.octets());
        bytes
    }
}

fixed_length_header!(Ipv6Repr);

/// Whether the version field is 6.
#[inline]
#[must_use]
pub fn is_version_6(bytes: &[u8; Ipv6Repr::LEN]) -> bool {
    bytes.be8::<{ field::FLOW }>() >> 4 == 6
}

/// The traffic class: DSCP in the top six bits, ECN in the low two.
#[inline]
#[must_use]
pub(crate) fn traffic_class(bytes: &[u8; Ipv6Repr::LEN]) -> u8 {
    let [_, class, _, _] = (bytes.be32::<{ field::FLOW }>() << 4 >> 8 & 0x00ff_0000).to_be_bytes();
    class
}

/// Sets the fields that the ICRC leaves out: traffic class, flow label, hop limit.
#[inline]
pub(crate) fn mask_for_icrc(header: &mut [u8; Ipv6Repr::LEN]) {
    let version = header.be32::<{ field::FLOW }>() & 0xf000_0000;
    header.put_be32::<{ field::FLOW }>(version | 0x0fff_ffff);
    header.put::<{ field::HOP_LIMIT }, 1>([0xff]);
}

/// Offset of the payload length.
pub(crate) const PAYLOAD_LENGTH_OFFSET: usize = field::PAYLOAD_LENGTH;

#[cfg(test)]
mod tests {
    use super::*;

    fn repr() -> Ipv6Repr {
        Ipv6Repr {
            src: "fd77::11".parse().unwrap(),
            dst: "fe80::5054:ff:fe00:a".parse().unwrap(),
            traffic_class: 0x6a,
            flow_label: 0x5_4321,
            payload_length: 0x1234,
            next_header: 17,
            hop_limit: 64,
        }
    }

    #[test]
    fn ipv6_header_round_trips() {
        let bytes = repr().to_bytes();
        assert_eq!(bytes[..8], [0x66, 0xa5, 0x43, 0x21, 0x12, 0x34, 17, 64]);
        assert_eq!(Ipv6Repr::from_bytes(&bytes), repr());
        assert!(is_version_6(&bytes));
    }

    #[test]
    fn ipv6_mask_hides_what_routers_change() {
        let mut masked = repr().to_bytes();
        let other = Ipv6Repr { traffic_class: 0x03, flow_label: 0, hop_limit: 1, ..repr() };
        let mut other_masked = other.to_bytes();
        mask_for_icrc(&mut masked);
        mask_for_icrc(&mut other_masked);
        assert_eq!(masked, other_masked);
        assert_eq!(masked[..8], [0x6f, 0xff, 0xff, 0xff, 0x12, 0x34, 17, 0xff]);
    }
}
