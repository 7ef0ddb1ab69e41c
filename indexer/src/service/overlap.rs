//! `POST /v1/overlap`: how much of a prompt, or of each of several, every rank holds.

use axum::{
    extract::{Query as UrlQuery, State, rejection::QueryRejection},
    http::HeaderMap,
};
use kvtide_radix::{BlockHash, Rank};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Service,
    body::{Body, Hash, Json, media_type},
    guard::Asker,
    media,
    problem::Problem,
};
use crate::{Answer, PromptContent, Query, ScopeQuery};

/// A body of the form that JSON has.
const MSGPACK: &str = "application/msgpack";
/// Tokens alone, each as four bytes, little-endian.
const TOKENS: &str = "application/octet-stream";

#[derive(Deserialize, ToSchema)]
#[schema(as = Overlap)]
#[serde(deny_unknown_fields, expecting = "an object with token_ids, block_hashes or queries")]
struct Request {
    #[serde(default)]
    scope: ScopeQuery,
    token_ids: Option<Vec<u32>>,
    block_hashes: Option<Vec<Hash>>,
    block_mm_infos: Option<Vec<media::Block>>,
    mm_objects: Option<Vec<media::Object>>,
    is_eagle: Option<bool>,
    ranks: Option<Vec<(u64, u32)>>,
    #[serde(default)]
    min_reach_tokens: u32,
    limit: Option<usize>,
    #[serde(default = "yes")]
    freshness: bool,
    /// Several, in place of all else.
    #[schema(no_recursion)]
    queries: Option<Vec<Request>>,
}

fn yes() -> bool {
    true
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Reply {
    One(Box<Answer>),
    Several { answers: Vec<Answer> },
}

/// How much of a prompt, or of each of several, every rank holds.
#[utoipa::path(
    post,
    path = "/v1/overlap",
    tag = "query",
    params(Options),
    request_body(content((Request = "application/json"), (Request = "application/msgpack"), (Vec<u8> = "application/octet-stream"))),
    responses(
        (status = 200, description = "Of one version of the index", body = Reply),
        (status = "default", response = Problem)
    )
)]
pub(super) async fn post(
    State(service): State<Service>,
    asker: Asker,
    options: Result<UrlQuery<Options>, QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Reply>, Problem> {
    let UrlQuery(options) = options.map_err(|_| Options::malformed())?;
    let mut request: Request = match media_type(&headers).as_deref() {
        Some(TOKENS) => options.request(body.words()?),
        _ if options != Options::default() => return Err(Options::malformed()),
        Some(MSGPACK) => body.msgpack()?,
        // Clients that say nothing, or something else by themselves, mean JSON.
        Some(_) | None => body.json()?,
    };
    let Some(queries) = request.queries.take() else {
        let query = request.query()?;
        asker.may_ask(&query)?;
        return Ok(Json(Reply::One(Box::new(service.indexer.overlap(&query)?))));
    };
    if request.says_more() {
        return Err(Problem::impossible("got queries and more, expected each query to say what it asks"));
    }
    let (got, limit) = (queries.len() as u64, service.limits.queries as u64);
    if got > limit {
        return Err(Problem::too_large("a request's queries", "queries", Some(got), limit));
    }
    let queries: Vec<Query> = queries.into_iter().map(Request::query).collect::<Result<_, _>>()?;
    queries.iter().try_for_each(|query| asker.may_ask(query))?;
    Ok(Json(Reply::Several { answers: service.indexer.overlap_all(&queries)? }))
}

/// What a query string says of a prompt that is sent as it is.
#[derive(Deserialize, PartialEq, Default, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Options {
    model: Option<String>,
    revision: Option<String>,
    tokenizer: Option<String>,
    kv_dtype: Option<String>,
    layout: Option<String>,
    block_size: Option<u32>,
    adapter: Option<String>,
    tenant: Option<String>,
    min_reach_tokens: Option<u32>,
    limit: Option<usize>,
    freshness: Option<bool>,
}

impl Options {
    fn malformed() -> Problem {
        Problem::malformed(format!(
            "expected a query string with a body of type {TOKENS} only, of parts of a scope, min_reach_tokens, limit and \
             freshness; got another"
        ))
    }

    fn request(self, token_ids: Vec<u32>) -> Request {
        let Options { model, block_size, adapter, tenant, .. } = self;
        let stated = |part: Option<String>| part.map(Some);
        Request {
            scope: ScopeQuery {
                model,
                revision: stated(self.revision),
                tokenizer: stated(self.tokenizer),
                kv_dtype: stated(self.kv_dtype),
                layout: stated(self.layout),
                block_size,
                adapter,
                tenant,
            },
            token_ids: Some(token_ids),
            block_hashes: None,
            block_mm_infos: None,
            mm_objects: None,
            is_eagle: None,
            ranks: None,
            min_reach_tokens: self.min_reach_tokens.unwrap_or(0),
            limit: self.limit,
            freshness: self.freshness.unwrap_or(true),
            queries: None,
        }
    }
}

impl Request {
    /// Whether anything is said beside `queries`.
    fn says_more(&self) -> bool {
        let Request {
            queries: _,
            scope,
            token_ids,
            block_hashes,
            ranks,
            min_reach_tokens,
            limit,
            freshness,
            ..
        } = self;
        let Request { block_mm_infos, mm_objects, is_eagle, .. } = self;
        let prompt = token_ids.is_some() || block_hashes.is_some();
        let media = block_mm_infos.is_some() || mm_objects.is_some();
        prompt
            || media
            || is_eagle.is_some()
            || *scope != ScopeQuery::default()
            || ranks.is_some()
            || *min_reach_tokens > 0
            || limit.is_some()
            || !freshness
    }

    fn query(self) -> Result<Query, Problem> {
        if self.queries.is_some() {
            return Err(Problem::impossible("got queries within queries, expected a prompt"));
        }
        let prompt = match (self.token_ids, self.block_hashes) {
            (Some(tokens), None) => media::prompt(tokens, self.block_mm_infos, self.mm_objects)?,
            (None, Some(_)) if self.block_mm_infos.is_some() || self.mm_objects.is_some() => {
                return Err(Problem::impossible(
                    "got block_hashes and media, expected these to be in the hashes already",
                ));
            }
            (None, Some(hashes)) => {
                PromptContent::Hashes(hashes.into_iter().map(|hash| BlockHash(hash.0)).collect())
            }
            (Some(_), Some(_)) => {
                return Err(Problem::impossible("got token_ids and block_hashes, expected one of them"));
            }
            (None, None) => {
                return Err(Problem::impossible("expected token_ids or block_hashes, got neither"));
            }
        };
        let ranks = self
            .ranks
            .map(|ranks| ranks.into_iter().map(|(worker_id, dp_rank)| Rank { worker_id, dp_rank }).collect());
        Ok(Query {
            scope: self.scope,
            prompt,
            eagle: self.is_eagle,
            ranks,
            min_reach_tokens: self.min_reach_tokens,
            limit: self.limit,
            without_freshness: !self.freshness,
        })
    }
}
