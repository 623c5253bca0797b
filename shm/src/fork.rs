//! Which process something was made in: a forked child has a copy of it, and must keep its hands off.
//!
//! A child inherits descriptors and shared mappings. If it used them, two processes would speak on one socket and fill one ring.

use std::sync::Once;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use nix::libc;

/// Forks between the first process that asked and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Runs in the child, before `fork()` returns there: a counter is all that may be touched.
extern "C" fn count_fork() {
    FORKS.fetch_add(1, Relaxed);
}

/// The process that something was made in, to be asked later whether it is still the one that runs. Children that `fork()` of the C
/// library made are told apart; those of bare system calls are not, and none of `vfork()` may do more than to run a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process(u32);

impl Process {
    /// This one.
    pub fn current() -> Self {
        static COUNTING: Once = Once::new();
        COUNTING.call_once(|| {
            // SAFETY: a function of the C ABI that lives as long as the process, and that a child may call.
            let status = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
            // ENOMEM is all that can go wrong, where every allocation aborts.
            assert!(status == 0, "pthread_atfork: error {status}");
        });
        Self(FORKS.load(Relaxed))
    }

    /// Whether it is the one that runs.
    ///
    /// *Cost*: a load of a word that is hardly ever written, and a comparison.
    #[inline]
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    use super::*;

    #[test]
    fn a_child_is_another_process_and_its_parent_stays_the_same() {
        let before = Process::current();
        // SAFETY: the child asks an atomic and ends.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let told = !before.is_current() && Process(FORKS.load(Relaxed)).is_current();
                // SAFETY: ends the child without what the parent would do at its end.
                unsafe { libc::_exit(i32::from(!told)) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
                assert!(before.is_current());
            }
        }
    }
}
