//! What a device and its ports say of themselves.

use std::ffi::{c_int, c_uint};
use std::mem::offset_of;

use ferroce::{Context, DeviceAttr, GidType, PortAttr};
use nix::errno::Errno;
use nix::libc;

use crate::abi::*;
use crate::context::ContextObject;
use crate::device::text;
use crate::entry::{self, Failure};

/// `IBV_ATOMIC_HCA`: atomics are atomic among all QPs of the device.
const ATOMIC_HCA: c_uint = 1;
/// `CURR_QP_STATE_MOD`, `PORT_ACTIVE_EVENT`, `SYS_IMAGE_GUID`, `RC_RNR_NAK_GEN`, `MEM_WINDOW`, `XRC`, `MEM_WINDOW_TYPE_2A`.
const DEVICE_CAP_FLAGS: c_uint = 1 << 7 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 17 | 1 << 20 | 1 << 23;
/// Any range of a process's addresses can be a region.
const MAX_MR_SIZE: u64 = 1 << 47;
/// Every page size from 4 KiB up: regions know no pages.
const PAGE_SIZE_CAP: u64 = 0xffff_f000;
/// "No organization", as Linux's rxe says.
const VENDOR_ID: u32 = 0x00ff_ffff;
/// The engine's clock counts nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;
/// Bytes of `ibv_port_attr` that every program has room for.
const PORT_ATTR_BYTES_MIN: usize = 48;
/// `IP_BASED_GIDS` and `CM_SUP`.
const PORT_CAP_FLAGS: u32 = 1 << 26 | 1 << 16;
const LINK_LAYER_ETHERNET: u8 = 2;
/// The only entry of a RoCE port's P_Key table: the default, with full membership.
const DEFAULT_PKEY: u16 = 0xffff;

fn count(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

fn device_attr(device: &DeviceAttr) -> ibv_device_attr {
    let guid = device.node_guid.to_be();
    let rd_atom = c_int::from(device.max_qp_rd_atom);
    ibv_device_attr {
        fw_ver: text(&device.fw_ver),
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: MAX_MR_SIZE,
        page_size_cap: PAGE_SIZE_CAP,
        vendor_id: VENDOR_ID,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp: count(device.max_qp),
        max_qp_wr: count(device.max_qp_wr),
        device_cap_flags: DEVICE_CAP_FLAGS,
        max_sge: count(device.max_sge),
        max_sge_rd: count(device.max_sge),
        max_cq: count(device.max_cq),
        max_cqe: count(device.max_cqe),
        max_mr: count(device.max_mr),
        max_pd: count(device.max_pd),
        max_qp_rd_atom: rd_atom,
        max_ee_rd_atom: 0,
        max_res_rd_atom: rd_atom.saturating_mul(count(device.max_qp)),
        max_qp_init_rd_atom: c_int::from(device.max_qp_init_rd_atom),
        max_ee_init_rd_atom: 0,
        atomic_cap: ATOMIC_HCA,
        max_ee: 0,
        max_rdd: 0,
        max_mw: count(device.max_mr),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: count(device.max_mcast_attach),
        max_mcast_qp_attach: count(device.max_mcast_attach),
        max_total_mcast_qp_attach: count(device.max_mcast_attach),
        max_ah: count(device.max_ah),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: count(device.max_srq),
        max_srq_wr: count(device.max_srq_wr),
        max_srq_sge: count(device.max_srq_sge),
        max_pkeys: 1,
        local_ca_ack_delay: 0,
        phys_port_cnt: device.phys_port_cnt,
    }
}

/// The device's limits.
///
/// # Safety
/// `context` is open, `attr` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let session = unsafe { ContextObject::session(context) }?;
        let device = session.context.query_device()?;
        // SAFETY: the caller's promise.
        unsafe { attr.write(device_attr(&device)) };
        Ok(())
    })
}

/// The engine's clock (`IBV_VALUES_MASK_RAW_CLOCK`), ns: as every provider does, all of it in the field for the nanoseconds. What is
/// not known is taken out of `comp_mask`.
pub(crate) unsafe extern "C" fn query_rt_values(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    const RAW_CLOCK: u32 = 1;
    entry::status(|| {
        // SAFETY: the caller's structure.
        let values = unsafe { values.as_mut() }.ok_or(entry::INVALID)?;
        if values.comp_mask & RAW_CLOCK != 0 {
            // SAFETY: the caller's promise.
            let session = unsafe { ContextObject::session(context) }?;
            let now_ns = session.context.clock_ns().ok_or(entry::NOT_OFFERED)?;
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: now_ns.cast_signed() };
        }
        values.comp_mask &= RAW_CLOCK;
        Ok(())
    })
}

