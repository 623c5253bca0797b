//! Memory regions and windows as one shard sees them: keys, rights, ranges, and bounded access to the memory behind them.
//!
//! A window that is bound is an entry like a region's, with remote rights only; one of type 2 has a QP where others have a
//! protection domain. So the data path looks both up by the same few comparisons.

pub(crate) mod moved;
pub(crate) mod process;
pub(crate) mod window;

use std::cell::Cell;
use std::sync::Arc;

use shm::attr::AccessFlags;
use shm::control::MrTier;
use shm::mapping::{MapError, Mapping, OutOfBounds};
use shm::process_memory::{ADDRESS_END, NotMapped};
use wire::Qpn;

use process::{ProcessRange, Way};
use window::{Bound, Place, Slot};

/// Low bits of a key that say nothing of the slot. IBTA 10.6.3.
const KEY_TAG_BITS: u32 = 8;

/// What a peer may do; what invalidating a key takes away.
const REMOTE_RIGHTS: AccessFlags =
    AccessFlags::REMOTE_READ.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_ATOMIC);

/// What holds regions' bytes.
#[derive(Debug)]
pub enum Backing {
    /// Memory that we map too; offsets count from the mapping's start.
    Mapped(Mapping),
    /// The client's process, reached by system calls or through mappings of parts of it; offsets are its addresses.
    Process(ProcessRange),
}

impl Backing {
    /// Where its offsets end.
    pub(crate) fn end(&self) -> u64 {
        match self {
            Self::Mapped(mapping) => mapping.bytes(),
            Self::Process(_) => ADDRESS_END,
        }
    }

    /// Memory of the client's process.
    pub(crate) fn process(&self) -> Option<&ProcessRange> {
        match self {
            Self::Mapped(_) => None,
            Self::Process(range) => Some(range),
        }
    }

    /// Faults mapped pages in.
    ///
    /// # Errors
    /// [`MapError`] if there is no memory for them.
    pub(crate) fn populate(&self, offset: u64, bytes: u64) -> Result<(), MapError> {
        match self {
            Self::Mapped(mapping) => mapping.populate(offset, bytes),
            // They are the client's, and come when they are used.
            Self::Process(_) => Ok(()),
        }
    }
}

/// The right to use a key in SGEs: every region gives it, no window does. No bit of the verbs.
const LOCAL_USE: AccessFlags = AccessFlags(1 << 31);

/// Set while a region is about to be deregistered: no window may be bound to it. No bit of the verbs.
const HELD: AccessFlags = AccessFlags(1 << 30);

/// A memory region, or a window that is bound.
#[derive(Clone, Debug)]
pub struct MrEntry {
    /// L_Key and R_Key: a random 32-bit value, never 0.
    pub key: u32,
    /// The protection domain, unique among all sessions.
    pub pd: u32,
    /// Rights.
    pub access: AccessFlags,
    /// First address that SGEs and peers use for it; 0 for a zero-based region.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// The memory that it is part of.
    pub backing: Arc<Backing>,
    /// Where in `backing` it begins, bytes.
    pub offset: u64,
    /// Windows bound to it here.
    pub windows: u32,
    /// If it is a window: which.
    pub window: Option<Bound>,
}

impl MrEntry {
    /// A region without a key, known by the addresses `range`. Their sum was checked not to overflow.
    pub(crate) fn region(
        pd: u32,
        access: AccessFlags,
        range: std::ops::Range<u64>,
        backing: Arc<Backing>,
        offset: u64,
    ) -> Self {
        let length = range.end - range.start;
        Self { key: 0, pd, access, addr: range.start, length, backing, offset, windows: 0, window: None }
    }

    /// How it is reached, or the best reached part of it; and bytes that are mapped here.
    pub(crate) fn tier(&self) -> (MrTier, u64) {
        match &*self.backing {
            Backing::Mapped(_) => (MrTier::Mapped, self.length),
            Backing::Process(range) => range.tier(),
        }
    }

    /// Whether all of its addresses are 64-bit values and all of its bytes lie in what backs it.
    fn is_sound(&self) -> bool {
        let end = self.offset.checked_add(self.length);
        self.addr.checked_add(self.length).is_some() && end.is_some_and(|end| end <= self.backing.end())
    }
}

