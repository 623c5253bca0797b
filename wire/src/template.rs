//! Transmit templates: everything before the BTH, laid down once for each path.

use core::net::IpAddr;

use crate::bth::Bth;
use crate::ethernet::{EtherType, EthernetRepr};
use crate::field::Fields;
use crate::frame::Network;
use crate::icrc::{self, masked_bth};
use crate::ipv4::{self, PROTOCOL_UDP, fold, sum_words};
use crate::opcode::ExtHeaders;
use crate::udp::{self, ROCE_PORT};
use crate::vlan::{VlanRepr, VlanTag};
use crate::{Gid, GrhRepr, Ipv4Repr, Ipv6Repr, MacAddr, UdpRepr, ipv6};

/// What the headers of a path say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathFields {
    /// The port's MAC.
    pub src_mac: MacAddr,
    /// The next hop's MAC.
    pub dst_mac: MacAddr,
    /// The 802.1Q tag, if frames get one.
    pub vlan: Option<VlanTag>,
    /// The port's address.
    pub src_ip: IpAddr,
    /// The peer's address, of the same family.
    pub dst_ip: IpAddr,
    /// DSCP in the top six bits, ECN in the low two.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// UDP source port: see [`crate::source_port_for_flow_label`]. Not used on RoCEv1.
    pub udp_src_port: u16,
    /// IPv4 identification. 0 is right for datagrams that must not be fragmented, as these are (RFC 6864).
    pub ipv4_ident: u16,
    /// Flow label in the IPv6 header or GRH, 20 bits. rxe leaves it 0 whatever label picks the source port.
    pub flow_label: u32,
    /// Send RoCEv1: the addresses become GIDs in a GRH.
    pub roce_v1: bool,
}

const TAGGED_LEN: usize = EthernetRepr::LEN + VlanRepr::LEN;
const IPV4_UDP_LEN: usize = Ipv4Repr::LEN + UdpRepr::LEN;
const IPV6_UDP_LEN: usize = Ipv6Repr::LEN + UdpRepr::LEN;
/// The longest prefix that the ICRC covers before the payload: IPv6, UDP, BTH and extension headers.
const COVERED_MAX: usize = IPV6_UDP_LEN + Bth::LEN + ExtHeaders::MAX_BYTES;

/// Headers of a path from Ethernet to UDP, of which only the lengths and the IPv4 checksum are left to fill in.
///
/// The UDP checksum is 0, and the don't-fragment bit is set (IBTA A17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathTemplate {
    network: Network,
    is_tagged: bool,
    /// One's complement sum of the IPv4 header without length and checksum.
    ipv4_sum: u32,
    /// Ethernet header and tag.
    link: [u8; TAGGED_LEN],
    /// IP and UDP, or GRH; lengths and checksum are zero.
    layers: [u8; IPV6_UDP_LEN],
    /// The same as the ICRC sees it: what switches may change is ones.
    masked: [u8; IPV6_UDP_LEN],
}

impl PathTemplate {
    /// The template of a path; `None` if the two addresses are of different families and `roce_v1` is false.
    #[must_use]
    pub fn new(fields: &PathFields) -> Option<Self> {
        let (network, layers, masked) = match (fields.roce_v1, fields.src_ip, fields.dst_ip) {
            (true, src, dst) => roce_v1_layers(fields, Gid::from_ip(src), Gid::from_ip(dst)),
            (false, IpAddr::V4(src), IpAddr::V4(dst)) => ipv4_layers(fields, src, dst),
            (false, IpAddr::V6(src), IpAddr::V6(dst)) => ipv6_layers(fields, src, dst),
            (false, _, _) => return None,
        };
        Some(Self {
            network,
            is_tagged: fields.vlan.is_some(),
            ipv4_sum: sum_words(0, &layers.array::<0, { Ipv4Repr::LEN }>()),
            link: link_layer(fields, network),
            layers,
            masked,
        })
    }

