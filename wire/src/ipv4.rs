//! IPv4 header (RFC 791) and the Internet checksum (RFC 1071).

use core::net::{IpAddr, Ipv4Addr};

use crate::field::Fields;

mod field {
    pub(super) const VERSION_IHL: usize = 0;
    pub(super) const TRAFFIC_CLASS: usize = 1;
    pub(super) const TOTAL_LENGTH: usize = 2;
    pub(super) const IDENT: usize = 4;
    pub(super) const FRAGMENT: usize = 6;
    pub(super) const HOP_LIMIT: usize = 8;
    pub(super) const PROTOCOL: usize = 9;
    pub(super) const CHECKSUM: usize = 10;
    pub(super) const SRC: usize = 12;
    pub(super) const DST: usize = 16;
}

/// IP protocol number, and IPv6 next header, of UDP.
pub const PROTOCOL_UDP: u8 = 17;
const DONT_FRAGMENT: u16 = 0x4000;
/// More-fragments and fragment offset: zero in a datagram that is whole.
const FRAGMENT_MASK: u16 = 0x3fff;

/// The one's complement sum of `bytes` as 16-bit words, not folded; an odd last byte is the high half of a word.
///
/// Exact for up to 65,537 words beyond what `sum` holds: the carries are added by [`fold`].
#[inline]
pub(crate) fn sum_words(sum: u32, bytes: &[u8]) -> u32 {
    let (words, last) = bytes.as_chunks::<2>();
    let odd = last.first().map_or(0, |&byte| u32::from(byte) << 8);
    words.iter().fold(sum + odd, |sum, &word| sum + u32::from(u16::from_be_bytes(word)))
}

/// Adds the carries of a one's complement sum back in.
#[inline]
pub(crate) const fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    let twice = (once & 0xffff) + (once >> 16);
    let [_, _, high, low] = twice.to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// The sum that a transport checksum folds: pseudo header (RFC 768, RFC 8200 section 8.1) and `segment`.
pub(crate) fn transport_sum(src: IpAddr, dst: IpAddr, protocol: u8, segment: &[u8]) -> u32 {
    let sum_address = |sum, address| match address {
        IpAddr::V4(v4) => sum_words(sum, &v4.octets()),
        IpAddr::V6(v6) => sum_words(sum, &v6.octets()),
    };
    // An IP payload has at most 65,535 bytes. A longer one cannot match its own length field.
    let length = u16::try_from(segment.len()).unwrap_or(u16::MAX);
    let sum = sum_address(sum_address(u32::from(protocol) + u32::from(length), src), dst);
    sum_words(sum, segment)
}

/// An IPv4 header without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Repr {
    /// Sender.
    pub src: Ipv4Addr,
    /// Receiver.
    pub dst: Ipv4Addr,
    /// DSCP in the top six bits, ECN in the low two.
    pub traffic_class: u8,
    /// Header and payload, in bytes.
    pub total_length: u16,
    /// Identification; of no meaning in a datagram that must not be fragmented (RFC 6864).
    pub ident: u16,
    /// Routers must not fragment the datagram.
    pub dont_fragment: bool,
    /// Time to live.
    pub hop_limit: u8,
    /// What follows, such as [`PROTOCOL_UDP`].
    pub protocol: u8,
}

/// Why an IPv4 header was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ipv4Error {
    /// Fewer bytes than the header, or than its total length says.
    Truncated,
    /// Version not 4, header length below 20 bytes, or total length below the header's.
    Malformed,
    /// The header checksum is wrong.
    BadChecksum,
    /// A fragment of a datagram.
    Fragment,
}

/// Where the parts of a datagram lie, from the start of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ipv4Layout {
    /// Length of the header with options.
    pub(crate) header_len: u8,
    /// End of the datagram; Ethernet padding follows.
    pub(crate) end: usize,
    pub(crate) protocol: u8,
    pub(crate) is_fragment: bool,
}

