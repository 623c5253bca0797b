//! `struct ibv_context` and the structure around it, which inline functions of the header call through.

use std::ffi::{c_int, c_uint, c_void};

use nix::libc;

use super::*;

/// A verb that is not offered, or a slot that only programs of 2006 called.
pub type Absent = Option<unsafe extern "C" fn()>;

/// `struct ibv_context_ops`: what the header calls directly. None of the first group is called by programs built since 2009.
#[repr(C)]
#[expect(missing_docs, reason = "each is the verb of its name")]
pub struct ibv_context_ops {
    pub _compat_query_to_dereg: [Absent; 7],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_uint) -> *mut ibv_mw>,
    pub bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    pub _compat_create_cq: Absent,
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub _compat_cq_event_to_destroy_srq: [Absent; 7],
    pub post_srq_recv: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub _compat_qp: [Absent; 4],
    pub post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub _compat_create_ah_to_async_event: [Absent; 5],
}

/// `struct ibv_context`.
#[repr(C)]
#[expect(missing_docs, reason = "ibv_open_device(3) tells of what programs use")]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: libc::pthread_mutex_t,
    /// All ones: the extended verbs of [`verbs_context`] are there.
    pub abi_compat: *mut c_void,
}

/// `struct verbs_context`: extended verbs, found by their distance before the context. It grows at its front; `sz` says how
/// much of it there is.
#[repr(C)]
#[expect(missing_docs, reason = "each is the verb of its name")]
pub struct verbs_context {
    pub query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    pub advise_mr: Option<unsafe extern "C" fn(*mut ibv_pd, c_uint, u32, *mut ibv_sge, u32) -> c_int>,
    pub alloc_null_mr: Absent,
    pub read_counters: Absent,
    pub attach_counters_point_flow: Absent,
    pub create_counters: Absent,
    pub destroy_counters: Absent,
    pub reg_dm_mr: Absent,
    pub alloc_dm: Absent,
    pub free_dm: Absent,
    pub modify_flow_action_esp: Absent,
    pub destroy_flow_action: Absent,
    pub create_flow_action_esp: Absent,
    pub modify_qp_rate_limit: Absent,
    pub alloc_parent_domain:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd>,
    pub dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
    pub alloc_td: Option<unsafe extern "C" fn(*mut ibv_context, *mut c_void) -> *mut ibv_td>,
    pub modify_cq: Absent,
    pub post_srq_ops: Absent,
    pub destroy_rwq_ind_table: Absent,
    pub create_rwq_ind_table: Absent,
    pub destroy_wq: Absent,
    pub modify_wq: Absent,
    pub create_wq: Absent,
    pub query_rt_values: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
    pub create_cq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    pub priv_: *mut c_void,
    pub query_device_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *const u32, *mut ibv_device_attr_ex, usize) -> c_int>,
    pub ibv_destroy_flow: Absent,
    pub abi_placeholder2: Absent,
    pub ibv_create_flow: Absent,
    pub abi_placeholder1: Absent,
    pub open_qp: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp>,
    pub create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
    pub create_srq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub open_xrcd: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>,
    pub close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>,
    pub abi_placeholder3: u64,
    pub sz: usize,
    pub context: ibv_context,
}
