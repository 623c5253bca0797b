//! Frames as their owners store them: bytes in the simulator, buffers of a network device in a software switch.

/// A frame as its owner stores it.
pub trait FrameStorage: Sized {
    /// Its bytes.
    fn bytes(&self) -> &[u8];

    /// The same, to change them.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Another frame with the same bytes; `None` if there is no room for one.
    fn duplicate(&self) -> Option<Self>;

    /// Cuts the frame short, or adds zeros. False, and nothing is done, if there is no room.
    fn resize(&mut self, bytes: usize) -> bool;

    /// A link has damaged it where its receiver must notice. Not every owner keeps an account of that.
    fn note_damage(&mut self, _damage: Damage) {}
}

/// What a link did to a frame's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    /// A bit was flipped: bit `n & 7` of byte `n >> 3`.
    Flipped(usize),
    /// The end was cut off.
    Cut,
}

impl FrameStorage for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }

    fn duplicate(&self) -> Option<Self> {
        Some(self.clone())
    }

    fn resize(&mut self, bytes: usize) -> bool {
        Self::resize(self, bytes, 0);
        true
    }
}

/// Bytes, and whether a receiver must refuse them. A frame may be damaged by several links, copied after that, and dropped later:
/// only the frame itself knows what it has become.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MarkedFrame {
    bytes: Vec<u8>,
    /// Sum of the flipped bits, each spread over the word. A bit that was flipped twice adds nothing: it is right again.
    flipped: u64,
    is_cut: bool,
}

impl MarkedFrame {
    /// True if its bytes are not those that were sent, and a check covers what is different.
    pub fn is_damaged(&self) -> bool {
        self.flipped != 0 || self.is_cut
    }

    /// Its bytes alone.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl From<Vec<u8>> for MarkedFrame {
    /// A frame as it was sent.
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, flipped: 0, is_cut: false }
    }
}

impl FrameStorage for MarkedFrame {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn duplicate(&self) -> Option<Self> {
        Some(self.clone())
    }

    fn resize(&mut self, bytes: usize) -> bool {
        self.bytes.resize(bytes, 0);
        true
    }

    fn note_damage(&mut self, damage: Damage) {
        match damage {
            Damage::Flipped(bit) => self.flipped ^= (bit as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            Damage::Cut => self.is_cut = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_flipped_twice_is_right_again_and_a_cut_is_for_ever() {
        let mut frame = MarkedFrame::from(vec![0; 100]);
        let mut flip = |bit| {
            frame.note_damage(Damage::Flipped(bit));
            frame.is_damaged()
        };
        assert_eq!([flip(0), flip(300), flip(0), flip(300)], [true, true, true, false]);
        frame.note_damage(Damage::Cut);
        let copy = frame.duplicate().unwrap();
        assert!(frame.is_damaged() && copy.is_damaged());
    }
}
