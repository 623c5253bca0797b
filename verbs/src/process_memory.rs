//! Regions of any memory of this process, without a pool.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use shm::control::{MrTier, Reply, Request};
use shm::process_memory::{AtomicTurns, OwnRange, ProcessMemory};
use shm::vma::Vma;

use crate::context::{ContextInner, RemoteObject};
use crate::error::lock;
use crate::mover::{Mover, Registered};
use crate::pd::PdInner;
use crate::{AccessFlags, Context, ProtectionDomain, Sge, VerbsError};

/// Regions of a domain that are kept registered for the next who wants the same.
const KEPT_MAX: usize = 16;
/// `EFAULT`.
const EFAULT: i32 = 14;

/// How far the engine's ways of reaching this process's memory may go (docs/memory.md). Each has the ones before as well.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum MemoryTiers {
    /// System calls only.
    Process,
    /// What this process shares with others is mapped by the engine, too, where it has the right.
    #[default]
    Shared,
    /// Private memory that is used a lot moves into a file that the engine maps. What this means for `fork`, `MADV_DONTNEED` and their
    /// like must be known of the program: see docs/memory.md.
    Moved,
}

/// No [`MemoryTiers`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no setting of memory tiers: it is process, shared or moved")]
pub struct NoTiers(String);

impl FromStr for MemoryTiers {
    type Err = NoTiers;

    fn from_str(text: &str) -> Result<Self, NoTiers> {
        match text {
            "process" => Ok(Self::Process),
            "shared" => Ok(Self::Shared),
            "moved" => Ok(Self::Moved),
            _ => Err(NoTiers(text.to_owned())),
        }
    }
}

/// How a region is reached, as [`ProcessRegion::query_use`] found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryUse {
    /// The highest tier that any of it has.
    pub tier: MrTier,
    /// Bytes of it that the engine maps.
    pub mapped_bytes: u64,
    /// Bytes that the engine has moved by system call since it was registered.
    pub copied_bytes: u64,
}

/// What a session knows of its own process's memory.
#[derive(Default)]
pub(crate) struct OwnProcess {
    /// Made when the daemon gets this process's memory.
    own: Mutex<Option<Arc<ProcessMemory>>>,
    tiers: Mutex<MemoryTiers>,
    log: OnceLock<fn(&str)>,
    pub(crate) mover: OnceLock<Option<Mover>>,
    /// Held while regions are made and destroyed, and while a piece of one moves.
    pub(crate) still: Mutex<()>,
    /// Of all domains that keep some.
    keepers: Mutex<Vec<Weak<KeptRegions>>>,
}

impl OwnProcess {
    /// Deregisters the regions that nobody has and that have a part of a range, which is about to move: what moves under a region
    /// stays with it, whatever its addresses become. To be called with `still`.
    pub(crate) fn forget_kept(&self, range: &Range<u64>) {
        let keepers: Vec<_> = lock(&self.keepers).iter().filter_map(Weak::upgrade).collect();
        for keeper in keepers {
            drop(keeper.remove(|kept| kept.kind.range.overlaps(range)));
        }
    }

    pub(crate) fn tell(&self, sentence: impl FnOnce() -> String) {
        if let Some(log) = self.log.get() {
            log(&sentence());
        }
    }
}

impl Context {
    /// How far the engine may go for regions that are registered from now on ([`ProtectionDomain::register_process_memory`]).
    pub fn set_memory_tiers(&self, tiers: MemoryTiers) {
        *lock(&self.0.own_process.tiers) = tiers;
    }

    /// Has somebody told of each region's tier, of memory that moves, and why it does not. Only the first call counts.
    pub fn set_memory_log(&self, log: fn(&str)) {
        let _ = self.0.own_process.log.set(log);
    }
}

/// A registered range of this process's own memory (`ibv_mr`): its stack, heap, files, whatever it has. A cheap handle.
///
/// Registering costs one message, whatever the length. How the engine reaches the bytes depends on what memory it is:
/// [`MemoryTiers`], [`ProcessRegion::query_use`]. By system call, the rule, each packet costs it a call and a copy more than in a
/// [`crate::MemoryPool`]. Memory that is not mapped when it is needed fails the work request with `LOC_PROT_ERR`, the peer's with
/// `REM_OP_ERR`; only what the engine has mapped is reached for as long as it is registered. Atomics are atomic among all QPs of
/// the device, not against this process's own instructions.
#[derive(Clone)]
pub struct ProcessRegion(Arc<Inner>);

struct Inner {
    // First: a region goes before its domain.
    remote: RemoteObject,
    keys: Keys,
    kind: Kind,
    /// For the mover, which has no handle to the region. What counts is what it says under the lock `still`.
    gone: Arc<AtomicBool>,
    _registered: Registered,
    pd: Arc<PdInner>,
}

#[derive(Clone, Copy)]
struct Keys {
    lkey: u32,
    rkey: u32,
}

/// What a region was registered as.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind {
    range: OwnRange,
    iova: u64,
    access: AccessFlags,
    tiers: MemoryTiers,
}

