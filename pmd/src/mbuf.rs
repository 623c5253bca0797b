//! `Mbuf`: one packet buffer, owned.

use core::fmt;
use core::ptr::NonNull;
use core::slice;

/// Bytes in front of a frame in every buffer that DPDK leaves free (`RTE_PKTMBUF_HEADROOM`).
pub const HEADROOM_BYTES: u16 = ffi::RTE_PKTMBUF_HEADROOM as u16;

/// A packet buffer that holds one frame in one segment. Dropping it returns it to its pool.
///
/// *Layout*: exactly a pointer to DPDK's `rte_mbuf`, so that an array of `Mbuf` is the array that burst functions take.
///
/// *Invariant*: the pointer is to a live mbuf of a [`crate::Mempool`] of ours, this value is its only owner (reference
/// count 1), it has one segment, and its data lies inside its buffer. Pools are never freed, so an `Mbuf` may outlive
/// the queue and the pool handle that it came from.
#[repr(transparent)]
pub struct Mbuf(NonNull<ffi::rte_mbuf>);

// SAFETY: an mbuf has no tie to a thread: freeing goes to the pool's multi-producer ring or the calling thread's own
// cache, and the frame's bytes have one owner.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// Takes ownership of a raw mbuf.
    ///
    /// # Safety
    /// The invariant of the type holds for `raw` from here on, and nobody else will free it.
    pub(crate) const unsafe fn from_raw(raw: NonNull<ffi::rte_mbuf>) -> Self {
        Self(raw)
    }

    /// The raw pointer; this value stays the owner.
    pub(crate) const fn as_ptr(&self) -> *mut ffi::rte_mbuf {
        self.0.as_ptr()
    }

    /// The header, for reading.
    #[inline]
    fn header(&self) -> &ffi::rte_mbuf {
        // SAFETY: the type's invariant: live, and with this value as its only owner nobody writes it meanwhile.
        unsafe { self.0.as_ref() }
    }

    /// Pointer to the first byte of the frame.
    #[inline]
    fn data_ptr(&self) -> *mut u8 {
        let header = self.header();
        // SAFETY: the type's invariant: data_off is at most buf_len, the length of the buffer at buf_addr.
        unsafe { header.buf_addr.cast::<u8>().add(usize::from(header.data_off)) }
    }

    /// The frame, from the first byte of its Ethernet header.
    #[inline]
    #[must_use]
    pub fn data(&self) -> &[u8] {
        // SAFETY: the type's invariant: data_len bytes from here lie in the buffer, which this value owns.
        unsafe { slice::from_raw_parts(self.data_ptr(), self.len()) }
    }

    /// The frame, for writing in place.
    #[inline]
    #[must_use]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `data`; `&mut self` makes the view the only one.
        unsafe { slice::from_raw_parts_mut(self.data_ptr(), self.len()) }
    }

    /// Length of the frame in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.header().data_len)
    }

    /// Whether the frame has no byte.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes a frame in this buffer can have.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        let header = self.header();
        usize::from(header.buf_len.saturating_sub(header.data_off))
    }

    /// Makes the frame `len_bytes` long and lends it; bytes that were not part of it before hold anything.
    /// `None`, and nothing changed, when it would not fit.
    #[inline]
    pub fn resize(&mut self, len_bytes: usize) -> Option<&mut [u8]> {
        if len_bytes > self.capacity() {
            return None;
        }
        let data_len = u16::try_from(len_bytes).ok()?;
        // SAFETY: the type's invariant: live and owned here alone, so no other reference to the header exists.
        let header = unsafe { self.0.as_mut() };
        header.data_len = data_len;
        header.pkt_len = u32::from(data_len);
        Some(self.data_mut())
    }

    /// Asks the processor to load the frame's first two cache lines: Ethernet, IP, UDP, BTH and most extension headers.
    #[inline]
    pub fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let first = self.data_ptr().cast::<i8>();
            // SAFETY: a prefetch reads nothing architecturally and cannot fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first) };
            // SAFETY: as above; `wrapping_add`, because a short buffer may end before the second line.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(64)) };
        }
    }

    /// Number of segments, which is 1 for every mbuf that left this crate.
    #[inline]
    pub(crate) fn segment_count(&self) -> u16 {
        self.header().nb_segs
    }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        // SAFETY: the type's invariant: live, and owned by this value alone.
        unsafe { ffi::ferroce_mbuf_free(self.0.as_ptr()) };
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mbuf").field("len", &self.len()).field("capacity", &self.capacity()).finish()
    }
}
