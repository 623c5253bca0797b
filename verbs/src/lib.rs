//! Ferroce's client library: RDMA verbs over shared memory, in safe Rust, with the words of libibverbs.
//!
//! A [`Context`] is a session with a `ferroced` daemon (or with an engine in the same process). Making, changing and
//! destroying objects are messages on its socket; moving data is not: posting a work request writes it into a ring in shared
//! memory and sets a bit, polling reads a ring. Neither allocates, and neither makes a system call unless somebody sleeps.
//!
//! Every object is a cheap handle that may be cloned and used from any thread. It keeps alive what it was made from, and is
//! destroyed in the daemon with its last handle, or by `destroy`, which tells of a failure.
//!
//! # Example
//!
//! One side of a connection that WRITEs a greeting into its peer's memory:
//!
//! ```no_run
//! use std::net::TcpStream;
//!
//! use ferroce::exchange::{self, ConnectionInfo};
//! use ferroce::{
//!     AccessFlags, ConnectAttr, Context, CqInit, DEFAULT_SOCKET, MemoryPool, PageSize, QpInit, SendWr, WorkCompletion,
//! };
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let context = Context::connect(DEFAULT_SOCKET)?;
//!     let pd = context.alloc_pd()?;
//!     let cq = context.create_cq(&CqInit { cqe: 256, ..CqInit::default() })?;
//!     let qp = pd.create_qp(&QpInit::rc(&cq))?;
//!
//!     let pool = MemoryPool::new(&context, 1 << 20, PageSize::Base)?;
//!     let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
//!     let region = pool.register_all(&pd, rights)?;
//!
//!     // Tell each other QPN, PSN, GID and keys, then connect.
//!     let attr = ConnectAttr::default();
//!     let local = ConnectionInfo::new(&qp, exchange::random_psn(), &attr)?.with_region(&region);
//!     let stream = TcpStream::connect("server:18515")?;
//!     let remote = exchange::tcp(&stream, &[local])?[0];
//!     ferroce::connect_rc(&qp, &local, &remote, &attr)?;
//!     exchange::sync(&stream)?;
//!
//!     region.write(0, b"hello")?;
//!     qp.post_send(&SendWr::write(1, &[region.sge(0, 5)?], remote.addr, remote.rkey).signaled())?;
//!     let mut completions = [WorkCompletion::default(); 16];
//!     while cq.poll(&mut completions) == 0 {}
//!     assert!(completions[0].is_ok(), "{}", completions[0].status);
//!     Ok(())
//! }
//! ```
//!
//! # When the daemon dies
//!
//! [`Context::is_alive`] turns false at once, [`AsyncEvent::DeviceFatal`] is the last asynchronous event, every waiting thread
//! wakes up, and [`CompletionQueue::poll`] hands out what the daemon completed, then a `WR_FLUSH_ERR` for each work request
//! that it did not, once each. Everything else fails from then on ([`VerbsError::is_disconnected`]).
//!
//! Receives posted to a [`SharedReceiveQueue`] are an exception in one point: one that a QP had already taken, for a message
//! that was still coming in, is not among them.
#![forbid(unsafe_code)]

mod ah;
mod channel;
pub mod cm;
mod connect;
mod context;
mod cq;
mod error;
mod events;
pub mod exchange;
mod memory;
mod mover;
mod mw;
mod pd;
mod process_memory;
mod qp;
mod rings;
mod srq;
mod wr;
mod xrc;

#[cfg(test)]
mod tests;

pub use ah::AddressHandle;
pub use channel::CompletionChannel;
pub use connect::{ConnectAttr, RemoteQp, connect, connect_rc, start_datagrams};
pub use context::{Context, DEFAULT_SOCKET};
pub use cq::{CompletionQueue, CqInit};
pub use error::{BatchError, PostError, VerbsError};
pub use memory::{MemoryPool, MemoryRegion};
pub use mw::{MemoryWindow, MwBind, inc_rkey};
pub use pd::ProtectionDomain;
pub use process_memory::{MemoryTiers, MemoryUse, NoTiers, ProcessRegion};
pub use qp::{QpInit, QueuePair, SendBatch};
pub use srq::SharedReceiveQueue;
pub use wr::{RecvWr, SendWr, WorkCompletion};
pub use xrc::{XrcDomain, XrcReceiver, XrcdInit};

pub use shm::attr::{
    AccessFlags, AhAttr, DeviceAttr, EceAttr, GidEntry, GidType, MwType, NetworkHeader, PortAttr, QpAttr, QpAttrMask,
    QpCap, QpState, QpType, RecoveryPolicy, SendFlags, SrqAttr, WcFlags, WcOpcode, WcStatus, WrOpcode,
};
pub use shm::clock::DeviceClock;
pub use shm::control::post_mortem::{PeerAttr, PostMortem, PostMortemSummary};
pub use shm::control::{AsyncEvent, CallError};
pub use shm::layout::Sge;
pub use shm::mapping::{MapError, PageSize};
pub use shm::own_memory::OwnMemory;
pub use shm::process_memory::OwnRange;
pub use wire::{Gid, PathMtu, Psn, Qpn};

/// The control protocol itself, for tools ([`Context::call`]) and for those who bring an engine of their own.
pub mod control {
    pub use shm::control::{Endpoint, MrSummary, MrTier, QpDetail, QpSummary, Reply, Request, SessionSummary, Stats};
}
