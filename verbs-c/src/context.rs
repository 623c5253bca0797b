//! An open device, and its asynchronous events.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ferroce::{AsyncEvent, Context};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::abi::*;
use crate::cq::CqObject;
use crate::entry::{self, Failure};
use crate::events::Table;
use crate::qp::QpObject;
use crate::srq::SrqObject;
use crate::{builder, cq, memory, mw, post, qp, query, srq, xrc};

/// What an `ibv_context` is the last part of, and what only we know of it.
#[repr(C)]
pub(crate) struct ContextObject {
    verbs: verbs_context,
    state: Arc<Session>,
}

/// What the objects of a context have of it: it may be closed before they are destroyed.
pub(crate) struct Session {
    pub(crate) context: Context,
    pub(crate) cqs: Table<CqObject>,
    pub(crate) qps: Table<QpObject>,
    pub(crate) srqs: Table<SrqObject>,
}

impl ContextObject {
    /// Makes the object of an open session.
    pub(crate) fn open(device: *mut ibv_device, context: Context) -> *mut ibv_context {
        let abi = ibv_context {
            device,
            ops: ops(),
            cmd_fd: -1,
            async_fd: context.async_event_fd().as_raw_fd(),
            num_comp_vectors: c_int::try_from(context.device().num_comp_vectors).unwrap_or(1),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: ptr::without_provenance_mut(usize::MAX),
        };
        let state = Session { context, cqs: Table::default(), qps: Table::default(), srqs: Table::default() };
        let object = Box::into_raw(Box::new(Self { verbs: extended(abi), state: Arc::new(state) }));
        // SAFETY: a field of the object just made; no reference is made.
        unsafe { &raw mut (*object).verbs.context }
    }

    /// The object around a context.
    ///
    /// # Safety
    /// `context` is from [`ContextObject::open`] and not taken yet, or NULL.
    unsafe fn around(context: *mut ibv_context) -> Option<NonNull<Self>> {
        const BEFORE: usize = std::mem::offset_of!(verbs_context, context);
        let context = NonNull::new(context)?;
        // SAFETY: the context lies so far inside its object, whose first field is the `verbs_context`.
        Some(unsafe { context.byte_sub(BEFORE) }.cast())
    }

    /// The session of a context.
    ///
    /// # Safety
    /// `context` is from [`ContextObject::open`] and not taken yet, or NULL.
    pub(crate) unsafe fn session(context: *mut ibv_context) -> Result<Arc<Session>, Failure> {
        // SAFETY: the caller's promise.
        let object = unsafe { Self::around(context) }.ok_or(entry::INVALID)?;
        // SAFETY: `state` is never changed, and the object lives as the caller promised; only this field is borrowed, since
        // programs have pointers to others.
        let state = unsafe { &(*object.as_ptr()).state };
        Ok(Arc::clone(state))
    }

    /// Takes the object back from the program.
    ///
    /// # Safety
    /// `context` is from [`ContextObject::open`], not taken yet, and not used any more; or NULL.
    pub(crate) unsafe fn take(context: *mut ibv_context) -> Option<Box<Self>> {
        // SAFETY: the caller's promise.
        let object = unsafe { Self::around(context) }?;
        // SAFETY: it was made by `Box::into_raw`, and nobody else has it any more.
        Some(unsafe { Box::from_raw(object.as_ptr()) })
    }
}

/// Marks what programs of 2006 called.
const OLD: Absent = None;

fn ops() -> ibv_context_ops {
    ibv_context_ops {
        _compat_query_to_dereg: [OLD; 7],
        alloc_mw: Some(mw::alloc_mw),
        bind_mw: Some(mw::bind_mw),
        dealloc_mw: Some(mw::dealloc_mw),
        _compat_create_cq: OLD,
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        _compat_cq_event_to_destroy_srq: [OLD; 7],
        post_srq_recv: Some(post::post_srq_recv),
        _compat_qp: [OLD; 4],
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        _compat_create_ah_to_async_event: [OLD; 5],
    }
}

fn extended(context: ibv_context) -> verbs_context {
    verbs_context {
        query_port: Some(query::query_port),
        advise_mr: Some(memory::advise_mr),
        alloc_null_mr: None,
        read_counters: None,
        attach_counters_point_flow: None,
        create_counters: None,
        destroy_counters: None,
        reg_dm_mr: None,
        alloc_dm: None,
        free_dm: None,
        modify_flow_action_esp: None,
        destroy_flow_action: None,
        create_flow_action_esp: None,
        modify_qp_rate_limit: None,
        alloc_parent_domain: Some(memory::alloc_parent_domain),
        dealloc_td: Some(memory::dealloc_td),
        alloc_td: Some(memory::alloc_td),
        modify_cq: None,
        post_srq_ops: None,
        destroy_rwq_ind_table: None,
        create_rwq_ind_table: None,
        destroy_wq: None,
        modify_wq: None,
        create_wq: None,
        query_rt_values: Some(query::query_rt_values),
        create_cq_ex: Some(cq::create_cq_ex),
        priv_: ptr::null_mut(),
        query_device_ex: Some(query::query_device_ex),
        ibv_destroy_flow: None,
        abi_placeholder2: None,
        ibv_create_flow: None,
        abi_placeholder1: None,
        open_qp: Some(xrc::open_qp),
        create_qp_ex: Some(qp::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(xrc::open_xrcd),
        close_xrcd: Some(xrc::close_xrcd),
        abi_placeholder3: 0,
        sz: size_of::<verbs_context>(),
        context,
    }
}

/// The QP as one whose work requests are built call by call; NULL unless it was made for that (`send_ops_flags`).
///
/// # Safety
/// `qp` is a QP of ours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    entry::pointer(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp) }?;
        if builder::is_offered(object) { Ok(qp.cast()) } else { Err(entry::NOT_OFFERED) }
    })
}

