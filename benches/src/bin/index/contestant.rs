//! The indexes that are measured: kvtide's tree, and the two published ones that answer exactly.

use kv_index::{ChainBlockMap, ChainIndex, StoredBlock};
use kvtide_radix::{BlockHash, Event, Limits, Overlap, Rank, RankSettings, RankSlot, Reader, Writer, index};

use crate::workload::hashed;

/// An index of one scope, with everything that asking it again and again needs.
pub(crate) trait Contestant {
    const NAME: &str;
    /// An event and a block hash in the form that the index takes.
    type Event;
    type Hash: Copy;

    fn new(ranks: usize, settings: &RankSettings) -> Self;
    fn event(event: &Event) -> Self::Event;
    fn hash(hash: BlockHash) -> Self::Hash;
    /// Applies events, each with its rank, and shows them to readers at once where the index can.
    fn apply(&mut self, events: &[(usize, Self::Event)]);
    /// Finds every rank's reach. Returns how many ranks have any.
    fn ask(&mut self, prompt: &[Self::Hash]) -> usize;
    /// The same as blocks a rank, by rank.
    fn reaches(&mut self, prompt: &[Self::Hash]) -> Vec<u32>;
}

/// kvtide's tree, with a block size of one token, so that reaches count blocks.
pub(crate) struct Kvtide {
    writer: Writer,
    reader: Reader,
    slots: Vec<RankSlot>,
    answer: Overlap,
}

pub(crate) fn rank(number: usize) -> Rank {
    Rank { worker_id: number as u64, dp_rank: 0 }
}

impl Contestant for Kvtide {
    const NAME: &str = "kvtide";
    type Event = Event;
    type Hash = BlockHash;

    fn new(ranks: usize, settings: &RankSettings) -> Kvtide {
        let (mut writer, reader) = index(1, Limits::default());
        let mut join = |number| writer.update(|update| update.join(rank(number), settings.clone()));
        let slots = (0..ranks).map_while(|number| join(number).ok()).collect();
        Kvtide { writer, reader, slots, answer: Overlap::default() }
    }

    fn event(event: &Event) -> Event {
        event.clone()
    }

    fn hash(hash: BlockHash) -> BlockHash {
        hash
    }

    fn apply(&mut self, events: &[(usize, Event)]) {
        self.writer.update(|update| {
            for (rank, event) in events {
                update.apply(self.slots[*rank], event);
            }
        });
    }

    fn ask(&mut self, prompt: &[Self::Hash]) -> usize {
        self.reader.view().overlap([prompt], &mut self.answer);
        self.answer.len()
    }

    fn reaches(&mut self, prompt: &[Self::Hash]) -> Vec<u32> {
        self.reader.view().overlap([prompt], &mut self.answer);
        self.slots.iter().map(|&slot| self.answer.reach(slot).gpu()).collect()
    }
}

/// `smg-radix-tree`: no concurrency.
pub(crate) struct Smg {
    tree: radix_tree::RadixTree,
    holders: Vec<radix_tree::HolderId>,
    scratch: radix_tree::OverlapScratch,
    answer: Vec<radix_tree::Overlap>,
}

/// An event of `smg-radix-tree`, which takes pairs of name and content.
pub(crate) enum SmgEvent {
    Stored(Option<u64>, Vec<(u64, u64)>),
    Removed(Vec<u64>),
    Cleared,
}

impl Contestant for Smg {
    const NAME: &str = "smg-radix-tree";
    type Event = SmgEvent;
    type Hash = u64;

    fn new(ranks: usize, _: &RankSettings) -> Smg {
        let mut tree = radix_tree::RadixTree::new(radix_tree::Config::default());
        let holders = (0..ranks).map(|rank| tree.create_holder(&rank.to_string())).collect();
        Smg { tree, holders, scratch: radix_tree::OverlapScratch::default(), answer: Vec::new() }
    }

