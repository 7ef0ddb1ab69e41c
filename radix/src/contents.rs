//! What blocks contain: block hashes by place, in memory that the writer and all versions share.
//!
//! The writer changes a content only where no version that anyone may still read has a block (L1 in `pages.rs`), so
//! that a reader finds at every place of its version what was there when the version was published.

use std::hint::black_box;

use crate::{
    Block, BlockHash,
    fold::Keys,
    pages::{PAGE_BLOCKS, Place},
    sync::{Arc, AtomicU64, Ordering},
};

/// Pages a chunk. Chunks are never moved, so growing copies nothing.
pub(crate) const CHUNK_PAGES: usize = if cfg!(kvtide_loom) { 4 } else { 64 };
const CHUNK_BLOCKS: usize = CHUNK_PAGES * PAGE_BLOCKS;
/// Chunks that share one piece of memory for their folds.
const SHARING: usize = if cfg!(kvtide_loom) { 1 } else { 16 };
const FOLDS: usize = SHARING * CHUNK_PAGES;

/// One block's content, or a page's fold.
#[derive(Debug)]
pub(crate) struct Content(AtomicU64);

impl Content {
    fn new() -> Content {
        Content(AtomicU64::new(0))
    }

    // Relaxed: whatever orders the two sides is in the publication of a version and in its end (`sides.rs`).
    pub(crate) fn get(&self) -> BlockHash {
        BlockHash(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, content: BlockHash) {
        self.0.store(content.0, Ordering::Relaxed);
    }
}

/// Of each page that is full its fold (L2); of others whatever was there before.
#[derive(Debug)]
pub(crate) struct Folds([Content; FOLDS]);

/// The contents of some pages, two cache lines each.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Chunk {
    blocks: [Content; CHUNK_BLOCKS],
    folds: Arc<Folds>,
}

/// Where the chunks are. Each version has its own list, and all of them the same chunks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents {
    /// None where all pages are free and the memory was given back.
    chunks: Vec<Option<Arc<Chunk>>>,
    /// Those of [`SHARING`] chunks each. Apart from the contents, which most lookups need not read: so they stay in the
    /// processor's cache.
    folds: Vec<Option<Arc<Folds>>>,
}

impl Contents {
    /// How many chunks there are, the ones without memory included.
    pub(crate) fn len(&self) -> usize {
        self.chunks.len()
    }

    /// A new chunk to be put in a place.
    pub(crate) fn new_chunk(&self, index: usize) -> Arc<Chunk> {
        let shared = self.folds.get(index / SHARING).cloned().flatten();
        let folds = shared.unwrap_or_else(|| Arc::new(Folds(std::array::from_fn(|_| Content::new()))));
        Arc::new(Chunk { blocks: std::array::from_fn(|_| Content::new()), folds })
    }

    /// Puts a chunk in its place, or takes it away.
    pub(crate) fn set_chunk(&mut self, index: usize, chunk: Option<Arc<Chunk>>) {
        let sharing = index / SHARING;
        if index >= self.chunks.len() {
            self.chunks.resize(index + 1, None);
            self.folds.resize(sharing + 1, None);
        }
        let folds = chunk.as_ref().map(|chunk| Arc::clone(&chunk.folds));
        self.chunks[index] = chunk;
        let others = self.chunks.iter().skip(sharing * SHARING).take(SHARING);
        if folds.is_some() || others.flatten().next().is_none() {
            self.folds[sharing] = folds;
        }
        while let Some(None) = self.chunks.last() {
            self.chunks.pop();
        }
        self.folds.truncate(self.chunks.len().div_ceil(SHARING));
        if self.chunks.is_empty() {
            *self = Contents::default();
        }
    }

    pub(crate) fn chunk(&self, index: usize) -> Option<Arc<Chunk>> {
        self.chunks.get(index).cloned().flatten()
    }

    /// The contents of the blocks that follow each other from a place on, up to the end of its chunk.
    #[expect(clippy::panic, reason = "no input can name a place; only a fault in the writer leads here")]
    fn behind(&self, place: Place) -> &[Content] {
        match self.chunks.get(place.0 as usize / CHUNK_BLOCKS) {
            Some(Some(chunk)) => &chunk.blocks[place.0 as usize % CHUNK_BLOCKS..],
            Some(None) | None => panic!("{place:?} is in no chunk"),
        }
    }

    /// The folds of the pages that follow each other from a page on, up to the end of their piece.
    #[expect(clippy::panic, reason = "no input can name a place; only a fault in the writer leads here")]
    fn folds(&self, page: u32) -> &[Content] {
        match self.folds.get(page as usize / FOLDS) {
            Some(Some(folds)) => &folds.0[page as usize % FOLDS..],
            Some(None) | None => panic!("page {page} is in no chunk"),
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

    /// Writes the contents of blocks at consecutive places of one page, and with the last of the page its fold (L2).
    pub(crate) fn write(&self, place: Place, blocks: &[Block]) {
        for (content, block) in self.behind(place)[..blocks.len()].iter().zip(blocks) {
            content.set(block.content);
        }
        if usize::from(place.slot()) + blocks.len() == PAGE_BLOCKS {
            let page = self.behind(Place::new(place.page(), 0));
            let fold = Keys::get().fold(&std::array::from_fn(|slot| page[slot].get()));
            self.folds(place.page())[0].set(fold);
        }
    }

    /// How many of the hashes are the contents at consecutive places, until the first that is not. There must be blocks
    /// at all of them.
    pub(crate) fn equal_start(&self, place: Place, hashes: &[BlockHash], keys: &Keys) -> usize {
        let slot = usize::from(place.slot());
        let to_page = (slot.next_multiple_of(PAGE_BLOCKS) - slot).min(hashes.len());
        let mut equal = self.equal_in_page(place, &hashes[..to_page]);
        if equal < to_page {
            return equal;
        }
        let mut pages = hashes[equal..].as_chunks().0;
        while !pages.is_empty() {
            let folds = self.folds(place.ahead(equal as u32).page());
            let (here, behind) = pages.split_at(pages.len().min(folds.len()));
            let same =
                here.iter().zip(folds).take_while(|&(page, fold)| keys.fold(page) == fold.get()).count();
            equal += PAGE_BLOCKS * same;
            pages = if same < here.len() { &[] } else { behind };
        }
        let rest = (hashes.len() - equal).min(PAGE_BLOCKS);
        equal + self.equal_in_page(place.ahead(equal as u32), &hashes[equal..equal + rest])
    }

    fn equal_in_page(&self, place: Place, hashes: &[BlockHash]) -> usize {
        if hashes.is_empty() {
            return 0;
        }
        let contents = &self.behind(place)[..hashes.len()];
        let pairs = || hashes.iter().zip(contents).map(|(hash, content)| hash.0 ^ content.get().0);
        // Nearly always all of them are equal: one branch, not one for each. Only a value that the compiler knows nothing
        // of keeps it from making many of that one.
        if black_box(pairs().fold(0, |all, one| all | one)) == 0 {
            return hashes.len();
        }
        pairs().take_while(|&differs| differs == 0).count()
    }
}
