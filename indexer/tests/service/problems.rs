//! Every way to be refused: its status, its type, what it says, and that nothing has changed.

use serde_json::{Value, json};

use crate::served::{Served, problem};

const EVENTS: &str = "/v1/events";
const OVERLAP: &str = "/v1/overlap";
const BATCH: &str = "application/x-engine-kv-batch";
const FRAME: &str = "application/x-dynamo-kv-frame";
/// An engine whose batches are handed in over HTTP.
const CONFIG: &str = "[[stream]]\nname = \"engine\"\nworker_id = 7\nmodel = \"m\"\nblock_size = 4\n";
/// An engine's batch in which nothing happened.
const EMPTY_BATCH: &[u8] = &[0x92, 0xcb, 0x41, 0xd9, 0x54, 0xfc, 0x40, 0x10, 0, 0, 0x90];

/// A service that knows one rank of each of two scopes, and of an engine.
fn served() -> Served {
    let served = Served::configured(CONFIG);
    let stored = json!({"type": "stored", "blocks": [{"sequence_hash": 1, "block_hash": 1}]});
    served.tell(&json!({"model": "m", "block_size": 4}), 1, Some(1), std::slice::from_ref(&stored));
    served.tell(&json!({"model": "n", "block_size": 4}), 1, Some(1), &[stored]);
    let reply = served.kvtide.send("POST", "/v1/events?stream=engine&sequence=0", BATCH, EMPTY_BATCH);
    assert_eq!(reply.status, 200, "{}", reply.body);
    served
}

/// A body, what refuses it, and words of what is said.
type Row = (Value, u16, &'static str, &'static str);

fn refuse_all(route: &str, rows: &[Row]) {
    let served = served();
    let before = served.state();
    for (body, status, kind, words) in rows {
        let problem = served.refused(route, body, *status, kind);
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(words), "{detail:?} to {body}; expected {words:?}");
        assert_eq!(served.state(), before, "{body}");
    }
}

#[test]
fn queries_that_are_refused() {
    let hashes = vec![0; (4 << 20) / 4 + 1];
    refuse_all(
        OVERLAP,
        &[
            (
                json!(null),
                400,
                "malformed",
                "null, expected an object with token_ids, block_hashes or queries",
            ),
            (json!({"token": []}), 400, "malformed", "unknown field, expected one of `scope`, `token_ids`"),
            (json!({"scope": {"modl": "m"}, "token_ids": []}), 400, "malformed", "expected one of `model`"),
            (
                json!({"scope": "m", "token_ids": []}),
                400,
                "malformed",
                "string, expected an object with parts",
            ),
            (json!({"token_ids": "1"}), 400, "malformed", "invalid type: string, expected a sequence"),
            (json!({"token_ids": [1.5]}), 400, "malformed", "floating point, expected u32"),
            (json!({"token_ids": ["1"]}), 400, "malformed", "string, expected u32 (line 1, column 17)"),
            (json!({"block_hashes": [[1]]}), 400, "malformed", "expected a 64-bit number or up to 16 hexa"),
            (json!({"token_ids": [], "ranks": [7]}), 400, "malformed", "expected a tuple of size 2"),
            (json!({"token_ids": [], "limit": "all"}), 400, "malformed", "string, expected usize"),
            (json!({"token_ids": [], "freshness": null}), 400, "malformed", "null, expected a boolean"),
            (json!({"token_ids": [1_u64 << 32]}), 422, "impossible", "integer, expected u32"),
            (json!({"token_ids": [-1]}), 422, "impossible", "integer, expected u32"),
            (json!({"token_ids": [], "min_reach_tokens": -1}), 422, "impossible", "expected u32"),
            (json!({"block_hashes": ["1a2g"]}), 422, "impossible", "or up to 16 hexadecimal digits"),
            (
                json!({"block_hashes": ["11112222333344445"]}),
                422,
                "impossible",
                "or up to 16 hexadecimal digits",
            ),
            (json!({"block_hashes": ["0x"]}), 422, "impossible", "or up to 16 hexadecimal digits"),
            (json!({"block_hashes": ["-1"]}), 422, "impossible", "or up to 16 hexadecimal digits"),
            (json!({}), 422, "impossible", "expected token_ids or block_hashes, got neither"),
            (json!({"token_ids": [], "block_hashes": []}), 422, "impossible", "expected one of them"),
            (
                json!({"scope": {"model": "x"}, "token_ids": []}),
                404,
                "unknown-scope",
                "of 2 known scopes none",
            ),
            (json!({"token_ids": []}), 409, "several-scopes", "2 scopes fit; they differ in model"),
            (
                json!({"scope": {"model": "m"}, "block_hashes": hashes}),
                413,
                "too-large",
                "the prompt's tokens exceed the limit query_tokens of 4194304",
            ),
        ],
    );
}

