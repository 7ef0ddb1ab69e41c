//! A run: blocks that follow each other, with whoever holds them. The compressed edge of the tree.
//!
//! Everything in a run is by depth, counted from the start of the prompt, so that splits and merges move nothing.

use std::ops::Range;

use smallvec::SmallVec;

use crate::{
    chain::ChainId,
    coverage::Coverage,
    pages::{PAGE_BLOCKS, Pages, Place},
};

/// A run's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RunId(pub(crate) u32);

impl RunId {
    /// No run.
    pub(crate) const NONE: RunId = RunId(u32::MAX);
}

/// Consecutive slots of one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    pub(crate) page: u32,
    /// Depth of its first block.
    pub(crate) depth: u32,
    pub(crate) slot: u8,
    pub(crate) len: u8,
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

/// One run of blocks.
#[derive(Debug)]
pub(crate) struct Run {
    /// The block in front; none at the start of a prompt.
    pub(crate) parent: Option<Place>,
    pub(crate) chain: ChainId,
    /// Its blocks, by depth.
    pub(crate) blocks: Range<u32>,
    pub(crate) segments: SmallVec<[Segment; 2]>,
    /// Sorted by depth. Children hang at any block, so that a branch cuts no run.
    branches: SmallVec<[Branch; 1]>,
    pub(crate) coverage: Coverage,
}

impl Run {
    /// A run without blocks that will start at `depth`.
    pub(crate) fn new(parent: Option<Place>, chain: ChainId, depth: u32) -> Run {
        Run {
            parent,
            chain,
            blocks: depth..depth,
            segments: SmallVec::new(),
            branches: SmallVec::new(),
            coverage: Coverage::default(),
        }
    }

    /// Where the block at `depth` is. It must be in the run.
    pub(crate) fn place(&self, depth: u32) -> Place {
        let segment = self.segments[self.segment(depth)];
        Place::new(segment.page, segment.slot + (depth - segment.depth) as u8)
    }

    /// The index of the segment that holds the block at `depth`.
    pub(crate) fn segment(&self, depth: u32) -> usize {
        self.segments.partition_point(|segment| segment.depth <= depth) - 1
    }

    pub(crate) fn last_place(&self) -> Place {
        self.place(self.blocks.end - 1)
    }

    /// Notes the block behind the last one.
    pub(crate) fn push(&mut self, place: Place) {
        let depth = self.blocks.end;
        self.blocks.end += 1;
        match self.segments.last_mut() {
            Some(last) if last.page == place.page() && last.slot + last.len == place.slot() => last.len += 1,
            Some(_) | None => {
                self.segments.push(Segment { page: place.page(), depth, slot: place.slot(), len: 1 });
            }
        }
    }

    /// Forgets the blocks from `depth` on.
    pub(crate) fn truncate(&mut self, depth: u32) {
        self.blocks.end = depth;
        while let Some(last) = self.segments.last_mut() {
            if last.depth < depth {
                last.len = last.len.min((depth - last.depth).min(PAGE_BLOCKS as u32) as u8);
                break;
            }
            self.segments.pop();
        }
    }

    /// Cuts off the blocks from `depth` on, with what hangs behind them. Their owner must still be changed.
    pub(crate) fn split(&mut self, depth: u32) -> Run {
        let mut tail = Run::new(Some(self.place(depth - 1)), self.chain, depth);
        tail.blocks.end = self.blocks.end;
        tail.coverage = self.coverage.split(depth, &self.blocks);
        let cut = self.segment(depth);
        tail.segments.extend(self.segments[cut..].iter().copied());
        let first = &mut tail.segments[0];
        let in_front = (depth - first.depth) as u8;
        *first = Segment { page: first.page, depth, slot: first.slot + in_front, len: first.len - in_front };
        self.truncate(depth);
        let kept = self.branches.partition_point(|branch| branch.depth < depth);
        tail.branches.extend(self.branches.drain(kept..));
        tail
    }

    /// Takes over the blocks of the run behind this one, and what hangs behind them.
    pub(crate) fn join(&mut self, behind: Run) {
        self.coverage.join(behind.coverage, &self.blocks, &behind.blocks);
        for segment in behind.segments {
            match self.segments.last_mut() {
                Some(last) if last.page == segment.page => last.len += segment.len,
                Some(_) | None => self.segments.push(segment),
            }
        }
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

    /// Whether children hang behind the block at `depth`.
    pub(crate) fn has_children(&self, depth: u32) -> bool {
        self.branches.binary_search_by_key(&depth, |branch| branch.depth).is_ok()
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
        for segment in &self.segments {
            pages.set_owner(segment.page, segment.slot, segment.slot + segment.len, id);
        }
    }
}
