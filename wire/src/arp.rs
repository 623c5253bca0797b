//! ARP for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;

use crate::MacAddr;
use crate::field::Fields;

mod field {
    pub(super) const HARDWARE: usize = 0;
    pub(super) const PROTOCOL: usize = 2;
    pub(super) const LENGTHS: usize = 4;
    pub(super) const OPERATION: usize = 6;
    pub(super) const SENDER_MAC: usize = 8;
    pub(super) const SENDER_IP: usize = 14;
    pub(super) const TARGET_MAC: usize = 18;
    pub(super) const TARGET_IP: usize = 24;
}

const HARDWARE_ETHERNET: u16 = 1;
const PROTOCOL_IPV4: u16 = 0x0800;
/// Six bytes of MAC, four of IPv4 address.
const LENGTHS: u16 = 0x0604;

/// What an ARP packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum ArpOperation {
    /// Who has the target address?
    Request = 1,
    /// The sender has it.
    Reply = 2,
}

/// An ARP packet, as it follows the Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpRepr {
    /// Request or reply.
    pub operation: ArpOperation,
    /// The sender's MAC.
    pub sender_mac: MacAddr,
    /// The sender's address.
    pub sender_ip: Ipv4Addr,
    /// The target's MAC; zero in a request.
    pub target_mac: MacAddr,
    /// The target's address.
    pub target_ip: Ipv4Addr,
}

impl ArpRepr {
    /// Length in bytes.
    pub const LEN: usize = 28;

    /// Decodes the packet at the start of `bytes`; `None` if it is cut short, or anything but a request or reply for
    /// IPv4 over Ethernet.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.first_chunk()?;
        if bytes.be16::<{ field::HARDWARE }>() != HARDWARE_ETHERNET
            || bytes.be16::<{ field::PROTOCOL }>() != PROTOCOL_IPV4
            || bytes.be16::<{ field::LENGTHS }>() != LENGTHS
        {
            return None;
        }
        let operation = match bytes.be16::<{ field::OPERATION }>() {
            1 => ArpOperation::Request,
            2 => ArpOperation::Reply,
            _ => return None,
        };
        Some(Self {
            operation,
            sender_mac: MacAddr(bytes.array::<{ field::SENDER_MAC }, 6>()),
            sender_ip: Ipv4Addr::from(bytes.array::<{ field::SENDER_IP }, 4>()),
            target_mac: MacAddr(bytes.array::<{ field::TARGET_MAC }, 6>()),
            target_ip: Ipv4Addr::from(bytes.array::<{ field::TARGET_IP }, 4>()),
        })
    }

    /// Encodes the packet.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes.put_be16::<{ field::HARDWARE }>(HARDWARE_ETHERNET);
        bytes.put_be16::<{ field::PROTOCOL }>(PROTOCOL_IPV4);
        bytes.put_be16::<{ field::LENGTHS }>(LENGTHS);
        bytes.put_be16::<{ field::OPERATION }>(self.operation as u16);
        bytes.put::<{ field::SENDER_MAC }, 6>(self.sender_mac.0);
        bytes.put::<{ field::SENDER_IP }, 4>(self.sender_ip.octets());
        bytes.put::<{ field::TARGET_MAC }, 6>(self.target_mac.0);
        bytes.put::<{ field::TARGET_IP }, 4>(self.target_ip.octets());
        bytes
    }

    /// Writes the packet at the start of `buf` and returns what follows it; `None`, with nothing written, if `buf` is
    /// shorter than [`Self::LEN`] bytes.
    #[must_use = "a buffer that is too short is left as it was"]
    pub fn emit(self, buf: &mut [u8]) -> Option<&mut [u8]> {
        let (head, rest) = buf.split_first_chunk_mut()?;
        *head = self.to_bytes();
        Some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who has 10.77.0.10? Tell 10.77.0.11.
    const REQUEST: [u8; 28] = [
        0x00, 0x01, 0x08, 0x00, 0x06, 0x04, 0x00, 0x01, 0x52, 0x54, 0x00, 0x00, 0x00, 0x0b, 10, 77, 0, 11, 0, 0, 0, 0,
        0, 0, 10, 77, 0, 10,
    ];

    #[test]
    fn arp_request_decodes_and_encodes() {
        let repr = ArpRepr {
            operation: ArpOperation::Request,
            sender_mac: MacAddr([0x52, 0x54, 0, 0, 0, 0x0b]),
            sender_ip: Ipv4Addr::new(10, 77, 0, 11),
            target_mac: MacAddr::ZERO,
            target_ip: Ipv4Addr::new(10, 77, 0, 10),
        };
        assert_eq!(ArpRepr::parse(&REQUEST), Some(repr));
        assert_eq!(repr.to_bytes(), REQUEST);
        let reply = ArpRepr { operation: ArpOperation::Reply, ..repr };
        assert_eq!(ArpRepr::parse(&reply.to_bytes()), Some(reply));
    }

    #[test]
    fn arp_of_another_kind_is_refused() {
        // Each byte up to the operation is fixed.
        for at in 0..8 {
            let mut bytes = REQUEST;
            bytes[at] ^= 0x40;
            assert_eq!(ArpRepr::parse(&bytes), None, "byte {at}");
        }
        assert_eq!(ArpRepr::parse(&REQUEST[..27]), None);
        assert_eq!(ArpRepr::parse(&REQUEST).unwrap().emit(&mut [0; 27]), None);
    }
}
