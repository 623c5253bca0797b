//! Regions of a client's own memory, and how each byte of them is reached.
//!
//! Tier 0 is the rule: system calls into the process, by its addresses. Two kinds of places are mapped here as well, and reached
//! without a system call: memory that the client shares anyway (tier 1), and memory of its own that it has moved into a file that
//! both map (tier 2, [`MovedChunk`]). All three are the same pages at any time, so that an access may go either way; what
//! fails in a mapping is tried by system call, whose answer counts.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use shm::control::{MOVE_CELL_BYTES, MrTier};
use shm::guarded::{Broken, GuardedMapping};
use shm::process_memory::{NotMapped, ProcessMemory};
use shm::vma::Vma;

use super::moved::MovedChunk;

/// A part of the process that is mapped here, as it was when its region was registered.
#[derive(Clone, Debug)]
pub(crate) struct SharedPiece {
    /// The process's addresses, and what it had there.
    pub(crate) part: Vma,
    /// The same memory here.
    pub(crate) mapping: Arc<GuardedMapping>,
    /// Where in it `part` begins.
    pub(crate) offset: u64,
}

/// How the bytes from some address on are reached.
enum Place<'a> {
    Process,
    Shared(&'a GuardedMapping, u64),
    Moved(&'a MovedChunk),
}

/// Where some bytes are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    /// At an address of the process.
    Process(&'a ProcessMemory, u64),
    /// At an offset of a mapping.
    Mapped(&'a GuardedMapping, u64),
}

/// By which way an access went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// At least in part by system call.
    Process,
    /// Through mappings alone.
    Mapped,
}

/// A region's memory in its process. Offsets are the process's addresses.
#[derive(Debug)]
pub struct ProcessRange {
    memory: Arc<ProcessMemory>,
    range: Range<u64>,
    /// By rising address; none overlap.
    shared: Box<[SharedPiece]>,
    /// A place for each piece of [`MOVE_CELL_BYTES`] of the address space that the region has a part of; made when the first of
    /// them moves.
    moved: OnceLock<Box<[OnceLock<Arc<MovedChunk>>]>>,
    /// Bytes that went by system call: whether a move would pay.
    copied_bytes: AtomicU64,
}

const fn cell(addr: u64) -> u64 {
    addr / MOVE_CELL_BYTES
}

impl ProcessRange {
    /// The memory at `range` of a process, of which `shared` is mapped here.
    pub(crate) fn new(memory: Arc<ProcessMemory>, range: Range<u64>, shared: Vec<SharedPiece>) -> Self {
        let shared = shared.into_boxed_slice();
        Self { memory, range, shared, moved: OnceLock::new(), copied_bytes: AtomicU64::new(0) }
    }

    /// The process's addresses.
    pub(crate) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// True if something of it is mapped here because the process shares it.
    pub(crate) fn has_shared(&self) -> bool {
        self.shared.iter().any(|piece| !piece.mapping.is_broken())
    }

    /// What is mapped here because the process shares it, or did.
    pub(crate) fn shared(&self) -> &[SharedPiece] {
        &self.shared
    }

    /// The highest tier that any of it has, and how many of its bytes are not of tier 0.
    pub(crate) fn tier(&self) -> (MrTier, u64) {
        let shared: u64 =
            self.shared.iter().filter(|piece| !piece.mapping.is_broken()).map(|p| p.part.end - p.part.start).sum();
        let cells = self.moved.get().into_iter().flatten().filter_map(OnceLock::get);
        // A chunk may have several cells.
        let mut last = None;
        let chunks = cells.filter(|chunk| last.replace(Arc::as_ptr(chunk)) != Some(Arc::as_ptr(chunk)));
        let done = chunks.filter(|chunk| chunk.is_done());
        let moved: u64 = done.map(|chunk| length(&common(&chunk.range(), &self.range))).sum();
        let tier = match (shared, moved) {
            (_, 1..) => MrTier::Moved,
            (1.., 0) => MrTier::Shared,
            (0, 0) => MrTier::Process,
        };
        (tier, shared + moved)
    }

    /// Bytes that went by system call so far.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Relaxed)
    }

    /// Has accesses to a chunk's addresses go by way of it, those under way too once they fail. False if the region has no part of
    /// it; control side.
    pub(crate) fn set_moved(&self, chunk: &Arc<MovedChunk>) -> bool {
        let range = common(&chunk.range(), &self.range);
        if range.is_empty() {
            return false;
        }
        let first = cell(self.range.start);
        let count = cell(self.range.end - 1) - first + 1;
        let cells = self.moved.get_or_init(|| (0..count).map(|_| OnceLock::new()).collect());
        // One chunk a cell: what was given up stays as it is.
        let place = |cell: u64| usize::try_from(cell - first).ok().and_then(|at| cells.get(at));
        let set = |cell| place(cell).is_some_and(|place| place.set(Arc::clone(chunk)).is_ok());
        (cell(range.start)..=cell(range.end - 1)).all(set)
    }

    /// True if no chunk has the cells of `addresses` yet.
    pub(crate) fn can_move(&self, addresses: &Range<u64>) -> bool {
        let range = common(addresses, &self.range);
        let Some(cells) = self.moved.get().filter(|_| !range.is_empty()) else { return true };
        let first = cell(self.range.start);
        (cell(range.start)..=cell(range.end - 1)).all(|cell| {
            let place = usize::try_from(cell - first).ok().and_then(|at| cells.get(at));
            place.is_none_or(|place| place.get().is_none())
        })
    }

    /// How the byte at `addr` is reached, and up to which address that holds.
    fn place(&self, addr: u64, end: u64) -> (Place<'_>, u64) {
        let mut until = end;
        if !self.shared.is_empty() {
            let at = self.shared.partition_point(|piece| piece.part.end <= addr);
            match self.shared.get(at) {
                Some(SharedPiece { part, mapping, offset }) if part.start <= addr => {
                    return (Place::Shared(mapping, offset + (addr - part.start)), end.min(part.end));
                }
                Some(next) => until = until.min(next.part.start),
                None => {}
            }
        }
        let Some(cells) = self.moved.get() else { return (Place::Process, until) };
        let at = usize::try_from(cell(addr) - cell(self.range.start)).ok();
        if let Some(chunk) = at.and_then(|at| cells.get(at)).and_then(OnceLock::get) {
            let Range { start, end } = chunk.range();
            if (start..end).contains(&addr) {
                return (Place::Moved(chunk), until.min(end));
            }
            if addr < start {
                until = until.min(start);
            }
        }
        (Place::Process, until.min((cell(addr) + 1) * MOVE_CELL_BYTES))
    }

    /// Does an access piece by piece. `touch` is given where some bytes are, and which of the access's bytes they are.
    fn access(
        &self,
        addr: u64,
        length: usize,
        mut touch: impl FnMut(Target<'_>, Range<usize>) -> Result<(), NotMapped>,
    ) -> Result<Way, NotMapped> {
        let (mut at, end) = (addr, addr.checked_add(length as u64).ok_or(NotMapped)?);
        let mut way = Way::Mapped;
        while at < end {
            let (place, until) = self.place(at, end);
            let part = (at - addr) as usize..(until - addr) as usize;
            let is_done = match place {
                Place::Process => false,
                Place::Shared(mapping, offset) => touch(Target::Mapped(mapping, offset), part.clone()).is_ok(),
                Place::Moved(chunk) => {
                    let mut touch = |target: Target<'_>, bytes: Range<usize>| {
                        touch(target, part.start + bytes.start..part.start + bytes.end)
                    };
                    chunk.access(&self.memory, at, part.len(), &mut touch)?
                }
            };
            if !is_done {
                let done = touch(Target::Process(&self.memory, at), part.clone());
                if done.is_err() {
                    // It may have begun to move since we looked.
                    if matches!(place, Place::Process) && self.is_moving(at, until) {
                        continue;
                    }
                    return Err(NotMapped);
                }
                way = Way::Process;
                self.copied_bytes.fetch_add(part.len() as u64, Relaxed);
            }
            at = until;
        }
        Ok(way)
    }

    /// True if some of the bytes are to be reached by way of a chunk.
    #[cold]
    fn is_moving(&self, addr: u64, end: u64) -> bool {
        let mut at = addr;
        while at < end {
            let (place, until) = self.place(at, end);
            if matches!(place, Place::Moved(_)) {
                return true;
            }
            at = until;
        }
        false
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`NotMapped`]; a part may have been copied.
    pub(crate) fn read(&self, addr: u64, out: &mut [u8]) -> Result<Way, NotMapped> {
        self.access(addr, out.len(), |target, part| {
            let out = out.get_mut(part).ok_or(NotMapped)?;
            match target {
                Target::Process(memory, addr) => memory.read(addr, out),
                Target::Mapped(mapping, offset) => mapping.read(offset, out).map_err(|Broken| NotMapped),
            }
        })
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`NotMapped`]; a part may have been copied.
    pub(crate) fn write(&self, addr: u64, data: &[u8]) -> Result<Way, NotMapped> {
        self.access(addr, data.len(), |target, part| {
            let data = data.get(part).ok_or(NotMapped)?;
            match target {
                Target::Process(memory, addr) => memory.write(addr, data),
                Target::Mapped(mapping, offset) => mapping.write(offset, data).map_err(|Broken| NotMapped),
            }
        })
    }

    /// Copies bytes out and folds them, as copied, into the CRC-32 `crc` (zlib's convention).
    ///
    /// # Errors
    /// [`NotMapped`].
    pub(crate) fn read_crc(&self, addr: u64, out: &mut [u8], crc: u32) -> Result<(u32, Way), NotMapped> {
        // In one pass where one mapping has it all.
        let end = addr.saturating_add(out.len() as u64);
        let whole = match self.place(addr, end) {
            (Place::Shared(mapping, offset), until) if until == end => Some((mapping, offset)),
            (Place::Moved(chunk), until) if until == end && chunk.is_done() => {
                Some((chunk.mapping(), chunk.offset_of(addr)))
            }
            _ => None,
        };
        if let Some(crc) = whole.and_then(|(mapping, offset)| mapping.read_crc(offset, out, crc).ok()) {
            return Ok((crc, Way::Mapped));
        }
        let way = self.read(addr, out)?;
        Ok((wire::icrc::update(crc, out), way))
    }

    /// Changes the 64-bit word at `addr` and returns what it was; `None` from `change` leaves it as it is. Atomic among all
    /// that reach it by way of the process, be it by system call or through a mapping.
    ///
    /// # Errors
    /// [`NotMapped`] also if `addr` is not a multiple of 8; nothing was changed.
    pub(crate) fn update_u64(&self, addr: u64, change: impl Fn(u64) -> Option<u64>) -> Result<(u64, Way), NotMapped> {
        if !addr.is_multiple_of(8) {
            return Err(NotMapped);
        }
        let mut before = 0;
        let way = self.access(addr, 8, |target, _| {
            before = match target {
                Target::Process(memory, addr) => memory.update_u64(addr, &change)?,
                Target::Mapped(mapping, offset) => {
                    // Another region of the same memory may be reached by system calls.
                    let update = || mapping.update_u64(offset, &change);
                    self.memory.in_turn(update).map_err(|Broken| NotMapped)?
                }
            };
            Ok(())
        })?;
        Ok((before, way))
    }
}

