//! An engine's own stream: restarts, holes, clears, windows and ranks, as its batches show them.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first step that cannot be")]

use std::sync::Arc;

use kvtide::{
    Applied, ApplyError, BoundStream, Clock, EngineStream, Format, Indexer, KnowledgeState, Limits, Message,
    PromptContent, Query, RankAnswer, Scope, Stream,
};
use kvtide_radix::{Group, Window};
use serde_json::{Value, json};

/// An engine of worker 7, whose blocks have 4 tokens.
struct World {
    clock: Clock,
    indexer: Indexer,
    stream: Arc<BoundStream>,
}

/// How much of a stream is known.
#[derive(PartialEq, Eq, Debug)]
struct Known {
    knowledge: KnowledgeState,
    generation: u64,
    last: Option<u64>,
    missing: u64,
}

fn known(knowledge: KnowledgeState, generation: u64, last: u64, missing: u64) -> Known {
    Known { knowledge, generation, last: Some(last), missing }
}

/// The tokens of block 1, 2, ...
fn tokens(blocks: std::ops::RangeInclusive<u32>) -> Vec<u32> {
    blocks.flat_map(|block| [block; 4]).collect()
}

/// A store of block `name` behind the one before it.
fn stored(name: u32, medium: &str, group: u32) -> Value {
    let parent = (name > 1).then(|| name - 1);
    json!({"type": "BlockStored", "block_hashes": [name], "parent_block_hash": parent, "block_size": 4,
           "token_ids": tokens(name..=name), "medium": medium, "group_idx": group})
}

fn removed(name: u32, medium: &str) -> Value {
    json!({"type": "BlockRemoved", "block_hashes": [name], "medium": medium, "group_idx": 0})
}

fn cleared() -> Value {
    json!({"type": "AllBlocksCleared"})
}

impl World {
    fn new() -> World {
        Self::of(EngineStream::new(7))
    }

    fn of(engine: EngineStream) -> World {
        let clock = Clock::manual(1_700_000_000_000);
        let indexer = Indexer::new(Limits::default(), clock.clone());
        let stream = Stream::new("engine", Scope::new("m", 4), Format::Engine(engine));
        let stream = indexer.bind(stream).unwrap();
        World { clock, indexer, stream }
    }

    /// A batch that is published now.
    fn batch(&self, sequence: u64, events: &[Value]) -> Applied {
        self.batch_of(Some(sequence), self.clock.wall_ms(), events, 0)
    }

    fn batch_of(
        &self,
        sequence: Option<u64>,
        published_at_ms: u64,
        events: &[Value],
        dp_rank: u32,
    ) -> Applied {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 are far below 2^53")]
        let seconds = published_at_ms as f64 / 1000.0;
        let payload = rmp_serde::to_vec(&json!([seconds, events, dp_rank])).unwrap();
        self.indexer.apply(&self.stream, Message::Batch { sequence, payload: &payload }).unwrap()
    }

    fn rank(&self) -> RankAnswer {
        let prompt = PromptContent::Tokens(tokens(1..=20).into());
        self.indexer.overlap(&Query { prompt, ..Query::default() }).unwrap().ranks.remove(0)
    }

    fn known(&self) -> Known {
        let RankAnswer { knowledge, freshness, .. } = self.rank();
        let fresh = freshness.unwrap();
        let (generation, last, missing) = (fresh.generation, fresh.last_event_id, fresh.missing_events);
        Known { knowledge, generation, last, missing }
    }

    /// Leading blocks on the GPU, and on the GPU or in host memory.
    fn reach(&self) -> (u32, u32) {
        let reach = self.rank().reach_tokens.unwrap();
        (reach.gpu / 4, reach.host / 4)
    }
}

#[test]
fn from_batch_0_on_it_is_complete_and_from_later_on_a_lower_bound() {
    use KnowledgeState::{Complete, Partial};
    for (first, knowledge) in [(0, Complete), (1, Partial), (900, Partial)] {
        let world = World::new();
        world.batch(first, &[stored(1, "GPU", 0)]);
        assert_eq!(world.known(), known(knowledge, 1, first, 0));
        world.batch(first + 1, &[stored(2, "GPU", 0)]);
        assert_eq!(world.known(), known(knowledge, 1, first + 1, 0));
        assert_eq!(world.reach(), (2, 2));
    }
}

