//! The books of one session: which objects it has, and what uses what.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use shm::attr::{MwType, QpType};
use shm::control::{POPULATE_BYTES_MAX, Reply};
use shm::mapping::{MapError, Mapping};
use shm::process_memory::{AdoptError, AtomicTurns, ProcessMemory};
use shm::segment::{Block, BlockAddress, SegmentAllocator, SegmentBudget};
use shm::wake::{Notifier, channel};
use wire::cm::Ece;

use super::cm::CmBook;
use super::process::Process;
use super::shares::NeighbourKey;
use super::{Answered, Peer, Refusal, errno, refuse};
use crate::config::{EngineConfig, ProcessMemoryPolicy};
use crate::mr::Backing;
use crate::slab::IndexAllocator;

/// Attached memory.
pub(super) struct Memory {
    pub(super) backing: Arc<Backing>,
    /// Faulted in, from its start.
    pub(super) populated_bytes: u64,
    pub(super) users: u32,
}

impl Memory {
    /// Faults the next piece in.
    fn populate(&mut self) -> Result<(), Refusal> {
        let bytes = (self.backing.end() - self.populated_bytes).min(POPULATE_BYTES_MAX);
        self.backing.populate(self.populated_bytes, bytes).or_else(refuse_mapping)?;
        self.populated_bytes += bytes;
        Ok(())
    }
}

fn refuse_mapping<T>(error: MapError) -> Result<T, Refusal> {
    let errno = if matches!(error, MapError::Os { .. }) { errno::ENOMEM } else { errno::EINVAL };
    refuse(errno, error.to_string())
}

/// A registered region, by its key.
pub(super) struct MrBook {
    /// For listings, in place of the key.
    pub(super) number: u32,
    pub(super) pd: u32,
    /// The attached memory that it lies in; `None` = the client's process.
    pub(super) memory: Option<u32>,
}

/// A memory window. Its handle are the upper 24 bits of its key, which binds leave alone.
pub(super) struct MwBook {
    pub(super) pd: u32,
    pub(super) kind: MwType,
}

/// A completion channel.
pub(super) struct Channel {
    pub(super) notifier: Arc<Notifier>,
    pub(super) users: u32,
}

/// A CQ.
pub(super) struct CqBook {
    pub(super) shard: u8,
    pub(super) index: u32,
    pub(super) channel: Option<u32>,
    pub(super) address: BlockAddress,
    pub(super) users: u32,
}

/// An SRQ.
pub(super) struct SrqBook {
    pub(super) shard: u8,
    pub(super) index: u32,
    pub(super) pd: u32,
    pub(super) attr: shm::attr::SrqAttr,
    pub(super) max_sge: u32,
    pub(super) address: BlockAddress,
    pub(super) users: u32,
    /// Its XRC domain and the CQ for its receives, if it is of XRC.
    pub(super) xrc: Option<(u32, u32)>,
}

/// An XRC domain, by handle.
pub(super) struct XrcdBook {
    /// Its number in the engine.
    pub(super) domain: u32,
    pub(super) users: u32,
}

/// What a QP takes up besides its number.
#[derive(Clone, Copy)]
pub(super) enum QpPlace {
    /// Rings and a doorbell of the session.
    Session { address: BlockAddress, doorbell_index: u32 },
    /// Nothing of the session's: it is an XRC domain's (handle, and number in the engine).
    Domain { xrcd: u32, domain: u32 },
}

/// A QP.
pub(super) struct QpBook {
    pub(super) kind: QpType,
    pub(super) pd: u32,
    pub(super) send_cq: u32,
    pub(super) recv_cq: u32,
    pub(super) srq: Option<u32>,
    pub(super) place: QpPlace,
    pub(super) neighbour: Option<NeighbourKey>,
    /// What its peer and it agreed to do beyond the specification, since it was reset.
    pub(super) agreed: Option<Ece>,
}

