//! Quiet while something is measured: threads that plan and check would take a core from it, and rest as long as they can.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
    time::Duration,
};

/// Between one look at whether it is still quiet and the next.
const LOOK: Duration = Duration::from_millis(5);

/// Whether something is measured.
#[derive(Clone, Default)]
pub(super) struct Quiet(Arc<AtomicBool>);

/// It is quiet until this is dropped.
pub(super) struct Kept<'a>(&'a Quiet);

impl Quiet {
    /// Something is measured from here on, until what is returned is dropped.
    #[must_use]
    pub(super) fn keep(&self) -> Kept<'_> {
        self.0.store(true, Ordering::Relaxed);
        Kept(self)
    }

    /// Rests while it is quiet and there is no need to work.
    pub(super) fn rest(&self, may_rest: impl Fn() -> bool) {
        while self.0.load(Ordering::Relaxed) && may_rest() {
            sleep(LOOK);
        }
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Relaxed);
    }
}
