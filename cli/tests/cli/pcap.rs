//! `ferroce pcap` on captures of a real peer, and on what can be wrong with a file.

use std::borrow::Cow;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pcap_file::pcap::{PcapHeader, PcapReader, PcapWriter, RawPcapPacket};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::blocks::packet::PacketBlock;
use pcap_file::{DataLink, Endianness};
use serde_json::Value;
use tempfile::TempDir;
use wire::{AethRepr, Bth, MacAddr, Msn, Opcode, PathFields, PathTemplate, Psn, Qpn, SackEthRepr, Syndrome};

use crate::{Run, ferroce};

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors");

fn vector(name: &str) -> PathBuf {
    Path::new(VECTORS).join(name)
}

fn decode(args: &[&str], file: &Path) -> Run {
    ferroce([Path::new("pcap")].into_iter().chain(args.iter().map(Path::new)).chain([file]))
}

/// Raw records of a capture.
fn records(file: &Path) -> (PcapHeader, Vec<RawPcapPacket<'static>>) {
    let mut reader = PcapReader::new(File::open(file).expect("a capture")).expect("a pcap");
    let mut records = Vec::new();
    while let Some(record) = reader.next_raw_packet() {
        records.push(record.expect("a whole record").into_owned());
    }
    (reader.header(), records)
}

/// A directory with one capture in it.
struct Made {
    directory: TempDir,
}

impl Made {
    fn new(bytes: &[u8]) -> Self {
        let made = Self { directory: tempfile::tempdir().expect("a directory") };
        fs::write(made.path(), bytes).expect("a file");
        made
    }

