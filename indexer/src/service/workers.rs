//! `POST /v1/workers` and `DELETE /v1/workers/{id}`: workers that come before their first event, and that go.

use axum::extract::{
    Path, Query, State,
    rejection::{PathRejection, QueryRejection},
};
use kvtide_radix::Rank;
use serde::{Deserialize, Serialize};

use super::{
    Service,
    body::{Body, Json},
    problem::Problem,
};
use crate::ScopeQuery;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with scope and worker_id")]
struct Request {
    scope: ScopeQuery,
    worker_id: u64,
    #[serde(default = "first")]
    dp_ranks: Vec<u32>,
}

fn first() -> Vec<u32> {
    vec![0]
}

/// How many ranks became known.
#[derive(Serialize)]
pub(super) struct Registered {
    new_ranks: usize,
}

pub(super) async fn register(
    State(service): State<Service>,
    body: Body,
) -> Result<Json<Registered>, Problem> {
    let Request { scope, worker_id, dp_ranks } = body.json()?;
    let Some(scope) = scope.to_scope() else {
        return Err(Problem::impossible("expected scope.model and scope.block_size of a worker"));
    };
    let ranks: Vec<Rank> = dp_ranks.into_iter().map(|dp_rank| Rank { worker_id, dp_rank }).collect();
    Ok(Json(Registered { new_ranks: service.indexer.register(&scope, &ranks)? }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    dp_rank: Option<u32>,
}

/// How many ranks went.
#[derive(Serialize)]
pub(super) struct Removed {
    removed_ranks: usize,
}

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
    match service.indexer.remove(worker_id, dp_rank) {
        0 => Err(Problem::unknown_worker(worker_id, dp_rank)),
        removed_ranks => Ok(Json(Removed { removed_ranks })),
    }
}
