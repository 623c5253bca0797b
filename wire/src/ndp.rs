//! Neighbour Discovery: which MAC an IPv6 address has (RFC 4861), by ICMPv6 (RFC 4443). What ARP is for IPv4.
//!
//! Only Neighbour Solicitation and Advertisement: routers and prefixes are the operating system's business.

use core::net::{IpAddr, Ipv6Addr};

use crate::field::Fields;
use crate::ipv4::{fold, transport_sum};
use crate::ipv6::is_version_6;
use crate::multicast::solicited_node;
use crate::{Ipv6Repr, MacAddr};

mod field {
    pub(super) const TYPE_CODE: usize = 0;
    pub(super) const CHECKSUM: usize = 2;
    /// R, S and O of an advertisement; reserved in a solicitation.
    pub(super) const FLAGS: usize = 4;
    pub(super) const TARGET: usize = 8;
}

/// Next header of ICMPv6.
pub const NEXT_HEADER_ICMPV6: u8 = 58;
/// Every packet has this hop limit, in and out: one that a router has passed on cannot (RFC 4861 section 7.1).
pub const HOP_LIMIT: u8 = 255;

/// Types, each with code 0.
const TYPE_SOLICITATION: u16 = 135 << 8;
const TYPE_ADVERTISEMENT: u16 = 136 << 8;
const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;
/// An option of one unit of 8 bytes: type, length, MAC.
const OPTION_BYTES: usize = 8;
const FLAG_ROUTER: u32 = 1 << 31;
const FLAG_SOLICITED: u32 = 1 << 30;
const FLAG_OVERRIDE: u32 = 1 << 29;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NdpMessage {
    /// Who has the target address?
    Solicitation,
    /// The sender has it.
    Advertisement {
        /// The sender is a router.
        router: bool,
        /// It answers a solicitation that was sent to its address: proof that both directions work.
        solicited: bool,
        /// The MAC replaces one that is already known.
        override_known: bool,
    },
}

/// A Neighbour Solicitation or Advertisement, with the IPv6 addresses it travels between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NdpRepr {
    /// Sender; unspecified in the solicitation of one who tries whether an address is free (RFC 4862 section 5.4.2).
    pub src: Ipv6Addr,
    /// Receiver: a host, a solicited-node group, or all nodes.
    pub dst: Ipv6Addr,
    /// Solicitation or advertisement.
    pub message: NdpMessage,
    /// The address in question.
    pub target: Ipv6Addr,
    /// The sender's MAC of a solicitation, the target's of an advertisement, if the option is there.
    pub link_layer: Option<MacAddr>,
}

impl NdpRepr {
    /// Length of a message without options, in bytes.
    const MESSAGE_LEN: usize = 24;
    /// Length of the longest packet that [`emit`](Self::emit) writes, IPv6 header included, in bytes.
    pub const LEN_MAX: usize = Ipv6Repr::LEN + Self::MESSAGE_LEN + OPTION_BYTES;

