//! Keeps runs as few and as short as they can be: frees what nobody holds, cuts a run where many ranks' coverage is
//! cut, and joins two runs again when the reason is gone.
//!
//! A branch is no reason for a cut, since children hang at any block. What is: coverage that differs. Up to
//! [`JOIN_AT_MOST`] ranks may differ across a joint; a run is cut where [`SPLIT_AT`] do. The distance between
//! the two keeps a run from being cut and joined in turn.

use super::{Touched, Tree};
use crate::run::{Run, RunId};

/// So many spans that begin or end at one block cut the run there.
const SPLIT_AT: usize = 8;
/// So many ranks may hold one of two blocks that follow each other and not the other.
pub(super) const JOIN_AT_MOST: usize = 2;

impl Tree {
    /// Settles every run that an event has touched.
    pub(super) fn settle_touched(&mut self) {
        while let Some(Touched { place, cuts }) = self.touched.pop() {
            // None: the block has gone with another that was settled before.
            if let Some(run) = self.pages.owner(place)
                && let Some(run) = self.prune(run)
            {
                self.cut(run, cuts);
                self.join_around(run);
            }
        }
    }

    /// Frees the blocks at the end of a run that nobody holds and nothing hangs behind, and, with its last block,
    /// the run; then the same for the run in front. Returns the run that is left.
    fn prune(&mut self, mut id: RunId) -> Option<RunId> {
        loop {
            let run = self.run(id);
            let end = run.coverage.end(&run.blocks).max(run.branches_end());
            let end = self.pinned_end(run, end);
            if end == run.blocks.end {
                return Some(id);
            }
            let (start, parent) = (run.blocks.start, run.parent);
            let first = self.content(run, start);
            self.free_from(id, end);
            let run = self.run_mut(id);
            if end > start {
                let blocks = run.blocks.clone();
                run.coverage.shrink(&blocks);
                return Some(id);
            }
            let chain = run.chain;
            self.runs.remove(id.0 as usize);
            self.chains.leave(chain);
            self.branches.remove(&(parent, first));
            let (in_front, depth) = self.locate(parent?);
            self.run_mut(in_front).remove_child(depth, id);
            id = in_front;
        }
    }

    /// The depth behind the last block that recent names keep, at least `end`.
    fn pinned_end(&self, run: &Run, end: u32) -> u32 {
        if !self.pages.has_pins() {
            return end;
        }
        let pinned = (end..run.blocks.end).rev().find(|&depth| self.pages.is_pinned(run.place(depth)));
        pinned.map_or(end, |depth| depth + 1)
    }

    /// Frees the blocks of a run from `depth` on.
    pub(super) fn free_from(&mut self, id: RunId, depth: u32) {
        let run = &mut self.runs[id.0 as usize];
        for (place, count) in run.places.within(depth..run.blocks.end) {
            for index in 0..count {
                self.names.remove(place.ahead(index), &self.pages);
            }
            self.pages.free(place, count);
        }
        run.truncate(depth);
    }

    /// Cuts a run at those of the two depths at which enough coverage is cut.
    fn cut(&mut self, mut id: RunId, mut cuts: [u32; 2]) {
        cuts.sort_unstable();
        for depth in cuts {
            let run = self.run(id);
            if run.blocks.start < depth && depth < run.blocks.end && run.coverage.cuts(depth) >= SPLIT_AT {
                id = self.split(id, depth);
            }
        }
    }

    /// Cuts a run in two. Returns the second part.
    fn split(&mut self, id: RunId, depth: u32) -> RunId {
        let tail = self.run_mut(id).split(depth);
        let (parent, first) = (tail.parent, self.content(&tail, depth));
        self.chains.join(tail.chain);
        let tail_id = self.insert_run(tail);
        self.runs[tail_id.0 as usize].claim(tail_id, &mut self.pages);
        self.run_mut(id).add_child(depth - 1, tail_id);
        self.branches.insert((parent, first), tail_id);
        tail_id
    }

    /// Joins a run with the one behind it and the one in front, where they need not be apart.
    fn join_around(&mut self, id: RunId) {
        self.join_behind(id);
        if let Some(parent) = self.run(id).parent {
            let (in_front, _) = self.locate(parent);
            if self.run(in_front).only_child_at_end() == Some(id) {
                self.join_behind(in_front);
            }
        }
    }

    fn join_behind(&mut self, id: RunId) {
        let run = self.run(id);
        let Some(child_id) = run.only_child_at_end() else { return };
        let child = self.run(child_id);
        if run.coverage.differs_across(&child.coverage, run.blocks.end, JOIN_AT_MOST) {
            return;
        }
        let (parent, first) = (child.parent, self.content(child, child.blocks.start));
        let end = run.blocks.end;
        let child = self.runs.remove(child_id.0 as usize);
        child.claim(id, &mut self.pages);
        self.branches.remove(&(parent, first));
        self.chains.leave(child.chain);
        let run = self.run_mut(id);
        run.remove_child(end - 1, child_id);
        run.join(child);
    }
}