#[test]
fn a_number_that_falls_back_with_a_later_time_is_another_process() {
    let world = World::new();
    world.batch(0, &[stored(1, "GPU", 0)]);
    world.batch(1, &[stored(2, "GPU", 0)]);
    world.clock.advance(1000);
    let applied = world.batch(0, &[stored(1, "GPU", 0)]);
    assert_eq!((applied.lives, applied.repeated), (1, 0));
    assert_eq!(world.known(), known(KnowledgeState::Complete, 2, 0, 0));
    assert_eq!(world.reach(), (1, 1));
    // The next one starts unseen, or is seen only from its batch 1 on.
    world.batch(1, &[stored(2, "GPU", 0)]);
    world.clock.advance(1000);
    world.batch(1, &[stored(1, "GPU", 0)]);
    assert_eq!(world.known(), known(KnowledgeState::Partial, 3, 1, 0));
    assert_eq!(world.reach(), (1, 1));
}

#[test]
fn a_number_that_falls_back_with_an_earlier_time_is_a_repeat() {
    let world = World::new();
    let start = world.clock.wall_ms();
    world.batch(0, &[stored(1, "GPU", 0)]);
    world.clock.advance(1000);
    world.batch(1, &[stored(2, "GPU", 0)]);
    for (sequence, published_at_ms) in [(0, start), (1, start + 1000), (1, start + 999)] {
        let applied = world.batch_of(Some(sequence), published_at_ms, &[cleared()], 0);
        assert_eq!((applied.lives, applied.repeated, applied.events), (0, 1, 0), "{sequence}");
    }
    assert_eq!(world.known(), known(KnowledgeState::Complete, 1, 1, 0));
    assert_eq!(world.reach(), (2, 2));
}

#[test]
fn a_missing_batch_is_a_hole_which_forgets_and_counts() {
    let world = World::new();
    world.batch(0, &[stored(1, "GPU", 0), stored(2, "GPU", 0)]);
    let applied = world.batch(3, &[stored(1, "GPU", 0)]);
    assert_eq!((applied.holes, applied.missing), (1, 2));
    assert_eq!(world.known(), known(KnowledgeState::Partial, 1, 3, 2));
    assert_eq!(world.reach(), (1, 1), "what was held before may be gone");
    let applied = world.batch(5, &[]);
    assert_eq!((applied.holes, applied.missing), (1, 1));
    assert_eq!(world.known(), known(KnowledgeState::Partial, 1, 5, 3));
    assert_eq!(world.reach(), (0, 0));
}

#[test]
fn a_batch_that_does_not_decode_is_a_hole_and_so_is_one_without_a_number() {
    let world = World::new();
    let broken = |sequence| {
        let message = Message::Batch { sequence, payload: b"\x80" };
        let refused = world.indexer.apply(&world.stream, message);
        assert!(matches!(refused, Err(ApplyError::Undecodable { .. })), "{refused:?}");
    };
    // Nothing is known yet, so that nothing is lost.
    broken(Some(0));
    world.batch(1, &[stored(1, "GPU", 0)]);
    assert_eq!(world.known(), known(KnowledgeState::Partial, 1, 1, 0));
    broken(Some(2));
    assert_eq!((world.known(), world.reach()), (known(KnowledgeState::Partial, 1, 2, 1), (0, 0)));
    world.batch(3, &[stored(1, "GPU", 0)]);
    assert_eq!((world.known(), world.reach()), (known(KnowledgeState::Partial, 1, 3, 1), (1, 1)));
    broken(None);
    assert_eq!((world.known(), world.reach()), (known(KnowledgeState::Partial, 1, 3, 2), (0, 0)));
}

#[test]
fn what_is_lost_does_not_look_fresh() {
    let world = World::new();
    world.batch(0, &[stored(1, "GPU", 0)]);
    world.clock.advance(700);
    let message = Message::Batch { sequence: Some(1), payload: b"\x80" };
    assert!(world.indexer.apply(&world.stream, message).is_err());
    assert_eq!(world.rank().freshness.unwrap().last_event_age_ms, Some(700));
    world.batch(2, &[]);
    assert_eq!(world.rank().freshness.unwrap().last_event_age_ms, Some(0));
}

