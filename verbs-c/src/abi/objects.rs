//! The objects that programs hold pointers to, and read fields of.

use std::ffi::{c_int, c_uint, c_void};

use nix::libc;

use super::*;

/// A protection domain, or a parent domain.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_alloc_pd(3)")]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}

/// A thread domain.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_alloc_td(3)")]
pub struct ibv_td {
    pub context: *mut ibv_context,
}

/// A domain of extended reliable connections.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_open_xrcd(3)")]
pub struct ibv_xrcd {
    pub context: *mut ibv_context,
}

/// A memory region.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_reg_mr(3)")]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// A memory window.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_alloc_mw(3)")]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub type_: c_uint,
}

/// An address handle.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_create_ah(3)")]
pub struct ibv_ah {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: u32,
}

/// A completion channel.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_create_comp_channel(3)")]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// A completion queue.
#[repr(C)]
#[expect(missing_docs, reason = "ibv_create_cq(3)")]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

/// A reader of one number of the current completion.
pub type Read<T> = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> T>;

/// A completion queue that is read field by field; begins like [`ibv_cq`].
#[repr(C)]
#[expect(missing_docs, reason = "ibv_create_cq_ex(3)")]
pub struct ibv_cq_ex {
    pub base: ibv_cq,
    pub comp_mask: u32,
    pub status: c_uint,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut u32) -> c_int>,
    pub next_poll: Read<c_int>,
    pub end_poll: Read<()>,
    pub read_opcode: Read<c_uint>,
    pub read_vendor_err: Read<u32>,
    pub read_byte_len: Read<u32>,
    pub read_imm_data: Read<u32>,
    pub read_qp_num: Read<u32>,
    pub read_src_qp: Read<u32>,
    pub read_wc_flags: Read<c_uint>,
    pub read_slid: Read<u32>,
    pub read_sl: Read<u8>,
    pub read_dlid_path_bits: Read<u8>,
    pub read_completion_ts: Read<u64>,
    pub read_cvlan: Read<u16>,
    pub read_flow_tag: Read<u32>,
    pub read_tm_info: Absent,
    pub read_completion_wallclock_ns: Read<u64>,
}

/// A shared receive queue.
#[repr(C)]
#[expect(missing_docs, reason = "ibv_create_srq(3)")]
pub struct ibv_srq {
    pub context: *mut ibv_context,
    pub srq_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub handle: u32,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}

/// A queue pair.
#[repr(C)]
#[expect(missing_docs, reason = "ibv_create_qp(3)")]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_uint,
    pub qp_type: c_uint,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}

/// A queue pair whose work requests are built call by call (`ibv_wr_post(3)`); begins with an [`ibv_qp`].
#[repr(C)]
#[expect(missing_docs, reason = "ibv_wr_post(3)")]
pub struct ibv_qp_ex {
    pub qp_base: ibv_qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut Self, u32, u64, u64, u64)>,
    pub wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut Self, u32, u64, u64)>,
    pub wr_bind_mw: Option<unsafe extern "C" fn(*mut Self, *mut ibv_mw, u32, *const ibv_mw_bind_info)>,
    pub wr_local_inv: Option<unsafe extern "C" fn(*mut Self, u32)>,
    pub wr_rdma_read: Option<unsafe extern "C" fn(*mut Self, u32, u64)>,
    pub wr_rdma_write: Option<unsafe extern "C" fn(*mut Self, u32, u64)>,
    pub wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut Self, u32, u64, u32)>,
    pub wr_send: Option<unsafe extern "C" fn(*mut Self)>,
    pub wr_send_imm: Option<unsafe extern "C" fn(*mut Self, u32)>,
    pub wr_send_inv: Option<unsafe extern "C" fn(*mut Self, u32)>,
    pub wr_send_tso: Option<unsafe extern "C" fn(*mut Self, *mut c_void, u16, u16)>,
    pub wr_set_ud_addr: Option<unsafe extern "C" fn(*mut Self, *mut ibv_ah, u32, u32)>,
    pub wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut Self, u32)>,
    pub wr_set_inline_data: Option<unsafe extern "C" fn(*mut Self, *mut c_void, usize)>,
    pub wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut Self, usize, *const ibv_data_buf)>,
    pub wr_set_sge: Option<unsafe extern "C" fn(*mut Self, u32, u64, u32)>,
    pub wr_set_sge_list: Option<unsafe extern "C" fn(*mut Self, usize, *const ibv_sge)>,
    pub wr_start: Option<unsafe extern "C" fn(*mut Self)>,
    pub wr_complete: Option<unsafe extern "C" fn(*mut Self) -> c_int>,
    pub wr_abort: Option<unsafe extern "C" fn(*mut Self)>,
    pub wr_atomic_write: Option<unsafe extern "C" fn(*mut Self, u32, u64, *const c_void)>,
    /// A verb of rdma-core 50 and later: absent, but there to be looked at.
    pub wr_flush: Absent,
}
