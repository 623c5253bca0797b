//! The memory that the daemon shares with this client: ring segments, and one doorbell page for each shard.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use shm::doorbell::DoorbellPage;
use shm::mapping::Mapping;
use shm::segment::{Block, BlockAddress};

use crate::VerbsError;
use crate::events::ring;

/// The way to tell one lcore of the daemon about new work.
pub(crate) struct Shard {
    page: DoorbellPage,
    /// Absent where nobody sleeps, such as with an engine on the caller's own thread.
    wake: Option<OwnedFd>,
}

impl Shard {
    /// Rings a QP's doorbell. One locked operation or two; a system call only if the shard sleeps.
    #[inline]
    pub(crate) fn ring(&self, index: u32) {
        if self.page.ring(index) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if let Some(wake) = &self.wake {
            ring(wake.as_fd());
        }
    }
}

/// Everything mapped so far. Its lock also keeps the answers to creating requests in order, since a segment rides along
/// only with the first answer that needs it.
#[derive(Default)]
pub(crate) struct Rings {
    segments: BTreeMap<u32, Arc<Mapping>>,
    shards: BTreeMap<u8, Arc<Shard>>,
}

/// File descriptors that came with an answer, in order.
pub(crate) type Fds = std::vec::IntoIter<OwnedFd>;

impl Rings {
    /// Maps the segments of these blocks that are not mapped yet, lowest number first.
    pub(crate) fn attach(
        &mut self,
        addresses: &mut [BlockAddress],
        fds: &mut Fds,
        request: &'static str,
    ) -> Result<(), VerbsError> {
        addresses.sort_by_key(|address| address.segment);
        for address in addresses {
            if self.segments.contains_key(&address.segment) {
                continue;
            }
            let fd = fds.next().ok_or(VerbsError::UnexpectedReply { request })?;
            self.segments.insert(address.segment, Arc::new(Mapping::attach(fd, address.segment_bytes)?));
        }
        Ok(())
    }

    /// A block in a mapped segment.
    pub(crate) fn block(&self, address: BlockAddress, request: &'static str) -> Result<Block, VerbsError> {
        let mapping = self.segments.get(&address.segment).ok_or(VerbsError::UnexpectedReply { request })?;
        Ok(Block { mapping: Arc::clone(mapping), offset: address.offset })
    }

    /// The shard's doorbell page, and its wake eventfd where the answer brought it.
    pub(crate) fn shard(
        &mut self,
        shard: u8,
        doorbell: BlockAddress,
        wake: Option<OwnedFd>,
        request: &'static str,
    ) -> Result<Arc<Shard>, VerbsError> {
        if let (Some(known), None) = (self.shards.get(&shard), &wake) {
            return Ok(Arc::clone(known));
        }
        let block = self.block(doorbell, request)?;
        let page = DoorbellPage::new(&block).ok_or(VerbsError::UnexpectedReply { request })?;
        let made = Arc::new(Shard { page, wake });
        self.shards.insert(shard, Arc::clone(&made));
        Ok(made)
    }
}
