//! A client's process: what of it is mapped here, and what of it moves.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use shm::control::{MOVE_CHUNK_BYTES, MOVE_FILE_BYTES_MAX, Reply};
use shm::guarded::GuardedMapping;
use shm::process_memory::{ADDRESS_END, ProcessMemory};
use shm::vma::{Vma, file_identity};

use super::session::Session;
use super::{Control, Refusal, errno, refuse};
use crate::mr::moved::{MovedChunk, PAGE};
use crate::mr::process::{ProcessRange, SharedPiece};

/// Shared mappings of a process that are mapped here at a time. What is over it is reached by system calls.
const SHARED_MAX: usize = 256;
/// Mappings that are looked at for one region; what lies behind them is reached by system calls.
const PIECES_MAX: usize = 128;

/// The client's process, once it gave us its memory.
pub(super) struct Process {
    memory: Arc<ProcessMemory>,
    /// What regions have mapped here, as long as they do. A mapping keeps its file, whose number nobody else gets meanwhile.
    shared: BTreeMap<MappingKey, Weak<GuardedMapping>>,
    /// The file that memory moves into.
    file: Option<Arc<GuardedMapping>>,
    /// That and those before it, as long as regions have something in them: what of them the process shows us, we have.
    files: Vec<(FileIdentity, Weak<GuardedMapping>)>,
    /// What is under way.
    moving: Option<Arc<MovedChunk>>,
}

/// Device and inode.
type FileIdentity = ((u32, u32), u64);

/// [`Vma::identity`].
type MappingKey = ((u32, u32), u64, u64, u64, u64);

impl Process {
    pub(super) fn new(memory: ProcessMemory) -> Self {
        Self { memory: Arc::new(memory), shared: BTreeMap::new(), file: None, files: Vec::new(), moving: None }
    }

    pub(super) fn memory(&self) -> &ProcessMemory {
        &self.memory
    }

    /// The memory at `range`, which ends at [`ADDRESS_END`] at the latest; if `share`, what of it is shared is
    /// mapped.
    pub(super) fn range(&mut self, range: Range<u64>, share: bool) -> ProcessRange {
        let mut pieces = Vec::new();
        let mut at = range.start;
        for _ in 0..if share { PIECES_MAX } else { 0 } {
            let Some(vma) = self.memory.mapping_at_or_above(at).filter(|vma| vma.start < range.end) else { break };
            if vma.shared {
                pieces.extend(self.map(&vma, &range));
            }
            at = vma.end;
        }
        ProcessRange::new(Arc::clone(&self.memory), range, pieces)
    }

    /// What of a range the process has in a shared mapping, if that is mapped here.
    fn map(&mut self, vma: &Vma, range: &Range<u64>) -> Option<SharedPiece> {
        let part = vma.part(range);
        let end = part.offset.checked_add(part.end - part.start);
        if let Some(mapping) = self.moved_file(vma).filter(|mapping| end.is_some_and(|end| end <= mapping.bytes())) {
            return Some(SharedPiece { part, mapping, offset: part.offset });
        }
        let mapping = self.map_whole(vma)?;
        Some(SharedPiece { part, mapping, offset: part.start - vma.start })
    }

    /// The file, if it is one that memory has moved into: no right is needed to have that.
    fn moved_file(&self, vma: &Vma) -> Option<Arc<GuardedMapping>> {
        let (_, mapping) = self.files.iter().find(|(identity, _)| *identity == (vma.device, vma.inode))?;
        mapping.upgrade().filter(|mapping| !mapping.is_broken() && vma.readable && vma.writable)
    }

    /// Maps all of a shared mapping of the process, so that other regions in it need no more.
    fn map_whole(&mut self, vma: &Vma) -> Option<Arc<GuardedMapping>> {
        let known = self.shared.get(&vma.identity()).and_then(Weak::upgrade).filter(|mapping| !mapping.is_broken());
        if known.is_some() {
            return known;
        }
        if self.shared.len() >= SHARED_MAX {
            self.shared.retain(|_, mapping| mapping.strong_count() > 0);
        }
        if self.shared.len() >= SHARED_MAX {
            return None;
        }
        let file = self.memory.open_shared(vma)?;
        let mapping = Arc::new(GuardedMapping::map(file, vma.offset, vma.end - vma.start).ok()?);
        self.shared.insert(vma.identity(), Arc::downgrade(&mapping));
        Some(mapping)
    }