    fn pcap(header: PcapHeader, records: &[RawPcapPacket<'_>]) -> Self {
        let mut writer = PcapWriter::with_header(Vec::new(), header).expect("a header");
        for record in records {
            writer.write_raw_packet(record).expect("a record");
        }
        Self::new(&writer.into_writer())
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("made.pcap")
    }
}

/// A capture of a vector's packets after `change`.
fn changed(name: &str, change: impl FnOnce(&mut Vec<RawPcapPacket<'static>>)) -> Made {
    let (header, mut records) = records(&vector(name));
    change(&mut records);
    Made::pcap(header, &records)
}

/// `key=value` of a line of the decoding that came with a capture, hexadecimal.
fn known(line: &str, key: &str) -> u64 {
    let value = line.split(key).nth(1).and_then(|rest| rest.split_whitespace().next());
    value.and_then(|value| u64::from_str_radix(value, 16).ok()).unwrap_or_else(|| panic!("{key} in {line}"))
}

#[test]
fn every_capture_agrees_with_its_independent_decoding() {
    let mut captures = 0;
    for entry in fs::read_dir(VECTORS).expect("the captures") {
        let file = entry.expect("an entry").path();
        if file.extension().is_none_or(|extension| extension != "pcap") {
            continue;
        }
        captures += 1;
        let expected = fs::read_to_string(file.with_extension("txt")).expect("the decoding");
        let expected: Vec<&str> = expected.lines().collect();
        let run = decode(&["--json"], &file);
        assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{}", file.display());
        let mut packets = run.json_lines();
        let summary = packets.pop().expect("a summary");
        assert_eq!(summary["summary"]["icrc_ok"], expected.len(), "{}", file.display());
        assert_eq!(packets.len(), expected.len(), "{}", file.display());
        for (packet, line) in packets.iter().zip(expected) {
            let mut words = line.split_whitespace();
            assert_eq!(packet["number"].to_string(), words.next().unwrap_or_default(), "{line}");
            let time: f64 = words.next().and_then(|word| word.parse().ok()).expect("a time");
            assert!((packet["time_s"].as_f64().expect("a time") - time).abs() < 2e-6, "{line}: {packet}");
            assert_eq!(packet["opcode"], words.nth(1).unwrap_or_default(), "{line}");
            assert_eq!(packet["dest_qpn"], known(line, "qp="), "{line}");
            assert_eq!(packet["psn"], known(line, "psn="), "{line}");
            let attribute = line.split_once(" MAD ").and_then(|(_, mad)| mad.split(' ').next());
            assert_eq!(packet["mad"]["attribute"].as_str(), attribute, "{line}");
            if let Some(reth) = packet.get("reth") {
                let va = format!("{:#018x}", known(line, "va="));
                assert_eq!(
                    *reth,
                    serde_json::json!({ "va": va, "rkey": format!("{:#010x}", known(line, "rkey=")), "dma_len": reth["dma_len"] })
                );
            }
        }
    }
    assert!(captures >= 50, "only {captures} captures in {VECTORS}");
}

#[test]
fn text_is_a_line_a_packet_and_a_summary() {
    for name in ["rc_write_imm", "rc_atomic", "ud_ipv6", "rc_vlan", "cm_loss_drep", "cm_udaddy"] {
        let run = decode(&[], &vector(&format!("{name}.pcap")));
        assert_eq!(run.status, 0);
        insta::assert_snapshot!(format!("pcap_{name}"), run.stdout);
    }
}

#[test]
fn limit_shortens_the_list_and_not_the_verdict() {
    let capture = changed("rc_write_multi.pcap", |records| records[6].data.to_mut()[60] ^= 1);
    let run = decode(&["--limit", "2"], &capture.path());
    assert_eq!(run.status, 1);
    insta::assert_snapshot!("pcap_limit", run.stdout);
}

#[test]
fn wrong_icrc_exits_1_and_names_the_packets() {
    let capture = changed("rc_write_multi.pcap", |records| {
        for index in [1, 8] {
            *records[index].data.to_mut().last_mut().expect("an ICRC") ^= 0x80;
        }
    });
    let run = decode(&[], &capture.path());
    assert_eq!(run.status, 1);
    assert!(run.stdout.contains("\nICRC wrong: packet 2, 9\n"), "{}", run.stdout);
    let marked: Vec<&str> = run.stdout.lines().filter(|line| line.contains(" icrc bad (has 0x")).collect();
    assert_eq!(marked.len(), 2, "{}", run.stdout);

    let run = decode(&["--json"], &capture.path());
    assert_eq!(run.status, 1);
    let lines = run.json_lines();
    assert_eq!(lines[1]["verdict"], "bad_icrc");
    assert_ne!(lines[1]["icrc"], lines[1]["icrc_computed"]);
    assert_eq!(lines[14]["summary"]["icrc_bad"], serde_json::json!({ "count": 2, "first": [2, 9] }));
}

#[test]
fn many_wrong_icrcs_are_not_all_named() {
    let capture = changed("rc_write_long.pcap", |records| {
        for record in records.iter_mut() {
            *record.data.to_mut().last_mut().expect("an ICRC") ^= 1;
        }
    });
    let run = decode(&["-n0"], &capture.path());
    assert_eq!(run.status, 1);
    let names = "ICRC wrong: packet 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, ...\n";
    assert!(run.stdout.ends_with(names), "{}", run.stdout);
}

#[test]
fn malformed_roce_exits_1_and_says_why() {
    // An unassigned opcode; a transport header version; an IP packet longer than its frame.
    let capture = changed("rc_send_small.pcap", |records| {
        records[0].data.to_mut()[42] = 0x1f;
        records[1].data.to_mut()[43] |= 3;
        let record = &mut records[2];
        record.data.to_mut().truncate(50);
        (record.incl_len, record.orig_len) = (50, 50);
    });
    let run = decode(&["-n3"], &capture.path());
    assert_eq!(run.status, 1);
    insta::assert_snapshot!("pcap_malformed", run.stdout);
    assert_eq!(decode(&["--json"], &capture.path()).json_lines()[1]["verdict"], "malformed");
}

#[test]
fn cut_packets_are_not_called_wrong() {
    // The whole headers; the BTH, but not the RETH behind it; not even the BTH's QPN.
    let capture = changed("rc_write_multi.pcap", |records| {
        for (record, bytes) in records.iter_mut().zip([70, 60, 45]) {
            record.data.to_mut().truncate(bytes);
            record.incl_len = bytes.try_into().expect("a small number");
        }
        records.truncate(4);
    });
    let run = decode(&[], &capture.path());
    assert_eq!((run.status, run.stderr.as_str()), (0, ""));
    insta::assert_snapshot!("pcap_cut", run.stdout);
    let lines = decode(&["--json"], &capture.path()).json_lines();
    assert_eq!((&lines[0]["verdict"], &lines[0]["reth"]["dma_len"]), (&Value::from("cut"), &Value::from(1025)));
}

#[test]
fn original_length_beyond_any_frame_takes_no_memory() {
    let capture = changed("rc_send_small.pcap", |records| {
        records.truncate(1);
        records[0].orig_len = u32::MAX;
        records[0].incl_len = 57;
        records[0].data.to_mut().truncate(57);
    });
    let run = decode(&[], &capture.path());
    assert_eq!(run.status, 0);
    assert!(run.stdout.contains("of 4294967295 bytes captured"), "{}", run.stdout);
}

#[test]
fn packet_whose_padding_alone_was_cut_is_checked() {
    let capture = changed("rc_send_small.pcap", |records| {
        records.truncate(1);
        records[0].orig_len += 2;
    });
    let run = decode(&[], &capture.path());
    assert!(run.stdout.contains("1 ICRC right"), "{}", run.stdout);
}

fn frame(ether_type: u16, payload: &[u8]) -> RawPcapPacket<'static> {
    let mut data = vec![0xff; 6];
    data.extend_from_slice(&[2, 0, 0, 0, 0, 1]);
    data.extend_from_slice(&ether_type.to_be_bytes());
    data.extend_from_slice(payload);
    let length = data.len().try_into().expect("a short frame");
    RawPcapPacket { ts_sec: 1, ts_frac: 0, incl_len: length, orig_len: length, data: Cow::Owned(data) }
}

#[test]
fn frames_that_are_not_roce_are_counted_and_with_all_shown() {
    let arp = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 77, 0, 10, 0, 0, 0, 0, 0, 0, 10, 77, 0, 11];
    let mut answer = arp;
    answer[7] = 2;
    let mut runt = frame(0, &[]);
    runt.data.to_mut().truncate(9);
    (runt.incl_len, runt.orig_len) = (9, 9);
    let frames =
        [frame(0x0806, &arp), frame(0x0806, &answer), frame(0x88cc, &[0; 46]), frame(0x0800, &[0x45; 30]), runt];
    let capture = Made::pcap(PcapHeader::default(), &frames);
    let run = decode(&[], &capture.path());
    assert_eq!(run.status, 0);
    let line = "5 packets, 0 RoCE: 0 ICRC right, 0 ICRC wrong, 0 malformed, 0 cut short by the capture; 5 other\n";
    assert_eq!(run.stdout, line);
    insta::assert_snapshot!("pcap_all", decode(&["--all"], &capture.path()).stdout);
}

