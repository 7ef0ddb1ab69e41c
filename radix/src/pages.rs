//! Blocks in pages of 16: content, name, and the run that each belongs to.
//!
//! A place (page and slot, 32 bits) never moves while its block is in the tree, so that whatever refers to blocks
//! survives splits and merges. The slots of a page follow each other along one chain: the block in slot `s` of a
//! page stands `s` blocks behind the one in slot 0.
//!
//! Contents, which lookups read, lie apart from the rest, which only the writer reads: a lookup that follows a run
//! walks through memory page by page.

use std::ops::Range;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::{Block, BlockHash, SequenceHash, run::RunId};

/// Blocks a page.
pub(crate) const PAGE_BLOCKS: usize = 16;
/// Pages a chunk. Chunks are never moved, so growing copies nothing.
const CHUNK_PAGES: usize = 64;
const CHUNK_BLOCKS: usize = CHUNK_PAGES * PAGE_BLOCKS;

/// Where a block is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Place(pub(crate) u32);

impl Place {
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

/// The contents of the blocks of a chunk. A page's are two cache lines.
#[repr(align(128))]
struct Contents([BlockHash; CHUNK_BLOCKS]);

/// What the writer knows of a page.
#[derive(Clone)]
struct Page {
    /// Depth of the block in slot 0: how many blocks stand in front of it.
    base: u32,
    /// Slots in use, from slot 0.
    used: u8,
    /// Slots that recent names keep, as bits.
    pinned: u16,
    owner: Owner,
    names: [SequenceHash; PAGE_BLOCKS],
}

/// Which run the blocks of a page belong to.
#[derive(Clone)]
enum Owner {
    One(RunId),
    /// Several runs share the page after a split, or where one starts in the page in which its parent ends.
    Several(Box<[RunId; PAGE_BLOCKS]>),
}

/// All pages of a tree.
#[derive(Default)]
pub(crate) struct Pages {
    contents: Vec<Box<Contents>>,
    pages: Vec<Box<[Page]>>,
    free: Vec<u32>,
    used: usize,
    /// Slots with a pin, and how many more pins a slot has than one.
    pinned: usize,
    more_pins: HashMap<Place, u32>,
}

impl Pages {
    fn page(&self, page: u32) -> &Page {
        &self.pages[page as usize / CHUNK_PAGES][page as usize % CHUNK_PAGES]
    }

    fn page_mut(&mut self, page: u32) -> &mut Page {
        &mut self.pages[page as usize / CHUNK_PAGES][page as usize % CHUNK_PAGES]
    }

    /// Pages in use.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// An empty page whose first block will have the depth `base`.
    pub(crate) fn allocate(&mut self, base: u32, owner: RunId) -> u32 {
        if self.free.is_empty() {
            let first = (self.pages.len() * CHUNK_PAGES) as u32;
            let owner = Owner::One(RunId::NONE);
            let empty = Page { base, used: 0, pinned: 0, owner, names: [NO_NAME; PAGE_BLOCKS] };
            self.pages.push(vec![empty; CHUNK_PAGES].into_boxed_slice());
            self.contents.push(Box::new(Contents([BlockHash(0); CHUNK_BLOCKS])));
            self.free.extend((first..first + CHUNK_PAGES as u32).rev());
        }
        let page = self.free.pop().unwrap_or_default();
        let found = self.page_mut(page);
        found.base = base;
        found.owner = Owner::One(owner);
        self.used += 1;
        page
    }

    /// Puts blocks without names into the next free slots of a page, as many as it has. Returns how many.
    pub(crate) fn extend(&mut self, page: u32, blocks: &[Block], owner: RunId) -> usize {
        let from = usize::from(self.page(page).used);
        let count = blocks.len().min(PAGE_BLOCKS - from);
        let start = page as usize % CHUNK_PAGES * PAGE_BLOCKS + from;
        let contents = &mut self.contents[page as usize / CHUNK_PAGES].0[start..start + count];
        for (content, block) in contents.iter_mut().zip(blocks) {
            *content = block.content;
        }
        let found = self.page_mut(page);
        found.names[from..from + count].fill(NO_NAME);
        found.used += count as u8;
        found.set_owner(from as u8..found.used, owner);
        count
    }

    /// Frees consecutive places behind which their pages have no others, and the pages in which nothing is left.
    pub(crate) fn free(&mut self, place: Place, count: u32) {
        // From the end, so that the pages are given out again in the order in which they lie in memory.
        let pages: SmallVec<[(u32, Range<u8>); 8]> = place.by_page(count).collect();
        for (page, slots) in pages.into_iter().rev() {
            let found = self.page_mut(page);
            found.used = slots.start;
            if slots.start == 0 {
                found.owner = Owner::One(RunId::NONE);
                self.used -= 1;
                self.free.push(page);
            }
        }
    }

