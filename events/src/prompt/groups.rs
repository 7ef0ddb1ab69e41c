//! A prompt's block hashes as they are asked for: in groups, each computed at once, or one by one.

use kvtide_radix::{BlockHash, BlockHasher, Seed};

use super::{Hashing, Media};

/// Blocks in a group. Beyond 8 a walk that stops has hashed more in vain than larger groups save:
/// docs/decisions/0002-hashing.md.
const GROUP: usize = 8;

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
    hashing: Hashing,
    hasher: BlockHasher,
    tokens: &'a [u32],
    media: &'a [Media],
    /// Complete blocks of the prompt, and how many of them are hashed.
    blocks: usize,
    hashed: usize,
}

impl<'a> HashGroups<'a> {
    pub(super) fn new(hashing: Hashing, tokens: &'a [u32], media: &'a [Media], seed: Seed) -> Self {
        let blocks = hashing.blocks(tokens.len());
        HashGroups { hashing, hasher: BlockHasher::new(seed), tokens, media, blocks, hashed: 0 }
    }
}

impl Iterator for HashGroups<'_> {
    type Item = HashGroup;

    fn next(&mut self) -> Option<HashGroup> {
        let wanted = if self.hashed == 0 { 1 } else { GROUP };
        let len = wanted.min(self.blocks - self.hashed);
        if len == 0 {
            return None;
        }
        let mut group = HashGroup { hashes: [BlockHash(0); GROUP], len };
        let tokens = &self.tokens[self.hashed * self.hashing.block_size as usize..];
        self.hashing.hash(&self.hasher, tokens, self.hashed, self.media, &mut group.hashes[..len]);
        self.hashed += len;
        Some(group)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let first = usize::from(self.hashed == 0 && self.blocks > 0);
        let groups = first + (self.blocks - self.hashed - first).div_ceil(GROUP);
        (groups, Some(groups))
    }
}

impl ExactSizeIterator for HashGroups<'_> {}

/// Block hashes of a prompt, one by one: see [`Hashing::block_hashes`].
#[derive(Clone, Debug)]
pub struct BlockHashes<'a> {
    groups: HashGroups<'a>,
    /// The group that was hashed last, and how many of it are taken.
    group: HashGroup,
    taken: usize,
}

impl<'a> BlockHashes<'a> {
    pub(super) fn new(groups: HashGroups<'a>) -> Self {
        BlockHashes { groups, group: HashGroup { hashes: [BlockHash(0); GROUP], len: 0 }, taken: 0 }
    }
}

impl Iterator for BlockHashes<'_> {
    type Item = BlockHash;

    fn next(&mut self) -> Option<BlockHash> {
        if self.taken == self.group.len {
            self.group = self.groups.next()?;
            self.taken = 0;
        }
        let hash = self.group.hashes[self.taken];
        self.taken += 1;
        Some(hash)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let rest = self.group.len - self.taken + self.groups.blocks - self.groups.hashed;
        (rest, Some(rest))
    }
}

impl ExactSizeIterator for BlockHashes<'_> {}
