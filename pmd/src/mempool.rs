//! `Mempool`: where packet buffers come from and return to.

use std::ffi::CString;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use thiserror::Error;

use crate::burst::Burst;
use crate::eal::{Eal, last_errno};
use crate::mbuf::{HEADROOM_BYTES, Mbuf};

/// The geometry of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MempoolConfig {
    /// How many buffers: 64 to 2^24. *Memory*: each takes its frame, 128 bytes of headroom and 128 of header and some 64 more.
    pub mbuf_count: u32,
    /// Largest frame that a buffer holds in one segment, in bytes: 64 to [`MempoolConfig::FRAME_BYTES_MAX`].
    pub frame_bytes: u32,
    /// The NUMA node to lie on; `None` for any.
    pub socket: Option<u32>,
}

impl MempoolConfig {
    /// A RoCE packet of MTU 4096 with every header, and room to spare.
    pub const FRAME_BYTES_DEFAULT: u32 = 4608;
    /// What fits the 16-bit lengths of an mbuf beside the headroom.
    pub const FRAME_BYTES_MAX: u32 = 65_280;
    /// Limits of `mbuf_count`.
    const COUNT_RANGE: std::ops::RangeInclusive<u32> = 64..=1 << 24;
    /// Limits of `frame_bytes`.
    const FRAME_RANGE: std::ops::RangeInclusive<u32> = 64..=Self::FRAME_BYTES_MAX;

    /// Buffers that each registered thread keeps for itself: twice a burst, and within what DPDK allows (2/3 of the pool).
    const fn cache_size(&self) -> u32 {
        let wanted = 2 * Burst::CAPACITY as u32;
        let allowed = self.mbuf_count / 2;
        if wanted < allowed { wanted } else { allowed }
    }
}

/// Why a pool could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MempoolError {
    /// The buffer count is out of range.
    #[error("a pool of {0} packet buffers: 64 to 16777216 are possible")]
    Count(u32),
    /// The frame size is out of range.
    #[error("packet buffers for frames of {0} bytes: 64 to {max} are possible", max = MempoolConfig::FRAME_BYTES_MAX)]
    FrameBytes(u32),
    /// The memory is not there.
    #[error(
        "{count} packet buffers for frames of {frame_bytes} bytes need {mib} MiB, which DPDK's memory does not have left"
    )]
    OutOfMemory {
        /// Buffers asked for.
        count: u32,
        /// Frame size asked for.
        frame_bytes: u32,
        /// Memory that they take, roughly.
        mib: u32,
    },
    /// DPDK refused for another reason.
    #[error("DPDK refused a pool of packet buffers: {0}")]
    Refused(Errno),
}

/// A pool of packet buffers; a clone is another handle to the same pool.
///
/// Any thread may allocate and free; registered threads ([`Eal::register_thread`]) do so from a cache of their own.
/// Its memory is never given back, because buffers in flight may outlive every handle: the pool is kept for the next that is made
/// with the same geometry.
#[derive(Clone)]
pub struct Mempool(Arc<Handle>);

/// A pool that is in use.
struct Handle {
    raw: Raw,
    config: MempoolConfig,
}

/// Address of a pool that lives as long as the process.
#[derive(Clone, Copy)]
struct Raw(NonNull<ffi::rte_mempool>);

// SAFETY: a mempool's operations are safe from any thread (multi-producer, multi-consumer ring; caches by thread), and it is never freed.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

/// Pools without a handle, to be used again.
static IDLE: Mutex<Vec<(MempoolConfig, Raw)>> = Mutex::new(Vec::new());

/// Names of pools are unique in a process.
static NEXT_NAME: AtomicU32 = AtomicU32::new(0);

impl Mempool {
    /// Makes a pool, or takes an idle one of the same geometry.
    ///
    /// # Errors
    /// See [`MempoolError`].
    pub fn new(_: Eal, config: MempoolConfig) -> Result<Self, MempoolError> {
        if !MempoolConfig::COUNT_RANGE.contains(&config.mbuf_count) {
            return Err(MempoolError::Count(config.mbuf_count));
        }
        if !MempoolConfig::FRAME_RANGE.contains(&config.frame_bytes) {
            return Err(MempoolError::FrameBytes(config.frame_bytes));
        }
        let idle = {
            let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
            let found = idle.iter().position(|(geometry, _)| *geometry == config);
            found.map(|index| idle.swap_remove(index).1)
        };
        let raw = idle.map_or_else(|| create(config), Ok)?;
        Ok(Self(Arc::new(Handle { raw, config })))
    }

