//! Enhanced connection establishment: what QPs of two of our devices can do beyond the specification, for programs that tell each
//! other themselves.

use std::ffi::c_int;

use ferroce::EceAttr;

use crate::abi::*;
use crate::entry::{self, Failure};
use crate::qp::QpObject;

/// Options in our words.
///
/// # Errors
/// `EINVAL` for none, and for fields that we do not know.
pub(crate) fn from_c(ece: Option<&ibv_ece>) -> Result<EceAttr, Failure> {
    match ece {
        Some(&ibv_ece { vendor_id, options, comp_mask: 0 }) => Ok(EceAttr { vendor_id, options }),
        _ => Err(entry::INVALID),
    }
}

/// Options in C's words.
pub(crate) const fn as_c(EceAttr { vendor_id, options }: EceAttr) -> ibv_ece {
    ibv_ece { vendor_id, options, comp_mask: 0 }
}

/// What the QP can do, for its peer's [`ibv_set_ece`]; once its own were set, what it does of them.
///
/// # Errors
/// `EOPNOTSUPP` for a QP of an XRC domain that receives.
///
/// # Safety
/// `qp` is a QP of ours, `ece` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp) }?;
        // SAFETY: the caller's promise.
        let ece = unsafe { ece.as_mut() }.ok_or(entry::INVALID)?;
        *ece = as_c(object.queues().map_err(|_| entry::NOT_OFFERED)?.query_ece()?);
        Ok(())
    })
}

/// Has the QP do what its peer can do as well, by the peer's [`ibv_query_ece`]; what it will do is written back. In RESET or INIT.
///
/// # Errors
/// `EOPNOTSUPP` for vendor 0, which is a peer without options, and for a QP of an XRC domain that receives; `EINVAL` for the
/// options of another vendor, unknown fields, and in other states.
///
/// # Safety
/// `qp` is a QP of ours, `ece` may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp) }?;
        // SAFETY: the caller's promise.
        let ece = unsafe { ece.as_mut() }.ok_or(entry::INVALID)?;
        let asked = from_c(Some(ece))?;
        if asked.vendor_id == 0 {
            return Err(entry::NOT_OFFERED);
        }
        *ece = as_c(object.queues().map_err(|_| entry::NOT_OFFERED)?.set_ece(asked)?);
        Ok(())
    })
}
