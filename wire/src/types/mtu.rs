//! Path MTU.

use core::fmt;

/// Path MTU: the most payload bytes of one packet. The discriminants are the codes of the verbs and of CM REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes.
    M256 = 1,
    /// 512 bytes.
    M512 = 2,
    /// 1024 bytes, what an Ethernet MTU of 1500 has room for.
    M1024 = 3,
    /// 2048 bytes.
    M2048 = 4,
    /// 4096 bytes.
    M4096 = 5,
}

impl PathMtu {
    /// All values, smallest first.
    pub const ALL: [Self; 5] = [Self::M256, Self::M512, Self::M1024, Self::M2048, Self::M4096];

    /// The limit in bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u32 {
        1 << self.shift()
    }

    /// The limit as a power of two: 8..=12.
    #[inline]
    #[must_use]
    pub const fn shift(self) -> u32 {
        self.code() as u32 + 7
    }

    /// The code, 1..=5.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The MTU of a code; `None` outside 1..=5.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// The MTU of exactly `bytes` bytes.
    #[must_use]
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The largest MTU that fits in `payload_bytes`; `None` below 256.
    #[must_use]
    pub fn largest_within(payload_bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().rfind(|mtu| mtu.bytes() <= payload_bytes)
    }
}

impl fmt::Display for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_codes_and_bytes() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            let mtu = PathMtu::from_code(code).unwrap();
            assert_eq!((mtu.code(), mtu.bytes(), 1 << mtu.shift()), (code, bytes, bytes));
            assert_eq!(PathMtu::from_bytes(bytes), Some(mtu));
            assert_eq!(PathMtu::largest_within(bytes), Some(mtu));
            assert_eq!(PathMtu::largest_within(bytes * 2 - 1), Some(mtu));
        }
        assert_eq!((PathMtu::from_code(0), PathMtu::from_code(6)), (None, None));
        assert_eq!((PathMtu::from_bytes(1500), PathMtu::largest_within(255)), (None, None));
        assert_eq!(PathMtu::largest_within(u32::MAX), Some(PathMtu::M4096));
    }
}
