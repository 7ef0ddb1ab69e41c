//! Streams that are let go while messages come: nothing of them is left, and nothing of others goes with them.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first step that cannot be")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use kvtide::{
    ApplyError, BoundStream, Clock, EngineStream, Format, Indexer, Limits, Message, PromptContent, Query,
    Scope, ScopeQuery, Stream,
};
use kvtide_radix::Rank;
use serde_json::json;

fn indexer() -> Arc<Indexer> {
    Arc::new(Indexer::new(Limits::default(), Clock::default()))
}

fn bind(indexer: &Indexer, name: &str, worker_id: u64, model: &str) -> Arc<BoundStream> {
    let engine = EngineStream { replays: true, ..EngineStream::new(worker_id) };
    indexer.bind(Stream::new(name, Scope::new(model, 4), Format::Engine(engine))).unwrap()
}

/// A batch that stores a block of four tokens.
fn batch() -> Vec<u8> {
    let stored = json!({"type": "BlockStored", "block_hashes": [1], "parent_block_hash": null, "block_size": 4,
                        "token_ids": [1, 1, 1, 1], "medium": "GPU"});
    rmp_serde::to_vec(&json!([1.7e9, [stored], 0])).unwrap()
}

fn apply(indexer: &Indexer, stream: &BoundStream, sequence: u64) -> Result<u64, ApplyError> {
    let message = Message::Batch { sequence: Some(sequence), payload: &batch() };
    indexer.apply(stream, message).map(|applied| applied.events)
}

/// The workers of a scope that reach the block.
fn holders(indexer: &Indexer, model: &str) -> Vec<u64> {
    let scope = ScopeQuery::from(&Scope::new(model, 4));
    let prompt = PromptContent::Tokens(vec![1; 4].into());
    let answer = indexer.overlap(&Query { scope, prompt, min_reach_tokens: 4, ..Query::default() });
    answer.unwrap().ranks.iter().map(|rank| rank.worker_id).collect()
}

#[test]
fn a_stream_goes_with_its_ranks_and_its_scope_with_the_last_stream() {
    let indexer = indexer();
    let (one, two) = (bind(&indexer, "one", 1, "m"), bind(&indexer, "two", 2, "m"));
    for stream in [&one, &two] {
        apply(&indexer, stream, 0).unwrap();
    }
    assert_eq!(holders(&indexer, "m"), [1, 2]);
    assert_eq!(indexer.unbind(&one), 1);
    assert_eq!((holders(&indexer, "m"), indexer.stream_count()), (vec![2], 1));
    assert_eq!(indexer.unbind(&one), 0, "it has gone already");
    // A rank that is only registered keeps its scope.
    indexer.register(&Scope::new("n", 4), &[Rank { worker_id: 9, dp_rank: 0 }]).unwrap();
    let other = bind(&indexer, "other", 3, "n");
    assert_eq!(indexer.unbind(&other), 0);
    assert_eq!(indexer.unbind(&two), 1);
    let scopes: Vec<String> = indexer.scopes().into_iter().map(|state| state.scope.model).collect();
    assert_eq!(scopes, ["n"]);
}

#[test]
fn what_is_still_on_its_way_is_refused() {
    let indexer = indexer();
    let (one, two) = (bind(&indexer, "one", 1, "m"), bind(&indexer, "two", 2, "m"));
    apply(&indexer, &one, 0).unwrap();
    let payload = batch();
    let received = indexer.receive(&one, [Message::Batch { sequence: Some(1), payload: &payload }]).unwrap();
    let request = indexer.replay_request(&one);
    indexer.unbind(&one);
    let gone = ApplyError::LetGo { stream: "one".to_owned() };
    assert_eq!(received.commit().unwrap_err(), gone);
    assert_eq!(apply(&indexer, &one, 2), Err(gone.clone()));
    assert_eq!(indexer.apply_replay(&one, request, [(0, &payload)]), Err(gone));
    indexer.doubt(&one);
    indexer.verify(&one, 1, None);
    assert!(!indexer.is_recovering(&one));
    apply(&indexer, &two, 0).unwrap();
    assert_eq!(holders(&indexer, "m"), [2]);
}

#[test]
fn one_of_the_same_name_may_be_bound_again_and_is_another_life() {
    let indexer = indexer();
    let _other = bind(&indexer, "two", 2, "m");
    for generation in 1..=3 {
        let stream = bind(&indexer, "one", 1, "m");
        apply(&indexer, &stream, 0).unwrap();
        let scopes = indexer.scopes();
        assert_eq!(scopes[0].ranks[0].watermark.life.0, generation);
        assert_eq!(indexer.unbind(&stream), 1);
    }
    // As something else, too.
    let stream = bind(&indexer, "one", 1, "n");
    apply(&indexer, &stream, 0).unwrap();
    assert_eq!(holders(&indexer, "n"), [1]);
}

#[test]
fn streams_come_and_go_while_others_publish_and_are_asked() {
    let indexer = indexer();
    let lasting = bind(&indexer, "lasting", 100, "m");
    apply(&indexer, &lasting, 0).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|threads| {
        let asking = threads.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert!(holders(&indexer, "m").contains(&100));
            }
        });
        let coming = (0..4_u64).map(|worker_id| {
            let indexer = &indexer;
            threads.spawn(move || {
                for _ in 0..200 {
                    let stream = bind(indexer, &format!("worker {worker_id}"), worker_id, "m");
                    let publishing = Arc::clone(&stream);
                    thread::scope(|threads| {
                        // It goes on until it is refused.
                        threads
                            .spawn(|| (0..).find(|&sequence| apply(indexer, &publishing, sequence).is_err()));
                        thread::yield_now();
                        indexer.unbind(&stream);
                    });
                }
            })
        });
        let coming: Vec<_> = coming.collect();
        coming.into_iter().for_each(|thread| thread.join().unwrap());
        done.store(true, Ordering::Relaxed);
        asking.join().unwrap();
    });
    assert_eq!((holders(&indexer, "m"), indexer.stream_count()), (vec![100], 1));
    let state = &indexer.scopes()[0];
    assert_eq!((state.ranks.len(), state.size.held_blocks), (1, 1), "nothing is left of the others");
}
