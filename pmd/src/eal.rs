//! `Eal`: DPDK's environment, started once a process.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::unistd::{AccessFlags, access};
use thiserror::Error;

use crate::lcore::{LcoreError, RegisteredThread, available_cores};
use crate::memory::{self, MemoryMode, hugepage_sizes, hugetlbfs_mount};
use crate::vdev::{Driver, Vdev};

/// How much DPDK says on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// What failed.
    Error,
    /// And what may go wrong.
    #[default]
    Warning,
    /// And how it starts up.
    Info,
    /// Everything.
    Debug,
}

impl LogLevel {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

/// How to start DPDK.
#[derive(Clone, Debug)]
pub struct EalConfig {
    /// Where packet buffers lie. Default: [`MemoryMode::best_available`] with 256 MiB.
    pub memory: MemoryMode,
    /// Tells apart the files of processes with [`MemoryMode::Hugepages`]: each needs its own. Default: `ferroce-<pid>`.
    pub file_prefix: Option<String>,
    /// The core that DPDK's own start-up runs on; its service threads avoid it. Default: the first available.
    pub main_core: Option<usize>,
    /// Virtual devices to make.
    pub vdevs: Vec<Vdev>,
    /// Addresses of the PCI devices to take, `0000:3b:00.0`; no other device is touched. They must be bound to VFIO first.
    pub pci: Vec<String>,
    /// How much DPDK says on standard error.
    pub log_level: LogLevel,
    /// More arguments of EAL's own, behind the others.
    pub extra_args: Vec<String>,
}

impl Default for EalConfig {
    fn default() -> Self {
        Self {
            memory: MemoryMode::best_available(256),
            file_prefix: None,
            main_core: None,
            vdevs: Vec::new(),
            pci: Vec::new(),
            log_level: LogLevel::default(),
            extra_args: Vec::new(),
        }
    }
}

/// Why DPDK did not start, or a virtual device was not made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EalError {
    /// DPDK starts once a process; [`Eal::get`] gives the running one.
    #[error("DPDK is already running in this process, and cannot be started twice")]
    AlreadyStarted,
    /// No hugepage is reserved.
    #[error(
        "no hugepages are free on this machine: reserve some, for example 512 of 2 MiB with \
         `echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages` as root, or choose memory without hugepages"
    )]
    NoHugepages,
    /// There is no hugetlbfs, or it is not for this user.
    #[error(
        "{}: mount it with `mount -t hugetlbfs -o uid=$(id -u) none /dev/hugepages` as root, or choose in-memory hugepages, which \
         need no mount, or no hugepages",
        match .mount { Some(path) => format!("hugetlbfs at {path} cannot be written to by this user"),
                       None => "no hugetlbfs is mounted".to_owned() }
    )]
    NoHugetlbfs {
        /// The mount point, if there is one.
        mount: Option<String>,
    },
    /// The memory limit is outside its range.
    #[error("{mib} MiB of memory without hugepages: 64 to 1048576 are possible")]
    MemoryLimit {
        /// The limit asked for.
        mib: u32,
    },
    /// The core is not one of this process's.
    #[error("main core {core}: the cores of this process are {available:?}")]
    MainCore {
        /// The core asked for.
        core: usize,
        /// The cores of the process.
        available: Vec<usize>,
    },
    /// Not a PCI address.
    #[error(
        "`{0}` is not a PCI address such as 0000:3b:00.0 (domain:bus:device.function, in hexadecimal; the domain may be left out)"
    )]
    PciAddress(String),
    /// PCI devices cannot reach memory that is not pinned.
    #[error("PCI device {0} needs hugepages: choose hugepages or in-memory hugepages")]
    PciWithoutHugepages(String),
    /// virtio_user needs single-file segments, which cannot be unlinked and would stay in the hugetlbfs.
    #[error("{0}: this device needs in-memory hugepages, or none")]
    NeedsInMemory(Vdev),
    /// An argument has a zero byte, which C cannot take.
    #[error("the argument {0:?} has a zero byte")]
    Argument(String),
    /// DPDK refused; its own words are on standard error.
    #[error("DPDK did not start: {}", start_reason(*.0))]
    Refused(Errno),
    /// The kernel has no such interface.
    #[error("{vdev}: there is no interface `{interface}` in this network namespace")]
    NoInterface {
        /// The device refused.
        vdev: Vdev,
        /// The interface that it names.
        interface: String,
    },
    /// The driver refused the device.
    #[error("{vdev}: the driver refused the device: {}", vdev_reason(.vdev, *.errno))]
    VdevRefused {
        /// The device refused.
        vdev: Vdev,
        /// The driver's reason.
        errno: Errno,
    },
    /// A device of that name exists.
    #[error("{0}: there is a device of this name already")]
    VdevExists(Vdev),
    /// The start-up thread could not be made.
    #[error("no thread to start DPDK on: {0}")]
    Thread(String),
}

