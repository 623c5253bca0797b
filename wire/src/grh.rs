//! Global route header (IBTA 8.3): the network layer of RoCEv1, laid out like an IPv6 header.

use core::net::Ipv6Addr;

use crate::{Gid, Ipv6Repr};

/// Next header of a GRH that a BTH follows.
pub const NEXT_HEADER_IBA: u8 = 0x1b;

/// Global route header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrhRepr {
    /// Sender.
    pub src: Gid,
    /// Receiver.
    pub dst: Gid,
    /// Traffic class.
    pub traffic_class: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// From the BTH to the ICRC, in bytes.
    pub payload_length: u16,
    /// Hops left.
    pub hop_limit: u8,
}

impl GrhRepr {
    /// Length in bytes.
    pub const LEN: usize = 40;

    /// Decodes the header at the start of `bytes`; `None` if it is cut short, the IP version is not 6 or the next
    /// header not [`NEXT_HEADER_IBA`].
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.first_chunk()?;
        let header = Ipv6Repr::from_bytes(bytes);
        if !crate::ipv6::is_version_6(bytes) || header.next_header != NEXT_HEADER_IBA {
            return None;
        }
        Some(Self {
            src: Gid(header.src.octets()),
            dst: Gid(header.dst.octets()),
            traffic_class: header.traffic_class,
            flow_label: header.flow_label,
            payload_length: header.payload_length,
            hop_limit: header.hop_limit,
        })
    }

    /// Encodes the header.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        Ipv6Repr {
            src: Ipv6Addr::from(self.src.0),
            dst: Ipv6Addr::from(self.dst.0),
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            payload_length: self.payload_length,
            next_header: NEXT_HEADER_IBA,
            hop_limit: self.hop_limit,
        }
        .to_bytes()
    }

    /// Writes the header at the start of `buf` and returns what follows it; `None`, with nothing written, if `buf` is
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

    #[test]
    fn grh_round_trips_and_other_headers_are_refused() {
        let grh = GrhRepr {
            src: Gid([0xfe; 16]),
            dst: Gid([0x11; 16]),
            traffic_class: 0x12,
            flow_label: 0x5_4321,
            payload_length: 0x20,
            hop_limit: 63,
        };
        let mut bytes = [0; 41];
        assert_eq!(grh.emit(&mut bytes).map(|rest| rest.len()), Some(1));
        assert_eq!(bytes[..8], [0x61, 0x25, 0x43, 0x21, 0x00, 0x20, 0x1b, 63]);
        assert_eq!(GrhRepr::parse(&bytes), Some(grh));
        assert_eq!(GrhRepr::parse(&bytes[..39]), None);
        assert_eq!(grh.emit(&mut bytes[..39]), None);
        for (at, value) in [(0, 0x41), (6, 17)] {
            let mut other = bytes;
            other[at] = value;
            assert_eq!(GrhRepr::parse(&other), None, "byte {at}");
        }
    }
}
