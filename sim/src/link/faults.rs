//! What can go wrong on a link.

use engine::Time;
use rand::Rng;

use super::ETHERNET_BYTES;
use crate::random::{Stream, chance};

/// Faults of one direction. Chances are in frames of a million.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faults {
    /// A frame is lost.
    pub loss_ppm: u32,
    /// A burst of losses begins.
    pub burst_start_ppm: u32,
    /// Frames in such a burst, on average.
    pub burst_frames: u32,
    /// A frame arrives twice.
    pub duplicate_ppm: u32,
    /// A frame is held back while others pass.
    pub reorder_ppm: u32,
    /// For at most so long, ns.
    pub reorder_ns: u64,
    /// Bits are flipped.
    pub corrupt_ppm: u32,
    /// A frame is cut short.
    pub truncate_ppm: u32,
    /// A frame and all behind it are delayed.
    pub spike_ppm: u32,
    /// By so much, ns.
    pub spike_ns: u64,
    /// The link goes down and up.
    pub flaps: Option<Flaps>,
    /// ARP is left alone. A request that is lost is repeated after a second only, and by then every retry may be used up.
    pub spares_arp: bool,
}

impl Faults {
    /// A link that works.
    pub const NONE: Self = Self {
        loss_ppm: 0,
        burst_start_ppm: 0,
        burst_frames: 0,
        duplicate_ppm: 0,
        reorder_ppm: 0,
        reorder_ns: 0,
        corrupt_ppm: 0,
        truncate_ppm: 0,
        spike_ppm: 0,
        spike_ns: 0,
        flaps: None,
        spares_arp: false,
    };

    /// Chances up to this, with every retry at hand, break no QP: eight in a row would have to come true.
    const MILD_PPM: u32 = 5_000;

    /// True if no QP with `retry_cnt` 7 may use its retries up.
    pub fn is_mild(&self) -> bool {
        let chances = [self.loss_ppm, self.duplicate_ppm, self.reorder_ppm, self.corrupt_ppm, self.truncate_ppm];
        let is_steady = self.burst_start_ppm == 0 && self.spike_ppm == 0 && self.flaps.is_none();
        *self == Self::NONE || (is_steady && self.spares_arp && chances.iter().all(|&ppm| ppm <= Self::MILD_PPM))
    }
}

/// How long a link is up and down, at most, ns; each time is drawn anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flaps {
    /// Up.
    pub up_ns: u64,
    /// Down.
    pub down_ns: u64,
}

/// Loss in bursts: a two-state chain (Gilbert's).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BurstLoss {
    is_bad: bool,
}

impl BurstLoss {
    pub(super) fn loses(&mut self, start_ppm: u32, mean_frames: u32, stream: &mut Stream) -> bool {
        self.is_bad =
            if self.is_bad { !chance(stream, 1_000_000 / mean_frames.max(1)) } else { chance(stream, start_ppm) };
        self.is_bad
    }
}

/// Whether the link is up, as time goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlapClock {
    is_down: bool,
    until: Time,
}

impl FlapClock {
    pub(super) fn is_down(&mut self, now: Time, flaps: Option<Flaps>, stream: &mut Stream) -> bool {
        let Some(Flaps { up_ns, down_ns }) = flaps else { return false };
        if self.until == Time::ZERO {
            self.until = Time::from_ns(stream.random_range(1..=up_ns));
        }
        while self.until <= now {
            self.is_down = !self.is_down;
            let longest = if self.is_down { down_ns } else { up_ns };
            self.until = self.until.add_ns(stream.random_range(1..=longest));
        }
        self.is_down
    }
}

/// Where a UDP datagram's headers lie in a frame without a tag.
const IPV4_AT: usize = ETHERNET_BYTES;
const UDP_AT: usize = IPV4_AT + 20;
const BTH_AT: usize = UDP_AT + 8;
/// The ICRC takes these bytes as all ones. All but the last are covered by another checksum.
const MASKED: [usize; 7] = [IPV4_AT + 1, IPV4_AT + 8, IPV4_AT + 10, IPV4_AT + 11, UDP_AT + 6, UDP_AT + 7, FECN_BECN_AT];
/// FECN, BECN and reserved bits: whatever they are, the packet is good.
const FECN_BECN_AT: usize = BTH_AT + 4;

/// Bits to flip: bit `n & 7` of byte `n >> 3`. One to three where the ICRC covers them, which it finds without fail (its
/// Hamming distance is 4 at these lengths), or a single one where it does not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Flip(Vec<usize>);

impl Flip {
    /// Of every five, one hits a byte that the ICRC does not cover.
    const MASKED_PPM: u32 = 200_000;

    pub(super) fn draw(frame: &[u8], stream: &mut Stream) -> Self {
        let bit = |byte: usize, stream: &mut Stream| byte << 3 | stream.random_range(0..8);
        if chance(stream, Self::MASKED_PPM) {
            let byte = MASKED[stream.random_range(0..MASKED.len())];
            return Self(vec![bit(byte, stream)]);
        }
        let mut bits = Vec::new();
        let wanted = stream.random_range(1..=3);
        while bits.len() < wanted {
            let byte = stream.random_range(IPV4_AT..packet_end(frame));
            let found = bit(byte, stream);
            if !MASKED.contains(&byte) && !bits.contains(&found) {
                bits.push(found);
            }
        }
        Self(bits)
    }

    /// Flips them. True if the receiver must notice.
    pub(super) fn apply(&self, frame: &mut [u8]) -> bool {
        for bit in &self.0 {
            frame[bit >> 3] ^= 1 << (bit & 7);
        }
        self.0.iter().any(|bit| bit >> 3 != FECN_BECN_AT)
    }
}

/// A length that is not all of the packet, but has an Ethernet header.
pub(super) fn truncated_len(frame: &[u8], stream: &mut Stream) -> usize {
    stream.random_range(ETHERNET_BYTES..packet_end(frame))
}

/// Where the IPv4 packet ends, and the padding of a short frame begins.
fn packet_end(frame: &[u8]) -> usize {
    IPV4_AT + usize::from(u16::from_be_bytes([frame[IPV4_AT + 2], frame[IPV4_AT + 3]]))
}