fn start_reason(errno: Errno) -> String {
    match errno {
        Errno::EACCES | Errno::EPERM => {
            "permission denied (see hugepages.md for what an ordinary user may do)".to_owned()
        }
        Errno::ENOMEM => "not enough memory; fewer buffers or more hugepages are needed".to_owned(),
        Errno::EALREADY => "a start was tried before in this process and failed; that cannot be repeated".to_owned(),
        Errno::EINVAL => "it does not accept an argument".to_owned(),
        errno => errno.to_string(),
    }
}

fn vdev_reason(vdev: &Vdev, errno: Errno) -> String {
    let needs = match vdev.driver() {
        Driver::AfPacket => match memory::lockable_bytes() {
            // The driver does not pass the kernel's reason on.
            Some(left) if vdev.af_packet_ring_bytes() > left => {
                let (needed_kib, left_kib) = (vdev.af_packet_ring_bytes() / 1024, left / 1024);
                return format!(
                    "its rings need {needed_kib} KiB of locked memory, and {left_kib} KiB are left to this process: raise RLIMIT_MEMLOCK \
                     (`ulimit -l`, or LimitMEMLOCK= of a service), or give the device fewer slots (framecnt=)"
                );
            }
            // Its PACKET_FANOUT group is made of the process number and the interface's: two processes may come to the same.
            _ => {
                "it needs CAP_NET_RAW, ring sizes that the kernel accepts, and a fanout group that no other process of this network namespace \
                 has: a new start has another"
            }
        },
        Driver::AfXdp => "it needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF",
        Driver::Tap => "it needs CAP_NET_ADMIN, /dev/net/tun, and a free interface name",
        Driver::Pcap => "it needs CAP_NET_RAW",
        Driver::Memif => "its socket path must be writable, at most 107 bytes long, and its id below 2^32",
        _ => return errno.to_string(),
    };
    format!("{errno}; {needs}")
}

/// Proof that DPDK runs. It does so until the process ends: there is no clean-up, since memory that packet buffers lie in
/// must outlive each of them. Nothing is left behind: files in a hugetlbfs are unlinked as they are made.
///
/// DPDK installs no handler for SIGINT, SIGTERM or the like. Each start costs some 130 ms, 100 of them to calibrate the TSC.
#[derive(Clone, Copy, Debug)]
pub struct Eal {
    _started: (),
}

/// What the process has started.
struct State {
    eal: Option<Eal>,
    /// The virtual devices made by us, for the quirks of their ports.
    vdevs: Vec<Vdev>,
}

static STATE: Mutex<State> = Mutex::new(State { eal: None, vdevs: Vec::new() });

fn state() -> MutexGuard<'static, State> {
    // Each critical section leaves the state whole, so that a panic elsewhere in one does not spoil it.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Devices come, are set up and go one at a time: DPDK's lists of them bear no two threads. Taken before [`STATE`].
pub(crate) fn device_lock() -> MutexGuard<'static, ()> {
    static DEVICES: Mutex<()> = Mutex::new(());
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `rte_errno` of the calling thread.
pub(crate) fn last_errno() -> Errno {
    // SAFETY: reads a thread-local integer.
    Errno::from_raw(unsafe { ffi::ferroce_errno() })
}

