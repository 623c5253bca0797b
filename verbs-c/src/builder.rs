//! Work requests that are built call by call: `ibv_wr_start`, then for each an operation and its data, then `ibv_wr_complete`.
//!
//! From start to complete (or abort) the QP is the calling thread's, as `ibv_wr_post(3)` says. An operation is added to the batch
//! when the next one begins, or at the end: its data comes after it.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::slice;

use ferroce::{MwBind, Qpn, QueuePair, SendBatch, SendWr};

use crate::abi::*;
use crate::ah::AhObject;
use crate::entry::{self, Failure};
use crate::mw::{MwObject, bind_of};
use crate::post::send_flags;
use crate::qp::QpObject;

/// Operations that can be built: RDMA, SENDs, atomics, binding and invalidating.
const OFFERED_OPS: u64 = 0x3ff;

/// What the calling thread has begun.
#[derive(Default)]
struct Begun {
    batch: Option<SendBatch<'static>>,
    operation: Option<Operation>,
    sges: Vec<ibv_sge>,
    inline: Vec<u8>,
    is_inline: bool,
    /// Where a datagram goes: handle, QPN, Q_Key.
    to: Option<(NonNull<AhObject>, u32, u32)>,
    /// The peer's SRQ that it is for (XRC).
    srqn: Option<u32>,
    /// The first mistake: `ibv_wr_complete` tells of it.
    failure: Option<Failure>,
}

/// One operation, without its data.
#[derive(Clone, Copy)]
struct Operation {
    wr_id: u64,
    flags: c_uint,
    kind: Kind,
}

/// What is to be done.
#[derive(Clone, Copy)]
enum Kind {
    Send { imm: Option<u32>, invalidate: Option<u32> },
    Write { rkey: u32, addr: u64, imm: Option<u32> },
    Read { rkey: u32, addr: u64 },
    CompareSwap { rkey: u32, addr: u64, compare: u64, swap: u64 },
    FetchAdd { rkey: u32, addr: u64, add: u64 },
    LocalInv { rkey: u32 },
    Bind { window: NonNull<MwObject>, rkey: u32, bind: MwBind },
}

impl Operation {
    fn request<'a>(&self, sges: &'a [ibv_sge]) -> SendWr<'a> {
        let id = self.wr_id;
        let request = match self.kind {
            Kind::Send { imm: Some(imm), .. } => SendWr::send(id, sges).with_imm(u32::from_be(imm)),
            Kind::Send { invalidate: Some(key), .. } => SendWr::send(id, sges).with_invalidate(key),
            Kind::Send { .. } => SendWr::send(id, sges),
            Kind::Write { rkey, addr, imm: Some(imm) } => {
                SendWr::write(id, sges, addr, rkey).with_imm(u32::from_be(imm))
            }
            Kind::Write { rkey, addr, imm: None } => SendWr::write(id, sges, addr, rkey),
            Kind::Read { rkey, addr } => SendWr::read(id, sges, addr, rkey),
            Kind::CompareSwap { rkey, addr, compare, swap } => SendWr::atomic_cas(id, sges, addr, rkey, compare, swap),
            Kind::FetchAdd { rkey, addr, add } => SendWr::atomic_faa(id, sges, addr, rkey, add),
            Kind::LocalInv { rkey } => SendWr::local_inv(id, rkey),
            // SAFETY: the program keeps the window until what it has begun is complete.
            Kind::Bind { window, rkey, bind } => SendWr::bind_mw(id, &unsafe { window.as_ref() }.window, rkey, &bind),
        };
        request.with_flags(send_flags(self.flags))
    }
}

impl Begun {
    /// Adds the operation at hand to the batch.
    fn flush(&mut self) {
        if let (Some(operation), None, Some(batch)) = (self.operation.take(), self.failure, &mut self.batch) {
            let mut request = operation.request(&self.sges);
            if let Some((ah, qpn, qkey)) = self.to {
                // SAFETY: the program keeps the handle until what it has begun is complete.
                request = request.to(&unsafe { ah.as_ref() }.ah, Qpn::new(qpn), qkey);
            }
            if let Some(srqn) = self.srqn {
                request = request.to_srq(srqn);
            }
            let done = if self.is_inline { batch.post(&request.inline(&self.inline)) } else { batch.post(&request) };
            self.failure = done.err().map(Failure::from);
        }
        self.sges.clear();
        self.inline.clear();
        self.is_inline = false;
        (self.to, self.srqn) = (None, None);
    }
}

/// The place where the work requests of one QP are built.
#[derive(Default)]
pub(crate) struct Builder(UnsafeCell<Begun>);

