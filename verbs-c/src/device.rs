//! The daemons of this host as devices.
//!
//! `FERROCE_SOCKETS` names their sockets, separated by colons, or folders of them; without it they are the sockets
//! `/run/ferroce/*.sock`. A device has the name that its daemon gives it; a name that is taken already becomes `ferroceN` with
//! the lowest free N.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_void};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::Mutex;

use ferroce::{Context, DeviceAttr};

use crate::abi::{ibv_context, ibv_device};
use crate::context::ContextObject;
use crate::entry;
use crate::events::lock;

/// Folder of sockets if nobody says otherwise.
const SOCKET_FOLDER: &str = "/run/ferroce";
/// Names sockets and folders of sockets.
const SOCKETS_VARIABLE: &str = "FERROCE_SOCKETS";
/// Root of the view of sysfs that [`crate::strings`] reads too; as in rdma-core.
pub(crate) const SYSFS_VARIABLE: &str = "SYSFS_PATH";
const NODE_CA: c_int = 1;
const TRANSPORT_IB: c_int = 0;

/// A device, and a bit of nothing behind it: vendors' libraries look at what rdma-core keeps there, to see that the device is
/// none of theirs. Made once for a socket and never freed: programs keep pointers to it.
#[repr(C)]
struct DeviceObject {
    abi: ibv_device,
    private: [u64; 16],
    socket: PathBuf,
    name: String,
    node_guid: u64,
}

/// Devices found so far.
struct Found(Vec<NonNull<DeviceObject>>);

// SAFETY: devices are never changed once they are made, nor freed.
unsafe impl Send for Found {}

static FOUND: Mutex<Found> = Mutex::new(Found(Vec::new()));

impl DeviceObject {
    fn new(socket: &Path, name: String, attr: &DeviceAttr, number: usize) -> Self {
        let root = std::env::var(SYSFS_VARIABLE).unwrap_or_else(|_| "/sys".to_owned());
        let abi = ibv_device {
            ops: [0; 2],
            node_type: NODE_CA,
            transport_type: TRANSPORT_IB,
            name: text(&name),
            dev_name: text(&format!("uverbs{number}")),
            dev_path: text(&format!("{root}/class/infiniband_verbs/uverbs{number}")),
            ibdev_path: text(&format!("{root}/class/infiniband/{name}")),
        };
        Self { abi, private: [0; 16], socket: socket.to_owned(), name, node_guid: attr.node_guid }
    }
}

/// A C string in an array: cut to what fits.
pub(crate) fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, byte) in array.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = byte.cast_signed();
    }
    array
}

/// The sockets there are, in the order of their names.
fn sockets() -> Vec<PathBuf> {
    let named = std::env::var_os(SOCKETS_VARIABLE).unwrap_or_else(|| SOCKET_FOLDER.into());
    std::env::split_paths(&named).flat_map(|path| if path.is_dir() { sockets_in(&path) } else { vec![path] }).collect()
}

fn sockets_in(folder: &Path) -> Vec<PathBuf> {
    let is_socket = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_socket());
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().filter(is_socket);
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "sock")).collect();
    // Shorter first, so that 10 comes after 9.
    paths.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
    paths
}

/// The daemon's own name for the device if no other has it.
fn free_name(wanted: &str, taken: &BTreeSet<String>) -> String {
    let numbered = (0..).map(|number| format!("ferroce{number}"));
    let mut names = std::iter::once(wanted.to_owned()).chain(numbered).filter(|name| !name.is_empty());
    names.find(|name| !taken.contains(name)).unwrap_or_else(|| wanted.to_owned())
}

/// The devices whose daemons answer now.
fn devices() -> Vec<NonNull<DeviceObject>> {
    let mut found = lock(&FOUND);
    let mut answering = Vec::new();
    for socket in sockets() {
        // Who does not answer is no device now, and may be one later.
        let Ok(context) = Context::connect(&socket).inspect_err(entry::explain) else { continue };
        // SAFETY: devices are never freed or changed.
        let known = found.0.iter().copied().find(|device| unsafe { device.as_ref() }.socket == socket);
        answering.push(known.unwrap_or_else(|| {
            // SAFETY: as above.
            let taken = found.0.iter().map(|device| unsafe { device.as_ref() }.name.clone()).collect();
            let name = free_name(&context.device().name, &taken);
            let device = DeviceObject::new(&socket, name, context.device(), found.0.len());
            let device = NonNull::from(Box::leak(Box::new(device)));
            found.0.push(device);
            device
        }));
    }
    answering
}