#[test]
fn selective_acknowledgement_says_what_is_missing_and_what_came() {
    let fields = PathFields {
        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        src_ip: [10, 0, 0, 1].into(),
        dst_ip: [10, 0, 0, 2].into(),
        traffic_class: 0,
        hop_limit: 64,
        udp_src_port: 0xc000,
        ipv4_ident: 0,
        flow_label: 0,
        roce_v1: false,
    };
    let template = PathTemplate::new(&fields).expect("addresses of one family");
    let aeth = AethRepr { syndrome: Syndrome::from_byte(0x1f), msn: Msn::new(7) }.to_bytes();
    let ext = [&aeth[..], &SackEthRepr { words: [0b10_1111, 0, 0, 0] }.to_bytes()].concat();
    let mut bytes = vec![0; template.frame_len(ext.len(), 0)];
    let bth = Bth::new(Opcode::SELECTIVE_ACK, Qpn::new(0x27), Psn::new(0x00ff_ffff));
    template.write_packet(&mut bytes, &bth, &ext, 0, |_, crc| crc);
    let (header, mut made) = records(&vector("rc_send_small.pcap"));
    made[0].orig_len = bytes.len() as u32;
    made[0].incl_len = bytes.len() as u32;
    made[0].data = Cow::Owned(bytes);
    made.truncate(1);
    let made = Made::pcap(header, &made);
    let run = decode(&[], &made.path());
    assert_eq!(run.status, 0, "{}", run.stderr);
    let line = "SELECTIVE_ACK qpn 0x000027 psn 0xffffff AETH ACK msn 0x000007 SACKETH missing 0x000000 has +1..4 +6 payload 0 icrc ok";
    assert!(run.stdout.contains(line), "{}", run.stdout);
    let run = decode(&["--json"], &made.path());
    let packet = &run.json_lines()[0];
    assert_eq!(packet["sacketh"]["missing_psn"], 0);
    assert_eq!(packet["sacketh"]["received"], "+1..4 +6");
    assert_eq!(packet["sacketh"]["received_count"], 5);
}

