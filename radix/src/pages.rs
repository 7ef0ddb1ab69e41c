//! Blocks in pages of 16: content, name, and the run that each belongs to.
//!
//! A place (page and slot, 32 bits) never moves while its block is in the tree, so that whatever refers to blocks
//! survives splits and merges. The slots of a page follow each other along one chain: the block in slot `s` of a
//! page stands `s` blocks behind the one in slot 0.
//!
//! Contents, which lookups read, lie apart from the rest (`contents.rs`), which only the writer reads: a lookup that
//! follows a run walks through memory page by page.
//!
//! Invariant L1: a place whose block has left the tree with some version is in limbo, and not given out again, while
//! anyone may read an older one (docs/CONCURRENCY.md).

use std::{collections::VecDeque, ops::Range};

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::{
    Block, BlockHash, SequenceHash,
    contents::{CHUNK_PAGES, Chunk as ContentChunk, Content, Contents},
    marked::Marked,
    owners::{Owner, Owners},
    run::RunId,
};

/// Blocks a page.
pub(crate) const PAGE_BLOCKS: usize = if cfg!(kvtide_loom) { 4 } else { 16 };
/// Where a block is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Place(pub(crate) u32);

impl Place {
    /// Bits of a place. Whatever refers to one has the other three for itself.
    pub(crate) const BITS: u32 = 29;
    /// How many places there can be.
    pub(crate) const MOST: usize = 1 << Place::BITS;

    pub(crate) fn new(page: u32, slot: u8) -> Place {
        Place(page * PAGE_BLOCKS as u32 + u32::from(slot))
    }

    pub(crate) fn page(self) -> u32 {
        self.0 / PAGE_BLOCKS as u32
    }

    pub(crate) fn slot(self) -> u8 {
        (self.0 % PAGE_BLOCKS as u32) as u8
    }

    /// The place so many places further on.
    pub(crate) fn ahead(self, places: u32) -> Place {
        Place(self.0 + places)
    }

    /// The place so many places further back.
    pub(crate) fn back(self, places: u32) -> Place {
        Place(self.0 - places)
    }

    /// Cuts consecutive places where a page ends: page, slots.
    fn by_page(self, count: u32) -> impl Iterator<Item = (u32, Range<u8>)> {
        let (mut at, end) = (self, self.0 + count);
        std::iter::from_fn(move || {
            let (page, from) = (at.page(), at.slot());
            let slots = (end - at.0).min(PAGE_BLOCKS as u32 - u32::from(from));
            at = at.ahead(slots);
            (slots > 0).then(|| (page, from..from + slots as u8))
        })
    }
}

/// Stands where a block has no own name, since another block had it first. A block that is really called so has
/// no own name either.
const NO_NAME: SequenceHash = SequenceHash(0);

/// What the writer knows of a page, besides the names of its blocks.
#[derive(Clone)]
struct Page {
    /// Depth of the block in slot 0: how many blocks stand in front of it.
    base: u32,
    owner: Owner,
    /// Slots that recent names keep, as bits.
    pinned: u16,
    /// Slots in use, from slot 0.
    used: u8,
    /// How often blocks of the page are in limbo: while they are, nothing is added to it.
    limbo: u8,
}

/// As many pages as are allocated at once.
struct Chunk {
    /// None of them where the memory was given back.
    pages: Box<[Page]>,
    names: Box<[[SequenceHash; PAGE_BLOCKS]]>,
    /// Pages that can be given out, as bits.
    free: u64,
    /// Whether the chunk is listed as one with free pages.
    listed: bool,
}

const ALL_FREE: u64 = u64::MAX >> (64 - CHUNK_PAGES);

/// All pages of a tree.
#[derive(Default)]
pub(crate) struct Pages {
    contents: Contents,
    /// Chunks whose contents have come or gone since this was last taken.
    pub(crate) changed: Marked,
    chunks: Vec<Chunk>,
    owners: Owners,
    /// Chunks that may have free pages. The one that got some last is used first: it is in the cache.
    listed: Vec<u32>,
    /// Chunks without memory.
    empty: Vec<u32>,
    free: usize,
    used: usize,
    /// Pages that have lost blocks, each with the version with which they went (L1), oldest first.
    limbo: VecDeque<(u64, u32)>,
    /// Slots with a pin, and how many more pins a slot has than one.
    pinned: usize,
    more_pins: HashMap<Place, u32>,
}

