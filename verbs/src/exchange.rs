//! Trading connection parameters over a TCP stream, as perftest does, for applications without a connection manager.
//!
//! One line of text a QP, so that a person with `nc` can read it:
//!
//! ```text
//! ferroce/1 qpn=0x000011 psn=0x0a0b0c gid=0000:0000:0000:0000:0000:ffff:0a4d:000b mtu=1024 rkey=0x1 addr=0x7f00 length=4096
//! ```
//!
//! On the stream a message is its length (u32, big endian) and its bytes. All of it is a peer's input: sizes are bounded,
//! every value is checked.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, Shutdown, TcpStream};
use std::str::FromStr;

use wire::{Gid, PathMtu, Psn, Qpn};

use crate::{ConnectAttr, Context, MemoryRegion, QueuePair, VerbsError};

/// First word of a line.
const MAGIC: &str = "ferroce/1";
/// Most bytes of a line.
const LINE_BYTES_MAX: usize = 256;
/// Most connections traded at a time.
pub const CONNECTIONS_MAX: usize = 65_536;

/// What one side tells the other about a QP, and about a region the other may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionInfo {
    /// Our QP.
    pub qpn: Qpn,
    /// The first PSN we send.
    pub psn: Psn,
    /// Our GID.
    pub gid: Gid,
    /// The largest path MTU our port has.
    pub path_mtu: PathMtu,
    /// Key of the region, 0 if there is none.
    pub rkey: u32,
    /// Address of the region's first byte.
    pub addr: u64,
    /// Bytes of the region.
    pub length: u64,
}

impl ConnectionInfo {
    /// What to tell about a QP that is going to begin with `psn`, which should be random ([`random_psn`]): a packet that an
    /// earlier connection left in the network is then not taken for one of this.
    ///
    /// # Errors
    /// [`VerbsError::Peer`] if the port has no GID `attr.sgid_index`; [`VerbsError::Refused`] if there is no such port.
    pub fn new(qp: &QueuePair, psn: Psn, attr: &ConnectAttr) -> Result<Self, VerbsError> {
        Self::of(&qp.context(), qp.qpn(), psn, attr)
    }

    /// The same for a QP by its number.
    pub(crate) fn of(context: &Context, qpn: Qpn, psn: Psn, attr: &ConnectAttr) -> Result<Self, VerbsError> {
        let port = context.query_port(attr.port_num)?;
        let gids = context.query_gids(attr.port_num)?;
        let entry = gids.iter().find(|entry| entry.index == u32::from(attr.sgid_index));
        let entry = entry.ok_or(BadConnectionInfo::NoGid { index: attr.sgid_index, port_num: attr.port_num })?;
        let path_mtu = PathMtu::from_code(port.active_mtu);
        let path_mtu = path_mtu.ok_or(VerbsError::UnexpectedReply { request: "QueryPort" })?;
        Ok(Self { qpn, psn, gid: entry.gid, path_mtu, rkey: 0, addr: 0, length: 0 })
    }

    /// Offers a region to the peer.
    #[must_use]
    pub fn with_region(mut self, region: &MemoryRegion) -> Self {
        self.rkey = region.rkey();
        self.addr = region.addr();
        self.length = region.length();
        self
    }
}

/// A first PSN that a peer can't know beforehand, and that is unlikely to be near an earlier connection's.
pub fn random_psn() -> Psn {
    // The standard library's hashing keys are random; so are the hashes of nothing.
    Psn::new(RandomState::new().build_hasher().finish() as u32)
}

/// Connection parameters that can't be understood or used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadConnectionInfo {
    /// Not a line of this protocol and version.
    #[error("the peer's line does not begin with {MAGIC}: is it the same program and version?")]
    Magic,
    /// Something is not there.
    #[error("the peer's line has no {0}")]
    Missing(&'static str),
    /// A value that can't be.
    #[error("the peer says {field}={value}, which is not {legal}")]
    Value {
        /// Which.
        field: &'static str,
        /// What it says.
        value: String,
        /// What it may say.
        legal: &'static str,
    },
    /// Our own port lacks the GID that was asked for.
    #[error("port {port_num} has no GID with index {index}")]
    NoGid {
        /// Index asked for.
        index: u8,
        /// Port.
        port_num: u8,
    },
}

