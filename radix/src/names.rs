//! From a rank's name for a block to the block.
//!
//! Ranks mostly agree on names: one table serves all of them, and a block's own name lies beside its content. What
//! differs (a second name for one content, a second content under one name) is a rank's alias.
//!
//! Invariants:
//! - N1: the table leads from a name to a place exactly if the place's own name is that name.
//! - N2: an alias exists exactly while its rank holds the block under it.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashMap};

use crate::{
    RankSlot, SequenceHash,
    pages::{Pages, Place},
    parted::Parted,
};

/// All names of a tree.
#[derive(Default)]
pub(crate) struct Names {
    table: Parted<Tagged, 256>,
    aliases: HashMap<(RankSlot, SequenceHash), Place>,
    // Names come from outside. A hash that is not known there keeps them from being made to collide.
    hasher: DefaultHashBuilder,
}

impl Names {
    /// The block whose own name this is.
    pub(crate) fn find(&self, name: SequenceHash, pages: &Pages) -> Option<Place> {
        let hash = self.hasher.hash_one(name);
        let is_it = |tagged: &Tagged| tagged.has_tag_of(hash) && pages.own_name(tagged.place()) == Some(name);
        self.table.find(hash, is_it).map(Tagged::place)
    }

    /// Gives a block that has none its own name. Whether it could: another block may have it.
    pub(crate) fn give(&mut self, name: SequenceHash, place: Place, pages: &mut Pages) -> bool {
        if !Pages::can_name(name) {
            return false;
        }
        let hash = self.hasher.hash_one(name);
        let is_it = |other: &Tagged| other.has_tag_of(hash) && pages.own_name(other.place()) == Some(name);
        let hash_of = |other: &Tagged| hash_of(&self.hasher, other.place(), pages);
        let new = self.table.insert_if_new(hash, Tagged::new(place, hash), is_it, hash_of);
        if new {
            pages.set_own_name(place, name);
        }
        new
    }

    /// Forgets the own name of a block that leaves the tree.
    pub(crate) fn remove(&mut self, place: Place, pages: &Pages) {
        let Some(name) = pages.own_name(place) else { return };
        let hash_of = |other: &Tagged| hash_of(&self.hasher, other.place(), pages);
        self.table.remove(self.hasher.hash_one(name), |other| other.place() == place, hash_of);
    }

    pub(crate) fn alias(&self, rank: RankSlot, name: SequenceHash) -> Option<Place> {
        self.aliases.get(&(rank, name)).copied()
    }

    pub(crate) fn add_alias(&mut self, rank: RankSlot, name: SequenceHash, place: Place) {
        self.aliases.insert((rank, name), place);
    }

    /// The rank holds the block at `place` under that name no longer, or no longer as an alias.
    pub(crate) fn remove_alias(&mut self, rank: RankSlot, name: SequenceHash, place: Place) {
        if self.alias(rank, name) == Some(place) {
            self.aliases.remove(&(rank, name));
        }
    }

    pub(crate) fn remove_aliases_of(&mut self, rank: RankSlot) {
        self.aliases.retain(|&(other, _), _| other != rank);
    }
}

/// A place, with some bits of its name's hash that the table does not use: of strangers' names, which are another line of
/// memory, 7 in 8 need not be read.
#[derive(Clone, Copy)]
struct Tagged(u32);

impl Tagged {
    const TAG_SHIFT: u32 = Place::BITS;

    fn new(place: Place, hash: u64) -> Tagged {
        Tagged(place.0 | Self::tag_of(hash) << Self::TAG_SHIFT)
    }

    fn tag_of(hash: u64) -> u32 {
        (hash >> 48) as u32 & (u32::MAX >> Self::TAG_SHIFT)
    }

    fn has_tag_of(self, hash: u64) -> bool {
        self.0 >> Self::TAG_SHIFT == Self::tag_of(hash)
    }

    fn place(&self) -> Place {
        Place(self.0 & (u32::MAX >> (u32::BITS - Self::TAG_SHIFT)))
    }
}

/// The hash under which a place is in the table (N1).
fn hash_of(hasher: &DefaultHashBuilder, place: Place, pages: &Pages) -> u64 {
    pages.own_name(place).map_or(0, |name| hasher.hash_one(name))
}
