//! One rank's caches: the GPU's, and behind it host memory and disk. Each evicts what has not been used for longest, and of
//! a prompt its end first.

use std::collections::VecDeque;

use kvtide_radix::{BlockHash, SequenceHash, Tier};
use rustc_hash::FxHashMap;

/// A block of a prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cli) struct Piece {
    /// What it and all in front of it are called.
    pub(in crate::cli) name: SequenceHash,
    pub(in crate::cli) content: BlockHash,
    /// What its tokens are made from.
    pub(in crate::cli) text: u64,
}

/// What has changed in a rank's caches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cli) enum Change {
    /// Consecutive blocks of a prompt are held.
    Stored { tier: Tier, parent: Option<SequenceHash>, pieces: Vec<Piece> },
    /// Blocks are held no more.
    Removed { tier: Tier, names: Vec<SequenceHash> },
}

/// The tiers that a rank may have, the fastest first.
pub(in crate::cli) const TIERS: [Tier; 3] = [Tier::Gpu, Tier::Host, Tier::Disk];

/// What a rank holds.
pub(in crate::cli) struct Caches {
    /// For how many blocks each tier has room.
    rooms: [usize; 3],
    held: FxHashMap<SequenceHash, Entry>,
    counts: [usize; 3],
    /// Uses in order, a tier; one that is not a block's last there is passed over.
    uses: [VecDeque<(SequenceHash, u64)>; 3],
    clock: u64,
}

struct Entry {
    piece: Piece,
    parent: Option<SequenceHash>,
    /// When it was last used in each tier; 0 where it is not held.
    used: [u64; 3],
}

impl Caches {
    pub(in crate::cli) fn new(rooms: [usize; 3]) -> Caches {
        Caches { rooms, held: FxHashMap::default(), counts: [0; 3], uses: Default::default(), clock: 0 }
    }

    fn holds(&self, name: SequenceHash, tier: usize) -> bool {
        self.held.get(&name).is_some_and(|entry| entry.used[tier] > 0)
    }

    /// Whether the GPU holds a block.
    pub(in crate::cli) fn has(&self, name: SequenceHash) -> bool {
        self.holds(name, 0)
    }

    /// Uses the blocks of a prompt, or as many as there is room for: what the GPU lacks is stored, once what has to go for it
    /// is removed.
    pub(in crate::cli) fn serve(&mut self, prompt: &[Piece], changes: &mut Vec<Change>) {
        let prompt = &prompt[..prompt.len().min(self.rooms[0])];
        let mut lacking: Vec<(usize, usize)> = Vec::new();
        for (index, piece) in prompt.iter().enumerate() {
            match lacking.last_mut() {
                _ if self.has(piece.name) => {}
                Some((_, end)) if *end == index => *end += 1,
                Some(_) | None => lacking.push((index, index + 1)),
            }
        }
        // Backwards, as engines free a finished request: no block is ever older than one behind it, so that none is evicted
        // before those behind it.
        for index in (0..prompt.len()).rev() {
            let parent = index.checked_sub(1).map(|before| prompt[before].name);
            self.touch(prompt[index], parent, 0);
        }
        self.shrink(0, self.rooms[0], changes);
        changes.extend(lacking.into_iter().map(|(start, end)| Change::Stored {
            tier: Tier::Gpu,
            parent: start.checked_sub(1).map(|before| prompt[before].name),
            pieces: prompt[start..end].to_vec(),
        }));
    }

    /// A prompt that is being served grows by its last block. Nothing is stored where the block in front has gone, or the
    /// prompt is larger than the cache.
    pub(in crate::cli) fn grow(&mut self, prompt: &[Piece], changes: &mut Vec<Change>) {
        let Some((&last, front)) = prompt.split_last() else { return };
        let parent = front.last().map(|piece| piece.name);
        let goes_on = prompt.len() <= self.rooms[0] && parent.is_none_or(|parent| self.has(parent));
        if !goes_on || self.has(last.name) {
            return;
        }
        self.touch(last, parent, 0);
        // First: the block in front may be one that goes.
        changes.push(Change::Stored { tier: Tier::Gpu, parent, pieces: vec![last] });
        self.shrink(0, self.rooms[0], changes);
    }

