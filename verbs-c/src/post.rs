//! Posting lists of work requests. The data path: no allocation, no system call unless the engine sleeps.

use std::ffi::{c_int, c_uint};
use std::slice;

use ferroce::{PostError, QpType, Qpn, QueuePair, RecvWr, SendFlags, SendWr, WrOpcode};

use crate::abi::*;
use crate::ah::AhObject;
use crate::entry::{self, Failure};
use crate::mw::{MwObject, bind_of};
use crate::qp::QpObject;
use crate::srq::SrqObject;

/// Most SGEs of a work request that any device of ours takes.
pub(crate) const SGES_MAX: usize = 32;
/// Receives that are published together.
const RECV_BATCH: usize = 16;
/// `IBV_SEND_INLINE`.
const SEND_INLINE: c_uint = 1 << 3;

/// The SGEs of a work request.
///
/// # Safety
/// `list` points to `count` SGEs that live as long as the result is used.
#[inline]
unsafe fn sges<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [ibv_sge], Failure> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's promise.
        Ok(count) if !list.is_null() => Ok(unsafe { slice::from_raw_parts(list, count) }),
        _ => Err(entry::INVALID),
    }
}

/// The bytes that an SGE of inline data names.
///
/// # Safety
/// The SGE names memory of the program that may be read as long as the result is used.
unsafe fn bytes<'a>(sge: &ibv_sge) -> &'a [u8] {
    if sge.length == 0 {
        return &[];
    }
    let data = std::ptr::with_exposed_provenance(sge.addr as usize);
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(data, sge.length as usize) }
}

/// A work request in our words, without its flags, inline data and address.
///
/// # Safety
/// A bind names a window and a region of ours.
#[inline]
unsafe fn request<'a>(wr: &ibv_send_wr, sges: &'a [ibv_sge]) -> Result<SendWr<'a>, Failure> {
    let opcode = u8::try_from(wr.opcode).ok().and_then(WrOpcode::from_code).ok_or(entry::INVALID)?;
    let ibv_send_wr_detail { remote_addr, second, swap, rkey } = wr.wr;
    // RDMA keeps its key where atomics have their first operand.
    let rdma_key = second as u32;
    let imm = u32::from_be(wr.imm_data);
    Ok(match opcode {
        WrOpcode::Send => SendWr::send(wr.wr_id, sges),
        WrOpcode::SendWithImm => SendWr::send(wr.wr_id, sges).with_imm(imm),
        WrOpcode::SendWithInv => SendWr::send(wr.wr_id, sges).with_invalidate(wr.imm_data),
        WrOpcode::RdmaWrite => SendWr::write(wr.wr_id, sges, remote_addr, rdma_key),
        WrOpcode::RdmaWriteWithImm => SendWr::write(wr.wr_id, sges, remote_addr, rdma_key).with_imm(imm),
        WrOpcode::RdmaRead => SendWr::read(wr.wr_id, sges, remote_addr, rdma_key),
        WrOpcode::AtomicCmpAndSwp => SendWr::atomic_cas(wr.wr_id, sges, remote_addr, rkey, second, swap),
        WrOpcode::AtomicFetchAndAdd => SendWr::atomic_faa(wr.wr_id, sges, remote_addr, rkey, second),
        WrOpcode::LocalInv => SendWr::local_inv(wr.wr_id, wr.imm_data),
        WrOpcode::BindMw => {
            let ibv_send_wr_bind { mw, rkey, mr, addr, length, mw_access_flags } = wr.bind_mw;
            // SAFETY: the caller's promise.
            let bind = unsafe { bind_of(mr, addr, length, mw_access_flags) }?;
            // SAFETY: the caller's promise.
            SendWr::bind_mw(wr.wr_id, &unsafe { MwObject::of(mw) }?.window, rkey, &bind)
        }
    })
}

/// Where a datagram goes: the handle stands where RDMA has its address, then come QPN and Q_Key.
///
/// # Safety
/// The work request is of a UD QP, and its handle is ours.
unsafe fn addressed<'a>(request: SendWr<'a>, wr: &ibv_send_wr) -> Result<SendWr<'a>, Failure> {
    let handle = std::ptr::with_exposed_provenance_mut(wr.wr.remote_addr as usize);
    // SAFETY: the caller's promise.
    let ah = unsafe { AhObject::of(handle) }?;
    Ok(request.to(&ah.ah, Qpn::new(wr.wr.second as u32), (wr.wr.second >> 32) as u32))
}

/// The flags of the header, of which the device may ignore what it does not know.
#[inline]
pub(crate) const fn send_flags(flags: c_uint) -> SendFlags {
    SendFlags((flags & SendFlags::ALL.0 as c_uint) as u8)
}

