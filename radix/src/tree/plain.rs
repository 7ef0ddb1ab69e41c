//! Many blocks, one rank: holds them at once where that comes to no more than covering them, as it nearly always does,
//! and by the exact rules (`hold`) where not.

use std::ops::Range;

use super::Tree;
use crate::{Block, Copies, Layer, RankSlot, pages::Place, run::RunId};

/// Stored blocks whose content is known and whose parent is in the tree.
#[derive(Clone, Copy)]
pub(super) struct Placing<'a> {
    pub(super) rank: RankSlot,
    pub(super) layer: Layer,
    pub(super) blocks: &'a [Block],
    /// Indices of blocks that are placed, but not held, sorted.
    pub(super) cancelled: &'a [u32],
}

impl Placing<'_> {
    fn is_cancelled(&self, index: usize) -> bool {
        !self.cancelled.is_empty() && self.cancelled.binary_search(&(index as u32)).is_ok()
    }
}

impl Tree {
    /// Holds blocks of a run, which are `all.blocks[done..]`: at once where every one is plain, and by the exact
    /// rules where not.
    pub(super) fn hold_all(&mut self, id: RunId, depths: Range<u32>, done: usize, all: Placing<'_>) {
        if self.are_plain(id, &depths, done, all) {
            self.recall_all(all.rank, &all.blocks[done..done + depths.len()]);
            self.cover(all.rank, all.layer, id, depths);
        } else {
            self.hold_each(id, depths, done, all);
        }
    }

    /// Whether nothing about the rank and the event asks for a look at each block.
    pub(super) fn is_usual(&self, all: Placing<'_>) -> bool {
        let entry = self.ranks.get(all.rank);
        entry.unusual == 0 && all.cancelled.is_empty()
    }

    /// Whether holding the blocks of a run comes to no more than covering them.
    fn are_plain(&self, id: RunId, depths: &Range<u32>, done: usize, all: Placing<'_>) -> bool {
        let run = self.run(id);
        let counted = self.ranks.get(all.rank).settings.copies == Copies::Counted;
        if !self.is_usual(all) || (counted && run.coverage.meets(all.rank, all.layer, depths)) {
            return false;
        }
        let mut blocks = &all.blocks[done..];
        run.places.within(depths.clone()).all(|(place, count)| {
            let (here, behind) = blocks.split_at(count as usize);
            blocks = behind;
            self.pages.have_own_names(place, here)
        })
    }

    /// Holds blocks of a run one by one.
    fn hold_each(&mut self, id: RunId, depths: Range<u32>, done: usize, all: Placing<'_>) {
        let stretches = self.run(id).places.within(depths);
        let places: Vec<Place> =
            stretches.flat_map(|(place, count)| (0..count).map(move |i| place.ahead(i))).collect();
        let mut plain_from = 0;
        for (index, &place) in places.iter().enumerate() {
            if self.is_plain(place, done + index, all) {
                continue;
            }
            self.cover_places(all, &places[plain_from..index]);
            plain_from = index + 1;
            if !all.is_cancelled(done + index) {
                self.hold(all.rank, all.layer, place, all.blocks[done + index].name);
            }
        }
        self.cover_places(all, &places[plain_from..]);
    }

    /// Whether holding the block comes to no more than covering it. Gives a new block its name.
    fn is_plain(&mut self, place: Place, index: usize, all: Placing<'_>) -> bool {
        let name = all.blocks[index].name;
        let own = match self.pages.own_name(place) {
            Some(own) => own == name,
            None => self.names.give(name, place, &mut self.pages),
        };
        let entry = self.ranks.get(all.rank);
        if !own || all.is_cancelled(index) || entry.unusual > 0 {
            return false;
        }
        if entry.settings.copies == Copies::Counted {
            let (run, depth) = self.locate(place);
            if self.run(run).coverage.holds(all.rank, all.layer, depth) {
                return false;
            }
        }
        self.recall_all(all.rank, &all.blocks[index..=index]);
        true
    }

    /// Names that the rank has not held for a while are bound anew, to the content that they come with.
    pub(super) fn recall_all(&mut self, rank: RankSlot, blocks: &[Block]) {
        for block in blocks {
            if self.ranks.get(rank).recent.is_empty() {
                return;
            }
            self.recall(rank, block.name);
        }
    }

    /// Covers places that follow each other in one run.
    fn cover_places(&mut self, all: Placing<'_>, places: &[Place]) {
        if let Some(&first) = places.first() {
            let (run, depth) = self.locate(first);
            self.cover(all.rank, all.layer, run, depth..depth + places.len() as u32);
        }
    }
}
