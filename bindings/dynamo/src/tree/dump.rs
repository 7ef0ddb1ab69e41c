//! A tree as the events that would make it: first all blocks that a rank needs, parents first and on the device, then what it
//! holds in lower tiers, and then what it does not hold on the device goes again. So blocks behind an evicted one have their place.

use std::collections::{BTreeMap, HashMap};

use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, RouterEvent, StorageTier,
};
use kvtide_radix::{Block, Dump, DumpedPlace, DumpedRun, Layer, SequenceHash, Tier};

/// Which blocks of a run a rank holds in a layer, and under which names. Of several names for one block, one is told.
type Held = HashMap<(u32, Layer), BTreeMap<u32, SequenceHash>>;

/// The events, numbered from 0.
pub(super) fn events(dump: &Dump) -> Vec<RouterEvent> {
    let held: Vec<Held> = dump.runs.iter().map(held).collect();
    let needed = needed(dump);
    let name = |rank, place| name_of(dump, &held, rank, place);
    let mut told = Told { dump, events: Vec::new() };
    let mut gone: BTreeMap<u32, Vec<SequenceHash>> = BTreeMap::new();
    for (number, needed) in (0..).zip(&needed) {
        let run = &dump.runs[number as usize];
        for (&rank, &length) in needed {
            let blocks = (0..length).map(|block| {
                let name = name(rank, DumpedPlace { run: number, block });
                Block { name, content: run.blocks[block as usize].content }
            });
            let blocks: Vec<Block> = blocks.collect();
            let gpu = held[number as usize].get(&(rank, Layer::GPU));
            let stays = |block: u32| gpu.is_some_and(|gpu| gpu.contains_key(&block));
            let goes = (0..).zip(&blocks).filter(|&(block, _)| !stays(block)).map(|(_, block)| block.name);
            gone.entry(rank).or_default().extend(goes);
            told.store(rank, Layer::GPU, run.parent.map(|place| name(rank, place)), &blocks);
        }
    }
    for (number, held) in (0..).zip(&held) {
        let run = &dump.runs[number as usize];
        for (&(rank, layer), blocks) in held.iter().filter(|((_, layer), _)| layer.tier() != Tier::Gpu) {
            for (&block, &called) in blocks {
                let in_front = match block.checked_sub(1) {
                    Some(block) => Some(DumpedPlace { run: number, block }),
                    None => run.parent,
                };
                let content = run.blocks[block as usize].content;
                let parent = in_front.map(|place| name(rank, place));
                told.store(rank, layer, parent, &[Block { name: called, content }]);
            }
        }
    }
    for (rank, names) in gone.into_iter().filter(|(_, names)| !names.is_empty()) {
        told.remove(rank, &names);
    }
    told.events
}

/// Whether any rank of a dump holds a block of that name.
pub(super) fn holds(dump: &Dump, name: SequenceHash) -> bool {
    let is_it = |blocks: &BTreeMap<u32, SequenceHash>| blocks.values().any(|&held| held == name);
    dump.runs.iter().any(|run| held(run).values().any(is_it))
}

fn held(run: &DumpedRun) -> Held {
    let mut held = Held::new();
    for span in &run.held {
        let blocks = held.entry((span.rank, span.layer)).or_default();
        blocks.extend((span.from..span.to).map(|block| (block, run.blocks[block as usize].name)));
    }
    for hold in &run.unusual {
        held.entry((hold.rank, hold.layer)).or_default().insert(hold.block, hold.name);
    }
    held
}

/// By run, how many of its blocks each rank needs: what it holds, and what stands in front.
fn needed(dump: &Dump) -> Vec<BTreeMap<u32, u32>> {
    let mut needed: Vec<BTreeMap<u32, u32>> = vec![BTreeMap::new(); dump.runs.len()];
    for (number, run) in dump.runs.iter().enumerate().rev() {
        for span in &run.held {
            let length = needed[number].entry(span.rank).or_default();
            *length = (*length).max(span.to);
        }
        let Some(parent) = run.parent else { continue };
        for (rank, _) in needed[number].clone() {
            let length = needed[parent.run as usize].entry(rank).or_default();
            *length = (*length).max(parent.block + 1);
        }
    }
    needed
}

/// What a rank calls a block, on the device or elsewhere; what it does not hold has an invented name.
fn name_of(dump: &Dump, held: &[Held], rank: u32, place: DumpedPlace) -> SequenceHash {
    let DumpedPlace { run, block } = place;
    let layers = [Layer::GPU].into_iter().chain(dump.runs[run as usize].held.iter().map(|span| span.layer));
    let mut names = layers.filter_map(|layer| held[run as usize].get(&(rank, layer))?.get(&block).copied());
    // An odd constant keeps it apart from small numbers that a test, or an engine, may use.
    let invented = || SequenceHash((u64::from(run) << 32 | u64::from(block)) ^ 0x9e37_79b9_7f4a_7c15);
    names.next().unwrap_or_else(invented)
}

/// Events told so far.
struct Told<'a> {
    dump: &'a Dump,
    events: Vec<RouterEvent>,
}

impl Told<'_> {
    fn store(&mut self, rank: u32, layer: Layer, parent: Option<SequenceHash>, blocks: &[Block]) {
        let block = |block: &Block| KvCacheStoredBlockData {
            block_hash: ExternalSequenceBlockHash(block.name.0),
            tokens_hash: LocalBlockHash(block.content.0),
            mm_extra_info: None,
        };
        let parent_hash = parent.map(|parent| ExternalSequenceBlockHash(parent.0));
        let blocks = blocks.iter().map(block).collect();
        let data = KvCacheStoreData { parent_hash, start_position: None, blocks };
        self.tell(rank, layer, KvCacheEventData::Stored(data));
    }

    fn remove(&mut self, rank: u32, names: &[SequenceHash]) {
        let block_hashes = names.iter().map(|name| ExternalSequenceBlockHash(name.0)).collect();
        self.tell(rank, Layer::GPU, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }));
    }

    fn tell(&mut self, rank: u32, layer: Layer, data: KvCacheEventData) {
        let rank = self.dump.ranks[rank as usize].rank;
        let event_id = self.events.len() as u64;
        let event = KvCacheEvent { event_id, data, dp_rank: rank.dp_rank };
        let tier = match layer.tier() {
            Tier::Gpu => StorageTier::Device,
            Tier::Host => StorageTier::HostPinned,
            Tier::Disk => StorageTier::Disk,
            Tier::External => StorageTier::External,
        };
        self.events.push(RouterEvent::with_storage_tier(rank.worker_id, event, tier));
    }
}
