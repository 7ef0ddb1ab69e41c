//! `GET /openapi.json`: the contract, made from the handlers that keep it.

use axum::{extract::State, http::header, response::IntoResponse};
use utoipa::{
    Modify, OpenApi,
    openapi::{
        OpenApi as Document,
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

use super::{Service, dynamo::Refusal, problem::Problem};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "kvtide",
        description = "Tells a request router, for one prompt and every inference worker, how much of the prompt's KV cache \
                       the worker already holds on GPU, in host memory and on disk, and how fresh that knowledge is.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(responses(Problem, Refusal)),
    modifiers(&Token),
    security(("token" = [])),
    tags(
        (name = "query", description = "How much of a prompt every rank holds. Role: query."),
        (name = "ingest", description = "Events handed in. Role: ingest."),
        (name = "admin", description = "Who is known, and everything that is. Role: admin."),
        (name = "operation", description = "Whether it is there and ready, and what it counts."),
        (name = "dynamo", description = "The routes of Dynamo's standalone indexer, in its shapes. Roles: query, admin.")
    )
)]
pub(super) struct Contract;

/// How a request shows its token.
struct Token;

impl Modify for Token {
    fn modify(&self, document: &mut Document) {
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("A token of `kvtide token new`, where the service has any."));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(bearer.build()));
    }
}

/// The contract.
#[utoipa::path(
    get,
    path = "/openapi.json",
    tag = "operation",
    security(()),
    responses((status = 200, description = "This document", content_type = "application/json"))
)]
pub(super) async fn get(State(service): State<Service>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], service.contract.to_string())
}
