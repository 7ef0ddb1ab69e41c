//! What readers see of the tree in one version: its runs, who holds them, and the ranks.
//!
//! There are two skeletons or a few (`sides.rs`): the writer changes one, which nobody reads, and publishes it. What
//! blocks contain is not copied; it lies in pages that all versions share.

mod layers;
mod roster;
mod walk;

use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

use crate::{
    RankSlot,
    contents::{Chunk, Contents},
    marked::Marked,
    pages::Place,
    parted::Parted,
    run::{Key, Run, RunId},
    sync::Arc,
};
pub(crate) use layers::Held;
pub(crate) use roster::Member;
use roster::Roster;

/// One side of the tree, or the version that it shows.
// What every lookup reads stands first, together.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Skeleton {
    hasher: DefaultHashBuilder,
    /// The run that starts behind a block (none: starts a prompt) with some content.
    branches: Parted<RunId, 64>,
    runs: Vec<Option<Run>>,
    contents: Contents,
    pub(crate) totals: Totals,
    pub(crate) version: u64,
    pub(crate) block_size: u32,
    pub(crate) roster: Roster,
    /// Everything in which this side differs from the version before. Noted by whatever changes it.
    pub(crate) changed: Changes,
}

/// Counts over all ranks.
#[derive(Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) runs: usize,
    pub(crate) pages: usize,
    /// Blocks held, in all layers.
    pub(crate) held_blocks: u64,
    /// Of these, blocks in layers other than the GPU's: where there are none, nobody looks for them.
    pub(crate) lower_blocks: u64,
    /// Ranks with windows.
    pub(crate) windowed: usize,
}

/// Parts in which one side differs from another.
#[derive(Default)]
pub(crate) struct Changes {
    runs: Marked,
    ranks: Marked,
    chunks: Marked,
}

impl Changes {
    /// Runs, which are nearly all of what has to be copied.
    pub(crate) fn runs(&self) -> usize {
        self.runs.len()
    }

    pub(crate) fn add(&mut self, others: &Changes) {
        self.runs.extend(&others.runs);
        self.ranks.extend(&others.ranks);
        self.chunks.extend(&others.chunks);
    }
}

impl Skeleton {
    pub(crate) fn new(block_size: u32) -> Skeleton {
        Skeleton { block_size, ..Skeleton::default() }
    }

    /// The run of that number.
    ///
    /// # Panics
    /// A number of a run that has gone is a fault of the writer.
    #[expect(clippy::panic, reason = "no input can name a run; only a fault in the writer leads here")]
    pub(crate) fn run(&self, id: RunId) -> &Run {
        match self.runs.get(id.0 as usize) {
            Some(Some(run)) => run,
            Some(None) | None => panic!("there is no {id:?}"),
        }
    }

    /// The run of that number, to be changed. Panics as [`Skeleton::run`] does.
    #[expect(clippy::panic, reason = "no input can name a run; only a fault in the writer leads here")]
    pub(crate) fn run_mut(&mut self, id: RunId) -> &mut Run {
        self.changed.runs.insert(id.0);
        match self.runs.get_mut(id.0 as usize) {
            Some(Some(run)) => run,
            Some(None) | None => panic!("there is no {id:?}"),
        }
    }

    /// The run that starts behind a block (none: starts a prompt) with some content.
    pub(crate) fn find(&self, key: Key) -> Option<RunId> {
        let is_it = |&id: &RunId| self.run(id).key() == key;
        self.branches.find(hash(&self.hasher, key), is_it).copied()
    }

    /// All runs.
    pub(crate) fn run_ids(&self) -> impl Iterator<Item = RunId> {
        (0..).map(RunId).zip(&self.runs).filter(|(_, run)| run.is_some()).map(|(id, _)| id)
    }

    /// All runs of which a rank holds anything.
    pub(crate) fn runs_of(&self, rank: RankSlot) -> Vec<RunId> {
        let runs = (0..).map(RunId).zip(&self.runs);
        let of_rank = runs.filter(|(_, run)| run.as_ref().is_some_and(|run| run.coverage.mentions(rank)));
        of_rank.map(|(id, _)| id).collect()
    }

    pub(crate) fn insert_run(&mut self, id: RunId, run: Run) {
        self.changed.runs.insert(id.0);
        self.totals.runs += 1;
        self.put(id, run);
    }

