//! The answer to a prompt: every rank's reach, ranks with the same reach together.

use crate::{RankSlot, Reach, rank_set::RankSet, run::RunId, skeleton::Held};

/// Groups, and runs on the way, for which there is room from the start.
const ROOM: usize = 64;

/// The answer to one prompt, and the memory to find it, both to be used again for the next.
#[derive(Debug, Default)]
pub struct Overlap {
    /// Ranks with a reach, in no order: the first `count` of the room that there is.
    // Apart from the reaches: many ranks mostly share one, and 2 bytes a rank are written much faster than 20.
    slots: Vec<u16>,
    count: usize,
    /// The reach of the slots from where the group before ends up to `end`.
    groups: Vec<Group>,
    /// Ranks that hold everything so far on the GPU, and those that just fell out.
    pub(crate) active: RankSet,
    pub(crate) dropped: RankSet,
    /// Ranks whose reach has to be worked out from intervals, and those of one of them.
    pub(crate) layered: RankSet,
    pub(crate) held: Held,
    /// The runs on the way, each with the depth up to which the prompt follows it.
    pub(crate) visited: Vec<(RunId, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    end: usize,
    reach: Reach,
}

impl Overlap {
    /// The reach of a rank in this answer. It is looked for among all: for many ranks, go through
    /// [`Overlap::reaches`] once.
    #[must_use]
    pub fn reach(&self, rank: RankSlot) -> Reach {
        self.reaches().find(|&(slot, _)| slot == rank).map_or(Reach::NONE, |(_, reach)| reach)
    }

    /// Ranks that hold the first block and more, each once, in no order.
    pub fn reaches(&self) -> impl Iterator<Item = (RankSlot, Reach)> {
        let mut start = 0;
        self.groups.iter().flat_map(move |group| {
            let slots = &self.slots[start..group.end];
            start = group.end;
            slots.iter().map(|&slot| (RankSlot(slot.into()), group.reach))
        })
    }

    /// How many ranks hold the first block and more.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no rank holds the first block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn clear(&mut self) {
        self.count = 0;
        self.groups.clear();
        self.active.clear();
        self.visited.clear();
        // Once, and the prompts to come rarely need more.
        self.groups.reserve(ROOM);
        self.visited.reserve(ROOM);
    }

    /// Notes the reach of one rank.
    pub(crate) fn add(&mut self, rank: RankSlot, reach: Reach) {
        self.make_room(1);
        self.slots[self.count] = rank.0 as u16;
        self.count += 1;
        self.end_group(reach);
    }

    /// Notes one reach for all ranks that are still active.
    pub(crate) fn add_active(&mut self, reach: Reach) {
        self.make_room(self.active.room());
        self.count += self.active.write(&mut self.slots[self.count..]);
        self.end_group(reach);
    }

    /// Notes one reach for all ranks that fell out and came back in nowhere.
    pub(crate) fn add_dropped(&mut self, reach: Reach) {
        self.make_room(self.dropped.room());
        self.count += self.dropped.write(&mut self.slots[self.count..]);
        self.end_group(reach);
    }

    fn make_room(&mut self, ranks: usize) {
        if self.slots.len() < self.count + ranks {
            self.slots.resize(self.count + ranks, 0);
        }
    }

    fn end_group(&mut self, reach: Reach) {
        let end = self.count;
        match self.groups.last_mut() {
            Some(last) if last.reach == reach || last.end == end => last.end = end,
            Some(_) | None => self.groups.push(Group { end, reach }),
        }
    }

    /// Takes ranks out, whose reach has to be worked out anew.
    pub(crate) fn take_out(&mut self, ranks: &RankSet) {
        let (mut start, mut kept) = (0, 0);
        for group in &mut self.groups {
            for index in start..group.end {
                let slot = self.slots[index];
                self.slots[kept] = slot;
                kept += usize::from(!ranks.contains(RankSlot(slot.into())));
            }
            start = std::mem::replace(&mut group.end, kept);
        }
        self.count = kept;
    }
}
