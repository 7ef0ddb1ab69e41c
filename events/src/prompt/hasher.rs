//! A conversation's block hashes, kept while it grows, so that a turn costs what it adds.

use kvtide_radix::{BlockHash, BlockHasher, Seed};

use super::{BlockMedia, Hashing};

/// Hashes a prompt that grows at its end.
///
/// It keeps the hashes, 8 bytes a block, and the tokens of the block that is not complete; a fork of a conversation is
/// a clone. It does not find out by itself how far a new prompt agrees with the last: comparing tokens costs as much
/// as hashing them, and four bytes a token to keep. Whoever knows where a conversation was edited says so by
/// [`PromptHasher::truncate`].
///
/// ```
/// use kvtide_events::{Hashing, PromptHasher};
/// use kvtide_radix::Seed;
///
/// let hashing = Hashing { block_size: 64, eagle: false };
/// let mut prompt: Vec<u32> = (0..200).collect();
/// let mut conversation = PromptHasher::new(hashing, Seed::PLAIN);
/// conversation.extend(&prompt, &[]);
/// assert_eq!(conversation.hashes().len(), 3);
///
/// // The last turn is taken back, and another one asked instead.
/// prompt.truncate(150);
/// prompt.extend(1000..1100);
/// let kept = conversation.truncate(150);
/// assert_eq!(kept, 128);
/// conversation.extend(&prompt[kept..], &[]);
/// assert!(conversation.hashes().iter().copied().eq(hashing.block_hashes(&prompt, &[], Seed::PLAIN)));
/// ```
#[derive(Clone, Debug)]
pub struct PromptHasher {
    hashing: Hashing,
    hasher: BlockHasher,
    hashes: Vec<BlockHash>,
    /// The tokens behind the last complete block; under EAGLE the first of them is hashed with that block already.
    rest: Vec<u32>,
}

impl PromptHasher {
    /// A hasher of an empty prompt.
    #[must_use]
    pub fn new(hashing: Hashing, seed: Seed) -> PromptHasher {
        PromptHasher { hashing, hasher: BlockHasher::new(seed), hashes: Vec::new(), rest: Vec::new() }
    }

    /// The hashes of all complete blocks, in order.
    #[must_use]
    pub fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    /// How many tokens the prompt has.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.hashes.len() * self.hashing.block_size as usize + self.rest.len()
    }

    /// Appends tokens.
    ///
    /// `media` are those of the whole prompt, block by block from its start. A medium has to be among them from the call
    /// that brings its first token until its last block is complete.
    pub fn extend(&mut self, tokens: &[u32], media: &[BlockMedia]) {
        let window = self.hashing.tokens_per_block();
        let mut tokens = tokens;
        if !self.rest.is_empty() {
            let taken = tokens.len().min(window - self.rest.len());
            self.rest.extend_from_slice(&tokens[..taken]);
            if self.rest.len() < window {
                return;
            }
            let mut hash = [BlockHash(0)];
            self.hashing.hash(&self.hasher, &self.rest, self.hashes.len(), media, &mut hash);
            self.hashes.extend(hash);
            self.rest.clear();
            // Under EAGLE the last token that was taken is the next block's first.
            tokens = &tokens[taken - usize::from(self.hashing.eagle)..];
        }
        let (first, blocks) = (self.hashes.len(), self.hashing.blocks(tokens.len()));
        self.hashes.resize(first + blocks, BlockHash(0));
        self.hashing.hash(&self.hasher, tokens, first, media, &mut self.hashes[first..]);
        self.rest.extend_from_slice(&tokens[blocks * self.hashing.block_size as usize..]);
    }

    /// Takes back what is behind the first so many tokens. Returns how many tokens are still there: often fewer,
    /// since those of complete blocks are not kept. The prompt is to be extended from there.
    pub fn truncate(&mut self, tokens: usize) -> usize {
        if tokens < self.tokens() {
            let blocks = self.hashing.blocks(tokens);
            if blocks < self.hashes.len() {
                self.hashes.truncate(blocks);
                self.rest.clear();
            } else {
                self.rest.truncate(tokens - blocks * self.hashing.block_size as usize);
            }
        }
        self.tokens()
    }
}
