//! The opcode table (IBTA 9.2.1): what each packet is, and which headers follow its BTH.

use core::fmt;
use core::ops::BitOr;

/// Transport of an opcode: its top three bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram, which nothing implements.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification (IBTA A10, A17).
    Cnp,
    /// Extended reliable connection (IBTA A14).
    Xrc,
    /// Left to manufacturers.
    Manufacturer,
}

/// What a packet does, whatever its place in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// SEND, with or without immediate or invalidate.
    Send,
    /// RDMA WRITE, with or without immediate.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// Part of the answer to a READ.
    ReadResponse,
    /// ACK, NAK or RNR NAK.
    Acknowledge,
    /// Answer to an atomic.
    AtomicAcknowledge,
    /// Selective acknowledgement, of this engine only.
    SelectiveAck,
    /// Atomic compare and swap.
    CompareSwap,
    /// Atomic fetch and add.
    FetchAdd,
    /// Congestion notification packet.
    Cnp,
    /// Flush to memory or persistence (IBTA A19); known by name only.
    Flush,
    /// Atomic write of eight bytes (IBTA A19); known by name only.
    AtomicWrite,
}

impl OpKind {
    /// Whether a responder sends it: READ responses and the acknowledgements.
    #[inline]
    #[must_use]
    pub const fn is_response(self) -> bool {
        matches!(self, Self::ReadResponse | Self::Acknowledge | Self::AtomicAcknowledge | Self::SelectiveAck)
    }

    /// Whether it is an atomic request that this engine executes.
    #[inline]
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }
}

/// Place of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// The first of several: exactly the path MTU.
    First,
    /// Neither first nor last: exactly the path MTU.
    Middle,
    /// The last of several: 1 byte to the path MTU.
    Last,
    /// All of the message: 0 bytes to the path MTU.
    Only,
}

impl Position {
    /// Whether a message starts here: First or Only.
    #[inline]
    #[must_use]
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends here: Last or Only.
    #[inline]
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Set of extension headers, one bit each, in the order in which they follow the BTH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExtHeaders(u16);

const EXT_COUNT: usize = 10;
/// Bytes of each extension header, by bit.
const EXT_LENGTHS: [u8; EXT_COUNT] = [4, 8, 4, 16, 28, 4, 8, 4, 4, 32];

impl ExtHeaders {
    /// None.
    pub const NONE: Self = Self(0);
    /// XRC extended transport header, 4 bytes: the SRQ of an XRC request.
    pub const XRCETH: Self = Self(1 << 0);
    /// Datagram extended transport header, 8 bytes.
    pub const DETH: Self = Self(1 << 1);
    /// Flush extended transport header, 4 bytes.
    pub const FETH: Self = Self(1 << 2);
    /// RDMA extended transport header, 16 bytes.
    pub const RETH: Self = Self(1 << 3);
    /// Atomic extended transport header, 28 bytes.
    pub const ATOMICETH: Self = Self(1 << 4);
    /// ACK extended transport header, 4 bytes.
    pub const AETH: Self = Self(1 << 5);
    /// Atomic ACK extended transport header, 8 bytes.
    pub const ATOMICACKETH: Self = Self(1 << 6);
    /// Immediate data, 4 bytes.
    pub const IMM: Self = Self(1 << 7);
    /// Invalidate extended transport header, 4 bytes.
    pub const IETH: Self = Self(1 << 8);
    /// Selective acknowledgement header, 32 bytes: this engine's own.
    pub const SACKETH: Self = Self(1 << 9);

    /// Bytes of the longest set that an opcode has: AETH and SACKETH.
    pub const MAX_BYTES: usize = 36;

    /// Whether all of `other` are in the set.
    #[inline]
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The headers of both sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Bytes of all headers of the set.
    #[must_use]
    pub const fn bytes(self) -> u8 {
        self.bytes_before(EXT_COUNT)
    }

