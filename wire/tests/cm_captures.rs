//! The connection manager's messages against captures of a real peer: every MAD decodes as an independent program decoded
//! it, and is encoded again byte for byte.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use pcap_file::pcap::PcapReader;
use wire::cm::{CmMessage, CmTransport, IpCmHeader, RejReason, ServiceId, TransactionId};
use wire::{Frame, PathMtu, Qkey, Qpn};

fn vectors() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors")).to_path_buf()
}

/// Every frame to QP1 of every capture, with the line of its decoding.
fn mads() -> Vec<(String, Vec<u8>)> {
    let mut mads = Vec::new();
    let mut paths: Vec<_> = std::fs::read_dir(vectors()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "pcap"));
    paths.sort();
    for path in paths {
        let text = std::fs::read_to_string(path.with_extension("txt")).unwrap();
        let mut lines = text.lines();
        let mut reader = PcapReader::new(File::open(&path).unwrap()).unwrap();
        while let Some(packet) = reader.next_packet() {
            let bytes = packet.unwrap().data.into_owned();
            let line = lines.next().unwrap();
            if Frame::parse(&bytes).unwrap().bth().dest_qpn == Qpn::GSI {
                mads.push((line.to_owned(), bytes));
            }
        }
    }
    mads
}

/// The message in the words of the independent decoding.
fn words(tid: TransactionId, message: &CmMessage) -> BTreeSet<String> {
    let mut words = vec![message.attribute_id().name().to_owned(), format!("tid={:016x}", tid.0)];
    let local = message.local_comm_id().0;
    match message {
        CmMessage::SidrReq(m) => {
            words.push(format!("request_id={local:x}"));
            words.push(format!("service_id={:016x}", m.service_id.0));
        }
        CmMessage::SidrRep(m) => {
            words.push(format!("request_id={local:x}"));
            words.push(format!("qpn={:x}", m.qpn.value()));
            words.push(format!("service_id={:016x}", m.service_id.0));
        }
        _ => words.push(format!("local_comm_id={local:x}")),
    }
    words.extend(message.remote_comm_id().map(|id| format!("remote_comm_id={:x}", id.0)));
    match message {
        CmMessage::Req(m) => {
            words.push(format!("local_qpn={:x}", m.qpn.value()));
            words.push(format!("start_psn={:x}", m.starting_psn.value()));
            words.push(format!("service_id={:016x}", m.service_id.0));
        }
        CmMessage::Rep(m) => {
            words.push(format!("local_qpn={:x}", m.qpn.value()));
            words.push(format!("start_psn={:x}", m.starting_psn.value()));
        }
        CmMessage::Dreq(m) => words.push(format!("remote_qpn={:x}", m.remote_qpn.value())),
        CmMessage::Rej(m) => words.push(format!("reason={:x}", m.reason.0)),
        _ => {}
    }
    words.into_iter().collect()
}

#[test]
fn captured_mads_agree_with_independent_decoding_and_are_encoded_again() {
    let mads = mads();
    let mut kinds = BTreeMap::new();
    for (line, bytes) in &mads {
        let frame = Frame::parse(bytes).unwrap();
        let (header, message) = CmMessage::parse(frame.payload()).unwrap_or_else(|error| panic!("{line}: {error}"));
        let expected = line.split_once(" MAD ").unwrap().1.split_whitespace().map(str::to_owned).collect();
        assert_eq!(words(header.transaction_id, &message), expected, "{line}");
        assert_eq!(&message.to_mad(header.transaction_id)[..], frame.payload(), "{line}");
        assert_eq!(frame.cm_message(), Some((header, message)));
        assert_eq!(frame.deth().unwrap().qkey, Qkey::GSI);
        *kinds.entry(message.attribute_id().name()).or_insert(0) += 1;
    }
    let expected =
        [("REQ", 23), ("REP", 7), ("RTU", 7), ("REJ", 1), ("DREQ", 7), ("DREP", 7), ("SIDR_REQ", 1), ("SIDR_REP", 1)];
    assert_eq!(kinds, BTreeMap::from(expected));
}

#[test]
fn captured_requests_say_what_linux_is_known_to_ask_for() {
    for (line, bytes) in mads() {
        let frame = Frame::parse(&bytes).unwrap();
        let (private_data, service_id) = match frame.cm_message().unwrap().1 {
            CmMessage::Req(req) => {
                assert_eq!((req.transport, req.path_mtu()), (CmTransport::Rc, Some(PathMtu::M1024)), "{line}");
                assert_eq!((req.local_timeout.exponent(), req.max_cm_retries), (20, 15), "{line}");
                assert_eq!((req.primary.local_gid.ip(), req.primary.remote_gid.ip()), (frame.src_ip(), frame.dst_ip()));
                assert_eq!((req.primary.local_lid, req.primary.ack_timeout), (0xffff, 19), "{line}");
                (req.private_data.to_vec(), req.service_id)
            }
            CmMessage::SidrReq(req) => (req.private_data.to_vec(), req.service_id),
            CmMessage::Rej(rej) => {
                assert_eq!((rej.reason, rej.ari.value()), (RejReason::INVALID_SERVICE_ID, &[][..]));
                continue;
            }
            _ => continue,
        };
        let addresses = IpCmHeader::parse(&private_data).unwrap();
        assert_eq!((addresses.src, addresses.dst), (frame.src_ip(), frame.dst_ip()), "{line}");
        assert_eq!(addresses.to_bytes(), private_data[..36], "{line}");
        let (space, port) = service_id.port().unwrap();
        assert_eq!(ServiceId::from_port(space, port), service_id, "{line}");
        assert!(addresses.src_port > 1024 && port > 1024, "{line}");
    }
}

#[test]
fn captured_mads_are_summed_up_in_the_frames_line() {
    let lines: Vec<_> = mads().iter().map(|(_, bytes)| Frame::parse(bytes).unwrap().to_string()).collect();
    let has = |parts: &[&str]| lines.iter().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(has(&[
        "10.77.0.11 > 10.77.0.10 UD_SEND_ONLY qpn 0x000001",
        "MAD tid 0x00000002c246f791 REQ id 0x91f746c2 TCP port 7174 RC qpn 0x00007c psn 0x895ba4 mtu 1024",
        "payload 256 icrc ok",
    ]));
    assert!(has(&["REP id 0x8761fa90 peer id 0x91f746c2 qpn 0x00007c psn 0x8b8830"]));
    assert!(has(&["REJ id 0x00000000 peer id 0x94f746c2 of REQ reason 8 (invalid service id)"]));
    assert!(has(&["SIDR_REP id 0x83f746c2 UDP port 7174 status 0 (valid) qpn 0x000088 qkey 0x01234567"]));
}
