//! Every kind of memory that a program may register: the right bytes both ways, and by which tier; what happens when it is unmapped,
//! mapped anew, grown, moved under its writers' hands, or inherited by a child.

mod support;

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

use daemon::embedded::{ThreadedNode, engine_config, threaded_pair};
use daemon::{IdlePolicy, LcoreSetup};
use ferroce::control::MrTier;
use ferroce::{
    AccessFlags, Context, MemoryTiers, OwnRange, ProcessRegion, SendWr, Sge, VerbsError, WcStatus, WorkCompletion,
};
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use support::{PATIENCE, Peer, connect};

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
    _nodes: [ThreadedNode; 2],
}

impl Bed {
    fn new() -> Self {
        let setup = LcoreSetup { cores: vec![None], idle: IdlePolicy::Adaptive };
        let nodes = threaded_pair(&engine_config("ferroce0"), [&setup, &setup]).unwrap();
        let peer = |node: &ThreadedNode| Peer::new(Context::from_fd(node.connect().unwrap()).unwrap(), 4 << 20, 0);
        let (a, b) = (peer(&nodes[0]), peer(&nodes[1]));
        connect(&a, &b);
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

#[test]
fn a_key_is_dead_once_its_region_is_deregistered_though_the_range_is_registered_again() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    let map = Map::new(4 * PAGE, MapFlags::MAP_PRIVATE).unwrap();
    let first = bed.register(map.0, map.1, RIGHTS).unwrap();
    let (addr, old) = (first.addr(), first.rkey());
    first.dereg().unwrap();
    let start = Instant::now();
    let second = bed.register(map.0, map.1, RIGHTS).unwrap();
    let time = start.elapsed();
    assert_ne!(second.rkey(), old);
    bed.check(&second, map.0);
    // Other rights are another region.
    let weaker = bed.register(map.0, map.1, AccessFlags::REMOTE_READ).unwrap();
    assert_eq!(bed.read(0, 16, addr, weaker.rkey()).status, WcStatus::Success);
    assert_eq!(bed.write(0, 16, addr, old).status, WcStatus::RemAccessErr, "registered again in {time:?}");
}

#[test]
fn a_domain_goes_with_the_regions_that_were_kept_for_it() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    let pd = bed.b.context.alloc_pd().unwrap();
    let maps: Vec<Map> = (0..40).map(|_| Map::new(PAGE, MapFlags::MAP_PRIVATE).unwrap()).collect();
    for map in &maps {
        // SAFETY: nobody looks at it.
        let range = unsafe { OwnRange::new(map.0, map.1) };
        pd.register_process_memory(range, range.addr(), RIGHTS).unwrap().dereg().unwrap();
    }
    pd.dealloc().unwrap();
}

/// Lines of the memory log of the tests that move memory.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn log_lines() -> Vec<String> {
    LOG.lock().map(|lines| lines.clone()).unwrap_or_default()
}

/// Lets memory move; false (and a line that says so) where the operator does not.
fn let_move(bed: &Bed) -> bool {
    bed.b.context.set_memory_tiers(MemoryTiers::Moved);
    bed.b.context.set_memory_log(|line| {
        println!("{line}");
        LOG.lock().unwrap().push(line.to_owned());
    });
    let may = may_move();
    if !may {
        println!("userfaultfd is not allowed here: memory stays where it is");
    }
    may
}

fn may_move() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Uses a region until the engine has all of its whole pages mapped.
fn use_until_moved(bed: &Bed, region: &ProcessRegion) {
    let end = Instant::now() + PATIENCE;
    let pages = region.length() - 2 * PAGE as u64;
    while region.query_use().unwrap().mapped_bytes < pages {
        assert!(Instant::now() < end, "{:?}: {:?}", region.query_use(), log_lines());
        for piece in 0..region.length() >> 20 {
            assert!(bed.read(0, 1 << 20, region.addr() + (piece << 20), region.rkey()).is_ok());
        }
    }
    assert_eq!(tier(region), MrTier::Moved);
}

