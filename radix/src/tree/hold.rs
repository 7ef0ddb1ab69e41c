//! One block, one rank: the exact rules for names, copies and aliases. Whatever is done in bulk elsewhere must come
//! to the same.

use super::{Bound, Tree};
use crate::{Copies, Layer, RankSlot, SequenceHash, holds::Hold, pages::Place};

impl Tree {
    /// The rank holds the block at `place` under `name`. If it already means another block by that name, it holds
    /// one more copy of that one: the first binding stays while it holds anything under it.
    pub(super) fn hold(&mut self, rank: RankSlot, layer: Layer, place: Place, name: SequenceHash) {
        let target = match self.resolve(rank, name) {
            Some(Bound::Held(bound)) => bound,
            Some(Bound::Recent(_)) => {
                self.recall(rank, name);
                place
            }
            None => place,
        };
        let (run, depth) = self.locate(target);
        let own = self.pages.own_name(target);
        let coverage = &self.run(run).coverage;
        let plain = own == Some(name);
        let counted = self.ranks.get(rank).settings.copies == Copies::Counted;
        if self.holds.get(rank, target).is_none() {
            let held = coverage.holds(rank, layer, depth);
            if plain && (!held || !counted) {
                self.cover(rank, layer, run, depth..depth + 1);
                return;
            }
            let layers =
                own.into_iter().flat_map(|own| coverage.layers(rank, depth).map(move |layer| (own, layer)));
            let so_far = layers.map(|(name, layer)| Hold { name, layer, copies: 1 }).collect();
            self.holds.list(rank, target, so_far);
            self.ranks.get_mut(rank).unusual += 1;
        }
        self.holds.add(rank, target, name, layer, counted);
        if !plain {
            self.names.add_alias(rank, name, target);
        }
        self.cover(rank, layer, run, depth..depth + 1);
    }

    /// Takes one copy of a block under an unusual hold away. Whether there was one.
    pub(super) fn release_listed(
        &mut self,
        rank: RankSlot,
        layer: Layer,
        place: Place,
        name: SequenceHash,
    ) -> bool {
        let own = self.pages.own_name(place);
        let Some(released) = self.holds.remove(rank, place, name, layer, own) else { return false };
        if released.unlisted {
            // What was an alias once may have become the block's own name since.
            if let Some(own) = own {
                self.names.remove_alias(rank, own, place);
            }
            self.ranks.get_mut(rank).unusual -= 1;
        }
        if released.layer_ended {
            let (run, depth) = self.locate(place);
            self.uncover(rank, layer, run, depth..depth + 1);
        }
        if released.name_ended {
            self.names.remove_alias(rank, name, place);
            self.remember(rank, name, place);
        }
        true
    }

    /// Keeps the name of a block that the rank no longer holds, and the block with it.
    pub(super) fn remember(&mut self, rank: RankSlot, name: SequenceHash, place: Place) {
        let entry = self.ranks.get_mut(rank);
        let limit = entry.settings.recent_names;
        if limit == 0 {
            return;
        }
        let dropped = entry.recent.insert(name, place, limit);
        self.pages.pin(place);
        if let Some(dropped) = dropped {
            self.unpin(dropped);
        }
    }

    /// A recent name is held again, or means something else from here on.
    pub(super) fn recall(&mut self, rank: RankSlot, name: SequenceHash) {
        if let Some(place) = self.ranks.get_mut(rank).recent.remove(name) {
            self.unpin(place);
        }
    }

    pub(super) fn unpin(&mut self, place: Place) {
        if self.pages.unpin(place) {
            let depth = self.pages.depth(place);
            self.touch(place, [depth, depth]);
        }
    }
}
