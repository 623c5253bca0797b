//! Queue pairs: making, changing, asking, destroying.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use ferroce::cm::CmId;
use ferroce::{AccessFlags, AhAttr, Gid, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType, QueuePair, XrcReceiver};
use nix::libc;

use crate::abi::*;
use crate::builder::{self, Builder};
use crate::context::Session;
use crate::cq::{CqObject, priority_of};
use crate::entry::{self, Failure};
use crate::events::{InUse, Unacknowledged, lock};
use crate::memory::PdObject;
use crate::srq::SrqObject;
use crate::xrc;

/// The connection manager's id that has a QP, for as long as both live.
pub(crate) type IdLink = Arc<Mutex<Option<CmId>>>;

/// A QP of either kind.
pub(crate) enum Handle {
    /// It has queues.
    Queues(QueuePair),
    /// It receives for the SRQs of an XRC domain.
    Receiver(XrcReceiver),
}

/// A queue pair.
#[repr(C)]
pub(crate) struct QpObject {
    /// The program reads and writes it whenever it likes.
    abi: UnsafeCell<ibv_qp_ex>,
    handle: Handle,
    pub(crate) kind: QpType,
    /// Where work requests are built call by call, if the QP was made for that.
    pub(crate) builder: Option<Builder>,
    sq_sig_all: bool,
    session: Arc<Session>,
    pub(crate) events: Unacknowledged,
    pub(crate) id: Mutex<Option<IdLink>>,
    _uses: [Option<InUse>; 4],
}

impl QpObject {
    /// The object of a QP.
    ///
    /// # Safety
    /// `qp` is a QP of ours that lives as long as the reference is used, or NULL.
    pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> Result<&'a Self, Failure> {
        // SAFETY: the caller's promise.
        unsafe { qp.cast::<Self>().as_ref() }.ok_or(entry::INVALID)
    }

    /// Takes it out of the tables, and waits until its events are acknowledged. Not for a forked child, which sees no events.
    fn withdraw(&self) {
        // SAFETY: a field that never changes.
        self.session.qps.remove(unsafe { (*self.abi.get()).qp_base.qp_num });
        self.events.wait();
        let link = lock(&self.id).take();
        if let Some(id) = link.and_then(|link| lock(&link).take()) {
            id.take_qp();
        }
    }

    /// The QP's queues: `EINVAL` if it has none, since it receives for SRQs.
    #[inline]
    pub(crate) fn queues(&self) -> Result<&QueuePair, Failure> {
        match &self.handle {
            Handle::Queues(qp) => Ok(qp),
            Handle::Receiver(_) => Err(entry::INVALID),
        }
    }

    /// Writes the state where the program looks for it.
    pub(crate) fn note_state(&self, state: QpState) {
        // SAFETY: a field of our own object, which the program only reads.
        unsafe { (*self.abi.get()).qp_base.state = c_uint::from(state.code()) };
    }
}

/// Makes a QP that has queues, and writes back the sizes granted.
///
/// # Safety
/// `pd` is a domain of ours, and so are the queues that `init` names.
unsafe fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    builder: Option<Builder>,
) -> Result<*mut ibv_qp, Failure> {
    // SAFETY: the caller's promise.
    let domain = unsafe { PdObject::of(pd) }?;
    let kind = u8::try_from(init.qp_type).ok().and_then(QpType::from_code).filter(|&kind| kind != QpType::XrcRecv);
    let kind = kind.ok_or(entry::NOT_OFFERED)?;
    // SAFETY: the caller's promise.
    let send_cq = unsafe { CqObject::of(init.send_cq) }?;
    // One that sends to SRQs has no receives, and need not say where they complete.
    let recv_cq = if kind == QpType::XrcSend { init.send_cq } else { init.recv_cq };
    // SAFETY: the caller's promise.
    let recv_cq = unsafe { CqObject::of(recv_cq) }?;
    // SAFETY: the caller's promise.
    let srq = if init.srq.is_null() { None } else { Some(unsafe { SrqObject::of(init.srq) }?) };
    if kind == QpType::XrcSend {
        (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
    }
    let ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = init.cap;
    let qp = domain.domain.create_qp(&QpInit {
        qp_type: kind,
        send_cq: &send_cq.cq,
        recv_cq: &recv_cq.cq,
        srq: srq.map(|srq| &srq.srq),
        cap: QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data },
        sq_sig_all: init.sq_sig_all != 0,
    })?;
    init.cap = cap_of(qp.cap());
    let uses = [Some(&domain.in_use), Some(&send_cq.in_use), Some(&recv_cq.in_use), srq.map(|srq| &srq.in_use)];
    let made = Made { pd, handle: Handle::Queues(qp), kind, builder, uses: uses.map(Option::<&InUse>::cloned) };
    Ok(made.publish(domain.context(), &domain.session, init))
}

