//! One direction of a link: a rate, a delay, an MTU, and faults.
//!
//! A [`Direction`] carries one frame at a time and keeps their order, but for those that its faults hold back. Who sends to
//! whom is the caller's affair.

mod faults;
mod script;
mod worst;

use engine::Time;
use rand::Rng;

use crate::frame::{Damage, FrameStorage};
use crate::network::headers::Headers;
use crate::random::{Stream, chance};
use faults::{BurstLoss, FlapClock, Flip, truncated_len};
pub use faults::{Faults, Flaps};
pub use script::{Action, Rule};
pub(crate) use worst::{Worst, maybe};

/// Bytes of the Ethernet header.
const ETHERNET_BYTES: usize = 14;
/// Preamble, start delimiter, check sequence and the gap between frames: what a frame costs beyond its bytes.
const OVERHEAD_BYTES: u64 = 24;
/// A shorter frame is padded by the device that sends it.
const FRAME_BYTES_MIN: usize = 60;

/// What a link is like when nothing is wrong with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkSettings {
    /// Mbit/s.
    pub rate_mbps: u32,
    /// From the end of sending to arrival, ns.
    pub delay_ns: u64,
    /// Added to the delay, from 0 to this, ns. Frames stay in order.
    pub jitter_ns: u64,
    /// Layer 3 bytes of the largest frame.
    pub mtu: u16,
}

impl Default for LinkSettings {
    /// 100 Gbit/s over 2 µs, jumbo frames.
    fn default() -> Self {
        Self { rate_mbps: 100_000, delay_ns: 2_000, jitter_ns: 0, mtu: 9_000 }
    }
}

impl LinkSettings {
    /// How long a frame of `bytes` bytes takes to be sent, ns.
    pub fn serialization_ns(&self, bytes: u64) -> u64 {
        (bytes + OVERHEAD_BYTES) * 8_000 / u64::from(self.rate_mbps)
    }

    /// Bytes that may still come after a pause was asked for: a round trip at full rate, the largest frame that each end had
    /// begun to send, and one that a device did not take back.
    pub fn headroom_bytes(&self) -> u64 {
        let round_trip_ns = 2 * (self.delay_ns + self.jitter_ns);
        let frame_bytes = u64::from(self.mtu) + ETHERNET_BYTES as u64 + OVERHEAD_BYTES;
        round_trip_ns * u64::from(self.rate_mbps) / 8_000 + 3 * frame_bytes
    }
}

/// A frame that will arrive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery<F = Vec<u8>> {
    /// When.
    pub at: Time,
    /// Its bytes, which are not always those that were sent.
    pub frame: F,
}

/// What became of the frames that were sent in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkCounters {
    /// Frames put on the wire.
    pub sent: u64,
    /// Those of them that were RoCE.
    pub sent_roce: u64,
    /// Frames that arrive, copies included.
    pub delivered: u64,
    /// Lost one by one.
    pub lost: u64,
    /// Lost in bursts.
    pub lost_in_bursts: u64,
    /// Lost because the link was down.
    pub lost_in_flaps: u64,
    /// Lost by the script.
    pub lost_by_rule: u64,
    /// Larger than the MTU.
    pub oversize: u64,
    /// Shorter than a frame may be, and its storage has no room for more.
    pub unpadded: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Meant to be sent twice, but there was no storage for a copy.
    pub copies_missing: u64,
    /// Held back, so that later frames pass them.
    pub reordered: u64,
    /// Bits flipped where a check covers them: none of these may be executed.
    pub corrupted: u64,
    /// Bits flipped that no check covers, and that mean nothing.
    pub corrupted_harmlessly: u64,
    /// Cut short.
    pub truncated: u64,
    /// Delayed by a spike.
    pub spikes: u64,
    /// Marked (ECN CE).
    pub marked: u64,
}

impl LinkCounters {
    /// Frames that did not arrive at all.
    pub fn dropped(&self) -> u64 {
        self.lost + self.lost_in_bursts + self.lost_in_flaps + self.lost_by_rule + self.oversize + self.unpadded
    }
}

/// What a direction did to a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome<F = Vec<u8>> {
    /// Arrivals: none if it was lost, two if it was duplicated.
    pub deliveries: [Option<Delivery<F>>; 2],
    /// What was done to it, for the capture.
    pub note: Option<&'static str>,
}

impl<F> Outcome<F> {
    fn lost(counter: &mut u64, note: &'static str) -> Self {
        *counter += 1;
        Self { deliveries: [None, None], note: Some(note) }
    }
}

/// One direction of a link.
#[derive(Debug)]
pub struct Direction {
    settings: LinkSettings,
    faults: Faults,
    rules: Vec<Rule>,
    stream: Stream,
    burst: BurstLoss,
    flap: FlapClock,
    last_arrival: Time,
    counters: LinkCounters,
}

impl Direction {
    /// A direction that draws its luck from `stream`. `rules` come before the faults.
    pub fn new(settings: LinkSettings, faults: Faults, rules: Vec<Rule>, stream: Stream) -> Self {
        Self {
            settings,
            faults,
            rules,
            stream,
            burst: BurstLoss::default(),
            flap: FlapClock::default(),
            last_arrival: Time::ZERO,
            counters: LinkCounters::default(),
        }
    }

    /// What the link is like.
    pub fn settings(&self) -> &LinkSettings {
        &self.settings
    }

    /// What became of its frames.
    pub fn counters(&self) -> &LinkCounters {
        &self.counters
    }

    /// Ends all faults. Rules stay.
    pub fn heal(&mut self) {
        self.faults = Faults::NONE;
    }

