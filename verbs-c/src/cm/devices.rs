//! The devices of this process: opened once, with a protection domain each, as librdmacm does. Ids of all channels share them.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ptr;
use std::sync::{Arc, Mutex};

use ferroce::Context;
use nix::errno::Errno;

use super::id::IdObject;
use crate::abi::*;
use crate::context::{ContextObject, Session};
use crate::device;
use crate::entry::{self, Failure};
use crate::events::{Table, lock};
use crate::memory;

/// An open device.
pub(crate) struct Device {
    pub(super) verbs: *mut ibv_context,
    /// The domain of ids whose program brings none.
    pub(super) pd: *mut ibv_pd,
    session: Arc<Session>,
    /// Its ids, by their numbers in the session.
    pub(super) ids: Table<IdObject>,
}

// SAFETY: the pointers are to objects of ours that any thread may use, and that are never freed.
unsafe impl Send for Device {}
// SAFETY: likewise.
unsafe impl Sync for Device {}

impl Device {
    fn open(device: *mut ibv_device) -> Result<Self, Failure> {
        // SAFETY: a device of the list, which lives for ever.
        let verbs = unsafe { device::ibv_open_device(device) };
        // SAFETY: NULL, or just opened.
        let session = unsafe { ContextObject::session(verbs) }.map_err(|_| last_errno())?;
        // SAFETY: open.
        let pd = unsafe { memory::ibv_alloc_pd(verbs) };
        if pd.is_null() {
            return Err(last_errno());
        }
        Ok(Self { verbs, pd, session, ids: Table::default() })
    }

    /// The session with its daemon.
    pub(crate) fn context(&self) -> &Context {
        &self.session.context
    }

    fn has(&self, ip: IpAddr) -> bool {
        let gids = self.context().query_gids(1).unwrap_or_default();
        gids.iter().any(|entry| entry.gid.ip() == ip)
    }
}

/// The devices, and the process that opened them: a child has to open its own.
struct Opened {
    by: u32,
    devices: Vec<Arc<Device>>,
}

static OPENED: Mutex<Opened> = Mutex::new(Opened { by: 0, devices: Vec::new() });

/// What the failed call of ours before this one left in `errno`.
pub(super) fn last_errno() -> Failure {
    Failure(Errno::last_raw())
}

/// The devices whose daemons live; looks for new ones if there are none, or one has gone.
///
/// # Errors
/// `ENODEV` if no daemon answers.
pub(crate) fn all() -> Result<Vec<Arc<Device>>, Failure> {
    let mut opened = lock(&OPENED);
    let ours = opened.by == std::process::id();
    if !ours || opened.devices.is_empty() || opened.devices.iter().any(|device| !device.context().is_alive()) {
        let alive = std::mem::take(&mut opened.devices).into_iter().filter(|known| ours && known.context().is_alive());
        let found = look(alive.collect());
        *opened = Opened { by: std::process::id(), devices: found };
    }
    if opened.devices.is_empty() { Err(Errno::ENODEV.into()) } else { Ok(opened.devices.clone()) }
}

/// All devices there are now: those that are open, and the others opened. What is left out stays as it is: programs may have
/// pointers to its parts.
fn look(open: Vec<Arc<Device>>) -> Vec<Arc<Device>> {
    let mut count: c_int = 0;
    // SAFETY: the count may be written.
    let list = unsafe { device::ibv_get_device_list(&raw mut count) };
    let mut found = Vec::new();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries.
        let entry = unsafe { list.add(index) };
        // SAFETY: likewise.
        let device = unsafe { *entry };
        // SAFETY: contexts of open devices are never freed.
        let known = open.iter().find(|known| unsafe { (*known.verbs).device } == device).cloned();
        found.extend(known.or_else(|| Device::open(device).ok().map(Arc::new)));
    }
    // SAFETY: from the call above.
    unsafe { device::ibv_free_device_list(list) };
    found
}

/// The device to reach a destination from: the one that has the source address, else the one that the host would send from, else
/// the first.
pub(crate) fn towards(src: Option<SocketAddr>, dst: SocketAddr) -> Result<Arc<Device>, Failure> {
    let devices = all()?;
    if let [only] = devices.as_slice() {
        return Ok(Arc::clone(only));
    }
    let named = src.map(|src| src.ip()).filter(|ip| !ip.is_unspecified());
    let source = named.or_else(|| source_of_host(dst));
    let found = devices.iter().find(|device| source.is_some_and(|ip| device.has(ip)));
    found.or(devices.first()).cloned().ok_or(Errno::ENODEV.into())
}

/// The source address that the kernel's routes have for a destination. Nothing is sent.
fn source_of_host(dst: SocketAddr) -> Option<IpAddr> {
    let any = if dst.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(dst).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The open devices, ended by NULL; `num_devices`, if given, gets their number.
///
/// # Safety
/// `num_devices` is NULL or may be written.
#[unsafe(export_name = "ferroce_rdma_get_devices")]
pub unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    entry::pointer(|| {
        let devices = all()?;
        // SAFETY: the caller's promise.
        if let Some(count) = unsafe { num_devices.as_mut() } {
            *count = devices.len() as c_int;
        }
        let mut list: Vec<*mut ibv_context> = devices.iter().map(|device| device.verbs).collect();
        list.push(ptr::null_mut());
        Ok(Box::into_raw(list.into_boxed_slice()).cast())
    })
}

/// Frees a list; its devices stay open.
///
/// # Safety
/// `list` is from [`rdma_get_devices`], not changed and not freed before, or NULL.
#[unsafe(export_name = "ferroce_rdma_free_devices")]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: it is a list of pointers ended by NULL, made in the same way as those of devices, which that one frees.
    unsafe { device::ibv_free_device_list(list.cast()) };
}