#[test]
fn no_write_of_the_program_or_of_a_peer_is_lost_while_memory_moves() {
    const WRITERS: usize = 2;
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    if !let_move(&bed) {
        return;
    }
    let map = Map::new(8 << 20, MapFlags::MAP_PRIVATE).unwrap();
    // Not whole pages: its ends stay.
    let region = bed.register(map.0.wrapping_add(24), map.1 - 48, RIGHTS).unwrap();
    /// Ends the writers, also when an assertion fails.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let (stop, pages) = (AtomicBool::new(false), map.1 / PAGE);
    let peer_word = |page: usize| page * PAGE + 2048;
    // Up to where it begins to pay to move it.
    for piece in (0..4).flat_map(|_| 0..7u64) {
        assert!(bed.read(1 << 20, 1 << 20, region.addr() + (piece << 20), region.rkey()).is_ok());
    }
    let (sums, adds) = std::thread::scope(|scope| {
        let ends = Ends(&stop);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (map, stop) = (&map, &stop);
                scope.spawn(move || {
                    let (mut count, mut longest) = (0u64, Duration::ZERO);
                    while !stop.load(Relaxed) {
                        for page in 0..pages {
                            let start = Instant::now();
                            map.word(page * PAGE + 64 * (1 + writer)).fetch_add(1, Relaxed);
                            longest = longest.max(start.elapsed());
                            count += 1;
                        }
                        // The engines are to get on as well, on a machine of few cores.
                        std::thread::yield_now();
                    }
                    println!("writer {writer} waited {longest:?} at most");
                    count
                })
            })
            .collect();
        // The peer adds to a word of one page after another until all have moved, and then once around.
        let end = Instant::now() + 3 * PATIENCE;
        let (mut adds, mut page) = (vec![0u64; pages], 0);
        let mut left = None;
        while left != Some(0) {
            assert!(Instant::now() < end, "{:?}: {:?}", region.query_use(), log_lines());
            let sge: [Sge; 1] = [bed.a.region.sge(0, 8).unwrap()];
            let there = map.0.addr() as u64 + peer_word(page) as u64;
            assert!(bed.run(&SendWr::atomic_faa(3, &sge, there, region.rkey(), 1)).is_ok());
            adds[page] += 1;
            page = (page + 1) % pages;
            if page % 64 == 0 {
                let from = region.addr() + (page as u64 * PAGE as u64) % (7 << 20);
                assert!(bed.read(1 << 20, 1 << 20, from, region.rkey()).is_ok());
            }
            left = match left {
                Some(left) => Some(left - 1),
                None if page % 64 == 0 && tier_of_all(&region) => Some(pages),
                None => None,
            };
        }
        drop(ends);
        (writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>(), adds)
    });
    for (writer, written) in sums.into_iter().enumerate() {
        let found: u64 = (0..pages).map(|page| map.word(page * PAGE + 64 * (1 + writer)).load(Relaxed)).sum();
        assert_eq!(found, written, "writer {writer}");
    }
    for (page, added) in adds.into_iter().enumerate() {
        assert_eq!(map.word(peer_word(page)).load(Relaxed), added, "page {page}");
    }
    bed.check(&region, map.0.wrapping_add(24));
}

/// True if all whole pages of a region have moved.
fn tier_of_all(region: &ProcessRegion) -> bool {
    region.query_use().unwrap().mapped_bytes >= region.length() - 2 * PAGE as u64
}

#[test]
fn memory_that_has_moved_is_registered_anew_without_a_copy() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    if !let_move(&bed) {
        return;
    }
    let map = Map::new(4 << 20, MapFlags::MAP_PRIVATE).unwrap();
    let region = bed.register(map.0, map.1, RIGHTS).unwrap();
    map.word(5 * PAGE).store(4, SeqCst);
    use_until_moved(&bed, &region);
    assert_eq!(map.word(5 * PAGE).load(SeqCst), 4);
    bed.check(&region, map.0);
    region.dereg().unwrap();
    let region = bed.register(map.0, map.1, RIGHTS).unwrap();
    let used = region.query_use().unwrap();
    assert_eq!((used.tier, used.mapped_bytes, used.copied_bytes), (MrTier::Shared, 4 << 20, 0));
    bed.check(&region, map.0);
}

