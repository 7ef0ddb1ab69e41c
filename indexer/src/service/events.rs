//! `POST /v1/events`: events handed in, as JSON or as the raw messages of a configured stream.

use axum::{
    extract::{Query, State},
    http::{HeaderMap, header},
};
use kvtide_events::Hashing;
use kvtide_radix::{
    Block, BlockHash, Blocks, Event, Group, Layer, Rank, Removed, Seed, SequenceHash, Stored, Tier,
    TokenBlocks,
};
use serde::{Deserialize, Serialize};

use super::{
    Service, ServiceLimits,
    body::{Body, Hash, Json},
    problem::Problem,
};
use crate::{Applied, Message, ScopeQuery};

const JSON: &str = "application/json";
const FRAME: &str = "application/x-dynamo-kv-frame";
const BATCH: &str = "application/x-engine-kv-batch";

/// What names a raw message's stream.
#[derive(Deserialize)]
pub(super) struct Raw {
    stream: Option<String>,
    sequence: Option<u64>,
}

/// Events of one rank, in the vocabulary's JSON form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    scope: ScopeQuery,
    worker_id: u64,
    #[serde(default)]
    dp_rank: u32,
    /// The number of the first event, from 1 in the rank's life.
    first_event_id: Option<u64>,
    events: Vec<JsonEvent>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum JsonEvent {
    Stored {
        #[serde(default)]
        tier: JsonTier,
        #[serde(default)]
        group: u64,
        #[serde(default)]
        parent: Option<Hash>,
        /// Names and content.
        blocks: Option<Vec<JsonBlock>>,
        /// Names, with the tokens of all blocks or alone.
        sequence_hashes: Option<Vec<Hash>>,
        token_ids: Option<Vec<u32>>,
    },
    Removed {
        #[serde(default)]
        tier: JsonTier,
        #[serde(default)]
        group: u64,
        sequence_hashes: Vec<Hash>,
    },
    Cleared {},
}

