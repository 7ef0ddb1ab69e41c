//! `POST /v1/overlap`: how much of a prompt, or of each of several, every rank holds.

use axum::extract::State;
use kvtide_radix::{BlockHash, Rank};
use serde::{Deserialize, Serialize};

use super::{
    Service,
    body::{Body, Hash, Json},
    problem::Problem,
};
use crate::{Answer, PromptContent, Query, ScopeQuery};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with token_ids, block_hashes or queries")]
struct Request {
    #[serde(default)]
    scope: ScopeQuery,
    token_ids: Option<Vec<u32>>,
    block_hashes: Option<Vec<Hash>>,
    ranks: Option<Vec<(u64, u32)>>,
    #[serde(default)]
    min_reach_tokens: u32,
    limit: Option<usize>,
    #[serde(default = "yes")]
    freshness: bool,
    /// Several, in place of all else.
    queries: Option<Vec<Request>>,
}

fn yes() -> bool {
    true
}

#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Reply {
    One(Box<Answer>),
    Several { answers: Vec<Answer> },
}

pub(super) async fn post(State(service): State<Service>, body: Body) -> Result<Json<Reply>, Problem> {
    let mut request = body.json::<Request>()?;
    let Some(queries) = request.queries.take() else {
        return Ok(Json(Reply::One(Box::new(service.indexer.overlap(&request.query()?)?))));
    };
    if request.says_more() {
        return Err(Problem::impossible("got queries and more, expected each query to say what it asks"));
    }
    let (got, limit) = (queries.len() as u64, service.limits.queries as u64);
    if got > limit {
        return Err(Problem::too_large("a request's queries", "queries", Some(got), limit));
    }
    let queries: Vec<Query> = queries.into_iter().map(Request::query).collect::<Result<_, _>>()?;
    Ok(Json(Reply::Several { answers: service.indexer.overlap_all(&queries)? }))
}

impl Request {
    /// Whether anything is said beside `queries`.
    fn says_more(&self) -> bool {
        let Request { queries: _, scope, token_ids, block_hashes, ranks, min_reach_tokens, limit, freshness } =
            self;
        let prompt = token_ids.is_some() || block_hashes.is_some();
        prompt
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
            (Some(tokens), None) => PromptContent::Tokens(tokens),
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
            ranks,
            min_reach_tokens: self.min_reach_tokens,
            limit: self.limit,
            without_freshness: !self.freshness,
        })
    }
}
