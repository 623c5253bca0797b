//! Ports: from what the operator names to queues that lcores poll.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use engine::command::Shards;
use engine::config::{PortAddress, PortConfig};
use engine::control::Control;
use pmd::{Driver, Eal, EalError, Link, Port, PortError, PortStats, PriorityFlowControl, QueuePair, StartedPort, Vdev};
use shm::attr::GidType;
use shm::control::{AsyncEvent, Reply};
use thiserror::Error;
use wire::MacAddr;

use crate::kernel_interface::{InterfaceError, KernelInterface, Wanted};
use crate::middleware::{FaultSetup, LcoreQueues, Middleware, MiddlewareError};

/// The largest IP packet that the engine ever builds is 4096 bytes and 80 of headers; rounded up.
pub const MTU_BYTES_DEFAULT: u16 = 4200;

/// Addresses that an operator may name: with a link-local one and RoCEv1, their GIDs have indexes of 8 bits.
pub(crate) const ADDRESS_COUNT_MAX: usize = 100;

/// Ethernet header and one VLAN tag.
const LINK_HEADER_BYTES: u32 = 14 + 4;

/// Speed that a driver tells when it knows none.
const SPEED_UNKNOWN: u32 = u32::MAX;

/// Which device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Device {
    /// A virtual one. Arguments that frame sizes ask for are added where they are missing.
    Vdev(Vdev),
    /// The PCI device at this address, bound to a driver that DPDK can use.
    Pci(String),
}

/// What a port is opened with.
#[derive(Clone, PartialEq, Debug)]
pub struct PortSetup {
    /// Which device.
    pub device: Device,
    /// Its addresses. No untagged one = those of the kernel's interface, where the device shares one.
    pub addresses: Vec<PortAddress>,
    /// Each address is a RoCEv1 GID as well.
    pub roce_v1: bool,
    /// Its MAC address; `None` = the device's.
    pub mac: Option<MacAddr>,
    /// The largest IP packet, bytes. What the device can do, and the kernel's interface, lower it.
    pub mtu_bytes: u16,
    /// Queue pairs: one for each lcore.
    pub queue_pairs: u16,
    /// Slots of each receive queue.
    pub rx_descriptors: u16,
    /// Slots of each transmit queue.
    pub tx_descriptors: u16,
    /// Packet buffers of each queue beyond its slots.
    pub spare_mbufs: u32,
    /// Faults on what comes in.
    pub faults: Option<FaultSetup>,
    /// Where to write every frame.
    pub capture_file: Option<PathBuf>,
}

impl PortSetup {
    /// A device with one queue pair and everything else as usual.
    pub fn new(device: Device, addresses: Vec<IpAddr>) -> Self {
        let usual = pmd::PortConfig::default();
        Self {
            device,
            addresses: addresses.into_iter().map(PortAddress::from).collect(),
            roce_v1: false,
            mac: None,
            mtu_bytes: MTU_BYTES_DEFAULT,
            queue_pairs: 1,
            rx_descriptors: usual.rx_descriptors,
            tx_descriptors: usual.tx_descriptors,
            spare_mbufs: usual.spare_mbufs,
            faults: None,
            capture_file: None,
        }
    }
}

/// Why a port could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// DPDK refused the device.
    #[error(transparent)]
    Eal(#[from] EalError),
    /// The device did not start.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The kernel's interface can't be shared.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// Faults or capture.
    #[error("port `{name}`: {source}")]
    Middleware {
        /// The port.
        name: String,
        /// Why.
        source: MiddlewareError,
    },
    /// Nobody said which addresses the port has.
    #[error("port `{name}` has no address: set `addresses` (or --address), such as 10.0.0.1")]
    NoAddress {
        /// The port.
        name: String,
    },
}

/// A running port and its queues, ready for an engine.
#[derive(Debug)]
pub struct PortIo {
    /// What the engine is told of it.
    pub config: PortConfig,
    queues: Vec<LcoreQueues>,
    open: OpenPort,
}

