//! What registering, moving and deregistering leaves behind when it is done often: nothing.

use super::*;

/// Mappings and open files of this process, in which the engines are, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Holdings {
    mappings: usize,
    files: usize,
}

impl Holdings {
    fn now() -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        Self { mappings: maps.lines().count(), files: std::fs::read_dir("/proc/self/fd").unwrap().count() }
    }

    /// Whether there are no more than before, but for what anybody may have made meanwhile: an arena of an allocator, say.
    fn is_as(self, before: Self) -> bool {
        self.mappings <= before.mappings + 8 && self.files <= before.files + 2
    }
}

/// Memory that lives for one round.
fn round(bed: &Bed) {
    let map = Map::new(1 << 20, MapFlags::MAP_PRIVATE).unwrap();
    let region = bed.register(map.0, map.1, RIGHTS).unwrap();
    moved::use_until_moved(bed, &region);
    bed.check(&region, map.0);
    region.dereg().unwrap();
    drop(map);
}

#[test]
fn memory_that_moves_and_goes_leaves_neither_mappings_nor_files() {
    const ROUNDS: usize = 60;
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    if !moved::let_move(&bed) {
        return;
    }
    for _ in 0..20 {
        round(&bed);
    }
    let before = Holdings::now();
    for _ in 0..ROUNDS {
        round(&bed);
    }
    // What was kept for the next registration is let go of within seconds.
    let end = Instant::now() + PATIENCE;
    while !Holdings::now().is_as(before) {
        assert!(Instant::now() < end, "{before:?} before, {:?} after {ROUNDS} rounds", Holdings::now());
        std::thread::yield_now();
    }
    println!("{before:?} before, {:?} after {ROUNDS} rounds", Holdings::now());
}

#[test]
fn memory_that_has_moved_once_is_registered_thousands_of_times_at_no_cost() {
    const BYTES: usize = 64 << 20;
    const ROUNDS: u32 = 2000;
    let _alone = ONE_AT_A_TIME.lock();
    let bed = Bed::new();
    if !moved::let_move(&bed) {
        return;
    }
    let map = Map::new(BYTES, MapFlags::MAP_PRIVATE).unwrap();
    let region = bed.register(map.0, map.1, RIGHTS).unwrap();
    moved::use_until_moved(&bed, &region);
    region.dereg().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let moved = maps.lines().filter(|line| line.contains("ferroce-moved")).count();
    // The program's and the engine's, each in a few.
    assert!(moved <= 8, "{moved} mappings for {BYTES} bytes:\n{maps}");
    let before = Holdings::now();
    let start = Instant::now();
    for _ in 0..ROUNDS {
        let region = bed.register(map.0, map.1, RIGHTS).unwrap();
        region.dereg().unwrap();
    }
    println!("registered and deregistered in {:?} each", start.elapsed() / ROUNDS);
    let after = Holdings::now();
    assert!(after.is_as(before), "{before:?} before, {after:?} after {ROUNDS} rounds");
    let region = bed.register(map.0, map.1, RIGHTS).unwrap();
    assert_eq!(region.query_use().unwrap().mapped_bytes, BYTES as u64);
    bed.check(&region, map.0);
}