    fn event(event: &Event) -> SmgEvent {
        match event {
            Event::Stored(stored) => {
                let pairs = hashed(stored).iter().map(|block| (block.name.0, block.content.0));
                SmgEvent::Stored(stored.parent.map(|name| name.0), pairs.collect())
            }
            Event::Removed(removed) => SmgEvent::Removed(removed.names.iter().map(|name| name.0).collect()),
            Event::Cleared => SmgEvent::Cleared,
        }
    }

    fn hash(hash: BlockHash) -> u64 {
        hash.0
    }

    fn apply(&mut self, events: &[(usize, SmgEvent)]) {
        for (rank, event) in events {
            let holder = self.holders[*rank];
            match event {
                SmgEvent::Stored(parent, blocks) => {
                    let stored = self.tree.store(holder, *parent, blocks);
                    assert!(stored.is_ok(), "workloads name parents that are held");
                }
                SmgEvent::Removed(names) => {
                    self.tree.remove(holder, names);
                }
                SmgEvent::Cleared => self.tree.clear(holder),
            }
        }
    }

    fn ask(&mut self, prompt: &[Self::Hash]) -> usize {
        self.tree.overlap(prompt, &mut self.scratch, &mut self.answer);
        self.answer.len()
    }

    fn reaches(&mut self, prompt: &[Self::Hash]) -> Vec<u32> {
        self.ask(prompt);
        let depth = |holder| self.answer.iter().find(|one| one.holder == holder).map_or(0, |one| one.depth);
        self.holders.iter().map(|&holder| depth(holder)).collect()
    }
}

/// `kv-index`: readers beside writers, by a lock a run; no version that a whole answer is of.
pub(crate) struct KvIndex {
    index: ChainIndex,
    maps: Vec<ChainBlockMap>,
    workers: Vec<u32>,
    answer: Vec<(u32, u32)>,
}

/// An event of `kv-index`.
pub(crate) enum KvIndexEvent {
    Stored(Option<kv_index::SequenceHash>, Vec<StoredBlock>),
    Removed(Vec<kv_index::SequenceHash>),
    Cleared,
}

impl Contestant for KvIndex {
    const NAME: &str = "kv-index";
    type Event = KvIndexEvent;
    type Hash = BlockHash;

    fn new(ranks: usize, _: &RankSettings) -> KvIndex {
        let index = ChainIndex::with_max_workers(ranks);
        let workers = (0..ranks).map_while(|rank| index.intern_worker(&rank.to_string()).ok()).collect();
        let maps = (0..ranks).map(|_| ChainBlockMap::new()).collect();
        KvIndex { index, maps, workers, answer: Vec::new() }
    }

    fn event(event: &Event) -> KvIndexEvent {
        match event {
            Event::Stored(stored) => {
                let blocks = hashed(stored).iter().map(|block| StoredBlock {
                    seq_hash: kv_index::SequenceHash(block.name.0),
                    content_hash: kv_index::ContentHash(block.content.0),
                });
                let parent = stored.parent.map(|name| kv_index::SequenceHash(name.0));
                KvIndexEvent::Stored(parent, blocks.collect())
            }
            Event::Removed(removed) => {
                let names = removed.names.iter().map(|name| kv_index::SequenceHash(name.0));
                KvIndexEvent::Removed(names.collect())
            }
            Event::Cleared => KvIndexEvent::Cleared,
        }
    }

    fn hash(hash: BlockHash) -> BlockHash {
        hash
    }

    fn apply(&mut self, events: &[(usize, KvIndexEvent)]) {
        for (rank, event) in events {
            let (worker, map) = (self.workers[*rank], &mut self.maps[*rank]);
            match event {
                KvIndexEvent::Stored(parent, blocks) => {
                    let stored = self.index.apply_stored(worker, blocks, *parent, map);
                    assert!(stored.is_ok(), "workloads name parents that are held");
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
}
