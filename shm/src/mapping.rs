//! Memory that two processes map: a sealed memfd, and bounded access to it that never makes a reference.

use std::ffi::CStr;
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::sys::stat::fstat;
use nix::unistd::{Whence, lseek};

use crate::copy_crc;

/// Unit of `st_blocks`.
const STAT_BLOCK_BYTES: u64 = 512;

/// Why memory could not be made or mapped.
#[derive(thiserror::Error, Debug)]
pub enum MapError {
    /// Nothing to map.
    #[error("a region of {0} bytes can't be mapped: it must have at least 1 byte and fit the address space")]
    BadSize(u64),
    /// The file could shrink under us, which would kill the process that touches it.
    #[error(
        "the file is not sealed against shrinking: make it with memfd_create(MFD_ALLOW_SEALING) and add F_SEAL_SHRINK"
    )]
    NotSealed,
    /// The file can't be mapped for writing.
    #[error("the file is sealed against writing (F_SEAL_WRITE, F_SEAL_FUTURE_WRITE): it can be attached only once")]
    SealedForWriting,
    /// The file is shorter than the mapping.
    #[error("the file has {file_bytes} bytes, fewer than the {wanted_bytes} to be mapped")]
    TooShort {
        /// What was asked for.
        wanted_bytes: u64,
        /// What there is.
        file_bytes: u64,
    },
    /// Pages of the file are missing: whoever touches one first would have to have memory for it.
    #[error("of the file's first {0} bytes not all are in memory: fill it before it is attached")]
    Holes(u64),
    /// Pages of the file could be taken away, and no seal can be added against it.
    #[error(
        "the file's seals are sealed (F_SEAL_SEAL) without F_SEAL_FUTURE_WRITE, which keeps its pages from being removed"
    )]
    Removable,
    /// No more mappings that others may truncate.
    #[error("{0} mappings of memory that others may truncate are in use, which is the limit")]
    TooMany(usize),
    /// The operating system refused.
    #[error("{call} of {bytes} bytes: {source}")]
    Os {
        /// The system call.
        call: &'static str,
        /// The size asked for.
        bytes: u64,
        /// What it said.
        source: nix::Error,
    },
}

/// An access that does not lie inside the mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("access outside the mapping")]
pub struct OutOfBounds;

/// Pages behind a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PageSize {
    /// The machine's ordinary pages.
    #[default]
    Base,
    /// 2 MiB hugetlb pages.
    Huge2M,
}

/// Pages of a file that others may map too. Unmapped when dropped.
///
/// Other processes may change the bytes at any time. Access is by copy or by atomics only; no `&[u8]` is ever made.
pub struct Pages {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pointer is to a shared mapping that lives as long as `self`; all access is by raw copies and atomics, which
// need no exclusive owner.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

/// A shared mapping of a sealed memfd ([`Pages`]), and the file, to be passed on.
#[derive(Debug)]
pub struct Mapping {
    pages: Pages,
    fd: OwnedFd,
}

impl Deref for Mapping {
    type Target = Pages;