/// What is kept of a port while its queues are in use.
#[derive(Debug)]
pub(crate) struct OpenPort {
    port: StartedPort,
    /// Where the kernel has the interface as well.
    kernel: Option<KernelInterface>,
    /// What the device was asked for last.
    flow_control: PriorityFlowControl,
}

impl OpenPort {
    pub(crate) fn stats(&self) -> PortStats {
        self.port.stats()
    }

    pub(crate) fn kernel_interface(&self) -> Option<&str> {
        self.port.kernel_interface()
    }

    /// What becomes readable when the port may have changed; `None` where one has to look from time to time.
    pub(crate) fn change_fd(&self) -> Option<BorrowedFd<'_>> {
        self.kernel.as_ref().map(AsFd::as_fd)
    }

    /// Has the device do flow control as it is set, if it can; else the engine does it.
    pub(crate) fn follow_qos<S: Shards>(&mut self, control: &mut Control, shards: &mut S, index: u8) {
        let Some(settings) = control.qos_settings(index) else { return };
        let pause_quanta = u16::try_from(settings.numbers.pfc_pause_quanta).unwrap_or(u16::MAX);
        let wanted = PriorityFlowControl { priorities: settings.pfc_mask(), pause_quanta };
        if wanted == self.flow_control || (wanted.priorities == 0 && self.flow_control.priorities == 0) {
            return;
        }
        self.flow_control = wanted;
        let by_device = self.port.set_priority_flow_control(wanted).unwrap_or_else(|error| {
            tracing::warn!("{error}");
            false
        });
        control.set_pfc_device(shards, index, by_device);
        tracing::info!(port = index + 1, by = control.pfc_by(index).word(), "priority flow control");
    }

    /// What the port is now, if it is another than is `known`.
    fn changed(&mut self, known: &PortConfig) -> Option<PortConfig> {
        let mut now = known.clone();
        match &mut self.kernel {
            Some(kernel) => kernel.follow(&mut now),
            None => {
                let link = self.port.link();
                (now.active, now.speed_mbps) = (link.up, speed_mbps(link));
            }
        }
        (now != *known).then_some(now)
    }
}

/// Quality of service was set: asks the devices, and has the reply say who does flow control now.
pub(crate) fn follow_qos<S: Shards>(ports: &mut [OpenPort], control: &mut Control, shards: &mut S, reply: &mut Reply) {
    let Reply::Qos(set) = reply else { return };
    for qos in set {
        let index = qos.port_num.saturating_sub(1);
        let Some(port) = ports.get_mut(usize::from(index)) else { continue };
        port.follow_qos(control, shards, index);
        qos.pfc_by = control.pfc_by(index);
    }
}

/// Looks at the ports, and has the engine know what has changed. Returns the events to be told to every session.
pub(crate) fn follow_ports<S: Shards>(
    ports: &mut [OpenPort],
    control: &mut Control,
    shards: &mut S,
) -> Vec<AsyncEvent> {
    let mut events = Vec::new();
    for (port, index) in ports.iter_mut().zip(0..) {
        let changed = control.ports().get(usize::from(index)).and_then(|known| port.changed(known));
        let Some(changed) = changed else { continue };
        tracing::info!(
            port = index + 1,
            active = changed.active,
            mac = %changed.mac,
            addresses = ?changed.addresses,
            mtu = changed.interface_mtu,
            "port has changed"
        );
        events.extend(control.port_changed(shards, index, changed));
    }
    events
}

/// What a driver tells, 0 if it does not know.
fn speed_mbps(link: Link) -> u32 {
    if link.speed_mbit_per_s == SPEED_UNKNOWN { 0 } else { link.speed_mbit_per_s }
}