#[test]
fn a_clear_says_all_only_where_nothing_below_the_gpu_was_used() {
    use KnowledgeState::{Complete, Partial};
    let gpu = || vec![stored(1, "GPU", 0)];
    let host = || vec![stored(1, "GPU", 0), stored(1, "CPU", 0)];
    let rows = [
        ("seen from its start", 0, gpu(), Complete),
        ("seen from later on", 4, gpu(), Complete),
        ("host memory was used", 0, host(), Partial),
        ("host memory must have been used", 4, vec![removed(9, "CPU")], Partial),
    ];
    for (case, first, events, knowledge) in rows {
        let world = World::new();
        world.batch(first, &events);
        world.batch(first + 1, &[cleared()]);
        assert_eq!((world.known(), world.reach()), (known(knowledge, 1, first + 1, 0), (0, 0)), "{case}");
        world.batch(first + 2, &[stored(1, "GPU", 0)]);
        assert_eq!((world.rank().knowledge, world.reach()), (knowledge, (1, 1)), "{case}");
        // A new process has used nothing yet.
        world.clock.advance(1);
        world.batch(0, &[cleared()]);
        assert_eq!(world.known(), known(Complete, 2, 0, 0), "{case}");
    }
}

#[test]
fn a_clear_after_a_hole_makes_it_complete_again() {
    let world = World::new();
    world.batch(0, &[stored(1, "GPU", 0)]);
    world.batch(9, &[stored(1, "GPU", 0)]);
    assert_eq!(world.rank().knowledge, KnowledgeState::Partial);
    world.batch(10, &[cleared(), stored(1, "GPU", 0)]);
    assert_eq!(world.known(), known(KnowledgeState::Complete, 1, 10, 8));
}

#[test]
fn without_numbers_it_is_a_lower_bound_from_then_on() {
    let world = World::new();
    let now_ms = world.clock.wall_ms();
    world.batch(0, &[stored(1, "GPU", 0)]);
    assert_eq!(world.rank().knowledge, KnowledgeState::Complete);
    world.batch_of(None, now_ms, &[stored(2, "GPU", 0)], 0);
    assert_eq!((world.known(), world.reach()), (known(KnowledgeState::Partial, 1, 0, 0), (2, 2)));
}

#[test]
fn the_configured_rank_goes_before_the_batches_own_and_a_difference_is_counted() {
    for (configured, stated, rank, different) in [(None, 3, 3, 0), (Some(3), 3, 3, 0), (Some(1), 3, 1, 1)] {
        let world = World::of(EngineStream { dp_rank: configured, ..EngineStream::new(7) });
        let applied = world.batch_of(Some(0), world.clock.wall_ms(), &[stored(1, "GPU", 0)], stated);
        assert_eq!(applied.other_dp_rank, different, "{configured:?} and {stated}");
        assert_eq!((world.rank().worker_id, world.rank().dp_rank), (7, rank), "{configured:?} and {stated}");
    }
}

/// A store of a block of group 1, which says how it attends.
fn windowed(name: u32, window: u32) -> Value {
    let mut event = stored(name, "GPU", 1);
    event["kv_cache_spec_kind"] = json!("sliding_window");
    event["kv_cache_spec_sliding_window"] = json!(window);
    event
}

#[test]
fn windows_are_learned_from_events_unless_they_are_configured() {
    let full: Vec<Value> = (1..=4).map(|name| stored(name, "GPU", 0)).collect();
    let window = |tokens| vec![Window { group: Group::new(1).unwrap(), tokens }];
    // Of group 1, blocks 3 and 4 are held: enough for a window of 9 tokens (2 blocks), not for one of 13.
    let rows = [(vec![], 9, 4), (vec![], 13, 0), (window(9), 13, 4), (window(13), 9, 0)];
    for (configured, stated, reach) in rows {
        let case = format!("{configured:?}, stated {stated}");
        let world = World::of(EngineStream { windows: configured, ..EngineStream::new(7) });
        world.batch(0, &full);
        world.batch(1, &[windowed(3, stated), windowed(4, stated)]);
        assert_eq!(world.reach().0, reach, "{case}");
    }
    let world = World::new();
    world.batch(0, &full);
    assert_eq!(world.reach().0, 4, "no window is known yet");
    world.batch(1, &[windowed(4, 13)]);
    assert_eq!(world.reach().0, 0);
    world.batch(2, &[windowed(4, 5)]);
    assert_eq!(world.reach().0, 4, "the latest that is stated counts");
}