/// A QP that was made, before the program gets it.
pub(crate) struct Made {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: Handle,
    pub(crate) kind: QpType,
    pub(crate) builder: Option<Builder>,
    pub(crate) uses: [Option<InUse>; 4],
}

impl Made {
    /// Makes its object, which events find from now on.
    pub(crate) fn publish(
        self,
        context: *mut ibv_context,
        session: &Arc<Session>,
        init: &ibv_qp_init_attr,
    ) -> *mut ibv_qp {
        let Self { pd, handle, kind, builder, uses } = self;
        let qpn = match &handle {
            Handle::Queues(qp) => qp.qpn(),
            Handle::Receiver(receiver) => receiver.qpn(),
        };
        let qpn = qpn.value();
        let abi = builder::functions(ibv_qp {
            context,
            qp_context: init.qp_context,
            pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            handle: qpn,
            qp_num: qpn,
            state: c_uint::from(QpState::Reset.code()),
            qp_type: c_uint::from(kind.code()),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        });
        let object = NonNull::from(Box::leak(Box::new(QpObject {
            abi: UnsafeCell::new(abi),
            handle,
            kind,
            builder,
            sq_sig_all: init.sq_sig_all != 0,
            session: Arc::clone(session),
            events: Unacknowledged::default(),
            id: Mutex::default(),
            _uses: uses,
        })));
        session.qps.add(qpn, object);
        object.as_ptr().cast()
    }
}

const fn cap_of(cap: QpCap) -> ibv_qp_cap {
    let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = cap;
    ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
}

/// A QP in RESET; `init.cap` gets the sizes granted.
///
/// # Safety
/// `pd` and the queues are ours, `init` may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    entry::pointer(|| {
        // SAFETY: the caller's promise.
        let init = unsafe { init.as_mut() }.ok_or(entry::INVALID)?;
        // SAFETY: the caller's promise.
        unsafe { create(pd, init, None) }
    })
}

/// As [`ibv_create_qp`]; with `send_ops_flags` for work requests that are built call by call, or one that receives for an XRC domain.
pub(crate) unsafe extern "C" fn create_qp_ex(context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    const PD: u32 = 1;
    const XRCD: u32 = 1 << 1;
    const CREATE_FLAGS: u32 = 1 << 2;
    const SEND_OPS_FLAGS: u32 = 1 << 6;
    entry::pointer(|| {
        // SAFETY: the caller's structure.
        let init = unsafe { init.as_mut() }.ok_or(entry::INVALID)?;
        let has = |bit| init.comp_mask & bit != 0;
        let flags = if has(CREATE_FLAGS) { init.create_flags } else { 0 };
        if init.comp_mask & !(PD | XRCD | CREATE_FLAGS | SEND_OPS_FLAGS) != 0 || flags != 0 {
            return Err(entry::NOT_OFFERED);
        }
        let ibv_qp_init_attr_ex { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, .. } = *init;
        let mut basic = ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all };
        if qp_type == c_uint::from(QpType::XrcRecv.code()) {
            let xrcd = if has(XRCD) { init.xrcd } else { std::ptr::null_mut() };
            // SAFETY: the caller's promise.
            return unsafe { xrc::create_receiver(context, xrcd, qp_context) };
        }
        if !has(PD) {
            return Err(entry::INVALID);
        }
        let builder = if has(SEND_OPS_FLAGS) { Some(Builder::new(init.send_ops_flags)?) } else { None };
        // SAFETY: the caller's promise.
        let made = unsafe { create(init.pd, &mut basic, builder) }?;
        init.cap = basic.cap;
        Ok(made)
    })
}

/// The attributes in our words, those that `mask` names checked for their width.
fn attr_of(attr: &ibv_qp_attr, mask: QpAttrMask) -> Result<QpAttr, Failure> {
    let state = |value: c_uint| u8::try_from(value).ok().and_then(QpState::from_code).ok_or(entry::INVALID);
    let byte = |bit, value: c_uint| match u8::try_from(value) {
        Ok(value) => Ok(value),
        // What is not meant may be anything.
        Err(_) if !mask.contains(bit) => Ok(0),
        Err(_) => Err(entry::INVALID),
    };
    Ok(QpAttr {
        qp_state: if mask.contains(QpAttrMask::STATE) { state(attr.qp_state)? } else { QpState::Reset },
        cur_qp_state: if mask.contains(QpAttrMask::CUR_STATE) { state(attr.cur_qp_state)? } else { QpState::Reset },
        path_mtu: byte(QpAttrMask::PATH_MTU, attr.path_mtu)?,
        path_mig_state: byte(QpAttrMask::PATH_MIG_STATE, attr.path_mig_state)?,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: AccessFlags(attr.qp_access_flags),
        cap: QpCap::default(),
        ah_attr: path_of(&attr.ah_attr),
        pkey_index: attr.pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify,
        sq_draining: 0,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        rate_limit: attr.rate_limit,
    })
}

