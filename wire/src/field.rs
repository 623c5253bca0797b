//! Big-endian fields at fixed offsets of fixed-size headers.
//!
//! The offset is a const parameter and is checked against the header's length at compile time, so that reading or
//! writing a field can neither panic nor cost a bounds check.

/// Field access for a header of `N` bytes; multi-byte values are big-endian.
pub(crate) trait Fields {
    /// The byte at `AT`.
    fn be8<const AT: usize>(&self) -> u8;
    /// The 16-bit value at `AT`.
    fn be16<const AT: usize>(&self) -> u16;
    /// The 24-bit value at `AT`, in the low bits.
    fn be24<const AT: usize>(&self) -> u32;
    /// The 32-bit value at `AT`.
    fn be32<const AT: usize>(&self) -> u32;
    /// The 64-bit value at `AT`.
    fn be64<const AT: usize>(&self) -> u64;
    /// `LEN` bytes from `AT` on.
    fn array<const AT: usize, const LEN: usize>(&self) -> [u8; LEN];
    /// Writes the 16-bit `value` at `AT`.
    fn put_be16<const AT: usize>(&mut self, value: u16);
    /// Writes the low 24 bits of `value` at `AT`.
    fn put_be24<const AT: usize>(&mut self, value: u32);
    /// Writes the 32-bit `value` at `AT`.
    fn put_be32<const AT: usize>(&mut self, value: u32);
    /// Writes the 64-bit `value` at `AT`.
    fn put_be64<const AT: usize>(&mut self, value: u64);
    /// Writes `value` from `AT` on.
    fn put<const AT: usize, const LEN: usize>(&mut self, value: [u8; LEN]);
}

#[expect(clippy::indexing_slicing, reason = "each offset is checked at compile time")]
impl<const N: usize> Fields for [u8; N] {
    #[inline]
    fn be8<const AT: usize>(&self) -> u8 {
        const { assert!(AT < N) };
        self[AT]
    }

    #[inline]
    fn be16<const AT: usize>(&self) -> u16 {
        u16::from_be_bytes(self.array::<AT, 2>())
    }

    #[inline]
    fn be24<const AT: usize>(&self) -> u32 {
        let [high, middle, low] = self.array::<AT, 3>();
        u32::from_be_bytes([0, high, middle, low])
    }

    #[inline]
    fn be32<const AT: usize>(&self) -> u32 {
        u32::from_be_bytes(self.array::<AT, 4>())
    }

    #[inline]
    fn be64<const AT: usize>(&self) -> u64 {
        u64::from_be_bytes(self.array::<AT, 8>())
    }

    #[inline]
    fn array<const AT: usize, const LEN: usize>(&self) -> [u8; LEN] {
        const { assert!(AT + LEN <= N) };
        let mut value = [0; LEN];
        value.copy_from_slice(&self[AT..AT + LEN]);
        value
    }

    #[inline]
    fn put_be16<const AT: usize>(&mut self, value: u16) {
        self.put::<AT, 2>(value.to_be_bytes());
    }

    #[inline]
    fn put_be24<const AT: usize>(&mut self, value: u32) {
        let [_, high, middle, low] = value.to_be_bytes();
        self.put::<AT, 3>([high, middle, low]);
    }

    #[inline]
    fn put_be32<const AT: usize>(&mut self, value: u32) {
        self.put::<AT, 4>(value.to_be_bytes());
    }

    #[inline]
    fn put_be64<const AT: usize>(&mut self, value: u64) {
        self.put::<AT, 8>(value.to_be_bytes());
    }

    #[inline]
    fn put<const AT: usize, const LEN: usize>(&mut self, value: [u8; LEN]) {
        const { assert!(AT + LEN <= N) };
        self[AT..AT + LEN].copy_from_slice(&value);
    }
}

/// Gives a header type of fixed length, which has `LEN`, `from_bytes` and `to_bytes`, its `parse` and `emit`.
macro_rules! fixed_length_header {
    ($header:ty) => {
        impl $header {
            /// Reads the header at the start of `bytes`; `None` if fewer than [`Self::LEN`] bytes are there.
            #[inline]
            #[must_use]
            pub fn parse(bytes: &[u8]) -> Option<Self> {
                bytes.first_chunk().map(Self::from_bytes)
            }

            /// Writes the header at the start of `buf` and returns what follows it; `None`, with nothing written, if
            /// `buf` is shorter than [`Self::LEN`] bytes.
            #[inline]
            #[must_use = "a buffer that is too short is left as it was"]
            pub fn emit(self, buf: &mut [u8]) -> Option<&mut [u8]> {
                let (head, rest) = buf.split_first_chunk_mut()?;
                *head = self.to_bytes();
                Some(rest)
            }
        }
    };
}
pub(crate) use fixed_length_header;
