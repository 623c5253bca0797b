//! Protection domains.

use std::fmt;
use std::sync::Arc;

use shm::control::Request;

use crate::context::{ContextInner, RemoteObject};
use crate::process_memory::KeptRegions;
use crate::{Context, VerbsError};

/// A protection domain (`ibv_pd`): QPs use the regions of their own domain only. A cheap handle.
#[derive(Clone)]
pub struct ProtectionDomain(pub(crate) Arc<PdInner>);

pub(crate) struct PdInner {
    pub(crate) kept: Arc<KeptRegions>,
    remote: RemoteObject,
    pub(crate) pd: u32,
}

impl PdInner {
    pub(crate) fn context(&self) -> &Arc<ContextInner> {
        &self.remote.context
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // Regions go before their domain.
        self.kept.clear(&self.remote.context);
    }
}

impl Context {
    /// Makes a protection domain.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] (`ENOMEM`) at the client's limit.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        let pd = self.0.call_for_handle(&Request::AllocPd, "AllocPd")?;
        let remote = RemoteObject::new(&self.0, Request::DeallocPd { pd });
        Ok(ProtectionDomain(Arc::new(PdInner { kept: Arc::default(), remote, pd })))
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").field("pd", &self.0.pd).finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// The session that it belongs to.
    pub fn context(&self) -> Context {
        Context(Arc::clone(self.0.context()))
    }

    /// Frees it. Dropping the last handle does so too, without telling of a failure.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while QPs, SRQs, regions or other handles refer to it.
    pub fn dealloc(self) -> Result<(), VerbsError> {
        let mut inner = Arc::into_inner(self.0).ok_or(VerbsError::Busy { object: "protection domain" })?;
        inner.kept.clear(&inner.remote.context);
        inner.remote.release()
    }
}
