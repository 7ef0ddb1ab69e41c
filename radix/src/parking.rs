//! What cannot be placed yet: blocks behind an unknown parent, and names that nothing has bound to content.
//!
//! They wait, bounded in number and bytes, for the store that makes them known. What has waited longest goes first when
//! there is too much, and is counted. How long is too long, whoever has a clock says ([`Parking::expire`]).

use std::collections::BTreeMap;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::{Blocks, Copies, Layer, Limits, SequenceHash};

/// Blocks that wait.
#[derive(Clone, Debug)]
pub(crate) struct Parked {
    pub(crate) layer: Layer,
    /// The parent that is unknown; for names alone, the name itself.
    pub(crate) waits_for: SequenceHash,
    pub(crate) blocks: Blocks,
    /// Indices of blocks that were removed again before they could be placed, sorted.
    pub(crate) cancelled: SmallVec<[u32; 4]>,
}

impl Parked {
    fn waiting(&self) -> usize {
        self.blocks.len() - self.cancelled.len()
    }

    fn bytes(&self) -> usize {
        let names = self.blocks.len() * size_of::<SequenceHash>();
        match &self.blocks {
            Blocks::Hashed(blocks) => size_of_val(&blocks[..]),
            Blocks::Tokens(blocks) => {
                names + size_of_val(&blocks.tokens[..]) + size_of_val(&blocks.media[..])
            }
            Blocks::Named(_) => names,
        }
    }

    fn name(&self, index: usize) -> SequenceHash {
        match &self.blocks {
            Blocks::Hashed(blocks) => blocks[index].name,
            Blocks::Tokens(blocks) => blocks.names[index],
            Blocks::Named(names) => names[index],
        }
    }
}

/// One rank's parked blocks.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    /// By arrival.
    parked: BTreeMap<u64, Parked>,
    /// Arrivals by what they wait for.
    waiting: HashMap<SequenceHash, SmallVec<[u64; 1]>>,
    /// Arrivals by the names of their blocks, as often as they have it.
    named: HashMap<SequenceHash, SmallVec<[u64; 1]>>,
    arrivals: u64,
    blocks: usize,
    bytes: usize,
}

/// What waits for a rank, and how much has ever waited: what has arrived before some count can be expired by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ParkingState {
    /// Blocks that wait.
    pub blocks: usize,
    /// Stores that have ever had to wait.
    pub arrivals: u64,
}

/// Blocks that have waited too long and are dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Expired {
    /// Those whose parent never came.
    pub blocks: usize,
    /// Names alone, which nothing has bound.
    pub names: usize,
}

impl Parking {
    pub(crate) fn is_empty(&self) -> bool {
        self.parked.is_empty()
    }

    /// Blocks that wait.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(crate) fn state(&self) -> ParkingState {
        ParkingState { blocks: self.blocks, arrivals: self.arrivals }
    }

    /// What waits, in order of arrival. A store without blocks need not.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Parked> {
        self.parked.values().filter(|parked| parked.waiting() > 0)
    }

    /// Drops what had to wait before so many others had.
    pub(crate) fn expire(&mut self, before: u64) -> Expired {
        let mut expired = Expired::default();
        while let Some((&oldest, _)) = self.parked.first_key_value()
            && oldest < before
            && let Some(parked) = self.take(oldest)
        {
            match parked.blocks {
                Blocks::Named(_) => expired.names += parked.waiting(),
                Blocks::Hashed(_) | Blocks::Tokens(_) => expired.blocks += parked.waiting(),
            }
        }
        expired
    }

    /// Parks blocks, and drops those that have waited longest while there are more, in number or in bytes, than may be.
    /// Returns how many were dropped.
    pub(crate) fn park(&mut self, parked: Parked, limits: &Limits) -> usize {
        let arrival = self.arrivals;
        self.arrivals += 1;
        self.blocks += parked.waiting();
        self.bytes += parked.bytes();
        self.waiting.entry(parked.waits_for).or_default().push(arrival);
        for index in 0..parked.blocks.len() {
            self.named.entry(parked.name(index)).or_default().push(arrival);
        }
        self.parked.insert(arrival, parked);
        let before = self.blocks;
        while self.blocks > limits.parked_blocks || self.bytes > limits.parked_bytes {
            let Some((&oldest, _)) = self.parked.first_key_value() else { break };
            self.take(oldest);
        }
        before - self.blocks
    }

    fn take(&mut self, arrival: u64) -> Option<Parked> {
        let parked = self.parked.remove(&arrival)?;
        self.blocks -= parked.waiting();
        self.bytes -= parked.bytes();
        unlist(&mut self.waiting, parked.waits_for, arrival);
        for index in 0..parked.blocks.len() {
            unlist(&mut self.named, parked.name(index), arrival);
        }
        Some(parked)
    }

    /// Takes out what has waited for `name`, in order of arrival.
    pub(crate) fn take_waiting(&mut self, name: SequenceHash) -> Vec<Parked> {
        let arrivals = self.waiting.get(&name).cloned().unwrap_or_default();
        arrivals.into_iter().filter_map(|arrival| self.take(arrival)).collect()
    }

    /// A removal cancels the waiting block of that name: the one that has waited longest, or of a set all.
    /// Returns how many were cancelled.
    pub(crate) fn cancel(&mut self, name: SequenceHash, layer: Layer, copies: Copies) -> usize {
        let arrivals = self.named.get(&name).cloned().unwrap_or_default();
        let mut cancelled = 0;
        for arrival in arrivals {
            let Some(parked) = self.parked.get_mut(&arrival).filter(|parked| parked.layer == layer) else {
                continue;
            };
            let waits = |parked: &Parked, index: usize| {
                parked.name(index) == name && parked.cancelled.binary_search(&(index as u32)).is_err()
            };
            while let Some(index) = (0..parked.blocks.len()).find(|&index| waits(parked, index)) {
                let at = parked.cancelled.partition_point(|&other| (other as usize) < index);
                parked.cancelled.insert(at, index as u32);
                self.blocks -= 1;
                cancelled += 1;
                if copies == Copies::Counted {
                    break;
                }
            }
            if parked.waiting() == 0 {
                self.take(arrival);
            }
            if copies == Copies::Counted && cancelled > 0 {
                break;
            }
        }
        cancelled
    }

    /// Drops everything that waits.
    pub(crate) fn clear(&mut self) {
        *self = Parking { arrivals: self.arrivals, ..Parking::default() };
    }
}

fn unlist(lists: &mut HashMap<SequenceHash, SmallVec<[u64; 1]>>, name: SequenceHash, arrival: u64) {
    if let Some(list) = lists.get_mut(&name) {
        list.retain(|other| *other != arrival);
        if list.is_empty() {
            lists.remove(&name);
        }
    }
}
