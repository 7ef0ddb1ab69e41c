//! Dynamo's own router, asked for the same: its hashes are ours, and what its types write decodes to what they say.

mod wire;

use dynamo_kv_router::protocols as dynamo;
use kvtide_events::{BlockMedia, Engine, Frame, Hashing, Ignored, Media, RouterEvent, sequence_hashes};
use kvtide_radix::{
    Block, BlockHash, Blocks, Event, Group, Layer, Rank, Removed, Seed, SequenceHash, Stored, Tier,
};
use proptest::prelude::*;
use rmpv::Value;

/// A name of an adapter or a tenant; empty ones and none among them.
fn name() -> impl Strategy<Value = Option<String>> {
    prop::option::of(prop_oneof![Just(String::new()), Just("a".to_owned()), "\\PC{1,40}"])
}

/// Tokens that cross every boundary of a number's encoding.
fn tokens(most: usize) -> impl Strategy<Value = Vec<u32>> {
    let token = prop_oneof![0..300_u32, 65_000..66_000_u32, any::<u32>()];
    prop::collection::vec(token, 0..most)
}

fn media() -> impl Strategy<Value = Vec<Media>> {
    let ranges = prop::collection::vec(
        (0..500_usize, 0..200_usize).prop_map(|(start, length)| start..start + length),
        0..3,
    );
    // Few hashes, so that some come twice.
    prop::collection::vec((0..4_u64, ranges).prop_map(|(hash, tokens)| Media { hash, tokens }), 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn block_and_sequence_hashes_are_dynamos(
        tokens in tokens(600),
        block_size in prop_oneof![1..33_u32, 57..68_u32, 250..260_u32],
        eagle: bool,
        adapter in name(),
        tenant in name(),
        media in media(),
    ) {
        let objects = media.iter().map(|one| dynamo::RequestMmObjectInfo {
            mm_hash: one.hash,
            offsets: one.tokens.iter().map(|range| (range.start, range.end)).collect(),
        });
        let request = dynamo::RequestExtraInfo { mm_objects: objects.collect() };
        // It subtracts 1 from the number of blocks, so it takes no empty prompt.
        let infos = (!tokens.is_empty()).then(|| request.to_block_level(block_size as usize, tokens.len()));
        let theirs = dynamo::compute_block_hash_for_seq(&tokens, block_size, dynamo::BlockHashOptions {
            block_mm_infos: infos.as_deref(),
            lora_name: adapter.as_deref(),
            cache_namespace: tenant.as_deref(),
            is_eagle: Some(eagle),
        });

        let hashing = Hashing { block_size, eagle };
        let by_block = Media::by_block(&media, block_size, hashing.blocks(tokens.len()));
        let ours = hashing.block_hashes(&tokens, &by_block, Seed::of(adapter.as_deref(), tenant.as_deref()));
        prop_assert_eq!(ours.len(), theirs.len());
        let ours: Vec<BlockHash> = ours.collect();
        prop_assert_eq!(&ours, &theirs.iter().map(|hash| BlockHash(hash.0)).collect::<Vec<_>>());

        let names: Vec<u64> = sequence_hashes(ours).map(|name| name.0).collect();
        prop_assert_eq!(names, dynamo::compute_seq_hash_for_block(&theirs));
    }

    #[test]
    fn media_that_are_stated_block_by_block_hash_as_dynamos_do(
        tokens in tokens(300),
        block_size in 1..33_u32,
        eagle: bool,
        // Few hashes, so that some come twice in a block; more blocks and fewer than the prompt has.
        blocks in prop::collection::vec(prop::option::of(prop::collection::vec(0..4_u64, 0..4)), 0..40),
    ) {
        let object = |&mm_hash: &u64| dynamo::BlockMmObjectInfo { mm_hash, offsets: vec![(0, 1)] };
        let info = |hashes: &Vec<u64>| dynamo::BlockExtraInfo { mm_objects: hashes.iter().map(object).collect() };
        let infos: Vec<_> = blocks.iter().map(|block| block.as_ref().map(info)).collect();
        let theirs = dynamo::compute_block_hash_for_seq(&tokens, block_size, dynamo::BlockHashOptions {
            block_mm_infos: Some(&infos),
            is_eagle: Some(eagle),
            ..dynamo::BlockHashOptions::default()
        });
        let media: Vec<BlockMedia> =
            blocks.into_iter().map(|block| block.unwrap_or_default().into_iter().collect()).collect();
        let ours = Hashing { block_size, eagle }.block_hashes(&tokens, &media, Seed::PLAIN);
        prop_assert_eq!(
            ours.map(|hash| hash.0).collect::<Vec<_>>(),
            theirs.iter().map(|hash| hash.0).collect::<Vec<_>>()
        );
    }

    #[test]
    fn blocks_of_an_engine_hash_as_a_prompt_of_theirs_does(
        tokens in tokens(150),
        block_size in 1..33_u32,
        eagle: bool,
        adapter in name(),
        tenant in name(),
        by_salt: bool,
    ) {
        let theirs = dynamo::compute_block_hash_for_seq(&tokens, block_size, dynamo::BlockHashOptions {
            block_mm_infos: None,
            lora_name: adapter.as_deref(),
            cache_namespace: tenant.as_deref(),
            is_eagle: Some(eagle),
        });
        prop_assume!(!theirs.is_empty());
        let stored = stored_by_engine(&tokens[..theirs.len() * block_size as usize + usize::from(eagle)],
            theirs.len(), block_size, eagle, adapter.as_deref(), tenant.as_deref(), by_salt);

        let engine = Engine { block_size, adapter_names: [].into() };
        let batch = engine.decode(&wire::batch([stored]))?;
        let [Event::Stored(Stored { blocks: Blocks::Tokens(blocks), .. })] = batch.events.as_slice() else {
            return Err(TestCaseError::fail(format!("{batch:?}")));
        };
        let ours: Vec<u64> = blocks.hash(blocks.root_seed).iter().map(|block| block.content.0).collect();
        prop_assert_eq!(ours, theirs.iter().map(|hash| hash.0).collect::<Vec<_>>());
    }

    #[test]
    fn frames_of_their_types_decode_to_what_they_say(
        publisher_id: u64,
        sequence: u64,
        published_at_ms: u64,
        events in prop::collection::vec(router_event(), 0..12),
    ) {
        let payload = rmp_serde::to_vec_named(&events).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let bytes = wire::frame(publisher_id, sequence, published_at_ms, payload);
        let expected = Frame {
            publisher_id,
            sequence,
            published_at_ms,
            events: events.iter().map(expected_event).collect(),
        };
        prop_assert_eq!(Frame::decode(&bytes), Ok(expected));
        prop_assert_eq!(Frame::cut(&bytes).map(|cut| cut.publisher_id), Some(publisher_id));
    }
}

/// What an engine announces for these blocks, with the salt in a field of its own or among the keys.
fn stored_by_engine(
    tokens: &[u32],
    blocks: usize,
    block_size: u32,
    eagle: bool,
    adapter: Option<&str>,
    tenant: Option<&str>,
    by_salt: bool,
) -> Value {
    let ids = match eagle {
        true => wire::array(tokens.windows(2).map(|pair| wire::array(pair.iter().copied()))),
        false => wire::array(tokens.iter().copied()),
    };
    let optional = |word: Option<&str>| word.map_or(Value::Nil, Value::from);
    let keys = (0..blocks).map(|block| {
        let salt = tenant.filter(|_| block == 0).map(|tenant| format!("dynamo-cache-salt:{tenant}"));
        let named = adapter.filter(|adapter| !adapter.is_empty()).map(str::to_owned);
        wire::array(named.into_iter().chain(salt))
    });
    wire::map([
        ("type", "BlockStored".into()),
        ("block_hashes", wire::array(0..blocks as u64)),
        ("parent_block_hash", Value::Nil),
        ("token_ids", ids),
        ("block_size", block_size.into()),
        ("lora_id", Value::Nil),
        ("medium", "GPU".into()),
        ("lora_name", optional(adapter)),
        ("extra_keys", if by_salt { Value::Nil } else { wire::array(keys) }),
        ("cache_salt", if by_salt { optional(tenant) } else { Value::Nil }),
    ])
}

/// A number that may take any of MessagePack's lengths.
fn wide() -> impl Strategy<Value = u64> {
    prop_oneof![0..300_u64, 65_000..66_000_u64, 4_294_967_000..4_294_968_000_u64, any::<u64>()]
}

fn stored_data() -> impl Strategy<Value = dynamo::KvCacheEventData> {
    let object = (wide(), prop::collection::vec((0..9_usize, 0..9_usize), 0..3))
        .prop_map(|(mm_hash, offsets)| dynamo::BlockMmObjectInfo { mm_hash, offsets });
    let media =
        prop::collection::vec(object, 0..3).prop_map(|mm_objects| dynamo::BlockExtraInfo { mm_objects });
    let block =
        (wide(), wide(), prop::option::of(media)).prop_map(|(block_hash, tokens_hash, mm_extra_info)| {
            dynamo::KvCacheStoredBlockData {
                block_hash: dynamo::ExternalSequenceBlockHash(block_hash),
                tokens_hash: dynamo::LocalBlockHash(tokens_hash),
                mm_extra_info,
            }
        });
    let blocks = prop::collection::vec(block, 0..20);
    (prop::option::of(wide()), prop::option::of(any::<u32>()), blocks).prop_map(
        |(parent, start_position, blocks)| {
            let parent_hash = parent.map(dynamo::ExternalSequenceBlockHash);
            dynamo::KvCacheEventData::Stored(dynamo::KvCacheStoreData { parent_hash, start_position, blocks })
        },
    )
}

fn removed_data() -> impl Strategy<Value = dynamo::KvCacheEventData> {
    prop::collection::vec(wide().prop_map(dynamo::ExternalSequenceBlockHash), 0..40).prop_map(
        |block_hashes| dynamo::KvCacheEventData::Removed(dynamo::KvCacheRemoveData { block_hashes }),
    )
}

fn router_event() -> impl Strategy<Value = dynamo::RouterEvent> {
    let tier = prop::sample::select(vec![
        dynamo::StorageTier::Device,
        dynamo::StorageTier::HostPinned,
        dynamo::StorageTier::Disk,
        dynamo::StorageTier::External,
    ]);
    let domain = prop::sample::select(vec![
        dynamo::WireResidencyDomain::Missing,
        dynamo::WireResidencyDomain::Known(dynamo::ResidencyDomain::Worker),
        dynamo::WireResidencyDomain::Known(dynamo::ResidencyDomain::CacheOwner),
        dynamo::WireResidencyDomain::Unknown("another".into()),
        dynamo::WireResidencyDomain::Invalid,
    ]);
    let data = prop_oneof![stored_data(), removed_data(), Just(dynamo::KvCacheEventData::Cleared)];
    (wide(), wide(), any::<u32>(), data, tier, domain, prop::option::of("\\PC{0,40}")).prop_map(
        |(worker_id, event_id, dp_rank, data, storage_tier, residency_domain, session_id)| {
            dynamo::RouterEvent {
                worker_id,
                storage_tier,
                residency_domain,
                event: dynamo::KvCacheEvent { event_id, data, dp_rank },
                state_source: None,
                session_id,
            }
        },
    )
}

fn expected_event(event: &dynamo::RouterEvent) -> RouterEvent {
    RouterEvent {
        rank: Rank { worker_id: event.worker_id, dp_rank: event.event.dp_rank },
        event_id: event.event.event_id,
        change: expected_change(event),
    }
}

fn expected_change(event: &dynamo::RouterEvent) -> Result<Event, Ignored> {
    use dynamo::{KvCacheEventData, ResidencyDomain, StorageTier, WireResidencyDomain};
    match event.residency_domain {
        WireResidencyDomain::Missing | WireResidencyDomain::Known(ResidencyDomain::Worker) => {}
        WireResidencyDomain::Known(ResidencyDomain::CacheOwner) => return Err(Ignored::OtherResidency),
        WireResidencyDomain::Unknown(_) | WireResidencyDomain::Invalid => {
            return Err(Ignored::UnknownResidency);
        }
    }
    let tier = match event.storage_tier {
        StorageTier::Device => Tier::Gpu,
        StorageTier::HostPinned => Tier::Host,
        StorageTier::Disk => Tier::Disk,
        StorageTier::External => Tier::External,
    };
    let layer = Layer::new(tier, Group::FULL);
    Ok(match &event.event.data {
        KvCacheEventData::Stored(data)
            if data.parent_hash.is_none() && data.start_position.is_some_and(|position| position > 0) =>
        {
            return Err(Ignored::Unplaced);
        }
        KvCacheEventData::Stored(data) => {
            let blocks = data.blocks.iter().map(|block| Block {
                name: SequenceHash(block.block_hash.0),
                content: BlockHash(block.tokens_hash.0),
            });
            let parent = data.parent_hash.map(|parent| SequenceHash(parent.0));
            Event::Stored(Stored { layer, parent, blocks: Blocks::Hashed(blocks.collect()) })
        }
        KvCacheEventData::Removed(data) => {
            let names = data.block_hashes.iter().map(|name| SequenceHash(name.0)).collect();
            Event::Removed(Removed { layer, names })
        }
        KvCacheEventData::Cleared => Event::Cleared,
    })
}
