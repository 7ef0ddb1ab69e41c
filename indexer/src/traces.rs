//! Spans of requests: what was asked for, how large it was and what became of it, each a child of the asker's own span. What a
//! prompt consists of and for whom it is stands in none.

mod collector;

use axum::{
    extract::{MatchedPath, Request},
    http::{Method, StatusCode},
    middleware::Next,
    response::Response,
};
use opentelemetry::{
    Context,
    propagation::{Extractor, TextMapPropagator},
    trace::TraceContextExt,
};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::{Instrument, Span, field::Empty, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::Answer;

pub use collector::{Collector, CollectorError, Traces};

/// What spans of requests are known by. They are in no log.
const TARGET: &str = "kvtide::request";

/// Answers an HTTP request within a span.
pub(crate) async fn over_http(request: Request, next: Next) -> Response {
    let (method, route) = (known(request.method()), request.extensions().get::<MatchedPath>());
    // The path as it was asked for may carry names.
    let route = route.map(MatchedPath::as_str);
    let name = [Some(method.unwrap_or("HTTP")), route].into_iter().flatten().collect::<Vec<_>>().join(" ");
    let span = info_span!(
        target: TARGET,
        parent: None,
        "request",
        otel.name = name,
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method.unwrap_or("_OTHER"),
        http.route = route,
        http.response.status_code = Empty,
        kvtide.model = Empty,
        kvtide.prompts = Empty,
        kvtide.prompt_blocks = Empty,
        kvtide.ranks = Empty,
    );
    adopt(&span, &HeaderExtractor(request.headers()));
    let response = next.run(request).instrument(span.clone()).await;
    note_status(&span, "http.response.status_code", response.status());
    response
}

/// A method that HTTP knows. Others are whatever a client made up.
fn known(method: &Method) -> Option<&'static str> {
    let all = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    all.into_iter().find(|name| *name == method.as_str())
}

/// The span of a request on the bus.
pub(crate) fn on_bus(subject: &str, headers: &impl Extractor) -> Span {
    let span = info_span!(
        target: TARGET,
        parent: None,
        "request",
        otel.name = format!("process {subject}"),
        otel.kind = "server",
        otel.status_code = Empty,
        messaging.system = "nats",
        messaging.operation.type = "process",
        messaging.destination.name = subject,
        kvtide.status_code = Empty,
        kvtide.model = Empty,
        kvtide.prompts = Empty,
        kvtide.prompt_blocks = Empty,
        kvtide.ranks = Empty,
    );
    adopt(&span, headers);
    span
}

/// Notes how a request on the bus ended.
pub(crate) fn note_bus_status(span: &Span, status: StatusCode) {
    note_status(span, "kvtide.status_code", status);
}

/// Makes a span the child of the one that a request names in its `traceparent`, if it names any.
fn adopt(span: &Span, headers: &impl Extractor) {
    if span.is_disabled() {
        return;
    }
    let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), headers);
    if parent.span().span_context().is_valid() {
        // It was made a moment ago: nothing has been read of it that would fix its parent.
        let _adopted = span.set_parent(parent);
    }
}

fn note_status(span: &Span, field: &str, status: StatusCode) {
    span.record(field, i64::from(status.as_u16()));
    // What is wrong with a request is no fault of the service.
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
}

/// Notes in the span of the request that is being answered what its prompts were compared with, and how much came of it.
pub(crate) fn note_answers(answers: &[Answer]) {
    let span = Span::current();
    if span.is_none() {
        return;
    }
    let sum =
        |count: fn(&Answer) -> u64| i64::try_from(answers.iter().map(count).sum::<u64>()).unwrap_or(i64::MAX);
    let mut models = answers.iter().map(|answer| answer.scope.fixed.model.as_str());
    if let Some(model) = models.next().filter(|first| models.all(|model| model == *first)) {
        span.record("kvtide.model", model);
    }
    span.record("kvtide.prompts", sum(|_| 1));
    span.record("kvtide.prompt_blocks", sum(|answer| answer.prompt.blocks));
    span.record("kvtide.ranks", sum(|answer| answer.ranks.len() as u64));
}
