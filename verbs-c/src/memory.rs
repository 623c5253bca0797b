//! Protection domains and memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use ferroce::{AccessFlags, Context, MemoryTiers, OwnRange, ProcessRegion, ProtectionDomain};
use nix::errno::Errno;
use nix::sys::mman::{MmapAdvise, madvise};

use crate::abi::*;
use crate::context::{ContextObject, Session};
use crate::entry::{self, Failure};
use crate::events::InUse;

/// Rights that a program may ask for and that a device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL_ACCESS: c_uint = 0x3ff0_0000;
/// Hint that the memory is hugetlb.
const ACCESS_HUGETLB: c_uint = 1 << 7;
/// Regions without pinned pages. Ours have none either way, but the capability bits of the header stand for more.
const ACCESS_ON_DEMAND: c_uint = 1 << 6;
/// Says how far the engine may go to reach a program's memory: `process`, `shared` or `moved`.
const TIERS_VARIABLE: &str = "FERROCE_MEMORY_TIERS";
/// What is told on standard error, separated by commas: of `memory`, each region's tier, and what moves.
const LOG_VARIABLE: &str = "FERROCE_LOG";
/// Smallest page.
const PAGE_BYTES: usize = 4096;

/// A protection domain. A parent domain is one more handle of its domain.
#[repr(C)]
pub(crate) struct PdObject {
    abi: ibv_pd,
    pub(crate) domain: ProtectionDomain,
    pub(crate) session: Arc<Session>,
    pub(crate) in_use: InUse,
    /// A parent domain keeps its domain in use.
    _of: Option<InUse>,
}

impl PdObject {
    /// The object of a domain.
    ///
    /// # Safety
    /// `pd` is a domain of ours that lives as long as the reference is used, or NULL.
    pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> Result<&'a Self, Failure> {
        // SAFETY: the caller's promise; domains are never changed.
        unsafe { pd.cast::<Self>().as_ref() }.ok_or(entry::INVALID)
    }

    /// The context that it was made in.
    pub(crate) const fn context(&self) -> *mut ibv_context {
        self.abi.context
    }
}

/// A thread domain: our objects may be used by any thread, so it changes nothing.
#[repr(C)]
struct TdObject {
    abi: ibv_td,
}

/// A memory region.
#[repr(C)]
struct MrObject {
    abi: ibv_mr,
    access: c_uint,
    region: ProcessRegion,
    _pd: InUse,
}

/// Sets for a new session what the environment says of memory. A value that means nothing is told, and changes nothing.
pub(crate) fn set_tiers(context: &Context) {
    if let Ok(text) = std::env::var(TIERS_VARIABLE) {
        match text.parse::<MemoryTiers>() {
            Ok(tiers) => context.set_memory_tiers(tiers),
            Err(error) => eprintln!("ferroce: {TIERS_VARIABLE}: {error}"),
        }
    }
    if std::env::var(LOG_VARIABLE).is_ok_and(|topics| topics.split(',').any(|topic| topic == "memory")) {
        context.set_memory_log(|line| eprintln!("ferroce: {line}"));
    }
}

/// A new protection domain.
///
/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    entry::pointer(|| {
        // SAFETY: the caller's promise.
        let session = unsafe { ContextObject::session(context) }?;
        let domain = session.context.alloc_pd()?;
        let abi = ibv_pd { context, handle: 0 };
        let object = PdObject { abi, domain, session, in_use: InUse::default(), _of: None };
        Ok(Box::into_raw(Box::new(object)).cast())
    })
}

/// Frees a domain: `EBUSY` while something was made in it.
///
/// # Safety
/// `pd` is a domain that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { PdObject::of(pd) }?;
        if !object.in_use.by_nobody() {
            return Err(entry::BUSY);
        }
        // SAFETY: it was made by `Box::into_raw`, and the program gives it back.
        drop(unsafe { Box::from_raw(pd.cast::<PdObject>()) });
        Ok(())
    })
}

