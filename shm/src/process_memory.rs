//! Any memory of a client's process: the client hands over a descriptor of its own `/proc/self/mem`, the daemon reads and
//! writes through it.
//!
//! Such a descriptor stands for an address space, not for a process number: it can never reach the process that gets the number
//! next, it outlives no `exec`, and whoever hands it over has shown by that alone that the memory is his to give. So the daemon
//! needs no right to trace the client. Each access is one system call, which copies: what is not mapped (any more) is an error,
//! never a signal. A write reaches pages that the client has meanwhile made read-only to itself, as it does where an adapter has
//! them pinned.
//!
//! No access waits for the client: of memory whose page faults the client serves itself (userfaultfd), a page that is missing is an
//! error as well, since the kernel does not let such an access wait. (A FUSE file that the client has mapped is another matter.)
//!
//! Where the client shares memory with others anyway, the daemon may map it as well, without a copy: [`ProcessMemory::open_shared`].

use std::fs;
use std::hint;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use nix::fcntl::{AtFlags, FcntlArg, OFlag, fcntl, open, openat};
use nix::libc;
use nix::sys::stat::{Mode, fstat, fstatat};
use nix::sys::statfs::{FsType, HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};
use nix::sys::uio::{pread, pwrite};

use crate::guarded::GuardedMapping;
use crate::vma::{Maps, Vma};

/// Why a client's memory can't be reached.
#[derive(thiserror::Error, Debug)]
pub enum AdoptError {
    /// The descriptor is another file: a client could make us wait on it.
    #[error(
        "the descriptor is not the client's own /proc/{pid}/mem as this daemon sees it: open /proc/self/mem, and share the \
         daemon's PID namespace and /proc"
    )]
    NotTheClients {
        /// The client's process.
        pid: u32,
    },
    /// It can't be both read and written.
    #[error("the descriptor of /proc/{pid}/mem must be opened for reading and writing")]
    NotReadWrite {
        /// The client's process.
        pid: u32,
    },
    /// The daemon can't see what it should be compared with.
    #[error("/proc/{pid}/mem can't be examined: {error}; the daemon must see the client's process")]
    Unseen {
        /// The client's process.
        pid: u32,
        /// What the system said; the sentence has it, so it is no `source`.
        error: std::io::Error,
    },
}

/// Bytes that are not mapped in the client's process (any more), or a word that is not aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the memory is not mapped in the client's process")]
pub struct NotMapped;

/// The end of the addresses that a process can have (and a file offset can name).
pub const ADDRESS_END: u64 = i64::MAX as u64;

/// A range of this process's own memory that peers may be let into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnRange {
    addr: u64,
    length: u64,
}

impl OwnRange {
    /// The `length` bytes from `addr` on.
    ///
    /// # Safety
    /// As long as the range is registered, an engine and its peers read its bytes at any time, and write them if the region's
    /// rights say so, as another thread would by raw pointers. While they may write, no reference to the bytes may exist;
    /// while they may read, no exclusive one. The pages behind the addresses may be replaced by others with the same contents
    /// ([`crate::relocate`]).
    pub unsafe fn new(addr: *mut u8, length: usize) -> Self {
        // A range is a pair of numbers: what it names is looked at by the kernel alone.
        Self { addr: addr.expose_provenance() as u64, length: length as u64 }
    }

    /// Its first address.
    pub const fn addr(self) -> u64 {
        self.addr
    }

    /// Bytes.
    pub const fn length(self) -> u64 {
        self.length
    }

    /// True if some of its bytes are at these addresses.
    pub const fn overlaps(self, addresses: &Range<u64>) -> bool {
        self.addr < addresses.end && addresses.start < self.addr + self.length
    }
}

/// Takes turns among everybody who changes a word of some process's memory by reading and writing it: what makes an RDMA atomic
/// atomic among all QPs of a device. One for an engine.
#[derive(Clone, Debug, Default)]
pub struct AtomicTurns(Arc<AtomicBool>);

/// A turn; over when dropped.
struct Turn<'a>(&'a AtomicBool);

impl AtomicTurns {
    /// Waits for a turn: no longer than two system calls for each shard before us.
    fn take(&self) -> Turn<'_> {
        // PAIRS WITH: the store when a turn is over: its write of the word came before our read.
        while self.0.compare_exchange_weak(false, true, Acquire, Acquire).is_err() {
            hint::spin_loop();
        }
        Turn(&self.0)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // PAIRS WITH: the exchange in `take`.
        self.0.store(false, Release);
    }
}

