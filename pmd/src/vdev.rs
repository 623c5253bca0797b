//! `Vdev`: a virtual device as DPDK's `--vdev` takes it, and what each kind of driver can and must have.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Which driver runs a port: decides the quirks of [`crate::Port::configure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Driver {
    /// `net_af_packet`: memory-mapped packet sockets on a kernel interface.
    AfPacket,
    /// `net_af_xdp`: XDP sockets on a kernel interface.
    AfXdp,
    /// `net_pcap`: libpcap on a kernel interface or a file.
    Pcap,
    /// `net_tap`: a TAP interface of its own, whose other side the kernel has.
    Tap,
    /// `net_ring`: DPDK rings in one process.
    Ring,
    /// `net_null`: gives and takes endlessly.
    Null,
    /// `net_memif`: shared memory between two processes.
    Memif,
    /// `net_vhost`: the device side of virtio.
    Vhost,
    /// `net_virtio_user`: the driver side of virtio.
    VirtioUser,
    /// Anything else: a device on a bus, driven by its own PMD.
    Other,
}

/// The drivers with a name of ours; a vdev's name starts with its driver's.
const DRIVER_NAMES: [(&str, Driver); 9] = [
    ("net_af_packet", Driver::AfPacket),
    ("net_af_xdp", Driver::AfXdp),
    ("net_pcap", Driver::Pcap),
    ("net_tap", Driver::Tap),
    ("net_ring", Driver::Ring),
    ("net_null", Driver::Null),
    ("net_memif", Driver::Memif),
    ("net_vhost", Driver::Vhost),
    ("net_virtio_user", Driver::VirtioUser),
];

impl Driver {
    /// The driver that a device or driver name begins with.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        DRIVER_NAMES.iter().find(|(prefix, _)| name.starts_with(prefix)).map_or(Self::Other, |(_, driver)| *driver)
    }

    /// Whether the kernel has the same interface and sees the same frames.
    #[must_use]
    pub const fn shares_kernel_interface(self) -> bool {
        matches!(self, Self::AfPacket | Self::AfXdp | Self::Pcap)
    }

    /// Whether frames end on (or pretend to) an Ethernet segment, whose shortest frame has 60 bytes without the FCS.
    #[must_use]
    pub const fn has_ethernet_minimum(self) -> bool {
        matches!(self, Self::AfPacket | Self::AfXdp | Self::Pcap | Self::Tap | Self::Other)
    }
}

/// Which end of a memif connection a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemifRole {
    /// Listens on the socket. It must be up before the client starts.
    Server,
    /// Connects to the socket.
    Client,
}

/// A virtual device: its name (driver and a number) and its arguments.
///
/// `Display` and `FromStr` are DPDK's own form, `net_af_packet0,iface=veth0,framesz=10240`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vdev {
    name: String,
    arguments: Vec<(String, String)>,
}

/// Why a text is not a virtual device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VdevParseError {
    /// The name is empty, too long for DPDK, or has characters that it does not allow.
    #[error("`{0}` is not a device name: 1 to {max} letters, digits, `_`, `-`, `.` or `:`, such as net_tap0", max = Vdev::NAME_MAX_LEN)]
    Name(String),
    /// No driver that this crate knows starts the name.
    #[error("`{0}` names no known driver: it must begin with one of {known}", known = known_drivers())]
    Driver(String),
    /// A device on a kernel interface does not say which.
    #[error("{device} does not name its interface: it needs iface=NAME, such as {device},iface=eth0")]
    NoInterface {
        /// The device.
        device: String,
    },
    /// An argument is not `key=value`, or has a blank or control character.
    #[error("`{0}` is not a device argument: key=value without blanks, separated by commas")]
    Argument(String),
}

fn known_drivers() -> String {
    DRIVER_NAMES.map(|(name, _)| name).join(", ")
}

impl Vdev {
    /// Longest device name that DPDK takes, without its terminating zero.
    pub const NAME_MAX_LEN: usize = ffi::RTE_ETH_NAME_MAX_LEN as usize - 1;

    /// Frame size of a memif buffer when its argument `bsize` is absent.
    const MEMIF_DEFAULT_BSIZE: u32 = 2048;
    /// Frame slot of an af_packet ring when its argument `framesz` is absent.
    const AF_PACKET_DEFAULT_FRAMESZ: u32 = 2048;
    /// What the kernel puts in front of a frame in an af_packet ring slot: a `tpacket2_hdr`, a `sockaddr_ll`, alignment.
    const AF_PACKET_OVERHEAD_BYTES: u32 = 66;
    /// Frame slots of each af_packet ring. The kernel drops a frame that finds the ring full and does not say so.
    const AF_PACKET_FRAME_COUNT: u32 = 1024;

    fn new(driver: &str, index: u16, arguments: &[(&str, String)]) -> Self {
        Self {
            name: format!("{driver}{index}"),
            arguments: arguments.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
        }
    }

