//! Options of sockets, and the administrator's defaults for them.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::{self, linger, socklen_t};

use crate::entry::{self, Failure};

/// Where an administrator's defaults are: files of one number each, as rsocket(7) names them.
const FOLDER: &str = "/etc/rdma/rsocket";

/// Level of the options that only these sockets have (`SOL_RDMA`).
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
const RDMA_ROUTE: c_int = 4;

/// Options that are kept for the program that asks for them, and change nothing: ports are free at once, data is sent at once, a
/// dead peer is noticed without being asked, and there is no urgent data.
const NOTED: [(c_int, c_int); 9] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
];

/// Bytes of a buffer, at least and at most.
const BUFFER_BYTES: (u32, u32) = (4096, 1 << 28);
/// Buffers are whole lines of the cache, in two halves.
const BUFFER_MULTIPLE: u32 = 128;
const QUEUE: (u32, u32) = (16, 16384);
const INLINE_BYTES_MAX: u32 = 1024;
/// What the byte that says it can say.
const IOMAP_ENTRIES_MAX: u32 = 0x7f << 8;

/// What a socket is made with, and what its program said of it.
#[derive(Clone, Debug)]
pub(super) struct Options {
    /// Work requests of the send queue.
    pub(super) send_queue: u32,
    /// Messages that the peer may send before it hears of us.
    pub(super) receive_queue: u16,
    /// Bytes that are sent without a stay in the ring.
    pub(super) inline_bytes: u32,
    /// Buffers that the peer may map for us.
    pub(super) iomap_entries: u32,
    pub(super) receive_bytes: u32,
    pub(super) send_bytes: u32,
    /// How long closing waits for the peer to have everything; zero: not at all, and the peer hears of a broken connection.
    pub(super) linger: Option<Duration>,
    noted: BTreeMap<(c_int, c_int), c_int>,
}

/// The defaults of this process, and how long a blocking call polls before it sleeps.
pub(super) struct Defaults {
    options: Options,
    pub(super) polling: Duration,
}

impl Defaults {
    /// As the administrator says; read once.
    pub(super) fn get() -> &'static Self {
        static DEFAULTS: OnceLock<Defaults> = OnceLock::new();
        DEFAULTS.get_or_init(|| Self::read(Path::new(FOLDER)))
    }

    fn read(folder: &Path) -> Self {
        let number = |name: &str, default: u32| {
            let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
            text.trim().parse::<u32>().unwrap_or(default)
        };
        let options = Options {
            send_queue: queue(number("sqsize_default", 384)),
            receive_queue: receive_queue(number("rqsize_default", 384)),
            inline_bytes: number("inline_default", 64).min(INLINE_BYTES_MAX),
            iomap_entries: number("iomap_size", 0).min(IOMAP_ENTRIES_MAX),
            receive_bytes: buffer(number("mem_default", 1 << 17)),
            send_bytes: buffer(number("wmem_default", 1 << 17)),
            linger: None,
            noted: BTreeMap::new(),
        };
        Self { options, polling: Duration::from_micros(number("polling_time", 10).into()) }
    }
}

fn queue(wanted: u32) -> u32 {
    wanted.clamp(QUEUE.0, QUEUE.1)
}

fn receive_queue(wanted: u32) -> u16 {
    u16::try_from(queue(wanted)).unwrap_or(u16::MAX)
}

fn buffer(wanted: u32) -> u32 {
    wanted.clamp(BUFFER_BYTES.0, BUFFER_BYTES.1).next_multiple_of(BUFFER_MULTIPLE)
}

impl Default for Options {
    fn default() -> Self {
        Defaults::get().options.clone()
    }
}

/// What an option asks of the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// It is answered.
    Number(c_int),
    Linger(Option<Duration>),
    /// Only the socket knows.
    Error,
    IsListening,
    SegmentBytes,
    Domain,
    Kind,
    Protocol,
}

