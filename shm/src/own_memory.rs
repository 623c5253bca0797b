//! Memory of this process alone, or shared with its children, that may be registered by its addresses: for programs that have no
//! unsafe code of their own.

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::mapping::{MapError, OutOfBounds};
use crate::process_memory::OwnRange;

/// An anonymous mapping, zeroed. Peers and engines may change the bytes at any time: access is by copy, no `&[u8]` is ever made.
/// Unmapped when dropped.
pub struct OwnMemory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pointer is to a mapping that lives as long as `self`; all access is by raw copies, which need no exclusive owner.
unsafe impl Send for OwnMemory {}
// SAFETY: as above.
unsafe impl Sync for OwnMemory {}

impl OwnMemory {
    /// Maps `bytes` bytes, at least 1: `MAP_SHARED` if `shared`, else `MAP_PRIVATE`.
    ///
    /// # Errors
    /// [`MapError`] if there is no memory.
    pub fn new(bytes: u64, shared: bool) -> Result<Self, MapError> {
        let size = usize::try_from(bytes).ok().filter(|&b| b <= isize::MAX as usize).and_then(NonZeroUsize::new);
        let size = size.ok_or(MapError::BadSize(bytes))?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = if shared { MapFlags::MAP_SHARED } else { MapFlags::MAP_PRIVATE };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let base = unsafe { mmap_anonymous(None, size, protection, flags) };
        let base = base.map_err(|source| MapError::Os { call: "mmap", bytes, source })?;
        Ok(Self { base: base.cast(), bytes: size.get() })
    }

    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// All of it, to be registered. An engine finds nothing there once this is dropped: that is an error of its work request.
    pub fn range(&self) -> OwnRange {
        // SAFETY: no references to the bytes are ever made; what the kernel finds unmapped, or mapped by somebody else, it is
        // asked about by address, as of any process.
        unsafe { OwnRange::new(self.base.as_ptr(), self.bytes) }
    }

    /// The address of a range that lies inside.
    fn place(&self, offset: u64, length: usize) -> Result<*mut u8, OutOfBounds> {
        let end = offset.checked_add(length as u64).filter(|&end| end <= self.bytes as u64);
        end.map(|_| self.base.as_ptr().wrapping_add(offset as usize)).ok_or(OutOfBounds)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing was copied.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), OutOfBounds> {
        let target = self.place(offset, data.len())?;
        // SAFETY: the target lies in our mapping, which no Rust slice overlaps.
        unsafe { target.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Ok(())
    }

    /// Copies bytes out. What a peer writes meanwhile may be seen in part.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing was copied.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let source = self.place(offset, out.len())?;
        // SAFETY: the source lies in our mapping, which no Rust slice overlaps.
        unsafe { source.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
        Ok(())
    }
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows from it any more. A failure leaks address space, no more.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_outside_is() {
        for shared in [false, true] {
            let memory = OwnMemory::new(10_000, shared).unwrap();
            memory.write(9_990, &[7; 10]).unwrap();
            let mut out = [0; 10];
            memory.read(9_990, &mut out).unwrap();
            assert_eq!((out, memory.range().length()), ([7; 10], 10_000));
            assert_eq!(memory.write(9_991, &[7; 10]), Err(OutOfBounds));
            assert_eq!(memory.read(u64::MAX, &mut out), Err(OutOfBounds));
        }
        assert!(OwnMemory::new(0, false).is_err());
    }
}
