//! The ranks of a version: who they are, how far their streams are applied, and how their numbers are read.

use std::{collections::BTreeMap, sync::Arc};

use crate::{Rank, RankSettings, RankSlot, RankState};

/// What readers see of a rank.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) state: RankState,
    pub(crate) settings: Arc<RankSettings>,
}

/// All ranks of a version.
#[derive(Default)]
pub(crate) struct Roster {
    members: Vec<Option<Member>>,
    by_rank: BTreeMap<Rank, RankSlot>,
}

impl Roster {
    pub(crate) fn get(&self, slot: RankSlot) -> Option<&Member> {
        self.members.get(slot.index())?.as_ref()
    }

    pub(crate) fn find(&self, rank: Rank) -> Option<RankSlot> {
        self.by_rank.get(&rank).copied()
    }

    /// Slots, those of ranks that have left included.
    pub(crate) fn slots(&self) -> impl Iterator<Item = RankSlot> {
        (0..self.members.len() as u32).map(RankSlot)
    }

    /// All ranks, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.by_rank.values().filter_map(|&slot| self.get(slot))
    }

    pub(crate) fn set(&mut self, slot: RankSlot, member: Option<Member>) {
        if slot.index() >= self.members.len() {
            self.members.resize(slot.index() + 1, None);
        }
        let known = &mut self.members[slot.index()];
        let rank = |member: &Option<Member>| member.as_ref().map(|member| member.state.rank);
        if rank(known) != rank(&member) {
            if let Some(gone) = rank(known).filter(|gone| self.by_rank.get(gone) == Some(&slot)) {
                self.by_rank.remove(&gone);
            }
            if let Some(new) = rank(&member) {
                self.by_rank.insert(new, slot);
            }
        }
        *known = member;
    }
}
