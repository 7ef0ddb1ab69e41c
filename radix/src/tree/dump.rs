//! Writes a tree down, and builds one again from what was written.

use std::ops::Range;

use hashbrown::HashSet;

use super::Tree;
use crate::{
    Block, Dump, DumpedHold, DumpedPlace, DumpedRank, DumpedRun, DumpedSpan, DumpedStore, Layer, Rank,
    RankSlot, RestoreError, SequenceHash,
    holds::Hold,
    pages::{PAGE_BLOCKS, Place},
    parking::Parked,
    run::{Run, RunId},
};

impl Tree {
    /// What those ranks hold, and whatever stands in front of it.
    pub(crate) fn dump(&self, is_in: impl Fn(Rank) -> bool) -> Dump {
        let slots: Vec<RankSlot> =
            self.ranks.slots().filter(|&slot| is_in(self.ranks.get(slot).rank)).collect();
        let rank_number = |slot: RankSlot| slots.binary_search(&slot).ok().map(|number| number as u32);
        let order = self.runs_of_any(&slots);
        let mut numbers = vec![0; order.iter().map(|id| id.0 as usize + 1).max().unwrap_or(0)];
        (0_u32..).zip(&order).for_each(|(number, id)| numbers[id.0 as usize] = number);
        let place_of = |place| {
            let (id, depth) = self.locate(place);
            DumpedPlace { run: numbers[id.0 as usize], block: depth - self.run(id).blocks.start }
        };
        let mut runs: Vec<DumpedRun> = order.iter().map(|&id| self.dump_run(id, rank_number)).collect();
        for (run, &id) in runs.iter_mut().zip(&order) {
            run.parent = self.run(id).parent().map(place_of);
        }
        for (slot, place, list) in self.holds.iter() {
            let Some(rank) = rank_number(slot) else { continue };
            let at = place_of(place);
            runs[at.run as usize].unusual.extend(list.iter().map(|&Hold { name, layer, copies }| {
                DumpedHold { rank, block: at.block, name, layer, copies }
            }));
        }
        runs.iter_mut()
            .for_each(|run| run.unusual.sort_by_key(|hold| (hold.rank, hold.block, hold.name, hold.layer)));
        let ranks = slots.iter().map(|&slot| {
            let entry = self.ranks.get(slot);
            let store = |parked: &Parked| DumpedStore {
                layer: parked.layer,
                waits_for: parked.waits_for,
                blocks: parked.blocks.clone(),
                cancelled: parked.cancelled.to_vec(),
            };
            DumpedRank {
                rank: entry.rank,
                watermark: entry.watermark,
                recent: entry.recent.iter().map(|(name, place)| (name, place_of(place))).collect(),
                parked: entry.parking.iter().map(store).collect(),
            }
        });
        Dump { ranks: ranks.collect(), runs }
    }

    /// The runs of which those ranks hold or remember anything, and those in front of them; parents first.
    fn runs_of_any(&self, slots: &[RankSlot]) -> Vec<RunId> {
        let mut kept: HashSet<RunId> = HashSet::new();
        let is_one = |slot: RankSlot| slots.binary_search(&slot).is_ok();
        let held = self.front.run_ids().filter(|&id| {
            let Run { coverage, .. } = self.run(id);
            !slots.is_empty()
                && (coverage.full.iter().any(is_one) || coverage.spans.iter().any(|span| is_one(span.rank)))
        });
        let recent = slots.iter().flat_map(|&slot| self.ranks.get(slot).recent.iter());
        for id in held.chain(recent.map(|(_, place)| self.locate(place).0)) {
            let mut next = Some(id);
            while let Some(id) = next.filter(|&id| kept.insert(id)) {
                next = self.run(id).parent().map(|parent| self.locate(parent).0);
            }
        }
        let mut order: Vec<RunId> = kept.into_iter().collect();
        order.sort_unstable_by_key(|&id| (self.run(id).blocks.start, id.0));
        order
    }