/// A device that [`ibv_get_device_list`] has given out.
///
/// # Safety
/// `device` is such a pointer, or NULL.
unsafe fn object<'a>(device: *mut ibv_device) -> Option<&'a DeviceObject> {
    // SAFETY: it points to the first field of a `DeviceObject`, which lives for ever and does not change.
    unsafe { device.cast::<DeviceObject>().as_ref() }
}

/// The devices, ended by NULL; `num_devices`, if given, gets their number. Free it with [`ibv_free_device_list`]. Without a
/// daemon the list is empty.
///
/// # Safety
/// As `ibv_get_device_list(3)` says: `num_devices` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    entry::pointer(|| {
        let devices = devices();
        // SAFETY: the caller's promise.
        if let Some(count) = unsafe { num_devices.as_mut() } {
            *count = devices.len() as c_int;
        }
        let mut list: Vec<*mut ibv_device> = devices.iter().map(|device| device.as_ptr().cast()).collect();
        list.push(ptr::null_mut());
        Ok(Box::into_raw(list.into_boxed_slice()).cast())
    })
}

/// Frees a list; its devices stay valid.
///
/// # Safety
/// `list` is from [`ibv_get_device_list`], not changed and not freed before, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if list.is_null() {
        return;
    }
    let (mut count, mut at) = (1, list);
    // SAFETY: the list ends with a NULL, which we have not passed.
    while !unsafe { *at }.is_null() {
        // SAFETY: there is one more behind an entry that is not the NULL.
        at = unsafe { at.add(1) };
        count += 1;
    }
    // SAFETY: the allocation of `ibv_get_device_list`, of the same length.
    drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, count)) });
}

/// The device's name.
///
/// # Safety
/// `device` is from a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { object(device) }.map_or(ptr::null(), |device| device.abi.name.as_ptr())
}

/// The device's GUID, in network order: the EUI-64 of its first port.
///
/// # Safety
/// `device` is from a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { object(device) }.map_or(0, |device| device.node_guid.to_be())
}

/// The kernel's number of the device: there is none.
///
/// # Safety
/// `device` is from a list.
#[unsafe(no_mangle)]
pub const unsafe extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}

/// Opens a session with the device's daemon.
///
/// # Safety
/// `device` is from a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    entry::pointer(|| {
        // SAFETY: the caller's promise.
        let known = unsafe { object(device) }.ok_or(entry::INVALID)?;
        let context = Context::connect(&known.socket)?;
        crate::memory::set_tiers(&context);
        Ok(ContextObject::open(device, context))
    })
}

/// Ends the session once all that was made in it is destroyed.
///
/// # Safety
/// `context` is from [`ibv_open_device`] and not closed before; nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    entry::status(|| {
        // SAFETY: the caller's promise.
        drop(unsafe { ContextObject::take(context) });
        Ok(())
    })
}

/// A device over another process's descriptor: not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut ibv_context {
    entry::pointer(|| Err(entry::NOT_OFFERED))
}

/// fork() is safe without it: nothing is pinned, and the child has none of our memory to lose.
#[unsafe(no_mangle)]
pub const extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `IBV_FORK_UNNEEDED`.
#[unsafe(no_mangle)]
pub const extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

/// Nothing to do: see [`ibv_fork_init`].
#[unsafe(no_mangle)]
pub const extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Nothing to do: see [`ibv_fork_init`].
#[unsafe(no_mangle)]
pub const extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_is_replaced_by_the_lowest_free_number() {
        let taken = ["ferroce0", "ferroce1", "blue"].map(str::to_owned).into();
        assert_eq!(free_name("green", &taken), "green");
        assert_eq!(free_name("blue", &taken), "ferroce2");
        assert_eq!(free_name("", &taken), "ferroce2");
    }

    #[test]
    fn text_is_cut_and_ended() {
        assert_eq!(text::<4>("ab"), [97, 98, 0, 0]);
        assert_eq!(text::<4>("abcdef"), [97, 98, 99, 0]);
    }
}