impl Kind {
    /// Whether the engine may map what is shared.
    fn share(self) -> bool {
        self.tiers >= MemoryTiers::Shared
    }
}

/// Regions that nobody has any more, registered anew under keys that nobody has yet, the latest last. Whoever registers the same gets
/// them if they reach what is at their addresses then: by system call they do, of what the engine has mapped it is looked at.
#[derive(Default)]
pub(crate) struct KeptRegions(Mutex<Vec<Kept>>);

struct Kept {
    kind: Kind,
    keys: Keys,
    /// What the engine has mapped of it.
    mapped: Vec<Vma>,
    remote: RemoteObject,
}

impl Kept {
    /// True if what the engine has mapped is still what is there.
    fn is_current(&self, own: &ProcessMemory) -> bool {
        self.mapped.iter().all(|part| own.mapping_at_or_above(part.start).is_some_and(|vma| vma.has(part)))
    }
}

impl KeptRegions {
    fn take(&self, kind: Kind) -> Option<Kept> {
        let mut kept = lock(&self.0);
        let at = kept.iter().rposition(|kept| kept.kind == kind)?;
        Some(kept.remove(at))
    }

    /// Keeps a region; gives back those that are too many, to be dropped without the lock: that takes a message.
    fn put(self: &Arc<Self>, region: Kept, keepers: &Mutex<Vec<Weak<Self>>>) -> Option<Kept> {
        let mut kept = lock(&self.0);
        if kept.is_empty() {
            let mut keepers = lock(keepers);
            keepers.retain(|keeper| keeper.strong_count() > 0 && keeper.as_ptr() != Arc::as_ptr(self));
            keepers.push(Arc::downgrade(self));
        }
        let oldest = (kept.len() >= KEPT_MAX).then(|| kept.remove(0));
        kept.push(region);
        oldest
    }

    fn remove(&self, which: impl FnMut(&mut Kept) -> bool) -> Vec<Kept> {
        lock(&self.0).extract_if(.., which).collect()
    }

    /// Deregisters all, before their domain goes.
    pub(crate) fn clear(&self, context: &ContextInner) {
        // A child of the process has neither mover nor regions, but perhaps the lock as the mover had it.
        let _still = (!context.is_inherited()).then(|| lock(&context.own_process.still));
        drop(self.remove(|_| true));
    }
}

impl ProtectionDomain {
    /// Registers a range of this process's memory, whose first byte local and remote users know as `iova`: usually its own
    /// address. What was registered the same way before and deregistered by [`ProcessRegion::dereg`] costs no message.
    ///
    /// # Errors
    /// [`VerbsError::Refused`]: `EFAULT` if its first or last byte is not mapped, `EINVAL` for rights that don't go together,
    /// `ENOMEM` at the client's limit, `EPERM` if the daemon can't see this process (another PID namespace);
    /// [`VerbsError::Os`] if this process may not open its own memory.
    pub fn register_process_memory(
        &self,
        range: OwnRange,
        iova: u64,
        access: AccessFlags,
    ) -> Result<ProcessRegion, VerbsError> {
        let context = self.0.context();
        // A child would have its parent's from the domain, without a message.
        if context.is_inherited() {
            return Err(VerbsError::Inherited);
        }
        let own = attach(context)?;
        let kind = Kind { range, iova, access, tiers: *lock(&context.own_process.tiers) };
        if let Some(kept) = self.0.kept.take(kind).filter(|kept| kept.is_current(&own)) {
            check_ends(&own, range, &kept.mapped)?;
            return Ok(self.region(kind, kept.keys, kept.remote));
        }
        let (addr, length) = (range.addr(), range.length());
        let request = Request::RegProcessMemory { pd: self.0.pd, addr, iova, length, access, share: kind.share() };
        let still = lock(&context.own_process.still);
        let Reply::Mr { lkey, rkey } = context.call(&request)? else {
            return Err(VerbsError::UnexpectedReply { request: "RegProcessMemory" });
        };
        let remote = RemoteObject::new(context, Request::DeregMr { lkey });
        let region = self.region(kind, Keys { lkey, rkey }, remote);
        drop(still);
        context.own_process.tell(|| match region.query_use() {
            Ok(MemoryUse { tier, mapped_bytes, .. }) => format!(
                "region of {length} bytes at {addr:#x}: tier {}, {mapped_bytes} bytes mapped by the engine",
                tier.name()
            ),
            Err(error) => format!("region of {length} bytes at {addr:#x}: {error}"),
        });
        Ok(region)
    }

    fn region(&self, kind: Kind, keys: Keys, remote: RemoteObject) -> ProcessRegion {
        let gone = Arc::new(AtomicBool::new(false));
        let context = self.0.context();
        let registered = Registered::new(context, kind.range);
        if kind.tiers == MemoryTiers::Moved {
            Mover::watch(context, kind.range, keys.lkey, &gone);
        }
        let pd = Arc::clone(&self.0);
        ProcessRegion(Arc::new(Inner { remote, keys, kind, gone, _registered: registered, pd }))
    }
}

