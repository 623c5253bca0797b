//! Why a received frame was not taken.

use core::fmt;

/// Why [`Frame::parse`](crate::Frame::parse) refused a frame. Each reason has a place in an array of counters: see
/// [`Self::index`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// Not RoCE: another EtherType, IP protocol or UDP port. Somebody else's frame, and no fault.
    NotRoce,
    /// The frame ends before a header, or before the length in a header, does.
    Truncated,
    /// IPv4 header with a version other than 4, a header length below 20 bytes, or a total length below the header's.
    BadIpv4Header,
    /// The IPv4 header checksum is wrong.
    BadIpChecksum,
    /// A fragment of an IP datagram: RoCEv2 forbids fragmentation.
    Fragment,
    /// IPv6 header with a version other than 6.
    BadIpv6Header,
    /// GRH with a version other than 6 or a next header other than 0x1B.
    BadGrh,
    /// The UDP length (given) is not that of the IP payload.
    BadUdpLength(u16),
    /// The UDP checksum is neither zero nor right.
    BadUdpChecksum,
    /// No such opcode, or one of a transport that this engine does not know.
    UnknownOpcode(u8),
    /// Transport header version other than 0.
    BadTver(u8),
    /// More pad bytes than there are bytes after the headers.
    PadLongerThanPayload(u8),
    /// Payload or pad behind an opcode that carries none.
    UnexpectedPayload(u8),
}

impl FrameError {
    /// Number of reasons.
    pub const COUNT: usize = Self::NAMES.len();

    /// The reasons as counters are named, by [`Self::index`].
    pub const NAMES: [&'static str; 13] = [
        "not_roce",
        "truncated",
        "bad_ipv4_header",
        "bad_ip_checksum",
        "fragment",
        "bad_ipv6_header",
        "bad_grh",
        "bad_udp_length",
        "bad_udp_checksum",
        "unknown_opcode",
        "bad_tver",
        "pad_longer_than_payload",
        "unexpected_payload",
    ];

    /// The place of the reason in an array of [`Self::COUNT`] counters.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::NotRoce => 0,
            Self::Truncated => 1,
            Self::BadIpv4Header => 2,
            Self::BadIpChecksum => 3,
            Self::Fragment => 4,
            Self::BadIpv6Header => 5,
            Self::BadGrh => 6,
            Self::BadUdpLength(_) => 7,
            Self::BadUdpChecksum => 8,
            Self::UnknownOpcode(_) => 9,
            Self::BadTver(_) => 10,
            Self::PadLongerThanPayload(_) => 11,
            Self::UnexpectedPayload(_) => 12,
        }
    }
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRoce => f.write_str("the frame is not RoCE"),
            Self::Truncated => f.write_str("the frame is shorter than its headers say"),
            Self::BadIpv4Header => f.write_str("the IPv4 header's version or lengths are impossible"),
            Self::BadIpChecksum => f.write_str("the IPv4 header checksum is wrong"),
            Self::Fragment => f.write_str("the IP datagram is a fragment"),
            Self::BadIpv6Header => f.write_str("the IPv6 header's version is not 6"),
            Self::BadGrh => f.write_str("the GRH's version is not 6 or its next header not 0x1b"),
            Self::BadUdpLength(length) => write!(f, "the UDP length {length} is not that of the IP payload"),
            Self::BadUdpChecksum => f.write_str("the UDP checksum is wrong"),
            Self::UnknownOpcode(opcode) => write!(f, "the opcode {opcode:#04x} is unknown"),
            Self::BadTver(tver) => write!(f, "the transport header version is {tver}, not 0"),
            Self::PadLongerThanPayload(pad) => {
                write!(f, "the pad count {pad} is more than the bytes after the headers")
            }
            Self::UnexpectedPayload(opcode) => write!(f, "{} carries no payload, but has one", crate::Opcode(*opcode)),
        }
    }
}

impl core::error::Error for FrameError {}

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn frame_error_each_reason_has_its_own_counter() {
        let reasons = [
            FrameError::NotRoce,
            FrameError::Truncated,
            FrameError::BadIpv4Header,
            FrameError::BadIpChecksum,
            FrameError::Fragment,
            FrameError::BadIpv6Header,
            FrameError::BadGrh,
            FrameError::BadUdpLength(7),
            FrameError::BadUdpChecksum,
            FrameError::UnknownOpcode(0x15),
            FrameError::BadTver(3),
            FrameError::PadLongerThanPayload(2),
            FrameError::UnexpectedPayload(0x11),
        ];
        let indices: Vec<_> = reasons.iter().map(|reason| reason.index()).collect();
        assert_eq!(indices, (0..FrameError::COUNT).collect::<Vec<_>>());
        for reason in reasons {
            // The counter's name is the variant's, in snake case.
            let debug = std::format!("{reason:?}");
            let variant = debug.split('(').next().unwrap();
            assert_eq!(FrameError::NAMES[reason.index()].replace('_', ""), variant.to_lowercase());
        }
        assert_eq!(FrameError::UnexpectedPayload(0x11).to_string(), "RC_ACK carries no payload, but has one");
    }
}
