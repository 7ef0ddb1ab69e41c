//! One rank's cache of blocks: evicts what has not been used for longest, and of a prompt its end first.

use std::collections::{HashMap, VecDeque};

use crate::workload::Number;

/// A cache with room for so many blocks.
pub(crate) struct Cache {
    room: usize,
    /// When each block was last used.
    held: HashMap<Number, u64>,
    /// Uses in order; one that is not a block's last is passed over.
    uses: VecDeque<(Number, u64)>,
    clock: u64,
}

impl Cache {
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Blocks held.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn new(room: usize) -> Cache {
        Cache { room, held: HashMap::new(), uses: VecDeque::new(), clock: 0 }
    }

    /// Uses the blocks of a prompt, which fits. Returns how many of them were held, and what has gone for the others.
    pub(crate) fn serve(&mut self, prompt: &[Number]) -> (usize, Vec<Number>) {
        let held = prompt.iter().take_while(|number| self.held.contains_key(number)).count();
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
        (held, evicted)
    }
}
