//! The structures of `rdma/rdma_cma.h`, field for field. `tests/layout.rs` compares them with the system's header.

use std::ffi::{c_char, c_int, c_uint, c_void};

use nix::libc::{sockaddr, sockaddr_storage};

use crate::abi::*;
use crate::kern::ibv_sa_path_rec;

/// InfiniBand's own addresses of a connection.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "rdma_cma.h")]
pub struct rdma_ib_addr {
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
    pub pkey: u16,
}

/// Both ends of a connection.
#[derive(Clone, Copy)]
#[repr(C)]
#[expect(missing_docs, reason = "rdma_cma.h")]
pub struct rdma_addr {
    pub src_storage: sockaddr_storage,
    pub dst_storage: sockaddr_storage,
    pub ibaddr: rdma_ib_addr,
}

/// The way from one to the other.
#[repr(C)]
#[expect(missing_docs, reason = "rdma_resolve_route(3)")]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: c_int,
}

/// Where events come.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "rdma_create_event_channel(3)")]
pub struct rdma_event_channel {
    pub fd: c_int,
}

/// An end of a connection, or a listener.
#[repr(C)]
#[expect(missing_docs, reason = "rdma_create_id(3)")]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: c_uint,
    pub port_num: u8,
    pub event: *mut rdma_cm_event,
    pub send_cq_channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq_channel: *mut ibv_comp_channel,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
    pub qp_type: c_uint,
}

/// What a side says of a connection.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "rdma_connect(3)")]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// Where datagrams go.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "rdma_get_cm_event(3)")]
pub struct rdma_ud_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: ibv_ah_attr,
    pub qp_num: u32,
    pub qkey: u32,
}

/// What an event says: `ud` for ids of port space UDP.
#[derive(Clone, Copy)]
#[repr(C)]
#[expect(missing_docs, reason = "rdma_get_cm_event(3)")]
pub union rdma_cm_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
}

/// What happened to an id.
#[repr(C)]
#[expect(missing_docs, reason = "rdma_get_cm_event(3)")]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: c_uint,
    pub status: c_int,
    pub param: rdma_cm_event_param,
}

/// What `rdma_getaddrinfo` found, and what it is to look for.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "rdma_getaddrinfo(3)")]
pub struct rdma_addrinfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: u32,
    pub ai_dst_len: u32,
    pub ai_src_addr: *mut sockaddr,
    pub ai_dst_addr: *mut sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut rdma_addrinfo,
}

/// How to join a multicast group.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "rdma_join_multicast_ex(3)")]
pub struct rdma_cm_join_mc_attr_ex {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut sockaddr,
}