    /// The same path to another station (its next hop) and from another UDP source port: what differs between the users of
    /// one address vector. RoCEv1 has no port.
    ///
    /// Cost: a copy of the template; the ICRC covers the port, so that both of its copies are patched.
    #[inline]
    #[must_use]
    pub fn to_station(&self, dst_mac: MacAddr, udp_src_port: u16) -> Self {
        let mut copy = *self;
        copy.link.put::<0, 6>(dst_mac.0);
        for layers in [&mut copy.layers, &mut copy.masked] {
            match self.network {
                Network::Ipv4 => layers.put_be16::<{ Ipv4Repr::LEN }>(udp_src_port),
                Network::Ipv6 => layers.put_be16::<{ Ipv6Repr::LEN }>(udp_src_port),
                Network::Grh => {}
            }
        }
        copy
    }

    /// The same path with another traffic class (DSCP in the top six bits, ECN in the low two) and, where frames are tagged,
    /// another 802.1p priority: switches may change both, so the ICRC does not cover them.
    ///
    /// Cost: a copy of the template.
    #[must_use]
    pub fn with_class(&self, traffic_class: u8, pcp: u8) -> Self {
        let mut copy = *self;
        if self.is_tagged {
            let control = copy.link.be16::<{ EthernetRepr::LEN }>();
            copy.link.put_be16::<{ EthernetRepr::LEN }>(control & 0x1fff | u16::from(pcp & 7) << 13);
        }
        match self.network {
            Network::Ipv4 => copy.layers.put::<{ ipv4::TRAFFIC_CLASS_OFFSET }, 1>([traffic_class]),
            Network::Ipv6 | Network::Grh => {
                // Version in the top four bits of the first word, the flow label in the low four and the second word.
                let word = copy.layers.be16::<0>() & 0xf00f | u16::from(traffic_class) << 4;
                copy.layers.put_be16::<0>(word);
            }
        }
        copy.ipv4_sum = sum_words(0, &copy.layers.array::<0, { Ipv4Repr::LEN }>());
        copy
    }

    /// Takes the ECN bits out of a frame that this template has written: of a packet that no switch shall mark.
    #[inline]
    pub fn clear_ecn(&self, frame: &mut [u8]) {
        let link_len = if self.is_tagged { TAGGED_LEN } else { EthernetRepr::LEN };
        let Some(head) = frame.get_mut(link_len..).and_then(<[u8]>::first_chunk_mut::<{ Ipv4Repr::LEN }>) else {
            return;
        };
        if self.network == Network::Ipv4 {
            let word = head.be16::<0>();
            head.put_be16::<0>(word & !3);
            // RFC 1624: the checksum is the complement of a sum that has become less by as much.
            let sum = u32::from(!head.be16::<{ ipv4::CHECKSUM_OFFSET }>()) + u32::from(!(word & 3));
            head.put_be16::<{ ipv4::CHECKSUM_OFFSET }>(!fold(sum));
        } else {
            let word = head.be16::<0>();
            head.put_be16::<0>(word & !0x30);
        }
    }

    /// Bytes before the BTH.
    #[inline]
    #[must_use]
    pub const fn header_len(&self) -> usize {
        let link_len = if self.is_tagged { TAGGED_LEN } else { EthernetRepr::LEN };
        link_len
            + match self.network {
                Network::Ipv4 => IPV4_UDP_LEN,
                Network::Ipv6 => IPV6_UDP_LEN,
                Network::Grh => GrhRepr::LEN,
            }
    }

    /// Bytes of a whole frame with `ext_len` bytes of extension headers and `payload_len` of payload.
    #[inline]
    #[must_use]
    pub const fn frame_len(&self, ext_len: usize, payload_len: usize) -> usize {
        self.header_len() + Bth::LEN + ext_len + payload_len + pad_len(payload_len) + icrc::LEN
    }

