//! The codec against captures of a real peer: every packet parses, its ICRC is right, it agrees with an independent
//! decoding, it is encoded again byte for byte, and no bit of it can change unnoticed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};

use pcap_file::pcap::PcapReader;
use wire::{
    AethRepr, Bth, EtherType, EthernetRepr, Frame, FrameError, Network, Opcode, PathFields, PathTemplate, Syndrome,
    UdpRepr, VlanRepr, dest_qpn, icrc,
};

fn vectors() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors")).to_path_buf()
}

/// Names of all captures, in order.
fn names() -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(vectors())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert!(names.len() >= 50, "the captures are missing: {names:?}");
    names
}

fn packets(name: &str) -> Vec<Vec<u8>> {
    let file = File::open(vectors().join(name).with_extension("pcap")).unwrap();
    let mut reader = PcapReader::new(file).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet() {
        packets.push(packet.unwrap().data.into_owned());
    }
    packets
}

fn every_packet(mut check: impl FnMut(&str, &[u8])) {
    for name in names() {
        for (index, bytes) in packets(&name).iter().enumerate() {
            check(&format!("{name} packet {}", index + 1), bytes);
        }
    }
}

/// One packet of each opcode, network and tagging: what the tests that take long work on.
fn samples() -> Vec<Vec<u8>> {
    let mut samples = BTreeMap::new();
    every_packet(|_, bytes| {
        let frame = Frame::parse(bytes).unwrap();
        let kind = (frame.bth().opcode, frame.network() as u8, frame.vlan().is_some());
        samples.entry(kind).or_insert_with(|| bytes.to_vec());
    });
    samples.into_values().collect()
}

#[test]
fn captured_packets_parse_with_right_icrc() {
    let mut count = 0;
    every_packet(|at, bytes| {
        let frame = Frame::parse(bytes).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert!(frame.icrc_ok(), "{at}");
        assert_eq!(frame.bytes(), bytes, "{at}: rxe on a tap does not pad");
        assert_eq!(dest_qpn(bytes), Some(frame.bth().dest_qpn), "{at}");
        assert_eq!(frame.network() == Network::Ipv4, frame.src_ip().is_ipv4(), "{at}");
        count += 1;
    });
    assert_eq!(count, 964);
}

/// The frame in the words of the independent decoding, from the source address to the last flag.
fn decoded_words(frame: &Frame<'_>) -> BTreeSet<String> {
    let bth = frame.bth();
    let mut line = format!(
        "{}:{}>{} {} qp={:06x} psn={:06x}",
        frame.src_ip(),
        frame.udp_src_port().unwrap(),
        frame.dst_ip(),
        bth.opcode,
        bth.dest_qpn.value(),
        bth.psn.value()
    );
    let mut add = |word: String| write!(line, " {word}").unwrap();
    if bth.ack_req {
        add("A".into());
    }
    if bth.solicited {
        add("SE".into());
    }
    if let Some(tag) = frame.vlan() {
        add(format!("vlan={}/pcp{}", tag.vid, tag.pcp));
    }
    if let Some(reth) = frame.reth() {
        add(format!("va={:x} rkey={:x} dmalen={}", reth.va, reth.rkey.0, reth.dma_len));
    }
    if let Some(atomic) = frame.atomiceth() {
        add(format!("va={:x} rkey={:x}", atomic.va, atomic.rkey.0));
        add(format!("swapadd={:x} cmp={:x}", atomic.swap_or_add, atomic.compare));
    }
    if let Some(imm) = frame.immdt() {
        add(format!("imm={:08x}", imm.data));
    }
    if let Some(deth) = frame.deth() {
        add(format!("qkey={:x} sqpn={:x}", deth.qkey.0, deth.src_qpn.value()));
    }
    if let Some(aeth) = frame.aeth() {
        add(aeth_words(&aeth));
    }
    if let Some(result) = frame.atomicacketh() {
        add(format!("orig={:x}", result.original));
    }
    add(format!("len={}", frame.payload().len()));
    if !frame.pad().is_empty() {
        add(format!("pad={}({})", frame.pad().len(), "00".repeat(frame.pad().len())));
    }
    if frame.traffic_class() != 0 {
        add(format!("tos={:02x}", frame.traffic_class()));
    }
    line.split(' ').map(str::to_owned).collect()
}

fn aeth_words(aeth: &AethRepr) -> String {
    let verdict = match aeth.syndrome {
        Syndrome::Ack { credits } => format!("ACK credits={credits}"),
        Syndrome::RnrNak { timer } => {
            format!("RNR timer={}({}ms)", timer.code(), timer.duration_ns() as f64 / 1e6)
        }
        Syndrome::Nak(code) => {
            use wire::NakCode::{InvalidRd, InvalidRequest, PsnSequence, RemoteAccess, RemoteOperation};
            let word = match code {
                PsnSequence => "PSN_SEQ_ERR",
                InvalidRequest => "INVALID_REQ",
                RemoteAccess => "REM_ACCESS_ERR",
                RemoteOperation => "REM_OP_ERR",
                InvalidRd => "INVALID_RD",
            };
            format!("NAK {word}")
        }
        Syndrome::Reserved(byte) => format!("RESERVED {byte:02x}"),
    };
    format!("{verdict} msn={} syn={:02x}", aeth.msn.value(), aeth.syndrome.to_byte())
}

