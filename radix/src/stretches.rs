//! Where the blocks of a run are: stretches of consecutive places.
//!
//! A page that is followed by the next one in memory continues the stretch, so that most runs are one stretch, and
//! a lookup reads them as one piece of memory.

use std::ops::Range;

use smallvec::SmallVec;

use crate::pages::Place;

/// Consecutive places, up to where the next stretch begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stretch {
    /// Depth of its first block.
    depth: u32,
    place: Place,
}

/// The places of a run, by depth.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct Stretches {
    // Sorted by depth.
    stretches: SmallVec<[Stretch; 2]>,
}

impl Clone for Stretches {
    fn clone(&self) -> Stretches {
        Stretches { stretches: self.stretches.clone() }
    }

    /// Keeps the memory.
    fn clone_from(&mut self, other: &Stretches) {
        self.stretches.clear();
        self.stretches.extend_from_slice(&other.stretches);
    }
}

impl Stretches {
    /// The index of the stretch that holds the block at `depth`.
    fn find(&self, depth: u32) -> usize {
        self.stretches.partition_point(|stretch| stretch.depth <= depth) - 1
    }

    /// Where the block at `depth` is. It must be in the run.
    pub(crate) fn place(&self, depth: u32) -> Place {
        let stretch = self.stretches[self.find(depth)];
        stretch.place.ahead(depth - stretch.depth)
    }

    /// The places of the blocks `depths`: first places and how many follow each other from there.
    pub(crate) fn within(&self, depths: Range<u32>) -> impl Iterator<Item = (Place, u32)> {
        let stretches = &self.stretches[self.find(depths.start)..];
        stretches.iter().enumerate().map_while(move |(index, stretch)| {
            let end = stretches.get(index + 1).map_or(depths.end, |next| next.depth.min(depths.end));
            let from = stretch.depth.max(depths.start);
            (from < end).then(|| (stretch.place.ahead(from - stretch.depth), end - from))
        })
    }

    /// Notes consecutive places, the first of them that of the block at `depth`, behind all others.
    pub(crate) fn push(&mut self, depth: u32, place: Place) {
        let follows = |last: &Stretch| last.place.ahead(depth - last.depth) == place;
        if !self.stretches.last().is_some_and(follows) {
            self.stretches.push(Stretch { depth, place });
        }
    }

    /// Forgets the blocks from `depth` on.
    pub(crate) fn truncate(&mut self, depth: u32) {
        let kept = self.stretches.partition_point(|stretch| stretch.depth < depth);
        self.stretches.truncate(kept);
    }

    /// Cuts off the blocks from `depth` on.
    pub(crate) fn split(&mut self, depth: u32) -> Stretches {
        let cut = self.find(depth);
        let mut tail = Stretches { stretches: self.stretches[cut..].into() };
        tail.stretches[0] = Stretch { depth, place: self.place(depth) };
        self.truncate(depth);
        tail
    }

    /// Takes over the places of the blocks behind these.
    pub(crate) fn join(&mut self, behind: Stretches) {
        for stretch in behind.stretches {
            self.push(stretch.depth, stretch.place);
        }
    }
}
