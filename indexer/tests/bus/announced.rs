//! Other kvtides are asked before a publisher's own worker: what they tell counts once the worker has said that it is all.

use std::sync::Arc;

use kvtide::{
    Announced, BoundStream, Clock, Format, IndexAnswer, Indexer, KnowledgeState, KnowledgeState::*, Limits,
    Message, PromptContent, Query, Scope, Stream,
};
use kvtide_radix::{BlockHash, Rank};

use crate::frames::{Frame, event, stored};

const PUBLISHER: u64 = 77;
const START_MS: u64 = 1_700_000_000_000;

/// A kvtide to which discovery has announced a publisher.
struct Replica {
    indexer: Indexer,
    stream: Arc<BoundStream>,
}

impl Replica {
    fn new(clock: &Clock) -> Replica {
        let indexer = Indexer::new(Limits::default(), clock.clone());
        let stream = Stream::new("bus", Scope::new("m", 4), Format::Dynamo);
        let stream = indexer.bind(Stream { has_peers: true, announced: true, ..stream }).unwrap();
        indexer.verify(&stream, clock.steady_ms(), None);
        let rank = Rank { worker_id: 7, dp_rank: 0 };
        let announced = Announced { publisher_id: PUBLISHER, rank, keeps_index: true };
        indexer.announce(&stream, announced).unwrap();
        Replica { indexer, stream }
    }

    /// Each frame stores one more block of one prompt.
    fn follow(&self, sequences: std::ops::Range<u64>) {
        for sequence in sequences {
            let parent = (sequence > 0).then_some(sequence);
            let data = stored(parent, &[(sequence + 1, sequence + 1)]);
            let events = vec![event(7, sequence + 1, "device", &data)];
            let frame =
                Frame { publisher_id: PUBLISHER, sequence, published_at: START_MS + sequence, events };
            self.indexer.apply(&self.stream, Message::Frame(&frame.encode())).unwrap();
        }
    }

    /// The state, and the leading blocks held.
    fn state(&self) -> (KnowledgeState, u32) {
        let prompt = PromptContent::Hashes((1..300).map(BlockHash).collect());
        let answer = self.indexer.overlap(&Query { prompt, ..Query::default() }).unwrap();
        (answer.ranks[0].knowledge, answer.ranks[0].reach_tokens.map_or(0, |reach| reach.gpu / 4))
    }

    /// Takes over what another one knows of the publisher. Whether it tells something new.
    fn ask(&self, other: &Replica) -> bool {
        let [wanted] = self.indexer.wanted().try_into().unwrap();
        let mut told = Vec::new();
        other.indexer.write_part(wanted.part, &mut told).unwrap();
        self.indexer.take_over(&wanted, told.as_slice()).unwrap()
    }

    /// The worker is asked, and has taken nothing behind that event.
    fn hear(&self, last_event_id: u64) {
        let [wanted] = self.indexer.wanted_indexes().try_into().unwrap();
        let request = self.indexer.index_request(&wanted).unwrap();
        assert_eq!(request.first_event_id, Some(last_event_id + 1));
        assert!(self.indexer.apply_index(&wanted, request, IndexAnswer::Nothing { last_event_id }));
    }
}

#[test]
fn what_a_peer_tells_of_a_silent_publisher_counts_once_its_worker_says_that_it_is_all() {
    let clock = Clock::manual(START_MS);
    let (ours, theirs) = (Replica::new(&clock), Replica::new(&clock));
    theirs.follow(0..9);
    assert_eq!(ours.state(), (Unknown, 0));
    assert!(ours.indexer.wanted_indexes().is_empty(), "others are asked first");
    assert!(ours.ask(&theirs));
    assert_eq!(ours.state(), (Recovering, 9));
    assert!(ours.indexer.wanted().is_empty(), "they have told what they know");
    ours.hear(9);
    assert_eq!(ours.state(), (Complete, 9));
    ours.follow(9..12);
    assert_eq!(ours.state(), (Complete, 12));
}

#[test]
fn what_a_connection_has_lost_comes_from_a_peer_too() {
    let clock = Clock::manual(START_MS);
    let (ours, theirs) = (Replica::new(&clock), Replica::new(&clock));
    ours.follow(0..3);
    theirs.follow(0..9);
    clock.advance(50);
    ours.indexer.verify(&ours.stream, clock.steady_ms(), Some(clock.steady_ms()));
    assert_eq!(ours.state(), (Recovering, 3));
    assert!(ours.ask(&theirs));
    ours.hear(9);
    assert_eq!(ours.state(), (Complete, 9));
}

#[test]
fn the_worker_is_asked_where_peers_know_no_more() {
    let clock = Clock::manual(START_MS);
    let (ours, theirs) = (Replica::new(&clock), Replica::new(&clock));
    ours.follow(0..3);
    theirs.follow(0..3);
    clock.advance(50);
    ours.indexer.verify(&ours.stream, clock.steady_ms(), Some(clock.steady_ms()));
    assert!(!ours.ask(&theirs), "it knows as much");
    assert!(ours.indexer.wanted_indexes().is_empty());
    clock.advance(1000);
    ours.hear(3);
    assert_eq!(ours.state(), (Complete, 3));
}
