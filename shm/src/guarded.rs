//! Mappings of files that somebody else may truncate: an access that finds no page is an answer, and not the end of the process.
//!
//! The kernel raises SIGBUS for it. Our handler finds the mapping that the address is in, marks it as broken, and puts memory of
//! our own in its place; the access goes on there, and its author, who looks at the mark afterwards, throws the result away. A
//! mapping that broke stays broken. SIGBUS anywhere else goes where it went before.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize, fence};

use nix::libc;

use crate::mapping::{MapError, OutOfBounds, Pages};

/// Guarded mappings of a process at a time.
pub const GUARDED_MAX: usize = 4096;

/// The access found no page, or lies outside: nothing that it returned or wrote counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the shared memory is gone")]
pub struct Broken;

/// A place for the handler to look.
struct Slot {
    taken: AtomicBool,
    start: AtomicUsize,
    /// 0 while the slot is free, so that no address is in it.
    end: AtomicUsize,
    broken: AtomicBool,
}

static SLOTS: [Slot; GUARDED_MAX] = [const {
    Slot {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        broken: AtomicBool::new(false),
    }
}; GUARDED_MAX];

/// What SIGBUS did before: a handler with three arguments (`SA_SIGINFO`), one with one, or nothing of use.
static PREVIOUS: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static PREVIOUS_TAKES_INFO: AtomicBool = AtomicBool::new(false);
static INSTALL: Once = Once::new();

fn install() {
    INSTALL.call_once(|| {
        // SAFETY: all zeros is a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: as above.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: both structures are valid; the handler does only what a signal handler may.
        if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) } == 0 {
            PREVIOUS_TAKES_INFO.store(before.sa_flags & libc::SA_SIGINFO != 0, Relaxed);
            PREVIOUS.store(before.sa_sigaction, Relaxed);
        }
    });
}

/// Marks a mapping as broken and puts memory of our own in its place; false if there is none. May be called in a signal handler.
///
/// # Safety
/// The range is all of the slot's mapping, and that lives.
unsafe fn replace(slot: &Slot, start: usize, end: usize) -> bool {
    // PAIRS WITH: the fence in `GuardedMapping::checked`: who writes into what we put there sees the mark.
    slot.broken.store(true, SeqCst);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let at = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the caller's promise; nobody has references into the mapping.
    unsafe { libc::mmap(at, end - start, protection, flags, -1, 0) != libc::MAP_FAILED }
}

/// Only atomics, `mmap` and `sigaction`: what may be called in a signal handler.
extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid structure.
    let given = unsafe { &*info };
    // SAFETY: for SIGBUS of an access it has the address.
    let addr = unsafe { given.si_addr() }.addr();
    for slot in &SLOTS {
        // PAIRS WITH: the release store of `end` in `Guard::new`: `start` is of the same mapping.
        let end = slot.end.load(Acquire);
        let start = slot.start.load(Relaxed);
        if addr >= end || addr < start {
            continue;
        }
        // SAFETY: the range is a mapping of ours that lives, for an access through it has just failed.
        if unsafe { replace(slot, start, end) } {
            return;
        }
    }
    let previous = PREVIOUS.load(Relaxed);
    if previous == libc::SIG_DFL || previous == libc::SIG_IGN {
        // SAFETY: the default action needs no handler. The access is repeated, and ends the process as it would have.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    } else if PREVIOUS_TAKES_INFO.load(Relaxed) {
        // SAFETY: the system gave us this address as that of a handler with these arguments.
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(previous) };
        handler(signal, info, context);
    } else {
        // SAFETY: the system gave us this address as that of a handler with one argument.
        let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(previous) };
        handler(signal);
    }
}

