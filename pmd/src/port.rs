//! `Port`: a device of DPDK's, from finding it to running it.

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use thiserror::Error;
use wire::MacAddr;

use crate::eal::{Eal, device_lock, remove_vdev, vdev_of};
use crate::mempool::{Mempool, MempoolConfig, MempoolError};
use crate::plan::Plan;
use crate::queue::{QueuePair, RxQueue, TxQueue};
use crate::ring_pair::RingLink;
use crate::vdev::{Driver, Vdev};

/// Most ports that DPDK holds.
const PORT_COUNT_MAX: usize = ffi::RTE_MAX_ETHPORTS as usize;

/// Length of an Ethernet header without a VLAN tag.
pub(crate) const ETHERNET_HEADER_BYTES: u32 = ffi::RTE_ETHER_HDR_LEN;

/// How to run a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// RX and TX queues, one of each for an lcore: 1 to what the device has. Default 1. On af_packet give the device's own count
    /// ([`Vdev::af_packet`]): the kernel spreads frames over all its queues, those that nobody reads included.
    pub queue_pairs: u16,
    /// Slots of each RX queue, adjusted to what the device can do. Default 1024. Ignored by devices with a size of their own.
    pub rx_descriptors: u16,
    /// Slots of each TX queue, adjusted likewise. Default 1024.
    pub tx_descriptors: u16,
    /// The largest frame to carry, without the FCS, in bytes: 64 to 65280. Default 4608. The device may carry less:
    /// [`StartedPort::max_frame_bytes`] tells.
    pub max_frame_bytes: u32,
    /// Buffers of each queue beyond its slots: what the owner may hold back (out-of-order frames, frames for another shard). Default 512.
    pub spare_mbufs: u32,
    /// The MAC address to use; `None` takes the device's. An interface shared with the kernel has the kernel's.
    pub mac: Option<MacAddr>,
    /// Receive every frame, whatever its destination. Default off.
    pub promiscuous: bool,
    /// Receive the frames of all multicast groups, where the device can be told so. Default off.
    pub all_multicast: bool,
    /// Pad frames to Ethernet's 60 bytes; `None` leaves it to the driver's kind: yes on Ethernet, no in shared memory.
    pub pad_short_frames: Option<bool>,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            queue_pairs: 1,
            rx_descriptors: 1024,
            tx_descriptors: 1024,
            max_frame_bytes: MempoolConfig::FRAME_BYTES_DEFAULT,
            spare_mbufs: 512,
            mac: None,
            promiscuous: false,
            all_multicast: false,
            pad_short_frames: None,
        }
    }
}

/// Why a port was not found or did not start.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PortError {
    /// No port has that name.
    #[error("there is no port `{name}`; ports are: {}", if .known.is_empty() { "none".to_owned() } else { .known.join(", ") })]
    NoSuchPort {
        /// The name asked for.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// Another `Port` or `StartedPort` of this process has it.
    #[error("port `{0}` is in use by another part of this process")]
    Busy(String),
    /// The queue count is out of range.
    #[error("port `{name}`: {asked} queue pairs, but the device has 1 to {max}")]
    QueuePairs {
        /// The port.
        name: String,
        /// The count asked for.
        asked: u16,
        /// What the device has.
        max: u16,
    },
    /// The frame size is out of range.
    #[error("port `{name}`: frames of up to {asked} bytes, but 64 to {max} are possible", max = MempoolConfig::FRAME_BYTES_MAX)]
    FrameBytes {
        /// The port.
        name: String,
        /// The size asked for.
        asked: u32,
    },
    /// The interface belongs to the kernel, and so does its address.
    #[error(
        "port `{name}` shares an interface with the kernel: its MAC address cannot be set here (use `ip link set`)"
    )]
    MacIsTheKernels {
        /// The port.
        name: String,
    },
    /// No buffers.
    #[error("port `{name}`: {source}")]
    Mempool {
        /// The port.
        name: String,
        /// Why.
        source: MempoolError,
    },
    /// The driver refused a step.
    #[error("port `{name}`: the driver refused to {step}: {errno}")]
    Refused {
        /// The port.
        name: String,
        /// The step, in the infinitive.
        step: &'static str,
        /// The driver's reason.
        errno: Errno,
    },
}

