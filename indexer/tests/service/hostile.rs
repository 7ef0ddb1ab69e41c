//! Bytes that no client should send: none of them ends the process or changes what is known.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;

use crate::served::{Served, problem};

const ROUTES: [&str; 7] = [
    "/v1/overlap",
    "/v1/events",
    "/v1/events?stream=engine",
    "/v1/workers",
    "/v1/scopes",
    "/healthz",
    "/metrics",
];
const TYPES: [&str; 4] =
    ["application/json", "application/x-dynamo-kv-frame", "application/x-engine-kv-batch", "*/*"];
/// An engine whose batches are handed in over HTTP.
const CONFIG: &str = "[[stream]]\nname = \"engine\"\nworker_id = 7\nmodel = \"m\"\nblock_size = 4\n";

fn served() -> Served {
    let served = Served::configured(CONFIG);
    let stored = json!({"type": "stored", "blocks": [{"sequence_hash": 1, "block_hash": 1}]});
    served.tell(&json!({"model": "m", "block_size": 4}), 1, Some(1), &[stored]);
    served
}

/// A valid request of events and one of overlap.
fn valid() -> [(&'static str, String); 2] {
    let events = json!({"scope": {"model": "m", "block_size": 4}, "worker_id": 1, "first_event_id": 2, "events": [
        {"type": "stored", "tier": "host", "parent": 1, "sequence_hashes": ["2"], "token_ids": [1, 2, 3, 4]},
        {"type": "removed", "sequence_hashes": [1]}]});
    let overlap = json!({"scope": {"model": "m", "tenant": "t"}, "token_ids": [1, 2, 3], "ranks": [[1, 0]]});
    [("/v1/events", events.to_string()), ("/v1/overlap", overlap.to_string())]
}

/// Sends bytes as they are, says no more, and reads whatever comes back.
fn send_bytes(served: &Served, bytes: &[u8]) -> Vec<u8> {
    let address = served.kvtide.url().strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // It may hang up before it has read everything.
    let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn arbitrary_bodies_change_nothing() {
    let served = served();
    let before = served.state();
    let mut random = StdRng::seed_from_u64(5);
    for _body in 0..150 {
        let mut body = vec![0; random.random_range(0..2000)];
        random.fill_bytes(&mut body);
        for route in ROUTES {
            let content_type = TYPES[random.random_range(0..TYPES.len())];
            let reply = served.kvtide.send("POST", route, content_type, &body);
            assert!((400..500).contains(&reply.status), "{route}: {reply:?}");
            assert_eq!(reply.content_type, "application/problem+json", "{route}: {reply:?}");
        }
    }
    assert_eq!(served.state(), before);
}

#[test]
fn arbitrary_bytes_on_the_wire_change_nothing() {
    let served = served();
    let before = served.state();
    let mut random = StdRng::seed_from_u64(6);
    for number in 0..300 {
        let mut bytes = match number % 3 {
            0 => Vec::new(),
            1 => b"POST /v1/events HTTP/1.1\r\nhost: x\r\n".to_vec(),
            _ => b"POST /v1/overlap HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".to_vec(),
        };
        let start = bytes.len();
        bytes.resize(start + random.random_range(1..500), 0);
        random.fill_bytes(&mut bytes[start..]);
        send_bytes(&served, &bytes);
    }
    assert_eq!(served.state(), before);
}

#[test]
fn truncated_json_changes_nothing() {
    let served = served();
    let before = served.state();
    let send = |route, body: &str| served.kvtide.send("POST", route, "application/json", body.as_bytes());
    for (route, body) in valid() {
        for end in 0..body.len() {
            problem(&send(route, &body[..end]), 400, "malformed");
        }
    }
    assert_eq!(served.state(), before);
    for (route, body) in valid() {
        assert_eq!(send(route, &body).status, 200, "the whole of it is all right");
    }
    assert_ne!(served.state(), before);
}

#[test]
fn deep_nesting_is_refused() {
    let served = served();
    let before = served.state();
    let deep = |open: &str, front: &str| format!("{front}{}", open.repeat(100_000));
    let rows = [
        deep("[", ""),
        deep("{\"a\":", ""),
        deep("[", "{\"token_ids\":"),
        deep("[", "{\"block_hashes\":["),
        deep("{\"model\":", "{\"scope\":"),
        deep("[", "{\"events\":[{\"type\":"),
        deep("{\"type\":", "{\"events\":["),
        deep("[", "{\"scope\":{\"tenant\":"),
    ];
    for body in rows {
        for route in ["/v1/overlap", "/v1/events"] {
            problem(
                &served.kvtide.send("POST", route, "application/json", body.as_bytes()),
                400,
                "malformed",
            );
        }
    }
    for nested in [vec![0x91; 100_000], vec![0x81; 100_000], [[0x81, 0xa1, b'x']; 40_000].concat()] {
        let batch = served.kvtide.send("POST", "/v1/events?stream=engine", TYPES[2], &nested);
        problem(&batch, 400, "undecodable");
    }
    assert_eq!(served.state(), before);
}

#[test]
fn deep_msgpack_is_refused() {
    let served = served();
    let before = served.state();
    for open in [&b"\x81\xa7queries\x91"[..], b"\x81\xa5scope", b"\x91", b"\x81\xa1x"] {
        for depth in [40, 70, 500, 5000] {
            let mut body = open.repeat(depth);
            body.push(0x80);
            let reply = served.kvtide.send("POST", "/v1/overlap", "application/msgpack", &body);
            assert!([400, 422].contains(&reply.status), "{depth}: {reply:?}");
        }
    }
    assert_eq!(served.state(), before);
}

#[test]
fn numbers_of_any_size_are_answered() {
    let served = served();
    let before = served.state();
    let digits = "9".repeat(5000);
    let numbers =
        ["-1", "4294967296", "18446744073709551616", "1e400", "-1e400", "1e-400", "1.0", digits.as_str()];
    for number in numbers {
        for body in [
            format!("{{\"token_ids\": [{number}]}}"),
            format!("{{\"block_hashes\": [1.{number}]}}"),
            format!("{{\"token_ids\": [], \"limit\": {number}}}"),
            format!("{{\"token_ids\": [], \"ranks\": [[1, {number}]]}}"),
            format!("{{\"token_ids\": [], \"scope\": {{\"block_size\": {number}}}}}"),
        ] {
            let reply = served.kvtide.send("POST", "/v1/overlap", "application/json", body.as_bytes());
            assert!([200, 400, 404, 422].contains(&reply.status), "{body:.80}: {reply:?}");
        }
        let events = format!(
            "{{\"scope\": {{\"model\": \"m\", \"block_size\": 4}}, \"worker_id\": {number}, \"dp_rank\": {number}, \
             \"first_event_id\": {number}, \"events\": []}}"
        );
        let reply = served.kvtide.send("POST", "/v1/events", "application/json", events.as_bytes());
        assert!([400, 422].contains(&reply.status), "{events:.80}: {reply:?}");
    }
    assert_eq!(served.state(), before);
}

#[test]
fn text_that_is_no_text_is_refused() {
    let served = served();
    let before = served.state();
    let rows: [&[u8]; 4] = [
        b"{\"scope\": {\"model\": \"\xff\xfe\"}, \"token_ids\": []}",
        b"{\"scope\": {\"model\": \"\\ud800\"}, \"token_ids\": []}",
        b"{\"scope\": {\"model\": \"\0\"}, \"token_ids\": []}",
        b"{\"\xc3\x28\": 1}",
    ];
    for body in rows {
        problem(&served.kvtide.send("POST", "/v1/overlap", "application/json", body), 400, "malformed");
    }
    assert_eq!(served.state(), before);
}

#[test]
fn requests_that_break_off_or_overflow_change_nothing() {
    let served = served();
    let before = served.state();
    let [(_, events), _] = valid();
    let length = events.len();
    let half = &events[..length / 2];
    let long = "x".repeat(2 << 20);
    let many: String = (0..5000).map(|number| format!("x-{number}: 1\r\n")).collect();
    let post = "POST /v1/events HTTP/1.1\r\nhost: x\r\n";
    let rows = [
        format!("{post}content-length: {length}\r\n\r\n{half}"),
        format!("{post}content-length: 99999999999999\r\n\r\n{events}"),
        format!("{post}content-length: -1\r\n\r\n{events}"),
        format!("{post}content-length: 5\r\ncontent-length: 6\r\n\r\n{events}"),
        format!("{post}transfer-encoding: chunked\r\n\r\n{length:x}\r\n{half}"),
        format!("{post}transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n{events}"),
        format!("{post}x-long: {long}\r\n\r\n"),
        format!("{post}{many}\r\n{events}"),
        format!("POST /v1/events?stream={long} HTTP/1.1\r\nhost: x\r\n\r\n"),
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        post.to_owned(),
    ];
    for request in rows {
        let answer = send_bytes(&served, request.as_bytes());
        let status = answer.get(9..12).map(|status| String::from_utf8_lossy(status).into_owned());
        assert!(
            status.as_ref().is_none_or(|status| status.starts_with('4') || status.starts_with('5')),
            "{status:?} to {request:.90}"
        );
        assert_eq!(served.state(), before, "{request:.90}");
    }
}
