//! What an engine does not keep any more, another kvtide that has followed it can tell.

use std::{ops::Range, sync::Arc};

use kvtide::{
    BoundStream, Clock, EngineStream, Format, Indexer, KnowledgeState, KnowledgeState::*, Limits, Message,
    PromptContent, Query, Scope, Stream,
};
use kvtide_radix::BlockHash;
use kvtide_tests::vectors::BLOCK_SIZE;

use crate::wire::{Announced, batch, content};

const START_MS: u64 = 1_700_000_000_000;
const LENGTH: u32 = 100;

/// One kvtide that follows an engine with a replay socket.
struct Replica {
    indexer: Indexer,
    stream: Arc<BoundStream>,
}

impl Replica {
    fn new(clock: &Clock) -> Replica {
        let indexer = Indexer::new(Limits::default(), clock.clone());
        let format = Format::Engine(EngineStream { replays: true, ..EngineStream::new(1) });
        let stream = Stream { has_peers: true, ..Stream::new("engine", Scope::new("m", BLOCK_SIZE), format) };
        let stream = indexer.bind(stream).unwrap();
        Replica { indexer, stream }
    }

    /// Batches of a process come by themselves.
    fn follow(&self, process: u64, batches: Range<u64>) {
        for sequence in batches {
            let payload = of_process(process, sequence);
            let message = Message::Batch { sequence: Some(sequence), payload: &payload };
            self.indexer.apply(&self.stream, message).unwrap();
        }
    }

    /// The engine answers with what it keeps.
    fn replay(&self, process: u64, kept: Range<u64>) {
        let request = self.indexer.replay_request(&self.stream);
        let batches = kept.filter(|&sequence| sequence >= request.from);
        let batches = batches.map(|sequence| (sequence, of_process(process, sequence)));
        self.indexer.apply_replay(&self.stream, request, batches).unwrap();
    }

    /// A kvtide that has followed a process from its first batch on.
    fn whole(clock: &Clock, process: u64, end: u64) -> Replica {
        let replica = Replica::new(clock);
        replica.follow(process, 0..end);
        assert_eq!(replica.state(), Some((Complete, end)));
        replica
    }

    /// State, and leading blocks held.
    fn state(&self) -> Option<(KnowledgeState, u64)> {
        let prompt = PromptContent::Hashes((1..=LENGTH).map(content).collect::<Vec<BlockHash>>());
        let answer = self.indexer.overlap(&Query { prompt, ..Query::default() }).unwrap();
        let rank = answer.ranks.into_iter().next()?;
        Some((rank.knowledge, u64::from(rank.reach_tokens.map_or(0, |reach| reach.gpu / BLOCK_SIZE))))
    }

    /// Asks another one for whatever is missing here. Whether it could tell.
    fn ask(&self, other: &Replica) -> bool {
        let [wanted] = self.indexer.wanted().try_into().unwrap();
        let mut told = Vec::new();
        other.indexer.write_part(wanted.part, &mut told).unwrap();
        self.indexer.take_over(&wanted, told.as_slice()).unwrap()
    }
}

/// A batch of a process, each of which stores one more block of one prompt under names of its own.
fn of_process(process: u64, sequence: u64) -> Vec<u8> {
    let name = |number: u64| process << 32 | number;
    let token = u32::try_from(sequence).unwrap() + 1;
    let parent = (sequence > 0).then(|| name(sequence));
    let stored = Announced::Stored { parent, blocks: vec![(name(sequence + 1), token)], host: false };
    batch(START_MS + 1000 * process + sequence, &[stored], 0)
}

#[test]
fn what_came_before_anything_that_the_engine_keeps_comes_from_a_peer() {
    let clock = Clock::manual(START_MS);
    let (ours, theirs) = (Replica::new(&clock), Replica::whole(&clock, 1, 60));
    ours.follow(1, 59..60);
    assert_eq!(ours.state(), Some((Recovering, 0)));
    assert!(ours.indexer.wanted().is_empty(), "the engine comes first");
    ours.replay(1, 50..60);
    assert_eq!(ours.state(), Some((Recovering, 0)));
    assert!(ours.ask(&theirs));
    assert_eq!(ours.state(), Some((Complete, 60)));
    ours.follow(1, 60..62);
    assert_eq!(ours.state(), Some((Complete, 62)));
    ours.replay(1, 55..62);
    assert_eq!(ours.state(), Some((Complete, 62)));
    assert!(ours.indexer.wanted().is_empty());
}

