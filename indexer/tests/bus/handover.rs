//! What one kvtide has missed of a publisher, another one tells: numbers stay as they were until then.

use std::sync::Arc;

use kvtide::{
    BoundStream, Clock, Format, Indexer, KnowledgeState, KnowledgeState::*, Limits, Message, Part,
    PromptContent, Query, Scope, Stream,
};
use kvtide_radix::BlockHash;

use crate::frames::{Frame, event, stored};

const PUBLISHER: u64 = 77;
const START_MS: u64 = 1_700_000_000_000;

/// One kvtide.
struct Replica {
    indexer: Indexer,
    stream: Arc<BoundStream>,
}

impl Replica {
    fn new(clock: &Clock) -> Replica {
        let indexer = Indexer::new(Limits::default(), clock.clone());
        let stream = Stream { has_peers: true, ..Stream::new("bus", Scope::new("m", 4), Format::Dynamo) };
        let stream = indexer.bind(stream).unwrap();
        Replica { indexer, stream }
    }

    /// State, leading blocks held, events pending, events missing.
    fn state(&self) -> Option<(KnowledgeState, u32, u64, u64)> {
        let prompt = PromptContent::Hashes((1..300).map(BlockHash).collect());
        let answer = self.indexer.overlap(&Query { prompt, ..Query::default() }).unwrap();
        let rank = answer.ranks.into_iter().next()?;
        let fresh = rank.freshness.unwrap();
        let blocks = rank.reach_tokens.map_or(0, |reach| reach.gpu / 4);
        Some((rank.knowledge, blocks, fresh.pending_events, fresh.missing_events))
    }

    /// Asks another one for whatever is missing here. Whether it could tell.
    fn ask(&self, other: &Replica) -> bool {
        let wanted = self.indexer.wanted();
        assert_eq!(wanted.len(), 1, "something is missing");
        let mut told = Vec::new();
        other.indexer.write_part(wanted[0].part, &mut told).unwrap();
        self.indexer.take_over(&wanted[0], told.as_slice()).unwrap()
    }
}

/// Two kvtides and a publisher whose every frame stores one more block of one prompt. The number of its life is a part of
/// its blocks' names.
struct World {
    clock: Clock,
    ours: Replica,
    theirs: Replica,
    life: u64,
}

impl World {
    fn new() -> World {
        let clock = Clock::manual(START_MS);
        World { ours: Replica::new(&clock), theirs: Replica::new(&clock), clock, life: 0 }
    }

    fn frame(&self, sequence: u64) -> Vec<u8> {
        let name = |block: u64| self.life << 32 | block;
        let parent = (sequence > 0).then(|| name(sequence));
        let data = stored(parent, &[(name(sequence + 1), sequence + 1)]);
        let events = vec![event(7, sequence + 1, "device", &data)];
        let published_at = START_MS + 1_000_000 * self.life + sequence;
        Frame { publisher_id: PUBLISHER, sequence, published_at, events }.encode()
    }

    fn send(&self, replica: &Replica, sequences: impl IntoIterator<Item = u64>) {
        for sequence in sequences {
            let frame = self.frame(sequence);
            replica.indexer.apply(&replica.stream, Message::Frame(&frame)).unwrap();
        }
    }

    /// Frames that only the other one gets, between some that both do.
    fn lose(&self, in_front: u64, lost: std::ops::Range<u64>, behind: std::ops::Range<u64>) {
        self.send(&self.ours, 0..in_front);
        self.send(&self.ours, behind.clone());
        self.send(&self.theirs, (0..in_front).chain(lost).chain(behind));
    }

    fn pass(&self, ms: u64) {
        self.clock.advance(ms);
        self.ours.indexer.tick();
        self.theirs.indexer.tick();
    }
}

#[test]
fn what_was_missed_comes_from_a_peer_and_numbers_stay_as_they_were_until_then() {
    let world = World::new();
    world.lose(6, 6..9, 9..12);
    assert_eq!(world.ours.state(), Some((Complete, 6, 3, 0)), "they may only be late");
    assert!(world.ours.indexer.wanted().is_empty());
    world.pass(200);
    assert_eq!(world.ours.state(), Some((Recovering, 6, 3, 0)));
    assert!(world.ours.ask(&world.theirs));
    assert_eq!(world.ours.state(), Some((Complete, 12, 0, 0)));
    world.send(&world.ours, 12..14);
    assert_eq!(world.ours.state(), Some((Complete, 14, 0, 0)));
    assert!(world.ours.indexer.wanted().is_empty());
}

