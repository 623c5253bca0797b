use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::{Opcode, PathFields, PathTemplate, Psn};

// Packets that rxe does not send, built by a program of its own, with zlib's CRC.

/// RC SEND Only of six bytes behind an IPv4 header with a router alert option.
const V4_OPTIONS: &str = "\
    52540000000a52540000000b08004602003800004000401191000a4d000b0a4d000a94040000c12312b7002000000460\
    ffff00000027800a00006f7074696f6e0000af0c16b7";
/// RC WRITE Only of four bytes with a UDP checksum.
const V4_UDP_CHECKSUM: &str = "\
    52540000000a52540000000b08004502004000004000401125fd0a4d000b0a4d000ac12312b7002c50a00a40ffff0000\
    0027800a000100007f001234567800001a9b0000000461626364f75c7d8a";
/// CNP with DSCP 48.
const CNP: &str = "\
    52540000000a52540000000b080045c0003c00004000401125430a4d000b0a4d000ac12312b7002800008140ffff4000\
    00270000000000000000000000000000000000000000dcbca8bd";
/// RoCEv1: multicast UD SEND Only with immediate, of three bytes.
const ROCE_V1: &str = "\
    52540000000a52540000000b89156125432100201b3ffe80000000000000505400fffe00000b00000000000000000000\
    ffff0a4d000a6550ffff00ffffff000000071111111100000099cafe00016162630024b53f25";

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Makes the IPv4 header checksum of an untagged frame right, as far as the frame goes.
fn set_ipv4_checksum(frame: &mut [u8]) {
    let end = frame.len().min(14 + usize::from(frame[14] & 0x0f) * 4);
    frame[24..26].fill(0);
    let checksum = !crate::ipv4::fold(crate::ipv4::sum_words(0, &frame[14..end]));
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
}

/// The frame with the byte at `at` replaced, and the IPv4 header checksum right.
fn with_byte(hex: &str, at: usize, value: u8) -> Vec<u8> {
    let mut frame = bytes(hex);
    frame[at] = value;
    set_ipv4_checksum(&mut frame);
    frame
}

fn error(frame: &[u8]) -> FrameError {
    Frame::parse(frame).expect_err("the frame should be refused")
}

#[test]
fn ipv4_options_are_skipped_and_covered() {
    let frame = bytes(V4_OPTIONS);
    let parsed = Frame::parse(&frame).unwrap();
    assert!(parsed.icrc_ok());
    assert_eq!((parsed.payload(), parsed.pad()), (&b"option"[..], &[0, 0][..]));
    assert_eq!(parsed.ip_header().len(), 24);
    assert_eq!(parsed.udp_src_port(), Some(0xc123));
    assert_eq!(dest_qpn(&frame), Some(Qpn::new(0x27)));
    // A changed option: the header checksum is right again, the ICRC is not.
    assert!(!Frame::parse(&with_byte(V4_OPTIONS, 37, 1)).unwrap().icrc_ok());
}

#[test]
fn udp_checksum_right_is_taken_wrong_is_refused() {
    let mut frame = bytes(V4_UDP_CHECKSUM);
    let parsed = Frame::parse(&frame).unwrap();
    assert!(parsed.icrc_ok());
    assert_eq!(parsed.reth().unwrap().rkey.0, 0x1a9b);
    frame[40] ^= 1;
    assert_eq!(error(&frame), FrameError::BadUdpChecksum);
}

#[test]
fn cnp_parses() {
    let frame = bytes(CNP);
    let parsed = Frame::parse(&frame).unwrap();
    assert!(parsed.icrc_ok());
    assert_eq!(parsed.bth(), Bth { becn: true, ..Bth::new(Opcode::CNP, Qpn::new(0x27), Psn::new(0)) });
    assert_eq!((parsed.payload(), parsed.traffic_class() >> 2, parsed.ecn()), (&[0; 16][..], 48, 0));
    assert_eq!(
        parsed.to_string(),
        "10.77.0.11 > 10.77.0.10 CNP qpn 0x000027 psn 0x000000 becn tclass 0xc0 payload 16 icrc ok"
    );
}

