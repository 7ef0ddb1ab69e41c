//! From a prompt's tokens to its block hashes, as a router computes them.
//!
//! Source: dynamo-kv-router and dynamo-kv-hashing 1.6.1.

mod groups;
mod hasher;
mod media;

pub use groups::{BlockHashes, HashGroup, HashGroups};
pub use hasher::PromptHasher;
use kvtide_radix::{BlockHash, BlockHasher, Seed, SequenceHash};
pub use media::{BlockMedia, Media};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How a scope's prompts are cut and hashed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hashing {
    /// Tokens a block, at least 1.
    pub block_size: u32,
    /// Under EAGLE a block is hashed together with the token behind it.
    pub eagle: bool,
}

impl Hashing {
    /// How many complete blocks a prompt has. A partial last block does not count.
    #[must_use]
    pub fn blocks(self, tokens: usize) -> usize {
        (if self.eagle { tokens.saturating_sub(1) } else { tokens }) / self.block_size as usize
    }

    /// How many tokens that many blocks need.
    #[must_use]
    pub fn tokens(self, blocks: usize) -> usize {
        blocks.saturating_mul(self.block_size as usize) + usize::from(self.eagle && blocks > 0)
    }

    /// Tokens hashed for one block.
    #[must_use]
    pub fn tokens_per_block(self) -> usize {
        self.block_size as usize + usize::from(self.eagle)
    }

    /// The tokens that are hashed for each complete block, in order.
    pub fn windows(self, tokens: &[u32]) -> impl ExactSizeIterator<Item = &[u32]> {
        let (stride, window) = (self.block_size as usize, self.tokens_per_block());
        (0..self.blocks(tokens.len())).map(move |index| &tokens[index * stride..index * stride + window])
    }

    /// The hashes of the prompt's complete blocks, in order, a few at a time as they are asked for. `media` are those of
    /// its blocks; blocks behind the last have none.
    pub fn block_hashes<'a>(self, tokens: &'a [u32], media: &'a [BlockMedia], seed: Seed) -> BlockHashes<'a> {
        BlockHashes::new(self, tokens, media, seed)
    }

    /// The same hashes in groups, each computed when it is asked for: what
    /// [`View::overlap`](kvtide_radix::View::overlap) takes fastest.
    ///
    /// The first group is one block, so that a prompt whose start nobody holds costs no more.
    pub fn hash_groups<'a>(self, tokens: &'a [u32], media: &'a [BlockMedia], seed: Seed) -> HashGroups<'a> {
        HashGroups::new(self, tokens, media, seed)
    }

    /// Hashes blocks, as many as `hashes` has room for. `tokens` starts with the block of number `first`; `media` with that
    /// of number 0.
    fn hash(
        self,
        hasher: &BlockHasher,
        tokens: &[u32],
        first: usize,
        media: &[BlockMedia],
        hashes: &mut [BlockHash],
    ) {
        let (stride, window) = (self.block_size as usize, self.tokens_per_block());
        let media = media.get(first..).unwrap_or_default();
        let (with_media, plain) = hashes.split_at_mut(media.len().min(hashes.len()));
        hasher.hash_blocks(
            tokens.get(with_media.len() * stride..).unwrap_or_default(),
            stride,
            window,
            plain,
        );
        for ((hash, tokens), media) in with_media.iter_mut().zip(self.windows(tokens)).zip(media) {
            *hash = hasher.hash(tokens, media.hashes());
        }
    }
}

/// The names that Dynamo's router gives to blocks: a rolling hash over the block hashes.
pub fn sequence_hashes(blocks: impl IntoIterator<Item = BlockHash>) -> impl Iterator<Item = SequenceHash> {
    blocks.into_iter().scan(None, |parent, block| {
        let name = match *parent {
            None => block.0,
            Some(parent) => {
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&u64::to_le_bytes(parent));
                bytes[8..].copy_from_slice(&block.0.to_le_bytes());
                xxh3_64_with_seed(&bytes, Seed::PLAIN.0)
            }
        };
        *parent = Some(name);
        Some(SequenceHash(name))
    })
}
