//! Requests on the bus: the same, by their subject.

use async_nats::{HeaderMap, Request};
use axum::http::StatusCode;
use kvtide_tests::harness::NatsServer;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::collector::{Collector, Manner, tell};

const SUBJECT: &str = "kvtide.router-1.overlap";

#[test]
fn a_request_on_the_bus_is_a_span_too() {
    let (nats, collector) = (NatsServer::start(), Collector::start(Manner::Answer(StatusCode::ACCEPTED)));
    let mut kvtide = collector.traced(&["--nats", &nats.url(), "--instance", "router-1"], "info");
    kvtide.wait_for_log("NATS requests: a connection is there");
    tell(&kvtide, 7);
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let traceparent = format!("00-{trace}-{parent}-01");
    let rows = [
        (Some("traceparent"), json!({"block_hashes": [11, 12, 13]})),
        // Every client has its own way to write names.
        (Some("Traceparent"), json!({"scope": {"model": "nobody"}, "token_ids": [1]})),
        (None, json!({"queries": [{"block_hashes": [11]}, {"token_ids": []}]})),
    ];
    Runtime::new().unwrap().block_on(async {
        let client = async_nats::connect(nats.url()).await.unwrap();
        for (name, query) in &rows {
            let mut headers = HeaderMap::new();
            if let Some(name) = name {
                headers.insert(*name, traceparent.as_str());
            }
            let request = Request::new().payload(query.to_string().into()).headers(headers);
            client.send_request(SUBJECT, request).await.unwrap();
        }
    });
    assert!(!kvtide.terminate().is_empty());
    let mut spans = collector.spans();
    spans.retain(|span| span.name != "POST /v1/events");
    let counts = [(200, Some((1, 3, 1))), (404, None), (200, Some((2, 1, 2)))];
    assert_eq!(spans.len(), counts.len(), "{spans:#?}");
    for ((span, (name, _)), (status, answered)) in spans.iter().zip(&rows).zip(counts) {
        let mut expected = json!({"messaging.system": "nats", "messaging.operation.type": "process",
                                  "messaging.destination.name": SUBJECT, "kvtide.status_code": status});
        if let Some((prompts, blocks, ranks)) = answered {
            expected["kvtide.model"] = json!("m");
            expected["kvtide.prompts"] = json!(prompts);
            expected["kvtide.prompt_blocks"] = json!(blocks);
            expected["kvtide.ranks"] = json!(ranks);
        }
        assert_eq!((span.name.as_str(), &span.attributes), ("process kvtide.router-1.overlap", &expected));
        let is_child = (span.trace == trace, span.parent == parent);
        assert_eq!(is_child, (name.is_some(), name.is_some()), "{span:?}");
    }
}
