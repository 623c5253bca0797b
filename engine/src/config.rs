//! What an engine is made with. Everything has a limit; the daemon's configuration sets it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use shm::attr::{GidEntry, GidType, RecoveryPolicy};
use shm::clock::DeviceClock;
use shm::qos::QosSettings;
use wire::{Frame, Gid, MacAddr, PathMtu, VlanTag};

use crate::cc::Settings;

/// Limits of a session or of the engine. All of them are checked when an object is made, none on the data path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// QPs in one shard, all sessions together; at most [`crate::QPN_INDEX_COUNT`] less the reserved ones.
    pub max_qp: u32,
    /// Work requests in a queue.
    pub max_qp_wr: u32,
    /// SGEs in a work request, at most [`shm::layout::MAX_SGE`].
    pub max_sge: u32,
    /// Inline bytes in a work request, at most [`shm::layout::MAX_INLINE`].
    pub max_inline_data: u32,
    /// CQs in one shard.
    pub max_cq: u32,
    /// Entries in a CQ.
    pub max_cqe: u32,
    /// SRQs in one shard.
    pub max_srq: u32,
    /// Regions in the engine.
    pub max_mr: u32,
    /// Protection domains in a session.
    pub max_pd: u32,
    /// Completion channels in a session; each holds a file descriptor of the daemon.
    pub max_channel: u32,
    /// Pieces of memory that a session may attach; each holds a file descriptor of the daemon.
    pub max_memory: u32,
    /// Address handles in the engine.
    pub max_ah: u32,
    /// XRC domains open in the engine, each time that a session opens one; a file's holds a file descriptor of the daemon.
    pub max_xrcd: u32,
    /// READs and atomics outstanding, either way.
    pub max_rd_atomic: u8,
    /// Bytes of rings in a session.
    pub ring_bytes: u64,
    /// Bytes of the memory that rings lie in, all sessions together: 4 MiB at least for each that has any.
    pub ring_bytes_total: u64,
    /// Bytes of memory that a session may attach.
    pub memory_bytes: u64,
    /// Sessions at a time.
    pub max_session: u32,
    /// Neighbours of a port.
    pub max_neighbour: u32,
    /// Post-mortems that are kept, and that each shard holds until they are fetched.
    pub max_post_mortem: u32,
    /// What one user may have of the sessions, QPs, CQs, SRQs, regions, neighbours, ring memory and
    /// connection-manager ids that all share, percent: 1 to 100.
    pub user_share_percent: u8,
    /// Connection-manager ids of all sessions together, those in time wait included.
    pub max_cm_id: u32,
}

impl Limits {
    /// One user's share of a total, rounded up.
    pub fn user_share(&self, total: u64) -> u64 {
        let share = u128::from(total) * u128::from(self.user_share_percent);
        u64::try_from(share.div_ceil(100)).unwrap_or(u64::MAX)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_qp: 16_384,
            max_qp_wr: 16_384,
            max_sge: 16,
            max_inline_data: 512,
            max_cq: 16_384,
            max_cqe: 1 << 20,
            max_srq: 1_024,
            max_mr: 65_536,
            max_pd: 4_096,
            max_channel: 256,
            max_memory: 256,
            max_ah: 65_536,
            max_xrcd: 1_024,
            max_rd_atomic: 16,
            ring_bytes: 2 << 30,
            ring_bytes_total: 4 << 30,
            memory_bytes: 64 << 30,
            max_session: 256,
            max_neighbour: 1_024,
            max_post_mortem: 1_024,
            user_share_percent: 75,
            max_cm_id: 65_536,
        }
    }
}

/// An address of a port, and how it is spoken from: one entry of the GID table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortAddress {
    /// The address. Unspecified = a free entry.
    pub ip: IpAddr,
    /// The VLAN that it belongs to, 1 to 4094; `None` = untagged frames.
    pub vlan: Option<u16>,
    /// The version of RoCE that is spoken from it.
    pub gid_type: GidType,
}

impl PortAddress {
    /// A free entry of the GID table: the zero GID, as on InfiniBand (IBTA 4.1.1).
    pub const FREE: Self = Self { ip: IpAddr::V6(Ipv6Addr::UNSPECIFIED), vlan: None, gid_type: GidType::RoceV2 };

    /// Whether it is a free entry.
    pub fn is_free(&self) -> bool {
        self.ip.is_unspecified()
    }

