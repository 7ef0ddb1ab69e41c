//! `GET /v1/snapshot`: everything, for another kvtide to go on with.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use tracing::error;

use super::{Service, problem::Problem};

pub(super) async fn get(State(service): State<Service>) -> Result<Response, Problem> {
    // Nobody closes it, so that there is always a turn.
    let _turn = Arc::clone(&service.snapshots).acquire_owned().await;
    let written = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        service.indexer.write_snapshot(&mut bytes).map(|_| bytes)
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