impl Ipv4Layout {
    /// Checks lengths and version, but neither the checksum nor the fragment fields.
    #[inline]
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Ipv4Error> {
        let fixed: &[u8; Ipv4Repr::LEN] = bytes.first_chunk().ok_or(Ipv4Error::Truncated)?;
        let version_ihl = fixed.be8::<{ field::VERSION_IHL }>();
        let header_len = (version_ihl & 0x0f) * 4;
        let end = usize::from(fixed.be16::<{ field::TOTAL_LENGTH }>());
        if version_ihl >> 4 != 4 || usize::from(header_len) < Ipv4Repr::LEN || end < usize::from(header_len) {
            return Err(Ipv4Error::Malformed);
        }
        if bytes.len() < end {
            return Err(Ipv4Error::Truncated);
        }
        let is_fragment = fixed.be16::<{ field::FRAGMENT }>() & FRAGMENT_MASK != 0;
        Ok(Self { header_len, end, protocol: fixed.be8::<{ field::PROTOCOL }>(), is_fragment })
    }
}

/// Whether the checksum of a whole header, options included, is right.
#[inline]
#[must_use]
pub fn header_checksum_ok(header: &[u8]) -> bool {
    fold(sum_words(0, header)) == 0xffff
}

impl Ipv4Repr {
    /// Length in bytes: no options.
    pub const LEN: usize = 20;

    /// Decodes the header at the start of `bytes`, which must hold the whole datagram, and returns it with its
    /// payload. Options are skipped and trailing padding is cut.
    ///
    /// # Errors
    ///
    /// See [`Ipv4Error`]; a fragment is refused, for it cannot be judged alone.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Ipv4Error> {
        let layout = Ipv4Layout::parse(bytes)?;
        let header = bytes.get(..usize::from(layout.header_len)).ok_or(Ipv4Error::Truncated)?;
        let payload = bytes.get(usize::from(layout.header_len)..layout.end).ok_or(Ipv4Error::Truncated)?;
        if !header_checksum_ok(header) {
            return Err(Ipv4Error::BadChecksum);
        }
        if layout.is_fragment {
            return Err(Ipv4Error::Fragment);
        }
        let fixed = header.first_chunk().ok_or(Ipv4Error::Truncated)?;
        Ok((Self::from_bytes(fixed), payload))
    }

    /// Decodes the fixed part of a header, without any check.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            src: Ipv4Addr::from(bytes.array::<{ field::SRC }, 4>()),
            dst: Ipv4Addr::from(bytes.array::<{ field::DST }, 4>()),
            traffic_class: bytes.be8::<{ field::TRAFFIC_CLASS }>(),
            total_length: bytes.be16::<{ field::TOTAL_LENGTH }>(),
            ident: bytes.be16::<{ field::IDENT }>(),
            dont_fragment: bytes.be16::<{ field::FRAGMENT }>() & DONT_FRAGMENT != 0,
            hop_limit: bytes.be8::<{ field::HOP_LIMIT }>(),
            protocol: bytes.be8::<{ field::PROTOCOL }>(),
        }
    }

    /// Encodes the header with its checksum.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes.put::<{ field::VERSION_IHL }, 2>([0x45, self.traffic_class]);
        bytes.put_be16::<{ field::TOTAL_LENGTH }>(self.total_length);
        bytes.put_be16::<{ field::IDENT }>(self.ident);
        bytes.put_be16::<{ field::FRAGMENT }>(if self.dont_fragment { DONT_FRAGMENT } else { 0 });
        bytes.put::<{ field::HOP_LIMIT }, 2>([self.hop_limit, self.protocol]);
        bytes.put::<{ field::SRC }, 4>(self.src.octets());
        bytes.put::<{ field::DST }, 4>(self.dst.octets());
        bytes.put_be16::<{ field::CHECKSUM }>(!fold(sum_words(0, &bytes)));
        bytes
    }

    /// Writes the header at the start of `buf` and returns what follows it; `None`, with nothing written, if `buf` is
    /// shorter than [`Self::LEN`] bytes.
    #[must_use = "a buffer that is too short is left as it was"]
    pub fn emit(self, buf: &mut [u8]) -> Option<&mut [u8]> {
        let (head, rest) = buf.split_first_chunk_mut()?;
        *head = self.to_bytes();
        Some(rest)
    }
}

