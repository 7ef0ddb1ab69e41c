//! Workers that fall silent and go, by a clock that stands still.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first step that cannot be")]

use std::{sync::Arc, time::Duration};

use kvtide::{
    BoundStream, Clock, EngineStream, Format, Indexer, KnowledgeState, Limits, Message, Scope, Stream,
};
use kvtide_radix::Rank;
use serde_json::json;

const RANK: Rank = Rank { worker_id: 7, dp_rank: 0 };

struct World {
    clock: Clock,
    indexer: Indexer,
    stream: Arc<BoundStream>,
}

impl World {
    /// Workers go when nothing has come from them for a minute.
    fn new() -> World {
        let clock = Clock::manual(1_700_000_000_000);
        let limits = Limits { gone_after: Some(Duration::from_secs(60)), ..Limits::default() };
        let indexer = Indexer::new(limits, clock.clone());
        let engine = EngineStream { replays: true, dp_rank: Some(0), ..EngineStream::new(7) };
        let stream = Stream::new("engine", Scope::new("m", 4), Format::Engine(engine));
        let stream = indexer.bind(stream).unwrap();
        World { clock, indexer, stream }
    }

    /// A batch of two copies of a block and one removal.
    fn batch(&self, sequence: u64) -> Vec<u8> {
        let stored = json!({"type": "BlockStored", "block_hashes": [1], "parent_block_hash": null, "block_size": 4,
                            "token_ids": [1, 1, 1, 1], "medium": "GPU"});
        let removed = json!({"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"});
        rmp_serde::to_vec(&json!([
            1.7e9 + f64::from(u32::try_from(sequence).unwrap()),
            [stored, stored, removed],
            0
        ]))
        .unwrap()
    }

    fn publish(&self, sequence: u64) {
        let payload = &self.batch(sequence);
        self.indexer.apply(&self.stream, Message::Batch { sequence: Some(sequence), payload }).unwrap();
    }

    fn pass(&self, seconds: u64) {
        self.clock.advance(1000 * seconds);
        self.indexer.tick();
    }

    /// Knowledge, generation and blocks on the GPU of the one rank, if it is known.
    fn rank(&self) -> Option<(KnowledgeState, u64, u64)> {
        let rank = *self.indexer.scopes()[0].ranks.first()?;
        assert_eq!(rank.rank, RANK);
        Some((rank.watermark.knowledge.into(), rank.watermark.life.0, rank.held_blocks[0]))
    }
}

#[test]
fn a_worker_from_which_nothing_comes_goes_and_comes_back_in_another_generation() {
    let world = World::new();
    world.publish(0);
    world.pass(59);
    assert_eq!(world.rank(), Some((KnowledgeState::Complete, 1, 1)));
    world.pass(1);
    assert_eq!((world.rank(), world.indexer.scopes()[0].size.held_blocks), (None, 0));
    world.publish(1);
    assert_eq!(world.rank(), Some((KnowledgeState::Recovering, 1, 0)), "what it holds has to be asked for");
    let request = world.indexer.replay_request(&world.stream);
    assert_eq!(request.from, 0);
    world.indexer.apply_replay(&world.stream, request, [(0, world.batch(0)), (1, world.batch(1))]).unwrap();
    assert_eq!(world.rank(), Some((KnowledgeState::Complete, 2, 1)));
}

#[test]
fn an_idle_engine_that_answers_does_not_go() {
    let world = World::new();
    world.publish(0);
    for _ in 0..5 {
        world.pass(30);
        let request = world.indexer.replay_request(&world.stream);
        world.indexer.apply_replay(&world.stream, request, [(0, world.batch(0))]).unwrap();
    }
    assert_eq!(world.rank(), Some((KnowledgeState::Complete, 1, 1)));
    world.pass(60);
    assert_eq!(world.rank(), None);
}

#[test]
fn a_registered_worker_does_not_go_and_takes_the_settings_of_its_stream() {
    let world = World::new();
    assert_eq!(world.indexer.register(&Scope::new("m", 4), &[RANK]).unwrap(), 1);
    world.pass(3600);
    assert_eq!(
        world.rank(),
        Some((KnowledgeState::Unknown, 0, 0)),
        "nobody has said that it should be heard"
    );
    world.publish(0);
    assert_eq!(world.rank(), Some((KnowledgeState::Complete, 1, 1)), "of two copies one is left");
}
