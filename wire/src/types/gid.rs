//! Global identifiers.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

/// Global identifier, 128 bits, in network order. On RoCEv2 it is an IP address, IPv4 mapped into `::ffff:0:0/96`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The unset GID.
    pub const ZERO: Self = Self([0; 16]);

    /// The GID of an IP address.
    #[must_use]
    pub const fn from_ip(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }

    /// The IP address that this GID is: IPv4 if it is IPv4-mapped, else IPv6.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(v6),
        }
    }
}

/// Eight groups of four digits, as the kernel and the verbs tools print GIDs.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = Ipv6Addr::from(self.0).segments();
        write!(f, "{first:04x}")?;
        rest.iter().try_for_each(|group| write!(f, ":{group:04x}"))
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn gid_round_trips_both_families() {
        let v4 = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 11));
        let v6: IpAddr = "fd77::10".parse().unwrap();
        assert_eq!(Gid::from_ip(v4).ip(), v4);
        assert_eq!(Gid::from_ip(v6).ip(), v6);
        assert_eq!(std::format!("{}", Gid::from_ip(v4)), "0000:0000:0000:0000:0000:ffff:0a4d:000b");
        assert_eq!(Gid::ZERO.ip(), IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    }
}
