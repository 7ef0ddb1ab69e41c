//! One rank's cache of blocks: evicts what has not been used for longest, and of a prompt its end first.

use std::{collections::VecDeque, ops::Range};

use hashbrown::HashMap;

use crate::workload::Number;

/// A cache with room for so many blocks.
pub struct Cache {
    room: usize,
    /// When each block was last used.
    held: HashMap<Number, u64>,
    /// Uses in order; one that is not a block's last is passed over.
    uses: VecDeque<(Number, u64)>,
    clock: u64,
}

/// What serving a prompt did to a cache.
pub struct Served {
    /// Stretches of the prompt that were not held.
    pub lacking: Vec<Range<usize>>,
    /// What has gone for them.
    pub evicted: Vec<Number>,
}

impl Cache {
    /// A cache that holds nothing.
    #[must_use]
    pub fn new(room: usize) -> Cache {
        Cache { room, held: HashMap::new(), uses: VecDeque::new(), clock: 0 }
    }

    /// For how many blocks it has room.
    #[must_use]
    pub fn room(&self) -> usize {
        self.room
    }

    /// Blocks held.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn holds(&self, number: Number) -> bool {
        self.held.contains_key(&number)
    }

    /// Leading blocks of a prompt that are held.
    pub(crate) fn reach(&self, prompt: &[Number]) -> usize {
        prompt.iter().take_while(|&&number| self.holds(number)).count()
    }

    /// Evicts one block before its time. Returns whether it was held.
    pub(crate) fn evict(&mut self, number: Number) -> bool {
        self.held.remove(&number).is_some()
    }

    /// Evicts everything, in no order.
    pub(crate) fn evict_all(&mut self) -> Vec<Number> {
        self.uses.clear();
        self.held.drain().map(|(number, _)| number).collect()
    }

    /// Uses the blocks of a prompt, which fits.
    pub fn serve(&mut self, prompt: &[Number]) -> Served {
        let mut lacking: Vec<Range<usize>> = Vec::new();
        for (index, &number) in prompt.iter().enumerate() {
            match lacking.last_mut() {
                _ if self.holds(number) => {}
                Some(stretch) if stretch.end == index => stretch.end += 1,
                Some(_) | None => lacking.push(index..index + 1),
            }
        }
        // Backwards, as engines free a finished request: no block is ever older than one behind it, so that none
        // is evicted before those behind it.
        for &number in prompt.iter().rev() {
            self.clock += 1;
            self.held.insert(number, self.clock);
            self.uses.push_back((number, self.clock));
        }
        let mut evicted = Vec::new();
        while self.held.len() > self.room {
            let Some((number, when)) = self.uses.pop_front() else { break };
            if self.held.get(&number) == Some(&when) {
                self.held.remove(&number);
                evicted.push(number);
            }
        }
        Served { lacking, evicted }
    }
}
