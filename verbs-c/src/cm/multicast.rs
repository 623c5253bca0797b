//! Multicast groups of an id.

use std::ffi::{c_int, c_void};
use std::net::IpAddr;

use nix::libc::sockaddr;

use super::abi::*;
use super::address;
use super::id::IdObject;
use crate::entry::{self, Failure};
use crate::events::lock;

/// `RDMA_CM_JOIN_MC_ATTR_*`.
const ATTR_ADDRESS: u32 = 1;
const ATTR_JOIN_FLAGS: u32 = 2;
/// `RDMA_MC_JOIN_FLAG_*`.
const FULL_MEMBER: u32 = 0;
const SEND_ONLY: u32 = 1;

/// Joins a group: its QP receives from it. `MULTICAST_JOIN` says where to send, `MULTICAST_ERROR` that it could not be.
///
/// # Safety
/// `id` is an id of ours, `addr` an address as long as its family has it.
#[unsafe(export_name = "ferroce_rdma_join_multicast")]
pub unsafe extern "C" fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        // SAFETY: the caller's promise.
        join(object, unsafe { address::read_some(addr) }?.ip(), true, context)
    })
}

/// As [`rdma_join_multicast`], also for members that only send.
///
/// # Safety
/// `id` is an id of ours, `attr` may be read, with its address.
#[unsafe(export_name = "ferroce_rdma_join_multicast_ex")]
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        // SAFETY: the caller's promise.
        let attr = unsafe { attr.as_ref() }.ok_or(entry::INVALID)?;
        if attr.comp_mask != ATTR_ADDRESS | ATTR_JOIN_FLAGS {
            return Err(entry::INVALID);
        }
        let receives = match attr.join_flags {
            FULL_MEMBER => true,
            SEND_ONLY => false,
            _ => return Err(entry::INVALID),
        };
        // SAFETY: the caller's promise.
        join(object, unsafe { address::read_some(attr.addr) }?.ip(), receives, context)
    })
}

fn join(object: &IdObject, group: IpAddr, receives: bool, context: *mut c_void) -> Result<c_int, Failure> {
    let (_, end) = object.end()?;
    // Before the event can come.
    lock(&object.state).groups.push((group, context));
    if let Err(error) = end.join_multicast(group, receives) {
        let mut state = lock(&object.state);
        let last = state.groups.iter().rposition(|known| *known == (group, context));
        last.map(|last| state.groups.remove(last));
        drop(state);
        return Err(error.into());
    }
    object.complete(ferroce::cm::CmEventType::MulticastJoin)?;
    Ok(0)
}

/// Leaves a group, with the id's QP.
///
/// # Errors
/// `EADDRNOTAVAIL` if it did not join.
///
/// # Safety
/// As [`rdma_join_multicast`].
#[unsafe(export_name = "ferroce_rdma_leave_multicast")]
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        // SAFETY: the caller's promise.
        let group = unsafe { address::read_some(addr) }?.ip();
        object.end()?.1.leave_multicast(group)?;
        lock(&object.state).groups.retain(|(known, _)| *known != group);
        Ok(0)
    })
}
