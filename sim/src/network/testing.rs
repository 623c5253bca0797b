//! Frames for the tests of this module.

use wire::{EtherType, EthernetRepr, Ipv4Repr, MacAddr, UdpRepr, ipv4};

/// ECN-capable, in a traffic class.
pub(crate) const ECT_0: u8 = 0b10;

/// The station with this number.
pub(crate) fn mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

/// A UDP frame of `bytes` bytes (60 at least) from station `src` to station `dst`.
pub(crate) fn udp_frame(src: u8, dst: u8, src_port: u16, traffic_class: u8, bytes: usize) -> Vec<u8> {
    let ethernet = EthernetRepr { dst: mac(dst), src: mac(src), ether_type: EtherType::IPV4 };
    let total_length = (bytes.max(60) - EthernetRepr::LEN) as u16;
    let ip = Ipv4Repr {
        src: [10, 0, 0, src].into(),
        dst: [10, 0, 0, dst].into(),
        traffic_class,
        total_length,
        ident: 0,
        dont_fragment: true,
        hop_limit: 64,
        protocol: ipv4::PROTOCOL_UDP,
    };
    let udp = UdpRepr { src_port, dst_port: wire::ROCE_PORT, length: total_length - 20, checksum: 0 };
    let mut frame = [&ethernet.to_bytes()[..], &ip.to_bytes(), &udp.to_bytes()].concat();
    frame.resize(bytes.max(60), 0xcc);
    frame
}

/// A UDP frame between two stations, with addresses that nobody knows.
pub(crate) fn udp_frame_between(src: MacAddr, dst: MacAddr, src_port: u16) -> Vec<u8> {
    let mut frame = udp_frame(1, 2, src_port, 0, 60);
    frame[..6].copy_from_slice(&dst.0);
    frame[6..12].copy_from_slice(&src.0);
    frame
}
