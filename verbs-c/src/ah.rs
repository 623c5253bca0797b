//! Address handles and multicast: for datagrams, which are not offered yet.

use std::ffi::c_int;

use crate::abi::*;
use crate::entry;

/// An address handle: not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_ah(_pd: *mut ibv_pd, _attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    entry::pointer(|| Err(entry::NOT_OFFERED))
}

/// An address handle for the sender of a datagram: not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_ah_from_wc(
    _pd: *mut ibv_pd,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _port_num: u8,
) -> *mut ibv_ah {
    entry::pointer(|| Err(entry::NOT_OFFERED))
}

/// The path to the sender of a datagram: not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_init_ah_from_wc(
    _context: *mut ibv_context,
    _port_num: u8,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _attr: *mut ibv_ah_attr,
) -> c_int {
    entry::number(|| Err(entry::NOT_OFFERED))
}

/// The counterpart of [`ibv_create_ah`], which never succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_ah(_ah: *mut ibv_ah) -> c_int {
    entry::status(|| Err(entry::INVALID))
}

/// Multicast: not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_attach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    entry::status(|| Err(entry::NOT_OFFERED))
}

/// Multicast: not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_detach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    entry::status(|| Err(entry::NOT_OFFERED))
}
