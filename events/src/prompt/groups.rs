//! A prompt's block hashes as they are asked for: in groups, each computed at once, or one by one.

use kvtide_radix::{BlockHash, BlockHasher, Seed};

use super::{BlockMedia, Hashing};

/// Blocks in a group but the first. Beyond 8 a walk that stops has hashed more in vain than larger groups save:
/// docs/decisions/0002-hashing.md.
const GROUP: usize = 8;

/// Blocks that are hashed together where all are asked for one by one.
const AHEAD: usize = 32;

/// The hashes of up to 8 neighbouring blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashGroup {
    hashes: [BlockHash; GROUP],
    len: usize,
}

impl AsRef<[BlockHash]> for HashGroup {
    fn as_ref(&self) -> &[BlockHash] {
        &self.hashes[..self.len]
    }
}

/// Block hashes of a prompt, in groups: see [`Hashing::hash_groups`].
#[derive(Clone, Debug)]
pub struct HashGroups<'a> {
    rest: Rest<'a>,
}

impl<'a> HashGroups<'a> {
    pub(super) fn new(hashing: Hashing, tokens: &'a [u32], media: &'a [BlockMedia], seed: Seed) -> Self {
        HashGroups { rest: Rest::new(hashing, tokens, media, seed) }
    }
}

impl Iterator for HashGroups<'_> {
    type Item = HashGroup;

    fn next(&mut self) -> Option<HashGroup> {
        let mut group = HashGroup { hashes: [BlockHash(0); GROUP], len: 0 };
        let room = if self.rest.hashed == 0 { 1 } else { GROUP };
        group.len = self.rest.take(&mut group.hashes[..room]);
        (group.len > 0).then_some(group)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let first = usize::from(self.rest.hashed == 0 && self.rest.blocks > 0);
        let groups = first + (self.rest.len() - first).div_ceil(GROUP);
        (groups, Some(groups))
    }
}

impl ExactSizeIterator for HashGroups<'_> {}

/// Block hashes of a prompt, one by one: see [`Hashing::block_hashes`].
#[derive(Clone, Debug)]
pub struct BlockHashes<'a> {
    rest: Rest<'a>,
    /// Hashes that are computed and not yet taken: those from `taken` to `len`.
    hashes: [BlockHash; AHEAD],
    taken: usize,
    len: usize,
}

impl<'a> BlockHashes<'a> {
    pub(super) fn new(hashing: Hashing, tokens: &'a [u32], media: &'a [BlockMedia], seed: Seed) -> Self {
        let rest = Rest::new(hashing, tokens, media, seed);
        BlockHashes { rest, hashes: [BlockHash(0); AHEAD], taken: 0, len: 0 }
    }
}

impl Iterator for BlockHashes<'_> {
    type Item = BlockHash;

    #[inline]
    fn next(&mut self) -> Option<BlockHash> {
        if self.taken == self.len {
            self.len = self.rest.take(&mut self.hashes);
            self.taken = 0;
            if self.len == 0 {
                return None;
            }
        }
        let hash = self.hashes.get(self.taken).copied();
        self.taken += 1;
        hash
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let rest = self.len - self.taken + self.rest.len();
        (rest, Some(rest))
    }
}

impl ExactSizeIterator for BlockHashes<'_> {}

/// A prompt of which some blocks are hashed.
#[derive(Clone, Debug)]
struct Rest<'a> {
    hashing: Hashing,
    hasher: BlockHasher,
    tokens: &'a [u32],
    media: &'a [BlockMedia],
    /// Complete blocks of the prompt, and how many of them are hashed.
    blocks: usize,
    hashed: usize,
}

impl<'a> Rest<'a> {
    fn new(hashing: Hashing, tokens: &'a [u32], media: &'a [BlockMedia], seed: Seed) -> Self {
        let blocks = hashing.blocks(tokens.len());
        Rest { hashing, hasher: BlockHasher::new(seed), tokens, media, blocks, hashed: 0 }
    }

    /// Blocks that are not hashed.
    fn len(&self) -> usize {
        self.blocks - self.hashed
    }

    /// Hashes the next blocks, as many as there is room for. Returns how many.
    fn take(&mut self, hashes: &mut [BlockHash]) -> usize {
        let count = hashes.len().min(self.len());
        let tokens = &self.tokens[self.hashed * self.hashing.block_size as usize..];
        self.hashing.hash(&self.hasher, tokens, self.hashed, self.media, &mut hashes[..count]);
        self.hashed += count;
        count
    }
}
