//! A network interface that the kernel has as well: its addresses, peace with the kernel over UDP port 4791, and a way to be woken by
//! its frames.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use engine::config::{PortAddress, PortConfig};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{LinkAddr, bind};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use thiserror::Error;
use wire::{EtherType, ROCE_PORT};

use crate::netlink::{InterfaceState, InterfaceWatch};
use crate::port::gid_table;

/// Why the kernel's interface can't be shared.
#[derive(Debug, Error)]
pub enum InterfaceError {
    /// The kernel does not tell its state.
    #[error("state of interface `{interface}`: {source}")]
    State {
        /// The interface.
        interface: String,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// It has none.
    #[error(
        "interface `{interface}` has no IPv4 address: give it one, for example `ip addr add 10.0.0.1/24 dev {interface}`"
    )]
    NoAddress {
        /// The interface.
        interface: String,
    },
    /// The operator names an address that the kernel would not answer for.
    #[error("interface `{interface}` does not have the address {address}; it has {}: leave `addresses` out to use these", list(.known))]
    NotItsAddress {
        /// The interface.
        interface: String,
        /// What the operator set.
        address: IpAddr,
        /// What the interface has.
        known: Vec<IpAddr>,
    },
    /// Somebody else speaks RoCEv2 here.
    #[error(
        "UDP port {ROCE_PORT} of {address} is taken: another ferroced, the kernel's rxe or siw, or another program uses RoCEv2 on this \
         interface; stop it first"
    )]
    PortTaken {
        /// The address.
        address: IpAddr,
    },
    /// The socket was refused.
    #[error("UDP port {ROCE_PORT} of {address}: {source}")]
    Guard {
        /// The address.
        address: IpAddr,
        /// What the operating system says.
        source: std::io::Error,
    },
}

/// BPF_RET | BPF_K: accept as many bytes of the packet as the constant says.
const RETURN_CONSTANT: u16 = 0x06;

fn list(addresses: &[IpAddr]) -> String {
    let words: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    words.join(", ")
}

/// What the operator sets of the addresses of an interface.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Those of the interface itself; empty = all that it has.
    pub(crate) untagged: Vec<IpAddr>,
    /// Those of VLAN interfaces on top of it, which stay whatever the kernel says.
    pub(crate) tagged: Vec<PortAddress>,
    /// RoCEv1 GIDs as well.
    pub(crate) roce_v1: bool,
}

/// An interface that the kernel has as well, and what we hold of it.
#[derive(Debug)]
pub(crate) struct KernelInterface {
    watch: InterfaceWatch,
    guard: RoceUdpGuard,
    wanted: Wanted,
    /// What frames the port was set up for.
    mtu_bytes_max: u16,
}

impl KernelInterface {
    /// Takes part in an interface, which must have an IPv4 address and all of the `wanted` ones; returns the addresses to use: these,
    /// or all that it has.
    ///
    /// # Errors
    /// [`InterfaceError`].
    pub(crate) fn open(
        interface: &str,
        wanted: Wanted,
        mtu_bytes_max: u16,
    ) -> Result<(Self, Vec<PortAddress>), InterfaceError> {
        let untold = |source| InterfaceError::State { interface: interface.to_owned(), source };
        let watch = InterfaceWatch::new(interface).map_err(untold)?;
        let known = watch.state().map_err(untold)?.unwrap_or_default().addresses;
        if !known.iter().any(IpAddr::is_ipv4) {
            return Err(InterfaceError::NoAddress { interface: interface.to_owned() });
        }
        if let Some(&address) = wanted.untagged.iter().find(|address| !known.contains(address)) {
            return Err(InterfaceError::NotItsAddress { interface: interface.to_owned(), address, known });
        }
        let untagged = if wanted.untagged.is_empty() { known } else { wanted.untagged.clone() };
        let untagged = untagged.into_iter().map(PortAddress::from);
        let addresses: Vec<PortAddress> = untagged.chain(wanted.tagged.iter().copied()).collect();
        let mut guard = RoceUdpGuard::new(watch.index());
        addresses.iter().try_for_each(|address| guard.hold(address.ip))?;
        Ok((Self { watch, guard, wanted, mtu_bytes_max }, addresses))
    }

    /// If the kernel has told of changes, brings a port up to date with the interface: link, MTU, MAC address, GIDs.
    ///
    /// Addresses of VLAN interfaces on top of it are not followed: they are those that the operator names.
    pub(crate) fn follow(&mut self, port: &mut PortConfig) {
        if self.watch.drain() {
            self.read(port);
        }
    }

