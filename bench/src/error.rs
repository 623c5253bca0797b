//! What can go wrong in a run, each as one sentence.

use std::io;

use daemon::OpenError;
use daemon::embedded::EmbeddedError;
use ferroce::{BatchError, PostError, VerbsError, WorkCompletion};
use pmd::{EalError, LcoreError, PortError, RingPairError, VdevParseError};
use shm::mapping::MapError;

/// Why a run was refused or ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PerfError {
    /// A setting that can't be.
    #[error("{name} is {value}: {legal}")]
    Setting {
        /// The flag.
        name: &'static str,
        /// What was asked for.
        value: String,
        /// What may be.
        legal: String,
    },
    /// Two settings that exclude each other, or one that needs another.
    #[error("{0}")]
    Conflict(&'static str),
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A work request was not taken.
    #[error("posting: {0}")]
    Post(#[from] PostError),
    /// A batch of receives was not taken.
    #[error("posting receives: {0}")]
    Batch(#[from] BatchError),
    /// An embedded engine did not start.
    #[error(transparent)]
    Embedded(#[from] EmbeddedError),
    /// DPDK did not start.
    #[error(transparent)]
    Eal(#[from] EalError),
    /// Not a virtual device.
    #[error("--vdev: {0}")]
    Vdev(#[from] VdevParseError),
    /// A device did not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The floor's ports could not be joined.
    #[error(transparent)]
    RingPair(#[from] RingPairError),
    /// The floor's port did not start.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The floor's memory could not be made.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A core can't be used.
    #[error(transparent)]
    Core(#[from] LcoreError),
    /// A work request failed.
    #[error("a work request failed: {status} ({opcode}, QP {qpn}, message {message}, cause {cause})", status = .0.status,
            opcode = .0.opcode, qpn = .0.qpn, message = .0.wr_id, cause = .0.vendor_err)]
    Completion(WorkCompletion),
    /// Nothing moves any more.
    #[error("no message arrived for {0} s: the transport has stalled, or the peer is gone")]
    Silent(u64),
    /// The bytes at the destination are not those that were sent.
    #[error("wrong data: {0}")]
    Data(String),
    /// What the other program says.
    #[error("the peer says: {0}")]
    Peer(String),
    /// The other program does not keep to the protocol.
    #[error("the peer is at another step of the protocol: {0}")]
    Protocol(String),
    /// A file or a socket.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// The floor's receiver got something else than its sender sent.
    #[error("the floor lost its own frames: a frame of {0} bytes has a wrong CRC")]
    FloorCrc(usize),
    /// The floor's device does not move frames.
    #[error("the floor got no frame through the device in {0} s")]
    FloorSilent(u64),
    /// A thread of ours has panicked, and has said why.
    #[error("the {0} thread ended by a panic")]
    Thread(&'static str),
}

/// Names what was tried in an error of the operating system.
pub(crate) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> PerfError {
    move |source| PerfError::Io { what: what.into(), source }
}

pub(crate) type Result<T> = std::result::Result<T, PerfError>;
