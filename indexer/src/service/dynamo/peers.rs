//! `GET /peers`, `POST /register_peer`, `POST /deregister_peer`: other kvtides, which are configured and not registered.
//!
//! Dynamo's indexer keeps a list of peers that are registered while it runs, and never asks them. One that is not asked is
//! no peer, so that only those of the configuration are told.

use axum::{extract::State, http::StatusCode};
use serde::Deserialize;

use super::{DONE, Done, Refusal, Said};
use crate::service::{Service, body::Json};

#[derive(Deserialize)]
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

pub(super) async fn list(State(service): State<Service>) -> Json<Vec<String>> {
    Json(service.registry.feeds().peers().to_vec())
}

pub(super) async fn register(
    State(service): State<Service>,
    Said(peer): Said<Peer>,
) -> Result<(StatusCode, Json<Done>), Refusal> {
    if peer.is_configured(&service) {
        return Ok((StatusCode::CREATED, DONE));
    }
    Err(Refusal::conflict("peers are asked for what was missed from the start on: expected one of --peer"))
}

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
