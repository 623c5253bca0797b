//! Symbols that vendors' libraries (libmlx5, libefa, ...) import from rdma-core, to drive devices through the kernel. Programs bring
//! those libraries along, and do not start if a symbol is missing; none of our devices is theirs, so none is ever called but the
//! registration at start. That does nothing; all others fail.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::AtomicBool;

use nix::errno::Errno;

use crate::abi::{ibv_context, ibv_device};

/// Declares functions that return `EOPNOTSUPP`, whatever their arguments are: the C convention lets a function ignore them.
macro_rules! not_offered {
    ($($name:ident,)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`: a command to the kernel, which has no such device.")]
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> c_int {
                Errno::EOPNOTSUPP as c_int
            }
        )*
    };
}

not_offered! {
    execute_ioctl, verbs_init_cq,
    ibv_cmd_create_comp_cntr, ibv_cmd_create_cq_ex2, ibv_cmd_destroy_comp_cntr, ibv_cmd_export_dmabuf_fd, ibv_cmd_inc_comp_cntr,
    ibv_cmd_inc_err_comp_cntr, ibv_cmd_qp_attach_comp_cntr, ibv_cmd_query_comp_cntr_caps, ibv_cmd_query_port_speed,
    ibv_cmd_read_comp_cntr, ibv_cmd_read_err_comp_cntr, ibv_cmd_set_comp_cntr, ibv_cmd_set_err_comp_cntr,
    ibv_cmd_advise_mr, ibv_cmd_alloc_dm, ibv_cmd_alloc_dmah, ibv_cmd_alloc_mw, ibv_cmd_alloc_pd, ibv_cmd_attach_mcast,
    ibv_cmd_close_xrcd, ibv_cmd_create_ah, ibv_cmd_create_counters, ibv_cmd_create_cq, ibv_cmd_create_cq_ex,
    ibv_cmd_create_flow, ibv_cmd_create_flow_action_esp, ibv_cmd_create_qp, ibv_cmd_create_qp_ex,
    ibv_cmd_create_qp_ex2, ibv_cmd_create_rwq_ind_table, ibv_cmd_create_srq, ibv_cmd_create_srq_ex,
    ibv_cmd_create_wq, ibv_cmd_dealloc_mw, ibv_cmd_dealloc_pd, ibv_cmd_dereg_mr, ibv_cmd_destroy_ah,
    ibv_cmd_destroy_counters, ibv_cmd_destroy_cq, ibv_cmd_destroy_flow, ibv_cmd_destroy_flow_action,
    ibv_cmd_destroy_qp, ibv_cmd_destroy_rwq_ind_table, ibv_cmd_destroy_srq, ibv_cmd_destroy_wq,
    ibv_cmd_detach_mcast, ibv_cmd_free_dm, ibv_cmd_free_dmah, ibv_cmd_get_context, ibv_cmd_modify_cq, ibv_cmd_modify_flow_action_esp,
    ibv_cmd_modify_qp, ibv_cmd_modify_qp_ex, ibv_cmd_modify_srq, ibv_cmd_modify_wq, ibv_cmd_open_qp,
    ibv_cmd_open_xrcd, ibv_cmd_poll_cq, ibv_cmd_post_recv, ibv_cmd_post_send, ibv_cmd_post_srq_recv,
    ibv_cmd_query_context, ibv_cmd_query_device_any, ibv_cmd_query_mr, ibv_cmd_query_port, ibv_cmd_query_qp,
    ibv_cmd_query_srq, ibv_cmd_read_counters, ibv_cmd_reg_dm_mr, ibv_cmd_reg_dmabuf_mr, ibv_cmd_reg_mr, ibv_cmd_reg_mr_ex,
    ibv_cmd_req_notify_cq, ibv_cmd_rereg_mr, ibv_cmd_resize_cq,
}

/// Read by providers when objects are destroyed that the kernel has taken away.
#[unsafe(no_mangle)]
pub static verbs_allow_disassociate_destroy: AtomicBool = AtomicBool::new(false);

/// A provider says that it is there: none of our devices is for it.
#[unsafe(no_mangle)]
pub const extern "C" fn verbs_register_driver_34(_ops: *const c_void) {}

/// [`verbs_register_driver_34`] of the private version 59.
#[unsafe(no_mangle)]
pub const extern "C" fn verbs_register_driver_59(_ops: *const c_void) {}

/// [`verbs_register_driver_34`] of the private version 64.
#[unsafe(no_mangle)]
pub const extern "C" fn verbs_register_driver_64(_ops: *const c_void) {}

/// [`verbs_register_driver_34`] of the private version 65.
#[unsafe(no_mangle)]
pub const extern "C" fn verbs_register_driver_65(_ops: *const c_void) {}

/// The registration of 2008: as [`verbs_register_driver_34`].
#[unsafe(no_mangle)]
pub const extern "C" fn ibv_register_driver(_name: *const c_char, _init: *const c_void) {}

/// A message of a provider for a log that nobody has asked for. (Its further arguments are not looked at.)
#[unsafe(no_mangle)]
pub const extern "C" fn __verbs_log(_context: *mut c_void, _level: u32, _format: *const c_char) {}

/// Attributes of a command that grew too long: there are no commands.
#[unsafe(no_mangle)]
pub const extern "C" fn __ioctl_final_num_attrs(num_attrs: u32, _next: *const c_void) -> u32 {
    num_attrs
}

/// Opens a device as a provider does: it has none.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_open_device(_device: *mut ibv_device, _private: *mut c_void) -> *mut ibv_context {
    Errno::EOPNOTSUPP.set();
    ptr::null_mut()
}

/// Allocates a context as a provider does: it has no device to do it for.
#[unsafe(no_mangle)]
pub extern "C" fn _verbs_init_and_alloc_context(_device: *mut ibv_device, _cmd_fd: c_int) -> *mut c_void {
    Errno::EOPNOTSUPP.set();
    ptr::null_mut()
}

/// The counterpart of [`_verbs_init_and_alloc_context`], which never succeeds.
#[unsafe(no_mangle)]
pub const extern "C" fn verbs_uninit_context(_context: *mut c_void) {}

/// Sets a provider's verbs in a context that it has none of.
#[unsafe(no_mangle)]
pub const extern "C" fn verbs_set_ops(_context: *mut c_void, _ops: *const c_void) {}

/// A file of a device's folder in sysfs, by a printed name: no device of ours is a provider's.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_read_ibdev_sysfs_file(_buffer: *mut c_char, _size: usize, _device: *mut c_void) -> c_int {
    Errno::ENOENT.set();
    -1
}

/// Memory of the kernel's heaps for devices that see no other: none of ours. NULL and `EOPNOTSUPP`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dmabuf_heap_cc_shared_init() -> *mut c_void {
    Errno::EOPNOTSUPP.set();
    ptr::null_mut()
}

/// A part of a heap of [`ibv_dmabuf_heap_cc_shared_init`], which makes none.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dmabuf_heap_alloc(_heap: *mut c_void, _size: usize, _fd: *mut c_int) -> *mut c_void {
    Errno::EOPNOTSUPP.set();
    ptr::null_mut()
}

/// The counterpart of [`ibv_dmabuf_heap_alloc`], which never succeeds.
#[unsafe(no_mangle)]
pub const extern "C" fn ibv_dmabuf_heap_free(_addr: *mut c_void, _size: usize, _fd: c_int) {}

/// The counterpart of [`ibv_dmabuf_heap_cc_shared_init`], which never succeeds.
#[unsafe(no_mangle)]
pub const extern "C" fn ibv_dmabuf_heap_destroy(_heap: *mut c_void) {}
