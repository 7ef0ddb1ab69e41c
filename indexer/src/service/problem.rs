//! Errors as `application/problem+json` (RFC 9457): a stable type, what was got and what was expected.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::{
    ToResponse,
    openapi::{ContentBuilder, ObjectBuilder, RefOr, Response as Answer, ResponseBuilder, Type},
};

use crate::{ApplyError, BindError, NotReady, QueryError, RegisterError, access::Role};

/// An error that goes out. It never carries tokens, hashes, or names of tenants.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    kind: &'static str,
    detail: String,
    more: Map<String, Value>,
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, detail: impl Into<String>) -> Problem {
        Problem { status, kind, detail: detail.into(), more: Map::new() }
    }

    fn with(mut self, name: &str, value: impl Serialize) -> Problem {
        self.more.insert(name.into(), json!(value));
        self
    }

    /// Its status, and what it says.
    pub(super) fn into_parts(self) -> (StatusCode, String) {
        (self.status, self.detail)
    }

    pub(super) fn no_such_route() -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "no-such-route", "there is no such route")
    }

    pub(super) fn method_not_allowed() -> Problem {
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "the route has other methods")
    }

    pub(super) fn unauthorized() -> Problem {
        let detail = "expected Authorization: Bearer with a token that is known";
        Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
    }

    pub(super) fn forbidden_role(expected: Role) -> Problem {
        let detail = "the token is known, and does not have the role that this takes";
        Problem::new(StatusCode::FORBIDDEN, "forbidden", detail).with("expected_role", expected)
    }

    /// The same whether there is such a tenant or not.
    pub(super) fn forbidden_tenant() -> Problem {
        let detail = "the token does not show blocks of the tenant that is named, or of none if none is";
        Problem::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    pub(super) fn forbidden_hashes() -> Problem {
        let detail =
            "hashes name no tenant; expected a token for all tenants, or tokens of which none is for one";
        Problem::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    pub(super) fn too_slow(what: &str, limit_s: u64) -> Problem {
        let detail = format!("{what} took longer than the limit request_s of {limit_s}");
        Problem::new(StatusCode::REQUEST_TIMEOUT, "too-slow", detail)
            .with("limit", limit_s)
            .with("limit_name", "request_s")
    }

    pub(super) fn media_type(got: &str, expected: &[&str]) -> Problem {
        let kind = "unsupported-media-type";
        let detail = format!("a body of type {got}; expected {}", expected.join(" or "));
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, kind, detail)
            .with("got", got)
            .with("expected", expected)
    }

    pub(super) fn malformed(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "malformed", detail)
    }

    pub(super) fn impossible(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "impossible", detail)
    }

    /// Something that is larger than the limit of that name.
    pub(super) fn too_large(what: &str, name: &str, got: Option<u64>, limit: u64) -> Problem {
        let detail = format!("{what} exceed the limit {name} of {limit}");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
            .with("got", got)
            .with("limit", limit)
            .with("limit_name", name)
    }

    /// One more than there is room for, by the limit of that name.
    fn too_many(kind: &'static str, name: &str, detail: impl Into<String>, limit: usize) -> Problem {
        Problem::new(StatusCode::INSUFFICIENT_STORAGE, kind, detail)
            .with("limit", limit)
            .with("limit_name", name)
    }

    pub(super) fn too_many_ranks(refused: u64, limit: usize) -> Problem {
        let detail = format!("no room for another rank: its scope has {limit}, the limit ranks");
        Problem::too_many("too-many-ranks", "ranks", detail, limit).with("refused_events", refused)
    }

    /// As much is under way as may be, by the limit of that name.
    pub(super) fn busy(name: &str, limit: usize) -> Problem {
        let detail =
            format!("as many requests are under way as the limit {name} of {limit} allows; ask again");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail)
            .with("limit", limit)
            .with("limit_name", name)
    }

    pub(super) fn unknown_stream(known: usize) -> Problem {
        let detail = "no stream of that name is configured";
        Problem::new(StatusCode::NOT_FOUND, "unknown-stream", detail).with("known_streams", known)
    }

    pub(super) fn not_ready(not_ready: NotReady) -> Problem {
        let NotReady { awaited, recovering_ranks, unheard_ranks, known_ranks } = not_ready;
        let detail = "it has started, and does not know yet what it can know";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", detail)
            .with("awaited", awaited)
            .with("recovering_ranks", recovering_ranks)
            .with("unheard_ranks", unheard_ranks)
            .with("known_ranks", known_ranks)
    }

    pub(super) fn unknown_worker(worker_id: u64, dp_rank: Option<u32>) -> Problem {
        let detail = "no such worker is known, or no such data-parallel rank of it";
        Problem::new(StatusCode::NOT_FOUND, "unknown-worker", detail)
            .with("worker_id", worker_id)
            .with("dp_rank", dp_rank)
    }

    /// The rank is fed by another source, or claimed by two publishers.
    pub(super) fn other_source(refused: u64) -> Problem {
        let detail = "another source feeds the rank, or two live publishers claim it";
        Problem::new(StatusCode::CONFLICT, "refused", detail).with("refused_events", refused)
    }
}

