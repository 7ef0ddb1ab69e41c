//! From a rank's name for a block to the block.
//!
//! Ranks mostly agree on names: one table serves all of them, and a block's own name lies beside its content. What
//! differs (a second name for one content, a second content under one name) is a rank's alias.
//!
//! Invariants:
//! - N1: the table leads from a name to a place exactly if the place's own name is that name.
//! - N2: an alias exists exactly while its rank holds the block under it.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable, hash_table::Entry};

use crate::{
    RankSlot, SequenceHash,
    pages::{Pages, Place},
};

/// Parts of the table. Each grows by itself, so that no event waits for the whole table to grow, which reads every
/// name: the slowest event took 7 ms instead of 60 with 3 million blocks. A power of two.
const PARTS: usize = 256;

/// All names of a tree.
pub(crate) struct Names {
    table: Box<[HashTable<Place>]>,
    aliases: HashMap<(RankSlot, SequenceHash), Place>,
    // Names come from outside. A hash that is not known there keeps them from being made to collide.
    hasher: DefaultHashBuilder,
}

impl Default for Names {
    fn default() -> Self {
        let table = std::iter::repeat_with(HashTable::new).take(PARTS).collect();
        Names { table, aliases: HashMap::new(), hasher: DefaultHashBuilder::default() }
    }
}

impl Names {
    /// A name's hash, and the part of the table that it belongs to. The bits in the middle tell it: hash tables use
    /// those at both ends.
    fn part(&self, name: SequenceHash) -> (u64, usize) {
        let hash = self.hasher.hash_one(name);
        (hash, (hash >> 32) as usize % PARTS)
    }

    /// The block whose own name this is.
    pub(crate) fn find(&self, name: SequenceHash, pages: &Pages) -> Option<Place> {
        let (hash, part) = self.part(name);
        self.table[part].find(hash, |&place| pages.own_name(place) == Some(name)).copied()
    }

    /// Gives a block that has none its own name. Whether it could: another block may have it.
    pub(crate) fn give(&mut self, name: SequenceHash, place: Place, pages: &mut Pages) -> bool {
        if !Pages::can_name(name) {
            return false;
        }
        let (hash, part) = self.part(name);
        let is_it = |&other: &Place| pages.own_name(other) == Some(name);
        let hash_of = |&other: &Place| hash_of(&self.hasher, other, pages);
        match self.table[part].entry(hash, is_it, hash_of) {
            Entry::Occupied(_) => return false,
            Entry::Vacant(vacant) => vacant.insert(place),
        };
        pages.set_own_name(place, name);
        true
    }

    /// Forgets the own name of a block that leaves the tree.
    pub(crate) fn remove(&mut self, place: Place, pages: &Pages) {
        let Some(name) = pages.own_name(place) else { return };
        let (hash, part) = self.part(name);
        let table = &mut self.table[part];
        if let Ok(found) = table.find_entry(hash, |&other| other == place) {
            found.remove();
        }
        // Memory is given back after many names have gone.
        if table.capacity() > 8 * table.len().max(16) {
            table.shrink_to(2 * table.len(), |&other| hash_of(&self.hasher, other, pages));
        }
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

/// The hash under which a place is in the table (N1).
fn hash_of(hasher: &DefaultHashBuilder, place: Place, pages: &Pages) -> u64 {
    pages.own_name(place).map_or(0, |name| hasher.hash_one(name))
}