    /// The same whether the kernel has told of changes or not.
    pub(crate) fn read(&mut self, port: &mut PortConfig) {
        let InterfaceState { up, mtu_bytes, mac, mut addresses } = match self.watch.state() {
            Ok(Some(state)) => state,
            Ok(None) => {
                port.active = false;
                self.guard.keep(&[]);
                return port.follow_addresses(&[]);
            }
            Err(error) => return tracing::warn!("the state of an interface stays as it was: {error}"),
        };
        port.active = up;
        port.mac = mac.unwrap_or(port.mac);
        port.interface_mtu = u16::try_from(mtu_bytes).unwrap_or(u16::MAX).min(self.mtu_bytes_max);
        let wanted = &self.wanted;
        addresses.retain(|address| wanted.untagged.is_empty() || wanted.untagged.contains(address));
        let tagged = wanted.tagged.iter().map(|address| address.ip);
        self.guard.keep(&addresses.iter().copied().chain(tagged).collect::<Vec<_>>());
        addresses.retain(|&address| match self.guard.hold(address) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!("a new address is not used: {error}");
                false
            }
        });
        let all = addresses.into_iter().map(PortAddress::from).chain(self.wanted.tagged.iter().copied());
        port.follow_addresses(&gid_table(all.collect(), port.mac, false, self.wanted.roce_v1));
    }
}

impl AsFd for KernelInterface {
    /// Readable when there is something for [`KernelInterface::follow`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

/// Keeps UDP port 4791 of some addresses: without a socket there, the kernel, which sees the same frames, would answer each with ICMP
/// "port unreachable". A filter drops everything, so that nothing is queued. Nobody else gets the port meanwhile.
#[derive(Debug)]
struct RoceUdpGuard {
    interface_index: u32,
    sockets: BTreeMap<IpAddr, Socket>,
}

impl RoceUdpGuard {
    fn new(interface_index: u32) -> Self {
        Self { interface_index, sockets: BTreeMap::new() }
    }

    /// Takes the port of an address, if it is not held yet.
    fn hold(&mut self, address: IpAddr) -> Result<(), InterfaceError> {
        if let Entry::Vacant(place) = self.sockets.entry(address) {
            let socket = guard(address, self.interface_index).map_err(|source| match source.kind() {
                ErrorKind::AddrInUse => InterfaceError::PortTaken { address },
                _ => InterfaceError::Guard { address, source },
            })?;
            place.insert(socket);
        }
        Ok(())
    }

