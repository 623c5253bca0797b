//! The AETH syndrome.

use core::fmt;

use super::RnrTimer;

/// Negative acknowledgement code (IBTA 9.7.5.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A packet was lost: send again from the PSN of the NAK on.
    PsnSequence = 0,
    /// The request makes no sense: opcode, sequence or length.
    InvalidRequest = 1,
    /// R_Key, range, permission or protection domain.
    RemoteAccess = 2,
    /// The responder failed on its own side.
    RemoteOperation = 3,
    /// Reliable datagram domain; never on the service types of this engine.
    InvalidRd = 4,
}

impl NakCode {
    const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::PsnSequence),
            1 => Some(Self::InvalidRequest),
            2 => Some(Self::RemoteAccess),
            3 => Some(Self::RemoteOperation),
            4 => Some(Self::InvalidRd),
            _ => None,
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PsnSequence => "PSN sequence error",
            Self::InvalidRequest => "invalid request",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operational error",
            Self::InvalidRd => "invalid RD request",
        })
    }
}

/// The first byte of an AETH: bit 7 is zero, bits 6..5 the kind, bits 4..0 its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Acknowledgement with an end-to-end credit code, 0..=31 (see [`credit_count`]).
    Ack {
        /// The credit code, not the count.
        credits: u8,
    },
    /// Receiver not ready: try again from the PSN of the NAK on when the time is over.
    RnrNak {
        /// How long to wait.
        timer: RnrTimer,
    },
    /// Negative acknowledgement.
    Nak(NakCode),
    /// Any byte that the specification reserves, kept as it came.
    Reserved(u8),
}

const KIND_ACK: u8 = 0b00;
const KIND_RNR_NAK: u8 = 0b01;
const KIND_NAK: u8 = 0b11;
const VALUE_MASK: u8 = 0x1f;

impl Syndrome {
    /// Decodes the byte; every value has a meaning, be it [`Self::Reserved`].
    #[inline]
    #[must_use]
    pub const fn from_byte(byte: u8) -> Self {
        let value = byte & VALUE_MASK;
        // The reserved bit 7 is part of the kind here, so that a byte with it set is reserved as a whole.
        match byte >> 5 {
            KIND_ACK => Self::Ack { credits: value },
            KIND_RNR_NAK => Self::RnrNak { timer: RnrTimer::from_syndrome_bits(byte) },
            KIND_NAK => match NakCode::from_code(value) {
                Some(code) => Self::Nak(code),
                None => Self::Reserved(byte),
            },
            _ => Self::Reserved(byte),
        }
    }

    /// Encodes the byte.
    #[inline]
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack { credits } => KIND_ACK << 5 | credits & VALUE_MASK,
            Self::RnrNak { timer } => KIND_RNR_NAK << 5 | timer.code(),
            Self::Nak(code) => KIND_NAK << 5 | code as u8,
            Self::Reserved(byte) => byte,
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack { credits } => match credit_count(*credits) {
                Some(count) => write!(f, "ACK credits {count}"),
                None => f.write_str("ACK"),
            },
            Self::RnrNak { timer } => {
                let us = timer.duration_ns() / 1000;
                write!(f, "RNR NAK {}.{:02} ms", us / 1000, us % 1000 / 10)
            }
            Self::Nak(code) => write!(f, "NAK {code}"),
            Self::Reserved(byte) => write!(f, "reserved syndrome {byte:#04x}"),
        }
    }
}

/// The credit code of a responder that does not count receives, for instance because they come from an SRQ.
pub const CREDITS_NOT_IN_USE: u8 = 31;

/// The receives that each credit code stands for (IBTA 9.7.7.2.4).
const CREDIT_COUNTS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 12_288, 16_384, 24_576, 32_768,
];

/// How many receives a credit code grants; `None` for [`CREDITS_NOT_IN_USE`] and above.
#[must_use]
pub fn credit_count(code: u8) -> Option<u32> {
    CREDIT_COUNTS.get(usize::from(code)).copied()
}

/// The largest credit code that grants at most `count` receives: a responder never promises more than it has.
///
/// Cost: five comparisons.
#[must_use]
pub fn credit_code(count: u32) -> u8 {
    let above = CREDIT_COUNTS.partition_point(|&granted| granted <= count);
    // Code 0 grants nothing, so at least one entry is within any count, and there are 31 entries.
    u8::try_from(above.saturating_sub(1)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn syndrome_every_byte_round_trips() {
        for byte in 0..=u8::MAX {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        }
    }

    #[test]
    fn syndrome_kinds() {
        assert_eq!(Syndrome::from_byte(0x1f), Syndrome::Ack { credits: CREDITS_NOT_IN_USE });
        assert_eq!(Syndrome::from_byte(0x30), Syndrome::RnrNak { timer: RnrTimer::new(16).unwrap() });
        let codes = [
            NakCode::PsnSequence,
            NakCode::InvalidRequest,
            NakCode::RemoteAccess,
            NakCode::RemoteOperation,
            NakCode::InvalidRd,
        ];
        for (byte, code) in (0x60..).zip(codes) {
            assert_eq!(Syndrome::from_byte(byte), Syndrome::Nak(code));
        }
        for byte in (0x40..0x60).chain(0x65..=0xff) {
            assert_eq!(Syndrome::from_byte(byte), Syndrome::Reserved(byte));
        }
        assert_eq!(Syndrome::from_byte(0x30).to_string(), "RNR NAK 2.56 ms");
        assert_eq!(Syndrome::from_byte(0x61).to_string(), "NAK invalid request");
    }

    #[test]
    fn credit_codes_follow_the_table() {
        // From 4 on the table is 2^n, 1.5 * 2^n.
        for code in 0..31_u8 {
            let count = match code {
                0..=3 => u32::from(code),
                even if even % 2 == 0 => 1 << (even / 2),
                odd => 3 << (odd / 2 - 1),
            };
            assert_eq!(credit_count(code), Some(count), "code {code}");
            assert_eq!(credit_code(count), code);
        }
        assert_eq!(credit_count(CREDITS_NOT_IN_USE), None);
        assert_eq!((credit_code(5), credit_code(u32::MAX)), (4, 30));
    }
}