/// A parent domain: allocators of the program's own are accepted and not used.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    /// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS` and `_PD_CONTEXT`.
    const KNOWN: u32 = 3;
    entry::pointer(|| {
        // SAFETY: the caller's structure.
        let attr = unsafe { attr.as_ref() }.filter(|attr| attr.comp_mask & !KNOWN == 0).ok_or(entry::INVALID)?;
        // SAFETY: the caller's promise.
        let of = unsafe { PdObject::of(attr.pd) }?;
        let abi = ibv_pd { context, handle: of.abi.handle };
        let (domain, session) = (of.domain.clone(), Arc::clone(&of.session));
        let object = PdObject { abi, domain, session, in_use: InUse::default(), _of: Some(of.in_use.clone()) };
        Ok(Box::into_raw(Box::new(object)).cast())
    })
}

/// A thread domain.
pub(crate) unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut c_void) -> *mut ibv_td {
    entry::pointer(|| {
        // SAFETY: the caller's structure of one number.
        if unsafe { attr.cast::<u32>().as_ref() }.is_none_or(|&comp_mask| comp_mask != 0) {
            return Err(entry::INVALID);
        }
        Ok(Box::into_raw(Box::new(TdObject { abi: ibv_td { context } })).cast())
    })
}

/// Frees a thread domain.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    entry::status(|| {
        let td = NonNull::new(td.cast::<TdObject>()).ok_or(entry::INVALID)?;
        // SAFETY: it was made by `Box::into_raw`, and the program gives it back.
        drop(unsafe { Box::from_raw(td.as_ptr()) });
        Ok(())
    })
}

/// What is meant by the header's access bits.
fn access_flags(access: c_uint) -> Result<AccessFlags, Failure> {
    if access & ACCESS_ON_DEMAND != 0 {
        return Err(entry::NOT_OFFERED);
    }
    Ok(AccessFlags(access & !OPTIONAL_ACCESS & !ACCESS_HUGETLB))
}

/// Asks the kernel whether the first and the last page can be used as the region's rights say: `EFAULT` if not. What lies
/// between is told when it is used.
fn probe(addr: *mut c_void, length: usize, access: AccessFlags) -> Result<(), Failure> {
    if length == 0 {
        return Ok(());
    }
    let last = addr.addr().checked_add(length - 1).ok_or(entry::INVALID)?;
    let advice = if access.contains(AccessFlags::LOCAL_WRITE) {
        MmapAdvise::MADV_POPULATE_WRITE
    } else {
        MmapAdvise::MADV_POPULATE_READ
    };
    let mut pages = [addr.addr(), last].map(|at| at & !(PAGE_BYTES - 1));
    if pages[0] == pages[1] {
        pages[1] = 0;
    }
    for page in pages.into_iter().filter(|&page| page > 0) {
        let page = NonNull::new(addr.with_addr(page)).ok_or(entry::INVALID)?;
        // SAFETY: it faults a page in and changes no byte; of memory that is not ours the kernel tells.
        let there = unsafe { madvise(page, PAGE_BYTES, advice) };
        // EINVAL: the pages' protection forbids it; ENOMEM: there are none. (With EFAULT they can't be populated.)
        there.map_err(|_| Failure::from(Errno::EFAULT))?;
    }
    Ok(())
}

/// Registers a range under an address that peers use for it.
fn register(
    pd: &PdObject,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Result<ProcessRegion, Failure> {
    let flags = access_flags(access)?;
    probe(addr, length, flags)?;
    // SAFETY: a C program's memory, which it lets peers into by this very call; no Rust code has references into it.
    let range = unsafe { OwnRange::new(addr.cast(), length) };
    Ok(pd.domain.register_process_memory(range, iova, flags)?)
}

/// Registers any memory of the program under the address `iova`.
///
/// # Safety
/// `pd` is a domain of ours; peers may do to the memory what `access` allows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    entry::pointer(|| {
        // SAFETY: the caller's promise.
        let domain = unsafe { PdObject::of(pd) }?;
        let region = register(domain, addr, length, iova, access)?;
        let (lkey, rkey) = (region.lkey(), region.rkey());
        let abi = ibv_mr { context: domain.abi.context, pd, addr, length, handle: lkey, lkey, rkey };
        let object = MrObject { abi, access, region, _pd: domain.in_use.clone() };
        Ok(Box::into_raw(Box::new(object)).cast())
    })
}