#[test]
fn a_peer_need_not_have_seen_what_waits_here() {
    let world = World::new();
    world.lose(6, 6..9, 9..12);
    world.pass(200);
    let slower = Replica::new(&world.clock);
    world.send(&slower, 0..8);
    assert!(!world.ours.ask(&slower), "it has not seen frame 8");
    world.send(&slower, 8..10);
    assert!(world.ours.ask(&slower));
    assert_eq!(world.ours.state(), Some((Complete, 12, 0, 0)));
}

#[test]
fn what_a_peer_has_missed_too_is_lost_after_ten_seconds() {
    let world = World::new();
    world.lose(6, 6..6, 9..12);
    world.pass(200);
    assert!(!world.ours.ask(&world.theirs));
    world.pass(9_999);
    assert_eq!(world.ours.state(), Some((Recovering, 6, 3, 0)));
    world.pass(1);
    assert_eq!(world.ours.state(), Some((Partial, 0, 0, 3)));
    assert!(world.ours.indexer.wanted().is_empty());
}

#[test]
fn frames_that_come_after_all_need_no_peer() {
    let world = World::new();
    world.lose(6, 6..9, 9..12);
    world.pass(500);
    world.send(&world.ours, [6, 7]);
    assert_eq!(world.ours.state(), Some((Recovering, 8, 3, 0)));
    world.send(&world.ours, [8]);
    assert_eq!(world.ours.state(), Some((Complete, 12, 0, 0)));
    assert!(world.ours.indexer.wanted().is_empty());
}

#[test]
fn a_frame_that_does_not_decode_is_missing_at_once() {
    let world = World::new();
    world.lose(6, 6..7, 0..0);
    let mut torn = world.frame(6);
    torn.truncate(torn.len() - 3);
    world.ours.indexer.apply(&world.ours.stream, Message::Frame(&torn)).unwrap_err();
    assert_eq!(world.ours.state(), Some((Recovering, 6, 0, 0)));
    let unfollowed = World::new();
    unfollowed.send(&unfollowed.ours, 0..6);
    unfollowed.ours.indexer.apply(&unfollowed.ours.stream, Message::Frame(&torn)).unwrap_err();
    unfollowed.pass(10_000);
    assert_eq!(unfollowed.ours.state(), Some((Partial, 0, 0, 1)), "nobody could tell");
    assert!(world.ours.ask(&world.theirs));
    assert_eq!(world.ours.state(), Some((Complete, 7, 0, 0)));
}

#[test]
fn a_publisher_that_was_there_before_comes_whole_from_a_peer() {
    let world = World::new();
    world.lose(0, 0..57, 57..60);
    assert_eq!(world.ours.state(), None);
    world.pass(200);
    assert_eq!(world.ours.state(), Some((Recovering, 0, 3, 0)));
    assert!(world.ours.ask(&world.theirs));
    assert_eq!(world.ours.state(), Some((Complete, 60, 0, 0)));
}

#[test]
fn what_a_peer_knows_in_part_is_known_in_part() {
    let world = World::new();
    let late = Replica::new(&world.clock);
    world.send(&late, 3..9);
    world.pass(200);
    late.indexer.tick();
    world.clock.advance(10_000);
    late.indexer.tick();
    assert_eq!(late.state().unwrap().0, Partial);
    world.send(&world.ours, (0..6).chain(7..9));
    world.pass(200);
    assert!(world.ours.ask(&late));
    assert_eq!(world.ours.state(), Some((Partial, 0, 0, 0)), "it has not seen where the prompt starts");
}

#[test]
fn a_rank_of_which_a_peer_knows_nothing_any_more_has_lost_something() {
    let world = World::new();
    world.lose(6, 6..9, 9..12);
    world.pass(200);
    assert_eq!(world.theirs.indexer.remove(7, None), 1);
    assert!(world.ours.ask(&world.theirs));
    assert_eq!(world.ours.state(), Some((Partial, 0, 0, 1)));
}

#[test]
fn what_a_peer_tells_of_another_life_is_not_taken() {
    let mut world = World::new();
    world.send(&world.theirs, 0..100);
    world.life = 1;
    world.send(&world.ours, (0..3).chain(4..6));
    world.pass(200);
    assert_eq!(world.ours.state(), Some((Recovering, 3, 2, 0)));
    assert!(!world.ours.ask(&world.theirs), "it has not seen the restart");
    assert_eq!(world.ours.state(), Some((Recovering, 3, 2, 0)));
    world.send(&world.theirs, 0..5);
    assert!(world.ours.ask(&world.theirs));
    assert_eq!(world.ours.state(), Some((Complete, 6, 0, 0)));
}