/// The GIDs of a port: RoCEv2 before RoCEv1, IPv4 before IPv6, untagged before tagged, else as they are named. So GID 0 is the
/// routable one that applications take by default. A port of our own that is given no link-local address has the usual one.
pub(crate) fn gid_table(
    mut addresses: Vec<PortAddress>,
    mac: MacAddr,
    is_own: bool,
    roce_v1: bool,
) -> Vec<PortAddress> {
    if is_own && !addresses.iter().any(|address| address.is_link_local() && address.vlan.is_none()) {
        addresses.push(PortAddress::link_local(mac));
    }
    addresses.sort_by_key(|address| (address.ip.is_ipv6(), address.vlan.is_some()));
    let versions: &[GidType] = if roce_v1 { &[GidType::RoceV2, GidType::RoceV1] } else { &[GidType::RoceV2] };
    let table = versions.iter().flat_map(|&gid_type| addresses.iter().map(move |&a| PortAddress { gid_type, ..a }));
    table.collect()
}

impl PortIo {
    /// Makes the device (a virtual one), starts it, and takes over the kernel's settings where the kernel has the interface.
    ///
    /// # Errors
    /// [`OpenError`]: sentences for the operator.
    pub fn open(eal: Eal, setup: &PortSetup) -> Result<Self, OpenError> {
        let mut mtu_bytes = setup.mtu_bytes;
        let (name, interface) = match &setup.device {
            Device::Pci(address) => (address.clone(), None),
            Device::Vdev(vdev) => {
                let interface = vdev.kernel_interface().map(str::to_owned);
                if let Some(kernel_mtu) = interface.as_deref().and_then(pmd::interface_mtu_bytes) {
                    mtu_bytes = mtu_bytes.min(u16::try_from(kernel_mtu).unwrap_or(u16::MAX));
                }
                eal.add_vdev(&vdev.with_buffers(u32::from(mtu_bytes) + LINK_HEADER_BYTES, setup.queue_pairs))?;
                (vdev.name().to_owned(), interface)
            }
        };
        let (addresses, kernel) = match &interface {
            Some(interface) => {
                let (tagged, untagged): (Vec<PortAddress>, Vec<PortAddress>) =
                    setup.addresses.iter().copied().partition(|a| a.vlan.is_some());
                let untagged: Vec<IpAddr> = untagged.iter().map(|address| address.ip).collect();
                let wanted = Wanted { untagged, tagged, roce_v1: setup.roce_v1 };
                let (kernel, addresses) = KernelInterface::open(interface, wanted, mtu_bytes)?;
                (addresses, Some(kernel))
            }
            None => (setup.addresses.clone(), None),
        };
        let port = Port::by_name(eal, &name)?.configure(&pmd::PortConfig {
            queue_pairs: setup.queue_pairs,
            rx_descriptors: setup.rx_descriptors,
            tx_descriptors: setup.tx_descriptors,
            max_frame_bytes: u32::from(mtu_bytes) + LINK_HEADER_BYTES,
            spare_mbufs: setup.spare_mbufs,
            mac: setup.mac,
            promiscuous: false,
            all_multicast: true,
            pad_short_frames: None,
        })?;
        let mut io = Self::assemble(port, addresses, setup.roce_v1, mtu_bytes, kernel)?;
        io.add_middleware(setup)?;
        Ok(io)
    }

    /// A port that is running already and belongs to us alone, with these addresses: it answers ARP and Neighbour Discovery itself.
    ///
    /// # Errors
    /// [`OpenError::NoAddress`].
    pub fn from_started(port: StartedPort, addresses: Vec<IpAddr>) -> Result<Self, OpenError> {
        let mtu_bytes = u16::try_from(port.mtu_bytes()).unwrap_or(u16::MAX);
        let addresses = addresses.into_iter().map(PortAddress::from).collect();
        Self::assemble(port, addresses, false, mtu_bytes, None)
    }

