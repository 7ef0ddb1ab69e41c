//! `GET /v1/snapshot`: everything, or what is known of one publisher or rank, for another kvtide to go on with.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Query, State, rejection::QueryRejection},
    http::header,
    response::{IntoResponse, Response},
};
use kvtide_radix::Rank;
use serde::Deserialize;

use super::{Service, guard::Asker, pieces, problem::Problem};
use crate::Part;

/// The other side may take so long for everything, or for a part.
const PATIENCE: [Duration; 2] = [Duration::from_secs(300), Duration::from_secs(10)];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameters {
    publisher_id: Option<u64>,
    worker_id: Option<u64>,
    dp_rank: Option<u32>,
}

impl Parameters {
    /// The part that is asked for, if it is not everything.
    fn part(&self) -> Result<Option<Part>, Problem> {
        match *self {
            Parameters { publisher_id: None, worker_id: None, dp_rank: None } => Ok(None),
            Parameters { publisher_id: Some(id), worker_id: None, dp_rank: None } => {
                Ok(Some(Part::Publisher(id)))
            }
            Parameters { publisher_id: None, worker_id: Some(worker_id), dp_rank } => {
                Ok(Some(Part::Rank(Rank { worker_id, dp_rank: dp_rank.unwrap_or(0) })))
            }
            Parameters { .. } => Err(malformed()),
        }
    }
}

fn malformed() -> Problem {
    Problem::malformed(
        "expected perhaps ?publisher_id=NUMBER or ?worker_id=NUMBER&dp_rank=NUMBER, got another query string",
    )
}

/// Everything that is known, or a part, for another kvtide to go on with. If it breaks off, what has come is no snapshot.
#[utoipa::path(
    get,
    path = "/v1/snapshot",
    tag = "admin",
    params(
        ("publisher_id" = Option<u64>, Query, description = "What one of Dynamo's publishers has fed"),
        ("worker_id" = Option<u64>, Query, description = "One rank"),
        ("dp_rank" = Option<u32>, Query, description = "With worker_id; else 0"),
    ),
    responses(
        (status = 200, description = "Bytes of no stated form", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = "default", response = Problem)
    )
)]
pub(super) async fn get(
    State(service): State<Service>,
    asker: Asker,
    parameters: Result<Query<Parameters>, QueryRejection>,
) -> Result<Response, Problem> {
    asker.may_use_hashes()?;
    let Query(parameters) = parameters.map_err(|_| malformed())?;
    let part = parameters.part()?;
    let (turns, patience) = match part {
        None => (&service.snapshots, PATIENCE[0]),
        Some(_) => (&service.parts, PATIENCE[1]),
    };
    // Nobody closes it, so that there is always a turn.
    let turn = Arc::clone(turns).acquire_owned().await;
    let body = pieces::send(turn, patience, move |to| match part {
        None => service.indexer.write_snapshot(to),
        Some(part) => service.indexer.write_part(part, to),
    });
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response())
}
