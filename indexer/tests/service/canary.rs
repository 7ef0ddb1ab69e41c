//! Nothing that is refused is said again: no token, hash or tenant in any error, log line or metric.

use kvtide_tests::{Folder, harness::Kvtide};
use serde_json::{Map, Value, json};

use crate::{
    frames::{Frame, event, stored},
    served::Served,
};

/// A name, a token and a hash, and every form in which they could come back.
const NAME: &str = "canary-of-acme";
const TOKEN: u32 = 3_735_928_559;
const HASH: u64 = 0xc0ff_ee00_c0ff_ee11;

fn traces() -> Vec<String> {
    vec![
        "canary".into(),
        TOKEN.to_string(),
        format!("{TOKEN:x}"),
        HASH.to_string(),
        HASH.cast_signed().to_string(),
        format!("{HASH:x}"),
        format!("{HASH:X}"),
    ]
}

fn expect_no_trace(what: &str, text: &str) {
    for trace in traces() {
        expect_no_part(what, text, &trace);
    }
}

pub(crate) fn expect_no_part(what: &str, text: &str, part: &str) {
    assert!(!text.contains(part), "{part:?} in {what}: {text}");
}

/// What can stand at a place where it should not.
fn wrong_values() -> Vec<Value> {
    let mut object = Map::new();
    object.insert(NAME.into(), json!(TOKEN));
    object.insert(format!("{NAME}`, expected {TOKEN}"), json!(HASH));
    vec![
        json!(NAME),
        json!(format!("{NAME}`, expected {TOKEN} at line 1")),
        json!(format!("{HASH:x}{HASH:x}")),
        json!([NAME, TOKEN]),
        Value::Object(object),
        json!(TOKEN),
        json!(HASH),
        json!(HASH.cast_signed()),
        json!(f64::from(TOKEN) + 0.25),
        json!([[HASH]]),
    ]
}

