//! A worker tells millions of blocks, and that must not take long.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first step that cannot be")]

use std::{fs, time::Duration};

use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheStoreData, KvCacheStoredBlockData,
    LocalBlockHash, RouterEvent, StorageTier,
};
use kvtide::{
    Announced, Clock, Format, IndexAnswer, Indexer, KnowledgeState, Limits, PromptContent, Query, Scope,
    Stream,
};
use kvtide_dynamo::translate;
use kvtide_radix::{BlockHash, Rank};

const EVENTS: u64 = 2_300_000;
/// Events that stand behind each other.
const CHAIN: u64 = 500;
const LIMIT: Duration = Duration::from_secs(2);

/// Time that this thread has run: others on the machine do not count.
fn ran() -> Duration {
    let told = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(told.split(' ').next().unwrap().parse().unwrap())
}

fn dumped(number: u64) -> RouterEvent {
    let data = KvCacheEventData::Stored(KvCacheStoreData {
        parent_hash: (!number.is_multiple_of(CHAIN)).then_some(ExternalSequenceBlockHash(number)),
        start_position: None,
        blocks: vec![KvCacheStoredBlockData {
            block_hash: ExternalSequenceBlockHash(number + 1),
            tokens_hash: LocalBlockHash(number + 1),
            mm_extra_info: None,
        }],
    });
    RouterEvent::with_storage_tier(
        7,
        KvCacheEvent { event_id: number, data, dp_rank: 0 },
        StorageTier::Device,
    )
}

#[test]
fn millions_of_events_are_applied_in_two_seconds() {
    let indexer = Indexer::new(Limits::default(), Clock::default());
    let stream = Stream { announced: true, ..Stream::new("bus", Scope::new("m", 16), Format::Dynamo) };
    let stream = indexer.bind(stream).unwrap();
    let announced = Announced { publisher_id: 1, rank: Rank { worker_id: 7, dp_rank: 0 }, keeps_index: true };
    indexer.verify(&stream, indexer.clock().steady_ms(), None);
    indexer.announce(&stream, announced).unwrap();
    let wanted = indexer.wanted_indexes().remove(0);
    let request = indexer.index_request(&wanted).unwrap();
    let events: Vec<RouterEvent> = (0..EVENTS).map(dumped).collect();

    let before = ran();
    let holds = events.into_iter().map(translate).collect();
    let translated = ran();
    let answer = IndexAnswer::Dump { holds, last_event_id: EVENTS, behind: Vec::new() };
    assert!(indexer.apply_index(&wanted, request, answer));
    let took = ran() - before;
    println!("{EVENTS} events in {took:?}, of that {:?} in translation", translated - before);

    let prompt = PromptContent::Hashes((1..=CHAIN).map(BlockHash).collect());
    let answer = indexer.overlap(&Query { prompt, ..Query::default() }).unwrap();
    assert_eq!(answer.ranks[0].reach_tokens.unwrap().gpu, u32::try_from(CHAIN).unwrap() * 16);
    assert_eq!(answer.ranks[0].knowledge, KnowledgeState::Partial);
    assert!(took < LIMIT, "{EVENTS} events took {took:?}");
}
