//! Hashes the blocks of one seed: what XXH3-64 makes of the seed is made once, not for every block.
//!
//! Why long blocks are not left to a library, with figures: docs/decisions/0002-hashing.md.

use pulp::{Arch, Simd, WithSimd};
use smallvec::SmallVec;
use xxhash_rust::{
    const_xxh3::const_custom_default_secret,
    xxh3::{xxh3_64_with_secret, xxh3_64_with_seed},
};

use super::{BlockHash, Seed, keys::Keys};

/// The longest input, in bytes, that XXH3-64 hashes with the seed itself. Beyond it uses a secret made of the seed.
const SHORT: usize = 240;
/// The secret of seed 0. Any other is this one with the seed added to every other word, and subtracted from the rest.
const DEFAULT_SECRET: [u8; 192] = const_custom_default_secret(0);

/// Hashes blocks with one [`Seed`].
///
/// Making one takes about as long as hashing one block; whoever hashes several blocks of a seed keeps it.
#[derive(Clone, Debug)]
pub struct BlockHasher {
    seed: Seed,
    secret: [u8; 192],
    keys: Keys,
}

impl BlockHasher {
    /// A hasher of blocks with this seed.
    #[must_use]
    pub fn new(seed: Seed) -> BlockHasher {
        let mut secret = DEFAULT_SECRET;
        for [added, subtracted] in secret.as_chunks_mut::<8>().0.as_chunks_mut::<2>().0 {
            *added = u64::from_le_bytes(*added).wrapping_add(seed.0).to_le_bytes();
            *subtracted = u64::from_le_bytes(*subtracted).wrapping_sub(seed.0).to_le_bytes();
        }
        BlockHasher { seed, keys: Keys::of(&secret), secret }
    }

    /// Hashes one block: XXH3-64 over the tokens and then the sorted hashes of the media in the block, all
    /// little-endian, seeded with the chain's [`Seed`]. Source: dynamo-kv-router 1.6.1.
    ///
    /// `media` is empty for plain text; its order does not matter.
    #[must_use]
    pub fn hash(&self, tokens: &[u32], media: &[u64]) -> BlockHash {
        if media.is_empty() && cfg!(target_endian = "little") {
            return self.hash_bytes(bytemuck::cast_slice(tokens));
        }
        let mut sorted: SmallVec<[u64; 8]> = SmallVec::from_slice(media);
        sorted.sort_unstable();
        let mut bytes: SmallVec<[u8; 512]> = SmallVec::new();
        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        bytes.extend(sorted.iter().flat_map(|hash| hash.to_le_bytes()));
        self.hash_bytes(&bytes)
    }

    /// Hashes blocks of plain text, as many as `hashes` has room for and `tokens` has: block `i` is the `window`
    /// tokens from `i * stride` on. Both are at least 1.
    pub fn hash_blocks(&self, tokens: &[u32], stride: usize, window: usize, hashes: &mut [BlockHash]) {
        let blocks = Blocks { tokens, stride, window, hashes };
        match window {
            // Lengths that are common and known to the compiler: 0.7 of the time.
            16 => blocks.hash(|block| self.hash_array::<16>(block)),
            32 => blocks.hash(|block| self.hash_array::<32>(block)),
            _ if Keys::SHORT.contains(&window) => blocks.hash(|block| self.keys.hash_short(block)),
            _ if Keys::LONG.contains(&window) => {
                Arch::new().dispatch(LongBlocks { keys: &self.keys, blocks });
            }
            _ => blocks.hash(|block| self.hash(block, &[]).0),
        }
    }

    #[inline(always)]
    fn hash_array<const LENGTH: usize>(&self, block: &[u32]) -> u64 {
        block.first_chunk::<LENGTH>().map_or(0, |block| self.keys.hash_short(block))
    }

    #[inline]
    fn hash_bytes(&self, bytes: &[u8]) -> BlockHash {
        BlockHash(match bytes.len() {
            ..=SHORT => xxh3_64_with_seed(bytes, self.seed.0),
            _ => xxh3_64_with_secret(bytes, &self.secret),
        })
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