    pub(crate) fn remove_run(&mut self, id: RunId) -> Run {
        self.changed.runs.insert(id.0);
        self.totals.runs -= 1;
        self.take(id)
    }

    fn put(&mut self, id: RunId, run: Run) {
        let (index, key) = (id.0 as usize, run.key());
        if index >= self.runs.len() {
            self.runs.resize_with(index + 1, || None);
        }
        self.runs[index] = Some(run);
        let Skeleton { runs, branches, hasher, .. } = self;
        branches.insert(hash(hasher, key), id, |&id| hash_of(hasher, runs, id));
    }

    fn take(&mut self, id: RunId) -> Run {
        let key = self.run(id).key();
        let Skeleton { runs, branches, hasher, .. } = self;
        branches.remove(hash(hasher, key), |&other| other == id, |&id| hash_of(hasher, runs, id));
        let run = self.runs[id.0 as usize].take();
        while self.runs.last().is_some_and(Option::is_none) {
            self.runs.pop();
        }
        if self.runs.capacity() > 4 * self.runs.len().max(16) {
            self.runs.shrink_to(2 * self.runs.len());
        }
        run.unwrap_or_else(|| Run::new(key, 0))
    }

    /// States what readers see of a rank; nothing of one that has left.
    pub(crate) fn set_member(&mut self, slot: RankSlot, member: Option<Member>) {
        self.changed.ranks.insert(slot.0);
        self.roster.set(slot, member);
    }

    /// Puts contents in their place, or takes them away.
    pub(crate) fn set_chunk(&mut self, index: u32, chunk: Option<Arc<Chunk>>) {
        self.changed.chunks.insert(index);
        self.contents.set_chunk(index as usize, chunk);
    }

    /// Everything that a side which knows nothing lacks of this one.
    pub(crate) fn everything(&self) -> Changes {
        let mut all = Changes::default();
        (0..self.runs.len() as u32).for_each(|id| all.runs.insert(id));
        (0..self.contents.len() as u32).for_each(|index| all.chunks.insert(index));
        self.roster.slots().for_each(|slot| all.ranks.insert(slot.0));
        all
    }

    /// Copies what is stale from another side, at most so many runs.
    pub(crate) fn catch_up(&mut self, from: &Skeleton, stale: &mut Changes, most: usize) {
        while let Some(slot) = stale.ranks.pop() {
            let slot = RankSlot(slot);
            self.roster.set(slot, from.roster.get(slot).cloned());
        }
        while let Some(index) = stale.chunks.pop() {
            self.contents.set_chunk(index as usize, from.contents.chunk(index as usize));
        }
        for _ in 0..most {
            let Some(id) = stale.runs.pop() else { break };
            self.copy_run(RunId(id), from);
        }
        (self.version, self.totals) = (from.version, from.totals);
    }

    /// Takes runs out of a side that will not be needed. Whether none is left.
    pub(crate) fn dismantle(&mut self, stale: &mut Changes, most: usize) -> bool {
        for _ in 0..most {
            let Some(last) = self.runs.len().checked_sub(1) else { return true };
            stale.runs.insert(last as u32);
            self.take(RunId(last as u32));
        }
        self.runs.is_empty()
    }

    fn copy_run(&mut self, id: RunId, from: &Skeleton) {
        let theirs = from.runs.get(id.0 as usize).and_then(Option::as_ref);
        let own = self.runs.get_mut(id.0 as usize).and_then(Option::as_mut);
        if let (Some(own), Some(theirs)) = (own, theirs)
            && own.key() == theirs.key()
        {
            own.clone_from(theirs);
            return;
        }
        if self.runs.get(id.0 as usize).is_some_and(Option::is_some) {
            self.take(id);
        }
        if let Some(theirs) = theirs {
            self.put(id, theirs.clone());
        }
    }
}

fn hash(hasher: &DefaultHashBuilder, (parent, first): Key) -> u64 {
    let parent = parent.map_or(u32::MAX, |place: Place| place.0);
    hasher.hash_one((u64::from(parent), first.0))
}

fn hash_of(hasher: &DefaultHashBuilder, runs: &[Option<Run>], id: RunId) -> u64 {
    runs.get(id.0 as usize).and_then(Option::as_ref).map_or(0, |run| hash(hasher, run.key()))
}
