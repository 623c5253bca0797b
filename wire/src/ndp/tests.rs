use proptest::prelude::*;

use super::*;

/// `fd77::11` (52:54:00:00:00:0b) looks for `fd77::10`; checksum by another program.
const SOLICITATION: [u8; 72] = [
    0x60, 0x00, 0x00, 0x00, 0x00, 0x20, 0x3a, 0xff, 0xfd, 0x77, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x11, 0xff, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0xff, 0x00,
    0x00, 0x10, 0x87, 0x00, 0x2c, 0x1f, 0x00, 0x00, 0x00, 0x00, 0xfd, 0x77, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x10, 0x01, 0x01, 0x52, 0x54, 0x00, 0x00, 0x00, 0x0b,
];
/// The answer.
const ADVERTISEMENT: [u8; 72] = [
    0x60, 0x00, 0x00, 0x00, 0x00, 0x20, 0x3a, 0xff, 0xfd, 0x77, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x10, 0xfd, 0x77, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x11, 0x88, 0x00, 0xca, 0xac, 0x60, 0x00, 0x00, 0x00, 0xfd, 0x77, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x10, 0x02, 0x01, 0x52, 0x54, 0x00, 0x00, 0x00, 0x0a,
];

fn host(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, last)
}

fn solicitation() -> NdpRepr {
    NdpRepr {
        src: host(0x11),
        dst: solicited_node(host(0x10)),
        message: NdpMessage::Solicitation,
        target: host(0x10),
        link_layer: Some(MacAddr([0x52, 0x54, 0, 0, 0, 0x0b])),
    }
}

fn advertisement() -> NdpRepr {
    NdpRepr {
        src: host(0x10),
        dst: host(0x11),
        message: NdpMessage::Advertisement { router: false, solicited: true, override_known: true },
        target: host(0x10),
        link_layer: Some(MacAddr([0x52, 0x54, 0, 0, 0, 0x0a])),
    }
}

/// What `emit` writes.
fn packet(repr: NdpRepr) -> std::vec::Vec<u8> {
    let mut buf = [0xee; NdpRepr::LEN_MAX];
    assert!(repr.emit(&mut buf).unwrap().iter().all(|&byte| byte == 0xee), "wrote behind the packet");
    buf[..repr.packet_len()].to_vec()
}

/// Makes the checksum right, for as long a message as the header says.
fn seal(packet: &mut [u8]) {
    packet[42..44].fill(0);
    let ip = Ipv6Repr::parse(packet).unwrap();
    let message = &packet[Ipv6Repr::LEN..][..usize::from(ip.payload_length)];
    let checksum = !fold(transport_sum(IpAddr::V6(ip.src), IpAddr::V6(ip.dst), NEXT_HEADER_ICMPV6, message));
    packet[42..44].copy_from_slice(&checksum.to_be_bytes());
}

#[test]
fn ndp_both_messages_decode_and_encode() {
    for (bytes, repr) in [(SOLICITATION, solicitation()), (ADVERTISEMENT, advertisement())] {
        assert_eq!(NdpRepr::parse(&bytes), Some(repr));
        assert_eq!(packet(repr), bytes);
        // Ethernet may have padded the frame.
        assert_eq!(NdpRepr::parse(&[&bytes[..], &[0xa5; 9]].concat()), Some(repr));
        assert_eq!(repr.emit(&mut [0; 71]), None);
    }
}

#[test]
fn ndp_every_flipped_bit_and_every_cut_is_refused() {
    for bytes in [SOLICITATION, ADVERTISEMENT] {
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 0x80 >> (bit % 8);
            // Traffic class and flow label are covered by nothing.
            let is_flow = (4..32).contains(&bit);
            assert_eq!(NdpRepr::parse(&changed).is_some(), is_flow, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(NdpRepr::parse(&bytes[..len]), None, "{len}");
        }
    }
}

#[test]
fn ndp_with_another_hop_limit_is_refused() {
    let mut bytes = SOLICITATION;
    // The hop limit is not in the checksum.
    bytes[7] = 254;
    assert_eq!(NdpRepr::parse(&bytes), None);
}

#[test]
fn ndp_what_rfc_4861_calls_invalid_is_refused() {
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let probe = NdpRepr { src: Ipv6Addr::UNSPECIFIED, link_layer: None, ..solicitation() };
    assert_eq!(NdpRepr::parse(&packet(probe)), Some(probe), "duplicate address detection");
    let unasked = NdpRepr {
        dst: all_nodes,
        message: NdpMessage::Advertisement { router: true, solicited: false, override_known: false },
        ..advertisement()
    };
    assert_eq!(NdpRepr::parse(&packet(unasked)), Some(unasked));
    for invalid in [
        NdpRepr { link_layer: solicitation().link_layer, ..probe },
        NdpRepr { dst: host(0x10), ..probe },
        NdpRepr { target: all_nodes, ..solicitation() },
        NdpRepr { src: all_nodes, ..solicitation() },
        NdpRepr { dst: all_nodes, ..advertisement() },
    ] {
        assert_eq!(NdpRepr::parse(&packet(invalid)), None, "{invalid:?}");
    }
    // A router solicitation, and a code other than 0.
    for (at, value) in [(40, 133), (41, 1)] {
        let mut bytes = SOLICITATION;
        bytes[at] = value;
        seal(&mut bytes);
        assert_eq!(NdpRepr::parse(&bytes), None, "byte {at}");
    }
}

#[test]
fn ndp_options_are_skipped_or_refused() {
    let with_options = |options: &[u8]| {
        let mut bytes = [&SOLICITATION[..64], options].concat();
        bytes[5] = u8::try_from(24 + options.len()).unwrap();
        seal(&mut bytes);
        NdpRepr::parse(&bytes).map(|repr| repr.link_layer)
    };
    let known = [1, 1, 0x52, 0x54, 0, 0, 0, 0x0b];
    let mac = solicitation().link_layer;
    assert_eq!(with_options(&[]), Some(None));
    // A nonce (RFC 3971) in front; the other message's option; a second MAC.
    assert_eq!(with_options(&[&[14, 1, 1, 2, 3, 4, 5, 6][..], &known].concat()), Some(mac));
    assert_eq!(with_options(&[2, 1, 9, 9, 9, 9, 9, 9]), Some(None));
    assert_eq!(with_options(&[&known[..], &[1, 1, 9, 9, 9, 9, 9, 9]].concat()), Some(mac));
    // An InfiniBand address of two units is no MAC.
    assert_eq!(with_options(&[1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Some(None));
    for bad in [&[1, 0, 1, 2, 3, 4, 5, 6][..], &[1, 2, 1, 2, 3, 4, 5, 6], &[1], &[1, 1, 1, 2], &[0; 16]] {
        assert_eq!(with_options(bad), None, "{bad:?}");
    }
}

proptest! {
    #[test]
    fn ndp_hostile_bytes_do_not_panic(tail in prop::collection::vec(any::<u8>(), 0..80), kind in 133..138_u8) {
        let _ = NdpRepr::parse(&tail);
        let mut bytes = [&SOLICITATION[..64], &tail].concat();
        bytes[5] = u8::try_from(24 + tail.len()).unwrap();
        bytes[40] = kind;
        seal(&mut bytes);
        if let Some(repr) = NdpRepr::parse(&bytes) {
            prop_assert_eq!(NdpRepr::parse(&packet(repr)), Some(repr));
        }
    }
}
