//! Domains of extended reliable connections, and the QPs in them that receive.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ferroce::{QpType, Qpn, XrcDomain, XrcReceiver, XrcdInit};
use nix::fcntl::OFlag;

use crate::abi::*;
use crate::context::{ContextObject, Session};
use crate::entry::{self, Failure};
use crate::events::InUse;
use crate::qp::{Handle, Made};

/// A domain.
#[repr(C)]
pub(crate) struct XrcdObject {
    abi: ibv_xrcd,
    pub(crate) domain: XrcDomain,
    session: Arc<Session>,
    pub(crate) in_use: InUse,
}

impl XrcdObject {
    /// The object of a domain.
    ///
    /// # Safety
    /// `xrcd` is a domain of ours that lives as long as the reference is used, or NULL.
    pub(crate) unsafe fn of<'a>(xrcd: *mut ibv_xrcd) -> Result<&'a Self, Failure> {
        // SAFETY: the caller's promise; domains are never changed.
        unsafe { xrcd.cast::<Self>().as_ref() }.ok_or(entry::INVALID)
    }
}

/// Opens a domain: that of a file, or (`fd` -1, with `O_CREAT`) a new one that nobody shares.
pub(crate) unsafe extern "C" fn open_xrcd(context: *mut ibv_context, init: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
    /// `IBV_XRCD_INIT_ATTR_FD` and `_OFLAGS`: both are demanded.
    const FIELDS: u32 = 3;
    entry::pointer(|| {
        // SAFETY: the caller's structure.
        let &ibv_xrcd_init_attr { comp_mask, fd, oflags } = unsafe { init.as_ref() }.ok_or(entry::INVALID)?;
        let flags = OFlag::from_bits_retain(oflags);
        if comp_mask & !FIELDS != 0 {
            return Err(entry::NOT_OFFERED);
        }
        let known = OFlag::O_CREAT | OFlag::O_EXCL;
        let create = flags.contains(OFlag::O_CREAT);
        if comp_mask != FIELDS || !known.contains(flags) || fd < -1 || (fd == -1 && !create) {
            return Err(entry::INVALID);
        }
        // SAFETY: the caller's promise.
        let session = unsafe { ContextObject::session(context) }?;
        // SAFETY: the caller's descriptor, open for the time of this call; one that is not fails the sending of it.
        let file = (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) });
        let domain = session.context.open_xrcd(&XrcdInit { file, create, exclusive: flags.contains(OFlag::O_EXCL) })?;
        let object = XrcdObject { abi: ibv_xrcd { context }, domain, session, in_use: InUse::default() };
        Ok(Box::into_raw(Box::new(object)).cast())
    })
}

/// Closes a domain: `EBUSY` while SRQs or QPs of the program are in it.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { XrcdObject::of(xrcd) }?;
        if !object.in_use.by_nobody() {
            return Err(entry::BUSY);
        }
        // SAFETY: it was made by `Box::into_raw`, and the program gives it back.
        let object = unsafe { Box::from_raw(xrcd.cast::<XrcdObject>()) };
        Ok(object.domain.close()?)
    })
}

/// Gives the program a QP that receives. It has no domain of protection and no queues: the SRQs have.
fn publish(xrcd: &XrcdObject, receiver: XrcReceiver, qp_context: *mut c_void) -> *mut ibv_qp {
    let kind = QpType::XrcRecv;
    let uses = [Some(xrcd.in_use.clone()), None, None, None];
    let made = Made { pd: ptr::null_mut(), handle: Handle::Receiver(receiver), kind, builder: None, uses };
    let init = ibv_qp_init_attr {
        qp_context,
        send_cq: ptr::null_mut(),
        recv_cq: ptr::null_mut(),
        srq: ptr::null_mut(),
        cap: ibv_qp_cap::default(),
        qp_type: kind.code().into(),
        sq_sig_all: 0,
    };
    made.publish(xrcd.abi.context, &xrcd.session, &init)
}

/// Makes a QP that receives for the SRQs of a domain.
///
/// # Safety
/// `xrcd` is a domain of ours or NULL, of the open context `context`.
pub(crate) unsafe fn create_receiver(
    context: *mut ibv_context,
    xrcd: *mut ibv_xrcd,
    qp_context: *mut c_void,
) -> Result<*mut ibv_qp, Failure> {
    // SAFETY: the caller's promise.
    let object = unsafe { XrcdObject::of(xrcd) }?;
    if object.abi.context != context {
        return Err(entry::INVALID);
    }
    Ok(publish(object, object.domain.create_receiver()?, qp_context))
}

/// Opens such a QP that another session of the domain has made.
pub(crate) unsafe extern "C" fn open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    const NUM: u32 = 1;
    const XRCD: u32 = 2;
    const CONTEXT: u32 = 4;
    const TYPE: u32 = 8;
    const DEMANDED: u32 = NUM | XRCD | TYPE;
    entry::pointer(|| {
        // SAFETY: the caller's structure.
        let attr = unsafe { attr.as_ref() }.ok_or(entry::INVALID)?;
        if attr.comp_mask & !(DEMANDED | CONTEXT) != 0 {
            return Err(entry::NOT_OFFERED);
        }
        if attr.comp_mask & DEMANDED != DEMANDED || attr.qp_type != u32::from(QpType::XrcRecv.code()) {
            return Err(entry::INVALID);
        }
        // SAFETY: the caller's promise.
        let object = unsafe { XrcdObject::of(attr.xrcd) }?;
        if object.abi.context != context {
            return Err(entry::INVALID);
        }
        let qp_context = NonNull::new(attr.qp_context)
            .filter(|_| attr.comp_mask & CONTEXT != 0)
            .map_or(ptr::null_mut(), NonNull::as_ptr);
        Ok(publish(object, object.domain.open_receiver(Qpn::new(attr.qp_num))?, qp_context))
    })
}
