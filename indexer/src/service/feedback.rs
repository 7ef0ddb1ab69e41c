//! `POST /v1/feedback`: how many tokens of a request an engine had cached, beside what was predicted.

use axum::extract::State;
use kvtide_radix::Rank;
use serde::Deserialize;

use super::{
    Service,
    body::{Body, Json},
    problem::Problem,
};
use crate::{FeedbackState, ScopeQuery};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with worker_id, predicted_tokens and cached_tokens")]
struct Request {
    #[serde(default)]
    scope: ScopeQuery,
    worker_id: u64,
    #[serde(default)]
    dp_rank: u32,
    predicted_tokens: u32,
    cached_tokens: u32,
}

pub(super) async fn post(State(service): State<Service>, body: Body) -> Result<Json<FeedbackState>, Problem> {
    let Request { scope, worker_id, dp_rank, predicted_tokens, cached_tokens } = body.json()?;
    let rank = Rank { worker_id, dp_rank };
    Ok(Json(service.indexer.observe(&scope, rank, predicted_tokens, cached_tokens)?))
}
