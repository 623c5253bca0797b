//! Selective acknowledgement header, this engine's own: what a responder has got beyond the PSN that it waits for.

use core::fmt;

use crate::field::fixed_length_header;

/// SACKETH: on `SELECTIVE_ACK`, behind the AETH.
///
/// Layout: a map of 256 bits, the first of them the most significant of the first byte. Where the packet's PSN is `p`,
/// everything up to `p` is acknowledged, `p + 1` is missing, and bit `i` says that the request packet `p + 2 + i` has come. Of a
/// READ, which takes the PSNs of all its responses, the first PSN stands for the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackEthRepr {
    /// Bit `i` of the map is bit `i % 64`, from the least significant, of word `i / 64`.
    pub words: [u64; 4],
}

impl SackEthRepr {
    /// Length in bytes.
    pub const LEN: usize = 32;
    /// PSNs that the map has room for.
    pub const BITS: u32 = 256;

    /// Decodes the header.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let mut words = [0; 4];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = chunk.first_chunk().map_or(0, |&eight| u64::from_be_bytes(eight).reverse_bits());
        }
        Self { words }
    }

    /// Encodes the header.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.words) {
            chunk.copy_from_slice(&word.reverse_bits().to_be_bytes());
        }
        bytes
    }

    /// Packets that the map names.
    #[inline]
    #[must_use]
    pub const fn count(&self) -> u32 {
        let [a, b, c, d] = self.words;
        a.count_ones() + b.count_ones() + c.count_ones() + d.count_ones()
    }
}

/// What has come, as places behind the missing PSN: `+1..4 +6`.
impl fmt::Display for SackEthRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = |bit: u32| self.words.get(bit as usize / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1);
        let mut separator = "";
        for first in (0..Self::BITS).filter(|&bit| has(bit) && (bit == 0 || !has(bit - 1))) {
            let end = (first..).find(|&bit| !has(bit)).unwrap_or(Self::BITS);
            write!(f, "{separator}+{}", first + 1)?;
            if end > first + 1 {
                write!(f, "..{end}")?;
            }
            separator = " ";
        }
        if separator.is_empty() { f.write_str("nothing") } else { Ok(()) }
    }
}

fixed_length_header!(SackEthRepr);

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn the_first_bit_is_the_most_significant_of_the_first_byte() {
        let map = SackEthRepr { words: [0b101, 1 << 63, 0, 1 << 63] };
        let bytes = map.to_bytes();
        assert_eq!(bytes[0], 0b1010_0000);
        assert_eq!((bytes[15], bytes[31]), (1, 1));
        assert_eq!(bytes.iter().map(|byte| byte.count_ones()).sum::<u32>(), map.count());
        assert_eq!(SackEthRepr::from_bytes(&bytes), map);
        assert_eq!(SackEthRepr::parse(&bytes[..31]), None);
    }

    #[test]
    fn a_map_reads_as_runs() {
        let words = |words| SackEthRepr { words }.to_string();
        assert_eq!(words([0; 4]), "nothing");
        assert_eq!(words([1, 0, 0, 0]), "+1");
        assert_eq!(words([0b10_1111, 0, 0, 0]), "+1..4 +6");
        assert_eq!(words([1 << 63, 1, 0, 1 << 63]), "+64..65 +256");
        assert_eq!(words([u64::MAX; 4]), "+1..256");
    }
}