/// The doorbell page of one shard.
pub(super) struct DoorbellBook {
    pub(super) address: BlockAddress,
    /// The client has the shard's eventfd.
    pub(super) has_wake: bool,
    pub(super) indices: IndexAllocator,
}

/// One client.
pub(super) struct Session {
    pub(super) peer: Peer,
    pub(super) greeted: bool,
    pub(super) client_name: String,
    max_pd: u32,
    max_channel: u32,
    max_memory: u32,
    memory_limit_bytes: u64,
    pub(super) memory_bytes: u64,
    next_handle: u32,
    /// Protection domains by handle: their number in the engine, and users.
    pub(super) pds: BTreeMap<u32, (u32, u32)>,
    pub(super) memories: BTreeMap<u32, Memory>,
    pub(super) mrs: BTreeMap<u32, MrBook>,
    /// Those of them that were registered anew ([`shm::control::Request::RenewMr`]) and have something mapped here, by key.
    pub(super) renewed: BTreeSet<u32>,
    /// Protection domains of address handles, by key.
    pub(super) ahs: BTreeMap<u32, u32>,
    /// Memory windows by handle.
    pub(super) mws: BTreeMap<u32, MwBook>,
    next_mr_number: u32,
    /// The client's process, once it gave us its memory.
    pub(super) process: Option<Process>,
    channels: BTreeMap<u32, Channel>,
    pub(super) cqs: BTreeMap<u32, CqBook>,
    pub(super) srqs: BTreeMap<u32, SrqBook>,
    pub(super) qps: BTreeMap<u32, QpBook>,
    pub(super) xrcds: BTreeMap<u32, XrcdBook>,
    /// Neighbours of its QPs, with how many QPs have them.
    pub(super) neighbours: BTreeMap<NeighbourKey, u32>,
    /// Connection management.
    pub(super) cm: CmBook,
    pub(super) doorbells: Vec<Option<DoorbellBook>>,
    pub(super) segments: SegmentAllocator,
    /// Segments whose files the client has.
    segments_sent: u32,
}

impl Session {
    pub(super) fn new(peer: Peer, config: &EngineConfig, rings: SegmentBudget) -> Self {
        Self {
            peer,
            greeted: false,
            client_name: String::new(),
            max_pd: config.limits.max_pd,
            max_channel: config.limits.max_channel,
            max_memory: config.limits.max_memory,
            memory_limit_bytes: config.limits.memory_bytes,
            memory_bytes: 0,
            next_handle: 1,
            pds: BTreeMap::new(),
            memories: BTreeMap::new(),
            mrs: BTreeMap::new(),
            renewed: BTreeSet::new(),
            ahs: BTreeMap::new(),
            mws: BTreeMap::new(),
            next_mr_number: 1,
            process: None,
            channels: BTreeMap::new(),
            cqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            xrcds: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            cm: CmBook::default(),
            doorbells: (0..config.shard_count).map(|_| None).collect(),
            segments: SegmentAllocator::within(rings, config.limits.ring_bytes),
            segments_sent: 0,
        }
    }

    /// A handle that no object of the session has.
    pub(super) fn handle(&mut self) -> u32 {
        loop {
            let handle = self.next_handle;
            self.next_handle = self.next_handle.wrapping_add(1).max(1);
            let taken = self.pds.contains_key(&handle)
                || self.memories.contains_key(&handle)
                || self.channels.contains_key(&handle)
                || self.cqs.contains_key(&handle)
                || self.srqs.contains_key(&handle)
                || self.xrcds.contains_key(&handle)
                || self.cm.has_handle(handle);
            if !taken {
                return handle;
            }
        }
    }

    /// A protection domain's number in the engine.
    pub(super) fn pd(&self, handle: u32) -> Result<u32, Refusal> {
        match self.pds.get(&handle) {
            Some(&(number, _)) => Ok(number),
            None => refuse(errno::EINVAL, format!("protection domain {handle} does not exist")),
        }
    }

