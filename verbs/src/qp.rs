//! Queue pairs.

pub(crate) mod queues;

use std::fmt;
use std::sync::{Arc, Mutex};

use shm::attr::{EceAttr, RecoveryPolicy};
use shm::control::congestion::{CongestionChange, CongestionReport, CongestionTarget};
use shm::control::post_mortem::PostMortem;
use shm::control::{Reply, Request};
use shm::ring::{RecvPoster, SendPoster};
use shm::segment::Block;
use wire::{Gid, Qpn};

use crate::context::{ContextInner, RemoteObject};
use crate::error::lock;
use crate::pd::PdInner;
use crate::srq::SrqInner;
use crate::{
    BatchError, CompletionQueue, Context, PostError, ProtectionDomain, QpAttr, QpAttrMask, QpCap, QpState, QpType,
    RecvWr, SendWr, SharedReceiveQueue, VerbsError,
};
use queues::{Doorbell, QpQueues, RecvSide, SendSide};

pub use queues::SendBatch;

/// A queue pair (`ibv_qp`). A cheap handle; several threads may post to it.
///
/// A QP keeps its CQs, its SRQ and its domain alive, so they can't be destroyed before it:
///
/// ```compile_fail,E0382
/// # fn example(qp: ferroce::QueuePair) -> Result<(), ferroce::VerbsError> {
/// qp.destroy()?;
/// qp.post_send(&ferroce::SendWr::send(1, &[]))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct QueuePair(Arc<QpInner>);

struct QpInner {
    // First: a QP goes before its CQs, its SRQ and its domain.
    remote: RemoteObject,
    queues: Arc<QpQueues>,
    qp_type: QpType,
    cap: QpCap,
    block: Block,
    /// The state after the last `modify` or `query`. Its lock keeps those in order.
    state: Mutex<QpState>,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    srq: Option<Arc<SrqInner>>,
    _pd: Arc<PdInner>,
}

/// What a QP is made of ([`ProtectionDomain::create_qp`], `ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct QpInit<'a> {
    /// Transport service.
    pub qp_type: QpType,
    /// Where sends complete.
    pub send_cq: &'a CompletionQueue,
    /// Where receives complete; usually the same.
    pub recv_cq: &'a CompletionQueue,
    /// Takes receives from here, and has no receive queue of its own.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// Sizes at least; what was granted is in [`QueuePair::cap`].
    pub cap: QpCap,
    /// Every send makes a completion, as if it had asked for one.
    pub sq_sig_all: bool,
}

