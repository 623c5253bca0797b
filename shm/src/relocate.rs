//! Moving a process's own private memory into a file that an engine maps too, while its threads go on: the client's side.
//!
//! A chunk's pages are taken from their address at once, by a mapping operation, with a userfaultfd in place: whoever touches the
//! address now waits in the kernel, whether it is the program or the kernel on its behalf. The engine copies the pages
//! ([`crate::control::Request::MoveCopy`]), the file is mapped where they were, and who waited goes on. No write can be lost, for there
//! is no time at which a page can be written in two places.
//!
//! In between the moving thread may touch nothing that could be in the chunk, directly or by somebody else who holds what it
//! needs: no heap, no lock. So [`Window::run`] makes bare system calls only, and has all it needs on its own stack.

use std::io::{BufRead, Error, Result};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::control::{MOVE_CHUNK_BYTES, Request, encode};
use crate::process_memory::OwnRange;
use crate::vma::{Maps, Vma, file_identity};

const PAGE: u64 = 4096;
/// Size of each file: far more than is used of it, so that a mapping that grows (`mremap`) finds file behind it.
const FILE_BYTES: i64 = 1 << 40;
/// A process with more mappings than that moves nothing: every chunk may make some, and the usual limit is 65530.
const MAPPINGS_MAX: usize = 30_000;

/// The kernel's structures and numbers of userfaultfd(2).
mod uffd {
    #[repr(C)]
    pub(super) struct Api {
        pub(super) api: u64,
        pub(super) features: u64,
        pub(super) ioctls: u64,
    }
    #[repr(C)]
    pub(super) struct Range {
        pub(super) start: u64,
        pub(super) len: u64,
    }
    #[repr(C)]
    pub(super) struct Register {
        pub(super) range: Range,
        pub(super) mode: u64,
        pub(super) ioctls: u64,
    }
    pub(super) const VERSION: u64 = 0xaa;
    pub(super) const MODE_MISSING: u64 = 1;
    nix::ioctl_readwrite!(api, 0xaa, 0x3f, Api);
    nix::ioctl_readwrite!(register, 0xaa, 0x00, Register);
    nix::ioctl_read!(unregister, 0xaa, 0x01, Range);
    nix::ioctl_read!(wake, 0xaa, 0x02, Range);
    nix::ioctl_write_int_bad!(new, nix::request_code_none!(0xaa, 0x00));
}

/// A bare system call that returns an address or a length: libraries that watch over mappings replace libc's functions, and theirs
/// take locks. Each argument is passed in full width: as a variadic one of half of it, the rest of its register is anything.
macro_rules! bare {
    ($number:expr, $($argument:expr),*) => {
        // SAFETY: beside each call.
        Errno::result(unsafe { libc::syscall($number, $($argument as libc::c_long),*) })
    };
}

/// What it takes to move memory: a userfaultfd that sees all page faults of the process.
#[derive(Debug)]
pub struct Relocator {
    uffd: OwnedFd,
    maps: Maps,
}

