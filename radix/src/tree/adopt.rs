//! Takes over what a rank held in another tree, into one in which other ranks hold something.
//!
//! The rank's blocks are stored like any others: first all that it needs, on the GPU and under one name each; then whatever
//! it holds elsewhere, under other names or more than once; and then what it does not hold goes again. Blocks that only
//! stand in front of others get invented names.

use std::collections::HashSet;

use xxhash_rust::xxh3::xxh3_64;

use super::{Bound, Outcome, Tree};
use crate::{
    Block, Blocks, Dump, DumpedPlace, DumpedRun, Event, Layer, RankSlot, Removed, SequenceHash, Stored,
};

/// A dumped rank on its way into a tree.
struct Adopting<'a> {
    dump: &'a Dump,
    /// Its number in the dump.
    rank: u32,
    /// By run, all blocks that it needs.
    needed: Vec<Vec<Needed>>,
}

/// A block that a rank holds, or that stands in front of one.
#[derive(Clone, Copy)]
struct Needed {
    /// Under which it is stored first, on the GPU.
    name: SequenceHash,
    /// Whether it stays so.
    stays: bool,
}

impl Tree {
    /// A rank holds what that of a number in a [whole](Dump::check) dump did, and waits for what that waited for; whatever it
    /// held goes.
    pub(crate) fn adopt(&mut self, slot: RankSlot, dump: &Dump, number: usize) -> Outcome {
        self.forget(slot);
        let mut outcome = Outcome::default();
        let Some(dumped) = dump.ranks.get(number) else { return outcome };
        let mut adopting = Adopting::new(dump, number);
        for (run, needed) in dump.runs.iter().zip(&adopting.needed) {
            let Some(&Needed { name: first, .. }) = needed.first() else { continue };
            self.apply_adopted(slot, &adopting.chain(run, needed), &mut outcome);
            if let (None, Some(seed), Some(Bound::Held(place))) =
                (run.parent, run.seed, self.resolve(slot, first))
            {
                self.chains.state_seed(self.locate(place).0, seed);
            }
        }
        for event in adopting.elsewhere() {
            self.apply_adopted(slot, &event, &mut outcome);
        }
        for &(name, place) in &dumped.recent {
            self.apply_adopted(slot, &adopting.again(place, vec![name], Layer::GPU), &mut outcome);
        }
        // Names are remembered in the order in which they go: invented ones are forgotten first.
        let recent = dumped.recent.iter().map(|&(name, _)| name).collect();
        for names in [adopting.not_held(), recent] {
            self.apply_adopted(slot, &Event::Removed(Removed { layer: Layer::GPU, names }), &mut outcome);
        }
        outcome.dropped += self.park_again(slot, dumped);
        outcome
    }

    fn apply_adopted(&mut self, slot: RankSlot, event: &Event, outcome: &mut Outcome) {
        let Outcome { stored, dropped, .. } = self.apply(slot, event);
        outcome.stored += stored;
        outcome.dropped += dropped;
    }
}

