//! A run: blocks that follow each other, with whoever holds them. The compressed edge of the tree.
//!
//! Everything in a run is by depth, counted from the start of the prompt, so that splits and merges move nothing.

use std::ops::Range;

use smallvec::SmallVec;

use crate::{
    BlockHash,
    coverage::Coverage,
    pages::{Pages, Place},
    stretches::Stretches,
};

/// A run's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RunId(pub(crate) u32);

impl RunId {
    /// No run.
    pub(crate) const NONE: RunId = RunId(u32::MAX);
}

/// The children that hang behind one block of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Branch {
    /// Depth of the block that they hang behind.
    depth: u32,
    count: u32,
    /// All their numbers, xor-ed: where one child is left, its number.
    mixed: u32,
}

/// The runs that hang behind one block.
pub(crate) enum Children {
    None,
    One(RunId),
    Several,
}

/// How a run is found: the block in front (none at the start of a prompt), and the content of its first block.
pub(crate) type Key = (Option<Place>, BlockHash);

/// One run of blocks. Lookups read it, and each version has its own.
// Two cache lines, and not parts of three.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Run {
    parent: Option<Place>,
    first: BlockHash,
    /// Its blocks, by depth.
    pub(crate) blocks: Range<u32>,
    pub(crate) places: Stretches,
    /// Sorted by depth. Children hang at any block, so that a branch cuts no run.
    branches: SmallVec<[Branch; 1]>,
    pub(crate) coverage: Coverage,
}

impl Clone for Run {
    fn clone(&self) -> Run {
        let mut run = Run::new(self.key(), 0);
        run.clone_from(self);
        run
    }

    /// Keeps the memory.
    fn clone_from(&mut self, other: &Run) {
        let Run { parent, first, blocks, places, branches, coverage } = other;
        (self.parent, self.first, self.blocks) = (*parent, *first, blocks.clone());
        self.places.clone_from(places);
        self.branches.clear();
        self.branches.extend_from_slice(branches);
        self.coverage.clone_from(coverage);
    }
}

impl Run {
    /// A run without blocks that will start at `depth`.
    pub(crate) fn new((parent, first): Key, depth: u32) -> Run {
        Run {
            parent,
            first,
            blocks: depth..depth,
            places: Stretches::default(),
            branches: SmallVec::new(),
            coverage: Coverage::default(),
        }
    }

    pub(crate) fn key(&self) -> Key {
        (self.parent, self.first)
    }

    /// The block in front; none at the start of a prompt.
    pub(crate) fn parent(&self) -> Option<Place> {
        self.parent
    }

    /// Where the block at `depth` is. It must be in the run.
    pub(crate) fn place(&self, depth: u32) -> Place {
        self.places.place(depth)
    }

    pub(crate) fn last_place(&self) -> Place {
        self.place(self.blocks.end - 1)
    }

    /// Notes so many blocks behind the last one, at consecutive places.
    pub(crate) fn extend(&mut self, place: Place, count: usize) {
        self.places.push(self.blocks.end, place);
        self.blocks.end += count as u32;
    }

    /// Forgets the blocks from `depth` on.
    pub(crate) fn truncate(&mut self, depth: u32) {
        self.places.truncate(depth);
        self.blocks.end = depth;
    }

    /// Cuts off the blocks from `depth` on, with what hangs behind them. `first` is what the block there contains.
    /// Their owner must still be changed.
    pub(crate) fn split(&mut self, depth: u32, first: BlockHash) -> Run {
        let mut tail = Run::new((Some(self.place(depth - 1)), first), depth);
        tail.blocks.end = self.blocks.end;
        tail.coverage = self.coverage.split(depth, &self.blocks);
        tail.places = self.places.split(depth);
        self.blocks.end = depth;
        let kept = self.branches.partition_point(|branch| branch.depth < depth);
        tail.branches.extend(self.branches.drain(kept..));
        tail
    }

    /// Takes over the blocks of the run behind this one, and what hangs behind them.
    pub(crate) fn join(&mut self, behind: Run) {
        self.coverage.join(behind.coverage, &self.blocks, &behind.blocks);
        self.places.join(behind.places);
        self.branches.extend(behind.branches);
        self.blocks.end = behind.blocks.end;
    }

    /// Notes that `child` hangs behind the block at `depth`.
    pub(crate) fn add_child(&mut self, depth: u32, child: RunId) {
        let at = self.branches.partition_point(|branch| branch.depth < depth);
        match self.branches.get_mut(at) {
            Some(branch) if branch.depth == depth => {
                branch.count += 1;
                branch.mixed ^= child.0;
            }
            Some(_) | None => self.branches.insert(at, Branch { depth, count: 1, mixed: child.0 }),
        }
    }

    /// Notes that `child` no longer hangs behind the block at `depth`.
    pub(crate) fn remove_child(&mut self, depth: u32, child: RunId) {
        let at = self.branches.partition_point(|branch| branch.depth < depth);
        if let Some(branch) = self.branches.get_mut(at).filter(|branch| branch.depth == depth) {
            branch.count -= 1;
            branch.mixed ^= child.0;
            if branch.count == 0 {
                self.branches.remove(at);
            }
        }
    }

    /// What hangs behind the block at `depth`.
    pub(crate) fn children(&self, depth: u32) -> Children {
        match self.branches.binary_search_by_key(&depth, |branch| branch.depth) {
            Ok(index) if self.branches[index].count == 1 => Children::One(RunId(self.branches[index].mixed)),
            Ok(_) => Children::Several,
            Err(_) => Children::None,
        }
    }

    /// Whether children hang behind the block at `depth`.
    pub(crate) fn has_children(&self, depth: u32) -> bool {
        !matches!(self.children(depth), Children::None)
    }

    /// The depth behind the last block that children hang behind, at least the run's start.
    pub(crate) fn branches_end(&self) -> u32 {
        self.branches.last().map_or(self.blocks.start, |branch| branch.depth + 1)
    }

    /// The run that continues this one, if it is the only one that does.
    pub(crate) fn only_child_at_end(&self) -> Option<RunId> {
        let last = self.branches.last()?;
        (last.count == 1 && last.depth + 1 == self.blocks.end).then_some(RunId(last.mixed))
    }

    /// Makes `id` the owner of all blocks of this run.
    pub(crate) fn claim(&self, id: RunId, pages: &mut Pages) {
        for (place, count) in self.places.within(self.blocks.clone()) {
            pages.set_owner(place, count, id);
        }
    }
}

const _: () = assert!(size_of::<Option<Run>>() == 128, "two cache lines");
