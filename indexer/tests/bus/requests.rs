//! The lookup as a NATS request: the same answers and the same problems as over HTTP, of a service that the bus lists.

use std::{sync::Arc, time::Duration};

use async_nats::{Client, HeaderMap, Message, Request, RequestErrorKind};
use kvtide::{
    Clock, Indexer, Instance, Limits, Scope,
    access::{NewToken, Role},
    feed::Bus,
    service::{Access, NatsService, ServiceLimits},
};
use kvtide_radix::Rank;
use kvtide_tests::{
    Folder,
    harness::{Kvtide, NatsServer, Reply, wait_for},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const SUBJECT: &str = "kvtide.router-1.overlap";
const MSGPACK: &str = "application/msgpack";

/// A bus, a kvtide that answers on it, and somebody who asks.
struct Asked {
    runtime: Runtime,
    nats: NatsServer,
    client: Client,
    kvtide: Kvtide,
}

impl Asked {
    /// A kvtide that knows two workers of one scope.
    fn start() -> Asked {
        let nats = NatsServer::start();
        let runtime = Runtime::new().unwrap();
        let client = runtime.block_on(async_nats::connect(nats.url())).unwrap();
        let arguments = ["serve", "--nats", &nats.url(), "--instance", "router-1"];
        let mut kvtide = Kvtide::start(env!("CARGO_BIN_EXE_kvtide"), &arguments);
        kvtide.wait_for_log("NATS requests: a connection is there");
        for (worker_id, tier) in [(7, "gpu"), (8, "host")] {
            let blocks =
                json!([{"sequence_hash": 1, "block_hash": 11}, {"sequence_hash": 2, "block_hash": 12}]);
            let events = json!([{"type": "stored", "tier": tier, "blocks": blocks}]);
            let scope = json!({"model": "m", "block_size": 4});
            let told = json!({"scope": scope, "worker_id": worker_id, "events": events});
            assert_eq!(kvtide.post("/v1/events", &told).0, 200);
        }
        let asked = Asked { runtime, nats, client, kvtide };
        wait_for("an answer", || {
            asked.try_ask(None, &json!({"token_ids": []}).to_string().into_bytes()).ok()
        });
        asked
    }

    fn try_ask(&self, content_type: Option<(&str, &str)>, body: &[u8]) -> Result<Message, RequestErrorKind> {
        self.runtime.block_on(ask(&self.client, content_type, body))
    }

    fn ask(&self, content_type: Option<(&str, &str)>, body: &[u8]) -> Message {
        self.try_ask(content_type, body).unwrap()
    }

    fn over_http(&self, content_type: &str, body: &[u8]) -> Reply {
        self.kvtide.send("POST", "/v1/overlap", content_type, body)
    }

    /// What the services of the bus say of themselves.
    fn services(&self, verb: &str) -> Value {
        let asked = self.client.request(format!("$SRV.{verb}.kvtide"), "".into());
        serde_json::from_slice(&self.runtime.block_on(asked).unwrap().payload).unwrap()
    }
}

async fn ask(
    client: &Client,
    content_type: Option<(&str, &str)>,
    body: &[u8],
) -> Result<Message, RequestErrorKind> {
    let mut headers = HeaderMap::new();
    if let Some((name, value)) = content_type {
        headers.insert(name, value);
    }
    let request = Request::new().payload(body.to_vec().into()).headers(headers);
    client.send_request(SUBJECT, request).await.map_err(|error| error.kind())
}

fn header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    Some(message.headers.as_ref()?.get(name)?.as_str())
}