/// Waits for something to read, unless the descriptor's owner asked not to wait (`O_NONBLOCK`): then `EAGAIN`.
pub(crate) fn wait_readable(fd: impl std::os::fd::AsFd) -> Result<(), Failure> {
    let flags = fcntl(&fd, FcntlArg::F_GETFL)?;
    if OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK) {
        return Err(Errno::EAGAIN.into());
    }
    // A signal ends the wait, as it ends a read: the program may want to stop.
    poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
    Ok(())
}

/// An event's type in the header's numbers, its element, and the note that it was handed out. `None` if its object is gone.
fn translate(session: &Session, event: AsyncEvent) -> Option<ibv_async_event> {
    let (kind, element): (c_uint, *mut c_void) = match event {
        AsyncEvent::CqErr { cq } => {
            (0, session.cqs.find(cq, |object| object.async_events.add())?.as_ptr().cast::<c_void>())
        }
        AsyncEvent::QpFatal { qpn } => (1, qp_of(session, qpn)?),
        AsyncEvent::QpReqErr { qpn } => (2, qp_of(session, qpn)?),
        AsyncEvent::QpAccessErr { qpn } => (3, qp_of(session, qpn)?),
        AsyncEvent::CommEst { qpn } => (4, qp_of(session, qpn)?),
        AsyncEvent::SqDrained { qpn } => (5, qp_of(session, qpn)?),
        AsyncEvent::DeviceFatal => (8, ptr::null_mut()),
        AsyncEvent::PortActive { port_num } => (9, port(port_num)),
        AsyncEvent::PortErr { port_num } => (10, port(port_num)),
        AsyncEvent::SrqErr { srq } => (14, srq_of(session, srq)?),
        AsyncEvent::SrqLimitReached { srq } => (15, srq_of(session, srq)?),
        AsyncEvent::QpLastWqeReached { qpn } => (16, qp_of(session, qpn)?),
        AsyncEvent::GidChange { port_num } => (18, port(port_num)),
    };
    Some(ibv_async_event { element, event_type: kind })
}

fn qp_of(session: &Session, qpn: u32) -> Option<*mut c_void> {
    Some(session.qps.find(qpn, |object| object.events.add())?.as_ptr().cast())
}

fn srq_of(session: &Session, srq: u32) -> Option<*mut c_void> {
    Some(session.srqs.find(srq, |object| object.events.add())?.as_ptr().cast())
}

/// A port's number where other events have a pointer.
fn port(port_num: u8) -> *mut c_void {
    ptr::without_provenance_mut(usize::from(port_num))
}

/// Waits for the next asynchronous event, as the descriptor's flags say.
///
/// # Safety
/// `context` is open, `event` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let session = unsafe { ContextObject::session(context) }?;
        loop {
            match session.context.get_async_event(Some(std::time::Duration::ZERO))? {
                Some(found) => {
                    if let Some(found) = translate(&session, found) {
                        // SAFETY: the caller's promise.
                        unsafe { event.write(found) };
                        return Ok(0);
                    }
                }
                None => wait_readable(session.context.async_event_fd())?,
            }
        }
    })
}

/// Acknowledges an event: its object can be destroyed once all of its events are.
///
/// # Safety
/// `event` is from [`ibv_get_async_event`] and not acknowledged yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    let acknowledged = || {
        // SAFETY: the caller's promise.
        let event = unsafe { event.as_ref() }.ok_or(entry::INVALID)?;
        match event.event_type {
            // SAFETY: an event of a CQ has a CQ, which waits for this.
            0 => unsafe { CqObject::of(event.element.cast()) }?.async_events.acknowledge(1),
            // SAFETY: likewise a QP.
            1..=7 | 16 => unsafe { QpObject::of(event.element.cast()) }?.events.acknowledge(1),
            // SAFETY: likewise an SRQ.
            14 | 15 => unsafe { SrqObject::of(event.element.cast()) }?.events.acknowledge(1),
            _ => {}
        }
        Ok(())
    };
    entry::status(acknowledged);
}
