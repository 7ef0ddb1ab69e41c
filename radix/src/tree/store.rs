//! Stores blocks: finds what the tree already has of them, adds the rest, and notes who holds them.

use super::{Bound, Outcome, Tree, plain::Placing, settle::JOIN_AT_MOST};
use crate::{
    Block, Blocks, Layer, RankSlot, Seed, SequenceHash, Stored,
    pages::Place,
    parking::Parked,
    run::{Run, RunId},
};

/// Blocks that a rank stores, new or after having waited.
#[derive(Clone, Copy)]
struct Storing<'a> {
    rank: RankSlot,
    layer: Layer,
    parent: Option<SequenceHash>,
    blocks: &'a Blocks,
    /// Indices of blocks that were removed again while they waited, sorted. They are placed, but not held.
    cancelled: &'a [u32],
}

impl Tree {
    pub(super) fn store(&mut self, rank: RankSlot, stored: &Stored, outcome: &mut Outcome) {
        outcome.stored += stored.blocks.len();
        let mut due = Vec::new();
        let Stored { layer, parent, blocks } = stored;
        let storing = Storing { rank, layer: *layer, parent: *parent, blocks, cancelled: &[] };
        self.store_or_park(storing, &mut due, outcome);
        // What waited for these blocks waits no longer, and so on; what has waited longest comes first.
        let mut next = 0;
        while next < due.len() {
            let parked = due[next].clone();
            let Parked { layer, waits_for, blocks, cancelled } = &parked;
            let storing = Storing { rank, layer: *layer, parent: Some(*waits_for), blocks, cancelled };
            self.store_or_park(storing, &mut due, outcome);
            next += 1;
        }
    }

    fn store_or_park(&mut self, storing: Storing<'_>, due: &mut Vec<Parked>, outcome: &mut Outcome) {
        let Storing { rank, layer, parent, blocks, cancelled } = storing;
        if let Blocks::Named(names) = blocks {
            self.store_named(rank, layer, names, cancelled, outcome);
            return;
        }
        let parent = match parent.map(|name| (name, self.resolve(rank, name))) {
            None => None,
            Some((_, Some(Bound::Held(place) | Bound::Recent(place)))) => Some(place),
            Some((waits_for, None)) => {
                let (blocks, cancelled) = (blocks.clone(), cancelled.into());
                self.park(rank, Parked { layer, waits_for, blocks, cancelled }, outcome);
                return;
            }
        };
        let hashed;
        let (blocks, root_seed) = match blocks {
            Blocks::Hashed(blocks) => (blocks.as_slice(), None),
            Blocks::Tokens(tokens) => {
                let seed = parent.and_then(|place| self.chains.seed(self.locate(place).0));
                hashed = tokens.hash(seed.unwrap_or(tokens.root_seed));
                (hashed.as_slice(), Some(tokens.root_seed))
            }
            Blocks::Named(_) => (&[][..], None),
        };
        self.place_blocks(parent, root_seed, Placing { rank, layer, blocks, cancelled }, outcome);
        if !self.ranks.get(rank).parking.is_empty() {
            self.wake(rank, blocks, due);
        }
    }

    /// Takes out what has waited for any of these blocks.
    fn wake(&mut self, rank: RankSlot, blocks: &[Block], due: &mut Vec<Parked>) {
        for block in blocks {
            if self.resolve(rank, block.name).is_some() {
                due.extend(self.ranks.get_mut(rank).parking.take_waiting(block.name));
            }
        }
    }

    /// Names alone create nothing: what they mean is known, or they wait.
    fn store_named(
        &mut self,
        rank: RankSlot,
        layer: Layer,
        names: &[SequenceHash],
        cancelled: &[u32],
        outcome: &mut Outcome,
    ) {
        for (index, &name) in names.iter().enumerate() {
            if cancelled.contains(&(index as u32)) {
                continue;
            }
            match self.resolve(rank, name) {
                Some(Bound::Held(place) | Bound::Recent(place)) => self.hold(rank, layer, place, name),
                None => {
                    let blocks = Blocks::Named(vec![name]);
                    let parked = Parked { layer, waits_for: name, blocks, cancelled: [].as_slice().into() };
                    self.park(rank, parked, outcome);
                }
            }
        }
    }

    fn park(&mut self, rank: RankSlot, parked: Parked, outcome: &mut Outcome) {
        outcome.parked += parked.blocks.len();
        outcome.dropped += self.ranks.get_mut(rank).parking.park(parked, &self.limits);
    }

    /// Places blocks behind `at`, one stretch after the other: in the run of the block in front, in a run that
    /// hangs there, or as new ones. Those for which there is no room are dropped.
    fn place_blocks(
        &mut self,
        mut at: Option<Place>,
        root_seed: Option<Seed>,
        mut placing: Placing<'_>,
        outcome: &mut Outcome,
    ) {
        let starts_chain = at.is_none();
        let all = placing;
        let mut done = 0;
        while let Some(&first) = all.blocks.get(done) {
            placing.blocks = &all.blocks[done..];
            let found = self.find_behind(at, first);
            let placed = match found {
                Some((run, depth)) => self.hold_known(run, depth, done, placing, all),
                None if !self.pages.have_room(placing.blocks.len(), self.limits.blocks) => {
                    outcome.dropped += placing.blocks.len();
                    break;
                }
                None => self.append(at, done, placing, all),
            };
            if let (true, 0, Some(seed)) = (starts_chain, done, root_seed) {
                self.chains.state_seed(self.locate(placed.last).0, seed);
            }
            at = Some(placed.last);
            done += placed.count;
        }
        if let Some(last) = at {
            self.ranks.get_mut(all.rank).last_stored = last;
        }
    }

