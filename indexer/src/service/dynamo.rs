//! The routes of Dynamo's standalone indexer, in its shapes, so that its clients change the address and nothing else.
//! docs/http.md says what is different, and why.

mod dump;
mod engines;
mod partition;
mod peers;
mod query;
mod registry;

use axum::{
    Router,
    extract::{FromRequest, Query, Request, rejection::QueryRejection},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{error::Category, json};

use super::{
    Service,
    body::{Body, Json, media_type},
    problem::Problem,
};

pub(super) use registry::Registry;

/// What whoever may ask may ask.
pub(super) fn queries() -> Router<Service> {
    Router::new().route("/query", post(query::by_tokens)).route("/query_by_hash", post(query::by_hashes))
}

/// Who is followed, and all that is held.
pub(super) fn administration() -> Router<Service> {
    Router::new()
        .route("/register", post(engines::register))
        .route("/unregister", post(engines::unregister))
        .route("/workers", get(engines::list))
        .route("/dump", get(dump::get))
        .route("/peers", get(peers::list))
        .route("/register_peer", post(peers::register))
        .route("/deregister_peer", post(peers::deregister))
}

/// Whether there is anyone.
pub(super) fn health() -> Router<Service> {
    Router::new().route("/health", get(async || StatusCode::OK))
}

/// An error in Dynamo's shape. As little as a [`Problem`] does it carry tokens, hashes or names of tenants.
#[derive(Debug)]
struct Refusal {
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
#[derive(Serialize)]
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
        let Body(bytes) = Body::from_request(request, service).await?;
        let said = serde_json::from_slice(&bytes).map_err(|error| {
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