/// The memory of a client's process, by the process's own addresses.
#[derive(Debug)]
pub struct ProcessMemory {
    mem: OwnedFd,
    turns: AtomicTurns,
    /// `None` if we may not look into the process.
    layout: Option<Layout>,
}

/// What tells where a process has what.
#[derive(Debug)]
struct Layout {
    /// `/proc/pid`: of this process for ever, though the number may be used anew.
    folder: OwnedFd,
    maps: Maps,
}

impl Layout {
    /// Of the process `pid`, if that is the one whose `mem` has the identity `mem`.
    fn open(pid: u32, mem: (u64, u64)) -> Option<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let folder = open(Path::new(&format!("/proc/{pid}")), flags, Mode::empty()).ok()?;
        let found = fstatat(&folder, "mem", AtFlags::empty()).ok()?;
        if (found.st_dev, found.st_ino) != mem {
            return None;
        }
        let maps = Maps::open_at(folder.as_fd()).ok()?;
        Some(Self { folder, maps })
    }
}

impl ProcessMemory {
    /// Opens this process's own memory, to be handed to a daemon.
    ///
    /// # Errors
    /// What the operating system says: a process that has changed its user may not.
    pub fn open_own() -> std::io::Result<OwnedFd> {
        Ok(fs::File::options().read(true).write(true).open("/proc/self/mem")?.into())
    }

    /// Takes over the descriptor that process `pid` (as the kernel named it) sent.
    ///
    /// # Errors
    /// [`AdoptError`] unless it is exactly that process's memory: any other file might block us, or be somebody else's.
    pub fn adopt(mem: OwnedFd, pid: u32, turns: AtomicTurns) -> Result<Self, AdoptError> {
        let path = format!("/proc/{pid}/mem");
        let unseen = |error| AdoptError::Unseen { pid, error };
        let expected = fs::metadata(Path::new(&path)).map_err(unseen)?;
        let given = fstat(&mem).map_err(|errno| unseen(errno.into()))?;
        if (given.st_dev, given.st_ino) != (expected.dev(), expected.ino()) {
            return Err(AdoptError::NotTheClients { pid });
        }
        let flags = fcntl(&mem, FcntlArg::F_GETFL).map_err(|errno| unseen(errno.into()))?;
        if OFlag::from_bits_retain(flags) & OFlag::O_ACCMODE != OFlag::O_RDWR {
            return Err(AdoptError::NotReadWrite { pid });
        }
        Ok(Self { mem, turns, layout: Layout::open(pid, (given.st_dev, given.st_ino)) })
    }

    /// The process's mapping that `addr` is in, or the next above it; `None` if there is none, or we may not look.
    pub fn mapping_at_or_above(&self, addr: u64) -> Option<Vma> {
        self.layout.as_ref()?.maps.at_or_above(addr).ok()?
    }

    /// The file behind a shared mapping that [`mapping_at_or_above`](Self::mapping_at_or_above) told of, for us to map too.
    ///
    /// `None` unless it is memory (a file of tmpfs or hugetlbfs, among them `MAP_ANONYMOUS`, SysV and POSIX shared memory: no page
    /// fault on it waits for a disk or for somebody's server), the process itself may read and write it, it is still what is
    /// mapped there, and we have the right (`CAP_CHECKPOINT_RESTORE`).
    pub fn open_shared(&self, vma: &Vma) -> Option<OwnedFd> {
        if !(vma.shared && vma.readable && vma.writable && vma.inode != 0) {
            return None;
        }
        let Layout { folder, maps } = self.layout.as_ref()?;
        let name = format!("map_files/{:x}-{:x}", vma.start, vma.end);
        let file = openat(folder, name.as_str(), OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
        const MEMORY: [FsType; 2] = [TMPFS_MAGIC, HUGETLBFS_MAGIC];
        let is_memory = MEMORY.contains(&fstatfs(&file).ok()?.filesystem_type());
        let is_the_same = fstat(&file).ok()?.st_ino == vma.inode && maps.at(vma.start).ok()? == Some(*vma);
        (is_memory && is_the_same).then_some(file)
    }

    /// Copies bytes out of the process.
    ///
    /// # Errors
    /// [`NotMapped`]; a part may have been copied.
    pub fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), NotMapped> {
        let offset = i64::try_from(addr).map_err(|_| NotMapped)?;
        let wanted = out.len();
        if pread(&self.mem, out, offset) == Ok(wanted) { Ok(()) } else { Err(NotMapped) }
    }

