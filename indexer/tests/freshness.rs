//! What is said of the age of numbers: when they are usable, and when clocks are set.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first step that cannot be")]

use std::sync::Arc;

use kvtide::{
    BoundStream, Clock, EngineStream, Format, Freshness, FreshnessLimits, Indexer, KnowledgeState, Limits,
    Message, PromptContent, Query, RankAnswer, Scope, Stream, Unusable,
};
use serde_json::json;

const WALL_MS: u64 = 1_700_000_000_000;

#[test]
fn usable_names_the_first_limit_that_fails() {
    use KnowledgeState::{Complete, Gap, Partial, Recovering, Unknown};
    let fresh = Freshness {
        lag_over_best_ms: Some(40),
        verified_age_ms: Some(900),
        missing_events: 3,
        ..Freshness::default()
    };
    let any = FreshnessLimits::default();
    assert_eq!(fresh.usable(Complete, &any), Ok(()));
    for state in [Partial, Recovering, Gap, Unknown] {
        assert_eq!(fresh.usable(state, &any), Err(Unusable::Knowledge { got: state }));
    }
    let all = FreshnessLimits { knowledge: vec![Partial, Recovering, Gap, Unknown], ..any.clone() };
    for state in [Partial, Recovering, Gap] {
        assert_eq!(fresh.usable(state, &all), Ok(()));
    }
    assert_eq!(fresh.usable(Unknown, &all), Err(Unusable::Knowledge { got: Unknown }), "there is no number");

    let limits = FreshnessLimits {
        lag_over_best_ms: Some(40),
        verified_age_ms: Some(900),
        missing_events: Some(3),
        knowledge: Vec::new(),
    };
    assert_eq!(fresh.usable(Complete, &limits), Ok(()));
    let rows = [
        (Freshness { missing_events: 4, ..fresh }, Unusable::MissingEvents { got: 4, limit: 3 }),
        (
            Freshness { verified_age_ms: Some(901), ..fresh },
            Unusable::VerifiedAge { got: Some(901), limit: 900 },
        ),
        (Freshness { verified_age_ms: None, ..fresh }, Unusable::VerifiedAge { got: None, limit: 900 }),
        (Freshness { lag_over_best_ms: Some(41), ..fresh }, Unusable::Lag { got: 41, limit: 40 }),
    ];
    for (fresh, expected) in rows {
        assert_eq!(fresh.usable(Complete, &limits), Err(expected));
        assert!(!expected.to_string().is_empty());
    }
    assert_eq!(
        Freshness { lag_over_best_ms: None, ..fresh }.usable(Complete, &limits),
        Ok(()),
        "nothing came late"
    );
}

/// An engine that publishes by a clock of its own.
struct World {
    clock: Clock,
    indexer: Indexer,
    stream: Arc<BoundStream>,
}

impl World {
    fn new() -> World {
        let clock = Clock::manual(WALL_MS);
        let indexer = Indexer::new(Limits::default(), clock.clone());
        let stream = Stream::new("engine", Scope::new("m", 4), Format::Engine(EngineStream::new(7)));
        let stream = indexer.bind(stream).unwrap();
        World { clock, indexer, stream }
    }

    fn publish(&self, sequence: u64, at_ms: u64) {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 are far below 2^53")]
        let payload = &rmp_serde::to_vec(&json!([at_ms as f64 / 1000.0, [], 0])).unwrap();
        self.indexer.apply(&self.stream, Message::Batch { sequence: Some(sequence), payload }).unwrap();
    }

    fn rank(&self) -> RankAnswer {
        let prompt = PromptContent::Hashes(Vec::new());
        self.indexer.overlap(&Query { prompt, ..Query::default() }).unwrap().ranks.remove(0)
    }

    fn fresh(&self) -> Freshness {
        self.rank().freshness.unwrap()
    }
}

#[test]
fn a_clock_that_is_set_here_changes_lags_and_no_age() {
    for wall_ms in [WALL_MS + 3_600_000, WALL_MS - 3_600_000, 0, u64::MAX / 4] {
        let world = World::new();
        world.publish(0, WALL_MS - 5);
        world.clock.advance(100);
        world.publish(1, WALL_MS + 95);
        let before = world.fresh();
        assert_eq!((before.lag_ms, before.lag_over_best_ms), (Some(5), Some(0)));
        world.clock.set_wall(wall_ms);
        world.clock.advance(50);
        let after = world.fresh();
        assert_eq!((after.last_event_age_ms, after.lag_ms), (Some(50), Some(5)), "{wall_ms}: of then");
        world.publish(2, WALL_MS + 145);
        let late = world.fresh();
        let lag = (wall_ms + 50).cast_signed() - (WALL_MS + 145).cast_signed();
        assert_eq!((late.last_event_age_ms, late.lag_ms), (Some(0), Some(lag)), "{wall_ms}");
        let over = lag - lag.min(5);
        assert_eq!(late.lag_over_best_ms, Some(over.cast_unsigned()), "{wall_ms}");
        assert_eq!(world.rank().knowledge, KnowledgeState::Complete, "{wall_ms}");
        // A minute later what was measured by the other clock is forgotten.
        world.clock.advance(60_001);
        world.publish(3, WALL_MS + 60_146);
        assert_eq!(world.fresh().lag_over_best_ms, Some(0), "{wall_ms}");
    }
}

#[test]
fn an_engines_clock_that_is_set_back_costs_at_most_a_hole_and_heals() {
    let world = World::new();
    world.publish(0, WALL_MS);
    world.publish(1, WALL_MS - 3_600_000);
    assert_eq!(world.rank().knowledge, KnowledgeState::Partial, "it may be a process that has gone");
    world.clock.advance(10_000);
    world.publish(2, WALL_MS - 3_590_000);
    let missing = world.fresh().missing_events;
    for sequence in 3..10 {
        world.publish(sequence, WALL_MS - 3_590_000 + sequence);
    }
    assert_eq!((world.fresh().missing_events, world.fresh().last_event_id), (missing, Some(9)));
}

#[test]
fn an_engines_clock_that_is_set_ahead_does_no_harm() {
    let world = World::new();
    world.publish(0, WALL_MS);
    world.publish(1, WALL_MS + 3_600_000);
    world.publish(2, WALL_MS + 3_600_001);
    assert_eq!(world.rank().knowledge, KnowledgeState::Complete);
    assert_eq!(world.fresh().lag_ms, Some(-3_600_001));
}
