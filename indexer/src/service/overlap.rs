//! `POST /v1/overlap`: how much of a prompt every rank holds.

use axum::extract::State;
use kvtide_radix::{BlockHash, Rank};
use serde::Deserialize;

use super::{
    Service,
    body::{Body, Hash, Json},
    problem::Problem,
};
use crate::{Answer, PromptContent, Query, ScopeQuery};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with token_ids or block_hashes")]
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
}

fn yes() -> bool {
    true
}

pub(super) async fn post(State(service): State<Service>, body: Body) -> Result<Json<Answer>, Problem> {
    let query = body.json::<Request>()?.query()?;
    Ok(Json(service.indexer.overlap(&query)?))
}

impl Request {
    fn query(self) -> Result<Query, Problem> {
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
