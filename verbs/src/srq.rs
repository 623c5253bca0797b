//! Shared receive queues.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use shm::control::{Reply, Request};
use shm::ring::RecvPoster;

use crate::context::RemoteObject;
use crate::error::lock;
use crate::pd::PdInner;
use crate::{
    BatchError, CompletionQueue, PostError, ProtectionDomain, RecvWr, SrqAttr, VerbsError, WcOpcode, WorkCompletion,
    XrcDomain,
};

/// A shared receive queue (`ibv_srq`). A cheap handle; several threads may post to it.
#[derive(Clone)]
pub struct SharedReceiveQueue(pub(crate) Arc<SrqInner>);

pub(crate) struct SrqInner {
    remote: RemoteObject,
    pub(crate) srq: u32,
    attr: SrqAttr,
    pub(crate) queue: Arc<SrqQueue>,
    _pd: Arc<PdInner>,
    xrc: Option<XrcParts>,
}

/// What an SRQ of an XRC domain has besides.
pub(crate) struct XrcParts {
    pub(crate) srqn: u32,
    pub(crate) cq: CompletionQueue,
    pub(crate) _domain: XrcDomain,
}

impl SrqInner {
    pub(crate) fn new(
        remote: RemoteObject,
        srq: u32,
        attr: SrqAttr,
        queue: Arc<SrqQueue>,
        pd: &Arc<PdInner>,
        xrc: Option<XrcParts>,
    ) -> Self {
        Self { remote, srq, attr, queue, _pd: Arc::clone(pd), xrc }
    }

    fn release(&mut self) -> Result<(), VerbsError> {
        if let (Some(xrc), false) = (&self.xrc, self.remote.is_released())
            && !self.remote.context.is_inherited()
        {
            xrc.cq.0.ring.leave_srq(self.srq);
        }
        self.remote.release()
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let _ = self.release();
    }
}

/// The part of an SRQ that its QPs see too.
pub(crate) struct SrqQueue(Mutex<SrqState>);

struct SrqState {
    poster: RecvPoster,
    closed: bool,
}

impl ProtectionDomain {
    /// Makes a shared receive queue for QPs whose CQs live on the same lcore as `cq` (`None`: as the session's first).
    /// The event of `attr.srq_limit` is armed at once if it is not 0.
    ///
    /// # Errors
    /// [`VerbsError::Refused`]: `EINVAL` for sizes beyond the device's, `ENOMEM` at the client's limit.
    pub fn create_srq(&self, cq: Option<&CompletionQueue>, attr: SrqAttr) -> Result<SharedReceiveQueue, VerbsError> {
        const REQUEST: &str = "CreateSrq";
        let context = self.0.context();
        let mut rings = lock(&context.rings);
        let request = Request::CreateSrq { pd: self.0.pd, cq: cq.map(CompletionQueue::handle), attr };
        let (reply, fds) = context.call_with(&request, &[])?;
        let Reply::Srq { srq, attr, shape, block } = reply else {
            return Err(VerbsError::UnexpectedReply { request: REQUEST });
        };
        let remote = RemoteObject::new(context, Request::DestroySrq { srq });
        rings.attach(&mut [block], &mut fds.into_iter(), REQUEST)?;
        let poster = RecvPoster::new_srq(&rings.block(block, REQUEST)?, shape, attr.max_wr);
        let poster = poster.map_err(|_| VerbsError::UnexpectedReply { request: REQUEST })?;
        let queue = Arc::new(SrqQueue::new(poster));
        Ok(SharedReceiveQueue(Arc::new(SrqInner::new(remote, srq, attr, queue, &self.0, None))))
    }
}

impl SharedReceiveQueue {
    /// Posts a receive for whichever of its QPs needs it first.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline]
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.post_recv_batch(std::slice::from_ref(wr)).map_err(|error| error.error)
    }

    /// Posts receives in order, published together.
    ///
    /// # Errors
    /// [`BatchError`]: those before the failed one are posted.
    pub fn post_recv_batch(&self, wrs: &[RecvWr<'_>]) -> Result<(), BatchError> {
        if self.0.remote.context.is_inherited() {
            return Err(BatchError { posted: 0, error: PostError::Inherited });
        }
        let mut state = lock(&self.0.queue.0);
        if state.closed {
            return Err(BatchError { posted: 0, error: PostError::Disconnected });
        }
        let failed = wrs.iter().enumerate().find_map(|(posted, wr)| {
            let error = state.poster.post(wr.wr_id, wr.sges).err()?;
            Some(BatchError { posted, error: error.into() })
        });
        // An SRQ has no doorbell: an engine looks at it when a message needs a receive.
        let _ = state.poster.publish();
        failed.map_or(Ok(()), Err)
    }

    /// Receives that can be posted now.
    pub fn free(&self) -> u32 {
        lock(&self.0.queue.0).poster.free()
    }

    /// Arms [`crate::AsyncEvent::SrqLimitReached`]: it comes once, when fewer than `srq_limit` receives are left.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] (`EINVAL`) for a limit over the queue's size.
    pub fn modify(&self, srq_limit: u32) -> Result<(), VerbsError> {
        self.0.remote.context.call(&Request::ModifySrq { srq: self.0.srq, srq_limit }).map(drop)
    }

    /// Sizes, and the limit that is armed now.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn query(&self) -> Result<SrqAttr, VerbsError> {
        match self.0.remote.context.call(&Request::QuerySrq { srq: self.0.srq })? {
            Reply::SrqAttr(attr) => Ok(attr),
            _ => Err(VerbsError::UnexpectedReply { request: "QuerySrq" }),
        }
    }

    /// Sizes granted when it was made.
    pub fn attr(&self) -> SrqAttr {
        self.0.attr
    }

    /// Its number in the session: what asynchronous events name.
    pub fn handle(&self) -> u32 {
        self.0.srq
    }

    /// The number that messages name it by ([`crate::SendWr::to_srq`]), if it is of an XRC domain (`ibv_get_srq_num`).
    pub fn srqn(&self) -> Option<u32> {
        self.0.xrc.as_ref().map(|xrc| xrc.srqn)
    }

    /// Destroys it. Dropping the last handle does so too, without telling of a failure.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while QPs or other handles refer to it.
    pub fn destroy(self) -> Result<(), VerbsError> {
        let mut inner = Arc::into_inner(self.0).ok_or(VerbsError::Busy { object: "shared receive queue" })?;
        inner.release()
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("srq", &self.0.srq)
            .field("attr", &self.0.attr)
            .finish_non_exhaustive()
    }
}

impl SrqQueue {
    pub(crate) fn new(poster: RecvPoster) -> Self {
        Self(Mutex::new(SrqState { poster, closed: false }))
    }

    /// Takes every receive that no QP has taken, once, in the name of the QP that asks first.
    pub(crate) fn flush(&self, qpn: u32, out: &mut VecDeque<WorkCompletion>) {
        let mut state = lock(&self.0);
        if !std::mem::replace(&mut state.closed, true) {
            out.extend(state.poster.outstanding().map(|wr_id| WorkCompletion::flushed(wr_id, WcOpcode::Recv, qpn)));
        }
    }
}
