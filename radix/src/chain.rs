//! Chains: what all blocks behind one first block have in common.

use slab::Slab;

use crate::Seed;

/// A chain's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChainId(u32);

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
}

impl Chains {
    /// A chain for a run without a parent.
    pub(crate) fn start(&mut self) -> ChainId {
        ChainId(self.chains.insert(Chain { seed: None, runs: 1 }) as u32)
    }

    /// One more run belongs to the chain.
    pub(crate) fn join(&mut self, id: ChainId) -> ChainId {
        self.chains[id.0 as usize].runs += 1;
        id
    }

    /// One run less belongs to the chain.
    pub(crate) fn leave(&mut self, id: ChainId) {
        let chain = &mut self.chains[id.0 as usize];
        chain.runs -= 1;
        if chain.runs == 0 {
            self.chains.remove(id.0 as usize);
        }
    }

    pub(crate) fn seed(&self, id: ChainId) -> Option<Seed> {
        self.chains[id.0 as usize].seed
    }

    /// States the chain's seed. The first statement stays.
    pub(crate) fn state_seed(&mut self, id: ChainId, seed: Seed) {
        self.chains[id.0 as usize].seed.get_or_insert(seed);
    }
}
