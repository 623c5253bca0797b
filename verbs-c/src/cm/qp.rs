//! The queues of an id.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use super::abi::*;
use super::devices::last_errno;
use super::id::IdObject;
use crate::abi::*;
use crate::entry::{self, Failure};
use crate::events::lock;
use crate::qp::QpObject;
use crate::{cq, qp, srq};

/// `IBV_QP_INIT_ATTR_PD`, and the same of an SRQ.
const QP_HAS_PD: u32 = 1;
const SRQ_HAS_PD: u32 = 2;

/// Makes a QP for the id and takes it to INIT, where receives may be posted; a UD QP to RTS. Without a domain it gets the id's,
/// without CQs its own, with channels (`id->send_cq`, `id->recv_cq`).
///
/// # Errors
/// `EINVAL` before the id has a device, if it has a QP, or for a domain of another context.
///
/// # Safety
/// `id` is an id of ours, `pd` and the queues are ours, `init` may be read and written.
#[unsafe(export_name = "ferroce_rdma_create_qp")]
pub unsafe extern "C" fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        // SAFETY: the caller's promise.
        let init = unsafe { init.as_mut() }.ok_or(entry::INVALID)?;
        // SAFETY: the caller's promise.
        unsafe { create(object, pd, init) }?;
        Ok(0)
    })
}

/// As [`rdma_create_qp`], for a domain of NULL or one that lives.
///
/// # Safety
/// As there.
pub(super) unsafe fn create(object: &IdObject, pd: *mut ibv_pd, init: &mut ibv_qp_init_attr) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let pd = unsafe { domain_for(object, pd) }?;
    let ibv_qp_init_attr { send_cq, recv_cq, cap, .. } = *init;
    own_cqs(object, send_cq, recv_cq, cap)?;
    (init.send_cq, init.recv_cq, init.srq) = queues(object, send_cq, recv_cq, init.srq);
    // SAFETY: the caller's promise.
    let made = unsafe { qp::ibv_create_qp(pd, &raw mut *init) };
    // SAFETY: a QP of ours, or NULL.
    unsafe { adopt(object, made) }
}

/// As [`rdma_create_qp`], with the extended attributes.
///
/// # Safety
/// As there.
#[unsafe(export_name = "ferroce_rdma_create_qp_ex")]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, init: *mut ibv_qp_init_attr_ex) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        // SAFETY: the caller's promise.
        let init = unsafe { init.as_mut() }.ok_or(entry::INVALID)?;
        let given = if init.comp_mask & QP_HAS_PD != 0 { init.pd } else { ptr::null_mut() };
        // SAFETY: the caller's promise.
        init.pd = unsafe { domain_for(object, given) }?;
        init.comp_mask |= QP_HAS_PD;
        own_cqs(object, init.send_cq, init.recv_cq, init.cap)?;
        (init.send_cq, init.recv_cq, init.srq) = queues(object, init.send_cq, init.recv_cq, init.srq);
        // SAFETY: the caller's promise.
        let made = unsafe { qp::create_qp_ex(object.read(|abi| abi.verbs), &raw mut *init) };
        // SAFETY: a QP of ours, or NULL.
        unsafe { adopt(object, made) }?;
        Ok(0)
    })
}

/// The domain to make the id's queues in.
///
/// # Safety
/// `pd` is a domain of ours, or NULL for the id's.
unsafe fn domain_for(object: &IdObject, pd: *mut ibv_pd) -> Result<*mut ibv_pd, Failure> {
    object.end()?;
    let (verbs, default, has_qp) = object.read(|abi| (abi.verbs, abi.pd, !abi.qp.is_null()));
    let pd = if pd.is_null() { default } else { pd };
    // SAFETY: the caller's promise; the id's own lives too.
    let context = unsafe { pd.as_ref() }.ok_or(entry::INVALID)?.context;
    if context != verbs || has_qp { Err(entry::INVALID) } else { Ok(pd) }
}

/// Makes the CQs that the program did not bring.
fn own_cqs(object: &IdObject, send: *mut ibv_cq, recv: *mut ibv_cq, cap: ibv_qp_cap) -> Result<(), Failure> {
    let own = |entries: u32| -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Failure> {
        let verbs = object.read(|abi| abi.verbs);
        // SAFETY: an open context.
        let channel = unsafe { cq::ibv_create_comp_channel(verbs) };
        if channel.is_null() {
            return Err(last_errno());
        }
        let context: *mut c_void = object.as_ptr().cast();
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: ours.
        let made = unsafe { cq::ibv_create_cq(verbs, entries, context, channel, 0) };
        if made.is_null() {
            let failure = last_errno();
            // SAFETY: just made.
            unsafe { cq::ibv_destroy_comp_channel(channel) };
            return Err(failure);
        }
        Ok((channel, made))
    };
    if recv.is_null() && cap.max_recv_wr > 0 {
        let (channel, made) = own(cap.max_recv_wr)?;
        object.change(|abi| (abi.recv_cq_channel, abi.recv_cq) = (channel, made));
    }
    if send.is_null() && cap.max_send_wr > 0 {
        let (channel, made) = own(cap.max_send_wr).inspect_err(|_| destroy_cqs(object))?;
        object.change(|abi| (abi.send_cq_channel, abi.send_cq) = (channel, made));
    }
    Ok(())
}