/// [`ibv_reg_mr_iova2`] without optional rights.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

/// Registers any memory of the program under its own address.
///
/// # Safety
/// As [`ibv_reg_mr_iova2`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr.addr() as u64, access.cast_unsigned()) }
}

/// Registers the region anew with what `flags` changes (1 = range, 2 = domain, 4 = rights). Its keys change. 0, or
/// `IBV_REREG_MR_ERR_INPUT` (-1) with `errno`: then it is as it was.
///
/// # Safety
/// `mr` is a region of ours that no other thread is destroying or registering anew; else as [`ibv_reg_mr_iova2`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    const TRANSLATION: c_int = 1;
    const PD: c_int = 2;
    const ACCESS: c_int = 4;
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { mr.cast::<MrObject>().as_mut() }.ok_or(entry::INVALID)?;
        if flags & !(TRANSLATION | PD | ACCESS) != 0 || flags == 0 {
            return Err(entry::INVALID);
        }
        let has = |flag| flags & flag != 0;
        let pd = if has(PD) { pd } else { object.abi.pd };
        let (addr, length) = if has(TRANSLATION) { (addr, length) } else { (object.abi.addr, object.abi.length) };
        let iova = if has(TRANSLATION) { addr.addr() as u64 } else { object.region.addr() };
        let access = if has(ACCESS) { access.cast_unsigned() } else { object.access };
        // SAFETY: the caller's promise.
        let domain = unsafe { PdObject::of(pd) }?;
        let region = register(domain, addr, length, iova, access)?;
        let (lkey, rkey) = (region.lkey(), region.rkey());
        object.abi = ibv_mr { context: object.abi.context, pd, addr, length, handle: lkey, lkey, rkey };
        object.access = access;
        object._pd = domain.in_use.clone();
        // The old one goes with this.
        object.region = region;
        Ok(0)
    })
}

/// Deregisters: after it nobody touches the memory.
///
/// # Safety
/// `mr` is a region of ours that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    entry::status(|| {
        let object = NonNull::new(mr.cast::<MrObject>()).ok_or(entry::INVALID)?;
        // SAFETY: it was made by `Box::into_raw`, and the program gives it back.
        let object = unsafe { Box::from_raw(object.as_ptr()) };
        Ok(object.region.dereg()?)
    })
}

/// Advice on regions that page in: ours do so by themselves.
pub(crate) unsafe extern "C" fn advise_mr(
    _pd: *mut ibv_pd,
    _advice: c_uint,
    _flags: u32,
    _sges: *mut ibv_sge,
    _count: u32,
) -> c_int {
    entry::status(|| Err(entry::NOT_OFFERED))
}

/// Declares verbs that return NULL and `EOPNOTSUPP`.
macro_rules! no_pointer {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        $($(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $kind),*) -> *mut $result {
            $(let _ = $arg;)*
            entry::pointer(|| Err(entry::NOT_OFFERED))
        })*
    };
}

no_pointer! {
    /// Memory of other devices: not offered.
    ibv_reg_dmabuf_mr(_pd: *mut ibv_pd, _offset: u64, _length: usize, _iova: u64, _fd: c_int, _access: c_int) -> ibv_mr;
    /// Objects of other processes: not offered.
    ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> ibv_pd;
    /// Objects of other processes: not offered.
    ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> ibv_mr;
    /// Memory on the device: there is none.
    ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> c_void;
}

/// The counterpart of [`ibv_import_pd`], which never succeeds.
#[unsafe(no_mangle)]
pub const extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

/// The counterpart of [`ibv_import_mr`], which never succeeds.
#[unsafe(no_mangle)]
pub const extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

/// The counterpart of [`ibv_import_dm`], which never succeeds.
#[unsafe(no_mangle)]
pub const extern "C" fn ibv_unimport_dm(_dm: *mut c_void) {}
