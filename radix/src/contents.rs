//! What blocks contain: block hashes by place, in memory that the writer and all versions share.
//!
//! The writer changes a content only where no version that anyone may still read has a block (L1 in `pages.rs`), so
//! that a reader finds at every place of its version what was there when the version was published.

use crate::{
    Block, BlockHash,
    fold::Keys,
    pages::{PAGE_BLOCKS, Place},
    sync::{Arc, AtomicU64, Ordering},
};

/// Pages a chunk. Chunks are never moved, so growing copies nothing.
pub(crate) const CHUNK_PAGES: usize = if cfg!(kvtide_loom) { 4 } else { 64 };
const CHUNK_BLOCKS: usize = CHUNK_PAGES * PAGE_BLOCKS;

/// One block's content, or a page's fold.
#[derive(Debug)]
struct Content(AtomicU64);

impl Content {
    // Relaxed: whatever orders the two sides is in the publication of a version and in its end (`sides.rs`).
    fn get(&self) -> BlockHash {
        BlockHash(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, content: BlockHash) {
        self.0.store(content.0, Ordering::Relaxed);
    }
}

/// The contents of some pages, two cache lines each, and their folds.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Chunk {
    blocks: [Content; CHUNK_BLOCKS],
    /// Of each page that is full; of others whatever was there before.
    folds: [Content; CHUNK_PAGES],
}

impl Chunk {
    pub(crate) fn new() -> Arc<Chunk> {
        let nothing = || Content(AtomicU64::new(0));
        let (blocks, folds) = (std::array::from_fn(|_| nothing()), std::array::from_fn(|_| nothing()));
        Arc::new(Chunk { blocks, folds })
    }
}

/// Contents that follow each other in memory.
pub(crate) struct Piece<'a> {
    blocks: &'a [Content],
    /// The folds of their pages, the first of which may have blocks in front of the piece, and the last behind it.
    folds: &'a [Content],
    /// Blocks of the first page in front of the piece.
    in_front: usize,
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
        while let Some(None) = self.chunks.last() {
            self.chunks.pop();
        }
    }

    pub(crate) fn chunk(&self, index: usize) -> Option<Arc<Chunk>> {
        self.chunks.get(index).cloned().flatten()
    }

    /// The contents of the blocks that follow each other from a place on, up to the end of its chunk.
    #[expect(clippy::panic, reason = "no input can name a place; only a fault in the writer leads here")]
    fn behind(&self, place: Place) -> Piece<'_> {
        let Some(Some(chunk)) = self.chunks.get(place.0 as usize / CHUNK_BLOCKS) else {
            panic!("{place:?} is in no chunk")
        };
        let start = place.0 as usize % CHUNK_BLOCKS;
        Piece {
            blocks: &chunk.blocks[start..],
            folds: &chunk.folds[start / PAGE_BLOCKS..],
            in_front: start % PAGE_BLOCKS,
        }
    }

    pub(crate) fn get(&self, place: Place) -> BlockHash {
        self.behind(place).blocks[0].get()
    }

    /// The contents at consecutive places, in as few pieces as they are in memory.
    pub(crate) fn pieces(&self, place: Place, count: u32) -> impl Iterator<Item = Piece<'_>> {
        let (mut at, mut left) = (place, count as usize);
        std::iter::from_fn(move || {
            let mut piece = (left > 0).then(|| self.behind(at))?;
            piece.blocks = &piece.blocks[..left.min(piece.blocks.len())];
            at = at.ahead(piece.len() as u32);
            left -= piece.len();
            Some(piece)
        })
    }

    /// Writes the contents of blocks at consecutive places of one page, and with the last of the page its fold.
    pub(crate) fn write(&self, place: Place, blocks: &[Block]) {
        let Piece { blocks: contents, folds, in_front } = self.behind(place);
        for (content, block) in contents[..blocks.len()].iter().zip(blocks) {
            content.set(block.content);
        }
        if in_front + blocks.len() == PAGE_BLOCKS {
            let page = self.behind(place.back(in_front as u32)).blocks;
            folds[0].set(Keys::get().fold(&std::array::from_fn(|slot| page[slot].get())));
        }
    }
}

impl Piece<'_> {
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// How many of the hashes are the contents of the blocks `from` on, until the first that is not. There must be as
    /// many blocks.
    pub(crate) fn equal_start(&self, from: usize, hashes: &[BlockHash], keys: &Keys) -> usize {
        let place = self.in_front + from;
        let to_page = (place.next_multiple_of(PAGE_BLOCKS) - place).min(hashes.len());
        let mut equal = self.equal_one_by_one(from, &hashes[..to_page]);
        if equal < to_page {
            return equal;
        }
        let pages = hashes[equal..].as_chunks().0.iter().zip(&self.folds[place.div_ceil(PAGE_BLOCKS)..]);
        equal += PAGE_BLOCKS * pages.take_while(|(page, fold)| keys.fold(page) == fold.get()).count();
        let rest = (hashes.len() - equal).min(PAGE_BLOCKS);
        equal + self.equal_one_by_one(from + equal, &hashes[equal..equal + rest])
    }

    fn equal_one_by_one(&self, from: usize, hashes: &[BlockHash]) -> usize {
        let contents = &self.blocks[from..from + hashes.len()];
        hashes.iter().zip(contents).take_while(|&(hash, content)| *hash == content.get()).count()
    }

    /// The contents, one by one.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockHash> {
        self.blocks.iter().map(Content::get)
    }
}