impl Pages {
    fn page(&self, page: u32) -> &Page {
        &self.chunks[page as usize / CHUNK_PAGES].pages[page as usize % CHUNK_PAGES]
    }

    fn page_mut(&mut self, page: u32) -> &mut Page {
        &mut self.chunks[page as usize / CHUNK_PAGES].pages[page as usize % CHUNK_PAGES]
    }

    fn names(&self, page: u32) -> &[SequenceHash; PAGE_BLOCKS] {
        &self.chunks[page as usize / CHUNK_PAGES].names[page as usize % CHUNK_PAGES]
    }

    fn names_mut(&mut self, page: u32) -> &mut [SequenceHash; PAGE_BLOCKS] {
        &mut self.chunks[page as usize / CHUNK_PAGES].names[page as usize % CHUNK_PAGES]
    }

    /// Pages in use.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// A chunk's contents; none where its memory was given back.
    pub(crate) fn content_chunk(&self, index: u32) -> Option<crate::sync::Arc<ContentChunk>> {
        self.contents.chunk(index as usize)
    }

    /// An empty page whose first block will have the depth `base`: the one behind the page `near` if it can be had.
    pub(crate) fn allocate(&mut self, base: u32, owner: RunId, near: Option<u32>) -> u32 {
        let behind = near.map(|page| page + 1).filter(|&page| self.is_free(page));
        let page = match behind {
            Some(page) => page,
            None => self.first_free(),
        };
        self.free -= 1;
        self.used += 1;
        let (chunk, index) = (&mut self.chunks[page as usize / CHUNK_PAGES], page as usize % CHUNK_PAGES);
        chunk.free &= !(1 << index);
        chunk.pages[index].base = base;
        self.owners.give_all(&mut chunk.pages[index].owner, owner);
        page
    }

    /// Whether there is room for so many more blocks where `most` may be in the tree. Pages in limbo count.
    pub(crate) fn have_room(&self, blocks: usize, most: usize) -> bool {
        let pages = self.used + self.limbo.len() + blocks.div_ceil(PAGE_BLOCKS);
        pages <= most.min(Place::MOST) / PAGE_BLOCKS
    }

    fn is_free(&self, page: u32) -> bool {
        let chunk = self.chunks.get(page as usize / CHUNK_PAGES);
        chunk.is_some_and(|chunk| chunk.free & (1 << (page as usize % CHUNK_PAGES)) != 0)
    }

    fn first_free(&mut self) -> u32 {
        loop {
            let Some(&index) = self.listed.last() else {
                self.add_chunk();
                continue;
            };
            let chunk = &mut self.chunks[index as usize];
            if chunk.free != 0 {
                return index * CHUNK_PAGES as u32 + chunk.free.trailing_zeros();
            }
            chunk.listed = false;
            self.listed.pop();
        }
    }

    fn add_chunk(&mut self) {
        let page = Page { base: 0, owner: Owner::NONE, pinned: 0, used: 0, limbo: 0 };
        let chunk = Chunk {
            pages: vec![page; CHUNK_PAGES].into(),
            names: vec![[NO_NAME; PAGE_BLOCKS]; CHUNK_PAGES].into(),
            free: ALL_FREE,
            listed: true,
        };
        let index = match self.empty.pop() {
            Some(index) => {
                self.chunks[index as usize] = chunk;
                index
            }
            None => {
                self.chunks.push(chunk);
                self.chunks.len() as u32 - 1
            }
        };
        self.contents.set_chunk(index as usize, Some(self.contents.new_chunk(index as usize)));
        self.changed.insert(index);
        self.listed.push(index);
        self.free += CHUNK_PAGES;
    }