impl<'a> QpInit<'a> {
    /// An RC QP that completes everything on `cq`, with 128 sends and receives of one SGE each.
    pub const fn rc(cq: &'a CompletionQueue) -> Self {
        let cap = QpCap { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        Self { qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, cap, sq_sig_all: false }
    }

    /// The same for UC: as RC, but nothing is acknowledged, and READs and atomics are none of its operations.
    pub const fn uc(cq: &'a CompletionQueue) -> Self {
        Self { qp_type: QpType::Uc, ..Self::rc(cq) }
    }

    /// The same for UD: single packets to whomever each work request says. Receives begin with 40 bytes for the network
    /// header.
    pub const fn ud(cq: &'a CompletionQueue) -> Self {
        Self { qp_type: QpType::Ud, ..Self::rc(cq) }
    }

    /// The end of an extended reliable connection that sends ([`crate::XrcDomain`]): as RC, but it has no receives, and each work
    /// request says which SRQ of the peer's it is for ([`SendWr::to_srq`]).
    pub const fn xrc_send(cq: &'a CompletionQueue) -> Self {
        let rc = Self::rc(cq);
        Self { qp_type: QpType::XrcSend, cap: QpCap { max_recv_wr: 0, max_recv_sge: 0, ..rc.cap }, ..rc }
    }
}

impl ProtectionDomain {
    /// Makes a QP, in RESET.
    ///
    /// # Errors
    /// [`VerbsError::Refused`]: `EINVAL` for sizes beyond the device's, `EOPNOTSUPP` for a service it lacks, `ENOMEM` at the
    /// client's limit.
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<QueuePair, VerbsError> {
        const REQUEST: &str = "CreateQp";
        let request = Request::CreateQp {
            pd: self.0.pd,
            qp_type: init.qp_type,
            send_cq: init.send_cq.handle(),
            recv_cq: init.recv_cq.handle(),
            srq: init.srq.map(SharedReceiveQueue::handle),
            cap: init.cap,
            sq_sig_all: init.sq_sig_all,
        };
        let context = self.0.context();
        let mut rings = lock(&context.rings);
        let (reply, fds) = context.call_with(&request, &[])?;
        let Reply::Qp { qpn, cap, sq, rq, block, shard, doorbell, doorbell_index, wake_fd } = reply else {
            return Err(VerbsError::UnexpectedReply { request: REQUEST });
        };
        let unexpected = || VerbsError::UnexpectedReply { request: REQUEST };
        let remote = RemoteObject::new(context, Request::DestroyQp { qpn });
        let mut fds = fds.into_iter();
        rings.attach(&mut [block, doorbell], &mut fds, REQUEST)?;
        let wake = if wake_fd { Some(fds.next().ok_or_else(unexpected)?) } else { None };
        let shard = rings.shard(shard, doorbell, wake, REQUEST)?;
        let block = rings.block(block, REQUEST)?;
        let poster = SendPoster::new(&block, sq, cap.max_send_wr).map_err(|_| unexpected())?;
        let recv = if init.srq.is_none() && rq.depth > 0 {
            let poster = RecvPoster::new(&block, sq, rq, cap.max_recv_wr).map_err(|_| unexpected())?;
            Some(Mutex::new(RecvSide::new(poster, cap.max_recv_wr.min(rq.depth))))
        } else {
            None
        };
        let queues = Arc::new(QpQueues {
            qpn,
            process: context.process,
            doorbell: Doorbell { shard, index: doorbell_index },
            signal_all: init.sq_sig_all,
            send: Mutex::new(SendSide::new(poster)),
            recv,
            srq: init.srq.map(|srq| Arc::clone(&srq.0.queue)),
            tally: queues::Tally::default(),
        });
        init.send_cq.0.ring.join(&queues, true, false);
        init.recv_cq.0.ring.join(&queues, false, true);
        Ok(QueuePair(Arc::new(QpInner {
            remote,
            queues,
            qp_type: init.qp_type,
            cap,
            block,
            state: Mutex::new(QpState::Reset),
            send_cq: init.send_cq.clone(),
            recv_cq: init.recv_cq.clone(),
            srq: init.srq.map(|srq| Arc::clone(&srq.0)),
            _pd: Arc::clone(&self.0),
        })))
    }
}

impl QueuePair {
    /// Posts one send work request.
    ///
    /// Cost: a lock, the copy into shared memory, the doorbell (two locked operations); no allocation; no system call unless
    /// the engine sleeps. For several at once see [`QueuePair::send_batch`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline]
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let mut batch = self.send_batch();
        batch.post(wr)?;
        batch.commit();
        Ok(())
    }

    /// Posts several send work requests, with one doorbell.
    ///
    /// # Errors
    /// [`BatchError`]: those before the failed one are posted.
    pub fn post_send_batch(&self, wrs: &[SendWr<'_>]) -> Result<(), BatchError> {
        let mut batch = self.send_batch();
        let failed = wrs.iter().enumerate().find_map(|(posted, wr)| {
            let error = batch.post(wr).err()?;
            Some(BatchError { posted, error })
        });
        batch.commit();
        failed.map_or(Ok(()), Err)
    }

    /// Begins a batch of send work requests. It can't outlive the QP's handle:
    ///
    /// ```compile_fail,E0505
    /// # fn example(qp: ferroce::QueuePair) {
    /// let batch = qp.send_batch();
    /// drop(qp);
    /// batch.commit();
    /// # }
    /// ```
    #[inline]
    pub fn send_batch(&self) -> SendBatch<'_> {
        SendBatch::new(&self.0.queues)
    }

