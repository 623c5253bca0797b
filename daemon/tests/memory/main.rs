//! Every kind of memory that a program may register: the right bytes both ways, and by which tier; what happens when it is unmapped,
//! mapped anew, grown, moved under its writers' hands, or inherited by a child.

mod again;
mod moved;
mod soak;
#[path = "../support/mod.rs"]
mod support;

use std::any::Any;
use std::ffi::c_void;
use std::fs::File;
use std::io::Write as _;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use daemon::embedded::{engine_config, polled_pair, threaded_pair};
use daemon::{IdlePolicy, LcoreSetup};
use ferroce::control::{MrTier, Reply, Request};
use ferroce::{
    AccessFlags, ConnectAttr, Context, MemoryTiers, OwnRange, ProcessRegion, SendWr, Sge, VerbsError, WcStatus,
    WorkCompletion,
};
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use support::{PATIENCE, Peer, connect_with};

/// These tests share the machine's two cores: engines that spin would starve each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const RIGHTS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);
const BOTH: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);
const PAGE: usize = 4096;

/// Two engines, and a peer on each.
struct Bed {
    a: Peer,
    b: Peer,
    _nodes: Box<dyn Any + Send + Sync>,
}

impl Bed {
    /// Engines with threads of their own.
    fn new() -> Self {
        let setup = LcoreSetup { cores: vec![None], idle: IdlePolicy::Adaptive };
        let nodes = threaded_pair(&engine_config("ferroce0"), [&setup, &setup]).unwrap();
        let contexts = [0, 1].map(|side: usize| Context::from_fd(nodes[side].connect().unwrap()).unwrap());
        Self::of(contexts, Box::new(nodes))
    }

    /// Engines on the test's own thread.
    fn polled() -> Self {
        let nodes = polled_pair(&engine_config("ferroce0")).unwrap();
        let contexts = [0, 1].map(|side: usize| Context::from_endpoint(nodes[side].connect().unwrap()).unwrap());
        Self::of(contexts, Box::new(nodes))
    }

    fn of(contexts: [Context; 2], nodes: Box<dyn Any + Send + Sync>) -> Self {
        let [a, b] = contexts.map(|context| Peer::new(context, 4 << 20, 0));
        // 2 s and seven times more: where many others want the cores an engine waits for its turn for longer than the usual half second.
        connect_with(&a, &b, &ConnectAttr { timeout: 19, ..ConnectAttr::default() });
        Self { a, b, _nodes: nodes }
    }

    fn register(&self, addr: *mut u8, length: usize, access: AccessFlags) -> Result<ProcessRegion, VerbsError> {
        // SAFETY: the tests look at the memory by raw pointers and atomics only while it is registered.
        let range = unsafe { OwnRange::new(addr, length) };
        self.b.pd.register_process_memory(range, range.addr(), access)
    }

    /// A WRITE from `from` on of our pool to an address of the other side.
    fn write(&self, from: u64, length: u32, there: u64, rkey: u32) -> WorkCompletion {
        let sge = [self.a.region.sge(from, length).unwrap()];
        self.run(&SendWr::write(1, &sge, there, rkey))
    }

    fn read(&self, to: u64, length: u32, there: u64, rkey: u32) -> WorkCompletion {
        let sge = [self.a.region.sge(to, length).unwrap()];
        self.run(&SendWr::read(2, &sge, there, rkey))
    }

    fn run(&self, wr: &SendWr<'_>) -> WorkCompletion {
        self.a.qp.post_send(&(*wr).signaled()).unwrap();
        self.a.any_completion()
    }

