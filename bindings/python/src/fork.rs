//! A fork while other threads are inside kvtide would leave their locks locked in the child for good: it waits until none is.
//!
//! Whoever works without the interpreter's lock is inside a gate, and `os.register_at_fork` closes it around each fork.

use std::{
    cell::RefCell,
    sync::{PoisonError, RwLock, RwLockWriteGuard},
};

use pyo3::{Python, marker::Ungil, pyfunction};

/// Of the standard library, whose lock is one word of its own: parking_lot's waiters stand in a table that a fork could catch
/// half-changed.
static GATE: RwLock<()> = RwLock::new(());

thread_local! {
    /// The closed gate, while this thread forks.
    static CLOSED: RefCell<Option<RwLockWriteGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Works without the interpreter's lock, and not across a fork.
pub(crate) fn apart<T: Ungil>(py: Python<'_>, work: impl Ungil + Send + FnOnce() -> T) -> T {
    py.detach(|| {
        // Whoever forks is inside alone, and may be called by what others do around a fork.
        let forks = CLOSED.with(|gate| gate.borrow().is_some());
        let _inside = (!forks).then(|| GATE.read().unwrap_or_else(PoisonError::into_inner));
        work()
    })
}

/// Waits until no other thread is inside kvtide, and lets none in.
#[pyfunction]
pub(crate) fn before_fork(py: Python<'_>) {
    // Without the interpreter's lock: another thread that forks needs it to open the gate.
    py.detach(|| {
        let closed = GATE.write().unwrap_or_else(PoisonError::into_inner);
        CLOSED.with(|gate| gate.replace(Some(closed)));
    });
}

/// Lets threads in again, in the parent and in the child.
#[pyfunction]
pub(crate) fn after_fork() {
    CLOSED.with(|gate| gate.replace(None));
}