impl fmt::Display for ConnectionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qpn, psn, gid, path_mtu, rkey, addr, length } = self;
        write!(f, "{MAGIC} qpn={qpn} psn={psn} gid={gid} mtu={path_mtu} rkey={rkey:#x} addr={addr:#x} length={length}")
    }
}

impl FromStr for ConnectionInfo {
    type Err = BadConnectionInfo;

    fn from_str(line: &str) -> Result<Self, BadConnectionInfo> {
        let mut words = line.split_ascii_whitespace();
        if words.next() != Some(MAGIC) {
            return Err(BadConnectionInfo::Magic);
        }
        let words: Vec<&str> = words.collect();
        let value = |field: &'static str| {
            let found = words.iter().find_map(|word| word.strip_prefix(field)?.strip_prefix('='));
            found.ok_or(BadConnectionInfo::Missing(field))
        };
        let number = |field, max, legal| {
            let text = value(field)?;
            let parsed = match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => text.parse(),
            };
            let parsed = parsed.ok().filter(|&number| number <= max);
            parsed.ok_or_else(|| BadConnectionInfo::Value { field, value: text.to_owned(), legal })
        };
        let narrow = |field, max: u32, legal| number(field, u64::from(max), legal).map(|number| number as u32);
        let gid = value("gid")?;
        let bad_gid =
            || BadConnectionInfo::Value { field: "gid", value: gid.to_owned(), legal: "eight groups of hex digits" };
        let mtu = narrow("mtu", 4096, "256, 512, 1024, 2048 or 4096")?;
        let bad_mtu =
            || BadConnectionInfo::Value { field: "mtu", value: mtu.to_string(), legal: "256, 512, 1024, 2048 or 4096" };
        Ok(Self {
            qpn: Qpn::new(narrow("qpn", Qpn::MASK, "a number of 24 bits")?),
            psn: Psn::new(narrow("psn", Psn::MASK, "a number of 24 bits")?),
            gid: Gid(gid.parse::<Ipv6Addr>().map_err(|_| bad_gid())?.octets()),
            path_mtu: PathMtu::from_bytes(mtu).ok_or_else(bad_mtu)?,
            rkey: narrow("rkey", u32::MAX, "a number of 32 bits")?,
            addr: number("addr", u64::MAX, "a number of 64 bits")?,
            length: number("length", u64::MAX, "a number of 64 bits")?,
        })
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Sends a message of at most `u32::MAX` bytes.
///
/// # Errors
/// What the stream says; `InvalidInput` if it is longer.
pub fn send(mut stream: &TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u32::try_from(message.len()).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    stream.write_all(&length.to_be_bytes())?;
    stream.write_all(message)
}

/// Receives a message of at most `bytes_max` bytes.
///
/// # Errors
/// What the stream says; `InvalidData` if the peer announces a longer one.
pub fn receive(mut stream: &TcpStream, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > bytes_max {
        return Err(invalid(format!(
            "the peer announces a message of {length} bytes, more than the {bytes_max} expected"
        )));
    }
    // Not all at once: what a peer announces is not yet what it sends.
    let mut message = Vec::new();
    stream.take(length as u64).read_to_end(&mut message)?;
    if message.len() < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(message) }
}