    /// Bytes to memory and back, in three messages each, and what the program sees there by itself.
    fn check(&self, region: &ProcessRegion, addr: *mut u8) {
        let length = (region.length() as usize).min(1 << 20);
        let data = pattern(length);
        self.a.region.write(0, &data).unwrap();
        let third = length / 3;
        for (from, to) in [(0, third), (third, 2 * third), (2 * third, length)] {
            let done = self.write(from as u64, (to - from) as u32, region.addr() + from as u64, region.rkey());
            assert!(done.is_ok(), "{}", done.status);
        }
        assert!(bytes(addr, length) == data, "the program sees other bytes");
        assert!(self.read(2 << 20, length as u32, region.addr(), region.rkey()).is_ok());
        let mut back = vec![0; length];
        self.a.region.read(2 << 20, &mut back).unwrap();
        assert!(back == data, "other bytes come back");
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// A copy of what is at an address.
fn bytes(addr: *const u8, length: usize) -> Vec<u8> {
    let mut out = vec![0; length];
    // SAFETY: callers name memory of theirs that lives.
    unsafe { ptr::copy_nonoverlapping(addr, out.as_mut_ptr(), length) };
    out
}

/// Anonymous memory, unmapped when dropped.
struct Map(*mut u8, usize);

// SAFETY: it is a range of raw memory, which the tests touch by atomics and copies.
unsafe impl Sync for Map {}

impl Map {
    fn new(length: usize, flags: MapFlags) -> nix::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let base = unsafe { mmap_anonymous(None, NonZeroUsize::new(length).unwrap(), BOTH, flags) }?;
        Ok(Self(base.as_ptr().cast(), length))
    }

    fn of(file: impl AsFd, length: usize, flags: MapFlags) -> Self {
        // SAFETY: as above.
        let base = unsafe { mmap(None, NonZeroUsize::new(length).unwrap(), BOTH, flags, file, 0) }.unwrap();
        Self(base.as_ptr().cast(), length)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.1);
        // SAFETY: inside the mapping and aligned; all use of the word is atomic.
        unsafe { AtomicU64::from_ptr(self.0.wrapping_add(offset).cast()) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody uses any more.
        let _ = unsafe { munmap(ptr::NonNull::new(self.0.cast::<c_void>()).unwrap(), self.1) };
    }
}

fn tier(region: &ProcessRegion) -> MrTier {
    region.query_use().unwrap().tier
}

/// What shared memory is reached by where the engine may look at it.
fn shared_tier() -> MrTier {
    if nix::unistd::geteuid().is_root() { MrTier::Shared } else { MrTier::Process }
}

#[test]
fn private_memory_of_every_kind_is_reached_by_system_calls() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    let mut heap = vec![0u8; 300_001];
    let mut on_stack = [0u8; 20_000];
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[3; 10 * PAGE]).unwrap();
    let file = Map::of(&file, 10 * PAGE, MapFlags::MAP_PRIVATE);
    let map = Map::new(1 << 20, MapFlags::MAP_PRIVATE).unwrap();
    for (addr, length) in [
        (heap.as_mut_ptr(), 300_001),
        (on_stack.as_mut_ptr(), 20_000),
        (file.0, 10 * PAGE),
        (map.0, 1 << 20),
        (map.0.wrapping_add(4091), 70_003),
    ] {
        let region = bed.register(addr, length, RIGHTS).unwrap();
        bed.check(&region, addr);
        assert_eq!(tier(&region), MrTier::Process);
        let used = region.query_use().unwrap();
        assert!(used.copied_bytes >= 2 * length as u64 && used.mapped_bytes == 0, "{used:?}");
    }
}

