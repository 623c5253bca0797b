//! Capture files: pcap and pcapng, read one packet at a time.

use std::io::{self, Cursor, ErrorKind, Read};

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError, TsResolution};

/// First bytes of a pcapng file: the type of a Section Header Block, the same in both byte orders.
const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// First bytes of a pcap file: microseconds and nanoseconds, big and little endian.
const PCAP_MAGICS: [[u8; 4]; 4] =
    [[0xa1, 0xb2, 0xc3, 0xd4], [0xd4, 0xc3, 0xb2, 0xa1], [0xa1, 0xb2, 0x3c, 0x4d], [0x4d, 0x3c, 0xb2, 0xa1]];

/// Why a capture can't be read, or not to its end.
#[derive(thiserror::Error, Debug)]
pub(crate) enum CaptureError {
    /// The operating system says no.
    #[error("can't read {name}: {error}")]
    Unreadable {
        /// The file.
        name: String,
        /// What it says.
        error: io::Error,
    },
    /// It is something else.
    #[error("{name} is no capture: it starts with {start}, neither as pcap nor as pcapng does")]
    NoCapture {
        /// The file.
        name: String,
        /// Its first bytes.
        start: String,
    },
    /// Its packets don't start with an Ethernet header.
    #[error(
        "{name} has link type {link_type} ({link_name}); only Ethernet (1) can be decoded: capture on one interface, not on `any`"
    )]
    LinkType {
        /// The file.
        name: String,
        /// Number of the link type, from the registry of tcpdump.org.
        link_type: u32,
        /// Its name, as far as known.
        link_name: String,
    },
    /// It ends inside of a packet.
    #[error("{name} ends in the middle of a record, after packet {after}")]
    EndsEarly {
        /// The file.
        name: String,
        /// Packets before that.
        after: u64,
    },
    /// It is not what the format says.
    #[error("{name} is damaged after packet {after}: {reason}")]
    Damaged {
        /// The file.
        name: String,
        /// Packets before that.
        after: u64,
        /// What is wrong.
        reason: String,
    },
}

impl CaptureError {
    /// What the operating system says about a file.
    pub(super) fn unreadable(name: &str, error: io::Error) -> Self {
        Self::Unreadable { name: name.to_owned(), error }
    }
}

/// A captured frame.
pub(super) struct Record {
    /// Since 1970, nanoseconds.
    pub(super) timestamp_ns: u64,
    /// Bytes that the frame had on the wire; more than `data` has if the capture's snap length cut it.
    pub(super) original_bytes: u32,
    /// The frame from its Ethernet header on.
    pub(super) data: Vec<u8>,
}

/// An open capture.
pub(super) struct Capture {
    name: String,
    format: Format,
    /// Packets read so far.
    count: u64,
}

enum Format {
    Pcap(PcapReader<Box<dyn Read>>),
    PcapNg { reader: PcapNgReader<Box<dyn Read>>, interfaces: Vec<Interface> },
}

/// What the packets of a pcapng interface need to be understood.
#[derive(Clone, Copy)]
struct Interface {
    link: DataLink,
    snap_bytes: u32,
    /// `if_tsresol`: ticks of 10^-n s, or with the top bit 2^-n s.
    resolution: u8,
    /// `if_tsoffset`, seconds.
    offset_s: i64,
}

impl Capture {
    /// Looks at the first bytes and reads the file's header.
    ///
    /// # Errors
    /// [`CaptureError`]; a pcap whose link type is not Ethernet is refused here, an interface of a pcapng when its first
    /// packet comes.
    pub(super) fn open(name: String, mut input: Box<dyn Read>) -> Result<Self, CaptureError> {
        let mut start = Vec::new();
        let magic_bytes = u64::try_from(PCAPNG_MAGIC.len()).unwrap_or(u64::MAX);
        let read = input.by_ref().take(magic_bytes).read_to_end(&mut start);
        read.map_err(|error| CaptureError::unreadable(&name, error))?;
        let is_pcap = PCAP_MAGICS.iter().any(|magic| start == magic);
        let is_pcapng = start == PCAPNG_MAGIC;
        if !is_pcap && !is_pcapng {
            let bytes: Vec<String> = start.iter().map(|byte| format!("{byte:02x}")).collect();
            let start = if bytes.is_empty() { "nothing".to_owned() } else { bytes.join(" ") };
            return Err(CaptureError::NoCapture { name, start });
        }
        let whole: Box<dyn Read> = Box::new(Cursor::new(start).chain(input));
        let format = if is_pcap {
            PcapReader::new(whole).map(Format::Pcap)
        } else {
            PcapNgReader::new(whole).map(|reader| Format::PcapNg { reader, interfaces: Vec::new() })
        };
        let format = format.map_err(|error| failure(&name, 0, error))?;
        if let Format::Pcap(reader) = &format {
            require_ethernet(&name, reader.header().datalink)?;
        }
        Ok(Self { name, format, count: 0 })
    }

