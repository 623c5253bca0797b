//! Extended reliable connections: one connection of a process reaches all SRQs of a peer's XRC domain.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use shm::control::{Reply, Request};
use shm::ring::RecvPoster;

use crate::connect::{init_step, rtr_step};
use crate::context::{ContextInner, RemoteObject};
use crate::error::lock;
use crate::exchange::ConnectionInfo;
use crate::srq::{SrqInner, SrqQueue, XrcParts};
use crate::{
    CompletionQueue, ConnectAttr, Context, ProtectionDomain, Psn, QpAttr, QpAttrMask, QpState, QpType, Qpn, RemoteQp,
    SharedReceiveQueue, SrqAttr, VerbsError,
};

/// An XRC domain (`ibv_xrcd`): SRQs, and the QPs that receive for them ([`XrcReceiver`]). Processes of one user that open the
/// domain of the same file share it, so that a peer needs one connection to reach all of them. A cheap handle.
///
/// ```no_run
/// use ferroce::{ConnectAttr, Context, CqInit, QpInit, RecvWr, SendWr, SrqAttr, XrcdInit};
/// use ferroce::exchange::{ConnectionInfo, random_psn};
///
/// # fn example(context: &Context, there: &Context, sges: &[ferroce::Sge]) -> Result<(), Box<dyn std::error::Error>> {
/// // The end that receives.
/// let domain = context.open_xrcd(&XrcdInit::default())?;
/// let vector = Some(domain.comp_vector());
/// let cq = context.create_cq(&CqInit { cqe: 128, comp_vector: vector, ..CqInit::default() })?;
/// let srq = context.alloc_pd()?.create_xrc_srq(&domain, &cq, SrqAttr { max_wr: 64, max_sge: 1, srq_limit: 0 })?;
/// srq.post_recv(&RecvWr::new(1, sges))?;
/// let receiver = domain.create_receiver()?;
/// // The end that sends, in another process.
/// let send_cq = there.create_cq(&CqInit { cqe: 128, ..CqInit::default() })?;
/// let sender = there.alloc_pd()?.create_qp(&QpInit::xrc_send(&send_cq))?;
/// // Each tells the other about itself; the number of the SRQ as well.
/// let attr = ConnectAttr::default();
/// let (ours, theirs) = (receiver.connection_info(&attr)?, ConnectionInfo::new(&sender, random_psn(), &attr)?);
/// receiver.connect(&ours, &theirs, &attr)?;
/// ferroce::connect(&sender, &theirs, &ours, &attr)?;
/// let srqn = srq.srqn().expect("an SRQ of a domain has a number");
/// sender.post_send(&SendWr::send(2, &[]).to_srq(srqn).signaled())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct XrcDomain(Arc<XrcdInner>);

pub(crate) struct XrcdInner {
    remote: RemoteObject,
    xrcd: u32,
    shard: u8,
}

/// Which domain to open ([`Context::open_xrcd`], `ibv_xrcd_init_attr`).
#[derive(Clone, Copy, Debug, Default)]
pub struct XrcdInit<'a> {
    /// The file whose domain it is; `None` = a new one that nobody shares.
    pub file: Option<BorrowedFd<'a>>,
    /// `O_CREAT`: make it if the file has none.
    pub create: bool,
    /// `O_EXCL`: refuse if the file has one.
    pub exclusive: bool,
}

impl Context {
    /// Opens an XRC domain (`ibv_open_xrcd`).
    ///
    /// # Errors
    /// [`VerbsError::Refused`]: `EAGAIN` if the file has no domain and `create` is false, `EINVAL` if it has one and `exclusive`
    /// is true, `ENOMEM` at the limit.
    pub fn open_xrcd(&self, init: &XrcdInit<'_>) -> Result<XrcDomain, VerbsError> {
        let request = Request::OpenXrcd { create: init.create, exclusive: init.exclusive };
        let (reply, _) = self.0.call_with(&request, init.file.as_slice())?;
        let Reply::Xrcd { xrcd, shard } = reply else {
            return Err(VerbsError::UnexpectedReply { request: "OpenXrcd" });
        };
        let remote = RemoteObject::new(&self.0, Request::CloseXrcd { xrcd });
        Ok(XrcDomain(Arc::new(XrcdInner { remote, xrcd, shard })))
    }
}

