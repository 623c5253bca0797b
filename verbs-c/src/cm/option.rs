//! Options of ids.

use std::ffi::{c_int, c_void};

use nix::errno::Errno;

use super::abi::rdma_cm_id;
use super::id::IdObject;
use crate::entry::{self, Failure};

/// `RDMA_OPTION_ID`: the only level that is offered.
const LEVEL_ID: c_int = 0;
/// `RDMA_OPTION_ID_*`.
const TOS: c_int = 0;
const REUSEADDR: c_int = 1;
const AFONLY: c_int = 2;
const ACK_TIMEOUT: c_int = 3;
/// Largest exponent of a timeout, 5 bits.
const ACK_TIMEOUT_MAX: u8 = 31;

/// Sets an option:
///
/// * `RDMA_OPTION_ID_TOS`: the traffic class of the id's QP.
/// * `RDMA_OPTION_ID_ACK_TIMEOUT`: exponent of its time-out, 4.096 us * 2^n.
/// * `RDMA_OPTION_ID_REUSEADDR`: succeeds; a port is free as soon as its id is destroyed anyway.
/// * `RDMA_OPTION_ID_AFONLY`: off only; an id on all IPv6 addresses is on all IPv4 ones too.
///
/// # Errors
/// `ENOSYS` for others, and to ask for `AFONLY`; `EINVAL` for a value that is none.
///
/// # Safety
/// `id` is an id of ours, `value` has `length` bytes.
#[unsafe(export_name = "ferroce_rdma_set_option")]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        if value.is_null() {
            return Err(entry::INVALID);
        }
        let byte = || -> Result<u8, Failure> {
            // SAFETY: there is a byte, where the caller says so.
            if length == 1 { Ok(unsafe { value.cast::<u8>().read() }) } else { Err(entry::INVALID) }
        };
        let flag = || -> Result<bool, Failure> {
            let is_int = length == size_of::<c_int>();
            // SAFETY: there is a number, where the caller says so.
            if is_int { Ok(unsafe { value.cast::<c_int>().read_unaligned() } != 0) } else { Err(entry::INVALID) }
        };
        match (level, option) {
            (LEVEL_ID, TOS) => object.set_path(Some(byte()?), None),
            (LEVEL_ID, ACK_TIMEOUT) => match byte()? {
                timeout if timeout <= ACK_TIMEOUT_MAX => object.set_path(None, Some(timeout)),
                _ => return Err(entry::INVALID),
            },
            (LEVEL_ID, REUSEADDR) => drop(flag()?),
            (LEVEL_ID, AFONLY) if !flag()? => {}
            _ => return Err(Errno::ENOSYS.into()),
        }
        Ok(0)
    })
}
