//! A private view of `/sys/class` and `/dev` in which our devices are to be seen: for programs that look there themselves.
//!
//! It lives in a mount namespace of the program's own (without root in a user namespace too), and ends with it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{geteuid, getgid, getuid};
use shm::attr::{DeviceAttr, GidEntry, GidType, PortAttr};

use crate::client::{Client, ClientError};

/// A device as the view shows it.
pub(super) struct Device {
    name: String,
    attr: DeviceAttr,
    ports: Vec<(PortAttr, Vec<GidEntry>)>,
}

/// Why there is no view.
#[derive(thiserror::Error, Debug)]
pub(crate) enum ViewError {
    /// The system forbids it.
    #[error("{what}: {error}; without root, user namespaces must be allowed (sysctl user.max_user_namespaces)")]
    Os {
        /// What was tried.
        what: String,
        /// What the system says; the sentence has it, so it is no `source`.
        error: io::Error,
    },
    /// A daemon.
    #[error(transparent)]
    Daemon(#[from] ClientError),
}

fn os<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> ViewError {
    move |error| ViewError::Os { what: what.into(), error: error.into() }
}

/// Asks the daemons at these sockets what they are. Who does not answer is left out, as in the library.
pub(super) fn devices(sockets: &OsString) -> Result<Vec<Device>, ViewError> {
    let mut devices: Vec<Device> = Vec::new();
    for socket in std::env::split_paths(sockets).flat_map(|path| sockets_at(&path)) {
        let Ok(client) = Client::connect(&socket) else { continue };
        let attr = client.device()?;
        let ports = (1..=attr.phys_port_cnt).map(|port| Ok((client.port(port)?, client.gids(port)?)));
        let ports = ports.collect::<Result<_, ClientError>>()?;
        let taken = |name: &str| name.is_empty() || devices.iter().any(|device| device.name == name);
        let mut names = std::iter::once(attr.name.clone()).chain((0..).map(|number| format!("ferroce{number}")));
        let name = names.find(|name| !taken(name)).unwrap_or_default();
        devices.push(Device { name, attr, ports });
    }
    Ok(devices)
}

/// Whether there is a socket that the library would try.
pub(super) fn has_sockets(sockets: &OsString) -> bool {
    std::env::split_paths(sockets).flat_map(|path| sockets_at(&path)).any(|path| path.exists())
}

/// A socket, or those of a folder in the library's order.
fn sockets_at(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else { return vec![path.to_owned()] };
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "sock"));
    found.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
    found
}

/// Puts this process, and with it the program that it becomes, into the view.
///
/// # Errors
/// [`ViewError::Os`].
pub(super) fn enter(devices: &[Device]) -> Result<(), ViewError> {
    isolate()?;
    let stage = Path::new("/tmp");
    // Everybody has /tmp. What lies there is hidden while the view is made, and seen again once it stands.
    mount_tmpfs(stage)?;
    let (upper, work) = (stage.join("upper"), stage.join("work"));
    for (number, device) in devices.iter().enumerate() {
        device.write(&upper, number).map_err(os("writing the view of /sys/class"))?;
    }
    fs::create_dir_all(&upper).and_then(|()| fs::create_dir_all(&work)).map_err(os("writing the view"))?;
    let options = format!("lowerdir=/sys/class,upperdir={},workdir={}", upper.display(), work.display());
    mount(Some("ferroce"), "/sys/class", Some("overlay"), MsFlags::empty(), Some(options.as_str()))
        .map_err(os("an overlay on /sys/class"))?;
    show_devices(stage, devices.len())?;
    nix::mount::umount2(stage, nix::mount::MntFlags::MNT_DETACH).map_err(os("showing /tmp again"))
}

/// Namespaces of our own, from which nothing gets out.
fn isolate() -> Result<(), ViewError> {
    let (uid, gid) = (getuid(), getgid());
    if geteuid().is_root() {
        unshare(CloneFlags::CLONE_NEWNS).map_err(os("a mount namespace"))?;
    } else {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).map_err(os("a user namespace"))?;
        // The program stays who it was.
        let written = fs::write("/proc/self/setgroups", "deny")
            .and_then(|()| fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")))
            .and_then(|()| fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")));
        written.map_err(os("the user namespace's maps"))?;
    }
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .map_err(os("private mounts"))
}

fn mount_tmpfs(at: &Path) -> Result<(), ViewError> {
    mount(Some("ferroce"), at, Some("tmpfs"), MsFlags::empty(), Some("mode=755")).map_err(os("a tmpfs"))
}

fn bind(from: &Path, to: &Path) -> Result<(), Errno> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
}