#[test]
fn pcapng_gives_what_pcap_gives() {
    let name = vector("rc_read_multi.pcap");
    let (_, records) = records(&name);
    for (resolution, ticks_per_s) in [(None, 1_000_000), (Some(9), 1_000_000_000_u64)] {
        let mut writer = PcapNgWriter::with_endianness(Vec::new(), Endianness::Little).expect("a section");
        let options = resolution.map(InterfaceDescriptionOption::IfTsResol).into_iter().collect();
        let interface = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options };
        writer.write_pcapng_block(interface).expect("an interface");
        for record in &records {
            let ticks = u64::from(record.ts_sec) * ticks_per_s + u64::from(record.ts_frac) * (ticks_per_s / 1_000_000);
            let block = EnhancedPacketBlock {
                interface_id: 0,
                // The writer, too, takes ticks for nanoseconds.
                timestamp: std::time::Duration::from_nanos(ticks),
                original_len: record.orig_len,
                data: Cow::Borrowed(&record.data),
                options: Vec::new(),
            };
            writer.write_pcapng_block(block).expect("a packet");
        }
        let capture = Made::new(&writer.into_inner());
        for args in [&[][..], &["--json"]] {
            let (run, same) = (decode(args, &capture.path()), decode(args, &name));
            assert_eq!((run.status, run.stdout), (0, same.stdout), "{resolution:?}");
        }
    }
}

#[test]
fn pcapng_obsolete_packet_blocks_have_the_right_time_in_either_byte_order() {
    let name = vector("rc_atomic.pcap");
    let (_, records) = records(&name);
    for endianness in [Endianness::Little, Endianness::Big] {
        let mut writer = PcapNgWriter::with_endianness(Vec::new(), endianness).expect("a section");
        writer.write_pcapng_block(InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0)).expect("an interface");
        for record in &records {
            let ticks = u64::from(record.ts_sec) * 1_000_000 + u64::from(record.ts_frac);
            let block = PacketBlock {
                interface_id: 0,
                drop_count: 0,
                // The writer puts one number where the format has two words, the upper one first.
                timestamp: if endianness.is_little() { ticks.rotate_left(32) } else { ticks },
                captured_len: record.incl_len,
                original_len: record.orig_len,
                data: Cow::Borrowed(&record.data),
                options: Vec::new(),
            };
            writer.write_pcapng_block(block).expect("a packet");
        }
        let capture = Made::new(&writer.into_inner());
        let (run, same) = (decode(&["--json"], &capture.path()), decode(&["--json"], &name));
        assert_eq!((run.status, run.stdout), (0, same.stdout), "{endianness:?}");
    }
}

#[test]
fn standard_input_is_a_file_too() {
    let file = vector("rc_atomic.pcap");
    let output = Command::new(env!("CARGO_BIN_EXE_ferroce"))
        .args(["pcap", "-"])
        .stdin(Stdio::from(File::open(&file).expect("a capture")))
        .output()
        .expect("the tool starts");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stdout).expect("UTF-8"), decode(&[], &file).stdout);
}

#[test]
fn reader_that_leaves_early_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ferroce"))
        .arg("pcap")
        .arg(vector("rc_write_long.pcap"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the tool starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the tool ends");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn files_that_are_no_capture_exit_2_with_a_sentence() {
    for (bytes, reason) in [
        (&b"#!/bin/sh\n"[..], "is no capture: it starts with 23 21 2f 62"),
        (b"", "is no capture: it starts with nothing"),
        (b"\xd4\xc3\xb2\xa1\x02\x00", "ends in the middle of a record, after packet 0"),
        (b"\x0a\x0d\x0d\x0a\x1c\x00\x00\x00AAAAAAAAAAAAAAAAAAAA", "is damaged after packet 0"),
    ] {
        let file = Made::new(bytes);
        let run = decode(&[], &file.path());
        assert_eq!(run.status, 2, "{reason}");
        assert_eq!(run.stdout, "", "{reason}");
        assert!(run.stderr.contains(reason) && run.stderr.contains("made.pcap"), "{}", run.stderr);
    }
    let run = decode(&[], Path::new("no/such/file.pcap"));
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("can't read no/such/file.pcap: No such file or directory"), "{}", run.stderr);
}

#[test]
fn other_link_types_are_refused_by_name() {
    let header = PcapHeader { datalink: DataLink::LINUX_SLL2, ..PcapHeader::default() };
    let capture = Made::pcap(header, &[]);
    let run = decode(&[], &capture.path());
    assert_eq!((run.status, run.stdout.as_str()), (2, ""));
    assert!(run.stderr.contains("link type 276 (LINUX_SLL2); only Ethernet (1)"), "{}", run.stderr);
}

#[test]
fn capture_that_ends_early_is_decoded_up_to_there() {
    let bytes = fs::read(vector("rc_atomic.pcap")).expect("a capture");
    let capture = Made::new(&bytes[..bytes.len() - 5]);
    let run = decode(&["-n1"], &capture.path());
    assert_eq!(run.status, 2);
    assert!(run.stdout.contains("11 packets, 11 RoCE: 11 ICRC right"), "{}", run.stdout);
    assert!(run.stderr.contains("ends in the middle of a record, after packet 11"), "{}", run.stderr);
}