#[test]
fn roce_v1_parses() {
    let frame = bytes(ROCE_V1);
    let parsed = Frame::parse(&frame).unwrap();
    assert!(parsed.is_roce_v1() && parsed.icrc_ok());
    assert_eq!(dest_qpn(&frame), Some(Qpn::MULTICAST));
    assert_eq!(parsed.payload(), b"abc");
    assert_eq!((parsed.traffic_class(), parsed.hop_limit(), parsed.udp_src_port()), (0x12, 63, None));
    assert_eq!(parsed.ipv6().unwrap().flow_label, 0x5_4321);
    assert_eq!(parsed.grh_area(), frame[14..54]);
    assert_eq!(
        parsed.to_string(),
        "fe80::5054:ff:fe00:b > 10.77.0.10 UD_SEND_ONLY_IMM qpn 0xffffff psn 0x000007 rocev1 tclass 0x12 \
         DETH qkey 0x11111111 src_qpn 0x000099 ImmDt 0xcafe0001 payload 3 icrc ok"
    );
    // Every bit that is covered, and those that are not.
    for bit in 14 * 8..frame.len() * 8 {
        let mut flipped = frame.clone();
        flipped[bit / 8] ^= 0x80 >> (bit % 8);
        let is_accepted = Frame::parse(&flipped).is_ok_and(|frame| frame.icrc_ok());
        let is_masked = (14 * 8 + 4..18 * 8).contains(&bit) || bit / 8 == 21 || bit / 8 == 58;
        assert_eq!(is_accepted, is_masked, "bit {bit}");
    }
}

#[test]
fn grh_area_of_ipv4_is_the_header_behind_twenty_zeros() {
    let frame = bytes(V4_OPTIONS);
    let area = Frame::parse(&frame).unwrap().grh_area();
    assert_eq!(area[..20], [0; 20]);
    assert_eq!(area[20..], frame[14..34]);
}

#[test]
fn refused_each_for_its_own_reason() {
    let write = V4_UDP_CHECKSUM;
    // Without a UDP checksum, so that the checks behind it are reached.
    let changed = |at: usize, value: u8| {
        let mut frame = with_byte(write, at, value);
        frame[40..42].fill(0);
        frame
    };
    assert!(Frame::parse(&changed(40, 0)).is_ok());

    assert_eq!(error(&changed(12, 0x86)), FrameError::NotRoce, "EtherType");
    assert_eq!(error(&changed(23, 6)), FrameError::NotRoce, "TCP");
    assert_eq!(error(&changed(36, 0)), FrameError::NotRoce, "port");
    assert_eq!(error(&changed(14, 0x55)), FrameError::BadIpv4Header);
    assert_eq!(error(&changed(14, 0x44)), FrameError::BadIpv4Header);
    assert_eq!(error(&changed(20, 0x20)), FrameError::Fragment, "more fragments");
    assert_eq!(error(&changed(21, 0x08)), FrameError::Fragment, "offset");
    assert_eq!(error(&changed(17, 0x41)), FrameError::Truncated, "total length");
    assert_eq!(error(&changed(39, 0x2b)), FrameError::BadUdpLength(0x2b));
    assert_eq!(error(&changed(42, 0x15)), FrameError::UnknownOpcode(0x15));
    assert_eq!(error(&changed(43, 0x43)), FrameError::BadTver(3));
    assert_eq!(error(&changed(42, 0x11)), FrameError::UnexpectedPayload(0x11));
    let mut checksum = changed(40, 0);
    checksum[25] ^= 1;
    assert_eq!(error(&checksum), FrameError::BadIpChecksum);
}