    /// The next packet, or `None` at the end.
    ///
    /// # Errors
    /// [`CaptureError`]; nothing can be read after it.
    pub(super) fn next_record(&mut self) -> Result<Option<Record>, CaptureError> {
        let next = match &mut self.format {
            Format::Pcap(reader) => next_of_pcap(reader),
            Format::PcapNg { reader, interfaces } => next_of_pcapng(reader, interfaces),
        };
        match next.map_err(|error| failure(&self.name, self.count, error))? {
            None => Ok(None),
            Some((link, record)) => {
                require_ethernet(&self.name, link)?;
                self.count += 1;
                Ok(Some(record))
            }
        }
    }
}

fn require_ethernet(name: &str, link: DataLink) -> Result<(), CaptureError> {
    // The upper bits of the field say whether frames end in an FCS; the IP length tells that as well.
    let link_type = u32::from(link) & 0xffff;
    if link_type == u32::from(DataLink::ETHERNET) {
        return Ok(());
    }
    Err(CaptureError::LinkType {
        name: name.to_owned(),
        link_type,
        link_name: format!("{:?}", DataLink::from(link_type)),
    })
}

fn failure(name: &str, after: u64, error: PcapError) -> CaptureError {
    let name = name.to_owned();
    match error {
        PcapError::IncompleteBuffer => CaptureError::EndsEarly { name, after },
        PcapError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            CaptureError::EndsEarly { name, after }
        }
        PcapError::IoError(error) => CaptureError::Unreadable { name, error },
        other => CaptureError::Damaged { name, after, reason: other.to_string() },
    }
}

/// Reads raw records: the checked form refuses packets that were cut, which is what snap lengths are for.
fn next_of_pcap(reader: &mut PcapReader<Box<dyn Read>>) -> Result<Option<(DataLink, Record)>, PcapError> {
    let header = reader.header();
    let Some(raw) = reader.next_raw_packet().transpose()? else { return Ok(None) };
    let tick_ns = match header.ts_resolution {
        TsResolution::MicroSecond => 1_000,
        TsResolution::NanoSecond => 1,
    };
    let timestamp_ns = u64::from(raw.ts_sec) * 1_000_000_000 + u64::from(raw.ts_frac) * tick_ns;
    let record = Record { timestamp_ns, original_bytes: raw.orig_len, data: raw.data.into_owned() };
    Ok(Some((header.datalink, record)))
}

