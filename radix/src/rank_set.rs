//! A set of rank slots: one bit each, in as many words as the highest slot needs.

use smallvec::SmallVec;

use crate::RankSlot;

const BITS: usize = u64::BITS as usize;

/// A set of ranks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct RankSet {
    // One word inline: up to 64 ranks need no allocation. Words behind the last bit are dropped.
    words: SmallVec<[u64; 1]>,
}

impl RankSet {
    fn position(slot: RankSlot) -> (usize, u64) {
        (slot.index() / BITS, 1 << (slot.index() % BITS))
    }

    pub(crate) fn contains(&self, slot: RankSlot) -> bool {
        let (word, bit) = Self::position(slot);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    pub(crate) fn insert(&mut self, slot: RankSlot) {
        let (word, bit) = Self::position(slot);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= bit;
    }

    /// Takes the rank out; whether it was there.
    pub(crate) fn remove(&mut self, slot: RankSlot) -> bool {
        let (word, bit) = Self::position(slot);
        let Some(found) = self.words.get_mut(word).filter(|word| **word & bit != 0) else { return false };
        *found &= !bit;
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    pub(crate) fn clear(&mut self) {
        self.words.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Becomes equal to `other`, keeping its memory.
    pub(crate) fn copy_from(&mut self, other: &RankSet) {
        self.words.clear();
        self.words.extend_from_slice(&other.words);
    }

    /// How many ranks are in one of the two sets only.
    pub(crate) fn difference_count(&self, other: &RankSet) -> usize {
        let length = self.words.len().max(other.words.len());
        let word = |set: &RankSet, index: usize| set.words.get(index).copied().unwrap_or(0);
        (0..length).map(|index| (word(self, index) ^ word(other, index)).count_ones() as usize).sum()
    }

    /// Keeps the ranks that are in `other` too and moves those that are not into `dropped`.
    pub(crate) fn keep(&mut self, other: &RankSet, dropped: &mut RankSet) {
        dropped.words.clear();
        for (index, word) in self.words.iter_mut().enumerate() {
            let kept = *word & other.words.get(index).copied().unwrap_or(0);
            dropped.words.push(*word ^ kept);
            *word = kept;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = RankSlot> {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                rest &= rest.checked_sub(1)?;
                // Slots are u16, so there are at most 1,024 words.
                u16::try_from(index * BITS + bit as usize).ok().map(RankSlot)
            })
        })
    }
}