    /// Gives up the mappings of some regions whose memory the process has unmapped, unless other regions have them as well.
    pub(super) fn let_go_of_unmapped<'a>(&self, ranges: impl Iterator<Item = &'a ProcessRange>) {
        let mut users: BTreeMap<u64, (&GuardedMapping, usize, bool)> = BTreeMap::new();
        for piece in ranges.flat_map(ProcessRange::shared).filter(|piece| !piece.mapping.is_broken()) {
            let found = self.memory.mapping_at_or_above(piece.part.start);
            let (_, count, is_used) = users.entry(piece.mapping.addr()).or_insert((&piece.mapping, 0, false));
            // Others, and those who are still to be counted.
            *count = if *count == 0 { Arc::strong_count(&piece.mapping) - 1 } else { *count - 1 };
            *is_used |= found.is_some_and(|vma| vma.has(&piece.part));
        }
        for (mapping, others, is_used) in users.into_values() {
            if others == 0 && !is_used {
                mapping.give_up();
            }
        }
    }

    /// All pages have been copied.
    fn end_move(&mut self) {
        let Some(chunk) = self.moving.take() else { return };
        // A file that is full is its regions'.
        self.file.take_if(|file| chunk.offset_of(chunk.range().end) == file.bytes());
    }
}

/// Where a chunk goes.
pub(super) struct Move {
    pub(super) addr: u64,
    pub(super) length: u64,
    pub(super) scratch: u64,
    pub(super) offset: u64,
}

impl Move {
    /// The pages, if all of it is whole pages, within bounds.
    fn pages(&self, file_bytes: u64) -> Option<Range<u64>> {
        let Self { addr, length, scratch, offset } = *self;
        let end = addr.checked_add(length).filter(|&end| end <= ADDRESS_END)?;
        let is_sound = length > 0
            && [addr, length, scratch, offset].iter().all(|value| value.is_multiple_of(PAGE))
            && addr / MOVE_CHUNK_BYTES == (end - 1) / MOVE_CHUNK_BYTES
            && scratch.checked_add(length).is_some_and(|end| end <= ADDRESS_END)
            && (scratch >= end || scratch + length <= addr)
            && offset.checked_add(length).is_some_and(|end| end <= file_bytes);
        is_sound.then_some(addr..end)
    }
}

/// Refuses what needs a move that there is not.
fn no_move<T>(what: &str) -> Result<T, Refusal> {
    refuse(errno::EINVAL, format!("{what} needs MoveBegin before it"))
}

impl Session {
    fn process_mut(&mut self, what: &str) -> Result<&mut Process, Refusal> {
        match &mut self.process {
            Some(process) => Ok(process),
            None => refuse(errno::EINVAL, format!("{what} needs AttachProcess before it")),
        }
    }

    pub(super) fn move_open(&mut self, fd: Option<OwnedFd>, bytes: u64) -> Result<Reply, Refusal> {
        let process = self.process_mut("MoveOpen")?;
        let Some(fd) = fd else { return refuse(errno::EINVAL, "MoveOpen needs a file descriptor with it") };
        if process.moving.is_some() {
            return refuse(errno::EBUSY, "a move is under way: MoveCopy or MoveAbandon ends it");
        }
        if bytes == 0 || bytes > MOVE_FILE_BYTES_MAX || !bytes.is_multiple_of(PAGE) {
            let message = format!("{bytes} bytes to move into: whole pages of {PAGE}, at most {MOVE_FILE_BYTES_MAX}");
            return refuse(errno::EINVAL, message);
        }
        let identity = file_identity(&fd).or_else(|error| refuse(errno::EINVAL, error.to_string()))?;
        let mapping = GuardedMapping::map(fd, 0, bytes).or_else(|error| refuse(errno::ENOMEM, error.to_string()))?;
        let mapping = Arc::new(mapping);
        process.files.retain(|(_, mapping)| mapping.strong_count() > 0);
        process.files.push((identity, Arc::downgrade(&mapping)));
        process.file = Some(mapping);
        Ok(Reply::Done)
    }