#[test]
fn captured_packets_agree_with_independent_decoding() {
    for name in names() {
        let text = std::fs::read_to_string(vectors().join(&name).with_extension("txt")).unwrap();
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let packets = packets(&name);
        assert_eq!(lines.len(), packets.len(), "{name}");
        for (line, bytes) in lines.iter().zip(&packets) {
            // Packet number and time in front; the decoding of a payload, which is not the codec's, behind.
            let headers = line.split(" MAD ").next().unwrap();
            let expected: BTreeSet<_> =
                headers.split_whitespace().skip(2).map(|word| word.trim_matches(['[', ']']).to_owned()).collect();
            assert_eq!(decoded_words(&Frame::parse(bytes).unwrap()), expected, "{name}: {line}");
        }
    }
}

#[test]
fn captured_packet_summaries_name_opcode_psn_and_qpn() {
    every_packet(|at, bytes| {
        let frame = Frame::parse(bytes).unwrap();
        let summary = frame.to_string();
        let bth = frame.bth();
        for part in [
            format!("{} > {} {} ", frame.src_ip(), frame.dst_ip(), bth.opcode),
            format!(" qpn {:#08x} psn {:#08x} ", bth.dest_qpn.value(), bth.psn.value()),
            format!(" payload {} icrc ok", frame.payload().len()),
        ] {
            assert!(summary.contains(&part), "{at}: {summary}");
        }
        assert!(!summary.contains('\n'));
    });
}

/// The extension headers of a frame, decoded and encoded again, in their order.
fn ext_bytes(frame: &Frame<'_>) -> Vec<u8> {
    let mut ext = Vec::new();
    ext.extend(frame.xrceth().iter().flat_map(|header| header.to_bytes()));
    ext.extend(frame.deth().iter().flat_map(|header| header.to_bytes()));
    ext.extend(frame.reth().iter().flat_map(|header| header.to_bytes()));
    ext.extend(frame.atomiceth().iter().flat_map(|header| header.to_bytes()));
    ext.extend(frame.aeth().iter().flat_map(|header| header.to_bytes()));
    ext.extend(frame.atomicacketh().iter().flat_map(|header| header.to_bytes()));
    ext.extend(frame.immdt().iter().flat_map(|header| header.to_bytes()));
    ext.extend(frame.ieth().iter().flat_map(|header| header.to_bytes()));
    ext
}

fn path_fields(frame: &Frame<'_>) -> PathFields {
    PathFields {
        src_mac: frame.src_mac(),
        dst_mac: frame.dst_mac(),
        vlan: frame.vlan(),
        src_ip: frame.src_ip(),
        dst_ip: frame.dst_ip(),
        traffic_class: frame.traffic_class(),
        hop_limit: frame.hop_limit(),
        udp_src_port: frame.udp_src_port().unwrap_or(0),
        ipv4_ident: frame.ipv4().map_or(0, |ip| ip.ident),
        flow_label: frame.ipv6().map_or(0, |ip| ip.flow_label),
        roce_v1: frame.is_roce_v1(),
    }
}

#[test]
fn captured_packets_are_written_again_by_template() {
    every_packet(|at, bytes| {
        let frame = Frame::parse(bytes).unwrap();
        let (ext, data) = (ext_bytes(&frame), frame.payload());
        let template = PathTemplate::new(&path_fields(&frame)).unwrap();
        assert_eq!(template.frame_len(ext.len(), data.len()), bytes.len(), "{at}");

        let mut buf = vec![0xa5; bytes.len() + 16];
        // A pad count in the BTH that is not the right one must not matter.
        let bth = Bth { pad_count: frame.bth().pad_count ^ 3, ..frame.bth() };
        let len = template.write_packet(&mut buf, &bth, &ext, data.len(), |room, crc| {
            room.copy_from_slice(data);
            icrc::update(crc, data)
        });
        assert_eq!(buf[..len], *bytes, "{at}");
        assert!(buf[len..].iter().all(|&byte| byte == 0xa5), "{at}: wrote behind the frame");
    });
}

