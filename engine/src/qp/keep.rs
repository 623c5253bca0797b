//! Packets that came before their turn: copied into a pool that all QPs of a shard share, until what is missing has come.

use shm::qos::PRIORITY_COUNT;
use wire::{Frame, Psn};

use super::psn_set::{PsnSet, WINDOW, place};
use crate::counters::ShardCounters;

/// Bytes of the longest frame: Ethernet and VLAN 18, GRH or IPv6 and UDP 48, BTH 12, extension headers 36, path MTU 4096, ICRC
/// 4; IPv4 may have 40 bytes of options.
const FRAME_BYTES: usize = 4224;

/// Where a frame came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Origin {
    /// Port, from 0.
    pub(crate) port: u8,
    /// Priority of its frame.
    pub(crate) priority: u8,
}

/// Room for frames, all of it there from the start.
#[derive(Debug)]
pub(crate) struct KeepPool {
    storage: Vec<u8>,
    lengths: Vec<u16>,
    origins: Vec<Origin>,
    free: Vec<u16>,
    /// Frames in it, by port and priority.
    held: Vec<[u32; PRIORITY_COUNT]>,
}

/// The pool's memory while a frame in it is handled: what handles it has the rest of the shard in its hands.
#[derive(Debug)]
pub(crate) struct Lent(Vec<u8>);

impl KeepPool {
    /// Room for `packets` frames, 65,535 at most, of so many ports.
    pub(crate) fn new(packets: u32, port_count: usize) -> Self {
        let count = u16::try_from(packets).unwrap_or(u16::MAX);
        Self {
            storage: vec![0; usize::from(count) * FRAME_BYTES],
            lengths: vec![0; usize::from(count)],
            origins: vec![Origin::default(); usize::from(count)],
            free: (0..count).rev().collect(),
            held: vec![[0; PRIORITY_COUNT]; port_count],
        }
    }

    /// Copies a frame. `None` if there is no room, or the frame is longer than any that a QP takes.
    fn put(&mut self, bytes: &[u8], origin: Origin) -> Option<u16> {
        if bytes.len() > FRAME_BYTES {
            return None;
        }
        let &id = self.free.last()?;
        let at = usize::from(id) * FRAME_BYTES;
        self.storage.get_mut(at..at + bytes.len())?.copy_from_slice(bytes);
        *self.lengths.get_mut(usize::from(id))? = bytes.len() as u16;
        *self.origins.get_mut(usize::from(id))? = origin;
        if let Some(held) = self.held_from(origin) {
            *held += 1;
        }
        self.free.pop()
    }

    fn release(&mut self, id: u16) {
        let origin = self.origins.get(usize::from(id)).copied().unwrap_or_default();
        if let Some(held) = self.held_from(origin) {
            *held -= 1;
        }
        // As many as there are ids: no push allocates.
        self.free.push(id);
    }

    fn held_from(&mut self, origin: Origin) -> Option<&mut u32> {
        self.held.get_mut(usize::from(origin.port))?.get_mut(usize::from(origin.priority))
    }

    /// Frames in it that came in on a port, by priority.
    pub(crate) fn held(&self, port: u8) -> [u32; PRIORITY_COUNT] {
        self.held.get(usize::from(port)).copied().unwrap_or_default()
    }

    /// Lends the memory; the pool takes no frame until it is back.
    pub(crate) fn lend(&mut self) -> Lent {
        Lent(std::mem::take(&mut self.storage))
    }

    /// Takes the memory back, and the place of a frame that is not needed any more.
    pub(crate) fn take_back(&mut self, lent: Lent, kept: Kept) {
        self.storage = lent.0;
        self.release(kept.id);
    }

    /// Frames that there is room for in all.
    pub(crate) fn capacity(&self) -> usize {
        self.lengths.len()
    }

    /// Frames that it still has room for.
    pub(crate) fn room(&self) -> usize {
        self.free.len()
    }

    /// Frames in it.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.lengths.len() - self.free.len()
    }
}

impl Lent {
    /// The frame; it was parsed once, so it parses again.
    pub(crate) fn frame(&self, kept: Kept) -> Option<Frame<'_>> {
        let at = usize::from(kept.id) * FRAME_BYTES;
        Frame::parse(self.0.get(at..at + usize::from(kept.length))?).ok()
    }
}

/// A frame in the pool, which belongs to nobody until it is taken back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    id: u16,
    length: u16,
}

/// What became of a packet that came before its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Keeping {
    /// It is kept.
    Kept,
    /// It was kept already.
    Twice,
    /// It is dropped: too far ahead, or the shard's pool has no room for more of this QP.
    NoRoom,
}