/// What a device says of itself.
#[derive(Clone, Debug)]
pub(crate) struct DeviceFacts {
    pub(crate) driver: Driver,
    pub(crate) queue_pairs_max: u16,
    pub(crate) mtu_min_bytes: u32,
    pub(crate) mtu_max_bytes: u32,
    pub(crate) frame_bytes_max: u32,
    pub(crate) rss_flows: u64,
    pub(crate) socket: Option<u32>,
    pub(crate) mac: MacAddr,
}

/// A device that nobody else in this process uses, not running yet.
#[derive(Debug)]
pub struct Port {
    claim: Claim,
    name: String,
    pub(crate) vdev: Option<Vdev>,
    pub(crate) facts: DeviceFacts,
    /// The rings behind the port, which must outlive it.
    pub(crate) link: Option<Arc<RingLink>>,
    started: bool,
}

/// A port number that one [`Port`] alone may use. Changed under the device lock only.
#[derive(Debug)]
struct Claim(u16);

static CLAIMED: [AtomicBool; PORT_COUNT_MAX] = [const { AtomicBool::new(false) }; PORT_COUNT_MAX];

impl Claim {
    fn take(index: u16) -> Option<Self> {
        let taken = CLAIMED.get(usize::from(index))?;
        (!taken.swap(true, Ordering::Relaxed)).then_some(Self(index))
    }

    fn release(&self) {
        CLAIMED[usize::from(self.0)].store(false, Ordering::Relaxed);
    }
}

/// DPDK's convention: zero or positive is success, negative an errno.
pub(crate) fn check(code: c_int) -> Result<c_int, Errno> {
    if code < 0 { Err(Errno::from_raw(code.wrapping_neg())) } else { Ok(code) }
}

/// The names of all ports of this process, in the order of their numbers.
#[must_use]
pub fn port_names(_: Eal) -> Vec<String> {
    let mut names = Vec::new();
    let mut next = 0;
    loop {
        // SAFETY: EAL is up; any number may be asked for.
        let index = unsafe { ffi::rte_eth_find_next(next) };
        if usize::from(index) >= PORT_COUNT_MAX {
            return names;
        }
        names.extend(name_of(index));
        next = index + 1;
    }
}

