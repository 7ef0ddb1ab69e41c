//! `POST /v1/workers` and `DELETE /v1/workers/{id}`: workers that come before their first event, and that go.

use axum::extract::{
    Path, Query, State,
    rejection::{PathRejection, QueryRejection},
};
use kvtide_radix::Rank;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Service,
    body::{Body, Json, apart, object},
    problem::Problem,
};
use crate::ScopeQuery;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object with scope and worker_id")]
#[schema(as = RegisterWorker)]
struct Request {
    #[serde(deserialize_with = "object")]
    scope: ScopeQuery,
    worker_id: u64,
    #[serde(default = "first")]
    dp_ranks: Vec<u32>,
}

fn first() -> Vec<u32> {
    vec![0]
}

/// How many ranks became known.
#[derive(Serialize, ToSchema)]
pub(super) struct Registered {
    new_ranks: usize,
}

/// Makes ranks known from which nothing has come yet.
#[utoipa::path(
    post,
    path = "/v1/workers",
    tag = "admin",
    request_body = Request,
    responses(
        (status = 200, description = "How many became known", body = Registered),
        (status = "default", response = Problem)
    )
)]
pub(super) async fn register(
    State(service): State<Service>,
    body: Body,
) -> Result<Json<Registered>, Problem> {
    let Request { scope, worker_id, dp_ranks } = body.json()?;
    let Some(scope) = scope.to_scope() else {
        return Err(Problem::impossible("expected scope.model and scope.block_size of a worker"));
    };
    let ranks: Vec<Rank> = dp_ranks.into_iter().map(|dp_rank| Rank { worker_id, dp_rank }).collect();
    let new_ranks = apart(move || service.indexer.register(&scope, &ranks)).await?;
    Ok(Json(Registered { new_ranks }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    dp_rank: Option<u32>,
}

/// How many ranks went.
#[derive(Serialize, ToSchema)]
pub(super) struct Removed {
    removed_ranks: usize,
}

/// Lets a worker go, with everything that it holds.
#[utoipa::path(
    delete,
    path = "/v1/workers/{id}",
    tag = "admin",
    params(("id" = u64, Path, description = "The worker"), ("dp_rank" = Option<u32>, Query, description = "This rank of it alone")),
    responses(
        (status = 200, description = "How many went", body = Removed),
        (status = "default", response = Problem)
    )
)]
pub(super) async fn remove(
    State(service): State<Service>,
    worker_id: Result<Path<u64>, PathRejection>,
    which: Result<Query<Which>, QueryRejection>,
) -> Result<Json<Removed>, Problem> {
    let Ok(Path(worker_id)) = worker_id else {
        return Err(Problem::malformed("expected a worker's number behind /v1/workers/"));
    };
    let Ok(Query(Which { dp_rank })) = which else {
        return Err(Problem::malformed("expected perhaps ?dp_rank=NUMBER, got another query string"));
    };
    match apart(move || service.indexer.remove(worker_id, dp_rank)).await {
        0 => Err(Problem::unknown_worker(worker_id, dp_rank)),
        removed_ranks => Ok(Json(Removed { removed_ranks })),
    }
}