    /// Whether the slot directly behind `place` is the page's next free one.
    pub(crate) fn has_room_behind(&self, place: Place) -> bool {
        let page = self.page(place.page());
        page.used == place.slot() + 1 && usize::from(page.used) < PAGE_BLOCKS
    }

    pub(crate) fn depth(&self, place: Place) -> u32 {
        self.page(place.page()).base + u32::from(place.slot())
    }

    /// The run that a block belongs to; none if the place is free.
    pub(crate) fn owner(&self, place: Place) -> Option<RunId> {
        let page = self.page(place.page());
        if place.slot() >= page.used {
            return None;
        }
        Some(match &page.owner {
            Owner::One(run) => *run,
            Owner::Several(runs) => runs[usize::from(place.slot())],
        })
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
            self.page_mut(page).set_owner(slots, run);
        }
    }

    pub(crate) fn content(&self, place: Place) -> BlockHash {
        self.contents[place.0 as usize / CHUNK_BLOCKS].0[place.0 as usize % CHUNK_BLOCKS]
    }

    /// The contents at consecutive places, in as few pieces as they are in memory.
    pub(crate) fn contents(&self, place: Place, count: u32) -> impl Iterator<Item = &[BlockHash]> {
        let (mut at, end) = (place.0 as usize, place.0 as usize + count as usize);
        std::iter::from_fn(move || {
            let from = at % CHUNK_BLOCKS;
            let length = (end - at).min(CHUNK_BLOCKS - from);
            let piece = (length > 0).then(|| &self.contents[at / CHUNK_BLOCKS].0[from..from + length]);
            at += length;
            piece
        })
    }

    /// The block's own name: that of whoever stored it first, if it was not another block's.
    pub(crate) fn own_name(&self, place: Place) -> Option<SequenceHash> {
        Some(self.page(place.page()).names[usize::from(place.slot())]).filter(|&name| name != NO_NAME)
    }

    /// Whether the blocks at consecutive places have exactly the own names that are given.
    pub(crate) fn have_own_names(&self, place: Place, blocks: &[Block]) -> bool {
        let mut rest = blocks;
        place.by_page(blocks.len() as u32).all(|(page, slots)| {
            let (here, behind) = rest.split_at(slots.len());
            rest = behind;
            let names = &self.page(page).names[usize::from(slots.start)..usize::from(slots.end)];
            names.iter().zip(here).all(|(&own, block)| own == block.name && own != NO_NAME)
        })
    }

    /// The block with that own name, if it is in the same page as `near` and not further than a slot from it.
    pub(crate) fn find_near(&self, name: SequenceHash, near: Place) -> Option<Place> {
        let page =
            self.pages.get(near.page() as usize / CHUNK_PAGES)?.get(near.page() as usize % CHUNK_PAGES)?;
        let first = near.slot().saturating_sub(1);
        let names =
            &page.names[usize::from(first)..usize::from(page.used.min(near.slot() + 2)).max(first.into())];
        let found = names.iter().position(|&own| own == name && own != NO_NAME)?;
        Some(Place::new(near.page(), first).ahead(found as u32))
    }

    /// Whether a block can have the name as its own.
    pub(crate) fn can_name(name: SequenceHash) -> bool {
        name != NO_NAME
    }

    /// Gives a block its own name.
    pub(crate) fn set_own_name(&mut self, place: Place, name: SequenceHash) {
        self.page_mut(place.page()).names[usize::from(place.slot())] = name;
    }
}

impl Page {
    fn set_owner(&mut self, slots: Range<u8>, run: RunId) {
        match &mut self.owner {
            Owner::One(owner) if *owner == run => {}
            // Nothing else is in use: the whole page changes hands.
            Owner::One(owner) if slots.start == 0 && slots.end >= self.used => *owner = run,
            Owner::One(owner) => {
                let mut runs = Box::new([*owner; PAGE_BLOCKS]);
                runs[usize::from(slots.start)..usize::from(slots.end)].fill(run);
                self.owner = Owner::Several(runs);
            }
            Owner::Several(runs) => {
                runs[usize::from(slots.start)..usize::from(slots.end)].fill(run);
                if runs[..usize::from(self.used)].iter().all(|owner| *owner == run) {
                    self.owner = Owner::One(run);
                }
            }
        }
    }
}