fn name_of(index: u16) -> Option<String> {
    let mut name = [0 as c_char; ffi::RTE_ETH_NAME_MAX_LEN as usize];
    // SAFETY: EAL is up; the buffer has the length that the callee writes at most.
    check(unsafe { ffi::rte_eth_dev_get_name_by_port(index, name.as_mut_ptr()) }).ok()?;
    // SAFETY: the callee wrote a zero-terminated string.
    Some(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}

impl Port {
    /// The port of that name: a virtual device's name, or a PCI address.
    ///
    /// # Errors
    /// [`PortError::NoSuchPort`], [`PortError::Busy`], or [`PortError::Refused`] when the driver does not describe it.
    pub fn by_name(eal: Eal, name: &str) -> Result<Self, PortError> {
        let unknown = || PortError::NoSuchPort { name: name.to_owned(), known: port_names(eal) };
        let c_name = CString::new(name).map_err(|_| unknown())?;
        let _devices = device_lock();
        let mut index = 0;
        // SAFETY: EAL is up; the name is zero-terminated; `index` is a valid place for the answer.
        check(unsafe { ffi::rte_eth_dev_get_port_by_name(c_name.as_ptr(), &raw mut index) }).map_err(|_| unknown())?;
        Self::open(eal, index)
    }

    /// The port of that number.
    ///
    /// # Errors
    /// As [`Port::by_name`].
    pub fn by_index(eal: Eal, index: u16) -> Result<Self, PortError> {
        let _devices = device_lock();
        Self::open(eal, index)
    }

    /// Takes the port of that number. The caller holds the device lock.
    pub(crate) fn open(eal: Eal, index: u16) -> Result<Self, PortError> {
        let name = name_of(index)
            .ok_or_else(|| PortError::NoSuchPort { name: format!("number {index}"), known: port_names(eal) })?;
        let facts = device_facts(index).map_err(|errno| PortError::Refused {
            name: name.clone(),
            step: "describe the device",
            errno,
        })?;
        let claim = Claim::take(index).ok_or_else(|| PortError::Busy(name.clone()))?;
        let vdev = vdev_of(&name);
        Ok(Self { claim, name, vdev, facts, link: None, started: false })
    }

    /// Ties the rings behind the port to its life.
    pub(crate) fn with_link(mut self, link: Arc<RingLink>) -> Self {
        self.link = Some(link);
        self
    }

    /// The port's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The driver.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.facts.driver
    }

    /// Most queue pairs that the device has.
    #[must_use]
    pub fn queue_pairs_max(&self) -> u16 {
        self.link.as_ref().map_or(self.facts.queue_pairs_max, |link| link.queue_pairs())
    }

    /// The kernel's interface that the port shares, if it does.
    #[must_use]
    pub fn kernel_interface(&self) -> Option<&str> {
        self.vdev.as_ref()?.kernel_interface()
    }

    /// Sets the device up and starts it. On failure the port is free again, and may be tried with other settings.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn configure(mut self, config: &PortConfig) -> Result<StartedPort, PortError> {
        let plan = Plan::new(&self, config)?;
        let pools = plan.pools(&self.name)?;
        let devices = device_lock();
        let steps = || -> Result<u16, (&'static str, Errno)> {
            let rx_slots = self.set_up_queues(&plan, &pools)?;
            self.apply_settings(config)?;
            // SAFETY: a configured port, claimed by this value, with every queue set up.
            check(unsafe { ffi::rte_eth_dev_start(self.claim.0) }).map_err(|errno| ("start", errno))?;
            Ok(rx_slots)
        };
        let rx_slots = steps().map_err(|(step, errno)| PortError::Refused { name: self.name.clone(), step, errno })?;
        self.started = true;
        drop(devices);
        let mac = config.mac.unwrap_or(self.facts.mac);
        let index = self.claim.0;
        let shared = Arc::new(Running { port: self, mac, max_frame_bytes: plan.max_frame_bytes, pools: pools.clone() });
        let queue_pairs = (0..plan.queue_pairs)
            .zip(pools)
            .map(|(queue, (rx_pool, tx_pool))| QueuePair {
                rx: RxQueue::new(shared.clone(), index, queue, rx_pool, rx_slots),
                tx: TxQueue::new(shared.clone(), index, queue, tx_pool, plan.min_frame_bytes, plan.max_frame_bytes),
            })
            .collect();
        Ok(StartedPort { running: shared, queue_pairs })
    }

    /// Returns the slots of each receive queue.
    fn set_up_queues(&self, plan: &Plan, pools: &[(Mempool, Mempool)]) -> Result<u16, (&'static str, Errno)> {
        let index = self.claim.0;
        // SAFETY: all-zero is the documented default of this plain C structure.
        let mut device: ffi::rte_eth_conf = unsafe { MaybeUninit::zeroed().assume_init() };
        device.rxmode.mtu = plan.mtu_bytes;
        if plan.queue_pairs > 1 && plan.rss_flows != 0 {
            device.rxmode.mq_mode = ffi::RTE_ETH_MQ_RX_RSS;
            device.rx_adv_conf.rss_conf.rss_hf = plan.rss_flows;
        }
        // SAFETY: a port claimed by this value, not running; the structure is only read, during the call.
        check(unsafe { ffi::rte_eth_dev_configure(index, plan.queue_pairs, plan.queue_pairs, &raw const device) })
            .map_err(|errno| ("take the configuration", errno))?;
        let (mut rx_descriptors, mut tx_descriptors) = (plan.rx_descriptors, plan.tx_descriptors);
        // SAFETY: as above; both places are valid for the answer.
        check(unsafe {
            ffi::rte_eth_dev_adjust_nb_rx_tx_desc(index, &raw mut rx_descriptors, &raw mut tx_descriptors)
        })
        .map_err(|errno| ("choose queue sizes", errno))?;
        // The callee's "any node" is -1 as an unsigned number.
        let socket = self.facts.socket.unwrap_or(u32::MAX);
        for (queue, (rx_pool, _)) in (0..plan.queue_pairs).zip(pools) {
            // SAFETY: a configured port and a queue below its count; a null configuration means the device's default; the
            // pool is never freed.
            check(unsafe {
                ffi::rte_eth_rx_queue_setup(index, queue, rx_descriptors, socket, std::ptr::null(), rx_pool.as_ptr())
            })
            .map_err(|errno| ("set up an RX queue", errno))?;
            // SAFETY: as above.
            check(unsafe { ffi::rte_eth_tx_queue_setup(index, queue, tx_descriptors, socket, std::ptr::null()) })
                .map_err(|errno| ("set up a TX queue", errno))?;
        }
        Ok(rx_descriptors)
    }

    fn apply_settings(&self, config: &PortConfig) -> Result<(), (&'static str, Errno)> {
        let index = self.claim.0;
        // The tap driver would give the address to the kernel's side of the link, which needs another one.
        let own_filter = self.facts.driver != Driver::Tap;
        if let Some(mac) = config.mac.filter(|mac| own_filter && *mac != self.facts.mac) {
            let mut address = ffi::rte_ether_addr { addr_bytes: mac.0 };
            // SAFETY: a configured port; the address is read during the call.
            match check(unsafe { ffi::rte_eth_dev_default_mac_addr_set(index, &raw mut address) }) {
                // Such a device has no filter: the address is only what we put into frames.
                Ok(_) | Err(Errno::ENOTSUP) => {}
                Err(errno) => return Err(("set the MAC address", errno)),
            }
        }
        if config.promiscuous {
            // SAFETY: a configured port.
            match check(unsafe { ffi::rte_eth_promiscuous_enable(index) }) {
                Ok(_) | Err(Errno::ENOTSUP) => {}
                Err(errno) => return Err(("receive promiscuously", errno)),
            }
        }
        if config.all_multicast {
            // SAFETY: a configured port.
            match check(unsafe { ffi::rte_eth_allmulticast_enable(index) }) {
                // Such a device has no filter, or the kernel's.
                Ok(_) | Err(Errno::ENOTSUP) => {}
                Err(errno) => return Err(("receive all multicast groups", errno)),
            }
        }
        Ok(())
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let _devices = device_lock();
        let index = self.claim.0;
        if self.started {
            // SAFETY: a running port whose last handle goes: no queue of it is in use.
            let _stopped_anyway = unsafe { ffi::rte_eth_dev_stop(index) };
        }
        // A port that never ran stays for another to find, unless the rings behind it go.
        if self.started || self.link.is_some() {
            // SAFETY: not running; the claim keeps others away from the number.
            let _closed_anyway = unsafe { ffi::rte_eth_dev_close(index) };
            if self.vdev.is_some() || self.link.is_some() {
                remove_vdev(&self.name);
            }
        }
        // Under the lock: DPDK may give the number to the next device at once.
        self.claim.release();
    }
}

