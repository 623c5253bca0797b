//! How long frames take on a wire, to the bit: what does not fill a nanosecond is carried over to the next frame.

use engine::Time;

/// Preamble, start delimiter, check sequence and the gap between frames: what a frame costs beyond its bytes.
pub const OVERHEAD_BYTES: u64 = 24;
/// A shorter frame is padded by the device that sends it.
pub const FRAME_BYTES_MIN: u64 = wire::ethernet::MIN_FRAME_BYTES as u64;

/// The clock of a transmitter.
#[derive(Clone, Copy, Debug)]
pub struct Serializer {
    rate_mbps: u32,
    free_at: Time,
    /// Bits that were sent but take less than a nanosecond, times 1,000.
    carry: u64,
}

impl Serializer {
    /// A transmitter that is free.
    pub fn new(rate_mbps: u32) -> Self {
        Self { rate_mbps, free_at: Time::ZERO, carry: 0 }
    }

    /// Mbit/s.
    pub fn rate_mbps(&self) -> u32 {
        self.rate_mbps
    }

    /// When it may begin the next frame.
    pub fn free_at(&self) -> Time {
        self.free_at
    }

    /// True if a frame may begin now.
    pub fn is_free(&self, now: Time) -> bool {
        self.free_at <= now
    }

    /// Sends a frame of `bytes` bytes, from now on or from when it is free. When the last bit has left.
    pub fn send(&mut self, now: Time, bytes: usize) -> Time {
        if self.free_at < now {
            (self.free_at, self.carry) = (now, 0);
        }
        let kilobits = ((bytes as u64).max(FRAME_BYTES_MIN) + OVERHEAD_BYTES) * 8_000 + self.carry;
        let rate = u64::from(self.rate_mbps);
        self.carry = kilobits % rate;
        self.free_at = self.free_at.add_ns(kilobits / rate);
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_link_sends_at_its_rate_to_the_bit() {
        for (rate_mbps, bytes) in [(100_000, 1_064), (40_000, 60), (400_000, 4_178), (25_000, 1_518), (7, 999)] {
            let mut serializer = Serializer::new(rate_mbps);
            let frames = u64::from(rate_mbps) * 10;
            for _ in 0..frames {
                serializer.send(Time::ZERO, bytes);
            }
            // Frames that make a whole number of nanoseconds together.
            let bits = frames * (bytes as u64 + OVERHEAD_BYTES) * 8;
            assert_eq!(serializer.free_at().as_ns(), bits * 1_000 / u64::from(rate_mbps), "{bytes} bytes, {rate_mbps}");
        }
    }

    #[test]
    fn an_idle_link_owes_nothing() {
        let mut serializer = Serializer::new(3_000);
        let first = serializer.send(Time::ZERO, 60);
        let again = serializer.send(Time::from_ns(1_000_000), 60);
        assert_eq!(again.as_ns() - 1_000_000, first.as_ns());
        assert!(!serializer.is_free(Time::from_ns(1_000_000)) && serializer.is_free(again));
    }
}