/// Why an access to a region is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MrFault {
    /// No region has this key.
    UnknownKey,
    /// The region is of another protection domain than the QP.
    WrongPd,
    /// The access does not lie within the region.
    OutOfRange,
    /// The region does not grant the right.
    NoRight,
    /// The memory is not mapped in the client's process any more.
    NotMapped,
}

impl From<OutOfBounds> for MrFault {
    fn from(_: OutOfBounds) -> Self {
        Self::OutOfRange
    }
}

impl From<NotMapped> for MrFault {
    fn from(_: NotMapped) -> Self {
        Self::NotMapped
    }
}

/// What a shard did to memory of clients' processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ProcessTally {
    /// Reads: a system call each.
    pub(crate) reads: u64,
    /// Writes, atomics among them.
    pub(crate) writes: u64,
    /// Those of them that found memory missing.
    pub(crate) faults: u64,
    /// Reads and writes without a system call: of memory that the process shares, or has moved.
    pub(crate) mapped: u64,
}

/// The part of a region that an access was granted to; offsets count from its first byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MrSlice<'a> {
    backing: &'a Backing,
    tally: &'a Cell<ProcessTally>,
    offset: u64,
    length: u32,
}

impl MrSlice<'_> {
    /// Where byte `at` lies in the backing, if `bytes` bytes from there on are granted.
    #[inline]
    fn position(&self, at: u32, bytes: usize) -> Result<u64, OutOfBounds> {
        match usize::try_from(self.length.checked_sub(at).ok_or(OutOfBounds)?) {
            Ok(granted) if bytes <= granted => Ok(self.offset + u64::from(at)),
            _ => Err(OutOfBounds),
        }
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`MrFault::OutOfRange`]: nothing was copied. [`MrFault::NotMapped`]: a part may have been.
    #[inline]
    pub(crate) fn write(&self, at: u32, data: &[u8]) -> Result<(), MrFault> {
        let position = self.position(at, data.len())?;
        match self.backing {
            Backing::Mapped(mapping) => Ok(mapping.write(position, data)?),
            Backing::Process(memory) => self.count(true, memory.write(position, data).map(|way| ((), way))),
        }
    }

    /// Copies bytes out and folds them, as copied, into the CRC-32 `crc` (zlib's convention).
    ///
    /// # Errors
    /// As [`MrSlice::write`].
    #[inline]
    pub(crate) fn read_crc(&self, at: u32, out: &mut [u8], crc: u32) -> Result<u32, MrFault> {
        let position = self.position(at, out.len())?;
        match self.backing {
            Backing::Mapped(mapping) => Ok(mapping.read_crc(position, out, crc)?),
            Backing::Process(memory) => self.count(false, memory.read_crc(position, out, crc)),
        }
    }

    /// Atomically changes the 64-bit word at `at` and returns what it was. `change` may run more than once; `None` from it
    /// leaves the word as it is.
    ///
    /// # Errors
    /// [`MrFault::OutOfRange`] if the word is not wholly granted or, in mapped memory, not aligned to 8 bytes;
    /// [`MrFault::NotMapped`] (also if misaligned in the process). Nothing was changed.
    #[inline]
    pub(crate) fn update_u64(&self, at: u32, change: impl Fn(u64) -> Option<u64>) -> Result<u64, MrFault> {
        let position = self.position(at, 8)?;
        match self.backing {
            Backing::Mapped(mapping) => Ok(mapping.update_u64(position, change)?),
            Backing::Process(memory) => self.count(true, memory.update_u64(position, change)),
        }
    }

    /// Counts an access to a process. Not inlined: in the path of attached memory it would be in the way.
    #[inline(never)]
    fn count<T>(&self, write: bool, done: Result<(T, Way), NotMapped>) -> Result<T, MrFault> {
        let mut tally = self.tally.get();
        match &done {
            Ok((_, Way::Mapped)) => tally.mapped += 1,
            Ok((_, Way::Process)) | Err(NotMapped) if write => tally.writes += 1,
            Ok((_, Way::Process)) | Err(NotMapped) => tally.reads += 1,
        }
        tally.faults += u64::from(done.is_err());
        self.tally.set(tally);
        Ok(done?.0)
    }
}

