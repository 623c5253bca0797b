//! Names and services as addresses, and ids made of them.

use std::ffi::{c_char, c_int};
use std::net::SocketAddr;
use std::ptr;
use std::slice;

use ferroce::QpType;
use ferroce::cm::{CmEventType, PortSpace};
use nix::libc::{self, addrinfo, sockaddr, sockaddr_storage};

use super::abi::*;
use super::devices::last_errno;
use super::id::{self, IdObject};
use super::{address, qp};
use crate::abi::*;
use crate::entry::{self, Failure};
use crate::events::lock;

const RAI_PASSIVE: c_int = 1;
const RAI_NUMERICHOST: c_int = 2;
/// How long addresses and paths are looked for.
const RESOLVE_MS: c_int = 2000;

/// What was found, with what it points to.
#[repr(C)]
struct FoundObject {
    abi: rdma_addrinfo,
    src: sockaddr_storage,
    dst: sockaddr_storage,
    connect: Vec<u8>,
}

impl FoundObject {
    /// Makes it, with the pointers to itself.
    fn leak(hints: Option<&rdma_addrinfo>, src: Option<SocketAddr>, dst: Option<SocketAddr>) -> *mut rdma_addrinfo {
        let (qp_type, port_space) = kind_of(hints);
        let stored = |addr: Option<SocketAddr>| addr.map_or_else(address::none, address::storage);
        let family = match dst.or(src) {
            Some(SocketAddr::V4(_)) => libc::AF_INET,
            Some(SocketAddr::V6(_)) => libc::AF_INET6,
            None => libc::AF_UNSPEC,
        };
        let abi = rdma_addrinfo {
            ai_flags: hints.map_or(0, |hints| hints.ai_flags),
            ai_family: family,
            ai_qp_type: qp_type,
            ai_port_space: port_space,
            ai_src_len: src.map_or(0, address::length),
            ai_dst_len: dst.map_or(0, address::length),
            ai_src_addr: ptr::null_mut(),
            ai_dst_addr: ptr::null_mut(),
            ai_src_canonname: ptr::null_mut(),
            ai_dst_canonname: ptr::null_mut(),
            ai_route_len: 0,
            ai_route: ptr::null_mut(),
            ai_connect_len: 0,
            ai_connect: ptr::null_mut(),
            ai_next: ptr::null_mut(),
        };
        let connect = hints.map_or_else(Vec::new, connect_of);
        let found = Box::leak(Box::new(Self { abi, src: stored(src), dst: stored(dst), connect }));
        if src.is_some() {
            found.abi.ai_src_addr = (&raw mut found.src).cast();
        }
        if dst.is_some() {
            found.abi.ai_dst_addr = (&raw mut found.dst).cast();
        }
        if !found.connect.is_empty() {
            found.abi.ai_connect_len = found.connect.len();
            found.abi.ai_connect = found.connect.as_mut_ptr().cast();
        }
        ptr::from_mut(found).cast()
    }
}

/// Private data to connect with.
fn connect_of(from: &rdma_addrinfo) -> Vec<u8> {
    if from.ai_connect.is_null() {
        return Vec::new();
    }
    // SAFETY: the structure says how much there is.
    unsafe { slice::from_raw_parts(from.ai_connect.cast::<u8>(), from.ai_connect_len) }.to_vec()
}

/// QP type and port space: where one is not said, what suits the other; RC over TCP where neither is.
fn kind_of(hints: Option<&rdma_addrinfo>) -> (c_int, c_int) {
    let said = hints.map_or((0, 0), |hints| (hints.ai_qp_type, hints.ai_port_space));
    let (rc, ud) = (c_int::from(QpType::Rc.code()), c_int::from(QpType::Ud.code()));
    let (tcp, udp) = (c_int::from(PortSpace::Tcp.code()), c_int::from(PortSpace::Udp.code()));
    match said {
        (0, 0) => (rc, tcp),
        (0, port_space) => (if port_space == udp { ud } else { rc }, port_space),
        (qp_type, 0) => (qp_type, if qp_type == ud { udp } else { tcp }),
        both => both,
    }
}