impl Relocator {
    /// Asks the kernel for it, by the system call or by `/dev/userfaultfd`. (The kind that is free to all sees no faults of system
    /// calls: a `read(2)` into a chunk that moves would fail. It is never used.)
    ///
    /// # Errors
    /// `EPERM` or `EACCES` where the operator does not allow it: `vm.unprivileged_userfaultfd`, the rights of `/dev/userfaultfd`.
    pub fn open() -> Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // It touches no memory.
        let fd = match bare!(libc::SYS_userfaultfd, flags) {
            Ok(fd) => fd as RawFd,
            Err(_) => {
                let device = std::fs::File::options().read(true).write(true).open("/dev/userfaultfd")?;
                // SAFETY: it makes a descriptor, no more.
                unsafe { uffd::new(device.as_raw_fd(), flags) }?
            }
        };
        // SAFETY: the kernel has just made it for us.
        let uffd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut api = uffd::Api { api: uffd::VERSION, features: 0, ioctls: 0 };
        // SAFETY: the structure is the kernel's.
        unsafe { uffd::api(uffd.as_raw_fd(), &raw mut api) }?;
        at_fork::install();
        Ok(Self { uffd, maps: Maps::open_own()? })
    }

    /// The pieces of a range that can move: whole pages of private memory without a file, not of the main stack or of this
    /// thread's, each in one piece of [`MOVE_CHUNK_BYTES`] of the address space.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn pieces(&self, range: OwnRange) -> Result<Vec<Range<u64>>> {
        let Some(stack) = main_stack()? else { return Ok(Vec::new()) };
        let own_stack = (&raw const stack).addr() as u64;
        let mut pieces = Vec::new();
        let mut at = range.addr().next_multiple_of(PAGE);
        let end = (range.addr() + range.length()) / PAGE * PAGE;
        while at < end {
            let Some(vma) = self.maps.at_or_above(at)?.filter(|vma| vma.start < end) else { break };
            let is_stack = vma.start < stack.end && stack.start < vma.end || (vma.start..vma.end).contains(&own_stack);
            let vma_end = vma.end.min(end);
            at = at.max(vma.start);
            while at < vma_end {
                let next = vma_end.min((at / MOVE_CHUNK_BYTES + 1) * MOVE_CHUNK_BYTES);
                if vma.is_private_anonymous() && !is_stack {
                    pieces.push(at..next);
                }
                at = next;
            }
        }
        Ok(pieces)
    }

    /// Makes all ready for a piece of [`Relocator::pieces`] to move into `file`. Nothing has changed for anybody.
    ///
    /// # Errors
    /// What the operating system says; `EBUSY` if another userfaultfd has the pages.
    pub fn prepare<'a>(&'a self, file: &'a mut MoveFile, piece: &Range<u64>) -> Result<Window<'a>> {
        let length = piece.end - piece.start;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // A new mapping at an address of the kernel's choice touches no memory in use.
        let scratch = bare!(libc::SYS_mmap, 0, length, libc::PROT_NONE, flags, -1, 0)? as u64;
        let uffd = self.uffd.as_raw_fd();
        let (offset, alias) = (file.used, file.alias + file.used);
        let window = Window { uffd, from: piece.start, length, scratch, alias, offset, file, is_armed: true };
        // Until the pages are there, nobody is to find zeros there.
        window.register(scratch)?;
        window.register(piece.start)?;
        Ok(window)
    }
}

/// The mapping that the kernel calls the process's stack; `None` if there are too many mappings to make more.
fn main_stack() -> Result<Option<Range<u64>>> {
    let file = std::fs::File::open("/proc/self/maps")?;
    let (mut stack, mut count) = (0..0, 0);
    for line in std::io::BufReader::new(file).lines() {
        let line = line?;
        count += 1;
        if line.ends_with("[stack]") {
            let hex = |digits| u64::from_str_radix(digits, 16).unwrap_or(0);
            let ends = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            stack = ends.map_or(0..0, |(start, end)| hex(start)..hex(end));
        }
    }
    Ok((count <= MAPPINGS_MAX).then_some(stack))
}

/// A file that pieces move into, one after the other.
#[derive(Debug)]
pub struct MoveFile {
    fd: OwnedFd,
    /// Where its pages are mapped that no piece has taken yet.
    alias: u64,
    bytes: u64,
    used: u64,
    identity: ((u32, u32), u64),
}

