//! Requests over HTTP: a span each, named by its route, with what it was about.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::collector::{Collector, Manner, Span, send, tell};

const TAKEN: Manner = Manner::Answer(StatusCode::OK);
const JSON: (&str, &str) = ("content-type", "application/json");

/// Route and status, which every span of a request over HTTP has, and more.
fn expect(method: &str, route: &str, status: u16, more: &[(&str, Value)]) -> (String, Value) {
    let mut attributes = json!({"http.request.method": method, "http.response.status_code": status});
    if !route.is_empty() {
        attributes["http.route"] = json!(route);
    }
    for (name, value) in more {
        attributes[format!("kvtide.{name}")] = value.clone();
    }
    (format!("{} {route}", method.replace("_OTHER", "HTTP")).trim_end().to_owned(), attributes)
}

fn answered(model: Option<&str>, prompts: u64, blocks: u64, ranks: u64) -> Vec<(&'static str, Value)> {
    let counts = [("prompts", json!(prompts)), ("prompt_blocks", json!(blocks)), ("ranks", json!(ranks))];
    model.map(|model| ("model", json!(model))).into_iter().chain(counts).collect()
}

#[test]
fn every_request_is_a_span_with_its_route_and_what_it_was_about() {
    let collector = Collector::start(TAKEN);
    let kvtide = collector.traced(&[], "info");
    tell(&kvtide, 7);
    tell(&kvtide, 8);
    let long: Vec<u32> = (0..400_000).collect();
    let other = json!({"scope": {"model": "other", "block_size": 4}, "worker_id": 7, "events": []});
    let queries = [
        json!({"token_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9]}),
        json!({"queries": [{"block_hashes": [11, 12, 13]}, {"block_hashes": [11], "ranks": [[8, 0]]}]}),
        // So large that it is answered by another thread.
        json!({"token_ids": long}),
        json!({"scope": {"model": "nobody"}, "token_ids": []}),
        other.clone(),
        json!({"queries": [{"scope": {"model": "m"}, "token_ids": []}, {"scope": {"model": "other"}, "token_ids": []}]}),
    ];
    for (query, status) in queries.iter().zip([200, 200, 200, 404, 400, 200]) {
        if query == &other {
            assert_eq!(kvtide.post("/v1/events", query).0, 200);
        }
        assert_eq!(kvtide.post("/v1/overlap", query).0, status, "{query}");
    }
    for (method, path, status) in [
        ("GET", "/healthz", 200),
        ("DELETE", "/v1/workers/7", 200),
        ("DELETE", "/v1/workers/99", 404),
        ("GET", "/v1/secret-path?secret=1", 404),
        ("PATCH", "/v1/overlap", 405),
        ("SECRET", "/v1/overlap", 405),
    ] {
        assert_eq!(send(&kvtide, method, path, &[], b""), status, "{method} {path}");
    }
    let log = kvtide.terminate();
    assert!(log.iter().all(|line| !line.contains("WARN")), "{log:#?}");
    let overlap = |status, more: &[_]| expect("POST", "/v1/overlap", status, more);
    let told = || expect("POST", "/v1/events", 200, &[]);
    let expected = [
        told(),
        told(),
        overlap(200, &answered(Some("m"), 1, 2, 2)),
        overlap(200, &answered(Some("m"), 2, 4, 3)),
        overlap(200, &answered(Some("m"), 1, 100_000, 2)),
        overlap(404, &[]),
        told(),
        overlap(400, &[]),
        overlap(200, &answered(None, 2, 0, 3)),
        expect("GET", "/healthz", 200, &[]),
        expect("DELETE", "/v1/workers/{id}", 200, &[]),
        expect("DELETE", "/v1/workers/{id}", 404, &[]),
        expect("GET", "", 404, &[]),
        expect("PATCH", "/v1/overlap", 405, &[]),
        expect("_OTHER", "/v1/overlap", 405, &[]),
    ];
    let spans = collector.spans();
    assert!(spans.iter().all(|span| span.parent.is_empty() && !span.is_error), "{spans:#?}");
    let got: Vec<_> = spans.into_iter().map(|Span { name, attributes, .. }| (name, attributes)).collect();
    assert_eq!(got, expected);
}

#[test]
fn the_routes_of_dynamo_say_as_much() {
    let collector = Collector::start(TAKEN);
    let kvtide = collector.traced(&[], "info");
    let engine =
        json!({"instance_id": 7, "endpoint": "tcp://127.0.0.1:1", "model_name": "m", "block_size": 4});
    assert_eq!(kvtide.post("/register", &engine).0, 201);
    assert_eq!(kvtide.post("/query", &json!({"token_ids": [1, 2, 3, 4], "model_name": "m"})).0, 200);
    assert_eq!(kvtide.post("/query_by_hash", &json!({"block_hashes": [1, 2], "model_name": "m"})).0, 200);
    assert!(!kvtide.terminate().is_empty());
    let spans = collector.spans();
    let blocks: Vec<_> = spans
        .iter()
        .map(|span| {
            (span.name.as_str(), &span.attributes["kvtide.prompt_blocks"], &span.attributes["kvtide.model"])
        })
        .collect();
    let (none, model) = (Value::Null, json!("m"));
    let expected = [
        ("POST /register", &none, &none),
        ("POST /query", &json!(1), &model),
        ("POST /query_by_hash", &json!(2), &model),
    ];
    assert_eq!(blocks, expected);
}

#[test]
fn a_span_is_the_child_of_the_one_that_the_request_names() {
    let collector = Collector::start(TAKEN);
    let kvtide = collector.traced(&[], "info");
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let child = |span: &Span| (span.trace == trace, span.parent == parent);
    let rows = [
        (format!("00-{trace}-{parent}-01"), Some((true, true))),
        // Whoever began the trace keeps nothing of it.
        (format!("00-{trace}-{parent}-00"), None),
        (format!("00-{trace}-0000000000000000-01"), Some((false, false))),
        (format!("{trace}-{parent}"), Some((false, false))),
    ];
    for (traceparent, _) in &rows {
        let headers = [JSON, ("traceparent", traceparent.as_str())];
        send(&kvtide, "POST", "/v1/overlap", &headers, b"{}");
    }
    assert!(!kvtide.terminate().is_empty());
    let spans = collector.spans();
    let expected: Vec<_> = rows.iter().filter_map(|(_, expected)| *expected).collect();
    assert_eq!(spans.iter().map(child).collect::<Vec<_>>(), expected, "{spans:#?}");
    assert!(spans.iter().skip(1).all(|span| span.parent.is_empty()), "{spans:#?}");
}