    /// A prompt has been served: what is left of it counts as used now.
    pub(in crate::cli) fn free(&mut self, prompt: &[Piece]) {
        for index in (0..prompt.len()).rev() {
            if self.has(prompt[index].name) {
                let parent = index.checked_sub(1).map(|before| prompt[before].name);
                self.touch(prompt[index], parent, 0);
            }
        }
    }

    /// Evicts that part of the GPU's blocks.
    pub(in crate::cli) fn evict_part(&mut self, part: f64, changes: &mut Vec<Change>) {
        let left = (self.counts[0] as f64 * (1.0 - part)) as usize;
        self.shrink(0, left, changes);
    }

    /// Evicts one block of the GPU before its time. Returns whether it was held there.
    pub(in crate::cli) fn evict(&mut self, name: SequenceHash, changes: &mut Vec<Change>) -> bool {
        let held = self.has(name);
        if held {
            self.take(name, 0);
            changes.push(Change::Removed { tier: Tier::Gpu, names: vec![name] });
        }
        held
    }

    fn touch(&mut self, piece: Piece, parent: Option<SequenceHash>, tier: usize) {
        self.clock += 1;
        let entry = self.held.entry(piece.name).or_insert(Entry { piece, parent, used: [0; 3] });
        self.counts[tier] += usize::from(entry.used[tier] == 0);
        entry.used[tier] = self.clock;
        self.uses[tier].push_back((piece.name, self.clock));
        // A cache that never evicts would note uses for ever.
        if self.uses[tier].len() > 1024 + 4 * self.counts[tier] {
            let held = &self.held;
            let is_last = |&(name, when): &(SequenceHash, u64)| {
                held.get(&name).is_some_and(|entry| entry.used[tier] == when)
            };
            self.uses[tier].retain(is_last);
        }
    }

    /// A tier holds a block no more.
    fn take(&mut self, name: SequenceHash, tier: usize) {
        if let Some(entry) = self.held.get_mut(&name) {
            self.counts[tier] -= usize::from(entry.used[tier] > 0);
            entry.used[tier] = 0;
            if entry.used == [0; 3] {
                self.held.remove(&name);
            }
        }
    }

    /// Takes out what was not used for longest until no more than so many blocks are left. The next tier, if there is one, gets
    /// what goes.
    fn shrink(&mut self, tier: usize, left: usize, changes: &mut Vec<Change>) {
        let mut gone = Vec::new();
        let mut count = self.counts[tier];
        while count > left
            && let Some((name, when)) = self.uses[tier].pop_front()
        {
            if self.held.get(&name).is_some_and(|entry| entry.used[tier] == when) {
                gone.push(name);
                count -= 1;
            }
        }
        if gone.is_empty() {
            return;
        }
        let below = tier + 1;
        let offloads = below < TIERS.len() && self.rooms[below] > 0;
        if offloads {
            self.offload(&gone, below, changes);
        }
        for &name in &gone {
            self.take(name, tier);
        }
        changes.push(Change::Removed { tier: TIERS[tier], names: gone });
        if offloads {
            self.shrink(below, self.rooms[below], changes);
        }
    }

    /// What a tier gives up is held by the next one, while it is still held here: so every block that is stored has its parent
    /// somewhere in the rank. One whose parent has gone already is given up, since nobody could reach it.
    fn offload(&mut self, gone: &[SequenceHash], below: usize, changes: &mut Vec<Change>) {
        let mut runs: Vec<(Option<SequenceHash>, Vec<Piece>)> = Vec::new();
        // They go children first, and are stored parents first.
        for &name in gone.iter().rev() {
            let Some(&Entry { piece, parent, used }) = self.held.get(&name) else { continue };
            if parent.is_some_and(|parent| !self.held.contains_key(&parent)) {
                continue;
            }
            if used[below] > 0 {
                continue;
            }
            match runs.last_mut() {
                Some((_, pieces)) if pieces.last().map(|last| last.name) == parent && parent.is_some() => {
                    pieces.push(piece);
                }
                Some(_) | None => runs.push((parent, vec![piece])),
            }
        }
        for &name in gone {
            let Some(&Entry { piece, parent, .. }) = self.held.get(&name) else { continue };
            if parent.is_none_or(|parent| self.held.contains_key(&parent)) {
                self.touch(piece, parent, below);
            }
        }
        let tier = TIERS[below];
        changes.extend(runs.into_iter().map(|(parent, pieces)| Change::Stored { tier, parent, pieces }));
    }
}
