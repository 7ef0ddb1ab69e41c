//! Chains: what all blocks behind one first block have in common. Every run belongs to one.

use slab::Slab;

use crate::{Seed, run::RunId};

#[derive(Debug)]
struct Chain {
    /// The seed of its block hashes; none where only stores with ready hashes have spoken of it.
    seed: Option<Seed>,
    runs: u32,
}

/// All chains of a tree, each alive while a run belongs to it.
#[derive(Debug, Default)]
pub(crate) struct Chains {
    chains: Slab<Chain>,
    /// Each run's chain, by the run's number.
    of_runs: Vec<u32>,
}

impl Chains {
    fn key(&self, run: RunId) -> usize {
        self.of_runs[run.0 as usize] as usize
    }

    fn set(&mut self, run: RunId, key: usize) {
        if run.0 as usize >= self.of_runs.len() {
            self.of_runs.resize(run.0 as usize + 1, 0);
        }
        self.of_runs[run.0 as usize] = key as u32;
    }

    /// A chain of its own for a run without a parent.
    pub(crate) fn start(&mut self, run: RunId) {
        let key = self.chains.insert(Chain { seed: None, runs: 1 });
        self.set(run, key);
    }

    /// The run belongs to the chain of `other`.
    pub(crate) fn join(&mut self, run: RunId, other: RunId) {
        let key = self.key(other);
        self.chains[key].runs += 1;
        self.set(run, key);
    }

    /// The run has gone.
    pub(crate) fn leave(&mut self, run: RunId) {
        let key = self.key(run);
        self.chains[key].runs -= 1;
        if self.chains[key].runs == 0 {
            self.chains.remove(key);
        }
        if self.chains.is_empty() {
            *self = Chains::default();
        }
    }

    /// The seed of the run's chain.
    pub(crate) fn seed(&self, run: RunId) -> Option<Seed> {
        self.chains[self.key(run)].seed
    }

    /// States the seed of the run's chain. The first statement stays.
    pub(crate) fn state_seed(&mut self, run: RunId, seed: Seed) {
        let key = self.key(run);
        self.chains[key].seed.get_or_insert(seed);
    }
}
