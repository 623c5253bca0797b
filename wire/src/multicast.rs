//! Multicast groups: the Ethernet address of a group (RFC 1112 section 6.4, RFC 2464 section 7), and the group that an IPv6
//! address is asked for in (RFC 4291 section 2.7.1).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::MacAddr;

/// The Ethernet address of a multicast group, or `None` of an address that is none.
///
/// IPv4 keeps the low 23 bits of the group behind `01:00:5e`, IPv6 the low 32 behind `33:33`: several groups share an
/// Ethernet address, so a frame's group has still to be looked at.
#[must_use]
pub fn group_mac(group: IpAddr) -> Option<MacAddr> {
    if !group.is_multicast() {
        return None;
    }
    Some(match group {
        IpAddr::V4(group) => ipv4_group_mac(group),
        IpAddr::V6(group) => ipv6_group_mac(group),
    })
}

const fn ipv4_group_mac(group: Ipv4Addr) -> MacAddr {
    let [_, b, c, d] = group.octets();
    MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d])
}

const fn ipv6_group_mac(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

/// The solicited-node group of an address, `ff02::1:ffXX:XXXX`: where its holder listens for those who look for its MAC.
#[must_use]
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(group: &str) -> Option<MacAddr> {
        group_mac(group.parse().unwrap())
    }

    #[test]
    fn group_mac_keeps_the_low_bits() {
        // The first is in a capture of Linux's rdma_cm.
        assert_eq!(mac("239.77.0.1"), Some(MacAddr([0x01, 0x00, 0x5e, 0x4d, 0x00, 0x01])));
        assert_eq!(mac("239.205.0.1"), mac("239.77.0.1"), "bit 23 is cut");
        assert_eq!(mac("239.78.0.1"), Some(MacAddr([0x01, 0x00, 0x5e, 0x4e, 0x00, 0x01])));
        assert_eq!(mac("ff02::1:ff00:a"), Some(MacAddr([0x33, 0x33, 0xff, 0x00, 0x00, 0x0a])));
        for unicast in ["10.0.0.1", "255.255.255.255", "fe80::1", "::ffff:239.1.1.1"] {
            assert_eq!(mac(unicast), None, "{unicast}");
        }
    }

    #[test]
    fn solicited_node_group_has_the_low_24_bits() {
        // The example of RFC 4291.
        let group = solicited_node("4037::01:800:200e:8c6c".parse().unwrap());
        assert_eq!(group, "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap());
    }
}