impl Builder {
    /// A builder for the operations that `ops` names.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if one of them is not offered.
    pub(crate) fn new(ops: u64) -> Result<Self, Failure> {
        if ops & !OFFERED_OPS == 0 { Ok(Self::default()) } else { Err(entry::NOT_OFFERED) }
    }

    /// Begins: waits until no other thread is building or posting.
    ///
    /// # Safety
    /// The QP is this builder's and outlives what is begun; the calling thread has nothing begun.
    unsafe fn start(&self, qp: &QueuePair) {
        let batch = qp.send_batch();
        // SAFETY: only the lifetime changes: the batch ends with `complete` or `abort`, and the QP lives longer.
        let batch = unsafe { std::mem::transmute::<SendBatch<'_>, SendBatch<'static>>(batch) };
        // SAFETY: the batch is a lock; who has it has the builder.
        let begun = unsafe { &mut *self.0.get() };
        // Whatever a thread left behind that began and never ended is forgotten; the vectors keep their room.
        begun.failure = None;
        begun.operation = None;
        begun.flush();
        begun.batch = Some(batch);
    }
}

/// Whether a QP was made to be built on.
pub(crate) const fn is_offered(object: &QpObject) -> bool {
    object.builder.is_some()
}

/// What the calling thread has begun on a QP.
///
/// # Safety
/// `qp` is a QP of ours, and the calling thread is between start and complete.
unsafe fn begun<'a>(qp: *mut ibv_qp_ex) -> Option<&'a mut Begun> {
    // SAFETY: the caller's promise.
    let builder = unsafe { QpObject::of(qp.cast()) }.ok()?.builder.as_ref()?;
    // SAFETY: the caller's promise: nobody else is here.
    Some(unsafe { &mut *builder.0.get() })
}

/// Begins an operation with the number and flags that the program has put into the QP.
///
/// # Safety
/// As [`begun`].
unsafe fn begin(qp: *mut ibv_qp_ex, kind: Kind) {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let begun = unsafe { begun(qp) }.ok_or(entry::INVALID)?;
        begun.flush();
        // SAFETY: the program's own field, which it has just written.
        let wr_id = unsafe { (*qp).wr_id };
        // SAFETY: likewise.
        let flags = unsafe { (*qp).wr_flags };
        begun.operation = Some(Operation { wr_id, flags, kind });
        Ok(())
    });
}

/// Does something with the data of the operation at hand.
///
/// # Safety
/// As [`begun`].
unsafe fn with_data(qp: *mut ibv_qp_ex, set: impl FnOnce(&mut Begun)) {
    entry::status(|| {
        // SAFETY: the caller's promise.
        set(unsafe { begun(qp) }.ok_or(entry::INVALID)?);
        Ok(())
    });
}

/// Declares functions that begin an operation.
macro_rules! operations {
    ($($name:ident($($arg:ident: $kind:ty),*) => $operation:expr;)*) => {
        $(unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $kind)*) {
            // SAFETY: the program is between start and complete.
            unsafe { begin(qp, $operation) };
        })*
    };
}

operations! {
    wr_send() => Kind::Send { imm: None, invalidate: None };
    wr_send_imm(imm: u32) => Kind::Send { imm: Some(imm), invalidate: None };
    wr_send_inv(key: u32) => Kind::Send { imm: None, invalidate: Some(key) };
    wr_rdma_write(rkey: u32, addr: u64) => Kind::Write { rkey, addr, imm: None };
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) => Kind::Write { rkey, addr, imm: Some(imm) };
    wr_rdma_read(rkey: u32, addr: u64) => Kind::Read { rkey, addr };
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) =>
        Kind::CompareSwap { rkey, addr, compare, swap };
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) => Kind::FetchAdd { rkey, addr, add };
    wr_local_inv(rkey: u32) => Kind::LocalInv { rkey };
}