/// [`ibv_query_device`], and what came later: the clock of completions, if it can be read, and the ports. Nothing else of that is
/// offered, so it is 0.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const u32,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    entry::status(|| {
        // SAFETY: NULL, or the caller's structure of one number.
        if unsafe { input.as_ref() }.is_some_and(|&comp_mask| comp_mask != 0)
            || attr_size < size_of::<ibv_device_attr>()
        {
            return Err(entry::INVALID);
        }
        // SAFETY: the caller's promise.
        let session = unsafe { ContextObject::session(context) }?;
        let device = session.context.query_device()?;
        // SAFETY: the caller has room for so many bytes, of a structure that it may have from a later header.
        unsafe { attr.cast::<u8>().write_bytes(0, attr_size) };
        // SAFETY: the first field, for which there is room.
        unsafe { (*attr).orig_attr = device_attr(&device) };
        let has_room = |offset: usize, size: usize| attr_size >= offset + size;
        if has_room(offset_of!(ibv_device_attr_ex, hca_core_clock), size_of::<u64>()) && device.clock.now_ns().is_some()
        {
            // SAFETY: there is room for this field, which stands before the other.
            unsafe { (*attr).completion_timestamp_mask = u64::MAX };
            // SAFETY: likewise for this.
            unsafe { (*attr).hca_core_clock = CLOCK_KHZ };
        }
        if has_room(offset_of!(ibv_device_attr_ex, phys_port_cnt_ex), size_of::<u32>()) {
            // SAFETY: there is room for this field too.
            unsafe { (*attr).phys_port_cnt_ex = u32::from(device.phys_port_cnt) };
        }
        Ok(())
    })
}

/// Width and speed as the kernel tells them of an Ethernet port: codes of IBTA 14.2.5.6.
const fn width_and_speed(mbps: u32) -> (u8, u8) {
    const X1: u8 = 1;
    const X4: u8 = 2;
    match mbps {
        0..=2_500 => (X1, 1),
        2_501..=10_000 => (X1, 8),
        10_001..=20_000 => (X4, 2),
        20_001..=25_000 => (X1, 32),
        25_001..=40_000 => (X4, 8),
        40_001..=100_000 => (X4, 32),
        100_001..=200_000 => (X4, 64),
        _ => (X4, 128),
    }
}

fn port_attr(port: &PortAttr) -> ibv_port_attr {
    let (active_width, active_speed) = width_and_speed(port.speed_mbps);
    ibv_port_attr {
        // ACTIVE and LinkUp, or DOWN and Disabled.
        state: if port.active { 4 } else { 1 },
        phys_state: if port.active { 5 } else { 3 },
        max_mtu: c_uint::from(port.max_mtu),
        active_mtu: c_uint::from(port.active_mtu),
        gid_tbl_len: count(port.gid_tbl_len),
        port_cap_flags: PORT_CAP_FLAGS,
        max_msg_sz: port.max_msg_sz,
        pkey_tbl_len: port.pkey_tbl_len,
        max_vl_num: 1,
        active_width,
        active_speed,
        link_layer: LINK_LAYER_ETHERNET,
        ..ibv_port_attr::default()
    }
}

/// Writes as much of a port's attributes as the caller has room for, zeroes behind them.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    bytes: usize,
) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let session = unsafe { ContextObject::session(context) }?;
        let found = port_attr(&session.context.query_port(port_num)?);
        // SAFETY: the caller has room for so many bytes.
        unsafe { attr.cast::<u8>().write_bytes(0, bytes) };
        let known = bytes.min(size_of::<ibv_port_attr>());
        // SAFETY: as above; two different structures.
        unsafe { (&raw const found).cast::<u8>().copy_to_nonoverlapping(attr.cast(), known) };
        Ok(())
    })
}

/// State of a port, as programs from before rdma-core 26 ask.
///
/// # Safety
/// `context` is open, 48 bytes at `attr` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(context: *mut ibv_context, port_num: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { query_port(context, port_num, attr, PORT_ATTR_BYTES_MIN) }
}

/// The entries of a port's GID table.
fn gids(context: &Context, port_num: u8) -> Result<Vec<ibv_gid_entry>, Failure> {
    let interface = context.query_port(port_num)?.kernel_interface;
    let index = interface.and_then(|name| nix::net::if_::if_nametoindex(name.as_str()).ok()).unwrap_or(0);
    let entry = |entry: ferroce::GidEntry| ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid.0 },
        gid_index: entry.index,
        port_num: u32::from(port_num),
        gid_type: match entry.gid_type {
            GidType::RoceV1 => 1,
            GidType::RoceV2 => 2,
        },
        ndev_ifindex: index,
    };
    Ok(context.query_gids(port_num)?.into_iter().map(entry).collect())
}

/// The GID table of a port.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe fn port_gids(context: *mut ibv_context, port_num: u8) -> Result<Vec<ibv_gid_entry>, Failure> {
    // SAFETY: the caller's promise.
    gids(&unsafe { ContextObject::session(context) }?.context, port_num)
}

/// One entry; `ENODATA` for one that is in the table and empty.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe fn gid_entry(context: *mut ibv_context, port_num: u32, index: u32) -> Result<ibv_gid_entry, Failure> {
    // SAFETY: the caller's promise.
    let session = unsafe { ContextObject::session(context) }?;
    let port_num = u8::try_from(port_num).map_err(|_| entry::INVALID)?;
    let found = gids(&session.context, port_num)?.into_iter().find(|entry| entry.gid_index == index);
    match found {
        Some(found) => Ok(found),
        None if index < session.context.query_port(port_num)?.gid_tbl_len => Err(Errno::ENODATA.into()),
        None => Err(entry::INVALID),
    }
}

