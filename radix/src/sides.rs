//! Versions: how the writer's changes reach readers who never wait, and how it gets a side back that nobody reads.
//!
//! There are two sides as a rule. The writer changes one while the other, the latest version, is read. To publish it
//! swaps them, and waits until the old one is not read any more; then it copies there what it has changed on this one,
//! and goes on. A reader that falls asleep while it reads costs one more side, and no waiting: see [`Sides::take`].
//!
//! Invariants, which docs/CONCURRENCY.md explains and `tests/models.rs` tries:
//! - V1: a side changes only while the writer alone has it; what is published changes no more.
//! - V2: a side that is taken to be changed is equal to the latest version.
//! - V3: readers of a version older than [`Sides::oldest`] do not exist and cannot come to be.

use crate::{
    skeleton::{Changes, Skeleton},
    sync::{Arc, Slot, spin_loop},
};

/// How often the writer looks whether a side has come free before it makes another: about 20 us, in which every reader
/// that is not asleep has found its answer.
const LOOKS: usize = if cfg!(kvtide_loom) { 2 } else { 1000 };
/// And before it takes one that lacks more than the one it waits for.
const LOOKS_AT_BEST: usize = if cfg!(kvtide_loom) { 1 } else { 300 };
/// From so many runs on a side is kept in reserve, since copying all of them takes longer than the writer may wait.
const RESERVE_FROM: usize = 16_384;
/// A side in reserve may lack so many runs: copying them takes about 0.1 ms.
const LAG: usize = 1024;
/// Runs that each version copies to a side which lacks more, beside as many as it has changed.
const CATCH_UP: usize = 64;
/// A side that was not needed for so many versions goes.
const IDLE: u32 = 4096;

/// All sides but the one that the writer changes.
pub(crate) struct Sides {
    slot: Arc<Slot<Skeleton>>,
    /// What the slot holds: the version that readers get.
    latest: Arc<Skeleton>,
    others: Vec<Side>,
    /// Runs that the latest version has changed.
    changed: usize,
    /// Empty, with the memory of earlier ones.
    spare: Changes,
}

/// A side that was a version once, or will be.
struct Side {
    skeleton: Arc<Skeleton>,
    /// Where it may differ from the latest version.
    stale: Changes,
    /// Versions since it was needed.
    idle: u32,
}

impl Side {
    /// The skeleton, if nobody reads it any more.
    fn free(&mut self) -> Option<&mut Skeleton> {
        Arc::get_mut(&mut self.skeleton)
    }
}

impl Sides {
    /// Sides whose latest version is `first`, and where readers find it.
    pub(crate) fn new(first: Skeleton) -> (Sides, Arc<Slot<Skeleton>>) {
        let latest = Arc::new(first);
        let slot = Arc::new(Slot::new(Arc::clone(&latest)));
        let sides = Sides {
            slot: Arc::clone(&slot),
            latest,
            others: Vec::new(),
            changed: 0,
            spare: Changes::default(),
        };
        (sides, slot)
    }

    /// Shows a side to readers (V1).
    pub(crate) fn publish(&mut self, mut side: Skeleton) {
        let changed = std::mem::replace(&mut side.changed, std::mem::take(&mut self.spare));
        self.changed = changed.runs();
        for other in &mut self.others {
            other.stale.add(&changed);
            other.idle = other.idle.saturating_add(1);
        }
        let side = Arc::new(side);
        self.latest = Arc::clone(&side);
        let old = self.slot.swap(side);
        self.others.push(Side { skeleton: old, stale: changed, idle: 0 });
    }

    /// The side that lacks least, to be changed (V2), if nobody reads it.
    pub(crate) fn try_take(&mut self) -> Option<Skeleton> {
        let best = (0..self.others.len()).min_by_key(|&index| self.others[index].stale.runs())?;
        self.take_side(best)
    }

    /// A side that nobody reads, to be changed (V2). Where readers are in the way for longer than it takes to answer
    /// them, they are asleep, and keep what they have: another side is made.
    pub(crate) fn take(&mut self) -> Skeleton {
        for look in 0..LOOKS {
            if let Some(side) = self.try_take() {
                return side;
            }
            if look >= LOOKS_AT_BEST
                && let Some(side) = (0..self.others.len()).find_map(|index| self.take_side(index))
            {
                return side;
            }
            spin_loop();
        }
        self.brought_up(Skeleton::new(self.latest.block_size), self.latest.everything())
    }

    fn take_side(&mut self, index: usize) -> Option<Skeleton> {
        self.others[index].free()?;
        let Side { skeleton, stale, .. } = self.others.swap_remove(index);
        // It is free, and nobody gets at a side that is not the latest any more.
        let skeleton = Arc::try_unwrap(skeleton).ok()?;
        self.keep_reserve();
        Some(self.brought_up(skeleton, stale))
    }

    fn brought_up(&mut self, mut side: Skeleton, mut stale: Changes) -> Skeleton {
        side.catch_up(&self.latest, &mut stale, usize::MAX);
        self.spare = stale;
        side
    }

    /// Brings sides nearer to the latest version that nobody needs now, adds one where there should be, and lets one
    /// go that has not been needed for long.
    fn keep_reserve(&mut self) {
        let Sides { latest, others, changed, .. } = self;
        if others.is_empty() && latest.totals.runs >= RESERVE_FROM {
            let skeleton = Arc::new(Skeleton::new(latest.block_size));
            others.push(Side { skeleton, stale: latest.everything(), idle: 0 });
        }
        let needed = usize::from(latest.totals.runs >= RESERVE_FROM);
        let surplus = others.len() > needed;
        others.retain_mut(|side| {
            let idle = side.idle;
            let Side { skeleton, stale, .. } = side;
            let Some(skeleton) = Arc::get_mut(skeleton) else { return true };
            if surplus && idle > IDLE {
                return !skeleton.dismantle(stale, CATCH_UP);
            }
            if stale.runs() > LAG {
                skeleton.catch_up(latest, stale, *changed + CATCH_UP);
            }
            true
        });
    }

    /// The oldest version that anyone may still read, now or later (V3).
    pub(crate) fn oldest(&mut self) -> u64 {
        let read = self.others.iter_mut().filter_map(|side| match side.free() {
            Some(_) => None,
            None => Some(side.skeleton.version),
        });
        read.min().unwrap_or(self.latest.version)
    }
}
