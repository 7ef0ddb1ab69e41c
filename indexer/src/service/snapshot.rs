//! `GET /v1/snapshot`: everything, or what is known of one publisher, for another kvtide to go on with.

use std::sync::Arc;

use axum::{
    extract::{Query, State, rejection::QueryRejection},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tracing::error;

use super::{Service, problem::Problem};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameters {
    publisher_id: Option<u64>,
}

pub(super) async fn get(
    State(service): State<Service>,
    parameters: Result<Query<Parameters>, QueryRejection>,
) -> Result<Response, Problem> {
    let Ok(Query(Parameters { publisher_id })) = parameters else {
        return Err(Problem::malformed("expected perhaps ?publisher_id=NUMBER, got another query string"));
    };
    // Nobody closes it, so that there is always a turn.
    let _turn = Arc::clone(&service.snapshots).acquire_owned().await;
    let written = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        match publisher_id {
            None => service.indexer.write_snapshot(&mut bytes),
            Some(publisher_id) => service.indexer.write_publisher(publisher_id, &mut bytes),
        }
        .map(|_| bytes)
    });
    match written.await {
        Ok(Ok(bytes)) => {
            Ok((StatusCode::OK, [(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response())
        }
        Ok(Err(reason)) => {
            error!(%reason, "snapshot not written");
            Err(Problem::internal("the snapshot could not be written"))
        }
        Err(failed) => {
            error!(%failed, "snapshot not written");
            Err(Problem::internal("the snapshot could not be written"))
        }
    }
}
