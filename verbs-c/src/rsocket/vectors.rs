//! Buffers of C programs: one, or a list of them, as one run of bytes.

use std::ffi::{c_int, c_void};
use std::slice;

use nix::libc::iovec;

use crate::entry::{self, Failure};

/// Buffers that a call may have at most (`IOV_MAX`).
const VECTORS_MAX: usize = 1024;

/// A program's buffers, and how far a call is with them. Slices are made one at a time, as long as a copy takes: a program may name
/// the same bytes twice.
pub(super) struct Vectors<'a> {
    vectors: &'a [iovec],
    /// Bytes of the first one that are done.
    skip: usize,
    left: usize,
}

impl<'a> Vectors<'a> {
    /// One buffer.
    ///
    /// # Safety
    /// Its memory is the call's, as long as the result lives.
    pub(super) unsafe fn one(vector: &'a iovec) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::over(slice::from_ref(vector)) }
    }

    /// A list.
    ///
    /// # Errors
    /// `EINVAL` for a length that is negative or too large.
    ///
    /// # Safety
    /// `vectors` are `count` buffers, or NULL if `count` is 0; their memory is the call's, as long as the result lives.
    pub(super) unsafe fn list(vectors: *const iovec, count: usize) -> Result<Self, Failure> {
        if count > VECTORS_MAX {
            return Err(entry::INVALID);
        }
        if count == 0 {
            return Ok(Self { vectors: &[], skip: 0, left: 0 });
        }
        if vectors.is_null() {
            return Err(Failure(nix::libc::EFAULT));
        }
        // SAFETY: the caller's promise.
        let vectors = unsafe { slice::from_raw_parts(vectors, count) };
        let sum = vectors.iter().try_fold(0_usize, |sum, vector| sum.checked_add(vector.iov_len));
        sum.filter(|&sum| isize::try_from(sum).is_ok()).ok_or(entry::INVALID)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { Self::over(vectors) })
    }

    /// # Safety
    /// As [`Vectors::list`].
    unsafe fn over(vectors: &'a [iovec]) -> Self {
        let mut all = Self { vectors, skip: 0, left: vectors.iter().map(|vector| vector.iov_len).sum() };
        all.skip_done();
        all
    }

    /// The buffers, none of which is done yet.
    pub(super) const fn rest(&self) -> &'a [iovec] {
        self.vectors
    }

    /// Bytes to go.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// The next bytes in one piece, to be read; none if all is done.
    pub(super) fn head(&self) -> &[u8] {
        let Some((start, bytes)) = self.first() else { return &[] };
        // SAFETY: the rest of a buffer of the program's, by the promise of who made us.
        unsafe { slice::from_raw_parts(start, bytes) }
    }

    /// The next bytes in one piece, at most `max`, to be written; none if all is done.
    pub(super) fn head_mut(&mut self, max: usize) -> &mut [u8] {
        let Some((start, bytes)) = self.first() else { return &mut [] };
        // SAFETY: the rest of a buffer of the program's, by the promise of who made us; there is no other slice of it.
        unsafe { slice::from_raw_parts_mut(start, bytes.min(max)) }
    }

    fn first(&self) -> Option<(*mut u8, usize)> {
        let first = self.vectors.first()?;
        Some((first.iov_base.cast::<u8>().wrapping_add(self.skip), first.iov_len - self.skip))
    }

    /// The next `bytes` of the first piece are done.
    pub(super) fn advance(&mut self, bytes: usize) {
        let bytes = self.first().map_or(0, |(_, left)| left.min(bytes));
        self.skip += bytes;
        self.left -= bytes;
        self.skip_done();
    }

    fn skip_done(&mut self) {
        while let Some((first, rest)) = self.vectors.split_first()
            && first.iov_len == self.skip
        {
            self.vectors = rest;
            self.skip = 0;
        }
    }
}

/// A buffer as the calls without lists have it.
pub(super) fn vector(buffer: *const c_void, bytes: usize) -> iovec {
    iovec { iov_base: buffer.cast_mut(), iov_len: bytes }
}

/// A count of C.
pub(super) fn count(count: c_int) -> Result<usize, Failure> {
    usize::try_from(count).map_err(|_| entry::INVALID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_in_the_order_of_the_list_and_empty_buffers_are_passed_over() {
        let (first, second) = ([1_u8, 2, 3], [4_u8, 5]);
        let none = vector(std::ptr::null(), 0);
        let list = [none, vector(first.as_ptr().cast(), 3), none, vector(second.as_ptr().cast(), 2), none];
        // SAFETY: the buffers live, and are only read.
        let mut vectors = unsafe { Vectors::list(list.as_ptr(), list.len()) }.unwrap();
        assert_eq!((vectors.left(), vectors.head()), (5, [1, 2, 3].as_slice()));
        vectors.advance(2);
        assert_eq!((vectors.left(), vectors.head()), (3, [3].as_slice()));
        vectors.advance(9);
        assert_eq!((vectors.left(), vectors.head()), (2, [4, 5].as_slice()));
        vectors.advance(2);
        assert_eq!((vectors.left(), vectors.head().len()), (0, 0));
    }

    #[test]
    fn lists_that_no_memory_has_are_refused() {
        let huge = [vector(std::ptr::null(), usize::MAX), vector(std::ptr::null(), 2)];
        let left = |list: *const iovec, count: usize| {
            // SAFETY: refused before anything is touched, or nothing.
            unsafe { Vectors::list(list, count) }.map(|vectors| vectors.left())
        };
        for count in [1, 2, VECTORS_MAX + 1] {
            assert_eq!(left(huge.as_ptr(), count), Err(entry::INVALID), "{count}");
        }
        assert_eq!(left(std::ptr::null(), 1), Err(Failure(nix::libc::EFAULT)));
        assert_eq!(left(std::ptr::null(), 0), Ok(0));
    }
}
