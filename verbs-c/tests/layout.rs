//! Sizes and offsets of every structure of [`ferroce_verbs_c::abi`], compared with the system's `infiniband/verbs.h` (and of
//! [`ferroce_verbs_c::cm::abi`], with `rdma/rdma_cma.h`) by a C
//! program that is made here. Skipped where the header or a C compiler is missing, with a word.

mod compiler;

use std::mem::offset_of;

use ferroce_verbs_c::abi::*;
use ferroce_verbs_c::cm::abi::*;

/// A number of our side, and the C expression that must have the same value.
struct Row {
    expression: String,
    value: usize,
}

/// Rows for the size of a structure and the offsets of its fields. `field = "name"` where C has another name for it.
macro_rules! rows {
    ($($name:ident { $($field:ident $(. $inner:ident)* $(= $theirs:literal)?),* $(,)? })*) => {{
        let mut rows = Vec::new();
        $(
            let c_name = stringify!($name);
            let size = size_of::<$name>();
            // Where ours is longer, it has fields of later headers at its end.
            rows.push(Row { expression: format!("sizeof({})", c_type(c_name)), value: size });
            $(
                let ours = concat!(stringify!($field) $(, ".", stringify!($inner))*);
                let theirs: &[&str] = &[$($theirs)?];
                let theirs = theirs.first().unwrap_or(&ours);
                let value = offset_of!($name, $field $(. $inner)*);
                rows.push(Row { expression: format!("offsetof({}, {theirs})", c_type(c_name)), value });
            )*
        )*
        rows
    }};
}

fn c_type(name: &str) -> String {
    let kind = if name == "ibv_gid" { "union" } else { "struct" };
    format!("{kind} {name}")
}

fn rows() -> Vec<Row> {
    let mut rows = rows! {
        ibv_gid { raw }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp,
            max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
            max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd,
            max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach,
            max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
            phys_port_cnt,
        }
        ibv_device_attr_ex {
            orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock, device_cap_flags_ex, tso_caps,
            rss_caps, max_wq_type_rq, packet_pacing_caps, raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size,
            pci_atomic_caps, xrc_odp_caps, phys_port_cnt_ex,
        }
        ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
            pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
            active_speed, phys_state, link_layer, flags, port_cap_flags2,
        }
        ibv_device { ops = "_ops", node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_context_ops { alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        verbs_context {
            query_port, advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow, create_counters,
            destroy_counters, reg_dm_mr, alloc_dm, free_dm, modify_flow_action_esp, destroy_flow_action,
            create_flow_action_esp, modify_qp_rate_limit, alloc_parent_domain, dealloc_td, alloc_td, modify_cq,
            post_srq_ops, destroy_rwq_ind_table, create_rwq_ind_table, destroy_wq, modify_wq, create_wq,
            query_rt_values, create_cq_ex, priv_ = "priv", query_device_ex, ibv_destroy_flow, ibv_create_flow, open_qp,
            create_qp_ex, get_srq_num, create_srq_ex, open_xrcd, close_xrcd, sz, context,
        }
        ibv_pd { context, handle }
        ibv_td { context }
        ibv_xrcd { context }
        ibv_xrcd_init_attr { comp_mask, fd, oflags }
        ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_context, qp_type }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_mw { context, pd, rkey, handle, type_ = "type" }
        ibv_ah { context, pd, handle }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed,
        }
        ibv_cq_ex {
            base.context = "context", base.channel = "channel", base.cq_context = "cq_context", base.cqe = "cqe",
            base.async_events_completed = "async_events_completed", comp_mask, status, wr_id, start_poll, next_poll,
            end_poll, read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp,
            read_wc_flags, read_slid, read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan, read_flow_tag,
            read_tm_info, read_completion_wallclock_ns,
        }
        ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
            events_completed,
        }
        ibv_sge { addr, length, lkey }
        ibv_data_buf { addr, length }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_srq_attr { max_wr, max_sge, srq_limit }
        ibv_srq_init_attr { srq_context, attr }
        ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_init_attr_ex {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd,
            create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags,
        }
        ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
            ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
            rate_limit,
        }
        ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr.remote_addr = "wr.rdma.remote_addr",
            wr.second = "wr.rdma.rkey", remote_srqn = "qp_type.xrc.remote_srqn", bind_mw.mw = "bind_mw.mw",
            bind_mw.rkey = "bind_mw.rkey", bind_mw.mr = "bind_mw.bind_info.mr",
            bind_mw.mw_access_flags = "bind_mw.bind_info.mw_access_flags",
        }
        ibv_mw_bind { wr_id, send_flags, mr = "bind_info.mr", mw_access_flags = "bind_info.mw_access_flags" }
        ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
            dlid_path_bits,
        }
        ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain }
        ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context }
        ibv_values_ex { comp_mask, raw_clock }
        ibv_async_event { element, event_type }
        ibv_ece { vendor_id, options, comp_mask }
        ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
    };
    // Longer than the header's by one function of later headers.
    let functions = rows! {
        ibv_qp_ex {
            qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw, wr_local_inv,
            wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso,
            wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list,
            wr_start, wr_complete, wr_abort, wr_atomic_write,
        }
    };
    rows.extend(functions.into_iter().skip(1));
    let detail = |field: &str, value: usize| Row {
        expression: format!("offsetof(struct ibv_send_wr, wr.{field})"),
        value: offset_of!(ibv_send_wr, wr) + value,
    };
    rows.push(detail("atomic.remote_addr", offset_of!(ibv_send_wr_detail, remote_addr)));
    rows.push(detail("atomic.compare_add", offset_of!(ibv_send_wr_detail, second)));
    rows.push(detail("atomic.swap", offset_of!(ibv_send_wr_detail, swap)));
    rows.push(detail("atomic.rkey", offset_of!(ibv_send_wr_detail, rkey)));
    rows.push(detail("ud.remote_qpn", offset_of!(ibv_send_wr_detail, second)));
    rows
}

