//! What programs pass in and get back: attributes, work requests, completions, events.

use std::ffi::{c_int, c_uint, c_void};

use nix::libc;

use super::*;

/// A scatter/gather element: the same three numbers as [`ferroce::Sge`].
pub type ibv_sge = ferroce::Sge;

/// A piece of inline data.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_wr_post(3)")]
pub struct ibv_data_buf {
    pub addr: *mut c_void,
    pub length: usize,
}

/// Where a path leads.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_create_ah(3)")]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// A path.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_create_ah(3)")]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// Sizes of an SRQ.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_create_srq(3)")]
pub struct ibv_srq_attr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

/// What an SRQ is to be.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_create_srq(3)")]
pub struct ibv_srq_init_attr {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
}

/// What an SRQ is to be, extended.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_create_srq_ex(3)")]
pub struct ibv_srq_init_attr_ex {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
    pub comp_mask: u32,
    pub srq_type: c_uint,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub cq: *mut ibv_cq,
    pub tm_cap: [u32; 2],
}

/// Sizes of a QP.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_create_qp(3)")]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// What a QP is to be.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_create_qp(3)")]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

/// What a QP is to be, extended: begins with the fields of [`ibv_qp_init_attr`], but not with its padding.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_create_qp_ex(3)")]
pub struct ibv_qp_init_attr_ex {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_conf: [u64; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

/// Which QP to open.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_open_qp(3)")]
pub struct ibv_qp_open_attr {
    pub comp_mask: u32,
    pub qp_num: u32,
    pub xrcd: *mut ibv_xrcd,
    pub qp_context: *mut c_void,
    pub qp_type: c_uint,
}

/// Which XRC domain to open.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_open_xrcd(3)")]
pub struct ibv_xrcd_init_attr {
    pub comp_mask: u32,
    pub fd: c_int,
    pub oflags: c_int,
}

/// Attributes of a QP.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_modify_qp(3)")]
pub struct ibv_qp_attr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// The part of a send work request that depends on its opcode: for RDMA `remote_addr` and `rkey` in the low half of
/// `second`; for atomics all four, the key in `rkey`; for UD the address handle, then QPN and Q_Key.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_post_send(3)")]
pub struct ibv_send_wr_detail {
    pub remote_addr: u64,
    pub second: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// The part of a send work request that binds a memory window (or segments a large one).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_post_send(3)")]
pub struct ibv_send_wr_bind {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

/// What a window of type 1 is to open.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_bind_mw(3)")]
pub struct ibv_mw_bind {
    pub wr_id: u64,
    pub send_flags: c_uint,
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

/// `struct ibv_mw_bind_info`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_bind_mw(3)")]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_post_send(3)")]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut Self,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    /// Immediate data in network order, or the key to invalidate.
    pub imm_data: u32,
    pub wr: ibv_send_wr_detail,
    pub remote_srqn: u32,
    pub bind_mw: ibv_send_wr_bind,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_post_recv(3)")]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut Self,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}

/// A completion.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_poll_cq(3)")]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Immediate data in network order, or the key that was invalidated.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// What a CQ is to be, extended.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_create_cq_ex(3)")]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}

/// What a parent domain is to be.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_alloc_parent_domain(3)")]
pub struct ibv_parent_domain_init_attr {
    pub pd: *mut ibv_pd,
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc: Absent,
    pub free: Absent,
    pub pd_context: *mut c_void,
}

/// `ibv_query_rt_values_ex`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_query_rt_values_ex(3)")]
pub struct ibv_values_ex {
    pub comp_mask: u32,
    pub raw_clock: libc::timespec,
}

/// An asynchronous event: of a CQ, a QP, an SRQ (a pointer), or a port (its number).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_get_async_event(3)")]
pub struct ibv_async_event {
    pub element: *mut c_void,
    pub event_type: c_uint,
}

/// Options of enhanced connection establishment.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_query_ece(3)")]
pub struct ibv_ece {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}

/// The header that stands before the data of a datagram, as memory has it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "ibv_create_ah_from_wc(3)")]
pub struct ibv_grh {
    pub version_tclass_flow: u32,
    pub paylen: u16,
    pub next_hdr: u8,
    pub hop_limit: u8,
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
}
