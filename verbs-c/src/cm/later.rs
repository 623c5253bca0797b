//! Calls of later headers: not offered.

use std::ffi::{c_char, c_int, c_uint};

use super::abi::*;
use crate::entry;

/// Addresses by a service of the subnet, while the program goes on: not offered, -1 and `EOPNOTSUPP`. `rdma_getaddrinfo` waits.
#[unsafe(export_name = "ferroce_rdma_resolve_addrinfo")]
pub extern "C" fn rdma_resolve_addrinfo(
    _id: *mut rdma_cm_id,
    _node: *const c_char,
    _service: *const c_char,
    _hints: *const rdma_addrinfo,
) -> c_int {
    entry::number(|| Err(entry::NOT_OFFERED))
}

/// What [`rdma_resolve_addrinfo`] found: it never finds anything.
#[unsafe(export_name = "ferroce_rdma_query_addrinfo")]
pub extern "C" fn rdma_query_addrinfo(_id: *mut rdma_cm_id, _info: *mut *mut rdma_addrinfo) -> c_int {
    entry::number(|| Err(entry::NOT_OFFERED))
}

/// An event that the program makes itself: not offered, -1 and `EOPNOTSUPP`.
#[unsafe(export_name = "ferroce_rdma_write_cm_event")]
pub extern "C" fn rdma_write_cm_event(_id: *mut rdma_cm_id, _event: c_uint, _status: c_int, _arg: u64) -> c_int {
    entry::number(|| Err(entry::NOT_OFFERED))
}
