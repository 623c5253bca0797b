//! Address handles and multicast groups, for datagrams.

use std::ffi::c_int;
use std::ptr::NonNull;

use ferroce::{AddressHandle, Gid};

use crate::abi::*;
use crate::cq::priority_of;
use crate::entry::{self, Failure};
use crate::events::InUse;
use crate::memory::PdObject;
use crate::qp::{QpObject, path_of};
use crate::query::port_gids;

/// `IBV_WC_GRH`.
const WC_GRH: u32 = 1;
/// `IBV_GID_TYPE_ROCE_V2`.
const TYPE_ROCE_V2: u32 = 2;

/// An address handle.
#[repr(C)]
pub(crate) struct AhObject {
    abi: ibv_ah,
    pub(crate) ah: AddressHandle,
    _pd: InUse,
}

impl AhObject {
    /// The object of an address handle.
    ///
    /// # Safety
    /// `ah` is an address handle of ours that lives as long as the reference is used, or NULL.
    pub(crate) unsafe fn of<'a>(ah: *mut ibv_ah) -> Result<&'a Self, Failure> {
        // SAFETY: the caller's promise.
        unsafe { ah.cast::<Self>().as_ref() }.ok_or(entry::INVALID)
    }
}

/// An address handle for a path.
///
/// # Safety
/// `pd` is a domain of ours, `attr` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    entry::pointer(|| {
        // SAFETY: the caller's promise.
        let domain = unsafe { PdObject::of(pd) }?;
        // SAFETY: the caller's promise.
        let attr = unsafe { attr.as_ref() }.ok_or(entry::INVALID)?;
        if attr.is_global == 0 {
            // RoCE has no path without a GRH.
            return Err(entry::INVALID);
        }
        let ah = domain.domain.create_ah(&path_of(attr))?;
        let abi = ibv_ah { context: domain.context(), pd, handle: ah.handle() };
        Ok(Box::into_raw(Box::new(AhObject { abi, ah, _pd: domain.in_use.clone() })).cast())
    })
}

/// Sender and receiver of a datagram, from the 40 bytes before its data: an IPv6 header (or a GRH), or an IPv4 header in the last
/// 20 of them.
fn ends(header: &[u8; 40]) -> Option<(Gid, Gid)> {
    let part = |from: usize| header.get(from..)?.first_chunk::<16>().copied().map(Gid);
    let v4 =
        |from: usize| Some(Gid::from_ip(std::net::Ipv4Addr::from(*header.get(from..)?.first_chunk::<4>()?).into()));
    if header[20] >> 4 == 4 { v4(32).zip(v4(36)) } else { part(8).zip(part(24)) }
}

/// The path back to the sender of a datagram.
///
/// # Safety
/// `context` is open; `wc` and the 40 bytes at `grh` may be read, `attr` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let wc = unsafe { wc.as_ref() }.ok_or(entry::INVALID)?;
        // SAFETY: the caller's promise.
        let header = unsafe { grh.cast::<[u8; 40]>().as_ref() }.ok_or(entry::INVALID)?;
        let (sender, us) = ends(header).filter(|_| wc.wc_flags & WC_GRH != 0).ok_or(entry::INVALID)?;
        // SAFETY: the caller's promise.
        let table = unsafe { port_gids(context, port_num) }?;
        let ours = |entry: &&ibv_gid_entry| entry.gid.raw == us.0;
        let ours_v2 = table.iter().filter(ours).find(|entry| entry.gid_type == TYPE_ROCE_V2);
        let index = ours_v2.or_else(|| table.iter().find(ours)).ok_or(entry::INVALID)?.gid_index;
        let path = ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: sender.0 },
                sgid_index: u8::try_from(index).map_err(|_| entry::INVALID)?,
                hop_limit: 64,
                ..ibv_global_route::default()
            },
            sl: priority_of(wc.sl),
            is_global: 1,
            port_num,
            ..ibv_ah_attr::default()
        };
        // SAFETY: the caller's promise.
        unsafe { attr.write(path) };
        Ok(0)
    })
}

/// An address handle for the sender of a datagram.
///
/// # Safety
/// `pd` is a domain of ours; else as [`ibv_init_ah_from_wc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    let mut attr = ibv_ah_attr::default();
    // SAFETY: the caller's promise.
    let context = unsafe { PdObject::of(pd) }.map_or(std::ptr::null_mut(), PdObject::context);
    // SAFETY: the caller's promise.
    if unsafe { ibv_init_ah_from_wc(context, port_num, wc, grh, &raw mut attr) } != 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    unsafe { ibv_create_ah(pd, &raw mut attr) }
}

/// Destroys an address handle.
///
/// # Safety
/// `ah` is an address handle of ours that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    entry::status(|| {
        let object = NonNull::new(ah.cast::<AhObject>()).ok_or(entry::INVALID)?;
        // SAFETY: it was made by `Box::into_raw`, and the program gives it back.
        let object = unsafe { Box::from_raw(object.as_ptr()) };
        Ok(object.ah.destroy()?)
    })
}

/// A multicast group of the header's form.
///
/// # Safety
/// `gid` may be read.
unsafe fn group(gid: *const ibv_gid) -> Result<Gid, Failure> {
    // SAFETY: the caller's promise.
    Ok(Gid(unsafe { gid.as_ref() }.ok_or(entry::INVALID)?.raw))
}

/// Takes part in a multicast group.
///
/// # Safety
/// `qp` is a QP of ours, `gid` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp) }?;
        // SAFETY: the caller's promise.
        Ok(object.queues()?.attach_mcast(unsafe { group(gid) }?)?)
    })
}

/// Leaves a multicast group.
///
/// # Safety
/// `qp` is a QP of ours, `gid` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp) }?;
        // SAFETY: the caller's promise.
        Ok(object.queues()?.detach_mcast(unsafe { group(gid) }?)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_found_in_either_header() {
        let mut header = [0; 40];
        header[20] = 0x45;
        header[32..36].copy_from_slice(&[10, 0, 0, 1]);
        header[36..].copy_from_slice(&[10, 0, 0, 2]);
        let mapped = |last| Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, last]);
        assert_eq!(ends(&header), Some((mapped(1), mapped(2))));
        let mut header = [0; 40];
        header[0] = 0x60;
        header[8..24].fill(3);
        header[24..].fill(5);
        header[20] = 0x03;
        assert_eq!(ends(&header).map(|(sender, us)| (sender.0[0], us.0)), Some((3, [5; 16])));
    }
}
