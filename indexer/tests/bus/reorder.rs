//! Frames out of order: those ahead of their turn wait a moment, and only then is something lost.

use std::sync::Arc;

use kvtide::{
    ApplyError, BoundStream, Clock, Committed, Format, Indexer, KnowledgeState, Limits, Message, Query,
    RankAnswer, Scope, Stream,
};
use kvtide::{PromptContent, ScopeQuery};
use kvtide_radix::BlockHash;

use crate::frames::{Frame, event, stored};

const PUBLISHER: u64 = 77;

struct World {
    clock: Clock,
    indexer: Indexer,
    stream: Arc<BoundStream>,
}

/// Frame `sequence` of a publisher, each of which stores one more block of one prompt.
fn encoded(publisher_id: u64, sequence: u64) -> Vec<u8> {
    let parent = (sequence > 0).then_some(sequence);
    let data = stored(parent, &[(sequence + 1, sequence + 1)]);
    let events = vec![event(7, sequence + 1, "device", &data)];
    Frame { publisher_id, sequence, published_at: 1_700_000_000_000, events }.encode()
}

impl World {
    fn new() -> World {
        let clock = Clock::manual(1_700_000_000_000);
        let indexer = Indexer::new(Limits::default(), clock.clone());
        let scope = Scope::new("m", 4);
        let stream = indexer.bind(Stream::new("bus", scope, Format::Dynamo)).unwrap();
        World { clock, indexer, stream }
    }

    fn frame(&self, publisher_id: u64, sequence: u64) {
        self.indexer.apply(&self.stream, Message::Frame(&encoded(publisher_id, sequence))).unwrap();
    }

    /// What is known of the worker, and how many leading blocks of the prompt it holds.
    fn answer(&self) -> Option<(RankAnswer, u32)> {
        let prompt = PromptContent::Hashes((1..200).map(BlockHash).collect());
        let query = Query { scope: ScopeQuery::default(), prompt, ..Query::default() };
        let answer = self.indexer.overlap(&query).unwrap().ranks.into_iter().next()?;
        let blocks = answer.reach_tokens.map_or(0, |reach| reach.gpu / 4);
        Some((answer, blocks))
    }

    fn expect(&self, knowledge: KnowledgeState, blocks: u32, pending: u64, missing: u64) {
        let (answer, got) = self.answer().unwrap();
        let fresh = answer.freshness.unwrap();
        assert_eq!(
            (answer.knowledge, got, fresh.pending_events, fresh.missing_events),
            (knowledge, blocks, pending, missing)
        );
    }

    fn version(&self) -> u64 {
        self.indexer.scopes()[0].version
    }

    fn pass(&self, ms: u64) {
        self.clock.advance(ms);
        self.indexer.tick();
    }
}

#[test]
fn frames_that_change_places_are_applied_in_their_order() {
    for order in [[0, 2, 1, 3, 4], [1, 0, 2, 3, 4], [4, 3, 2, 1, 0], [0, 3, 1, 4, 2]] {
        let world = World::new();
        for sequence in order {
            world.frame(PUBLISHER, sequence);
            world.pass(10);
        }
        world.expect(KnowledgeState::Complete, 5, 0, 0);
    }
}

#[test]
fn what_waits_is_pending_and_after_the_wait_what_is_missing_is_lost() {
    let world = World::new();
    for sequence in [0, 1, 3, 4, 6] {
        world.frame(PUBLISHER, sequence);
    }
    world.expect(KnowledgeState::Complete, 2, 3, 0);
    world.pass(199);
    world.expect(KnowledgeState::Complete, 2, 3, 0);
    world.pass(1);
    // What came before the hole is forgotten, so that the blocks behind it cannot be placed.
    world.expect(KnowledgeState::Partial, 0, 0, 2);
    world.frame(PUBLISHER, 2);
    world.expect(KnowledgeState::Partial, 0, 0, 2);
}

#[test]
fn the_sixty_fifth_frame_that_waits_ends_the_wait() {
    let world = World::new();
    world.frame(PUBLISHER, 0);
    for sequence in 2..=65 {
        world.frame(PUBLISHER, sequence);
    }
    world.expect(KnowledgeState::Complete, 1, 64, 0);
    world.frame(PUBLISHER, 66);
    world.expect(KnowledgeState::Partial, 0, 0, 1);
}

#[test]
fn a_publisher_first_seen_late_is_partial_after_the_wait() {
    let world = World::new();
    world.frame(PUBLISHER, 5);
    assert!(world.answer().is_none(), "nothing is known of the rank before its first frame is applied");
    world.pass(200);
    world.expect(KnowledgeState::Partial, 0, 0, 0);
}

#[test]
fn what_waits_of_a_publisher_that_was_replaced_meanwhile_is_only_late() {
    let world = World::new();
    world.frame(PUBLISHER, 0);
    world.frame(PUBLISHER, 2);
    world.pass(50);
    world.frame(PUBLISHER + 1, 0);
    world.pass(150);
    world.frame(PUBLISHER + 1, 1);
    world.expect(KnowledgeState::Complete, 2, 0, 0);
}

#[test]
fn frames_that_come_together_are_one_version_and_pending_until_then() {
    let world = World::new();
    world.frame(PUBLISHER, 0);
    let version = world.version();
    // One is missing, one does not decode, and one comes twice.
    let frames = [1, 2, 4, 5].map(|sequence| encoded(PUBLISHER, sequence));
    let [one, two, four, five] = frames.each_ref().map(|frame| Message::Frame(frame));
    let received =
        world.indexer.receive(&world.stream, [one, Message::Frame(b"nothing"), two, one, four, five]);
    world.expect(KnowledgeState::Complete, 1, 5, 0);
    let committed = received.unwrap().commit().unwrap();
    // What does not decode ends a version, and what comes behind it is the next.
    assert_eq!(world.version(), version + 2);
    world.expect(KnowledgeState::Complete, 3, 2, 0);
    assert_eq!((committed.applied.events, committed.applied.repeated), (2, 1));
    let [(1, ApplyError::Undecodable { .. })] = committed.refused.as_slice() else {
        panic!("{:?}", committed.refused)
    };
    // What closes the gap lets those that wait go on, in the same version.
    world.frame(PUBLISHER, 3);
    assert_eq!(world.version(), version + 3);
    world.expect(KnowledgeState::Complete, 6, 0, 0);
    assert_eq!(world.indexer.receive(&world.stream, []).unwrap().commit(), Ok(Committed::default()));
    assert_eq!(world.version(), version + 3, "nothing is no version");
}

#[test]
fn sums_of_what_is_missing_have_an_end() {
    let world = World::new();
    let frame = |worker: u64| {
        let events = [1, u64::MAX].map(|id| event(worker, id, "device", &stored(None, &[(id, id)])));
        let events = events.into_iter().collect();
        Frame { publisher_id: worker, sequence: 0, published_at: 1_700_000_000_000, events }.encode()
    };
    let frames = [frame(7), frame(8)];
    let messages = frames.iter().map(|frame| Message::Frame(frame));
    let committed = world.indexer.receive(&world.stream, messages).unwrap().commit().unwrap();
    assert_eq!((committed.applied.missing, committed.applied.holes), (u64::MAX, 2));
}