#[test]
fn shared_memory_of_every_kind_is_mapped_by_the_engine() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    let check = |map: &Map, expected: MrTier, what: &str| {
        let region = bed.register(map.0, map.1, RIGHTS).unwrap();
        assert_eq!(tier(&region), expected, "{what}");
        bed.check(&region, map.0);
        let odd = bed.register(map.0.wrapping_add(33), map.1 - 100, RIGHTS).unwrap();
        bed.check(&odd, map.0.wrapping_add(33));
        let used = odd.query_use().unwrap();
        assert_eq!(used.mapped_bytes, if expected == MrTier::Shared { odd.length() } else { 0 }, "{what}");
        assert_eq!(used.copied_bytes == 0, expected == MrTier::Shared, "{what}");
    };
    check(&Map::new(1 << 20, MapFlags::MAP_SHARED).unwrap(), shared_tier(), "MAP_SHARED | MAP_ANONYMOUS");
    // SAFETY: a new segment, marked to go when nobody has it.
    let id = unsafe { libc::shmget(libc::IPC_PRIVATE, 1 << 20, libc::IPC_CREAT | 0o600) };
    // SAFETY: at an address of the kernel's choice it touches no memory in use.
    let segment = unsafe { libc::shmat(id, ptr::null(), 0) };
    // SAFETY: our own segment.
    unsafe { libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()) };
    assert_ne!(segment.addr(), usize::MAX, "SysV shared memory");
    check(&Map(segment.cast(), 1 << 20), shared_tier(), "SysV");
    // SAFETY: it makes a file.
    let fd = unsafe { libc::memfd_create(c"posix".as_ptr(), 0) };
    // SAFETY: the kernel has just made it for us.
    let posix = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    posix.set_len(1 << 20).unwrap();
    check(&Map::of(&posix, 1 << 20, MapFlags::MAP_SHARED), shared_tier(), "POSIX, memfd");
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.set_len(1 << 20).unwrap();
    let on_disk = Map::of(&file, 1 << 20, MapFlags::MAP_SHARED);
    if !is_memory(&file) {
        check(&on_disk, MrTier::Process, "a file on disk, for whose pages one may have to wait");
    }
    // Huge pages are there only where somebody has reserved them.
    if let Ok(huge) = Map::new(2 << 20, MapFlags::MAP_SHARED | MapFlags::MAP_HUGETLB) {
        check(&huge, shared_tier(), "MAP_SHARED | MAP_HUGETLB");
    }
    if let Ok(huge) = Map::new(2 << 20, MapFlags::MAP_PRIVATE | MapFlags::MAP_HUGETLB) {
        check(&huge, MrTier::Process, "MAP_PRIVATE | MAP_HUGETLB");
    }
}

fn is_memory(file: &File) -> bool {
    nix::sys::statfs::fstatfs(file).unwrap().filesystem_type() == nix::sys::statfs::TMPFS_MAGIC
}

#[test]
fn the_engine_maps_nothing_where_the_program_does_not_want_it() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    bed.b.context.set_memory_tiers(MemoryTiers::Process);
    let map = Map::new(1 << 20, MapFlags::MAP_SHARED).unwrap();
    let region = bed.register(map.0, map.1, RIGHTS).unwrap();
    bed.check(&region, map.0);
    assert_eq!(tier(&region), MrTier::Process);
}

#[test]
fn regions_may_overlap_and_cross_from_one_kind_of_memory_to_another() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    // Private, shared, private: one after the other.
    let map = Map::new(48 * PAGE, MapFlags::MAP_PRIVATE).unwrap();
    let middle = NonZeroUsize::new(map.0.addr() + 16 * PAGE);
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
    // SAFETY: it replaces a part of our own mapping, which nobody uses.
    unsafe { mmap_anonymous(middle, NonZeroUsize::new(16 * PAGE).unwrap(), BOTH, flags) }.unwrap();
    let all = bed.register(map.0, map.1, RIGHTS).unwrap();
    let part = bed.register(map.0.wrapping_add(10 * PAGE + 9), 10 * PAGE, RIGHTS).unwrap();
    let again = bed.register(map.0, map.1, RIGHTS).unwrap();
    bed.check(&all, map.0);
    bed.check(&part, map.0.wrapping_add(10 * PAGE + 9));
    bed.check(&again, map.0);
    if shared_tier() == MrTier::Shared {
        let used = all.query_use().unwrap();
        assert_eq!((used.tier, used.mapped_bytes), (MrTier::Shared, 16 * PAGE as u64));
    }
    assert_ne!((all.lkey(), all.rkey()), (again.lkey(), again.rkey()));
    all.dereg().unwrap();
    bed.check(&again, map.0);
}

