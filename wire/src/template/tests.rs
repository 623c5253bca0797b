use core::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

use super::*;
use crate::{Frame, Opcode, Psn, Qpn};

fn ipv4_fields() -> PathFields {
    PathFields {
        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        src_ip: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 10)),
        dst_ip: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 11)),
        traffic_class: 2,
        hop_limit: 64,
        udp_src_port: 0xc123,
        ipv4_ident: 0,
        flow_label: 0,
        roce_v1: false,
    }
}

fn bth() -> Bth {
    Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x27), Psn::new(0xa_0000))
}

/// Writes a packet with `data` as payload and returns the frame.
fn write(fields: &PathFields, bth: &Bth, ext: &[u8], data: &[u8]) -> Vec<u8> {
    let template = PathTemplate::new(fields).unwrap();
    let mut buf = vec![0xa5; template.frame_len(ext.len(), data.len())];
    let len = template.write_packet(&mut buf, bth, ext, data.len(), |room, crc| {
        room.copy_from_slice(data);
        icrc::update(crc, data)
    });
    assert_eq!(len, buf.len());
    buf
}

fn any_fields() -> impl Strategy<Value = PathFields> {
    let link = (any::<[u8; 6]>(), any::<[u8; 6]>(), proptest::option::of(any::<u16>()));
    let network = (0..4_u8, any::<[u8; 16]>(), any::<[u8; 16]>(), any::<u8>(), any::<u8>(), 0..0x10_0000_u32);
    let rest = (any::<u16>(), any::<u16>());
    (link, network, rest).prop_map(
        |((src_mac, dst_mac, tci), (kind, src, dst, traffic_class, hop_limit, flow_label), rest)| {
            let address = |octets: [u8; 16]| match kind {
                0 | 1 => IpAddr::V4(Ipv4Addr::from(octets.array::<0, 4>())),
                _ => IpAddr::V6(Ipv6Addr::from(octets)),
            };
            PathFields {
                src_mac: MacAddr(src_mac),
                dst_mac: MacAddr(dst_mac),
                vlan: tci.map(VlanTag::from_tci),
                src_ip: address(src),
                dst_ip: address(dst),
                traffic_class,
                hop_limit,
                udp_src_port: rest.0,
                ipv4_ident: rest.1,
                flow_label,
                roce_v1: kind % 2 == 1,
            }
        },
    )
}

proptest! {
    #[test]
    fn template_frame_parses_to_what_went_in(
        fields in any_fields(),
        data in proptest::collection::vec(any::<u8>(), 0..300),
        solicited: bool,
        becn: bool,
        psn: u32,
    ) {
        let header = Bth { solicited, becn, psn: Psn::new(psn), ..bth() };
        let bytes = write(&fields, &header, &[], &data);
        let frame = Frame::parse(&bytes).unwrap();
        prop_assert!(frame.icrc_ok());
        prop_assert_eq!(frame.payload(), &data[..]);
        prop_assert!(frame.pad().iter().all(|&byte| byte == 0) && (frame.pad().len() + data.len()).is_multiple_of(4));
        prop_assert_eq!(frame.bth(), Bth { pad_count: frame.bth().pad_count, ..header });
        prop_assert_eq!((frame.src_mac(), frame.dst_mac(), frame.vlan()), (fields.src_mac, fields.dst_mac, fields.vlan));
        prop_assert_eq!((frame.src_ip(), frame.dst_ip()), (fields.src_ip, fields.dst_ip));
        prop_assert_eq!((frame.traffic_class(), frame.hop_limit()), (fields.traffic_class, fields.hop_limit));
        prop_assert_eq!(frame.is_roce_v1(), fields.roce_v1);
        match frame.network() {
            Network::Ipv4 => {
                let ip = frame.ipv4().unwrap();
                prop_assert!(ip.dont_fragment && ip.ident == fields.ipv4_ident);
                prop_assert_eq!(frame.udp_src_port(), Some(fields.udp_src_port));
            }
            Network::Ipv6 => prop_assert_eq!(frame.udp_src_port(), Some(fields.udp_src_port)),
            Network::Grh => prop_assert_eq!(frame.udp_src_port(), None),
        }
        if let Some(ip) = frame.ipv6() {
            prop_assert_eq!(ip.flow_label, fields.flow_label);
        }
    }
}