    pub(super) fn add_pd(&mut self, number: u32) -> Result<Reply, Refusal> {
        if self.pds.len() >= self.max_pd as usize {
            let limit = self.max_pd;
            return refuse(errno::ENOMEM, format!("the limit of {limit} protection domains is reached"));
        }
        let handle = self.handle();
        self.pds.insert(handle, (number, 0));
        Ok(Reply::Handle(handle))
    }

    pub(super) fn dealloc_pd(&mut self, handle: u32) -> Result<Reply, Refusal> {
        self.pd(handle)?;
        match self.pds.get(&handle) {
            Some(&(_, users @ 1..)) => refuse(
                errno::EBUSY,
                format!("protection domain {handle} is used by {users} objects: destroy them first"),
            ),
            _ => {
                self.pds.remove(&handle);
                Ok(Reply::Done)
            }
        }
    }

    /// Notes a region, and that it uses its domain and its memory.
    pub(super) fn add_mr(&mut self, key: u32, pd: u32, memory: Option<u32>) {
        let number = self.next_mr_number;
        self.next_mr_number = self.next_mr_number.wrapping_add(1).max(1);
        if let Some(memory) = memory.and_then(|memory| self.memories.get_mut(&memory)) {
            memory.users += 1;
        }
        self.use_pd(pd, true);
        self.mrs.insert(key, MrBook { number, pd, memory });
    }

    pub(super) fn attach_process(
        &mut self,
        fd: Option<OwnedFd>,
        turns: &AtomicTurns,
        policy: ProcessMemoryPolicy,
    ) -> Result<Reply, Refusal> {
        if !policy.allows(self.peer.uid) {
            let message = format!(
                "the operator does not let processes of user {} register any memory: see process_memory in the daemon's \
                 configuration; memory of a MemoryPool is free to all",
                self.peer.uid
            );
            return refuse(errno::EPERM, message);
        }
        let Some(fd) = fd else { return refuse(errno::EINVAL, "AttachProcess needs a file descriptor with it") };
        let refused = |error: AdoptError| Refusal { errno: errno::EPERM, message: error.to_string() };
        let memory = ProcessMemory::adopt(fd, self.peer.pid, turns.clone()).map_err(refused)?;
        self.process = Some(Process::new(memory));
        Ok(Reply::Done)
    }

    /// Counts a user of a protection domain up or down.
    pub(super) fn use_pd(&mut self, handle: u32, up: bool) {
        if let Some((_, users)) = self.pds.get_mut(&handle) {
            *users = if up { *users + 1 } else { users.saturating_sub(1) };
        }
    }

    pub(super) fn attach_memory(&mut self, fd: Option<OwnedFd>, bytes: u64) -> Result<Reply, Refusal> {
        let Some(fd) = fd else { return refuse(errno::EINVAL, "AttachMemory needs a file descriptor with it") };
        if self.memories.len() >= self.max_memory as usize {
            let limit = self.max_memory;
            return refuse(errno::ENOMEM, format!("the limit of {limit} attached memories is reached"));
        }
        let left = self.memory_limit_bytes.saturating_sub(self.memory_bytes);
        if bytes > left {
            let limit = self.memory_limit_bytes;
            let message =
                format!("{bytes} bytes are more than the {left} that are left of the session's limit of {limit}");
            return refuse(errno::ENOMEM, message);
        }
        let mapping = Mapping::attach(fd, bytes).or_else(refuse_mapping)?;
        mapping.keep_pages().or_else(refuse_mapping)?;
        let mut memory = Memory { backing: Arc::new(Backing::Mapped(mapping)), populated_bytes: 0, users: 0 };
        memory.populate()?;
        let handle = self.handle();
        self.memory_bytes += bytes;
        self.memories.insert(handle, memory);
        Ok(Reply::Handle(handle))
    }

    pub(super) fn populate_memory(&mut self, handle: u32) -> Result<Reply, Refusal> {
        match self.memories.get_mut(&handle) {
            None => refuse(errno::EINVAL, format!("memory {handle} does not exist")),
            Some(memory) => {
                memory.populate()?;
                Ok(Reply::Populated { bytes: memory.populated_bytes })
            }
        }
    }

