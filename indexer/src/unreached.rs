//! Ranks that hold much and are never reached: mostly a worker whose blocks are of another size, hash or layout than its
//! scope says, which no error shows otherwise.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use kvtide_radix::{Rank, RankState};
use parking_lot::{RwLock, RwLockReadGuard};
use tracing::warn;

/// So many blocks on the GPU are much.
const BLOCKS: u64 = 256;
/// So many queries in a row must have reached none of them.
const QUERIES: u32 = 1000;

/// For each rank's slot, how many queries in a row have not reached what it holds.
#[derive(Default)]
pub(crate) struct Unreached {
    queries: RwLock<Vec<AtomicU32>>,
    /// Slots that there are.
    slots: AtomicUsize,
}

/// Takes notes for one query.
pub(crate) struct Watch<'a> {
    queries: RwLockReadGuard<'a, Vec<AtomicU32>>,
    slots: &'a AtomicUsize,
}

impl Unreached {
    pub(crate) fn watch(&self) -> Watch<'_> {
        let slots = self.slots.load(Ordering::Relaxed);
        if self.queries.read().len() < slots {
            self.queries.write().resize_with(slots, AtomicU32::default);
        }
        Watch { queries: self.queries.read(), slots: &self.slots }
    }

    /// How many of these ranks no query reaches.
    pub(crate) fn count(&self, ranks: &[RankState]) -> usize {
        let queries = self.queries.read();
        let many = |state: &&RankState| {
            let counter = queries.get(state.slot.index());
            state.held_blocks[0] >= BLOCKS
                && counter.is_some_and(|one| one.load(Ordering::Relaxed) >= QUERIES)
        };
        ranks.iter().filter(many).count()
    }
}

impl Watch<'_> {
    /// Notes whether the query has reached what a rank holds.
    pub(crate) fn note(&self, state: &RankState, reached: bool) {
        let Some(counter) = self.queries.get(state.slot.index()) else {
            // From the next query on.
            self.slots.fetch_max(state.slot.index() + 1, Ordering::Relaxed);
            return;
        };
        // Counts need not be exact, and most ranks have nothing to count.
        if reached || state.held_blocks[0] < BLOCKS {
            if counter.load(Ordering::Relaxed) > 0 {
                counter.store(0, Ordering::Relaxed);
            }
        } else if counter.fetch_add(1, Ordering::Relaxed) + 1 == QUERIES {
            let (Rank { worker_id, dp_rank }, held_blocks) = (state.rank, state.held_blocks[0]);
            warn!(worker_id, dp_rank, held_blocks, queries = QUERIES, "no query reaches what a rank holds");
        }
    }
}
