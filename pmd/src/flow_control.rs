//! Priority flow control by the device itself (IEEE 802.1Qbb).

use std::mem::MaybeUninit;

use nix::errno::Errno;

use crate::eal::device_lock;
use crate::port::{PortError, StartedPort, check};

/// Priorities of a link.
const PRIORITY_COUNT: u8 = 8;

/// Which priorities a device is to pause, and to obey pauses of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PriorityFlowControl {
    /// Priorities, as bits.
    pub priorities: u8,
    /// How long each pause is that the device asks for, quanta of 512 bit times.
    pub pause_quanta: u16,
}

impl StartedPort {
    /// Has the device do priority flow control for these priorities, both ways, and for no others. When to ask for a pause is its own
    /// setting. `Ok(false)` if it can't, for one of them or at all: then it does none.
    ///
    /// Not the flow control by queue that DPDK has as well: an lcore sends all priorities by one queue, so one priority's pause would
    /// stop them all.
    ///
    /// # Errors
    /// [`PortError::Refused`] if the device says yes to some and fails at others, and keeps the first.
    pub fn set_priority_flow_control(&self, wanted: PriorityFlowControl) -> Result<bool, PortError> {
        let _devices = device_lock();
        match self.try_priorities(wanted) {
            Ok(()) => Ok(true),
            Err((0, _)) => Ok(false),
            Err((done, _)) => {
                let undo = (0..done).try_for_each(|priority| self.set_priority(priority, false, wanted.pause_quanta));
                let refused = |errno| self.refused("take priority flow control back", errno);
                undo.map(|()| false).map_err(refused)
            }
        }
    }

    /// On failure: the priority that failed, and why.
    fn try_priorities(&self, wanted: PriorityFlowControl) -> Result<(), (u8, Errno)> {
        (0..PRIORITY_COUNT).try_for_each(|priority| {
            let on = wanted.priorities >> priority & 1 == 1;
            self.set_priority(priority, on, wanted.pause_quanta).map_err(|errno| (priority, errno))
        })
    }

    fn set_priority(&self, priority: u8, on: bool, pause_quanta: u16) -> Result<(), Errno> {
        // SAFETY: all-zero is a valid value of this plain C structure.
        let mut wanted: ffi::rte_eth_pfc_conf = unsafe { MaybeUninit::zeroed().assume_init() };
        // The device's own thresholds, where it tells them: 0 else, which leaves them to the driver.
        // SAFETY: a running port; the place for the answer is valid.
        let _thresholds_are_its_own = unsafe { ffi::rte_eth_dev_flow_ctrl_get(self.index(), &raw mut wanted.fc) };
        wanted.fc.mode = if on { ffi::RTE_ETH_FC_FULL } else { ffi::RTE_ETH_FC_NONE };
        wanted.fc.pause_time = pause_quanta;
        wanted.fc.send_xon = 1;
        wanted.priority = priority;
        // SAFETY: a running port; the structure is read during the call.
        check(unsafe { ffi::rte_eth_dev_priority_flow_ctrl_set(self.index(), &raw mut wanted) }).map(drop)
    }
}
