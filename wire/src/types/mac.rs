//! Ethernet addresses.

use core::fmt;
use core::str::FromStr;

/// Ethernet (MAC) address, as it lies on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// All stations.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// The unset address.
    pub const ZERO: Self = Self([0; 6]);

    /// Whether the group bit is set: multicast or broadcast.
    #[inline]
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A text that is not six two-digit hexadecimal numbers with colons between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseMacAddrError;

impl fmt::Display for ParseMacAddrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a MAC address is six two-digit hexadecimal numbers with colons, like 02:00:00:00:00:0a")
    }
}

impl core::error::Error for ParseMacAddrError {}

impl FromStr for MacAddr {
    type Err = ParseMacAddrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut groups = text.split(':');
        let mut octets = [0; 6];
        for octet in &mut octets {
            let group = groups.next().ok_or(ParseMacAddrError)?;
            // `from_str_radix` would take a sign and one digit.
            if group.len() != 2 || !group.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(ParseMacAddrError);
            }
            *octet = u8::from_str_radix(group, 16).map_err(|_| ParseMacAddrError)?;
        }
        if groups.next().is_some() { Err(ParseMacAddrError) } else { Ok(Self(octets)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_text_round_trips() {
        let mac = MacAddr([0x52, 0x54, 0, 0xab, 0, 0x0b]);
        assert_eq!(std::format!("{mac}"), "52:54:00:ab:00:0b");
        assert_eq!("52:54:00:AB:00:0b".parse(), Ok(mac));
    }

    #[test]
    fn mac_text_malformed_is_refused() {
        for text in
            ["", "52:54:00:ab:00", "52:54:00:ab:00:0b:0c", "52:54:00:ab:00:+b", "52-54-00-ab-00-0b", "5:54:00:ab:00:0b"]
        {
            assert_eq!(text.parse::<MacAddr>(), Err(ParseMacAddrError), "{text:?}");
        }
    }

    #[test]
    fn mac_group_bit_is_multicast() {
        assert!(MacAddr::BROADCAST.is_multicast());
        assert!(MacAddr([1, 0, 0x5e, 0, 0, 1]).is_multicast());
        assert!(!MacAddr([2, 0, 0, 0, 0, 1]).is_multicast());
    }
}
