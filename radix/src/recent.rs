//! Names of blocks that a rank no longer holds, kept bound to their content for a bounded while.
//!
//! A clear can end every holder of a block just before a lower tier announces the same name again, without saying
//! what it contains.

use std::{collections::VecDeque, hash::BuildHasher};

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::{SequenceHash, pages::Place};

/// One rank's recent names.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// Oldest first. A name that has been taken out since leaves a gap.
    names: VecDeque<(SequenceHash, Option<Place>)>,
    /// The number of the oldest. The others follow.
    first: u32,
    /// Numbers by name: 21 bytes a name with the list, where a map from names to places would need 40.
    numbers: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Recent {
    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    pub(crate) fn get(&self, name: SequenceHash) -> Option<Place> {
        let is_it = |&number: &u32| self.names[self.index(number)].0 == name;
        let number = *self.numbers.find(self.hasher.hash_one(name), is_it)?;
        self.names[self.index(number)].1
    }

    /// All names that are kept, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SequenceHash, Place)> {
        self.names.iter().filter_map(|&(name, place)| Some((name, place?)))
    }

    fn index(&self, number: u32) -> usize {
        number.wrapping_sub(self.first) as usize
    }

    /// Keeps a name that is not kept yet. Returns the block that is no longer kept: the oldest name's, if there are
    /// more than `limit`.
    pub(crate) fn insert(&mut self, name: SequenceHash, place: Place, limit: usize) -> Option<Place> {
        if self.names.len() > 2 * limit + 16 {
            self.close_gaps();
        }
        self.names.push_back((name, Some(place)));
        self.number_last();
        if self.numbers.len() > limit { self.drop_oldest() } else { None }
    }

    /// Enters the last name into the table.
    fn number_last(&mut self) {
        let Recent { names, first, numbers, hasher } = self;
        let number = first.wrapping_add(names.len() as u32 - 1);
        let hash = |&number: &u32| hasher.hash_one(names[number.wrapping_sub(*first) as usize].0);
        numbers.insert_unique(hash(&number), number, hash);
    }

    fn close_gaps(&mut self) {
        let names = std::mem::take(&mut self.names);
        self.numbers.clear();
        for (name, place) in names {
            if place.is_some() {
                self.names.push_back((name, place));
                self.number_last();
            }
        }
    }

    fn drop_oldest(&mut self) -> Option<Place> {
        while let Some(&(name, place)) = self.names.front() {
            if place.is_some() {
                self.remove(name);
                return place;
            }
            self.names.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        None
    }

    /// Takes a name out, since its block is held again.
    pub(crate) fn remove(&mut self, name: SequenceHash) -> Option<Place> {
        let Recent { names, first, numbers, hasher } = self;
        let index = |number: u32| number.wrapping_sub(*first) as usize;
        let found =
            numbers.find_entry(hasher.hash_one(name), |&number| names[index(number)].0 == name).ok()?;
        let (number, _) = found.remove();
        names[index(number)].1.take()
    }

    /// Takes all names out.
    pub(crate) fn drain(&mut self) -> Vec<Place> {
        self.numbers.clear();
        self.names.drain(..).filter_map(|(_, place)| place).collect()
    }
}