const fn length(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

/// What two ranges have in common.
fn common(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    one.start.max(other.start)..one.end.min(other.end)
}

#[cfg(test)]
mod tests {
    use shm::mapping::{Mapping, PageSize};
    use shm::process_memory::AtomicTurns;
    use shm::vma::Maps;

    use super::*;

    #[test]
    fn no_update_is_lost_of_a_word_that_two_regions_reach_in_different_ways() {
        let word = Mapping::create(c"process-test", 4096, PageSize::Base).expect("a page of memory");
        let addr = word.as_ptr().addr() as u64;
        let own = ProcessMemory::open_own().expect("a process may open its own memory");
        let memory = ProcessMemory::adopt(own, std::process::id(), AtomicTurns::default()).expect("it is ours");
        let memory = Arc::new(memory);
        let file = word.fd().try_clone_to_owned().expect("a descriptor");
        let mapping = Arc::new(GuardedMapping::map(file, 0, 4096).expect("a page of memory"));
        let part = Maps::open_own().and_then(|maps| maps.at(addr)).ok().flatten().expect("it is mapped");
        let shared = vec![SharedPiece { part, mapping, offset: 0 }];
        let range = |shared| ProcessRange::new(Arc::clone(&memory), addr..addr + 4096, shared);
        let ranges = [(range(Vec::new()), Way::Process), (range(shared), Way::Mapped)];
        std::thread::scope(|scope| {
            for (range, expected) in &ranges {
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let (_, way) = range.update_u64(addr + 8, |old| Some(old + 1)).expect("it is mapped");
                        assert_eq!(way, *expected);
                    }
                });
            }
        });
        assert_eq!(ranges[0].0.update_u64(addr + 8, |_| None), Ok((40_000, Way::Process)));
    }
}