    /// Where the block with that content stands behind `at`: its run and depth.
    fn find_behind(&self, at: Option<Place>, block: Block) -> Option<(RunId, u32)> {
        if let Some(place) = at {
            let (id, depth) = self.locate(place);
            let run = self.run(id);
            if depth + 1 < run.blocks.end && self.content(run, depth + 1) == block.content {
                return Some((id, depth + 1));
            }
            if !run.has_children(depth) {
                return None;
            }
        }
        let id = self.front.find((at, block.content))?;
        Some((id, self.run(id).blocks.start))
    }

    /// Holds the blocks that the run already has from `depth` on.
    fn hold_known(
        &mut self,
        id: RunId,
        depth: u32,
        done: usize,
        placing: Placing<'_>,
        all: Placing<'_>,
    ) -> Placed {
        let count = self.match_run(id, depth, placing.blocks);
        let depths = depth..depth + count as u32;
        let last = self.run(id).place(depths.end - 1);
        self.hold_all(id, depths, done, all);
        Placed { last, count }
    }

    /// How many of the blocks stand in the run from `depth` on.
    fn match_run(&self, id: RunId, depth: u32, blocks: &[Block]) -> usize {
        let run = self.run(id);
        let mut count = 0;
        for (place, length) in run.places.within(depth..run.blocks.end) {
            for piece in self.pages.contents(place, length) {
                let pairs = piece.iter().zip(&blocks[count..]);
                let equal = pairs.take_while(|(content, block)| content.get() == block.content).count();
                count += equal;
                if equal < piece.len() {
                    return count;
                }
            }
        }
        count
    }

    /// Adds the blocks as new ones behind `at`: to the run that ends there, or as a run of their own.
    fn append(&mut self, at: Option<Place>, done: usize, placing: Placing<'_>, all: Placing<'_>) -> Placed {
        let Placing { rank, layer, blocks, .. } = placing;
        let id = self.run_to_extend(at, rank).unwrap_or_else(|| self.start_run(at, blocks[0]));
        let old = self.run(id).blocks.clone();
        let plain = self.extend(id, at, blocks) && self.is_usual(all);
        let run = self.front.run_mut(id);
        let (depths, last) = (old.end..run.blocks.end, run.last_place());
        if layer == Layer::GPU && run.coverage.is_only(rank) && plain {
            // An answer grows block by block: its end is this rank's alone, and stays so. Nothing has to be settled;
            // with the same for removals, conversations are applied 1.5 times as fast.
            self.recall_all(rank, blocks);
            self.count_held(rank, layer, blocks.len() as u32);
            return Placed { last, count: blocks.len() };
        }
        run.coverage.grow(&old);
        // Even if the rank turns out to hold none of them: then they go again.
        let first = run.place(old.end);
        self.touch(first, [old.end, old.end]);
        self.hold_all(id, depths, done, all);
        Placed { last, count: blocks.len() }
    }

    /// Puts new blocks behind the last one of a run, or, if it has none yet, behind `at`. Whether all could be given
    /// their names.
    pub(super) fn extend(&mut self, id: RunId, at: Option<Place>, blocks: &[Block]) -> bool {
        let run = self.front.run_mut(id);
        let mut behind = if run.blocks.is_empty() { at } else { Some(run.last_place()) };
        let mut rest = blocks;
        let mut named = true;
        while !rest.is_empty() {
            let place = match behind.filter(|&place| self.pages.has_room_behind(place)) {
                Some(place) => place.ahead(1),
                None => Place::new(self.pages.allocate(run.blocks.end, id, behind.map(Place::page)), 0),
            };
            let count = self.pages.extend(place.page(), rest, id);
            for (block, index) in rest[..count].iter().zip(0..) {
                named &= self.names.give(block.name, place.ahead(index), &mut self.pages);
            }
            run.extend(place, count);
            behind = Some(place.ahead(count as u32 - 1));
            rest = &rest[count..];
        }
        named
    }

    /// The run that ends at `at`, if new blocks may go behind it in place: nothing hangs there, and few others
    /// hold its end, so that the new blocks cut few ranks' coverage.
    fn run_to_extend(&self, at: Option<Place>, rank: RankSlot) -> Option<RunId> {
        let (id, depth) = self.locate(at?);
        let run = self.run(id);
        let free = depth + 1 == run.blocks.end && !run.has_children(depth);
        (free && run.coverage.others_at_end(rank, run.blocks.end) <= JOIN_AT_MOST).then_some(id)
    }

    pub(super) fn start_run(&mut self, at: Option<Place>, first: Block) -> RunId {
        let id = RunId(self.run_numbers.give());
        let mut start = 0;
        match at {
            None => self.chains.start(id),
            Some(place) => {
                let (parent, depth) = self.locate(place);
                self.chains.join(id, parent);
                self.front.run_mut(parent).add_child(depth, id);
                start = depth + 1;
            }
        }
        self.front.insert_run(id, Run::new((at, first.content), start));
        id
    }
}

/// Blocks that were placed in one stretch.
struct Placed {
    last: Place,
    count: usize,
}