/// Sets in a header without options the fields that the ICRC leaves out: traffic class, TTL, checksum.
#[inline]
pub(crate) fn mask_for_icrc(header: &mut [u8; Ipv4Repr::LEN]) {
    header.put::<{ field::TRAFFIC_CLASS }, 1>([0xff]);
    header.put::<{ field::HOP_LIMIT }, 1>([0xff]);
    header.put_be16::<{ field::CHECKSUM }>(0xffff);
}

/// Offset of the traffic class.
pub(crate) const TRAFFIC_CLASS_OFFSET: usize = field::TRAFFIC_CLASS;
/// Offset of the total length.
pub(crate) const TOTAL_LENGTH_OFFSET: usize = field::TOTAL_LENGTH;
/// Offset of the checksum.
pub(crate) const CHECKSUM_OFFSET: usize = field::CHECKSUM;

#[cfg(test)]
mod tests {
    use super::*;

    fn repr() -> Ipv4Repr {
        Ipv4Repr {
            src: Ipv4Addr::new(192, 168, 0, 1),
            dst: Ipv4Addr::new(192, 168, 0, 199),
            traffic_class: 0,
            total_length: 0x73,
            ident: 0,
            dont_fragment: true,
            hop_limit: 0x40,
            protocol: PROTOCOL_UDP,
        }
    }

    #[test]
    fn ipv4_known_checksum() {
        // The example that textbooks use; its checksum is 0xb861.
        let bytes = repr().to_bytes();
        assert_eq!(bytes[10..12], [0xb8, 0x61]);
        assert!(header_checksum_ok(&bytes));
    }

    #[test]
    fn ipv4_datagram_parses_and_padding_is_cut() {
        let mut datagram = [0; 0x73 + 9];
        repr().emit(&mut datagram).unwrap().fill(7);
        let (parsed, payload) = Ipv4Repr::parse(&datagram).unwrap();
        assert_eq!(parsed, repr());
        assert_eq!(payload, [7; 0x73 - 20]);
    }

    #[test]
    fn ipv4_bad_headers_are_refused() {
        let mut datagram = [0; 0x73];
        repr().emit(&mut datagram).unwrap();
        let error_with = |at: usize, value: u8, keep_checksum: bool| {
            let mut bytes = datagram;
            bytes[at] = value;
            if keep_checksum {
                let header: &mut [u8; 20] = bytes.first_chunk_mut().unwrap();
                header.put_be16::<{ field::CHECKSUM }>(0);
                let sum = fold(sum_words(0, header));
                header.put_be16::<{ field::CHECKSUM }>(!sum);
            }
            Ipv4Repr::parse(&bytes).unwrap_err()
        };
        assert_eq!(error_with(0, 0x65, true), Ipv4Error::Malformed);
        assert_eq!(error_with(0, 0x44, true), Ipv4Error::Malformed);
        assert_eq!(error_with(3, 19, true), Ipv4Error::Malformed);
        assert_eq!(error_with(3, 0x74, true), Ipv4Error::Truncated);
        assert_eq!(error_with(6, 0x20, true), Ipv4Error::Fragment);
        assert_eq!(error_with(7, 0x01, true), Ipv4Error::Fragment);
        assert_eq!(error_with(8, 0x41, false), Ipv4Error::BadChecksum);
        assert_eq!(Ipv4Repr::parse(&datagram[..19]), Err(Ipv4Error::Truncated));
    }
}