unsafe extern "C" fn wr_bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: the program's structure.
    let bind = unsafe { info.as_ref() }.and_then(|info| {
        // SAFETY: the program's region.
        unsafe { bind_of(info.mr, info.addr, info.length, info.mw_access_flags) }.ok()
    });
    match (NonNull::new(mw.cast::<MwObject>()), bind) {
        // SAFETY: the program is between start and complete.
        (Some(window), Some(bind)) => unsafe { begin(qp, Kind::Bind { window, rkey, bind }) },
        // SAFETY: likewise.
        _ => unsafe { refuse(qp, entry::INVALID) },
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    let to = NonNull::new(ah.cast::<AhObject>()).map(|ah| (ah, qpn, qkey));
    // SAFETY: the program is between start and complete.
    unsafe { with_data(qp, |begun| begun.to = to) };
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: the program is between start and complete.
    unsafe { with_data(qp, |begun| begun.srqn = Some(srqn)) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the program is between start and complete.
    unsafe { with_data(qp, |begun| begun.sges.push(ibv_sge { addr, length, lkey })) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    if count == 0 || list.is_null() {
        return;
    }
    // SAFETY: the program's list.
    let list = unsafe { slice::from_raw_parts(list, count) };
    // SAFETY: the program is between start and complete.
    unsafe { with_data(qp, |begun| begun.sges.extend_from_slice(list)) };
}

/// Takes over inline data.
///
/// # Safety
/// As [`begun`]; the buffers may be read.
unsafe fn take_inline(qp: *mut ibv_qp_ex, buffers: &[ibv_data_buf]) {
    let take = |begun: &mut Begun| {
        begun.is_inline = true;
        for buffer in buffers.iter().filter(|buffer| buffer.length > 0) {
            // SAFETY: the caller's promise.
            begun.inline.extend_from_slice(unsafe { slice::from_raw_parts(buffer.addr.cast(), buffer.length) });
        }
    };
    // SAFETY: the caller's promise.
    unsafe { with_data(qp, take) };
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the program's data.
    unsafe { take_inline(qp, &[ibv_data_buf { addr, length }]) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    let list = if count == 0 || list.is_null() {
        &[]
    } else {
        // SAFETY: the program's list.
        unsafe { slice::from_raw_parts(list, count) }
    };
    // SAFETY: the program's data.
    unsafe { take_inline(qp, list) };
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp.cast()) }?;
        let builder = object.builder.as_ref().ok_or(entry::NOT_OFFERED)?;
        // SAFETY: the QP is destroyed only when nobody uses it any more.
        unsafe { builder.start(object.queues()?) };
        Ok(())
    });
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    entry::status(|| {
        // SAFETY: the program is between start and complete.
        let begun = unsafe { begun(qp) }.ok_or(entry::INVALID)?;
        begun.flush();
        // All or none: a batch that is dropped forgets its work requests. Dropping or committing it is also the end of the lock,
        // and nothing of the builder is touched after it.
        let (failure, batch) = (begun.failure.take(), begun.batch.take());
        match (failure, batch) {
            (None, Some(batch)) => {
                batch.commit();
                Ok(())
            }
            (Some(failure), _) => Err(failure),
            (None, None) => Err(entry::INVALID),
        }
    })
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    entry::status(|| {
        // SAFETY: the program is between start and complete.
        let begun = unsafe { begun(qp) }.ok_or(entry::INVALID)?;
        begun.operation = None;
        begun.flush();
        drop(begun.batch.take());
        Ok(())
    });
}

/// Notes a mistake: `ibv_wr_complete` will say so.
///
/// # Safety
/// As [`begun`].
unsafe fn refuse(qp: *mut ibv_qp_ex, failure: Failure) {
    // SAFETY: the caller's promise.
    unsafe { with_data(qp, |begun| begun.failure = begun.failure.or(Some(failure))) };
}

/// Declares functions of operations that are not offered.
macro_rules! refused {
    ($($name:ident($($arg:ident: $kind:ty),*);)*) => {
        $(unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $kind)*) {
            $(let _ = $arg;)*
            // SAFETY: the program is between start and complete.
            unsafe { refuse(qp, entry::NOT_OFFERED) };
        })*
    };
}

refused! {
    wr_send_tso(_header: *mut c_void, _header_bytes: u16, _mss: u16);
    wr_atomic_write(_rkey: u32, _addr: u64, _data: *const c_void);
}

/// A QP with its functions.
pub(crate) fn functions(qp_base: ibv_qp) -> ibv_qp_ex {
    ibv_qp_ex {
        qp_base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: Some(wr_atomic_cmp_swp),
        wr_atomic_fetch_add: Some(wr_atomic_fetch_add),
        wr_bind_mw: Some(wr_bind_mw),
        wr_local_inv: Some(wr_local_inv),
        wr_rdma_read: Some(wr_rdma_read),
        wr_rdma_write: Some(wr_rdma_write),
        wr_rdma_write_imm: Some(wr_rdma_write_imm),
        wr_send: Some(wr_send),
        wr_send_imm: Some(wr_send_imm),
        wr_send_inv: Some(wr_send_inv),
        wr_send_tso: Some(wr_send_tso),
        wr_set_ud_addr: Some(wr_set_ud_addr),
        wr_set_xrc_srqn: Some(wr_set_xrc_srqn),
        wr_set_inline_data: Some(wr_set_inline_data),
        wr_set_inline_data_list: Some(wr_set_inline_data_list),
        wr_set_sge: Some(wr_set_sge),
        wr_set_sge_list: Some(wr_set_sge_list),
        wr_start: Some(wr_start),
        wr_complete: Some(wr_complete),
        wr_abort: Some(wr_abort),
        wr_atomic_write: Some(wr_atomic_write),
        wr_flush: None,
    }
}