    /// The link-local address that a MAC address gives (RFC 4291 2.5.6).
    pub fn link_local(mac: MacAddr) -> Self {
        let interface_id = eui64(mac).to_be_bytes();
        let mut octets = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        octets[8..].copy_from_slice(&interface_id);
        IpAddr::V6(Ipv6Addr::from(octets)).into()
    }

    /// An address of the link only (RFC 4291 2.5.6).
    pub fn is_link_local(&self) -> bool {
        matches!(self.ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
    }

    /// The VLAN that a tag says: none if it is for the priority only (IEEE 802.1Q 9.6).
    #[inline]
    pub fn vlan_of(tag: Option<VlanTag>) -> Option<u16> {
        tag.map(|tag| tag.vid).filter(|&vid| vid != 0)
    }
}

/// The address, and its VLAN behind an `@`.
impl fmt::Display for PortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip.fmt(f)?;
        self.vlan.map_or(Ok(()), |vlan| write!(f, "@{vlan}"))
    }
}

/// RoCEv2 without a VLAN.
impl From<IpAddr> for PortAddress {
    fn from(ip: IpAddr) -> Self {
        Self { ip, vlan: None, gid_type: GidType::RoceV2 }
    }
}

/// A port, as the daemon found it. What changes while it runs replaces the value as a whole: [`crate::control::Control::port_changed`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// Frames can pass.
    pub active: bool,
    /// MAC address.
    pub mac: MacAddr,
    /// Addresses; GID `i` is address `i`. IPv4 with RoCEv2 first, so that GID 0 is the routable IPv4-mapped one. An unspecified
    /// address is a free entry ([`PortAddress::FREE`]).
    pub addresses: Vec<PortAddress>,
    /// Layer 3 bytes of the largest frame.
    pub interface_mtu: u16,
    /// True if this port answers ARP and Neighbour Discovery itself; false where the kernel owns the interface's addresses and answers.
    pub answers_arp: bool,
    /// Link speed, Mbit/s; 0 = unknown.
    pub speed_mbps: u32,
    /// What drives it.
    pub driver: String,
    /// The kernel interface that is shared, if any.
    pub kernel_interface: Option<String>,
}

/// Bytes of IPv6, UDP, BTH, the longest extension headers of a data packet and ICRC: what a path MTU must leave room for.
/// The kernel's rxe subtracts 80 as well.
const HEADROOM_BYTES: u32 = 80;

impl PortConfig {
    /// Largest path MTU whose packets fit the interface; [`PathMtu::M256`] at least.
    pub fn active_mtu(&self) -> PathMtu {
        let payload = u32::from(self.interface_mtu).saturating_sub(HEADROOM_BYTES);
        PathMtu::largest_within(payload).unwrap_or(PathMtu::M256)
    }

    /// Most entries of a GID table: what an index of 8 bits can name.
    pub const GID_COUNT_MAX: usize = 255;

    /// Makes the GID table follow the addresses that there are `now`: entries keep their index as long as their address is there,
    /// free ones are used again, and entry 0 is left to untagged IPv4 with RoCEv2. What exceeds [`PortConfig::GID_COUNT_MAX`] is
    /// left out.
    pub fn follow_addresses(&mut self, now: &[PortAddress]) {
        let table = &mut self.addresses;
        table.iter_mut().filter(|entry| !now.contains(entry)).for_each(|entry| *entry = PortAddress::FREE);
        for &address in now.iter().filter(|address| !address.is_free()) {
            if table.contains(&address) {
                continue;
            }
            if table.is_empty() {
                table.push(PortAddress::FREE);
            }
            let suits_entry_0 = PortAddress::from(address.ip) == address && address.ip.is_ipv4();
            let first = usize::from(!suits_entry_0);
            match table.iter().skip(first).position(PortAddress::is_free) {
                Some(free) => table[first + free] = address,
                None if table.len() < Self::GID_COUNT_MAX => table.push(address),
                None => {}
            }
        }
        while table.last().is_some_and(PortAddress::is_free) {
            table.pop();
        }
    }

