//! kvtide's tree, with a block size of one token, so that reaches count blocks.

use kvtide_benches::open;
use kvtide_radix::{BlockHash, Event, Overlap, RankSettings, RankSlot, Reader, Writer};

use super::Contestant;

/// The two doors, and a buffer for answers.
pub(crate) struct Kvtide {
    writer: Writer,
    reader: Reader,
    slots: Vec<RankSlot>,
    refused: usize,
    answer: Overlap,
}

impl Contestant for Kvtide {
    type Event = (usize, Event);
    type Hash = BlockHash;

    fn new(ranks: usize, settings: &RankSettings) -> Kvtide {
        let (writer, reader, slots) = open(ranks, settings);
        Kvtide { writer, reader, slots, refused: 0, answer: Overlap::default() }
    }

    fn event(rank: usize, event: &Event) -> (usize, Event) {
        (rank, event.clone())
    }

    fn hash(hash: BlockHash) -> BlockHash {
        hash
    }

    fn apply(&mut self, events: &mut [(usize, Event)]) {
        self.writer.update(|update| {
            for (rank, event) in events {
                let outcome = update.apply(self.slots[*rank], event);
                self.refused += usize::from(outcome.unknown + outcome.parked + outcome.dropped > 0);
            }
        });
    }

    fn ask(&mut self, prompt: &[BlockHash]) -> usize {
        self.reader.view().overlap([prompt], &mut self.answer);
        self.answer.len()
    }

    fn reaches(&mut self, prompt: &[BlockHash]) -> Vec<u32> {
        self.ask(prompt);
        self.slots.iter().map(|&slot| self.answer.reach(slot).gpu()).collect()
    }

    /// Nothing is put off: an event leaves as few runs as can be.
    fn sweep(&mut self) {}

    fn refused(&self) -> Option<usize> {
        Some(self.refused)
    }
}