impl XrcDomain {
    /// The `comp_vector` that CQs for its SRQs are made with ([`crate::CqInit::comp_vector`]).
    pub fn comp_vector(&self) -> u32 {
        self.0.shard.into()
    }

    /// Makes a QP that receives for all SRQs of the domain (`IBV_QPT_XRC_RECV`), in RESET.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] (`ENOMEM`) at the limit.
    pub fn create_receiver(&self) -> Result<XrcReceiver, VerbsError> {
        self.receiver(&Request::CreateXrcQp { xrcd: self.0.xrcd }, "CreateXrcQp")
    }

    /// Opens such a QP that another process of the domain has made (`ibv_open_qp`): it lives until all of them have destroyed
    /// it.
    ///
    /// # Errors
    /// [`VerbsError::Refused`]: `EINVAL` if the domain has no such QP or this session has it already, `ENOMEM` at the limit.
    pub fn open_receiver(&self, qpn: Qpn) -> Result<XrcReceiver, VerbsError> {
        self.receiver(&Request::OpenXrcQp { xrcd: self.0.xrcd, qpn: qpn.value() }, "OpenXrcQp")
    }

    fn receiver(&self, request: &Request, name: &'static str) -> Result<XrcReceiver, VerbsError> {
        let context = self.context();
        let Reply::XrcQp { qpn, .. } = context.call(request)? else {
            return Err(VerbsError::UnexpectedReply { request: name });
        };
        let remote = RemoteObject::new(context, Request::DestroyQp { qpn });
        Ok(XrcReceiver(Arc::new(ReceiverInner { remote, qpn, domain: self.clone() })))
    }

    fn context(&self) -> &Arc<ContextInner> {
        &self.0.remote.context
    }

    /// Closes it; the domain goes with the last handle of all processes. Dropping the last handle closes it too.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while SRQs, QPs or other handles refer to it.
    pub fn close(self) -> Result<(), VerbsError> {
        let mut inner = Arc::into_inner(self.0).ok_or(VerbsError::Busy { object: "XRC domain" })?;
        inner.remote.release()
    }
}

impl fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcDomain").field("xrcd", &self.0.xrcd).field("shard", &self.0.shard).finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// Makes a shared receive queue of an XRC domain (`ibv_create_srq_ex` with `IBV_SRQT_XRC`). Its receives complete on `cq`; its
    /// protection domain is also that of the regions which requests for it reach by RDMA.
    ///
    /// # Errors
    /// [`VerbsError::Refused`]: `EINVAL` for sizes beyond the device's or a CQ on another lcore ([`XrcDomain::comp_vector`]),
    /// `ENOMEM` at the client's limit.
    pub fn create_xrc_srq(
        &self,
        domain: &XrcDomain,
        cq: &CompletionQueue,
        attr: SrqAttr,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        const REQUEST: &str = "CreateXrcSrq";
        let context = self.0.context();
        let mut rings = lock(&context.rings);
        let request = Request::CreateXrcSrq { pd: self.0.pd, xrcd: domain.0.xrcd, cq: cq.handle(), attr };
        let (reply, fds) = context.call_with(&request, &[])?;
        let Reply::XrcSrq { srq, srqn, attr, shape, block } = reply else {
            return Err(VerbsError::UnexpectedReply { request: REQUEST });
        };
        let remote = RemoteObject::new(context, Request::DestroySrq { srq });
        rings.attach(&mut [block], &mut fds.into_iter(), REQUEST)?;
        let poster = RecvPoster::new_srq(&rings.block(block, REQUEST)?, shape, attr.max_wr);
        let poster = poster.map_err(|_| VerbsError::UnexpectedReply { request: REQUEST })?;
        let queue = Arc::new(SrqQueue::new(poster));
        cq.0.ring.join_srq(srq, &queue);
        let xrc = XrcParts { srqn, cq: cq.clone(), _domain: domain.clone() };
        Ok(SharedReceiveQueue(Arc::new(SrqInner::new(remote, srq, attr, queue, &self.0, Some(xrc)))))
    }
}

