//! What two rsockets say to each other: the private data of their connection, the words of immediate data, and the entries that they
//! write into each other's tables. As `docs/rsocket` of rdma-core describes it, version 1, and as its library speaks it.
//!
//! Everything here comes from the peer, and is checked.

/// The one version there is.
const VERSION: u8 = 1;
/// The sender's memory is big endian.
const FLAG_NET: u8 = 1 << 0;
/// The sender has a table of mapped buffers behind its table of receive buffers.
const FLAG_IOMAP: u8 = 1 << 1;

/// Bits of an immediate word that its type leaves for a value.
const VALUE_BITS: u32 = 29;
/// Largest value of a message, and so the most bytes of one transfer.
const VALUE_MAX: u32 = (1 << VALUE_BITS) - 1;
const TYPE_DATA: u32 = 0b000;
const TYPE_CREDIT: u32 = 0b100;
const TYPE_IOMAP: u32 = 0b110;
const TYPE_CONTROL: u32 = 0b111;
const CONTROL_DISCONNECT: u32 = 0;
const CONTROL_KEEP_ALIVE: u32 = 1;
const CONTROL_SHUTDOWN: u32 = 2;

/// In which order a host keeps the bytes of its words: entries are written as their reader keeps them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    /// This host's.
    pub(super) const OWN: Self = if cfg!(target_endian = "big") { Self::Big } else { Self::Little };

    const fn of_u32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    const fn of_u64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }
}

/// Memory of the peer that we may write to (`struct rs_sge`): address, key, length, in 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct RemoteBuffer {
    pub(super) addr: u64,
    pub(super) key: u32,
    pub(super) length: u32,
}

impl RemoteBuffer {
    pub(super) const BYTES: usize = 16;

    pub(super) fn to_bytes(self, order: ByteOrder) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&order.of_u64(self.addr));
        bytes[8..12].copy_from_slice(&order.of_u32(self.key));
        bytes[12..].copy_from_slice(&order.of_u32(self.length));
        bytes
    }

    /// An entry of a table in our own memory, from its two words as this host reads them.
    pub(super) fn from_words(addr: u64, key_and_length: u64) -> Self {
        let bytes = key_and_length.to_ne_bytes();
        let [k0, k1, k2, k3, l0, l1, l2, l3] = bytes;
        let (key, length) = (u32::from_ne_bytes([k0, k1, k2, k3]), u32::from_ne_bytes([l0, l1, l2, l3]));
        Self { addr, key, length }
    }
}

/// A buffer that an application has mapped for its peer (`struct rs_iomap`): the offset that it goes by, and where it is, in 24 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct IomapEntry {
    pub(super) offset: u64,
    pub(super) buffer: RemoteBuffer,
}

impl IomapEntry {
    pub(super) const BYTES: usize = 8 + RemoteBuffer::BYTES;

    pub(super) fn to_bytes(self, order: ByteOrder) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&order.of_u64(self.offset));
        bytes[8..].copy_from_slice(&self.buffer.to_bytes(order));
        bytes
    }
}

/// What an immediate word says. Its upper 3 bits are the type, the others the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// So many bytes were written into the current receive buffer.
    Data(u32),
    /// The number, modulo 2^16, of the first message that may not be sent yet; an entry of the table of receive buffers may be new.
    Credit(u16),
    /// An entry of the table of mapped buffers is new.
    IomapUpdated(u16),
    /// The sender neither sends nor receives any more.
    Disconnect,
    /// Nothing but life.
    KeepAlive,
    /// The sender sends no more.
    Shutdown,
    /// Reserved: of no meaning today.
    Reserved,
}

impl Message {
    /// The word, in the host's order; it travels in network order.
    pub(super) const fn to_word(self) -> u32 {
        let (kind, value) = match self {
            Self::Data(bytes) => (TYPE_DATA, bytes),
            Self::Credit(limit) => (TYPE_CREDIT, limit as u32),
            Self::IomapUpdated(index) => (TYPE_IOMAP, index as u32),
            Self::Disconnect => (TYPE_CONTROL, CONTROL_DISCONNECT),
            Self::KeepAlive => (TYPE_CONTROL, CONTROL_KEEP_ALIVE),
            Self::Shutdown => (TYPE_CONTROL, CONTROL_SHUTDOWN),
            Self::Reserved => (TYPE_CONTROL, VALUE_MAX),
        };
        kind << VALUE_BITS | value & VALUE_MAX
    }

