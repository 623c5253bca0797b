//! Completion channels and completion queues, polled at once (`ibv_poll_cq`) or field by field (`ibv_start_poll`).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use ferroce::{CompletionChannel, CompletionQueue, CqInit, NetworkHeader, WorkCompletion};
use nix::errno::Errno;
use nix::libc;

use crate::abi::*;
use crate::context::{ContextObject, Session, wait_readable};
use crate::entry::{self, Failure};
use crate::events::{InUse, Table, Unacknowledged, lock};

/// `IBV_WC_STANDARD_FLAGS`: fields of a completion that can always be read. VLANs, flow tags and tag matching can't.
const WC_FLAGS: u64 = 0x7f;
/// `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP` and `_WALLCLOCK`: where the engine's clock can be read.
const WC_TIMESTAMPS: u64 = 1 << 7 | 1 << 11;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`, `_IGNORE_OVERRUN`: both promises of the program, which need nothing of us.
const CREATE_FLAGS: u32 = 3;

/// A completion channel.
#[repr(C)]
pub(crate) struct ChannelObject {
    _abi: ibv_comp_channel,
    channel: CompletionChannel,
    cqs: Table<CqObject>,
    in_use: InUse,
}

/// A completion queue.
#[repr(C)]
pub(crate) struct CqObject {
    /// The program reads and writes it whenever it likes.
    abi: UnsafeCell<ibv_cq_ex>,
    pub(crate) cq: CompletionQueue,
    session: Arc<Session>,
    channel: Option<(NonNull<ChannelObject>, InUse)>,
    pub(crate) in_use: InUse,
    pub(crate) async_events: Unacknowledged,
    comp_events: Unacknowledged,
    reading: Reading,
}

/// A reader between `start_poll` and `end_poll`: one at a time, as with `ibv_poll_cq`.
#[derive(Default)]
struct Reading {
    turn: Mutex<()>,
    /// Belongs to who has the turn.
    held: UnsafeCell<Option<MutexGuard<'static, ()>>>,
    current: UnsafeCell<WorkCompletion>,
}

impl ChannelObject {
    /// The object of a channel; `None` for NULL.
    ///
    /// # Safety
    /// `channel` is a channel of ours that lives as long as the reference is used, or NULL.
    unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> Option<&'a Self> {
        // SAFETY: the caller's promise.
        unsafe { channel.cast::<Self>().as_ref() }
    }
}

impl CqObject {
    /// The object of a CQ.
    ///
    /// # Safety
    /// `cq` is a CQ of ours that lives as long as the reference is used, or NULL.
    pub(crate) unsafe fn of<'a>(cq: *mut ibv_cq) -> Result<&'a Self, Failure> {
        // SAFETY: the caller's promise.
        unsafe { cq.cast::<Self>().as_ref() }.ok_or(entry::INVALID)
    }

    /// Takes it out of the tables, and waits until its events are acknowledged. Not for a forked child, which sees no events.
    fn withdraw(&self) {
        let number = self.cq.handle();
        self.session.cqs.remove(number);
        if let Some((channel, _)) = &self.channel {
            // SAFETY: a channel outlives its CQs, which keep it in use.
            unsafe { channel.as_ref() }.cqs.remove(number);
        }
        self.comp_events.wait();
        self.async_events.wait();
    }

    /// `EPERM` in a forked child: the CQ is its parent's.
    #[inline]
    fn check_process(&self) -> Result<(), Failure> {
        if self.session.context.is_inherited() { Err(Errno::EPERM.into()) } else { Ok(()) }
    }
}

/// A channel on which CQs tell of completions.
///
/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    entry::pointer(|| {
        // SAFETY: the caller's promise.
        let session = unsafe { ContextObject::session(context) }?;
        let channel = session.context.create_channel()?;
        let abi = ibv_comp_channel { context, fd: channel.as_fd().as_raw_fd(), refcnt: 0 };
        let object = ChannelObject { _abi: abi, channel, cqs: Table::default(), in_use: InUse::default() };
        Ok(Box::into_raw(Box::new(object)).cast())
    })
}

/// Destroys a channel: `EBUSY` while a CQ has it.
///
/// # Safety
/// `channel` is a channel of ours that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { ChannelObject::of(channel) }.ok_or(entry::INVALID)?;
        if !object.in_use.by_nobody() {
            return Err(entry::BUSY);
        }
        // SAFETY: it was made by `Box::into_raw`, and the program gives it back.
        drop(unsafe { Box::from_raw(channel.cast::<ChannelObject>()) });
        Ok(())
    })
}

/// What a CQ is to be.
struct Wanted {
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
}

/// Makes a CQ; its functions for field-by-field reading are there in any case.
///
/// # Safety
/// `context` is open, the channel is one of ours or NULL.
unsafe fn create(context: *mut ibv_context, wanted: &Wanted) -> Result<*mut CqObject, Failure> {
    // SAFETY: the caller's promise.
    let session = unsafe { ContextObject::session(context) }?;
    if wanted.cqe == 0 || wanted.comp_vector >= session.context.device().num_comp_vectors.max(1) {
        return Err(entry::INVALID);
    }
    // SAFETY: the caller's promise.
    let channel = unsafe { ChannelObject::of(wanted.channel) };
    let init = CqInit {
        cqe: wanted.cqe,
        channel: channel.map(|channel| &channel.channel),
        // Vector 0 is what programs say that do not care: then the CQs of a session stay together, so that any two of them
        // can serve one QP.
        comp_vector: Some(wanted.comp_vector).filter(|&vector| vector > 0),
    };
    let cq = session.context.create_cq(&init)?;
    let base = ibv_cq {
        context,
        channel: wanted.channel,
        cq_context: wanted.cq_context,
        handle: cq.handle(),
        cqe: entries(&cq),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let number = cq.handle();
    let object = Box::new(CqObject {
        abi: UnsafeCell::new(readers(base)),
        cq,
        session: Arc::clone(&session),
        channel: channel.map(|channel| (NonNull::from(channel), channel.in_use.clone())),
        in_use: InUse::default(),
        async_events: Unacknowledged::default(),
        comp_events: Unacknowledged::default(),
        reading: Reading::default(),
    });
    let object = NonNull::from(Box::leak(object));
    session.cqs.add(number, object);
    if let Some(channel) = channel {
        channel.cqs.add(number, object);
    }
    Ok(object.as_ptr())
}

/// How many completions a CQ holds.
fn entries(cq: &CompletionQueue) -> c_int {
    c_int::try_from(cq.depth()).unwrap_or(c_int::MAX)
}

/// A CQ for at least `cqe` completions.
///
/// # Safety
/// `context` is open, `channel` is a channel of ours or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    entry::pointer(|| {
        let number = |value: c_int| u32::try_from(value).map_err(|_| entry::INVALID);
        let wanted = Wanted { cqe: number(cqe)?, cq_context, channel, comp_vector: number(comp_vector)? };
        // SAFETY: the caller's promise.
        Ok(unsafe { create(context, &wanted) }?.cast())
    })
}

/// A CQ that is read field by field.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    /// `IBV_CQ_INIT_ATTR_MASK_FLAGS` and `_PD`.
    const KNOWN: u32 = 3;
    entry::pointer(|| {
        // SAFETY: the caller's structure.
        let attr = unsafe { attr.as_ref() }.ok_or(entry::INVALID)?;
        let flags = if attr.comp_mask & 1 != 0 { attr.flags } else { 0 };
        if attr.comp_mask & !KNOWN != 0 || flags & !CREATE_FLAGS != 0 {
            return Err(entry::INVALID);
        }
        // SAFETY: the caller's promise.
        let has_clock = unsafe { ContextObject::session(context) }?.context.clock_ns().is_some();
        let offered = if has_clock { WC_FLAGS | WC_TIMESTAMPS } else { WC_FLAGS };
        if attr.wc_flags & !offered != 0 {
            return Err(entry::NOT_OFFERED);
        }
        let ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, .. } = *attr;
        // SAFETY: the caller's promise.
        Ok(unsafe { create(context, &Wanted { cqe, cq_context, channel, comp_vector }) }?.cast())
    })
}

/// Destroys a CQ: `EBUSY` while a QP or an SRQ has it. Waits until all of its events are acknowledged.
///
/// # Safety
/// `cq` is a CQ of ours that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { CqObject::of(cq) }?;
        if !object.in_use.by_nobody() {
            return Err(entry::BUSY);
        }
        if !object.session.context.is_inherited() {
            object.withdraw();
        }
        // SAFETY: it was made by `Box::leak`, the program gives it back, and no table that anybody looks into has it any more.
        drop(unsafe { Box::from_raw(cq.cast::<CqObject>()) });
        Ok(())
    })
}

/// Makes a CQ hold at least so many completions. One that holds as many already stays as it is.
///
/// # Safety
/// `cq` is a CQ of ours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { CqObject::of(cq) }?;
        object.cq.resize(u32::try_from(cqe).map_err(|_| entry::INVALID)?)?;
        // SAFETY: a field of our own object, which the program only reads.
        unsafe { (*object.abi.get()).base.cqe = entries(&object.cq) };
        Ok(())
    })
}

/// Waits, as the channel's descriptor says, for a CQ that has something to tell.
///
/// # Safety
/// `channel` is a channel of ours, the others may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { ChannelObject::of(channel) }.ok_or(entry::INVALID)?;
        loop {
            let Some(told) = object.channel.try_get()? else {
                wait_readable(object.channel.as_fd())?;
                continue;
            };
            let Some(found) = object.cqs.find(told.handle(), |cq| cq.comp_events.add()) else { continue };
            let found = found.as_ptr().cast::<ibv_cq>();
            // SAFETY: the caller's promise.
            unsafe { cq.write(found) };
            // SAFETY: it can't be freed before this event is acknowledged; only this field is read.
            let its_context = unsafe { (*found).cq_context };
            // SAFETY: the caller's promise.
            unsafe { cq_context.write(its_context) };
            return Ok(0);
        }
    })
}

/// Acknowledges events of a CQ, so that it can be destroyed.
///
/// # Safety
/// `cq` is a CQ of ours with so many events that are not acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    entry::status(|| {
        // SAFETY: the caller's promise.
        unsafe { CqObject::of(cq) }?.comp_events.acknowledge(u64::from(nevents));
        Ok(())
    });
}

/// Asks for one event at the next completion, or the next solicited one.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { CqObject::of(cq) }?;
        object.check_process()?;
        object.cq.req_notify(solicited_only != 0);
        Ok(())
    })
}

/// Takes completions, as many as there are and fit; returns how many.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    let mut taken = 0;
    let done = entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { CqObject::of(cq) }?;
        let wanted = usize::try_from(num_entries).map_err(|_| entry::INVALID)?;
        object.cq.poll_each(wanted, |completion| {
            // SAFETY: the caller has room for `num_entries`, and this is one of the first.
            let to = unsafe { wc.add(taken) };
            // SAFETY: likewise.
            unsafe { to.write(completion_of(&completion)) };
            taken += 1;
        });
        if taken == 0 { object.check_process() } else { Ok(()) }
    });
    if done == 0 { taken as c_int } else { -done }
}

/// A completion as C has it.
#[inline]
fn completion_of(completion: &WorkCompletion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id,
        status: c_uint::from(completion.status.code()),
        opcode: c_uint::from(completion.opcode.code()),
        vendor_err: completion.vendor_err,
        byte_len: completion.byte_len,
        imm_data: completion.imm_data,
        qp_num: completion.qpn.value(),
        src_qp: completion.src_qpn.value(),
        wc_flags: c_uint::from(completion.flags.0),
        pkey_index: completion.pkey_index,
        slid: 0,
        sl: service_level(completion),
        dlid_path_bits: 0,
    }
}

/// What the service level of a datagram says on RoCE: after the adapters that most programs are used to (mlx5), bit 3 and the kind of
/// network header, which is all that some programs (UCX 1.13) have to find the addresses in it; behind it, in the upper half, the
/// priority of the VLAN tag. [`priority_of`] takes it apart.
#[inline]
fn service_level(completion: &WorkCompletion) -> u8 {
    let header = match completion.network {
        NetworkHeader::None => return completion.sl,
        NetworkHeader::Grh => 0,
        NetworkHeader::Ipv6 => 1,
        NetworkHeader::Ipv4 => 2,
    };
    completion.sl << 4 | ROCE_LEVEL | header
}

/// Marks a service level that is of a datagram's completion.
const ROCE_LEVEL: u8 = 8;

/// The priority that a program means by a service level: one of its own, 0 to 7, or that of a completion, to answer with.
pub(crate) const fn priority_of(service_level: u8) -> u8 {
    if service_level & ROCE_LEVEL != 0 { service_level >> 4 } else { service_level }
}

/// A CQ with its functions for field-by-field reading.
fn readers(base: ibv_cq) -> ibv_cq_ex {
    ibv_cq_ex {
        base,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_slid),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_dlid_path_bits),
        read_completion_ts: Some(read_completion_ts),
        read_cvlan: None,
        read_flow_tag: None,
        read_tm_info: None,
        read_completion_wallclock_ns: Some(read_completion_wallclock_ns),
    }
}

/// Takes the next completion for reading: `ENOENT` if there is none.
///
/// # Safety
/// The caller has the turn to read `cq`.
unsafe fn advance(cq: *mut ibv_cq_ex) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let object = unsafe { CqObject::of(cq.cast()) }?;
    let mut next = None;
    object.cq.poll_each(1, |completion| next = Some(completion));
    let next = next.ok_or(Failure::from(Errno::ENOENT))?;
    // SAFETY: only who has the turn gets at it.
    unsafe { *object.reading.current.get() = next };
    // SAFETY: a field that only readers write, and there is one at a time.
    unsafe { (*cq).status = c_uint::from(next.status.code()) };
    // SAFETY: likewise.
    unsafe { (*cq).wr_id = next.wr_id };
    Ok(())
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut u32) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's structure of one number.
        if unsafe { attr.as_ref() }.is_some_and(|&comp_mask| comp_mask != 0) {
            return Err(entry::INVALID);
        }
        // SAFETY: the caller's promise.
        let object = unsafe { CqObject::of(cq.cast()) }?;
        object.check_process()?;
        let turn: MutexGuard<'static, ()> = lock(&object.reading.turn);
        // SAFETY: we have the turn.
        unsafe { advance(cq) }?;
        // SAFETY: only who has the turn gets at it.
        unsafe { *object.reading.held.get() = Some(turn) };
        Ok(())
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: between `start_poll` and `end_poll`, the caller has the turn.
    entry::status(|| unsafe { advance(cq) })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { CqObject::of(cq.cast()) }?;
        // SAFETY: only who has the turn gets at it. It ends here.
        drop(unsafe { (*object.reading.held.get()).take() });
        Ok(())
    });
}

/// Declares functions that read one number of the current completion.
macro_rules! read {
    ($($name:ident -> $kind:ty: $value:expr;)*) => {
        $(unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $kind {
            // SAFETY: called between `start_poll` and `end_poll`, on a CQ of ours.
            let current = unsafe { cq.cast::<CqObject>().as_ref() }.map(|object| object.reading.current.get());
            // SAFETY: as above: only who has the turn gets at it.
            let completion = current.map_or_else(WorkCompletion::default, |current| unsafe { *current });
            let value: fn(&WorkCompletion) -> $kind = $value;
            value(&completion)
        })*
    };
}

read! {
    read_opcode -> c_uint: |completion| c_uint::from(completion.opcode.code());
    read_vendor_err -> u32: |completion| completion.vendor_err;
    read_byte_len -> u32: |completion| completion.byte_len;
    read_imm_data -> u32: |completion| completion.imm_data;
    read_qp_num -> u32: |completion| completion.qpn.value();
    read_src_qp -> u32: |completion| completion.src_qpn.value();
    read_wc_flags -> c_uint: |completion| c_uint::from(completion.flags.0);
    read_slid -> u32: |_| 0;
    read_sl -> u8: service_level;
    read_dlid_path_bits -> u8: |_| 0;
    read_completion_ts -> u64: |completion| completion.timestamp_ns;
}

/// When the current completion was made, ns since 1970: as long ago as the engine's clock says.
unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    let made = || -> Option<u64> {
        // SAFETY: called between `start_poll` and `end_poll`, on a CQ of ours.
        let made_ns = unsafe { read_completion_ts(cq) };
        // SAFETY: likewise.
        let object = unsafe { CqObject::of(cq.cast()) }.ok()?;
        let age_ns = object.session.context.clock_ns()?.saturating_sub(made_ns);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        u64::try_from(now.as_nanos()).ok()?.checked_sub(age_ns)
    };
    made().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_level_of_a_datagram_says_what_header_it_came_with_and_its_priority() {
        let level = |network, sl| service_level(&WorkCompletion { network, sl, ..WorkCompletion::default() });
        assert_eq!(level(NetworkHeader::Ipv4, 0), 0xa);
        assert_eq!(level(NetworkHeader::Ipv6, 0), 0x9);
        assert_eq!(level(NetworkHeader::Grh, 0), 0x8);
        assert_eq!(level(NetworkHeader::None, 0), 0);
        for sl in 0..8 {
            assert_eq!(priority_of(level(NetworkHeader::Ipv4, sl)), sl);
            assert_eq!(priority_of(sl), sl);
        }
    }
}
