//! What a checker found.

use engine::Time;

/// A run that went wrong: when, and what.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("at {} ns: {what}", at.as_ns())]
pub struct Violation {
    /// Virtual time.
    pub at: Time,
    /// The sentence.
    pub what: String,
}

/// A check that failed, before anybody has added the time.
pub(crate) type Checked<T = ()> = Result<T, String>;

/// Returns with a sentence unless the condition holds.
macro_rules! require {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err(format!($($what)+));
        }
    };
}
pub(crate) use require;

/// Says what was tried when something failed that must not.
pub(crate) trait OrSay<T> {
    /// The value, or the sentence.
    fn or_say(self, what: &str) -> Checked<T>;
}

impl<T, E: std::fmt::Display> OrSay<T> for Result<T, E> {
    fn or_say(self, what: &str) -> Checked<T> {
        self.map_err(|error| format!("{what}: {error}"))
    }
}
