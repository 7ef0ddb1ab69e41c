//! A snapshot that is read where streams, scopes or limits are others than where it was written.

use std::time::Duration;

use kvtide::{
    Clock, EngineStream, Format, Indexer, KnowledgeState, Limits, Message, Scope, Stream, snapshot::Summary,
};
use kvtide_radix::{Event, Rank};
use serde_json::json;

const WALL_MS: u64 = 1_700_000_000_000;

fn scope(block_size: u32) -> Scope {
    Scope::new("m", block_size)
}

fn engine(worker_id: u64, dp_rank: Option<u32>) -> Stream {
    let engine = EngineStream { replays: true, dp_rank, ..EngineStream::new(worker_id) };
    Stream::new("engine", scope(4), Format::Engine(engine))
}

fn indexer(clock: &Clock, streams: Vec<Stream>) -> Indexer {
    let limits = Limits { gone_after: Some(Duration::from_secs(300)), ..Limits::default() };
    let indexer = Indexer::new(limits, clock.clone());
    streams.into_iter().for_each(|stream| drop(indexer.bind(stream).unwrap()));
    indexer
}

/// What is written of worker 7, whose engine has published one batch.
fn of_an_engine() -> Vec<u8> {
    let indexer = indexer(&Clock::manual(WALL_MS), vec![engine(7, Some(0))]);
    let stored = json!({"type": "BlockStored", "block_hashes": [1], "parent_block_hash": null, "block_size": 4,
                        "token_ids": [1, 1, 1, 1], "medium": "GPU"});
    let payload = &rmp_serde::to_vec(&json!([1.7e9, [stored], 0])).unwrap();
    let stream = indexer.stream("engine").unwrap();
    indexer.apply(&stream, Message::Batch { sequence: Some(0), payload }).unwrap();
    written(&indexer)
}

fn written(indexer: &Indexer) -> Vec<u8> {
    let mut bytes = Vec::new();
    indexer.write_snapshot(&mut bytes).unwrap();
    bytes
}

/// What is read where these streams are bound.
fn read(bytes: &[u8], streams: Vec<Stream>) -> (Summary, Indexer) {
    let indexer = indexer(&Clock::manual(WALL_MS), streams);
    (indexer.read_snapshot(bytes).unwrap(), indexer)
}

#[test]
fn an_engine_that_is_another_worker_now_does_not_go_on_as_the_old_one() {
    let bytes = of_an_engine();
    for (streams, goes_on) in [
        (vec![engine(7, Some(0))], true),
        (vec![engine(7, None)], true),
        (vec![engine(8, Some(0))], false),
        (vec![engine(7, Some(1))], false),
        (vec![Stream { name: "another".into(), ..engine(7, Some(0)) }], false),
        (vec![Stream { eagle: true, ..engine(7, Some(0)) }], false),
        (vec![Stream::new("engine", scope(4), Format::Dynamo)], true),
    ] {
        let shown = format!("{streams:?}");
        let (summary, indexer) = read(&bytes, streams);
        assert_eq!((summary.ranks, summary.left_out), if goes_on { (1, 0) } else { (0, 1) }, "{shown}");
        let held: u64 = indexer.scopes().iter().map(|scope| scope.size.held_blocks).sum();
        assert_eq!(held, u64::from(goes_on), "{shown}");
    }
}

#[test]
fn a_scope_that_nobody_has_any_more_does_not_come_back() {
    let bytes = of_an_engine();
    let (summary, indexer) = read(&bytes, vec![Stream { scope: scope(8), ..engine(7, Some(0)) }]);
    assert_eq!(summary, Summary { scopes: 1, ranks: 0, left_out: 1 });
    let scopes: Vec<Scope> = indexer.scopes().into_iter().map(|state| state.scope).collect();
    assert_eq!(scopes, [scope(8)]);
}

#[test]
fn where_one_scope_does_not_fit_none_is_taken() {
    let all = indexer(&Clock::manual(WALL_MS), Vec::new());
    for block_size in 1..=3 {
        let direct = all.direct(&scope(block_size)).unwrap();
        all.apply_events(&direct, Rank { worker_id: 7, dp_rank: 0 }, Some(1), &[Event::Cleared]).unwrap();
    }
    let limits = Limits { scopes: 2, ..Limits::default() };
    let few = Indexer::new(limits, Clock::manual(WALL_MS));
    let error = few.read_snapshot(&written(&all)[..]).unwrap_err().to_string();
    assert!(error.contains("2 are known, which is the limit"), "{error}");
    assert_eq!(few.scopes().iter().map(|scope| scope.ranks.len()).sum::<usize>(), 0);
}

#[test]
fn a_worker_that_has_gone_meanwhile_goes_here_too() {
    let clock = Clock::manual(WALL_MS);
    let indexer = indexer(&clock, vec![engine(7, Some(0))]);
    indexer.read_snapshot(&of_an_engine()[..]).unwrap();
    let knowledge = || indexer.scopes()[0].ranks.first().map(|rank| rank.watermark.knowledge.into());
    assert_eq!(knowledge(), Some(KnowledgeState::Recovering));
    for (seconds, expected) in [
        (59, Some(KnowledgeState::Recovering)),
        (1, Some(KnowledgeState::Partial)),
        (239, Some(KnowledgeState::Partial)),
        (1, None),
    ] {
        clock.advance(1000 * seconds);
        indexer.tick();
        assert_eq!(knowledge(), expected);
    }
}