/// Trades connection parameters: sends ours, returns the peer's. Both sides call it, with as many QPs.
///
/// # Errors
/// What the stream says; `InvalidData` for a peer's message that can't be understood, or that is of another number of QPs;
/// `InvalidInput` for more than [`CONNECTIONS_MAX`] of them.
pub fn tcp(stream: &TcpStream, local: &[ConnectionInfo]) -> io::Result<Vec<ConnectionInfo>> {
    if local.len() > CONNECTIONS_MAX {
        let sentence = format!("{} connections at a time, {CONNECTIONS_MAX} is the most", local.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, sentence));
    }
    let lines: String = local.iter().map(|info| format!("{info}\n")).collect();
    // Both at once: two peers that only send would wait for each other when the messages are long.
    let theirs = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(stream, lines.as_bytes()));
        let theirs = receive(stream, local.len().max(1) * LINE_BYTES_MAX);
        if theirs.is_err() {
            // Whoever sends what we can't use may not read either: don't let our sender wait for it.
            let _ = stream.shutdown(Shutdown::Both);
        }
        match sender.join() {
            Ok(sent) => theirs.and_then(|theirs| sent.map(|()| theirs)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    let text = str::from_utf8(&theirs).map_err(invalid)?;
    let remote = text.lines().map(str::parse).collect::<Result<Vec<_>, BadConnectionInfo>>().map_err(invalid)?;
    if remote.len() != local.len() {
        let sentence = format!("the peer has {} connections, this side {}", remote.len(), local.len());
        return Err(invalid(sentence));
    }
    Ok(remote)
}

/// Waits until the peer has come to the same point.
///
/// # Errors
/// What the stream says; `InvalidData` if the peer is not at a `sync`.
pub fn sync(stream: &TcpStream) -> io::Result<()> {
    const WORD: &[u8] = b"sync";
    send(stream, WORD)?;
    if receive(stream, WORD.len())? == WORD {
        Ok(())
    } else {
        Err(invalid("the peer is at another step of the protocol"))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn info(qpn: u32) -> ConnectionInfo {
        ConnectionInfo {
            qpn: Qpn::new(qpn),
            psn: Psn::new(0xff_fffe),
            gid: Gid::from_ip("10.77.0.11".parse().unwrap()),
            path_mtu: PathMtu::M4096,
            rkey: u32::MAX,
            addr: u64::MAX,
            length: u64::MAX,
        }
    }

    #[test]
    fn a_line_parses_back_and_keeps_its_bound() {
        let line = info(0xff_ffff).to_string();
        assert!(line.len() < LINE_BYTES_MAX, "{line}");
        assert_eq!(line.parse(), Ok(info(0xff_ffff)));
    }

    #[test]
    fn bad_lines_are_refused_by_name_and_range() {
        let line = info(17).to_string();
        let parse = |line: &str| line.parse::<ConnectionInfo>();
        assert_eq!(parse("GET / HTTP/1.1"), Err(BadConnectionInfo::Magic));
        assert_eq!(parse(""), Err(BadConnectionInfo::Magic));
        assert_eq!(parse("ferroce/1"), Err(BadConnectionInfo::Missing("gid")));
        for (from, to) in [
            ("qpn=0x000011", "qpn=0x1000000"),
            ("psn=0xfffffe", "psn=-1"),
            ("mtu=4096", "mtu=1500"),
            ("rkey=0xffffffff", "rkey=0x100000000"),
            ("gid=0000", "gid=zzzz"),
            ("addr=0x", "addr=x"),
        ] {
            assert!(line.contains(from), "{line}");
            let field = &from[..from.find('=').unwrap()];
            match parse(&line.replace(from, to)) {
                Err(BadConnectionInfo::Value { field: named, .. }) => assert_eq!(named, field),
                other => panic!("{to}: {other:?}"),
            }
        }
    }

    #[test]
    fn random_psns_differ() {
        let mut psns: Vec<u32> = (0..32).map(|_| random_psn().value()).collect();
        psns.sort_unstable();
        psns.dedup();
        assert!(psns.len() > 28, "{psns:x?}");
    }

    fn streams() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn two_peers_trade_many_connections_and_meet() {
        let (client, server) = streams();
        let (ours, theirs): (Vec<_>, Vec<_>) = (0..20_000).map(|i| (info(i), info(i + 100_000))).unzip();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(tcp(&server, &theirs).unwrap(), ours);
                sync(&server).unwrap();
            });
            assert_eq!(tcp(&client, &ours).unwrap(), theirs);
            sync(&client).unwrap();
        });
    }

    #[test]
    fn a_hostile_peer_gets_an_error_and_no_memory() {
        let (client, server) = streams();
        (&server).write_all(&u32::MAX.to_be_bytes()).unwrap();
        let error = tcp(&client, &[info(1)]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("4294967295"), "{error}");
        let (client, server) = streams();
        send(&server, format!("{}\n{}\n", info(1), info(2)).as_bytes()).unwrap();
        let error = tcp(&client, &[info(1)]).unwrap_err();
        assert!(error.to_string().contains("bytes") || error.to_string().contains("2 connections"), "{error}");
        let (client, server) = streams();
        (&server).write_all(&[0, 0, 0, 9, 1]).unwrap();
        drop(server);
        assert_eq!(receive(&client, 100).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
