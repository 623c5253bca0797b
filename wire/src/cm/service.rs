//! Service ids of IP ports, and the header that carries IP addresses in private data (IBTA annex A11).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::field::Fields;

/// What a listener listens for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId(pub u64);

/// The port spaces of RDMA CM (`rdma_port_space`): each has port numbers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum PortSpace {
    /// Connections.
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
    /// Any QP type.
    Ib = 0x013f,
}

impl PortSpace {
    /// Short name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Ib => "IB",
        }
    }
}

impl ServiceId {
    /// The service id of a port.
    #[must_use]
    pub const fn from_port(space: PortSpace, port: u16) -> Self {
        Self((space as u64) << 16 | port as u64)
    }

    /// Port space and port, if it is the service id of one.
    #[must_use]
    pub const fn port(self) -> Option<(PortSpace, u16)> {
        let [a, b, c, d, high, low, port @ ..] = self.0.to_be_bytes();
        if u32::from_be_bytes([a, b, c, d]) != 0 {
            return None;
        }
        let port = u16::from_be_bytes(port);
        match u16::from_be_bytes([high, low]) {
            0x0106 => Some((PortSpace::Tcp, port)),
            0x0111 => Some((PortSpace::Udp, port)),
            0x013f => Some((PortSpace::Ib, port)),
            _ => None,
        }
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port() {
            Some((space, port)) => write!(f, "{} port {port}", space.name()),
            None => write!(f, "{:#018x}", self.0),
        }
    }
}

mod field {
    /// Major and minor version, 4 bits each.
    pub(super) const VERSION: usize = 0;
    /// IP version 4 bits.
    pub(super) const IP_VERSION: usize = 1;
    pub(super) const SRC_PORT: usize = 2;
    pub(super) const SRC: usize = 4;
    pub(super) const DST: usize = 20;
    /// Where an IPv4 address lies in its 16 bytes.
    pub(super) const SRC_IPV4: usize = SRC + 12;
    pub(super) const DST_IPV4: usize = DST + 12;
}

/// The start of the private data of a REQ or SIDR_REQ to the service id of a port: who connects to whom, by IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpCmHeader {
    /// The sender's port.
    pub src_port: u16,
    /// The sender's address, of the same family as the receiver's.
    pub src: IpAddr,
    /// The receiver's address.
    pub dst: IpAddr,
}

/// Why private data does not start with the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpCmHeaderError {
    /// Shorter than the header.
    Truncated,
    /// A major version other than 0.
    Version(u8),
    /// Neither 4 nor 6.
    IpVersion(u8),
}

impl fmt::Display for IpCmHeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => write!(f, "private data shorter than the {} bytes of addresses", IpCmHeader::LEN),
            Self::Version(version) => write!(f, "major version {version} of the addresses' header, expected 0"),
            Self::IpVersion(version) => write!(f, "IP version {version}, expected 4 or 6"),
        }
    }
}

impl core::error::Error for IpCmHeaderError {}

impl IpCmHeader {
    /// Length in bytes.
    pub const LEN: usize = 36;

    /// Decodes the header at the start of private data. A minor version other than 0 adds nothing that would be known
    /// here.
    ///
    /// # Errors
    /// [`IpCmHeaderError`].
    pub fn parse(private_data: &[u8]) -> Result<Self, IpCmHeaderError> {
        let bytes: &[u8; Self::LEN] = private_data.first_chunk().ok_or(IpCmHeaderError::Truncated)?;
        let version = bytes.be8::<{ field::VERSION }>() >> 4;
        if version != 0 {
            return Err(IpCmHeaderError::Version(version));
        }
        let (src, dst) = match bytes.be8::<{ field::IP_VERSION }>() >> 4 {
            4 => (
                IpAddr::V4(Ipv4Addr::from(bytes.array::<{ field::SRC_IPV4 }, 4>())),
                IpAddr::V4(Ipv4Addr::from(bytes.array::<{ field::DST_IPV4 }, 4>())),
            ),
            6 => (
                IpAddr::V6(Ipv6Addr::from(bytes.array::<{ field::SRC }, 16>())),
                IpAddr::V6(Ipv6Addr::from(bytes.array::<{ field::DST }, 16>())),
            ),
            other => return Err(IpCmHeaderError::IpVersion(other)),
        };
        Ok(Self { src_port: bytes.be16::<{ field::SRC_PORT }>(), src, dst })
    }

    /// Encodes the header; the IP version is the sender's address's.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let ip_version = if self.src.is_ipv4() { 0x40 } else { 0x60 };
        bytes.put::<{ field::IP_VERSION }, 1>([ip_version]);
        bytes.put_be16::<{ field::SRC_PORT }>(self.src_port);
        match self.src {
            IpAddr::V4(src) => bytes.put::<{ field::SRC_IPV4 }, 4>(src.octets()),
            IpAddr::V6(src) => bytes.put::<{ field::SRC }, 16>(src.octets()),
        }
        match self.dst {
            IpAddr::V4(dst) => bytes.put::<{ field::DST_IPV4 }, 4>(dst.octets()),
            IpAddr::V6(dst) => bytes.put::<{ field::DST }, 16>(dst.octets()),
        }
        bytes
    }
}