#[test]
fn template_of_two_families_is_refused() {
    let mixed = PathFields { dst_ip: IpAddr::V6(Ipv6Addr::LOCALHOST), ..ipv4_fields() };
    assert_eq!(PathTemplate::new(&mixed), None);
    assert!(PathTemplate::new(&PathFields { roce_v1: true, ..mixed }).is_some());
}

#[test]
fn template_buffer_too_short_calls_nothing() {
    let template = PathTemplate::new(&ipv4_fields()).unwrap();
    let frame_len = template.frame_len(16, 1024);
    assert_eq!(frame_len, 14 + 20 + 8 + 12 + 16 + 1024 + 4);
    for len in [0, 13, 14, 41, 42, 53, 54, frame_len - 1] {
        let mut buf = vec![0; len];
        let written = template.write_packet(&mut buf, &bth(), &[0; 16], 1024, |_, _| panic!("no room in {len} bytes"));
        assert_eq!(written, 0);
    }
}

#[test]
fn template_packet_over_the_ip_limit_is_refused() {
    let template = PathTemplate::new(&ipv4_fields()).unwrap();
    let mut buf = vec![0; 70_000];
    // 65,535 bytes of IP: 20 + 8 + 12 + payload + 4, and the payload a multiple of four with its pad.
    let limit = 65_488;
    assert_eq!(template.write_packet(&mut buf, &bth(), &[], limit, |_, crc| crc), limit + 58);
    for payload_len in [limit + 4, 65_535, 65_536, usize::MAX] {
        assert_eq!(template.write_packet(&mut buf, &bth(), &[], payload_len, |_, _| panic!("called")), 0);
    }
    assert_eq!(template.write_packet(&mut buf, &bth(), &[0; ExtHeaders::MAX_BYTES + 1], 0, |_, _| panic!("called")), 0);
}

#[test]
fn template_emit_leaves_the_rest_alone() {
    let tagged = PathFields { vlan: Some(VlanTag { pcp: 3, dei: false, vid: 77 }), ..ipv4_fields() };
    let template = PathTemplate::new(&tagged).unwrap();
    let mut buf = [0xa5; 64];
    let rest = template.emit(&mut buf, 18).unwrap();
    assert!(rest.iter().all(|&byte| byte == 0xa5));
    assert_eq!(rest.len(), 64 - template.header_len());
    let ip = Ipv4Repr::from_bytes(buf[18..].first_chunk().unwrap());
    assert_eq!(ip.total_length, 20 + 8 + 18);
    assert!(ipv4::header_checksum_ok(&buf[18..38]));
    assert_eq!(UdpRepr::parse(&buf[38..]).unwrap().length, 8 + 18);
}

proptest! {
    /// A template with another class, and a frame whose ECN bits were cleared, are what a new template would have made.
    #[test]
    fn template_class_changes_as_if_it_had_been_made_so(
        fields in any_fields(),
        traffic_class in any::<u8>(),
        pcp in 0..8_u8,
        data in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let changed = PathFields { traffic_class, vlan: fields.vlan.map(|tag| VlanTag { pcp, ..tag }), ..fields };
        let template = PathTemplate::new(&fields).unwrap().with_class(traffic_class, pcp);
        prop_assert_eq!(template, PathTemplate::new(&changed).unwrap());

        let mut frame = write(&fields, &bth(), &[], &data);
        PathTemplate::new(&fields).unwrap().clear_ecn(&mut frame);
        let without = PathFields { traffic_class: fields.traffic_class & !3, ..fields };
        prop_assert_eq!(frame, write(&without, &bth(), &[], &data));
    }
}

#[test]
fn template_clears_no_ecn_of_a_frame_that_is_cut_short() {
    let template = PathTemplate::new(&ipv4_fields()).unwrap();
    let mut frame = [0x5a; 33];
    template.clear_ecn(&mut frame);
    assert_eq!(frame, [0x5a; 33]);
}
