//! A collector that keeps what it is sent, and a kvtide that sends it its spans.

use std::{collections::BTreeMap, sync::mpsc};

use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, StatusCode, Uri},
};
use kvtide_tests::harness::Kvtide;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value as Any},
};
use prost::Message;
use serde_json::{Value, json};
use tokio::{net::TcpListener, runtime::Runtime};
use ureq::http::Request;

/// What it does with what it is sent.
#[derive(Clone, Copy)]
pub(crate) enum Manner {
    Answer(StatusCode),
    /// Keeps the connection, and says nothing.
    Hang,
}

pub(crate) struct Collector {
    url: String,
    bodies: mpsc::Receiver<Bytes>,
    _runtime: Runtime,
}

/// A span, without what is different each time.
#[derive(PartialEq, Debug)]
pub(crate) struct Span {
    pub(crate) name: String,
    /// Of the trace and of the parent, in hexadecimal digits.
    pub(crate) trace: String,
    pub(crate) parent: String,
    pub(crate) is_error: bool,
    pub(crate) attributes: Value,
}

impl Collector {
    pub(crate) fn start(manner: Manner) -> Collector {
        let (send, bodies) = mpsc::channel();
        let take = async move |uri: Uri, headers: HeaderMap, body: Bytes| {
            assert_eq!(uri.path(), "/v1/traces");
            assert_eq!(headers["content-type"], "application/x-protobuf");
            send.send(body).unwrap();
            match manner {
                Manner::Answer(status) => status,
                Manner::Hang => std::future::pending().await,
            }
        };
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(axum::serve(listener, Router::new().fallback(take)).into_future());
        Collector { url, bodies, _runtime: runtime }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Starts a kvtide that sends it spans.
    pub(crate) fn traced(&self, arguments: &[&str], level: &str) -> Kvtide {
        traced(&self.url, arguments, level)
    }

    /// Everything that has come, as it came.
    pub(crate) fn bodies(&self) -> Vec<Bytes> {
        self.bodies.try_iter().collect()
    }

    /// The spans that have come, as they ended.
    pub(crate) fn spans(&self) -> Vec<Span> {
        self.bodies().iter().flat_map(|body| spans(body)).collect()
    }
}

/// Starts a kvtide that sends spans to whatever is there.
pub(crate) fn traced(url: &str, arguments: &[&str], level: &str) -> Kvtide {
    let arguments = [&["serve", "--otlp", url], arguments].concat();
    Kvtide::start_logging(env!("CARGO_BIN_EXE_kvtide"), &arguments, level)
}

fn spans(body: &[u8]) -> Vec<Span> {
    let mut spans = Vec::new();
    for of_resource in ExportTraceServiceRequest::decode(body).unwrap().resource_spans {
        let resource = attributes(&of_resource.resource.unwrap().attributes);
        assert_eq!(resource["service.name"], "kvtide", "{resource}");
        for span in of_resource.scope_spans.into_iter().flat_map(|of_scope| of_scope.spans) {
            assert!(span.events.is_empty() && span.kind == 2, "a server's, and nothing of the log: {span:?}");
            assert!(span.end_time_unix_nano >= span.start_time_unix_nano, "{span:?}");
            spans.push(Span {
                is_error: span.status.is_some_and(|status| status.code == 2),
                attributes: attributes(&span.attributes),
                name: span.name,
                trace: hex(&span.trace_id),
                parent: hex(&span.parent_span_id),
            });
        }
    }
    spans
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(attributes: &[KeyValue]) -> Value {
    let read = |attribute: &KeyValue| {
        let value = match attribute.value.clone().unwrap().value.unwrap() {
            Any::StringValue(text) => json!(text),
            Any::IntValue(number) => json!(number),
            other => json!(format!("{other:?}")),
        };
        (attribute.key.clone(), value)
    };
    json!(attributes.iter().map(read).collect::<BTreeMap<_, _>>())
}

/// Sends any request with any headers, and returns the status.
pub(crate) fn send(kvtide: &Kvtide, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> u16 {
    let mut request = Request::builder().method(method).uri(format!("{}{path}", kvtide.url()));
    for &(name, value) in headers {
        request = request.header(name, value);
    }
    let config = ureq::Agent::config_builder().http_status_as_error(false).allow_non_standard_methods(true);
    let agent: ureq::Agent = config.build().into();
    agent.run(request.body(body).unwrap()).unwrap().status().as_u16()
}

/// Tells a kvtide of a worker that holds two blocks.
pub(crate) fn tell(kvtide: &Kvtide, worker_id: u64) {
    let blocks = json!([{"sequence_hash": 1, "block_hash": 11}, {"sequence_hash": 2, "block_hash": 12}]);
    let events = json!([{"type": "stored", "blocks": blocks}]);
    let told = json!({"scope": {"model": "m", "block_size": 4}, "worker_id": worker_id, "events": events});
    assert_eq!(kvtide.post("/v1/events", &told).0, 200);
}