    /// Packet sockets on the kernel's interface `iface`, with `queue_pairs` queues (the kernel spreads received frames
    /// over them by flow), for frames of up to `frame_bytes`. Needs CAP_NET_RAW. The interface's MTU is the kernel's
    /// affair: the driver must not change it, and frames over it are dropped.
    ///
    /// *Memory*: 2 rings a queue, each of 1024 slots of `frame_bytes` and 66 more, rounded up to 2 KiB. They are locked into memory: where
    /// the process may not lock as much ([`crate::lockable_bytes`]), they have fewer slots, 64 at least.
    #[must_use]
    pub fn af_packet(index: u16, iface: &str, queue_pairs: u16, frame_bytes: u32) -> Self {
        let slot_bytes = frame_bytes.saturating_add(Self::AF_PACKET_OVERHEAD_BYTES).next_multiple_of(2048);
        // A block is a multiple of the page and of the slot.
        let block_bytes = if slot_bytes % 4096 == 0 { slot_bytes } else { slot_bytes.saturating_mul(2) };
        Self::new(
            "net_af_packet",
            index,
            &[
                ("iface", iface.to_owned()),
                ("qpairs", queue_pairs.to_string()),
                ("framesz", slot_bytes.to_string()),
                ("blocksz", block_bytes.to_string()),
                ("framecnt", Self::frame_count(queue_pairs, slot_bytes, crate::memory::lockable_bytes()).to_string()),
            ],
        )
    }

    /// Slots of an af_packet ring whose memory may be locked: a power of two.
    fn frame_count(queue_pairs: u16, slot_bytes: u32, lockable_bytes: Option<u64>) -> u32 {
        let slots = lockable_bytes.unwrap_or(u64::MAX) / (2 * u64::from(queue_pairs.max(1)) * u64::from(slot_bytes));
        let most = u32::try_from(slots).unwrap_or(u32::MAX).clamp(64, Self::AF_PACKET_FRAME_COUNT);
        1 << most.ilog2()
    }

    /// Bytes of the rings of an af_packet device.
    pub(crate) fn af_packet_ring_bytes(&self) -> u64 {
        let number =
            |key: &str, default: u64| self.argument(key).and_then(|value| value.parse().ok()).unwrap_or(default);
        // The driver's own defaults.
        let slot_bytes = number("framesz", Self::AF_PACKET_DEFAULT_FRAMESZ.into());
        number("qpairs", 1).saturating_mul(2).saturating_mul(slot_bytes).saturating_mul(number("framecnt", 512))
    }

    /// A new TAP interface `iface` in the kernel; frames of up to 1514 bytes. Needs CAP_NET_ADMIN.
    #[must_use]
    pub fn tap(index: u16, iface: &str) -> Self {
        Self::new("net_tap", index, &[("iface", iface.to_owned())])
    }

    /// A port that receives what it sends.
    #[must_use]
    pub fn ring(index: u16) -> Self {
        Self::new("net_ring", index, &[])
    }

    /// A port that takes every frame and gives frames of `frame_bytes` without end; `copy` makes it copy them.
    #[must_use]
    pub fn null(index: u16, frame_bytes: u16, copy: bool) -> Self {
        let size = ("size", frame_bytes.to_string());
        let copy = ("copy", u8::from(copy).to_string());
        Self::new("net_null", index, &[size, copy])
    }

    /// One end of the shared-memory connection `id` on the UNIX socket at path `socket`, with buffers of
    /// `buffer_bytes`, at least the largest frame: longer ones would be split or corrupted.
    #[must_use]
    pub fn memif(index: u16, role: MemifRole, socket: &str, id: u32, buffer_bytes: u32) -> Self {
        let role = match role {
            MemifRole::Server => "server",
            MemifRole::Client => "client",
        };
        Self::new(
            "net_memif",
            index,
            &[
                ("role", role.to_owned()),
                ("id", id.to_string()),
                ("socket", socket.to_owned()),
                ("socket-abstract", "no".to_owned()),
                ("bsize", buffer_bytes.to_string()),
            ],
        )
    }

    /// The device's name, which is the port's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The arguments in DPDK's form, without the name.
    #[must_use]
    pub fn arguments(&self) -> String {
        let pairs: Vec<String> = self.arguments.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.join(",")
    }

