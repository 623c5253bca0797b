//! The memory of one connection: what the peer writes to, and the ring that our data is sent from.
//!
//! One pool. The peer may write to its first part: the table of receive buffers (2 entries of 16 bytes), the table of mapped buffers
//! (24 bytes each), then the receive memory. The rest is ours: data waits there until the peer has acknowledged it.

use std::sync::atomic::Ordering;

use ferroce::{AccessFlags, MemoryPool, MemoryRegion, PageSize, ProtectionDomain, Sge};

use super::flow::TABLE_ENTRIES;
use super::wire::{IomapEntry, RemoteBuffer};
use crate::entry::Failure;

/// Where the table of mapped buffers begins.
const IOMAP_AT: u64 = TABLE_ENTRIES as u64 * RemoteBuffer::BYTES as u64;
/// Buffers begin on lines of the cache.
const ALIGNMENT: u64 = 64;

/// Sizes in bytes, and entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Half of the receive memory.
    pub(super) receive_half: u32,
    pub(super) send: u32,
    pub(super) iomap_entries: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Memory {
    sizes: Sizes,
    /// Tables and receive memory, for the peer.
    open: MemoryRegion,
    /// The ring.
    own: MemoryRegion,
    receive_at: u64,
    ring: Ring,
}

/// The ring that data waits in: bytes are freed in the order in which they were taken.
#[derive(Debug)]
struct Ring {
    bytes: u32,
    next: u32,
    free: u32,
}

impl Ring {
    /// Bytes in one piece that may be taken.
    fn room(&self) -> u32 {
        self.free.min(self.bytes - self.next)
    }

    fn take(&mut self, bytes: u32) {
        self.free -= bytes;
        self.next = (self.next + bytes) % self.bytes;
    }
}

impl Memory {
    pub(super) fn new(pd: &ProtectionDomain, sizes: Sizes) -> Result<Self, Failure> {
        let iomap_bytes = u64::from(sizes.iomap_entries) * IomapEntry::BYTES as u64;
        let receive_at = (IOMAP_AT + iomap_bytes).next_multiple_of(ALIGNMENT);
        let own_at = (receive_at + 2 * u64::from(sizes.receive_half)).next_multiple_of(ALIGNMENT);
        let end = own_at + u64::from(sizes.send);
        let pool = MemoryPool::new(&pd.context(), end, PageSize::Base)?;
        let for_peer = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let open = pool.register(pd, 0..own_at, for_peer)?;
        let own = pool.register(pd, own_at..end, AccessFlags::NONE)?;
        let ring = Ring { bytes: sizes.send, next: 0, free: sizes.send };
        Ok(Self { sizes, open, own, receive_at, ring })
    }

    pub(super) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// The table, as the peer is told of it: its length in entries.
    pub(super) fn table(&self) -> RemoteBuffer {
        RemoteBuffer { addr: self.open.addr(), key: self.open.rkey(), length: TABLE_ENTRIES }
    }

    /// The half of the receive memory at an offset of it.
    pub(super) fn half(&self, at: u32) -> RemoteBuffer {
        let addr = self.open.addr() + self.receive_at + u64::from(at);
        RemoteBuffer { addr, key: self.open.rkey(), length: self.sizes.receive_half }
    }

    /// Takes what the peer has written into an entry of the table of receive buffers, if it is all there.
    ///
    /// The words of an entry are read one by one. An empty one has no address and no length, so that what is still on its way is
    /// not taken for whole: the message that follows it makes us look again.
    pub(super) fn take_table_entry(&self, index: u32) -> Option<RemoteBuffer> {
        let at = u64::from(index) * RemoteBuffer::BYTES as u64;
        let (addr, rest) = (self.word(at)?, self.word(at + 8)?);
        let entry = RemoteBuffer::from_words(addr, rest);
        if entry.addr == 0 || entry.length == 0 {
            return None;
        }
        self.open.write(at, &[0; RemoteBuffer::BYTES]).ok()?;
        Some(entry)
    }

    /// The peer's buffer that is mapped at an offset: what is left of it from there on.
    pub(super) fn find_mapped(&self, offset: u64) -> Option<RemoteBuffer> {
        (0..self.sizes.iomap_entries).find_map(|index| {
            let at = IOMAP_AT + u64::from(index) * IomapEntry::BYTES as u64;
            let (start, addr) = (self.word(at)?, self.word(at + 8)?);
            let buffer = RemoteBuffer::from_words(addr, self.word(at + 16)?);
            let skip = u32::try_from(offset.checked_sub(start)?).ok()?;
            let length = buffer.length.checked_sub(skip).filter(|&left| left > 0)?;
            Some(RemoteBuffer { addr: buffer.addr.wrapping_add(skip.into()), length, ..buffer })
        })
    }

    fn word(&self, at: u64) -> Option<u64> {
        // PAIRS WITH: the engine's write of the entry, which is whole before the completion that made us look.
        Some(self.open.atomic_u64(at).ok()?.load(Ordering::Acquire))
    }

    /// Copies out of the receive memory.
    pub(super) fn read(&self, at: u32, out: &mut [u8]) -> Result<(), Failure> {
        Ok(self.open.read(self.receive_at + u64::from(at), out)?)
    }

    /// Bytes in one piece that may be written to the ring.
    pub(super) fn send_room(&self) -> u32 {
        self.ring.room()
    }

    /// True if nothing waits in the ring.
    pub(super) fn send_is_idle(&self) -> bool {
        self.ring.free == self.ring.bytes
    }

    /// Bytes that are free, in one piece or two.
    pub(super) fn send_free(&self) -> u32 {
        self.ring.free
    }

    /// Writes into the ring, behind `after` bytes that were written and not taken yet.
    pub(super) fn write(&self, after: u32, data: &[u8]) -> Result<(), Failure> {
        Ok(self.own.write(u64::from(self.ring.next + after), data)?)
    }

    /// Takes `bytes` that were written; returns where they are. At most [`Memory::send_room`].
    pub(super) fn take(&mut self, bytes: u32) -> Result<Sge, Failure> {
        let sge = self.own.sge(self.ring.next.into(), bytes)?;
        self.ring.take(bytes);
        Ok(sge)
    }

    /// Frees the oldest `bytes`.
    pub(super) fn free(&mut self, bytes: u32) {
        self.ring.free = self.ring.bytes.min(self.ring.free + bytes);
    }
}
