//! Blocks for rings, cut out of a few large mappings, so that thousands of QPs need only a handful of file descriptors.

use std::collections::BTreeMap;
use std::sync::Arc;

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

/// The segments of one session. Daemon side only; control path.
#[derive(Default)]
pub struct SegmentAllocator {
    segments: Vec<Segment>,
    allocated_bytes: u64,
    limit_bytes: u64,
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
        Self { segments: Vec::new(), allocated_bytes: 0, limit_bytes }
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
                let mapping = Arc::new(Mapping::create(c"ferroce-rings", size, PageSize::Base)?);
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

    /// Bytes in blocks that are in use.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
