//! A hash table in parts that grow one by one, so that no change waits for the whole table to grow.
//!
//! Growing reads every entry: with 3 million the slowest event took 60 ms with one part and 7 ms with 256.

use hashbrown::{HashTable, hash_table::Entry};

/// Entries of small size in `PARTS` parts, a power of two.
pub(crate) struct Parted<T, const PARTS: usize> {
    /// None before the first entry.
    parts: Vec<HashTable<T>>,
}

impl<T, const PARTS: usize> Default for Parted<T, PARTS> {
    fn default() -> Self {
        Parted { parts: Vec::new() }
    }
}

impl<T, const PARTS: usize> Parted<T, PARTS> {
    /// The part that a hash belongs to. The bits in the middle tell it: hash tables use those at both ends.
    fn part(hash: u64) -> usize {
        (hash >> 32) as usize % PARTS
    }

    fn part_mut(&mut self, hash: u64) -> &mut HashTable<T> {
        if self.parts.is_empty() {
            self.parts.resize_with(PARTS, HashTable::new);
        }
        &mut self.parts[Self::part(hash)]
    }

    pub(crate) fn find(&self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&T> {
        self.parts.get(Self::part(hash))?.find(hash, is_it)
    }

    pub(crate) fn entry(
        &mut self,
        hash: u64,
        is_it: impl FnMut(&T) -> bool,
        hash_of: impl Fn(&T) -> u64,
    ) -> Entry<'_, T> {
        self.part_mut(hash).entry(hash, is_it, hash_of)
    }

    /// Puts in what is not in yet.
    pub(crate) fn insert(&mut self, hash: u64, value: T, hash_of: impl Fn(&T) -> u64) {
        self.part_mut(hash).insert_unique(hash, value, hash_of);
    }

    pub(crate) fn remove(&mut self, hash: u64, is_it: impl FnMut(&T) -> bool, hash_of: impl Fn(&T) -> u64) {
        let part = self.part_mut(hash);
        if let Ok(found) = part.find_entry(hash, is_it) {
            found.remove();
        }
        // Memory is given back after much has gone.
        if part.is_empty() {
            *part = HashTable::new();
        } else if part.capacity() > 8 * part.len().max(16) {
            part.shrink_to(2 * part.len(), hash_of);
        }
    }
}
