//! Ranks that hold much and are never reached: mostly a worker whose blocks are of another size, hash or layout than its
//! scope says, which no error shows otherwise.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use kvtide_radix::{Rank, RankState};
use parking_lot::{RwLock, RwLockReadGuard};
use tracing::warn;

/// So many blocks on the GPU are much.
const BLOCKS: u64 = 256;
/// About so many queries in a row must have reached none of them.
const QUERIES: u32 = 1000;
/// One query in so many is counted, as so many, drawn by chance: what all threads write to is dear where many ask at once.
const COUNTED: u32 = 10;

/// For each rank's slot, how many queries in a row have not reached what it holds.
#[derive(Default)]
pub(crate) struct Unreached {
    queries: RwLock<Vec<AtomicU32>>,
    /// Slots that there are.
    slots: AtomicUsize,
}

/// Takes notes of queries.
pub(crate) struct Watch<'a> {
    queries: RwLockReadGuard<'a, Vec<AtomicU32>>,
    slots: &'a AtomicUsize,
}

/// Takes notes of one.
pub(crate) struct Notes<'a> {
    watch: &'a Watch<'a>,
    counts: bool,
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
    /// Those of the next query.
    pub(crate) fn notes(&self) -> Notes<'_> {
        Notes { watch: self, counts: rand::random_ratio(1, COUNTED) }
    }
}

impl Notes<'_> {
    /// Notes whether the query has reached what a rank holds.
    pub(crate) fn note(&self, state: &RankState, reached: bool) {
        let Notes { watch: Watch { queries, slots }, counts } = self;
        let Some(counter) = queries.get(state.slot.index()) else {
            // From the next query on.
            slots.fetch_max(state.slot.index() + 1, Ordering::Relaxed);
            return;
        };
        // Counts need not be exact, and most ranks have nothing to count.
        if reached || state.held_blocks[0] < BLOCKS {
            if counter.load(Ordering::Relaxed) > 0 {
                counter.store(0, Ordering::Relaxed);
            }
        } else if *counts && counter.fetch_add(COUNTED, Ordering::Relaxed) + COUNTED == QUERIES {
            let (Rank { worker_id, dp_rank }, held_blocks) = (state.rank, state.held_blocks[0]);
            warn!(worker_id, dp_rank, held_blocks, queries = QUERIES, "no query reaches what a rank holds");
        }
    }
}
