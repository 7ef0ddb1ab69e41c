//! `kv-index`: readers beside writers, by a lock a run; no version that a whole answer is of.

use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};
use kvtide_benches::hashed;
use kvtide_radix::{BlockHash, Event, RankSettings};

use super::Contestant;

/// The index, with what each worker's writer keeps, and a buffer for answers.
pub(crate) struct KvIndex {
    index: ChainIndex,
    maps: Vec<ChainBlockMap>,
    workers: Vec<u32>,
    refused: usize,
    answer: Vec<(u32, u32)>,
}

/// An event of `kv-index`.
pub(crate) enum KvIndexEvent {
    Stored(Option<SequenceHash>, Vec<StoredBlock>),
    Removed(Vec<SequenceHash>),
    Cleared,
}

impl Contestant for KvIndex {
    type Event = (usize, KvIndexEvent);
    type Hash = BlockHash;

    fn new(ranks: usize, _: &RankSettings) -> KvIndex {
        let index = ChainIndex::with_max_workers(ranks);
        let workers = (0..ranks)
            .map(|rank| index.intern_worker(&rank.to_string()).expect("no more workers than it was made for"))
            .collect();
        let maps = (0..ranks).map(|_| ChainBlockMap::new()).collect();
        KvIndex { index, maps, workers, refused: 0, answer: Vec::new() }
    }

    fn event(rank: usize, event: &Event) -> (usize, KvIndexEvent) {
        let event = match event {
            Event::Stored(stored) => {
                let blocks = hashed(stored).iter().map(|block| StoredBlock {
                    seq_hash: SequenceHash(block.name.0),
                    content_hash: ContentHash(block.content.0),
                });
                let parent = stored.parent.map(|name| SequenceHash(name.0));
                KvIndexEvent::Stored(parent, blocks.collect())
            }
            Event::Removed(removed) => {
                let names = removed.names.iter().map(|name| SequenceHash(name.0));
                KvIndexEvent::Removed(names.collect())
            }
            Event::Cleared => KvIndexEvent::Cleared,
        };
        (rank, event)
    }

    fn hash(hash: BlockHash) -> BlockHash {
        hash
    }

    fn apply(&mut self, events: &mut [(usize, KvIndexEvent)]) {
        for (rank, event) in events {
            let (worker, map) = (self.workers[*rank], &mut self.maps[*rank]);
            match event {
                KvIndexEvent::Stored(parent, blocks) => {
                    let stored = self.index.apply_stored(worker, blocks, *parent, map);
                    self.refused += usize::from(stored.is_err());
                }
                KvIndexEvent::Removed(names) => self.index.apply_removed(worker, names, map),
                KvIndexEvent::Cleared => self.index.apply_cleared(worker, map),
            }
        }
    }

    fn ask(&mut self, prompt: &[Self::Hash]) -> usize {
        self.answer.clear();
        let note = |worker, blocks| self.answer.push((worker, blocks));
        self.index.score_into(prompt, |hash| hash.0, false, note);
        self.answer.len()
    }

    fn reaches(&mut self, prompt: &[Self::Hash]) -> Vec<u32> {
        self.ask(prompt);
        let blocks = |worker| self.answer.iter().find(|one| one.0 == worker).map_or(0, |one| one.1);
        self.workers.iter().map(|&worker| blocks(worker)).collect()
    }
    /// It puts nothing off.
    fn sweep(&mut self) {}

    fn refused(&self) -> Option<usize> {
        Some(self.refused)
    }
}