    /// Posts one receive.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted. The queue is full until completions of earlier receives have been polled.
    #[inline]
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.post_recv_batch(std::slice::from_ref(wr)).map_err(|error| error.error)
    }

    /// Posts several receives, published together.
    ///
    /// # Errors
    /// [`BatchError`]: those before the failed one are posted.
    #[inline]
    pub fn post_recv_batch(&self, wrs: &[RecvWr<'_>]) -> Result<(), BatchError> {
        self.0.queues.post_recvs(wrs)
    }

    /// Changes the state and attributes that `mask` names: all of them or none. Returns the new state. See `to_init`,
    /// `to_rtr` and `to_rts` for the usual steps. On the way to RESET both queues are emptied, and the completions of the QP
    /// that were not polled are forgotten.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] (`EINVAL`): the sentence names the attribute, its value and its range, or the transition.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<QpState, VerbsError> {
        let inner = &*self.0;
        let mut state = lock(&inner.state);
        let resets = mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::Reset;
        if resets {
            // What is posted while the engine empties the queues would be lost, or worse, half seen.
            inner.queues.set_state(QpState::Reset);
        }
        let request = Request::ModifyQp { qpn: inner.queues.qpn, attr: *attr, mask };
        let next = match inner.context().call(&request) {
            Ok(Reply::QpModified { state }) => state,
            other => {
                inner.queues.set_state(*state);
                return Err(other.err().unwrap_or(VerbsError::UnexpectedReply { request: "ModifyQp" }));
            }
        };
        if resets {
            inner.send_cq.0.ring.purge(inner.queues.qpn);
            inner.recv_cq.0.ring.purge(inner.queues.qpn);
            inner.queues.reset();
        }
        inner.queues.set_state(next);
        *state = next;
        Ok(next)
    }

    /// Changes how lost packets are made up for, in any state and at once. Selective repeat and the hybrid need a peer that does one
    /// of them too; the connection manager finds that out by itself.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] (`EINVAL`) if the QP is of UC or UD.
    pub fn set_recovery(&self, policy: RecoveryPolicy) -> Result<(), VerbsError> {
        let inner = &*self.0;
        match inner.context().call(&Request::SetRecovery { qpn: inner.queues.qpn, policy })? {
            Reply::Done => Ok(()),
            _ => Err(VerbsError::UnexpectedReply { request: "SetRecovery" }),
        }
    }

    /// Options of enhanced connection establishment (`ibv_query_ece`): what the QP can do; once its peer's were set, by
    /// [`QueuePair::set_ece`] or by the connection manager, what it does of them.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn query_ece(&self) -> Result<EceAttr, VerbsError> {
        self.call_ece(&Request::QueryEce { qpn: self.0.queues.qpn }, "QueryEce")
    }

    /// Has the QP do what its peer can do as well (`ibv_set_ece`), for applications that connect QPs themselves: each tells the other what
    /// [`QueuePair::query_ece`] says, and sets what it was told before RTR. Returns what the QP will do.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] (`EINVAL`) for the options of another vendor, or unless the QP is in RESET or INIT.
    pub fn set_ece(&self, ece: EceAttr) -> Result<EceAttr, VerbsError> {
        self.call_ece(&Request::SetEce { qpn: self.0.queues.qpn, ece }, "SetEce")
    }

    fn call_ece(&self, request: &Request, name: &'static str) -> Result<EceAttr, VerbsError> {
        match self.0.context().call(request)? {
            Reply::Ece(ece) => Ok(ece),
            _ => Err(VerbsError::UnexpectedReply { request: name }),
        }
    }

    /// The QP's attributes as the engine has them.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn query(&self) -> Result<QpAttr, VerbsError> {
        let inner = &*self.0;
        let mut state = lock(&inner.state);
        match inner.context().call(&Request::QueryQp { qpn: inner.queues.qpn })? {
            Reply::QpAttr(attr) => {
                *state = attr.qp_state;
                inner.queues.set_state(attr.qp_state);
                Ok(attr)
            }
            _ => Err(VerbsError::UnexpectedReply { request: "QueryQp" }),
        }
    }

    /// The QP's congestion control: algorithm, parameters, rate and window.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn congestion(&self) -> Result<CongestionReport, VerbsError> {
        let target = CongestionTarget::Qp(self.0.queues.qpn);
        self.call_congestion(&Request::ShowCongestion { target })
    }

    /// Gives the QP congestion control of its own, at once and in any state; a reset takes it away. `algorithm` as
    /// `docs/congestion.md` names it (`None` = the one that it has), parameters by name with their unit:
    /// `[("rate_limit", "5Gbps")]`. Returns what holds then.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] with `EINVAL` and a sentence that names what is wrong: then nothing is changed.
    pub fn set_congestion(
        &self,
        algorithm: Option<&str>,
        values: &[(&str, &str)],
    ) -> Result<CongestionReport, VerbsError> {
        let values = values.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let change = CongestionChange { algorithm: algorithm.map(str::to_owned), values };
        let target = CongestionTarget::Qp(self.0.queues.qpn);
        self.call_congestion(&Request::SetCongestion { target, change })
    }

    fn call_congestion(&self, request: &Request) -> Result<CongestionReport, VerbsError> {
        match self.0.context().call(request)? {
            Reply::Congestion(report) => Ok(*report),
            _ => Err(VerbsError::UnexpectedReply { request: "Congestion" }),
        }
    }

    /// Why the engine last moved this QP to ERR by itself: cause, sequence numbers, retries, path. `None` if it never did; a
    /// reset of the QP keeps it.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn post_mortem(&self) -> Result<Option<PostMortem>, VerbsError> {
        match self.0.context().call(&Request::WhyQp { qpn: self.0.queues.qpn }) {
            // Of a QP that had the number before, there is nothing to say here.
            Ok(Reply::PostMortem(found)) => Ok((!found.summary.destroyed).then_some(*found)),
            Ok(_) => Err(VerbsError::UnexpectedReply { request: "WhyQp" }),
            // ENOENT, or EPERM: another user's QP had the number before.
            Err(VerbsError::Refused { errno: 1 | 2, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Attaches a UD QP to a multicast group: it gets the group's datagrams that carry its Q_Key, those of other QPs of the
    /// same engine as well. A second time changes nothing. On an interface that is shared with the kernel, the kernel must let
    /// the group's frames in: see `docs/config.md`.
    ///
    /// # Errors
    /// [`VerbsError::Refused`]: `EINVAL` for another service or a GID that is no group, `ENOMEM` at the engine's limit.
    pub fn attach_mcast(&self, group: Gid) -> Result<(), VerbsError> {
        let request = Request::AttachMcast { qpn: self.0.queues.qpn, mgid: group.0, mlid: 0 };
        self.0.context().call(&request).map(drop)
    }

    /// Detaches it from a group.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] (`EINVAL`) if it is not attached.
    pub fn detach_mcast(&self, group: Gid) -> Result<(), VerbsError> {
        let request = Request::DetachMcast { qpn: self.0.queues.qpn, mgid: group.0, mlid: 0 };
        self.0.context().call(&request).map(drop)
    }

    /// The QP's number.
    #[inline]
    pub fn qpn(&self) -> Qpn {
        Qpn::new(self.0.queues.qpn)
    }

    /// Transport service.
    pub fn qp_type(&self) -> QpType {
        self.0.qp_type
    }

    /// Sizes granted when it was made.
    pub fn cap(&self) -> QpCap {
        self.0.cap
    }

    /// The state after the last [`QueuePair::modify`] or [`QueuePair::query`]. An engine moves a QP to ERR by itself: see
    /// [`QueuePair::is_in_error`].
    pub fn state(&self) -> QpState {
        *lock(&self.0.state)
    }

    /// True while the engine has the QP in ERR. No system call.
    pub fn is_in_error(&self) -> bool {
        self.0.queues.in_error(&self.0.block)
    }

    /// True if it takes its receives from an SRQ.
    pub(crate) fn has_srq(&self) -> bool {
        self.0.srq.is_some()
    }

    /// Send work requests that can be posted now, at least: a slot is free again once a completion has been polled that stands for it.
    pub fn send_free(&self) -> u32 {
        self.0.queues.send_free()
    }

    #[cfg(test)]
    pub(crate) fn queues(&self) -> &QpQueues {
        &self.0.queues
    }

    /// Where its sends complete.
    pub fn send_cq(&self) -> &CompletionQueue {
        &self.0.send_cq
    }

    /// Where its receives complete.
    pub fn recv_cq(&self) -> &CompletionQueue {
        &self.0.recv_cq
    }

    /// The session that it belongs to.
    pub fn context(&self) -> Context {
        Context(Arc::clone(self.0.context()))
    }

    /// Destroys it. Posted work requests vanish without completions, completions that were not polled are forgotten.
    /// Dropping the last handle does so too, without telling of a failure.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while other handles refer to it.
    pub fn destroy(self) -> Result<(), VerbsError> {
        let mut inner = Arc::into_inner(self.0).ok_or(VerbsError::Busy { object: "queue pair" })?;
        inner.release()
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("qpn", &self.qpn())
            .field("type", &self.0.qp_type)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl QpInner {
    fn context(&self) -> &Arc<ContextInner> {
        &self.remote.context
    }

    fn release(&mut self) -> Result<(), VerbsError> {
        if self.remote.is_released() || self.context().is_inherited() {
            return self.remote.release();
        }
        let context = Arc::clone(self.context());
        // Creation takes this lock too: no new QP gets our number before the CQs have forgotten it.
        let _order = lock(&context.rings);
        let done = self.remote.release();
        self.send_cq.0.ring.leave(self.queues.qpn);
        self.recv_cq.0.ring.leave(self.queues.qpn);
        done
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        let _ = self.release();
    }
}