/// Adds one work request of a list to a batch.
///
/// # Safety
/// `wr` and what it names are as `ibv_post_send(3)` demands.
#[inline]
unsafe fn post_one(batch: &mut ferroce::SendBatch<'_>, wr: &ibv_send_wr, kind: QpType) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let sges = unsafe { sges(wr.sg_list, wr.num_sge) }?;
    // SAFETY: the caller's promise.
    let mut request = unsafe { request(wr, sges) }?.with_flags(send_flags(wr.send_flags));
    match kind {
        // SAFETY: the caller's promise.
        QpType::Ud => request = unsafe { addressed(request, wr) }?,
        QpType::XrcSend => request = request.to_srq(wr.remote_srqn),
        _ => {}
    }
    if wr.send_flags & SEND_INLINE == 0 {
        return Ok(batch.post(&request)?);
    }
    let mut pieces: [&[u8]; SGES_MAX] = [&[]; SGES_MAX];
    let pieces = pieces.get_mut(..sges.len()).ok_or(entry::INVALID)?;
    for (piece, sge) in pieces.iter_mut().zip(sges) {
        // SAFETY: the caller's promise.
        *piece = unsafe { bytes(sge) };
    }
    Ok(batch.post(&request.inline_pieces(pieces))?)
}

/// Posts a list of send work requests, with one doorbell. At the first that is not taken `bad_wr` points to it; those before it
/// are posted.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut at = wr;
    let done = entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp) }?;
        let mut batch = object.queues()?.send_batch();
        let mut done = Ok(());
        // SAFETY: the list is the caller's, and ends with NULL.
        while let Some(wr) = unsafe { at.as_ref() } {
            // SAFETY: the caller's promise.
            done = unsafe { post_one(&mut batch, wr, object.kind) };
            if done.is_err() {
                break;
            }
            at = wr.next;
        }
        batch.commit();
        done
    });
    // SAFETY: the caller's variable, if it has one.
    if let Some(bad) = unsafe { bad_wr.as_mut() }.filter(|_| done != 0) {
        *bad = at;
    }
    done
}

/// A queue that takes receives.
trait Receives {
    fn post(&self, wrs: &[RecvWr<'_>]) -> Result<(), (usize, PostError)>;
}

impl Receives for QueuePair {
    #[inline]
    fn post(&self, wrs: &[RecvWr<'_>]) -> Result<(), (usize, PostError)> {
        self.post_recv_batch(wrs).map_err(|error| (error.posted, error.error))
    }
}

impl Receives for ferroce::SharedReceiveQueue {
    #[inline]
    fn post(&self, wrs: &[RecvWr<'_>]) -> Result<(), (usize, PostError)> {
        self.post_recv_batch(wrs).map_err(|error| (error.posted, error.error))
    }
}

/// Posts a list of receives, some at a time. `at` ends at the first that was not taken.
///
/// # Safety
/// The list is as `ibv_post_recv(3)` demands.
#[inline]
unsafe fn post_receives(queue: &impl Receives, at: &mut *mut ibv_recv_wr) -> Result<(), Failure> {
    loop {
        let mut batch = [RecvWr::new(0, &[]); RECV_BATCH];
        let (mut count, mut next) = (0, *at);
        let mut bad = None;
        while count < RECV_BATCH
            // SAFETY: the list is the caller's, and ends with NULL.
            && let Some(wr) = unsafe { next.as_ref() }
        {
            // SAFETY: the caller's promise.
            match unsafe { sges(wr.sg_list, wr.num_sge) } {
                Ok(sges) => batch[count] = RecvWr::new(wr.wr_id, sges),
                Err(failure) => {
                    bad = Some(failure);
                    break;
                }
            }
            count += 1;
            next = wr.next;
        }
        if let Err((posted, error)) = queue.post(&batch[..count]) {
            for _ in 0..posted {
                // SAFETY: as above; there are more than `posted`.
                *at = unsafe { (**at).next };
            }
            return Err(error.into());
        }
        *at = next;
        match bad {
            Some(failure) => return Err(failure),
            None if next.is_null() => return Ok(()),
            None => {}
        }
    }
}

/// Posts a list of receives to a QP.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut at = wr;
    let done = entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp) }?;
        // SAFETY: the caller's promise.
        unsafe { post_receives(object.queues()?, &mut at) }
    });
    // SAFETY: the caller's variable, if it has one.
    if let Some(bad) = unsafe { bad_wr.as_mut() }.filter(|_| done != 0) {
        *bad = at;
    }
    done
}

/// Posts a list of receives to an SRQ.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut at = wr;
    let done = entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { SrqObject::of(srq) }?;
        // SAFETY: the caller's promise.
        unsafe { post_receives(&object.srq, &mut at) }
    });
    // SAFETY: the caller's variable, if it has one.
    if let Some(bad) = unsafe { bad_wr.as_mut() }.filter(|_| done != 0) {
        *bad = at;
    }
    done
}