    /// Bytes of those headers of the set whose bit is below `bit`.
    #[expect(clippy::indexing_slicing, reason = "const fn, and the index is below the array's length")]
    const fn bytes_before(self, bit: usize) -> u8 {
        let mut bytes = 0;
        let mut at = 0;
        while at < bit && at < EXT_COUNT {
            if self.0 >> at & 1 == 1 {
                bytes += EXT_LENGTHS[at];
            }
            at += 1;
        }
        bytes
    }
}

impl BitOr for ExtHeaders {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

/// One row of the opcode table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpcodeInfo {
    /// The name of the [`Opcode`] constant, such as `RC_SEND_FIRST`.
    pub name: &'static str,
    /// The transport.
    pub service: ServiceType,
    /// What the packet does.
    pub kind: OpKind,
    /// Its place in the message.
    pub position: Position,
    /// The extension headers that follow the BTH.
    pub ext: ExtHeaders,
    /// Bytes of those headers.
    pub ext_bytes: u8,
    /// Whether a payload may follow; without one the ICRC comes next.
    pub has_payload: bool,
    /// Whether the transport implements it. FLUSH and ATOMIC WRITE are decoded so that they can be named and refused.
    pub supported: bool,
    /// Where each extension header of `ext` starts, in bytes after the BTH, by bit; computed once, for the accessors.
    ext_offsets: [u8; EXT_COUNT],
}

impl OpcodeInfo {
    #[expect(clippy::indexing_slicing, reason = "const fn, and the index is below the array's length")]
    const fn new(name: &'static str, service: ServiceType, kind: OpKind, position: Position, ext: ExtHeaders) -> Self {
        let mut ext_offsets = [0; EXT_COUNT];
        let mut bit = 0;
        while bit < EXT_COUNT {
            ext_offsets[bit] = ext.bytes_before(bit);
            bit += 1;
        }
        Self {
            name,
            service,
            kind,
            position,
            ext,
            ext_bytes: ext.bytes(),
            has_payload: matches!(
                kind,
                OpKind::Send | OpKind::Write | OpKind::ReadResponse | OpKind::Cnp | OpKind::AtomicWrite
            ),
            supported: !matches!(kind, OpKind::Flush | OpKind::AtomicWrite),
            ext_offsets,
        }
    }

    /// Where `header` (one header, not a set) starts, in bytes after the BTH; `None` if the packet does not have it.
    #[inline]
    #[must_use]
    pub fn ext_offset(&self, header: ExtHeaders) -> Option<usize> {
        if !self.ext.contains(header) {
            return None;
        }
        // At most 16, for a set of 16 bits: the conversion loses nothing.
        let bit = header.0.trailing_zeros() as usize;
        self.ext_offsets.get(bit).copied().map(usize::from)
    }

    /// Whether the packet carries immediate data.
    #[inline]
    #[must_use]
    pub const fn has_imm(&self) -> bool {
        self.ext.contains(ExtHeaders::IMM)
    }

