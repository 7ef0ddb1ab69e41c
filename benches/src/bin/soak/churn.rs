//! An index under churn: conversations that never end, in caches that are always full.

use std::{
    alloc::System,
    time::{Duration, Instant},
};

use kvtide_benches::{Conversations, Fleet, Latency, Shape, block, blocks_of, open};
use kvtide_radix::{BlockHash, Overlap, RankSettings, RankSlot, Reader, Size, Writer};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Ranks that announce.
pub(crate) const RANKS: usize = 64;
/// Blocks that all of them hold.
pub(crate) const HELD: usize = 262_144;
/// Events an update.
const VERSION: usize = 64;
/// Turns of conversations a step: enough for the index to find its way back into the caches.
const TURNS: usize = 4000;

/// The index, and what fills it.
pub(crate) struct Churn {
    fleet: Fleet,
    conversations: Conversations,
    writer: Writer,
    reader: Reader,
    slots: Vec<RankSlot>,
    answer: Overlap,
    /// Bytes that the allocator gave out within the index's own functions, and has not got back there.
    live_bytes: usize,
    /// What it had before it held anything.
    bytes_before: usize,
}

/// What was measured since a time.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) nanoseconds: Vec<u64>,
    pub(crate) blocks: usize,
    pub(crate) applying: Duration,
}

impl Measured {
    /// Lookups, and millions of blocks applied a second. None where nothing was asked.
    pub(crate) fn told(self) -> Option<(Latency, f64)> {
        let rate = self.blocks as f64 / self.applying.as_secs_f64() / 1e6;
        Some((Latency::of(self.nanoseconds)?, rate))
    }
}

impl Churn {
    /// An empty index.
    pub(crate) fn new() -> Churn {
        let fleet = Fleet::new(Shape { ranks: RANKS, room: HELD / RANKS, stored_per_hole: None });
        let conversations = Conversations::new(RANKS);
        let region = Region::new(ALLOCATOR);
        let (writer, reader, slots) = open(RANKS, &RankSettings::default());
        let change = region.change();
        let live_bytes = change.bytes_allocated - change.bytes_deallocated;
        let (answer, bytes_before) = (Overlap::default(), live_bytes);
        Churn { fleet, conversations, writer, reader, slots, answer, live_bytes, bytes_before }
    }

    /// An index whose caches are all full.
    pub(crate) fn filled() -> Churn {
        let mut churn = Churn::new();
        while churn.fleet.held_blocks() < HELD {
            churn.step(&mut Measured::default());
        }
        churn
    }

    /// Some turns of conversations: first their events, then their prompts, whose hashes have just been written.
    pub(crate) fn step(&mut self, measured: &mut Measured) {
        for _ in 0..TURNS {
            self.conversations.turn(&mut self.fleet);
        }
        self.apply(measured);
        let mut hashes: Vec<BlockHash> = Vec::new();
        for prompt in self.fleet.take_prompts() {
            hashes.clear();
            hashes.extend(prompt.iter().map(|&number| block(number).content));
            let start = Instant::now();
            self.reader.view().overlap([&hashes], &mut self.answer);
            measured.nanoseconds.push(start.elapsed().as_nanos() as u64);
        }
    }

    /// Every rank evicts all that it holds. Two versions more, and no version that readers may get shows any of it.
    pub(crate) fn empty(&mut self) {
        self.fleet.evict_all();
        self.apply(&mut Measured::default());
        let region = Region::new(ALLOCATOR);
        (0..2).for_each(|_| self.writer.update(|_| ()));
        let change = region.change();
        self.live_bytes = self.live_bytes + change.bytes_allocated - change.bytes_deallocated;
    }

    fn apply(&mut self, measured: &mut Measured) {
        let events = self.fleet.take_events();
        let region = Region::new(ALLOCATOR);
        let start = Instant::now();
        for version in events.chunks(VERSION) {
            self.writer.update(|update| {
                for (rank, event) in version {
                    update.apply(self.slots[*rank], event);
                }
            });
        }
        measured.applying += start.elapsed();
        let change = region.change();
        self.live_bytes = self.live_bytes + change.bytes_allocated - change.bytes_deallocated;
        measured.blocks += events.iter().map(|(_, event)| blocks_of(event)).sum::<usize>();
    }

    pub(crate) fn size(&self) -> Size {
        self.reader.view().size()
    }

    pub(crate) fn bytes_before(&self) -> usize {
        self.bytes_before
    }

    pub(crate) fn live_bytes(&self) -> usize {
        self.live_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_stays_the_same_once_caches_are_full_and_all_can_go() {
        let mut churn = Churn::filled();
        churn.step(&mut Measured::default());
        assert_eq!(churn.size().held_blocks, HELD as u64);
        assert!(churn.live_bytes() > 10 * HELD);
        churn.empty();
        assert_eq!((churn.size().held_blocks, churn.size().parked_blocks, churn.size().runs), (0, 0, 0));
    }
}
