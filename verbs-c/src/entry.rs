//! What every entry from C has in common: no panic crosses it, and errors become what C expects.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;

use ferroce::{PostError, VerbsError};
use nix::errno::Errno;

/// An errno.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failure(pub(crate) c_int);

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self(errno as c_int)
    }
}

impl From<VerbsError> for Failure {
    fn from(error: VerbsError) -> Self {
        explain(&error);
        Self(error.errno())
    }
}

impl From<PostError> for Failure {
    fn from(error: PostError) -> Self {
        Self(error.errno())
    }
}

/// Says on standard error why something was refused, if the user wants to know.
pub(crate) fn explain(error: &VerbsError) {
    static VERBOSE: OnceLock<bool> = OnceLock::new();
    if *VERBOSE.get_or_init(|| std::env::var_os("FERROCE_VERBOSE").is_some_and(|value| value != "0")) {
        eprintln!("ferroce: {error}");
    }
}

/// Runs `body`; a panic is a bug of ours, and an error to the program.
fn caught<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Failure(Errno::EIO as c_int)))
}

/// For verbs that return 0 or an errno.
pub(crate) fn status(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    match caught(body) {
        Ok(()) => 0,
        Err(Failure(errno)) => errno,
    }
}

/// For verbs that return a number, or -1 and `errno`.
pub(crate) fn number(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    caught(body).unwrap_or_else(|Failure(errno)| {
        Errno::set_raw(errno);
        -1
    })
}

/// As [`number`], for calls whose number is as wide as a pointer.
pub(crate) fn long(body: impl FnOnce() -> Result<isize, Failure>) -> isize {
    caught(body).unwrap_or_else(|Failure(errno)| {
        Errno::set_raw(errno);
        -1
    })
}

/// For verbs that return a pointer, or NULL and `errno`.
pub(crate) fn pointer<T>(body: impl FnOnce() -> Result<*mut T, Failure>) -> *mut T {
    caught(body).unwrap_or_else(|Failure(errno)| {
        Errno::set_raw(errno);
        ptr::null_mut()
    })
}

/// For verbs that are not offered.
pub(crate) const NOT_OFFERED: Failure = Failure(Errno::EOPNOTSUPP as c_int);
/// For arguments that make no sense.
pub(crate) const INVALID: Failure = Failure(Errno::EINVAL as c_int);
/// For objects that others still use.
pub(crate) const BUSY: Failure = Failure(Errno::EBUSY as c_int);
