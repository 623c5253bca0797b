//! Two ports joined back to back inside one process.

use std::ffi::CString;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use thiserror::Error;

use crate::eal::{Eal, device_lock, last_errno};
use crate::port::{Port, PortError};

/// The geometry of a ring pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPairConfig {
    /// Queue pairs of each port: 1 to 16. TX queue n of one port is RX queue n of the other. Default 1.
    pub queue_pairs: u16,
    /// Slots of each ring, one of which stays empty: a power of two, 64 to 65536. Default 1024.
    pub slots: u32,
}

impl Default for RingPairConfig {
    fn default() -> Self {
        Self { queue_pairs: 1, slots: 1024 }
    }
}

/// Why a ring pair could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RingPairError {
    /// The queue count is out of range.
    #[error("{0} queue pairs: a ring pair has 1 to {max}", max = RingPairConfig::QUEUE_PAIRS_MAX)]
    QueuePairs(u16),
    /// The slot count is out of range.
    #[error("{0} slots: a ring has a power of two of them, 64 to 65536")]
    Slots(u32),
    /// DPDK has no memory for the rings, or refused them.
    #[error("DPDK refused a ring of {slots} slots: {errno}")]
    Ring {
        /// Slots asked for.
        slots: u32,
        /// DPDK's reason.
        errno: Errno,
    },
    /// DPDK did not make a port of the rings.
    #[error("DPDK refused a port over rings: {0}")]
    Device(Errno),
    /// The new port could not be used.
    #[error(transparent)]
    Port(#[from] PortError),
}

impl RingPairConfig {
    /// Most queues of a ring port.
    pub const QUEUE_PAIRS_MAX: u16 = 16;
}

/// The rings behind two ports. They outlive both.
pub(crate) struct RingLink {
    /// From the first port to the second, by queue; then back.
    rings: [Vec<NonNull<ffi::rte_ring>>; 2],
    slots: u32,
}

// SAFETY: the rings are only touched by the ports' drivers, from the threads that own the queues, and in `drop` by the last owner.
unsafe impl Send for RingLink {}
// SAFETY: a shared reference gives numbers only.
unsafe impl Sync for RingLink {}

/// Names of rings and ports are unique in a process.
static NEXT_NAME: AtomicU32 = AtomicU32::new(0);

impl RingLink {
    pub(crate) fn queue_pairs(&self) -> u16 {
        u16::try_from(self.rings[0].len()).expect("at most 16 queues were made")
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    fn new(config: RingPairConfig, number: u32) -> Result<Self, RingPairError> {
        let mut link = Self { rings: [Vec::new(), Vec::new()], slots: config.slots };
        for (direction, rings) in link.rings.iter_mut().enumerate() {
            for queue in 0..config.queue_pairs {
                rings.push(create_ring(&format!("ferroce-{number}-{direction}-{queue}"), config.slots)?);
            }
        }
        Ok(link)
    }
}

fn create_ring(name: &str, slots: u32) -> Result<NonNull<ffi::rte_ring>, RingPairError> {
    let refused = |errno| RingPairError::Ring { slots, errno };
    let name = CString::new(name).map_err(|_| refused(Errno::EINVAL))?;
    // A queue has one owner, hence each ring one producer and one consumer.
    let flags = ffi::RING_F_SP_ENQ | ffi::RING_F_SC_DEQ;
    // SAFETY: EAL is up; the name is zero-terminated and copied.
    let ring = unsafe { ffi::rte_ring_create(name.as_ptr(), slots, ffi::SOCKET_ID_ANY, flags) };
    NonNull::new(ring).ok_or_else(|| refused(last_errno()))
}

impl Drop for RingLink {
    fn drop(&mut self) {
        for ring in self.rings.iter().flatten() {
            let mut object = ptr::null_mut();
            // SAFETY: both ports are closed, so this is the ring's only user; the place for the pointer is valid.
            while unsafe { ffi::ferroce_ring_dequeue(ring.as_ptr(), &raw mut object) } == 0 {
                // SAFETY: the ring held mbufs that a TX queue gave up and that no RX queue took.
                unsafe { ffi::ferroce_mbuf_free(object.cast()) };
            }
            // SAFETY: made by `rte_ring_create`, empty, and not used again.
            unsafe { ffi::rte_ring_free(ring.as_ptr()) };
        }
    }
}

impl fmt::Debug for RingLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingLink").field("queue_pairs", &self.queue_pairs()).field("slots", &self.slots).finish()
    }
}

/// Makes two ports, each of which receives what the other sends: pointers change hands, nothing is copied. Needs no privilege
/// and no hugepages. Both disappear when dropped; frames under way are freed with the second.
///
/// # Errors
/// See [`RingPairError`].
pub fn ring_pair(eal: Eal, config: RingPairConfig) -> Result<(Port, Port), RingPairError> {
    if !(1..=RingPairConfig::QUEUE_PAIRS_MAX).contains(&config.queue_pairs) {
        return Err(RingPairError::QueuePairs(config.queue_pairs));
    }
    if !config.slots.is_power_of_two() || !(64..=1 << 16).contains(&config.slots) {
        return Err(RingPairError::Slots(config.slots));
    }
    let number = NEXT_NAME.fetch_add(1, Ordering::Relaxed);
    let link = Arc::new(RingLink::new(config, number)?);
    let [forth, back] = &link.rings;
    let first = port_over_rings(eal, &format!("ferroce{number}a"), back, forth, &link)?;
    let second = port_over_rings(eal, &format!("ferroce{number}b"), forth, back, &link)?;
    Ok((first, second))
}

fn port_over_rings(
    eal: Eal,
    name: &str,
    rx: &[NonNull<ffi::rte_ring>],
    tx: &[NonNull<ffi::rte_ring>],
    link: &Arc<RingLink>,
) -> Result<Port, RingPairError> {
    let name = CString::new(name).map_err(|_| RingPairError::Device(Errno::EINVAL))?;
    let count = |rings: &[NonNull<ffi::rte_ring>]| u32::try_from(rings.len()).unwrap_or(u32::MAX);
    let _devices = device_lock();
    // "Any node" is -1 as an unsigned number.
    let socket = u32::MAX;
    // SAFETY: EAL is up; the name is zero-terminated and copied; the arrays of ring pointers (`NonNull` has a pointer's
    // layout) are copied, and the rings outlive the port, which holds the link.
    let index = unsafe {
        ffi::rte_eth_from_rings(name.as_ptr(), rx.as_ptr().cast(), count(rx), tx.as_ptr().cast(), count(tx), socket)
    };
    let index = u16::try_from(index).map_err(|_| RingPairError::Device(last_errno()))?;
    match Port::open(eal, index) {
        Ok(port) => Ok(port.with_link(link.clone())),
        Err(error) => {
            // DPDK has the port, and nobody here can close it: the rings behind it must stay.
            std::mem::forget(link.clone());
            Err(error.into())
        }
    }
}