    /// Lets go of all but these addresses.
    fn keep(&mut self, addresses: &[IpAddr]) {
        self.sockets.retain(|address, _| addresses.contains(address));
    }
}

fn guard(address: IpAddr, interface_index: u32) -> std::io::Result<Socket> {
    let address = match address {
        // A link-local address is one only together with its link.
        IpAddr::V6(ip) => SocketAddrV6::new(ip, ROCE_PORT, 0, interface_index).into(),
        IpAddr::V4(ip) => SocketAddr::from((ip, ROCE_PORT)),
    };
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.attach_filter(&[SockFilter::new(RETURN_CONSTANT, 0, 0, 0)])?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Becomes readable when a RoCEv2 frame comes to an interface: for an lcore that sleeps. The frames themselves come by the port.
///
/// A packet socket of the smallest size for one kind of RoCE frames, in any VLAN, which takes one byte of a frame or two and then drops what comes until it is drained.
#[derive(Debug)]
pub(crate) struct PacketTap {
    socket: Socket,
}

/// Frames that [`PacketTap::drain`] takes at most: more than fit into its socket.
const TAP_FRAMES_MAX: usize = 64;

impl PacketTap {
    /// Taps for each kind of RoCE frames on an interface of this network namespace. Needs CAP_NET_RAW.
    ///
    /// # Errors
    /// What the operating system says.
    pub(crate) fn open_all(interface: &str) -> std::io::Result<Vec<Self>> {
        let links = getifaddrs()?.filter(|entry| entry.interface_name == interface);
        let link = links.filter_map(|entry| entry.address?.as_link_addr().copied()).next();
        let link = link.ok_or(ErrorKind::NotFound)?;
        let (ipv4, ipv6) = (one_byte_of_roce_over_ipv4(), one_byte_of_roce_over_ipv6());
        let every = [SockFilter::new(RETURN_CONSTANT, 0, 0, 1)];
        let kinds = [(EtherType::IPV4, &ipv4[..]), (EtherType::IPV6, &ipv6), (EtherType::ROCE_V1, &every)];
        kinds.into_iter().map(|(ether_type, filter)| Self::open(&link, ether_type, filter)).collect()
    }

    fn open(link: &LinkAddr, ether_type: EtherType, filter: &[SockFilter]) -> std::io::Result<Self> {
        let protocol = Protocol::from(i32::from(ether_type.0.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol))?;
        socket.set_nonblocking(true)?;
        // The kernel rounds up to its least.
        socket.set_recv_buffer_size(0)?;
        socket.attach_filter(filter)?;
        // The address names no protocol, so that the socket's stays.
        bind(socket.as_raw_fd(), link)?;
        Ok(Self { socket })
    }

    /// Takes what is there.
    pub(crate) fn drain(&mut self) {
        let mut byte = [MaybeUninit::uninit()];
        let _taken = (0..TAP_FRAMES_MAX).take_while(|_| self.socket.recv(&mut byte).is_ok()).count();
    }
}

impl AsFd for PacketTap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_HEADER_LENGTH_TO_X: u16 = 0xb1;
const LOAD_HALF_AT_X: u16 = 0x48;
const JUMP_IF_EQUAL: u16 = 0x15;
const UDP: u32 = 17;

/// A filter that sees packets from their IPv4 header on: one byte of those to RoCE's UDP port, nothing of others.
fn one_byte_of_roce_over_ipv4() -> [SockFilter; 7] {
    [
        SockFilter::new(LOAD_BYTE, 0, 0, 9),
        SockFilter::new(JUMP_IF_EQUAL, 0, 4, UDP),
        SockFilter::new(LOAD_HEADER_LENGTH_TO_X, 0, 0, 0),
        SockFilter::new(LOAD_HALF_AT_X, 0, 0, 2),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, ROCE_PORT.into()),
        SockFilter::new(RETURN_CONSTANT, 0, 0, 1),
        SockFilter::new(RETURN_CONSTANT, 0, 0, 0),
    ]
}

/// The same from the IPv6 header on.
fn one_byte_of_roce_over_ipv6() -> [SockFilter; 6] {
    [
        SockFilter::new(LOAD_BYTE, 0, 0, 6),
        SockFilter::new(JUMP_IF_EQUAL, 0, 3, UDP),
        SockFilter::new(LOAD_HALF, 0, 0, 42),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, ROCE_PORT.into()),
        SockFilter::new(RETURN_CONSTANT, 0, 0, 1),
        SockFilter::new(RETURN_CONSTANT, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_interface_gives_its_addresses_and_refuses_others() {
        let open = |interface, untagged: &[IpAddr]| {
            let wanted = Wanted { untagged: untagged.to_vec(), tagged: Vec::new(), roce_v1: false };
            KernelInterface::open(interface, wanted, 1_500)
        };
        let foreign = open("lo", &[IpAddr::from([192, 0, 2, 1])]).unwrap_err().to_string();
        assert!(foreign.contains("192.0.2.1") && foreign.contains("127.0.0.1"), "{foreign}");
        let absent = open("no-such-if", &[]).unwrap_err().to_string();
        assert!(absent.contains("no-such-if"), "{absent}");
    }

    #[test]
    fn a_second_user_of_the_port_is_refused_and_nothing_is_queued() {
        // An address of loopback that other tests on this machine do not use.
        let address = IpAddr::from([127, 77, 1, 9]);
        let mut guard = RoceUdpGuard::new(1);
        guard.hold(address).unwrap();
        guard.hold(address).unwrap();
        let second = RoceUdpGuard::new(1).hold(address).unwrap_err().to_string();
        assert!(second.contains("4791") && second.contains("127.77.1.9"), "{second}");
        let sender = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        sender.connect((address, ROCE_PORT)).unwrap();
        // Were the port closed, the second send would report the ICMP answer to the first.
        for _ in 0..3 {
            assert_eq!(sender.send(b"frame").unwrap(), 5);
        }
        guard.sockets[&address].set_nonblocking(true).unwrap();
        let mut buffer = [MaybeUninit::uninit(); 16];
        assert_eq!(guard.sockets[&address].recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
        guard.keep(&[]);
        RoceUdpGuard::new(1).hold(address).expect("it is let go with its address");
    }

    #[test]
    fn a_tap_tells_of_roce_frames_and_of_nothing_else() {
        let Ok(mut taps) = PacketTap::open_all("lo") else {
            println!("skipped: a packet socket needs CAP_NET_RAW");
            return;
        };
        let mut tap = taps.remove(0);
        let mut ipv6_tap = taps.remove(0);
        let readable = |tap: &PacketTap| {
            let mut fds = [nix::poll::PollFd::new(tap.as_fd(), nix::poll::PollFlags::POLLIN)];
            nix::poll::poll(&mut fds, 20_u16).unwrap() > 0
        };
        let address = IpAddr::from([127, 77, 1, 10]);
        let mut guard = RoceUdpGuard::new(1);
        guard.hold(address).unwrap();
        let sender = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // Another test on this machine may send RoCE frames over loopback at any time, but hardly a hundred times in a row.
        let stays_silent = (0..100).any(|_| {
            tap.drain();
            sender.send_to(b"other", (address, ROCE_PORT + 1)).unwrap();
            !readable(&tap)
        });
        assert!(stays_silent);
        for _ in 0..100 {
            sender.send_to(&[0; 500], (address, ROCE_PORT)).unwrap();
        }
        assert!(readable(&tap));
        tap.drain();
        sender.send_to(b"frame", (address, ROCE_PORT)).unwrap();
        assert!(readable(&tap), "what was dropped while it was full does not keep it deaf");

        // Loopback without IPv6 is possible: then there is nothing to hear.
        let Ok(sender) = std::net::UdpSocket::bind("[::1]:0") else { return };
        let stays_silent = (0..100).any(|_| {
            ipv6_tap.drain();
            let _refused = sender.send_to(b"other", ("::1", ROCE_PORT + 1));
            !readable(&ipv6_tap)
        });
        assert!(stays_silent);
        let _refused = sender.send_to(b"frame", ("::1", ROCE_PORT));
        assert!(readable(&ipv6_tap));
    }
}
