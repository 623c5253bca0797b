//! Blocks for rings, cut out of a few large mappings, so that thousands of QPs need only a handful of file descriptors.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::mapping::{MapError, Mapping, PageSize};

/// Where a block lies: which of the session's segments, and where in it. Goes to the client on the control socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct BlockAddress {
    /// Number of the segment in its session, from 0.
    pub segment: u32,
    /// Bytes of the segment.
    pub segment_bytes: u64,
    /// Offset of the block in the segment.
    pub offset: u64,
    /// Bytes of the block.
    pub bytes: u64,
}

/// A part of a mapping that one ring uses.
#[derive(Clone, Debug)]
pub struct Block {
    /// The memory.
    pub mapping: Arc<Mapping>,
    /// Offset of the block in it.
    pub offset: u64,
}

struct Segment {
    mapping: Arc<Mapping>,
    /// Free ranges: offset to bytes; neighbours are always joined.
    free: BTreeMap<u64, u64>,
}

/// Bytes that the segments of all sessions of a daemon may have together. A clone is the same budget.
#[derive(Clone, Debug)]
pub struct SegmentBudget {
    limit_bytes: u64,
    left_bytes: Arc<AtomicU64>,
    /// What it is a part of.
    whole: Option<Arc<Self>>,
}

impl SegmentBudget {
    /// A budget of which nothing is spent.
    pub fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, left_bytes: Arc::new(AtomicU64::new(limit_bytes)), whole: None }
    }

    /// A part of it, for one user: what is spent there is spent here as well.
    pub fn part(&self, limit_bytes: u64) -> Self {
        Self { whole: Some(Arc::new(self.clone())), ..Self::new(limit_bytes) }
    }

    fn spend(&self, bytes: u64) -> Result<(), SegmentError> {
        self.whole.as_ref().map_or(Ok(()), |whole| whole.spend(bytes))?;
        let left = self.left_bytes.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes));
        let limit_bytes = self.limit_bytes;
        left.map(drop).map_err(|_| match &self.whole {
            Some(whole) => {
                whole.give_back(bytes);
                SegmentError::UserLimit { limit_bytes }
            }
            None => SegmentError::TotalLimit { limit_bytes },
        })
    }

    fn give_back(&self, bytes: u64) {
        self.left_bytes.fetch_add(bytes, Relaxed);
        if let Some(whole) = &self.whole {
            whole.give_back(bytes);
        }
    }
}

/// The segments of one session. Daemon side only; control path.
pub struct SegmentAllocator {
    segments: Vec<Segment>,
    allocated_bytes: u64,
    limit_bytes: u64,
    budget: SegmentBudget,
}

/// Why no block could be had.
#[derive(thiserror::Error, Debug)]
pub enum SegmentError {
    /// The session's limit.
    #[error("rings of this session would need more than its limit of {limit_bytes} bytes")]
    Limit {
        /// The configured limit.
        limit_bytes: u64,
    },
    /// The daemon's.
    #[error("rings of all clients would need more than the daemon's limit of {limit_bytes} bytes")]
    TotalLimit {
        /// The configured limit.
        limit_bytes: u64,
    },
    /// The user's.
    #[error(
        "rings of this user's clients would need more than the user's share of {limit_bytes} bytes: see user_share_percent"
    )]
    UserLimit {
        /// The share.
        limit_bytes: u64,
    },
    /// No memory.
    #[error(transparent)]
    Map(#[from] MapError),
}

const ALIGN: u64 = 64;
const SEGMENT_BYTES: u64 = 4 << 20;
/// Blocks up to this size are faulted in at once; larger ones as they are used.
const POPULATE_BYTES_MAX: u64 = 1 << 20;

impl SegmentAllocator {
    /// An allocator that hands out at most `limit_bytes` at a time.
    pub fn new(limit_bytes: u64) -> Self {
        Self::within(SegmentBudget::new(u64::MAX), limit_bytes)
    }

