//! The passing of time, for whatever waits for something that does not come.

use std::sync::atomic::{AtomicU64, Ordering};

/// An indexer is to be ticked about so often.
const EVERY_MS: u64 = 50;

/// When an indexer was ticked last.
///
/// Whoever comes ticks it when it is time: what nobody looks at need not be up to date, and a thread for it would not survive a
/// fork.
#[derive(Default)]
pub(super) struct Ticks {
    next_ms: AtomicU64,
}

impl Ticks {
    pub(super) fn tick(&self, indexer: &kvtide::Indexer) {
        let (now, next) = (indexer.clock().steady_ms(), self.next_ms.load(Ordering::Relaxed));
        let is_due = now >= next;
        // One of those who come at once does it.
        let is_mine = || {
            self.next_ms.compare_exchange(next, now + EVERY_MS, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        if is_due && is_mine() {
            indexer.tick();
        }
    }
}