    /// Whether the packet invalidates an R_Key.
    #[inline]
    #[must_use]
    pub const fn has_invalidate(&self) -> bool {
        self.ext.contains(ExtHeaders::IETH)
    }
}

/// First byte of the BTH: transport in the top three bits, operation in the other five.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opcode(pub u8);

/// Declares the constants and the table from one list: a row is added in one place.
macro_rules! opcodes {
    ($($name:ident = $code:literal, $service:ident $kind:ident $position:ident [$($ext:ident)*];)*) => {
        impl Opcode {
            $(
                #[doc = concat!("`", stringify!($name), "`, ", stringify!($code), ".")]
                pub const $name: Self = Self($code);
            )*
        }

        const fn table() -> [Option<OpcodeInfo>; 256] {
            let mut table = [None; 256];
            $(
                table[$code] = Some(OpcodeInfo::new(
                    stringify!($name),
                    ServiceType::$service,
                    OpKind::$kind,
                    Position::$position,
                    ExtHeaders::NONE $(.union(ExtHeaders::$ext))*,
                ));
            )*
            table
        }
    };
}

opcodes! {
    RC_SEND_FIRST = 0x00, Rc Send First [];
    RC_SEND_MIDDLE = 0x01, Rc Send Middle [];
    RC_SEND_LAST = 0x02, Rc Send Last [];
    RC_SEND_LAST_IMM = 0x03, Rc Send Last [IMM];
    RC_SEND_ONLY = 0x04, Rc Send Only [];
    RC_SEND_ONLY_IMM = 0x05, Rc Send Only [IMM];
    RC_WRITE_FIRST = 0x06, Rc Write First [RETH];
    RC_WRITE_MIDDLE = 0x07, Rc Write Middle [];
    RC_WRITE_LAST = 0x08, Rc Write Last [];
    RC_WRITE_LAST_IMM = 0x09, Rc Write Last [IMM];
    RC_WRITE_ONLY = 0x0a, Rc Write Only [RETH];
    RC_WRITE_ONLY_IMM = 0x0b, Rc Write Only [RETH IMM];
    RC_READ_REQUEST = 0x0c, Rc ReadRequest Only [RETH];
    RC_READ_RESP_FIRST = 0x0d, Rc ReadResponse First [AETH];
    RC_READ_RESP_MIDDLE = 0x0e, Rc ReadResponse Middle [];
    RC_READ_RESP_LAST = 0x0f, Rc ReadResponse Last [AETH];
    RC_READ_RESP_ONLY = 0x10, Rc ReadResponse Only [AETH];
    RC_ACK = 0x11, Rc Acknowledge Only [AETH];
    RC_ATOMIC_ACK = 0x12, Rc AtomicAcknowledge Only [AETH ATOMICACKETH];
    RC_CMP_SWAP = 0x13, Rc CompareSwap Only [ATOMICETH];
    RC_FETCH_ADD = 0x14, Rc FetchAdd Only [ATOMICETH];
    RC_SEND_LAST_INV = 0x16, Rc Send Last [IETH];
    RC_SEND_ONLY_INV = 0x17, Rc Send Only [IETH];
    RC_FLUSH = 0x1c, Rc Flush Only [FETH RETH];
    RC_ATOMIC_WRITE = 0x1d, Rc AtomicWrite Only [RETH];

    UC_SEND_FIRST = 0x20, Uc Send First [];
    UC_SEND_MIDDLE = 0x21, Uc Send Middle [];
    UC_SEND_LAST = 0x22, Uc Send Last [];
    UC_SEND_LAST_IMM = 0x23, Uc Send Last [IMM];
    UC_SEND_ONLY = 0x24, Uc Send Only [];
    UC_SEND_ONLY_IMM = 0x25, Uc Send Only [IMM];
    UC_WRITE_FIRST = 0x26, Uc Write First [RETH];
    UC_WRITE_MIDDLE = 0x27, Uc Write Middle [];
    UC_WRITE_LAST = 0x28, Uc Write Last [];
    UC_WRITE_LAST_IMM = 0x29, Uc Write Last [IMM];
    UC_WRITE_ONLY = 0x2a, Uc Write Only [RETH];
    UC_WRITE_ONLY_IMM = 0x2b, Uc Write Only [RETH IMM];

    UD_SEND_ONLY = 0x64, Ud Send Only [DETH];
    UD_SEND_ONLY_IMM = 0x65, Ud Send Only [DETH IMM];

    CNP = 0x81, Cnp Cnp Only [];

    // XRCETH is on requests only: a response goes to an initiator, which has no SRQ (IBTA A14).
    XRC_SEND_FIRST = 0xa0, Xrc Send First [XRCETH];
    XRC_SEND_MIDDLE = 0xa1, Xrc Send Middle [XRCETH];
    XRC_SEND_LAST = 0xa2, Xrc Send Last [XRCETH];
    XRC_SEND_LAST_IMM = 0xa3, Xrc Send Last [XRCETH IMM];
    XRC_SEND_ONLY = 0xa4, Xrc Send Only [XRCETH];
    XRC_SEND_ONLY_IMM = 0xa5, Xrc Send Only [XRCETH IMM];
    XRC_WRITE_FIRST = 0xa6, Xrc Write First [XRCETH RETH];
    XRC_WRITE_MIDDLE = 0xa7, Xrc Write Middle [XRCETH];
    XRC_WRITE_LAST = 0xa8, Xrc Write Last [XRCETH];
    XRC_WRITE_LAST_IMM = 0xa9, Xrc Write Last [XRCETH IMM];
    XRC_WRITE_ONLY = 0xaa, Xrc Write Only [XRCETH RETH];
    XRC_WRITE_ONLY_IMM = 0xab, Xrc Write Only [XRCETH RETH IMM];
    XRC_READ_REQUEST = 0xac, Xrc ReadRequest Only [XRCETH RETH];
    XRC_READ_RESP_FIRST = 0xad, Xrc ReadResponse First [AETH];
    XRC_READ_RESP_MIDDLE = 0xae, Xrc ReadResponse Middle [];
    XRC_READ_RESP_LAST = 0xaf, Xrc ReadResponse Last [AETH];
    XRC_READ_RESP_ONLY = 0xb0, Xrc ReadResponse Only [AETH];
    XRC_ACK = 0xb1, Xrc Acknowledge Only [AETH];
    XRC_ATOMIC_ACK = 0xb2, Xrc AtomicAcknowledge Only [AETH ATOMICACKETH];
    XRC_CMP_SWAP = 0xb3, Xrc CompareSwap Only [XRCETH ATOMICETH];
    XRC_FETCH_ADD = 0xb4, Xrc FetchAdd Only [XRCETH ATOMICETH];
    XRC_SEND_LAST_INV = 0xb6, Xrc Send Last [XRCETH IETH];
    XRC_SEND_ONLY_INV = 0xb7, Xrc Send Only [XRCETH IETH];

    // Sent only to a QP whose engine has said that it knows it.
    SELECTIVE_ACK = 0xc0, Manufacturer SelectiveAck Only [AETH SACKETH];
}

static TABLE: [Option<OpcodeInfo>; 256] = table();

impl Opcode {
    /// The row of the table; `None` for a reserved opcode, one of RD or of another manufacturer.
    #[inline]
    #[must_use]
    pub fn info(self) -> Option<&'static OpcodeInfo> {
        TABLE.get(usize::from(self.0)).and_then(Option::as_ref)
    }