/// A GID; an empty entry is all zeroes.
///
/// # Safety
/// `context` is open, `gid` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    entry::number(|| {
        let index = u32::try_from(index).map_err(|_| entry::INVALID)?;
        // SAFETY: the caller's promise.
        let found = match unsafe { gid_entry(context, u32::from(port_num), index) } {
            Ok(entry) => entry.gid,
            Err(failure) if failure == Errno::ENODATA.into() => ibv_gid::default(),
            Err(failure) => return Err(failure),
        };
        // SAFETY: the caller's promise.
        unsafe { gid.write(found) };
        Ok(0)
    })
}

/// Writes as much of an entry as the caller's structure holds.
///
/// # Safety
/// `to` has room for `bytes` bytes.
unsafe fn put_entry(entry: &ibv_gid_entry, to: *mut u8, bytes: usize) {
    let known = bytes.min(size_of::<ibv_gid_entry>());
    // SAFETY: the caller's promise.
    unsafe { to.write_bytes(0, bytes) };
    // SAFETY: the caller's promise; our entry is no part of the caller's.
    unsafe { std::ptr::from_ref(entry).cast::<u8>().copy_to_nonoverlapping(to, known) };
}

/// A GID with its type and interface.
///
/// # Safety
/// `context` is open, `entry_size` bytes at `entry` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    entry::status(|| {
        if flags != 0 {
            return Err(entry::NOT_OFFERED);
        }
        // SAFETY: the caller's promise.
        let found = unsafe { gid_entry(context, port_num, gid_index) }?;
        // SAFETY: the caller's promise.
        unsafe { put_entry(&found, entry.cast(), entry_size) };
        Ok(())
    })
}

/// The GIDs of all ports; returns how many, or a negative errno.
///
/// # Safety
/// `context` is open, `max_entries` times `entry_size` bytes at `entries` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let mut count = 0;
    let done = entry::status(|| {
        if flags != 0 {
            return Err(entry::NOT_OFFERED);
        }
        // SAFETY: the caller's promise.
        let session = unsafe { ContextObject::session(context) }?;
        for port_num in 1..=session.context.device().phys_port_cnt {
            for found in gids(&session.context, port_num)? {
                if count >= max_entries {
                    return Err(entry::INVALID);
                }
                // SAFETY: entry `count` is one of those the caller has room for.
                let to = unsafe { entries.cast::<u8>().add(count * entry_size) };
                // SAFETY: likewise.
                unsafe { put_entry(&found, to, entry_size) };
                count += 1;
            }
        }
        Ok(())
    });
    if done == 0 { count as isize } else { -(done as isize) }
}

/// A GID's type in the numbers of sysfs: 0 = RoCE v1, 1 = v2.
///
/// # Safety
/// `context` is open, `gid_type` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: c_uint,
    gid_type: *mut c_uint,
) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let found = match unsafe { gid_entry(context, u32::from(port_num), index) } {
            Ok(entry) => c_uint::from(entry.gid_type == 2),
            // As the kernel's files say of an empty entry.
            Err(failure) if failure == Errno::ENODATA.into() => 0,
            Err(failure) => return Err(failure),
        };
        // SAFETY: the caller's promise.
        unsafe { gid_type.write(found) };
        Ok(0)
    })
}

/// An entry of the P_Key table, in network order: there is one.
///
/// # Safety
/// `pkey` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let session = unsafe { ContextObject::session(context) }?;
        let table_length = session.context.query_port(port_num)?.pkey_tbl_len;
        if index < 0 || index >= c_int::from(table_length) {
            return Err(entry::INVALID);
        }
        // SAFETY: the caller's promise.
        unsafe { pkey.write(DEFAULT_PKEY.to_be()) };
        Ok(0)
    })
}

/// Where a P_Key (in network order) stands in the table.
///
/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: u16) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let session = unsafe { ContextObject::session(context) }?;
        session.context.query_port(port_num)?;
        if pkey == DEFAULT_PKEY.to_be() { Ok(0) } else { Err(entry::INVALID) }
    })
}

/// The peer's MAC, which providers ask for: ours resolves addresses in the daemon.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _eth_mac: *mut u8,
    _vid: *mut u16,
) -> c_int {
    entry::status(|| Err(entry::NOT_OFFERED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_told_as_the_kernel_tells_them() {
        for (mbps, expected) in [
            (0, (1, 1)),
            (1_000, (1, 1)),
            (10_000, (1, 8)),
            (25_000, (1, 32)),
            (40_000, (2, 8)),
            (100_000, (2, 32)),
            (200_000, (2, 64)),
            (400_000, (2, 128)),
        ] {
            assert_eq!(width_and_speed(mbps), expected, "{mbps}");
        }
    }
}