    /// Writes the headers before the BTH at the start of `buf`, for `bth_and_after_len` bytes from the BTH to the ICRC,
    /// and returns what follows them.
    ///
    /// `None`, with `buf` in an undefined state, if it is shorter than [`Self::header_len`] or the packet would be
    /// longer than IP can say.
    #[inline]
    #[must_use = "a buffer that is too short has no packet in it"]
    pub fn emit<'b>(&self, buf: &'b mut [u8], bth_and_after_len: usize) -> Option<&'b mut [u8]> {
        let lengths = Lengths::new(bth_and_after_len)?;
        let rest = if self.is_tagged {
            let (link, rest) = buf.split_first_chunk_mut()?;
            *link = self.link;
            rest
        } else {
            let (link, rest) = buf.split_first_chunk_mut()?;
            *link = self.link.array::<0, { EthernetRepr::LEN }>();
            rest
        };
        // Each arm copies and patches at fixed offsets.
        match self.network {
            Network::Ipv4 => {
                let (head, rest) = rest.split_first_chunk_mut()?;
                *head = self.layers.array::<0, IPV4_UDP_LEN>();
                lengths.set_ipv4(head);
                let checksum = !fold(self.ipv4_sum + u32::from(lengths.ipv4_total));
                head.put_be16::<{ ipv4::CHECKSUM_OFFSET }>(checksum);
                Some(rest)
            }
            Network::Ipv6 => {
                let (head, rest) = rest.split_first_chunk_mut()?;
                *head = self.layers;
                lengths.set_ipv6(head);
                Some(rest)
            }
            Network::Grh => {
                let (head, rest) = rest.split_first_chunk_mut()?;
                *head = self.layers.array::<0, { GrhRepr::LEN }>();
                lengths.set_grh(head);
                Some(rest)
            }
        }
    }

    /// Writes a complete frame at the start of `buf` and returns its length, which is [`Self::frame_len`].
    ///
    /// `ext` are the extension headers as bytes. `payload` is called once with the `payload_len` bytes to fill and the
    /// ICRC state so far, and returns the state after the payload (see [`icrc::update`]). The pad count is worked out
    /// here: that of `bth` does not matter. Pad bytes are zero.
    ///
    /// Returns 0, without a call of `payload`, if the frame does not fit `buf`, the packet would be longer than IP can
    /// say, or `ext` is longer than any opcode's.
    ///
    /// Cost: one CRC call over the masked headers besides what `payload` does.
    ///
    /// ```
    /// # use wire::{Bth, MacAddr, Opcode, PathFields, PathTemplate, Psn, Qpn, icrc};
    /// # let fields = PathFields {
    /// #     src_mac: MacAddr::ZERO, dst_mac: MacAddr::ZERO, vlan: None, src_ip: [10, 0, 0, 1].into(),
    /// #     dst_ip: [10, 0, 0, 2].into(), traffic_class: 2, hop_limit: 64, udp_src_port: 0xc000, ipv4_ident: 0,
    /// #     flow_label: 0, roce_v1: false,
    /// # };
    /// let template = PathTemplate::new(&fields).unwrap();
    /// let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(17), Psn::new(5));
    /// let data = b"hello";
    /// let mut buf = [0; 128];
    /// let len = template.write_packet(&mut buf, &bth, &[], data.len(), |payload, crc| {
    ///     payload.copy_from_slice(data);
    ///     icrc::update(crc, data)
    /// });
    /// let frame = wire::Frame::parse(&buf[..len]).unwrap();
    /// assert_eq!(frame.payload(), data);
    /// assert!(frame.icrc_ok());
    /// ```
    #[inline]
    pub fn write_packet(
        &self,
        buf: &mut [u8],
        bth: &Bth,
        ext: &[u8],
        payload_len: usize,
        payload: impl FnOnce(&mut [u8], u32) -> u32,
    ) -> usize {
        self.try_write_packet(buf, bth, ext, payload_len, payload).unwrap_or(0)
    }

    #[inline]
    fn try_write_packet(
        &self,
        buf: &mut [u8],
        bth: &Bth,
        ext: &[u8],
        payload_len: usize,
        payload: impl FnOnce(&mut [u8], u32) -> u32,
    ) -> Option<usize> {
        // Both are far below this; without the check the sums below could overflow.
        if payload_len > usize::from(u16::MAX) || ext.len() > ExtHeaders::MAX_BYTES {
            return None;
        }
        let frame_len = self.frame_len(ext.len(), payload_len);
        let buf = buf.get_mut(..frame_len)?;
        let bth_and_after_len = frame_len - self.header_len();

        let pad = pad_len(payload_len);
        // 0..=3, in a type that the BTH takes.
        let pad_count = payload_len.wrapping_neg().to_le_bytes().first()? & 3;
        let bth = Bth { pad_count, ..*bth }.to_bytes();

        let rest = self.emit(buf, bth_and_after_len)?;
        let (bth_room, rest) = rest.split_first_chunk_mut()?;
        *bth_room = bth;
        let (ext_room, rest) = rest.split_at_mut_checked(ext.len())?;
        ext_room.copy_from_slice(ext);
        let (payload_room, tail) = rest.split_at_mut_checked(payload_len)?;

        let crc = payload(payload_room, self.covered_state(bth, ext, bth_and_after_len)?);
        let (pad_room, icrc_room) = tail.split_at_mut_checked(pad)?;
        pad_room.fill(0);
        let crc = if pad == 0 { crc } else { icrc::update(crc, pad_room) };
        *icrc_room.first_chunk_mut()? = crc.to_le_bytes();
        Some(frame_len)
    }

    /// The ICRC state before the payload: one call over a buffer built from the masked template, not from the frame,
    /// whose freshly patched fields would stall wide loads.
    #[inline]
    fn covered_state(&self, bth: [u8; Bth::LEN], ext: &[u8], bth_and_after_len: usize) -> Option<u32> {
        let lengths = Lengths::new(bth_and_after_len)?;
        let mut covered = [0; COVERED_MAX];
        let bth = masked_bth(bth);
        let prefix_len = match self.network {
            Network::Ipv4 => {
                let mut head = self.masked.array::<0, IPV4_UDP_LEN>();
                lengths.set_ipv4(&mut head);
                cover(&mut covered, head, bth)
            }
            Network::Ipv6 => {
                let mut head = self.masked;
                lengths.set_ipv6(&mut head);
                cover(&mut covered, head, bth)
            }
            Network::Grh => {
                let mut head = self.masked.array::<0, { GrhRepr::LEN }>();
                lengths.set_grh(&mut head);
                cover(&mut covered, head, bth)
            }
        };
        let covered_len = prefix_len + ext.len();
        covered.get_mut(prefix_len..covered_len)?.copy_from_slice(ext);
        Some(icrc::update(icrc::SEED, covered.get(..covered_len)?))
    }
}