    #[inline]
    fn deref(&self) -> &Pages {
        &self.pages
    }
}

impl Mapping {
    /// Makes zeroed memory of `bytes` bytes, sealed against shrinking and growing, and maps it. Other seals can be added:
    /// [`Mapping::keep_pages`].
    ///
    /// # Errors
    /// [`MapError::Os`] when there is not enough memory (or no hugepage) or too many files are open.
    pub fn create(name: &CStr, bytes: u64, pages: PageSize) -> Result<Self, MapError> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let (flags, bytes) = match pages {
            PageSize::Base => (flags, bytes.next_multiple_of(4096)),
            PageSize::Huge2M => {
                (flags | MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB, bytes.next_multiple_of(2 << 20))
            }
        };
        let os = |call| move |source| MapError::Os { call, bytes, source };
        let fd = memfd_create(name, flags).map_err(os("memfd_create"))?;
        let length = i64::try_from(bytes).map_err(|_| MapError::BadSize(bytes))?;
        nix::unistd::ftruncate(&fd, length).map_err(os("ftruncate"))?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).map_err(os("fcntl(F_ADD_SEALS)"))?;
        Self::map(fd, bytes)
    }

    /// Maps the first `bytes` bytes of a file that another process made.
    ///
    /// # Errors
    /// [`MapError::NotSealed`] unless the file is a memfd that can't shrink: a truncation would kill us by SIGBUS.
    /// [`MapError::SealedForWriting`] if it is that as well.
    /// [`MapError::TooShort`] if it has fewer bytes.
    pub fn attach(fd: OwnedFd, bytes: u64) -> Result<Self, MapError> {
        let seals = fcntl(&fd, FcntlArg::F_GET_SEALS).map_err(|_| MapError::NotSealed)?;
        let seals = SealFlag::from_bits_truncate(seals);
        if !seals.contains(SealFlag::F_SEAL_SHRINK) {
            return Err(MapError::NotSealed);
        }
        if seals.intersects(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_FUTURE_WRITE) {
            return Err(MapError::SealedForWriting);
        }
        let stat = fstat(&fd).map_err(|source| MapError::Os { call: "fstat", bytes, source })?;
        let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        if file_bytes < bytes {
            return Err(MapError::TooShort { wanted_bytes: bytes, file_bytes });
        }
        Self::map(fd, bytes)
    }

    /// Seals the file so that nobody can take pages from it, and checks that all pages of the mapping are there: a page that
    /// is missing is one that we would pay for when it is touched, or be killed for if there is none. From now on the file
    /// can't be mapped anew for writing; mappings that exist stay as they are.
    ///
    /// # Errors
    /// [`MapError::Removable`], [`MapError::Holes`].
    pub fn keep_pages(&self) -> Result<(), MapError> {
        let os = |call| move |source| MapError::Os { call, bytes: self.bytes(), source };
        // Fewer pages than that are a mistake, which need not cost the file: this does not see which pages they are.
        let stat = fstat(&self.fd).map_err(os("fstat"))?;
        if u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(STAT_BLOCK_BYTES) < self.bytes() {
            return Err(MapError::Holes(self.bytes()));
        }
        fcntl(&self.fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_FUTURE_WRITE)).map_err(|errno| match errno {
            nix::Error::EPERM => MapError::Removable,
            _ => os("fcntl(F_ADD_SEALS)")(errno),
        })?;
        // Only behind the seal does the answer stay true. (In hugetlb memory no hole is found; nobody is killed for one either.)
        let hole = lseek(&self.fd, 0, Whence::SeekHole).map_err(os("lseek(SEEK_HOLE)"))?;
        if u64::try_from(hole).is_ok_and(|hole| hole >= self.bytes()) {
            Ok(())
        } else {
            Err(MapError::Holes(self.bytes()))
        }
    }

    fn map(fd: OwnedFd, bytes: u64) -> Result<Self, MapError> {
        Ok(Self { pages: Pages::map(fd.as_fd(), 0, bytes)?, fd })
    }

    /// The file behind it, to be passed to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Pages {
    /// Maps a part of a file, whole pages. Others may take pages away from it, unless seals keep them from it: see [`crate::guarded`].
    pub(crate) fn map(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<Self, MapError> {
        let size = usize::try_from(bytes).ok().filter(|&b| b <= isize::MAX as usize).and_then(NonZeroUsize::new);
        let size = size.ok_or(MapError::BadSize(bytes))?;
        let offset = i64::try_from(offset).map_err(|_| MapError::BadSize(offset))?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let base = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, fd, offset) };
        let base = base.map_err(|source| MapError::Os { call: "mmap", bytes, source })?;
        Ok(Self { base: base.cast(), bytes: size.get() })
    }

    /// Faults every page of a range in, so that no page fault happens later on the data path.
    ///
    /// # Errors
    /// [`MapError::Os`] when there is no memory for it. Ordinary pages are a matter of the system's memory as a whole: when
    /// that runs out, the kernel kills somebody.
    pub fn populate(&self, offset: u64, bytes: u64) -> Result<(), MapError> {
        const PAGE: u64 = 4096;
        if bytes == 0 {
            return Ok(());
        }
        self.check(offset, bytes).map_err(|OutOfBounds| MapError::BadSize(bytes))?;
        let start = offset / PAGE * PAGE;
        let length = (offset + bytes - start) as usize;
        let at = self.pointer(start);
        // SAFETY: the range lies in our mapping (checked above; the mapping is a whole number of pages).
        let done = unsafe { madvise(at.cast(), length, MmapAdvise::MADV_POPULATE_WRITE) };
        done.map_err(|source| MapError::Os { call: "madvise(MADV_POPULATE_WRITE)", bytes, source })
    }

    /// Bytes of the mapping.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Where the mapping starts in this process. Other processes may change the bytes behind it at any time.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    #[inline]
    fn check(&self, offset: u64, bytes: u64) -> Result<(), OutOfBounds> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes as u64 => Ok(()),
            _ => Err(OutOfBounds),
        }
    }

    /// The address of a byte. `offset` was checked to lie in the mapping.
    #[inline]
    fn pointer(&self, offset: u64) -> NonNull<u8> {
        // SAFETY: callers checked that `offset` is at most `self.bytes`, which is at most `isize::MAX`.
        unsafe { self.base.add(offset as usize) }
    }

    /// Copies bytes out of shared memory.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing was copied.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.check(offset, out.len() as u64)?;
        let source = self.pointer(offset).as_ptr();
        // SAFETY: the source range lies in the mapping, the destination is a Rust slice, which no shared mapping overlaps.
        unsafe { source.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies bytes into shared memory.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing was copied.
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), OutOfBounds> {
        self.check(offset, data.len() as u64)?;
        let target = self.pointer(offset).as_ptr();
        // SAFETY: the target range lies in the mapping, the source is a Rust slice, which no shared mapping overlaps.
        unsafe { target.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Ok(())
    }

    /// Copies bytes out of shared memory and folds what was copied into the CRC-32 `crc` (zlib's convention).
    ///
    /// The CRC is of the bytes as copied, even if another process changes them meanwhile.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing was copied.
    #[inline]
    pub fn read_crc(&self, offset: u64, out: &mut [u8], crc: u32) -> Result<u32, OutOfBounds> {
        self.check(offset, out.len() as u64)?;
        // SAFETY: the source range lies in the mapping, which no Rust slice overlaps.
        Ok(unsafe { copy_crc::copy_crc(out, self.pointer(offset).as_ptr(), crc) })
    }

    /// Sets a range to zero.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing was changed.
    pub fn zero(&self, offset: u64, bytes: u64) -> Result<(), OutOfBounds> {
        self.check(offset, bytes)?;
        let target = self.pointer(offset).as_ptr();
        // SAFETY: the range lies in the mapping.
        unsafe { target.write_bytes(0, bytes as usize) };
        Ok(())
    }

    /// Gives the pages of a range back to the system, in every process that maps them; they read as zero afterwards.
    ///
    /// Bytes of pages that the range covers only in part are set to zero instead.
    pub fn discard(&self, offset: u64, bytes: u64) {
        const PAGE: u64 = 4096;
        if self.check(offset, bytes).is_err() {
            return;
        }
        let (start, end) = (offset.next_multiple_of(PAGE), (offset + bytes) / PAGE * PAGE);
        if start >= end {
            let _ = self.zero(offset, bytes);
            return;
        }
        let _ = self.zero(offset, start - offset);
        let _ = self.zero(end, offset + bytes - end);
        let at = self.pointer(start);
        // SAFETY: whole pages inside our mapping.
        let done = unsafe { madvise(at.cast(), (end - start) as usize, MmapAdvise::MADV_REMOVE) };
        if done.is_err() {
            let _ = self.zero(start, end - start);
        }
    }

    /// A 32-bit word for atomic access, or `None` if it is misaligned or outside.
    #[inline]
    pub fn atomic_u32(&self, offset: u64) -> Option<&AtomicU32> {
        self.check(offset, 4).ok()?;
        let at = self.pointer(offset).cast::<u32>();
        // SAFETY: in bounds, aligned (checked), valid as long as `self`; both sides use these words atomically only.
        at.is_aligned().then(|| unsafe { AtomicU32::from_ptr(at.as_ptr()) })
    }

    /// A 64-bit word for atomic access, or `None` if it is misaligned or outside.
    #[inline]
    pub fn atomic_u64(&self, offset: u64) -> Option<&AtomicU64> {
        self.check(offset, 8).ok()?;
        let at = self.pointer(offset).cast::<u64>();
        // SAFETY: in bounds, aligned (checked), valid as long as `self`; both sides use these words atomically only.
        at.is_aligned().then(|| unsafe { AtomicU64::from_ptr(at.as_ptr()) })
    }

    /// Loads `N` consecutive 64-bit words, each once, in any order; `None` if they are misaligned or outside.
    #[inline]
    pub fn load_words<const N: usize>(&self, offset: u64) -> Option<[u64; N]> {
        self.check(offset, N as u64 * 8).ok()?;
        let first = self.pointer(offset).cast::<u64>();
        if !first.is_aligned() {
            return None;
        }
        // SAFETY: word `i` is in bounds and aligned (checked above); both sides use these words atomically only.
        Some(std::array::from_fn(|i| unsafe { AtomicU64::from_ptr(first.as_ptr().wrapping_add(i)) }.load(Relaxed)))
    }

    /// Stores `N` consecutive 64-bit words, the last one with release ordering.
    ///
    /// # Errors
    /// [`OutOfBounds`] if they are misaligned or outside; nothing was stored.
    #[inline]
    pub fn store_words<const N: usize>(&self, offset: u64, words: [u64; N]) -> Result<(), OutOfBounds> {
        self.check(offset, N as u64 * 8)?;
        let first = self.pointer(offset).cast::<u64>();
        if !first.is_aligned() {
            return Err(OutOfBounds);
        }
        for (i, word) in words.into_iter().enumerate() {
            // SAFETY: word `i` is in bounds and aligned (checked above); both sides use these words atomically only.
            let at = unsafe { AtomicU64::from_ptr(first.as_ptr().wrapping_add(i)) };
            // PAIRS WITH: the acquire load of the last word by the reader, which then sees the words before it.
            at.store(word, if i + 1 == N { Release } else { Relaxed });
        }
        Ok(())
    }

    /// Compare-and-swap or fetch-and-add at an 8-byte aligned offset, for RDMA atomics; returns the value before.
    ///
    /// # Errors
    /// [`OutOfBounds`] if the word is misaligned or outside; nothing was changed.
    #[inline]
    pub fn update_u64(&self, offset: u64, change: impl Fn(u64) -> Option<u64>) -> Result<u64, OutOfBounds> {
        use std::sync::atomic::Ordering::{AcqRel, Acquire};
        let word = self.atomic_u64(offset).ok_or(OutOfBounds)?;
        // PAIRS WITH: whatever the application orders its own accesses to this word by.
        Ok(word.fetch_update(AcqRel, Acquire, change).unwrap_or_else(|unchanged| unchanged))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows from it any more. A failure leaks address space, no more.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}

impl core::fmt::Debug for Pages {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Pages").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_what_another_mapping_of_the_file_wrote() {
        let ours = Mapping::create(c"test", 8192, PageSize::Base).unwrap();
        let theirs = Mapping::attach(ours.fd().try_clone_to_owned().unwrap(), 8192).unwrap();
        theirs.write(8180, b"hello").unwrap();
        let mut out = [0; 5];
        ours.read(8180, &mut out).unwrap();
        assert_eq!(&out, b"hello");
        let crc = ours.read_crc(8180, &mut out, 0).unwrap();
        assert_eq!(crc, crc32fast::hash(b"hello"));
    }

    #[test]
    fn access_outside_is_refused_and_changes_nothing() {
        let m = Mapping::create(c"test", 4096, PageSize::Base).unwrap();
        assert_eq!(m.write(4095, &[1, 2]), Err(OutOfBounds));
        assert_eq!(m.read(u64::MAX, &mut [0; 2]), Err(OutOfBounds));
        assert!(m.atomic_u32(2).is_none());
        assert!(m.atomic_u64(4092).is_none());
        let mut last = [9];
        m.read(4095, &mut last).unwrap();
        assert_eq!(last, [0]);
    }

    #[test]
    fn a_file_that_can_shrink_is_refused() {
        let fd = memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&fd, 4096).unwrap();
        assert!(matches!(Mapping::attach(fd, 4096), Err(MapError::NotSealed)));
        let ours = Mapping::create(c"test", 4096, PageSize::Base).unwrap();
        let fd = ours.fd().try_clone_to_owned().unwrap();
        assert!(matches!(Mapping::attach(fd, 8192), Err(MapError::TooShort { .. })));
    }

    #[test]
    fn memory_that_is_kept_has_all_its_pages_and_loses_none() {
        use nix::fcntl::{FallocateFlags, fallocate};
        let theirs = Mapping::create(c"test", 8192, PageSize::Base).unwrap();
        let fd = || theirs.fd().try_clone_to_owned().unwrap();
        theirs.write(0, &[1]).unwrap();
        let ours = Mapping::attach(fd(), 8192).unwrap();
        let holes = ours.keep_pages().unwrap_err();
        assert!(matches!(holes, MapError::Holes(8192)), "{holes}");
        theirs.write(4096, &[1]).unwrap();
        ours.keep_pages().unwrap();
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        assert_eq!(fallocate(fd(), punch, 0, 4096), Err(nix::Error::EPERM));
        theirs.discard(0, 4096);
        let mut byte = [9];
        ours.read(0, &mut byte).unwrap();
        assert_eq!(byte, [0], "zeroed, not removed");
        ours.keep_pages().unwrap();
        assert!(matches!(Mapping::attach(fd(), 8192), Err(MapError::SealedForWriting)));
    }

    #[test]
    fn memory_whose_seals_are_sealed_is_not_kept() {
        let theirs = Mapping::create(c"test", 4096, PageSize::Base).unwrap();
        theirs.write(0, &[1]).unwrap();
        fcntl(theirs.fd(), FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SEAL)).unwrap();
        let ours = Mapping::attach(theirs.fd().try_clone_to_owned().unwrap(), 4096).unwrap();
        assert!(matches!(ours.keep_pages(), Err(MapError::Removable)));
    }

    #[test]
    fn pages_elsewhere_in_the_file_do_not_count() {
        let fd = memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&fd, 8192).unwrap();
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        nix::sys::uio::pwrite(&fd, &[1], 4096).unwrap();
        assert!(matches!(Mapping::attach(fd, 4096).unwrap().keep_pages(), Err(MapError::Holes(4096))));
    }
}