#[test]
fn refused_pad_and_payload_that_do_not_fit() {
    let template = PathTemplate::new(&PathFields {
        src_mac: MacAddr::ZERO,
        dst_mac: MacAddr::ZERO,
        vlan: None,
        src_ip: [10, 0, 0, 1].into(),
        dst_ip: [10, 0, 0, 2].into(),
        traffic_class: 0,
        hop_limit: 1,
        udp_src_port: 0xc000,
        ipv4_ident: 0,
        flow_label: 0,
        roce_v1: false,
    })
    .unwrap();
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(2), Psn::new(0));
    let mut buf = [0; 128];
    let len = template.write_packet(&mut buf, &bth, &[], 0, |_, crc| crc);
    let frame = &mut buf[..len];
    assert!(Frame::parse(frame).is_ok());
    frame[43] |= 0x20;
    assert_eq!(error(frame), FrameError::PadLongerThanPayload(2));
    frame[43] &= !0x20;
    // The same packet as an acknowledgement has no room for an AETH.
    frame[42] = Opcode::RC_ACK.0;
    assert_eq!(error(frame), FrameError::Truncated);
    // Non-zero pad bytes are accepted, as PROTOCOL says; the ICRC covers them.
    let len = template.write_packet(&mut buf, &bth, &[], 1, |_, crc| icrc::update(crc, &[0]));
    buf[len - 5] = 7;
    let crc = icrc::compute(&Frame::parse(&buf[..len]).unwrap());
    buf[len - 4..len].copy_from_slice(&crc.to_le_bytes());
    let parsed = Frame::parse(&buf[..len]).unwrap();
    assert!(parsed.icrc_ok());
    assert_eq!(parsed.pad(), [0, 0, 7]);
}

#[test]
fn refused_other_networks() {
    let mut grh = bytes(ROCE_V1);
    grh[20] = 17;
    assert_eq!(error(&grh), FrameError::BadGrh);
    assert_eq!(dest_qpn(&grh), None);
    grh[12..14].copy_from_slice(&[0x86, 0xdd]);
    grh[20] = 44;
    assert_eq!(error(&grh), FrameError::Fragment);
    grh[20] = 58;
    assert_eq!(error(&grh), FrameError::NotRoce);
    grh[14] = 0x45;
    assert_eq!(error(&grh), FrameError::BadIpv6Header);
    let arp = [&[0xff; 12][..], &[0x08, 0x06], &[0; 46]].concat();
    assert_eq!(error(&arp), FrameError::NotRoce);
    assert_eq!(dest_qpn(&arp), None);
    // One tag is taken off, not two.
    let double_tag = [&[0; 12][..], &[0x81, 0, 0, 1, 0x81, 0, 0, 2, 0x08, 0], &[0; 60]].concat();
    assert_eq!(error(&double_tag), FrameError::NotRoce);
}

/// Calls every accessor of a frame that parsed.
fn touch(frame: &Frame<'_>) -> usize {
    assert!(frame.payload().len() + frame.pad().len() <= frame.bytes().len());
    assert!(frame.ip_header().len() >= 20);
    let grh = frame.grh_area();
    frame.to_string().len() + usize::from(frame.hop_limit()) + usize::from(grh[0]) + usize::from(frame.icrc_ok())
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _qpn = dest_qpn(&bytes);
        if let Ok(frame) = Frame::parse(&bytes) {
            touch(&frame);
        }
    }

    /// Near-legal frames: a few bytes of a good one changed, then cut or made longer.
    #[test]
    fn changed_frames_never_panic(
        which in 0..4_usize,
        changes in proptest::collection::vec((0..100_usize, any::<u8>()), 0..6),
        fix_checksum: bool,
        len in 0..140_usize,
    ) {
        let mut frame = bytes([V4_OPTIONS, V4_UDP_CHECKSUM, CNP, ROCE_V1][which]);
        for (at, value) in changes {
            let at = at % frame.len();
            frame[at] = value;
        }
        if fix_checksum {
            set_ipv4_checksum(&mut frame);
        }
        frame.resize(len, 0x5a);
        let peeked = dest_qpn(&frame);
        if let Ok(parsed) = Frame::parse(&frame) {
            touch(&parsed);
            prop_assert_eq!(peeked, Some(parsed.bth().dest_qpn));
        }
    }
}
