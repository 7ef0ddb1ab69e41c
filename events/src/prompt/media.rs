//! Media (images, audio clips) in a prompt: each enters the hashes of the blocks that it stands in.

use std::ops::Range;

use smallvec::SmallVec;

/// A medium in a prompt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Media {
    /// Its hash.
    pub hash: u64,
    /// The tokens that it stands for, `start..end`, as often as it is used.
    pub tokens: Vec<Range<usize>>,
}

/// The hashes of the media of one block, ascending. A medium that is named twice is hashed twice.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlockMedia(SmallVec<[u64; 2]>);

impl BlockMedia {
    /// The hashes.
    #[must_use]
    pub fn hashes(&self) -> &[u64] {
        &self.0
    }
}

impl FromIterator<u64> for BlockMedia {
    fn from_iter<I: IntoIterator<Item = u64>>(hashes: I) -> BlockMedia {
        let mut hashes: SmallVec<[u64; 2]> = hashes.into_iter().collect();
        hashes.sort_unstable();
        BlockMedia(hashes)
    }
}

impl Media {
    /// How many of a prompt's first `blocks` blocks it stands in, each as often as a range of it does.
    #[must_use]
    pub fn blocks(&self, block_size: u32, blocks: usize) -> usize {
        self.tokens.iter().map(|range| blocks_of(range, block_size, blocks).len()).sum()
    }

    /// The media of a prompt's first `blocks` blocks, up to the last that has any. A medium enters a block once, however
    /// often it stands there.
    #[must_use]
    pub fn by_block(media: &[Media], block_size: u32, blocks: usize) -> Vec<BlockMedia> {
        let mut all: Vec<BlockMedia> = Vec::new();
        for one in media {
            for range in one.tokens.iter().map(|range| blocks_of(range, block_size, blocks)) {
                if all.len() < range.end && !range.is_empty() {
                    all.resize(range.end, BlockMedia::default());
                }
                all.get_mut(range).into_iter().flatten().for_each(|block| block.0.push(one.hash));
            }
        }
        for BlockMedia(hashes) in &mut all {
            hashes.sort_unstable();
            hashes.dedup();
        }
        all
    }
}

/// The blocks that a range of tokens touches.
fn blocks_of(tokens: &Range<usize>, block_size: u32, blocks: usize) -> Range<usize> {
    let size = block_size as usize;
    if tokens.is_empty() {
        0..0
    } else {
        (tokens.start / size).min(blocks)..tokens.end.div_ceil(size).min(blocks)
    }
}
