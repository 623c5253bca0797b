//! `PcapTap`: writes the frames of a port to a capture file.

use std::borrow::Cow;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, PcapError, TsResolution};
use thiserror::Error;

use crate::mbuf::Mbuf;

/// The capture could not be written.
#[derive(Debug, Error)]
#[error("the capture could not be written: {0}")]
pub struct PcapTapError(#[from] PcapError);

/// Middleware that records frames in pcap format (Ethernet, nanoseconds), which tcpdump and tshark read.
///
/// Show it what [`crate::RxQueue::burst`] brought, and [`crate::TxBurst::unflushed`] before each flush. *Cost*: copies each frame
/// into the writer: give it a buffered one.
#[derive(Debug)]
pub struct PcapTap<W: Write> {
    writer: PcapWriter<W>,
}

impl<W: Write> PcapTap<W> {
    /// A capture into `writer`, whose file header is written now.
    ///
    /// # Errors
    /// When the header cannot be written.
    pub fn new(writer: W) -> Result<Self, PcapTapError> {
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            snaplen: u32::from(u16::MAX),
            ..PcapHeader::default()
        };
        Ok(Self { writer: PcapWriter::with_header(writer, header)? })
    }

    /// Records frames as seen now.
    ///
    /// # Errors
    /// When they cannot be written; the capture may then end within a frame.
    pub fn record(&mut self, frames: &[Mbuf]) -> Result<(), PcapTapError> {
        if frames.is_empty() {
            return Ok(());
        }
        // A clock before 1970 is no reason to lose the frames.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        frames.iter().try_for_each(|mbuf| self.record_bytes(mbuf.data(), now))
    }

    /// Records one frame as seen at `since_epoch`.
    ///
    /// # Errors
    /// As [`PcapTap::record`].
    pub fn record_bytes(&mut self, frame: &[u8], since_epoch: Duration) -> Result<(), PcapTapError> {
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let packet = PcapPacket { timestamp: since_epoch, orig_len: len, data: Cow::Borrowed(frame) };
        self.writer.write_packet(&packet)?;
        Ok(())
    }

    /// The writer, so that it can be flushed.
    #[must_use]
    pub fn into_inner(self) -> W {
        self.writer.into_writer()
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcap::PcapReader;

    use super::*;

    #[test]
    fn a_capture_reads_back_with_bytes_and_times() {
        let frames: [(&[u8], Duration); 2] =
            [(&[1; 60], Duration::new(5, 7)), (&[2; 9000], Duration::new(6, 999_999_999))];
        let mut tap = PcapTap::new(Vec::new()).unwrap();
        for (frame, time) in frames {
            tap.record_bytes(frame, time).unwrap();
        }
        let bytes = tap.into_inner();
        let mut reader = PcapReader::new(bytes.as_slice()).unwrap();
        for (frame, time) in frames {
            let packet = reader.next_packet().unwrap().unwrap();
            assert_eq!((packet.data.as_ref(), packet.timestamp, packet.orig_len as usize), (frame, time, frame.len()));
        }
        assert!(reader.next_packet().is_none());
    }
}