/// The program's queues, else the id's. A queue that nothing is posted to needs a CQ as well: the other's.
fn queues(
    object: &IdObject,
    send: *mut ibv_cq,
    recv: *mut ibv_cq,
    srq: *mut ibv_srq,
) -> (*mut ibv_cq, *mut ibv_cq, *mut ibv_srq) {
    let first = |choices: [*mut ibv_cq; 3]| choices.into_iter().find(|cq| !cq.is_null()).unwrap_or(ptr::null_mut());
    let (own_send, own_recv, own_srq) = object.read(|abi| (abi.send_cq, abi.recv_cq, abi.srq));
    let send_or_own = first([send, own_send, ptr::null_mut()]);
    let recv_or_own = first([recv, own_recv, ptr::null_mut()]);
    let srq = if srq.is_null() { own_srq } else { srq };
    (first([send_or_own, recv_or_own, send_or_own]), first([recv_or_own, send_or_own, recv_or_own]), srq)
}

/// Gives the id its QP.
///
/// # Safety
/// `made` is a QP of ours that was just made, or NULL, with `errno` saying why.
unsafe fn adopt(object: &IdObject, made: *mut ibv_qp) -> Result<(), Failure> {
    let adopted = || -> Result<(), Failure> {
        if made.is_null() {
            return Err(last_errno());
        }
        // SAFETY: the caller's promise.
        let qp = unsafe { QpObject::of(made) }?;
        let (_, end) = object.end()?;
        let used = qp.queues().and_then(|queues| Ok(end.use_qp(queues)?));
        if let Err(failure) = used {
            // SAFETY: just made, and the id has not got it.
            unsafe { qp::ibv_destroy_qp(made) };
            return Err(failure);
        }
        *lock(&object.link) = Some(end);
        *lock(&qp.id) = Some(Arc::clone(&object.link));
        // SAFETY: it lives.
        let pd = unsafe { (*made).pd };
        object.change(|abi| (abi.qp, abi.pd) = (made, pd));
        object.note_qp();
        Ok(())
    };
    adopted().inspect_err(|_| destroy_cqs(object))
}

/// Destroys the id's QP, and the CQs that were made for it.
///
/// # Safety
/// `id` is an id of ours whose QP nobody uses any more.
#[unsafe(export_name = "ferroce_rdma_destroy_qp")]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        let qp = object.read(|abi| abi.qp);
        object.change(|abi| abi.qp = ptr::null_mut());
        if !qp.is_null() {
            // SAFETY: the id's QP, given back.
            unsafe { qp::ibv_destroy_qp(qp) };
        }
        destroy_cqs(object);
        Ok(())
    });
}

fn destroy_cqs(object: &IdObject) {
    let (recv, send) = object.read(|abi| ((abi.recv_cq, abi.recv_cq_channel), (abi.send_cq, abi.send_cq_channel)));
    for (cq, channel) in [recv, send] {
        if !cq.is_null() {
            // SAFETY: made by `own_cqs`; the QP is gone.
            unsafe { cq::ibv_destroy_cq(cq) };
        }
        if !channel.is_null() {
            // SAFETY: likewise.
            unsafe { cq::ibv_destroy_comp_channel(channel) };
        }
    }
    object.change(|abi| {
        (abi.recv_cq, abi.recv_cq_channel) = (ptr::null_mut(), ptr::null_mut());
        (abi.send_cq, abi.send_cq_channel) = (ptr::null_mut(), ptr::null_mut());
    });
}

/// Makes an SRQ for the id: its QP takes receives from that.
///
/// # Safety
/// `id` is an id of ours, `pd` a domain of ours or NULL for the id's, `init` may be read and written.
#[unsafe(export_name = "ferroce_rdma_create_srq")]
pub unsafe extern "C" fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        // SAFETY: the caller's promise.
        let pd = unsafe { domain_for_srq(object, pd) }?;
        // SAFETY: the caller's promise.
        keep_srq(object, unsafe { srq::ibv_create_srq(pd, init) })
    })
}

/// As [`rdma_create_srq`], with the extended attributes. Only basic SRQs are offered.
///
/// # Safety
/// As there.
#[unsafe(export_name = "ferroce_rdma_create_srq_ex")]
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, init: *mut ibv_srq_init_attr_ex) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        // SAFETY: the caller's promise.
        let attr = unsafe { init.as_mut() }.ok_or(entry::INVALID)?;
        let given = if attr.comp_mask & SRQ_HAS_PD != 0 { attr.pd } else { ptr::null_mut() };
        // SAFETY: the caller's promise.
        attr.pd = unsafe { domain_for_srq(object, given) }?;
        attr.comp_mask |= SRQ_HAS_PD;
        // SAFETY: the caller's promise.
        keep_srq(object, unsafe { srq::create_srq_ex(object.read(|abi| abi.verbs), init) })
    })
}

/// # Safety
/// As [`domain_for`].
unsafe fn domain_for_srq(object: &IdObject, pd: *mut ibv_pd) -> Result<*mut ibv_pd, Failure> {
    if object.read(|abi| !abi.srq.is_null()) {
        return Err(entry::INVALID);
    }
    // SAFETY: the caller's promise.
    unsafe { domain_for(object, pd) }
}

fn keep_srq(object: &IdObject, made: *mut ibv_srq) -> Result<c_int, Failure> {
    if made.is_null() {
        return Err(last_errno());
    }
    object.change(|abi| abi.srq = made);
    Ok(0)
}

/// Destroys the id's SRQ.
///
/// # Safety
/// `id` is an id of ours whose SRQ nobody uses any more.
#[unsafe(export_name = "ferroce_rdma_destroy_srq")]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        let srq = object.read(|abi| abi.srq);
        object.change(|abi| abi.srq = ptr::null_mut());
        if !srq.is_null() {
            // SAFETY: the id's SRQ, given back.
            unsafe { srq::ibv_destroy_srq(srq) };
        }
        Ok(())
    });
}