impl Options {
    /// Sets an option. Sizes of a socket that has its queues already are what they are (`is_open`).
    ///
    /// # Errors
    /// `EINVAL` for a value of the wrong length or sign, or a queue's size too late; `ENOPROTOOPT`.
    ///
    /// # Safety
    /// `value` are `length` bytes, or NULL.
    pub(super) unsafe fn set(
        &mut self,
        (level, name): (c_int, c_int),
        value: *const c_void,
        length: socklen_t,
        is_open: bool,
    ) -> Result<(), Failure> {
        if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
            // SAFETY: the caller's promise.
            let linger: linger = unsafe { read(value, length) }?;
            let seconds = u64::try_from(linger.l_linger).map_err(|_| entry::INVALID)?;
            self.linger = (linger.l_onoff != 0).then(|| Duration::from_secs(seconds));
            return Ok(());
        }
        if (level, name) == (SOL_RDMA, RDMA_ROUTE) {
            return Err(entry::NOT_OFFERED);
        }
        // SAFETY: the caller's promise.
        let number: c_int = unsafe { read(value, length) }?;
        if NOTED.contains(&(level, name)) {
            self.noted.insert((level, name), number);
            return Ok(());
        }
        let size = u32::try_from(number).map_err(|_| entry::INVALID)?;
        match (level, name) {
            // As late as it may be; then it says nothing to the queues that are there.
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) if is_open => {}
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => self.receive_bytes = buffer(size),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => self.send_bytes = buffer(size),
            (SOL_RDMA, RDMA_SQSIZE..=RDMA_IOMAPSIZE) if is_open => return Err(entry::INVALID),
            (SOL_RDMA, RDMA_SQSIZE) => self.send_queue = queue(size),
            (SOL_RDMA, RDMA_RQSIZE) => self.receive_queue = receive_queue(size),
            (SOL_RDMA, RDMA_INLINE) => self.inline_bytes = size.min(INLINE_BYTES_MAX),
            (SOL_RDMA, RDMA_IOMAPSIZE) => self.iomap_entries = size.min(IOMAP_ENTRIES_MAX),
            _ => return Err(Errno::ENOPROTOOPT.into()),
        }
        Ok(())
    }

    /// What an option is.
    ///
    /// # Errors
    /// `ENOPROTOOPT`.
    pub(super) fn get(&self, level: c_int, name: c_int) -> Result<Asked, Failure> {
        if NOTED.contains(&(level, name)) {
            return Ok(Asked::Number(self.noted.get(&(level, name)).copied().unwrap_or(0)));
        }
        // All are clamped far below.
        let number = |size: u32| Ok(Asked::Number(size.cast_signed()));
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => number(self.receive_bytes),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => number(self.send_bytes),
            (libc::SOL_SOCKET, libc::SO_LINGER) => Ok(Asked::Linger(self.linger)),
            (libc::SOL_SOCKET, libc::SO_ERROR) => Ok(Asked::Error),
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => Ok(Asked::IsListening),
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => Ok(Asked::Domain),
            (libc::SOL_SOCKET, libc::SO_TYPE) => Ok(Asked::Kind),
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => Ok(Asked::Protocol),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => Ok(Asked::SegmentBytes),
            (SOL_RDMA, RDMA_SQSIZE) => number(self.send_queue),
            (SOL_RDMA, RDMA_RQSIZE) => number(self.receive_queue.into()),
            (SOL_RDMA, RDMA_INLINE) => number(self.inline_bytes),
            (SOL_RDMA, RDMA_IOMAPSIZE) => number(self.iomap_entries),
            _ => Err(Errno::ENOPROTOOPT.into()),
        }
    }
}