/// A path in our words. What only InfiniBand has (LIDs, path bits) is left out.
pub(crate) fn path_of(attr: &ibv_ah_attr) -> AhAttr {
    AhAttr {
        dgid: Gid(attr.grh.dgid.raw),
        sgid_index: attr.grh.sgid_index,
        // The header has 20 bits for it. UCX sets all 32, and adapters take what fits.
        flow_label: attr.grh.flow_label & 0xf_ffff,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        sl: priority_of(attr.sl),
        static_rate: attr.static_rate,
        port_num: attr.port_num,
    }
}

/// A path in C's words.
pub(crate) fn path_as_c(path: &AhAttr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: path.dgid.0 },
            flow_label: path.flow_label,
            sgid_index: path.sgid_index,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        },
        sl: path.sl,
        static_rate: path.static_rate,
        is_global: 1,
        port_num: path.port_num,
        ..ibv_ah_attr::default()
    }
}

/// Changes the state and the attributes that `mask` names: all of them or none.
///
/// # Safety
/// `qp` is a QP of ours, `attr` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp) }?;
        // SAFETY: the caller's promise.
        let attr = unsafe { attr.as_ref() }.ok_or(entry::INVALID)?;
        let mask = QpAttrMask(mask.cast_unsigned());
        if mask.contains(QpAttrMask::AV) && attr.ah_attr.is_global == 0 {
            // RoCE has no path without a GRH.
            return Err(entry::INVALID);
        }
        let attr = attr_of(attr, mask)?;
        let state = match &object.handle {
            Handle::Queues(qp) => qp.modify(&attr, mask)?,
            Handle::Receiver(receiver) => receiver.modify(&attr, mask)?,
        };
        object.note_state(state);
        Ok(())
    })
}

/// Attributes in C's words.
pub(crate) fn attr_as_c(found: &QpAttr, cap: ibv_qp_cap) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: c_uint::from(found.qp_state.code()),
        cur_qp_state: c_uint::from(found.qp_state.code()),
        path_mtu: c_uint::from(found.path_mtu),
        path_mig_state: c_uint::from(found.path_mig_state),
        qkey: found.qkey,
        rq_psn: found.rq_psn,
        sq_psn: found.sq_psn,
        dest_qp_num: found.dest_qp_num,
        qp_access_flags: found.qp_access_flags.0,
        cap,
        ah_attr: path_as_c(&found.ah_attr),
        pkey_index: found.pkey_index,
        en_sqd_async_notify: found.en_sqd_async_notify,
        sq_draining: found.sq_draining,
        max_rd_atomic: found.max_rd_atomic,
        max_dest_rd_atomic: found.max_dest_rd_atomic,
        min_rnr_timer: found.min_rnr_timer,
        port_num: found.port_num,
        timeout: found.timeout,
        retry_cnt: found.retry_cnt,
        rnr_retry: found.rnr_retry,
        rate_limit: found.rate_limit,
        ..ibv_qp_attr::default()
    }
}

/// All attributes of a QP, and what it was made of.
///
/// # Safety
/// `qp` is a QP of ours, `attr` and `init` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp) }?;
        let (found, cap) = match &object.handle {
            Handle::Queues(qp) => (qp.query()?, cap_of(qp.cap())),
            Handle::Receiver(receiver) => (receiver.query()?, ibv_qp_cap::default()),
        };
        object.note_state(found.qp_state);
        // SAFETY: the caller's promise.
        unsafe { attr.write(attr_as_c(&found, cap)) };
        // SAFETY: these fields never change.
        let ibv_qp { qp_context, send_cq, recv_cq, srq, qp_type, .. } = unsafe { &*qp };
        let sq_sig_all = c_int::from(object.sq_sig_all);
        let made_of = ibv_qp_init_attr {
            qp_context: *qp_context,
            send_cq: *send_cq,
            recv_cq: *recv_cq,
            srq: *srq,
            cap,
            qp_type: *qp_type,
            sq_sig_all,
        };
        // SAFETY: the caller's promise.
        unsafe { init.write(made_of) };
        Ok(())
    })
}

/// Destroys a QP. Waits until all of its events are acknowledged.
///
/// # Safety
/// `qp` is a QP of ours that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp) }?;
        let inherited = object.session.context.is_inherited();
        if !inherited {
            object.withdraw();
        }
        // SAFETY: it was made by `Box::leak`, the program gives it back, and no table that anybody looks into has it any more.
        let object = unsafe { Box::from_raw(qp.cast::<QpObject>()) };
        let QpObject { handle, builder, .. } = *object;
        drop(builder);
        if inherited {
            return Ok(());
        }
        match handle {
            Handle::Queues(qp) => qp.destroy()?,
            Handle::Receiver(receiver) => receiver.destroy()?,
        }
        Ok(())
    })
}

/// Whether data arrives in the order of its addresses: no promise is made.
#[unsafe(no_mangle)]
pub const extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: c_uint, _flags: u32) -> c_int {
    0
}
