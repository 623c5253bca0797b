//! What is registered again: the keys are new, the bytes are those that are there now, and no message is needed.

use super::*;

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

/// Numbers of the regions of a bed's second session, in use or kept.
fn numbers(bed: &Bed) -> Vec<u32> {
    let Reply::Mrs { mrs, more: false } = bed.b.context.call(&Request::ListMrs { after: None }).unwrap() else {
        panic!("no list, or a long one")
    };
    mrs.iter().filter(|mr| mr.session == bed.b.context.session()).map(|mr| mr.number).collect()
}

#[test]
fn shared_memory_is_registered_again_as_it_is_mapped_then() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    let map = Map::new(1 << 20, MapFlags::MAP_SHARED).unwrap();
    let register = || bed.register(map.0.wrapping_add(100), (1 << 20) - 4200, RIGHTS).unwrap();
    let first = register();
    let (used, old) = (first.query_use().unwrap(), first.rkey());
    first.dereg().unwrap();
    let before = numbers(&bed);
    let start = Instant::now();
    let second = register();
    println!("registered again in {:?}", start.elapsed());
    assert_eq!(numbers(&bed), before, "the engine was asked for nothing");
    assert_ne!(second.rkey(), old);
    assert_eq!((second.query_use().unwrap(), used.tier), (used, shared_tier()));
    bed.check(&second, map.0.wrapping_add(100));
    // Two of the same are two, with rights of their own.
    let third = bed.register(map.0.wrapping_add(100), (1 << 20) - 4200, AccessFlags::REMOTE_READ).unwrap();
    second.dereg().unwrap();
    assert!(bed.read(0, 16, third.addr(), third.rkey()).is_ok());
    assert_eq!(bed.write(0, 16, third.addr(), third.rkey()).status, WcStatus::RemAccessErr);
}

#[test]
fn other_memory_at_the_address_of_what_was_registered_is_other_memory() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    let map = Map::new(16 * PAGE, MapFlags::MAP_SHARED).unwrap();
    // What takes its place, in all of it or in a part; and what engine and program then know of it.
    let places = [
        (0, 16, MapFlags::MAP_SHARED),
        (5, 3, MapFlags::MAP_SHARED),
        (15, 1, MapFlags::MAP_PRIVATE),
        (0, 16, MapFlags::MAP_PRIVATE),
        (0, 16, MapFlags::MAP_SHARED),
    ];
    for (page, count, flags) in places {
        let region = bed.register(map.0, map.1, RIGHTS).unwrap();
        bed.check(&region, map.0);
        region.dereg().unwrap();
        let place = NonZeroUsize::new(map.0.addr() + page * PAGE);
        let length = NonZeroUsize::new(count * PAGE).unwrap();
        // SAFETY: it replaces a part of our own mapping, which nobody uses.
        unsafe { mmap_anonymous(place, length, BOTH, flags | MapFlags::MAP_FIXED) }.unwrap();
        let region = bed.register(map.0, map.1, RIGHTS).unwrap();
        bed.check(&region, map.0);
        region.dereg().unwrap();
    }
    let (addr, length) = (map.0, map.1);
    drop(map);
    let refused = bed.register(addr, length, RIGHTS).unwrap_err();
    assert!(matches!(refused, VerbsError::Refused { errno: 14, .. }), "{refused}");
}

#[test]
fn what_moves_under_a_region_that_was_kept_is_not_found_by_its_next_user() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    if !moved::let_move(&bed) {
        return;
    }
    let map = Map::new(4 << 20, MapFlags::MAP_PRIVATE).unwrap();
    let part = map.0.wrapping_add(1 << 20);
    bed.register(part, 1 << 20, RIGHTS).unwrap().dereg().unwrap();
    let whole = bed.register(map.0, map.1, RIGHTS).unwrap();
    moved::use_until_moved(&bed, &whole);
    whole.dereg().unwrap();
    let place = NonZeroUsize::new(map.0.addr());
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
    // SAFETY: it replaces our own mapping, which nobody uses.
    unsafe { mmap_anonymous(place, NonZeroUsize::new(map.1).unwrap(), BOTH, flags) }.unwrap();
    for (addr, length) in [(part, 1 << 20), (map.0, map.1)] {
        let region = bed.register(addr, length, RIGHTS).unwrap();
        assert_eq!(tier(&region), MrTier::Process);
        bed.check(&region, addr);
    }
}

#[test]
fn memory_that_has_moved_is_registered_anew_without_a_copy_and_again_without_a_message() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    if !moved::let_move(&bed) {
        return;
    }
    let map = Map::new(4 << 20, MapFlags::MAP_PRIVATE).unwrap();
    let mut region = bed.register(map.0, map.1, RIGHTS).unwrap();
    map.word(5 * PAGE).store(4, SeqCst);
    moved::use_until_moved(&bed, &region);
    assert_eq!(map.word(5 * PAGE).load(SeqCst), 4);
    bed.check(&region, map.0);
    for _ in 0..3 {
        region.dereg().unwrap();
        let before = numbers(&bed);
        let start = Instant::now();
        region = bed.register(map.0, map.1, RIGHTS).unwrap();
        println!("registered again in {:?}", start.elapsed());
        assert_eq!(numbers(&bed), before, "the engine was asked for nothing");
        let used = region.query_use().unwrap();
        assert_eq!((used.tier, used.mapped_bytes, used.copied_bytes), (MrTier::Shared, 4 << 20, 0));
        bed.check(&region, map.0);
    }
    // Other rights need a message, and no copy.
    let other = bed.register(map.0, map.1, AccessFlags::REMOTE_READ).unwrap();
    assert_eq!(other.query_use().unwrap().mapped_bytes, 4 << 20);
}

#[test]
fn a_child_gets_no_region_that_its_parent_has_kept() {
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    let map = Map::new(PAGE, MapFlags::MAP_SHARED).unwrap();
    bed.register(map.0, map.1, RIGHTS).unwrap().dereg().unwrap();
    // SAFETY: the child makes a call that takes no lock, and ends.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let is_refused = matches!(bed.register(map.0, map.1, RIGHTS), Err(VerbsError::Inherited));
            // SAFETY: it ends the child, and runs nothing of ours.
            unsafe { libc::_exit(if is_refused { 0 } else { 1 }) }
        }
        ForkResult::Parent { child } => assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0))),
    }
    let region = bed.register(map.0, map.1, RIGHTS).unwrap();
    bed.check(&region, map.0);
}
