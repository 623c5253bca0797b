//! How the ibv pingpong programs tell each other their QPs: text of a fixed length over TCP, then the word "done".

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};

use ferroce::{Gid, Psn, Qpn};

use super::PingpongError;
use super::side::PATIENCE;

/// Bytes of an address on the stream: LID, QPN, PSN and GID in hex digits, three colons, and a zero byte.
const ADDRESS_BYTES: usize = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1;
/// Addresses that ibv_srq_pingpong trades, however few QPs it has.
pub(crate) const SRQ_ADDRESSES: usize = 256;
/// What the client says once it knows the server's address; with its zero byte.
const DONE: &[u8; 5] = b"done\0";

/// Where a QP is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    /// Local identifier: InfiniBand's, 0 on Ethernet.
    pub(crate) lid: u16,
    /// The QP.
    pub(crate) qpn: Qpn,
    /// The first PSN that it sends.
    pub(crate) psn: Psn,
    /// The GID it sends from.
    pub(crate) gid: Gid,
}

/// An address that can't be understood, or not be used.
#[derive(thiserror::Error, PartialEq, Eq, Debug)]
pub(crate) enum BadAddress {
    /// Not the text it must be.
    #[error(
        "the peer's address {0:?} is not LID:QPN:PSN:GID in hex digits: is it an ibv pingpong program or this one?"
    )]
    Text(String),
    /// No GID.
    #[error("the peer gives no GID: start it with -g and the index of its RoCEv2 GID (`show_gids`, `ibv_devinfo -v`)")]
    NoGid,
    /// No QP.
    #[error("the peer has {0} QPs: give both sides the same --num-qp")]
    FewerQps(usize),
    /// The last word is another.
    #[error("the client ended with {0:?} in place of \"done\"")]
    NotDone(String),
}

impl Address {
    /// What stands for a QP that is not there.
    pub(crate) const NONE: Self = Self { lid: 0, qpn: Qpn::new(0), psn: Psn::new(0), gid: Gid([0; 16]) };

    fn to_bytes(self) -> [u8; ADDRESS_BYTES] {
        let Self { lid, qpn, psn, gid } = self;
        let gid = u128::from_be_bytes(gid.0);
        let text = format!("{lid:04x}:{:06x}:{:06x}:{gid:032x}\0", qpn.value(), psn.value());
        let mut bytes = [0; ADDRESS_BYTES];
        bytes.copy_from_slice(text.as_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; ADDRESS_BYTES]) -> Result<Self, BadAddress> {
        let bad = || BadAddress::Text(String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned());
        let text = bytes.split(|&byte| byte == 0).next().and_then(|text| std::str::from_utf8(text).ok());
        let mut words = text.ok_or_else(bad)?.split(':');
        let mut number = |most: u128| {
            let digits = words.next().filter(|word| word.bytes().all(|byte| byte.is_ascii_hexdigit()));
            digits.and_then(|digits| u128::from_str_radix(digits, 16).ok()).filter(|&number| number <= most)
        };
        let mut parse = || {
            let lid = u16::try_from(number(u128::from(u16::MAX))?).ok()?;
            let qpn = u32::try_from(number(u128::from(Qpn::MASK))?).ok()?;
            let psn = u32::try_from(number(u128::from(Psn::MASK))?).ok()?;
            Some(Self { lid, qpn: Qpn::new(qpn), psn: Psn::new(psn), gid: Gid(number(u128::MAX)?.to_be_bytes()) })
        };
        let address = parse().ok_or_else(bad)?;
        if words.next().is_some() { Err(bad()) } else { Ok(address) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lid, qpn, psn, gid } = self;
        let gid = Ipv6Addr::from(gid.0);
        write!(f, "LID {lid:#06x}, QPN {:#08x}, PSN {:#08x}, GID {gid}", qpn.value(), psn.value())
    }
}

/// Checks that the first `count` addresses are those of QPs that RoCE reaches.
pub(crate) fn check_reachable(addresses: &[Address], count: usize) -> Result<(), BadAddress> {
    let found = addresses.iter().take_while(|address| address.qpn.value() != 0).count();
    if found < count {
        return Err(BadAddress::FewerQps(found));
    }
    if addresses.iter().take(count).any(|address| address.gid == Address::NONE.gid) {
        Err(BadAddress::NoGid)
    } else {
        Ok(())
    }
}

/// The connection over which both sides tell their addresses.
pub(crate) struct Meeting(TcpStream);

impl Meeting {
    /// Connects to a server that waits.
    pub(crate) fn with_server(host: &str, port: u16) -> Result<Self, PingpongError> {
        let what = || format!("connecting to {host} port {port}");
        let stream = TcpStream::connect((host, port)).map_err(|error| tcp(what(), error))?;
        Self::over(stream)
    }

    /// Waits for a client.
    pub(crate) fn with_client(port: u16) -> Result<Self, PingpongError> {
        let listener = TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
        let accepted = listener.and_then(|listener| listener.accept());
        let (stream, _) = accepted.map_err(|error| tcp(format!("listening on port {port}"), error))?;
        Self::over(stream)
    }

    fn over(stream: TcpStream) -> Result<Self, PingpongError> {
        let bounded = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        bounded.map_err(|error| tcp("setting a time limit on the connection".to_owned(), error))?;
        Ok(Self(stream))
    }