fn device_facts(index: u16) -> Result<DeviceFacts, Errno> {
    // SAFETY: all-zero is a valid value of this plain C structure.
    let mut info: ffi::rte_eth_dev_info = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: EAL is up; the place for the answer is valid.
    check(unsafe { ffi::rte_eth_dev_info_get(index, &raw mut info) })?;
    let mut address = ffi::rte_ether_addr { addr_bytes: [0; 6] };
    // SAFETY: as above.
    check(unsafe { ffi::rte_eth_macaddr_get(index, &raw mut address) })?;
    // SAFETY: EAL is up; an unknown port gives -1.
    let socket = u32::try_from(unsafe { ffi::rte_eth_dev_socket_id(index) }).ok();
    let driver_name = if info.driver_name.is_null() {
        String::new()
    } else {
        // SAFETY: a driver's name is a static zero-terminated string.
        unsafe { CStr::from_ptr(info.driver_name) }.to_string_lossy().into_owned()
    };
    let udp_flows = 1_u64 << ffi::RTE_ETH_FLOW_NONFRAG_IPV4_UDP | 1 << ffi::RTE_ETH_FLOW_NONFRAG_IPV6_UDP;
    let driver = Driver::from_name(&driver_name);
    let mac = match (driver, MacAddr(address.addr_bytes)) {
        (_, MacAddr::ZERO) => local_mac(index),
        // The address told is the kernel's side of the link. A bridge would keep frames to it for itself.
        (Driver::Tap, MacAddr([first, rest @ ..])) => {
            let [second, third, fourth, fifth, sixth] = rest;
            MacAddr([(first | 0x02) ^ 0x04, second, third, fourth, fifth, sixth])
        }
        (_, mac) => mac,
    };
    Ok(DeviceFacts {
        driver,
        queue_pairs_max: info.max_rx_queues.min(info.max_tx_queues),
        mtu_min_bytes: u32::from(info.min_mtu),
        mtu_max_bytes: u32::from(info.max_mtu),
        frame_bytes_max: info.max_rx_pktlen,
        rss_flows: info.flow_type_rss_offloads & udp_flows,
        socket,
        mac,
    })
}

/// A locally administered address for a device that has none (rings): no two ports of a process have the same.
fn local_mac(index: u16) -> MacAddr {
    let [high, low] = index.to_be_bytes();
    MacAddr([0x02, b'f', b'e', b'r', high, low])
}

