//! Plays steps of vectors into an indexer, encoded as publishers do.

use std::sync::Arc;

use kvtide::{
    BoundStream, Clock, EngineStream, Format, GapPolicy, IndexAnswer, IndexRequest, Indexer, KnowledgeState,
    Limits, Message, Part, PromptContent, Query, RankAnswer, Reason, ReplayRequest, Scope, Stream,
    snapshot::Wanted,
};
use kvtide_events::{Ignored, RouterEvent};
use kvtide_radix::Rank;
use kvtide_tests::vectors::{
    BLOCK_SIZE, BatchSpec, EventSpec, Expected, FrameSpec, IndexSpec, Kind, State, Step, StreamSpec,
    WantedSpec, prompt, rank,
};
use serde_json::json;

use crate::wire::{self, Announced};

/// When the clock starts, by the wall.
const START_MS: u64 = 1_700_000_000_000;

/// An indexer with one stream, and a clock that stands still.
pub(crate) struct Player {
    kind: Kind,
    spec: StreamSpec,
    clock: Clock,
    indexer: Indexer,
    stream: Arc<BoundStream>,
    asked: Option<ReplayRequest>,
    asked_index: Option<(Wanted, IndexRequest)>,
    announced: Vec<kvtide::Announced>,
    /// kvtide has ended in between: it may ask for something else than what a vector says.
    restarted: bool,
}

impl Player {
    pub(crate) fn new(spec: &StreamSpec) -> Player {
        let clock = Clock::manual(START_MS);
        let (indexer, stream) = start(spec, &clock);
        Player {
            kind: spec.kind,
            spec: spec.clone(),
            clock,
            indexer,
            stream,
            asked: None,
            asked_index: None,
            announced: Vec::new(),
            restarted: false,
        }
    }

    /// kvtide ends, and another goes on with its snapshot at once. Discovery tells it who lives.
    pub(crate) fn restart(&mut self) {
        let mut snapshot = Vec::new();
        self.indexer.write_snapshot(&mut snapshot).unwrap();
        self.clock = Clock::manual(self.clock.wall_ms());
        // A steady clock does not begin at 0.
        (self.indexer, self.stream) = start(&self.spec, &self.clock);
        self.indexer.read_snapshot(snapshot.as_slice()).unwrap();
        for announced in &self.announced {
            self.indexer.announce(&self.stream, *announced).unwrap();
        }
        (self.asked, self.asked_index, self.restarted) = (None, None, true);
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
            Step::Announce(spec) => {
                let (publisher_id, keeps_index) = (spec.publisher, !spec.live_only);
                let announced = kvtide::Announced { publisher_id, rank: rank(spec.worker), keeps_index };
                self.announced.push(announced);
                self.indexer.announce(&self.stream, announced).unwrap();
            }
            Step::Withdraw { publisher } => {
                self.announced.retain(|announced| announced.publisher_id != *publisher);
                self.indexer.withdraw(&self.stream, *publisher);
            }
            Step::AskIndex { publisher, wanted } => self.ask_index(*publisher, *wanted),
            Step::Index(answer) => {
                if let Some((wanted, request)) = self.asked_index.take() {
                    let answer = index_answer(answer, request.rank);
                    self.indexer.apply_index(&wanted, request, answer);
                }
            }
            Step::Events { worker, first_id, events } => {
                let events: Vec<_> = events.iter().filter_map(|event| event.event(self.kind)).collect();
                self.indexer.apply_events(&self.stream, rank(*worker), *first_id, &events).unwrap();
            }
            Step::Verify { ago: ago_ms, doubted_ago } => {
                let ago = |ms: u64| self.clock.steady_ms().saturating_sub(ms);
                self.indexer.verify(&self.stream, ago(*ago_ms), doubted_ago.map(ago));
            }
            Step::Reconnected => self.indexer.doubt(&self.stream),
            Step::Wait(ms) => {
                self.clock.advance(*ms);
                self.indexer.tick();
            }
            Step::Expect(_) => {}
        }
    }

    fn ask_index(&mut self, publisher: u64, wanted: WantedSpec) {
        let all = self.indexer.wanted_indexes();
        let found = all.into_iter().find(|wanted| wanted.part == Part::Publisher(publisher));
        self.asked_index = found.and_then(|found| Some((found.clone(), self.indexer.index_request(&found)?)));
        let got = match &self.asked_index {
            None => WantedSpec::Nothing,
            Some((_, request)) => request.first_event_id.map_or(WantedSpec::All, WantedSpec::From),
        };
        assert!(
            self.restarted || got == wanted,
            "kvtide wants {got:?} of publisher {publisher}, expected {wanted:?}"
        );
    }

    /// How old the newest event of any worker is.
    pub(crate) fn event_age_ms(&self) -> Option<u64> {
        let query = Query { prompt: PromptContent::Hashes(Vec::new()), ..Query::default() };
        let ranks = self.indexer.overlap(&query).unwrap().ranks;
        ranks.iter().filter_map(|answer| answer.freshness?.last_event_age_ms).min()
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

/// A kvtide that follows a vector's stream.
fn start(spec: &StreamSpec, clock: &Clock) -> (Indexer, Arc<BoundStream>) {
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
    let announced = spec.announced;
    let stream =
        Stream { gap_policy, announced, ..Stream::new("vector", Scope::new("m", BLOCK_SIZE), format) };
    let bound = indexer.bind(stream).unwrap();
    (indexer, bound)
}

/// What a worker's own index answers. Numbers of what it holds mean nothing.
fn index_answer(answer: &IndexSpec, rank: Rank) -> IndexAnswer {
    let routed = |event_id, event: &EventSpec| RouterEvent {
        rank,
        event_id,
        change: event.event(Kind::Dynamo).ok_or(Ignored::UnknownEvent),
    };
    match answer {
        IndexSpec::Events(events) => IndexAnswer::Events {
            events: events.iter().map(|event| routed(event.id, &event.event)).collect(),
            last_event_id: events.last().map_or(0, |event| event.id),
        },
        IndexSpec::Dump { last, holds, behind } => IndexAnswer::Dump {
            holds: holds.iter().map(|event| routed(0, event)).collect(),
            last_event_id: *last,
            behind: behind.iter().map(|event| routed(event.id, &event.event)).collect(),
        },
        IndexSpec::Nothing { last } => IndexAnswer::Nothing { last_event_id: *last },
        IndexSpec::Failed => IndexAnswer::Failed,
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