    /// Tells our addresses. In one piece: the ibv programs take an address to come by one read.
    pub(crate) fn tell(&self, addresses: &[Address]) -> Result<(), PingpongError> {
        let text: Vec<u8> = addresses.iter().flat_map(|address| address.to_bytes()).collect();
        (&self.0).write_all(&text).map_err(|error| tcp("telling our address".to_owned(), error))
    }

    /// Hears the peer's addresses, `count` of them.
    pub(crate) fn hear(&self, count: usize) -> Result<Vec<Address>, PingpongError> {
        let mut addresses = Vec::with_capacity(count);
        for _ in 0..count {
            let mut text = [0; ADDRESS_BYTES];
            (&self.0).read_exact(&mut text).map_err(|error| tcp("hearing the peer's address".to_owned(), error))?;
            addresses.push(Address::from_bytes(&text)?);
        }
        Ok(addresses)
    }

    /// The client's last word: it is ready.
    pub(crate) fn say_done(&self) -> Result<(), PingpongError> {
        (&self.0).write_all(DONE).map_err(|error| tcp("telling the server that we are ready".to_owned(), error))
    }

    /// Waits for the client's last word.
    pub(crate) fn hear_done(&self) -> Result<(), PingpongError> {
        let mut word = [0; DONE.len()];
        let heard = (&self.0).read_exact(&mut word);
        heard.map_err(|error| tcp("hearing that the client is ready".to_owned(), error))?;
        if &word == DONE {
            Ok(())
        } else {
            Err(BadAddress::NotDone(String::from_utf8_lossy(&word).into_owned()).into())
        }
    }
}

fn tcp(what: String, error: io::Error) -> PingpongError {
    PingpongError::Tcp { what, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8; ADDRESS_BYTES] = b"0000:00001f:0a0b0c:00000000000000000000ffff0a4d000a\0";

    fn address() -> Address {
        let gid = Gid("::ffff:10.77.0.10".parse::<Ipv6Addr>().unwrap().octets());
        Address { lid: 0, qpn: Qpn::new(0x1f), psn: Psn::new(0xa0b0c), gid }
    }

    /// The text is what ibv_rc_pingpong of rdma-core 44 was seen to send.
    #[test]
    fn an_address_is_the_text_of_the_ibv_programs() {
        assert_eq!(&address().to_bytes(), TEXT);
        assert_eq!(Address::from_bytes(TEXT), Ok(address()));
        assert_eq!(Address::from_bytes(&Address::NONE.to_bytes()), Ok(Address::NONE));
        let largest =
            Address { lid: u16::MAX, qpn: Qpn::new(Qpn::MASK), psn: Psn::new(Psn::MASK), gid: Gid([255; 16]) };
        assert_eq!(Address::from_bytes(&largest.to_bytes()), Ok(largest));
    }

    #[test]
    fn hostile_text_is_refused() {
        let cases: [&[u8]; 8] = [
            b"GET / HTTP/1.1",
            b"",
            b"0000:00001f:0a0b0c",
            b"0000:00001f:0a0b0c:",
            b"0000:1000000:0a0b0c:00000000000000000000ffff0a4d000a",
            b"0000:00001f:-00001:00000000000000000000ffff0a4d000a",
            b"0000:00001f:0a0b0c:00000000000000000000ffff0a4d000a:",
            b"0000:00001f:0a0b0c:\xff\xfe",
        ];
        for case in cases {
            let mut bytes = [0; ADDRESS_BYTES];
            bytes[..case.len().min(ADDRESS_BYTES)].copy_from_slice(&case[..case.len().min(ADDRESS_BYTES)]);
            assert!(matches!(Address::from_bytes(&bytes), Err(BadAddress::Text(_))), "{case:?}");
        }
    }

    #[test]
    fn a_peer_without_qps_or_gid_is_told_apart() {
        let known = address();
        assert_eq!(check_reachable(&[known, known], 2), Ok(()));
        assert_eq!(check_reachable(&[known, Address::NONE], 2), Err(BadAddress::FewerQps(1)));
        assert_eq!(check_reachable(&[Address { gid: Gid([0; 16]), ..known }], 1), Err(BadAddress::NoGid));
    }

    #[test]
    fn server_and_client_trade_addresses() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Meeting::over(TcpStream::connect(listener.local_addr().unwrap()).unwrap()).unwrap();
        let server = Meeting::over(listener.accept().unwrap().0).unwrap();
        let mut addresses = vec![address()];
        addresses.resize(SRQ_ADDRESSES, Address::NONE);
        client.tell(&addresses).unwrap();
        assert_eq!(server.hear(SRQ_ADDRESSES).unwrap(), addresses);
        server.tell(&addresses).unwrap();
        assert_eq!(client.hear(SRQ_ADDRESSES).unwrap(), addresses);
        client.say_done().unwrap();
        server.hear_done().unwrap();
        (&client.0).write_all(b"gone\0").unwrap();
        assert!(
            matches!(server.hear_done(), Err(PingpongError::Address(BadAddress::NotDone(word))) if word == "gone\0")
        );
        drop(client);
        assert!(matches!(server.hear(1), Err(PingpongError::Tcp { .. })));
    }
}