/// A QP of an XRC domain that receives (`IBV_QPT_XRC_RECV`). It has no queues: receives come from the SRQ that each message
/// names, and complete on that SRQ's CQ with this QP's number. A cheap handle.
#[derive(Clone)]
pub struct XrcReceiver(Arc<ReceiverInner>);

struct ReceiverInner {
    // First: a QP goes before its domain.
    remote: RemoteObject,
    qpn: u32,
    domain: XrcDomain,
}

impl XrcReceiver {
    /// The QP's number.
    pub fn qpn(&self) -> Qpn {
        Qpn::new(self.0.qpn)
    }

    /// The domain that it is of.
    pub fn domain(&self) -> &XrcDomain {
        &self.0.domain
    }

    /// What to tell the peer that sends. Numbers of SRQs are told besides.
    ///
    /// # Errors
    /// As [`ConnectionInfo::new`].
    pub fn connection_info(&self, attr: &ConnectAttr) -> Result<ConnectionInfo, VerbsError> {
        // It sends no requests: nobody ever sees its first PSN.
        let psn = Psn::new(0);
        ConnectionInfo::of(&Context(Arc::clone(self.0.domain.context())), self.qpn(), psn, attr)
    }

    /// Takes it from RESET to RTR, ready to receive from this peer. The path MTU is the smaller of the two sides'.
    ///
    /// # Errors
    /// As [`XrcReceiver::modify`].
    pub fn connect(
        &self,
        local: &ConnectionInfo,
        remote: &ConnectionInfo,
        attr: &ConnectAttr,
    ) -> Result<(), VerbsError> {
        let path_mtu = local.path_mtu.min(remote.path_mtu);
        let peer = RemoteQp { qpn: remote.qpn, psn: remote.psn, gid: remote.gid, path_mtu };
        for (attr, mask) in [init_step(attr.port_num, attr.access), rtr_step(QpType::XrcRecv, &peer, attr)] {
            self.modify(&attr, mask)?;
        }
        Ok(())
    }

    /// Changes the state and attributes that `mask` names: all of them or none. Returns the new state.
    ///
    /// # Errors
    /// As [`crate::QueuePair::modify`].
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<QpState, VerbsError> {
        match self.0.remote.context.call(&Request::ModifyQp { qpn: self.0.qpn, attr: *attr, mask })? {
            Reply::QpModified { state } => Ok(state),
            _ => Err(VerbsError::UnexpectedReply { request: "ModifyQp" }),
        }
    }

    /// The QP's attributes as the engine has them, its state among them.
    ///
    /// # Errors
    /// [`VerbsError::Call`].
    pub fn query(&self) -> Result<QpAttr, VerbsError> {
        match self.0.remote.context.call(&Request::QueryQp { qpn: self.0.qpn })? {
            Reply::QpAttr(attr) => Ok(attr),
            _ => Err(VerbsError::UnexpectedReply { request: "QueryQp" }),
        }
    }

    /// Destroys it, unless other processes have it as well. Dropping the last handle does so too.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while other handles refer to it.
    pub fn destroy(self) -> Result<(), VerbsError> {
        let mut inner = Arc::into_inner(self.0).ok_or(VerbsError::Busy { object: "XRC receiver" })?;
        inner.remote.release()
    }
}

impl fmt::Debug for XrcReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcReceiver").field("qpn", &self.qpn()).finish_non_exhaustive()
    }
}