    /// Puts blocks without names into the next free slots of a page, as many as it has. Returns how many.
    pub(crate) fn extend(&mut self, page: u32, blocks: &[Block], owner: RunId) -> usize {
        let from = usize::from(self.page(page).used);
        let count = blocks.len().min(PAGE_BLOCKS - from);
        self.contents.write(Place::new(page, from as u8), &blocks[..count]);
        self.names_mut(page)[from..from + count].fill(NO_NAME);
        self.page_mut(page).used += count as u8;
        self.set_owner(Place::new(page, from as u8), count as u32, owner);
        count
    }

    /// Takes blocks away that stand at consecutive places, behind which their pages have no others. They are in limbo
    /// until [`Pages::reclaim`] finds that nobody can read a version before `version` (L1).
    pub(crate) fn free(&mut self, place: Place, count: u32, version: u64) {
        // From the end, so that the pages are given out again in the order in which they lie in memory.
        let pages: SmallVec<[(u32, Range<u8>); 8]> = place.by_page(count).collect();
        for (page, slots) in pages.into_iter().rev() {
            let found = &mut self.chunks[page as usize / CHUNK_PAGES].pages[page as usize % CHUNK_PAGES];
            found.used = slots.start;
            found.limbo += 1;
            if slots.start == 0 {
                self.owners.release(&mut found.owner);
                self.used -= 1;
            }
            self.limbo.push_back((version, page));
        }
    }

    /// Lets the places out of limbo whose blocks have left with `oldest` or before: no older version can be read.
    pub(crate) fn reclaim(&mut self, oldest: u64) {
        while let Some(&(version, page)) = self.limbo.front()
            && version <= oldest
        {
            self.limbo.pop_front();
            let found = self.page_mut(page);
            found.limbo -= 1;
            if found.limbo == 0 && found.used == 0 {
                self.give_back(page);
            }
        }
    }

    /// A page is free again, and with the last of its chunk, if there are plenty of others, the memory.
    fn give_back(&mut self, page: u32) {
        let index = page / CHUNK_PAGES as u32;
        let chunk = &mut self.chunks[index as usize];
        chunk.free |= 1 << (page as usize % CHUNK_PAGES);
        self.free += 1;
        if !chunk.listed {
            chunk.listed = true;
            self.listed.push(index);
        }
        if chunk.free == ALL_FREE && self.free > CHUNK_PAGES + self.used / 8 {
            self.drop_chunk(index);
        }
        if self.used == 0 && self.limbo.is_empty() {
            (0..self.chunks.len() as u32).for_each(|index| self.drop_chunk(index));
            *self = Pages { changed: std::mem::take(&mut self.changed), ..Pages::default() };
        }
    }

    fn drop_chunk(&mut self, index: u32) {
        let chunk = &mut self.chunks[index as usize];
        if !chunk.pages.is_empty() {
            (chunk.pages, chunk.names) = Default::default();
            chunk.free = 0;
            self.free -= CHUNK_PAGES;
            self.contents.set_chunk(index as usize, None);
            self.changed.insert(index);
            self.empty.push(index);
        }
    }

    /// Whether the slot directly behind `place` is the page's next free one.
    pub(crate) fn has_room_behind(&self, place: Place) -> bool {
        let page = self.page(place.page());
        page.used == place.slot() + 1 && usize::from(page.used) < PAGE_BLOCKS && page.limbo == 0
    }

    pub(crate) fn depth(&self, place: Place) -> u32 {
        self.page(place.page()).base + u32::from(place.slot())
    }

    /// The run that a block belongs to; none if the place is free.
    pub(crate) fn owner(&self, place: Place) -> Option<RunId> {
        let page = self.page(place.page());
        (place.slot() < page.used).then(|| self.owners.of(page.owner, place.slot()))
    }

    /// Keeps a block in the tree. What keeps blocks is the recent names of ranks, mostly one a block.
    pub(crate) fn pin(&mut self, place: Place) {
        if self.is_pinned(place) {
            *self.more_pins.entry(place).or_insert(0) += 1;
        } else {
            self.page_mut(place.page()).pinned |= 1 << place.slot();
            self.pinned += 1;
        }
    }

