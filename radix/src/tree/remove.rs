//! Takes blocks away from a rank. What lies behind them stays held.

use std::ops::Range;

use super::{Bound, Outcome, Tree};
use crate::{Copies, Layer, RankSlot, Removed, SequenceHash, pages::Place, run::RunId};

/// Plain blocks of one run that a removal has named so far, next to each other.
struct Pending {
    run: RunId,
    depths: Range<u32>,
    named: Vec<(SequenceHash, Place)>,
}

impl Pending {
    /// Takes the block in if it stands beside the others. A block that is already in is not held any more.
    fn extend(&mut self, run: RunId, depth: u32) -> bool {
        let beside = self.run == run && (depth == self.depths.end || depth + 1 == self.depths.start);
        if beside {
            self.depths = self.depths.start.min(depth)..self.depths.end.max(depth + 1);
        }
        beside
    }
}

impl Tree {
    pub(super) fn remove(&mut self, rank: RankSlot, removed: &Removed, outcome: &mut Outcome) {
        let copies = self.ranks.get(rank).settings.copies;
        let mut pending: Option<Pending> = None;
        for &name in &removed.names {
            let mut held = false;
            if let Some(Bound::Held(place)) = self.resolve(rank, name) {
                let (run, depth) = self.locate(place);
                let in_pending = pending.as_ref().is_some_and(|one| one.run == run && one.depths.contains(&depth));
                if self.ranks.get(rank).unusual > 0 && self.holds.get(rank, place).is_some() {
                    self.flush(rank, removed.layer, pending.take());
                    held = self.release_listed(rank, removed.layer, place, name);
                } else if !in_pending && self.run(run).coverage.holds(rank, removed.layer, depth) {
                    held = true;
                    if !pending.as_mut().is_some_and(|one| one.extend(run, depth)) {
                        self.flush(rank, removed.layer, pending.take());
                        pending = Some(Pending { run, depths: depth..depth + 1, named: Vec::new() });
                    }
                    if let Some(one) = &mut pending {
                        one.named.push((name, place));
                    }
                }
            }
            outcome.removed += usize::from(held);
            if !held || copies == Copies::Set {
                let parking = &mut self.ranks.get_mut(rank).parking;
                let cancelled = if parking.is_empty() { 0 } else { parking.cancel(name, removed.layer, copies) };
                outcome.removed += cancelled;
                outcome.unknown += usize::from(!held && cancelled == 0);
            }
        }
        self.flush(rank, removed.layer, pending.take());
    }

    fn flush(&mut self, rank: RankSlot, layer: Layer, pending: Option<Pending>) {
        let Some(Pending { run, depths, named }) = pending else { return };
        self.uncover(rank, layer, run, depths);
        if self.ranks.get(rank).settings.recent_names > 0 {
            for (name, place) in named {
                let (run, depth) = self.locate(place);
                if !self.run(run).coverage.holds_anywhere(rank, depth) {
                    self.remember(rank, name, place);
                }
            }
        }
    }

    /// Takes everything away that the rank holds or waits for. Its names may stay bound for a while.
    pub(crate) fn clear(&mut self, rank: RankSlot, remember: bool) {
        let remember = remember && self.ranks.get(rank).settings.recent_names > 0;
        let mut named = Vec::new();
        let mut emptied = Vec::new();
        for (id, run) in &mut self.runs {
            if run.coverage.mentions(rank) {
                emptied.push(RunId(id as u32));
            }
        }
        for &id in &emptied {
            if remember {
                self.names_held(rank, id, &mut named);
            }
            let run = self.run_mut(id);
            run.coverage.remove_rank(rank);
            let (place, blocks) = (run.last_place(), run.blocks.clone());
            self.touch(place, [blocks.start, blocks.end]);
        }
        if self.ranks.get(rank).unusual > 0 {
            named.extend(self.holds.remove_rank(rank));
            self.names.remove_aliases_of(rank);
        }
        let entry = self.ranks.get_mut(rank);
        entry.unusual = 0;
        entry.parking.clear();
        let held = std::mem::replace(&mut *entry.held, [0; Layer::LIMIT]);
        self.lower_blocks -= held.iter().sum::<u64>() - held[Layer::GPU.index()];
        if remember {
            named.sort_unstable();
            named.dedup_by_key(|&mut (name, _)| name);
            for (name, place) in named {
                self.remember(rank, name, place);
            }
        }
    }

    /// The own names of the plain blocks of a run that the rank holds.
    fn names_held(&self, rank: RankSlot, id: RunId, named: &mut Vec<(SequenceHash, Place)>) {
        let run = self.run(id);
        let full = run.coverage.full.contains(rank).then(|| run.blocks.clone());
        let spans = run.coverage.of_rank(rank).iter().map(|span| span.from..span.to);
        for depth in full.into_iter().chain(spans).flatten() {
            let place = run.place(depth);
            if let (None, Some(name)) = (self.holds.get(rank, place), self.pages.own_name(place)) {
                named.push((name, place));
            }
        }
    }

    /// Takes everything away that the rank holds, waits for or ever named.
    pub(crate) fn forget(&mut self, rank: RankSlot) {
        self.clear(rank, false);
        for place in self.ranks.get_mut(rank).recent.drain() {
            self.unpin(place);
        }
        self.settle_touched();
        self.names.shrink(&self.pages);
    }
}