#[test]
fn what_was_lost_amid_a_life_comes_from_a_peer_and_numbers_stay_as_they_were_until_then() {
    let clock = Clock::manual(START_MS);
    let (ours, theirs) = (Replica::whole(&clock, 1, 10), Replica::whole(&clock, 1, 33));
    ours.follow(1, 30..31);
    ours.replay(1, 25..32);
    ours.follow(1, 32..35);
    assert_eq!(ours.state(), Some((Recovering, 10)));
    assert!(ours.ask(&theirs), "behind what waits here, and in front of some of it");
    assert_eq!(ours.state(), Some((Complete, 35)));
}

#[test]
fn where_an_engine_does_not_answer_others_are_asked_after_a_second() {
    let clock = Clock::manual(START_MS);
    let (ours, theirs) = (Replica::whole(&clock, 1, 10), Replica::whole(&clock, 1, 13));
    ours.follow(1, 12..13);
    clock.advance(999);
    assert!(ours.indexer.wanted().is_empty());
    clock.advance(1);
    assert!(ours.ask(&theirs));
    assert_eq!(ours.state(), Some((Complete, 13)));
}

#[test]
fn a_peer_that_has_followed_another_process_is_not_believed() {
    let clock = Clock::manual(START_MS);
    let (ours, theirs) = (Replica::new(&clock), Replica::whole(&clock, 2, 60));
    ours.follow(1, 59..60);
    ours.replay(1, 50..60);
    assert!(!ours.ask(&theirs));
    assert_eq!(ours.state(), Some((Recovering, 0)));
}

#[test]
fn a_peer_that_is_too_far_behind_or_ahead_is_asked_again() {
    let clock = Clock::manual(START_MS);
    let (ours, theirs) = (Replica::new(&clock), Replica::whole(&clock, 1, 40));
    ours.follow(1, 59..60);
    ours.replay(1, 50..60);
    assert!(!ours.ask(&theirs), "it does not reach what the engine keeps");
    theirs.follow(1, 40..61);
    assert!(!ours.ask(&theirs), "nothing shows that the next one is of the same process");
    ours.follow(1, 60..61);
    assert!(ours.ask(&theirs));
    assert_eq!(ours.state(), Some((Complete, 61)));
}

#[test]
fn what_nobody_knows_is_lost_after_ten_seconds() {
    let clock = Clock::manual(START_MS);
    let ours = Replica::whole(&clock, 1, 10);
    ours.follow(1, 30..31);
    ours.replay(1, 25..31);
    clock.advance(9_999);
    ours.indexer.tick();
    assert_eq!(ours.state(), Some((Recovering, 10)));
    clock.advance(1);
    ours.indexer.tick();
    assert_eq!(ours.state(), Some((Partial, 0)), "what is left hangs behind what was lost");
    assert!(ours.indexer.wanted().is_empty());
}

#[test]
fn numbers_that_follow_each_other_prove_nothing_without_the_last_batch() {
    let clock = Clock::manual(START_MS);
    let ours = Replica::whole(&clock, 1, 10);
    ours.indexer.doubt(&ours.stream);
    // The batch that was taken last is not kept, and the next one is of another process.
    ours.replay(2, 10..14);
    assert_eq!(ours.state(), Some((Recovering, 10)));
    clock.advance(10_000);
    ours.indexer.tick();
    assert_eq!(ours.state(), Some((Partial, 0)));
    let again = Replica::whole(&clock, 1, 10);
    again.indexer.doubt(&again.stream);
    again.replay(2, 10..14);
    assert!(again.ask(&Replica::whole(&clock, 2, 14)));
    assert_eq!(again.state(), Some((Complete, 14)));
}

#[test]
fn an_engine_that_starts_again_while_others_are_asked_is_a_new_life() {
    let clock = Clock::manual(START_MS);
    let ours = Replica::whole(&clock, 1, 10);
    ours.follow(1, 30..31);
    ours.replay(1, 25..31);
    ours.follow(2, 0..3);
    assert_eq!(ours.state(), Some((Complete, 3)));
    assert!(ours.indexer.wanted().is_empty());
}

#[test]
fn what_came_of_one_process_is_not_mixed_with_what_another_answers() {
    let clock = Clock::manual(START_MS);
    let ours = Replica::whole(&clock, 1, 10);
    ours.indexer.doubt(&ours.stream);
    // The first batch of a process comes, and before it is asked the next one has begun, which keeps its second only.
    ours.replay(3, 0..0);
    ours.follow(2, 0..1);
    ours.replay(3, 1..2);
    clock.advance(10_000);
    ours.indexer.tick();
    assert_eq!(ours.state(), Some((Partial, 0)));
}
