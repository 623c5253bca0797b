//! The shared-memory ABI between the daemon and its clients: memory that both map, verbs rings in it, and control messages.
//!
//! Both sides of every ring live here, so that one file tells the whole protocol. The *client* side ([`ring::SendPoster`],
//! [`ring::RecvPoster`], [`ring::CqPoller`]) trusts the daemon. The *engine* side ([`ring::SendFetcher`],
//! [`ring::RecvFetcher`], [`ring::CqWriter`]) takes every value in shared memory as hostile: it is copied once, the copy is
//! validated, only the copy is used. Sizes and offsets never come from shared memory after attach; they are private to each
//! side and agreed on the control socket.
//!
//! * [`layout`]: the bytes of a work queue entry, a completion, a ring, drawn once.
//! * [`attr`]: verbs attribute types and constants with the values of `infiniband/verbs.h`.
//! * [`mapping`]: sealed memfd memory and bounded, reference-free access to it.
//! * [`guarded`]: mappings of files that somebody else may truncate.
//! * [`vma`]: what lies where in a process's address space.
//! * [`fork`]: telling a process from its children.
//! * [`clock`]: the engine's clock, read by its clients.
//! * [`process_memory`]: any memory of a client's process, by system calls.
//! * [`own_memory`]: a process's own memory, to be registered without unsafe code.
//! * [`relocate`]: private memory of a client's process moves into a file that both map.
//! * [`copy_crc`]: payload copies that fold the bytes into an ICRC on the way.
//! * [`segment`]: blocks for rings out of a few large mappings.
//! * [`ring`], [`doorbell`]: the data path.
//! * [`qos`]: quality of service of a port.
//! * [`control`], [`socket`]: requests, replies and events, and their transport over a UNIX socket.
#![deny(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests fail by panic"))]

pub mod attr;
pub mod clock;
pub mod control;
pub mod copy_crc;
pub mod doorbell;
pub mod fork;
pub mod guarded;
pub mod inode;
pub mod layout;
pub mod mapping;
pub mod own_memory;
pub mod process_memory;
pub mod qos;
pub mod relocate;
pub mod ring;
pub mod segment;
pub mod socket;
pub mod vma;
pub mod wake;

/// Version of everything in this crate that two processes must agree on.
///
/// A client says it first; the daemon refuses any other value with a sentence that names both.
pub const ABI_VERSION: u32 = 8;