#[derive(Deserialize, Clone, Copy, Default)]
#[serde(rename_all = "snake_case")]
enum JsonTier {
    #[default]
    Gpu,
    Host,
    Disk,
    External,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonBlock {
    sequence_hash: Hash,
    block_hash: Hash,
}

/// What the events did.
#[derive(Serialize)]
pub(super) struct Response {
    applied_events: u64,
    ignored_events: u64,
    repeated_events: u64,
    missing_events: u64,
    stored_blocks: usize,
    removed_blocks: usize,
    unknown_blocks: usize,
    parked_blocks: usize,
}

impl From<Applied> for Response {
    fn from(applied: Applied) -> Response {
        Response {
            applied_events: applied.events,
            ignored_events: applied.ignored,
            repeated_events: applied.repeated,
            missing_events: applied.missing,
            stored_blocks: applied.blocks.stored,
            removed_blocks: applied.blocks.removed,
            unknown_blocks: applied.blocks.unknown,
            parked_blocks: applied.blocks.parked,
        }
    }
}

pub(super) async fn post(
    State(service): State<Service>,
    Query(raw): Query<Raw>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Response>, Problem> {
    let content_type =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or(JSON);
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let applied = match media_type.as_str() {
        JSON => json_events(&service, &body)?,
        FRAME => raw_message(&service, &raw, Message::Frame(&body.0))?,
        BATCH => raw_message(&service, &raw, Message::Batch { sequence: raw.sequence, payload: &body.0 })?,
        other => return Err(Problem::media_type(other, &[JSON, FRAME, BATCH])),
    };
    if applied.refused > 0 && applied.events == 0 {
        return Err(Problem::other_source(applied.refused));
    }
    Ok(Json(applied.into()))
}

fn raw_message(service: &Service, raw: &Raw, message: Message<'_>) -> Result<Applied, Problem> {
    let Some(name) = &raw.stream else {
        return Err(Problem::impossible("expected ?stream=NAME with a raw message, got none"));
    };
    let Some(stream) = service.indexer.stream(name) else {
        return Err(Problem::unknown_stream(service.indexer.stream_count()));
    };
    Ok(service.indexer.apply(&stream, message)?)
}

fn json_events(service: &Service, body: &Body) -> Result<Applied, Problem> {
    let request: Request = body.json()?;
    let Some(scope) = request.scope.to_scope() else {
        return Err(Problem::impossible(
            "expected scope.model and scope.block_size, since events create their scope",
        ));
    };
    if request.events.len() > service.limits.events {
        let (got, limit) = (request.events.len() as u64, service.limits.events as u64);
        return Err(Problem::too_large("the request's events", Some(got), limit));
    }
    let seed = Seed::of(request.scope.adapter.as_deref(), request.scope.tenant.as_deref());
    let stream = service.indexer.direct(&scope)?;
    let hashing = Hashing { block_size: scope.block_size, eagle: stream.stream().eagle };
    let rank = Rank { worker_id: request.worker_id, dp_rank: request.dp_rank };
    let events = request.events.into_iter().map(|event| event.event(hashing, seed, &service.limits));
    let events = events.collect::<Result<Vec<Event>, Problem>>()?;
    Ok(service.indexer.apply_events(&stream, rank, request.first_event_id, &events)?)
}

impl JsonEvent {
    fn event(self, hashing: Hashing, seed: Seed, limits: &ServiceLimits) -> Result<Event, Problem> {
        let event = match self {
            JsonEvent::Stored { tier, group, parent, blocks, sequence_hashes, token_ids } => {
                Event::Stored(Stored {
                    layer: layer(tier, group)?,
                    parent: parent.map(|parent| SequenceHash(parent.0)),
                    blocks: stored_blocks(blocks, sequence_hashes, token_ids, hashing, seed)?,
                })
            }
            JsonEvent::Removed { tier, group, sequence_hashes } => {
                Event::Removed(Removed { layer: layer(tier, group)?, names: names(sequence_hashes) })
            }
            JsonEvent::Cleared {} => Event::Cleared,
        };
        let blocks = match &event {
            Event::Stored(stored) => stored.blocks.len(),
            Event::Removed(removed) => removed.names.len(),
            Event::Cleared => 0,
        };
        if blocks > limits.event_blocks {
            let limit = limits.event_blocks as u64;
            return Err(Problem::too_large("an event's blocks", Some(blocks as u64), limit));
        }
        Ok(event)
    }
}

fn layer(tier: JsonTier, group: u64) -> Result<Layer, Problem> {
    let tier = match tier {
        JsonTier::Gpu => Tier::Gpu,
        JsonTier::Host => Tier::Host,
        JsonTier::Disk => Tier::Disk,
        JsonTier::External => Tier::External,
    };
    match Group::new(group) {
        Some(group) => Ok(Layer::new(tier, group)),
        None => Err(Problem::impossible(format!("group {group}; expected one below {}", Group::LIMIT))),
    }
}

fn names(hashes: Vec<Hash>) -> Vec<SequenceHash> {
    hashes.into_iter().map(|hash| SequenceHash(hash.0)).collect()
}

fn stored_blocks(
    blocks: Option<Vec<JsonBlock>>,
    sequence_hashes: Option<Vec<Hash>>,
    token_ids: Option<Vec<u32>>,
    hashing: Hashing,
    root_seed: Seed,
) -> Result<Blocks, Problem> {
    match (blocks, sequence_hashes, token_ids) {
        (Some(blocks), None, None) => Ok(Blocks::Hashed(
            blocks
                .into_iter()
                .map(|block| Block {
                    name: SequenceHash(block.sequence_hash.0),
                    content: BlockHash(block.block_hash.0),
                })
                .collect(),
        )),
        (None, Some(hashes), None) => Ok(Blocks::Named(names(hashes))),
        (None, Some(hashes), Some(tokens)) => {
            let expected = hashing.tokens(hashes.len());
            if tokens.len() != expected {
                let (blocks, got) = (hashes.len(), tokens.len());
                return Err(Problem::impossible(format!(
                    "{blocks} blocks need {expected} token ids, got {got}"
                )));
            }
            Ok(Blocks::Tokens(TokenBlocks {
                names: names(hashes),
                tokens: hashing.windows(&tokens).flatten().copied().collect(),
                tokens_per_block: hashing.tokens_per_block(),
                root_seed,
                media: Vec::new(),
            }))
        }
        (Some(_), _, _) | (None, None, _) => Err(Problem::impossible(
            "expected a store's blocks, or its sequence_hashes with or without token_ids",
        )),
    }
}
