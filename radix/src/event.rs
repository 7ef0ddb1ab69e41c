//! What a rank can announce: the small vocabulary into which every format is decoded and which the tree applies.

use serde::{Deserialize, Serialize};

use smallvec::{SmallVec, smallvec};

use crate::{BlockHash, BlockHasher, Layer, Seed, SequenceHash};

/// One thing that a rank announced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The rank holds further blocks.
    Stored(Stored),
    /// The rank no longer holds some blocks in one layer.
    Removed(Removed),
    /// The rank holds nothing any more, in any layer.
    Cleared,
}

/// Blocks that a rank now holds in one layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Where it holds them.
    pub layer: Layer,
    /// The block in front of the first, by the rank's own name; none at the start of a prompt.
    pub parent: Option<SequenceHash>,
    /// The blocks, each the child of the one before.
    pub blocks: Blocks,
}

/// Blocks, with as much of their content as the announcement gives.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Blocks {
    /// Names and block hashes. Binds the names to content.
    Hashed(Vec<Block>),
    /// Names and tokens, which become block hashes once the chain's seed is known. Binds the names to content.
    Tokens(TokenBlocks),
    /// Names alone: says nothing of content, and waits for the store that does.
    Named(Vec<SequenceHash>),
}

impl Blocks {
    /// How many blocks these are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Blocks::Hashed(blocks) => blocks.len(),
            Blocks::Tokens(blocks) => blocks.names.len(),
            Blocks::Named(names) => names.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A block's name and content.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Block {
    /// The rank's own name for the block in its prefix.
    pub name: SequenceHash,
    /// The hash of the block's content.
    pub content: BlockHash,
}

/// Blocks whose content is still tokens. The seed of a chain stands only in its first block, so a block behind
/// an unknown parent cannot be hashed before that parent is known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TokenBlocks {
    /// The rank's own names.
    pub names: Vec<SequenceHash>,
    /// The tokens of all blocks, `tokens_per_block` for each. Under EAGLE a block's last token is the next
    /// one's first, and stands in both.
    pub tokens: Vec<u32>,
    /// Tokens hashed for one block, at least 1.
    pub tokens_per_block: usize,
    /// The seed if the first block starts a chain. A block behind a parent inherits the parent's.
    pub root_seed: Seed,
    /// Hashes of media, by the index of the block that they are in, ascending.
    pub media: Vec<(usize, u64)>,
}

impl TokenBlocks {
    /// Hashes every block with the seed of its chain.
    #[must_use]
    pub fn hash(&self, seed: Seed) -> Vec<Block> {
        let tokens = self.tokens.chunks_exact(self.tokens_per_block);
        // A hasher is worth its making from the second block on.
        if self.media.is_empty() && self.names.len() > 1 {
            let blocks = self.names.len().min(tokens.len());
            let mut contents: SmallVec<[BlockHash; 32]> = smallvec![BlockHash(0); blocks];
            let size = self.tokens_per_block;
            BlockHasher::new(seed).hash_blocks(&self.tokens, size, size, &mut contents);
            let blocks = self.names.iter().zip(contents);
            return blocks.map(|(&name, content)| Block { name, content }).collect();
        }
        let mut media = Vec::new();
        let mut rest = self.media.as_slice();
        let blocks = self.names.iter().zip(tokens).enumerate();
        let block = |(index, (&name, tokens)): (usize, (&SequenceHash, &[u32]))| {
            let here = rest.partition_point(|&(block, _)| block <= index);
            media.clear();
            media.extend(rest[..here].iter().map(|&(_, hash)| hash));
            rest = &rest[here..];
            Block { name, content: BlockHash::of(tokens, &media, seed) }
        };
        blocks.map(block).collect()
    }
}

/// Blocks that a rank no longer holds in one layer. What lies behind them stays held.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Removed {
    /// Where it no longer holds them.
    pub layer: Layer,
    /// The blocks, by the rank's own names, in any order.
    pub names: Vec<SequenceHash>,
}
