//! Memory windows.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use shm::control::{Reply, Request};

use crate::context::RemoteObject;
use crate::pd::PdInner;
use crate::{AccessFlags, MemoryRegion, MwType, ProtectionDomain, VerbsError};

/// A memory window (`ibv_mw`): a key that opens a part of a region to the peer, for as long as it is bound. Binding it is a work
/// request ([`crate::SendWr::bind_mw`]), so it costs no call to the daemon. A cheap handle.
///
/// A window of type 1 is bound for all QPs of its protection domain, is bound again as often as one likes, and unbound with a
/// length of 0. One of type 2 is bound for the QP that the work request was posted to, until a LOCAL_INV or the peer's SEND
/// with invalidate unbinds it, or that QP is reset or destroyed.
///
/// ```no_run
/// use ferroce::{AccessFlags, MemoryRegion, MwType, ProtectionDomain, QueuePair, SendWr};
///
/// /// Opens the first 4096 bytes of a region, which was registered with `MW_BIND`, to the peer of a QP.
/// fn lend(pd: &ProtectionDomain, qp: &QueuePair, region: &MemoryRegion) -> Result<u32, Box<dyn std::error::Error>> {
///     let window = pd.alloc_mw(MwType::Type2)?;
///     let rkey = window.next_rkey();
///     let bind = window.bind_info(region, 0, 4096, AccessFlags::REMOTE_READ)?;
///     qp.post_send(&SendWr::bind_mw(1, &window, rkey, &bind).signaled())?;
///     Ok(rkey)
/// }
/// ```
#[derive(Clone)]
pub struct MemoryWindow(Arc<MwInner>);

struct MwInner {
    // First: a window goes before its domain.
    remote: RemoteObject,
    mw_type: MwType,
    rkey: AtomicU32,
    _pd: Arc<PdInner>,
}

/// What a window is to open (`ibv_mw_bind_info`): made by [`MemoryWindow::bind_info`], or field by field by those who hold bare
/// numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MwBind {
    /// L_Key of the region.
    pub lkey: u32,
    /// First address, as users of the region know it.
    pub addr: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub length: u64,
    /// Rights of the peer; `ZERO_BASED` lets addresses count from the window's first byte (type 2).
    pub access: AccessFlags,
}

/// The key with the next tag (`ibv_inc_rkey`): the lower 8 bits count up, the others stay.
pub const fn inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

impl ProtectionDomain {
    /// Makes a memory window that is not bound.
    ///
    /// # Errors
    /// [`VerbsError::Refused`]: `ENOMEM` at the limit of regions and windows; `EOPNOTSUPP` for type 1 where the session's QPs are
    /// on several lcores.
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<MemoryWindow, VerbsError> {
        let context = self.0.context();
        let (mw, rkey) = match context.call(&Request::AllocMw { pd: self.0.pd, mw_type })? {
            Reply::Mw { mw, rkey } => (mw, rkey),
            _ => return Err(VerbsError::UnexpectedReply { request: "AllocMw" }),
        };
        let remote = RemoteObject::new(context, Request::DeallocMw { mw });
        let (rkey, pd) = (AtomicU32::new(rkey), Arc::clone(&self.0));
        Ok(MemoryWindow(Arc::new(MwInner { remote, mw_type, rkey, _pd: pd })))
    }
}

impl MemoryWindow {
    /// Kind.
    pub fn mw_type(&self) -> MwType {
        self.0.mw_type
    }

    /// The key that [`MemoryWindow::next_rkey`] gave last; before the first call the one it was made with, which opens nothing.
    pub fn rkey(&self) -> u32 {
        self.0.rkey.load(Ordering::Relaxed)
    }

    /// A key to bind it with: another tag than the last one, so that whoever still has that finds it closed.
    pub fn next_rkey(&self) -> u32 {
        let last = self.0.rkey.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |rkey| Some(inc_rkey(rkey)));
        inc_rkey(last.unwrap_or_else(|unchanged| unchanged))
    }

    /// What to bind for `length` bytes from `offset` of a region on.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`].
    pub fn bind_info(
        &self,
        region: &MemoryRegion,
        offset: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<MwBind, VerbsError> {
        match offset.checked_add(length) {
            Some(end) if end <= region.length() => {
                Ok(MwBind { lkey: region.lkey(), addr: region.addr() + offset, length, access })
            }
            _ => Err(VerbsError::OutOfRange { offset, length, limit: region.length() }),
        }
    }

    /// Frees it, bound or not. Dropping the last handle does so too, without telling of a failure.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while other handles refer to it.
    pub fn dealloc(self) -> Result<(), VerbsError> {
        let mut inner = Arc::into_inner(self.0).ok_or(VerbsError::Busy { object: "memory window" })?;
        inner.remote.release()
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow")
            .field("type", &self.0.mw_type)
            .field("rkey", &self.rkey())
            .finish_non_exhaustive()
    }
}
