//! A tree as the events that would make it, parents first.

use std::collections::BTreeMap;

use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheStoreData, KvCacheStoredBlockData,
    LocalBlockHash, RouterEvent, StorageTier,
};
use kvtide_radix::{Dump, DumpedPlace, DumpedRun, Layer, SequenceHash, Tier};

/// Which rank holds a block in which layer under which name.
type Held = BTreeMap<(u32, Layer), BTreeMap<u32, SequenceHash>>;

/// The events, numbered from 0.
pub(super) fn events(dump: &Dump) -> Vec<RouterEvent> {
    let mut events = Vec::new();
    for (run, number) in dump.runs.iter().zip(0..) {
        for ((rank, layer), blocks) in held(run) {
            let mut previous = None;
            for (&block, &name) in &blocks {
                let stored = KvCacheStoredBlockData {
                    block_hash: ExternalSequenceBlockHash(name.0),
                    tokens_hash: LocalBlockHash(run.blocks[block as usize].content.0),
                    mm_extra_info: None,
                };
                // Blocks that follow each other are one event.
                if previous == block.checked_sub(1)
                    && previous.is_some()
                    && let Some(KvCacheEventData::Stored(data)) =
                        events.last_mut().map(|event: &mut RouterEvent| &mut event.event.data)
                {
                    data.blocks.push(stored);
                } else {
                    let parent = match block.checked_sub(1) {
                        Some(block) => Some(DumpedPlace { run: number, block }),
                        None => run.parent,
                    };
                    let parent = parent.map(|place| name_of(dump, rank, place));
                    events.push(store(dump, rank, layer, parent, stored, events.len() as u64));
                }
                previous = Some(block);
            }
        }
    }
    events
}

/// Whether any rank of a dump holds a block of that name.
pub(super) fn holds(dump: &Dump, name: SequenceHash) -> bool {
    dump.runs.iter().any(|run| held(run).values().any(|blocks| blocks.values().any(|&held| held == name)))
}

/// Of several names for one block in one layer, one is told.
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

/// What a rank calls a block, or what others do, if it does not hold it.
fn name_of(dump: &Dump, rank: u32, place: DumpedPlace) -> SequenceHash {
    let run = &dump.runs[place.run as usize];
    let unusual = run.unusual.iter().find(|hold| (hold.rank, hold.block) == (rank, place.block));
    unusual.map_or(run.blocks[place.block as usize].name, |hold| hold.name)
}

fn store(
    dump: &Dump,
    rank: u32,
    layer: Layer,
    parent: Option<SequenceHash>,
    block: KvCacheStoredBlockData,
    event_id: u64,
) -> RouterEvent {
    let rank = dump.ranks[rank as usize].rank;
    let parent_hash = parent.map(|parent| ExternalSequenceBlockHash(parent.0));
    let data =
        KvCacheEventData::Stored(KvCacheStoreData { parent_hash, start_position: None, blocks: vec![block] });
    let event = KvCacheEvent { event_id, data, dp_rank: rank.dp_rank };
    let tier = match layer.tier() {
        Tier::Gpu => StorageTier::Device,
        Tier::Host => StorageTier::HostPinned,
        Tier::Disk => StorageTier::Disk,
        Tier::External => StorageTier::External,
    };
    RouterEvent::with_storage_tier(rank.worker_id, event, tier)
}
