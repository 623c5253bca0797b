//! A network interface that the kernel has as well: its addresses, peace with the kernel over UDP port 4791, and a way to be woken by
//! its frames.

use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{LinkAddr, bind};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use thiserror::Error;
use wire::{EtherType, ROCE_PORT};

/// Why the kernel's interface can't be shared.
#[derive(Debug, Error)]
pub enum InterfaceError {
    /// The kernel does not tell the addresses.
    #[error("addresses of interface `{interface}`: {source}")]
    Addresses {
        /// The interface.
        interface: String,
        /// What the operating system says.
        source: nix::Error,
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

/// The addresses to use on an interface: the `wanted` ones, all of which it must have, or all IPv4 ones that it has.
pub(crate) fn addresses(interface: &str, wanted: &[IpAddr]) -> Result<Vec<IpAddr>, InterfaceError> {
    let all = getifaddrs().map_err(|source| InterfaceError::Addresses { interface: interface.to_owned(), source })?;
    let known: Vec<IpAddr> = all
        .filter(|entry| entry.interface_name == interface)
        .filter_map(|entry| Some(IpAddr::V4(entry.address?.as_sockaddr_in()?.ip())))
        .collect();
    if known.is_empty() {
        return Err(InterfaceError::NoAddress { interface: interface.to_owned() });
    }
    match wanted.iter().find(|address| !known.contains(address)) {
        Some(&address) => Err(InterfaceError::NotItsAddress { interface: interface.to_owned(), address, known }),
        None if wanted.is_empty() => Ok(known),
        None => Ok(wanted.to_vec()),
    }
}

/// Keeps UDP port 4791 of some addresses: without a socket there, the kernel, which sees the same frames, would answer each with ICMP
/// "port unreachable". A filter drops everything, so that nothing is queued. Nobody else gets the port meanwhile.
#[derive(Debug)]
pub(crate) struct RoceUdpGuard {
    _sockets: Vec<Socket>,
}

impl RoceUdpGuard {
    pub(crate) fn new(addresses: &[IpAddr]) -> Result<Self, InterfaceError> {
        let sockets = addresses.iter().map(|&address| {
            guard(address).map_err(|source| match source.kind() {
                ErrorKind::AddrInUse => InterfaceError::PortTaken { address },
                _ => InterfaceError::Guard { address, source },
            })
        });
        Ok(Self { _sockets: sockets.collect::<Result<_, _>>()? })
    }
}

fn guard(address: IpAddr) -> std::io::Result<Socket> {
    let address = SocketAddr::new(address, ROCE_PORT);
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

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn an_interface_gives_its_addresses_and_refuses_others() {
        assert_eq!(addresses("lo", &[]).unwrap(), [LOOPBACK]);
        assert_eq!(addresses("lo", &[LOOPBACK]).unwrap(), [LOOPBACK]);
        let foreign = addresses("lo", &[IpAddr::from([192, 0, 2, 1])]).unwrap_err().to_string();
        assert!(foreign.contains("192.0.2.1") && foreign.contains("127.0.0.1"), "{foreign}");
        let absent = addresses("no-such-if", &[]).unwrap_err().to_string();
        assert!(absent.contains("no-such-if"), "{absent}");
    }

    #[test]
    fn a_second_user_of_the_port_is_refused_and_nothing_is_queued() {
        // An address of loopback that other tests on this machine do not use.
        let address = IpAddr::from([127, 77, 1, 9]);
        let guard = RoceUdpGuard::new(&[address]).unwrap();
        let second = RoceUdpGuard::new(&[address]).unwrap_err().to_string();
        assert!(second.contains("4791") && second.contains("127.77.1.9"), "{second}");
        let sender = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        sender.connect((address, ROCE_PORT)).unwrap();
        // Were the port closed, the second send would report the ICMP answer to the first.
        for _ in 0..3 {
            assert_eq!(sender.send(b"frame").unwrap(), 5);
        }
        guard._sockets[0].set_nonblocking(true).unwrap();
        let mut buffer = [MaybeUninit::uninit(); 16];
        assert_eq!(guard._sockets[0].recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
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
        let _guard = RoceUdpGuard::new(&[address]).unwrap();
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
