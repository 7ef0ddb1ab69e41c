//! Who answers a prompt's tokens: kvtide, and published indexes behind the hashing of `dynamo-kv-router`.

use dynamo_kv_router::protocols::{BlockHashOptions, LocalBlockHash, compute_block_hash_for_seq};
use kv_index::{ChainBlockMap, ChainIndex, ContentHash, StoredBlock};
use kvtide_events::Hashing;
use kvtide_radix::{
    Block, Blocks, Event, Limits, Overlap, Rank, RankSettings, RankSlot, Reader, Seed, Stored, Writer, index,
};

use crate::fleet::{RANKS, Served};

/// Hashes all of a prompt as Dynamo's router does.
pub(crate) fn dynamo_hashes(tokens: &[u32], hashing: Hashing) -> Vec<LocalBlockHash> {
    let options = BlockHashOptions { is_eagle: Some(hashing.eagle), ..BlockHashOptions::default() };
    compute_block_hash_for_seq(tokens, hashing.block_size, options)
}

/// Whoever follows the ranks' events and answers prompts.
pub(crate) trait Contestant {
    const NAME: &str;

    fn new(hashing: Hashing) -> Self;
    fn apply(&mut self, served: &Served);
    /// Finds every rank's reach from the prompt's tokens.
    fn ask(&mut self, tokens: &[u32]);
    /// Blocks that all ranks together have of the prompt that was asked last.
    fn blocks(&self) -> u64;
}

/// kvtide, hashing as the walk asks for it.
pub(crate) struct Kvtide {
    hashing: Hashing,
    writer: Writer,
    reader: Reader,
    slots: Vec<RankSlot>,
    answer: Overlap,
}

impl Contestant for Kvtide {
    const NAME: &str = "kvtide";

    fn new(hashing: Hashing) -> Kvtide {
        let (mut writer, reader) = index(hashing.block_size, Limits::default());
        let mut join = |number| {
            let rank = Rank { worker_id: number as u64, dp_rank: 0 };
            writer.update(|update| update.join(rank, RankSettings::default()))
        };
        let slots = (0..RANKS).map_while(|number| join(number).ok()).collect();
        Kvtide { hashing, writer, reader, slots, answer: Overlap::default() }
    }

    fn apply(&mut self, served: &Served) {
        let slot = self.slots[served.rank];
        self.writer.update(|update| {
            for event in &served.events {
                update.apply(slot, event);
            }
        });
    }

    fn ask(&mut self, tokens: &[u32]) {
        let groups = self.hashing.hash_groups(tokens, &[], Seed::PLAIN);
        self.reader.view().overlap(groups, &mut self.answer);
    }

    fn blocks(&self) -> u64 {
        let tokens = self.answer.reaches().map(|(_, reach)| u64::from(reach.gpu())).sum::<u64>();
        tokens / u64::from(self.hashing.block_size)
    }
}

/// `smg-radix-tree` behind Dynamo's hashing.
pub(crate) struct Smg {
    hashing: Hashing,
    tree: radix_tree::RadixTree,
    holders: Vec<radix_tree::HolderId>,
    scratch: radix_tree::OverlapScratch,
    answer: Vec<radix_tree::Overlap>,
    /// The index takes plain numbers.
    numbers: Vec<u64>,
}

impl Contestant for Smg {
    const NAME: &str = "dynamo + smg-radix-tree";

    fn new(hashing: Hashing) -> Smg {
        let mut tree = radix_tree::RadixTree::new(radix_tree::Config::default());
        let holders = (0..RANKS).map(|rank| tree.create_holder(&rank.to_string())).collect();
        let scratch = radix_tree::OverlapScratch::default();
        Smg { hashing, tree, holders, scratch, answer: Vec::new(), numbers: Vec::new() }
    }

    fn apply(&mut self, served: &Served) {
        let holder = self.holders[served.rank];
        for event in &served.events {
            match event {
                Event::Stored(stored) => {
                    let pairs: Vec<_> =
                        hashed(stored).iter().map(|block| (block.name.0, block.content.0)).collect();
                    let stored = self.tree.store(holder, stored.parent.map(|name| name.0), &pairs);
                    assert!(stored.is_ok(), "ranks name parents that they hold");
                }
                Event::Removed(removed) => {
                    let names: Vec<u64> = removed.names.iter().map(|name| name.0).collect();
                    self.tree.remove(holder, &names);
                }
                Event::Cleared => self.tree.clear(holder),
            }
        }
    }

    fn ask(&mut self, tokens: &[u32]) {
        let hashes = dynamo_hashes(tokens, self.hashing);
        self.numbers.clear();
        self.numbers.extend(hashes.iter().map(|hash| hash.0));
        self.tree.overlap(&self.numbers, &mut self.scratch, &mut self.answer);
    }

    fn blocks(&self) -> u64 {
        self.answer.iter().map(|one| u64::from(one.depth)).sum()
    }
}

/// `kv-index` behind Dynamo's hashing.
pub(crate) struct KvIndex {
    hashing: Hashing,
    index: ChainIndex,
    maps: Vec<ChainBlockMap>,
    workers: Vec<u32>,
    answer: Vec<(u32, u32)>,
}

impl Contestant for KvIndex {
    const NAME: &str = "dynamo + kv-index";

    fn new(hashing: Hashing) -> KvIndex {
        let index = ChainIndex::with_max_workers(RANKS);
        let workers = (0..RANKS).map_while(|rank| index.intern_worker(&rank.to_string()).ok()).collect();
        let maps = (0..RANKS).map(|_| ChainBlockMap::new()).collect();
        KvIndex { hashing, index, maps, workers, answer: Vec::new() }
    }

    fn apply(&mut self, served: &Served) {
        let (worker, map) = (self.workers[served.rank], &mut self.maps[served.rank]);
        for event in &served.events {
            match event {
                Event::Stored(stored) => {
                    let block = |block: &Block| StoredBlock {
                        seq_hash: kv_index::SequenceHash(block.name.0),
                        content_hash: ContentHash(block.content.0),
                    };
                    let blocks: Vec<StoredBlock> = hashed(stored).iter().map(block).collect();
                    let parent = stored.parent.map(|name| kv_index::SequenceHash(name.0));
                    let stored = self.index.apply_stored(worker, &blocks, parent, map);
                    assert!(stored.is_ok(), "ranks name parents that they hold");
                }
                Event::Removed(removed) => {
                    let names: Vec<_> =
                        removed.names.iter().map(|name| kv_index::SequenceHash(name.0)).collect();
                    self.index.apply_removed(worker, &names, map);
                }
                Event::Cleared => self.index.apply_cleared(worker, map),
            }
        }
    }

    fn ask(&mut self, tokens: &[u32]) {
        let hashes = dynamo_hashes(tokens, self.hashing);
        self.answer.clear();
        let note = |worker, blocks| self.answer.push((worker, blocks));
        self.index.score_into(&hashes, |hash| hash.0, false, note);
    }

    fn blocks(&self) -> u64 {
        self.answer.iter().map(|&(_, blocks)| u64::from(blocks)).sum()
    }
}

/// The blocks of a store, which ranks of the fleet give as hashes.
fn hashed(stored: &Stored) -> &[Block] {
    match &stored.blocks {
        Blocks::Hashed(blocks) => blocks,
        Blocks::Tokens(_) | Blocks::Named(_) => &[],
    }
}