/// The regions of one shard: a table indexed by the low bits of the key.
///
/// Keys are random, so a table of twice the slots finds room for a new one in two draws on average, and a lookup is one
/// load and one comparison of the whole key.
#[derive(Debug)]
pub(crate) struct MrTable {
    slots: Box<[Slot]>,
    /// Slots of windows, bound or not.
    windows: Vec<usize>,
    /// In a cell: accesses borrow the table.
    process: Cell<ProcessTally>,
}

impl MrTable {
    /// A table for `max_regions` regions, with at least twice as many slots. The only allocation; that no more regions are
    /// made than that is for the control side to see to.
    pub(crate) fn new(max_regions: u32) -> Self {
        let slots = (max_regions.max(1) as usize * 2).next_power_of_two();
        let slots = std::iter::repeat_with(|| Slot(Place::Free)).take(slots).collect();
        Self { slots, windows: Vec::new(), process: Cell::default() }
    }

    /// What was done to memory of processes so far.
    pub(crate) fn process_tally(&self) -> ProcessTally {
        self.process.get()
    }

    #[inline]
    fn slot_of(&self, key: u32) -> usize {
        // The number of slots is a power of two. The lower 8 bits are a tag, which changes when a window is bound.
        (key >> KEY_TAG_BITS) as usize & (self.slots.len() - 1)
    }

    /// Whether a region can have this key: it is not 0, and its slot is free.
    pub(crate) fn has_room_for(&self, key: u32) -> bool {
        key != 0 && matches!(self.slots[self.slot_of(key)].0, Place::Free)
    }

    /// Takes a region. Returns false, and drops it, if its key is 0 or its slot is in use, or if its range overflows or
    /// reaches beyond what backs it.
    #[must_use = "a region that does not fit is dropped"]
    pub(crate) fn insert(&mut self, mut entry: MrEntry) -> bool {
        entry.access = entry.access | LOCAL_USE;
        let fits = self.has_room_for(entry.key) && entry.is_sound();
        if fits {
            let slot = self.slot_of(entry.key);
            self.slots[slot].0 = Place::Entry(entry);
        }
        fits
    }

    /// Gives a region back; `None` if no region has this key.
    pub(crate) fn remove(&mut self, key: u32) -> Option<MrEntry> {
        let slot = self.slot_of(key);
        match &self.slots[slot].0 {
            Place::Entry(entry) if entry.key == key && entry.window.is_none() => {}
            _ => return None,
        }
        match std::mem::replace(&mut self.slots[slot].0, Place::Free) {
            Place::Entry(entry) => Some(entry),
            Place::Free | Place::Unbound(_) => None,
        }
    }

    /// The region with this key.
    #[inline]
    pub(crate) fn get(&self, key: u32) -> Option<&MrEntry> {
        match &self.slots[self.slot_of(key)].0 {
            Place::Entry(entry) if entry.key == key => Some(entry),
            _ => None,
        }
    }