fn cm_rows() -> Vec<Row> {
    let mut rows = rows! {
        rdma_ib_addr { sgid, dgid, pkey }
        rdma_addr { src_storage, dst_storage, ibaddr = "addr.ibaddr" }
        rdma_route { addr, path_rec, num_paths }
        rdma_event_channel { fd }
        rdma_cm_id {
            verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq, recv_cq_channel, recv_cq,
            srq, pd, qp_type,
        }
        rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count,
            rnr_retry_count, srq, qp_num,
        }
        rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey }
        rdma_cm_event { id, listen_id, event, status, param }
        rdma_addrinfo {
            ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len, ai_src_addr, ai_dst_addr,
            ai_src_canonname, ai_dst_canonname, ai_route_len, ai_route, ai_connect_len, ai_connect, ai_next,
        }
        rdma_cm_join_mc_attr_ex { comp_mask, join_flags, addr }
    };
    let path = "struct ibv_sa_path_rec";
    let size = size_of::<ferroce_verbs_c::kern::ibv_sa_path_rec>();
    rows.push(Row { expression: format!("sizeof({path})"), value: size });
    rows
}

#[test]
fn structures_of_the_connection_manager_are_laid_out_as_in_the_system_s_header() {
    if std::fs::exists("/usr/include/rdma/rdma_cma.h").unwrap_or(false) {
        compare("rdma/rdma_cma.h", &cm_rows());
    } else {
        eprintln!("skipped: rdma/rdma_cma.h is not installed (apt-get install librdmacm-dev)");
    }
}

#[test]
fn structures_are_laid_out_as_in_the_system_s_header() {
    compare("infiniband/verbs.h", &rows());
}

fn compare(header: &str, rows: &[Row]) {
    let checks: String = rows.iter().map(|row| format!("  printf(\"%zu\\n\", {});\n", row.expression)).collect();
    let source = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <{header}>\nint main(void) {{\n{checks}  return 0;\n}}\n"
    );
    let Some(output) = compiler::run(&source) else { return };
    let theirs: Vec<usize> = output.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(theirs.len(), rows.len());
    let wrong: Vec<String> = rows
        .iter()
        .zip(theirs)
        .filter(|(row, theirs)| row.value != *theirs)
        .map(|(row, theirs)| format!("{} is {theirs}, ours {}", row.expression, row.value))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
