//! Names of blocks that a rank no longer holds, kept bound to their content for a bounded while.
//!
//! A clear can end every holder of a block just before a lower tier announces the same name again, without saying
//! what it contains.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::{SequenceHash, pages::Place};

/// One rank's recent names, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    places: HashMap<SequenceHash, (Place, u64)>,
    /// Names in the order in which they came. One that has been taken out since is passed over.
    order: VecDeque<(SequenceHash, u64)>,
    clock: u64,
}

impl Recent {
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(crate) fn get(&self, name: SequenceHash) -> Option<Place> {
        self.places.get(&name).map(|&(place, _)| place)
    }

    /// Keeps a name. Returns the blocks that are no longer kept: those of the oldest names beyond `limit`.
    pub(crate) fn insert(&mut self, name: SequenceHash, place: Place, limit: usize) -> Option<Place> {
        self.clock += 1;
        self.places.insert(name, (place, self.clock));
        self.order.push_back((name, self.clock));
        let dropped = if self.places.len() > limit { self.drop_oldest() } else { None };
        // Names that were taken out leave a trace here until they come to the front.
        if self.order.len() > 2 * limit + 16 {
            self.order.retain(|(name, when)| self.places.get(name).is_some_and(|(_, kept)| kept == when));
        }
        dropped
    }

    fn drop_oldest(&mut self) -> Option<Place> {
        while let Some((name, when)) = self.order.pop_front() {
            if self.places.get(&name).is_some_and(|&(_, kept)| kept == when) {
                return self.places.remove(&name).map(|(place, _)| place);
            }
        }
        None
    }

    /// Takes a name out, since its block is held again.
    pub(crate) fn remove(&mut self, name: SequenceHash) -> Option<Place> {
        self.places.remove(&name).map(|(place, _)| place)
    }

    /// Takes all names out.
    pub(crate) fn drain(&mut self) -> Vec<Place> {
        self.order.clear();
        self.places.drain().map(|(_, (place, _))| place).collect()
    }
}
