//! The unusual holds: second copies, and blocks held under an alias.
//!
//! Nearly always a rank holds a block once in a layer, under the block's own name; its coverage says all of that.
//!
//! Invariant H1: what a rank holds of a block is either plain (own name, one copy a layer) and not listed here, or
//! it is listed here whole. Coverage says in both cases in which layers the rank holds the block.

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::{Layer, RankSlot, SequenceHash, pages::Place};

/// Copies of one block in one layer under one name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hold {
    pub(crate) name: SequenceHash,
    pub(crate) layer: Layer,
    /// Never 0.
    pub(crate) copies: u32,
}

/// A block's holds by one rank.
pub(crate) type List = SmallVec<[Hold; 2]>;

/// All unusual holds of a tree.
#[derive(Default)]
pub(crate) struct Holds {
    lists: HashMap<(RankSlot, Place), List>,
}

/// What a removal did to a listed block.
pub(crate) struct Released {
    /// No copy is left in the layer, under whatever name.
    pub(crate) layer_ended: bool,
    /// No copy is left under the name, in whatever layer.
    pub(crate) name_ended: bool,
    /// What is left is plain, or nothing, and is no longer listed (H1).
    pub(crate) unlisted: bool,
}

impl Holds {
    pub(crate) fn get(&self, rank: RankSlot, place: Place) -> Option<&[Hold]> {
        self.lists.get(&(rank, place)).map(SmallVec::as_slice)
    }

    /// Lists what has been a plain hold so far.
    pub(crate) fn list(&mut self, rank: RankSlot, place: Place, plain: List) {
        self.lists.insert((rank, place), plain);
    }

    /// All that is listed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RankSlot, Place, &[Hold])> {
        self.lists.iter().map(|(&(rank, place), list)| (rank, place, list.as_slice()))
    }

    /// Lists one hold of a block as it was. Whether it is the block's first.
    pub(crate) fn restore(&mut self, rank: RankSlot, place: Place, hold: Hold) -> bool {
        let list = self.lists.entry((rank, place)).or_default();
        list.push(hold);
        list.len() == 1
    }

    /// Adds a copy to a listed block; of a set, only where there is none yet.
    pub(crate) fn add(
        &mut self,
        rank: RankSlot,
        place: Place,
        name: SequenceHash,
        layer: Layer,
        counted: bool,
    ) {
        let list = self.lists.entry((rank, place)).or_default();
        match list.iter_mut().find(|hold| (hold.name, hold.layer) == (name, layer)) {
            Some(hold) if counted => hold.copies += 1,
            Some(_) => {}
            None => list.push(Hold { name, layer, copies: 1 }),
        }
    }

    /// Takes one copy of a listed block away, if there is one. `own` is the block's own name, if it has one.
    pub(crate) fn remove(
        &mut self,
        rank: RankSlot,
        place: Place,
        name: SequenceHash,
        layer: Layer,
        own: Option<SequenceHash>,
    ) -> Option<Released> {
        let list = self.lists.get_mut(&(rank, place))?;
        let index = list.iter().position(|hold| (hold.name, hold.layer) == (name, layer))?;
        list[index].copies -= 1;
        if list[index].copies == 0 {
            list.remove(index);
        }
        let released = Released {
            layer_ended: list.iter().all(|hold| hold.layer != layer),
            name_ended: list.iter().all(|hold| hold.name != name),
            unlisted: list.iter().all(|hold| Some(hold.name) == own && hold.copies == 1),
        };
        if released.unlisted {
            self.lists.remove(&(rank, place));
        }
        Some(released)
    }

    /// Takes away everything that a rank has listed, and returns under which names it held what.
    pub(crate) fn remove_rank(&mut self, rank: RankSlot) -> Vec<(SequenceHash, Place)> {
        let lists = self.lists.extract_if(|&(other, _), _| other == rank);
        lists.flat_map(|((_, place), list)| list.into_iter().map(move |hold| (hold.name, place))).collect()
    }
}