/// Asks the system. The error is one of getaddrinfo's.
///
/// # Safety
/// `node` and `service` are C strings or NULL.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<SocketAddr, c_int> {
    let flags = hints.map_or(0, |hints| hints.ai_flags);
    let (_, port_space) = kind_of(hints);
    let is_datagram = port_space == c_int::from(PortSpace::Udp.code());
    // SAFETY: all zeroes are "anything".
    let mut wanted: addrinfo = unsafe { std::mem::zeroed() };
    wanted.ai_family = hints.map_or(libc::AF_UNSPEC, |hints| hints.ai_family);
    wanted.ai_socktype = if is_datagram { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    if flags & RAI_PASSIVE != 0 {
        wanted.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & RAI_NUMERICHOST != 0 {
        wanted.ai_flags |= libc::AI_NUMERICHOST;
    }
    let mut list: *mut addrinfo = ptr::null_mut();
    // SAFETY: the caller's promise.
    let code = unsafe { libc::getaddrinfo(node, service, &raw const wanted, &raw mut list) };
    if code != 0 {
        return Err(code);
    }
    // SAFETY: there is at least one where the call succeeds.
    let first = unsafe { (*list).ai_addr };
    // SAFETY: an address as long as its family has it.
    let addr = unsafe { address::read_some(first) };
    // SAFETY: from the call above.
    unsafe { libc::freeaddrinfo(list) };
    addr.map_err(|_| libc::EAI_FAMILY)
}

/// The address of a host and service: to bind to with `RAI_PASSIVE`, else to connect to. Returns 0, -1 with `errno`, or an error of
/// `getaddrinfo(3)`.
///
/// # Safety
/// `node` and `service` are C strings or NULL; `hints` is NULL or may be read, with what it points to; `res` may be written.
#[unsafe(export_name = "ferroce_rdma_getaddrinfo")]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let hints = unsafe { hints.as_ref() };
        // SAFETY: the caller's promise.
        let res = unsafe { res.as_mut() }.ok_or(entry::INVALID)?;
        let hinted = |addr: fn(&rdma_addrinfo) -> (*mut sockaddr, u32)| match hints.map(addr) {
            // SAFETY: an address as long as it says.
            Some((addr, 1..)) => unsafe { address::read(addr) },
            _ => Ok(None),
        };
        let mut src = hinted(|hints| (hints.ai_src_addr, hints.ai_src_len))?;
        let mut dst = hinted(|hints| (hints.ai_dst_addr, hints.ai_dst_len))?;
        if node.is_null() && service.is_null() {
            if hints.is_none() {
                return Err(entry::INVALID);
            }
        } else {
            // SAFETY: the caller's promise.
            match unsafe { look_up(node, service, hints) } {
                Ok(addr) if hints.is_some_and(|hints| hints.ai_flags & RAI_PASSIVE != 0) => src = Some(addr),
                Ok(addr) => dst = Some(addr),
                Err(code) => return Ok(code),
            }
        }
        *res = FoundObject::leak(hints, src, dst);
        Ok(0)
    })
}

/// Frees what [`rdma_getaddrinfo`] found.
///
/// # Safety
/// `res` is from there and not freed before, or NULL.
#[unsafe(export_name = "ferroce_rdma_freeaddrinfo")]
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    if !res.is_null() {
        // SAFETY: it was made by `FoundObject::leak`, which makes no lists, and is given back.
        drop(unsafe { Box::from_raw(res.cast::<FoundObject>()) });
    }
}

/// An id whose calls wait: bound to its address (`RAI_PASSIVE`), else with its path resolved; with `init` also with a QP, or for
/// a listener with the plan for the QPs of its requests.
///
/// # Safety
/// `id` may be written, `res` is from [`rdma_getaddrinfo`], `pd` a domain of ours or NULL, `init` NULL or may be read and written.
#[unsafe(export_name = "ferroce_rdma_create_ep")]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let id = unsafe { id.as_mut() }.ok_or(entry::INVALID)?;
        // SAFETY: the caller's promise.
        let res = unsafe { res.as_ref() }.ok_or(entry::INVALID)?;
        let mut made = ptr::null_mut();
        let port_space = res.ai_port_space.cast_unsigned();
        // SAFETY: it may be written.
        done(unsafe { id::rdma_create_id(ptr::null_mut(), &raw mut made, ptr::null_mut(), port_space) })?;
        // SAFETY: the caller's promise; the id was just made.
        if let Err(failure) = unsafe { prepare(made, res, pd, init) } {
            // SAFETY: just made.
            unsafe { id::rdma_destroy_id(made) };
            return Err(failure);
        }
        *id = made;
        Ok(0)
    })
}