    /// The same where the segments of several allocators have one budget. A segment is kept, and paid for, as long as its
    /// allocator.
    pub fn within(budget: SegmentBudget, limit_bytes: u64) -> Self {
        Self { segments: Vec::new(), allocated_bytes: 0, limit_bytes, budget }
    }

    /// A zeroed block of at least `bytes` bytes, 64-byte aligned.
    ///
    /// # Errors
    /// [`SegmentError`]; nothing is taken.
    pub fn allocate(&mut self, bytes: u64) -> Result<(Block, BlockAddress), SegmentError> {
        let bytes = bytes.max(1).next_multiple_of(ALIGN);
        if bytes > self.limit_bytes.saturating_sub(self.allocated_bytes) {
            return Err(SegmentError::Limit { limit_bytes: self.limit_bytes });
        }
        let found = self.segments.iter().enumerate().find_map(|(index, segment)| {
            segment.free.iter().find(|&(_, &free)| free >= bytes).map(|(&offset, _)| (index, offset))
        });
        let (index, offset) = match found {
            Some(place) => place,
            None => {
                let size = bytes.max(SEGMENT_BYTES);
                let mapping = self.create_segment(size)?;
                let free = BTreeMap::from([(0, mapping.bytes())]);
                self.segments.push(Segment { mapping, free });
                (self.segments.len() - 1, 0)
            }
        };
        let Some(segment) = self.segments.get_mut(index) else { unreachable!("the index is of a segment just seen") };
        let mapping = Arc::clone(&segment.mapping);
        if bytes <= POPULATE_BYTES_MAX {
            mapping.populate(offset, bytes)?;
        }
        let free = segment.free.remove(&offset).unwrap_or(0);
        if free > bytes {
            segment.free.insert(offset + bytes, free - bytes);
        }
        self.allocated_bytes += bytes;
        let segment_bytes = mapping.bytes();
        // What was here before has left its indices and sequences.
        if bytes <= POPULATE_BYTES_MAX {
            mapping.zero(offset, bytes).map_err(|_| MapError::BadSize(bytes))?;
        } else {
            // Without faulting it in.
            mapping.discard(offset, bytes);
        }
        let address = BlockAddress { segment: index as u32, segment_bytes, offset, bytes };
        Ok((Block { mapping, offset }, address))
    }

    fn create_segment(&self, bytes: u64) -> Result<Arc<Mapping>, SegmentError> {
        // As much as the mapping will have: whole pages.
        let bytes = bytes.next_multiple_of(4096);
        self.budget.spend(bytes)?;
        let mapping = Mapping::create(c"ferroce-rings", bytes, PageSize::Base);
        Ok(Arc::new(mapping.inspect_err(|_| self.budget.give_back(bytes))?))
    }

    /// Takes a block back. Its engine side must be gone.
    pub fn release(&mut self, address: BlockAddress) {
        let Some(segment) = self.segments.get_mut(address.segment as usize) else { return };
        self.allocated_bytes -= address.bytes;
        let (mut offset, mut bytes) = (address.offset, address.bytes);
        if address.bytes > POPULATE_BYTES_MAX {
            // Worth giving back to the system at once.
            segment.mapping.discard(offset, bytes);
        }
        if let Some((&before, &before_bytes)) = segment.free.range(..offset).next_back()
            && before + before_bytes == offset
        {
            segment.free.remove(&before);
            offset = before;
            bytes += before_bytes;
        }
        if let Some(after_bytes) = segment.free.remove(&(address.offset + address.bytes)) {
            bytes += after_bytes;
        }
        segment.free.insert(offset, bytes);
    }

    /// The mapping of a segment, to pass its file to the client.
    pub fn mapping(&self, segment: u32) -> Option<&Arc<Mapping>> {
        self.segments.get(segment as usize).map(|s| &s.mapping)
    }

