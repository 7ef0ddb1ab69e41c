//! Takes blocks away from a rank. What lies behind them stays held.

use std::ops::Range;

use super::{Outcome, Tree};
use crate::{Copies, Layer, RankSlot, Removed, SequenceHash, pages::Place, run::RunId};

/// Plain blocks of one run, next to each other, that a removal has named so far.
struct Pending {
    run: RunId,
    depths: Range<u32>,
    /// What the rank holds around them: no block of it needs to be looked up again.
    held: Range<u32>,
    /// Only where names are remembered.
    named: Vec<(SequenceHash, Place)>,
}

/// In which order blocks are removed.
#[derive(Clone, Copy)]
enum Towards {
    /// The end of a prompt first, as engines evict.
    Start,
    /// A whole node, parent first (SGLang).
    End,
}

impl Towards {
    fn step(self, place: Place, steps: u32) -> Place {
        match self {
            Towards::Start => place.back(steps),
            Towards::End => place.ahead(steps),
        }
    }
}

impl Pending {
    /// Takes the block in if it is held, not in yet, and beside the others.
    fn extend(&mut self, run: RunId, depth: u32) -> bool {
        let beside = depth == self.depths.end || depth + 1 == self.depths.start;
        if self.run != run || !beside || !self.held.contains(&depth) {
            return false;
        }
        self.depths = self.depths.start.min(depth)..self.depths.end.max(depth + 1);
        true
    }
}

impl Tree {
    pub(super) fn remove(&mut self, rank: RankSlot, removed: &Removed, outcome: &mut Outcome) {
        let copies = self.ranks.get(rank).settings.copies;
        let mut pending: Option<Pending> = None;
        let mut names = removed.names.as_slice();
        while let Some((&name, behind)) = names.split_first() {
            names = behind;
            let held = self.remove_one(rank, removed.layer, name, &mut pending);
            outcome.removed += usize::from(held);
            if !held || copies == Copies::Set {
                let parking = &mut self.ranks.get_mut(rank).parking;
                let cancelled =
                    if parking.is_empty() { 0 } else { parking.cancel(name, removed.layer, copies) };
                outcome.removed += cancelled;
                outcome.unknown += usize::from(!held && cancelled == 0);
            }
            if let Some(pending) = &mut pending {
                let count = self.remove_beside(rank, pending, names);
                outcome.removed += count;
                names = &names[count..];
            }
        }
        self.flush(rank, removed.layer, pending);
    }

    /// Takes plain blocks away that stand beside those pending and are named in the order in which they stand, a page at
    /// a time. Returns how many names are done with.
    fn remove_beside(&mut self, rank: RankSlot, pending: &mut Pending, names: &[SequenceHash]) -> usize {
        let entry = self.ranks.get_mut(rank);
        if entry.unusual > 0 || !entry.parking.is_empty() {
            return 0;
        }
        let remembers = entry.settings.recent_names > 0;
        let Pending { run, depths, held, named } = pending;
        let run = self.front.run(*run);
        let mut done = 0;
        for towards in [Towards::Start, Towards::End] {
            loop {
                let rest = &names[done..];
                let (place, count) = match towards {
                    Towards::Start if held.start < depths.start => {
                        let place = run.place(depths.start - 1);
                        (place, self.pages.names_back(place, rest).min((depths.start - held.start) as usize))
                    }
                    Towards::End if depths.end < held.end => {
                        let place = run.place(depths.end);
                        (place, self.pages.names_ahead(place, rest).min((held.end - depths.end) as usize))
                    }
                    Towards::Start | Towards::End => break,
                };
                if count == 0 {
                    break;
                }
                let mut places = (0..count as u32).map(|step| towards.step(place, step));
                if remembers {
                    named.extend(rest.iter().copied().zip(places.clone()));
                }
                match towards {
                    Towards::Start => depths.start -= count as u32,
                    Towards::End => depths.end += count as u32,
                }
                entry.last_removed = places.next_back().unwrap_or(place);
                done += count;
            }
        }
        done
    }

    /// Takes one copy of a block away. Whether the rank held any. A plain block goes with those `pending`.
    fn remove_one(
        &mut self,
        rank: RankSlot,
        layer: Layer,
        name: SequenceHash,
        pending: &mut Option<Pending>,
    ) -> bool {
        let near = self.ranks.get(rank).last_removed;
        let Some(place) = self.held(rank, name, near) else { return false };
        self.ranks.get_mut(rank).last_removed = place;
        if self.ranks.get(rank).unusual > 0 && self.holds.get(rank, place).is_some() {
            self.flush(rank, layer, pending.take());
            return self.release_listed(rank, layer, place, name);
        }
        let (run, depth) = self.locate(place);
        let remembers = self.ranks.get(rank).settings.recent_names > 0;
        if let Some(one) = pending.as_mut().filter(|one| one.run == run) {
            if one.depths.contains(&depth) {
                return false;
            }
            if one.extend(run, depth) {
                one.named.extend(remembers.then_some((name, place)));
                return true;
            }
        }
        self.flush(rank, layer, pending.take());
        let found = self.run(run);
        let held = found.coverage.held_around(rank, layer, depth, &found.blocks);
        if held.is_empty() {
            return false;
        }
        let named = remembers.then_some((name, place)).into_iter().collect();
        *pending = Some(Pending { run, depths: depth..depth + 1, held, named });
        true
    }

    fn flush(&mut self, rank: RankSlot, layer: Layer, pending: Option<Pending>) {
        let Some(Pending { run, depths, named, .. }) = pending else { return };
        self.uncover(rank, layer, run, depths);
        for (name, place) in named {
            let (run, depth) = self.locate(place);
            if !self.run(run).coverage.holds_anywhere(rank, depth) {
                self.remember(rank, name, place);
            }
        }
    }

    /// Takes everything away that the rank holds or waits for. Its names may stay bound for a while.
    pub(crate) fn clear(&mut self, rank: RankSlot, remember: bool) {
        let remember = remember && self.ranks.get(rank).settings.recent_names > 0;
        let mut named = Vec::new();
        for id in self.front.runs_of(rank) {
            if remember {
                self.names_held(rank, id, &mut named);
            }
            let run = self.front.run_mut(id);
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
        let held = *entry.held;
        for (layer, blocks) in Layer::all().zip(held) {
            self.count_gone(rank, layer, blocks);
        }
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
        self.changed.insert(rank.0);
        self.clear(rank, false);
        for place in self.ranks.get_mut(rank).recent.drain() {
            self.unpin(place);
        }
        self.settle_touched();
    }
}
