//! Hashes the blocks of one seed: what XXH3-64 makes of the seed is made once, not for every block.
//!
//! Why long blocks are not left to a library, with figures: docs/decisions/0002-hashing.md.

use pulp::{Arch, Simd, WithSimd};

use super::{BlockHash, Seed, keys::Keys};

/// Hashes blocks with one [`Seed`].
///
/// Making one takes about as long as hashing one block: whoever hashes several blocks of a seed keeps it, and
/// [`BlockHash::of`] is for a single one.
#[derive(Clone, Debug)]
pub struct BlockHasher {
    seed: Seed,
    keys: Keys,
}

impl BlockHasher {
    /// A hasher of blocks with this seed.
    #[must_use]
    pub fn new(seed: Seed) -> BlockHasher {
        BlockHasher { seed, keys: Keys::of(seed) }
    }

    /// Hashes one block, as [`BlockHash::of`] does.
    #[must_use]
    pub fn hash(&self, tokens: &[u32], media: &[u64]) -> BlockHash {
        BlockHash::of(tokens, media, self.seed)
    }

    /// Hashes blocks of plain text, as many as `hashes` has room for and `tokens` has: block `i` is the `window`
    /// tokens from `i * stride` on. Both are at least 1.
    pub fn hash_blocks(&self, tokens: &[u32], stride: usize, window: usize, hashes: &mut [BlockHash]) {
        let blocks = Blocks { tokens, stride, window, hashes };
        match (stride, window) {
            // Lengths that are common and known to the compiler: 0.8 of the time.
            (16, 16) => blocks.hash_arrays(|block: &[u32; 16]| self.keys.hash_short(block)),
            (32, 32) => blocks.hash_arrays(|block: &[u32; 32]| self.keys.hash_short(block)),
            _ if Keys::SHORT.contains(&window) => blocks.hash(|block| self.keys.hash_short(block)),
            _ if Keys::LONG.contains(&window) => {
                Arch::new().dispatch(LongBlocks { keys: &self.keys, blocks });
            }
            _ => blocks.hash(|block| self.hash(block, &[]).0),
        }
    }
}

/// Blocks to be hashed.
struct Blocks<'a> {
    tokens: &'a [u32],
    stride: usize,
    window: usize,
    hashes: &'a mut [BlockHash],
}

impl Blocks<'_> {
    #[inline(always)]
    fn hash(self, hash: impl Fn(&[u32]) -> u64) {
        let mut rest = self.tokens;
        for one in self.hashes {
            let Some(block) = rest.get(..self.window) else { break };
            *one = BlockHash(hash(block));
            rest = rest.get(self.stride..).unwrap_or_default();
        }
    }

    /// The same for blocks that do not overlap.
    #[inline(always)]
    fn hash_arrays<const LENGTH: usize>(self, hash: impl Fn(&[u32; LENGTH]) -> u64) {
        for (one, block) in self.hashes.iter_mut().zip(self.tokens.as_chunks().0) {
            *one = BlockHash(hash(block));
        }
    }
}

/// Blocks of a length in [`Keys::LONG`], compiled for each of the processor's sets of vector instructions.
struct LongBlocks<'a> {
    keys: &'a Keys,
    blocks: Blocks<'a>,
}

impl WithSimd for LongBlocks<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.blocks.hash(|block| self.keys.hash_long(block));
    }
}