    /// Decodes the IPv6 packet at the start of `bytes`; what follows it, such as padding, is left out.
    ///
    /// `None` if it is cut short, anything but one of the two messages, or not valid by RFC 4861 sections 7.1.1 and
    /// 7.1.2: hop limit not 255, checksum wrong, target a group, an option of length 0, the solicited flag in an
    /// advertisement to a group, an unspecified sender that names its MAC or does not ask a solicited-node group.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let header: &[u8; Ipv6Repr::LEN] = bytes.first_chunk()?;
        let ip = Ipv6Repr::from_bytes(header);
        if !is_version_6(header) || ip.next_header != NEXT_HEADER_ICMPV6 || ip.hop_limit != HOP_LIMIT {
            return None;
        }
        let message = bytes.get(Ipv6Repr::LEN..)?.get(..usize::from(ip.payload_length))?;
        let sum = transport_sum(IpAddr::V6(ip.src), IpAddr::V6(ip.dst), NEXT_HEADER_ICMPV6, message);
        if fold(sum) != 0xffff {
            return None;
        }
        let (fixed, options) = message.split_first_chunk::<{ Self::MESSAGE_LEN }>()?;
        let flags = fixed.be32::<{ field::FLAGS }>();
        let (message, option) = match fixed.be16::<{ field::TYPE_CODE }>() {
            TYPE_SOLICITATION => (NdpMessage::Solicitation, OPTION_SOURCE),
            TYPE_ADVERTISEMENT => (NdpMessage::from_flags(flags), OPTION_TARGET),
            _ => return None,
        };
        let target = Ipv6Addr::from(fixed.array::<{ field::TARGET }, 16>());
        let link_layer = find_option(options, option)?;
        let repr = Self { src: ip.src, dst: ip.dst, message, target, link_layer };
        repr.is_valid().then_some(repr)
    }

    /// The rules that both messages have beyond their layout.
    fn is_valid(&self) -> bool {
        let message_ok = match self.message {
            NdpMessage::Solicitation if self.src.is_unspecified() => {
                // Its only group is the target's: RFC 4861 says "a solicited-node multicast address".
                self.link_layer.is_none() && self.dst == solicited_node(self.target)
            }
            NdpMessage::Solicitation => true,
            NdpMessage::Advertisement { solicited, .. } => !(solicited && self.dst.is_multicast()),
        };
        message_ok && !self.target.is_multicast() && !self.src.is_multicast()
    }

    /// Length of the packet, IPv6 header included, in bytes.
    #[must_use]
    pub const fn packet_len(&self) -> usize {
        Ipv6Repr::LEN + self.message_len()
    }

    const fn message_len(&self) -> usize {
        Self::MESSAGE_LEN + if self.link_layer.is_some() { OPTION_BYTES } else { 0 }
    }

    /// Writes the packet, from the IPv6 header on, at the start of `buf` and returns what follows it; `None`, with
    /// nothing written, if `buf` is shorter than [`packet_len`](Self::packet_len).
    #[must_use = "a buffer that is too short is left as it was"]
    pub fn emit(self, buf: &mut [u8]) -> Option<&mut [u8]> {
        let (packet, rest) = buf.split_at_mut_checked(self.packet_len())?;
        let ip = Ipv6Repr {
            src: self.src,
            dst: self.dst,
            traffic_class: 0,
            flow_label: 0,
            payload_length: u16::try_from(self.message_len()).ok()?,
            next_header: NEXT_HEADER_ICMPV6,
            hop_limit: HOP_LIMIT,
        };
        let message = ip.emit(packet)?;
        let (fixed, option) = message.split_first_chunk_mut::<{ Self::MESSAGE_LEN }>()?;
        let (type_code, option_type, flags) = match self.message {
            NdpMessage::Solicitation => (TYPE_SOLICITATION, OPTION_SOURCE, 0),
            NdpMessage::Advertisement { .. } => (TYPE_ADVERTISEMENT, OPTION_TARGET, self.message.flags()),
        };
        *fixed = [0; Self::MESSAGE_LEN];
        fixed.put_be16::<{ field::TYPE_CODE }>(type_code);
        fixed.put_be32::<{ field::FLAGS }>(flags);
        fixed.put::<{ field::TARGET }, 16>(self.target.octets());
        if let (Some(MacAddr([a, b, c, d, e, f])), Some(option)) = (self.link_layer, option.first_chunk_mut()) {
            *option = [option_type, 1, a, b, c, d, e, f];
        }
        let sum = transport_sum(IpAddr::V6(self.src), IpAddr::V6(self.dst), NEXT_HEADER_ICMPV6, message);
        message.first_chunk_mut::<{ Self::MESSAGE_LEN }>()?.put_be16::<{ field::CHECKSUM }>(!fold(sum));
        Some(rest)
    }
}

impl NdpMessage {
    const fn from_flags(flags: u32) -> Self {
        Self::Advertisement {
            router: flags & FLAG_ROUTER != 0,
            solicited: flags & FLAG_SOLICITED != 0,
            override_known: flags & FLAG_OVERRIDE != 0,
        }
    }

    const fn flags(self) -> u32 {
        let Self::Advertisement { router, solicited, override_known } = self else { return 0 };
        (if router { FLAG_ROUTER } else { 0 })
            | (if solicited { FLAG_SOLICITED } else { 0 })
            | (if override_known { FLAG_OVERRIDE } else { 0 })
    }
}

/// The MAC in the first option of type `wanted`, if there is one; `None` if the options are not well formed: one of
/// length 0, or one that does not end where the packet does.
fn find_option(mut options: &[u8], wanted: u8) -> Option<Option<MacAddr>> {
    let mut found = None;
    while let [kind, units, ..] = *options {
        let (option, rest) = options.split_at_checked(usize::from(units) * OPTION_BYTES)?;
        // A length of 0 leaves `option` empty: without the check this would never end.
        let mac = MacAddr(*option.get(2..)?.first_chunk()?);
        if kind == wanted && units == 1 && found.is_none() {
            found = Some(mac);
        }
        options = rest;
    }
    options.is_empty().then_some(found)
}

#[cfg(test)]
mod tests;
