//! Which run the blocks of a page belong to: 4 bytes a page, since nearly every page belongs to one run.

use std::ops::Range;

use slab::Slab;

use crate::{pages::PAGE_BLOCKS, run::RunId};

/// One page's owner: a run, or where the list of several is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    /// Marks the index of a list. Numbers of runs are smaller: each has a block, and a place has 29 bits.
    const SEVERAL: u32 = 1 << 31;
    pub(crate) const NONE: Owner = Owner(Owner::SEVERAL - 1);

    fn list(self) -> Option<usize> {
        (self.0 & Owner::SEVERAL != 0).then_some((self.0 & !Owner::SEVERAL) as usize)
    }
}

/// Lists of the pages that several runs share after a split, or where one starts in the page in which its parent ends.
#[derive(Default)]
pub(crate) struct Owners {
    lists: Slab<[RunId; PAGE_BLOCKS]>,
}

impl Owners {
    /// The run that a slot of a page belongs to.
    pub(crate) fn of(&self, owner: Owner, slot: u8) -> RunId {
        match owner.list() {
            None => RunId(owner.0),
            Some(list) => self.lists[list][usize::from(slot)],
        }
    }

    /// Makes a run the owner of all slots.
    pub(crate) fn give_all(&mut self, owner: &mut Owner, run: RunId) {
        self.release(owner);
        *owner = Owner(run.0);
    }

    /// Makes a run the owner of some of the slots, of which so many are in use.
    pub(crate) fn give(&mut self, owner: &mut Owner, slots: Range<u8>, used: u8, run: RunId) {
        if *owner == Owner(run.0) {
            return;
        }
        let all = slots.start == 0 && slots.end >= used;
        let list = match owner.list() {
            _ if all => return self.give_all(owner, run),
            Some(list) => list,
            None => {
                let list = self.lists.insert([RunId(owner.0); PAGE_BLOCKS]);
                *owner = Owner(list as u32 | Owner::SEVERAL);
                list
            }
        };
        let runs = &mut self.lists[list];
        runs[usize::from(slots.start)..usize::from(slots.end)].fill(run);
        if runs[..usize::from(used)].iter().all(|owner| *owner == run) {
            self.give_all(owner, run);
        }
    }

    /// Makes a page nobody's.
    pub(crate) fn release(&mut self, owner: &mut Owner) {
        if let Some(list) = std::mem::replace(owner, Owner::NONE).list() {
            self.lists.remove(list);
            if self.lists.is_empty() {
                self.lists = Slab::new();
            }
        }
    }
}
