//! What one captured frame is, and how it is shown.

use std::fmt;

use serde_json::{Value, json};
use wire::{ArpOperation, ArpRepr, Bth, EtherType, EthernetRepr, Frame, FrameError, VlanRepr, icrc};

use super::capture::Record;
use crate::report::Fields;

/// Largest frame that is decoded from its captured part: a full IPv6 packet with a VLAN tag. Nothing else on Ethernet is longer;
/// the original length in a file is any number.
const FRAME_BYTES_MAX: usize = 18 + 40 + 65_535;

/// What a captured frame turned out to be.
pub(super) enum Verdict<'a> {
    /// A RoCE packet, all of it.
    Whole {
        /// The packet.
        frame: Frame<'a>,
        /// Its ICRC is right.
        icrc_ok: bool,
    },
    /// A RoCE packet whose end was not captured. With the packet if its headers were; payload and ICRC are zeros.
    Cut(Option<Frame<'a>>),
    /// RoCE, but not as it should be.
    Malformed(FrameError),
    /// Something else.
    Other(Other),
}

/// A frame that is not RoCE.
pub(super) enum Other {
    /// ARP for IPv4.
    Arp(ArpRepr),
    /// Any other protocol.
    EtherType(EtherType),
    /// Shorter than an Ethernet header.
    Runt,
}

/// A captured frame with its place in the capture.
pub(super) struct Captured<'a> {
    /// Counts from 1, as in Wireshark.
    pub(super) number: u64,
    /// Since the first packet, nanoseconds; clocks may step back.
    since_start_ns: i128,
    timestamp_ns: u64,
    captured_bytes: usize,
    original_bytes: u32,
    /// What it is.
    pub(super) verdict: Verdict<'a>,
}

impl<'a> Captured<'a> {
    /// Decodes a record. `scratch` holds the frame if it was cut.
    pub(super) fn new(number: u64, start_ns: u64, record: &'a Record, scratch: &'a mut Vec<u8>) -> Self {
        Self {
            number,
            since_start_ns: i128::from(record.timestamp_ns) - i128::from(start_ns),
            timestamp_ns: record.timestamp_ns,
            captured_bytes: record.data.len(),
            original_bytes: record.original_bytes,
            verdict: judge(&record.data, usize::try_from(record.original_bytes).unwrap_or(usize::MAX), scratch),
        }
    }

    /// The packet as JSON.
    pub(super) fn fields(&self) -> Fields {
        let mut fields = Fields::default();
        fields
            .add("number", self.number)
            .add("time_s", self.since_start_ns as f64 / 1e9)
            .add("timestamp_ns", self.timestamp_ns)
            .add("captured_bytes", self.captured_bytes)
            .add("original_bytes", self.original_bytes);
        match &self.verdict {
            Verdict::Whole { frame, icrc_ok } => {
                fields.add("verdict", if *icrc_ok { "ok" } else { "bad_icrc" });
                add_frame(&mut fields, frame);
                fields.add("icrc", format!("{:#010x}", frame.icrc()));
                if !icrc_ok {
                    fields.add("icrc_computed", format!("{:#010x}", icrc::compute(frame)));
                }
            }
            Verdict::Cut(frame) => {
                fields.add("verdict", "cut");
                if let Some(frame) = frame {
                    add_frame(&mut fields, frame);
                }
            }
            Verdict::Malformed(error) => {
                fields.add("verdict", "malformed").add("error", error.to_string());
            }
            Verdict::Other(other) => {
                fields.add("verdict", "not_roce").add("protocol", other.to_string());
            }
        }
        fields
    }
}

/// Decides what a frame is. Of one that was cut, the headers are decoded with zeros in place of what is missing.
fn judge<'a>(data: &'a [u8], original_bytes: usize, scratch: &'a mut Vec<u8>) -> Verdict<'a> {
    let error = match Frame::parse(data) {
        // Whole even if padding behind it was cut.
        Ok(frame) => return Verdict::Whole { frame, icrc_ok: frame.icrc_ok() },
        Err(error) => error,
    };
    let is_cut = data.len() < original_bytes;
    // At least a BTH's worth of zeros: a RoCE packet is one even if it ends before its BTH does.
    let enough = data.len() + Bth::LEN;
    scratch.clear();
    scratch.extend_from_slice(data);
    scratch.resize(if is_cut { original_bytes.min(FRAME_BYTES_MAX).max(enough) } else { enough }, 0);
    if !is_roce(scratch, error) {
        return Verdict::Other(other(data));
    }
    if !is_cut {
        return Verdict::Malformed(error);
    }
    // If it still does not parse: a zero in place of a missing byte says nothing about the packet.
    Verdict::Cut(Frame::parse(scratch).ok().filter(|frame| headers_bytes(frame) <= data.len()))
}

/// Bytes before the payload.
fn headers_bytes(frame: &Frame<'_>) -> usize {
    frame.bytes().len().saturating_sub(frame.payload().len() + frame.pad().len() + icrc::LEN)
}

/// Whether a frame that does not parse is RoCE all the same.
fn is_roce(data: &[u8], error: FrameError) -> bool {
    let is_v1 = inner(data).is_some_and(|(ether_type, _)| ether_type == EtherType::ROCE_V1);
    error != FrameError::NotRoce && (is_v1 || wire::dest_qpn(data).is_some())
}

