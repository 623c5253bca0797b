//! Calls of later headers: not offered.

use std::ffi::{c_char, c_int, c_uint, c_void};

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

/// An `epoll` of sockets over RDMA: not offered, -1 and `EOPNOTSUPP`. `rpoll` is.
#[unsafe(export_name = "ferroce_repoll_create")]
pub extern "C" fn repoll_create(_flags: c_int) -> c_int {
    entry::number(|| Err(entry::NOT_OFFERED))
}

/// Changes what [`repoll_create`] never makes.
#[unsafe(export_name = "ferroce_repoll_ctl")]
pub extern "C" fn repoll_ctl(_epfd: c_int, _op: c_int, _fd: c_int, _event: *mut c_void) -> c_int {
    entry::number(|| Err(entry::NOT_OFFERED))
}

/// Waits for what [`repoll_create`] never makes.
#[unsafe(export_name = "ferroce_repoll_wait")]
pub extern "C" fn repoll_wait(_epfd: c_int, _events: *mut c_void, _max: c_int, _timeout_ms: c_int) -> c_int {
    entry::number(|| Err(entry::NOT_OFFERED))
}
