//! Threads, processor cores and NUMA nodes.

use std::fs;
use std::marker::PhantomData;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use thiserror::Error;

use crate::eal::Eal;

/// Why a thread could not be bound to a core or registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LcoreError {
    /// The core is offline, absent, or outside what the process may use (cgroup, taskset).
    #[error("core {core} is not available to this process; available: {available:?}")]
    NoSuchCore {
        /// The core asked for.
        core: usize,
        /// The cores of the process.
        available: Vec<usize>,
    },
    /// The kernel refused to say or change the affinity.
    #[error("the kernel refused to set the thread's affinity: {0}")]
    Affinity(Errno),
    /// DPDK has no lcore id left: at most 128 threads are registered at a time.
    #[error("DPDK has no lcore id left for another thread: {0}")]
    NoLcoreId(Errno),
}

/// The cores that the calling thread may run on, ascending.
///
/// # Errors
/// [`LcoreError::Affinity`] when the kernel does not tell.
pub fn available_cores() -> Result<Vec<usize>, LcoreError> {
    let set = sched_getaffinity(Pid::from_raw(0)).map_err(LcoreError::Affinity)?;
    Ok((0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false)).collect())
}

/// Binds the calling thread to `core`.
///
/// # Errors
/// [`LcoreError::NoSuchCore`] when the process may not use it.
pub fn pin_current_thread(core: usize) -> Result<(), LcoreError> {
    let refused = || LcoreError::NoSuchCore { core, available: available_cores().unwrap_or_default() };
    let mut set = CpuSet::new();
    set.set(core).map_err(|_| refused())?;
    sched_setaffinity(Pid::from_raw(0), &set).map_err(|errno| match errno {
        Errno::EINVAL => refused(),
        errno => LcoreError::Affinity(errno),
    })
}

/// The NUMA node of a core; `None` when the kernel does not say (no NUMA).
#[must_use]
pub fn socket_of_core(core: usize) -> Option<u32> {
    let entries = fs::read_dir(format!("/sys/devices/system/cpu/cpu{core}")).ok()?;
    entries.filter_map(Result::ok).find_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
}

/// While it lives, the thread that made it has an lcore id of DPDK's, and with it a cache of its own in every
/// [`crate::Mempool`]. A thread without one may call everything; allocating and freeing then go to the shared pool.
#[derive(Debug)]
pub struct RegisteredThread {
    /// Registration is the thread's: it must end there.
    not_send: PhantomData<*const ()>,
    /// Whether this value registered the thread, or found it registered.
    owner: bool,
}

impl RegisteredThread {
    pub(crate) fn new(_: Eal) -> Result<Self, LcoreError> {
        // SAFETY: reads a thread-local; EAL is up, as the argument shows.
        let registered = unsafe { ffi::ferroce_lcore_id() } != u32::MAX;
        if registered {
            return Ok(Self { not_send: PhantomData, owner: false });
        }
        // SAFETY: EAL is up, and the thread has no lcore id yet.
        if unsafe { ffi::rte_thread_register() } != 0 {
            return Err(LcoreError::NoLcoreId(crate::eal::last_errno()));
        }
        Ok(Self { not_send: PhantomData, owner: true })
    }

    /// The lcore id, below 128.
    #[must_use]
    pub fn lcore_id(&self) -> u32 {
        // SAFETY: reads a thread-local of the thread that this value cannot leave.
        unsafe { ffi::ferroce_lcore_id() }
    }
}

impl Drop for RegisteredThread {
    fn drop(&mut self) {
        if self.owner {
            // SAFETY: this very thread was registered by this value, which cannot move to another.
            unsafe { ffi::rte_thread_unregister() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_to_an_available_core_holds_and_to_an_absent_one_is_refused() {
        std::thread::spawn(|| {
            let cores = available_cores().unwrap();
            let last = *cores.last().unwrap();
            pin_current_thread(last).unwrap();
            assert_eq!(available_cores().unwrap(), [last]);
            for absent in [CpuSet::count() - 1, CpuSet::count(), usize::MAX] {
                assert!(
                    matches!(pin_current_thread(absent), Err(LcoreError::NoSuchCore { core, .. }) if core == absent)
                );
            }
        })
        .join()
        .unwrap();
    }
}