/// Lays `head` and `bth` at the start of `covered` and returns their length.
#[inline]
fn cover<const HEAD: usize>(covered: &mut [u8; COVERED_MAX], head: [u8; HEAD], bth: [u8; Bth::LEN]) -> usize {
    covered.put::<0, HEAD>(head);
    covered.put::<HEAD, { Bth::LEN }>(bth);
    HEAD + Bth::LEN
}

/// Pad bytes that bring a payload to a multiple of four (IBTA 9.2.4).
#[inline]
const fn pad_len(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

/// The length fields of one packet.
struct Lengths {
    ipv4_total: u16,
    /// UDP length, which is also the IPv6 payload length.
    udp: u16,
    /// From the BTH to the ICRC, which is the GRH's payload length.
    bth: u16,
}

impl Lengths {
    #[inline]
    fn new(bth_and_after_len: usize) -> Option<Self> {
        // The sum is checked in the wider type once, for the longest of the three.
        let ipv4_total = u16::try_from(bth_and_after_len.checked_add(IPV4_UDP_LEN)?).ok()?;
        let udp = ipv4_total - IPV4_LEN;
        Some(Self { ipv4_total, udp, bth: udp - UDP_LEN })
    }

    #[inline]
    fn set_ipv4(&self, head: &mut [u8; IPV4_UDP_LEN]) {
        head.put_be16::<{ ipv4::TOTAL_LENGTH_OFFSET }>(self.ipv4_total);
        head.put_be16::<{ Ipv4Repr::LEN + udp::LENGTH_OFFSET }>(self.udp);
    }

    #[inline]
    fn set_ipv6(&self, head: &mut [u8; IPV6_UDP_LEN]) {
        head.put_be16::<{ ipv6::PAYLOAD_LENGTH_OFFSET }>(self.udp);
        head.put_be16::<{ Ipv6Repr::LEN + udp::LENGTH_OFFSET }>(self.udp);
    }

    #[inline]
    fn set_grh(&self, head: &mut [u8; GrhRepr::LEN]) {
        head.put_be16::<{ ipv6::PAYLOAD_LENGTH_OFFSET }>(self.bth);
    }
}

const IPV4_LEN: u16 = 20;
const UDP_LEN: u16 = 8;

fn link_layer(fields: &PathFields, network: Network) -> [u8; TAGGED_LEN] {
    let ether_type = match network {
        Network::Ipv4 => EtherType::IPV4,
        Network::Ipv6 => EtherType::IPV6,
        Network::Grh => EtherType::ROCE_V1,
    };
    let first_type = if fields.vlan.is_some() { EtherType::VLAN } else { ether_type };
    let ethernet = EthernetRepr { dst: fields.dst_mac, src: fields.src_mac, ether_type: first_type };
    let mut link = [0; TAGGED_LEN];
    link.put::<0, { EthernetRepr::LEN }>(ethernet.to_bytes());
    if let Some(tag) = fields.vlan {
        link.put::<{ EthernetRepr::LEN }, { VlanRepr::LEN }>(VlanRepr { tag, ether_type }.to_bytes());
    }
    link
}

fn udp_header(fields: &PathFields) -> UdpRepr {
    UdpRepr { src_port: fields.udp_src_port, dst_port: ROCE_PORT, length: 0, checksum: 0 }
}

/// Network, headers, and headers as the ICRC sees them.
type Layers = (Network, [u8; IPV6_UDP_LEN], [u8; IPV6_UDP_LEN]);

fn ipv4_layers(fields: &PathFields, src: core::net::Ipv4Addr, dst: core::net::Ipv4Addr) -> Layers {
    let mut ip = Ipv4Repr {
        src,
        dst,
        traffic_class: fields.traffic_class,
        total_length: 0,
        ident: fields.ipv4_ident,
        dont_fragment: true,
        hop_limit: fields.hop_limit,
        protocol: PROTOCOL_UDP,
    }
    .to_bytes();
    // The sum of the header must not hold the checksum of a header without length.
    ip.put_be16::<{ ipv4::CHECKSUM_OFFSET }>(0);
    let mut udp = udp_header(fields).to_bytes();
    let mut layers = [0; IPV6_UDP_LEN];
    layers.put::<0, { Ipv4Repr::LEN }>(ip);
    layers.put::<{ Ipv4Repr::LEN }, { UdpRepr::LEN }>(udp);

    ipv4::mask_for_icrc(&mut ip);
    udp::mask_for_icrc(&mut udp);
    let mut masked = [0; IPV6_UDP_LEN];
    masked.put::<0, { Ipv4Repr::LEN }>(ip);
    masked.put::<{ Ipv4Repr::LEN }, { UdpRepr::LEN }>(udp);
    (Network::Ipv4, layers, masked)
}

fn ipv6_layers(fields: &PathFields, src: core::net::Ipv6Addr, dst: core::net::Ipv6Addr) -> Layers {
    let mut ip = Ipv6Repr {
        src,
        dst,
        traffic_class: fields.traffic_class,
        flow_label: fields.flow_label,
        payload_length: 0,
        next_header: PROTOCOL_UDP,
        hop_limit: fields.hop_limit,
    }
    .to_bytes();
    let mut udp = udp_header(fields).to_bytes();
    let mut layers = [0; IPV6_UDP_LEN];
    layers.put::<0, { Ipv6Repr::LEN }>(ip);
    layers.put::<{ Ipv6Repr::LEN }, { UdpRepr::LEN }>(udp);

    ipv6::mask_for_icrc(&mut ip);
    udp::mask_for_icrc(&mut udp);
    let mut masked = [0; IPV6_UDP_LEN];
    masked.put::<0, { Ipv6Repr::LEN }>(ip);
    masked.put::<{ Ipv6Repr::LEN }, { UdpRepr::LEN }>(udp);
    (Network::Ipv6, layers, masked)
}

fn roce_v1_layers(fields: &PathFields, src: Gid, dst: Gid) -> Layers {
    let mut grh = GrhRepr {
        src,
        dst,
        traffic_class: fields.traffic_class,
        flow_label: fields.flow_label,
        payload_length: 0,
        hop_limit: fields.hop_limit,
    }
    .to_bytes();
    let mut layers = [0; IPV6_UDP_LEN];
    layers.put::<0, { GrhRepr::LEN }>(grh);
    ipv6::mask_for_icrc(&mut grh);
    let mut masked = [0; IPV6_UDP_LEN];
    masked.put::<0, { GrhRepr::LEN }>(grh);
    (Network::Grh, layers, masked)
}

#[cfg(test)]
mod tests;