    /// Gives the memory of all segments back to the system, whoever else has their files; they read as zeros from now on. The engine's
    /// side of every block must be gone.
    pub fn discard_all(&self) {
        for segment in &self.segments {
            segment.mapping.discard(0, segment.mapping.bytes());
        }
    }

    /// Bytes in blocks that are in use.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes
    }
}

impl Drop for SegmentAllocator {
    fn drop(&mut self) {
        self.budget.give_back(self.segments.iter().map(|segment| segment.mapping.bytes()).sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_share_one_budget_and_give_it_back() {
        let budget = SegmentBudget::new(2 * SEGMENT_BYTES);
        let session = || SegmentAllocator::within(budget.clone(), 64 << 20);
        let (mut one, mut other) = (session(), session());
        let (_, address) = one.allocate(SEGMENT_BYTES + 64).unwrap();
        let refused = |outcome| matches!(outcome, Err(SegmentError::TotalLimit { limit_bytes: 8_388_608 }));
        assert!(refused(other.allocate(64)));
        one.release(address);
        assert!(refused(other.allocate(64)), "the segment is still there");
        assert!(one.allocate(SEGMENT_BYTES + 64).is_ok(), "for its session");
        drop(one);
        other.allocate(SEGMENT_BYTES).unwrap();
        other.allocate(SEGMENT_BYTES).unwrap();
        assert!(refused(other.allocate(64)));
    }

    #[test]
    fn a_user_s_part_of_a_budget_is_spent_of_the_whole_as_well() {
        let budget = SegmentBudget::new(3 * SEGMENT_BYTES);
        let (one, other) = (budget.part(2 * SEGMENT_BYTES), budget.part(2 * SEGMENT_BYTES));
        let session = |budget: &SegmentBudget| SegmentAllocator::within(budget.clone(), 64 << 20);
        let mut first = session(&one);
        first.allocate(SEGMENT_BYTES).unwrap();
        first.allocate(SEGMENT_BYTES).unwrap();
        assert!(matches!(session(&one).allocate(64), Err(SegmentError::UserLimit { limit_bytes: 8_388_608 })));
        let mut second = session(&other);
        second.allocate(SEGMENT_BYTES).unwrap();
        assert!(matches!(second.allocate(SEGMENT_BYTES), Err(SegmentError::TotalLimit { limit_bytes: 12_582_912 })));
        drop(first);
        second.allocate(SEGMENT_BYTES).unwrap();
        assert!(matches!(second.allocate(64), Err(SegmentError::UserLimit { .. })), "what failed was not spent");
    }

    #[test]
    fn memory_is_given_back_though_somebody_keeps_the_file() {
        let mut segments = SegmentAllocator::new(64 << 20);
        let (_, address) = segments.allocate(POPULATE_BYTES_MAX).unwrap();
        let file = std::fs::File::from(segments.mapping(address.segment).unwrap().fd().try_clone_to_owned().unwrap());
        let blocks = |file: &std::fs::File| std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
        assert!(blocks(&file) * 512 >= POPULATE_BYTES_MAX);
        segments.discard_all();
        drop(segments);
        assert_eq!(blocks(&file), 0);
    }

    #[test]
    fn a_block_is_zero_whatever_was_there_before() {
        let mut segments = SegmentAllocator::new(64 << 20);
        let (small, large) = (POPULATE_BYTES_MAX - 64, POPULATE_BYTES_MAX + 64);
        for bytes in [small, 64, large, small, large] {
            let (block, address) = segments.allocate(bytes).unwrap();
            assert_eq!((address.segment, address.offset), (0, 0), "the same bytes again");
            let mut seen = vec![1; bytes as usize];
            block.mapping.read(0, &mut seen).unwrap();
            assert!(seen.iter().all(|&byte| byte == 0), "{bytes} bytes");
            // All around it as well, as blocks do that are released at the same time.
            block.mapping.write(0, &vec![0xff; SEGMENT_BYTES as usize]).unwrap();
            segments.release(address);
        }
        assert_eq!(segments.allocated_bytes(), 0);
    }
}