/// What the daemon looks at where there is a message, but for what is known to be there.
fn check_ends(own: &ProcessMemory, range: OwnRange, known: &[Vma]) -> Result<(), VerbsError> {
    let (addr, length) = (range.addr(), range.length());
    if length == 0 {
        return Ok(());
    }
    let is_there = |at| known.iter().any(|part| part.start <= at && at < part.end) || own.read(at, &mut [0]).is_ok();
    let missing = [addr, addr + (length - 1)].into_iter().find(|&at| !is_there(at));
    missing.map_or(Ok(()), |at| {
        let message = format!("address {at:#x} is not mapped in the client's process");
        Err(VerbsError::Refused { errno: EFAULT, message })
    })
}

/// Hands the daemon this process's memory, once a session.
fn attach(context: &Arc<ContextInner>) -> Result<Arc<ProcessMemory>, VerbsError> {
    use std::os::fd::AsFd;
    let mut attached = lock(&context.own_process.own);
    if let Some(own) = &*attached {
        return Ok(Arc::clone(own));
    }
    let os = |error| VerbsError::Os { call: "opening /proc/self/mem", error };
    let fd = ProcessMemory::open_own().map_err(os)?;
    context.call_with(&Request::AttachProcess, &[fd.as_fd()])?;
    let own = ProcessMemory::adopt(fd, std::process::id(), AtomicTurns::default());
    let own = Arc::new(own.map_err(|error| os(std::io::Error::other(error)))?);
    Ok(Arc::clone(attached.insert(own)))
}

impl ProcessRegion {
    /// Key for SGEs.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.0.keys.lkey
    }

    /// Key for peers.
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.0.keys.rkey
    }

    /// Address of its first byte, for SGEs and for peers.
    #[inline]
    pub fn addr(&self) -> u64 {
        if self.0.kind.access.contains(AccessFlags::ZERO_BASED) { 0 } else { self.0.kind.iova }
    }

    /// Bytes.
    #[inline]
    pub fn length(&self) -> u64 {
        self.0.kind.range.length()
    }

    /// The SGE for `length` bytes from `offset` of the region.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`].
    pub fn sge(&self, offset: u64, length: u32) -> Result<Sge, VerbsError> {
        let limit = self.length();
        match offset.checked_add(u64::from(length)) {
            Some(end) if end <= limit => Ok(Sge { addr: self.addr() + offset, length, lkey: self.lkey() }),
            _ => Err(VerbsError::OutOfRange { offset, length: u64::from(length), limit }),
        }
    }

    /// Asks the engine how it reaches the region, and how much of it went by system call.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn query_use(&self) -> Result<MemoryUse, VerbsError> {
        query_use(&self.0.remote.context, self.lkey())
    }

    /// Deregisters it: after that no engine touches the memory by its keys. Dropping the last handle does so too, without telling
    /// of a failure. A few regions that were deregistered by this call stay known to the engine, under keys that nobody has.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while other handles or memory windows refer to it: then it stays, as long as its windows.
    pub fn dereg(self) -> Result<(), VerbsError> {
        let mut inner = Arc::into_inner(self.0).ok_or(VerbsError::Busy { object: "memory region" })?;
        let context = Arc::clone(&inner.remote.context);
        if context.is_inherited() {
            return inner.remote.release();
        }
        let still = lock(&context.own_process.still);
        inner.gone.store(true, Relaxed);
        match context.call(&Request::RenewMr { lkey: inner.keys.lkey, share: inner.kind.share() })? {
            Reply::RenewedMr { lkey, rkey, mapped } => {
                inner.remote.forget();
                let remote = RemoteObject::new(&context, Request::DeregMr { lkey });
                let kept = Kept { kind: inner.kind, keys: Keys { lkey, rkey }, mapped, remote };
                let oldest = inner.pd.kept.put(kept, &context.own_process.keepers);
                drop((oldest, still));
            }
            _ => inner.remote.forget(),
        }
        Ok(())
    }
}

/// How the engine reaches the region with a key.
pub(crate) fn query_use(context: &ContextInner, lkey: u32) -> Result<MemoryUse, VerbsError> {
    match context.call(&Request::QueryMr { lkey })? {
        Reply::MrUse { tier, mapped_bytes, copied_bytes } => Ok(MemoryUse { tier, mapped_bytes, copied_bytes }),
        _ => Err(VerbsError::UnexpectedReply { request: "QueryMr" }),
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A child has no mover, but perhaps the lock as the mover had it.
        if !self.gone.load(Relaxed) && !self.remote.context.is_inherited() {
            let _still = lock(&self.remote.context.own_process.still);
            self.gone.store(true, Relaxed);
        }
    }
}

impl fmt::Debug for ProcessRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessRegion")
            .field("lkey", &self.lkey())
            .field("rkey", &self.rkey())
            .field("addr", &self.addr())
            .field("length", &self.length())
            .finish_non_exhaustive()
    }
}