    /// The value of the argument `key`.
    #[must_use]
    pub fn argument(&self, key: &str) -> Option<&str> {
        self.arguments.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The driver, from the name.
    #[must_use]
    pub fn driver(&self) -> Driver {
        Driver::from_name(&self.name)
    }

    /// The kernel's interface that this device shares with the kernel, if it does: its addresses and MTU are the kernel's.
    #[must_use]
    pub fn kernel_interface(&self) -> Option<&str> {
        let driver = self.driver();
        if !driver.shares_kernel_interface() {
            return None;
        }
        self.argument("iface").or_else(|| self.argument("rx_iface").filter(|_| driver == Driver::Pcap))
    }

    /// The largest frame that the device's own buffers hold; `None` when the mbuf alone sets the limit.
    /// What an interface's MTU allows comes on top: see [`crate::StartedPort::max_frame_bytes`].
    #[must_use]
    pub fn buffer_frame_bytes(&self) -> Option<u32> {
        let number =
            |key: &str, default: u32| self.argument(key).and_then(|value| value.parse().ok()).unwrap_or(default);
        match self.driver() {
            Driver::AfPacket => {
                Some(number("framesz", Self::AF_PACKET_DEFAULT_FRAMESZ).saturating_sub(Self::AF_PACKET_OVERHEAD_BYTES))
            }
            Driver::Memif => Some(number("bsize", Self::MEMIF_DEFAULT_BSIZE)),
            // One chunk of 4096 bytes with its headers; a frame over it would come out corrupted.
            Driver::AfXdp => Some(3300),
            // Above, the TAP device refuses the write for ever.
            Driver::Tap => Some(ffi::RTE_ETHER_MTU + ffi::RTE_ETHER_HDR_LEN),
            _ => None,
        }
    }

    /// The same device with buffers for frames of up to `frame_bytes`, and `queue_pairs` queues: the arguments that say so are added where
    /// there are none.
    #[must_use]
    pub fn with_buffers(&self, frame_bytes: u32, queue_pairs: u16) -> Self {
        let template = match self.driver() {
            Driver::AfPacket => Self::af_packet(0, "", queue_pairs, frame_bytes),
            Driver::Memif => Self::memif(0, MemifRole::Client, "", 0, frame_bytes.next_multiple_of(64)),
            _ => return self.clone(),
        };
        // Slot, block and count of an af_packet ring depend on each other: who sets one sets them all.
        let sets_ring = ["framesz", "blocksz", "framecnt"].iter().any(|key| self.argument(key).is_some());
        let keys: &[&str] = match self.driver() {
            Driver::AfPacket if sets_ring => &["qpairs"],
            Driver::AfPacket => &["qpairs", "framesz", "blocksz", "framecnt"],
            _ => &["bsize"],
        };
        let mut vdev = self.clone();
        for key in keys.iter().filter(|key| self.argument(key).is_none()) {
            if let Some(value) = template.argument(key) {
                vdev.arguments.push(((*key).to_owned(), value.to_owned()));
            }
        }
        vdev
    }

    /// The slot size of an af_packet ring, which the data room of the receive pool must not be below.
    pub(crate) fn ring_slot_bytes(&self) -> Option<u32> {
        (self.driver() == Driver::AfPacket).then(|| {
            self.argument("framesz").and_then(|value| value.parse().ok()).unwrap_or(Self::AF_PACKET_DEFAULT_FRAMESZ)
        })
    }
}

impl fmt::Display for Vdev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.arguments.iter().try_for_each(|(key, value)| write!(f, ",{key}={value}"))
    }
}

impl FromStr for Vdev {
    type Err = VdevParseError;

    fn from_str(text: &str) -> Result<Self, VdevParseError> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
        if name.is_empty() || name.len() > Self::NAME_MAX_LEN || !name.chars().all(legal) {
            return Err(VdevParseError::Name(name.to_owned()));
        }
        if Driver::from_name(name) == Driver::Other {
            return Err(VdevParseError::Driver(name.to_owned()));
        }
        let arguments = parts
            .map(|part| match part.split_once('=') {
                Some((key, value))
                    if !key.is_empty() && !value.is_empty() && part.chars().all(|c| c.is_ascii_graphic()) =>
                {
                    Ok((key.to_owned(), value.to_owned()))
                }
                _ => Err(VdevParseError::Argument(part.to_owned())),
            })
            .collect::<Result<_, _>>()?;
        let vdev = Self { name: name.to_owned(), arguments };
        if matches!(vdev.driver(), Driver::AfPacket | Driver::AfXdp) && vdev.kernel_interface().is_none() {
            return Err(VdevParseError::NoInterface { device: vdev.name });
        }
        Ok(vdev)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn af_packet_slots_hold_the_frame_and_blocks_fit_pages_and_slots() {
        for frame_bytes in [60, 1514, 1982, 1983, 4200, 9014, 9600] {
            let vdev = Vdev::af_packet(3, "veth0", 2, frame_bytes);
            let slot: u32 = vdev.argument("framesz").unwrap().parse().unwrap();
            let block: u32 = vdev.argument("blocksz").unwrap().parse().unwrap();
            assert!(vdev.buffer_frame_bytes().unwrap() >= frame_bytes);
            assert_eq!((slot % 16, block % slot, block % 4096), (0, 0, 0), "framesz {slot}, blocksz {block}");
            assert_eq!(64 % (block / slot), 0, "a ring of any size is whole blocks");
            assert_eq!((vdev.name(), vdev.kernel_interface()), ("net_af_packet3", Some("veth0")));
        }
    }