    pub(super) const fn from_word(word: u32) -> Self {
        let value = word & VALUE_MAX;
        // The low half is all that both sides count in.
        let low = (value & 0xffff) as u16;
        match (word >> VALUE_BITS, value) {
            (TYPE_DATA, _) => Self::Data(value),
            (TYPE_CREDIT, _) => Self::Credit(low),
            (TYPE_IOMAP, _) => Self::IomapUpdated(low),
            (TYPE_CONTROL, CONTROL_DISCONNECT) => Self::Disconnect,
            (TYPE_CONTROL, CONTROL_KEEP_ALIVE) => Self::KeepAlive,
            (TYPE_CONTROL, CONTROL_SHUTDOWN) => Self::Shutdown,
            _ => Self::Reserved,
        }
    }
}

/// Why a peer's private data is none of an rsocket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BadHello {
    TooShort { bytes: usize },
    Version { theirs: u8 },
    NoTable,
    NoCredits,
}

/// The private data of a request and of its acceptance (`struct rs_conn_data`), 40 bytes in network order:
/// version, flags, credits (16 bits), 3 reserved, entries of the iomap table as a scaled byte, the table of receive buffers
/// (its length in entries), the first receive buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    pub(super) order: ByteOrder,
    /// Messages that may be sent before the first credit update.
    pub(super) credits: u16,
    /// Entries of the sender's table of mapped buffers, which lies behind its table of receive buffers.
    pub(super) iomap_entries: u32,
    /// The sender's table of receive buffers: the receiver writes its own buffers into it.
    pub(super) table: RemoteBuffer,
    /// The sender's first receive buffer.
    pub(super) data: RemoteBuffer,
}

impl Hello {
    pub(super) const BYTES: usize = 8 + 2 * RemoteBuffer::BYTES;

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let net = if self.order == ByteOrder::Big { FLAG_NET } else { 0 };
        let mut bytes = [0; Self::BYTES];
        bytes[0] = VERSION;
        bytes[1] = net | FLAG_IOMAP;
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = scale(self.iomap_entries);
        bytes[8..24].copy_from_slice(&self.table.to_bytes(ByteOrder::Big));
        bytes[24..].copy_from_slice(&self.data.to_bytes(ByteOrder::Big));
        bytes
    }

    /// Reads a peer's; what follows it is ignored.
    ///
    /// # Errors
    /// See [`BadHello`].
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BadHello> {
        let Some((hello, _)) = bytes.split_first_chunk::<{ Self::BYTES }>() else {
            return Err(BadHello::TooShort { bytes: bytes.len() });
        };
        let [version, flags, credits @ .., _, _, _, _] = *split::<0, 8>(hello);
        let [credits_high, credits_low] = credits;
        if version != VERSION {
            return Err(BadHello::Version { theirs: version });
        }
        let parsed = Self {
            order: if flags & FLAG_NET != 0 { ByteOrder::Big } else { ByteOrder::Little },
            credits: u16::from_be_bytes([credits_high, credits_low]),
            iomap_entries: if flags & FLAG_IOMAP != 0 { unscale(hello[7]) } else { 0 },
            table: remote_buffer(split::<8, 16>(hello)),
            data: remote_buffer(split::<24, 16>(hello)),
        };
        match parsed {
            Self { table: RemoteBuffer { length: 0, .. }, .. } => Err(BadHello::NoTable),
            Self { credits: 0, .. } => Err(BadHello::NoCredits),
            _ => Ok(parsed),
        }
    }
}

/// `N` bytes from `FROM` on.
const fn split<const FROM: usize, const N: usize>(bytes: &[u8; Hello::BYTES]) -> &[u8; N] {
    const { assert!(FROM + N <= Hello::BYTES) };
    match bytes.split_at(FROM).1.first_chunk() {
        Some(chunk) => chunk,
        None => unreachable!(),
    }
}

fn remote_buffer(bytes: &[u8; RemoteBuffer::BYTES]) -> RemoteBuffer {
    let value = u128::from_be_bytes(*bytes);
    // Address, key and length, from the top.
    RemoteBuffer { addr: (value >> 64) as u64, key: (value >> 32) as u32, length: value as u32 }
}

/// Up to 128 as it is; above, in steps of 256 with the top bit set.
const fn scale(entries: u32) -> u8 {
    const STEP_BIT: u32 = 1 << 7;
    if entries <= STEP_BIT { entries as u8 } else { (STEP_BIT | (entries >> u8::BITS) & (STEP_BIT - 1)) as u8 }
}

