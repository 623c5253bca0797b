//! Memory windows.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::ptr::NonNull;

use ferroce::{AccessFlags, MemoryWindow, MwBind, MwType, SendWr};

use crate::abi::*;
use crate::entry::{self, Failure};
use crate::events::InUse;
use crate::memory::PdObject;
use crate::post::send_flags;
use crate::qp::QpObject;

/// A memory window.
#[repr(C)]
pub(crate) struct MwObject {
    /// The program reads and writes it whenever it likes.
    abi: UnsafeCell<ibv_mw>,
    pub(crate) window: MemoryWindow,
    _pd: InUse,
}

impl MwObject {
    /// The object of a window.
    ///
    /// # Safety
    /// `mw` is a window of ours that lives as long as the reference is used, or NULL.
    pub(crate) unsafe fn of<'a>(mw: *mut ibv_mw) -> Result<&'a Self, Failure> {
        // SAFETY: the caller's promise.
        unsafe { mw.cast::<Self>().as_ref() }.ok_or(entry::INVALID)
    }
}

/// What is to be bound.
///
/// # Safety
/// `mr` is a region of ours, or NULL.
pub(crate) unsafe fn bind_of(mr: *mut ibv_mr, addr: u64, length: u64, access: c_uint) -> Result<MwBind, Failure> {
    // SAFETY: the caller's promise.
    let lkey = match unsafe { mr.as_ref() } {
        Some(mr) => mr.lkey,
        None if length == 0 => 0,
        None => return Err(entry::INVALID),
    };
    Ok(MwBind { lkey, addr, length, access: AccessFlags(access) })
}

/// A window of type 1 or 2.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    entry::pointer(|| {
        // SAFETY: the caller's promise.
        let domain = unsafe { PdObject::of(pd) }?;
        let mw_type = match kind {
            1 => MwType::Type1,
            2 => MwType::Type2,
            _ => return Err(entry::INVALID),
        };
        let window = domain.domain.alloc_mw(mw_type)?;
        let abi = ibv_mw { context: domain.context(), pd, rkey: window.rkey(), handle: window.rkey(), type_: kind };
        let object = MwObject { abi: UnsafeCell::new(abi), window, _pd: domain.in_use.clone() };
        Ok(Box::into_raw(Box::new(object)).cast())
    })
}

/// Binds a window of type 1, and gives it a new key. The header has checked its type.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp) }?;
        // SAFETY: the caller's promise.
        let window = unsafe { MwObject::of(mw) }?;
        // SAFETY: the caller's structure.
        let asked = unsafe { bind.as_ref() }.ok_or(entry::INVALID)?;
        // SAFETY: the caller's promise.
        let bind = unsafe { bind_of(asked.mr, asked.addr, asked.length, asked.mw_access_flags) }?;
        let rkey = window.window.next_rkey();
        let request = SendWr::bind_mw(asked.wr_id, &window.window, rkey, &bind);
        object.queues()?.post_send(&request.with_flags(send_flags(asked.send_flags)))?;
        // SAFETY: a field of our own object, which the program only reads.
        unsafe { (*window.abi.get()).rkey = rkey };
        Ok(())
    })
}

/// Frees a window, bound or not.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    entry::status(|| {
        let object = NonNull::new(mw.cast::<MwObject>()).ok_or(entry::INVALID)?;
        // SAFETY: it was made by `Box::into_raw`, and the program gives it back.
        let object = unsafe { Box::from_raw(object.as_ptr()) };
        Ok(object.window.dealloc()?)
    })
}