    /// Copies bytes out of the process into a mapping, with no copy in between.
    ///
    /// # Errors
    /// [`NotMapped`] also if the mapping has no page there, or ends before; a part may have been copied.
    pub fn read_into(&self, addr: u64, length: usize, to: &GuardedMapping, offset: u64) -> Result<(), NotMapped> {
        let at = i64::try_from(addr).map_err(|_| NotMapped)?;
        let place = to.place(offset, length).ok_or(NotMapped)?;
        // SAFETY: the bytes are `to`'s, which has no references into it; the kernel looks for the pages, as for any of ours.
        let copied = unsafe { libc::pread(self.mem.as_raw_fd(), place.cast(), length, at) };
        if usize::try_from(copied) == Ok(length) && !to.is_broken() { Ok(()) } else { Err(NotMapped) }
    }

    /// Copies bytes into the process.
    ///
    /// # Errors
    /// [`NotMapped`]; a part may have been copied.
    pub fn write(&self, addr: u64, data: &[u8]) -> Result<(), NotMapped> {
        let offset = i64::try_from(addr).map_err(|_| NotMapped)?;
        if pwrite(&self.mem, data, offset) == Ok(data.len()) { Ok(()) } else { Err(NotMapped) }
    }

    /// Copies bytes out and folds them, as copied, into the CRC-32 `crc` (zlib's convention).
    ///
    /// # Errors
    /// [`NotMapped`].
    pub fn read_crc(&self, addr: u64, out: &mut [u8], crc: u32) -> Result<u32, NotMapped> {
        self.read(addr, out)?;
        Ok(wire::icrc::update(crc, out))
    }

    /// Changes the 64-bit word at `addr` and returns what it was; `None` from `change` leaves it as it is. Atomic among all
    /// that share the same [`AtomicTurns`], not against the process's own instructions (`IBV_ATOMIC_HCA`).
    ///
    /// # Errors
    /// [`NotMapped`] also if `addr` is not a multiple of 8; nothing was changed.
    pub fn update_u64(&self, addr: u64, change: impl Fn(u64) -> Option<u64>) -> Result<u64, NotMapped> {
        if !addr.is_multiple_of(8) {
            return Err(NotMapped);
        }
        let _turn = self.turns.take();
        let mut word = [0; 8];
        self.read(addr, &mut word)?;
        let before = u64::from_ne_bytes(word);
        if let Some(after) = change(before) {
            self.write(addr, &after.to_ne_bytes())?;
        }
        Ok(before)
    }

    /// Runs what changes a word of the process by another way than [`update_u64`](Self::update_u64), in its turn among those.
    pub fn in_turn<T>(&self, change: impl FnOnce() -> T) -> T {
        let _turn = self.turns.take();
        change()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::*;

    fn own() -> ProcessMemory {
        ProcessMemory::adopt(ProcessMemory::open_own().unwrap(), std::process::id(), AtomicTurns::default()).unwrap()
    }

    #[test]
    fn bytes_of_stack_and_heap_are_read_and_written() {
        let memory = own();
        let heap = vec![7u8; 10_000];
        let mut out = vec![0; 10_000];
        memory.read(heap.as_ptr().addr() as u64, &mut out).unwrap();
        assert_eq!(out, heap);
        let crc = memory.read_crc(heap.as_ptr().addr() as u64, &mut out[..100], 5).unwrap();
        assert_eq!(crc, wire::icrc::update(5, &heap[..100]));
        let word = std::sync::atomic::AtomicU64::new(1);
        let addr = word.as_ptr().addr() as u64;
        memory.write(addr, &40u64.to_ne_bytes()).unwrap();
        assert_eq!(memory.update_u64(addr, |old| Some(old + 2)), Ok(40));
        assert_eq!(memory.update_u64(addr, |_| None), Ok(42));
        assert_eq!(memory.update_u64(addr + 4, |_| Some(0)), Err(NotMapped));
        assert_eq!(word.into_inner(), 42);
    }

    #[test]
    fn what_is_unmapped_is_an_error_even_in_part() {
        let size = std::num::NonZeroUsize::new(8192).unwrap();
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let base = unsafe { mmap_anonymous(None, size, protection, MapFlags::MAP_PRIVATE) }.unwrap();
        let (memory, addr) = (own(), base.addr().get() as u64);
        memory.write(addr + 4090, &[1; 12]).unwrap();
        // SAFETY: inside our own mapping.
        let second = unsafe { base.byte_add(4096) };
        // SAFETY: the second page of our own mapping, which nobody uses.
        unsafe { munmap(second, 4096) }.unwrap();
        assert_eq!(memory.write(addr + 4090, &[1; 12]), Err(NotMapped));
        assert_eq!(memory.read(addr + 4090, &mut [0; 12]), Err(NotMapped));
        assert_eq!(memory.read(u64::MAX, &mut [0; 1]), Err(NotMapped));
        memory.read(addr + 4090, &mut [0; 6]).unwrap();
        // SAFETY: the first page, likewise.
        unsafe { munmap(base, 4096) }.unwrap();
        assert_eq!(memory.read(addr, &mut [0; 1]), Err(NotMapped));
    }

    #[test]
    fn shared_memory_is_opened_and_private_memory_is_not() {
        use crate::guarded::GuardedMapping;
        let size = std::num::NonZeroUsize::new(8192).unwrap();
        let (both, one) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, ProtFlags::PROT_READ);
        let memory = own();
        for (protection, flags, opens) in [
            (both, MapFlags::MAP_SHARED, true),
            (one, MapFlags::MAP_SHARED, false),
            (both, MapFlags::MAP_PRIVATE, false),
        ] {
            // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
            let base = unsafe { mmap_anonymous(None, size, protection, flags) }.unwrap();
            let addr = base.addr().get() as u64;
            let vma = memory.mapping_at_or_above(addr).unwrap();
            assert!(vma.start <= addr && addr < vma.end);
            let file = memory.open_shared(&vma);
            assert_eq!(file.is_some(), opens, "{vma:?}");
            if let Some(file) = file {
                let mapped = GuardedMapping::map(file, vma.offset, vma.end - vma.start).unwrap();
                memory.write(addr + 5000, b"shared").unwrap();
                let mut out = [0; 6];
                mapped.read(addr - vma.start + 5000, &mut out).unwrap();
                assert_eq!(&out, b"shared");
                let moved = Vma { offset: vma.offset + 4096, ..vma };
                assert!(memory.open_shared(&moved).is_none(), "it is not what is mapped there");
            }
            // SAFETY: our own mapping, which nobody uses any more.
            unsafe { munmap(base, size.get()) }.unwrap();
        }
    }

