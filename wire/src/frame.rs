//! The data-path parse of a whole received frame.

use core::net::{IpAddr, Ipv4Addr};

use crate::bth::Bth;
use crate::ethernet::{EtherType, EthernetRepr};
use crate::field::Fields;
use crate::grh::NEXT_HEADER_IBA;
use crate::icrc;
use crate::ipv4::{Ipv4Error, Ipv4Layout, PROTOCOL_UDP, header_checksum_ok};
use crate::ipv6::{self, NEXT_HEADER_FRAGMENT};
use crate::opcode::{ExtHeaders, OpcodeInfo};
use crate::udp::{self, ROCE_PORT};
use crate::vlan::{VlanRepr, VlanTag};
use crate::{
    AethRepr, AtomicAckEthRepr, AtomicEthRepr, DethRepr, FrameError, Gid, IethRepr, ImmDtRepr, Ipv4Repr, Ipv6Repr,
    MacAddr, Qpn, RethRepr, SackEthRepr, UdpRepr, XrcEthRepr,
};

/// What the packet travels in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Network {
    /// RoCEv2 over IPv4.
    Ipv4,
    /// RoCEv2 over IPv6.
    Ipv6,
    /// RoCEv1: a GRH, and no UDP.
    Grh,
}

/// A view of a RoCE frame whose structure was checked: each header it should have is there, its lengths agree, its
/// opcode is known. The ICRC is not checked by the parse: see [`Self::icrc_ok`].
///
/// Layout: Ethernet, at most one 802.1Q tag, IPv4 or IPv6 and UDP, or GRH; BTH, extension headers, payload, pad, ICRC.
///
/// Cost: the view is `Copy` and fits a cache line; it borrows the frame. The BTH is decoded once, in the parse; other
/// accessors decode when they are called. None of them panics.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// From the Ethernet header to the ICRC; padding behind it is cut.
    bytes: &'a [u8],
    info: &'static OpcodeInfo,
    bth: Bth,
    network: Network,
    /// Offsets into `bytes`. Headers before the payload never add up to more than 130 bytes.
    network_at: u8,
    bth_at: u8,
    payload_at: u8,
}

