//! Enhanced connection establishment of ids whose QPs the program connects itself; the library does it for its own.

use std::ffi::{c_int, c_void};

use super::abi::*;
use super::connect::bytes;
use super::id::IdObject;
use crate::abi::*;
use crate::ece::{as_c, from_c};
use crate::entry;
use crate::events::lock;

/// REJ reason 35: a vendor's option is not supported (IBTA 12.6.7.2).
const REJECT_VENDOR_OPTION: u16 = 35;

/// As [`rdma_reject`](super::connect::rdma_reject), because of options that only some vendors have.
///
/// # Safety
/// As [`rdma_reject`](super::connect::rdma_reject).
#[unsafe(export_name = "ferroce_rdma_reject_ece")]
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let (_, end) = unsafe { IdObject::of(id) }?.end()?;
        // SAFETY: the caller's promise.
        end.reject_because(REJECT_VENDOR_OPTION, &unsafe { bytes(private_data, private_data_len) })?;
        Ok(0)
    })
}

/// What the next request or acceptance offers the peer: what `ibv_query_ece` says of a QP that the id does not have.
///
/// # Errors
/// `EINVAL` if the id has a QP, whose options the library offers, and for options of nobody.
///
/// # Safety
/// `id` is an id of ours, `ece` may be read.
#[unsafe(export_name = "ferroce_rdma_set_local_ece")]
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        // SAFETY: the caller's promise.
        let ece = from_c(unsafe { ece.as_ref() })?;
        if object.has_qp() || ece.vendor_id == 0 {
            return Err(entry::INVALID);
        }
        object.set_local_ece(ece);
        Ok(0)
    })
}

/// What the peer offers, or what it answered: for `ibv_set_ece`. Vendor 0 if it knows nothing of this, or has not spoken yet.
///
/// # Errors
/// `EINVAL` if the id has a QP: the library has set its options.
///
/// # Safety
/// `id` is an id of ours, `ece` may be written.
#[unsafe(export_name = "ferroce_rdma_get_remote_ece")]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        // SAFETY: the caller's promise.
        let ece = unsafe { ece.as_mut() }.ok_or(entry::INVALID)?;
        if object.has_qp() {
            return Err(entry::INVALID);
        }
        *ece = as_c(lock(&object.state).remote_ece);
        Ok(0)
    })
}