    pub(super) fn move_copy(&mut self) -> Result<Reply, Refusal> {
        let process = self.process_mut("MoveCopy")?;
        let Some(chunk) = &process.moving else { return no_move("MoveCopy") };
        if chunk.copy_all(&process.memory).is_err() {
            return refuse(errno::EFAULT, "a page that moves is neither at its address nor at its scratch address");
        }
        process.end_move();
        Ok(Reply::Done)
    }

    pub(super) fn move_abandon(&mut self) -> Result<Reply, Refusal> {
        let process = self.process_mut("MoveAbandon")?;
        match process.moving.take() {
            None => no_move("MoveAbandon"),
            // As long as pages stay, accesses find them at their old addresses.
            Some(chunk) if !chunk.has_copied() => Ok(Reply::Done),
            Some(chunk) => {
                process.moving = Some(chunk);
                refuse(errno::EBUSY, "pages have been copied already: MoveCopy does the others")
            }
        }
    }
}

impl Control {
    /// Begins a move: all regions of the session that have a part of the pages are told.
    pub(super) fn move_begin(&self, session: &mut Session, plan: &Move) -> Result<Reply, Refusal> {
        let keys: Vec<u32> = session.mrs.keys().copied().collect();
        let process = session.process_mut("MoveBegin")?;
        let Some(file) = &process.file else { return refuse(errno::EINVAL, "MoveBegin needs MoveOpen before it") };
        if process.moving.is_some() {
            return refuse(errno::EBUSY, "a move is under way: MoveCopy or MoveAbandon ends it");
        }
        let Some(range) = plan.pages(file.bytes()) else {
            let Move { addr, length, scratch, offset } = plan;
            let message = format!(
                "{length} bytes at {addr:#x} by way of {scratch:#x} to offset {offset} of a file of {}: whole pages of \
                 {PAGE} that lie in one piece of {MOVE_CHUNK_BYTES}, and in bounds",
                file.bytes()
            );
            return refuse(errno::EINVAL, message);
        };
        let of_key = |&key: &u32| self.mrs.get(key).and_then(|entry| entry.backing.process());
        let backings = || keys.iter().filter_map(of_key);
        if !backings().all(|backing| backing.can_move(&range)) {
            return refuse(errno::EBUSY, "part of it has moved already");
        }
        let chunk = Arc::new(MovedChunk::new(range, plan.scratch, Arc::clone(file), plan.offset));
        let mut told = 0u32;
        for backing in backings() {
            told += u32::from(backing.set_moved(&chunk));
        }
        if told == 0 {
            return refuse(errno::EINVAL, "no region has a part of it");
        }
        process.moving = Some(chunk);
        Ok(Reply::Done)
    }

    /// Runs something while a session's chunk is on its way from our own process's addresses `moving`, and gives it the means to copy the
    /// pages, which says whether they were: it allocates nothing, takes no lock, and touches nothing at `moving`. False, and nothing
    /// was run, if there is no such chunk, or if it would.
    pub fn while_moving(
        &mut self,
        session: u32,
        moving: &Range<u64>,
        run: &mut dyn FnMut(&mut dyn FnMut() -> bool),
    ) -> bool {
        let process = self.sessions.get_mut(&session).and_then(|session| session.process.as_mut());
        let Some(process) = process else { return false };
        let (Some(chunk), memory) = (process.moving.clone(), Arc::clone(&process.memory)) else { return false };
        if chunk.lies_in(&memory, moving) {
            return false;
        }
        let mut is_done = false;
        run(&mut || {
            is_done = chunk.copy_all(&memory).is_ok();
            is_done
        });
        if is_done {
            process.end_move();
        }
        true
    }

    /// How a region is reached.
    pub(super) fn query_mr(&self, session: &Session, key: u32) -> Result<Reply, Refusal> {
        let entry = self.mrs.get(key).filter(|_| session.mrs.contains_key(&key));
        let Some(entry) = entry else { return refuse(errno::EINVAL, format!("region {key:#x} does not exist")) };
        let (tier, mapped_bytes) = entry.tier();
        let copied_bytes = entry.backing.process().map_or(0, ProcessRange::copied_bytes);
        Ok(Reply::MrUse { tier, mapped_bytes, copied_bytes })
    }
}