#[test]
fn a_peer_that_is_a_life_ahead_is_not_followed_in_this_one() {
    let mut world = World::new();
    world.send(&world.ours, (0..3).chain(4..6));
    world.pass(200);
    world.send(&world.theirs, 0..6);
    world.life = 1;
    world.send(&world.theirs, 0..4);
    assert!(!world.ours.ask(&world.theirs), "what waits here is of the life before");
    world.send(&world.ours, 0..2);
    assert_eq!(world.ours.state(), Some((Complete, 2, 0, 0)));
    assert!(world.ours.indexer.wanted().is_empty());
}

#[test]
fn a_peer_that_is_still_in_the_life_before_is_not_believed_about_one_that_is_new_here() {
    for seen_before in [0, 2] {
        let mut world = World::new();
        world.send(&world.theirs, 0..100);
        world.send(&world.ours, 0..seen_before);
        world.life = 1;
        // Whatever its number: without the beginning nothing but the time tells whose it is.
        world.send(&world.ours, 4..6);
        world.pass(200);
        assert!(!world.ours.ask(&world.theirs), "{seen_before} frames of the life before");
        assert!(world.ours.state().is_none_or(|(knowledge, ..)| knowledge == Recovering));
    }
}

#[test]
fn what_waits_of_a_life_that_has_ended_is_not_applied_to_the_next() {
    // Of a publisher that is new here, and of one that is known.
    for seen in [0, 3] {
        let mut world = World::new();
        world.send(&world.ours, 0..seen);
        world.send(&world.ours, 7..9);
        world.pass(200);
        assert_eq!(world.ours.state().unwrap().0, Recovering);
        world.life = 1;
        world.send(&world.ours, 0..2);
        assert_eq!(world.ours.state(), Some((Complete, 2, 0, 0)), "{seen} seen");
        assert!(world.ours.indexer.wanted().is_empty());
        world.pass(10_000);
        assert_eq!(world.ours.state(), Some((Complete, 2, 0, 0)));
        // Its beginning is missed: a hole, and nothing of before comes back.
        let mut world = World::new();
        world.send(&world.ours, (0..3).chain(7..9));
        world.pass(200);
        world.life = 1;
        world.send(&world.ours, 1..2);
        world.pass(10_000);
        assert_eq!(world.ours.state(), Some((Partial, 0, 0, 1)));
    }
}

#[test]
fn numbers_and_times_that_disagree_are_not_sorted_out_but_given_up() {
    let world = World::new();
    world.lose(6, 6..9, 0..0);
    // The publisher's clock was set back.
    let late = |sequence| {
        let data = stored(Some(sequence), &[(sequence + 1, sequence + 1)]);
        let events = vec![event(7, sequence + 1, "device", &data)];
        Frame { publisher_id: PUBLISHER, sequence, published_at: START_MS, events }.encode()
    };
    world.ours.indexer.apply(&world.ours.stream, Message::Frame(&late(9))).unwrap();
    world.pass(200);
    assert!(!world.ours.ask(&world.theirs));
    world.pass(10_000);
    assert_eq!(world.ours.state(), Some((Partial, 0, 0, 3)));
}

#[test]
fn a_torn_frame_is_missing_under_its_own_number() {
    let tear = |world: &World, sequence| {
        let mut torn = world.frame(sequence);
        torn.truncate(torn.len() - 3);
        world.ours.indexer.apply(&world.ours.stream, Message::Frame(&torn)).unwrap_err();
    };
    // Behind one that comes late.
    let world = World::new();
    world.send(&world.ours, 0..6);
    tear(&world, 7);
    world.send(&world.ours, [6]);
    assert_eq!(world.ours.state(), Some((Recovering, 7, 0, 0)));
    world.send(&world.theirs, 0..7);
    assert!(!world.ours.ask(&world.theirs), "it has not seen frame 7 either");
    world.send(&world.theirs, [7]);
    assert!(world.ours.ask(&world.theirs));
    assert_eq!(world.ours.state(), Some((Complete, 8, 0, 0)));
    // Behind one that waits: what is given up is given up whole.
    let world = World::new();
    world.send(&world.ours, (0..6).chain(7..8));
    tear(&world, 8);
    world.pass(10_000);
    assert_eq!(world.ours.state(), Some((Partial, 0, 0, 2)));
    // Once more: it was here.
    let world = World::new();
    world.send(&world.ours, 0..6);
    tear(&world, 3);
    assert_eq!(world.ours.state(), Some((Complete, 6, 0, 0)));
    // A repeat does not bring it.
    let world = World::new();
    world.send(&world.ours, 0..6);
    tear(&world, 6);
    world.send(&world.ours, [0, 5]);
    assert_eq!(world.ours.state(), Some((Recovering, 6, 0, 0)));
    // Many that wait do not hide it.
    let world = World::new();
    world.send(&world.ours, 0..6);
    tear(&world, 90);
    world.send(&world.ours, 7..80);
    world.send(&world.theirs, 0..80);
    assert!(!world.ours.ask(&world.theirs));
    assert_eq!(world.ours.state().unwrap().0, Recovering);
}