/// A value that a program gives; more bytes than it needs are ignored.
///
/// # Safety
/// `value` are `length` bytes, or NULL; any bytes are a `T`.
unsafe fn read<T>(value: *const c_void, length: socklen_t) -> Result<T, Failure> {
    if value.is_null() {
        return Err(Errno::EFAULT.into());
    }
    if (length as usize) < size_of::<T>() {
        return Err(entry::INVALID);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// Gives a program a value, cut to the room that it has; the length becomes the value's.
///
/// # Safety
/// `length` may be read and written, and as many bytes of `value` written, unless they are NULL.
pub(super) unsafe fn write<T: Copy>(answer: T, value: *mut c_void, length: *mut socklen_t) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let length = unsafe { length.as_mut() }.ok_or(Failure(libc::EFAULT))?;
    if value.is_null() {
        return Err(Errno::EFAULT.into());
    }
    let bytes = size_of::<T>().min(*length as usize);
    // SAFETY: as many bytes as both have.
    unsafe { (&raw const answer).cast::<u8>().copy_to_nonoverlapping(value.cast(), bytes) };
    *length = bytes as socklen_t;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(options: &mut Options, level: c_int, name: c_int, value: c_int, is_open: bool) -> Result<(), Failure> {
        // SAFETY: a whole number.
        unsafe { options.set((level, name), (&raw const value).cast(), size_of::<c_int>() as socklen_t, is_open) }
    }

    #[test]
    fn sizes_are_what_was_asked_for_within_their_limits() {
        let mut options = Defaults::read(Path::new("/nonexistent")).options;
        assert_eq!((options.send_queue, options.receive_bytes, options.iomap_entries), (384, 1 << 17, 0));
        let asked = [
            (libc::SOL_SOCKET, libc::SO_RCVBUF, 1 << 19, 1 << 19),
            (libc::SOL_SOCKET, libc::SO_SNDBUF, 1, 4096),
            (libc::SOL_SOCKET, libc::SO_SNDBUF, 5000, 5120),
            (SOL_RDMA, RDMA_SQSIZE, 3, 16),
            (SOL_RDMA, RDMA_RQSIZE, 1 << 20, 16384),
            (SOL_RDMA, RDMA_INLINE, 4096, 1024),
            (SOL_RDMA, RDMA_IOMAPSIZE, 7, 7),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1, 1),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 30, 30),
        ];
        for (level, name, value, granted) in asked {
            assert_eq!(set(&mut options, level, name, value, false), Ok(()));
            assert_eq!(options.get(level, name), Ok(Asked::Number(granted)), "{level} {name}");
        }
        assert_eq!(set(&mut options, SOL_RDMA, RDMA_SQSIZE, -1, false), Err(entry::INVALID));
        assert_eq!(set(&mut options, libc::SOL_SOCKET, libc::SO_RCVBUF, -1, true), Err(entry::INVALID));
        assert_eq!(set(&mut options, libc::SOL_SOCKET, 9999, 1, false), Err(Failure(libc::ENOPROTOOPT)));
        assert_eq!(options.get(libc::IPPROTO_TCP, 9999), Err(Failure(libc::ENOPROTOOPT)));
    }

    #[test]
    fn queues_that_are_there_keep_their_sizes() {
        let mut options = Options::default();
        assert_eq!(set(&mut options, SOL_RDMA, RDMA_SQSIZE, 100, true), Err(entry::INVALID));
        let before = options.receive_bytes;
        assert_eq!(set(&mut options, libc::SOL_SOCKET, libc::SO_RCVBUF, 1 << 20, true), Ok(()));
        assert_eq!(options.receive_bytes, before);
    }

    #[test]
    fn values_too_short_or_absent_are_refused() {
        let mut options = Options::default();
        let value = [1_u8; 16];
        let mut set = |name: c_int, value: *const u8, length: socklen_t| {
            // SAFETY: no more is read than there is.
            unsafe { options.set((libc::SOL_SOCKET, name), value.cast(), length, false) }
        };
        assert_eq!(set(libc::SO_REUSEADDR, value.as_ptr(), 3), Err(entry::INVALID));
        assert_eq!(set(libc::SO_REUSEADDR, std::ptr::null(), 4), Err(Failure(libc::EFAULT)));
        assert_eq!(set(libc::SO_LINGER, value.as_ptr(), 4), Err(entry::INVALID));
        assert_eq!(options.get(libc::SOL_SOCKET, libc::SO_LINGER), Ok(Asked::Linger(None)));
    }

    #[test]
    fn an_administrators_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("mem_default"), "1000000\n").unwrap();
        fs::write(folder.path().join("polling_time"), "0\n").unwrap();
        fs::write(folder.path().join("sqsize_default"), "many\n").unwrap();
        let defaults = Defaults::read(folder.path());
        assert_eq!((defaults.options.receive_bytes, defaults.polling), (1_000_064, Duration::ZERO));
        assert_eq!(defaults.options.send_queue, 384, "not a number");
    }
}