    /// The transport, which every opcode has, known or not.
    #[inline]
    #[must_use]
    pub const fn service(self) -> ServiceType {
        match self.0 >> 5 {
            0b000 => ServiceType::Rc,
            0b001 => ServiceType::Uc,
            0b010 => ServiceType::Rd,
            0b011 => ServiceType::Ud,
            0b100 => ServiceType::Cnp,
            0b101 => ServiceType::Xrc,
            _ => ServiceType::Manufacturer,
        }
    }
}

/// The name, or the number of an opcode without one.
impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Some(info) => f.pad(info.name),
            None => write!(f, "opcode {:#04x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::string::{String, ToString};
    use std::vec::Vec;

    use super::*;

    /// The specification's table in words, one operation a line: code, name, extension headers, in the order of RC.
    const OPERATIONS: &str = "\
        00 SEND_FIRST\n 01 SEND_MIDDLE\n 02 SEND_LAST\n 03 SEND_LAST_IMM ImmDt\n 04 SEND_ONLY\n 05 SEND_ONLY_IMM ImmDt
        06 WRITE_FIRST RETH\n 07 WRITE_MIDDLE\n 08 WRITE_LAST\n 09 WRITE_LAST_IMM ImmDt
        0a WRITE_ONLY RETH\n 0b WRITE_ONLY_IMM RETH ImmDt\n 0c READ_REQUEST RETH
        0d READ_RESP_FIRST AETH\n 0e READ_RESP_MIDDLE\n 0f READ_RESP_LAST AETH\n 10 READ_RESP_ONLY AETH\n 11 ACK AETH
        12 ATOMIC_ACK AETH AtomicAckETH\n 13 CMP_SWAP AtomicETH\n 14 FETCH_ADD AtomicETH
        16 SEND_LAST_INV IETH\n 17 SEND_ONLY_INV IETH\n 1c FLUSH FETH RETH\n 1d ATOMIC_WRITE RETH";

    fn expected() -> BTreeMap<u8, (String, &'static str)> {
        let mut rows = BTreeMap::new();
        for line in OPERATIONS.lines() {
            let (code, row) = line.trim().split_once(' ').unwrap();
            let (name, ext) = row.split_once(' ').unwrap_or((row, ""));
            let code = u8::from_str_radix(code, 16).unwrap();
            rows.insert(code, (std::format!("RC_{name}"), ext));
            if code <= 0x0b {
                rows.insert(0x20 | code, (std::format!("UC_{name}"), ext));
            }
            if code <= 0x17 {
                rows.insert(0xa0 | code, (std::format!("XRC_{name}"), ext));
            }
        }
        rows.insert(0x64, ("UD_SEND_ONLY".to_string(), "DETH"));
        rows.insert(0x65, ("UD_SEND_ONLY_IMM".to_string(), "DETH ImmDt"));
        rows.insert(0x81, ("CNP".to_string(), ""));
        rows.insert(0xc0, ("SELECTIVE_ACK".to_string(), "AETH SACKETH"));
        rows
    }

    fn ext_words(words: &str) -> Vec<(ExtHeaders, usize)> {
        words
            .split_whitespace()
            .map(|word| match word {
                "DETH" => (ExtHeaders::DETH, 8),
                "FETH" => (ExtHeaders::FETH, 4),
                "RETH" => (ExtHeaders::RETH, 16),
                "AtomicETH" => (ExtHeaders::ATOMICETH, 28),
                "AETH" => (ExtHeaders::AETH, 4),
                "AtomicAckETH" => (ExtHeaders::ATOMICACKETH, 8),
                "ImmDt" => (ExtHeaders::IMM, 4),
                "IETH" => (ExtHeaders::IETH, 4),
                "SACKETH" => (ExtHeaders::SACKETH, 32),
                other => panic!("no header {other}"),
            })
            .collect()
    }

    #[test]
    fn opcode_every_row_is_the_specifications() {
        let expected = expected();
        for code in 0..=u8::MAX {
            let Some(info) = Opcode(code).info() else {
                assert!(!expected.contains_key(&code), "{code:#04x} is missing");
                continue;
            };
            let (name, words) = expected.get(&code).unwrap_or_else(|| panic!("{code:#04x} {} is too much", info.name));
            assert_eq!(info.name, name);
            assert_eq!(info.service, Opcode(code).service(), "{name}");

            let mut headers = ext_words(words);
            if name.starts_with("XRC") && !info.kind.is_response() {
                headers.insert(0, (ExtHeaders::XRCETH, 4));
            }
            let mut offset = 0;
            for (header, bytes) in &headers {
                assert_eq!(info.ext_offset(*header), Some(offset), "{name}");
                offset += bytes;
            }
            assert_eq!(usize::from(info.ext_bytes), offset, "{name}");
            assert_eq!(info.ext.0.count_ones() as usize, headers.len(), "{name}");
            assert!(offset <= ExtHeaders::MAX_BYTES, "{name}");
        }
    }

    #[test]
    fn opcode_kind_and_position_follow_the_name() {
        for info in TABLE.iter().flatten() {
            let name = info.name;
            let kind = match name.split_once('_').map_or(name, |(_, operation)| operation) {
                _ if name == "SELECTIVE_ACK" => OpKind::SelectiveAck,
                "READ_REQUEST" => OpKind::ReadRequest,
                "ACK" => OpKind::Acknowledge,
                "ATOMIC_ACK" => OpKind::AtomicAcknowledge,
                "CMP_SWAP" => OpKind::CompareSwap,
                "FETCH_ADD" => OpKind::FetchAdd,
                "CNP" => OpKind::Cnp,
                "FLUSH" => OpKind::Flush,
                "ATOMIC_WRITE" => OpKind::AtomicWrite,
                operation if operation.starts_with("SEND") => OpKind::Send,
                operation if operation.starts_with("WRITE") => OpKind::Write,
                operation if operation.starts_with("READ_RESP") => OpKind::ReadResponse,
                operation => panic!("{operation}"),
            };
            assert_eq!(info.kind, kind, "{name}");
            let position = [("_FIRST", Position::First), ("_MIDDLE", Position::Middle), ("_LAST", Position::Last)]
                .into_iter()
                .find_map(|(word, position)| name.contains(word).then_some(position));
            assert_eq!(info.position, position.unwrap_or(Position::Only), "{name}");
            let carries = name.contains("SEND") || name.contains("WRITE") || name.contains("RESP") || name == "CNP";
            assert_eq!(info.has_payload, carries, "{name}");
            assert_eq!(info.has_imm(), name.ends_with("_IMM"), "{name}");
            assert_eq!(info.has_invalidate(), name.ends_with("_INV"), "{name}");
        }
    }

    #[test]
    fn opcode_without_a_row_is_shown_as_number() {
        assert_eq!(Opcode(0x15).to_string(), "opcode 0x15");
        assert_eq!(Opcode::RC_ACK.to_string(), "RC_ACK");
        assert_eq!(Opcode(0x40).service(), ServiceType::Rd);
        assert_eq!(Opcode(0xff).service(), ServiceType::Manufacturer);
    }
}
