//! Which objects asynchronous events may name, and waiting until the program has acknowledged those it got.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Locks; what is behind our locks stays consistent if a holder panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Events of one object that were handed out and not acknowledged. An object is freed only when there are none.
#[derive(Debug, Default)]
pub(crate) struct Unacknowledged {
    count: Mutex<u64>,
    none: Condvar,
}

impl Unacknowledged {
    /// One more was handed out.
    pub(crate) fn add(&self) {
        *lock(&self.count) += 1;
    }

    /// The program acknowledges `count`; more than there are is its mistake, and counts as all.
    pub(crate) fn acknowledge(&self, count: u64) {
        let mut left = lock(&self.count);
        *left = left.saturating_sub(count);
        if *left == 0 {
            self.none.notify_all();
        }
    }

    /// Waits until all are acknowledged.
    pub(crate) fn wait(&self) {
        let mut left = lock(&self.count);
        while *left > 0 {
            left = self.none.wait(left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// An object that the program owns.
struct Owned<T>(NonNull<T>);

// SAFETY: the pointer is only handed out again, under the lock of its table, while the object is in it; objects leave their
// tables before they are freed.
unsafe impl<T> Send for Owned<T> {}

/// Objects of one kind by the number that events have for them.
pub(crate) struct Table<T>(Mutex<BTreeMap<u32, Owned<T>>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Table<T> {
    /// Adds an object.
    pub(crate) fn add(&self, number: u32, object: NonNull<T>) {
        lock(&self.0).insert(number, Owned(object));
    }

    /// Takes an object out: from now on nobody finds it here.
    pub(crate) fn remove(&self, number: u32) {
        lock(&self.0).remove(&number);
    }

    /// Finds an object and, before it can be taken out, does `note` to it.
    pub(crate) fn find(&self, number: u32, note: impl FnOnce(&T)) -> Option<NonNull<T>> {
        let objects = lock(&self.0);
        let object = objects.get(&number)?.0;
        // SAFETY: it is in the table, so its owner has not freed it; that takes our lock first.
        note(unsafe { object.as_ref() });
        Some(object)
    }
}

/// Counts who uses an object: each user keeps a [`InUse`].
#[derive(Clone, Debug, Default)]
pub(crate) struct InUse(std::sync::Arc<()>);

impl InUse {
    /// True if only the object itself is left.
    pub(crate) fn by_nobody(&self) -> bool {
        std::sync::Arc::strong_count(&self.0) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_the_last_acknowledgement() {
        let unacknowledged = Unacknowledged::default();
        unacknowledged.wait();
        unacknowledged.add();
        unacknowledged.add();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| unacknowledged.wait());
            unacknowledged.acknowledge(1);
            assert!(!waiter.is_finished());
            unacknowledged.acknowledge(7);
        });
    }

    #[test]
    fn an_object_is_in_use_as_long_as_a_user_lives() {
        let used = InUse::default();
        assert!(used.by_nobody());
        let user = used.clone();
        assert!(!used.by_nobody());
        drop(user);
        assert!(used.by_nobody());
    }
}
