//! Captures in pcapng, as a sniffer on the sender's port would make them, with what the link did to a frame as its comment.

use std::borrow::Cow;
use std::time::Duration;

use engine::Time;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::{Block, PcapNgReader, PcapNgWriter};
use pcap_file::{DataLink, PcapResult};

/// Bytes of a frame that are kept: more than any frame has.
const SNAP_BYTES: u32 = 1 << 16;
/// Power of ten of the time stamps' unit: nanoseconds.
const NANOSECONDS: u8 = 9;

/// A capture of all hosts' ports, in memory: a run that ends well throws it away.
pub struct Capture {
    writer: PcapNgWriter<Vec<u8>>,
}

impl Capture {
    /// An empty one, with an interface for each host.
    ///
    /// # Errors
    /// None in practice: it writes to memory.
    pub fn new(host_count: u16) -> PcapResult<Self> {
        let mut writer = PcapNgWriter::new(Vec::new())?;
        for host in 0..host_count {
            let name = format!("host{host}");
            let options = vec![
                InterfaceDescriptionOption::IfName(Cow::Owned(name)),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ];
            let block = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: SNAP_BYTES, options };
            writer.write_pcapng_block(block)?;
        }
        Ok(Self { writer })
    }

    /// Adds a frame that `sender` put on the wire.
    ///
    /// # Errors
    /// None in practice: it writes to memory.
    pub fn add(&mut self, at: Time, sender: u16, frame: &[u8], comment: Option<&str>) -> PcapResult<()> {
        let options =
            comment.map(|comment| EnhancedPacketOption::Comment(Cow::Borrowed(comment))).into_iter().collect();
        let block = EnhancedPacketBlock {
            interface_id: u32::from(sender),
            timestamp: Duration::from_nanos(at.as_ns()),
            original_len: frame.len() as u32,
            data: Cow::Borrowed(frame),
            options,
        };
        self.writer.write_pcapng_block(block).map(drop)
    }

    /// The file.
    pub fn bytes(&self) -> &[u8] {
        self.writer.get_ref()
    }
}

/// A frame out of a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// When it was on the wire.
    pub at: Time,
    /// Number of the host that sent it.
    pub sender: u32,
    /// Its bytes, as they were sent.
    pub frame: Vec<u8>,
    /// What the link did to it.
    pub comment: Option<String>,
}

/// The frames of a capture, in their order.
///
/// # Errors
/// If it is no capture of [`Capture`]'s.
pub fn packets(file: &[u8]) -> PcapResult<Vec<Packet>> {
    let mut reader = PcapNgReader::new(file)?;
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block? else { continue };
        let comment = packet.options.iter().find_map(|option| match option {
            EnhancedPacketOption::Comment(text) => Some(text.to_string()),
            _ => None,
        });
        packets.push(Packet {
            at: Time::from_ns(u64::try_from(packet.timestamp.as_nanos()).unwrap_or(u64::MAX)),
            sender: packet.interface_id,
            frame: packet.data.into_owned(),
            comment,
        });
    }
    Ok(packets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capture_reads_back_with_times_and_comments() {
        let mut capture = Capture::new(2).unwrap();
        capture.add(Time::from_ns(1_000_000_007), 1, &[1, 2, 3], Some("dropped: loss")).unwrap();
        capture.add(Time::from_ns(1_000_000_008), 0, &[4], None).unwrap();
        let packet = |at, sender, frame, comment| Packet { at: Time::from_ns(at), sender, frame, comment };
        let lost = packet(1_000_000_007, 1, vec![1, 2, 3], Some("dropped: loss".to_owned()));
        let passed = packet(1_000_000_008, 0, vec![4], None);
        assert_eq!(packets(capture.bytes()).unwrap(), [lost, passed]);
    }
}
