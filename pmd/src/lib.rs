//! Safe DPDK: environment, ports, queues, packet buffers, and middleware for devices.
//!
//! The way through: [`Eal::init`], then [`Port::by_name`] (for a [`Vdev`] of the configuration or a PCI device) or [`ring_pair()`], then
//! [`Port::configure`], then [`StartedPort::take_queue_pairs`]. A thread that owns a [`QueuePair`] calls [`RxQueue::burst`] into a
//! [`Burst`], writes its answers into a [`TxBurst`], and flushes that. [`FaultInjector`] and [`PcapTap`] stand between, where wanted.
//!
//! *Threads*: a queue has one owner and moves; pools are shared; packet buffers move freely. Ownership of the handles is what makes
//! DPDK's "one thread a queue" hold, and a port runs as long as one of its handles lives.
//!
//! *Data path*: after start no allocation, lock or system call of ours (a driver over the kernel does system calls), and a fixed number of
//! calls into DPDK for each burst.

mod burst;
mod clock;
mod eal;
mod faults;
mod flow_control;
mod interface;
mod lcore;
mod mbuf;
mod memory;
mod mempool;
mod pcap;
mod plan;
mod port;
mod queue;
mod ring_pair;
mod tx_burst;
mod vdev;

pub use burst::{Burst, Drain};
pub use clock::Clock;
pub use eal::{Eal, EalConfig, EalError, LogLevel};
pub use faults::{FaultCounts, FaultInjector, FaultRateError, FaultRates};
pub use flow_control::PriorityFlowControl;
pub use interface::{interface_is_running, interface_mtu_bytes};
pub use lcore::{LcoreError, RegisteredThread, available_cores, pin_current_thread, socket_of_core};
pub use mbuf::{HEADROOM_BYTES, Mbuf};
pub use memory::{HugepageSize, MemoryMode, hugepage_sizes, hugetlbfs_mount, lockable_bytes};
pub use mempool::{Mempool, MempoolConfig, MempoolError};
pub use pcap::{PcapTap, PcapTapError};
pub use port::{Link, Port, PortConfig, PortError, PortStats, StartedPort, port_names};
pub use queue::{QueuePair, RxQueue, TxQueue};
pub use ring_pair::{RingPairConfig, RingPairError, ring_pair};
pub use tx_burst::TxBurst;
pub use vdev::{Driver, MemifRole, Vdev, VdevParseError};