impl MoveFile {
    /// A file with `bytes` bytes of memory, whole pages.
    ///
    /// # Errors
    /// What the operating system says, if there is no memory.
    pub fn new(bytes: u64) -> Result<Self> {
        let fd = memfd_create(c"ferroce-moved", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        nix::unistd::ftruncate(&fd, FILE_BYTES)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // A new mapping at an address of the kernel's choice touches no memory in use.
        let alias = bare!(libc::SYS_mmap, 0, bytes, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0)? as u64;
        let identity = file_identity(&fd)?;
        let file = Self { fd, alias, bytes, used: 0, identity };
        // The mapping is ours; its pages are faulted in.
        bare!(libc::SYS_madvise, alias, bytes, libc::MADV_POPULATE_WRITE)?;
        Ok(file)
    }

    /// The file, for the engine to map.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Bytes that no piece has taken.
    pub fn left(&self) -> u64 {
        self.bytes - self.used
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for MoveFile {
    fn drop(&mut self) {
        // What no piece has taken; the rest of the range may be somebody else's by now.
        if self.used < self.bytes {
            let _ = bare!(libc::SYS_madvise, self.alias + self.used, self.bytes - self.used, libc::MADV_REMOVE);
            let _ = bare!(libc::SYS_munmap, self.alias + self.used, self.bytes - self.used);
        }
    }
}

/// How a move ended that did not come off. The memory is where it was.
#[derive(thiserror::Error, Debug)]
pub enum MoveError {
    /// The pages could not be taken: somebody has changed the mapping.
    #[error("the pages can't be taken away: {0}")]
    NotTaken(Errno),
    /// The engine did not copy them.
    #[error("the engine did not copy the pages")]
    NotCopied,
}

/// A piece that is about to move.
#[derive(Debug)]
pub struct Window<'a> {
    uffd: RawFd,
    from: u64,
    length: u64,
    scratch: u64,
    /// Where the part of the file is mapped that the piece goes to.
    alias: u64,
    offset: u64,
    file: &'a mut MoveFile,
    /// Scratch and userfaultfd are there to be removed.
    is_armed: bool,
}

impl Window<'_> {
    /// What to ask of the engine before it runs.
    pub fn request(&self) -> Request {
        let Self { from, length, scratch, offset, .. } = *self;
        Request::MoveBegin { addr: from, length, scratch, offset }
    }

    fn register(&self, start: u64) -> Result<()> {
        let range = uffd::Range { start, len: self.length };
        let mut register = uffd::Register { range, mode: uffd::MODE_MISSING, ioctls: 0 };
        // SAFETY: the structure is the kernel's; of pages that are there nothing changes.
        unsafe { uffd::register(self.uffd, &raw mut register) }?;
        Ok(())
    }

    /// Lets go who waits for a page.
    fn wake(&self) {
        let mut range = uffd::Range { start: self.from, len: self.length };
        // SAFETY: the structure is the kernel's.
        let _ = unsafe { uffd::wake(self.uffd, &raw mut range) };
    }

    /// Moves the piece. The engine has answered [`Window::request`]; `copy` has it do the rest, as
    /// [`Endpoint::exclusively`](crate::control::Endpoint::exclusively) says.
    ///
    /// # Errors
    /// [`MoveError`].
    ///
    /// # Panics
    /// Ends the process if the file can't be mapped in the end (there may be no more mappings), for then what peers write would not
    /// be seen.
    pub fn run(mut self, copy: &mut dyn FnMut() -> bool) -> std::result::Result<(), MoveError> {
        let lock = at_fork::lock();
        // Beyond this point: bare system calls only.
        let outcome = self.exchange(copy);
        self.wake();
        // The pages are there again.
        if outcome.is_ok() {
            self.is_armed = false;
            let _ = bare!(libc::SYS_munmap, self.scratch, self.length);
            self.file.used += self.length;
            lock.note(self.from, self.length, self.file);
        }
        outcome
    }

    fn exchange(&self, copy: &mut dyn FnMut() -> bool) -> std::result::Result<(), MoveError> {
        const DONTUNMAP: i32 = 4;
        let Self { from, length, scratch, alias, .. } = *self;
        let place = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // The pages go, contents and all, from the program's address to our own reservation.
        let taken = bare!(libc::SYS_mremap, from, length, length, place | DONTUNMAP, scratch);
        taken.map_err(MoveError::NotTaken)?;
        if !copy() {
            // They come back.
            let _ = bare!(libc::SYS_mremap, scratch, length, length, place, from);
            return Err(MoveError::NotCopied);
        }
        // Our own mapping of the file goes to the program's address, in place of nothing.
        if bare!(libc::SYS_mremap, alias, length, length, place, from).is_err() {
            std::process::abort();
        }
        Ok(())
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            let mut range = uffd::Range { start: self.from, len: self.length };
            // SAFETY: the structure is the kernel's. It fails if the pages were never registered, or came back.
            let _ = unsafe { uffd::unregister(self.uffd, &raw mut range) };
            self.wake();
            // What is there now is our reservation, or nothing.
            let _ = bare!(libc::SYS_munmap, self.scratch, self.length);
        }
    }
}

/// A message in a buffer of its own.
pub(crate) fn message<'b, T: serde::Serialize>(message: &T, buffer: &'b mut [u8; 16]) -> Option<&'b [u8]> {
    let bytes = encode(message).ok()?;
    let place = buffer.get_mut(..bytes.len())?;
    place.copy_from_slice(&bytes);
    Some(place)
}

/// Sends a request and waits for its answer: true if that is `expected`. Bare system calls.
pub(crate) fn ask(socket: RawFd, request: &[u8], expected: &[u8]) -> bool {
    let null = std::ptr::null_mut::<libc::c_void>();
    // The buffer is ours and read only.
    let sent = bare!(libc::SYS_sendto, socket, request.as_ptr(), request.len(), libc::MSG_NOSIGNAL, null, 0);
    if sent.is_err() {
        return false;
    }
    let mut answer = [0u8; 16];
    loop {
        // The buffer is ours, and as long as we say.
        match bare!(libc::SYS_recvfrom, socket, answer.as_mut_ptr(), answer.len(), 0, null, null) {
            Err(Errno::EINTR) => {}
            Ok(length) => {
                return usize::try_from(length).ok().and_then(|length| answer.get(..length)) == Some(expected);
            }
            Err(_) => return false,
        }
    }
}