impl Eal {
    /// Starts DPDK and makes the configured virtual devices. The calling thread keeps its affinity: start-up runs on a thread of its own.
    ///
    /// # Errors
    /// See [`EalError`]. When a virtual device is refused, DPDK itself is up: [`Eal::get`] gives it.
    pub fn init(config: &EalConfig) -> Result<Self, EalError> {
        let eal = {
            // Held across the start, so that a second caller waits for the outcome of the first.
            let mut state = state();
            if state.eal.is_some() {
                return Err(EalError::AlreadyStarted);
            }
            start(config)?;
            if config.memory == MemoryMode::Hugepages {
                remove_runtime_directory();
            }
            *state.eal.insert(Self { _started: () })
        };
        config.vdevs.iter().try_for_each(|vdev| eal.add_vdev(vdev))?;
        Ok(eal)
    }

    /// The running DPDK, if [`Eal::init`] has succeeded in this process.
    #[must_use]
    pub fn get() -> Option<Self> {
        state().eal
    }

    /// The running DPDK, or one started with `config`: for embedded engines, of which a process may have several.
    /// When it runs already, only the virtual devices of `config` are made.
    ///
    /// # Errors
    /// As [`Eal::init`], without [`EalError::AlreadyStarted`].
    pub fn get_or_init(config: &EalConfig) -> Result<Self, EalError> {
        match Self::init(config) {
            Err(EalError::AlreadyStarted) => {
                let eal = Self::get().ok_or(EalError::AlreadyStarted)?;
                config.vdevs.iter().try_for_each(|vdev| eal.add_vdev(vdev))?;
                Ok(eal)
            }
            outcome => outcome,
        }
    }

    /// Makes a virtual device. Its port has its name; dropping the started port removes it.
    ///
    /// # Errors
    /// [`EalError::NoInterface`], [`EalError::VdevExists`] or [`EalError::VdevRefused`].
    pub fn add_vdev(self, vdev: &Vdev) -> Result<(), EalError> {
        if let Some(interface) = vdev.kernel_interface()
            && if_nametoindex(interface).is_err()
        {
            return Err(EalError::NoInterface { vdev: vdev.clone(), interface: interface.to_owned() });
        }
        let c_string = |text: String| CString::new(text).map_err(|_| EalError::Argument(vdev.to_string()));
        let (name, arguments) = (c_string(vdev.name().to_owned())?, c_string(vdev.arguments())?);
        let _devices = device_lock();
        // SAFETY: EAL is up; both strings are zero-terminated and are copied by the callee.
        match unsafe { ffi::rte_vdev_init(name.as_ptr(), arguments.as_ptr()) } {
            0 => {
                state().vdevs.push(vdev.clone());
                Ok(())
            }
            code if code == -(Errno::EEXIST as c_int) => Err(EalError::VdevExists(vdev.clone())),
            // A positive value: no driver's name matched.
            code if code > 0 => Err(EalError::VdevRefused { vdev: vdev.clone(), errno: Errno::ENODEV }),
            code => Err(EalError::VdevRefused { vdev: vdev.clone(), errno: Errno::from_raw(-code) }),
        }
    }

    /// Gives the calling thread an lcore id, and with it a cache in each mempool, for as long as the value lives.
    ///
    /// # Errors
    /// [`LcoreError::NoLcoreId`] when 128 threads have one.
    pub fn register_thread(self) -> Result<RegisteredThread, LcoreError> {
        RegisteredThread::new(self)
    }

