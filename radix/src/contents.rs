//! What blocks contain: block hashes by place, in memory that the writer and all versions share.
//!
//! The writer changes a content only where no version that anyone may still read has a block (L1 in `pages.rs`), so
//! that a reader finds at every place of its version what was there when the version was published.

use crate::{
    Block, BlockHash,
    pages::{PAGE_BLOCKS, Place},
    sync::{Arc, AtomicU64, Ordering},
};

/// Pages a chunk. Chunks are never moved, so growing copies nothing.
pub(crate) const CHUNK_PAGES: usize = if cfg!(kvtide_loom) { 4 } else { 64 };
const CHUNK_BLOCKS: usize = CHUNK_PAGES * PAGE_BLOCKS;

/// One block's content.
#[derive(Debug)]
pub(crate) struct Content(AtomicU64);

impl Content {
    // Relaxed: whatever orders the two sides is in the publication of a version and in its end (`sides.rs`).
    pub(crate) fn get(&self) -> BlockHash {
        BlockHash(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, content: BlockHash) {
        self.0.store(content.0, Ordering::Relaxed);
    }
}

/// The contents of some pages. A page's are two cache lines.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Chunk([Content; CHUNK_BLOCKS]);

impl Chunk {
    pub(crate) fn new() -> Arc<Chunk> {
        Arc::new(Chunk(std::array::from_fn(|_| Content(AtomicU64::new(0)))))
    }
}

/// Where the chunks are. Each version has its own list, and all of them the same chunks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents {
    /// None where all pages are free and the memory was given back.
    chunks: Vec<Option<Arc<Chunk>>>,
}

impl Contents {
    /// How many chunks there are, the ones without memory included.
    pub(crate) fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Puts a chunk in its place, or takes it away.
    pub(crate) fn set_chunk(&mut self, index: usize, chunk: Option<Arc<Chunk>>) {
        if index >= self.chunks.len() {
            self.chunks.resize(index + 1, None);
        }
        self.chunks[index] = chunk;
    }

    pub(crate) fn chunk(&self, index: usize) -> Option<Arc<Chunk>> {
        self.chunks.get(index).cloned().flatten()
    }

    /// The contents of the blocks that follow each other from a place on, up to the end of its chunk.
    #[expect(clippy::panic, reason = "no input can name a place; only a fault in the writer leads here")]
    fn behind(&self, place: Place) -> &[Content] {
        match self.chunks.get(place.0 as usize / CHUNK_BLOCKS) {
            Some(Some(chunk)) => &chunk.0[place.0 as usize % CHUNK_BLOCKS..],
            Some(None) | None => panic!("{place:?} is in no chunk"),
        }
    }

    pub(crate) fn get(&self, place: Place) -> BlockHash {
        self.behind(place)[0].get()
    }

    /// The contents at consecutive places, in as few pieces as they are in memory.
    pub(crate) fn pieces(&self, place: Place, count: u32) -> impl Iterator<Item = &[Content]> {
        let (mut at, mut left) = (place, count as usize);
        std::iter::from_fn(move || {
            let piece = (left > 0).then(|| self.behind(at))?;
            let piece = &piece[..left.min(piece.len())];
            at = at.ahead(piece.len() as u32);
            left -= piece.len();
            Some(piece)
        })
    }

    /// Writes the contents of blocks at consecutive places of one page.
    pub(crate) fn write(&self, place: Place, blocks: &[Block]) {
        for (content, block) in self.behind(place)[..blocks.len()].iter().zip(blocks) {
            content.set(block.content);
        }
    }
}
