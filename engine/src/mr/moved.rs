//! A piece of a client's own memory on its way into a file that both map, without a write lost and without anybody waiting for the
//! client.
//!
//! ```text
//!   client                                 engine
//!   MoveBegin ───────────────────────────> all accesses go by way of the chunk
//!   pages go to the scratch address:       system calls at the old address fail: who meets a page then
//!   whoever touches the old one waits      copies it from scratch to the file, and goes on in the file
//!   MoveCopy ────────────────────────────> the other pages, likewise; then all go straight to the file
//!   the file goes to the old address:
//!   who waited goes on
//! ```
//!
//! Each page is one party's at a time: a shard's, or the control side's. It is held for a system call or two.

use std::hint;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8};

use shm::guarded::GuardedMapping;
use shm::process_memory::{NotMapped, ProcessMemory};

use super::process::Target;

/// Pages that are moved.
pub(crate) const PAGE: u64 = 4096;

/// Pages that are copied at a time: others wait that long for one of them.
const RUN_PAGES: usize = 16;

/// The page is where it was.
const STAYS: u8 = 0;
/// Somebody has the page.
const HELD: u8 = 1;
/// The page is in the file.
const COPIED: u8 = 2;

/// Part of a process's memory that moves, or has moved.
#[derive(Debug)]
pub(crate) struct MovedChunk {
    range: Range<u64>,
    /// Where its pages are to be found once they are not at `range`.
    scratch: u64,
    mapping: Arc<GuardedMapping>,
    /// Where in `mapping` it begins.
    offset: u64,
    pages: Box<[AtomicU8]>,
    /// All pages are in the file.
    done: AtomicBool,
}

/// [`ProcessRange::access`](super::process::ProcessRange)'s part of an access.
type Touch<'a> = dyn FnMut(Target<'_>, Range<usize>) -> Result<(), NotMapped> + 'a;

impl MovedChunk {
    /// The pages at `range`, which are to be found at `scratch` when they have left it, and go to `offset` of `mapping`. All of them
    /// whole pages, in bounds.
    pub(crate) fn new(range: Range<u64>, scratch: u64, mapping: Arc<GuardedMapping>, offset: u64) -> Self {
        let pages = (0..(range.end - range.start) / PAGE).map(|_| AtomicU8::new(STAYS)).collect();
        Self { range, scratch, mapping, offset, pages, done: AtomicBool::new(false) }
    }

    /// The process's addresses.
    pub(crate) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// The file.
    pub(crate) fn mapping(&self) -> &GuardedMapping {
        &self.mapping
    }

    /// Where in the mapping an address of the chunk is.
    pub(crate) const fn offset_of(&self, addr: u64) -> u64 {
        self.offset + (addr - self.range.start)
    }

    /// True once all of it is in the file, and can be reached there.
    pub(crate) fn is_done(&self) -> bool {
        // PAIRS WITH: the store in `copy_all`: the pages' bytes are there.
        self.done.load(Acquire) && !self.mapping.is_broken()
    }

    /// Takes a page that is not in the file yet; false if it is. Waits no longer than others need for a few system calls.
    fn hold(&self, page: usize) -> Result<bool, NotMapped> {
        let state = self.pages.get(page).ok_or(NotMapped)?;
        loop {
            // PAIRS WITH: the stores in `release`: what the holder before did to the page is seen.
            match state.compare_exchange_weak(STAYS, HELD, Acquire, Acquire) {
                Ok(_) => return Ok(true),
                Err(COPIED) => return Ok(false),
                Err(_) => hint::spin_loop(),
            }
        }
    }

    fn release(&self, page: usize, state: u8) {
        if let Some(page) = self.pages.get(page) {
            // PAIRS WITH: the exchange in `hold`.
            page.store(state, Release);
        }
    }

    /// Brings pages that we hold from scratch into the file, and lets go of them.
    fn bring(&self, memory: &ProcessMemory, page: usize, count: usize) -> Result<(), NotMapped> {
        let at = page as u64 * PAGE;
        let brought = memory.read_into(self.scratch + at, count * PAGE as usize, &self.mapping, self.offset + at);
        for page in page..page + count {
            self.release(page, if brought.is_ok() { COPIED } else { STAYS });
        }
        brought
    }

    /// Accesses `length` bytes at `addr`, which lie in the chunk. True if it was done; false if it is to be done by system call at
    /// the process's address, as if there were no chunk.
    pub(crate) fn access(
        &self,
        memory: &ProcessMemory,
        addr: u64,
        length: usize,
        touch: &mut Touch<'_>,
    ) -> Result<bool, NotMapped> {
        // PAIRS WITH: the store in `copy_all`.
        if self.done.load(Acquire) {
            return Ok(touch(self.in_file(addr), 0..length).is_ok());
        }
        let mut from = 0;
        while from < length {
            let at = addr + from as u64;
            let page = (at - self.range.start) / PAGE;
            let to = length.min(from + (self.range.start + (page + 1) * PAGE - at) as usize);
            self.access_page(memory, at, page as usize, &mut |target| touch(target, from..to))?;
            from = to;
        }
        Ok(true)
    }

    fn in_file(&self, addr: u64) -> Target<'_> {
        Target::Mapped(&self.mapping, self.offset_of(addr))
    }

    #[cold]
    fn access_page(
        &self,
        memory: &ProcessMemory,
        at: u64,
        page: usize,
        touch: &mut dyn FnMut(Target<'_>) -> Result<(), NotMapped>,
    ) -> Result<(), NotMapped> {
        if !self.hold(page)? {
            return touch(self.in_file(at));
        }
        // While the page is where it was, this is all there is to do; the kernel moves pages between system calls, not within.
        if touch(Target::Process(memory, at)).is_ok() {
            self.release(page, STAYS);
            return Ok(());
        }
        self.bring(memory, page, 1)?;
        touch(self.in_file(at))
    }

    /// Brings all pages into the file that are not there yet. From then on every access goes to the file.
    ///
    /// # Errors
    /// [`NotMapped`] if a page is not to be had, or the file lost one: the chunk is as it was.
    pub(crate) fn copy_all(&self, memory: &ProcessMemory) -> Result<(), NotMapped> {
        let mut page = 0;
        while page < self.pages.len() {
            // Who holds a page waits for no other, so we may hold several.
            let mut count = 0;
            while count < RUN_PAGES && page + count < self.pages.len() && self.hold(page + count)? {
                count += 1;
            }
            if count > 0 {
                self.bring(memory, page, count)?;
            }
            page += count.max(1);
        }
        // PAIRS WITH: the loads in `is_done` and `access`.
        self.done.store(true, Release);
        Ok(())
    }

    /// True if a part of what [`copy_all`](Self::copy_all) touches lies at the process's addresses `range`, if it is our own process.
    pub(crate) fn lies_in(self: &Arc<Self>, memory: &Arc<ProcessMemory>, range: &Range<u64>) -> bool {
        let [mapping, guard] = self.mapping.own_parts();
        let pages = (self.pages.as_ptr().addr(), self.pages.len());
        let (chunk, memory) = (Arc::as_ptr(self).addr(), Arc::as_ptr(memory).addr());
        let own = [mapping, guard, pages, (chunk, size_of::<Self>()), (memory, size_of::<ProcessMemory>())];
        own.iter().any(|&(start, length)| (start as u64) < range.end && range.start < (start + length) as u64)
    }

    /// True if some page is in the file already: the move can't be called off.
    pub(crate) fn has_copied(&self) -> bool {
        self.pages.iter().any(|page| page.load(Relaxed) == COPIED)
    }
}
