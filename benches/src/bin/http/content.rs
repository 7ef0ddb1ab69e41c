//! What is asked about, and who holds how much of it.

use kvtide_events::{Hashing, sequence_hashes};
use kvtide_radix::{BlockHash, Seed};
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Tokens of a block.
pub(crate) const BLOCK_SIZE: u32 = 64;
/// Tokens of a prompt.
pub(crate) const PROMPT_TOKENS: usize = 100_000;
/// Workers, each an engine by itself.
pub(crate) const WORKERS: u64 = 8;
const PROMPTS: usize = 16;
/// As many as Llama 3 has.
const VOCABULARY: u32 = 128_256;

/// A prompt.
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// Hashes of its complete blocks.
    pub(crate) hashes: Vec<u64>,
    /// What engines call them.
    pub(crate) names: Vec<u64>,
    number: usize,
}

impl Prompt {
    /// All that are asked about.
    pub(crate) fn all() -> Vec<Prompt> {
        let mut random = StdRng::seed_from_u64(1);
        let hashing = Hashing { block_size: BLOCK_SIZE, eagle: false };
        let prompt = |number| {
            let tokens: Vec<u32> = (0..PROMPT_TOKENS).map(|_| random.random_range(0..VOCABULARY)).collect();
            let hashes: Vec<BlockHash> = hashing.block_hashes(&tokens, &[], Seed::PLAIN).collect();
            let names = sequence_hashes(hashes.iter().copied()).map(|name| name.0).collect();
            Prompt { tokens, hashes: hashes.into_iter().map(|hash| hash.0).collect(), names, number }
        };
        (0..PROMPTS).map(prompt).collect()
    }

    /// Blocks of it that a worker (from 1) holds: each prompt is with four of eight workers, by quarters.
    pub(crate) fn held_blocks(&self, worker_id: u64) -> usize {
        let quarters = (self.number + usize::try_from(worker_id).unwrap_or(0)) % 8;
        self.hashes.len() * quarters.min(4) / 4 * usize::from(quarters <= 4)
    }
}
