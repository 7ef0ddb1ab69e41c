//! Dynamo's events as it has them in memory, in kvtide's words. Frames on the bus are decoded by `kvtide-events`.

use dynamo_kv_router::protocols::{
    KvCacheEventData, ResidencyDomain, RouterEvent, StorageTier, WireResidencyDomain,
};
use kvtide_events::Ignored;
use kvtide_radix::{
    Block, BlockHash, Blocks, Event, Group, Layer, Rank, Removed, SequenceHash, Stored, Tier,
};

/// An event of Dynamo's, as if it had come in a frame.
#[must_use]
pub fn translate(event: RouterEvent) -> kvtide_events::RouterEvent {
    let rank = Rank { worker_id: event.worker_id, dp_rank: event.event.dp_rank };
    let event_id = event.event.event_id;
    kvtide_events::RouterEvent { rank, event_id, change: change(event) }
}

fn change(event: RouterEvent) -> Result<Event, Ignored> {
    match event.residency_domain {
        WireResidencyDomain::Missing | WireResidencyDomain::Known(ResidencyDomain::Worker) => {}
        WireResidencyDomain::Known(ResidencyDomain::CacheOwner) => return Err(Ignored::OtherResidency),
        WireResidencyDomain::Unknown(_) | WireResidencyDomain::Invalid => {
            return Err(Ignored::UnknownResidency);
        }
    }
    let layer = Layer::new(tier(event.storage_tier), Group::FULL);
    match event.event.data {
        KvCacheEventData::Stored(data) => {
            let parent = data.parent_hash.map(|parent| SequenceHash(parent.0));
            if parent.is_none() && data.start_position.is_some_and(|position| position > 0) {
                return Err(Ignored::Unplaced);
            }
            let block = |block: dynamo_kv_router::protocols::KvCacheStoredBlockData| Block {
                name: SequenceHash(block.block_hash.0),
                content: BlockHash(block.tokens_hash.0),
            };
            let blocks = Blocks::Hashed(data.blocks.into_iter().map(block).collect());
            Ok(Event::Stored(Stored { layer, parent, blocks }))
        }
        KvCacheEventData::Removed(data) => {
            let names = data.block_hashes.into_iter().map(|name| SequenceHash(name.0)).collect();
            Ok(Event::Removed(Removed { layer, names }))
        }
        KvCacheEventData::Cleared => Ok(Event::Cleared),
    }
}

/// Dynamo's word for a tier.
pub(crate) fn tier(tier: StorageTier) -> Tier {
    match tier {
        StorageTier::Device => Tier::Gpu,
        StorageTier::HostPinned => Tier::Host,
        StorageTier::Disk => Tier::Disk,
        StorageTier::External => Tier::External,
    }
}
