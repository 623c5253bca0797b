//! Memory that peers and engines reach: pools that the daemon maps, and regions in them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use shm::control::{POPULATE_BYTES_MAX, Reply, Request};
use shm::mapping::{Mapping, PageSize};

use crate::context::RemoteObject;
use crate::pd::PdInner;
use crate::{AccessFlags, Context, ProtectionDomain, Sge, VerbsError};

/// Memory shared with the daemon: a sealed memfd that both map, so that data moves without a copy in between. A cheap
/// handle.
///
/// Peers may write into it at any time, so its bytes are read and written by copy, or by atomics; no `&[u8]` into it exists.
///
/// ```compile_fail,E0608
/// fn a_slice_of(pool: &ferroce::MemoryPool) -> &[u8] {
///     &pool[0..16]
/// }
/// ```
#[derive(Clone)]
pub struct MemoryPool(Arc<PoolInner>);

struct PoolInner {
    // First, so that the daemon lets go of the memory before this process does.
    remote: RemoteObject,
    memory: u32,
    mapping: Mapping,
}

impl MemoryPool {
    /// Makes a pool of at least `bytes` bytes (whole pages), zeroed. Every page is faulted in before it returns.
    ///
    /// # Errors
    /// [`VerbsError::Map`] if there is no memory, or no hugepage; [`VerbsError::Refused`] (`ENOMEM`) over the client's limit.
    pub fn new(context: &Context, bytes: u64, pages: PageSize) -> Result<Self, VerbsError> {
        let mapping = Mapping::create(c"ferroce-pool", bytes, pages)?;
        // A file without a page for each byte of it would kill whoever touches the missing one: find out now.
        mapping.populate(0, mapping.bytes())?;
        let request = Request::AttachMemory { bytes: mapping.bytes() };
        let memory = match context.0.call_with(&request, &[mapping.fd()])? {
            (Reply::Handle(memory), _) => memory,
            _ => return Err(VerbsError::UnexpectedReply { request: "AttachMemory" }),
        };
        let remote = RemoteObject::new(&context.0, Request::DetachMemory { memory });
        let mut populated = POPULATE_BYTES_MAX;
        while populated < mapping.bytes() {
            populated = match context.0.call_with(&Request::PopulateMemory { memory }, &[])? {
                (Reply::Populated { bytes }, _) if bytes > populated => bytes,
                _ => return Err(VerbsError::UnexpectedReply { request: "PopulateMemory" }),
            };
        }
        Ok(Self(Arc::new(PoolInner { remote, memory, mapping })))
    }

    /// Registers a part of the pool, known by its virtual addresses in this process.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`]; [`VerbsError::Refused`] for rights that don't go together or at the client's limit.
    pub fn register(
        &self,
        pd: &ProtectionDomain,
        range: Range<u64>,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        let base = self.0.mapping.as_ptr().addr() as u64;
        let addr = base.wrapping_add(range.start);
        self.register_at(pd, range, addr, access)
    }

    /// Registers a part of the pool whose first byte local and remote users know as `addr` (`ibv_reg_mr_iova`).
    ///
    /// # Errors
    /// As [`MemoryPool::register`]; also if `addr` plus the length passes 2^64.
    pub fn register_at(
        &self,
        pd: &ProtectionDomain,
        range: Range<u64>,
        addr: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        let offset = range.start;
        let length = range.end.saturating_sub(range.start);
        check(offset, length, self.bytes())?;
        let memory = self.0.memory;
        let request = Request::RegMr { pd: pd.0.pd, memory, offset, addr, length, access };
        let context = &self.0.remote.context;
        let (lkey, rkey) = match context.call(&request)? {
            Reply::Mr { lkey, rkey } => (lkey, rkey),
            _ => return Err(VerbsError::UnexpectedReply { request: "RegMr" }),
        };
        let remote = RemoteObject::new(context, Request::DeregMr { lkey });
        let pool = self.clone();
        let pd = Arc::clone(&pd.0);
        Ok(MemoryRegion(Arc::new(MrInner { remote, lkey, rkey, addr, offset, length, pool, _pd: pd })))
    }

    /// Registers all of it: [`MemoryPool::register`].
    ///
    /// # Errors
    /// As there.
    pub fn register_all(&self, pd: &ProtectionDomain, access: AccessFlags) -> Result<MemoryRegion, VerbsError> {
        self.register(pd, 0..self.bytes(), access)
    }

    /// Bytes of the pool.
    pub fn bytes(&self) -> u64 {
        self.0.mapping.bytes()
    }

