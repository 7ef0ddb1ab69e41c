//! `POST /v1/feedback`: how many tokens of a request an engine had cached, beside what was predicted.

use axum::extract::State;
use kvtide_radix::Rank;
use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    Service,
    body::{Body, Json, object},
    problem::Problem,
};
use crate::{FeedbackState, ScopeQuery};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object with worker_id, predicted_tokens and cached_tokens")]
#[schema(as = Observation)]
struct Request {
    #[serde(default, deserialize_with = "object")]
    scope: ScopeQuery,
    worker_id: u64,
    #[serde(default)]
    dp_rank: u32,
    predicted_tokens: u32,
    cached_tokens: u32,
}

/// Notes what an engine says that it had cached of a request, beside what was predicted.
#[utoipa::path(
    post,
    path = "/v1/feedback",
    tag = "query",
    request_body = Request,
    responses(
        (status = 200, description = "Sums over the rank", body = FeedbackState),
        (status = "default", response = Problem)
    )
)]
pub(super) async fn post(State(service): State<Service>, body: Body) -> Result<Json<FeedbackState>, Problem> {
    let Request { scope, worker_id, dp_rank, predicted_tokens, cached_tokens } = body.json()?;
    let rank = Rank { worker_id, dp_rank };
    Ok(Json(service.indexer.observe(&scope, rank, predicted_tokens, cached_tokens)?))
}
