//! Ports of DPDK's, and frames that stay in the buffers that they were received into.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::rc::Rc;

use nix::net::if_::if_nametoindex;
use pmd::{Burst, Eal, EalError, Mbuf, Mempool, MempoolConfig, MempoolError, Port, PortConfig, PortError, PortStats};
use pmd::{RxQueue, StartedPort, TxQueue, interface_is_running, interface_mtu_bytes};
use sim::frame::FrameStorage;
use sim::network::switch::RATE_MBPS;
use wire::{EthernetRepr, VlanRepr};

use crate::carried::Carried;
use crate::config::{PortSettings, Settings};
use crate::model::Attached;

/// Bytes of the headers in front of a packet, tag included.
const LINK_HEADER_BYTES: u32 = (EthernetRepr::LEN + VlanRepr::LEN) as u32;
/// Buffers for copies of frames, of all ports together.
const COPIES: u32 = 2_048;

/// A frame in a packet buffer.
#[derive(Debug)]
pub struct Packet {
    mbuf: Mbuf,
    /// Where copies come from. All of it is one thread's.
    copies: Rc<Mempool>,
}

impl FrameStorage for Packet {
    fn bytes(&self) -> &[u8] {
        self.mbuf.data()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.mbuf.data_mut()
    }

    fn duplicate(&self) -> Option<Self> {
        let mut mbuf = self.copies.alloc()?;
        mbuf.resize(self.mbuf.len())?.copy_from_slice(self.mbuf.data());
        Some(Self { mbuf, copies: Rc::clone(&self.copies) })
    }

    fn resize(&mut self, bytes: usize) -> bool {
        let before = self.mbuf.len();
        match self.mbuf.resize(bytes) {
            Some(data) => {
                data[before.min(bytes)..].fill(0);
                true
            }
            None => false,
        }
    }
}

/// Frames that a device did not send, though its link had carried them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceCounters {
    /// Longer than the device carries.
    pub oversize: u64,
    /// No buffer was left for a pause.
    pub no_buffer: u64,
    /// Its interface was down, or gone.
    pub down: u64,
}

