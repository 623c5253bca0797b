//! Between the engine, which builds frames, and devices, which send them.

#[cfg(any(test, feature = "alloc"))]
mod vec_batch;
#[cfg(any(test, feature = "alloc"))]
pub use vec_batch::VecBatch;

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dest {
    /// Out of the port.
    Wire,
    /// To another shard of the same engine, as if it had come in from the port.
    Local {
        /// Index of the shard.
        shard: u8,
    },
}

/// Room for the frames of one transmit burst.
pub trait TxBatch {
    /// How many more frames [`Self::push`] takes.
    fn room(&self) -> usize;

    /// Lends a buffer of exactly `len` bytes, of any content, to `fill`, which returns false to give it back unsent.
    ///
    /// Returns whether a frame was queued. With no room, or a `len` over the device's frame size, `fill` is not called:
    /// nothing is lent and nothing lost.
    fn push(&mut self, dest: Dest, len: usize, fill: impl FnOnce(&mut [u8]) -> bool) -> bool;
}