const fn unscale(byte: u8) -> u32 {
    if byte <= 1 << 7 { byte as u32 } else { ((byte & 0x7f) as u32) << u8::BITS }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand, from the description.
    const HELLO: [u8; Hello::BYTES] = [
        1, 2, 0x01, 0x80, 0, 0, 0, 5, // version, flags, 384 credits, 5 mappings
        0, 0, 0x7f, 0, 0, 0, 0x10, 0, 0xab, 0xcd, 0, 1, 0, 0, 0, 2, // the table: 2 entries
        0, 0, 0x7f, 0, 0, 1, 0, 0, 0xab, 0xcd, 0, 2, 0, 1, 0, 0, // 64 KiB
    ];

    fn hello() -> Hello {
        Hello {
            order: ByteOrder::Little,
            credits: 384,
            iomap_entries: 5,
            table: RemoteBuffer { addr: 0x7f00_0000_1000, key: 0xabcd_0001, length: 2 },
            data: RemoteBuffer { addr: 0x7f00_0001_0000, key: 0xabcd_0002, length: 0x1_0000 },
        }
    }

    #[test]
    fn private_data_is_as_described() {
        assert_eq!(hello().to_bytes(), HELLO);
        assert_eq!(Hello::parse(&HELLO), Ok(hello()));
        // A message has a place of fixed size for it: zeros follow.
        assert_eq!(Hello::parse(&[HELLO.as_slice(), &[0; 16]].concat()), Ok(hello()));
        let big = Hello { order: ByteOrder::Big, ..hello() };
        assert_eq!(big.to_bytes()[1], 3);
        assert_eq!(Hello::parse(&big.to_bytes()), Ok(big));
    }

    #[test]
    fn private_data_of_others_is_refused() {
        for bytes in 0..Hello::BYTES {
            assert_eq!(Hello::parse(&HELLO[..bytes]), Err(BadHello::TooShort { bytes }));
        }
        let with = |at: std::ops::Range<usize>, value: u8| {
            let mut hello = HELLO;
            hello[at].fill(value);
            Hello::parse(&hello)
        };
        assert_eq!(with(0..1, 2), Err(BadHello::Version { theirs: 2 }));
        assert_eq!(with(2..4, 0), Err(BadHello::NoCredits));
        assert_eq!(with(20..24, 0), Err(BadHello::NoTable));
        // A peer without mappings says nothing of their number.
        assert_eq!(with(1..2, 0).map(|hello| hello.iomap_entries), Ok(0));
    }

    #[test]
    fn words_are_as_described() {
        let words = [
            (Message::Data(65536), 0x0001_0000),
            (Message::Credit(0x1234), 0x8000_1234),
            (Message::IomapUpdated(3), 0xc000_0003),
            (Message::Disconnect, 0xe000_0000),
            (Message::KeepAlive, 0xe000_0001),
            (Message::Shutdown, 0xe000_0002),
        ];
        for (message, word) in words {
            assert_eq!((message.to_word(), Message::from_word(word)), (word, message));
        }
        for word in [0x2000_0000, 0x4000_0001, 0x6000_0000, 0xa000_0000, 0xe000_0003, u32::MAX] {
            assert_eq!(Message::from_word(word), Message::Reserved, "{word:#x}");
        }
    }

    #[test]
    fn entries_are_written_as_their_reader_keeps_them() {
        let entry = IomapEntry { offset: 0x0102, buffer: RemoteBuffer { addr: 3, key: 4, length: 5 } };
        let little = [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0];
        let big = [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5];
        assert_eq!((entry.to_bytes(ByteOrder::Little), entry.to_bytes(ByteOrder::Big)), (little, big));
        let own = entry.buffer.to_bytes(ByteOrder::OWN);
        let word = |at: usize| u64::from_ne_bytes(own[at..at + 8].try_into().unwrap());
        assert_eq!(RemoteBuffer::from_words(word(0), word(8)), entry.buffer);
    }

    #[test]
    fn the_number_of_mappings_is_scaled_to_a_byte() {
        for (entries, byte, back) in
            [(0, 0, 0), (128, 128, 128), (256, 129, 256), (1000, 131, 768), (32_000, 253, 32_000)]
        {
            assert_eq!((scale(entries), unscale(byte)), (byte, back), "{entries}");
        }
    }
}