    /// The entries of the GID table that are in use.
    pub fn gids(&self) -> impl Iterator<Item = GidEntry> + '_ {
        let used = (0..).zip(&self.addresses).filter(|(_, address)| !address.ip.is_unspecified());
        used.map(|(index, address)| GidEntry {
            gid: Gid::from_ip(address.ip),
            index,
            gid_type: address.gid_type,
            vlan: address.vlan,
        })
    }

    /// The address at an index of the GID table; `None` if there is none or the entry is free.
    pub fn address(&self, gid_index: u8) -> Option<PortAddress> {
        self.addresses.get(usize::from(gid_index)).copied().filter(|address| !address.ip.is_unspecified())
    }

    /// Whether the port has any address in a VLAN (or among untagged frames).
    pub fn has_vlan(&self, vlan: Option<u16>) -> bool {
        self.addresses.iter().any(|address| address.vlan == vlan)
    }

    /// The address to ask for a neighbour from: of those in its VLAN, the one that is most alike.
    pub(crate) fn source_for(&self, neighbour: IpAddr, vlan: Option<u16>) -> Option<IpAddr> {
        let alike = |ip: IpAddr| (bits(ip) ^ bits(neighbour)).leading_zeros();
        let candidates = self.addresses.iter().filter(|address| address.vlan == vlan).map(|address| address.ip);
        candidates.filter(|ip| !ip.is_unspecified() && ip.is_ipv4() == neighbour.is_ipv4()).max_by_key(|&ip| alike(ip))
    }

    /// The GID that a frame was sent to, by address, VLAN and version of RoCE; `None` if it is none of ours.
    pub(crate) fn gid_index_of(&self, frame: &Frame<'_>) -> Option<u8> {
        let (ip, vlan) = (frame.dst_ip(), PortAddress::vlan_of(frame.vlan()));
        let gid_type = if frame.is_roce_v1() { GidType::RoceV1 } else { GidType::RoceV2 };
        let found = self.addresses.iter().position(|a| a.ip == ip && a.vlan == vlan && a.gid_type == gid_type);
        found.and_then(|index| u8::try_from(index).ok())
    }

    /// Whether the port has an address in a VLAN.
    pub fn has_address(&self, ip: IpAddr, vlan: Option<u16>) -> bool {
        !ip.is_unspecified() && self.addresses.iter().any(|address| address.ip == ip && address.vlan == vlan)
    }
}

/// The identifier that a MAC address gives: of an IPv6 interface (RFC 4291 appendix A), and of a node (IBTA A17).
pub(crate) fn eui64(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

fn bits(ip: IpAddr) -> u128 {
    u128::from_be_bytes(Gid::from_ip(ip).0)
}

/// The transport's own settings, the same for all QPs of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransportConfig {
    /// Request packets that a QP may have unacknowledged; a power of two.
    pub window_packets: u32,
    /// Packets that one QP may send before the next QP's turn.
    pub quantum_packets: u32,
    /// An acknowledgement is asked for at least every so many request packets.
    pub ack_request_packets: u32,
    /// Work requests that are flushed in one turn at most.
    pub flush_wqes: u32,
    /// Doorbell words that one turn serves at most.
    pub doorbell_words: u32,
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self { window_packets: 256, quantum_packets: 16, ack_request_packets: 32, flush_wqes: 256, doorbell_words: 64 }
    }
}

/// Loss recovery's settings, the same for all QPs of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecoveryConfig {
    /// What a QP does whose peer agrees to it when they are connected.
    pub policy: RecoveryPolicy,
    /// What a QP does that is made ready without being asked: its peer may be anybody.
    pub unasked: RecoveryPolicy,
    /// The short timer with few packets in flight, us; it is never shorter.
    pub rto_low_us: u32,
    /// The short timer with more packets in flight, us.
    pub rto_high_us: u32,
    /// So many packets in flight are few.
    pub few_packets: u32,
    /// The long timer at first, us.
    pub rto_min_us: u32,
    /// The long timer at most, us: it doubles each time that it fires without progress.
    pub rto_max_us: u32,
    /// For so long a packet may come later than one that was sent after it, in percent of the least round trip time, before
    /// it is taken for lost.
    pub reorder_percent: u32,
    /// That time grows up to so many times itself when packets turn out to be late and not lost.
    pub reorder_factor: u32,
    /// A hybrid QP goes back N when more packets than this are missing at a time.
    pub holes: u32,
    /// Packets that a shard keeps until what is missing before them has come.
    pub kept_packets: u32,
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        Self {
            policy: RecoveryPolicy::Hybrid,
            unasked: RecoveryPolicy::GoBackN,
            rto_low_us: 100,
            rto_high_us: 320,
            few_packets: 3,
            rto_min_us: 1_000,
            rto_max_us: 64_000,
            reorder_percent: 25,
            reorder_factor: 16,
            holes: 128,
            kept_packets: 4096,
        }
    }
}