    pub(super) fn detach_memory(&mut self, handle: u32) -> Result<Reply, Refusal> {
        match self.memories.get(&handle) {
            None => refuse(errno::EINVAL, format!("memory {handle} does not exist")),
            Some(Memory { users: users @ 1.., .. }) => {
                refuse(errno::EBUSY, format!("memory {handle} holds {users} regions: deregister them first"))
            }
            Some(memory) => {
                self.memory_bytes -= memory.backing.end();
                self.memories.remove(&handle);
                Ok(Reply::Done)
            }
        }
    }

    /// The two ends of a channel of either kind, completion or event: the one to notify, and both as they go to the client.
    pub(super) fn channel_ends(&self) -> Result<(Notifier, [OwnedFd; 2]), Refusal> {
        if self.channels.len() + self.cm.channel_count() >= self.max_channel as usize {
            let limit = self.max_channel;
            return refuse(errno::ENOMEM, format!("the limit of {limit} completion and event channels is reached"));
        }
        let made = channel().and_then(|(notifier, notifications)| {
            let ends = [notifications.as_fd().try_clone_to_owned()?, notifier.as_fd().try_clone_to_owned()?];
            Ok((notifier, ends))
        });
        made.or_else(|error| refuse(errno::ENOMEM, format!("no sockets for a channel: {error}")))
    }

    pub(super) fn create_channel(&mut self) -> Result<Answered, Refusal> {
        let (notifier, ends) = self.channel_ends()?;
        let handle = self.handle();
        self.channels.insert(handle, Channel { notifier: Arc::new(notifier), users: 0 });
        Ok((Reply::Handle(handle), ends.into()))
    }

    pub(super) fn destroy_channel(&mut self, handle: u32) -> Result<Reply, Refusal> {
        match self.channels.get(&handle) {
            None => refuse(errno::EINVAL, format!("completion channel {handle} does not exist")),
            Some(Channel { users: users @ 1.., .. }) => {
                refuse(errno::EBUSY, format!("completion channel {handle} is used by {users} CQs: destroy them first"))
            }
            Some(_) => {
                self.channels.remove(&handle);
                Ok(Reply::Done)
            }
        }
    }

    /// The end of a channel that is notified.
    pub(super) fn channel(&self, handle: u32) -> Result<Arc<Notifier>, Refusal> {
        match self.channels.get(&handle) {
            Some(channel) => Ok(Arc::clone(&channel.notifier)),
            None => refuse(errno::EINVAL, format!("completion channel {handle} does not exist")),
        }
    }

    /// Counts a user of a channel up or down.
    pub(super) fn use_channel(&mut self, handle: u32, up: bool) {
        if let Some(channel) = self.channels.get_mut(&handle) {
            channel.users = if up { channel.users + 1 } else { channel.users.saturating_sub(1) };
        }
    }

    /// A block for rings.
    pub(super) fn allocate(&mut self, bytes: u64) -> Result<(Block, BlockAddress), Refusal> {
        self.segments.allocate(bytes).or_else(|error| refuse(errno::ENOMEM, error.to_string()))
    }

    /// Files of the segments that the client does not have yet, up to the highest one named. They must reach the client:
    /// nothing may fail after this.
    pub(super) fn new_segment_fds(&mut self, addresses: &[BlockAddress]) -> Result<Vec<OwnedFd>, Refusal> {
        let end = addresses.iter().map(|a| a.segment + 1).max().unwrap_or(0);
        let mut fds = Vec::new();
        for segment in self.segments_sent..end {
            let copy = self.segments.mapping(segment).map(|mapping| mapping.fd().try_clone_to_owned());
            match copy {
                Some(Ok(fd)) => fds.push(fd),
                Some(Err(error)) => return refuse(errno::ENOMEM, format!("no file descriptor for a ring: {error}")),
                None => {}
            }
        }
        self.segments_sent = self.segments_sent.max(end);
        Ok(fds)
    }
}