const _: () = assert!(size_of::<Frame<'_>>() <= 64, "a parsed frame fits a cache line");

/// What the layers below the BTH say.
struct Layers {
    network: Network,
    network_at: u8,
    bth_at: u8,
    /// End of the ICRC.
    end: usize,
}

const ETHERNET_LEN: u8 = 14;
const TAGGED_LEN: u8 = 18;
const IPV6_LEN: u8 = 40;
const UDP_LEN: u8 = 8;
const BTH_LEN: u8 = 12;

/// EtherType behind the tag, if there is one, and where the network header starts.
#[inline]
fn link_layer(bytes: &[u8]) -> Result<(EtherType, u8), FrameError> {
    let (ethernet, rest) = bytes.split_first_chunk::<{ EthernetRepr::LEN }>().ok_or(FrameError::Truncated)?;
    let ether_type = EtherType(ethernet.be16::<12>());
    if ether_type != EtherType::VLAN {
        return Ok((ether_type, ETHERNET_LEN));
    }
    let tag = VlanRepr::parse(rest).ok_or(FrameError::Truncated)?;
    Ok((tag.ether_type, TAGGED_LEN))
}

#[inline]
fn ipv4_layers(bytes: &[u8], network_at: u8) -> Result<Layers, FrameError> {
    let datagram = bytes.get(usize::from(network_at)..).ok_or(FrameError::Truncated)?;
    let layout = Ipv4Layout::parse(datagram).map_err(|error| match error {
        Ipv4Error::Truncated => FrameError::Truncated,
        Ipv4Error::Malformed | Ipv4Error::BadChecksum | Ipv4Error::Fragment => FrameError::BadIpv4Header,
    })?;
    if layout.protocol != PROTOCOL_UDP {
        return Err(FrameError::NotRoce);
    }
    if layout.is_fragment {
        return Err(FrameError::Fragment);
    }
    let header_len = usize::from(layout.header_len);
    let header = datagram.get(..header_len).ok_or(FrameError::Truncated)?;
    let payload = datagram.get(header_len..layout.end).ok_or(FrameError::Truncated)?;
    let udp = roce_datagram(payload)?;
    // The length is a constant in the first arm, so that the sum is a few additions without a loop.
    let checksum_ok = match header.first_chunk::<{ Ipv4Repr::LEN }>() {
        Some(fixed) if header_len == Ipv4Repr::LEN => header_checksum_ok(fixed),
        _ => header_checksum_ok(header),
    };
    if !checksum_ok {
        return Err(FrameError::BadIpChecksum);
    }
    if udp.checksum != 0 {
        let fixed = header.first_chunk().ok_or(FrameError::Truncated)?;
        let ip = Ipv4Repr::from_bytes(fixed);
        check_udp_checksum(ip.src.into(), ip.dst.into(), payload)?;
    }
    Ok(Layers {
        network: Network::Ipv4,
        network_at,
        bth_at: network_at + layout.header_len + UDP_LEN,
        end: usize::from(network_at) + layout.end,
    })
}

#[inline]
fn ipv6_layers(bytes: &[u8], network_at: u8) -> Result<Layers, FrameError> {
    let datagram = bytes.get(usize::from(network_at)..).ok_or(FrameError::Truncated)?;
    let (header, rest) = datagram.split_first_chunk().ok_or(FrameError::Truncated)?;
    if !ipv6::is_version_6(header) {
        return Err(FrameError::BadIpv6Header);
    }
    let ip = Ipv6Repr::from_bytes(header);
    match ip.next_header {
        PROTOCOL_UDP => {}
        NEXT_HEADER_FRAGMENT => return Err(FrameError::Fragment),
        _ => return Err(FrameError::NotRoce),
    }
    let payload = rest.get(..usize::from(ip.payload_length)).ok_or(FrameError::Truncated)?;
    let udp = roce_datagram(payload)?;
    if udp.checksum != 0 {
        check_udp_checksum(ip.src.into(), ip.dst.into(), payload)?;
    }
    Ok(Layers {
        network: Network::Ipv6,
        network_at,
        bth_at: network_at + IPV6_LEN + UDP_LEN,
        end: usize::from(network_at) + Ipv6Repr::LEN + payload.len(),
    })
}

fn grh_layers(bytes: &[u8], network_at: u8) -> Result<Layers, FrameError> {
    let packet = bytes.get(usize::from(network_at)..).ok_or(FrameError::Truncated)?;
    let (header, rest) = packet.split_first_chunk().ok_or(FrameError::Truncated)?;
    let grh = Ipv6Repr::from_bytes(header);
    if !ipv6::is_version_6(header) || grh.next_header != NEXT_HEADER_IBA {
        return Err(FrameError::BadGrh);
    }
    let payload = rest.get(..usize::from(grh.payload_length)).ok_or(FrameError::Truncated)?;
    Ok(Layers {
        network: Network::Grh,
        network_at,
        bth_at: network_at + IPV6_LEN,
        end: usize::from(network_at) + Ipv6Repr::LEN + payload.len(),
    })
}

/// The UDP header of an IP payload that is a RoCEv2 datagram.
#[inline]
fn roce_datagram(payload: &[u8]) -> Result<UdpRepr, FrameError> {
    let udp = UdpRepr::parse(payload).ok_or(FrameError::Truncated)?;
    if udp.dst_port != ROCE_PORT {
        return Err(FrameError::NotRoce);
    }
    if usize::from(udp.length) != payload.len() {
        return Err(FrameError::BadUdpLength(udp.length));
    }
    Ok(udp)
}

/// RoCEv2 senders leave the checksum out; one that is there must be right.
#[cold]
fn check_udp_checksum(src: IpAddr, dst: IpAddr, datagram: &[u8]) -> Result<(), FrameError> {
    if udp::checksum_ok(src, dst, datagram) { Ok(()) } else { Err(FrameError::BadUdpChecksum) }
}

impl<'a> Frame<'a> {
    /// Parses a frame from its Ethernet header on. Bytes behind the end that the IP header or GRH gives are cut.
    ///
    /// # Errors
    ///
    /// [`FrameError::NotRoce`] for what other protocols use; any other reason is a malformed packet, to be counted and
    /// dropped.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let (ether_type, network_at) = link_layer(bytes)?;
        let layers = match ether_type {
            EtherType::IPV4 => ipv4_layers(bytes, network_at)?,
            EtherType::IPV6 => ipv6_layers(bytes, network_at)?,
            EtherType::ROCE_V1 => grh_layers(bytes, network_at)?,
            _ => return Err(FrameError::NotRoce),
        };
        Self::transport(bytes, &layers)
    }

    /// The checks from the BTH on.
    #[inline]
    fn transport(bytes: &'a [u8], layers: &Layers) -> Result<Self, FrameError> {
        let bytes = bytes.get(..layers.end).ok_or(FrameError::Truncated)?;
        let packet = bytes.get(usize::from(layers.bth_at)..).ok_or(FrameError::Truncated)?;
        let (bth, rest) = packet.split_first_chunk().ok_or(FrameError::Truncated)?;
        let bth = Bth::from_bytes(bth);
        if bth.tver != 0 {
            return Err(FrameError::BadTver(bth.tver));
        }
        let info = bth.opcode.info().ok_or(FrameError::UnknownOpcode(bth.opcode.0))?;
        let overhead = usize::from(info.ext_bytes) + icrc::LEN;
        let padded_len = rest.len().checked_sub(overhead).ok_or(FrameError::Truncated)?;
        if usize::from(bth.pad_count) > padded_len {
            return Err(FrameError::PadLongerThanPayload(bth.pad_count));
        }
        if padded_len != 0 && !info.has_payload {
            return Err(FrameError::UnexpectedPayload(bth.opcode.0));
        }
        Ok(Self {
            bytes,
            info,
            bth,
            network: layers.network,
            network_at: layers.network_at,
            bth_at: layers.bth_at,
            payload_at: layers.bth_at + BTH_LEN + info.ext_bytes,
        })
    }

    /// From the Ethernet header to the ICRC, without padding.
    #[inline]
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes from `at` on; the parse has seen that they are there.
    #[inline]
    fn bytes_at(&self, at: u8) -> &'a [u8] {
        self.bytes.get(usize::from(at)..).unwrap_or_default()
    }

    /// The Ethernet header.
    #[inline]
    #[must_use]
    pub fn ethernet(&self) -> EthernetRepr {
        EthernetRepr::from_bytes(self.bytes.first_chunk().unwrap_or(&[0; EthernetRepr::LEN]))
    }

    /// Ethernet sender.
    #[inline]
    #[must_use]
    pub fn src_mac(&self) -> MacAddr {
        self.ethernet().src
    }

    /// Ethernet receiver.
    #[inline]
    #[must_use]
    pub fn dst_mac(&self) -> MacAddr {
        self.ethernet().dst
    }

    /// The 802.1Q tag, if there is one.
    #[inline]
    #[must_use]
    pub fn vlan(&self) -> Option<VlanTag> {
        if self.network_at != TAGGED_LEN {
            return None;
        }
        VlanRepr::parse(self.bytes_at(ETHERNET_LEN)).map(|repr| repr.tag)
    }

    /// What the packet travels in.
    #[inline]
    #[must_use]
    pub const fn network(&self) -> Network {
        self.network
    }

    /// Whether this is RoCEv1: a GRH instead of IP and UDP.
    #[inline]
    #[must_use]
    pub const fn is_roce_v1(&self) -> bool {
        matches!(self.network, Network::Grh)
    }

    /// The IP header with its options, or the GRH.
    #[inline]
    #[must_use]
    pub fn ip_header(&self) -> &'a [u8] {
        let udp_len = if self.is_roce_v1() { 0 } else { UDP_LEN };
        self.bytes.get(usize::from(self.network_at)..usize::from(self.bth_at - udp_len)).unwrap_or_default()
    }

    /// The fixed part of the IPv4 header; `None` on IPv6 and RoCEv1.
    #[inline]
    #[must_use]
    pub fn ipv4(&self) -> Option<Ipv4Repr> {
        if self.network != Network::Ipv4 {
            return None;
        }
        self.bytes_at(self.network_at).first_chunk().map(Ipv4Repr::from_bytes)
    }

    /// The IPv6 header, or the GRH seen as one; `None` on IPv4.
    #[inline]
    #[must_use]
    pub fn ipv6(&self) -> Option<Ipv6Repr> {
        if self.network == Network::Ipv4 {
            return None;
        }
        self.bytes_at(self.network_at).first_chunk().map(Ipv6Repr::from_bytes)
    }

    /// Sender's address. On RoCEv1 the GID as an address, so that an IPv4-mapped one is IPv4.
    #[inline]
    #[must_use]
    pub fn src_ip(&self) -> IpAddr {
        self.address(|ip| ip.src, |ip| ip.src.octets())
    }

    /// Receiver's address; see [`Self::src_ip`].
    #[inline]
    #[must_use]
    pub fn dst_ip(&self) -> IpAddr {
        self.address(|ip| ip.dst, |ip| ip.dst.octets())
    }

    #[inline]
    fn address(&self, v4: impl Fn(Ipv4Repr) -> Ipv4Addr, v6: impl Fn(Ipv6Repr) -> [u8; 16]) -> IpAddr {
        match (self.ipv4(), self.ipv6()) {
            (Some(ip), _) => IpAddr::V4(v4(ip)),
            (None, Some(grh)) if self.is_roce_v1() => Gid(v6(grh)).ip(),
            (None, Some(ip)) => IpAddr::V6(v6(ip).into()),
            (None, None) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        }
    }

    /// Traffic class: DSCP in the top six bits, ECN in the low two.
    #[inline]
    #[must_use]
    pub fn traffic_class(&self) -> u8 {
        let network = self.bytes_at(self.network_at);
        match self.network {
            Network::Ipv4 => network.get(1).copied().unwrap_or(0),
            Network::Ipv6 | Network::Grh => network.first_chunk().map_or(0, ipv6::traffic_class),
        }
    }

    /// ECN bits (RFC 3168): 0 not capable, 1 and 2 capable, 3 congestion experienced.
    #[inline]
    #[must_use]
    pub fn ecn(&self) -> u8 {
        self.traffic_class() & 3
    }

    /// TTL or hop limit.
    #[inline]
    #[must_use]
    pub fn hop_limit(&self) -> u8 {
        let offset = if self.network == Network::Ipv4 { 8 } else { 7 };
        self.bytes_at(self.network_at).get(offset).copied().unwrap_or(0)
    }

    /// UDP source port; `None` on RoCEv1.
    #[inline]
    #[must_use]
    pub fn udp_src_port(&self) -> Option<u16> {
        self.udp_bytes().map(|udp| UdpRepr::from_bytes(udp).src_port)
    }

    /// The UDP header; `None` on RoCEv1.
    #[inline]
    pub(crate) fn udp_bytes(&self) -> Option<&'a [u8; UdpRepr::LEN]> {
        if self.is_roce_v1() { None } else { self.bytes_at(self.bth_at - UDP_LEN).first_chunk() }
    }

    /// The 40 bytes that a UD receive buffer starts with (IBTA 11.4.2.1, A17.4.5): the IPv6 header or GRH, or 20 zero
    /// bytes and the IPv4 header without its options.
    #[must_use]
    pub fn grh_area(&self) -> [u8; 40] {
        let network = self.bytes_at(self.network_at);
        match self.network {
            Network::Ipv6 | Network::Grh => network.first_chunk().copied().unwrap_or([0; 40]),
            Network::Ipv4 => {
                let mut area = [0; 40];
                area.put::<20, 20>(network.first_chunk().copied().unwrap_or([0; 20]));
                area
            }
        }
    }

    /// The base transport header.
    #[inline]
    #[must_use]
    pub const fn bth(&self) -> Bth {
        self.bth
    }

    /// The BTH as it came.
    #[inline]
    pub(crate) fn bth_bytes(&self) -> Option<&'a [u8; Bth::LEN]> {
        self.bytes_at(self.bth_at).first_chunk()
    }

    /// The opcode's row.
    #[inline]
    #[must_use]
    pub const fn info(&self) -> &'static OpcodeInfo {
        self.info
    }

    /// Extension headers, payload and pad: what the ICRC covers after the BTH.
    #[inline]
    pub(crate) fn after_bth(&self) -> &'a [u8] {
        let end = self.bytes.len().saturating_sub(icrc::LEN);
        self.bytes.get(usize::from(self.bth_at + BTH_LEN)..end).unwrap_or_default()
    }

    /// The bytes from an extension header on, if the opcode has it.
    #[inline]
    fn ext(&self, header: ExtHeaders) -> Option<&'a [u8]> {
        let offset = self.info.ext_offset(header)?;
        self.bytes.get(usize::from(self.bth_at + BTH_LEN) + offset..)
    }

    /// Address, key and length of a WRITE or READ.
    #[inline]
    #[must_use]
    pub fn reth(&self) -> Option<RethRepr> {
        self.ext(ExtHeaders::RETH).and_then(RethRepr::parse)
    }

    /// Syndrome and MSN of a response.
    #[inline]
    #[must_use]
    pub fn aeth(&self) -> Option<AethRepr> {
        self.ext(ExtHeaders::AETH).and_then(AethRepr::parse)
    }

    /// Operands of an atomic.
    #[inline]
    #[must_use]
    pub fn atomiceth(&self) -> Option<AtomicEthRepr> {
        self.ext(ExtHeaders::ATOMICETH).and_then(AtomicEthRepr::parse)
    }

    /// Result of an atomic.
    #[inline]
    #[must_use]
    pub fn atomicacketh(&self) -> Option<AtomicAckEthRepr> {
        self.ext(ExtHeaders::ATOMICACKETH).and_then(AtomicAckEthRepr::parse)
    }

    /// Immediate data.
    #[inline]
    #[must_use]
    pub fn immdt(&self) -> Option<ImmDtRepr> {
        self.ext(ExtHeaders::IMM).and_then(ImmDtRepr::parse)
    }

    /// Key to invalidate.
    #[inline]
    #[must_use]
    pub fn ieth(&self) -> Option<IethRepr> {
        self.ext(ExtHeaders::IETH).and_then(IethRepr::parse)
    }

    /// Q_Key and sender of a datagram.
    #[inline]
    #[must_use]
    pub fn deth(&self) -> Option<DethRepr> {
        self.ext(ExtHeaders::DETH).and_then(DethRepr::parse)
    }

    /// What a selective acknowledgement names beyond the missing PSN.
    #[inline]
    #[must_use]
    pub fn sacketh(&self) -> Option<SackEthRepr> {
        self.ext(ExtHeaders::SACKETH).and_then(SackEthRepr::parse)
    }

    /// SRQ of an XRC request.
    #[inline]
    #[must_use]
    pub fn xrceth(&self) -> Option<XrcEthRepr> {
        self.ext(ExtHeaders::XRCETH).and_then(XrcEthRepr::parse)
    }

    /// Payload without pad.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        let end = self.bytes.len().saturating_sub(icrc::LEN + usize::from(self.bth.pad_count));
        self.bytes.get(usize::from(self.payload_at)..end).unwrap_or_default()
    }

    /// Pad bytes, 0..=3 of them, of any value.
    #[inline]
    #[must_use]
    pub fn pad(&self) -> &'a [u8] {
        let end = self.bytes.len().saturating_sub(icrc::LEN);
        self.bytes.get(end.saturating_sub(usize::from(self.bth.pad_count))..end).unwrap_or_default()
    }

    /// The ICRC that the frame carries.
    #[inline]
    #[must_use]
    pub fn icrc(&self) -> u32 {
        self.bytes.last_chunk().map_or(0, |&bytes| u32::from_le_bytes(bytes))
    }

    /// Whether the ICRC is right. Cost: reads the whole packet.
    #[inline]
    #[must_use]
    pub fn icrc_ok(&self) -> bool {
        icrc::verify(self)
    }
}

