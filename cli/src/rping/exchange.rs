//! What rping's two sides send each other.

/// Bytes of a ping at least: room for its number and a byte or two of text, as rping counts them.
pub(super) const SIZE_MIN: i64 = 26;
/// Bytes of a ping at most.
pub(super) const SIZE_MAX: i64 = 65_535;
/// Room for a ping of any size.
pub(super) const BUFFER_BYTES: u32 = 65_536;

/// A buffer that is advertised: what every SEND consists of. Address (u64), key (u32) and size in bytes (u32), big endian; in the
/// server's SENDs it means nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Advert {
    pub(super) addr: u64,
    pub(super) rkey: u32,
    pub(super) size: u32,
}

impl Advert {
    pub(super) const BYTES: u32 = 16;

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES as usize] {
        let mut bytes = [0; Self::BYTES as usize];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.size.to_be_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; Self::BYTES as usize]) -> Self {
        let words = bytes.as_chunks::<4>().0;
        let word = |index: usize| u32::from_be_bytes(words[index]);
        Self { addr: u64::from(word(0)) << 32 | u64::from(word(1)), rkey: word(2), size: word(3) }
    }
}

/// The text of ping `number`, `size` bytes with the NUL at its end: its number, then letters from another one each time.
pub(super) fn ping(number: u32, size: usize) -> Vec<u8> {
    let letters = (b'A'..=b'z').cycle().skip(number as usize % (usize::from(b'z' - b'A') + 1));
    let mut text: Vec<u8> =
        format!("rdma-ping-{number}: ").into_bytes().into_iter().chain(letters).take(size).collect();
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    text
}

/// The text in a buffer: what is before the first NUL.
pub(super) fn text(buffer: &[u8]) -> &[u8] {
    buffer.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Where the side that answers (the server) is in a ping. What is expected next is in the name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ServerStep {
    /// The client's SEND that says where the ping is.
    Source,
    /// Our READ of it.
    Read,
    /// The client's SEND that says where it wants it.
    Sink,
    /// Our WRITE there.
    Write,
}

/// Where the side that asks (the client) is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ClientStep {
    /// The connection.
    Connect,
    /// The server's SEND that says it has read the ping.
    Read,
    /// The server's SEND that says it has written it.
    Written,
    /// The end of the connection.
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packet 4 of tests/vectors/cm_rping.pcap is the first SEND, and the READ in packet 6 names the same buffer.
    #[test]
    fn an_advert_is_as_rping_sends_it() {
        let capture = include_bytes!("../../../tests/vectors/cm_rping.pcap");
        let bytes = [0x00, 0x00, 0x55, 0x64, 0x02, 0x5c, 0x19, 0xe0, 0, 0, 0x71, 0x5f, 0, 0, 0, 64];
        assert!(capture.windows(bytes.len()).any(|window| window == bytes), "the capture has it");
        let advert = Advert { addr: 0x5564_025c_19e0, rkey: 0x715f, size: 64 };
        assert_eq!(Advert::from_bytes(bytes), advert);
        assert_eq!(advert.to_bytes(), bytes);
    }

    /// The READ responses of the same capture.
    #[test]
    fn pings_are_as_rping_writes_them() {
        let capture = include_bytes!("../../../tests/vectors/cm_rping.pcap");
        for number in 0..2 {
            let ping = ping(number, 64);
            assert!(capture.windows(64).any(|window| window == ping), "{}", String::from_utf8_lossy(&ping));
        }
        assert_eq!(text(&ping(0, 64)), b"rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr");
    }

    #[test]
    fn letters_go_round() {
        let first = |number| ping(number, 64)[format!("rdma-ping-{number}: ").len()];
        assert_eq!([0, 1, 57, 58, 116].map(first), *b"ABzAA");
        assert_eq!(ping(u32::MAX, 26).len(), 26);
        assert_eq!(text(b"no end"), b"no end");
        assert_eq!(text(b"\0rest"), b"");
    }
}
