//! Memory that moves under its users' hands.

use super::*;

/// Lines of the memory log of the tests that move memory.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn log_lines() -> Vec<String> {
    LOG.lock().map(|lines| lines.clone()).unwrap_or_default()
}

/// Lets memory move; false (and a line that says so) where the operator does not.
pub(super) fn let_move(bed: &Bed) -> bool {
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

/// Uses a region until the engine has all of its whole pages mapped.
pub(super) fn use_until_moved(bed: &Bed, region: &ProcessRegion) {
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
    let _alone = ONE_AT_A_TIME.lock();
    no_write_is_lost(&Bed::new());
}

#[test]
fn no_write_is_lost_while_memory_of_an_engine_on_the_programs_own_thread_moves() {
    let _alone = ONE_AT_A_TIME.lock();
    no_write_is_lost(&Bed::polled());
}

/// Threads of the program and the peer count in memory that moves, and nothing of it is missing in the end.
fn no_write_is_lost(bed: &Bed) {
    const WRITERS: usize = 2;
    if !let_move(bed) {
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
            let done = bed.run(&SendWr::atomic_faa(3, &sge, there, region.rkey(), 1));
            assert!(done.is_ok(), "{} for page {page}: {:?}", done.status, log_lines());
            adds[page] += 1;
            page = (page + 1) % pages;
            if page % 64 == 0 {
                let from = region.addr() + (page as u64 * PAGE as u64) % (7 << 20);
                let done = bed.read(1 << 20, 1 << 20, from, region.rkey());
                assert!(done.is_ok(), "{} from {from:#x}: {:?}", done.status, log_lines());
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
fn regions_that_overlap_move_together_and_each_by_its_own_rights() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    if !let_move(&bed) {
        return;
    }
    let map = Map::new(4 << 20, MapFlags::MAP_PRIVATE).unwrap();
    let whole = bed.register(map.0, map.1, RIGHTS).unwrap();
    let part = bed.register(map.0.wrapping_add(PAGE + 5), 70_001, RIGHTS).unwrap();
    let weak = bed.register(map.0, map.1, AccessFlags::REMOTE_READ).unwrap();
    use_until_moved(&bed, &whole);
    for region in [&part, &weak] {
        let used = region.query_use().unwrap();
        assert_eq!((used.tier, used.mapped_bytes), (MrTier::Moved, region.length()));
    }
    bed.check(&part, map.0.wrapping_add(PAGE + 5));
    bed.check(&whole, map.0);
    assert!(bed.read(0, 64, weak.addr(), weak.rkey()).is_ok());
    whole.dereg().unwrap();
    bed.check(&part, map.0.wrapping_add(PAGE + 5));
    assert_eq!(bed.write(0, 64, weak.addr(), weak.rkey()).status, WcStatus::RemAccessErr);
}

#[test]
fn what_has_moved_and_is_unmapped_is_reached_until_it_is_registered_again() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    if !let_move(&bed) {
        return;
    }
    let map = Map::new(4 << 20, MapFlags::MAP_PRIVATE).unwrap();
    let region = bed.register(map.0, map.1, RIGHTS).unwrap();
    use_until_moved(&bed, &region);
    old_pages_until_registered_again(&bed, &region, map);
}

#[test]
fn what_can_not_move_is_served_as_before() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    if !let_move(&bed) {
        return;
    }
    // Two MiB that move, a file, and pages that may only be read.
    let map = Map::new(6 << 20, MapFlags::MAP_PRIVATE).unwrap();
    let (file_at, fixed_at) = (map.0.wrapping_add(2 << 20), map.0.wrapping_add(4 << 20));
    let file = tempfile::tempfile().unwrap();
    file.set_len(2 << 20).unwrap();
    let (place, length) = (NonZeroUsize::new(file_at.addr()), NonZeroUsize::new(2 << 20).unwrap());
    // SAFETY: it replaces a part of our own mapping, which nobody uses.
    unsafe { mmap(place, length, BOTH, MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED, &file, 0) }.unwrap();
    map.word(5 << 20).store(11, SeqCst);
    let base = ptr::NonNull::new(fixed_at.cast::<c_void>()).unwrap();
    // SAFETY: our own mapping.
    unsafe { mprotect(base, 2 << 20, ProtFlags::PROT_READ) }.unwrap();
    let region = bed.register(map.0, map.1, RIGHTS).unwrap();
    let end = Instant::now() + PATIENCE;
    while region.query_use().unwrap().mapped_bytes < 2 << 20 {
        assert!(Instant::now() < end, "{:?}: {:?}", region.query_use(), log_lines());
        for piece in 0..6u64 {
            assert!(bed.read(0, 1 << 20, region.addr() + (piece << 20), region.rkey()).is_ok());
        }
    }
    assert_eq!(region.query_use().unwrap().mapped_bytes, 2 << 20);
    let data = pattern(3 << 20);
    bed.a.region.write(0, &data).unwrap();
    assert!(bed.write(0, 3 << 20, region.addr() + (1 << 20), region.rkey()).is_ok());
    assert!(bytes(map.0.wrapping_add(1 << 20), 3 << 20) == data, "from moved memory into the file's");
    assert!(bed.read(0, 8, region.addr() + (5 << 20), region.rkey()).is_ok());
    let mut out = [0; 8];
    bed.a.region.read(0, &mut out).unwrap();
    assert_eq!(out, 11u64.to_ne_bytes());
}

#[test]
fn the_stack_of_a_thread_moves_under_its_feet() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    if !let_move(&bed) {
        return;
    }
    let on_stack = |bed: &Bed| {
        let mut array = std::hint::black_box([0u8; 3 << 20]);
        let at = array.as_mut_ptr();
        let region = bed.register(at, 3 << 20, RIGHTS).unwrap();
        use_until_moved(bed, &region);
        bed.check(&region, at);
        region.dereg().unwrap();
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(16 << 20);
        thread.spawn_scoped(scope, || on_stack(&bed)).unwrap().join().unwrap();
    });
}