/// Why the ports did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The device was not made.
    #[error(transparent)]
    Eal(#[from] EalError),
    /// The port did not start.
    #[error(transparent)]
    Port(#[from] PortError),
    /// There are no buffers.
    #[error(transparent)]
    Mempool(#[from] MempoolError),
    /// The device has no queue to give.
    #[error("{0} has no queue")]
    NoQueue(String),
    /// Frames would come in twice and go round for ever.
    #[error("{interface} is a port of another fabric in this network namespace")]
    Taken {
        /// The interface.
        interface: String,
    },
    /// The system does not let us claim it.
    #[error("{interface} can't be claimed: {error}")]
    Unclaimed {
        /// The interface.
        interface: String,
        /// What the system says; the sentence has it.
        error: std::io::Error,
    },
}

/// A kernel interface that a port shares.
#[derive(Debug)]
struct Interface {
    name: String,
    index: u32,
    /// A name in the network namespace, so that no other fabric takes the interface. It goes with the process.
    _claim: UnixDatagram,
}

impl Interface {
    fn claim(name: &str) -> Result<Self, OpenError> {
        let unclaimed = |error: std::io::Error| match error.kind() {
            ErrorKind::AddrInUse => OpenError::Taken { interface: name.to_owned() },
            _ => OpenError::Unclaimed { interface: name.to_owned(), error },
        };
        let address = SocketAddr::from_abstract_name(format!("ferroce-fabric/{name}")).map_err(unclaimed)?;
        let claim = UnixDatagram::bind_addr(&address).map_err(unclaimed)?;
        let index = if_nametoindex(name).map_err(|errno| unclaimed(errno.into()))?;
        Ok(Self { name: name.to_owned(), index, _claim: claim })
    }

    fn state(&self) -> Attachment {
        match interface_is_running(&self.name) {
            // Another of the same name is another one: the device does not know it.
            Some(is_running) if if_nametoindex(&*self.name) == Ok(self.index) => {
                if is_running {
                    Attachment::Up
                } else {
                    Attachment::Down
                }
            }
            _ => Attachment::Gone,
        }
    }
}

/// What the system says of a device's interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attachment {
    /// It carries frames, or there is nobody to ask.
    Up,
    /// It is down, or its cable is pulled.
    Down,
    /// It does not exist any more. That does not change.
    Gone,
}

/// A port's device.
#[derive(Debug)]
pub struct Device {
    port: StartedPort,
    interface: Option<Interface>,
    attachment: Attachment,
    rx: RxQueue,
    tx: TxQueue,
    copies: Rc<Mempool>,
    received: Burst,
    /// Frames that came in a burst and wait until their link is free.
    waiting: VecDeque<Packet>,
    sending: Burst,
    counters: DeviceCounters,
}

impl Device {
    /// Makes and starts the devices of all ports.
    ///
    /// # Errors
    /// The first that could not be.
    pub fn open_all(eal: Eal, settings: &Settings) -> Result<Vec<Self>, OpenError> {
        let frame_bytes = |port: &PortSettings| u32::from(port.link.mtu) + LINK_HEADER_BYTES;
        let longest = settings.ports.iter().map(frame_bytes).max().unwrap_or_default();
        let copies = Mempool::new(eal, MempoolConfig { mbuf_count: COPIES, frame_bytes: longest, socket: None })?;
        let copies = Rc::new(copies);
        settings.ports.iter().map(|port| Self::open(eal, port, settings.frames, &copies)).collect()
    }

    fn open(eal: Eal, settings: &PortSettings, frames: usize, copies: &Rc<Mempool>) -> Result<Self, OpenError> {
        let vdev = &settings.vdev;
        let max_frame_bytes = u32::from(settings.link.mtu) + LINK_HEADER_BYTES;
        // The ring holds what the interface may send, even if the link's MTU then drops it.
        let interface_mtu = vdev.kernel_interface().and_then(interface_mtu_bytes).unwrap_or(0);
        let buffer_bytes = max_frame_bytes.max(interface_mtu.saturating_add(LINK_HEADER_BYTES));
        // A missing one is the device's to name.
        let interface = vdev.kernel_interface().filter(|name| if_nametoindex(*name).is_ok());
        let interface = interface.map(Interface::claim).transpose()?;
        eal.add_vdev(&vdev.with_buffers(buffer_bytes, 1))?;
        let config = PortConfig {
            max_frame_bytes,
            spare_mbufs: frames as u32,
            promiscuous: true,
            all_multicast: true,
            ..PortConfig::default()
        };
        let mut port = Port::by_name(eal, vdev.name())?.configure(&config)?;
        let pair = port.take_queue_pairs().pop().ok_or_else(|| OpenError::NoQueue(vdev.name().to_owned()))?;
        Ok(Self {
            port,
            interface,
            attachment: Attachment::Up,
            rx: pair.rx,
            tx: pair.tx,
            copies: Rc::clone(copies),
            received: Burst::new(),
            waiting: VecDeque::with_capacity(Burst::CAPACITY),
            sending: Burst::new(),
            counters: DeviceCounters::default(),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.port.name()
    }

    /// The kernel interface that it shares, if there is one.
    pub fn interface(&self) -> Option<&str> {
        self.interface.as_ref().map(|interface| interface.name.as_str())
    }

    /// Asks the system about its interface. What has changed, if anything has.
    pub fn look(&mut self) -> Option<Attachment> {
        let found = self.interface.as_ref().map_or(Attachment::Up, Interface::state);
        if found == self.attachment || self.attachment == Attachment::Gone {
            return None;
        }
        self.attachment = found;
        if found != Attachment::Up {
            // Nobody takes what waits, and it would be old when somebody does.
            self.counters.down += self.sending.drain().count() as u64;
        }
        Some(found)
    }

    /// What the model is to know of it.
    pub fn attached(&self) -> Attached {
        let speed_mbps = self.port.link().speed_mbit_per_s;
        Attached {
            mac: self.port.mac(),
            mtu: u16::try_from(self.port.mtu_bytes()).unwrap_or(u16::MAX),
            // A device that does not know says 0, or all ones.
            speed_mbps: RATE_MBPS.contains(&speed_mbps).then_some(speed_mbps),
        }
    }

    /// The next frame that came in.
    pub fn receive(&mut self) -> Option<Packet> {
        if self.waiting.is_empty() {
            self.rx.burst(&mut self.received);
            let packets = self.received.drain().map(|mbuf| Packet { mbuf, copies: Rc::clone(&self.copies) });
            self.waiting.extend(packets);
        }
        self.waiting.pop_front()
    }

    /// True if a frame waits that was taken from the device before.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// True if a frame more can be taken by [`Device::send`].
    pub fn has_room(&self) -> bool {
        self.sending.room() > 0
    }

    /// Takes a frame to be sent, or drops and counts it if that cannot be.
    pub fn send(&mut self, carried: Carried<Packet>) {
        let mbuf = match carried {
            _ if self.attachment != Attachment::Up => {
                self.counters.down += 1;
                return;
            }
            Carried::Pause(bytes) => self.tx.frame(&bytes),
            Carried::Frame(packet) if packet.mbuf.len() > self.tx.max_frame_bytes() => {
                self.counters.oversize += 1;
                return;
            }
            Carried::Frame(packet) => Some(packet.mbuf),
        };
        match mbuf.map(|mbuf| self.sending.push(mbuf)) {
            Some(Ok(())) => {}
            Some(Err(_)) | None => self.counters.no_buffer += 1,
        }
    }

    /// Gives the device what it takes of those frames. True if it took any.
    pub fn flush(&mut self) -> bool {
        !self.sending.is_empty() && self.tx.transmit(&mut self.sending) > 0
    }

    /// Frames that the device has not taken yet.
    pub fn unsent(&self) -> usize {
        self.sending.len()
    }

    /// What it did not send.
    pub fn counters(&self) -> DeviceCounters {
        self.counters
    }

    /// What its driver counts.
    pub fn stats(&self) -> PortStats {
        self.port.stats()
    }
}