    #[test]
    fn the_stack_of_another_process_is_no_part_of_ours() {
        let mut child = Command::new("sleep").arg("5").stdout(Stdio::null()).spawn().unwrap();
        let path = format!("/proc/{}/mem", child.id());
        let theirs = fs::File::options().read(true).write(true).open(path).unwrap();
        let memory = ProcessMemory::adopt(theirs.into(), child.id(), AtomicTurns::default()).unwrap();
        assert!(memory.mapping_at_or_above(0).is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(memory.mapping_at_or_above(0).is_none(), "whoever has the number next");
    }

    #[test]
    fn only_the_clients_own_memory_is_taken() {
        let pid = std::process::id();
        let adopt = |fd: OwnedFd, pid| ProcessMemory::adopt(fd, pid, AtomicTurns::default());
        let (reader, _writer) = nix::unistd::pipe().unwrap();
        assert!(matches!(adopt(reader, pid), Err(AdoptError::NotTheClients { .. })));
        let mut child = Command::new("sleep").arg("5").stdout(Stdio::null()).spawn().unwrap();
        let theirs = fs::File::options().read(true).write(true).open(format!("/proc/{}/mem", child.id())).unwrap();
        assert!(matches!(adopt(theirs.try_clone().unwrap().into(), pid), Err(AdoptError::NotTheClients { .. })));
        let memory = adopt(theirs.into(), child.id()).unwrap();
        let mine = fs::File::open("/proc/self/mem").unwrap();
        assert!(matches!(adopt(mine.into(), pid), Err(AdoptError::NotReadWrite { .. })));
        // Once the process is gone its memory is, whoever has the number next.
        child.kill().unwrap();
        child.wait().unwrap();
        let word = 7u64;
        assert_eq!(memory.read((&raw const word).addr() as u64, &mut [0; 8]), Err(NotMapped));
        let gone = adopt(ProcessMemory::open_own().unwrap(), child.id());
        assert!(matches!(gone, Err(AdoptError::Unseen { .. })));
    }

    #[test]
    fn no_update_of_two_shards_is_lost() {
        let turns = AtomicTurns::default();
        let word = std::sync::atomic::AtomicU64::new(0);
        let addr = word.as_ptr().addr() as u64;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let fd = ProcessMemory::open_own().unwrap();
                let memory = ProcessMemory::adopt(fd, std::process::id(), turns.clone()).unwrap();
                scope.spawn(move || {
                    for _ in 0..2000 {
                        memory.update_u64(addr, |old| Some(old + 1)).unwrap();
                    }
                });
            }
        });
        assert_eq!(word.into_inner(), 4000);
    }
}
