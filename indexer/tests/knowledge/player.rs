//! Plays steps of vectors into an indexer, encoded as publishers do.

use std::sync::Arc;

use kvtide::{
    BoundStream, Clock, EngineStream, Format, GapPolicy, Indexer, KnowledgeState, Limits, Message,
    PromptContent, Query, RankAnswer, ReplayRequest, Scope, Stream,
};
use kvtide_tests::vectors::{
    BLOCK_SIZE, BatchSpec, EventSpec, Expected, FrameSpec, Kind, State, Step, StreamSpec, content, prompt,
    rank, tokens,
};
use serde_json::{Value, json};

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
        let Some(RankAnswer { reach_tokens, knowledge, freshness, .. }) = found else { return nothing };
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
            generation: fresh.generation,
            last: fresh.last_event_id,
            missing: fresh.missing_events,
            reach: reach_tokens.map(|reach| [reach.gpu / BLOCK_SIZE, reach.host / BLOCK_SIZE]),
            pending: fresh.pending_events,
            verified: fresh.verified_age_ms,
        }
    }
}

/// A batch as vLLM publishes it.
fn encode_batch(batch: &BatchSpec) -> Vec<u8> {
    if batch.unreadable {
        return vec![0xc1, u8::try_from(batch.sequence.unwrap_or(0)).unwrap()];
    }
    #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 are far below 2^53")]
    let seconds = (START_MS + batch.at) as f64 / 1000.0;
    let events: Vec<Value> = batch.events.iter().map(engine_event).collect();
    rmp_serde::to_vec(&json!([seconds, events, batch.dp_rank])).unwrap()
}

fn engine_event(event: &EventSpec) -> Value {
    let stored = |&[first, last]: &[u64; 2], medium: &str| {
        json!({"type": "BlockStored", "block_hashes": (first..=last).collect::<Vec<_>>(),
               "parent_block_hash": (first > 1).then(|| first - 1), "block_size": BLOCK_SIZE,
               "token_ids": (first..=last).flat_map(tokens).collect::<Vec<_>>(), "medium": medium})
    };
    match event {
        EventSpec::Stored(blocks) => stored(blocks, "GPU"),
        EventSpec::StoredHost(blocks) => stored(blocks, "CPU"),
        EventSpec::Removed(names) => json!({"type": "BlockRemoved", "block_hashes": names, "medium": "GPU"}),
        EventSpec::Cleared([]) => json!({"type": "AllBlocksCleared"}),
        EventSpec::Unheard([]) => json!({"type": "BlockPainted", "colour": "blue"}),
    }
}

/// A frame as dynamo-runtime publishes it.
fn encode_frame(frame: &FrameSpec) -> Vec<u8> {
    let events: Vec<Value> = frame
        .events
        .iter()
        .map(|event| {
            let (tier, data) = router_data(&event.event);
            json!({"worker_id": event.worker, "storage_tier": tier,
                   "event": {"event_id": event.id, "data": data, "dp_rank": 0}})
        })
        .collect();
    let payload = rmp_serde::to_vec(&events).unwrap();
    let numbers = [
        ("publisher_id", frame.publisher),
        ("sequence", frame.sequence),
        ("published_at", START_MS + frame.at),
    ];
    let mut encoded = Vec::new();
    rmp::encode::write_map_len(&mut encoded, 4).unwrap();
    for (name, number) in numbers {
        rmp::encode::write_str(&mut encoded, name).unwrap();
        rmp::encode::write_uint(&mut encoded, number).unwrap();
    }
    rmp::encode::write_str(&mut encoded, "payload").unwrap();
    rmp::encode::write_bin(&mut encoded, &payload).unwrap();
    encoded
}

fn router_data(event: &EventSpec) -> (&'static str, Value) {
    let stored = |&[first, last]: &[u64; 2]| {
        let block = |name| json!({"block_hash": name, "tokens_hash": content(name).0, "mm_extra_info": null});
        let blocks: Vec<Value> = (first..=last).map(block).collect();
        let parent = (first > 1).then(|| first - 1);
        json!({"stored": {"parent_hash": parent, "start_position": null, "blocks": blocks}})
    };
    match event {
        EventSpec::Stored(blocks) => ("device", stored(blocks)),
        EventSpec::StoredHost(blocks) => ("host_pinned", stored(blocks)),
        EventSpec::Removed(names) => ("device", json!({"removed": {"block_hashes": names}})),
        EventSpec::Cleared([]) => ("device", json!("cleared")),
        EventSpec::Unheard([]) => ("device", json!({"painted": {"colour": "blue"}})),
    }
}