    /// DPDK's version in words.
    #[must_use]
    pub fn version(self) -> String {
        // SAFETY: returns a pointer to a static string.
        let text = unsafe { ffi::rte_version() };
        // SAFETY: the string is zero-terminated and lives as long as the process.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// The virtual device of that name, if we made it.
pub(crate) fn vdev_of(name: &str) -> Option<Vdev> {
    state().vdevs.iter().find(|vdev| vdev.name() == name).cloned()
}

/// Removes a virtual device that we made, and its port with it. The caller holds [`device_lock`].
pub(crate) fn remove_vdev(name: &str) {
    let Ok(c_name) = CString::new(name) else { return };
    state().vdevs.retain(|vdev| vdev.name() != name);
    // SAFETY: the caller holds a port, hence EAL is up; the string is zero-terminated.
    let _already_gone = unsafe { ffi::rte_vdev_uninit(c_name.as_ptr()) };
}

/// Checks what can be checked in words, then runs `rte_eal_init`.
fn start(config: &EalConfig) -> Result<(), EalError> {
    let arguments = arguments(config)?;
    // A thread of its own, since EAL binds the thread that starts it to one core for good.
    let outcome = thread::Builder::new()
        .name("eal-init".to_owned())
        .spawn(move || init_on_this_thread(&arguments))
        .map_err(|e| EalError::Thread(e.to_string()))?
        .join();
    outcome.map_err(|_| EalError::Thread("it panicked".to_owned()))?.map_err(EalError::Refused)
}

/// EAL makes this directory though it puts nothing of use into it: no other process may attach.
fn remove_runtime_directory() {
    // SAFETY: EAL is up; returns a pointer to a static string.
    let path = unsafe { ffi::rte_eal_get_runtime_dir() };
    // SAFETY: the string is zero-terminated, and nothing changes it after the start.
    let path = unsafe { CStr::from_ptr(path) };
    let _may_stay = path.to_str().map(std::fs::remove_dir_all);
}

fn init_on_this_thread(arguments: &[CString]) -> Result<(), Errno> {
    // SAFETY: called before EAL has any thread that could log. Without it the log goes to standard output.
    let _memory_short = unsafe { ffi::ferroce_log_to_stderr() };
    // Never freed: EAL keeps pointers into some of the arguments. Once a process.
    let mut argv: Vec<*mut c_char> = arguments.iter().map(|argument| argument.clone().into_raw()).collect();
    let argc = c_int::try_from(argv.len()).map_err(|_| Errno::E2BIG)?;
    argv.push(std::ptr::null_mut());
    // SAFETY: `argv` has `argc` zero-terminated writable strings and a null behind them, all alive during the call; no other
    // call into EAL runs, because the caller holds the state's lock.
    if unsafe { ffi::rte_eal_init(argc, argv.leak().as_mut_ptr()) } < 0 {
        return Err(last_errno());
    }
    Ok(())
}

/// The command line of EAL for `config`.
fn arguments(config: &EalConfig) -> Result<Vec<CString>, EalError> {
    let mut list = vec!["ferroce".to_owned()];
    let mut add = |words: &[&dyn fmt::Display]| list.extend(words.iter().map(ToString::to_string));

    let core = main_core(config.main_core)?;
    // Lcore 0 on that core: an lcore id must be below 128, a core need not. No files shared with other processes.
    add(&[&"--lcores", &format!("0@{core}"), &"--no-telemetry", &"--log-level", &config.log_level.as_str()]);

    let huge = !matches!(config.memory, MemoryMode::NoHuge { .. });
    let virtio_user = config.vdevs.iter().find(|vdev| vdev.driver() == Driver::VirtioUser);
    match config.memory {
        MemoryMode::NoHuge { mib } if !(64..=1 << 20).contains(&mib) => return Err(EalError::MemoryLimit { mib }),
        MemoryMode::NoHuge { mib } => add(&[&"--no-huge", &"--no-shconf", &"-m", &mib]),
        MemoryMode::InMemory => {
            require_hugepages()?;
            add(&[&"--in-memory"]);
            if virtio_user.is_some() {
                // Else "too many memory regions", and a stall without a word.
                add(&[&"--single-file-segments"]);
            }
        }
        MemoryMode::Hugepages => {
            if let Some(vdev) = virtio_user {
                return Err(EalError::NeedsInMemory(vdev.clone()));
            }
            require_hugepages()?;
            require_hugetlbfs()?;
            let prefix = config.file_prefix.clone().unwrap_or_else(|| format!("ferroce-{}", std::process::id()));
            add(&[&"--no-shconf", &"--huge-unlink", &"--file-prefix", &prefix]);
        }
    }
    if config.pci.is_empty() {
        // virtio_user takes virtual addresses only, the other virtual devices do not care.
        add(&[&"--no-pci", &"--iova-mode=va"]);
    }
    for address in &config.pci {
        check_pci_address(address)?;
        if !huge {
            return Err(EalError::PciWithoutHugepages(address.clone()));
        }
        add(&[&"--allow", address]);
    }
    list.extend(config.extra_args.iter().cloned());
    list.into_iter().map(|word| CString::new(word.clone()).map_err(|_| EalError::Argument(word))).collect()
}

fn main_core(asked: Option<usize>) -> Result<usize, EalError> {
    let available = available_cores().unwrap_or_default();
    match asked {
        Some(core) if available.contains(&core) => Ok(core),
        Some(core) => Err(EalError::MainCore { core, available }),
        None => Ok(available.first().copied().unwrap_or(0)),
    }
}

fn require_hugepages() -> Result<(), EalError> {
    let free = hugepage_sizes().iter().any(|size| size.free_count > 0);
    free.then_some(()).ok_or(EalError::NoHugepages)
}

fn require_hugetlbfs() -> Result<(), EalError> {
    let mount = hugetlbfs_mount();
    let writable = mount.as_deref().is_some_and(|path| access(path, AccessFlags::W_OK).is_ok());
    if writable { Ok(()) } else { Err(EalError::NoHugetlbfs { mount }) }
}

/// `[domain:]bus:device.function`, each in hexadecimal; driver arguments may follow a comma.
fn check_pci_address(text: &str) -> Result<(), EalError> {
    let refused = || EalError::PciAddress(text.to_owned());
    let address = text.split(',').next().unwrap_or_default();
    let (slot, function) = address.rsplit_once('.').ok_or_else(refused)?;
    let groups: Vec<&str> = slot.split(':').collect();
    let hex = |digits: &str, len: std::ops::RangeInclusive<usize>| {
        len.contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let legal = match groups.as_slice() {
        [bus, device] => hex(bus, 1..=2) && hex(device, 1..=2),
        [domain, bus, device] => hex(domain, 1..=8) && hex(bus, 1..=2) && hex(device, 1..=2),
        _ => false,
    };
    let clean = text.chars().all(|c| c.is_ascii_graphic());
    (legal && clean && matches!(function.as_bytes(), [b'0'..=b'7'])).then_some(()).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(config: &EalConfig) -> Vec<String> {
        arguments(config).unwrap().into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    fn no_huge() -> EalConfig {
        EalConfig { memory: MemoryMode::NoHuge { mib: 128 }, ..EalConfig::default() }
    }

    #[test]
    fn memory_without_hugepages_is_never_combined_with_in_memory() {
        let words = words(&no_huge());
        assert!(words.windows(2).any(|pair| pair == ["-m", "128"]));
        assert!(words.contains(&"--no-huge".to_owned()) && !words.contains(&"--in-memory".to_owned()));
        assert!(words.contains(&"--no-pci".to_owned()));
    }

    #[test]
    fn bad_configuration_is_refused_with_the_value_named() {
        for mib in [0, 63, (1 << 20) + 1] {
            let config = EalConfig { memory: MemoryMode::NoHuge { mib }, ..no_huge() };
            assert_eq!(arguments(&config), Err(EalError::MemoryLimit { mib }));
        }
        let config = EalConfig { main_core: Some(100_000), ..no_huge() };
        assert!(arguments(&config).unwrap_err().to_string().contains("100000"));
        let config = EalConfig { pci: vec!["0000:3b:00.0".to_owned()], ..no_huge() };
        assert_eq!(arguments(&config), Err(EalError::PciWithoutHugepages("0000:3b:00.0".to_owned())));
        let config = EalConfig { extra_args: vec!["a\0b".to_owned()], ..no_huge() };
        assert_eq!(arguments(&config), Err(EalError::Argument("a\0b".to_owned())));
    }

    #[test]
    fn virtio_user_is_refused_on_files_that_would_stay() {
        let virtio: Vdev = "net_virtio_user0,path=/run/vhost.sock".parse().unwrap();
        let config = EalConfig { memory: MemoryMode::Hugepages, vdevs: vec![virtio.clone()], ..EalConfig::default() };
        assert_eq!(arguments(&config), Err(EalError::NeedsInMemory(virtio)));
    }

    #[test]
    fn pci_addresses_are_checked() {
        for good in ["0000:3b:00.0", "3b:00.7", "10000:01:1f.2", "0000:3b:00.0,rxq_cqe_comp_en=0"] {
            assert_eq!(check_pci_address(good), Ok(()));
        }
        for bad in
            ["", "eth0", "0000:3b:00", "0000:3b:00.8", "3b.0", "a:b:c:d.0", "0000:3b:00.0 -v", "xx:00.0", "3b:00.00"]
        {
            assert_eq!(check_pci_address(bad), Err(EalError::PciAddress(bad.to_owned())));
        }
    }
}
