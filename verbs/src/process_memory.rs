//! Regions of any memory of this process, without a pool: the engine reaches them by system calls.

use std::fmt;
use std::sync::Arc;

use shm::control::{Reply, Request};
use shm::process_memory::{OwnRange, ProcessMemory};

use crate::context::{ContextInner, RemoteObject};
use crate::error::lock;
use crate::pd::PdInner;
use crate::{AccessFlags, ProtectionDomain, Sge, VerbsError};

/// A registered range of this process's own memory (`ibv_mr`): its stack, heap, files, whatever it has. A cheap handle.
///
/// Each packet costs the engine a system call more than in a [`crate::MemoryPool`], and its bytes one more copy; registering
/// costs one message, whatever the length. Memory that is not mapped when it is needed fails the work request with
/// `LOC_PROT_ERR`, the peer's with `REM_OP_ERR`. Atomics are atomic among all QPs of the device, not against this process's own
/// instructions.
#[derive(Clone)]
pub struct ProcessRegion(Arc<Inner>);

struct Inner {
    // First: a region goes before its domain.
    remote: RemoteObject,
    lkey: u32,
    rkey: u32,
    addr: u64,
    length: u64,
    _pd: Arc<PdInner>,
}

impl ProtectionDomain {
    /// Registers a range of this process's memory, whose first byte local and remote users know as `iova`: usually its own
    /// address.
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
        attach(context)?;
        let (addr, length) = (range.addr(), range.length());
        let request = Request::RegProcessMemory { pd: self.0.pd, addr, iova, length, access };
        let Reply::Mr { lkey, rkey } = context.call(&request)? else {
            return Err(VerbsError::UnexpectedReply { request: "RegProcessMemory" });
        };
        let remote = RemoteObject::new(context, Request::DeregMr { lkey });
        let addr = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { iova };
        Ok(ProcessRegion(Arc::new(Inner { remote, lkey, rkey, addr, length, _pd: Arc::clone(&self.0) })))
    }
}

/// Hands the daemon this process's memory, once a session.
fn attach(context: &Arc<ContextInner>) -> Result<(), VerbsError> {
    use std::os::fd::AsFd;
    let mut attached = lock(&context.process_attached);
    if !*attached {
        let own = ProcessMemory::open_own();
        let own = own.map_err(|error| VerbsError::Os { call: "opening /proc/self/mem", error })?;
        context.call_with(&Request::AttachProcess, &[own.as_fd()])?;
        *attached = true;
    }
    Ok(())
}

impl ProcessRegion {
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

    /// The SGE for `length` bytes from `offset` of the region.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`].
    pub fn sge(&self, offset: u64, length: u32) -> Result<Sge, VerbsError> {
        let limit = self.0.length;
        match offset.checked_add(u64::from(length)) {
            Some(end) if end <= limit => Ok(Sge { addr: self.0.addr + offset, length, lkey: self.0.lkey }),
            _ => Err(VerbsError::OutOfRange { offset, length: u64::from(length), limit }),
        }
    }

    /// Deregisters it: after that no engine touches the memory. Dropping the last handle does so too, without telling of a
    /// failure.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while other handles refer to it.
    pub fn dereg(self) -> Result<(), VerbsError> {
        let mut inner = Arc::into_inner(self.0).ok_or(VerbsError::Busy { object: "memory region" })?;
        inner.remote.release()
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
