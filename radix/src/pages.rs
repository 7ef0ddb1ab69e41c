//! Blocks in pages of 16: content, name, and the run that each belongs to.
//!
//! A place (page and slot, 32 bits) never moves while its block is in the tree, so that whatever refers to blocks
//! survives splits and merges. The slots of a page follow each other along one chain: the block in slot `s` of a
//! page stands `s` blocks behind the one in slot 0.

use crate::{BlockHash, SequenceHash, run::RunId};

/// Blocks a page.
pub(crate) const PAGE_BLOCKS: usize = 16;
/// Pages a chunk. Chunks are never moved, so growing copies nothing.
const CHUNK_PAGES: usize = 64;

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
}

/// Stands where a block has no own name, since another block had it first. A block that is really called so has
/// no own name either.
const NO_NAME: SequenceHash = SequenceHash(0);

#[derive(Clone)]
struct Page {
    contents: [BlockHash; PAGE_BLOCKS],
    names: [SequenceHash; PAGE_BLOCKS],
    /// Depth of the block in slot 0: how many blocks stand in front of it.
    base: u32,
    /// Slots in use, from slot 0.
    used: u8,
    owner: Owner,
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
    chunks: Vec<Box<[Page]>>,
    free: Vec<u32>,
    used: usize,
}

impl Pages {
    fn page(&self, page: u32) -> &Page {
        &self.chunks[page as usize / CHUNK_PAGES][page as usize % CHUNK_PAGES]
    }

    fn page_mut(&mut self, page: u32) -> &mut Page {
        &mut self.chunks[page as usize / CHUNK_PAGES][page as usize % CHUNK_PAGES]
    }

    /// Pages in use.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// An empty page whose first block will have the depth `base`.
    pub(crate) fn allocate(&mut self, base: u32, owner: RunId) -> u32 {
        let empty = Page {
            contents: [BlockHash(0); PAGE_BLOCKS],
            names: [NO_NAME; PAGE_BLOCKS],
            base,
            used: 0,
            owner: Owner::One(owner),
        };
        if self.free.is_empty() {
            let first = (self.chunks.len() * CHUNK_PAGES) as u32;
            self.chunks.push(vec![empty.clone(); CHUNK_PAGES].into_boxed_slice());
            self.free.extend((first..first + CHUNK_PAGES as u32).rev());
        }
        let page = self.free.pop().unwrap_or_default();
        *self.page_mut(page) = empty;
        self.used += 1;
        page
    }

    /// Puts a block into the next free slot of a page that is not full.
    pub(crate) fn push(&mut self, page: u32, content: BlockHash, owner: RunId) -> Place {
        let found = self.page_mut(page);
        let slot = found.used;
        found.contents[usize::from(slot)] = content;
        found.names[usize::from(slot)] = NO_NAME;
        found.used += 1;
        found.set_owner(slot, slot + 1, owner);
        Place::new(page, slot)
    }

    /// Frees the slots of a page from `slot` on, and the page with its last one.
    pub(crate) fn truncate(&mut self, page: u32, slot: u8) {
        let found = self.page_mut(page);
        found.used = slot;
        if slot == 0 {
            found.owner = Owner::One(RunId::NONE);
            self.used -= 1;
            self.free.push(page);
        }
    }

    /// The page's first free slot, if there is one directly behind `place`.
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

    /// Makes `run` the owner of the slots `from..to` of a page.
    pub(crate) fn set_owner(&mut self, page: u32, from: u8, to: u8, run: RunId) {
        self.page_mut(page).set_owner(from, to, run);
    }

    pub(crate) fn contents(&self, page: u32, from: u8, to: u8) -> &[BlockHash] {
        &self.page(page).contents[usize::from(from)..usize::from(to)]
    }

    /// The block's own name: that of whoever stored it first, if it was not another block's.
    pub(crate) fn own_name(&self, place: Place) -> Option<SequenceHash> {
        Some(self.page(place.page()).names[usize::from(place.slot())]).filter(|&name| name != NO_NAME)
    }

    /// Gives a block its own name, if it can have it.
    pub(crate) fn set_own_name(&mut self, place: Place, name: SequenceHash) {
        self.page_mut(place.page()).names[usize::from(place.slot())] = name;
    }
}

impl Page {
    fn set_owner(&mut self, from: u8, to: u8, run: RunId) {
        match &mut self.owner {
            Owner::One(owner) if *owner == run => {}
            // Nothing else is in use: the whole page changes hands.
            Owner::One(owner) if from == 0 && to >= self.used => *owner = run,
            Owner::One(owner) => {
                let mut runs = Box::new([*owner; PAGE_BLOCKS]);
                runs[usize::from(from)..usize::from(to)].fill(run);
                self.owner = Owner::Several(runs);
            }
            Owner::Several(runs) => {
                runs[usize::from(from)..usize::from(to)].fill(run);
                if runs[..usize::from(self.used)].iter().all(|owner| *owner == run) {
                    self.owner = Owner::One(run);
                }
            }
        }
    }
}