/// The destination QP of a RoCE frame, to steer it before anything else is known of it: no length, checksum or opcode is
/// checked, and a frame that [`Frame::parse`] refuses may have one.
#[inline]
#[must_use]
pub fn dest_qpn(bytes: &[u8]) -> Option<Qpn> {
    let (ether_type, network_at) = link_layer(bytes).ok()?;
    let network = bytes.get(usize::from(network_at)..)?;
    let after_ip = match ether_type {
        EtherType::IPV4 => {
            let fixed: &[u8; Ipv4Repr::LEN] = network.first_chunk()?;
            let header_len = usize::from(fixed.be8::<0>() & 0x0f) * 4;
            if Ipv4Repr::from_bytes(fixed).protocol != PROTOCOL_UDP {
                return None;
            }
            network.get(header_len..)?
        }
        EtherType::IPV6 | EtherType::ROCE_V1 => {
            let (header, rest) = network.split_first_chunk()?;
            let next_header = if ether_type == EtherType::IPV6 { PROTOCOL_UDP } else { NEXT_HEADER_IBA };
            if Ipv6Repr::from_bytes(header).next_header != next_header {
                return None;
            }
            rest
        }
        _ => return None,
    };
    let bth = if ether_type == EtherType::ROCE_V1 {
        after_ip
    } else {
        let (udp, rest) = after_ip.split_first_chunk()?;
        if UdpRepr::from_bytes(udp).dst_port != ROCE_PORT {
            return None;
        }
        rest
    };
    Bth::parse(bth).map(|bth| bth.dest_qpn)
}

#[cfg(test)]
mod tests;
