//! `POST /v1/events`: events handed in, as JSON or as the raw messages of a configured stream.

use axum::{
    extract::{Query, State, rejection::QueryRejection},
    http::HeaderMap,
};
use kvtide_events::Hashing;
use kvtide_radix::{
    Block, BlockHash, Blocks, Event, Group, Layer, Rank, Removed, Seed, SequenceHash, Stored, Tier,
    TokenBlocks,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Service, ServiceLimits,
    body::{Body, Hash, JSON, Json, media_type, object},
    guard::Asker,
    problem::Problem,
};
use crate::{Applied, Message, ScopeQuery};

const FRAME: &str = "application/x-dynamo-kv-frame";
const BATCH: &str = "application/x-engine-kv-batch";

/// What names a raw message's stream, and its number in it.
#[derive(Deserialize)]
pub(super) struct Raw {
    stream: Option<String>,
    sequence: Option<u64>,
}

/// Events of one rank, in the vocabulary's JSON form.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object with scope, worker_id and events")]
#[schema(as = Events)]
struct Request {
    #[serde(deserialize_with = "object")]
    scope: ScopeQuery,
    worker_id: u64,
    #[serde(default)]
    dp_rank: u32,
    /// The number of the first event, from 1 in the rank's life.
    first_event_id: Option<u64>,
    events: Vec<JsonEvent>,
}

/// All fields of all kinds. An enum tagged by its `type` would first be kept whole as untyped values: a body of
/// 64 MiB of tokens took 1.2 GB and 2.3 s, and takes 0.2 GB and 0.4 s.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object with a type")]
#[schema(as = Event)]
struct JsonEvent {
    #[serde(rename = "type")]
    kind: Kind,
    tier: Option<JsonTier>,
    group: Option<u64>,
    parent: Option<Hash>,
    /// Names and content.
    blocks: Option<Vec<JsonBlock>>,
    /// Names, with the tokens of all blocks or alone.
    sequence_hashes: Option<Vec<Hash>>,
    token_ids: Option<Vec<u32>>,
}

#[derive(Deserialize, Clone, Copy, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = EventKind)]
enum Kind {
    Stored,
    Removed,
    Cleared,
}

#[derive(Deserialize, Clone, Copy, Default, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Tier)]
enum JsonTier {
    #[default]
    Gpu,
    Host,
    Disk,
    External,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object with sequence_hash and block_hash")]
#[schema(as = Block)]
struct JsonBlock {
    sequence_hash: Hash,
    block_hash: Hash,
}

/// What the events did.
#[derive(Serialize, ToSchema)]
#[schema(as = EventsApplied)]
pub(super) struct Response {
    applied_events: u64,
    ignored_events: u64,
    repeated_events: u64,
    refused_events: u64,
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
            refused_events: applied.refused_events(),
            missing_events: applied.missing,
            stored_blocks: applied.blocks.stored,
            removed_blocks: applied.blocks.removed,
            unknown_blocks: applied.blocks.unknown,
            parked_blocks: applied.blocks.parked,
        }
    }
}

