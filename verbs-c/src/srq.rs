//! Shared receive queues.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use ferroce::{SharedReceiveQueue, SrqAttr};
use nix::libc;

use crate::abi::*;
use crate::context::Session;
use crate::cq::CqObject;
use crate::entry::{self, Failure};
use crate::events::{InUse, Unacknowledged};
use crate::memory::PdObject;
use crate::xrc::XrcdObject;

/// A shared receive queue.
#[repr(C)]
pub(crate) struct SrqObject {
    _abi: ibv_srq,
    pub(crate) srq: SharedReceiveQueue,
    session: Arc<Session>,
    pub(crate) in_use: InUse,
    pub(crate) events: Unacknowledged,
    _uses: [Option<InUse>; 3],
}

impl SrqObject {
    /// The object of an SRQ.
    ///
    /// # Safety
    /// `srq` is an SRQ of ours that lives as long as the reference is used, or NULL.
    pub(crate) unsafe fn of<'a>(srq: *mut ibv_srq) -> Result<&'a Self, Failure> {
        // SAFETY: the caller's promise.
        unsafe { srq.cast::<Self>().as_ref() }.ok_or(entry::INVALID)
    }
}

/// Where an SRQ of an XRC domain belongs, and where its receives complete.
type XrcPlace<'a> = (&'a XrcdObject, &'a CqObject);

/// Makes an SRQ and writes back what was granted.
///
/// # Safety
/// `pd` is a domain of ours.
unsafe fn create(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
    xrc: Option<XrcPlace<'_>>,
) -> Result<*mut ibv_srq, Failure> {
    // SAFETY: the caller's promise.
    let domain = unsafe { PdObject::of(pd) }?;
    let wanted = SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: 0 };
    let srq = match xrc {
        None => domain.domain.create_srq(None, wanted)?,
        Some((xrcd, cq)) => domain.domain.create_xrc_srq(&xrcd.domain, &cq.cq, wanted)?,
    };
    let granted = srq.attr();
    *attr = ibv_srq_attr { max_wr: granted.max_wr, max_sge: granted.max_sge, srq_limit: 0 };
    let number = srq.handle();
    let abi = ibv_srq {
        context,
        srq_context,
        pd,
        handle: number,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let session = Arc::clone(&domain.session);
    let (in_use, events) = (InUse::default(), Unacknowledged::default());
    let uses = [Some(&domain.in_use), xrc.map(|(xrcd, _)| &xrcd.in_use), xrc.map(|(_, cq)| &cq.in_use)];
    let uses = uses.map(Option::<&InUse>::cloned);
    let object = SrqObject { _abi: abi, srq, session: Arc::clone(&session), in_use, events, _uses: uses };
    let object = NonNull::from(Box::leak(Box::new(object)));
    session.srqs.add(number, object);
    Ok(object.as_ptr().cast())
}

/// A shared receive queue; `attr` gets the sizes granted.
///
/// # Safety
/// `pd` is a domain of ours, `init` may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    entry::pointer(|| {
        // SAFETY: the caller's promise.
        let init = unsafe { init.as_mut() }.ok_or(entry::INVALID)?;
        // SAFETY: the caller's promise.
        let context = unsafe { pd.as_ref() }.ok_or(entry::INVALID)?.context;
        // SAFETY: the caller's promise.
        unsafe { create(context, pd, init.srq_context, &mut init.attr, None) }
    })
}

/// An SRQ by the extended call: a basic one, or one of an XRC domain.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const TYPE: u32 = 1;
    const PD: u32 = 2;
    const XRCD: u32 = 4;
    const CQ: u32 = 8;
    const BASIC: c_uint = 0;
    const XRC: c_uint = 1;
    entry::pointer(|| {
        // SAFETY: the caller's structure.
        let init = unsafe { init.as_mut() }.ok_or(entry::INVALID)?;
        let kind = if init.comp_mask & TYPE != 0 { init.srq_type } else { BASIC };
        let needs = match kind {
            BASIC => PD,
            XRC => PD | XRCD | CQ,
            _ => return Err(entry::NOT_OFFERED),
        };
        if init.comp_mask & !(TYPE | PD | XRCD | CQ) != 0 {
            return Err(entry::NOT_OFFERED);
        }
        if init.comp_mask & needs != needs {
            return Err(entry::INVALID);
        }
        let xrc = if kind == XRC {
            // SAFETY: the caller's promise.
            let xrcd = unsafe { XrcdObject::of(init.xrcd) }?;
            // SAFETY: the caller's promise.
            Some((xrcd, unsafe { CqObject::of(init.cq) }?))
        } else {
            None
        };
        // SAFETY: the caller's promise.
        unsafe { create(context, init.pd, init.srq_context, &mut init.attr, xrc) }
    })
}

/// The number that messages name an SRQ of an XRC domain by; `EINVAL` for another.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let number = unsafe { SrqObject::of(srq) }?.srq.srqn().ok_or(entry::INVALID)?;
        // SAFETY: the caller's variable.
        unsafe { srq_num.write(number) };
        Ok(())
    })
}

/// Arms the limit event (mask 2). The size (mask 1) can't be changed.
///
/// # Safety
/// `srq` is an SRQ of ours, `attr` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    const LIMIT: c_int = 2;
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { SrqObject::of(srq) }?;
        // SAFETY: the caller's promise.
        let attr = unsafe { attr.as_ref() }.ok_or(entry::INVALID)?;
        match mask {
            LIMIT => Ok(object.srq.modify(attr.srq_limit)?),
            0 => Ok(()),
            _ => Err(entry::NOT_OFFERED),
        }
    })
}

/// Sizes, and the limit that is armed.
///
/// # Safety
/// `srq` is an SRQ of ours, `attr` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let SrqAttr { max_wr, max_sge, srq_limit } = unsafe { SrqObject::of(srq) }?.srq.query()?;
        // SAFETY: the caller's promise.
        unsafe { attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit }) };
        Ok(())
    })
}

/// Destroys an SRQ: `EBUSY` while a QP has it. Waits until all of its events are acknowledged.
///
/// # Safety
/// `srq` is an SRQ of ours that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { SrqObject::of(srq) }?;
        if !object.in_use.by_nobody() {
            return Err(entry::BUSY);
        }
        if !object.session.context.is_inherited() {
            object.session.srqs.remove(object.srq.handle());
            object.events.wait();
        }
        // SAFETY: it was made by `Box::leak`, the program gives it back, and no table that anybody looks into has it any more.
        let object = unsafe { Box::from_raw(srq.cast::<SrqObject>()) };
        Ok(object.srq.destroy()?)
    })
}
