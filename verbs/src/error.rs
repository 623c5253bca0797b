//! What can go wrong, in sentences.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use shm::control::CallError;
use shm::mapping::MapError;
use wire::Qpn;

use crate::WrOpcode;

/// Why a verb failed.
#[derive(thiserror::Error, Debug)]
pub enum VerbsError {
    /// The daemon said no; nothing was changed.
    #[error("{message}")]
    Refused {
        /// Errno of the verb's man page.
        errno: i32,
        /// Why, with the value and the legal range.
        message: String,
    },
    /// No answer: the daemon is gone, or the socket failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A work request was not taken.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The session is of the process that this one was forked from.
    #[error("the session belongs to the process that this one was forked from: open the device here")]
    Inherited,
    /// Shared memory could not be made or mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// No daemon listens there.
    #[error("no connection to the daemon at {}: {error}; is ferroced running, with this socket path?", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said; the sentence has it, so it is no `source`.
        error: std::io::Error,
    },
    /// Daemon and library were built from different versions.
    #[error("the daemon speaks version {theirs} of the shared-memory protocol, this library version {ours}")]
    Version {
        /// This library's.
        ours: u32,
        /// The daemon's.
        theirs: u32,
    },
    /// An answer of the wrong kind, without the file descriptors that belong to it, or with rings that don't fit their blocks.
    #[error("the daemon's answer to {request} does not fit the question")]
    UnexpectedReply {
        /// The request's name.
        request: &'static str,
    },
    /// An object can't be destroyed while something refers to it.
    #[error("the {object} is still in use: destroy what refers to it, and drop its other handles, first")]
    Busy {
        /// What it is.
        object: &'static str,
    },
    /// An access or a region outside of what there is.
    #[error("{length} bytes at offset {offset} are not inside the {limit} bytes there are")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Bytes of the pool or region.
        limit: u64,
    },
    /// An atomic access off its natural alignment.
    #[error("offset {offset} is not a multiple of 8, as an atomic access needs")]
    Misaligned {
        /// The offset, bytes.
        offset: u64,
    },
    /// The peer's parameters can't be understood or used.
    #[error(transparent)]
    Peer(#[from] crate::exchange::BadConnectionInfo),
    /// A connection could not be made, or an id can't be used so.
    #[error(transparent)]
    Cm(#[from] crate::cm::CmError),
    /// The operating system failed a call.
    #[error("{call}: {error}")]
    Os {
        /// What was tried.
        call: &'static str,
        /// What the system said; the sentence has it, so it is no `source`.
        error: std::io::Error,
    },
}

impl VerbsError {
    /// The errno that a C verb would return for it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Refused { errno, .. } => *errno,
            Self::Inherited => Errno::EPERM as i32,
            Self::Call(CallError::Disconnected) => Errno::EIO as i32,
            Self::Call(CallError::Io(error)) | Self::Connect { error, .. } | Self::Os { error, .. } => {
                error.raw_os_error().unwrap_or(Errno::EIO as i32)
            }
            Self::Call(CallError::Malformed) | Self::UnexpectedReply { .. } | Self::Version { .. } => {
                Errno::EPROTO as i32
            }
            Self::Call(CallError::NoDescriptors) => Errno::EMFILE as i32,
            Self::Call(CallError::TooLarge { .. }) => Errno::EMSGSIZE as i32,
            Self::Post(error) => error.errno(),
            Self::Map(MapError::Os { source, .. }) => *source as i32,
            Self::Map(_) | Self::OutOfRange { .. } | Self::Misaligned { .. } | Self::Peer(_) => Errno::EINVAL as i32,
            Self::Busy { .. } => Errno::EBUSY as i32,
            Self::Cm(error) => error.errno(),
        }
    }

    /// True if the daemon is gone: nothing on this context will work again.
    pub fn is_disconnected(&self) -> bool {
        matches!(self, Self::Call(CallError::Disconnected) | Self::Post(PostError::Disconnected))
    }

    pub(crate) fn os(call: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Os { call, error: errno.into() }
    }
}

impl From<shm::ring::PostError> for VerbsError {
    fn from(error: shm::ring::PostError) -> Self {
        Self::Post(error.into())
    }
}

/// Why a work request was not taken. Nothing of it was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The queue is full: poll completions, then try again.
    #[error("the queue is full: poll completions first")]
    Full,
    /// More SGEs than the queue was made for.
    #[error("{count} SGEs, the queue takes {max}")]
    TooManySges {
        /// Given.
        count: usize,
        /// Allowed.
        max: u32,
    },
    /// More inline bytes than the queue was made for.
    #[error("{bytes} inline bytes, the queue takes {max}")]
    InlineTooLong {
        /// Given.
        bytes: usize,
        /// Allowed.
        max: u32,
    },
    /// Inline data makes no sense for an operation that brings data in.
    #[error("{opcode} can't have inline data")]
    InlineNotAllowed {
        /// The operation.
        opcode: WrOpcode,
    },
    /// IBTA 10.8.2: sends are taken in RTS, SQD, SQE and ERR only, receives in any state but RESET.
    #[error("QP {qpn} is in {state}, where this kind of work request can't be posted")]
    State {
        /// The QP.
        qpn: Qpn,
        /// Its state.
        state: crate::QpState,
    },
    /// The QP takes its receives from an SRQ, or was made without a receive queue.
    #[error("QP {qpn} has no receive queue of its own")]
    NoReceiveQueue {
        /// The QP.
        qpn: Qpn,
    },
    /// The daemon is gone.
    #[error("the daemon has gone")]
    Disconnected,
    /// The queue is of the process that this one was forked from.
    #[error("the queue belongs to the process that this one was forked from")]
    Inherited,
}

impl PostError {
    /// The errno that `ibv_post_send` or `ibv_post_recv` would return.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Full => Errno::ENOMEM as i32,
            Self::Disconnected => Errno::EIO as i32,
            Self::Inherited => Errno::EPERM as i32,
            _ => Errno::EINVAL as i32,
        }
    }
}

impl From<shm::ring::PostError> for PostError {
    fn from(error: shm::ring::PostError) -> Self {
        match error {
            shm::ring::PostError::Full => Self::Full,
            shm::ring::PostError::TooManySges { count, max } => Self::TooManySges { count, max },
            shm::ring::PostError::InlineTooLong { bytes, max } => Self::InlineTooLong { bytes, max },
        }
    }
}

/// A batch that was taken in part: the work requests before the failed one are posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("work request {posted} of the batch: {error}")]
pub struct BatchError {
    /// How many were posted: the index of the one that was not.
    pub posted: usize,
    /// What is wrong with that one.
    pub error: PostError,
}

/// Locks a mutex whose data stay consistent even if a holder panicked: no invariant here spans a call that can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
