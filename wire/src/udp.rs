//! UDP header (RFC 768), and how RoCEv2 uses it.

use core::net::IpAddr;

use crate::Qpn;
use crate::field::{Fields, fixed_length_header};
use crate::ipv4::{PROTOCOL_UDP, fold, transport_sum};

mod field {
    pub(super) const SRC_PORT: usize = 0;
    pub(super) const DST_PORT: usize = 2;
    pub(super) const LENGTH: usize = 4;
    pub(super) const CHECKSUM: usize = 6;
}

/// Destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// A UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpRepr {
    /// Sender's port; on RoCEv2 the entropy that spreads flows over paths.
    pub src_port: u16,
    /// Receiver's port.
    pub dst_port: u16,
    /// Header and payload, in bytes.
    pub length: u16,
    /// Checksum; 0 for none.
    pub checksum: u16,
}

impl UdpRepr {
    /// Length in bytes.
    pub const LEN: usize = 8;

    /// Decodes the header.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            src_port: bytes.be16::<{ field::SRC_PORT }>(),
            dst_port: bytes.be16::<{ field::DST_PORT }>(),
            length: bytes.be16::<{ field::LENGTH }>(),
            checksum: bytes.be16::<{ field::CHECKSUM }>(),
        }
    }

    /// Encodes the header.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes.put_be16::<{ field::SRC_PORT }>(self.src_port);
        bytes.put_be16::<{ field::DST_PORT }>(self.dst_port);
        bytes.put_be16::<{ field::LENGTH }>(self.length);
        bytes.put_be16::<{ field::CHECKSUM }>(self.checksum);
        bytes
    }
}

fixed_length_header!(UdpRepr);

/// Whether the checksum of `datagram` (header and payload, as long as its length field says) is right. A datagram with
/// checksum 0 has none: do not ask.
///
/// Cost: reads the whole datagram.
#[must_use]
pub fn checksum_ok(src: IpAddr, dst: IpAddr, datagram: &[u8]) -> bool {
    fold(transport_sum(src, dst, PROTOCOL_UDP, datagram)) == 0xffff
}

/// The UDP source port of a flow label, of which 20 bits count (IBTA A17): 0xC000..=0xFFFF.
#[must_use]
pub const fn source_port_for_flow_label(flow_label: u32) -> u16 {
    let flow_label = flow_label & 0x000f_ffff;
    let [_, _, high, low] = ((flow_label & 0x3fff) ^ (flow_label >> 14)).to_be_bytes();
    u16::from_be_bytes([high, low]) | 0xc000
}

/// The flow label of a connection that was given none, from its two queue pair numbers; the same on both sides.
#[must_use]
pub const fn flow_label_from_qpns(local: Qpn, remote: Qpn) -> u32 {
    let mut mixed = local.value() as u64 * remote.value() as u64;
    mixed ^= mixed >> 20;
    mixed ^= mixed >> 40;
    let [.., high, middle, low] = mixed.to_be_bytes();
    u32::from_be_bytes([0, high & 0x0f, middle, low])
}

/// The UDP source port of the datagrams of a queue pair that were given no flow label, as Linux's rxe picks it.
#[must_use]
pub const fn source_port_for_qpn(qpn: Qpn) -> u16 {
    // The golden ratio of 2^32; the 14 bits from the top are mixed best.
    let mixed = qpn.value().wrapping_mul(0x61c8_8647) >> 18;
    let [_, _, high, low] = mixed.to_be_bytes();
    u16::from_be_bytes([high, low]) | 0xc000
}

/// Sets in a header what the ICRC leaves out: the checksum.
#[inline]
pub(crate) fn mask_for_icrc(header: &mut [u8; UdpRepr::LEN]) {
    header.put_be16::<{ field::CHECKSUM }>(0xffff);
}

/// Offset of the length.
pub(crate) const LENGTH_OFFSET: usize = field::LENGTH;

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;
    use std::vec;

    use super::*;

    #[test]
    fn source_port_of_captured_flow_labels() {
        // A flow label set by the application, and one of the connection manager's.
        assert_eq!(source_port_for_flow_label(0x12345), 58177);
        assert_eq!(source_port_for_flow_label(0x5597f), 55658);
        // Queue pairs without a label, seen in captures.
        let port = |local, remote| source_port_for_flow_label(flow_label_from_qpns(Qpn::new(local), Qpn::new(remote)));
        assert_eq!(port(0x27, 0x27), 50673);
        assert_eq!(port(0x5b, 0x5b), 57433);
        // Numbers large enough for every step of the mixing, worked out apart from this code.
        assert_eq!(flow_label_from_qpns(Qpn::new(0x91_2345), Qpn::new(0xab_cdef)), 0x35af7);
        assert_eq!(flow_label_from_qpns(Qpn::new(0xab_cdef), Qpn::new(0x91_2345)), 0x35af7);
    }

    #[test]
    fn udp_checksum_right_and_wrong() {
        let (src, dst) = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)));
        for payload_len in [0_u16, 1, 2, 1025, 65_527] {
            let mut datagram = vec![0xa5; usize::from(payload_len) + 8];
            let mut repr = UdpRepr { src_port: 0xc001, dst_port: ROCE_PORT, length: payload_len + 8, checksum: 0 };
            repr.emit(&mut datagram).unwrap();
            repr.checksum = !fold(transport_sum(src, dst, PROTOCOL_UDP, &datagram));
            repr.emit(&mut datagram).unwrap();
            assert!(checksum_ok(src, dst, &datagram), "{payload_len}");
            datagram[3] ^= 1;
            assert!(!checksum_ok(src, dst, &datagram), "{payload_len}");
        }
    }
}
