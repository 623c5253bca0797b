//! What a device makes of a configuration: sizes, buffers, and the quirks of each driver.

use crate::eal::Eal;
use crate::interface::interface_mtu_bytes;
use crate::mempool::{Mempool, MempoolConfig};
use crate::port::{DeviceFacts, ETHERNET_HEADER_BYTES, Port, PortConfig, PortError};
use crate::vdev::{Driver, Vdev};

/// A configuration fitted to a device.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) queue_pairs: u16,
    pub(crate) rx_descriptors: u16,
    pub(crate) tx_descriptors: u16,
    /// 0: leave the device's MTU alone.
    pub(crate) mtu_bytes: u32,
    pub(crate) max_frame_bytes: u32,
    pub(crate) min_frame_bytes: usize,
    pub(crate) rss_flows: u64,
    rx_pool: MempoolConfig,
    tx_pool: MempoolConfig,
    /// Received frames lie in the sender's buffers: one pool does for both.
    shares_pool: bool,
}

impl Plan {
    pub(crate) fn new(port: &Port, config: &PortConfig) -> Result<Self, PortError> {
        let (facts, name) = (&port.facts, port.name().to_owned());
        let max = port.queue_pairs_max();
        if config.queue_pairs == 0 || config.queue_pairs > max {
            return Err(PortError::QueuePairs { name, asked: config.queue_pairs, max });
        }
        if !(64..=MempoolConfig::FRAME_BYTES_MAX).contains(&config.max_frame_bytes) {
            return Err(PortError::FrameBytes { name, asked: config.max_frame_bytes });
        }
        if config.mac.is_some_and(|mac| mac != facts.mac) && facts.driver.shares_kernel_interface() {
            return Err(PortError::MacIsTheKernels { name });
        }
        let max_frame_bytes = config.max_frame_bytes.min(device_frame_bytes(port));
        let ring_slots = port.link.as_ref().map_or(0, |link| link.slots());
        let slots = |descriptors: u16| ring_slots.max(u32::from(descriptors));
        // Three bursts in hand (spare, for the wire, for other shards), and what the caches of a few threads hold back.
        let working = 3 * 64 + 4 * 192;
        let pool = |descriptors: u16, frame_bytes: u32| MempoolConfig {
            mbuf_count: slots(descriptors).saturating_add(working).saturating_add(config.spare_mbufs),
            frame_bytes,
            socket: facts.socket,
        };
        let pads = config.pad_short_frames.unwrap_or(facts.driver.has_ethernet_minimum());
        Ok(Self {
            queue_pairs: config.queue_pairs,
            rx_descriptors: config.rx_descriptors,
            tx_descriptors: config.tx_descriptors,
            mtu_bytes: device_mtu_bytes(facts, max_frame_bytes),
            max_frame_bytes,
            min_frame_bytes: if pads { 60 } else { 0 },
            rss_flows: facts.rss_flows,
            rx_pool: pool(config.rx_descriptors, rx_frame_bytes(port, max_frame_bytes)),
            tx_pool: pool(config.tx_descriptors, max_frame_bytes.max(64)),
            shares_pool: facts.driver == Driver::Ring,
        })
    }

    /// An RX and a TX pool for each queue pair.
    pub(crate) fn pools(&self, name: &str) -> Result<Vec<(Mempool, Mempool)>, PortError> {
        let eal = Eal::get().expect("a port exists only while EAL runs");
        let make =
            |config| Mempool::new(eal, config).map_err(|source| PortError::Mempool { name: name.to_owned(), source });
        (0..self.queue_pairs)
            .map(|_| {
                let tx_pool = make(self.tx_pool)?;
                let rx_pool = if self.shares_pool { tx_pool.clone() } else { make(self.rx_pool)? };
                Ok((rx_pool, tx_pool))
            })
            .collect()
    }
}

/// The largest frame that the device carries, without the FCS.
fn device_frame_bytes(port: &Port) -> u32 {
    let own_buffers = port.vdev.as_ref().and_then(Vdev::buffer_frame_bytes).unwrap_or(u32::MAX);
    let interface = port.kernel_interface().and_then(interface_mtu_bytes);
    let interface = interface.map_or(u32::MAX, |mtu| mtu.saturating_add(ETHERNET_HEADER_BYTES));
    let device = match port.facts.driver {
        // A device on a bus knows. The virtual ones say 1518 and carry more, or the other way round.
        Driver::Other => {
            let by_mtu = port.facts.mtu_max_bytes.saturating_add(ETHERNET_HEADER_BYTES);
            if port.facts.frame_bytes_max > 0 { by_mtu.min(port.facts.frame_bytes_max) } else { by_mtu }
        }
        _ => u32::MAX,
    };
    own_buffers.min(interface).min(device)
}

/// The MTU to set at configuration time. Virtual devices are left alone: af_packet would change the kernel's interface, and
/// refuses more than 1500; the rest have none.
fn device_mtu_bytes(facts: &DeviceFacts, max_frame_bytes: u32) -> u32 {
    match facts.driver {
        Driver::Other => {
            let mtu = max_frame_bytes.saturating_sub(ETHERNET_HEADER_BYTES);
            mtu.max(facts.mtu_min_bytes).min(facts.mtu_max_bytes)
        }
        _ => 0,
    }
}

/// Frame room of RX buffers.
fn rx_frame_bytes(port: &Port, max_frame_bytes: u32) -> u32 {
    match port.facts.driver {
        // rx_queue_setup wants room for a whole ring slot, whatever the frames' size.
        Driver::AfPacket => {
            port.vdev.as_ref().and_then(Vdev::ring_slot_bytes).map_or(max_frame_bytes, |slot| slot.max(max_frame_bytes))
        }
        // The pool becomes the umem, whose chunks have 4096 bytes with all headers.
        Driver::AfXdp => 3584,
        // A longer frame of the peer's is to be cut or dropped by us, not chained.
        Driver::Memif => {
            port.vdev.as_ref().and_then(Vdev::buffer_frame_bytes).map_or(max_frame_bytes, |b| b.max(max_frame_bytes))
        }
        _ => max_frame_bytes.max(64),
    }
    .clamp(64, MempoolConfig::FRAME_BYTES_MAX)
}
