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
            let (start, parent) = (run.blocks.start, run.parent());
            self.free_from(id, end);
            if end > start {
                let run = self.front.run_mut(id);
                let blocks = run.blocks.clone();
                run.coverage.shrink(&blocks);
                return Some(id);
            }
            self.remove_run(id);
            let (in_front, depth) = self.locate(parent?);
            self.front.run_mut(in_front).remove_child(depth, id);
            id = in_front;
        }
    }

    fn remove_run(&mut self, id: RunId) -> Run {
        self.chains.leave(id);
        self.run_numbers.take_back(id.0);
        self.front.remove_run(id)
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
        let version = self.making();
        let run = self.front.run_mut(id);
        for (place, count) in run.places.within(depth..run.blocks.end) {
            for index in 0..count {
                self.names.remove(place.ahead(index), &self.pages);
            }
            self.pages.free(place, count, version);
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
        let first = self.content(self.run(id), depth);
        let tail_id = RunId(self.run_numbers.give());
        self.chains.join(tail_id, id);
        let run = self.front.run_mut(id);
        let tail = run.split(depth, first);
        run.add_child(depth - 1, tail_id);
        tail.claim(tail_id, &mut self.pages);
        self.front.insert_run(tail_id, tail);
        tail_id
    }

    /// Joins a run with the one behind it and the one in front, where they need not be apart.
    fn join_around(&mut self, id: RunId) {
        self.join_behind(id);
        if let Some(parent) = self.run(id).parent() {
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
        let end = run.blocks.end;
        let child = self.remove_run(child_id);
        child.claim(id, &mut self.pages);
        let run = self.front.run_mut(id);
        run.remove_child(end - 1, child_id);
        run.join(child);
    }
}