#[test]
fn captured_packets_are_written_again_header_by_header() {
    every_packet(|at, bytes| {
        let frame = Frame::parse(bytes).unwrap();
        let mut buf = vec![0; bytes.len()];
        let network_type = if frame.network() == Network::Ipv4 { EtherType::IPV4 } else { EtherType::IPV6 };
        let link_type = if frame.vlan().is_some() { EtherType::VLAN } else { network_type };
        let mut rest =
            EthernetRepr { dst: frame.dst_mac(), src: frame.src_mac(), ether_type: link_type }.emit(&mut buf).unwrap();
        if let Some(tag) = frame.vlan() {
            rest = VlanRepr { tag, ether_type: network_type }.emit(rest).unwrap();
        }
        rest = match (frame.ipv4(), frame.ipv6()) {
            (Some(ip), None) => ip.emit(rest).unwrap(),
            (None, Some(ip)) => ip.emit(rest).unwrap(),
            other => panic!("{at}: {other:?}"),
        };
        let udp = UdpRepr {
            src_port: frame.udp_src_port().unwrap(),
            dst_port: wire::ROCE_PORT,
            length: u16::try_from(rest.len()).unwrap(),
            checksum: 0,
        };
        rest = udp.emit(rest).unwrap();
        rest = frame.bth().emit(rest).unwrap();
        let tail = [&ext_bytes(&frame), frame.payload(), frame.pad(), &icrc::compute(&frame).to_le_bytes()].concat();
        rest.copy_from_slice(&tail);
        assert_eq!(buf, bytes, "{at}");
    });
}

/// Whether switches may change the byte at `at` of the frame, so that the ICRC does not cover it, nor another check.
fn is_uncovered(frame: &Frame<'_>, at: usize) -> bool {
    let network_at = if frame.vlan().is_some() { 18 } else { 14 };
    let (network_len, tag) = (frame.ip_header().len(), 14..16);
    let congestion = network_at + network_len + 8 + Bth::CONGESTION_OFFSET;
    at < 12 || (frame.vlan().is_some() && tag.contains(&at)) || at == congestion
}

#[test]
fn captured_packets_every_flipped_bit_is_noticed() {
    let samples = samples();
    assert!(samples.len() >= 40, "{} samples", samples.len());
    for original in samples {
        let frame = Frame::parse(&original).unwrap();
        let network_at = if frame.vlan().is_some() { 18 } else { 14 };
        for bit in 0..original.len() * 8 {
            let (at, mask) = (bit / 8, 0x80_u8 >> (bit % 8));
            let mut bytes = original.clone();
            bytes[at] ^= mask;
            let is_accepted = Frame::parse(&bytes).is_ok_and(|frame| frame.icrc_ok());
            // IPv4's own checksum notices a flip in the fields that the ICRC leaves out; IPv6 has none.
            let is_ipv6_flow = frame.network() == Network::Ipv6
                && ((bit >= network_at * 8 + 4 && at < network_at + 4) || at == network_at + 7);
            let expected = is_uncovered(&frame, at) || is_ipv6_flow;
            assert_eq!(is_accepted, expected, "{frame}: byte {at} mask {mask:#04x}");
        }
    }
}

#[test]
fn captured_packets_survive_what_routers_change() {
    for original in samples() {
        let frame = Frame::parse(&original).unwrap();
        let mut bytes = original.clone();
        let network_at = if frame.vlan().is_some() { 18 } else { 14 };
        match (frame.ipv4(), frame.ipv6()) {
            (Some(mut ip), _) => {
                ip.traffic_class = 0x6b;
                ip.hop_limit -= 3;
                let _rest = ip.emit(&mut bytes[network_at..]).unwrap();
            }
            (None, Some(mut ip)) => {
                ip.traffic_class = 0x6b;
                ip.flow_label = 0xf_1234;
                ip.hop_limit -= 3;
                let _rest = ip.emit(&mut bytes[network_at..]).unwrap();
            }
            (None, None) => unreachable!("a RoCEv2 frame has an IP header"),
        }
        let routed = Frame::parse(&bytes).unwrap();
        assert!(routed.icrc_ok(), "{routed}");
        assert_eq!((routed.ecn(), routed.hop_limit()), (3, frame.hop_limit() - 3));
    }
}

#[test]
fn captured_packets_cut_short_are_refused() {
    for original in samples() {
        for len in 0..original.len() {
            assert_eq!(
                Frame::parse(&original[..len]).unwrap_err(),
                FrameError::Truncated,
                "{len} of {}",
                original.len()
            );
        }
    }
}

#[test]
fn captured_packets_with_ethernet_padding_parse_the_same() {
    for original in samples() {
        let padded = [&original[..], &[0xee; 23]].concat();
        assert_eq!(Frame::parse(&padded).unwrap().bytes(), original);
    }
}

#[test]
fn captured_packets_cover_what_rxe_sends() {
    let opcodes: BTreeSet<_> = samples().iter().map(|bytes| Frame::parse(bytes).unwrap().bth().opcode).collect();
    for opcode in [Opcode::RC_SEND_LAST_IMM, Opcode::RC_ATOMIC_ACK, Opcode::UC_WRITE_ONLY_IMM, Opcode::UD_SEND_ONLY_IMM]
    {
        assert!(opcodes.contains(&opcode), "{opcode}");
    }
    assert_eq!(opcodes.len(), 35);
}
