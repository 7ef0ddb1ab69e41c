//! Plays steps of vectors into an indexer, encoded as publishers do.

use std::sync::Arc;

use kvtide::{
    BoundStream, Clock, EngineStream, Format, GapPolicy, Indexer, KnowledgeState, Limits, Message,
    PromptContent, Query, RankAnswer, Reason, ReplayRequest, Scope, Stream,
};
use kvtide_tests::vectors::{
    BLOCK_SIZE, BatchSpec, Expected, FrameSpec, Kind, State, Step, StreamSpec, prompt, rank,
};
use serde_json::json;

use crate::wire::{self, Announced};

/// When the clock starts, by the wall.
const START_MS: u64 = 1_700_000_000_000;

/// An indexer with one stream, and a clock that stands still.
pub(crate) struct Player {
    kind: Kind,
    clock: Clock,
    indexer: Indexer,
    stream: Arc<BoundStream>,
    asked: Option<ReplayRequest>,
}

impl Player {
    pub(crate) fn new(spec: &StreamSpec) -> Player {
        let clock = Clock::manual(START_MS);
        let mut limits = Limits::default();
        limits.index.parked_blocks = spec.parked_blocks.unwrap_or(limits.index.parked_blocks);
        let indexer = Indexer::new(limits, clock.clone());
        let format = match spec.kind {
            Kind::Dynamo => Format::Dynamo,
            Kind::Direct => Format::Direct,
            Kind::Engine => Format::Engine(EngineStream {
                dp_rank: spec.dp_rank,
                replays: spec.replays,
                ..EngineStream::new(7)
            }),
        };
        let gap_policy = if spec.keep { GapPolicy::Keep } else { GapPolicy::Forget };
        let stream = Stream { gap_policy, ..Stream::new("vector", Scope::new("m", BLOCK_SIZE), format) };
        let stream = indexer.bind(stream).unwrap();
        Player { kind: spec.kind, clock, indexer, stream, asked: None }
    }

    pub(crate) fn play(&mut self, step: &Step) {
        match step {
            Step::Batch(batch) => {
                let message = Message::Batch { sequence: batch.sequence, payload: &encode_batch(batch) };
                let applied = self.indexer.apply(&self.stream, message);
                assert_eq!(applied.is_err(), batch.unreadable, "{applied:?}");
            }
            Step::Ask => self.asked = Some(self.indexer.replay_request(&self.stream)),
            Step::Answer(batches) => {
                let asked = self.asked.take();
                let asked = asked.unwrap_or_else(|| self.indexer.replay_request(&self.stream));
                let answer = batches.iter().map(|batch| (batch.sequence.unwrap(), encode_batch(batch)));
                self.indexer.apply_replay(&self.stream, asked, answer).unwrap();
            }
            Step::Frame(frame) => {
                self.indexer.apply(&self.stream, Message::Frame(&encode_frame(frame))).unwrap();
            }
            Step::UnreadableFrame { publisher } => {
                let frame = match publisher {
                    Some(publisher) => rmp_serde::to_vec(&json!({"publisher_id": publisher})).unwrap(),
                    None => b"nothing".to_vec(),
                };
                self.indexer.apply(&self.stream, Message::Frame(&frame)).unwrap_err();
            }
            Step::Events { worker, first_id, events } => {
                let events: Vec<_> = events.iter().filter_map(|event| event.event(self.kind)).collect();
                self.indexer.apply_events(&self.stream, rank(*worker), *first_id, &events).unwrap();
            }
            Step::Verify { ago, doubted_ago } => {
                let now_ms = self.clock.steady_ms();
                self.indexer.verify(&self.stream, now_ms - ago, doubted_ago.map(|ago| now_ms - ago));
            }
            Step::Reconnected => self.indexer.doubt(&self.stream),
            Step::Wait(ms) => {
                self.clock.advance(*ms);
                self.indexer.tick();
            }
            Step::Expect(_) => {}
        }
    }

    /// What is known of a worker now.
    pub(crate) fn known(&self, worker: u64) -> Expected {
        let prompt = PromptContent::Hashes(prompt());
        let answer = self.indexer.overlap(&Query { prompt, ..Query::default() }).unwrap();
        let nothing = Expected { worker, ..Expected::default() };
        let found = answer.ranks.into_iter().find(|answer| answer.worker_id == worker);
        let Some(RankAnswer { reach_tokens, knowledge, reason, freshness, .. }) = found else {
            return nothing;
        };
        let fresh = freshness.unwrap();
        Expected {
            worker,
            knowledge: Some(match knowledge {
                KnowledgeState::Unknown => State::Unknown,
                KnowledgeState::Complete => State::Complete,
                KnowledgeState::Partial => State::Partial,
                KnowledgeState::Recovering => State::Recovering,
                KnowledgeState::Gap => State::Gap,
            }),
            conflict: reason == Some(Reason::ConflictingPublishers),
            generation: fresh.generation,
            last: fresh.last_event_id,
            missing: fresh.missing_events,
            reach: reach_tokens.map(|reach| [reach.gpu / BLOCK_SIZE, reach.host / BLOCK_SIZE]),
            pending: fresh.pending_events,
            verified: fresh.verified_age_ms,
        }
    }
}

/// A batch; one that does not decode is told from others by its number.
fn encode_batch(batch: &BatchSpec) -> Vec<u8> {
    if batch.unreadable {
        return vec![0xc1, u8::try_from(batch.sequence.unwrap_or(0)).unwrap()];
    }
    let events: Vec<Announced> = batch.events.iter().map(Announced::from).collect();
    wire::batch(START_MS + batch.at, &events, batch.dp_rank)
}

fn encode_frame(frame: &FrameSpec) -> Vec<u8> {
    let events: Vec<_> =
        frame.events.iter().map(|event| (event.worker, event.id, Announced::from(&event.event))).collect();
    wire::frame(frame.publisher, frame.sequence, START_MS + frame.at, &events)
}