/// EtherType and payload of the frame, behind the VLAN tag if there is one.
fn inner(data: &[u8]) -> Option<(EtherType, &[u8])> {
    let ethernet = EthernetRepr::parse(data)?;
    let rest = data.get(EthernetRepr::LEN..)?;
    if ethernet.ether_type != EtherType::VLAN {
        return Some((ethernet.ether_type, rest));
    }
    VlanRepr::parse(rest).and_then(|vlan| Some((vlan.ether_type, rest.get(VlanRepr::LEN..)?)))
}

fn other(data: &[u8]) -> Other {
    match inner(data) {
        None => Other::Runt,
        Some((EtherType::ARP, rest)) => ArpRepr::parse(rest).map_or(Other::EtherType(EtherType::ARP), Other::Arp),
        Some((ether_type, _)) => Other::EtherType(ether_type),
    }
}

/// Keys and addresses are hexadecimal text: most JSON readers round numbers above 2^53.
fn add_frame(fields: &mut Fields, frame: &Frame<'_>) {
    let bth = frame.bth();
    fields
        .add("src_ip", frame.src_ip().to_string())
        .add("dst_ip", frame.dst_ip().to_string())
        .add("roce_version", if frame.is_roce_v1() { 1 } else { 2 })
        .add("udp_src_port", frame.udp_src_port())
        .add("vlan", frame.vlan().map(|tag| tag.to_string()))
        .add("traffic_class", frame.traffic_class())
        .add("hop_limit", frame.hop_limit())
        .add("opcode", frame.info().name)
        .add("opcode_value", bth.opcode.0)
        .add("dest_qpn", bth.dest_qpn.value())
        .add("psn", bth.psn.value())
        .add("pkey", bth.pkey.0)
        .add("ack_req", bth.ack_req)
        .add("solicited", bth.solicited)
        .add("mig_req", bth.mig_req)
        .add("fecn", bth.fecn)
        .add("becn", bth.becn)
        .add("pad_count", bth.pad_count);
    for (name, header) in [
        ("xrceth", frame.xrceth().map(|h| json!({ "srqn": h.srqn }))),
        ("deth", frame.deth().map(|h| json!({ "qkey": hex32(h.qkey.0), "src_qpn": h.src_qpn.value() }))),
        ("reth", frame.reth().map(|h| json!({ "va": hex64(h.va), "rkey": hex32(h.rkey.0), "dma_len": h.dma_len }))),
        (
            "atomiceth",
            frame.atomiceth().map(|h| {
                json!({
                    "va": hex64(h.va),
                    "rkey": hex32(h.rkey.0),
                    "swap_or_add": hex64(h.swap_or_add),
                    "compare": hex64(h.compare),
                })
            }),
        ),
        ("aeth", frame.aeth().map(|h| json!({ "syndrome": h.syndrome.to_string(), "msn": h.msn.value() }))),
        ("atomicacketh", frame.atomicacketh().map(|h| json!({ "original": hex64(h.original) }))),
        (
            "sacketh",
            frame.sacketh().map(|h| {
                json!({ "missing_psn": bth.psn.add(1).value(), "received": h.to_string(), "received_count": h.count() })
            }),
        ),
        ("immdt", frame.immdt().map(|h| Value::from(hex32(h.data)))),
        ("ieth", frame.ieth().map(|h| json!({ "rkey": hex32(h.rkey.0) }))),
    ] {
        if let Some(header) = header {
            fields.add(name, header);
        }
    }
    if let Some((header, message)) = frame.cm_message() {
        let transaction_id = header.transaction_id.to_string();
        let attribute = message.attribute_id().name();
        let mad = json!({ "transaction_id": transaction_id, "attribute": attribute, "message": message.to_string() });
        fields.add("mad", mad);
    }
    fields.add("payload_bytes", frame.payload().len());
}

fn hex32(value: u32) -> String {
    format!("{value:#010x}")
}

fn hex64(value: u64) -> String {
    format!("{value:#018x}")
}

/// One line.
impl fmt::Display for Captured<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>6} {:>11.6} ", self.number, self.since_start_ns as f64 / 1e9)?;
        match &self.verdict {
            Verdict::Whole { frame, icrc_ok: true } => write!(f, "{frame}"),
            Verdict::Whole { frame, icrc_ok: false } => {
                write!(f, "{frame} (has {:#010x}, computed {:#010x})", frame.icrc(), icrc::compute(frame))
            }
            Verdict::Cut(frame) => {
                if let Some(frame) = frame {
                    // The zeros have an ICRC verdict too, which means nothing.
                    let line = frame.to_string();
                    write!(f, "{} ", line.rsplit_once(" icrc ").map_or(&*line, |(known, _)| known))?;
                } else {
                    f.write_str("RoCE ")?;
                }
                let (captured, original) = (self.captured_bytes, self.original_bytes);
                write!(f, "icrc not checked: {captured} of {original} bytes captured")
            }
            Verdict::Malformed(error) => write!(f, "malformed RoCE, {} bytes: {error}", self.captured_bytes),
            Verdict::Other(other) => write!(f, "{other}, {} bytes", self.original_bytes),
        }
    }
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arp(arp) if arp.operation == ArpOperation::Request => {
                write!(f, "ARP who has {}? tell {} at {}", arp.target_ip, arp.sender_ip, arp.sender_mac)
            }
            Self::Arp(arp) => write!(f, "ARP {} is at {}", arp.sender_ip, arp.sender_mac),
            Self::EtherType(ether_type) => write!(f, "not RoCE: EtherType {:#06x}", ether_type.0),
            Self::Runt => f.write_str("not RoCE: too short for Ethernet"),
        }
    }
}