impl Keeping {
    /// Counts a response that came early.
    pub(super) fn count_response(self, counters: &mut ShardCounters) {
        match self {
            Self::Kept => counters.kept_responses += 1,
            Self::Twice => counters.duplicate_ack += 1,
            Self::NoRoom => counters.kept_no_room += 1,
        }
    }
}

/// What one QP keeps of one direction, by PSN. All of it lies in a window that begins with the PSN it waits for.
#[derive(Debug)]
pub(super) struct KeptRing {
    set: PsnSet,
    ids: [u16; WINDOW as usize],
}

impl KeptRing {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self { set: PsnSet::EMPTY, ids: [0; WINDOW as usize] })
    }

    pub(super) fn set(&self) -> &PsnSet {
        &self.set
    }

    /// Keeps the packet `psn`, where `waited` is the PSN that is waited for.
    pub(super) fn keep(&mut self, pool: &mut KeepPool, waited: Psn, psn: Psn, bytes: &[u8], origin: Origin) -> Keeping {
        let ahead = psn.distance_from(waited);
        if ahead < 0 || ahead.cast_unsigned() >= WINDOW {
            return Keeping::NoRoom;
        }
        if self.set.contains(psn) {
            return Keeping::Twice;
        }
        // No QP has more than is left for all others: a peer that never sends what is missing can't have the pool to itself.
        if self.set.count() as usize >= pool.room() {
            return Keeping::NoRoom;
        }
        let Some(id) = pool.put(bytes, origin) else { return Keeping::NoRoom };
        self.ids[place(psn)] = id;
        self.set.insert(psn);
        Keeping::Kept
    }

    /// Takes the first packet out that is `until` or before it; `base` is where the window began when they were kept.
    pub(super) fn take(&mut self, pool: &KeepPool, base: Psn, until: Psn) -> Option<Kept> {
        let psn = self.set.first_from(base)?;
        if until.is_before(psn) {
            return None;
        }
        self.set.remove(psn);
        let id = self.ids[place(psn)];
        Some(Kept { id, length: pool.lengths.get(usize::from(id)).copied().unwrap_or(0) })
    }

    /// Drops all of it; how many there were.
    pub(super) fn clear(&mut self, pool: &mut KeepPool) -> u32 {
        let count = self.set.count();
        while let Some(psn) = self.set.first_from(Psn::new(0)) {
            self.set.remove(psn);
            pool.release(self.ids[place(psn)]);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_gives_no_more_than_it_has_and_gets_all_back() {
        let mut pool = KeepPool::new(5, 2);
        let origin = Origin { port: 1, priority: 3 };
        let mut ring = KeptRing::new();
        let waited = Psn::new(Psn::MASK);
        let mut keep =
            |pool: &mut KeepPool, offset: u32| ring.keep(pool, waited, waited.add(offset), &[7; 100], origin);
        assert_eq!(keep(&mut pool, 2), Keeping::Kept);
        assert_eq!(keep(&mut pool, 2), Keeping::Twice);
        assert_eq!(keep(&mut pool, WINDOW), Keeping::NoRoom, "beyond the window");
        assert_eq!(keep(&mut pool, WINDOW - 1), Keeping::Kept);
        assert_eq!(keep(&mut pool, 5), Keeping::Kept);
        assert_eq!(keep(&mut pool, 6), Keeping::NoRoom, "the rest is for others");
        assert_eq!(ring.keep(&mut pool, waited, waited.add(7), &[0; FRAME_BYTES + 1], origin), Keeping::NoRoom);
        assert_eq!((pool.held(0), pool.held(1)), ([0; 8], [0, 0, 0, 3, 0, 0, 0, 0]));
        assert!(ring.take(&pool, waited, waited.add(1)).is_none(), "none is due");
        let kept = ring.take(&pool, waited, waited.add(2)).unwrap();
        assert_eq!(kept.length, 100);
        let lent = pool.lend();
        pool.take_back(lent, kept);
        assert_eq!((pool.used(), pool.held(1)[3]), (2, 2));
        assert_eq!(ring.clear(&mut pool), 2);
        assert_eq!((pool.used(), pool.held(1)[3]), (0, 0));
    }

    #[test]
    fn those_who_give_nothing_back_leave_something_to_others() {
        let (mut pool, waited) = (KeepPool::new(100, 1), Psn::new(0));
        let shares: Vec<usize> = (0..8)
            .map(|_| {
                let mut ring = KeptRing::new();
                let origin = Origin::default();
                let all = (1..WINDOW).map(|offset| ring.keep(&mut pool, waited, waited.add(offset), &[7; 100], origin));
                all.filter(|&keeping| keeping == Keeping::Kept).count()
            })
            .collect();
        assert_eq!(shares, [50, 25, 13, 6, 3, 2, 1, 0], "each has half of what is left");
    }
}