/// Whose processes may register any memory they have. Each access to it is a system call that may have to wait for whoever backs
/// the memory (a FUSE server, a userfaultfd), and with it the lcore: only those who could harm the engine anyway should.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessMemoryPolicy {
    /// Nobody's.
    Nobody,
    /// Those of this user, and root's.
    UserAndRoot(u32),
    /// Everybody's.
    Everybody,
}

impl ProcessMemoryPolicy {
    /// Whether a process of `uid` may.
    pub const fn allows(self, uid: u32) -> bool {
        match self {
            Self::Nobody => false,
            Self::UserAndRoot(user) => uid == user || uid == 0,
            Self::Everybody => true,
        }
    }
}

/// Everything an engine is made with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineConfig {
    /// Device name, such as `ferroce0`.
    pub device_name: String,
    /// Version string that clients see.
    pub version: String,
    /// Shards: lcores. 1 to [`crate::SHARD_COUNT_MAX`].
    pub shard_count: u8,
    /// Ports, 1 to 8.
    pub ports: Vec<PortConfig>,
    /// Limits.
    pub limits: Limits,
    /// Transport settings.
    pub transport: TransportConfig,
    /// Loss recovery.
    pub recovery: RecoveryConfig,
    /// Congestion control of all ports, as long as nothing else is set for one.
    pub congestion: Settings,
    /// Whose processes may register any memory they have.
    pub process_memory: ProcessMemoryPolicy,
    /// How clients read the clock that the engine is driven by.
    pub clock: DeviceClock,
    /// Quality of service that every port starts with.
    pub qos: QosSettings,
    /// The user who may change settings, beside root.
    pub operator_uid: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(addresses: &[&str]) -> PortConfig {
        PortConfig {
            active: true,
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            addresses: list(addresses),
            interface_mtu: 1_500,
            answers_arp: false,
            speed_mbps: 0,
            driver: "test".into(),
            kernel_interface: None,
        }
    }

    fn list(addresses: &[&str]) -> Vec<PortAddress> {
        addresses.iter().map(|ip| ip.parse::<IpAddr>().unwrap().into()).collect()
    }

    #[test]
    fn gids_keep_their_index_and_free_entries_are_used_again() {
        let mut port = port(&["10.0.0.1", "fe80::1", "10.0.0.2"]);
        port.follow_addresses(&list(&["10.0.0.2", "10.0.0.1"]));
        assert_eq!(port.addresses, list(&["10.0.0.1", "::", "10.0.0.2"]));
        assert_eq!(port.gids().map(|gid| gid.index).collect::<Vec<_>>(), [0, 2]);
        assert_eq!((port.address(1), port.address(2), port.address(3)), (None, Some(list(&["10.0.0.2"])[0]), None));
        port.follow_addresses(&list(&["10.0.0.2", "10.0.0.1", "10.0.0.3", "10.0.0.4"]));
        assert_eq!(port.addresses, list(&["10.0.0.1", "10.0.0.3", "10.0.0.2", "10.0.0.4"]));
        port.follow_addresses(&list(&["10.0.0.3"]));
        assert_eq!(port.addresses, list(&["::", "10.0.0.3"]), "free entries at the end are no entries");
    }

    #[test]
    fn entry_0_is_left_to_ipv4() {
        let mut port = port(&["10.0.0.1"]);
        port.follow_addresses(&[]);
        assert!(port.addresses.is_empty());
        port.follow_addresses(&list(&["fe80::1"]));
        assert_eq!(port.addresses, list(&["::", "fe80::1"]));
        port.follow_addresses(&list(&["fe80::1", "10.0.0.9"]));
        assert_eq!(port.addresses, list(&["10.0.0.9", "fe80::1"]));
    }

    #[test]
    fn a_table_has_no_more_entries_than_an_index_can_name() {
        let many: Vec<PortAddress> =
            (0..300_u32).map(|n| IpAddr::from((0x0a00_0000 + n).to_be_bytes()).into()).collect();
        let mut port = port(&[]);
        port.follow_addresses(&many);
        assert_eq!(port.addresses, many[..PortConfig::GID_COUNT_MAX]);
    }
}
