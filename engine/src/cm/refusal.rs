//! Calls that are refused.

/// A call that is refused: errno and sentence. Nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CmRefusal {
    /// Of the man pages.
    pub errno: i32,
    /// Names the value and what would do.
    pub message: String,
}

/// Errno values that calls are refused with.
pub(super) mod errno {
    pub(crate) const ENOMEM: i32 = 12;
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const EADDRINUSE: i32 = 98;
    pub(crate) const EADDRNOTAVAIL: i32 = 99;
    pub(crate) const ENETUNREACH: i32 = 101;
    pub(crate) const ETIMEDOUT: i32 = 110;
    pub(crate) const EISCONN: i32 = 106;
}

pub(super) fn refuse<T>(errno: i32, message: impl Into<String>) -> Result<T, CmRefusal> {
    Err(CmRefusal { errno, message: message.into() })
}