/// A request of one event that is all right but for some members.
fn with(members: &Value) -> Value {
    let mut body = json!({"scope": {"model": "m", "block_size": 4}, "worker_id": 2, "events": []});
    for (name, value) in members.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// A request of one event. Its scope is new, and must not be known afterwards.
fn event(event: &Value) -> Value {
    with(&json!({"scope": {"model": "new", "block_size": 4}, "events": [event]}))
}

#[test]
fn requests_of_events_that_are_refused() {
    let cleared = json!({"type": "cleared"});
    refuse_all(
        EVENTS,
        &[
            (json!([]), 400, "malformed", "expected an object with scope, worker_id and events"),
            (json!({"scope": {}, "events": []}), 400, "malformed", "missing field `worker_id`"),
            (with(&json!({"generation": 1})), 400, "malformed", "unknown field, expected one of `scope`"),
            (with(&json!({"worker_id": "7"})), 400, "malformed", "string, expected u64"),
            (with(&json!({"worker_id": -7})), 422, "impossible", "integer, expected u64"),
            (with(&json!({"dp_rank": 1_u64 << 32})), 422, "impossible", "integer, expected u32"),
            (with(&json!({"first_event_id": 0})), 422, "impossible", "counts from 1, got 0"),
            (with(&json!({"scope": {"block_size": 4}})), 422, "impossible", "expected scope.model and"),
            (with(&json!({"scope": {"model": "m"}})), 422, "impossible", "and scope.block_size"),
            (
                with(&json!({"scope": {"model": "m", "block_size": 0}})),
                422,
                "impossible",
                "expected a block size of 1 token or more, got 0",
            ),
            (
                with(&json!({"events": vec![&cleared; 65_537]})),
                413,
                "too-large",
                "the request's events exceed the limit events of 65536",
            ),
            (with(&json!({"worker_id": 7})), 409, "refused", "another source feeds the rank"),
            (
                with(&json!({"worker_id": 7, "events": [cleared]})),
                409,
                "refused",
                "another source feeds the rank",
            ),
        ],
    );
}

#[test]
fn events_of_another_form_are_refused() {
    refuse_all(
        EVENTS,
        &[
            (event(&json!({})), 400, "malformed", "missing field `type`"),
            (event(&json!("cleared")), 400, "malformed", "string, expected an object with a type"),
            (event(&json!({"type": "moved"})), 400, "malformed", "unknown variant, expected one of `stored`"),
            (
                event(&json!({"type": "stored", "hashes": []})),
                400,
                "malformed",
                "unknown field, expected one",
            ),
            (
                event(&json!({"type": "stored", "tier": "tape", "blocks": []})),
                400,
                "malformed",
                "unknown variant, expected one of `gpu`, `host`, `disk`, `external`",
            ),
            (
                event(&json!({"type": "stored", "blocks": [{"sequence_hash": 1}]})),
                400,
                "malformed",
                "missing field `block_hash`",
            ),
            (event(&json!({"type": "removed"})), 400, "malformed", "a removed event without sequence_hashes"),
            (
                event(&json!({"type": "removed", "sequence_hashes": [], "blocks": []})),
                400,
                "malformed",
                "a removed event has no blocks",
            ),
            (
                event(&json!({"type": "cleared", "tier": "gpu"})),
                400,
                "malformed",
                "a cleared event has no tier",
            ),
        ],
    );
}

#[test]
fn events_that_cannot_be_are_refused() {
    let names = vec![0; (1 << 20) + 1];
    let block = json!({"sequence_hash": 1, "block_hash": 1});
    refuse_all(
        EVENTS,
        &[
            (
                event(&json!({"type": "stored"})),
                422,
                "impossible",
                "expected a store's blocks, or its sequence",
            ),
            (
                event(&json!({"type": "stored", "blocks": [block], "sequence_hashes": [1]})),
                422,
                "impossible",
                "expected a store's blocks, or its sequence_hashes",
            ),
            (
                event(&json!({"type": "stored", "sequence_hashes": [1], "token_ids": vec![1; 8]})),
                422,
                "impossible",
                "1 blocks need 4 token ids, got 8",
            ),
            (
                event(&json!({"type": "stored", "sequence_hashes": [1, 2], "token_ids": [1, 2, 3, 4, 5]})),
                422,
                "impossible",
                "2 blocks need 8 token ids, got 5",
            ),
            (
                event(&json!({"type": "stored", "blocks": [], "group": 16})),
                422,
                "impossible",
                "group 16; expected one below 16",
            ),
            (
                event(&json!({"type": "removed", "sequence_hashes": names})),
                413,
                "too-large",
                "an event's blocks exceed the limit event_blocks of 1048576",
            ),
        ],
    );
}

#[test]
fn one_bad_event_spoils_its_whole_request() {
    let served = served();
    let before = served.state();
    let good = json!({"type": "stored", "blocks": [{"sequence_hash": 2, "block_hash": 2}]});
    let bad = json!({"type": "stored", "sequence_hashes": [3], "token_ids": [1]});
    served.refused(EVENTS, &with(&json!({"worker_id": 1, "events": [good, bad]})), 422, "impossible");
    assert_eq!(served.state(), before);
}

/// Method, path, type and body.
type Sent<'a> = (&'a str, &'a str, &'a str, &'a [u8]);
/// Status, type and words.
type Said = (u16, &'static str, &'static str);

#[test]
fn what_is_no_request_at_all_is_refused_too() {
    let rows: [(Sent<'_>, Said); 17] = [
        (("POST", OVERLAP, "application/json", b""), (400, "malformed", "EOF while parsing a value")),
        (
            ("POST", OVERLAP, "application/json", b"{\"token_ids\": [1, 2"),
            (400, "malformed", "EOF while parsing"),
        ),
        (
            ("POST", OVERLAP, "application/json", b"{\"token_ids\": []} {}"),
            (400, "malformed", "trailing characters"),
        ),
        (("POST", OVERLAP, "application/json", b"\xff\xfe"), (400, "malformed", "expected value")),
        (
            ("POST", OVERLAP, "", b"{\"token_ids\": [], \"token_ids\": []}"),
            (400, "malformed", "duplicate field"),
        ),
        (("POST", OVERLAP, "", b"{\"token_ids\": [1e999]}"), (400, "malformed", "number out of range")),
        (("POST", EVENTS, "", b"not JSON"), (400, "malformed", "expected ident")),
        (
            ("POST", EVENTS, "text/plain", b"{}"),
            (415, "unsupported-media-type", "expected application/json or"),
        ),
        (
            ("POST", EVENTS, "application/msgpack", b"\x80"),
            (415, "unsupported-media-type", "application/msgpack"),
        ),
        (("POST", EVENTS, FRAME, b"\x80"), (422, "impossible", "expected ?stream=NAME with a raw message")),
        (
            ("POST", "/v1/events?stream=none", FRAME, b"\x80"),
            (404, "unknown-stream", "no stream of that name"),
        ),
        (
            ("POST", "/v1/events?stream=engine", FRAME, b"\x80"),
            (409, "other-format", "takes engine batches, got"),
        ),
        (("POST", "/v1/events?sequence=x", BATCH, b""), (400, "malformed", "expected ?stream=NAME")),
        (("GET", OVERLAP, "", b""), (405, "method-not-allowed", "other methods")),
        (("DELETE", "/v1/workers", "", b""), (405, "method-not-allowed", "other methods")),
        (("GET", "/v1/nothing", "", b""), (404, "no-such-route", "no such route")),
        (("POST", "/v1/overlap/", "", b"{}"), (404, "no-such-route", "no such route")),
    ];
    let served = served();
    let before = served.state();
    for ((method, path, content_type, body), (status, kind, words)) in rows {
        let reply = served.kvtide.send(method, path, content_type, body);
        let problem = problem(&reply, status, kind);
        assert!(problem["detail"].as_str().unwrap().contains(words), "{method} {path}: {problem}");
        assert_eq!(served.state(), before, "{method} {path}");
    }
}

#[test]
fn a_body_beyond_the_limit_is_refused_and_names_it() {
    let served = served();
    let before = served.state();
    let body = vec![b' '; (64 << 20) + 1];
    for route in [OVERLAP, EVENTS] {
        let problem =
            problem(&served.kvtide.send("POST", route, "application/json", &body), 413, "too-large");
        assert_eq!((&problem["limit"], &problem["limit_name"]), (&json!(64 << 20), &json!("body_bytes")));
    }
    assert_eq!(served.state(), before);
}

#[test]
fn one_scope_more_than_there_may_be_is_refused() {
    let served = Served::start();
    let request = |number: usize| json!({"scope": {"model": number.to_string(), "block_size": 4}, "worker_id": 1, "events": []});
    for number in 0..1024 {
        served.ask(EVENTS, &request(number));
    }
    let before = served.state();
    let problem = served.refused(EVENTS, &request(1024), 507, "too-many-scopes");
    assert_eq!((&problem["limit"], &problem["limit_name"]), (&json!(1024), &json!("scopes")));
    assert_eq!(served.state(), before);
    served.ask(EVENTS, &request(1023));
}
