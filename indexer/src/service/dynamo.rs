//! The routes of Dynamo's standalone indexer, in its shapes, so that its clients change the address and nothing else.
//! docs/http.md says what is different, and why.

mod dump;
mod engines;
mod partition;
mod peers;
mod query;
mod registry;

use axum::{
    extract::{FromRequest, Query, Request, rejection::QueryRejection},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{error::Category, json};
use utoipa::{ToResponse, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Service,
    body::{Body, Json, media_type},
    problem::Problem,
};

pub use dump::router_events;
pub(super) use registry::Registry;

/// What whoever may ask may ask.
pub(super) fn queries() -> OpenApiRouter<Service> {
    OpenApiRouter::new().routes(routes!(query::by_tokens)).routes(routes!(query::by_hashes))
}

/// Who is followed, and all that is held.
pub(super) fn administration() -> OpenApiRouter<Service> {
    OpenApiRouter::new()
        .routes(routes!(engines::register))
        .routes(routes!(engines::unregister))
        .routes(routes!(engines::list))
        .routes(routes!(dump::get))
        .routes(routes!(peers::list))
        .routes(routes!(peers::register))
        .routes(routes!(peers::deregister))
}

/// Whether there is anyone.
pub(super) fn health() -> OpenApiRouter<Service> {
    OpenApiRouter::new().routes(routes!(is_there))
}

/// Whether there is anyone.
#[utoipa::path(get, path = "/health", tag = "dynamo", security(()), responses((status = 200, description = "There is")))]
async fn is_there() -> StatusCode {
    StatusCode::OK
}

/// An error in Dynamo's shape. As little as a [`Problem`] does it carry tokens, hashes or names of tenants.
#[derive(Debug, ToSchema, ToResponse)]
#[response(description = "An error in Dynamo's shape")]
pub(super) struct Refusal {
    #[schema(ignore)]
    status: StatusCode,
    error: String,
}

impl Refusal {
    fn new(status: StatusCode, error: impl Into<String>) -> Refusal {
        Refusal { status, error: error.into() }
    }

    fn bad(error: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, error)
    }

    fn unknown(error: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, error)
    }

    fn conflict(error: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::CONFLICT, error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(json!({"error": self.error}))).into_response()
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Refusal {
        let (status, error) = problem.into_parts();
        Refusal { status, error }
    }
}

/// What was asked for has been done.
#[derive(Serialize, ToSchema)]
struct Done {
    status: &'static str,
}

const DONE: Json<Done> = Json(Done { status: "ok" });

/// What a request says, as JSON. Members that are not known are passed over, as there.
struct Said<T>(T);

impl<T: DeserializeOwned> FromRequest<Service> for Said<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, service: &Service) -> Result<Self, Refusal> {
        check_json(request.headers())?;
        let body = Body::from_request(request, service).await?;
        let said = serde_json::from_slice(&body.bytes).map_err(|error| {
            let status = match error.classify() {
                Category::Data => StatusCode::UNPROCESSABLE_ENTITY,
                Category::Syntax | Category::Eof | Category::Io => StatusCode::BAD_REQUEST,
            };
            Refusal { status, ..Problem::from(error).into() }
        });
        said.map(Said)
    }
}

fn check_json(headers: &HeaderMap) -> Result<(), Refusal> {
    let got = media_type(headers).unwrap_or_default();
    let is_json = got == "application/json" || (got.starts_with("application/") && got.ends_with("+json"));
    if is_json { Ok(()) } else { Err(Problem::media_type(&got, &["application/json"]).into()) }
}

/// A query string.
fn stated<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Refusal> {
    let Query(said) =
        query.map_err(|_| Refusal::bad("the query string is not of the form that is expected"))?;
    Ok(said)
}