#[test]
fn memory_that_may_only_be_read_is_read() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    let map = Map::new(4 * PAGE, MapFlags::MAP_PRIVATE).unwrap();
    map.word(8).store(77, SeqCst);
    let base = ptr::NonNull::new(map.0.cast::<c_void>()).unwrap();
    // SAFETY: our own mapping.
    unsafe { mprotect(base, map.1, ProtFlags::PROT_READ) }.unwrap();
    let region = bed.register(map.0, map.1, AccessFlags::REMOTE_READ).unwrap();
    assert!(bed.read(0, 16, region.addr(), region.rkey()).is_ok());
    let mut out = [0; 16];
    bed.a.region.read(0, &mut out).unwrap();
    assert_eq!(out[8..], 77u64.to_ne_bytes());
    assert_eq!(bed.write(0, 16, region.addr(), region.rkey()).status, WcStatus::RemAccessErr);
}

#[test]
fn shared_memory_that_may_only_be_read_is_read_by_system_calls() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    let map = Map::new(4 * PAGE, MapFlags::MAP_SHARED).unwrap();
    map.word(8).store(78, SeqCst);
    let base = ptr::NonNull::new(map.0.cast::<c_void>()).unwrap();
    // SAFETY: our own mapping.
    unsafe { mprotect(base, map.1, ProtFlags::PROT_READ) }.unwrap();
    let region = bed.register(map.0, map.1, AccessFlags::REMOTE_READ).unwrap();
    assert_eq!(tier(&region), MrTier::Process);
    assert!(bed.read(0, 16, region.addr(), region.rkey()).is_ok());
    let mut out = [0; 16];
    bed.a.region.read(0, &mut out).unwrap();
    assert_eq!(out[8..], 78u64.to_ne_bytes());
}

#[test]
fn shared_memory_that_is_unmapped_is_reached_until_it_is_registered_again() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    if shared_tier() != MrTier::Shared {
        return;
    }
    let map = Map::new(4 * PAGE, MapFlags::MAP_SHARED).unwrap();
    let (addr, length) = (map.0, map.1);
    let region = bed.register(addr, length, RIGHTS).unwrap();
    old_pages_until_registered_again(&bed, &region, map);
    let refused = bed.register(addr, length, RIGHTS).unwrap_err();
    assert!(matches!(refused, VerbsError::Refused { errno: 14, .. }), "{refused}");
}

/// A mapping whose region the engine has mapped is unmapped, and another takes its place.
fn old_pages_until_registered_again(bed: &Bed, region: &ProcessRegion, map: Map) {
    let (addr, length, there) = (map.0, map.1, map.0.addr() as u64);
    map.word(PAGE).store(5, SeqCst);
    let word = |region: &ProcessRegion| {
        assert!(bed.read(0, 8, there + PAGE as u64, region.rkey()).is_ok());
        let mut out = [0; 8];
        bed.a.region.read(0, &mut out).unwrap();
        u64::from_ne_bytes(out)
    };
    drop(map);
    assert_eq!(word(region), 5, "as an adapter does");
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
    // SAFETY: it replaces nothing.
    let anew =
        unsafe { mmap_anonymous(NonZeroUsize::new(addr.addr()), NonZeroUsize::new(length).unwrap(), BOTH, flags) };
    let map = Map(anew.unwrap().as_ptr().cast(), length);
    map.word(PAGE).store(6, SeqCst);
    assert_eq!(word(region), 5);
    let again = bed.register(addr, length, RIGHTS).unwrap();
    assert_eq!(word(&again), 6);
    bed.check(&again, addr);
    assert_eq!(word(region), 5);
}