    /// The raw pool, for calls into DPDK.
    pub(crate) fn as_ptr(&self) -> *mut ffi::rte_mempool {
        self.0.raw.0.as_ptr()
    }

    /// The geometry.
    #[must_use]
    pub fn config(&self) -> MempoolConfig {
        self.0.config
    }

    /// Buffers that nobody holds, those in threads' caches included. *Cost*: walks all caches; not for the data path.
    #[must_use]
    pub fn avail_count(&self) -> u32 {
        // SAFETY: the pool is alive.
        unsafe { ffi::rte_mempool_avail_count(self.as_ptr()) }
    }

    /// One buffer with an empty frame, or `None` when the pool is empty.
    #[inline]
    #[must_use]
    pub fn alloc(&self) -> Option<Mbuf> {
        let mut raw: *mut ffi::rte_mbuf = std::ptr::null_mut();
        // SAFETY: the pool is alive, and there is a slot for the one pointer.
        let code = unsafe { ffi::ferroce_mbuf_alloc_bulk(self.as_ptr(), &raw mut raw, 1) };
        let raw = NonNull::new(raw).filter(|_| code == 0)?;
        // SAFETY: a fresh mbuf of a pool of ours: one segment, reference count 1, empty, owned by the caller.
        Some(unsafe { Mbuf::from_raw(raw) })
    }

    /// Fills `burst` with up to `count` buffers with empty frames: all that fit, or none when the pool does not have as many.
    /// Returns how many. *Cost*: one call into DPDK.
    #[inline]
    pub fn alloc_bulk(&self, burst: &mut Burst, count: usize) -> usize {
        let (slots, room) = burst.free_slots();
        let count = count.min(room);
        let Ok(wanted) = u32::try_from(count) else { return 0 };
        // SAFETY: the pool is alive, and `slots` has room for `count` pointers.
        let code = unsafe { ffi::ferroce_mbuf_alloc_bulk(self.as_ptr(), slots, wanted) };
        if code != 0 {
            return 0;
        }
        // SAFETY: `count` slots, at most the room, now hold fresh mbufs that the burst owns.
        unsafe { burst.assume_filled(count) };
        count
    }
}

fn create(config: MempoolConfig) -> Result<Raw, MempoolError> {
    let name = format!("ferroce-{}", NEXT_NAME.fetch_add(1, Ordering::Relaxed));
    let name = CString::new(name).map_err(|_| MempoolError::Refused(Errno::EINVAL))?;
    let data_room = u16::try_from(config.frame_bytes + u32::from(HEADROOM_BYTES))
        .map_err(|_| MempoolError::FrameBytes(config.frame_bytes))?;
    let socket = config.socket.and_then(|socket| i32::try_from(socket).ok()).unwrap_or(ffi::SOCKET_ID_ANY);
    // SAFETY: EAL is up, as the caller's argument shows; the name is zero-terminated and copied.
    let raw = unsafe {
        ffi::rte_pktmbuf_pool_create(name.as_ptr(), config.mbuf_count, config.cache_size(), 0, data_room, socket)
    };
    NonNull::new(raw).map(Raw).ok_or_else(|| match last_errno() {
        Errno::ENOMEM | Errno::ENOSPC => {
            let bytes = u64::from(config.mbuf_count) * u64::from(config.frame_bytes + 320);
            let mib = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
            MempoolError::OutOfMemory { count: config.mbuf_count, frame_bytes: config.frame_bytes, mib }
        }
        errno => MempoolError::Refused(errno),
    })
}

impl Drop for Handle {
    fn drop(&mut self) {
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).push((self.config, self.raw));
    }
}

impl fmt::Debug for Mempool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mempool").field("config", &self.0.config).finish_non_exhaustive()
    }
}
