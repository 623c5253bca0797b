//! Verbs that came after rdma-core 44, up to 65: programs that were built against later headers find them. One is offered.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::*;
use crate::context::ContextObject;
use crate::entry;

/// Speed of a port in its own unit, which is 100 Mb/s.
///
/// # Safety
/// `context` is open, `port_speed` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port_speed(context: *mut ibv_context, port_num: u8, port_speed: *mut u64) -> c_int {
    const UNIT_MBPS: u32 = 100;
    entry::status(|| {
        // SAFETY: the caller's promise.
        let session = unsafe { ContextObject::session(context) }?;
        let speed_mbps = session.context.query_port(port_num)?.speed_mbps;
        // SAFETY: the caller's promise.
        unsafe { port_speed.write(u64::from(speed_mbps / UNIT_MBPS)) };
        Ok(())
    })
}

/// Hints to the memory controller (TPH): not offered, NULL and `EOPNOTSUPP`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_dmah(_context: *mut ibv_context, _attr: *mut c_void) -> *mut c_void {
    entry::pointer(|| Err(entry::NOT_OFFERED))
}

/// The counterpart of [`ibv_alloc_dmah`], which never succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dealloc_dmah(_dmah: *mut c_void) -> c_int {
    entry::status(|| Err(entry::NOT_OFFERED))
}

/// A region with such hints, or of a DMA-BUF: not offered, NULL and `EOPNOTSUPP`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr_ex(_pd: *mut ibv_pd, _attr: *mut c_void) -> *mut ibv_mr {
    entry::pointer(|| Err(entry::NOT_OFFERED))
}

/// Memory on the device as a DMA-BUF: there is none. -1 and `EOPNOTSUPP`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dm_export_dmabuf_fd(_dm: *mut c_void) -> c_int {
    entry::number(|| Err(entry::NOT_OFFERED))
}

/// Memory that suits the device: not offered, NULL and `EOPNOTSUPP`. Any memory does.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_buf(_pd: *mut ibv_pd, _size: usize, _buf: *mut *mut c_void) -> *mut c_void {
    entry::pointer(|| Err(entry::NOT_OFFERED))
}

/// The counterpart of [`ibv_alloc_buf`], which never succeeds.
#[unsafe(no_mangle)]
pub const extern "C" fn ibv_free_buf(_buf: *mut c_void) {}

/// A region of such memory: not offered, NULL and `EOPNOTSUPP`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_buf_mr(
    _pd: *mut ibv_pd,
    _buf: *mut c_void,
    _addr: *mut c_void,
    _length: usize,
    _access: c_uint,
) -> *mut ibv_mr {
    entry::pointer(|| Err(entry::NOT_OFFERED))
}

/// Such memory as a DMA-BUF: there is none. -1 and `EOPNOTSUPP`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_export_buf_dmabuf_fd(_buf: *mut c_void) -> c_int {
    entry::number(|| Err(entry::NOT_OFFERED))
}

/// Counters of completions in the place of a CQ: not offered, NULL and `EOPNOTSUPP`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_cntr(_context: *mut ibv_context, _attr: *mut c_void) -> *mut c_void {
    entry::pointer(|| Err(entry::NOT_OFFERED))
}

/// Declares what is done with such a counter, which [`ibv_create_comp_cntr`] never makes: `EOPNOTSUPP`.
macro_rules! of_counters {
    ($($name:ident,)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`: there are no counters of completions. `EOPNOTSUPP`.")]
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> c_int {
                entry::status(|| Err(entry::NOT_OFFERED))
            }
        )*
    };
}

of_counters! {
    _ibv_query_comp_cntr_caps, ibv_destroy_comp_cntr, ibv_inc_comp_cntr, ibv_inc_err_comp_cntr, ibv_qp_attach_comp_cntr,
    ibv_read_comp_cntr, ibv_read_err_comp_cntr, ibv_set_comp_cntr, ibv_set_err_comp_cntr,
}