/// State of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Whether frames can pass. A memif port is up once its peer has connected.
    pub up: bool,
    /// Speed in Mbit/s as the device tells it; 0 or 4294967295 when it does not know. Virtual devices invent one.
    pub speed_mbit_per_s: u32,
}

/// Counters of a port since it started. Drivers differ in what they count; af_packet does not count what the kernel drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Frames received.
    pub ipackets: u64,
    /// Frames sent.
    pub opackets: u64,
    /// Bytes received.
    pub ibytes: u64,
    /// Bytes sent.
    pub obytes: u64,
    /// Frames that the device dropped because its RX queue was full.
    pub imissed: u64,
    /// Frames received with an error.
    pub ierrors: u64,
    /// Frames that failed to be sent.
    pub oerrors: u64,
    /// Times that no buffer was there for a received frame.
    pub rx_nombuf: u64,
}

/// A running port. It stops, and a virtual device of ours disappears, when this and all its queues are dropped.
#[derive(Debug)]
pub struct StartedPort {
    running: Arc<Running>,
    queue_pairs: Vec<QueuePair>,
}

/// What the handles of a running port share.
#[derive(Debug)]
pub(crate) struct Running {
    /// Dropped first: closing the device returns the buffers in its rings.
    port: Port,
    mac: MacAddr,
    max_frame_bytes: u32,
    /// Kept until the device is closed, so that no one else gets pools whose buffers are in its rings.
    #[expect(dead_code, reason = "held for its drop")]
    pools: Vec<(Mempool, Mempool)>,
}

impl StartedPort {
    /// Takes the queue pairs, each for one thread; empty when they were taken before.
    #[must_use]
    pub fn take_queue_pairs(&mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.queue_pairs)
    }

    /// The port's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.running.port.name
    }

    /// The driver.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.running.port.facts.driver
    }

    /// The MAC address.
    #[must_use]
    pub fn mac(&self) -> MacAddr {
        self.running.mac
    }

    /// The largest frame that the port carries, from its Ethernet header on and without the FCS, in bytes. The least of what was
    /// configured, what the driver can do, and what the kernel interface's MTU allowed when the port started.
    #[must_use]
    pub fn max_frame_bytes(&self) -> u32 {
        self.running.max_frame_bytes
    }

    /// The largest IP packet: [`StartedPort::max_frame_bytes`] less the Ethernet header.
    #[must_use]
    pub fn mtu_bytes(&self) -> u32 {
        self.running.max_frame_bytes.saturating_sub(ETHERNET_HEADER_BYTES)
    }

    /// The NUMA node, if the device has one.
    #[must_use]
    pub fn socket(&self) -> Option<u32> {
        self.running.port.facts.socket
    }

    /// The kernel's interface that the port shares, if it does.
    #[must_use]
    pub fn kernel_interface(&self) -> Option<&str> {
        self.running.port.kernel_interface()
    }

    /// Its number.
    pub(crate) fn index(&self) -> u16 {
        self.running.port.claim.0
    }

    pub(crate) fn refused(&self, step: &'static str, errno: Errno) -> PortError {
        PortError::Refused { name: self.name().to_owned(), step, errno }
    }

    /// The link's state now; down when the driver does not tell.
    #[must_use]
    pub fn link(&self) -> Link {
        // SAFETY: all-zero is a valid value of this plain C structure.
        let mut link: ffi::rte_eth_link = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: a running port; the place for the answer is valid.
        let told = check(unsafe { ffi::rte_eth_link_get_nowait(self.running.port.claim.0, &raw mut link) }).is_ok();
        Link { up: told && u32::from(link.link_status()) == ffi::RTE_ETH_LINK_UP, speed_mbit_per_s: link.link_speed }
    }

    /// The counters now; all zero when the driver has none.
    #[must_use]
    pub fn stats(&self) -> PortStats {
        // SAFETY: all-zero is a valid value of this plain C structure.
        let mut stats: ffi::rte_eth_stats = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: a running port; the place for the answer is valid.
        if check(unsafe { ffi::rte_eth_stats_get(self.running.port.claim.0, &raw mut stats) }).is_err() {
            return PortStats::default();
        }
        PortStats {
            ipackets: stats.ipackets,
            opackets: stats.opackets,
            ibytes: stats.ibytes,
            obytes: stats.obytes,
            imissed: stats.imissed,
            ierrors: stats.ierrors,
            oerrors: stats.oerrors,
            rx_nombuf: stats.rx_nombuf,
        }
    }
}
