//! The tree of one scope as its writer has it: what its parts are and who may touch them.
//!
//! - `front` is the side that is being changed: the runs, who holds them, and the ranks, as readers will see them.
//! - [`Pages`] hold the blocks, whose contents all versions share.
//! - [`Names`], [`Holds`], [`Chains`], `Recent` and `Parking` belong to the writer: they say which block a rank means.
//! - `store` and `remove` apply events, `settle` keeps runs as few and as short as they can be.

mod adopt;
mod dump;
mod hold;
mod plain;
mod ranks;
mod remove;
mod settle;
mod store;

use std::ops::Range;

use crate::{
    BlockHash, Event, Expired, Layer, Limits, ParkingState, Rank, RankSettings, RankSlot, RanksFull,
    SequenceHash, Watermark, Window,
    chain::Chains,
    holds::Holds,
    marked::Marked,
    names::Names,
    numbers::Numbers,
    pages::{Pages, Place},
    run::{Run, RunId},
    skeleton::Skeleton,
};
use ranks::Ranks;

/// Everything that the ranks of one scope hold, and what their announcements mean.
pub(crate) struct Tree {
    front: Skeleton,
    pages: Pages,
    ranks: Ranks,
    /// Ranks of which readers will see something new.
    changed: Marked,
    limits: Limits,
    run_numbers: Numbers,
    chains: Chains,
    names: Names,
    holds: Holds,
    /// Blocks whose runs have changed and must be settled before the event ends.
    touched: Vec<Touched>,
}

/// A block whose run has changed, and the depths at which coverage was cut.
#[derive(Clone, Copy)]
struct Touched {
    place: Place,
    cuts: [u32; 2],
}

/// What an event did. Blocks are counted as often as the event names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Blocks stored, known or new.
    pub stored: usize,
    /// Blocks removed, waiting ones included.
    pub removed: usize,
    /// Blocks to be removed that the rank did not hold in that layer.
    pub unknown: usize,
    /// Blocks parked, since their parent or their name is unknown.
    pub parked: usize,
    /// Blocks dropped: those that had waited longest, since too many wait, or new ones, since too many are in the tree.
    pub dropped: usize,
}

/// Which block a rank means by a name.
enum Bound {
    /// One that it holds.
    Held(Place),
    /// One that it held a short while ago.
    Recent(Place),
}

impl Tree {
    pub(crate) fn new(block_size: u32, limits: Limits) -> Tree {
        Tree {
            front: Skeleton::new(block_size),
            pages: Pages::default(),
            ranks: Ranks::default(),
            changed: Marked::default(),
            limits,
            run_numbers: Numbers::default(),
            chains: Chains::default(),
            names: Names::default(),
            holds: Holds::default(),
            touched: Vec::new(),
        }
    }

    /// Goes on with a side that is equal to the latest version (V2).
    pub(crate) fn begin(&mut self, side: Skeleton) {
        self.front = side;
    }

    /// Nobody reads a version before `oldest` any more.
    pub(crate) fn reclaim(&mut self, oldest: u64) {
        self.pages.reclaim(oldest);
    }

    /// Hands over the side as a new version.
    pub(crate) fn finish(&mut self) -> Skeleton {
        while let Some(slot) = self.changed.pop() {
            let slot = RankSlot(slot);
            self.front.set_member(slot, self.ranks.member(slot));
        }
        while let Some(index) = self.pages.changed.pop() {
            self.front.set_chunk(index, self.pages.content_chunk(index));
        }
        self.front.totals.pages = self.pages.len();
        self.front.totals.windowed = self.ranks.windowed;
        self.front.version += 1;
        std::mem::take(&mut self.front)
    }

    /// The slot of a rank, which joins if it is new.
    pub(crate) fn join(&mut self, rank: Rank, settings: RankSettings) -> Result<RankSlot, RanksFull> {
        if let Some(slot) = self.ranks.find(rank) {
            return Ok(slot);
        }
        let limit = self.limits.ranks.min(RankSlot::LIMIT);
        if self.ranks.len() >= limit {
            return Err(RanksFull { limit });
        }
        let slot = self.ranks.join(rank, settings);
        self.changed.insert(slot.0);
        Ok(slot)
    }

    pub(crate) fn leave(&mut self, rank: RankSlot) {
        self.forget(rank);
        self.ranks.leave(rank);
    }

    pub(crate) fn set_windows(&mut self, rank: RankSlot, windows: Vec<Window>) {
        self.changed.insert(rank.0);
        self.ranks.set_windows(rank, windows);
    }

    pub(crate) fn mark(&mut self, rank: RankSlot, watermark: Watermark) {
        self.changed.insert(rank.0);
        self.ranks.get_mut(rank).watermark = watermark;
    }

    pub(crate) fn parking(&self, rank: RankSlot) -> ParkingState {
        self.ranks.get(rank).parking.state()
    }

    pub(crate) fn expire(&mut self, rank: RankSlot, before: u64) -> Expired {
        self.changed.insert(rank.0);
        self.ranks.get_mut(rank).parking.expire(before)
    }