/// A mapping's place in the table, given back when dropped.
struct Guard(&'static Slot);

impl Guard {
    fn new(mapping: &Pages) -> Option<Self> {
        install();
        // PAIRS WITH: the store in `drop`: its mapping has gone from the slot.
        let free = |slot: &&Slot| slot.taken.compare_exchange(false, true, Acquire, Relaxed).is_ok();
        let slot = SLOTS.iter().find(free)?;
        let start = mapping.as_ptr().expose_provenance();
        slot.broken.store(false, Relaxed);
        slot.start.store(start, Relaxed);
        // PAIRS WITH: the load in the handler.
        slot.end.store(start + mapping.bytes() as usize, Release);
        Some(Self(slot))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.end.store(0, Relaxed);
        // PAIRS WITH: the exchange in `new`.
        self.0.taken.store(false, Release);
    }
}

/// A shared mapping of a file whose pages may be taken away at any time. Unmapped when dropped.
pub struct GuardedMapping {
    // First: the handler must not look for a mapping that has gone.
    guard: Guard,
    mapping: Pages,
}

impl GuardedMapping {
    /// Maps `bytes` bytes of a file from `offset` on: both whole pages of it.
    ///
    /// # Errors
    /// [`MapError::Os`] if it can't be mapped for reading and writing; [`MapError::TooMany`] over [`GUARDED_MAX`].
    pub fn map(file: OwnedFd, offset: u64, bytes: u64) -> Result<Self, MapError> {
        let mapping = Pages::map(file.as_fd(), offset, bytes)?;
        let guard = Guard::new(&mapping).ok_or(MapError::TooMany(GUARDED_MAX))?;
        Ok(Self { guard, mapping })
    }

    /// Bytes of the mapping.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    /// Where it starts in this process.
    pub fn addr(&self) -> u64 {
        self.mapping.as_ptr().addr() as u64
    }

    /// True once a page was found missing: nothing can be reached through it any more.
    pub fn is_broken(&self) -> bool {
        self.guard.0.broken.load(Relaxed)
    }

    /// What an access touches besides the mapping's bytes: addresses and lengths.
    pub fn own_parts(&self) -> [(usize, usize); 2] {
        [((&raw const *self).addr(), size_of::<Self>()), ((&raw const *self.guard.0).addr(), size_of::<Slot>())]
    }

    /// Where `length` bytes from `offset` on lie, if all of them do.
    pub(crate) fn place(&self, offset: u64, length: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length as u64).filter(|&end| end <= self.bytes());
        end.map(|_| self.mapping.as_ptr().wrapping_add(offset as usize))
    }

    /// Lets go of the file's memory, as if it had been truncated: the mapping is broken from now on.
    pub fn give_up(&self) {
        let start = self.mapping.as_ptr().addr();
        // SAFETY: it is all of our mapping. If there is no memory for what takes its place, the file's stays, marked as broken.
        unsafe { replace(self.guard.0, start, start + self.mapping.bytes() as usize) };
    }

    /// What an access has brought, if it was to the file's memory throughout.
    #[inline]
    fn checked<T>(&self, outcome: Result<T, OutOfBounds>) -> Result<T, Broken> {
        // PAIRS WITH: the store in the handler. A store of ours that went into the memory put in place came after that store, and this
        // load comes after ours.
        fence(SeqCst);
        match outcome {
            Ok(outcome) if !self.guard.0.broken.load(Relaxed) => Ok(outcome),
            _ => Err(Broken),
        }
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Broken`]: what was copied means nothing.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Broken> {
        self.checked(self.mapping.read(offset, out))
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`Broken`]: a part may have been copied.
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Broken> {
        self.checked(self.mapping.write(offset, data))
    }

    /// Copies bytes out and folds what was copied into the CRC-32 `crc` (zlib's convention).
    ///
    /// # Errors
    /// [`Broken`]: what was copied means nothing.
    #[inline]
    pub fn read_crc(&self, offset: u64, out: &mut [u8], crc: u32) -> Result<u32, Broken> {
        self.checked(self.mapping.read_crc(offset, out, crc))
    }

    /// Changes the 64-bit word at `offset` atomically and returns what it was; `None` from `change` leaves it as it is.
    ///
    /// # Errors
    /// [`Broken`], also if the word is misaligned: nothing was changed.
    #[inline]
    pub fn update_u64(&self, offset: u64, change: impl Fn(u64) -> Option<u64>) -> Result<u64, Broken> {
        self.checked(self.mapping.update_u64(offset, change))
    }
}

impl core::fmt::Debug for GuardedMapping {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GuardedMapping").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn file(bytes: u64) -> File {
        let file = tempfile();
        file.set_len(bytes).unwrap();
        file
    }

    fn tempfile() -> File {
        use nix::sys::memfd::{MFdFlags, memfd_create};
        memfd_create(c"guarded-test", MFdFlags::MFD_CLOEXEC).unwrap().into()
    }

    fn map(file: &File, offset: u64, bytes: u64) -> GuardedMapping {
        GuardedMapping::map(file.as_fd().try_clone_to_owned().unwrap(), offset, bytes).unwrap()
    }

    #[test]
    fn what_is_truncated_under_an_access_is_an_error_and_no_signal() {
        let file = file(4 * 4096);
        let (first, second) = (map(&file, 0, 4 * 4096), map(&file, 4096, 4096));
        first.write(4090, &[7; 20]).unwrap();
        let mut out = [0; 14];
        second.read(0, &mut out).unwrap();
        assert_eq!(out, [7; 14]);
        assert_eq!(first.update_u64(8, |old| Some(old + 3)), Ok(0));
        assert_eq!(first.update_u64(9, |_| Some(3)), Err(Broken), "misaligned");
        assert!(!first.is_broken());
        file.set_len(2 * 4096).unwrap();
        second.read(0, &mut out).unwrap();
        assert_eq!(first.write(2 * 4096 - 4, &[9; 8]), Err(Broken));
        assert_eq!(first.read(0, &mut out), Err(Broken), "also where pages are left");
        assert_eq!(first.update_u64(8, |old| Some(old + 3)), Err(Broken));
        assert_eq!(first.read_crc(0, &mut out, 0), Err(Broken));
        second.read(0, &mut out).unwrap();
        file.set_len(0).unwrap();
        assert_eq!(second.read(0, &mut out), Err(Broken));
    }

    #[test]
    fn what_is_given_up_keeps_no_memory_and_is_an_error() {
        use std::os::unix::fs::MetadataExt;
        let kept = file(4 * 4096);
        let (mapping, other) = (map(&kept, 0, 4 * 4096), map(&kept, 0, 4096));
        mapping.write(0, &[7; 3 * 4096]).unwrap();
        let link = format!("/proc/self/map_files/{:x}-{:x}", mapping.addr(), mapping.addr() + mapping.bytes());
        let is_mapped = || std::fs::metadata(&link).is_ok_and(|found| found.ino() == kept.metadata().unwrap().ino());
        assert!(is_mapped());
        mapping.give_up();
        assert!(mapping.is_broken() && !is_mapped());
        assert_eq!(mapping.write(0, &[9; 8]), Err(Broken));
        let mut out = [0; 8];
        assert_eq!(mapping.read(0, &mut out), Err(Broken));
        other.read(0, &mut out).unwrap();
        assert_eq!(out, [7; 8], "others have it as before");
    }

    #[test]
    fn a_place_in_the_table_is_given_back_clean() {
        let file = file(4096);
        for round in 0..3 {
            let mapping = map(&file, 0, 4096);
            mapping.write(0, &[round]).unwrap();
            file.set_len(0).unwrap();
            assert!(mapping.write(0, &[1]).is_err() && mapping.is_broken());
            drop(mapping);
            file.set_len(4096).unwrap();
        }
    }

    #[test]
    fn a_writer_that_races_with_a_truncation_is_told() {
        for _ in 0..50 {
            let file = file(4096);
            let mapping = map(&file, 0, 4096);
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| (1u64..).find(|n| mapping.write(0, &n.to_ne_bytes()).is_err()));
                std::thread::yield_now();
                file.set_len(0).unwrap();
                assert!(writer.join().unwrap().is_some());
            });
            assert!(mapping.is_broken());
        }
    }
}
