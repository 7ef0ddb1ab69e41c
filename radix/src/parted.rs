//! A hash table that, once it is large, grows part by part, so that no change waits for all of it to grow.
//!
//! Growing reads every entry: with 3 million the slowest event took 60 ms with one part and 7 ms with 256.

use hashbrown::{HashTable, hash_table::Entry};

/// From so many entries on there are parts. Fewer are found with one step less to memory.
const SPLIT_AT: usize = if cfg!(kvtide_loom) { 4 } else { 16_384 };

/// Small entries, in one part or in `PARTS`, a power of two.
pub(crate) struct Parted<T, const PARTS: usize> {
    /// All entries while there are no parts, and none after that.
    whole: HashTable<T>,
    parts: Vec<HashTable<T>>,
    len: usize,
}

impl<T, const PARTS: usize> Default for Parted<T, PARTS> {
    fn default() -> Self {
        Parted { whole: HashTable::new(), parts: Vec::new(), len: 0 }
    }
}

impl<T, const PARTS: usize> Parted<T, PARTS> {
    /// The part that a hash belongs to. The bits in the middle tell it: hash tables use those at both ends.
    fn part(&self, hash: u64) -> &HashTable<T> {
        self.parts.get((hash >> 32) as usize % PARTS).unwrap_or(&self.whole)
    }

    fn part_mut(&mut self, hash: u64) -> &mut HashTable<T> {
        self.parts.get_mut((hash >> 32) as usize % PARTS).unwrap_or(&mut self.whole)
    }

    pub(crate) fn find(&self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&T> {
        self.part(hash).find(hash, is_it)
    }

    /// Puts in what is not in yet.
    pub(crate) fn insert(&mut self, hash: u64, value: T, hash_of: impl Fn(&T) -> u64) {
        self.split(&hash_of);
        self.len += 1;
        self.part_mut(hash).insert_unique(hash, value, hash_of);
    }

    /// Puts a value in unless one that it is equal to is there. Whether it is in now.
    pub(crate) fn insert_if_new(
        &mut self,
        hash: u64,
        value: T,
        is_it: impl FnMut(&T) -> bool,
        hash_of: impl Fn(&T) -> u64,
    ) -> bool {
        self.split(&hash_of);
        match self.part_mut(hash).entry(hash, is_it, hash_of) {
            Entry::Occupied(_) => return false,
            Entry::Vacant(vacant) => vacant.insert(value),
        };
        self.len += 1;
        true
    }

    fn split(&mut self, hash_of: impl Fn(&T) -> u64) {
        if self.whole.len() < SPLIT_AT {
            return;
        }
        self.parts.resize_with(PARTS, HashTable::new);
        for value in std::mem::take(&mut self.whole) {
            let hash = hash_of(&value);
            self.part_mut(hash).insert_unique(hash, value, &hash_of);
        }
    }

    pub(crate) fn remove(&mut self, hash: u64, is_it: impl FnMut(&T) -> bool, hash_of: impl Fn(&T) -> u64) {
        let part = self.part_mut(hash);
        let Ok(found) = part.find_entry(hash, is_it) else { return };
        found.remove();
        // Memory is given back after much has gone.
        if part.capacity() > 8 * part.len().max(16) {
            part.shrink_to(2 * part.len(), hash_of);
        }
        self.len -= 1;
        if self.len == 0 {
            *self = Parted::default();
        }
    }
}
