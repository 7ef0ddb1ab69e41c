//! The ranks of a tree by slot: who they are, how they are read, and what is the writer's about them.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    Group, Layer, Rank, RankSettings, RankSlot, RankState, Tier, Watermark, numbers::Numbers, pages::Place,
    parking::Parking, recent::Recent, skeleton::Member,
};

/// One rank.
pub(crate) struct Entry {
    pub(crate) rank: Rank,
    pub(crate) settings: Arc<RankSettings>,
    pub(crate) watermark: Watermark,
    /// Blocks held, by layer.
    pub(crate) held: Box<[u64; Layer::LIMIT]>,
    /// Blocks listed as unusual holds: where there are none, nobody looks for them.
    pub(crate) unusual: usize,
    pub(crate) recent: Recent,
    /// The blocks that it stored and removed last, if they are still there: the next are mostly beside them.
    pub(crate) last_stored: Place,
    pub(crate) last_removed: Place,
    pub(crate) parking: Parking,
}

impl Entry {
    /// Whether the rank's reach cannot be read off its GPU blocks alone.
    pub(crate) fn is_windowed(&self) -> bool {
        !self.settings.windows.is_empty()
    }
}

/// All ranks. Slots are dense, and those of ranks that have left are given out again.
#[derive(Default)]
pub(crate) struct Ranks {
    entries: Vec<Option<Entry>>,
    numbers: Numbers,
    by_rank: BTreeMap<Rank, RankSlot>,
    /// Ranks with windows.
    pub(crate) windowed: usize,
}

impl Ranks {
    /// The entry of a rank that has joined.
    ///
    /// # Panics
    /// A slot of a rank that has left is a fault of the caller: slots come from `join` and end with `leave`.
    #[expect(clippy::panic, reason = "no input can name a slot; only a fault in the writer leads here")]
    pub(crate) fn get(&self, slot: RankSlot) -> &Entry {
        match self.entries.get(slot.index()) {
            Some(Some(entry)) => entry,
            Some(None) | None => panic!("slot {slot:?} belongs to no rank"),
        }
    }

    /// The entry of a rank that has joined, to be changed. Panics as [`Ranks::get`] does.
    #[expect(clippy::panic, reason = "no input can name a slot; only a fault in the writer leads here")]
    pub(crate) fn get_mut(&mut self, slot: RankSlot) -> &mut Entry {
        match self.entries.get_mut(slot.index()) {
            Some(Some(entry)) => entry,
            Some(None) | None => panic!("slot {slot:?} belongs to no rank"),
        }
    }

    pub(crate) fn find(&self, rank: Rank) -> Option<RankSlot> {
        self.by_rank.get(&rank).copied()
    }

    /// The slots of all ranks, in order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = RankSlot> {
        let slots = (0..).map(RankSlot).zip(&self.entries);
        slots.filter(|(_, entry)| entry.is_some()).map(|(slot, _)| slot)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_rank.len()
    }

    /// What readers see of a rank; nothing of one that has left.
    pub(crate) fn member(&self, slot: RankSlot) -> Option<Member> {
        let entry = self.entries.get(slot.index())?.as_ref()?;
        let state = RankState {
            slot,
            rank: entry.rank,
            watermark: entry.watermark,
            held_blocks: Tier::ALL.map(|tier| entry.held[Layer::new(tier, Group::FULL).index()]),
            parked_blocks: entry.parking.blocks(),
        };
        Some(Member { state, settings: Arc::clone(&entry.settings) })
    }

    /// Gives a new rank a slot.
    pub(crate) fn join(&mut self, rank: Rank, settings: RankSettings) -> RankSlot {
        let entry = Entry {
            rank,
            watermark: Watermark::default(),
            held: Box::new([0; Layer::LIMIT]),
            unusual: 0,
            recent: Recent::default(),
            last_stored: Place(0),
            last_removed: Place(0),
            parking: Parking::default(),
            settings: Arc::new(settings),
        };
        let slot = RankSlot(self.numbers.give());
        if slot.index() >= self.entries.len() {
            self.entries.resize_with(slot.index() + 1, || None);
        }
        self.windowed += usize::from(entry.is_windowed());
        self.entries[slot.index()] = Some(entry);
        self.by_rank.insert(rank, slot);
        slot
    }

    /// Frees the slot of a rank that holds nothing any more.
    pub(crate) fn leave(&mut self, slot: RankSlot) {
        if let Some(entry) = self.entries.get_mut(slot.index()).and_then(Option::take) {
            self.windowed -= usize::from(entry.is_windowed());
            self.by_rank.remove(&entry.rank);
            self.numbers.take_back(slot.0);
        }
    }

    /// States a rank's windows anew.
    pub(crate) fn set_windows(&mut self, slot: RankSlot, windows: Vec<crate::Window>) {
        let before = self.get(slot).is_windowed();
        let entry = self.get_mut(slot);
        Arc::make_mut(&mut entry.settings).windows = windows;
        let after = entry.is_windowed();
        self.windowed = self.windowed + usize::from(after) - usize::from(before);
    }
}
