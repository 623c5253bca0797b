//! What a switch reads of a frame, and the one thing that it changes: the congestion mark.

use std::net::IpAddr;

use wire::{EtherType, EthernetRepr, Ipv4Repr, Ipv6Repr, MacAddr, VlanRepr, ipv4, ipv6};

/// Not ECN-capable, of the ECN field's values (RFC 3168 5).
const NOT_ECT: u8 = 0b00;
/// Congestion experienced.
const CE: u8 = 0b11;

/// The IP header's part in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpHeaders {
    /// Where the frame comes from.
    pub src: IpAddr,
    /// Where it goes.
    pub dst: IpAddr,
    /// Protocol, or next header.
    pub protocol: u8,
    /// Source and destination port as the wire has them; 0 if the protocol has none, or in a fragment.
    pub ports: u32,
    /// Type of service, or traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Offset of the header.
    at: u16,
}

/// Headers of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Headers {
    /// The station it goes to.
    pub dst: MacAddr,
    /// The station it comes from.
    pub src: MacAddr,
    /// The priority of its VLAN tag.
    pub pcp: Option<u8>,
    /// Its IP header, if it is an IP packet.
    pub ip: Option<IpHeaders>,
}

impl Headers {
    /// Reads a frame; `None` if it has no Ethernet header. What is cut short or damaged behind that header is no IP packet.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let ethernet = EthernetRepr::parse(frame)?;
        let tag = (ethernet.ether_type == EtherType::VLAN)
            .then(|| frame.get(EthernetRepr::LEN..).and_then(VlanRepr::parse))
            .flatten();
        let (ether_type, at) = match &tag {
            Some(vlan) => (vlan.ether_type, EthernetRepr::LEN + VlanRepr::LEN),
            None => (ethernet.ether_type, EthernetRepr::LEN),
        };
        let packet = frame.get(at..)?;
        let ip = match ether_type {
            EtherType::IPV4 => ipv4_headers(packet, at as u16),
            EtherType::IPV6 => ipv6_headers(packet, at as u16),
            _ => None,
        };
        Some(Self { dst: ethernet.dst, src: ethernet.src, pcp: tag.map(|vlan| vlan.tag.pcp), ip })
    }
}

fn ipv4_headers(packet: &[u8], at: u16) -> Option<IpHeaders> {
    let header: &[u8; Ipv4Repr::LEN] = packet.first_chunk()?;
    let (version, length) = (header[0] >> 4, usize::from(header[0] & 15) * 4);
    if version != 4 || length < Ipv4Repr::LEN {
        return None;
    }
    let repr = Ipv4Repr::from_bytes(header);
    // Only the first fragment has ports: all of them must hash alike.
    let is_fragment = header[6] & 0x3f != 0 || header[7] != 0;
    let ports = if is_fragment { 0 } else { ports(repr.protocol, packet.get(length..)) };
    Some(IpHeaders {
        src: repr.src.into(),
        dst: repr.dst.into(),
        protocol: repr.protocol,
        ports,
        traffic_class: header[1],
        at,
    })
}

fn ipv6_headers(packet: &[u8], at: u16) -> Option<IpHeaders> {
    let header: &[u8; Ipv6Repr::LEN] = packet.first_chunk()?;
    if !ipv6::is_version_6(header) {
        return None;
    }
    let repr = Ipv6Repr::from_bytes(header);
    Some(IpHeaders {
        src: repr.src.into(),
        dst: repr.dst.into(),
        protocol: repr.next_header,
        ports: ports(repr.next_header, packet.get(Ipv6Repr::LEN..)),
        traffic_class: header[0] << 4 | header[1] >> 4,
        at,
    })
}

fn ports(protocol: u8, rest: Option<&[u8]>) -> u32 {
    const PROTOCOL_TCP: u8 = 6;
    match rest.and_then(|rest| rest.first_chunk()) {
        Some(ports) if matches!(protocol, ipv4::PROTOCOL_UDP | PROTOCOL_TCP) => u32::from_be_bytes(*ports),
        _ => 0,
    }
}

impl IpHeaders {
    /// Differentiated services code point, 0 to 63.
    pub const fn dscp(&self) -> u8 {
        self.traffic_class >> 2
    }

    /// True if its sender takes marks instead of losses, and there is none yet.
    pub const fn may_be_marked(&self) -> bool {
        let ecn = self.traffic_class & CE;
        ecn != NOT_ECT && ecn != CE
    }

