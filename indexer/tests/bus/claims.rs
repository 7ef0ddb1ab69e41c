//! Two publishers of one rank: the later one is the rank's next life, unless the former one lives on.

use std::{sync::Arc, time::Duration};

use kvtide::{
    BoundStream, Clock, Format, Indexer, KnowledgeState, Limits, Message, PromptContent, Query, RankAnswer,
    Scope, Stream,
};
use kvtide_radix::BlockHash;

use crate::frames::{Frame, event, stored};

struct World {
    clock: Clock,
    indexer: Indexer,
    stream: Arc<BoundStream>,
    published_at: u64,
}

impl World {
    fn new() -> World {
        Self::of(Limits::default())
    }

    fn of(limits: Limits) -> World {
        let clock = Clock::manual(1_700_000_000_000);
        let indexer = Indexer::new(limits, clock.clone());
        let stream = indexer.bind(Stream::new("bus", Scope::new("m", 4), Format::Dynamo)).unwrap();
        World { clock, indexer, stream, published_at: 0 }
    }

    /// A frame that stores one block; which are applied, repeated, and refused for the conflict.
    fn frame(&mut self, publisher_id: u64, sequence: u64, block: u64) -> (u64, u64, u64) {
        self.published_at += 1;
        let events = vec![event(7, sequence + 1, "device", &stored(None, &[(block, block)]))];
        let frame = Frame { publisher_id, sequence, published_at: self.published_at, events };
        let applied = self.indexer.apply(&self.stream, Message::Frame(&frame.encode())).unwrap();
        (applied.events, applied.repeated, applied.conflicting)
    }

    /// What is known of the rank, and which of the blocks up to 9 it holds.
    fn rank(&self) -> (RankAnswer, Vec<u64>) {
        let ask = |block| {
            let prompt = PromptContent::Hashes(vec![BlockHash(block)]);
            self.indexer.overlap(&Query { prompt, ..Query::default() }).unwrap().ranks.remove(0)
        };
        let holds = |&block: &u64| ask(block).reach_tokens.is_some_and(|reach| reach.gpu > 0);
        (ask(0), (1..=9).filter(holds).collect())
    }

    fn expect(&self, knowledge: KnowledgeState, generation: u64, held: &[u64]) {
        let (rank, blocks) = self.rank();
        let got = (rank.knowledge, rank.freshness.unwrap().generation, blocks);
        assert_eq!(got, (knowledge, generation, held.to_vec()));
        assert_eq!(rank.reach_tokens.is_none(), knowledge == KnowledgeState::Unknown);
    }
}

const APPLIED: (u64, u64, u64) = (1, 0, 0);
const REPEATED: (u64, u64, u64) = (0, 1, 0);
const CONFLICTING: (u64, u64, u64) = (0, 0, 1);

#[test]
fn a_restart_takes_the_old_lifes_blocks_with_it_and_late_frames_bring_none_back() {
    let mut world = World::new();
    assert_eq!(world.frame(1, 0, 1), APPLIED);
    world.expect(KnowledgeState::Complete, 1, &[1]);
    world.clock.advance(5000);
    assert_eq!(world.frame(2, 0, 2), APPLIED);
    world.expect(KnowledgeState::Complete, 2, &[2]);
    world.clock.advance(199);
    assert_eq!(world.frame(1, 1, 3), REPEATED);
    world.expect(KnowledgeState::Complete, 2, &[2]);
    // Frames of a number that was taken are late whenever they come.
    world.clock.advance(60_000);
    assert_eq!(world.frame(1, 1, 3), REPEATED);
    world.expect(KnowledgeState::Complete, 2, &[2]);
}

#[test]
fn of_two_that_live_nothing_is_known_until_one_has_been_silent_for_ten_seconds() {
    let mut world = World::new();
    world.frame(1, 0, 1);
    world.frame(2, 0, 2);
    world.clock.advance(200);
    assert_eq!(world.frame(1, 1, 3), CONFLICTING);
    world.expect(KnowledgeState::Unknown, 2, &[]);
    assert_eq!(world.frame(2, 1, 4), CONFLICTING);
    world.clock.advance(9_999);
    assert_eq!(world.frame(2, 2, 5), CONFLICTING);
    world.expect(KnowledgeState::Unknown, 2, &[]);
    world.clock.advance(1);
    // What it held before is not known any more: a lower bound.
    assert_eq!(world.frame(2, 3, 6), APPLIED);
    world.expect(KnowledgeState::Partial, 3, &[6]);
    assert_eq!(world.frame(2, 4, 7), APPLIED);
    world.expect(KnowledgeState::Partial, 3, &[6, 7]);
}

#[test]
fn a_publisher_that_starts_again_under_its_own_id_is_a_new_life() {
    let mut world = World::new();
    for (sequence, block) in [(0, 1), (1, 2), (2, 3)] {
        assert_eq!(world.frame(1, sequence, block), APPLIED);
    }
    world.expect(KnowledgeState::Complete, 1, &[1, 2, 3]);
    assert_eq!(world.frame(1, 0, 4), APPLIED);
    world.expect(KnowledgeState::Complete, 2, &[4]);
}

#[test]
fn a_conflict_that_was_written_down_ends_with_whoever_speaks_next() {
    let mut world = World::new();
    world.frame(1, 0, 1);
    world.clock.advance(5000);
    world.frame(2, 0, 2);
    world.clock.advance(200);
    assert_eq!(world.frame(1, 1, 3), CONFLICTING);
    world.expect(KnowledgeState::Unknown, 2, &[]);
    let mut snapshot = Vec::new();
    world.indexer.write_snapshot(&mut snapshot).unwrap();
    let mut again = World { published_at: world.published_at, ..World::new() };
    again.indexer.read_snapshot(&snapshot[..]).unwrap();
    again.expect(KnowledgeState::Unknown, 2, &[]);
    assert_eq!(again.frame(2, 1, 4), APPLIED);
    again.expect(KnowledgeState::Partial, 3, &[4]);
}

#[test]
fn how_long_one_must_be_silent_is_configured() {
    let mut world = World::of(Limits { conflict_silence: Duration::from_secs(2), ..Limits::default() });
    world.frame(1, 0, 1);
    world.clock.advance(1000);
    world.frame(2, 0, 2);
    world.clock.advance(200);
    assert_eq!(world.frame(1, 1, 3), CONFLICTING);
    world.clock.advance(1999);
    assert_eq!(world.frame(2, 1, 4), CONFLICTING);
    world.clock.advance(1);
    assert_eq!(world.frame(2, 2, 5), APPLIED);
    world.expect(KnowledgeState::Partial, 3, &[5]);
}
