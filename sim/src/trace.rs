//! The trace hash: two runs that put the same frames on the wire at the same times have the same.

use engine::Time;

/// Folds what happens into 64 bits (FNV-1a over words; payloads enter by their CRC).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceHash(u64);

impl Default for TraceHash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl TraceHash {
    /// Takes in a number.
    pub fn add(&mut self, word: u64) {
        // FNV's multiplication moves bits upwards only: fold them back.
        let mixed = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        self.0 = mixed ^ mixed >> 29;
    }

    /// Takes in a frame: when, from where, and what.
    pub fn add_frame(&mut self, at: Time, sender: u8, frame: &[u8]) {
        self.add(at.as_ns());
        self.add(u64::from(sender));
        self.add((frame.len() as u64) << 32 | u64::from(crc32fast::hash(frame)));
    }

    /// The hash so far.
    pub fn value(self) -> u64 {
        self.0
    }
}