impl Adopting<'_> {
    fn new(dump: &Dump, number: usize) -> Adopting<'_> {
        let rank = number as u32;
        let mut lengths = vec![0; dump.runs.len()];
        for &(_, place) in &dump.ranks[number].recent {
            let length: &mut u32 = &mut lengths[place.run as usize];
            *length = (*length).max(place.block + 1);
        }
        for (number, run) in dump.runs.iter().enumerate().rev() {
            let held = run.held.iter().filter(|span| span.rank == rank).map(|span| span.to).max();
            lengths[number] = lengths[number].max(held.unwrap_or(0));
            if let Some(parent) = run.parent.filter(|_| lengths[number] > 0) {
                let length = &mut lengths[parent.run as usize];
                *length = (*length).max(parent.block + 1);
            }
        }
        let needed = dump.runs.iter().zip(0..).zip(lengths).map(|((run, number), length)| {
            let invented = |block: u32| invented_name(DumpedPlace { run: number, block });
            let mut needed: Vec<_> =
                (0..length).map(|block| Needed { name: invented(block), stays: false }).collect();
            for span in run.held.iter().filter(|span| span.rank == rank) {
                let held = span.from as usize..span.to as usize;
                for (needed, block) in needed[held.clone()].iter_mut().zip(&run.blocks[held]) {
                    let stays = needed.stays || span.layer == Layer::GPU;
                    *needed = Needed { name: block.name, stays };
                }
            }
            for hold in run.unusual.iter().filter(|hold| hold.rank == rank) {
                needed[hold.block as usize] = Needed { name: hold.name, stays: false };
            }
            needed
        });
        Adopting { dump, rank, needed: needed.collect() }
    }

    /// Every block of a run that the rank needs, once.
    fn chain(&self, run: &DumpedRun, needed: &[Needed]) -> Event {
        let blocks = needed.iter().zip(&run.blocks);
        let blocks =
            blocks.map(|(needed, block)| Block { name: needed.name, content: block.content }).collect();
        store(Layer::GPU, run.parent.map(|parent| self.name(parent)), blocks)
    }

    /// What it holds in other layers, under other names, or more than once.
    fn elsewhere(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for (run, number) in self.dump.runs.iter().zip(0..) {
            let unusual: HashSet<u32> =
                run.unusual.iter().filter(|hold| hold.rank == self.rank).map(|hold| hold.block).collect();
            let lower = run.held.iter().filter(|span| span.rank == self.rank && span.layer != Layer::GPU);
            for span in lower {
                // In as few stretches as there are.
                let mut from = span.from;
                while from < span.to {
                    let to = (from..span.to).find(|block| unusual.contains(block)).unwrap_or(span.to);
                    if from < to {
                        let names = self.needed[number as usize][from as usize..to as usize].iter();
                        let names = names.map(|needed| needed.name).collect();
                        events.push(self.again(DumpedPlace { run: number, block: from }, names, span.layer));
                    }
                    from = to + 1;
                }
            }
            for hold in run.unusual.iter().filter(|hold| hold.rank == self.rank) {
                let place = DumpedPlace { run: number, block: hold.block };
                let needed = &mut self.needed[number as usize][hold.block as usize];
                let is_first = (needed.name, Layer::GPU) == (hold.name, hold.layer);
                needed.stays |= is_first;
                for _ in u32::from(is_first)..hold.copies {
                    events.push(self.again(place, vec![hold.name], hold.layer));
                }
            }
        }
        events
    }

    /// What was stored and is not held.
    fn not_held(&self) -> Vec<SequenceHash> {
        self.needed.iter().flatten().filter(|needed| !needed.stays).map(|needed| needed.name).collect()
    }

    /// Blocks that follow each other from a place on, once more, by their names.
    fn again(&self, place: DumpedPlace, names: Vec<SequenceHash>, layer: Layer) -> Event {
        let run = &self.dump.runs[place.run as usize];
        let in_front = match place.block.checked_sub(1) {
            Some(block) => Some(DumpedPlace { block, ..place }),
            None => run.parent,
        };
        let blocks = names.into_iter().zip(&run.blocks[place.block as usize..]);
        let blocks = blocks.map(|(name, block)| Block { name, content: block.content }).collect();
        store(layer, in_front.map(|place| self.name(place)), blocks)
    }

    fn name(&self, place: DumpedPlace) -> SequenceHash {
        self.needed[place.run as usize][place.block as usize].name
    }
}

fn store(layer: Layer, parent: Option<SequenceHash>, blocks: Vec<Block>) -> Event {
    Event::Stored(Stored { layer, parent, blocks: Blocks::Hashed(blocks) })
}

fn invented_name(place: DumpedPlace) -> SequenceHash {
    let mut bytes = *b"invented0123456\0";
    bytes[8..12].copy_from_slice(&place.run.to_le_bytes());
    bytes[12..].copy_from_slice(&place.block.to_le_bytes());
    SequenceHash(xxh3_64(&bytes))
}