    #[test]
    fn af_packet_rings_fit_into_what_may_be_locked() {
        let count = |queue_pairs, lockable| Vdev::frame_count(queue_pairs, 6144, lockable);
        assert_eq!((count(1, None), count(16, None)), (1024, 1024));
        assert_eq!(count(1, Some(8 << 20)), 512);
        assert_eq!(count(2, Some(8 << 20)), 256);
        assert_eq!(count(1, Some(64 << 10)), 64, "no less; the driver then refuses the device");
        let vdev: Vdev = "net_af_packet0,iface=x,qpairs=2,framesz=6144,framecnt=1024".parse().unwrap();
        assert_eq!(vdev.af_packet_ring_bytes(), 2 * 2 * 6144 * 1024);
    }

    fn completed(text: &str, frame_bytes: u32) -> String {
        text.parse::<Vdev>().unwrap().with_buffers(frame_bytes, 2).to_string()
    }

    #[test]
    fn devices_get_buffers_for_the_frame_where_the_operator_sets_none() {
        // An ordinary user's rings have fewer slots.
        let slots = |frame_bytes| Vdev::af_packet(0, "x", 2, frame_bytes).argument("framecnt").unwrap().to_owned();
        assert_eq!(
            completed("net_af_packet0,iface=x", 4218),
            format!("net_af_packet0,iface=x,qpairs=2,framesz=6144,blocksz=12288,framecnt={}", slots(4218))
        );
        assert_eq!(
            completed("net_af_packet0,iface=x", 1518),
            format!("net_af_packet0,iface=x,qpairs=2,framesz=2048,blocksz=4096,framecnt={}", slots(1518))
        );
        assert_eq!(completed("net_memif0,role=client,socket=/s", 4218), "net_memif0,role=client,socket=/s,bsize=4224");
    }

    #[test]
    fn what_the_operator_sets_stays() {
        let own = "net_af_packet0,iface=x,framesz=10240,blocksz=20480,framecnt=512";
        assert_eq!(completed(own, 1518), format!("{own},qpairs=2"));
        assert_eq!(completed("net_memif0,bsize=9216", 1518), "net_memif0,bsize=9216");
        assert_eq!(completed("net_tap0,iface=t", 4218), "net_tap0,iface=t");
    }

    #[test]
    fn text_form_is_dpdk_s() {
        let memif = Vdev::memif(0, MemifRole::Server, "/run/a.sock", 7, 9216);
        assert_eq!(memif.to_string(), "net_memif0,role=server,id=7,socket=/run/a.sock,socket-abstract=no,bsize=9216");
        assert_eq!(memif.to_string().parse(), Ok(memif));
        assert_eq!(Vdev::ring(4).to_string(), "net_ring4");
        assert_eq!(Vdev::null(1, 64, true).to_string(), "net_null1,size=64,copy=1");
        assert_eq!(Vdev::tap(0, "dtp0").kernel_interface(), None);
        assert_eq!("net_pcap0,rx_iface=eth1".parse::<Vdev>().unwrap().kernel_interface(), Some("eth1"));
    }

    #[test]
    fn bad_text_is_refused_by_the_part_at_fault() {
        let parse = |text: &str| text.parse::<Vdev>().unwrap_err();
        assert_eq!(parse(""), VdevParseError::Name(String::new()));
        assert_eq!(parse("net tap0"), VdevParseError::Name("net tap0".to_owned()));
        assert_eq!(parse(&"net_tap0".repeat(20)), VdevParseError::Name("net_tap0".repeat(20)));
        assert_eq!(parse("net_wonder0,a=b"), VdevParseError::Driver("net_wonder0".to_owned()));
        for argument in ["iface", "iface=", "=x", "a=b c", "a=b\0"] {
            assert_eq!(parse(&format!("net_tap0,{argument}")), VdevParseError::Argument(argument.to_owned()));
        }
        assert_eq!(
            parse("net_af_packet0,qpairs=1"),
            VdevParseError::NoInterface { device: "net_af_packet0".to_owned() }
        );
        assert!(parse("net_af_xdp0").to_string().contains("iface=NAME"));
        assert!(parse("net_wonder0").to_string().contains("net_af_packet"));
    }

    proptest! {
        #[test]
        fn parsing_any_text_never_panics_and_what_is_accepted_prints_back(text in "(net_(tap|ring|null)[0-9]{0,3})?.{0,40}") {
            if let Ok(vdev) = text.parse::<Vdev>() {
                prop_assert_eq!(vdev.to_string(), text);
            }
        }
    }
}