/// Hands in events of one rank, or a raw message of a configured stream.
#[utoipa::path(
    post,
    path = "/v1/events",
    tag = "ingest",
    params(
        ("stream" = Option<String>, Query, description = "Of a raw message: its stream"),
        ("sequence" = Option<u64>, Query, description = "Of an engine's batch: its number"),
    ),
    request_body(content((Request = "application/json"), (Vec<u8> = "application/x-dynamo-kv-frame"), (Vec<u8> = "application/x-engine-kv-batch"))),
    responses(
        (status = 200, description = "What they did", body = Response),
        (status = "default", response = Problem)
    )
)]
pub(super) async fn post(
    State(service): State<Service>,
    raw: Result<Query<Raw>, QueryRejection>,
    asker: Asker,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Response>, Problem> {
    let Ok(Query(raw)) = raw else {
        let expected = "expected ?stream=NAME and with it perhaps &sequence=NUMBER, got another query string";
        return Err(Problem::malformed(expected));
    };
    let media_type = media_type(&headers);
    let told = service.clone();
    let apply = move |body: Body| match media_type.as_deref().unwrap_or(JSON) {
        JSON => json_events(&told, &asker, &body),
        FRAME => raw_message(&told, &asker, &raw, Message::Frame(&body.bytes)),
        BATCH => {
            let message = Message::Batch { sequence: raw.sequence, payload: &body.bytes };
            raw_message(&told, &asker, &raw, message)
        }
        other => Err(Problem::media_type(other, &[JSON, FRAME, BATCH])),
    };
    // It waits for others that change the scope.
    let applied = body.work_apart(&service.large, apply).await?;
    let refused = applied.refused_events();
    if applied.events > 0 || refused == 0 {
        return Ok(Json(applied.into()));
    }
    Err(match applied.crowded {
        0 => Problem::other_source(refused),
        1.. => Problem::too_many_ranks(refused, service.indexer.limits().index.ranks),
    })
}

fn raw_message(
    service: &Service,
    asker: &Asker,
    raw: &Raw,
    message: Message<'_>,
) -> Result<Applied, Problem> {
    asker.may_use_hashes()?;
    let Some(name) = &raw.stream else {
        return Err(Problem::impossible("expected ?stream=NAME with a raw message, got none"));
    };
    let Some(stream) = service.indexer.stream(name) else {
        return Err(Problem::unknown_stream(service.indexer.stream_count()));
    };
    Ok(service.indexer.apply(&stream, message)?)
}

fn json_events(service: &Service, asker: &Asker, body: &Body) -> Result<Applied, Problem> {
    let request: Request = body.json()?;
    asker.may_see(request.scope.tenant.as_deref())?;
    if request.events.iter().any(JsonEvent::names_others) {
        asker.may_use_hashes()?;
    }
    let Some(scope) = request.scope.to_scope() else {
        return Err(Problem::impossible(
            "expected scope.model and scope.block_size, since events create their scope",
        ));
    };
    if request.first_event_id == Some(0) {
        return Err(Problem::impossible("first_event_id counts from 1, got 0"));
    }
    if request.events.len() > service.limits.events {
        let got = request.events.len() as u64;
        return Err(Problem::too_large(
            "the request's events",
            "events",
            Some(got),
            service.limits.events as u64,
        ));
    }
    let seed = Seed::of(request.scope.adapter.as_deref(), request.scope.tenant.as_deref());
    let hashing = service.indexer.hashing(&scope)?;
    let rank = Rank { worker_id: request.worker_id, dp_rank: request.dp_rank };
    let events = request.events.into_iter().map(|event| event.event(hashing, seed, &service.limits));
    let events = events.collect::<Result<Vec<Event>, Problem>>()?;
    // Only now: what is refused creates no scope.
    let stream = service.indexer.direct(&scope)?;
    Ok(service.indexer.apply_events(&stream, rank, request.first_event_id, &events)?)
}

impl JsonEvent {
    fn event(self, hashing: Hashing, seed: Seed, limits: &ServiceLimits) -> Result<Event, Problem> {
        self.refuse_foreign_fields()?;
        let layer = layer(self.tier.unwrap_or_default(), self.group.unwrap_or(0))?;
        let event = match self.kind {
            Kind::Stored => Event::Stored(Stored {
                layer,
                parent: self.parent.map(|parent| SequenceHash(parent.0)),
                blocks: stored_blocks(self.blocks, self.sequence_hashes, self.token_ids, hashing, seed)?,
            }),
            Kind::Removed => match self.sequence_hashes {
                Some(hashes) => Event::Removed(Removed { layer, names: names(hashes) }),
                None => return Err(Problem::malformed("a removed event without sequence_hashes")),
            },
            Kind::Cleared => Event::Cleared,
        };
        let blocks = match &event {
            Event::Stored(stored) => stored.blocks.len(),
            Event::Removed(removed) => removed.names.len(),
            Event::Cleared => 0,
        };
        if blocks > limits.event_blocks {
            let limit = limits.event_blocks as u64;
            return Err(Problem::too_large("an event's blocks", "event_blocks", Some(blocks as u64), limit));
        }
        Ok(event)
    }

    /// Whether it is about blocks that may be anyone's: it says by hash or by name what they are, are behind, or are no more.
    fn names_others(&self) -> bool {
        let is_whole_chain = matches!(self.kind, Kind::Stored) && self.token_ids.is_some();
        !is_whole_chain || self.parent.is_some() || self.blocks.is_some()
    }

    /// Refuses fields that events of this kind do not have.
    fn refuse_foreign_fields(&self) -> Result<(), Problem> {
        let parent = ("parent", self.parent.is_some());
        let blocks = ("blocks", self.blocks.is_some());
        let tokens = ("token_ids", self.token_ids.is_some());
        let names = ("sequence_hashes", self.sequence_hashes.is_some());
        let (tier, group) = (("tier", self.tier.is_some()), ("group", self.group.is_some()));
        let (kind, foreign): (_, &[(&str, bool)]) = match self.kind {
            Kind::Stored => ("stored", &[]),
            Kind::Removed => ("removed", &[parent, blocks, tokens]),
            Kind::Cleared => ("cleared", &[parent, blocks, tokens, names, tier, group]),
        };
        match foreign.iter().find(|(_, given)| *given) {
            Some((field, _)) => Err(Problem::malformed(format!("a {kind} event has no {field}"))),
            None => Ok(()),
        }
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