#[test]
fn memory_that_two_sessions_have_registered_stays() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    if !let_move(&bed) {
        return;
    }
    let map = Map::new(4 << 20, MapFlags::MAP_PRIVATE).unwrap();
    let region = bed.register(map.0, map.1, RIGHTS).unwrap();
    // SAFETY: nobody looks at it but by atomics.
    let range = unsafe { OwnRange::new(map.0.wrapping_add(1 << 20), 100) };
    let _other = bed.a.pd.register_process_memory(range, range.addr(), RIGHTS).unwrap();
    let before = LOG.lock().unwrap().len();
    let end = Instant::now() + PATIENCE;
    while !LOG.lock().unwrap()[before..].iter().any(|line| line.contains("have moved")) {
        assert!(Instant::now() < end, "it was not looked at");
        assert!(bed.read(0, 1 << 20, region.addr() + (2 << 20), region.rkey()).is_ok());
    }
    // One piece of 2 MiB or two have nothing to do with the other session.
    assert!(region.query_use().unwrap().mapped_bytes <= 2 << 20);
    bed.check(&region, map.0);
}

#[test]
fn a_child_has_memory_of_its_own_in_place_of_what_has_moved() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    if !let_move(&bed) {
        return;
    }
    let map = Map::new(4 << 20, MapFlags::MAP_PRIVATE).unwrap();
    let region = bed.register(map.0, map.1, RIGHTS).unwrap();
    use_until_moved(&bed, &region);
    let (word, other) = (map.word(PAGE), map.word(2 << 20));
    word.store(1, SeqCst);
    // SAFETY: the child touches its memory and ends.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let seen = word.load(SeqCst);
            word.store(9, SeqCst);
            other.store(9, SeqCst);
            let good = seen == 1 && word.load(SeqCst) == 9;
            // SAFETY: it ends the child, and runs nothing of ours.
            unsafe { libc::_exit(if good { 0 } else { 1 }) }
        }
        ForkResult::Parent { child } => assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0))),
    }
    assert_eq!((word.load(SeqCst), other.load(SeqCst)), (1, 0), "the child's writes are the child's");
    bed.check(&region, map.0);
}

#[test]
fn what_an_allocator_has_moved_can_grow_and_be_freed() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    if !let_move(&bed) {
        return;
    }
    // SAFETY: it is freed below.
    let block = unsafe { libc::malloc(8 << 20) };
    let region = bed.register(block.cast(), 8 << 20, RIGHTS).unwrap();
    use_until_moved(&bed, &region);
    let data = pattern(1 << 20);
    bed.check(&region, block.cast());
    region.dereg().unwrap();
    // SAFETY: a block of malloc.
    let block = unsafe { libc::realloc(block, 32 << 20) }.cast::<u8>();
    assert!(bytes(block, 1 << 20) == data);
    // SAFETY: the block is that long.
    unsafe { ptr::write_bytes(block, 7, 32 << 20) };
    assert!(bytes(block, 32 << 20).iter().all(|&byte| byte == 7));
    // SAFETY: a block of malloc.
    unsafe { libc::free(block.cast()) };
    // A mapping of the program's own that grows in place, or elsewhere.
    let map = Map::new(4 << 20, MapFlags::MAP_PRIVATE).unwrap();
    let region = bed.register(map.0, map.1, RIGHTS).unwrap();
    use_until_moved(&bed, &region);
    region.dereg().unwrap();
    map.word(0).store(5, SeqCst);
    // SAFETY: our own mapping, which nobody else uses.
    let grown = unsafe { libc::mremap(map.0.cast(), map.1, 2 * map.1, libc::MREMAP_MAYMOVE) };
    assert_ne!(grown.addr(), usize::MAX, "{}", std::io::Error::last_os_error());
    let grown = Map(grown.cast(), 2 * map.1);
    std::mem::forget(map);
    assert_eq!((grown.word(0).load(SeqCst), grown.word(grown.1 - 8).load(SeqCst)), (5, 0));
    grown.word(grown.1 - 8).store(1, SeqCst);
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