    /// Marks the frame that these headers were read of: congestion experienced. The ICRC takes the field for ones, so it stays
    /// right (IBTA A17.3.3); IPv4's checksum is brought up to date (RFC 1624).
    pub fn mark(&self, frame: &mut [u8]) {
        let Some(header) = frame.get_mut(usize::from(self.at)..) else { return };
        match self.src {
            IpAddr::V4(_) if header.len() >= Ipv4Repr::LEN => {
                let before = u16::from_be_bytes([header[0], header[1]]);
                header[1] |= CE;
                let after = u16::from_be_bytes([header[0], header[1]]);
                let sum = updated_checksum(u16::from_be_bytes([header[10], header[11]]), before, after);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            IpAddr::V6(_) if header.len() >= Ipv6Repr::LEN => header[1] |= CE << 4,
            _ => {}
        }
    }

    /// A hash of the five-tuple, the same for all packets of a flow.
    pub fn flow_hash(&self, seed: u64) -> u64 {
        let mut hash = seed;
        for address in [self.src, self.dst] {
            match address {
                IpAddr::V4(ip) => hash = mixed(hash ^ u64::from(ip.to_bits())),
                IpAddr::V6(ip) => {
                    let bits = ip.to_bits();
                    hash = mixed(mixed(hash ^ (bits >> 64) as u64) ^ bits as u64);
                }
            }
        }
        mixed(hash ^ u64::from(self.ports) << 8 ^ u64::from(self.protocol))
    }
}

/// An Internet checksum after one of its words has changed (RFC 1624, equation 3).
fn updated_checksum(sum: u16, before: u16, after: u16) -> u16 {
    let mut total = u32::from(!sum) + u32::from(!before) + u32::from(after);
    total = (total & 0xffff) + (total >> 16);
    total = (total & 0xffff) + (total >> 16);
    !(total as u16)
}

/// Spreads every bit over all of the word.
const fn mixed(word: u64) -> u64 {
    let word = (word ^ word >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let word = (word ^ word >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ word >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::testing::{ECT_0, udp_frame};

    #[test]
    fn a_mark_keeps_the_checksum_right_for_every_traffic_class() {
        for dscp in 0..64 {
            for ecn in 0..4 {
                let mut frame = udp_frame(1, 2, 77, dscp << 2 | ecn, 100);
                let ip = Headers::parse(&frame).unwrap().ip.unwrap();
                assert_eq!((ip.dscp(), ip.may_be_marked()), (dscp, ecn == 1 || ecn == 2));
                ip.mark(&mut frame);
                assert!(ipv4::header_checksum_ok(&frame[14..34]), "DSCP {dscp}, ECN {ecn}");
                assert_eq!(Headers::parse(&frame).unwrap().ip.unwrap().traffic_class, dscp << 2 | CE);
            }
        }
    }

    #[test]
    fn frames_cut_short_anywhere_are_read_as_far_as_they_go() {
        let frame = udp_frame(1, 2, 77, ECT_0, 100);
        for length in 0..frame.len() {
            let headers = Headers::parse(&frame[..length]);
            assert_eq!(headers.is_some(), length >= 14, "{length} bytes");
            assert_eq!(headers.is_some_and(|headers| headers.ip.is_some()), length >= 34, "{length} bytes");
        }
    }

    #[test]
    fn an_ipv6_frame_is_marked_in_its_traffic_class() {
        let repr = Ipv6Repr {
            traffic_class: 26 << 2 | 1,
            flow_label: 0x12345,
            payload_length: 8,
            next_header: ipv4::PROTOCOL_UDP,
            hop_limit: 64,
            src: "fd00::1".parse().unwrap(),
            dst: "fd00::2".parse().unwrap(),
        };
        let ethernet = EthernetRepr { dst: MacAddr([2; 6]), src: MacAddr([4; 6]), ether_type: EtherType::IPV6 };
        let mut frame = [&ethernet.to_bytes()[..], &repr.to_bytes(), &[0x12, 0xb7, 0x12, 0xb7, 0, 8, 0, 0]].concat();
        let ip = Headers::parse(&frame).unwrap().ip.unwrap();
        assert_eq!((ip.dscp(), ip.may_be_marked(), ip.ports), (26, true, 0x12b7_12b7));
        ip.mark(&mut frame);
        let marked = Ipv6Repr { traffic_class: 26 << 2 | CE, ..repr };
        assert_eq!(Ipv6Repr::from_bytes(frame[14..54].first_chunk().unwrap()), marked);
    }
}