/// A JSON body that is not of the right form. What serde says is kept as far as it is not the client's content.
impl From<serde_json::Error> for Problem {
    fn from(error: serde_json::Error) -> Problem {
        let text = error.to_string();
        let (line, column) = (error.line(), error.column());
        let what = if text.starts_with("missing field") || text.starts_with("duplicate field") {
            text.split(" at line").next().unwrap_or_default().to_owned()
        } else {
            let got = text.split(['`', '"']).next().unwrap_or_default();
            let got = got.split(" at line").next().unwrap_or_default().trim_end();
            match text.rsplit_once(", expected ") {
                Some((_, expected)) if !got.contains(", expected ") => {
                    let expected = expected.split(" at line").next().unwrap_or_default();
                    format!("{got}, expected {expected}")
                }
                Some(_) | None => got.to_owned(),
            }
        };
        let detail = format!("{what} (line {line}, column {column})");
        if text.starts_with("invalid value") {
            Problem::impossible(detail)
        } else {
            Problem::malformed(detail)
        }
    }
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Problem {
        let detail = error.to_string();
        match error {
            QueryError::UnknownScope { known } => {
                Problem::new(StatusCode::NOT_FOUND, "unknown-scope", detail).with("known_scopes", known)
            }
            QueryError::SeveralScopes { fitting, differences } => {
                let differences: Map<String, Value> =
                    differences.into_iter().map(|(name, values)| (name.to_owned(), json!(values))).collect();
                Problem::new(StatusCode::CONFLICT, "several-scopes", detail)
                    .with("fitting_scopes", fitting)
                    .with("differences", differences)
            }
            QueryError::TooManyRanks { limit } => {
                Problem::too_large("the answers' ranks", "query_ranks", None, limit)
            }
            QueryError::TooManyTokens { got, limit } => {
                Problem::too_large("the prompt's tokens", "query_tokens", Some(got), limit)
            }
            QueryError::TooManyMedia { got, limit } => {
                Problem::too_large("the prompt's media", "query_media", Some(got), limit)
            }
            QueryError::OtherHashing { expected, got } => {
                Problem::new(StatusCode::CONFLICT, "other-hashing", detail)
                    .with("got", got)
                    .with("expected", expected)
            }
        }
    }
}

impl From<BindError> for Problem {
    fn from(error: BindError) -> Problem {
        let detail = error.to_string();
        match error {
            BindError::NameTaken { .. } => Problem::new(StatusCode::CONFLICT, "name-taken", detail),
            BindError::NoBlockSize { .. } => Problem::impossible(detail),
            BindError::OtherHashing { expected, got, .. } => {
                Problem::new(StatusCode::CONFLICT, "other-hashing", detail)
                    .with("got", got)
                    .with("expected", expected)
            }
            BindError::ScopesFull { limit } => Problem::too_many("too-many-scopes", "scopes", detail, limit),
        }
    }
}

impl From<RegisterError> for Problem {
    fn from(error: RegisterError) -> Problem {
        let detail = error.to_string();
        match error {
            RegisterError::Scope(error) => error.into(),
            RegisterError::RanksFull(full) => {
                Problem::too_many("too-many-ranks", "ranks", detail, full.limit)
            }
        }
    }
}

impl From<ApplyError> for Problem {
    fn from(error: ApplyError) -> Problem {
        let detail = error.to_string();
        match error {
            ApplyError::Undecodable { .. } => Problem::new(StatusCode::BAD_REQUEST, "undecodable", detail),
            // Between the moment when it was found and now.
            ApplyError::LetGo { .. } => Problem::new(StatusCode::NOT_FOUND, "unknown-stream", detail),
            ApplyError::OtherFormat { expected, got, .. } => {
                Problem::new(StatusCode::CONFLICT, "other-format", detail)
                    .with("got", got)
                    .with("expected", expected)
            }
        }
    }
}

impl Problem {
    pub(super) const MEDIA_TYPE: &str = "application/problem+json";

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// Words for the status.
    pub(super) fn title(&self) -> &'static str {
        self.status.canonical_reason().unwrap_or_default()
    }

    /// The problem as JSON.
    pub(super) fn document(self) -> String {
        let (title, status) = (self.title(), self.status.as_u16());
        let mut document = self.more;
        document.insert("type".into(), json!(format!("urn:kvtide:problem:{}", self.kind)));
        document.insert("title".into(), json!(title));
        document.insert("status".into(), json!(status));
        document.insert("detail".into(), json!(self.detail));
        Value::Object(document).to_string()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status;
        let mut response =
            (status, [(header::CONTENT_TYPE, Problem::MEDIA_TYPE)], self.document()).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// What every problem has; further members are what was got and what was expected.
impl<'a> ToResponse<'a> for Problem {
    fn response() -> (&'a str, RefOr<Answer>) {
        let member = |kind| ObjectBuilder::new().schema_type(kind);
        let form = ObjectBuilder::new()
            .property("type", member(Type::String).pattern(Some("^urn:kvtide:problem:")))
            .property("title", member(Type::String))
            .property("status", member(Type::Integer))
            .property("detail", member(Type::String));
        let form = ["type", "title", "status", "detail"].into_iter().fold(form, ObjectBuilder::required);
        let content = ContentBuilder::new().schema(Some(form.build())).build();
        let response = ResponseBuilder::new()
            .description("A problem (RFC 9457)")
            .content("application/problem+json", content)
            .build();
        ("Problem", response.into())
    }
}
