//! What can go wrong on a link.

use engine::Time;
use rand::Rng;
use wire::{EtherType, VlanRepr};

use super::ETHERNET_BYTES;
use crate::frame::{Damage, FrameStorage};
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
    /// An ECN-capable packet is marked (CE) though no queue is full.
    pub mark_ppm: u32,
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
        mark_ppm: 0,
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

/// Where the headers of a RoCE frame lie, and what the ICRC does not cover.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Layout {
    /// The IP header, or the GRH.
    ip_at: usize,
    /// The end of the packet, where the padding of a short frame begins.
    end: usize,
    /// The ICRC takes bits in these bytes as ones.
    masked: Vec<usize>,
    /// Of these, the bits that no other check covers: whatever they are, the packet is good. Byte and mask.
    free: Vec<(usize, u8)>,
}

impl Layout {
    fn of(frame: &[u8]) -> Self {
        let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let ip_at = if half(12) == EtherType::VLAN.0 { ETHERNET_BYTES + VlanRepr::LEN } else { ETHERNET_BYTES };
        let ether_type = EtherType(half(ip_at - 2));
        if ether_type == EtherType::IPV4 {
            let (udp_at, fecn_becn_at) = (ip_at + 20, ip_at + 32);
            let masked = vec![ip_at + 1, ip_at + 8, ip_at + 10, ip_at + 11, udp_at + 6, udp_at + 7, fecn_becn_at];
            // A frame that another link has damaged may lie about its length, but it has all headers up to the BTH.
            let end = (ip_at + usize::from(half(ip_at + 2))).clamp(ip_at + 40, frame.len());
            return Self { ip_at, end, masked, free: vec![(fecn_becn_at, 0xff)] };
        }
        // Traffic class, flow label and hop limit: IPv6 has no checksum of its own.
        let mut free = vec![(ip_at, 0x0f), (ip_at + 1, 0xff), (ip_at + 2, 0xff), (ip_at + 3, 0xff), (ip_at + 7, 0xff)];
        let is_v1 = ether_type == EtherType::ROCE_V1;
        let bth_at = ip_at + if is_v1 { 40 } else { 48 };
        free.push((bth_at + 4, 0xff));
        let udp_checksum = if is_v1 { vec![] } else { vec![ip_at + 46, ip_at + 47] };
        let masked = free.iter().map(|&(at, _)| at).chain(udp_checksum).collect();
        let end = (ip_at + 40 + usize::from(half(ip_at + 4))).clamp(bth_at + 12, frame.len());
        Self { ip_at, end, masked, free }
    }
}

/// Bits to flip: bit `n & 7` of byte `n >> 3`. One to three where the ICRC covers them, which it finds without fail (its
/// Hamming distance is 4 at these lengths), or a single one where it does not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Flip(Vec<usize>);

impl Flip {
    /// Of every five, one hits a byte that the ICRC does not cover.
    const MASKED_PPM: u32 = 200_000;

    pub(super) fn draw(frame: &[u8], stream: &mut Stream) -> Self {
        let bit = |byte: usize, stream: &mut Stream| byte << 3 | stream.random_range(0..8);
        let layout = Layout::of(frame);
        if chance(stream, Self::MASKED_PPM) {
            let byte = layout.masked[stream.random_range(0..layout.masked.len())];
            return Self(vec![bit(byte, stream)]);
        }
        let mut bits = Vec::new();
        let wanted = stream.random_range(1..=3);
        while bits.len() < wanted {
            let byte = stream.random_range(layout.ip_at..layout.end);
            let found = bit(byte, stream);
            if !layout.masked.contains(&byte) && !bits.contains(&found) {
                bits.push(found);
            }
        }
        Self(bits)
    }

    /// Flips them. True if the receiver must notice.
    pub(super) fn apply(&self, frame: &mut impl FrameStorage) -> bool {
        let free = Layout::of(frame.bytes()).free;
        let is_free = |bit: usize| free.iter().any(|&(at, mask)| at == bit >> 3 && mask >> (bit & 7) & 1 == 1);
        let mut matters = false;
        for &bit in &self.0 {
            frame.bytes_mut()[bit >> 3] ^= 1 << (bit & 7);
            if !is_free(bit) {
                frame.note_damage(Damage::Flipped(bit));
                matters = true;
            }
        }
        matters
    }
}

/// A length that is not all of the packet, but has an Ethernet header.
pub(super) fn truncated_len(frame: &[u8], stream: &mut Stream) -> usize {
    stream.random_range(ETHERNET_BYTES..Layout::of(frame).end)
}