/// What a call of ours says, with its `errno`.
fn done(result: c_int) -> Result<(), Failure> {
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// # Safety
/// As [`rdma_create_ep`]; `made` is an id of ours.
unsafe fn prepare(
    made: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let object = unsafe { IdObject::of(made) }?;
    // SAFETY: the caller's promise.
    let mut init = unsafe { init.as_mut() };
    if let Some(init) = &mut init {
        init.qp_type = res.ai_qp_type.cast_unsigned();
    }
    if res.ai_flags & RAI_PASSIVE != 0 {
        // SAFETY: the caller's promise.
        done(unsafe { id::rdma_bind_addr(made, res.ai_src_addr) })?;
        lock(&object.state).qp_of_requests = init.map(|init| *init);
        object.change(|abi| abi.pd = if pd.is_null() { abi.pd } else { pd });
        return Ok(());
    }
    // SAFETY: the caller's promise.
    done(unsafe { id::rdma_resolve_addr(made, res.ai_src_addr, res.ai_dst_addr, RESOLVE_MS) })?;
    // SAFETY: the caller's promise.
    done(unsafe { id::rdma_resolve_route(made, RESOLVE_MS) })?;
    lock(&object.state).connect = connect_of(res);
    match init {
        // SAFETY: the caller's promise.
        Some(init) => unsafe { qp::create(object, pd, init) },
        None => Ok(()),
    }
}

/// Destroys an id with its QP and SRQ.
///
/// # Safety
/// `id` is an id of ours that nobody uses any more.
#[unsafe(export_name = "ferroce_rdma_destroy_ep")]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    unsafe { qp::rdma_destroy_qp(id) };
    // SAFETY: the caller's promise.
    unsafe { qp::rdma_destroy_srq(id) };
    // SAFETY: the caller's promise.
    unsafe { id::rdma_destroy_id(id) };
}

/// The next request to a listener whose calls wait, as an id whose event is the request.
///
/// # Safety
/// `listen` is an id of ours, `id` may be written.
#[unsafe(export_name = "ferroce_rdma_get_request")]
pub unsafe extern "C" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let listener = unsafe { IdObject::of(listen) }?;
        // SAFETY: the caller's promise.
        let id = unsafe { id.as_mut() }.ok_or(entry::INVALID)?;
        if !listener.waits() {
            return Err(entry::INVALID);
        }
        let event = listener.wait_for_any()?;
        if event.status() != 0 || event.event() != u32::from(CmEventType::ConnectRequest.code()) {
            return Err(entry::INVALID);
        }
        // SAFETY: the id of a request lives.
        let request = unsafe { IdObject::of(event.id()) }?;
        let plan = lock(&listener.state).qp_of_requests;
        if let Some(mut plan) = plan {
            let pd = listener.read(|abi| abi.pd);
            // SAFETY: what the program gave when it made the listener.
            if let Err(failure) = unsafe { qp::create(request, pd, &mut plan) } {
                listener.acknowledge_last();
                // SAFETY: the program has not got it: its peer is rejected.
                unsafe { id::rdma_destroy_id(request.as_ptr()) };
                return Err(failure);
            }
        }
        let kept = listener.read(|abi| abi.event);
        listener.change(|abi| abi.event = ptr::null_mut());
        request.change(|abi| abi.event = kept);
        *id = request.as_ptr();
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_addresses_point_to_themselves_and_say_what_they_are_for() {
        let mut found = ptr::null_mut();
        // SAFETY: all zeroes are valid hints.
        let mut hints: rdma_addrinfo = unsafe { std::mem::zeroed() };
        hints.ai_port_space = c_int::from(PortSpace::Udp.code());
        hints.ai_flags = RAI_NUMERICHOST;
        let mut data = *b"hello";
        hints.ai_connect = data.as_mut_ptr().cast();
        hints.ai_connect_len = data.len();
        // SAFETY: strings, hints and a place for the result.
        let code =
            unsafe { rdma_getaddrinfo(c"10.0.0.7".as_ptr(), c"7471".as_ptr(), &raw const hints, &raw mut found) };
        assert_eq!(code, 0);
        // SAFETY: it succeeded.
        let info = unsafe { &*found };
        // SAFETY: it says that there is an address.
        assert_eq!(unsafe { address::read(info.ai_dst_addr) }, Ok(Some("10.0.0.7:7471".parse().unwrap())));
        assert_eq!((info.ai_dst_len, info.ai_src_len, info.ai_family), (16, 0, libc::AF_INET));
        assert_eq!(info.ai_qp_type, c_int::from(QpType::Ud.code()));
        assert_eq!(connect_of(info), b"hello");
        // SAFETY: found above, and freed once.
        unsafe { rdma_freeaddrinfo(found) };
        // SAFETY: likewise.
        let code = unsafe { rdma_getaddrinfo(c"no number".as_ptr(), ptr::null(), &raw const hints, &raw mut found) };
        assert_eq!(code, libc::EAI_NONAME);
    }
}
