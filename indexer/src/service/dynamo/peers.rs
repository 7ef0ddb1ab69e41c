//! `GET /peers`, `POST /register_peer`, `POST /deregister_peer`: other kvtides, which are configured and not registered.
//!
//! Dynamo's indexer keeps a list of peers that are registered while it runs, and never asks them. One that is not asked is
//! no peer, so that only those of the configuration are told.

use axum::{extract::State, http::StatusCode};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{DONE, Done, Refusal, Said};
use crate::service::{Service, body::Json, problem::Problem};

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with url")]
pub(super) struct Peer {
    url: String,
}

impl Peer {
    fn is_configured(&self, service: &Service) -> bool {
        let url = self.url.trim_end_matches('/');
        service.registry.feeds().peers().iter().any(|peer| peer == url)
    }
}

/// The other kvtides that are asked.
#[utoipa::path(
    get,
    path = "/peers",
    tag = "dynamo",
    responses(
        (status = 200, description = "Their addresses", body = Vec<String>),
        (status = 401, response = Problem),
        (status = 403, response = Problem),
        (status = "default", response = Refusal)
    )
)]
pub(super) async fn list(State(service): State<Service>) -> Json<Vec<String>> {
    Json(service.registry.feeds().peers().to_vec())
}

/// Takes a peer that is configured already.
#[utoipa::path(
    post,
    path = "/register_peer",
    tag = "dynamo",
    request_body = Peer,
    responses(
        (status = 201, description = "It is asked", body = Done),
        (status = 401, response = Problem),
        (status = 403, response = Problem),
        (status = "default", response = Refusal)
    )
)]
pub(super) async fn register(
    State(service): State<Service>,
    Said(peer): Said<Peer>,
) -> Result<(StatusCode, Json<Done>), Refusal> {
    if peer.is_configured(&service) {
        return Ok((StatusCode::CREATED, DONE));
    }
    Err(Refusal::conflict("peers are asked for what was missed from the start on: expected one of --peer"))
}

/// Refuses to forget a peer that is configured.
#[utoipa::path(
    post,
    path = "/deregister_peer",
    tag = "dynamo",
    request_body = Peer,
    responses(
        (status = 200, description = "It has gone", body = Done),
        (status = 401, response = Problem),
        (status = 403, response = Problem),
        (status = "default", response = Refusal)
    )
)]
pub(super) async fn deregister(
    State(service): State<Service>,
    Said(peer): Said<Peer>,
) -> Result<Json<Done>, Refusal> {
    if peer.is_configured(&service) {
        return Err(Refusal::conflict(
            "the peer is configured, and stays until the configuration names it no more",
        ));
    }
    Err(Refusal::unknown("peer not found"))
}