    /// A frame has left the sender at `now`: what arrives at the other end, and when.
    pub fn carry<F: FrameStorage>(&mut self, now: Time, mut frame: F) -> Outcome<F> {
        self.counters.sent += 1;
        if frame.bytes().len() < FRAME_BYTES_MIN && !frame.resize(FRAME_BYTES_MIN) {
            // Nothing below could rely on its length.
            return Outcome::lost(&mut self.counters.unpadded, "dropped: no room to pad it");
        }
        let is_roce = is_roce(frame.bytes());
        self.counters.sent_roce += u64::from(is_roce);
        if frame.bytes().len() > usize::from(self.settings.mtu) + ETHERNET_BYTES {
            return Outcome::lost(&mut self.counters.oversize, "dropped: larger than the MTU");
        }
        match self.rules.iter_mut().find_map(|rule| rule.apply(frame.bytes())) {
            Some(Action::Drop) => return Outcome::lost(&mut self.counters.lost_by_rule, "dropped: by a rule"),
            Some(Action::Duplicate) => return self.deliver_twice(now, frame),
            Some(Action::HoldBack { ns }) => return self.hold_back(now, frame, ns),
            None => {}
        }
        let is_spared = self.faults.spares_arp && !is_roce;
        if self.faults == Faults::NONE || is_spared {
            self.deliver(now, frame, None)
        } else {
            self.carry_badly(now, frame, is_roce)
        }
    }

    fn carry_badly<F: FrameStorage>(&mut self, now: Time, mut frame: F, is_roce: bool) -> Outcome<F> {
        let faults = self.faults;
        if self.flap.is_down(now, faults.flaps, &mut self.stream) {
            return Outcome::lost(&mut self.counters.lost_in_flaps, "dropped: the link is down");
        }
        if self.burst.loses(faults.burst_start_ppm, faults.burst_frames, &mut self.stream) {
            return Outcome::lost(&mut self.counters.lost_in_bursts, "dropped: burst loss");
        }
        if chance(&mut self.stream, faults.loss_ppm) {
            return Outcome::lost(&mut self.counters.lost, "dropped: loss");
        }
        if chance(&mut self.stream, faults.duplicate_ppm) {
            return self.deliver_twice(now, frame);
        }
        // A damaged ARP packet does not reach anybody: the frame's check sequence is all that it has.
        if is_roce {
            if chance(&mut self.stream, faults.corrupt_ppm) {
                let note = match Flip::draw(frame.bytes(), &mut self.stream).apply(&mut frame) {
                    true => {
                        self.counters.corrupted += 1;
                        "corrupted"
                    }
                    false => {
                        self.counters.corrupted_harmlessly += 1;
                        "corrupted where it does not matter"
                    }
                };
                return self.deliver(now, frame, Some(note));
            }
            if chance(&mut self.stream, faults.truncate_ppm) {
                // There is always room for less.
                frame.resize(truncated_len(frame.bytes(), &mut self.stream));
                frame.note_damage(Damage::Cut);
                self.counters.truncated += 1;
                return self.deliver(now, frame, Some("truncated"));
            }
        }
        if chance(&mut self.stream, faults.reorder_ppm) {
            let ns = self.stream.random_range(1..=faults.reorder_ns.max(1));
            return self.hold_back(now, frame, ns);
        }
        if chance(&mut self.stream, faults.spike_ppm) {
            // Everything behind it waits as well.
            self.counters.spikes += 1;
            self.last_arrival = self.last_arrival.max(now.add_ns(self.settings.delay_ns + faults.spike_ns));
            return self.deliver(now, frame, Some("delayed by a spike"));
        }
        if chance(&mut self.stream, faults.mark_ppm)
            && let Some(ip) = Headers::parse(frame.bytes()).and_then(|headers| headers.ip)
            && ip.may_be_marked()
        {
            ip.mark(frame.bytes_mut());
            self.counters.marked += 1;
            return self.deliver(now, frame, Some("marked"));
        }
        self.deliver(now, frame, None)
    }

    /// When a frame that leaves now arrives in its order.
    fn arrival(&mut self, now: Time) -> Time {
        let jitter = match self.settings.jitter_ns {
            0 => 0,
            most => self.stream.random_range(0..=most),
        };
        let at = now.add_ns(self.settings.delay_ns + jitter).max(self.last_arrival);
        self.last_arrival = at;
        at
    }

    fn deliver<F: FrameStorage>(&mut self, now: Time, frame: F, note: Option<&'static str>) -> Outcome<F> {
        let at = self.arrival(now);
        self.counters.delivered += 1;
        Outcome { deliveries: [Some(Delivery { at, frame }), None], note }
    }

    fn deliver_twice<F: FrameStorage>(&mut self, now: Time, frame: F) -> Outcome<F> {
        let at = self.arrival(now);
        let late = at.add_ns(self.stream.random_range(0..=4 * self.settings.delay_ns));
        self.counters.delivered += 1;
        let copy = frame.duplicate().map(|frame| Delivery { at: late, frame });
        match copy {
            Some(_) => {
                self.counters.duplicated += 1;
                self.counters.delivered += 1;
            }
            None => self.counters.copies_missing += 1,
        }
        Outcome { deliveries: [Some(Delivery { at, frame }), copy], note: Some("duplicated") }
    }

    fn hold_back<F: FrameStorage>(&mut self, now: Time, frame: F, ns: u64) -> Outcome<F> {
        self.counters.reordered += 1;
        self.counters.delivered += 1;
        let at = now.add_ns(self.settings.delay_ns + ns);
        Outcome { deliveries: [Some(Delivery { at, frame }), None], note: Some("held back") }
    }
}

fn is_roce(frame: &[u8]) -> bool {
    wire::dest_qpn(frame).is_some()
}

#[cfg(test)]
mod tests;