/// Makes `/dev/infiniband/uverbsN`, each `/dev/null` by another name: programs look whether it is a character device that they
/// may open. Where `/dev` has no such folder, another `/dev` takes its place, with all that is in the old one.
fn show_devices(stage: &Path, count: usize) -> Result<(), ViewError> {
    let dev = Path::new("/dev");
    let folder = dev.join("infiniband");
    if folder.is_dir() {
        mount_tmpfs(&folder)?;
        return make_nodes(&folder, count).map_err(os("/dev/infiniband"));
    }
    let new = stage.join("dev");
    let made = copy_dev(dev, &new).and_then(|()| fs::create_dir(new.join("infiniband")));
    made.and_then(|()| make_nodes(&new.join("infiniband"), count)).map_err(os("a view of /dev"))?;
    bind(&new, dev).map_err(os("showing the view of /dev"))
}

fn make_nodes(folder: &Path, count: usize) -> io::Result<()> {
    for number in 0..count {
        let node = folder.join(format!("uverbs{number}"));
        fs::write(&node, "")?;
        bind(Path::new("/dev/null"), &node)?;
    }
    Ok(())
}

/// A folder in which everything of `/dev` is found.
fn copy_dev(dev: &Path, new: &Path) -> io::Result<()> {
    fs::create_dir(new)?;
    for entry in fs::read_dir(dev)? {
        let entry = entry?;
        let (from, to) = (entry.path(), new.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
        } else {
            if kind.is_dir() {
                fs::create_dir(&to)?
            } else {
                fs::write(&to, "")?
            }
            bind(&from, &to)?;
        }
    }
    Ok(())
}

impl Device {
    /// Writes what `/sys/class` has of a device, below `class`.
    fn write(&self, class: &Path, number: usize) -> io::Result<()> {
        let device = class.join("infiniband").join(&self.name);
        let guid = self.attr.node_guid;
        let words: Vec<String> = (0..4).map(|word| format!("{:04x}", guid >> (48 - 16 * word) & 0xffff)).collect();
        put(&device, "node_guid", &words.join(":"))?;
        put(&device, "sys_image_guid", &words.join(":"))?;
        put(&device, "node_type", "1: CA")?;
        put(&device, "fw_ver", &self.attr.fw_ver)?;
        for ((port, gids), port_num) in self.ports.iter().zip(1..) {
            write_port(&device.join("ports").join(port_num.to_string()), port, gids)?;
        }
        let verbs = class.join("infiniband_verbs").join(format!("uverbs{number}"));
        put(&verbs, "ibdev", &self.name)?;
        put(&verbs, "abi_version", "1")?;
        put(&verbs, "dev", "1:3")
    }
}

fn write_port(folder: &Path, port: &PortAttr, gids: &[GidEntry]) -> io::Result<()> {
    let (state, physical) = if port.active { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
    put(folder, "state", state)?;
    put(folder, "phys_state", physical)?;
    put(folder, "link_layer", "Ethernet")?;
    put(folder, "lid", "0x0")?;
    put(folder, "rate", &format!("{} Gb/sec", f64::from(port.speed_mbps) / 1000.0))?;
    put(&folder.join("pkeys"), "0", "0xffff")?;
    for entry in gids {
        let index = entry.index.to_string();
        let words: Vec<String> = entry.gid.0.chunks(2).map(|two| format!("{:02x}{:02x}", two[0], two[1])).collect();
        put(&folder.join("gids"), &index, &words.join(":"))?;
        let kind = match entry.gid_type {
            GidType::RoceV1 => "IB/RoCE v1",
            GidType::RoceV2 => "RoCE v2",
        };
        put(&folder.join("gid_attrs/types"), &index, kind)?;
        put(&folder.join("gid_attrs/ndevs"), &index, port.kernel_interface.as_deref().unwrap_or_default())?;
    }
    Ok(())
}

/// Writes a file of one line.
fn put(folder: &Path, name: &str, line: &str) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join(name), format!("{line}\n"))
}