/// Every place in a body, as a path of members and indices.
fn places(value: &Value, path: &str, found: &mut Vec<String>) {
    found.push(path.to_owned());
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                places(member, &format!("{path}/{name}"), found);
            }
        }
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                places(element, &format!("{path}/{index}"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Bodies in which one place has a wrong value, or one object a member that it should not have.
fn spoiled(body: &Value) -> Vec<Value> {
    let mut found = Vec::new();
    places(body, "", &mut found);
    let mut bodies = Vec::new();
    for path in found {
        // A scope's fixed parts and numbers of workers, groups and events are no secrets, and errors may name them;
        // of an engine's batch: the block size and the rank.
        let public = [
            "/model",
            "/block_size",
            "/kv_dtype",
            "/worker_id",
            "/dp_rank",
            "/group",
            "/first_event_id",
            // Of Dynamo's routes.
            "/model_name",
            "/routing_group",
            "/instance_id",
            "/endpoint",
        ];
        let is_public =
            public.iter().any(|part| path.ends_with(part)) || ["/1/0/4", "/2"].contains(&path.as_str());
        for wrong in wrong_values() {
            if !(is_public && (wrong.is_string() || wrong.is_number())) {
                let mut body = body.clone();
                *body.pointer_mut(&path).unwrap() = wrong.clone();
                bodies.push(body);
            }
            let mut body = body.clone();
            if let Some(members) = body.pointer_mut(&path).unwrap().as_object_mut() {
                members.insert(NAME.into(), wrong);
                bodies.push(body);
            }
        }
    }
    bodies
}

fn bodies() -> Vec<(&'static str, Value)> {
    let scope = json!({"model": "m", "block_size": 2, "kv_dtype": null, "adapter": NAME, "tenant": NAME});
    let events = json!([
        {"type": "stored", "tier": "gpu", "group": 0, "parent": HASH,
         "blocks": [{"sequence_hash": HASH, "block_hash": format!("{HASH:x}")}]},
        {"type": "stored", "sequence_hashes": [HASH, 1], "token_ids": [TOKEN, TOKEN, TOKEN, 4]},
        {"type": "removed", "tier": "host", "sequence_hashes": [HASH]},
        {"type": "cleared"}]);
    vec![
        ("/v1/events", json!({"scope": scope, "worker_id": 1, "first_event_id": 1, "events": events})),
        ("/v1/overlap", json!({"scope": scope, "token_ids": [TOKEN, 2], "ranks": [[1, 0]], "limit": 1})),
        ("/v1/overlap", json!({"scope": scope, "block_hashes": [HASH, format!("{HASH:x}")]})),
        (
            "/v1/overlap",
            json!({"scope": scope, "token_ids": [TOKEN, 2], "block_mm_infos": media(), "is_eagle": false}),
        ),
        (
            "/v1/overlap",
            json!({"scope": scope, "token_ids": [TOKEN], "mm_objects": [{"mm_hash": HASH, "offsets": [[0, TOKEN]]}]}),
        ),
        (
            "/query",
            json!({"token_ids": [TOKEN, 2], "model_name": "m", "routing_group": "default", "lora_name": NAME,
                   "cache_salt": NAME, "tenant_id": "default", "is_eagle": false, "block_mm_infos": media(),
                   "mm_routing_info": {"routing_token_ids": [TOKEN], "block_mm_infos": media()}}),
        ),
        (
            "/query_by_hash",
            json!({"block_hashes": [HASH.cast_signed(), 1], "model_name": "m", "cache_salt": null}),
        ),
        (
            "/register",
            json!({"instance_id": 1, "endpoint": "tcp://127.0.0.1:1", "model_name": "other", "tenant_id": "default",
                   "block_size": 2, "additional_salt": NAME}),
        ),
        ("/unregister", json!({"instance_id": 99, "model_name": "m", "tenant_id": "default"})),
    ]
}

fn media() -> Value {
    json!([null, {"mm_objects": [{"mm_hash": HASH, "offsets": [[0, 2]]}]}])
}

#[test]
fn what_is_refused_is_not_repeated() {
    let folder = Folder::new();
    let config = folder.write(
        "kvtide.toml",
        "[nats]\nurl = \"nats://127.0.0.1:1\"\n\
         [[stream]]\nname = \"bus\"\nsubject = \"s\"\nmodel = \"m\"\nblock_size = 2\n\
         [[stream]]\nname = \"engine\"\nworker_id = 7\nmodel = \"m\"\nblock_size = 2\n",
    );
    let arguments = ["serve", "--config", &config];
    let served = Served { kvtide: Kvtide::start_logging(env!("CARGO_BIN_EXE_kvtide"), &arguments, "trace") };
    let mut refused = 0;
    let mut send = |route: &str, content_type: &str, body: &[u8]| {
        let reply = served.kvtide.send("POST", route, content_type, body);
        if reply.status >= 400 {
            let form =
                if route.starts_with("/v1/") { "application/problem+json" } else { "application/json" };
            assert_eq!(reply.content_type, form, "{}", reply.body);
            expect_no_trace("an error", &reply.body);
            refused += 1;
        }
    };
    for (route, body) in bodies() {
        for spoiled in spoiled(&body) {
            send(route, "application/json", spoiled.to_string().as_bytes());
        }
        let text = body.to_string();
        for end in (0..text.len()).step_by(3) {
            send(route, "application/json", &text.as_bytes()[..end]);
        }
    }
    let data = stored(Some(HASH), &[(HASH, HASH), (1, HASH)]);
    let events = vec![event(1, 1, "device", &data)];
    let frame = Frame { publisher_id: 1, sequence: 0, published_at: 1_700_000_000_000, events }.encode();
    for end in 0..frame.len() {
        send("/v1/events?stream=bus", "application/x-dynamo-kv-frame", &frame[..end]);
    }
    let batch = json!([1.5, [["BlockStored", [HASH], HASH, [TOKEN, TOKEN], 2, 9, "GPU", NAME]], 0]);
    for batch in spoiled(&batch) {
        let bytes = rmp_serde::to_vec(&batch).unwrap();
        send("/v1/events?stream=engine", "application/x-engine-kv-batch", &bytes);
        send("/v1/events?stream=engine", "application/x-engine-kv-batch", &bytes[..bytes.len() - 1]);
    }
    for query in
        ["stream=canary-of-acme", "sequence=3735928559&stream=x", "sequence=canary-of-acme", "canary"]
    {
        send(&format!("/v1/events?{query}"), "application/x-engine-kv-batch", b"");
    }
    send(&format!("/v1/{NAME}"), "application/json", b"");
    assert!(refused > 1200, "{refused}");

    for route in ["/metrics", "/v1/scopes", "/v1/workers"] {
        expect_no_trace(route, &served.kvtide.get(route).1);
    }
    let log = served.kvtide.terminate();
    assert!(!log.is_empty());
    for line in log {
        // The path of a request may be logged at this level; it is the client's to keep names out of it.
        if !line.contains("/v1/") {
            expect_no_trace("the log", &line);
        }
    }
}
