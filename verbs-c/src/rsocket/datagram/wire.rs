//! What datagram sockets say, as rdma-core's `docs/rsocket` has it.
//!
//! Two headers. One is before the data that a UD QP sends, and says who it is from: an address and a UDP port, since that is how programs
//! know each other. The other is before what goes by the kernel's UDP while the peer's QP is not known: it names the sender's own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use ferroce::Qpn;

/// Marks a message of these sockets among what may come to a UDP port.
const TAG: u32 = 0x5555_5555;
/// Bytes of a header on a QP, with an IPv4 and with an IPv6 address.
const SOURCE_BYTES: [usize; 2] = [8, 24];
/// Bytes of a header in UDP, likewise.
const HELLO_BYTES: [usize; 2] = [16, 28];

/// Bytes that a receiver has room for, with the header.
pub(super) const MESSAGE_BYTES: usize = 2048;

/// Data of a program at most: what either way to send has room for.
pub(super) const fn payload_max(to: IpAddr) -> usize {
    MESSAGE_BYTES - HELLO_BYTES[to.is_ipv6() as usize]
}

/// Bytes of a header on a QP.
pub(super) const fn source_bytes(ip: IpAddr) -> usize {
    SOURCE_BYTES[ip.is_ipv6() as usize]
}

/// The header on a QP.
pub(super) fn source_header(from: SocketAddr) -> Vec<u8> {
    let mut bytes = vec![if from.is_ipv4() { 4 } else { 6 }, source_bytes(from.ip()).to_le_bytes()[0]];
    bytes.extend(from.port().to_be_bytes());
    match from {
        SocketAddr::V4(v4) => bytes.extend(v4.ip().octets()),
        SocketAddr::V6(v6) => {
            bytes.extend(v6.flowinfo().to_ne_bytes());
            bytes.extend(v6.ip().octets());
        }
    }
    bytes
}

/// Reads the header on a QP: who sent it, and where the data begins. `None` if it is none.
pub(super) fn parse_source(message: &[u8]) -> Option<(SocketAddr, usize)> {
    let (&[version, length, high, low], rest) = message.split_first_chunk::<4>()?;
    let port = u16::from_be_bytes([high, low]);
    let from = match version {
        4 => SocketAddr::new(Ipv4Addr::from(*rest.first_chunk::<4>()?).into(), port),
        6 => {
            let (flowinfo, rest) = rest.split_first_chunk::<4>()?;
            let ip = Ipv6Addr::from(*rest.first_chunk::<16>()?);
            SocketAddrV6::new(ip, port, u32::from_ne_bytes(*flowinfo), 0).into()
        }
        _ => return None,
    };
    let length = usize::from(length);
    (length == source_bytes(from.ip()) && length <= message.len()).then_some((from, length))
}

/// What a message in UDP is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Op {
    /// It has data behind the header.
    Data = 0,
    /// It answers such a one, and has nothing but the header.
    Control = 7,
}

/// The header in UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    pub(super) op: Op,
    /// The sender's QP.
    pub(super) qpn: Qpn,
    /// The sender's address.
    pub(super) ip: IpAddr,
}

impl Hello {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = TAG.to_be_bytes().to_vec();
        let length = HELLO_BYTES[usize::from(self.ip.is_ipv6())].to_le_bytes()[0];
        bytes.extend([if self.ip.is_ipv4() { 4 } else { 6 }, self.op as u8, length, 0]);
        bytes.extend(self.qpn.value().to_be_bytes());
        match self.ip {
            IpAddr::V4(v4) => bytes.extend(v4.octets()),
            IpAddr::V6(v6) => bytes.extend(v6.octets()),
        }
        bytes
    }

    /// Reads a header, and where the data begins. `None` if it is none: anybody may send to a UDP port.
    pub(super) fn parse(message: &[u8]) -> Option<(Self, usize)> {
        let (tag, rest) = message.split_first_chunk::<4>()?;
        let (&[version, op, length, _], rest) = rest.split_first_chunk::<4>()?;
        let (qpn, rest) = rest.split_first_chunk::<4>()?;
        let op = [Op::Data, Op::Control].into_iter().find(|known| *known as u8 == op)?;
        let ip: IpAddr = match version {
            4 => Ipv4Addr::from(*rest.first_chunk::<4>()?).into(),
            6 => Ipv6Addr::from(*rest.first_chunk::<16>()?).into(),
            _ => return None,
        };
        let is_whole = u32::from_be_bytes(*tag) == TAG && usize::from(length) == HELLO_BYTES[usize::from(ip.is_ipv6())];
        // The upper 8 bits say nothing.
        let qpn = Qpn::new(u32::from_be_bytes(*qpn) & 0xff_ffff);
        is_whole.then_some((Self { op, qpn, ip }, usize::from(length)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_laid_out_as_documented() {
        let v4: SocketAddr = "10.1.2.3:258".parse().unwrap();
        assert_eq!(source_header(v4), [4, 8, 1, 2, 10, 1, 2, 3]);
        let v6: SocketAddr = "[fd00::7]:258".parse().unwrap();
        let header = source_header(v6);
        assert_eq!((&header[..8], header.len()), ([6, 24, 1, 2, 0, 0, 0, 0].as_slice(), 24));
        let hello = Hello { op: Op::Data, qpn: Qpn::new(0x01_0203), ip: v4.ip() };
        assert_eq!(hello.to_bytes(), [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 1, 2, 3, 10, 1, 2, 3]);
        assert_eq!(Hello { op: Op::Control, ip: v6.ip(), ..hello }.to_bytes()[4..8], [6, 7, 28, 0]);
    }

    #[test]
    fn what_was_said_is_read_again() {
        for from in ["10.1.2.3:7", "[fd00::7]:65535"] {
            let from: SocketAddr = from.parse().unwrap();
            let mut message = source_header(from);
            assert_eq!(parse_source(&message), Some((from, message.len())));
            message.extend(b"data");
            assert_eq!(parse_source(&message), Some((from, message.len() - 4)));
            let hello = Hello { op: Op::Control, qpn: Qpn::new(0x77), ip: from.ip() };
            let mut message = hello.to_bytes();
            assert_eq!(Hello::parse(&message), Some((hello, message.len())));
            message.extend(b"data");
            assert_eq!(Hello::parse(&message), Some((hello, message.len() - 4)));
        }
    }

    #[test]
    fn what_is_cut_or_of_another_kind_is_no_header() {
        for from in ["10.1.2.3:7", "[fd00::7]:65535"] {
            let from: SocketAddr = from.parse().unwrap();
            let (source, hello) =
                (source_header(from), Hello { op: Op::Data, qpn: Qpn::new(9), ip: from.ip() }.to_bytes());
            for cut in 0..source.len() {
                assert_eq!(parse_source(&source[..cut]), None, "{cut}");
            }
            for cut in 0..hello.len() {
                assert_eq!(Hello::parse(&hello[..cut]), None, "{cut}");
            }
            for (at, value) in [(0, 0), (0, 5), (1, 0), (1, 255)] {
                let mut wrong = source.clone();
                wrong[at] = value;
                assert_eq!(parse_source(&wrong), None, "byte {at} is {value}");
            }
            for (at, value) in [(0, 0), (4, 0), (4, 5), (5, 1), (6, 0), (6, 255)] {
                let mut wrong = hello.clone();
                wrong[at] = value;
                assert_eq!(Hello::parse(&wrong), None, "byte {at} is {value}");
            }
        }
    }
}
