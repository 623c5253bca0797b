//! The daemon as a library: what `ferroced` is made of, and the engine embedded in an application.
//!
//! ```text
//!   main ──> config ──> Daemon ─┬─ control thread: server ──> engine::control::Control ─┐ commands
//!                               │                                                      │ and answers
//!                               └─ lcore threads: lcore ──> engine::Shard <── mailbox ─┘
//!                                     │       └── handover: frames for other lcores
//!                                     └── port: pmd's queues, middleware
//! ```
//!
//! [`embedded`] puts the same parts together without a socket file, on threads or on the application's own thread.
#![forbid(unsafe_code)]

pub mod config;
mod control_socket;
mod daemon;
pub mod embedded;
mod handover;
mod idle;
mod kernel_interface;
mod lcore;
mod mailbox;
mod middleware;
mod netlink;
mod port;
mod server;
mod session;
mod threads;

pub use control_socket::{ControlSocket, SocketError};
pub use daemon::{Daemon, StartError};
pub use idle::IdlePolicy;
pub use kernel_interface::InterfaceError;
pub use middleware::{FaultSetup, MiddlewareError};
pub use port::{Device, MTU_BYTES_DEFAULT, OpenError, PortIo, PortSetup};
pub use threads::{EngineError, LcoreSetup};
