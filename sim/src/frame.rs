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