    /// Checks an access of `length` bytes from `addr` on against the region `key`, and grants it.
    ///
    /// A length of 0 needs an address within the region or just behind it: where key and address of an empty access are not
    /// to be looked at (READ and WRITE of length 0), don't call this.
    ///
    /// # Errors
    /// The first of these that holds: [`MrFault::UnknownKey`], [`MrFault::WrongPd`], [`MrFault::NoRight`],
    /// [`MrFault::OutOfRange`].
    #[inline]
    pub(crate) fn resolve(
        &self,
        key: u32,
        pd: u32,
        addr: u64,
        length: u32,
        needed: AccessFlags,
    ) -> Result<MrSlice<'_>, MrFault> {
        let entry = self.get(key).ok_or(MrFault::UnknownKey)?;
        if entry.pd != pd {
            return Err(MrFault::WrongPd);
        }
        self.grant(entry, addr, length, needed | LOCAL_USE)
    }

    /// The same for an access of the peer of QP `qpn`: windows count as well.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    #[inline]
    pub(crate) fn resolve_remote(
        &self,
        key: u32,
        (pd, qpn): (u32, Qpn),
        addr: u64,
        length: u32,
        needed: AccessFlags,
    ) -> Result<MrSlice<'_>, MrFault> {
        let entry = self.get(key).ok_or(MrFault::UnknownKey)?;
        if entry.pd != pd && entry.pd != window::scope_of(qpn) {
            return Err(MrFault::WrongPd);
        }
        self.grant(entry, addr, length, needed)
    }

    /// Checks rights and range.
    #[inline]
    fn grant<'a>(
        &'a self,
        entry: &'a MrEntry,
        addr: u64,
        length: u32,
        needed: AccessFlags,
    ) -> Result<MrSlice<'a>, MrFault> {
        if !entry.access.contains(needed) {
            return Err(MrFault::NoRight);
        }
        let start = addr.checked_sub(entry.addr).ok_or(MrFault::OutOfRange)?;
        match entry.length.checked_sub(start) {
            // `offset + start` stays within the backing, as `insert` or `bind` checked.
            Some(rest) if u64::from(length) <= rest => {
                let MrEntry { backing, offset, .. } = entry;
                Ok(MrSlice { backing, tally: &self.process, offset: offset + start, length })
            }
            _ => Err(MrFault::OutOfRange),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shm::mapping::PageSize;

    use super::*;

    const PAGE: u64 = 4096;
    const QP: Qpn = Qpn::new(17);

    fn mapping() -> Arc<Backing> {
        Arc::new(Backing::Mapped(Mapping::create(c"mr-test", PAGE, PageSize::Base).expect("a page of memory")))
    }

    fn read(backing: &Backing, offset: u64, out: &mut [u8]) {
        let Backing::Mapped(mapping) = backing else { panic!("not mapped") };
        mapping.read(offset, out).unwrap();
    }

    fn entry(key: u32, backing: &Arc<Backing>) -> MrEntry {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
        MrEntry {
            key,
            pd: 7,
            access,
            addr: 0x1000,
            length: 100,
            backing: Arc::clone(backing),
            offset: 64,
            windows: 0,
            window: None,
        }
    }

    fn table_with(entry: MrEntry) -> MrTable {
        let mut table = MrTable::new(4);
        assert!(table.insert(entry));
        table
    }

    #[test]
    fn access_within_the_region_reaches_its_bytes() {
        let memory = mapping();
        let table = table_with(entry(9, &memory));
        let slice = table.resolve(9, 7, 0x1000 + 90, 10, AccessFlags::LOCAL_WRITE).unwrap();
        slice.write(2, b"12345678").unwrap();
        let mut seen = [0; 8];
        read(&memory, 64 + 92, &mut seen);
        assert_eq!(&seen, b"12345678");
        let mut out = [0; 3];
        assert_eq!(slice.read_crc(7, &mut out, 0), Ok(crc32fast::hash(b"678")));
        assert_eq!(&out, b"678");
    }

    #[test]
    fn access_beyond_the_slice_is_refused_and_changes_nothing() {
        let memory = mapping();
        let table = table_with(entry(9, &memory));
        let slice = table.resolve(9, 7, 0x1000, 10, AccessFlags::LOCAL_WRITE).unwrap();
        assert_eq!(slice.write(3, &[0xff; 8]), Err(MrFault::OutOfRange));
        assert_eq!(slice.write(11, &[]), Err(MrFault::OutOfRange));
        assert_eq!(slice.read_crc(u32::MAX, &mut [0; 8], 0), Err(MrFault::OutOfRange));
        assert_eq!(slice.update_u64(8, |_| Some(1)), Err(MrFault::OutOfRange));
        let mut page = [1; PAGE as usize];
        read(&memory, 0, &mut page);
        assert_eq!(page, [0; PAGE as usize]);
        assert_eq!(slice.write(10, &[]), Ok(()));
    }

    #[test]
    fn atomic_changes_an_aligned_word() {
        let table = table_with(entry(9, &mapping()));
        let slice = table.resolve(9, 7, 0x1000, 16, AccessFlags::LOCAL_WRITE).unwrap();
        assert_eq!(slice.update_u64(8, |old| old.checked_add(5)), Ok(0));
        assert_eq!(slice.update_u64(8, |old| (old == 4).then_some(0)), Ok(5));
        assert_eq!(slice.update_u64(8, |_| None), Ok(5));
        assert_eq!(slice.update_u64(4, |_| Some(1)), Err(MrFault::OutOfRange));
    }

    #[test]
    fn process_memory_is_reached_by_its_addresses() {
        use shm::process_memory::{AtomicTurns, ProcessMemory};
        let own = ProcessMemory::open_own().expect("a process may open its own memory");
        let memory = ProcessMemory::adopt(own, std::process::id(), AtomicTurns::default()).expect("it is ours");
        let mut bytes = vec![3u8; 100];
        let offset = bytes.as_mut_ptr().addr() as u64;
        let access = AccessFlags::LOCAL_WRITE;
        let range = ProcessRange::new(Arc::new(memory), offset..offset + 100, Vec::new());
        let backing = Arc::new(Backing::Process(range));
        let good = MrEntry { key: 0x900, ..MrEntry::region(7, access, 0x1000..0x1064, backing, offset) };
        assert!(!MrTable::new(4).insert(MrEntry { offset: ADDRESS_END - 99, ..good.clone() }));
        let gone = MrEntry { key: 0xa00, offset: 4096, ..good.clone() };
        let mut table = table_with(good);
        assert!(table.insert(gone));
        table.resolve(0x900, 7, 0x1000 + 10, 5, access).unwrap().write(1, b"abcd").unwrap();
        let mut out = [0; 6];
        table.resolve(0x900, 7, 0x1000 + 10, 6, access).unwrap().read_crc(0, &mut out, 0).unwrap();
        assert_eq!(&out, b"\x03abcd\x03");
        assert_eq!(table.resolve(0xa00, 7, 0x1000, 6, access).unwrap().write(0, b"abcd"), Err(MrFault::NotMapped));
        assert_eq!(table.process_tally(), ProcessTally { reads: 1, writes: 2, faults: 1, mapped: 0 });
    }

    #[test]
    fn faults_come_in_order() {
        let table = table_with(entry(9, &mapping()));
        let fault = |key, pd, addr, length, needed| table.resolve(key, pd, addr, length, needed).unwrap_err();
        let write = AccessFlags::REMOTE_WRITE;
        assert_eq!(fault(0, 7, 0x1000, 1, AccessFlags::NONE), MrFault::UnknownKey);
        // Same slot, other tag.
        assert_eq!(fault(9 + 1, 1, 0, 1, write), MrFault::UnknownKey);
        assert_eq!(fault(9, 1, 0, 1, write), MrFault::WrongPd);
        assert_eq!(fault(9, 7, 0, 1, write), MrFault::NoRight);
        assert_eq!(fault(9, 7, 0x0fff, 1, AccessFlags::REMOTE_READ), MrFault::OutOfRange);
        assert_eq!(fault(9, 7, 0x1000, 101, AccessFlags::NONE), MrFault::OutOfRange);
        assert_eq!(fault(9, 7, u64::MAX, u32::MAX, AccessFlags::NONE), MrFault::OutOfRange);
    }

    #[test]
    fn unsound_regions_are_refused() {
        let memory = mapping();
        let mut table = MrTable::new(4);
        let good = entry(9, &memory);
        assert!(!table.insert(MrEntry { key: 0, ..good.clone() }));
        assert!(!table.insert(MrEntry { offset: PAGE - 99, ..good.clone() }));
        assert!(!table.insert(MrEntry { offset: u64::MAX, ..good.clone() }));
        assert!(!table.insert(MrEntry { addr: u64::MAX - 99, ..good.clone() }));
        assert!(!table.insert(MrEntry { length: u64::MAX, ..good.clone() }));
        assert!(table.insert(MrEntry { offset: PAGE - 100, addr: u64::MAX - 100, ..good }));
        assert!(table.resolve(9, 7, u64::MAX - 1, 1, AccessFlags::NONE).is_ok());
        assert_eq!(Arc::strong_count(&memory), 2, "what is refused is dropped");
    }

    #[test]
    fn revoked_region_keeps_its_local_rights() {
        let mut table = table_with(entry(9, &mapping()));
        assert!(!table.invalidate(9, 6, QP));
        assert!(!table.invalidate(1, 7, QP));
        assert!(table.resolve(9, 7, 0x1000, 1, AccessFlags::REMOTE_READ).is_ok());
        assert!(table.invalidate(9, 7, QP));
        assert_eq!(table.resolve(9, 7, 0x1000, 1, AccessFlags::REMOTE_READ).unwrap_err(), MrFault::NoRight);
        assert!(table.resolve(9, 7, 0x1000, 1, AccessFlags::LOCAL_WRITE).is_ok());
        assert!(!table.invalidate(9, 7, QP), "it is no R_Key any more");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert { key: u32, pd: u32, access: u32, addr: u64, length: u64 },
        Remove(u32),
        Revoke(u32, u32),
        Resolve { key: u32, pd: u32, addr: u64, length: u32, needed: u32 },
    }

    /// Few keys, of which several share a slot of the eight.
    fn key() -> impl Strategy<Value = u32> {
        (0..3_u32, 0..4_u32, 0..2_u32).prop_map(|(tag, slot, lap)| (slot + 8 * lap) << 8 | tag)
    }

    /// Addresses close to both ends of the regions, and of the address space.
    fn addr() -> impl Strategy<Value = u64> {
        prop_oneof![0x1000 - 4..0x1000 + 70_u64, Just(u64::MAX - 64), u64::MAX - 70..=u64::MAX, Just(0)]
    }

    fn step() -> impl Strategy<Value = Step> {
        let length = prop_oneof![0..70_u64, Just(PAGE - 64), Just(PAGE)];
        prop_oneof![
            2 => (key(), 0..2_u32, 0..16_u32, addr(), length)
                .prop_map(|(key, pd, access, addr, length)| Step::Insert { key, pd, access, addr, length }),
            1 => key().prop_map(Step::Remove),
            1 => (key(), 0..2_u32).prop_map(|(key, pd)| Step::Revoke(key, pd)),
            4 => (key(), 0..2_u32, addr(), prop_oneof![0..70_u32, Just(u32::MAX)], 0..16_u32)
                .prop_map(|(key, pd, addr, length, needed)| Step::Resolve { key, pd, addr, length, needed }),
        ]
    }

    /// The same by 128-bit arithmetic and a list.
    fn model_resolve(list: &[MrEntry], step: (u32, u32, u64, u32, u32)) -> Result<u64, MrFault> {
        let (key, pd, addr, length, needed) = step;
        let entry = list.iter().find(|entry| entry.key == key).ok_or(MrFault::UnknownKey)?;
        let (first, last) = (u128::from(addr), u128::from(addr) + u128::from(length));
        let (start, end) = (u128::from(entry.addr), u128::from(entry.addr) + u128::from(entry.length));
        match () {
            () if entry.pd != pd => Err(MrFault::WrongPd),
            () if needed & !entry.access.0 != 0 => Err(MrFault::NoRight),
            () if first < start || last > end => Err(MrFault::OutOfRange),
            () => Ok(entry.offset + (addr - entry.addr)),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn table_agrees_with_a_list(steps in prop::collection::vec(step(), 1..80)) {
            let memory = mapping();
            let mut table = MrTable::new(4);
            let mut list: Vec<MrEntry> = Vec::new();
            for step in steps {
                match step {
                    Step::Insert { key, pd, access, addr, length } => {
                        let access = AccessFlags(access);
                        let entry = MrEntry { key, pd, access: access | LOCAL_USE, addr, length, ..entry(9, &memory) };
                        let room = key != 0 && list.iter().all(|other| other.key >> 8 & 7 != key >> 8 & 7);
                        prop_assert_eq!(table.has_room_for(key), room);
                        let sound = length <= PAGE - 64 && u128::from(addr) + u128::from(length) < 1 << 64;
                        prop_assert_eq!(table.insert(entry.clone()), room && sound);
                        if room && sound {
                            list.push(entry);
                        }
                    }
                    Step::Remove(key) => {
                        let at = list.iter().position(|entry| entry.key == key);
                        let removed = at.map(|at| list.swap_remove(at).addr);
                        prop_assert_eq!(table.remove(key).map(|entry| entry.addr), removed);
                    }
                    Step::Revoke(key, pd) => {
                        let entry = list.iter_mut().find(|e| e.key == key && e.pd == pd && e.access.0 & 14 != 0);
                        prop_assert_eq!(table.invalidate(key, pd, QP), entry.is_some());
                        if let Some(entry) = entry {
                            entry.access = entry.access.without(REMOTE_RIGHTS);
                        }
                    }
                    Step::Resolve { key, pd, addr, length, needed } => {
                        let found = table.resolve(key, pd, addr, length, AccessFlags(needed));
                        let offset = found.map(|slice| slice.offset);
                        prop_assert_eq!(offset, model_resolve(&list, (key, pd, addr, length, needed)));
                    }
                }
                for entry in &list {
                    prop_assert_eq!(table.get(entry.key).map(|e| e.access), Some(entry.access));
                }
            }
        }
    }
}