    /// Applies one event of a rank.
    pub(crate) fn apply(&mut self, rank: RankSlot, event: &Event) -> Outcome {
        self.changed.insert(rank.0);
        let mut outcome = Outcome::default();
        match event {
            Event::Stored(stored) => self.store(rank, stored, &mut outcome),
            Event::Removed(removed) => self.remove(rank, removed, &mut outcome),
            Event::Cleared => self.clear(rank, true),
        }
        self.settle_touched();
        outcome
    }

    fn run(&self, id: RunId) -> &Run {
        self.front.run(id)
    }

    /// The version that is being made.
    fn making(&self) -> u64 {
        self.front.version + 1
    }

    /// The run of a block that is in the tree, and the block's depth.
    fn locate(&self, place: Place) -> (RunId, u32) {
        (self.pages.owner(place).unwrap_or(RunId::NONE), self.pages.depth(place))
    }

    /// The content of the block at `depth` of a run.
    fn content(&self, run: &Run, depth: u32) -> BlockHash {
        self.pages.content(run.place(depth))
    }

    /// The rank holds so many blocks more in a layer.
    fn count_held(&mut self, rank: RankSlot, layer: Layer, blocks: u32) {
        self.ranks.get_mut(rank).held[layer.index()] += u64::from(blocks);
        self.front.totals.held_blocks += u64::from(blocks);
        self.front.totals.lower_blocks += if layer == Layer::GPU { 0 } else { u64::from(blocks) };
    }

    /// The rank holds so many blocks less in a layer.
    fn count_gone(&mut self, rank: RankSlot, layer: Layer, blocks: u64) {
        self.ranks.get_mut(rank).held[layer.index()] -= blocks;
        self.front.totals.held_blocks -= blocks;
        self.front.totals.lower_blocks -= if layer == Layer::GPU { 0 } else { blocks };
    }

    /// The block that the rank holds under a name (N1, N2). `near` is where it may well be: events mostly go on
    /// where the one before has ended.
    fn held(&self, rank: RankSlot, name: SequenceHash, near: Place) -> Option<Place> {
        let unusual = self.ranks.get(rank).unusual > 0;
        if unusual && let Some(place) = self.names.alias(rank, name) {
            return Some(place);
        }
        // A table that is larger than the processor's cache costs two misses a block; what is near costs none.
        let near = self.pages.find_near(name, near);
        let place = near.or_else(|| self.names.find(name, &self.pages))?;
        let listed = if unusual { self.holds.get(rank, place) } else { None };
        let held = match listed {
            Some(list) => list.iter().any(|hold| hold.name == name),
            None => {
                let (run, depth) = self.locate(place);
                self.run(run).coverage.holds_anywhere(rank, depth)
            }
        };
        held.then_some(place)
    }

    /// Which block the rank means by a name, if it may mean any.
    fn resolve(&self, rank: RankSlot, name: SequenceHash) -> Option<Bound> {
        let entry = self.ranks.get(rank);
        let held = self.held(rank, name, entry.last_stored).map(Bound::Held);
        held.or_else(|| entry.recent.get(name).map(Bound::Recent))
    }

    /// Whether blocks are the end of a run that is the rank's alone, so that they leave the tree with it. Engines evict
    /// the ends of old answers first: in this case nothing has to be settled.
    fn is_own_end(&self, rank: RankSlot, layer: Layer, id: RunId, depths: &Range<u32>) -> bool {
        let run = self.run(id);
        layer == Layer::GPU
            && depths.end == run.blocks.end
            && depths.start > run.blocks.start
            && depths.start >= run.branches_end()
            && run.coverage.is_only(rank)
            && !self.pages.has_pins()
            && self.ranks.get(rank).settings.recent_names == 0
    }

    fn touch(&mut self, place: Place, cuts: [u32; 2]) {
        self.touched.push(Touched { place, cuts });
    }

    /// The rank now holds these blocks of a run.
    fn cover(&mut self, rank: RankSlot, layer: Layer, id: RunId, depths: Range<u32>) {
        let run = self.front.run_mut(id);
        let place = run.place(depths.start);
        let cuts = [depths.start, depths.end];
        let added = run.coverage.cover(rank, layer, depths, &run.blocks);
        if added > 0 {
            self.count_held(rank, layer, added);
            self.touch(place, cuts);
        }
    }

    /// The rank no longer holds these blocks of a run.
    fn uncover(&mut self, rank: RankSlot, layer: Layer, id: RunId, depths: Range<u32>) {
        if self.is_own_end(rank, layer, id, &depths) {
            self.count_gone(rank, layer, u64::from(depths.end - depths.start));
            self.free_from(id, depths.start);
            return;
        }
        let run = self.front.run_mut(id);
        let place = run.place(depths.start);
        let cuts = [depths.start, depths.end];
        let removed = run.coverage.uncover(rank, layer, depths, &run.blocks);
        self.count_gone(rank, layer, u64::from(removed));
        self.touch(place, cuts);
    }
}