#[test]
fn after_a_fork_the_region_is_the_parents_memory() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    for flags in [MapFlags::MAP_PRIVATE, MapFlags::MAP_SHARED] {
        let map = Map::new(8 * PAGE, flags).unwrap();
        let region = bed.register(map.0, map.1, RIGHTS).unwrap();
        bed.check(&region, map.0);
        let word = map.word(PAGE);
        word.store(1, SeqCst);
        // SAFETY: the child touches its memory and ends.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                word.store(9, SeqCst);
                // SAFETY: it ends the child, and runs nothing of ours.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0))),
        }
        let is_shared = flags == MapFlags::MAP_SHARED;
        assert!(bed.read(0, 8, region.addr() + PAGE as u64, region.rkey()).is_ok());
        let mut out = [0; 8];
        bed.a.region.read(0, &mut out).unwrap();
        assert_eq!(u64::from_ne_bytes(out), if is_shared { 9 } else { 1 });
        bed.check(&region, map.0);
    }
}

#[test]
fn what_is_unmapped_is_an_error_and_what_is_mapped_there_next_is_found() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    let map = Map::new(4 * PAGE, MapFlags::MAP_PRIVATE).unwrap();
    let (addr, length) = (map.0, map.1);
    let region = bed.register(addr, length, RIGHTS).unwrap();
    bed.check(&region, addr);
    drop(map);
    let place = NonZeroUsize::new(addr.addr());
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
    // SAFETY: it replaces nothing.
    let anew = unsafe { mmap_anonymous(place, NonZeroUsize::new(length).unwrap(), BOTH, flags) }.unwrap();
    let map = Map(anew.as_ptr().cast(), length);
    bed.check(&region, map.0);
    // Registered again at the same place, kept or not, it is what is there now.
    for _ in 0..3 {
        let region = bed.register(addr, length, RIGHTS).unwrap();
        bed.check(&region, addr);
        region.dereg().unwrap();
    }
    drop(map);
    let refused = bed.register(addr, length, RIGHTS).unwrap_err();
    assert!(matches!(refused, VerbsError::Refused { errno: 14, .. }), "{refused}");
    assert_eq!(bed.write(0, 16, region.addr(), region.rkey()).status, WcStatus::RemOpErr);
}

/// Whether memory may move here.
fn may_move() -> bool {
    nix::unistd::geteuid().is_root()
}

#[test]
fn memory_of_a_page_fault_handler_is_an_error_and_never_waited_for() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    if !may_move() {
        return;
    }
    let map = Map::new(4 * PAGE, MapFlags::MAP_PRIVATE).unwrap();
    map.word(0).store(1, SeqCst);
    let region = bed.register(map.0, map.1, RIGHTS).unwrap();
    // A handler that never answers, for all pages but the first.
    let handler = silent_handler(&map, PAGE, 3 * PAGE);
    let start = Instant::now();
    assert!(bed.read(0, 64, region.addr(), region.rkey()).is_ok());
    let done = bed.read(0, 64, region.addr() + 2 * PAGE as u64, region.rkey());
    assert_eq!(done.status, WcStatus::RemOpErr);
    assert!(start.elapsed() < PATIENCE);
    drop(handler);
}

/// A userfaultfd that has the pages of a part of a mapping.
fn silent_handler(map: &Map, offset: usize, length: usize) -> OwnedFd {
    #[repr(C)]
    struct Register([u64; 4]);
    nix::ioctl_readwrite!(api, 0xaa, 0x3f, [u64; 3]);
    nix::ioctl_readwrite!(register, 0xaa, 0x00, Register);
    // SAFETY: it makes a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    // SAFETY: the kernel has just made it for us.
    let fd = unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()) };
    let mut version = [0xaa, 0, 0];
    // SAFETY: the kernel's `struct uffdio_api`.
    unsafe { api(fd.as_raw_fd(), &raw mut version) }.unwrap();
    let mut range = Register([(map.0.addr() + offset) as u64, length as u64, 1, 0]);
    // SAFETY: the kernel's `struct uffdio_register`.
    unsafe { register(fd.as_raw_fd(), &raw mut range) }.unwrap();
    fd
}