#[test]
fn a_rank_that_two_publishers_claim_is_not_settled_by_a_peer() {
    let world = World::new();
    let of_other = |sequence: u64| {
        let data = stored(None, &[(1000 + sequence, 1)]);
        let events = vec![event(7, sequence + 1, "device", &data)];
        Frame { publisher_id: 5, sequence, published_at: START_MS, events }.encode()
    };
    let send = |replica: &Replica, sequence| {
        replica.indexer.apply(&replica.stream, Message::Frame(&of_other(sequence))).unwrap()
    };
    send(&world.ours, 0);
    send(&world.theirs, 0);
    world.pass(1000);
    world.lose(6, 6..9, 9..12);
    world.pass(200);
    assert_eq!(world.ours.state(), Some((Recovering, 6, 3, 0)));
    send(&world.ours, 1);
    assert_eq!(world.ours.state().unwrap().0, Unknown);
    let _told = world.ours.ask(&world.theirs);
    assert_eq!(world.ours.state().unwrap().0, Unknown);
}

#[test]
fn a_worker_that_was_removed_does_not_come_back_with_what_has_waited() {
    // Known before, and only named by what waits.
    for seen in [6, 0] {
        let world = World::new();
        world.lose(seen, seen..9, 9..12);
        world.pass(200);
        let [wanted] = world.ours.indexer.wanted().try_into().unwrap();
        let mut told = Vec::new();
        world.theirs.indexer.write_part(wanted.part, &mut told).unwrap();
        assert_eq!(world.ours.indexer.remove(7, None), 1);
        assert!(world.ours.indexer.wanted().is_empty());
        assert!(!world.ours.indexer.take_over(&wanted, told.as_slice()).unwrap());
        world.pass(10_000);
        assert_eq!(world.ours.state(), None);
    }
}

#[test]
fn a_rank_of_which_nobody_tells_does_not_wait_for_ever() {
    let world = World::new();
    world.lose(0, 0..57, 57..60);
    world.pass(200);
    assert_eq!(world.theirs.indexer.remove(7, None), 1);
    assert!(world.ours.ask(&world.theirs));
    assert_eq!(world.ours.state(), Some((Unknown, 0, 0, 0)));
}

#[test]
fn what_a_peer_tells_is_no_proof_that_nothing_was_lost_since() {
    let world = World::new();
    world.lose(6, 6..9, 9..12);
    world.pass(200);
    let broke_ms = world.clock.steady_ms();
    world.clock.advance(100);
    assert!(world.ours.ask(&world.theirs));
    let verified = || {
        let answer = world.ours.indexer.overlap(&Query::default()).unwrap();
        answer.ranks[0].freshness.unwrap().verified_age_ms
    };
    // What waited came before that.
    world.ours.indexer.verify(&world.ours.stream, world.clock.steady_ms(), Some(broke_ms));
    assert_eq!(verified(), None);
    world.send(&world.ours, 12..13);
    world.ours.indexer.verify(&world.ours.stream, world.clock.steady_ms(), Some(broke_ms));
    assert_eq!(verified(), Some(0));
}

#[test]
fn a_publisher_that_starts_again_needs_nothing_of_before() {
    let mut world = World::new();
    world.lose(6, 6..9, 9..12);
    world.pass(200);
    world.life = 1;
    world.send(&world.ours, 0..2);
    assert_eq!(world.ours.state(), Some((Complete, 2, 0, 0)));
    assert!(world.ours.indexer.wanted().is_empty());
}

#[test]
fn no_more_than_so_many_frames_wait() {
    let world = World::new();
    world.send(&world.ours, (0..6).chain(7..7 + 16_384));
    assert_eq!(world.ours.state(), Some((Recovering, 6, 16_384, 0)), "more wait than for a late one");
    world.send(&world.ours, [7 + 16_384]);
    assert_eq!(world.ours.state(), Some((Partial, 0, 0, 1)));
}

#[test]
fn what_a_peer_tells_is_read_whole_before_it_is_believed() {
    let world = World::new();
    world.lose(6, 6..9, 9..12);
    world.pass(200);
    let [wanted] = world.ours.indexer.wanted().try_into().unwrap();
    let mut told = Vec::new();
    world.theirs.indexer.write_part(Part::Publisher(PUBLISHER), &mut told).unwrap();
    for length in 0..told.len() {
        world.ours.indexer.take_over(&wanted, &told[..length]).unwrap_err();
    }
    assert_eq!(world.ours.state(), Some((Recovering, 6, 3, 0)));
    assert!(world.ours.indexer.take_over(&wanted, told.as_slice()).unwrap());
}
