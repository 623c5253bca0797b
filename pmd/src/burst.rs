//! `Burst`: a fixed array of owned packet buffers, the unit that queues take and give.

use core::fmt;
use core::mem::{self, MaybeUninit};
use core::ops::{Deref, DerefMut};
use core::slice;

use crate::mbuf::Mbuf;

/// Up to [`Burst::CAPACITY`] packet buffers in order. Dropping or clearing it frees them in bulk.
///
/// It reads as a slice of [`Mbuf`]. *Cost*: no allocation, ever; 520 bytes.
pub struct Burst {
    slots: [MaybeUninit<Mbuf>; Burst::CAPACITY],
    /// The first `len` slots are initialised.
    len: usize,
}

impl Burst {
    /// How many buffers a burst holds.
    pub const CAPACITY: usize = 64;

    /// An empty burst.
    #[must_use]
    pub const fn new() -> Self {
        Self { slots: [const { MaybeUninit::uninit() }; Self::CAPACITY], len: 0 }
    }

    /// How many more buffers fit.
    #[inline]
    #[must_use]
    pub const fn room(&self) -> usize {
        Self::CAPACITY - self.len
    }

    /// Appends a buffer, or gives it back when the burst is full.
    ///
    /// # Errors
    /// The buffer itself, when there is no room.
    #[inline]
    pub fn push(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        match self.slots.get_mut(self.len) {
            Some(slot) => {
                slot.write(mbuf);
                self.len += 1;
                Ok(())
            }
            None => Err(mbuf),
        }
    }

    /// Takes the last buffer.
    #[inline]
    pub fn pop(&mut self) -> Option<Mbuf> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: the slot was below the old `len`, hence initialised; it is above the new one, so nobody reads it again.
        Some(unsafe { self.slots[self.len].assume_init_read() })
    }

    /// Takes every buffer, in order. Those that the iterator has not yielded when it is dropped are freed.
    #[inline]
    pub fn drain(&mut self) -> Drain<'_> {
        // The burst counts as empty at once: a leaked iterator leaks its buffers and nothing worse.
        let end = mem::take(&mut self.len);
        Drain { burst: self, next: 0, end }
    }

    /// Frees every buffer: one call into DPDK.
    pub fn clear(&mut self) {
        let count = mem::take(&mut self.len);
        self.free(0, count);
    }

    /// The slots behind the last buffer as DPDK's array, for a call that fills them.
    pub(crate) fn free_slots(&mut self) -> (*mut *mut ffi::rte_mbuf, usize) {
        let room = self.room();
        (self.slots[self.len..].as_mut_ptr().cast(), room)
    }

    /// Counts `count` slots behind the last buffer as filled.
    ///
    /// # Safety
    /// `count` is at most [`Burst::room`], and the first `count` of [`Burst::free_slots`] hold mbufs that satisfy the
    /// invariant of [`Mbuf`] and that nobody else owns.
    pub(crate) unsafe fn assume_filled(&mut self, count: usize) {
        debug_assert!(count <= self.room());
        self.len += count;
    }

    /// All buffers as DPDK's array, for a call that may take some from the front.
    pub(crate) fn as_raw_mut(&mut self) -> *mut *mut ffi::rte_mbuf {
        self.slots.as_mut_ptr().cast()
    }

    /// Forgets the first `count` buffers, which someone else has taken, and moves the others to the front.
    ///
    /// # Safety
    /// `count` is at most the length, and the new owner of those buffers will free them.
    pub(crate) unsafe fn forget_front(&mut self, count: usize) {
        debug_assert!(count <= self.len);
        let rest = self.len - count;
        if rest > 0 && count > 0 {
            // A move inside the array of `MaybeUninit`, whose values have no destructor.
            let base = self.slots.as_mut_ptr();
            // SAFETY: `count + rest` is the old length, within the array.
            let source = unsafe { base.add(count) };
            // SAFETY: both ranges lie in the array; `copy` allows them to overlap.
            unsafe { core::ptr::copy(source, base, rest) };
        }
        self.len = rest;
    }

    /// Frees the buffers in slots `from..to`, which `len` no longer covers.
    fn free(&mut self, from: usize, to: usize) {
        let taken = &mut self.slots[from..to];
        if taken.is_empty() {
            return;
        }
        let count = u32::try_from(taken.len()).expect("a burst has at most CAPACITY buffers");
        // SAFETY: these slots were initialised and owned by the burst, and are not read again.
        unsafe { ffi::rte_pktmbuf_free_bulk(taken.as_mut_ptr().cast(), count) };
    }
}

impl Default for Burst {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Burst {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Deref for Burst {
    type Target = [Mbuf];

    #[inline]
    fn deref(&self) -> &[Mbuf] {
        // SAFETY: the first `len` slots are initialised, and `MaybeUninit<Mbuf>` has the layout of `Mbuf`.
        unsafe { slice::from_raw_parts(self.slots.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Burst {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Mbuf] {
        // SAFETY: as in `deref`; `&mut self` makes the view the only one.
        unsafe { slice::from_raw_parts_mut(self.slots.as_mut_ptr().cast(), self.len) }
    }
}

impl fmt::Debug for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The buffers taken out of a [`Burst`] by [`Burst::drain`].
pub struct Drain<'a> {
    burst: &'a mut Burst,
    /// Slots `next..end` are initialised and belong to this iterator.
    next: usize,
    end: usize,
}

impl Iterator for Drain<'_> {
    type Item = Mbuf;

    #[inline]
    fn next(&mut self) -> Option<Mbuf> {
        if self.next == self.end {
            return None;
        }
        let slot = &self.burst.slots[self.next];
        self.next += 1;
        // SAFETY: the slot was in `next..end`, hence initialised; it is not any more, so nobody reads it again.
        Some(unsafe { slot.assume_init_read() })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end - self.next, Some(self.end - self.next))
    }
}

impl ExactSizeIterator for Drain<'_> {}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        self.burst.free(self.next, self.end);
    }
}
