//! The tree of one scope: what its parts are and who may touch them.
//!
//! - [`Pages`] hold the blocks, a [`Run`] is a stretch of blocks without a cut, and `branches` leads from a block
//!   and the content behind it to the run that starts there.
//! - [`Names`], [`Holds`], `Recent` and `Parking` belong to the writer: they say which block a rank means.
//! - `store` and `remove` apply events, `settle` keeps runs as few and as short as they can be, `walk` answers.

mod hold;
mod layers;
mod plain;
mod ranks;
mod remove;
mod settle;
mod store;
mod walk;

use std::ops::Range;

use hashbrown::HashMap;
use slab::Slab;

use crate::{
    BlockHash, Event, Layer, Limits, RankSlot, SequenceHash,
    chain::Chains,
    holds::Holds,
    names::Names,
    pages::{Pages, Place},
    run::{Run, RunId},
};
use ranks::Ranks;

pub use walk::Overlap;

/// Everything that the ranks of one scope hold.
pub(crate) struct Tree {
    pub(crate) block_size: u32,
    pub(crate) version: u64,
    pub(crate) ranks: Ranks,
    limits: Limits,
    pages: Pages,
    runs: Slab<Run>,
    chains: Chains,
    /// The run whose first block has that content and stands behind that block (none: starts a prompt).
    branches: HashMap<(Option<Place>, BlockHash), RunId>,
    names: Names,
    holds: Holds,
    /// Blocks held in layers other than the GPU's, by any rank: where there are none, nobody looks for them.
    lower_blocks: u64,
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
    /// Blocks dropped that had waited longest, since too many wait.
    pub dropped: usize,
}

/// How large a tree is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Size {
    /// Runs of blocks.
    pub runs: usize,
    /// Pages of 16 blocks.
    pub pages: usize,
    /// Blocks held, summed over ranks and layers.
    pub held_blocks: u64,
    /// Blocks that wait for a parent or a name.
    pub parked_blocks: usize,
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
            block_size,
            version: 0,
            ranks: Ranks::default(),
            limits,
            pages: Pages::default(),
            runs: Slab::new(),
            chains: Chains::default(),
            branches: HashMap::new(),
            names: Names::default(),
            holds: Holds::default(),
            lower_blocks: 0,
            touched: Vec::new(),
        }
    }

    /// Applies one event of a rank.
    pub(crate) fn apply(&mut self, rank: RankSlot, event: &Event) -> Outcome {
        let mut outcome = Outcome::default();
        match event {
            Event::Stored(stored) => self.store(rank, stored, &mut outcome),
            Event::Removed(removed) => self.remove(rank, removed, &mut outcome),
            Event::Cleared => self.clear(rank, true),
        }
        self.settle_touched();
        outcome
    }

    pub(crate) fn size(&self) -> Size {
        Size {
            runs: self.runs.len(),
            pages: self.pages.len(),
            held_blocks: self.ranks.iter().map(|(_, entry)| entry.held.iter().sum::<u64>()).sum(),
            parked_blocks: self.ranks.iter().map(|(_, entry)| entry.parking.blocks()).sum(),
        }
    }

    fn run(&self, id: RunId) -> &Run {
        &self.runs[id.0 as usize]
    }

    fn run_mut(&mut self, id: RunId) -> &mut Run {
        &mut self.runs[id.0 as usize]
    }

    fn insert_run(&mut self, run: Run) -> RunId {
        RunId(self.runs.insert(run) as u32)
    }

    /// The run of a block that is in the tree, and the block's depth.
    fn locate(&self, place: Place) -> (RunId, u32) {
        (self.pages.owner(place).unwrap_or(RunId::NONE), self.pages.depth(place))
    }

    /// The content of the block at `depth` of a run.
    fn content(&self, run: &Run, depth: u32) -> BlockHash {
        self.pages.content(run.place(depth))
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
        let run = &mut self.runs[id.0 as usize];
        let place = run.place(depths.start);
        let cuts = [depths.start, depths.end];
        let added = run.coverage.cover(rank, layer, depths, &run.blocks);
        if added > 0 {
            self.ranks.get_mut(rank).held[layer.index()] += u64::from(added);
            self.lower_blocks += if layer == Layer::GPU { 0 } else { u64::from(added) };
            self.touch(place, cuts);
        }
    }

    /// The rank no longer holds these blocks of a run.
    fn uncover(&mut self, rank: RankSlot, layer: Layer, id: RunId, depths: Range<u32>) {
        if self.is_own_end(rank, layer, id, &depths) {
            self.ranks.get_mut(rank).held[layer.index()] -= u64::from(depths.end - depths.start);
            self.free_from(id, depths.start);
            return;
        }
        let run = &mut self.runs[id.0 as usize];
        let place = run.place(depths.start);
        let cuts = [depths.start, depths.end];
        let removed = run.coverage.uncover(rank, layer, depths, &run.blocks);
        self.ranks.get_mut(rank).held[layer.index()] -= u64::from(removed);
        self.lower_blocks -= if layer == Layer::GPU { 0 } else { u64::from(removed) };
        self.touch(place, cuts);
    }
}