    fn assemble(
        mut port: StartedPort,
        addresses: Vec<PortAddress>,
        roce_v1: bool,
        mtu_bytes: u16,
        mut kernel: Option<KernelInterface>,
    ) -> Result<Self, OpenError> {
        if addresses.is_empty() {
            return Err(OpenError::NoAddress { name: port.name().to_owned() });
        }
        let device_mtu = u16::try_from(port.mtu_bytes()).unwrap_or(u16::MAX);
        let link = port.link();
        let mut config = PortConfig {
            active: link.up,
            mac: port.mac(),
            addresses: gid_table(addresses, port.mac(), kernel.is_none(), roce_v1),
            interface_mtu: mtu_bytes.min(device_mtu),
            answers_arp: kernel.is_none(),
            speed_mbps: speed_mbps(link),
            driver: driver_name(port.driver()).to_owned(),
            kernel_interface: port.kernel_interface().map(str::to_owned),
        };
        if let Some(kernel) = &mut kernel {
            kernel.read(&mut config);
        }
        let queues = port.take_queue_pairs().into_iter().map(|pair| (pair, None)).collect();
        Ok(Self { config, queues, open: OpenPort { port, kernel, flow_control: PriorityFlowControl::default() } })
    }

    fn add_middleware(&mut self, setup: &PortSetup) -> Result<(), OpenError> {
        let name = self.open.port.name();
        for ((pair, middleware), number) in self.queues.iter_mut().zip(0..) {
            *middleware = Middleware::new(setup.faults, setup.capture_file.as_deref(), number, pair.tx.pool())
                .map_err(|source| OpenError::Middleware { name: name.to_owned(), source })?;
        }
        Ok(())
    }

    /// Queue pairs, one for each lcore.
    pub fn queue_pairs(&self) -> usize {
        self.queues.len()
    }

    /// Its queues without an engine, for who measures the device alone. It stays open as long as they live.
    pub fn into_queue_pairs(self) -> Vec<QueuePair> {
        self.queues.into_iter().map(|(pair, _)| pair).collect()
    }

    /// Its parts: the engine's, the lcores', and what is kept.
    pub(crate) fn into_parts(self) -> (PortConfig, Vec<LcoreQueues>, OpenPort) {
        (self.config, self.queues, self.open)
    }
}

/// DPDK's name of a driver.
fn driver_name(driver: Driver) -> &'static str {
    match driver {
        Driver::AfPacket => "net_af_packet",
        Driver::AfXdp => "net_af_xdp",
        Driver::Pcap => "net_pcap",
        Driver::Tap => "net_tap",
        Driver::Ring => "net_ring",
        Driver::Null => "net_null",
        Driver::Memif => "net_memif",
        Driver::Vhost => "net_vhost",
        Driver::VirtioUser => "net_virtio_user",
        _ => "pci",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_gid_is_the_one_that_applications_take() {
        let mac = MacAddr([0x52, 0x54, 0, 0, 0, 0x0a]);
        let address = |text: &str| match text.split_once('@') {
            Some((ip, vlan)) => {
                PortAddress { vlan: Some(vlan.parse().unwrap()), ..PortAddress::from(ip.parse::<IpAddr>().unwrap()) }
            }
            None => text.parse::<IpAddr>().unwrap().into(),
        };
        let named = || ["fd00::1", "10.0.1.1@77", "10.0.0.1", "10.0.0.2"].map(address).to_vec();
        let table = |table: Vec<PortAddress>| {
            let words = table.iter().map(|entry| format!("{entry} {}", entry.gid_type));
            words.collect::<Vec<_>>().join(", ")
        };
        let v2 = "10.0.0.1 RoCE v2, 10.0.0.2 RoCE v2, 10.0.1.1@77 RoCE v2, fd00::1 RoCE v2";
        assert_eq!(table(gid_table(named(), mac, false, false)), v2);
        let own = format!("{v2}, fe80::5054:ff:fe00:a RoCE v2");
        assert_eq!(table(gid_table(named(), mac, true, false)), own);
        assert_eq!(table(gid_table(named(), mac, true, true)), format!("{own}, {}", own.replace("v2", "v1")));
        let given = [named(), vec![address("fe80::7")]].concat();
        assert_eq!(table(gid_table(given, mac, true, false)), format!("{v2}, fe80::7 RoCE v2"));
    }
}