    /// Copies bytes into it.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`]; nothing was copied.
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), VerbsError> {
        self.0.mapping.write(offset, data).map_err(|_| self.out_of_range(offset, data.len() as u64))
    }

    /// Copies bytes out of it. What a peer or an engine writes meanwhile may be seen in part.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`]; nothing was copied.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), VerbsError> {
        self.0.mapping.read(offset, out).map_err(|_| self.out_of_range(offset, out.len() as u64))
    }

    /// Sets a range to zero.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`]; nothing was changed.
    pub fn zero(&self, range: Range<u64>) -> Result<(), VerbsError> {
        let length = range.end.saturating_sub(range.start);
        self.0.mapping.zero(range.start, length).map_err(|_| self.out_of_range(range.start, length))
    }

    /// An 8-byte word for atomic access: where peers' atomics land, or a flag that a peer's WRITE sets.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`], or [`VerbsError::Misaligned`] unless `offset` is a multiple of 8.
    #[inline]
    pub fn atomic_u64(&self, offset: u64) -> Result<&AtomicU64, VerbsError> {
        self.0.mapping.atomic_u64(offset).ok_or_else(|| match check(offset, 8, self.bytes()) {
            Ok(()) => VerbsError::Misaligned { offset },
            Err(error) => error,
        })
    }

    /// Detaches it from the daemon and unmaps it. Dropping the last handle does so too, without telling of a failure.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while regions or other handles refer to it.
    pub fn destroy(self) -> Result<(), VerbsError> {
        let mut inner = Arc::into_inner(self.0).ok_or(VerbsError::Busy { object: "memory pool" })?;
        inner.remote.release()
    }

    #[cold]
    fn out_of_range(&self, offset: u64, length: u64) -> VerbsError {
        VerbsError::OutOfRange { offset, length, limit: self.bytes() }
    }
}

impl fmt::Debug for MemoryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryPool")
            .field("memory", &self.0.memory)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

/// A registered part of a [`MemoryPool`] (`ibv_mr`). A cheap handle. Once deregistered, no engine touches the memory through
/// its keys any more.
#[derive(Clone)]
pub struct MemoryRegion(Arc<MrInner>);

struct MrInner {
    // First: a region goes before its pool and its domain.
    remote: RemoteObject,
    lkey: u32,
    rkey: u32,
    addr: u64,
    offset: u64,
    length: u64,
    pool: MemoryPool,
    _pd: Arc<PdInner>,
}

impl MemoryRegion {
    /// Key for SGEs.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.0.lkey
    }

    /// Key for peers.
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.0.rkey
    }

    /// Address of its first byte, for SGEs and for peers.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.0.addr
    }

    /// Bytes.
    #[inline]
    pub fn length(&self) -> u64 {
        self.0.length
    }

    /// The pool it is part of.
    pub fn pool(&self) -> &MemoryPool {
        &self.0.pool
    }

    /// The SGE for `length` bytes from `offset` of the region.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`].
    #[inline]
    pub fn sge(&self, offset: u64, length: u32) -> Result<Sge, VerbsError> {
        check(offset, u64::from(length), self.0.length)?;
        Ok(Sge { addr: self.0.addr + offset, length, lkey: self.0.lkey })
    }

    /// Copies bytes into the region: [`MemoryPool::write`] with an offset from the region's start.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`]; nothing was copied.
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), VerbsError> {
        check(offset, data.len() as u64, self.0.length)?;
        self.0.pool.write(self.0.offset + offset, data)
    }

    /// Copies bytes out of the region: [`MemoryPool::read`] with an offset from the region's start.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`]; nothing was copied.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), VerbsError> {
        check(offset, out.len() as u64, self.0.length)?;
        self.0.pool.read(self.0.offset + offset, out)
    }

    /// An 8-byte word of the region for atomic access: [`MemoryPool::atomic_u64`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn atomic_u64(&self, offset: u64) -> Result<&AtomicU64, VerbsError> {
        check(offset, 8, self.0.length)?;
        self.0.pool.atomic_u64(self.0.offset + offset)
    }

    /// Deregisters it. Dropping the last handle does so too, without telling of a failure.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while other handles refer to it.
    pub fn dereg(self) -> Result<(), VerbsError> {
        let mut inner = Arc::into_inner(self.0).ok_or(VerbsError::Busy { object: "memory region" })?;
        inner.remote.release()
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("lkey", &self.lkey())
            .field("rkey", &self.rkey())
            .field("addr", &self.addr())
            .field("length", &self.length())
            .finish_non_exhaustive()
    }
}

#[inline]
fn check(offset: u64, length: u64, limit: u64) -> Result<(), VerbsError> {
    match offset.checked_add(length) {
        Some(end) if end <= limit => Ok(()),
        _ => Err(VerbsError::OutOfRange { offset, length, limit }),
    }
}