/// What fork(2) needs: no move under way, and afterwards a memory of its own for the child.
mod at_fork {
    use std::sync::Mutex;

    use super::*;

    /// Held while a piece moves, and by a thread that forks. No mutex: the child gives it back, too.
    static BUSY: AtomicBool = AtomicBool::new(false);
    static INSTALL: Once = Once::new();
    /// Changed only by who has [`BUSY`], so that no fork finds it locked.
    static MOVED: Mutex<Vec<Moved>> = Mutex::new(Vec::new());

    /// Memory that has moved.
    struct Moved {
        range: Range<u64>,
        file: OwnedFd,
        identity: ((u32, u32), u64),
    }

    /// Given back when dropped.
    pub(super) struct Lock;

    pub(super) fn lock() -> Lock {
        // PAIRS WITH: the store in `drop`.
        while BUSY.compare_exchange_weak(false, true, Acquire, Acquire).is_err() {
            std::thread::yield_now();
        }
        Lock
    }

    impl Drop for Lock {
        fn drop(&mut self) {
            // PAIRS WITH: the exchange in `lock`.
            BUSY.store(false, Release);
        }
    }

    extern "C" fn prepare() {
        std::mem::forget(lock());
    }

    extern "C" fn parent() {
        drop(Lock);
    }

    /// Gives the child memory of its own in place of what it would share with its parent.
    extern "C" fn child() {
        if let (Ok(moved), Ok(maps)) = (MOVED.lock(), Maps::open_own()) {
            for Moved { range, file, identity } in moved.iter() {
                for vma in of_file(&maps, range, *identity) {
                    let right = |has, right| if has { right } else { libc::PROT_NONE };
                    let protection = right(vma.readable, libc::PROT_READ) | right(vma.writable, libc::PROT_WRITE);
                    let (at, length, flags) = (vma.start, vma.end - vma.start, libc::MAP_PRIVATE | libc::MAP_FIXED);
                    // The same bytes of the same file at the same address, but written for ourselves.
                    let _ = bare!(libc::SYS_mmap, at, length, protection, flags, file.as_raw_fd(), vma.offset);
                }
            }
        }
        drop(Lock);
    }

    /// What of a range is still mapped to the file that it has moved into.
    fn of_file<'a>(
        maps: &'a Maps,
        range: &'a Range<u64>,
        identity: ((u32, u32), u64),
    ) -> impl Iterator<Item = Vma> + 'a {
        let mut at = range.start;
        let next = move || {
            let vma = maps.at_or_above(at).ok()?.filter(|vma| vma.start < range.end)?;
            at = vma.end;
            Some(vma)
        };
        let is_ours = move |vma: &Vma| vma.shared && (vma.device, vma.inode) == identity;
        std::iter::from_fn(next).filter(is_ours).map(|vma| vma.part(range))
    }

    pub(super) fn install() {
        INSTALL.call_once(|| {
            // SAFETY: the three do what is allowed around a fork.
            let _ = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        });
    }

    impl Lock {
        /// Remembers a piece for children to come; forgets those that the program has unmapped.
        pub(super) fn note(&self, from: u64, length: u64, file: &MoveFile) {
            let Ok(mut moved) = MOVED.lock() else { return };
            let identity = file.identity;
            if let Some(last) = moved.last_mut().filter(|last| last.identity == identity && last.range.end == from) {
                last.range.end += length;
                return;
            }
            if let Ok(maps) = Maps::open_own() {
                moved.retain(|old| of_file(&maps, &old.range, old.identity).next().is_some());
            }
            if let Ok(file) = file.fd.try_clone() {
                moved.push(Moved { range: from..from + length, file, identity });
            }
        }
    }
}

/// Keeps this thread from running signal handlers of the program, which might touch what moves.
///
/// # Errors
/// What the operating system says.
pub fn block_signals() -> Result<()> {
    Ok(nix::sys::signal::SigSet::all().thread_block()?)
}

/// Why no memory moves here, in a sentence.
pub fn explain(error: &Error) -> String {
    format!(
        "memory can't be moved: {error} (userfaultfd needs vm.unprivileged_userfaultfd=1 or access to /dev/userfaultfd)"
    )
}