    /// Takes back one pin. Whether it was the last.
    pub(crate) fn unpin(&mut self, place: Place) -> bool {
        if let Some(more) = self.more_pins.get_mut(&place) {
            *more -= 1;
            if *more == 0 {
                self.more_pins.remove(&place);
            }
            return false;
        }
        self.page_mut(place.page()).pinned &= !(1 << place.slot());
        self.pinned -= 1;
        true
    }

    pub(crate) fn is_pinned(&self, place: Place) -> bool {
        self.page(place.page()).pinned & (1 << place.slot()) != 0
    }

    /// Whether any block has a pin.
    pub(crate) fn has_pins(&self) -> bool {
        self.pinned > 0
    }

    /// Makes `run` the owner of consecutive places.
    pub(crate) fn set_owner(&mut self, place: Place, count: u32, run: RunId) {
        for (page, slots) in place.by_page(count) {
            let found = &mut self.chunks[page as usize / CHUNK_PAGES].pages[page as usize % CHUNK_PAGES];
            self.owners.give(&mut found.owner, slots, found.used, run);
        }
    }

    pub(crate) fn content(&self, place: Place) -> BlockHash {
        self.contents.get(place)
    }

    /// The contents at consecutive places, in as few pieces as they are in memory.
    pub(crate) fn contents(&self, place: Place, count: u32) -> impl Iterator<Item = &[Content]> {
        self.contents.pieces(place, count)
    }

    /// The block's own name: that of whoever stored it first, if it was not another block's.
    pub(crate) fn own_name(&self, place: Place) -> Option<SequenceHash> {
        Some(self.names(place.page())[usize::from(place.slot())]).filter(|&name| name != NO_NAME)
    }

    /// Whether the blocks at consecutive places have exactly the own names that are given.
    pub(crate) fn have_own_names(&self, place: Place, blocks: &[Block]) -> bool {
        let mut rest = blocks;
        place.by_page(blocks.len() as u32).all(|(page, slots)| {
            let (here, behind) = rest.split_at(slots.len());
            rest = behind;
            let names = &self.names(page)[usize::from(slots.start)..usize::from(slots.end)];
            names.iter().zip(here).all(|(&own, block)| own == block.name && own != NO_NAME)
        })
    }

    /// How many of the names are the own ones of the block at `place` and those in front of it in its page, in this
    /// order.
    pub(crate) fn names_back(&self, place: Place, names: &[SequenceHash]) -> usize {
        let own = &self.names(place.page())[..=usize::from(place.slot())];
        own.iter().rev().zip(names).take_while(|&(own, name)| own == name && *own != NO_NAME).count()
    }

    /// How many of the names are the own ones of the block at `place` and those behind it in its page, in this order.
    pub(crate) fn names_ahead(&self, place: Place, names: &[SequenceHash]) -> usize {
        let used = self.page(place.page()).used;
        let own = &self.names(place.page())[usize::from(place.slot())..usize::from(used)];
        own.iter().zip(names).take_while(|&(own, name)| own == name && *own != NO_NAME).count()
    }

    /// The block with that own name, if it is in the same page as `near` and not further than a slot from it.
    pub(crate) fn find_near(&self, name: SequenceHash, near: Place) -> Option<Place> {
        let (chunk, index) = (near.page() as usize / CHUNK_PAGES, near.page() as usize % CHUNK_PAGES);
        let chunk = self.chunks.get(chunk)?;
        let used = chunk.pages.get(index)?.used;
        let first = near.slot().saturating_sub(1);
        let names =
            &chunk.names[index][usize::from(first)..usize::from(used.min(near.slot() + 2)).max(first.into())];
        let found = names.iter().position(|&own| own == name && own != NO_NAME)?;
        Some(Place::new(near.page(), first).ahead(found as u32))
    }

    /// Whether a block can have the name as its own.
    pub(crate) fn can_name(name: SequenceHash) -> bool {
        name != NO_NAME
    }

    /// Gives a block its own name.
    pub(crate) fn set_own_name(&mut self, place: Place, name: SequenceHash) {
        self.names_mut(place.page())[usize::from(place.slot())] = name;
    }
}
