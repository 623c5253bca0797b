//! A transmit batch in ordinary memory.

use alloc::vec::Vec;

use super::{Dest, TxBatch};

/// Collects frames with their destinations: the batch of tests and of the simulator. It allocates for each frame.
#[derive(Clone, Debug)]
pub struct VecBatch {
    frames: Vec<(Dest, Vec<u8>)>,
    capacity: usize,
    frame_bytes_max: usize,
}

impl VecBatch {
    /// A frame of an Ethernet MTU of 9000 with a tag.
    const DEFAULT_FRAME_BYTES_MAX: usize = 9018;

    /// An empty batch with room for `capacity` frames of at most 9018 bytes.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self::with_frame_bytes_max(capacity, Self::DEFAULT_FRAME_BYTES_MAX)
    }

    /// An empty batch with room for `capacity` frames of at most `frame_bytes_max` bytes.
    #[must_use]
    pub fn with_frame_bytes_max(capacity: usize, frame_bytes_max: usize) -> Self {
        Self { frames: Vec::with_capacity(capacity), capacity, frame_bytes_max }
    }

    /// The frames in the order in which they were pushed.
    #[must_use]
    pub fn frames(&self) -> &[(Dest, Vec<u8>)] {
        &self.frames
    }

    /// Takes the frames out, in order, and has all its room again.
    pub fn take(&mut self) -> Vec<(Dest, Vec<u8>)> {
        core::mem::take(&mut self.frames)
    }
}

impl TxBatch for VecBatch {
    fn room(&self) -> usize {
        self.capacity - self.frames.len()
    }

    fn push(&mut self, dest: Dest, len: usize, fill: impl FnOnce(&mut [u8]) -> bool) -> bool {
        if self.room() == 0 || len > self.frame_bytes_max {
            return false;
        }
        // A device's buffer holds what its last user left: whoever forgets a byte should see it.
        let mut frame = alloc::vec![0xa5; len];
        let filled = fill(&mut frame);
        if filled {
            self.frames.push((dest, frame));
        }
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_keeps_what_is_filled_and_counts_room() {
        let mut batch = VecBatch::with_frame_bytes_max(2, 64);
        assert!(batch.push(Dest::Wire, 4, |buf| {
            buf.copy_from_slice(b"abcd");
            true
        }));
        assert!(!batch.push(Dest::Wire, 4, |_| false), "given back");
        assert_eq!(batch.room(), 1);
        assert!(!batch.push(Dest::Wire, 65, |_| unreachable!("too long to be lent")));
        assert!(batch.push(Dest::Local { shard: 1 }, 64, |buf| buf.len() == 64));
        assert!(!batch.push(Dest::Wire, 1, |_| unreachable!("no room")));
        let frames = batch.take();
        assert_eq!(frames[0], (Dest::Wire, b"abcd".to_vec()));
        assert_eq!(frames[1].0, Dest::Local { shard: 1 });
        assert_eq!((batch.room(), batch.frames().len()), (2, 0));
    }
}