/// A copy in which what passes by itself is null.
fn without_times(mut answer: Value) -> Value {
    match &mut answer {
        Value::Object(members) => {
            for (name, member) in members {
                let passes = ["collected_at_ms", "took_us", "last_event_age_ms"].contains(&name.as_str());
                *member = if passes { Value::Null } else { without_times(member.take()) };
            }
        }
        Value::Array(elements) => {
            elements.iter_mut().for_each(|element| *element = without_times(element.take()));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    answer
}

#[test]
fn the_answer_is_the_one_that_http_gives_in_json_and_in_msgpack() {
    let asked = Asked::start();
    let queries = [
        json!({"block_hashes": [11, 12, 13]}),
        json!({"block_hashes": ["b", "c"], "limit": 1, "freshness": false}),
        json!({"scope": {"model": "m", "tenant": "t"}, "token_ids": [1, 2, 3, 4, 5]}),
        json!({"queries": [{"block_hashes": [11]}, {"block_hashes": [12], "ranks": [[8, 0]]}]}),
    ];
    for query in queries {
        let text = query.to_string();
        let expected = asked.over_http("application/json", text.as_bytes());
        assert_eq!(expected.status, 200, "{}", expected.body);
        let expected = without_times(serde_json::from_str(&expected.body).unwrap());
        let json = [
            None,
            Some(("content-type", "application/json")),
            Some(("Content-Type", "Application/JSON; x=y")),
        ];
        for content_type in json {
            let answer = asked.ask(content_type, text.as_bytes());
            assert_eq!(header(&answer, "Content-Type"), Some("application/json"));
            assert_eq!(without_times(serde_json::from_slice(&answer.payload).unwrap()), expected);
        }
        let packed = rmp_serde::to_vec_named(&query).unwrap();
        let answer = asked.ask(Some(("Content-Type", MSGPACK)), &packed);
        assert_eq!(header(&answer, "Content-Type"), Some(MSGPACK));
        assert_eq!(without_times(rmp_serde::from_slice(&answer.payload).unwrap()), expected);
    }
}

#[test]
fn a_problem_is_the_one_that_http_tells_with_the_headers_of_a_services_error() {
    let asked = Asked::start();
    let rows: [(&str, &[u8], u16, &str); 7] = [
        ("application/json", b"{", 400, "Bad Request"),
        ("application/json", br#"{"token_ids": [1], "more": 1}"#, 400, "Bad Request"),
        ("application/json", br#"{"scope": {"model": "other"}, "token_ids": [1]}"#, 404, "Not Found"),
        ("application/json", br#"{}"#, 422, "Unprocessable Entity"),
        ("application/json", br#"{"token_ids": [-1]}"#, 422, "Unprocessable Entity"),
        (MSGPACK, b"\x81\xa9token_ids\xa6secret", 400, "Bad Request"),
        (MSGPACK, b"\xdf\xff\xff\xff\xff", 400, "Bad Request"),
    ];
    let errors = rows.len();
    let several = json!({"queries": vec![json!({"token_ids": [1]}); 1025]}).to_string();
    let several = ("application/json", several.as_bytes(), 413, "Payload Too Large");
    for (content_type, body, status, title) in rows.into_iter().chain([several]) {
        let expected = asked.over_http(content_type, body);
        let problem = asked.ask(Some(("Content-Type", content_type)), body);
        assert_eq!(String::from_utf8_lossy(&problem.payload), expected.body);
        assert_eq!(expected.status, status);
        let code = status.to_string();
        assert_eq!(header(&problem, "Nats-Service-Error-Code"), Some(code.as_str()));
        assert_eq!(header(&problem, "Nats-Service-Error"), Some(title));
        assert_eq!(header(&problem, "Content-Type"), Some("application/problem+json"));
    }
    let problem = asked.ask(Some(("Content-Type", "application/octet-stream")), b"\x01\0\0\0");
    let document: Value = serde_json::from_slice(&problem.payload).unwrap();
    assert_eq!(document["type"], "urn:kvtide:problem:unsupported-media-type", "{document}");
    assert_eq!(document["expected"], json!(["application/json", MSGPACK]));
    // Each error is counted once.
    let stats = asked.services("STATS")["endpoints"][0].clone();
    assert_eq!(stats["num_errors"], errors + 2, "{stats}");
    assert_eq!(stats["last_error"], "415:Unsupported Media Type");
}

#[test]
fn where_there_are_tokens_a_request_shows_one_and_gets_what_it_is_good_for() {
    let nats = NatsServer::start();
    let token = |role, tenant: &str| NewToken::new([role].into(), [tenant.to_owned()].into()).unwrap();
    let (of_a, of_all, ingest) = (token(Role::Query, "a"), token(Role::Query, "*"), token(Role::Ingest, "*"));
    let folder = Folder::new();
    let file = folder.write("tokens", format!("{}\n{}\n{}\n", of_a.line, of_all.line, ingest.line));
    let bus = nats.url();
    let serve = ["serve", "--nats", &bus, "--instance", "router-1", "--tokens", &file, "--model", "m"];
    let mut kvtide =
        Kvtide::start(env!("CARGO_BIN_EXE_kvtide"), &[&serve[..], &["--block-size", "4"]].concat());
    kvtide.wait_for_log("NATS requests: a connection is there");
    let (plain, hashes) = (r#"{"token_ids": [1]}"#, r#"{"block_hashes": [1]}"#);
    let tenant_a = r#"{"scope": {"tenant": "a"}, "token_ids": [1]}"#;
    let tenant_b = r#"{"scope": {"tenant": "b"}, "token_ids": [1]}"#;
    let rows = [
        (None, plain, Some("401")),
        (Some("kvt_no_such"), plain, Some("401")),
        (Some(ingest.token.as_str()), plain, Some("403")),
        (Some(&of_a.token), tenant_a, None),
        (Some(&of_a.token), tenant_b, Some("403")),
        (Some(&of_a.token), hashes, Some("403")),
        (Some(&of_all.token), tenant_b, None),
        (Some(&of_all.token), hashes, None),
    ];
    Runtime::new().unwrap().block_on(async {
        let client = async_nats::connect(nats.url()).await.unwrap();
        while ask(&client, None, b"").await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for (token, body, code) in rows {
            let shown = token.map(|token| format!("Bearer {token}"));
            let shown = shown.as_deref().map(|token| ("authorization", token));
            let answer = ask(&client, shown, body.as_bytes()).await.unwrap();
            assert_eq!(header(&answer, "Nats-Service-Error-Code"), code, "{token:?} {body}");
        }
    });
}

#[test]
fn an_answer_larger_than_the_bus_carries_is_a_problem_that_says_so() {
    let asked = Asked::start();
    let dp_ranks: Vec<u32> = (0..10_000).collect();
    let worker = json!({"scope": {"model": "m", "block_size": 4}, "worker_id": 9, "dp_ranks": dp_ranks});
    assert_eq!(asked.kvtide.post("/v1/workers", &worker).0, 200);
    let problem = asked.ask(None, br#"{"block_hashes": [11]}"#);
    let document: Value = serde_json::from_slice(&problem.payload).unwrap();
    assert_eq!(document["type"], "urn:kvtide:problem:too-large", "{document}");
    assert_eq!(document["limit_name"], "max_payload", "{document}");
    let answer = asked.ask(None, br#"{"block_hashes": [11], "limit": 5}"#);
    let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
    assert_eq!(answer["ranks"].as_array().unwrap().len(), 5);
}

#[test]
fn the_bus_lists_the_service_its_subject_and_what_it_has_done() {
    let asked = Asked::start();
    let info = asked.services("INFO");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!((&info["name"], &info["version"]), (&json!("kvtide"), &json!(version)), "{info}");
    assert_eq!(info["metadata"], json!({"instance": "router-1"}));
    let endpoints = info["endpoints"].as_array().unwrap();
    assert_eq!(endpoints.len(), 1, "{info}");
    assert_eq!((&endpoints[0]["name"], &endpoints[0]["subject"]), (&json!("overlap"), &json!(SUBJECT)));
    assert_eq!(asked.services("PING")["id"], info["id"]);

    let requests = || asked.services("STATS")["endpoints"][0]["num_requests"].as_u64().unwrap();
    let before = requests();
    for _request in 0..5 {
        asked.ask(None, br#"{"block_hashes": [11]}"#);
    }
    assert_eq!(requests(), before + 5);
}

#[test]
fn a_restarted_bus_finds_it_again() {
    let mut asked = Asked::start();
    let port = asked.nats.port();
    drop(asked.nats);
    asked.kvtide.wait_for_log("NATS requests: disconnected");
    asked.nats = NatsServer::start_on(port);
    asked.kvtide.wait_for_log("NATS requests: a connection is there");
    wait_for("an answer", || asked.try_ask(None, br#"{"block_hashes": [11]}"#).ok());
    assert_eq!(asked.services("INFO")["endpoints"][0]["subject"], SUBJECT);
}

#[test]
fn what_is_there_at_a_stop_is_answered_and_what_comes_later_is_told_that_nobody_answers() {
    const REQUESTS: usize = 300;
    let Asked { runtime, nats, client, kvtide } = Asked::start();
    kvtide.signal("-STOP");
    let body = json!({"token_ids": vec![7; 2000]}).to_string().into_bytes();
    let asked: Vec<_> = (0..REQUESTS)
        .map(|_| {
            let (client, body) = (client.clone(), body.clone());
            runtime.spawn(async move { ask(&client, None, &body).await })
        })
        .collect();
    // They have left, and the server has handed them on.
    std::thread::sleep(Duration::from_millis(300));
    runtime.block_on(client.flush()).unwrap();
    kvtide.signal("-TERM");
    kvtide.signal("-CONT");
    for asked in asked {
        let answer = runtime.block_on(asked).unwrap().unwrap();
        assert_eq!(header(&answer, "Content-Type"), Some("application/json"));
    }
    let log = kvtide.terminate();
    assert!(!log.iter().any(|line| line.contains("gave up")), "{log:#?}");
    assert_eq!(runtime.block_on(ask(&client, None, &body)).err(), Some(RequestErrorKind::NoResponders));
    drop(nats);
}

/// Requests beyond what may wait, of an indexer in this process.
fn with_limits(limits: ServiceLimits, requests: &[Vec<u8>]) -> Vec<Value> {
    let nats = NatsServer::start();
    let indexer = Arc::new(Indexer::new(Limits::default(), Clock::default()));
    let stream = indexer.direct(&Scope::new("m", 4)).unwrap();
    indexer.apply_events(&stream, Rank { worker_id: 7, dp_rank: 0 }, Some(1), &[]).unwrap();
    let instance: Instance = "router-1".parse().unwrap();
    Runtime::new().unwrap().block_on(async {
        let bus = Bus { url: nats.url(), ..Bus::default() };
        let service = NatsService::start(indexer, limits, Access::Open, &bus, &instance).await.unwrap();
        let client = async_nats::connect(nats.url()).await.unwrap();
        while ask(&client, None, b"{}").await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let asked = requests.iter().map(|request| ask(&client, None, request));
        let answers = futures_util::future::join_all(asked).await;
        service.stop().await;
        answers.into_iter().map(|answer| serde_json::from_slice(&answer.unwrap().payload).unwrap()).collect()
    })
}

#[test]
fn requests_beyond_a_limit_are_refused_at_once_and_the_limit_is_named() {
    let limits = ServiceLimits::default();
    let long = json!({"token_ids": vec![7; 100_000]}).to_string().into_bytes();
    let rows = [
        (ServiceLimits { bus_requests: 1, ..limits }, "busy", "bus_requests"),
        (ServiceLimits { bus_bytes: long.len() + 10, ..limits }, "busy", "bus_bytes"),
        (ServiceLimits { body_bytes: long.len() - 1, ..limits }, "too-large", "body_bytes"),
    ];
    for (limits, kind, name) in rows {
        let replies = with_limits(limits, &vec![long.clone(); 40]);
        let (answers, problems): (Vec<_>, Vec<_>) =
            replies.iter().partition(|reply| reply["prompt"]["tokens"] == 100_000);
        assert_eq!(answers.is_empty(), kind == "too-large", "{name}");
        assert!(!problems.is_empty(), "{name}");
        for problem in problems {
            let expected = (json!(format!("urn:kvtide:problem:{kind}")), json!(name));
            assert_eq!((&problem["type"], &problem["limit_name"]), (&expected.0, &expected.1), "{problem}");
        }
    }
}