    fn dump_run(&self, id: RunId, rank_number: impl Fn(RankSlot) -> Option<u32>) -> DumpedRun {
        let run = self.run(id);
        let Range { start, end } = run.blocks;
        let block = |depth| {
            let place = run.place(depth);
            let name = self.pages.own_name(place).unwrap_or(SequenceHash(0));
            Block { name, content: self.pages.content(place) }
        };
        let full = run.coverage.full.iter().map(|rank| (rank, Layer::GPU, start..end));
        let spans = run.coverage.spans.iter().map(|span| (span.rank, span.layer, span.from..span.to));
        let held = full.chain(spans).filter_map(|(rank, layer, depths)| {
            let rank = rank_number(rank)?;
            Some(DumpedSpan { rank, layer, from: depths.start - start, to: depths.end - start })
        });
        DumpedRun {
            parent: None,
            seed: if run.parent().is_none() { self.chains.seed(id) } else { None },
            blocks: (start..end).map(block).collect(),
            held: held.collect(),
            unusual: Vec::new(),
        }
    }

    /// Whether a dump fits into the tree, which must be empty.
    pub(crate) fn check_room(&self, dump: &Dump) -> Result<(), RestoreError> {
        let (ranks, blocks) = (self.ranks.len(), dump.runs.iter().map(|run| run.blocks.len()).sum());
        // A run may begin a page of its own.
        let pages = dump.runs.iter().map(|run| run.blocks.len().next_multiple_of(PAGE_BLOCKS)).sum();
        if ranks > 0 {
            Err(RestoreError::NotEmpty { ranks })
        } else if !self.pages.have_room(pages, self.limits.blocks) {
            Err(RestoreError::BlocksFull { blocks, limit: self.limits.blocks })
        } else {
            Ok(())
        }
    }

    /// Fills an empty tree whose ranks are at `slots`, in the order of the dump, which was [checked](Dump::check).
    pub(crate) fn restore(&mut self, dump: &Dump, slots: &[RankSlot]) {
        let slot_of = |rank: u32| slots[rank as usize];
        let mut runs: Vec<RunId> = Vec::with_capacity(dump.runs.len());
        for dumped in &dump.runs {
            let parent = dumped.parent.map(|parent| self.restored_place(&runs, parent));
            let id = self.start_run(parent, dumped.blocks[0]);
            if let (None, Some(seed)) = (parent, dumped.seed) {
                self.chains.state_seed(id, seed);
            }
            self.extend(id, parent, &dumped.blocks);
            let start = self.run(id).blocks.start;
            for span in &dumped.held {
                self.cover(slot_of(span.rank), span.layer, id, start + span.from..start + span.to);
            }
            let end = self.run(id).blocks.end;
            // Whoever holds none of it keeps it for what hangs behind.
            self.touch(self.run(id).place(start), [start, end]);
            for hold in &dumped.unusual {
                let place = self.run(id).place(start + hold.block);
                self.restore_hold(slot_of(hold.rank), place, hold);
            }
            runs.push(id);
        }
        for (dumped, &slot) in dump.ranks.iter().zip(slots) {
            for &(name, place) in &dumped.recent {
                let place = self.restored_place(&runs, place);
                self.remember(slot, name, place);
            }
            self.park_again(slot, dumped);
            self.mark(slot, dumped.watermark);
        }
        self.settle_touched();
    }

    /// What waited waits again. Returns how many blocks there is no room for.
    pub(super) fn park_again(&mut self, slot: RankSlot, dumped: &DumpedRank) -> usize {
        let mut dropped = 0;
        for store in &dumped.parked {
            let DumpedStore { layer, waits_for, blocks, cancelled } = store.clone();
            let parked = Parked { layer, waits_for, blocks, cancelled: cancelled.into() };
            dropped += self.ranks.get_mut(slot).parking.park(parked, &self.limits);
        }
        dropped
    }

    fn restored_place(&self, runs: &[RunId], place: DumpedPlace) -> Place {
        let run: &Run = self.run(runs[place.run as usize]);
        run.place(run.blocks.start + place.block)
    }

    fn restore_hold(&mut self, rank: RankSlot, place: Place, hold: &DumpedHold) {
        let &DumpedHold { name, layer, copies, .. } = hold;
        if self.holds.restore(rank, place, Hold { name, layer, copies }) {
            self.ranks.get_mut(rank).unusual += 1;
        }
        if self.pages.own_name(place) != Some(name) {
            self.names.add_alias(rank, name, place);
        }
    }
}