fn next_of_pcapng(
    reader: &mut PcapNgReader<Box<dyn Read>>,
    interfaces: &mut Vec<Interface>,
) -> Result<Option<(DataLink, Record)>, PcapError> {
    let interface = |interfaces: &[Interface], id: u32| {
        let index = usize::try_from(id).map_err(|_| PcapError::InvalidInterfaceId(id))?;
        interfaces.get(index).copied().ok_or(PcapError::InvalidInterfaceId(id))
    };
    while let Some(block) = reader.next_block().transpose()? {
        let (interface, ticks, original_bytes, data) = match block {
            Block::SectionHeader(_) => {
                interfaces.clear();
                continue;
            }
            Block::InterfaceDescription(block) => {
                interfaces.push(Interface::new(&block));
                continue;
            }
            Block::EnhancedPacket(block) => {
                // The reader takes ticks for nanoseconds, whatever the interface says.
                let ticks = u64::try_from(block.timestamp.as_nanos()).unwrap_or(u64::MAX);
                (interface(interfaces, block.interface_id)?, ticks, block.original_len, block.data.into_owned())
            }
            Block::Packet(block) => {
                let interface = interface(interfaces, block.interface_id.into())?;
                let (words, original_bytes, data) = (block.timestamp, block.original_len, block.data.into_owned());
                // Two words, the upper one first in either byte order; the reader takes them for one number.
                let ticks = if reader.section().endianness.is_little() { words.rotate_left(32) } else { words };
                (interface, ticks, original_bytes, data)
            }
            Block::SimplePacket(block) => {
                // It has no time, and no captured length either: the block's padding has to be told from the data.
                let interface = interface(interfaces, 0)?;
                let mut data = block.data.into_owned();
                data.truncate(usize::try_from(interface.captured_bytes(block.original_len)).unwrap_or(usize::MAX));
                (interface, 0, block.original_len, data)
            }
            _ => continue,
        };
        let record = Record { timestamp_ns: interface.timestamp_ns(ticks), original_bytes, data };
        return Ok(Some((interface.link, record)));
    }
    Ok(None)
}

impl Interface {
    fn new(block: &InterfaceDescriptionBlock<'_>) -> Self {
        // Microseconds unless an option says something else.
        let mut interface = Self { link: block.linktype, snap_bytes: block.snaplen, resolution: 6, offset_s: 0 };
        for option in &block.options {
            match option {
                InterfaceDescriptionOption::IfTsResol(resolution) => interface.resolution = *resolution,
                InterfaceDescriptionOption::IfTsOffset(offset) => interface.offset_s = offset.cast_signed(),
                _ => {}
            }
        }
        interface
    }

    /// Bytes captured of a frame of `original_bytes`; a snap length of 0 is none.
    fn captured_bytes(self, original_bytes: u32) -> u32 {
        if self.snap_bytes == 0 { original_bytes } else { original_bytes.min(self.snap_bytes) }
    }

    /// A time in nanoseconds since 1970; what does not fit saturates.
    fn timestamp_ns(self, ticks: u64) -> u64 {
        let exponent = u32::from(self.resolution & 0x7f);
        let nanoseconds = u128::from(ticks) * 1_000_000_000;
        let since_offset = if self.resolution & 0x80 != 0 {
            nanoseconds >> exponent
        } else {
            // Finer than 10^-38 s leaves nothing of 64 bits of ticks.
            10_u128.checked_pow(exponent).map_or(0, |divisor| nanoseconds / divisor)
        };
        let offset_ns = i128::from(self.offset_s) * 1_000_000_000;
        let total = i128::try_from(since_offset).unwrap_or(i128::MAX).saturating_add(offset_ns);
        u64::try_from(total.max(0)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(resolution: u8, offset_s: i64) -> Interface {
        Interface { link: DataLink::ETHERNET, snap_bytes: 0, resolution, offset_s }
    }

    #[test]
    fn timestamp_follows_resolution_and_offset() {
        assert_eq!(interface(6, 0).timestamp_ns(1_700_000_000_000_001), 1_700_000_000_000_001_000);
        assert_eq!(interface(9, 0).timestamp_ns(1_700_000_000_000_000_001), 1_700_000_000_000_000_001);
        assert_eq!(interface(0, 5).timestamp_ns(2), 7_000_000_000);
        assert_eq!(interface(12, -1).timestamp_ns(3_000_000_000_000), 2_000_000_000);
        assert_eq!(interface(0x80 | 10, 0).timestamp_ns(1536), 1_500_000_000);
    }

    #[test]
    fn timestamp_absurd_saturates() {
        assert_eq!(interface(0, 0).timestamp_ns(u64::MAX), u64::MAX);
        assert_eq!(interface(0, i64::MAX).timestamp_ns(u64::MAX), u64::MAX);
        assert_eq!(interface(0, i64::MIN).timestamp_ns(0), 0);
        assert_eq!(interface(127, 0).timestamp_ns(u64::MAX), 0);
        assert_eq!(interface(0xff, 0).timestamp_ns(u64::MAX), 0);
    }
}
